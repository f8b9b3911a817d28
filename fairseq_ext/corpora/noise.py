"""Add noise to a test set: typing errors, changed case, or no punctuation."""

import random
import unicodedata
from collections.abc import Iterable, Iterator

from fairseq_ext.corpora.command_lines import NoiseOptions
from fairseq_ext.text.cleaning import lower_case, upper_case
from fairseq_ext.text.reading import lines
from fairseq_ext.utils.errors import ConfigError, wrong_value
from fairseq_ext.utils.files import atomic_write, keep_inputs

SHORTEST = 3  # fewest letters of a word that may get a typing error


def add_noise(
    sentences: Iterable[str], kind: str, share: float = 0.1, seed: int = 1, language: str = ""
) -> Iterator[str]:
    """Add noise of a ``kind`` to each sentence: ``typos``, ``lower``, ``upper`` or ``punctuation``.

    With ``typos``, words of three letters or more get a typing error with probability ``share``,
    drawn by ``seed`` and the sentence's number. ``lower`` and ``upper`` change the case of all
    letters, as in ``language``. ``punctuation`` removes punctuation.
    """
    changes = {
        "lower": lower_case(language),
        "upper": upper_case(language),
        "punctuation": _without_punctuation,
    }
    for number, sentence in enumerate(sentences):
        if kind == "typos":
            yield _with_typing_errors(sentence, share, random.Random(f"{seed} {number}"))
        else:
            yield changes[kind](sentence)


def _with_typing_errors(sentence: str, share: float, draw: random.Random) -> str:
    words = sentence.split(" ")
    return " ".join(
        _mistype(word, draw)
        if sum(map(str.isalpha, word)) >= SHORTEST and draw.random() < share
        else word
        for word in words
    )


def _mistype(word: str, draw: random.Random) -> str:
    """Swap two neighbouring letters of a word, or leave out, double or replace a letter.

    Equal letters are neither swapped nor replaced by each other, so the word always changes.
    """
    places = [i for i, char in enumerate(word) if char.isalpha()]
    place = draw.choice(places)
    before, letter, after = word[:place], word[place], word[place + 1 :]
    error = draw.choice(("swap", "leave out", "double", "replace"))
    others = [other for other in word if other.isalpha() and other != letter]
    if error == "swap" and after[:1].isalpha() and after[0] != letter:
        return before + after[0] + letter + after[1:]
    if error == "leave out":
        return before + after
    if error == "replace" and others:
        return before + draw.choice(others) + after
    return before + 2 * letter + after


def _without_punctuation(sentence: str) -> str:
    letters = (char for char in sentence if not unicodedata.category(char).startswith("P"))
    return " ".join("".join(letters).split())


def run(options: NoiseOptions) -> str:
    """Write a test set with noise; return a line that says how many lines the noise changed."""
    share = 0.1 if options.share is None else options.share
    seed = 1 if options.seed is None else options.seed
    for name in ("share", "seed"):
        if options.kind != "typos" and getattr(options, name) is not None:
            raise ConfigError(f"`--{name}` goes with `--kind typos`; other kinds are not random.")
    if not 0 < share <= 1:
        raise wrong_value("--share", "above 0 and at most 1", share)
    keep_inputs([options.test], [options.out])
    sentences = [line for _, line in lines(options.test)]
    language = options.test.suffix.removeprefix(".")
    noisy = list(add_noise(sentences, options.kind, share, seed, language))
    with atomic_write(options.out) as file:
        file.writelines(f"{line}\n" for line in noisy)
    differing = sum(map(str.__ne__, sentences, noisy))
    return f"{options.out}: {differing:,} of {len(noisy):,} lines differ from {options.test}."
