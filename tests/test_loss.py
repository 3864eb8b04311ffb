"""The fused loss against a sum over the whole smoothed distribution."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.precision import Precision
from transformer_jax.training.loss import Chunking, smoothed_cross_entropy

# A target of 12 is not prime, so that it can be cut into 1, 2, 3, 4, 6 or 12 chunks.
BATCH, TARGET, D_MODEL, VOCAB = 3, 12, 5, 17
SHARDS_AND_POSITIONS = [(1, 1), (1, 6), (1, 9), (1, 18), (1, 512), (3, 6), (3, 512)]


def example():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(BATCH, TARGET, D_MODEL)).astype(np.float32)
    matrix = rng.normal(size=(VOCAB, D_MODEL)).astype(np.float32)
    targets = rng.integers(VOCAB, size=(BATCH, TARGET)).astype(np.int32)
    is_real = np.arange(TARGET) < np.array([[12], [7], [1]])
    return hidden, matrix, targets, is_real


def numpy_sums(hidden, matrix, targets, is_real, epsilon) -> tuple[float, float]:
    loss = likelihood = 0.0
    for b, t in zip(*np.nonzero(is_real), strict=True):
        scores = [math.exp(np.dot(hidden[b, t].astype(float), row)) for row in matrix]
        log_probs = [math.log(score / sum(scores)) for score in scores]
        for token, log_prob in enumerate(log_probs):
            is_gold = token == targets[b, t]
            loss -= log_prob * (1 - epsilon if is_gold else epsilon / (VOCAB - 1))
        likelihood -= log_probs[targets[b, t]]
    return loss, likelihood


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize(("num_shards", "positions"), SHARDS_AND_POSITIONS)
def test_loss_is_the_cross_entropy_to_the_smoothed_distribution(
    epsilon, num_shards, positions
):
    arrays = example()
    loss, likelihood = numpy_sums(*arrays, epsilon)
    sums = smoothed_cross_entropy(
        *map(jnp.asarray, arrays),
        label_smoothing=epsilon,
        chunking=Chunking(num_shards, positions),
    )
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(sums.negative_log_likelihood, likelihood, rtol=1e-5)
    assert sums.num_tokens == 20


def test_a_two_word_loss_is_the_one_by_hand():
    # Logits (log 3, 0), so probabilities (3/4, 1/4); gold 0 with 0.9, the other 0.1.
    sums = smoothed_cross_entropy(
        jnp.ones((1, 1, 1)),
        jnp.array([[math.log(3.0)], [0.0]]),
        jnp.zeros((1, 1), jnp.int32),
        jnp.ones((1, 1), bool),
        label_smoothing=0.1,
    )
    by_hand = -0.9 * math.log(0.75) - 0.1 * math.log(0.25)
    np.testing.assert_allclose(sums.loss, by_hand, rtol=1e-5)
    np.testing.assert_allclose(sums.negative_log_likelihood, math.log(4 / 3), rtol=1e-5)


def plain_loss(hidden, matrix, targets, is_real) -> jax.Array:
    """Three times the loss at epsilon 0.1, as jax differentiates it."""
    log_probs = jax.nn.log_softmax(jnp.einsum("btm,wm->btw", hidden, matrix))
    gold = jax.nn.one_hot(targets, VOCAB)
    smoothed = 0.9 * gold + 0.1 / (VOCAB - 1) * (1 - gold)
    return -3.0 * jnp.sum(smoothed * log_probs * is_real[..., None])


@pytest.mark.parametrize(("num_shards", "positions"), SHARDS_AND_POSITIONS)
def test_gradient_is_that_of_a_plain_implementation(num_shards, positions):
    hidden, matrix, targets, is_real = map(jnp.asarray, example())

    def fused_loss(hidden, matrix):
        return 3.0 * (
            smoothed_cross_entropy(
                hidden,
                matrix,
                targets,
                is_real,
                label_smoothing=0.1,
                chunking=Chunking(num_shards, positions),
            ).loss
        )

    actual = jax.grad(fused_loss, argnums=(0, 1))(hidden, matrix)
    expected = jax.grad(plain_loss, argnums=(0, 1))(hidden, matrix, targets, is_real)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert not np.any(np.asarray(actual[0])[~np.asarray(is_real)])


def test_padding_alone_costs_nothing():
    hidden, matrix, targets, is_real = map(jnp.asarray, example())
    nothing = jnp.zeros_like(is_real)
    sums = smoothed_cross_entropy(hidden, matrix, targets, nothing)
    assert sums.loss == sums.negative_log_likelihood == sums.num_tokens == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_products_change_loss_and_gradient_by_the_rounding_only(dtype):
    hidden, matrix, targets, is_real = map(jnp.asarray, example())
    precision = Precision(dtype, "bfloat16")

    def fused_loss(hidden, matrix):
        return 3.0 * (
            smoothed_cross_entropy(
                hidden.astype(dtype), matrix, targets, is_real, precision=precision
            ).loss
        )

    arguments = hidden, matrix, targets, is_real
    np.testing.assert_allclose(
        fused_loss(hidden, matrix), plain_loss(*arguments), rtol=2**-7
    )
    # Compiled, as XLA's CPU backend lacks some forms of bfloat16 products.
    actual = jax.jit(jax.grad(fused_loss, argnums=(0, 1)))(hidden, matrix)
    expected = jax.grad(plain_loss, argnums=(0, 1))(*arguments)
    for one, other in zip(actual, expected, strict=True):
        error = np.linalg.norm(np.asarray(one) - np.asarray(other))
        assert error < 2**-6 * np.linalg.norm(np.asarray(other))
