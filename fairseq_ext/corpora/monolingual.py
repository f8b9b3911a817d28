"""One side of a corpus as plain text, as if nobody had translated it."""

from __future__ import annotations

import argparse
from itertools import islice

from fairseq_ext.corpora.synthetic import pipeline_of, train_files
from fairseq_ext.errors import DataError
from fairseq_ext.files import atomic_write


def run(args: argparse.Namespace) -> str:
    """Write one side of a corpus as plain text; returns how many lines.

    Args:
        args: of :func:`fairseq_ext.corpora.command_lines.add_monolingual`.

    Raises:
        DataError: a corpus without its pipeline, or of fewer lines.
    """
    made = pipeline_of(args.data, args.src, args.tgt)
    decode = made.decoder(args.language)
    (path,) = train_files(args.data, (args.language,))
    lines = 0
    with path.open(encoding="utf-8", newline="\n") as tokens, atomic_write(args.out) as file:
        for line in islice(tokens, args.skip, None):
            file.write(decode(line.rstrip("\n")) + "\n")
            lines += 1
        if not lines:
            raise DataError(f"{path} has no line after the first {args.skip:,}; skip fewer.")
    return f"{args.out}: {lines:,} lines"
