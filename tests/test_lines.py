"""Lines of text in windows: of files all at once, of pipes as they come."""

import contextlib
import gzip
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from transformer_jax.commands import lines
from transformer_jax.commands.lines import Input, converse, opened_output, stream
from transformer_jax.errors import UserError


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_MOST_LINES", 3)
    monkeypatch.setattr(lines, "_MOST_BYTES", 20)


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryIO]:
    """Standard input is a pipe; what to write to it with."""
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, encoding="utf-8") as stdin,
        contextlib.closing(os.fdopen(writing, "wb", buffering=0)) as end,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        yield end


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# Files


@pytest.mark.parametrize("name", ["text", "text.gz"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"\n", [""]),
        (b"\n\n a \n\t\n", ["", "", "a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (
            "a\u2028b\u0085c\x0bd\n\u3000é\n".encode(),
            ["a\u2028b\u0085c\x0bd", "\u3000é"],
        ),
        (b"1\n2\n3\n4\n5\n6\n7\n8\n9", list("123456789")),
        (b"long " * 100 + b"\nb\n", ["long " * 99 + "long", "b"]),
    ],
)
@pytest.mark.usefixtures("small_windows")
def test_a_file_is_its_lines_and_as_many_as_are_counted(
    name: str, content: bytes, expected: list[str], tmp_path: Path
) -> None:
    source = Input(str(written(tmp_path / name, content)))
    windows = list(source.windows())
    assert [line for window in windows for line in window] == expected
    assert source.count() == len(expected)
    assert all(windows)
    assert not source.is_terminal
    assert list(source.windows()) == windows  # a file can be read twice


@pytest.mark.usefixtures("small_windows")
def test_a_window_has_no_more_lines_and_bytes_than_it_may(tmp_path: Path) -> None:
    content = b"1\n2\n3\n4\n" + b"a line of 19 bytes\n" * 3 + b"b" * 50 + b"\nc\n"
    windows = list(Input(str(written(tmp_path / "text", content))).windows())
    long = "a line of 19 bytes"
    assert windows == [["1", "2", "3"], ["4", long], [long, long], ["b" * 50], ["c"]]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"\xe4", ["not UTF-8", "0xe4", "iconv"]),
        (b"\xc3", ["not UTF-8", "0xc3"]),
        (b"\xed\xa0\x80", ["not UTF-8"]),  # half of a surrogate pair
        (b"b\0", ["zero byte", "UTF-16"]),
        (b"\xef\xbb\xbf\0", ["zero byte"]),
    ],
)
@pytest.mark.parametrize("number", [1, 3, 4, 6, 11])
@pytest.mark.usefixtures("small_windows")
def test_bad_text_is_named_by_its_line_in_any_window(
    number: int, bad: bytes, words: list[str], tmp_path: Path
) -> None:
    content = [b"good"] * 12
    content[number - 1] = bad
    path = written(tmp_path / "text", b"\n".join(content))
    with pytest.raises(UserError, match=f"text line {number} ") as refusal:
        list(Input(str(path)).windows())
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.usefixtures("small_windows")
def test_only_the_first_lines_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "text", b"\xef\xbb\xbfa\n" * 4)
    (first, second) = Input(str(path)).windows()
    assert first + second == ["a", "\ufeffa", "\ufeffa", "\ufeffa"]


def test_what_is_no_text_to_read_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("empty", "empty.gz"):
        with pytest.raises(UserError, match=f"{name} is empty"):
            Input(str(written(tmp_path / name, b"")))
    (tmp_path / "plain.gz").write_bytes(b"plain\n")
    for path in (tmp_path / "none", tmp_path, tmp_path / "plain.gz"):
        with pytest.raises(UserError, match=f"cannot read {path}: "):
            Input(str(path))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        Input(None)


@pytest.mark.parametrize("cut", [4, 9, 300])
def test_a_cut_gzip_file_is_refused_while_it_is_read(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    content = "".join(f"line {number}\n" for number in range(1000)).encode()
    path.write_bytes(gzip.compress(content)[:-cut])
    source = Input(str(path))
    with pytest.raises(UserError, match=f"cannot read {path}: "):
        list(source.windows())
    with pytest.raises(UserError, match=f"cannot read {path}: "):
        source.count()


# Pipes


def test_a_slow_pipe_gives_what_has_come(piped: BinaryIO) -> None:
    source = Input(None)
    assert source.count() is None
    windows = source.windows()
    piped.write(b"\xef\xbb\xbfa\nb")  # b's line has not ended
    assert next(windows) == ["a"]
    piped.write(b"c\n")
    assert next(windows) == ["bc"]
    piped.write(b"d")
    piped.close()
    assert next(windows) == ["d"]
    assert next(windows, None) is None


def test_lines_of_a_pipe_gather_while_the_caller_works(piped: BinaryIO) -> None:
    windows = Input(None).windows()
    piped.write(b"1\n")
    assert next(windows) == ["1"]
    piped.write(b"2\n3\n4\n")
    time.sleep(0.2)
    assert next(windows) == ["2", "3", "4"]
    piped.close()
    assert list(windows) == []


def test_an_empty_pipe_has_no_lines(piped: BinaryIO) -> None:
    piped.close()
    assert list(Input(None).windows()) == []


@pytest.mark.usefixtures("small_windows")
def test_bad_text_in_a_pipe_is_named_by_its_line(piped: BinaryIO) -> None:
    windows = Input(None).windows()
    for number in range(1, 5):
        piped.write(b"good\n")
        assert next(windows) == ["good"], number
    piped.write(b"\xff\n")
    with pytest.raises(UserError, match="standard input line 5 is not UTF-8"):
        next(windows)


def test_a_named_pipe_is_read_once_and_not_looked_into(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write(content: bytes) -> threading.Thread:
        thread = threading.Thread(target=path.write_bytes, args=(content,))
        thread.start()
        return thread

    looked = write(b"")  # each opening of a pipe waits for a writer
    source = Input(str(path))
    looked.join()
    assert source.count() is None
    writer = write(b"a\nb\n")
    assert [line for window in source.windows() for line in window] == ["a", "b"]
    writer.join()


class Endless:
    """Lines without an end; counts those that were taken."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.taken += 1
            yield self.line


@pytest.mark.parametrize(
    ("line", "most"),
    [(b"a\n", 3), (b"nine byte\n", 2), (b"longer than a whole window\n", 1)],
)
@pytest.mark.usefixtures("small_windows")
def test_a_fast_pipe_is_read_no_further_than_a_window(line: bytes, most: int) -> None:
    endless = Endless(line)
    windows = iter(lines._Arriving(endless, "endless"))
    total = 0
    for _ in range(5):
        window = next(windows)
        assert set(window) == {line}
        assert 1 <= len(window) <= most
        total += len(window)
        most_taken = total + most + 1  # one is in the reader's hand until there is room
        wait_for(lambda most_taken=most_taken: endless.taken == most_taken)
        time.sleep(0.02)
        assert endless.taken == most_taken


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), EOFError("cut")])
def test_an_error_of_the_reader_comes_after_the_lines_before_it(
    error: Exception, tmp_path: Path
) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a\n"
        yield b"b\n"
        raise error

    source = Input(str(written(tmp_path / "text", b"a\n")))
    windows = iter(lines._Arriving(failing(), source.name))
    come: list[bytes] = []
    while len(come) < 2:
        come.extend(next(windows))
    assert come == [b"a\n", b"b\n"]
    with pytest.raises(UserError, match=f"cannot read {source.name}: "):
        next(windows)


# Output


def test_an_output_is_there_when_all_is_written(tmp_path: Path) -> None:
    for name, read in (("out", Path.read_bytes), ("out.gz", gunzipped)):
        path = tmp_path / name
        with opened_output(str(path)) as file:
            file.write(b"a\n")
            file.flush()
            assert not path.exists()
            file.write(b"b\n")
        assert read(path) == b"a\nb\n"
    assert sorted(os.listdir(tmp_path)) == ["out", "out.gz"]


def gunzipped(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def test_without_a_path_standard_output_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    with opened_output(None) as file:
        file.write(b"a\n")
    assert stdout.buffer.getvalue() == b"a\n"
    assert not stdout.closed


@pytest.mark.usefixtures("small_windows")
def test_each_window_is_answered_before_the_next_is_read(
    piped: BinaryIO, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = Input(None)
    done: list[int] = []

    def answers(window: list[str], progress: Callable[[int], object]) -> list[str]:
        progress(len(window))
        done.append(len(window))
        if len(done) == 3:
            piped.close()
        else:
            piped.write(b"again\n")
        return [line.upper() for line in window] + ["--"]

    piped.write(b"once\n")
    stream(source, source.windows(), answers, output=None, unit="line")
    assert done == [1, 1, 1]
    out, err = capfd.readouterr()
    assert out == "ONCE\n--\nAGAIN\n--\nAGAIN\n--\n"
    assert err == ""  # no progress bar but at a terminal


# A conversation


def test_a_conversation_answers_each_line_and_outlives_bad_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard, terminal = os.openpty()
    warm = threading.Event()

    def answers(lines: list[str], number: int) -> Iterator[str]:
        assert warm.is_set()
        (line,) = lines
        yield f"{number} {line}"
        if line == "bad":
            raise UserError("no such word")
        yield "whole"

    with (
        os.fdopen(terminal, encoding="utf-8") as stdin,
        os.fdopen(keyboard, "wb", buffering=0) as keys,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert Input(None).is_terminal
        keys.write("ä dog\nbad\n".encode() + b"\xff\n\n\x04")
        converse("a -> b", answers, warm_up=warm.set)
    out, err = capsys.readouterr()
    assert out == "1 ä dog\nwhole\n2 bad\n4 \nwhole\n"
    assert err.splitlines() == [
        "a -> b; a sentence a line, Ctrl-D ends",
        "> > error: no such word",
        "> error: the sentence line 1 is not UTF-8 (byte 0xff): convert it, for "
        "example with iconv -f latin1 -t utf-8",
        "> > ",
    ]
