"""Rules for mark-up, placeholders and mnemonics in the texts of programs and manuals.

A placeholder stands for a value (``%s``, ``{name}``, ``$FILE``), a mnemonic marks the letter of a
keyboard shortcut (``&File``, ``_Open``), and mark-up consists of tags (``<emph>``).
"""

import re
from collections import Counter
from dataclasses import dataclass

from fairseq_ext.text.cleaning import one_spaced

TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'))*\s*/?>")
BREAKING_TAG = re.compile(
    r"</?(?:br|hr|p|para|div|section|article|header|footer|main|nav|aside|figure|figcaption|form|"
    r"h[1-6]|title|[uod]l|li|listitem|dt|dd|table|caption|thead|tbody|tfoot|tr|td|th|option|pre|"
    r"blockquote)(?=[\s/>])",
    re.I,
)  # tags that begin or end a line or block, and so separate words
PLACEHOLDER = re.compile(
    r"%\([\w.]+\)[#0 +-]*\d*(?:\.\d+)?[a-zA-Z]"  # Python: %(name)s
    r"|%(?:\d+\$)?[#0+-]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t|L)?[diouxXeEfgGcsp](?![A-Za-z])"
    r"|%\d+(?!\d*\s*%)\b"  # Qt: %1
    r"|%[A-Z][A-Z_]+\b"  # LibreOffice: %PRODUCTNAME
    r"|\$\{\w+\}|\$\([A-Za-z]\w*\)|\$\[\w+\]|\$[A-Z_]{2,}\b"
    r"|\{\w*(?:[.!:][^{}\s]*)?\}"
)
ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|\w+);")
INITIALS = re.compile(r"\b[A-Z]{1,2}&[A-Z]{1,2}\b")  # `R&D` and `AT&T`, but not `E&XIT`
PROTECTED = re.compile(f"({ENTITY.pattern}|{PLACEHOLDER.pattern}|{INITIALS.pattern})")
AMPERSAND = re.compile(r"&(?=[^\W\d_])")
APPENDED = re.compile(r"\s*\([&_~]\w\)")  # ` (&F)`, for languages whose letters keyboards lack
UNDERSCORE = re.compile(r"_(?=[^\W_])")
NAME = re.compile(r"(?:[^\W_]|[=/+%.~-]){1,64}[&_][A-Za-z\d]+")  # `my_name`, `a=1&b`, or `E&xit`
SHORT = 60  # most characters of a label whose underscore may mark a shortcut

MARKUP_RULES = ("strip", "keep", "leave-out")
MNEMONIC_RULES = ("strip", "keep", "leave-out")
PLACEHOLDER_RULES = ("keep", "leave-out")


@dataclass(frozen=True)
class Rules:
    """Rules for the mark-up, the placeholders and the mnemonics in a pair of texts.

    Each field has one of these values:

    - ``strip``: remove them from both texts. A tag that breaks the line, such as ``<br>`` or
      ``<p>``, becomes a space. Placeholders cannot be removed;
    - ``keep``: leave them in the texts, but drop a pair whose two texts have different tags or
      placeholders;
    - ``leave-out``: drop every pair that has mark-up (or placeholders, or mnemonics).
    """

    markup: str = "strip"
    placeholders: str = "keep"
    mnemonics: str = "strip"

    def apply(self, source: str, target: str) -> tuple[tuple[str, str], str]:
        """Return both texts, cleaned by these rules, and the reason to drop the pair, or ""."""
        pair = (source, target)
        tags = [Counter(TAG.findall(text)) for text in pair]
        if any(tags):
            if self.markup == "leave-out":
                return pair, "mark-up"
            if self.markup == "keep" and tags[0] != tags[1]:
                return pair, "mark-up differs"
            if self.markup == "strip":
                pair = (TAG.sub(_stripped, pair[0]), TAG.sub(_stripped, pair[1]))
        # Without positions, such as `1$` in `%1$s`: translations may change the order of values.
        values = [
            Counter(re.sub(r"^%\d+\$", "%", value) for value in PLACEHOLDER.findall(text))
            for text in pair
        ]
        if any(values) and self.placeholders == "leave-out":
            return pair, "placeholders"
        if values[0] != values[1]:
            return pair, "placeholders differ"
        if self.mnemonics != "keep":
            without = _without_mnemonics(pair)
            if without != pair and self.mnemonics == "leave-out":
                return pair, "mnemonic"
            pair = without
        pair = (one_spaced(pair[0]), one_spaced(pair[1]))
        return pair, "" if all(pair) else "an empty side"


def _stripped(tag: re.Match[str]) -> str:
    return " " if BREAKING_TAG.match(tag[0]) else ""


def _without_mnemonics(pair: tuple[str, str]) -> tuple[str, str]:
    """Remove the marks of keyboard shortcuts, ``&`` or ``_``, from both texts if both are labels.

    A label is short and has one mark. If both texts have the same word with a mark inside, such as
    ``my_name``, the word is taken for a name or a part of an address, and the marks stay. There is
    one exception: if both texts are just this word, and its mark is ``&``, as in ``F&ormat``, they
    are taken for labels.
    """
    if max(map(len, pair)) > 4 * SHORT:
        return pair
    plain = [ENTITY.sub(" ", INITIALS.sub(" ", text)) for text in pair]
    names = [set(NAME.findall(PLACEHOLDER.sub("0", text))) for text in plain]
    words = {text.strip(" .:…") for text in pair}
    shared = " ".join(name for name in names[0] & names[1] if "_" in name or words != {name})
    for mark, longest in ((AMPERSAND, 4 * SHORT), (UNDERSCORE, SHORT)):
        are_labels = all(_unmarked(mark, text)[0] == 1 or APPENDED.search(text) for text in pair)
        if are_labels and not mark.search(shared) and max(map(len, pair)) <= longest:
            source, target = (_unmarked(mark, APPENDED.sub("", text))[1] for text in pair)
            pair = (source, target)
    return pair


def _unmarked(mark: re.Pattern[str], text: str) -> tuple[int, str]:
    """Count the marks of shortcut keys in a text; return the count, and the text without them.

    ``mark`` matches the marks. Matches in entities, placeholders and initials such as ``R&D``
    (:data:`PROTECTED`) do not count. If a text has several underscores, none is a mark.
    """
    pieces = PROTECTED.split(text)
    free = pieces[::2]
    if mark is UNDERSCORE and "".join(free).count("_") != 1:
        return 0, text
    pieces[::2] = [mark.sub("", piece) for piece in free]
    return sum(len(mark.findall(piece)) for piece in free), "".join(pieces)
