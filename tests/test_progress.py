"""What a run says and writes as it goes on."""

import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from transformer_jax.training import progress as progress_module
from transformer_jax.training.progress import NonFiniteError, Progress


def metrics(loss: float, num_tokens: float = 30.0) -> dict[str, jnp.ndarray]:
    values = {
        "loss": loss,
        "negative_log_likelihood": loss - 0.5,
        "gradient_norm": 2 * loss,
        "num_tokens": num_tokens,
    }
    return {name: jnp.float32(value) for name, value in values.items()}


def lines_in(workdir: Path) -> list[dict[str, float]]:
    text = (workdir / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_report_holds_the_means_and_the_rate_of_its_window(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Opened at 10 s; the first two steps took 4 s; validation until 20 s; then 1 s.
    clock = iter([10.0, 14.0, 14.0, 20.0, 21.0, 21.0])
    monkeypatch.setattr(progress_module.time, "perf_counter", lambda: next(clock))
    with Progress(tmp_path, first_step=7, total_steps=100) as progress:
        progress.add(metrics(3.0, num_tokens=30))
        progress.add(metrics(5.0, num_tokens=50))
        progress.report(9)
        progress.restart_clock()
        progress.add(metrics(2.0, num_tokens=11))
        progress.report(10)
    monkeypatch.undo()
    assert lines_in(tmp_path) == [
        {
            "step": 9,
            "train/loss": 4.0,
            "train/negative_log_likelihood": 3.5,
            "train/gradient_norm": 8.0,
            "train/step_time_s": 2.0,
            "train/target_tokens_per_s": 20.0,
        },
        {
            "step": 10,
            "train/loss": 2.0,
            "train/negative_log_likelihood": 1.5,
            "train/gradient_norm": 4.0,
            "train/step_time_s": 1.0,
            "train/target_tokens_per_s": 11.0,
        },
    ]
    first, second = capsys.readouterr().err.splitlines()
    # 91 steps of 2 s are left, then 90 of 1 s.
    assert first == "step 9/100  loss 4.0000  20 target tokens/s  3.0 min left"
    assert second == "step 10/100  loss 2.0000  11 target tokens/s  1.5 min left"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_its_step(
    value: float, tmp_path: Path
) -> None:
    with Progress(tmp_path, first_step=0, total_steps=9) as progress:
        progress.add(metrics(1.0))
        progress.add(metrics(value) | {"gradient_norm": jnp.float32(1.0)})
        progress.add(metrics(1.0))
        with pytest.raises(NonFiniteError, match=f"loss is {value} at step 2: stopped"):
            progress.report(3)
    assert lines_in(tmp_path) == []
