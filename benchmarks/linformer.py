"""Compare the speed and memory of Linformer, fairseq's Transformer and torch's fused attention.

``python benchmarks/linformer.py encoder --threads 2 --json docs/results/linformer_encoder.json``

The first argument is the question, the part to measure (n is the number of tokens of a sentence):
  encoder     time of the encoder at each n, forward pass and training step (the paper's figure 2)
  flat        time per token of the Linformer encoder at each n, in batches of equally many tokens
  attention   time of the attention alone at each n, without and with its linear layers
  seq2seq     time of the forward pass of encoder and decoder at each n (figure 1), and of training
              steps on sentences with the paper's mean lengths (table 4)
  memory      peak memory of the encoder at each n
  generation  time of beam-5 generation at each n, and the bytes of the cross-attention cache
  all         all questions; --json x.json writes x_encoder.json, x_flat.json …

Models are called `k=32` (a Linformer with projected length 32), `fairseq` (its Transformer) and
`sdpa` (the same Transformer with torch's fused attention). In a round, all models run once, in
turn. Ratios are the time of `fairseq` or `sdpa` divided by the Linformer's, so above 1 the
Linformer is faster. Tables show the median and the quartiles of the rounds' ratios. If `fairseq` or
`sdpa` needs more than --limit seconds for a pass, or too much memory, it is not run at larger n.
With --dtype bf16 or fp16, weights and activations are in half precision (no autocast). Most
questions first check that the encoders' outputs are equal in the cases in which they must be.
"""

import argparse
import gc
import itertools
import math
import multiprocessing
import os
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import bench
import torch
from bench import NOT_RUN, Cells, Stopwatch
from fairseq.sequence_generator import SequenceGenerator
from peers import (
    DTYPES,
    EOS,
    Side,
    Size,
    attentions,
    check,
    core,
    linformer,
    pair_lengths,
    sample_of,
    source_batch,
    transformer,
)
from torch import Tensor, nn

VOCABULARY = 1000  # embeddings are not part of these questions
CONSTANT = "forward, constant tokens"
STOCK, FUSED, MASKED = "fairseq", "sdpa", "sdpa with mask"


def sentences_of(tokens: int, n: int) -> int:
    """Return how many sentences of ``n`` tokens a batch of ``tokens`` tokens has, at least 1."""
    return max(1, tokens // n)


def build_encoder(options: Namespace, name: str, n: int) -> nn.Module:
    """Build the encoder called ``k=32``, ``fairseq`` or ``sdpa`` for sources of ``n`` tokens."""
    size = Size(
        options.embed_dim, options.ffn_embed_dim, options.heads, options.layers, 1, VOCABULARY
    )
    flags = linformer(int(name[2:]), n) if name.startswith("k=") else transformer()
    where = {"device": options.device, "dtype": DTYPES[options.dtype]}
    side = Side(flags, size, positions=n, **where)
    return (side.on_fused_attention() if name == FUSED else side).model.encoder


def build_encoders(options: Namespace, n: int) -> dict[str, nn.Module]:
    """Build all encoders by name; they share all weights except the Linformers' E and F."""
    names = [STOCK, FUSED, *(f"k={k}" for k in options.k)]
    encoders = {name: build_encoder(options, name, n) for name in names}
    for encoder in encoders.values():
        encoder.load_state_dict(encoders[STOCK].state_dict(), strict=False)
    return encoders


def forward(encoder: nn.Module, tokens: Tensor) -> Callable[[], dict]:
    return torch.no_grad()(partial(encoder.eval(), tokens))


def training_step(encoder: nn.Module, tokens: Tensor) -> Callable[[], None]:
    """Return a function that runs an encoder forward and backward from a random gradient.

    The output's sum would not do as a loss: the last layer norm makes it constant, so all gradients
    before it would be 0.
    """
    encoder.train()
    weight = encoder.embed_tokens.weight
    gradient = weight.new_empty(*tokens.t().shape, weight.size(1)).normal_()

    def run() -> None:
        encoder(tokens)["encoder_out"][0].backward(gradient)
        encoder.zero_grad(set_to_none=True)

    return run


def encoder(options: Namespace) -> Cells:
    """Time the encoder's forward pass and training step at each length n: the paper's figure 2."""
    check(Size(options.embed_dim, options.ffn_embed_dim, options.heads), options.device)
    cells = Cells(f"Encoder of {options.layers} layers over n, {options.dtype}")
    cells.note(
        f"at least {options.tokens:,} tokens in a batch, or one sentence; E, F made at N = n"
    )
    cells.note("padded: lengths go down evenly from n - 1 to 3/4 n, pads on the left")
    ours = [f"k={k}" for k in options.k]
    padded = {name: f"{name} padded" for name in ours}
    pairs = [(name, peer) for name in ours for peer in (STOCK, FUSED)]
    pairs += [(name, MASKED) for name in padded.values()]
    watch = Stopwatch(options)
    for n in options.lengths:
        encoders = build_encoders(options, n)
        sentences = sentences_of(options.tokens, n)
        unpadded = source_batch(sentences, n, VOCABULARY).to(options.device)
        masked = source_batch(sentences, n, VOCABULARY, padded=True).to(options.device)
        for phase, make in (("forward", forward), ("training step", training_step)):
            candidates = {name: make(encoders[name], unpadded) for name in (*ours, STOCK, FUSED)}
            candidates[MASKED] = make(encoders[FUSED], masked)
            if watch.allows(phase, MASKED):
                candidates |= {padded[name]: make(encoders[name], masked) for name in ours}
            sizes = {"tokens": sentences * n, "sentences": sentences}
            watch.measure(cells, phase, n, candidates, pairs, **sizes)
        del encoders, candidates
        gc.collect()
    return cells


def flat(options: Namespace) -> Cells:
    """Time the Linformer encoders forward, with equally many tokens in the batch at every n.

    Otherwise the times per token, which depend on the size of the batch, could not be compared.
    """
    check(Size(options.embed_dim, options.ffn_embed_dim, options.heads), options.device)
    cells = Cells(f"Encoder of {options.layers} layers, constant tokens, {options.dtype}")
    watch = Stopwatch(options)
    tokens = max(options.lengths)
    for n in options.lengths:
        source = source_batch(tokens // n, n, VOCABULARY).to(options.device)
        encoders = {f"k={k}": build_encoder(options, f"k={k}", n) for k in options.k}
        candidates = {name: forward(encoder, source) for name, encoder in encoders.items()}
        sizes = {"tokens": source.numel(), "sentences": tokens // n}
        watch.measure(cells, CONSTANT, n, candidates, **sizes)
    return cells


def attention(options: Namespace) -> Cells:
    """Time the attention alone at each n, without its four linear layers and with them."""
    size = Size(options.embed_dim, options.ffn_embed_dim, options.heads)
    check(size, options.device)
    dtype = DTYPES[options.dtype]
    cells = Cells(f"Attention alone over n, forward, {options.dtype}")
    cells.note("core: E k, F v, q k^T, softmax, times v; sublayer: with the linear layers")
    ours = [f"k={k}" for k in options.k]
    watch = Stopwatch(options)
    for n in options.lengths:
        sentences = sentences_of(options.tokens, n)
        torch.manual_seed(1)
        x, q, k, v = torch.randn(4, n, sentences, size.embed_dim).to(options.device, dtype)
        modules = attentions(size, options.k, n, options.device, dtype)
        for part in ("core", "sublayer"):
            used = {
                name: core(module, q, k, v) if part == "core" else module
                for name, module in modules.items()
            }
            candidates = {
                name: torch.no_grad()(partial(module, x, *[x] * (2 if name == FUSED else 1)))
                for name, module in used.items()
            }
            pairs = [(name, FUSED) for name in ours]
            sizes = {"tokens": sentences * n, "sentences": sentences}
            watch.measure(cells, part, n, candidates, pairs, **sizes)
    return cells


def memory_cell(options: Namespace, phase: str, name: str, n: int) -> tuple[int, float]:
    """Return the peak memory in bytes and the seconds of one pass of an encoder.

    Call this in a new process, because memory is measured from the start of the process.
    ``phase`` is "forward" or "training step", and ``name`` a name of :func:`build_encoder`.
    """
    torch.set_num_threads(options.threads)
    encoder = build_encoder(options, name, n)
    make = forward if phase == "forward" else training_step
    make(encoder, source_batch(1, min(16, n), VOCABULARY).to(options.device))()  # loads the kernels
    tokens = source_batch(sentences_of(options.tokens, n), n, VOCABULARY).to(options.device)
    run = make(encoder, tokens)
    gc.collect()
    seconds: dict[str, list[float]] = {}

    def timed() -> None:
        seconds.update(bench.paired({"pass": run}, repeats=1, warmup=0))

    peak = bench.peak_memory(timed, options.device)
    return peak, seconds["pass"][0]


def memory(options: Namespace) -> Cells:
    """Measure the peak memory of each encoder at each n, in a new process each time."""
    cells = Cells(f"Peak memory of an encoder of {options.layers} layers over n, {options.dtype}")
    cells.note(
        "above model and batch; " + ("the allocator's" if "cuda" in options.device else "resident")
    )
    # The fork server has imported everything and computed nothing, so its children start at once.
    # It finds modules through the environment only.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["linformer"])
    watch = Stopwatch(options)
    names = [*(f"k={k}" for k in options.k), STOCK, FUSED]
    for phase, n in product(("forward", "training step"), options.lengths):
        tokens = sentences_of(options.tokens, n) * n
        print(f"{phase}, n = {n:,}, {tokens:,} tokens")
        for name in names:
            row = {"what": phase, "n": n, "tokens": tokens, "candidate": name}
            peak, seconds = None, math.inf
            if watch.allows(phase, name):
                with (
                    suppress(torch.OutOfMemoryError, BrokenProcessPool),
                    ProcessPoolExecutor(1, context) as pool,
                ):
                    peak, seconds = pool.submit(memory_cell, options, phase, name, n).result()
                watch.learn(phase, name, seconds)
            if peak is None:
                cells.figures.append({**row, "ms": None, "peak_mib": None})
                print(f"  {name:24} {NOT_RUN}", flush=True)
                continue
            mib, per_token = peak / 2**20, peak / 2**10 / tokens
            row |= {"ms": 1e3 * seconds, "peak_mib": mib, "kib_per_token": per_token}
            cells.figures.append(row)
            print(f"  {name:24} {mib:10.1f} MiB {per_token:9.1f} KiB/token", flush=True)
    return cells


MEAN_SOURCE, MEAN_TARGET, LONGEST = 31, 59, 256  # Pampaloni, section 2
SIGMA, CORRELATION = 0.65, 0.9  # our choice: the paper gives only the means
BEAM = 5


def build_sides(options: Namespace, positions: int, dropout: float = 0.0) -> dict[str, Side]:
    """Build all models by name, for up to ``positions`` tokens.

    The models share all weights but the Linformers' E and F.
    """
    size = Size.of(options)
    where = {"device": options.device, "dtype": DTYPES[options.dtype]}
    flags = {f"k={k}": linformer(k, positions) for k in options.k} | {STOCK: transformer()}
    sides = {
        name: Side(words, size, positions=positions, dropout=dropout, **where)
        for name, words in flags.items()
    }
    for side in sides.values():
        side.model.load_state_dict(sides[STOCK].model.state_dict(), strict=False)
    return sides


def seq2seq(options: Namespace) -> Cells:
    """Time the forward pass at each n (the paper's figure 1), and training steps (table 4)."""
    check(Size(options.embed_dim, options.ffn_embed_dim, options.heads), options.device)
    cells = Cells(f"Encoder-decoder of {options.layers} + {options.layers} layers, {options.dtype}")
    forward_over_n(options, cells)
    training_steps(options, cells)
    return cells


def forward_over_n(options: Namespace, cells: Cells) -> None:
    """Time forward passes on n source and n target tokens, and add the times to ``cells``.

    The decoder reads the reference (teacher forcing), and the output layer is included.
    """
    sides = build_sides(options, max(options.lengths))
    sides[FUSED] = sides[STOCK].on_fused_attention()
    cells.note(
        f"forward: source and target of n tokens, at least {options.tokens:,} on each side of a "
        f"batch, or one pair; vocabulary {options.vocabulary:,}"
    )
    watch = Stopwatch(options)
    ours = [f"k={k}" for k in options.k]
    pairs = list(itertools.product(ours, (STOCK, FUSED)))
    for n in options.lengths:
        sentences = sentences_of(options.tokens, n)
        lengths = torch.full((sentences,), n)
        sample = sample_of(lengths, lengths, Size.of(options), options.device)
        candidates = {
            name: torch.no_grad()(partial(side.model.eval(), **sample["net_input"]))
            for name, side in sides.items()
        }
        sizes = {"tokens": sentences * n, "sentences": sentences}
        watch.measure(cells, "forward", n, candidates, pairs, **sizes)


def training_steps(options: Namespace, cells: Cells) -> None:
    """Time training steps, on another random batch in each round; add the times to ``cells``."""
    sides = build_sides(options, LONGEST, options.dropout)
    lengths = [random_lengths(options.sentences, seed) for seed in range(options.repeats)]
    size = Size.of(options)
    samples = [sample_of(source, target, size, options.device) for source, target in lengths]
    means = torch.stack([torch.stack(pair) for pair in lengths]).double().mean((0, 2))
    widths = torch.tensor([[int(side.max()) for side in pair] for pair in lengths]).double().mean(0)
    cells.note(
        f"training step: {len(samples)} random batches of {options.sentences} pairs; lengths "
        f"log-normal (sigma {SIGMA}, correlation {CORRELATION}) with means {MEAN_SOURCE} and "
        f"{MEAN_TARGET}, cut to {LONGEST}; drawn: means {means[0]:.1f} and {means[1]:.1f}, padded "
        f"to {widths[0]:.0f} and {widths[1]:.0f} on average; dropout {options.dropout}"
    )
    candidates = {name: side.train_steps(samples) for name, side in sides.items()}
    # This single cell may take as long as all cells of the forward pass together.
    watch = Stopwatch(options, options.budget * len(options.lengths))
    ours = [f"k={k}" for k in options.k]
    pairs = [(name, peer) for name in ours for peer in sides if peer not in ours]
    sizes = {"tokens": options.sentences * float(widths.sum()), "sentences": options.sentences}
    watch.measure(cells, "training step", None, candidates, pairs, **sizes)


def random_lengths(sentences: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw correlated lengths of sources and targets in tokens, ``[sentences]`` each.

    Their means are those of the Linformer paper.
    """
    means, sigmas = (MEAN_SOURCE, MEAN_TARGET), (SIGMA, SIGMA)
    return pair_lengths(sentences, means, sigmas, CORRELATION, longest=LONGEST, seed=seed)


def generation(options: Namespace) -> Cells:
    """Time beam-5 generation by fairseq's Transformer and a Linformer at each source length n.

    Translations have ``--words`` words. The Linformer is the first of ``--k``.
    """
    options = Namespace(**{**vars(options), "k": options.k[:1]})
    cells = Cells(f"Beam-5 generation of {options.words} words over n, {options.dtype}")
    longest = max(options.lengths)
    cells.note(
        f"E, F made at N = {longest:,}; decoding: all but the encoder; cache: cross-attention"
    )
    sides = build_sides(options, longest)
    (ours,) = (name for name in sides if name != STOCK)
    watch = Stopwatch(options)
    for batch in options.batches:
        for n in options.lengths:
            lengths = torch.full((batch,), n)
            sample = sample_of(lengths, lengths, Size.of(options), options.device)
            measurement, candidates = f"batch {batch}", {}
            for name, side in sides.items():
                if not watch.allows(measurement, name):
                    continue
                candidates[name] = generate(side, sample, options.words)
                candidates[f"{name} encoder"] = encode(side, sample)
            seconds = watch.time(measurement, candidates)
            parts = {name: seconds[name] for name in sides if name in seconds}
            for name in list(parts):
                total, encoding = seconds[name], seconds[f"{name} encoder"]
                parts[f"{name} decoding"] = [a - b for a, b in zip(total, encoding, strict=True)]
            cells.add(
                measurement,
                n,
                parts,
                [(ours, STOCK), (f"{ours} decoding", f"{STOCK} decoding")],
                tokens=batch * (options.words + 1),
                peers=sides,
                cache_bytes={name: cross_cache(side, sample) for name, side in sides.items()},
            )
            row = cells.figures[-1]
            row_bytes = ", ".join(f"{k} {v / 2**20:.2f} MiB" for k, v in row["cache_bytes"].items())
            print(f"  cache of {BEAM} x {batch} hypotheses: {row_bytes}", flush=True)
    return cells


def generate(side: Side, sample: dict, words: int) -> Callable[[], object]:
    model = side.model.eval()
    generator = SequenceGenerator(
        [model], side.task.target_dictionary, beam_size=BEAM, max_len_b=words, min_len=words
    )
    return lambda: generator.generate([model], {**sample})


def encode(side: Side, sample: dict) -> Callable[[], dict]:
    inputs = sample["net_input"]
    encoder = side.model.eval().encoder
    return torch.no_grad()(partial(encoder, inputs["src_tokens"], inputs["src_lengths"]))


@torch.no_grad()
def cross_cache(side: Side, sample: dict) -> int:
    """Return how many bytes all cross-attentions keep in memory between steps of beam search."""
    model, state = side.model.eval(), {}
    sentences = len(sample["id"])
    rows = torch.arange(sentences, device=sample["target"].device).repeat_interleave(BEAM)
    encoded = model.encoder.reorder_encoder_out(encode(side, sample)(), rows)
    start = torch.full((len(rows), 1), EOS, device=rows.device)
    model.decoder(start, encoder_out=encoded, incremental_state=state)
    cached: list[Any] = []
    for layer in model.decoder.layers:
        attention = layer.encoder_attn  # Linformer's is itself the key of its state
        stock = None if attention in state else attention._get_input_buffer(state)
        cached += state[attention] if stock is None else stock.values()
    tensors = [value for value in cached if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


QUESTIONS = {
    "encoder": encoder,
    "flat": flat,
    "attention": attention,
    "seq2seq": seq2seq,
    "memory": memory,
    "generation": generation,
}


def powers(first: int, last: int, step: int = 1) -> list[int]:
    """Return the powers of two from ``first`` to ``last``, or every ``step``-th of these."""
    return [2**n for n in range(first.bit_length() - 1, last.bit_length(), step)]


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
# Each question's defaults for missing options, for two CPU cores. There are at least two layers,
# because torch computes the products of the first layer in another way: its input is a transpose.
SHORT = {"layers": 2, "tokens": 2048, "budget": 10.0, "limit": 3.0}
DEFAULTS = {
    "encoder": COMMON | SHORT | {"lengths": powers(32, 32_768)},
    "flat": COMMON | {"lengths": powers(512, 32_768, 2), "layers": 2, "budget": 60.0},
    "attention": COMMON | {"lengths": powers(16, 8192), "repeats": 21},
    "seq2seq": COMMON
    | {"lengths": powers(32, 1024), "k": [32, 64], "tokens": 1024, "budget": 30.0},
    "memory": COMMON | {"lengths": powers(32, 32_768, 2), "layers": 2, "tokens": 8192},
    "generation": COMMON | {"lengths": powers(32, 2048), "k": [32], "budget": 15.0, "limit": 30.0},
}


def arguments() -> argparse.ArgumentParser:
    parser = bench.parser_with(
        __doc__,
        **{"threads": 2, "device": "cpu", "dtype": "fp32"},
        **dict.fromkeys(("repeats", "warmup", "budget", "limit", "tokens", "layers", "sentences")),
        **{"embed_dim": 512, "ffn_embed_dim": 2048, "heads": 8, "vocabulary": 50_272},
        **{"dropout": 0.1, "batches": [1, 8], "words": 32},
    )
    add = parser.add_argument
    add("question", choices=[*QUESTIONS, bench.ALL], help="part to measure")
    add("--lengths", type=int, nargs="+", help="tokens in a sentence (n), in ascending order")
    add("--k", type=int, nargs="+", help="projected lengths of the Linformers")
    return parser


def draw(question: str, cells: Cells, options: Namespace) -> None:
    """Draw the time per token by sentence length; do nothing for `memory` and `generation`."""
    ours, largest = [f"k={k}" for k in options.k], f"k={max(options.k)}"
    panels = {
        "encoder": {
            "Encoder, forward": ("forward", [STOCK, FUSED, largest]),
            "Linformer's k": ("forward", ours),
            "Encoder, training step": ("training step", [STOCK, FUSED, *ours]),
        },
        "flat": {"Encoder, as many tokens at every n": (CONSTANT, ours)},
        "attention": {"Attention alone": ("core", [FUSED, *ours])},
        "seq2seq": {"Encoder and decoder, forward": ("forward", [STOCK, FUSED, *ours])},
    }
    if question in panels:
        import pictures

        pictures.draw(cells, panels[question], options.json)


if __name__ == "__main__":
    bench.ask(QUESTIONS, arguments().parse_args(), DEFAULTS, draw)
