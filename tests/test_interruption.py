"""Signals and the clock, as the training loop asks for them."""

import os
import signal

import pytest

from transformer_jax.training import interruption as interruption_module
from transformer_jax.training.interruption import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_is_the_systems(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interruption(save_every_minutes=0) as interruption:
        assert interruption.demand() == (False, False)
        os.kill(os.getpid(), number)
        assert interruption.demand() == (True, False)
        assert "stopping after this step" in capsys.readouterr().err
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_work_that_may_be_left_undone_is_left_at_the_signal() -> None:
    def interrupted() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # a signal is seen between two operations
            pass
        return "second"

    with Interruption(save_every_minutes=0) as interruption:
        assert interruption.abandonable(lambda: "first") == "first"
        assert interruption.abandonable(interrupted) is None
        assert interruption.abandonable(lambda: "third") is None
        assert interruption.is_requested


def test_a_checkpoint_is_asked_for_so_many_minutes_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(interruption_module.time, "monotonic", lambda: now[0])
    interruption = Interruption(save_every_minutes=10)
    for seconds, is_due in [(599, False), (1, True), (5, True)]:
        now[0] += seconds
        assert interruption.demand() == (False, is_due)
    interruption.restart_clock()
    assert interruption.demand() == (False, False)
    now[0] += 600
    assert interruption.demand() == (False, True)
