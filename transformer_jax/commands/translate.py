"""python -m transformer_jax translate."""

import argparse
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from transformer_jax.command_line import (
    Parser,
    require_choice,
    require_other_file,
    require_writable,
)
from transformer_jax.commands.lines import FORMATS, Input, opened_output, paired
from transformer_jax.data.text_files import decode_lines
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.translation import Translation, Translator


def translate(arguments: Sequence[str]) -> None:
    """Reads sentences, one a line, and writes their translations, in order."""
    flags, _ = _parser().parse(arguments)
    _require_consistent(flags)
    source = Input(flags.input)
    prefixes = Input(flags.prefixes) if flags.prefixes else None
    if source.is_terminal and (flags.output or prefixes):
        name = "output" if flags.output else "prefixes"
        raise UserError(f"--{name} does not go with a conversation: give --input=FILE")

    from transformer_jax.commands.models import load_translator

    translator = load_translator(flags)
    options = _options(flags)
    translator.require_valid(flags.suppress, options["attention"])
    if source.is_terminal:
        _converse(translator, options, flags)
        return
    num_lines = source.count() if sys.stderr.isatty() else None

    from transformer_jax.translation import Problems

    problems = Problems()
    with (
        opened_output(flags.output) as output,
        tqdm(
            total=num_lines, unit="sentence", disable=not sys.stderr.isatty()
        ) as progress,
    ):
        for lines, starts in _with_prefixes(source, prefixes, flags.prefix):
            translations = translator.translations(
                lines,
                prefixes=starts,
                first_number=problems.num_lines + 1,
                progress=progress.update,
                **options,
            )
            written = []
            for translation in translations:
                problems.add(translation)
                written.extend(_shown(translation, problems.num_lines, flags))
            output.write("".join(f"{line}\n" for line in written).encode())
            output.flush()
    for line in problems.lines():
        print(f"warning: {line}", file=sys.stderr)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m transformer_jax translate",
        description="Translates sentences, one a line. At a terminal, each as it is "
        "typed.",
    )
    parser.add_translator_flags(is_ensemble_allowed=True)
    parser.add_argument("--input", help="UTF-8 text, plain or .gz (default: stdin)")
    parser.add_argument("--output", help="plain or .gz (default: stdout)")
    parser.add_argument(
        "--format",
        default="text",
        help="text: the best translation, a line each; tsv: line number, rank, score, "
        "log-probability and translation, a line for each of the n best; jsonl: an "
        "object a line with all that is known",
    )
    parser.add_argument(
        "--split_sentences",
        action="store_true",
        help="split each line into its sentences, translate them, and join them again",
    )
    parser.add_argument("--prefix", help="words that each translation begins with")
    parser.add_argument("--prefixes", help="file of such words, a line for each line")
    parser.add_argument(
        "--suppress",
        action="append",
        default=[],
        help="a phrase that no translation may contain; may be given several times",
    )
    parser.add_argument("--seed", type=int, default=0, help="for --sampling")
    parser.add_argument(
        "--token_scores",
        action="store_true",
        help="in jsonl: the log-probability of each word piece",
    )
    parser.add_argument(
        "--attention",
        action="store_true",
        help="in jsonl: how much each word piece attended to each of the source",
    )
    parser.add_argument(
        "--attention_layer", type=int, default=-1, help="0 is the first, -1 the last"
    )
    parser.add_argument(
        "--attention_heads",
        default="",
        help="numbers of heads, like 0,3, whose mean is taken (default: all)",
    )
    return parser


def _require_consistent(flags: argparse.Namespace) -> None:
    """Refuses, before long work, what cannot be meant."""
    require_choice("format", flags.format, FORMATS)
    if flags.output:
        require_writable(Path(flags.output))
    for name in ("input", "prefixes"):
        require_other_file(flags.output, name, getattr(flags, name))
    if flags.n_best and flags.n_best > 1 and flags.format == "text":
        raise UserError(
            f"--n_best={flags.n_best} does not fit in --format=text, a line for each "
            "line: take --format=tsv or jsonl"
        )
    for name in ("token_scores", "attention"):
        if getattr(flags, name) and flags.format != "jsonl":
            raise UserError(f"--{name} needs --format=jsonl")
    if flags.prefix and flags.prefixes:
        raise UserError("--prefix and --prefixes are both given: drop one")
    heads = flags.attention_heads.split(",") if flags.attention_heads else []
    if not all(head.strip().isdecimal() for head in heads):
        raise UserError(
            f"--attention_heads is {flags.attention_heads}, expected numbers like 0,3"
        )
    if not flags.attention and (heads or flags.attention_layer != -1):
        raise UserError("--attention_layer and --attention_heads need --attention")


def _options(flags: argparse.Namespace) -> dict[str, Any]:
    from transformer_jax.translation import Attention

    heads = flags.attention_heads
    attention = Attention(
        flags.attention_layer, tuple(map(int, heads.split(","))) if heads else ()
    )
    return {
        "suppress": flags.suppress,
        "split": flags.split_sentences,
        "seed": flags.seed,
        "token_log_probs": flags.token_scores,
        "attention": attention if flags.attention else None,
    }


def _with_prefixes(
    source: Input, prefixes: Input | None, prefix: str | None
) -> Iterator[tuple[list[str], list[str]]]:
    """Lines, and what their translations begin with."""
    if prefixes is not None:
        yield from paired(source, prefixes)
        return
    for lines in source.windows():
        yield lines, [prefix] if prefix else []


def _shown(
    translation: "Translation", number: int, flags: argparse.Namespace
) -> list[str]:
    """The lines that are written for a translation."""
    if flags.format == "text":
        return [_one_line(translation.text)]
    if flags.format == "tsv":
        rows = [
            (rank, f"{h.score:.6f}", f"{h.log_prob:.6f}", _one_line(h.text))
            for rank, h in enumerate(translation.hypotheses, start=1)
        ]
        return [
            "\t".join(map(str, (number, *row))) for row in rows or [(1, "", "", "")]
        ]
    hypotheses = []
    for h in translation.hypotheses:
        fields: dict[str, Any] = {
            "text": h.text,
            "score": round(h.score, 6),
            "log_prob": round(h.log_prob, 6),
            "stop": h.stop,
            "tokens": h.tokens,
        }
        if h.token_log_probs is not None:
            fields["token_log_probs"] = [round(x, 6) for x in h.token_log_probs]
        if h.attention is not None:
            fields["attention"] = h.attention.astype(float).round(4).tolist()
        hypotheses.append(fields)
    shown = {
        "line": number,
        "source": translation.source,
        "translation": translation.text,
        "pieces": translation.num_pieces,
        "was_cut": translation.was_cut,
        "source_tokens": translation.source_tokens,
        "hypotheses": hypotheses,
    }
    return [json.dumps(shown, ensure_ascii=False)]


def _one_line(text: str) -> str:
    """Without what would end a line or a field."""
    return text.translate({ord(sign): " " for sign in "\n\r\t"})


def _converse(
    translator: "Translator", options: dict[str, Any], flags: argparse.Namespace
) -> None:
    """Translates what is typed, until the end of the input."""
    from transformer_jax.translation import Problems

    # What is needed is compiled while the first sentence is typed.
    warm_up = threading.Thread(
        target=translator.translations, args=(["a"],), daemon=True
    )
    warm_up.start()
    source, target = translator.languages
    print(f"{source} -> {target}; a sentence a line, Ctrl-D ends", file=sys.stderr)
    prefixes = [flags.prefix] if flags.prefix else []
    number = 0
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        content = sys.stdin.buffer.readline()
        if not content:
            print(file=sys.stderr)
            return
        warm_up.join()
        try:
            (translation,) = translator.translations(
                decode_lines(content, "the sentence"), prefixes=prefixes, **options
            )
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        number += 1
        for shown in _shown(translation, number, flags):
            print(shown, flush=True)
        problems = Problems()
        problems.add(translation)
        for problem in problems.lines():
            print(f"warning: {problem}", file=sys.stderr)
