"""Measure the cost of binarization in training: steps of BMT with binarization and without.

``python benchmarks/bmt.py --threads 2 --json docs/results/bmt_training.json``

BMT is a Transformer with binary weights. A step is forward, loss, backward and Adam on a batch of
random sentences with Multi30k's lengths. The script times these models, all of one size, in turn:

- BMT's float model: its architecture without any binarization;
- the models of the paper's Table 1, with all binarization that they have at the end of training;
- fairseq's Transformer with layer norm before each sublayer.

Ratios are the float model's time divided by the other model's.
"""

import argparse
from argparse import Namespace

import bench
from bench import Cells, Stopwatch
from muse import LONGEST, pair_batches
from peers import DTYPES, Side, Size

FLOAT, STOCK = "float", "transformer (pre-norm)"
ROWS = ("bmt-1", "bmt-2", "bmt-3", "bmt-6", "bmt-8", "xnor-base")


def arguments() -> argparse.ArgumentParser:
    parser = bench.parser_with(
        __doc__,
        **{"threads": 2, "device": "cpu", "dtype": "fp32"},
        **{"repeats": 21, "warmup": 1, "budget": 150.0, "limit": 60.0, "tokens": 4000},
        **{"embed_dim": 512, "ffn_embed_dim": 2048, "heads": 8, "layers": 6, "vocabulary": 8848},
        **{"dropout": 0.1, "sentences": 29_000},
    )
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="presets of BMT to time")
    return parser


def learners(options: Namespace) -> dict[str, Side]:
    """Build the models to time, by name: BMT's presets, and fairseq's Transformer."""
    size = Size.of(options)
    flags = {name: ["--arch", "bmt", "--bmt-preset", name] for name in (FLOAT, *options.rows)}
    pre_norm = ["--encoder-normalize-before", "--decoder-normalize-before"]
    flags[STOCK] = ["--arch", "transformer", *pre_norm]
    where = {
        "device": options.device,
        "dtype": DTYPES[options.dtype],
        "dropout": options.dropout,
        "positions": LONGEST,
    }
    return {name: Side(words, size, **where) for name, words in flags.items()}


def training(options: Namespace) -> Cells:
    cells = Cells(f"Training step of BMT, {options.dtype}", unit="tokens_per_second")
    samples = pair_batches(options)
    tokens = sum(sample["ntokens"] for sample in samples) / len(samples)
    cells.note(
        f"{options.layers} + {options.layers} layers of {options.embed_dim} / "
        f"{options.ffn_embed_dim}, vocabulary {options.vocabulary:,}; batches drawn like "
        f"Multi30k's, {tokens:,.0f} target tokens on average, another in each round"
    )
    sides = learners(options)
    steps = {name: side.train_steps(samples) for name, side in sides.items()}
    pairs = [(name, FLOAT) for name in sides if name != FLOAT]
    Stopwatch(options).measure(cells, "training step", None, steps, pairs, tokens=tokens)
    return cells


def main() -> None:
    options = arguments().parse_args()
    bench.begin(options)
    training(options).save(options.json, bench.settings(options))


if __name__ == "__main__":
    main()
