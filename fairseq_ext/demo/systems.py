"""The systems of the demo: parse them on the command line, and translate a sentence with them.

A system is a model with everything that it needs to translate text.
"""

import contextlib
import dataclasses
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext.decoding.loading import Translates, data_of, model_of
from fairseq_ext.decoding.stream import TextCodec, translations
from fairseq_ext.evaluation import plots
from fairseq_ext.evaluation.outputs import Hypothesis, Sentence
from fairseq_ext.text import pipeline
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.text.placeholders import Keeper
from fairseq_ext.text.sentences import SentenceSplitter, texts_to_translate
from fairseq_ext.utils.errors import ConfigError, DataError

FORM = "[NAME=]MODEL[,data=DIR][,bpe-codes=FILE]"
LONGEST_WORD = 100  # characters; longer text without spaces is not a sentence of words
COUNT = 4  # example sentences
LOOKED_AT = 100
WORDS = range(4, 13)  # numbers of words in an example sentence
SPLITS = ("test", "valid")
_PART = re.compile(r",(?=(?:data|bpe-codes)=)")


@dataclass(frozen=True)
class SystemFiles:
    """The files of a system, and its name, as the command line gives them."""

    name: str  # name on the page
    checkpoint: Path  # a checkpoint of any architecture, or a bundle
    data: Path  # folder from fairseq-preprocess with the dictionaries
    codes: Path | None = None  # merges of subword-nmt; None for the merges of all systems


@dataclass(frozen=True)
class System:
    """A loaded system: a model with its default search, its text processing, its description."""

    name: str  # name on the page
    translator: Translates
    codec: TextCodec
    about: str  # languages and size
    splitter: SentenceSplitter
    keeper: Keeper | None  # finds URLs and the like, which stay as they are


def parse_systems(arguments: Sequence[str], data: Path | None) -> list[SystemFiles]:
    """Parse command-line arguments of the form :data:`FORM`, one for each system.

    ``data`` is the folder with the dictionaries for systems without ``data=DIR``. Raise ConfigError
    if an argument has another form, two systems have the same name, or a model or its folder of
    dictionaries is missing.
    """
    systems: dict[str, SystemFiles] = {}
    for argument in arguments:
        model, *parts = _PART.split(argument)
        name, equals, checkpoint = model.partition("=")
        if not equals:
            checkpoint, name = model, Path(model).absolute().name
        values = dict(part.split("=", 1) for part in parts)
        if not (name and checkpoint and all(values.values())) or len(values) < len(parts):
            raise ConfigError(f"A system must be {FORM}, but is `{argument}` instead.")
        if name in systems:
            raise ConfigError(f"A system must have a name of its own, but `{name}` is there twice.")
        path = model_of(Path(checkpoint))
        folder = Path(values["data"]) if "data" in values else data or data_of(path)
        codes = Path(values["bpe-codes"]) if "bpe-codes" in values else None
        systems[name] = SystemFiles(name, path, folder, codes)
    return list(systems.values())


@dataclass(frozen=True)
class Answer:
    """A system's translation of a sentence, and what the page shows with it."""

    name: str  # name of the system
    text: str  # translation, empty if there is none
    remark: str  # the translation's score and time, or the reason why there is none
    attention: plots.Alignment | None = None  # None if the model gives no attention


def answer(sentence: str, systems: Iterable[System], max_words: int) -> list[Answer]:
    """Translate a sentence with each system; return their answers in the order of ``systems``.

    A system with a sentence splitter translates each sentence of a longer text by itself. Raise
    DataError if the text is empty or has over ``max_words`` words, or if a word is too long.
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


def _answer_of(system: System, text: str) -> Answer:
    translator, splitter = system.translator, system.splitter
    finder = system.keeper if system.keeper and system.keeper.mask(text).text != text else None
    split = finder.split_by(splitter.split) if finder else splitter.split
    sources = [*filter(str.strip, map(system.codec.encode, texts_to_translate(split(text))))]
    if not sources:
        return Answer(system.name, "", "The sentence has nothing but invisible characters.")
    lengths = translator.lengths(sources)
    if max(lengths) > translator.limit:
        limit = f"{translator.limit_name} at most {translator.limit:,}"
        return Answer(system.name, "", f"Too long: {max(lengths):,} source tokens, but {limit}.")
    unknown, produced = translator.counts.unknown, translator.counts.target
    began = time.perf_counter()
    (line,) = translations([text], translator, system.codec, splitter=splitter, keeper=finder)
    seconds = time.perf_counter() - began
    if not line.candidates:
        return Answer(system.name, line.text, "The text has no words to translate.")
    unknown = translator.counts.unknown - unknown
    produced = translator.counts.target - produced
    best = line.candidates[0]
    remark = f"score {best.score:.2f}, {seconds:.2f} s, {produced / seconds:,.0f} tokens per second"
    if len(sources) > 1:
        remark = f"{len(sources)} sentences, mean {remark}"
    if unknown:
        remark += f", {unknown} of {sum(lengths)} source tokens unknown"
    attention = None
    if len(sources) == 1 and finder is None:
        hypothesis = Hypothesis(best.tokens, best.score, soft=best.attention)
        sentence = Sentence(1, sources[0], hypotheses=[hypothesis])
        with contextlib.suppress(DataError):  # no attention, or the task has cut the source
            attention = plots.alignment(sentence, merge_bpe=True)
            attention = dataclasses.replace(attention, title=f"Attention of {system.name}")
    return Answer(system.name, line.text, remark, attention)


def heat_map(attention: plots.Alignment) -> bytes:
    """Draw an attention matrix as a heat map; return the picture as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        return plots.plot_alignments([attention], Path(folder, "attention"))[0].read_bytes()


def example_sentences(data: Path, src: str, tgt: str, max_words: int) -> list[str]:
    """Return up to four source sentences of 4 to 12 words from the test or validation split.

    ``data`` is a folder from fairseq-preprocess, whose ``text.json`` says how tokens become text.
    Only the first :data:`LOOKED_AT` sentences are considered. Sentences of over ``max_words`` words
    are left out. A folder without splits (a bundle) gives [].
    """
    if not any(data.glob("*.bin")):
        return []  # a bundle, for which fairseq may be missing
    from fairseq.data import Dictionary
    from fairseq.data.data_utils import load_indexed_dataset

    dictionary = Dictionary.load(str(data / f"dict.{src}.txt"))
    saved = pipeline.load(data)
    turned = saved and saved.towards(tgt, src)
    undo = Postprocessor(turned) if turned else Postprocessor.by_language(None)
    for split in SPLITS:
        for pair in (f"{src}-{tgt}", f"{tgt}-{src}"):
            dataset = load_indexed_dataset(str(data / f"{split}.{pair}.{src}"), dictionary)
            if dataset is not None:
                count = min(LOOKED_AT, len(dataset))
                lines = [dictionary.string(dataset[i]) for i in range(count)]
                complete = [line for line in lines if dictionary.unk_word not in line.split()]
                texts = dict.fromkeys(undo.text(undo.words(complete)))
                limit = min(max_words, WORDS[-1])
                return [text for text in texts if WORDS[0] <= len(text.split()) <= limit][:COUNT]
    return []
