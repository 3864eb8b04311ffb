"""Splitting a text into sentences, by the rules of its language."""

from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]


def split_sentences(text: str, language: str) -> list[str]:
    """The sentences of a text, without the spaces around them; none of a blank one.

    The rules are those of Wikimedia's sentencex, which knows abbreviations and full
    stops of some 240 languages and has general rules for others.

    Args:
      text: of one paragraph.
      language: code as "en", "de", "zh"; of "pt_BR" or "pt-BR" the first part counts.

    >>> split_sentences("Dr. Smith came on May 3. He left.", "en")
    ['Dr. Smith came on May 3.', 'He left.']
    """
    code = language.replace("-", "_").partition("_")[0].lower()
    parts = [part.strip() for part in segment(code, text)]
    return [part for part in parts if part]
