"""Read gettext's catalogues: ``.po`` files, and the ``.mo`` files of installed programs."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_ext.corpora.readers import LONGEST, Segment, is_language
from fairseq_ext.text.reading import opened
from fairseq_ext.utils.errors import DataError

CHARSET = re.compile(rb"charset=([\w.:-]+)", re.IGNORECASE)
LANGUAGE = re.compile(r"^Language:[ \t]*([A-Za-z]{2,3}(?:[_-]\w{1,8}){0,3})\b", re.MULTILINE)
PLURALS = re.compile(r"nplurals\s*=\s*(\d+)")
KEYWORD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s+(".*")')
ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
MAGIC = 0x950412DE
LARGEST = 1 << 28  # most bytes of a catalogue
UNKNOWN_CHARSET = "CHARSET"  # templates have this word in place of a charset


@dataclass
class Message:
    """An entry of a gettext catalogue: a text and its translation."""

    line: int = 0  # the line where it begins; 0 if the format has no lines
    fuzzy: bool = False  # whether the translation is a tool's guess, which nobody has confirmed
    # The texts by keyword, such as `msgid` or `msgstr[1]`.
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def forms(self) -> dict[int, str]:
        """The forms of the translation by plural number; a single form has the number 0."""
        keywords = [keyword for keyword in self.texts if keyword.startswith("msgstr")]
        return {int(keyword[7:-1] or 0): self.texts[keyword] for keyword in keywords}


def po(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Yield the messages of the ``.po`` file ``paths[0]`` with their translations.

    If the header names another language than ``tgt``, every segment has a ``fault``.
    """
    path = paths[0]
    text = _decoded(_read(path), path)
    yield from _segments(_po_messages(text, path), path, tgt)


def mo(paths: tuple[Path, ...], src: str, tgt: str) -> Iterator[Segment]:
    """Yield messages of the ``.mo`` file ``paths[0]`` with their translations, like :func:`po`."""
    path = paths[0]
    yield from _segments(_mo_messages(_read(path), path), path, tgt)


def _read(path: Path) -> bytes:
    with opened(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"`{path}` is larger than {LARGEST:,} bytes; no catalogue is that large.")
    return content


def _decoded(content: bytes, path: Path) -> str:
    """Decode a ``.po`` file by the charset in its header, or as UTF-8 if there is none."""
    match = CHARSET.search(content)
    charset = match[1].decode() if match else "utf-8"
    if charset == UNKNOWN_CHARSET:
        charset = "utf-8"
    try:
        return content.decode("utf-8-sig" if charset.lower() in ("utf-8", "utf8") else charset)
    except (LookupError, UnicodeError) as error:
        raise DataError(
            f"`{path}` cannot be read as {charset} ({error}); convert it, for example with msgconv."
        ) from None


def _segments(messages: Iterator[Message], path: Path, tgt: str) -> Iterator[Segment]:
    plurals: int | None = None
    other = ""  # the fault of a catalogue in another language, or ""
    for message in messages:
        place = f"`{path}`, line {message.line}" if message.line else f"`{path}`"
        singular, plural = message.texts["msgid"], message.texts.get("msgid_plural")
        longest, forms = max(map(len, message.texts.values())), message.forms
        if longest > LONGEST:
            raise DataError(f"{place}: {longest:,} characters, too many for a message; repair it.")
        if not singular:
            if not message.texts.get("msgctxt"):  # only the entry without a context is the header
                header = PLURALS.search(forms.get(0, ""))
                plurals = plurals if header is None else int(header[1])
                language = LANGUAGE.search(forms.get(0, ""))
                if language is not None and not is_language(language[1], tgt):
                    other = f"in {language[1]}, not {tgt}"
            continue
        fault = other or ("fuzzy" if message.fuzzy else "")
        if plural is None or not any(forms.values()):
            yield Segment(singular, forms.get(0, ""), path.name, fault)
            continue
        if sorted(forms) != list(range(len(forms))) or (plurals or len(forms)) != len(forms):
            raise DataError(
                f"{place}: plural forms {sorted(forms)} have gaps, or are not as many as the "
                "header's nplurals; repair it, `msgfmt --check` shows where."
            )
        if len(forms) == 2:  # with more forms, no form is only for the singular
            yield Segment(singular, forms[0], path.name, fault)
        yield Segment(plural, forms[max(forms)], path.name, fault)


# ---- .po -----------------------------------------------------------------------------------------


def _po_messages(text: str, path: Path) -> Iterator[Message]:
    message, keyword = Message(), ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            if keyword.startswith("msgstr"):
                yield _complete(message, path)
                message, keyword = Message(), ""
            if line.startswith("#,") and "fuzzy" in line:
                message.fuzzy = True
            elif line.startswith("#~"):  # an obsolete message, to which the marks before it belong
                message.fuzzy = False
            continue
        match = KEYWORD.fullmatch(line)
        if match is None:
            if not line.startswith('"') or not keyword:
                raise DataError(f"`{path}`, line {number}: not gettext's syntax; repair it.")
            message.texts[keyword] += _unquoted(line, path, number)
            continue
        if match[1] in ("msgid", "msgctxt") and keyword.startswith("msgstr"):
            yield _complete(message, path)
            message = Message()
        message.line = message.line or number
        keyword = match[1]
        if keyword in message.texts:
            raise DataError(
                f"`{path}`, line {number}: a second `{keyword}` in an entry; repair it."
            )
        message.texts[keyword] = _unquoted(match[2], path, number)
    if keyword:
        yield _complete(message, path)


def _complete(message: Message, path: Path) -> Message:
    if "msgid" not in message.texts or not message.forms:
        missing = "msgstr" if "msgid" in message.texts else "msgid"
        raise DataError(f"`{path}`, line {message.line}: an entry without `{missing}`; repair it.")
    return message


def _unquoted(text: str, path: Path, number: int) -> str:
    body = text[1:-1]
    if len(text) < 2 or not text.endswith('"') or re.search(r'(?<!\\)(?:\\\\)*"', body):
        raise DataError(f"`{path}`, line {number}: quotation marks do not close; repair it.")
    return ESCAPE.sub(_unescaped, body)


def _unescaped(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 8))
    return chr(int(match[2], 16)) if match[2] else CONTROLS.get(match[3], match[3])


# ---- .mo -----------------------------------------------------------------------------------------


def _mo_messages(content: bytes, path: Path) -> Iterator[Message]:
    damaged = DataError(f"`{path}` is damaged or not a .mo file; compile it again with msgfmt.")
    order = next((o for o in "<>" if content[:4] == struct.pack(f"{o}I", MAGIC)), None)
    if order is None or len(content) < 20:
        raise damaged
    count, originals, translations = struct.unpack_from(f"{order}8x3I", content)
    if max(originals, translations) + 8 * count > len(content):
        raise damaged
    charset = "utf-8"
    if count:  # the header is the translation of the first message
        length, start = struct.unpack_from(f"{order}2I", content, translations)
        if match := CHARSET.search(content[start : start + length]):
            charset = match[1].decode()
    for index in range(count):
        sides = []
        for table in (originals, translations):
            length, start = struct.unpack_from(f"{order}2I", content, table + 8 * index)
            if start + length > len(content):
                raise damaged
            try:
                sides.append(content[start : start + length].decode(charset))
            except (UnicodeError, LookupError):
                raise DataError(f"`{path}` has a text that is not {charset}; convert it.") from None
        context, _, identity = sides[0].rpartition("\x04")
        singular, *plural = identity.split("\0")
        texts = {"msgid": singular, "msgctxt": context}
        if plural:
            texts["msgid_plural"] = plural[0]
        forms = enumerate(sides[1].split("\0") if plural else sides[1:])
        yield Message(texts=texts | {f"msgstr[{number}]": text for number, text in forms})
