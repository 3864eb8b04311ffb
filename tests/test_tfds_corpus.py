"""Reading what tensorflow-datasets prepared: whole, in order, without TensorFlow."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
from made_corpus import Pair, build

from transformer_jax.config import DataConfig
from transformer_jax.data.tfds_corpus import TfdsPairs, find_prepared
from transformer_jax.errors import UserError

ROOT = Path(__file__).parent.parent
# In three files, each of more than are read at once.
TRAIN = [(f"a text {i}", f"ein Text {i} äöü ß — “„ 🙂 日本語") for i in range(5003)]
VALIDATION = [(f"valid {i}", f"gültig {i}") for i in range(17)]
TEST = [
    ("  outer blanks\t", "Zeile \u2028 mit \x85 Trennern\r"),
    ("", "leer"),
    ("z", ""),
]
PAIRS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with made_translate/de-en/1.0.0, of three files a split."""
    folder = tmp_path_factory.mktemp("datasets")
    build(folder, PAIRS, num_shards=3)
    return folder


@pytest.fixture
def copied(prepared: Path, tmp_path: Path) -> Path:
    """The dataset's own folder, of a copy that the test may damage."""
    shutil.copytree(prepared, tmp_path / "copy")
    return tmp_path / "copy" / "made_translate" / "de-en" / "1.0.0"


def config_of(folder: Path, **changes: Any) -> DataConfig:
    return DataConfig(**{"dir": str(folder), "dataset": "made_translate", **changes})


def config_of_copy(copied: Path) -> DataConfig:
    return config_of(copied.parents[2])


def error_of(config: DataConfig, split: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        list(TfdsPairs.open(config, split))
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit_info(copied: Path, **changes: Any) -> None:
    path = copied / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_split_has_all_pairs_once(prepared: Path, split: str) -> None:
    pairs = TfdsPairs.open(config_of(prepared), split)
    assert len(pairs) == len(PAIRS[split])
    assert sorted(pairs) == sorted(PAIRS[split])
    assert list(pairs) == list(pairs)


def test_the_order_is_that_of_tensorflow_datasets_own_reader(prepared: Path) -> None:
    folder = prepared / "made_translate" / "de-en" / "1.0.0"
    assert len(list(folder.glob("*train.array_record*"))) == 3
    builder = tfds.builder_from_directory(folder)
    source: Any = builder.as_data_source("train")  # pyright: ignore[reportCallIssue]
    examples = source.__getitems__(range(len(source)))
    theirs = [(e["en"].decode(), e["de"].decode()) for e in examples]
    assert list(TfdsPairs.open(config_of(prepared), "train")) == theirs


def test_languages_come_from_the_config_and_not_from_the_dataset(
    prepared: Path,
) -> None:
    reverse = config_of(prepared, source_language="de", target_language="en")
    pairs = TfdsPairs.open(reverse, "validation")
    assert sorted(pairs) == sorted((de, en) for en, de in VALIDATION)


def test_outer_blanks_are_no_text_and_rare_separators_are(prepared: Path) -> None:
    assert sorted(TfdsPairs.open(config_of(prepared), "test")) == [
        ("", "leer"),
        ("outer blanks", "Zeile \u2028 mit \x85 Trennern"),
        ("z", ""),
    ]


def test_the_default_folder_is_that_of_tensorflow_datasets(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(prepared, dir="")
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    assert len(TfdsPairs.open(config, "train")) == len(TRAIN)
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(prepared / "home"))
    home = prepared / "home" / "tensorflow_datasets"
    assert f"no made_translate of en-de or de-en in {home};" in error_of(config)


def test_either_order_of_the_pair_is_found(copied: Path) -> None:
    copied.parent.rename(copied.parents[1] / "en-de")
    assert len(TfdsPairs.open(config_of_copy(copied), "train")) == len(TRAIN)


def test_the_newest_version_is_read(copied: Path) -> None:
    for version in ("9.0.0", "10.0.0", "10.0.0.bak", "incomplete.ABC_11.0.0"):
        shutil.copytree(copied, copied.with_name(version))
    assert find_prepared(config_of_copy(copied)) == copied.with_name("10.0.0")


def test_an_alternative_format_of_record_files_is_read(copied: Path) -> None:
    formats = ["array_record"]
    edit_info(copied, fileFormat="tfrecord", alternativeFileFormats=formats)
    assert len(list(TfdsPairs.open(config_of_copy(copied), "train"))) == len(TRAIN)


def test_the_digest_names_content_and_direction(prepared: Path, tmp_path: Path) -> None:
    def digest(folder: Path, split: str = "train", **changes: Any) -> str:
        return TfdsPairs.open(config_of(folder, **changes), split).digest

    def rebuilt(name: str, pairs: list[Pair]) -> str:
        build(tmp_path / name, {"train": pairs})
        return digest(tmp_path / name)

    same = rebuilt("one", TRAIN)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert digest(tmp_path / "two") == same
    english, german = TRAIN[1201]
    # Of the same length, in the middle of a file that is padded to a whole block.
    edited = [*TRAIN[:1201], (english.replace("t", "T"), german), *TRAIN[1202:]]
    digests = {
        same,
        rebuilt("edited", edited),
        rebuilt("shorter", TRAIN[:-1]),
        digest(prepared, "validation"),
        digest(tmp_path / "one", source_language="de", target_language="en"),
    }
    assert len(digests) == 5


READ = """
import importlib.machinery, json, sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "jax"):
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        raise ImportError(f"{spec.name} is not to be imported")

def refuse_network(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError("no network is to be reached")

sys.meta_path.insert(0, Refuses())
sys.addaudithook(refuse_network)
from transformer_jax.config import DataConfig
from transformer_jax.data.tfds_corpus import TfdsPairs
assert "tensorflow_datasets" not in sys.modules
values = json.loads(sys.argv[1])
for split in ("train", "validation", "test"):
    print(json.dumps(list(TfdsPairs.open(DataConfig(**values), split))))
"""


def read_elsewhere(config: DataConfig) -> list[list[Pair]]:
    """The three splits, read by a process that cannot import TensorFlow."""
    finished = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(dataclasses.asdict(config))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    splits = [json.loads(line) for line in finished.stdout.splitlines()]
    return [[(source, target) for source, target in split] for split in splits]


def test_reading_needs_neither_tensorflow_nor_a_network(prepared: Path) -> None:
    train, validation, test = read_elsewhere(config_of(prepared))
    assert sorted(train) == sorted(TRAIN)
    assert sorted(validation) == sorted(VALIDATION)
    assert len(test) == len(TEST)


def test_a_missing_dataset_says_where_it_was_looked_for_and_what_to_do(
    tmp_path: Path,
) -> None:
    begun = time.monotonic()
    config = DataConfig(dir=str(tmp_path / "no folder"), target_language="fr")
    message = error_of(config)
    assert f"no wmt14_translate of en-fr or fr-en in {tmp_path}/no folder;" in message
    assert (
        "`python -m transformer_jax prepare-tfds --source_language=en "
        f"--target_language=fr '--data_dir={tmp_path}/no folder'`"
    ) in message
    assert "pip install tensorflow-cpu" in message
    assert "--config.data.corpus=files --config.data.dir=DIR" in message
    assert time.monotonic() - begun < 1  # no network was tried


def test_another_pair_of_languages_names_those_on_disk(prepared: Path) -> None:
    message = error_of(config_of(prepared, target_language="ja"))
    assert "made_translate has no en-ja or ja-en, only de-en;" in message
    assert "--target_language=ja --dataset=made_translate" in message


def test_a_pair_whose_name_is_not_its_languages_names_those(copied: Path) -> None:
    copied.parent.rename(copied.parents[1] / "en-fr")
    config = dataclasses.replace(config_of_copy(copied), target_language="fr")
    assert "has no text in fr, but in de, en: set data.source" in error_of(config)


def test_an_interrupted_preparation_is_named(copied: Path) -> None:
    unfinished = copied.rename(copied.with_name("incomplete.ABCDEF_1.0.0"))
    message = error_of(config_of_copy(copied))
    assert f"{unfinished} is not finished" in message
    assert "prepare it once with `python -m" in message


def test_another_split_names_those_that_there_are(prepared: Path) -> None:
    message = error_of(config_of(prepared), "tset")
    assert "no split 'tset', expected one of train, validation, test" in message


def test_files_for_tensorflow_say_how_to_make_others(copied: Path) -> None:
    edit_info(copied, fileFormat="tfrecord")
    message = error_of(config_of_copy(copied))
    assert f"{copied} is prepared as tfrecord, expected array_record" in message
    assert "delete it (the downloads stay)" in message


@pytest.mark.parametrize("content", [None, "", "{", "{}"])
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_damaged_descriptions_are_named(
    copied: Path, name: str, content: str | None
) -> None:
    (copied / name).unlink()
    if content is not None:
        (copied / name).write_text(content)
    message = error_of(config_of_copy(copied))
    assert f"{copied} is damaged (" in message
    assert "delete it and prepare it again with `python -m" in message


def test_a_file_with_too_few_pairs_is_named_before_any_is_read(copied: Path) -> None:
    name = "made_translate-{}.array_record-00001-of-00003"
    shutil.copy(copied / name.format("test"), copied / name.format("validation"))
    message = error_of(config_of_copy(copied), "validation")
    file = name.format("validation")
    assert f"{copied} is damaged ({file} has 1 pairs, expected " in message


@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_incomplete_files_of_records_are_named_before_any_is_read(
    copied: Path, damage: str
) -> None:
    path = copied / "made_translate-train.array_record-00001-of-00003"
    if damage == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1 if damage == "cut" else 0)
    message = error_of(config_of_copy(copied))
    assert f"{copied} is damaged ({path.name}: " in message
    assert len(TfdsPairs.open(config_of_copy(copied), "test")) == len(TEST)


def test_a_changed_byte_is_found_when_it_is_read(copied: Path) -> None:
    path = copied / "made_translate-train.array_record-00002-of-00003"
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 0xFF
    path.write_bytes(content)
    message = error_of(config_of_copy(copied))
    assert f"{path} is damaged (" in message
    assert "delete its folder and prepare it again" in message
