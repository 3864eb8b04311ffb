"""Encoder, decoder and the whole model (Figure 1).

Axes: b batch, s source, t target, n beam, k key, h heads, m d_model.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.config import TransformerConfig
from transformer_jax.models.attention import (
    KeyBlock,
    MultiHeadAttention,
    ancestor_mask,
    causal_mask,
    segment_mask,
    self_attention_mask,
)
from transformer_jax.models.layers import (
    Dropout,
    FeedForward,
    LayerNorm,
    Residual,
    positions_in_segments,
    sinusoidal_positions,
)
from transformer_jax.models.neighborhoods import Neighborhoods
from transformer_jax.models.precision import Precision

_FIRST_KEYS = 64  # of a cache's first block: a product of a size that pays


class Memory(NamedTuple):
    """What the decoder reads of the source at each step, computed once."""

    keys: tuple[Array, ...]  # a layer each: [batch, heads, d_k, source]
    values: tuple[Array, ...]  # a layer each: [batch, heads, source, d_v]
    mask: Array  # bool [batch, source], True = a real token


class Cache(NamedTuple):
    """Keys and values of the target tokens so far, each where it was first written.

    The positions are spread over blocks, see `_block_sizes`. Position t of a block and
    slot n are at t * beam + n.
    """

    # A layer each, of which a block each: [batch, heads, d_k, size * beam]
    keys: tuple[tuple[Array, ...], ...]
    values: tuple[tuple[Array, ...], ...]  # the same: [batch, heads, size * beam, d_v]
    # Of the last step, where wanted: float32 [batch, beam, source], the weights of the
    # last layer's attention over the source, the mean of its heads; 1 at padding.
    attention: Array | None = None


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (Section 3.1)."""

    config: TransformerConfig

    def setup(self) -> None:
        """Declares the two sub-layers."""
        self.self_attention = _attention(self.config)
        self.self_attention_residual = _residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = _residual(self.config)

    def __call__(
        self,
        x: Float[Array, "batch source d_model"],
        mask: Bool[Array, "batch heads=1 source source"] | Neighborhoods,
        dropout_rows: Int[Array, " batch"] | None,
    ) -> Float[Array, "batch source d_model"]:
        """The source after this layer."""
        x = self.self_attention_residual(
            x,
            lambda x: self.self_attention(x, x, mask, dropout_rows),
            dropout_rows,
        )
        return self.feed_forward_residual(x, self.feed_forward, dropout_rows)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the source, feed-forward (Section 3.1)."""

    config: TransformerConfig

    def setup(self) -> None:
        """Declares the three sub-layers."""
        self.self_attention = _attention(self.config)
        self.self_attention_residual = _residual(self.config)
        self.cross_attention = _attention(self.config)
        self.cross_attention_residual = _residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = _residual(self.config)

    def __call__(
        self,
        x: Float[Array, "batch target d_model"],
        encoded: Float[Array, "batch source d_model"],
        self_mask: Bool[Array, "batch heads=1 target target"],
        cross_mask: Bool[Array, "batch heads=1 target source"],
        dropout_rows: Int[Array, " batch"] | None,
    ) -> Float[Array, "batch target d_model"]:
        """The target after this layer."""
        x = self.self_attention_residual(
            x,
            lambda x: self.self_attention(x, x, self_mask, dropout_rows),
            dropout_rows,
        )
        x = self.cross_attention_residual(
            x,
            lambda x: self.cross_attention(x, encoded, cross_mask, dropout_rows),
            dropout_rows,
        )
        return self.feed_forward_residual(x, self.feed_forward, dropout_rows)

    def decode_step(
        self,
        x: Float[Array, "batch beam d_model"],
        step: "_Step",
        cached: tuple[tuple[Array, ...], tuple[Array, ...]],
        memory: tuple[Array, Array],
        *,
        wants_weights: bool,
    ) -> tuple[Float[Array, "batch beam d_model"], tuple[Any, Any], Array | None]:
        """One position of every hypothesis, and the cache with it written in.

        Also the weights of the attention over the source, if they are wanted.
        """
        written: list[tuple[Array, ...]] = []
        weights: list[Array] = []

        def attend_to_target(x: Array) -> Array:
            key, value = self.self_attention.keys_values(x)
            key, value = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
            places = list(zip(*cached, step.firsts, strict=True))
            keys = [_write_rows(old, key, i, axis=3) for old, _, i in places]
            values = [_write_rows(old, value, i, axis=2) for _, old, i in places]
            written.extend((tuple(keys), tuple(values)))
            blocks = map(KeyBlock, keys, values, step.masks, step.are_needed)
            return self.self_attention.attend_blockwise(x, list(blocks))

        def attend_to_source(x: Array) -> Array:
            if wants_weights:
                mean = self.cross_attention.mean_weights(x, memory[0], step.source_mask)
                weights.append(jnp.where(step.source_mask, mean, 1.0))
            block = KeyBlock(memory[0], memory[1], step.source_mask, True)
            return self.cross_attention.attend_blockwise(x, [block])

        x = self.self_attention_residual(x, attend_to_target, None)
        x = self.cross_attention_residual(x, attend_to_source, None)
        x = self.feed_forward_residual(x, self.feed_forward, None)
        return x, (written[0], written[1]), weights[0] if weights else None


class _Step(NamedTuple):
    """What the layers of a decoding step share; lists are over the cache's blocks."""

    firsts: list[Array]  # int32 [batch]: where new keys go; outside of other blocks
    masks: list[Array]  # bool [batch, beam, size * beam]
    are_needed: list[Array]  # bool []
    source_mask: Array  # bool [batch, beam, source]


def _write_rows(
    old: Float[Array, "batch heads old1 old2"],
    new: Float[Array, "batch heads new1 new2"],
    firsts: Int[Array, " batch"],
    *,
    axis: int,
) -> Float[Array, "batch heads old1 old2"]:
    """`old` with `new` written over it, in each row from its own `first` along `axis`.

    A row whose `new` would not be inside stays as it is, where `dynamic_update_slice`
    would write it elsewhere.
    """
    return jax.lax.scatter(
        old,
        firsts[:, None],
        new,
        jax.lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(1, old.ndim)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(axis,),
            operand_batching_dims=(0,),
            scatter_indices_batching_dims=(0,),
        ),
        unique_indices=True,
        mode="drop",
    )


def _block_sizes(max_length: int, beam_size: int) -> list[int]:
    """Positions of each block of a cache: as many as all before it together.

    So a step reads at most twice what it needs, or the first block, and there are few.

    >>> _block_sizes(82, 4)
    [16, 16, 32, 32]
    """
    unit = max(_FIRST_KEYS // beam_size, 1)
    left, sizes = -(-max_length // unit), []
    while left > 0:
        sizes.append(min(max(sum(sizes), 1), left))
        left -= sizes[-1]
    return [unit * size for size in sizes]


class Transformer(nn.Module):
    """The model of Figure 1, from token ids to logits.

    A pure function of (params, arrays). Segments say which tokens belong together: see
    `transformer_jax.models.attention`; absent, every token is real and each row is one
    sentence.

    >>> model = Transformer(TransformerConfig(11, num_layers=1, d_model=8, d_ff=16,
    ...                                       num_heads=2))
    >>> source, target = jnp.array([[3, 4, 5]]), jnp.array([[1, 6]])
    >>> variables = model.init(jax.random.key(0), source, target)
    >>> model.apply(variables, source, target).shape
    (1, 2, 11)
    """

    config: TransformerConfig

    def setup(self) -> None:
        """Declares the embeddings and the two stacks."""
        config = self.config
        embedding = nn.initializers.normal(config.d_model**-0.5)
        shape = (config.vocab_size, config.d_model)
        if config.share_embeddings:
            self.embedding = self.param("embedding", embedding, shape)
        else:
            self.source_embedding = self.param("source_embedding", embedding, shape)
            self.target_embedding = self.param("target_embedding", embedding, shape)
            self.output_embedding = self.param("output_embedding", embedding, shape)
        if config.positions == "learned":
            shape = (config.max_length, config.d_model)
            self.source_positions = self.param("source_positions", embedding, shape)
            self.target_positions = self.param("target_positions", embedding, shape)
        self.embedding_dropout = Dropout(config.dropout_rate)
        encoder_layer, decoder_layer = EncoderLayer, DecoderLayer
        if config.remat:
            encoder_layer, decoder_layer = (
                nn.remat(EncoderLayer),
                nn.remat(DecoderLayer),
            )
        self.encoder = [encoder_layer(config) for _ in range(config.num_layers)]
        self.decoder = [decoder_layer(config) for _ in range(config.num_layers)]
        if config.norm == "pre":  # whose last residual sum nothing else normalises
            self.encoder_norm = LayerNorm()
            self.decoder_norm = LayerNorm()

    def __call__(
        self,
        source: Int[Array, "batch source"],
        target: Int[Array, "batch target"],
        source_segments: Int[Array, "batch source"] | None = None,
        target_segments: Int[Array, "batch target"] | None = None,
        *,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> Float[Array, "batch target vocab"]:
        """Logits of the token after each target position.

        Args:
          source: token ids of the source sentences.
          target: token ids of the target sentences, shifted right (begin with the
            start token).
          source_segments: 0 = padding, 1, 2, … = sentence of the row.
          target_segments: the same for the target.
          deterministic: no dropout; otherwise the rng "dropout" is needed.
          first_row: number of the first row in the global batch, where these rows are
            a part of one; a row's dropout depends on its number.
        """
        source_segments = _segments_or_ones(source, source_segments)
        dropout: Any = {"deterministic": deterministic, "first_row": first_row}
        encoded = self.encode(source, source_segments, **dropout)
        hidden = self.decode(
            target, encoded, target_segments, source_segments, **dropout
        )
        return self.logits(hidden)

    def encode(
        self,
        source: Int[Array, "batch source"],
        source_segments: Int[Array, "batch source"] | None = None,
        *,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> Float[Array, "batch source d_model"]:
        """The encoder's output for each source token."""
        segments = _segments_or_ones(source, source_segments)
        mask = self_attention_mask(segments, self.config.encoder_neighborhood)
        positions = positions_in_segments(segments)
        rows = None if deterministic else first_row + jnp.arange(len(source))
        x = self._embed("source", source, positions, source.shape[1])
        x = self.embedding_dropout(x, rows)
        for layer in self.encoder:
            x = layer(x, mask, rows)
        return self.encoder_norm(x) if self.config.norm == "pre" else x

    def decode(
        self,
        target: Int[Array, "batch target"],
        encoded: Float[Array, "batch source d_model"],
        target_segments: Int[Array, "batch target"] | None = None,
        source_segments: Int[Array, "batch source"] | None = None,
        *,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> Float[Array, "batch target d_model"]:
        """The decoder's output at every target position at once (training)."""
        segments = _segments_or_ones(target, target_segments)
        source_segments = _segments_or_ones(encoded[..., 0], source_segments)
        self_mask = segment_mask(segments, segments) & causal_mask(target.shape[1])
        cross_mask = segment_mask(segments, source_segments)
        positions = positions_in_segments(segments)
        rows = None if deterministic else first_row + jnp.arange(len(target))
        x = self._embed("target", target, positions, target.shape[1])
        x = self.embedding_dropout(x, rows)
        for layer in self.decoder:
            x = layer(x, encoded, self_mask, cross_mask, rows)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def output_matrix(self) -> Float[Array, "vocab d_model"]:
        """The pre-softmax projection, one row a token (Section 3.4)."""
        shared = self.config.share_embeddings
        return self.embedding if shared else self.output_embedding

    def logits(
        self, hidden: Float[Array, "batch target d_model"]
    ) -> Float[Array, "batch target vocab"]:
        """Scores of every token, before the softmax, in float32."""
        precision = precision_of(self.config)
        scores = precision.einsum("btm,wm->btw", hidden, self.output_matrix())
        return scores.astype(jnp.float32)

    def start_decoding(
        self,
        encoded: Float[Array, "batch source d_model"],
        source_segments: Int[Array, "batch source"],
        *,
        beam_size: int,
        max_length: int,
        wants_attention: bool = False,
    ) -> tuple[Memory, Cache]:
        """What `decode_step` reads, and an empty cache for `max_length` positions.

        Args:
          encoded: of `encode`.
          source_segments: 0 = padding, else real.
          beam_size: hypotheses of each sentence.
          max_length: most tokens of a hypothesis.
          wants_attention: whether steps shall leave their attention in the cache.
        """
        config = self.config
        pairs = [layer.cross_attention.keys_values(encoded) for layer in self.decoder]
        memory = Memory(
            keys=tuple(key.transpose(0, 2, 3, 1) for key, _ in pairs),
            values=tuple(value.transpose(0, 2, 1, 3) for _, value in pairs),
            mask=source_segments > 0,
        )
        rows, heads = len(encoded), config.num_heads
        sizes = [n * beam_size for n in _block_sizes(max_length, beam_size)]
        layers, dtype = range(config.num_layers), precision_of(config).dtype
        attention = jnp.zeros((rows, beam_size, encoded.shape[1]), jnp.float32)
        cache = Cache(
            keys=tuple(
                tuple(jnp.zeros((rows, heads, config.d_k, n), dtype) for n in sizes)
                for _ in layers
            ),
            values=tuple(
                tuple(jnp.zeros((rows, heads, n, config.d_v), dtype) for n in sizes)
                for _ in layers
            ),
            attention=attention if wants_attention else None,
        )
        return memory, cache

    def decode_step(
        self,
        tokens: Int[Array, "batch beam"],
        positions: Int[Array, " batch"],
        ancestors: Int[Array, "batch beam length"],
        cache: Cache,
        memory: Memory,
    ) -> tuple[Float[Array, "batch beam vocab"], Cache]:
        """Logits of the token after `tokens`, which stand at `positions`.

        The same numbers as `__call__` gives for the whole target up to there, at the
        cost of one position.

        Args:
          tokens: of each hypothesis.
          positions: of the tokens, a row each.
          ancestors: the slot that wrote each position of a hypothesis's past, see
            `transformer_jax.decoding.beam_search`.
          cache: of the step before.
          memory: of the source.
        """
        batch, beam = tokens.shape
        sizes = [block.shape[3] // beam for block in cache.keys[0]]
        firsts = [sum(sizes[:i]) for i in range(len(sizes))]
        missing = sum(sizes) - ancestors.shape[2]
        ancestors = jnp.pad(ancestors, ((0, 0), (0, 0), (0, missing)))
        step = _Step(
            firsts=[(positions - first) * beam for first in firsts],
            masks=[
                ancestor_mask(ancestors[:, :, first : first + size], positions, first)
                for first, size in zip(firsts, sizes, strict=True)
            ],
            are_needed=[jnp.max(positions) >= first for first in firsts],
            source_mask=jnp.broadcast_to(
                memory.mask[:, None], (batch, beam, memory.mask.shape[1])
            ),
        )
        x = self._embed(
            "target",
            tokens,
            jnp.broadcast_to(positions[:, None], tokens.shape),
            sum(sizes),
        )
        caches, attention = [], None
        for i, layer in enumerate(self.decoder):
            is_last = i == self.config.num_layers - 1
            x, cached, attention = layer.decode_step(
                x,
                step,
                (cache.keys[i], cache.values[i]),
                (memory.keys[i], memory.values[i]),
                wants_weights=is_last and cache.attention is not None,
            )
            caches.append(cached)
        if self.config.norm == "pre":
            x = self.decoder_norm(x)
        keys, values = zip(*caches, strict=True)
        return self.logits(x), Cache(keys, values, attention)

    def _embed(
        self,
        side: str,
        tokens: Int[Array, "batch length"],
        positions: Int[Array, "batch length"],
        num_positions: int,
    ) -> Float[Array, "batch length d_model"]:
        """Embeddings times sqrt(d_model), plus positions (Sections 3.4 and 3.5).

        All `positions` are below `num_positions`. Learned ones end at max_length: what
        is beyond takes the last.
        """
        config = self.config
        name = "embedding" if config.share_embeddings else f"{side}_embedding"
        x = getattr(self, name)[tokens] * config.d_model**0.5
        if config.positions == "learned":
            table = getattr(self, f"{side}_positions")
        else:
            table = jnp.asarray(sinusoidal_positions(num_positions, config.d_model))
        return (x + table[positions]).astype(precision_of(config).dtype)


def num_parameters(config: TransformerConfig) -> int:
    """The number of parameters of a model, counted from its shapes.

    >>> num_parameters(TransformerConfig.base(vocab_size=37_000))
    63045632
    """
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(config)))


def parameter_shapes(config: TransformerConfig) -> Any:
    """The tree of a model's parameters, with shapes in place of arrays."""
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(Transformer(config).init, key, tokens, tokens)["params"]


def precision_of(config: TransformerConfig) -> Precision:
    """The model's number formats; an "auto" that nobody replaced is float32."""
    formats = (config.dtype, config.matmul_dtype)
    return Precision(*("float32" if name == "auto" else name for name in formats))


def _attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        num_heads=config.num_heads,
        d_model=config.d_model,
        d_k=config.d_k,
        d_v=config.d_v,
        dropout_rate=config.attention_dropout_rate,
        precision=precision_of(config),
    )


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.d_model, config.d_ff, precision_of(config))


def _residual(config: TransformerConfig) -> Residual:
    return Residual(config.norm, config.dropout_rate, precision_of(config).dtype)


def _segments_or_ones(tokens: Array, segments: Array | None) -> Array:
    if segments is None:
        return jnp.ones(tokens.shape, jnp.int32)
    return segments
