"""Choose BLEU's tokenizer and the unit of length from the language of a text or its characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fairseq_ext.evaluation.score import load_sacrebleu
from fairseq_ext.text.bleu_tokenizers import (
    BY_CHARACTERS,
    READ,
    USUAL,
    has_wordspaces,
    is_spaceless,
    tokenizer_for,
)
from fairseq_ext.utils.errors import ConfigError, DataError, EnvironmentProblem


def choose_tokenizer(
    requested: str | None, languages: Iterable[str | None], references: Sequence[str]
) -> str:
    """Choose a tokenizer: the requested one, or else by the first language that is not None.

    Raises:
        ConfigError: sacrebleu has no such tokenizer.
        DataError: the language is unknown, and the usual tokenizer cannot be right.
    """
    if requested is not None:
        from sacrebleu.metrics import BLEU

        if requested not in BLEU.TOKENIZERS:
            names = ", ".join(BLEU.TOKENIZERS)
            raise ConfigError(f"`--tokenize` must be one of {names}, but is `{requested}` instead.")
        return requested
    language = next((language for language in languages if language), None)
    tokenizer = tokenizer_for(language)
    if tokenizer == USUAL and has_wordspaces("\n".join(references[:READ])):
        return BY_CHARACTERS
    if tokenizer == USUAL and is_spaceless(references):
        raise DataError(
            "The reference is written without spaces, so that BLEU would take each sentence for "
            "one word; name its language (`-l en-zh`) or a tokenizer (`--tokenize zh` or `char`)."
        )
    return tokenizer


def build_bleu(tokenizer: str = USUAL, **options: Any) -> Any:
    """Build sacrebleu's BLEU.

    Raises:
        EnvironmentProblem: a library or the model of the tokenizer cannot be had.
    """
    sacrebleu = load_sacrebleu()
    try:
        return sacrebleu.BLEU(tokenize=tokenizer, **options)
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise EnvironmentProblem(
            f"`--tokenize {tokenizer}` cannot be used: {reason:.300} `--tokenize char` needs "
            "nothing else."
        ) from error


def count_units(lines: Sequence[str]) -> list[int]:
    """Count the words of each line, or its characters if the text has no spaces."""
    if is_spaceless(lines):
        return [len("".join(line.split())) for line in lines]
    return [len(line.split()) for line in lines]
