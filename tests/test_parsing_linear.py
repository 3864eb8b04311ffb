"""Trees as tokens and back, and trees of whatever a model emits."""

import random

import pytest

from transformer_jax.parsing.linear import (
    Closing,
    Leaves,
    brackets_of,
    is_tree,
    leaves_of,
    linearised,
    sentence_of,
    tokens_of,
    tree_of,
)
from transformer_jax.parsing.trees import Tree, one_line, read_trees, words_of

TEXT = "(TOP (S (NP (DT The) (NN dog)) (VP (VBD barked) (PRT (RP up))) (. .)))"
WORDS = ["The", "dog", "barked", "up", "."]
TOKENS = {
    ("tags", "labelled"): "(S (NP (DT) (NN) )NP (VP (VBD) (PRT (RP) )PRT )VP (.) )S",
    ("tags", "plain"): "(S (NP (DT) (NN) ) (VP (VBD) (PRT (RP) ) ) (.) )",
    ("words", "labelled"): "(S (NP The dog )NP (VP barked (PRT up )PRT )VP . )S",
    ("words", "plain"): "(S (NP The dog ) (VP barked (PRT up ) ) . )",
}


def tree(text: str) -> Tree:
    (only,) = read_trees([text], "x")
    return only


def repaired(tokens: str, words: str, leaves: Leaves = "tags") -> str:
    return one_line(tree_of(tokens.split(), words.split(), leaves=leaves))


@pytest.mark.parametrize(("form", "tokens"), TOKENS.items())
def test_tokens_of_a_tree(form: tuple[Leaves, Closing], tokens: str) -> None:
    leaves, closing = form
    assert linearised(tree(TEXT), leaves=leaves, closing=closing) == tokens.split()


@pytest.mark.parametrize(("form", "tokens"), TOKENS.items())
def test_tokens_give_the_tree_again(form: tuple[Leaves, Closing], tokens: str) -> None:
    leaves, _ = form
    expected = TEXT
    if leaves == "words":  # which say nothing of tags
        for tag in ("DT", "NN", "VBD", "RP", "."):
            expected = expected.replace(f"({tag} ", "(XX ")
    assert repaired(tokens, " ".join(WORDS), leaves) == expected
    assert is_tree(tokens.split(), WORDS, leaves=leaves)


@pytest.mark.parametrize(
    ("tokens", "words", "expected"),
    [
        # Nothing, or nothing of use.
        ("", "a b", "(TOP (S (XX a) (XX b)))"),
        (")NP )S ) (", "a", "(TOP (S (XX a)))"),
        ("(S (NP )NP )S", "a b", "(TOP (S (XX a) (XX b)))"),
        ("stray words", "a", "(TOP (S (XX a)))"),
        ("(X) (Y)", "a", "(TOP (S (X a)))"),
        # Brackets left open, and too many closed.
        ("(S (NP (DT) (NN)", "a b", "(TOP (S (NP (DT a) (NN b))))"),
        ("(S (NN) )S )S )NP", "a", "(TOP (S (NN a)))"),
        # A closer of an outer bracket closes what is in it, too.
        ("(S (VP (NP (NN) )VP (.) )S", "a .", "(TOP (S (VP (NP (NN a))) (. .)))"),
        # A closer whose label is not open closes the innermost bracket.
        ("(S (NP (NN) )VP (VB) )S", "a b", "(TOP (S (NP (NN a)) (VB b)))"),
        # Leaves missing: after the word before; too many: left out.
        ("(S (NP (DT) )NP )S", "a b c", "(TOP (S (NP (DT a) (XX b) (XX c))))"),
        ("(S (DT) (NN) (VB) )S", "a", "(TOP (S (DT a)))"),
        ("(S (DT) (NP (NN) )NP )S", "a", "(TOP (S (DT a)))"),
        # The comma tells which leaf is one too many, or missing.
        ("(S (NN) (NN) (,) (NN) )S", "a , b", "(TOP (S (NN a) (, ,) (NN b)))"),
        ("(S (NP (DT) )NP (,) (NN) )S", "a b , c",
         "(TOP (S (NP (DT a) (XX b)) (, ,) (NN c)))"),
        # Several roots stand side by side.
        ("(NP (NN) )NP (VP (VB) )VP", "a b", "(TOP (NP (NN a)) (VP (VB b)))"),
        # Leaves alone are a tree of its own kind.
        ("(X) (Y)", "a b", "(TOP (X a) (Y b))"),
        # A word with brackets stands by their names.
        ("(S (NN) )S", "f(x)", "(TOP (S (NN f-LRB-x-RRB-)))"),
    ],
)  # fmt: skip
def test_repair_of_tags(tokens: str, words: str, expected: str) -> None:
    assert repaired(tokens, words) == expected
    is_whole = is_tree(tokens.split(), words.split(), leaves="tags")
    # The cases without anything to mend are these.
    assert is_whole == (
        tokens in ("(NP (NN) )NP (VP (VB) )VP", "(S (NN) )S")
        or (tokens, words) == ("(X) (Y)", "a b")
    )


@pytest.mark.parametrize(
    ("tokens", "words", "expected"),
    [
        ("(S (NP the cat )NP sat )S", "the dog sat",
         "(TOP (S (NP (XX the) (XX dog)) (XX sat)))"),
        ("(S (NP the )NP sat )S", "the dog sat",
         "(TOP (S (NP (XX the) (XX dog)) (XX sat)))"),
        ("(S (NP the the dog )NP sat )S", "the dog sat",
         "(TOP (S (NP (XX the) (XX dog)) (XX sat)))"),
        ("(NP sat )NP", "the dog sat", "(TOP (NP (XX the) (XX dog) (XX sat)))"),
        ("(S (NP sat", "a b", "(TOP (S (NP (XX a) (XX b))))"),
    ],
)  # fmt: skip
def test_repair_of_words(tokens: str, words: str, expected: str) -> None:
    assert repaired(tokens, words, "words") == expected
    assert not is_tree(tokens.split(), words.split(), leaves="words")


@pytest.mark.parametrize("leaves", ["tags", "words"])
def test_any_tokens_give_a_tree_over_exactly_the_words(leaves: Leaves) -> None:
    generator = random.Random(5)
    alphabet = "(S (NP )NP )S ) ( (NN) (,) (-LRB-) the , ü (X)Y () )( (S".split()
    for _ in range(500):
        tokens = generator.choices(alphabet, k=generator.randrange(23))
        words = generator.choices(["the", ",", "(", "漢", "x(y"], k=1 + _ % 7)
        found = tree_of(tokens, words, leaves=leaves)
        assert found.label == "TOP"
        unchanged = {"(": "-LRB-", "x(y": "x-LRB-y"}
        assert [word.text for word in words_of(found)] == [
            unchanged.get(word, word) for word in words
        ]
        assert tree(one_line(found)) == found


def test_ten_thousand_open_brackets_are_no_problem() -> None:
    found = tree_of(["(S"] * 10_000 + ["(NN)"], ["a"], leaves="tags")
    assert one_line(found).count("(S") == 10_000


def test_a_deep_alignment_takes_the_fewest_changes() -> None:
    # a b c d against b d: two are missing, none is replaced.
    assert repaired("(S (NP b )NP (VP d )VP )S", "a b c d", "words") == (
        "(TOP (S (NP (XX a) (XX b) (XX c)) (VP (XX d))))"
    )


def test_a_sentence_has_neither_brackets_nor_the_mark_of_a_space() -> None:
    assert sentence_of(["f(x)", "a▁b", "-LRB-"]) == "f-LRB-x-RRB- a_b -LRB-"


def test_words_are_compared_as_a_model_writes_them() -> None:
    words = ["cafe\u0301", "a▁b"]  # decomposed; a model reads and writes composed
    assert is_tree(["(S", "café", "a_b", ")S"], words, leaves="words")
    found = tree_of(["(S", "café", "a_b", ")S"], words, leaves="words")
    assert [word.text for word in words_of(found)] == words


def test_brackets_are_the_pieces_that_a_vocabulary_needs() -> None:
    texts = [TOKENS["tags", "plain"], TOKENS["words", "labelled"]]
    assert brackets_of(texts) == sorted(
        "(S (NP (VP (PRT ) (DT) (NN) (VBD) (RP) (.) )NP )VP )PRT )S".split()
    )


def test_tokens_without_spaces_are_found_by_the_longest_bracket() -> None:
    brackets = ["(S", "(SBAR", "(NN)", ")S", ")SBAR", ")"]
    assert tokens_of("(SBAR(S(NN)dog)S x)SBAR)", brackets) == (
        ["(SBAR", "(S", "(NN)", "dog", ")S", "x", ")SBAR", ")"]
    )
    assert tokens_of("no brackets", []) == ["no", "brackets"]


def test_leaves_show_in_the_brackets() -> None:
    assert leaves_of(["(S", ")S", "(.)"]) == "tags"
    assert leaves_of(["(S", ")"]) == "words"
