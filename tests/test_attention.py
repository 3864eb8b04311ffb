"""Masks and attention against loops and a softmax in numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.attention import (
    MultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention,
    segment_mask,
)

BATCH, QUERY, KEY, HEADS, D_K, D_V, D_MODEL = 2, 5, 7, 3, 11, 13, 17


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def numpy_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One sentence and one head: [query, d_k], [key, d_k], [key, d_v], [query, key]."""
    scores = query.astype(np.float64) @ key.T / np.sqrt(query.shape[-1])
    exponentials = np.where(mask, np.exp(scores), 0.0)
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights @ value, weights


def random_mask() -> np.ndarray:
    """Each query may attend to key 0 at least."""
    mask = np.random.default_rng(3).random((BATCH, 1, QUERY, KEY)) < 0.5
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("is_masked", [False, True])
def test_attention_is_the_softmax_of_scaled_products(is_masked):
    query = normal(0, BATCH, QUERY, HEADS, D_K)
    key, value = normal(1, BATCH, KEY, HEADS, D_K), normal(2, BATCH, KEY, HEADS, D_V)
    mask = random_mask() if is_masked else np.ones((BATCH, 1, QUERY, KEY), bool)
    output, weights = scaled_dot_product_attention(
        jnp.asarray(query),
        jnp.asarray(key),
        jnp.asarray(value),
        jnp.asarray(mask) if is_masked else None,
    )
    assert output.shape == (BATCH, QUERY, HEADS, D_V)
    assert weights.shape == (BATCH, HEADS, QUERY, KEY)
    for b in range(BATCH):
        for h in range(HEADS):
            expected, expected_weights = numpy_attention(
                query[b, :, h], key[b, :, h], value[b, :, h], mask[b, 0]
            )
            np.testing.assert_allclose(weights[b, h], expected_weights, atol=1e-5)
            np.testing.assert_allclose(output[b, :, h], expected, atol=1e-5)


def test_a_query_that_may_attend_nowhere_gets_the_plain_average():
    query, key = normal(0, 1, QUERY, HEADS, D_K), normal(1, 1, KEY, HEADS, D_K)
    value = normal(2, 1, KEY, HEADS, D_V)
    mask = np.ones((1, 1, QUERY, KEY), bool)
    mask[0, 0, 2] = False

    def total(query: jax.Array) -> jax.Array:
        return scaled_dot_product_attention(
            query, jnp.asarray(key), jnp.asarray(value), jnp.asarray(mask)
        )[0].sum()

    output, _ = scaled_dot_product_attention(
        jnp.asarray(query), jnp.asarray(key), jnp.asarray(value), jnp.asarray(mask)
    )
    np.testing.assert_allclose(output[0, 2], value[0].mean(axis=0), atol=1e-5)
    assert np.isfinite(jax.grad(total)(jnp.asarray(query))).all()


def test_weights_and_values_stay_finite_for_huge_scores():
    query = jnp.full((1, QUERY, HEADS, D_K), 1e4)
    key = jnp.asarray(1e4 * normal(1, 1, KEY, HEADS, D_K))
    value = jnp.asarray(normal(2, 1, KEY, HEADS, D_V))
    output, weights = scaled_dot_product_attention(query, key, value)
    assert np.isfinite(output).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)


def test_weights_are_returned_before_dropout_and_values_after_it():
    query = jnp.asarray(normal(0, BATCH, QUERY, HEADS, D_K))
    key = jnp.asarray(normal(1, BATCH, KEY, HEADS, D_K))
    value = jnp.ones((BATCH, KEY, HEADS, D_V))
    output, weights = scaled_dot_product_attention(
        query, key, value, dropout_rate=0.5, rng=jax.random.key(0)
    )
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    assert np.abs(np.asarray(output) - 1.0).max() > 0.1


def test_segment_mask_is_true_within_a_segment_only():
    queries = np.array([[1, 1, 2, 0, 0], [1, 2, 2, 3, 0]])
    keys = np.array([[1, 2, 2, 2, 0, 0, 0], [1, 1, 2, 3, 3, 3, 0]])
    mask = segment_mask(jnp.asarray(queries), jnp.asarray(keys))
    assert mask.shape == (BATCH, 1, QUERY, KEY)
    for b in range(BATCH):
        for q in range(QUERY):
            for k in range(KEY):
                assert mask[b, 0, q, k] == (queries[b, q] == keys[b, k])


def test_causal_mask_is_true_up_to_the_query():
    mask = causal_mask(5)
    assert mask.shape == (1, 1, 5, 5)
    for q in range(5):
        assert mask[0, 0, q].tolist() == [k <= q for k in range(5)]


def multi_head(**changes: Any) -> Any:
    return MultiHeadAttention(
        num_heads=HEADS, d_model=D_MODEL, d_k=D_K, d_v=D_V, **changes
    )


def test_multi_head_attention_is_a_loop_over_heads():
    x, context = normal(4, BATCH, QUERY, D_MODEL), normal(5, BATCH, KEY, D_MODEL)
    mask = random_mask()
    arguments = jnp.asarray(x), jnp.asarray(context), jnp.asarray(mask)
    variables = multi_head().init(jax.random.key(0), *arguments)
    params = jax.tree.map(np.asarray, variables["params"])
    assert {name: leaf.shape for name, leaf in params.items()} == {
        "w_query": (D_MODEL, HEADS, D_K),
        "w_key": (D_MODEL, HEADS, D_K),
        "w_value": (D_MODEL, HEADS, D_V),
        "w_output": (HEADS, D_V, D_MODEL),
    }
    expected = np.zeros((BATCH, QUERY, D_MODEL))
    for b in range(BATCH):
        for h in range(HEADS):
            head, _ = numpy_attention(
                x[b] @ params["w_query"][:, h],
                context[b] @ params["w_key"][:, h],
                context[b] @ params["w_value"][:, h],
                mask[b, 0],
            )
            expected[b] += head @ params["w_output"][h]
    output = multi_head().apply(variables, *arguments)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_weight_matrices_begin_xavier_uniform():
    # Bounds sqrt(6 / (fan_in + fan_out)) of the matrices with all heads side by side.
    x = jnp.zeros((1, 2, D_MODEL))
    params = multi_head().init(jax.random.key(0), x, x)["params"]
    widths = {"w_query": D_K, "w_key": D_K, "w_value": D_V, "w_output": D_V}
    for name, width in widths.items():
        bound = np.sqrt(6 / (D_MODEL + HEADS * width))
        largest = np.abs(np.asarray(params[name])).max()
        assert 0.97 * bound < largest <= bound


def test_attention_weights_are_returned_only_when_asked_for():
    x = jnp.asarray(normal(4, BATCH, QUERY, D_MODEL))
    context = jnp.asarray(normal(5, BATCH, KEY, D_MODEL))
    variables = multi_head().init(jax.random.key(0), x, context)
    assert set(variables) == {"params"}
    plain = multi_head().apply(variables, x, context)
    assert isinstance(plain, jax.Array)
    output, kept = multi_head().apply(variables, x, context, mutable=["intermediates"])
    (weights,) = kept["intermediates"]["attention_weights"]
    assert weights.shape == (BATCH, HEADS, QUERY, KEY)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(output, plain, atol=1e-5)


def test_attention_dropout_acts_in_training_only():
    module = multi_head(dropout_rate=0.5)
    x = jnp.asarray(normal(4, BATCH, QUERY, D_MODEL))
    variables = module.init(jax.random.key(0), x, x)
    plain = multi_head().apply(variables, x, x)
    np.testing.assert_array_equal(module.apply(variables, x, x), plain)
    rngs = {"dropout": jax.random.key(1)}
    dropped = module.apply(variables, x, x, dropout_rows=jnp.arange(BATCH), rngs=rngs)
    assert np.abs(np.asarray(dropped) - np.asarray(plain)).max() > 1e-3
