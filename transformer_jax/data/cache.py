"""What is made of a corpus once and used again: a folder that can be deleted freely.

Names in it are digests of what it was made from, so nothing in it is ever out of date;
each file is verified when it is read, and made anew if it is damaged.
"""

import contextlib
import fcntl
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from transformer_jax.config import DataConfig
from transformer_jax.data.progress import Say
from transformer_jax.errors import UserError
from transformer_jax.files import user_cache, write_whole

_DIGEST_BYTES = 32


def cache_folder(config: DataConfig) -> Path:
    """`data.cache_dir`, or the user's own."""
    return Path(config.cache_dir or user_cache() / "text")


def digest_of(*parts: object) -> str:
    """A name that is equal only for equal parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def cached(path: Path, make: Callable[[], bytes], say: Say) -> bytes:
    """The content of a file of the cache, which `make` gives the first time."""
    content = _read(path)
    if content is None:
        with making(path, say):
            content = _read(path)  # another process may have been faster
            if content is None:
                content = make()
                digest = hashlib.sha256(content).digest()
                write_whole(path, digest + content)
    return content


def _read(path: Path) -> bytes | None:
    """What was written, or None where nothing was, or where it is damaged."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    digest, content = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


@contextlib.contextmanager
def making(path: Path, say: Say) -> Iterator[None]:
    """A block that makes `path`, which one process at a time is in; the others wait.

    The lock is the system's, of a file beside `path`: it ends with the process.

    Raises:
      UserError: the folder cannot be made or written to, or is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another process, which prepares {path}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"cannot keep prepared text in {path.parent} ({reason}): free or mend it, "
            "or give another folder as --config.data.cache_dir=DIR"
        ) from error
