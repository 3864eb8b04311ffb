"""Text as tokens by Moses, whose scripts the scores of the literature are made with."""

import re
from collections.abc import Sequence

from sacremoses import MosesPunctNormalizer, MosesTokenizer

_HYPHEN = re.compile(rb"(\S)-(\S)")


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


def paper_tokenize(sentences: Sequence[str], language: str) -> list[str]:
    r"""Returns each sentence as the paper's scores were computed on, tokens spaced.

    The paper's Tables 2 and 3 were scored as `get_ende_bleu.sh` does (tensor2tensor's
    utils/; by an author in issue 61 there, and see issue 317). Its steps, in order:

    1. `replace-unicode-punctuation.perl` of Moses: ” and “ become ", ’ becomes ',
       … becomes three full stops, full-width signs become ASCII.
    2. `tokenizer.perl -l de` of Moses: hyphens stay in words, quotes become `&quot;`.
    3. `s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g`, over bytes and without overlap: of "x-y-z"
       only the first hyphen splits, as the y is used up.
    4. `multi-bleu.perl`: case kept, no smoothing; that is `score_translations`.

    The script takes the reference tokenised, from a file in which the German opening
    quote „ too is straight; step 1 does not change it. Here both sides are raw text, go
    through the same steps, and „ becomes " on both in step 1.

    The script is for German, and the paper does not say how French was scored. For
    other languages step 3 and „ are left out: Moses tokens by the language's rules.

    Example:
        >>> paper_tokenize(["Ein „Rich-Text-Format“."], "de")
        ['Ein &quot; Rich ##AT##-##AT## Text ##AT##-##AT## Format &quot; .']
    """
    normalizer = MosesPunctNormalizer(language)
    tokenizer = MosesTokenizer(language)
    tokenized = []
    for sentence in sentences:
        text = normalizer.replace_unicode_punct(sentence)
        if language == "de":
            text = text.replace("„", '"')
        line = str(tokenizer.tokenize(text, return_str=True))
        if language == "de":
            line = _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()
        tokenized.append(line)
    return tokenized
