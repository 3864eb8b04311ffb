"""What a search for a tree over given leaves may go on with (Section 6.3).

A tree is written depth first: `(S (NP a b )NP c )S` has the leaves a, b and c, its root
is S. A token opens a constituent, is a leaf, or closes the innermost constituent that
is open. All that a mask needs is in the tokens so far: the depth is what was opened
less what was closed, and the innermost constituent was opened by the last token that
led to this depth:

    tokens    (S  (NP  a  b  )NP  c
    depths     1   2   2  2   1   1     of the last 1 that an opening token made: (S

From no hypothesis that it allows is there no way on: room for the leaves that are left
and all that is to be closed is kept, so that every hypothesis ends within its limit.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

OTHER, OPENS, LEAF, CLOSES = range(4)  # kinds of tokens
ANY_LEAF = -1  # a leaf that any token of its kind may be
NO_LEAF = -2  # fills leaves up


class Grammar(NamedTuple):
    """What each token of a vocabulary means in a tree."""

    kinds: Array  # int8 [vocab]
    closers: Array  # int32 [vocab]: the token that closes what this one opens
    starts_word: Array  # bool [vocab]: within a word, no constituent begins or ends


def tree_tokens(
    grammar: Grammar,
    tokens: Int[Array, "beam max_length"],
    length: Int[Array, ""],
    leaves: Int[Array, " leaves"],
    limit: Int[Array, ""],
    *,
    end_id: int,
) -> Bool[Array, "beam vocab"]:
    """Which tokens lead to a tree of one root over exactly the leaves, and its end.

    Where the limit leaves no room for a root, leaves alone are allowed, as many as fit.

    Args:
      grammar: of the vocabulary.
      tokens: of the hypotheses; only the first `length` mean anything.
      length: of every hypothesis.
      leaves: the tokens, or `ANY_LEAF` each, in order; then `NO_LEAF`.
      limit: in tokens, `end_id` included.
      end_id: the token that ends a hypothesis.
    """
    positions = jnp.arange(tokens.shape[-1])[None]
    kinds = jnp.where(positions < length, grammar.kinds[tokens], OTHER)
    opens, closes = kinds == OPENS, kinds == CLOSES
    depths = jnp.cumsum(opens.astype(jnp.int32) - closes.astype(jnp.int32), axis=-1)
    depth = depths[:, -1]
    is_innermost = opens & (depths == depth[:, None])
    where = jnp.max(jnp.where(is_innermost, positions, 0), axis=-1)
    innermost = jnp.take_along_axis(tokens, where[:, None], axis=-1)[:, 0]
    is_empty = jnp.any(opens & (positions == length - 1), axis=-1)

    num_leaves = jnp.sum(leaves != NO_LEAF)
    num_made = jnp.sum(kinds == LEAF, axis=-1)
    num_left = num_leaves - num_made
    leaf = leaves.at[num_made].get(mode="fill", fill_value=NO_LEAF)
    is_in_word = (num_left > 0) & (num_made > 0)
    is_in_word &= (leaf != ANY_LEAF) & ~grammar.starts_word[leaf]
    room = limit - length - (num_left + depth + 1)  # beyond what is to come anyway

    may_open = (num_left > 0) & ~is_in_word & (room >= 2)  # itself and its closer
    may_add = (num_left > 0) & ((depth > 0) | (limit < num_leaves + 3))
    may_close = ~is_in_word & ~is_empty & ((depth > 1) | (num_left == 0))
    closer = jnp.where(depth > 0, grammar.closers[innermost], end_id)

    ids = jnp.arange(len(grammar.kinds))[None]
    is_leaf = (ids == leaf[:, None]) | (leaf == ANY_LEAF)[:, None]
    is_leaf &= (grammar.kinds == LEAF)[None]
    return (
        ((grammar.kinds == OPENS)[None] & may_open[:, None])
        | (is_leaf & may_add[:, None])
        | ((ids == closer[:, None]) & may_close[:, None])
    )
