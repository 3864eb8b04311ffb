"""The training run, in the order it happens: text, model, resume, steps, result."""

import dataclasses
import functools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from transformer_jax.checkpointing import Checkpoints
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.pipeline import (
    EncodedPair,
    FilterCounts,
    TrainingBatches,
    keep_trainable,
    prefetch,
)
from transformer_jax.data.sources import Corpus, Pair, load_corpus
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.evaluation import LossEvaluator, encode_pairs
from transformer_jax.metrics import score_translations
from transformer_jax.models import Transformer, num_parameters
from transformer_jax.sharding import (
    batch_sharding,
    make_mesh,
    replicated,
    state_shardings,
)
from transformer_jax.training.optimizer import make_optimizer, peak_learning_rate
from transformer_jax.training.step import TrainState, init_state, train_step
from transformer_jax.training.writer import MetricsWriter
from transformer_jax.translation import Translator, Vocabularies, load_config

# Config keys that a resumed run may change: they decide how long, how often and where,
# never what a step computes.
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


class NonFiniteError(UserError):
    """The loss or its gradient became infinite or not a number."""


@dataclasses.dataclass(frozen=True)
class _Progress:
    """What a checkpoint must remember beside the state."""

    best_score: float | None = None
    validations_since_best: int = 0

    def after(self, score: float) -> "_Progress":
        if self.best_score is None or score > self.best_score:
            return _Progress(score, 0)
        return _Progress(self.best_score, self.validations_since_best + 1)


def train(config: ExperimentConfig, workdir: Path) -> None:
    """Trains, or goes on training, the run in `workdir`.

    Running it again after an interruption continues from the newest checkpoint, and
    ends with the parameters that the uninterrupted run would have had. Ctrl-C and
    SIGTERM save first.

    Raises:
      UserError: bad config or text, or a workdir of another run.
      NonFiniteError: training diverged.
    """
    # 1. The workdir is this run's, or new.
    _claim_workdir(config, workdir)
    checkpoints = Checkpoints(workdir, keep_last=config.checkpoint.keep_last)
    try:
        resumed_step = checkpoints.latest_step()
        if resumed_step is not None and resumed_step >= config.training.steps:
            _say(f"{workdir} is trained already: step {resumed_step}.")
            _say_how_to_use(workdir)
            return
        _train(config, workdir, checkpoints, resumed_step)
    finally:
        checkpoints.close()


def _train(
    config: ExperimentConfig,
    workdir: Path,
    checkpoints: Checkpoints,
    resumed_step: int | None,
) -> None:
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
    _say_batches(batches)

    # 3. Model, optimiser, state: born where they will stay.
    mesh = make_mesh(config.mesh)
    model = Transformer(config.model)
    optimizer = make_optimizer(
        config.optimizer,
        d_model=config.model.d_model,
        total_steps=config.training.steps,
    )
    init = functools.partial(init_state, model, optimizer)
    init_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    shardings = state_shardings(jax.eval_shape(init, init_key), mesh)
    _say_model(config)

    # 4. Resume, or start.
    progress = _Progress()
    if resumed_step is None:
        state = jax.jit(init, out_shardings=shardings)(init_key)
        (workdir / "config.json").write_text(json.dumps(config.to_dict(), indent=2))
    else:
        abstract = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            jax.eval_shape(init, init_key),
            shardings,
        )
        meta = checkpoints.meta(resumed_step)
        if meta["vocabulary"] != vocabularies.digest:
            raise UserError(
                f"the vocabulary in {workdir} is not the one its checkpoints were "
                "trained with: restore it, or take another --workdir"
            )
        state = checkpoints.restore(resumed_step, abstract)
        progress = _Progress(**meta["progress"])
        _say(f"Resuming from step {resumed_step}.")
    first_step = resumed_step or 0
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
    validator = _Validator(config, workdir, model, corpus, vocabularies)

    # 5. Steps.
    sharding = batch_sharding(mesh)
    feed = prefetch(
        lambda step: jax.device_put(batches.batch(step), sharding),
        first_step,
        config.training.steps,
    )
    pending: list[dict[str, jax.Array]] = []
    is_early = False
    with (
        MetricsWriter(workdir, resume_step=first_step) as writer,
        _Interruption() as interruption,
        tqdm(
            total=config.training.steps,
            initial=first_step,
            unit="step",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        ) as bar,
    ):
        window_start, window_step = time.perf_counter(), first_step
        for step, batch in enumerate(feed, start=first_step + 1):
            state, metrics = step_function(state, batch, dropout_key)
            pending.append(metrics)
            bar.update()
            is_last = step == config.training.steps or interruption.is_requested
            is_validated = is_last or step % config.validation.every_steps == 0
            is_validated = is_validated and not interruption.is_requested
            is_saved = (
                is_validated or is_last or step % config.checkpoint.every_steps == 0
            )
            is_logged = is_last or step % config.training.log_every_steps == 0
            if is_logged or is_saved:
                # The only places that wait for the device.
                window = _window(jax.device_get(pending), step)
                pending.clear()
                seconds = time.perf_counter() - window_start
                window["train/step_time_s"] = seconds / (step - window_step)
                window["train/target_tokens_per_s"] = window.pop("num_tokens") / seconds
                writer.write(step, window)
                _say_window(step, window, config, bar)
            score = None
            if is_validated:
                score = validator(state, step, writer)
                progress = progress.after(score)
                patience = config.training.early_stop_validations
                is_early = 0 < patience <= progress.validations_since_best
            if is_saved:
                meta = {
                    "vocabulary": vocabularies.digest,
                    "progress": dataclasses.asdict(progress),
                }
                checkpoints.save(state, meta, score=score)
            if is_logged or is_saved:
                window_start, window_step = time.perf_counter(), step
            if is_last or is_early:
                break
        feed.close()

    # 6. The result.
    checkpoints.close()
    if interruption.is_requested and step < config.training.steps:
        _say(f"Interrupted: saved step {step}. The same command goes on from there.")
        raise KeyboardInterrupt
    if is_early:
        _say(
            f"Stopped early at step {step}: {progress.validations_since_best} "
            f"validations without a better one than {progress.best_score:.4f}."
        )
    _say_how_to_use(workdir)


class _Validator:
    """Loss, BLEU and samples on the validation set."""

    def __init__(
        self,
        config: ExperimentConfig,
        workdir: Path,
        model: Transformer,
        corpus: Corpus,
        vocabularies: Vocabularies,
    ) -> None:
        examples = _examples("validation", corpus.validation, vocabularies, config)
        self._loss = LossEvaluator(
            model, examples, label_smoothing=config.training.label_smoothing
        )
        pairs = [pair for pair in corpus.validation if all(pair)]
        self._pairs = pairs[: config.validation.bleu_sentences]
        self._config = config
        self._samples = workdir / "samples"
        self._translator = Translator(
            model,
            None,  # set for each validation
            vocabularies,
            decoding=dataclasses.replace(config.decoding, beam_size=1),
            max_length=config.data.max_length,
        )

    def __call__(self, state: TrainState, step: int, writer: MetricsWriter) -> float:
        """Measures, writes and says; the score, higher is better."""
        start = time.perf_counter()
        report = self._loss(state.params)
        metrics = {
            "valid/loss": report.loss,
            "valid/negative_log_likelihood": report.negative_log_likelihood,
            "valid/perplexity": report.perplexity,
        }
        score = -report.loss
        if self._pairs:
            self._translator.params = state.params
            outputs = self._translator.translate([pair[0] for pair in self._pairs])
            scores = score_translations(
                outputs,
                [pair[1] for pair in self._pairs],
                target_language=self._config.data.target_language,
            )
            metrics["valid/bleu"] = scores.sacrebleu
            if self._config.validation.metric == "bleu":
                score = scores.sacrebleu
            self._write_samples(outputs, step)
        writer.write(step, metrics)
        shown = "  ".join(f"{k} {v:.4g}" for k, v in metrics.items() if "neg" not in k)
        _say(f"step {step}  {shown}  ({time.perf_counter() - start:.1f} s)")
        return score

    def _write_samples(self, outputs: list[str], step: int) -> None:
        self._samples.mkdir(exist_ok=True)
        lines = []
        triples = zip(self._pairs, outputs, strict=True)
        for number, ((source, reference), output) in enumerate(triples):
            sample = f"  source     {source}\n  reference  {reference}\n"
            sample += f"  output     {output}\n"
            lines.append(sample)
            if number < self._config.validation.num_samples:
                _say(sample.rstrip("\n"))
        (self._samples / f"{step}.txt").write_text("\n".join(lines), encoding="utf-8")


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
        _say("Stopping after this step, and saving (again to stop at once).")


def _claim_workdir(config: ExperimentConfig, workdir: Path) -> None:
    """Makes the folder; refuses one that another experiment was trained in."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(
            f"--workdir {workdir} is a file, expected a folder: take another path"
        ) from None
    if not os.access(workdir, os.W_OK | os.X_OK):
        raise UserError(f"--workdir {workdir} cannot be written to: take another")
    if (workdir / "config.json").exists():
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
        (workdir / "config.json").write_text(json.dumps(now, indent=2))


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
    name = "vocabulary.model" if shared else "vocabulary.source.model"
    if (workdir / name).exists():
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
        vocabularies = Vocabularies(tokenizer, tokenizer)
    else:
        vocabularies = Vocabularies(learn(source), learn(target))
    vocabularies.save(workdir)
    return vocabularies


def _examples(
    name: str, pairs: list[Pair], vocabularies: Vocabularies, config: ExperimentConfig
) -> list[EncodedPair]:
    """The pairs as ids; says how many were left out and why."""
    examples, counts = keep_trainable(
        encode_pairs(pairs, vocabularies), config.data.max_length
    )
    _say(f"{name} pairs: {_shown(counts, config.data.max_length)}")
    if not examples:
        raise UserError(
            f"no {name} pairs are left of {len(pairs)}: "
            f"{_shown(counts, config.data.max_length)}"
        )
    return examples


def _shown(counts: FilterCounts, max_length: int) -> str:
    return (
        f"{counts.kept} kept, {counts.empty} with an empty side, {counts.too_long} of "
        f"more than {max_length} tokens"
    )


def _window(metrics: list[dict[str, np.ndarray]], step: int) -> dict[str, float]:
    """Means over the steps since the last log, and the number of their tokens."""
    for i, one in enumerate(metrics):
        for name, value in one.items():
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"{name} is {value} at step {step - len(metrics) + i + 1}: "
                    "stopped; the last checkpoint is good. Lower optimizer.factor "
                    "or raise optimizer.warmup_steps"
                )
    means = {
        f"train/{name}": float(np.mean([one[name] for one in metrics]))
        for name in ("loss", "negative_log_likelihood", "gradient_norm")
    }
    return {**means, "num_tokens": float(sum(one["num_tokens"] for one in metrics))}


def _say(line: str) -> None:
    """A line on standard error, above the progress bar where there is one."""
    tqdm.write(line, file=sys.stderr)


def _say_window(
    step: int, window: dict[str, float], config: ExperimentConfig, bar: tqdm
) -> None:
    loss, rate = window["train/loss"], window["train/target_tokens_per_s"]
    if not bar.disable:
        bar.set_postfix_str(f"loss {loss:.3f}, {rate:.0f} target tokens/s")
        return
    left = (config.training.steps - step) * window["train/step_time_s"]
    _say(
        f"step {step}/{config.training.steps}  loss {loss:.4f}  "
        f"{rate:.0f} target tokens/s  {left / 60:.1f} min left"
    )


def _say_batches(batches: TrainingBatches) -> None:
    source_length, target_length = batches.row_lengths
    _say(
        f"batch: {batches.num_rows} rows of {source_length} source and {target_length} "
        f"target positions, 1 shape; {batches.fill:.1%} of positions are real tokens "
        f"(source {batches.source_fill:.1%}, target {batches.target_fill:.1%}); "
        f"{batches.steps_per_epoch:.1f} steps an epoch"
    )


def _say_model(config: ExperimentConfig) -> None:
    devices = jax.devices()
    _say(
        f"model: {num_parameters(config.model):,} parameters; {len(devices)} x "
        f"{devices[0].device_kind}, JAX {jax.__version__}; peak learning rate "
        f"{peak_learning_rate(config.optimizer, config.model.d_model):.3g}"
    )


def _say_how_to_use(workdir: Path) -> None:
    _say(
        f"The result is in {workdir}. Translate with it:\n"
        f"  python -m transformer_jax translate --workdir={workdir}"
    )
