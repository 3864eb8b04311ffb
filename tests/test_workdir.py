"""One trainer at a time: the lock of a workdir."""

import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from transformer_jax.errors import UserError
from transformer_jax.training.workdir import WorkdirLock


def hold(workdir: Path, is_held: Any) -> None:
    with WorkdirLock(workdir):
        is_held.set()
        signal.pause()


def test_a_held_workdir_is_refused_with_its_holder_and_free_once_that_is_dead(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    holder = context.Process(target=hold, args=(tmp_path, is_held), daemon=True)
    holder.start()
    assert is_held.wait(timeout=60)
    expected = f"is being trained by process {holder.pid} on {socket.gethostname()}"
    with pytest.raises(UserError, match=expected):
        WorkdirLock(tmp_path)
    holder.kill()
    holder.join()
    with WorkdirLock(tmp_path):
        text = (tmp_path / "lock").read_text()
        assert text == f"process {os.getpid()} on {socket.gethostname()}\n"
    with WorkdirLock(tmp_path):
        pass


def test_a_workdir_that_was_moved_or_deleted_is_noticed(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    workdir.mkdir()
    with WorkdirLock(workdir) as lock:
        lock.require_held()
        workdir.rename(tmp_path / "moved")
        with pytest.raises(UserError, match="run was moved or deleted"):
            lock.require_held()
        workdir.mkdir()
        (workdir / "lock").touch()
        with pytest.raises(UserError, match="run was moved or deleted"):
            lock.require_held()
