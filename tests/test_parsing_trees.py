"""Treebank files: read, cleaned and written."""

import re
from collections.abc import Callable

import pytest

from transformer_jax.errors import UserError
from transformer_jax.parsing.trees import (
    Tree,
    Word,
    bare_label,
    built,
    cleaned,
    escaped,
    events,
    one_line,
    read_trees,
    unescaped,
    words_of,
)

# With a trace, an empty subject, function tags, indices, and a bracket for a word.
RAW = """
( (S
    (NP-SBJ-1 (NNP Mr.) (NNP Vinken) )
    (VP (VBD agreed)
      (S
        (NP-SBJ (-NONE- *-1) )
        (VP (TO to)
          (VP (VB join) (NP=2 (-NONE- *T*) ) (PRT|ADVP (RP up) )))))
    (-LRB- -LRB-) (. .) ))
"""
CLEAN = (
    "(TOP (S (NP (NNP Mr.) (NNP Vinken)) (VP (VBD agreed) (S (VP (TO to) (VP (VB join) "
    "(PRT (RP up)))))) (-LRB- -LRB-) (. .)))"
)


def read(text: str) -> list[Tree]:
    return list(read_trees(text.split("\n"), "a.mrg"))


def clean(text: str) -> str:
    (tree,) = read(text)
    result = cleaned(tree)
    assert result is not None
    return one_line(result)


def test_a_tree_keeps_all_that_the_file_has() -> None:
    (tree,) = read(RAW)
    assert one_line(tree) == "(" + " ".join(RAW.split())[1:].replace(" )", ")")
    assert [word.text for word in words_of(tree)] == (
        ["Mr.", "Vinken", "agreed", "*-1", "to", "join", "*T*", "up", "-LRB-", "."]
    )


def test_clean_up_takes_traces_functions_and_indices_away() -> None:
    assert clean(RAW) == CLEAN


def test_cleaning_a_clean_tree_changes_nothing() -> None:
    assert clean(CLEAN) == CLEAN


@pytest.mark.parametrize("root", ["", "TOP", "ROOT", "S1"])
def test_the_root_is_top_whatever_the_file_calls_it(root: str) -> None:
    assert clean(f"({root} (S (NN a)))") == "(TOP (S (NN a)))"


def test_a_root_with_a_meaning_stays_below_top() -> None:
    assert clean("(FRAG (NN a) (NN b))") == "(TOP (FRAG (NN a) (NN b)))"


def test_a_tree_of_traces_alone_is_none() -> None:
    (tree,) = read("( (S (NP (-NONE- *))) )")
    assert cleaned(tree) is None


def test_constituents_that_hold_only_emptied_ones_go() -> None:
    assert clean("( (S (SBAR (S (NP (-NONE- *)))) (NN a)))") == "(TOP (S (NN a)))"


@pytest.mark.parametrize("name", ["", "TOP", "ROOT-1"])
def test_an_inner_bracket_that_says_nothing_goes(name: str) -> None:
    text = f"( (S ({name} (NN a) (NN b)) (NP (NN c))))"
    assert clean(text) == "(TOP (S (NN a) (NN b) (NP (NN c))))"


def test_brackets_in_words_are_named_when_they_are_read() -> None:
    (tree,) = read("(S (NN [) (NN {x}))")
    assert [word.text for word in words_of(tree)] == ["-LSB-", "-LCB-x-RCB-"]


def test_several_trees_on_a_line_and_one_over_many() -> None:
    trees = read("(S (NN a)) (S (NN b)) (S\n(NN\nc)\n)")
    assert [one_line(t) for t in trees] == ["(S (NN a))", "(S (NN b))", "(S (NN c))"]


@pytest.mark.parametrize(
    ("label", "bare"),
    [
        ("NP-SBJ-1", "NP"),
        ("NP=2", "NP"),
        ("NP-LGS=3", "NP"),
        ("PRT|ADVP", "PRT"),
        ("S", "S"),
        ("", ""),
    ],
)
def test_bare_labels(label: str, bare: str) -> None:
    assert bare_label(label) == bare


@pytest.mark.parametrize("word", ["(", ")", "a(b)c", "[x]", "{y}", "plain", "ü(漢)"])
def test_brackets_in_words_go_both_ways(word: str) -> None:
    assert not set("()[]{}") & set(escaped(word))
    assert unescaped(escaped(word)) == word


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("The dog barked .", r"line 1: 'The' stands outside of all brackets.*treebank"),
        ("(S (NN a)))", r"line 1: '\)' stands outside"),
        ("\n(S\n(NN a)", "line 2: the bracket that is opened there is never closed"),
        ("(S (NN a))\n( )", "line 2: a bracket with nothing alone in it.*empty tree"),
        ("(S (NP))", "line 1: a bracket with the label NP alone in it"),
        ("(S (NN a b))", "line 1: 'b' is one thing too many"),
        ("(S (NN a) b)", "line 1: 'b' is one thing too many"),
        ("(S a (NN b))", "line 1: a bracket follows the word 'a'"),
        ("(NN a)", "line 1: a tree is the word 'a' alone"),
    ],
)
def test_what_is_no_treebank_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^a.mrg {message}") as raised:
        read(text)
    assert "\n" not in str(raised.value)


def test_an_endless_word_is_not_printed_whole() -> None:
    with pytest.raises(UserError) as raised:
        read("x" * 100_000)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "work",
    [
        lambda tree: one_line(tree),
        lambda tree: words_of(tree),
        lambda tree: cleaned(tree),
        lambda tree: built(events(tree)),
    ],
)
def test_a_tree_may_be_deeper_than_the_stack(work: Callable[[Tree], object]) -> None:
    depth = 20_000
    (tree,) = read("(S " * depth + "(NN a)" + ")" * depth)
    assert work(tree)


def test_events_build_the_tree_again() -> None:
    (tree,) = read(RAW)
    assert built(events(tree)) == tree
    assert built(events(Tree("NP", (Word("NN", "a"),)))) == Tree(
        "NP", (Word("NN", "a"),)
    )


def test_one_line_has_no_more_spaces_than_are_needed() -> None:
    assert not re.search(r"\s\s|\s\)", one_line(read(RAW)[0]))
