"""Feed-forward, embeddings, positions, residual and norm (Sections 3.1, 3.3-3.5, 5.4).

Axes: b batch, l length, m d_model, f d_ff.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from transformer_jax.models.precision import Precision


def dropout(
    x: Float[Array, "batch *axes width"],
    rate: float,
    rng: Key[Array, ""],
    rows: Int[Array, " batch"],
) -> Float[Array, "batch *axes width"]:
    """`x` with a share `rate` of its elements zeroed, the others over (1 - rate).

    As Section 5.4 (Srivastava et al. 2014). A uniform 16-bit number decides for each
    element, so a rate is met to within 1/131072. The mask of a row is a function of the
    key and the row's number alone: it is the same however a batch is spread over
    devices, or taken in parts.

    >>> dropout(jnp.ones((1, 6)), 0.5, jax.random.key(0), jnp.array([0])).tolist()
    [[0.0, 2.0, 2.0, 2.0, 0.0, 2.0]]
    """
    if rate == 0.0:
        return x
    width = x.shape[-1]
    low_mask, threshold = jnp.uint32(0xFFFF), jnp.uint32(round(rate * (1 << 16)))
    words = _random_words(rng, rows, (*x.shape[1:-1], -(-width // 4)))
    levels = [level for word in words for level in (word & low_mask, word >> 16)]
    is_kept = jnp.concatenate([level >= threshold for level in levels], axis=-1)
    return jnp.where(is_kept[..., :width], x / (1.0 - rate), jnp.zeros((), x.dtype))


def _random_words(
    rng: Key[Array, ""], rows: Int[Array, " batch"], shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Two arrays [batch, *shape] of uniform 32-bit words.

    Threefry-2x32 of the counter (index in the row, row): the generator of `jax.random`
    (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") with 13 rounds,
    the fewest that pass all of BigCrush there, where `jax.random` has 20; unlike it,
    nothing of the 64 bits is thrown away, and the code is plain arithmetic that fuses
    with what it feeds. A CPU's dropout is four times as fast for it.
    """
    key_0, key_1 = jax.random.key_data(rng)
    keys = key_0, key_1, key_0 ^ key_1 ^ jnp.uint32(0x1BD11BDA)
    index = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(1, *shape)
    row = rows.astype(jnp.uint32).reshape(-1, *(1 for _ in shape))
    whole = (len(rows), *shape)
    x = jnp.broadcast_to(index + keys[0], whole)
    y = jnp.broadcast_to(row + keys[1], whole)
    for i in range(13):
        x = x + y
        rotation = _THREEFRY_ROTATIONS[i % 8]
        y = x ^ ((y << rotation) | (y >> (32 - rotation)))
        if i % 4 == 3:
            injected = i // 4 + 1
            x = x + keys[injected % 3]
            y = y + keys[(injected + 1) % 3] + jnp.uint32(injected)
    return x, y


_THREEFRY_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


class Dropout(nn.Module):
    """`dropout` with the module's own random key; none where there are no `rows`."""

    rate: float

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch *axes width"],
        rows: Int[Array, " batch"] | None,
    ) -> Float[Array, "batch *axes width"]:
        """Drops by the number of each row in the global batch."""
        if rows is None or self.rate == 0.0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"), rows)


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2)."""

    d_model: int
    d_ff: int
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch length d_model"]
    ) -> Float[Array, "batch length d_model"]:
        """The same two linear maps at each position."""
        xavier, zeros = nn.initializers.xavier_uniform(), nn.initializers.zeros
        w1 = self.param("w1", xavier, (self.d_model, self.d_ff))
        b1 = self.param("b1", zeros, (self.d_ff,))
        w2 = self.param("w2", xavier, (self.d_ff, self.d_model))
        b2 = self.param("b2", zeros, (self.d_model,))
        hidden = self.precision.einsum("blm,mf->blf", x, w1)
        hidden = nn.relu(hidden + b1[None, None].astype(hidden.dtype))
        output = self.precision.einsum("blf,fm->blm", hidden, w2)
        return output + b2[None, None].astype(output.dtype)


class LayerNorm(nn.Module):
    """gain * (x - mean) / sqrt(variance + epsilon) + bias (Ba et al. 2016), in float32.

    Means are over the last axis. (Flax's own keeps the broadcast gain of each layer for
    the backward pass; this keeps the normalised input, which costs a CPU less.)
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch length d_model"]
    ) -> Float[Array, "batch length d_model"]:
        """The normalised `x`, float32."""
        gain = self.param("gain", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        x = x.astype(jnp.float32)
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normalised = centred * jax.lax.rsqrt(variance + self.epsilon)
        return normalised * gain[None, None] + bias[None, None]


class Residual(nn.Module):
    """A sub-layer with its dropout, residual connection and norm (Sections 3.1, 5.4).

    norm="post": LayerNorm(x + Dropout(sublayer(x))), the paper's.
    norm="pre":  x + Dropout(sublayer(LayerNorm(x))), what tensor2tensor moved to.
    """

    norm: str
    dropout_rate: float
    dtype: str = "float32"

    def setup(self) -> None:
        """Declares the norm and the dropout."""
        self.layer_norm = LayerNorm()
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self,
        x: Float[Array, "batch length d_model"],
        sublayer: Callable[[Array], Array],
        dropout_rows: Int[Array, " batch"] | None,
    ) -> Float[Array, "batch length d_model"]:
        """`x` after the sub-layer; no dropout without rows, see `Dropout`."""
        if self.norm == "pre":
            normed = self.layer_norm(x).astype(self.dtype)
            return x + self.dropout(sublayer(normed), dropout_rows)
        added = x + self.dropout(sublayer(x), dropout_rows)
        return self.layer_norm(added).astype(self.dtype)


def sinusoidal_positions(num_positions: int, d_model: int) -> np.ndarray:
    """The position encoding of Section 3.5, float32 [num_positions, d_model].

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same: sine
    and cosine interleaved, as the paper writes it (tensor2tensor and its heirs put all
    sines first).

    >>> sinusoidal_positions(2, 4).round(4).tolist()[1]
    [0.8414999842643738, 0.5403000116348267, 0.009999999776482582, 1.0]
    """
    position = np.arange(num_positions)[:, None]
    angle = position / 10_000.0 ** (np.arange(0, d_model, 2) / d_model)
    # [positions, d_model/2, 2] -> [positions, d_model]
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return pairs.reshape(num_positions, d_model).astype(np.float32)


def positions_in_segments(
    segments: Int[Array, "batch length"],
) -> Int[Array, "batch length"]:
    """Each token's position within its own segment, from 0.

    >>> positions_in_segments(jnp.array([[1, 1, 2, 2, 2, 0]])).tolist()
    [[0, 1, 0, 1, 2, 0]]
    """
    index = jnp.arange(segments.shape[1])[None]
    is_start = jnp.diff(segments, axis=1, prepend=-1) != 0
    start = jax.lax.cummax(jnp.where(is_start, index, 0), axis=1)
    return index - start
