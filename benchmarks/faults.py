"""Trains under every misfortune that can be arranged, and checks that nothing is lost.

python -m benchmarks.faults [--only=kills,signals] [--kills=50] [--seed=0]

Each experiment runs `train.py` as a user would, on a small model of the generated
phrases, does its harm, lets the run finish, and compares the result with that of a run
that nothing happened to. It prints a line of what was seen; anything lost ends the
campaign with status 1.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpointing import load_params, steps_in

ROOT = Path(__file__).resolve().parent.parent
STEPS, SAVED_EVERY = 120, 10
CONFIG = {
    "model.vocab_size": 400,
    "model.num_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.dropout_rate": 0.2,
    "data.num_phrases": 300,
    "training.batch_tokens": 1024,
    "training.steps": STEPS,
    "optimizer.cooldown_steps": 0,  # which would follow training.steps
    "training.log_every_steps": 1,
    "checkpoint.every_steps": SAVED_EVERY,
    "checkpoint.keep_last": 20,
    "validation.metric": "loss",
    "validation.bleu_sentences": 0,
    "validation.every_steps": 10**6,
}
_TIMEOUT_S = 300


class Trainer:
    """One process of `train.py`."""

    def __init__(
        self,
        workdir: Path,
        *,
        num_devices: int = 1,
        flags: Sequence[str] = (),
        scratch: Path | None = None,
        **changes: Any,
    ) -> None:
        """Starts it.

        Args:
          workdir: folder of the run.
          num_devices: simulated on the CPU.
          flags: beside --config and --workdir.
          scratch: folder of compiled programs and of what trainers say; by default the
            workdir's parent.
          **changes: config values, dots written as two underscores.
        """
        named = {name.replace("__", "."): value for name, value in changes.items()}
        values = {**CONFIG, **named}
        scratch = scratch or workdir.parent
        self.workdir = workdir
        self.started = time.time()
        command = [sys.executable, "train.py", f"--workdir={workdir}", *flags]
        command += [f"--config={ROOT / 'configs/quickstart.py'}"]
        command += [f"--config.{name}={value}" for name, value in values.items()]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(num_devices),
            # The same program is compiled for each life of a run: keep it.
            "JAX_COMPILATION_CACHE_DIR": str(scratch / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        handle, name = tempfile.mkstemp(prefix="said-", dir=scratch)
        self._errors = Path(name)
        with os.fdopen(handle, "wb") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stderr=errors, env=environment
            )

    def wait(self) -> int:
        """Its exit status, or minus the number of the signal that ended it."""
        return self.process.wait(timeout=_TIMEOUT_S)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def said(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text("utf-8")[-20_000:]

    def finish(self) -> None:
        """Waits for an orderly end."""
        require(self.wait() == 0, f"training ended badly: {self.said()}")

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Returns when something is so, while the process lives."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not is_so():
            require(self.process.poll() is None, f"ended early: {self.said()}")
            require(time.monotonic() < deadline, f"too slow: {self.said()}")
            time.sleep(0.002)


def start_pair(workdir: Path, **changes: Any) -> list[Trainer]:
    """Two processes of one run, on one machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    together = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2"]
    return [
        Trainer(workdir, flags=[*together, f"--process_id={number}"], **changes)
        for number in (0, 1)
    ]


class LossError(Exception):
    """Something was lost, or an error was not what it should be."""


def require(is_so: bool, what: str) -> None:
    """Ends the experiment where a claim does not hold."""
    if not is_so:
        raise LossError(what)


def last_step(workdir: Path) -> int:
    """The newest step in metrics.jsonl, 0 where there is none."""
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in reversed(lines):
        try:
            return json.loads(line)["step"]
        except ValueError:
            continue  # being written
    return 0


def losses(workdir: Path) -> list[float]:
    """Of all steps; each must be there once."""
    lines = (workdir / "metrics.jsonl").read_text("utf-8").splitlines()
    train = [line for line in map(json.loads, lines) if "train/loss" in line]
    steps = [line["step"] for line in train]
    require(steps == list(range(1, STEPS + 1)), f"steps {steps}, expected each once")
    return [line["train/loss"] for line in train]


def require_same_run(workdir: Path, expected: Path) -> None:
    """Losses and final parameters, bit by bit."""
    require(losses(workdir) == losses(expected), "other losses")
    leaves = [jax.tree.leaves(load_params(run)) for run in (workdir, expected)]
    same = all(np.array_equal(x, y) for x, y in zip(*leaves, strict=True))
    require(same, "other parameters")


def undisturbed(folder: Path) -> Path:
    """A run that nothing happens to, made once."""
    workdir = folder / "undisturbed"
    if not workdir.exists():
        Trainer(workdir).finish()
    return workdir


def kills(folder: Path, number: int, rng: random.Random) -> str:
    """SIGKILL at random moments; at every other one, while a checkpoint is written."""
    expected, lost, done, in_save, runs = undisturbed(folder), 0, 0, 0, 0
    while done < number:
        workdir = folder / f"kills{runs}"
        runs += 1
        while done < number:
            trainer = Trainer(workdir)
            begun = last_step(workdir)
            if done % 2 == 0:
                # Any moment: before the first step, or up to 30 steps later.
                target = begun + rng.randint(0, 30) if rng.random() < 0.8 else 0
                wait = rng.random() * (0.02 if target else 4.0)
                is_so = lambda: last_step(workdir) >= min(target, STEPS - 1)  # noqa: B023, E731
            else:
                wait = rng.random() * 0.02
                is_so = lambda: _is_saving(trainer)  # noqa: B023, E731
            try:
                trainer.wait_until(is_so)
            except LossError:
                require(trainer.wait() == 0, trainer.said())
                break  # finished before its time came
            time.sleep(wait)
            in_save += _is_saving(trainer)
            trainer.kill()
            trainer.wait()
            done += 1
            newest = max(steps_in(workdir), default=0)
            lost = max(lost, last_step(workdir) - newest)
        Trainer(workdir).finish()
        require_same_run(workdir, expected)
    return (
        f"{done} kills in {runs} runs, {in_save} of them while a checkpoint was "
        f"written; all resumed exactly; at most {lost} steps done again "
        f"(a checkpoint each {SAVED_EVERY})"
    )


def _is_saving(trainer: Trainer) -> bool:
    """Whether this life of the run writes a checkpoint; the last one's may be there."""
    for path in (trainer.workdir / "checkpoints").glob("*tmp*"):
        with contextlib.suppress(FileNotFoundError):  # it is whole now
            if path.stat().st_ctime > trainer.started:
                return True
    return False


def signals(folder: Path, number: int, rng: random.Random) -> str:
    """SIGTERM and Ctrl-C save first; the second Ctrl-C does not wait."""
    expected, slowest = undisturbed(folder), 0.0
    for name, sent in (("term", signal.SIGTERM), ("int", signal.SIGINT)):
        workdir = folder / f"signals-{name}"
        trainer = Trainer(workdir)
        step = rng.randint(1, STEPS - 40)
        trainer.wait_until(lambda w=workdir, s=step: last_step(w) >= s)
        start = time.monotonic()
        trainer.kill(sent)
        require(trainer.wait() == 130, f"status {trainer.process.returncode}")
        slowest = max(slowest, time.monotonic() - start)
        require("Interrupted: saved step" in trainer.said(), trainer.said())
        require(steps_in(workdir)[-1] == last_step(workdir), "a step was lost")
        Trainer(workdir).finish()
        require_same_run(workdir, expected)
    workdir = folder / "signals-twice"
    trainer = Trainer(workdir, checkpoint__every_steps=STEPS)
    trainer.wait_until(lambda: last_step(workdir) >= 5)
    trainer.kill(signal.SIGINT)
    trainer.wait_until(lambda: "SIGINT: stopping" in trainer.said())
    start = time.monotonic()
    trainer.kill(signal.SIGINT)
    status, waited = trainer.wait(), time.monotonic() - start
    require(status in (-signal.SIGINT, 130), f"status {status}")
    Trainer(workdir).finish()
    require_same_run(workdir, expected)
    return (
        f"SIGTERM and Ctrl-C: saved, status 130, within {slowest:.1f} s; Ctrl-C twice "
        f"ended within {waited:.2f} s; all resumed exactly"
    )


def devices(folder: Path, number: int, rng: random.Random) -> str:
    """One run on 8 devices, then 4, then 1, then in 2 processes."""
    expected, workdir = undisturbed(folder), folder / "devices"
    for num_devices, until in ((8, 30), (4, 60), (1, 90)):
        Trainer(workdir, num_devices=num_devices, training__steps=until).finish()
    for trainer in start_pair(workdir):
        trainer.finish()
    one, other = np.array(losses(workdir)), np.array(losses(expected))
    difference = float(np.max(np.abs(one - other) / other))
    require(difference < 1e-4, f"losses differ by {difference}")
    return (
        f"8 -> 4 -> 1 devices -> 2 processes: losses within {difference:.1e} relative"
    )


def damage(folder: Path, number: int, rng: random.Random) -> str:
    """A flipped byte, a truncated file, then all checkpoints damaged."""
    expected, seen = undisturbed(folder), []
    for kind in ("flipped byte", "truncated file"):
        workdir = folder / f"damage-{kind.split()[0]}"
        Trainer(workdir, training__steps=60).finish()
        _damage(workdir / "checkpoints" / "60", kind)
        trainer = Trainer(workdir)
        trainer.finish()
        said = trainer.said()
        require("checkpoints/60 is damaged" in said, said)
        require("Resuming from step 50" in said, said)
        require_same_run(workdir, expected)
        seen.append(kind)
    workdir = folder / "damage-all"
    Trainer(workdir, training__steps=20).finish()
    for step in steps_in(workdir):
        _damage(workdir / "checkpoints" / str(step), "flipped byte")
    before = sorted(map(str, (workdir / "checkpoints").rglob("*")))
    trainer = Trainer(workdir)
    require(trainer.wait() == 2, "all damaged: status is not 2")
    require("error: all 2 checkpoints in" in trainer.said(), trainer.said())
    require(before == sorted(map(str, (workdir / "checkpoints").rglob("*"))), "deleted")
    return (
        f"{', '.join(seen)}: named, the one before used, exact; all damaged: status 2"
    )


def _damage(checkpoint: Path, kind: str) -> None:
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    if kind == "flipped byte":
        content[len(content) // 2] ^= 1
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)


def disk(folder: Path, number: int, rng: random.Random) -> str:
    """A disk that fills up, and one that becomes read-only, while saving."""
    expected, workdir = undisturbed(folder), folder / "small" / "run"
    workdir.parent.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(workdir.parent)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        return "not done: needs the right to mount a file system"
    try:
        start = functools.partial(Trainer, workdir, scratch=folder)
        trainer = start()
        require(trainer.wait() == 2, f"full disk: {trainer.said()}")
        said = trainer.said()
        require("No space left on device" in said, said)
        require("Traceback" not in said, said)
        whole = steps_in(workdir)
        require(len(whole) > 1, "no checkpoint before the disk was full")
        subprocess.run(
            ["mount", "-o", "remount,size=9m", str(workdir.parent)], check=True
        )
        trainer = start(training__steps=whole[-1] + 20)
        trainer.finish()
        require(f"Resuming from step {whole[-1]}" in trainer.said(), trainer.said())

        trainer = start()
        trainer.wait_until(lambda: last_step(workdir) > whole[-1] + 22)
        readonly = ["mount", "-o", "remount,ro", str(workdir.parent)]
        # Refused while a file is open for writing; `force` is for a dying disk.
        if subprocess.run(readonly, capture_output=True).returncode == 0:
            require(trainer.wait() == 2, f"read-only: {trainer.said()}")
            subprocess.run(
                ["mount", "-o", "remount,rw", str(workdir.parent)], check=True
            )
            shown = "read-only while training: status 2"
        else:
            trainer.kill(signal.SIGTERM)
            trainer.wait()
            subprocess.run(readonly, check=True)
            trainer = start()
            require(trainer.wait() == 2, f"read-only: {trainer.said()}")
            require("error: " in trainer.said(), trainer.said())
            subprocess.run(
                ["mount", "-o", "remount,rw", str(workdir.parent)], check=True
            )
            shown = "read-only before the start: status 2"
        start().finish()
        require_same_run(workdir, expected)
    finally:
        subprocess.run(["umount", "-l", str(workdir.parent)], check=False)
    return f"disk full: status 2, {len(whole)} checkpoints whole, exact; {shown}, exact"


def locks(folder: Path, number: int, rng: random.Random) -> str:
    """Two trainers in one workdir; a third after the first was killed."""
    expected, workdir = undisturbed(folder), folder / "locks"
    first = Trainer(workdir)
    first.wait_until(lambda: last_step(workdir) >= 3)
    first.kill(signal.SIGSTOP)  # so that it does not end before its time
    second = Trainer(workdir)
    require(second.wait() == 2, second.said())
    holder = f"process {first.process.pid} on {socket.gethostname()}"
    require(f"is being trained by {holder}" in second.said(), second.said())
    first.kill()
    first.wait()
    Trainer(workdir).finish()
    require_same_run(workdir, expected)
    return f"the second is refused with '{holder}'; a dead one's lock is taken over"


def non_finite(folder: Path, number: int, rng: random.Random) -> str:
    """A learning rate that no training survives."""
    seen = []
    for allowed in (0, 3):
        workdir = folder / f"non-finite-{allowed}"
        trainer = Trainer(
            workdir,
            optimizer__factor=1e30,
            checkpoint__every_steps=1,
            training__max_skipped_updates=allowed,
        )
        require(trainer.wait() == 2, trainer.said())
        said = trainer.said()
        require(f"{allowed + 1} updates skipped" in said, said)
        require(said.count("update skipped,") == allowed, said)
        last = said.strip().splitlines()[-1]
        require(last.startswith("error: "), said)
        params = jax.tree.leaves(load_params(workdir))
        require(all(np.isfinite(x).all() for x in params), "a bad checkpoint")
        seen.append(last.removeprefix("error: ").split(":")[0])
    return f"stopped with '{seen[0]}', the last checkpoint finite; 3 skips when allowed"


EXPERIMENTS: dict[str, Callable[[Path, int, random.Random], str]] = {
    "kills": kills,
    "signals": signals,
    "devices": devices,
    "damage": damage,
    "disk": disk,
    "locks": locks,
    "non_finite": non_finite,
}


def main(arguments: Sequence[str]) -> int:
    """Runs the named experiments, all by default; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(EXPERIMENTS))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    for name in flags.only.split(","):
        start = time.monotonic()
        try:
            seen = EXPERIMENTS[name](folder, flags.kills, random.Random(flags.seed))
        except LossError as error:
            print(f"{name}: FAILED: {str(error)[-2000:]}\nsee {folder}", flush=True)
            return 1
        print(f"{name}: {seen} ({time.monotonic() - start:.0f} s)", flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
