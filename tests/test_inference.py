"""Searching and scoring over token ids: ensembles, limits, slots and threads."""

import dataclasses
import functools
import itertools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import inference
from transformer_jax.config import DecodingConfig, MeshConfig, TransformerConfig
from transformer_jax.data.tokenizer import (
    END_ID,
    START_ID,
    Vocabularies,
    train_tokenizer,
)
from transformer_jax.errors import UserError
from transformer_jax.inference import Searcher
from transformer_jax.models import Transformer
from transformer_jax.plans import Job, combined
from transformer_jax.sharding import make_mesh, replicated, to_global
from transformer_jax.trained_model import TrainedModel
from transformer_jax.translation import Translator

CONFIG = TransformerConfig(
    vocab_size=24,
    num_layers=1,
    d_model=16,
    d_ff=24,
    num_heads=2,
    share_embeddings=False,
    dtype="float32",
    matmul_dtype="float32",
)
LEARNED = dataclasses.replace(CONFIG, positions="learned", max_length=12)
DEEP = dataclasses.replace(CONFIG, num_layers=2)
OPTIONS = DecodingConfig(beam_size=3, n_best=2, max_extra_length=3, batch_tokens=64)


@functools.cache
def random_params(config: TransformerConfig, seed: int):
    tokens = jnp.ones((1, 1), jnp.int32)
    model = Transformer(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0, 0.5, leaf.shape), jnp.float32),
        shapes,
    )


@functools.cache
def searcher_of(*seeds, config=CONFIG, num_devices=1, **options) -> Searcher:
    mesh = make_mesh(MeshConfig(), jax.devices()[:num_devices])
    return Searcher(
        [Transformer(config) for _ in seeds],
        [to_global(random_params(config, seed), replicated(mesh)) for seed in seeds],
        mesh,
        **options,
    )


def random_jobs(num: int, longest: int = 20) -> list[Job]:
    generator = np.random.default_rng(2)
    lengths = generator.integers(1, longest + 1, num)
    return [Job(generator.integers(4, 24, n).tolist()) for n in lengths]


@pytest.fixture(scope="module")
def alone() -> Searcher:
    return searcher_of(1)


@pytest.fixture(scope="module")
def found(alone):
    return dict(alone.search(random_jobs(40), OPTIONS))


def log_softmax(logits) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("shape", [(24,), (3, 5, 24)])
@pytest.mark.parametrize("num_models", [2, 5])
def test_an_ensemble_averages_probabilities_or_their_logarithms(num_models, shape):
    generator = np.random.default_rng(0)
    logits = [
        generator.normal(0, 5, shape).astype(np.float32) for _ in range(num_models)
    ]
    log_probs = np.stack([log_softmax(x) for x in logits])
    arrays = [jnp.asarray(x) for x in logits]
    mean = np.log(np.exp(log_probs).mean(axis=0))
    np.testing.assert_allclose(
        combined(arrays, "probabilities"), mean, rtol=1e-5, atol=1e-5
    )
    geometric = log_softmax(log_probs.mean(axis=0))
    got = log_softmax(combined(arrays, "log_probabilities"))
    np.testing.assert_allclose(got, geometric, rtol=1e-5, atol=1e-5)
    assert np.abs(mean - geometric).max() > 0.1


@pytest.mark.parametrize("ensemble", ["probabilities", "log_probabilities"])
def test_one_model_is_left_as_it_is_and_shifted_logits_mean_the_same(ensemble):
    one = jnp.asarray(np.random.default_rng(0).normal(0, 5, 24), jnp.float32)
    assert combined([one], ensemble) is one
    two = combined([one, one + 7], ensemble)
    np.testing.assert_allclose(two, log_softmax(one), rtol=1e-5, atol=1e-5)


def test_an_ensemble_of_a_model_with_itself_finds_what_the_model_finds(found):
    jobs = random_jobs(40)[:10]
    for number, twice in searcher_of(1, 1).search(jobs, OPTIONS):
        once = found[number]
        assert twice.tokens == once.tokens
        assert twice.is_finished == once.is_finished
        np.testing.assert_allclose(twice.scores, once.scores, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(twice.log_probs, once.log_probs, rtol=1e-5)


@functools.cache
def full_model(config: TransformerConfig):
    return jax.jit(Transformer(config).apply)


def full_log_probs(seed: int, source, target, config=CONFIG) -> np.ndarray:
    """Log-probabilities [target, vocab] of the full model.

    The target is filled up with what the model, being causal, cannot see.
    """
    filled = [START_ID, *target] + [9] * (11 - len(target))
    ids = [jnp.asarray([side], jnp.int32) for side in ([*source, END_ID], filled)]
    segments = [jnp.ones_like(side) for side in ids]
    params = {"params": random_params(config, seed)}
    logits = full_model(config)(params, *ids, *segments)
    return log_softmax(logits[0, : len(target) + 1])


@pytest.mark.parametrize("ensemble", ["probabilities", "log_probabilities"])
def test_two_models_score_with_the_average_of_both(ensemble):
    searcher = searcher_of(1, 2, ensemble=ensemble)
    pairs = [([5, 6, 7], [8, 9]), ([10, 4, 4], [4, 5, 6, 7, 8]), ([11, 12, 3], [])]
    scored = {i: x for i, x, _ in searcher.score(pairs, OPTIONS)}
    assert scored.keys() == {0, 1, 2}
    for number, (source, target) in enumerate(pairs):
        both = np.stack([full_log_probs(seed, source, target) for seed in (1, 2)])
        if ensemble == "probabilities":
            average = np.log(np.exp(both).mean(axis=0))
        else:
            average = log_softmax(both.mean(axis=0))
        wanted = [*target, END_ID]
        expected = average[np.arange(len(wanted)), wanted]
        np.testing.assert_allclose(scored[number], expected, rtol=1e-4, atol=1e-5)


def test_two_models_search_with_the_average_of_both():
    jobs = [Job([4, 5, 6]), Job([20, 11, 8]), Job([7, 7, 7])]
    for number, two in searcher_of(1, 2).search(jobs, OPTIONS):
        assert len(two.tokens) == 2
        for tokens, log_prob, score, ended in zip(*two, strict=True):
            both = [
                full_log_probs(seed, jobs[number].source, tokens) for seed in (1, 2)
            ]
            average = np.log(np.exp(np.stack(both)).mean(axis=0))
            wanted = [*tokens, END_ID] if ended else tokens
            average = average[: len(wanted)]
            expected = average[np.arange(len(wanted)), wanted].sum()
            assert log_prob == pytest.approx(expected, rel=1e-5, abs=1e-5)
            penalty = ((5 + len(wanted)) / 6) ** 0.6
            assert score == pytest.approx(expected / penalty, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_attention_is_that_of_the_chosen_layer(layer):
    source, target = [5, 6, 7, 8], [9, 10]
    ((_, _, weights),) = searcher_of(3, config=DEEP).score(
        [(source, target)], OPTIONS, attention=(layer, (1,))
    )
    ids = [jnp.asarray([side], jnp.int32) for side in ([*source, 2], [1, *target])]
    _, kept = jax.jit(Transformer(DEEP).apply, static_argnames="mutable")(
        {"params": random_params(DEEP, 3)},
        *ids,
        *[jnp.ones_like(side) for side in ids],
        mutable="intermediates",
    )
    name = f"decoder_{layer % 2}"
    (expected,) = kept["intermediates"][name]["cross_attention"]["attention_weights"]
    assert weights.shape == (3, 5)
    np.testing.assert_allclose(weights, expected[0, 1], rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def models():
    """Trained models with two vocabularies: the second differs in its last piece."""
    text = ["the cat sat on the mat", "a dog and a cat", "the dog sat"]
    params = random_params(CONFIG, 1)
    return [
        TrainedModel(
            config=CONFIG,
            params=jax.device_get(params),
            vocabularies=Vocabularies(source, target),
            decoding=OPTIONS,
            source_language="en",
            target_language="de",
            max_length=max_length,
            steps=(),
        )
        for one in [train_tokenizer(text, vocab_size=300)]
        for two in [train_tokenizer(["zebra", *text], vocab_size=300)]
        for source, target, max_length in [
            (one, one, 32),
            (one, one, 20),
            (two, one, 32),
            (one, two, 32),
        ]
    ]


def test_models_with_different_vocabularies_are_no_ensemble(models):
    first, same, *others = models
    for other in others:
        with pytest.raises(UserError, match="different vocabularies") as caught:
            Translator.of(first, same, other)
        assert "\n" not in str(caught.value)
    ensemble = Translator.of(first, same)
    assert len(ensemble.searcher.models) == 2
    assert ensemble.max_length == 20


@pytest.mark.parametrize(
    ("values", "source", "expected"),
    [
        ({}, 7, 57),
        ({"max_extra_length": 0}, 7, 7),
        ({"max_length_factor": 1.5, "max_extra_length": 2}, 7, 12),
        ({"max_length_factor": 0.0, "max_extra_length": 3}, 7, 3),
        ({"max_length": 20}, 7, 20),
        ({"max_length": 20, "max_extra_length": 3}, 7, 10),
        ({"min_length": 80}, 7, 81),
        ({"min_length": 80, "max_length": 90}, 7, 81),
        ({"min_length": 8, "max_length": 9, "max_extra_length": 0}, 4, 9),
        ({"min_length": 5, "max_length": 20}, 7, 20),
    ],
)
def test_the_limit_of_a_hypothesis_is_as_the_options_say(
    values, source, expected, alone
):
    options = DecodingConfig(**values)
    assert alone.most_tokens(options, source) == expected
    learned = Searcher([*alone.models, Transformer(LEARNED)], [None, None], alone.mesh)
    assert learned.most_tokens(options, source) == min(expected, 12)
    assert alone.most_scored == 1024
    assert learned.most_scored == 12


def test_each_sentence_keeps_to_its_own_limit(found):
    jobs = random_jobs(40)
    assert found.keys() == set(range(40))
    cut_off = 0
    for number, result in found.items():
        limit = len(jobs[number].source) + 1 + 3
        assert len(result.tokens) == 2
        for tokens, ended in zip(result.tokens, result.is_finished, strict=True):
            assert len(tokens) + ended <= limit
            assert ended or len(tokens) == limit
            assert END_ID not in tokens
            cut_off += not ended
    assert 0 < cut_off


@pytest.mark.parametrize("batch_tokens", [1, 512])
def test_the_tokens_found_do_not_depend_on_the_number_of_slots(
    batch_tokens, alone, found
):
    options = dataclasses.replace(OPTIONS, batch_tokens=batch_tokens)
    assert alone.plan(OPTIONS, 32).rows == 2
    assert alone.plan(options, 32).rows == max(batch_tokens // 32, 1)
    others = dict(alone.search(random_jobs(40), options))
    assert others.keys() == found.keys()
    for number, other in others.items():
        assert other.tokens == found[number].tokens
        assert other.is_finished == found[number].is_finished


def test_a_slot_is_refilled_while_its_neighbour_goes_on(alone, monkeypatch, found):
    slots: list[tuple[tuple[int, ...], bool]] = []
    advance = inference._Run._advance

    def spied(run):
        slots.append((tuple(run._in_slot), bool(run._queue or run._waiting)))
        return advance(run)

    monkeypatch.setattr(inference._Run, "_advance", spied)
    again = dict(alone.search(random_jobs(40), OPTIONS))
    assert again == found
    # No slot is free while a sentence waits, and none is advanced for nothing.
    for in_slot, is_waiting in slots:
        assert len(in_slot) == 2
        assert sum(number >= 0 for number in in_slot) >= (2 if is_waiting else 1)
    assert 20 <= len(slots) <= 40
    assert {number for in_slot, _ in slots for number in in_slot} >= set(range(40))
    stayed = [
        len({*one} & {*two} - {-1}) == 1
        for (one, _), (two, _) in itertools.pairwise(slots)
    ]
    assert sum(stayed) > 5


def test_a_search_yields_every_job_once_and_an_empty_one_nothing(alone):
    assert list(alone.search([], OPTIONS)) == []
    assert list(alone.score([], OPTIONS)) == []
    jobs = random_jobs(5) * 3
    numbers = [number for number, _ in alone.search(jobs, OPTIONS)]
    assert sorted(numbers) == list(range(15))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_an_error_on_a_device_reaches_the_caller(num_devices, monkeypatch):
    def broken(found, row):
        raise ArithmeticError("broken device")

    monkeypatch.setattr(inference, "_of_row", broken)
    searcher = searcher_of(1, num_devices=num_devices)
    with pytest.raises(ArithmeticError, match="broken device"):
        list(searcher.search(random_jobs(6), OPTIONS))


def test_where_one_worker_raises_the_others_stop():
    is_broken, has_stopped = threading.Event(), threading.Event()

    def endless():
        try:
            for number in itertools.count():
                yield number
                if number:
                    is_broken.wait(10)
        finally:
            has_stopped.set()

    def breaking():
        yield "first"
        is_broken.set()
        raise ArithmeticError("broken worker")

    seen = []
    with pytest.raises(ArithmeticError, match="broken worker"):
        seen += inference._merged([endless, breaking])
    assert has_stopped.wait(10)


def test_where_the_caller_stops_the_workers_stop():
    has_stopped = [threading.Event(), threading.Event()]

    def endless(event):
        try:
            yield from itertools.count()
        finally:
            event.set()

    results: Any = inference._merged(
        [lambda event=event: endless(event) for event in has_stopped]
    )
    assert next(results) == 0
    results.close()
    assert all(event.wait(10) for event in has_stopped)


def test_workers_results_all_come(alone):
    workers = [lambda n=n: iter(range(n, n + 50)) for n in (0, 100, 200)]
    expected = [*range(50), *range(100, 150), *range(200, 250)]
    assert sorted(inference._merged(workers)) == expected


def test_a_pair_at_the_models_last_position_is_scored():
    searcher = searcher_of(4, config=LEARNED)
    source, target = list(range(4, 15)), list(range(5, 16))
    ((number, log_probs, weights),) = searcher.score([(source, target)], OPTIONS)
    assert (number, log_probs.shape, weights.shape) == (0, (12,), (12, 0))
    expected = full_log_probs(4, source, target, LEARNED)
    wanted = [*target, END_ID]
    np.testing.assert_allclose(
        log_probs, expected[np.arange(12), wanted], rtol=1e-4, atol=1e-5
    )
