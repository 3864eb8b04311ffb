"""The TreeParser: words in, trees out, by a Translator that was trained on a treebank.

Parsing is translation into the tokens of a tree (Section 6.3); what is special about it
is here: each output becomes a tree over exactly the words that came in.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.parsing.linear import (
    Leaves,
    is_tree,
    leaves_of,
    sentence_of,
    tokens_of,
    tree_of,
)
from transformer_jax.parsing.trees import Tree
from transformer_jax.translation import Translation, Translator


@dataclasses.dataclass(frozen=True)
class Parse:
    """What became of one sentence."""

    words: tuple[str, ...]
    tree: Tree | None  # over the words, root TOP; none without words
    tokens: tuple[str, ...]  # as the model made them
    is_whole: bool  # they were a tree over the words, and nothing was repaired
    translation: Translation  # its scores, and why it stopped


class TreeParser:
    """A trained model that parses.

    >>> parser = TreeParser.from_workdir("runs/parsing_sample")  # doctest: +SKIP
    >>> (parse,) = parser.parse([["The", "dog", "barked", "."]])  # doctest: +SKIP
    >>> one_line(parse.tree)  # doctest: +SKIP
    '(TOP (S (NP (DT The) (NN dog)) (VP (VBD barked)) (. .)))'
    """

    def __init__(self, translator: Translator) -> None:
        """Makes a parser of a translator whose vocabulary has brackets.

        Raises:
          UserError: it has none, since it was not trained on a treebank.
        """
        self.translator = translator
        self._brackets = translator.vocabularies.target.brackets
        if not self._brackets:
            raise UserError(
                "this model is no parser: its vocabulary has no brackets; expected one "
                "trained on a treebank, as by configs/parsing_sample.py"
            )
        self.leaves: Leaves = leaves_of(self._brackets)

    @classmethod
    def from_workdir(
        cls, workdir: str | Path, checkpoint: str = "latest"
    ) -> "TreeParser":
        """The parser that a run has trained; see `Translator.from_workdir`."""
        return cls(Translator.from_workdir(workdir, checkpoint))

    def parse(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[Parse]:
        """The best tree of each sentence, in order.

        A sentence of more word pieces than the model was trained on is cut before the
        last word that fits, as often as needed: its parts are parsed by themselves and
        stand side by side under TOP.

        Args:
          sentences: the words of each, none of them with white space in it.
          progress: called with the number of sentences each time some are done.

        Raises:
          UserError: a word that is empty or holds white space.
        """
        for number, words in enumerate(sentences, start=1):
            _require_words(words, number)
        translations = self.translator.translations(
            [sentence_of(words) for words in sentences], progress=progress
        )
        return [
            self._parse(words, translation)
            for words, translation in zip(sentences, translations, strict=True)
        ]

    def _parse(self, words: Sequence[str], translation: Translation) -> Parse:
        tokens = tokens_of(translation.text, self._brackets)
        return Parse(
            words=tuple(words),
            tree=tree_of(tokens, words, leaves=self.leaves) if words else None,
            tokens=tuple(tokens),
            is_whole=is_tree(tokens, words, leaves=self.leaves),
            translation=translation,
        )


def _require_words(words: Sequence[str], number: int) -> None:
    if isinstance(words, str):
        raise TypeError("got one str for a sentence, expected its words: text.split()")
    for word in words:
        if word.split() != [word]:
            raise UserError(
                f"sentence {number} has the word {word!r}, expected words without "
                "white space: split it"
            )
