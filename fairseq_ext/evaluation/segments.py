"""Read segments for neural metrics: source, translation and reference, all plain text.

Sources come from a file of the user's, or from the S lines of fairseq-generate, which become text
by the same steps as translations. In S lines, a word or piece that the dictionary lacks is
``<unk>``, which cannot be turned back into text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.evaluation.outputs import Sentence, best_hypotheses, read_generated
from fairseq_ext.evaluation.score import plain_lines
from fairseq_ext.text.generated import Undoing, require_text
from fairseq_ext.utils.errors import DataError

UNKNOWN = "<unk>"
_CURE = "Give the source text with `--source`."
NO_SOURCE = f"A neural metric uses the source too. {_CURE}"


def read_sources(path: str | Path, expected: int) -> list[str]:
    """Read the lines of the source text.

    Raises:
        DataError: the text is unreadable, has another number of lines, or SentencePiece's pieces.
    """
    lines = plain_lines(path)
    if len(lines) != expected:
        raise DataError(
            f"`{path}` has {len(lines)} lines, but there are {expected} sentences; `--source` must "
            "be what was translated."
        )
    require_text(lines, path)
    return lines


def generated_sources(
    sentences: Sequence[Sentence], undoing: Undoing, path: str | Path
) -> list[str]:
    """Turn the S lines of an output into text.

    Args:
        sentences: sentences of the output.
        undoing: converter of the output's tokens to text.
        path: path of the output (several with "`, `" between them), for messages.

    Raises:
        DataError: S lines are missing, or cannot be turned back into text.
    """
    lines = [sentence.source for sentence in sentences]
    if None in lines:
        number = sentences[lines.index(None)].index
        raise DataError(f"`{path}` lacks the source of sentence {number} (`S-{number}`). {_CURE}")
    # Searched within words, too, because fairseq's --remove-bpe joins <unk> with its neighbours.
    unknown = next((sentence.index for sentence in sentences if UNKNOWN in sentence.source), None)
    if unknown is not None:
        raise DataError(
            f"`{path}`: the source of sentence {unknown} has words that the dictionary lacks "
            f"(`{UNKNOWN}`). {_CURE}"
        )
    if undoing.made.tokenize and not undoing.made.src:
        raise DataError(
            f"`{path}`: nothing says of which language the tokens of its sources are. {_CURE}"
        )
    texts = undoing.sources(lines)
    require_text(texts, path)
    return texts


def read_segments(
    reference: str | Path,
    *,
    hypothesis: str | Path | None = None,
    generated: Sequence[str | Path] = (),
    undoing: Undoing | None = None,
    source: str | Path | None = None,
) -> tuple[list[str], list[str], list[str]]:
    """Read sources, translations and references.

    Args:
        reference: text of the references.
        hypothesis: text of the translations; None to use ``generated``.
        generated: outputs of fairseq-generate, one for each shard.
        undoing: converter of these outputs to text.
        source: text of the sources; None for the S lines.

    Raises:
        DataError: a file is unreadable, two differ in length, or there are no sources.
    """
    references = plain_lines(reference)
    if hypothesis is not None:
        translations = plain_lines(hypothesis)
        if source is None:
            raise DataError(NO_SOURCE)
        return read_sources(source, len(references)), translations, references
    sentences = read_generated(generated, expected=len(references))
    translations = undoing.text(undoing.words(best_hypotheses(sentences)))
    if source is not None:
        sources = read_sources(source, len(references))
    else:
        sources = generated_sources(sentences, undoing, "`, `".join(map(str, generated)))
    return sources, translations, references
