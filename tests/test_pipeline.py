"""Batches: each pair once an epoch, none cut, and any step rebuilt from its number."""

import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.config import DataConfig
from transformer_jax.data.batch import Batch
from transformer_jax.data.pipeline import (
    TrainingBatches,
    evaluation_batches,
    make_batch,
    prefetch,
)
from transformer_jax.data.sources import load_corpus
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Vocabularies, train_tokenizer

ROW_LENGTH = 37


Ids = tuple[list[int], list[int]]


def stored(pairs: list[Ids]) -> TokenStore:
    return TokenStore.of(pairs, 1000)


def made_up_examples(num_examples: int = 211) -> list[Ids]:
    """Pairs told apart by their first ids, 10 + number; the rest are random."""
    generator = np.random.default_rng(2)
    examples = []
    for number in range(num_examples):
        source_rest, target_rest = generator.integers(0, [17, 29])
        source = [10 + number, *generator.integers(4, 9, source_rest)]
        target = [10 + number, *generator.integers(4, 9, target_rest)]
        examples.append((source, target))
    return examples


def pairs_of_row(batch: Batch, row: int) -> list[tuple[tuple[int, ...], ...]]:
    """The (source, target) ids found in a row, after checks of the layout."""
    pairs = []
    num_segments = int(batch.source_segments[row].max())
    assert batch.target_segments[row].max() == num_segments
    for segment in range(1, num_segments + 1):
        source = batch.source[row][batch.source_segments[row] == segment].tolist()
        where = batch.target_segments[row] == segment
        target_input = batch.target_input[row][where].tolist()
        target_output = batch.target_output[row][where].tolist()
        assert source[-1] == 2
        assert target_input[0] == 1
        assert target_output[-1] == 2
        assert target_input[1:] == target_output[:-1]
        pairs.append((tuple(source[:-1]), tuple(target_output[:-1])))
    for ids, segments in (
        (batch.source, batch.source_segments),
        (batch.target_input, batch.target_segments),
        (batch.target_output, batch.target_segments),
    ):
        assert ((ids[row] == 0) == (segments[row] == 0)).all()
    return pairs


def ids_of(example: Ids) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, example))


def training_batches(
    examples: list[Ids] | None = None, *, seed: int = 5
) -> TrainingBatches:
    return TrainingBatches(
        stored(made_up_examples() if examples is None else examples),
        batch_tokens=250,
        row_length=ROW_LENGTH,
        seed=seed,
    )


def assert_equal(first: Batch, second: Batch) -> None:
    for left, right in zip(first, second, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_row_of_two_pairs_is_the_one_that_batch_draws() -> None:
    store = stored([([9], [4]), ([7, 8], [5, 6])])
    batch = make_batch(store, [np.array([1, 0])], (6, 6))
    assert batch.source.tolist() == [[7, 8, 2, 9, 2, 0]]
    assert batch.source_segments.tolist() == [[1, 1, 1, 2, 2, 0]]
    assert batch.target_input.tolist() == [[1, 5, 6, 1, 4, 0]]
    assert batch.target_output.tolist() == [[5, 6, 2, 4, 2, 0]]
    assert batch.target_segments.tolist() == [[1, 1, 1, 2, 2, 0]]
    assert all(array.dtype == np.int32 for array in batch)


def test_each_pair_is_seen_once_in_every_epoch() -> None:
    examples = made_up_examples()
    batches = training_batches(examples)
    num_rows = batches.rows_per_epoch
    assert batches.steps_per_epoch == num_rows / batches.num_rows
    num_steps = -(-2 * num_rows // batches.num_rows)
    rows = []
    for step in range(num_steps):
        batch = batches.batch(step)
        rows += [pairs_of_row(batch, r) for r in range(batches.num_rows)]
    expected = Counter(map(ids_of, examples))
    first, second = rows[:num_rows], rows[num_rows : 2 * num_rows]
    assert Counter(p for row in first for p in row) == expected
    assert Counter(p for row in second for p in row) == expected
    assert first != second


def test_all_batches_have_one_shape_and_rows_for_any_number_of_devices() -> None:
    batches = training_batches()
    assert batches.num_rows == 8  # 250 / 37 = 6.8 rows, made up to 8
    source_length, target_length = batches.row_lengths
    assert target_length == ROW_LENGTH
    for step in (0, 3, 1000):
        batch = batches.batch(step)
        assert batch.source.shape == batch.source_segments.shape == (8, source_length)
        for array in batch[2:]:
            assert array.shape == (8, target_length)


def test_a_source_longer_than_the_share_of_its_side_still_fits() -> None:
    examples = [([5] * 30, [6]), *[([5], [6] * 20)] * 20]
    batches = training_batches(examples)
    assert batches.row_lengths[0] >= 31
    assert batches.batch(0).source.shape[1] == batches.row_lengths[0]


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    forward = training_batches()
    seen = [forward.batch(step) for step in range(12)]
    fresh = training_batches()
    for step in (11, 0, 7):
        assert_equal(fresh.batch(step), seen[step])
    other = training_batches(seed=6)
    assert (other.batch(0).target_input != seen[0].target_input).any()


def test_fill_is_the_share_of_positions_that_hold_a_token() -> None:
    batches = training_batches([([5] * 17, [6] * 18)] * 16)
    source_length, _ = batches.row_lengths
    # Two pairs of 18 and 19 positions do not share a row of 37.
    assert batches.rows_per_epoch == 16
    assert batches.target_fill == pytest.approx(19 / 37)
    assert batches.source_fill == pytest.approx(18 / source_length)
    assert batches.fill == pytest.approx(37 / (37 + source_length))


def test_evaluation_sees_each_example_once_in_full_batches() -> None:
    examples = made_up_examples()
    seen: Counter[tuple[tuple[int, ...], ...]] = Counter()
    batches = list(evaluation_batches(stored(examples), (31, 41), 7))
    for batch in batches:
        assert batch.source.shape == (7, 31)
        assert batch.target_input.shape == (7, 41)
        for row in range(7):
            seen.update(pairs_of_row(batch, row))
    assert seen == Counter(map(ids_of, examples))


def numbered(step: int) -> Batch:
    return make_batch(stored([([step], [step])]), [np.array([0])], (2, 2))


def test_prefetched_batches_come_in_order() -> None:
    steps = [int(batch.source[0, 0]) for batch in prefetch(numbered, 5, 28, depth=3)]
    assert steps == list(range(5, 28))
    assert list(prefetch(numbered, 5, 5)) == []


def test_an_exception_is_raised_at_its_step() -> None:
    def make(step: int) -> Batch:
        if step == 7:
            raise KeyError("step 7")
        return numbered(step)

    batches = prefetch(make, 5, 20)
    assert [int(next(batches).source[0, 0]) for _ in range(2)] == [5, 6]
    with pytest.raises(KeyError, match="step 7"):
        next(batches)


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_closing_ends_the_thread_that_waits_with_a_full_queue() -> None:
    before = len(prefetch_threads())
    batches = prefetch(numbered, 0, 1_000_000, depth=2)
    next(batches)
    assert len(prefetch_threads()) == before + 1
    batches.close()  # type: ignore[attr-defined]
    assert len(prefetch_threads()) == before


def test_rows_of_multi30k_are_at_least_95_percent_full() -> None:
    root = Path(__file__).parent.parent
    data = os.environ.get("TRANSFORMER_JAX_DATA", root.parent / "shared" / "data")
    folder = Path(data) / "multi30k"
    if not (folder / "train.en.gz").exists():
        pytest.skip(f"no Multi30k in {folder}: set TRANSFORMER_JAX_DATA to its parent")
    config = DataConfig(corpus="files", dir=str(folder), validation="val", test="val")
    pairs = list(load_corpus(config).train)
    tokenizer = train_tokenizer((line for p in pairs for line in p), vocab_size=8000)
    ids = Vocabularies(tokenizer, tokenizer).encode(pairs)
    examples = TokenStore.of(ids, max_length=64)
    assert examples.counts.kept > 0.99 * len(pairs)
    batches = TrainingBatches(examples, batch_tokens=2048, row_length=64, seed=0)
    assert batches.fill >= 0.95


def test_batches_of_no_examples_or_of_too_long_ones_are_refused():
    def batches(*examples: Ids) -> TrainingBatches:
        return TrainingBatches(
            stored(list(examples)), batch_tokens=64, row_length=8, seed=0
        )

    with pytest.raises(ValueError, match="got no examples"):
        batches()
    fits, wide = [*range(3, 10)], [*range(3, 11)]
    assert batches((fits, fits)).row_lengths == (8, 8)
    for example in ((fits, wide), (wide, fits)):
        with pytest.raises(ValueError, match="got an example of 9 tokens"):
            batches(example)
