"""Where sentence pairs come from: prepared datasets, files, or generated phrases.

Training text may be larger than memory: it is read as a stream, as often as it is
needed, and known by a digest of its content. Validation and test are lists.
"""

import array
import dataclasses
import functools
import hashlib
import heapq
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.cache import cache_folder, cached, digest_of
from transformer_jax.data.filtered_test import filtered_test
from transformer_jax.data.pairs import ListedPairs, Pair, Pairs, as_line
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.data.progress import Say, counted
from transformer_jax.data.text_files import file_digest, iter_lines
from transformer_jax.data.tfds_corpus import TfdsPairs
from transformer_jax.data.treebank import Constituents, Mixture, Treebank
from transformer_jax.errors import UserError
from transformer_jax.parsing.trees import Tree

TSV_STRIP = " \r"  # around a line of a pair: a tab there has an empty side beside it

_NUM_EVALUATION_PHRASES = 1000  # of validation and of test
_MAX_HELD_OUT_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The raw pairs of each split; empty lines are kept, to be counted later."""

    train: Pairs
    validation: list[Pair]
    test: list[Pair]


def load_split(
    config: DataConfig, name: str, *, say: Say = lambda _: None
) -> list[Pair]:
    """The pairs of "train", "validation", "test" or "test_filtered".

    The last is sacreBLEU's `wmt14`, for models of whatever corpus: see
    `transformer_jax.data.filtered_test`.

    Raises:
      UserError: no such split, or as `load_corpus`.
    """
    if config.corpus == "treebank":
        return list(_treebank_split(config, name))
    splits = ("train", "validation", "test", "test_filtered")
    if name not in splits:
        raise UserError(f"no split {name!r}, expected one of {', '.join(splits)}")
    if name == "test_filtered":
        return filtered_test(config.source_language, config.target_language)
    return list(getattr(load_corpus(config, say=say), name))


def load_corpus(config: DataConfig, *, say: Say = lambda _: None) -> Corpus:
    """All splits of the configured corpus.

    Args:
      config: which.
      say: takes a line now and then, should it take long.

    Raises:
      UserError: a file is missing. Of validation and test also, and when the training
        text is read: empty, not UTF-8, or not aligned with its pair.
    """
    if config.corpus == "files":
        return _files(config, say)
    if config.corpus == "treebank":
        return _treebank(config)
    return _dataset(config) if config.corpus == "tfds" else _phrases(config)


def load_trees(config: DataConfig, name: str) -> list[Tree]:
    """The trees of "train", "validation" or "test" of a treebank, in order.

    Raises:
      UserError: no such split, or as `load_corpus`.
    """
    return list(_treebank_split(config, name).trees())


def _treebank_split(config: DataConfig, name: str) -> Treebank:
    """Without what is added to the training split."""
    names = {
        "train": config.train,
        "validation": (config.validation,),
        "test": (config.test,),
    }
    if name not in names:
        raise UserError(
            f"no split {name!r} of a treebank, expected one of {', '.join(names)}"
        )
    return Treebank.find(config, names[name])


def validation_trees(config: DataConfig) -> list[Tree]:
    """Of a treebank the trees that `load_corpus` gives as pairs; else none."""
    if config.corpus != "treebank":
        return []
    return load_trees(config, "validation")


def _treebank(config: DataConfig) -> Corpus:
    treebank = _treebank_split(config, "train")
    train: Pairs = Constituents(treebank) if config.constituents else treebank
    if config.extra:
        more = Treebank.find(config, (config.extra,))
        train = Mixture(train, more, config.extra_ratio)
    validation, test = (
        list(_treebank_split(config, name)) for name in ("validation", "test")
    )
    return Corpus(train, validation, test)


def _phrases(config: DataConfig) -> Corpus:
    def pairs(split: str, num_pairs: int) -> list[Pair]:
        return phrase_pairs(
            split,
            num_pairs=num_pairs,
            seed=config.seed,
            source_language=config.source_language,
            target_language=config.target_language,
        )

    return Corpus(
        train=ListedPairs(pairs("train", config.num_phrases)),
        validation=pairs("validation", _NUM_EVALUATION_PHRASES),
        test=pairs("test", _NUM_EVALUATION_PHRASES),
    )


def _dataset(config: DataConfig) -> Corpus:
    splits = (TfdsPairs.open(config, x) for x in ("train", "validation", "test"))
    train, validation, test = splits
    return Corpus(train, list(validation), list(test))


def _files(config: DataConfig, say: Say) -> Corpus:
    if not config.dir:
        raise UserError(
            "data.dir is not set, expected the folder of the text files: give "
            "--config.data.dir=DIR"
        )
    train = FilePairs.find(config, config.train)
    train, held_out = _hold_out(train, config, say)
    validation, test = (
        list(FilePairs.find(config, (stem,))) if stem else pairs
        for stem, pairs in zip((config.validation, config.test), held_out, strict=True)
    )
    return Corpus(train, validation, test)


@dataclasses.dataclass(frozen=True)
class FilePairs(Pairs):
    """The pairs of text files, one file after another."""

    # Of each stem: one .tsv file, or a file of the source and one of the target.
    files: tuple[tuple[Path, ...], ...]

    @classmethod
    def find(cls, config: DataConfig, stems: Sequence[str]) -> "FilePairs":
        """The files of `stems` in the configured folder.

        Raises:
          UserError: none there, or of both forms.
        """
        return cls(tuple(_files_of(config, stem) for stem in stems))

    def __iter__(self) -> Iterator[Pair]:
        """From the first pair on.

        Raises:
          UserError: a file that is empty, not UTF-8, or not aligned with its pair.
        """
        for paths in self.files:
            if len(paths) == 1:
                lines = iter_lines(paths[0], strip=TSV_STRIP)
                for number, line in enumerate(lines, start=1):
                    yield split_pair(line, f"{paths[0]} line {number}")
            else:
                yield from _aligned(*paths)

    @functools.cached_property
    def digest(self) -> str:
        """Of the content of the files, as they are."""
        content = hashlib.sha256()
        for paths in self.files:
            content.update(b"%d" % len(paths))
            for path in paths:
                content.update(file_digest(path))
        return content.hexdigest()


def _files_of(config: DataConfig, stem: str) -> tuple[Path, ...]:
    """The .tsv file of `stem`, or a file of each language."""
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
        return (tsv,)
    for path, language in zip(paths, languages, strict=True):
        if path is None:
            raise UserError(
                f"no file {folder / stem}.{language}, .{language}.gz or .tsv: expected "
                "aligned text there, one sentence a line; set --config.data.dir to its "
                "folder, and data.train, data.validation and data.test to the names "
                "before the language"
            )
    return tuple(path for path in paths if path is not None)


def _find(path: Path) -> Path | None:
    """The path, or the same with .gz, whichever is there."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.exists():
            return candidate
    return None


def _aligned(source_path: Path, target_path: Path) -> Iterator[Pair]:
    source, target = iter_lines(source_path), iter_lines(target_path)
    for number, pair in enumerate(itertools.zip_longest(source, target)):
        if None in pair:
            left = sum(1 for _ in itertools.chain(source, target)) + 1
            counts = [number + left * (line is not None) for line in pair]
            raise UserError(
                f"{source_path} has {counts[0]} lines and {target_path} has "
                f"{counts[1]}: expected as many, line by line each other's translation"
            )
        yield pair


def _hold_out(
    train: Pairs, config: DataConfig, say: Say
) -> tuple[Pairs, list[list[Pair]]]:
    """The text without, and only, the pairs of validation and of test.

    Those are the distinct pairs with the smallest hashes: one pass finds them, and
    their hashes are enough to leave them out.
    """
    names = config.validation, config.test
    limits = [0 if name else config.held_out_pairs for name in names]
    if not any(limits):
        return train, [[], []]
    key = digest_of(train.digest, config.seed, limits)

    def choose() -> bytes:
        hashes, smallest = array.array("Q"), _Smallest(sum(limits))
        for pair in counted(train, "holding pairs out", say):
            if all(pair):
                hashes.append(_hash(pair, config.seed))
                smallest.add(hashes[-1], pair)
        num_distinct = len(np.unique(np.frombuffer(hashes, np.uint64)))
        left, numbers = num_distinct, []
        for limit in limits:
            number = min(limit, int(left * _MAX_HELD_OUT_SHARE))
            if limit and number == 0:
                raise UserError(
                    f"{num_distinct} distinct pairs are too few to hold any out, "
                    f"expected {math.ceil(1 / _MAX_HELD_OUT_SHARE)} or more for "
                    "validation and one more for test: add text, or name "
                    "data.validation and data.test"
                )
            numbers.append(number)
            left -= number
        pairs = smallest.pairs()[: sum(numbers)]
        return json.dumps([pairs[: numbers[0]], pairs[numbers[0] :]]).encode()

    path = cache_folder(config) / f"held_out-{key}"
    held_out = [
        [(source, target) for source, target in pairs]
        for pairs in json.loads(cached(path, choose, say))
    ]
    excluded = {_hash(pair, config.seed) for pairs in held_out for pair in pairs}
    return _Remaining(train, excluded, config.seed), held_out


class _Smallest:
    """The pairs with the smallest keys, among as many as are added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._threshold = 1 << 64  # no larger key can be among them
        self._pairs: dict[int, Pair] = {}

    def add(self, key: int, pair: Pair) -> None:
        if key > self._threshold:
            return
        self._pairs[key] = pair
        if len(self._pairs) > 2 * self._most:
            keys = heapq.nsmallest(self._most, self._pairs)
            self._threshold = keys[-1]
            self._pairs = {key: self._pairs[key] for key in keys}

    def pairs(self) -> list[Pair]:
        """By their keys, and perhaps more than were asked for."""
        return [pair for _, pair in sorted(self._pairs.items())]


def _hash(pair: Pair, seed: int) -> int:
    """64 bits, spread evenly."""
    key = seed.to_bytes(8, "big")
    digest = hashlib.blake2b(as_line(pair), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big")


class _Remaining(Pairs):
    """Pairs without those of some hashes."""

    def __init__(self, pairs: Pairs, excluded: set[int], seed: int) -> None:
        self._pairs, self._excluded, self._seed = pairs, excluded, seed

    def __iter__(self) -> Iterator[Pair]:
        for pair in self._pairs:
            if _hash(pair, self._seed) not in self._excluded:
                yield pair

    @functools.cached_property
    def digest(self) -> str:
        return digest_of(self._pairs.digest, self._seed, sorted(self._excluded))


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
