"""How a run goes on: the bar or the lines that a person sees, and what stays on disk.

Standard error only; standard output carries results.
"""

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import jax
import numpy as np
from tqdm import tqdm

from transformer_jax.errors import UserError
from transformer_jax.training.writer import MetricsWriter


class NonFiniteError(UserError):
    """The loss or its gradient became infinite or not a number."""


def say(line: str) -> None:
    """A line on standard error, above the progress bar where there is one."""
    tqdm.write(line, file=sys.stderr)


class Progress:
    """The steps of a run: a bar on a terminal, plain lines elsewhere, and the metrics.

    Steps are dispatched without waiting for them, so what they report is kept on the
    device until `report` reads a whole window of steps at once.
    """

    def __init__(self, workdir: Path, *, first_step: int, total_steps: int) -> None:
        """Opens the metrics of the run.

        Args:
          workdir: folder of the run.
          first_step: steps made before, whose metrics stay.
          total_steps: where the run ends.
        """
        self._total_steps = total_steps
        self._writer = MetricsWriter(workdir, resume_step=first_step)
        self._pending: list[dict[str, jax.Array]] = []
        self._bar = tqdm(
            total=total_steps,
            initial=first_step,
            unit="step",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )
        self.restart_clock()

    def __enter__(self) -> Self:
        """The progress itself, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes bar and files, after an error too."""
        self._bar.close()
        self._writer.close()

    def add(self, metrics: dict[str, jax.Array]) -> None:
        """Counts a step that was dispatched, and keeps what it will report."""
        self._pending.append(metrics)
        self._bar.update()

    def report(self, step: int) -> None:
        """Waits for the device; writes and shows the means since the last report.

        Args:
          step: the newest step.

        Raises:
          NonFiniteError: a loss or gradient is infinite or not a number.
        """
        window = jax.device_get(self._pending)
        seconds = time.perf_counter() - self._start
        self._pending.clear()
        _require_finite(window, first_step=step - len(window) + 1)
        rate = float(sum(one["num_tokens"] for one in window)) / seconds
        step_time = seconds / len(window)
        metrics = {
            f"train/{name}": float(np.mean([one[name] for one in window]))
            for name in ("loss", "negative_log_likelihood", "gradient_norm")
        }
        metrics |= {"train/step_time_s": step_time, "train/target_tokens_per_s": rate}
        self.write(step, metrics)
        self.restart_clock()
        loss = metrics["train/loss"]
        if self._bar.disable:
            left = (self._total_steps - step) * step_time
            say(
                f"step {step}/{self._total_steps}  loss {loss:.4f}  "
                f"{rate:.0f} target tokens/s  {left / 60:.1f} min left"
            )
        else:
            self._bar.set_postfix_str(f"loss {loss:.3f}, {rate:.0f} target tokens/s")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Puts metrics on disk; see `MetricsWriter.write`."""
        self._writer.write(step, metrics)

    def restart_clock(self) -> None:
        """Leaves what was done since the last report out of the next step time."""
        self._start = time.perf_counter()


def _require_finite(window: list[dict[str, np.ndarray]], *, first_step: int) -> None:
    for step, metrics in enumerate(window, start=first_step):
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"{name} is {value} at step {step}: stopped; the last checkpoint "
                    "is good. Lower optimizer.factor or raise optimizer.warmup_steps"
                )
