"""Trees as pictures of text, to look at in a terminal.

A tree that is not too wide stands upright, the words in one line at the bottom:

        TOP
         │
         S
   ┌─────┴┬────┐
   NP     VP   │
 ┌─┴─┐    │    │
 DT  NN  VBD   .
The dog barked .
"""

import dataclasses
import unicodedata

from transformer_jax.parsing.trees import Tree, Word, events, one_line

_GAP = 1  # columns between neighbours
_OTHER, _LAST = "├─ ", "└─ "
_BELOW = {_OTHER: "│  ", _LAST: "   "}  # before the branches of what stands there
_ASCII = str.maketrans("─│┌┐┬┴┼├└", "-|+++++++") | {ord("→"): "->"}


def drawn(tree: Tree, width: int = 80, *, ascii: bool = False) -> str:
    """The tree as a picture, of lines without spaces at the end.

    A tree that is wider than the terminal lies on its side, constituents of words alone
    on one line where they fit:

        S
        ├─ NP (DT The) (NN dog)
        ├─ VP
        │  ├─ (VBD barked)
        │  └─ PP → 1
        └─ (. .)

        1: PP
        ├─ (IN at)
        └─ NP (DT the) (NN moon)

    What begins right of its middle is drawn below, by a number, so that only a long
    label or word stands out of the terminal.

    Args:
      tree: of any depth.
      width: of the terminal, columns; a Chinese character takes two.
      ascii: draw branches with - | + > alone; labels and words stay as they are.

    >>> print(drawn(Tree("NP", (Word("DT", "The"), Word("NN", "dog"))), ascii=True))
       NP
     +-+-+
     DT  NN
    The dog
    """
    boxes = _boxes(tree)
    lines = _upright(boxes) if boxes[0].width <= width else _lying(tree, width)
    signs = _ASCII if ascii else {}
    return "\n".join(
        "".join(branches.translate(signs) + text for branches, text in line).rstrip()
        for line in lines
    )


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes.

    >>> columns_of("cafe\N{COMBINING ACUTE ACCENT}"), columns_of("北京")
    (4, 4)
    """
    return sum(
        0
        if unicodedata.category(sign) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(sign) in "WF"
        else 1
        for sign in text
    )


# What a line is made of: branches, and a text behind them that is shown as it is.
_Line = list[tuple[str, str]]


@dataclasses.dataclass(slots=True, eq=False)
class _Box:
    """The part of the picture that holds a node and all below it."""

    texts: tuple[str, ...]  # a label; or a tag and, on the line below, its word
    children: list["_Box"]
    height: int = 1  # levels; a word with its tag is one
    width: int = 0  # columns, as are those that follow
    left: int = 0  # where it begins
    centre: int = 0  # where the branch from above meets it


def _boxes(tree: Tree) -> list[_Box]:
    """The boxes of all nodes in their places, each before those within it."""
    boxes: list[_Box] = []
    open_: list[_Box] = []
    for event in events(tree):
        if isinstance(event, Word):
            box = _Box((event.tag, event.text), [])
        elif event.kind == "open":
            box = _Box((event.label,), [])
        else:
            open_.pop()
            continue
        if open_:
            open_[-1].children.append(box)
        if not isinstance(event, Word):
            open_.append(box)
        boxes.append(box)
    for box in reversed(boxes):
        own = max(map(columns_of, box.texts))
        box.width = max(1, own, _width_within(box))
        if len(box.texts) == 1:
            box.height = 1 + max((child.height for child in box.children), default=0)
    for box in boxes:
        left = box.left + (box.width - _width_within(box)) // 2
        for child in box.children:
            child.left = left
            left += child.width + _GAP
    for box in reversed(boxes):
        if box.children:
            box.centre = (box.children[0].centre + box.children[-1].centre) // 2
        else:
            box.centre = box.left + (box.width - 1) // 2
    return boxes


def _width_within(box: _Box) -> int:
    return sum(child.width + _GAP for child in box.children) - _GAP


def _upright(boxes: list[_Box]) -> list[_Line]:
    """The lines of a tree that fits; of each level its labels, then their branches."""
    levels = boxes[0].height
    placed: list[list[tuple[int, str, str]]] = [[] for _ in range(2 * levels)]
    for box in boxes:
        row = 2 * (levels - box.height)
        for below, text in enumerate(box.texts):
            columns = columns_of(text)
            start = max(box.left, box.centre - (columns - 1) // 2)
            start = min(start, box.left + box.width - columns)
            placed[row + below].append((start, "", text))
        if box.children:
            placed[row + 1].append((box.children[0].centre, _fork(box), ""))
        for child in box.children:
            for between in range(row + 2, 2 * (levels - child.height)):
                placed[between].append((child.centre, "│", ""))
    return [_spaced(sorted(pieces)) for pieces in placed]


def _fork(box: _Box) -> str:
    """The branches from below a label to above each of its children."""
    centres = [child.centre for child in box.children]
    if len(centres) == 1:
        return "│"
    signs = dict.fromkeys(range(centres[0], centres[-1] + 1), "─")
    signs |= dict.fromkeys(centres, "┬") | {centres[0]: "┌", centres[-1]: "┐"}
    signs[box.centre] = "┼" if box.centre in centres else "┴"
    return "".join(signs.values())


def _spaced(pieces: list[tuple[int, str, str]]) -> _Line:
    line: _Line = []
    column = 0
    for start, branches, text in pieces:
        line.append((" " * (start - column) + branches, text))
        column = start + columns_of(branches + text)
    return line


def _lying(tree: Tree, width: int) -> list[_Line]:
    """The lines of a tree of any size: children below their parent and right of it."""
    parts = [tree]
    lines: list[_Line] = [[("", tree.label)]]
    for number, part in enumerate(parts):  # there may be more by then
        if number > 0:
            lines += [[], [("", f"{number}: {part.label}")]]
        left = _branches(part, "")
        while left:
            before, branch, node = left.pop()
            column = len(before + branch)
            text, reference = _on_one_line(node), ""
            if isinstance(node, Tree) and not 0 < columns_of(text) <= width - column:
                text = node.label
                if 2 * column <= width:
                    left += _branches(node, before + _BELOW[branch])
                else:
                    reference = f" → {len(parts)}"
                    parts.append(node)
            lines.append([(before + branch, text), (reference, "")])
    return lines


def _on_one_line(node: Tree | Word) -> str:
    """A word, or a constituent of words alone; nothing of any other."""
    if isinstance(node, Word):
        return f"({node.tag} {node.text})"
    is_flat = all(isinstance(child, Word) for child in node.children)
    return one_line(node)[1:-1] if is_flat else ""


def _branches(tree: Tree, before: str) -> list[tuple[str, str, Tree | Word]]:
    """What stands before each child, its branch, and the child; the last one first."""
    size = len(tree.children)
    return [
        (before, _LAST if number == size else _OTHER, child)
        for number, child in enumerate(tree.children, start=1)
    ][::-1]
