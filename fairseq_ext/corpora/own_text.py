"""Check and copy a user's own text, tokenize it, and split it into subwords."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.command_lines import OwnTextOptions
from fairseq_ext.text import pipeline, subwords
from fairseq_ext.text.bleu_tokenizers import suggest_pieces
from fairseq_ext.text.checks import check_parallel, check_text
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import lines
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import DataError, wrong_value


def copy_corpus(folder: Path, out: Path, src: str, tgt: str, tokenize: bool) -> None:
    """Copy the source and target file of each split into ``out``, and write ``text.json`` there.

    ``text.json`` has the steps of the corpus's own ``text.json``, if any. ``tokenize`` turns the
    copied text into Moses tokens, and adds this step. Raise DataError if the corpus is in subwords,
    or ``tokenize`` is True for a text of tokens. After an error, no file is written.
    """
    steps = pipeline.load_towards(folder, src, tgt) or Pipeline(src, tgt)
    if tokenize and steps.tokenize:
        raise DataError(
            f"`--tokenize` is for plain text, but {folder / pipeline.FILE} says that this text is "
            "Moses tokens already. Leave it out."
        )
    if steps.subwords != "none":
        raise DataError(f"{folder} has subwords; give the folder with the words they are made of.")
    if tokenize:
        # Moses' rules depend on case, and this text is lower-cased before they are applied.
        first = steps.lowercase or steps.lowercase_first
        steps = replace(steps, tokenize=True, lowercase=False, lowercase_first=first)
    names = [f"{split}.{side}" for split in SPLITS for side in (src, tgt)]
    files.keep_inputs([folder / name for name in names], [out / name for name in names])
    tokens = Pipeline(src, tgt, tokenize=True)
    with files.staged_folder(out) as stage:
        for name in names:
            encode = tokens.words(name.rpartition(".")[2]) if tokenize else str
            encode_file(folder / name, stage / name, encode, refuse_empty=True)
        steps.save(stage)


def run(options: OwnTextOptions) -> str:
    """Check and copy the text as the options say; return a line with the sizes of the splits."""
    sides = (options.src, options.tgt)
    pairs = {split: [options.data / f"{split}.{side}" for side in sides] for split in SPLITS}
    missing = [path.name for pair in pairs.values() for path in pair if not path.exists()]
    if missing:
        raise DataError(
            f"{options.data} has no {', '.join(missing)}; a corpus has train, valid and test in "
            "both languages. `fairseq-ext corpus pairs` splits sentence pairs into the three."
        )
    sizes = {split: check_parallel(*pair) for split, pair in pairs.items()}
    copy_corpus(options.data, options.out, *sides, options.tokenize)
    counts = ", ".join(f"{split} {size:,} pairs" for split, size in sizes.items())
    hints = map(suggest_pieces, sides, pairs[SPLITS[0]])
    return "\n".join([counts, *filter(None, hints)])


def split_into_subwords(
    text: Path, out: Path, src: str, tgt: str, *, kind: str, size: int
) -> dict[str, int]:
    """Learn subwords from both sides of ``train``; write all texts as subwords, with ``text.json``.

    The folder ``text`` has ``train.SRC`` and ``train.TGT``, and perhaps more files with these
    endings. Text in subwords is refused. ``kind`` is a key of
    :data:`fairseq_ext.text.subwords.LEARNT`, or ``none`` to keep the words. ``size`` is the number
    of merges or pieces. Return the number of lines of each file, by name.
    """
    if size < 1:
        raise wrong_value("--size", "at least 1", size)
    text_pipeline = pipeline.load_towards(text, src, tgt) or Pipeline(src, tgt)
    if text_pipeline.subwords != "none":
        raise DataError(f"{text} has subwords already; give the folder with words.")
    train = [files.require_file(text / f"train.{side}", "training text") for side in (src, tgt)]
    with _staged(text, out, (src, tgt)) as (stage, texts):
        name, paths = kind, list[Path]()
        if kind != "none":
            name, paths = subwords.learn(kind, train, size, stage)
        learnt: dict[str, Any] = {"subwords": name, "files": tuple(paths)}
        replace(text_pipeline, **learnt).save(stage)
        encode = Pipeline(src, tgt, **learnt).encoder()
        return {path.name: encode_file(path, stage / path.name, encode) for path in texts}


def split_like(text: Path, out: Path, steps: Pipeline) -> dict[str, int]:
    """Write a folder's plain texts into ``out`` as tokens, made by the pipeline ``steps``.

    Return the number of lines of each file, by name. A folder of tokens is refused.
    """
    saved = pipeline.load(text)
    if saved is not None and (saved.tokenize or saved.subwords != "none"):
        raise DataError(f"{text} holds tokens already, as its {pipeline.FILE} says; give the text.")
    with _staged(text, out, (steps.src, steps.tgt)) as (stage, texts):
        if not texts:
            raise DataError(f"{text} has no files that end in .{steps.src} or .{steps.tgt}.")
        encoders = {f".{side}": steps.encoder(side) for side in (steps.src, steps.tgt)}
        steps.save(stage)
        return {
            path.name: encode_file(path, stage / path.name, encoders[path.suffix]) for path in texts
        }


@contextmanager
def _staged(text: Path, out: Path, sides: tuple[str, str]) -> Iterator[tuple[Path, list[Path]]]:
    """Check the texts in a folder; yield a temporary folder to write to, and the texts' paths.

    The texts are the files in ``text`` that end in one of ``sides``. After the ``with`` block, the
    files in the temporary folder move to ``out``.
    """
    texts = sorted(path for side in sides for path in text.glob(f"*.{side}"))
    for path in texts:
        pair = [path.with_suffix(f".{side}") for side in sides]
        if pair[0] in texts and pair[1] in texts:
            if path == pair[0] and any(side.stat().st_size for side in pair):
                check_parallel(*pair, empty_lines=True, max_tokens=None)
        elif files.require_file(path, "text file").stat().st_size:
            check_text(path, empty_lines=True, max_tokens=None)
    files.keep_inputs(texts, [out / path.name for path in texts])
    with files.staged_folder(out) as stage:
        yield stage, texts


def encode_file(path: Path, out: Path, encode: subwords.Step, *, refuse_empty: bool = False) -> int:
    """Write the tokens that ``encode`` makes of each line; return the number of lines.

    Raise DataError for a line without tokens if ``refuse_empty`` is True.
    """
    number = 0
    with out.open("w", encoding="utf-8", newline="\n") as tokens:
        for number, line in lines(path):
            encoded = encode(line)
            if refuse_empty and not encoded:
                raise DataError(
                    f"{path}, line {number}: it has no tokens. Delete the same line "
                    "from both files of the pair."
                )
            tokens.write(f"{encoded}\n")
    return number
