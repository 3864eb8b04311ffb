"""Tests of the scores, against sums by hand and an n-gram count of their own."""

import collections
import gzip
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.metrics import moses_tokenize, score_translations

ROOT = Path(__file__).parent.parent

# Sentences of our own, with one rule of the pipeline each.
PIPELINE_CASES = [
    ("de", "Zwei Hunde spielen im Schnee.", "zwei hunde spielen im schnee ."),
    ("de", "Ein Mann im T-Shirt, barfuß.", "ein mann im t-shirt , barfuß ."),
    # "Art." is a German abbreviation, "art." is not.
    ("de", "Sie mag diese Art.", "sie mag diese art ."),
    ("de", "Er ruft: „Los!“", "er ruft : &quot; los ! &quot;"),
    # The full stop moves out of a closing quote, at the end of a line too.
    ("de", "Da steht „Ja.“", "da steht &quot; ja &quot; ."),
    ("en", "It's Tom & Ann's dog", "it &apos;s tom &amp; ann &apos;s dog"),
    ("fr", "L'homme, c'est lui", "l&apos; homme , c&apos; est lui"),
    # As in the published French file: ’ before a letter that is not ASCII.
    ("fr", "Un clin d’œil", "un clin d &quot; œil"),
    # Unknown to Moses: English abbreviations, apostrophes always apart.
    ("xx", "It's mr. Fox", "it &apos; s mr. fox"),
    ("xx", "  two   spaces\tand a tab ", "two spaces and a tab"),
    ("de", "", ""),
]


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """The arithmetic of Moses's multi-bleu.perl on text split at spaces."""
    matches, totals = [0] * 4, [0] * 4
    hypothesis_length = reference_length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        h, r = hypothesis.split(), reference.split()
        hypothesis_length += len(h)
        reference_length += len(r)
        for n in range(1, 5):
            grams_h = collections.Counter(
                tuple(h[i : i + n]) for i in range(len(h) - n + 1)
            )
            grams_r = collections.Counter(
                tuple(r[i : i + n]) for i in range(len(r) - n + 1)
            )
            totals[n - 1] += sum(grams_h.values())
            matches[n - 1] += sum((grams_h & grams_r).values())
    if 0 in matches:
        return 0.0
    log_precision = sum(math.log(m / t) for m, t in zip(matches, totals, strict=True))
    brevity = min(0.0, 1 - reference_length / hypothesis_length)
    return 100 * math.exp(brevity + log_precision / 4)


def find_multi30k(name: str) -> Path:
    default = ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("TRANSFORMER_JAX_DATA", default)) / "multi30k"
    if not (folder / name).exists():
        pytest.skip(f"no {name} in {folder}; set TRANSFORMER_JAX_DATA to its parent")
    return folder / name


def read_sentences(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


@pytest.mark.parametrize(("language", "sentence", "expected"), PIPELINE_CASES)
def test_moses_tokens_follow_lowercase_normalize_tokenize(language, sentence, expected):
    assert moses_tokenize([sentence], language, lowercase=True) == [expected]


def test_case_is_kept_on_request_and_changes_what_is_an_abbreviation():
    tokens = moses_tokenize(["Sie mag diese Art."], "de", lowercase=False)
    assert tokens == ["Sie mag diese Art."]


@pytest.mark.parametrize(
    ("split", "language", "tokens", "characters"),
    [
        # Tokens and characters of data/task1/tok/*.lc.norm.tok.* at
        # github.com/multi30k/dataset; papers print the first count, 12,103.
        ("test_2016_flickr", "de", 12_103, 70_777),
        ("test_2016_flickr", "fr", 13_988, 75_145),
        ("val", "de", 12_828, 76_011),
        ("val", "fr", 14_381, 77_007),
    ],
)
def test_multi30k_counts_as_in_the_literature(split, language, tokens, characters):
    sentences = read_sentences(find_multi30k(f"{split}.{language}.gz"))
    tokenized = moses_tokenize(sentences, language, lowercase=True)
    assert sum(len(line.split()) for line in tokenized) == tokens
    assert sum(len(line) + 1 for line in tokenized) == characters


def test_scoring_multi30k_takes_seconds_and_reports_its_reference_tokens():
    references = read_sentences(find_multi30k("test_2016_flickr.de.gz"))
    start_s = time.perf_counter()
    scores = score_translations(references, references, target_language="de")
    assert time.perf_counter() - start_s < 10  # 0.4 s on an idle CPU
    assert (scores.num_sentences, scores.num_reference_tokens) == (1000, 12_103)
    assert scores.bleu_tokenized_lowercase == pytest.approx(100)


def test_a_perfect_match_scores_100():
    text = ["Ein Hund läuft durch den Schnee.", "Zwei Männer stehen vor einem Haus."]
    scores = score_translations(text, text, target_language="de")
    assert scores.sacrebleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.bleu_tokenized_lowercase == pytest.approx(100)
    assert (scores.num_sentences, scores.num_reference_tokens) == (2, 14)


def test_bleu_equals_the_sum_by_hand():
    # hypothesis  the cat sat on the red mat    7 tokens
    # reference   the cat sat on the mat today now   8 tokens
    # 1-grams: the cat sat on the mat match, red does not             6 of 7
    # 2-grams: the-cat cat-sat sat-on on-the                          4 of 6
    # 3-grams: the-cat-sat cat-sat-on sat-on-the                      3 of 5
    # 4-grams: the-cat-sat-on cat-sat-on-the                          2 of 4
    scores = score_translations(
        ["the cat sat on the red mat"],
        ["the cat sat on the mat today now"],
        target_language="en",
    )
    precision = np.prod([6 / 7, 4 / 6, 3 / 5, 2 / 4]) ** 0.25
    expected = 100 * np.exp(1 - 8 / 7) * precision
    assert scores.bleu_tokenized_lowercase == pytest.approx(expected)
    assert scores.sacrebleu == pytest.approx(expected)


def test_repeating_a_word_is_clipped_and_length_is_not_rewarded():
    # "a" stands twice in the reference, so of five only two count; the 2-, 3- and
    # 4-grams are 1 of 7, 1 of 6, 1 of 5 by the tail "b c d e" and its parts.
    scores = score_translations(
        ["a a a a a b c d e"], ["a x a y b c d e"], target_language="xx"
    )
    precision = np.prod([6 / 9, 3 / 8, 2 / 7, 1 / 6]) ** 0.25
    assert scores.bleu_tokenized_lowercase == pytest.approx(100 * precision)


def test_the_corpus_is_counted_as_a_whole_and_not_averaged():
    hypotheses, references = ["a b c d e", "f"], ["a b c d e", "g h i"]
    scores = score_translations(hypotheses, references, target_language="xx")
    # 5 of 6 words, all of the longer n-grams; 6 tokens for 8.
    expected = 100 * np.exp(1 - 8 / 6) * (5 / 6) ** 0.25
    assert scores.bleu_tokenized_lowercase == pytest.approx(expected)


def test_tokenized_bleu_ignores_case_and_sacrebleu_does_not():
    scores = score_translations(
        ["Der hund läuft durch den Schnee"],
        ["der Hund läuft durch den Schnee"],
        target_language="de",
    )
    assert scores.bleu_tokenized_lowercase == pytest.approx(100)
    assert scores.sacrebleu < 80


def test_without_a_common_4_gram_tokenized_bleu_is_zero_and_sacrebleu_is_smoothed():
    scores = score_translations(["a b c x"], ["a b c y"], target_language="xx")
    assert scores.bleu_tokenized_lowercase == 0
    assert scores.sacrebleu > 0


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_tokenized_bleu_agrees_with_multi_bleu_on_random_text(seed):
    rng = np.random.default_rng(seed)
    words = np.array(["ba", "du", "ki", "lo", "me", "ro", "ta"])

    def sentence() -> list[str]:
        return list(rng.choice(words, size=rng.integers(0, 23)))

    references = [sentence() for _ in range(37)]
    hypotheses = [
        [w if rng.random() > 0.2 else str(rng.choice(words)) for w in reference]
        + sentence()[: rng.integers(0, 3)]
        for reference in references
    ]
    hypotheses = [" ".join(s[rng.integers(0, 3) :]) for s in hypotheses]
    references = [" ".join(s) for s in references]
    scores = score_translations(hypotheses, references, target_language="xx")
    expected = multi_bleu(hypotheses, references)
    assert 20 < expected < 90
    assert scores.bleu_tokenized_lowercase == pytest.approx(expected)
    assert scores.num_reference_tokens == sum(len(r.split()) for r in references)


def test_signatures_say_how_the_scores_were_computed():
    scores = score_translations(["a b"], ["a b"], target_language="de")
    assert scores.sacrebleu_signature.startswith(
        "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    )
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")


def test_empty_translations_score_zero():
    scores = score_translations(["", ""], ["ein Hund", ""], target_language="de")
    assert (scores.sacrebleu, scores.chrf) == (0, 0)
    assert scores.bleu_tokenized_lowercase == 0


def test_unequal_numbers_of_sentences_are_an_error_with_both_numbers():
    with pytest.raises(UserError, match="2 translations for 3 references"):
        score_translations(["a", "b"], ["a", "b", "c"], target_language="de")
    with pytest.raises(UserError, match="1 translations for 0 references"):
        score_translations(["a"], [], target_language="de")


def test_nothing_to_score_is_an_error():
    with pytest.raises(UserError, match="0 sentences"):
        score_translations([], [], target_language="de")


def test_scoring_neither_imports_jax_nor_writes_to_the_terminal():
    program = (
        "import sys\n"
        "from transformer_jax.metrics import score_translations\n"
        "text = ['A line of raw text.'] * 200\n"
        "score_translations(text, text, target_language='en')\n"
        "assert 'jax' not in sys.modules\n"
    )
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
