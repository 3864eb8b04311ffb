"""Preparing WMT archives: the real command, on small archives in the real layout."""

import dataclasses
import http.server
import os
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path

import pytest
from file_server import serving
from made_corpus import build
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.core.units import Size
from tensorflow_datasets.translate import wmt

from transformer_jax.commands.prepare_tfds import prepare_tfds
from transformer_jax.config import DataConfig
from transformer_jax.data import tfds_preparation
from transformer_jax.data.tfds_corpus import TfdsPairs
from transformer_jax.data.tfds_preparation import prepare
from transformer_jax.errors import UserError

ROOT = Path(__file__).parent.parent
Pair = tuple[str, str]  # English, German


def pairs_of(name: str, number: int) -> list[Pair]:
    return [(f"{name} {i} – “x”", f"{name} {i} äöü 🙂") for i in range(number)]


# What wmt14_translate/de-en is made of, by file name before the language.
PARTS = {
    "training/europarl-v7.de-en": pairs_of("europarl", 1103),
    "commoncrawl.de-en": pairs_of("crawl", 211),
    "training/news-commentary-v9.de-en": pairs_of("news", 101),
    "dev/newstest2013": pairs_of("valid", 13),
}
TEST = [("One & two.", "Eins & zwei."), ("Three", "Drei “x” 🙂")]
TRAIN = [pair for name in list(PARTS)[:3] for pair in PARTS[name]]
# By URL. tensorflow-datasets asks www.statmt.org for one after the other.
ARCHIVES = {
    f"{host}.statmt.org/{path}.tgz": stem
    for stem, host, path in zip(
        PARTS,
        ("www", "www", "www", "data"),
        (
            "wmt13/training-parallel-europarl-v7",
            "wmt13/training-parallel-commoncrawl",
            "wmt14/training-parallel-nc-v9",
            "wmt19/translation-task/dev",
        ),
        strict=True,
    )
}


def write_archives(folder: Path) -> None:
    for url, stem in ARCHIVES.items():
        files = {
            f"{stem}.{language}": "".join(f"{pair[side]}\n" for pair in PARTS[stem])
            for side, language in enumerate(("en", "de"))
        }
        if url.endswith("dev.tgz"):
            for side, name in enumerate(("ref.en", "src.de")):
                texts = enumerate((pair[side] for pair in TEST), 1)
                segments = "".join(f'<seg id="{i}">{t}</seg>\n' for i, t in texts)
                content = f"<refset>\n<doc>\n<p>\n{segments}</p>\n</doc>\n</refset>\n"
                files[f"dev/newstest2014-deen-{name}.sgm"] = content
        (folder / url).parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / url, "w:gz") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                tar.addfile(info, BytesIO(text.encode()))


# The command, with another host in the place of each of the corpora's.
COMMAND = """
import sys, urllib.parse
from tensorflow_datasets.translate import wmt

address = sys.argv.pop(1)
for corpus in wmt.DATASET_MAP.values():
    parts = [urllib.parse.urlsplit(url) for url in corpus._urls]
    corpus._urls = tuple(f"{address}/{part.netloc}{part.path}" for part in parts)

from transformer_jax.__main__ import main
from transformer_jax.command_line import run
run(main)
"""


def run_command(address: str, data_dir: Path) -> tuple[int, str, str]:
    """Status, standard output and standard error of preparing EN-DE."""
    flags = ["--source_language=en", "--target_language=de", f"--data_dir={data_dir}"]
    finished = subprocess.run(
        [sys.executable, "-c", COMMAND, address, "prepare-tfds", *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    return finished.returncode, finished.stdout, finished.stderr


def error_of(config: DataConfig) -> str:
    with pytest.raises(UserError) as caught:
        prepare(config)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.slow
def test_archives_become_a_dataset_and_stay_for_the_next_time(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    served, data_dir = tmp_path / "served", tmp_path / "datasets"
    folder = data_dir / "wmt14_translate" / "de-en" / "1.0.0"
    write_archives(served)
    news = served / "www.statmt.org" / "wmt14" / "training-parallel-nc-v9.tgz"
    news.rename(tmp_path / "away.tgz")
    with serving(served) as (address, requests):
        status, output, error = run_command(address, data_dir)
        assert (status, output) == (2, "")
        said = error.splitlines()[-1]
        assert said.startswith("error: cannot prepare wmt14_translate/de-en/1.0.0: ")
        assert "training-parallel-nc-v9.tgz. HTTP code: 404" in said
        assert "run the command again to go on" in said
        assert not folder.exists()

        (tmp_path / "away.tgz").rename(news)
        status, output, error = run_command(address, data_dir)
        assert status == 0, error
        assert output.splitlines() == [
            str(folder),
            "train       1,415 pairs",
            "validation  13 pairs",
            "test        2 pairs",
        ]
        assert "2 of 4 archives to download" in error
        gets = [request for request in requests if request.startswith("GET")]
        assert len(gets) == len(ARCHIVES) + 1  # the one that was not there, twice

    config = DataConfig(dir=str(data_dir))
    expected = {"train": TRAIN, "validation": PARTS["dev/newstest2013"], "test": TEST}
    for split, pairs in expected.items():
        assert sorted(TfdsPairs.open(config, split)) == sorted(pairs)
        reverse = dataclasses.replace(
            config, source_language="de", target_language="en"
        )
        backward = sorted(TfdsPairs.open(reverse, split))
        assert backward == sorted((german, english) for english, german in pairs)

    # What is not there is made of the archives that are, now that nobody serves them.
    before = list(TfdsPairs.open(config, "train"))
    folder.rename(folder.with_name("incomplete.ABCDEF_1.0.0"))
    status, _, error = run_command("http://corpus.invalid", data_dir)
    assert status == 2
    assert "cannot download from corpus.invalid" in error
    status, _, error = run_command(address, data_dir)
    assert status == 0, error
    assert "0 of 4 archives to download" in error
    assert list(TfdsPairs.open(config, "train")) == before


def test_hosts_that_cannot_be_found_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect(monkeypatch, "http://corpus.invalid")
    begun = time.monotonic()
    message = error_of(DataConfig(dir=str(tmp_path)))
    assert time.monotonic() - begun < 12
    assert message.startswith("cannot download from corpus.invalid (")
    assert "--config.data.corpus=files --config.data.dir=DIR" in message
    assert not list(tmp_path.iterdir())


def test_a_host_that_is_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfds_preparation, "_ANSWER_TIMEOUT_S", 0.1)
    silent = http.server.HTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    )
    with silent:  # it listens, and nobody handles what is asked
        host = f"127.0.0.1:{silent.server_port}"
        redirect(monkeypatch, f"http://{host}")
        message = error_of(DataConfig(dir=str(tmp_path)))
    assert message.startswith(f"cannot download from {host} (")


def redirect(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Another host for all corpora, and no TensorFlow needed to ask for it."""
    for corpus in wmt.DATASET_MAP.values():
        monkeypatch.setattr(corpus, "_urls", (f"{address}/{corpus.name}.tgz",))
    monkeypatch.setattr(tfds_preparation, "_require_tensorflow", lambda: None)


def test_archives_that_are_there_are_not_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    redirect(monkeypatch, "http://corpus.invalid")
    manual = tmp_path / "downloads" / "manual"
    manual.mkdir(parents=True)
    for name in ("europarl_v7", "commoncrawl", "newstest2014"):
        url = f"http://corpus.invalid/{name}.tgz"
        described = checksums.UrlInfo(Size(5_000_000_000), "0" * 64, f"{name}.tgz")
        monkeypatch.setitem(checksums.get_all_url_infos(), url, described)
        if name != "commoncrawl":
            (manual / f"{name}.tgz").touch()
    message = error_of(DataConfig(dir=str(tmp_path)))
    assert "3 of 5 archives to download, 5.0 GB; " in capsys.readouterr().err
    names = ("commoncrawl", "newscommentary_v9", "newstest2013")
    urls = ", ".join(f"http://corpus.invalid/{name}.tgz" for name in names)
    assert f"or put {urls} into {manual}" in message


def test_without_tensorflow_the_extra_and_its_size_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = error_of(DataConfig(dir=str(tmp_path)))
    assert "pip install tensorflow-cpu" in message
    assert "1.3 GB installed" in message


def test_what_is_prepared_needs_no_tensorflow(tmp_path: Path) -> None:
    folder = build(tmp_path, {"train": TEST})
    assert prepare(DataConfig(dir=str(tmp_path), dataset="made_translate")) == folder


def test_the_command_prints_the_folder_and_the_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = pairs_of("train", 1013)
    folder = build(tmp_path, {"train": train, "validation": TEST, "test": TEST[:1]})
    flags = {"source_language": "de", "target_language": "en"}
    flags |= {"dataset": "made_translate", "data_dir": str(tmp_path)}
    capsys.readouterr()
    prepare_tfds([f"--{name}={value}" for name, value in flags.items()])
    assert capsys.readouterr().out.splitlines() == [
        str(folder),
        "train       1,013 pairs",
        "validation  2 pairs",
        "test        1 pairs",
    ]


def test_other_languages_name_those_of_the_dataset(tmp_path: Path) -> None:
    message = error_of(DataConfig(dir=str(tmp_path), target_language="ja"))
    assert "no en-ja or ja-en, expected one of cs-en, de-en, fr-en, hi-en" in message


@pytest.mark.parametrize("name", ["wmt41_translate", "wmt_translate", "mnist"])
def test_other_datasets_are_refused(tmp_path: Path, name: str) -> None:
    message = error_of(DataConfig(dir=str(tmp_path), dataset=name))
    assert name in message
    assert "such as wmt14_translate" in message
