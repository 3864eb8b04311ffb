"""Lines of text files, plain or .gz, with errors that name file and line."""

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from transformer_jax.errors import UserError

_BLOCK = 1 << 22  # bytes of a file that are decoded at a time


def iter_lines(
    path: Path, *, strip: str = " \t\r", may_be_blank: bool = False
) -> Iterator[str]:
    r"""The lines of a UTF-8 file, plain or .gz, without the outer characters `strip`.

    Lines end at "\n" or "\r\n" only: U+2028, U+0085, form feeds and their like are
    text, where `str.splitlines` would break a line and shift all that follow it.

    Raises:
      UserError: unreadable, empty, binary, or not UTF-8 (names the line); of blank
        lines only, unless it `may_be_blank`.
    """
    number, has_text = 0, False
    with opened_text(path) as file:
        while content := file.read(_BLOCK):
            content += file.readline()
            lines = decode_lines(content, str(path), strip=strip, first_line=number + 1)
            number += len(lines)
            has_text = has_text or may_be_blank or any(lines)
            yield from lines
    if not has_text:
        kind = "has blank lines only" if number else "is empty"
        raise UserError(f"{path} {kind}, expected text")


@contextlib.contextmanager
def opened_text(path: Path) -> Iterator[BinaryIO]:
    """A file to read, plain or .gz; what that raises becomes one line with its name."""
    opener = gzip.open if path.suffix == ".gz" else open
    with naming_failure(str(path)), opener(path, "rb") as file:
        yield cast(BinaryIO, file)


def read_lines(
    path: Path, *, strip: str = " \t\r", may_be_blank: bool = False
) -> list[str]:
    """The lines of a file; see `iter_lines`."""
    return list(iter_lines(path, strip=strip, may_be_blank=may_be_blank))


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


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file as it is.

    Raises:
      UserError: it cannot be read.
    """
    with naming_failure(str(path)), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
