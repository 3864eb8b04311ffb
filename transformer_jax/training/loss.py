"""Label-smoothed cross-entropy of a linear output layer (Section 5.4).

Axes: s shards, b rows of a shard, c chunk of target positions, m d_model, w vocab.
"""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.precision import FLOAT32, Precision


class Chunking(NamedTuple):
    """How much of the logits exists at once."""

    # Devices that share the batch axis. Each adds up the output matrix's gradient of
    # its own rows over all chunks; the sum over devices is taken once, at the end.
    num_shards: int = 1
    # Of a shard: few enough to stay in a CPU's cache. On an accelerator, enough to keep
    # its matrix units busy.
    positions: int = 512


ONE_CPU = Chunking()


class LossSums(NamedTuple):
    """Sums over the real target tokens of a batch."""

    loss: Array  # float32 [], label-smoothed cross-entropy in nats
    negative_log_likelihood: Array  # float32 [], unsmoothed, for the perplexity
    num_tokens: Array  # float32 []


def smoothed_cross_entropy(
    hidden: Float[Array, "batch target d_model"],
    output_matrix: Float[Array, "vocab d_model"],
    targets: Int[Array, "batch target"],
    is_real: Bool[Array, "batch target"],
    *,
    label_smoothing: float = 0.1,
    precision: Precision = FLOAT32,
    chunking: Chunking = ONE_CPU,
) -> LossSums:
    r"""Sums of the losses of softmax(hidden · output_matrix^T) at real positions.

    With logits z, gold token y, epsilon = `label_smoothing` and V = vocab, a position
    costs -sum_w q(w) log softmax(z)(w), where q(y) = 1 - epsilon and q(w) =
    epsilon / (V - 1) for each other token (Szegedy et al. 2015 spread epsilon over all
    V; this is the form of the authors' tensor2tensor, without the constant that it
    subtracts). Since q sums to one:

        loss = logsumexp(z) - (1 - epsilon - u) z_y - u sum_w z_w,  u = epsilon/(V-1)

    The gradient by z is softmax(z) - q, known as soon as z is. So the forward pass
    computes the gradients by `hidden` and `output_matrix` while it has a chunk's
    logits, and the backward pass only scales them: logits are computed once and never
    stored whole. Chunks are cut along the target axis, which leaves the batch axis
    sharded as it is.

    Args:
      hidden: the decoder's output.
      output_matrix: the pre-softmax projection.
      targets: gold token ids.
      is_real: False = padding, which costs nothing.
      label_smoothing: epsilon.
      precision: number formats of the products; all else is float32.
      chunking: logits held at once.

    Returns:
      The three sums. Only `loss` has a gradient.
    """
    num_shards = chunking.num_shards
    rows, length = targets.shape[0] // num_shards, targets.shape[1]
    num_chunks = _num_chunks(rows, length, chunking.positions)

    def chunked(x: Array) -> Array:
        # [batch, target, …] -> [chunks, shards, batch / shards, target / chunks, …]
        shape = num_shards, rows, num_chunks, length // num_chunks, *x.shape[2:]
        return jnp.moveaxis(x.reshape(shape), 2, 0)

    loss, negative_log_likelihood = cast(Any, _sums)(
        label_smoothing,
        precision,
        chunked(hidden),
        output_matrix,
        chunked(targets),
        chunked(is_real.astype(jnp.float32)),
    )
    return LossSums(loss, negative_log_likelihood, jnp.sum(is_real, dtype=jnp.float32))


def _num_chunks(rows: int, length: int, positions_per_chunk: int) -> int:
    """The fewest equal parts of the target axis that are small enough."""
    for num_chunks in range(1, length + 1):
        if length % num_chunks == 0:
            if rows * length // num_chunks <= positions_per_chunk:
                return num_chunks
    return length


def _chunk_sums(
    label_smoothing: float,
    precision: Precision,
    hidden: Float[Array, "shards rows chunk d_model"],
    matrix: Float[Array, "vocab d_model"],
    targets: Int[Array, "shards rows chunk"],
    weights: Float[Array, "shards rows chunk"],
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, "shards rows chunk vocab"]]:
    """The two sums of a chunk, and the gradient of the first by its logits."""
    logits = precision.einsum("sbcm,wm->sbcw", hidden, matrix).astype(jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    gold = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    uniform = label_smoothing / (logits.shape[-1] - 1)
    gold_excess = 1.0 - label_smoothing - uniform
    loss = log_normalizer - gold_excess * gold - uniform * jnp.sum(logits, axis=-1)

    is_gold = jnp.arange(logits.shape[-1])[None, None, None] == targets[..., None]
    smoothed = jnp.where(is_gold, 1.0 - label_smoothing, uniform)
    gradient = jnp.exp(logits - log_normalizer[..., None]) - smoothed
    return (
        jnp.sum(weights * loss),
        jnp.sum(weights * (log_normalizer - gold)),
        weights[..., None] * gradient,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sums(
    label_smoothing: float,
    precision: Precision,
    hidden: Float[Array, "chunks shards rows chunk d_model"],
    matrix: Float[Array, "vocab d_model"],
    targets: Int[Array, "chunks shards rows chunk"],
    weights: Float[Array, "chunks shards rows chunk"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    def one_chunk(x: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        hidden, targets, weights = x
        sums = _chunk_sums(label_smoothing, precision, hidden, matrix, targets, weights)
        return sums[:2]

    losses, likelihoods = jax.lax.map(one_chunk, (hidden, targets, weights))
    return jnp.sum(losses), jnp.sum(likelihoods)


def _forward(
    label_smoothing: float,
    precision: Precision,
    hidden: Float[Array, "chunks shards rows chunk d_model"],
    matrix: Float[Array, "vocab d_model"],
    targets: Int[Array, "chunks shards rows chunk"],
    weights: Float[Array, "chunks shards rows chunk"],
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    def one_chunk(
        matrix_gradient: Array, x: tuple[Array, Array, Array]
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        hidden, targets, weights = x
        loss, likelihood, gradient = _chunk_sums(
            label_smoothing, precision, hidden, matrix, targets, weights
        )
        hidden_gradient = precision.einsum("sbcw,wm->sbcm", gradient, matrix)
        # Transposed, so that the smaller operand is the one laid out anew.
        part = precision.einsum("sbcm,sbcw->smw", hidden, gradient)
        matrix_gradient = matrix_gradient + part.astype(jnp.float32)
        return matrix_gradient, (loss, likelihood, hidden_gradient)

    matrix_gradient, (losses, likelihoods, hidden_gradient) = jax.lax.scan(
        one_chunk,
        jnp.zeros((hidden.shape[1], *matrix.shape[::-1]), jnp.float32),
        (hidden, targets, weights),
    )
    sums = jnp.sum(losses), jnp.sum(likelihoods)
    return sums, (hidden_gradient, jnp.sum(matrix_gradient, axis=0), weights)


def _backward(
    label_smoothing: float,
    precision: Precision,
    saved: tuple[Array, Array, Array],
    gradients: tuple[Array, Array],
) -> tuple[Array, Array, None, Array]:
    hidden_gradient, matrix_gradient, weights = saved
    by_loss, _ = gradients
    # Without the barrier XLA folds the transposition into the product of a lone chunk,
    # in a form that its CPU backend does not have for bfloat16.
    matrix_gradient = jax.lax.optimization_barrier(matrix_gradient)
    return (
        (by_loss * hidden_gradient).astype(hidden_gradient.dtype),
        by_loss * matrix_gradient.T,
        None,
        jnp.zeros_like(weights),
    )


_sums.defvjp(_forward, _backward)
