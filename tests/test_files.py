"""Files are whole, and what is no plain file stays what it is."""

import os
import subprocess
from pathlib import Path

from transformer_jax.files import write_whole


def test_a_pipe_is_written_to_and_a_link_followed(tmp_path: Path) -> None:
    pipe, file, link = (tmp_path / name for name in ("pipe", "file", "link"))
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    write_whole(pipe, b"two\n")
    assert reader.communicate(timeout=60)[0] == b"two\n"
    assert pipe.is_fifo()
    link.symlink_to(file)
    write_whole(link, b"two\n")
    assert file.read_text() == "two\n"
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "pipe"]
