"""Files are whole, and what is no plain file stays what it is."""

import gzip
import os
import subprocess
import time
from pathlib import Path

import pytest

from transformer_jax.files import opened_whole, write_whole


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


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_fails_while_it_is_written_leaves_the_old_file_alone(
    is_there: bool, error: type[BaseException], compressed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    if is_there:
        path.write_bytes(b"old")

    def write_and_fail() -> None:
        with opened_whole(path, compressed=compressed) as file:
            file.write(b"new" * 100_000)
            file.flush()
            assert sorted(os.listdir(tmp_path))[-1] == "file.partial"
            assert path.exists() == is_there
            raise error

    with pytest.raises(error):
        write_and_fail()
    assert os.listdir(tmp_path) == ["file"] * is_there
    assert not is_there or path.read_bytes() == b"old"


def test_what_is_written_takes_the_old_files_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with opened_whole(path) as file:
        for part in (b"new ", b"file"):
            file.write(part)
            assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new file"
    assert os.listdir(tmp_path) == ["file"]


def test_a_compressed_file_is_a_function_of_its_name_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = []
    for seconds in (0, 1e9):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: seconds)
        with opened_whole(tmp_path / "file.gz", compressed=True) as file:
            file.write(b"one\n")
            file.write(b"two\n")
        contents.append((tmp_path / "file.gz").read_bytes())
    assert gzip.decompress(contents[0]) == b"one\ntwo\n"
    assert contents[0] == contents[1]


def test_a_full_device_is_an_error_and_stays(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    (tmp_path / "link").symlink_to(full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "link", b"two\n")
    assert full.is_char_device()
    assert os.listdir(tmp_path) == ["link"]
