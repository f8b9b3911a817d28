"""Sizes of packed files of an architecture with random weights: no training is needed for them.

``python recipes/bmt/packed_sizes.py --arch bmt_wmt_de_en --words 32000 -o packed_sizes.json``
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask

from fairseq_ext import register
from fairseq_ext.binary.packed import byte_counts, model_file, pack
from fairseq_ext.utils import files

KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"dtype": "bf16"},
    "bf16, int8 tables": {"dtype": "bf16", "int8_embeddings": True},
}


def dictionary(size: int) -> Dictionary:
    """A dictionary of ``size`` symbols."""
    words = Dictionary()
    for index in range(size - words.nspecial):
        words.add_symbol(f"word{index}")
    return words


def main() -> None:
    """Build, pack and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="bmt_wmt_de_en")
    parser.add_argument("--words", type=int, default=32_000, help="symbols of the dictionary")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    register()
    flags = options.parse_args_and_arch(
        options.get_training_parser(), ["data", "--arch", args.arch]
    )
    cfg = convert_namespace_to_omegaconf(flags)
    words = dictionary(args.words)
    task = TranslationTask(cfg.task, words, words)
    model = task.build_model(cfg.model)
    sizes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        for name, how in KINDS.items():
            model_file.write(pack.pack(model, cfg, task, **how), path)
            sizes[name] = byte_counts.count(path)
            del sizes[name]["file"]
            print(f"{name}: {sizes[name]['bytes']['all'] / 2**20:.1f} MiB")
    report = {"architecture": args.arch, "words": args.words, "weights": "random", "files": sizes}
    with files.atomic_write(args.output) as file:
        file.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
