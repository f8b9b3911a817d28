#!/usr/bin/env python
"""Byte-level byte-pair encoding as in GPT-2 and BART, from their files, as fairseq token ids.

    python preprocess/byte_bpe.py decode --vocabulary encoder.json --merges vocab.bpe \\
        hyp.ids > hyp.de
    python preprocess/byte_bpe.py train text.en text.de --size 1000 --out DIR

A line becomes the ids of its pieces with a space between, as fairseq's ``--bpe gpt2`` writes
them. The work is done by the `tokenizers` library.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_ext.text.byte_level import FILES, ByteBPE, lines_of, train


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = options.add_subparsers(required=True, dest="command")
    back = commands.add_parser("decode", help="ids, a sentence per line, back to text")
    back.add_argument("ids", type=Path, help="file of ids")
    back.add_argument("--vocabulary", type=Path, required=True, help="encoder.json or vocab.json")
    back.add_argument("--merges", type=Path, required=True, help="vocab.bpe or merges.txt")
    learn = commands.add_parser("train", help="learn a small encoding from text")
    learn.add_argument("text", nargs="+", type=Path, help="files, one sentence per line")
    learn.add_argument("--size", type=int, default=1000, help="how many ids (default: %(default)s)")
    learn.add_argument("--out", type=Path, required=True, help=f"folder for {' and '.join(FILES)}")
    return options


def main() -> None:
    """Run the command; a user's error ends it with one line and status 1."""
    args = parser().parse_args()
    try:
        if args.command == "train":
            print(f"{train(args.text, args.size, args.out):,} ids in {args.out}")
            return
        bpe = ByteBPE.load(args.vocabulary, args.merges)
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        sys.stdout.writelines(f"{bpe.decode(line.split())}\n" for line in lines_of([args.ids]))
    except (OSError, ValueError) as error:
        raise SystemExit(f"byte_bpe: error: {error}") from None


if __name__ == "__main__":
    main()
