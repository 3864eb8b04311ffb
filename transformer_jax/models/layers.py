"""Feed-forward, embeddings, positions, residual and norm (Sections 3.1, 3.3-3.5, 5.4).

Axes: b batch, l length, m d_model, f d_ff.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from transformer_jax.models.precision import Precision

# A uniform 16-bit number decides whether an activation is kept: half the random bits of
# the usual 32, which cost a CPU more than the arithmetic around them. A rate is met to
# within 1/131072.
_DROPOUT_LEVELS = 1 << 16


def dropout(
    x: Float[Array, "*axes width"], rate: float, rng: Key[Array, ""] | None
) -> Float[Array, "*axes width"]:
    """`x` with a share `rate` of its elements zeroed, the others over (1 - rate).

    Without an `rng`, or at rate 0, `x` itself (Section 5.4; Srivastava et al. 2014).

    >>> dropout(jnp.ones(6), 0.5, jax.random.key(0)).tolist()
    [0.0, 2.0, 0.0, 2.0, 0.0, 0.0]
    """
    if rng is None or rate == 0.0:
        return x
    *leading, width = x.shape
    words = jax.random.bits(rng, (*leading, (width + 1) // 2), jnp.uint32)
    # [..., words, 2] -> [..., width]
    levels = jax.lax.bitcast_convert_type(words, jnp.uint16)
    levels = levels.reshape(*leading, -1)[..., :width]
    is_kept = levels >= round(rate * _DROPOUT_LEVELS)
    return jnp.where(is_kept, x / (1.0 - rate), jnp.zeros((), x.dtype))


class Dropout(nn.Module):
    """`dropout` with the module's own random key."""

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "*axes width"], *, deterministic: bool
    ) -> Float[Array, "*axes width"]:
        """Drops, or returns `x` where `deterministic`."""
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))


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
        hidden = nn.relu(hidden + b1.astype(hidden.dtype))
        output = self.precision.einsum("blf,fm->blm", hidden, w2)
        return output + b2.astype(output.dtype)


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
        self.layer_norm = nn.LayerNorm(dtype=jnp.float32)
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self,
        x: Float[Array, "batch length d_model"],
        sublayer: Callable[[Array], Array],
        *,
        deterministic: bool,
    ) -> Float[Array, "batch length d_model"]:
        """`x` after the sub-layer."""
        if self.norm == "pre":
            normed = self.layer_norm(x).astype(self.dtype)
            return x + self.dropout(sublayer(normed), deterministic=deterministic)
        added = x + self.dropout(sublayer(x), deterministic=deterministic)
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
    index = jnp.arange(segments.shape[1])
    is_start = jnp.diff(segments, axis=1, prepend=-1) != 0
    start = jax.lax.cummax(jnp.where(is_start, index, 0), axis=1)
    return index - start
