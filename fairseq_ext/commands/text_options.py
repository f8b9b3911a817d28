"""Arguments that say how text becomes tokens: of ``translate`` and ``demo``.

What they leave open is taken from the ``text.json`` of the run or the data.
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
    from fairseq_ext.text.subwords import Step

TEXT_FLAGS = ("normalize", "tokenize", "escape", "aggressive", "lowercase")


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Preparation of text as the command line asks for it; None leaves a step to ``text.json``."""

    normalize: bool | None = option(None, "Moses' normalization of punctuation first")
    tokenize: bool | None = option(None, "Moses tokens before, and undone after")
    escape: bool | None = option(None, "with XML entities in tokens, Moses' default")
    aggressive: bool | None = option(None, "with hyphens split off as @-@")
    lowercase: bool | None = option(None, "lower-case the source")
    keep_tokens: bool = option(False, "leave the translation as tokens")
    bpe_codes: Path | None = option(None, "merges of subword-nmt or fastBPE", metavar="FILE")
    remove_bpe: bool = option(False, "join pieces (`@@ `) where the input has them")

    def of_job(self) -> dict[str, bool]:
        """The switches that were given, by name; ``--no-tokenize`` is one too."""
        values = {name: getattr(self, name) for name in TEXT_FLAGS}
        values |= {name: True for name in ("keep_tokens", "remove_bpe") if getattr(self, name)}
        return {name: value for name, value in values.items() if value is not None}


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments, as a group of their own."""
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
    """The functions between text and tokens.

    Args:
        options: the command's.
        src, tgt: languages.
        folders: where a ``text.json`` may be; the first one counts.
        codes: instead of ``--bpe-codes``.
        constraints: text of the target language follows a line behind tabs.

    Raises:
        ConfigError: options that need another one.
        DataError: the codes, or a ``text.json``, cannot be used.
    """
    from fairseq_ext.decoding.stream import TextCodec
    from fairseq_ext.text import pipeline

    saved = pipeline.find(folders)
    saved = saved and saved.towards(src, tgt)
    steps = _overridden(options, saved, pipeline.Pipeline(src, tgt), codes or options.bpe_codes)
    if options.keep_tokens and not steps.tokenize:
        raise ConfigError("`--keep-tokens` goes with `--tokenize`, which is missing.")
    encode = steps.encoder()
    if constraints:
        encode = _with_constraints(encode, steps.encoder(tgt))
    return TextCodec(encode, steps.joiner() if options.keep_tokens else steps.decoder())


def _with_constraints(encode_source: Step, encode_target: Step) -> Step:
    """Make the function from a line, with text of the target behind tabs, to tokens and tabs."""

    def encode(line: str) -> str:
        text, *constraints = line.split("\t")
        tokens = encode_source(text)
        return "\t".join([tokens, *filter(None, map(encode_target, constraints))]) if tokens else ""

    return encode


def _overridden(
    options: TextOptions, saved: Pipeline | None, plain: Pipeline, codes: Path | None
) -> Pipeline:
    """Replace the saved steps, or the plain ones, by those that options name."""
    overrides: dict[str, Any] = {
        name: value for name in TEXT_FLAGS if (value := getattr(options, name)) is not None
    }
    if codes is not None:
        overrides |= _merges(codes)
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


def _merges(codes: Path) -> dict[str, Any]:
    from fairseq_ext.text import check_merges
    from fairseq_ext.text.subwords import kind_of_merges
    from fairseq_ext.utils.files import require_file

    kind = kind_of_merges(require_file(codes, "file of `--bpe-codes`"))
    if kind == "subword-nmt":
        check_merges(codes, "file of `--bpe-codes`")
    return {"subwords": kind, "files": (codes,)}
