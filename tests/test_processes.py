"""Two real processes on one machine: they compute as one, and are safe if one dies."""

import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.faults import STEPS, Trainer, losses, start_pair
from transformer_jax import processes
from transformer_jax.checkpointing import load_params, steps_in
from transformer_jax.errors import UserError

# Seldom: a save takes part in what happens when a process dies.
SAVED_EVERY = 40
# What another process's death may take to be noticed, with room for a busy machine.
NOTICED_WITHIN_S = 60


def pair_of(workdir: Path) -> list[Trainer]:
    return start_pair(workdir, checkpoint__every_steps=SAVED_EVERY)


def finish(trainers: list[Trainer]) -> None:
    for trainer in trainers:
        trainer.finish()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Trainer]:
    """A run of two processes, never interrupted."""
    trainers = pair_of(tmp_path_factory.mktemp("pair") / "whole")
    finish(trainers)
    return trainers


@pytest.fixture(scope="module")
def pair(whole: list[Trainer]) -> Path:
    """Its workdir."""
    return whole[0].workdir


def test_two_processes_train_as_one_does(
    whole: list[Trainer], pair: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    Trainer(alone, checkpoint__every_steps=SAVED_EVERY).finish()
    np.testing.assert_allclose(losses(pair), losses(alone), rtol=1e-5)
    assert steps_in(pair) == steps_in(alone) == [40, 80, 120]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4),
        load_params(pair),
        load_params(alone),
    )
    # Only the first of the two speaks.
    first, second = [trainer.said() for trainer in whole]
    assert "2 processes" in first
    assert second.startswith("waiting for all processes at 127.0.0.1:")
    assert second.count("\n") == 1


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_when_one_process_dies_the_other_ends_and_the_pair_resumes_exactly(
    victim: int, pair: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "killed"
    started = pair_of(workdir)
    started[victim].wait_until(lambda: bool(steps_in(workdir)))
    started[victim].kill()
    survivor = 1 - victim
    status = started[survivor].process.wait(timeout=NOTICED_WITHIN_S)
    started[victim].wait()
    # Ours says it in one line, unless JAX's own watch ends the process first.
    error = started[survivor].said()
    if status == 2:
        assert f"error: process {survivor} of 2 lost another one" in error
        assert "Traceback" not in error
    else:
        assert status == -signal.SIGABRT
        assert "another task died" in error
    assert STEPS not in steps_in(workdir)
    again = pair_of(workdir)
    finish(again)
    assert "Resuming from step" in again[0].said()
    assert losses(workdir) == losses(pair)
    jax.tree.map(np.testing.assert_array_equal, load_params(workdir), load_params(pair))


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(
    pair: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "stopped"
    started = pair_of(workdir)
    started[1].wait_until(lambda: bool(steps_in(workdir)))
    started[1].kill(signal.SIGTERM)
    assert [trainer.process.wait(timeout=120) for trainer in started] == [130, 130]
    assert "Interrupted: saved step" in started[0].said()
    # Another number of processes.
    Trainer(workdir, checkpoint__every_steps=SAVED_EVERY).finish()
    np.testing.assert_allclose(losses(workdir), losses(pair), rtol=1e-5)


def test_a_process_that_waits_for_another_ends_at_ctrl_c(tmp_path: Path) -> None:
    first, second = pair_of(tmp_path / "alone")
    second.kill()
    second.wait()
    first.wait_until(lambda: "waiting for all processes" in first.said())
    first.kill(signal.SIGINT)
    assert first.process.wait(timeout=20) in (-signal.SIGINT, 130)


@pytest.mark.slow
def test_a_pair_that_is_interrupted_before_its_first_step_ends(tmp_path: Path) -> None:
    started = pair_of(tmp_path / "early")
    started[0].wait_until(lambda: "devices: " in started[0].said())
    for trainer in started:
        trainer.kill(signal.SIGINT)
    # The other may see it gone first.
    ends = {130, -signal.SIGINT, 2, -signal.SIGABRT}
    assert {trainer.process.wait(timeout=60) for trainer in started} <= ends


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("localhost:1", None, 0), "belong together"),
        (("localhost:1", 2, None), "belong together"),
        (("", 2, 0), "belong together"),
        (("auto", 2, 0), "belong together"),
        (("localhost", 2, 0), "'localhost', expected HOST:PORT"),
        ((":80", 2, 0), "expected HOST:PORT"),
        (("localhost:99999", 2, 0), "expected HOST:PORT"),
        (("no.such.host.invalid:80", 2, 1), "no host no.such.host.invalid is known"),
        (("localhost:1", 2, 2), "process_id is 2, expected 0 to 1"),
        (("localhost:1", 0, 0), "num_processes is 0, expected 1 or more"),
    ],
)
def test_processes_that_cannot_find_each_other_are_the_users_error(
    arguments: tuple[str, int | None, int | None], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        processes.join(*arguments)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_STEP_NUM_TASKS": "16"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, True),
    ],
)
def test_an_environment_of_several_processes_is_seen(
    environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda address, **_: asked.append(address)
    )
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "TPU_", "JAX_COORDINATOR")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    processes.join("", None, None)
    assert asked == ([None] if expected else [])


def test_a_process_that_is_alone_agrees_with_itself_at_once() -> None:
    agree = processes.Agreement()
    assert agree(True, False) == [True, False]
    assert agree(False, False) == [False, False]
