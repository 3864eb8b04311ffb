"""Scores of one or several systems as a table to read."""

from collections.abc import Mapping, Sequence

from transformer_jax.metrics import SCORE_NAMES, Difference, TranslationScores


def score_table(
    scores: Sequence[TranslationScores],
    *,
    systems: Sequence[str] = ("",),
    differences: Sequence[Mapping[str, Difference]] = (),
) -> str:
    """Lines that give each score with its interval and what it is comparable with.

    Args:
      scores: of each system, with intervals.
      systems: a name of each, where there are several.
      differences: of each system from the first, but of the first.
    """
    name_width = max(map(len, SCORE_NAMES))
    system_width = max(map(len, systems))
    head = f"{'score':{name_width}}   value  95% interval  "
    if differences:
        head += "  difference  p-value"
    lines = [f"{head}  system" if system_width else head.rstrip()]
    for name in SCORE_NAMES:
        for number, (system, of_system) in enumerate(zip(systems, scores, strict=True)):
            shown = f"{name if number == 0 else '':{name_width}}"
            shown += f"  {getattr(of_system, name):6.2f}"
            if of_system.confidence_intervals:
                low, high = of_system.confidence_intervals[name]
                shown += f"  {low:5.2f} to {high:5.2f}"
            if differences and number == 0:
                shown += f"  {'':10}  {'':7}"
            elif differences:
                found = differences[number - 1][name]
                shown += f"  {found.difference:+10.2f}  {found.p_value:7.4f}"
            lines.append(f"{shown}  {system}".rstrip())
        signature = getattr(scores[0], f"{name}_signature")
        lines.append(f"  signature: {signature}")
        lines.append(f"  comparable with: {scores[0].comparable_with[name]}")
    return "\n".join(lines)
