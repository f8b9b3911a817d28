"""Split HTML into the paragraphs to translate and the markup between them."""

import re

INLINE = re.compile(
    "a|abbr|b|bdi|bdo|cite|code|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|span|"
    "strike|strong|sub|sup|time|tt|u|var|wbr",
    re.IGNORECASE,
)
"""Elements inside a sentence; all others separate paragraphs."""
# The rest of a tag, after its name. A quotation mark quotes only after a `=`; a tag with others
# ends at the first `>`. A search from each `<` stops soon, so that the time is linear in the text.
_QUOTED = r"""=\s*(?:"[^"]*"|'[^']*'|(?![\s"']))"""
_REST = rf"""(?=[\s/>])(?:(?:[^<>"'=]|{_QUOTED})*|[^<>]*)"""
MARKUP = re.compile(
    rf"<(script|style|pre|textarea){_REST}(?<!/)>.*?(?:</\1\s*>|\Z)"  # its content stays as it is
    rf"|</?([a-z][^\s/<>]*){_REST}>"
    r"|<!--(?:-?>|.*?(?:-->|\Z))|<!\[CDATA\[.*?(?:\]\]>|\Z)|<(?:\?|![a-z[])[^<>]*>",
    re.IGNORECASE | re.DOTALL,
)
"""A tag, an element whose content is not translated, or other markup of HTML."""


def paragraphs(text: str) -> tuple[list[str], list[str]]:
    """Return the paragraphs of an HTML text, and the markup between successive paragraphs.

    If the text begins or ends with markup, the first or last paragraph has no words.
    Within a paragraph, line breaks become spaces, and tags such as ``<b>`` remain.
    """
    texts, between, part, end = list[str](), list[str](), "", 0
    for match in MARKUP.finditer(text):
        part += text[end : match.start()]
        end = match.end()
        if INLINE.fullmatch(match[2] or ""):
            part += match[0]
        elif between and not part.strip():
            between[-1] += part + match[0]
            part = ""
        else:
            texts.append(part)
            between.append(match[0])
            part = ""
    texts.append(part + text[end:])
    return [part.replace("\r", "").replace("\n", " ") for part in texts], between
