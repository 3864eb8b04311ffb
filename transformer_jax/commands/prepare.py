"""python -m transformer_jax prepare."""

import sys
import time
from collections.abc import Sequence

from transformer_jax.command_line import Parser, load_experiment

_TIMED_BATCHES = 20


def prepare(arguments: Sequence[str]) -> None:
    """Makes a config's training text ready, as the start of its training would."""
    parser = Parser(
        prog="python -m transformer_jax prepare",
        description="Learns the vocabulary of a config's training text and turns the "
        "text into token ids, kept in data.cache_dir for every later run on it. "
        "Interrupted, the same command goes on.",
    )
    parser.add_argument("--config", required=True, help="config file, or FILE.py:ROW")
    flags, overrides = parser.parse(arguments, takes_config=True)
    config = load_experiment(flags.config, overrides)

    from transformer_jax.data import prepared
    from transformer_jax.data.pipeline import TrainingBatches
    from transformer_jax.data.sources import load_corpus

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    start = time.monotonic()
    train = load_corpus(config.data, say=say).train
    try:
        _, store = prepared.prepare(config, train, say)
    except KeyboardInterrupt:
        say("interrupted: the same command goes on")
        raise
    batches = TrainingBatches(
        store,
        batch_tokens=config.training.batch_tokens,
        row_length=config.data.row_length,
        seed=config.seed,
    )
    ready = time.monotonic()
    batches.batch(0)  # which also looks up where all pairs begin
    begin = time.monotonic()
    for step in range(_TIMED_BATCHES):
        tokens = int((batches.batch(step).target_segments > 0).sum())
    batch_time = (time.monotonic() - begin) / _TIMED_BATCHES
    rows = {
        "tokens": f"{len(store.ids):,} of {len(store):,} pairs",
        "steps an epoch": f"{batches.steps_per_epoch:,.1f}, {batches.fill:.1%} full",
        "ready after": f"{ready - start:.1f} s",
        "batches": f"{tokens / batch_time:,.0f} target tokens/s, on one core",
        "kept in": f"{store.folder}",
    }
    for name, value in rows.items():
        print(f"{name:<15} {value}")
