"""python -m transformer_jax COMMAND."""

import sys
from collections.abc import Sequence

from transformer_jax.command_line import prepare_to_translate, run, use_huge_pages
from transformer_jax.commands.benchmark import benchmark
from transformer_jax.commands.compile import compile_for_chips
from transformer_jax.commands.evaluate_files import evaluate_files
from transformer_jax.commands.explain import explain
from transformer_jax.commands.export_model import export_model
from transformer_jax.commands.parse import parse
from transformer_jax.commands.prepare import prepare
from transformer_jax.commands.prepare_tfds import prepare_tfds
from transformer_jax.commands.reproduce import reproduce
from transformer_jax.commands.score import score
from transformer_jax.commands.translate import translate
from transformer_jax.config import nearest
from transformer_jax.errors import UserError

_COMMANDS = {
    "translate": translate,
    "parse": parse,
    "score": score,
    "evaluate-files": evaluate_files,
    "export-model": export_model,
    "prepare-tfds": prepare_tfds,
    "prepare": prepare,
    "benchmark": benchmark,
    "compile": compile_for_chips,
    "reproduce": reproduce,
    "explain": explain,
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
    if sys.argv[1:2] in (["translate"], ["parse"], ["score"], ["reproduce"]):
        prepare_to_translate()
    run(main)
