"""Keep spans of a line unchanged in translations, such as variables, paths and tags.

A number that looks like a year replaces each span, because models copy years best. If a number is
missing from a translation or repeated, the caller translates the text between the spans instead,
part by part, so that every translation has each span exactly once.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairseq_ext.utils.errors import ConfigError

YEARS = tuple(str(year) for year in range(2012, 2030))
TAG = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|</?[A-Za-z](?:[^<>"']|"[^"]*"|'[^']*')*>|<[?!][A-Za-z][^<>]*>"""
)
"""A tag or other markup of XML and HTML within one line."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z])20[12][0-9](?![0-9A-Za-z])")


@dataclass(frozen=True)
class MaskedLine:
    """A line, separated into its spans and the text between them."""

    # Text before, between and after the spans, one part more than there are spans.
    parts: Sequence[str]
    spans: Sequence[str]  # spans to keep unchanged
    markup: bool  # whether the parts are XML text, whose spans must stay in order
    years: Sequence[str]  # numbers that replace the spans; fewer than spans if a line has very many
    ends: tuple[str, str] = ("", "")  # untranslated text at the start and at the end of the line

    @property
    def text(self) -> str:
        """The line to translate, with a year for each span; "" if there are too few years."""
        if len(self.years) < len(self.spans):
            return ""
        plain = [self._plain(part) for part in self.parts]
        text = plain[0]
        for number, year in enumerate(self.years):
            before, behind = self._is_glued(number)
            text += " " * before + year + " " * behind + plain[number + 1]
        return text

    def restored(self, translation: str) -> str | None:
        """Replace each year in a translation by the span that it stands for.

        Return None if a year is missing or occurs twice.
        """
        matches = [match for match in _NUMBER.finditer(translation) if match[0] in self.years]
        order = [match[0] for match in matches]
        if (order if self.markup else sorted(order)) != [*self.years]:
            return None
        text, end = "", 0
        glued = False
        for match in matches:
            number = self.years.index(match[0])
            before, behind = self._is_glued(number)
            between = self._marked_up(translation[end : match.start()])
            between = between.lstrip() if glued else between
            text += (between.rstrip() if before else between) + self.spans[number]
            end, glued = match.end(), behind
        rest = self._marked_up(translation[end:])
        return self._ended(text + (rest.lstrip() if glued else rest))

    def texts(self) -> list[str]:
        """Return the text of each part, to be translated alone; "" for a part without a word."""
        return [self._plain(part).strip() if _has_word(part) else "" for part in self.parts]

    def joined(self, translations: Sequence[str]) -> str:
        """Join the translated :meth:`texts` and the spans between them, spaced as in the source."""
        line = ""
        for part, translation, span in zip(
            self.parts, translations, [*self.spans, ""], strict=True
        ):
            if _has_word(part):
                start, end = len(part) - len(part.lstrip()), len(part.rstrip())
                line += part[:start] + self._marked_up(translation) + part[end:]
            else:
                line += part
            line += span
        return self._ended(line)

    def _ended(self, text: str) -> str:
        return text.join(self.ends)

    def _is_glued(self, number: int) -> tuple[bool, bool]:
        """Return whether a span touches the word before it, and whether it touches the next."""
        before, behind = self.parts[number][-1:], self.parts[number + 1][:1]
        return before.isalnum(), behind.isalnum()

    def _plain(self, part: str) -> str:
        return html.unescape(part) if self.markup else part

    def _marked_up(self, text: str) -> str:
        return html.escape(text, quote=False) if self.markup else text


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


@dataclass(frozen=True)
class Keeper:
    """A finder of the spans of a line that must stay unchanged."""

    # Regular expressions of the spans; matches that touch become one span.
    patterns: Sequence[re.Pattern[str]]
    markup: bool = False  # whether tags are spans, too, and all other text is XML or HTML text

    def mask(self, line: str) -> MaskedLine:
        """Separate a line into spans and the text between them."""
        parts, spans, end = [], [], 0
        for start, stop in self._places(line):
            parts.append(line[end:start])
            spans.append(line[start:stop])
            end = stop
        parts.append(line[end:])
        ends = ["", ""]
        if self.markup:  # tags around the whole text do not belong to the sentence
            if spans and not parts[0].strip():
                ends[0] = parts.pop(0) + spans.pop(0)
            if spans and not parts[-1].strip():
                ends[1] = spans.pop() + parts.pop()
            inner = parts[0].lstrip()
            ends[0] += parts[0].removesuffix(inner)
            parts[0] = inner
            inner = parts[-1].rstrip()
            ends[1] = parts[-1].removeprefix(inner) + ends[1]
            parts[-1] = inner
        years = [year for year in YEARS if year not in line][: len(spans)]
        return MaskedLine(parts, spans, self.markup, years, (ends[0], ends[1]))

    def _places(self, line: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each span; spans separated only by white space are joined."""
        patterns = [*self.patterns, *([TAG] if self.markup else [])]
        places = sorted(
            match.span() for pattern in patterns for match in pattern.finditer(line) if match[0]
        )
        if not places:
            return
        start, end = places[0]
        for next_start, next_end in places[1:]:
            if line[end:next_start].strip():
                yield start, end
                start = next_start
            end = max(end, next_end)
        yield start, end


def keeper(patterns: Sequence[str], markup: bool) -> Keeper | None:
    """Make a keeper from the options ``--keep`` and ``--markup``; None without them."""
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise ConfigError(f"`--keep {pattern}` is not a regular expression: {error}.") from None
        if compiled[-1].fullmatch(""):
            raise ConfigError(f"`--keep {pattern}` must not match an empty text, but does.")
    return Keeper(compiled, markup) if compiled or markup else None
