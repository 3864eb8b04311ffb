"""The command `prepare`: the next run finds what it left; mistakes leave nothing."""

from pathlib import Path

import pytest

from transformer_jax import __main__ as package_main
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.errors import UserError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """Of a small experiment on 300 pairs, two of which cannot be trained on."""
    folder = tmp_path / "data"
    folder.mkdir()
    pairs = [*phrase_pairs("train", num_pairs=298, seed=0), ("a " * 50, "b"), ("", "c")]
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"train.{language}").write_text(text, encoding="utf-8")
    values = {
        "data.dir": folder,
        "data.cache_dir": tmp_path / "cache",
        "data.validation": "train",
        "data.test": "train",
        "data.max_length": 48,
        "data.row_length": 48,
        "model.vocab_size": 400,
        "model.num_layers": 1,
        "model.d_model": 16,
        "model.d_ff": 24,
        "model.num_heads": 2,
        "model.max_length": 48,
        "training.batch_tokens": 384,
        "training.steps": 1,
        "validation.bleu_sentences": 1,
    }
    config = f"--config={ROOT / 'configs/files.py'}"
    return [config, *(f"--config.{key}={value}" for key, value in values.items())]


def test_the_next_run_finds_what_was_prepared(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package_main.main(["prepare", *flags])
    out, err = capsys.readouterr()
    assert "of 298 pairs" in out
    assert "learning a vocabulary of 400 from 300 pairs" in err
    counts = "training pairs: 298 kept, 1 with an empty side, 1 of more than 48 tokens"
    assert counts in err
    files = [path for path in tmp_path.rglob("cache/**/*") if path.is_file()]
    times = {path: path.stat().st_mtime_ns for path in files if path.suffix != ".lock"}
    assert {"ids", "lengths"} < {path.name for path in times}
    package_main.main(["prepare", *flags])
    assert capsys.readouterr().err == counts + "\n"
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--config.data.dir=nowhere"], "no file nowhere/train.en"),
        (["--config.model.vocab_size=90000"], "lower --config.model.vocab_size"),
        (["--config.data.max_length=70000"], "data.max_length is 70000"),
        (["--wrkdir=x"], "no flag --wrkdir"),
    ],
)
def test_a_mistake_leaves_no_vocabulary(
    flags: list[str], tmp_path: Path, changes: list[str], message: str
) -> None:
    with pytest.raises(UserError) as error:
        package_main.main(["prepare", *flags, *changes])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    left = [path.name for path in tmp_path.rglob("cache/**/*") if path.is_file()]
    assert all(name.endswith(".lock") for name in left)


def test_text_without_a_pair_to_train_on_is_refused(
    flags: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no training pairs are left: 0 kept"):
        package_main.main(["prepare", *flags, "--config.data.max_length=2"])
