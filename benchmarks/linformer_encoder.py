"""Questions about the encoder: its time, the attention's alone, and its memory over n."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import product
from pathlib import Path

import bench
import torch
from cells import NOT_RUN, Cells, Stopwatch
from peers import (
    DTYPES,
    Side,
    Size,
    attentions,
    check,
    core,
    linformer,
    sdpa_backend,
    source_batch,
    transformer,
)
from torch import Tensor, nn

VOCABULARY = 1000  # the table of embeddings has no part in these questions
CONSTANT = "forward, constant tokens"
STOCK, FUSED, MASKED = "fairseq", "sdpa", "sdpa with mask"


def sentences_of(tokens: int, n: int) -> int:
    """Sentences of ``n`` tokens that make a batch of ``tokens``; one where n alone is more."""
    return max(1, tokens // n)


def build_encoder(options: Namespace, name: str, n: int) -> nn.Module:
    """The encoder ``k=32``, ``fairseq`` or ``sdpa``, for sources of ``n`` tokens."""
    size = Size(
        options.embed_dim, options.ffn_embed_dim, options.heads, options.layers, 1, VOCABULARY
    )
    flags = linformer(int(name[2:]), n) if name.startswith("k=") else transformer()
    where = {"device": options.device, "dtype": DTYPES[options.dtype]}
    side = Side(flags, size, positions=n, **where)
    return (side.on_fused_attention() if name == FUSED else side).model.encoder


def build_encoders(options: Namespace, n: int) -> dict[str, nn.Module]:
    """All of them, with the same weights."""
    names = [STOCK, FUSED, *(f"k={k}" for k in options.k)]
    encoders = {name: build_encoder(options, name, n) for name in names}
    for encoder in encoders.values():
        encoder.load_state_dict(encoders[STOCK].state_dict(), strict=False)
    return encoders


def forward(encoder: nn.Module, tokens: Tensor) -> Callable[[], Tensor]:
    encoder.eval()

    def run() -> Tensor:
        with torch.no_grad():
            return encoder(tokens)["encoder_out"][0]

    return run


def training_step(encoder: nn.Module, tokens: Tensor) -> Callable[[], None]:
    """Forward and backward, from a random gradient: that of a plain sum is 0 by layer norm."""
    encoder.train()
    weight = encoder.embed_tokens.weight
    gradient = weight.new_empty(*tokens.t().shape, weight.size(1)).normal_()

    def run() -> None:
        encoder(tokens)["encoder_out"][0].backward(gradient)
        encoder.zero_grad(set_to_none=True)

    return run


def encoder(options: Namespace) -> Cells:
    """Measure the paper's figure 2."""
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
        if n == options.lengths[0]:
            for name, tokens in ((FUSED, unpadded), (FUSED, masked), (ours[0], unpadded)):
                kernel = sdpa_backend(forward(encoders[name], tokens))
                cells.note(f"kernel of {name}{' padded' * (tokens is masked)}: {kernel}")
        for phase, make in (("forward", forward), ("training step", training_step)):
            candidates = {name: make(encoders[name], unpadded) for name in (*ours, STOCK, FUSED)}
            candidates[MASKED] = make(encoders[FUSED], masked)
            if watch.allows(phase, MASKED):
                candidates |= {padded[name]: make(encoders[name], masked) for name in ours}
            seconds = watch.time(phase, candidates)
            cells.add(
                phase,
                n,
                seconds,
                pairs,
                tokens=sentences * n,
                peers=candidates,
                sentences=sentences,
            )
        del encoders, candidates
        gc.collect()
    series = ["forward", "training step"]
    if options.tokens < max(options.lengths):
        constant_tokens(options, cells, options.lengths[::-2])
        series = [CONSTANT]
    for phase, name in product(series, ours):
        cells.find_flat(phase, name, first=512, within=0.15)
    for phase, name in product(("forward", "training step"), ours):
        cells.find_crossover(phase, name, STOCK)
        cells.find_crossover(phase, name, FUSED)
        cells.find_crossover(phase, padded[name], MASKED)
    if 32 in options.k:
        cells.find_ratio("forward", "k=32", FUSED, 4096, 2.0)
    return cells


def constant_tokens(options: Namespace, cells: Cells, lengths: list[int]) -> None:
    """Forward of our encoders alone with as many tokens at every n as the largest n needs: larger
    tensors cost more for each token, and that does not depend on n."""
    watch = Stopwatch(options)
    tokens = max(options.lengths)
    for n in sorted(lengths):
        if n < 512 <= tokens:
            continue
        source = source_batch(tokens // n, n, VOCABULARY).to(options.device)
        encoders = {f"k={k}": build_encoder(options, f"k={k}", n) for k in options.k}
        candidates = {name: forward(encoder, source) for name, encoder in encoders.items()}
        seconds = watch.time(CONSTANT, candidates)
        cells.add(CONSTANT, n, seconds, (), tokens=source.numel(), sentences=tokens // n)


def flat(options: Namespace) -> Cells:
    """The same alone, with more rounds."""
    check(Size(options.embed_dim, options.ffn_embed_dim, options.heads), options.device)
    cells = Cells(f"Encoder of {options.layers} layers, constant tokens, {options.dtype}")
    constant_tokens(options, cells, options.lengths)
    for k in options.k:
        cells.find_flat(CONSTANT, f"k={k}", first=512, within=0.15)
    return cells


def attention(options: Namespace) -> Cells:
    """Time the attention alone, without and with its four linear layers."""
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
                name: attend(module, x, exact=name == FUSED) for name, module in used.items()
            }
            if n == options.lengths[0] and part == "core":
                for name, run in candidates.items():
                    cells.note(f"kernel of {name}: {sdpa_backend(run)}")
            seconds = watch.time(part, candidates)
            pairs = [(name, FUSED) for name in ours]
            tokens = sentences * n
            cells.add(part, n, seconds, pairs, tokens=tokens, peers=candidates, sentences=sentences)
    for part, slots in product(("core", "sublayer"), options.k):
        target = 2 * slots if part == "core" else None
        cells.find_crossover(part, f"k={slots}", FUSED, target=target)
    if 32 in options.k:
        cells.find_ratio("core", "k=32", FUSED, 4096, 20.0)
    return cells


def attend(module: nn.Module, x: Tensor, *, exact: bool) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return module(x, x, x) if exact else module(x, x)

    return run


def memory_cell(options: Namespace, phase: str, name: str, n: int) -> tuple[int, float]:
    """Measure peak bytes and seconds of one pass, in a process of its own."""
    torch.set_num_threads(options.threads)
    encoder = build_encoder(options, name, n)
    make = forward if phase == "forward" else training_step
    make(encoder, source_batch(1, min(16, n), VOCABULARY).to(options.device))()  # loads the kernels
    tokens = source_batch(sentences_of(options.tokens, n), n, VOCABULARY).to(options.device)
    run = make(encoder, tokens)
    gc.collect()
    seconds: list[float] = []
    peak = bench.peak_memory(lambda: seconds.extend(one_pass(run)), options.device)
    return peak, seconds[0]


def one_pass(run: Callable[[], object]) -> list[float]:
    return bench.paired({"pass": run}, repeats=1, warmup=0)["pass"]


def memory(options: Namespace) -> Cells:
    """Measure peak memory of the encoder, each cell in a fresh process."""
    cells = Cells(f"Peak memory of an encoder of {options.layers} layers over n, {options.dtype}")
    cells.note(
        "above model and batch; " + ("the allocator's" if "cuda" in options.device else "resident")
    )
    # A server that has imported everything and computed nothing: its children start at once. It
    # finds modules by the environment alone.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["linformer_encoder"])
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
    for phase, name, peer in product(("forward", "training step"), names, (STOCK, FUSED)):
        find_memory(cells, phase, name, peer)
    return cells


def find_memory(cells: Cells, phase: str, name: str, peer: str) -> None:
    """State the ratio of memories at the largest n that both ran at."""
    ours, theirs = (cells.curve(phase, candidate, "peak_mib") for candidate in (name, peer))
    shared_lengths = ours.keys() & theirs.keys()
    if name.startswith("k=") and shared_lengths and theirs[max(shared_lengths)]:
        n = max(shared_lengths)
        cells.find(f"{phase}, {name} at n = {n:,}: {ours[n] / theirs[n]:.2f} of {peer}'s memory")
