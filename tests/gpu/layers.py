"""Step 3: Linformer's encoder at several lengths n."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from peers import Side, Size, linformer, source_batch, transformer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_ext import register
from tests.gpu.results import Results, arguments, time_in_turn

VOCABULARY, SLOTS = 1000, (32, 256)


def run_of(encoder: nn.Module, tokens: Tensor, *, backward: bool) -> Callable[[], None]:
    """A forward pass, or one with a backward pass from a random gradient."""
    weight = encoder.embed_tokens.weight
    gradient = weight.new_empty(*tokens.t().shape, weight.size(1)).normal_()

    def forward() -> None:
        with torch.no_grad():
            encoder(tokens)

    def forward_and_backward() -> None:
        encoder(tokens)["encoder_out"][0].backward(gradient)
        encoder.zero_grad(set_to_none=True)

    return forward_and_backward if backward else forward


def on_backend(run: Callable[[], None], backend: SDPBackend) -> Callable[[], None]:
    def run_on_backend() -> None:
        with sdpa_kernel(backend):
            run()

    return run_on_backend


def encoders_of(options: Namespace, n: int) -> dict[str, nn.Module]:
    """Encoders of all kinds with the same weights, in bf16."""
    layers, width, heads = (1, 32, 2) if options.tiny else (6, 512, 8)
    size = Size(width, 4 * width, heads, layers, 1, VOCABULARY)
    where = {"positions": n, "device": options.device, "dtype": torch.bfloat16}
    stock = Side(transformer(), size, **where)
    encoders = {"stock": stock.model.encoder, "sdpa": stock.on_fused_attention().model.encoder}
    for k in SLOTS:
        encoders[f"k={k}"] = Side(linformer(k, n), size, **where).model.encoder
    for encoder in encoders.values():
        encoder.load_state_dict(encoders["stock"].state_dict(), strict=False)
    return {name: encoder.eval() for name, encoder in encoders.items()}


def encode(
    options: Namespace, encoders: dict[str, nn.Module], n: int, backward: bool
) -> dict[str, Any]:
    """Time per pass of each encoder at one length; the number of tokens is constant."""
    total = 256 if options.tiny else 32_768
    tokens = source_batch(max(1, total // n), n, VOCABULARY).to(options.device)
    runs = {name: run_of(encoder, tokens, backward=backward) for name, encoder in encoders.items()}
    if options.device == "cuda":
        fused = runs.pop("sdpa")
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
    peer = "flash" if "flash" in times else "sdpa"
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
