"""Split a corpus of words into subwords, learnt from its training text or taken from a model."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_ext.text import pipeline, subwords
from fairseq_ext.text.checks import check_parallel, check_text
from fairseq_ext.text.cleaning import escape_controls, one_spaced
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError


def split_into_subwords(
    text: Path, out: Path, src: str, tgt: str, *, kind: str, size: int
) -> dict[str, int]:
    """Learn subwords from both sides of ``train``; write all splits and ``text.json``.

    ``text`` has ``train.SRC`` and ``train.TGT``, and any other ``NAME.SRC``; ``kind`` is one of
    :data:`fairseq_ext.text.subwords.LEARNT`, or ``none``. Returns the number of lines of each file.
    """
    if size < 1:
        raise ConfigError(f"`--size` must be at least 1, but is {size}.")
    if src == tgt:
        raise ConfigError(f"`--src` and `--tgt` are both `{src}`; their files would be the same.")
    text_pipeline = pipeline.load_towards(text, src, tgt) or Pipeline(src, tgt)
    if text_pipeline.subwords != "none":
        raise DataError(f"{text} has subwords already; give the folder with words.")
    train = [files.require_file(text / f"train.{side}", "training text") for side in (src, tgt)]
    with _staged(text, out, (src, tgt)) as (stage, texts):
        if kind == "none":
            encode, learnt = escape_controls, text_pipeline
        else:
            name, paths = subwords.learn(kind, train, size, stage)
            encode = subwords.load(name, paths).encode
            learnt = dataclasses.replace(text_pipeline, subwords=name, files=tuple(paths))
        learnt.save(stage)
        return {
            path.name: encode_file(path, stage / path.name, lambda line: encode(one_spaced(line)))
            for path in texts
        }


def split_like(text: Path, out: Path, steps: Pipeline) -> dict[str, int]:
    """Turn plain text into the tokens of a trained model; write them with its ``text.json``.

    The names of the files must end in the languages of the model's pipeline. Returns the number of
    lines of each file.
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
    """Yield a folder whose files move to ``out`` at the end, and the paths of the checked texts.

    Files that are not text are refused, and so are sides of unequal length. A side may be empty.
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
    with files.staged_folder(out, last=pipeline.FILE) as stage:
        yield stage, texts


def encode_file(path: Path, out: Path, encode: subwords.Step, *, refuse_empty: bool = False) -> int:
    """Write the tokens of each line of a checked text; return the number of lines."""
    number = 0
    with (
        path.open(encoding="utf-8", newline="\n") as text,
        out.open("w", encoding="utf-8", newline="\n") as tokens,
    ):
        # Only "\n" ends a line; the check has refused other carriage returns.
        for number, line in enumerate(text, start=1):
            encoded = encode(line.rstrip("\r\n"))
            if refuse_empty and not encoded:
                raise DataError(
                    f"{path}, line {number}: it has no tokens. Delete the same line "
                    "from both files of the pair."
                )
            tokens.write(f"{encoded}\n")
    return number
