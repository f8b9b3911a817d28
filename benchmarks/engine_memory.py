"""Resident memory of a process that translates many sentences with the engine.

``python benchmarks/engine_memory.py --model FILE --input TOKENS --json docs/results/X.json``

The lines of a file are drawn at random, again and again, and translated a thousand at a time, as
`fairseq-ext translate` does it. The model is a bundle or, with --data, a checkpoint.
"""

from __future__ import annotations

import argparse
import random
from argparse import Namespace
from pathlib import Path

import bench

from fairseq_ext.decoding.search import Translates

MIB = 1 << 20


def load(options: Namespace) -> Translates:
    if options.data is None:
        from fairseq_ext.decoding.engine_translator import EngineTranslator
        from fairseq_ext.model.program_file import read

        return EngineTranslator(read(options.model))
    from fairseq_ext import register

    register()
    from fairseq_ext.decoding.translator import Translator

    return Translator(options.data, [options.model])


def measure(translator: Translates, lines: list[str], options: Namespace) -> list[dict[str, float]]:
    """Measure memory before the first sentence, and after every ``--every``."""
    generator, rows = random.Random(1), []
    for count in range(0, options.sentences + 1, options.every):
        if count:
            translator.translate(generator.choices(lines, k=options.every))
        rows.append({"sentences": count, "resident_mib": bench.resident_memory() / MIB})
        print(f"{count:8,} sentences {rows[-1]['resident_mib']:9.1f} MiB", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    option = parser.add_argument
    option("--model", type=Path, required=True, help="engine model, or checkpoint")
    option("--data", type=Path, help="a binarized corpus, for a checkpoint")
    option("--input", type=Path, required=True, help="source tokens, a sentence per line")
    option("--sentences", type=int, default=10_000)
    option("--every", type=int, default=1_000, help="sentences between two records")
    option("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    translator = load(options)
    lines = options.input.read_text(encoding="utf-8").splitlines()
    fit = [
        line
        for line, length in zip(lines, translator.lengths(lines), strict=True)
        if line.strip() and length <= translator.limit
    ]
    rows = measure(translator, fit, options)
    if options.json is not None:
        title = "Resident memory of a process that translates"
        bench.save(options.json, title=title, figures=rows)


if __name__ == "__main__":
    main()
