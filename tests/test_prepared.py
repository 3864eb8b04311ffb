"""Text made ready once: found again, resumed, and made anew when anything changes."""

import dataclasses
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_jax.config import DataConfig, ExperimentConfig, freeze
from transformer_jax.data import prepared
from transformer_jax.data.cache import making
from transformer_jax.data.pairs import ListedPairs, Pair
from transformer_jax.data.prepared import encoded, learned_vocabularies
from transformer_jax.data.sources import load_corpus
from transformer_jax.data.store import TokenStore
from transformer_jax.errors import UserError

SOURCE = ["one", "two", "three", "four", "five", "six"]
TARGET = ["eins", "zwei", "drei", "vier", "fünf", "sechs"]
TEXT = [
    (" ".join(source), " ".join(target))
    for source in itertools.permutations(SOURCE, 2)
    for target in itertools.permutations(TARGET, 2)
]


class Watched(ListedPairs):
    """Counts how many pairs are read; may be interrupted."""

    def __init__(self, pairs: list[Pair], fails_after: int = 1 << 60) -> None:
        super().__init__(pairs)
        self.num_read = 0
        self._fails_after = fails_after

    def __iter__(self) -> Iterator[Pair]:
        for pair in super().__iter__():
            if self.num_read == self._fails_after:
                raise KeyboardInterrupt
            self.num_read += 1
            yield pair


def config_in(folder: Path, **model: Any) -> ExperimentConfig:
    return freeze(
        {
            "model": {"vocab_size": 290, "max_length": 40, **model},
            "data": {"cache_dir": str(folder), "max_length": 40, "row_length": 40},
        }
    )


def quiet(line: str) -> None:
    pass


def test_the_second_time_nothing_is_read(tmp_path: Path) -> None:
    config = config_in(tmp_path / "cache")
    first = Watched(TEXT)
    vocabularies = learned_vocabularies(config, first, quiet)
    store = encoded(config, first, vocabularies, quiet)
    assert first.num_read == 2 * len(TEXT)
    again = Watched(TEXT)
    assert learned_vocabularies(config, again, quiet).digest == vocabularies.digest
    same = encoded(config, again, vocabularies, quiet)
    assert (same.digest, same.folder) == (store.digest, store.folder)
    assert again.num_read == 0
    ids = vocabularies.encode(TEXT)
    assert store.digest == TokenStore.of(ids, 40).digest
    assert len(store) == len(TEXT)


def test_other_text_or_settings_are_prepared_anew(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    folders = set()
    changed = dataclasses.replace(
        config, tokenizer=dataclasses.replace(config.tokenizer, shared=False)
    )
    shorter = dataclasses.replace(
        config, data=dataclasses.replace(config.data, max_length=39)
    )
    for text, one in (
        (TEXT, config),
        (TEXT[1:], config),
        (TEXT, changed),
        (TEXT, config_in(tmp_path, vocab_size=291)),
        (TEXT, shorter),
    ):
        vocabularies = learned_vocabularies(one, ListedPairs(text), quiet)
        folders.add(encoded(one, ListedPairs(text), vocabularies, quiet).folder)
    assert len(folders) == 5


def test_an_interrupted_preparation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_PART", 100)
    config = config_in(tmp_path)
    vocabularies = learned_vocabularies(config, ListedPairs(TEXT), quiet)
    with pytest.raises(KeyboardInterrupt):
        encoded(config, Watched(TEXT, fails_after=350), vocabularies, quiet)
    said: list[str] = []
    store = encoded(config, ListedPairs(TEXT), vocabularies, said.append)
    assert said == ["preparing goes on after pair 300"]
    assert store.digest == TokenStore.of(vocabularies.encode(TEXT), 40).digest


@pytest.mark.parametrize("name", ["ids", "lengths"])
def test_a_damaged_store_is_mended_from_the_damaged_part_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(prepared, "_PART", 100)
    config = config_in(tmp_path)
    vocabularies = learned_vocabularies(config, ListedPairs(TEXT), quiet)
    store = encoded(config, ListedPairs(TEXT), vocabularies, quiet)
    assert store.folder is not None
    path = store.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # of 900 pairs, in the fifth hundred
    path.write_bytes(content)
    said: list[str] = []
    mended = encoded(config, ListedPairs(TEXT), vocabularies, said.append)
    assert said == ["preparing goes on after pair 400"]
    assert mended.digest == store.digest
    assert TokenStore.open(store.folder) is not None


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_a_damaged_vocabulary_or_choice_is_made_anew(
    tmp_path: Path, content: bytes | None
) -> None:
    write_files(tmp_path)
    config = dataclasses.replace(
        config_in(tmp_path / "cache"),
        data=held_out_config(tmp_path),
    )
    corpus = load_corpus(config.data)
    vocabularies = learned_vocabularies(config, corpus.train, quiet)
    kept = [x for x in (tmp_path / "cache").iterdir() if x.suffix != ".lock"]
    assert len(kept) == 2
    for path in kept:
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged if content is None else content)
    again = load_corpus(config.data)
    assert (again.validation, again.test) == (corpus.validation, corpus.test)
    learned = learned_vocabularies(config, again.train, quiet)
    assert learned.digest == vocabularies.digest


def test_a_sample_is_even_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "_SAMPLED_PAIRS", 200)
    monkeypatch.setattr(prepared, "_PART", 70)
    pairs = [(str(number), "x") for number in range(1000)]
    counts = np.zeros(1000)
    for seed in range(300):
        sample = prepared._sample(iter(pairs), seed=seed)
        numbers = [int(source) for source, _ in sample]
        assert len(numbers) == 200
        assert numbers == sorted(set(numbers))
        counts[numbers] += 1
    # Each of ten tenths is drawn 6000 times; the deviation of such a sum is 65.
    tenths = counts.reshape(10, 100).sum(axis=1)
    assert (abs(tenths - 6000) < 5 * 65).all()
    assert prepared._sample(iter(pairs[:150]), seed=0) == pairs[:150]


def test_two_processes_prepare_once(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from transformer_jax.config import freeze\n"
        "from transformer_jax.data.prepared import encoded, learned_vocabularies\n"
        "from transformer_jax.data.sources import load_corpus\n"
        "config = freeze({'model': {'vocab_size': 400}, 'data': {'corpus': 'phrases', "
        "'num_phrases': 2000, 'cache_dir': sys.argv[1]}})\n"
        "train, said = load_corpus(config.data).train, []\n"
        "vocabularies = learned_vocabularies(config, train, said.append)\n"
        "num_learned = sum(line.startswith('learning') for line in said)\n"
        "print(num_learned, encoded(config, train, vocabularies, said.append).digest)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    root = Path(__file__).parent.parent
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        for _ in range(2)
    ]
    outputs = sorted(process.communicate(timeout=120)[0].split() for process in running)
    assert [number for number, _ in outputs] == ["0", "1"]
    assert outputs[0][1] == outputs[1][1]


def test_a_cache_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    config = config_in(tmp_path / "file" / "cache")
    with pytest.raises(UserError, match=r"--config\.data\.cache_dir=DIR") as error:
        learned_vocabularies(config, ListedPairs(TEXT), quiet)
    assert "\n" not in str(error.value)


def write_files(folder: Path) -> None:
    for side, language in enumerate(("en", "de")):
        lines = "".join(f"{pair[side]}\n" for pair in TEXT)
        (folder / f"train.{language}").write_text(lines)


def held_out_config(folder: Path) -> DataConfig:
    return DataConfig(
        corpus="files",
        dir=str(folder),
        validation="",
        test="",
        held_out_pairs=20,
        max_length=40,
        row_length=40,
        cache_dir=str(folder / "cache"),
    )


def test_what_is_held_out_is_chosen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    config = held_out_config(tmp_path)
    first = load_corpus(config)
    # The second time the text is not looked through.
    monkeypatch.setattr("transformer_jax.data.sources._Smallest", None)
    again = load_corpus(config)
    assert (first.validation, first.test) == (again.validation, again.test)
    assert first.train.digest == again.train.digest
    other = dataclasses.replace(config, seed=1)
    with pytest.raises(TypeError):
        load_corpus(other)


def test_a_prepared_cache_can_be_read_where_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(tmp_path)
    vocabularies = learned_vocabularies(config, ListedPairs(TEXT), quiet)
    store = encoded(config, ListedPairs(TEXT), vocabularies, quiet)

    def refuse(*_: object) -> None:
        raise AssertionError("a lock is taken")

    monkeypatch.setattr("transformer_jax.data.cache.making", refuse)
    monkeypatch.setattr(prepared, "making", refuse)
    assert learned_vocabularies(config, ListedPairs(TEXT), quiet).digest
    same = encoded(config, ListedPairs(TEXT), vocabularies, quiet)
    assert same.digest == store.digest


def test_a_full_disk_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(tmp_path)
    vocabularies = learned_vocabularies(config, ListedPairs(TEXT), quiet)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError) as error:
        encoded(config, ListedPairs(TEXT), vocabularies, quiet)
    assert f"cannot keep prepared text in {tmp_path} (No space left" in str(error.value)


def test_who_waits_for_another_process_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    entered = threading.Event()

    def wait() -> None:
        with making(tmp_path / "x", said.append):
            entered.set()

    with making(tmp_path / "x", quiet):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.2)
    thread.join(10)
    assert entered.is_set()
    assert said == [f"waiting for another process, which prepares {tmp_path / 'x'}"]
