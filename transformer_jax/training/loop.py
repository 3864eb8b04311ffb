"""The training run, in the order it happens: text, model, resume, steps, result."""

import contextlib
import dataclasses
import functools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from transformer_jax.checkpointing import Checkpoints, load_meta, steps_in
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.pipeline import (
    EncodedPair,
    TrainingBatches,
    keep_trainable,
    prefetch,
)
from transformer_jax.data.sources import Corpus, Pair, load_corpus
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.evaluation import encode_pairs
from transformer_jax.files import write_whole
from transformer_jax.models import Transformer, num_parameters
from transformer_jax.sharding import (
    batch_sharding,
    make_mesh,
    replicated,
    state_shardings,
)
from transformer_jax.training.optimizer import make_optimizer, peak_learning_rate
from transformer_jax.training.progress import Progress, say
from transformer_jax.training.step import init_state, train_step
from transformer_jax.training.validation import Best, Validator
from transformer_jax.translation import Vocabularies, load_config

# Config keys that a resumed run may change: they decide how long, how often and where.
# None changes what a step computes, but that a cooldown follows the end of the run.
_CHANGEABLE = (
    "training.steps",
    "training.log_every_steps",
    "training.early_stop_validations",
    "validation.",
    "checkpoint.",
    "decoding.",
    "mesh.",
    "data.dir",
)

# A batch that sees each pair more often is a mistake, and might not fit into memory.
_MOST_EPOCHS_A_STEP = 100


def train(config: ExperimentConfig, workdir: Path) -> None:
    """Trains, or goes on training, the run in `workdir`.

    Running it again after an interruption continues from the newest checkpoint, and
    ends with the parameters that the uninterrupted run would have had. Ctrl-C and
    SIGTERM save first.

    Raises:
      UserError: bad config or text, or a workdir of another run.
      NonFiniteError: training diverged.
    """
    # 1. The workdir is this run's, or new; nothing is made before all is well.
    _check_workdir(config, workdir)
    mesh = make_mesh(config.mesh)
    steps = steps_in(workdir)
    if steps and _is_finished(config, workdir, steps[-1]):
        say(f"{workdir} is trained already: step {steps[-1]}.")
        _say_how_to_use(workdir)
        return

    # 2. Text -> batches.
    corpus = load_corpus(config.data, seed=config.seed)
    vocabularies = _vocabularies(config, workdir, corpus)
    examples = _examples("training", corpus.train, vocabularies, config)
    batches = TrainingBatches(
        examples,
        batch_tokens=config.training.batch_tokens,
        row_length=config.data.row_length,
        seed=config.seed,
    )
    if batches.steps_per_epoch * _MOST_EPOCHS_A_STEP < 1:
        raise UserError(
            f"training.batch_tokens is {config.training.batch_tokens}, more than "
            f"{_MOST_EPOCHS_A_STEP} times the training text: lower it"
        )
    _say_batches(batches)

    # 3. Model, optimiser, state: born where they will stay.
    model = Transformer(config.model)
    optimizer = make_optimizer(
        config.optimizer,
        d_model=config.model.d_model,
        total_steps=config.training.steps,
    )
    init = functools.partial(init_state, model, optimizer)
    init_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    shapes = jax.eval_shape(init, init_key)
    shardings = state_shardings(shapes, mesh)
    _say_model(config)

    # 4. Resume, or start.
    validator = Validator(
        config,
        workdir,
        model,
        vocabularies,
        examples=_examples("validation", corpus.validation, vocabularies, config),
        pairs=corpus.validation,
    )
    _claim_workdir(config, workdir, vocabularies)
    checkpoints = Checkpoints(workdir, keep_last=config.checkpoint.keep_last)
    first_step, best = 0, Best()
    if steps:
        first_step = steps[-1]
        meta = load_meta(workdir, first_step)
        if meta["vocabulary"] != vocabularies.digest:
            raise UserError(
                f"the vocabulary in {workdir} is not the one its checkpoints were "
                "trained with: restore it, or take another --workdir"
            )
        abstract = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            shapes,
            shardings,
        )
        state = checkpoints.restore(first_step, abstract)
        best = Best(**meta["best"])
        say(f"Resuming from step {first_step}.")
    else:
        state = jax.jit(init, out_shardings=shardings)(init_key)
    step_function = jax.jit(
        functools.partial(
            train_step,
            model=model,
            optimizer=optimizer,
            label_smoothing=config.training.label_smoothing,
        ),
        donate_argnums=0,
        out_shardings=(shardings, replicated(mesh)),
    )

    # 5. Steps.
    sharding = batch_sharding(mesh)
    feed = prefetch(
        lambda step: jax.device_put(batches.batch(step), sharding),
        first_step,
        config.training.steps,
    )
    step, is_early = first_step, False
    with (
        Progress(
            workdir, first_step=first_step, total_steps=config.training.steps
        ) as progress,
        _Interruption() as interruption,
        contextlib.closing(feed),
        contextlib.closing(checkpoints),
    ):
        for step, batch in enumerate(feed, start=first_step + 1):
            state, metrics = step_function(state, batch, dropout_key)
            progress.add(metrics)
            is_stopping = interruption.is_requested
            is_last = step == config.training.steps
            is_validated = is_last or (
                step % config.validation.every_steps == 0 and not is_stopping
            )
            is_saved = (
                is_validated or is_stopping or step % config.checkpoint.every_steps == 0
            )
            if is_saved or step % config.training.log_every_steps == 0:
                progress.report(step)  # the only place that waits for the device
            score = None
            if is_validated:
                score = validator(state.params, step, progress)
                best = best.after(score)
                is_early = best.is_given_up(config)
            if is_saved:
                meta = {
                    "vocabulary": vocabularies.digest,
                    "best": dataclasses.asdict(best),
                }
                checkpoints.save(state, meta, score=score)
                progress.restart_clock()
            if is_stopping or is_early:
                break

    # 6. The result.
    if interruption.is_requested and step < config.training.steps:
        say(f"Interrupted: saved step {step}. The same command goes on from there.")
        raise KeyboardInterrupt
    if is_early:
        say(
            f"Stopped early at step {step}: {best.validations_since} validations "
            f"without a better one than {best.score:.4f}."
        )
    _say_how_to_use(workdir)


def _is_finished(config: ExperimentConfig, workdir: Path, step: int) -> bool:
    """Whether a run that stands at `step` has no more to do."""
    best = Best(**load_meta(workdir, step)["best"])
    return step >= config.training.steps or best.is_given_up(config)


class _Interruption:
    """While open, the first Ctrl-C or SIGTERM only asks to stop; the second stops."""

    def __init__(self) -> None:
        self.is_requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "_Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._request)
            except ValueError:
                # Not the main thread, as in some notebooks: signals go elsewhere.
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, *_: object) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        say("Stopping after this step, and saving (again to stop at once).")


def _check_workdir(config: ExperimentConfig, workdir: Path) -> None:
    """Refuses a folder that another experiment was trained in, or cannot be written."""
    there = workdir
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UserError(f"--workdir {workdir}: {there} is a file, expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(
            f"--workdir {workdir}: {there} cannot be written to, take another path"
        )
    if not (workdir / "config.json").exists():
        return
    before, now = load_config(workdir).to_dict(), config.to_dict()
    differing = [
        f"{name} was {old} and is {new}"
        for (name, old), (_, new) in zip(_flat(before), _flat(now), strict=True)
        if old != new and not name.startswith(_CHANGEABLE)
    ]
    if differing:
        raise UserError(
            f"{workdir} was trained with another config ({'; '.join(differing)}): "
            "take another --workdir, or delete it to start anew"
        )


def _claim_workdir(
    config: ExperimentConfig, workdir: Path, vocabularies: Vocabularies
) -> None:
    """Makes the folder this run's: the vocabulary, then the config that claims it."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make --workdir {workdir} ({error.strerror}): take another path"
        ) from error
    path = workdir / "config.json"
    if not path.exists():
        vocabularies.save(workdir)
    write_whole(path, json.dumps(config.to_dict(), indent=2).encode())


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _vocabularies(
    config: ExperimentConfig, workdir: Path, corpus: Corpus
) -> Vocabularies:
    """The run's vocabularies, trained on the training text the first time."""
    shared = config.tokenizer.shared
    if (workdir / "config.json").exists():
        return Vocabularies.load(workdir, shared=shared)
    learn = functools.partial(
        train_tokenizer,
        vocab_size=config.model.vocab_size,
        algorithm=config.tokenizer.algorithm,
    )
    source = [pair[0] for pair in corpus.train]
    target = [pair[1] for pair in corpus.train]
    if shared:
        tokenizer = learn(source + target)
        return Vocabularies(tokenizer, tokenizer)
    return Vocabularies(learn(source), learn(target))


def _examples(
    name: str, pairs: list[Pair], vocabularies: Vocabularies, config: ExperimentConfig
) -> list[EncodedPair]:
    """The pairs as ids; says how many were left out and why."""
    examples, counts = keep_trainable(
        encode_pairs(pairs, vocabularies), config.data.max_length
    )
    shown = (
        f"{counts.kept} kept, {counts.empty} with an empty side, {counts.too_long} of "
        f"more than {config.data.max_length} tokens"
    )
    say(f"{name} pairs: {shown}")
    if not examples:
        raise UserError(
            f"no {name} pairs are left of {len(pairs)}: {shown}: bring other text, or "
            "raise data.max_length"
        )
    return examples


def _say_batches(batches: TrainingBatches) -> None:
    source_length, target_length = batches.row_lengths
    say(
        f"batch: {batches.num_rows} rows of {source_length} source and {target_length} "
        f"target positions, 1 shape; {batches.fill:.1%} of positions are real tokens "
        f"(source {batches.source_fill:.1%}, target {batches.target_fill:.1%}); "
        f"{batches.steps_per_epoch:.1f} steps an epoch"
    )


def _say_model(config: ExperimentConfig) -> None:
    devices = jax.devices()
    say(
        f"model: {num_parameters(config.model):,} parameters; {len(devices)} x "
        f"{devices[0].device_kind}, JAX {jax.__version__}; peak learning rate "
        f"{peak_learning_rate(config.optimizer, config.model.d_model):.3g}"
    )


def _say_how_to_use(workdir: Path) -> None:
    say(
        f"The result is in {workdir}. Translate with it:\n"
        f"  python -m transformer_jax translate --workdir={workdir}"
    )
