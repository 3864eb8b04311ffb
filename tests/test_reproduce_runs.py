"""Runs of a table: made, scored, found again."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_jax import evaluation
from transformer_jax.__main__ import main
from transformer_jax.command_line import load_experiment
from transformer_jax.config import ExperimentConfig
from transformer_jax.cost import run_flops
from transformer_jax.data import sources
from transformer_jax.errors import UserError
from transformer_jax.evaluation import LossReport, ParserReport
from transformer_jax.models import num_parameters
from transformer_jax.parsing.scores import ParseScores
from transformer_jax.parsing.trees import Tree
from transformer_jax.reproduce import results, runs, scales
from transformer_jax.reproduce.results import ParsingResult, Results, TranslationResult
from transformer_jax.reproduce.runs import run_rows

CONFIGS = Path(__file__).parent.parent / "configs"
SEEDS = 2
Run = Callable[..., Results[Any]]
STEPS = 7


def smoke(row: str) -> ExperimentConfig:
    paper = load_experiment(str(CONFIGS / f"table3.py:{row}"), {})
    return scales.scaled(paper, "smoke", "")


def with_data(config: ExperimentConfig, **changes: Any) -> ExperimentConfig:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))


EXPERIMENTS = {
    row: with_data(smoke(row), num_phrases=5) for row in ("base", "A1", "B1")
}
count_parameters = functools.cache(num_parameters)


def test_flops_of_a_training_are_counted_by_hand():
    # 16 rows of 64 source and 64 target positions; m = 64, f = 256, V = 1000. A weight
    # costs 2 at each position: 4 m^2 + 2 m f of an encoder layer, 8 m^2 + 2 m f of a
    # decoder layer. Attention to 64 positions, thrice a layer: 4 m each.
    layer = 64 * 2 * (12 * 64**2 + 4 * 64 * 256) + 3 * 64 * 64 * 4 * 64
    forward = 16 * (3 * layer + 64 * 2 * 64 * 1000)
    assert run_flops(smoke("base")) == 500 * 3 * forward
    # One layer, three times the steps: of C1's 2 and big's 300,000 in the paper.
    assert run_flops(smoke("C1")) == 1500 * 16 * (layer + 64 * 2 * 64 * 1000)
    assert run_flops(smoke("big")) > 3 * 500 * 3 * forward


class Trainer:
    """In the place of training and translating: which runs were trained and scored."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.scored: list[str] = []
        self.stops_at = ""  # a run during which it is interrupted

    def train(self, config: ExperimentConfig, workdir: Path) -> None:
        self.trained.append(workdir.name)
        if workdir.name == self.stops_at:
            raise KeyboardInterrupt
        workdir.mkdir(parents=True, exist_ok=True)
        times = [{"train/step_time_s": time} for time in (9.0, 0.25, 0.5)]
        records = [*times, {"valid/loss": 1.0}]
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        (workdir / "metrics.jsonl").write_text(lines)

    def from_workdir(self, workdir: Path, checkpoint: str) -> SimpleNamespace:
        assert checkpoint == "average"
        return SimpleNamespace(workdir=workdir, steps=[STEPS])

    def evaluate(
        self, translator: SimpleNamespace, pairs: Sequence[Any], config: Any
    ) -> tuple[SimpleNamespace, LossReport, list[str]]:
        self.scored.append(translator.workdir.name)
        scores = SimpleNamespace(
            sacrebleu=30.0 + config.seed, sacrebleu_signature="s", bleu_paper=20.0
        )
        losses = LossReport(1.5, math.log(4), num_tokens=20, num_words=10)
        return scores, losses, ["ein Satz"] * len(pairs)

    def parse_and_score(
        self, parser: SimpleNamespace, golds: Sequence[Tree], **options: Any
    ) -> tuple[list[SimpleNamespace], ParserReport]:
        self.scored.append(parser.workdir.name)
        scores = ParseScores(
            matched=0,
            gold=0,
            test=0,
            f1=80.5,
            precision=81.5,
            recall=79.5,
            exact_match=20.5,
            tagging_accuracy=100.0,
            average_crossing=0.0,
            num_sentences=3,
            num_errors=0,
            num_skipped=0,
            labels={},
            f1_interval=(79.0, 82.0),
            up_to_40_words=None,
        )
        report = ParserReport(scores, tagging_accuracy=90.5, whole_outputs=95.5)
        return [SimpleNamespace(tree=gold) for gold in golds], report

    def loss_of(self, translator: Any, pairs: Sequence[Any], config: Any) -> LossReport:
        assert pairs == [("dogs bark", "(S (NP (NNS) )NP (VP (VBP) )VP )S")]
        return LossReport(1.5, math.log(3), num_tokens=20)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    trainer = Trainer()
    monkeypatch.setattr(runs, "train", trainer.train)
    monkeypatch.setattr(runs, "Translator", trainer)
    monkeypatch.setattr(results, "evaluate", trainer.evaluate)
    monkeypatch.setattr(evaluation, "TreeParser", lambda translator: translator)
    monkeypatch.setattr(evaluation, "parse_and_score", trainer.parse_and_score)
    monkeypatch.setattr(evaluation, "loss_of", trainer.loss_of)
    monkeypatch.setattr(runs, "num_parameters", count_parameters)
    monkeypatch.setattr(runs, "_rate", lambda kind: 1e9)
    monkeypatch.setattr(sources, "_NUM_EVALUATION_PHRASES", 3)
    return trainer


@pytest.fixture
def run(trainer: Trainer, tmp_path: Path) -> Run:
    """Runs the rows, by default all."""

    def run(**options: Any) -> Results[Any]:
        trainer.trained, trainer.scored = [], []
        defaults = dict(rows=list(EXPERIMENTS), split="validation", num_seeds=SEEDS)
        values: Any = {
            "experiments": EXPERIMENTS,
            "kind": TranslationResult,
            "report": lambda found: None,
            **defaults,
            **options,
        }
        return run_rows(values.pop("experiments"), tmp_path, **values)

    return run


ALL = ["base-0", "A1-0", "B1-0", "base-1", "A1-1", "B1-1"]  # a round for each seed


def test_a_result_is_what_was_measured(run: Run, tmp_path: Path):
    result = run()["B1"][1]
    assert dataclasses.asdict(result) == {
        "seed": 1,
        "split": "validation",
        "steps": STEPS,
        "averaged_checkpoints": 1,
        # m = 64, f = 256, h = 8, d_k = 2, d_v = 8: 18 attentions of 2 m h (d_k + d_v),
        # of 3 encoder and of 3 decoder layers, the latter with two.
        "parameters": 9 * 2 * 64 * 8 * (2 + 8)
        + 6 * (2 * 64 * 256 + 256 + 64)
        + 3 * (2 + 3) * 2 * 64
        + 1000 * 64,
        "perplexity": pytest.approx(4.0),
        "perplexity_per_word": pytest.approx(16.0),
        "sacrebleu": 31.0,
        "sacrebleu_signature": "s",
        "bleu_paper": 20.0,
        "training_s": STEPS * 0.5,  # the median
        "matmul_rate": 1e9,
        "time_flops": pytest.approx(STEPS * 0.5e9),
        "model_flops": run_flops(EXPERIMENTS["B1"]),
        "date": result.date,
        "machine": result.machine,
    }
    assert (tmp_path / "B1-1" / "validation.txt").read_text() == "ein Satz\n" * 3


def test_reports_come_first_and_after_each_run(run: Run):
    counts = []
    run(report=lambda found: counts.append(sum(map(len, found.values()))))
    assert counts == [0, 1, 2, 3, 4, 5, 6]


def test_what_is_finished_is_read(run: Run, trainer: Trainer):
    first = run()
    assert trainer.trained == trainer.scored == ALL
    assert run() == first
    assert trainer.trained == trainer.scored == []


def test_an_interrupted_table_goes_on(run: Run, trainer: Trainer):
    trainer.stops_at = "base-1"
    with pytest.raises(KeyboardInterrupt):
        run()
    assert trainer.scored == ALL[:3]
    trainer.stops_at = ""
    found = run()
    assert trainer.trained == ALL[3:]
    seeds = {row: [result.seed for result in found[row]] for row in found}
    assert seeds == {"base": [0, 1], "A1": [0, 1], "B1": [0, 1]}


def test_rows_left_out_keep_their_results(run: Run, trainer: Trainer):
    first = run(rows=["A1"])
    assert trainer.trained == ["A1-0", "A1-1"]
    assert [len(first[row]) for row in EXPERIMENTS] == [0, 2, 0]
    second = run(rows=["base"], num_seeds=1)
    assert trainer.trained == ["base-0"]
    assert [len(second[row]) for row in EXPERIMENTS] == [1, 1, 0]
    assert second["A1"] == first["A1"][:1]


def test_more_seeds_add_to_those_there(run: Run, trainer: Trainer):
    run(num_seeds=1)
    run(num_seeds=2)
    assert trainer.trained == ALL[3:]


def without(path: Path, *, group: str, name: str) -> None:
    stored = json.loads(path.read_text())
    del stored[group][name]
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("{}"),
        lambda path: path.write_text('{"config": {}, "result": 3}'),
        lambda path: without(path, group="result", name="perplexity"),
        lambda path: without(path, group="config", name="model"),
    ],
    ids="empty cut bytes list object number field config".split(),
)
def test_a_damaged_result_is_scored_again(
    damage: Callable[[Path], object],
    run: Run,
    trainer: Trainer,
    tmp_path: Path,
):
    first = run()
    damage(tmp_path / "A1-0" / "result.json")
    second = run()
    # Training is called, and finds that there is nothing to do.
    assert trainer.trained == trainer.scored == ["A1-0"]
    again = dataclasses.replace(second["A1"][0], date=first["A1"][0].date)
    assert again == first["A1"][0]


def test_results_of_another_config_or_split_are_not_believed(
    run: Run, trainer: Trainer
):
    run()
    A1 = EXPERIMENTS["A1"]  # noqa: N806
    optimizer = dataclasses.replace(A1.optimizer, warmup_steps=21)
    other = {**EXPERIMENTS, "A1": dataclasses.replace(A1, optimizer=optimizer)}
    run(experiments=other)
    assert trainer.trained == ["A1-0", "A1-1"]
    run(experiments=other, split="test")
    assert trainer.scored == ALL


def test_results_stay_where_the_text_moves(run: Run, trainer: Trainer):
    run()
    moved = {
        row: with_data(experiment, dir="there")
        for row, experiment in EXPERIMENTS.items()
    }
    run(experiments=moved)
    assert trainer.trained == []


def test_results_of_before_parsing_are_read(run: Run, trainer: Trainer, tmp_path: Path):
    run(rows=["A1"], num_seeds=1)
    path = tmp_path / "A1-0" / "result.json"
    stored = json.loads(path.read_text())
    for name in ("leaves", "closing", "extra", "extra_ratio"):
        del stored["config"]["data"][name]  # the config did not have them
    fields = (
        "seed split steps averaged_checkpoints parameters perplexity "
        "perplexity_per_word sacrebleu sacrebleu_signature bleu_paper training_s "
        "matmul_rate time_flops model_flops date machine"
    ).split()
    stored["result"] = {name: stored["result"].pop(name) for name in fields}
    path.write_text(json.dumps(stored))
    assert len(run(rows=["A1"], num_seeds=1)["A1"]) == 1
    assert trainer.trained == []


def test_a_parser_is_scored_by_its_trees(run: Run, trainer: Trainer, tmp_path: Path):
    tree = "(TOP (S (NP (NNS dogs)) (VP (VBP bark))))"
    folder = tmp_path / "trees"
    folder.mkdir()
    for name in ("train", "dev"):
        (folder / f"{name}.mrg").write_text(tree)
    sample = load_experiment(str(CONFIGS / "parsing_sample.py"), {})
    config = scales.scaled_parser(sample, "smoke", str(folder))
    options = dict(
        experiments={"wsj": config},
        kind=ParsingResult,
        rows=["wsj"],
        split="test",
        num_seeds=1,
    )
    (result,) = run(**options)["wsj"]
    scores = {
        name: value
        for name, value in dataclasses.asdict(result).items()
        if name not in {field.name for field in dataclasses.fields(results.Result)}
    }
    # S, NP and VP. A flat S has one of them and no other, right branches S and VP.
    baselines = {"flat S": 2 * 1 / (3 + 1) * 100, "right-branching": 2 * 2 / 5 * 100}
    assert scores == {
        "perplexity": pytest.approx(3.0),
        "f1": 80.5,
        "precision": 81.5,
        "recall": 79.5,
        "exact_match": 20.5,
        "tagging_accuracy": 90.5,
        "whole_outputs": 95.5,
        "num_sentences": 3,
        "comparable_with": scores["comparable_with"],
        "baselines": pytest.approx(baselines),
    }
    assert "none of Table 4" in scores["comparable_with"]
    assert (result.steps, result.split) == (STEPS, "test")
    assert (tmp_path / "wsj-0" / "test.mrg").read_text() == f"{tree}\n"

    assert run(**options) == {"wsj": [result]}
    assert trainer.trained == trainer.scored == []


def test_a_folder_of_another_config_is_refused_before_any_run(
    run: Run, trainer: Trainer, tmp_path: Path
):
    (tmp_path / "B1-0").mkdir()
    config = json.dumps(smoke("B2").to_dict())
    (tmp_path / "B1-0" / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"B1-0 was trained .*model\.d_k was 4 and is"):
        run()
    assert trainer.trained == []


def test_a_missing_text_is_told_before_any_run(
    run: Run, trainer: Trainer, tmp_path: Path
):
    paper = load_experiment(str(CONFIGS / "table3.py:B1"), {})
    experiments = {**EXPERIMENTS, "B1": scales.scaled(paper, "small", str(tmp_path))}
    with pytest.raises(UserError, match="no file"):
        run(experiments=experiments)
    assert trainer.trained == []


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smoke at half its width, for three steps and on 200 phrases."""
    scale = dataclasses.replace(
        scales.SCALES["smoke"],
        width_divisor=16,
        vocab_size=400,
        batch_tokens=256,
        steps=3,
        warmup_steps=2,
        data={"corpus": "phrases", "num_phrases": 200},
    )
    monkeypatch.setitem(scales.SCALES, "smoke", scale)
    monkeypatch.setattr(sources, "_NUM_EVALUATION_PHRASES", 5)


@pytest.mark.slow
def test_two_rows_from_text_to_table(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["reproduce", "table3", "--scale=smoke", "--rows=A1,base"]
    main([*command, f"--output={tmp_path}"])
    out, err = capsys.readouterr()
    assert (tmp_path / "table3.md").read_text() == out
    assert "== run 2 of 2: row A1, seed 0" in err
    values = json.loads((tmp_path / "table3.json").read_text())
    rows = {row["row"]: row["runs"] for row in values["rows"]}
    (base,), (one_head,) = rows["base"], rows["A1"]
    assert not any(rows[row] for row in rows if row not in ("base", "A1"))
    # An encoder layer of m = 32, f = 128 has 4 m^2 + 2 m f + f + 5 m = 12,576
    # parameters, a decoder layer 4 m^2 + 2 m = 4160 more.
    expected = 3 * (2 * 12_576 + 4160) + 400 * 32
    assert base["parameters"] == one_head["parameters"] == expected
    for run in (TranslationResult(**base), TranslationResult(**one_head)):
        assert run.steps == 3
        assert run.averaged_checkpoints == 1
        assert 1 < run.perplexity < run.perplexity_per_word
        assert run.time_flops == pytest.approx(run.training_s * run.matmul_rate)
    assert len((tmp_path / "A1-0" / "validation.txt").read_text().splitlines()) == 5

    main([*command, f"--output={tmp_path}"])
    again, err = capsys.readouterr()
    assert again == out
    assert "== run" not in err


@pytest.mark.slow
def test_a_parser_from_trees_to_table(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    smallest = {
        "model": {
            "num_layers": 1,
            "d_model": 32,
            "d_k": 8,
            "d_v": 8,
            "vocab_size": 300,
        },
        "training": {"steps": 3, "batch_tokens": 256},
        "optimizer": {"warmup_steps": 2, "cooldown_steps": 0},
        "validation": {"every_steps": 3, "bleu_sentences": 0, "metric": "loss"},
        "checkpoint": {"every_steps": 1, "keep_last": 2, "average_last": 2},
        "decoding": {"max_extra_length": 7},
    }
    monkeypatch.setattr(scales, "_SMOKE_PARSER", smallest)
    for name, number in (("train", 60), ("dev", 3)):
        trees = (
            f"( (S (NP-SBJ (NNS {word}s)) (VP (VBP b{word}) (NP (-NONE- *))) (. .)) )"
            for word in (f"w{7919 * i % 997}" for i in range(number))
        )
        (tmp_path / f"{name}.mrg").write_text("\n".join(trees))
    output = tmp_path / "out"
    command = ["reproduce", "table4", "--scale=smoke", f"--data_dir={tmp_path}"]
    main([*command, f"--output={output}"])
    out, err = capsys.readouterr()
    assert (output / "table4.md").read_text() == out
    assert "== run 1 of 1: row wsj, seed 0" in err
    values = json.loads((output / "table4.json").read_text())
    rows = {row["row"]: row["runs"] for row in values["rows"]}
    assert rows["semi"] == []
    (run,) = (ParsingResult(**run) for run in rows["wsj"])
    assert (run.steps, run.averaged_checkpoints, run.num_sentences) == (3, 2, 3)
    assert 1 < run.perplexity < 300
    # S, NP and VP. A flat S has one of them and no other, right branches S and VP.
    assert run.baselines == pytest.approx({"flat S": 50.0, "right-branching": 80.0})
    parsed = (output / "wsj-0" / "test.mrg").read_text().splitlines()
    words = [[word.split(")")[0] for word in tree.split(" ")[1:]] for tree in parsed]
    assert len(words) == 3
    for number, sentence in enumerate(words):
        word = f"w{7919 * number % 997}"
        leaves = [token for token in sentence if not token.startswith("(")]
        assert leaves == [f"{word}s", f"b{word}", "."]

    main([*command, f"--output={output}"])
    again, err = capsys.readouterr()
    assert again == out
    assert "== run" not in err
