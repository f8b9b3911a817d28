"""Read translation memories: TMX 1.4, XLIFF 1.2 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from fairseq_ext.corpora.readers import Segment, is_language
from fairseq_ext.corpora.readers.xml_stream import LANGUAGE, Context, elements, marked_text
from fairseq_ext.utils.errors import DataError

CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})  # elements with code of the original file
UNFINISHED = {"new", "needs-translation", "needs-adaptation", "needs-l10n", "initial"}


def tmx(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Read the units of a TMX file that have both languages, by the first text of each language.

    Raises:
        DataError: the file cannot be read, or has no unit with both languages.
    """
    languages: dict[str, None] = {}
    pairs = 0
    for _, unit in elements(paths[0], "tu"):
        texts: dict[str, str] = {}
        for variant in unit.iter("tuv"):
            code = variant.get(LANGUAGE) or variant.get("lang") or ""
            languages[code] = None
            segment = variant.find("seg")
            for language in (src, tgt):
                if segment is not None and is_language(code, language):
                    texts.setdefault(language, marked_text(segment, CODES))
        if len(texts) == len({src, tgt}):
            pairs += 1
            yield Segment(texts[src], texts[tgt], unit.get("tuid", ""))
    if not pairs:
        _refuse(paths[0], languages, src, tgt)


def xliff(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Read the units of an XLIFF file of version 1.2 or 2.

    Raises:
        DataError: the file cannot be read, or has other languages.
    """
    languages: dict[str, None] = {}
    for surroundings, unit in elements(paths[0], "trans-unit", "unit"):
        codes = [_attribute(surroundings, "source-language", "srcLang")]
        codes.append(_attribute(surroundings, "target-language", "trgLang"))
        languages.update(dict.fromkeys(codes))
        if not is_language(codes[0], src) or not is_language(codes[1] or tgt, tgt):
            continue
        document = _attribute(surroundings, "original", "id")
        segments = [unit] if unit.tag == "trans-unit" else list(unit.iter("segment"))
        for segment in segments:
            yield _xliff_segment(segment, document)
    if not any(is_language(code, src) for code in languages):
        _refuse(paths[0], languages, src, tgt)


def _xliff_segment(segment: Element, document: str) -> Segment:
    source, target = segment.find("source"), segment.find("target")
    texts = ["" if side is None else marked_text(side, CODES) for side in (source, target)]
    state = segment.get("state") or ("" if target is None else target.get("state") or "")
    unfinished = target is None or state in UNFINISHED or segment.get("translate") == "no"
    return Segment(texts[0], texts[1], document, "not translated" if unfinished else "")


def _attribute(surroundings: Context, *names: str) -> str:
    """Return the attribute of the nearest surrounding element that has one of ``names``, or ""."""
    for _, attributes in reversed(surroundings):
        for name in names:
            if name in attributes:
                return attributes[name]
    return ""


def _refuse(path: Path, languages: dict[str, None], src: str, tgt: str) -> None:
    present = ", ".join(filter(None, languages)) or "none"
    raise DataError(f"`{path}` has no pairs of {src} and {tgt}; its languages are: {present}.")
