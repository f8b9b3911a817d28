"""Compare the speed of GRU attention with that of fairseq's ``lstm`` at equal sizes.

``python benchmarks/gru.py --threads 2 --json docs/results/gru_benchmark.json``

The script times three things:

- the decoder's recurrence, forward and backward: everything but the output layer and the loss;
- a complete training step: encoder, decoder, loss, backward, clipping, Adam;
- generation with beam 5, in which a translation has as many words as its source.

Sizes are the paper's: embeddings of 100 values, 256 hidden units, a bidirectional encoder, batches
of 32 sentences. The paper's output layer reads 868 values: the decoder's state (256), the context
(512) and the last word's embedding (100). In fairseq's ``lstm``, an option sets this number. The
script times ``lstm`` with 868, and with 256: less than a third of the work of the output layer.
"""

from argparse import Namespace
from collections.abc import Callable
from functools import partial

import bench
import torch
from bench import Cells
from linformer import generate
from peers import Side, Size, sample_of

OPTIMIZER = ["--lr", "1e-3", "--criterion", "label_smoothed_cross_entropy"]
GRU = "GRU attention"
OUTPUTS = (868, 256)  # numbers of values that the output layer of `lstm` reads
LENGTHS = {  # words of each sentence, </s> included, by the mean of these numbers
    8: [8] * 32,
    24: sorted([20 + i % 9 for i in range(32)], reverse=True),
    25: [25] * 32,
    50: [50] * 32,
}


class RecurrentSize(Size):
    """The paper's sizes of a recurrent model; only the vocabulary can be chosen."""

    def flags(self) -> list[str]:
        widths = "--encoder-hidden-size 256 --decoder-hidden-size 256"
        return f"--encoder-embed-dim 100 --decoder-embed-dim 100 {widths}".split()


def build(size: Size, device: str) -> dict[str, Side]:
    """Build a GRU with attention and two ``lstm`` models; return all three by name.

    The output layer of one ``lstm`` reads 868 values, that of the other 256.
    """
    lstm = "--arch lstm --encoder-bidirectional --decoder-out-embed-dim"
    words = {GRU: "--arch gru_attention"}
    words |= {f"lstm, output from {width}": f"{lstm} {width}" for width in OUTPUTS}
    return {
        name: Side([*flags.split(), *OPTIMIZER], size, positions=1024, device=device)
        for name, flags in words.items()
    }


def recurrence(side: Side, sample: dict, stock: bool):
    """Return a function that runs the decoder without its output layer, forward and backward.

    The function also computes the gradient of the encoder's output. ``stock`` must be true for
    fairseq's ``lstm`` and false for GRU attention.
    """
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


def measure(options: Namespace) -> Cells:
    """Time the recurrence and training steps at several sentence lengths, and then generation."""
    size = RecurrentSize(vocabulary=options.vocabulary)
    sides = build(size, options.device)
    peer = next(name for name in sides if name != GRU)
    cells = Cells("GRU attention against fairseq's lstm", axis="words", unit="ms")
    cells.note(f"vocabulary {options.vocabulary}; 32 sentences; 24 words are 20 to 28")

    def add(measurement: str, n: int, candidates: dict[str, Callable[[], object]]) -> None:
        seconds = bench.paired(candidates, repeats=options.repeats)
        pairs = [(GRU, name) for name in candidates if name != GRU]
        cells.add(measurement, n, seconds, pairs, tokens=32 * n)

    for n, lengths in LENGTHS.items():
        sample = sample_of(*[torch.tensor(lengths)] * 2, size, options.device)
        runs = {name: recurrence(sides[name], sample, name != GRU) for name in (GRU, peer)}
        add("recurrence", n, runs)
        steps = {name: partial(side.train_step, sample) for name, side in sides.items()}
        add("training step", n, steps)
    for count in (32, 1):
        sample = sample_of(*[torch.tensor([25] * count)] * 2, size, options.device)
        runs = {name: generate(side, sample, 25) for name, side in sides.items()}
        add(f"beam-5 generation, sentences: {count}", 25, runs)
    return cells


def main() -> None:
    defaults = {"threads": 2, "repeats": 15, "device": "cpu", "vocabulary": 2100}
    options = bench.parser_with(__doc__, **defaults).parse_args()
    torch.set_num_threads(options.threads)
    measure(options).save(options.json, bench.settings(options))


if __name__ == "__main__":
    main()
