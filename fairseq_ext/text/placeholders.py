"""Keep spans of a line unchanged in translations, such as variables, paths and tags.

A number that looks like a year replaces each span, because models copy years best. If a translation
lacks a number or repeats it, the caller translates the parts between the spans one by one instead.
So every translation has each span exactly once.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fairseq_ext.utils.errors import ConfigError

YEARS = tuple(str(year) for year in range(2012, 2030))
TAG = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|</?[A-Za-z](?:[^<>"']|"[^"]*"|'[^']*')*>|<[?!][A-Za-z][^<>]*>"""
)
"""A tag or other markup of XML and HTML within one line."""
# Letters of scripts without spaces, and Korean ones, may touch an address, but do not belong to it.
_TOUCHING = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
_LETTER = rf"[^\W{_TOUCHING}]"
_EMOJI = r"\u231a\u231b\u23e9-\u23fa\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001faff"
# The time is linear in the length of a line, because a match begins only where a word does.
ADDRESS = rf"""(?x)(?<!{_LETTER})(?<![.@/-])
     (?:(?:https?|ftp)://|www\.|(?:[A-Za-z0-9-]{{1,63}}\.){{1,5}}(?:com|org|net)\b)
     (?:[^\s<>"(){_TOUCHING}]|\([^\s<>"()]*\))*(?<![.,;:!?'’”»\]}}])
  |(?<!{_LETTER})(?<![.+-])(?:{_LETTER}|[.+-]){{1,64}}@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{{2,63}}
  |(?:(?:[{_EMOJI}]|[0-9\#*]\ufe0f?\u20e3)[\ufe0f\u200d\U000e0020-\U000e007f]*)+"""
"""A URL, an e-mail address or emoji; compiled when used, because that takes milliseconds."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z])20[12][0-9](?![0-9A-Za-z])")


@dataclass(frozen=True)
class MaskedLine:
    """A line, split into spans that stay unchanged and the text around them."""

    parts: Sequence[str]  # text before, between and after the spans, so one more than spans
    spans: Sequence[str]  # spans to keep unchanged
    markup: bool  # whether the parts are XML text, whose spans must stay in order
    years: Sequence[str]  # numbers that replace the spans; fewer than spans if a line has very many
    ends: tuple[str, str] = ("", "")  # untranslated text at the start and at the end of the line

    @property
    def text(self) -> str:
        """The text to translate, with a year in place of each span; "" if there are too few years.

        The years are those in :data:`YEARS` that do not occur in the line.
        """
        if len(self.years) < len(self.spans):
            return ""
        plain = [self._plain(part) for part in self.parts]
        text = plain[0]
        for number, year in enumerate(self.years):
            before, behind = self._is_glued(number)
            text += " " * before + year + " " * behind + plain[number + 1]
        return text

    def restored(self, translation: str) -> str | None:
        """Put the spans into a translation of :attr:`text`, in place of their years.

        Return None if a year is missing or repeated or, in markup, out of order.
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
        if matches and number == len(self.spans) - 1 and not _has_word(self.parts[-1] + rest):
            rest = rest if self.parts[-1].strip() else ""  # an added full stop would touch a URL
        return (text + (rest.lstrip() if glued else rest)).join(self.ends)

    def texts(self) -> list[str]:
        """Return the texts before, between and after the spans; a text without a word is ""."""
        return [self._plain(part).strip() if _has_word(part) else "" for part in self.parts]

    def joined(self, translations: Sequence[str]) -> str:
        """Put the unchanged spans between ``translations``; return the translated line.

        ``translations`` are those of :meth:`texts`. Spaces around spans are as in the source.
        """
        line = ""
        for part, text, span in zip(self.parts, translations, [*self.spans, ""], strict=True):
            if _has_word(part):
                start, end = len(part) - len(part.lstrip()), len(part.rstrip())
                line += part[:start] + self._marked_up(text) + part[end:]
            else:
                line += part
            line += span
        return line.join(self.ends)

    def _is_glued(self, number: int) -> tuple[bool, bool]:
        """Return whether span ``number`` touches the word before it, and whether the word after."""
        before, behind = self.parts[number][-1:], self.parts[number + 1][:1]
        return before.isalnum(), behind.isalnum()

    def _plain(self, part: str) -> str:
        return html.unescape(part) if self.markup else part

    def _marked_up(self, text: str) -> str:
        return html.escape(text, quote=False) if self.markup else text


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _pairs(span: str, tags: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return start and end of each XML element in a span; ``tags`` are the places of its tags."""
    pairs, opened = [], dict[str, list[int]]()
    for start, stop in tags:
        name = span[start:stop].strip("</>").partition(" ")[0].lower()
        if not span.startswith("</", start):
            opened.setdefault(name, []).append(start)
        elif opened.get(name):
            pairs.append((opened[name].pop(), stop))
    return pairs


@dataclass(frozen=True)
class Keeper:
    """A finder of the spans in a line that must stay unchanged in its translation."""

    # Regular expressions of the spans; matches that touch become one span.
    patterns: Sequence[re.Pattern[str]]
    markup: bool = False  # whether tags are spans, too, and all other text is XML or HTML text

    def mask(self, line: str) -> MaskedLine:
        """Split a line into the spans that must stay unchanged and the text to translate."""
        places, start, stop = list(self._places(line)), 0, len(line)
        if places:
            (first, first_end), (last, end) = places[0], places[-1]
            # Tags around the whole text, and spans without a word such as emoji, do not belong to
            # the sentence.
            is_whole = len(places) == 1 and line[first:end].strip() == line.strip()
            core = self._core(line[first:first_end], is_whole)[0]
            if core and not line[:first].strip():
                start = first + core
            core = last + self._core(line[last:end], is_whole)[1]
            if start < end and core < end and not line[end:].strip():
                stop = core
        if self.markup or (start, stop) != (0, len(line)):
            start += len(line[start:stop]) - len(line[start:stop].lstrip())
            stop = start + len(line[start:stop].rstrip())
        parts, spans, end = [], [], start
        for first, last in ((max(first, start), min(last, stop)) for first, last in places):
            if first < last:
                parts.append(line[end:first])
                spans.append(line[first:last])
                end = last
        parts.append(line[end:stop])
        years = [year for year in YEARS if year not in line][: len(spans)]
        return MaskedLine(parts, spans, self.markup, years, (line[:start], line[stop:]))

    def _core(self, span: str, is_whole: bool) -> tuple[int, int]:
        """Return start and end of a span's core, the part that belongs to the sentence.

        The core is the span's text with the pairs of tags that enclose it, but without other tags
        at its ends: the core of ``<p><b>word</b>`` is ``<b>word</b>``. If the span is the whole
        line (``is_whole``), the core has no enclosing tags either: it is ``word``. If the span has
        no word, there is no core: the start is ``len(span)``, and the end is 0.
        """
        tags = [match.span() for match in TAG.finditer(span)] if self.markup else []
        start, stop = 0, len(span)
        if not _has_word(TAG.sub("", span) if self.markup else span):
            return stop, 0
        for tag_start, tag_stop in tags:
            if span[start:tag_start].strip():
                break
            start = tag_stop
        for tag_start, tag_stop in reversed(tags):
            if span[tag_stop:stop].strip():
                break
            stop = tag_start
        if not is_whole:
            pairs = _pairs(span, tags)
            start = min([start, *(first for first, last in pairs if first < start < last)])
            stop = max([stop, *(last for first, last in pairs if first < stop < last)])
        start += len(span[start:stop]) - len(span[start:stop].lstrip())
        return start, start + len(span[start:stop].rstrip())

    def split_by(self, split: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
        """Return a function that splits a line like ``split``, but never within a span."""

        def split_line(line: str) -> list[str]:
            if re.search("[⸂⸃]", line):
                return [line]
            # Rare brackets stand for the spans: ``split`` lets brackets begin and end sentences.
            masked, spans, end = "", [], 0
            for start, stop in self._places(line, join=False):
                span = line[start:stop]
                opens = span.startswith("<") and not span.startswith("</")
                masked += line[end:start] + ("⸂" if opens else "⸃")
                spans.append(span)
                end = stop
            rest = iter(spans)
            parts = split_text(masked + line[end:])
            return [re.sub("[⸂⸃]", lambda _: next(rest), part) for part in parts]

        def split_text(text: str) -> list[str]:
            if not text.strip():
                return [text]
            if not self.markup:
                return split(text)
            parts = split(text.strip())  # the white space around the text belongs to the markup
            parts[0] = text.removesuffix(text.lstrip()) + parts[0]
            parts[-1] += text.removeprefix(text.rstrip())
            return parts

        return split_line

    def _places(self, line: str, *, join: bool = True) -> Iterator[tuple[int, int]]:
        """Yield start and end of each span; ``join`` merges spans with only white space between."""
        patterns = [*self.patterns, *([TAG] if self.markup else [])]
        places = sorted(
            match.span() for pattern in patterns for match in pattern.finditer(line) if match[0]
        )
        if not places:
            return
        start, end = places[0]
        for next_start, next_end in places[1:]:
            if line[end:next_start].strip() or (not join and next_start >= end):
                yield start, end
                start = next_start
            end = max(end, next_end)
        yield start, end


def keeper(patterns: Sequence[str], markup: bool, addresses: bool = False) -> Keeper | None:
    """Make a keeper from ``--keep``, ``--markup`` and ``--keep-addresses``; None if all are off.

    Raise ConfigError if a pattern is not a regular expression, or matches an empty text.
    """
    compiled = [re.compile(ADDRESS)] if addresses else []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise ConfigError(f"`--keep {pattern}` is not a regular expression: {error}.") from None
        if compiled[-1].fullmatch(""):
            raise ConfigError(f"`--keep {pattern}` must not match an empty text, but does.")
    return Keeper(compiled, markup) if compiled or markup else None
