"""python -m transformer_jax parse."""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from transformer_jax.command_line import Parser, require_choice, require_output
from transformer_jax.commands.lines import Input, converse, stream, warn
from transformer_jax.errors import UserError
from transformer_jax.parsing.drawing import drawn
from transformer_jax.parsing.trees import one_line

if TYPE_CHECKING:
    from transformer_jax.parser import Parse
    from transformer_jax.translation import Problems

_BRANCHES = "─│┌┐┬┴┼├└→"  # what a drawing is made of where it can be shown
# A last word that would be two in a treebank.
_GLUED = re.compile(r"\w[.?!]$")
_PROBLEMS = {
    "cut": "are longer than the model was trained on: cut into parts that were parsed "
    "by themselves and stand side by side under TOP",
    "repaired": "have a repaired tree: the model's own tokens were no tree over the "
    "words (--only_trees=true searches among such alone)",
    "limit": "have tokens cut off at their limit (--max_length, --max_extra_length)",
}


def parse(arguments: Sequence[str]) -> None:
    """Reads tokenised sentences, one a line, and writes their trees, in order."""
    flags, _ = _parser().parse(arguments)
    _require_consistent(flags)
    source = Input(flags.input)
    if source.is_terminal and flags.output:
        raise UserError("--output does not go with a conversation: give --input=FILE")
    kind = flags.format or "text"
    if flags.draw or (source.is_terminal and not flags.format):
        kind = "drawing"
    is_ascii = not flags.output and not _can_be_shown(_BRANCHES)

    from transformer_jax.commands.models import load_translator
    from transformer_jax.parser import TreeParser
    from transformer_jax.translation import Problems

    parser = TreeParser(load_translator(flags))

    def answers(
        lines: list[str],
        problems: Problems,
        first_number: int,
        progress: Callable[[int], object] = lambda _: None,
    ) -> Iterator[str]:
        parses = parser.parse([line.split() for line in lines], progress=progress)
        for number, each in enumerate(parses, start=first_number):
            problems.add(
                each.translation,
                repaired=not each.is_whole,
                glued=any(map(_GLUED.search, each.words[-1:])),
            )
            yield _shown(each, number, kind, is_ascii)

    def typed(lines: list[str], number: int) -> Iterator[str]:
        problems = Problems(_PROBLEMS)
        yield from answers(lines, problems, number)
        warn(*_told(problems))

    if source.is_terminal:
        converse(
            "words and signs with spaces between -> tree",
            typed,
            warm_up=lambda: parser.parse([["a"]]),
        )
        return
    problems = Problems(_PROBLEMS)
    stream(
        source,
        source.windows(),
        lambda window, progress: answers(
            window, problems, problems.num_lines + 1, progress
        ),
        output=flags.output,
        unit="sentence",
    )
    warn(*_told(problems))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m transformer_jax parse",
        description="Writes the tree of each line, whose words are separated by white "
        "space, and signs are words: The dog barked . At a terminal, draws each as it "
        "is typed.",
    )
    parser.add_translator_flags(is_ensemble_allowed=True)
    parser.add_argument("--input", help="UTF-8 text, plain or .gz (default: stdin)")
    parser.add_argument("--output", help="plain or .gz (default: stdout)")
    parser.add_argument(
        "--format",
        help="text: the tree in brackets, a line each (the default); jsonl: an object "
        "a line with all that is known",
    )
    parser.add_argument(
        "--draw", action="store_true", help="draw each tree, a blank line after it"
    )
    return parser


def _require_consistent(flags: argparse.Namespace) -> None:
    """Refuses, before long work, what cannot be meant."""
    if flags.format:
        require_choice("format", flags.format, ("text", "jsonl"))
    if flags.format and flags.draw:
        raise UserError("--format and --draw are both given: drop one")
    if flags.n_best and flags.n_best > 1:
        raise UserError(
            f"--n_best is {flags.n_best}, expected 1: the best tree is what is written"
        )
    require_output(flags, "input")


def _shown(
    parse: "Parse",
    number: int,
    kind: Literal["text", "drawing", "jsonl"],
    is_ascii: bool,
) -> str:
    """The line that is written for a parse; of a drawing, several and a blank one."""
    if kind == "text":
        return one_line(parse.tree) if parse.tree else ""
    if kind == "drawing":
        width = shutil.get_terminal_size().columns
        picture = drawn(parse.tree, width, ascii=is_ascii) if parse.tree else ""
        return f"{picture}\n" if picture else ""
    best = next(iter(parse.translation.hypotheses), None)
    fields = {
        "line": number,
        "words": parse.words,
        "tree": one_line(parse.tree) if parse.tree else None,
        "tokens": parse.tokens,
        "is_whole": parse.is_whole,
        "score": best and round(best.score, 6),
        "log_prob": best and round(best.log_prob, 6),
        "stop": best and best.stop,
        "was_cut": parse.translation.was_cut,
    }
    return json.dumps(fields, ensure_ascii=False)


def _told(problems: "Problems") -> list[str]:
    """What is said of the problems at the end."""
    told = problems.lines()
    if 2 * problems.counts["glued"] > problems.num_lines:
        told.append(
            "most lines end in a sign glued to a word, as in 'barked.': expected "
            "tokenised text, signs as words of their own, as in 'barked .'"
        )
    return told


def _can_be_shown(text: str) -> bool:
    """Whether standard output's encoding has all its characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", "utf-8"))
    except UnicodeEncodeError:
        return False
    return True
