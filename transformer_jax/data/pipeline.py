"""Token ids -> the endless stream of training batches, a function of (seed, step).

Sentences are *packed*: several share a row, told apart by segments, so that all batches
have one shape and nearly all positions hold a token. How pairs share rows depends on
the seed alone, and the order of the rows on (seed, epoch). Step N trains on the N-th
run of rows of that endless sequence, so any step's batch can be built without the ones
before.
"""

import dataclasses
import functools
import hashlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from transformer_jax.data.batch import Batch
from transformer_jax.data.tokenizer import END_ID, PAD_ID, START_ID

# Rows are made up to a multiple of this, so that devices can share them evenly.
_ROWS_MULTIPLE = 8
# Examples packed together: more fill better and take longer.
_PACKING_GROUP = 2048


@dataclasses.dataclass(frozen=True)
class EncodedPair:
    """A pair as ids, without start and end."""

    source: np.ndarray  # int32 [source]
    target: np.ndarray  # int32 [target]

    @property
    def lengths(self) -> tuple[int, int]:
        """Positions that it takes in a row: its ids and one end or start each."""
        return len(self.source) + 1, len(self.target) + 1


@dataclasses.dataclass(frozen=True)
class FilterCounts:
    """What became of the pairs of a corpus."""

    kept: int
    empty: int  # one side or both have no text
    too_long: int  # one side or both have more tokens than allowed


def keep_trainable(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], max_length: int
) -> tuple[list[EncodedPair], FilterCounts]:
    """The pairs that have text on both sides and fit, and the counts of all."""
    kept, empty, too_long = [], 0, 0
    for source, target in pairs:
        if not source or not target:
            empty += 1
        elif max(len(source), len(target)) + 1 > max_length:
            too_long += 1
        else:
            kept.append(
                EncodedPair(np.asarray(source, np.int32), np.asarray(target, np.int32))
            )
    return kept, FilterCounts(len(kept), empty, too_long)


def pack(
    lengths: np.ndarray, capacity: tuple[int, int], *, seed: int
) -> list[list[int]]:
    """Rows of example numbers, so that neither side of a row overflows.

    Best fit, longest first (Johnson 1973), within random groups of examples: each goes
    to the open row that it leaves the least room in, or opens a new one. Groups keep
    the time linear, and the company that a sentence meets random.

    Args:
      lengths: int [examples, 2], source and target positions of each example.
      capacity: source and target positions of a row.
      seed: of the groups.

    >>> pack(np.array([[3, 3], [2, 2], [2, 2], [1, 1]]), (4, 4), seed=0)
    [[0, 3], [2, 1]]
    """
    rows = []
    order = np.random.default_rng([seed, 0]).permutation(len(lengths))
    for first in range(0, len(order), _PACKING_GROUP):
        group = order[first : first + _PACKING_GROUP]
        group = group[np.argsort(-lengths[group].max(axis=1), kind="stable")]
        free = np.full((len(group), 2), capacity)
        members: list[list[int]] = []
        for example in group:
            left = (free[: len(members) + 1] - lengths[example]).min(axis=1)
            # The last is a row not opened yet: it always fits, and most loosely.
            best = int(np.where(left >= 0, left, np.iinfo(left.dtype).max).argmin())
            if best == len(members):
                members.append([])
            members[best].append(int(example))
            free[best] -= lengths[example]
        rows.extend(members)
    return rows


def rows_of_batch(batch_tokens: int, row_length: int) -> int:
    """Rows of a global batch: enough for the tokens, and a multiple of 8.

    >>> rows_of_batch(25_000, 256)
    104
    """
    rows = -(-batch_tokens // row_length)
    return -(-rows // _ROWS_MULTIPLE) * _ROWS_MULTIPLE


class TrainingBatches:
    """The batch of any step; rows are shuffled anew each epoch."""

    def __init__(
        self,
        examples: Sequence[EncodedPair],
        *,
        batch_tokens: int,
        row_length: int,
        seed: int,
    ) -> None:
        """Packs the examples.

        Args:
          examples: none longer than `row_length` on a side.
          batch_tokens: target positions of a batch, made up to full rows.
          row_length: target positions of a row. The source side of a row has as many
            as the corpus has source tokens for them, made up to a multiple of 4.
          seed: of the packing and of the order.
        """
        if not examples:
            raise ValueError("got no examples, expected 1 or more")
        lengths = np.array([example.lengths for example in examples])
        if lengths.max() > row_length:
            raise ValueError(
                f"got an example of {lengths.max()} tokens, expected at most the "
                f"row_length {row_length}: raise it, or see `keep_trainable`"
            )
        source_total, target_total = lengths.sum(axis=0)
        proportional = int(np.ceil(row_length * source_total / target_total / 4)) * 4
        # Never too narrow for the longest source sentence.
        source_length = max(proportional, int(lengths[:, 0].max()))
        self.row_lengths = source_length, row_length
        self.num_rows = rows_of_batch(batch_tokens, row_length)
        self._examples = examples
        self._seed = seed
        self._packed = pack(lengths, self.row_lengths, seed=seed)
        self.rows_per_epoch = len(self._packed)
        positions = self.rows_per_epoch * np.array(self.row_lengths)
        # Shares of source and of target positions, and of all, that hold a token.
        self.source_fill, self.target_fill = lengths.sum(axis=0) / positions
        self.fill = lengths.sum() / positions.sum()

    @property
    def digest(self) -> str:
        """Says whether two processes, or two days of a run, have the same batches."""
        shape = f"{self._seed} {self.num_rows} {self.row_lengths}"
        content = hashlib.sha256(shape.encode())
        examples = self._examples
        content.update(np.array([example.lengths for example in examples]).tobytes())
        content.update(np.concatenate([x.source for x in examples]).tobytes())
        content.update(np.concatenate([x.target for x in examples]).tobytes())
        return content.hexdigest()

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which each pair is seen once."""
        return self.rows_per_epoch / self.num_rows

    def batch(self, step: int, rows: Sequence[int] | None = None) -> Batch:
        """What step `step` trains on, counted from 0.

        Args:
          step: of training.
          rows: which rows of the batch; all by default. Those from `num_rows` on are
            empty.
        """
        members: list[list[int]] = []
        for row in range(self.num_rows) if rows is None else rows:
            if row >= self.num_rows:
                members.append([])
                continue
            epoch, within = divmod(step * self.num_rows + row, self.rows_per_epoch)
            members.append(self._packed[self._order(epoch)[within]])
        return make_batch(
            [[self._examples[i] for i in row] for row in members], self.row_lengths
        )

    @functools.lru_cache(maxsize=2)  # noqa: B019 (lives as long as the run)
    def _order(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng([self._seed, 1, epoch])
        return generator.permutation(self.rows_per_epoch)


def evaluation_batches(
    examples: Sequence[EncodedPair], row_lengths: tuple[int, int], num_rows: int
) -> Iterator[Batch]:
    """Each example once, in the shape of training; the last batch has empty rows."""
    lengths = np.array([example.lengths for example in examples])
    rows = pack(lengths, row_lengths, seed=0)
    rows += [[] for _ in range(-len(rows) % num_rows)]
    for first in range(0, len(rows), num_rows):
        members = rows[first : first + num_rows]
        yield make_batch([[examples[i] for i in row] for row in members], row_lengths)


def make_batch(
    rows: Sequence[Sequence[EncodedPair]], row_lengths: tuple[int, int]
) -> Batch:
    """The arrays of rows of pairs; see `Batch` for a drawing."""
    source_length, target_length = row_lengths
    sources = np.full((2, len(rows), source_length), PAD_ID, np.int32)
    targets = np.full((3, len(rows), target_length), PAD_ID, np.int32)
    source, source_segments = sources
    target_input, target_output, target_segments = targets
    for r, row in enumerate(rows):
        s = t = 0
        for segment, pair in enumerate(row, start=1):
            s_end, t_end = s + len(pair.source), t + len(pair.target)
            source[r, s:s_end] = pair.source
            source[r, s_end] = END_ID
            source_segments[r, s : s_end + 1] = segment
            target_input[r, t] = START_ID
            target_input[r, t + 1 : t_end + 1] = pair.target
            target_output[r, t:t_end] = pair.target
            target_output[r, t_end] = END_ID
            target_segments[r, t : t_end + 1] = segment
            s, t = s_end + 1, t_end + 1
    return Batch(source, source_segments, target_input, target_output, target_segments)


def prefetch(
    make: Callable[[int], Batch], first_step: int, last_step: int, depth: int = 4
) -> Generator[Batch]:
    """`make(step)` for each step, built by a thread ahead of use.

    An exception in `make` is raised here, at the step it belongs to. Closing the
    iterator ends the thread.
    """
    results: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=depth)
    is_closed = threading.Event()

    def put(result: Batch | BaseException) -> None:
        while not is_closed.is_set():
            try:
                results.put(result, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for step in range(first_step, last_step):
                if is_closed.is_set():
                    return
                put(make(step))
        except BaseException as error:  # handed to the consumer, who raises it
            put(error)

    thread = threading.Thread(target=work, daemon=True, name="prefetch")
    thread.start()
    try:
        for _ in range(first_step, last_step):
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        is_closed.set()
        thread.join()
