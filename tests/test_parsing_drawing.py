"""Tests of the pictures of trees, against pictures by hand."""

import textwrap

from transformer_jax.parsing.drawing import columns_of, drawn
from transformer_jax.parsing.trees import Bracket, Tree, Word, built, read_trees


def tree(text: str) -> Tree:
    (read,) = read_trees([text], "test")
    return read


def picture(text: str) -> str:
    """What stands right of the bars in the source."""
    lines = textwrap.dedent(text).strip("\n").split("\n")
    return "\n".join(line.removeprefix("|") for line in lines)


DOG = tree(
    "(S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT a) (NN cat)) (ADVP (RB today)))"
    " (. .))"
)


def test_a_tree_that_fits_stands_upright() -> None:
    # Each label stands over the middle of its outermost branches, each tag over its
    # word, and the words on one line; 26 columns.
    expected = picture("""
        |              S
        |   ┌──────────┴┬─────────┐
        |   │           VP        │
        |   │     ┌────┬┴─────┐   │
        |   NP    │    NP    ADVP │
        | ┌─┴─┐   │  ┌─┴─┐    │   │
        | DT  NN VBD DT  NN   RB  .
        |the dog saw a  cat today .
    """)
    assert drawn(DOG, width=26) == drawn(DOG) == expected


def test_a_tree_that_is_one_column_too_wide_lies_on_its_side() -> None:
    assert drawn(DOG, width=25) == picture("""
        |S
        |├─ NP (DT the) (NN dog)
        |├─ VP
        |│  ├─ (VBD saw)
        |│  ├─ NP (DT a) (NN cat)
        |│  └─ ADVP (RB today)
        |└─ (. .)
    """)


def test_words_that_do_not_fit_on_a_line_stand_below_their_label() -> None:
    # "├─ NP (DT the) (NN dog)" takes 23 columns, the "NP (DT a) (NN cat)" 24.
    assert drawn(DOG, width=23) == picture("""
        |S
        |├─ NP (DT the) (NN dog)
        |├─ VP
        |│  ├─ (VBD saw)
        |│  ├─ NP
        |│  │  ├─ (DT a)
        |│  │  └─ (NN cat)
        |│  └─ ADVP (RB today)
        |└─ (. .)
    """)


def test_what_begins_right_of_the_middle_is_drawn_below_by_its_number() -> None:
    nested = tree("(A (B (C (D (X x) (Y y)) (E (Z z)) (F (G (X x)))) (W w)) (V vvv))")
    # D, E and F begin behind nine of twelve columns; G is at the left again.
    assert drawn(nested, width=12) == picture("""
        |A
        |├─ B
        |│  ├─ C
        |│  │  ├─ D → 1
        |│  │  ├─ E → 2
        |│  │  └─ F → 3
        |│  └─ (W w)
        |└─ (V vvv)
        |
        |1: D
        |├─ (X x)
        |└─ (Y y)
        |
        |2: E
        |└─ (Z z)
        |
        |3: F
        |└─ G (X x)
    """)


def test_branches_in_ascii() -> None:
    text = tree("(S (NP (DT the) (NN ─→)) (VP (VBD ran)))")
    assert drawn(text, ascii=True) == picture("""
        |     S
        |  +--+--+
        |  NP    VP
        | ++-+   |
        | DT NN VBD
        |the ─→ ran
    """)
    assert drawn(tree("(A (B (C (X long) (Y words))))"), width=7, ascii=True) == (
        picture("""
            |A
            |+- B
            |   +- C -> 1
            |
            |1: C
            |+- (X long)
            |+- (Y words)
        """)
    )


def test_a_label_over_its_only_child_and_a_child_below_its_label() -> None:
    assert drawn(tree("(S (A x) (B y) (C (D z)))")) == picture("""
        |  S
        |┌─┼─┐
        |│ │ C
        |│ │ │
        |A B D
        |x y z
    """)


def test_a_label_wider_than_what_it_is_over_makes_room() -> None:
    # 5 columns of words are put into the middle of the 11 of the label.
    assert drawn(tree("(S (CONSTITUENT (A aa) (B bb)) (C c))")) == picture("""
        |        S
        |    ┌───┴───┐
        |CONSTITUENT │
        |   ┌┴─┐     │
        |   A  B     C
        |   aa bb    c
    """)


def test_a_wide_label_stays_within_what_it_is_over() -> None:
    # Over the middle of its branches, one would begin too early, one end too late.
    assert drawn(
        tree(
            "(S (X x) (LEFT-AND-WIDE (A a) (B bbbbbbbbbbbb)) "
            "(WIDE-AND-RIGHT (C cccccccccccc) (D d)))"
        )
    ) == picture("""
        |             S
        |┌────┬───────┴────────────┐
        |│ LEFT-AND-WIDE  WIDE-AND-RIGHT
        |│ ┌──┴───┐            ┌───┴───┐
        |X A      B            C       D
        |x a bbbbbbbbbbbb cccccccccccc d
    """)


def test_a_root_without_a_label_has_an_empty_line() -> None:
    lines = drawn(tree("( (S (NN dog)))")).split("\n")
    assert lines == ["", " │", " S", " │", " NN", "dog"]


def test_chinese_characters_take_two_columns() -> None:
    # In columns: 0 北 2 京 4 space 5 欢 7 迎 9 space 10 你 12 space 13 。
    assert drawn(
        tree("(IP (NP (NR 北京)) (VP (VV 欢迎) (NP (PN 你))) (PU 。))")
    ) == picture("""
        |       IP
        | ┌─────┴┬────┐
        | │      VP   │
        | │    ┌─┴─┐  │
        | NP   │   NP │
        | │    │   │  │
        | NR   VV  PN PU
        |北京 欢迎 你 。
    """)


def test_columns_of_narrow_wide_and_combining_signs() -> None:
    # A letter, also a wide one; a katakana of full and one of half width; e and its
    # accent, composed or not; a Devanagari letter with a vowel below it; a letter, a
    # sign of no width and a letter.
    texts = "a", "\uff41", "カ", "ｶ", "\u00e9", "e\u0301", "\u0915\u0941", "a\u200db"
    assert [columns_of(text) for text in texts] == [1, 2, 2, 1, 1, 1, 1, 2]


def test_accents_do_not_shift_what_follows() -> None:
    assert drawn(tree("(NP (NN cafe\u0301) (NN x))")).split("\n") == [
        "   NP",
        " ┌─┴─┐",
        " NN  NN",
        "cafe\u0301 x",
    ]


def test_a_tree_thousands_deep_is_drawn_and_fits() -> None:
    depth, width = 5003, 41
    events = [Bracket("open", "NP"), Word("DT", "the")] * depth
    events += [Bracket("close", "NP")] * depth
    lines = drawn(built(events), width=width).split("\n")
    assert max(map(columns_of, lines)) <= width
    assert sum("(DT the)" in line for line in lines) == depth


def test_a_constituent_of_nothing_is_its_label() -> None:
    empty = Tree("S", (Tree("NP", ()), Word("VB", "gone")))
    assert drawn(empty).split("\n") == ["  S", "┌─┴─┐", "NP  VB", "   gone"]
    assert drawn(empty, width=6) == "S\n├─ NP\n└─ (VB gone)"
