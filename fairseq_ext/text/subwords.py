"""Split words into subwords and join them, with a library for each kind of subwords.

:data:`KINDS` lists the kinds. A library is imported only by the kind that needs it.
"""

import heapq
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.text.checks import check_fastbpe, check_merges
from fairseq_ext.text.cleaning import escape_controls, one_spaced, unescape_controls
from fairseq_ext.utils import extras, files
from fairseq_ext.utils.errors import DataError

Step = Callable[[str], str]
Learn = Callable[[Sequence[Path], Path, int], None]

METASPACE = "▁"  # the mark that SentencePiece, and tokenizers like it, put before every word
STAND_IN = "\ue581"  # private character for METASPACE in text, which would become a space
# Ends of words that look like subword-nmt's mark, which `remove_bpe` would remove. They get one
# more backslash in the pieces.
MARK_LIKE = re.compile(r"(?<=@@)(\\*)(?!\S)")
ESCAPED_MARK = re.compile(r"(?<=@@)(\\*)\\(?!\S)")
REMEMBERED = 300_000  # words whose pieces a process caches, some 100 MB
END_OF_WORD = "</w>"  # subword-nmt's mark
LONGEST_REMEMBERED = 100  # most characters of a cached word


class Subwords(NamedTuple):
    """The two functions of a kind of subwords: one splits words into pieces, the other joins them.

    Each function maps a line to a line; words and pieces are separated by spaces. If pieces have
    ``▁`` in place of the text's spaces, like those of SentencePiece, ``mark`` is ``▁``; else it is
    "". For kinds with this mark:

    - A ``▁`` of the text itself becomes :data:`STAND_IN` in the pieces.
    - A text without any ``▁`` has words already, and must not be passed to ``decode``.
    """

    encode: Step  # turns words into pieces
    decode: Step  # turns pieces into words
    mark: str = ""


def load(kind: str, paths: Sequence[Path]) -> Subwords:
    """Load a ``kind`` of subwords (:data:`KINDS`) from its files, such as merges or a model."""
    for path in paths:
        files.require_file(path, f"file of the subwords (`{kind}`)")
    pieces = KINDS[kind](*paths)

    def encode(line: str) -> str:
        text = line.replace(METASPACE, STAND_IN) if pieces.mark else line
        return escape_controls(pieces.encode(text))

    def decode(line: str) -> str:
        text = pieces.decode(unescape_controls(line))
        return text.replace(STAND_IN, METASPACE) if pieces.mark else text

    return pieces._replace(encode=encode, decode=decode)


def kind_of_merges(path: Path) -> str:
    """Return the kind of a merges file, ``fastbpe`` or ``subword-nmt``, by its first line."""
    with files.require_file(path, "file of merges").open("rb") as file:
        columns = file.readline(1 << 16).split()
    return "fastbpe" if len(columns) == 3 and columns[2].isdigit() else "subword-nmt"


def remove_bpe(text: str) -> str:
    """Join subword-nmt pieces: ``"Stra@@ ße"`` becomes ``"Straße"``."""
    return (text + " ").replace("@@ ", "").rstrip()


def merge_pairs(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Merge symbols like subword-nmt, in time nearly linear (not quadratic) in their number.

    ``ranks`` maps the pairs to merge to their ranks. Each round merges all pairs of the lowest rank
    that occurs, from left to right. Pairs that these merges create wait for a later round, even if
    their ranks are lower.
    """
    # Until the end, a merged symbol has the place of its left half; that of the right is empty.
    merged, count = list(symbols), len(symbols)
    left, right = list(range(-1, count - 1)), list(range(1, count + 1))
    queue: list[tuple[int, int, str, str]] = []

    def push(place: int) -> None:
        if place >= 0 and right[place] < count:
            pair = merged[place], merged[right[place]]
            if pair in ranks:
                heapq.heappush(queue, (ranks[pair], place, *pair))

    for place in range(count):
        push(place)
    while queue:
        rank, changed = queue[0][0], list[int]()
        while queue and queue[0][0] == rank:
            _, place, first, second = heapq.heappop(queue)
            after = right[place]
            if merged[place] != first or after == count or merged[after] != second:
                continue  # an earlier merge has taken one of the two symbols
            merged[place], merged[after] = first + second, ""
            right[place] = right[after]
            if right[place] < count:
                left[right[place]] = place
            changed.append(place)
        for place in changed:
            push(left[place])
            push(place)
    return [symbol for symbol in merged if symbol]


def _of_merges(version: str, merges: Sequence[tuple[str, str]]) -> Subwords:
    # If a pair is there twice, the first counts.
    ranks = {pair: rank for rank, pair in reversed([*enumerate(merges)])}

    def split(word: str) -> str:
        symbols = [*word, END_OF_WORD]
        if version != "0.1":  # in which the end of a word is a symbol of its own
            symbols[-2:] = [word[-1:] + END_OF_WORD]
        symbols = merge_pairs(symbols, ranks)
        symbols[-1] = symbols[-1].removesuffix(END_OF_WORD)
        return "@@ ".join(filter(None, symbols))

    cached = lru_cache(REMEMBERED)(split)

    def encode(line: str) -> str:
        words = (MARK_LIKE.sub(r"\1\\", line) if "@@" in line else line).split(" ")
        return " ".join(
            [cached(word) if len(word) <= LONGEST_REMEMBERED else split(word) for word in words]
        )

    return Subwords(encode, lambda line: ESCAPED_MARK.sub(r"\1", remove_bpe(line)))


def _sentencepiece(model: Path) -> Subwords:
    extras.need("sentencepiece")
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model.read_bytes())  # it opens only UTF-8 paths
    except (RuntimeError, OSError) as error:
        raise _unreadable(model, "a model of SentencePiece", error) from error
    return Subwords(
        lambda line: " ".join(processor.encode(line, out_type=str)),
        lambda line: one_spaced(processor.decode_pieces(line.split(" "))),  # a byte may be "\n"
        METASPACE,
    )


def _tokenizers(path: Path) -> Subwords:
    extras.need("tokenizers")
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True  # or `<unk>` within a word would split it
    except Exception as error:  # the library raises Exception itself
        raise _unreadable(path, "a tokenizer.json of the library tokenizers", error) from error

    def decode(line: str) -> str:
        pieces = line.split(" ")
        text = tokenizer.decoder.decode(pieces) if tokenizer.decoder else "".join(pieces)
        return one_spaced(text)  # byte pieces may be a line feed

    return Subwords(
        lambda line: " ".join(tokenizer.encode(line, add_special_tokens=False).tokens),
        decode,
        METASPACE if isinstance(tokenizer.decoder, tokenizers.decoders.Metaspace) else "",
    )


def _byte_level(vocabulary: Path, merges: Path) -> Subwords:
    extras.need("tokenizers")
    from fairseq_ext.text.byte_level import ByteBPE

    bpe = ByteBPE(vocabulary, merges)
    return Subwords(
        lambda line: " ".join(map(str, bpe.encode([line])[0])),
        lambda line: bpe.decode(line.split()),
    )


def _unreadable(path: Path, form: str, error: BaseException) -> DataError:
    return DataError(f"`{path}` must be {form}, but is not ({type(error).__name__}).")


KINDS: dict[str, Callable[..., Subwords]] = {
    "none": lambda: Subwords(str, str),
    # text already in subword-nmt's pieces, which are joined but not made
    "joined": lambda: Subwords(str, remove_bpe),
    "subword-nmt": lambda codes: _of_merges(*check_merges(codes)),
    "fastbpe": lambda codes: _of_merges("0.2", check_fastbpe(codes)),
    "sentencepiece": _sentencepiece,
    "tokenizers": _tokenizers,
    "byte-level": _byte_level,  # GPT-2's pieces, as ids like those of fairseq's `--bpe gpt2`
}
"""All kinds, each with the function that makes it from its files."""


def number_of_files(kind: str) -> int:
    """Return how many files a kind of subwords needs, such as 1 for merges; 0 for ``none``."""
    return len(inspect.signature(KINDS[kind]).parameters)


def learn(kind: str, texts: Sequence[Path], size: int, folder: Path) -> tuple[str, list[Path]]:
    """Learn ``size`` merges or pieces from all texts together, and write a file into ``folder``.

    ``kind`` is a key of :data:`LEARNT`, the ways to learn subwords. Return the key of :data:`KINDS`
    for the learnt subwords, and the paths of their files.
    """
    learner = LEARNT[kind]
    path = folder / learner.file
    learner.learn(texts, path, size)
    return learner.kind, [path]


def learn_merges(texts: Sequence[Path], codes: Path, merges: int) -> None:
    """Learn at most ``merges`` merges from all texts together, and write them to ``codes``.

    The merges are those that ``subword-nmt learn-bpe`` learns from the texts. To save memory, this
    function gives it the counts of the words instead of the texts. Raise DataError if there is
    nothing to merge.
    """
    from subword_nmt import learn_bpe as subword_nmt
    from tqdm import tqdm

    words: Counter[str] = Counter()
    for line in _lines(texts):
        words.update(line.split())
    nothing = DataError(
        "no two letters stand side by side twice in the training text, so there is nothing to "
        "merge; give more text, or `--kind none`."
    )
    if max(map(len, words), default=0) < 2:
        raise nothing
    lines = (f"{word} {number}" for word, number in words.items())
    with codes.open("w", encoding="utf-8", newline="\n") as file:
        subword_nmt.tqdm = partial(tqdm, disable=None)  # no bar if standard error is a file
        subword_nmt.learn_bpe(lines, file, merges, is_dict=True)
    with codes.open("rb") as file:
        if sum(1 for _ in file) < 2:  # only the version
            raise nothing


def _learn_sentencepiece(model_type: str, texts: Sequence[Path], path: Path, size: int) -> None:
    extras.need("sentencepiece")
    import sentencepiece

    try:
        with path.open("wb") as model:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_lines(texts, mark=METASPACE),
                model_writer=model,
                vocab_size=size,
                model_type=model_type,
                character_coverage=1.0,
                normalization_rule_name="identity",  # because cleaning has already normalized
                minloglevel=2,
            )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]  # behind a place in the library's code
        raise DataError(
            f"SentencePiece cannot learn {size:,} pieces (`--size`) from this text: {reason}"
        ) from error


def _learn_tokenizers(texts: Sequence[Path], path: Path, size: int) -> None:
    extras.need("tokenizers")
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(_lines(texts, mark=METASPACE), trainer)
    tokenizer.save(str(path))


def _lines(texts: Sequence[Path], mark: str = "") -> Iterator[str]:
    """Yield the lines of texts with single spaces, and with :data:`STAND_IN` for each ``mark``."""
    for path in texts:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in map(one_spaced, file):
                yield line.replace(mark, STAND_IN) if mark else line


class Learner(NamedTuple):
    """A method of learning subwords."""

    kind: str  # the kind of `KINDS` that applies the learnt subwords
    file: str  # name of the file to write
    library: str  # the distribution that does the work
    learn: Learn  # learns a number of merges or pieces from texts, and writes a file


LEARNT: dict[str, Learner] = {
    "bpe": Learner("subword-nmt", "codes", "subword-nmt", learn_merges),
    **{
        f"sentencepiece-{kind}": Learner(
            *("sentencepiece", "sentencepiece.model", "sentencepiece"),
            partial(_learn_sentencepiece, kind),
        )
        for kind in ("unigram", "bpe")
    },
    "tokenizers": Learner("tokenizers", "tokenizer.json", "tokenizers", _learn_tokenizers),
}
"""The methods of learning subwords from text, by their names in ``--subwords``."""
