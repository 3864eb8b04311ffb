"""What is forbidden, against plain Python, and a search against all that is allowed."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.beam_search import Hypotheses, Search, beam_search
from transformer_jax.decoding.constraints import allowed_logits

VOCAB = 4
START, END = 0, 3

# Padded with -1 at the front; the last but one forbids nothing.
SUPPRESSED = ((-1, -1, 0), (-1, 1, 2), (2, 2, 1), (-1, -1, -1), (1, 1, 3))


def is_forbidden(
    history: Sequence[int],
    token: int,
    *,
    ngram: int = 0,
    suppressed: Sequence[Sequence[int]] = (),
    prefix: Sequence[int] = (),
) -> bool:
    if len(history) < len(prefix):
        return token != prefix[len(history)]
    longer = [*history, token]
    if ngram and len(longer) >= ngram:
        ngrams = [
            longer[i : i + ngram] for i in range(len(longer) - ngram)
        ]  # all but the last
        if longer[-ngram:] in ngrams:
            return True
    for sequence in suppressed:
        wanted = [t for t in sequence if t != -1]
        if wanted and longer[-len(wanted) :] == wanted:
            return True
    return False


def forbidden_by_library(
    tokens: np.ndarray,
    *,
    ngram: int = 0,
    suppressed: Sequence[Sequence[int]] | None = None,
    prefix: Sequence[int] = (),
) -> list[np.ndarray]:
    """For each length: bool [rows, vocab]. Allowed logits must be as before."""
    logits = np.random.default_rng(0).normal(size=(len(tokens), VOCAB))
    logits = jnp.asarray(logits, jnp.float32)
    allow = jax.jit(
        lambda length: allowed_logits(
            logits,
            jnp.asarray(tokens),
            length,
            prefix=jnp.asarray(prefix, jnp.int32),
            no_repeat_ngram_size=ngram,
            suppressed=None if suppressed is None else jnp.asarray(suppressed),
        )
    )
    masks = []
    for length in range(tokens.shape[1]):
        found = np.asarray(allow(jnp.int32(length)))
        mask = found == -np.inf
        np.testing.assert_array_equal(found[~mask], np.asarray(logits)[~mask])
        masks.append(mask)
    return masks


def random_tokens(seed: int = 0) -> np.ndarray:
    """Few kinds, so that n-grams recur; beyond a length they mean nothing."""
    return np.random.default_rng(seed).integers(0, 3, size=(20, 9)).astype(np.int32)


def assert_forbids_as_told(tokens, **options):
    padded = options.get("prefix", ())
    prefix = [t for t in padded if t != -1]
    masks = forbidden_by_library(tokens, **options)
    for length, mask in enumerate(masks):
        expected = [
            [
                is_forbidden(row[:length], token, **{**options, "prefix": prefix})
                for token in range(VOCAB)
            ]
            for row in tokens.tolist()
        ]
        np.testing.assert_array_equal(mask, expected, err_msg=f"length {length}")
    return masks


@pytest.mark.parametrize("ngram", [1, 2, 3, 12])
def test_no_ngram_occurs_twice(ngram):
    masks = assert_forbids_as_told(random_tokens(), ngram=ngram)
    assert np.any(masks) == (ngram < 9)  # longer than any hypothesis: nothing


def test_no_suppressed_sequence_is_completed():
    masks = assert_forbids_as_told(random_tokens(), suppressed=SUPPRESSED)
    assert np.all(np.any(masks, axis=(0, 1)))  # each token somewhere
    assert not masks[1][:, 3].any()  # no room for three tokens


def test_single_tokens_are_suppressed_at_every_length():
    masks = assert_forbids_as_told(random_tokens(), suppressed=((1,), (3,)))
    assert np.all(np.array(masks) == [False, True, False, True])


@pytest.mark.parametrize("sequences", [((-1, -1), (-1, -1)), ((-1,),)])
def test_a_sequence_of_padding_alone_forbids_nothing(sequences):
    assert not np.any(forbidden_by_library(random_tokens(), suppressed=sequences))


def test_a_prefix_forces_its_tokens_whatever_else_is_forbidden():
    # Token 1 is suppressed and the prefix repeats a bigram: after it, all rules hold.
    assert_forbids_as_told(
        random_tokens(),
        prefix=(1, 1, 1, 2, -1, -1),
        ngram=2,
        suppressed=((-1, 1), (2, 0)),
    )


def test_a_prefix_may_fill_all_its_places():
    assert_forbids_as_told(random_tokens(), prefix=(2, 0))


# A Markov chain: row = last token, column = next token.
CHAIN = np.array(
    [
        [0.5, 0.3, 0.15, 0.05],
        [0.1, 0.5, 0.2, 0.2],
        [0.35, 0.3, 0.25, 0.1],
        [0.25, 0.25, 0.25, 0.25],  # never fed
    ]
)
LIMIT = 4
# No more than 2 * 54 continuations of the 27 sequences of three tokens: none is lost.
BEAM_SIZE = 54


def search_chain(
    *,
    sampling: bool = False,
    ngram: int = 0,
    dead_end: int | None = None,
    **request,
) -> Hypotheses:
    """After `dead_end`, the model itself makes every token impossible."""
    beam_size = 5 if sampling else BEAM_SIZE
    logits = np.full((VOCAB, BEAM_SIZE), -np.inf, np.float32)
    logits[:, :VOCAB] = np.log(CHAIN)
    if dead_end is not None:
        logits[dead_end] = -np.inf
    found = beam_search(
        lambda tokens, positions, ancestors, cache: (
            jnp.asarray(logits)[tokens],
            cache,
        ),
        {},
        Search(
            end_id=END,
            start_id=START,
            beam_size=beam_size,
            num_hypotheses=beam_size,
            no_repeat_ngram_size=ngram,
            sampling=sampling,
        ),
        max_length=LIMIT,
        **request,
    )
    return jax.tree.map(np.asarray, found)


def log_prob_of(tokens: Sequence[int]) -> float:
    pairs = zip((START, *tokens), tokens, strict=False)
    return float(sum(np.log(CHAIN[last, token]) for last, token in pairs))


def enumerate_allowed(
    *, min_length: int = 0, **rules
) -> tuple[list[tuple[int, ...]], list[float]]:
    """Every finished sequence that obeys, best score first, and the scores."""
    found = []
    for length in range(1, LIMIT + 1):
        for body in itertools.product([0, 1, 2], repeat=length - 1):
            tokens = (*body, END)
            if len(body) >= min_length and not any(
                is_forbidden(tokens[:i], token, **rules)
                for i, token in enumerate(tokens)
            ):
                found.append((log_prob_of(tokens) / ((5 + length) / 6) ** 0.6, tokens))
    found.sort(reverse=True)
    return [tokens for _, tokens in found], [score for score, _ in found]


def assert_finds(found: Hypotheses, row: int, **rules) -> None:
    sequences, scores = enumerate_allowed(**rules)
    number = found.is_finished[row].sum()
    assert number == len(sequences) > 0
    np.testing.assert_allclose(found.scores[row, :number], scores, rtol=1e-5)
    got = [
        tuple(tokens[:length].tolist())
        for tokens, length in zip(found.tokens[row], found.lengths[row], strict=True)
    ][:number]
    assert sorted(got) == sorted(sequences)
    log_probs = [log_prob_of(tokens) for tokens in got]  # not renormalised
    np.testing.assert_allclose(found.log_probs[row, :number], log_probs, rtol=1e-5)


@pytest.mark.parametrize(
    ("ngram", "suppressed"),
    [(0, None), (1, None), (2, ((-1, 2), (1, 1))), (0, ((0, 1, END), (-1, -1, 0)))],
)
@pytest.mark.slow
def test_a_wide_beam_finds_all_that_is_allowed_and_nothing_else(ngram, suppressed):
    # Together in one batch, each sentence with its own minimum and prefix.
    min_lengths = [0, 1, 3, 0, 0, 2]
    prefixes = [(-1, -1), (-1, -1), (-1, -1), (1, -1), (2, 1), (0, 0)]
    found = search_chain(
        ngram=ngram,
        max_lengths=jnp.full(6, LIMIT),
        min_lengths=jnp.array(min_lengths),
        prefixes=jnp.array(prefixes),
        suppressed=None if suppressed is None else jnp.array(suppressed),
    )
    winners = set()
    for row in range(6):
        rules = {
            "min_length": min_lengths[row],
            "ngram": ngram,
            "suppressed": suppressed or (),
            "prefix": [t for t in prefixes[row] if t != -1],
        }
        if not enumerate_allowed(**rules)[0]:
            assert not found.is_finished[row].any()
            continue
        assert_finds(found, row, **rules)
        winners.add(tuple(found.tokens[row, 0].tolist()))
    assert len(winners) > 2  # the requests were not in vain


def test_greedy_takes_the_runner_up_of_an_end_that_comes_too_early():
    logits = jnp.log(jnp.array([0.1, 0.3, 0.0, 0.6]))  # whatever came before
    found = beam_search(
        lambda tokens, positions, ancestors, cache: (
            jnp.broadcast_to(logits, (*tokens.shape, VOCAB)),
            cache,
        ),
        {},
        Search(end_id=END, beam_size=1),
        max_lengths=jnp.array([LIMIT, LIMIT]),
        min_lengths=jnp.array([0, 2]),
        max_length=LIMIT,
    )
    assert found.tokens[:, 0].tolist() == [[END, 0, 0, 0], [1, 1, END, 0]]
    expected = np.log([0.6, 0.3 * 0.3 * 0.6])
    np.testing.assert_allclose(found.log_probs[:, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("sampling", [False, True])
def test_where_everything_is_forbidden_all_slots_are_empty(sampling):
    found = search_chain(
        sampling=sampling,
        max_lengths=jnp.array([LIMIT, LIMIT]),
        suppressed=jnp.arange(VOCAB)[:, None],
    )
    assert not found.is_finished.any()
    assert np.all(found.lengths == 0)
    assert np.all(found.tokens == 0)
    assert np.all(found.log_probs == -np.inf)
    assert np.all(found.scores == -np.inf)


@pytest.mark.parametrize("by_model", [False, True])
def test_a_hypothesis_that_cannot_go_on_gives_way_to_the_others(by_model):
    after_two = [(2, token) for token in range(VOCAB)]
    found = search_chain(
        max_lengths=jnp.array([LIMIT]),
        dead_end=2 if by_model else None,
        suppressed=jnp.array([(-1, -1)] if by_model else after_two),
    )
    assert_finds(found, 0, suppressed=after_two)


@pytest.mark.parametrize("sampling", [False, True])
def test_a_model_that_forbids_every_token_leaves_only_empty_slots(sampling):
    found = beam_search(
        lambda tokens, positions, ancestors, cache: (
            jnp.full((*tokens.shape, VOCAB), -jnp.inf),
            cache,
        ),
        {},
        Search(end_id=END, beam_size=3, num_hypotheses=3, sampling=sampling),
        max_lengths=jnp.array([LIMIT]),
        max_length=LIMIT,
    )
    assert np.all(found.lengths == 0)
    assert np.all(found.log_probs == -np.inf)
