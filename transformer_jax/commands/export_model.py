"""python -m transformer_jax export-model."""

import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.command_line import Parser


def export_model(arguments: Sequence[str]) -> None:
    """Writes a run's model as one folder that needs nothing else."""
    parser = Parser(
        prog="python -m transformer_jax export-model",
        description="Writes the model of a run as one folder: safetensors parameters, "
        "config.json and the vocabulary. --workdir of translate and score takes it.",
    )
    parser.add_argument("--workdir", required=True, help="folder of the run")
    parser.add_argument("--checkpoint", help="latest, best, average or a step")
    parser.add_argument("--output", required=True, help="the folder, a new one")
    flags, _ = parser.parse(arguments)

    from transformer_jax.trained_model import TrainedModel

    model = TrainedModel.load(flags.workdir, flags.checkpoint)
    model.export(Path(flags.output))
    print(f"written to {flags.output}", file=sys.stderr)
