"""The TreeParser: words in, trees over exactly these words out, and their scores."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from transformer_jax.commands.score_table import parse_table
from transformer_jax.config import DataConfig
from transformer_jax.errors import UserError
from transformer_jax.evaluation import (
    ParserEvaluation,
    ParserReport,
    baseline_scores,
    comparable_parsers,
    parse_and_score,
)
from transformer_jax.parser import TreeParser
from transformer_jax.parsing.scores import score_trees
from transformer_jax.parsing.trees import Tree, one_line, read_trees
from transformer_jax.translation import Hypothesis, Translation

TAGS = ["(S", "(NP", "(VP", "(NN)", "(VB)", "(.)", ")S", ")NP", ")VP"]
WORDS = ["(S", "(NP", ")S", ")NP"]


def trees(*texts: str) -> list[Tree]:
    return list(read_trees(texts, "x"))


class Canned:
    """A translator that gives prepared outputs, whatever the sentences are.

    Each word is a word piece, and so is what follows a "+" in it. Bars in an output
    separate its parts; all but the last are of two word pieces.
    """

    def __init__(self, brackets: Sequence[str], *outputs: str) -> None:
        target = types.SimpleNamespace(brackets=list(brackets))
        self.vocabularies = types.SimpleNamespace(target=target)
        self.outputs = outputs
        self.sentences: list[str] = []

    def translations(
        self, sentences: Sequence[str], *, progress: Callable[[int], object]
    ) -> list[Translation]:
        self.sentences = list(sentences)
        progress(len(sentences))
        pairs = zip(sentences, self.outputs, strict=True)
        return [_translation(sentence, text) for sentence, text in pairs]


def _translation(sentence: str, text: str) -> Translation:
    parts = tuple(text.split(" | "))
    pieces = [f"▁{word}" for word in sentence.split()]
    pieces = [piece for word in pieces for piece in word.split("+")]
    for number in range(1, len(parts)):
        pieces.insert(3 * number - 1, "</s>")
    return Translation(
        source=sentence,
        source_tokens=(*pieces, "</s>") if pieces else (),
        hypotheses=(Hypothesis(" ".join(parts), 0.0, 0.0, (), "end", parts=parts),)
        if pieces
        else (),
        num_pieces=len(parts),
        was_cut=len(parts) > 1,
    )


def parser(brackets: Sequence[str], *outputs: str) -> tuple[TreeParser, Canned]:
    canned = Canned(brackets, *outputs)
    translator: Any = canned
    return TreeParser(translator), canned


def test_outputs_become_trees_over_the_words() -> None:
    parses, canned = parser(TAGS, "(S (NP (NN) )NP (VP (VB) )VP )S", "(NP(NN)")
    done: list[int] = []
    first, second = parses.parse(
        [["(", "bark"], ["a▁", "漢", "c"]], progress=done.append
    )
    assert canned.sentences == ["-LRB- bark", "a_ 漢 c"]
    assert first.tree is not None
    assert second.tree is not None
    assert one_line(first.tree) == ("(TOP (S (NP (NN -LRB-)) (VP (VB bark))))")
    assert one_line(second.tree) == "(TOP (NP (NN a▁) (XX 漢) (XX c)))"
    assert (first.is_whole, second.is_whole) == (True, False)
    assert first.words == ("(", "bark")
    assert sum(done) == 2


@pytest.mark.parametrize(
    ("words", "output", "tree", "is_whole"),
    [
        (
            "The dog barks .",
            "(NP (NN) (NN) )NP | (S (VP (VB) )VP (.) )S",
            "(TOP (NP (NN The) (NN dog)) (S (VP (VB barks)) (. .)))",
            True,
        ),
        # What the first leaves open does not hold the second.
        (
            "The dog barks",
            "(S (NP (NN) (NN) | (VP (VB) )VP",
            "(TOP (S (NP (NN The) (NN dog))) (VP (VB barks)))",
            False,
        ),
        # Nor do leaves too many of the first push words of the second away.
        (
            "The dog barks",
            "(NP (NN) (NN) (NN) )NP | (VP (VB) )VP",
            "(TOP (NP (NN The) (NN dog)) (VP (VB barks)))",
            False,
        ),
        # What is made of the rest of a word is nothing.
        (
            "a b+c",
            "(NP (NN) (VB) )NP | (S (NN) )S",
            "(TOP (NP (NN a) (VB b+c)))",
            False,
        ),
    ],
)
def test_the_parts_of_a_long_sentence_stand_side_by_side(
    words: str, output: str, tree: str, is_whole: bool
) -> None:
    found, _ = parser(TAGS, output)
    (parse,) = found.parse([words.split()])
    assert parse.tree is not None
    assert (one_line(parse.tree), parse.is_whole) == (tree, is_whole)
    assert parse.tokens == tuple(output.replace("| ", "").split())


def test_leaves_show_in_the_vocabulary() -> None:
    assert parser(TAGS)[0].leaves == "tags"
    of_words, _ = parser(WORDS, "(S (NP a )NP b )S")
    assert of_words.leaves == "words"
    (parse,) = of_words.parse([["a", "b"]])
    assert parse.tree is not None
    assert one_line(parse.tree) == "(TOP (S (NP (XX a)) (XX b)))"
    assert parse.is_whole


def test_no_words_give_no_tree() -> None:
    found, _ = parser(TAGS, "")
    (parse,) = found.parse([[]])
    assert parse.tree is None


def test_a_model_without_brackets_is_no_parser() -> None:
    with pytest.raises(UserError, match="this model is no parser: its vocabulary has"):
        parser([])


@pytest.mark.parametrize("word", ["", "a b", "\u00a0", "a\n"])
def test_words_hold_no_white_space(word: str) -> None:
    found, _ = parser(TAGS, "")
    with pytest.raises(UserError, match="sentence 2 has the word"):
        found.parse([["a"], ["b", word]])


def test_a_text_is_not_taken_for_words() -> None:
    found, _ = parser(TAGS, "")
    with pytest.raises(TypeError, match="expected its words"):
        found.parse(["The dog"])


GOLD = trees(
    "(TOP (S (NP (NN a)) (VP (VB b)) (. .)))",
    "(TOP (S (NP (NN c) (NN d)) (VP (VB e))))",
)


def test_scores_of_a_parser_by_hand() -> None:
    # Of the first all three constituents, though the tags of a word and of the full
    # stop are wrong. Of the second, closed too early: its S and NP of c and d; for VP
    # over e there is NP, so that 2 of 3 and 2 of 3 match.
    found, _ = parser(
        TAGS,
        "(S (NP (VB) )NP (VP (VB) )VP (NN) )S",
        "(S (NP (NN) (NN) )NP (NP (VB)",
    )
    _, report = parse_and_score(found, GOLD)
    assert (report.scores.matched, report.scores.gold, report.scores.test) == (5, 6, 6)
    assert report.scores.f1 == pytest.approx(100 * 10 / 12)
    assert report.scores.exact_match == 50
    assert report.scores.num_errors == 0
    assert report.tagging_accuracy == pytest.approx(100 * 4 / 6)
    assert report.whole_outputs == 50


def test_baselines_by_hand() -> None:
    scores = baseline_scores(GOLD)
    # An S each: matched 2 of 6 in 2.
    flat = scores["flat S"]
    assert (flat.matched, flat.gold, flat.test) == (2, 6, 2)
    # a (b): S and VP of b. c (d (e)): S and VP of e, and VP of d e, which gold has not.
    branching = scores["right-branching"]
    assert (branching.matched, branching.gold, branching.test) == (4, 6, 5)


def test_the_table_says_what_was_not_scored_and_what_it_compares_with() -> None:
    other = trees("(TOP (S (NN x) (NP (NN d)) (VP (VB e))))")[0]
    report = ParserReport(score_trees([GOLD[0], other], GOLD), 75.0, 50.0)
    table = parse_table(ParserEvaluation(report, baseline_scores(GOLD), "nothing"))
    lines = table.splitlines()
    assert lines[1].split() == [
        "parser",
        "100.00",
        "100.00",
        "100.00",
        "100.00",
        "0.00",
    ]
    # 2 of 6 constituents in 2: precision 100, recall 33.33, F1 50.
    assert lines[2].split()[2:5] == ["100.00", "33.33", "50.00"]
    assert "  not scored: 1 of 2 sentences, other words than expected" in lines
    assert "  comparable with: nothing" in lines
    assert "outputs that were trees without repair: 50.0%" in lines


@pytest.mark.parametrize(
    ("test", "number", "expected"),
    [
        ("23", 2416, "Table 4 of the paper: WSJ section 23"),
        ("23", 12, "none of Table 4 of the paper: these are 12 trees of 23"),
        ("dev", 273, "none of Table 4 of the paper: these are 273 trees of dev"),
    ],
)
def test_what_may_stand_beside_table_4(test: str, number: int, expected: str) -> None:
    data = DataConfig(corpus="treebank", test=test)
    golds = [GOLD[0]] * number
    assert comparable_parsers(data, "test", golds).startswith(expected)
