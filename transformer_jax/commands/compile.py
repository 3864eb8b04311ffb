"""python -m transformer_jax compile."""

import os
from collections.abc import Sequence

from transformer_jax.command_line import Parser, load_experiment


def compile_for_chips(arguments: Sequence[str]) -> None:
    """Prints what the programs of a config need on chips that are not here."""
    parser = Parser(
        prog="python -m transformer_jax compile",
        description="Compiles the training step and the beam search of a config for "
        "TPUs or GPUs without having one.",
    )
    parser.add_argument("--config", required=True, help="config file, or FILE.py:ROW")
    parser.add_argument(
        "--topology",
        required=True,
        action="append",
        help="v5e:2x4, v5p:2x2x1, v6e:2x4 or h200:8; may be given several times",
    )
    flags, overrides = parser.parse(arguments, takes_config=True)
    config = load_experiment(flags.config, overrides)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX looks for devices of its own

    from transformer_jax.compilation import Topology, compile_programs

    for topology in [Topology.parse(text) for text in flags.topology]:
        for report in compile_programs(config, topology):
            print(report.lines(), end="\n\n", flush=True)
