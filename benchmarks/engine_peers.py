"""Compare the engine, CTranslate2 and Marian on one model, each in a process of its own.

``python benchmarks/engine_peers.py --batches 1 32 128 --json docs/results/engine_peers.json``

A stock transformer of random weights, changed so that Marian has it too (marian_models.py), writes
as many tokens as each sentence has. Each system translates in turn in every round, so that drift
hits all alike; nothing but its own library is in its memory. Latencies are those of single
sentences. It needs ``pip install ctranslate2 pymarian``.
"""

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEAM = 5
OURS = {"engine fp32": "fp32", "engine int8": "int8"}
CTRANSLATE2 = {"CTranslate2 fp32": "float32", "CTranslate2 int8": "int8"}
ON_THE_FLY = ["--optimize", "--gemm-type", "packed8"]  # for a model in fp32
MARIAN = {"Marian fp32": [], "Marian int8": ON_THE_FLY}
SYSTEMS = (*OURS, *CTRANSLATE2, *MARIAN)
SENTENCES = {1: 40, 32: 32, 128: 128}
MARIAN_OPTIONS = "marian.json"
Translate = Callable[[list[str]], list[str]]

# ---- a system in a process of its own ------------------------------------------------------------


def engine(folder: Path, numbers: str, words: int) -> Translate:
    from fairseq_ext.engine.library import Machine
    from fairseq_ext.engine.search_options import Rules
    from fairseq_ext.model.program_file import read

    model = read(folder / numbers)
    worker = Machine(model.program, packed=model.weights).worker()
    symbols, end = model.target, model.program.symbols.end
    number_of = {symbol: number for number, symbol in enumerate(model.source)}
    rules = Rules(beam=BEAM, max_len_b=words - 1)  # and </s>

    def translate(lines: list[str]) -> list[str]:
        batch = [[*(number_of[word] for word in line.split()), end] for line in lines]
        best = [nbest[0].tokens.tolist() for nbest in worker.translate(batch, rules)]
        return [" ".join(symbols[token] for token in tokens if token != end) for tokens in best]

    return translate


def ctranslate2(folder: Path, kind: str, words: int) -> Translate:
    from ctranslate2 import Translator

    translator = Translator(str(folder / f"ct2-{kind}"), compute_type=kind, intra_threads=1)

    def translate(lines: list[str]) -> list[str]:
        how = {"beam_size": BEAM, "max_decoding_length": words}
        results = translator.translate_batch([line.split() for line in lines], **how)
        return [" ".join(result.hypotheses[0]) for result in results]

    return translate


def marian(folder: Path, options: list[str], words: int) -> Translate:
    from pymarian import Translator

    exported = json.loads((folder / MARIAN_OPTIONS).read_text())
    share = words / (words + 1)  # the source has </s> too
    search = ["--beam-size", BEAM, "--max-length-factor", share, "--cpu-threads", 1]
    batches = ["--mini-batch", 128, "--maxi-batch", 1, "--workspace", 512]
    flags = [*exported, *search, *batches, *options]
    return Translator(" ".join(map(str, flags))).translate


def serve(system: str, folder: Path, words: int) -> None:
    """Translate each list of batches that comes on standard input; answer with times."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # send the output of libraries to standard error
    for kinds, load in ((OURS, engine), (CTRANSLATE2, ctranslate2), (MARIAN, marian)):
        if system in kinds:
            translate = load(folder, kinds[system], words)
    for line in sys.stdin:
        seconds, outputs, processor = [], [], time.process_time()
        for batch in json.loads(line):
            began = time.perf_counter()
            outputs += translate(batch)
            seconds.append(time.perf_counter() - began)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * resource.getpagesize() / (1 << 20)
        answer = {"seconds": seconds, "outputs": outputs, "mebibytes": memory}
        answer["processor"] = time.process_time() - processor
        print(json.dumps(answer), file=answers, flush=True)


# ---- the comparison ------------------------------------------------------------------------------


def write(options: Namespace, folder: Path) -> list[str]:
    """Write the model in every format; return its words."""
    import ctranslate2_models
    import marian_models
    import torch
    from peers import Side, Size, transformer

    from fairseq_ext.model.write import write as write_bundle

    learned = ["--encoder-learned-pos", "--decoder-learned-pos"]
    flags = [*transformer(), *ctranslate2_models.LANGUAGES, *learned]
    side = Side(flags, Size.of(options), positions=1024)
    model, words = side.model.eval(), side.task.target_dictionary
    with torch.no_grad():
        for layer in model.modules():
            if type(layer) is torch.nn.Linear and layer is not model.decoder.output_projection:
                layer.weight.mul_(3)  # otherwise the model would repeat each word
    marian_models.like_marian(model, words)
    checkpoint = folder / "checkpoint.pt"
    ctranslate2_models.save_checkpoint(side, checkpoint)
    for language in ("src", "tgt"):
        words.save(str(folder / f"dict.{language}.txt"))
    for numbers in OURS.values():
        write_bundle(checkpoint, folder, folder / numbers, numbers=numbers)
    exported = marian_models.export(model, words, folder)
    (folder / MARIAN_OPTIONS).write_text(json.dumps(exported))
    for kind in CTRANSLATE2.values():
        ctranslate2_models.convert(model, side.task, folder / f"ct2-{kind}", kind)
    return words.symbols[words.nspecial :]


def size_on_disk(system: str, folder: Path) -> float:
    """Return the MiB of a system's model."""
    if system in MARIAN:
        paths = [folder / "model.npz"]
    else:
        kind = OURS.get(system) or f"ct2-{CTRANSLATE2[system]}"
        paths = [path for path in (folder / kind).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in paths) / (1 << 20)


def measure(options: Namespace, folder: Path) -> list[dict[str, Any]]:
    """Time all systems in all batch sizes."""
    import bench
    from ctranslate2_models import random_sentences

    words, rows = write(options, folder), []
    names = [name for name in SYSTEMS if name not in options.without]
    words_of = [str(folder), str(options.words)]
    systems = {
        name: bench.Worker([__file__, "--serve", name, *words_of], threads=1) for name in names
    }
    for size in options.batches:
        drawn = random_sentences(SENTENCES.get(size, size), options.words, len(words))
        lines = [" ".join(words[number] for number in sentence) for sentence in drawn]
        batches = [lines[first : first + size] for first in range(0, len(lines), size)]
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
        for process in systems.values():
            process.ask(json.dumps([batches[0][:4]]))
        for number in range(options.repeats):
            for name in names if number % 2 else names[::-1]:
                answers[name].append(systems[name].ask(json.dumps(batches)))
        for name, rounds in answers.items():
            row = summary(rounds, answers[names[0]][0]["outputs"], len(lines) * options.words)
            fixed = {"system": name, "batch": size, "size_mib": size_on_disk(name, folder)}
            rows.append(fixed | row)
            print(rows[-1], flush=True)
    for process in systems.values():
        process.end()
    return rows


def summary(rounds: list[dict[str, Any]], reference: list[str], tokens: int) -> dict[str, float]:
    """Compute speed, latencies, processor time, memory, and the share equal to ``reference``."""
    speeds = [tokens / sum(answer["seconds"]) for answer in rounds]
    low, middle, high = statistics.quantiles(speeds, n=4)
    latencies = sorted(1e3 * second for answer in rounds for second in answer["seconds"])
    pairs = [
        (word, expected)
        for output, line in zip(rounds[0]["outputs"], reference, strict=True)
        for word, expected in zip(output.split(), line.split(), strict=False)
    ]
    return {
        "tokens_per_second": middle,
        "low": low,
        "high": high,
        "p50_ms": statistics.median(latencies),
        "p99_ms": latencies[min(len(latencies) - 1, round(0.99 * len(latencies)))],
        "processor_ms_per_token": 1e3 * statistics.median(a["processor"] for a in rounds) / tokens,
        "resident_mib": rounds[-1]["mebibytes"],
        "equal": sum(word == expected for word, expected in pairs) / len(pairs),
    }


def draw(rows: list[dict[str, Any]], output: Path) -> None:
    """Draw tokens a second, with a panel for each batch size."""
    import pictures

    panels: dict[str, dict[str, tuple[float, ...]]] = {}
    for row in rows:
        figures = row["tokens_per_second"], row["low"], row["high"]
        panels.setdefault(f"batch of {row['batch']}", {})[row["system"]] = figures
    pictures.bars(panels, "tokens a second", output)


def main() -> None:
    import bench

    parser = bench.parser_with(
        __doc__,
        **{"threads": 1, "repeats": 3, "batches": [1, 32, 128], "words": 20},
        **{"embed_dim": 512, "ffn_embed_dim": 1024, "heads": 8, "layers": 6},
        vocabulary=10_000,
    )
    parser.add_argument(
        "--without", nargs="*", default=[], choices=SYSTEMS, help="systems left out"
    )
    options = parser.parse_args()
    bench.begin(options)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder))
    rows.sort(key=lambda row: (SYSTEMS.index(row["system"]), row["batch"]))
    if options.json is not None:
        title = f"A transformer of random weights, beam {BEAM}, one thread"
        settings = bench.settings(options, ("json", "without", "batches"))
        bench.save(options.json, title=title, settings=settings, figures=rows)
        draw(rows, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
