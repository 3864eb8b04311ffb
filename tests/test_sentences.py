"""Splitting into sentences: full stops that end one, and those that do not."""

import pytest

from transformer_jax.data.sentences import split_sentences


@pytest.mark.parametrize("language", ["en", "EN", "en_GB", "de", "zh", "pt-BR", "xx"])
def test_sentences_end_at_full_stops_and_lose_their_spaces(language):
    text = "  The first one.  How is the second? Good!  "
    expected = ["The first one.", "How is the second?", "Good!"]
    assert split_sentences(text, language) == expected


def test_an_english_title_ends_no_sentence():
    text = "Dr. Smith met Mrs. Jones. She left."
    expected = ["Dr. Smith met Mrs. Jones.", "She left."]
    assert split_sentences(text, "en") == expected


def test_a_german_abbreviation_ends_a_sentence_in_english_only():
    text = "Vgl. Anna und Paul. Sie kamen am 3. Mai."
    assert split_sentences(text, "de") == [
        "Vgl. Anna und Paul.",
        "Sie kamen am 3. Mai.",
    ]
    assert split_sentences(text, "en")[0] == "Vgl."


@pytest.mark.parametrize("language", ["zh", "en"])
def test_chinese_full_stops_end_sentences_without_a_space(language):
    text = "他来了。你好吗？我很好！"
    assert split_sentences(text, language) == ["他来了。", "你好吗？", "我很好！"]


@pytest.mark.parametrize("code", ["pt-BR", "pt_BR", "PT-br"])
def test_of_a_code_with_a_region_the_first_part_counts(code):
    text = "Vi a Dra. Ana. Ela saiu."
    assert split_sentences(text, "en") == ["Vi a Dra.", "Ana.", "Ela saiu."]
    assert split_sentences(text, code) == ["Vi a Dra. Ana.", "Ela saiu."]


@pytest.mark.parametrize("language", ["en", "de", "zh", "pt-BR", "xx"])
@pytest.mark.parametrize("text", ["", " ", "\t \n\n", "\u3000\u00a0"])
def test_a_blank_text_has_no_sentence(text, language):
    assert split_sentences(text, language) == []


@pytest.mark.parametrize("language", ["en", "de", "zh", "pt-BR", "xx"])
@pytest.mark.parametrize(
    "text",
    [
        "a\x00b. C\x1fd. E\x7ff.",
        "One.\r\nTwo.\r\n\r\nThree.",
        "One.\tTwo.\x0bThree.\x0cFour.",
        "\ufeffOne. \u200bTwo.\u2028Three.",
        "... !!! ???",
        "no full stop",
        "e\u0301. \U0001f600. \U0001f1e9\U0001f1ea!",
    ],
)
def test_splitting_loses_and_changes_nothing_but_spaces(text, language):
    parts = split_sentences(text, language)
    assert parts
    assert all(part == part.strip() != "" for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_text_without_a_full_stop_is_one_sentence():
    assert split_sentences("twenty-one books", "en") == ["twenty-one books"]


def test_splitting_is_the_same_twice_and_keeps_each_sentence_whole():
    text = "It costs 3.50 euros at www.example.com. Really?"
    expected = ["It costs 3.50 euros at www.example.com.", "Really?"]
    for _ in range(2):
        assert split_sentences(text, "en") == expected
