"""Step 3: Linformer's encoder at several lengths n."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from linformer import FUSED, STOCK, VOCABULARY, build_encoders, forward, training_step
from peers import source_batch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_ext import register
from tests.gpu.results import Results, arguments, time_in_turn

SLOTS = (32, 256)


def on_backend(run: Callable[[], None], backend: SDPBackend) -> Callable[[], None]:
    def run_on_backend() -> None:
        with sdpa_kernel(backend):
            run()

    return run_on_backend


def encoders_of(options: Namespace, n: int) -> dict[str, nn.Module]:
    """Encoders of all kinds with the same weights, in bf16."""
    layers, width, heads = (1, 32, 2) if options.tiny else (6, 512, 8)
    sizes = {"layers": layers, "embed_dim": width, "ffn_embed_dim": 4 * width, "heads": heads}
    encoders = build_encoders(Namespace(**sizes, k=SLOTS, device=options.device, dtype="bf16"), n)
    return {"stock": encoders.pop(STOCK), **encoders}


def encode(
    options: Namespace, encoders: dict[str, nn.Module], n: int, backward: bool
) -> dict[str, Any]:
    """Time per pass of each encoder at one length; the number of tokens is constant."""
    total = 256 if options.tiny else 32_768
    tokens = source_batch(max(1, total // n), n, VOCABULARY).to(options.device)
    make = training_step if backward else forward
    runs = {name: make(encoder, tokens) for name, encoder in encoders.items()}
    if options.device == "cuda":
        fused = runs.pop(FUSED)
        runs["flash"] = on_backend(fused, SDPBackend.FLASH_ATTENTION)
        runs["cudnn"] = on_backend(fused, SDPBackend.CUDNN_ATTENTION)
        if n <= 2048:
            runs["exact"] = on_backend(fused, SDPBackend.MATH)
    if n > 4096:
        runs.pop("stock")  # weights of all heads, n² each
    errors: dict[str, str] = {}
    for name in list(runs):
        try:
            runs[name]()
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"[-300:]
            del runs[name]
            torch.cuda.empty_cache()
    seconds = time_in_turn(runs, 0.1 if options.tiny else 0.6)
    times = {name: 1e3 * value for name, value in seconds.items()}
    peer = "flash" if "flash" in times else FUSED
    ratios = {name: times[peer] / times[name] for name in times if peer in times}
    return {"ms": times, f"over_{peer}": ratios, "errors": errors, "tokens": tokens.numel()}


def ceiling(options: Namespace) -> dict[str, Any]:
    """The card's rates: products in bf16 and copies."""
    n = 64 if options.tiny else 8192
    a = torch.randn(n, n, device=options.device, dtype=torch.bfloat16)
    other = torch.empty_like(a)
    runs = {"product": lambda: a @ a, "copy": lambda: other.copy_(a)}
    seconds = time_in_turn(runs, 0.1 if options.tiny else 0.5)
    return {
        "tflops_bf16": 2e-12 * n**3 / seconds["product"],
        "copy_gb_per_second": 2e-9 * a.nbytes / seconds["copy"],
    }


def main() -> None:
    options = arguments("layers")
    results = Results("layers", options)
    register()
    results.measure("ceiling", lambda: ceiling(options))
    lengths = (64,) if options.tiny else (512, 1024, 2048, 4096, 8192, 16_384)
    for n in lengths:
        encoders: dict[str, nn.Module] = {}
        for backward in (False, True):

            def cell(n: int = n, backward: bool = backward, encoders: dict = encoders) -> dict:
                if not encoders:
                    encoders.update(encoders_of(options, n))
                return encode(options, encoders, n, backward)

            results.measure(f"encoder n={n} {'forward+backward' if backward else 'forward'}", cell)
    results.finish()


if __name__ == "__main__":
    main()
