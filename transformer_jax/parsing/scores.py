"""Trees into scores: labelled brackets, counted by the rules of EVALB.

EVALB is the program of Sekine and Collins (https://nlp.cs.nyu.edu/evalb), here with its
parameters COLLINS.prm, the scoring of Collins 1997 (https://aclanthology.org/P97-1003),
customary for the Penn Treebank; Table 4 of the paper says F1 and no more. A constituent
is a label over a span of words, and is matched if the other tree has it too.

1. Words tagged `,` `:` ``` `` ``` `''` `.` or -NONE- are deleted, and no position is
   left of them; each tree goes by its own tags. Constituents that are then empty do not
   count, nor does TOP; nor does any other constituent with a deleted tag for a label.
2. Labels are cut at their first "-" or "=", and PRT is ADVP.
3. A constituent that occurs n times in one tree and m times in the other is matched
   min(n, m) times.
4. Where the words that are left differ, in number or in text, the sentence is an error.
   Where the tested tree has none left, it is skipped. Both are counted, and left out of
   all scores.
5. No length limit; a second set of scores is of gold trees of up to 40 words,
   punctuation among them and traces not.
6. Tags have a score of their own, over the words that are left, and no other part.

Unlike EVALB, a bracket without a label, as around the trees of the Penn Treebank's
files, does not count (it is a TOP that nobody named), F1 without a match is 0 and not a
division by zero, and there is no limit to errors, words or depth. The mending of quotes
of later versions of EVALB, which COLLINS.prm does not ask for, is left out; trees whose
tags are guesses are better scored by `with_tags_of`.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.parsing.trees import (
    EMPTY_TAG,
    TOP,
    Bracket,
    Event,
    Tree,
    Word,
    built,
    events,
    words_of,
)
from transformer_jax.significance import bootstrap_sums, confidence_interval

_DELETED = frozenset({"", TOP, EMPTY_TAG, ",", ":", "``", "''", "."})  # tags and labels
_SAME_AS = {"PRT": "ADVP"}
_SHORT = 40  # words


@dataclasses.dataclass(frozen=True)
class BracketScores:
    """How far two sets of constituents agree; percentages of 0 where there is none."""

    matched: int  # constituents in both
    gold: int  # in the expected trees
    test: int  # in the tested trees
    recall: float  # percent of gold
    precision: float  # percent of test
    f1: float  # their harmonic mean, percent


@dataclasses.dataclass(frozen=True)
class ParseScores(BracketScores):
    """The scores of one list of trees; all percentages are of scored sentences."""

    exact_match: float  # percent of sentences whose constituents are the expected ones
    tagging_accuracy: float  # percent of words
    average_crossing: float  # tested constituents a sentence that overlap a gold one
    num_sentences: int  # errors and skipped ones among them
    num_errors: int
    num_skipped: int
    labels: Mapping[str, BracketScores]  # the most frequent in the gold trees first
    # Low and high: the F1 of 95% of 1000 bootstrap resamples of the sentences.
    f1_interval: tuple[float, float] | None
    up_to_40_words: "ParseScores | None"  # the same of those alone; None within itself


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A tree beside the expected one: what the scores of many are summed from."""

    status: Literal["scored", "error", "skipped"]
    length: int  # of the gold tree: words, punctuation too, without traces
    # By label: constituents matched, gold and test; empty if not scored; so below.
    labels: Mapping[str, tuple[int, int, int]]
    num_crossing: int  # tested constituents that overlap a gold one
    num_words: int  # without deleted ones
    num_correct_tags: int

    @property
    def brackets(self) -> BracketScores:
        """The scores of this sentence alone."""
        return _bracket_scores(*_summed(self.labels.values()))


def score_trees(
    tests: Sequence[Tree], golds: Sequence[Tree], *, with_interval: bool = False
) -> ParseScores:
    """Returns the scores of trees, by the rules above.

    Of the constituents of all scored sentences together,

        recall = matched / gold
        precision = matched / test
        F1 = 2 matched / (gold + test)

    Args:
      tests: the trees of a parser.
      golds: the expected trees in the same order, cleaned or not.
      with_interval: also by how much F1 would vary with other sentences of the kind.

    Raises:
      UserError: if the numbers of trees differ or are zero.

    >>> gold = Tree("S", (Tree("NP", (Word("NN", "dogs"),)), Word("VBP", "bark")))
    >>> flat = flat_tree([Word("NN", "dogs"), Word("VBP", "bark")])
    >>> scores = score_trees([flat], [gold])
    >>> scores.recall, scores.precision, round(scores.f1, 2)
    (50.0, 100.0, 66.67)
    """
    if len(tests) != len(golds):
        raise UserError(
            f"Got {len(tests)} trees to score against {len(golds)}, expected as many "
            "of each; give both one tree a sentence, in one order."
        )
    if not golds:
        raise UserError(
            "Got 0 trees to score, expected at least 1; check that the files of trees "
            "are not empty."
        )
    comparisons = [compared(*pair) for pair in zip(tests, golds, strict=True)]
    short = [one for one in comparisons if one.length <= _SHORT]
    return _report(
        comparisons,
        up_to_40_words=_report(short, None, with_interval=with_interval),
        with_interval=with_interval,
    )


def compared(test: Tree, gold: Tree) -> Comparison:
    """A sentence's tree beside the expected one, by the rules above."""
    test_words, test_constituents = _counted(test)
    gold_words, gold_constituents = _counted(gold)
    length = sum(word.tag != EMPTY_TAG for word in words_of(gold))
    if not test_words:
        return Comparison("skipped", length, {}, 0, 0, 0)
    if [word.text for word in test_words] != [word.text for word in gold_words]:
        return Comparison("error", length, {}, 0, 0, 0)
    gold_spans = {(start, end) for _, start, end in gold_constituents}
    return Comparison(
        status="scored",
        length=length,
        labels=_by_label(test_constituents, gold_constituents),
        num_crossing=sum(
            times
            for (_, start, end), times in test_constituents.items()
            if any(a < start < b < end or start < a < end < b for a, b in gold_spans)
        ),
        num_words=len(gold_words),
        num_correct_tags=sum(
            ours.tag == theirs.tag
            for ours, theirs in zip(test_words, gold_words, strict=True)
        ),
    )


def with_tags_of(tree: Tree, gold: Tree) -> Tree:
    """The tree with the expected tags: of both, the same punctuation is then deleted.

    To score a parser that guesses tags or has none. The gold tree may hold traces. A
    tree over other words comes back as it is: `score_trees` has it among the errors.

    >>> guessed = Tree("NP", (Word("XX", "dogs"), Word("XX", ".")))
    >>> gold = Tree("NP", (Word("NNS", "dogs"), Word(".", ".")))
    >>> with_tags_of(guessed, gold) == gold
    True
    """
    words = [word for word in words_of(gold) if word.tag != EMPTY_TAG]
    if [word.text for word in words_of(tree)] != [word.text for word in words]:
        return tree
    tagged = iter(words)
    return built(
        next(tagged) if isinstance(event, Word) else event for event in events(tree)
    )


def flat_tree(words: Sequence[Word]) -> Tree:
    """The baseline without structure: one S over all words."""
    return Tree(TOP, (Tree("S", tuple(words)),))


def right_branching_tree(words: Sequence[Word]) -> Tree:
    """The baseline of one structure: S over all words, VP from each word to the last.

    As strong as it can be without a look at the words: of S, NP and VP within S, VP
    matches most. The first word opens no VP, nor do those whose tags the scores delete:
    it would be another's once more. Deleted words at the end are the root's.

    >>> from transformer_jax.parsing.trees import one_line
    >>> words = [Word("NNS", "dogs"), Word("RB", "do"), Word("VBP", "bark")]
    >>> one_line(right_branching_tree([*words, Word(".", ".")]))
    '(TOP (S (NNS dogs) (VP (RB do) (VP (VBP bark))) (. .)))'
    """
    body, tail = list(words), []
    while body and body[-1].tag in _DELETED:
        tail.insert(0, body.pop())
    sequence: list[Event] = [Bracket("open", TOP), Bracket("open", "S")]
    num_scored = 0
    for word in body:
        if word.tag not in _DELETED:
            if num_scored > 0:
                sequence.append(Bracket("open", "VP"))
            num_scored += 1
        sequence.append(word)
    sequence += [Bracket("close", "VP")] * (num_scored - 1)
    sequence += [*tail, Bracket("close", "S"), Bracket("close", TOP)]
    return built(sequence)


def label_table(scores: ParseScores) -> str:
    """The scores of each label as text, a line each, and of all together.

    The columns: constituents in gold and tested trees, matched, and percentages.
    """
    lines = [
        f"{'label':<8}{'gold':>8}{'test':>8}{'matched':>9}"
        f"{'recall':>9}{'precision':>11}{'F1':>8}"
    ]
    for label, row in [*scores.labels.items(), ("all", scores)]:
        lines.append(
            f"{label:<8}{row.gold:>8}{row.test:>8}{row.matched:>9}"
            f"{row.recall:>9.2f}{row.precision:>11.2f}{row.f1:>8.2f}"
        )
    return "\n".join(lines)


_Constituents = collections.Counter[tuple[str, int, int]]  # label, start, end
_Counts = tuple[int, int, int]  # constituents matched, gold and test


def _counted(tree: Tree) -> tuple[list[Word], _Constituents]:
    """The words that are not deleted, and (label, start, end) of what is over them."""
    words: list[Word] = []
    starts: list[int] = []
    constituents: _Constituents = collections.Counter()
    for event in events(tree):
        if isinstance(event, Word):
            if event.tag not in _DELETED:
                words.append(event)
        elif event.kind == "open":
            starts.append(len(words))
        else:
            start, end = starts.pop(), len(words)
            label = re.split("[-=]", event.label, maxsplit=1)[0]
            if start < end and label not in _DELETED:
                constituents[_SAME_AS.get(label, label), start, end] += 1
    return words, constituents


def _by_label(test: _Constituents, gold: _Constituents) -> dict[str, _Counts]:
    counts = {label: [0, 0, 0] for label, _, _ in test | gold}
    for column, constituents in enumerate((test & gold, gold, test)):
        for (label, _, _), times in constituents.items():
            counts[label][column] += times
    return {label: (m, g, t) for label, (m, g, t) in counts.items()}


def _summed(counts: Iterable[_Counts]) -> _Counts:
    matched, gold, test = map(sum, zip((0, 0, 0), *counts, strict=True))
    return matched, gold, test


def _bracket_scores(matched: int, gold: int, test: int) -> BracketScores:
    return BracketScores(
        matched=matched,
        gold=gold,
        test=test,
        recall=_percent(matched, gold),
        precision=_percent(matched, test),
        f1=_percent(2 * matched, gold + test),
    )


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _report(
    comparisons: Sequence[Comparison],
    up_to_40_words: ParseScores | None,
    *,
    with_interval: bool,
) -> ParseScores:
    statuses = collections.Counter(one.status for one in comparisons)
    scored = [one for one in comparisons if one.status == "scored"]
    sentences = [_summed(one.labels.values()) for one in scored]
    labels: dict[str, list[_Counts]] = collections.defaultdict(list)
    for one in scored:
        for label, counts in one.labels.items():
            labels[label].append(counts)
    by_label = {
        label: _bracket_scores(*_summed(rows)) for label, rows in labels.items()
    }
    num_exact = sum(matched == gold == test for matched, gold, test in sentences)
    return ParseScores(
        **dataclasses.asdict(_bracket_scores(*_summed(sentences))),
        exact_match=_percent(num_exact, len(scored)),
        tagging_accuracy=_percent(
            sum(one.num_correct_tags for one in scored),
            sum(one.num_words for one in scored),
        ),
        average_crossing=sum(one.num_crossing for one in scored) / max(1, len(scored)),
        num_sentences=len(comparisons),
        num_errors=statuses["error"],
        num_skipped=statuses["skipped"],
        labels=dict(
            sorted(by_label.items(), key=lambda row: (-row[1].gold, -row[1].test, row))
        ),
        f1_interval=_f1_interval(sentences) if with_interval else None,
        up_to_40_words=up_to_40_words,
    )


def _f1_interval(sentences: Sequence[_Counts]) -> tuple[float, float]:
    statistics = np.array(sentences, np.float64).reshape(-1, 3)
    return confidence_interval(
        np.array([_bracket_scores(*row).f1 for row in bootstrap_sums(statistics)])
    )
