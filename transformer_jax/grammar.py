"""The pieces of a vocabulary of trees, for a search that finds only trees."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.data.tokenizer import Vocabularies
from transformer_jax.decoding.trees import (
    ANY_LEAF,
    CLOSES,
    LEAF,
    OPENS,
    OTHER,
    Grammar,
)
from transformer_jax.errors import UserError
from transformer_jax.parsing.linear import SPACE_MARK, kind_of


@dataclasses.dataclass(frozen=True)
class TreePieces:
    """What the pieces mean: "▁(S" opens an S, "▁)S" or "▁)" closes it.

    In a vocabulary with tags, such as "▁(DT)", each tag is a leaf and stands for a
    word. In one without, the leaves are the pieces of the words.
    """

    grammar: Grammar
    has_tags: bool

    @classmethod
    def of(cls, vocabularies: Vocabularies) -> "TreePieces":
        """Reads the vocabulary of words and trees.

        Raises:
          UserError: there are two, or it is none of trees.
        """
        if vocabularies.source is not vocabularies.target:
            raise UserError(
                "decoding.only_trees with two vocabularies, expected one of words and "
                "trees: drop it, or train with tokenizer.shared=true"
            )
        tokenizer = vocabularies.target
        return cls.of_pieces(tokenizer.pieces(range(tokenizer.vocab_size)))

    @classmethod
    def of_pieces(cls, pieces: Sequence[str]) -> "TreePieces":
        """Reads the pieces of a vocabulary, in order of their ids.

        Raises:
          UserError: none opens a constituent and is closed by another.
        """
        ids = {piece: i for i, piece in enumerate(pieces)}
        plain = ids.get(f"{SPACE_MARK})", -1)
        of_pieces = [
            kind_of(piece[1:]) if piece.startswith(SPACE_MARK) else "word"
            for piece in pieces
        ]
        has_tags = "tag" in of_pieces
        kinds = np.full(len(pieces), OTHER, np.int8)
        closers = np.full(len(pieces), -1, np.int32)
        for i, (piece, kind) in enumerate(zip(pieces, of_pieces, strict=True)):
            if kind == "open":
                closers[i] = ids.get(piece.replace("(", ")"), plain)
                # What nothing closes cannot be opened.
                kinds[i] = OPENS if closers[i] >= 0 else OTHER
            elif kind == "close":
                kinds[i] = CLOSES
            elif kind == ("tag" if has_tags else "word"):
                kinds[i] = LEAF
        if OPENS not in kinds:
            raise UserError(
                "decoding.only_trees with a vocabulary without brackets, expected that "
                "of a parser, with pieces such as (S and )S: drop it, or train on trees"
            )
        starts = np.array([piece.startswith(SPACE_MARK) for piece in pieces])
        tables: Any = kinds, closers, starts
        return cls(Grammar(*tables), has_tags)

    def leaves(self, source: Sequence[int]) -> list[int]:
        """What the leaves of a tree over a source are: its pieces, or a tag a word.

        A source that begins within a word, as one that was cut may, has that too.
        """
        if not self.has_tags:
            return list(source)
        starts_word = self.grammar.starts_word[np.asarray(source, np.int64)]
        return [ANY_LEAF] * (int(np.sum(starts_word[1:])) + 1)

    def require_words(self, sentences: Sequence[str], first_number: int) -> None:
        """Refuses sentences with a bracket, which is none of their tree's.

        Raises:
          UserError: numbering the sentence, from `first_number` on.
        """
        for number, sentence in enumerate(sentences, start=first_number):
            if found := re.search("[()]", sentence):
                raise UserError(
                    f"sentence {number} holds {found[0]!r}, which decoding.only_trees "
                    "takes for a bracket of a tree, expected -LRB- or -RRB-"
                )
