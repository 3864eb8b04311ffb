"""Strings into scores: four measures, each with its signature and its interval.

Papers differ in which BLEU they print, so several are reported side by side:

* `sacrebleu`, on the raw text with the 13a tokenizer (zh for Chinese) and upper case
  kept. Its signature fixes how it was computed (Post 2018, https://aclanthology.org/W18-6319).
* `bleu_paper`, the paper's own measure: see `paper_tokenize`.
* `bleu_tokenized_lowercase`, on lower-cased text split by Moses's rules: what the
  Multi30k papers report. It is some points higher.
* `chrf`, of characters instead of words (Popović 2015,
  https://aclanthology.org/W15-3049).

Nothing here knows a model, and nothing imports JAX.
"""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_jax.errors import UserError
from transformer_jax.moses import moses_tokenize, paper_tokenize
from transformer_jax.significance import (
    bootstrap_sums,
    confidence_interval,
    p_value,
    shuffled_sums,
)

# Of each is a field of `TranslationScores` with the score, and one with its signature.
SCORE_NAMES = ("sacrebleu", "bleu_paper", "bleu_tokenized_lowercase", "chrf")
_LIKE_PAPER = (
    "Table 2 of the paper (newstest2014), Table 3 (newstest2013), get_ende_bleu.sh"
)
_LIKE_MULTI_BLEU = (
    "Moses tokens scored by multi-bleu.perl, case kept; the paper does not say how it "
    "scored other languages than German"
)


@dataclasses.dataclass(frozen=True)
class TranslationScores:
    """The scores of one list of translations; each score runs from 0 to 100."""

    sacrebleu: float  # corpus BLEU, tokenizer 13a, mixed case, on the raw text
    sacrebleu_signature: str  # how it was computed, to print beside it; so below
    chrf: float  # character n-gram F-score, on the raw text
    chrf_signature: str
    bleu_paper: float  # corpus BLEU after `paper_tokenize`, mixed case, unsmoothed
    bleu_paper_signature: str
    bleu_tokenized_lowercase: float  # corpus BLEU after `moses_tokenize`, unsmoothed
    bleu_tokenized_lowercase_signature: str
    num_sentences: int  # pairs of hypothesis and reference
    num_reference_tokens: int  # of the references that `bleu_tokenized_lowercase` saw
    comparable_with: Mapping[str, str]  # by score: whose figures may stand beside it
    # By score, low and high: 95% of 1000 bootstrap resamples lie between.
    confidence_intervals: Mapping[str, tuple[float, float]] | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of a system's score from a baseline's."""

    difference: float  # above 0: better than the baseline
    p_value: float  # of so large a difference, either way, between systems alike


@dataclasses.dataclass(frozen=True)
class _Measure:
    """A way to score against fixed references."""

    name: str
    comparable_with: str
    signature: str
    prepare: Callable[[Sequence[str]], Sequence[str]]  # what the metric is given
    metric: BLEU | CHRF  # that has counted the references

    def statistics(self, hypotheses: Sequence[str]) -> np.ndarray:
        """What a score is computed from: float64 [sentences, statistics], to be summed.

        Of BLEU: tokens of hypothesis and of reference, matches of 1- to 4-grams, and
        1- to 4-grams of the hypothesis. Of chrF: of 1 to 6 characters, those of the
        hypothesis, of the reference, and matches.
        """
        counts = self.metric._extract_corpus_statistics(self.prepare(hypotheses), None)
        return np.array(counts, np.float64)

    def scores(self, sums: np.ndarray) -> np.ndarray:
        """The score of each row of summed statistics, [corpora]."""
        score = self.metric._compute_score_from_stats
        # A perfect match is 100.00000000000004 to sacreBLEU.
        return np.array([min(score(row).score, 100.0) for row in sums.tolist()])


def _measures(references: Sequence[str], language: str) -> list[_Measure]:
    """The measures in the order of `SCORE_NAMES`, which have counted the references."""
    is_german = language == "de"
    tokens = f"moses-{language}"
    paper_tokenized = functools.partial(paper_tokenize, language=language)
    lowercased = functools.partial(moses_tokenize, language=language, lowercase=True)
    # force: the text is meant to be tokenised, so sacreBLEU need not warn of it.
    multi_bleu = functools.partial(
        BLEU, tokenize="none", smooth_method="none", force=True
    )

    def measure(
        name: str,
        comparable_with: str,
        metric_of: Callable[..., BLEU | CHRF],
        prepare: Callable[[Sequence[str]], list[str]] = list,
        **steps: str,
    ) -> _Measure:
        metric = metric_of(references=[prepare(references)])
        signature = metric.get_signature()
        for key, value in steps.items():
            signature.update(key, value)
        return _Measure(name, comparable_with, str(signature), prepare, metric)

    # Chinese has no spaces: by 13a a sentence would be one token.
    sacrebleu = functools.partial(BLEU, tokenize="zh" if language == "zh" else "13a")
    sacremoses = importlib.metadata.version("sacremoses")
    return [
        measure("sacrebleu", "sacreBLEU with this signature", sacrebleu),
        measure(
            "bleu_paper",
            _LIKE_PAPER if is_german else _LIKE_MULTI_BLEU,
            multi_bleu,
            paper_tokenized,
            tok=f"unicode-punct+{tokens}{'+atat' if is_german else ''}",
            sacremoses=sacremoses,
        ),
        measure(
            "bleu_tokenized_lowercase",
            "Multi30k papers, which score lower-cased, normalised, tokenised text",
            multi_bleu,
            lowercased,
            case="lc",
            tok=f"normalize-punct+{tokens}",
            sacremoses=sacremoses,
        ),
        measure("chrf", "chrF2 with this signature", CHRF),
    ]


def _report(
    measures: Sequence[_Measure],
    statistics: Sequence[np.ndarray],
    *,
    with_intervals: bool,
) -> TranslationScores:
    """The scores of a system, by what each measure counted of it."""
    values: dict[str, Any] = {}
    intervals = {}
    for measure, counts in zip(measures, statistics, strict=True):
        (score,) = measure.scores(counts.sum(axis=0, keepdims=True))
        values[measure.name] = float(score)
        values[f"{measure.name}_signature"] = measure.signature
        if with_intervals:
            resampled = measure.scores(bootstrap_sums(counts))
            intervals[measure.name] = confidence_interval(resampled)
        if measure.name == "bleu_tokenized_lowercase":
            values["num_reference_tokens"] = int(counts[:, 1].sum())
    return TranslationScores(
        **values,
        num_sentences=len(statistics[0]),
        comparable_with={m.name: m.comparable_with for m in measures},
        confidence_intervals=intervals or None,
    )


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
    with_intervals: bool = False,
) -> TranslationScores:
    """Returns the scores of translations with one reference each.

    With p_n the clipped n-gram precision over the whole corpus, c the length of all
    hypotheses and r that of all references (Papineni et al. 2002,
    https://aclanthology.org/P02-1040):

        BLEU = 100 min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)

    `sacrebleu` replaces a p_n of zero by sacreBLEU's default smoothing; the other two
    BLEUs do not smooth and are then 0, like Moses's `multi-bleu.perl`.

    Args:
        hypotheses: the translations as plain text, not tokenised.
        references: the expected translations in the same order.
        target_language: ISO code such as "de", for the tokens of Moses; sacreBLEU's
            13a tokenizer is the same for every language.
        with_intervals: also by how much each score would vary with other sentences of
            the kind.

    Returns:
        The scores, with the signatures to quote beside them.

    Raises:
        UserError: if the numbers of sentences differ or are zero.

    Example:
        >>> text = ["Zwei Hunde spielen im Schnee."]
        >>> scores = score_translations(text, text, target_language="de")
        >>> round(scores.sacrebleu, 2), scores.num_reference_tokens
        (100.0, 6)
    """
    _require_as_many(hypotheses, references)
    measures = _measures(references, target_language)
    statistics = [measure.statistics(hypotheses) for measure in measures]
    return _report(measures, statistics, with_intervals=with_intervals)


def compare_systems(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    target_language: str,
) -> tuple[list[TranslationScores], list[dict[str, Difference]]]:
    """Returns the scores of systems, and how the first compares with each other one.

    Args:
        systems: the translations of each; those of the baseline first.
        references: the expected translations in the same order.
        target_language: as for `score_translations`.

    Returns:
        The scores of each system with intervals; and of each but the first, by score,
        the difference from the first with the p-value of the paired test by
        approximate randomisation, two-sided (see significance.py).

    Raises:
        UserError: if the numbers of sentences differ or are zero.

    Example:
        >>> system = ["Zwei Hunde spielen im Schnee."]
        >>> _, (same,) = compare_systems([system] * 2, system, target_language="de")
        >>> same["sacrebleu"]
        Difference(difference=0.0, p_value=1.0)
    """
    for hypotheses in systems:
        _require_as_many(hypotheses, references)
    measures = _measures(references, target_language)
    statistics = [[m.statistics(system) for m in measures] for system in systems]
    scores = [_report(measures, counts, with_intervals=True) for counts in statistics]
    differences = [
        {
            measure.name: _difference(measure, baseline, other)
            for measure, baseline, other in zip(
                measures, statistics[0], counts, strict=True
            )
        }
        for counts in statistics[1:]
    ]
    return scores, differences


def _difference(
    measure: _Measure, baseline: np.ndarray, other: np.ndarray
) -> Difference:
    shuffled = [
        measure.scores(second) - measure.scores(first)
        for first, second in shuffled_sums(baseline, other)
    ]
    totals = np.stack([baseline.sum(axis=0), other.sum(axis=0)])
    first, second = measure.scores(totals)
    difference = float(second - first)
    return Difference(difference, p_value(np.concatenate(shuffled), difference))


def _require_as_many(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    # sacreBLEU would score up to the shorter list, without a word.
    if len(hypotheses) != len(references):
        raise UserError(
            f"Got {len(hypotheses)} translations for {len(references)} references, "
            "expected as many of each; give both one sentence a line, in one order."
        )
    if not references:
        raise UserError(
            "Got 0 sentences to score, expected at least 1; check that the files of "
            "translations and references are not empty."
        )
