"""Readers of translation files, one module for each family of formats.

A reader is a function ``(paths, src, tgt)``. ``paths`` has the path of a file, or two paths for
formats with a file or folder for each language. A reader yields a :class:`Segment` for each
translated text, in order. It raises DataError for a file that cannot be read, is malformed or has
other languages. A gettext catalogue in another language is not refused, because folders often hold
catalogues of many languages; instead, each of its segments has a ``fault``.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.text.languages import short_code

FORMAT_NAMES = ("help", "lines", "mo", "po", "sgm", "tmx", "wmt", "xliff")
"""Values of ``--format``; :mod:`fairseq_ext.corpora.translation_files` has the reader of each."""

LONGEST = 100_000
"""Most characters of a text. A file with a longer text is refused as damaged or malicious."""


@dataclass(frozen=True)
class Segment:
    """A text and its translation as they are in a file, with the file's mark-up."""

    source: str
    target: str
    document: str = ""  # name of the article or other unit that the segment belongs to
    fault: str = ""  # why, as the file says, the translation is unusable (unfinished …), or ""


Reader = Callable[[tuple[Path, ...], str, str], Iterator[Segment]]


def is_language(code: str, language: str) -> bool:
    """Return whether a language code, such as ``de-AT`` or ``deu``, stands for ``language``."""
    subtags = (re.split("[-_]", text.lower()) for text in (code, language))
    code, language = ("-".join((short_code(first), *others)) for first, *others in subtags)
    return code == language or code.startswith(f"{language}-")
