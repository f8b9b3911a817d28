"""Rules that decide which sentence pairs are left out of a corpus.

A rule, ``NAME`` or ``NAME=VALUES`` on the command line, is a function that takes the two languages
and the values, which have the form in :data:`RULES`, and returns a check. A check is a function
that takes a pair of cleaned sentences, and returns the reason to leave it out, or None. Pairs are
counted by reason, so a reason names no details.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence

from fairseq_ext.text.bleu_tokenizers import HAN, INDIC, KANA, SPACELESS
from fairseq_ext.text.cleaning import Spaced
from fairseq_ext.text.languages import short_code
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import ConfigError, wrong_value

Check = Callable[[str, str], "str | None"]
Rule = Callable[[tuple[str, str], str], Check]

LETTERS = Spaced("NPSZC")

WORDS = re.compile(f"[{HAN}]{{1,2}}|[{KANA}]{{1,3}}|[{INDIC}]{{1,4}}|[^\\s{HAN}{KANA}{INDIC}]+")
"""A word, or as many letters of a script without spaces as a word has on average."""


def count_words(text: str) -> int:
    """Count the words of a cleaned sentence; estimate their number in scripts without spaces."""
    return len(WORDS.findall(text)) if SPACELESS.search(text) else text.count(" ") + 1


def empty(source: str, target: str) -> str | None:
    """Return a reason to drop the pair if a side is empty, else None."""
    return None if source and target else "empty side"


def length(languages: tuple[str, str], values: str) -> Check:
    """Build the check ``length=MIN:MAX``: each side has MIN to MAX words."""
    min_words, max_words = map(int, values.split(":"))
    if min_words > max_words:
        raise wrong_value("--rule length", "MIN:MAX with MIN at most MAX", values)

    def check(source: str, target: str) -> str | None:
        counts = count_words(source), count_words(target)
        if min(counts) < min_words:
            return f"fewer than {min_words} words"
        return f"more than {max_words} words" if max(counts) > max_words else None

    return check


def ratio(languages: tuple[str, str], values: str) -> Check:
    """Build the check ``ratio=R``: no side has more than R times as many words as the other."""
    max_ratio = float(values)

    def check(source: str, target: str) -> str | None:
        counts = count_words(source), count_words(target)
        if max(counts) > max_ratio * min(counts):
            return f"lengths differ more than {max_ratio:g}-fold"
        return None

    return check


def letters(languages: tuple[str, str], values: str) -> Check:
    """Build the check ``letters=SHARE``: at least this share of each side's characters are letters.

    Spaces are not counted. Combining marks, such as vowels of Hindi, count as letters.
    """
    min_share = float(values)

    def has_few_letters(text: str) -> bool:
        signs = text.replace(" ", "")
        return len(signs) - signs.translate(LETTERS).count(" ") < min_share * len(signs)

    def check(source: str, target: str) -> str | None:
        few = has_few_letters(source) or has_few_letters(target)
        return f"less than {min_share:g} letters" if few else None

    return check


def token(languages: tuple[str, str], values: str) -> Check:
    """Build the check ``token=N``: no word has more than N characters, as in Moses."""

    def check(source: str, target: str) -> str | None:
        longest = max(map(len, f"{source} {target}".split(" ")))
        return f"token of more than {values} characters" if longest > int(values) else None

    return check


def different(languages: tuple[str, str], values: str) -> Check:
    """Build the check ``different``: the two sides differ."""
    return lambda source, target: "both sides are the same" if source == target else None


def language(languages: tuple[str, str], values: str) -> Check:
    """Build the check ``language`` or ``language=CODE:CODE``: each side is in its language.

    The codes are ISO 639-1, of source and target; by default they come from ``--src`` and
    ``--tgt``. The library py3langid chooses between the two languages. With
    ``language=CODE:CODE:OTHER…``, it chooses among more.
    """
    extras.need("py3langid")
    codes = values.split(":") if values else [*map(short_code, languages)]
    if codes[0] == codes[1]:
        raise wrong_value("--rule language", "two different languages first", values)
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    try:
        model.set_languages(codes)
    except ValueError as error:
        raise ConfigError(
            f"`--rule language`: {str(error).rstrip('.')}; give ISO 639-1 codes, as in "
            "language=de:en."
        ) from None

    def check(source: str, target: str) -> str | None:
        if model.classify(source)[0] != codes[0]:
            return f"source is not {codes[0]}"
        return None if model.classify(target)[0] == codes[1] else f"target is not {codes[1]}"

    return check


RULES: dict[str, tuple[Rule, str, str]] = {
    "different": (different, "", "given without a value"),
    "language": (language, r"|[\w-]+(:[\w-]+)+", "two languages or more, such as de:en:fr"),
    "length": (length, r"[1-9]\d{0,8}:[1-9]\d{0,8}", "MIN:MAX in words, such as 1:100"),
    "letters": (letters, r"0*\.\d+|0|1(\.0*)?", "a share from 0 to 1, such as 0.5"),
    "ratio": (ratio, r"[1-9]\d*(\.\d+)?", "a number of at least 1, such as 3"),
    "token": (token, r"[1-9]\d{0,8}", "a number of characters, such as 1000"),
}
"""The rules, each with the form of its values, as regular expression and in words."""


@functools.lru_cache
def checks(specifications: Sequence[str], languages: tuple[str, str]) -> tuple[Check, ...]:
    """Return the checks of the ``--rule`` options, in order, after the check for empty sides.

    Raise ConfigError if a rule does not exist or has wrong values.
    """
    pair_checks: list[Check] = [empty]
    for specification in specifications:
        name, _, values = specification.partition("=")
        if name not in RULES:
            raise ConfigError(f"`--rule {name}` is not known; there are {', '.join(RULES)}.")
        rule, form, wish = RULES[name]
        if not re.fullmatch(form, values):
            raise wrong_value(f"--rule {name}", wish, values)
        pair_checks.append(rule(languages, values))
    return tuple(pair_checks)


def why_left_out(source: str, target: str, pair_checks: Iterable[Check]) -> str | None:
    """Return the reason of the first check that leaves a pair out, or None if all keep it."""
    return next((reason for check in pair_checks if (reason := check(source, target))), None)
