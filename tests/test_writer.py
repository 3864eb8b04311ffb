"""Tests of the metrics writer; its files are read back by code of their own."""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue]
)

from transformer_jax.errors import UserError
from transformer_jax.training.writer import MetricsWriter


def read_lines(workdir: Path) -> list[dict[str, float | None]]:
    text = (workdir / "metrics.jsonl").read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def write_lines(workdir: Path, text: str | bytes) -> Path:
    path = workdir / "metrics.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read_events(workdir: Path) -> list[tuple[int, str, float]]:
    """Returns (step, tag, value), with "START" for the mark of a resumed run.

    A record is: length (8 bytes), its checksum (4), the event, its checksum (4).
    """
    events = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        data = path.read_bytes()
        offset = 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            offset += 12 + length + 4
            if event.HasField("session_log"):
                events.append((event.step, "START", 0.0))
            for value in event.summary.value:
                events.append((event.step, value.tag, value.simple_value))
    return events


def test_a_line_is_one_json_object_that_begins_with_its_step(tmp_path):
    with MetricsWriter(tmp_path / "new" / "run", resume_step=0) as writer:
        writer.write(10, {"train/loss": 5.25, "train/learning_rate": 1e-4})
        writer.write(20, {"valid/bleu": 31.5})
    lines = read_lines(tmp_path / "new" / "run")
    assert lines == [
        {"step": 10, "train/loss": 5.25, "train/learning_rate": 1e-4},
        {"step": 20, "valid/bleu": 31.5},
    ]
    assert [next(iter(line)) for line in lines] == ["step", "step"]


def test_a_line_can_be_read_before_the_writer_is_closed(tmp_path):
    with MetricsWriter(tmp_path, resume_step=0) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"train/loss": 1 / step})
            assert [line["step"] for line in read_lines(tmp_path)][-1] == step


def test_a_line_survives_a_process_that_dies_without_closing(tmp_path):
    program = (
        "import os, pathlib, sys\n"
        "from transformer_jax.training.writer import MetricsWriter\n"
        "writer = MetricsWriter(pathlib.Path(sys.argv[1]), resume_step=0)\n"
        "writer.write(7, {'train/loss': 2.5})\n"
        "os._exit(3)\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert (finished.returncode, finished.stderr) == (3, "")
    assert read_lines(tmp_path) == [{"step": 7, "train/loss": 2.5}]


def test_numpy_scalars_are_written_as_numbers(tmp_path):
    with MetricsWriter(tmp_path, resume_step=0) as writer:
        writer.write(
            np.int64(3),  # pyright: ignore[reportArgumentType]
            {"train/loss": np.float32(0.5), "train/tokens": np.int32(25_000)},  # pyright: ignore[reportArgumentType]
        )
    assert read_lines(tmp_path) == [
        {"step": 3, "train/loss": 0.5, "train/tokens": 25_000.0}
    ]


def test_non_finite_metrics_become_null_in_json_and_stay_in_tensorboard(tmp_path):
    with MetricsWriter(tmp_path, resume_step=0) as writer:
        writer.write(5, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    assert read_lines(tmp_path) == [
        {"step": 5, "a": None, "b": None, "c": None, "d": 1}
    ]
    values = {tag: value for _, tag, value in read_events(tmp_path)}
    assert math.isnan(values["a"])
    assert (values["b"], values["c"]) == (math.inf, -math.inf)


def test_a_number_too_large_for_tensorboard_does_not_stop_the_run(tmp_path):
    with MetricsWriter(tmp_path, resume_step=0) as writer:
        writer.write(5, {"valid/perplexity": 1e300})
    assert read_lines(tmp_path) == [{"step": 5, "valid/perplexity": 1e300}]


def test_a_metric_named_step_is_refused(tmp_path):
    with (
        MetricsWriter(tmp_path, resume_step=0) as writer,
        pytest.raises(ValueError, match="named"),
    ):
        writer.write(1, {"step": 2.0})
    assert read_lines(tmp_path) == []


def test_a_negative_resume_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match="-1"):
        MetricsWriter(tmp_path, resume_step=-1)


def test_closing_twice_is_harmless_and_closes_the_file(tmp_path):
    writer = MetricsWriter(tmp_path, resume_step=0)
    writer.write(1, {"train/loss": 2.0})
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(2, {"train/loss": 1.0})
    assert len(read_lines(tmp_path)) == 1


def test_an_error_inside_the_block_passes_through_and_closes_the_file(tmp_path):
    writer = MetricsWriter(tmp_path, resume_step=0)
    with pytest.raises(ZeroDivisionError), writer:
        writer.write(1 // 0, {})
    with pytest.raises(ValueError, match="closed"):
        writer.write(1, {})


def test_resuming_drops_later_lines_and_keeps_the_rest_byte_for_byte(tmp_path):
    kept = '{"step": 10,  "train/loss": 5.5}\n{"step": 20, "train/loss": 4.50}\n'
    path = write_lines(tmp_path, kept + '{"step": 30, "train/loss": 3.5}\n')
    with MetricsWriter(tmp_path, resume_step=20) as writer:
        assert path.read_text() == kept
        writer.write(30, {"train/loss": 3.25})
    assert path.read_text() == kept + '{"step": 30, "train/loss": 3.25}\n'
    assert not (tmp_path / "metrics.jsonl.partial").exists()


def test_starting_again_from_nothing_drops_every_line(tmp_path):
    write_lines(tmp_path, '{"step": 0, "valid/loss": 9.0}\n{"step": 10}\nnot json\n')
    with MetricsWriter(tmp_path, resume_step=0):
        assert read_lines(tmp_path) == []


@pytest.mark.parametrize(
    "torn",
    ["{", '{"step": 2', '{"step": 20, "train/lo', '"step"', "17", b"\xc3", b"\0" * 30],
)
def test_a_line_cut_short_by_a_crash_is_dropped(tmp_path, torn):
    torn = torn.encode() if isinstance(torn, str) else torn
    write_lines(tmp_path, b'{"step": 10, "train/loss": 5.5}\n' + torn)
    with MetricsWriter(tmp_path, resume_step=20) as writer:
        writer.write(21, {"train/loss": 4.5})
    assert [line["step"] for line in read_lines(tmp_path)] == [10, 21]


def test_a_complete_line_that_lacks_only_its_end_is_kept(tmp_path):
    write_lines(tmp_path, '{"step": 10}\n{"step": 20, "train/loss": 4.5}')
    with MetricsWriter(tmp_path, resume_step=20) as writer:
        writer.write(30, {"train/loss": 3.5})
    assert [line["step"] for line in read_lines(tmp_path)] == [10, 20, 30]


@pytest.mark.parametrize("bad", ["oops", "[]", "{}", '{"step": "ten"}', ""])
def test_a_damaged_line_in_the_middle_is_named_and_nothing_is_lost(tmp_path, bad):
    path = write_lines(tmp_path, f'{{"step": 10}}\n{bad}\n{{"step": 20}}\n')
    before = path.read_bytes()
    with pytest.raises(UserError, match="line 2"):
        MetricsWriter(tmp_path, resume_step=20)
    assert path.read_bytes() == before


def test_a_crash_before_the_file_is_replaced_loses_nothing(tmp_path, monkeypatch):
    path = write_lines(tmp_path, '{"step": 10}\n{"step": 20}\n')
    before = path.read_bytes()

    def crash(*_: object) -> None:
        raise OSError("crash")

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(OSError, match="crash"):
        MetricsWriter(tmp_path, resume_step=10)
    assert path.read_bytes() == before


def test_tensorboard_holds_the_same_numbers(tmp_path):
    with MetricsWriter(tmp_path, resume_step=0) as writer:
        writer.write(10, {"train/loss": 5.25, "valid/bleu": 31.5})
        writer.write(20, {"train/loss": 4.25})
    assert read_events(tmp_path) == [
        (0, "START", 0.0),
        (10, "train/loss", 5.25),
        (10, "valid/bleu", 31.5),
        (20, "train/loss", 4.25),
    ]


def test_resuming_marks_the_first_step_that_tensorboard_is_to_hide(tmp_path):
    with MetricsWriter(tmp_path, resume_step=0) as writer:
        writer.write(10, {"train/loss": 5.0})
        writer.write(20, {"train/loss": 4.0})
    with MetricsWriter(tmp_path, resume_step=10) as writer:
        writer.write(20, {"train/loss": 4.5})
    assert read_events(tmp_path) == [
        (0, "START", 0.0),
        (10, "train/loss", 5.0),
        (20, "train/loss", 4.0),
        (11, "START", 0.0),  # events from step 11 on, written before, are hidden
        (20, "train/loss", 4.5),
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_clear_error(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cannot write metrics to .*No space left"):
        with MetricsWriter(tmp_path, resume_step=0) as writer:
            writer.write(1, {"train/loss": 2.0})
