"""Packed 1-bit models as a whole, against what else translates on a CPU, one question at a time.

``python benchmarks/packed.py translation --json docs/results/packed_translation.json``

Questions:
  translation  tokens per second of beam search, all systems in one process and in turns
  start        seconds from the start of a process to its first translation, its memory, file sizes
  agreement    translations of a packed model against those of the checkpoint it is packed from

The first two are about one size with random weights (default: bmt_wmt_de_en with 32,000 words):
BMT-1 (1-bit weights) and BMT-6 (1-bit weights and inputs) as fairseq-generate loads a checkpoint,
packed, and packed with int8 tables; and a plain Transformer of the same size by fairseq, by torch's
dynamic int8, and by CTranslate2 in int8; `start` has files for the engine too. As random weights
never end a sentence, all hypotheses of all systems have the same length. Tokens are those of the
best hypotheses, ``</s>`` included.

agreement takes ``--checkpoints`` and the ``--data`` they were trained on.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import packed_agreement
import packed_start
import packed_translation
import shared_options
import torch
from cells import Cells
from peers import Size

QUESTIONS = {
    "translation": packed_translation.translation,
    "start": packed_start.start,
    "agreement": packed_agreement.agreement,
}

OWN = ("json", "files", "checkpoints", "data")  # paths of this machine


def arguments() -> argparse.ArgumentParser:
    parser = shared_options.parser_with(
        __doc__,
        **{"threads": [1, 2], "batches": [1, 8], "words": 25, "repeats": 15, "budget": 100.0},
        **{"embed_dim": 1024, "ffn_embed_dim": 4096, "heads": 16, "layers": 6},
        vocabulary=32_000,
    )
    add = parser.add_argument
    add("question", choices=QUESTIONS, help="`start` takes the last of --threads, one of --batches")
    add("--beam", type=int, default=4)
    add("--files", type=Path, help="folder of the systems, made if missing; a temporary one if not")
    add("--checkpoints", type=Path, nargs="+", default=[], help="of binary models")
    add("--data", type=Path, help="folder of fairseq-preprocess with a test set")
    add("--max-tokens", type=int, default=4000, help="of a batch, for agreement")
    return parser


@contextmanager
def systems(options: Namespace) -> Iterator[Path]:
    """Folder with the systems' files."""
    import packed_systems

    with tempfile.TemporaryDirectory() as temporary:
        folder = options.files or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / packed_systems.LAST).exists():
            packed_systems.write(folder, Size.of(options))
        yield folder


def main(words: list[str] | None = None) -> None:
    options = arguments().parse_args(words)
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(options.threads[0])
    answer = QUESTIONS[options.question]
    if options.question == "agreement":
        cells: Cells = answer(options)
    else:
        with systems(options) as folder:
            cells = answer(options, folder)
    settings = shared_options.settings(options, without=OWN)
    cells.save(options.json, {name: str(value) for name, value in settings.items()})
    if options.json is not None and options.question == "translation":
        packed_translation.draw(cells, options.json)


if __name__ == "__main__":
    main()
