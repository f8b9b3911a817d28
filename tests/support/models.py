"""Architectures under the laws of ``test_laws.py``, built as the commands build them."""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import BaseFairseqModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig
from torch import Tensor

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

# A new architecture, or a variant worth the same laws, is one line here.
ARCHITECTURES: dict[str, list[str]] = {
    "gru": ["--arch", "gru_tiny"],
    "gru-general": ["--arch", "gru_tiny", "--attention-type", "general"],
    "gru-dot": ["--arch", "gru_tiny", "--attention-type", "dot", "--decoder-hidden-size", "64"],
    "gru-luong": ["--arch", "gru_tiny", "--decoder-order", "luong"],
    "gru-no-feeding": ["--arch", "gru_tiny", "--no-input-feeding"],
    "gru-luong-no-feeding": [
        *("--arch", "gru_tiny", "--decoder-order", "luong", "--no-input-feeding"),
    ],
    "gru-shared": ["--arch", "gru_tiny", "--share-all-embeddings"],
    "linformer": LINFORMER,
    "linformer-long-k": [*LINFORMER, "--linformer-k", "16"],
    "linformer-uneven": [*LINFORMER, "--linformer-k", "5,3", "--linformer-init", "normal"],
    "linformer-key-value": [
        *LINFORMER,
        "--linformer-sharing",
        "key-value",
        "--share-all-embeddings",
    ],
    "linformer-layerwise": [
        *LINFORMER,
        "--linformer-sharing",
        "layerwise",
        "--encoder-learned-pos",
    ],
    "linformer-mean-pool": [*LINFORMER, "--linformer-projection", "mean-pool"],
    "linformer-convolution": [*LINFORMER, "--linformer-projection", "convolution"],
    "linformer-pre-norm": [
        *(*LINFORMER, "--encoder-normalize-before", "--decoder-normalize-before"),
        *("--linformer-scale", "model-dim", "--layernorm-embedding"),
    ],
    "muse": MUSE,
    "muse-simple": [*MUSE, "--muse-kernels", "none", "--share-all-embeddings"],
    "muse-growing": [*MUSE, "--muse-kernels", "4/31", "--decoder-learned-pos"],
    "muse-separate": [*MUSE, "--muse-separate-projection", "--encoder-learned-pos"],
    "muse-ordinary": [*MUSE, "--muse-convolution", "ordinary", "--muse-kernels", "3"],
    "muse-pre-norm": [
        *(*MUSE, "--encoder-normalize-before", "--decoder-normalize-before"),
        "--layernorm-embedding",
    ],
    "muse-fused": [*MUSE, "--muse-fused"],
    "bmt-float": [*BMT, "--bmt-preset", "float"],
    "bmt-1": [*BMT, "--share-all-embeddings"],
    "bmt-6": [*BMT, "--bmt-preset", "bmt-6"],
    "bmt-8": [*BMT, "--bmt-preset", "bmt-8"],
    "bmt-8-unsigned": [*BMT, "--bmt-preset", "bmt-8", "--binary-score-v", "unsigned"],
    "bmt-s": [*BMT, "--bmt-preset", "bmt-s"],
    "xnor-base": [*BMT, "--bmt-preset", "xnor-base"],
    "binary-transformer": [
        *("--arch", "binary_transformer", *SMALL, "--binary-weights", "qkv,out,ffn"),
        *("--binary-activations", "qkv,out,ffn,qk,score-v"),
    ],
    "binary-muse": [*MUSE, *ALL_LAYERS],
    "binary-linformer": [*LINFORMER, *ALL_LAYERS],
}
# A sign depends on the last bit of what is near 0: in half precision, or after a few updates, a
# model with binary activations is another function.
UNSTEADY = re.compile(r"bmt-[2-9s]|xnor|binary-")
# Parameters whose gradient is 0 by the mathematics, with the reason.
NO_GRADIENT = {
    r"score\.bias$": "b_v shifts every score of a softmax alike",
    r"head_norms\.k\.bias$": "β of the keys' norm shifts every score of a softmax alike",
    r"decoder\.layers\.\d+\.self_attn\.k_proj\.bias$": "b_k shifts every score of a softmax alike",
}


def has_no_gradient(name: str, parameter: str) -> bool:
    """Whether the mathematics gives a parameter of an architecture the gradient 0."""
    if name.startswith(("bmt-8", "binary-transformer")):
        return False  # what shifts a key changes its signs there
    return any(re.search(pattern, parameter) for pattern in NO_GRADIENT)


def overfitted_loss(name: str) -> float:
    """What the loss of a tiny batch has to fall below in 80 steps.

    All signs and none of the paper's layer norms: such models learn, but slowly.
    """
    return 1.0 if name.startswith("binary-") else 0.1


def overfitting_rate(name: str) -> float:
    """Adam's learning rate with which a tiny batch is learnt by heart in 80 steps."""
    return 0.02 if name.startswith("gru") else 0.005


def step_tolerance(name: str) -> float:
    """How far a step of incremental decoding may be from the full forward, in float64.

    fairseq's attention, which others use in their decoder, takes its softmax in float32 there.
    """
    return 1e-12 if name.startswith(("gru", "muse", "bmt", "xnor")) else 1e-6


def attention_tolerance(name: str) -> float:
    """The same for attention weights, which others than the GRU hand on in float32."""
    return 1e-12 if name.startswith("gru") else 1e-6


def dictionary(size: int = 30) -> Dictionary:
    """A dictionary of exactly ``size`` symbols, the four special ones among them."""
    words = Dictionary()
    for index in range(size - words.nspecial):
        words.add_symbol(f"w{index}")
    return words


def configuration(flags: list[str]) -> DictConfig:
    """What ``fairseq-train`` makes of these flags; the caller may change it."""
    return copy.deepcopy(_composed(tuple(flags)))


@functools.cache  # Hydra takes half a second, most of what a small model costs
def _composed(flags: tuple[str, ...]) -> DictConfig:
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["data", *flags])
    return convert_namespace_to_omegaconf(args)


def build(
    flags: list[str], *, size: int = 30, target_size: int | None = None, seed: int = 0
) -> tuple[BaseFairseqModel, TranslationTask]:
    """Model and task; dropout is as the flags say, the model is in eval mode."""
    torch.manual_seed(seed)
    cfg = configuration(flags)
    source = dictionary(size)
    target = source if target_size is None else dictionary(target_size)
    task = TranslationTask(cfg.task, source, target)
    return task.build_model(cfg.model).eval(), task


def padded(sentences: list[list[int]], *, left: bool, extra: int = 0, pad: int = 1) -> Tensor:
    """``[B, S]`` with ``extra`` columns of pads on the padded side."""
    width = max(map(len, sentences)) + extra
    rows = []
    for sentence in sentences:
        pads = [pad] * (width - len(sentence))
        rows.append(pads + sentence if left else sentence + pads)
    return torch.tensor(rows)


def random_sentences(lengths: list[int], size: int = 30, seed: int = 3) -> list[list[int]]:
    """Random words and the end-of-sentence symbol, ``lengths`` in all."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(4, size, (length - 1,), generator=generator).tolist(), 2]
        for length in lengths
    ]


def previous(target: Tensor, eos: int = 2, pad: int = 1) -> Tensor:
    """Teacher-forcing input of right-padded targets ``[B, T]``: shifted, led by ``eos``."""
    shifted = torch.full_like(target, eos)
    shifted[:, 1:] = target[:, :-1]
    return shifted.masked_fill(target.eq(pad), pad)


def batch() -> dict[str, Any]:
    """Four pairs of unequal length, the longest source first, as fairseq's LSTM wants them."""
    source = padded(random_sentences([7, 5, 3, 1]), left=True)
    target = padded(random_sentences([4, 6, 3, 2], seed=4), left=False)
    words = {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}
    words["prev_output_tokens"] = previous(target)
    return {"net_input": words, "target": target, "ntokens": int(target.ne(1).sum())}
