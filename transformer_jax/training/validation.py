"""What is measured on the validation set while training, and the best so far."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.pairs import Pair
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Vocabularies
from transformer_jax.evaluation import (
    LossEvaluator,
    parse_and_score,
    translate_and_score,
)
from transformer_jax.inference import Searcher
from transformer_jax.parser import TreeParser
from transformer_jax.parsing.trees import Tree, one_line
from transformer_jax.processes import is_first
from transformer_jax.sharding import replicated
from transformer_jax.training.program import TrainingProgram
from transformer_jax.training.progress import Progress, say
from transformer_jax.training.step import Params
from transformer_jax.translation import Translator


@dataclasses.dataclass(frozen=True)
class Best:
    """The best validation of a run; checkpoints remember it."""

    score: float | None = None  # higher is better; None before the first
    validations_since: int = 0

    def after(self, score: float) -> "Best":
        """What it is with one more validation."""
        if self.score is None or score > self.score:
            return Best(score)
        return Best(self.score, self.validations_since + 1)

    def is_given_up(self, config: ExperimentConfig) -> bool:
        """Whether an early stop is due: too many validations without a better one."""
        return 0 < config.training.early_stop_validations <= self.validations_since


class Validator:
    """Loss, BLEU or F1, and samples on the validation set."""

    def __init__(
        self,
        config: ExperimentConfig,
        workdir: Path,
        program: TrainingProgram,
        vocabularies: Vocabularies,
        *,
        examples: TokenStore,
        pairs: list[Pair],
        trees: Sequence[Tree] = (),
    ) -> None:
        """Gets ready; nothing is computed yet.

        Args:
          config: its `validation`, `decoding` and `training.label_smoothing` count.
          workdir: folder of the run, for the samples.
          program: whose model is measured, on whose mesh.
          vocabularies: source and target.
          examples: what the loss is measured on.
          pairs: raw text; the first `validation.bleu_sentences` are translated.
          trees: of a treebank, in the place of the pairs: its first are parsed.
        """
        self._loss = LossEvaluator(
            program.model,
            examples,
            label_smoothing=config.training.label_smoothing,
            mesh=program.mesh,
        )
        pairs = [pair for pair in pairs if all(pair)]
        self._pairs = pairs[: config.validation.bleu_sentences]
        self._config = config
        self._trees = trees[: config.validation.bleu_sentences]
        self._samples = workdir / "samples"
        self._searcher = Searcher([program.model], [], program.mesh)
        self._translator = Translator(
            self._searcher,
            vocabularies,
            config.decoding.greedy(),
            languages=(config.data.source_language, config.data.target_language),
            max_length=config.data.max_length,
        )

    def __call__(self, params: Params, step: int, progress: Progress) -> float:
        """Measures, writes and says; the score, higher is better."""
        start = time.perf_counter()
        params = jax.device_put(params, replicated(self._searcher.mesh))
        report = self._loss(params)
        metrics = {
            "valid/loss": report.loss,
            "valid/negative_log_likelihood": report.negative_log_likelihood,
            "valid/perplexity": report.perplexity,
        }
        if self._pairs:
            self._searcher.params = (params,)
            samples, scores = self._parsed() if self._trees else self._translated()
            metrics |= scores
            self._searcher.params = ()  # not kept until the next validation
            self._write_samples(samples, step)
        by = self._config.validation.metric
        score = -report.loss if by == "loss" else metrics[f"valid/{by}"]
        progress.write(step, metrics)
        shown = "  ".join(f"{k} {v:.4g}" for k, v in metrics.items() if "neg" not in k)
        say(f"step {step}  {shown}  ({time.perf_counter() - start:.1f} s)")
        return score

    def _translated(self) -> tuple[list["_Sample"], dict[str, float]]:
        outputs, scores = translate_and_score(
            self._translator, self._pairs, self._config.data.target_language
        )
        samples = [
            _Sample(source, reference, output)
            for (source, reference), output in zip(self._pairs, outputs, strict=True)
        ]
        return samples, {"valid/bleu": scores.sacrebleu}

    def _parsed(self) -> tuple[list["_Sample"], dict[str, float]]:
        parses, report = parse_and_score(TreeParser(self._translator), self._trees)
        samples = [
            _Sample(" ".join(parse.words), one_line(gold), one_line(parse.tree))
            for parse, gold in zip(parses, self._trees, strict=True)
            if parse.tree is not None
        ]
        return samples, {
            "valid/f1": report.scores.f1,
            "valid/whole_outputs": report.whole_outputs,
        }

    def _write_samples(self, samples: Sequence["_Sample"], step: int) -> None:
        shown = [
            f"  source     {sample.source}\n  reference  {sample.reference}\n"
            f"  output     {sample.output}"
            for sample in samples
        ]
        for sample in shown[: self._config.validation.num_samples]:
            say(sample)
        if not is_first():
            return
        self._samples.mkdir(exist_ok=True)
        text = "".join(f"{sample}\n\n" for sample in shown)
        (self._samples / f"{step}.txt").write_text(text, encoding="utf-8")


class _Sample(NamedTuple):
    source: str
    reference: str
    output: str
