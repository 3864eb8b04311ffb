"""The commands as a user meets them: what they write, and how they refuse."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
import sacrebleu

import evaluate
import train
from transformer_jax import __main__ as package_main
from transformer_jax import command_line
from transformer_jax.commands import translate
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.translation import Translator

ROOT = Path(__file__).parent.parent
SMALL = [
    f"--config={ROOT / 'configs/files.py'}",
    "--config.data.validation=",
    "--config.data.test=",
    "--config.model.vocab_size=400",
    "--config.model.num_layers=1",
    "--config.model.d_model=16",
    "--config.model.d_ff=24",
    "--config.model.num_heads=2",
    "--config.model.max_length=64",
    "--config.data.max_length=48",
    "--config.data.row_length=48",
    "--config.training.batch_tokens=384",
    "--config.validation.bleu_sentences=3",
    "--config.optimizer.warmup_steps=10",
]
Main = Callable[[Sequence[str]], None]


def write_pair(folder: Path, stem: str, pairs: Sequence[tuple[str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in side)
        (folder / f"{stem}.{language}").write_text(text, encoding="utf-8")


def pairs(number: int) -> list[tuple[str, str]]:
    return phrase_pairs("train", num_pairs=number, seed=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_pair(folder, "train", pairs(200))
    return folder


@pytest.fixture(scope="module")
def workdir(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps with checkpoints at 2, 4 and 6."""
    workdir = tmp_path_factory.mktemp("runs") / "small"
    every = ["--config.training.steps=6", "--config.checkpoint.every_steps=2"]
    train.main([*SMALL, f"--config.data.dir={data}", f"--workdir={workdir}", *every])
    return workdir


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: its exit status, stdout and stderr."""

    def run(main: Main, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["command", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            command_line.run(main)
        out, err = capfd.readouterr()
        assert isinstance(exit_info.value.code, int)
        return exit_info.value.code, out, err

    return run


@pytest.fixture
def refusal(command: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command that must refuse: its one line of error."""

    def run(main: Main, *arguments: str) -> str:
        status, out, err = command(main, *arguments)
        assert status == 2
        assert out == ""
        assert "Traceback" not in err
        *before, last = err.splitlines()
        assert last.startswith("error: ")
        assert not any(line.startswith("error") for line in before)
        return last

    return run


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Training


def test_training_again_says_that_it_is_done(
    data: Path, workdir: Path, command: Callable[..., Any]
) -> None:
    before = files_in(workdir)
    every = ["--config.training.steps=6", "--config.checkpoint.every_steps=2"]
    status, _, err = command(
        train.main, *SMALL, f"--config.data.dir={data}", f"--workdir={workdir}", *every
    )
    assert status == 0
    assert "is trained already: step 6" in err
    assert f"translate --workdir={workdir}" in err
    assert files_in(workdir) == before


def test_metrics_and_samples_are_written(workdir: Path) -> None:
    text = (workdir / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == [2, 4, 6]
    (validation,) = [line for line in lines if "valid/loss" in line]
    assert {"step", "valid/loss", "valid/perplexity", "valid/bleu"} <= set(validation)
    assert (workdir / "samples" / "6.txt").read_text(encoding="utf-8").count("output")


def bad_text(folder: Path, kind: str) -> tuple[list[str], list[str]]:
    """Spoils the data in a way; flags to add and words that the error must have."""
    english, german = folder / "train.en", folder / "train.de"
    if kind == "no folder":
        return [], ["data.dir is not set", "--config.data.dir="]
    if kind == "missing":
        german.unlink()
        return [], ["no file", "train.de", "--config.data.dir"]
    if kind == "empty":
        english.write_bytes(b"")
        return [], ["train.en is empty"]
    if kind == "unequal":
        with german.open("a", encoding="utf-8") as file:
            file.write("eins\nzwei\n")
        return [], ["train.en has 200 lines", "train.de has 202"]
    if kind == "not utf-8":
        content = german.read_bytes().split(b"\n")
        content[4] += "ä".encode("latin-1")
        german.write_bytes(b"\n".join(content))
        return [], ["train.de line 5 is not UTF-8", "0xe4", "iconv"]
    if kind == "binary":
        english.write_bytes(b"a\nb\n\x00\x01\x02\n" + b"c\n" * 197)
        return [], ["train.en line 3 holds a zero byte"]
    if kind == "damaged gzip":
        (folder / "train.en.gz").write_bytes(gzip.compress(b"one\n" * 200)[:-9])
        english.unlink()
        return [], ["cannot read", "train.en.gz"]
    if kind == "vocabulary":
        return ["--config.model.vocab_size=30000"], [
            "vocab_size=30000",
            "expected at most",
        ]
    if kind == "only empty lines on one side":
        german.write_text("\n" * 199 + "eins\n")
        return [], ["distinct pairs are too few"]
    if kind == "all too long":
        flags = ["--config.data.max_length=1", "--config.data.row_length=1"]
        return flags, ["no training pairs are left", "more than 1 tokens"]
    if kind == "a batch of many epochs":
        flags = ["--config.training.batch_tokens=2000000000"]
        return flags, ["training.batch_tokens is 2000000000, more than 100 times"]
    if kind == "no stem":
        return ["--config.data.train=news"], ["no file", "news.en"]
    if kind == "two forms":
        (folder / "train.tsv").write_text("one\teins\n", encoding="utf-8")
        return [], ["train.tsv is there", "train.en", "one of both"]
    if kind == "blank":
        english.write_bytes(b"\n" * 200)
        return [], ["train.en has blank lines only"]
    assert kind == "tsv"
    english.unlink()
    german.unlink()
    (folder / "train.tsv").write_text("one\teins\ntwo zwei\n", encoding="utf-8")
    return [], ["train.tsv line 2 has 1 tab-separated fields, expected 2"]


@pytest.mark.parametrize(
    "kind",
    [
        "no folder",
        "missing",
        "empty",
        "unequal",
        "not utf-8",
        "binary",
        "damaged gzip",
        "vocabulary",
        "only empty lines on one side",
        "all too long",
        "a batch of many epochs",
        "no stem",
        "two forms",
        "blank",
        "tsv",
    ],
)
def test_training_refuses_bad_text_and_leaves_no_run(
    kind: str, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    write_pair(tmp_path / "data", "train", pairs(200))
    flags, words = bad_text(tmp_path / "data", kind)
    if kind != "no folder":
        flags.append(f"--config.data.dir={tmp_path / 'data'}")
    error = refusal(train.main, *SMALL, f"--workdir={tmp_path / 'run'}", *flags)
    for word in words:
        assert word in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--confg=configs/files.py"], ["no flag --confg", "--config?"]),
        (["--config=configs/base.py", "--workdr=x"], ["--workdr", "--workdir?"]),
        ([], ["--config"]),
        (["--config=configs/none.py"], ["no config file configs/none.py"]),
        (["--config.seed"], ["--config.seed has no value"]),
        (["--config=configs"], ["no config file configs"]),
        ([*SMALL, "--config.model.droput_rate=0"], ["droput_rate", "dropout_rate?"]),
        ([*SMALL, "--config.modle.d_ff=1"], ["modle", "model?"]),
        ([*SMALL, "--config.model.d_ff"], ["--config.model.d_ff", "VALUE"]),
        ([*SMALL, "--config.model.d_ff=wide"], ["model.d_ff", "'wide'", "number"]),
        ([*SMALL, "--config.model.num_heads=3"], ["d_model is 16", "num_heads 3"]),
        ([*SMALL, "--config.optimizer.b2=1.5"], ["optimizer.b2 is 1.5"]),
        ([*SMALL, "--config.mesh.data=3"], ["mesh"]),
        ([*SMALL, "--config.training.steps=4294967296"], ["steps is 4294967296"]),
        ([*SMALL, "--workdir=/sys/run"], ["cannot make --workdir /sys/run"]),
    ],
)
def test_training_refuses_bad_flags(
    flags: list[str], words: list[str], data: Path, refusal: Callable[..., str]
) -> None:
    if flags and flags[0] == SMALL[0]:
        flags = [*flags, f"--config.data.dir={data}"]
    error = refusal(train.main, *flags)
    for word in words:
        assert word in error


def test_training_refuses_the_workdir_of_another_config_or_vocabulary(
    data: Path, workdir: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    flags = [*SMALL, f"--config.data.dir={data}", f"--workdir={workdir}"]
    error = refusal(train.main, *flags, "--config.model.d_ff=25")
    assert "model.d_ff was 24 and is 25" in error
    assert "--workdir" in error

    learned = workdir / "vocabulary.model"
    before = learned.read_bytes()
    write_pair(tmp_path / "other", "train", pairs(300)[200:])
    other = tmp_path / "other_run"
    train.main(
        [
            *SMALL,
            f"--config.data.dir={tmp_path / 'other'}",
            f"--workdir={other}",
            "--config.training.steps=1",
        ]
    )
    try:
        learned.write_bytes((other / "vocabulary.model").read_bytes())
        error = refusal(train.main, *flags, "--config.training.steps=7")
        assert "vocabulary" in error
    finally:
        learned.write_bytes(before)


def test_a_run_does_not_go_on_with_another_text(
    data: Path, workdir: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(workdir, run)
    shutil.copytree(data, other)
    with (other / "train.de").open(encoding="utf-8") as file:
        lines = file.read().replace(" ein", " zwei", 1)
    (other / "train.de").write_text(lines, encoding="utf-8")
    flags = [*SMALL, f"--workdir={run}", "--config.training.steps=7"]
    error = refusal(train.main, *flags, f"--config.data.dir={other}")
    assert "the training text is not the one that the checkpoints in" in error
    shutil.copytree(data, tmp_path / "moved")
    train.main([*flags, f"--config.data.dir={tmp_path / 'moved'}"])


def test_a_program_too_large_for_the_memory_is_one_line(
    refusal: Callable[..., str],
) -> None:
    def main(arguments: Sequence[str]) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")

    error = refusal(main)
    assert "out of memory (RESOURCE_EXHAUSTED: Out of memory)" in error
    assert "max_tokens_per_device" in error


def test_a_file_as_workdir_is_refused(
    data: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        error = refusal(
            train.main, *SMALL, f"--config.data.dir={data}", f"--workdir={path}"
        )
        assert str(path) in error
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_workdir_is_refused(
    data: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    tmp_path.chmod(0o555)
    for path in (tmp_path, tmp_path / "below"):
        error = refusal(
            train.main, *SMALL, f"--config.data.dir={data}", f"--workdir={path}"
        )
        assert str(path) in error


# Evaluation


def test_evaluation_prints_and_writes_scores_of_what_it_translated(
    data: Path, workdir: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    output = tmp_path / "scores.json"
    status, out, _ = command(
        evaluate.main,
        f"--workdir={workdir}",
        "--checkpoint=average",
        "--split=train",
        f"--output={output}",
        "--beam_size=2",
    )
    assert status == 0
    metrics = json.loads(output.read_text(encoding="utf-8"))
    assert metrics["averaged_steps"] == [2, 4, 6]
    assert metrics["checkpoint_step"] == 6
    assert metrics["beam_size"] == 2
    assert "sacrebleu" in out
    assert "perplexity" in out
    text = (tmp_path / "scores.train.txt").read_text(encoding="utf-8")
    hypotheses = text.removesuffix("\n").split("\n")
    # The training split is what was not held out, in the order of the files.
    held_out = 2 * int(0.05 * 200)
    assert metrics["num_sentences"] == len(hypotheses) >= 200 - held_out
    english = (data / "train.en").read_text(encoding="utf-8").splitlines()
    german = (data / "train.de").read_text(encoding="utf-8").splitlines()
    from transformer_jax.data.sources import load_corpus
    from transformer_jax.trained_model import load_config

    config = load_config(workdir)
    split = load_corpus(config.data, seed=config.seed).train
    assert set(split) <= set(zip(english, german, strict=True))
    expected = sacrebleu.corpus_bleu(hypotheses, [[target for _, target in split]])
    assert metrics["sacrebleu"] == pytest.approx(expected.score)
    assert "tok:13a" in metrics["sacrebleu_signature"]
    assert sorted(files_in(tmp_path)) == ["scores.json", "scores.train.txt"]


@pytest.mark.parametrize("main", [evaluate.main, translate.translate])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--workdir"]),
        (["--workdr=x"], ["no flag --workdr", "--workdir?"]),
        (["--workdir=WORKDIR", "--checkpoint=5"], ["no checkpoint '5'", "2, 4, 6"]),
        (["--workdir=WORKDIR", "--checkpoint=bset"], ["no checkpoint 'bset'", "best"]),
        (["--workdir=WORKDIR", "--beam_size=0"], ["beam_size is 0"]),
        (["--workdir=WORKDIR", "--beam_size=two"], ["--beam_size", "two"]),
        (["--workdir=WORKDIR", "--beam_size=401"], ["is 401, expected at most", "400"]),
        (["--workdir=WORKDIR", "--output=/none/x"], ["no folder /none"]),
        (["--workdir=EMPTY"], ["EMPTY", "expected the folder of a run"]),
        (["--workdir=EMPTY/none"], ["none", "expected the folder of a run"]),
        (["--workdir=UNTRAINED"], ["no checkpoint in", "UNTRAINED"]),
    ],
)
def test_evaluation_and_translation_refuse_bad_flags(
    main: Main,
    flags: list[str],
    words: list[str],
    workdir: Path,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "UNTRAINED").mkdir()
    for name in ("config.json", "vocabulary.model"):
        (tmp_path / "UNTRAINED" / name).write_bytes((workdir / name).read_bytes())
    places = {"WORKDIR": str(workdir)}
    places |= {name: str(tmp_path / name) for name in ("EMPTY", "UNTRAINED")}
    for name, place in places.items():
        flags = [flag.replace(name, place) for flag in flags]
    error = refusal(main, *flags)
    for word in words:
        assert word in error


def test_evaluation_refuses_an_unknown_split(
    workdir: Path, refusal: Callable[..., str]
) -> None:
    error = refusal(evaluate.main, f"--workdir={workdir}", "--split=tset")
    assert "'tset'" in error
    assert "test" in error


def damage(run: Path, kind: str) -> list[str]:
    """Spoils a run in a way; words that the error must have."""
    if kind == "no vocabulary":
        (run / "vocabulary.model").unlink()
        return ["no vocabulary", "vocabulary.model"]
    if kind == "vocabulary":
        path = run / "vocabulary.model"
        path.write_bytes(path.read_bytes()[:1000])
        return ["vocabulary.model is damaged"]
    if kind == "not json":
        (run / "config.json").write_text("{")
        return ["config.json is not the config of a run"]
    if kind == "unknown key":
        (run / "config.json").write_text('{"model": {"d_modle": 3}}')
        return ["config.json is not the config of a run", "d_model?"]
    assert kind == "no metadata"
    for path in (run / "checkpoints").rglob("_METADATA"):
        path.unlink()
    return ["damaged", "checkpoints/6"]


@pytest.mark.parametrize(
    "kind",
    [
        "no vocabulary",
        "vocabulary",
        "not json",
        "unknown key",
        "no metadata",
    ],
)
def test_a_damaged_run_is_named_by_what_is_damaged(
    kind: str, data: Path, workdir: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    run, source = tmp_path / "run", tmp_path / "in.txt"
    shutil.copytree(workdir, run)
    source.write_text("two\n")
    words = damage(run, kind)
    translation = ["translate", f"--workdir={run}", f"--input={source}"]
    training = [*SMALL, f"--config.data.dir={data}", f"--workdir={run}"]
    for error in (
        refusal(package_main.main, *translation),
        refusal(train.main, *training, "--config.training.steps=7"),
    ):
        for word in words:
            assert word in error


# Translation


def test_only_a_list_of_texts_is_translated(workdir: Path) -> None:
    translator = Translator.from_workdir(workdir)
    assert translator.translate([]) == []
    bad: list[tuple[Any, str]] = [
        ("two", "got one str, expected a list"),
        (["two", None], "type NoneType, expected str"),
        ([b"two"], "type bytes, expected str"),
    ]
    for sentences, message in bad:
        with pytest.raises(TypeError, match=message):
            translator.translate(sentences)


def test_translation_refuses_to_overwrite_its_input_and_a_closed_input(
    workdir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    path = tmp_path / "text"
    path.write_text("two\n")
    flags = ["translate", f"--workdir={workdir}"]
    same = [f"--input={path}", f"--output={path}"]
    assert "is the --input" in refusal(package_main.main, *flags, *same)
    assert path.read_text() == "two\n"
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refusal(package_main.main, *flags)


@pytest.mark.parametrize("flag", ["--rows=0", "--length=-4", "--steps=0"])
def test_the_benchmark_refuses_what_it_cannot_time(
    flag: str, refusal: Callable[..., str]
) -> None:
    error = refusal(package_main.main, "benchmark", SMALL[0], flag)
    assert flag.replace("=", " is ") in error


def test_translation_of_a_file_is_line_for_line(
    workdir: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    lines = ["two", "", "at half past three\u2028on Monday", "\x0c", "🦆 Ǆ", "two"]
    source, target = tmp_path / "in.txt.gz", tmp_path / "out.txt"
    source.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    status, out, _ = command(
        package_main.main,
        "translate",
        f"--workdir={workdir}",
        f"--input={source}",
        f"--output={target}",
        "--checkpoint=best",
    )
    assert (status, out) == (0, "")
    outputs = target.read_bytes().decode().split("\n")
    assert len(outputs) == len(lines) + 1
    assert outputs[1] == outputs[-1] == ""
    assert outputs[0] == outputs[5]
    assert sorted(files_in(tmp_path)) == ["in.txt.gz", "out.txt"]


def test_translation_of_standard_input_warns_of_long_lines(workdir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax", "translate", f"--workdir={workdir}"],
        cwd=ROOT,
        input=f"two\n\n{'half past three ' * 60}\n".encode(),
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.count(b"\n") == 3
    assert b"1 of 3 lines have a sentence longer than" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["cannot read"]),
        (b"", ["is empty"]),
        (b"one\n\xff\n", ["line 2 is not UTF-8"]),
        (b"one\n\0\n", ["line 2 holds a zero byte"]),
    ],
)
def test_translation_refuses_bad_text_and_keeps_the_old_output(
    content: bytes | None,
    words: list[str],
    workdir: Path,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    if content is not None:
        source.write_bytes(content)
    target.write_text("precious")
    error = refusal(
        package_main.main,
        "translate",
        f"--workdir={workdir}",
        f"--input={source}",
        f"--output={target}",
    )
    for word in [*words, "in.txt"]:
        assert word in error
    assert target.read_text() == "precious"


def test_an_unknown_command_names_the_nearest(refusal: Callable[..., str]) -> None:
    assert "translate?" in refusal(package_main.main, "transalte")
    assert "usage" in refusal(package_main.main)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_a_process_starts_anew_once_with_its_arguments_and_the_users_settings() -> None:
    code = (
        "import os, sys; from transformer_jax.command_line import use_huge_pages; "
        "print(os.getpid(), flush=True); use_huge_pages(); "
        "print(os.environ['GLIBC_TUNABLES'], sys.argv[1:])"
    )

    def lines(**environment: str) -> list[str]:
        plain = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
        done = subprocess.run(
            [sys.executable, "-c", code, "a b", "--c=ä"],
            cwd=ROOT,
            env={**plain, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.splitlines()

    before, after, last = lines()
    assert before == after
    assert last == f"{command_line._MALLOC_SETTINGS} ['a b', '--c=ä']"
    assert lines(GLIBC_TUNABLES="glibc.malloc.check=0")[1:] == [
        "glibc.malloc.check=0 ['a b', '--c=ä']"
    ]
