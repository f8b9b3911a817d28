"""The kinds of phrase that the locale corpus is made of.

A *kind* draws a value (a date, an amount, a territory …) from a random generator and returns a
:data:`Phrase`, which writes that one value in whatever language it is given. So both sides of a
pair say the same, and not a word of either is ours: names, plurals, number words, word order,
separators and conjunctions all come from Babel (Unicode CLDR) and num2words.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from random import Random

from babel import dates, lists, numbers, units

from fairseq_ext.corpora.locale_inventory import (
    Inventory,
    Language,
    city_names,
    number_words,
    zone_names,
)

Phrase = Callable[[Language], str]
Kind = Callable[[Random, Inventory], Phrase]

FIRST_DAY, DAYS = dt.date(1950, 1, 1), 36524  # one hundred years
# How far relative times and durations reach: unit, seconds in one (as Babel counts), most.
SPANS = {
    "second": (1, 59),
    "minute": (60, 59),
    "hour": (3600, 23),
    "day": (86400, 6),
    "week": (7 * 86400, 4),
    "month": (30 * 86400, 11),
    "year": (365 * 86400, 40),
}


# --- Values -------------------------------------------------------------------------------------


def _day(rng: Random) -> dt.date:
    return _not_the_first(FIRST_DAY + dt.timedelta(days=rng.randrange(DAYS)))


def _not_the_first(day: dt.date) -> dt.date:
    # French says "1er mai", Italian "1º maggio"; CLDR writes the bare digit, so no such day here.
    return day if day.day > 1 else day + dt.timedelta(days=1)


def _clock(rng: Random) -> dt.time:
    return dt.time(rng.randrange(24), rng.randrange(60))


def _count(rng: Random) -> int:
    """Mostly small whole numbers, some hundreds, some thousands."""
    size = rng.random()
    if size < 0.75:
        return rng.randint(1, 99)
    return 10 * rng.randint(10, 99) if size < 0.9 else 500 * rng.randint(2, 40)


def _quantity(rng: Random) -> Decimal:
    """A count, or a number with one decimal place."""
    return Decimal(rng.randint(1, 399)) / 10 if rng.random() < 0.3 else Decimal(_count(rng))


# --- Dates and times ----------------------------------------------------------------------------


def _style(rng: Random, day: dt.date, known: Inventory) -> str:
    style = rng.choice(("full", "long", "medium"))
    # "May 5" alone does not tell whether the other language shortens the month.
    return "long" if style == "medium" and day.month not in known.short_months else style


def date(rng: Random, known: Inventory) -> Phrase:
    day = _day(rng)
    style = _style(rng, day, known)
    return lambda side: dates.format_date(day, style, side.locale)


def month(rng: Random, _: Inventory) -> Phrase:
    day, skeleton = _day(rng), rng.choice(("yMMMM", "yMMMM", "MMMMd", "yQQQQ"))
    return lambda side: dates.format_skeleton(skeleton, day, locale=side.locale)


def time(rng: Random, _: Inventory) -> Phrase:
    clock = _clock(rng)
    return lambda side: dates.format_time(clock, "short", locale=side.locale)


def date_time(rng: Random, known: Inventory) -> Phrase:
    day, clock = _day(rng), _clock(rng)
    style = _style(rng, day, known)

    def phrase(side: Language) -> str:
        # The locale's order and separator, with the short time (the others name a time zone).
        pattern = dates.get_datetime_format(style, locale=side.locale).replace("'", "")
        date_text = dates.format_date(day, style, side.locale)
        time_text = dates.format_time(clock, "short", locale=side.locale)
        return pattern.replace("{0}", time_text).replace("{1}", date_text)

    return phrase


def zoned_time(rng: Random, known: Inventory) -> Phrase:
    clock, zone = time(rng, known), rng.choice(known.zones)
    return lambda side: f"{clock(side)} ({zone_names(side.locale)[zone]})"


def date_range(rng: Random, _: Inventory) -> Phrase:
    first = _day(rng)
    last = _not_the_first(first + dt.timedelta(days=rng.randint(1, 120)))
    skeleton = rng.choice(("yMMMd", "MMMd", "yMMMM"))
    return lambda side: dates.format_interval(first, last, skeleton, locale=side.locale)


def long_date_range(rng: Random, _: Inventory) -> Phrase:
    """A range and its length: "Mar 5 – 14, 2023 (9 days)"."""
    first = _day(rng)
    last = _not_the_first(first + dt.timedelta(days=rng.randint(1, 99)))

    def phrase(side: Language) -> str:
        both = dates.format_interval(first, last, "yMMMd", locale=side.locale)
        # An endless threshold for all units but the last keeps Babel from rounding to weeks.
        length = dates.format_timedelta(last - first, "day", threshold=1e9, locale=side.locale)
        return f"{both} ({length})"

    return phrase


def time_range(rng: Random, _: Inventory) -> Phrase:
    hour = rng.randrange(22)
    first = dt.time(hour, 5 * rng.randrange(12))
    last = dt.time(rng.randint(hour + 1, 23), 5 * rng.randrange(12))

    def phrase(side: Language) -> str:
        half_day = "a" in dates.get_time_format("short", locale=side.locale).pattern
        skeleton = "hm" if half_day else "Hm"
        return dates.format_interval(first, last, skeleton, locale=side.locale)

    return phrase


def _span(rng: Random) -> dt.timedelta:
    seconds, most = SPANS[rng.choice(tuple(SPANS))]
    return dt.timedelta(seconds=seconds * rng.randint(1, most))


def relative_time(rng: Random, _: Inventory) -> Phrase:
    span = _span(rng) * rng.choice((-1, 1))
    return lambda side: dates.format_timedelta(
        span, threshold=1, add_direction=True, locale=side.locale
    )


def duration(rng: Random, _: Inventory) -> Phrase:
    span = _span(rng)
    return lambda side: dates.format_timedelta(span, threshold=1, locale=side.locale)


# --- Numbers, amounts, units --------------------------------------------------------------------


def cardinal(rng: Random, _: Inventory) -> Phrase:
    number = rng.randrange(100) if rng.random() < 0.5 else rng.randrange(1000)
    if rng.random() < 0.1:
        number = 1000 * rng.randint(1, 20)
    return lambda side: number_words(number, side.words, "cardinal")


def ordinal(rng: Random, known: Inventory) -> Phrase:
    number = rng.choice(known.ordinals)
    return lambda side: number_words(number, side.words, "ordinal")


def spelt_number(rng: Random, _: Inventory) -> Phrase:
    number = rng.randrange(1000)
    return lambda side: f"{number} ({number_words(number, side.words, 'cardinal')})"


def percentage(rng: Random, _: Inventory) -> Phrase:
    tenths = rng.randint(1, 999) if rng.random() < 0.4 else 10 * rng.randint(1, 100)
    share = Decimal(tenths) / 1000
    return lambda side: numbers.format_percent(
        share, locale=side.locale, decimal_quantization=False
    )


def amount(rng: Random, known: Inventory) -> Phrase:
    """An amount of money with the currency's name in the plural form that the number takes."""
    currency = rng.choice(known.currencies)
    if rng.random() < 0.3:
        money = Decimal(rng.randint(1, 99)) + Decimal(5 * rng.randint(1, 19)) / 100
        return lambda side: _money(money, currency, "#,##0.00", side)
    money = Decimal(_count(rng))
    return lambda side: _money(money, currency, "#,##0", side)


def _money(value: Decimal, currency: str, pattern: str, side: Language) -> str:
    return numbers.format_currency(
        value, currency, pattern, side.locale, currency_digits=False, format_type="name"
    )


def measure(rng: Random, known: Inventory) -> Phrase:
    value, unit = _quantity(rng), rng.choice(known.units)
    return lambda side: units.format_unit(value, unit, locale=side.locale)


def rate(rng: Random, known: Inventory) -> Phrase:
    value, (unit, period) = _quantity(rng), rng.choice(known.rates)
    return lambda side: units.format_compound_unit(
        value, unit, denominator_unit=period, locale=side.locale
    )


def join(texts: list[str], style: str, side: Language) -> str:
    """``texts`` as the language lists them: "A, B and C", or with ``style="or"`` "A, B or C"."""
    return lists.format_list(texts, style=style, locale=side.locale)


# --- Names --------------------------------------------------------------------------------------


def territory(rng: Random, known: Inventory) -> Phrase:
    code = rng.choice(known.territories)
    return lambda side: side.locale.territories[code]


def language_name(rng: Random, known: Inventory) -> Phrase:
    code = rng.choice(known.languages)
    return lambda side: side.locale.languages[code]


def currency_name(rng: Random, known: Inventory) -> Phrase:
    code = rng.choice(known.currencies)
    return lambda side: side.locale.currencies[code]


def city(rng: Random, known: Inventory) -> Phrase:
    """A city and the territory it lies in: "Vienna (Austria)"."""
    zone = rng.choice(known.cities)
    place = known.territory_of[zone]
    return lambda side: f"{city_names(side.locale)[zone]} ({side.locale.territories[place]})"


def official_languages(rng: Random, known: Inventory) -> Phrase:
    """A territory and what is spoken there: "Canada (English and French)"."""
    place = rng.choice(tuple(known.official))
    spoken = known.official[place][:3]

    def phrase(side: Language) -> str:
        tongues = join([side.locale.languages[code] for code in spoken], "standard", side)
        return f"{side.locale.territories[place]} ({tongues})"

    return phrase


def tender(rng: Random, known: Inventory) -> Phrase:
    """A territory and its currency: "Japan (Japanese Yen)"."""
    place = rng.choice(tuple(known.tender))
    money = known.tender[place]
    return lambda side: f"{side.locale.territories[place]} ({side.locale.currencies[money]})"


KINDS: dict[str, Kind] = {
    "date": date,
    "month": month,
    "time": time,
    "date and time": date_time,
    "time with zone": zoned_time,
    "date range": date_range,
    "date range with length": long_date_range,
    "time range": time_range,
    "relative time": relative_time,
    "duration": duration,
    "cardinal": cardinal,
    "ordinal": ordinal,
    "number spelt out": spelt_number,
    "percentage": percentage,
    "amount": amount,
    "measure": measure,
    "rate": rate,
    "territory": territory,
    "language": language_name,
    "currency": currency_name,
    "city": city,
    "official languages": official_languages,
    "tender": tender,
}
