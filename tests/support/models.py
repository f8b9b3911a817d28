"""Build the architectures that ``test_laws.py`` tests, as the commands build them."""

import functools
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

from fairseq_ext.base import wings

# Patterns of parameters whose gradient is 0 in theory, with the reason.
ZERO_GRADIENTS = {
    r"score\.bias$": "b_v shifts every score of a softmax alike",
    r"head_norms\.k\.bias$": "β of the keys' norm shifts every score of a softmax alike",
    r"decoder\.layers\.\d+\.self_attn\.k_proj\.bias$": "b_k shifts every score of a softmax alike",
}


@dataclass(frozen=True)
class Architecture:
    """A line of the table below: an architecture's flags, and facts that its tests need.

    Attributes:
        wings: folders of the package that it needs; without them, its line is left out.
        flags: flags of ``fairseq-train``.
        step_tolerance: how far a step of incremental decoding may be from the full forward, in
            float64. fairseq's attention, which many decoders use, takes its softmax in float32.
        attention_tolerance: the largest difference of attention weights, which most decoders
            return in float32.
        unsteady: whether activations are binary or weights ternary. A sign near 0, or a ternary
            weight near its threshold, depends on the last bit of a number. So in half precision,
            or after a few updates, such a model computes another function.
        attention_dropout: whether ``--attention-dropout`` does anything.
        sharpening: factor of all weights that makes attention clearly non-uniform.
        overfitting_rate: Adam's learning rate with which 80 steps learn a tiny batch by heart.
        overfitted_loss: bound below which the batch's loss must come within 80 steps, and stay.
        zero_gradients: patterns of parameters without influence on the output, with the reason.
    """

    wings: tuple[str, ...]
    flags: list[str]
    step_tolerance: float = 1e-6
    attention_tolerance: float = 1e-6
    unsteady: bool = False
    attention_dropout: bool = True
    sharpening: float = 1.0
    overfitting_rate: float = 0.005
    overfitted_loss: float = 0.1
    zero_gradients: Mapping[str, str] = field(default_factory=lambda: ZERO_GRADIENTS)

    def has_no_gradient(self, parameter: str) -> bool:
        """Return whether a parameter's gradient is 0 in theory."""
        return any(re.search(pattern, parameter) for pattern in self.zero_gradients)


# Two layers of two heads, wide enough for every law.
SMALL = [
    *("--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "48"),
    *("--decoder-layers", "2", "--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "48"),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2", "--dropout", "0"),
]
MUSE = ["--arch", "muse_base", *SMALL]
LINFORMER = ["--arch", "linformer", *SMALL, "--linformer-k", "4", "--linformer-max-len", "22"]
BMT = ["--arch", "bmt", *SMALL, "--attention-dropout", "0", "--activation-dropout", "0"]
ALL_LAYERS = ["--binary-weights", "qkv,out,ffn", "--binary-activations", "qkv,out,ffn"]
MORE_SIGNS = ["--binary-activations", "qkv,out,ffn,qk,score-v"]
PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]

EXACT_STEPS = {"step_tolerance": 1e-12}
ALL_SIGNS = {"unsteady": True, "overfitted_loss": 1.0}  # learning is slow without BMT's norms
NO_SHIFT_IS_LOST: dict[str, Any] = {"zero_gradients": {}}  # a shift of a key changes its signs


def gru(*flags: str) -> Architecture:
    """Describe a recurrent model, whose attention has no dropout and is nearly uniform at first."""
    traits = {"attention_dropout": False, "sharpening": 2.0, "overfitting_rate": 0.02}
    traits |= {**EXACT_STEPS, "attention_tolerance": 1e-12}
    return Architecture(("gru",), ["--arch", "gru_tiny", *flags], **traits)


def linformer(*flags: str) -> Architecture:
    return Architecture(("linformer",), [*LINFORMER, *flags])


def muse(*flags: str) -> Architecture:
    return Architecture(("muse",), [*MUSE, *flags], **EXACT_STEPS, overfitting_rate=0.01)


def bmt(*flags: str, **traits: Any) -> Architecture:
    traits |= {**EXACT_STEPS, "overfitting_rate": 0.02}
    return Architecture(("binary",), [*BMT, *flags], **traits)


BIT_8 = {"unsteady": True, **NO_SHIFT_IS_LOST}
TABLE: dict[str, Architecture] = {
    "gru": gru(),
    "gru-general": gru("--attention-type", "general"),
    "gru-dot": gru("--attention-type", "dot", "--decoder-hidden-size", "64"),
    "gru-luong": gru("--decoder-order", "luong"),
    "gru-no-feeding": gru("--no-input-feeding"),
    "gru-luong-no-feeding": gru("--decoder-order", "luong", "--no-input-feeding"),
    "gru-shared": gru("--share-all-embeddings"),
    "linformer": linformer(),
    "linformer-long-k": linformer("--linformer-k", "16"),
    "linformer-uneven": linformer("--linformer-k", "5,3", "--linformer-init", "normal"),
    "linformer-key-value": linformer("--linformer-sharing", "key-value", "--share-all-embeddings"),
    "linformer-layerwise": linformer("--linformer-sharing", "layerwise", "--encoder-learned-pos"),
    "linformer-mean-pool": linformer("--linformer-projection", "mean-pool"),
    "linformer-convolution": linformer("--linformer-projection", "convolution"),
    "linformer-pre-norm": linformer(
        *PRE_NORM, "--linformer-scale", "model-dim", "--layernorm-embedding"
    ),
    "muse": muse(),
    "muse-simple": muse("--muse-kernels", "none", "--share-all-embeddings"),
    "muse-growing": muse("--muse-kernels", "4/31", "--decoder-learned-pos"),
    "muse-separate": muse("--muse-separate-projection", "--encoder-learned-pos"),
    "muse-ordinary": muse("--muse-convolution", "ordinary", "--muse-kernels", "3"),
    "muse-pre-norm": muse(*PRE_NORM, "--layernorm-embedding"),
    "bmt-1": bmt("--share-all-embeddings"),
    "bmt-float": bmt("--bmt-preset", "float"),
    "bmt-6": bmt("--bmt-preset", "bmt-6", unsteady=True),
    "bmt-8": bmt("--bmt-preset", "bmt-8", **BIT_8),
    "bmt-8-unsigned": bmt("--bmt-preset", "bmt-8", "--binary-score-v", "unsigned", **BIT_8),
    "bmt-s": bmt("--bmt-preset", "bmt-s", unsteady=True),
    "xnor-base": bmt("--bmt-preset", "xnor-base", unsteady=True),
    "binary-transformer": Architecture(
        *(("binary",), ["--arch", "binary_transformer", *SMALL, *ALL_LAYERS, *MORE_SIGNS]),
        **{**ALL_SIGNS, **NO_SHIFT_IS_LOST},
    ),
    "binary-muse": Architecture(("binary", "muse"), [*MUSE, *ALL_LAYERS], **ALL_SIGNS),
    "ternary-transformer": Architecture(
        ("binary",),
        ["--arch", "binary_transformer", *SMALL, "--binary-weights", "ternary"],
        unsteady=True,
        zero_gradients={r"k_proj\.bias$": "b_k shifts every score of a softmax alike"},
    ),
    "ternary-muse": Architecture(
        ("binary", "muse"), [*MUSE, *ALL_LAYERS, "--binary-weights", "ternary"], **ALL_SIGNS
    ),
    "binary-linformer": Architecture(
        ("binary", "linformer"), [*LINFORMER, *ALL_LAYERS], **ALL_SIGNS
    ),
}
"""A new architecture, or a variant that needs the same tests, is one line here."""

UNDER_LAW = {name: line for name, line in TABLE.items() if set(line.wings) <= set(wings.names())}
"""The lines of :data:`TABLE` whose folders (`wings`) exist."""
FIRST_OF_WINGS = {
    line.wings: name for name, line in reversed(UNDER_LAW.items()) if len(line.wings) == 1
}.values()
"""For each folder, the first line that needs this folder alone; used by the quick tests."""
ARCHITECTURES = {name: line.flags for name, line in UNDER_LAW.items()}
"""The flags of the lines in :data:`UNDER_LAW`."""


def dictionary(size: int = 30) -> Dictionary:
    """Make a dictionary of exactly ``size`` symbols, including the four special ones."""
    words = Dictionary()
    for index in range(size - words.nspecial):
        words.add_symbol(f"w{index}")
    return words


def configuration(flags: list[str]) -> DictConfig:
    """Return ``fairseq-train``'s configuration for flags; the caller may change it."""
    return pickle.loads(_composed(tuple(flags)))  # five times as fast as a deep copy


@functools.cache  # Hydra takes a tenth of a second, most of what a small model costs
def _composed(flags: tuple[str, ...]) -> bytes:
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["data", *flags])
    return pickle.dumps(convert_namespace_to_omegaconf(args))


def build(
    flags: list[str],
    *,
    size: int = 30,
    target_size: int | None = None,
    seed: int = 0,
    **changes: Any,
) -> tuple[BaseFairseqModel, TranslationTask]:
    """Build a model in eval mode, and its task; ``changes`` replace options of the model."""
    torch.manual_seed(seed)
    cfg = configuration(flags)
    for name, value in changes.items():  # a Namespace in an architecture without a dataclass
        setattr(cfg.model, name, value)
    source = dictionary(size)
    target = source if target_size is None else dictionary(target_size)
    task = TranslationTask(cfg.task, source, target)
    return task.build_model(cfg.model).eval(), task


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def padded(sentences: list[list[int]], *, left: bool, extra: int = 0) -> Tensor:
    """Pad sentences to one length, which is the longest plus ``extra``."""
    width = max(map(len, sentences)) + extra
    rows = []
    for sentence in sentences:
        pads = [1] * (width - len(sentence))
        rows.append(pads + sentence if left else sentence + pads)
    return torch.tensor(rows)


def random_sentences(lengths: list[int], size: int = 30, seed: int = 3) -> list[list[int]]:
    """Draw sentences of random words; ``lengths`` include the end-of-sentence symbol."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(4, size, (length - 1,), generator=generator).tolist(), 2]
        for length in lengths
    ]


def previous(target: Tensor) -> Tensor:
    """Shift right-padded targets into a decoder's input, which starts with ``</s>``."""
    shifted = torch.full_like(target, 2)
    shifted[:, 1:] = target[:, :-1]
    return shifted.masked_fill(target.eq(1), 1)


def net_input(source: Tensor, target: Tensor | None = None) -> dict[str, Tensor]:
    """Return a model's arguments for padded sources and, with teacher forcing, padded targets."""
    words = {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}
    return words if target is None else {**words, "prev_output_tokens": previous(target)}


def sample_of(sentences: list[list[int]]) -> dict[str, Any]:
    """Make a batch of left-padded sources for a generator."""
    rows = padded(sentences, left=True)
    return {"id": torch.arange(len(rows)), "net_input": net_input(rows)}


def learning(model: Module, source: Tensor, target: Tensor, rate: float) -> Iterator[float]:
    """Train on one batch of padded sentences; yield the loss of each of 80 updates."""
    optimizer = torch.optim.Adam(model.train().parameters(), lr=rate)
    for _ in range(80):
        optimizer.zero_grad()
        logits = model(**net_input(source, target))[0].flatten(0, 1)
        loss = cross_entropy(logits, target.flatten(), ignore_index=1)
        loss.backward()
        optimizer.step()
        yield loss.item()


def sharpen(model: BaseFairseqModel, factor: float) -> None:
    """Multiply a model's matrices, so that its predictions and attention are not uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)


def batch() -> dict[str, Any]:
    """Make a batch of four pairs, the longest source first, as fairseq's LSTM requires."""
    source = padded(random_sentences([7, 5, 3, 1]), left=True)
    target = padded(random_sentences([4, 6, 3, 2], seed=4), left=False)
    count = int(target.ne(1).sum())
    return {"net_input": net_input(source, target), "target": target, "ntokens": count}
