"""Check a user's own text, and copy it, tokenized if asked, into another folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fairseq_ext import text
from fairseq_ext.corpora import SPLITS
from fairseq_ext.corpora.command_lines import OwnTextOptions
from fairseq_ext.text import pipeline
from fairseq_ext.text.bleu_tokenizers import suggest_pieces
from fairseq_ext.text.corpus import encode_file
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError


def check_corpus(folder: Path, src: str, tgt: str) -> dict[str, int]:
    """Check the six files of a corpus and count the pairs of each split."""
    return {
        split: text.check_parallel(folder / f"{split}.{src}", folder / f"{split}.{tgt}")
        for split in SPLITS
    }


def chosen_pipeline(folder: Path, src: str, tgt: str, tokenize: bool) -> Pipeline:
    """Return the pipeline to record for the written text: the folder's own or a new one."""
    text_pipeline = pipeline.load_towards(folder, src, tgt)
    if text_pipeline is None:
        return Pipeline(src, tgt, tokenize=tokenize)
    if tokenize and text_pipeline.tokenize:
        raise DataError(
            f"`--tokenize` is for plain text, but {folder / pipeline.FILE} says that this text is "
            "Moses tokens already. Leave it out."
        )
    if text_pipeline.subwords != "none":
        raise DataError(f"{folder} has subwords; give the folder with the words they are made of.")
    if not tokenize:
        return text_pipeline
    # Moses' rules depend on case, and this text is lower-cased before they are applied.
    first = text_pipeline.lowercase or text_pipeline.lowercase_first
    return replace(text_pipeline, tokenize=True, lowercase=False, lowercase_first=first)


def copy_corpus(folder: Path, out: Path, src: str, tgt: str, tokenize: bool) -> None:
    """Write the six files and ``text.json`` into ``out``, all or none."""
    text_pipeline = chosen_pipeline(folder, src, tgt, tokenize)
    names = [f"{split}.{side}" for split in SPLITS for side in (src, tgt)]
    files.keep_inputs([folder / name for name in names], [out / name for name in names])
    words: dict[str, Callable[[str], str]] = dict.fromkeys((src, tgt), str)
    if tokenize:
        words = {side: Pipeline(src, tgt, tokenize=True).words(side) for side in (src, tgt)}
    with files.staged_folder(out, last=pipeline.FILE) as stage:
        for name in names:
            encode = words[name.rpartition(".")[2]]
            encode_file(folder / name, stage / name, encode, refuse_empty=True)
        text_pipeline.save(stage)


def run(options: OwnTextOptions) -> str:
    """Check and copy the text as the options say; return the sizes."""
    if options.src == options.tgt:
        raise ConfigError(
            f"`--src` and `--tgt` are both `{options.src}`; their files would be the same."
        )
    sizes = check_corpus(options.data, options.src, options.tgt)
    copy_corpus(options.data, options.out, options.src, options.tgt, options.tokenize)
    counts = ", ".join(f"{split} {size:,} pairs" for split, size in sizes.items())
    train = [options.out / f"{SPLITS[0]}.{side}" for side in (options.src, options.tgt)]
    hints = map(suggest_pieces, (options.src, options.tgt), train)
    return "\n".join([counts, *filter(None, hints)])
