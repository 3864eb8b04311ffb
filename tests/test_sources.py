"""Reading sentence pairs: lines stay aligned, and each mistake is one line."""

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from transformer_jax.config import DataConfig
from transformer_jax.data.pairs import Pair
from transformer_jax.data.sources import load_corpus, load_split
from transformer_jax.data.text_files import decode_lines, read_lines
from transformer_jax.errors import UserError

PAIRS = [("one two", "eins zwei"), ("", "leer"), ("three", "drei ü 🙂")]


def write_pair(folder: Path, stem: str, pairs: list[tuple[str, str]]) -> None:
    for side, language in enumerate(("en", "de")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (folder / f"{stem}.{language}").write_bytes(text.encode())


class Splits(NamedTuple):
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def splits_of(config: DataConfig) -> Splits:
    return Splits(*(load_split(config, name) for name in Splits._fields))


def load(folder: Path, **changes: Any) -> Splits:
    """The corpus, all of whose splits are `train` unless the changes say otherwise."""
    values = {"validation": "train", "test": "train", **changes}
    return splits_of(DataConfig(corpus="files", dir=str(folder), **values))


def error_of(folder: Path, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_plain_files_are_read_line_by_line(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    write_pair(tmp_path, "validation", PAIRS[:1])
    write_pair(tmp_path, "test", PAIRS[2:])
    corpus = load_corpus(DataConfig(corpus="files", dir=str(tmp_path)))
    assert list(corpus.train) == list(corpus.train) == PAIRS
    assert (corpus.validation, corpus.test) == (PAIRS[:1], PAIRS[2:])
    config = DataConfig(corpus="files", dir=str(tmp_path))
    assert load_split(config, "test") == PAIRS[2:]
    with pytest.raises(UserError, match="no split 'tset'"):
        load_split(config, "tset")


def test_languages_name_the_files(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    corpus = load(tmp_path, source_language="de", target_language="en")
    assert corpus.train == [(target, source) for source, target in PAIRS]


def test_compressed_files_are_read_and_may_pair_with_plain_ones(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    plain = tmp_path / "train.de"
    (tmp_path / "train.de.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert load(tmp_path).train == PAIRS


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_tsv_file_holds_both_sides(tmp_path: Path, suffix: str) -> None:
    content = "one\teins\ntwo words\tzwei Wörter\n".encode()
    path = tmp_path / f"train.tsv{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert load(tmp_path).train == [("one", "eins"), ("two words", "zwei Wörter")]


def test_a_tsv_line_without_one_tab_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tb\na\tb\tc\n")
    message = error_of(tmp_path)
    assert "train.tsv line 2 has 3" in message


def test_an_empty_side_in_a_tsv_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tb\na\t\n\tb\n")
    assert load(tmp_path).train == [("a", "b"), ("a", ""), ("", "b")]


def test_several_stems_are_read_one_after_the_other(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    write_pair(tmp_path, "news", PAIRS[:2])
    corpus = load(tmp_path, train=("news", "train"))
    assert corpus.train == PAIRS[:2] + PAIRS


def test_windows_line_ends_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\r\n\r\ntwo\r\n")
    assert read_lines(path) == ["one", "", "two"]


@pytest.mark.parametrize(
    "sign", ["\u2028", "\u2029", "\x85", "\x0c", "\x0b", "\x1c", "\x1d", "\x1e"]
)
def test_rare_separators_do_not_break_a_line(sign: str) -> None:
    content = f"a{sign}b\nc\n".encode()
    assert decode_lines(content, "text") == [f"a{sign}b", "c"]


def test_a_last_line_needs_no_line_end_and_a_byte_order_mark_is_no_text() -> None:
    assert decode_lines(b"\xef\xbb\xbfa\nb", "text") == ["a", "b"]


def test_different_counts_name_both_files_and_counts(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    (tmp_path / "train.de").write_text("a\nb\n")
    message = error_of(tmp_path)
    assert f"{tmp_path / 'train.en'} has 3 lines" in message
    assert f"{tmp_path / 'train.de'} has 2" in message


def test_text_that_is_not_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    (tmp_path / "train.de").write_bytes(b"a\nb\nM\xfcde\n")
    message = error_of(tmp_path)
    assert f"{tmp_path / 'train.de'} line 3" in message
    assert "0xfc" in message


def test_a_zero_byte_names_file_and_line(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    (tmp_path / "train.en").write_bytes(b"a\nb\0\nc\n")
    assert f"{tmp_path / 'train.en'} line 2 holds a zero byte" in error_of(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n\n \n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_empty_file_is_named(tmp_path: Path, content: bytes, suffix: str) -> None:
    write_pair(tmp_path, "train", PAIRS)
    (tmp_path / "train.de").unlink()
    path = tmp_path / f"train.de{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    kind = "has blank lines only" if content else "is empty"
    assert f"{path} {kind}" in error_of(tmp_path)


def test_a_missing_file_names_what_was_looked_for(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    (tmp_path / "train.de").unlink()
    message = error_of(tmp_path)
    assert f"{tmp_path / 'train'}.de" in message
    assert "data.dir" in message


def test_no_folder_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"data\.dir is not set"):
        load_corpus(DataConfig(corpus="files"))


@pytest.mark.parametrize("damage", ["cut", "not gzip", "changed"])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, damage: str) -> None:
    write_pair(tmp_path, "train", PAIRS)
    (tmp_path / "train.de").unlink()
    whole = gzip.compress(b"eins\nzwei\ndrei\n" * 50)
    content = {
        "cut": whole[:-12],
        "not gzip": b"eins\nzwei\ndrei\n",
        "changed": whole[:12] + b"\xff\xff\xff" + whole[15:],
    }[damage]
    path = tmp_path / "train.de.gz"
    path.write_bytes(content)
    assert f"cannot read {path}: " in error_of(tmp_path)


def test_held_out_pairs_are_in_one_split_only(tmp_path: Path) -> None:
    pairs = [(f"source {i % 401}", f"target {i % 401}") for i in range(600)]
    write_pair(tmp_path, "train", [*pairs, ("", "x")])
    corpus = load(tmp_path, validation="", test="", held_out_pairs=13)
    train, validation, test = map(set, (corpus.train, corpus.validation, corpus.test))
    assert len(corpus.validation) == len(validation) == 13
    assert len(corpus.test) == len(test) == 13
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert train | validation | test == {*pairs, ("", "x")}
    assert all(source and target for source, target in validation | test)
    again = load(tmp_path, validation="", test="", held_out_pairs=13)
    assert again == corpus
    other = load(tmp_path, validation="", test="", held_out_pairs=13, seed=1)
    assert other.validation != corpus.validation


def test_at_most_a_twentieth_of_the_text_is_held_out(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", [(f"s {i}", f"t {i}") for i in range(100)])
    corpus = load(tmp_path, validation="")
    assert (len(corpus.train), len(corpus.validation)) == (95, 5)


def test_too_little_text_to_hold_any_out_is_a_user_error(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", PAIRS)
    assert "2 distinct pairs" in error_of(tmp_path, validation="")


def test_the_phrases_corpus_has_three_disjoint_splits() -> None:
    config = DataConfig(corpus="phrases", num_phrases=53, seed=3)
    corpus = splits_of(config)
    sizes = len(corpus.train), len(corpus.validation), len(corpus.test)
    assert sizes == (53, 1000, 1000)
    train, validation, test = map(set, (corpus.train, corpus.validation, corpus.test))
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert splits_of(config) == corpus
