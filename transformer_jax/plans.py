"""What is compiled to search and to score: pure functions of parameters and arrays.

A batch of the search has a fixed number of slots, each with a sentence of its own. What
a slot computes depends on its own sentence only: every product has the same shape
whatever the neighbours are.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.data.tokenizer import PAD_ID, START_ID
from transformer_jax.decoding.beam_search import (
    Hypotheses,
    Request,
    Search,
    SearchState,
    Sentence,
    Step,
    advance,
    conclude,
    is_done,
    start,
)
from transformer_jax.decoding.trees import NO_LEAF, Grammar
from transformer_jax.models import Cache, Memory, Transformer

Ensemble = Literal["probabilities", "log_probabilities"]


@dataclasses.dataclass(frozen=True)
class Job:
    """A sentence to search for, as token ids without start and end."""

    source: Sequence[int]
    prefix: Sequence[int] = ()
    seed: int = 0  # for sampling, below 2^64
    leaves: Sequence[int] = ()  # of the tree that is wanted, at most one a source token


class Slots(NamedTuple):
    """Sentences under way, and what their steps read."""

    state: SearchState
    memories: tuple[Memory, ...]  # a model each


@dataclasses.dataclass(frozen=True)
class SearchPlan:
    """What is compiled: the models, the search, and the shape of a device's batch."""

    models: tuple[Transformer, ...]
    search: Search
    ensemble: Ensemble
    rows: int  # slots of a device
    source_length: int  # most tokens of a source, end included
    max_length: int  # most tokens of a hypothesis, end included
    prefix_length: int = 0  # most tokens of a prefix
    only_trees: bool = False

    def encode(self, params: Sequence[Any], source: Array) -> tuple[Memory, ...]:
        """The memories of rows [rows, any length up to `source_length`]."""
        missing = self.source_length - source.shape[1]
        segments = (source != PAD_ID).astype(jnp.int32)
        memories = []
        for model, weights in zip(self.models, params, strict=True):
            variables = {"params": weights}
            encoded: Any = model.apply(variables, source, segments, method="encode")
            memory, _ = self._start_decoding(model, weights, encoded, segments)
            memories.append(
                Memory(
                    tuple(_padded(x, missing, axis=3) for x in memory.keys),
                    tuple(_padded(x, missing, axis=2) for x in memory.values),
                    _padded(memory.mask, missing, axis=1),
                )
            )
        return tuple(memories)

    def empty(self, params: Sequence[Any]) -> Slots:
        """Slots without a sentence."""
        memories, caches = [], []
        for model, weights in zip(self.models, params, strict=True):
            shape = self.rows, self.source_length
            encoded = jnp.zeros((*shape, model.config.d_model))
            memory, cache = self._start_decoding(
                model, weights, encoded, jnp.zeros(shape, jnp.int32)
            )
            memories.append(memory)
            caches.append(cache)
        return Slots(
            SearchState(self._start(self.request([], 0)), tuple(caches)),
            tuple(memories),
        )

    def request(self, jobs: Sequence[tuple[Job, int]], least: int) -> Request:
        """The request of a row for each (job, most tokens); the rows after are empty.

        Args:
          jobs: at most `rows`.
          least: tokens of each hypothesis.
        """
        most = np.zeros(self.rows, np.int32)
        prefixes = np.full((self.rows, self.prefix_length), -1, np.int32)
        seeds = np.zeros((self.rows, 2), np.uint32)
        for row, (job, most[row]) in enumerate(jobs):
            prefixes[row, : len(job.prefix)] = job.prefix
            seeds[row] = job.seed >> 32, job.seed & 0xFFFF_FFFF
        leaves = None
        if self.only_trees:
            leaves = np.full((self.rows, self.source_length), NO_LEAF, np.int32)
            for row, (job, _) in enumerate(jobs):
                leaves[row, : len(job.leaves)] = job.leaves
        minima = np.full(self.rows, least, np.int32)
        arrays: Any = most, minima, prefixes, seeds, leaves
        return Request(*arrays)

    def insert(
        self,
        old: tuple[Sentence, tuple[Memory, ...]],
        memories: tuple[Memory, ...],
        request: Request,
        where: Int[Array, " rows"],
    ) -> tuple[Sentence, tuple[Memory, ...]]:
        """What is in the slots, with row r of what is new in slot `where[r]`, if any.

        The cache needs nothing: what others left there is no ancestor's.
        """
        new = self._start(request), memories
        return jax.tree.map(lambda x, y: x.at[where].set(y, mode="drop"), old, new)

    def advance(
        self,
        params: Sequence[Any],
        slots: Slots,
        suppressed: Int[Array, "sequences length"] | None,
        grammar: Grammar | None,
        num_done: Int[Array, ""],
    ) -> tuple[Slots, Array, Hypotheses]:
        """The slots when `num_done` are done; which are; what was found in each."""
        step = self._step(params, slots.memories)
        state = advance(
            step,
            slots.state,
            self.search,
            num_done=num_done,
            suppressed=suppressed,
            grammar=grammar,
            attention=self._attention,
        )
        found = jax.tree.map(
            lambda leaf: leaf[:, : self.search.num_hypotheses],
            conclude(self.search, state),
        )
        return Slots(state, slots.memories), is_done(self.search, state), found

    def _start(self, request: Request) -> Sentence:
        covered = self.source_length if self.search.coverage_penalty else 0
        return start(
            self.search, request, max_length=self.max_length, num_covered=covered
        )

    def _start_decoding(
        self, model: Transformer, params: Any, encoded: Array, segments: Array
    ) -> tuple[Memory, Cache]:
        started: Any = model.apply(
            {"params": params},
            encoded,
            segments,
            beam_size=self.search.beam_size,
            max_length=self.max_length,
            wants_attention=self.search.coverage_penalty > 0,
            method="start_decoding",
        )
        return started

    def _step(self, params: Sequence[Any], memories: tuple[Memory, ...]) -> Step:
        def step(
            tokens: Array, positions: Array, ancestors: Array, caches: tuple[Cache, ...]
        ) -> tuple[Array, tuple[Cache, ...]]:
            predictions = [
                model.apply(
                    {"params": weights},
                    tokens,
                    positions,
                    ancestors,
                    cache,
                    memory,
                    method="decode_step",
                )
                for model, weights, cache, memory in zip(
                    self.models, params, caches, memories, strict=True
                )
            ]
            logits, caches = zip(*predictions, strict=True)
            return combined(logits, self.ensemble), caches

        return step

    def _attention(self, caches: tuple[Cache, ...]) -> Array:
        return jnp.mean(
            jnp.stack([c.attention for c in caches if c.attention is not None]), axis=0
        )


@dataclasses.dataclass(frozen=True)
class ScorePlan:
    """What is compiled to score given translations."""

    models: tuple[Transformer, ...]
    ensemble: Ensemble
    attention: tuple[int, tuple[int, ...]] | None  # layer, heads: see `Searcher.score`

    def score(
        self, params: Sequence[Any], source: Array, target: Array
    ) -> tuple[Float[Array, "rows target"], Float[Array, "rows target source"]]:
        """Log-probability of each target token, and attention, 0 wide if not wanted."""
        shifted = jnp.roll(target, 1, axis=1).at[:, 0].set(START_ID)
        segments = [(side != PAD_ID).astype(jnp.int32) for side in (source, target)]
        logits, weights = [], []
        for model, model_params in zip(self.models, params, strict=True):
            scores, kept = model.apply(
                {"params": model_params},
                source,
                shifted,
                *segments,
                mutable=["intermediates"] if self.attention else [],
            )
            logits.append(scores)
            if self.attention:
                weights.append(self._weights(kept["intermediates"]))
        scores = combined(logits, self.ensemble)
        log_probs = jnp.take_along_axis(scores, target[..., None], axis=-1)[..., 0]
        log_probs = log_probs - jax.nn.logsumexp(scores, axis=-1)
        no_weights = jnp.zeros((*target.shape, 0))
        if not weights:
            return log_probs, no_weights
        return log_probs, jnp.mean(jnp.stack(weights), axis=0)

    def _weights(self, kept: Any) -> Float[Array, "rows target source"]:
        assert self.attention is not None
        layer, heads = self.attention
        number = layer % sum(name.startswith("decoder_") for name in kept)
        (weights,) = kept[f"decoder_{number}"]["cross_attention"]["attention_weights"]
        chosen = weights[:, jnp.asarray(heads)] if heads else weights
        return jnp.mean(chosen, axis=1)


def combined(
    logits: Sequence[Float[Array, "*axes vocab"]], ensemble: Ensemble
) -> Float[Array, "*axes vocab"]:
    """The logits of several models as one: the average of their (log-)probabilities.

    An average of log-probabilities is made a distribution again by the next softmax.
    """
    if len(logits) == 1:
        return logits[0]
    log_probs = jnp.stack([jax.nn.log_softmax(x, axis=-1) for x in logits])
    if ensemble == "log_probabilities":
        return jnp.mean(log_probs, axis=0)
    return jax.nn.logsumexp(log_probs, axis=0) - math.log(len(logits))


def _padded(x: Array, missing: int, *, axis: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    return jnp.pad(x, widths)


class Programs(NamedTuple):
    """The functions of a plan, compiled when they are first used on a device."""

    encode: Any
    empty: Any
    insert: Any
    advance: Any

    @classmethod
    def of(cls, plan: SearchPlan) -> "Programs":
        """Slots are handed over: what `insert` and `advance` get, they overwrite."""
        return cls(
            encode=jax.jit(plan.encode),
            empty=jax.jit(plan.empty),
            insert=jax.jit(plan.insert, donate_argnums=0),
            advance=jax.jit(plan.advance, donate_argnums=1),
        )
