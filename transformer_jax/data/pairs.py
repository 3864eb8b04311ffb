"""What a corpus is made of: pairs of raw text."""

import abc
import functools
import hashlib
from collections.abc import Iterator, Sequence

Pair = tuple[str, str]  # source text, target text


class Pairs(abc.ABC):
    """Raw text pairs that can be read again and again; some may have an empty side."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Pair]:
        """From the first pair on.

        Raises:
          UserError: text that cannot be read.
        """

    @functools.cached_property
    @abc.abstractmethod
    def digest(self) -> str:
        """Of the content: equal only for the same pairs in the same order."""


class ListedPairs(Pairs):
    """Pairs that are in memory."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[Pair]:
        """From the first pair on."""
        return iter(self._pairs)

    @functools.cached_property
    def digest(self) -> str:
        """Of the content."""
        content = hashlib.sha256()
        for pair in self._pairs:
            content.update(as_line(pair))
        return content.hexdigest()


def as_line(pair: Pair) -> bytes:
    """A pair as bytes: no text has a line end, and most have no tab."""
    return "\t".join(pair).encode() + b"\n"
