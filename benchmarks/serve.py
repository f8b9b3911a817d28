"""Measure how fast ``fairseq-ext serve`` answers many clients, with the engine or CTranslate2.

``python benchmarks/serve.py --checkpoint PT --data BIN --text FILE --json docs/results/serve.json``

The servers are equal except for the system that translates: the engine or CTranslate2, in fp32 or
int8. They run at the same time and take turns in every round, so that drift of the machine affects
all alike. Each client keeps one connection open. It sends one sentence, waits for the translation,
and immediately sends the next sentence.

Figures are requests per second, and the median and the 99th percentile of the milliseconds from a
request to its answer. A ratio above 1 means that the engine's server answers more requests per
second. The clients take a part of one processor core from the servers.

Without ``--checkpoint``, the model is a transformer with random weights, and sentences have
``--words`` random words. This script does not test whether translations are right or how the
server treats faulty requests; ``python -m tests.soak.serve`` does.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import bench
import numpy as np
import pictures
import serve_systems
from bench import Cells
from serve_systems import CTRANSLATE2, ENGINE, NUMBERS, SYSTEMS

PRIVATE = ("json", "checkpoint", "data", "text")  # paths on this machine, which are not saved
MEASUREMENT = "requests"


class Round(NamedTuple):
    """The times of one server in a round.

    Attributes:
        seconds: time from the first request to the last answer.
        latencies: seconds from each request to its answer.
    """

    seconds: float
    latencies: list[float]


def arguments() -> argparse.ArgumentParser:
    parser = bench.parser_with(
        __doc__,
        **{"threads": 2, "words": 20, "repeats": 5, "warmup": 1},
        **{"embed_dim": 512, "ffn_embed_dim": 2048, "heads": 8, "layers": 6},
        vocabulary=10_000,
    )
    add = parser.add_argument
    add("--clients", type=int, nargs="+", default=[1, 8, 64], help="numbers of clients, in turn")
    add("--requests", type=int, default=200, help="requests in a round, at least one per client")
    add("--beam", type=int, default=5, help="hypotheses in the beam")
    add("--max-len-b", type=int, default=200, help="most tokens of a translation")
    add("--checkpoint", type=Path, help="checkpoint of fairseq's transformer")
    add("--data", type=Path, help="folder with its dictionaries")
    add("--text", type=Path, help="sentences to translate, one per line")
    return parser


# ---- servers -------------------------------------------------------------------------------------


def write(options: Namespace, folder: Path) -> list[str]:
    """Write the model in each system's format to ``folder``; return the sentences to translate."""
    if options.checkpoint is not None:
        serve_systems.write(folder, options.checkpoint, options.data)
        lines = options.text.read_text("utf-8").splitlines()
        return [line for line in lines if line.strip()]
    from ctranslate2_models import LANGUAGES, random_sentences, save_checkpoint
    from peers import FIRST_WORD, Side, Size, transformer

    side = Side([*transformer(), *LANGUAGES], Size.of(options), positions=256)
    save_checkpoint(side, folder / "random.pt")
    serve_systems.write(folder, folder / "random.pt", folder)
    numbers = random_sentences(200, options.words, options.vocabulary - FIRST_WORD)
    return [" ".join(f"w{number}" for number in sentence) for sentence in numbers]


@contextlib.contextmanager
def serving(system: str, folder: Path, options: Namespace) -> Iterator[str]:
    """Run the server of ``system`` during the ``with`` block, and yield its address (http://…)."""
    search = {"beam": options.beam, "max_len_b": options.max_len_b}
    settings = json.dumps({"search": search, "threads": options.threads})
    process = subprocess.Popen(
        [sys.executable, serve_systems.__file__, system, str(folder), settings],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


# ---- clients -------------------------------------------------------------------------------------


async def send(address: str, bodies: Sequence[bytes], clients: int) -> Round:
    """Send all ``bodies``, which are complete HTTP requests, over ``clients`` connections.

    A connection waits for each answer. Raise AssertionError for a status other than 200.
    """
    waiting, latencies = iter(bodies), []
    host, port = urlsplit(address).hostname, urlsplit(address).port

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for body in waiting:
            began = time.perf_counter()
            writer.write(body)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            answer = await reader.readexactly(size)
            latencies.append(time.perf_counter() - began)
            assert head.startswith(b"HTTP/1.1 200 "), answer
        writer.close()
        await writer.wait_closed()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Round(time.perf_counter() - began, latencies)


def request(sentence: str, src: str, tgt: str) -> bytes:
    body = json.dumps({"q": sentence, "source": src, "target": tgt}).encode()
    head = (
        "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def translate(address: str, sentences: Sequence[str], src: str, tgt: str) -> list[str]:
    translations: list[str] = []
    for first in range(0, len(sentences), 50):
        fields = {"q": sentences[first : first + 50], "source": src, "target": tgt}
        headers = {"Content-Type": "application/json"}
        body = json.dumps(fields).encode()
        asking = urllib.request.Request(f"{address}/translate", body, headers)
        with urllib.request.urlopen(asking) as answer:
            translations += json.loads(answer.read())["translatedText"]
    return translations


def load(
    addresses: dict[str, str], requests: Sequence[bytes], clients: int, options: Namespace
) -> dict[str, list[Round]]:
    """Time the servers of all systems in turn; return each system's rounds after the warm-up.

    ``addresses`` maps each system to its server's address.
    """
    count = max(options.requests, clients)
    rounds: dict[str, list[Round]] = {name: [] for name in addresses}
    for number in range(options.warmup + options.repeats):
        first = number * count
        bodies = [requests[i % len(requests)] for i in range(first, first + count)]
        order = list(addresses) if number % 2 else list(addresses)[::-1]
        for name in order:
            trial = asyncio.run(send(addresses[name], bodies, clients))
            if number >= options.warmup:
                rounds[name].append(trial)
    return rounds


# ---- figures -------------------------------------------------------------------------------------


def add_cell(cells: Cells, clients: int, rounds: dict[str, list[Round]], count: int) -> None:
    """Add a cell with the figures of all servers; each round has ``count`` requests."""
    seconds = {name: [trial.seconds for trial in trials] for name, trials in rounds.items()}
    pairs = [(f"{ENGINE} {numbers}", f"{CTRANSLATE2} {numbers}") for numbers in NUMBERS]
    cells.add(MEASUREMENT, clients, seconds, pairs, tokens=count)
    for row in cells.figures[-len(rounds) :]:
        latencies = [latency for trial in rounds[row["candidate"]] for latency in trial.latencies]
        del row["tokens"], row["us_per_token"]
        row["requests"] = count
        row["requests_per_second"] = row.pop("tokens_per_second")
        row["p50_ms"], row["p99_ms"] = 1e3 * np.percentile(latencies, [50, 99])
        print(
            f"  {row['candidate']:24} {row['requests_per_second']:8.1f} requests per second, "
            f"p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms",
            flush=True,
        )


def draw(cells: Cells, output: Path) -> None:
    """Draw requests per second, and latencies (p50 and p99), over the number of clients."""
    panels = {
        "requests per second": (MEASUREMENT, SYSTEMS, "requests_per_second"),
        "median, ms": (MEASUREMENT, SYSTEMS, "p50_ms"),
        "99th percentile, ms": (MEASUREMENT, SYSTEMS, "p99_ms"),
    }
    pictures.draw(cells, panels, output, order=SYSTEMS, xlabel="clients")


def main() -> None:
    options = arguments().parse_args()
    cells = Cells("Serving over HTTP", axis="clients", unit="requests_per_second")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        sentences = write(options, folder)
        addresses = {
            system: stack.enter_context(serving(system, folder, options)) for system in SYSTEMS
        }
        from fairseq_ext.model.program_file import read

        about = read(folder / f"{ENGINE}-fp32")
        requests = [request(sentence, about.src, about.tgt) for sentence in sentences]
        model = f"trained {about.architecture}" if options.checkpoint else "random weights"
        cells.note(
            f"{model}; beam {options.beam}, one sentence in a request, {len(sentences):,} "
            f"different ones; each server with {options.threads} threads"
        )
        ours, peers = (
            translate(addresses[f"{name} fp32"], sentences[:200], about.src, about.tgt)
            for name in (ENGINE, CTRANSLATE2)
        )
        equal_count = sum(map(str.__eq__, ours, peers))
        cells.note(
            f"{equal_count} of {len(ours)} translations by CTranslate2 fp32 are the engine's"
        )
        for clients in options.clients:
            rounds = load(addresses, requests, clients, options)
            add_cell(cells, clients, rounds, max(options.requests, clients))
    cells.save(options.json, bench.settings(options, without=PRIVATE))
    if options.json is not None:
        draw(cells, options.json)


if __name__ == "__main__":
    main()
