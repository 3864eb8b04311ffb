"""What the tables of trained models share: heading, cells, legend, Markdown."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.reproduce.ordering import mean
from transformer_jax.reproduce.results import AnyResult, Result, Results

NOT_RUN = "–"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the whole table was made with."""

    table: str
    scale: str
    num_seeds: int
    parameters_of_paper: Mapping[str, int]  # of our models at the paper's sizes


def heading(title: str, results: Results[AnyResult], setting: Setting) -> list[str]:
    """The title, and what was run, when and on what."""
    runs = [result for row in results.values() for result in row]
    days = sorted(result.date[:10] for result in runs)
    machines = sorted({result.machine for result in runs})
    seeds = ", ".join(map(str, range(setting.num_seeds)))
    lines = [
        f"# {title}",
        "",
        f"- Scale `{setting.scale}`; {len(runs)} of {len(results) * setting.num_seeds} "
        f"runs finished; {'seeds' if setting.num_seeds > 1 else 'seed'} {seeds}.",
    ]
    if runs:
        period = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        lines.append(f"- {period}, on {'; '.join(machines)}.")
    return [*lines, ""]


def sizes(runs: Sequence[Result]) -> list[str]:
    """Millions of parameters and steps of a row."""
    if not runs:
        return [NOT_RUN] * 2
    return [f"{runs[0].parameters / 1e6:.3f}", f"{runs[0].steps:,}"]


def costs(runs: Sequence[Result]) -> list[str]:
    """FLOPs of a run of a row, by time and counted."""
    if not runs:
        return [NOT_RUN] * 2
    by_time = mean([run.time_flops for run in runs])
    return [f"{by_time:.1e}", f"{runs[0].model_flops:.1e}"]


def cell(
    runs: Sequence[AnyResult], figure: Callable[[AnyResult], float], shown: str
) -> str:
    """The mean over seeds, and the least and the most of them."""
    values = [figure(run) for run in runs]
    if not values:
        return NOT_RUN
    if len(values) == 1:
        return f"{values[0]:{shown}}"
    least, most = min(values), max(values)
    return f"{mean(values):{shown}} ({least:{shown}}..{most:{shown}})"


def figures(runs: Sequence[Result]) -> dict[str, Any]:
    """The runs of a row and their scores over seeds, JSON-able."""
    summary = {}
    for name in runs[0].measures if runs else ():
        values = [getattr(run, name) for run in runs]
        summary[name] = {"mean": mean(values), "min": min(values), "max": max(values)}
    return {"summary": summary, "runs": [dataclasses.asdict(run) for run in runs]}


def legend(
    scores: Sequence[str], results: Results[AnyResult], setting: Setting
) -> list[str]:
    """What the columns and cells are; `scores` explain those of scores."""
    runs = [run for row in results.values() for run in row]
    first, *others = scores
    lines = [
        f"{first} FLOPs by time is the paper's method, training time times devices "
        "times a sustained rate: here the median time of a step times steps, and the "
        "rate at which the machine multiplies matrices. FLOPs counted are those of the "
        "products in the forward and the backward pass.",
        *others,
    ]
    if setting.num_seeds > 1:
        lines.append(
            "A cell is the mean over seeds (least..most). All seeds share text and "
            "vocabulary; initial values, order of batches and dropout differ."
        )
    if len(runs) < len(results) * setting.num_seeds:
        lines.append(f"{NOT_RUN} = not run.")
    return lines


def or_blank(value: float | None, shown: str = "") -> str:
    """The number, or nothing where there is none."""
    return "" if value is None else f"{value:{shown}}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns are aligned in the source too."""
    columns = zip(head, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    dashes = ["-" * width for width in widths]
    return [
        f"| {' | '.join(map(str.ljust, row, widths))} |"
        for row in (head, dashes, *rows)
    ]
