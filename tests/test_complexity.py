"""Table 1: the paper's formulas by hand against graphs, programs and their costs."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import complexity
from transformer_jax.complexity import graphs, measurement, report
from transformer_jax.complexity.layers import LAYERS
from transformer_jax.errors import UserError

BY_NAME = {layer.name: layer for layer in LAYERS}
PATHS = {(layer.name, path.note): path for layer in LAYERS for path in layer.paths}


def path_by_hand(name: str, note: str, n: int) -> int:
    """With k = 3 and r = 32, which sees 16 back and 15 ahead."""
    if name == "recurrent":
        return n
    if note == "contiguous":
        return n - 1  # one position a layer, either way
    if note == "dilated and causal":
        return next(layers for layers in range(1, n) if 3**layers >= n)
    if name == "restricted self-attention":
        return math.ceil((n - 1) / 15)
    return 1


@pytest.mark.parametrize("key", PATHS, ids=" ".join)
@pytest.mark.parametrize("n", [10, 27, 62])
def test_paths_are_as_long_as_table_1_says(key, n):
    path = PATHS[key]
    for size in (n, 3 * n) if key[1] == "dilated and causal" else (n,):
        counted = graphs.maximum_path_length(
            path.readers, size, is_causal=path.is_causal
        )
        assert counted == path_by_hand(key[0], key[1], size)
        # Within a constant of the formula: reach is one-sided, k - 1 = 2 of k = 3.
        assert counted <= 1 + 3 * path.of_length(size)


@pytest.mark.parametrize("key", PATHS, ids=" ".join)
def test_only_a_recurrent_layer_has_operations_in_a_row(key):
    for n in (7, 13):
        expected = n if key[0] == "recurrent" else 1
        assert graphs.sequential_operations(PATHS[key].readers, n) == expected


def test_positions_that_no_layers_connect_are_an_error():
    def itself(node: graphs.Node, n: int) -> list[graphs.Node]:
        return [(node[0] + 1, node[1])]

    with pytest.raises(ValueError, match="no path from position 0 to"):
        graphs.maximum_path_length(itself, 3)


def reached_in_one_layer(readers: graphs.Readers, n: int) -> np.ndarray:
    """[input, output] by a search through the graph up to layer 1."""
    reached = np.zeros((n, n), bool)
    for start in range(n):
        waiting = [(0, start)]
        while waiting:
            for layer, position in readers(waiting.pop(), n):
                if layer == 1 and not reached[start, position]:
                    reached[start, position] = True
                    waiting.append((layer, position))
    return reached


@pytest.mark.parametrize("name", BY_NAME)
def test_the_graph_of_a_layer_is_what_its_function_depends_on(name):
    n = 61
    function, arrays = BY_NAME[name].build(n, 64)
    axes = [
        next((axis for axis, size in enumerate(x.shape) if size == n), None)
        if isinstance(x, jax.Array)
        else None
        for x in arrays
    ]

    def changes(position: jax.Array) -> jax.Array:
        """Of each output position, where all arrays change at one position."""

        def tangent(x: Any, axis: int | None) -> Any:
            if axis is None:
                return jax.tree.map(jnp.zeros_like, x)
            shape = [1] * x.ndim
            shape[axis] = n
            here = (jnp.arange(n) == position).reshape(shape)
            return jnp.where(here, jnp.ones_like(x), 0.0)

        tangents = tuple(map(tangent, arrays, axes))
        change = jax.jvp(function, arrays, tangents)[1]
        return jnp.abs(change).reshape(n, -1).max(axis=1)

    matrix = np.asarray(jax.jit(jax.vmap(changes))(jnp.arange(n)))
    readers = BY_NAME[name].paths[-1].readers  # of a convolution, contiguous
    expected = reached_in_one_layer(readers, n)
    if name == "recurrent":  # so long ago that nothing of it is left in float32
        near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < 9
        matrix, expected = matrix * near, expected & near
    np.testing.assert_array_equal(matrix > 0, expected)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory) -> tuple[Path, Any]:
    """All files at three sizes of each kind."""
    folder = tmp_path_factory.mktemp("table1") / "new"
    sizes = measurement.Scale((64, 128), 64, (64, 128), 64, 0.0, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measurement.SCALES, "smoke", sizes)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            complexity.reproduce(folder, "smoke")
    assert printed.getvalue() == (folder / "table1.md").read_text("utf-8")
    return folder, json.loads((folder / "table1.json").read_text("utf-8"))


# Of one product, by hand: 2 a pair; k = 3 less two places of padding; blocks of 32
# queries see 32 + 31 keys.
FORWARD = {
    "self-attention": lambda n, d: 4 * n * n * d,
    "recurrent": lambda n, d: 4 * n * d * d,
    "convolution": lambda n, d: 2 * (3 * n - 2) * d * d,
    "restricted self-attention": lambda n, d: 4 * n * 63 * d,
    "multi-head, with projections": lambda n, d: 4 * n * n * d + 8 * n * d * d,
}


@pytest.mark.slow
def test_operations_are_those_of_the_products_by_hand(reproduced):
    points = reproduced[1]["points"]
    assert len(points) == 3 * len(FORWARD)
    for point in points:
        forward = FORWARD[point["layer"]](point["length"], point["width"])
        assert point["flops"] == 3 * forward  # two more products backward
        assert point["time_s"] > 0
        assert point["temporary_bytes"] > 0


@pytest.mark.slow
def test_operations_grow_as_the_formulas_of_table_1(reproduced):
    exponents = {
        "self-attention": (2, 1),
        "recurrent": (1, 2),
        "convolution": (1, 2),
        "restricted self-attention": (1, 1),
    }
    growths = {(x["layer"], x["axis"]): x for x in reproduced[1]["growths"]}
    for layer, pair in exponents.items():
        for axis, expected in zip("nd", pair, strict=True):
            growth = growths[layer, axis]
            assert growth["formula"] == pytest.approx(expected)
            # A convolution does not multiply its padding, 2 places of 3 n.
            assert growth["flops"] == pytest.approx(expected, abs=0.01)


def test_self_attention_is_cheaper_than_recurrence_where_n_is_less_than_d():
    # 4 n² d = 4 n d² at n = d, between 64 and 256.
    lengths = (16, 64, 256, 1024)
    ratios = [
        FORWARD["self-attention"](n, 128) / FORWARD["recurrent"](n, 128)
        for n in lengths
    ]
    assert measurement.crossing(lengths, ratios) == pytest.approx(128)
    assert measurement.crossing(lengths, [x / 100 for x in ratios]) is None
    assert measurement.crossing(lengths, [x * 100 for x in ratios]) is None


@pytest.mark.slow
def test_the_files_hold_the_table_and_its_figure(reproduced):
    folder, values = reproduced
    assert {path.name for path in folder.iterdir()} == {
        f"table1.{kind}" for kind in ("md", "json", "png", "svg")
    }
    assert (folder / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert "restricted self-attention" in (folder / "table1.svg").read_text("utf-8")
    text = (folder / "table1.md").read_text("utf-8")
    assert (
        "| convolution, contiguous | O(k·n·d²) | O(1) | 1 | O(n/k) | 10 | 29 |" in text
    )
    assert "| self-attention | 2.00 | 2.00 |" in text
    assert "By operations, self-attention at d = 64 is cheaper than a recurrent" in text
    assert values["machine"]["platform"] == "cpu"


def test_an_unknown_scale_is_refused():
    unknown: Any = "tiny"
    with pytest.raises(UserError, match="paper, small, smoke"):
        complexity.measure(unknown)


@pytest.mark.slow
def test_crossovers_outside_of_what_was_measured_are_told(reproduced):
    values = reproduced[1]
    points = tuple(measurement.Point(**x) for x in values["points"])
    sizes = measurement.Scale(**values["sizes"])
    sizes_of: Any = {"scale": "smoke", "machine": {}, "sizes": sizes, "paths": ()}
    table = complexity.Table1(**sizes_of, points=points, growths=(), crossings=())
    crossing = measurement.Crossing("recurrent", "flops", None)
    # At d = 64 both cost the same at n = 64, and attention more from there on.
    assert "at no n measured" in report._sentence(table, crossing)
