"""Measure time and memory of fairseq-train from its start to the first update, by corpus size.

    python benchmarks/data_start.py --json docs/results/data_start.json

Each run is a process in which fairseq-train trains a tiny model for one update, on a random corpus
in the format of fairseq-preprocess. Runs with the plugin and runs of stock fairseq take turns.

- Times are processor times.
- Memory is the largest resident memory.
- "private" memory leaves out mapped files, which processes share and the system can drop. It is
  read every 5 ms, and the largest value counts.
- "own" figures are the figures of a corpus minus those of a very small corpus of --base pairs. They
  show what the data takes, without the start of Python and the model.
"""

import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from typing import Any

import bench
import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset
from watching import ENVIRONMENT, Watch

USER_DIR = Path(__file__).parent.parent / "user_dir"
PLUGIN, STOCK = "plugin", "stock"
SIDES = {PLUGIN: ["--user-dir", str(USER_DIR)], STOCK: []}
LONGEST = 49  # most tokens of a sentence, without </s>
LOOK = 0.005  # seconds
TINY = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 "
TINY += "--encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --share-all-embeddings "
TINY += "--encoder-attention-heads 2 --decoder-attention-heads 2"
TRAIN = "--arch transformer --optimizer adam --lr 0.001 --criterion cross_entropy --cpu "
TRAIN += "--max-update 1 --no-save --disable-validation --num-workers 0 --no-progress-bar"


def arguments() -> Namespace:
    parser = bench.parser_with(__doc__, repeats=5, tokens=4_000, vocabulary=1_000)
    add = parser.add_argument
    pairs = [1_000_000, 4_000_000, 16_000_000]
    add("--pairs", type=int, nargs="+", default=pairs, help="sentence pairs of each corpus")
    add("--base", type=int, default=1_000, help="pairs of the run to subtract from the others")
    return parser.parse_args()


def write(folder: Path, pairs: int, vocabulary: int) -> Path:
    """Write ``pairs`` random pairs and dictionaries like fairseq-preprocess; return the folder."""
    folder.mkdir()
    generator = np.random.default_rng(1)
    for side in ("src", "tgt"):
        lines = "".join(f"w{number} 1\n" for number in range(vocabulary - 4))  # fairseq adds four
        (folder / f"dict.{side}.txt").write_text(lines)
        sizes = generator.integers(2, LONGEST + 2, pairs).astype(np.int32)  # with </s>
        tokens = generator.integers(4, vocabulary, int(sizes.sum()), np.uint16)
        tokens[np.cumsum(sizes) - 1] = 2  # </s>
        name = folder / f"train.src-tgt.{side}"
        tokens.tofile(f"{name}.bin")
        with MMapIndexedDataset.Index.writer(f"{name}.idx", np.uint16) as index:
            index.write(sizes)
    return folder


def start(data: Path, side: str, tokens: int) -> dict[str, float]:
    """Run fairseq-train for one update; return its processor seconds, and MiB of memory.

    ``side`` is ``plugin`` or ``stock``, and ``tokens`` the value of ``--max-tokens``. If training
    fails, end this script.
    """
    command = [sys.executable, "-m", "fairseq_cli.train", str(data), *TRAIN.split(), *TINY.split()]
    command += ["--max-tokens", str(tokens), *SIDES[side]]
    with (
        subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        Watch(process.pid, look=LOOK) as watch,
    ):
        output, _ = process.communicate()
    if "done training" not in output:  # stock fairseq may crash afterwards, at its end
        raise SystemExit(output[-2000:])
    return {
        "cpu_seconds": watch.cpu_seconds,
        "mebibytes": watch.peak,
        "private_mebibytes": watch.private,
    }


def measure(options: Namespace, folder: Path, pairs: int) -> dict[str, dict[str, list[float]]]:
    """Measure ``plugin`` and ``stock`` in turn on a corpus of ``pairs`` sentence pairs.

    Return the values of all rounds, by side and by name of the figure.
    """
    data = write(folder / str(pairs), pairs, options.vocabulary)
    rounds: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in SIDES}
    start(data, PLUGIN, options.tokens)  # so that the files are in the cache
    for number in range(options.repeats):
        for side in list(SIDES)[:: 1 if number % 2 else -1]:
            for name, value in start(data, side, options.tokens).items():
                rounds[side][name].append(value)
    return rounds


def row(
    pairs: int,
    rounds: dict[str, dict[str, list[float]]],
    base_rounds: dict[str, dict[str, list[float]]],
) -> dict[str, Any]:
    """Return a corpus's medians, and the ratios of the plugin's figures to those of stock fairseq.

    ``rounds`` and ``base_rounds`` are results of :func:`measure`, for this corpus and for the very
    small corpus of ``--base`` pairs. Keys with ``own`` have differences: the medians of this corpus
    minus those of the very small corpus, or ratios of such differences.
    """
    figures: dict[str, Any] = {"pairs": pairs}
    for name in rounds[PLUGIN]:
        medians = {side: statistics.median(rounds[side][name]) for side in SIDES}
        base_medians = {side: statistics.median(base_rounds[side][name]) for side in SIDES}
        without_base = {side: medians[side] - base_medians[side] for side in SIDES}
        figures |= {f"{side}_{name}": value for side, value in medians.items()}
        figures |= {f"{side}_own_{name}": value for side, value in without_base.items()}
        shares = [a / b for a, b in zip(rounds[PLUGIN][name], rounds[STOCK][name], strict=True)]
        figures[f"{name}_share_quartiles"] = bench.quartiles(shares)
        if without_base[STOCK] > 0:
            figures[f"{name}_own_share"] = without_base[PLUGIN] / without_base[STOCK]
    return figures


def main() -> None:
    options = arguments()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        base_rounds = measure(options, Path(folder), options.base)
        rows.append(row(options.base, base_rounds, base_rounds))
        for pairs in options.pairs:
            rows.append(row(pairs, measure(options, Path(folder), pairs), base_rounds))
            print(rows[-1], flush=True)
    settings = bench.settings(options)
    bench.save(options.json, title="Start of a training", settings=settings, rows=rows)


if __name__ == "__main__":
    main()
