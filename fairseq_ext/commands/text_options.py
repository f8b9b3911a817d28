"""Options for the steps between text and tokens, for the commands that translate.

The file ``text.json`` beside a model or its data lists the steps by which the training text became
tokens, such as tokenization and lower-casing. Each option replaces one of these steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options, option, specified

if TYPE_CHECKING:
    from fairseq_ext.decoding.stream import TextCodec

TEXT_FLAGS = ("normalize", "tokenize", "escape", "aggressive", "lowercase")


@dataclass(frozen=True)
class TextOptions:
    """Options for the steps between text and tokens; None leaves a step to ``text.json``."""

    normalize: bool | None = option(None, "normalize punctuation first, as Moses does")
    tokenize: bool | None = option(None, "split into Moses tokens, and detokenize the translation")
    escape: bool | None = option(None, "write XML entities in tokens, as Moses does by default")
    aggressive: bool | None = option(None, "split words at hyphens, which become the token @-@")
    lowercase: bool | None = option(None, "lower-case the source")
    keep_tokens: bool = option(False, "leave the translation as tokens")
    bpe_codes: Path | None = option(None, "file of merges from subword-nmt or fastBPE")
    remove_bpe: bool = option(False, "join subword pieces (`@@ `), if the input has them")


def add_text_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "how the training corpus was prepared",
        "Needed only where neither the run nor the data has a text.json, or to override it.",
    )
    add_options(group, TextOptions)


def chosen_codec(
    options: TextOptions, src: str, tgt: str, folders: Iterable[Path], constraints: bool = False
) -> TextCodec:
    """Make the codec, which turns a line of text into tokens and a line of tokens into text.

    The steps are those of the first ``text.json`` in ``folders``, but each of the ``options`` that
    is set replaces a step. With ``constraints``, a line may have target texts after the source,
    separated by tabs, that its translation must contain. Raise ConfigError for ``--keep-tokens`` if
    no step makes Moses tokens.
    """
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.text import pipeline

    saved = pipeline.find_towards(folders, src, tgt)
    overrides = specified(options, TEXT_FLAGS)
    if codes := options.bpe_codes:
        from fairseq_ext.text.subwords import kind_of_merges

        overrides |= {"subwords": kind_of_merges(codes), "files": (codes,)}
    elif options.remove_bpe:
        overrides |= {"subwords": "joined", "files": ()}
    if overrides.get("tokenize") is False:
        overrides = {"escape": False, "aggressive": False, **overrides}
    steps = replace(saved or pipeline.Pipeline(src, tgt), **overrides)
    if saved is not None and steps != saved:
        print(
            f"options replace steps of text.json ({saved.describe()}): {steps.describe()}",
            file=sys.stderr,
        )
    if options.keep_tokens and not steps.tokenize:
        raise ConfigError("`--keep-tokens` goes with `--tokenize`, which is missing.")
    decode = steps.pieces.decode if options.keep_tokens else steps.decoder()
    codec = TextCodec(steps.encoder(), decode)
    return codec.with_constraints(steps.encoder(tgt)) if constraints else codec
