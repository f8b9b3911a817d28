"""Compare GRU attention with fairseq's own ``lstm`` at the same sizes, in one process.

``python benchmarks/gru.py --threads 2 --json docs/results/gru_benchmark.json``

Three questions: the decoder's recurrence (all but output layer and loss, forward and backward),
the whole training step (encoder, decoder, loss, backward, clipping, Adam), and beam-5 generation
(both models made to write exactly as many words as the source has). Sizes are the paper's:
embeddings 100, GRU or LSTM 256 (bidirectional in the encoder), batches of 32 sentences. The
paper's output layer reads ``[s; c; E y]``, 868 values; fairseq's reads ``--decoder-out-embed-dim``,
set to the same 868 so that both have the same output layer, and also to 256, where theirs does a
third of the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import shared_options
import torch
from bench import compare, paired, report
from linformer import generate
from peers import Side, sample_of

OPTIMIZER = ["--lr", "1e-3", "--criterion", "label_smoothed_cross_entropy"]


@dataclass(frozen=True)
class Size:
    """The sizes of a recurrent model in the paper."""

    vocabulary: int

    def flags(self) -> list[str]:
        """Return the options of ``fairseq-train``."""
        return [
            *("--encoder-embed-dim", "100", "--decoder-embed-dim", "100"),
            *("--encoder-hidden-size", "256", "--decoder-hidden-size", "256"),
        ]


def build(vocabulary: int, device: str, *flags: str) -> Side:
    """Build an architecture with the paper's sizes."""
    return Side([*flags, *OPTIMIZER], Size(vocabulary), positions=1024, device=device)


def stock_lstm(out_embed_dim: int) -> list[str]:
    width = str(out_embed_dim)
    return ["--arch", "lstm", "--encoder-bidirectional", "--decoder-out-embed-dim", width]


def batch(lengths: list[int], vocabulary: int, device: str) -> dict:
    """Make sources and targets of these lengths (in words, with </s>), longest first."""
    both = torch.tensor(lengths)
    return sample_of(both, both, Size(vocabulary), device)


def recurrence(side: Side, sample: dict, stock: bool):
    """Run decoder features forward and backward, from annotations that also need a gradient."""
    model, inputs = side.model.train(), sample["net_input"]
    with torch.no_grad():
        encoded = model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])

    def leaf(value: torch.Tensor) -> torch.Tensor:
        return value.clone().requires_grad_() if value.is_floating_point() else value

    def run() -> None:
        if stock:
            fresh = tuple(leaf(value) for value in encoded)
        else:
            fresh = {name: [leaf(value[0])] for name, value in encoded.items()}
        features, _ = model.decoder.extract_features(inputs["prev_output_tokens"], fresh)
        features.sum().backward()
        model.zero_grad(set_to_none=True)

    return run


def main() -> None:
    defaults = {"threads": 2, "repeats": 15, "device": "cpu", "vocabulary": 2100}
    options_ = shared_options.parser_with(__doc__, **defaults).parse_args()
    torch.set_num_threads(options_.threads)
    device, vocabulary = options_.device, options_.vocabulary
    gru = build(vocabulary, device, "--arch", "gru_attention")
    peers = {
        f"lstm, output from {width}": build(vocabulary, device, *stock_lstm(width))
        for width in (868, 256)
    }
    first = next(iter(peers.values()))
    rows = []

    def add(measurement: str, peer: str, candidates: dict) -> None:
        seconds = paired(candidates, repeats=options_.repeats)
        rows.append({"what": measurement, "peer": peer, **compare(seconds, "ours", "peer")})

    shapes = {
        "32 sentences of 8": [8] * 32,
        "32 sentences of 20 to 28": sorted([20 + i % 9 for i in range(32)], reverse=True),
        "32 sentences of 25": [25] * 32,
        "32 sentences of 50": [50] * 32,
    }
    for name, lengths in shapes.items():
        sample = batch(lengths, vocabulary, device)
        add(
            f"recurrence, {name}",
            "lstm",
            {"ours": recurrence(gru, sample, False), "peer": recurrence(first, sample, True)},
        )
    for peer, side in peers.items():
        for name, lengths in shapes.items():
            sample = batch(lengths, vocabulary, device)
            add(
                f"training step, {name}",
                peer,
                {
                    "ours": lambda sample=sample: gru.train_step(sample),
                    "peer": lambda side=side, sample=sample: side.train_step(sample),
                },
            )
    for peer, side in peers.items():
        for size in (32, 1):
            sample = batch([25] * size, vocabulary, device)
            add(
                f"beam-5 generation, {size} x 25 words",
                peer,
                {"ours": generate(gru, sample, 25), "peer": generate(side, sample, 25)},
            )
    report(f"GRU attention against fairseq's lstm, vocabulary {vocabulary}", rows, options_.json)


if __name__ == "__main__":
    main()
