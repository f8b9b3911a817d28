"""Moses' scripts through sacremoses: faster, and equal to them where the library differs.

Three rules are mended to those of the scripts (moses-smt/mosesdecoder, 2018 and later):
``normalize-punctuation.perl`` sees the line's end, so that a full stop before a closing quotation
mark moves behind it there too, and does so in every language but English and Czech;
``tokenizer.perl`` splits the full stop of the last word, abbreviation or not.

Moses' rules are some seventy regular expressions, tried one after the other on every line, and most
of them need a character that most lines do not have. Here each is tried only on lines that have
its character, which is looked for first; the expressions and what they do are the library's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from fairseq_ext.text.sacremoses_import import (
    MosesDetokenizer,
    MosesPunctNormalizer,
    MosesTokenizer,
)

GROUP = re.compile(r"(?<!\\)\((?:\\.|\[[^]]*\]|[^()\\])*\)")  # a group without groups inside
UNCERTAIN = re.compile(r"(?<!\\)[|?*^$.\[\]{}()]|\\[^\W_]")  # may match other letters


@dataclass(frozen=True)
class Guarded:
    """A regular expression that is tried only on texts with a string that it needs.

    Attributes:
        pattern: the expression.
        needed: without this string in a text there is no match; empty if that is not known.
    """

    pattern: re.Pattern[str]
    needed: str

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Replace all matches, like :meth:`re.Pattern.sub`."""
        return self.pattern.sub(replacement, text) if self.needed in text else text


def needed(pattern: str, replacement: str) -> str:
    """Return a substring that a text must have for ``pattern`` to match, or "".

    That is one of the characters outside all groups, where the pattern has neither alternatives
    nor anything optional there.
    """
    if pattern == f"{replacement}+":  # a single one would be replaced by itself
        return 2 * replacement
    outside = GROUP.sub("", pattern).replace(r"\r", "\r")
    if UNCERTAIN.search(outside):
        return ""
    letters = outside.replace("\\", "").replace("+", "")
    return max(letters, key=lambda c: (not c.isspace(), ord(c)), default="")


def rules_of(language: str) -> list[tuple[str, str]]:
    """Return the expressions and replacements of ``normalize-punctuation.perl``, in order."""
    library = MosesPunctNormalizer(language, perl_parity=True)
    rules = library.substitutions
    if language in ("en", "cs", "cz", "de", "es", "fr"):
        return rules
    numbers = len(library.OTHER)  # the last group
    return [*rules[:-numbers], *library.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA, *rules[-numbers:]]


class Normalizer:
    """The normalizer ``normalize-punctuation.perl -l language``."""

    def __init__(self, language: str) -> None:
        rules = rules_of(language)
        self._rules = [(re.compile(p), needed(p, new), new) for p, new in rules]

    def normalize(self, text: str) -> str:
        """Normalize a line as the script does, which sees the line feed at its end."""
        text += "\n"
        for pattern, need, replacement in self._rules:
            if need in text:
                text = pattern.sub(replacement, text)
        return text.strip()


class Tokenizer(MosesTokenizer):
    """The tokenizer ``tokenizer.perl -l language``; ``tokenize`` is inherited."""

    def __init__(self, language: str) -> None:
        super().__init__(lang=language)
        self.NONBREAKING_PREFIXES = dict.fromkeys(self.NONBREAKING_PREFIXES)  # looked up in it
        self.NUMERIC_ONLY_PREFIXES = dict.fromkeys(self.NUMERIC_ONLY_PREFIXES)
        for name in ("COMMA_SEPARATE_1", "COMMA_SEPARATE_2", "COMMA_SEPARATE_3"):
            setattr(self, name, _guarded(getattr(self, name), ","))
        for name in ("NON_SPECIFIC_APOSTROPHE", "TRAILING_DOT_APOSTROPHE"):
            setattr(self, name, _guarded(getattr(self, name), "'"))
        for name in ("ENGLISH_SPECIFIC_APOSTROPHE", "FR_IT_SPECIFIC_APOSTROPHE"):
            setattr(self, name, [_guarded(rule, "'") for rule in getattr(self, name)])
        self.MULTIDOT_RUN = Guarded(self.MULTIDOT_RUN, "..")
        self.MULTIDOT_MARKER = Guarded(self.MULTIDOT_MARKER, "DOTMULTI")

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        """Split the full stop from words that end in one, unless they are abbreviations."""
        words = text.split()
        if "." not in text:
            return " ".join(words)
        if len(words[-1]) > 1 and words[-1].endswith("."):
            words[-1:] = [words[-1][:-1], "."]
        return super().handles_nonbreaking_prefixes(" ".join(words))


def _guarded(rule: tuple[re.Pattern[str], str], need: str) -> tuple[Guarded, str]:
    return Guarded(rule[0], need), rule[1]


def base(language: str) -> str:
    """Strip the region, for which Moses has no rules, from a language: ``pt-BR`` to ``pt``."""
    return re.split("[-_]", language, maxsplit=1)[0]


# Each is built once in every process: building them takes longer than tokenizing hundreds of lines.
@functools.lru_cache
def normalizer(language: str) -> Normalizer:
    """Return the normalizer of a language."""
    return Normalizer(base(language))


@functools.lru_cache
def tokenizer(language: str) -> Tokenizer:
    """Return the tokenizer of a language."""
    return Tokenizer(base(language))


@functools.lru_cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(lang=base(language))


def detokenize(tokens: str, language: str) -> str:
    """Detokenize Moses' tokens, and undo their XML escapes."""
    return _detokenizer(language).detokenize(tokens.split())
