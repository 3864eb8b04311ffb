"""Trains a Transformer; run it again to resume.

python train.py --config=configs/quickstart.py [--workdir=DIR] [--config.KEY=VALUE ...]
"""

from collections.abc import Sequence
from pathlib import Path

from transformer_jax.command_line import Parser, load_experiment, run, use_huge_pages


def main(arguments: Sequence[str]) -> None:
    """Parses the flags and trains."""
    parser = Parser(description="Trains a Transformer; run it again to resume.")
    parser.add_argument(
        "--config", required=True, help="config file, with a row as FILE.py:ROW"
    )
    parser.add_argument("--workdir", help="folder of the run (default: runs/CONFIG)")
    parser.add_argument(
        "--coordinator",
        default="",
        help="of several processes: HOST:PORT of process 0, or auto (TPU pod)",
    )
    parser.add_argument("--num_processes", type=int, help="with --coordinator")
    parser.add_argument("--process_id", type=int, help="with --coordinator, from 0")
    parser.epilog = "Any config value: --config.KEY=VALUE, as --config.training.steps=9"
    flags, overrides = parser.parse(arguments, takes_config=True)
    config = load_experiment(flags.config, overrides)
    name, _, row = flags.config.partition(":")
    run_name = Path(name).stem + (f"-{row}" if row else "")

    from transformer_jax.processes import join
    from transformer_jax.training.loop import train

    join(flags.coordinator, flags.num_processes, flags.process_id)
    train(config, Path(flags.workdir or Path("runs") / run_name))


if __name__ == "__main__":
    use_huge_pages()
    run(main)
