"""Choose fonts for pictures: installed fonts draw the characters that the usual one lacks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT = "DejaVu Sans"  # covers every Latin script, Vietnamese included, and comes with matplotlib
_SHOWN = 8  # missing characters named in a message
_NO_TEXT = {"Last Resort High-Efficiency"}  # matplotlib's font with a box for every character


def add(figure: Figure) -> None:
    """Draw characters that :data:`FONT` lacks with installed fonts; warn of those that none has.

    Other texts keep their font, so that the same data give the same file on every machine.
    """
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    characters = {
        character for text in texts for character in text.get_text() if character.isprintable()
    }
    absent = characters - _covered(_path_of(FONT), characters)
    if not absent:
        return
    fonts, absent = _fallbacks(absent)
    for text in texts:
        text.set_fontfamily([FONT, *fonts])
    if absent:
        print(
            f"warning: no font that is installed has {' '.join(sorted(absent)[:_SHOWN])}"
            f"{' …' if len(absent) > _SHOWN else ''}, drawn as boxes; install one that has, such "
            "as Noto Sans CJK or Noto Sans Devanagari.",
            file=sys.stderr,
        )


def _fallbacks(absent: set[str]) -> tuple[list[str], set[str]]:
    """Return font families with these characters, best first, and the characters that none has."""
    from matplotlib.font_manager import fontManager

    names = sorted({font.name for font in fontManager.ttflist} - _NO_TEXT)
    covered = {name: _covered(_path_of(name), absent) for name in names}
    families = []
    while best := max(covered.items(), key=lambda font: len(font[1] & absent), default=None):
        name, coverage = best
        if not coverage & absent:
            break
        families.append(name)
        absent = absent - coverage
    return families, absent


def _path_of(family: str) -> str:
    from matplotlib.font_manager import findfont

    return findfont(family)


def _covered(path: str, characters: set[str]) -> set[str]:
    """Return which of the characters a font has; none if its file is damaged."""
    from matplotlib.font_manager import get_font

    try:
        charmap = get_font(path).get_charmap()
    except (OSError, RuntimeError):
        return set()
    return {character for character in characters if ord(character) in charmap}
