"""Measure a process from its start to its first translation, with CTranslate2 in the same rounds.

``python benchmarks/first_sentence.py --json docs/results/first_sentence.json``

Every round starts each command once, in an order that is reversed every other round. Processor time
and the largest resident memory are those of the whole process, as the system counts them. The
shipped model answers a text; a Transformer of random weights (512 wide, 6 + 6 layers, 32,000
symbols) translates tokens as a bundle of ours, by `fairseq-ext translate`, and as CTranslate2's
model, which `fairseq-ext export --to ctranslate2` makes, by a script of three lines.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import bench
import pictures

TEXT = "¿Dónde está la biblioteca?"
TOKENS = "20 31 44 57 60"
LONGEST = 20
SHIPPED = "tatoeba-es-en"
OURS, THEIRS = "Transformer 512, fairseq-ext", "Transformer 512, CTranslate2"
CTRANSLATE2 = f"""
import sys, ctranslate2
translator = ctranslate2.Translator(sys.argv[1], compute_type=sys.argv[2], intra_threads=1)
print(translator.translate_batch(
    [sys.argv[3].split()], beam_size=5, max_decoding_length={LONGEST}
)[0].hypotheses[0])
"""

# A process counts the memory of its parent as its own, so a small process starts each command.
STARTER = """
import json, os, sys, time
null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
start = time.perf_counter()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=null)
_, status, usage = os.wait4(process, 0)
elapsed = time.perf_counter() - start
print(json.dumps([usage.ru_utime + usage.ru_stime, elapsed, usage.ru_maxrss / 1024]))
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Use(NamedTuple):
    """Resources that a process has used.

    Attributes:
        processor: seconds of processor time.
        elapsed: seconds.
        memory: MiB that were resident at most.
    """

    processor: float
    elapsed: float
    memory: float


def measure(command: list[str]) -> Use:
    """Run a command to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has its bytecode
    starter = [sys.executable, "-S", "-c", STARTER, *command]
    done = subprocess.run(starter, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}")
    return Use(*json.loads(done.stdout))


def rounds(commands: dict[str, list[str]], count: int) -> dict[str, list[Use]]:
    """Run all commands in turn: once as warm-up, then ``count`` times for the figures."""
    uses: dict[str, list[Use]] = {name: [] for name in commands}
    for number in range(count + 1):
        names = list(commands) if number % 2 else list(commands)[::-1]
        for name in names:
            use = measure(commands[name])
            if number:
                uses[name].append(use)
    return uses


def wide_models(folder: Path) -> dict[str, list[str]]:
    """Make the Transformer in both forms; return the commands that translate with it."""
    from ctranslate2_models import LANGUAGES, save_checkpoint
    from peers import Side, Size, transformer

    size = Size(vocabulary=32_000)
    side = Side([*transformer(), *LANGUAGES], size, positions=1024)
    save_checkpoint(side, folder / "checkpoint.pt")
    side.task.source_dictionary.save(str(folder / "dict.src.txt"))
    side.task.target_dictionary.save(str(folder / "dict.tgt.txt"))
    fairseq_ext = [sys.executable, "-m", "fairseq_ext"]
    names = ("checkpoint.pt", "bundle", "exported")
    checkpoint, bundle, exported = (str(folder / name) for name in names)
    write = ["bundle", checkpoint, "-o", bundle, "--data", str(folder)]
    export = ["export", checkpoint, "-o", exported, "--to", "ctranslate2"]
    for words in (write, export):
        subprocess.run([*fairseq_ext, *words], check=True)
    limits = ["--beam", "5", "--max-len-a", "0", "--max-len-b", str(LONGEST)]
    return {
        OURS: [*fairseq_ext, "translate", "--model", bundle, TOKENS, *limits],
        THEIRS: [sys.executable, "-c", CTRANSLATE2, exported, "float32", TOKENS],
    }


def figures(uses: dict[str, list[Use]]) -> list[dict[str, object]]:
    """Compute medians and quartiles of each command."""
    rows: list[dict[str, object]] = []
    for name, values in uses.items():
        low, middle, high = bench.quartiles([use.processor for use in values])
        rows.append(
            {
                **{"what": name, "rounds": len(values), "processor_s": middle},
                **{"processor_s_low": low, "processor_s_high": high},
                "elapsed_s": median(use.elapsed for use in values),
                "resident_mib": median(use.memory for use in values),
            }
        )
        print(
            f"{name:32} {middle:6.2f} s of processor time ({low:.2f}-{high:.2f}), "
            f"{rows[-1]['resident_mib']:6.0f} MiB"
        )
    return rows


def main() -> None:
    parser = bench.parser_with(__doc__)
    option = parser.add_argument
    option("--rounds", type=int, default=20, help="that count, three at least")
    option("--shipped-only", action="store_true", help="without the wide model and CTranslate2")
    options = parser.parse_args()
    python = [sys.executable, "-c"]
    commands = {
        f"{SHIPPED}, fairseq-ext": [
            *(sys.executable, "-m", "fairseq_ext", "translate", "--model", SHIPPED, TEXT)
        ],
        "Python and numpy alone": [*python, "import numpy"],
    }
    with tempfile.TemporaryDirectory() as folder:
        if not options.shipped_only:
            commands |= wide_models(Path(folder))
        rows = figures(rounds(commands, options.rounds))
    if options.json is not None:
        bench.save(options.json, title="The first sentence of a process", figures=rows)
        logging.disable()  # fairseq has set it to DEBUG
        names = ("processor_s", "processor_s_low", "processor_s_high")
        seconds = {row["what"]: [row[name] for name in names] for row in rows}
        xlabel = "processor time from start to first translation (s)"
        pictures.bars({"": seconds}, xlabel, options.json)


if __name__ == "__main__":
    main()
