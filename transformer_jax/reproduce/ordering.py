"""Whether rows of a table come in the same order here as in the paper."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Pair = tuple[str, str]  # the row that is better in the paper, and the other


@dataclasses.dataclass(frozen=True)
class Ordering:
    """The pairs of rows whose printed figures differ, by how they come out here."""

    same: list[Pair]  # in the paper's order
    reversed: list[Pair]
    equal: list[Pair]  # the same figure for both here
    # Of all of these, those whose means are less far apart than one of the two rows'
    # values over seeds; None = one seed, which says nothing of it.
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
        """The same without the pairs within the spread; None with one seed."""
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


def ranking(
    figures: Mapping[str, float], *, lower_is_better: bool, precision: int | None = None
) -> str:
    """The rows best first, with "=" between equal ones.

    >>> ranking({"base": 25.8, "A1": 24.9, "A3": 25.8}, lower_is_better=False)
    'base = A3 > A1'
    """
    sign = 1 if lower_is_better else -1
    if precision is not None:
        figures = {row: round(figure, precision) for row, figure in figures.items()}
    rows = sorted(figures, key=lambda row: sign * figures[row])
    shown = rows[0]
    for before, row in itertools.pairwise(rows):
        between = "<" if lower_is_better else ">"
        shown += f" {'=' if figures[before] == figures[row] else between} {row}"
    return shown
