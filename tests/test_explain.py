"""The explanation of a config: its figures by hand, its text, its command."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transformer_jax import __main__ as package_main
from transformer_jax import explain
from transformer_jax.benchmark import BenchmarkReport
from transformer_jax.command_line import load_experiment
from transformer_jax.config import (
    CheckpointConfig,
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
    TransformerConfig,
    ValidationConfig,
)
from transformer_jax.cost import run_flops
from transformer_jax.errors import UserError

ROOT = Path(__file__).parent.parent
TINY = TransformerConfig(
    vocab_size=11,
    num_layers=3,
    d_model=5,
    d_ff=7,
    num_heads=2,
    d_k=13,
    d_v=17,
    max_length=19,
    positions="learned",
    norm="pre",
    share_embeddings=False,
)


def test_parameters_by_part_are_those_by_hand():
    attention = 2 * 5 * (13 + 13 + 17 + 17)
    feed_forward = 5 * 7 + 7 + 7 * 5 + 5
    assert explain.parameters_by_part(TINY) == {
        "embeddings": 2 * 11 * 5,
        "positions": 2 * 19 * 5,
        "encoder: attention": 3 * attention,
        "encoder: feed-forward": 3 * feed_forward,
        "encoder: norms": (3 * 2 + 1) * 2 * 5,
        "decoder: self-attention": 3 * attention,
        "decoder: attention over the source": 3 * attention,
        "decoder: feed-forward": 3 * feed_forward,
        "decoder: norms": (3 * 3 + 1) * 2 * 5,
        "output": 11 * 5,
    }


def rates(
    steps: int, warmup_steps: int, cooldown_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    return explain.learning_rates(
        ExperimentConfig(
            model=TransformerConfig(d_model=64, num_heads=4),
            training=TrainingConfig(steps=steps),
            optimizer=OptimizerConfig(
                factor=3.0, warmup_steps=warmup_steps, cooldown_steps=cooldown_steps
            ),
        )
    )


def test_learning_rates_are_equation_3_from_the_first_step_to_the_last():
    steps, values = rates(40, warmup_steps=10, cooldown_steps=0)
    np.testing.assert_array_equal(steps, np.arange(1, 41))
    expected = 3 / 8 * np.minimum(steps**-0.5, steps * 10**-1.5)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert rates(40, warmup_steps=10, cooldown_steps=20)[1][-1] < 0.1 * values[-1]


def test_the_peak_of_a_long_run_is_among_its_learning_rates():
    steps, values = rates(1_000_003, warmup_steps=4001, cooldown_steps=0)
    assert steps[0] == 1
    assert steps[-1] == 1_000_003
    assert steps[values.argmax()] == 4001
    np.testing.assert_allclose(values.max(), 3 / 8 / 4001**0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("total", "every", "validated", "last"),
    [(100, 15, 15, 5), (100, 15, 10, 5), (90, 15, 30, 3), (7, 5, 100, 4)],
)
def test_averaged_are_the_newest_of_the_steps_that_the_loop_saves(
    total, every, validated, last
):
    config = ExperimentConfig(
        training=TrainingConfig(steps=total),
        checkpoint=CheckpointConfig(
            every_steps=every, keep_last=last, average_last=last
        ),
        validation=ValidationConfig(every_steps=validated),
    )
    saved = [
        step
        for step in range(1, total + 1)
        if step % every == 0 or step % validated == 0 or step == total
    ]
    assert explain.averaged_steps(config) == saved[-last:]


def test_a_chart_draws_each_column_as_high_as_its_value():
    half, full = [" ", " ", " ", " ", "█", "█", "█", "█"], ["█"] * 8
    lines = explain.chart(np.repeat([4.0, 8.0, 0.0, 0.5], 16))
    columns = ["".join(line[column] for line in lines) for column in (0, 16, 32, 48)]
    assert columns == ["".join(half), "".join(full), " " * 8, " " * 7 + "▄"]
    # A peak is seen however few of many values it has, and few values are made wide.
    spike = np.ones(10_007)
    spike[5000] = 2.0
    assert [line.count("█") for line in explain.chart(spike)] == [1] * 4 + [64] * 4
    assert explain.chart(np.array([1.0, 1.0]))[0] == "█" * 64


def test_the_text_says_what_base_is_and_costs():
    text = " ".join(
        explain.explain(ExperimentConfig(), "base.py", utilisation=0.5).split()
    )
    for expected in (
        "base.py, beside the paper's base EN-DE",
        "in all 63,045,632",
        "Table 3, row base 65 million",
        "peak 0.000699 at step 4,000",  # (512 * 4000)^-0.5
        "25,000 a side, in 104 rows of 256 + 256 positions",
        "3.3e+18 for the paper's base EN-DE, by its method: 12 hours x 8 P100 x 9.5",
        "at 50% of a chip's bfloat16 rate",
        "averaged are the last 5, of steps 94,500, 96,000, 97,500, 99,000, 100,000",
        "Deviations from the paper's base EN-DE none Where",
        "Label smoothing: the paper gives",
    ):
        assert expected in text
    assert "Trees as tokens" not in text  # a parser's
    # A measured model of 1.6 GFLOP a step at 2 s a step.
    report = BenchmarkReport(2.0, 31.0, 1.6e9, 1e9, 1e9, 0.8, 1.0, 1.0)
    measured = "some chip, 3 rows", report
    small = ExperimentConfig(
        model=TINY,
        data=DataConfig(max_length=19, row_length=19),
        training=TrainingConfig(steps=1000),
    )
    text = explain.explain(small, "x", utilisation=0.5, measured=measured)
    text = " ".join(text.split())
    minutes = run_flops(small) / 0.8e9 / 60
    assert "some chip, 3 rows 31 target tokens/s, 0.001 TFLOP/s" in text
    assert f"{minutes:.2g} min in all on one device" in text
    assert "model.norm is pre; the paper: post (Section 3.1)" in text


def test_a_parser_stands_beside_the_papers_parser():
    changes = {"decoding.beam_size": "4"}
    config = load_experiment(f"{ROOT}/configs/parsing.py", changes)
    text = explain.explain(config, "parsing.py", utilisation=0.5)
    text = " ".join(text.split())
    for expected in (
        "parsing.py, beside the paper's parser WSJ",
        "in all 100,335,616",  # 4 (2 x 8,395,776 + 4,196,352) + 16,000 x 1024
        "peak 0.000124 at step 16,000",  # 0.5 (1024 x 16,000)^-0.5
        "for the paper's parser WSJ, of which it gives no hours",
        "Deviations from the paper's parser WSJ decoding.beam_size is 4; the paper: 21 "
        "(Section 6.3) Where",
        "Label smoothing: the paper gives",
        "Trees as tokens: the paper does not say how.",
    ):
        assert expected in text


def test_measuring_takes_few_rows_of_a_batch_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    asked = {}

    def benchmark_training(config: ExperimentConfig, **values: int) -> str:
        asked.update(values)
        return "measured"

    monkeypatch.setattr(explain, "benchmark_training", benchmark_training)
    name, report = explain.measure(ExperimentConfig(), steps=2)
    assert report == "measured"
    assert asked == {"rows": 8, "length": 256, "steps": 2}
    assert name == "cpu, 8 rows of 256 + 256 positions"


@pytest.mark.parametrize(
    ("name", "start"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml")]
)
def test_the_suffix_says_the_format_of_the_plot(
    name: str, start: bytes, tmp_path: Path
):
    explain.plot_learning_rate(ExperimentConfig(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_command_prints_and_plots(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    config, plot = f"{ROOT}/configs/quickstart.py", tmp_path / "rate.png"
    changes = ["--config.model.norm=pre", "--utilisation=0.25"]
    package_main.main(["explain", f"--config={config}", f"--plot={plot}", *changes])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{config}, beside the paper's base EN-DE\n")
    assert "model.norm is pre" in printed
    assert "at 25% of a chip's" in printed
    assert max(map(len, printed.splitlines()[1:])) <= 88
    assert plot.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--plot=rate.pdf"], "--plot is rate.pdf, expected a name in .png or .svg"),
        (["--plot=missing/rate.png"], "no folder missing: make it"),
        (["--utilisation=0"], "--utilisation is 0.0, expected more than 0, at most 1"),
        (["--utilisation=40"], "--utilisation is 40.0, expected more than 0"),
        (["--measured"], "no flag --measured: did you mean --measure?"),
        (["--config.model.droput_rate=0"], "did you mean dropout_rate?"),
    ],
)
def test_a_mistake_is_one_line(flags: list[str], message: str):
    config = f"--config={ROOT}/configs/base.py"
    with pytest.raises(UserError) as error:
        package_main.main(["explain", config, *flags])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_help_does_not_wait_for_jax():
    code = (
        "import sys; from transformer_jax.commands.explain import explain\n"
        "try: explain(['--help'])\n"
        "except SystemExit: sys.exit('jax' in sys.modules or 'matplotlib' in "
        "sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "--measure" in result.stdout
