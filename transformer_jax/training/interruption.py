"""What comes from outside a run: Ctrl-C, SIGTERM, and the clock."""

import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from transformer_jax.processes import Agreement
from transformer_jax.training.progress import say

Result = TypeVar("Result")


class _Abandoned(Exception):  # noqa: N818 (no error: what was asked for)
    """Raised out of work that may be left undone, by the signal to stop."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and did so in good order, in all its processes."""


class Demand(NamedTuple):
    """What a step is followed by, the same in all processes."""

    is_stopping: bool
    is_saving: bool


class Interruption:
    """While open, the first Ctrl-C or SIGTERM only asks to stop; the second ends.

    The second is left to the system: the process ends at once, whatever it is doing,
    and a checkpoint that is being written never counts.
    """

    def __init__(self, *, save_every_minutes: float) -> None:
        """Gets ready.

        Args:
          save_every_minutes: when to ask for a checkpoint; 0 = never.
        """
        self.is_requested = False
        self._save_every_s = 60 * save_every_minutes
        self._agreement = Agreement()
        self._may_abandon = False
        self._previous: dict[int, Any] = {}
        self.restart_clock()

    def __enter__(self) -> "Interruption":
        """Takes over the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._request)
            except ValueError:
                # Not the main thread, as in some notebooks: signals go elsewhere.
                break
        return self

    def __exit__(self, *_: object) -> None:
        """Gives them back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def demand(self) -> Demand:
        """Asked once after each step, by every process."""
        waited = time.monotonic() - self._saved
        is_time = 0 < self._save_every_s <= waited
        return Demand(*self._agreement(self.is_requested, is_time))

    def restart_clock(self) -> None:
        """Counts the minutes to the next checkpoint from now."""
        self._saved = time.monotonic()

    def abandonable(self, work: Callable[[], Result]) -> Result | None:
        """What `work` returns, or None where the signal to stop came before its end.

        A process that is not alone always finishes: others would wait for it.
        """
        self._may_abandon = self._agreement.is_alone
        try:
            if self._may_abandon and self.is_requested:
                return None
            return work()
        except _Abandoned:
            return None
        finally:
            self._may_abandon = False

    def _request(self, number: int, _: object) -> None:
        self.is_requested = True
        for handled in self._previous:
            signal.signal(handled, signal.SIG_DFL)
        name = signal.Signals(number).name
        say(f"{name}: stopping after this step, and saving (again to stop at once).")
        if self._may_abandon:
            raise _Abandoned
