"""python -m transformer_jax evaluate-files."""

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.command_line import (
    Parser,
    require_other_file,
    require_writable,
)
from transformer_jax.data.text_files import read_lines
from transformer_jax.errors import UserError
from transformer_jax.files import write_whole

_READING = (
    "How to read it: were a system and the first equally good, a difference as large "
    "or larger,\neither way, would come about with probability p (paired approximate "
    "randomisation, {shuffles:,}\nshuffles). Below 0.05 it is usually called "
    "significant{several}."
)
_SEVERAL = ";\nof {number} comparisons, divide 0.05 by {number}"


def evaluate_files(arguments: Sequence[str]) -> None:
    """Scores translations by any systems, and compares those with the first."""
    parser = Parser(
        prog="python -m transformer_jax evaluate-files",
        description="Scores translations that are in files, by whatever system.",
    )
    parser.add_argument(
        "--hypothesis",
        required=True,
        action="append",
        help="a system's translations, not tokenised, one a line, UTF-8, plain or "
        ".gz; several times: each is compared with the first",
    )
    parser.add_argument("--reference", required=True, help="what is expected, likewise")
    parser.add_argument(
        "--target_language", default="de", help="ISO code (default: de)"
    )
    parser.add_argument("--output", help="file for all of it as JSON (default: none)")
    flags, _ = parser.parse(arguments)
    if not re.fullmatch("[a-z]{1,3}", flags.target_language):
        raise UserError(
            f"--target_language is {flags.target_language}, expected an ISO code such "
            "as de"
        )
    if flags.output:
        require_writable(Path(flags.output))
    for name, paths in (
        ("reference", [flags.reference]),
        ("hypothesis", flags.hypothesis),
    ):
        for path in paths:
            require_other_file(flags.output, name, path)
    references = read_lines(Path(flags.reference))
    systems = [read_lines(Path(p), may_be_blank=True) for p in flags.hypothesis]
    for path, lines in zip(flags.hypothesis, systems, strict=True):
        if len(lines) != len(references):
            raise UserError(
                f"{path} has {len(lines)} lines and {flags.reference} has "
                f"{len(references)}: expected as many, a blank one where a system gave "
                "no translation"
            )

    from transformer_jax.commands.score_table import score_table
    from transformer_jax.metrics import compare_systems
    from transformer_jax.significance import NUM_SHUFFLES

    scores, differences = compare_systems(
        systems, references, target_language=flags.target_language
    )
    if flags.output:
        described = [
            {"hypothesis": path, **dataclasses.asdict(of_system)}
            for path, of_system in zip(flags.hypothesis, scores, strict=True)
        ]
        result = {
            **described[0],
            "reference": flags.reference,
            "target_language": flags.target_language,
            "compared": [
                {
                    **system,
                    "differences": {
                        name: dataclasses.asdict(found)
                        for name, found in of_system.items()
                    },
                }
                for system, of_system in zip(described[1:], differences, strict=True)
            ],
        }
        write_whole(Path(flags.output), f"{json.dumps(result, indent=2)}\n".encode())
    print(score_table(scores, systems=flags.hypothesis, differences=differences))
    print(f"sentences: {scores[0].num_sentences:,}")
    if differences:
        number = len(differences)
        several = _SEVERAL.format(number=number) if number > 1 else ""
        print(_READING.format(shuffles=NUM_SHUFFLES, several=several))
    if flags.output:
        print(f"written to {flags.output}", file=sys.stderr)
