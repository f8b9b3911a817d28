"""Arguments of ``translate`` and ``demo`` that say how text becomes tokens.

The ``text.json`` of the run or the data decides every step that they leave open.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.utils.errors import ConfigError
from fairseq_ext.utils.option_fields import add_options, option

if TYPE_CHECKING:
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.text.pipeline import Pipeline

TEXT_FLAGS = ("normalize", "tokenize", "escape", "aggressive", "lowercase")


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Options for the preparation of text; for None, ``text.json`` decides."""

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
    options: TextOptions,
    src: str,
    tgt: str,
    folders: Iterable[Path],
    codes: Path | None = None,
    constraints: bool = False,
) -> TextCodec:
    """Make the functions that turn text into tokens and back.

    The first ``text.json`` in ``folders`` is used. ``codes`` replaces ``--bpe-codes``. With
    ``constraints``, a line may have target text after the source, separated by tabs.
    """
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.text import pipeline

    saved = pipeline.find_towards(folders, src, tgt)
    steps = _overridden(options, saved, pipeline.Pipeline(src, tgt), codes or options.bpe_codes)
    if options.keep_tokens and not steps.tokenize:
        raise ConfigError("`--keep-tokens` goes with `--tokenize`, which is missing.")
    codec = TextCodec(steps.encoder(), steps.joiner() if options.keep_tokens else steps.decoder())
    return codec.with_constraints(steps.encoder(tgt)) if constraints else codec


def _overridden(
    options: TextOptions, saved: Pipeline | None, plain: Pipeline, codes: Path | None
) -> Pipeline:
    """Change the saved steps, or ``plain`` if there are none, by options and merges ``codes``."""
    overrides: dict[str, Any] = {
        name: value for name in TEXT_FLAGS if (value := getattr(options, name)) is not None
    }
    if codes is not None:
        from fairseq_ext.text.subwords import kind_of_merges

        overrides |= {"subwords": kind_of_merges(codes), "files": (codes,)}
    elif options.remove_bpe:
        overrides |= {"subwords": "joined", "files": ()}
    base = saved or plain
    if overrides.get("tokenize") is False:
        overrides = {"escape": False, "aggressive": False, **overrides}
    steps = dataclasses.replace(base, **overrides)
    if saved is not None and steps != saved:
        print(
            f"options instead of text.json ({saved.describe()}): {steps.describe()}",
            file=sys.stderr,
        )
    return steps
