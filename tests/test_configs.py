"""Tests of the files under configs/: all freeze, with the sizes that they promise."""

import ast
from pathlib import Path

import pytest

from transformer_jax.command_line import load_experiment
from transformer_jax.config import ExperimentConfig, TransformerConfig
from transformer_jax.errors import UserError
from transformer_jax.models import num_parameters
from transformer_jax.training.optimizer import peak_learning_rate

CONFIGS = Path(__file__).parent.parent / "configs"
FILES = sorted(path.name for path in CONFIGS.glob("*.py"))
EXPERIMENTS = [*FILES, "multi30k.py:tiny"]


def load(experiment: str) -> ExperimentConfig:
    return load_experiment(str(CONFIGS / experiment), {})


def test_the_promised_files_are_there():
    promised = {"base.py", "big.py", "files.py", "multi30k.py", "quickstart.py"}
    assert promised <= set(FILES)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_freezes_with_schedules_that_fit_its_steps(experiment):
    config = load(experiment)
    last_averaged = config.checkpoint.average_last * config.checkpoint.every_steps
    assert last_averaged <= config.training.steps
    optimizer = config.optimizer
    assert optimizer.warmup_steps + optimizer.cooldown_steps <= config.training.steps
    assert config.validation.every_steps <= config.training.steps


@pytest.mark.parametrize("name", FILES)
def test_docstring_gives_command_hardware_time_and_score(name):
    docstring = ast.get_docstring(ast.parse((CONFIGS / name).read_text()))
    assert docstring is not None
    assert f"Command: python train.py --config=configs/{name}" in docstring
    assert "Hardware and time:" in docstring
    assert "Expected score:" in docstring


@pytest.mark.parametrize("name", FILES)
def test_unknown_row_is_named_in_one_line(name):
    with pytest.raises(UserError, match="no row 'huge'") as error:
        load(f"{name}:huge")
    assert "\n" not in str(error.value)


def test_unknown_row_names_the_rows():
    with pytest.raises(UserError, match="expected tiny"):
        load("multi30k.py:tinny")


def test_base_and_big_are_the_papers_models():
    assert load("base.py") == ExperimentConfig()
    assert load("big.py").model == TransformerConfig.big()


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        # Table 3 with 37,000 rows of embeddings.
        ("base.py", 63_045_632),
        ("big.py", 214_171_648),
        # The sums in the files' comments.
        ("quickstart.py", 3 * (131_968 + 197_760) + 2000 * 128),
        # An encoder layer of d = 256, f = 512 has 4 d^2 + 2 d f + f + d + 4 d =
        # 526,080, a decoder layer 4 d^2 + 2 d more = 788,736.
        ("multi30k.py", 3 * (526_080 + 788_736) + 8000 * 256),
        ("multi30k.py:tiny", 4 * (131_968 + 197_760) + 10_000 * 128),
    ],
)
def test_number_of_parameters(experiment, expected):
    assert num_parameters(load(experiment).model) == expected


def test_quickstart_is_small():
    assert 0.8e6 <= num_parameters(load("quickstart.py").model) <= 1.3e6


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [("multi30k.py", 0.0015), ("multi30k.py:tiny", 0.005), ("files.py", 0.0015)],
)
def test_rate_peaks_where_the_file_says(experiment, expected):
    config = load(experiment)
    peak = peak_learning_rate(config.optimizer, config.model.d_model)
    # files.py writes its factor with three digits.
    assert peak == pytest.approx(expected, rel=1e-3)
