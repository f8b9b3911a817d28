"""Split HTML into the paragraphs to translate and the markup between them."""

import re
from html.entities import html5
from html.parser import HTMLParser

INLINE = re.compile(
    "a|abbr|b|bdi|bdo|cite|code|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|span|"
    "strike|strong|sub|sup|time|tt|u|var|wbr"
)
"""Elements inside a sentence; all others separate paragraphs."""
UNTRANSLATED = frozenset(["script", "style", "pre", "textarea"])
"""Elements whose content stays as it is."""


def paragraphs(text: str) -> tuple[list[str], list[str]]:
    """Split HTML at the markup that separates paragraphs.

    Returns:
        The paragraphs, in which line breaks are spaces and tags inside a sentence remain; and the
        markup after each paragraph but the last.
    """
    parser = _Paragraphs()
    # The parser's time is quadratic in unclosed tags, so it gets the text up to the last `>`.
    markup, bracket, rest = text.rpartition(">")
    parser.feed(markup + bracket)
    parser.close()
    parser.handle_data(rest)
    return [part.replace("\r", "").replace("\n", " ") for part in parser.texts], parser.between


class _Paragraphs(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.texts, self.between = [""], list[str]()
        self._untranslated = ""  # the open element whose content stays as it is

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._add_tag(tag, self.get_starttag_text() or "")
        if tag in UNTRANSLATED and not self._untranslated:
            self._untranslated = tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self._add_tag(tag, self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._add_tag(tag, f"</{tag}>")
        if tag == self._untranslated:
            self._untranslated = ""

    def handle_data(self, data: str) -> None:
        if self._untranslated:
            self._add_block(data)
        else:
            self.texts[-1] += data

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};" if f"{name};" in html5 else f"&{name}")  # such as R&D

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self._add_block(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._add_block(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._add_block(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._add_block(f"<![{data}{']]' if data.startswith('CDATA[') else ']'}>")

    def _add_tag(self, tag: str, markup: str) -> None:
        if INLINE.fullmatch(tag) and not self._untranslated:
            self.texts[-1] += markup
        else:
            self._add_block(markup)

    def _add_block(self, markup: str) -> None:
        if self.between and not self.texts[-1].strip():
            self.between[-1] += self.texts[-1] + markup
            self.texts[-1] = ""
        else:
            self.between.append(markup)
            self.texts.append("")
