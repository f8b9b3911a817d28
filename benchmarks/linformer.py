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
import gc
import logging
from argparse import Namespace
from pathlib import Path

import linformer_encoder
import linformer_translation
import torch
from cells import Cells
from linformer_encoder import FUSED, STOCK
from peers import DTYPES

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
    add("--limit", type=float, help="seconds; a peer slower than this is not run at larger n")
    add("--lengths", type=int, nargs="+", help="n, ascending")
    add("--k", type=int, nargs="+", help="slots")
    add("--tokens", type=int, help="of a batch at every n; one sentence where n is more")
    add("--layers", type=int, help="of the encoder, and of the decoder")
    add("--embed-dim", type=int, default=512)
    add("--ffn-embed-dim", type=int, default=2048)
    add("--heads", type=int, default=8)
    add("--vocabulary", type=int, default=50_272, help="of whole models (default: the paper's)")
    add("--sentences", type=int, help="of a training step's batch (the paper: 88)")
    add("--dropout", type=float, default=0.1, help="in training steps of seq2seq")
    add("--fused-training", action="store_true", help="training steps of the fused peer too")
    add("--batches", type=int, nargs="+", default=[1, 8], help="sentences, in generation")
    add("--words", type=int, default=32, help="to generate for each sentence")
    add("--json", type=Path, help="where to write the figures; pictures lie beside")
    return parser


def filled(options: Namespace, question: str) -> Namespace:
    """The options, with the question's own values where none were given."""
    cuda = options.device.startswith("cuda")
    own = COMMON | (COMMON_CUDA | CUDA[question] if cuda else CPU[question])
    given = {name: value for name, value in vars(options).items() if value is not None}
    path = options.json
    if path is not None and options.question == "all":
        path = path.with_name(f"{path.stem}_{question}{path.suffix}")
    return Namespace(**{**own, **given, "json": path})


def panels(question: str, slots: list[int]) -> dict[str, tuple[str, list[str]]]:
    """What a question's picture shows."""
    ours, most = [f"k={k}" for k in slots], f"k={max(slots)}"
    if question == "encoder":
        return {
            "Encoder, forward": ("forward", [STOCK, FUSED, most]),
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


def answer(question: str, options: Namespace) -> Cells:
    """Measure, print, write."""
    title = f"== {question} on {options.device}, {options.dtype}, {torch.get_num_threads()} threads"
    print(f"\n{title}")
    cells = QUESTIONS[question](options)
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    cells.save(options.json, settings)
    if options.json is not None and panels(question, options.k):
        from pictures import draw

        draw(cells, panels(question, options.k), options.json)
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
