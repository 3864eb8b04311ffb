"""What a run costs, before it starts and after it: FLOPs, memory and hours."""

import dataclasses

from transformer_jax.config import ExperimentConfig, TransformerConfig
from transformer_jax.data.pipeline import rows_of_batch
from transformer_jax.models import num_parameters, precision_of

# The sustained single-precision FLOP/s of a GPU, as the paper takes it (footnote 5).
PAPER_RATES = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
# Hours that its two models took on 8 P100s (Section 5.2: 12 hours, 3.5 days).
PAPER_HOURS = {"base": 12.0, "big": 84.0}
PAPER_CHIPS = 8
# The share of a chip's rate that training is assumed to reach. By its hours the paper's
# P100s reached 33% with the base model and 47% with the big one.
UTILISATION = 0.4

_FLOAT32 = 4  # bytes


def model_flops(
    config: TransformerConfig, *, rows: int, source_length: int, target_length: int
) -> float:
    """Floating-point operations of a step's forward and backward pass.

    Three times the forward pass, in which a product [m, k] x [k, n] counts 2 m n k and
    everything else (look-ups, softmax, norms, dropout, the optimizer) nothing. Masked
    positions count, but not those outside of `encoder_neighborhood`. With S source and
    T target positions a row, R = S or the neighbourhood where there is one, N layers,
    h heads, m = d_model, f = d_ff and vocabulary V:

        QO = 2 m h (d_k + d_v)      W^Q and W^O, a query position
        KV = 2 m h (d_k + d_v)      W^K and W^V, a key position
        A  = 2 h (d_k + d_v)        Q K^T and weights V, a pair of positions
        F  = 4 m f                  feed-forward, a position
        encoder layer = S (QO + KV + F) + S R A
        decoder layer = T (QO + KV + F) + T T A + T QO + S KV + T S A
        forward = rows (N (encoder layer + decoder layer) + 2 T m V)

    Args:
      config: the model.
      rows: of the batch.
      source_length: S, padding included.
      target_length: T, padding included.
    """
    source, target, m = source_length, target_length, config.d_model
    heads = config.num_heads * (config.d_k + config.d_v)
    projections = 2 * m * heads  # QO, and as many KV
    pair = 2 * heads
    position = 2 * projections + 4 * m * config.d_ff
    seen = min(config.encoder_neighborhood or source, source)
    encoder = source * position + source * seen * pair
    decoder = target * position + target * target * pair
    decoder += (target + source) * projections + target * source * pair
    logits = 2 * target * m * config.vocab_size
    return 3.0 * rows * (config.num_layers * (encoder + decoder) + logits)


def step_flops(config: ExperimentConfig) -> float:
    """`model_flops` of the packed batch that a step trains on.

    The source side of a row is as long as the corpus makes it (see
    `transformer_jax.data.pipeline.TrainingBatches`); before there is one, it is taken
    to be `data.row_length`, as the target side is.
    """
    return model_flops(
        config.model,
        rows=rows_of_batch(config.training.batch_tokens, config.data.row_length),
        source_length=config.data.row_length,
        target_length=config.data.row_length,
    )


def run_flops(config: ExperimentConfig) -> float:
    """`step_flops` of all steps; validation and translation are not counted."""
    return config.training.steps * step_flops(config)


def paper_flops(hours: float, *, num_chips: int, tflops: float) -> float:
    """FLOPs of a training run by the paper's method (Table 2, Section 6.1).

    "Multiplying the training time, the number of GPUs used, and an estimate of the
    sustained single-precision floating-point capacity of each GPU."

    Args:
      hours: of training.
      num_chips: GPUs.
      tflops: 10^12 FLOP/s of each; the paper's 2.8, 3.7, 6.0 and 9.5 for K80, K40, M40
        and P100.

    >>> f"{paper_flops(12, num_chips=8, tflops=9.5):.2g}"
    '3.3e+18'
    """
    return hours * 3600 * num_chips * tflops * 1e12


def predicted_hours(
    flops: float, *, rate: float, num_chips: int = 1, utilisation: float = UTILISATION
) -> float:
    """Hours that so many FLOPs take on chips that reach a share of their rate.

    Args:
      flops: of the run.
      rate: FLOP/s of one chip, as its maker or the paper gives it.
      num_chips: that share the work evenly.
      utilisation: the share of the rate that is reached, an assumption.
    """
    return flops / (rate * num_chips * utilisation) / 3600


def time_in_words(seconds: float) -> str:
    """A time in the unit that fits it.

    >>> time_in_words(0.26), time_in_words(90), time_in_words(5e3), time_in_words(1e6)
    ('0.26 s', '1.5 min', '1.4 h', '278 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    if seconds < 3600:
        return f"{seconds / 60:.2g} min"
    hours = seconds / 3600
    return f"{hours:,.1f} h" if hours < 100 else f"{hours:,.0f} h"


@dataclasses.dataclass(frozen=True)
class TrainingMemory:
    """Bytes that a training step holds on one device, by `training_memory`."""

    parameters: int
    moments: int  # Adam's two
    gradients: int
    activations: int  # what the forward pass keeps for the backward pass

    @property
    def total(self) -> int:
        """All of it."""
        return sum(dataclasses.astuple(self))


def training_memory(
    config: TransformerConfig, *, rows: int, source_length: int, target_length: int
) -> TrainingMemory:
    """An upper estimate of the memory of training on one device, nothing sharded.

    Parameters, moments and gradients are float32. Activations are those that JAX's
    differentiation keeps (`jax.ad_checkpoint.print_saved_residuals` lists them), in
    bytes, with `a` bytes an element of `dtype`:

        sub-layer = m (3 * 4 + 2 a + 1)     a position: its norm, sums, dropout
        Q, K, V, heads = h (d_k + d_v) a    a query, and the same again a key
        weights = h (2 * 4 + a + 1)         a pair of positions
        feed-forward = f (2 a + 1)          a position

    With `remat`, the input of every layer and one decoder layer as above. Attention
    dropout, embeddings and the loss's chunk of logits are left out. XLA needs less
    where it fuses or computes again: by its own analysis the base model's step takes
    0.97 of this estimate on a CPU in float32, 1.14 there in bfloat16, and 0.77 on each
    of 8 TPU v5e; the big one's 0.64 on those and 0.66 on each of 8 H200. On a CPU it
    undoes most of `remat`.

    Args:
      config: the model; an "auto" dtype counts as float32 (see `on_platform`).
      rows: of the batch, or of the part of it that the device computes at once.
      source_length: positions of a row.
      target_length: the same.
    """
    source, target, m = rows * source_length, rows * target_length, config.d_model
    a = 2 if precision_of(config).dtype == "bfloat16" else _FLOAT32
    sublayer = m * (3 * _FLOAT32 + 2 * a + 1)
    heads = config.num_heads * (config.d_k + config.d_v) * a
    pair = config.num_heads * (2 * _FLOAT32 + a + 1)
    feed_forward = config.d_ff * (2 * a + 1)
    seen = min(config.encoder_neighborhood or source_length, source_length)
    encoder = source * (2 * sublayer + 2 * heads + seen * pair + feed_forward)
    decoder = target * (3 * sublayer + 2 * heads + target_length * pair + feed_forward)
    decoder += (target + source) * heads + target * source_length * pair
    activations = config.num_layers * (encoder + decoder)
    if config.remat:
        activations = config.num_layers * (source + target) * m * a + decoder
    parameters = _FLOAT32 * num_parameters(config)
    return TrainingMemory(parameters, 2 * parameters, parameters, activations)


@dataclasses.dataclass(frozen=True)
class SpentCost:
    """What training steps did cost."""

    flops: float  # of the model, see `model_flops`
    seconds: float

    def line(self) -> str:
        """In one line, as a run reports it at its end.

        >>> SpentCost(7.2e15, 7200.0).line()
        '7.2e+15 model FLOPs in 2.0 h, 1 TFLOP/s'
        """
        return (
            f"{self.flops:.3g} model FLOPs in {time_in_words(self.seconds)}, "
            f"{self.flops / self.seconds / 1e12:.3g} TFLOP/s"
        )


def spent_cost(
    config: TransformerConfig,
    *,
    rows: int,
    row_lengths: tuple[int, int],
    steps: int,
    seconds: float,
) -> SpentCost:
    """What so many steps of a run did cost.

    Args:
      config: the model.
      rows: of a batch, the `num_rows` of `TrainingBatches`.
      row_lengths: source and target positions of a row, as there.
      steps: that were made.
      seconds: that they took, with the validations between them.
    """
    source_length, target_length = row_lengths
    step = model_flops(
        config, rows=rows, source_length=source_length, target_length=target_length
    )
    return SpentCost(steps * step, seconds)
