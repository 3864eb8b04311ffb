"""The mask of trees against all trees there are, and searches against the best tree."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.beam_search import Hypotheses, Search, beam_search
from transformer_jax.decoding.trees import NO_LEAF, Grammar, tree_tokens
from transformer_jax.grammar import TreePieces

END = "</s>"
SPECIAL = ["<pad>", "<s>", END, "<unk>"]
END_ID = 2
WORDS = ["▁the", "▁dog", "s", "▁", "<0xE2>", "(", "a("]
# Nothing opens a D or closes a C; and a label may look like a word's name of a bracket.
BRACKETS = {
    "labelled": ["▁(A", "▁)A", "▁(-LRB-", "▁)-LRB-", "▁(C", "▁)D"],
    "plain": ["▁(A", "▁)", "▁(-LRB-"],
}
LABELS = ["A", "-LRB-"]
TAGS = ["▁(DT)", "▁(-LRB-)"]
MODES = list(itertools.product(["tags", "words"], ["labelled", "plain"]))
SENTENCES = [
    ["▁dog"],
    ["▁the", "▁dog", "s"],
    ["▁dog", "s", "s", "▁dog", "▁", "<0xE2>"],
]
ROWS, WIDTH = 127, 17  # hypotheses masked at once, and their most tokens

Tokens = tuple[str, ...]


def pieces_of(leaves: str, closing: str) -> list[str]:
    tags = TAGS if leaves == "tags" else []
    return [*SPECIAL, *WORDS, *BRACKETS[closing], *tags]


def constituents(words: Sequence[Tokens], room: int, closing: str) -> Iterator[Tokens]:
    """All constituents over the words, of at most `room` tokens."""
    if room >= len(words) + 2:
        for label, body in itertools.product(LABELS, bodies(words, room - 2, closing)):
            closer = f"▁){label}" if closing == "labelled" else "▁)"
            yield (f"▁({label}", *body, closer)


def bodies(words: Sequence[Tokens], room: int, closing: str) -> Iterator[Tokens]:
    """All that may stand in a constituent over the words."""
    for size in range(1, len(words) + 1):
        first = list(constituents(words[:size], room, closing))
        if size == 1 and len(words[0]) <= room:
            first.append(words[0])
        for child in first:
            if size == len(words):
                yield child
            else:
                rest = bodies(words[size:], room - len(child), closing)
                yield from (child + others for others in rest)


def all_trees(
    sentence: Sequence[Tokens], limit: int, leaves: str, closing: str
) -> set[Tokens]:
    """All trees over a sentence within the limit, with their ends."""
    choices = [sentence]
    if leaves == "tags":
        choices = itertools.product([(tag,) for tag in TAGS], repeat=len(sentence))
    return {
        (*tree, END)
        for words in choices
        for tree in constituents(words, limit - 1, closing)
    }


def following(sequences: set[Tokens]) -> dict[Tokens, set[str]]:
    """What may follow each beginning of a sequence."""
    following: dict[Tokens, set[str]] = {}
    for sequence in sequences:
        for i, token in enumerate(sequence):
            following.setdefault(sequence[:i], set()).add(token)
    return following


def words_of(source: Sequence[str]) -> list[Tokens]:
    words: list[Tokens] = []
    for piece in source:
        starts = piece.startswith("▁") or not words
        words = [*words, (piece,)] if starts else [*words[:-1], (*words[-1], piece)]
    return words


def leaves_row(trees: TreePieces, source: Sequence[int]) -> np.ndarray:
    row = np.full(WIDTH, NO_LEAF, np.int32)
    leaves = trees.leaves(source)
    row[: len(leaves)] = leaves
    return row


mask_of = jax.jit(partial(tree_tokens, end_id=END_ID))


def assert_mask_is(
    expected: dict[Tokens, set[str]],
    pieces: Sequence[str],
    source: Sequence[str],
    limit: int,
) -> None:
    """What the mask allows after each beginning, and so which beginnings there are."""
    trees = TreePieces.of_pieces(pieces)
    leaves = leaves_row(trees, [pieces.index(piece) for piece in source])
    ids = {piece: i for i, piece in enumerate(pieces)}
    random = np.random.default_rng(0)
    for length in range(max(map(len, expected)) + 1):
        beginnings = [x for x in expected if len(x) == length]
        for first in range(0, len(beginnings), ROWS):
            chunk = beginnings[first : first + ROWS]
            # What stands after a hypothesis means nothing.
            tokens = random.integers(0, len(pieces), (ROWS, WIDTH), np.int32)
            for row, beginning in zip(tokens, chunk, strict=False):
                row[:length] = [ids[piece] for piece in beginning]
            numbers = np.int32(length), leaves, np.int32(limit)
            mask = np.asarray(mask_of(trees.grammar, tokens, *numbers))
            for row, beginning in zip(mask, chunk, strict=False):
                allowed = set(itertools.compress(pieces, row))
                assert allowed == expected[beginning], beginning


@pytest.mark.parametrize(("leaves", "closing"), MODES)
@pytest.mark.parametrize("spare", [3, 4, 7])
@pytest.mark.parametrize("source", SENTENCES, ids=len)
def test_exactly_what_leads_to_a_tree_is_allowed(source, spare, leaves, closing):
    words = words_of(source)
    limit = (len(words) if leaves == "tags" else len(source)) + spare
    expected = following(all_trees(words, limit, leaves, closing))
    assert max(map(len, expected)) == limit - 1 - (spare % 2 == 0)  # all is filled
    assert_mask_is(expected, pieces_of(leaves, closing), source, limit)


@pytest.mark.parametrize("leaves", ["tags", "words"])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_limit_without_room_for_a_root_leaves_the_leaves_alone(limit, leaves):
    source = SENTENCES[1]
    choices = [words_of(source)]
    if leaves == "tags":
        source = ["▁the", "▁dog", "▁the"]
        choices = itertools.product([(tag,) for tag in TAGS], repeat=3)
    expected = following({(*itertools.chain(*words), END)[:limit] for words in choices})
    assert_mask_is(expected, pieces_of(leaves, "labelled"), source, limit)


def test_a_source_that_begins_within_a_word_has_that_part_as_a_word():
    source = ["s", "s", "▁dog"]
    words = [("s", "s"), ("▁dog",)]
    expected = following(all_trees(words, 8, "words", "labelled"))
    assert_mask_is(expected, pieces_of("words", "labelled"), source, 8)
    expected = following(all_trees(words, 7, "tags", "labelled"))
    assert_mask_is(expected, pieces_of("tags", "labelled"), source, 7)


# A sentence each: source, and limit in tokens with the end.
SEARCHED = [(SENTENCES[0], 6), (SENTENCES[1], 7), (SENTENCES[0], 8), (SENTENCES[1], 6)]
BEAM_SIZE = 59  # no tree of these is lost: they have 56 at most


def chain_of(num_pieces: int) -> np.ndarray:
    """Log-probabilities of a Markov chain: row = last token, column = next token."""
    logits = np.random.default_rng(5).normal(0, 2, (num_pieces, num_pieces))
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def search_chain(
    pieces: Sequence[str], sources: Sequence[tuple[Sequence[str], int]], **options
) -> Hypotheses:
    trees = TreePieces.of_pieces(pieces)
    logits = np.full((len(pieces), max(len(pieces), options["beam_size"])), -np.inf)
    logits[:, : len(pieces)] = chain_of(len(pieces))
    width = logits.shape[1]
    search = Search(end_id=END_ID, num_hypotheses=options["beam_size"], **options)

    @jax.jit
    def found(grammar, leaves, limits, seeds):
        padded = [jnp.pad(x, (0, width - len(pieces))) for x in grammar]
        return beam_search(
            lambda tokens, positions, ancestors, cache: (
                jnp.asarray(logits, jnp.float32)[tokens],
                cache,
            ),
            {},
            search,
            max_lengths=limits,
            max_length=max(limit for _, limit in sources),
            seeds=seeds,
            leaves=leaves,
            grammar=Grammar(*padded),
        )

    leaves = [
        leaves_row(trees, [pieces.index(piece) for piece in source])
        for source, _ in sources
    ]
    limits = np.array([limit for _, limit in sources], np.int32)
    seeds = np.arange(2 * len(sources), dtype=np.uint32).reshape(-1, 2)
    hypotheses = found(trees.grammar, np.stack(leaves), limits, seeds)
    return jax.tree.map(np.asarray, hypotheses)


def log_prob_of(tokens: Tokens, pieces: Sequence[str]) -> float:
    chain = chain_of(len(pieces))
    ids = [pieces.index(token) for token in tokens]
    return float(sum(chain[pair] for pair in zip([1, *ids], ids, strict=False)))


def texts_of(found: Hypotheses, row: int, pieces: Sequence[str]) -> list[Tokens]:
    return [
        tuple(pieces[int(token)] for token in tokens[:length])
        for tokens, length in zip(found.tokens[row], found.lengths[row], strict=True)
        if length
    ]


@pytest.mark.parametrize(
    ("leaves", "closing"),
    [MODES[0], pytest.param(*MODES[3], marks=pytest.mark.slow)],
)
def test_a_wide_beam_finds_every_tree_and_nothing_else(leaves, closing):
    pieces = pieces_of(leaves, closing)
    found = search_chain(pieces, SEARCHED, beam_size=BEAM_SIZE)
    for row, (source, limit) in enumerate(SEARCHED):
        trees = all_trees(words_of(source), limit, leaves, closing)
        log_probs = {tree: log_prob_of(tree, pieces) for tree in trees}
        got = texts_of(found, row, pieces)
        assert len(got) == len(trees)
        assert set(got) == trees
        expected = [log_probs[tree] for tree in got]  # the chain's own
        np.testing.assert_allclose(
            found.log_probs[row, : len(got)], expected, rtol=1e-5
        )
        best = max(trees, key=lambda tree: log_probs[tree] / penalty(len(tree)))
        assert got[0] == best


def penalty(length: int) -> float:
    return ((5 + length) / 6) ** 0.6


def test_samples_are_trees_with_the_probabilities_of_the_chain():
    pieces = pieces_of("tags", "labelled")
    found = search_chain(
        pieces, SEARCHED, beam_size=17, sampling=True, sampling_topp=0.7
    )
    assert found.is_finished.all()
    for row, (source, limit) in enumerate(SEARCHED):
        got = texts_of(found, row, pieces)
        assert set(got) <= all_trees(words_of(source), limit, "tags", "labelled")
        expected = [log_prob_of(tree, pieces) for tree in got]
        np.testing.assert_allclose(found.log_probs[row], expected, rtol=1e-5)
        assert len(set(got)) > 1


def test_leaves_without_a_grammar_are_refused():
    with pytest.raises(ValueError, match="need each other"):
        beam_search(
            lambda tokens, positions, ancestors, cache: (jnp.zeros(()), cache),
            {},
            Search(end_id=END_ID, beam_size=1),
            max_lengths=jnp.array([3]),
            max_length=3,
            leaves=jnp.zeros((1, 2), jnp.int32),
        )
