"""What is measured on the validation set while training, and the best so far."""

import dataclasses
import time
from pathlib import Path

import jax

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.pairs import Pair
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Vocabularies
from transformer_jax.evaluation import LossEvaluator, translate_and_score
from transformer_jax.inference import Searcher
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
    """Loss, BLEU and samples on the validation set."""

    def __init__(
        self,
        config: ExperimentConfig,
        workdir: Path,
        program: TrainingProgram,
        vocabularies: Vocabularies,
        *,
        examples: TokenStore,
        pairs: list[Pair],
    ) -> None:
        """Gets ready; nothing is computed yet.

        Args:
          config: its `validation`, `decoding` and `training.label_smoothing` count.
          workdir: folder of the run, for the samples.
          program: whose model is measured, on whose mesh.
          vocabularies: source and target.
          examples: what the loss is measured on.
          pairs: raw text; the first `validation.bleu_sentences` are translated.
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
        score = -report.loss
        if self._pairs:
            self._searcher.params = (params,)
            outputs, scores = translate_and_score(
                self._translator, self._pairs, self._config.data.target_language
            )
            metrics["valid/bleu"] = scores.sacrebleu
            if self._config.validation.metric == "bleu":
                score = scores.sacrebleu
            self._searcher.params = ()  # not kept until the next validation
            self._write_samples(outputs, step)
        progress.write(step, metrics)
        shown = "  ".join(f"{k} {v:.4g}" for k, v in metrics.items() if "neg" not in k)
        say(f"step {step}  {shown}  ({time.perf_counter() - start:.1f} s)")
        return score

    def _write_samples(self, outputs: list[str], step: int) -> None:
        samples = [
            f"  source     {source}\n  reference  {reference}\n  output     {output}"
            for (source, reference), output in zip(self._pairs, outputs, strict=True)
        ]
        for sample in samples[: self._config.validation.num_samples]:
            say(sample)
        if not is_first():
            return
        self._samples.mkdir(exist_ok=True)
        text = "".join(f"{sample}\n\n" for sample in samples)
        (self._samples / f"{step}.txt").write_text(text, encoding="utf-8")
