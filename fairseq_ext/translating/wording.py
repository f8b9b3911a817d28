"""From text to the tokens that a model was trained on, and back from its tokens to text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_ext import files
from fairseq_ext.errors import ConfigError, DataError
from fairseq_ext.evaluation.outputs import detokenize, remove_bpe

Step = Callable[[str], str]


@dataclass(frozen=True)
class Wording:
    """How the text of the training corpus was prepared, to be done and undone here.

    Attributes:
        src, tgt: languages.
        normalize: Moses' normalisation of the source's punctuation; controls become spaces.
        lowercase: the source, after tokenisation.
        tokenize: Moses tokens of the source; the translation is detokenised.
        escape: ``&``, ``<``, quotes and brackets are XML entities in the tokens.
        aggressive: hyphens within words are tokens, written ``@-@``.
        codes: merges of subword-nmt, or None.
        join: put subword pieces together; always with ``codes``.
        keep_tokens: leave the translation as tokens.
    """

    src: str
    tgt: str
    normalize: bool = False
    lowercase: bool = False
    tokenize: bool = False
    escape: bool = False
    aggressive: bool = False
    codes: Path | None = None
    join: bool = False
    keep_tokens: bool = False

    def encoder(self) -> Step:
        """A function from a line of text to a line of tokens.

        Raises:
            ConfigError: options that need another one.
            DataError: the codes cannot be used.
        """
        if not self.tokenize and (self.escape or self.aggressive or self.keep_tokens):
            option = "escape" if self.escape else "aggressive" if self.aggressive else "keep-tokens"
            raise ConfigError(f"`--{option}` goes with `--tokenize`, which is missing.")
        steps: list[Step] = []
        if self.normalize:
            steps.append(_normaliser(self.src))
        if self.tokenize:
            steps.append(_moses(self.src, escape=self.escape, aggressive=self.aggressive))
        if self.lowercase:
            steps.append(str.lower)
        if self.codes is not None:
            steps.append(_pieces(self.codes))
        return lambda line: _through(steps, line)

    def decode(self, lines: Sequence[str]) -> list[str]:
        """Translations as text."""
        if self.join or self.codes is not None:
            lines = [remove_bpe(line) for line in lines]
        if self.tokenize and not self.keep_tokens:
            return list(detokenize(lines, self.tgt))
        return list(lines)


def _through(steps: Sequence[Step], line: str) -> str:
    for step in steps:
        line = step(line)
    return line


def _normaliser(language: str) -> Step:
    moses = _sacremoses("--normalize").MosesPunctNormalizer(lang=language, perl_parity=True)

    def normalise(line: str) -> str:
        line = moses.normalize(line)
        return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in line)

    return normalise


def _sacremoses(option: str) -> Any:
    try:
        import sacremoses
    except ImportError as error:
        raise ConfigError(
            f"`{option}` needs sacremoses, which is not installed: `pip install sacremoses`."
        ) from error
    return sacremoses


def _moses(language: str, *, escape: bool, aggressive: bool) -> Step:
    moses = _sacremoses("--tokenize").MosesTokenizer(lang=language)
    return lambda line: moses.tokenize(
        line, aggressive_dash_splits=aggressive, return_str=True, escape=escape
    )


def _pieces(codes: Path) -> Step:
    try:
        from subword_nmt.apply_bpe import BPE
    except ImportError as error:
        raise ConfigError(
            "`--bpe-codes` needs subword-nmt, which is not installed: `pip install subword-nmt`."
        ) from error
    files.require_file(codes, "file of `--bpe-codes`")
    try:
        with codes.open(encoding="utf-8") as file:
            return BPE(file).process_line
    except (ValueError, IndexError, SystemExit) as error:
        raise DataError(
            f"`--bpe-codes` must be a file that subword-nmt's `learn-bpe` wrote, but `{codes}` is "
            f"not ({type(error).__name__})."
        ) from error
