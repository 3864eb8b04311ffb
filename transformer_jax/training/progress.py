"""How a run goes on: the bar or the lines that a person sees, and what stays on disk.

Standard error only; standard output carries results.
"""

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from tqdm import tqdm

from transformer_jax.errors import UserError
from transformer_jax.processes import is_first
from transformer_jax.training.writer import MetricsWriter


class NonFiniteError(UserError):
    """The loss or its gradient became infinite or not a number."""


def say(line: str) -> None:
    """A line on standard error, above the progress bar where there is one.

    Of several processes only the first speaks.
    """
    if is_first():
        tqdm.write(line, file=sys.stderr)


class Progress:
    """The steps of a run: a bar on a terminal, plain lines elsewhere, and the metrics.

    What a step reports is read while the next one runs, so that the device never waits
    and a loss that is not finite is noticed one step late at most.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        first_step: int,
        total_steps: int,
        max_skipped_updates: int = 0,
    ) -> None:
        """Opens the metrics of the run; of several processes only the first writes.

        Args:
          workdir: folder of the run.
          first_step: steps made before, whose metrics stay.
          total_steps: where the run ends.
          max_skipped_updates: how many updates that are not finite may be left out.
        """
        self._total_steps = total_steps
        self._max_skipped_updates = max_skipped_updates
        self._writer = (
            MetricsWriter(workdir, resume_step=first_step) if is_first() else None
        )
        self._running: tuple[int, dict[str, jax.Array]] | None = None
        self._window: list[dict[str, float]] = []
        self._bar = tqdm(
            total=total_steps,
            initial=first_step,
            unit="step",
            disable=not (is_first() and sys.stderr.isatty()),
            dynamic_ncols=True,
        )
        self.restart_clock()

    def __enter__(self) -> Self:
        """The progress itself, to be closed at the end of the block."""
        return self

    def __exit__(self, *error: Any) -> None:
        """Closes bar and files, after an error too."""
        self._bar.close()
        if self._writer is not None:
            self._writer.__exit__(*error)

    def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Takes what a dispatched step will report; waits for the step before it.

        Raises:
          NonFiniteError: a loss or gradient is not finite, once too often.
        """
        self._finish()
        self._running = step, metrics
        self._bar.update()

    def _finish(self) -> None:
        if self._running is None:
            return
        step, on_device = self._running
        self._running = None
        metrics = {name: float(x) for name, x in jax.device_get(on_device).items()}
        self._window.append(metrics)
        name = _non_finite(metrics)
        if name is not None:
            self._count_skipped(name, metrics, step)

    def _count_skipped(self, name: str, metrics: dict[str, float], step: int) -> None:
        number, most = int(metrics["skipped_updates"]), self._max_skipped_updates
        what = f"{name} is {metrics[name]} at step {step}"
        if number > most:
            raise NonFiniteError(
                f"{what}: stopped, with {number} updates skipped and "
                f"training.max_skipped_updates {most}; the last checkpoint is good. "
                "Lower optimizer.factor or raise optimizer.warmup_steps"
            )
        say(f"warning: {what}: update skipped, {number} of at most {most}")

    def report(self, step: int) -> None:
        """Waits for the device; writes and shows the means since the last report.

        Args:
          step: the newest step.

        Raises:
          NonFiniteError: as `add`.
        """
        self._finish()
        seconds = time.perf_counter() - self._start
        window = self._window
        self._window = []
        rate = sum(one["num_tokens"] for one in window) / seconds
        step_time = seconds / len(window)
        finite = [one for one in window if _non_finite(one) is None] or window
        metrics = {
            f"train/{name}": float(np.mean([one[name] for one in finite]))
            for name in ("loss", "negative_log_likelihood", "gradient_norm")
        }
        metrics |= {"train/step_time_s": step_time, "train/target_tokens_per_s": rate}
        if self._max_skipped_updates:
            metrics["train/skipped_updates"] = window[-1]["skipped_updates"]
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
        if self._writer is not None:
            self._writer.write(step, metrics)

    def restart_clock(self) -> None:
        """Leaves what was done since the last report out of the next step time."""
        self._start = time.perf_counter()


def _non_finite(metrics: dict[str, float]) -> str | None:
    """The first of the metrics of a step that is not finite, if one is."""
    names = [n for n in ("loss", "gradient_norm") if not math.isfinite(metrics[n])]
    return names[0] if names else None
