"""What a config is and would cost, in words and figures, before anything runs."""

import collections
import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.benchmark import BenchmarkReport, benchmark_training
from transformer_jax.compilation import CHIPS
from transformer_jax.config import ExperimentConfig, TransformerConfig
from transformer_jax.conformance import (
    CHOICES,
    PARSER_CHOICES,
    Reference,
    deviations,
    nearest_reference,
    paper_experiment,
    table_3_row,
)
from transformer_jax.cost import (
    PAPER_CHIPS,
    PAPER_HOURS,
    PAPER_RATES,
    TrainingMemory,
    paper_flops,
    predicted_hours,
    run_flops,
    step_flops,
    time_in_words,
    training_memory,
)
from transformer_jax.data.pipeline import rows_of_batch
from transformer_jax.models import parameter_shapes
from transformer_jax.training.optimizer import learning_rate

# Parts of the model, and which paths of parameters each has; the first match counts.
PARTS = (
    ("embeddings", r"(source_|target_)?embedding"),
    ("positions", r"(source|target)_positions"),
    ("encoder: attention", r"encoder_\d+/self_attention/"),
    ("encoder: feed-forward", r"encoder_\d+/feed_forward/"),
    ("encoder: norms", r"encoder_(\d+/.*_residual|norm)/"),
    ("decoder: self-attention", r"decoder_\d+/self_attention/"),
    ("decoder: attention over the source", r"decoder_\d+/cross_attention/"),
    ("decoder: feed-forward", r"decoder_\d+/feed_forward/"),
    ("decoder: norms", r"decoder_(\d+/.*_residual|norm)/"),
    ("output", r"output_embedding"),
)
_CHART_WIDTH, _CHART_HEIGHT = 64, 8  # characters
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MOST_RATES = 100_000  # steps of which the learning rate is computed
_CPU_ROWS = 8  # of a batch, measured on a CPU: a whole one would take minutes


def parameters_by_part(config: TransformerConfig) -> dict[str, int]:
    """The number of parameters of each of `PARTS`."""
    counts = collections.Counter({part: 0 for part, _ in PARTS})
    leaves = jax.tree_util.tree_leaves_with_path(parameter_shapes(config))
    for path, leaf in leaves:
        name = "/".join(str(key.key) for key in path)
        counts[next(part for part, match in PARTS if re.match(match, name))] += (
            leaf.size
        )
    return dict(counts)


def learning_rates(config: ExperimentConfig) -> tuple[np.ndarray, np.ndarray]:
    """Steps from the first to the last, all or evenly spread, and the rate at each."""
    total, optimizer = config.training.steps, config.optimizer
    steps = np.linspace(1, total, min(total, _MOST_RATES)).round().astype(np.int32)
    steps = np.union1d(steps, min(optimizer.warmup_steps, total))  # the peak

    def rate(step: Any) -> Any:
        return learning_rate(
            step,
            d_model=config.model.d_model,
            warmup_steps=optimizer.warmup_steps,
            factor=optimizer.factor,
            total_steps=total,
            cooldown_steps=optimizer.cooldown_steps,
        )

    return steps, np.asarray(jax.vmap(rate)(jnp.asarray(steps)))


def averaged_steps(config: ExperimentConfig) -> list[int]:
    """Steps of the checkpoints that `--checkpoint=average` takes at the end of a run.

    Saved are the multiples of `checkpoint.every_steps`, those with a validation, and
    the last one; saves by the clock (`checkpoint.every_minutes`) are not foreseen.
    """
    total, last = config.training.steps, config.checkpoint.average_last
    saved = {total}
    for every in (config.checkpoint.every_steps, config.validation.every_steps):
        newest = total // every * every
        saved.update(range(newest, max(newest - last * every, 0), -every))
    return sorted(saved)[-last:]


def measure(config: ExperimentConfig, *, steps: int = 3) -> tuple[str, BenchmarkReport]:
    """Times real steps on one device of this machine: its name, and the figures.

    A CPU gets a few rows of a batch. Another device gets a whole one, or the part of it
    that `training.max_tokens_per_device` allows.
    """
    device = jax.devices()[0]
    rows = _rows_at_once(config)
    if device.platform == "cpu":
        rows = min(rows, _CPU_ROWS)
    length = config.data.row_length
    report = benchmark_training(config, rows=rows, length=length, steps=steps)
    name = f"{device.device_kind}, {rows} rows of {length} + {length} positions"
    return name, report


def explain(
    config: ExperimentConfig,
    name: str,
    *,
    utilisation: float,
    measured: tuple[str, BenchmarkReport] | None = None,
) -> str:
    """Everything that can be said of a config without training, as plain text.

    Args:
      config: what to explain.
      name: of it, for the title.
      utilisation: the share of a chip's rate that training is assumed to reach.
      measured: what `measure` gave.
    """
    reference = nearest_reference(config)
    sections = [
        (f"{name}, beside the paper's {reference}", _summary(config)),
        ("Parameters", _parameters(config)),
        ("FLOPs", _flops(config, reference)),
        ("Learning rate", _learning_rate(config)),
        ("Memory of training on one device, an upper estimate", _memory(config)),
        (
            f"Time of training, at {utilisation:.0%} of a chip's bfloat16 rate (P100: "
            "the paper's 9.5 TFLOPS)",
            _times(config, utilisation),
        ),
        ("Checkpoints", _checkpoints(config)),
        (f"Deviations from the paper's {reference}", _deviations(config, reference)),
        _choices(reference),
    ]
    if measured is not None:
        lines = _measured(config, *measured)
        sections.insert(-3, ("Measured on this machine", lines))
    return "\n\n".join(
        "\n".join([title, *(part for line in lines for part in _wrapped(line))])
        for title, lines in sections
    )


def plot_learning_rate(config: ExperimentConfig, path: Path) -> None:
    """Draws the learning rate over the steps, beside that of the paper, into a file.

    Args:
      config: the experiment.
      path: whose suffix says the format, such as .png or .svg.
    """
    from matplotlib.figure import Figure

    reference = nearest_reference(config)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*learning_rates(config), label="this config")
    paper = learning_rates(paper_experiment(reference))
    axes.plot(*paper, "--", label=f"the paper's {reference}")
    steps = (0, config.training.steps)
    axes.set(xlabel="step", xlim=steps, ylabel="learning rate", ylim=(0, None))
    axes.legend()
    figure.savefig(path)


def _summary(config: ExperimentConfig) -> list[str]:
    model, data, training = config.model, config.data, config.training
    optimizer, decoding = config.optimizer, config.decoding
    near = model.encoder_neighborhood
    near = f", each source position sees the {near} around it" if near else ""
    corpus = f"{data.corpus} {data.dataset}" if data.corpus == "tfds" else data.corpus
    return [
        f"model     {model.num_layers} + {model.num_layers} layers, d_model "
        f"{model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads of d_k "
        f"{model.d_k} and d_v {model.d_v}, {model.norm}-norm, {model.positions} "
        f"positions, {model.vocab_size:,} word pieces{near}",
        f"data      {corpus}, {data.source_language} to {data.target_language}, at "
        f"most {data.max_length} tokens a side",
        f"training  {training.steps:,} steps, dropout {model.dropout_rate}, label "
        f"smoothing {training.label_smoothing}, Adam {optimizer.b1}, {optimizer.b2}, "
        f"{optimizer.eps}",
        f"decoding  beam {decoding.beam_size}, length penalty "
        f"{decoding.length_penalty}, at most {decoding.max_length_factor:g} * input + "
        f"{decoding.max_extra_length} tokens",
    ]


def _parameters(config: ExperimentConfig) -> list[str]:
    counts = parameters_by_part(config.model)
    total = sum(counts.values())
    lines = [
        f"{part:<36}{count:>14,}{count / total:>8.1%}"
        for part, count in counts.items()
        if count
    ]
    if config.model.share_embeddings:
        lines.append(f"{'output':<36}{'the embeddings':>14}")
    lines.append(f"{'in all':<36}{total:>14,}")
    row = table_3_row(config)
    if row is not None:
        printed = "blank" if row.parameters is None else f"{row.parameters} million"
        lines.append(f"{f'Table 3, row {row.row}':<36}{printed:>14}")
    return lines


def _flops(config: ExperimentConfig, reference: Reference) -> list[str]:
    length = config.data.row_length
    return [
        f"tokens of an update   {config.training.batch_tokens:,} a side, in "
        f"{_num_rows(config)} rows of {length} + {length} positions",
        f"of the model, a step  {step_flops(config):.3g}, taking source rows to be as "
        "long as target rows; training fits them to the text",
        f"of the model, in all  {run_flops(config):.3g} in {config.training.steps:,} "
        "steps",
        f"beside it             {_paper_flops(reference)}",
    ]


def _paper_flops(reference: Reference) -> str:
    ours = run_flops(paper_experiment(reference))
    if reference.model not in PAPER_HOURS:
        return f"{ours:.3g} for the paper's {reference}, of which it gives no hours"
    hours, tflops = PAPER_HOURS[reference.model], PAPER_RATES["P100"] / 1e12
    paper = paper_flops(hours, num_chips=PAPER_CHIPS, tflops=tflops)
    return (
        f"{paper:.2g} for the paper's {reference}, by its method: {hours:g} hours x "
        f"{PAPER_CHIPS} P100 x {tflops:g} TFLOPS, of which {ours / paper:.0%} are its "
        "model's"
    )


def _learning_rate(config: ExperimentConfig) -> list[str]:
    steps, rates = learning_rates(config)
    peak = int(rates.argmax())
    last = f"step {steps[-1]:,}"
    return [
        f"peak {rates[peak]:.3g} at step {steps[peak]:,}, last {rates[-1]:.3g}",
        *chart(rates),
        f"1{last:>{_CHART_WIDTH - 1}}",
    ]


def chart(values: np.ndarray) -> list[str]:
    """Values from left to right as columns, in eighths of a character, from zero.

    A column is as high as the greatest of its values; the highest fills the chart.
    """
    edges = np.arange(_CHART_WIDTH + 1) * len(values) // _CHART_WIDTH
    columns = [
        max(values[first : max(end, first + 1)])
        for first, end in itertools.pairwise(edges)
    ]
    eighths = np.divide(columns, max(columns)) * 8 * _CHART_HEIGHT
    return [
        "".join(_BLOCKS[int(np.clip(round(x) - 8 * row, 0, 8))] for x in eighths)
        for row in reversed(range(_CHART_HEIGHT))
    ]


def _memory(config: ExperimentConfig) -> list[str]:
    rows, length = _rows_at_once(config), config.data.row_length
    kinds = {
        "on a CPU": _memory_on("cpu", config, rows),
        "on GPU or TPU": _memory_on("tpu", config, rows),
    }
    lines = [f"{'':<36}" + "".join(f"{kind:>14}" for kind in kinds)]
    for name in ("parameters", "moments", "gradients", "activations", "total"):
        sizes = [_gigabytes(getattr(memory, name)) for memory in kinds.values()]
        shown = {"moments": "Adam's moments", "total": "in all"}.get(name, name)
        if name == "activations":
            shown += f", {rows} rows of {length} + {length}"
        lines.append(f"{shown:<36}" + "".join(f"{size:>14}" for size in sizes))
    return lines


def _memory_on(platform: str, config: ExperimentConfig, rows: int) -> TrainingMemory:
    length = config.data.row_length
    model = config.model.on_platform(platform)
    return training_memory(model, rows=rows, source_length=length, target_length=length)


def _times(config: ExperimentConfig, utilisation: float) -> list[str]:
    flops = run_flops(config)
    memory = {
        n: _memory_on("tpu", config, _rows_at_once(config, n)).total
        for n in (1, PAPER_CHIPS)
    }
    header = "".join(f"{f'on {n}':>12}{'memory of each':>18}" for n in memory)
    lines = [f"{'chip':<6}{'TFLOP/s':>9}{header}"]
    chips = {name: (x.bfloat16_rate, x.memory_bytes) for name, x in CHIPS.items()}
    for name, (rate, capacity) in {"P100": (PAPER_RATES["P100"], 0), **chips}.items():
        line = f"{name:<6}{rate / 1e12:>9,.1f}"
        for n, num_bytes in memory.items():
            hours = predicted_hours(
                flops, rate=rate, num_chips=n, utilisation=utilisation
            )
            share = f"{num_bytes / capacity:.0%}" if capacity else ""
            line += f"{time_in_words(3600 * hours):>12}{share:>18}"
        lines.append(line)
    return lines


def _measured(
    config: ExperimentConfig, name: str, report: BenchmarkReport
) -> list[str]:
    rate = report.model_flops / report.step_time_s
    hours = predicted_hours(run_flops(config), rate=rate, utilisation=1.0)
    return [
        name,
        f"{report.target_tokens_per_s:,.0f} target tokens/s, {rate / 1e12:,.3f} TFLOP/s"
        f" of the model, {report.share_of_float32_rate:.0%} of its float32 products",
        f"{time_in_words(3600 * hours)} in all on one device",
    ]


def _checkpoints(config: ExperimentConfig) -> list[str]:
    steps, checkpoint = averaged_steps(config), config.checkpoint
    shown = ", ".join(f"{step:,}" for step in steps)
    if len(steps) > 6:
        shown = f"{steps[0]:,}, {steps[1]:,}, ..., {steps[-2]:,}, {steps[-1]:,}"
    return [
        f"every {checkpoint.every_steps:,} steps, and at each validation, every "
        f"{config.validation.every_steps:,}",
        f"averaged are the last {checkpoint.average_last}, of steps {shown}: "
        f"they span {steps[-1] - steps[0]:,}",
    ]


def _deviations(config: ExperimentConfig, reference: Reference) -> list[str]:
    found = [str(deviation) for deviation in deviations(config, reference)]
    row = table_3_row(config)
    if row is not None and row.row not in ("base", "big"):
        found.append(f"the model is that of Table 3, row {row.row}")
    return found or ["none"]


def _choices(reference: Reference) -> tuple[str, list[str]]:
    kind, choices = "config", CHOICES
    if reference.model == "parser":
        kind, choices = "parser", (*CHOICES, *PARSER_CHOICES)
    lines = [f"{choice.name}: {choice.text}" for choice in choices]
    return f"Where the paper is silent, in every {kind}", lines


def _num_rows(config: ExperimentConfig) -> int:
    return rows_of_batch(config.training.batch_tokens, config.data.row_length)


def _rows_at_once(config: ExperimentConfig, num_devices: int = 1) -> int:
    """Rows that a device computes at once where so many share a batch."""
    most = config.training.max_tokens_per_device // config.data.row_length
    rows = -(-_num_rows(config) // num_devices)
    return min(rows, most) if most else rows


def _wrapped(line: str) -> list[str]:
    """The line, indented, as lines of at most 88 characters."""
    return textwrap.wrap(
        line, 88, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
