"""Check the word alignments of a parallel text for `fairseq-preprocess --align-suffix`.

A line has the alignments of a sentence pair: ``0-0 1-2`` aligns the first words of both sides, and
the second source word with the third target word. It may be empty.
"""

from __future__ import annotations

from pathlib import Path

from fairseq_ext import text
from fairseq_ext.utils.errors import DataError


def check(path: str | Path, source: str | Path, target: str | Path, sentences: int) -> None:
    """Check that each line aligns words of the same lines of ``source`` and ``target``.

    Args:
        path: of the alignments.
        source: a text that has already been checked.
        target: its translation.
        sentences: number of lines of each.

    Raises:
        DataError: the file is missing, is not text, has another number of lines than the text, or
            aligns words that do not exist; the message names the line.
    """
    line_count = text.check_text(path, empty_lines=True, max_tokens=None)
    if line_count != sentences:
        raise DataError(
            f"{path} has {line_count:,} lines but {source} has {sentences:,}. Line n must have the "
            "alignments of sentence n. Align the text again."
        )
    with (
        Path(path).open(encoding="utf-8") as alignments,
        Path(source).open(encoding="utf-8") as sources,
        Path(target).open(encoding="utf-8") as targets,
    ):
        for number, lines in enumerate(zip(alignments, sources, targets, strict=True), start=1):
            pairs, *lengths = (line.split() for line in lines)
            wrong = next((pair for pair in pairs if not _aligns(pair, *map(len, lengths))), None)
            if wrong is not None:
                raise DataError(
                    f"{path}, line {number}: `{wrong:.40}` does not align a source word with a "
                    f"target word: it must be I-J, with I below {len(lengths[0])} and J below "
                    f"{len(lengths[1])} in this line. Align the text again."
                )


def _aligns(pair: str, source: int, target: int) -> bool:
    """Whether a pair such as ``0-1`` has numbers of words in sentences of these lengths."""
    try:
        i, j = map(int, pair.split("-"))
    except ValueError:
        return False
    return i < source and j < target
