"""Checkpoints that were damaged, could not be written, or move to other devices."""

import dataclasses
import json
import os
import resource
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

from transformer_jax.checkpointing import (
    Checkpoints,
    DamagedError,
    SaveError,
    fingerprint,
    load_checkpoint,
    load_meta,
    load_params,
    require_whole,
    steps_in,
)
from transformer_jax.config import MeshConfig, freeze
from transformer_jax.errors import UserError
from transformer_jax.sharding import make_mesh
from transformer_jax.training.program import TrainingProgram

CONFIG = freeze(
    {"model": {"vocab_size": 64, "num_layers": 1, "d_model": 16, "num_heads": 2}}
)
META = {
    "identity": {"vocabulary": "abc"},
    "best": {"score": 1.5, "validations_since": 0},
}


def program(**mesh: int) -> TrainingProgram:
    num_devices = int(np.prod(list(mesh.values())))
    return TrainingProgram(
        CONFIG, make_mesh(MeshConfig(**mesh), jax.devices()[:num_devices])
    )


ON_ONE = program(data=1)


def state_at(step: int, on: TrainingProgram = ON_ONE) -> Any:
    state: Any = on.init(jax.random.key(step))
    return dataclasses.replace(state, step=state.step + step)


def save(workdir: Path, *steps: int, **options: int) -> None:
    checkpoints = Checkpoints(workdir, keep_last=9, **options)
    for step in steps:
        checkpoints.save(state_at(step), META, score=None)
    checkpoints.close()


def restore(workdir: Path, on: TrainingProgram = ON_ONE) -> Any:
    checkpoints = Checkpoints(workdir, keep_last=9)
    try:
        return checkpoints.restore_newest(on.state)
    finally:
        checkpoints.close()


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get((one, other)))


def data_files(workdir: Path, step: int) -> list[Path]:
    """Files of a checkpoint that hold numbers, largest first."""
    files = [path for path in (workdir / "checkpoints" / str(step)).rglob("*")]
    files = [path for path in files if path.is_file() and "/d/" in str(path)]
    return sorted(files, key=lambda path: -path.stat().st_size)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << (position % 8)
    path.write_bytes(content)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was warned of a damaged checkpoint."""
    said: list[str] = []

    def warn(text: str, *arguments: object) -> None:
        if "damaged" in text % arguments:
            said.append(text % arguments)

    monkeypatch.setattr(logging, "warning", warn)
    return said


def meta_file(workdir: Path, step: int) -> Path:
    return workdir / "checkpoints" / str(step) / "meta" / "metadata"


# The fingerprint


def test_a_fingerprint_is_the_sum_of_the_hashes_of_all_numbers():
    def mix(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
        x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
        return x ^ (x >> 16)

    tree = {"a": np.array([[1.5, -2.0, 0.0]], np.float32), "b": np.array([7], np.int32)}
    expected = [0, 0]
    for i, salt in enumerate((0x9E3779B9, 0x7F4A7C15)):
        for number, x in enumerate(tree.values(), start=1):
            for index, bits in enumerate(x.view(np.uint32).ravel().tolist()):
                expected[i] += mix(bits ^ mix((index + number * salt) % 2**32))
    assert fingerprint(tree) == "".join(f"{word % 2**32:08x}" for word in expected)


def test_a_fingerprint_changes_with_any_bit_and_any_order_and_not_with_the_mesh():
    one = ON_ONE.init(jax.random.key(0)).params
    sharded = program(data=2, fsdp=2, tensor=2).init(jax.random.key(0)).params
    words = fingerprint(one)
    assert fingerprint(sharded) == words
    seen = {words}
    x = np.asarray(one["embedding"])
    for position in range(0, x.size, 41):
        for bit in (0, 13, 31):
            changed = x.copy()
            changed.view(np.uint32).ravel()[position] ^= np.uint32(1 << bit)
            seen.add(fingerprint({**one, "embedding": changed}))
    assert len(seen) == 1 + 3 * len(range(0, x.size, 41))
    assert fingerprint({**one, "embedding": x[::-1]}) != words


# Damage


@pytest.mark.slow
def test_a_flipped_byte_is_noticed_wherever_it_changes_a_number(tmp_path, warnings):
    save(tmp_path, 1)
    whole = load_params(tmp_path)
    files = [path for path in (tmp_path / "checkpoints" / "1").rglob("*")]
    rng = np.random.default_rng(0)
    noticed = 0
    for path in sorted(path for path in files if path.is_file()):
        content = path.read_bytes()
        positions = rng.integers(len(content), size=3 if "/d/" in str(path) else 1)
        for position in positions.tolist():
            flip(path, position)
            try:
                assert_equal(load_params(tmp_path), whole)
                require_whole(tmp_path, 1)
            except DamagedError:
                noticed += 1
            path.write_bytes(content)
    assert noticed > 10
    largest = data_files(tmp_path, 1)[0]
    flip(largest, largest.stat().st_size // 2)
    with pytest.raises(DamagedError, match=r"checkpoints/1 is damaged"):
        require_whole(tmp_path, 1)


@pytest.mark.parametrize("kind", ["flipped", "truncated", "deleted", "meta", "empty"])
def test_the_checkpoint_before_a_damaged_one_is_used_and_named(
    kind, tmp_path, warnings, capfd
):
    save(tmp_path, 3, 5, 8)
    newest = tmp_path / "checkpoints" / "8"
    largest = data_files(tmp_path, 8)[0]
    if kind == "flipped":
        flip(largest, largest.stat().st_size // 2)
    elif kind == "truncated":
        largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    elif kind == "deleted":
        largest.unlink()
    elif kind == "meta":
        path = meta_file(tmp_path, 8)
        text = path.read_text()
        assert "1.5" in text
        path.write_text(text.replace("1.5", "9.5"))
    else:
        for path in newest.rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
    if kind in ("meta", "empty") or "params" in str(largest):
        params, steps = load_checkpoint(tmp_path)
        assert steps == [5]
        assert_equal(params, state_at(5).params)
        assert "checkpoints/8 is damaged" in warnings[-1]
        assert load_checkpoint(tmp_path, "average", average_last=2)[1] == [3, 5]
    state, meta = restore(tmp_path)
    assert_equal(state, state_at(5))
    assert meta["best"] == META["best"]
    assert "checkpoints/8 is damaged" in warnings[-1]
    assert "going back to step 5" in warnings[-1]
    assert steps_in(tmp_path) == [3, 5]
    assert os.listdir(tmp_path / "damaged") == ["8"]
    assert "Traceback" not in capfd.readouterr().err
    # The step that was lost is saved again when the run comes to it.
    save(tmp_path, 8)
    assert_equal(restore(tmp_path)[0], state_at(8))


def test_where_all_are_damaged_nothing_is_moved(tmp_path, warnings):
    save(tmp_path, 3, 5)
    for step in (3, 5):
        data_files(tmp_path, step)[0].unlink()
    before = sorted(map(str, tmp_path.rglob("*")))
    with pytest.raises(UserError, match=r"all 2 checkpoints in .* are damaged"):
        restore(tmp_path)
    for step in (3, 5):
        meta_file(tmp_path, step).unlink()
        before.remove(str(meta_file(tmp_path, step)))
    with pytest.raises(DamagedError, match="checkpoints/5 is damaged"):
        load_params(tmp_path)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_a_named_checkpoint_that_is_damaged_is_an_error(tmp_path, warnings):
    save(tmp_path, 3, 5)
    meta_file(tmp_path, 5).write_text("{}")
    with pytest.raises(DamagedError, match="checkpoints/5 is damaged"):
        load_params(tmp_path, "5")
    assert_equal(load_params(tmp_path, "3"), state_at(3).params)


def test_a_run_without_checkpoints_has_nothing_to_restore(tmp_path):
    assert restore(tmp_path) is None


# Other devices


def test_a_state_moves_to_any_mesh(tmp_path):
    wide = program(data=2, fsdp=2, tensor=2)
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    state: Any = dataclasses.replace(state_at(7, wide), skipped_updates=jnp.int32(2))
    checkpoints.save(state, META, score=None)
    checkpoints.close()
    for other in (ON_ONE, program(fsdp=4, data=1), wide):
        restored, _ = restore(tmp_path, other)
        assert_equal(restored, state)
        assert (int(restored.step), int(restored.skipped_updates)) == (7, 2)
        places = [
            jax.tree.map(lambda x: x.sharding, t) for t in (restored, other.state)
        ]
        assert places[0] == places[1]


# Saving


def test_what_is_kept_is_the_newest_the_best_and_each_so_many_steps(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_every_steps=10)
    scores = {4: 1.0, 6: 3.0, 8: 2.0, 10: None, 12: 2.5, 14: None, 16: None}
    for step, score in scores.items():
        checkpoints.save(state_at(step), META, score=score)
    checkpoints.close()
    assert steps_in(tmp_path) == [6, 10, 14, 16]
    assert load_checkpoint(tmp_path, "best")[1] == [6]
    assert load_meta(tmp_path, 6)["score"] == 3.0


def test_a_save_that_fails_is_one_clear_error_and_leaves_the_others(tmp_path):
    save(tmp_path, 3)
    checkpoints = Checkpoints(tmp_path, keep_last=9)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        checkpoints.save(state_at(5), META, score=None)
        with pytest.raises(SaveError, match=r"cannot save to .*checkpoints.*too large"):
            checkpoints.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert steps_in(tmp_path) == [3]
    assert_equal(load_params(tmp_path), state_at(3).params)
    save(tmp_path, 5)  # what was left of the failed one is no hindrance
    assert steps_in(tmp_path) == [3, 5]
    assert not list((tmp_path / "checkpoints").glob("*tmp*"))


def test_meta_is_plain_json_that_says_what_the_run_was(tmp_path):
    save(tmp_path, 3)
    meta = json.loads(meta_file(tmp_path, 3).read_text())
    assert META.items() <= meta.items()
    assert set(meta["fingerprints"]) == {"params", "optimizer_state"}
