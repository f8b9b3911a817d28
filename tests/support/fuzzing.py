"""Fuzz readers: generate arbitrary inputs, and watch what a reader does with them.

Texts and bytes are nearly right: valid examples with damage. Every generator takes its choices from
a ``Random``. A reader may accept an input, or refuse it with one line that names the file. Any
other exception, a write outside its folder, a started process and a connection are failures, and so
is memory above the limit of ``MEMORY``.
"""

import functools
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fairseq_ext.utils.errors import FairseqExtError
from tests.support import damages

Data = Callable[[Random], bytes]
Files = Callable[[Random], dict[str, bytes]]

MEMORY = 1 << 30  # most bytes of address space that reading may take
LONGEST = 2_000  # most characters of a message
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
# Texts over which readers may stumble, wherever they stand.
NASTY = (
    *NUMBERS,
    *("\r", "\0", "\n", "\n\n", "\t", " ", "\u2028", "\u00a0", "\ufeff", "\ud800", "é", "😀"),
    *("\x1b", "\r\n", "{", "}", "[", "]", "{}", "[]", '"', "'", ",", ":", "|", "=", "-", "<", "%s"),
    *("[" * 5000, '{"a":' * 5000, "a" * 3000, "#version: 0.3\n", "\\ud800", "\\", "@@ ", "../"),
)

NUMBER = re.compile(r"\d+(\.\d+)?")


def text(*examples: str) -> Data:
    """Generate UTF-8 of a valid example, in about half of the draws with up to four damages."""

    def make(draw: Random) -> bytes:
        text = draw.choice(examples)
        for _ in range(max(0, draw.randint(-4, 4))):
            spans = [match.span() for match in NUMBER.finditer(text)]
            start = draw.randint(0, len(text))
            end = start + draw.randint(0, 40)
            piece, nasty = text[start:end], draw.choice(NASTY)
            match draw.randint(0, 4):
                case 0:
                    lines = text.splitlines(keepends=True)
                    text = "".join(draw.choices(lines, k=draw.randint(0, 8)) if lines else ())
                case 1 | 2 if spans:
                    start, end = draw.choice(spans)
                    text = text[:start] + draw.choice(NUMBERS) + text[end:]
                case _:
                    middle = draw.choice((nasty, piece + nasty, piece * 2, ""))
                    text = text[:start] + middle + text[end:]
        return text.encode("utf-8", "surrogatepass")

    return make


def damaged(source: bytes | Data, limit: int = 3) -> Data:
    """Generate the bytes of ``source``, in about half of the draws with up to ``limit`` damages."""

    def make(draw: Random) -> bytes:
        data = source if isinstance(source, bytes) else source(draw)
        for _ in range(max(0, draw.randint(-limit, limit))):
            if data:
                data = draw.choice(damages.OF_ANY_FILE)(bytearray(data), draw)
        return data

    return make


def files(**contents: Data) -> Files:
    """Generate files by name; a keyword such as ``a_json`` stands for the name ``a.json``."""
    named = {name.replace("_", "."): make for name, make in contents.items()}
    return lambda draw: {name: make(draw) for name, make in named.items()}


class Reader(NamedTuple):
    """A reader of files in a folder, and the generator of its inputs."""

    name: str
    inputs: Files
    read: Callable[[Path], object]


class Watch:
    """An audit hook that notes writes outside a folder, started processes and connections.

    A hook cannot be removed; it does nothing while ``folder`` is None.
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
        if not isinstance(path, str | bytes):  # a descriptor, whose opening was an event before
            return
        path = os.fsdecode(path)
        if folder != -1:
            path = f"{Path(f'/proc/self/fd/{folder}').readlink()}/{path}"
        # Opening follows a link, the others change the link itself.
        place = os.path.realpath(path if event == "open" else Path(path).parent)
        if not f"{place}/".startswith(f"{self.folder}/") and place != os.devnull:
            self.seen.append(f"{event} of {path}")


@functools.cache
def watch() -> Watch:
    return Watch()


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Fail if the block touches anything outside the folder, or needs more than :data:`MEMORY`."""
    page, limits = resource.getpagesize(), resource.getrlimit(resource.RLIMIT_AS)
    size = page * int(Path("/proc/self/statm").read_text().partition(" ")[0])
    watch().seen, watch().folder = [], str(folder)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        watch().folder = None
        assert not watch().seen, watch().seen[0]


def outcome(reader: Reader, files: dict[str, bytes], folder: Path) -> str:
    """Return whether a reader has accepted or refused the files; it may do nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    try:
        with watched(folder):
            reader.read(folder)
    except FairseqExtError as error:
        message = str(error)
        assert len(message.splitlines()) == 1, message
        assert len(message) <= LONGEST
        assert any(name.partition(".")[0] in message for name in files), message
        return "refused"
    return "accepted"
