"""Tests of the whole run: train, stop, resume, translate."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax.checkpointing import load_checkpoint, load_params, steps_in
from transformer_jax.config import ValidationConfig, freeze
from transformer_jax.errors import UserError
from transformer_jax.training import loop


def _config(**training: Any) -> Any:
    return freeze(
        {
            "model": {
                "vocab_size": 400,
                "num_layers": 1,
                "d_model": 16,
                "d_ff": 24,
                "num_heads": 2,
                "dropout_rate": 0.2,
                "max_length": 96,
            },
            "data": {
                "corpus": "phrases",
                "num_phrases": 120,
                "max_length": 64,
                "row_length": 64,
            },
            "training": {"steps": 12, "batch_tokens": 512, **training},
            "validation": {"every_steps": 100, "bleu_sentences": 2},
            "checkpoint": {"every_steps": 5, "keep_last": 9},
        }
    )


def _assert_identical(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_a_run_stopped_and_resumed_across_epochs_ends_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # 120 phrases fill 10.9 batches: 12 steps cross an epoch boundary.
    loop.train(_config(), tmp_path / "whole")
    whole = load_params(tmp_path / "whole")

    interruptions: list[Any] = []
    real_enter = loop.Interruption.__enter__

    def enter(self: Any) -> Any:
        interruptions.append(self)
        return real_enter(self)

    real_report = loop.Progress.report

    def report(self: Any, step: int) -> None:
        real_report(self, step)
        interruptions[-1].is_requested = step >= 7

    monkeypatch.setattr(loop.Interruption, "__enter__", enter)
    monkeypatch.setattr(loop.Progress, "report", report)
    with pytest.raises(KeyboardInterrupt):
        loop.train(_config(log_every_steps=1), tmp_path / "halves")
    monkeypatch.undo()
    assert steps_in(tmp_path / "halves")[-1] == 8
    loop.train(_config(), tmp_path / "halves")
    _assert_identical(whole, load_params(tmp_path / "halves"))

    loop.train(_config(), tmp_path / "halves")
    said = capsys.readouterr().err
    assert "is trained already: step 12" in said
    assert "Cost of steps 1 to 8: " in said
    assert "Cost of steps 9 to 12: " in said

    with pytest.raises(UserError, match=r"training\.label_smoothing was 0\.1"):
        loop.train(_config(label_smoothing=0.2), tmp_path / "whole")

    average = load_params(tmp_path / "whole", "average", average_last=2)
    parts = [load_params(tmp_path / "whole", step) for step in ("10", "12")]
    jax.tree.map(
        lambda a, x, y: np.testing.assert_allclose(a, (x + y) / 2, atol=1e-6),
        average,
        *parts,
    )

    translator = transformer_jax.Translator.from_workdir(tmp_path / "whole")
    sentences = ["At half past three.", "", "word " * 200, "two"]
    together = translator.translate(sentences)
    assert len(together) == 4
    assert together[1] == ""
    alone = [translator.translate([sentence])[0] for sentence in sentences]
    assert together == alone


@pytest.mark.slow
def test_a_run_that_stops_early_says_so_and_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = iter([3.0, 5.0, 4.0, 5.0, 9.0])
    monkeypatch.setattr(loop.Validator, "__call__", lambda *_: next(scores))
    values = _config(early_stop_validations=2)
    config = dataclasses.replace(values, validation=ValidationConfig(every_steps=2))
    loop.train(config, tmp_path)
    said = capsys.readouterr().err
    assert (
        "Stopped early at step 8: 2 validations without a better one than 5.0" in said
    )
    assert steps_in(tmp_path)[-1] == 8
    assert load_checkpoint(tmp_path, "best")[1] == [
        8
    ]  # the later of two that are as good
    loop.train(config, tmp_path)
    assert "is trained already: step 8" in capsys.readouterr().err
    assert next(scores) == 9.0


def test_a_folder_without_a_run_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the folder of a run"):
        transformer_jax.Translator.from_workdir(tmp_path)
