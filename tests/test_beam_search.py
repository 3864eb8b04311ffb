"""Beam search against enumeration, a plain numpy search and hand-drawn chains.

The test model is the hardest for a cache: its logits depend on every token fed so far,
read from the cache alone. A wrong ancestor gives wrong log-probabilities.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.decoding.beam_search import (
    Hypotheses,
    Request,
    Search,
    SearchState,
    advance,
    beam_search,
    conclude,
    is_done,
    length_penalty,
    start,
)

PAD = START = 0  # never predicted by the test model
END = 2
NUM_KEYS = 97
KEY_WEIGHTS = np.array([3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41])


class HistoryModel(NamedTuple):
    """Logits of the next token as a table looked up by a key of the whole history."""

    logits: np.ndarray  # float32 [sentences, keys, vocab]

    def next_log_probs(self, sentence: int, prefix: Sequence[int]) -> np.ndarray:
        """Log-probabilities in float64 of the token after `prefix`."""
        fed = np.array([START, *prefix])
        key = np.sum((fed + 1) * KEY_WEIGHTS[: len(fed)]) % NUM_KEYS
        logits = self.logits[sentence, key].astype(np.float64)
        return logits - np.log(np.sum(np.exp(logits)))

    def log_prob(self, sentence: int, tokens: Sequence[int]) -> float:
        return sum(
            self.next_log_probs(sentence, tokens[:i])[token]
            for i, token in enumerate(tokens)
        )

    def step(self, tokens, positions, ancestors, cache):
        batch, beam_size = tokens.shape
        rows, slots = jnp.arange(batch)[:, None], jnp.arange(beam_size)[None]
        written = cache["history"].at[rows, slots, positions[:, None]].set(tokens)
        history = jnp.take_along_axis(written, ancestors, axis=1)
        times = jnp.arange(history.shape[-1])[None, None]
        weights = jnp.asarray(KEY_WEIGHTS[: history.shape[-1]])[None, None]
        is_past = times <= positions[:, None, None]
        key = jnp.sum((history + 1) * weights * is_past, axis=-1) % NUM_KEYS
        logits = jnp.asarray(self.logits)[cache["sentence"][:, None], key]
        return logits, {**cache, "history": written}


def random_model(
    seed: int, *, num_sentences: int, num_tokens: int, vocab_size: int = 0
) -> HistoryModel:
    """Tokens 1 to `num_tokens` are possible, the rest of the vocabulary is not."""
    vocab_size = vocab_size or 1 + num_tokens
    logits = np.full((num_sentences, NUM_KEYS, vocab_size), -np.inf, np.float32)
    rng = np.random.default_rng(seed)
    logits[:, :, 1 : num_tokens + 1] = 1.5 * rng.normal(
        size=(num_sentences, NUM_KEYS, num_tokens)
    )
    return HistoryModel(logits)


def start_cache(sentences: Sequence[int], *, beam_size: int, max_length: int):
    batch = len(sentences)
    return {
        "history": jnp.full((batch, beam_size, max_length), -1, jnp.int32),
        "sentence": jnp.asarray(sentences),
    }


class Found(NamedTuple):
    """The fields of `Hypotheses` as numpy arrays."""

    tokens: np.ndarray
    lengths: np.ndarray
    log_probs: np.ndarray
    scores: np.ndarray
    is_finished: np.ndarray


def on_host(found: Hypotheses) -> Found:
    return Found(*(np.asarray(getattr(found, field)) for field in Found._fields))


def search(
    model: HistoryModel,
    sentences: Sequence[int],
    max_lengths: Sequence[int],
    *,
    beam_size: int,
    max_length: int = 0,
    step=None,
    request: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Found:
    """Searches the given sentences of a model; the result on the host."""
    max_length = max_length or max(max_lengths)
    found = beam_search(
        step or model.step,
        start_cache(sentences, beam_size=beam_size, max_length=max_length),
        make_search(beam_size=beam_size, **options),
        max_lengths=jnp.asarray(max_lengths),
        max_length=max_length,
        **request,
    )
    return on_host(found)


def make_search(**options: Any) -> Search:
    defaults: dict[str, Any] = {"start_id": START, "end_id": END, "pad_id": PAD}
    return Search(**{**defaults, **options})


def tokens_of(found: Found, sentence: int, rank: int) -> tuple[int, ...]:
    length = found.lengths[sentence, rank]
    return tuple(int(t) for t in found.tokens[sentence, rank, :length])


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


class Hypothesis(NamedTuple):
    tokens: tuple[int, ...]
    log_prob: float
    score: float
    is_finished: bool


def enumerate_finished(
    model: HistoryModel, sentence: int, limit: int, *, num_tokens: int, alpha: float
) -> list[Hypothesis]:
    """Every sequence that ends within the limit, best score first."""
    others = [t for t in range(1, num_tokens + 1) if t != END]
    found = []
    for length in range(1, limit + 1):
        for body in itertools.product(others, repeat=length - 1):
            tokens = (*body, END)
            log_prob = model.log_prob(sentence, tokens)
            score = log_prob / penalty(length, alpha)
            found.append(Hypothesis(tokens, log_prob, score, True))
    return sorted(found, key=lambda h: -h.score)


def search_with_lists(
    model: HistoryModel, sentence: int, limit: int, *, beam_size: int, alpha: float
) -> list[Hypothesis]:
    """The search as its docstring tells it, but never stopping before the limit."""
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        continuations = []
        for tokens, log_prob in alive:
            for token, token_log_prob in enumerate(
                model.next_log_probs(sentence, tokens)
            ):
                if np.isfinite(token_log_prob):
                    continuations.append(
                        ((*tokens, token), float(log_prob + token_log_prob))
                    )
        continuations.sort(key=lambda c: -c[1])
        best = continuations[: 2 * beam_size if beam_size > 1 else 1]
        alive = [c for c in best if c[0][-1] != END][:beam_size]
        finished += [
            Hypothesis(tokens, log_prob, log_prob / penalty(length, alpha), True)
            for tokens, log_prob in best
            if tokens[-1] == END
        ]
        finished = sorted(finished, key=lambda h: -h.score)[:beam_size]
    cut_off = [Hypothesis(t, p, p / penalty(limit, alpha), False) for t, p in alive]
    return (finished + cut_off)[:beam_size]


def assert_ranks_equal(found: Found, row: int, expected: Sequence[Hypothesis]) -> None:
    for rank, hypothesis in enumerate(expected):
        assert tokens_of(found, row, rank) == hypothesis.tokens
        assert found.is_finished[row, rank] == hypothesis.is_finished
        np.testing.assert_allclose(
            found.log_probs[row, rank], hypothesis.log_prob, rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            found.scores[row, rank], hypothesis.score, rtol=1e-5, atol=1e-6
        )


def assert_same(found, expected, *, rtol: float = 0.0) -> None:
    """For `Found` and `Hypotheses`; bit by bit if rtol is 0."""
    for leaf, expected_leaf in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(leaf, expected_leaf, rtol=rtol)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(alpha):
    # 4^4 prefixes of 4 tokens have 5 continuations each: 1280 = 2 * 640 candidates,
    # so a beam of 640 drops nothing. Impossible tokens fill up the vocabulary.
    num_tokens, limit, beam_size = 5, 5, 640
    model = random_model(
        3, num_sentences=2, num_tokens=num_tokens, vocab_size=beam_size + 1
    )
    found = search(
        model,
        [0, 1],
        [limit, limit],
        beam_size=beam_size,
        length_penalty=alpha,
        num_hypotheses=3,
    )
    for sentence in range(2):
        expected = enumerate_finished(
            model, sentence, limit, num_tokens=num_tokens, alpha=alpha
        )
        assert_ranks_equal(found, sentence, expected[:3])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("beam_size", [1, 2, 3, 7])
def test_every_hypothesis_equals_a_search_with_lists(beam_size, alpha):
    limits = [7, 1, 5, 11, 3]
    model = random_model(5, num_sentences=5, num_tokens=6)
    found = search(
        model,
        range(5),
        limits,
        beam_size=beam_size,
        length_penalty=alpha,
        num_hypotheses=beam_size,  # so that every slot is exact
    )
    for sentence, limit in enumerate(limits):
        expected = search_with_lists(
            model, sentence, limit, beam_size=beam_size, alpha=alpha
        )
        assert_ranks_equal(found, sentence, expected)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_of_one_is_argmax_decoding(alpha):
    limits = [2, 11, 3, 11, 3, 11, 2]
    model = random_model(7, num_sentences=7, num_tokens=4)
    found = search(model, range(7), limits, beam_size=1, length_penalty=alpha)
    for sentence, limit in enumerate(limits):
        expected: list[int] = []
        while len(expected) < limit and END not in expected:
            log_probs = model.next_log_probs(sentence, expected)
            expected.append(int(np.argmax(log_probs)))
        assert tokens_of(found, sentence, 0) == tuple(expected)
        assert found.is_finished[sentence, 0] == (END in expected)
    assert found.is_finished.any()
    assert not found.is_finished.all()


@pytest.mark.parametrize("num_hypotheses", [1, 3])
def test_an_early_stop_loses_nothing_and_saves_steps(num_hypotheses):
    limit, beam_size, num_sentences = 11, 3, 7
    model = random_model(11, num_sentences=num_sentences, num_tokens=4)
    positions: list[int] = []
    run = jax.jit(
        lambda cache: beam_search(
            recording_step(model, positions),
            cache,
            make_search(beam_size=beam_size, num_hypotheses=num_hypotheses),
            max_lengths=jnp.array([limit]),
            max_length=limit,
        )
    )
    saved_steps = 0
    for sentence in range(num_sentences):
        positions.clear()
        cache = start_cache([sentence], beam_size=beam_size, max_length=limit)
        found = on_host(run(cache))
        jax.effects_barrier()
        expected = search_with_lists(
            model, sentence, limit, beam_size=beam_size, alpha=0.6
        )
        assert_ranks_equal(found, 0, expected[:num_hypotheses])
        assert positions == list(range(len(positions)))
        saved_steps += limit - len(positions)
    assert saved_steps > num_sentences  # more than one step a sentence


def recording_step(model: HistoryModel, positions: list[int]):
    """The model's step, which also appends the last position of each call."""

    def step(tokens, now, ancestors, cache):
        jax.debug.callback(lambda p: positions.append(int(max(p))), now, ordered=True)
        return model.step(tokens, now, ancestors, cache)

    return step


def chain_step(probabilities):
    """A Markov chain: row = last token, column = next token."""
    logits = jnp.log(jnp.asarray(probabilities, jnp.float32))
    return lambda tokens, positions, ancestors, cache: (logits[tokens], cache)


def search_chain(
    step,
    limit: int,
    *,
    alpha=0.6,
    request: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Found:
    found = beam_search(
        step,
        {},
        make_search(length_penalty=alpha, **options),
        max_lengths=jnp.array([limit]),
        max_length=limit,
        **request,
    )
    return on_host(found)


def test_a_beam_of_two_finds_the_path_that_greedy_misses():
    #        0.6       0.5
    #  start ---> 1 -------> 3 ---> end     0.30, and the same through 4
    #        \          \--> 4 ---> end
    #    0.4  \--> 2 ------> 4 ---> end     0.40
    start, end = 0, 5
    chain = np.zeros((6, 6))
    chain[start, [1, 2]] = 0.6, 0.4
    chain[1, [3, 4]] = 0.5
    chain[2, 4] = 1.0
    chain[[3, 4], end] = 1.0
    chain[end, end] = 1.0  # never fed

    greedy = search_chain(chain_step(chain), 5, beam_size=1, end_id=end)
    best = search_chain(chain_step(chain), 5, beam_size=2, end_id=end)

    assert tokens_of(greedy, 0, 0) == (1, 3, end)
    assert tokens_of(best, 0, 0) == (2, 4, end)
    np.testing.assert_allclose(np.exp(greedy.log_probs[0, 0]), 0.3, rtol=1e-5)
    np.testing.assert_allclose(np.exp(best.log_probs[0, 0]), 0.4, rtol=1e-5)


def test_a_longer_hypothesis_may_still_overtake_a_finished_one():
    # The end at once and ten certain steps are as likely, 1/2. Per length penalty the
    # long one is better, although at the first step it is level with the finished one.
    end, last = 11, 10
    chain = np.zeros((12, 12))
    chain[0, [1, end]] = 0.5
    for token in range(1, last):
        chain[token, token + 1] = 1.0
    chain[last, end] = 1.0
    chain[end, end] = 1.0  # never fed

    short = search_chain(chain_step(chain), 13, beam_size=2, end_id=end, alpha=0.0)
    long = search_chain(chain_step(chain), 13, beam_size=2, end_id=end, alpha=0.6)

    assert tokens_of(short, 0, 0) == (end,)
    assert tokens_of(long, 0, 0) == (*range(1, last + 1), end)


def test_ties_go_to_the_lower_token_and_to_the_better_beam():
    # Token 0, token 1: equally likely. The end: impossible. Of the four equal pairs,
    # three fit in the beam.
    found = search_chain(
        chain_step([[0.5, 0.5, 0]] * 3), 2, beam_size=3, end_id=2, num_hypotheses=3
    )
    assert [tokens_of(found, 0, rank) for rank in range(3)] == [(0, 0), (0, 1), (1, 0)]


def test_each_sentence_stops_at_its_own_limit():
    model = random_model(13, num_sentences=4, num_tokens=5)
    model.logits[:, :, END] = -np.inf  # nothing ever finishes
    limits = [3, 7, 0, 11]
    positions: list[int] = []
    found = search(
        model,
        range(4),
        [*limits[:3], 99],  # cut to max_length
        beam_size=2,
        max_length=11,
        step=recording_step(model, positions),
    )
    jax.effects_barrier()
    assert found.lengths[:, 0].tolist() == limits
    assert not found.is_finished.any()
    assert positions == list(range(11))
    for sentence, limit in enumerate(limits):
        assert np.all(found.tokens[sentence, :, :limit] != PAD) or limit == 0
        assert np.all(found.tokens[sentence, :, limit:] == PAD)
    # A limit of 0: one hypothesis, the empty one, and an empty slot.
    assert found.scores[2].tolist() == [0.0, -np.inf]


def test_an_unfinished_hypothesis_never_displaces_a_finished_one():
    # [end] has probability 0.1, [1, end] 0.09, and [1, 1], cut off at the limit, 0.81.
    found = search_chain(
        chain_step([[0, 0.9, 0.1]] * 3),
        2,
        beam_size=3,
        end_id=2,
        alpha=0.0,
        num_hypotheses=3,
    )
    assert [tokens_of(found, 0, rank) for rank in range(3)] == [(2,), (1, 2), (1, 1)]
    assert found.is_finished[0].tolist() == [True, True, False]
    assert found.scores[0, 2] > found.scores[0, 0]


def test_slots_without_any_hypothesis_are_empty():
    found = search_chain(
        chain_step([[0, 0, 1.0]] * 3), 5, beam_size=3, end_id=2, num_hypotheses=3
    )
    assert found.tokens[0].tolist() == [[2, 0, 0, 0, 0], [0] * 5, [0] * 5]
    assert found.lengths[0].tolist() == [1, 0, 0]
    assert found.log_probs[0].tolist() == [0.0, -np.inf, -np.inf]
    assert found.scores[0].tolist() == [0.0, -np.inf, -np.inf]
    assert found.is_finished[0].tolist() == [True, False, False]


def test_an_early_stop_leaves_later_slots_empty():
    # [end] has probability 3/4: nothing can be better, and [1] is not at its limit.
    found = search_chain(
        chain_step([[0, 0.25, 0.75]] * 3), 5, beam_size=2, end_id=2, alpha=0.0
    )
    assert found.tokens[0].tolist() == [[2, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert found.lengths[0].tolist() == [1, 0]
    assert found.scores[0, 1] == -np.inf


def test_a_hypothesis_does_not_depend_on_its_neighbours():
    model = random_model(17, num_sentences=7, num_tokens=6)
    limits = [7, 11, 5, 3, 11, 2, 11]
    run = partial(search, model, beam_size=3, max_length=11, num_hypotheses=2)

    together = run(range(7), limits)

    order = [4, 0, 6, 2, 5, 1, 3]
    permuted = run(order, [limits[sentence] for sentence in order])
    assert_same(permuted, jax.tree.map(lambda leaf: leaf[order], together))

    kept = [0, 3, 6]
    others = run([0, 5, 5, 3, 5, 5, 6], [limits[0], 9, 0, limits[3], 1, 9, limits[6]])
    assert_same(
        jax.tree.map(lambda leaf: leaf[kept], others),
        jax.tree.map(lambda leaf: leaf[kept], together),
    )
    # Another batch size is another program, which may round differently.
    alone = run([3], [limits[3]])
    assert_same(alone, jax.tree.map(lambda leaf: leaf[3:4], together), rtol=1e-6)


@pytest.mark.slow
def test_a_search_on_several_devices_finds_the_same():
    batch, beam_size, max_length = 2 * jax.device_count(), 3, 7
    model = random_model(41, num_sentences=batch, num_tokens=6)
    max_lengths = jnp.arange(batch) % max_length + 1
    cache = start_cache(range(batch), beam_size=beam_size, max_length=max_length)

    def run(cache, max_lengths):
        return beam_search(
            model.step,
            cache,
            make_search(beam_size=beam_size),
            max_lengths=max_lengths,
            max_length=max_length,
        )

    mesh = Mesh(np.array(jax.devices()), ("data",))
    by_device = jax.shard_map(
        run, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    expected = run(cache, max_lengths)
    assert_same(jax.jit(by_device)(cache, max_lengths), expected, rtol=1e-6)
    sharded = jax.device_put((cache, max_lengths), NamedSharding(mesh, P("data")))
    assert_same(jax.jit(run)(*sharded), expected, rtol=1e-6)


def test_a_done_sentence_ignores_what_the_step_returns_for_it():
    model = random_model(19, num_sentences=3, num_tokens=6)
    limits = [3, 2, 11]
    expected = search(model, range(3), limits, beam_size=2)

    def step(tokens, positions, ancestors, cache):
        logits, model_cache = model.step(tokens, positions, ancestors, cache["model"])
        is_over = cache["calls"] >= jnp.asarray(limits)
        logits = jnp.where(is_over[:, None, None], jnp.nan, logits)
        return logits, {"model": model_cache, "calls": cache["calls"] + 1}

    found = beam_search(
        step,
        {
            "model": start_cache(range(3), beam_size=2, max_length=11),
            "calls": jnp.zeros(3, jnp.int32),
        },
        make_search(beam_size=2),
        max_lengths=jnp.asarray(limits),
        max_length=11,
    )
    assert_same(on_host(found), expected, rtol=1e-6)


def test_the_cache_follows_its_hypothesis():
    # The model reads its history from the cache, so a log-probability that equals the
    # tokens' own, scored from scratch, has seen exactly these tokens.
    model = random_model(23, num_sentences=3, num_tokens=6)
    found = search(model, range(3), [11] * 3, beam_size=5, num_hypotheses=5)
    for sentence, rank in itertools.product(range(3), range(5)):
        tokens = tokens_of(found, sentence, rank)
        np.testing.assert_allclose(
            found.log_probs[sentence, rank],
            model.log_prob(sentence, tokens),
            rtol=1e-5,
        )


def test_jit_with_a_static_search_changes_nothing():
    model = random_model(31, num_sentences=3, num_tokens=6)
    cache = start_cache(range(3), beam_size=2, max_length=7)
    search = make_search(beam_size=2, length_penalty=1.0, num_hypotheses=2)
    traces = []

    def step(tokens, positions, ancestors, cache):
        traces.append(positions)
        return model.step(tokens, positions, ancestors, cache)

    jitted = jax.jit(
        lambda cache, search, max_lengths: beam_search(
            step, cache, search, max_lengths=max_lengths, max_length=7
        ),
        static_argnames="search",
    )
    max_lengths = jnp.array([7, 5, 3])
    found = jitted(cache, search, max_lengths)
    expected = beam_search(step, cache, search, max_lengths=max_lengths, max_length=7)
    assert_same(found, expected, rtol=1e-6)

    num_traces = len(traces)
    jitted(cache, search, jnp.array([2, 7, 1]))  # other limits, the same program
    assert len(traces) == num_traces


def test_bfloat16_logits_are_summed_in_float32():
    model = random_model(37, num_sentences=2, num_tokens=6)
    rounded = HistoryModel(
        np.asarray(jnp.asarray(model.logits, jnp.bfloat16).astype(jnp.float32))
    )

    def step(tokens, positions, ancestors, cache):
        logits, cache = rounded.step(tokens, positions, ancestors, cache)
        return logits.astype(jnp.bfloat16), cache

    found = search(model, [0, 1], [7, 7], beam_size=3, step=step)
    expected = search(rounded, [0, 1], [7, 7], beam_size=3)
    assert found.log_probs.dtype == np.float32
    assert_same(found, expected, rtol=1e-6)


def test_length_penalty_is_the_one_of_gnmt():
    lengths = jnp.array([1, 7, 13])
    np.testing.assert_allclose(length_penalty(lengths, 1.0), [1.0, 2.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(length_penalty(lengths, 2.0), [1.0, 4.0, 9.0], rtol=1e-6)
    np.testing.assert_array_equal(length_penalty(lengths, 0.0), [1.0, 1.0, 1.0])


def test_length_penalty_may_be_a_power_of_the_length():
    lengths = jnp.array([0, 1, 4, 9])
    for alpha, expected in [(0.0, [1, 1, 1, 1]), (0.5, [1, 1, 2, 3])]:
        found = length_penalty(lengths, alpha, form="length")
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_form_of_the_length_penalty_decides_the_winner():
    # [end] has probability 0.4, [1, end] 0.3; the rest, through 2, never ends.
    # gnmt: log 0.3 / (7 / 6) < log 0.4; length: log 0.3 / 2 > log 0.4.
    end = 3
    chain = np.zeros((4, 4))
    chain[0, [1, end]] = 0.6, 0.4
    chain[1, [2, end]] = 0.5
    chain[2, 2] = chain[end, end] = 1.0
    scores = {
        "gnmt": {(end,): np.log(0.4), (1, end): np.log(0.3) / (7 / 6)},
        "length": {(end,): np.log(0.4), (1, end): np.log(0.3) / 2},
    }
    winners = {"gnmt": (end,), "length": (1, end)}
    for form, score_of in scores.items():
        found = search_chain(
            chain_step(chain),
            4,
            alpha=1.0,
            beam_size=2,
            num_hypotheses=2,
            end_id=end,
            length_penalty_form=form,
        )
        assert tokens_of(found, 0, 0) == winners[form]
        for rank in range(2):
            expected = score_of[tokens_of(found, 0, rank)]
            np.testing.assert_allclose(found.scores[0, rank], expected, rtol=1e-5)


MANY = 20  # sentences of `search_many`


@partial(jax.jit, static_argnames="search")
def _search_many(search: Search) -> tuple[Hypotheses, jax.Array]:
    limits = jnp.arange(MANY) % 7 + 4
    model = random_model(43, num_sentences=MANY, num_tokens=5)
    cache = start_cache(range(MANY), beam_size=search.beam_size, max_length=10)
    state = SearchState(start(search, Request.of(limits), max_length=10), cache)
    state = advance(model.step, state, search)
    return conclude(search, state), state.sentences.length


def search_many(**options: Any) -> tuple[Found, np.ndarray]:
    """What was found for many sentences, and the steps of each."""
    found, steps = _search_many(make_search(**options))
    return on_host(found), np.asarray(steps)


def first(found: Found, number: int) -> Found:
    return Found(*(leaf[:, :number] for leaf in found))


@pytest.mark.parametrize(
    ("form", "alpha"), [("gnmt", 0.0), ("gnmt", 0.6), ("length", 0.6), ("length", 1.0)]
)
def test_without_an_early_stop_the_best_are_the_same(form, alpha):
    options: dict[str, Any] = {
        "beam_size": 5,
        "num_hypotheses": 2,
        "length_penalty": alpha,
        "length_penalty_form": form,
    }
    early, early_steps = search_many(**options)
    full, full_steps = search_many(**options, early_stopping=False)
    assert_same(first(early, 2), first(full, 2), rtol=1e-6)
    assert np.all(early_steps <= full_steps)
    assert np.sum(early_steps) < np.sum(full_steps)


def test_a_longer_list_begins_with_the_shorter_ones():
    longest, _ = search_many(beam_size=5, num_hypotheses=5)
    for number in (1, 2, 3, 4):
        found, _ = search_many(beam_size=5, num_hypotheses=number)
        assert_same(first(found, number), first(longest, number), rtol=1e-6)


@pytest.mark.slow
def test_a_beam_wide_enough_for_all_is_never_worse_than_greedy():
    # 2^3 sequences of 3 tokens have 24 continuations: a beam of 12 drops none. (A
    # narrow beam may lose what greedy finds; no search but this one promises it.)
    sentences = range(50)
    model = random_model(47, num_sentences=50, num_tokens=3, vocab_size=13)
    greedy = search(model, sentences, [4] * 50, beam_size=1)
    wide = search(model, sentences, [4] * 50, beam_size=12)
    ended = greedy.is_finished[:, 0]
    assert ended.sum() > 10
    assert np.all(wide.is_finished[ended, 0])
    gain = wide.scores[ended, 0] - greedy.scores[ended, 0]
    assert np.all(gain > -1e-6)
    assert np.any(gain > 0.1)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_coverage_penalty_prefers_what_attended_to_everything(beta):
    #        0.6       0.5
    #  start ---> 1 -------> 3 ---> end     0.30
    #        \          \--> 4 ---> end     0.30: the only one to cover all
    #    0.4  \--> 2 ------> 5 ---> end     0.40: first, so the slots change places
    start_token, end = 0, 6
    chain = np.zeros((7, 7))
    chain[start_token, [1, 2]] = 0.6, 0.4
    chain[1, [3, 4]] = 0.5
    chain[2, 5] = 1.0
    chain[[3, 4, 5, end], end] = 1.0
    attention = np.array(  # of the feeding of each token, to three source tokens
        [
            [0.4, 0.3, 0.3],
            [0.6, 0.2, 0.2],
            [0.2, 0.7, 0.1],
            [0.1, 0.1, 0.8],
            [0.0, 0.5, 0.5],
            [0.8, 0.1, 0.1],
            [0.0, 0.0, 0.0],
        ]
    )
    next_logits = chain_step(chain)

    def step(tokens, positions, ancestors, cache):
        logits, _ = next_logits(tokens, positions, ancestors, {})
        return logits, {"attention": jnp.asarray(attention, jnp.float32)[tokens]}

    found = on_host(
        beam_search(
            step,
            {"attention": jnp.zeros((2, 3, 3))},
            make_search(
                beam_size=3, num_hypotheses=3, end_id=end, coverage_penalty=beta
            ),
            max_lengths=jnp.array([5, 2]),  # the second is done one step earlier
            max_length=5,
            attention=lambda cache: cache["attention"],
        )
    )
    bodies = [((1, 3), 0.3), ((1, 4), 0.3), ((2, 5), 0.4)]
    for sentence, last in enumerate([(end,), ()]):
        expected = {}
        for body, probability in bodies:
            tokens = (*body, *last)
            total = attention[[start_token, *tokens[:-1]]].sum(axis=0)
            covered = np.log(np.minimum(total, 1.0)).sum()
            score = np.log(probability) / penalty(len(tokens), 0.6) + beta * covered
            expected[tokens] = score
        scores = {
            tokens_of(found, sentence, rank): found.scores[sentence, rank]
            for rank in range(3)
        }
        assert scores.keys() == expected.keys()
        for tokens, score in expected.items():
            np.testing.assert_allclose(scores[tokens], score, rtol=1e-5)
    assert tokens_of(found, 0, 0) == ((1, 4, end) if beta else (2, 5, end))


@pytest.mark.parametrize("sampling", [False, True])
def test_a_refilled_slot_finds_what_its_sentence_finds_alone(sampling):
    num_slots, beam_size, max_length = 3, 3, 9
    limits = np.array([9, 2, 7, 5, 9, 1, 8, 9, 3, 6])
    num_sentences = len(limits)
    model = random_model(53, num_sentences=num_sentences, num_tokens=5)
    options = make_search(beam_size=beam_size, num_hypotheses=2, sampling=sampling)
    seeds = np.arange(2 * num_sentences, dtype=np.uint32).reshape(-1, 2)

    def begin(sentences: Sequence[int], row_limits: Sequence[int]):
        rows = np.array(sentences)
        request = Request(
            jnp.asarray(row_limits),
            jnp.zeros(len(rows), jnp.int32),
            jnp.full((len(rows), 0), -1),
            jnp.asarray(seeds[rows]),
        )
        return start(options, request, max_length=max_length)

    @jax.jit
    def run(state: SearchState, num_done):
        state = advance(model.step, state, options, num_done=num_done)
        return state, is_done(options, state), conclude(options, state)

    cache = start_cache([0] * num_slots, beam_size=beam_size, max_length=max_length)
    state = SearchState(begin([0] * num_slots, [0] * num_slots), cache)
    waiting, in_slot = list(range(num_sentences)), [-1] * num_slots
    results: dict[int, Found] = {}
    neighbours = set()
    while waiting or max(in_slot) >= 0:
        for slot in range(num_slots):
            if in_slot[slot] < 0 and waiting:
                sentence = in_slot[slot] = waiting.pop(0)
                new = begin([sentence], [limits[sentence]])
                sentences = jax.tree.map(
                    lambda old, x, slot=slot: old.at[slot].set(x[0]),
                    state.sentences,
                    new,
                )
                rows = state.cache["sentence"].at[slot].set(sentence)
                state = SearchState(sentences, {**state.cache, "sentence": rows})
        neighbours.add(tuple(np.asarray(state.sentences.length).tolist()))
        state, done, found = run(state, jnp.int32(in_slot.count(-1) + 1))
        for slot in np.flatnonzero(done):
            if in_slot[slot] >= 0:
                row = jax.tree.map(lambda x, slot=slot: x[slot : slot + 1], found)
                results[in_slot[slot]] = on_host(row)
                in_slot[slot] = -1
    assert any(len(set(lengths)) == num_slots for lengths in neighbours)

    @jax.jit
    def run_alone(sentence, limit):
        cache = {
            **start_cache([0], beam_size=beam_size, max_length=max_length),
            "sentence": sentence[None],
        }
        alone = begin([0], [0])
        request = alone.request._replace(
            max_lengths=limit[None], seeds=jnp.asarray(seeds)[sentence][None]
        )
        return beam_search(
            model.step,
            cache,
            options,
            max_lengths=request.max_lengths,
            max_length=max_length,
            seeds=request.seeds if sampling else None,
        )

    for sentence in range(num_sentences):
        alone = on_host(run_alone(jnp.int32(sentence), jnp.int32(limits[sentence])))
        assert_same(results[sentence], alone, rtol=1e-6)
        for rank in range(2):  # and has seen its own tokens, not the slot's last ones
            if alone.lengths[0, rank]:
                tokens = tokens_of(alone, 0, rank)
                np.testing.assert_allclose(
                    results[sentence].log_probs[0, rank],
                    model.log_prob(sentence, tokens),
                    rtol=1e-5,
                )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size is 0, expected at least 1"),
        ({"beam_size": 6}, "beam_size is 6, expected at most 5"),
        ({"end_id": 5}, "end_id is 5, expected 0 to 4"),
        ({"max_length": 0}, "max_length is 0, expected at least 1"),
        ({"num_hypotheses": 4}, "num_hypotheses is 4, expected 1 to beam_size = 3"),
        ({"num_hypotheses": 0}, "num_hypotheses is 0, expected 1 to beam_size = 3"),
        ({"length_penalty": -0.1}, "length_penalty is -0.1, expected a finite"),
        ({"length_penalty": float("nan")}, "length_penalty is nan, expected a finite"),
        ({"coverage_penalty": 0.2}, "coverage_penalty needs attention"),
        ({"coverage_penalty": -0.1}, "coverage_penalty is -0.1, expected a finite"),
    ],
)
def test_an_argument_out_of_range_is_refused(options, message):
    values = {"start_id": 0, "end_id": 4, "beam_size": 3, "max_length": 7, **options}
    max_length = values.pop("max_length")
    with pytest.raises(ValueError, match=message):
        beam_search(
            chain_step(np.full((5, 5), 0.2)),
            {},
            make_search(**values),
            max_lengths=jnp.array([2, 3]),
            max_length=max_length,
        )
