"""Dropout, feed-forward, norm, residual and positions against their formulas."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.layers import (
    Dropout,
    FeedForward,
    LayerNorm,
    Residual,
    dropout,
    positions_in_segments,
    sinusoidal_positions,
)

BATCH, LENGTH, D_MODEL, D_FF = 2, 3, 7, 11


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def drop(x, rate: float, key):
    return dropout(x, rate, key, jnp.arange(len(x)))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_dropout_zeroes_its_rate_and_scales_what_is_left(rate):
    x = jnp.asarray(1.0 + np.abs(normal(0, 211, 503)))
    dropped = np.asarray(drop(x, rate, jax.random.key(0)))
    is_zero = dropped == 0.0
    # Five standard deviations of a share of so many elements.
    assert abs(is_zero.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / x.size)
    kept = np.asarray(x)[~is_zero] / (1 - rate)
    np.testing.assert_allclose(dropped[~is_zero], kept, rtol=1e-6)


def test_dropout_of_two_elements_or_two_keys_is_independent():
    ones = jnp.ones((409, 61))
    is_zero = np.asarray(drop(ones, 0.5, jax.random.key(0))) == 0.0
    other_key = np.asarray(drop(ones, 0.5, jax.random.key(1))) == 0.0
    bound = 5 * math.sqrt(0.25 * 0.75 / is_zero.size)
    assert abs((is_zero & other_key).mean() - 0.25) < bound
    # 16 columns apart = the four 16-bit numbers of one counter.
    for shift in (1, 2, 15, 16, 17, 32, 48):
        both = is_zero & np.roll(is_zero, shift, axis=1)
        assert abs(both.mean() - 0.25) < bound, shift
    both = is_zero & np.roll(is_zero, 1, axis=0)
    assert abs(both.mean() - 0.25) < bound


def test_dropout_is_a_function_of_its_key():
    x = jnp.asarray(normal(0, 5, 13))
    first = drop(x, 0.5, jax.random.key(7))
    np.testing.assert_array_equal(first, drop(x, 0.5, jax.random.key(7)))
    jitted = jax.jit(lambda x, key: drop(x, 0.5, key))(x, jax.random.key(7))
    np.testing.assert_array_equal(first == 0, jitted == 0)
    assert (np.asarray(first) != np.asarray(drop(x, 0.5, jax.random.key(8)))).any()


def test_dropout_of_a_row_is_a_function_of_its_number_alone():
    x = jnp.asarray(normal(0, 11, 3, 13))
    whole = drop(x, 0.5, jax.random.key(7))
    for rows in ([3, 4, 5], [10], [7, 0, 2]):
        part = dropout(x[jnp.array(rows)], 0.5, jax.random.key(7), jnp.array(rows))
        np.testing.assert_array_equal(part, whole[jnp.array(rows)])


def test_dropout_without_a_rate_or_rows_is_the_identity():
    x = jnp.asarray(normal(0, 5, 13))
    assert drop(x, 0.0, jax.random.key(0)) is x
    assert Dropout(0.5).apply({}, x, None) is x
    assert Dropout(0.0).apply({}, x, jnp.arange(5)) is x


def test_dropout_keeps_the_number_format_and_passes_the_gradient_of_what_it_kept():
    x = jnp.asarray(normal(0, 5, 13))
    assert drop(x.astype(jnp.bfloat16), 0.5, jax.random.key(0)).dtype == jnp.bfloat16
    gradient = jax.grad(lambda x: drop(x, 0.2, jax.random.key(0)).sum())(x)
    expected = np.where(drop(x, 0.2, jax.random.key(0)) == 0, 0.0, 1.25)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_feed_forward_is_two_linear_maps_with_a_relu_between():
    x = normal(0, BATCH, LENGTH, D_MODEL)
    module: Any = FeedForward(D_MODEL, D_FF)
    shapes = module.init(jax.random.key(0), jnp.asarray(x))["params"]
    assert not np.any(shapes["b1"])
    assert not np.any(shapes["b2"])
    params = {name: normal(i, *shapes[name].shape) for i, name in enumerate(shapes)}
    assert params["w1"].shape == (D_MODEL, D_FF)
    output = module.apply({"params": jax.tree.map(jnp.asarray, params)}, jnp.asarray(x))
    hidden = np.maximum(0, x @ params["w1"] + params["b1"])
    expected = hidden @ params["w2"] + params["b2"]
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


def numpy_norm(x: np.ndarray, gain: np.ndarray, bias: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    return gain * centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6) + bias


def test_layer_norm_has_zero_mean_and_unit_variance_before_gain_and_bias():
    x = 5.0 + 3.0 * normal(0, BATCH, LENGTH, D_MODEL)
    gain, bias = normal(1, D_MODEL), normal(2, D_MODEL)
    module: Any = LayerNorm()
    initial = module.init(jax.random.key(0), jnp.asarray(x))["params"]
    assert np.all(initial["gain"] == 1)
    assert np.all(initial["bias"] == 0)
    params = {"gain": gain, "bias": bias}
    output = module.apply({"params": params}, jnp.asarray(x))
    np.testing.assert_allclose(output, numpy_norm(x, gain, bias), atol=1e-5)


def test_layer_norm_computes_in_float32():
    x = jnp.asarray(normal(0, BATCH, LENGTH, D_MODEL)).astype(jnp.bfloat16)
    output, _ = LayerNorm().init_with_output(jax.random.key(0), x)
    assert output.dtype == jnp.float32
    expected = numpy_norm(np.asarray(x, np.float32), np.ones(D_MODEL), 0 * np.ones(1))
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_residual_adds_and_normalises_in_the_order_of_its_kind(norm):
    x = normal(0, BATCH, LENGTH, D_MODEL)
    module: Any = Residual(norm, dropout_rate=0.5)
    gain, bias = normal(1, D_MODEL), normal(2, D_MODEL)
    variables = {"params": {"layer_norm": {"gain": gain, "bias": bias}}}
    output = module.apply(variables, jnp.asarray(x), lambda x: 3.0 * x, None)
    if norm == "post":
        expected = numpy_norm(x + 3.0 * x, gain, bias)
    else:
        expected = x + 3.0 * numpy_norm(x, gain, bias)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_residual_drops_the_sublayer_and_never_the_input():
    x = jnp.ones((BATCH, LENGTH, D_MODEL))
    module: Any = Residual("pre", 0.5)
    variables = module.init(jax.random.key(0), x, lambda x: x, None)
    output = module.apply(
        variables,
        x,
        lambda x: jnp.full_like(x, 3.0),
        jnp.arange(BATCH),
        rngs={"dropout": jax.random.key(0)},
    )
    assert set(np.unique(output)) == {1.0, 7.0}


def test_positions_are_interleaved_sines_and_cosines():
    table = sinusoidal_positions(101, 14)
    assert table.shape == (101, 14)
    assert table.dtype == np.float32
    for position in (0, 1, 2, 53, 100):
        for i in range(7):
            angle = position / 10_000 ** (2 * i / 14)
            assert table[position, 2 * i] == np.float32(math.sin(angle))
            assert table[position, 2 * i + 1] == np.float32(math.cos(angle))


def test_positions_of_tokens_begin_anew_with_each_segment():
    segments = jnp.array([[1, 1, 1, 2, 3, 3, 0], [1, 2, 2, 2, 2, 2, 2]])
    expected = [[0, 1, 2, 0, 0, 1, 0], [0, 0, 1, 2, 3, 4, 5]]
    assert positions_in_segments(segments).tolist() == expected
