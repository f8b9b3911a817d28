"""Compare the speed and memory of the engine, CTranslate2 and Marian with one transformer.

``python benchmarks/engine_peers.py --batches 1 32 128 --json docs/results/engine_peers.json``

The script needs ``pip install ctranslate2 pymarian``.

- Model: a transformer with random weights, changed so that Marian can compute it
  (marian_models.py). A translation has as many tokens as its source.
- Systems: each is a process of its own, so that only its own library is in memory. The systems take
  turns in every round, so that drift of the machine affects all alike.
- Latency: the time of a batch. In batches of 1, this is the time of a sentence.
- Shortlist: a list of the target words that a system may choose from. All systems get the same
  one: the first words of the vocabulary, and 50 target words at most for each source word. The
  engine applies it to each sentence, and the other systems to each batch.
"""

import itertools
import json
import os
import random
import resource
import shutil
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
CTRANSLATE2 |= {"CTranslate2 int8_bfloat16": "int8_bfloat16"}
ON_THE_FLY = ["--optimize", "--gemm-type", "packed8"]  # for a model in fp32
MARIAN = {"Marian fp32": [], "Marian int8": ON_THE_FLY}
LISTED = ", shortlist"
WITH_SHORTLIST = (
    "engine fp32",
    "engine int8",
    "CTranslate2 fp32",
    "CTranslate2 int8",
    "Marian int8",
)
SYSTEMS = (*OURS, *CTRANSLATE2, *MARIAN, *(name + LISTED for name in WITH_SHORTLIST))
FREQUENT, TRANSLATIONS = 100, 50  # the defaults of `fairseq-ext shortlist`
SHORTLIST, LEXICON, VOCABULARY_MAP = "shortlist.txt", "lexicon.txt", "vmap.txt"
SENTENCES = {1: 40, 32: 32, 128: 128}  # sentences to translate, by size of a batch
MARIAN_OPTIONS = "marian.json"
Translate = Callable[[list[str]], list[str]]

# ---- a system in a process of its own ------------------------------------------------------------


def engine(folder: Path, numbers: str, words: int, listed: bool) -> Translate:
    from fairseq_ext.engine import shortlist
    from fairseq_ext.engine.library import Machine
    from fairseq_ext.engine.search_options import Rules
    from fairseq_ext.model.program_file import read

    model = read(folder / numbers)
    lists = shortlist.read(folder / SHORTLIST, model.source, model.target) if listed else None
    worker = Machine(model.program, packed=model.weights, shortlist=lists).worker()
    symbols, end = model.target, model.program.symbols.end
    number_of = {symbol: number for number, symbol in enumerate(model.source)}
    rules = Rules(beam=BEAM, max_len_b=words - 1)  # and </s>

    def translate(lines: list[str]) -> list[str]:
        batch = [[*(number_of[word] for word in line.split()), end] for line in lines]
        best = [nbest[0].tokens.tolist() for nbest in worker.translate(batch, rules)]
        return [" ".join(symbols[token] for token in tokens if token != end) for tokens in best]

    return translate


def ctranslate2(folder: Path, kind: str, words: int, listed: bool) -> Translate:
    from ctranslate2 import Translator

    translator = Translator(str(folder / f"ct2-{kind}"), compute_type=kind, intra_threads=1)

    def translate(lines: list[str]) -> list[str]:
        how = {"beam_size": BEAM, "max_decoding_length": words, "use_vmap": listed}
        results = translator.translate_batch([line.split() for line in lines], **how)
        return [" ".join(result.hypotheses[0]) for result in results]

    return translate


def marian(folder: Path, options: list[str], words: int, listed: bool) -> Translate:
    from pymarian import Translator

    exported = json.loads((folder / MARIAN_OPTIONS).read_text())
    share = words / (words + 1)  # the source has </s> too
    search = ["--beam-size", BEAM, "--max-length-factor", share, "--cpu-threads", 1]
    batches = ["--mini-batch", 128, "--maxi-batch", 1, "--workspace", 512]
    lists = ["--shortlist", folder / LEXICON, FREQUENT, TRANSLATIONS, 0] if listed else []
    flags = [*exported, *search, *batches, *lists, *options]
    return Translator(" ".join(map(str, flags))).translate


def serve(system: str, folder: Path, words: int) -> None:
    """Run a system: translate each line of standard input, and answer on standard output.

    A line is a JSON list of batches, and a batch is a list of sentences. A translation has at most
    ``words`` words. Each answer is a line with a JSON object:

    - ``seconds``: the time of each batch;
    - ``outputs``: the translations;
    - ``mebibytes``: resident memory afterwards;
    - ``processor``: processor seconds of all batches;
    - ``joules``: energy of all batches, or null.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # send the output of libraries to standard error
    name = system.removesuffix(LISTED)
    for kinds, load in ((OURS, engine), (CTRANSLATE2, ctranslate2), (MARIAN, marian)):
        if name in kinds:
            translate = load(folder, kinds[name], words, name != system)
    for line in sys.stdin:
        seconds, outputs, energy, processor = [], [], joules(), time.process_time()
        for batch in json.loads(line):
            began = time.perf_counter()
            outputs += translate(batch)
            seconds.append(time.perf_counter() - began)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * resource.getpagesize() / (1 << 20)
        answer = {"seconds": seconds, "outputs": outputs, "mebibytes": memory}
        answer["processor"] = time.process_time() - processor
        answer["joules"] = None if energy is None else joules() - energy
        print(json.dumps(answer), file=answers, flush=True)


def joules() -> float | None:
    """Return the sum of all processors' energy counters (RAPL), or None if none can be read."""
    counters = list(Path("/sys/class/powercap").glob("intel-rapl:?/energy_uj"))
    if not counters or not all(os.access(path, os.R_OK) for path in counters):
        return None
    return sum(int(path.read_text()) for path in counters) / 1e6


# ---- the comparison ------------------------------------------------------------------------------


def write_shortlist(symbols: list[str], special: int, folder: Path) -> dict[str, list[str]]:
    """Write a random shortlist in each system's format; return each source word's target words.

    The target words are the source word itself and random words, mostly from the start of the
    vocabulary. ``special`` is the number of special symbols, such as </s>, at the start of
    ``symbols``.
    """
    from fairseq_ext.engine import shortlist

    frequent, words = symbols[:FREQUENT], symbols[special:]
    draw = random.Random(1)
    shares = [*itertools.accumulate(1 / n for n in range(1, len(words) + 1))]
    lists = {}
    for word in words:
        drawn = draw.choices(words, cum_weights=shares, k=TRANSLATIONS - 1)
        lists[word] = list(dict.fromkeys([word, *drawn]))
    shortlist.write(folder / SHORTLIST, frequent, lists)
    lines = {"": frequent, **lists}.items()
    text = "".join(f"{word}\t{' '.join(targets)}\n" for word, targets in lines)
    (folder / VOCABULARY_MAP).write_text(text)
    pairs = ((target, word) for word, targets in lists.items() for target in targets)
    (folder / LEXICON).write_text("".join(f"{target} {word} 0.02\n" for target, word in pairs))
    return lists


def write(options: Namespace, folder: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Write the model and the shortlist in every system's format.

    Return the dictionary's symbols, and the result of :func:`write_shortlist`.
    """
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
    for numbers in OURS.values():
        write_bundle(checkpoint, folder, folder / numbers, numbers=numbers)
    exported = marian_models.export(model, words, folder)
    (folder / MARIAN_OPTIONS).write_text(json.dumps(exported))
    lists = write_shortlist(words.symbols, words.nspecial, folder)
    for kind in CTRANSLATE2.values():
        ctranslate2_models.convert(model, side.task, folder / f"ct2-{kind}", kind)
        shutil.copy(folder / VOCABULARY_MAP, folder / f"ct2-{kind}")
    return words.symbols, lists


def size_on_disk(system: str, folder: Path) -> float:
    """Return the size of a system's model in MiB, without the shortlist."""
    name = system.removesuffix(LISTED)
    if name in MARIAN:
        paths = [folder / "model.npz"]
    else:
        kind = OURS.get(name) or f"ct2-{CTRANSLATE2[name]}"
        files = (path for path in (folder / kind).rglob("*") if path.is_file())
        paths = [path for path in files if path.name != VOCABULARY_MAP]
    return sum(path.stat().st_size for path in paths) / (1 << 20)


def refused() -> dict[str, str]:
    """Map each system that cannot run on this processor to the reason."""
    from ctranslate2 import get_supported_compute_types

    kinds = get_supported_compute_types("cpu")
    reason = f"CTranslate2 supports {', '.join(sorted(kinds))} on this processor"
    return {name: reason for name, kind in CTRANSLATE2.items() if kind not in kinds}


def choices(batches: list[list[str]], lists: dict[str, list[str]], symbols: list[str]) -> float:
    """Return how many target words a shortlist allows for a batch, as a mean over ``batches``.

    ``lists`` has the target words of each source word. The first :data:`FREQUENT` of ``symbols``
    are always allowed.
    """
    counts = []
    for batch in batches:
        words = {word for line in batch for word in line.split()}
        counts.append(len(set(symbols[:FREQUENT]).union(*(lists[word] for word in words))))
    return statistics.mean(counts)


def measure(options: Namespace, folder: Path) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Time all systems with all batch sizes.

    Return a row of figures for each system and size, and the result of :func:`choices` by size.
    """
    import bench
    from ctranslate2_models import random_sentences

    symbols, lists = write(options, folder)
    words, rows, left = [*lists], [], {}
    names = [name for name in SYSTEMS if name not in refused()]
    words_of = [str(folder), str(options.words)]
    systems = {
        name: bench.Worker([__file__, "--serve", name, *words_of], threads=1) for name in names
    }
    for size in options.batches:
        drawn = random_sentences(SENTENCES.get(size, size), options.words, len(words))
        lines = [" ".join(words[number] for number in sentence) for sentence in drawn]
        batches = [lines[first : first + size] for first in range(0, len(lines), size)]
        left[size] = choices(batches, lists, symbols)
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
        for process in systems.values():
            process.ask(json.dumps([batches[0][:4]]))
        for number in range(options.repeats):
            for name in names if number % 2 else names[::-1]:
                answers[name].append(systems[name].ask(json.dumps(batches)))
        for name, rounds in answers.items():
            first = next(other for other in names if (LISTED in other) == (LISTED in name))
            row = summary(rounds, answers[first][0]["outputs"], len(lines) * options.words)
            fixed = {"system": name, "batch": size, "size_mib": size_on_disk(name, folder)}
            rows.append(fixed | row)
            print(rows[-1], flush=True)
    for process in systems.values():
        process.end()
    return rows, left


def summary(
    rounds: list[dict[str, Any]], reference: list[str], tokens: int
) -> dict[str, float | None]:
    """Summarize one system's rounds: speed, latencies, processor time, energy and memory.

    Args:
        rounds: answers of :func:`serve`, one for each round.
        reference: translations by another system. The figure ``equal`` is the fraction of words
            that equal the word of ``reference`` at the same position.
        tokens: number of tokens generated in a round.
    """
    import bench
    import numpy as np

    low, middle, high = bench.quartiles([tokens / sum(answer["seconds"]) for answer in rounds])
    latencies = [1e3 * second for answer in rounds for second in answer["seconds"]]
    median, slow = np.percentile(latencies, [50, 99])
    pairs = [
        (word, expected)
        for output, line in zip(rounds[0]["outputs"], reference, strict=True)
        for word, expected in zip(output.split(), line.split(), strict=False)
    ]
    energy = [answer["joules"] for answer in rounds if answer["joules"] is not None]
    return {
        "tokens_per_second": middle,
        "low": low,
        "high": high,
        "p50_ms": median,
        "p99_ms": slow,
        "processor_ms_per_token": 1e3 * statistics.median(a["processor"] for a in rounds) / tokens,
        "joules_per_token": statistics.median(energy) / tokens if energy else None,
        "resident_mib": rounds[-1]["mebibytes"],
        "equal": sum(word == expected for word, expected in pairs) / len(pairs),
    }


def draw(rows: list[dict[str, Any]], output: Path) -> None:
    """Draw tokens per second beside the file ``output``, with a panel for each batch size."""
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
    options = parser.parse_args()
    bench.begin(options)
    with tempfile.TemporaryDirectory() as folder:
        rows, left = measure(options, Path(folder))
    rows.sort(key=lambda row: (SYSTEMS.index(row["system"]), row["batch"]))
    if options.json is not None:
        title = f"A transformer of random weights, beam {BEAM}, one thread"
        settings = bench.settings(options, ("json", "batches"))
        bench.save(
            options.json,
            title=title,
            settings=settings,
            candidates=left,
            refused=refused(),
            figures=rows,
        )
        draw(rows, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
