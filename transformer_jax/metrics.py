"""Strings into scores: sacreBLEU, chrF and the tokenised BLEU of the literature.

Two BLEU numbers are reported side by side, because papers differ in which they print:

* `sacrebleu`, on the raw text with the 13a tokenizer and upper case kept. Its
  signature fixes how it was computed (Post 2018, https://aclanthology.org/W18-6319).
* `bleu_tokenized_lowercase`, on lower-cased text split by Moses's rules: what the
  Multi30k papers report. It is some points higher.

Nothing here knows a model, and nothing imports JAX.
"""

import dataclasses
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TranslationScores:
    """The scores of one list of translations; each score runs from 0 to 100."""

    sacrebleu: float  # corpus BLEU, tokenizer 13a, mixed case, on the raw text
    sacrebleu_signature: str  # how `sacrebleu` was computed, to print beside it
    chrf: float  # character n-gram F-score, on the raw text
    chrf_signature: str  # how `chrf` was computed
    bleu_tokenized_lowercase: float  # corpus BLEU after `moses_tokenize`, unsmoothed
    num_sentences: int  # pairs of hypothesis and reference
    num_reference_tokens: int  # of the references that `bleu_tokenized_lowercase` saw


def moses_tokenize(
    sentences: Sequence[str], language: str, *, lowercase: bool
) -> list[str]:
    """Returns each sentence as Moses tokens joined by single spaces.

    The steps and their order are those of Multi30k's `scripts/task1-tokenize.sh`,
    which made the `*.lc.norm.tok.*` files that its papers score:

        lowercase.perl | normalize-punctuation.perl -l LANG | tokenizer.perl -l LANG

    Lower case comes first, and this matters: Moses leaves the full stop of "Art." on
    its word, because that is a German abbreviation, but splits "art .". Hyphens stay
    inside words (no `-a`), and quotes and ampersands become `&quot;`, `&apos;` and
    `&amp;`, one token as before.

    As in Moses, a language without an abbreviation list of its own uses the English
    one; the English rules for apostrophes and quotes stay with English.

    Args:
        sentences: raw sentences, one a string.
        language: ISO code such as "de"; chooses abbreviations, apostrophes, quotes.
        lowercase: True to begin with lower case, as the pipeline above does.

    Returns:
        One string for each sentence.

    Example:
        >>> moses_tokenize(["„Ja“, sagt er."], "de", lowercase=True)
        ['&quot; ja &quot; , sagt er .']
    """
    # perl_parity: sacremoses by itself mends two oddities of the Perl script, such as
    # ’ before a letter that is not ASCII becoming a double quote.
    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    tokenizer = MosesTokenizer(language)
    tokenized = []
    for sentence in sentences:
        text = sentence.lower() if lowercase else sentence
        # The Perl script sees the end of line, and one of its rules needs a character
        # after a closing quote: 'tea."\n' -> 'tea".\n'.
        text = normalizer.normalize(text + "\n")
        tokenized.append(tokenizer.tokenize(text, return_str=True))
    return tokenized


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> TranslationScores:
    """Returns BLEU, chrF and tokenised BLEU of translations with one reference each.

    With p_n the clipped n-gram precision over the whole corpus, c the length of all
    hypotheses and r that of all references (Papineni et al. 2002,
    https://aclanthology.org/P02-1040):

        BLEU = 100 min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)

    `sacrebleu` replaces a p_n of zero by sacreBLEU's default smoothing; the tokenised
    BLEU does not smooth and is then 0, like Moses's `multi-bleu.perl`.

    Args:
        hypotheses: the translations as plain text, not tokenised.
        references: the expected translations in the same order.
        target_language: ISO code such as "de", for `moses_tokenize`; sacreBLEU's 13a
            tokenizer is the same for every language.

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
    bleu = BLEU(tokenize="13a")
    chrf = CHRF()
    sacrebleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score

    tokenized_hypotheses, tokenized_references = (
        moses_tokenize(sentences, target_language, lowercase=True)
        for sentences in (hypotheses, references)
    )
    # force: the text is meant to be tokenised, so sacreBLEU need not warn of it.
    tokenized_bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    tokenized_score = tokenized_bleu.corpus_score(
        tokenized_hypotheses, [tokenized_references]
    ).score
    return TranslationScores(
        sacrebleu=sacrebleu_score,
        sacrebleu_signature=str(bleu.get_signature()),
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
        bleu_tokenized_lowercase=tokenized_score,
        num_sentences=len(references),
        num_reference_tokens=sum(len(line.split()) for line in tokenized_references),
    )
