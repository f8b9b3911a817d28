"""Spans of a line that translation leaves as they are, such as variables, paths and tags.

A number takes the place of each span, written as a year, since models copy these best. Where a
translation does not have every number exactly once, the text between the spans is to be translated
instead, part by part: so each span is in every translation, once.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairseq_ext.utils.errors import ConfigError

YEARS = tuple(str(year) for year in range(2012, 2030))
TAG = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|</?[A-Za-z](?:[^<>"']|"[^"]*"|'[^']*')*>|<[?!][A-Za-z][^<>]*>"""
)
"""Markup of XML and HTML that is on one line."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z])20[12][0-9](?![0-9A-Za-z])")


@dataclass(frozen=True)
class MaskedLine:
    """A line with its spans apart.

    Attributes:
        parts: the text before, between and behind the spans, one more than these.
        spans: that stay as they are.
        markup: whether the parts are text of XML, and spans must stay in order.
        years: that stand for the spans, fewer if there are too many spans.
        ends: what is before and behind all that, and not translated.
    """

    parts: Sequence[str]
    spans: Sequence[str]
    markup: bool
    years: Sequence[str]
    ends: tuple[str, str] = ("", "")

    @property
    def text(self) -> str:
        """The line to translate, with a year instead of each span; empty if years are too few."""
        if len(self.years) < len(self.spans):
            return ""
        plain = [self._plain(part) for part in self.parts]
        text = plain[0]
        for number, year in enumerate(self.years):
            before, behind = self._is_glued(number)
            text += " " * before + year + " " * behind + plain[number + 1]
        return text

    def restored(self, translation: str) -> str | None:
        """Put the spans into a translation of :attr:`text`; None if it lacks or doubles one."""
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
        """Return the text of each part to translate alone, empty for one without a word."""
        return [self._plain(part).strip() if _has_word(part) else "" for part in self.parts]

    def joined(self, translations: Sequence[str]) -> str:
        """Join translations of :meth:`texts` and the spans; white space is that of the source."""
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
        """Whether a span touches the word before it, and the one behind it."""
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
    """Find the spans of a line.

    Attributes:
        patterns: each match of one is a span; matches that touch are one span.
        markup: tags are spans too, and the rest is text of XML or HTML.
    """

    patterns: Sequence[re.Pattern[str]]
    markup: bool = False

    def mask(self, line: str) -> MaskedLine:
        """Take a line apart."""
        parts, spans, end = [], [], 0
        for start, stop in self._places(line):
            parts.append(line[end:start])
            spans.append(line[start:stop])
            end = stop
        parts.append(line[end:])
        ends = ["", ""]
        if self.markup:  # tags around all text are no part of a sentence
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
        """Yield where spans start and end, those joined that touch or have a blank between."""
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
    """Make a keeper of the options ``--keep`` and ``--markup``; None without them.

    Raises:
        ConfigError: a pattern that is no regular expression, or that matches an empty text.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise ConfigError(f"`--keep {pattern}` is no regular expression: {error}.") from None
        if compiled[-1].fullmatch(""):
            raise ConfigError(f"`--keep {pattern}` matches an empty text; demand a character.")
    return Keeper(compiled, markup) if compiled or markup else None
