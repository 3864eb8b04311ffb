"""Treebank files as pairs: a sentence, and its tree as a sequence of tokens."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_jax.config import DataConfig
from transformer_jax.data.cache import digest_of
from transformer_jax.data.pairs import Pair, Pairs
from transformer_jax.data.text_files import file_digest, iter_lines
from transformer_jax.errors import UserError
from transformer_jax.parsing.linear import Closing, Leaves, linearised, sentence_of
from transformer_jax.parsing.trees import Tree, cleaned, read_trees, spans, words_of

_SUFFIXES = (".mrg", ".mrg.gz")


@dataclasses.dataclass(frozen=True)
class Treebank(Pairs):
    """The trees of .mrg files, one file after another."""

    files: tuple[Path, ...]
    leaves: Leaves
    closing: Closing

    @classmethod
    def find(cls, config: DataConfig, names: Sequence[str]) -> "Treebank":
        """The files that `names` mean in the configured folder.

        A name is a file or a folder, of which all .mrg files are taken, by their
        paths; one of a file without .mrg or .mrg.gz; NAME.list, a file with such names
        in it, one a line; or sections like 02-21, folders named by two digits.

        Raises:
          UserError: none there.
        """
        if not config.dir:
            raise UserError(
                "data.dir is not set, expected the folder of the treebank: give "
                "--config.data.dir=DIR"
            )
        files = [file for name in names for file in _files(Path(config.dir), name)]
        if not files:
            raise UserError(
                f"{', '.join(names)} means no file in {config.dir}, expected files, "
                "folders, lists, or sections such as 02-21, the lower first"
            )
        return cls(tuple(files), config.leaves, config.closing)

    def trees(self) -> Iterator[Tree]:
        """The trees after the standard clean-up, from the first on.

        Those that hold no word are left out.

        Raises:
          UserError: a file that is not a treebank (names its line), or no word in any.
        """
        is_empty = True
        for path in self.files:
            for tree in map(cleaned, read_trees(iter_lines(path), str(path))):
                if tree is not None:
                    is_empty = False
                    yield tree
        if is_empty:
            raise UserError(
                f"no tree in {', '.join(map(str, self.files))} holds a word, expected "
                "more than traces"
            )

    def __iter__(self) -> Iterator[Pair]:
        """From the first pair on; errors are those of `trees`."""
        for tree in self.trees():
            yield pair_of(tree, leaves=self.leaves, closing=self.closing)

    @functools.cached_property
    def digest(self) -> str:
        """Of the content of the files, and of how trees become tokens."""
        digests = [file_digest(path).hex() for path in self.files]
        return digest_of(self.leaves, self.closing, digests)


def pair_of(tree: Tree, *, leaves: Leaves, closing: Closing) -> Pair:
    """Words and tokens of a tree, as text."""
    target = linearised(tree, leaves=leaves, closing=closing)
    return sentence_of(word.text for word in words_of(tree)), " ".join(target)


@dataclasses.dataclass(frozen=True)
class Constituents(Pairs):
    """The trees of a treebank, and each constituent of several words as one more.

    So a model meets short examples too, on which it soon learns which word is next, and
    constituents out of their sentences: what a few thousand trees teach well.
    """

    treebank: Treebank

    def __iter__(self) -> Iterator[Pair]:
        """From the first pair on; errors are those of `Treebank.trees`."""
        for tree in self.treebank.trees():
            for part in spans(tree):
                yield pair_of(
                    part, leaves=self.treebank.leaves, closing=self.treebank.closing
                )

    @functools.cached_property
    def digest(self) -> str:
        """Of the treebank, and that its parts are examples."""
        return digest_of("constituents", self.treebank.digest)


@dataclasses.dataclass(frozen=True)
class Mixture(Pairs):
    """Two corpora in turn: `ratio` pairs of the second for each pair of the first.

    It ends when each was read to its end at least once, the smaller again and again.
    """

    first: Pairs
    second: Pairs
    ratio: float

    def __iter__(self) -> Iterator[Pair]:
        """From the first pair on."""
        first, second = _Repeated(self.first), _Repeated(self.second)
        due = 0.0
        while not (first.is_complete and second.is_complete):
            yield next(first)
            due += self.ratio
            while due >= 1:
                yield next(second)
                due -= 1

    @functools.cached_property
    def digest(self) -> str:
        """Of both and of the ratio."""
        return digest_of(self.first.digest, self.second.digest, self.ratio)


class _Repeated:
    """A corpus over and over."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs, self._left = pairs, iter(pairs)
        self._next = next(self._left)
        self.is_complete = False

    def __next__(self) -> Pair:
        pair = self._next
        following = next(self._left, None)
        if following is None:
            self.is_complete = True
            self._left = iter(self._pairs)
            following = next(self._left)
        self._next = following
        return pair


def _files(folder: Path, name: str) -> list[Path]:
    """The files that a name means; see `Treebank.find`."""
    listed = folder / (name if name.endswith(".list") else f"{name}.list")
    if not listed.is_file():
        return _unlisted(folder, name)
    files = []
    for number, line in enumerate(iter_lines(listed), start=1):
        try:
            files += _unlisted(folder, line) if line else []
        except UserError as error:
            raise UserError(f"{listed} line {number}: {error}") from None
    return files


def _unlisted(folder: Path, name: str) -> list[Path]:
    sections = re.fullmatch(r"(\d\d)(?:-(\d\d))?", name)
    if sections and not (folder / name).is_file():
        first, last = int(sections[1]), int(sections[2] or sections[1])
        return [
            file
            for number in range(first, last + 1)
            for file in _in_folder(folder / f"{number:02}")
        ]
    if (folder / name).is_dir():
        return _in_folder(folder / name)
    for suffix in ("", *_SUFFIXES):
        if (path := folder / f"{name}{suffix}").is_file():
            return [path]
    raise UserError(
        f"no file {folder / name}, {name}.mrg, {name}.mrg.gz or {name}.list, and no "
        "such folder: expected trees in brackets there; set --config.data.dir "
        "(evaluate.py: --data_dir) to the folder, and data.train, data.validation and "
        "data.test to names in it"
    )


def _in_folder(folder: Path) -> list[Path]:
    files = [
        path for path in folder.rglob("*") if path.name.lower().endswith(_SUFFIXES)
    ]
    if not files:
        raise UserError(
            f"no .mrg file in {folder}: expected a section of the treebank there"
        )
    return sorted(files)
