"""The byte-level byte-pair encoding of GPT-2 and BART, by the library `tokenizers`.

A line becomes the ids of its subword pieces, separated by spaces, as in fairseq's ``--bpe gpt2``.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fairseq_ext.text.cleaning import one_spaced
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.json_files import read_json

# Entries of a vocabulary that stand for no text: fairseq's special symbols, and padding.
RESERVED = re.compile(r"<s>|<pad>|</s>|<unk>|<mask>|madeupword\d+")
MOST = 1 << 24  # largest number of ids, because the library keeps a table of them all
FILES = ("encoder.json", "vocab.bpe")  # fairseq's names for vocabulary and merges


class ByteBPE:
    """A byte-level byte-pair encoding: text to ids and back.

    ``vocabulary`` and ``merges`` are GPT-2's ``encoder.json`` and ``vocab.bpe``, or a
    ``vocab.json`` and its ``merges.txt``. Raise DataError if the vocabulary is not byte-level, or
    the merges belong to another vocabulary.
    """

    def __init__(self, vocabulary: Path, merges: Path) -> None:
        ids = _read_vocabulary(vocabulary)
        self.ids = sorted(id_ for piece, id_ in ids.items() if not RESERVED.match(piece))
        self._known = frozenset(self.ids)
        try:
            pairs = models.BPE.read_file(str(vocabulary), str(merges))[1]
            self._tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs))
        except Exception as error:  # the library raises Exception itself
            raise DataError(
                f"`{merges}` must be the merges of `{vocabulary}`, but is not ({error!s:.100}); "
                "take both files from one model."
            ) from None
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line's pieces."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(lines))]

    def decode(self, symbols: Iterable[str]) -> str:
        """Turn the decimal ids of pieces into text; skip other symbols, such as ``<unk>``.

        Each run of white space in the text becomes a single space.
        """
        ids = [int(symbol) for symbol in symbols if symbol.isdecimal() and len(symbol) < 10]
        text = self._tokenizer.decode([id_ for id_ in ids if id_ in self._known])
        return one_spaced(text)  # a model may generate a line feed


def _read_vocabulary(path: Path) -> dict[str, int]:
    ids = read_json(path)
    if not isinstance(ids, dict) or not all(
        type(id_) is int and 0 <= id_ < MOST for id_ in ids.values()
    ):
        raise DataError(f"`{path}` must map pieces to ids, as GPT-2's encoder.json does.")
    if len({*ids.values()}) != len(ids):
        raise DataError(f"`{path}` gives one id to two pieces; take the original file.")
    # The library would silently skip a byte without an entry.
    absent = sorted({*pre_tokenizers.ByteLevel.alphabet()} - ids.keys())
    if absent:
        raise DataError(
            f"`{path}` must have all 256 bytes as pieces, but lacks {len(absent)}, such as "
            f"`{absent[0]}`; a byte-level vocabulary is needed, such as GPT-2's encoder.json."
        )
    return ids
