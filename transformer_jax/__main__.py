"""python -m transformer_jax COMMAND: translate, benchmark, compile."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from transformer_jax.command_line import (
    Parser,
    decoding_changes,
    load_experiment,
    require_writable,
    run,
    use_huge_pages,
)
from transformer_jax.config import nearest
from transformer_jax.errors import UserError
from transformer_jax.files import write_whole


def translate(arguments: Sequence[str]) -> None:
    """Reads sentences, one a line, and writes as many lines, in order."""
    parser = Parser(
        prog="python -m transformer_jax translate",
        description="Translates sentences, one a line.",
    )
    parser.add_translator_flags()
    parser.add_argument("--input", help="UTF-8 text, plain or .gz (default: stdin)")
    parser.add_argument("--output", help="default: stdout")
    flags, _ = parser.parse(arguments)
    if flags.output:
        require_writable(Path(flags.output))
    both = [Path(name) for name in (flags.input, flags.output) if name]
    if len(both) == 2 and all(map(Path.exists, both)) and os.path.samefile(*both):
        raise UserError(f"--output is the --input file {flags.input}: write elsewhere")
    if not flags.input and sys.stdin is None:
        raise UserError("standard input is closed: give --input=FILE or a pipe")

    from transformer_jax.data.sources import decode_lines, read_lines
    from transformer_jax.translation import Translator

    translator = Translator.from_workdir(flags.workdir, flags.checkpoint)
    translator = translator.with_decoding(**decoding_changes(flags))
    if flags.input:
        lines = read_lines(Path(flags.input))
    else:
        content = sys.stdin.buffer.read()
        lines = decode_lines(content, "standard input") if content else []
    with tqdm(
        total=len(lines), unit="sentence", disable=not sys.stderr.isatty()
    ) as bar:
        outputs = translator.translate(lines, progress=bar.update)
    text = "".join(f"{output}\n" for output in outputs).encode()
    if flags.output:
        write_whole(Path(flags.output), text)
    else:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()


def benchmark(arguments: Sequence[str]) -> None:
    """Prints the speed of a training step beside the machine's matmul rate."""
    parser = Parser(
        prog="python -m transformer_jax benchmark",
        description="Times the training step of a config on random tokens.",
    )
    parser.add_argument("--config", required=True, help="config file, or FILE.py:ROW")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=32, help="tokens of each side")
    parser.add_argument("--steps", type=int, default=10)
    flags, overrides = parser.parse(arguments, takes_config=True)
    for name in ("rows", "length", "steps"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} is {getattr(flags, name)}, expected 1 or more")
    config = load_experiment(flags.config, overrides)

    from transformer_jax.benchmark import benchmark_training

    report = benchmark_training(
        config, rows=flags.rows, length=flags.length, steps=flags.steps
    )
    print(report.lines())


def compile_for_chips(arguments: Sequence[str]) -> None:
    """Prints what the programs of a config need on chips that are not here."""
    parser = Parser(
        prog="python -m transformer_jax compile",
        description="Compiles the training step and the beam search of a config for "
        "TPUs or GPUs without having one.",
    )
    parser.add_argument("--config", required=True, help="config file, or FILE.py:ROW")
    parser.add_argument(
        "--topology",
        required=True,
        action="append",
        help="v5e:2x4, v5p:2x2x1, v6e:2x4 or h200:8; may be given several times",
    )
    flags, overrides = parser.parse(arguments, takes_config=True)
    config = load_experiment(flags.config, overrides)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX looks for devices of its own

    from transformer_jax.compilation import Topology, compile_programs

    for topology in [Topology.parse(text) for text in flags.topology]:
        for report in compile_programs(config, topology):
            print(report.lines(), end="\n\n", flush=True)


_COMMANDS = {
    "translate": translate,
    "benchmark": benchmark,
    "compile": compile_for_chips,
}


def main(arguments: Sequence[str]) -> None:
    """Hands the arguments to the named command."""
    usage = f"usage: python -m transformer_jax {{{','.join(_COMMANDS)}}} --help"
    if arguments and arguments[0] in ("-h", "--help"):
        print(usage)
        return
    if not arguments:
        raise UserError(f"no command; {usage}")
    command, *rest = arguments
    if command not in _COMMANDS:
        raise UserError(f"no command {command}{nearest(command, _COMMANDS)}")
    _COMMANDS[command](rest)


if __name__ == "__main__":
    use_huge_pages()
    run(main)
