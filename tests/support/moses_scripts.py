"""sacremoses, with the branches of the Moses scripts that it lacks."""

import functools
import re

from sacremoses import MosesPunctNormalizer, MosesTokenizer


class ScriptTokenizer(MosesTokenizer):
    """`tokenizer.perl`, which always splits the full stop of the last word."""

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        words = text.split()
        if words and (match := re.search(r"^(\S+)\.$", words[-1])):
            before = super().handles_nonbreaking_prefixes(" ".join([*words[:-1], match[1]]))
            return f"{before} ."
        return super().handles_nonbreaking_prefixes(text)


class ScriptNormalizer(MosesPunctNormalizer):
    """`normalize-punctuation.perl`, whose rules see the end of the line."""

    def __init__(self, language: str) -> None:
        quotes_of = language if language in ("en", "cs", "de", "es", "fr") else "de"
        super().__init__(quotes_of, perl_parity=True)
        if quotes_of != language:  # the rules for numbers are not those of German
            self.substitutions = [*self.substitutions[: -len(self.OTHER)], *self.OTHER]

    def normalize(self, text: str) -> str:
        return super().normalize(text + "\n")


@functools.cache
def scripts(language: str) -> tuple[ScriptNormalizer, ScriptTokenizer]:
    return ScriptNormalizer(language), ScriptTokenizer(language)


def normalized(text: str, language: str) -> str:
    return scripts(language)[0].normalize(text)


def tokenized(text: str, language: str, **options: bool) -> str:
    return scripts(language)[1].tokenize(text, return_str=True, **options)
