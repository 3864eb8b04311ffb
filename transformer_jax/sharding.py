"""Which device holds what: the mesh, and parameter path -> mesh axes.

The mesh has three axes. `data` and `fsdp` share the rows of a batch; `fsdp` also splits
each parameter along d_model, and `tensor` along heads, d_ff and vocabulary. Arrays are
global and the compiler places the communication.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from transformer_jax.config import MeshConfig
from transformer_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")
_ROW_AXES = ("data", "fsdp")

Tree = TypeVar("Tree")

# The last names of a parameter's path -> the mesh axis that splits each of its axes.
# Exactly one row matches each parameter.
PARAMETER_AXES: tuple[tuple[str, P], ...] = (
    (r"(source_|target_|output_)?embedding", P("tensor", "fsdp")),
    (r"(source|target)_positions", P(None, "fsdp")),
    (r"attention/w_(query|key|value)", P("fsdp", "tensor", None)),
    (r"attention/w_output", P("tensor", None, "fsdp")),
    (r"feed_forward/w1", P("fsdp", "tensor")),
    (r"feed_forward/b1", P("tensor")),
    (r"feed_forward/w2", P("tensor", "fsdp")),
    (r"feed_forward/b2", P(None)),
    (r"norm/(gain|bias)", P(None)),
)


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """How a global batch is spread over devices and time: [parts, rows, length].

    Row r of part p is row p * rows_per_part + r of the batch. Those from `num_rows` on
    are empty and change nothing, so that any number of devices can share a batch.
    """

    num_rows: int  # of the batch, which the config and the text decide alone
    num_parts: int  # computed one after another; their gradients add up
    rows_per_part: int  # shared evenly by the shards
    num_shards: int  # devices that take different rows

    @classmethod
    def of(
        cls, num_rows: int, row_length: int, mesh: Mesh, *, max_tokens_per_device: int
    ) -> "BatchLayout":
        """The fewest parts that fit.

        Args:
          num_rows: of the global batch.
          row_length: positions of a row.
          mesh: whose `data` and `fsdp` axes share the rows.
          max_tokens_per_device: of a part; 0 = no limit.

        Raises:
          UserError: not even one row fits.
        """
        if 0 < max_tokens_per_device < row_length:
            raise UserError(
                f"training.max_tokens_per_device is {max_tokens_per_device}, less than "
                f"one row of {row_length} tokens: raise it or lower data.row_length"
            )
        num_shards = num_row_shards(mesh)
        per_device = -(-num_rows // num_shards)
        most = max_tokens_per_device // row_length or per_device
        num_parts = -(-per_device // most)
        rows_per_part = -(-num_rows // (num_parts * num_shards)) * num_shards
        return cls(num_rows, num_parts, rows_per_part, num_shards)

    @property
    def num_empty_rows(self) -> int:
        """Rows that are there only to make the shares even."""
        return self.num_parts * self.rows_per_part - self.num_rows


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over all devices; one axis of size -1 takes those that are left.

    Args:
      config: sizes of the axes.
      devices: instead of all that JAX sees: a part of them, or those of a topology
        that programs are only compiled for.

    Raises:
      UserError: the sizes do not multiply to the number of devices.
    """
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    devices = jax.devices() if devices is None else devices
    num_devices = len(devices)
    fixed = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and num_devices % fixed == 0:
        sizes = [num_devices // fixed if size == -1 else size for size in sizes]
    if min(sizes) < 1 or math.prod(sizes) != num_devices:
        shown = ", ".join(
            f"mesh.{axis}={size}" for axis, size in zip(MESH_AXES, sizes, strict=True)
        )
        raise UserError(
            f"{shown} do not multiply to the number of devices, {num_devices}: change "
            "one, or set one to -1 (what is left)"
        )
    return jax.make_mesh(
        tuple(sizes),
        MESH_AXES,
        axis_types=(AxisType.Auto,) * len(MESH_AXES),
        devices=devices,
    )


def platform_of(mesh: Mesh) -> str:
    """What its devices are, such as "cpu", "gpu" or "tpu"."""
    return mesh.devices.flat[0].platform


def num_row_shards(mesh: Mesh) -> int:
    """Devices that take different rows of a batch."""
    return math.prod(mesh.shape[axis] for axis in _ROW_AXES)


def row_sharding(mesh: Mesh) -> NamedSharding:
    """The first axis over `data` and `fsdp`."""
    return NamedSharding(mesh, P(_ROW_AXES))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The rows of arrays [parts, rows, length] over `data` and `fsdp`."""
    return NamedSharding(mesh, P(None, _ROW_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on each device."""
    return NamedSharding(mesh, P())


def parameter_axes(path: str) -> P:
    """The row of `PARAMETER_AXES` for a path such as "decoder_0/feed_forward/w1".

    Raises:
      LookupError: no row, or more than one, matches.
    """
    rows = [
        axes
        for pattern, axes in PARAMETER_AXES
        if re.search(rf"(^|[/_]){pattern}$", path)
    ]
    if len(rows) != 1:
        raise LookupError(f"{len(rows)} rows of PARAMETER_AXES match parameter {path}")
    return rows[0]


def gather(params: Tree, mesh: Mesh) -> Tree:
    """The parameters as a layer needs them: whole along `fsdp`, inside a jit.

    Without it the compiler may rather gather the activations of the whole batch. The
    gradient by the gathered parameters is summed and split again in the same way.
    """

    def whole(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        spec = P(*(axis if axis != "fsdp" else None for axis in _axes(path)))
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))

    return jax.tree.map_with_path(whole, params)


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """A tree of shardings for a tree of arrays (or their shapes).

    Parameters, and whatever the optimiser keeps under a parameter's path, follow the
    table; scalars are replicated.

    Raises:
      UserError: an axis of an array is not divisible by its axis of the mesh.
    """

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        spec = P() if leaf.ndim == 0 else _axes(path)
        for size, axis in zip(leaf.shape, spec, strict=True):
            if axis is not None and size % mesh.shape[axis]:
                raise UserError(
                    f"parameter {_name(path)} of shape {leaf.shape} cannot be split "
                    f"evenly by mesh.{axis}={mesh.shape[axis]}: change the mesh, or "
                    f"the model's size {size}"
                )
        return NamedSharding(mesh, spec)

    return jax.tree.map_with_path(sharding, state)


def _axes(path: tuple[Any, ...]) -> P:
    return parameter_axes(_name(path))


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(str(key.key) for key in path if hasattr(key, "key"))


def to_global(tree: Any, sharding: Sharding) -> Any:
    """Global arrays of numpy arrays that every process has whole."""
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, sharding, lambda i: x[i]), tree
    )


def place_batch(
    make_rows: Callable[[Sequence[int]], Tree], layout: BatchLayout, mesh: Mesh
) -> Tree:
    """The global arrays [parts, rows, length] of a batch.

    Args:
      make_rows: numbers of rows of the batch -> a tree of numpy arrays [rows, length].
        It is asked only for the rows that this process's own devices take, once each.
      layout: of the batch.
      mesh: as the layout's.
    """
    sharding = batch_sharding(mesh)
    shape = layout.num_parts, layout.rows_per_part
    blocks: dict[int, Any] = {}  # by the first row of a device

    def rows_of(index: Any) -> tuple[int, int]:
        return index[1].indices(layout.rows_per_part)[:2]

    for index in sharding.addressable_devices_indices_map(shape).values():
        first, last = rows_of(index)
        if first not in blocks:
            parts = np.arange(layout.num_parts)[:, None] * layout.rows_per_part
            numbers = (parts + np.arange(first, last)[None]).ravel()
            blocks[first] = jax.tree.map(
                lambda x: x.reshape(layout.num_parts, -1, *x.shape[1:]),
                make_rows(numbers.tolist()),
            )
    firsts = list(blocks)

    def array(*parts: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(
            (*shape, *parts[0].shape[2:]),
            sharding,
            lambda index: parts[firsts.index(rows_of(index)[0])],
        )

    return jax.tree.map(array, *blocks.values())
