"""A stand-in of the Hugging Face Hub: the part of its HTTP interface that bundles need.

Every commit is a whole set of files, whose name is the SHA-1 of its content. Repositories can be
made and written with the token ``secret`` alone.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "secret"
Files = dict[str, bytes]


class Hub:
    """What is on it.

    Attributes:
        address: where it answers.
        commits: files of each commit, by repository and name.
        branches: the commit of each branch or tag, by repository.
        asked: every request's method and path.
    """

    def __init__(self) -> None:
        self.address = ""
        self.commits: dict[str, dict[str, Files]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []

    def commit(self, repo: str, files: Files, branch: str = "main") -> str:
        """Add files to a branch; the name of the commit."""
        commits, branches = self.commits.setdefault(repo, {}), self.branches.setdefault(repo, {})
        whole = {**commits.get(branches.get(branch, ""), {}), **files}
        parts = (f"{name}\0".encode() + whole[name] for name in sorted(whole))
        name = hashlib.sha1(b"\0".join(parts)).hexdigest()
        commits[name], branches[branch] = whole, name
        return name

    def files(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """The commit that a revision means, and its files."""
        name = self.branches.get(repo, {}).get(revision, revision)
        found = self.commits.get(repo, {}).get(name)
        return None if found is None else (name, found)


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self, status: int, body: Any = b"", **headers: str) -> None:
            if not isinstance(body, bytes):
                body, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def do_POST(self) -> None:
            body, path = self._body(), urlsplit(self.path).path
            hub.asked.append(f"POST {path}")
            if path == "/api/validate-yaml":
                self._answer(200, {"warnings": [], "errors": []})
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._answer(401, b"", X_Error_Message="Unauthorized")
            elif path == "/api/repos/create":
                given = json.loads(body)
                repo = f"{given['organization']}/{given['name']}"
                there = repo in hub.commits
                hub.commits.setdefault(repo, {})
                self._answer(409 if there else 200, {"url": f"{hub.address}/{repo}"})
            else:
                self._write(path, body)

        def _write(self, path: str, body: bytes) -> None:
            repo, what, branch = path.removeprefix("/api/models/").rsplit("/", 2)
            if what == "preupload":
                names = [one["path"] for one in json.loads(body)["files"]]
                files = [
                    {"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in names
                ]
                self._answer(200, {"files": files})
                return
            lines = [json.loads(line) for line in body.splitlines()]
            added = [line["value"] for line in lines if line["key"] == "file"]
            name = hub.commit(
                repo, {one["path"]: base64.b64decode(one["content"]) for one in added}, branch
            )
            url = f"{hub.address}/{repo}/commit/{name}"
            self._answer(200, {"success": True, "commitOid": name, "commitUrl": url})

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            repo, resolve, rest = path.strip("/").partition("/resolve/")
            if not resolve or repo not in hub.commits:
                self._refuse("RepoNotFound")
                return
            revision, _, name = rest.partition("/")
            found = hub.files(repo, revision)
            if found is None:
                self._refuse("RevisionNotFound")
            elif name not in found[1]:
                self._refuse("EntryNotFound", found[0])
            else:
                content = found[1][name]
                tag = f'"{hashlib.sha1(content).hexdigest()}"'
                self._answer(200, content, X_Repo_Commit=found[0], ETag=tag)

        def _refuse(self, code: str, commit: str = "") -> None:
            more = {"X_Repo_Commit": commit} if commit else {}
            self._answer(404, b"", X_Error_Code=code, **more)

    return Handler


@contextlib.contextmanager
def running() -> Iterator[Hub]:
    """The stand-in, for as long as the block takes."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
