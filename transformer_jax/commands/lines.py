"""Lines of text that come and go while they are worked on, in constant memory."""

import collections
import contextlib
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from transformer_jax.data.text_files import decode_lines, naming_failure, opened_text
from transformer_jax.errors import UserError
from transformer_jax.files import opened_whole

FORMATS = ("text", "jsonl", "tsv")  # of what is written
# What is read before it is worked on: enough to sort by length, little to keep.
_MOST_LINES = 2048
_MOST_BYTES = 4 << 20


class Input:
    """Lines of a file, plain or .gz, or of standard input."""

    def __init__(self, path: str | None) -> None:
        """Looks whether it is there; `None` is standard input.

        Raises:
          UserError: no such file, empty, or standard input is closed.
        """
        self.name = path or "standard input"
        self.path = path
        if path is None:
            if sys.stdin is None:
                raise UserError("standard input is closed: give --input=FILE or a pipe")
            return
        with self._opened() as file:
            # A pipe is not looked into: what is read of it is gone.
            if Path(path).is_file() and not file.read(1):
                raise UserError(f"{path} is empty, expected one sentence a line")

    @property
    def is_terminal(self) -> bool:
        """Whether somebody types the lines."""
        return self.path is None and sys.stdin.isatty()

    def count(self) -> int | None:
        """The number of lines, where they can be read twice."""
        if self.path is None or not Path(self.path).is_file():
            return None
        with self._opened() as file:
            number, last = 0, b"\n"
            while chunk := file.read(1 << 20):
                number, last = number + chunk.count(b"\n"), chunk
            return number + (not last.endswith(b"\n"))

    def windows(self, *, strip: str = " \t\r") -> Iterator[list[str]]:
        """Lists of lines, decoded and without the outer characters `strip`.

        A file is read in large parts. Of a pipe, each list is what has come by then, so
        that nobody waits for lines that are not there yet.

        Raises:
          UserError: binary, or not UTF-8 (names the line).
        """
        first = 1
        with self._opened() as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            parts: Iterable[list[bytes]] = _parts(file)
            if not is_file:
                parts = _Arriving(_read_lines(file.fileno()), self.name)
            for lines in parts:
                content = b"".join(lines)
                yield decode_lines(content, self.name, strip=strip, first_line=first)
                first += len(lines)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.path is None:
            yield sys.stdin.buffer
            return
        with opened_text(Path(self.path)) as file:
            yield file


def paired(first: Input, second: Input) -> Iterator[tuple[list[str], list[str]]]:
    """Windows of one input with the lines of another beside them.

    Raises:
      UserError: the other has fewer lines, or more.
    """
    given = (line for lines in second.windows() for line in lines)
    for lines in first.windows():
        beside = [line for _, line in zip(lines, given, strict=False)]
        if len(beside) < len(lines):
            raise UserError(
                f"{second.name} has fewer lines than {first.name}, expected as many"
            )
        yield lines, beside
    if next(given, None) is not None:
        raise UserError(
            f"{second.name} has more lines than {first.name}, expected as many"
        )


def _read_lines(descriptor: int) -> Iterator[bytes]:
    """Lines as they come, past Python's buffer.

    A thread that waits in a buffered read holds its lock, and Python ends with a crash
    where it finds one held.
    """
    begun: list[bytes] = []  # of a line whose end has not come
    while chunk := os.read(descriptor, 1 << 16):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*begun, line, b"\n"])
            begun = []
        if rest:
            begun.append(rest)
    if begun:
        yield b"".join(begun)


def _parts(file: BinaryIO) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for line in file:
        lines.append(line)
        size += len(line)
        if len(lines) >= _MOST_LINES or size >= _MOST_BYTES:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


class _Arriving:
    """Reads on another thread; each iteration gives all that has come so far."""

    def __init__(self, lines: Iterable[bytes], name: str) -> None:
        self._lines, self._name = lines, name
        self._come: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._end: BaseException | None = None
        self._changed = threading.Condition()

    def _read(self) -> None:
        end: BaseException = StopIteration()
        try:
            with naming_failure(self._name):
                for line in self._lines:
                    with self._changed:
                        self._changed.wait_for(self._has_room)
                        self._come.append(line)
                        self._size += len(line)
                        self._changed.notify_all()
        except UserError as error:
            end = error
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._come) < _MOST_LINES and self._size < _MOST_BYTES

    def __iter__(self) -> Iterator[list[bytes]]:
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._come or self._end)
                lines = list(self._come)
                self._come.clear()
                self._size = 0
                self._changed.notify_all()
            if lines:
                yield lines
            elif isinstance(self._end, UserError):
                raise self._end
            else:
                return


@contextlib.contextmanager
def opened_output(path: str | None) -> Iterator[BinaryIO]:
    """Standard output, or a file, plain or .gz, that is there when all is written."""
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed: give --output=FILE")
        yield sys.stdout.buffer
        sys.stdout.flush()
    else:
        with opened_whole(Path(path), compressed=path.endswith(".gz")) as file:
            yield file
