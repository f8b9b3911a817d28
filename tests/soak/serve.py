"""``fairseq-ext serve`` answers 100,000 requests, among them faulty ones; nothing is lost.

Every answer is compared with what the model gives without a server. A fifth of the requests are
faults: bodies that are broken, too large or cut off, clients that leave before the answer, and
what is no HTTP at all. Resident memory stays flat, and the log has no traceback.
"""

import json
import random
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fairseq_ext
from tests.soak.memory import Samples
from tests.soak.report import Report, noted, parser, trained
from tests.support.harness import run
from tests.support.serving import ENGLISH, JSON, Server, serving

CLIENTS = 8
BLOCK = 100  # requests between two looks at the memory
SENTENCES = 200  # different ones
SEARCH = {"beam": 2, "max_len_b": 15}
TRANSLATE = "translated"
ENDLESS = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
ENDLESS += b"Content-Type: application/json\r\n\r\n"


class Clients:
    """What is asked, and what has to come back."""

    def __init__(self, server: Server, expected: dict[str, str]) -> None:
        self.server, self.known, self.asked = server, expected, Counter[str]()
        self.faults: dict[str, Callable[[random.Random], None]] = {
            "broken JSON": self.broken,
            "too many characters": self.too_long,
            "too many bytes": self.too_large,
            "an unknown language": self.unknown,
            "no HTTP": self.nonsense,
            "left while sending": self.left_sending,
            "left before the answer": self.left_waiting,
        }

    def ask(self, number: int) -> str:
        """One request; which, its number says. Returns its kind."""
        draw = random.Random(number)
        kind = draw.choice([*self.faults]) if draw.random() < 0.2 else TRANSLATE
        self.faults.get(kind, self.translate)(draw)
        return kind

    def translate(self, draw: random.Random) -> None:
        sentences = draw.choices([*self.known], k=draw.randint(1, 4))
        answer = self.server.translate(sentences)
        assert answer.status == 200, answer
        expected = [self.known[sentence] for sentence in sentences]
        assert answer.body["translatedText"] == expected, answer

    def refused(self, body: bytes, status: int) -> None:
        answer = self.server.ask("/translate", body, **JSON)
        assert answer.status == status, answer
        assert list(answer.body) == ["error"], answer

    def broken(self, draw: random.Random) -> None:
        body = json.dumps({"q": "1", **ENGLISH}).encode()
        self.refused(body[: draw.randrange(1, len(body))], 400)

    def too_long(self, _: random.Random) -> None:
        self.refused(json.dumps({"q": "1 " * 10_000, **ENGLISH}).encode(), 413)

    def too_large(self, draw: random.Random) -> None:
        self.refused(b"x" * draw.randint(1_000_001, 2_000_000), 413)

    def unknown(self, _: random.Random) -> None:
        self.refused(json.dumps({"q": "1", "source": "tgt", "target": "src"}).encode(), 400)

    def nonsense(self, draw: random.Random) -> None:
        with self.connection() as client:
            client.sendall(draw.randbytes(100) + b"\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")

    def left_sending(self, _: random.Random) -> None:
        with self.connection() as client:
            client.sendall(ENDLESS + b'{"q": ')

    def left_waiting(self, draw: random.Random) -> None:
        body = json.dumps({"q": draw.choices([*self.known], k=20), **ENGLISH}).encode()
        with self.connection() as client:
            client.sendall(ENDLESS.replace(b"1000", b"%d" % len(body)) + body)
            if draw.random() < 0.5:  # without a word
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=120)


def asking(report: Report, model: Path, folder: Path, total: int, seconds: float) -> None:
    """One server, and so many requests to it in at least so many seconds."""
    draw, samples = random.Random(1), Samples("requests to one `fairseq-ext serve`", total)
    words = (draw.choices("0123456789", k=draw.randint(1, 9)) for _ in range(SENTENCES))
    sentences = [*dict.fromkeys(map(" ".join, words))]
    translations = fairseq_ext.load(model).translate(sentences, **SEARCH)
    alone = [translation.text for translation in translations]
    failures: list[str] = []
    options = [word for name in SEARCH for word in (f"--{name.replace('_', '-')}", SEARCH[name])]
    with serving(folder, model, *options) as server, ThreadPoolExecutor(CLIENTS) as pool:
        clients = Clients(server, dict(zip(sentences, alone, strict=True)))

        def ask(number: int) -> None:
            with noted(failures, f"request {number}"):
                clients.asked[clients.ask(number)] += 1

        began = time.monotonic()
        for first in range(0, total, BLOCK):
            time.sleep(max(0, began + seconds * first / total - time.monotonic()))
            list(pool.map(ask, range(first, min(first + BLOCK, total))))
            samples.take(min(first + BLOCK, total), server.process)
        with noted(failures, "the end"):
            _check_figures(clients)
            assert "Traceback" not in server.end(), server.log.read_text()
    kinds = {kind.replace(" ", "_"): count for kind, count in sorted(clients.asked.items())}
    samples.add_to(report, failures, **kinds)


def _check_figures(clients: Clients) -> None:
    """What the server has counted is what it was asked."""
    requests, figure = clients.asked, clients.server.figure
    name = 'fairseq_ext_requests_total{{path="/translate",status="{}"}}'
    answered = figure(name.format(200))
    left = requests["left before the answer"]  # some of these are answered before they are missed
    assert requests[TRANSLATE] <= answered <= requests[TRANSLATE] + left, (answered, requests)
    for status, kinds in (
        (400, ("broken JSON", "an unknown language")),
        (413, ("too many characters", "too many bytes")),
    ):
        count = sum(requests[kind] for kind in kinds)
        assert figure(name.format(status)) == count, (status, requests)
    assert figure("fairseq_ext_queue_sentences") == 0
    assert figure("fairseq_ext_failed_sentences_total") == 0


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=100_000, metavar="N")
    options.add_argument("--over", type=float, default=0, metavar="SECONDS", help="at least (0)")
    args = options.parse_args()
    report = Report("serve", args)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data, (checkpoint,) = trained(folder, "gru_tiny")
        model = folder / "bundle"
        run("fairseq-ext", "bundle", checkpoint, "--data", data, "-o", model)
        asking(report, model, folder, args.requests, args.over)
    report.end()


if __name__ == "__main__":
    main()
