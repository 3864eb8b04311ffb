"""The truncations of a distribution before a token is drawn from it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def truncated(
    logits: Float[Array, "*axes vocab"], *, num_tokens: int, probability: float
) -> Float[Array, "*axes vocab"]:
    """The logits of the most probable tokens, the others' -inf.

    Tokens as probable as the last one that is kept are kept too.

    Args:
      logits: of the next token.
      num_tokens: keep so many (top-k, Fan et al. 2018); 0 = all.
      probability: of these, keep the fewest whose probabilities, among them, sum to at
        least this (top-p, Holtzman et al. 2020); 1 = all.

    >>> x = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))
    >>> jnp.isfinite(truncated(x, num_tokens=0, probability=0.6)).tolist()
    [True, True, False, False]
    """
    if not num_tokens and probability >= 1:
        return logits
    falling = -jnp.sort(-logits, axis=-1)
    if 0 < num_tokens < logits.shape[-1]:
        falling = falling[..., :num_tokens]
    if probability < 1:
        shares = jax.nn.softmax(falling, axis=-1)
        before = jnp.cumsum(shares, axis=-1) - shares  # of the more probable ones
        falling = jnp.where(before < probability, falling, jnp.inf)
    return jnp.where(
        logits >= jnp.min(falling, axis=-1, keepdims=True), logits, -jnp.inf
    )
