"""The phrase corpus against German written by hand, and its promises about splits."""

import os
import random
import re
import string
import subprocess
import sys
from datetime import date

import pytest

from transformer_jax.data import phrases
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.errors import UserError

SPLITS = ("train", "validation", "test")
MONDAY, TUESDAY, SUNDAY = (date(2024, 1, day).toordinal() for day in (1, 2, 7))
MARCH, MAY = (date(2024, month, 5).toordinal() for month in (3, 5))
THIRD_OF_MAY = date(2024, 5, 3).toordinal()
TENTH_OF_JUNE = date(2024, 6, 10).toordinal()
THIRD_OF_MAY_2022 = date(2022, 5, 3).toordinal()

# English, German, and the values that fill the slots of their template in order.
HAND_WRITTEN = [
    (
        "The train to Hamburg leaves at a quarter past ten.",
        "Der Zug nach Hamburg fährt um Viertel nach zehn ab.",
        [("Hamburg",), (10, 15)],
    ),
    (
        "The train to Munich leaves at half past three on Tuesday.",
        "Der Zug nach München fährt am Dienstag um halb vier ab.",
        [("Munich",), (3, 30), (TUESDAY,)],
    ),
    (
        "Does the train to Vienna leave at one o'clock?",
        "Fährt der Zug nach Wien um ein Uhr ab?",
        [("Vienna",), (1, 0)],
    ),
    (
        "Anna says that the bus arrives at a quarter to one.",
        "Anna sagt, dass der Bus um Viertel vor eins ankommt.",
        [("Anna",), (12, 45)],
    ),
    (
        "Paul must work until twenty-five past five on Sunday.",
        "Paul muss am Sonntag bis fünf vor halb sechs arbeiten.",
        [("Paul",), (5, 25), (SUNDAY,)],
    ),
    (
        "The museum is open from ten past nine to twenty-five to twelve.",
        "Das Museum ist von zehn nach neun bis fünf nach halb zwölf geöffnet.",
        [(9, 10), (11, 35)],
    ),
    (
        "The flight from Rome lands at 12:30 AM.",
        "Der Flug aus Rom landet um 00:30 Uhr.",
        [("Rome",), (0, 30)],
    ),
    (
        "The meeting begins at 3:45 PM on May 3.",
        "Die Besprechung beginnt am 3. Mai um 15:45 Uhr.",
        [(15, 45), (THIRD_OF_MAY,)],
    ),
    (
        "Clara was born on May 3, 2022.",
        "Clara wurde am 3. Mai 2022 geboren.",
        [("Clara",), (THIRD_OF_MAY_2022,)],
    ),
    (
        "The concert takes place on Tuesday, May 3, 2022.",
        "Das Konzert findet am Dienstag, dem 3. Mai 2022, statt.",
        [(THIRD_OF_MAY_2022,)],
    ),
    (
        "Please pay the invoice by 05/03/2022.",
        "Bitte bezahlen Sie die Rechnung bis zum 03.05.2022.",
        [(THIRD_OF_MAY_2022,)],
    ),
    (
        "The school is closed from May 3 to June 10.",
        "Die Schule ist vom 3. Mai bis zum 10. Juni geschlossen.",
        [(THIRD_OF_MAY,), (TENTH_OF_JUNE,)],
    ),
    (
        "Maria's birthday is on the third of May.",
        "Marias Geburtstag ist am dritten Mai.",
        [("Maria",), (THIRD_OF_MAY,)],
    ),
    (
        "The third of May is a Monday.",
        "Der dritte Mai ist ein Montag.",
        [(THIRD_OF_MAY,), (MONDAY,)],
    ),
    (
        "The coat costs €1,234.50.",
        "Der Mantel kostet 1.234,50 €.",
        [("coat",), (123_450, "EUR")],
    ),
    (
        "I would like to sell the table for $0.95.",
        "Ich möchte den Tisch für 0,95 $ verkaufen.",
        [("table",), (95, "USD")],
    ),
    (
        "Peter bought the bicycle for twenty-one euros on Monday.",
        "Peter hat das Fahrrad am Montag für einundzwanzig Euro gekauft.",
        [("Peter",), ("bicycle",), (21,), (MONDAY,)],
    ),
    (
        "Cologne has 1,020,000 inhabitants.",
        "Köln hat 1.020.000 Einwohner.",
        [("Cologne",), (1_020_000,)],
    ),
    (
        "Emma can count to seven hundred and sixteen.",
        "Emma kann bis siebenhundertsechzehn zählen.",
        [("Emma",), (716,)],
    ),
    (
        "The seventh chapter begins on page 45.",
        "Das siebte Kapitel beginnt auf Seite 45.",
        [(7,), (45,)],
    ),
    (
        "David took twenty-third place on Sunday.",
        "David belegte am Sonntag den dreiundzwanzigsten Platz.",
        [("David",), (23,), (SUNDAY,)],
    ),
    (
        "Prices in Geneva rose by 12.5% in March.",
        "Im März stiegen die Preise in Genf um 12,5 %.",
        [("Geneva",), (125,), (MARCH,)],
    ),
    (
        "Sales fell by 3% in the first quarter of 2019.",
        "Im ersten Quartal 2019 sank der Umsatz um 3 %.",
        [(30,), (1,), (2019,)],
    ),
    (
        "It is 1,250 km from Brussels to Warsaw.",
        "Von Brüssel nach Warschau sind es 1.250 km.",
        [(12_500,), ("Brussels",), ("Warsaw",)],
    ),
    (
        "After one mile Laura turns left.",
        "Nach einer Meile biegt Laura links ab.",
        [(1, "mile"), ("Laura",)],
    ),
    (
        "Martin runs one kilometer every Tuesday.",
        "Martin läuft jeden Dienstag einen Kilometer.",
        [("Martin",), (1, "kilometer"), (TUESDAY,)],
    ),
    (
        "The lamp weighs 2.5 kg.",
        "Die Lampe wiegt 2,5 kg.",
        [("lamp",), (25,)],
    ),
    (
        "It is -5°C in Prague on Monday.",
        "Am Montag sind es in Prag -5 °C.",
        [(-50,), ("Prague",), (MONDAY,)],
    ),
    (
        "Robert will be thirty years old in May.",
        "Robert wird im Mai dreißig Jahre alt.",
        [("Robert",), (30,), (MAY,)],
    ),
    (
        "Anna has lived in Hamburg for one month.",
        "Anna wohnt seit einem Monat in Hamburg.",
        [("Anna",), ("Hamburg",), (1, "month")],
    ),
    (
        "Paul sold the camera eleven days ago.",
        "Paul hat die Kamera vor elf Tagen verkauft.",
        [("Paul",), ("camera",), (11, "day")],
    ),
    (
        "The trip from Berlin to Prague takes one hour.",
        "Die Reise von Berlin nach Prag dauert eine Stunde.",
        [("Berlin",), ("Prague",), (1, "hour")],
    ),
    (
        "Please buy one chair and sixteen coats.",
        "Bitte kaufen Sie einen Stuhl und sechzehn Mäntel.",
        [(1, "chair"), (16, "coat")],
    ),
    (
        "Clara is coming to Rome with seventeen pictures.",
        "Clara kommt mit siebzehn Bildern nach Rom.",
        [("Clara",), ("Rome",), (17, "picture")],
    ),
]


@pytest.fixture(scope="module")
def sample():
    """Pairs of every split, from two seeds."""
    return {
        split: {
            pair
            for seed in (3, 5)
            for pair in phrase_pairs(split, num_pairs=8_000, seed=seed)
        }
        for split in SPLITS
    }


def test_every_template_agrees_with_german_written_by_hand():
    rows = zip(phrases._TEMPLATES.items(), HAND_WRITTEN, strict=True)
    for (english_template, german_template), (english, german, in_order) in rows:
        fields = string.Formatter().parse(english_template)
        names = [name for _, name, _, _ in fields if name]
        values = dict(zip(names, in_order, strict=True))
        assert phrases._sentence(english_template, values, "en") == english
        assert phrases._sentence(german_template, values, "de") == german


@pytest.mark.parametrize(
    ("hour", "minute", "english", "german"),
    [
        (12, 0, "twelve o'clock", "zwölf Uhr"),
        (1, 5, "five past one", "fünf nach eins"),
        (2, 15, "a quarter past two", "Viertel nach zwei"),
        (6, 20, "twenty past six", "zwanzig nach sechs"),
        (12, 30, "half past twelve", "halb eins"),
        (7, 40, "twenty to eight", "zwanzig vor acht"),
        (12, 50, "ten to one", "zehn vor eins"),
        (10, 55, "five to eleven", "fünf vor elf"),
    ],
)
def test_clock_times_count_from_the_right_hour(hour, minute, english, german):
    assert phrases._clock(hour, minute, "en") == english
    assert phrases._clock(hour, minute, "de") == german


def test_nouns_take_the_article_and_ending_of_gender_case_and_number():
    assert phrases._the("lamp", "de", "accusative") == "die Lampe"
    assert phrases._the("coat", "de", "accusative") == "den Mantel"
    assert phrases._the("book", "de", "accusative") == "das Buch"
    assert phrases._count(1, "year", "de", "dative") == "einem Jahr"
    assert phrases._count(1, "week", "de", "dative") == "einer Woche"
    assert phrases._count(1, "book", "de", "accusative") == "ein Buch"
    assert phrases._count(2, "month", "de", "dative") == "zwei Monaten"
    assert phrases._count(2, "meter", "de", "accusative") == "zwei Meter"
    assert phrases._count(2, "meter", "de", "dative") == "zwei Metern"
    assert phrases._count(2, "camera", "de", "dative") == "zwei Kameras"
    assert phrases._count(2, "chair", "de", "dative") == "zwei Stühlen"


def test_number_words_follow_the_rules_of_german_grammar():
    ones = "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
    teens = {16: "sechzehn", 17: "siebzehn"}
    tens = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()

    def below_hundred(number):
        if number <= 12:
            return ones[number - 1]
        if number < 20:
            return teens.get(number, ones[number - 11] + "zehn")
        ten, one = divmod(number, 10)
        unit = ones[one - 1].removesuffix("s") if one == 1 else ones[one - 1]
        return (f"{unit}und" if one else "") + tens[ten - 2]

    for number in range(1, 1000):
        hundreds, rest = divmod(number, 100)
        expected = ones[hundreds - 1].removesuffix("s" if hundreds == 1 else "")
        expected = f"{expected}hundert" if hundreds else ""
        expected += below_hundred(rest) if rest else ""
        assert phrases._cardinal(number, "de") == expected


def test_same_arguments_give_the_same_pairs_in_another_process():
    program = (
        "from transformer_jax.data.phrases import phrase_pairs; import sys; "
        "print(ascii(phrase_pairs('train', num_pairs=37, seed=11))); "
        "print('jax' in sys.modules)"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hash_seed in ("1", "2")
    ]
    here = ascii(phrase_pairs("train", num_pairs=37, seed=11))
    assert outputs == [[here, "False"]] * 2


def test_another_seed_gives_other_pairs():
    assert phrase_pairs("train", num_pairs=37, seed=1) != phrase_pairs(
        "train", num_pairs=37, seed=2
    )


def test_fewer_pairs_are_the_beginning_of_more():
    more = phrase_pairs("test", num_pairs=211, seed=1)
    assert phrase_pairs("test", num_pairs=97, seed=1) == more[:97]


def test_german_to_english_is_the_same_corpus_swapped():
    english_german = phrase_pairs("test", num_pairs=101, seed=1)
    german_english = phrase_pairs(
        "test", num_pairs=101, seed=1, source_language="de", target_language="en"
    )
    assert german_english == [(german, english) for english, german in english_german]


def test_pairs_within_a_split_are_distinct():
    pairs = phrase_pairs("train", num_pairs=10_007, seed=1)
    assert len(set(pairs)) == len(pairs) == 10_007


@pytest.mark.parametrize("side", [0, 1], ids=["english", "german"])
def test_splits_share_no_sentence_across_seeds(sample, side):
    texts = {split: {pair[side] for pair in sample[split]} for split in SPLITS}
    for first, second in [SPLITS[:2], SPLITS[1:], SPLITS[::2]]:
        assert texts[first].isdisjoint(texts[second])


def test_each_sentence_has_one_translation_in_either_direction(sample):
    pairs = set().union(*sample.values())
    assert len(pairs) > 30_000
    assert len({english for english, _ in pairs}) == len(pairs)
    assert len({german for _, german in pairs}) == len(pairs)


def test_sentences_are_single_lines_of_plain_words(sample):
    pattern = re.compile(r"[A-ZÄÖÜ](\S| (?! ))*[.?]")
    for pairs in sample.values():
        for text in (text for pair in pairs for text in pair):
            assert pattern.fullmatch(text)
            assert not re.search(r"[^\S ]", text)
            assert "{" not in text
            assert 4 <= len(text.split()) <= 16


def test_every_template_is_drawn_about_equally_often():
    endings = [
        english.rsplit(" ", 2)[-2:]
        for english, _ in phrase_pairs("train", num_pairs=3_300, seed=1)
    ]
    assert 60 < endings.count(["turns", "left."]) < 140


def test_splits_are_near_eight_one_and_one_tenths():
    template = "{person} can count to {hundreds}."
    sizes = {}
    for split in SPLITS:
        pairs = phrases._pairs_of(template, split, random.Random(0))
        sizes[split] = sum(1 for _ in pairs)
    assert sum(sizes.values()) == 10 * 999
    assert sizes["train"] == pytest.approx(7992, abs=160)
    assert sizes["test"] == pytest.approx(999, abs=120)


def test_asking_for_more_pairs_than_exist_names_the_number_available(monkeypatch):
    template = "{person} runs {length} every {weekday}."
    monkeypatch.setattr(phrases, "_TEMPLATES", {template: phrases._TEMPLATES[template]})
    with pytest.raises(UserError, match=r"num_pairs=1000000.*at most the") as error:
        phrase_pairs("test", num_pairs=1_000_000, seed=0)
    available = int(re.findall(r"the (\d+) that", str(error.value))[0])
    assert len(phrase_pairs("test", num_pairs=available, seed=0)) == available
    with pytest.raises(UserError):
        phrase_pairs("test", num_pairs=available + 1, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "got split 'dev', expected one of train, validation, test"),
        ({"num_pairs": 0}, "got num_pairs=0, expected at least 1"),
        ({"target_language": "fr"}, "got languages 'en' to 'fr', expected 'en' to"),
        ({"source_language": "de"}, "got languages 'de' to 'de', expected 'en' to"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(arguments, message):
    given = {"split": "train", "num_pairs": 1, "seed": 0} | arguments
    with pytest.raises(UserError, match=message) as error:
        phrase_pairs(given.pop("split"), **given)
    assert "\n" not in str(error.value)
