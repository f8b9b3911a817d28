"""Readers of files in which people keep translations, one module for each family of formats.

A reader is a function of a path, or of two for formats with one file or folder for each language,
and of the two languages. It yields a :class:`Segment` for each translated text, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FORMAT_NAMES = ("help", "lines", "mo", "po", "sgm", "tmx", "wmt", "xliff")
"""As options name them; :mod:`fairseq_ext.corpora.translation_files` has the reader of each."""

LONGEST = 100_000
"""Characters of a text beyond which a file is refused: no sentence or paragraph is as long."""


@dataclass(frozen=True)
class Segment:
    """A text and its translation, with the file's own mark-up.

    Attributes:
        source: in the source language.
        target: its translation.
        document: name of the part of the file that belongs together, such as an article.
        fault: why the file itself says that this is no finished translation, or "".
    """

    source: str
    target: str
    document: str = ""
    fault: str = ""


class Reader(Protocol):
    """Function that reads one file with both languages, or two files or folders with one each."""

    def __call__(self, paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]: ...


def is_language(code: str, language: str) -> bool:
    """Whether a language code of a file, such as ``de-AT``, is of this language."""
    code, language = (text.lower().replace("_", "-") for text in (code, language))
    return code == language or code.startswith(f"{language}-")
