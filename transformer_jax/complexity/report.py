"""Table 1 as Markdown, JSON and a figure."""

import dataclasses
import io
import json
import statistics
from pathlib import Path

from transformer_jax.complexity.layers import KERNEL_WIDTH, LAYERS, NEIGHBORHOOD
from transformer_jax.complexity.measurement import (
    AXES,
    COSTS,
    Crossing,
    ScaleName,
    Table1,
    measure,
    upper,
)
from transformer_jax.files import write_whole

_NAMES = {"flops": "operations", "time_s": "time", "temporary_bytes": "memory"}
# Okabe and Ito's colours, told apart by those who see fewer.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
_MARKERS = "osD^v"


def reproduce(folder: Path, scale: ScaleName) -> None:
    """Measures and writes table1.md, .json, .png and .svg; prints the first.

    Raises:
      UserError: no such scale.
    """
    table = measure(scale)
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(table)
    write_whole(folder / "table1.md", text.encode())
    content = json.dumps(dataclasses.asdict(table), indent=1, ensure_ascii=False)
    write_whole(folder / "table1.json", f"{content}\n".encode())
    for kind, picture in plot(table).items():
        write_whole(folder / f"table1.{kind}", picture)
    print(text, end="")


def markdown(table: Table1) -> str:
    """What the graphs give, growth beside the formulas, times, crossovers."""
    sizes, machine = table.sizes, table.machine
    lines = [
        "# Table 1, computed and measured",
        "",
        f"k = {KERNEL_WIDTH}, r = {NEIGHBORHOOD}; scale {table.scale}; "
        f"{machine['device']} with {machine['cores']} cores, JAX {machine['jax']}, "
        f"{machine['date']}.",
        "",
        "The paper's formulas (its table has no projections, the last row), and what "
        f"was counted in the graph of n = {sizes.graph_length} positions. Paths: "
        "layers are stacked until every pair of positions is connected, in a causal "
        "layer every pair that can be.",
        "",
        *_path_rows(table),
        "",
        "Cost of one sequence, forward and backward, as n grows at d = "
        f"{sizes.width} and as d grows at n = {sizes.length}: the exponent p of "
        "size^p, over the upper half of the sizes. Operations are those of matrix "
        "products, memory is temporary.",
        "",
        *_growth_rows(table),
        "",
        f"Milliseconds at d = {sizes.width}:",
        "",
        *_time_rows(table),
        "",
        *(f"- {_sentence(table, crossing)}" for crossing in table.crossings),
    ]
    return "\n".join(lines) + "\n"


def _path_rows(table: Table1) -> list[str]:
    head = ("layer", "complexity", "sequential operations", "counted")
    head = (*head, "maximum path length", "its value", "counted")
    return _rows(
        head,
        [
            (
                f"{path.layer}, {path.note}" if path.note else path.layer,
                f"O({path.complexity})",
                f"O({path.sequential_formula})",
                str(path.sequential_operations),
                f"O({path.path_formula})",
                f"{path.path_of_formula:.3g}",
                str(path.path_length),
            )
            for path in table.paths
        ],
    )


def _growth_rows(table: Table1) -> list[str]:
    columns = ("formula", *(_NAMES[cost] for cost in COSTS))
    head = ("layer", *(f"{axis}: {name}" for axis in ("n", "d") for name in columns))
    return _rows(
        head,
        [
            (
                layer.name,
                *(
                    f"{getattr(growth, column):.2f}"
                    for growth in table.growths
                    if growth.layer == layer.name
                    for column in ("formula", *COSTS)
                ),
            )
            for layer in LAYERS
        ],
    )


def _time_rows(table: Table1) -> list[str]:
    head = ("layer", *(f"n = {n}" for n in table.sizes.lengths))
    return _rows(
        head,
        [
            (
                layer.name,
                *(f"{x.time_s * 1e3:.3g}" for x in table.along("n", layer.name)),
            )
            for layer in LAYERS
        ],
    )


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    rule = ("---", *("---:" for _ in head[1:]))
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def _sentence(table: Table1, crossing: Crossing) -> str:
    name = _NAMES[crossing.cost]
    start = f"By {name}, self-attention at d = {table.sizes.width} is cheaper than"
    if crossing.length is not None:
        return f"{start} a {crossing.other} layer up to n = {crossing.length:.0f}."
    last = [
        getattr(table.along("n", layer)[-1], crossing.cost)
        for layer in ("self-attention", crossing.other)
    ]
    where = "at every n" if last[0] < last[1] else "at no n"
    return f"{start} a {crossing.other} layer {where} measured."


def plot(table: Table1) -> dict[str, bytes]:
    """The figure as "png" and "svg": measured points, dashed the formula's growth.

    The dashed lines run through the upper sizes, those of the exponents.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    grid = figure.subplots(2, 2)
    for column, axis in enumerate(AXES):
        for index, layer in enumerate(LAYERS):
            points = table.along(axis, layer.name)
            sizes = [point.size(axis) for point in points]
            colour = _COLOURS[index]
            times = [point.time_s * 1e3 for point in points]
            grid[0, column].plot(
                sizes, times, _MARKERS[index], color=colour, ms=5, label=layer.name
            )
            formula = [layer.operations(x.length, x.width) for x in points]
            pairs = list(zip(times, formula, strict=True))[upper(sizes)]
            rate = statistics.geometric_mean([x / y for x, y in pairs])
            slope = [rate * x for x in formula]
            grid[0, column].plot(sizes, slope, "--", color=colour, lw=1)
            memory = [point.temporary_bytes / 1e6 for point in points]
            style = f"{_MARKERS[index]}-"
            grid[1, column].plot(sizes, memory, style, color=colour, ms=5, lw=1)
        fixed = {"n": f"d = {table.sizes.width}", "d": f"n = {table.sizes.length}"}
        grid[0, column].set_title(f"as {axis} grows at {fixed[axis]}")
        for row, unit in enumerate(("time, ms", "temporary memory, MB")):
            cell = grid[row, column]
            cell.set(xlabel=axis, ylabel=unit, xscale="log", yscale="log")
            cell.set_xticks(sizes, [str(size) for size in sizes])
            cell.minorticks_off()
            cell.grid(alpha=0.3)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        "Table 1 measured, forward and backward; dashed: the growth of the formula"
    )
    pictures = {}
    for kind in ("png", "svg"):
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=150)
        pictures[kind] = file.getvalue()
    return pictures
