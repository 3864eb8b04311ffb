"""Where sentence pairs come from: files, or the generated `phrases` corpus.

A source has three splits, train, validation and test, each a list of raw text pairs.
tensorflow-datasets will be a third kind, beside `_files` and `_phrases`.
"""

import contextlib
import dataclasses
import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.errors import UserError

Pair = tuple[str, str]  # source text, target text
TSV_STRIP = " \r"  # around a line of a pair: a tab there has an empty side beside it

_NUM_EVALUATION_PHRASES = 1000  # of validation and of test
_MAX_HELD_OUT_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The raw pairs of each split; empty lines are kept, to be counted later."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]

    def split(self, name: str) -> list[Pair]:
        """The pairs of "train", "validation" or "test"."""
        splits = ("train", "validation", "test")
        if name not in splits:
            raise UserError(f"no split {name!r}, expected one of {', '.join(splits)}")
        return getattr(self, name)


def load_corpus(config: DataConfig, *, seed: int) -> Corpus:
    """All splits of the configured corpus.

    Raises:
      UserError: a file is missing, empty, not UTF-8, or does not align with its pair.
    """
    if config.corpus == "phrases":
        return _phrases(config, seed)
    return _files(config, seed)


def _phrases(config: DataConfig, seed: int) -> Corpus:
    def pairs(split: str, num_pairs: int) -> list[Pair]:
        return phrase_pairs(
            split,
            num_pairs=num_pairs,
            seed=seed,
            source_language=config.source_language,
            target_language=config.target_language,
        )

    return Corpus(
        train=pairs("train", config.num_phrases),
        validation=pairs("validation", _NUM_EVALUATION_PHRASES),
        test=pairs("test", _NUM_EVALUATION_PHRASES),
    )


def _files(config: DataConfig, seed: int) -> Corpus:
    if not config.dir:
        raise UserError(
            "data.dir is not set, expected the folder of the text files: give "
            "--config.data.dir=DIR"
        )
    train = [pair for stem in config.train for pair in _read_pairs(config, stem)]
    validation = _read_pairs(config, config.validation) if config.validation else []
    test = _read_pairs(config, config.test) if config.test else []
    if not config.validation:
        train, validation = _hold_out(train, config.held_out_pairs, [seed, 1])
    if not config.test:
        train, test = _hold_out(train, config.held_out_pairs, [seed, 2])
    return Corpus(train, validation, test)


def _hold_out(
    pairs: list[Pair], most: int, seed: list[int]
) -> tuple[list[Pair], list[Pair]]:
    """The pairs without, and only, a random few: no pair is in both."""
    distinct = sorted({pair for pair in pairs if all(pair)})
    num_held_out = min(most, int(len(distinct) * _MAX_HELD_OUT_SHARE))
    if num_held_out == 0:
        raise UserError(
            f"{len(distinct)} distinct pairs are too few to hold any out, expected "
            f"{math.ceil(1 / _MAX_HELD_OUT_SHARE)} or more for validation and one more "
            "for test: add text, or name data.validation and data.test"
        )
    order = np.random.default_rng(seed).permutation(len(distinct))
    held_out = [distinct[i] for i in order[:num_held_out]]
    excluded = set(held_out)
    return [pair for pair in pairs if pair not in excluded], held_out


def _read_pairs(config: DataConfig, stem: str) -> list[Pair]:
    """The pairs of `stem`: one .tsv file or a file of each language."""
    folder = Path(config.dir)
    tsv = _find(folder / f"{stem}.tsv")
    languages = config.source_language, config.target_language
    paths = [_find(folder / f"{stem}.{language}") for language in languages]
    if tsv is not None:
        others = [str(path) for path in paths if path is not None]
        if others:
            raise UserError(
                f"{tsv} is there and {' and '.join(others)} too, expected one of both "
                "forms: move the other away"
            )
        return _read_tsv(tsv)
    for path, language in zip(paths, languages, strict=True):
        if path is None:
            raise UserError(
                f"no file {folder / stem}.{language}, .{language}.gz or .tsv: expected "
                "aligned text there, one sentence a line; set --config.data.dir to its "
                "folder, and data.train, data.validation and data.test to the names "
                "before the language"
            )
    source_path, target_path = (path for path in paths if path is not None)
    source, target = read_lines(source_path), read_lines(target_path)
    if len(source) != len(target):
        raise UserError(
            f"{source_path} has {len(source)} lines and {target_path} has "
            f"{len(target)}: expected as many, line by line each other's translation"
        )
    return list(zip(source, target, strict=True))


def _read_tsv(path: Path) -> list[Pair]:
    lines = read_lines(path, strip=TSV_STRIP)
    return [split_pair(line, f"{path} line {i}") for i, line in enumerate(lines, 1)]


def split_pair(line: str, where: str) -> Pair:
    """The two sides of a line with a tab between them; `where` it stands, for errors.

    Raises:
      UserError: another number of fields.
    """
    fields = line.split("\t")
    if len(fields) != 2:
        raise UserError(
            f"{where} has {len(fields)} tab-separated fields, expected 2: source text, "
            "a tab, target text"
        )
    return fields[0].strip(), fields[1].strip()


def _find(path: Path) -> Path | None:
    """The path, or the same with .gz, whichever is there."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.exists():
            return candidate
    return None


def read_lines(
    path: Path, *, strip: str = " \t\r", may_be_blank: bool = False
) -> list[str]:
    r"""The lines of a UTF-8 file, plain or .gz, without the outer characters `strip`.

    Lines end at "\n" or "\r\n" only: U+2028, U+0085, form feeds and their like are
    text, where `str.splitlines` would break a line and shift all that follow it.

    Raises:
      UserError: unreadable, empty, binary, or not UTF-8 (names the line); of blank
        lines only, unless it `may_be_blank`.
    """
    with naming_failure(str(path)):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    if not content or (not may_be_blank and not content.strip()):
        kind = "has blank lines only" if content else "is empty"
        raise UserError(f"{path} {kind}, expected one sentence a line")
    return decode_lines(content, str(path), strip=strip)


@contextlib.contextmanager
def naming_failure(name: str) -> Iterator[None]:
    """Turns what reading a file, plain or .gz, raises into one line with its name."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read {name}: {reason}") from error


def decode_lines(
    content: bytes, name: str, *, strip: str = " \t\r", first_line: int = 1
) -> list[str]:
    """The lines of UTF-8 `content`; an error says `name` and a line number."""
    if first_line == 1:  # a byte order mark is not text
        content = content.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + first_line
        raise UserError(
            f"{name} line {line} holds a zero byte, expected UTF-8 text: if it "
            "is UTF-16, convert it with iconv -f utf-16 -t utf-8"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + first_line
        raise UserError(
            f"{name} line {line} is not UTF-8 (byte 0x{content[error.start]:02x}): "
            "convert it, for example with iconv -f latin1 -t utf-8"
        ) from None
    lines = text.removesuffix("\n").split("\n")
    return [line.removesuffix("\r").strip(strip) for line in lines]
