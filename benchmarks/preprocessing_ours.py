"""Prepare like ``preprocess/corpus.py``, from two plain files and with merges learnt already.

``python benchmarks/preprocessing_ours.py FOLDER NAME CODES OUT WORKERS``: NAME.en and NAME.de of
FOLDER are the training text, held-out.en and .de there the other two.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.corpora import preparation
from fairseq_ext.corpora.catalogue import Corpus, Limits, Source
from fairseq_ext.corpora.chunks import Chunk, Tokenize
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import learn_merges

SIDES = ("en", "de")
LONGEST, RATIO = 80, 9.0  # as for WMT14
MERGES = 8_000


def learn(pairs: Sequence[tuple[str, str]], codes: Path) -> None:
    """Write merges learnt from the pairs' tokens."""
    pipeline = Pipeline(*SIDES, normalize=True, tokenize=True, escape=True)
    work = Tokenize(pipeline, Limits(), name="base")
    lines = work(Chunk(1, pairs))
    texts = [codes.with_name(f"learn.{side}") for side in SIDES]
    for path, side in zip(texts, (lines.source, lines.target), strict=True):
        path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    learn_merges(texts, codes, MERGES)


def prepare(folder: Path, name: str, codes: Path, out: Path, workers: int) -> None:
    """Prepare ``name`` as a corpus, from the files' checksums to the manifest."""

    def source(name: str) -> tuple[Source]:
        return (Source(name, tuple(f"{name}.{side}" for side in SIDES)),)

    corpus = Corpus(
        *SIDES,
        train=source(name),
        valid=source("held-out"),
        test=source("held-out"),
        normalize=True,
        limits=Limits(LONGEST, RATIO),
        merges=MERGES,
    )
    # Learning is not what is measured.
    preparation.learn = lambda kind, texts, size, folder: shutil.copy(codes, folder / "codes")
    preparation.Preparation(name, corpus, out, out / "download", str(folder), workers).run()


if __name__ == "__main__":
    folder, name, codes, out, workers = sys.argv[1:]
    prepare(Path(folder), name, Path(codes), Path(out), int(workers))
