"""Restricted self-attention: which r positions each one sees, in blocks (Section 4).

Position i sees those from i - r // 2 to i + (r - 1) // 2: r of them centred on i, an
even r reaching one further back than ahead. What lies outside of the row or of the
sentence is left out, not replaced. The sentences of a packed row are contiguous, so
that distance in the row is distance in the sentence.

A block of queries sees the keys of its own block and r - 1 around it. With blocks of
four, r = 3, the row "a b c d e f" and nothing ("-") beyond it:

    queries   a b c d           e f - -
    keys      - a b c d e       d e f - - -

Blocks are about as long as r, so that time and memory are r * n * d.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

_UNIT = 32  # blocks are multiples of it; on a CPU 16 to 64 are alike, 128 is slower


class Neighborhoods(NamedTuple):
    """The mask of a restricted self-attention: whom each block of queries may see."""

    # bool [batch, blocks, query, key], True = may attend; r - 1 more keys than queries
    allowed: Array

    @property
    def size(self) -> int:
        """The r of the positions that each one sees."""
        return self.allowed.shape[3] - self.allowed.shape[2] + 1


def block_length(neighborhood: int) -> int:
    """Queries of a block, at least r.

    >>> block_length(5), block_length(33)
    (32, 64)
    """
    return -(-neighborhood // _UNIT) * _UNIT


def are_worthwhile(length: int, neighborhood: int) -> bool:
    """Whether blocks multiply at most half the pairs that the whole row has.

    With more, a masked attention over the whole row was faster, forward and backward on
    a CPU, at r = 32, 64 and 128.
    """
    return 2 * (block_length(neighborhood) + neighborhood - 1) <= length


def neighborhood_mask(
    length: int, neighborhood: int
) -> Bool[Array, "batch=1 heads=1 query key"]:
    """True where the key is one of the r around the query, of all pairs of a row.

    >>> neighborhood_mask(4, 2)[0, 0].astype(int)
    Array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]], dtype=int32)
    """
    return _is_near(length, length, neighborhood, before=neighborhood // 2)[None, None]


def neighborhoods(
    segments: Int[Array, "batch length"], neighborhood: int
) -> Neighborhoods:
    """The same and within a segment, as `segment_mask`, of the pairs in blocks only."""
    size = block_length(neighborhood)
    queries = query_blocks(segments, size, outside=-1)
    keys = key_blocks(segments, size, neighborhood, outside=-1)
    is_near = _is_near(size, keys.shape[2], neighborhood, before=0)
    same = queries[:, :, :, None] == keys[:, :, None, :]
    return Neighborhoods(same & is_near[None, None])


def _is_near(
    queries: int, keys: int, neighborhood: int, *, before: int
) -> Bool[Array, "query key"]:
    """Whether key k is at q - before or one of the r - 1 after it."""
    place = jnp.arange(keys)[None] - jnp.arange(queries)[:, None] + before
    return (place >= 0) & (place < neighborhood)


def query_blocks(
    x: Shaped[Array, "batch length *axes"], size: int, *, outside: int = 0
) -> Shaped[Array, "batch blocks size *axes"]:
    """`x` in blocks, the last one filled up with `outside`.

    >>> query_blocks(jnp.array([[1, 2, 3]]), 2).tolist()
    [[[1, 2], [3, 0]]]
    """
    blocks = -(-x.shape[1] // size)
    return _blocks(x, 0, blocks, size, outside)


def key_blocks(
    x: Shaped[Array, "batch length *axes"],
    size: int,
    neighborhood: int,
    *,
    outside: int = 0,
) -> Shaped[Array, "batch blocks span *axes"]:
    """What each block of `query_blocks` sees: itself and the r - 1 around it.

    >>> key_blocks(jnp.array([[1, 2, 3]]), 2, 2).tolist()
    [[[0, 1, 2], [2, 3, 0]]]
    """
    blocks = -(-x.shape[1] // size)
    blocked = _blocks(x, neighborhood // 2, blocks + 1, size, outside)
    # As size >= r - 1, the rest of a span is the start of the next block.
    rest = blocked[:, 1:, : neighborhood - 1]
    return jnp.concatenate([blocked[:, :-1], rest], axis=2)


def _blocks(x: Array, before: int, blocks: int, size: int, outside: int) -> Array:
    after = blocks * size - before - x.shape[1]
    padding = ((0, 0), (before, after), *((0, 0) for _ in x.shape[2:]))
    padded = jnp.pad(x, padding, constant_values=outside)
    return padded.reshape(x.shape[0], blocks, size, *x.shape[2:])


def all_pairs(
    weights: Float[Array, "batch blocks heads query key"], length: int
) -> Float[Array, "batch heads length length"]:
    """Weights in blocks as those of all pairs of positions, 0 where none is seen."""
    batch, _, heads, size, span = weights.shape
    neighborhood = span - size + 1
    rows = weights.transpose(0, 2, 1, 3, 4).reshape(batch, heads, -1, span)[
        :, :, :length
    ]
    query, key = jnp.arange(length)[:, None], jnp.arange(length)[None]
    place = key - query // size * size + neighborhood // 2
    is_inside = (place >= 0) & (place < span)
    place = jnp.broadcast_to(
        jnp.clip(place, 0, span - 1), (batch, heads, length, length)
    )
    found = jnp.take_along_axis(rows, place, axis=3)
    return jnp.where(is_inside[None, None], found, 0.0)
