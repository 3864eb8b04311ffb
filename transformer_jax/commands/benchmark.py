"""python -m transformer_jax benchmark."""

from collections.abc import Sequence

from transformer_jax.command_line import Parser, load_experiment
from transformer_jax.errors import UserError


def benchmark(arguments: Sequence[str]) -> None:
    """Prints the speed of a training step beside the machine's matmul rate."""
    parser = Parser(
        prog="python -m transformer_jax benchmark",
        description="Times the training step of a config on random tokens.",
    )
    parser.add_argument("--config", required=True, help="config file, or FILE.py:ROW")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=32, help="tokens of each side")
    parser.add_argument("--steps", type=int, default=10)
    flags, overrides = parser.parse(arguments, takes_config=True)
    for name in ("rows", "length", "steps"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} is {getattr(flags, name)}, expected 1 or more")
    config = load_experiment(flags.config, overrides)

    from transformer_jax.benchmark import benchmark_training

    report = benchmark_training(
        config, rows=flags.rows, length=flags.length, steps=flags.steps
    )
    print(report.lines())
