"""python -m transformer_jax score."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from transformer_jax.command_line import (
    Parser,
    require_choice,
    require_output,
)
from transformer_jax.commands.lines import FORMATS, Input, paired, stream, warn
from transformer_jax.data.pairs import Pair
from transformer_jax.data.sources import TSV_STRIP, split_pair
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.translation import Score


def score(arguments: Sequence[str]) -> None:
    """Reads pairs and writes how probable the targets are as translations, in order."""
    parser = Parser(
        prog="python -m transformer_jax score",
        description="Log-probabilities of given translations, a line each.",
    )
    parser.add_translator_flags(is_ensemble_allowed=True)
    parser.add_argument(
        "--source",
        help="UTF-8 text, plain or .gz (default: stdin holds source, a tab, target)",
    )
    parser.add_argument("--target", help="the translations, as many lines")
    parser.add_argument("--output", help="plain or .gz (default: stdout)")
    parser.add_argument(
        "--format",
        default="text",
        help="text: the log-probability; tsv: that, over the length penalty, and the "
        "number of word pieces; jsonl: all that, and that of each word piece",
    )
    flags, _ = parser.parse(arguments)
    require_choice("format", flags.format, FORMATS)
    if (flags.source is None) != (flags.target is None):
        given = "target" if flags.source is None else "source"
        raise UserError(f"--{given} alone is given, expected --source and --target")
    require_output(flags, "source", "target")
    source = Input(flags.source)
    target = Input(flags.target) if flags.target else None

    from transformer_jax.commands.models import load_translator

    translator = load_translator(flags)
    number = num_missing = 0

    def answers(pairs: list[Pair], progress: Callable[[int], object]) -> Iterator[str]:
        nonlocal number, num_missing
        for pair, result in zip(
            pairs, translator.score(pairs, progress=progress), strict=True
        ):
            number += 1
            num_missing += result is None
            yield _shown(pair, result, number, flags.format)

    stream(source, _pairs(source, target), answers, output=flags.output, unit="pair")
    if num_missing:
        warn(
            f"{num_missing} of {number} pairs have a side that is too long for the "
            "model: nan"
        )


def _pairs(source: Input, target: Input | None) -> Iterator[list[Pair]]:
    if target is not None:
        for lines, targets in paired(source, target):
            yield list(zip(lines, targets, strict=True))
        return
    number = 0
    for lines in source.windows(strip=TSV_STRIP):
        yield [
            split_pair(line, f"{source.name} line {number + i}")
            for i, line in enumerate(lines, start=1)
        ]
        number += len(lines)


def _shown(pair: tuple[str, str], score: "Score | None", number: int, kind: str) -> str:
    log_prob = "nan" if score is None else f"{score.log_prob:.6f}"
    if kind == "text":
        return log_prob
    if kind == "tsv":
        if score is None:
            return f"{log_prob}\t{log_prob}\t"
        return f"{log_prob}\t{score.score:.6f}\t{len(score.tokens)}"
    fields = {"line": number, "source": pair[0], "target": pair[1]}
    if score is not None:
        fields |= {
            "log_prob": round(score.log_prob, 6),
            "score": round(score.score, 6),
            "tokens": score.tokens,
            "token_log_probs": [round(x, 6) for x in score.token_log_probs],
        }
    return json.dumps(fields, ensure_ascii=False)
