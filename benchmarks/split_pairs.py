"""Measure memory, time and disk of `fairseq-ext corpus pairs`, which cleans and splits a corpus.

    python benchmarks/split_pairs.py --json docs/results/split_pairs.json
    python benchmarks/split_pairs.py --pairs 100000 1000000 10000000 100000000 --workers 2

The command runs once for each number of pairs in --pairs and each number of processes in --workers.
A pair is two random sentences of 1 to 20 words. A tenth of the pairs repeat an earlier pair,
and another tenth repeat only an earlier source. Memory is the resident memory of the command's
largest process. Disk is the largest size of its output folder, hidden files too, during the run.
"""

import logging
import random
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import bench
import watching

COMMAND = (sys.executable, "-m", "fairseq_ext", "corpus", "pairs")
LONGEST = 20  # most words of a sentence
BLOCK = 10_000  # pairs written at a time; a repeated pair is in the same block


def arguments() -> Namespace:
    parser = bench.parser_with(__doc__, vocabulary=100_000)
    add = parser.add_argument
    pairs = [100_000, 1_000_000, 10_000_000]
    add("--pairs", type=int, nargs="+", default=pairs, help="sentence pairs of each text")
    add("--workers", type=int, nargs="+", default=[1], help="numbers of processes")
    add("--part-lines", type=int, default=200_000, help="pairs in a part")
    return parser.parse_args()


def random_lines(options: Namespace, count: int) -> Iterator[list[str]]:
    """Yield ``count`` lines in blocks; a line has two random sentences, separated by a tab."""
    draw = random.Random(1)
    vocabulary = [f"w{number}" for number in range(options.vocabulary)]

    def sentence() -> str:
        return " ".join(draw.choices(vocabulary, k=draw.randint(1, LONGEST)))

    for first in range(0, count, BLOCK):
        block: list[tuple[str, str]] = []
        for _ in range(min(BLOCK, count - first)):
            chance = draw.random() if block else 1
            if chance < 0.1:
                block.append(draw.choice(block))
            else:
                source = draw.choice(block)[0] if chance < 0.2 else sentence()
                block.append((source, sentence()))
        yield [f"{source}\t{target}\n" for source, target in block]


def measure(options: Namespace, source: Path, count: int, workers: int) -> dict[str, float]:
    """Run `corpus pairs` on a text of ``count`` pairs; return a row of figures."""
    held = min(1000, count // 100)
    with tempfile.TemporaryDirectory() as folder:
        words = [*COMMAND, source, "--src-lang", "de", "--tgt-lang", "en", "--out", f"{folder}/out"]
        words += ["--workers", workers, "--part-lines", options.part_lines]
        words += ["--valid", held, "--test", held]
        watch = watching.watched(words, Path(folder), stdout=subprocess.DEVNULL)
    row = {
        "pairs": count,
        "workers": workers,
        "seconds": watch.seconds,
        "cpu_seconds": watch.cpu_seconds,
        "peak_mib": watch.peak,
        "pairs_per_second": count / watch.seconds,
        "text_mib": source.stat().st_size / 2**20,
        "disk_mib": watch.disk,
    }
    print({name: round(value, 1) for name, value in row.items()}, flush=True)
    return row


def main() -> None:
    options = arguments()
    logging.getLogger().setLevel(logging.WARNING)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in options.pairs:
            source = Path(folder) / "pairs.tsv"
            with source.open("w", encoding="utf-8") as file:
                for block in random_lines(options, count):
                    file.writelines(block)
            rows += [measure(options, source, count, workers) for workers in options.workers]
    settings = bench.settings(options)
    bench.save(options.json, title="Splitting sentence pairs", settings=settings, rows=rows)


if __name__ == "__main__":
    main()
