"""Step 2: updates of fairseq's trainer with the plugin, without its speed patches, and stock.

Processes of a wave are started and warmed up together; then only one makes updates at a time.
"""

from __future__ import annotations

import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.bench import quartiles
from tests.gpu.material import base, binarize
from tests.gpu.results import ERROR_LENGTH, Results, arguments
from tests.support.harness import USER_DIR

WITHOUT_SPEED = """
from fairseq_ext.plugin import patches
from fairseq_ext.plugin.features import speed
patches.PATCHES = tuple(patch for patch in patches.PATCHES if patch not in speed.PATCHES)
import fairseq_ext
fairseq_ext.register()
"""
STOCK = ("transformer", "transformer-base")
MODELS = ("transformer", "transformer-base", "gru", "linformer", "muse", "bmt-1")
PRECISIONS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": []}
WARMUP, ROUND = 30, 4  # updates; the warm-up sees every batch
WAVE, TOGETHER, START = 8, 4, 120  # processes at a time, those that warm up, seconds to start in


class Side:
    """A training process.

    Args:
        command: the flags of the training.
    """

    def __init__(self, command: list[str]) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in `end`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.train_worker", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, updates: int, seconds: float = 30) -> None:
        """Ask for updates; :meth:`answer` waits for them."""
        try:
            self.process.stdin.write(json.dumps([updates, seconds]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says why

    def answer(self, limit: float) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
            RuntimeError: the process ended, or is not ready in time.
        """
        try:
            line = self.answers.get(timeout=max(limit, 1))
        except queue.Empty:
            raise RuntimeError("no answer in time") from None
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(self.errors.read()[-ERROR_LENGTH:])
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()


def sides_of(model: str) -> tuple[str, str]:
    """The plugin, and what it is compared with."""
    return ("plugin", "stock" if model in STOCK else "without-speed")


def command_of(
    data: Path, flags: list[str], precision: str, side: str, user_dirs: dict[str, Path], tiny: bool
) -> list[str]:
    words = [str(data), *flags, *PRECISIONS[precision]]
    words += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "1.0"]
    words += ["--lr", "0.0005", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "1000"]
    words += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    words += ["--dropout", "0.0", "--max-tokens", "400" if tiny else "4096", "--seed", "1"]
    words += ["--num-workers", "0", "--no-save", "--disable-validation", "--max-update", "1000000"]
    words += ["--no-progress-bar", "--log-interval", "100", *(["--cpu"] if tiny else [])]
    return words + (["--user-dir", str(user_dirs[side])] if side in user_dirs else [])


def measure(
    wave: dict[tuple[str, str, str], Side], results: Results, seconds: float, limit: int
) -> None:
    """Time the sides of a wave, the two of a model in turn, a few updates at a time."""
    losses: dict[tuple[str, str, str], list[float]] = {}
    errors: dict[tuple[str, str], str] = {}
    for key, side in wave.items():
        try:
            side.answer(min(START, results.left))
            losses[key] = []
        except RuntimeError as error:
            errors[key[:2]] = str(error)
    for first in range(0, len(losses), TOGETHER):
        keys = list(losses)[first : first + TOGETHER]
        for key in keys:
            wave[key].ask(min(WARMUP, limit))
        for key in keys:
            try:
                losses[key] += wave[key].answer(min(START, results.left))["losses"]
            except RuntimeError as error:
                errors[key[:2]] = str(error)
    for model, precision in dict.fromkeys(key[:2] for key in wave):
        sides = {side: wave[model, precision, side] for side in sides_of(model)}
        answers: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        try:
            if (model, precision) in errors:
                raise RuntimeError(errors[model, precision])
            end = time.monotonic() + seconds
            while len(answers["plugin"]) < 3 or time.monotonic() < end:
                for side in list(sides)[:: (-1) ** len(answers["plugin"])]:
                    sides[side].ask(min(ROUND, limit))
                    answers[side].append(sides[side].answer(30))
        except RuntimeError as error:
            errors[model, precision] = str(error)
        for side, process in sides.items():
            name = f"{model} {precision} {side}"
            if (model, precision) in errors:
                results.add(name, error=errors[model, precision])
            else:
                cell = cell_of(answers[side], losses[model, precision, side])
                if side == "plugin":
                    peer = answers[sides_of(model)[1]]
                    rounds = zip(answers["plugin"], peer, strict=True)
                    ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in rounds]
                    cell["times_as_fast"] = quartiles(ratios)
                results.add(name, **cell)
            process.end()


def cell_of(answers: list[dict[str, Any]], losses: list[float]) -> dict[str, Any]:
    """Figures of a side: median speed, memory, and the loss of every fourth update."""
    losses = losses + [loss for answer in answers for loss in answer["losses"]]
    return {
        "tokens_per_second": statistics.median(
            answer["tokens"] / answer["seconds"] for answer in answers
        ),
        "rounds": len(answers),
        "updates_per_round": answers[0]["updates"],
        "peak_mib": answers[-1].get("peak_mib"),
        "losses": [round(loss, 5) for loss in losses[:60:4]],
    }


def main() -> None:
    options = arguments("updates")
    results = Results("updates", options)
    models = base(options.tiny)
    size = {"sentences": 300, "vocabulary": 100, "mean": 8} if options.tiny else {}
    size = size or {"sentences": 24_000, "vocabulary": 10_000}
    data = binarize(options.work / "synthetic", **size)
    before = options.work / "without_speed"
    before.mkdir(exist_ok=True)
    (before / "__init__.py").write_text(WITHOUT_SPEED)
    user_dirs = {"plugin": USER_DIR, "without-speed": before}
    precisions = ("fp32",) if options.tiny else tuple(PRECISIONS)
    names = ("transformer", "gru") if options.tiny else MODELS
    keys = [
        (model, precision, side)
        for precision in precisions
        for model in names
        for side in sides_of(model)
    ]
    keys.sort(key=lambda key: key[1] != "bf16" and key[0] not in STOCK)  # what is asked most first
    keys = [key for key in keys if not results.has(" ".join(key))]
    limits = {"seconds": 0.4, "limit": 4} if options.tiny else {"seconds": 4, "limit": 200}
    for start in range(0, len(keys), WAVE):
        wave: dict[tuple[str, str, str], Side] = {}
        for model, precision, side in keys[start : start + WAVE]:
            if results.left < (5 if options.tiny else 25):
                results.add(f"{model} {precision} {side}", error="no time left")
                continue
            words = command_of(data, models[model], precision, side, user_dirs, options.tiny)
            wave[model, precision, side] = Side(words)
        try:
            measure(wave, results, **limits)
        finally:
            for side in wave.values():
                if side.process.poll() is None:
                    side.end()
    results.finish()


if __name__ == "__main__":
    main()
