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
from argparse import Namespace
from typing import Any

import muse_layers
import muse_translation
import shared_options
from cells import Cells

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
    parser = shared_options.parser_with(
        __doc__,
        **{"threads": 2, "device": "cpu", "dtype": "fp32"},
        **dict.fromkeys(("repeats", "warmup", "budget", "tokens", "embed_dim")),
        **{"limit": 60.0, "lengths": [25, 50, 100, 200, 400], "layers": 6},
        **{"ffn_embed_dim": 1024, "heads": 4, "vocabulary": 8848},  # IWSLT14 De-En's German side
        **{"dropout": 0.3, "sentences": 29_000, "batches": [1, 32, 128], "words": 20},
    )
    add = parser.add_argument
    add("question", choices=[*QUESTIONS, shared_options.ALL])
    add("--source-words", type=int, default=20, help="to translate, on average")
    return parser


def own(question: str, options: Namespace) -> dict[str, Any]:
    """A question's values where an option is not given."""
    return DEFAULTS[question] | (CUDA if options.device.startswith("cuda") else {})


def draw(question: str, cells: Cells, options: Namespace) -> None:
    """Draw time per token of the gated pair over T, ours and fairseq's."""
    if question != "convolution":
        return
    import pictures

    pair = next(iter(muse_layers.KERNELS))
    names = [*muse_layers.PATHS, muse_layers.OURS]
    series = {
        f"Convolution {pair}, {pass_name}": f"{pair}, {pass_name}"
        for pass_name in muse_layers.PASSES
    }
    panels = {title: (pass_name, names) for title, pass_name in series.items()}
    pictures.draw(cells, panels, options.json, order=names, xlabel="T (tokens in a sentence)")


if __name__ == "__main__":
    shared_options.ask(QUESTIONS, arguments().parse_args(), own, draw)
