"""Tests of resampling, against textbook formulas and all exchanges counted out."""

import itertools

import numpy as np
import pytest

from transformer_jax.significance import (
    NUM_RESAMPLES,
    NUM_SHUFFLES,
    bootstrap_sums,
    confidence_interval,
    p_value,
    shuffled_sums,
)


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(3).normal(5, 2, size=997)
    sums = bootstrap_sums(values[:, None])
    assert sums.shape == (NUM_RESAMPLES, 1)
    low, high = confidence_interval(sums[:, 0] / 997)
    error = 1.96 * values.std() / np.sqrt(997)
    # Of 1000 resamples, the ends of the interval are known to some 5%.
    assert low == pytest.approx(values.mean() - error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + error, abs=0.1 * error)


def test_a_resample_has_as_many_sentences_and_the_same_for_each_column():
    values = np.random.default_rng(5).integers(0, 11, size=17).astype(float)
    columns = np.stack([np.ones(17), values, 3 * values], axis=1)
    number, once, thrice = bootstrap_sums(columns).T
    assert np.all(number == 17)
    assert np.all(thrice == 3 * once)
    assert len(np.unique(once)) > 10


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_the_p_value_is_the_share_of_all_exchanges(seed):
    generator = np.random.default_rng(seed)
    first = generator.normal(0, 1, size=(11, 1))
    second = generator.normal(0.5, 1, size=(11, 1))
    real = float((second - first).sum())
    exact = np.mean(
        [
            abs(np.dot(signs, (second - first)[:, 0])) >= abs(real) - 1e-9
            for signs in itertools.product([-1, 1], repeat=11)
        ]
    )
    shuffled = [(b - a)[:, 0] for a, b in shuffled_sums(first, second)]
    found = p_value(np.concatenate(shuffled), real)
    assert sum(map(len, shuffled)) == NUM_SHUFFLES
    deviation = np.sqrt(exact * (1 - exact) / NUM_SHUFFLES)
    assert 0.01 < exact < 0.99
    assert found == pytest.approx(exact, abs=4 * deviation)


def test_shuffling_moves_sentences_and_loses_none():
    first = np.arange(13.0)[:, None] ** 2
    second = np.full((13, 1), 1000.0)
    for heap, rest in shuffled_sums(first, second):
        assert np.all(heap + rest == first.sum() + second.sum())
        # Each heap has one sentence of each pair.
        assert np.all(heap <= 13_000)
        assert np.all(heap >= first.sum())
