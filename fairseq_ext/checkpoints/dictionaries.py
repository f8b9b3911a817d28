"""Keep a model's dictionaries in its checkpoints, and compare them with those of a data folder.

A model knows words only by their indices. With a dictionary of the same size in another order, the
model still runs, but translates into other words. So a checkpoint keeps all words of both
dictionaries in ``extra_state``, in order. Nothing here needs fairseq or torch.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fairseq_ext.checkpoints.layout import DICTIONARIES, extra_state
from fairseq_ext.utils.errors import CheckpointError, DataError
from fairseq_ext.utils.files import require_file

SIDES = ("source", "target")
OVERWRITES = " #fairseq:overwrite"  # the end of an entry that replaces an earlier one
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""fairseq's special symbols, which come before the symbols in a dictionary's file."""


def symbols(path: str | Path) -> list[str]:
    """Read a ``dict.LANGUAGE.txt``; return fairseq's special symbols, then the file's symbols."""
    words = [*SPECIAL]
    try:
        with require_file(path, "dictionary").open(encoding="utf-8") as lines:
            for line in lines:  # reading all lines at once would take twice the memory
                words.append(line.removesuffix("\n").removesuffix(OVERWRITES).rpartition(" ")[0])
    except UnicodeDecodeError:
        raise DataError(f"{path} is damaged: it is not UTF-8. Use another copy.") from None
    return words


def record(source: Sequence[str], target: Sequence[str]) -> dict[str, str]:
    """Return two dictionaries as checkpoints store them: ``{"source": text, "target": text}``.

    Each text has a symbol in each line.
    """
    first = "\n".join(source)
    return {"source": first, "target": first if target == source else "\n".join(target)}


def recorded(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, str] | None:
    """Return the :func:`record` that a checkpoint stores, or None if it stores none.

    Raise CheckpointError, with ``path`` in the message, if the entry is not a record.
    """
    words = extra_state(checkpoint).get(DICTIONARIES)
    if words is None:
        return None
    if not isinstance(words, dict) or not all(isinstance(words.get(s), str) for s in SIDES):
        raise CheckpointError(f"{path} is damaged: its dictionary is not text. Use another copy.")
    return words


def difference(current: Sequence[str], earlier: Sequence[str]) -> str | None:
    """Say in which line two lists of symbols first differ, and how; None if they are equal."""
    special = len(SPECIAL)
    for index, (symbol, before) in enumerate(zip_longest(current, earlier)):
        if symbol != before:
            line = f"line {index - special + 1}" if index >= special else f"symbol {index}"
            return f"{line} is {_shown(symbol)}, but was {_shown(before)}"
    return None


def _shown(symbol: str | None) -> str:
    if symbol is None:
        return "missing"
    return f"`{symbol:.40}`" if symbol.isprintable() else f"`{ascii(symbol)[1:-1]:.40}`"
