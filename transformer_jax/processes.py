"""Several processes, on one machine or many, that train together.

Each runs the same command and holds its own devices; arrays are global. What a process
alone can know (a signal, the time) must be agreed on before it changes what is done,
since a process that takes part in a computation waits for all others.
"""

import contextlib
import hashlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.errors import UserError

# A process that is silent for so long is given up by the others.
HEARTBEAT_TIMEOUT_S = 60
_INITIALIZATION_TIMEOUT_S = 300


class LostProcessError(UserError):
    """Another process of this run ended, or cannot be reached."""


def join(coordinator: str, num_processes: int | None, process_id: int | None) -> None:
    """Connects this process with the others of its run, before any use of a device.

    Args:
      coordinator: "HOST:PORT" of process 0; "auto" = ask the environment, as on a TPU
        pod; "" = the same where the environment is of several processes (SLURM, Open
        MPI, TPU_WORKER_HOSTNAMES, JAX_COORDINATOR_ADDRESS), else this one is alone.
      num_processes: of the run; only with HOST:PORT.
      process_id: of this process, from 0; only with HOST:PORT.

    Raises:
      UserError: the arguments do not fit together, or nobody answers.
    """
    is_explicit = coordinator not in ("", "auto")
    if is_explicit != (num_processes is not None) or is_explicit != (
        process_id is not None
    ):
        raise UserError(
            "--coordinator=HOST:PORT, --num_processes and --process_id belong together"
        )
    if is_explicit:
        _check_address(coordinator)
        assert num_processes is not None
        assert process_id is not None
        if num_processes < 1:
            raise UserError(f"--num_processes is {num_processes}, expected 1 or more")
        if not 0 <= process_id < num_processes:
            raise UserError(
                f"--process_id is {process_id}, expected 0 to {num_processes - 1}, "
                f"since --num_processes is {num_processes}"
            )
    elif not coordinator and not _environment_has_several():
        return
    where = f"at {coordinator}" if is_explicit else "that the environment names"
    print(
        f"waiting for all processes {where}, at most {_INITIALIZATION_TIMEOUT_S} s",
        file=sys.stderr,
        flush=True,
    )
    # Python would see Ctrl-C only when the waiting is over: let it end the process.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        jax.distributed.initialize(
            coordinator if is_explicit else None,
            num_processes=num_processes,
            process_id=process_id,
            initialization_timeout=_INITIALIZATION_TIMEOUT_S,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"cannot join the other processes ({str(error).splitlines()[0]}): check "
            "--coordinator=HOST:PORT, --num_processes and --process_id"
        ) from error
    finally:
        signal.signal(signal.SIGINT, handler)


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(
            f"--coordinator is {address!r}, expected HOST:PORT of process 0, or auto"
        )
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError as error:
        raise UserError(
            f"--coordinator is {address!r}, but no host {host} is known "
            f"({error.strerror}): give the name or address of process 0's host"
        ) from error


def _environment_has_several() -> bool:
    tasks = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
    return (
        any(os.environ.get(name, "1") not in ("", "1") for name in tasks)
        or "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
        or bool(os.environ.get("JAX_COORDINATOR_ADDRESS"))
    )


def is_one_of_several() -> bool:
    """Whether `join` has connected this process with others."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this is the process that writes and speaks for all."""
    return jax.process_index() == 0


def wait_for_all(name: str) -> None:
    """Returns when every process has called it with this name."""
    multihost_utils.sync_global_devices(name)


def gathered(value: Any) -> list[Any]:
    """The values of all processes, in their order; every process must call it."""
    content = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(content)]), tiled=True)
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(content)] = content
    rows = multihost_utils.process_allgather(padded[None], tiled=True)
    return [
        pickle.loads(row[:size].tobytes())
        for row, size in zip(rows, sizes, strict=True)
    ]


def require_equal(text: str, what: str) -> None:
    """Compares a text among the processes, before they rely on it.

    Raises:
      UserError: process 0 has another one.
    """
    if jax.process_count() == 1:
        return
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    if (multihost_utils.broadcast_one_to_all(digest) != digest).any():
        raise UserError(
            f"process {jax.process_index()} on {socket.gethostname()} has another "
            f"{what} than process 0: give all processes the same"
        )


class Agreement:
    """Claims that any process may make and that all then see, at the same call."""

    def __init__(self) -> None:
        """Gets ready; a process that is alone agrees with itself."""
        self.is_alone = jax.process_count() == 1
        self._asked: jax.Array | None = None
        if not self.is_alone:
            axis = (AxisType.Auto,)
            mesh = jax.make_mesh((jax.device_count(),), ("device",), axis_types=axis)
            self._sharding = NamedSharding(mesh, P("device"))
            self._any = jax.jit(
                lambda claims: claims.any(axis=0),
                out_shardings=NamedSharding(mesh, P()),
            )

    def __call__(self, *claims: bool) -> list[bool]:
        """Each claim, true where any process made it.

        With several processes the answer is that of the call before: asking waits for
        no computation that is still going on.
        """
        if self.is_alone:
            return list(claims)
        shape = (jax.device_count(), len(claims))
        mine = jax.make_array_from_callback(
            shape, self._sharding, lambda _: np.array([claims])
        )
        before, self._asked = self._asked, self._any(mine)
        return [False] * len(claims) if before is None else np.asarray(before).tolist()


@contextlib.contextmanager
def naming_lost_process() -> Iterator[None]:
    """Turns the failure of a computation that all share into one clear line.

    Raises:
      LostProcessError: another process is gone.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if isinstance(error, LostProcessError) or not is_loss(error):
            raise
        raise lost_process(error) from error


def is_loss(error: BaseException | None) -> bool:
    """Whether a computation that all share failed because a process is gone."""
    kinds = LostProcessError, jax.errors.JaxRuntimeError
    is_of_network = isinstance(error, kinds) or "Gloo" in str(error)
    return is_of_network and jax.process_count() > 1


def lost_process(error: BaseException) -> LostProcessError:
    """What to tell of an error for which `is_loss` holds."""
    line = (str(error).splitlines() or [""])[0][:200]
    return LostProcessError(
        f"process {jax.process_index()} of {jax.process_count()} lost another one "
        f"({line}): start all of them again, they go on from the last checkpoint"
    )
