"""A web server that can misbehave, and archives for it to serve."""

import hashlib
import http.server
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairseq_ext.corpora import downloads


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """A server of ``files``; each of ``troubles``, such as "stall", spoils one answer, in order."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.troubles: list[str] = []
        self.version, self.ranges = '"1"', True
        self.requests: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        byte_range = self.headers.get("Range")
        self.server.requests.append((self.path, byte_range))
        trouble = self.server.troubles.pop(0) if self.server.troubles else ""
        data = self.server.files.get(self.path.lstrip("/"))
        if trouble.isdecimal() or data is None:
            self.send_error(int(trouble or 404))
            return
        start = 0
        if (
            byte_range
            and self.server.ranges
            and self.headers.get("If-Range") == self.server.version
        ):
            start = int(byte_range.removeprefix("bytes=").removesuffix("-"))
        body = data[start:]
        self.send_response(206 if start else 200)
        if start:
            shown = start + 7 if trouble == "wrong range" else start
            self.send_header("Content-Range", f"bytes {shown}-{len(data) - 1}/{len(data)}")
        if self.server.version:
            self.send_header("ETag", self.server.version)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if trouble in ("truncate", "stall"):
            self.wfile.write(body[: len(body) // 3])
            if trouble == "stall":
                time.sleep(2)
            return
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server during the block, in which downloads hardly pause between attempts."""
    with Server() as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "PAUSE", 0.01)
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def tgz(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info
