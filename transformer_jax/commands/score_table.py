"""Scores as tables to read: of one or several translators, of a parser."""

from collections.abc import Mapping, Sequence

from transformer_jax.evaluation import ParserEvaluation
from transformer_jax.metrics import SCORE_NAMES, Difference, TranslationScores
from transformer_jax.parsing.scores import label_table


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


def parse_table(evaluation: ParserEvaluation) -> str:
    """Lines that give a parser's scores, and those of trees that need no model."""
    report, baselines = evaluation.report, evaluation.baselines
    scores, width = report.scores, max(len("parser"), *map(len, baselines))
    lines = [f"{'':{width}}  precision  recall      F1  exact match  crossing"]
    for name, of_it in {"parser": scores, **baselines}.items():
        lines.append(
            f"{name:{width}}  {of_it.precision:9.2f}  {of_it.recall:6.2f}  "
            f"{of_it.f1:6.2f}  {of_it.exact_match:11.2f}  {of_it.average_crossing:8.2f}"
        )
    if scores.num_errors or scores.num_skipped:
        lines.append(
            f"  not scored: {scores.num_errors + scores.num_skipped} of "
            f"{scores.num_sentences:,} sentences, other words than expected"
        )
    if scores.f1_interval:
        low, high = scores.f1_interval
        lines.append(f"  95% interval of F1: {low:.2f} to {high:.2f}")
    if scores.up_to_40_words:
        short = scores.up_to_40_words
        lines.append(
            f"  up to 40 words: F1 {short.f1:.2f} in {short.num_sentences:,} sentences"
        )
    return "\n".join(
        [
            *lines,
            "  EVALB's rules: all lengths, no punctuation, ADVP = PRT",
            f"  comparable with: {evaluation.comparable_with}",
            f"outputs that were trees without repair: {report.whole_outputs:.1f}%",
            f"tags: {report.tagging_accuracy:.1f}% right",
            "",
            label_table(scores),
            "",
        ]
    )
