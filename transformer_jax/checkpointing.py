"""Checkpoints by Orbax: save, resume, and load parameters alone, averaged or not.

A checkpoint of step N is a folder `checkpoints/N` of three items: `params`,
`optimizer_state`, and `meta`, a JSON object that says what the run was. Saving goes on
in the background; a save that was cut short is never seen again.
"""

import contextlib
import dataclasses
import logging as python_logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax.errors import UserError
from transformer_jax.training.step import TrainState

_FOLDER = "checkpoints"
_SCORE = "score"


@dataclasses.dataclass
class _LatestAndBest(preservation_policy.PreservationPolicy):
    """Keeps the newest few and the one with the highest score."""

    num_latest: int

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
            i >= first_latest or (score is not None and score == best)
            for i, score in enumerate(scores)
        ]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, workdir: Path, *, keep_last: int) -> None:
        """Opens the folder, and makes it where it is missing."""
        _quiet_orbax()
        self._workdir = workdir
        self._manager = ocp.CheckpointManager(
            (workdir / _FOLDER).absolute(),
            item_names=("params", "optimizer_state", "meta"),
            options=ocp.CheckpointManagerOptions(
                create=True,
                preservation_policy=_LatestAndBest(keep_last),
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
        """
        if score is not None:
            meta = {**meta, _SCORE: score}
        self._manager.save(
            int(state.step),
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer_state=ocp.args.StandardSave(state.optimizer_state),
                meta=ocp.args.JsonSave(meta),
            ),
            metrics=None if score is None else {_SCORE: score},
        )

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state saved at `step`, in the shapes and shardings of `abstract`."""
        with _naming_damage(self._workdir, step):
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(abstract.params),
                    optimizer_state=ocp.args.StandardRestore(abstract.optimizer_state),
                ),
            )
        count = jax.device_put(np.int32(step), abstract.step.sharding)
        return TrainState(count, restored["params"], restored["optimizer_state"])

    def close(self) -> None:
        """Waits until all is saved."""
        self._manager.close()


def _quiet_orbax() -> None:
    """Orbax logs each save in a dozen lines; its errors are raised all the same."""
    python_logging.getLogger("absl").addFilter(_is_not_from_orbax)


def _is_not_from_orbax(record: python_logging.LogRecord) -> bool:
    return record.levelno >= python_logging.ERROR or "orbax" not in record.pathname


def steps_in(workdir: Path) -> list[int]:
    """The steps of all whole checkpoints, ascending."""
    folder = workdir / _FOLDER
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def chosen_steps(
    workdir: Path, checkpoint: str = "latest", *, average_last: int = 5
) -> list[int]:
    """The steps whose parameters to average for a choice of checkpoint.

    Args:
      workdir: folder of the run.
      checkpoint: "latest", "best" (by validation), "average" (of the newest
        `average_last`), or a step.
      average_last: how many "average" means, at most.

    Raises:
      UserError: no such checkpoint, or none at all.
    """
    steps = steps_in(workdir)
    if not steps:
        raise UserError(
            f"no checkpoint in {workdir}: expected the folder of a run; train with "
            f"--workdir={workdir} first"
        )
    if checkpoint == "latest":
        return steps[-1:]
    if checkpoint == "average":
        return steps[-average_last:]
    if checkpoint == "best":
        scored = [(_score(workdir, step), step) for step in steps]
        scores = [(score, step) for score, step in scored if score is not None]
        if not scores:
            raise UserError(
                f"no checkpoint in {workdir} was validated yet: take "
                "--checkpoint=latest"
            )
        return [max(scores)[1]]
    if checkpoint.isdigit() and int(checkpoint) in steps:
        return [int(checkpoint)]
    raise UserError(
        f"no checkpoint {checkpoint!r} in {workdir}, expected latest, best, average or "
        f"one of {', '.join(map(str, steps))}"
    )


def _score(workdir: Path, step: int) -> float | None:
    return load_meta(workdir, step).get(_SCORE)


def load_meta(workdir: Path, step: int) -> dict[str, Any]:
    """What `Checkpoints.save` was told of the run at `step`.

    Raises:
      UserError: the checkpoint is damaged.
    """
    path = workdir / _FOLDER / str(step) / "meta"
    with _naming_damage(workdir, step):
        return dict(ocp.JsonCheckpointHandler().restore(epath.Path(path.absolute())))


@contextlib.contextmanager
def _naming_damage(workdir: Path, step: int) -> Iterator[None]:
    """Turns what Orbax raises, of many kinds, into one line about the checkpoint."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"checkpoint {workdir / _FOLDER / str(step)} is damaged "
            f"({type(error).__name__}): delete that folder and use another step"
        ) from error


def load_params(
    workdir: str | Path, checkpoint: str = "latest", *, average_last: int = 5
) -> Any:
    """The parameter tree of a run as numpy arrays; see `chosen_steps` for the choice.

    Averages are taken in float64 and rounded to float32 once (Section 6.1: the last 5
    checkpoints for base, 20 for big).
    """
    steps = chosen_steps(Path(workdir), checkpoint, average_last=average_last)
    trees = (_load(Path(workdir), step) for step in steps)
    if len(steps) == 1:
        return next(trees)
    total = jax.tree.map(lambda x: x.astype(np.float64), next(trees))
    for tree in trees:
        total = jax.tree.map(np.add, total, tree)
    return jax.tree.map(lambda x: (x / len(steps)).astype(np.float32), total)


def _load(workdir: Path, step: int) -> Any:
    path = (workdir / _FOLDER / str(step) / "params").absolute()
    _quiet_orbax()
    checkpointer = ocp.PyTreeCheckpointer()
    with _naming_damage(workdir, step):
        metadata: Any = checkpointer.metadata(path).item_metadata
        restore_args = jax.tree.map(
            lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata.tree
        )
        return checkpointer.restore(
            path, args=ocp.args.PyTreeRestore(restore_args=restore_args)
        )
