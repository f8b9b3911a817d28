"""Turn fairseq-generate's output into text by undoing the steps that ``text.json`` lists.

With this plugin, the output names the ``text.json`` of the model, by path and checksum. If this
file has moved or changed, :func:`find` looks for a file with the checksum in the output's folder
and the folders in it.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_ext.text import pipeline, subwords
from fairseq_ext.text.cleaning import unescape_controls
from fairseq_ext.text.pipeline import FILE, Pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import DataError, printable

_NOTE = re.compile(rb"^Text of (\S+) as in (.+) \(SHA-256 ([0-9a-f]{64})\)\r?$", re.MULTILINE)
_PIECE = re.compile("[^ ]@@ ")
_FULL_STOPS = 10  # lines that end in one, needed to tell tokens from text


class Postprocessor:
    """A converter that undoes a pipeline's steps: it turns a model's tokens into words and text."""

    def __init__(self, text_pipeline: Pipeline) -> None:
        self.pipeline = text_pipeline
        _, self._join, self._mark = text_pipeline.pieces

    @classmethod
    def by_language(cls, language: str | None) -> "Postprocessor":
        """Build a converter that joins subword-nmt's pieces and, given a language, detokenizes."""
        return cls(Pipeline("", language or "", tokenize=bool(language), subwords="joined"))

    def words(self, lines: Iterable[str]) -> list[str]:
        """Join the subwords of each line, unless fairseq's ``--remove-bpe`` has joined them.

        If the pipeline's pieces have SentencePiece's ``▁``, and no line has it, the lines are words
        already.
        """
        lines = list(lines)
        are_words = self._mark and not any(self._mark in line for line in lines)
        return list(map(unescape_controls if are_words else self._join, lines))

    def text(self, words: Iterable[str]) -> list[str]:
        """Turn lines of target words into plain text."""
        return list(map(self.pipeline.detokenizer(), words))

    def sources(self, lines: Iterable[str]) -> list[str]:
        """Turn lines of source tokens into plain text."""
        return list(map(self.pipeline.detokenizer(self.pipeline.src), self.words(lines)))


def note(folders: Iterable[str | Path], src: str, tgt: str) -> str | None:
    """Return the line of fairseq-generate's output that says how to turn its tokens into text.

    The line names both languages, and path and checksum of the first ``text.json`` in ``folders``.
    Return None if no folder has a ``text.json``.
    """
    candidates = (Path(folder, FILE).absolute() for folder in folders)
    path = next((path for path in candidates if path.is_file()), None)
    return f"Text of {src}-{tgt} as in {path} (SHA-256 {files.sha256(path)})" if path else None


def find(generated: str | Path) -> tuple[Path, Pipeline] | None:
    """Load the pipeline that turns the output ``generated`` of fairseq-generate into text.

    Return the folder of its ``text.json``, and the pipeline; None if there is no such file.

    - If the output names a ``text.json`` (:func:`note`), take this file or an unchanged copy. If
      both are missing, print a message and return None.
    - Otherwise take the ``text.json`` in the output's folder.
    """
    beside = Path(generated).absolute().parent
    match = _NOTE.search(Path(generated).read_bytes()) if Path(generated).is_file() else None
    if match is None:
        saved = pipeline.load(beside)
        return (beside, saved) if saved else None
    pair, named, checksum = (part.decode("utf-8", "replace") for part in match.groups())
    for path in (Path(named), beside / FILE, *sorted(beside.glob(f"*/{FILE}"))):
        is_same = path.name == FILE and path.is_file() and files.sha256(path) == checksum
        if is_same and (saved := pipeline.load(path.parent)):
            for src, tgt in ((saved.src, saved.tgt), (saved.tgt, saved.src)):
                if pair == f"{src}-{tgt}":  # not split at a hyphen: pt-BR has one, too
                    return path.parent, replace(saved, src=src, tgt=tgt)
    message = (
        f"{generated}: {named} is gone, or belongs to another run; so only the options decide "
        "how the translations become text"
    )
    print(printable(message), file=sys.stderr)
    return None


def require_text(
    lines: Sequence[str], name: str | Path, references: Sequence[str] | None = None
) -> None:
    """Raise :class:`DataError` if the lines of the file ``name`` are subwords instead of text.

    Lines are subwords of SentencePiece if most begin with ``▁``. They are subwords of subword-nmt
    if more than a tenth have ``@@`` and no reference has it. Without ``references``, only
    SentencePiece's subwords are refused.
    """
    if references is not None and 10 * _marked(lines) > len(lines) and not _marked(references):
        raise DataError(
            f"`{name}` holds pieces of subword-nmt (`to@@ day`), not text. Join them: "
            f"sed 's/@@ //g' {name} > {name}.text"
        )
    if 2 * sum(line.startswith(subwords.METASPACE) for line in lines) > len(lines):
        raise DataError(
            f"`{name}` holds pieces of SentencePiece (`{subwords.METASPACE}`), not text. Put the "
            f"{FILE} of its run, and the files that it names, beside it, or generate again with "
            "`--remove-bpe sentencepiece`."
        )


def check_reference(
    references: Sequence[str], reference: str | Path, lines: Sequence[str], name: str | Path
) -> None:
    """Check that the references and the translations ``lines`` are both text or both tokens.

    Their files are ``reference`` and ``name``. Print a warning if only one of the files seems to be
    tokenized. Raise :class:`DataError` if only the references are pieces of subword-nmt.
    """
    if 10 * _marked(references) > len(references) and not _marked(lines):
        raise DataError(
            f"`{reference}` holds pieces of subword-nmt (`to@@ day`), not text; give the reference "
            "as it was before it was tokenized and split."
        )
    tokens = {_are_tokens(references): reference, _are_tokens(lines): name}
    if tokens.keys() == {True, False}:
        message = (
            f"warning: {tokens[True]} seems to be tokenized, but {tokens[False]} does not; BLEU is "
            "right only if both are plain text"
        )
        print(printable(message), file=sys.stderr)


def _are_tokens(lines: Iterable[str]) -> bool | None:
    """Guess whether lines are tokens, from the spaces before their final full stops.

    Return None if few lines end in a full stop.
    """
    ends = [line for line in lines if line.endswith(".")]
    if len(ends) < _FULL_STOPS:
        return None
    return 2 * sum(line.endswith(" .") for line in ends) > len(ends)


def _marked(lines: Iterable[str]) -> int:
    """Count the lines in which a subword ends in subword-nmt's ``@@``."""
    return sum(_PIECE.search(line) is not None for line in lines)
