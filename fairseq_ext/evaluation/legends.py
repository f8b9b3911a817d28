"""Legends of pictures: names of any length and beginning."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.legend import Legend

_CLOSER = 0.76  # from line to line of one label, where it is 1 from label to label
_MARK = "\u200b"  # before a label; never drawn


def entry(label: str) -> str:
    """A label that :func:`show_names` shows; matplotlib leaves out those that begin with ``_``."""
    return f"{_MARK}{label}"


def show_names(legend: Legend, room: float = 4.2) -> float:
    """Show labels as they are, in several lines where longer than ``room`` inches.

    Returns:
        the number of lines.
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
