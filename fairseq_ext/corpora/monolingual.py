"""Text without a translation: one side of a corpus, or other text."""

from __future__ import annotations

import argparse
from itertools import islice

from fairseq_ext.corpora.synthetic import pipeline_of, train_files
from fairseq_ext.text import check_text
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write, keep_inputs


def run(args: argparse.Namespace) -> str:
    """Write plain text that has no translation, or is used as if it had none.

    Args:
        args: of :func:`fairseq_ext.corpora.command_lines.add_monolingual`.

    Returns:
        How many lines.

    Raises:
        DataError: a corpus without its pipeline, or of fewer lines; text that
            `fairseq-ext translate` could not read, or that would be written over.
    """
    if args.text is None:
        decode = pipeline_of(args.data, args.src, args.tgt).decoder(args.language)
        (path,) = train_files(args.data, (args.language,))
    else:
        decode, path = str, args.text
    keep_inputs([path], [args.out])
    check_text(path, empty_lines=True, max_tokens=None)
    lines = 0
    with path.open(encoding="utf-8", newline="\n") as tokens, atomic_write(args.out) as file:
        for line in islice(tokens, args.skip, None):
            file.write(decode(line.rstrip("\r\n")) + "\n")
            lines += 1
        if not lines:
            raise DataError(f"{path} has no line after the first {args.skip:,}; skip fewer.")
    return f"{args.out}: {lines:,} lines"
