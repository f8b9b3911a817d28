"""MUSE's dynamic convolution alone, against fairseq's over sentences of T tokens.

fairseq has two paths for the same function: `expanded` multiplies with a band matrix, `unfolded`
copies each position's window. Several gated kernels are as many of its convolutions, as the paper's
authors have it; ours merges the kernels first.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import product

import torch
from cells import Cells, Stopwatch
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
from peers import DTYPES
from torch import Tensor, nn

from fairseq_ext.muse.convolution import DynamicConvolution, taps_to_the_left

OURS = "ours"
PATHS = {"fairseq expanded": False, "fairseq unfolded": True}
KERNELS: dict[str, tuple[int, ...]] = {"gated 3,15": (3, 15), "3": (3,), "15": (15,)}
PASSES = ("forward", "forward + backward")
TARGET = 2.0  # times fairseq's best path, for the gated pair


class StockConvolution(nn.Module):
    """fairseq's dynamic convolutions and a gate, with the parameters of ours.

    Args:
        ours: whose function it computes.
        unfold: which of fairseq's two paths.
    """

    def __init__(self, ours: DynamicConvolution, unfold: bool) -> None:
        super().__init__()
        self.unfold = unfold
        heads, sizes = ours.heads, ours.kernel_sizes
        weight = ours.predictor.weight.detach()
        dim = weight.size(1)
        rows = weight.view(heads, sum(sizes), dim).split(sizes, dim=1)
        self.convolutions = nn.ModuleList()
        for size, of_kernel in zip(sizes, rows, strict=True):
            left = taps_to_the_left(size, ours.causal)
            stock = DynamicConv1dTBC(dim, size, left, heads, weight_softmax=True)
            stock.weight_linear.weight = nn.Parameter(of_kernel.reshape(heads * size, dim))
            self.convolutions.append(stock)
        self.gate = None if ours.gate is None else nn.Parameter(ours.gate.detach().clone())

    def forward(self, values: Tensor) -> Tensor:
        """Convolve ``[T, B, C]`` to ``[T, B, C]``."""
        outputs = [convolution(values, unfold=self.unfold) for convolution in self.convolutions]
        if self.gate is None:
            return outputs[0]
        return sum(share * out for share, out in zip(self.gate.softmax(0), outputs, strict=True))


def build(options: Namespace, sizes: tuple[int, ...]) -> dict[str, nn.Module]:
    """Ours and fairseq's two paths, with the same parameters."""
    torch.manual_seed(1)
    ours = DynamicConvolution(options.embed_dim, options.heads, sizes, causal=False)
    if ours.gate is not None:
        nn.init.normal_(ours.gate)
    modules = {OURS: ours, **{name: StockConvolution(ours, path) for name, path in PATHS.items()}}
    return {name: module.to(options.device) for name, module in modules.items()}


def forward(module: nn.Module, values: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return module(values)

    return run


def backward(module: nn.Module, values: Tensor) -> Callable[[], Tensor]:
    """Forward, then gradients of values, predictors and gate from a random one of the output."""
    leaf = values.clone().requires_grad_()
    gradient = torch.randn_like(values)

    def run() -> Tensor:
        leaf.grad = None
        module.zero_grad(set_to_none=True)
        module(leaf).backward(gradient)
        return leaf.grad

    return run


def check(options: Namespace) -> None:
    """Check that all modules compute equal outputs and gradients, on both paths of ours."""
    for sizes, length in product(KERNELS.values(), (5, 33, 100)):
        values = torch.randn(length, 2, options.embed_dim, device=options.device)
        expected: dict[str, Tensor] = {}
        for name, module in build(options, sizes).items():
            for pass_name, make in zip(PASSES, (forward, backward), strict=True):
                torch.manual_seed(2)  # the same gradient of the output
                actual = make(module, values)()
                expected.setdefault(pass_name, actual)
                message = f"{pass_name} of {name}, kernels {sizes}, T = {length}"
                torch.testing.assert_close(
                    actual, expected[pass_name], atol=1e-4, rtol=1e-4, msg=message
                )


def convolution(options: Namespace) -> Cells:
    """Time forward, and forward with backward, at about as many tokens for every T."""
    check(options)
    cells = Cells(
        f"Dynamic convolution over T, C = {options.embed_dim}, H = {options.heads}, "
        f"{options.dtype}",
        axis="T",
    )
    cells.note(
        f"about {options.tokens:,} tokens in a batch, no pads, no dropout, centred taps; values "
        "to output, with the predictor of the kernels and without other linear layers"
    )
    cells.note("each pair of outputs and gradients agreed to 1e-4 before timing")
    dtype = DTYPES[options.dtype]
    peers = list(PATHS)
    watch = Stopwatch(options)
    for (label, sizes), length in product(KERNELS.items(), options.lengths):
        sentences = max(1, options.tokens // length)
        modules = {name: module.to(dtype) for name, module in build(options, sizes).items()}
        values = torch.randn(length, sentences, options.embed_dim).to(options.device, dtype)
        for pass_name, make in zip(PASSES, (forward, backward), strict=True):
            series = f"{label}, {pass_name}"
            candidates = {name: make(module, values) for name, module in modules.items()}
            seconds = watch.time(series, candidates)
            cells.add(
                series,
                length,
                seconds,
                [(OURS, peer) for peer in peers],
                tokens=sentences * length,
                peers=peers,
                sentences=sentences,
            )
    for label, pass_name in product(KERNELS, PASSES):
        find_best(cells, f"{label}, {pass_name}", TARGET if len(KERNELS[label]) > 1 else None)
    return cells


def find_best(cells: Cells, pair_and_pass: str, target: float | None) -> None:
    """State the ratio to the faster of fairseq's paths at every T, and whether all reach it."""
    curves = [cells.ratio_curve(pair_and_pass, OURS, peer) for peer in PATHS]
    lengths = sorted(set().union(*curves))
    best = {n: min(curve[n] for curve in curves if n in curve) for n in lengths}
    text = f"{pair_and_pass}, ours against fairseq's best path at T = "
    text += ", ".join(f"{n:,}: {ratio:.2f}x" for n, ratio in best.items())
    if target is not None:
        missed = [n for n, ratio in best.items() if ratio < target]
        verdict = f"missed at {', '.join(f'{n:,}' for n in missed)}" if missed else "met"
        text += f" (target {target:g}x: {verdict})"
    cells.find(text)
