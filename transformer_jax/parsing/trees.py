"""Trees of a treebank: read, cleaned and written, in Penn Treebank's brackets.

    ( (S (NP-SBJ (DT The) (NN dog)) (VP (VBD barked)) (. .)) )

A tree is walked and built by its events, in the order of the text, without recursion:
however deep it is, no stack overflows (to compare two, Python recurses). The format is
that of Marcus et al. 1993 (https://aclanthology.org/J93-2004).
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from transformer_jax.errors import UserError

TOP = "TOP"  # the label of a root that has none, as in the standard clean-up
_UNNAMED = frozenset({"", TOP, "ROOT", "S1", "VROOT"})  # of brackets that say nothing
UNKNOWN_TAG = "XX"  # of a word whose part of speech nobody gave
EMPTY_TAG = "-NONE-"  # of a trace or another element without words

_BRACKETS = {
    "(": "-LRB-",
    ")": "-RRB-",
    "[": "-LSB-",
    "]": "-RSB-",
    "{": "-LCB-",
    "}": "-RCB-",
}
_SIGNS = {name: sign for sign, name in _BRACKETS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """A leaf: a word with its part of speech."""

    tag: str
    text: str  # brackets by their names, as in -LRB-


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A constituent and what it is made of, in order."""

    label: str
    children: tuple["Tree | Word", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Bracket:
    """Where a constituent begins or ends."""

    kind: Literal["open", "close"]
    label: str


Event = Bracket | Word


def events(tree: Tree) -> Iterator[Event]:
    """The brackets and words of a tree, in the order of the text.

    >>> [e.label for e in events(Tree("NP", (Tree("QP", ()),))) if e.kind == "open"]
    ['NP', 'QP']
    """
    left: list[Event | Tree] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, Tree):
            yield Bracket("open", node.label)
            left.append(Bracket("close", node.label))
            left.extend(reversed(node.children))
        else:
            yield node


def built(sequence: Iterable[Event]) -> Tree:
    """The tree whose events these are; they must be balanced, with one root."""
    open_: list[tuple[str, list[Tree | Word]]] = [("", [])]
    for event in sequence:
        if isinstance(event, Word):
            open_[-1][1].append(event)
        elif event.kind == "open":
            open_.append((event.label, []))
        else:
            label, children = open_.pop()
            open_[-1][1].append(Tree(label, tuple(children)))
    ((_, roots),) = open_
    (root,) = roots
    assert isinstance(root, Tree)
    return root


def words_of(tree: Tree) -> list[Word]:
    """The leaves, in order."""
    return [event for event in events(tree) if isinstance(event, Word)]


def spans(tree: Tree) -> Iterator[Tree]:
    """The tree, and in it the largest constituent over each span of several words.

    >>> inner = Tree("NP", (Tree("QP", (Word("CD", "1"), Word("CD", "2"))),))
    >>> [x.label for x in spans(Tree("TOP", (Tree("S", (inner, Word(".", "."))),)))]
    ['TOP', 'NP']
    """
    left = [tree]
    yield tree
    while left:
        node = left.pop()
        parts = [part for part in node.children if isinstance(part, Tree)]
        if len(node.children) > 1:
            yield from (part for part in parts if not _is_one_word(part))
        left.extend(parts)


def _is_one_word(tree: Tree) -> bool:
    while len(tree.children) == 1:
        (child,) = tree.children
        if isinstance(child, Word):
            return True
        tree = child
    return False


def cleaned(tree: Tree) -> Tree | None:
    """The tree by the standard clean-up; none if no word is left.

    Traces and other elements without words go, and constituents that hold nothing
    else; labels lose function tags and indices ("NP-SBJ-1" is NP). The root is TOP, and
    no other bracket is without a name of its own.
    """
    kept: list[Event] = []
    for event in events(tree):
        if isinstance(event, Word):
            if event.tag != EMPTY_TAG:
                kept.append(event)
            continue
        label = bare_label(event.label)
        if label in _UNNAMED:
            continue
        if event.kind == "close" and kept[-1] == Bracket("open", label):
            kept.pop()  # nothing is left between the brackets
        else:
            kept.append(Bracket(event.kind, label))
    if not kept:
        return None
    return built([Bracket("open", TOP), *kept, Bracket("close", TOP)])


def bare_label(label: str) -> str:
    """A label without function tags and indices.

    >>> [bare_label(x) for x in ("NP-SBJ-1", "NP=2", "PRT|ADVP")]
    ['NP', 'NP', 'PRT']
    """
    return label[:1] + re.split("[-=|]", label[1:], maxsplit=1)[0]


def escaped(word: str) -> str:
    """A word as it stands in a tree: brackets by their names.

    >>> escaped("f(x)")
    'f-LRB-x-RRB-'
    """
    return "".join(_BRACKETS.get(sign, sign) for sign in word)


def unescaped(word: str) -> str:
    """The word of a tree as it is usually written.

    >>> unescaped("-LRB-")
    '('
    """
    return re.sub("-[LR][RSC]B-", lambda found: _SIGNS[found[0]], word)


def one_line(tree: Tree) -> str:
    """The tree in brackets, on one line.

    >>> one_line(Tree("NP", (Word("DT", "a"), Word("NN", "dog"))))
    '(NP (DT a) (NN dog))'
    """
    text: list[str] = []
    for event in events(tree):
        if isinstance(event, Word):
            text.append(f" ({event.tag} {event.text})")
        else:
            text.append(f" ({event.label}" if event.kind == "open" else ")")
    return "".join(text).lstrip()


def read_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """The trees of a treebank file as they stand, traces and all.

    Args:
      lines: of the file; a tree may span many, and a line may hold many.
      name: of the file, for errors.

    Raises:
      UserError: no treebank, unbalanced brackets, an empty tree; names the line.
    """
    # Of each open bracket: its line, its label if it has come, and what is in it.
    open_: list[tuple[int, list[str], list[Tree | Word]]] = []
    for number, line in enumerate(lines, start=1):
        for token in re.findall(r"[()]|[^\s()]+", line):
            where = f"{name} line {number}"
            if token == "(":
                if open_ and len(open_[-1][1]) > 1:
                    raise UserError(
                        f"{where}: a bracket follows the word {open_[-1][1][1]!r}, "
                        "expected a word alone or constituents alone in a bracket"
                    )
                open_.append((number, [], []))
            elif not open_:
                raise UserError(
                    f"{where}: {_shown(token)} stands outside of all brackets, "
                    "expected trees like (S (NP (DT The) (NN dog)) ...): not a "
                    "treebank, or a bracket too many before it"
                )
            elif token == ")":
                closed = _closed(*open_.pop(), where)
                if open_:
                    open_[-1][2].append(closed)
                elif isinstance(closed, Word):
                    raise UserError(
                        f"{where}: a tree is the word {closed.text!r} alone, expected "
                        "a constituent around it, like (NP (NN dog))"
                    )
                else:
                    yield closed
            else:
                _, label, children = open_[-1]
                label.append(token)
                if children or len(label) > 2:
                    raise UserError(
                        f"{where}: {_shown(token)} is one thing too many in its "
                        "bracket, expected a label and one word, or a label and "
                        "constituents"
                    )
    if open_:
        raise UserError(
            f"{name} line {open_[0][0]}: the bracket that is opened there is never "
            "closed"
        )


def _closed(
    line: int, label: Sequence[str], children: Sequence[Tree | Word], where: str
) -> Tree | Word:
    if len(label) == 2:
        return Word(label[0], escaped(label[1]))
    if not children:
        raise UserError(
            f"{where}: a bracket with {'the label ' + label[0] if label else 'nothing'}"
            " alone in it, expected a word or constituents too (an empty tree?)"
        )
    return Tree(label[0] if label else "", tuple(children))


def _shown(token: str) -> str:
    return repr(token if len(token) < 40 else token[:40] + "…")
