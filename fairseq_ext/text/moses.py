"""Normalize punctuation, tokenize and detokenize by the rules of Moses' scripts.

The tokenizer and the detokenizer are our own, because the library sacremoses lacks the rules of
several languages. Only its lists of abbreviations are used. In every language, the tokenizer and
the detokenizer return exactly what ``tokenizer.perl`` and ``detokenizer.perl`` of
moses-smt/mosesdecoder print. There are three exceptions, because the scripts would break the text:

- A mark, joiner, skin tone or variation selector stays with the character that it belongs to, by
  Unicode's rules for grapheme clusters: Hindi, Tamil, Thai, Burmese and Khmer vowels, Yoruba tones,
  Persian words with a non-joiner, families of emoji, flags.
- The word ``DOTMULTI`` stays as it is. The script turns it into full stops, because it uses this
  word itself to stand for successive full stops.
- A line that begins with ``<`` and ends with ``>`` is also detokenized.

Punctuation is normalized by the rules of sacremoses, with three changes that give the output of
``normalize-punctuation.perl``:

- The two rules that move a comma or full stop behind a closing quotation mark apply to every
  language but English and Czech.
- The rule for the full stop also applies at the end of a line.
- Only ASCII digits count as digits.
"""

import functools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import zip_longest
from types import ModuleType

import regex

from fairseq_ext.text.languages import short_code

SACREMOSES = "sacremoses"


@contextmanager
def _without_package() -> Iterator[None]:
    """Let two modules of sacremoses be imported without running the package's ``__init__``.

    This saves the 0.4 seconds that libraries and regular expressions of ``__init__`` take.
    """
    spec = None if SACREMOSES in sys.modules else find_spec(SACREMOSES)
    if spec is None:  # already imported, or not installed: then the import will fail
        yield
        return
    stand_in = ModuleType(SACREMOSES)
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[SACREMOSES] = stand_in
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == SACREMOSES]:
            del sys.modules[name]


with _without_package():
    from sacremoses.corpus import NonbreakingPrefixes
    from sacremoses.normalize import MosesPunctNormalizer

GROUP = re.compile(r"(?<!\\)\((?:\\.|\[[^]]*\]|[^()\\])*\)")  # a group without groups inside
UNCERTAIN = re.compile(r"(?<!\\)[|?*^$.\[\]{}()]|\\[^\W_]")  # syntax that can match various texts

TETUM = "tdt"
INSIDE_WORDS = {"fi": ":", "sv": ":", TETUM: "'"}
"""Signs that are part of a word before a small letter, as in Finnish ``EU:n``."""
LETTERS = {"ca": "·"}  # signs that count as letters
MISSING = {TETUM: ("Nu #NUMERIC_ONLY#",)}
"""Abbreviations of the scripts that the library lacks."""

LETTER = r"[\p{Alphabetic}\p{M}\u200c\u200d]"  # a mark is part of its letter
NO_LETTER = r"[^\p{Alphabetic}\p{M}\u200c\u200d]"
COMMAS = (
    (regex.compile(r"([^\p{N}]),"), r"\1 , "),
    (regex.compile(r",([^\p{N}])"), r" , \1"),
    (regex.compile(r"(\p{N}),$"), r"\1 ,"),
)
APART = (f"({NO_LETTER})'({NO_LETTER})", r"\1 ' \2")
BEFORE = (f"({NO_LETTER})'({LETTER})", r"\1 ' \2")
BEHIND = (f"({LETTER})'({NO_LETTER})", r"\1 ' \2")
APOSTROPHES: dict[str, tuple[tuple[str, str], ...]] = {
    "en": (
        APART,
        (rf"([^\p{{Alphabetic}}\p{{M}}\u200c\u200d\p{{N}}])'({LETTER})", r"\1 ' \2"),
        BEHIND,
        (f"({LETTER})'({LETTER})", r"\1 '\2"),
        (r"(\p{N})'s", r"\1 's"),
    ),
    # Here an apostrophe ends a word: `l' homme`.
    **dict.fromkeys(
        ("fr", "it", "ga", "ca"), (APART, BEFORE, BEHIND, (f"({LETTER})'({LETTER})", r"\1' \2"))
    ),
    # Here an apostrophe between letters is a letter.
    **dict.fromkeys(("so", TETUM), (APART, BEFORE, BEHIND)),
}
HYPHEN = regex.compile(r"([\p{Alnum}\p{M}])-(?=\p{Alnum})")
DOTS = regex.compile(r"\.{2,}")
DOT = "\0"  # stands for each of several full stops in a row; no line has this character
LAST_QUOTE = regex.compile(r"\.' ?$")
ESCAPES = {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;"}
ESCAPES |= {'"': "&quot;", "[": "&#91;", "]": "&#93;"}
UNESCAPES = {"&bar;": "|", "&bra;": "[", "&ket;": "]"}
UNESCAPES |= {ESCAPES[sign]: sign for sign in reversed(ESCAPES)}  # `&amp;` must be last


def required_text(pattern: str, replacement: str) -> str:
    """Return a string that a text must contain for a rule to change it; "" if none is known.

    Searching for the string is faster than trying the rule. If the rule replaces ``x+`` by ``x``,
    the string is ``xx``, because a single ``x`` stays as it is. For other rules, the string is a
    character that every match of the regex ``pattern`` contains. It is taken from the part of the
    regex outside its groups. The result is "" if this part has optional characters or alternatives.
    """
    if pattern == f"{replacement}+":
        return 2 * replacement
    outside = GROUP.sub("", pattern).replace(r"\r", "\r")
    if UNCERTAIN.search(outside):
        return ""
    letters = outside.replace("\\", "").replace("+", "")
    return max(letters, key=lambda c: (not c.isspace(), ord(c)), default="")


def rules_of(language: str) -> list[tuple[str, str]]:
    """Return the rules ``(pattern, replacement)`` of ``normalize-punctuation.perl``, in order."""
    library = MosesPunctNormalizer(language, perl_parity=True)
    rules = library.substitutions
    if language in ("en", "cs", "cz", "de", "es", "fr"):
        return rules
    numbers = len(library.OTHER)  # the rules for numbers are the last ones
    return [*rules[:-numbers], *library.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA, *rules[-numbers:]]


class Tokenizer:
    """A tokenizer that splits like ``tokenizer.perl -l language``."""

    def __init__(self, language: str) -> None:
        sign = self._sign = INSIDE_WORDS.get(language, "")
        # Full stops, apostrophes, commas and hyphens have rules of their own.
        kept = r"\p{Alnum}\p{M}\u200c\u200d\s.'`,\-" + sign + LETTERS.get(language, "")
        self._single = regex.compile(f"([^{kept}])")
        self._cluster = regex.compile(rf"((?=[^{kept}])\X)")
        self._sign_alone = regex.compile(rf"{sign}(?=$|\P{{Ll}})") if sign else None
        self._apostrophes = [
            (regex.compile(pattern), replacement)
            for pattern, replacement in APOSTROPHES.get(language, (("'", " ' "),))
        ]
        self._abbreviations: dict[str, bool] = {}  # True for those only used before a number
        for line in (*NonbreakingPrefixes().words(language), *MISSING.get(language, ())):
            word, numeric, _ = line.partition("#NUMERIC_ONLY#")
            self._abbreviations[word.strip()] = bool(numeric)

    def tokenize(self, text: str, *, aggressive: bool = False, escape: bool = True) -> str:
        """Return the tokens of a line, separated by spaces.

        ``aggressive`` splits words at hyphens, which become ``@-@``; ``escape`` writes ``&``,
        ``<``, quotes and brackets as XML entities.
        """
        text = " ".join(text.split())
        if not text.isprintable():
            text = regex.sub(r"[\0-\x1f]", "", text)
        text = (self._single if text.isascii() else self._cluster).sub(r" \1 ", text)
        if self._sign_alone is not None and self._sign in text:
            text = self._sign_alone.sub(f" {self._sign} ", text)
        if aggressive:
            text = HYPHEN.sub(r"\1 @-@ ", text)
        if ".." in text:
            text = DOTS.sub(lambda run: f" {len(run[0]) * DOT} ", text).rstrip(" ")
        if "," in text:
            for pattern, replacement in COMMAS:
                text = pattern.sub(replacement, text)
        if "'" in text:
            for pattern, replacement in self._apostrophes:
                text = pattern.sub(replacement, text)
        text = " ".join(self._full_stops_apart(text.split(" ")))
        text = " ".join(LAST_QUOTE.sub(" . '", text).split()).replace(DOT, ".")
        if escape:
            for sign, entity in ESCAPES.items():  # faster than str.translate
                text = text.replace(sign, entity)
        return text

    def _full_stops_apart(self, words: list[str]) -> Iterator[str]:
        """Yield the words; a full stop at a word's end is split off, except in abbreviations."""
        while words and not words[-1]:
            words.pop()
        for word, following in zip_longest(words, words[1:]):
            before = word[:-1]
            if word.endswith(".") and before and not self._is_abbreviation(before, following):
                yield before
                yield "."
            else:
                yield word

    def _is_abbreviation(self, word: str, following: str | None) -> bool:
        """Return whether ``word``, before a full stop and ``following``, is an abbreviation."""
        if following is None:
            return False
        if "." in word and regex.search(r"\p{Alphabetic}", word):
            return True
        numeric = self._abbreviations.get(word)
        if numeric is False or regex.match(r"\p{Lowercase}", following):
            return True
        return numeric is True and following[:1] in tuple("0123456789")


def detokenizer(language: str) -> Callable[[str], str]:
    """Return a function that detokenizes a line like ``detokenizer.perl -l language``."""
    code = short_code(language)

    def detokenize(tokens: str) -> str:
        text = f" {' '.join(tokens.split())} ".replace(" @-@ ", "-")
        if "&" in text:
            for entity, sign in UNESCAPES.items():
                text = text.replace(entity, sign)
        return " ".join("".join(_spaced(text.split(), code)).split())

    return detokenize


OPENING = regex.compile(r"[\p{Sc}(\[{¿¡]+")
CLOSING = regex.compile(r"[,.?!:;\\%}\])]+")
SPACED_IN_FRENCH = tuple("?!:;\\%")
QUOTES = regex.compile("['\"„“`]+")
CJK = regex.compile(
    "[\u1100-\u11ff\u2e80-\ua4cf\ua840-\ua87f\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f"
    "\uff65-\uffdc\U00020000-\U0002ffff]"
)
CASE_OF_FINNISH = (  # compiled and cached by regex at the first Finnish text
    "([NnAaÄä]|[Ss]s[aä]|[Ss]t[aä]|[Hh][uyaäö]n|[UuYyAaÄäÖö]n|[Ss]een|[Ll]l[aä]|[Ll]t[aä]|[Ll]le"
    "|[Kk]s[ie]|[Tt]ta|[Ii]ne)(ni|si|mme|nne|nsa)?(k[oö]|h[aä]n|p[aä]|kaan|kään|kin)?"
)


def _spaced(words: list[str], language: str) -> Iterator[str]:
    """Yield the tokens of a line as text, with a space before each word that needs one."""
    space = " "
    quotes: defaultdict[str, int] = defaultdict(int)  # odd while a quotation of that kind is open
    joined = False  # whether this word has been yielded already, with the word before it
    for place, word in enumerate(words):
        before, after = words[place - 1] if place else "", words[place + 1 : place + 3]
        if joined:  # a dash that was joined to the Czech word before it
            joined = False
            continue
        attached = opens = False
        if CJK.match(word):
            attached = language != "ko" and bool(before) and bool(CJK.match(before[-1]))
        elif OPENING.fullmatch(word):
            opens = True
        elif CLOSING.fullmatch(word):
            attached = not (language == "fr" and word in SPACED_IN_FRENCH)
            space = " "  # French has a space even after an opening mark
        elif _is_ending(words[max(0, place - 2) : place + 1], language):
            attached = True
        elif language in ("fr", "it") and after and _is_elided(word, after[0]):
            opens = True
        elif language == "cs" and place < len(words) - 3 and _is_dashed(word, after):
            word, opens, joined = word + after[0], True, True
        elif QUOTES.fullmatch(word):
            kind = '"' if set(word) <= set("„“”") else word
            if language == "cs" and word in "„“":
                quotes[kind] = "„“".index(word)
            possessive = language == "en" and word == "'" and before.endswith("s")
            attached = quotes[kind] % 2 == 1 or possessive
            opens = not attached
            quotes[kind] += quotes[kind] % 2 == 1 or not possessive
        elif language == "fi" and before.endswith(":") and regex.fullmatch(CASE_OF_FINNISH, word):
            word, attached = word.lower(), True
        yield word if attached else space + word
        space = "" if opens else " "


def _is_ending(words: list[str], language: str) -> bool:
    """Return whether the last of one to three ``words`` is written without a space before it.

    This is so for English endings, such as ``'s`` or ``'ll``, and for the decimals of a Czech
    number: the ``5`` of ``3 , 5``.
    """
    *before, word = words
    if language == "en":
        contracted = regex.match(r"'\p{Alphabetic}", word)
        return bool(contracted and regex.search(r"[\p{Alnum}\p{M}]$", "".join(before[-1:])))
    number = language == "cs" and len(before) == 2 and before[1] in (".", ",")
    return number and all(re.fullmatch("[0-9]+", digits) for digits in (before[0], word))


def _is_elided(word: str, following: str) -> bool:
    """Return whether a word is elided before ``following``, like ``l'`` before ``homme``."""
    pattern = r"\p{Alphabetic}' \p{Alphabetic}"
    return bool(regex.search(pattern, f"{word} {following}")) and word.endswith("'")


def _is_dashed(word: str, following: list[str]) -> bool:
    """Return whether a dash, ``following[0]``, joins a Czech word to the next, as in ``e-mail``."""
    if len(following) < 2 or following[0] not in ("-", "–"):
        return False
    ending = bool(re.fullmatch("li|mail.*", following[1], re.IGNORECASE))
    return ending and bool(regex.search(r"\p{Alphabetic}$", word))


# Normalizers and tokenizers are cached: building one takes as long as using it for many lines.
@functools.lru_cache
def normalizer(language: str) -> Callable[[str], str]:
    """Return a function that normalizes a line like ``normalize-punctuation.perl -l language``."""
    # The script reads bytes, so it knows only the digits of ASCII.
    code = short_code(language)
    rules = [(re.compile(p, re.ASCII), required_text(p, new), new) for p, new in rules_of(code)]

    def normalize(text: str) -> str:
        text += "\n"  # the script sees the line feed
        for pattern, need, replacement in rules:
            if need in text:
                text = pattern.sub(replacement, text)
        return text.strip()

    return normalize


@functools.lru_cache
def tokenizer(language: str) -> Tokenizer:
    """Return the :class:`Tokenizer` for a language code, which may have a script or region."""
    return Tokenizer(short_code(language))
