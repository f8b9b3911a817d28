#!/usr/bin/env python
"""Print the flags of fairseq's cosine schedule for a given number of epochs and data set.

    python recipes/updates.py --bin bin --src en --tgt de --batch-size 88 --epochs 10 \\
        --warmup 4000 --init-lr 1e-7 --lr 1e-4 --min-lr 1e-6

fairseq wants the length of the schedule in updates; a recipe has it in epochs. And its cosine is
one of restarts: at its end the learning rate jumps back to ``--lr`` times ``--lr-shrink``.
"""

from __future__ import annotations

import argparse
import struct
import sys
from pathlib import Path

HEADER = struct.Struct("<9sQBQ")  # magic, version, type of a token, number of sentences
MAGIC = b"MMIDIDX\x00\x00"


def sentences(data: Path, src: str, tgt: str) -> int:
    """Count the training pairs in a folder that ``fairseq-preprocess`` wrote.

    Raises:
        ValueError: no such data, or not in fairseq's default format.
    """
    path = data / f"train.{src}-{tgt}.{src}.idx"
    if not path.is_file():
        raise ValueError(f"`{path}` does not exist; give the folder of fairseq-preprocess.")
    head = path.read_bytes()[: HEADER.size] if path.stat().st_size >= HEADER.size else b""
    if not head.startswith(MAGIC):
        raise ValueError(f"`{path}` is damaged or not of fairseq's format `mmap`; binarize again.")
    return HEADER.unpack(head)[3]


def updates(pairs: int, batch_size: int, epochs: int) -> int:
    """Count fairseq's updates: a smaller batch at the end of an epoch is one, too.

    This holds with ``--required-batch-size-multiple 1`` (else fairseq splits the last batch in
    two), no ``--max-tokens``, ``--update-freq 1``, one device, and no pair left out for its length.
    """
    return -(-pairs // batch_size) * epochs


def schedule(total: int, warmup: int, init_lr: float, lr: float, min_lr: float) -> list[str]:
    """Return flags for a linear warm-up, then a cosine from ``lr`` to ``min_lr`` at ``total``.

    A restart begins at ``lr`` times the shrink factor. With ``min_lr / lr`` for that factor it
    begins where the cosine ends, so there is no jump, however long the run goes on.

    Raises:
        ValueError: the warm-up leaves no update for the cosine, or the rates are in disorder.
    """
    if not 0 <= warmup < total:
        raise ValueError(
            f"`--warmup` must be less than the {total} updates of the run, but is {warmup}; some "
            "tenth of them is usual."
        )
    if not 0 < min_lr <= lr or not 0 <= init_lr <= lr:
        raise ValueError(
            "`--init-lr` and `--min-lr` must not be above `--lr`, and `--min-lr` must be above 0, "
            f"but they are {init_lr:g}, {min_lr:g} and {lr:g} instead."
        )
    flags = {
        "--lr-scheduler": "cosine",
        "--warmup-updates": warmup,
        "--warmup-init-lr": repr(init_lr),
        "--lr": repr(lr),
        "--min-lr": repr(min_lr),
        "--lr-period-updates": total - warmup,
        "--lr-shrink": repr(min_lr / lr),
    }
    return [str(word) for pair in flags.items() for word in pair]


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = options.add_argument
    add("--bin", type=Path, required=True, help="folder that fairseq-preprocess wrote")
    add("--src", required=True, help="source language")
    add("--tgt", required=True, help="target language")
    add("--batch-size", type=int, required=True, help="sentences in a batch")
    add("--epochs", type=int, required=True, help="length of the run")
    add("--warmup", type=int, default=4000, help="updates (default: %(default)s)")
    add("--init-lr", type=float, default=1e-7, help="at update 0 (default: %(default)s)")
    add("--lr", type=float, default=1e-4, help="after the warm-up (default: %(default)s)")
    add("--min-lr", type=float, default=1e-6, help="at the end (default: %(default)s)")
    return options


def main() -> None:
    """Print the flags; a user's error ends it with one line and status 1."""
    args = parser().parse_args()
    try:
        total = updates(sentences(args.bin, args.src, args.tgt), args.batch_size, args.epochs)
        flags = schedule(total, args.warmup, args.init_lr, args.lr, args.min_lr)
    except (OSError, ValueError) as error:
        sys.exit(f"updates: error: {error}")
    print(f"{total:,} updates in {args.epochs} epochs", file=sys.stderr)
    print(*flags)


if __name__ == "__main__":
    main()
