"""Text <-> token ids by SentencePiece; the one place that knows the special ids."""

import dataclasses
import functools
import hashlib
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from transformer_jax.errors import UserError
from transformer_jax.files import write_whole
from transformer_jax.parsing.linear import SPACE_MARK, brackets_of

PAD_ID = 0
START_ID = 1
END_ID = 2
UNKNOWN_ID = 3  # never produced: what has no piece becomes bytes
_NUM_SPECIAL = 4
_NUM_BYTES = 256

_MAX_SENTENCE_BYTES = 1 << 16


class Tokenizer:
    """A trained SentencePiece model.

    Text is brought to Unicode's composed form (NFC), so that "u" + diaeresis and "ü"
    are the same; nothing else is changed but runs of spaces.
    """

    def __init__(self, model: bytes) -> None:
        """Loads a serialised SentencePiece model.

        Raises:
          UserError: `model` is not one.
        """
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError("not a SentencePiece vocabulary") from error

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Reads a model file."""
        try:
            return cls(path.read_bytes())
        except FileNotFoundError:
            raise UserError(
                f"no vocabulary {path}: train first, or give the folder of a run"
            ) from None
        except UserError as error:
            raise UserError(
                f"{path} is damaged ({error}): restore it, or train in a new folder"
            ) from error

    def save(self, path: Path) -> None:
        """Writes the model file, whole or not at all."""
        write_whole(path, self.model)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones and bytes included."""
        return self._processor.vocab_size()

    @property
    def digest(self) -> str:
        """A short hash of the pieces: equal for vocabularies that mean the same."""
        pieces = "\n".join(map(self._processor.id_to_piece, range(self.vocab_size)))
        return hashlib.sha256(pieces.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """The ids of a line, without start and end."""
        return self._processor.encode(_composed(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without start and end."""
        return self._processor.encode([_composed(text) for text in texts])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; special ids have none, invalid bytes become U+FFFD."""
        return self._processor.decode([int(i) for i in ids if i >= _NUM_SPECIAL])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as strings, for display; a leading "▁" is a space."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def starts_word(self, token_id: int) -> bool:
        """Whether the piece begins with a space."""
        return self._processor.id_to_piece(token_id).startswith(SPACE_MARK)

    @functools.cached_property
    def brackets(self) -> list[str]:
        """The pieces that are a token of a linearised tree, without their space."""
        pieces = self.pieces(range(self.vocab_size))
        words = (piece[1:] for piece in pieces if piece.startswith(SPACE_MARK))
        return brackets_of(words)


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """The tokenizers of both languages: the same one where they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def load(cls, folder: Path, *, shared: bool) -> "Vocabularies":
        """Reads the vocabulary files of a run or of an exported model."""
        if shared:
            tokenizer = Tokenizer.load(folder / "vocabulary.model")
            return cls(tokenizer, tokenizer)
        return cls(
            Tokenizer.load(folder / "vocabulary.source.model"),
            Tokenizer.load(folder / "vocabulary.target.model"),
        )

    def save(self, folder: Path) -> None:
        """Writes the vocabulary files."""
        if self.source is self.target:
            self.source.save(folder / "vocabulary.model")
        else:
            self.source.save(folder / "vocabulary.source.model")
            self.target.save(folder / "vocabulary.target.model")

    @property
    def digest(self) -> str:
        """Says whether two runs have the same vocabulary."""
        return f"{self.source.digest}-{self.target.digest}"

    def encode(
        self, pairs: Sequence[tuple[str, str]]
    ) -> list[tuple[list[int], list[int]]]:
        """The ids of source and target of each pair, without start and end."""
        source = self.source.encode_batch([pair[0] for pair in pairs])
        target = self.target.encode_batch([pair[1] for pair in pairs])
        return list(zip(source, target, strict=True))


def train_tokenizer(
    lines: Iterable[str],
    *,
    vocab_size: int,
    algorithm: str = "bpe",
    words: Sequence[str] = (),
) -> Tokenizer:
    """A vocabulary of exactly `vocab_size` ids, learned from the lines.

    The ids are PAD, START, END, UNKNOWN, the 256 bytes, then pieces. The same lines
    give the same pieces.

    Args:
      lines: training text.
      vocab_size: number of ids.
      algorithm: "bpe" (Sennrich et al. 2016) or "unigram" (Kudo 2018).
      words: that are a piece each, and found before all others, such as a tree's
        brackets.

    Raises:
      UserError: the text cannot fill, or the size cannot hold, a vocabulary.
    """
    if vocab_size <= _NUM_SPECIAL + _NUM_BYTES:
        raise UserError(
            f"model.vocab_size is {vocab_size}, expected more than "
            f"{_NUM_SPECIAL + _NUM_BYTES} (special ids and bytes)"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_lines(lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=algorithm,
            pad_id=PAD_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            unk_id=UNKNOWN_ID,
            byte_fallback=True,
            character_coverage=0.9999,
            normalization_rule_name="identity",
            max_sentence_length=_MAX_SENTENCE_BYTES,
            user_defined_symbols=[f"{SPACE_MARK}{word}" for word in words],
            num_threads=1,  # more change the scores of unigram pieces
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            f"cannot make a vocabulary of model.vocab_size={vocab_size} from the "
            f"training text: {_reason(str(error))}"
        ) from error
    return Tokenizer(model.getvalue())


def _training_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if len(line.encode()) <= _MAX_SENTENCE_BYTES:
            yield _composed(line)


def _reason(message: str) -> str:
    """SentencePiece's own advice, in our words where we know it."""
    most = re.search(r"set it to a value <= (\d+)", message)
    if most:
        return (
            f"it is too short; expected at most {most[1]}, lower "
            "--config.model.vocab_size"
        )
    for phrase in ("Vocabulary size", "vocab_size"):
        if phrase in message:
            return message[message.index(phrase) :].strip().replace("\n", " ")
    return message.splitlines()[-1] if message else "it is empty"


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)
