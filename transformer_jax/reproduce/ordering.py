"""Whether rows of a table come in the same order here as in the paper."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.reproduce.results import Results, TranslationResult
from transformer_jax.tables import TABLE_3, Variation

# What is compared with the paper: our figure, the paper's, and which is better.
_MEASURES = {
    "perplexity": ("perplexity", "perplexity", True),
    "BLEU": ("bleu_paper", "bleu", False),
}
_TITLES = {"big": "Big", "all": "All rows"}  # of groups without a letter
_MOST_NAMED = 10  # pairs

Pair = tuple[str, str]  # the row that is better in the paper, and the other


@dataclasses.dataclass(frozen=True)
class Ordering:
    """The pairs of rows whose printed figures differ, by how they come out here."""

    same: list[Pair]  # in the paper's order
    reversed: list[Pair]
    equal: list[Pair]  # the same figure for both here
    # Of all of these, those whose means are closer than the least and the most over
    # seeds of one of the two rows; None = a row has one seed, which says nothing of it.
    within_spread: list[Pair] | None

    @property
    def num_pairs(self) -> int:
        """How many pairs the paper orders."""
        return len(self.same) + len(self.reversed) + len(self.equal)

    @property
    def tau(self) -> float | None:
        """Kendall's: (same - reversed) / pairs; None without pairs."""
        if not self.num_pairs:
            return None
        return (len(self.same) - len(self.reversed)) / self.num_pairs

    def clear(self) -> "Ordering | None":
        """The same without the pairs within the spread; None where that is unknown."""
        if self.within_spread is None:
            return None
        excluded = set(self.within_spread)
        kept = [
            [pair for pair in pairs if pair not in excluded]
            for pairs in (self.same, self.reversed, self.equal)
        ]
        return Ordering(*kept, within_spread=[])

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON-able types."""
        return {**dataclasses.asdict(self), "pairs": self.num_pairs, "tau": self.tau}


def mean(values: Sequence[float]) -> float:
    """Of one figure over seeds."""
    return sum(values) / len(values)


def compare(
    printed: Mapping[str, float],
    measured: Mapping[str, Sequence[float]],
    *,
    lower_is_better: bool,
) -> Ordering:
    """Compares the order of the paper's figures with that of ours.

    Args:
      printed: the paper's figure of each row.
      measured: ours over seeds, of those rows that were run.
      lower_is_better: as of perplexity.

    >>> ours = {"a": [5.0, 5.2], "b": [5.1, 5.3], "c": [9.0, 9.2]}
    >>> ordering = compare({"a": 3, "b": 2, "c": 4}, ours, lower_is_better=True)
    >>> ordering.same, ordering.reversed, ordering.within_spread
    ([('a', 'c'), ('b', 'c')], [('b', 'a')], [('b', 'a')])
    """
    sign = 1 if lower_is_better else -1
    same: list[Pair] = []
    reversed_: list[Pair] = []
    equal: list[Pair] = []
    within: list[Pair] = []
    rows = [row for row in printed if measured.get(row)]
    for pair in itertools.combinations(rows, 2):
        if printed[pair[0]] == printed[pair[1]]:
            continue
        better, worse = sorted(pair, key=lambda row: sign * printed[row])
        margin = sign * (mean(measured[worse]) - mean(measured[better]))
        (same if margin > 0 else reversed_ if margin < 0 else equal).append(
            (better, worse)
        )
        spread = max(max(measured[row]) - min(measured[row]) for row in pair)
        if abs(margin) < spread:
            within.append((better, worse))
    has_spread = bool(rows) and all(len(measured[row]) > 1 for row in rows)
    return Ordering(same, reversed_, equal, within if has_spread else None)


def ranking(figures: Mapping[str, float], *, lower_is_better: bool) -> str:
    """The rows best first, with "=" between equal ones.

    >>> ranking({"base": 25.8, "A1": 24.9, "A3": 25.8}, lower_is_better=False)
    'base = A3 > A1'
    """
    sign = 1 if lower_is_better else -1
    rows = sorted(figures, key=lambda row: sign * figures[row])
    shown = rows[0]
    for before, row in itertools.pairwise(rows):
        between = "<" if lower_is_better else ">"
        shown += f" {'=' if figures[before] == figures[row] else between} {row}"
    return shown


def _groups() -> dict[str, list[Variation]]:
    """Rows by the table's letter, each group with base, which it varies; and all."""
    base = TABLE_3[0]
    letters = dict.fromkeys(row.group for row in TABLE_3 if row.group)
    groups = {
        letter: [base, *(row for row in TABLE_3 if row.group == letter)]
        for letter in letters
    }
    return {**groups, "all": list(TABLE_3)}


def compare_rows(results: Results[TranslationResult]) -> dict[str, dict[str, Ordering]]:
    """The ordering of Table 3's rows, by group and measure."""
    orderings = {}
    for group, rows in _groups().items():
        orderings[group] = {
            measure: compare(
                {row.row: getattr(row, theirs) for row in rows},
                {
                    row.row: [getattr(run, ours) for run in results.get(row.row, [])]
                    for row in rows
                },
                lower_is_better=is_lower,
            )
            for measure, (ours, theirs, is_lower) in _MEASURES.items()
        }
    return orderings


def in_words(
    orderings: Mapping[str, Mapping[str, Ordering]], results: Results[TranslationResult]
) -> list[str]:
    """Lines of Markdown on what `compare_rows` says of these results."""
    text = (
        "Best first; each group with base. A pair of rows counts where the paper's "
        "figures differ, and is named with the row first that is better in the paper. "
        "Kendall's tau is 1 where all pairs come in the paper's order, -1 where none "
        "does."
    )
    if any(len(runs) > 1 for runs in results.values()):
        text += (
            " A difference is within the spread where the means are closer than the "
            "least and the most over seeds of one of the two rows."
        )
    if any(len(runs) == 1 for runs in results.values()):
        text += " With one seed of a row, nothing tells which differences are chance."
    lines = [text]
    too_few = []
    for group, rows in _groups().items():
        run = [row for row in rows if results.get(row.row)]
        if len(run) < 2:
            too_few.append(group)
            continue
        lines += ["", f"### {_TITLES.get(group, f'Group {group}')}"]
        for measure, ordering in orderings[group].items():
            rankings = _rankings(run, measure, results)
            lines += ["", f"{measure}:", "", *rankings, f"- {_verdict(ordering)}"]
    if too_few:
        shown = ", ".join(too_few)
        lines += ["", f"Not compared, for fewer than two rows were run: {shown}."]
    return lines


def _rankings(
    run: Sequence[Variation], measure: str, results: Results[TranslationResult]
) -> list[str]:
    ours, theirs, is_lower = _MEASURES[measure]
    printed = {row.row: getattr(row, theirs) for row in run}
    means = {
        row.row: mean([getattr(one, ours) for one in results[row.row]]) for row in run
    }
    return [
        f"- paper: {ranking(printed, lower_is_better=is_lower)}",
        f"- here: {ranking(means, lower_is_better=is_lower)}",
    ]


def _verdict(ordering: Ordering) -> str:
    """What the pairs say, in words."""
    if not ordering.num_pairs:
        return "The paper prints the same figure for these rows: nothing to compare."
    text = (
        f"Agrees with the paper in {len(ordering.same)} of {ordering.num_pairs} pairs, "
        f"tau {ordering.tau:.2f}."
    )
    if ordering.reversed:
        text += f" The other way round: {_pairs(ordering.reversed)}."
    if ordering.equal:
        text += f" Equal here: {_pairs(ordering.equal)}."
    clear = ordering.clear()
    if clear is None or ordering.within_spread is None:
        return text
    text += f" Within the spread over seeds: {_pairs(ordering.within_spread)}"
    if not clear.num_pairs:
        return f"{text}, which is all, so that the order here says nothing."
    return (
        f"{text}; of the {clear.num_pairs} beyond it, {len(clear.same)} in the paper's "
        "order."
    )


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Which they are, or how many."""
    if len(pairs) > _MOST_NAMED:
        return f"{len(pairs)} pairs"
    return ", ".join(f"{better}-{worse}" for better, worse in pairs) or "none"
