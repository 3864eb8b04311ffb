"""Loss, perplexity and scores on a split: while training, and from a finished run."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.data.pairs import Pair
from transformer_jax.data.pipeline import evaluation_batches
from transformer_jax.data.store import TokenStore, fate_of
from transformer_jax.data.treebank import pair_of
from transformer_jax.metrics import TranslationScores, score_translations
from transformer_jax.models import Transformer
from transformer_jax.parser import Parse, TreeParser
from transformer_jax.parsing.scores import (
    ParseScores,
    flat_tree,
    right_branching_tree,
    score_trees,
    with_tags_of,
)
from transformer_jax.parsing.trees import Tree, one_line, words_of
from transformer_jax.sharding import (
    num_row_shards,
    replicated,
    row_sharding,
    to_global,
)
from transformer_jax.training.program import chunking_on
from transformer_jax.training.step import evaluation_step
from transformer_jax.translation import Translator

_NUM_ROWS = 16  # of a device's share of a batch
_SECTION_23 = 2416  # trees, of the Wall Street Journal in the Penn Treebank
_BASELINES = {"flat S": flat_tree, "right-branching": right_branching_tree}
_MOST_NATS = 700.0  # whose exp is finite


@dataclasses.dataclass(frozen=True)
class LossReport:
    """Per target token, end tokens included, natural logarithm."""

    loss: float  # label-smoothed cross-entropy, as in training
    negative_log_likelihood: float  # unsmoothed
    num_tokens: int
    # Of the same references, between spaces, and one for the end of each: that costs
    # likelihood too, and language models count it so. 0 where nobody counted.
    num_words: int = 0

    @property
    def perplexity(self) -> float:
        """Exp of the unsmoothed loss per word piece, as the paper's Table 3."""
        return math.exp(min(self.negative_log_likelihood, _MOST_NATS))

    @property
    def perplexity_per_word(self) -> float | None:
        """Exp of the unsmoothed loss per word: comparable across vocabularies.

        >>> LossReport(1.5, 1.25, num_tokens=8, num_words=5).perplexity_per_word
        7.38905609893065
        """
        if not self.num_words:
            return None
        total = self.negative_log_likelihood * self.num_tokens
        return math.exp(min(total / self.num_words, _MOST_NATS))


class LossEvaluator:
    """The loss on fixed examples, compiled once."""

    def __init__(
        self,
        model: Transformer,
        examples: TokenStore,
        *,
        label_smoothing: float,
        mesh: Mesh,
    ) -> None:
        """Packs the examples into rows as wide as the longest, or 64.

        The devices of the mesh share the rows.
        """
        longest = int(examples.lengths.max(initial=1))
        width = max(64, -(-longest // 16) * 16)
        num_rows = _NUM_ROWS * num_row_shards(mesh)
        self._batches = list(evaluation_batches(examples, (width, width), num_rows))
        self._sharding = row_sharding(mesh)
        self._step = jax.jit(
            functools.partial(
                evaluation_step,
                model=model,
                label_smoothing=label_smoothing,
                chunking=chunking_on(mesh),
            ),
            out_shardings=replicated(mesh),
        )

    def __call__(self, params: Any) -> LossReport:
        """The mean losses with these parameters."""
        sums = [
            jax.device_get(self._step(params, to_global(batch, self._sharding)))
            for batch in self._batches
        ]
        num_tokens = sum(float(part.num_tokens) for part in sums)
        likelihood = sum(float(part.negative_log_likelihood) for part in sums)
        return LossReport(
            sum(float(part.loss) for part in sums) / max(num_tokens, 1.0),
            likelihood / max(num_tokens, 1.0),
            int(num_tokens),
        )


def translate_and_score(
    translator: Translator,
    pairs: Sequence[Pair],
    target_language: str,
    *,
    with_intervals: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[list[str], TranslationScores]:
    """Translations of the sources, and their scores against the targets."""
    hypotheses = translator.translate([pair[0] for pair in pairs], progress=progress)
    scores = score_translations(
        hypotheses,
        [pair[1] for pair in pairs],
        target_language=target_language,
        with_intervals=with_intervals,
    )
    return hypotheses, scores


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    config: ExperimentConfig,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[TranslationScores, LossReport, list[str]]:
    """Scores with their intervals, losses and translations of a split.

    Every pair is translated and scored, whatever its length.
    """
    hypotheses, scores = translate_and_score(
        translator,
        pairs,
        config.data.target_language,
        with_intervals=True,
        progress=progress,
    )
    return scores, loss_of(translator, pairs, config), hypotheses


def loss_of(
    translator: Translator, pairs: Sequence[Pair], config: ExperimentConfig
) -> LossReport:
    """The loss on pairs, but for those with an empty side or beyond the model's length.

    With several models, that of the first.
    """
    encoded = translator.vocabularies.encode(pairs)
    limit = config.model.max_length
    num_words = sum(
        len(target.split()) + 1
        for (_, target), ids in zip(pairs, encoded, strict=True)
        if fate_of(ids, limit) == "kept"
    )
    searcher = translator.searcher
    evaluator = LossEvaluator(
        searcher.models[0],
        TokenStore.of(encoded, limit),
        label_smoothing=config.training.label_smoothing,
        mesh=searcher.mesh,
    )
    return dataclasses.replace(evaluator(searcher.params[0]), num_words=num_words)


@dataclasses.dataclass(frozen=True)
class ParserReport:
    """How good a parser's trees of a split are."""

    scores: ParseScores  # with the treebank's own tags on the words
    tagging_accuracy: float  # of the parser's own tags, percent of all words
    whole_outputs: float  # percent that were a tree over the words without repair


def parse_and_score(
    parser: TreeParser,
    golds: Sequence[Tree],
    *,
    with_interval: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[list[Parse], ParserReport]:
    """Parses of the words of trees, and their scores against these.

    The scores drop punctuation by its tag. That is what the treebank says on both
    sides: a parser's own tags would make other words of a sentence count.
    """
    words = [words_of(gold) for gold in golds]
    parses = parser.parse(
        [[word.text for word in sentence] for sentence in words], progress=progress
    )
    trees = [parse.tree for parse in parses if parse.tree is not None]
    scores = score_trees(
        [with_tags_of(tree, gold) for tree, gold in zip(trees, golds, strict=True)],
        golds,
        with_interval=with_interval,
    )
    guessed = [word for tree in trees for word in words_of(tree)]
    pairs = zip(guessed, itertools.chain(*words), strict=True)
    num_right = sum(ours.tag == theirs.tag for ours, theirs in pairs)
    num_whole = sum(parse.is_whole for parse in parses)
    return parses, ParserReport(
        scores,
        tagging_accuracy=100 * num_right / len(guessed),
        whole_outputs=100 * num_whole / len(parses),
    )


@dataclasses.dataclass(frozen=True)
class ParserEvaluation:
    """A parser beside what needs no model, and beside the literature."""

    report: ParserReport
    baselines: Mapping[str, ParseScores]  # by name
    comparable_with: str  # whose scores may stand beside these

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON-able types, of the baselines F1 alone."""
        return {
            **dataclasses.asdict(self.report.scores),
            "tagging_accuracy": self.report.tagging_accuracy,
            "whole_outputs": self.report.whole_outputs,
            "baselines": {name: of_it.f1 for name, of_it in self.baselines.items()},
            "comparable_with": self.comparable_with,
        }


def evaluate_parser(
    translator: Translator,
    golds: Sequence[Tree],
    config: ExperimentConfig,
    split: str,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[ParserEvaluation, LossReport, list[str]]:
    """Scores with their interval, losses and parsed trees of a split of a treebank.

    Args:
      translator: that was trained as a parser.
      golds: the trees of the split.
      config: of the run.
      split: its name.
      progress: called with the number of sentences each time some are parsed.

    Raises:
      UserError: the translator is no parser.
    """
    parses, report = parse_and_score(
        TreeParser(translator), golds, with_interval=True, progress=progress
    )
    evaluation = ParserEvaluation(
        report, baseline_scores(golds), comparable_parsers(config.data, split, golds)
    )
    trees = [one_line(parse.tree) for parse in parses if parse.tree is not None]
    data = config.data
    pairs = [pair_of(x, leaves=data.leaves, closing=data.closing) for x in golds]
    return evaluation, loss_of(translator, pairs, config), trees


def baseline_scores(golds: Sequence[Tree]) -> dict[str, ParseScores]:
    """The scores of trees that need no model, by their names."""
    return {
        name: score_trees([tree(words_of(gold)) for gold in golds], golds)
        for name, tree in _BASELINES.items()
    }


def comparable_parsers(config: DataConfig, split: str, golds: Sequence[Tree]) -> str:
    """Whose scores may stand beside a parser's of the trees of this split."""
    name = ", ".join(config.train) if split == "train" else getattr(config, split)
    if (name, len(golds)) == ("23", _SECTION_23):
        return "Table 4 of the paper: WSJ section 23"
    return (
        f"none of Table 4 of the paper: these are {len(golds):,} trees of {name}, "
        f"there the {_SECTION_23:,} of WSJ section 23"
    )
