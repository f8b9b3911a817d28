"""Synthetic pairs, one side of which a model wrote: back-translation and distillation.

Text goes in as text, so a model of any other pipeline may have written it; it becomes the tokens of
the corpus that it joins by that corpus's ``text.json``. Pairs stream through: memory does not grow.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_ext import text
from fairseq_ext.corpora import SPLITS, streams
from fairseq_ext.corpora.catalogue import Limits
from fairseq_ext.corpora.chunks import KEPT, Chunk, Lines, why_dropped
from fairseq_ext.corpora.command_lines import MixOptions
from fairseq_ext.corpora.parallel import ordered_map
from fairseq_ext.text import pipeline
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import Step
from fairseq_ext.text.writing import staged, writers
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError

COPIED = "both sides are the same"
REPORT = "synthetic.json"


@dataclass(frozen=True)
class Encode:
    """Encode the pairs of a chunk; can be sent to another process.

    Attributes:
        pipeline: from text to tokens.
        limits: which pairs are kept, in tokens.
        tag: put before the source tokens, so that the model knows whose they are; none if empty.
    """

    pipeline: Pipeline
    limits: Limits
    tag: str = ""

    def __call__(self, chunk: Chunk) -> Lines:
        """Return the tokens of the pairs that are kept."""
        lines = Lines()
        to_source, to_target = (
            encoder(self.pipeline, language) for language in (self.pipeline.src, self.pipeline.tgt)
        )
        for source, target in chunk.pairs:
            first, second = to_source(source or ""), to_target(target or "")
            fate = why_dropped(first, second, self.limits)
            if fate == KEPT and first == second:
                fate = COPIED
            lines.add(fate, first, second)
        if self.tag:
            lines.source[:] = [f"{self.tag} {line}" for line in lines.source]
        return lines


@functools.lru_cache
def encoder(text_pipeline: Pipeline, language: str) -> Step:
    """Return the function from text to tokens, built once in every process."""
    return text_pipeline.encoder(language)


def run(options: MixOptions) -> str:
    """Write a corpus whose training text has synthetic pairs; returns what became of them.

    Raises:
        ConfigError: a tag that is not a word.
        DataError: texts of unequal length, a corpus without its pipeline or in the folder to be
            written, or nothing to train on.
    """
    if options.tag and options.tag.split() != [options.tag]:
        raise ConfigError(f"`--tag` must be one word, or empty, but is `{options.tag}`.")
    text_pipeline = pipeline_of(options.data, options.src, options.tgt)
    text.check_parallel(options.source, options.target, empty_lines=True, max_tokens=None)
    work = Encode(text_pipeline, Limits(options.longest, options.ratio), options.tag)
    sides = (options.src, options.tgt)
    train = train_files(options.data, sides)
    text.check_parallel(*train, empty_lines=True, max_tokens=None)
    held_out_names = [f"{split}.{side}" for split in SPLITS[1:] for side in sides]
    read = [
        options.source,
        options.target,
        *train,
        *(options.data / name for name in held_out_names),
    ]
    written = [options.out / name for name in (*(path.name for path in train), *held_out_names)]
    files.keep_inputs(read, written)
    with staged(options.out) as (stage,):
        with writers([stage / path.name for path in train]) as opened:
            for _ in range(options.copies):
                for pair in itertools.chain.from_iterable(streams.line_pairs(*train)):
                    for line, file in zip(pair, opened, strict=True):
                        file.write(f"{line}\n")
            pairs = itertools.chain.from_iterable(
                streams.line_pairs(options.source, options.target)
            )
            tally = streams.write(ordered_map(work, streams.cut(pairs), options.workers), opened)
        if not (options.copies or tally.kept):
            raise DataError("no pair is left to train on; give `--copies`, or a higher `--ratio`.")
        for name in held_out_names:
            shutil.copyfile(options.data / name, stage / name)
        text_pipeline.save(stage)
        report = {"read": tally.read, "fates": tally.counts, "copies": options.copies}
        (stage / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    dropped = "".join(
        f"; {why}: {counts[0]:,}" for why, counts in tally.counts.items() if why != KEPT
    )
    return f"{tally.kept:,} of {tally.read:,} synthetic pairs kept{dropped}"


def train_files(folder: Path, sides: Sequence[str]) -> list[Path]:
    """Return the files of a corpus's training text.

    Raises:
        DataError: a file is missing.
    """
    return [files.require_file(folder / f"train.{side}", "text file") for side in sides]


def pipeline_of(folder: Path, src: str, tgt: str) -> Pipeline:
    """Load the pipeline that made a corpus.

    Raises:
        DataError: it does not say, or is of other languages.
    """
    saved = pipeline.load(folder)
    directed_pipeline = saved and saved.towards(src, tgt)
    if directed_pipeline is None:
        raise DataError(
            f"{folder} has no {pipeline.FILE} for {src} and {tgt}; give a folder that "
            "`fairseq-ext corpus` or `fairseq-ext subwords` wrote."
        )
    return directed_pipeline
