"""What a hypothesis may not go on with.

A forbidden token's logit becomes -inf *after* the softmax was taken: the allowed ones
keep the probabilities that the model gave them, so that a hypothesis has the same
log-probability however it was found.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def allowed_logits(
    logits: Float[Array, "beam vocab"],
    tokens: Int[Array, "beam max_length"],
    length: Int[Array, ""],
    prefix: Int[Array, " prefix"],
    *,
    no_repeat_ngram_size: int = 0,
    suppressed: Int[Array, "sequences length"] | None = None,
) -> Float[Array, "beam vocab"]:
    """The logits, -inf where a token is forbidden.

    A prefix is obeyed whatever else is forbidden here: its own tokens are exempt.

    Args:
      logits: of the token after each hypothesis.
      tokens: of the hypotheses; only the first `length` mean anything.
      length: of every hypothesis.
      prefix: tokens that every hypothesis begins with, then -1.
      no_repeat_ngram_size: no n-gram of so many tokens may occur twice; 0 = off.
      suppressed: sequences that may not occur, padded with -1 at their fronts.
    """
    unlimited, ids = logits, jnp.arange(logits.shape[-1])
    if no_repeat_ngram_size:
        repeats = _repeats(tokens, length, no_repeat_ngram_size, len(ids))
        logits = jnp.where(repeats, -jnp.inf, logits)
    if suppressed is not None and suppressed.size:
        completes = _completes(tokens, length, suppressed, len(ids))
        logits = jnp.where(completes, -jnp.inf, logits)
    if prefix.size:
        wanted = jnp.where(length < len(prefix), prefix[length], -1)
        forced = jnp.where((ids == wanted)[None], unlimited, -jnp.inf)
        logits = jnp.where(wanted >= 0, forced, logits)
    return logits


def _repeats(
    tokens: Int[Array, "beam max_length"],
    length: Int[Array, ""],
    size: int,
    vocab_size: int,
) -> Bool[Array, "beam vocab"]:
    """Tokens that would complete an n-gram which the hypothesis already has."""
    max_length = tokens.shape[-1]
    starts = jnp.arange(max_length)  # of the n-grams
    is_same = jnp.broadcast_to((starts + size <= length)[None], tokens.shape)
    for offset in range(size - 1):
        last = tokens[:, jnp.maximum(length - size + 1 + offset, 0)]
        here = tokens[:, jnp.minimum(starts + offset, max_length - 1)]
        is_same &= here == last[:, None]
    ends = tokens[:, jnp.minimum(starts + size - 1, max_length - 1)]
    return _marked(ends, is_same, vocab_size)


def _completes(
    tokens: Int[Array, "beam max_length"],
    length: Int[Array, ""],
    sequences: Int[Array, "sequences length"],
    vocab_size: int,
) -> Bool[Array, "beam vocab"]:
    """Tokens that would complete one of the sequences."""
    size = sequences.shape[-1]
    where = length - size + 1 + jnp.arange(size - 1)  # of all but the last token
    before = tokens[:, jnp.maximum(where, 0)][:, None]  # [beam, 1, size - 1]
    start = sequences[None, :, :-1]
    is_same = (start == -1) | ((before == start) & (where >= 0)[None, None])
    ends = jnp.broadcast_to(sequences[None, :, -1], (len(tokens), len(sequences)))
    return _marked(ends, jnp.all(is_same, axis=-1), vocab_size)


def _marked(
    ids: Int[Array, "beam candidates"],
    is_meant: Bool[Array, "beam candidates"],
    vocab_size: int,
) -> Bool[Array, "beam vocab"]:
    """True at the ids that are meant."""
    rows = jnp.arange(len(ids))[:, None]
    none = jnp.zeros((len(ids), vocab_size), bool)
    ids = jnp.where(is_meant & (ids >= 0), ids, vocab_size)
    return none.at[rows, ids].set(True, mode="drop")
