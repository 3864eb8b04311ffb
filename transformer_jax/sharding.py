"""Which device holds what: the mesh, and parameter path -> mesh axes.

The mesh has three axes. `data` and `fsdp` share the rows of a batch; `fsdp` also splits
each parameter along d_model, and `tensor` along heads, d_ff and vocabulary. Arrays are
global and the compiler places the communication.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.config import MeshConfig
from transformer_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")

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


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over all devices; one axis of size -1 takes those that are left.

    Args:
      config: devices along each axis.
      devices: what the mesh is made of, if not all that JAX sees here: those of a
        topology that programs are only compiled for.

    Raises:
      UserError: the sizes do not multiply to the number of devices.
    """
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    num_devices = jax.device_count() if devices is None else len(devices)
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


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over `data` and `fsdp`."""
    return NamedSharding(mesh, P(("data", "fsdp")))


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


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """A tree of shardings for a tree of arrays (or their shapes).

    Parameters, and whatever the optimiser keeps under a parameter's path, follow the
    table; scalars are replicated.
    """

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if leaf.ndim == 0:
            return replicated(mesh)
        names = [str(key.key) for key in path if hasattr(key, "key")]
        return NamedSharding(mesh, parameter_axes("/".join(names)))

    return jax.tree.map_with_path(sharding, state)
