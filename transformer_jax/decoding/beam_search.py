"""Beam search as one `lax.while_loop`: the decoding of Sec. 6.1 of the paper, and more.

The search knows no model, only a `step` that turns the last token of each hypothesis
into logits for the next one. It works in two layers:

* `advance` runs `step` on all sentences at once and loops until enough are done;
* every decision is taken by functions of *one* sentence, mapped over the batch with
  `jax.vmap`. So a sentence's hypotheses cannot depend on its neighbours.

Each sentence stands at its own position, so that a new one can take the place of one
that is done while the others go on: `start`, `advance`, `is_done` and `conclude` are
for those who keep a batch full; `beam_search` is all of them for one batch.

Two sets of `beam_size` hypotheses are kept for each sentence: the *alive*, all of the
same length and still growing, and the *finished*, which ended with `end_id`. A slot
whose log-probability is minus infinity is empty.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from transformer_jax.decoding.constraints import allowed_logits
from transformer_jax.decoding.sampling import truncated
from transformer_jax.decoding.trees import Grammar, tree_tokens
from transformer_jax.decoding.vocabulary import logsumexp, top_k

Step = Callable[
    [Int[Array, "batch beam"], Int[Array, " batch"], Int[Array, "batch beam T"], Any],
    tuple[Float[Array, "batch beam vocab"], PyTree],
]


class Hypotheses(NamedTuple):
    """What a search found for each sentence, best first.

    An empty slot has length 0, only padding, and log-probability and score -inf.
    """

    tokens: Array  # int32 [batch, beam, max_length]: end_id included, then pad_id
    lengths: Array  # int32 [batch, beam]: number of tokens, end_id included
    log_probs: Array  # float32 [batch, beam]: sum of the tokens' log-probabilities
    scores: Array  # float32 [batch, beam]: what they are ranked by, see `Search`
    is_finished: Array  # bool [batch, beam]: ended by end_id, not by the limit


@dataclasses.dataclass(frozen=True)
class Search:
    """How to search: everything that is compiled into a program.

    Finished hypotheses are ranked by

        log_prob / penalty(length) + coverage_penalty * coverage

    with the penalty of `length_penalty` and the coverage of Wu et al. 2016, equation
    14: the sum over source tokens of log min(attention the token got in all, 1), which
    is 0 where each got its share and negative otherwise.

    Attributes:
      end_id: The token that finishes a hypothesis.
      beam_size: Number of alive hypotheses, from 1 to the vocabulary's size.
      num_hypotheses: How many of the best must be exact, from 1 to `beam_size`. A
        sentence that stops early may leave later slots empty or not the best.
      length_penalty: Alpha, at least 0.
      length_penalty_form: "gnmt" or "length", see the function `length_penalty`.
      early_stopping: Stop a sentence when nothing better can come (see `beam_search`);
        otherwise only at its limit, or where nothing is alive.
      coverage_penalty: Strength of the coverage, at least 0.
      no_repeat_ngram_size: No n-gram of so many tokens occurs twice in a hypothesis;
        0 = off. What is forbidden keeps its probability: the others' do not rise.
      sampling: Draw each hypothesis at random instead, see `beam_search`.
      sampling_topk: Draw from so many of the most probable tokens; 0 = from all.
      sampling_topp: Draw from the fewest most probable tokens whose probabilities sum
        to at least this (Holtzman et al. 2020); 1 = from all.
      sampling_temperature: Logits are divided by it before drawing.
      start_id: The token fed first; not part of a hypothesis.
      pad_id: Fills the tokens axis after a hypothesis.

    Raises:
      ValueError: A value is out of its range.
    """

    end_id: int
    beam_size: int
    num_hypotheses: int = 1
    length_penalty: float = 0.6
    length_penalty_form: Literal["gnmt", "length"] = "gnmt"
    early_stopping: bool = True
    coverage_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    sampling: bool = False
    sampling_topk: int = 0
    sampling_topp: float = 1.0
    sampling_temperature: float = 1.0
    start_id: int = 1
    pad_id: int = 0

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise ValueError(
                f"beam_size is {self.beam_size}, expected at least 1 (greedy)."
            )
        if not 1 <= self.num_hypotheses <= self.beam_size:
            raise ValueError(
                f"num_hypotheses is {self.num_hypotheses}, expected 1 to beam_size = "
                f"{self.beam_size}: ask for fewer, or widen the beam."
            )
        for name in ("length_penalty", "coverage_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected a finite number of at "
                    f"least 0: use 0 for no penalty."
                )
        for name in ("no_repeat_ngram_size", "sampling_topk"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected at least 0 (off)."
                )
        if not 0 < self.sampling_topp <= 1:
            raise ValueError(
                f"sampling_topp is {self.sampling_topp}, expected more than 0 and at "
                f"most 1 (all tokens)."
            )
        if not 0 < self.sampling_temperature < math.inf:
            raise ValueError(
                f"sampling_temperature is {self.sampling_temperature}, expected a "
                f"finite number of more than 0."
            )

    def penalty(self, length: Int[Array, "*axes"] | int) -> Float[Array, "*axes"]:
        """What a log-probability is divided by; see `length_penalty`."""
        return length_penalty(
            length, self.length_penalty, form=self.length_penalty_form
        )


class Request(NamedTuple):
    """What is asked for each sentence; every leaf has a leading batch axis."""

    max_lengths: Array  # int32 [batch]: limit in tokens, end_id included; 0 = no row
    min_lengths: Array  # int32 [batch]: tokens before end_id is allowed
    prefixes: Array  # int32 [batch, prefix]: what each hypothesis begins with; then -1
    seeds: Array  # uint32 [batch, 2]: key data of `jax.random`, for sampling
    leaves: Array | None = None  # int32 [batch, leaves]: of a tree, see `tree_tokens`

    @classmethod
    def of(
        cls,
        max_lengths: Int[Array, " batch"],
        min_lengths: Int[Array, " batch"] | None = None,
        prefixes: Int[Array, "batch prefix"] | None = None,
        seeds: UInt32[Array, "batch 2"] | None = None,
        leaves: Int[Array, "batch leaves"] | None = None,
    ) -> "Request":
        """The request with what is left out: no minimum, no prefix, seed 0, no tree."""
        (batch,) = max_lengths.shape
        if min_lengths is None:
            min_lengths = jnp.zeros(batch, jnp.int32)
        if prefixes is None:
            prefixes = jnp.full((batch, 0), -1, jnp.int32)
        if seeds is None:
            seeds = jnp.zeros((batch, 2), jnp.uint32)
        return cls(max_lengths, min_lengths, prefixes, seeds, leaves)


class Sentence(NamedTuple):
    """The search of one sentence; in the loop, each leaf has a leading batch axis."""

    request: Request  # its own row of each leaf
    length: Array  # int32 []: number of tokens in each alive hypothesis
    last_tokens: Array  # int32 [beam]: what each alive hypothesis feeds to the step
    alive_tokens: Array  # int32 [beam, max_length]: pad_id from `length` on
    alive_log_probs: Array  # float32 [beam]: -inf where the slot is empty
    ancestors: Array  # int32 [beam, max_length]: see `beam_search`
    coverage: Array  # float32 [beam, source]: attention so far; source 0 if not needed
    finished: Hypotheses  # leaves [beam, ...]: best first, empty slots last


class SearchState(NamedTuple):
    """What the loop carries."""

    sentences: Sentence  # leaves [batch, ...]
    cache: PyTree  # leaves [batch, ...]


def length_penalty(
    length: Int[Array, "*axes"] | int,
    alpha: float,
    *,
    form: Literal["gnmt", "length"] = "gnmt",
) -> Float[Array, "*axes"]:
    """Returns what a log-probability is divided by to compare different lengths.

    "gnmt" is `((5 + length) / 6) ** alpha`, from Wu et al. 2016 (GNMT,
    arXiv:1609.08144), equation 14; the paper uses alpha = 0.6 (Sec. 6.1). "length" is
    `length ** alpha`; with alpha = 1, the mean log-probability of a token.

    Args:
      length: Number of tokens, `end_id` included.
      alpha: Strength; 0 ranks by log-probability, larger values favour longer ones.
      form: "gnmt" or "length".

    Returns:
      The penalty in float32; 1 for a single token. That of length 0 is that of 1.

    Example:
      >>> float(length_penalty(7, alpha=1.0))
      2.0
      >>> float(length_penalty(7, alpha=1.0, form="length"))
      7.0
    """
    length = jnp.maximum(jnp.asarray(length, jnp.float32), 1.0)
    base = (5.0 + length) / 6.0 if form == "gnmt" else length
    return base**alpha


def beam_search(
    step: Step,
    cache: PyTree,
    search: Search,
    *,
    max_lengths: Int[Array, " batch"],
    max_length: int,
    min_lengths: Int[Array, " batch"] | None = None,
    prefixes: Int[Array, "batch prefix"] | None = None,
    seeds: UInt32[Array, "batch 2"] | None = None,
    suppressed: Int[Array, "sequences length"] | None = None,
    leaves: Int[Array, "batch leaves"] | None = None,
    grammar: Grammar | None = None,
    attention: Callable[[PyTree], Float[Array, "batch beam source"]] | None = None,
) -> Hypotheses:
    """Returns the hypotheses of highest score, best first.

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
    least `best alive log_prob / penalty(max_lengths)`. Nothing is lost: let p be the
    log-probability of a hypothesis that would finish later, n its length, a the best
    alive log-probability now and L the limit. A log-probability only falls as tokens
    are added, so p <= a <= 0; as n <= L and the penalty rises with the length, that at
    n is at most that at L. Hence p / penalty(n) <= p / penalty(L) <= a / penalty(L),
    and coverage, never above 0, can only lower its score. A done sentence no longer
    changes, though `step` is still called on its rows.

    **Sampling.** With `search.sampling` the beam is `beam_size` independent draws: each
    hypothesis takes at each step a token drawn from what the model, the temperature,
    top-k and top-p leave, by a random number that is a function of the sentence's seed,
    the slot and the position. They are ranked by score, and their log-probabilities are
    the model's own.

    **Ancestors.** The cache of a hypothesis stays where it was written: hypotheses
    change slots, caches do not. `ancestors[b, n, t]` is the slot whose token at
    position t belongs to the past of the hypothesis that is now in slot n, for t up to
    its position; what it is beyond means nothing.

    Args:
      step: `(tokens, positions, ancestors, cache) -> (logits, cache)`: feeds a token of
        each hypothesis (`start_id` at position 0) and returns the logits of the token
        after it, in any float dtype. A logit of -inf forbids a token.
      cache: What `step` carries from token to token; leaves [batch, ...].
      search: How.
      max_lengths: Each sentence's limit in tokens, `end_id` included; cut to
        [0, max_length]. A row with limit 0 adds no step and has one empty, unfinished
        hypothesis.
      max_length: Length of the tokens axis.
      min_lengths: Tokens of a hypothesis before `end_id` is allowed; 0 by default.
      prefixes: What each hypothesis must begin with, then -1. Its tokens count as any
        other: in the log-probability and in the length.
      seeds: Of the sentences, for sampling: key data as of `jax.random.key_data`.
      suppressed: Sequences that no hypothesis may contain, each padded with -1 at its
        front.
      leaves: Of the tree that each hypothesis is to be, see `tree_tokens`; needs a
        grammar.
      grammar: Of those trees. It leaves no room for a minimum, a prefix or what else
        forbids tokens.
      attention: Of the cache that `step` returned: how much each hypothesis attended to
        each source token, 1 where there is nothing to attend to. Needed for a coverage
        penalty.

    Returns:
      `beam_size` hypotheses for each sentence, in order: finished ones, unfinished
      ones, empty slots. Where everything was forbidden, all slots are empty.

    Raises:
      ValueError: An argument is out of its range.

    Example:
      A model without memory: token 1 has probability 1/4, the end, 2, has 3/4::

        logits = jnp.log(jnp.array([0.0, 1.0, 3.0]))

        def step(tokens, positions, ancestors, cache):
            return jnp.broadcast_to(logits, (*tokens.shape, 3)), cache

        found = beam_search(
            step, {}, Search(end_id=2, beam_size=2, num_hypotheses=2),
            max_lengths=jnp.array([5]), max_length=5)
        found.tokens[0]                # [[2, 0, 0, 0, 0], [1, 2, 0, 0, 0]]
        jnp.exp(found.log_probs[0])    # [3/4, 3/16]
    """
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}, expected at least 1 token.")
    if search.coverage_penalty and attention is None:
        raise ValueError("coverage_penalty needs attention, which was not given.")
    num_covered = 0
    if search.coverage_penalty and attention is not None:
        num_covered = jax.eval_shape(attention, cache).shape[-1]
    if (grammar is None) != (leaves is None):
        raise ValueError("leaves and a grammar need each other, one was not given.")
    request = Request.of(max_lengths, min_lengths, prefixes, seeds, leaves)
    state = SearchState(
        start(search, request, max_length=max_length, num_covered=num_covered), cache
    )
    state = advance(
        step,
        state,
        search,
        suppressed=suppressed,
        grammar=grammar,
        attention=attention,
    )
    return conclude(search, state)


def start(
    search: Search, request: Request, *, max_length: int, num_covered: int = 0
) -> Sentence:
    """The sentences before their first token; arguments as in `beam_search`."""

    def one(request: Request) -> Sentence:
        beam_size = search.beam_size
        no_tokens = jnp.full((beam_size, max_length), search.pad_id, jnp.int32)
        empty = jnp.full(beam_size, -jnp.inf, jnp.float32)
        # A beam begins with one hypothesis, the empty one; samples are all drawn.
        alive = jnp.zeros_like(empty) if search.sampling else empty.at[0].set(0.0)
        limit = jnp.clip(request.max_lengths, 0, max_length).astype(jnp.int32)
        return Sentence(
            request=request._replace(max_lengths=limit),
            length=jnp.int32(0),
            last_tokens=jnp.full(beam_size, search.start_id, jnp.int32),
            alive_tokens=no_tokens,
            alive_log_probs=alive,
            ancestors=jnp.zeros_like(no_tokens),
            coverage=jnp.zeros((beam_size, num_covered), jnp.float32),
            finished=Hypotheses(
                tokens=no_tokens,
                lengths=jnp.zeros(beam_size, jnp.int32),
                log_probs=empty,
                scores=empty,
                is_finished=jnp.zeros(beam_size, bool),
            ),
        )

    return jax.vmap(one)(request)


def is_done(search: Search, state: SearchState) -> Bool[Array, " batch"]:
    """Which sentences are at their limit or can find nothing better."""
    return jax.vmap(partial(_is_done, search))(state.sentences)


def advance(
    step: Step,
    state: SearchState,
    search: Search,
    *,
    num_done: Int[Array, ""] | int | None = None,
    suppressed: Int[Array, "sequences length"] | None = None,
    grammar: Grammar | None = None,
    attention: Callable[[PyTree], Float[Array, "batch beam source"]] | None = None,
) -> SearchState:
    """The state when at least `num_done` sentences are done, by default all.

    The other arguments are as in `beam_search`.
    """
    (batch,) = state.sentences.length.shape
    num_done = batch if num_done is None else num_done

    def goes_on(state: SearchState) -> Array:
        return jnp.sum(is_done(search, state)) < num_done

    def grow_all(state: SearchState) -> SearchState:
        sentences, is_over = state.sentences, is_done(search, state)
        # A done sentence is at 0: it must not keep the others' step reading far.
        positions = jnp.where(is_over, 0, sentences.length)
        sentences = jax.vmap(_with_own_slots)(sentences)
        logits, cache = step(
            sentences.last_tokens, positions, sentences.ancestors, state.cache
        )
        _check_vocabulary(logits.shape[-1], search)
        if search.coverage_penalty and attention is not None:
            covered = sentences.coverage + attention(cache)
            sentences = sentences._replace(coverage=covered)
        tokens = _continuations(search, sentences, logits, suppressed, grammar)
        grown = jax.vmap(partial(_grow, search))(sentences, tokens)
        keep = jax.vmap(
            lambda is_over, *pair: jax.tree.map(partial(jnp.where, is_over), *pair)
        )
        return SearchState(keep(is_over, state.sentences, grown), cache)

    return lax.while_loop(goes_on, grow_all, state)


def _with_own_slots(sentence: Sentence) -> Sentence:
    """The token about to be fed is written to the hypothesis's own slot."""
    beam_size, max_length = sentence.ancestors.shape
    is_here = jnp.arange(max_length) == sentence.length
    slots = jnp.arange(beam_size, dtype=jnp.int32)[:, None]
    ancestors = jnp.where(is_here[None], slots, sentence.ancestors)
    return sentence._replace(ancestors=ancestors)


def _is_done(search: Search, sentence: Sentence) -> Bool[Array, ""]:
    """Whether a sentence is at its limit or can find nothing better (see above)."""
    is_at_limit = sentence.length >= sentence.request.max_lengths
    best = jnp.max(sentence.alive_log_probs)
    if search.sampling or not search.early_stopping:
        return is_at_limit | (best == -jnp.inf)
    # With no alive hypothesis left, the bound is -inf: nothing more can finish.
    bound = best / search.penalty(sentence.request.max_lengths)
    return is_at_limit | (sentence.finished.scores[search.num_hypotheses - 1] >= bound)


class _Continuations(NamedTuple):
    """Tokens that hypotheses may go on with; leaves have leading axes."""

    log_probs: Array  # float32 [candidates]: of the whole hypothesis
    parents: Array  # int32 [candidates]: slots of the hypotheses they continue
    tokens: Array  # int32 [candidates]


def _continuations(
    search: Search,
    sentences: Sentence,
    logits: Float[Array, "batch beam vocab"],
    suppressed: Int[Array, "sequences length"] | None,
    grammar: Grammar | None,
) -> _Continuations:
    """Of each sentence, the most probable ones, best first, or random ones.

    Of a beam, first the best tokens of each hypothesis, then the best of those, because
    the best of all are among the best of their hypothesis. Only they need a
    log-probability, so the logits are never copied into log-probabilities of the whole
    vocabulary.
    """
    batch, beam_size, vocab_size = logits.shape
    logits = logits.astype(jnp.float32)
    log_normaliser = logsumexp(logits.reshape(-1, vocab_size)).reshape(batch, -1)
    request = sentences.request
    if (
        search.no_repeat_ngram_size
        or suppressed is not None
        or request.prefixes.shape[1]
    ):
        allow = partial(
            allowed_logits,
            no_repeat_ngram_size=search.no_repeat_ngram_size,
            suppressed=suppressed,
        )
        logits = jax.vmap(allow)(
            logits, sentences.alive_tokens, sentences.length, request.prefixes
        )
    if grammar is not None and request.leaves is not None:
        leads_on = jax.vmap(partial(tree_tokens, grammar, end_id=search.end_id))(
            sentences.alive_tokens,
            sentences.length,
            request.leaves,
            request.max_lengths,
        )
        logits = jnp.where(leads_on, logits, -jnp.inf)
    may_end = sentences.length >= request.min_lengths
    if search.sampling:
        draw = partial(_drawn, search)
        return jax.vmap(draw)(sentences, logits, log_normaliser, may_end)
    num_candidates = 2 * beam_size if beam_size > 1 else 1  # one: argmax decoding
    # One more than needed: the end may have to be left out.
    tokens_per_beam = min(num_candidates + 1, vocab_size)
    top_logits, tokens = top_k(logits.reshape(-1, vocab_size), tokens_per_beam)
    top_logits = top_logits.reshape(batch, beam_size, -1)
    tokens = tokens.reshape(batch, beam_size, -1)
    is_out = (tokens == search.end_id) & ~may_end[:, None, None]
    top_logits = jnp.where(is_out, -jnp.inf, top_logits)
    log_probs = top_logits + (sentences.alive_log_probs - log_normaliser)[..., None]
    # A model that allows no token at all has no normaliser either.
    log_probs = jnp.where(jnp.isneginf(top_logits), -jnp.inf, log_probs)
    num_candidates = min(num_candidates, beam_size * tokens_per_beam)
    log_probs, best = lax.top_k(log_probs.reshape(batch, -1), num_candidates)
    return _Continuations(
        log_probs,
        best // tokens_per_beam,
        jnp.take_along_axis(tokens.reshape(batch, -1), best, axis=1, mode="clip"),
    )


def _drawn(
    search: Search,
    sentence: Sentence,
    logits: Float[Array, "beam vocab"],
    log_normaliser: Float[Array, " beam"],
    may_end: Bool[Array, ""],
) -> _Continuations:
    """One token for each hypothesis, at random."""
    slots = jnp.arange(search.beam_size)
    end = jnp.where(may_end, logits[:, search.end_id], -jnp.inf)
    logits = logits.at[:, search.end_id].set(end)
    key = jax.random.wrap_key_data(sentence.request.seeds)
    key = jax.random.fold_in(key, sentence.length)
    tokens = jax.random.categorical(
        key,
        truncated(
            logits / search.sampling_temperature,
            num_tokens=search.sampling_topk,
            probability=search.sampling_topp,
        ),
    )
    log_probs = sentence.alive_log_probs + logits[slots, tokens] - log_normaliser
    return _Continuations(log_probs, slots, tokens)


def _grow(
    search: Search, sentence: Sentence, continuations: _Continuations
) -> Sentence:
    """The sentence with one more token."""
    log_probs, parents, last_tokens = continuations
    tokens = sentence.alive_tokens[parents].at[:, sentence.length].set(last_tokens)
    length = sentence.length + 1
    is_end = last_tokens == search.end_id
    coverage = sentence.coverage[parents]

    alive_log_probs = jnp.where(is_end, -jnp.inf, log_probs)
    if search.sampling:
        alive = jnp.arange(search.beam_size)  # each stays in its slot
    else:
        alive_log_probs, alive = lax.top_k(alive_log_probs, search.beam_size)
    ended = _hypotheses_of_one_length(
        search,
        tokens,
        length,
        jnp.where(is_end, log_probs, -jnp.inf),
        is_end,
        coverage,
    )
    # The empty slots of `finished` come before the -inf of `ended`, and win the ties:
    # what is not an ended hypothesis never enters.
    pool = jax.tree.map(lambda *x: jnp.concatenate(x), sentence.finished, ended)
    _, best = lax.top_k(pool.scores, search.beam_size)
    return sentence._replace(
        length=length,
        last_tokens=last_tokens[alive],
        alive_tokens=tokens[alive],
        alive_log_probs=alive_log_probs,
        ancestors=sentence.ancestors[parents[alive]],
        coverage=coverage[alive],
        finished=jax.tree.map(lambda leaf: leaf[best], pool),
    )


def conclude(search: Search, state: SearchState) -> Hypotheses:
    """The finished hypotheses; at the limit, the alive ones in the slots left empty.

    With a beam of 4, two finished f and three alive a (- is an empty slot):
    `f0 f1 - -` and `a0 a1 a2 -` become `f0 f1 a0 a1`.
    """
    return jax.vmap(partial(_conclude, search))(state.sentences)


def _conclude(search: Search, sentence: Sentence) -> Hypotheses:
    slots = jnp.arange(search.beam_size)
    cut_off = _hypotheses_of_one_length(
        search,
        sentence.alive_tokens,
        sentence.length,
        sentence.alive_log_probs,
        jnp.zeros(search.beam_size, bool),
        sentence.coverage,
    )
    _, order = lax.top_k(cut_off.scores, search.beam_size)
    cut_off = jax.tree.map(lambda leaf: leaf[order], cut_off)
    is_at_limit = sentence.length >= sentence.request.max_lengths
    num_finished = jnp.sum(sentence.finished.is_finished)
    num_cut_off = jnp.sum(is_at_limit & (sentence.alive_log_probs > -jnp.inf))

    takes_cut_off = (slots >= num_finished) & (slots < num_finished + num_cut_off)
    source = jnp.where(takes_cut_off, search.beam_size + slots - num_finished, slots)
    return jax.tree.map(
        lambda *x: jnp.concatenate(x)[source], sentence.finished, cut_off
    )


def _hypotheses_of_one_length(
    search: Search,
    tokens: Int[Array, "candidates max_length"],
    length: Int[Array, ""],
    log_probs: Float[Array, " candidates"],
    is_finished: Array,  # bool [candidates]
    coverage: Float[Array, "candidates source"],
) -> Hypotheses:
    scores = log_probs / search.penalty(length)
    if search.coverage_penalty:
        tiny = jnp.finfo(jnp.float32).tiny
        covered = jnp.log(jnp.clip(coverage, tiny, 1.0)).sum(axis=-1)
        scores = scores + search.coverage_penalty * covered
    return Hypotheses(
        tokens=tokens,
        lengths=jnp.full_like(log_probs, length, jnp.int32),
        log_probs=log_probs,
        scores=scores,
        is_finished=is_finished,
    )


def _check_vocabulary(vocab_size: int, search: Search) -> None:
    if search.beam_size > vocab_size and not search.sampling:
        raise ValueError(
            f"beam_size is {search.beam_size}, expected at most {vocab_size}, the "
            f"number of tokens that step returns logits for: choose a smaller beam."
        )
    if not 0 <= search.end_id < vocab_size:
        raise ValueError(
            f"end_id is {search.end_id}, expected 0 to {vocab_size - 1}, the tokens "
            f"that step returns logits for: pass the vocabulary's own end_id."
        )
