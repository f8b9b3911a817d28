"""Sentences of the locale corpus: phrases in lists, and with notes in parentheses."""

from __future__ import annotations

import re
from functools import partial
from random import Random

from fairseq_ext.corpora.locale_inventory import Inventory, Language
from fairseq_ext.corpora.locale_phrases import KINDS, Kind, Phrase, join

# What a kind chooses from, where that may be nothing.
NEEDS = {
    "time with zone": "zones",
    "ordinal": "ordinals",
    "amount": "currencies",
    "measure": "units",
    "rate": "rates",
    "territory": "territories",
    "language": "languages",
    "currency": "currencies",
    "city": "cities",
    "official languages": "official",
    "tender": "tender",
}
# What can stand in parentheses behind what: "March 5, 2023 (9:00 – 11:30 AM)".
NOTES = {
    "date": ("time range", "territory", "amount"),
    "date and time": ("duration", "territory"),
    "date range": ("territory", "amount", "percentage"),
    "month": ("percentage", "amount", "measure"),
    "relative time": ("date", "territory"),
    "amount": ("percentage", "date", "relative time"),
    "measure": ("percentage", "amount"),
    "rate": ("percentage", "duration"),
    "territory": ("date", "amount", "percentage"),
    "language": ("percentage", "territory"),
    "ordinal": ("territory", "language", "date", "amount"),
}
# Phrases that hold commas themselves: no more than two in one sentence.
LONG = {
    "date",
    "date and time",
    "date range",
    "date range with length",
    "official languages",
    "tender",
    "time with zone",
}


# Spanish turns "y" into "e" before the sound i and "o" into "u" before o ("francés e inglés",
# "siete u ocho"). Babel does not, so such lists are left out.
CLASHES = {"es": re.compile(r"\by h?i(?![aeo])|\bo (?:h?o|8|11\b)", re.IGNORECASE)}


def sentence(rng: Random, kinds: dict[str, Kind], known: Inventory) -> tuple[set[str], Phrase]:
    """Draw one sentence out of ``kinds``: the names of the kinds in it, and how to write it."""
    shape = rng.choices(("one kind", "mixed", "noted", "single"), (4, 4, 3, 1))[0]
    names = tuple(kinds)
    if shape == "noted":
        heads = [head for head in NOTES if head in kinds and kinds.keys() & set(NOTES[head])]
        chosen = [_noted(rng, rng.choice(heads), kinds, known) for _ in range(rng.randint(1, 2))]
    elif shape == "one kind":
        name = rng.choice(names)
        size = 2 if name in LONG else rng.randint(2, 4)
        chosen = [({name}, kinds[name](rng, known)) for _ in range(size)]
    else:
        picked = rng.sample(names, 1 if shape == "single" else rng.randint(2, 4))
        if sum(name in LONG for name in picked) > 1:
            picked = picked[:2]
        chosen = [({name}, kinds[name](rng, known)) for name in picked]
    style = rng.choices(known.styles, (3, 1)[: len(known.styles)])[0]
    used = set().union(*(names for names, _ in chosen))
    return used, partial(_listing, [phrase for _, phrase in chosen], style)


def _noted(
    rng: Random, head: str, kinds: dict[str, Kind], known: Inventory
) -> tuple[set[str], Phrase]:
    note = rng.choice([name for name in NOTES[head] if name in kinds])
    first, second = kinds[head](rng, known), kinds[note](rng, known)
    return {head, note}, lambda side: f"{first(side)} ({second(side)})"


def _listing(phrases: list[Phrase], style: str, side: Language) -> str:
    """The phrases as a list, or an empty text, which drops the pair, where that reads wrong."""
    texts = [phrase(side) for phrase in phrases]
    if len({*texts}) < len(texts):
        return ""  # nobody says "Peru and Peru"
    listing = join(texts, style, side)
    clash = CLASHES.get(side.locale.language)
    return "" if clash and clash.search(listing) else listing


def usable_kinds(known: Inventory, *sides: Language) -> tuple[dict[str, Kind], dict[str, str]]:
    """The kinds that all ``sides`` can say, and for each of the others the reason why not."""
    usable, left_out = {}, {}
    for name, kind in KINDS.items():
        if name in NEEDS and not getattr(known, NEEDS[name]):
            problem = f"the libraries have no {NEEDS[name]} in one of the languages"
        else:
            problem = next(filter(None, (_problem(kind, known, side) for side in sides)), "")
        if problem:
            left_out[name] = problem
        else:
            usable[name] = kind
    return usable, left_out


def _problem(kind: Kind, known: Inventory, side: Language) -> str:
    try:
        texts = [kind(Random(seed), known)(side) for seed in range(20)]
    except Exception as error:  # the libraries raise what they like for what they lack
        return f"{side.code}: {type(error).__name__}: {error}"
    return "" if all(texts) else f"{side.code}: empty text"
