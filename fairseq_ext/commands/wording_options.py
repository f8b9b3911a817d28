"""Arguments that say how a training corpus was prepared: of ``translate`` and ``demo``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_ext.translating.wording import Wording


def add_wording(parser: argparse.ArgumentParser) -> None:
    """Add the arguments, as a group of their own."""
    option = parser.add_argument_group("how the training corpus was prepared").add_argument
    option("--normalize", action="store_true", help="Moses' normalisation of punctuation first")
    option("--tokenize", action="store_true", help="Moses tokens before, and undone after")
    option("--escape", action="store_true", help="with XML entities in tokens, Moses' default")
    option("--aggressive", action="store_true", help="with hyphens split off as @-@")
    option("--keep-tokens", action="store_true", help="leave the translation as tokens")
    option("--lowercase", action="store_true", help="lower-case the source")
    option("--bpe-codes", type=Path, metavar="FILE", help="subword-nmt's merges")
    option("--remove-bpe", action="store_true", help="join pieces (`@@ `) where the input has them")


def chosen_wording(
    args: argparse.Namespace, src: str, tgt: str, codes: Path | None = None
) -> Wording:
    """What the arguments say, for these languages.

    Args:
        args: with those of :func:`add_wording`.
        src, tgt: languages.
        codes: instead of ``--bpe-codes``.
    """
    from fairseq_ext.translating.wording import Wording

    return Wording(
        src,
        tgt,
        normalize=args.normalize,
        lowercase=args.lowercase,
        tokenize=args.tokenize,
        escape=args.escape,
        aggressive=args.aggressive,
        codes=codes or args.bpe_codes,
        join=args.remove_bpe,
        keep_tokens=args.keep_tokens,
    )
