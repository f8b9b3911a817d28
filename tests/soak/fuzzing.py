"""Readers under arbitrary input: how it is made, what each may do, and how that is watched.

Texts and bytes are nearly right: lines of a grammar, and damage to valid examples. Every generator
takes its choices from a ``Random``.
A reader may accept an input, or refuse it with one line that names the file. Any other exception, a
write outside its folder, a started process and a connection are failures; so are ten seconds for
one input, and memory above the limit of ``MEMORY``.
"""

import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fairseq_ext.utils.errors import FairseqExtError
from tests.soak.report import Report, parser

Text = Callable[[Random], str]
Data = Callable[[Random], bytes]
Files = Callable[[Random], dict[str, bytes]]

SECONDS = 10  # for one input
SHOWN = 20  # failures described
MEMORY = 1 << 30  # bytes of address space that reading may take
LONGEST = 2_000  # characters of a message
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
# Places of a path and of the descriptor of its folder among the arguments of an audit event.
CHANGES = {
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.truncate": ((0, None),),
}


NUMBERS = (
    *("0", "1", "2", "-1", "3.5", "1e9", "007", "30000000", "4294967296", "9223372036854775808"),
    *("1e999", "-1e999", "nan", "NaN", "inf", "Infinity", "9" * 400, "9" * 5000, "1" + "0" * 308),
    *("", ".", "1.2.3", "e", "1_000", "1,000", "0x10", "٣", "²", "+", "1e-400", "true", "null"),
)
# What readers stumble over, wherever it stands.
NASTY = (
    *NUMBERS,
    *("\r", "\0", "\n", "\n\n", "\t", " ", "\u2028", "\u00a0", "\ufeff", "\ud800", "é", "😀"),
    *("\x1b", "\r\n", "{", "}", "[", "]", "{}", "[]", '"', "'", ",", ":", "|", "=", "-", "<", "%s"),
    *("[" * 5000, '{"a":' * 5000, "a" * 3000, "#version: 0.3\n", "\\ud800", "\\", "@@ ", "../"),
)


def slots(*templates: str, values: Sequence[str] = NUMBERS) -> Text:
    """One of the templates, each ``#`` in it a value: mostly ``1`` or ``0``, else of ``values``."""

    def make(draw: Random) -> str:
        first, *rest = draw.choice(templates).split("#")
        for part in rest:
            first += (draw.choice("10") if draw.random() < 0.7 else draw.choice(values)) + part
        return first

    return make


def words(separator: str, values: Sequence[str], limit: int = 3) -> Text:
    """Up to ``most`` values."""
    return lambda draw: separator.join(draw.choices(values, k=draw.randint(0, limit)))


def lines(line: Text, limit: int = 8, head: str = "") -> Text:
    """Some lines below ``head``."""
    return lambda draw: head + "".join(f"{line(draw)}\n" for _ in range(draw.randint(0, limit)))


def text(*sources: str | Text) -> Data:
    """UTF-8 of a valid example or a grammar's text, half of them with up to four damages."""

    def make(draw: Random) -> bytes:
        source = draw.choice(sources)
        text = source if isinstance(source, str) else source(draw)
        for _ in range(max(0, draw.randint(-4, 4))):
            start = draw.randint(0, len(text))
            end = start + draw.randint(0, 40)
            piece, nasty = text[start:end], draw.choice(NASTY)
            middle = draw.choice((nasty, piece + nasty, piece * 2, ""))
            text = text[:start] + middle + text[end:]
        return text.encode("utf-8", "surrogatepass")

    return make


def damaged(source: bytes | Data, limit: int = 3) -> Data:
    """The bytes, half of them with up to ``most`` damages: bits, numbers, parts cut or repeated."""

    def make(draw: Random) -> bytes:
        data = bytearray(source if isinstance(source, bytes) else source(draw))
        for _ in range(max(0, draw.randint(-limit, limit))):
            start = draw.randint(0, len(data))
            end = start + (size := draw.choice((1, 2, 4, 8, 512)))
            match draw.randint(0, 5):
                case 0 if start < len(data):
                    data[start] ^= 1 << draw.randint(0, 7)
                case 1:
                    data[start:end] = bytes([draw.choice((0, 1, 0x7F, 0x80, 0xFF))]) * size
                case 2:
                    del data[start:]
                case 3:
                    del data[start:end]
                case 4:
                    data[start:start] = data[start:end]
                case _:
                    data += bytes([draw.randint(0, 255)]) * draw.choice((1, 100, 512, 1024))
        return bytes(data)

    return make


def files(**contents: Data) -> Files:
    """Files, whose names have ``_`` for a dot."""
    named = {name.replace("_", "."): make for name, make in contents.items()}
    return lambda draw: {name: make(draw) for name, make in named.items()}


@dataclass(frozen=True)
class Reader:
    """One reader."""

    name: str
    inputs: Files
    read: Callable[[Path], object]


@dataclass
class Outcome:
    """What became of the inputs."""

    inputs: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    failed: int = 0

    def fail(self, reason: str, files: dict[str, bytes]) -> None:
        self.failed += 1
        if len(self.failures) < SHOWN:
            shown = {name: f"{data[:300]!r} ({len(data)})" for name, data in files.items()}
            self.failures.append(f"{reason:.500}: {shown}")


class Watch:
    """An audit hook that notes writes outside a folder, started processes and connections.

    A hook cannot be taken away again; it does nothing while ``folder`` is None.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in STARTS:
            self.seen.append(f"{event}{arguments!r:.200}")
        elif event == "open":
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._note(event, arguments[0], -1)
        elif event in CHANGES:
            for path, folder in CHANGES[event]:
                self._note(event, arguments[path], arguments[folder] if folder else -1)

    def _note(self, event: str, path: Any, folder: int) -> None:
        if not isinstance(path, str | bytes):  # a descriptor, which was opened before
            return
        path = os.fsdecode(path)
        if folder != -1:
            path = f"{Path(f'/proc/self/fd/{folder}').readlink()}/{path}"
        # Opening follows a link, the others change the link itself.
        place = os.path.realpath(path if event == "open" else Path(path).parent)
        if not f"{place}/".startswith(f"{self.folder}/") and place != os.devnull:
            self.seen.append(f"{event} of {path}")


_watch: Watch | None = None


@contextmanager
def _watched(folder: Path) -> Iterator[list[str]]:
    global _watch
    _watch = _watch or Watch()
    _watch.seen, _watch.folder = [], str(folder)
    try:
        yield _watch.seen
    finally:
        _watch.folder = None


class TooLong(BaseException):
    """An input took longer than ``SECONDS``."""


def _too_long(*_: object) -> None:
    raise TooLong(f"more than {SECONDS} s")


def fuzz(reader: Reader, count: int, seed: int = 1) -> Outcome:
    """Let a reader read so many inputs."""
    outcome = Outcome()
    previous = signal.signal(signal.SIGALRM, _too_long)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a file is written quickly
    with tempfile.TemporaryDirectory(dir=memory) as name:
        outside = Path(name).resolve()
        folder = outside / "folder"
        draw = Random(seed)
        try:
            for _ in range(count):
                _read_once(reader, reader.inputs(draw), folder, outcome)
        finally:
            signal.signal(signal.SIGALRM, previous)
        left = sorted(path.name for path in outside.iterdir() if path != folder)
        if left:
            outcome.fail(f"left outside the folder: {left}", {})
    return outcome


def _read_once(reader: Reader, files: dict[str, bytes], folder: Path, outcome: Outcome) -> None:
    _empty(folder, files)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    outcome.inputs += 1
    try:
        with _watched(folder) as calls:
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                reader.read(folder)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        outcome.accepted += 1
    except FairseqExtError as error:
        message = str(error)
        if "\n" in message or "\r" in message or len(message) > LONGEST:
            outcome.fail(f"not one line: {message!r}", files)
        elif not any(name.partition(".")[0] in message for name in files):
            outcome.fail(f"without the file's name: {message}", files)
        else:
            outcome.refused[type(error).__name__] += 1
    except (Exception, TooLong, SystemExit) as error:
        outcome.fail(f"{type(error).__name__}: {error}", files)
    if calls:
        outcome.fail(f"outside: {calls[0]}", files)


def _empty(folder: Path, files: Collection[str]) -> None:
    """A folder without what a reader has made in it; ``files`` will be overwritten."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in files:
            path.unlink()


def _limit_memory(extra: int = MEMORY) -> None:
    """Let this process take so many more bytes of address space and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _resident() -> tuple[int, int]:
    """MiB of resident memory of this process: now, and at most so far."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize() >> 20, peak >> 10


def run(part: str, description: str, count: int) -> None:
    """Fuzz each of the readers of ``tests.soak.PART``, and report."""
    options = parser(description)
    options.add_argument("--inputs", type=int, default=count, help="for each (%(default)s)")
    args = options.parse_args()
    report = Report(part, args)
    names = [reader.name for reader in _readers(part)]
    # A fresh process for each, as memory and its limit belong to the process.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in names:
            report.add(**pool.apply(_measured, (part, name, args.inputs, args.seed)))
    report.end()


def _readers(part: str) -> list[Reader]:
    return importlib.import_module(f"tests.soak.{part}").readers()


def _measured(part: str, name: str, count: int, seed: int) -> dict[str, Any]:
    """One reader in this process, whose memory is limited; a row of the report."""
    (reader,) = [candidate for candidate in _readers(part) if candidate.name == name]
    fuzz(reader, 50, seed)  # whatever is imported late, and grows once
    before, _ = _resident()
    _limit_memory()
    began = time.monotonic()
    outcome = fuzz(reader, count, seed)
    return {
        "check": reader.name,
        "count": outcome.inputs,
        "failures": outcome.failures,
        "accepted": outcome.accepted,
        "refused": dict(outcome.refused),
        "other_exceptions": outcome.failed,
        "memory_before_mib": before,
        "memory_peak_mib": _resident()[1],
        "seconds": round(time.monotonic() - began),
    }
