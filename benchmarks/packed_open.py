"""One system from its files to translations: what benchmarks/packed.py runs, alone or in turns.

As a program (``python benchmarks/packed_open.py NAME FOLDER``) it translates one batch and prints
what that took of memory as JSON. Nothing is imported before a system needs it: the time from the
start of the process is what ``packed.py start`` measures.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

Sentences = list[list[int]]  # numbers of words, without </s>
Translate = Callable[[Sentences], object]

BMT_1, BMT_6, PLAIN = "BMT-1", "BMT-6", "transformer"
FP32, PACKED, INT8_OUTPUT, ENGINE = "fp32", "packed", "packed, int8 output", "packed, engine"
PLAIN_ENGINE = f"{PLAIN}, engine int8"
TORCH_INT8, CTRANSLATE2 = f"{PLAIN}, torch int8", f"{PLAIN}, CTranslate2 int8"
# In the order of tables. A system's file; torch quantizes what it has loaded in fp32.
FILES = {
    f"{BMT_1} {FP32}": "bmt-1.pt",
    f"{BMT_1} {PACKED}": "bmt-1.safetensors",
    f"{BMT_1} {INT8_OUTPUT}": "bmt-1-int8.safetensors",
    f"{BMT_1} {ENGINE}": "bmt-1-int8.safetensors",
    f"{BMT_6} {FP32}": "bmt-6.pt",
    f"{BMT_6} {PACKED}": "bmt-6.safetensors",
    f"{BMT_6} {INT8_OUTPUT}": "bmt-6-int8.safetensors",
    f"{BMT_6} {ENGINE}": "bmt-6-int8.safetensors",
    f"{PLAIN}, {FP32}": "transformer.pt",
    PLAIN_ENGINE: "transformer.pt",
    TORCH_INT8: "transformer.pt",
    CTRANSLATE2: "ctranslate2",
}


def open_system(name: str, folder: Path, *, beam: int, words: int, threads: int) -> Translate:
    """Open a system that translates; every hypothesis has ``words`` words and one more token.

    Args:
        name: of ``FILES``.
        folder: with the files that ``packed_systems.write`` made.
        beam, words: of the search.
        threads: torch's; CTranslate2's are made with the translator.
    """
    path = folder / FILES[name]
    if name == CTRANSLATE2:
        return _open_ctranslate2(path, beam, words, threads)
    engine = "native-int8" if name.endswith((ENGINE, PLAIN_ENGINE)) else "fairseq"
    return _open_fairseq(path, folder, beam, words, threads, engine, name == TORCH_INT8)


def _open_fairseq(
    path: Path, folder: Path, beam: int, words: int, threads: int, engine: str, quantize: bool
) -> Translate:
    """Load and search as fairseq-generate does; the last step can choose nothing but ``</s>``."""
    import logging

    logging.basicConfig(level=logging.WARNING)  # fairseq's import would choose INFO
    import torch
    from fairseq import checkpoint_utils
    from fairseq.dataclass.configs import GenerationConfig

    import fairseq_ext

    fairseq_ext.register()
    torch.set_num_threads(threads)
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": str(folder)}
    )
    settings = GenerationConfig(beam=beam, max_len_a=0, max_len_b=words, min_len=words)
    settings.engine = engine
    models[0].prepare_for_inference_(Namespace(generation=settings))
    if quantize:
        models = [_quantized(models[0])]
    generator = task.build_generator(models, settings)

    def translate(sentences: Sentences) -> list[list[dict[str, Any]]]:
        first, end = 4, task.source_dictionary.eos()
        rows = torch.tensor(sentences).add(first)
        source = torch.cat([rows, torch.full((len(rows), 1), end)], dim=1)
        lengths = torch.full((len(rows),), source.shape[1])
        return task.inference_step(
            generator, models, {"net_input": {"src_tokens": source, "src_lengths": lengths}}
        )

    return translate


def _quantized(model: Any) -> Any:
    """torch's dynamic int8 of all linear layers, a scale for each output channel."""
    import warnings

    import torch
    from fairseq.modules import MultiheadAttention
    from torch import nn

    for module in model.modules():
        if isinstance(module, MultiheadAttention):
            module.skip_embed_dim_check = True  # else it reads the float weights itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, with nothing in torch itself in its place
        settings = torch.ao.quantization.per_channel_dynamic_qconfig
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear: settings})


def _open_ctranslate2(path: Path, beam: int, words: int, threads: int) -> Translate:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(path), compute_type="int8", intra_threads=threads, inter_threads=1
    )

    def translate(sentences: Sentences) -> list[Any]:
        return translator.translate_batch(
            [[f"w{word}" for word in sentence] for sentence in sentences],
            beam_size=beam,
            min_decoding_length=words + 1,
            max_decoding_length=words + 1,
            return_scores=True,
        )

    return translate


def random_sentences(count: int, words: int, vocabulary: int, seed: int = 1) -> Sentences:
    """Draw sentences of ``words`` words each."""
    draw = random.Random(seed)
    return [[draw.randrange(vocabulary) for _ in range(words)] for _ in range(count)]


def resident_bytes() -> dict[str, int]:
    """Memory of this process that lies in RAM now, and that did at most."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"resident": pages * resource.getpagesize(), "peak": peak}


def main() -> None:
    """``NAME FOLDER SETTINGS``, the settings being JSON: of the search and of the batch."""
    name, folder, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    translate = open_system(name, folder, **settings["search"])
    translate(random_sentences(**settings["batch"]))
    print(json.dumps(resident_bytes()), flush=True)
    os._exit(0)  # what ends a process is not part of its start


if __name__ == "__main__":
    main()
