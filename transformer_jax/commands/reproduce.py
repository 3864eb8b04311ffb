"""python -m transformer_jax reproduce."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.command_line import Parser, load_experiment, require_choice
from transformer_jax.config import ExperimentConfig, nearest
from transformer_jax.errors import UserError
from transformer_jax.files import write_whole
from transformer_jax.reproduce.scales import NAMES, require_text, scaled
from transformer_jax.reproduce.tables import TABLE_3, TRANSLATORS

_CONFIGS = Path(__file__).parents[2] / "configs"
_TABLES = ("table1", "table2", "table3", "table4")
# Which split is scored, and the config of each row.
_SPLITS = {"table2": "test", "table3": "validation"}
_ROWS = {
    "table2": {row: config for row, (config, _, _) in TRANSLATORS.items()},
    "table3": {row.row: f"table3.py:{row.row}" for row in TABLE_3},
}


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
        help="paper (WMT 2014), small (Multi30k) or smoke (generated text, minutes a "
        "row on a CPU); default: paper",
    )
    parser.add_argument("--rows", help="some of the table's, as base,A1; default: all")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each row")
    parser.add_argument("--output", help="default: runs/reproduce/TABLE-SCALE")
    parser.add_argument("--data_dir", default="", help="folder of the text")
    flags, _ = parser.parse(arguments)
    if flags.table not in _TABLES:
        raise UserError(f"no table {flags.table}{nearest(flags.table, _TABLES)}")
    require_choice("scale", flags.scale, NAMES)
    if flags.seeds < 1:
        raise UserError(f"--seeds is {flags.seeds}, expected 1 or more")
    output = Path(
        flags.output or Path("runs/reproduce") / f"{flags.table}-{flags.scale}"
    )
    rows = _chosen_rows(flags.table, flags.scale, flags.rows)
    _make_folder(output)
    if flags.table == "table1":
        from transformer_jax import complexity

        complexity.reproduce(output, flags.scale)
    elif flags.table == "table4":
        from transformer_jax.reproduce.report import table_4

        _write(output, *table_4())
        print((output / "TABLE.md").read_text(encoding="utf-8"), end="")
    else:
        paper = {row: _paper_config(flags.table, row) for row in rows}
        _train(flags.table, flags.scale, paper, output, flags.data_dir, flags.seeds)


def _train(
    table: str,
    scale: str,
    paper: dict[str, ExperimentConfig],
    output: Path,
    data_dir: str,
    num_seeds: int,
) -> None:
    languages = sorted({config.data.target_language for config in paper.values()})
    require_text(scale, data_dir, languages)
    experiments = {
        row: scaled(config, scale, data_dir) for row, config in paper.items()
    }

    from transformer_jax.models import num_parameters
    from transformer_jax.reproduce import report
    from transformer_jax.reproduce.runs import Results, run_rows

    setting = report.Setting(
        table=table,
        scale=scale,
        num_seeds=num_seeds,
        rows=tuple(paper),
        parameters_of_paper={
            row: num_parameters(_paper_config(table, row).model) for row in _ROWS[table]
        },
    )
    render = report.table_2 if table == "table2" else report.table_3

    def write(results: Results) -> None:
        _write(output, *render(results, setting))

    run_rows(
        experiments, output, split=_SPLITS[table], num_seeds=num_seeds, report=write
    )
    print((output / "TABLE.md").read_text(encoding="utf-8"), end="")


def _chosen_rows(table: str, scale: str, names: str | None) -> list[str]:
    if table not in _ROWS:
        if names:
            raise UserError(f"--rows is {names}, but {table} has none to choose from")
        return []
    known = list(_ROWS[table])
    if table == "table2" and scale == "smoke":  # the phrases have no French
        known = [row for row in known if not row.endswith("-en-fr")]
    chosen = names.split(",") if names else known
    for row in chosen:
        if row not in known:
            raise UserError(
                f"--rows: {table} at --scale={scale} has no row {row or '(empty)'}"
                f"{nearest(row, known)}"
            )
    return [row for row in known if row in chosen]


def _paper_config(table: str, row: str) -> ExperimentConfig:
    return load_experiment(str(_CONFIGS / _ROWS[table][row]), {})


def _make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make --output {output} ({error.strerror}): take another path"
        ) from error


def _write(output: Path, text: str, values: dict[str, Any]) -> None:
    write_whole(output / "TABLE.md", text.encode())
    write_whole(output / "TABLE.json", f"{json.dumps(values, indent=2)}\n".encode())
