"""The answers of several systems to one sentence: translations, scores, attention."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.decoding.search import Candidate
from fairseq_ext.demo.systems import System
from fairseq_ext.evaluation import plots
from fairseq_ext.evaluation.outputs import Hypothesis, Sentence
from fairseq_ext.utils.errors import DataError

LONGEST_WORD = 100  # characters; text without spaces is no sentence of words


@dataclass(frozen=True)
class Answer:
    """A system's translation of a sentence.

    Attributes:
        name: of the system.
        text: its translation, empty where there is none.
        remark: its score and how long it took, or why there is no translation.
        attention: of a model that has it, else None.
    """

    name: str
    text: str
    remark: str
    attention: plots.Alignment | None = None


def answer(sentence: str, systems: Iterable[System], max_words: int) -> list[Answer]:
    """Translate a sentence with each of the systems.

    Args:
        sentence: text as it was typed.
        systems: those chosen.
        max_words: the most that are translated.

    Returns:
        An answer of each system, in their order.

    Raises:
        DataError: no sentence, or one that is too long.
    """
    words = sentence.split()
    if not words:
        raise DataError("Type a sentence first.")
    if len(words) > max_words:
        raise DataError(
            f"The sentence has {len(words):,} words, but at most {max_words:,} are translated."
        )
    if (longest := max(map(len, words))) > LONGEST_WORD:
        raise DataError(
            f"A word has {longest:,} characters, but at most {LONGEST_WORD} are translated."
        )
    return [_answer_of(system, " ".join(words)) for system in systems]


def _answer_of(system: System, sentence: str) -> Answer:
    translator = system.translator
    tokens = system.codec.encode(sentence)
    if not tokens.strip():
        return Answer(system.name, "", "The sentence has nothing but invisible characters.")
    length = translator.lengths([tokens])[0]
    if length > translator.limit:
        limit = f"{translator.limit_name} at most {translator.limit:,}"
        return Answer(system.name, "", f"Too long: {length:,} source tokens, but {limit}.")
    unknown, produced = translator.counts.unknown, translator.counts.target
    began = time.perf_counter()
    best = translator.translate([tokens])[0][0]
    seconds = time.perf_counter() - began
    unknown = translator.counts.unknown - unknown
    produced = translator.counts.target - produced
    remark = f"score {best.score:.2f}, {seconds:.2f} s, {produced / seconds:,.0f} tokens per second"
    if unknown:
        remark += f", {unknown} of {length} source tokens unknown"
    text = system.codec.decode(best.tokens)
    return Answer(system.name, text, remark, _attention(system.name, tokens, best))


def _attention(name: str, tokens: str, best: Candidate) -> plots.Alignment | None:
    """Attention between words, or None where a model has none for the words typed."""
    hypothesis = Hypothesis(best.tokens, best.score, soft=best.attention)
    with contextlib.suppress(DataError):  # none, or of a source that the task has cut
        alignment = plots.alignment(Sentence(1, tokens, hypotheses=[hypothesis]), merge_bpe=True)
        return dataclasses.replace(alignment, title=f"Attention of {name}")
    return None


def heat_map(attention: plots.Alignment) -> bytes:
    """The picture that ``fairseq-ext plot alignment`` draws, as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        return plots.plot_alignments([attention], Path(folder, "attention"))[0].read_bytes()
