"""Tests of the scores, against sums by hand and an n-gram count of their own."""

import collections
import gzip
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from transformer_jax.errors import UserError
from transformer_jax.metrics import SCORE_NAMES, compare_systems, score_translations
from transformer_jax.moses import moses_tokenize, paper_tokenize

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

# Worked by hand from the rules in `paper_tokenize`, and run through the Perl scripts.
PAPER_CASES = [
    (
        "de",
        "Ein „Rich-Text-Format“.",
        "Ein &quot; Rich ##AT##-##AT## Text ##AT##-##AT## Format &quot; .",
    ),
    # The y is used up by the first hyphen; of ü the second byte is left for the next.
    ("de", "x-y-z", "x ##AT##-##AT## y-z"),
    ("de", "x-ü-z", "x ##AT##-##AT## ü ##AT##-##AT## z"),
    ("de", "a--b", "a ##AT##-##AT## -b"),
    # A hyphen with a space on a side joins nothing.
    ("de", "E-Mail- und -Post - ja", "E ##AT##-##AT## Mail- und -Post - ja"),
    ("de", "“So” geht’s…！", "&quot; So &quot; geht &apos; s ... !"),
    # Dashes and low single quotes are tokens as they stand.
    ("de", "Um 10–12 Uhr: ‚Ja‘", "Um 10 – 12 Uhr : ‚ Ja ‘"),
    ("de", "Sie mag diese Art.", "Sie mag diese Art."),
    ("de", "", ""),
    # Hyphens and „ are German only.
    ("fr", "L’eau-de-vie “x” „", "L&apos; eau-de-vie &quot; x &quot; „"),
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


@pytest.mark.parametrize(("language", "sentence", "expected"), PAPER_CASES)
def test_paper_tokens_follow_get_ende_bleu(language, sentence, expected):
    assert paper_tokenize([sentence], language) == [expected]


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


def noisy(references: list[list[str]], seed: int, share: float) -> list[list[str]]:
    """The words of the references without a random share of them."""
    rng = np.random.default_rng(seed)
    return [[w for w in words if rng.random() > share] for words in references]


def sentences(number: int, seed: int) -> list[list[str]]:
    """Random sentences of words and compounds, of upper and lower case."""
    rng = np.random.default_rng(seed)
    words = [f"{a}{b}" for a in "KbdfG" for b in ("an", "el", "in-die", "os-Kai")]
    return [list(rng.choice(words, rng.integers(5, 23))) for _ in range(number)]


def joined(lines: list[list[str]]) -> list[str]:
    return [" ".join(words) for words in lines]


def test_bleu_paper_is_multi_bleu_of_split_compounds():
    references = sentences(61, seed=3)
    hypotheses = noisy(references, seed=5, share=0.15)
    scores = score_translations(
        joined(hypotheses), joined(references), target_language="de"
    )

    def split(lines: list[list[str]]) -> list[str]:
        return [" ".join(words).replace("-", " ##AT##-##AT## ") for words in lines]

    expected = multi_bleu(split(hypotheses), split(references))
    assert 20 < expected < 90
    assert scores.bleu_paper == pytest.approx(expected)
    assert abs(scores.sacrebleu - expected) > 0.1  # 13a leaves compounds whole


def test_bleu_paper_sees_case_and_other_languages_keep_compounds_whole():
    hypotheses, references = ["das war ein E-mail Test"], ["das war ein E-Mail Test"]
    # 1-grams 6 of 7, 2-grams 4 of 6, 3-grams 3 of 5, 4-grams 2 of 4; then 4 of 5,
    # 2 of 4, 1 of 3 and none of 2.
    german, french = (
        score_translations(hypotheses, references, target_language=language)
        for language in ("de", "fr")
    )
    expected = 100 * np.prod([6 / 7, 4 / 6, 3 / 5, 2 / 4]) ** 0.25
    assert german.bleu_paper == pytest.approx(expected)
    assert french.bleu_paper == 0
    assert "+atat" in german.bleu_paper_signature
    assert "+atat" not in french.bleu_paper_signature
    assert "get_ende_bleu.sh" in german.comparable_with["bleu_paper"]
    assert "does not say" in french.comparable_with["bleu_paper"]


def test_sacrebleu_and_chrf_are_those_of_the_command_line(tmp_path):
    references = sentences(61, seed=3)
    texts = joined(noisy(references, seed=5, share=0.15)), joined(references)
    paths = [tmp_path / "hypothesis", tmp_path / "reference"]
    for path, lines in zip(paths, texts, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    flags = ["-m", "bleu", "chrf", "-w", "9", "-f", "json"]
    finished = subprocess.run(
        [sys.executable, "-m", "sacrebleu", paths[1], "-i", paths[0], *flags],
        capture_output=True,
        text=True,
        check=True,
    )
    bleu, chrf = json.loads(finished.stdout)
    scores = score_translations(*texts, target_language="de")
    assert scores.sacrebleu == pytest.approx(bleu["score"], abs=1e-8)
    assert scores.chrf == pytest.approx(chrf["score"], abs=1e-8)
    assert scores.sacrebleu_signature == bleu["signature"]
    assert scores.chrf_signature == chrf["signature"]


def test_intervals_are_those_of_sacrebleu(monkeypatch):
    # With its own seed and, as ours, whatever the variable says.
    references = sentences(61, seed=3)
    hypotheses = noisy(references, seed=5, share=0.15)
    texts = joined(hypotheses), joined(references)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    scores = score_translations(*texts, target_language="de", with_intervals=True)
    monkeypatch.delenv("SACREBLEU_SEED")
    assert scores.confidence_intervals is not None
    assert tuple(scores.confidence_intervals) == SCORE_NAMES
    words = BLEU(tokenize="none", smooth_method="none", force=True)
    split = [[x.replace("-", " ##AT##-##AT## ") for x in lines] for lines in texts]
    lower = [[line.lower() for line in lines] for lines in texts]
    for name, metric, (hypothesis, reference) in (
        ("sacrebleu", BLEU(), texts),
        ("bleu_paper", words, split),
        ("bleu_tokenized_lowercase", words, lower),
        ("chrf", CHRF(), texts),
    ):
        expected = metric.corpus_score(hypothesis, [reference], n_bootstrap=1000)
        low, high = scores.confidence_intervals[name]
        assert 1 < (high - low) / 2 < 10
        assert (high - low) / 2 == pytest.approx(expected._ci, rel=1e-6)
        assert low < getattr(scores, name) < high


def test_intervals_are_left_out_unless_asked_for():
    scores = score_translations(["a b"], ["a b"], target_language="de")
    assert scores.confidence_intervals is None


def test_the_paired_test_is_that_of_sacrebleu(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    references = sentences(61, seed=3)
    systems = [noisy(references, seed, share) for seed, share in ((5, 0.15), (7, 0.14))]
    texts = [joined(system) for system in systems]
    _, (differences,) = compare_systems(texts, joined(references), target_language="de")
    _, expected = PairedTest(
        [("one", texts[0]), ("two", texts[1])],
        {"sacrebleu": BLEU(), "chrf": CHRF()},
        [joined(references)],
    )()
    for name, results in (
        ("sacrebleu", expected["BLEU"]),
        ("chrf", expected["chrF2"]),
    ):
        first, second = results
        assert not isinstance(first, str)
        assert not isinstance(second, str)
        found = differences[name]
        assert found.difference == pytest.approx(second.score - first.score)
        # sacreBLEU counts only larger differences; equal ones are rare.
        assert second.p_value is not None
        assert found.p_value == pytest.approx(second.p_value, abs=3e-4)
        assert 0.001 < found.p_value < 0.5


def test_equal_systems_differ_by_chance_and_clearly_better_ones_do_not():
    references = sentences(61, seed=3)
    worse = joined(noisy(references, seed=5, share=0.3))
    scores, (same, better) = compare_systems(
        [worse, worse, joined(references)], joined(references), target_language="de"
    )
    for name in SCORE_NAMES:
        assert (same[name].difference, same[name].p_value) == (0, 1)
        assert better[name].difference == pytest.approx(100 - getattr(scores[0], name))
        assert better[name].p_value == pytest.approx(1 / 10_001)
        assert getattr(scores[2], name) == 100
    assert scores[0].confidence_intervals == scores[1].confidence_intervals


def test_systems_with_other_numbers_of_sentences_are_refused():
    with pytest.raises(UserError, match="1 translations for 2 references"):
        compare_systems([["a", "b"], ["a"]], ["a", "b"], target_language="de")


def test_signatures_say_how_the_scores_were_computed():
    scores = score_translations(["a b"], ["a b"], target_language="de")
    assert scores.sacrebleu_signature.startswith(
        "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    )
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
    assert scores.bleu_paper_signature.startswith(
        "nrefs:1|case:mixed|eff:no|tok:unicode-punct+moses-de+atat|smooth:none|"
    )
    assert scores.bleu_tokenized_lowercase_signature.startswith(
        "nrefs:1|case:lc|eff:no|tok:normalize-punct+moses-de|smooth:none|sacremoses:"
    )
    assert tuple(scores.comparable_with) == SCORE_NAMES


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
