"""Choose sentences to try: a few from the test set of a model's data."""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.text import pipeline
from fairseq_ext.text.generated import Undoing

COUNT = 4
WORDS = range(4, 13)  # in a sentence to try
SPLITS = ("test", "valid")


def sentences(data: Path, src: str, tgt: str, max_words: int) -> list[str]:
    """Return different sentences of middling length, spread over the folder's first split.

    Args:
        data: folder of fairseq-preprocess; its ``text.json``, if any, says how tokens become text.
        src, tgt: languages of the model.
        max_words: the most words that the demo translates.

    Raises:
        DataError: the folder's ``text.json`` is damaged.
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
                fitting = [text for text in texts if _fits(text, max_words)]
                return [fitting[i] for i in _spread(len(fitting), COUNT)]
    return []


def _fits(text: str, max_words: int) -> bool:
    words = len(text.split())
    return words in WORDS and words <= max_words


def _spread(length: int, count: int) -> list[int]:
    count = min(length, count)
    return [i * length // count for i in range(count)]
