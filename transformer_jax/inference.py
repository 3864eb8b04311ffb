"""Trained models over token ids: searching and scoring, on the devices of a mesh.

A batch of the search has a fixed number of slots. Sentences that are done leave theirs,
and others take their place while the rest go on, so that the devices always work on
full batches. What a slot computes depends on its own sentence only: every product has
the same shape whatever the neighbours are, and a sentence's own length decides how far
it is padded. So a translation is the same, to the last bit, whatever its neighbours are
and however many devices there are.
"""

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from transformer_jax.config import DecodingConfig
from transformer_jax.data.tokenizer import END_ID, PAD_ID, START_ID
from transformer_jax.decoding.beam_search import (
    Hypotheses,
    Request,
    Search,
    SearchState,
    Step,
    advance,
    conclude,
    is_done,
    start,
)
from transformer_jax.errors import UserError
from transformer_jax.models import Cache, Memory, Transformer
from transformer_jax.sharding import every_device, platform_of, replicated, to_global

# Padded lengths of sentences with the end token; longer ones go on doubling.
_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Source lengths for which there is a batch of slots: few, since each is a program.
_CAPACITIES = (32, 64, 128, 256)
_BATCH_TOKENS = {"cpu": 1024}  # of a device, where the config leaves it open
_MOST_SCORED = 1024  # tokens of a side: attention grows with their square
_ACCELERATOR_BATCH_TOKENS = 16_384
# Slots are filled again when this share of them is free.
_REFILL_SHARE = 1 / 8

Ensemble = Literal["probabilities", "log_probabilities"]


@dataclasses.dataclass(frozen=True)
class Job:
    """A sentence to search for, as token ids without start and end."""

    source: Sequence[int]
    prefix: Sequence[int] = ()
    seed: int = 0  # for sampling, below 2^64


class Found(NamedTuple):
    """The hypotheses of one sentence, best first, without empty slots."""

    tokens: list[list[int]]  # without the end token
    log_probs: list[float]
    scores: list[float]
    is_finished: list[bool]  # ended by the end token, not by the limit


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
            SearchState(self._start(_request(self, {}, self.rows)), tuple(caches)),
            tuple(memories),
        )

    def insert(
        self,
        slots: Slots,
        memories: tuple[Memory, ...],
        request: Request,
        where: Int[Array, " rows"],
    ) -> Slots:
        """The slots with row r of what is new in slot `where[r]`, if that is one."""

        def put(old: Array, new: Array) -> Array:
            return old.at[where].set(new, mode="drop")

        sentences = jax.tree.map(put, slots.state.sentences, self._start(request))
        return Slots(
            SearchState(sentences, slots.state.cache),
            jax.tree.map(put, slots.memories, memories),
        )

    def advance(
        self,
        params: Sequence[Any],
        slots: Slots,
        suppressed: Int[Array, "sequences length"] | None,
        num_done: Int[Array, " one"],
    ) -> tuple[Slots, Array, Hypotheses]:
        """The slots when `num_done` are done; which are; what was found in each."""
        step = self._step(params, slots.memories)
        state = advance(
            step,
            slots.state,
            self.search,
            num_done=num_done[0],
            suppressed=suppressed,
            attention=self._attention,
        )
        found = jax.tree.map(
            lambda leaf: leaf[:, : self.search.num_hypotheses],
            conclude(self.search, state),
        )
        return Slots(state, slots.memories), is_done(self.search, state), found

    def _start(self, request: Request) -> Any:
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


def _request(
    plan: SearchPlan, jobs: Mapping[int, tuple[Job, int, int]], num_rows: int
) -> Request:
    """The request of row -> (job, most tokens, least tokens); other rows are empty."""
    most, least = np.zeros((2, num_rows), np.int32)
    prefixes = np.full((num_rows, plan.prefix_length), -1, np.int32)
    seeds = np.zeros((num_rows, 2), np.uint32)
    for row, (job, most[row], least[row]) in jobs.items():
        prefixes[row, : len(job.prefix)] = job.prefix
        seeds[row] = job.seed >> 32, job.seed & 0xFFFF_FFFF
    arrays: Any = most, least, prefixes, seeds
    return Request(*arrays)


class Programs:
    """The functions of `SearchPlan`, each device working on rows of its own."""

    def __init__(self, mesh: Mesh) -> None:
        """The programs on the devices of a mesh; compiled when they are first used."""
        rows, whole = every_device(mesh).spec, P()
        everywhere = replicated(mesh)

        def on_devices(method: Callable[..., Any], specs: Any, out: Any) -> Any:
            # A static plan, then arrays; without one device waiting for another.
            def run(plan: Any, *arrays: Any) -> Any:
                return jax.shard_map(
                    functools.partial(method, plan),
                    mesh=mesh,
                    in_specs=specs,
                    out_specs=out,
                    check_vma=False,  # the carry begins the same on all devices
                )(*arrays)

            return run

        self.encode = jax.jit(
            on_devices(SearchPlan.encode, (whole, rows), rows), static_argnums=0
        )
        self.empty = jax.jit(
            on_devices(SearchPlan.empty, (whole,), rows), static_argnums=0
        )
        self.insert = jax.jit(
            on_devices(SearchPlan.insert, (rows, rows, rows, rows), rows),
            static_argnums=0,
            donate_argnums=1,
        )
        self.score = jax.jit(
            on_devices(ScorePlan.score, (whole, rows, rows), rows),
            static_argnums=0,
            out_shardings=everywhere,
        )
        self.advance = jax.jit(
            on_devices(
                SearchPlan.advance, (whole, rows, whole, rows), (rows, rows, rows)
            ),
            static_argnums=0,
            donate_argnums=2,
            out_shardings=(every_device(mesh), everywhere, everywhere),
        )


class Searcher:
    """Searches with one model, or an ensemble, on a mesh."""

    def __init__(
        self,
        models: Sequence[Transformer],
        params: Sequence[Any],
        mesh: Mesh,
        *,
        ensemble: Ensemble = "probabilities",
        programs: Programs | None = None,
    ) -> None:
        """Puts together what searches.

        Args:
          models: with the same vocabularies.
          params: of each model, on the devices of the mesh.
          mesh: whose devices share the sentences.
          ensemble: what is averaged.
          programs: of another searcher on this mesh, to share what is compiled.
        """
        self.models = tuple(models)
        self.params = tuple(params)
        self.mesh = mesh
        self.ensemble: Ensemble = ensemble
        self.programs = programs or Programs(mesh)

    def search(
        self,
        jobs: Sequence[Job],
        options: DecodingConfig,
        *,
        suppressed: Sequence[Sequence[int]] = (),
    ) -> Iterator[tuple[int, Found]]:
        """Yields (number of the job, what was found) of each job, in no order.

        The longest sentences come first. While a caller works on what it got, the
        devices are at work on the next.
        """
        forbidden = _suppressed(suppressed)
        by_capacity: dict[int, list[int]] = {}
        for number, job in enumerate(jobs):
            capacity = _rounded_up(len(job.source) + 1, _CAPACITIES)
            by_capacity.setdefault(capacity, []).append(number)
        longest_prefix = max((len(job.prefix) for job in jobs), default=0)
        for capacity, numbers in sorted(by_capacity.items(), reverse=True):
            plan = self.plan(options, capacity, longest_prefix)
            numbers.sort(key=lambda number: -len(jobs[number].source))
            run = _Run(self, plan, jobs, options, forbidden)
            yield from run.search(numbers)

    def plan(
        self, options: DecodingConfig, source_length: int, prefix_length: int = 0
    ) -> SearchPlan:
        """What is compiled for sources of up to `source_length` tokens."""
        return SearchPlan(
            models=self.models,
            search=search_of(options),
            ensemble=self.ensemble,
            rows=max(self._batch_tokens(options) // source_length, 1),
            source_length=source_length,
            max_length=self.most_tokens(options, source_length),
            prefix_length=prefix_length and _rounded_up(prefix_length, _LENGTHS),
        )

    def advance_arguments(self, plan: SearchPlan) -> tuple[Any, ...]:
        """What `Programs.advance` takes, as shapes: to compile it only."""
        slots = jax.eval_shape(self.programs.empty, plan, self.params)
        rows = every_device(self.mesh)
        placed = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), slots
        )
        num_done = jax.ShapeDtypeStruct((self.mesh.size,), jnp.int32, sharding=rows)
        return plan, self.params, placed, None, num_done

    def most_tokens(self, options: DecodingConfig, source_length: int) -> int:
        """The limit of a hypothesis, in tokens, for a source of so many (ends too)."""
        limit = int(options.max_length_factor * source_length)
        limit += options.max_extra_length
        if options.max_length:
            limit = min(limit, options.max_length)
        # A minimum that the options ask for is to be reached, and then the end token.
        limit = max(limit, options.min_length + 1)
        return min([limit, *self._learned_positions()])

    def score(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        options: DecodingConfig,
        *,
        attention: tuple[int, tuple[int, ...]] | None = None,
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields (number, log-probabilities, attention) of pairs, in no order.

        Args:
          pairs: token ids without start and end, of source and target.
          options: only the size of a batch is taken from them.
          attention: layer of the decoder, and heads, whose mean weights over the source
            are wanted; no heads = all.

        Yields:
          The log-probability of each target token, the last being the end token, and
          the weights [target, source], both with end tokens; no weights if not wanted.
        """
        by_length: dict[int, list[int]] = {}
        for number, pair in enumerate(pairs):
            length = _rounded_up(max(map(len, pair)) + 1, _LENGTHS)
            by_length.setdefault(length, []).append(number)
        for length, numbers in sorted(by_length.items(), reverse=True):
            rows = max(self._batch_tokens(options) // length, 1) * self.mesh.size
            for first in range(0, len(numbers), rows):
                members = numbers[first : first + rows]
                source = np.full((rows, length), PAD_ID, np.int32)
                target = np.full((rows, length), PAD_ID, np.int32)
                for row, number in enumerate(members):
                    for side, ids in zip((source, target), pairs[number], strict=True):
                        side[row, : len(ids) + 1] = [*ids, END_ID]
                log_probs, weights = jax.device_get(
                    self.programs.score(
                        ScorePlan(self.models, self.ensemble, attention),
                        self.params,
                        *to_global((source, target), every_device(self.mesh)),
                    )
                )
                for row, number in enumerate(members):
                    most = [len(side) + 1 for side in pairs[number]]
                    yield (
                        number,
                        log_probs[row, : most[1]],
                        weights[row, : most[1], : most[0]],
                    )

    @property
    def most_scored(self) -> int:
        """The longest side of a pair that can be scored, in tokens, end included."""
        return min([_MOST_SCORED, *self._learned_positions()])

    def penalty(self, options: DecodingConfig) -> Callable[[int], float]:
        """What the log-probability of a translation of so many tokens is divided by."""
        search = search_of(options)
        return functools.cache(lambda length: float(search.penalty(length)))

    def require_attention(self, layer: int, heads: Sequence[int]) -> None:
        """Refuses a layer or heads that a model does not have.

        Raises:
          UserError: naming them.
        """
        for config in (model.config for model in self.models):
            if not -config.num_layers <= layer < config.num_layers:
                raise UserError(
                    f"attention layer {layer}, expected 0 to {config.num_layers - 1}, "
                    "or -1 for the last"
                )
            for head in heads:
                if not 0 <= head < config.num_heads:
                    raise UserError(
                        f"attention head {head}, expected 0 to {config.num_heads - 1}"
                    )

    def _learned_positions(self) -> list[int]:
        configs = [model.config for model in self.models]
        return [c.max_length for c in configs if c.positions == "learned"]

    def _batch_tokens(self, options: DecodingConfig) -> int:
        if options.batch_tokens:
            return options.batch_tokens
        platform = platform_of(self.mesh)
        return _BATCH_TOKENS.get(platform, _ACCELERATOR_BATCH_TOKENS)


def search_of(options: DecodingConfig) -> Search:
    """The search that the options mean."""
    return Search(
        start_id=START_ID,
        end_id=END_ID,
        pad_id=PAD_ID,
        beam_size=options.n_best if options.sampling else options.beam_size,
        num_hypotheses=options.n_best,
        length_penalty=options.length_penalty,
        length_penalty_form=options.length_penalty_form,
        early_stopping=options.early_stopping,
        coverage_penalty=options.coverage_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        sampling=options.sampling,
        sampling_topk=options.sampling_topk,
        sampling_topp=options.sampling_topp,
        sampling_temperature=options.sampling_temperature,
    )


def _of_row(found: Hypotheses, row: int) -> Found:
    """The hypotheses of a row, without empty slots."""
    is_there = np.flatnonzero(np.isfinite(found.log_probs[row]))
    finished = found.is_finished[row, is_there]
    lengths = found.lengths[row, is_there] - finished  # without the end token
    return Found(
        [
            found.tokens[row, i, :length].tolist()
            for i, length in zip(is_there, lengths, strict=True)
        ],
        found.log_probs[row, is_there].tolist(),
        found.scores[row, is_there].tolist(),
        finished.tolist(),
    )


def _rounded_up(length: int, lengths: Sequence[int]) -> int:
    for padded in lengths:
        if length <= padded:
            return padded
    return lengths[-1] * 2 ** math.ceil(math.log2(length / lengths[-1]))


def _suppressed(sequences: Sequence[Sequence[int]]) -> np.ndarray | None:
    """The sequences as one array, in few shapes; -1 fills it up."""
    if not sequences:
        return None
    width = _rounded_up(max(map(len, sequences)), _LENGTHS)
    filled = np.full((-(-len(sequences) // 8) * 8, width), -1, np.int32)
    for row, sequence in enumerate(sequences):
        filled[row, width - len(sequence) :] = sequence
    return filled


class _Run:
    """The slots of all devices, and which job is in which."""

    def __init__(
        self,
        searcher: Searcher,
        plan: SearchPlan,
        jobs: Sequence[Job],
        options: DecodingConfig,
        suppressed: np.ndarray | None,
    ) -> None:
        self._searcher, self._plan, self._jobs = searcher, plan, jobs
        self._options = options
        self._programs = searcher.programs
        self._rows = every_device(searcher.mesh)
        self._num_devices = searcher.mesh.size
        everywhere = replicated(searcher.mesh)
        self._suppressed = (
            None if suppressed is None else to_global(suppressed, everywhere)
        )
        self._slots = self._programs.empty(plan, searcher.params)
        self._in_slot = np.full((self._num_devices, plan.rows), -1)  # numbers of jobs
        # Encoded rows not yet in a slot: (device, row, number of the job).
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._encoded: Any = None  # memories and request of the rows

    def search(self, numbers: Sequence[int]) -> Iterator[tuple[int, Found]]:
        """The jobs of these numbers, as they are done."""
        queue = deque(numbers)
        done: list[tuple[int, Found]] = []
        while True:
            self._fill(queue)
            if np.all(self._in_slot < 0):
                break
            is_done, found = self._advance(bool(queue))
            yield from done  # while the devices are at work
            is_done, found = jax.device_get((is_done, found))
            is_done = is_done.reshape(self._in_slot.shape) & (self._in_slot >= 0)
            done = [
                (int(self._in_slot[device, slot]), _of_row(found, row))
                for device, slot in np.argwhere(is_done)
                for row in [device * self._plan.rows + slot]
            ]
            self._in_slot[is_done] = -1
        yield from done

    def _fill(self, queue: deque[int]) -> None:
        """Puts sentences into free slots, as long as there are both."""
        while True:
            if not self._waiting and queue:
                self._encode(queue)
            free = [list(np.flatnonzero(row < 0)) for row in self._in_slot]
            where = np.full(self._in_slot.shape, self._plan.rows, np.int32)  # nowhere
            left: deque[tuple[int, int, int]] = deque()
            for device, row, number in self._waiting:
                if free[device]:
                    slot = free[device].pop(0)
                    where[device, row] = slot
                    self._in_slot[device, slot] = number
                else:
                    left.append((device, row, number))
            if len(left) == len(self._waiting):
                return
            self._waiting = left
            self._slots = self._programs.insert(
                self._plan,
                self._slots,
                *self._encoded,
                to_global(where.reshape(-1), self._rows),
            )

    def _encode(self, queue: deque[int]) -> None:
        """Encodes the next sentences of one padded length, as many on each device."""
        plan, devices = self._plan, self._num_devices

        def padded_length(number: int) -> int:
            return _rounded_up(len(self._jobs[number].source) + 1, _LENGTHS)

        length = padded_length(queue[0])
        taken: list[int] = []
        while (
            queue
            and len(taken) < plan.rows * devices
            and padded_length(queue[0]) == length
        ):
            taken.append(queue.popleft())
        rows: dict[int, tuple[Job, int, int]] = {}
        source = np.full((plan.rows * devices, length), PAD_ID, np.int32)
        for i, number in enumerate(taken):
            device, row = i % devices, i // devices
            self._waiting.append((device, row, number))
            job = self._jobs[number]
            row += device * plan.rows
            source[row, : len(job.source) + 1] = [*job.source, END_ID]
            most = self._searcher.most_tokens(self._options, len(job.source) + 1)
            rows[row] = job, most, self._options.min_length
        memories = self._programs.encode(
            plan, self._searcher.params, to_global(source, self._rows)
        )
        request = to_global(_request(plan, rows, len(source)), self._rows)
        self._encoded = memories, request

    def _advance(self, is_more_to_come: bool) -> tuple[Any, Any]:
        plan = self._plan
        num_free = np.sum(self._in_slot < 0, axis=1)
        waits = np.zeros(self._num_devices, bool) | is_more_to_come
        for device, _, _ in self._waiting:
            waits[device] = True
        wanted = num_free + max(int(plan.rows * _REFILL_SHARE), 1)
        num_done = np.where(waits, np.minimum(wanted, plan.rows), plan.rows)
        self._slots, is_done, found = self._programs.advance(
            plan,
            self._searcher.params,
            self._slots,
            self._suppressed,
            to_global(num_done.astype(np.int32), self._rows),
        )
        return is_done, found
