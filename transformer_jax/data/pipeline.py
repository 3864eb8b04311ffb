"""Token ids -> the endless stream of training batches, a function of (seed, step).

Sentences are *packed*: several share a row, told apart by segments, so that all batches
have one shape and nearly all positions hold a token. How pairs share rows depends on
the seed alone, and the order of the rows on (seed, epoch). Step N trains on the N-th
run of rows of that endless sequence, so any step's batch can be built without the ones
before.
"""

import functools
import hashlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from transformer_jax.data.batch import Batch
from transformer_jax.data.packing import pack
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import END_ID, PAD_ID, START_ID

# Rows are made up to a multiple of this, so that devices can share them evenly.
_ROWS_MULTIPLE = 8


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
        examples: TokenStore,
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
        lengths = examples.lengths
        if not len(lengths):
            raise ValueError("got no examples, expected 1 or more")
        if lengths.max() > row_length:
            raise ValueError(
                f"got an example of {lengths.max()} tokens, expected at most the "
                f"row_length {row_length}: raise it, or see `TokenStore.of`"
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
        return hashlib.sha256(f"{shape} {self._examples.digest}".encode()).hexdigest()

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
        members = []
        for row in range(self.num_rows) if rows is None else rows:
            if row >= self.num_rows:
                members.append(np.empty(0, np.int32))
                continue
            epoch, within = divmod(step * self.num_rows + row, self.rows_per_epoch)
            members.append(self._packed[self._order(epoch)[within]])
        return make_batch(self._examples, members, self.row_lengths)

    @functools.lru_cache(maxsize=2)  # noqa: B019 (lives as long as the run)
    def _order(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng([self._seed, 1, epoch])
        return generator.permutation(self.rows_per_epoch)


def evaluation_batches(
    examples: TokenStore, row_lengths: tuple[int, int], num_rows: int
) -> Iterator[Batch]:
    """Each example once, in the shape of training; the last batch has empty rows."""
    packed = pack(examples.lengths, row_lengths, seed=0)
    rows = [packed[row] for row in range(len(packed))]
    rows += [np.empty(0, np.int32)] * (-len(rows) % num_rows)
    for first in range(0, len(rows), num_rows):
        yield make_batch(examples, rows[first : first + num_rows], row_lengths)


def make_batch(
    store: TokenStore, rows: Sequence[np.ndarray], row_lengths: tuple[int, int]
) -> Batch:
    """The arrays of rows of examples; see `Batch` for a drawing.

    Args:
      store: of the examples.
      rows: the numbers of those in each row.
      row_lengths: source and target positions of a row.
    """
    row_sizes = np.array([len(row) for row in rows])
    examples = np.concatenate(rows)
    row = np.repeat(np.arange(len(rows)), row_sizes)
    first_of_row = (np.cumsum(row_sizes) - row_sizes)[row]
    segment = 1 + np.arange(len(examples)) - first_of_row
    lengths, starts = store.lengths[examples], store.starts[examples]

    def laid_out(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start and ids, ids and end, and segments of one side [rows, length]."""
        shape = len(rows), row_lengths[side]
        taken = lengths[:, side]
        before = np.cumsum(taken) - taken
        # Where each example begins, in the rows laid end to end.
        begin = row * shape[1] + before - before[first_of_row]
        ids = store.ids[_ranges(starts + side * (lengths[:, 0] - 1), taken - 1)]
        with_start, with_end, segments = np.full(
            (3, len(rows) * shape[1]), PAD_ID, np.int32
        )
        with_start[begin] = START_ID
        with_start[_ranges(begin + 1, taken - 1)] = ids
        with_end[_ranges(begin, taken - 1)] = ids
        with_end[begin + taken - 1] = END_ID
        segments[_ranges(begin, taken)] = np.repeat(segment, taken)
        return (
            with_start.reshape(shape),
            with_end.reshape(shape),
            segments.reshape(shape),
        )

    _, source, source_segments = laid_out(0)
    return Batch(source, source_segments, *laid_out(1))


def _ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers of the ranges, one range after another.

    >>> _ranges(np.array([5, 20]), np.array([2, 3])).tolist()
    [5, 6, 20, 21, 22]
    """
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(sizes.sum())


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
