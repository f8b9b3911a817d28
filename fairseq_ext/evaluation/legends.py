"""Legends of pictures, for names of any length and with any first character."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.legend import Legend

_CLOSER = 0.76  # distance of lines within a label, as a share of the distance between labels
_MARK = "\u200b"  # invisible prefix of a label


def entry(label: str) -> str:
    """Return a label for :func:`show_names`; matplotlib would hide one that begins with ``_``."""
    return f"{_MARK}{label}"


def show_names(legend: Legend, room: float = 4.2) -> float:
    """Show labels as they are, in several lines if longer than ``room`` inches.

    Returns:
        The number of lines.
    """
    lines = 0.0
    for text in legend.get_texts():
        label = text.get_text().removeprefix(_MARK)
        letters = len(label)
        text.set(text=label, linespacing=1.1)
        while letters > 1 and text.get_window_extent().width > room * text.figure.dpi:
            letters = int(0.9 * letters)
            text.set_text(textwrap.fill(label, letters))
        lines += 1 + _CLOSER * text.get_text().count("\n")
    return lines
