"""The training run, in the order it happens: text, model, resume, steps, result."""

import contextlib
import dataclasses
import functools
import time
from pathlib import Path

import jax

from transformer_jax import processes
from transformer_jax.checkpointing import (
    Checkpoints,
    DamagedError,
    load_meta,
    require_whole,
    steps_in,
)
from transformer_jax.config import ExperimentConfig
from transformer_jax.cost import spent_cost
from transformer_jax.data.pairs import Pair, Pairs
from transformer_jax.data.pipeline import TrainingBatches, prefetch
from transformer_jax.data.prepared import prepare, require_examples
from transformer_jax.data.sources import load_corpus, validation_trees
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Vocabularies
from transformer_jax.errors import UserError
from transformer_jax.models import num_parameters
from transformer_jax.sharding import (
    BatchLayout,
    make_mesh,
    place_batch,
    replicated,
    to_global,
)
from transformer_jax.training.interruption import Interrupted, Interruption
from transformer_jax.training.optimizer import peak_learning_rate
from transformer_jax.training.program import TrainingProgram
from transformer_jax.training.progress import Progress, say
from transformer_jax.training.validation import Best, Validator
from transformer_jax.training.workdir import (
    WorkdirLock,
    check_workdir,
    claim_workdir,
    make_workdir,
)

# A batch that sees each pair more often is a mistake, and might not fit into memory.
_MOST_EPOCHS_A_STEP = 100


@processes.naming_lost_process()
def train(config: ExperimentConfig, workdir: Path) -> None:
    """Trains, or goes on training, the run in `workdir`.

    Running it again after an interruption continues from the newest checkpoint, and
    ends with the parameters that the uninterrupted run would have had. Ctrl-C and
    SIGTERM save first. With several processes (see `transformer_jax.processes`), each
    calls this with the same arguments and a workdir that all of them see.

    Raises:
      UserError: bad config or text, or a workdir of another run.
      NonFiniteError: training diverged.
      SaveError: a checkpoint could not be written.
      LostProcessError: another process of the run ended.
    """
    # 1. The workdir is this run's, or new; nothing is made before all is well.
    if processes.is_first():
        check_workdir(config, workdir)
    mesh = make_mesh(config.mesh)
    if _is_finished(config, workdir):
        say(f"{workdir} is trained already: step {steps_in(workdir)[-1]}.")
        _say_how_to_use(config, workdir)
        return

    # 2. Text -> batches.
    corpus = load_corpus(config.data, say=say)
    vocabularies, examples = _prepared(config, workdir, corpus.train)
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
    layout = BatchLayout.of(
        batches.num_rows,
        max(batches.row_lengths),
        mesh,
        max_tokens_per_device=config.training.max_tokens_per_device,
    )
    _say_batches(batches, layout)
    identity = {"vocabulary": vocabularies.digest, "training text": batches.digest}
    processes.require_equal(f"{identity} {config}", "config or training text")

    # 3. Model and optimiser, compiled for the mesh.
    program = TrainingProgram(config, mesh)
    _say_model(config, program)
    validator = Validator(
        config,
        workdir,
        program,
        vocabularies,
        examples=_validation_examples(corpus.validation, vocabularies, config),
        pairs=corpus.validation,
        trees=validation_trees(config.data),
    )

    with contextlib.ExitStack() as stack:
        # 4. Resume, or start.
        lock = None
        if processes.is_first():
            make_workdir(workdir)
            lock = stack.enter_context(WorkdirLock(workdir))
            claim_workdir(config, workdir, vocabularies)
        processes.wait_for_all("workdir claimed")
        checkpoints = stack.enter_context(
            Checkpoints(
                workdir,
                keep_last=config.checkpoint.keep_last,
                keep_every_steps=config.checkpoint.keep_every_steps,
            )
        )
        init_key, dropout_key = to_global(
            jax.random.split(jax.random.key(config.seed)), replicated(mesh)
        )
        first_step, best = 0, Best()
        resumed = checkpoints.restore_newest(program.state)
        if resumed is None:
            state = program.init(init_key)
        else:
            state, meta = resumed
            first_step, best = int(state.step), Best(**meta["best"])
            for name, digest in identity.items():
                if meta["identity"][name] != digest:
                    raise UserError(
                        f"the {name} is not the one that the checkpoints in {workdir} "
                        "were trained with: restore it, or take another --workdir"
                    )
            say(f"Resuming from step {first_step}.")

        # 5. Steps.
        feed = prefetch(
            lambda step: place_batch(
                functools.partial(batches.batch, step), layout, mesh
            ),
            first_step,
            config.training.steps,
        )
        stack.enter_context(contextlib.closing(feed))
        progress = stack.enter_context(
            Progress(
                workdir,
                first_step=first_step,
                total_steps=config.training.steps,
                max_skipped_updates=config.training.max_skipped_updates,
            )
        )
        interruption = stack.enter_context(
            Interruption(save_every_minutes=config.checkpoint.every_minutes)
        )
        step, is_stopping, is_early = first_step, False, False
        start = time.perf_counter()
        for step, batch in enumerate(feed, start=first_step + 1):
            state, metrics = program.step(state, batch, dropout_key)
            progress.add(step, metrics)
            is_stopping, is_saving = interruption.demand()
            is_last = step == config.training.steps
            is_validated = is_last or step % config.validation.every_steps == 0
            is_saving |= is_stopping or step % config.checkpoint.every_steps == 0
            if is_saving or is_validated or step % config.training.log_every_steps == 0:
                progress.report(step)
                checkpoints.raise_failure()
            score = None
            if is_validated:
                score = interruption.abandonable(
                    functools.partial(validator, state.params, step, progress)
                )
                is_stopping |= score is None
            if score is not None:
                best = best.after(score)
                is_early = best.is_given_up(config)
            if is_saving or is_validated:
                if lock is not None:
                    lock.require_held()
                meta = {"identity": identity, "best": dataclasses.asdict(best)}
                checkpoints.save(state, meta, score=score)
                interruption.restart_clock()
                progress.restart_clock()
            if is_stopping or is_early:
                break

    # 6. The result.
    cost = spent_cost(
        config.model,
        rows=batches.num_rows,
        row_lengths=batches.row_lengths,
        steps=step - first_step,
        seconds=time.perf_counter() - start,
    )
    say(f"Cost of steps {first_step + 1} to {step}: {cost.line()}.")
    if is_stopping and step < config.training.steps:
        say(f"Interrupted: saved step {step}. The same command goes on from there.")
        raise Interrupted
    if is_early:
        say(
            f"Stopped early at step {step}: {best.validations_since} validations "
            f"without a better one than {best.score:.4f}."
        )
    _say_how_to_use(config, workdir)


def _is_finished(config: ExperimentConfig, workdir: Path) -> bool:
    """Whether the newest checkpoint is whole and has no more to do."""
    steps = steps_in(workdir)
    if not steps:
        return False
    try:
        best = Best(**load_meta(workdir, steps[-1])["best"])
        if steps[-1] < config.training.steps and not best.is_given_up(config):
            return False
        require_whole(workdir, steps[-1])
    except DamagedError:
        return False  # resuming will name it, and go back
    return True


def _prepared(
    config: ExperimentConfig, workdir: Path, train: Pairs
) -> tuple[Vocabularies, TokenStore]:
    """The run's vocabularies, learned before its first step, and its examples.

    Process 0 prepares first; those that see its cache find all of it there, the others
    prepare the same for themselves.
    """
    if not processes.is_first():
        processes.wait_for_all("text prepared")
    vocabularies = None
    if (workdir / "config.json").exists():
        vocabularies = Vocabularies.load(workdir, shared=config.tokenizer.shared)
    prepared = prepare(config, train, say, vocabularies=vocabularies)
    if processes.is_first():
        processes.wait_for_all("text prepared")
    return prepared


def _validation_examples(
    pairs: list[Pair], vocabularies: Vocabularies, config: ExperimentConfig
) -> TokenStore:
    examples = TokenStore.of(vocabularies.encode(pairs), config.data.max_length)
    require_examples("validation", examples, config, say)
    return examples


def _say_batches(batches: TrainingBatches, layout: BatchLayout) -> None:
    source_length, target_length = batches.row_lengths
    say(
        f"batch: {batches.num_rows} rows of {source_length} source and {target_length} "
        f"target positions, 1 shape; {batches.fill:.1%} of positions are real tokens "
        f"(source {batches.source_fill:.1%}, target {batches.target_fill:.1%}); "
        f"{batches.steps_per_epoch:.1f} steps an epoch"
    )
    per_device = layout.rows_per_part // layout.num_shards
    say(
        f"layout: {layout.num_parts} x {per_device} rows on each of {layout.num_shards}"
        f" devices, {layout.num_empty_rows} of them empty"
    )


def _say_model(config: ExperimentConfig, program: TrainingProgram) -> None:
    devices, model = program.mesh.devices, program.model.config
    mesh = ", ".join(f"{axis} {size}" for axis, size in program.mesh.shape.items())
    say(
        f"model: {num_parameters(config.model):,} parameters; activations {model.dtype}"
        f", products {model.matmul_dtype}; peak learning rate "
        f"{peak_learning_rate(config.optimizer, config.model.d_model):.3g}"
    )
    say(
        f"devices: {devices.size} x {devices.flat[0].device_kind} ({mesh}), "
        f"{jax.process_count()} processes, JAX {jax.__version__}"
    )


def _say_how_to_use(config: ExperimentConfig, workdir: Path) -> None:
    command = "parse" if config.data.corpus == "treebank" else "translate"
    say(
        f"The result is in {workdir}. {command.capitalize()} with it:\n"
        f"  python -m transformer_jax {command} --workdir={workdir}"
    )
