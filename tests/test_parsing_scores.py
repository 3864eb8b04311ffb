"""Tests of the bracket scores: trees whose constituents are counted by hand."""

import dataclasses
import json

import pytest

from transformer_jax.errors import UserError
from transformer_jax.parsing.scores import (
    BracketScores,
    ParseScores,
    compared,
    flat_tree,
    label_table,
    right_branching_tree,
    score_trees,
    with_tags_of,
)
from transformer_jax.parsing.trees import Bracket, Tree, Word, built, read_trees


def tree(text: str) -> Tree:
    (read,) = read_trees([text], "test")
    return read


def scored(test: str, gold: str) -> ParseScores:
    """The scores of one sentence."""
    return score_trees([tree(test)], [tree(gold)])


def counts(scores: BracketScores) -> tuple[int, int, int]:
    return scores.matched, scores.gold, scores.test


def chain(words: str) -> str:
    """A flat NP over so many words."""
    return "(NP " + " ".join(f"(NN {word})" for word in words.split()) + ")"


# The NP of the tested tree holds the word in the middle, that of the gold tree does
# not: with that word they are NP(0, 3) and NP(0, 2), without it both are NP(0, 2).
@pytest.mark.parametrize("tag", [",", ":", "``", "''", "."])
def test_a_word_with_a_tag_of_punctuation_is_no_position(tag: str) -> None:
    gold = f"(TOP (S (NP (NN a) (NN b)) ({tag} x) (VP (VB c))))"
    test = f"(TOP (S (NP (NN a) (NN b) ({tag} x)) (VP (VB c))))"
    assert counts(scored(test, gold)) == (3, 3, 3)
    # A bracket is a word: S is the same, and VP(3, 4); NP is not.
    kept_gold, kept_test = (s.replace(f"({tag} ", "(-LRB- ") for s in (gold, test))
    assert counts(scored(kept_test, kept_gold)) == (2, 3, 3)


def test_traces_are_no_words_and_what_holds_only_traces_is_no_constituent() -> None:
    # Of the gold tree S, NP, VP count; neither NP over *T*, nor SBAR and S over 0.
    gold = (
        "(TOP (S (NP (NN a)) (VP (VB b) (NP-1 (-NONE- *T*-2)) "
        "(SBAR (-NONE- 0) (S (-NONE- *T*))))))"
    )
    assert counts(scored("(TOP (S (NP (NN a)) (VP (VB b))))", gold)) == (3, 3, 3)


def test_the_top_is_not_counted_with_a_label_or_without() -> None:
    # Only NP: 1 of 1. Counting the root would make it 2 of 2, or 1 of 2.
    assert counts(scored("(TOP (NP (NN a)))", "( (NP (NN a)))")) == (1, 1, 1)
    assert counts(scored("(NP (NN a))", "(TOP (NP (NN a)))")) == (1, 1, 1)


def test_a_label_that_is_a_deleted_tag_is_not_counted_but_its_words_are() -> None:
    # S and VP; the constituent labelled "," is none, though "b" in it is a word.
    assert counts(scored("(S (, (NN a)) (VP (VB b)))", "(S (NN a) (VP (VB b)))")) == (
        2,
        2,
        2,
    )


@pytest.mark.parametrize(("test", "gold"), [("ADVP", "PRT"), ("PRT", "ADVP")])
def test_particles_are_adverb_phrases(test: str, gold: str) -> None:
    frame = "(VP (VB go) ({} (RB out)))"
    scores = scored(frame.format(test), frame.format(gold))
    assert counts(scores) == (2, 2, 2)
    assert counts(scores.labels["ADVP"]) == (1, 1, 1)
    assert "PRT" not in scores.labels
    assert counts(scored(frame.format("PP"), frame.format(gold))) == (1, 2, 2)


def test_labels_are_cut_at_hyphen_and_equals_sign() -> None:
    test = "(S (NP (NN a)) (VP (VB b)))"
    gold = "(S-TPC-1 (NP=2 (NN a)) (VP (VB b)))"
    assert counts(scored(test, gold)) == (3, 3, 3)


def test_a_constituent_is_matched_as_often_as_in_the_tree_with_fewer_of_it() -> None:
    once, twice, thrice = (f"(S {'(NP ' * n}(NN a){')' * n} (VB b))" for n in (1, 2, 3))
    # S is always matched, and of NP(0, 1) the smaller number.
    for test, gold, expected, exact in (
        (thrice, twice, (3, 3, 4), 0),
        (once, thrice, (2, 4, 2), 0),
        (twice, twice, (3, 3, 3), 100),
    ):
        scores = scored(test, gold)
        assert (counts(scores), scores.exact_match) == (expected, exact)


def test_spans_and_labels_both_have_to_be_the_same() -> None:
    gold = tree(
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT a) (NN cat))) (. .)))"
    )
    test = tree("(TOP (S (NP (DT the) (NN dog)) (VBD saw) (PP (DT a) (NN cat)) (. .)))")
    # gold: S(0,5) NP(0,2) VP(2,5) NP(3,5); test: S(0,5) NP(0,2) PP(3,5).
    scores = score_trees([test], [gold])
    assert counts(scores) == (2, 4, 3)
    assert scores.recall == 50.0  # 2 / 4
    assert scores.precision == pytest.approx(200 / 3)  # 2 / 3
    assert scores.f1 == pytest.approx(400 / 7)  # 2 * 2 / (4 + 3)
    assert scores.exact_match == 0
    by_label = {label: counts(row) for label, row in scores.labels.items()}
    assert by_label == {
        "NP": (1, 2, 1),
        "S": (1, 1, 1),
        "VP": (0, 1, 0),
        "PP": (0, 0, 1),
    }
    assert scores.labels["NP"].f1 == pytest.approx(200 / 3)  # 2 * 1 / (2 + 1)
    assert scores.labels["PP"].precision == scores.labels["PP"].recall == 0


def test_corpora_sum_constituents_before_they_divide() -> None:
    right, wrong = "(S (NP (NN a)) (VP (VB b)))", "(X (NN a) (VB b))"
    scores = score_trees([tree(right), tree(wrong)], [tree(right)] * 2)
    # 3 + 0 matched of 3 + 3 gold and 3 + 1 tested.
    assert counts(scores) == (3, 6, 4)
    assert scores.f1 == 60.0  # not 50, the mean of 100 and 0
    assert scores.exact_match == 50.0


def test_sentences_of_other_words_are_errors_that_count_nowhere_else() -> None:
    gold = "(S (NP (NN a)) (VP (VB b)) (. .))"
    longer = "(S (NP (NN a) (NN a)) (VP (VB b)) (. .))"
    renamed = "(S (NP (NN a)) (VP (VB B)) (. .))"
    retagged = "(S (NP (, a)) (VP (VB b)) (. .))"  # a word deleted on one side
    tests = [gold, longer, renamed, retagged]
    scores = score_trees([tree(test) for test in tests], [tree(gold)] * 4)
    assert (scores.num_sentences, scores.num_errors, scores.num_skipped) == (4, 3, 0)
    assert counts(scores) == (3, 3, 3)
    assert scores.exact_match == scores.tagging_accuracy == 100
    assert [compared(tree(test), tree(gold)).status for test in tests] == [
        "scored",
        "error",
        "error",
        "error",
    ]


def test_deleted_words_may_differ() -> None:
    test, gold = "(S (NP (NN a)) (. !))", "(S (`` x) (NP (NN a)) (. .))"
    assert counts(scored(test, gold)) == (2, 2, 2)


def test_a_tree_without_words_to_count_is_skipped() -> None:
    gold = "(S (NP (NN a)))"
    scores = score_trees([tree("(S (. a))"), tree(gold)], [tree(gold)] * 2)
    assert (scores.num_sentences, scores.num_errors, scores.num_skipped) == (2, 0, 1)
    assert counts(scores) == (2, 2, 2)


def test_up_to_40_words_counts_punctuation_and_no_traces_of_the_gold_tree() -> None:
    def sentence(size: int, ending: str) -> Tree:
        return tree(f"(S {chain('w ' * size)} {ending})")

    just = sentence(39, "(. .) (NP (-NONE- *T*))")  # 40 words and a trace
    above = sentence(40, "(. .)")
    scores = score_trees([just, just, above], [just, just, above])
    assert (scores.num_sentences, counts(scores)) == (3, (6, 6, 6))
    short = scores.up_to_40_words
    assert short is not None
    assert (short.num_sentences, counts(short)) == (2, (4, 4, 4))
    assert short.up_to_40_words is None
    # The tree tested may have fewer, of words that do not count.
    scores = score_trees([sentence(40, "")], [above])
    assert counts(scores) == (2, 2, 2)
    assert scores.up_to_40_words is not None
    assert scores.up_to_40_words.num_sentences == 0


def test_no_sentence_of_up_to_40_words_has_scores_of_zero() -> None:
    long = tree(chain("w " * 41))
    scores = score_trees([long], [long], with_interval=True)
    assert scores.f1 == 100
    short = scores.up_to_40_words
    assert short is not None
    assert (short.num_sentences, short.f1, short.exact_match) == (0, 0, 0)


def test_a_long_or_deep_tree_is_scored() -> None:
    depth = 5003
    deep = built(
        [Bracket("open", "NP")] * depth
        + [Word("NN", "a")]
        + [Bracket("close", "NP")] * depth
    )
    assert counts(score_trees([deep], [deep])) == (depth, depth, depth)


def test_tags_are_scored_apart_and_without_deleted_words() -> None:
    gold = "(S (NP (DT the) (NN dog)) (VP (VBD ran)) (. .))"
    test = "(S (NP (DT the) (VB dog)) (VP (NN ran)) (. .))"
    scores = scored(test, gold)
    assert scores.f1 == scores.exact_match == 100
    assert scores.tagging_accuracy == pytest.approx(100 / 3)  # the; not the full stop


def test_crossing_brackets_are_those_of_the_test_that_overlap_one_of_the_gold() -> None:
    def crossing(test: str, gold: str) -> float:
        return scored(test, gold).average_crossing

    left = "(S (NP (NN a) (NN b)) (NN c) (NN d))"  # NP(0, 2)
    right = "(S (NN a) (NN b) (VP (NN c) (NN d)))"  # VP(2, 4)
    both = "(S (NP (NN a) (NN b)) (VP (NN c) (NN d)))"
    # X(1, 3) twice, with Z(1, 2) within.
    middle = "(S (NN a) (X (X (Z (NN b)) (NN c))) (NN d))"
    assert [crossing(middle, gold) for gold in (left, right, both)] == [2, 2, 2]
    # The other way round NP and VP cross.
    assert [crossing(test, middle) for test in (left, right, both)] == [1, 1, 2]
    assert crossing("(S (X (NN a) (NN b)) (VP (NN c)) (NN d))", both) == 0
    # The average is over sentences that are no errors.
    tests = [tree(middle), tree(both), tree("(S (NN a))")]
    assert score_trees(tests, [tree(both)] * 3).average_crossing == 1.0


def test_gold_tags_make_both_sides_delete_the_same_words() -> None:
    gold = tree("(TOP (S (NP (NN a)) (, ,) (VP (VB b) (NP (-NONE- *))) (. .)))")
    guess = tree("(TOP (S (NP (, a) (NN ,)) (VP (VB b)) (XX .)))")
    assert score_trees([guess], [gold]).num_errors == 1
    # The constituents are those of the guess, its NP over "a" and the comma.
    tagged = with_tags_of(guess, gold)
    assert tagged == tree("(TOP (S (NP (NN a) (, ,)) (VP (VB b)) (. .)))")
    assert counts(score_trees([tagged], [gold])) == (3, 3, 3)


def test_a_tree_over_other_words_keeps_its_tags() -> None:
    gold = tree("(S (NN a) (NN b))")
    for test in (tree("(S (XX a))"), tree("(S (XX a) (XX c))")):
        assert with_tags_of(test, gold) == test


WORDS = [
    Word("``", "``"),
    Word("DT", "the"),
    Word("NN", "dog"),
    Word(",", ","),
    Word("VBD", "ran"),
    Word(".", "."),
    Word("''", "''"),
]


def test_baselines_as_drawn_by_hand() -> None:
    assert flat_tree(WORDS) == tree(
        "(TOP (S (`` ``) (DT the) (NN dog) (, ,) (VBD ran) (. .) ('' '')))"
    )
    assert right_branching_tree(WORDS) == tree(
        "(TOP (S (`` ``) (DT the) (VP (NN dog) (, ,) (VP (VBD ran))) (. .) ('' '')))"
    )
    assert right_branching_tree(WORDS[-2:]) == tree("(TOP (S (. .) ('' '')))")
    assert right_branching_tree(WORDS[1:2]) == tree("(TOP (S (DT the)))")


def test_the_interval_is_that_of_sentences_drawn_again() -> None:
    right, wrong = "(S (NN a) (VB b))", "(X (NN a) (VB b))"
    sizes = 53, 47  # of 100: the sum of so many draws has a known spread
    tests = [tree(right)] * sizes[0] + [tree(wrong)] * sizes[1]
    scores = score_trees(tests, [tree(right)] * 100, with_interval=True)
    assert scores.f1 == 53.0
    assert scores.f1_interval is not None
    low, high = scores.f1_interval
    # One constituent each: F1 is a binomial share of deviation 4.99, and 95% of it
    # lies 1.96 deviations about its mean; 1000 draws tell the ends to about 0.8.
    assert low == pytest.approx(53 - 1.96 * 4.99, abs=2.5)
    assert high == pytest.approx(53 + 1.96 * 4.99, abs=2.5)
    assert score_trees(tests, [tree(right)] * 100).f1_interval is None


def test_only_errors_leave_scores_of_zero() -> None:
    scores = score_trees([tree("(S (NN a))")], [tree("(S (NN b))")], with_interval=True)
    assert (scores.f1, scores.exact_match, scores.tagging_accuracy) == (0, 0, 0)
    assert scores.average_crossing == 0
    assert scores.f1_interval == (0, 0)


def test_scores_can_be_written_as_json() -> None:
    scores = scored("(S (NP (NN a)))", "(S (PRT (NN a)))")
    read = json.loads(json.dumps(dataclasses.asdict(scores)))
    assert (read["f1"], read["labels"]["ADVP"]["gold"]) == (50.0, 1)
    assert read["up_to_40_words"]["labels"] == read["labels"]


def test_the_table_of_labels_is_written_as_by_hand() -> None:
    gold = "(S (NP (NN a)) (VP (VB b) (NP (NN c))))"
    test = "(S (NP (NN a)) (VB b) (ADJP (NN c)))"
    # NP: 1 of 2 and of 1; S: 1 of 1; VP: 0 of 1; ADJP: 0 of 0 and of 1.
    assert label_table(scored(test, gold)).splitlines() == [
        "label       gold    test  matched   recall  precision      F1",
        "NP             2       1        1    50.00     100.00   66.67",
        "S              1       1        1   100.00     100.00  100.00",
        "VP             1       0        0     0.00       0.00    0.00",
        "ADJP           0       1        0     0.00       0.00    0.00",
        "all            4       3        2    50.00      66.67   57.14",
    ]


def test_lists_that_differ_in_length_or_are_empty_are_refused() -> None:
    one = tree("(S (NN a))")
    with pytest.raises(UserError, match="Got 1 trees to score against 2, expected as"):
        score_trees([one], [one, one])
    with pytest.raises(UserError, match="Got 0 trees to score, expected at least 1"):
        score_trees([], [])
