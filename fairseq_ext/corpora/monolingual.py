"""Text without a translation: one side of a corpus, or other text."""

from __future__ import annotations

from itertools import islice

from fairseq_ext.corpora.command_lines import MonolingualOptions
from fairseq_ext.corpora.synthetic import pipeline_of, train_files
from fairseq_ext.text import check_text
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write, keep_inputs


def run(options: MonolingualOptions) -> str:
    """Write plain text that has no translation, or is used as if it had none.

    Returns:
        The number of lines.

    Raises:
        DataError: a corpus lacks its pipeline or has too few lines, or a text cannot be read by
            `fairseq-ext translate` or would be written over.
    """
    if options.text is None:
        decode = pipeline_of(options.data, options.src, options.tgt).decoder(options.language)
        (path,) = train_files(options.data, (options.language,))
    else:
        decode, path = str, options.text
    keep_inputs([path], [options.out])
    check_text(path, empty_lines=True, max_tokens=None)
    lines = 0
    with path.open(encoding="utf-8", newline="\n") as tokens, atomic_write(options.out) as file:
        for line in islice(tokens, options.skip, None):
            file.write(decode(line.rstrip("\r\n")) + "\n")
            lines += 1
        if not lines:
            raise DataError(f"{path} has no line after the first {options.skip:,}; skip fewer.")
    return f"{options.out}: {lines:,} lines"
