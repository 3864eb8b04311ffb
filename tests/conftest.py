"""Before any test: simulated devices, and every silent mistake an error.

Arrays are checked against the shapes of the package's signatures, by beartype.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Programs compile in half the time and run half as fast: most run a few times only.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

# Many tests compile the same programs, in this process and in those that they start.
_compiled = tempfile.mkdtemp(prefix="compiled-")
atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
jax.config.update("jax_compilation_cache_dir", _compiled)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# Prepared text of the tests' own.
_text = tempfile.mkdtemp(prefix="text-")
atexit.register(shutil.rmtree, _text, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = _text

# The rooms that compute with arrays. Not training.step, whose state also holds shapes
# and shardings, and not checkpointing, where beartype refuses Orbax's protocols.
_ROOMS = ("models", "decoding", "training.loss", "training.optimizer")
install_import_hook(
    [f"transformer_jax.{room}" for room in _ROOMS], "beartype.beartype"
).__enter__()

from transformer_jax import __main__ as package_main  # noqa: E402 checked as all are
from transformer_jax import command_line  # noqa: E402

Main = Callable[[Sequence[str]], None]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: its exit status, stdout and stderr."""

    def run(main: Main, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["command", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            command_line.run(main)
        out, err = capfd.readouterr()
        assert isinstance(exit_info.value.code, int)
        return exit_info.value.code, out, err

    return run


@pytest.fixture
def refusal(command: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command that must refuse: its one line of error."""

    def run(main: Main, *arguments: str) -> str:
        status, out, err = command(main, *arguments)
        assert status == 2
        assert out == ""
        assert "Traceback" not in err
        *before, last = err.splitlines()
        assert last.startswith("error: ")
        assert not any(line.startswith("error") for line in before)
        return last

    return run


@pytest.fixture
def output_of(command: Callable[..., Any]) -> Callable[..., list[str]]:
    """Runs a command that must succeed: its lines."""

    def run(*arguments: str) -> list[str]:
        status, out, err = command(package_main.main, *arguments)
        assert status == 0, err
        assert out.endswith("\n")
        return out.removesuffix("\n").split("\n")

    return run
