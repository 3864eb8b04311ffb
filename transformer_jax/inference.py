"""Trained models over token ids: searching and scoring, on the devices of a mesh.

A batch of the search has a fixed number of slots. Sentences that are done leave theirs,
and others take their place while the rest go on, so that the devices always work on
full batches. What a slot computes depends on its own sentence only: every product has
the same shape whatever the neighbours are, and a sentence's own length decides how far
it is padded. So a translation is the same, to the last bit, whatever its neighbours are
and however many devices there are.
"""

import functools
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_jax import processes
from transformer_jax.config import DecodingConfig
from transformer_jax.data.tokenizer import END_ID, PAD_ID, START_ID
from transformer_jax.decoding.beam_search import Hypotheses, Search, SearchState
from transformer_jax.decoding.trees import Grammar
from transformer_jax.errors import UserError
from transformer_jax.models import Transformer
from transformer_jax.plans import (
    Ensemble,
    Job,
    Programs,
    ScorePlan,
    SearchPlan,
    Slots,
)
from transformer_jax.sharding import platform_of

# Padded lengths of sentences with the end token; longer ones go on doubling.
_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Source lengths for which there is a batch of slots: few, since each is a program.
_CAPACITIES = (32, 64, 128, 256)
_MOST_SCORED = 1024  # tokens of a side: attention grows with their square
# Of a device, where the config leaves it open: source positions, and hypotheses. More
# make its products no faster, and a single sentence slower.
_BATCHES = {"cpu": (2048, 128)}
_ACCELERATOR_BATCH = (16_384, 2048)
# Slots are filled again when this share of them is free.
_REFILL_SHARE = 1 / 16


class Found(NamedTuple):
    """The hypotheses of one sentence, best first, without empty slots."""

    tokens: list[list[int]]  # without the end token
    log_probs: list[float]
    scores: list[float]
    is_finished: list[bool]  # ended by the end token, not by the limit


class Searcher:
    """Searches with one model, or an ensemble, on the devices of a mesh.

    Each device works on sentences of its own and waits for no other. In several
    processes each takes its share, and all get all results.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        params: Sequence[Any],
        mesh: Mesh,
        *,
        ensemble: Ensemble = "probabilities",
    ) -> None:
        """Puts together what searches.

        Args:
          models: with the same vocabularies.
          params: of each model, replicated on the mesh.
          mesh: whose devices share the sentences.
          ensemble: what is averaged.
        """
        self.models = tuple(models)
        self.params = tuple(params)
        self.mesh = mesh
        self.ensemble: Ensemble = ensemble
        self._compiled: dict[Any, Any] = {}  # by plan
        self._lock = threading.Lock()

    def search(
        self,
        jobs: Sequence[Job],
        options: DecodingConfig,
        *,
        suppressed: Sequence[Sequence[int]] = (),
        grammar: Grammar | None = None,
    ) -> Iterator[tuple[int, Found]]:
        """Yields (number of the job, what was found) of each job, in no order.

        The longest sentences come first. While a caller works on what it got, the
        devices are at work on the next. With `only_trees` there must be a grammar.
        """
        assert options.only_trees == (grammar is not None)
        forbidden = _suppressed(suppressed)
        by_capacity: dict[int, list[int]] = {}
        for number, job in enumerate(jobs):
            capacity = _rounded_up(len(job.source) + 1, _CAPACITIES)
            by_capacity.setdefault(capacity, []).append(number)
        longest_prefix = max((len(job.prefix) for job in jobs), default=0)
        for capacity, numbers in sorted(by_capacity.items(), reverse=True):
            plan = self.plan(options, capacity, longest_prefix)
            programs = self._programs(plan, Programs.of)
            numbers.sort(key=lambda number: -len(jobs[number].source))
            run = functools.partial(
                _Run, self, plan, programs, jobs, options, forbidden, grammar
            )
            yield from self._on_devices(numbers, run, at_once=plan.rows)

    def _programs(self, plan: Any, make: Callable[[Any], Any]) -> Any:
        with self._lock:
            if plan not in self._compiled:
                self._compiled[plan] = make(plan)
            return self._compiled[plan]

    def _on_devices(
        self,
        tasks: Sequence[Any],
        work: Callable[[Any, deque[Any]], Iterable[Any]],
        *,
        at_once: int,
    ) -> Iterator[Any]:
        """What `work(params, tasks)` yields on each device, from a queue they share.

        Each takes `at_once` tasks at once, and compiles for itself: there are no more
        devices than so many tasks keep busy.
        """
        if not tasks:
            return
        share = deque(tasks[jax.process_index() :: jax.process_count()])
        devices = self.mesh.local_devices[: -(-len(share) // at_once)]
        workers = [
            functools.partial(work, _on_device(self.params, device), share)
            for device in devices
        ]
        results = _merged(workers)
        if jax.process_count() == 1:
            yield from results
        else:
            for local in processes.gathered(list(results)):
                yield from local

    def plan(
        self, options: DecodingConfig, source_length: int, prefix_length: int = 0
    ) -> SearchPlan:
        """What is compiled for sources of up to `source_length` tokens."""
        search = search_of(options)
        return SearchPlan(
            models=self.models,
            search=search,
            ensemble=self.ensemble,
            rows=self._rows(options, source_length, search.beam_size),
            source_length=source_length,
            max_length=self.most_tokens(options, source_length),
            prefix_length=prefix_length and _rounded_up(prefix_length, _LENGTHS),
            only_trees=options.only_trees,
        )

    def advance_arguments(self, plan: SearchPlan) -> tuple[Any, ...]:
        """What `SearchPlan.advance` takes, as shapes: to compile it only."""
        slots = jax.eval_shape(plan.empty, self.params)
        num_done = jax.ShapeDtypeStruct((), jnp.int32)
        grammar: Any = None
        if plan.only_trees:
            vocab = (self.models[0].config.vocab_size,)
            dtypes: Any = jnp.int8, jnp.int32, jnp.bool_
            shapes: Any = [jax.ShapeDtypeStruct(vocab, dtype) for dtype in dtypes]
            grammar = Grammar(*shapes)
        return self.params, slots, None, grammar, num_done

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
        batches = [
            (rows, length, numbers[first : first + rows])
            for length, numbers in sorted(by_length.items(), reverse=True)
            for rows in [self._rows(options, length, 1)]
            for first in range(0, len(numbers), rows)
        ]
        score = self._programs(
            ScorePlan(self.models, self.ensemble, attention),
            lambda plan: jax.jit(plan.score),
        )

        def work(
            params: Any, queue: deque[tuple[int, int, list[int]]]
        ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
            while batch := _taken(queue):
                rows, length, members = batch
                sides = np.full((2, rows, length), PAD_ID, np.int32)
                for row, number in enumerate(members):
                    for side, ids in zip(sides, pairs[number], strict=True):
                        side[row, : len(ids) + 1] = [*ids, END_ID]
                log_probs, weights = jax.device_get(score(params, *sides))
                for row, number in enumerate(members):
                    source, target = (len(ids) + 1 for ids in pairs[number])
                    yield (
                        number,
                        log_probs[row, :target],
                        weights[row, :target, :source],
                    )

        yield from self._on_devices(batches, work, at_once=4)

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

    def _rows(self, options: DecodingConfig, length: int, num_hypotheses: int) -> int:
        """Rows of `length` tokens that a device takes at once."""
        if options.batch_tokens:
            return max(options.batch_tokens // length, 1)
        tokens, most = _BATCHES.get(platform_of(self.mesh), _ACCELERATOR_BATCH)
        return max(min(tokens // length, most // num_hypotheses), 1)


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


def _taken(queue: deque[Any]) -> Any:
    """The next task; nothing once they are all taken, by this thread or others."""
    try:
        return queue.popleft()
    except IndexError:
        return None


def _on_device(params: Any, device: Any) -> Any:
    """The copy that a device has of replicated arrays."""

    def copy(leaf: jax.Array) -> jax.Array:
        shards = leaf.addressable_shards
        return next(shard.data for shard in shards if shard.device == device)

    return jax.tree.map(copy, params)


def _merged(workers: Sequence[Callable[[], Iterable[Any]]]) -> Iterator[Any]:
    """What the workers yield, each on a thread of its own, as it comes.

    Where one raises, the others stop, and it is raised here.
    """
    if len(workers) == 1:
        yield from workers[0]()
        return
    results: queue.Queue[tuple[str, Any]] = queue.Queue()
    is_over = threading.Event()

    def run(worker: Callable[[], Iterable[Any]]) -> None:
        try:
            for result in worker():
                results.put(("result", result))
                if is_over.is_set():
                    return
            results.put(("end", None))
        except BaseException as error:
            results.put(("error", error))

    for worker in workers:
        threading.Thread(target=run, args=(worker,), daemon=True).start()
    try:
        num_left = len(workers)
        while num_left:
            kind, value = results.get()
            if kind == "error":
                raise value
            if kind == "result":
                yield value
            else:
                num_left -= 1
    finally:
        is_over.set()


class _Run:
    """The slots of a device, and which job is in which."""

    def __init__(
        self,
        searcher: Searcher,
        plan: SearchPlan,
        programs: Programs,
        jobs: Sequence[Job],
        options: DecodingConfig,
        suppressed: np.ndarray | None,
        grammar: Grammar | None,
        params: Any,
        queue: deque[int],
    ) -> None:
        self._searcher, self._plan, self._programs = searcher, plan, programs
        self._params, self._jobs, self._options = params, jobs, options
        self._rules, self._queue = (suppressed, grammar), queue
        self._slots = programs.empty(params)
        self._in_slot = np.full(plan.rows, -1)  # numbers of jobs; -1 = free
        # Encoded rows not yet in a slot: (row, number of the job).
        self._waiting: list[tuple[int, int]] = []
        self._encoded: Any = None  # memories and request of the rows

    def __iter__(self) -> Iterator[tuple[int, Found]]:
        """The jobs whose numbers it takes from the queue, as they are done."""
        done: list[tuple[int, Found]] = []
        while True:
            self._fill()
            if np.all(self._in_slot < 0):
                break
            is_done, found = self._advance()
            yield from done  # while the device is at work
            is_done, found = jax.device_get((is_done, found))
            slots = np.flatnonzero(is_done & (self._in_slot >= 0))
            done = [
                (int(self._in_slot[slot]), _of_row(found, slot))
                for slot in slots.tolist()
            ]
            self._in_slot[slots] = -1
        yield from done

    def _fill(self) -> None:
        """Puts sentences into free slots, as long as there are both."""
        while True:
            free = np.flatnonzero(self._in_slot < 0)
            if not len(free):
                return
            if not self._waiting and not self._encode():
                return
            entering = self._waiting[: len(free)]
            self._waiting = self._waiting[len(free) :]
            where = np.full(self._plan.rows, self._plan.rows, np.int32)  # nowhere
            for (row, number), slot in zip(entering, free, strict=False):
                where[row] = slot
                self._in_slot[slot] = number
            (sentences, cache), memories = self._slots
            sentences, memories = self._programs.insert(
                (sentences, memories), *self._encoded, where
            )
            self._slots = Slots(SearchState(sentences, cache), memories)

    def _encode(self) -> bool:
        """Encodes the next sentences of one padded length; whether there were any."""
        plan = self._plan
        taken: list[int] = []
        length = 0
        while len(taken) < plan.rows and (number := _taken(self._queue)) is not None:
            padded = _rounded_up(len(self._jobs[number].source) + 1, _LENGTHS)
            if taken and padded != length:
                self._queue.appendleft(number)
                break
            length = padded
            taken.append(number)
        if not taken:
            return False
        jobs = []
        source = np.full((plan.rows, length), PAD_ID, np.int32)
        for row, number in enumerate(taken):
            job = self._jobs[number]
            source[row, : len(job.source) + 1] = [*job.source, END_ID]
            most = self._searcher.most_tokens(self._options, len(job.source) + 1)
            jobs.append((job, most))
        memories = self._programs.encode(self._params, source)
        self._encoded = memories, plan.request(jobs, self._options.min_length)
        self._waiting = list(enumerate(taken))
        return True

    def _advance(self) -> tuple[Any, Any]:
        plan = self._plan
        num_done = plan.rows
        if self._queue or self._waiting:
            wanted = max(int(plan.rows * _REFILL_SHARE), 1)
            num_done = min(int(np.sum(self._in_slot < 0)) + wanted, plan.rows)
        self._slots, is_done, found = self._programs.advance(
            self._params, self._slots, *self._rules, np.int32(num_done)
        )
        return is_done, found
