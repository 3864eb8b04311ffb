"""Two real processes on one machine: they compute as one, and are safe if one dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from transformer_jax import processes
from transformer_jax.checkpointing import load_params, steps_in
from transformer_jax.errors import UserError

ROOT = Path(__file__).parent.parent
STEPS, SAVED_EVERY = 120, 40
# What another process's death may take to be noticed, with room for a busy machine.
NOTICED_WITHIN_S = 60
FLAGS = [
    f"--config={ROOT / 'configs/quickstart.py'}",
    "--config.model.vocab_size=400",
    "--config.model.num_layers=1",
    "--config.model.d_model=16",
    "--config.model.d_ff=24",
    "--config.model.num_heads=2",
    "--config.model.dropout_rate=0.2",
    "--config.data.num_phrases=300",
    "--config.training.batch_tokens=512",
    f"--config.training.steps={STEPS}",
    "--config.training.log_every_steps=1",
    f"--config.checkpoint.every_steps={SAVED_EVERY}",
    "--config.checkpoint.keep_last=9",
    "--config.validation.metric=loss",
    "--config.validation.bleu_sentences=0",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(
    workdir: Path, num_processes: int, extra: Sequence[str] = ()
) -> list[subprocess.Popen[bytes]]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "train.py", *FLAGS, *extra, f"--workdir={workdir}"]
    if num_processes > 1:
        command += [f"--coordinator=127.0.0.1:{free_port()}"]
        command += [f"--num_processes={num_processes}"]
    started = []
    for number in range(num_processes):
        one = [f"--process_id={number}"] if num_processes > 1 else []
        with (workdir.parent / f"{workdir.name}.{number}.err").open("wb") as errors:
            started.append(
                subprocess.Popen(
                    [*command, *one], cwd=ROOT, env=environment, stderr=errors
                )
            )
    return started


def said(workdir: Path, number: int) -> str:
    return (workdir.parent / f"{workdir.name}.{number}.err").read_text("utf-8")


def finish(workdir: Path, started: list[subprocess.Popen[bytes]]) -> None:
    for number, process in enumerate(started):
        assert process.wait(timeout=300) == 0, said(workdir, number)


def losses(workdir: Path) -> list[float]:
    lines = (workdir / "metrics.jsonl").read_text("utf-8").splitlines()
    kept = [line for line in map(json.loads, lines) if "train/loss" in line]
    assert [line["step"] for line in kept] == list(range(1, STEPS + 1))
    return [line["train/loss"] for line in kept]


def wait_until(is_so: Callable[[], bool], watched: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert watched.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes, never interrupted."""
    workdir = tmp_path_factory.mktemp("pair") / "whole"
    finish(workdir, start(workdir, 2))
    return workdir


def test_two_processes_train_as_one_does(pair: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    finish(alone, start(alone, 1))
    np.testing.assert_allclose(losses(pair), losses(alone), rtol=1e-5)
    assert steps_in(pair) == steps_in(alone) == [40, 80, 120]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4),
        load_params(pair),
        load_params(alone),
    )
    # Only the first of the two speaks.
    assert "2 processes" in said(pair, 0)
    assert said(pair, 1).startswith("waiting for all processes at 127.0.0.1:")
    assert said(pair, 1).count("\n") == 1


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_when_one_process_dies_the_other_ends_and_the_pair_resumes_exactly(
    victim: int, pair: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "killed"
    started = start(workdir, 2)
    wait_until(lambda: bool(steps_in(workdir)), started[victim])
    started[victim].send_signal(signal.SIGKILL)
    survivor = 1 - victim
    status = started[survivor].wait(timeout=NOTICED_WITHIN_S)
    started[victim].wait(timeout=60)
    # Ours says it in one line, unless JAX's own watch ends the process first.
    error = said(workdir, survivor)
    if status == 2:
        assert f"error: process {survivor} of 2 lost another one" in error
        assert "Traceback" not in error
    else:
        assert status == -signal.SIGABRT
        assert "another task died" in error
    assert STEPS not in steps_in(workdir)
    finish(workdir, start(workdir, 2))
    assert "Resuming from step" in said(workdir, 0)
    assert losses(workdir) == losses(pair)
    jax.tree.map(np.testing.assert_array_equal, load_params(workdir), load_params(pair))


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(
    pair: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "stopped"
    started = start(workdir, 2)
    wait_until(lambda: bool(steps_in(workdir)), started[1])
    started[1].send_signal(signal.SIGTERM)
    assert [process.wait(timeout=120) for process in started] == [130, 130]
    assert "Interrupted: saved step" in said(workdir, 0)
    finish(workdir, start(workdir, 1))  # another number of processes
    np.testing.assert_allclose(losses(workdir), losses(pair), rtol=1e-5)


def test_a_process_that_waits_for_another_ends_at_ctrl_c(tmp_path: Path) -> None:
    workdir = tmp_path / "alone"
    first, second = start(workdir, 2)
    second.kill()
    second.wait()
    wait_until(lambda: "waiting for all processes" in said(workdir, 0), first)
    first.send_signal(signal.SIGINT)
    assert first.wait(timeout=20) in (-signal.SIGINT, 130)


@pytest.mark.slow
def test_a_pair_that_is_interrupted_before_its_first_step_ends(tmp_path: Path) -> None:
    workdir = tmp_path / "early"
    started = start(workdir, 2)
    wait_until(lambda: "devices: " in said(workdir, 0), started[0])
    for process in started:
        process.send_signal(signal.SIGINT)
    # The other may see it gone first.
    ends = {130, -signal.SIGINT, 2, -signal.SIGABRT}
    assert {process.wait(timeout=60) for process in started} <= ends


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
