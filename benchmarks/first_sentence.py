"""Measure processes from their start to the first translation: fairseq-ext and CTranslate2.

``python benchmarks/first_sentence.py --json docs/results/first_sentence.json``

Every round starts each command once, in an order that is reversed every other round. Figures are
processor time, elapsed time and the largest resident memory of the complete process. The commands:

- The model tatoeba-es-en, which fairseq-ext contains, translates a text: once on the command line,
  and once over HTTP.
- Models with random weights translate tokens (--shapes chooses the models). fairseq-ext translates
  by its command line, and CTranslate2 by a script of three lines. CTranslate2 cannot run BMT, so
  compare BMT with the Transformer of equal size.
- `opened` is a process that opens the model and does not translate.
- `small pages` is fairseq-ext without huge pages of memory, which numpy requests but CTranslate2
  does not. Huge pages make translation faster. But in a virtual machine that returns unused memory
  to its host, the first use of each takes milliseconds.
- `Argos Translate, imported` imports argostranslate, the library of LibreTranslate, if it is
  installed. It does not translate, which would take longer.

``python benchmarks/first_sentence.py --shapes wmt16 wmt19 m2m-100 nllb-200 mbart-50 --rounds 5``
measures models as large as published ones, and needs 20 GB of disk and 10 GB of memory.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

import bench
import pictures

TEXT = "¿Dónde está la biblioteca?"
TOKENS = "w20 w31 w44 w57 w60"
LONGEST = 20  # most tokens of a translation
SHIPPED = "tatoeba-es-en"
PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]
MBART = [*PRE_NORM, "--encoder-learned-pos", "--decoder-learned-pos", "--layernorm-embedding"]
MBART += ["--activation-fn", "gelu"]
BIG = (1024, 4096, 16, 6, 6)
DEEP = (1024, 4096, 16, 12, 12)
SHAPES: dict[str, tuple[tuple[int, ...], list[str]]] = {
    "Transformer 512": ((512, 2048, 8, 6, 6, 32_000), []),
    "Transformer 1024": ((*BIG, 32_000), []),
    "BMT-1 1024": ((*BIG, 32_000), ["--arch", "bmt", "--bmt-preset", "bmt-1"]),
    "wmt16": ((*BIG, 32_768), []),
    "wmt19": ((*BIG, 42_024), ["--encoder-ffn-embed-dim", "8192"]),
    "m2m-100": ((*DEEP, 128_112), PRE_NORM),
    "nllb-200": ((*DEEP, 256_206), PRE_NORM),
    "mbart-50": ((*DEEP, 250_054), MBART),
}
"""Sizes (see peers.Size) and further flags of each model."""
DEFAULT_SHAPES = ("Transformer 512", "Transformer 1024", "BMT-1 1024")
KINDS = {"fp32": "float32", "int8": "int8"}  # number formats: our names and CTranslate2's
SMALL_PAGES = ["/usr/bin/env", "NUMPY_MADVISE_HUGEPAGE=0"]
OPEN = "import sys, fairseq_ext; fairseq_ext.load(sys.argv[1])"
CTRANSLATE2_OPEN = """
import sys, ctranslate2
translator = ctranslate2.Translator(sys.argv[1], compute_type=sys.argv[2], intra_threads=1)
"""
CTRANSLATE2 = f"""{CTRANSLATE2_OPEN}
print(translator.translate_batch(
    [sys.argv[3].split()], beam_size=5, max_decoding_length={LONGEST}
)[0].hypotheses[0])
"""
# The client speaks HTTP over a socket, because its imports would be measured, too.
SERVE = f"""
import socket, subprocess, sys
server = subprocess.Popen(
    [sys.executable, "-m", "fairseq_ext", "serve", "{SHIPPED}", "--port", "0"],
    stdout=subprocess.PIPE, text=True,
)
host, port = server.stdout.readline().rpartition("/")[2].split(":")
client = socket.create_connection((host, int(port)))
client.sendall(sys.argv[1].encode())
answer = client.recv(1 << 16)
server.kill()
server.wait()
sys.exit(b" 200 " not in answer)
"""
READY = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = '{"q": "No.", "source": "es", "target": "en"}'
TRANSLATE = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
TRANSLATE += f"Content-Length: {len(BODY)}\r\n\r\n{BODY}"

# Linux counts the memory of a process's parent as its own, so a small process starts each command.
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
    """The resources that a process has used.

    Attributes:
        processor: processor time in seconds.
        elapsed: time from start to end in seconds.
        memory: largest resident memory in MiB.
    """

    processor: float
    elapsed: float
    memory: float


def measure(command: list[str]) -> Use:
    """Run a command and return the resources that it has used; end this script if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has its bytecode
    starter = [sys.executable, "-S", "-c", STARTER, *command]
    done = subprocess.run(starter, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}")
    return Use(*json.loads(done.stdout))


def rounds(commands: dict[str, list[str]], count: int) -> dict[str, list[Use]]:
    """Run all commands in turn, ``count`` times after a warm-up; return what each used, by name."""
    uses: dict[str, list[Use]] = {name: [] for name in commands}
    for number in range(count + 1):
        names = list(commands) if number % 2 else list(commands)[::-1]
        for name in names:
            use = measure(commands[name])
            if number:
                uses[name].append(use)
    return uses


def models(folder: Path, name: str, numbers: list[str]) -> dict[str, list[str]]:
    """Write the model ``name`` of :data:`SHAPES` to ``folder`` in all formats, with random weights.

    Return named commands that open the model or translate with it. ``numbers`` are number formats,
    such as int8; a BMT model is written only with binary weights ("bits").
    """
    import torch
    from ctranslate2_models import LANGUAGES, convert, save_checkpoint
    from peers import Side, Size, transformer

    sizes, flags = SHAPES[name]
    side = Side([*transformer(), *LANGUAGES, *flags], Size(*sizes), positions=1024)
    folder.mkdir()
    checkpoint = str(folder / "checkpoint.pt")
    save_checkpoint(side, folder / "checkpoint.pt")
    fairseq_ext = [sys.executable, "-m", "fairseq_ext"]
    limits = ["--beam", "5", "--max-len-a", "0", "--max-len-b", str(LONGEST)]
    commands = {}
    is_binary = "bmt" in flags
    for kind in ["bits"] if is_binary else numbers:
        bundle, row = str(folder / kind), f"{name}, fairseq-ext {kind}"
        write = ["bundle", checkpoint, "-o", bundle, "--data", str(folder), "--numbers", kind]
        subprocess.run([*fairseq_ext, *write], check=True)
        commands[f"{row}, opened"] = [sys.executable, "-c", OPEN, bundle]
        commands[row] = [*fairseq_ext, "translate", "--model", bundle, TOKENS, *limits]
        commands[f"{row}, small pages"] = [*SMALL_PAGES, *commands[row]]
        if is_binary:
            continue
        with torch.no_grad():
            theirs = convert(side.model, side.task, folder / f"ct2-{kind}", KINDS[kind])
        python, row = [sys.executable, "-c"], f"{name}, CTranslate2 {kind}"
        commands[f"{row}, opened"] = [*python, CTRANSLATE2_OPEN, theirs, KINDS[kind]]
        commands[row] = [*python, CTRANSLATE2, theirs, KINDS[kind], TOKENS]
    Path(checkpoint).unlink()
    return commands


def figures(uses: dict[str, list[Use]]) -> list[dict[str, object]]:
    """Summarize the resources of each command in a row; print the rows and return them."""
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
            f"{name:44} {middle:6.2f} s of processor time ({low:.2f}-{high:.2f}), "
            f"{rows[-1]['elapsed_s']:.2f} s in all, {rows[-1]['resident_mib']:6.0f} MiB"
        )
    return rows


def main() -> None:
    parser = bench.parser_with(__doc__)
    option = parser.add_argument
    option("--rounds", type=int, default=20, help="rounds that count; quartiles need three")
    option("--shapes", nargs="*", choices=SHAPES, default=DEFAULT_SHAPES, help="random models")
    option("--numbers", nargs="+", choices=KINDS, default=["fp32", "int8"], help="number formats")
    options = parser.parse_args()
    python = [sys.executable, "-c"]
    commands = {
        f"{SHIPPED}, fairseq-ext": [
            *(sys.executable, "-m", "fairseq_ext", "translate", "--model", SHIPPED, TEXT)
        ],
        f"{SHIPPED}, serve is ready": [*python, SERVE, READY],
        f"{SHIPPED}, first answer of serve": [*python, SERVE, TRANSLATE],
        "Python and numpy alone": [*python, "import numpy"],
    }
    if find_spec("argostranslate"):
        commands["Argos Translate, imported"] = [*python, "import argostranslate.translate"]
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(options.shapes):
            commands |= models(Path(folder, str(number)), name, options.numbers)
        rows = figures(rounds(commands, options.rounds))
    if options.json is not None:
        bench.save(options.json, title="The first sentence of a process", figures=rows)
        logging.disable()  # fairseq has set it to DEBUG
        names = ("processor_s", "processor_s_low", "processor_s_high")
        seconds = {row["what"]: [row[name] for name in names] for row in rows}
        xlabel = "processor time (s)"
        pictures.bars({"": seconds}, xlabel, options.json)


if __name__ == "__main__":
    main()
