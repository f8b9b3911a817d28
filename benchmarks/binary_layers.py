"""Products with 1-bit weights on the CPU against fp32, bf16 and int8, layer by layer.

``python benchmarks/binary_layers.py --threads 1 2 --json docs/results/binary_layers.json``

Candidates are ``F.linear`` in fp32 and bf16, torch's dynamic int8 (a scale for each channel, the
inputs quantized on the way, as ours of the last kind), and ours: 1-bit weights with float inputs,
and 1-bit weights and inputs, binarization of the inputs included. Each pass goes once through
``--layers`` different layers, and the other candidates' passes in between empty the caches, as one
step of decoding with a large model does. Times are those of one product; n is the number of rows.

The limit beside each is the time in which this machine reads the weights from memory, at the rate
measured here. In the picture it is a dotted line.
"""

from __future__ import annotations

import argparse
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import bench
import shared_options
import torch
import torch.nn.functional as F
from cells import Cells
from pictures import save
from torch import Tensor, nn

from fairseq_ext.binary.kernels import (
    PackedWeight,
    active_path,
    available_paths,
    linear_1bit,
    linear_1bit_1bit,
)
from fairseq_ext.evaluation.plots import PALETTE, STYLE

FP32, BF16, INT8 = "fp32", "bf16", "int8"
WEIGHTS, BOTH = "1-bit weights", "1-bit weights and inputs"
BYTES = {FP32: 4.0, BF16: 2.0, INT8: 1.0, WEIGHTS: 1 / 8, BOTH: 1 / 8}  # of a weight
TARGETS = [  # candidate, peer, rows, how many times faster
    *((WEIGHTS, FP32, 1, 10.0), (WEIGHTS, FP32, 8, 5.0), (WEIGHTS, INT8, 1, 1.5)),
    *((BOTH, FP32, rows, 15.0) for rows in (1, 4, 8, 32)),
    *((BOTH, INT8, rows, 2.0) for rows in (1, 4, 8, 32)),
]
PROBE = 2**26  # floats, 256 MiB: more than any cache


def arguments() -> argparse.ArgumentParser:
    parser = shared_options.parser_with(
        __doc__,
        **{"threads": [1, 2], "layers": 12, "repeats": 25, "warmup": 2, "budget": 30.0},
    )
    add = parser.add_argument
    add("--sizes", nargs="+", default=["1024x4096", "4096x1024"], help="inputs x outputs")
    add("--rows", type=int, nargs="+", default=[1, 4, 8, 32, 128, 512])
    add("--path", choices=available_paths(), help="the kernels of ours; the best if not given")
    return parser


class Layers:
    """Weights of some layers in all the forms that are compared.

    Args:
        inputs, outputs: K and N.
        count: how many different layers.
    """

    def __init__(self, inputs: int, outputs: int, count: int) -> None:
        seed = torch.Generator().manual_seed(1)
        shape = (count, outputs, inputs)
        self.floats = list(torch.randn(shape, generator=seed).unbind())
        self.halves = [weight.bfloat16() for weight in self.floats]
        self.packed = [PackedWeight.of(weight) for weight in self.floats]
        self.int8 = [quantized(weight) for weight in self.floats]

    def passes(self, x: Tensor, path: str | None) -> dict[str, Callable[[], None]]:
        """Return for each candidate the products of ``x`` with every layer."""
        half = x.bfloat16()
        return {
            FP32: each(lambda weight: F.linear(x, weight), self.floats),
            BF16: each(lambda weight: F.linear(half, weight), self.halves),
            INT8: each(lambda layer: layer(x), self.int8),
            WEIGHTS: each(lambda packed: linear_1bit(x, packed, path=path), self.packed),
            BOTH: each(lambda packed: linear_1bit_1bit(x, packed, path=path), self.packed),
        }


def each(product: Callable, layers: list) -> Callable[[], None]:
    def run() -> None:
        for layer in layers:
            product(layer)

    return run


def quantized(weight: Tensor) -> nn.Module:
    """torch's dynamic int8 layer, one scale for each channel."""
    outputs, inputs = weight.shape
    layer = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    layer[0].weight = nn.Parameter(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, with nothing in torch itself in its place
        settings = torch.ao.quantization.per_channel_dynamic_qconfig
        return torch.ao.quantization.quantize_dynamic(layer, {nn.Linear: settings})[0]


def check(layers: Layers, path: str | None) -> None:
    """Check that the timed layers compute what they should."""
    packed, weight = layers.packed[0], layers.floats[0]
    x = torch.randn(5, packed.in_features)
    levels, bound = packed.unpack(), x.abs().amax(1, keepdim=True)
    signs = torch.where(x >= 0, 0.5, -0.5) * bound
    close = {"rtol": 1e-4, "atol": 1e-4 * packed.in_features**0.5}
    torch.testing.assert_close(linear_1bit(x, packed, path=path), F.linear(x, levels), **close)
    y = linear_1bit_1bit(x, packed, path=path)
    torch.testing.assert_close(y, F.linear(signs, levels), **close)
    rough = (layers.int8[0](x) - F.linear(x, weight)).norm() / F.linear(x, weight).norm()
    assert rough < 0.05, rough


def bytes_per_second() -> float:
    """The best rate of five at which all threads read memory once."""
    values, best = torch.ones(PROBE), 0.0
    for read in [values.sum, lambda: torch.dot(values, values)] * 5:
        start = time.perf_counter()
        read()
        best = max(best, values.nbytes / (time.perf_counter() - start))
    return best


def measure(cells: Cells, options: Namespace, threads: int, size: tuple[int, int]) -> None:
    """All numbers of rows for one size and number of threads."""
    torch.set_num_threads(threads)
    inputs, outputs = size
    layers, rate = Layers(inputs, outputs, options.layers), bytes_per_second()
    check(layers, options.path)
    what = f"K = {inputs}, N = {outputs}, {threads} thread{'s' * (threads > 1)}"
    cells.note(f"{what}: memory is read at {rate / 1e9:.1f} GB/s")
    pairs = [(ours, peer) for ours in (WEIGHTS, BOTH) for peer in (FP32, BF16, INT8)]
    for rows in options.rows:
        x = torch.randn(rows, inputs)
        seconds = bench.paired(
            layers.passes(x, options.path),
            repeats=options.repeats,
            warmup=options.warmup,
            budget=options.budget,
        )
        per_product = {
            name: [value / options.layers for value in values] for name, values in seconds.items()
        }
        cells.add(what, rows, per_product, pairs, tokens=rows, inputs=inputs, threads=threads)
        for figure in cells.figures[-len(per_product) :]:
            size_of = BYTES[figure["candidate"]] * inputs * outputs
            figure["limit_ms"] = 1e3 * size_of / rate
    for ours, peer, rows, target in TARGETS:
        cells.find_ratio(what, ours, peer, rows, target)


def table(cells: Cells) -> None:
    """Microseconds, and below them the limit where the weights come from memory."""
    print("\nmicroseconds of one product, and those in which its weights are read from memory")
    print(f"{'':34}{'rows':>6}" + "".join(f"{name:>26}" for name in BYTES))
    for what in dict.fromkeys(row["what"] for row in cells.figures):
        for rows in cells.curve(what, FP32):
            here = [f for f in cells.figures if (f["what"], f["n"]) == (what, rows)]
            texts = [f"{1e3 * f['ms']:.0f} ({1e3 * f['limit_ms']:.0f})" for f in here]
            print(f"{what:34}{rows:6}" + "".join(f"{text:>26}" for text in texts))


def draw(cells: Cells, output: Path) -> None:
    """Time of a product over rows, a panel for each size and number of threads."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    panels = list(dict.fromkeys(row["what"] for row in cells.figures))
    with matplotlib.rc_context(STYLE):
        lines = -(-len(panels) // 2)
        figure = Figure(figsize=(9.6, 3.6 * lines + 0.6), layout="constrained")
        places = figure.subplots(lines, 2, squeeze=False).flat
        for axes, what in zip(places, panels, strict=False):
            for colour, name in zip(PALETTE, BYTES, strict=False):
                curve = cells.curve(what, name, "ms")
                limits = [1e3 * ms for ms in cells.curve(what, name, "limit_ms").values()]
                times = [1e3 * ms for ms in curve.values()]
                axes.plot(list(curve), times, "o-", ms=4, lw=1.8, color=colour, label=name)
                if name != BOTH:  # the limit of both kinds of ours is one line
                    axes.plot(list(curve), limits, ":", lw=1.2, color=colour)
            axes.set(title=what, xlabel="rows", ylabel="time of a product (µs)")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(list(curve), [str(rows) for rows in curve])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.grid(True)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
        save(figure, output)


def main() -> None:
    options = arguments().parse_args()
    options.path = options.path or active_path()
    cells = Cells("1-bit products on the CPU", axis="rows", unit="ms")
    cells.note(f"kernels: {options.path}; {options.layers} layers in a pass")
    with torch.inference_mode():
        for threads in options.threads:
            for size in options.sizes:
                inputs, outputs = size.split("x")
                measure(cells, options, threads, (int(inputs), int(outputs)))
    table(cells)
    cells.save(options.json, {n: str(v) for n, v in shared_options.settings(options).items()})
    if options.json is not None:
        draw(cells, options.json)


if __name__ == "__main__":
    main()
