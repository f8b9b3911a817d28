"""Linformer against fairseq's Transformer and torch's fused attention, one question at a time.

``python benchmarks/linformer.py encoder --threads 2 --json docs/results/linformer_encoder.json``

Questions:
  encoder     time of the encoder over n, forward and training step (the paper's figure 2)
  flat        our encoders' time per token at constant tokens, with more rounds than in `encoder`
  attention   time of the attention alone over n, without and with its linear layers
  seq2seq     forward of encoder and decoder over n (figure 1), and training steps at the paper's
              mix of lengths (table 4)
  memory      peak memory of the encoder over n
  generation  beam-5 generation over the source's length, and the bytes of the cross-attention cache
  all         all of them; each writes its own file, --json x.json gives x_encoder.json …

Before a question is timed, the peers are checked to compute what fairseq's encoder computes.
Candidates take turns in every round; tables show medians and quartiles of the rounds' ratios, which
are the peer's time over ours: above 1 the Linformer is faster. A peer that needs more than --limit
seconds for a pass, or too much memory, is not run at larger n. Half precision is that of weights
and activations alike (no autocast).
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from typing import Any

import linformer_encoder
import linformer_translation
import shared_options
from cells import Cells
from linformer_encoder import FUSED, STOCK

QUESTIONS = {
    "encoder": linformer_encoder.encoder,
    "flat": linformer_encoder.flat,
    "attention": linformer_encoder.attention,
    "seq2seq": linformer_translation.seq2seq,
    "memory": linformer_encoder.memory,
    "generation": linformer_translation.generation,
}


def powers(first: int, last: int, factor: int = 2) -> list[int]:
    values = [first]
    while values[-1] * factor <= last:
        values.append(values[-1] * factor)
    return values


# What each question takes where an option is not given: sizes for two CPU cores, then for a GPU.
COMMON = {
    "k": [32, 64, 128],
    "repeats": 11,
    "layers": 6,
    "tokens": 4096,
    "budget": 20.0,
    "limit": 8.0,
    "warmup": 1,
    "sentences": 16,
}
CPU = {
    # Two layers, as torch computes the first one's products otherwise: its input is a transpose.
    "encoder": {
        "lengths": powers(32, 32_768),
        "layers": 2,
        "tokens": 2048,
        "budget": 10.0,
        "limit": 3.0,
    },
    "flat": {"lengths": powers(512, 32_768, 4), "layers": 2, "budget": 60.0},
    "attention": {"lengths": powers(16, 8192), "repeats": 21},
    "seq2seq": {"lengths": powers(32, 1024), "k": [32, 64], "tokens": 1024, "budget": 30.0},
    "memory": {"lengths": powers(32, 32_768, 4), "layers": 2, "tokens": 8192},
    "generation": {"lengths": powers(32, 2048), "k": [32], "budget": 15.0, "limit": 30.0},
}
CUDA = {
    "encoder": {"lengths": powers(32, 32_768)},
    "flat": {"lengths": powers(512, 32_768, 4)},
    "attention": {"lengths": powers(16, 32_768)},
    "seq2seq": {"lengths": powers(32, 8192), "k": [32, 64], "sentences": 88},
    "memory": {"lengths": powers(32, 32_768)},
    "generation": {"lengths": powers(32, 2048), "k": [32]},
}
COMMON_CUDA = {"tokens": 32_768, "repeats": 21, "warmup": 5}


def arguments() -> argparse.ArgumentParser:
    parser = shared_options.parser_with(
        __doc__,
        **{"threads": 2, "device": "cpu", "dtype": "fp32"},
        **dict.fromkeys(("repeats", "warmup", "budget", "limit", "tokens", "layers", "sentences")),
        **{"embed_dim": 512, "ffn_embed_dim": 2048, "heads": 8, "vocabulary": 50_272},
        **{"dropout": 0.1, "batches": [1, 8], "words": 32},
    )
    add = parser.add_argument
    add("question", choices=[*QUESTIONS, shared_options.ALL])
    add("--lengths", type=int, nargs="+", help="n, ascending")
    add("--k", type=int, nargs="+", help="slots")
    add("--fused-training", action="store_true", help="training steps of the fused peer too")
    return parser


def own(question: str, options: Namespace) -> dict[str, Any]:
    """A question's values where an option is not given."""
    cuda = options.device.startswith("cuda")
    return COMMON | (COMMON_CUDA | CUDA[question] if cuda else CPU[question])


def panels(question: str, slots: list[int]) -> dict[str, tuple[str, list[str]]]:
    """Return the panels of a question's picture."""
    ours, largest = [f"k={k}" for k in slots], f"k={max(slots)}"
    if question == "encoder":
        return {
            "Encoder, forward": ("forward", [STOCK, FUSED, largest]),
            "Linformer's k": ("forward", ours),
            "Encoder, training step": ("training step", [STOCK, FUSED, *ours]),
        }
    if question == "flat":
        return {"Encoder, as many tokens at every n": (linformer_encoder.CONSTANT, ours)}
    if question == "attention":
        return {"Attention alone": ("core", [FUSED, *ours])}
    if question == "seq2seq":
        return {"Encoder and decoder, forward": ("forward", [STOCK, FUSED, *ours])}
    return {}


def draw(question: str, cells: Cells, options: Namespace) -> None:
    """Time per token over n."""
    shown = panels(question, options.k)
    if shown:
        import pictures

        pictures.draw(cells, shown, options.json)


if __name__ == "__main__":
    shared_options.ask(QUESTIONS, arguments().parse_args(), own, draw)
