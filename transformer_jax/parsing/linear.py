"""Trees as sequences of tokens and back, as in Vinyals et al. 2015.

    (TOP (S (NP (DT The) (NN dog)) (VP (VBD barked)) (. .)))

is, depth first and without TOP, whose brackets say nothing,

    (S (NP (DT) (NN) )NP (VP (VBD) )VP (.) )S      leaves "tags"
    (S (NP The dog )NP (VP barked )VP . )S         leaves "words"

The closing token names its label, or is ")" alone. A leaf "(DT)" stands for the next
word of the sentence. Every token with a bracket is a piece of the vocabulary by itself;
words have none, see `trees.escaped`. (https://arxiv.org/abs/1412.7449)

What a model emits may be anything: `tree_of` makes a tree over the given words of it.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

from transformer_jax.parsing.trees import (
    TOP,
    UNKNOWN_TAG,
    Bracket,
    Event,
    Tree,
    Word,
    built,
    escaped,
    events,
)

Leaves = Literal["tags", "words"]
Closing = Literal["labelled", "plain"]
Kind = Literal["open", "close", "tag", "word", "none"]

SPACE_MARK = "\u2581"  # stands for a space in word pieces
# The words that a tag of punctuation is given to, but for rare ones.
_SIGNS = {
    **{sign: sign for sign in (",", "``", "''", "-LRB-", "-RRB-")},
    **dict.fromkeys((".", "?", "!"), "."),
    **dict.fromkeys((":", ";", "--", "-", "..."), ":"),
}
_FORMS: dict[Kind, str] = {
    "open": r"\([^()]+",
    "close": r"\)[^()]*",
    "tag": r"\([^()]+\)",
    "word": r"[^()]*",
}
_PUNCTUATION = frozenset(_SIGNS.values())


def kind_of(token: str) -> Kind:
    """What a token is in a tree; none = it has brackets and means nothing.

    >>> [kind_of(token) for token in ("(NP", ")NP", ")", "(NN)", "dog", ")(")]
    ['open', 'close', 'close', 'tag', 'word', 'none']
    """
    for kind, form in _FORMS.items():
        if re.fullmatch(form, token):
            return kind
    return "none"


def linearised(tree: Tree, *, leaves: Leaves, closing: Closing) -> list[str]:
    """The tokens of a cleaned tree.

    >>> tree = Tree("TOP", (Tree("NP", (Word("DT", "a"), Word("NN", "dog"))),))
    >>> linearised(tree, leaves="tags", closing="labelled")
    ['(NP', '(DT)', '(NN)', ')NP']
    """
    tokens = []
    for event in events(tree):
        if isinstance(event, Word):
            tokens.append(f"({event.tag})" if leaves == "tags" else event.text)
        elif event.label != TOP and event.kind == "open":
            tokens.append(f"({event.label}")
        elif event.label != TOP:
            tokens.append(f"){event.label}" if closing == "labelled" else ")")
    return tokens


def sentence_of(words: Iterable[str]) -> str:
    """The words as a model reads them: no bracket, and no sign of a space's piece.

    >>> sentence_of(["f(x)", "grows"])
    'f-LRB-x-RRB- grows'
    """
    return " ".join(escaped(word).replace(SPACE_MARK, "_") for word in words)


def brackets_of(texts: Iterable[str]) -> list[str]:
    """All tokens with a bracket, sorted: the pieces that a vocabulary needs.

    >>> brackets_of(["(S (NP The dog )NP barked )S"])
    ['(NP', '(S', ')NP', ')S']
    """
    found = {token for text in texts for token in text.split()}
    return sorted(token for token in found if "(" in token or ")" in token)


def leaves_of(brackets: Iterable[str]) -> Leaves:
    """What stands for words in trees of these brackets.

    >>> leaves_of(["(NP", "(NN)", ")NP"])
    'tags'
    """
    return "tags" if "tag" in map(kind_of, brackets) else "words"


def tokens_of(text: str, brackets: Iterable[str]) -> list[str]:
    """The tokens of a model's output, which may lack spaces around brackets.

    >>> tokens_of("(NPdog )NP", ["(NP", ")NP"])
    ['(NP', 'dog', ')NP']
    """
    longest_first = sorted(brackets, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
    return re.sub(pattern, r" \g<0> ", text).split()


def tree_of(tokens: Sequence[str], words: Sequence[str], *, leaves: Leaves) -> Tree:
    """A tree over exactly the given words, whatever the tokens are.

    Tokens that are a tree over the words give that tree. Otherwise

    - leaves in another number than the words are aligned with them at the least edit
      distance: of leaves "tags" those of punctuation with the signs of punctuation, of
      "words" the words; leaves too many go, and a word that is missing stands right
      after the one before it;
    - a closing token closes its label's innermost open bracket and what is open in
      that, or, where no such label is open, the innermost; with nothing open, none;
    - brackets left open are closed at the end; brackets without words go;
    - if no constituent is left, all words are an S, unless the leaves are as many.

    Args:
      tokens: as `linearised` makes them, with either closing.
      words: of the sentence, as they should stand in the tree but for their brackets.
      leaves: what the tokens were made with. The words of a tree of "words" have the
        tag XX, as have those that are missing.

    Returns:
      The tree, its root TOP.
    """
    kinds = [kind_of(token) for token in tokens]
    leaf: Kind = "tag" if leaves == "tags" else "word"
    emitted = [x for x, kind in zip(tokens, kinds, strict=True) if kind == leaf]
    placed = iter(_placed(emitted, words, leaves))
    sequence: list[Event] = []
    open_: list[str] = []

    def close() -> None:
        label = open_.pop()
        if sequence[-1] == Bracket("open", label):
            sequence.pop()  # there is nothing in it
        else:
            sequence.append(Bracket("close", label))

    for token, kind in zip(tokens, kinds, strict=True):
        if kind == leaf:
            sequence.extend(next(placed))
        elif kind == "close":
            while token[1:] in open_ and open_[-1] != token[1:]:
                close()
            if open_:
                close()
        elif kind == "open":
            open_.append(token[1:])
            sequence.append(Bracket("open", token[1:]))
    while open_:
        close()
    is_bare = all(isinstance(event, Word) for event in sequence)
    if is_bare and not len(emitted) == len(tokens) == len(words):
        unplaced = [] if emitted else [Word(UNKNOWN_TAG, escaped(x)) for x in words]
        sequence = [Bracket("open", "S"), *sequence, *unplaced, Bracket("close", "S")]
    return built([Bracket("open", TOP), *sequence, Bracket("close", TOP)])


def is_tree(tokens: Sequence[str], words: Sequence[str], *, leaves: Leaves) -> bool:
    """Whether the tokens are a tree over the words as they are, without repair.

    >>> is_tree(["(S", "(NN)", ")S"], ["dog"], leaves="tags")
    True
    >>> is_tree(["(S", "(NN)", ")S"], ["a", "dog"], leaves="tags")
    False
    """
    tree = tree_of(tokens, words, leaves=leaves)
    trees = [
        linearised(tree, leaves=leaves, closing=closing)
        for closing in ("labelled", "plain")
    ]
    return [_key(x, leaves) for x in tokens] in [
        [_key(x, leaves) for x in t] for t in trees
    ]


def _key(token: str, leaves: Leaves) -> str:
    """A token as it is compared: words as a model writes them."""
    if leaves == "words" and kind_of(token) == "word":
        return unicodedata.normalize("NFC", sentence_of([token]))
    return token


def _placed(
    emitted: Sequence[str], words: Sequence[str], leaves: Leaves
) -> list[list[Word]]:
    """The words that stand where each leaf was emitted."""
    tags = [UNKNOWN_TAG] * len(emitted)
    if leaves == "tags":
        tags = [leaf[1:-1] for leaf in emitted]
        wanted = [_SIGNS.get(escaped(word), "") for word in words]
        found = [tag if tag in _PUNCTUATION else "" for tag in tags]
    else:
        wanted = [_key(word, leaves) for word in words]
        found = [_key(word, leaves) for word in emitted]
    placed: list[list[Word]] = [[] for _ in emitted]
    here = 0
    for word, leaf in zip(words, _aligned(wanted, found), strict=True):
        tag = UNKNOWN_TAG if leaf is None else tags[leaf]
        here = here if leaf is None else leaf
        if placed:
            placed[here].append(Word(tag, escaped(word)))
    return placed


def _aligned(wanted: Sequence[str], found: Sequence[str]) -> list[int | None]:
    """For each wanted item the index of the found one that it is aligned with, if any.

    As many are a pair each; else the alignment has the least edit distance (Wagner and
    Fischer 1974).
    """
    if len(wanted) == len(found):
        return list(range(len(wanted)))
    # distances[i][j]: of wanted[i:] and found[j:].
    distances = [[len(found) - j for j in range(len(found) + 1)]]
    for i in reversed(range(len(wanted))):
        below, row = distances[-1], [len(wanted) - i]
        for j in reversed(range(len(found))):
            same = below[j + 1] + (wanted[i] != found[j])
            row.append(min(same, below[j] + 1, row[-1] + 1))
        distances.append(row[::-1])
    distances.reverse()
    aligned: list[int | None] = []
    j = 0
    for i in range(len(wanted)):
        while (
            j < len(found)
            and distances[i][j] == distances[i][j + 1] + 1
            and (distances[i][j] != distances[i + 1][j + 1] + (wanted[i] != found[j]))
        ):
            j += 1
        is_pair = j < len(found) and distances[i][j] == distances[i + 1][j + 1] + (
            wanted[i] != found[j]
        )
        aligned.append(j if is_pair else None)
        j += is_pair
    return aligned
