"""The paper's experiments at sizes that fit other machines.

One function makes a small experiment of each of the paper's: it divides widths and
layers, shortens the training, and leaves what distinguishes a row (heads, dropout,
label smoothing, positions, the ratio of its sizes to those of base) as it is.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TransformerConfig,
    ValidationConfig,
)
from transformer_jax.errors import UserError

_BASE = ExperimentConfig()
_MULTI30K = ("train", "val", "test_2016_flickr")


@dataclasses.dataclass(frozen=True)
class Scale:
    """What the paper's base model becomes; the other rows follow in proportion."""

    width_divisor: int  # of d_model, d_ff, d_k and d_v
    layer_divisor: int
    vocab_size: int
    max_length: int  # of a sentence and of a row, in tokens
    batch_tokens: int
    steps: int  # for the paper's 100,000
    warmup_steps: int  # for the paper's 4000
    peak_rate: float  # learning rate at the end of the warm-up
    data: dict[str, Any]  # the text, as changes of `DataConfig`


SCALES = {
    # Minutes a row on two CPU cores. The warm-up is the paper's share of the training.
    "smoke": Scale(
        width_divisor=8,
        layer_divisor=2,
        vocab_size=1000,
        max_length=64,
        batch_tokens=1024,
        steps=500,
        warmup_steps=20,
        peak_rate=0.004,
        data={"corpus": "phrases", "num_phrases": 20_000},
    ),
    # The sizes and the recipe of configs/multi30k.py, but for its cool-down and its
    # dropout, which are the row's own.
    "small": Scale(
        width_divisor=2,
        layer_divisor=2,
        vocab_size=8000,
        max_length=64,
        batch_tokens=4096,
        steps=7000,
        warmup_steps=1000,
        peak_rate=0.0015,
        data={
            "corpus": "files",
            "train": _MULTI30K[:1],
            "validation": _MULTI30K[1],
            "test": _MULTI30K[2],
        },
    ),
}
NAMES = ("paper", *SCALES)

# What a parser's small experiment becomes at the scale smoke: minutes on two CPU cores.
_SMOKE_PARSER = {
    "model": {"num_layers": 2, "d_model": 64, "d_k": 16, "d_v": 16, "d_ff": 128},
    "training": {"steps": 400, "batch_tokens": 2048, "log_every_steps": 40},
    "optimizer": {"factor": 0.32, "warmup_steps": 100, "cooldown_steps": 200},
    "validation": {"every_steps": 200, "bleu_sentences": 0, "metric": "loss"},
    "checkpoint": {"every_steps": 20, "keep_last": 5, "average_last": 5},
}
_TREES = ("", ".mrg", ".mrg.gz", ".list")  # of a folder or file of trees
_SECTIONS = tuple(f"{section:02}" for section in range(2, 24))


def scaled(paper: ExperimentConfig, name: str, folder: str) -> ExperimentConfig:
    """The paper's experiment at a scale.

    Args:
      paper: of configs/table3.py, base.py or big.py.
      name: one of `NAMES`; "paper" changes nothing but the folder.
      folder: `data.dir`.
    """
    if name == "paper":
        data = dataclasses.replace(paper.data, dir=folder)
        return dataclasses.replace(paper, data=data)
    scale = SCALES[name]
    shorter = scale.steps / _BASE.training.steps
    steps = round(paper.training.steps * shorter)
    training = dataclasses.replace(
        paper.training,
        steps=steps,
        batch_tokens=scale.batch_tokens,
        log_every_steps=max(1, steps // 10),
    )
    every_steps = max(1, steps // 4)
    validation = ValidationConfig(
        every_steps=every_steps, bleu_sentences=0, metric="loss"
    )
    if paper.checkpoint.average_last > 1:  # the average spans the same share of a run
        every_steps = max(1, round(paper.checkpoint.every_steps * shorter))
    return dataclasses.replace(
        paper,
        model=_model(paper.model, scale),
        data=_data(paper.data, scale, folder),
        training=training,
        optimizer=_optimizer(paper.optimizer, scale),
        validation=validation,
        checkpoint=dataclasses.replace(paper.checkpoint, every_steps=every_steps),
    )


def scaled_parser(config: ExperimentConfig, name: str, folder: str) -> ExperimentConfig:
    """A parser's experiment at a scale.

    Args:
      config: of configs/parsing.py, or of parsing_sample.py where the scale is not
        "paper".
      name: one of `NAMES`; "smoke" makes it smaller and shorter, the others change
        nothing but the folder.
      folder: `data.dir`.
    """
    changes = {"data": {"dir": folder}, **(_SMOKE_PARSER if name == "smoke" else {})}
    groups = {
        group: dataclasses.replace(getattr(config, group), **values)
        for group, values in changes.items()
    }
    return dataclasses.replace(config, **groups)


def _model(paper: TransformerConfig, scale: Scale) -> TransformerConfig:
    widths = ("d_model", "d_ff", "d_k", "d_v")
    changes = {name: getattr(paper, name) // scale.width_divisor for name in widths}
    share_of_vocabulary = paper.vocab_size / _BASE.model.vocab_size
    return dataclasses.replace(
        paper,
        num_layers=paper.num_layers // scale.layer_divisor,
        vocab_size=round(scale.vocab_size * share_of_vocabulary),
        max_length=scale.max_length,
        **changes,
    )


def _data(paper: DataConfig, scale: Scale, folder: str) -> DataConfig:
    return dataclasses.replace(
        paper,
        dir=folder,
        max_length=scale.max_length,
        row_length=scale.max_length,
        **scale.data,
    )


def _optimizer(paper: OptimizerConfig, scale: Scale) -> OptimizerConfig:
    """Equation 3, its peak for base at the scale's rate; d_model^-0.5 stays."""
    d_model = _BASE.model.d_model // scale.width_divisor
    factor = scale.peak_rate * (d_model * scale.warmup_steps) ** 0.5
    longer = paper.warmup_steps / _BASE.optimizer.warmup_steps
    return dataclasses.replace(
        paper,
        factor=paper.factor * factor,
        warmup_steps=round(scale.warmup_steps * longer),
    )


def require_text(name: str, data_dir: str, languages: Sequence[str]) -> None:
    """Refuses, before long work, a folder that is not of a scale's text.

    Args:
      name: of the scale: `paper` reads tensorflow-datasets' folder, `small` Multi30k's,
        and `smoke` none.
      data_dir: the folder given; "" = none.
      languages: on the target side, such as "de".

    Raises:
      UserError: Multi30k is not there, or a folder was given for generated text.
    """
    if name == "smoke" and data_dir:
        raise UserError(
            f"--data_dir is {data_dir}, but --scale=smoke generates its text: leave it "
            "out, or take --scale=small"
        )
    if name == "small":
        _require_multi30k(data_dir, languages)


def _require_multi30k(data_dir: str, languages: Sequence[str]) -> None:
    for stem in _MULTI30K:
        for language in ("en", *languages):
            path = Path(data_dir) / f"{stem}.{language}"
            if not data_dir or not any(map(Path.is_file, (path, Path(f"{path}.gz")))):
                given = f"--data_dir {data_dir} has no {path.name}" if data_dir else ""
                raise UserError(
                    f"{given or 'no --data_dir'}: --scale=small needs the folder of "
                    "Multi30k, data/task1/raw of https://github.com/multi30k/dataset, "
                    f"with {', '.join(_MULTI30K)} as .en and "
                    f".{' and .'.join(languages)} (or .gz)"
                )


def require_treebank(name: str, data_dir: str, extra: Sequence[str]) -> None:
    """Refuses, before long work, a folder without a scale's trees.

    Args:
      name: of the scale: `paper` reads the WSJ, the others free trees.
      data_dir: the folder given; "" = none.
      extra: names of parsed text that must be there too.

    Raises:
      UserError: it is not there.
    """
    expected = (
        "the folder of the Penn Treebank's WSJ, with its sections 02 to 23"
        if name == "paper"
        else "a folder of free trees with train and dev, each as .mrg or .mrg.gz, such "
        "as NLTK's sample of the WSJ"
    )
    for part in (*(_SECTIONS if name == "paper" else ("train", "dev")), *extra):
        paths = (Path(data_dir) / f"{part}{suffix}" for suffix in _TREES)
        if not data_dir or not any(map(Path.exists, paths)):
            given = f"--data_dir {data_dir} has no {part}" if data_dir else ""
            raise UserError(
                f"{given or 'no --data_dir'}: table4 at --scale={name} needs {expected}"
            )
