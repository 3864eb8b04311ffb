"""python -m transformer_jax reproduce."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.command_line import Parser, load_experiment, require_choice
from transformer_jax.config import ExperimentConfig, nearest
from transformer_jax.errors import UserError
from transformer_jax.files import write_whole
from transformer_jax.reproduce.scales import (
    NAMES,
    require_text,
    require_treebank,
    scaled,
    scaled_parser,
)
from transformer_jax.tables import PARSERS, TABLE_3, TRANSLATORS

_CONFIGS = Path(__file__).parents[2] / "configs"
_MOST_SEEDS = 100
_TABLES = ("table1", "table2", "table3", "table4")
# Of the tables of trained models: which split is scored, and the config of each row.
_SPLITS = {"table2": "test", "table3": "validation", "table4": "test"}
_ROWS = {
    "table2": {row: config for row, (config, _, _) in TRANSLATORS.items()},
    "table3": {row.row: f"table3.py:{row.row}" for row in TABLE_3},
    "table4": {row: config for row, (config, _) in PARSERS.items()},
}
# In the place of the rows of Table 4, where there is no WSJ.
_SAMPLE = {"wsj": "parsing_sample.py"}


def reproduce(arguments: Sequence[str]) -> None:
    """Runs or resumes the runs of a table of the paper, and prints it."""
    parser = Parser(
        prog="python -m transformer_jax reproduce",
        description="Runs a table of the paper; the same command again resumes.",
    )
    parser.add_argument("table", help=", ".join(_TABLES))
    parser.add_argument(
        "--scale",
        default="paper",
        help="paper (WMT 2014; the WSJ), small (Multi30k; a sample of the WSJ) or "
        "smoke (generated text; the sample; minutes a row on a CPU); default: paper",
    )
    parser.add_argument(
        "--rows",
        help="which to run now, as base,A1; what was run before is shown in any case; "
        "default: all of the table's",
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each row")
    parser.add_argument("--output", help="default: runs/reproduce/TABLE-SCALE")
    parser.add_argument("--data_dir", default="", help="folder of the text")
    flags, _ = parser.parse(arguments)
    if flags.table not in _TABLES:
        raise UserError(f"no table {flags.table}{nearest(flags.table, _TABLES)}")
    require_choice("scale", flags.scale, NAMES)
    if not 1 <= flags.seeds <= _MOST_SEEDS:
        raise UserError(
            f"--seeds is {flags.seeds}, expected at least 1 and at most {_MOST_SEEDS}"
        )
    output = Path(
        flags.output or Path("runs/reproduce") / f"{flags.table}-{flags.scale}"
    )
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output} is a file, expected a folder")
    if flags.table in _ROWS:
        _train(flags, output)
        return
    for name in ("rows", "seeds", "data_dir"):
        if getattr(flags, name) != parser.get_default(name):
            raise UserError(
                f"--{name} is {getattr(flags, name)}, but {flags.table} trains "
                "nothing: leave it out"
            )
    from transformer_jax import complexity

    _make_folder(output)  # before it measures for long
    complexity.reproduce(output, flags.scale)
    print(f"written to {output}", file=sys.stderr)


def _train(flags: argparse.Namespace, output: Path) -> None:
    """Runs the chosen rows of Table 2, 3 or 4."""
    paper = {row: _load(config) for row, config in _ROWS[flags.table].items()}
    experiments = _experiments(flags, paper)
    rows = _chosen_rows(flags, list(experiments))
    chosen = [experiments[row].data for row in rows]
    if flags.table == "table4":
        extra = sorted({data.extra for data in chosen if data.extra})
        require_treebank(flags.scale, flags.data_dir, extra)
    else:
        languages = sorted({data.target_language for data in chosen})
        require_text(flags.scale, flags.data_dir, languages)

    from transformer_jax.models import num_parameters
    from transformer_jax.reproduce import report
    from transformer_jax.reproduce.layout import Setting
    from transformer_jax.reproduce.results import ParsingResult, TranslationResult
    from transformer_jax.reproduce.runs import run_rows

    setting = Setting(
        table=flags.table,
        scale=flags.scale,
        num_seeds=flags.seeds,
        parameters_of_paper={
            row: num_parameters(config.model) for row, config in paper.items()
        },
    )
    kind, render = {
        "table2": (TranslationResult, report.table_2),
        "table3": (TranslationResult, report.table_3),
        "table4": (ParsingResult, report.table_4),
    }[flags.table]
    run_rows(
        experiments,
        output,
        kind=kind,
        rows=rows,
        split=_SPLITS[flags.table],
        num_seeds=flags.seeds,
        report=lambda results: _write(output, *render(results, setting)),
    )
    _print(output, flags.table)


def _experiments(
    flags: argparse.Namespace, paper: Mapping[str, ExperimentConfig]
) -> dict[str, ExperimentConfig]:
    """Those of the rows that the scale has, at that scale."""
    scale, folder = flags.scale, flags.data_dir
    if flags.table != "table4":
        return {
            row: scaled(config, scale, folder)
            for row, config in paper.items()
            # The phrases have no French.
            if scale != "smoke" or config.data.target_language != "fr"
        }
    if scale != "paper":
        paper = {row: _load(config) for row, config in _SAMPLE.items()}
    return {row: scaled_parser(config, scale, folder) for row, config in paper.items()}


def _chosen_rows(flags: argparse.Namespace, known: list[str]) -> list[str]:
    chosen = flags.rows.split(",") if flags.rows else known
    for row in chosen:
        if row not in known:
            raise UserError(
                f"--rows: {flags.table} at --scale={flags.scale} has no row "
                f"{row or '(empty)'}{nearest(row, known)}"
            )
    return [row for row in known if row in chosen]


def _load(path_and_row: str) -> ExperimentConfig:
    if not (_CONFIGS / path_and_row.partition(":")[0]).is_file():
        raise UserError(
            f"no folder {_CONFIGS} with the paper's configs, which is part of the "
            "repository and not of the installed package: run this in a clone of it"
        )
    return load_experiment(str(_CONFIGS / path_and_row), {})


def _make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make --output {output} ({error.strerror}): take another path"
        ) from error


def _write(output: Path, text: str, values: dict[str, Any]) -> None:
    _make_folder(output)
    name = values["table"]
    write_whole(output / f"{name}.md", text.encode())
    write_whole(output / f"{name}.json", f"{json.dumps(values, indent=2)}\n".encode())


def _print(output: Path, name: str) -> None:
    print((output / f"{name}.md").read_text(encoding="utf-8"), end="")
    print(f"written to {output}/{name}.md and {name}.json", file=sys.stderr)
