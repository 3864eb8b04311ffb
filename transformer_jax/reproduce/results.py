"""What a finished run of a table is: its scores, its size and its cost."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.sources import load_split, load_trees
from transformer_jax.evaluation import evaluate, evaluate_parser
from transformer_jax.training.progress import say
from transformer_jax.translation import Translator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(abc.ABC):
    """What is known of every run; a task adds its scores."""

    suffix: ClassVar[str]  # of the file of its outputs
    measures: ClassVar[tuple[str, ...]]  # fields that are summed up over seeds

    seed: int
    split: str  # that was scored
    steps: int  # of the newest checkpoint
    averaged_checkpoints: int
    parameters: int
    training_s: float  # median step time * steps: compiling and validation left out
    matmul_rate: float  # FLOP/s of all devices
    time_flops: float  # training_s * matmul_rate, the paper's method
    model_flops: float  # counted, forward and backward
    date: str  # UTC, of the scoring
    machine: str

    @classmethod
    @abc.abstractmethod
    def scored(
        cls, translator: Translator, config: ExperimentConfig, split: str
    ) -> tuple[dict[str, Any], list[str]]:
        """The fields that are scores, and the outputs that they are of, as lines."""

    @abc.abstractmethod
    def in_words(self) -> str:
        """The scores that matter most, shortly."""


AnyResult = TypeVar("AnyResult", bound=Result)
Results = dict[str, list[AnyResult]]  # by row, one of each seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationResult(Result):
    """A run of Table 2 or 3."""

    suffix = "txt"
    measures = ("perplexity", "perplexity_per_word", "bleu_paper", "sacrebleu")

    perplexity: float  # per word piece, not smoothed
    perplexity_per_word: float
    sacrebleu: float
    sacrebleu_signature: str
    bleu_paper: float  # tokenised, by the paper's measure

    @classmethod
    def scored(
        cls, translator: Translator, config: ExperimentConfig, split: str
    ) -> tuple[dict[str, Any], list[str]]:
        """Translates a split: see `Result`."""
        pairs = load_split(config.data, split)
        say(f"Translating the {len(pairs)} sentences of {split}.")
        scores, losses, hypotheses = evaluate(translator, pairs, config)
        assert losses.perplexity_per_word is not None  # `evaluate` counts the words
        return {
            "perplexity": losses.perplexity,
            "perplexity_per_word": losses.perplexity_per_word,
            "sacrebleu": scores.sacrebleu,
            "sacrebleu_signature": scores.sacrebleu_signature,
            "bleu_paper": scores.bleu_paper,
        }, hypotheses

    def in_words(self) -> str:
        """Perplexity and BLEU."""
        return (
            f"perplexity {self.perplexity:.3f}, BLEU {self.bleu_paper:.1f}, sacreBLEU "
            f"{self.sacrebleu:.1f}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParsingResult(Result):
    """A run of Table 4; scores are percentages."""

    suffix = "mrg"
    measures = ("perplexity", "f1", "exact_match", "tagging_accuracy", "whole_outputs")

    perplexity: float  # per token of the trees, not smoothed
    f1: float  # of labelled constituents, by EVALB's rules
    precision: float
    recall: float
    exact_match: float
    tagging_accuracy: float
    whole_outputs: float  # that were a tree over the words before any repair
    num_sentences: int
    comparable_with: str  # whose scores may stand beside these
    baselines: Mapping[str, float]  # F1 of trees that need no model, on the same split

    @classmethod
    def scored(
        cls, translator: Translator, config: ExperimentConfig, split: str
    ) -> tuple[dict[str, Any], list[str]]:
        """Parses a split: see `Result`."""
        golds = load_trees(config.data, split)
        say(f"Parsing the {len(golds)} sentences of {split}.")
        found, losses, trees = evaluate_parser(translator, golds, config, split)
        values = found.to_dict()
        names = {field.name for field in dataclasses.fields(cls)} & values.keys()
        scores = {name: values[name] for name in names}
        return {**scores, "perplexity": losses.perplexity}, trees

    def in_words(self) -> str:
        """F1, and how many outputs were whole."""
        return (
            f"F1 {self.f1:.1f}, exact match {self.exact_match:.1f}%, trees without "
            f"repair {self.whole_outputs:.1f}%"
        )
