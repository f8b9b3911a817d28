"""Step 4: fairseq's generator against `--engine torch`, and MUSE-simple against the Transformer.

Weights are random; every translation has the same number of tokens, so that the work is equal.
"""

import copy
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import apply_to_sample

from fairseq_ext import register
from fairseq_ext.engine import TORCH
from fairseq_ext.generation.on_engine import NativeGenerator, with_engine
from tests.gpu.material import base
from tests.gpu.results import Results, arguments, time_in_turn
from tests.support.models import build, random_sentences, sample_of, sharpen

SOURCE, TARGET, BEAM = 25, 40, 5


def sharpened(flags: list[str], size: int) -> tuple[Any, Any]:
    """A model whose random weights are large enough for its words to differ."""
    model, task = build(flags, size=size)
    sharpen(model, 1.3)
    return model, task


def generate(
    options: Namespace, model: Any, task: Any, dtype: torch.dtype, batch: int
) -> dict[str, Any]:
    """Time both generators on the same batch; compare their best hypotheses."""
    device_model = copy.deepcopy(model).to(options.device, dtype).eval()
    target = 8 if options.tiny else TARGET
    words = task.target_dictionary

    def generator() -> SequenceGenerator:
        return SequenceGenerator(
            [device_model], words, beam_size=BEAM, min_len=target, max_len_a=0, max_len_b=target
        )

    sample = sample_of(random_sentences([SOURCE] * batch, size=len(words)))
    sample = apply_to_sample(lambda tensor: tensor.to(options.device), sample)
    ours = with_engine(generator(), [device_model], words, TORCH)
    if not isinstance(ours, NativeGenerator):
        raise RuntimeError("the engine does not run this model")
    # with_engine may lay weights out anew, so fairseq's generator has a model that it never saw
    device_model = copy.deepcopy(model).to(options.device, dtype).eval()
    theirs = generator()
    hypotheses: dict[str, list[list[int]]] = {}

    def run_of(name: str, translator: Any) -> Callable[[], None]:
        def run() -> None:
            generated = translator.generate([device_model], sample)
            hypotheses[name] = [best[0]["tokens"].tolist() for best in generated]

        return run

    runs = {"engine": run_of("engine", ours), "fairseq": run_of("fairseq", theirs)}
    with torch.no_grad():
        seconds = time_in_turn(runs, 0.1 if options.tiny else 0.9, warmup=2)
    pairs = list(zip(hypotheses["engine"], hypotheses["fairseq"], strict=True))
    return {
        "ms": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["fairseq"] / seconds["engine"],
        "same_sentences": sum(pair == other for pair, other in pairs),
        "sentences": batch,
        "tokens_per_second": {name: batch * target / value for name, value in seconds.items()},
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if options.device == "cuda" else None,
    }


def compare_muse(results: Results, dtype: str) -> dict[str, Any]:
    """Table 4's ratio: the Transformer's time over fused MUSE-simple's, at batch 1."""
    cells = results.content["cells"]
    names = [f"{name} {dtype} batch 1" for name in ("transformer", "muse-simple-fused")]
    stock, muse = (cells[name]["ms"] for name in names)
    return {"ratio": {name: stock[name] / muse[name] for name in stock}}


def main() -> None:
    options = arguments("generation")
    results = Results("generation", options)
    register()
    models = base(options.tiny)
    del models["transformer-base"]
    types = {"fp16": torch.float16, "fp32": torch.float32}
    cells = [(d, batch, name) for d in types for batch in (1, 32) for name in models]
    if options.tiny:
        cells = [("fp32", 2, name) for name in ("transformer", "gru")]
    built: dict[str, tuple[Any, Any]] = {}
    for dtype, batch, name in cells:

        def cell(name: str = name, dtype: str = dtype, batch: int = batch) -> dict[str, Any]:
            if name not in built:
                built[name] = sharpened(models[name], 100 if options.tiny else 10_000)
            return generate(options, *built[name], types[dtype], batch)

        results.measure(f"{name} {dtype} batch {batch}", cell)
    if not options.tiny:
        for dtype in types:
            cell = f"transformer over muse-simple-fused {dtype}"
            results.measure(cell, lambda dtype=dtype: compare_muse(results, dtype))
    results.finish()


if __name__ == "__main__":
    main()
