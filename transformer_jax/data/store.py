"""Pairs of token ids, many of them: in memory, or in files that are read where needed.

Tens of millions of pairs are too many Python objects. Here all ids stand in one array,
each pair's source and then its target, and each pair is known by its two lengths. On
disk the array is a file that the system pages in, so a run needs little more memory
than the lengths.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from transformer_jax.files import write_whole

_IDS, _LENGTHS, _PROGRESS, _MANIFEST = "ids", "lengths", "progress.json", "store.json"
_LENGTH_TYPE = np.uint16  # of one side in ids, ends included


Fate = Literal["kept", "empty", "too_long"]


@dataclasses.dataclass(frozen=True)
class FilterCounts:
    """What became of the pairs of a corpus."""

    kept: int = 0
    empty: int = 0  # one side or both have no text
    too_long: int = 0  # one side or both have more tokens than allowed

    def __add__(self, other: "FilterCounts") -> "FilterCounts":
        """The counts of both."""
        return FilterCounts(
            self.kept + other.kept,
            self.empty + other.empty,
            self.too_long + other.too_long,
        )


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Pairs of token ids, without start and end."""

    ids: np.ndarray  # uint16 or int32 [ids], source and target of each pair in turn
    # int32 [pairs, 2], positions that source and target take in a row: their ids, and
    # one end or start each.
    lengths: np.ndarray
    digest: str  # of the content
    counts: FilterCounts  # of the corpus that it was made from
    folder: Path | None = None  # where it is kept

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], max_length: int
    ) -> Self:
        """The pairs that have text on both sides and fit, in memory.

        Args:
          pairs: ids of source and target, without start and end.
          max_length: most positions of a side, its start or end counted.
        """
        ids, lengths, counts = _kept(pairs, max_length, np.dtype(np.int32))
        return cls(ids, lengths.astype(np.int32), _digest(ids, lengths), counts)

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """The finished store in `folder`, or None where there is none, or a damaged."""
        try:
            manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
            ids, lengths = _mapped(folder, np.dtype(manifest["dtype"]))
            if _digest(ids, lengths) != manifest["digest"]:
                return None
            return cls(
                ids,
                lengths.astype(np.int32),
                manifest["digest"],
                FilterCounts(**manifest["counts"]),
                folder,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.lengths)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a pair's source and target."""
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        start = self.starts[number]
        middle, end = start + np.cumsum(self.lengths[number] - 1)
        return self.ids[start:middle], self.ids[middle:end]

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Where each pair begins, int64 [pairs]."""
        sizes = self.lengths.sum(axis=1, dtype=np.int64) - 2
        return np.cumsum(sizes) - sizes


@dataclasses.dataclass(frozen=True)
class _Part:
    """What was written at once."""

    pairs_read: int  # of the corpus, kept or not
    num_ids: int
    counts: FilterCounts
    digest: str


class TokenWriter:
    """Writes a store part by part; what was written before an interruption stays.

    A part counts when the record of progress names it and it is what was written. The
    store counts when its manifest is there, which is written last.
    """

    def __init__(self, folder: Path, *, vocab_size: int, max_length: int) -> None:
        """Opens the store in `folder`, and goes on after the parts that are whole.

        Args:
          folder: of this store alone; made if it is not there.
          vocab_size: all ids are below it.
          max_length: most positions of a side; pairs with more are counted only.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MANIFEST).unlink(missing_ok=True)
        self._folder = folder
        self._max_length = max_length
        self._dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)
        self._parts = self._whole_parts()
        sizes = {_IDS: 0, _LENGTHS: 0}
        for part in self._parts:
            for name, size in self._sizes(part).items():
                sizes[name] += size
        self._files = {name: (folder / name).open("ab") for name in sizes}
        for name, size in sizes.items():
            self._files[name].truncate(size)

    @property
    def pairs_read(self) -> int:
        """Pairs of the corpus that are done, kept or not."""
        return sum(part.pairs_read for part in self._parts)

    @property
    def counts(self) -> FilterCounts:
        """What became of them."""
        return sum((part.counts for part in self._parts), FilterCounts())

    def _sizes(self, part: _Part) -> dict[str, int]:
        """Bytes of a part in each file."""
        pair = 2 * np.dtype(_LENGTH_TYPE).itemsize
        ids = part.num_ids * self._dtype.itemsize
        return {_IDS: ids, _LENGTHS: part.counts.kept * pair}

    def _whole_parts(self) -> list[_Part]:
        """The parts on record, up to the first that is not as it was written."""
        whole: list[_Part] = []
        try:
            text = (self._folder / _PROGRESS).read_text(encoding="utf-8")
            with contextlib.ExitStack() as stack:
                files = {
                    name: stack.enter_context((self._folder / name).open("rb"))
                    for name in (_IDS, _LENGTHS)
                }
                for values in json.loads(text):
                    values["counts"] = FilterCounts(**values["counts"])
                    part = _Part(**values)
                    sizes = self._sizes(part)
                    read = [files[name].read(size) for name, size in sizes.items()]
                    if _part_digest(*read) != part.digest:
                        break
                    whole.append(part)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # no record, or one that cannot be read further
        return whole

    def append(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Writes the next pairs of the corpus, those that can be trained on."""
        ids, lengths, counts = _kept(pairs, self._max_length, self._dtype)
        written = {_IDS: ids.tobytes(), _LENGTHS: lengths.tobytes()}
        for name, content in written.items():
            self._files[name].write(content)
            self._files[name].flush()
            os.fsync(self._files[name].fileno())
        digest = _part_digest(*written.values())
        self._parts.append(_Part(len(pairs), len(ids), counts, digest))
        self._write(_PROGRESS, [dataclasses.asdict(part) for part in self._parts])

    def close(self) -> None:
        """Closes the files; the store can be gone on with."""
        for file in self._files.values():
            file.close()

    def finish(self) -> TokenStore:
        """Closes the files and says that all is written."""
        self.close()
        ids, lengths = _mapped(self._folder, self._dtype)
        digest, counts = _digest(ids, lengths), self.counts
        manifest = {"dtype": self._dtype.name, "digest": digest}
        self._write(_MANIFEST, {**manifest, "counts": dataclasses.asdict(counts)})
        return TokenStore(ids, lengths.astype(np.int32), digest, counts, self._folder)

    def _write(self, name: str, values: Any) -> None:
        write_whole(self._folder / name, json.dumps(values).encode())


def _part_digest(ids: bytes, lengths: bytes) -> str:
    return hashlib.sha256(lengths + ids).hexdigest()


def _kept(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
    max_length: int,
    dtype: np.dtype[Any],
) -> tuple[np.ndarray, np.ndarray, FilterCounts]:
    """Ids and lengths of the pairs that can be trained on, and the counts of all."""
    if max_length > np.iinfo(_LENGTH_TYPE).max:
        raise ValueError(f"got max_length {max_length}, expected less than 65536")
    kept: list[Sequence[int]] = []
    fates = collections.Counter()
    for pair in pairs:
        fate = fate_of(pair, max_length)
        fates[fate] += 1
        if fate == "kept":
            kept += pair
    lengths = np.fromiter(map(len, kept), _LENGTH_TYPE, len(kept)).reshape(-1, 2) + 1
    parts = [np.asarray(side, dtype) for side in kept]
    ids = np.concatenate(parts) if parts else np.empty(0, dtype)
    return ids, lengths.astype(_LENGTH_TYPE), FilterCounts(**fates)


def fate_of(pair: tuple[Sequence[int], Sequence[int]], max_length: int) -> Fate:
    """What becomes of a pair of ids: what `FilterCounts` counts.

    >>> fate_of(([5, 6], [7]), 3), fate_of(([5, 6], [7]), 2), fate_of(([], [7]), 3)
    ('kept', 'too_long', 'empty')
    """
    shorter, longer = sorted(map(len, pair))
    if not shorter:
        return "empty"
    return "kept" if longer + 1 <= max_length else "too_long"


def _mapped(folder: Path, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The ids, paged in where they are read, and the lengths."""
    lengths = np.fromfile(folder / _LENGTHS, _LENGTH_TYPE).reshape(-1, 2)
    if (folder / _IDS).stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype), lengths
    return np.memmap(folder / _IDS, dtype, "r"), lengths


def _digest(ids: np.ndarray, lengths: np.ndarray) -> str:
    """A hash of the content, whatever type the ids are kept in."""
    content = hashlib.sha256(lengths.astype(_LENGTH_TYPE).data)
    step = 1 << 22  # ids at a time: few are in memory, where they are mapped
    for first in range(0, len(ids), step):
        content.update(ids[first : first + step].astype(np.int32).data)
    return content.hexdigest()
