"""Build the models that benchmarks compare, and random batches for them.

The models are ours, fairseq's Transformer, and faster variants of this Transformer.
"""

from __future__ import annotations

import copy
import itertools
import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import MultiheadAttention
from fairseq.optim.adam import FairseqAdam
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn
from torch.nn import functional

from fairseq_ext import register
from fairseq_ext.linformer.attention import LengthProjection, LinformerAttention
from fairseq_ext.muse.projections import FinalLinear

PAD, EOS, FIRST_WORD = 1, 2, 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Size:
    """The sizes of a transformer; the defaults are the Linformer paper's."""

    embed_dim: int = 512
    ffn_embed_dim: int = 2048
    heads: int = 8
    layers: int = 6
    decoder_layers: int = 6
    vocabulary: int = 50_272

    @classmethod
    def of(cls, options: Namespace) -> Size:
        """Return the sizes in the options; encoder and decoder have ``layers`` layers each."""
        layers = options.layers
        sizes = options.embed_dim, options.ffn_embed_dim, options.heads, layers, layers
        return cls(*sizes, options.vocabulary)

    def flags(self) -> list[str]:
        """Return the options of ``fairseq-train`` for these sizes, with all embeddings shared."""
        shared = {
            "embed-dim": self.embed_dim,
            "ffn-embed-dim": self.ffn_embed_dim,
            "attention-heads": self.heads,
        }
        values = {
            f"{side}-{name}": shared[name] for side in ("encoder", "decoder") for name in shared
        }
        values |= {"encoder-layers": self.layers, "decoder-layers": self.decoder_layers}
        flags = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        return [*flags, "--share-all-embeddings"]


def transformer() -> list[str]:
    return ["--arch", "transformer"]


def linformer(k: int, max_len: int) -> list[str]:
    """Return fairseq-train's flags for a Linformer with projected length ``k``.

    Its projections E and F are made for ``max_len`` tokens, or for ``k`` if ``k`` is larger.
    """
    columns = str(max(k, max_len))
    return ["--arch", "linformer", "--linformer-k", str(k), "--linformer-max-len", columns]


class Side:
    """A model built by fairseq from fairseq-train's flags, and its task, loss and optimizer.

    ``positions`` is the largest number of tokens in a sentence.
    """

    def __init__(
        self,
        flags: list[str],
        size: Size,
        *,
        positions: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        dropout: float = 0.0,
    ) -> None:
        torch.manual_seed(1)
        longest = str(max(1024, positions))
        words = [
            *("data", "--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "1e-4"),
            *("--max-source-positions", longest, "--max-target-positions", longest),
            *(*size.flags(), "--dropout", str(dropout), *flags),
        ]
        register()
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        self.cfg = convert_namespace_to_omegaconf(args)
        dictionary = Dictionary()
        for index in range(size.vocabulary - dictionary.nspecial):
            dictionary.add_symbol(f"w{index}")
        self.task = TranslationTask(self.cfg.task, dictionary, dictionary)
        self.model = self.task.build_model(self.cfg.model).to(device, dtype)
        self.criterion = self.task.build_criterion(self.cfg.criterion)
        self.optimizer: FairseqAdam | None = None

    def on_fused_attention(self) -> Side:
        """Return a copy that uses torch's ``scaled_dot_product_attention`` in all attentions."""
        return self._exchanged(MultiheadAttention, FusedAttention)

    def on_packed_weights(self) -> Side:
        """Return a copy in which all modules ``nn.Linear`` use oneDNN's packed weights."""
        return self._exchanged(nn.Linear, lambda stock: FinalLinear(stock.weight, stock.bias))

    def _exchanged(self, kind: type[nn.Module], replacement: Callable[..., nn.Module]) -> Side:
        twin = copy.copy(self)
        twin.model, twin.optimizer = copy.deepcopy(self.model), None
        for name, module in list(twin.model.named_modules()):
            if isinstance(module, kind):
                twin.model.set_submodule(name, replacement(module))
        return twin

    def train_step(self, sample: dict) -> None:
        """Make an update on a batch like fairseq's trainer: loss, gradients, clipping, Adam."""
        if self.optimizer is None:
            self.optimizer = FairseqAdam(self.cfg.optimizer, list(self.model.parameters()))
        self.task.train_step(sample, self.model, self.criterion, self.optimizer, 0)
        self.optimizer.clip_grad_norm(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train_steps(self, samples: list[dict]) -> Callable[[], None]:
        """Return a function that makes a training step on the next of ``samples``, in a cycle."""
        batches = itertools.cycle(samples)
        return lambda: self.train_step(next(batches))


class FusedAttention(nn.Module):
    """An attention with the weights of fairseq's, computed by ``scaled_dot_product_attention``.

    It can encode and score references (teacher forcing), but not generate word by word. If there is
    an ``attn_mask``, whatever its values, attention is causal and ``key_padding_mask`` is ignored.
    So targets must be padded on the right, where causal attention never reaches the pads.
    """

    def __init__(self, stock: MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.head_dim = stock.num_heads, stock.head_dim
        self.q_proj, self.k_proj, self.v_proj = stock.q_proj, stock.k_proj, stock.v_proj
        self.out_proj = stock.out_proj
        self.dropout = stock.dropout_module.p

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        **unused: object,
    ) -> tuple[Tensor, None]:
        """Attend from queries ``[T, B, C]`` to keys and values ``[S, B, C]``.

        ``T`` and ``S`` are numbers of tokens, ``B`` of sentences and ``C`` of channels. Return the
        output, ``[T, B, C]``, and None in place of attention weights.
        """
        q = self._heads(self.q_proj(query))
        k, v = self._heads(self.k_proj(key)), self._heads(self.v_proj(value))
        causal, mask = attn_mask is not None, None
        if key_padding_mask is not None and not causal:
            mask = ~key_padding_mask[:, None, None, :]
        heads = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out_proj(heads.permute(2, 0, 1, 3).flatten(2)), None

    def _get_input_buffer(self, incremental_state: None) -> dict:
        """Return an empty cache of keys and values; fairseq's decoder layer calls this."""
        return {}

    def _heads(self, projected: Tensor) -> Tensor:
        """Split ``[T, B, C]`` into ``H`` heads of ``D`` channels, ``[B, H, T, D]``."""
        return projected.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)


class Constant(nn.Module):
    """A layer that returns the same result for every input."""

    def __init__(self, result: Tensor) -> None:
        super().__init__()
        self.result = result

    def forward(self, unused: Tensor) -> Tensor:
        return self.result


def attentions(
    size: Size, slots: list[int], n: int, device: str, dtype: torch.dtype
) -> dict[str, nn.Module]:
    """Build a Linformer attention for each projected length in ``slots``, and fused attention.

    They are for ``n`` tokens, and named ``k=32`` … and ``sdpa``.
    """
    torch.manual_seed(1)
    modules: dict[str, nn.Module] = {
        f"k={k}": LinformerAttention(size.embed_dim, size.heads, LengthProjection(k, max(k, n)))
        for k in slots
    }
    stock = MultiheadAttention(size.embed_dim, size.heads, self_attention=True)
    modules["sdpa"] = FusedAttention(stock)
    return {name: module.to(device, dtype).eval() for name, module in modules.items()}


def core(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> nn.Module:
    """Return a copy of an attention without its linear layers, to time the attention alone.

    The copy ignores its input and always attends from ``q`` to ``k`` and ``v``.
    """
    alone = copy.deepcopy(module)
    alone.q_proj, alone.k_proj, alone.v_proj = Constant(q), Constant(k), Constant(v)
    alone.out_proj = nn.Identity()
    alone.compress_first = False  # keys and values are given, and no longer linear in one input
    return alone


def source_batch(sentences: int, n: int, vocabulary: int, *, padded: bool = False) -> Tensor:
    """Return a batch of random source sentences of ``n`` tokens, ``[sentences, n]``.

    If ``padded``, lengths go from ``n - 1`` down to about 3/4 of ``n``, with pads on the left.
    """
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(FIRST_WORD, vocabulary, (sentences, n), generator=generator)
    tokens[:, -1] = EOS
    if padded:
        pads = 1 + torch.arange(sentences) * (n // 4) // sentences
        tokens.masked_fill_(torch.arange(n) < pads.unsqueeze(1), PAD)
    return tokens


def pair_lengths(
    sentences: int,
    means: tuple[float, float],
    sigmas: tuple[float, float],
    correlation: float,
    *,
    longest: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Draw log-normal lengths of sources and of targets in tokens, ``[sentences]`` each.

    Args:
        sentences: number of pairs.
        means: mean lengths of sources and targets.
        sigmas: standard deviations of the lengths' logarithms.
        correlation: correlation of the logarithms of a pair's two lengths.
        longest: largest length; longer sentences get this length. The smallest length is three.
        seed: seed of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    source, noise = torch.randn(2, sentences, generator=generator)
    target = correlation * source + math.sqrt(1 - correlation**2) * noise
    lengths = []
    for normal, mean, sigma in zip((source, target), means, sigmas, strict=True):
        tokens = (math.log(mean) - sigma**2 / 2 + sigma * normal).exp().round()
        lengths.append(tokens.long().clamp(3, longest))
    return lengths[0], lengths[1]


def sample_of(source_lengths: Tensor, target_lengths: Tensor, size: Size, device: str) -> dict:
    """Return a batch of random sentence pairs in fairseq's format.

    The lengths ``[sentences]`` are numbers of tokens with ``</s>``.
    """
    generator = torch.Generator().manual_seed(int(source_lengths.sum()))

    def side(lengths: Tensor, left: bool) -> Tensor:
        width = int(lengths.max())
        shape = (len(lengths), width)
        tokens = torch.randint(FIRST_WORD, size.vocabulary, shape, generator=generator)
        column = torch.arange(width).flip(0) if left else torch.arange(width)
        end = torch.zeros_like(lengths) if left else lengths - 1
        tokens.masked_fill_(column == end.unsqueeze(1), EOS)
        return tokens.masked_fill_(column >= lengths.unsqueeze(1), PAD)

    source, target = side(source_lengths, True), side(target_lengths, False)
    previous = target.roll(1, dims=1)
    previous[:, 0] = EOS
    previous.masked_fill_(target.eq(PAD), PAD)
    return {
        "id": torch.arange(len(source)),
        "nsentences": len(source),
        "ntokens": int(target_lengths.sum()),
        "net_input": {
            "src_tokens": source.to(device),
            "src_lengths": source_lengths.to(device),
            "prev_output_tokens": previous.to(device),
        },
        "target": target.to(device),
    }


@torch.no_grad()
def check(size: Size, device: str) -> None:
    """Check that two encoders compute the same outputs as fairseq's Transformer encoder.

    - The encoder with fused attention must do so with pads and without.
    - A Linformer with ``k = n`` and identity matrices as E and F must do so without pads. With pads
      it does not, because its softmax also counts the zero keys that pads leave.

    Raise AssertionError if an output differs.
    """
    n = 16
    small = Size(size.embed_dim, size.ffn_embed_dim, size.heads, 2, 1, 100)
    stock = Side(transformer(), small, positions=n, device=device)
    fused = stock.on_fused_attention()
    exact = Side(linformer(n, n), small, positions=n, device=device)
    exact.model.load_state_dict(stock.model.state_dict(), strict=False)
    for padded in (False, True):
        tokens = source_batch(3, n, small.vocabulary, padded=padded).to(device)
        real = tokens.ne(PAD).t()
        outputs = {
            name: side.model.eval().encoder(tokens)["encoder_out"][0][real]
            for name, side in {"fairseq": stock, "fused": fused, "k=n": exact}.items()
            if not (padded and name == "k=n")
        }
        for name, output in outputs.items():
            torch.testing.assert_close(
                output, outputs["fairseq"], atol=1e-4, rtol=1e-4, msg=f"{name}, padded={padded}"
            )
