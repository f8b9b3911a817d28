"""Read XML: translation memories (TMX 1.4, XLIFF 1.2 and 2), and test sets of WMT since 2021."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, iterparse

from fairseq_ext.corpora.readers import Segment, is_language
from fairseq_ext.text.reading import opened
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import require_file

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
OF_SOURCE = ("source-language", "srcLang")  # attributes of XLIFF 1.2 and 2
OF_TARGET = ("target-language", "trgLang")
CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})  # elements that hold code of the original file
BREAK_TYPES = {"lb", "xlf:lb"}  # line breaks in TMX and XLIFF 1.2, and in XLIFF 2
BREAK = re.compile(r"\s*<(?:br|/p|/div|/li)\b|\s*(?:\\[nr]|\n)+\s*\Z", re.IGNORECASE)
UNFINISHED = {"new", "needs-translation", "needs-adaptation", "needs-l10n", "initial"}


def tmx(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Yield the units of a TMX file that have both languages; refuse a file without such units.

    If a unit has several texts in a language, the first is taken.
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
    """Yield the segments of an XLIFF file, version 1.2 or 2, that are in the two languages."""
    languages: dict[str, None] = {}
    for surroundings, unit in elements(paths[0], "trans-unit", "unit"):
        parent = [element for element in surroundings if element.tag == "file"]
        document = _attribute(parent, "original", "id")  # of the file, not of a group in it
        for segment in [unit] if unit.tag == "trans-unit" else unit.iter("segment"):
            source, target = segment.find("source"), segment.find("target")
            codes = [
                ("" if side is None else side.get(LANGUAGE, "")) or _attribute(surroundings, *names)
                for side, names in ((source, OF_SOURCE), (target, OF_TARGET))
            ]
            languages.update(dict.fromkeys(codes))
            if not is_language(codes[0], src) or not is_language(codes[1] or tgt, tgt):
                continue
            texts = ["" if side is None else marked_text(side, CODES) for side in (source, target)]
            state = segment.get("state") or ("" if target is None else target.get("state") or "")
            is_fixed = _attribute([*surroundings, unit, segment], "translate") == "no"
            unfinished = target is None or state in UNFINISHED or is_fixed
            yield Segment(texts[0], texts[1], document, "not translated" if unfinished else "")
    if not any(is_language(code, src) for code in languages):
        _refuse(paths[0], languages, src, tgt)


def _attribute(surroundings: list[Element], *names: str) -> str:
    """Return the value of an attribute called one of ``names``, or "".

    ``surroundings`` are nested elements, the outermost first. The innermost is searched first.
    """
    values = (element.get(name) for element in reversed(surroundings) for name in names)
    return next((value for value in values if value is not None), "")


def _refuse(path: Path, languages: dict[str, None], src: str, tgt: str) -> None:
    """Raise DataError: the file has no pairs of ``src`` and ``tgt``.

    ``languages`` are the languages of the file's texts, for the message.
    """
    if not languages:
        raise DataError(f"`{path}` has no segments to read; export it with texts, or leave it out.")
    present = ", ".join(filter(None, languages)) or "none"
    raise DataError(f"`{path}` has no pairs of {src} and {tgt}; its languages are: {present}.")


def wmt_xml(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Yield each source segment of an XML test set with its translation in the first reference."""
    count = 0
    for _, document in elements(paths[0], "doc"):
        name = document.get("id", "")
        sources = [side for side in document.iter("src") if is_language(side.get("lang", ""), src)]
        references = [
            side for side in document.iter("ref") if is_language(side.get("lang", ""), tgt)
        ]
        if not sources or not references:
            continue
        sides = [
            [(segment.get("id", ""), marked_text(segment)) for segment in side.iter("seg")]
            for side in (sources[0], references[0])
        ]
        if [number for number, _ in sides[0]] != [number for number, _ in sides[1]]:
            raise DataError(
                f"`{paths[0]}`, document `{name}`: the segments of source and reference have "
                "different numbers; get the file again."
            )
        count += len(sides[0])
        for (_, source), (_, target) in zip(*sides, strict=True):
            yield Segment(source, target, name)
    if not count:
        raise DataError(f"`{paths[0]}` has no document in {src} and {tgt}; check the languages.")


def elements(path: Path, *names: str) -> Iterator[tuple[list[Element], Element]]:
    """Yield ``(ancestors, element)`` for each element of an XML file whose tag is in ``names``.

    Elements inside a yielded element are skipped. Tags lose their namespaces. The parser refuses
    entities that expand without end.
    """
    surroundings: list[Element] = []
    require_file(path)
    with opened(path) as file:
        try:
            for event, element in iterparse(file, ("start", "end")):
                if event == "start":
                    element.tag = element.tag.rpartition("}")[2]
                    surroundings.append(element)
                    continue
                surroundings.pop()
                if element.tag in names and not any(outer.tag in names for outer in surroundings):
                    yield surroundings, element
                    if surroundings:
                        surroundings[-1].remove(element)  # frees its memory
        except (ParseError, LookupError, ValueError) as error:
            raise DataError(f"`{path}` is damaged or not XML: {error}; export it again.") from None


def marked_text(element: Element, codes: frozenset[str] = frozenset()) -> str:
    """Return the text of an element, with its children as tags without attributes.

    A child whose tag is in ``codes``, such as ``ph``, loses its text, which is markup of the
    original file. A child that stands for a line break becomes ``<br/>``.
    """
    pieces = [element.text or ""]
    for child in element:
        content = "" if child.tag in codes else marked_text(child, codes)
        tag = "br" if not content and _is_break(child, codes) else child.tag
        pieces.append(f"<{tag}>{content}</{tag}>" if content else f"<{tag}/>")
        pieces.append(child.tail or "")
    return "".join(pieces)


def _is_break(element: Element, codes: frozenset[str]) -> bool:
    """Return whether an element stands for a line break.

    An attribute such as ``type`` may say so; so may the text, if the element's tag is in ``codes``.
    """
    types = {element.get(name, "") for name in ("type", "ctype", "subType")}
    return bool(types & BREAK_TYPES) or (
        element.tag in codes and BREAK.match(element.text or "") is not None
    )
