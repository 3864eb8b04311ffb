"""The commands as a user meets them: what they write, and how they refuse."""

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
import sacrebleu
from sentencepiece import SentencePieceProcessor

import evaluate
import train
from transformer_jax import __main__ as package_main
from transformer_jax import command_line
from transformer_jax.commands import lines, translate
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
        (["--config=a.py", "--config=b.py"], ["--config is given 2 times"]),
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    from transformer_jax.data.sources import load_split
    from transformer_jax.trained_model import load_config

    encoded = SentencePieceProcessor(
        model_file=str(workdir / "vocabulary.model")
    ).encode
    config = load_config(workdir)
    split = load_split(config.data, "train")
    assert set(split) <= set(zip(english, german, strict=True))
    expected = sacrebleu.corpus_bleu(hypotheses, [[target for _, target in split]])
    assert metrics["sacrebleu"] == pytest.approx(expected.score)
    assert "tok:13a" in metrics["sacrebleu_signature"]
    low, high = metrics["confidence_intervals"]["sacrebleu"]
    assert low <= metrics["sacrebleu"] <= high
    for name in ("sacrebleu", "bleu_paper", "bleu_tokenized_lowercase", "chrf"):
        assert metrics[f"{name}_signature"] in out
        assert metrics["comparable_with"][name] in out
    # No sentence is left out of the loss: one end of each is a piece and a word.
    pieces = sum(len(ids) + 1 for ids in encoded([target for _, target in split]))
    words = sum(len(target.split()) + 1 for _, target in split)
    assert (metrics["num_word_pieces"], metrics["num_words"]) == (pieces, words)
    assert metrics["perplexity_per_word"] == pytest.approx(
        metrics["perplexity"] ** (pieces / words)
    )
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
def test_a_terminal_without_unicode_gets_a_question_mark(monkeypatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr("sys.argv", ["x"])
    with pytest.raises(SystemExit) as ended:
        command_line.run(lambda _: print("5 █"))
    sys.stdout.flush()
    assert (ended.value.code, shown.getvalue()) == (0, b"5 ?\n")


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


# The formats of translate and score

SENTENCES = ["two", "", "the third of May", "\tat half past three", "two"]
SHORT = ["--beam_size=3", "--max_length=6"]  # limits what an untrained model writes


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    return path


def test_the_formats_of_a_translation_agree(
    workdir: Path, sentences: Path, output_of: Callable[..., list[str]]
) -> None:
    flags = ["translate", f"--workdir={workdir}", f"--input={sentences}", *SHORT]
    texts = output_of(*flags)
    objects = [
        json.loads(line) for line in output_of(*flags, "--format=jsonl", "--n_best=2")
    ]
    rows = [
        line.split("\t") for line in output_of(*flags, "--format=tsv", "--n_best=2")
    ]
    assert [shown["line"] for shown in objects] == [1, 2, 3, 4, 5]
    assert [shown["source"] for shown in objects] == [s.strip() for s in SENTENCES]
    assert [shown["translation"] for shown in objects] == texts
    expected = []
    for shown in objects:
        hypotheses = shown["hypotheses"]
        assert len(hypotheses) == (2 if shown["source"] else 0)
        assert shown["pieces"] == (1 if shown["source"] else 0)
        assert not shown["was_cut"]
        scores = [h["score"] for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for rank, h in enumerate(hypotheses, start=1):
            assert (h["tokens"][-1] == "</s>") == (h["stop"] == "end")
            assert h["log_prob"] <= h["score"] < 0
            assert "token_log_probs" not in h
            numbers = [f"{h[key]:.6f}" for key in ("score", "log_prob")]
            expected.append([str(shown["line"]), str(rank), *numbers, h["text"]])
        if not hypotheses:
            expected.append([str(shown["line"]), "1", "", "", ""])
    assert rows == expected
    assert texts[0] == texts[4] != ""
    assert texts[1] == ""


def test_details_have_a_number_for_each_word_piece(
    workdir: Path, sentences: Path, output_of: Callable[..., list[str]]
) -> None:
    flags = ["translate", f"--workdir={workdir}", f"--input={sentences}", *SHORT]
    flags += ["--format=jsonl", "--token_scores", "--attention", "--n_best=2"]
    for heads in ([], ["--attention_layer=0", "--attention_heads=0, 1"]):
        for line in output_of(*flags, *heads):
            shown = json.loads(line)
            for h in shown["hypotheses"]:
                assert len(h["token_log_probs"]) == len(h["tokens"])
                assert sum(h["token_log_probs"]) == pytest.approx(
                    h["log_prob"], abs=1e-4
                )
                assert len(h["attention"]) == len(h["tokens"])
                for weights in h["attention"]:
                    assert len(weights) == len(shown["source_tokens"])
                    assert sum(weights) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--format=xml"], ["--format is xml", "text, jsonl, tsv"]),
        (["--n_best=2"], ["--n_best=2", "--format=tsv"]),
        (["--token_scores", "--format=tsv"], ["--token_scores needs --format=jsonl"]),
        (["--attention"], ["--attention needs --format=jsonl"]),
        (["--attention_heads=0"], ["need --attention"]),
        (["--attention_layer=0"], ["need --attention"]),
        (["JSONL", "--attention", "--attention_heads=a"], ["is a", "like 0,3"]),
        (["JSONL", "--attention", "--attention_heads=2"], ["head 2"]),
        (["JSONL", "--attention", "--attention_layer=1"], ["layer 1"]),
        (["--sampling=true", "--beam_size=4"], ["--beam_size=4", "sampling"]),
        (["--sampling_topk=3", "--beam_size=4"], ["--beam_size=4", "sampling"]),
        (["--sampling=false", "--sampling_topk=3"], ["sampling_topk"]),
        (["--sampling_topp=1.5"], ["sampling_topp is 1.5"]),
        (["--sampling_temperature=0"], ["sampling_temperature is 0"]),
        (["--sampling=maybe"], ["--sampling is maybe", "true or false"]),
        (["--only_trees=1"], ["--only_trees is 1", "true or false"]),
        (["--only_trees=true"], ["only_trees", "vocabular", "drop it"]),
        (["--n_best=4", "--beam_size=3", "JSONL"], ["n_best is 4", "beam_size 3"]),
        (["--min_length=6", "--max_length=6"], ["min_length is 6", "max_length 6"]),
        (["--prefix=a", "--prefixes=INPUT"], ["--prefix and --prefixes"]),
        (["--prefix=am am am am", "--max_length=3"], ["prefix", "limit"]),
        (["--suppress= "], ["suppressed phrase", "blank"]),
        (["--ensemble=votes"], ["--ensemble is votes"]),
        (["--length_penalty_form=cubic"], ["--length_penalty_form is cubic"]),
        (["--length_penalty=nan"], ["length_penalty is nan"]),
        (["--max_length_factor=nan"], ["max_length_factor is nan"]),
        (["--sampling_temperature=nan"], ["sampling_temperature is nan"]),
        (["JSONL", "--attention", "--attention_heads=²"], ["is ²", "like 0,3"]),
        (["--output="], ["--output"]),
        (["--input="], ["--input"]),
        (["--max_legnth=6"], ["no flag --max_legnth", "--max_length?"]),
        (["more"], ["unrecognized arguments: more"]),
    ],
)
def test_translation_refuses_what_contradicts_itself(
    flags: list[str],
    words: list[str],
    workdir: Path,
    sentences: Path,
    refusal: Callable[..., str],
) -> None:
    flags = [flag.replace("JSONL", "--format=jsonl") for flag in flags]
    flags = [flag.replace("INPUT", str(sentences)) for flag in flags]
    error = refusal(
        package_main.main,
        "translate",
        f"--workdir={workdir}",
        f"--input={sentences}",
        *flags,
    )
    for word in words:
        assert word in error


@pytest.mark.parametrize("window", [2, 2048])
@pytest.mark.slow
def test_each_translation_begins_with_its_prefix(
    window: int,
    workdir: Path,
    sentences: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output_of: Callable[..., list[str]],
    refusal: Callable[..., str],
) -> None:
    monkeypatch.setattr(lines, "_MOST_LINES", window)
    starts = ["zwei", "", "", "am", ""]
    path, output = tmp_path / "prefixes.gz", tmp_path / "out"
    flags = ["translate", f"--workdir={workdir}", f"--input={sentences}"]
    given = [*flags, *SHORT, f"--prefixes={path}"]
    path.write_bytes(gzip.compress("".join(f"{s}\n" for s in starts).encode()))
    texts = output_of(*given)
    free = output_of(*flags, *SHORT)
    for text, alone, start in zip(texts, free, starts, strict=True):
        assert text.startswith(start)
        assert start or text == alone
    path.write_bytes(gzip.compress(b"\n\n\n" + b"zwei " * 9 + b"\n\n"))
    error = refusal(package_main.main, *given, f"--output={output}")
    assert "prefix of" in error
    assert " 4 has " in error  # its line in the file, in any window
    output.write_bytes(b"precious")
    for number, word in ((4, "fewer"), (6, "more")):
        path.write_bytes(gzip.compress(b"a\n" * number))
        error = refusal(package_main.main, *given, f"--output={output}")
        assert f"{path} has {word} lines than {sentences}" in error
        assert output.read_bytes() == b"precious"
    path.write_bytes(gzip.compress(b"a\n" * 5))
    before = path.read_bytes()
    error = refusal(package_main.main, *given, f"--output={path}")
    assert "--output is the --prefixes file" in error
    assert path.read_bytes() == before


def test_scores_agree_in_all_formats_and_with_the_search(
    workdir: Path,
    sentences: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output_of: Callable[..., list[str]],
) -> None:
    search = [f"--workdir={workdir}", "--beam_size=100", "--length_penalty=0.6"]
    starts = tmp_path / "starts"  # after them, an untrained model may end as well
    starts.write_text("zwei\n\nder dritte Mai\nam Montag\n\n", encoding="utf-8")
    found = [
        (shown["source"], h)
        for line in output_of(
            *("translate", *search, f"--input={sentences}", f"--prefixes={starts}"),
            *("--format=jsonl", "--n_best=4", "--token_scores", "--max_length=12"),
        )
        for shown in [json.loads(line)]
        for h in shown["hypotheses"]
        if h["stop"] == "end"
    ]
    assert len({h["text"] for _, h in found}) > 3
    sides = [source for source, _ in found], [h["text"] for _, h in found]
    names = "source", "target"
    paths = dict(zip(names, (tmp_path / name for name in names), strict=True))
    for name, side in zip(names, sides, strict=True):
        paths[name].write_text("".join(f"{text}\n" for text in side), "utf-8")
    score = ["score", *search, *(f"--{name}={path}" for name, path in paths.items())]
    texts = output_of(*score)
    rows = [line.split("\t") for line in output_of(*score, "--format=tsv")]
    objects = [json.loads(line) for line in output_of(*score, "--format=jsonl")]
    num_same = 0
    for i, shown in enumerate(objects):
        h = found[i][1]
        assert shown["line"] == i + 1
        assert (shown["source"], shown["target"]) == (sides[0][i], h["text"].strip())
        assert shown["tokens"][-1] == "</s>"
        assert sum(shown["token_log_probs"]) == pytest.approx(
            shown["log_prob"], abs=1e-4
        )
        assert texts[i] == rows[i][0] == f"{shown['log_prob']:.6f}"
        assert rows[i][1:] == [f"{shown['score']:.6f}", str(len(shown["tokens"]))]
        if shown["tokens"] == h["tokens"]:  # a text has other word pieces as well
            num_same += 1
            for key in ("log_prob", "score", "token_log_probs"):
                assert shown[key] == pytest.approx(h[key], abs=1e-4)
    assert num_same > 3

    piped = tmp_path / "pairs.tsv"
    both = zip(*sides, strict=True)
    piped.write_text("".join(f"{a} \t {b}\n" for a, b in both), encoding="utf-8")
    with piped.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        from_pairs = output_of("score", *search)
    assert from_pairs == texts


def test_score_refuses_pairs_that_are_none(
    workdir: Path,
    sentences: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    score, source = ["score", f"--workdir={workdir}"], f"--source={sentences}"
    target, output = tmp_path / "target", tmp_path / "out"
    for number, word in ((1, "fewer"), (4, "fewer"), (6, "more")):
        target.write_text("a\n" * number)
        error = refusal(
            package_main.main,
            *score,
            source,
            f"--target={target}",
            f"--output={output}",
        )
        assert f"{target} has {word} lines than {sentences}" in error
    assert not output.exists()
    assert "--source alone" in refusal(package_main.main, *score, source)
    assert "--target alone" in refusal(package_main.main, *score, f"--target={target}")
    assert "--format is csv" in refusal(package_main.main, *score, "--format=csv")
    before = sentences.read_bytes()
    target.write_text("a\n" * 5)
    both = [source, f"--target={target}"]
    for name, path in (("source", sentences), ("target", target)):
        error = refusal(package_main.main, *score, *both, f"--output={path}")
        assert f"--output is the --{name} file" in error
    assert sentences.read_bytes() == before
    for line, fields in (("one", 1), ("one\teins\tuno", 3), ("", 1)):
        target.write_text(f"one\teins\n{line}\nx\ty\n")
        with target.open(encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            error = refusal(package_main.main, *score)
        assert f"standard input line 2 has {fields} tab-separated fields" in error


# An exported model


def test_an_exported_model_translates_as_its_run(
    workdir: Path,
    sentences: Path,
    tmp_path: Path,
    command: Callable[..., Any],
    refusal: Callable[..., str],
) -> None:
    export, output = tmp_path / "exported", tmp_path / "out"
    one = ["export-model", f"--workdir={workdir}", f"--output={export}"]
    status, out, err = command(package_main.main, *one, "--checkpoint=average")
    assert (status, out) == (0, "")
    assert str(export) in err
    written = []
    for model in ([f"{workdir}", "--checkpoint=average"], [f"{export}"]):
        status, _, _ = command(
            package_main.main,
            *("translate", f"--workdir={model[0]}", *model[1:], *SHORT),
            *(f"--input={sentences}", f"--output={output}", "--format=jsonl"),
        )
        assert status == 0
        written.append(output.read_bytes())
    assert written[0] == written[1]
    before = {name: (export / name).read_bytes() for name in files_in(export)}
    assert str(export) in refusal(package_main.main, *one)
    assert before == {name: (export / name).read_bytes() for name in files_in(export)}


# Processes that end before their input


def started(workdir: Path, command: str, *flags: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "transformer_jax", command]
    return subprocess.Popen(
        [*program, f"--workdir={workdir}", *flags],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The status and stderr of a process whose standard input stays open."""
    try:
        status = process.wait(timeout=120)
        assert process.stderr is not None
        return status, process.stderr.read().decode()
    finally:
        process.kill()
        for file in (process.stdin, process.stdout, process.stderr):
            assert file is not None
            file.close()


def write_line(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()


def test_who_reads_no_further_ends_a_translation_quietly(workdir: Path) -> None:
    process = started(workdir, "translate")
    write_line(process, b"")
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"  # while the input stays open
    process.stdout.close()
    write_line(process, b"")
    assert ended(process) == (141, "")


def test_an_interrupted_translation_leaves_the_old_file_alone(
    workdir: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    output.write_bytes(b"old")
    process = started(workdir, "translate", f"--output={output}")
    write_line(process, b"")
    partial, end = tmp_path / "out.partial", time.monotonic() + 120
    while not partial.exists() or partial.read_bytes() != b"\n":
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "")
    assert files_in(tmp_path) == ["out"]
    assert output.read_bytes() == b"old"


def test_bad_lines_are_refused_while_more_may_come(workdir: Path) -> None:
    process = started(workdir, "score")
    write_line(process, b"no tab")
    status, error = ended(process)
    assert status == 2
    assert error.startswith("error: standard input line 1 has 1 tab-separated fields")
    assert error.count("\n") == 1
