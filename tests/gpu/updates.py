"""Step 2: updates of fairseq's trainer with the plugin, without its speed patches, and stock.

Processes of a wave are started and warmed up together; then only one makes updates at a time.
"""

import statistics
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor, TimeoutError, wait
from pathlib import Path
from typing import Any

from updates import WORKER, training

from benchmarks.bench import Worker, quartiles
from fairseq_ext.plugin import patching
from fairseq_ext.plugin.features import speed
from tests.gpu.material import base, binarize
from tests.gpu.results import ERROR_LENGTH, Results, arguments
from tests.support.harness import USER_DIR
from tests.support.trainings import plugin_without

STOCK = ("transformer", "transformer-base")
MODELS = ("transformer", "transformer-base", "gru", "linformer", "muse", "bmt-1")
PRECISIONS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": []}
WARMUP, ROUND = 30, 4  # updates
WAVE, TOGETHER, START = 4, 2, 120  # models at a time, those that warm up, seconds to start in


def command_of(data: Path, flags: list[str], plugin: Path | None, tiny: bool) -> list[str]:
    device, tokens = ("cpu", 400) if tiny else ("cuda", 4096)
    words = [str(WORKER), str(data), *flags]
    words += training(Namespace(device=device, tokens=tokens, dropout=0.0))
    return [*words, "--lr", "0.0005", *(["--user-dir", str(plugin)] if plugin else [])]


class Pair:
    """Two trainings of a model: with the plugin, and what it is compared with."""

    def __init__(
        self, options: Namespace, data: Path, model: str, precision: str, without_speed: Path
    ) -> None:
        self.name = f"{model} {precision}"
        self.updates = 4 if options.tiny else ROUND
        flags = [*base(options.tiny)[model], *PRECISIONS[precision]]
        peer = {"stock": None} if model in STOCK else {"without-speed": without_speed}
        self.sides = {
            side: Worker(command_of(data, flags, plugin, options.tiny), threads=1, quiet=True)
            for side, plugin in {"plugin": USER_DIR, **peer}.items()
        }
        self.losses: dict[str, list[float]] = {}

    def warm_up(self, updates: int) -> None:
        for side, worker in self.sides.items():
            self.losses[side] = worker.ask(str(updates))["losses"]

    def cells(self, seconds: float) -> dict[str, dict[str, Any]]:
        """Let the sides make updates in turn; return speed, memory, every fourth loss of each."""
        answers: dict[str, list[dict[str, Any]]] = {side: [] for side in self.sides}
        end = time.monotonic() + seconds
        while len(answers["plugin"]) < 3 or time.monotonic() < end:
            for side in list(answers)[:: (-1) ** len(answers["plugin"])]:
                answers[side].append(self.sides[side].ask(str(self.updates)))
                self.losses[side] += answers[side][-1]["losses"]
        cells = {
            side: {
                "tokens_per_second": statistics.median(x["tokens"] / x["seconds"] for x in rounds),
                "rounds": len(rounds),
                "updates_per_round": self.updates,
                "peak_mib": rounds[-1].get("mebibytes_of_gpu"),
                "losses": [round(loss, 5) for loss in self.losses[side][:60:4]],
            }
            for side, rounds in answers.items()
        }
        ours, theirs = ([x["seconds"] for x in rounds] for rounds in answers.values())
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        return {**cells, "plugin": {**cells["plugin"], "times_as_fast": quartiles(ratios)}}


def main() -> None:
    options = arguments("updates")
    results = Results("updates", options)
    size = {"sentences": 300, "vocabulary": 100, "mean": 8} if options.tiny else {}
    size = size or {"sentences": 24_000, "vocabulary": 10_000}
    data = binarize(options.work / "synthetic", **size)
    without_speed = plugin_without(
        options.work, *(patch.name for patch in patching.patches_of(speed))
    )
    cases = [
        (model, precision)
        for precision in (("fp32",) if options.tiny else PRECISIONS)
        for model in (("transformer", "gru") if options.tiny else MODELS)
        if not results.has(f"{model} {precision} plugin")
    ]
    cases.sort(key=lambda case: case[1] != "bf16" and case[0] not in STOCK)  # what is asked first
    for first in range(0, len(cases), WAVE):
        if results.left < (5 if options.tiny else 25):
            results.add(" ".join(cases[first]) + " plugin", error="no time left")
            break
        wave = [Pair(options, data, *case, without_speed) for case in cases[first : first + WAVE]]
        pool = ThreadPoolExecutor(TOGETHER)
        ready = [pool.submit(pair.warm_up, 4 if options.tiny else WARMUP) for pair in wave]
        wait(ready, min(START, results.left))
        for pair, warmed_up in zip(wave, ready, strict=True):
            try:
                warmed_up.result(0)
                for side, cell in pair.cells(0.4 if options.tiny else 4).items():
                    results.add(f"{pair.name} {side}", **cell)
            except (SystemExit, TimeoutError) as error:  # a process ended, or is late
                text = f"{type(error).__name__}: {error}"
                results.add(f"{pair.name} plugin", error=text[-ERROR_LENGTH:])
            for worker in pair.sides.values():
                worker.end()
    results.finish()


if __name__ == "__main__":
    main()
