"""What is made of a corpus once and used again: a folder that can be deleted freely.

Names in it are digests of what it was made from, so nothing in it is ever out of date.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from transformer_jax.config import DataConfig
from transformer_jax.errors import UserError
from transformer_jax.files import write_whole


def cache_folder(config: DataConfig) -> Path:
    """`data.cache_dir`, or the user's own; made if it is not there.

    Raises:
      UserError: it cannot be made or written to.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(config.cache_dir or Path(home) / "transformer_jax" / "text")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(0, "not writable")
    except OSError as error:
        raise UserError(
            f"cannot keep prepared text in {folder} ({error.strerror}): give another "
            "folder as --config.data.cache_dir=DIR"
        ) from error
    return folder


def cached(config: DataConfig, name: str, make: Callable[[], bytes]) -> bytes:
    """The content of a file in the cache, which `make` gives the first time."""
    path = cache_folder(config) / name
    with making(path):
        if not path.exists():
            write_whole(path, make())
        return path.read_bytes()


@contextlib.contextmanager
def making(path: Path) -> Iterator[None]:
    """A block that one process at a time is in; the others wait for it.

    The lock is the system's, of a file beside `path`: it ends with the process.
    """
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
