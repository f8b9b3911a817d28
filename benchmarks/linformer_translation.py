"""Questions about the whole model: forward over n, training steps, and generation."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable

import torch
from cells import Cells, Stopwatch
from fairseq.sequence_generator import SequenceGenerator
from linformer_encoder import FUSED, STOCK, sentences_of
from peers import (
    DTYPES,
    EOS,
    Side,
    Size,
    check,
    linformer,
    pair_lengths,
    sample_of,
    sdpa_backend,
    transformer,
)
from torch import Tensor

MEAN_SOURCE, MEAN_TARGET, LONGEST = 31, 59, 256  # Pampaloni, section 2
SIGMA, CORRELATION = 0.65, 0.9  # ours: the paper gives the means alone
PAPER = {32: 0.93, 64: 0.95}  # its table 4: time over the Transformer's
TARGET = 0.95
BEAM = 5


def build(options: Namespace, positions: int, dropout: float = 0.0) -> dict[str, Side]:
    """The Linformers and fairseq's transformer, with the same weights."""
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
    """The paper's figure 1 and table 4."""
    check(Size(options.embed_dim, options.ffn_embed_dim, options.heads), options.device)
    cells = Cells(f"Encoder-decoder of {options.layers} + {options.layers} layers, {options.dtype}")
    forward_over_n(options, cells)
    training_steps(options, cells)
    return cells


def forward_over_n(options: Namespace, cells: Cells) -> None:
    """Teacher-forced forward with the output layer, source and target of n tokens."""
    sides = build(options, max(options.lengths))
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
        candidates = {name: forward(side, sample) for name, side in sides.items()}
        if n == options.lengths[0]:
            cells.note(f"kernel of {FUSED}: {sdpa_backend(candidates[FUSED])}")
        seconds = watch.time("forward", candidates)
        tokens = sentences * n
        cells.add(
            "forward", n, seconds, pairs, tokens=tokens, peers=candidates, sentences=sentences
        )
    for name, peer in pairs:
        cells.find_crossover("forward", name, peer)


def forward(side: Side, sample: dict) -> Callable[[], Tensor]:
    model = side.model.eval()

    def run() -> Tensor:
        with torch.no_grad():
            return model(**sample["net_input"])[0]

    return run


def training_steps(options: Namespace, cells: Cells) -> None:
    """Random batches of the recipe's lengths: another one in each round, for all the same."""
    sides = build(options, LONGEST, options.dropout)
    if options.fused_training:
        sides[FUSED] = sides[STOCK].on_fused_attention()
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
    # One cell, so it may take as long as all those of the forward.
    watch = Stopwatch(options, options.budget * len(options.lengths))
    seconds = watch.time("training step", candidates)
    ours = [f"k={k}" for k in options.k]
    pairs = [(name, peer) for name in ours for peer in sides if peer not in ours]
    tokens = options.sentences * float(widths.sum())
    cells.add("training step", None, seconds, pairs, tokens=tokens, sentences=options.sentences)
    for slots, name in zip(options.k, ours, strict=True):
        ratio = 1 / cells.ratio_curve("training step", name, STOCK)[None]
        verdict = "met" if ratio <= TARGET else "missed"
        paper = f"; the paper's, 88 pairs on a GPU: {PAPER[slots]}" if slots in PAPER else ""
        cells.find(
            f"training step, {name}: {ratio:.3f} of the time of {STOCK}'s transformer "
            f"(target {TARGET}: {verdict}{paper})"
        )


def random_lengths(sentences: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens of source and target, which are long together."""
    means, sigmas = (MEAN_SOURCE, MEAN_TARGET), (SIGMA, SIGMA)
    return pair_lengths(sentences, means, sigmas, CORRELATION, longest=LONGEST, seed=seed)


def generation(options: Namespace) -> Cells:
    """Time beam 5 on sources of n tokens, every hypothesis exactly ``--words`` long."""
    options = Namespace(**{**vars(options), "k": options.k[:1]})
    cells = Cells(f"Beam-5 generation of {options.words} words over n, {options.dtype}")
    longest = max(options.lengths)
    cells.note(
        f"E, F made at N = {longest:,}; decoding: all but the encoder; cache: cross-attention"
    )
    sides = build(options, longest)
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
        cells.find_crossover(measurement, ours, STOCK)
        cells.find_crossover(measurement, f"{ours} decoding", f"{STOCK} decoding")
        for name in sides:
            rates = {n: 1e6 / value for n, value in cells.curve(measurement, name).items()}
            shown = ", ".join(f"{n:,}: {rate:,.0f}" for n, rate in rates.items())
            cells.find(f"{measurement}, {name}: tokens per second at n = {shown}")
    return cells


def generate(side: Side, sample: dict, words: int) -> Callable[[], object]:
    model = side.model.eval()
    generator = SequenceGenerator(
        [model], side.task.target_dictionary, beam_size=BEAM, max_len_b=words, min_len=words
    )
    return lambda: generator.generate([model], {**sample})


def encode(side: Side, sample: dict) -> Callable[[], object]:
    encoder, inputs = side.model.eval().encoder, sample["net_input"]

    def run() -> object:
        with torch.no_grad():
            return encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])

    return run


@torch.no_grad()
def cross_cache(side: Side, sample: dict) -> int:
    """Bytes that the decoder's attentions over the source keep between steps of beam search."""
    model, state = side.model.eval(), {}
    sentences = len(sample["id"])
    rows = torch.arange(sentences, device=sample["target"].device).repeat_interleave(BEAM)
    encoded = model.encoder.reorder_encoder_out(encode(side, sample)(), rows)
    start = torch.full((len(rows), 1), EOS, device=rows.device)
    model.decoder(start, encoder_out=encoded, incremental_state=state)
    owners = {layer.encoder_attn._incremental_state_id for layer in model.decoder.layers}
    return sum(
        value.numel() * value.element_size()
        for key, values in state.items()
        if key.split(".")[0] in owners
        for value in values.values()
        if value is not None
    )
