"""python -m transformer_jax evaluate-files: what it scores, writes and refuses."""

import gzip
import json
from pathlib import Path

import pytest
import sacrebleu

from transformer_jax.__main__ import main
from transformer_jax.commands.evaluate_files import evaluate_files
from transformer_jax.errors import UserError

REFERENCE = [
    "Ein Hund läuft über die Straße.",
    "„Na so was“, sagt der E-Mail-Bote.",
    "Zwei Männer stehen vor einem Haus.",
    "Die Kinder spielen im Schnee und lachen.",
    "Er liest ein Buch.",
]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def reference(tmp_path: Path) -> str:
    return write(tmp_path / "reference.de", REFERENCE)


def refused(*arguments: str) -> str:
    with pytest.raises(UserError) as error:
        evaluate_files(arguments)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_scores_of_one_system_are_printed_and_written(
    reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hypotheses = [line.replace("Ein ", "Der ") for line in REFERENCE]
    path = tmp_path / "system.de.gz"
    path.write_bytes(gzip.compress("\r\n".join([*hypotheses, ""]).encode()))
    output = tmp_path / "metrics.json"
    flags = f"--hypothesis={path}", f"--reference={reference}", f"--output={output}"
    main(["evaluate-files", *flags])
    metrics = json.loads(output.read_text(encoding="utf-8"))
    expected = sacrebleu.corpus_bleu(hypotheses, [REFERENCE]).score
    assert 50 < expected < 99
    assert metrics["sacrebleu"] == pytest.approx(expected)
    assert metrics["num_sentences"] == 5
    assert metrics["hypothesis"] == str(path)
    assert metrics["compared"] == []
    low, high = metrics["confidence_intervals"]["sacrebleu"]
    out = capsys.readouterr().out
    assert f"{expected:.2f}  {low:5.2f} to {high:5.2f}  {path}" in out
    for name in ("sacrebleu", "bleu_paper", "bleu_tokenized_lowercase", "chrf"):
        assert f"  signature: {metrics[f'{name}_signature']}\n" in out
        assert f"  comparable with: {metrics['comparable_with'][name]}\n" in out
    assert "How to read it" not in out


def test_systems_are_compared_with_the_first(
    reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = [" ".join(line.split()[1:]) for line in REFERENCE]
    paths = [
        write(tmp_path / "worse.de", worse),
        write(tmp_path / "again.de", worse),
        write(tmp_path / "right.de", REFERENCE),
    ]
    output = tmp_path / "metrics.json"
    evaluate_files(
        [f"--hypothesis={path}" for path in paths]
        + [f"--reference={reference}", f"--output={output}"]
    )
    metrics = json.loads(output.read_text(encoding="utf-8"))
    again, right = metrics["compared"]
    assert (again["hypothesis"], right["hypothesis"]) == tuple(paths[1:])
    assert again["differences"]["chrf"] == {"difference": 0, "p_value": 1}
    gain = right["differences"]["sacrebleu"]
    assert gain["difference"] == pytest.approx(100 - metrics["sacrebleu"])
    # Of 32 exchanges of 5 sentences, two give as large a difference.
    assert gain["p_value"] == pytest.approx(2 / 32, abs=0.01)
    out = capsys.readouterr().out
    assert f"{gain['difference']:+.2f}" in out
    assert f"{gain['p_value']:.4f}  {paths[2]}" in out
    assert "How to read it" in out
    assert "divide 0.05 by 2" in out


def test_blank_translations_are_translations(
    reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blank = write(tmp_path / "blank.de", [""] * 5)
    evaluate_files([f"--hypothesis={blank}", f"--reference={reference}"])
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if line.endswith(blank)]
    assert len(shown) == 4
    assert all("0.00   0.00 to  0.00" in line for line in shown)


def test_mistakes_are_one_line(reference: str, tmp_path: Path) -> None:
    right = f"--hypothesis={reference}"
    against = f"--reference={reference}"
    short = write(tmp_path / "short.de", REFERENCE[:4])
    (tmp_path / "empty.de").touch()
    (tmp_path / "latin.de").write_bytes("weiß\nüber\n".encode("latin1"))
    blank = write(tmp_path / "blank.de", [""] * 5)
    for arguments, words in (
        ([f"--hypothesis={short}", against], "short.de has 4 lines"),
        ([right, f"--hypothesis={short}", against], "short.de has 4 lines"),
        ([f"--hypothesis={tmp_path}/none", against], "cannot read"),
        ([f"--hypothesis={tmp_path}/empty.de", against], "empty.de is empty"),
        ([f"--hypothesis={tmp_path}/latin.de", against], "line 1 is not UTF-8"),
        ([right, f"--reference={blank}"], "blank lines only"),
        ([right], "--reference"),
        ([against], "--hypothesis"),
        ([right, against, "--target_language=German"], "is German"),
        ([right, against, "--target_language=DE"], "is DE"),
        ([right, against, against], "--reference is given 2 times"),
        ([right, against, "--target-language=de"], "--target_language?"),
        ([right, against, "--output=/none/x"], "no folder /none"),
        ([right, against, f"--output={reference}"], "--output is the --reference"),
        (
            [right, f"--hypothesis={blank}", against, f"--output={blank}"],
            "--output is the --hypothesis",
        ),
    ):
        assert words in refused(*arguments)
    assert Path(reference).read_text(encoding="utf-8").splitlines() == REFERENCE
