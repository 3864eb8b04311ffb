"""What a run says and writes as it goes on."""

import json
import math
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
        "skipped_updates": 0,
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
        progress.add(8, metrics(3.0, num_tokens=30))
        progress.add(9, metrics(5.0, num_tokens=50))
        progress.report(9)
        progress.restart_clock()
        progress.add(10, metrics(2.0, num_tokens=11))
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
    bad = metrics(value) | {"gradient_norm": jnp.float32(1.0)}
    with Progress(tmp_path, first_step=0, total_steps=9) as progress:
        progress.add(1, metrics(1.0))
        progress.add(2, bad | {"skipped_updates": jnp.int32(1)})
        with pytest.raises(NonFiniteError, match=f"loss is {value} at step 2: stopped"):
            progress.add(3, metrics(1.0))
    assert lines_in(tmp_path) == []


def test_updates_that_are_not_finite_are_counted_up_to_the_allowed_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = metrics(1.0) | {"gradient_norm": jnp.float32(math.inf)}
    with Progress(
        tmp_path, first_step=0, total_steps=9, max_skipped_updates=2
    ) as progress:
        progress.add(1, metrics(3.0))
        progress.add(2, bad | {"skipped_updates": jnp.int32(1)})
        progress.add(3, metrics(5.0) | {"skipped_updates": jnp.int32(1)})
        progress.report(3)
        said = capsys.readouterr().err
        assert "gradient_norm is inf at step 2: update skipped, 1 of at most 2" in said
        progress.add(4, bad | {"skipped_updates": jnp.int32(2)})
        progress.add(5, bad | {"skipped_updates": jnp.int32(3)})
        with pytest.raises(NonFiniteError, match=r"at step 5: stopped, with 3 updates"):
            progress.report(5)
    (line,) = lines_in(tmp_path)
    # The mean of the steps that counted.
    assert (line["train/loss"], line["train/skipped_updates"]) == (4.0, 1)
