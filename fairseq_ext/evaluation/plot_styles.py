"""Choose colours, dashes and markers for the systems in a picture.

The architectures of this project look the same in every picture, each family in its own colour.
Other systems get the remaining looks, in order. The colours are Okabe and Ito's, which
colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = PALETTE
DASHES = ("-", "--", ":", "-.")  # with seven colours, 28 lines look different
MARKERS = "osD^vP"  # six; with seven colours, 42 points look different


@dataclass(frozen=True)
class Look:
    """The colour, dash and marker of a system, in matplotlib's notation."""

    colour: str
    dash: str
    marker: str

    @property
    def line(self) -> dict[str, str]:
        """Return matplotlib's arguments for a line without markers."""
        return {"color": self.colour, "ls": self.dash}

    @property
    def point(self) -> dict[str, str]:
        """Return matplotlib's arguments for markers without a line."""
        return {"color": self.colour, "marker": self.marker}

    def like(self, other: Look) -> bool:
        """Return whether lines or points of two looks cannot be told apart."""
        return self.line == other.line or self.point == other.point


FIXED = {
    "transformer": Look(BLACK, "-", "o"),
    "lstm": Look(ORANGE, "-", "v"),
    "gru": Look(GREEN, "-", "^"),
    "linformer": Look(BLUE, "-", "s"),
    "linformer-32": Look(BLUE, "-", "s"),
    "linformer-8": Look(SKY, "-", "D"),
    "muse": Look(VERMILION, "-", "P"),
    "muse-simple": Look(VERMILION, "--", "v"),
    "bmt": Look(PURPLE, "-", "o"),
    "bmt-1": Look(PURPLE, "--", "s"),
    "bmt-6": Look(PURPLE, "-.", "D"),
    "bmt-1-plain": Look(PURPLE, ":", "^"),
    "binary": Look(PURPLE, "--", "s"),
    "ternary": Look(PURPLE, "-", "P"),
}


def numbered(number: int) -> Look:
    """Return the look of an unknown system, by its place in the picture."""
    rest, colour = divmod(number, len(PALETTE))
    return Look(PALETTE[colour], DASHES[rest % len(DASHES)], MARKERS[number % len(MARKERS)])


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Choose a look for each system of a picture, all different as long as there are enough.

    A name in :data:`FIXED` gets its look; other names get the next free look of the palette.
    """
    names = list(names)
    styles: dict[str, Look] = {}
    for name in names:
        look = FIXED.get(name.lower())
        if look is not None and not any(map(look.like, styles.values())):
            styles[name] = look
    for place, name in enumerate(names):
        if name not in styles:
            unlike = (
                look
                for look in map(numbered, range(len(PALETTE) * len(MARKERS)))
                if not any(map(look.like, styles.values()))
            )
            styles[name] = next(unlike, numbered(place))
    return {name: styles[name] for name in names}
