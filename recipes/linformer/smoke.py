#!/usr/bin/env python
"""Make small stand-ins for the Kaggle files and GPT-2's encoding from sentence pairs.

python recipes/linformer/smoke.py --pairs pairs --src en --tgt de --out csv --encoding encoding
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

from fairseq_ext.text.byte_level import FILES

NAMES = {"train": "train", "valid": "validation", "test": "test"}


def write_csv(pairs: Path, src: str, tgt: str, out: Path) -> None:
    """Write ``wmt14_translate_de-en_*.csv``, with the columns ``TGT,SRC``, into ``out``.

    The text is in ``{split}.{language}`` of the folder ``pairs``. Every fifth pair is put in
    quotation marks and broken into two lines, as in Kaggle's files.
    """
    out.mkdir(parents=True, exist_ok=True)
    for split, name in NAMES.items():
        sides = [(pairs / f"{split}.{side}").read_text("utf-8").split("\n") for side in (tgt, src)]
        path = out / f"wmt14_translate_de-en_{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow((tgt, src))
            for number, row in enumerate(zip(*(side[:-1] for side in sides), strict=True)):
                odd = number % 5 == 0
                table.writerow([f'"{cell}"'.replace(" ", "\n", 1) if odd else cell for cell in row])


def train(texts: Sequence[Path], size: int, out: Path) -> int:
    """Learn a byte-level encoding, and write it as :data:`FILES`; return its number of ids.

    ``size`` (at least 257) is the number of ids to learn, ``<|endoftext|>`` included; a small text
    gives fewer. Equal text gives equal files.
    """
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(
        [str(path) for path in texts],
        vocab_size=size,
        min_frequency=0,
        show_progress=False,
        special_tokens=["<|endoftext|>"],
    )
    out.mkdir(parents=True, exist_ok=True)
    for path, name in zip(tokenizer.save_model(str(out)), FILES, strict=True):
        Path(path).rename(out / name)
    return tokenizer.get_vocab_size()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pairs", type=Path, required=True, help="folder with the text")
    parser.add_argument("--src", required=True, help="source language")
    parser.add_argument("--tgt", required=True, help="target language")
    parser.add_argument("--out", type=Path, required=True, help="folder for the CSV files")
    parser.add_argument("--size", type=int, default=600, help="ids of the encoding (%(default)s)")
    parser.add_argument("--encoding", type=Path, required=True, help="folder for the encoding")
    args = parser.parse_args()
    write_csv(args.pairs, args.src, args.tgt, args.out)
    texts = [args.pairs / f"train.{side}" for side in (args.src, args.tgt)]
    train(texts, args.size, args.encoding)


if __name__ == "__main__":
    main()
