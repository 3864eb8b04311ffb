"""What the commands share: flags, config overrides, one-line errors."""

import argparse
import ast
import hashlib
import importlib.util
import io
import os
import platform
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import flags, logging
from ml_collections import ConfigDict

from transformer_jax.config import (
    DecodingConfig,
    ExperimentConfig,
    freeze,
    nearest,
)
from transformer_jax.errors import UserError
from transformer_jax.files import user_cache

_ERROR_STATUS = 2
_INTERRUPTED_STATUS = 130
_BROKEN_PIPE_STATUS = 141  # 128 + SIGPIPE, as the shell would report it
# Huge pages; large blocks from the heap, grown by 256 MB at a time and never shrunk.
_MALLOC_SETTINGS = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:"
    "glibc.malloc.top_pad=268435456:glibc.malloc.trim_threshold=1099511627776"
)
# Fields of `DecodingConfig` that are flags, and what their help says.
_DECODING_FLAGS = {
    "beam_size": "hypotheses kept at each step; 1 = greedy",
    "n_best": "translations of each sentence, at most beam_size",
    "length_penalty": "alpha of ((5 + length) / 6)^alpha; 0 = none",
    "length_penalty_form": "gnmt, or length for length^alpha",
    "coverage_penalty": "beta of Wu et al. 2016, equation 14; 0 = none",
    "early_stopping": "true: stop when nothing better can come; false: at the limit",
    "min_length": "output tokens before the end is allowed",
    "max_length": "most output tokens, end included; 0 = only the two below",
    "max_length_factor": "most output tokens for each input token",
    "max_extra_length": "and so many more",
    "no_repeat_ngram_size": "no so many tokens in a row occur twice; 0 = off",
    "only_trees": "true: of a parser, only trees over exactly the input's words",
    "sampling": "true: draw n_best translations at random; implied by the next three",
    "sampling_topk": "draw from so many most probable tokens; 0 = all",
    "sampling_topp": "draw from the most probable tokens that sum to this; 1 = all",
    "sampling_temperature": "logits are divided by it; below 1 = less random",
    "batch_tokens": "source positions of a device at once; 0 = by the device",
}
_CPU_DEVICES = 4  # at most: each has its own copy of the parameters


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that names the nearest flag and prints one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raises the mistake as a UserError."""
        raise UserError(f"{message}; see --help")

    def add_translator_flags(self, *, is_ensemble_allowed: bool = False) -> None:
        """Adds the flags of every command that translates with a run."""
        if is_ensemble_allowed:
            self.add_argument(
                "--workdir",
                required=True,
                action="append",
                help="folder of a run or of an exported model; several times: an "
                "ensemble",
            )
            self.add_argument(
                "--ensemble",
                default="probabilities",
                help="what is averaged: probabilities or log_probabilities",
            )
        else:
            self.add_argument("--workdir", required=True, help="folder of the run")
        self.add_argument(
            "--checkpoint", help="latest (the default), best, average or a step"
        )
        kinds = typing.get_type_hints(DecodingConfig)
        for name, shown in _DECODING_FLAGS.items():
            kind = kinds[name] if kinds[name] in (int, float) else str
            self.add_argument(
                f"--{name}", type=kind, help=f"{shown} (default: the config's)"
            )

    def parse(
        self, arguments: Sequence[str], *, takes_config: bool = False
    ) -> tuple[argparse.Namespace, dict[str, str]]:
        """The flags, and the values of --config.KEY=VALUE by key.

        Raises:
          UserError: a flag that does not exist, or a bad value.
        """
        joined = _join_overrides(arguments) if takes_config else list(arguments)
        overrides = {}
        rest = []
        for argument in joined:
            if takes_config and argument.startswith("--config."):
                key, _, value = argument.removeprefix("--config.").partition("=")
                overrides[key] = value
            else:
                rest.append(argument)
        self._refuse_repeated(rest)
        # Before argparse looks: it would rather say what is missing.
        for name, equals, value in (argument.partition("=") for argument in rest):
            if name in self._option_string_actions and equals and not value:
                raise UserError(f"{name} is empty, expected {name}=VALUE")
            if name.startswith("--") and name not in self._option_string_actions:
                known = list(self._option_string_actions)
                if takes_config:
                    known.append("--config.KEY")
                raise UserError(f"no flag {name}{nearest(name, known)}")
        return self.parse_args(rest), overrides

    def _refuse_repeated(self, arguments: Sequence[str]) -> None:
        """Argparse would take the last value of a flag and forget the others."""
        names = [argument.partition("=")[0] for argument in arguments]
        for name, action in self._option_string_actions.items():
            is_list = isinstance(action, argparse._AppendAction)
            if name.startswith("--") and names.count(name) > 1 and not is_list:
                raise UserError(
                    f"{name} is given {names.count(name)} times, expected once"
                )


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuses a value of the flag --`name` that is not one of the choices.

    Raises:
      UserError: naming them.
    """
    if value not in choices:
        raise UserError(f"--{name} is {value}, expected one of {', '.join(choices)}")


def require_writable(path: Path) -> None:
    """Refuses, before long work, a path that could not be written in the end.

    Raises:
      UserError: a folder, or in a folder that is missing or not writable.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, expected a file to write")
    if not path.parent.is_dir():
        raise UserError(f"no folder {path.parent}: make it, or write elsewhere")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"folder {path.parent} cannot be written to: write elsewhere")


def require_output(flags: argparse.Namespace, *inputs: str) -> None:
    """Refuses, before long work, an --output that cannot be written, or is read too.

    Args:
      flags: of the command.
      inputs: names of the flags with what it reads, a path or a list of them each.

    Raises:
      UserError: saying which.
    """
    if not flags.output:
        return
    output = Path(flags.output)
    require_writable(output)
    for name in inputs:
        given = getattr(flags, name)
        for path in given if isinstance(given, list) else [given]:
            if path and all(map(os.path.exists, (path, output))):
                if output.samefile(path):
                    raise UserError(
                        f"--output is the --{name} file {path}: write elsewhere"
                    )


def decoding_changes(flags: argparse.Namespace) -> dict[str, Any]:
    """The fields of `DecodingConfig` that the flags of a translating command change."""
    values = {name: getattr(flags, name) for name in _DECODING_FLAGS}
    values = {name: value for name, value in values.items() if value is not None}
    for name in ("early_stopping", "only_trees", "sampling"):
        if name in values:
            truth = _value(values[name], False)
            if not isinstance(truth, bool):
                raise UserError(f"--{name} is {truth}, expected true or false")
            values[name] = truth
    if any(name.startswith("sampling_") for name in values):
        values.setdefault("sampling", True)
    if values.get("sampling") and values.get("beam_size", 1) > 1:
        raise UserError(
            f"--beam_size={values['beam_size']} and sampling, which has no beam: drop "
            "one of them (--n_best is the number of samples)"
        )
    if "length_penalty_form" in values:
        forms = ("gnmt", "length")
        require_choice("length_penalty_form", values["length_penalty_form"], forms)
    return values


def _join_overrides(arguments: Sequence[str]) -> list[str]:
    """`--config.KEY VALUE` as `--config.KEY=VALUE`."""
    joined: list[str] = []
    pending = ""
    for argument in [*arguments, "--"]:
        if pending and argument.startswith("--"):
            raise UserError(f"{pending} has no value, expected {pending}=VALUE")
        if pending:
            joined.append(f"{pending}={argument}")
            pending = ""
        elif argument.startswith("--config.") and "=" not in argument:
            pending = argument
        else:
            joined.append(argument)
    return joined[:-1]


def load_experiment(path_and_row: str, overrides: dict[str, str]) -> ExperimentConfig:
    """The experiment of a config file, with values from the command line.

    Args:
      path_and_row: "configs/multi30k.py", or with a row, "configs/multi30k.py:tiny".
      overrides: values by dotted key, as text.

    Raises:
      UserError: no such file, key or row, or a bad value.
    """
    name, _, row = path_and_row.partition(":")
    path = Path(name)
    if not path.is_file():
        raise UserError(
            f"no config file {path}, expected a Python file with get_config(), such as "
            "configs/quickstart.py"
        )
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file, expected one with get_config()")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not hasattr(module, "get_config"):
        raise UserError(f"{path} has no get_config(), expected a config file")
    config = module.get_config(row) if row else module.get_config()
    for key, text in overrides.items():
        _override(config, key, text)
    return freeze(config)


def _override(config: ConfigDict, key: str, text: str) -> None:
    """Sets a dotted key to the value that the text means."""
    *groups, last = key.split(".")
    here: Any = config
    for depth, name in enumerate([*groups, last]):
        if not isinstance(here, ConfigDict) or name not in here:
            known = here.keys() if isinstance(here, ConfigDict) else ()
            prefix = "".join(f"{group}." for group in groups[:depth])
            raise UserError(f"no config key {prefix}{name}{nearest(name, known)}")
        if depth < len(groups):
            here = here[name]
    before = here[last]
    if isinstance(before, ConfigDict):
        raise UserError(f"config key {key} is a group, expected --config.{key}.KEY")
    with here.ignore_type():
        here[last] = _value(text, before)


def _value(text: str, before: Any) -> Any:
    """The text as the kind of value that it replaces; else as is, for `freeze`."""
    if isinstance(before, str):
        return text
    if isinstance(before, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(before, tuple):
        return tuple(part.strip(" '\"") for part in text.strip("()").split(",") if part)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def use_huge_pages() -> None:
    """Starts this process anew with the C library's large blocks on huge pages.

    XLA's CPU programs allocate their intermediate arrays anew at each call. With pages
    of 2 MB, kept instead of handed back to the system, that costs far fewer page faults
    (see the README for what it saves). glibc reads these settings at a process's start
    only; a GLIBC_TUNABLES of the user's own is respected, and systems without glibc
    ignore ours.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = _MALLOC_SETTINGS
    os.execv(sys.executable, sys.orig_argv)


def prepare_to_translate() -> None:
    """Sets JAX up for a command that translates; before it is imported.

    A CPU's cores become devices that share the sentences, since one core does a whole
    batch more quickly than two do the halves of each operation. Compiled programs are
    kept in the user's cache folder, so that the next start need not compile them. The
    environment variables that say so are respected where they are set already.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(cores, _CPU_DEVICES)))
    folder = user_cache() / _kind_of_machine()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def _kind_of_machine() -> str:
    """A name for what CPU programs compiled here can run on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        flags = next(line for line in text.splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        flags = platform.processor()
    digest = hashlib.sha256(flags.encode()).hexdigest()[:12]
    return f"{platform.machine()}-{digest}"


def run(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Runs a command with the process's arguments and exits with its status.

    0 = done; 2 = a mistake of the user's, one line on standard error; 130 =
    interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without Unicode gets a question mark for what it cannot show.
            stream.reconfigure(errors="replace")
    if sys.stderr is None:  # closed: what is said there is said to nobody
        sys.stderr = open(os.devnull, "w")
    logging.set_verbosity(logging.WARNING)
    logging.use_absl_handler()
    flags.FLAGS.mark_as_parsed()  # absl's own flags have no part here
    try:
        main(sys.argv[1:])
    except BrokenPipeError:
        # Whoever reads has enough, as `head` does: no error, and nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit_alone(_BROKEN_PIPE_STATUS)
    except (UserError, OSError) as error:
        # An OSError is a full disk, a read-only folder: the system's words, one line.
        print(f"error: {error}", file=sys.stderr)
        _exit_alone(_ERROR_STATUS)
    except RuntimeError as error:
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        print(
            f"error: out of memory ({str(error).splitlines()[0]}): set "
            "training.max_tokens_per_device, lower the batch, or split the model over "
            "more devices (mesh.fsdp); in translation, lower beam_size or batch_tokens",
            file=sys.stderr,
        )
        _exit_alone(_ERROR_STATUS)
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is KeyboardInterrupt:
            # Threads may be at work on the devices: Python's usual end crashes in them.
            _exit_at_once(_INTERRUPTED_STATUS)
        sys.exit(_INTERRUPTED_STATUS)  # all processes stopped together
    sys.exit(0)


def _exit_at_once(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)


def _exit_alone(status: int) -> NoReturn:
    """Ends this process, also where others of its run go on."""
    processes = sys.modules.get("transformer_jax.processes")
    if processes is not None and processes.is_one_of_several():
        # A usual exit would wait for processes that wait for this one.
        _exit_at_once(status)
    sys.exit(status)
