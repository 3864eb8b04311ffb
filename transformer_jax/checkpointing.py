"""Checkpoints by Orbax: save, resume, and load parameters alone, averaged or not.

A checkpoint of step N is a folder `checkpoints/N` of three items: `params`,
`optimizer_state`, and `meta`, a JSON object that says what the run was. Saving goes on
in the background; a save that was cut short is never seen again.

Orbax reads a damaged file as wrong numbers, without a word. So `meta` holds a
fingerprint of each item, and whatever is loaded is checked against it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging as python_logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jaxtyping import Array, UInt32
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax import processes
from transformer_jax.errors import UserError
from transformer_jax.sharding import to_global
from transformer_jax.training.step import TrainState

_FOLDER = "checkpoints"
_DAMAGED_FOLDER = "damaged"
_SCORE = "score"
_UNHEARD = ("Event loop is closed", "Encountered error while reading array index")


class DamagedError(UserError):
    """A checkpoint that cannot be read, or holds other numbers than were saved."""


class SaveError(UserError):
    """A checkpoint could not be written: a full disk, a folder without permission."""


def fingerprint(tree: Any) -> str:
    """Sixteen hexadecimal digits that change when any number of the tree does.

    The sum over all elements of a hash of (bits, index, leaf), modulo 2^32, twice with
    other constants. A change of a single element always shows, since the hash is a
    bijection of its bits; another change escapes with probability 2^-64. Being a sum,
    it is the same however the arrays are spread over devices, and it is computed where
    they are.
    """
    leaves = enumerate(jax.tree.leaves(tree), start=1)
    words = [_hash_of_leaf(x, np.uint32(number)) for number, x in leaves]
    total = np.stack(jax.device_get(words)).sum(axis=0, dtype=np.uint32)
    return "".join(f"{int(word):08x}" for word in total)


@jax.jit
def _hash_of_leaf(x: Array, number: Array) -> UInt32[Array, " 2"]:
    """Compiled once a shape, of which the layers of a model have few."""
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    index = jnp.arange(x.size, dtype=jnp.uint32).reshape(x.shape)
    words = []
    for salt in (0x9E3779B9, 0x7F4A7C15):
        place = _mix(index + number * jnp.uint32(salt))
        hashed = _mix(bits.astype(jnp.uint32) ^ place)
        words.append(jnp.sum(hashed, dtype=jnp.uint32))
    return jnp.stack(words)


def _mix(x: Array) -> Array:
    """The finalizer of MurmurHash3 (Appleby 2011), a bijection of 32 bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _digest(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


@dataclasses.dataclass
class _LatestBestAndMilestones(preservation_policy.PreservationPolicy):
    """Keeps the newest few, the one with the highest score, and each so many steps."""

    num_latest: int
    milestone_steps: int  # 0 = none

    def should_preserve(
        self,
        checkpoints: Sequence[preservation_policy.PolicyCheckpointInfo],
        *,
        context: preservation_policy.PreservationContext,
    ) -> Sequence[bool]:
        scores = [(info.metrics or {}).get(_SCORE) for info in checkpoints]
        best = max((score for score in scores if score is not None), default=None)
        first_latest = len(checkpoints) - self.num_latest
        return [
            i >= first_latest
            or (score is not None and score == best)
            or (self.milestone_steps > 0 and info.step % self.milestone_steps == 0)
            for i, (info, score) in enumerate(zip(checkpoints, scores, strict=True))
        ]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self, workdir: Path, *, keep_last: int, keep_every_steps: int = 0
    ) -> None:
        """Opens the folder, and makes it where it is missing.

        Args:
          workdir: folder of the run.
          keep_last: how many of the newest stay.
          keep_every_steps: those at multiples of it stay as well; 0 = none.
        """
        _quiet_orbax()
        self._workdir = workdir
        self._manager = ocp.CheckpointManager(
            (workdir / _FOLDER).absolute(),
            item_names=("params", "optimizer_state", "meta"),
            options=ocp.CheckpointManagerOptions(
                create=True,
                preservation_policy=_LatestBestAndMilestones(
                    keep_last, keep_every_steps
                ),
                cleanup_tmp_directories=True,
                enable_async_checkpointing=True,
            ),
        )

    def save(
        self, state: TrainState, meta: dict[str, Any], *, score: float | None
    ) -> None:
        """Starts to save a state.

        Args:
          state: what to save; its buffers may be donated as soon as this returns.
          meta: plain JSON values.
          score: higher is better; absent where the state was not validated.

        Raises:
          SaveError: this save could not start, or one before did not end.
        """
        meta = {
            **meta,
            "skipped_updates": int(state.skipped_updates),
            "fingerprints": {
                "params": fingerprint(state.params),
                "optimizer_state": fingerprint(state.optimizer_state),
            },
        }
        if score is not None:
            meta[_SCORE] = score
        with self._naming_failure():
            self._manager.save(
                int(state.step),
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(state.params),
                    optimizer_state=ocp.args.StandardSave(state.optimizer_state),
                    meta=ocp.args.JsonSave({**meta, "digest": _digest(meta)}),
                ),
                metrics=None if score is None else {_SCORE: score},
            )

    def raise_failure(self) -> None:
        """Raises the SaveError of a save in the background, where there is one."""
        with self._naming_failure():
            self._manager.check_for_errors()

    def restore_newest(
        self, abstract: TrainState
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest undamaged state and its meta; None where nothing was saved.

        Damaged ones are named in a warning and set aside, into `WORKDIR/damaged`, so
        that their steps can be saved again.

        Args:
          abstract: shapes and shardings of what to restore.

        Raises:
          UserError: all are damaged; nothing was moved.
        """
        damaged: list[DamagedError] = []
        steps = steps_in(self._workdir)
        for step in reversed(steps):
            try:
                meta = load_meta(self._workdir, step)
                state = self._restore(step, meta, abstract)
            except DamagedError as error:
                damaged.append(error)
                continue
            for error in damaged if processes.is_first() else ():
                logging.warning("%s; going back to step %d", error, step)
            if damaged:
                self._set_aside(steps[-len(damaged) :])
            return state, meta
        if damaged:
            raise UserError(
                f"all {len(damaged)} checkpoints in {self._workdir / _FOLDER} are "
                f"damaged (the newest: {damaged[0]}): bring one back from a copy, or "
                "train in another --workdir"
            )
        return None

    def _restore(
        self, step: int, meta: dict[str, Any], abstract: TrainState
    ) -> TrainState:
        with _naming_damage(self._workdir, step):
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(abstract.params),
                    optimizer_state=ocp.args.StandardRestore(abstract.optimizer_state),
                ),
            )
            for name, recorded in meta["fingerprints"].items():
                _require_same(restored[name], recorded)
        counts = [np.array(n, np.int32) for n in (step, meta["skipped_updates"])]
        step_count, skipped_updates = to_global(counts, abstract.step.sharding)
        params, optimizer_state = restored["params"], restored["optimizer_state"]
        return TrainState(step_count, skipped_updates, params, optimizer_state)

    def _set_aside(self, steps: Sequence[int]) -> None:
        if processes.is_first():
            folder = self._workdir / _DAMAGED_FOLDER
            folder.mkdir(exist_ok=True)
            for step in steps:
                number = sum(1 for path in folder.iterdir() if path.stem == str(step))
                name = f"{step}.{number}" if number else str(step)
                os.rename(self._workdir / _FOLDER / str(step), folder / name)
        processes.wait_for_all("damaged checkpoints are set aside")
        self._manager.reload()

    def __enter__(self) -> Self:
        """The checkpoints themselves, to be closed at the end of the block."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Closes, but where that would wait for processes that may not come."""
        if error is None or not processes.is_one_of_several():
            self.close()

    def close(self) -> None:
        """Waits until all is saved.

        Raises:
          SaveError: it could not be.
        """
        with self._naming_failure():
            try:
                self._manager.wait_until_finished()
            finally:
                self._manager.close()

    @contextlib.contextmanager
    def _naming_failure(self) -> Iterator[None]:
        """Turns what Orbax raises, of many kinds, into one line about the folder."""
        try:
            yield
        except Exception as error:
            if processes.is_loss(_root(error)):
                raise processes.lost_process(_root(error)) from error
            raise SaveError(
                f"cannot save to {self._workdir / _FOLDER} ({_first_cause(error)}): "
                "stopped; the checkpoints before are whole. Mend it, then the same "
                "command goes on from the newest"
            ) from error


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_cause(error: BaseException) -> str:
    error = _root(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


@functools.cache
def _quiet_orbax() -> None:
    """Orbax logs each save in a dozen lines; its errors are raised all the same.

    Where one of many reads or writes fails, it stops listening to the others, which
    complain of that where nobody can catch it.
    """
    warnings.filterwarnings("ignore", "coroutine 'async_serialize", RuntimeWarning)
    absl_logger = python_logging.getLogger("absl")
    absl_logger.addFilter(lambda record: "orbax" not in record.pathname)
    previous = sys.unraisablehook

    def hook(raised: Any) -> None:
        if not str(raised.exc_value).startswith(_UNHEARD):
            previous(raised)

    sys.unraisablehook = hook


def steps_in(workdir: Path) -> list[int]:
    """The steps of all whole checkpoints, ascending."""
    folder = workdir / _FOLDER
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def load_checkpoint(
    workdir: Path, checkpoint: str = "latest", *, average_last: int = 5
) -> tuple[Any, list[int]]:
    """Parameters of a run as numpy arrays, and the steps that they are the average of.

    Averages are taken in float64 and rounded to float32 once (Section 6.1: the last 5
    checkpoints for base, 20 for big).

    Args:
      workdir: folder of the run.
      checkpoint: "latest", "best" (by validation), "average" (of the newest
        `average_last`), or a step. For "latest" and "average", the ones before stand
        in for damaged ones, with a warning.
      average_last: how many "average" means, at most.

    Raises:
      UserError: no such checkpoint, or none at all.
      DamagedError: none is left.
    """
    steps = steps_in(workdir)
    if not steps:
        raise UserError(
            f"no checkpoint in {workdir}: expected the folder of a run; train with "
            f"--workdir={workdir} first"
        )
    if checkpoint in ("latest", "average"):
        num_wanted = 1 if checkpoint == "latest" else average_last
        return _average_whole(workdir, steps, num_wanted)
    if checkpoint == "best":
        step = _best_step(workdir, steps)
    elif checkpoint.isdigit() and int(checkpoint) in steps:
        step = int(checkpoint)
    else:
        raise UserError(
            f"no checkpoint {checkpoint!r} in {workdir}, expected latest, best, "
            f"average or one of {', '.join(map(str, steps))}"
        )
    return _load(workdir, step), [step]


def load_params(
    workdir: str | Path, checkpoint: str = "latest", *, average_last: int = 5
) -> Any:
    """The parameter tree of a run as numpy arrays; see `load_checkpoint`."""
    return load_checkpoint(Path(workdir), checkpoint, average_last=average_last)[0]


def _average_whole(
    workdir: Path, steps: Sequence[int], num_wanted: int
) -> tuple[Any, list[int]]:
    """The average of the newest undamaged checkpoints, and their steps."""
    total, used, damaged = None, [], []
    for step in reversed(steps):
        if len(used) == num_wanted:
            break
        try:
            params = _load(workdir, step)
        except DamagedError as error:
            damaged.append(error)
            logging.warning("%s", error)
            continue
        used.insert(0, step)
        if num_wanted == 1:
            return params, used
        wide = jax.tree.map(lambda x: x.astype(np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    if not used:
        raise damaged[0]
    return jax.tree.map(lambda x: (x / len(used)).astype(np.float32), total), used


def _best_step(workdir: Path, steps: Sequence[int]) -> int:
    scored = []
    for step in steps:
        try:
            score = load_meta(workdir, step).get(_SCORE)
        except DamagedError as error:
            logging.warning("%s", error)
            continue
        if score is not None:
            scored.append((score, step))
    if not scored:
        raise UserError(
            f"no checkpoint in {workdir} was validated yet: take --checkpoint=latest"
        )
    return max(scored)[1]


def load_meta(workdir: Path, step: int) -> dict[str, Any]:
    """What `Checkpoints.save` was told of the run at `step`.

    Raises:
      DamagedError: it cannot be read, or is not what was saved.
    """
    path = workdir / _FOLDER / str(step) / "meta"
    with _naming_damage(workdir, step):
        meta = dict(ocp.JsonCheckpointHandler().restore(epath.Path(path.absolute())))
        if meta.pop("digest", None) != _digest(meta):
            raise ValueError("meta is not what was saved")
        return meta


def require_whole(workdir: Path, step: int) -> None:
    """Reads a checkpoint and compares it with its fingerprints.

    Raises:
      DamagedError: it is not what was saved.
    """
    for item in load_meta(workdir, step)["fingerprints"]:
        _load(workdir, step, item)


@contextlib.contextmanager
def _naming_damage(workdir: Path, step: int) -> Iterator[None]:
    """Turns what Orbax raises, of many kinds, into one line about the checkpoint."""
    try:
        yield
    except Exception as error:
        raise DamagedError(
            f"checkpoint {workdir / _FOLDER / str(step)} is damaged "
            f"({_first_cause(error)})"
        ) from error


def _require_same(tree: Any, recorded: str) -> None:
    if fingerprint(tree) != recorded:
        raise ValueError("its numbers are not those that were saved")


def _load(workdir: Path, step: int, item: str = "params") -> Any:
    path = (workdir / _FOLDER / str(step) / item).absolute()
    _quiet_orbax()
    checkpointer = ocp.PyTreeCheckpointer()
    recorded = load_meta(workdir, step)["fingerprints"][item]
    with _naming_damage(workdir, step):
        metadata: Any = checkpointer.metadata(path).item_metadata
        restore_args = jax.tree.map(
            lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata.tree
        )
        tree = checkpointer.restore(
            path, args=ocp.args.PyTreeRestore(restore_args=restore_args)
        )
        _require_same(tree, recorded)
    return tree
