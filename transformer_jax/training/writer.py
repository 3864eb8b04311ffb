"""Metrics on disk: `metrics.jsonl`, one JSON object a line, and TensorBoard events.

The text file is the record, made to be read with `tail -f`, `jq` or pandas; the events
hold the same numbers to draw. Both survive a crash: a run that resumes from a
checkpoint takes back what the lost steps had written, so that no step stands twice.
"""

import contextlib
import json
import math
import operator
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2
from tensorboardX.summary import scalar

from transformer_jax.errors import UserError
from transformer_jax.files import write_whole

_protocol: Any = event_pb2  # whose classes are made when it is imported
_FLUSHED_EVERY_S = 10.0  # of TensorBoard's events; each line of text is at once


class MetricsWriter:
    """Appends metrics to `workdir/metrics.jsonl` and to `workdir/tensorboard`.

    With several processes, only one of them may hold a writer of a `workdir`.

    On opening, the lines of `metrics.jsonl` with a step after `resume_step` are
    removed, since the run will take those steps again; TensorBoard hides its events of
    those steps likewise. A last line that a crash cut short is removed too. A
    `resume_step` of 0 means that nothing was restored and removes every line. The file
    is replaced in one step, so a crash while opening loses nothing.

    Args:
        workdir: folder of the run; made if it does not exist.
        resume_step: the last step whose outcome was restored, 0 for a new run.

    Raises:
        UserError: if a line other than the last is not a JSON object with a step.

    Example:
        >>> import tempfile
        >>> workdir = Path(tempfile.mkdtemp())
        >>> with MetricsWriter(workdir, resume_step=0) as writer:
        ...     writer.write(100, {"train/loss": 5.25, "train/grad_norm": math.inf})
        >>> print((workdir / "metrics.jsonl").read_text(), end="")
        {"step": 100, "train/loss": 5.25, "train/grad_norm": null}
    """

    def __init__(self, workdir: Path, *, resume_step: int) -> None:
        if resume_step < 0:
            raise ValueError(f"Got resume_step={resume_step}, expected 0 or more.")
        workdir.mkdir(parents=True, exist_ok=True)
        path = workdir / "metrics.jsonl"
        if path.exists():
            _drop_lines_after(path, resume_step)
        # Line buffering hands each line to the system as it ends.
        self._path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)
        (workdir / "tensorboard").mkdir(exist_ok=True)
        # tensorboardX's SummaryWriter would write from a thread, where a full disk is
        # an exception that nobody can catch.
        self._events = EventsWriter(
            str(workdir / "tensorboard" / "events"),
            # An event file is named by the second it was opened in and would overwrite
            # one from the same second; TensorBoard reads the files in name order.
            filename_suffix=f".{time.time_ns()}",
        )
        # The first step to hide among the events written before.
        first_hidden = resume_step + 1 if resume_step > 0 else 0
        self._add_event(
            first_hidden,
            session_log=_protocol.SessionLog(status=_protocol.SessionLog.START),
        )
        self._flushed = time.monotonic()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line, `{"step": step, **metrics}`, and the same as events.

        JSON has no NaN and no infinity: they become `null`, which pandas reads back as
        NaN. The events keep them as they are.

        Args:
            step: the training step that the metrics belong to, 0 or more.
            metrics: scalars by name, such as "train/loss" or "valid/bleu". Each is
                converted by `float`, so a JAX or numpy scalar will do.

        Raises:
            ValueError: if a metric is named "step".
        """
        if "step" in metrics:
            raise ValueError('Got a metric named "step", expected another name.')
        step = operator.index(step)
        values = {name: float(value) for name, value in metrics.items()}
        line = {"step": step} | {
            name: value if math.isfinite(value) else None
            for name, value in values.items()
        }
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            for name, value in values.items():
                self._add_event(step, summary=scalar(name, value))
            if time.monotonic() - self._flushed > _FLUSHED_EVERY_S:
                self._events.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            raise UserError(
                f"cannot write metrics to {self._path} ({error.strerror}): stopped; "
                "mend it, then the same command goes on from the last checkpoint"
            ) from error

    def _add_event(self, step: int, **content: Any) -> None:
        event = _protocol.Event(step=step, wall_time=time.time(), **content)
        self._events.write_event(event)

    def close(self) -> None:
        """Writes out what is pending and closes the files; harmless a second time."""
        if not self._file.closed:
            try:
                self._events.close()
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        """Returns the writer itself, to be closed at the end of the block."""
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Closes the files, after an error too."""
        # Of two errors, as of a full disk, the first says what happened.
        with contextlib.suppress(*[OSError] if kind else []):
            self.close()


def _drop_lines_after(path: Path, resume_step: int) -> None:
    """Keeps the lines of `path` up to `resume_step` (none if 0), atomically.

    Args:
        path: an existing `metrics.jsonl`.
        resume_step: the last step to keep.

    Raises:
        UserError: as `MetricsWriter`; the file is then left as it was.
    """
    lines = path.read_bytes().splitlines() if resume_step > 0 else []
    kept = []
    for number, line in enumerate(lines, start=1):
        try:
            step = operator.index(json.loads(line)["step"])
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                continue  # cut short by a crash
            raise UserError(
                f"{path}, line {number}: got {line[:60]!r}, expected a JSON object "
                "with a whole-number step; remove that line and start again."
            ) from error
        if step <= resume_step:
            kept.append(line + b"\n")
    write_whole(path, b"".join(kept))
