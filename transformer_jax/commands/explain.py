"""python -m transformer_jax explain."""

import os
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.command_line import Parser, load_experiment, require_writable
from transformer_jax.errors import UserError

_PLOTS = (".png", ".svg")


def explain(arguments: Sequence[str]) -> None:
    """Prints what a config is, what it would cost, and where it leaves the paper."""
    parser = Parser(
        prog="python -m transformer_jax explain",
        description="Prints what a config is: parameters by part, FLOPs, learning "
        "rate, memory, predicted hours, and every deviation from the paper.",
    )
    parser.add_argument("--config", required=True, help="config file, or FILE.py:ROW")
    parser.add_argument("--plot", help="the learning rate, drawn into a .png or .svg")
    parser.add_argument(
        "--utilisation",
        type=float,
        help="share of a chip's rate that training reaches (default: 0.4)",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time a few real steps on this machine too, which may take minutes",
    )
    flags, overrides = parser.parse(arguments, takes_config=True)
    config = load_experiment(flags.config, overrides)
    plot = None if flags.plot is None else Path(flags.plot)
    if plot is not None:
        if plot.suffix not in _PLOTS:
            raise UserError(f"--plot is {plot}, expected a name in .png or .svg")
        require_writable(plot)
    if flags.utilisation is not None and not 0 < flags.utilisation <= 1:
        raise UserError(
            f"--utilisation is {flags.utilisation}, expected more than 0, at most 1"
        )
    if not flags.measure:
        os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX looks for other devices

    from transformer_jax import explain as explanation
    from transformer_jax.cost import UTILISATION

    text = explanation.explain(
        config,
        flags.config,
        utilisation=flags.utilisation or UTILISATION,
        measured=explanation.measure(config) if flags.measure else None,
    )
    print(text)
    if plot is not None:
        explanation.plot_learning_rate(config, plot)
