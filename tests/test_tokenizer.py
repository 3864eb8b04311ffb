"""The tokenizer: its size is exact, and no text is lost."""

import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from transformer_jax.data.tokenizer import (
    END_ID,
    PAD_ID,
    START_ID,
    UNKNOWN_ID,
    Tokenizer,
    train_tokenizer,
)
from transformer_jax.errors import UserError

VOCAB_SIZE = 337


def made_up_lines(num_lines: int = 400) -> list[str]:
    """Sentences of made-up words, the same each time."""
    generator = random.Random(5)
    syllables = [c + v for c in "bdfgklmnprst" for v in "aeiouü"]
    words = ["".join(generator.choices(syllables, k=3)) for _ in range(150)]
    return [" ".join(generator.choices(words, k=9)) + "." for _ in range(num_lines)]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(
        made_up_lines(), vocab_size=VOCAB_SIZE, algorithm=request.param
    )


def test_the_vocabulary_has_exactly_the_size_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert len(tokenizer.pieces(range(VOCAB_SIZE))) == VOCAB_SIZE


def test_special_ids_come_first_and_then_the_bytes(tokenizer: Tokenizer) -> None:
    assert (PAD_ID, START_ID, END_ID, UNKNOWN_ID) == (0, 1, 2, 3)
    assert tokenizer.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert tokenizer.pieces([4, 259]) == ["<0x00>", "<0xFF>"]


def test_known_text_comes_back_in_fewer_pieces_than_letters(
    tokenizer: Tokenizer,
) -> None:
    for line in made_up_lines()[:20]:
        ids = tokenizer.encode(line)
        assert tokenizer.decode(ids) == line
        assert len(ids) < len(line)
        assert all(UNKNOWN_ID < i < VOCAB_SIZE for i in ids)


@pytest.mark.parametrize(
    "text",
    [
        "🙂",
        "👩‍👩‍👧‍👦 family 🏳️‍🌈",
        "我爱机器翻译",
        "Ελληνικά עברית العربية हिन्दी ไทย",
        "\U0001d518 \U00010348 \U0010ffff",
        "a\u0301\u0323\u0302",
        "\u200b\u200f\ufeff\u2028\x85\x0c",
        "\ufffd",
        "naïve Straße ﬁ ①",
        "<s> </s> <pad> <unk> <0x41>",
        "\x01\x7f",
    ],
)
def test_what_was_never_seen_becomes_bytes_and_comes_back(
    tokenizer: Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert UNKNOWN_ID not in ids
    assert min(ids) > UNKNOWN_ID
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_random_unicode_is_never_unknown(tokenizer: Tokenizer) -> None:
    generator = random.Random(3)
    for _ in range(200):
        text = "".join(
            chr(
                generator.choice(
                    [*range(0x21, 0xD800), *[0x1F600 + i for i in range(80)]]
                )
            )
            for _ in range(11)
        )
        # SentencePiece's own sign for a space, which no alphabet holds.
        text = text.replace("\u2581", "x").replace("\u3000", "x")
        ids = tokenizer.encode(text)
        assert min(ids) > UNKNOWN_ID
        composed = unicodedata.normalize("NFC", text)
        assert tokenizer.decode(ids) == composed


def test_composed_and_decomposed_text_are_the_same(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("mu\u0308de") == tokenizer.encode("m\u00fcde")
    assert tokenizer.decode(tokenizer.encode("mu\u0308de")) == "m\u00fcde"


def test_compatibility_signs_and_case_are_kept(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("ﬁ ² Å Da")) == "ﬁ ² Å Da"


def test_runs_of_spaces_become_one(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("  da   di ")) == "da di"


def test_empty_text_has_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.encode("   ") == []
    assert tokenizer.decode([]) == ""


def test_a_batch_is_its_lines_one_by_one(tokenizer: Tokenizer) -> None:
    lines = [*made_up_lines()[:5], "", "u\u0308 我"]
    assert tokenizer.encode_batch(lines) == [tokenizer.encode(line) for line in lines]
    assert tokenizer.encode_batch([]) == []


def test_special_ids_have_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("da di")
    padded = [START_ID, *ids, END_ID, PAD_ID, UNKNOWN_ID]
    assert tokenizer.decode(padded) == "da di"


def test_bytes_that_are_no_text_become_replacement_signs(
    tokenizer: Tokenizer,
) -> None:
    assert tokenizer.decode([4 + 0xFF]) == "\ufffd"


def test_a_piece_with_a_space_starts_a_word(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("da di do")
    assert sum(tokenizer.starts_word(i) for i in ids) == 3
    assert tokenizer.starts_word(ids[0])
    assert not tokenizer.starts_word(END_ID)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_digest(algorithm: str) -> None:
    lines = made_up_lines(100)
    first, second = (
        train_tokenizer(lines, vocab_size=300, algorithm=algorithm) for _ in range(2)
    )
    assert first.digest == second.digest
    assert first.encode(lines[0]) == second.encode(lines[0])
    changed = train_tokenizer(
        [line.replace("a", "y") for line in lines], vocab_size=300, algorithm=algorithm
    )
    assert changed.digest != first.digest


def test_a_saved_vocabulary_loads_as_the_same(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "vocabulary.model"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.digest == tokenizer.digest
    assert loaded.encode("da 我") == tokenizer.encode("da 我")
    assert [p.name for p in tmp_path.iterdir()] == ["vocabulary.model"]


def error_of(lines: list[str], vocab_size: int, algorithm: str = "bpe") -> str:
    with pytest.raises(UserError) as caught:
        train_tokenizer(lines, vocab_size=vocab_size, algorithm=algorithm)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_vocabulary_larger_than_the_text_can_fill_is_a_user_error(
    algorithm: str,
) -> None:
    message = error_of(["one two three", "four five"], 5000, algorithm)
    assert "model.vocab_size=5000" in message
    assert ".cc" not in message


@pytest.mark.parametrize("vocab_size", [-1, 0, 260])
def test_a_vocabulary_without_room_for_pieces_is_a_user_error(vocab_size: int) -> None:
    message = error_of(made_up_lines(20), vocab_size)
    assert f"model.vocab_size is {vocab_size}" in message
    assert "260" in message


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_vocabulary_smaller_than_the_alphabet_is_a_user_error(algorithm: str) -> None:
    message = error_of(made_up_lines(50), 263, algorithm)
    assert "model.vocab_size=263" in message


@pytest.mark.parametrize("lines", [[], [""], ["", "  "]])
def test_empty_text_is_a_user_error(lines: list[str]) -> None:
    assert "model.vocab_size=300" in error_of(lines, 300)


def test_a_missing_or_broken_vocabulary_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no vocabulary .*nowhere"):
        Tokenizer.load(tmp_path / "nowhere")
    broken = tmp_path / "broken"
    broken.write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a SentencePiece vocabulary"):
        Tokenizer.load(broken)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_brackets_are_those_that_the_vocabulary_was_given(algorithm: str) -> None:
    lines = [f"word{number} ( (S a ) )S" for number in range(2000)]
    options: dict[str, Any] = {"vocab_size": 290, "algorithm": algorithm}
    learned = train_tokenizer(lines, **options)
    assert any("(" in piece for piece in learned.pieces(range(290)))
    assert learned.brackets == []
    given = train_tokenizer(lines, **options, words=["(S", "(NN)", ")S"])
    assert given.brackets == ["(NN)", "(S", ")S"]
