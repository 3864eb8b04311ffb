"""The real programs compiled for chips that are not here, and what they would cost.

XLA's compilers for TPU and GPU need no device, only a description of one. The training
step and the beam search go through them as they would on the chips, and their figures
are read from the result. Times are not measured: there is nothing to measure.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from transformer_jax import hlo
from transformer_jax.config import ExperimentConfig, MeshConfig, nearest
from transformer_jax.cost import model_flops
from transformer_jax.data.batch import Batch
from transformer_jax.data.pipeline import rows_of_batch
from transformer_jax.errors import UserError
from transformer_jax.inference import Searcher
from transformer_jax.models import Transformer, num_parameters, parameter_shapes
from transformer_jax.sharding import (
    BatchLayout,
    batch_sharding,
    make_mesh,
    platform_of,
    replicated,
)
from transformer_jax.training.program import TrainingProgram

# A jitted function, and the shapes and shardings of its arguments.
_Call = tuple[Any, tuple[Any, ...]]

_SEARCH_LENGTH = 64  # source tokens of a sentence in the compiled beam search
_SMALLEST_BUFFER = 100_000  # bytes of one that is worth a line
_SHOWN = 10  # lines of a list; a last line sums up the others


@dataclasses.dataclass(frozen=True)
class Chip:
    """What one device can do, by its vendor."""

    platform: str  # of XLA's compiler
    example: str  # a topology
    memory_bytes: float
    bfloat16_rate: float  # FLOP/s of dense matrix products
    memory_rate: float  # bytes/s
    interconnect_rate: float  # bytes/s that it can send, over all of its links


CHIPS = {
    # https://cloud.google.com/tpu/docs/v5e: 16 GB, 197 TFLOPs, 819 GBps, 400 GBps of
    # interconnect in both directions together.
    "v5e": Chip("tpu", "v5e:2x4", 16 * 2**30, 197e12, 819e9, 200e9),
    # https://cloud.google.com/tpu/docs/v5p: 95 GB, 459 TFLOPs, 2765 GBps, 4800 Gbps
    # of interconnect (in one direction: v5e's was given as 1600 Gbps then).
    "v5p": Chip("tpu", "v5p:2x2x1", 95 * 2**30, 459e12, 2765e9, 600e9),
    # https://cloud.google.com/tpu/docs/v6e: 32 GB, 918 TFLOPs, 1638 GBps, 800 GBps.
    "v6e": Chip("tpu", "v6e:2x4", 32 * 2**30, 918e12, 1638e9, 400e9),
    # https://www.nvidia.com/en-us/data-center/h200: 141 GB (of which a program sees
    # this much), 1979 TFLOPS with sparsity, so half without, 4.8 TB/s, 900 GB/s of
    # NVLink in both directions together.
    "h200": Chip("cuda", "h200:8", 150_754_820_096, 989.5e12, 4800e9, 450e9),
}

# Without the first three libtpu asks Google's metadata server which TPU it is on;
# without the last it insists to be alone on the machine, as the user of a chip must be.
_TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_CUDA_MODULES = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
# What XLA asks a GPU for when there is one.
_H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 62914560
  clock_rate_ghz: 1.98 device_memory_size: 150754820096
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 28 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H200"
"""


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind and how they are connected, such as "v5e:2x4"."""

    name: str
    chip: Chip
    dims: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """The topology that the text means.

        >>> Topology.parse("v5e:2x4").dims
        (2, 4)

        Raises:
          UserError: a chip that is not in `CHIPS`, or not such a grid of it.
        """
        kind, _, grid = text.partition(":")
        if kind not in CHIPS:
            raise UserError(f"topology {text}: no chip {kind!r}{nearest(kind, CHIPS)}")
        chip = CHIPS[kind]
        example = chip.example.partition(":")[2]
        num_axes = example.count("x") + 1
        if not re.fullmatch(rf"[1-9]\d*(x[1-9]\d*){{{num_axes - 1}}}", grid):
            raise UserError(
                f"topology {text}: expected {kind}:{'x'.join('N' * num_axes)}, such as "
                f"{chip.example}"
            )
        return cls(text, chip, tuple(map(int, grid.split("x"))))

    def devices(self) -> Sequence[Any]:
        """Devices that can be compiled for, but hold and run nothing.

        Raises:
          UserError: the compiler is not installed, or knows no such topology.
        """
        is_tpu = self.chip.platform == "tpu"
        modules = ["libtpu"] if is_tpu else _CUDA_MODULES
        if not any(map(_is_installed, modules)):
            extra, version = "tpu" if is_tpu else "cuda13", jax.__version__
            raise UserError(
                f"no compiler for {self.name} is installed: pip install "
                f'"jax[{extra}]=={version}"'
            )
        try:
            if is_tpu:
                os.environ.update(_TPU_ENVIRONMENT)
                topology = topologies.get_topology_desc(self.name, platform="tpu")
            else:
                topology = topologies.get_topology_desc(
                    platform="cuda",
                    target_config=_H200,
                    topology=f"1x1x{self.dims[0]}",
                )
        except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"topology {self.name}: {reason}; expected one such as "
                f"{self.chip.example}"
            ) from error
        return topology.devices


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """What one compiled program needs, per chip and run.

    FLOPs, traffic and messages are counted in the optimised program by
    `transformer_jax.hlo`, loop bodies as often as they run: `cost_analysis()` counts
    each body once and would miss most of the loss. FLOPs are those of matrix products
    alone, as in `model_flops`, so that more than the model's are work done twice.
    """

    title: str
    chip: Chip
    mesh: dict[str, int]
    program_flops: float
    model_flops: float | None
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int  # of the outputs, those that lie in donated arguments
    temporary_bytes: int
    code_bytes: int
    traffic_bytes: float  # to and from the main memory
    collectives: list[hlo.Collective]
    least_sent_bytes: float | None  # see `_least_sent_bytes`
    buffers: list[hlo.Buffer]
    compile_time_s: float  # lowering not included

    @property
    def memory_bytes(self) -> int:
        """What the program occupies while it runs."""
        new_outputs = self.output_bytes - self.aliased_bytes
        temporaries = self.temporary_bytes + self.code_bytes
        return self.argument_bytes + new_outputs + temporaries

    @property
    def sent_bytes(self) -> float:
        """What a chip sends if each collective is a ring."""
        return sum(collective.sent_bytes for collective in self.collectives)

    def lines(self) -> str:
        """The figures, then the collectives and the largest buffers."""
        chip = self.chip
        share = self.memory_bytes / chip.memory_bytes
        fits = "fits" if share <= 1 else "DOES NOT FIT"
        times = {
            "matrix products": self.program_flops / chip.bfloat16_rate,
            "memory": self.traffic_bytes / chip.memory_rate,
            "interconnect": self.sent_bytes / chip.interconnect_rate,
        }
        rows = [
            ("compile time", f"{self.compile_time_s:,.1f} s"),
            ("program FLOPs", f"{self.program_flops / 1e9:,.3f} GFLOP"),
        ]
        if self.model_flops is not None:
            ratio = self.program_flops / self.model_flops
            rows += [
                ("model FLOPs", f"{self.model_flops / 1e9:,.3f} GFLOP"),
                ("program / model", f"{ratio:.3f}"),
            ]
        rows += [
            ("arguments", _megabytes(self.argument_bytes)),
            ("outputs", _megabytes(self.output_bytes)),
            ("of them in arguments", _megabytes(self.aliased_bytes)),
            ("temporaries", _megabytes(self.temporary_bytes)),
            ("code", _megabytes(self.code_bytes)),
            ("memory in all", f"{_megabytes(self.memory_bytes)}, {share:.0%}: {fits}"),
            ("memory traffic", _megabytes(self.traffic_bytes)),
            ("sent to other chips", _megabytes(self.sent_bytes)),
        ]
        if self.least_sent_bytes is not None:
            rows.append(("least for this mesh", _megabytes(self.least_sent_bytes)))
        rows += [(f"estimate: {x}", f"{t * 1e3:,.2f} ms") for x, t in times.items()]
        rows.append(("estimate: bound by", max(times, key=lambda x: times[x])))
        table = [f"{name:<26} {value:>20}" for name, value in rows]
        return "\n".join([self.title, *table, *self._sums(), *self._lists()])

    def _sums(self) -> list[str]:
        """Collectives of a kind along the same mesh axes in a line."""
        sums: dict[tuple[str, str], list[float]] = {}
        for x in self.collectives:
            total = sums.setdefault((x.kind, self._axes(x)), [0, 0, 0])
            new = x.executions, x.executions * x.num_bytes, x.sent_bytes
            total[:] = [a + b for a, b in zip(total, new, strict=True)]
        return [
            f"{kind} along {axes}: {number:,.0f} of {_megabytes(whole)} in all, "
            f"{_megabytes(sent)} sent"
            for (kind, axes), (number, whole, sent) in sorted(sums.items())
        ]

    def _axes(self, collective: hlo.Collective) -> str:
        """The mesh axes along which the members of a group differ."""
        places = np.unravel_index(collective.group, tuple(self.mesh.values()))
        axes = [x for x, at in zip(self.mesh, places, strict=True) if len(set(at)) > 1]
        return "+".join(axes) or "none"

    def _lists(self) -> list[str]:
        # Equal ones, as layers have them, share a line, named after the first.
        equal: dict[tuple[Any, ...], list[hlo.Collective]] = {}
        for x in self.collectives:
            key = x.kind, x.group, x.shapes, x.executions
            equal.setdefault(key, []).append(x)
        groups = sorted(equal.values(), key=lambda x: -len(x) * x[0].sent_bytes)
        lines = ["largest collectives:"] if groups else []
        for members in groups[:_SHOWN]:
            one = members[0]
            shape = str(max(one.shapes, key=lambda shape: shape.num_bytes))
            if len(one.shapes) > 1:
                shape += f" and {len(one.shapes) - 1} more"
            sent = _megabytes(len(members) * one.sent_bytes)
            lines.append(
                f"  {len(members)} x {one.kind} along {self._axes(one)} of {shape}, "
                f"{_megabytes(one.num_bytes)}, run {one.executions} times, {sent} sent"
                f"{_from(one.origin)}"
            )
        if rest := [x for members in groups[_SHOWN:] for x in members]:
            sent = sum(x.sent_bytes for x in rest)
            lines.append(f"  {len(rest)} others, {_megabytes(sent)} sent")
        if self.buffers:
            lines.append("largest temporary results, not all alive at once:")
        lines += [
            f"  {x.num_results} x {x.shape}, {_megabytes(x.shape.num_bytes)}"
            f"{_from(x.origin)}"
            for x in self.buffers
        ]
        return lines


def _from(origin: str) -> str:
    return f": {origin}" if origin else ""


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def compile_programs(
    config: ExperimentConfig, topology: Topology
) -> tuple[ProgramReport, ProgramReport]:
    """Reports of the training step and of the beam search on the chips of a topology.

    The step has a batch of training: `training.batch_tokens` on each side, laid out as
    there; empty rows are work of the program and not of the model. The search runs to
    its last step.

    Raises:
      UserError: no compiler, a mesh that is not of so many chips, or a program too
        large for one.
    """
    mesh = make_mesh(config.mesh, topology.devices())
    axes = dict(mesh.shape)
    shown = ", ".join(f"{axis}={size}" for axis, size in axes.items())
    where = f"on each of {mesh.size} chips of {topology.name}, mesh {shown}"
    layout, length = _layout(config, mesh), config.data.row_length
    flops = model_flops(
        config.model, rows=layout.num_rows, source_length=length, target_length=length
    )
    step = _report(
        f"training step, {layout.num_rows} rows of {length} + {length} tokens in "
        f"{layout.num_parts} parts of {layout.rows_per_part}, {where}",
        _train_step(config, mesh),
        topology,
        axes,
        model_flops=flops / mesh.size,
        least_sent_bytes=_least_sent_bytes(config, axes),
    )
    # Each device searches for itself.
    chip = make_mesh(MeshConfig(), topology.devices()[:1])
    plan = _searcher(config, chip).plan(config.decoding, _SEARCH_LENGTH)
    search = _report(
        f"beam search, {plan.rows} rows of {_SEARCH_LENGTH} tokens, "
        f"{plan.max_length} steps, on each chip of {topology.name} by itself",
        _beam_search(config, chip),
        topology,
        dict(chip.shape),
        unknown_trips=plan.max_length,
    )
    return step, search


@contextlib.contextmanager
def _nothing_cached() -> Iterator[None]:
    """What is compiled for absent chips cannot be read back from JAX's disk cache."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _report(
    title: str,
    call: _Call,
    topology: Topology,
    mesh: dict[str, int],
    *,
    model_flops: float | None = None,
    least_sent_bytes: float | None = None,
    unknown_trips: int = 1,
) -> ProgramReport:
    function, arguments = call
    lowered = function.lower(*arguments)
    start = time.perf_counter()
    try:
        with _nothing_cached():
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        used = re.search(r"[Uu]sed .*? of .*? hbm", str(error))
        reason = used[0] if used else str(error).partition("\n")[0]
        raise UserError(
            f"{title}: does not fit ({reason}): lower training.batch_tokens or raise "
            "mesh.fsdp or mesh.tensor"
        ) from error
    compile_time = time.perf_counter() - start
    program = hlo.parse(compiled.as_text() or "", unknown_trips=unknown_trips)
    memory: Any = compiled.memory_analysis()
    return ProgramReport(
        title=title,
        chip=topology.chip,
        mesh=mesh,
        program_flops=hlo.product_flops(program),
        model_flops=model_flops,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        aliased_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        traffic_bytes=hlo.memory_bytes(program),
        collectives=hlo.collectives(program),
        least_sent_bytes=least_sent_bytes,
        buffers=hlo.largest_buffers(program, _SHOWN, at_least=_SMALLEST_BUFFER),
        compile_time_s=compile_time,
    )


def _least_sent_bytes(config: ExperimentConfig, mesh: dict[str, int]) -> float:
    """What a chip must send in a step, in float32, tensor parallelism apart.

    With P bytes of parameters and axes of d, f and t chips, rings gather the parameters
    along f and scatter their gradients there, then reduce the parts along d:
    2 P/t (f-1)/f + 2 P/(t f) (d-1)/d.
    """
    data, fsdp, tensor = mesh["data"], mesh["fsdp"], mesh["tensor"]
    share = 4 * num_parameters(config.model) / tensor
    return 2 * share * ((fsdp - 1) / fsdp + (data - 1) / data / fsdp)


def _layout(config: ExperimentConfig, mesh: Mesh) -> BatchLayout:
    return BatchLayout.of(
        rows_of_batch(config.training.batch_tokens, config.data.row_length),
        config.data.row_length,
        mesh,
        max_tokens_per_device=config.training.max_tokens_per_device,
    )


def _train_step(config: ExperimentConfig, mesh: Mesh) -> _Call:
    """The training step as `transformer_jax.training.loop` runs it."""
    program, layout = TrainingProgram(config, mesh), _layout(config, mesh)
    shape = layout.num_parts, layout.rows_per_part, config.data.row_length
    ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(mesh))
    key = jax.eval_shape(lambda: jax.random.key(0))
    batch = Batch(ids, ids, ids, ids, ids)
    return program.step, (program.state, batch, _placed(key, replicated(mesh)))


def _searcher(config: ExperimentConfig, mesh: Mesh) -> Searcher:
    model = Transformer(config.model.on_platform(platform_of(mesh)))
    params = jax.tree.map(
        lambda x: _placed(x, replicated(mesh)), parameter_shapes(model.config)
    )
    return Searcher([model], [params], mesh)


def _beam_search(config: ExperimentConfig, mesh: Mesh) -> _Call:
    """The search as `transformer_jax.inference` runs it."""
    searcher = _searcher(config, mesh)
    plan = searcher.plan(config.decoding, _SEARCH_LENGTH)
    arguments = jax.tree.map(
        lambda x: _placed(x, replicated(mesh)), searcher.advance_arguments(plan)
    )
    return jax.jit(plan.advance, donate_argnums=1), arguments


def _placed(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
