#!/usr/bin/env python
"""Print the flags for fairseq's cosine schedule over a number of epochs of a training text.

    python recipes/updates.py --text bpe/train.en --batch-size 88 --epochs 10 --warmup 4000 \\
        --init-lr 1e-7 --lr 1e-4 --min-lr 1e-6

A recipe gives the length of the schedule in epochs, but fairseq takes it in updates, which this
script computes.
"""

import argparse
import sys
from pathlib import Path


def updates(pairs: int, batch_size: int, epochs: int) -> int:
    """Return the number of updates that fairseq does in ``epochs`` epochs.

    Each update is a batch of ``batch_size`` pairs, but the last batch of an epoch may be smaller.
    The number is right under these conditions:

    - ``--required-batch-size-multiple 1``; else fairseq splits the last batch in two;
    - no ``--max-tokens``, ``--update-freq 1``, and one device;
    - no pair is left out for its length.
    """
    return -(-pairs // batch_size) * epochs


def schedule(total: int, warmup: int, init_lr: float, lr: float, min_lr: float) -> list[str]:
    """Return flags for a linear warm-up, then a cosine from ``lr`` to ``min_lr`` at ``total``.

    The warm-up begins at ``init_lr`` and takes ``warmup`` updates. After ``total`` updates fairseq
    restarts the cosine at ``lr`` times ``--lr-shrink``. The flags set this factor to ``min_lr /
    lr``, so the restart begins where the cosine ends.
    """
    if not 0 <= warmup < total:
        raise ValueError(
            f"`--warmup` must be less than the {total} updates of the run, but is {warmup}; about "
            "a tenth of them is usual."
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = options.add_argument
    add("--text", type=Path, required=True, help="training text, one sentence per line")
    add("--batch-size", type=int, required=True, help="sentences in a batch")
    add("--epochs", type=int, required=True, help="length of the run")
    add("--warmup", type=int, default=4000, help="updates of warm-up (default: %(default)s)")
    add("--init-lr", type=float, default=1e-7, help="rate at update 0 (default: %(default)s)")
    add("--lr", type=float, default=1e-4, help="rate after the warm-up (default: %(default)s)")
    add("--min-lr", type=float, default=1e-6, help="rate at the end (default: %(default)s)")
    args = options.parse_args()
    try:
        with args.text.open("rb") as file:
            pairs = sum(1 for _ in file)
        total = updates(pairs, args.batch_size, args.epochs)
        flags = schedule(total, args.warmup, args.init_lr, args.lr, args.min_lr)
    except (OSError, ValueError) as error:
        sys.exit(f"updates: error: {error}")
    print(f"{total:,} updates in {args.epochs} epochs", file=sys.stderr)
    print(*flags)


if __name__ == "__main__":
    main()
