"""Files on disk, written whole or not at all."""

import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast


def user_cache() -> Path:
    """The folder of what can be made again: in XDG_CACHE_HOME, or in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "transformer_jax"


def write_whole(path: Path, content: bytes) -> None:
    """Puts `content` in the place of a file in one step; a crash leaves the old one.

    A link is followed; a device or a pipe is written to as it stands.
    """
    with opened_whole(path) as file:
        file.write(content)


@contextlib.contextmanager
def opened_whole(path: Path, *, compressed: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which takes its place at the end of the block.

    Until then, and for good if the block raises, what was there stays. A link is
    followed; a device or a pipe is written to as it stands.

    Args:
      path: where it will be.
      compressed: by gzip.
    """
    path = path.resolve()
    is_plain = not path.exists() or path.is_file()
    written = path.with_name(f"{path.name}.partial") if is_plain else path
    try:
        with written.open("wb") as file:
            if compressed:
                with gzip.GzipFile(path.name, "wb", fileobj=file, mtime=0) as zipped:
                    yield cast(BinaryIO, zipped)
            else:
                yield file
            if is_plain:
                file.flush()
                os.fsync(file.fileno())
        if is_plain:
            os.replace(written, path)
    except BaseException:
        if is_plain:
            written.unlink(missing_ok=True)
        raise
