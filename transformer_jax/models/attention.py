"""Masks, scaled dot-product attention and multi-head attention (Section 3.2).

Axes: b batch, q query, k key, h heads, d d_k, v d_v, m d_model.

A sequence is a row of tokens with a row of *segments* beside it: 0 for padding, 1, 2, …
for the sentences that share the row. An unpacked batch has segments 0 and 1 only. Masks
are boolean, True = may attend, and are made here and in `neighborhoods`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.models.layers import dropout
from transformer_jax.models.neighborhoods import (
    Neighborhoods,
    all_pairs,
    are_worthwhile,
    key_blocks,
    neighborhood_mask,
    neighborhoods,
    query_blocks,
)
from transformer_jax.models.precision import Precision

Mask = Bool[Array, "#batch #heads #query #key"]


def segment_mask(
    query_segments: Int[Array, "batch query"], key_segments: Int[Array, "batch key"]
) -> Bool[Array, "batch heads=1 query key"]:
    """True where query and key belong to the same segment.

    Real tokens never see padding or another sentence of their row. Padding sees
    padding, which keeps its softmax finite; nothing reads the result.

    >>> segment_mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 1, 2]]))[0, 0].astype(int)
    Array([[1, 1, 0],
           [0, 0, 1],
           [0, 0, 0]], dtype=int32)
    """
    return query_segments[:, None, :, None] == key_segments[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "batch=1 heads=1 query key"]:
    """True where the key is not after the query (Section 3.2.3, third point).

    >>> causal_mask(3)[0, 0].astype(int)
    Array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=int32)
    """
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def self_attention_mask(
    segments: Int[Array, "batch length"], neighborhood: int = 0
) -> Mask | Neighborhoods:
    """Which positions of a row see each other: those of a segment, r around each.

    Args:
      segments: of the row.
      neighborhood: r, see `neighborhoods`; 0 = all.

    Returns:
      A mask of all pairs, or of those in blocks where that is less work.
    """
    if neighborhood and are_worthwhile(segments.shape[1], neighborhood):
        return neighborhoods(segments, neighborhood)
    mask = segment_mask(segments, segments)
    if neighborhood:
        mask &= neighborhood_mask(segments.shape[1], neighborhood)
    return mask


def ancestor_mask(
    ancestors: Int[Array, "batch beam length"],
    positions: Int[Array, " batch"],
    first: int = 0,
) -> Bool[Array, "batch beam length*beam"]:
    """True where a cached position and slot belong to the past of a hypothesis.

    The keys of `Cache` stand by position, then by slot: with two hypotheses, the second
    of which branched off the first after one token,

    >>> ancestors = jnp.array([[[0, 0, 0], [0, 1, 0]]])
    >>> ancestor_mask(ancestors, jnp.array([1]))[0].astype(int)
    Array([[1, 0, 1, 0, 0, 0],
           [1, 0, 0, 1, 0, 0]], dtype=int32)

    Args:
      ancestors: the slot that wrote each position of a hypothesis's past.
      positions: last position of the past, of each sentence.
      first: position that `ancestors` begins with.
    """
    batch, beam, length = ancestors.shape
    is_past = first + jnp.arange(length)[None] <= positions[:, None]
    is_slot = ancestors[..., None] == jnp.arange(beam)[None, None, None]
    return (is_slot & is_past[:, None, :, None]).reshape(batch, beam, length * beam)


def scaled_dot_product_attention(
    query: Float[Array, "batch query heads d_k"],
    key: Float[Array, "batch key heads d_k"],
    value: Float[Array, "batch key heads d_v"],
    mask: Mask | None = None,
    *,
    dropout_rate: float = 0.0,
    rng: Key[Array, ""] | None = None,
    dropout_rows: Int[Array, " batch"] | None = None,
) -> tuple[
    Float[Array, "batch query heads d_v"], Float[Array, "batch heads query key"]
]:
    """Weighted values and the weights: softmax(Q K^T / sqrt(d_k)) V (equation 1).

    The softmax is in float32. A query that may attend nowhere gets the plain average of
    the values: finite, and for padding only.

    Args:
      query: Q.
      key: K.
      value: V; its width d_v may differ from d_k (Table 3, rows B).
      mask: True = may attend; absent = everywhere.
      dropout_rate: of the weights, where `rng` is given (not in the paper).
      rng: key for the dropout.
      dropout_rows: number of each row in the global batch; 0, 1, 2, … by default.

    Returns:
      The attended values, and the weights before dropout in float32.
    """
    logits = jnp.einsum(
        "bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32
    )
    logits = logits * query.shape[-1] ** -0.5
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(logits, axis=-1)
    dropped = weights
    if rng is not None:
        rows = jnp.arange(len(weights)) if dropout_rows is None else dropout_rows
        dropped = dropout(weights, dropout_rate, rng, rows)
    return jnp.einsum("bhqk,bkhv->bqhv", dropped.astype(value.dtype), value), weights


def restricted_attention(
    query: Float[Array, "batch length heads d_k"],
    key: Float[Array, "batch length heads d_k"],
    value: Float[Array, "batch length heads d_v"],
    mask: Neighborhoods,
    *,
    dropout_rate: float = 0.0,
    rng: Key[Array, ""] | None = None,
    dropout_rows: Int[Array, " batch"] | None = None,
) -> tuple[
    Float[Array, "batch length heads d_v"],
    Float[Array, "batch blocks heads query key"],
]:
    """As `scaled_dot_product_attention`, of a row with itself, at a cost of r * n * d.

    The arguments are the same but for the mask. No array here grows with n squared.

    Returns:
      The attended values, and the weights before dropout: of the pairs in blocks, which
      `all_pairs` spreads out.
    """
    batch, length = query.shape[:2]
    blocks, size = mask.allowed.shape[1:3]

    def as_rows(x: Array) -> Array:  # each block a row of its own
        return x.reshape(batch * blocks, *x.shape[2:])

    rows = jnp.arange(batch) if dropout_rows is None else dropout_rows
    heads, weights = scaled_dot_product_attention(
        as_rows(query_blocks(query, size)),
        as_rows(key_blocks(key, size, mask.size)),
        as_rows(key_blocks(value, size, mask.size)),
        as_rows(mask.allowed)[:, None],
        dropout_rate=dropout_rate,
        rng=rng,
        dropout_rows=(rows[:, None] * blocks + jnp.arange(blocks)[None]).ravel(),
    )
    heads = heads.reshape(batch, blocks * size, *heads.shape[2:])
    return heads[:, :length], weights.reshape(batch, blocks, *weights.shape[1:])


class KeyBlock(NamedTuple):
    """Some of the keys of an attention, and what stands with them."""

    keys: Array  # [batch, heads, d_k, key]
    values: Array  # [batch, heads, key, d_v]
    mask: Array  # bool [batch, query, key], True = may attend
    is_needed: Array | bool  # bool []: whether any query may attend to any of them


def blockwise_attention(
    query: Float[Array, "batch heads query d_k"], blocks: Sequence[KeyBlock]
) -> Float[Array, "batch heads query d_v"]:
    """Equation 1 over blocks of keys, one after another, without those not needed.

    The softmax is summed up as it goes (Milakov and Gimelshein 2018), in float32. A
    block that a query may not attend to leaves its result as it is, to the last bit:
    what the others of a batch need makes no difference to it. The layouts are those in
    which a CPU multiplies them as they stand. The first block must be needed.
    """
    scale = query.shape[-1] ** -0.5
    low = jnp.finfo(jnp.float32).min

    def add(block: KeyBlock, sums: tuple[Array, Array, Array]) -> Any:
        highest, total, attended = sums
        logits = scale * jnp.einsum(
            "bhqd,bhdk->bhqk",
            query,
            block.keys,
            preferred_element_type=jnp.float32,
        )
        logits = jnp.where(block.mask[:, None], logits, low)
        new_highest = jnp.maximum(highest, logits.max(axis=-1, keepdims=True))
        weights = jnp.exp(logits - new_highest)
        shrink = jnp.exp(highest - new_highest)
        added = jnp.einsum(
            "bhqk,bhkv->bhqv",
            weights.astype(block.values.dtype),
            block.values,
            preferred_element_type=jnp.float32,
        )
        return (
            new_highest,
            shrink * total + weights.sum(axis=-1, keepdims=True),
            shrink * attended + added,
        )

    zeros = jnp.zeros((*query.shape[:-1], blocks[0].values.shape[-1]), jnp.float32)
    sums = add(blocks[0], (jnp.full_like(zeros[..., :1], low), zeros[..., :1], zeros))
    for block in blocks[1:]:
        sums = jax.lax.cond(
            block.is_needed, partial(add, block), lambda sums: sums, sums
        )
    _, total, attended = sums
    return (attended / total).astype(blocks[0].values.dtype)


class MultiHeadAttention(nn.Module):
    """Multi-head attention, without biases, as the formulas of Section 3.2.2.

    MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O with
    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The weights of every head are sown as "attention_weights" into the collection
    "intermediates": `apply(..., mutable=["intermediates"])` returns them, and without
    it they cost nothing. Those of a restricted attention too are of all pairs, 0 where
    nothing is seen, and only then take memory that grows with n squared.
    """

    num_heads: int
    d_model: int
    d_k: int
    d_v: int
    dropout_rate: float = 0.0
    precision: Precision = Precision()

    def setup(self) -> None:
        """Declares W^Q, W^K, W^V and W^O, the heads side by side in each."""
        xavier = nn.initializers.variance_scaling
        project = xavier(1.0, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2))
        merge = xavier(1.0, "fan_avg", "uniform", in_axis=(0, 1), out_axis=2)
        h, m = self.num_heads, self.d_model
        self.w_query = self.param("w_query", project, (m, h, self.d_k))
        self.w_key = self.param("w_key", project, (m, h, self.d_k))
        self.w_value = self.param("w_value", project, (m, h, self.d_v))
        self.w_output = self.param("w_output", merge, (h, self.d_v, m))

    def __call__(
        self,
        x: Float[Array, "batch query d_model"],
        context: Float[Array, "batch key d_model"],
        mask: Mask | Neighborhoods | None = None,
        dropout_rows: Int[Array, " batch"] | None = None,
    ) -> Float[Array, "batch query d_model"]:
        """The output for queries from `x`, keys and values from `context`.

        With `context` the same array as `x` this is self-attention. No dropout without
        `dropout_rows`, the number of each row in the global batch.
        """
        key, value = self.keys_values(context)
        return self.attend(x, key, value, mask, dropout_rows)

    def keys_values(
        self, context: Float[Array, "batch key d_model"]
    ) -> tuple[
        Float[Array, "batch key heads d_k"], Float[Array, "batch key heads d_v"]
    ]:
        """K W^K and V W^V: what a decoder computes once and keeps."""
        return (
            self.precision.einsum("bkm,mhd->bkhd", context, self.w_key),
            self.precision.einsum("bkm,mhv->bkhv", context, self.w_value),
        )

    def attend(
        self,
        x: Float[Array, "batch query d_model"],
        key: Float[Array, "batch key heads d_k"],
        value: Float[Array, "batch key heads d_v"],
        mask: Mask | Neighborhoods | None = None,
        dropout_rows: Int[Array, " batch"] | None = None,
    ) -> Float[Array, "batch query d_model"]:
        """The output for queries from `x` and keys and values already projected."""
        query = self.precision.einsum("bqm,mhd->bqhd", x, self.w_query)
        uses_dropout = self.dropout_rate > 0 and dropout_rows is not None
        options: Any = {
            "dropout_rate": self.dropout_rate,
            "rng": self.make_rng("dropout") if uses_dropout else None,
            "dropout_rows": dropout_rows,
        }
        if isinstance(mask, Neighborhoods):
            heads, weights = restricted_attention(query, key, value, mask, **options)
            if self.is_mutable_collection("intermediates"):  # else never n * n of them
                weights = all_pairs(weights, x.shape[1])
        else:
            heads, weights = scaled_dot_product_attention(
                query, key, value, mask, **options
            )
        self.sow("intermediates", "attention_weights", weights)
        return self.precision.einsum("bqhv,hvm->bqm", heads, self.w_output)

    def attend_blockwise(
        self, x: Float[Array, "batch query d_model"], blocks: Sequence[KeyBlock]
    ) -> Float[Array, "batch query d_model"]:
        """As `attend`, by `blockwise_attention` and in its layouts."""
        query = self.precision.einsum("bqm,mhd->bqhd", x, self.w_query)
        heads = blockwise_attention(query.transpose(0, 2, 1, 3), blocks)
        return self.precision.einsum("bhqv,hvm->bqm", heads, self.w_output)

    def mean_weights(
        self,
        x: Float[Array, "batch query d_model"],
        key: Float[Array, "batch heads d_k key"],
        mask: Bool[Array, "batch query key"],
    ) -> Float[Array, "batch query key"]:
        """The weights of `attend_blockwise`, the mean of all heads."""
        query = self.precision.einsum("bqm,mhd->bqhd", x, self.w_query)
        keys = key.transpose(0, 3, 1, 2)
        # No values are wanted: what the keys would give in their place is not computed.
        _, weights = scaled_dot_product_attention(query, keys, keys, mask[:, None])
        return jnp.mean(weights, axis=1)
