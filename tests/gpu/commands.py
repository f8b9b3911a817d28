"""fairseq's commands as processes, many at once, and what their logs say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.corpus import USER_DIR
from tests.gpu.results import ERROR_LENGTH


class Command:
    """A command of fairseq's with the plugin, its output in a file.

    Args:
        log: file.
        words: name without ``fairseq-``, then arguments.
        environment: further variables.
    """

    def __init__(self, log: Path, *words: object, **environment: str) -> None:
        self.log, self.name = log, str(words[0])
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [*map(str, words[1:]), "--user-dir", str(USER_DIR)]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"fairseq_cli.{self.name}", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
        self.end = time.monotonic() + 600

    def wait(self, limit: float) -> str:
        """Return the output.

        Raises:
            RuntimeError: it failed, or was not ready in time.
        """
        try:
            status = self.process.wait(max(limit, 1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = "no time left"
        output = self.log.read_text(errors="replace")
        if status != 0:
            raise RuntimeError(f"{self.name}: status {status}: {output[-ERROR_LENGTH:]}")
        return output


def log_lines(output: str, tag: str) -> list[dict[str, Any]]:
    """The JSON lines of ``--log-format json`` with a tag: ``train_inner``, ``valid`` …"""
    lines = [line.split("|")[-1].strip() for line in output.splitlines() if f"| {tag} |" in line]
    return [json.loads(line) for line in lines if line.startswith("{")]


def hypotheses(output: str) -> dict[str, str]:
    """The best hypothesis of each sentence."""
    rows = (line.split("\t") for line in output.splitlines() if line.startswith("H-"))
    return {name: text for name, _, text in rows}
