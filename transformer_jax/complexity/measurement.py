"""Time, memory and operations of the layers of Table 1 as n and d grow."""

import dataclasses
import datetime
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from tqdm import tqdm

from transformer_jax import hlo
from transformer_jax.complexity import graphs
from transformer_jax.complexity.layers import LAYERS, Layer
from transformer_jax.errors import UserError

ScaleName = Literal["paper", "small", "smoke"]
Axis = Literal["n", "d"]
Cost = Literal["flops", "time_s", "temporary_bytes"]
AXES: tuple[Axis, ...] = ("n", "d")
COSTS: tuple[Cost, ...] = ("flops", "time_s", "temporary_bytes")


@dataclasses.dataclass(frozen=True)
class Scale:
    """What is measured: n grows at a fixed d, then d at a fixed n."""

    lengths: tuple[int, ...]
    width: int  # at which the lengths grow
    widths: tuple[int, ...]
    length: int  # at which the widths grow
    seconds: float  # for which each point is repeated, three times at least
    graph_length: int = 81  # positions of the graphs that paths are counted in


def _doubled(first: int, last: int) -> tuple[int, ...]:
    return tuple(first << i for i in range((last // first).bit_length()))


SCALES = {
    # The width of the base model, and lengths far beyond it on both sides.
    "paper": Scale(_doubled(64, 4096), 512, _doubled(64, 2048), 1024, 2.0),
    "small": Scale(_doubled(64, 2048), 512, _doubled(64, 1024), 512, 0.4),
    "smoke": Scale(_doubled(64, 256), 128, _doubled(64, 256), 64, 0.05),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """One layer at one size, forward and backward, of one sequence in float32."""

    layer: str
    length: int  # n
    width: int  # d
    flops: float  # of its matrix products, as written; 2 a multiplied pair
    time_s: float  # the least of all repeats
    temporary_bytes: int  # beside arguments and results

    def size(self, axis: Axis) -> int:
        """Its n or its d."""
        return self.length if axis == "n" else self.width


@dataclasses.dataclass(frozen=True)
class Growth:
    """Exponents: a layer's cost grows as size^exponent, over the upper sizes."""

    layer: str
    axis: Axis
    formula: float  # of the paper's, over the same sizes
    flops: float
    time_s: float
    temporary_bytes: float


@dataclasses.dataclass(frozen=True)
class Crossing:
    """The n up to which self-attention costs less than another layer, at a fixed d."""

    other: str
    cost: Cost
    length: float | None  # None: at none of the lengths measured, or at all of them


@dataclasses.dataclass(frozen=True)
class Path:
    """What the graph of a layer type gives, beside Table 1's formulas."""

    layer: str
    note: str
    complexity: str
    sequential_formula: str
    sequential_operations: int
    path_formula: str
    path_of_formula: float  # its value at this length, without its O
    path_length: int


@dataclasses.dataclass(frozen=True)
class Table1:
    """All that was counted and measured."""

    scale: str
    machine: dict[str, Any]
    sizes: Scale
    paths: tuple[Path, ...]
    points: tuple[Point, ...]
    growths: tuple[Growth, ...]
    crossings: tuple[Crossing, ...]

    def along(self, axis: Axis, layer: str) -> list[Point]:
        """The points of a layer in which n, or d, grows and the other stays."""
        sizes = self.sizes
        if axis == "n":
            places = [(n, sizes.width) for n in sizes.lengths]
        else:
            places = [(sizes.length, d) for d in sizes.widths]
        found = {(x.length, x.width): x for x in self.points if x.layer == layer}
        return [found[place] for place in places]


def measure(scale: ScaleName = "small") -> Table1:
    """Counts and measures all layers, with a progress bar on standard error.

    Raises:
      UserError: no such scale.
    """
    if scale not in SCALES:
        raise UserError(
            f"scale is {scale!r}, expected one of {', '.join(SCALES)}: choose one"
        )
    sizes = SCALES[scale]
    places = {(n, sizes.width) for n in sizes.lengths}
    places |= {(sizes.length, d) for d in sizes.widths}
    tasks = [(layer, *place) for layer in LAYERS for place in sorted(places)]
    points = tuple(
        measure_point(layer, n, d, seconds=sizes.seconds)
        for layer, n, d in tqdm(tasks, unit="point", disable=not sys.stderr.isatty())
    )
    table = Table1(
        scale=scale,
        machine=_machine(),
        sizes=sizes,
        paths=count_paths(sizes.graph_length),
        points=points,
        growths=(),
        crossings=(),
    )
    return dataclasses.replace(
        table,
        growths=tuple(_growth(table, x, axis) for x in LAYERS for axis in AXES),
        crossings=tuple(
            _crossing(table, other, cost)
            for other in ("recurrent", "convolution")
            for cost in ("flops", "time_s")
        ),
    )


def count_paths(n: int) -> tuple[Path, ...]:
    """Depth and longest path of each layer type with n positions."""
    return tuple(
        Path(
            layer=layer.name,
            note=path.note,
            complexity=layer.complexity,
            sequential_formula=layer.sequential,
            sequential_operations=graphs.sequential_operations(path.readers, n),
            path_formula=path.formula,
            path_of_formula=path.of_length(n),
            path_length=graphs.maximum_path_length(
                path.readers, n, is_causal=path.is_causal
            ),
        )
        for layer in LAYERS
        for path in layer.paths
    )


def measure_point(layer: Layer, n: int, d: int, *, seconds: float) -> Point:
    """One layer at one size: its output and the gradients of all that it reads.

    Args:
      layer: a row of the table.
      n: positions.
      d: width.
      seconds: how long to repeat it, three times at least.
    """
    function, arrays = layer.build(n, d)

    def both_ways(arrays: Any, direction: jax.Array) -> Any:
        output, backward = jax.vjp(function, *arrays)
        return output, backward(direction)

    shape = jax.eval_shape(function, *arrays)
    direction = jax.random.normal(jax.random.key(1), shape.shape, shape.dtype)
    lowered = jax.jit(both_ways).lower(arrays, direction)
    # Of the program before optimisation, which writes some products as something else.
    flops = hlo.product_flops(hlo.parse(lowered.as_text("hlo")))
    compiled = lowered.compile()
    memory: Any = compiled.memory_analysis()
    return Point(
        layer=layer.name,
        length=n,
        width=d,
        flops=flops,
        time_s=_least_time(lambda: compiled(arrays, direction), seconds),
        temporary_bytes=memory.temp_size_in_bytes,
    )


def _least_time(run: Callable[[], Any], seconds: float) -> float:
    jax.block_until_ready(run())  # once for what only a first run does
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


def upper(sizes: Sequence[float]) -> slice:
    """The upper half of the sizes, at the lower of which overhead prevails."""
    return slice(min(len(sizes) // 2, len(sizes) - 2), None)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The p of the closest costs ~ size^p: least squares of the logarithms.

    Over the `upper` sizes.

    >>> round(exponent([1, 2, 4, 8], [7, 5, 16, 64]), 6)
    2.0
    """
    part = upper(sizes)
    return float(np.polyfit(np.log(sizes[part]), np.log(costs[part]), 1)[0])


def _growth(table: Table1, layer: Layer, axis: Axis) -> Growth:
    points = table.along(axis, layer.name)
    sizes = [point.size(axis) for point in points]
    formula = [layer.operations(point.length, point.width) for point in points]
    measured = {
        name: exponent(sizes, [getattr(point, name) for point in points])
        for name in COSTS
    }
    return Growth(layer.name, axis, exponent(sizes, formula), **measured)


def _crossing(table: Table1, other: str, cost: Cost) -> Crossing:
    pairs = zip(
        table.along("n", "self-attention"), table.along("n", other), strict=True
    )
    ratios = [getattr(x, cost) / getattr(y, cost) for x, y in pairs]
    return Crossing(other, cost, crossing(table.sizes.lengths, ratios))


def crossing(sizes: Sequence[float], ratios: Sequence[float]) -> float | None:
    """The largest size at which a ratio rises through 1, between those measured.

    Interpolated by logarithms; None where it does not.

    >>> round(crossing([1, 2, 4], [0.25, 0.5, 2.0]), 3)
    2.828
    """
    found = None
    steps = zip(sizes, sizes[1:], ratios, ratios[1:], strict=False)
    for size, next_size, ratio, next_ratio in steps:
        if ratio < 1 <= next_ratio:
            share = math.log(1 / ratio) / math.log(next_ratio / ratio)
            found = size * (next_size / size) ** share
    return found


def _machine() -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
