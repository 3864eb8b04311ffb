"""The store of token ids: what is written comes back, after any interruption."""

import json
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.data.store import FilterCounts, TokenStore, TokenWriter

MAX_LENGTH = 7
PAIRS = [([5, 6, 7], [8]), ([9], [10, 11]), ([12] * 6, [13] * 6)]
# Two without text, and two of 8 positions, an end counted.
UNFIT = [([], [5]), ([5], []), ([5] * 7, [6]), ([5], [6] * 7)]


def content_of(store: TokenStore) -> list[tuple[list[int], list[int]]]:
    pairs = (store[number] for number in range(len(store)))
    return [(source.tolist(), target.tolist()) for source, target in pairs]


def writer_of(folder: Path, vocab_size: int = 100) -> TokenWriter:
    return TokenWriter(folder, vocab_size=vocab_size, max_length=MAX_LENGTH)


def write(folder: Path, *parts: list, vocab_size: int = 100) -> TokenStore:
    writer = writer_of(folder, vocab_size)
    for part in parts:
        writer.append(part)
    return writer.finish()


def test_pairs_without_text_or_too_long_are_counted_and_left_out(tmp_path: Path):
    mixed = [UNFIT[0], PAIRS[0], UNFIT[1], UNFIT[2], PAIRS[1], UNFIT[3], PAIRS[2]]
    for store in (TokenStore.of(mixed, MAX_LENGTH), write(tmp_path, mixed)):
        assert content_of(store) == PAIRS
        assert store.counts == FilterCounts(kept=3, empty=2, too_long=2)
        assert store.lengths.tolist() == [[4, 2], [2, 3], [7, 7]]


def test_pairs_are_found_by_their_number() -> None:
    store = TokenStore.of(PAIRS, MAX_LENGTH)
    assert store[-1][1].tolist() == [13] * 6
    for number in (3, -4):
        with pytest.raises(IndexError):
            store[number]


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
def test_the_largest_id_survives(tmp_path: Path, vocab_size: int) -> None:
    pairs = [([vocab_size - 1], [4])]
    store = write(tmp_path, pairs, vocab_size=vocab_size)
    assert content_of(store) == pairs
    assert store.ids.itemsize == (2 if vocab_size == 65_536 else 4)


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", PAIRS)
    parts = write(tmp_path / "parts", PAIRS[:1], PAIRS[1:], vocab_size=1 << 20)
    assert whole.digest == parts.digest == TokenStore.of(PAIRS, MAX_LENGTH).digest
    others = [
        [*PAIRS[:2], ([12] * 6, [13] * 5 + [14])],
        [PAIRS[0], ([9, 10], [11]), PAIRS[2]],  # the same ids, shared otherwise
        PAIRS[:2],
        PAIRS[::-1],
    ]
    assert len({TokenStore.of(x, MAX_LENGTH).digest for x in [PAIRS, *others]}) == 5


def test_a_writer_goes_on_where_the_last_one_was_left(tmp_path: Path) -> None:
    first = writer_of(tmp_path)
    first.append([UNFIT[0], PAIRS[0]])
    first.close()
    # A part that was being written: it has no record, so it does not count.
    for name in ("ids", "lengths"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"torn")
    assert TokenStore.open(tmp_path) is None
    second = writer_of(tmp_path)
    assert second.pairs_read == 2
    second.append(PAIRS[1:])
    store = second.finish()
    assert content_of(store) == PAIRS
    assert store.counts == FilterCounts(kept=3, empty=1)


@pytest.mark.parametrize(
    "record",
    ["", "{}", "[{}]", '[{"pairs_read": -3, "num_ids": -9, "counts": {}}]', "[3]"],
)
def test_a_record_that_cannot_be_trusted_begins_anew(
    tmp_path: Path, record: str
) -> None:
    first = writer_of(tmp_path)
    first.append(PAIRS)
    first.close()
    (tmp_path / "progress.json").write_text(record)
    second = writer_of(tmp_path)
    assert second.pairs_read == 0
    second.append(PAIRS[:1])
    assert content_of(second.finish()) == PAIRS[:1]


@pytest.mark.parametrize("name", ["ids", "lengths", "store.json"])
@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_a_damaged_store_is_none(tmp_path: Path, name: str, damage: str) -> None:
    write(tmp_path, PAIRS)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    assert TokenStore.open(tmp_path) is None


def test_a_store_on_disk_cannot_be_written_to(tmp_path: Path) -> None:
    store = write(tmp_path, PAIRS)
    with pytest.raises(ValueError, match="read-only"):
        store.ids[0] = 3


def test_nothing_is_a_store_too(tmp_path: Path) -> None:
    store = write(tmp_path, UNFIT)
    assert len(store) == 0
    assert content_of(store) == []
    manifest = json.loads((tmp_path / "store.json").read_text())
    assert manifest["counts"] == {"kept": 0, "empty": 2, "too_long": 2}
    assert store.starts.dtype == np.int64
