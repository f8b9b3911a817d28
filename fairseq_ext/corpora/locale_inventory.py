"""Things that Babel (Unicode CLDR) and num2words can name in both of two languages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from babel import Locale, UnknownLocaleError, dates, languages, numbers, units
from babel.core import get_global
from babel.localedata import locale_identifiers
from num2words import CONVERTER_CLASSES, num2words

from fairseq_ext.utils.errors import DataError

# Some wide-spread units; each pair of languages uses those that both name.
UNITS_OF = {
    "area": "acre hectare square-foot square-kilometer square-meter square-mile",
    "digital": "gigabyte kilobyte megabyte terabyte",
    "electric": "ampere volt",
    "energy": "kilocalorie kilojoule kilowatt-hour",
    "frequency": "hertz kilohertz megahertz",
    "graphics": "pixel",
    "length": "centimeter foot inch kilometer light-year meter mile millimeter nautical-mile yard",
    "mass": "carat gram kilogram milligram ounce pound tonne",
    "power": "horsepower kilowatt megawatt watt",
    "pressure": "bar hectopascal",
    "speed": "kilometer-per-hour knot meter-per-second mile-per-hour",
    "temperature": "celsius fahrenheit kelvin",
    "volume": "centiliter cubic-centimeter cubic-kilometer cubic-meter cup gallon hectoliter"
    " liter milliliter pint tablespoon teaspoon",
}
UNITS = tuple(f"{kind}-{unit}" for kind, members in UNITS_OF.items() for unit in members.split())
RATED = ("length-meter", "mass-gram", "mass-kilogram", "volume-liter", "volume-cubic-meter")
PERIODS = ("duration-second", "duration-minute", "duration-hour", "duration-day", "duration-week")
# Which currency is tender depends on the day; a fixed one keeps the corpus the same for ever.
TENDER_DAY = dt.date(2024, 1, 1)
# Ordinals that num2words 0.5.14 misspells: "décimoprimero", "quadragésimo", "quatre-vingtsième".
MISSPELT_ORDINALS = {"es": {11, 12, *range(40, 50)}, "fr": {80}}


@dataclass(frozen=True)
class Language:
    """One side of the corpus: its code as the user wrote it, Babel's locale, num2words' name."""

    code: str
    locale: Locale
    words: str


def num2words_name(code: str) -> str | None:
    """num2words' name of a Babel locale, or ``None`` when it has none."""
    base, *variant = code.split("_")
    if base == "sr" and "Latn" not in variant:
        return None  # CLDR's Serbian is Cyrillic, num2words' Latin
    renamed = {"kk": "kz", "nb": "no"}.get(base, base)
    return next((name for name in (code, renamed) if name in CONVERTER_CLASSES), None)


def possible_languages() -> list[str]:
    """The languages both libraries know, without their regional variants, sorted."""
    return sorted(c for c in locale_identifiers() if "_" not in c and num2words_name(c))


def language(code: str) -> Language:
    """Look a language up by its code, such as ``de`` or ``pt_BR``.

    Raises:
        DataError: one of the libraries does not know it; the message lists what is possible.
    """
    try:
        locale, words = Locale.parse(code), num2words_name(code)
    except (UnknownLocaleError, ValueError, TypeError):
        locale = words = None
    if locale is None or words is None:
        raise DataError(
            f"language `{code}` is not one that both Babel and num2words know; possible are "
            f"{', '.join(possible_languages())} and their regional variants such as pt_BR."
        )
    return Language(code, locale, words)


@dataclass(frozen=True)
class Inventory:
    """Things that both languages can name, sorted, so that a seed always draws the same."""

    territories: tuple[str, ...]
    languages: tuple[str, ...]
    currencies: tuple[str, ...]
    units: tuple[str, ...]
    rates: tuple[tuple[str, str], ...]
    zones: tuple[str, ...]
    cities: tuple[str, ...]  # as time zones: Europe/Vienna
    territory_of: dict[str, str]  # of each time zone
    official: dict[str, tuple[str, ...]]
    tender: dict[str, str]
    ordinals: tuple[int, ...]
    styles: tuple[str, ...]  # of lists: standard (and), or
    short_months: frozenset[int]  # months whose medium date looks unlike the long one


def _named(names: Iterable[dict[str, str]], candidates: Iterable[str]) -> tuple[str, ...]:
    """The candidates with a name on every side, simple enough to stand inside parentheses."""
    names = list(names)
    return tuple(
        code
        for code in sorted(candidates)
        if all(
            (name := side.get(code)) and name != code and not set(name) & set("(),;（）、")
            for side in names
        )
    )


def inventory(*sides: Language) -> Inventory:
    """Collect what every one of ``sides`` has a name for."""
    locales = [side.locale for side in sides]
    letters = [code for code in locales[0].territories if len(code) == 2 and code.isalpha()]
    territories = _named(
        (locale.territories for locale in locales), set(letters) - {"EU", "EZ", "QO", "UN", "ZZ"}
    )
    known = _languages(locales, territories)
    tender = {
        territory: current[0]
        for territory in territories
        if (current := numbers.get_territory_currencies(territory, TENDER_DAY))
    }
    currencies = _named((locale.currencies for locale in locales), set(tender.values()))
    official = {
        territory: spoken
        for territory in territories
        if (spoken := tuple(c for c in languages.get_official_languages(territory) if c in known))
    }
    return Inventory(
        territories=territories,
        languages=known,
        currencies=currencies,
        units=tuple(u for u in UNITS if all(_says_unit(u, locale) for locale in locales)),
        rates=tuple(
            (unit, period)
            for unit in RATED
            for period in PERIODS
            if all(_says_rate(unit, period, locale) for locale in locales)
        ),
        zones=_named(map(zone_names, locales), zone_names(locales[0])),
        cities=_named(map(city_names, locales), _cities(locales, set(territories))),
        territory_of=dict(get_global("zone_territories")),
        official=official,
        tender={t: c for t, c in tender.items() if c in currencies},
        ordinals=tuple(n for n in range(1, 101) if all(_says_ordinal(n, side) for side in sides)),
        styles=tuple(
            style
            for style in ("standard", "or")
            if all(style in locale.list_patterns for locale in locales)
        ),
        short_months=frozenset(
            month
            for month in range(1, 13)
            if all(_shortens_month(month, locale) for locale in locales)
        ),
    )


def _languages(locales: list[Locale], territories: tuple[str, ...]) -> tuple[str, ...]:
    """Languages with a two-letter code, but not Nauru's or Fiji's, named as their territory."""
    places = {locale.territories[code] for locale in locales for code in territories}
    candidates = [code for code in locales[0].languages if len(code) == 2]
    return tuple(
        code
        for code in _named((locale.languages for locale in locales), candidates)
        if all(locale.languages[code] not in places for locale in locales)
    )


def _shortens_month(month: int, locale: Locale) -> bool:
    day = dt.date(2000, month, 5)
    return dates.format_date(day, "medium", locale) != dates.format_date(day, "long", locale)


def _says_unit(unit: str, locale: Locale) -> bool:
    # Where CLDR lacks a name, Babel writes the identifier itself: "1 duration-hour".
    return unit not in units.format_unit(1, unit, locale=locale)


def _says_rate(unit: str, period: str, locale: Locale) -> bool:
    text = units.format_compound_unit(2, unit, denominator_unit=period, locale=locale)
    return bool(text) and unit not in text and period not in text and "-per-" not in text


def _says_ordinal(number: int, side: Language) -> bool:
    if number in MISSPELT_ORDINALS.get(side.words, ()):
        return False
    try:
        ordinal = number_words(number, side.words, "ordinal")
    except Exception:  # each converter has its own way to say that it cannot
        return False
    # Vietnamese and others: `to_ordinal` returns the cardinal.
    return ordinal != number_words(number, side.words, "cardinal") and not ordinal[0].isdigit()


@cache
def zone_names(locale: Locale) -> dict[str, str]:
    """Long standard names of the time zones: "Japan Standard Time"."""
    zones = locale.meta_zones.items()
    return {zone: names.get("long", {}).get("standard") for zone, names in zones}


@cache
def city_names(locale: Locale) -> dict[str, str]:
    """City of each time zone: the locale's, else (CLDR's rule) the last part of the zone's name."""
    return {
        zone: locale.time_zones.get(zone, {}).get("city") or zone.split("/")[-1].replace("_", " ")
        for zone in get_global("zone_territories")
    }


def _cities(locales: list[Locale], territories: set[str]) -> list[str]:
    """Zones of known territories whose city at least one side spells itself."""
    names = [city_names(locale) for locale in locales]
    return [
        zone
        for zone, territory in get_global("zone_territories").items()
        if territory in territories
        and not zone.startswith(("Antarctica/", "Etc/"))
        and any("city" in locale.time_zones.get(zone, {}) for locale in locales)
        # not "Monaco (Monaco)"
        and all(
            cities[zone] != locale.territories[territory]
            for cities, locale in zip(names, locales, strict=True)
        )
    ]


@cache
def number_words(number: int, name: str, form: str) -> str:
    """``number`` spelt out by num2words (``form`` cardinal or ordinal) in its language ``name``."""
    return num2words(number, lang=name, to=form)
