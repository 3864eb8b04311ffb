"""Beam search as one `lax.while_loop`: the decoding of Sec. 6.1 of the paper.

The search knows no model, only a `step` that turns the last token of each hypothesis
into logits for the next one. It works in two layers:

* `beam_search` runs `step` on all sentences at once and loops until each is done;
* every decision is taken by functions of *one* sentence, mapped over the batch with
  `jax.vmap`. So a sentence's hypotheses cannot depend on its neighbours.

Two sets of `beam_size` hypotheses are kept for each sentence: the *alive*, all of the
same length and still growing, and the *finished*, which ended with `end_id`. A slot
whose log-probability is minus infinity is empty.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

Step = Callable[
    [Int[Array, "batch beam"], Int[Array, ""], PyTree],
    tuple[Float[Array, "batch beam vocab"], PyTree],
]


class Hypotheses(NamedTuple):
    """What a search found for each sentence, best first.

    An empty slot has length 0, only padding, and log-probability and score -inf.
    """

    tokens: Array  # int32 [batch, beam, max_length]: end_id included, then pad_id
    lengths: Array  # int32 [batch, beam]: number of tokens, end_id included
    log_probs: Array  # float32 [batch, beam]: sum of the tokens' log-probabilities
    scores: Array  # float32 [batch, beam]: log_probs / length_penalty(lengths)
    is_finished: Array  # bool [batch, beam]: ended by end_id, not by the limit


@struct.dataclass
class _Sentence:
    """The search of one sentence; in the loop, each leaf has a leading batch axis."""

    max_length: Array  # int32 []: the sentence's own limit, in tokens with end_id
    length: Array  # int32 []: number of tokens in each alive hypothesis
    last_tokens: Array  # int32 [beam]: what each alive hypothesis feeds to the step
    alive_tokens: Array  # int32 [beam, max_length]: pad_id from `length` on
    alive_log_probs: Array  # float32 [beam]: falling; -inf where the slot is empty
    finished: Hypotheses  # leaves [beam, ...]: best first, empty slots last


@struct.dataclass
class _SearchState:
    """What the loop carries."""

    position: Array  # int32 []: position of the tokens fed next; start_id is at 0
    sentences: _Sentence  # leaves [batch, ...]
    cache: PyTree  # leaves [batch, beam, ...]: row for row with the alive hypotheses


def length_penalty(
    length: Int[Array, "*axes"] | int, alpha: float
) -> Float[Array, "*axes"]:
    """Returns what a log-probability is divided by to compare different lengths.

    `((5 + length) / 6) ** alpha`, from Wu et al. 2016 (GNMT, arXiv:1609.08144),
    equation 14. The paper uses alpha = 0.6 (Sec. 6.1).

    Args:
      length: Number of tokens, `end_id` included.
      alpha: Strength; 0 ranks by log-probability, larger values favour longer ones.

    Returns:
      The penalty in float32; 1 for a single token.

    Example:
      >>> float(length_penalty(7, alpha=1.0))
      2.0
    """
    return ((5.0 + jnp.asarray(length)) / 6.0) ** alpha


def beam_search(
    step: Step,
    cache: PyTree,
    *,
    start_id: int,
    end_id: int,
    beam_size: int,
    max_lengths: Int[Array, " batch"],
    max_length: int,
    length_penalty: float = 0.6,
    num_hypotheses: int = 1,
    pad_id: int = 0,
) -> Hypotheses:
    """Returns the hypotheses of highest `log_prob / length_penalty`, best first.

    **Growing.** At each step the `2 * beam_size` most probable continuations of the
    alive hypotheses are taken. At most one continuation of each hypothesis is
    `end_id`, so at least `beam_size` go on: the best of these are the new alive ones.
    Those that end compete with the finished ones by score. Ties go to the better
    hypothesis, then to the lower token id, and to what finished earlier.

    **Greedy.** `beam_size=1` takes one continuation, not two, and is therefore argmax
    decoding. (With two, the runner-up of `end_id` would live on, and could win by its
    length.)

    **Limit.** At its own `max_lengths` a sentence stops. Its alive hypotheses, cut off
    there, then fill the slots for which nothing finished; they never displace a
    finished one, whatever their score.

    **Early stop.** A sentence also stops once `num_hypotheses` finished ones score at
    least `best alive log_prob / length_penalty(max_lengths)`. Nothing is lost: let p be
    the log-probability of a hypothesis that would finish later, n its length, a the
    best alive log-probability now and L the limit. A log-probability only falls as
    tokens are added, so p <= a <= 0; as n <= L and `length_penalty` >= 0, the penalty
    at n is at most that at L. Hence p / penalty(n) <= p / penalty(L) <= a / penalty(L).
    A done sentence no longer changes, though `step` is still called on its rows.

    **Devices.** With a batch sharded over devices, `lax.top_k` makes XLA gather the
    logits of the whole batch on each of them. `jax.shard_map(..., check_vma=False)`
    over the batch axis avoids it: each device searches, and stops, on its own.

    Args:
      step: `(tokens, position, cache) -> (logits, cache)`: feeds the token at
        `position` of each hypothesis (`start_id` at position 0) and returns the logits
        of the token after it, in any float dtype. A logit of -inf forbids a token.
      cache: What `step` carries from token to token. Every leaf is
        [batch, beam, ...] and follows its hypothesis when the beam is reordered. What
        all hypotheses of a sentence share, such as the encoder's output, is better
        closed over by `step`: it need not be gathered at each token.
      start_id: The token fed first; not part of a hypothesis.
      end_id: The token that finishes a hypothesis.
      beam_size: Number of alive hypotheses, from 1 to the vocabulary's size.
      max_lengths: Each sentence's limit in tokens, `end_id` included; cut to
        [0, max_length]. A row with limit 0 adds no step and has one empty, unfinished
        hypothesis.
      max_length: Length of the tokens axis, and the most steps the loop can take.
      length_penalty: Alpha of `length_penalty`, at least 0.
      num_hypotheses: How many of the best must be exact, from 1 to `beam_size`. A
        sentence that stops early may leave later slots empty or not the best.
      pad_id: Fills the tokens axis after a hypothesis.

    Returns:
      `beam_size` hypotheses for each sentence, in order: finished ones, unfinished
      ones, empty slots.

    Raises:
      ValueError: An argument is out of its range, or a cache leaf is not
        [batch, beam, ...].

    Example:
      A model without memory: token 1 has probability 1/4, the end, 2, has 3/4::

        logits = jnp.log(jnp.array([0.0, 1.0, 3.0]))

        def step(tokens, position, cache):
            return jnp.broadcast_to(logits, (*tokens.shape, 3)), cache

        found = beam_search(
            step, {}, start_id=0, end_id=2, beam_size=2, num_hypotheses=2,
            max_lengths=jnp.array([5]), max_length=5)
        found.tokens[0]                # [[2, 0, 0, 0, 0], [1, 2, 0, 0, 0]]
        jnp.exp(found.log_probs[0])    # [3/4, 3/16]
    """
    (batch,) = max_lengths.shape
    _check_arguments(
        cache, batch, beam_size, max_length, num_hypotheses, alpha=length_penalty
    )
    is_done = partial(_is_done, alpha=length_penalty, num_hypotheses=num_hypotheses)

    def is_any_sentence_growing(state: _SearchState) -> Array:
        return ~jnp.all(jax.vmap(is_done)(state.sentences))

    def grow_sentence(
        sentence: _Sentence, logits: Array, cache: PyTree
    ) -> tuple[_Sentence, PyTree]:
        grown, parents = _grow(sentence, logits, end_id=end_id, alpha=length_penalty)
        kept = jax.tree.map(partial(jnp.where, is_done(sentence)), sentence, grown)
        return kept, jax.tree.map(lambda leaf: leaf[parents], cache)

    def grow_all(state: _SearchState) -> _SearchState:
        logits, cache = step(state.sentences.last_tokens, state.position, state.cache)
        _check_vocabulary(logits.shape[-1], beam_size=beam_size, end_id=end_id)
        sentences, cache = jax.vmap(grow_sentence)(state.sentences, logits, cache)
        return _SearchState(state.position + 1, sentences, cache)

    start = partial(
        _start,
        start_id=start_id,
        pad_id=pad_id,
        beam_size=beam_size,
        capacity=max_length,
    )
    state = _SearchState(
        position=jnp.int32(0),
        sentences=jax.vmap(start)(jnp.clip(max_lengths, 0, max_length)),
        cache=cache,
    )
    state = lax.while_loop(is_any_sentence_growing, grow_all, state)
    return jax.vmap(partial(_conclude, alpha=length_penalty))(state.sentences)


def _start(
    max_length: Int[Array, ""],
    *,
    start_id: int,
    pad_id: int,
    beam_size: int,
    capacity: int,
) -> _Sentence:
    """The state before the first token: one alive hypothesis, the empty one."""
    no_tokens = jnp.full((beam_size, capacity), pad_id, jnp.int32)
    empty = jnp.full(beam_size, -jnp.inf, jnp.float32)
    return _Sentence(
        max_length=max_length.astype(jnp.int32),
        length=jnp.int32(0),
        last_tokens=jnp.full(beam_size, start_id, jnp.int32),
        alive_tokens=no_tokens,
        alive_log_probs=empty.at[0].set(0.0),
        finished=Hypotheses(
            tokens=no_tokens,
            lengths=jnp.zeros(beam_size, jnp.int32),
            log_probs=empty,
            scores=empty,
            is_finished=jnp.zeros(beam_size, bool),
        ),
    )


def _is_done(
    sentence: _Sentence, *, alpha: float, num_hypotheses: int
) -> Array:  # bool []
    """Whether a sentence is at its limit or can find nothing better (see above)."""
    is_at_limit = sentence.length >= sentence.max_length
    # With no alive hypothesis left, the bound is -inf: nothing more can finish.
    bound = sentence.alive_log_probs[0] / length_penalty(sentence.max_length, alpha)
    return is_at_limit | (sentence.finished.scores[num_hypotheses - 1] >= bound)


def _grow(
    sentence: _Sentence,
    logits: Float[Array, "beam vocab"],
    *,
    end_id: int,
    alpha: float,
) -> tuple[_Sentence, Int[Array, " beam"]]:
    """One more token: the new state, and the beam each alive hypothesis came from."""
    (beam_size,) = sentence.last_tokens.shape
    log_probs, parents, last_tokens = _best_continuations(
        logits, sentence.alive_log_probs
    )
    tokens = sentence.alive_tokens[parents].at[:, sentence.length].set(last_tokens)
    length = sentence.length + 1
    is_end = last_tokens == end_id

    alive_log_probs, alive = lax.top_k(
        jnp.where(is_end, -jnp.inf, log_probs), beam_size
    )
    ended = _hypotheses_of_one_length(
        tokens, length, jnp.where(is_end, log_probs, -jnp.inf), is_end, alpha=alpha
    )
    # The empty slots of `finished` come before the -inf of `ended`, and win the ties:
    # what is not an ended hypothesis never enters.
    pool = jax.tree.map(lambda *x: jnp.concatenate(x), sentence.finished, ended)
    _, best = lax.top_k(pool.scores, beam_size)

    grown = _Sentence(
        max_length=sentence.max_length,
        length=length,
        last_tokens=last_tokens[alive],
        alive_tokens=tokens[alive],
        alive_log_probs=alive_log_probs,
        finished=jax.tree.map(lambda leaf: leaf[best], pool),
    )
    return grown, parents[alive]


def _best_continuations(
    logits: Float[Array, "beam vocab"], alive_log_probs: Float[Array, " beam"]
) -> tuple[
    Float[Array, " candidates"], Int[Array, " candidates"], Int[Array, " candidates"]
]:
    """The most probable (log-probability, beam, token), best first.

    First the best tokens of each beam, then the best of those, because the best of all
    are among the best of their beam. Only they need a log-probability, so the logits
    are never copied into log-probabilities of the whole vocabulary.
    """
    beam_size, vocab_size = logits.shape
    num_candidates = 2 * beam_size if beam_size > 1 else 1  # one: argmax decoding
    tokens_per_beam = min(num_candidates, vocab_size)
    num_candidates = min(num_candidates, beam_size * tokens_per_beam)

    # Before top_k: XLA has a fast one on CPU for float32, while bfloat16 is sorted.
    logits = logits.astype(jnp.float32)
    top_logits, tokens = lax.top_k(logits, tokens_per_beam)  # [beam, tokens_per_beam]
    token_log_probs = top_logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    log_probs = alive_log_probs[:, None] + token_log_probs
    log_probs, best = lax.top_k(log_probs.reshape(-1), num_candidates)
    return log_probs, best // tokens_per_beam, tokens.reshape(-1)[best]


def _conclude(sentence: _Sentence, *, alpha: float) -> Hypotheses:
    """The finished hypotheses; at the limit, the alive ones in the slots left empty.

    With a beam of 4, two finished f and three alive a (- is an empty slot):
    `f0 f1 - -` and `a0 a1 a2 -` become `f0 f1 a0 a1`.
    """
    (beam_size,) = sentence.last_tokens.shape
    cut_off = _hypotheses_of_one_length(
        sentence.alive_tokens,
        sentence.length,
        sentence.alive_log_probs,
        jnp.zeros(beam_size, bool),
        alpha=alpha,
    )
    is_at_limit = sentence.length >= sentence.max_length
    num_finished = jnp.sum(sentence.finished.is_finished)
    num_cut_off = jnp.sum(is_at_limit & (sentence.alive_log_probs > -jnp.inf))

    slots = jnp.arange(beam_size)
    takes_cut_off = (slots >= num_finished) & (slots < num_finished + num_cut_off)
    source = jnp.where(takes_cut_off, beam_size + slots - num_finished, slots)
    return jax.tree.map(
        lambda *x: jnp.concatenate(x)[source], sentence.finished, cut_off
    )


def _hypotheses_of_one_length(
    tokens: Int[Array, "candidates max_length"],
    length: Int[Array, ""],
    log_probs: Float[Array, " candidates"],
    is_finished: Array,  # bool [candidates]
    *,
    alpha: float,
) -> Hypotheses:
    return Hypotheses(
        tokens=tokens,
        lengths=jnp.full_like(log_probs, length, jnp.int32),
        log_probs=log_probs,
        scores=log_probs / length_penalty(length, alpha),
        is_finished=is_finished,
    )


def _check_arguments(
    cache: PyTree,
    batch: int,
    beam_size: int,
    max_length: int,
    num_hypotheses: int,
    *,
    alpha: float,
) -> None:
    if beam_size < 1:
        raise ValueError(f"beam_size is {beam_size}, expected at least 1 (greedy).")
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}, expected at least 1 token.")
    if not 1 <= num_hypotheses <= beam_size:
        raise ValueError(
            f"num_hypotheses is {num_hypotheses}, expected 1 to beam_size = "
            f"{beam_size}: ask for fewer, or widen the beam."
        )
    if not 0 <= alpha < float("inf"):
        raise ValueError(
            f"length_penalty is {alpha}, expected a finite number of at least 0 (a "
            f"negative one would favour short hypotheses): use 0 for no penalty."
        )
    for path, leaf in jax.tree.leaves_with_path(cache):
        if jnp.shape(leaf)[:2] != (batch, beam_size):
            raise ValueError(
                f"cache{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}, "
                f"expected [batch = {batch}, beam = {beam_size}, ...]: repeat each "
                f"sentence's cache beam_size times along a second axis."
            )


def _check_vocabulary(vocab_size: int, *, beam_size: int, end_id: int) -> None:
    if beam_size > vocab_size:
        raise ValueError(
            f"beam_size is {beam_size}, expected at most {vocab_size}, the number of "
            f"tokens that step returns logits for: choose a smaller beam."
        )
    if not 0 <= end_id < vocab_size:
        raise ValueError(
            f"end_id is {end_id}, expected 0 to {vocab_size - 1}, the tokens that step "
            f"returns logits for: pass the vocabulary's own end_id."
        )
