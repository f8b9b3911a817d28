"""Arguments that say how translations become text: of ``hypotheses``, ``score`` and ``compare``.

What they leave open is taken from the ``text.json`` of the run that the translations are of.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.utils.errors import printable

if TYPE_CHECKING:
    from fairseq_ext.text.generated import Undoing
    from fairseq_ext.text.pipeline import Pipeline


def add_undoing(parser: argparse.ArgumentParser, *, pieces: bool = False) -> None:
    """Add the arguments, as a group of their own.

    Args:
        parser: of a command.
        pieces: add ``--remove-bpe``; without it, pieces are always joined.
    """
    option = parser.add_argument_group(
        "how the training corpus was prepared",
        "Needed only where the run of the translations has no text.json, or to override it.",
    ).add_argument
    if pieces:
        option(
            "--remove-bpe",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="join subword pieces (`@@ `)",
        )
    tokens = parser.add_mutually_exclusive_group()
    tokens.add_argument(
        "--detokenize", metavar="LANG", help="undo Moses tokenization for this language, e.g. de"
    )
    tokens.add_argument(
        "--keep-tokens", action="store_true", help="leave the translations as tokens"
    )


def chosen_undoing(args: argparse.Namespace, generated: Sequence[Path]) -> Undoing:
    """Choose how the translations of outputs that belong together become text.

    Args:
        args: with those of :func:`add_undoing`.
        generated: outputs of fairseq-generate.

    Raises:
        ConfigError: a library is not installed.
        DataError: a ``text.json`` is damaged.
    """
    from fairseq_ext.text import generated as outputs
    from fairseq_ext.text.pipeline import Pipeline

    folder, saved = outputs.find(generated[0]) or (None, None)
    if saved is not None:
        steps = _overridden(args, saved)
        _say(generated[0], _said(folder, saved, steps))
        return outputs.Undoing(steps)
    if named := outputs.named(generated[0]):
        message = "is gone, or is of another run; the options alone say how the translations become"
        _say(generated[0], f"{named} {message} text")
    joined = "joined" if getattr(args, "remove_bpe", True) else "none"
    return outputs.Undoing(_overridden(args, Pipeline("", "", subwords=joined)))


def _overridden(args: argparse.Namespace, steps: Pipeline) -> Pipeline:
    overrides: dict[str, Any] = {}
    join = getattr(args, "remove_bpe", None)
    if join is False or (join and steps.subwords != "subword-nmt"):
        overrides |= {"subwords": "joined" if join else "none", "files": ()}
    if args.detokenize is not None:
        overrides |= {"tokenize": True, "tgt": args.detokenize}
    if args.keep_tokens or join is False:  # pieces are no tokens to detokenize
        overrides |= {"tokenize": False, "escape": False, "aggressive": False}
    return dataclasses.replace(steps, **overrides)


def _say(generated: Path, message: str) -> None:
    """Print one line about a file, escaped as its path may hold any characters."""
    print(printable(f"{generated}: {message}"), file=sys.stderr)


def _said(folder: Path, saved: Pipeline, steps: Pipeline) -> str:
    if steps == saved:
        return f"becomes text as {folder / 'text.json'} says ({saved.describe()})"
    return f"options instead of {folder / 'text.json'} ({saved.describe()}): {steps.describe()}"
