"""MUSE against fairseq's transformer and its dynamic convolution, one question at a time.

``python benchmarks/muse.py generation --threads 2 --json docs/results/muse_generation.json``

Questions:
  generation   beam-5 generation at batches of 1, 32 and 128 sentences (the paper's table 4): tokens
               per second of transformer, MUSE-simple and MUSE of one size, separate and fused
  training     training steps on batches of Multi30k's lengths: named architectures, and
               MUSE-simple in the transformer's shape
  convolution  the dynamic convolution alone over T, against both paths of fairseq's
  all          all of them; each writes its own file, --json x.json gives x_generation.json …

Before a question is timed, what should compute the same function is checked to do so. Candidates
take turns in every round; tables show medians and quartiles of the rounds' ratios, which are the
peer's time over ours: above 1 ours is faster. Half precision is that of weights and activations
alike (no autocast).
"""

from __future__ import annotations

import argparse
import gc
import logging
from argparse import Namespace
from pathlib import Path

import muse_layers
import muse_translation
import torch
from cells import Cells
from peers import DTYPES

QUESTIONS = {
    "generation": muse_translation.generation,
    "training": muse_translation.training,
    "convolution": muse_layers.convolution,
}
# What each question takes where an option is not given, and on a GPU in place of that.
DEFAULTS = {
    "generation": {"embed_dim": 512, "repeats": 21, "warmup": 1, "budget": 30.0},
    "training": {"embed_dim": 512, "repeats": 21, "warmup": 1, "budget": 150.0, "tokens": 4000},
    "convolution": {"embed_dim": 384, "repeats": 21, "warmup": 3, "budget": 6.0, "tokens": 3200},
}
CUDA = {"repeats": 41, "warmup": 5}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("question", choices=[*QUESTIONS, "all"])
    add("--threads", type=int, default=2, help="torch threads")
    add("--device", default="cpu", help="cpu or cuda")
    add("--dtype", choices=DTYPES, default="fp32", help="of weights and activations")
    add("--repeats", type=int, help="rounds that count, three at least")
    add("--warmup", type=int, help="rounds before them")
    add("--budget", type=float, help="seconds after which a cell stops, three rounds done")
    add("--limit", type=float, default=60.0, help="seconds; what is slower leaves later cells")
    add("--lengths", type=int, nargs="+", default=[25, 50, 100, 200, 400], help="T")
    add("--tokens", type=int, help="of a batch, in training and convolution")
    add("--layers", type=int, default=6, help="of the encoder, and of the decoder")
    add("--embed-dim", type=int, help="512; of the convolution alone MUSE-base's 384")
    add("--ffn-embed-dim", type=int, default=1024)
    add("--heads", type=int, default=4)
    add("--vocabulary", type=int, default=8848, help="default: IWSLT14 De-En's German side")
    add("--dropout", type=float, default=0.3, help="in training steps")
    add("--sentences", type=int, default=29_000, help="that training batches are made of")
    add("--batches", type=int, nargs="+", default=[1, 32, 128], help="sentences, in generation")
    add("--source-words", type=int, default=20, help="to translate, on average")
    add("--words", type=int, default=20, help="to generate for each sentence")
    add("--json", type=Path, help="where to write the figures; pictures lie beside")
    return parser


def filled(options: Namespace, question: str) -> Namespace:
    """The options, with the question's own values where none were given."""
    own = DEFAULTS[question] | (CUDA if options.device.startswith("cuda") else {})
    given = {name: value for name, value in vars(options).items() if value is not None}
    path = options.json
    if path is not None and options.question == "all":
        path = path.with_name(f"{path.stem}_{question}{path.suffix}")
    return Namespace(**{**own, **given, "json": path})


def draw(cells: Cells, output: Path) -> None:
    """Time per token of the gated pair over T, ours and fairseq's."""
    import pictures

    pair = next(iter(muse_layers.KERNELS))
    names = [*muse_layers.PATHS, muse_layers.OURS]
    series = {f"Convolution {pair}, {what}": f"{pair}, {what}" for what in muse_layers.PASSES}
    panels = {title: (what, names) for title, what in series.items()}
    pictures.draw(cells, panels, output, order=names, xlabel="T (tokens in a sentence)")


def answer(question: str, options: Namespace) -> Cells:
    """Measure, print, write."""
    title = f"== {question} on {options.device}, {options.dtype}, {torch.get_num_threads()} threads"
    print(f"\n{title}")
    cells = QUESTIONS[question](options)
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    cells.save(options.json, settings)
    if options.json is not None and question == "convolution":
        draw(cells, options.json)
    return cells


def main() -> None:
    options = arguments().parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger().setLevel(logging.WARNING)
    for question in QUESTIONS if options.question == "all" else [options.question]:
        answer(question, filled(options, question))
        gc.collect()


if __name__ == "__main__":
    main()
