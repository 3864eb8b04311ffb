"""The same training on any mesh, in any number of parts, and in either precision."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import ExperimentConfig, MeshConfig, freeze
from transformer_jax.data.batch import Batch
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.data.pipeline import TrainingBatches
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Vocabularies, train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.models.layers import dropout
from transformer_jax.sharding import BatchLayout, make_mesh, place_batch, row_sharding
from transformer_jax.training.program import TrainingProgram

STEPS, ROW_LENGTH = 20, 32
CONFIG = freeze(
    {
        "model": {
            "vocab_size": 400,
            "num_layers": 1,
            "d_model": 16,
            "d_ff": 32,
            "num_heads": 2,
            "dropout_rate": 0.2,
            "attention_dropout_rate": 0.1,
            "max_length": ROW_LENGTH,
        },
        "data": {
            "corpus": "phrases",
            "max_length": ROW_LENGTH,
            "row_length": ROW_LENGTH,
        },
        "training": {"steps": 1000, "batch_tokens": 16 * ROW_LENGTH},
        "optimizer": {"warmup_steps": 200},
    }
)
MESHES = {
    "data 8": MeshConfig(data=8),
    "fsdp 8": MeshConfig(data=1, fsdp=8),
    "tensor 2 x data 4": MeshConfig(data=4, tensor=2),
    "data 2 x fsdp 2 x tensor 2": MeshConfig(data=2, fsdp=2, tensor=2),
}


@functools.cache
def batches() -> TrainingBatches:
    pairs = phrase_pairs("train", num_pairs=2000, seed=0)
    tokenizer = train_tokenizer(
        [side for pair in pairs for side in pair], vocab_size=400
    )
    ids = Vocabularies(tokenizer, tokenizer).encode(pairs)
    return TrainingBatches(
        TokenStore.of(ids, ROW_LENGTH),
        batch_tokens=CONFIG.training.batch_tokens,
        row_length=ROW_LENGTH,
        seed=0,
    )


def train(
    mesh_config: MeshConfig,
    num_devices: int,
    *,
    config: ExperimentConfig = CONFIG,
    max_tokens_per_device: int = 0,
    steps: int = STEPS,
) -> tuple[np.ndarray, Any, BatchLayout]:
    """The losses, the last parameters, and how the batch was laid out."""
    mesh = make_mesh(mesh_config, jax.devices()[:num_devices])
    layout = BatchLayout.of(
        batches().num_rows,
        ROW_LENGTH,
        mesh,
        max_tokens_per_device=max_tokens_per_device,
    )
    program = TrainingProgram(config, mesh)
    state, losses = program.init(jax.random.key(0)), []
    for step in range(steps):
        make_rows = functools.partial(batches().batch, step)
        batch = place_batch(make_rows, layout, mesh)
        state, metrics = program.step(state, batch, jax.random.key(1))
        losses.append(float(metrics["loss"]))
    return np.array(losses), jax.device_get(state.params), layout


@pytest.fixture(scope="module")
def on_one_device() -> tuple[np.ndarray, Any]:
    losses, params, _ = train(MeshConfig(data=1), 1)
    assert losses[-1] < losses[0] - 0.1
    return losses, params


def assert_same_run(one: Any, other: tuple[np.ndarray, Any]) -> None:
    np.testing.assert_allclose(one[0], other[0], rtol=5e-6)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3), one[1], other[1]
    )


@pytest.mark.parametrize(
    "name",
    [
        "data 8",
        "data 2 x fsdp 2 x tensor 2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("fsdp 8", "tensor 2 x data 4")
        ),
    ],
)
def test_losses_with_dropout_are_the_same_on_any_mesh(name, on_one_device):
    *run, layout = train(MESHES[name], 8)
    assert layout.num_empty_rows == 0
    assert_same_run(run, on_one_device)


@pytest.mark.parametrize(
    ("num_devices", "max_tokens", "expected"),
    [
        (1, 7 * ROW_LENGTH + 1, (3, 6, 2)),  # 7 would fit: 3 parts of 6, 2 rows empty
        (3, 2 * ROW_LENGTH, (3, 6, 2)),  # 3 parts of 2 rows on each of 3 devices
    ],
)
def test_parts_and_devices_never_change_the_update(
    num_devices, max_tokens, expected, on_one_device
):
    *run, layout = train(MeshConfig(), num_devices, max_tokens_per_device=max_tokens)
    assert (
        layout.num_parts,
        layout.rows_per_part,
        layout.num_empty_rows,
    ) == expected
    assert_same_run(run, on_one_device)


@pytest.mark.parametrize("name", MESHES)
def test_dropout_masks_are_bit_identical_on_any_mesh(name):
    mesh = make_mesh(MESHES[name])
    x, rows = jnp.ones((16, 5, 14)), jnp.arange(16)
    expected = dropout(x, 0.3, jax.random.key(5), rows)
    sharded = jax.device_put((x, rows), row_sharding(mesh))
    mask = jax.jit(lambda x, rows: dropout(x, 0.3, jax.random.key(5), rows))(*sharded)
    assert not mask.sharding.is_fully_replicated
    np.testing.assert_array_equal(mask, expected)


def test_a_device_is_given_its_own_rows_only():
    asked = []

    def make_rows(rows):
        asked.append(list(rows))
        return np.array(rows, np.int32)[:, None]

    mesh = make_mesh(MeshConfig(data=4, tensor=2))
    layout = BatchLayout(num_rows=15, num_parts=2, rows_per_part=8, num_shards=4)
    batch: Any = place_batch(make_rows, layout, mesh)
    assert sorted(asked) == [
        [0, 1, 8, 9],
        [2, 3, 10, 11],
        [4, 5, 12, 13],
        [6, 7, 14, 15],
    ]
    np.testing.assert_array_equal(batch[..., 0], np.arange(16).reshape(2, 8))
    for shard in batch.addressable_shards:
        assert shard.data.shape == (2, 2, 1)


def test_a_device_too_small_for_a_row_and_a_mesh_that_splits_unevenly_are_refused():
    mesh = make_mesh(MeshConfig())
    with pytest.raises(UserError, match="max_tokens_per_device is 31, less than one"):
        BatchLayout.of(16, 32, mesh, max_tokens_per_device=31)
    with pytest.raises(UserError, match=r"w_key .*\(16, 2, 8\).*mesh\.tensor=4"):
        TrainingProgram(CONFIG, make_mesh(MeshConfig(data=2, tensor=4)))


def on_one(config: ExperimentConfig) -> tuple[Any, Batch]:
    """The program on one device, and the batch of the first step."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    layout = BatchLayout.of(16, ROW_LENGTH, mesh, max_tokens_per_device=0)
    batch = place_batch(functools.partial(batches().batch, 0), layout, mesh)
    return TrainingProgram(config, mesh), batch


def test_the_state_is_updated_in_place():
    program, batch = on_one(CONFIG)
    lowered = program.step.lower(program.state, batch, jax.random.key(0))
    compiled = lowered.compile()
    state_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.state))
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == state_bytes
    # What is new: the metrics, and the table of the outputs.
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 1000


def test_rematerialisation_does_not_change_the_update(on_one_device):
    # What it saves is tested by the compiler for TPUs: a CPU's undoes it.
    model = dataclasses.replace(CONFIG.model, remat=True)
    config = dataclasses.replace(CONFIG, model=model)
    losses, params, _ = train(MeshConfig(), 1, config=config)
    assert_same_run((losses, params), on_one_device)


@pytest.mark.slow
def test_a_bfloat16_run_stays_near_float32(on_one_device):
    model = dataclasses.replace(CONFIG.model, dtype="bfloat16", matmul_dtype="bfloat16")
    config = dataclasses.replace(CONFIG, model=model)
    losses, params, _ = train(MeshConfig(), 1, config=config)
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    difference = np.abs(losses - on_one_device[0])
    assert 0 < difference.max() < 0.02  # nats a token


def test_automatic_precision_is_float32_on_a_cpu_and_bfloat16_elsewhere():
    for platform, expected in [("cpu", "float32"), ("tpu", "bfloat16"), ("gpu",) * 2]:
        model = CONFIG.model.on_platform(platform)
        expected = "bfloat16" if platform == "gpu" else expected
        assert (model.dtype, model.matmul_dtype) == (expected, expected)
    program = TrainingProgram(CONFIG, make_mesh(MeshConfig()))
    assert program.model.config.dtype == "float32"


def test_an_update_that_is_not_finite_changes_nothing_but_the_counts():
    program, batch = on_one(CONFIG)
    state, _ = program.step(program.init(jax.random.key(0)), batch, jax.random.key(1))
    params: Any = state.params
    embedding = params["embedding"].at[5].set(jnp.nan)  # a piece that the batch holds
    state = dataclasses.replace(state, params={**params, "embedding": embedding})
    before = jax.device_get(state)
    after, metrics = program.step(state, batch, jax.random.key(1))
    assert np.isnan(metrics["loss"])
    assert (int(metrics["skipped_updates"]), int(after.step)) == (1, 2)
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.device_get((after.params, after.optimizer_state)),
        (before.params, before.optimizer_state),
    )


@pytest.mark.slow
def test_a_long_gradient_is_clipped_to_the_given_norm():
    optimizer = dataclasses.replace(CONFIG.optimizer, clip_norm=1e-3)
    config = dataclasses.replace(CONFIG, optimizer=optimizer)
    program, batch = on_one(config)
    state, metrics = program.step(
        program.init(jax.random.key(0)), batch, jax.random.key(1)
    )
    assert float(metrics["gradient_norm"]) > 0.1  # as it was
    # Adam's first moment is (1 - b1) times the gradient that it was given.
    state: Any = state
    (adam,) = [part for part in state.optimizer_state if hasattr(part, "mu")]
    squares = [float(jnp.sum(jnp.square(x))) for x in jax.tree.leaves(adam.mu)]
    assert sum(squares) ** 0.5 == pytest.approx(0.1 * 1e-3, rel=1e-4)
