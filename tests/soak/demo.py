"""The demo page answers 2,000 requests, and its resident memory stays flat.

Each is another visitor's, who leaves without a word, as when a browser is killed. Every fourth
answer has a picture of the attention, which takes far longer to draw than a sentence to translate.
"""

import json
import random
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.soak.memory import Samples, command
from tests.soak.report import Report, noted, parser, trained

SYSTEMS = ("gru_tiny", "linformer_tiny")
"""The first has attention to draw."""


class Page:
    """A client of the demo page that asks as the page's own script does."""

    def __init__(self, address: str) -> None:
        self.address = address
        with urllib.request.urlopen(address) as answer:
            page = answer.read().decode()
        start = page.index("window.gradio_config = ") + len("window.gradio_config = ")
        config, _ = json.JSONDecoder().raw_decode(page[start:])
        (self.function,) = (
            dependency["id"]
            for dependency in config["dependencies"]
            if len(dependency["inputs"]) == 2
        )

    def ask(self, sentence: str, systems: list[str]) -> list[Any]:
        """The new states of the page's parts."""
        session = uuid.uuid4().hex
        expected = {
            "data": [sentence, systems],
            "fn_index": self.function,
            "session_hash": session,
        }
        request = urllib.request.Request(
            f"{self.address}/gradio_api/queue/join",
            json.dumps(expected).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()
        for event in self._events(session):
            if event["msg"] == "process_completed":
                assert event["success"], event
                return event["output"]["data"]
        raise AssertionError("no answer")

    def _events(self, session: str) -> Iterator[dict[str, Any]]:
        stream = f"{self.address}/gradio_api/queue/data?session_hash={session}"
        with urllib.request.urlopen(stream, timeout=120) as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])


def serving(report: Report, data: Path, models: list[Path], total: int, minutes: float) -> None:
    """One ``fairseq-ext demo`` that answers sentences for at most so many minutes."""
    samples, draw = Samples("requests to one `fairseq-ext demo`", total), random.Random(1)
    process = command(
        *("fairseq-ext", "demo", *map("{}={}".format, SYSTEMS, models), "--data", data),
        *("--port", 0, "--cpu", "--beam", 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    failures: list[str] = []
    deadline, requests = time.monotonic() + 60 * minutes, 0
    try:
        page = Page(process.stdout.readline().strip())
        with noted(failures, "demo"):
            for done in range(1, total + 1):
                words = [str(draw.randrange(10)) for _ in range(draw.randint(1, 9))]
                drawn = done % 4 == 0
                system = SYSTEMS[not drawn]
                answer = json.dumps(page.ask(" ".join(words), [system]))
                assert ("data:image/png" in answer) == drawn, answer[:500]
                requests = done
                if done % 10 == 0:
                    samples.take(done, process)
                if time.monotonic() > deadline:
                    break
    finally:
        process.kill()
        process.wait()
    samples.total = requests
    samples.add_to(report, failures)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=2_000, metavar="N")
    options.add_argument("--minutes", type=float, default=60, metavar="M", help="at most")
    args = options.parse_args()
    report = Report("demo", args)
    with tempfile.TemporaryDirectory() as scratch:
        data, models = trained(Path(scratch), *SYSTEMS)
        serving(report, data, models, args.requests, args.minutes)
    report.end()


if __name__ == "__main__":
    main()
