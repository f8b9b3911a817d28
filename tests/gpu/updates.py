"""Step 2: updates of fairseq's trainer with the plugin, without its speed patches, and stock.

Processes of a wave are started and warmed up together; then only one makes updates at a time.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

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
WARMUP, WAVE, TOGETHER, START = 12, 12, 4, 120


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

    def ask(self, updates: int, seconds: float) -> None:
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
    words += ["--dropout", "0.0", "--max-tokens", "400" if tiny else "8192", "--seed", "1"]
    words += ["--num-workers", "0", "--no-save", "--disable-validation", "--max-update", "1000000"]
    words += ["--no-progress-bar", "--log-interval", "100", *(["--cpu"] if tiny else [])]
    return words + (["--user-dir", str(user_dirs[side])] if side in user_dirs else [])


def measure(
    wave: dict[tuple[str, str, str], Side], results: Results, seconds: float, limit: int
) -> None:
    """Time the sides of a wave, the two of a model in turn."""
    ready: dict[tuple[str, str, str], list[float]] = {}
    errors: dict[tuple[str, str, str], str] = {}
    for key, side in wave.items():
        try:
            ready[key] = side.answer(min(START, results.left)).get("losses", [])
        except RuntimeError as error:
            errors[key] = str(error)
    for first in range(0, len(ready), TOGETHER):  # so that all fit into the card's memory
        keys = list(ready)[first : first + TOGETHER]
        for key in keys:
            wave[key].ask(min(WARMUP, limit), 30)
        for key in keys:
            try:
                ready[key] = wave[key].answer(min(START, results.left))["losses"]
            except RuntimeError as error:
                errors[key] = str(error)
    for model, precision in dict.fromkeys(key[:2] for key in wave):
        cells: dict[str, dict[str, Any]] = {}
        for side in (*sides_of(model), *sides_of(model)[::-1]):
            key = (model, precision, side)
            cell = cells.setdefault(side, {"seconds": 0, "tokens": 0, "updates": 0})
            try:
                if key in errors:
                    raise RuntimeError(errors[key])
                wave[key].ask(limit, seconds)
                answer = wave[key].answer(30)
                for name in ("seconds", "tokens", "updates"):
                    cell[name] += answer[name]
                ready[key] += answer["losses"]
                cell["peak_mib"] = answer.get("peak_mib")
            except RuntimeError as error:
                errors[key] = cell["error"] = str(error)
        for side, cell in cells.items():
            key = (model, precision, side)
            if "error" not in cell:
                cell["tokens_per_second"] = cell["tokens"] / cell["seconds"]
                cell["losses"] = [round(loss, 5) for loss in ready[key][:60:4]]
            results.add(" ".join(key), **cell)
            wave[key].end()


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
    keys = [key for key in keys if not results.has(" ".join(key))]
    limits = {"seconds": 0.4, "limit": 4} if options.tiny else {"seconds": 1.8, "limit": 200}
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
