"""Truncation against numpy, and draws against the probabilities they are drawn from."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.beam_search import Hypotheses, Search, beam_search
from transformer_jax.decoding.sampling import truncated

START, END = 0, 3
# A Markov chain: row = last token, column = next token.
CHAIN = np.array(
    [
        [0.0, 0.5, 0.3, 0.2],
        [0.1, 0.2, 0.3, 0.4],
        [0.3, 0.3, 0.15, 0.25],
        [0.25, 0.25, 0.25, 0.25],  # never fed
    ]
)


def truncated_in_numpy(
    logits: np.ndarray, num_tokens: int, probability: float
) -> np.ndarray:
    """For one row without ties."""
    kept = np.argsort(-logits)[: num_tokens or None]
    shares = np.exp(logits[kept].astype(np.float64))
    sums = np.cumsum(shares / shares.sum())
    if probability < 1:
        kept = kept[: np.searchsorted(sums, probability) + 1]
    expected = np.full_like(logits, -np.inf)
    expected[kept] = logits[kept]
    return expected


@partial(jax.jit, static_argnames=("limit", "options"))
def draw(seeds, limit: int, options: Search):
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(CHAIN), jnp.float32)
    return beam_search(
        lambda tokens, positions, ancestors, cache: (logits[tokens], cache),
        {},
        options,
        max_lengths=jnp.full(len(seeds), limit),
        max_length=limit,
        seeds=seeds,
    )


def samples(seeds, limit: int, **options) -> Hypotheses:
    """Of the chain, one sentence for each seed."""
    search = Search(end_id=END, start_id=START, sampling=True, **options)
    return jax.tree.map(np.asarray, draw(seeds, limit, search))


def seeds_of(numbers) -> np.ndarray:
    keys = jax.vmap(jax.random.key)(jnp.asarray(numbers))
    return np.asarray(jax.random.key_data(keys))


def tokens_of(found, row: int, rank: int) -> tuple[int, ...]:
    length = found.lengths[row, rank]
    return tuple(int(t) for t in found.tokens[row, rank, :length])


def all_tokens(found) -> list[list[tuple[int, ...]]]:
    rows, ranks = found.lengths.shape
    return [[tokens_of(found, r, n) for n in range(ranks)] for r in range(rows)]


def step_probabilities(temperature: float, num_tokens: int, probability: float):
    """The chain's rows as they are drawn from."""
    with np.errstate(divide="ignore"):
        logits = np.log(CHAIN) / temperature
    rows = []
    for row in logits:
        shares = np.exp(truncated_in_numpy(row, num_tokens, probability))
        rows.append(shares / shares.sum())
    return np.array(rows)


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 10, 99])
@pytest.mark.parametrize("probability", [0.05, 0.5, 0.9, 1.0])
def test_truncation_keeps_what_numpy_keeps(num_tokens, probability):
    logits = 2 * np.random.default_rng(1).normal(size=(4, 5, 10)).astype(np.float32)
    logits[0, 0, 3:] = -np.inf
    found = truncated(
        jnp.asarray(logits), num_tokens=num_tokens, probability=probability
    )
    expected = [
        truncated_in_numpy(row, num_tokens, probability)
        for row in logits.reshape(-1, 10)
    ]
    np.testing.assert_array_equal(np.reshape(found, (-1, 10)), expected)


def test_top_p_counts_only_what_top_k_has_left():
    # Of the two left, the first has 4/7 > 0.55; of all, it had 0.4.
    logits = jnp.log(jnp.array([0.1, 0.3, 0.4, 0.2]))
    both = truncated(logits, num_tokens=2, probability=0.55)
    alone = truncated(logits, num_tokens=0, probability=0.55)
    assert np.isfinite(both).tolist() == [False, False, True, False]
    assert np.isfinite(alone).tolist() == [False, True, True, False]


def test_tokens_as_probable_as_the_last_one_kept_are_kept():
    logits = jnp.log(jnp.array([0.2, 0.4, 0.2, 0.2]))
    found = truncated(logits, num_tokens=2, probability=1.0)
    np.testing.assert_array_equal(found, logits)


@pytest.mark.parametrize(
    ("temperature", "num_tokens", "probability"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 2, 1.0), (2.0, 3, 0.6)],
)
def test_sequences_are_drawn_as_often_as_they_are_probable(
    temperature, num_tokens, probability
):
    found = samples(
        seeds_of(np.arange(1000)),
        2,
        beam_size=2,
        sampling_temperature=temperature,
        sampling_topk=num_tokens,
        sampling_topp=probability,
    )
    pairs = all_tokens(found)
    steps = step_probabilities(temperature, num_tokens, probability)
    probabilities = {(END,): steps[START, END]} | {
        (a, b): steps[START, a] * steps[a, b]
        for a, b in itertools.product([0, 1, 2], range(4))
    }
    np.testing.assert_allclose(sum(probabilities.values()), 1.0)

    drawn = [tokens for pair in pairs for tokens in pair]
    for tokens, p in probabilities.items():
        error = drawn.count(tokens) / len(drawn) - p
        assert abs(error) <= 5 * np.sqrt(p * (1 - p) / len(drawn)), tokens

    # Two samples of a sentence agree as often as if they did not know each other.
    same = sum(p * p for p in probabilities.values())
    error = np.mean([a == b for a, b in pairs]) - same
    assert abs(error) <= 5 * np.sqrt(same * (1 - same) / len(pairs))


def test_a_sample_depends_on_its_seed_only():
    numbers = np.arange(8)
    together = samples(seeds_of(numbers), 6, beam_size=3)
    order = [5, 0, 7, 3, 3, 1, 2, 6]
    others = samples(seeds_of(numbers[order]), 6, beam_size=3)
    new = samples(seeds_of([5, 90, 91, 92, 93, 94, 95, 96]), 6, beam_size=3)

    sequences = all_tokens(together)
    assert all_tokens(others) == [sequences[row] for row in order]
    assert all_tokens(new)[0] == sequences[5]
    assert all_tokens(samples(seeds_of([5]), 6, beam_size=3)) == [sequences[5]]
    # Eight seeds, eight answers; three slots, mostly three.
    assert len({tuple(s) for s in sequences}) == 8
    assert sum(len(set(s)) for s in sequences) > 16


def test_samples_are_ranked_by_score_and_have_their_own_log_probability():
    found = samples(
        seeds_of(np.arange(20)),
        6,
        beam_size=4,
        length_penalty=1.0,
        sampling_temperature=3.0,
        sampling_topk=3,
    )
    assert found.is_finished.any()
    assert not found.is_finished.all()
    for row in range(20):
        # Finished ones first; each kind by score.
        keys = list(zip(found.is_finished[row], found.scores[row], strict=True))
        assert keys == sorted(keys, reverse=True)
        for rank in range(4):
            tokens = tokens_of(found, row, rank)
            assert found.is_finished[row, rank] == (tokens[-1] == END)
            log_prob = sum(
                np.log(CHAIN[last, token])
                for last, token in zip((START, *tokens), tokens, strict=False)
            )
            np.testing.assert_allclose(found.log_probs[row, rank], log_prob, rtol=1e-5)
            np.testing.assert_allclose(
                found.scores[row, rank], log_prob / ((5 + len(tokens)) / 6), rtol=1e-5
            )
