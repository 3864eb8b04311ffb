"""An English-German corpus of dates, times, numbers and amounts, made on the spot.

It is the parallel text of the quick start: nothing is downloaded, and a Transformer of
a million parameters learns it in minutes. Yet it asks for what translation asks for.
Words change places ("takes place on Tuesday" -> "findet am Dienstag ... statt"), form
depends on gender, case and number ("for one month" -> "seit einem Monat"), numbers are
built and written differently ("twenty-one" -> "einundzwanzig", "1,234.50" ->
"1.234,50"), and clock times count from another hour ("half past three" -> "halb vier").

The corpus is three tables: words, the kinds of slot (what `{clock}` may hold and how
each language says it, by num2words and the CLDR data of Babel), and sentences around
those slots. English and German determine each other: no sentence has two translations,
in either direction.
"""

import hashlib
import math
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import cache, partial
from typing import Any, NamedTuple

from babel import dates, numbers, units
from num2words import num2words

from transformer_jax.errors import UserError

# Which tenths of all sentences make a split; see `_split_of`.
_SPLITS = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
_LOCALES = {"en": "en_US", "de": "de_DE"}


# 1. Words.

_PEOPLE = tuple("Anna Clara David Emma Laura Maria Martin Paul Peter Robert".split())
_CITIES = {
    "Berlin": "Berlin",
    "Brussels": "Brüssel",
    "Cologne": "Köln",
    "Geneva": "Genf",
    "Hamburg": "Hamburg",
    "Munich": "München",
    "Prague": "Prag",
    "Rome": "Rom",
    "Vienna": "Wien",
    "Warsaw": "Warschau",
}
# English noun, whose plural adds an "s" -> German gender, singular and plural.
_THINGS = {
    "bicycle": ("n", "Fahrrad", "Fahrräder"),
    "book": ("n", "Buch", "Bücher"),
    "camera": ("f", "Kamera", "Kameras"),
    "chair": ("m", "Stuhl", "Stühle"),
    "coat": ("m", "Mantel", "Mäntel"),
    "lamp": ("f", "Lampe", "Lampen"),
    "picture": ("n", "Bild", "Bilder"),
    "table": ("m", "Tisch", "Tische"),
}
_UNITS = {
    "minute": ("f", "Minute", "Minuten"),
    "hour": ("f", "Stunde", "Stunden"),
    "day": ("m", "Tag", "Tage"),
    "week": ("f", "Woche", "Wochen"),
    "month": ("m", "Monat", "Monate"),
    "year": ("n", "Jahr", "Jahre"),
    "meter": ("m", "Meter", "Meter"),
    "kilometer": ("m", "Kilometer", "Kilometer"),
    "mile": ("f", "Meile", "Meilen"),
}
_THE = {
    "nominative": {"m": "der", "f": "die", "n": "das"},
    "accusative": {"m": "den", "f": "die", "n": "das"},
}
_ONE = {
    "accusative": {"m": "einen", "f": "eine", "n": "ein"},
    "dative": {"m": "einem", "f": "einer", "n": "einem"},
}
# Minute -> the words around {0}, this hour, or {1}, the next.
_CLOCK = {
    0: {"en": "{0} o'clock", "de": "{0} Uhr"},
    5: {"en": "five past {0}", "de": "fünf nach {0}"},
    10: {"en": "ten past {0}", "de": "zehn nach {0}"},
    15: {"en": "a quarter past {0}", "de": "Viertel nach {0}"},
    20: {"en": "twenty past {0}", "de": "zwanzig nach {0}"},
    25: {"en": "twenty-five past {0}", "de": "fünf vor halb {1}"},
    30: {"en": "half past {0}", "de": "halb {1}"},
    35: {"en": "twenty-five to {1}", "de": "fünf nach halb {1}"},
    40: {"en": "twenty to {1}", "de": "zwanzig vor {1}"},
    45: {"en": "a quarter to {1}", "de": "Viertel vor {1}"},
    50: {"en": "ten to {1}", "de": "zehn vor {1}"},
    55: {"en": "five to {1}", "de": "fünf vor {1}"},
}


# 2. How a language says a value. German may need a grammatical case.


def _verbatim(value: str | int, language: str) -> str:
    return str(value)


def _city(city: str, language: str) -> str:
    return _CITIES[city] if language == "de" else city


def _the(noun: str, language: str, case: str = "") -> str:
    if language == "en":
        return f"the {noun}"
    gender, singular, _ = _THINGS[noun]
    return f"{_THE[case][gender]} {singular}"


@cache
def _cardinal(number: int, language: str) -> str:
    return num2words(number, lang=language)


@cache
def _ordinal(number: int, language: str, case: str = "") -> str:
    # "der dritte", "das dritte", but "den dritten" and "am dritten".
    ending = "n" if case in ("accusative", "dative") else ""
    return num2words(number, lang=language, to="ordinal") + ending


def _count(count: int, noun: str, language: str, case: str = "") -> str:
    if language == "en":
        return f"{_cardinal(count, 'en')} {noun if count == 1 else noun + 's'}"
    gender, singular, plural = (_THINGS | _UNITS)[noun]
    if count == 1:
        return f"{_ONE[case][gender]} {singular}"
    if case == "dative" and not plural.endswith(("n", "s")):
        plural += "n"
    return f"{_cardinal(count, 'de')} {plural}"


def _clock(hour: int, minute: int, language: str) -> str:
    hours = _cardinal(hour, language), _cardinal(hour % 12 + 1, language)
    return _CLOCK[minute][language].format(*hours).replace("eins Uhr", "ein Uhr")


@cache
def _time(hour: int, minute: int, language: str) -> str:
    return dates.format_time(time(hour, minute), "short", locale=_LOCALES[language])


@cache
def _date(day: int, language: str, *, en: str, de: str) -> str:
    # A day is its number in Python's calendar; `en` and `de` are CLDR patterns.
    pattern = {"en": en, "de": de}[language]
    return dates.format_date(date.fromordinal(day), pattern, locale=_LOCALES[language])


_month = partial(_date, en="MMMM", de="MMMM")


def _ordinal_day(day: int, language: str, case: str = "") -> str:
    ordinal = _ordinal(date.fromordinal(day).day, language, case)
    return f"{ordinal}{' of' if language == 'en' else ''} {_month(day, language)}"


@cache
def _decimal(number: int, language: str) -> str:
    return numbers.format_decimal(number, locale=_LOCALES[language])


@cache
def _percent(tenths: int, language: str) -> str:
    return numbers.format_percent(
        Decimal(tenths) / 1000, locale=_LOCALES[language], decimal_quantization=False
    )


@cache
def _price(cents: int, currency: str, language: str) -> str:
    return numbers.format_currency(
        Decimal(cents) / 100, currency, locale=_LOCALES[language]
    )


@cache
def _measure(tenths: int, language: str, *, unit: str) -> str:
    return units.format_unit(
        Decimal(tenths) / 10, unit, "short", locale=_LOCALES[language]
    )


# 3. What a slot may hold.


class _Kind(NamedTuple):
    """A kind of slot: one value of each part, and how a language says them."""

    parts: tuple[Sequence[Any], ...]
    say: Callable[..., str]


def _days(first_year: int, last_year: int) -> range:
    first, end = date(first_year, 1, 1), date(last_year + 1, 1, 1)
    return range(first.toordinal(), end.toordinal())


_LEAP_YEAR = _days(2024, 2024)

_KINDS = {
    "person": _Kind((_PEOPLE,), _verbatim),
    "city": _Kind((tuple(_CITIES),), _city),
    "thing": _Kind((tuple(_THINGS),), _the),
    "goods": _Kind((range(1, 21), tuple(_THINGS)), _count),
    "hours": _Kind((range(1, 60), ("minute", "hour")), _count),
    "period": _Kind((range(1, 31), ("day", "week", "month", "year")), _count),
    "length": _Kind((range(1, 100), ("meter", "kilometer", "mile")), _count),
    "tens": _Kind((range(2, 100),), _cardinal),
    "hundreds": _Kind((range(1, 1000),), _cardinal),
    "ordinal": _Kind((range(1, 100),), _ordinal),
    "quarter": _Kind((range(1, 5),), _ordinal),
    "clock": _Kind((range(1, 13), tuple(_CLOCK)), _clock),
    "time": _Kind((range(24), range(0, 60, 15)), _time),
    # 2024 began on a Monday, and steps of 31 days from 1 January skip no month.
    "weekday": _Kind((_LEAP_YEAR[:7],), partial(_date, en="EEEE", de="EEEE")),
    "month": _Kind((_LEAP_YEAR[::31],), _month),
    "year": _Kind((range(2000, 2025),), _verbatim),
    "day": _Kind((_LEAP_YEAR,), partial(_date, en="MMMM d", de="d. MMMM")),
    "ordinal_day": _Kind((_LEAP_YEAR,), _ordinal_day),
    "date": _Kind((_days(2000, 2024),), partial(_date, en="MMMM d, y", de="d. MMMM y")),
    "full_date": _Kind(
        (_days(2000, 2024),),
        partial(_date, en="EEEE, MMMM d, y", de="EEEE, 'dem' d. MMMM y"),
    ),
    "short_date": _Kind(
        (_days(2000, 2024),), partial(_date, en="MM/dd/y", de="dd.MM.y")
    ),
    "page": _Kind((range(2, 300),), _verbatim),
    "inhabitants": _Kind((range(10_500, 2_000_000, 1_500),), _decimal),
    "percent": _Kind((range(5, 400),), _percent),
    "price": _Kind((range(95, 300_000, 155), ("EUR", "USD", "GBP")), _price),
    # In tenths. One degree would need another German verb.
    "temperature": _Kind(
        ((*range(-200, -10, 10), *range(20, 400, 10)),),
        partial(_measure, unit="temperature-celsius"),
    ),
    "weight": _Kind((range(11, 400),), partial(_measure, unit="mass-kilogram")),
    "distance": _Kind(
        (range(120, 25_000, 130),), partial(_measure, unit="length-kilometer")
    ),
}


# 4. Sentences. `{clock2}` is a second slot of the kind `clock`; a word after a colon is
# the case of a slot.

_TEMPLATES = {
    # Clock times
    "The train to {city} leaves at {clock}.": (
        "Der Zug nach {city} fährt um {clock} ab."
    ),
    "The train to {city} leaves at {clock} on {weekday}.": (
        "Der Zug nach {city} fährt am {weekday} um {clock} ab."
    ),
    "Does the train to {city} leave at {clock}?": (
        "Fährt der Zug nach {city} um {clock} ab?"
    ),
    "{person} says that the bus arrives at {clock}.": (
        "{person} sagt, dass der Bus um {clock} ankommt."
    ),
    "{person} must work until {clock} on {weekday}.": (
        "{person} muss am {weekday} bis {clock} arbeiten."
    ),
    "The museum is open from {clock} to {clock2}.": (
        "Das Museum ist von {clock} bis {clock2} geöffnet."
    ),
    "The flight from {city} lands at {time}.": (
        "Der Flug aus {city} landet um {time} Uhr."
    ),
    "The meeting begins at {time} on {day}.": (
        "Die Besprechung beginnt am {day} um {time} Uhr."
    ),
    # Dates
    "{person} was born on {date}.": "{person} wurde am {date} geboren.",
    "The concert takes place on {full_date}.": (
        "Das Konzert findet am {full_date}, statt."
    ),
    "Please pay the invoice by {short_date}.": (
        "Bitte bezahlen Sie die Rechnung bis zum {short_date}."
    ),
    "The school is closed from {day} to {day2}.": (
        "Die Schule ist vom {day} bis zum {day2} geschlossen."
    ),
    "{person}'s birthday is on the {ordinal_day}.": (
        "{person}s Geburtstag ist am {ordinal_day:dative}."
    ),
    "The {ordinal_day} is a {weekday}.": (
        "Der {ordinal_day:nominative} ist ein {weekday}."
    ),
    # Prices
    "{thing} costs {price}.": "{thing:nominative} kostet {price}.",
    "I would like to sell {thing} for {price}.": (
        "Ich möchte {thing:accusative} für {price} verkaufen."
    ),
    "{person} bought {thing} for {tens} euros on {weekday}.": (
        "{person} hat {thing:accusative} am {weekday} für {tens} Euro gekauft."
    ),
    # Numbers, ranks and percentages
    "{city} has {inhabitants} inhabitants.": "{city} hat {inhabitants} Einwohner.",
    "{person} can count to {hundreds}.": "{person} kann bis {hundreds} zählen.",
    "The {ordinal} chapter begins on page {page}.": (
        "Das {ordinal:nominative} Kapitel beginnt auf Seite {page}."
    ),
    "{person} took {ordinal} place on {weekday}.": (
        "{person} belegte am {weekday} den {ordinal:accusative} Platz."
    ),
    "Prices in {city} rose by {percent} in {month}.": (
        "Im {month} stiegen die Preise in {city} um {percent}."
    ),
    "Sales fell by {percent} in the {quarter} quarter of {year}.": (
        "Im {quarter:dative} Quartal {year} sank der Umsatz um {percent}."
    ),
    # Distances, weights and temperatures
    "It is {distance} from {city} to {city2}.": (
        "Von {city} nach {city2} sind es {distance}."
    ),
    "After {length} {person} turns left.": (
        "Nach {length:dative} biegt {person} links ab."
    ),
    "{person} runs {length} every {weekday}.": (
        "{person} läuft jeden {weekday} {length:accusative}."
    ),
    "{thing} weighs {weight}.": "{thing:nominative} wiegt {weight}.",
    "It is {temperature} in {city} on {weekday}.": (
        "Am {weekday} sind es in {city} {temperature}."
    ),
    # Ages, durations and counts
    "{person} will be {tens} years old in {month}.": (
        "{person} wird im {month} {tens} Jahre alt."
    ),
    "{person} has lived in {city} for {period}.": (
        "{person} wohnt seit {period:dative} in {city}."
    ),
    "{person} sold {thing} {period} ago.": (
        "{person} hat {thing:accusative} vor {period:dative} verkauft."
    ),
    "The trip from {city} to {city2} takes {hours}.": (
        "Die Reise von {city} nach {city2} dauert {hours:accusative}."
    ),
    "Please buy {goods} and {goods2}.": (
        "Bitte kaufen Sie {goods:accusative} und {goods2:accusative}."
    ),
    "{person} is coming to {city} with {goods}.": (
        "{person} kommt mit {goods:dative} nach {city}."
    ),
}


class _Slot(NamedTuple):
    """A filled slot: formatting it, with a case as the format, says its values."""

    kind: _Kind
    values: tuple[Any, ...]
    language: str

    def __format__(self, case: str) -> str:
        return self.kind.say(*self.values, self.language, *([case] if case else []))


def _kind(name: str) -> _Kind:
    return _KINDS[name.rstrip("2")]


def _sentence(
    template: str, values: Mapping[str, tuple[Any, ...]], language: str
) -> str:
    slots = {name: _Slot(_kind(name), values[name], language) for name in values}
    # CLDR releases differ in which space stands before "PM", "€" or "km"; `split` knows
    # them all.
    sentence = " ".join(template.format(**slots).split())
    return sentence[0].upper() + sentence[1:]


def _split_of(english: str) -> str:
    """Returns the split of a sentence, a function of its text alone."""
    tenth = int.from_bytes(hashlib.sha256(english.encode()).digest()) % 10
    return next(split for split, tenths in _SPLITS.items() if tenth in tenths)


def _shuffled(length: int, rng: random.Random) -> Iterator[int]:
    """Yields each number below `length` once, in random order.

    This is the shuffle of Fisher and Yates over a sequence that is never stored:
    `moved` holds only the places that no longer hold their own number.
    """
    moved: dict[int, int] = {}
    for last in reversed(range(length)):
        place = rng.randrange(last + 1)
        yield moved.get(place, place)
        moved[place] = moved.pop(last, last)


def _pairs_of(
    template: str, split: str, rng: random.Random
) -> Iterator[tuple[str, str]]:
    """Yields all English-German pairs of one template in one split, shuffled."""
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    sizes = [len(part) for name in names for part in _kind(name).parts]
    for index in _shuffled(math.prod(sizes), rng):
        # The digits of the index, in mixed radix, choose a value of each part.
        values = {}
        for name in names:
            chosen = []
            for part in _kind(name).parts:
                index, digit = divmod(index, len(part))
                chosen.append(part[digit])
            values[name] = tuple(chosen)
        if any(values[name] == values.get(name + "2") for name in names):
            continue  # From Rome to Rome.
        english = _sentence(template, values, "en")
        if _split_of(english) == split:
            yield english, _sentence(_TEMPLATES[template], values, "de")


def phrase_pairs(
    split: str,
    *,
    num_pairs: int,
    seed: int,
    source_language: str = "en",
    target_language: str = "de",
) -> list[tuple[str, str]]:
    """Returns distinct (source, target) pairs, drawn evenly from all templates.

    The result depends on the arguments alone. A hash of its English side decides the
    split of a pair: eight tenths train, one tenth validation, one tenth test. So no
    sentence is in two splits, whatever the seed, the number of pairs or the direction.

    Example:
        >>> phrase_pairs("test", num_pairs=1, seed=43)
        [('The tenth of October is a Friday.', 'Der zehnte Oktober ist ein Freitag.')]

    Args:
        split: "train", "validation" or "test".
        num_pairs: how many pairs, at least 1.
        seed: chooses the pairs and their order.
        source_language: "en" or "de".
        target_language: the other one.

    Returns:
        `num_pairs` pairs, in random order.

    Raises:
        UserError: if the split or the languages are unknown, or if the split has fewer
            pairs than asked for.
    """
    if split not in _SPLITS:
        raise UserError(
            f"got split {split!r}, expected one of {', '.join(_SPLITS)}; choose one"
        )
    if (source_language, target_language) not in (("en", "de"), ("de", "en")):
        raise UserError(
            f"got languages {source_language!r} to {target_language!r}, expected 'en' "
            "to 'de' or 'de' to 'en'; choose one, or train on your own parallel text"
        )
    if num_pairs < 1:
        raise UserError(
            f"got num_pairs={num_pairs}, expected at least 1; ask for more pairs"
        )
    rng = random.Random(f"{seed} {split}")
    streams = [_pairs_of(template, split, rng) for template in _TEMPLATES]
    pairs = []
    while len(pairs) < num_pairs:
        if not streams:
            raise UserError(
                f"got num_pairs={num_pairs}, expected at most the {len(pairs)} that "
                f"the {split} split has; ask for fewer pairs"
            )
        stream = rng.choice(streams)
        pair = next(stream, None)
        if pair is None:
            streams.remove(stream)
        else:
            pairs.append(pair)
    return pairs if source_language == "en" else [pair[::-1] for pair in pairs]
