"""How fast a training step is, against how fast this machine multiplies matrices."""

import dataclasses
import functools
import resource
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ExperimentConfig, MeshConfig
from transformer_jax.cost import model_flops
from transformer_jax.data.batch import Batch
from transformer_jax.sharding import batch_sharding, make_mesh, to_global
from transformer_jax.training.program import TrainingProgram


@dataclasses.dataclass(frozen=True)
class BenchmarkReport:
    """What `benchmark_training` measured."""

    step_time_s: float  # median
    target_tokens_per_s: float
    model_flops: float  # of one step
    float32_matmul_rate: float  # FLOP/s, the best of before and after the steps
    bfloat16_matmul_rate: float  # FLOP/s, the same
    share_of_float32_rate: float  # model_flops / step_time_s / float32_matmul_rate
    compile_time_s: float  # tracing and lowering included
    peak_memory_mb: float  # of this process's whole life, on the host, in 10^6 bytes

    def lines(self) -> str:
        """A table, one figure a line."""
        rate = self.model_flops / self.step_time_s
        rows = [
            ("step time (median)", f"{self.step_time_s * 1e3:,.1f} ms"),
            ("target tokens", f"{self.target_tokens_per_s:,.0f} /s"),
            ("model FLOPs of a step", f"{self.model_flops / 1e9:,.3f} GFLOP"),
            ("model rate", f"{rate / 1e9:,.1f} GFLOP/s"),
            ("float32 matmul rate", f"{self.float32_matmul_rate / 1e9:,.1f} GFLOP/s"),
            ("bfloat16 matmul rate", f"{self.bfloat16_matmul_rate / 1e9:,.1f} GFLOP/s"),
            ("share of float32 rate", f"{self.share_of_float32_rate:.1%}"),
            ("compile time", f"{self.compile_time_s:,.1f} s"),
            ("peak host memory", f"{self.peak_memory_mb:,.0f} MB"),
        ]
        return "\n".join(f"{name:<22} {value:>18}" for name, value in rows)


def matmul_rate(dtype: str, size: int = 2048) -> float:
    """FLOP/s of a square matrix product with float32 sums, the best of five.

    Args:
      dtype: of the operands, "float32" or "bfloat16".
      size: of each side.
    """
    x = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    product = jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32))
    jax.block_until_ready(product(x, x))  # compiles
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(product(x, x))
        times.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(times)


def benchmark_training(
    config: ExperimentConfig, *, rows: int, length: int, steps: int
) -> BenchmarkReport:
    """Times training steps on one device and a batch of random tokens, no padding.

    The step is the one of training, dropout included, with its state donated. A first
    step is not counted, and each is waited for.

    Args:
      config: the model, its optimizer and label smoothing.
      rows: of the batch.
      length: tokens of each row, on the source side and on the target side.
      steps: how many are timed, 1 or more.
    """
    rates_before = matmul_rate("float32"), matmul_rate("bfloat16")
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    program = TrainingProgram(config, mesh)
    key = jax.random.key(config.seed)
    state = program.init(key)
    batch = to_global(_random_batch(config, rows, length), batch_sharding(mesh))
    start = time.perf_counter()
    compiled = program.step.lower(state, batch, key).compile()
    compile_time = time.perf_counter() - start
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state, batch, key))
        times.append(time.perf_counter() - start)
    step_time = statistics.median(times[1:])
    flops = model_flops(
        config.model, rows=rows, source_length=length, target_length=length
    )
    float32_rate = max(rates_before[0], matmul_rate("float32"))
    return BenchmarkReport(
        step_time_s=step_time,
        target_tokens_per_s=rows * length / step_time,
        model_flops=flops,
        float32_matmul_rate=float32_rate,
        bfloat16_matmul_rate=max(rates_before[1], matmul_rate("bfloat16")),
        share_of_float32_rate=flops / step_time / float32_rate,
        compile_time_s=compile_time,
        # Linux counts it in units of 1024 bytes.
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3,
    )


def _random_batch(config: ExperimentConfig, rows: int, length: int) -> Batch:
    rng = np.random.default_rng(config.seed)
    shape = (1, rows, length)
    source, target_input, target_output = rng.integers(
        1, config.model.vocab_size, (3, *shape), dtype=np.int32
    )
    ones = np.ones(shape, np.int32)
    return Batch(source, ones, target_input, target_output, ones)
