"""Arguments and output that several subcommands share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Subparsers = Any  # argparse keeps this class private


def add_generated(parser: argparse.ArgumentParser) -> None:
    """Add GENERATED, what fairseq-generate has printed."""
    parser.add_argument(
        "generated",
        type=Path,
        nargs="+",
        metavar="GENERATED",
        help="standard output of fairseq-generate (or generate-SUBSET.txt of --results-path); "
        "of --num-shards, all shards",
    )


def add_output(parser: argparse.ArgumentParser, metavar: str, what: str) -> None:
    """Add ``-o``, ``--output``."""
    parser.add_argument("-o", "--output", type=Path, required=True, metavar=metavar, help=what)


def add_picture_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--output`` of a picture."""
    add_output(parser, "OUT.png", "the picture; OUT.svg and OUT.json are written beside it")


def add_reference(parser: argparse.ArgumentParser) -> None:
    """Add ``--ref`` and ``--language-pair``; see :func:`chosen_reference`."""
    parser.add_argument(
        "--ref",
        type=Path,
        required=True,
        metavar="FILE",
        help="reference, detokenized text, or the name of a test set of sacrebleu, such as "
        "wmt14/full, which is downloaded once",
    )
    parser.add_argument(
        "-l",
        "--language-pair",
        metavar="SRC-TGT",
        help="with a test set of sacrebleu: its languages, such as en-de",
    )


def chosen_reference(args: argparse.Namespace) -> Path:
    """The file that ``--ref`` means.

    Raises:
        ConfigError: ``--language-pair`` is missing, or wrong.
        DataError: no such file or set, or it cannot be downloaded.
    """
    from fairseq_ext.evaluation import test_sets

    return test_sets.reference(args.ref, args.language_pair)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what} as JSON too")


def write_json(path: Path | None, data: Any) -> None:
    """Write ``data`` as JSON if there is a path for it."""
    if path is not None:
        from fairseq_ext import files

        with files.atomic_write(path) as file:
            file.write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def print_paths(paths: Sequence[Path]) -> int:
    """Print the files written; returns the exit status 0."""
    for path in paths:
        print(path)
    return 0
