"""The command reproduce, and what it runs: the paper's tables, scales, orderings."""

import dataclasses
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import printed
import pytest
import scipy.stats

import transformer_jax
from transformer_jax import command_line
from transformer_jax.__main__ import main
from transformer_jax.commands import reproduce as command
from transformer_jax.config import ExperimentConfig, freeze
from transformer_jax.errors import UserError
from transformer_jax.reproduce import runs
from transformer_jax.reproduce.ordering import compare, ranking
from transformer_jax.reproduce.results import ParsingResult
from transformer_jax.reproduce.scales import require_text, scaled, scaled_parser
from transformer_jax.tables import TABLE_2, TABLE_3, TABLE_4, TRANSLATORS

CONFIGS = Path(__file__).parent.parent / "configs"
EXPERIMENTS = [
    *(f"table3.py:{row}" for row in printed.table_3()),
    *(config for config, _, _ in TRANSLATORS.values()),
]


def load(experiment: str) -> ExperimentConfig:
    return command_line.load_experiment(str(CONFIGS / experiment), {})


# Tables


def test_table_2_is_as_printed():
    assert [dataclasses.astuple(system) for system in TABLE_2] == printed.table_2()


def test_table_3_is_as_printed():
    ours = {
        row.row: (row.perplexity, row.bleu, row.parameters, row.group)
        for row in TABLE_3
    }
    assert ours == {
        row: (
            cells["perplexity"],
            cells["bleu"],
            cells.get("parameters"),
            row.strip("1234567") if row != "base" else "",
        )
        for row, cells in printed.table_3().items()
    }


def test_what_a_row_changes_is_as_printed():
    names = {"N": "N", "h": "h", "label smoothing": "smoothing"}
    table = printed.table_3()
    for row in TABLE_3:
        if row.row == "E":
            continue  # "positional embedding instead of sinusoids"
        parts = [part.rsplit(maxsplit=1) for part in row.change.split(", ")]
        said = {names.get(name, name): float(value) for name, value in parts}
        assert said.items() <= table[row.row].items()
        changed = {
            name
            for name in ("N", "d_model", "d_ff", "h", "d_k", "d_v")
            if table[row.row][name] != table["base"][name]
        }
        assert changed <= said.keys()


def test_table_4_is_as_printed():
    assert [dataclasses.astuple(parser) for parser in TABLE_4] == printed.table_4()


# Scales


@pytest.mark.parametrize(
    ("scale", "divisor", "steps", "warmup_steps", "vocab_size", "peak_rate"),
    [
        ("smoke", 8, 500, 20, 1000, 0.004),
        ("small", 2, 7000, 1000, 8000, 0.0015),
    ],
)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_scale_keeps_what_distinguishes_a_row(
    experiment: str,
    scale: str,
    divisor: int,
    steps: int,
    warmup_steps: int,
    vocab_size: int,
    peak_rate: float,
):
    paper = load(experiment)
    small = scaled(paper, scale, "folder")
    assert freeze(small.to_dict()) == small

    model = small.model
    for name in ("d_model", "d_ff", "d_k", "d_v"):
        assert getattr(model, name) * divisor == getattr(paper.model, name)
    assert model.num_layers * 2 == paper.model.num_layers
    french = 32 / 37 if paper.data.target_language == "fr" else 1
    assert model.vocab_size == round(vocab_size * french)
    kept = "num_heads dropout_rate positions norm share_embeddings".split()
    for name in kept:
        assert getattr(model, name) == getattr(paper.model, name)

    # The paper's 300,000 steps of big are three times those of base.
    assert small.training.steps * 100_000 == steps * paper.training.steps
    assert small.training.label_smoothing == paper.training.label_smoothing
    assert small.optimizer.warmup_steps == warmup_steps
    rate = small.optimizer.factor / math.sqrt(model.d_model * warmup_steps)
    wider = paper.model.d_model / 512
    assert rate == pytest.approx(peak_rate / math.sqrt(wider))
    assert (small.optimizer.b1, small.optimizer.b2) == (0.9, 0.98)

    assert small.decoding == paper.decoding
    assert small.data.target_language == paper.data.target_language
    assert small.data.dir == "folder"
    average = small.checkpoint.average_last
    assert average == paper.checkpoint.average_last
    if average > 1:  # of 7.5% of the training, base, and 4%, big
        span = average * small.checkpoint.every_steps / small.training.steps
        assert span == pytest.approx(0.04 if "big" in experiment else 0.075, abs=0.006)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_papers_scale_changes_the_folder_only(experiment: str):
    paper = load(experiment)
    data = dataclasses.replace(paper.data, dir="folder")
    assert scaled(paper, "paper", "folder") == dataclasses.replace(paper, data=data)


@pytest.mark.parametrize(
    ("experiment", "scale"),
    [
        ("parsing.py", "paper"),
        ("parsing.py:semi", "paper"),
        ("parsing_sample.py", "small"),
    ],
)
def test_parsers_are_run_as_their_configs_are(experiment: str, scale: str):
    config = load(experiment)
    data = dataclasses.replace(config.data, dir="folder")
    expected = dataclasses.replace(config, data=data)
    assert scaled_parser(config, scale, "folder") == expected


def test_the_smallest_parser_is_a_small_sample():
    sample = load("parsing_sample.py")
    smoke = scaled_parser(sample, "smoke", "folder")
    assert freeze(smoke.to_dict()) == smoke
    assert smoke.data == dataclasses.replace(sample.data, dir="folder")
    assert smoke.decoding == sample.decoding
    assert smoke.model.d_model == smoke.model.num_heads * smoke.model.d_k
    assert smoke.model.d_model < sample.model.d_model
    assert smoke.training.steps < sample.training.steps
    optimizer = smoke.optimizer
    assert optimizer.warmup_steps + optimizer.cooldown_steps < smoke.training.steps
    rate = optimizer.factor / math.sqrt(smoke.model.d_model * optimizer.warmup_steps)
    assert rate == pytest.approx(0.004)  # as the smallest translators


def test_multi30k_is_required_with_each_language(tmp_path: Path):
    for stem in ("train", "val", "test_2016_flickr"):
        (tmp_path / f"{stem}.en").touch()
        (tmp_path / f"{stem}.de.gz").touch()
    require_text("small", str(tmp_path), ["de"])
    with pytest.raises(UserError, match=r"has no train\.fr: .* as \.en and \.de and"):
        require_text("small", str(tmp_path), ["de", "fr"])
    (tmp_path / "val.de.gz").unlink()
    with pytest.raises(UserError, match=r"has no val\.de: --scale=small needs"):
        require_text("small", str(tmp_path), ["de"])


# Orderings


def test_tau_is_kendalls_where_nothing_is_equal():
    rng = random.Random(0)
    for num_rows in (2, 3, 7, 11):
        rows = [f"row{i}" for i in range(num_rows)]
        theirs = dict(zip(rows, rng.sample(range(100), num_rows), strict=True))
        ours = dict(zip(rows, rng.sample(range(100), num_rows), strict=True))
        figures = list(theirs.values()), list(ours.values())
        expected, _ = scipy.stats.kendalltau(*figures)
        for lower_is_better in (True, False):
            ordering = compare(
                theirs,
                {row: [figure] for row, figure in ours.items()},
                lower_is_better=lower_is_better,
            )
            assert ordering.tau == pytest.approx(expected)
            assert ordering.num_pairs == num_rows * (num_rows - 1) // 2


def test_pairs_are_sorted_by_hand():
    # Higher is better. The paper: a > b = c > d > e; here means 7, 8, 6, 6, not run.
    ordering = compare(
        {"a": 9, "b": 8, "c": 8, "d": 7, "e": 6},
        {"a": [6, 8], "b": [8, 8], "c": [5, 7], "d": [6, 6]},
        lower_is_better=False,
    )
    assert ordering.same == [("a", "c"), ("a", "d"), ("b", "d")]
    assert ordering.reversed == [("a", "b")]
    assert ordering.equal == [("c", "d")]
    assert ordering.num_pairs == 5
    assert ordering.tau == pytest.approx((3 - 1) / 5)
    # a and c spread over 2, b and d over 0.
    assert ordering.within_spread == [("a", "b"), ("a", "c"), ("a", "d"), ("c", "d")]
    clear = ordering.clear()
    assert clear is not None
    assert (clear.same, clear.reversed, clear.equal) == ([("b", "d")], [], [])


def test_one_seed_of_a_row_tells_no_spread():
    ours = {"a": [1.0, 2.0], "b": [3.0]}
    ordering = compare({"a": 1, "b": 2}, ours, lower_is_better=True)
    assert ordering.same == [("a", "b")]
    assert ordering.within_spread is None
    assert ordering.clear() is None


def test_nothing_to_compare_has_no_tau():
    for printed_figures, ours in [
        ({"a": 1, "b": 1}, {"a": [1.0], "b": [2.0]}),
        ({"a": 1, "b": 2}, {"a": [1.0], "b": []}),
        ({"a": 1, "b": 2}, {}),
    ]:
        ordering = compare(printed_figures, ours, lower_is_better=True)
        assert ordering.num_pairs == 0
        assert ordering.tau is None


def test_ranking_shows_the_best_first():
    figures = {"base": 4.92, "A1": 5.29, "E": 4.92, "big": 4.33}
    assert ranking(figures, lower_is_better=True) == "big < base = E < A1"
    assert ranking(figures, lower_is_better=False) == "A1 > base = E > big"


# The command


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs the command, which must refuse: its one line of error."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["transformer_jax", "reproduce", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            command_line.run(main)
        out, err = capfd.readouterr()
        assert exit_info.value.code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["table"]),
        (["table33"], ["no table table33", "table3?"]),
        (["table5x", "--scale=smoke"], ["no table table5x"]),
        (["table3", "--scale=tiny"], ["--scale is tiny", "paper, smoke, small"]),
        (["table3", "--seeds=0"], ["--seeds is 0", "at least 1"]),
        (["table3", "--seeds=2000000000"], ["at most 100"]),
        (["table3", "--seeds=two"], ["--seeds", "'two'"]),
        (["table3", "--rows="], ["--rows is empty"]),
        (["table3", "--rows=A9"], ["table3 at --scale=paper has no row A9", "A1"]),
        (["table3", "--rows=base,"], ["no row (empty)"]),
        (["table2", "--rows=base"], ["table2", "no row base", "base-en-de"]),
        (["table2", "--scale=smoke", "--rows=big-en-fr"], ["no row big-en-fr"]),
        (["table3", "--scale=smoke", "--data_dir=x"], ["--data_dir is x", "generates"]),
        (["table3", "--scale=small"], ["no --data_dir", "Multi30k"]),
        (["table3", "--scale=small", "--data_dir=x"], ["--data_dir x has no train.en"]),
        (["table2", "--data_dir=x"], ["no wmt14_translate of en-de", "prepare-tfds"]),
        (["table1", "--rows=base"], ["--rows is base", "table1 trains nothing"]),
        (["table4"], ["no --data_dir", "--scale=paper", "WSJ", "02 to 23"]),
        (["table4", "--data_dir=x"], ["--data_dir x has no 02"]),
        (["table4", "--scale=small"], ["no --data_dir", "train and dev", "NLTK"]),
        (["table4", "--scale=smoke", "--data_dir=x"], ["--data_dir x has no train"]),
        (["table4", "--scale=small", "--rows=semi"], ["no row semi", "wsj"]),
        (["table3", "--sale=smoke"], ["no flag --sale", "--scale?"]),
    ],
)
def test_bad_flags_are_one_line_and_leave_nothing(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
):
    monkeypatch.chdir(tmp_path)
    error = refusal(*arguments)
    for word in words:
        assert word in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("table", ["table1", "table4"])
def test_a_file_as_output_is_refused(
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
):
    monkeypatch.setattr(transformer_jax, "complexity", None, raising=False)
    (tmp_path / "file").write_text("mine")
    error = refusal(table, f"--output={tmp_path / 'file'}")
    assert f"--output {tmp_path / 'file'} is a file, expected a folder" in error
    assert (tmp_path / "file").read_text() == "mine"


def test_without_the_repository_the_configs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_CONFIGS", tmp_path / "configs")
    error = refusal("table3", "--scale=smoke")
    assert f"no folder {tmp_path / 'configs'}" in error
    assert "clone" in error


def test_table_1_is_handed_folder_and_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls = []

    class Complexity:
        @staticmethod
        def reproduce(folder: Path, scale: str) -> None:
            assert folder.is_dir()
            calls.append((folder, scale))

    monkeypatch.setattr(transformer_jax, "complexity", Complexity, raising=False)
    main(["reproduce", "table1", "--scale=smoke", f"--output={tmp_path / 'a' / 'b'}"])
    assert calls == [(tmp_path / "a" / "b", "smoke")]


def test_the_treebank_is_required_before_any_run(
    tmp_path: Path, refusal: Callable[..., str]
):
    folder, output = tmp_path / "wsj", tmp_path / "out"
    flags = f"--data_dir={folder}", f"--output={output}"
    for section in range(2, 23):
        (folder / f"{section:02}").mkdir(parents=True)
    assert f"--data_dir {folder} has no 23: " in refusal("table4", *flags)
    (folder / "23").mkdir()
    assert f"--data_dir {folder} has no parsed: " in refusal("table4", *flags)
    # Row by row what it needs; that there are no trees is then told by the sections.
    assert "no .mrg file in" in refusal("table4", "--rows=wsj", *flags)
    (folder / "parsed.mrg.gz").touch()
    assert "no .mrg file in" in refusal("table4", *flags)
    assert not output.exists()


def test_table_4_is_the_sample_where_the_wsj_is_not_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    calls = []

    def run_rows(experiments: Any, output: Path, **options: Any) -> None:
        calls.append((experiments, output, options))
        options["report"]({"wsj": []})

    monkeypatch.setattr(runs, "run_rows", run_rows)
    for name in ("train.mrg", "dev.mrg.gz"):
        (tmp_path / name).touch()
    output = tmp_path / "out"
    flags = [f"--data_dir={tmp_path}", f"--output={output}", "--seeds=2"]
    main(["reproduce", "table4", "--scale=small", *flags])
    ((experiments, folder, options),) = calls
    sample = load("parsing_sample.py")
    data = dataclasses.replace(sample.data, dir=str(tmp_path))
    assert experiments == {"wsj": dataclasses.replace(sample, data=data)}
    assert folder == output
    assert (options["rows"], options["split"], options["num_seeds"]) == (
        ["wsj"],
        "test",
        2,
    )
    assert options["kind"] is ParsingResult
    out, err = capsys.readouterr()
    assert (output / "table4.md").read_text() == out
    assert str(output) in err
    values = json.loads((output / "table4.json").read_text())
    assert (values["table"], values["scale"]) == ("table4", "small")
    assert [tuple(row["paper"].values()) for row in values["rows"]] == printed.table_4()
    # By hand, see tests/test_configs.py.
    assert values["parameters_of_paper"] == {"wsj": 100_335_616, "semi": 116_719_616}
