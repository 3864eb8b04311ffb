"""The folder of a run: whose it is, and that one trainer at a time writes to it."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.tokenizer import Vocabularies
from transformer_jax.errors import UserError
from transformer_jax.files import write_whole
from transformer_jax.trained_model import load_config

# Config keys that a resumed run may change: they decide how long, how often, where and
# in what pieces. None changes what a step computes, but that a cooldown follows the end
# of the run.
_CHANGEABLE = (
    "training.steps",
    "training.log_every_steps",
    "training.early_stop_validations",
    "training.max_tokens_per_device",
    "training.max_skipped_updates",
    "model.remat",
    "validation.",
    "checkpoint.",
    "decoding.",
    "mesh.",
    "data.dir",
    "data.cache_dir",
)


def check_workdir(config: ExperimentConfig, workdir: Path) -> None:
    """Refuses a folder that this experiment cannot be trained in; makes nothing.

    Raises:
      UserError: it is another experiment's, in use, or cannot be written to.
    """
    there = workdir
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UserError(f"--workdir {workdir}: {there} is a file, expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(
            f"--workdir {workdir}: {there} cannot be written to, take another path"
        )
    if not (workdir / "config.json").exists():
        return
    with WorkdirLock(workdir):
        pass
    before, now = load_config(workdir).to_dict(), config.to_dict()
    differing = [
        f"{name} was {old} and is {new}"
        for (name, old), (_, new) in zip(_flat(before), _flat(now), strict=True)
        if old != new and not name.startswith(_CHANGEABLE)
    ]
    if differing:
        raise UserError(
            f"{workdir} was trained with another config ({'; '.join(differing)}): "
            "take another --workdir, or delete it to start anew"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def make_workdir(workdir: Path) -> None:
    """Makes the folder.

    Raises:
      UserError: it cannot be made.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make --workdir {workdir} ({error.strerror}): take another path"
        ) from error


def claim_workdir(
    config: ExperimentConfig, workdir: Path, vocabularies: Vocabularies
) -> None:
    """Makes the folder this run's: the vocabulary, then the config that claims it."""
    path = workdir / "config.json"
    if not path.exists():
        vocabularies.save(workdir)
    write_whole(path, json.dumps(config.to_dict(), indent=2).encode())


class WorkdirLock:
    """Held while a trainer writes to a workdir.

    The system's lock of a file: it ends with the process, however that ends, so none
    is ever left over. The file says who holds it.
    """

    def __init__(self, workdir: Path) -> None:
        """Takes the lock.

        Raises:
          UserError: another process has it; names the process and its host.
        """
        self._path = workdir / "lock"
        self._file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise UserError(
                f"--workdir {workdir} is being trained by {holder}: wait for it, stop "
                "it, or take another --workdir"
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def require_held(self) -> None:
        """Raises where the workdir is no longer the one that was locked.

        Raises:
          UserError: it was moved or deleted.
        """
        try:
            is_same = os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise UserError(
                f"--workdir {self._path.parent} was moved or deleted while it was "
                "trained: stopped; what was saved is where it was moved to"
            )

    def __enter__(self) -> Self:
        """The lock itself, to be released at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Releases it."""
        self._file.close()
