"""GRU attention against fairseq's own ``lstm`` at the same sizes, in one process.

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

import shared_options
import torch
from bench import compare, paired, report
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.adam import FairseqAdam
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationTask

from fairseq_ext import register

SIZES = [
    *("--dropout", "0.0", "--encoder-embed-dim", "100", "--decoder-embed-dim", "100"),
    *("--encoder-hidden-size", "256", "--decoder-hidden-size", "256"),
]
OPTIMIZER = ["--optimizer", "adam", "--lr", "1e-3", "--criterion", "label_smoothed_cross_entropy"]


def ours() -> list[str]:
    return ["--arch", "gru_attention", *SIZES]


def stock_lstm(out_embed_dim: int) -> list[str]:
    width = str(out_embed_dim)
    return [
        *("--arch", "lstm", *SIZES, "--encoder-bidirectional", "--decoder-out-embed-dim", width),
    ]


class Side:
    """A model with what it takes to train it one step, as fairseq's own command builds them."""

    def __init__(self, flags: list[str], vocabulary: int, device: str) -> None:
        torch.manual_seed(1)
        register()
        parser = options.get_training_parser()
        args = options.parse_args_and_arch(parser, ["data", *flags, *OPTIMIZER])
        cfg = convert_namespace_to_omegaconf(args)
        words = Dictionary()
        for index in range(vocabulary - words.nspecial):
            words.add_symbol(f"w{index}")
        self.task = TranslationTask(cfg.task, words, words)
        self.model = self.task.build_model(cfg.model).to(device)
        self.criterion = self.task.build_criterion(cfg.criterion)
        self.optimizer = FairseqAdam(cfg.optimizer, list(self.model.parameters()))

    def train_step(self, sample: dict) -> None:
        self.task.train_step(sample, self.model, self.criterion, self.optimizer, 0)
        self.optimizer.clip_grad_norm(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def batch(lengths: list[int], vocabulary: int, device: str) -> dict:
    """Source and target of these lengths (in words, with </s>), longest first."""
    generator = torch.Generator().manual_seed(1)
    width = max(lengths)

    def side(left: bool) -> torch.Tensor:
        tokens = torch.full((len(lengths), width), 1)
        for row, length in zip(tokens, lengths, strict=True):
            words = torch.randint(4, vocabulary, (length,), generator=generator)
            words[-1] = 2
            row[width - length :].copy_(words) if left else row[:length].copy_(words)
        return tokens

    source, target = side(True), side(False)
    previous = torch.full_like(target, 2)
    previous[:, 1:] = target[:, :-1]
    previous.masked_fill_(target.eq(1), 1)
    sample = {
        "id": torch.arange(len(lengths)),
        "nsentences": len(lengths),
        "ntokens": sum(lengths),
        "net_input": {
            "src_tokens": source.to(device),
            "src_lengths": torch.tensor(lengths).to(device),
            "prev_output_tokens": previous.to(device),
        },
        "target": target.to(device),
    }
    return sample


def recurrence(side: Side, sample: dict, stock: bool):
    """Decoder features forward and backward, from annotations that want a gradient too."""
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


def generation(side: Side, sample: dict, length: int):
    """Beam 5, every hypothesis exactly ``length`` words long."""
    model = side.model.eval()
    generator = SequenceGenerator(
        [model], side.task.target_dictionary, beam_size=5, max_len_b=length, min_len=length
    )
    return lambda: generator.generate([model], {**sample})


def main() -> None:
    defaults = {"threads": 2, "repeats": 15, "device": "cpu", "vocabulary": 2100}
    options_ = shared_options.parser_with(__doc__, **defaults).parse_args()
    torch.set_num_threads(options_.threads)
    device, vocabulary = options_.device, options_.vocabulary
    gru = Side(ours(), vocabulary, device)
    peers = {
        f"lstm, output from {width}": Side(stock_lstm(width), vocabulary, device)
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
                {"ours": generation(gru, sample, 25), "peer": generation(side, sample, 25)},
            )
    report(f"GRU attention against fairseq's lstm, vocabulary {vocabulary}", rows, options_.json)


if __name__ == "__main__":
    main()
