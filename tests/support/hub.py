"""A stand-in for the Hugging Face Hub with the HTTP that bundles need, without Git LFS and Xet.

A commit is a complete set of files, and its name is the SHA-1 of them all. Making a repository and
writing to it require the token ``secret``.
"""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "secret"
KINDS = ("file", "deletedFile")  # kinds of lines in a commit
Files = dict[str, bytes]


class Hub:
    """The content of the stand-in, and the requests that it has received.

    Attributes:
        address: its URL.
        commits: files of each commit, by repository and name.
        branches: the commit of each branch or tag, by repository.
        asked: every request's method and path.
    """

    def __init__(self) -> None:
        self.address = ""
        self.commits: dict[str, dict[str, Files]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []

    def commit(
        self, repo: str, files: Files, branch: str = "main", deleted: Collection[str] = ()
    ) -> str:
        """Add files to a branch, and delete some; return the name of the commit."""
        commits, branches = self.commits.setdefault(repo, {}), self.branches.setdefault(repo, {})
        tree = {**commits.get(branches.get(branch, ""), {}), **files}
        for name in deleted:
            del tree[name]
        parts = (f"{name}\0".encode() + tree[name] for name in sorted(tree))
        name = hashlib.sha1(b"\0".join(parts)).hexdigest()
        commits[name], branches[branch] = tree, name
        return name

    def files(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """Return the name and the files of the commit that a revision stands for."""
        name = self.branches.get(repo, {}).get(revision, revision)
        commit = self.commits.get(repo, {}).get(name)
        return None if commit is None else (name, commit)


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
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content

        def do_POST(self) -> None:
            body, path = self._body(), urlsplit(self.path).path
            hub.asked.append(f"POST {path}")
            if path == "/api/validate-yaml":
                self._answer(200, {"warnings": [], "errors": []})
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._answer(401, b"", X_Error_Message="Unauthorized")
            elif path == "/api/repos/create":
                settings = json.loads(body)
                repo = f"{settings['organization']}/{settings['name']}"
                exists = repo in hub.commits
                hub.commits.setdefault(repo, {})
                self._answer(409 if exists else 200, {"url": f"{hub.address}/{repo}"})
            else:
                self._write(path, body)

        def _write(self, path: str, body: bytes) -> None:
            repo, action, branch = path.removeprefix("/api/models/").rsplit("/", 2)
            if action == "preupload":
                names = [entry["path"] for entry in json.loads(body)["files"]]
                files = [
                    {"path": entry, "uploadMode": "regular", "shouldIgnore": False}
                    for entry in names
                ]
                self._answer(200, {"files": files})
                return
            lines = [json.loads(line) for line in body.splitlines()]
            kinds = {
                kind: [entry["value"] for entry in lines if entry["key"] == kind] for kind in KINDS
            }
            added = {entry["path"]: base64.b64decode(entry["content"]) for entry in kinds["file"]}
            deleted = [entry["path"] for entry in kinds["deletedFile"]]
            name = hub.commit(repo, added, branch, deleted)
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
            tree = hub.files(repo, revision)
            if tree is None:
                self._refuse("RevisionNotFound")
            elif name not in tree[1]:
                self._refuse("EntryNotFound", tree[0])
            else:
                content = tree[1][name]
                tag = f'"{hashlib.sha1(content).hexdigest()}"'
                self._answer(200, content, X_Repo_Commit=tree[0], ETag=tag)

        def _refuse(self, code: str, commit: str = "") -> None:
            headers = {"X_Repo_Commit": commit} if commit else {}
            self._answer(404, b"", X_Error_Code=code, **headers)

    return Handler


@contextlib.contextmanager
def running() -> Iterator[Hub]:
    """Run the stand-in during the block."""
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
