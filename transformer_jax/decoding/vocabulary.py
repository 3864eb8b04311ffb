"""Passes over a whole vocabulary that read each element once."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

_PART = 1 << 17  # elements that `logsumexp` reads at a time: half a megabyte
_SMALL = 1 << 21  # elements that are read at once, since they stay in cache


def top_k(
    x: Float[Array, "rows n"], k: int
) -> tuple[Float[Array, "rows k"], Int[Array, "rows k"]]:
    """As `lax.top_k`: the k largest, falling, and where they stand; ties by index.

    Exact: the k largest lie in the k blocks with the largest maxima. For an element
    elsewhere has one at least as large in each of these, and where it is equal, the
    blocks before win, as in `lax.top_k`. So one pass finds the maxima of the blocks,
    and only k blocks are searched.

    >>> [part.tolist() for part in top_k(jnp.array([[1.0, 3.0, 2.0, 3.0]]), 2)]
    [[[3.0, 3.0]], [[1, 3]]]
    """
    rows, n = x.shape
    # The size of a block that leaves the fewest elements to sort.
    size = min(_divisors(n), key=lambda size: k * size + n // size)
    if 4 * (k * size + n // size) > n or n // size < k:
        largest, where = lax.top_k(x, k)
        return largest, where
    blocks = x.reshape(rows, -1, size)
    _, chosen = lax.top_k(blocks.max(axis=-1), k)
    chosen = jnp.sort(chosen, axis=-1)  # so that candidates stand in order of index
    candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=1, mode="clip")
    largest, where = lax.top_k(candidates.reshape(rows, -1), k)
    first = jnp.take_along_axis(chosen, where // size, axis=-1, mode="clip")
    return largest, first * size + where % size


def logsumexp(x: Float[Array, "rows n"]) -> Float[Array, " rows"]:
    """As `jax.nn.logsumexp` over the last axis."""
    rows, n = x.shape
    fitting = [size for size in _divisors(n) if rows * size <= _PART]
    size = max(fitting, default=1)
    if rows * n <= _SMALL or size < 64:
        return jax.nn.logsumexp(x, axis=-1)
    highest = jnp.max(x, axis=-1, keepdims=True)
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)

    def add(i: Array, sums: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
        part = lax.dynamic_slice_in_dim(x, i * size, size, axis=1)
        return sums + jnp.exp(part - highest)

    sums = lax.fori_loop(0, n // size, add, jnp.zeros((rows, size), jnp.float32))
    return jnp.log(jnp.sum(sums, axis=-1)) + highest[:, 0]


def _divisors(n: int) -> list[int]:
    return [size for size in range(1, n + 1) if n % size == 0]
