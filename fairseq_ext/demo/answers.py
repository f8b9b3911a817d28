"""Translate a sentence with several systems; choose sentences to try."""

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
from fairseq_ext.text import pipeline
from fairseq_ext.text.generated import Undoing
from fairseq_ext.utils.errors import DataError

LONGEST_WORD = 100  # characters; longer text without spaces is not a sentence of words
COUNT = 4
WORDS = range(4, 13)  # in a sentence to try
SPLITS = ("test", "valid")


@dataclass(frozen=True)
class Answer:
    """A system's translation of a sentence."""

    name: str  # of the system
    text: str  # its translation, empty if there is none
    remark: str  # its score and the time it took, or why there is no translation
    attention: plots.Alignment | None = None  # None if the model has none


def answer(sentence: str, systems: Iterable[System], max_words: int) -> list[Answer]:
    """Translate a sentence with each of the systems, which may split it into several."""
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


def _answer_of(system: System, text: str) -> Answer:
    translator, splitter = system.translator, system.splitter
    sentences = [text] if splitter is None else splitter.split(text)
    sources = [tokens for tokens in map(system.codec.encode, sentences) if tokens.strip()]
    if not sources:
        return Answer(system.name, "", "The sentence has nothing but invisible characters.")
    lengths = translator.lengths(sources)
    if max(lengths) > translator.limit:
        limit = f"{translator.limit_name} at most {translator.limit:,}"
        return Answer(system.name, "", f"Too long: {max(lengths):,} source tokens, but {limit}.")
    unknown, produced = translator.counts.unknown, translator.counts.target
    began = time.perf_counter()
    best = [candidates[0] for candidates in translator.translate(sources)]
    seconds = time.perf_counter() - began
    unknown = translator.counts.unknown - unknown
    produced = translator.counts.target - produced
    score = sum(candidate.score for candidate in best) / len(best)
    remark = f"score {score:.2f}, {seconds:.2f} s, {produced / seconds:,.0f} tokens per second"
    if len(best) > 1:
        remark = f"{len(best)} sentences, mean {remark}"
    if unknown:
        remark += f", {unknown} of {sum(lengths)} source tokens unknown"
    texts = [system.codec.decode(candidate.tokens) for candidate in best]
    attention = _attention(system.name, sources[0], best[0]) if len(best) == 1 else None
    return Answer(
        system.name, texts[0] if splitter is None else splitter.join(texts), remark, attention
    )


def _attention(name: str, tokens: str, best: Candidate) -> plots.Alignment | None:
    """Return attention between words, or None if the model has none for the typed words."""
    hypothesis = Hypothesis(best.tokens, best.score, soft=best.attention)
    with contextlib.suppress(DataError):  # no attention, or the task has cut the source
        alignment = plots.alignment(Sentence(1, tokens, hypotheses=[hypothesis]), merge_bpe=True)
        return dataclasses.replace(alignment, title=f"Attention of {name}")
    return None


def heat_map(attention: plots.Alignment) -> bytes:
    """Draw the picture of ``fairseq-ext plot alignment`` as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        return plots.plot_alignments([attention], Path(folder, "attention"))[0].read_bytes()


def example_sentences(data: Path, src: str, tgt: str, max_words: int) -> list[str]:
    """Return different sentences of middling length, spread over the folder's first split.

    ``data`` is a folder of fairseq-preprocess, whose ``text.json`` says how tokens become text.
    """
    if not any(data.glob("*.bin")):
        return []  # a bundle, which needs no fairseq
    from fairseq.data import Dictionary
    from fairseq.data.data_utils import load_indexed_dataset

    dictionary = Dictionary.load(str(data / f"dict.{src}.txt"))
    saved = pipeline.load(data)
    turned = saved and saved.towards(tgt, src)
    undo = Undoing(turned) if turned else Undoing.by_language(None)
    for split in SPLITS:
        for pair in (f"{src}-{tgt}", f"{tgt}-{src}"):
            dataset = load_indexed_dataset(str(data / f"{split}.{pair}.{src}"), dictionary)
            if dataset is not None:
                lines = [dictionary.string(dataset[i]) for i in _spread(len(dataset), 25 * COUNT)]
                complete = [line for line in lines if dictionary.unk_word not in line.split()]
                texts = dict.fromkeys(undo.text(undo.words(complete)))
                most = min(max_words, WORDS[-1])
                fitting = [text for text in texts if WORDS[0] <= len(text.split()) <= most]
                return [fitting[i] for i in _spread(len(fitting), COUNT)]
    return []


def _spread(length: int, count: int) -> list[int]:
    count = min(length, count)
    return [i * length // count for i in range(count)]
