"""Read large XML files element by element; refuse entities, which can make small files huge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from fairseq_ext.corpora.readers import LONGEST
from fairseq_ext.utils.errors import DataError

BLOCK = 1 << 16  # bytes read at a time
LANGUAGE = "xml:lang"
Context = list[tuple[str, dict[str, str]]]


class ElementStream:
    """Cut the elements with given names out of an XML file.

    Attributes:
        names: names of the elements, without a namespace.
        ready: complete elements that have not been taken yet, each with its surroundings.
    """

    def __init__(self, names: frozenset[str], path: Path) -> None:
        self.names, self.ready = names, list[tuple[Context, Element]]()
        self._path, self._surroundings, self._depth, self._size = path, Context(), 0, 0
        self._builder = TreeBuilder()
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._refuse_entity

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        if not self._depth and name not in self.names:
            self._surroundings.append((name, attributes))
            return
        self._depth += 1
        self._builder.start(name, attributes)

    def _end(self, name: str) -> None:
        if not self._depth:
            self._surroundings.pop()
            return
        self._builder.end(name.rpartition(":")[2])
        self._depth -= 1
        if not self._depth:
            self.ready.append((list(self._surroundings), self._builder.close()))
            self._builder, self._size = TreeBuilder(), 0

    def _text(self, text: str) -> None:
        if not self._depth:
            return
        self._size += len(text)
        if self._size > 100 * LONGEST:
            raise DataError(
                f"`{self._path}`, line {self.parser.CurrentLineNumber}: an entry has more than "
                f"{100 * LONGEST:,} characters; the file is damaged or holds no sentences."
            )
        self._builder.data(text)

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise DataError(
            f"`{self._path}`, line {self.parser.CurrentLineNumber}: it declares the entity "
            f"`{name}`, which could expand without end; write the text itself instead."
        )


def elements(path: Path, *names: str) -> Iterator[tuple[Context, Element]]:
    """Yield each outermost element with one of ``names``, and the elements that surround it.

    Raises:
        DataError: the file is missing, is not XML, or declares entities.
    """
    if not path.is_file():
        raise DataError(f"`{path}` does not exist or is no file; check the path.")
    stream = ElementStream(frozenset(names), path)
    with path.open("rb") as file:
        while True:
            block = file.read(BLOCK)
            try:
                stream.parser.Parse(block, not block)
            except (expat.ExpatError, UnicodeError, LookupError) as error:
                raise DataError(
                    f"`{path}` is damaged or no XML: {error}; export it again."
                ) from None
            yield from stream.ready
            stream.ready.clear()
            if not block:
                return


def marked_text(element: Element, codes: frozenset[str] = frozenset()) -> str:
    """Return the text of an element, with its children as tags without attributes.

    Args:
        element: the element; its own tag is left out.
        codes: names of children that contain code of the original file instead of text.
    """
    pieces = [element.text or ""]
    for child in element:
        content = "" if child.tag in codes else marked_text(child, codes)
        pieces.append(f"<{child.tag}>{content}</{child.tag}>" if content else f"<{child.tag}/>")
        pieces.append(child.tail or "")
    return "".join(pieces)
