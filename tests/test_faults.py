"""The campaign of benchmarks/faults.py in its short form: nothing is ever lost."""

import random
from pathlib import Path

import pytest

from benchmarks import faults

SHORT = ("kills",)
LONG = tuple(name for name in faults.EXPERIMENTS if name not in SHORT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the experiments share an undisturbed run and compiled programs."""
    return tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize(
    "name", [*SHORT, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_nothing_is_lost(name: str, folder: Path) -> None:
    seen = faults.EXPERIMENTS[name](folder, 2, random.Random(0))
    if seen.startswith("not done"):
        pytest.skip(seen)


def test_the_campaign_fails_where_something_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(*_: object) -> str:
        faults.require(False, "step 7 is gone")
        return "unreachable"

    monkeypatch.setitem(faults.EXPERIMENTS, "kills", lose)
    assert faults.main(["--only=kills"]) == 1
    assert "kills: FAILED: step 7 is gone" in capsys.readouterr().out
