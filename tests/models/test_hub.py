"""Bundles on the Hugging Face Hub, against a stand-in of its HTTP interface."""

import base64
import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import fairseq_ext
from fairseq_ext.checkpoints import bundle
from fairseq_ext.demo import systems
from fairseq_ext.model import find_model
from fairseq_ext.utils.errors import CheckpointError, ConfigError, EnvironmentProblem
from tests.models.test_loaded import LINES
from tests.support import bundles
from tests.support.harness import contents, ended
from tests.support.harness import run as command

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
SHORT = {"max_len_b": 8}
REPO = "some-org/de-en"
TOKEN = "secret"
Files = dict[str, bytes]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Hub"

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
            self.close_connection |= self._is_cut()
            self.wfile.write(body[: len(body) // 2] if self._is_cut() else body)

    def _is_cut(self) -> bool:
        return bool(self.server.cut) and urlsplit(self.path).path.endswith(f"/{self.server.cut}")

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
        self.server.asked.append(f"POST {path}")
        if path == "/api/validate-yaml":
            self._answer(200, {"warnings": [], "errors": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, b"", X_Error_Message="Unauthorized")
        elif path == "/api/repos/create":
            settings = json.loads(body)
            repo = f"{settings['organization']}/{settings['name']}"
            exists = repo in self.server.commits
            self.server.commits.setdefault(repo, {})
            self._answer(409 if exists else 200, {"url": f"{self.server.address}/{repo}"})
        else:
            self._write(path, body)

    def _write(self, path: str, body: bytes) -> None:
        repo, action, branch = path.removeprefix("/api/models/").rsplit("/", 2)
        if action == "preupload":
            names = [entry["path"] for entry in json.loads(body)["files"]]
            how = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer(200, {"files": [{"path": name, **how} for name in names]})
            return
        lines = [json.loads(line) for line in body.splitlines()]
        added, deleted = {}, []
        for kind, value in ((line["key"], line["value"]) for line in lines):
            if kind == "file":
                added[value["path"]] = base64.b64decode(value["content"])
            elif kind == "deletedFile":
                deleted.append(value["path"])
        name = self.server.commit(repo, added, branch, deleted)
        url = f"{self.server.address}/{repo}/commit/{name}"
        self._answer(200, {"success": True, "commitOid": name, "commitUrl": url})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        repo, resolve, rest = path.strip("/").partition("/resolve/")
        if not resolve or repo not in self.server.commits:
            self._refuse("RepoNotFound")
            return
        revision, _, name = rest.partition("/")
        tree = self.server.files(repo, revision)
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


class Hub(ThreadingHTTPServer):
    """A stand-in for the Hub with the HTTP that bundles need, without Git LFS and Xet.

    A commit is a complete set of files, and its name is the SHA-1 of them all. Making a repository
    and writing to it require the token ``secret``.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.commits: dict[str, dict[str, Files]] = {}  # by repository and name
        self.branches: dict[str, dict[str, str]] = {}  # commits, by repository and branch or tag
        self.asked: list[str] = []  # every request's method and path
        self.cut = ""  # name of a file of which only half is sent

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


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a program for the engine, so that translating needs no fairseq."""
    return bundles.bundled(tmp_path_factory.mktemp("hub"), "transformer")


def use(address: str, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the library look for models at an address, with another cache."""
    patch.setattr(constants, "ENDPOINT", address)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    url = address + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that this process knows, with an empty cache."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    find_model._fetch.cache_clear()
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        use(hub.address, tmp_path / "cache", monkeypatch)
        yield hub
        find_model._fetch.cache_clear()
        huggingface_hub.close_session()  # at the end it would log to a stream that pytest closed
        hub.shutdown()


def test_there_and_back(bundled: Path, server: Hub, caplog: pytest.LogCaptureFixture):
    """All files in one commit; a branch is pinned to the commit that it is at."""
    first = find_model.push(bundled, REPO, private=True)
    assert server.commits[REPO] == {first: contents(bundled)}
    expected = fairseq_ext.load(bundled).translate(LINES, **SHORT)
    with caplog.at_level(logging.WARNING):
        assert fairseq_ext.load(REPO).translate(LINES, **SHORT) == expected
    assert f"{REPO} is at commit {first}; `{REPO}@{first}` always loads it." in caplog.text
    server.commit(REPO, {"bundle.json": b"{}"})
    assert fairseq_ext.load(REPO).translate(LINES, **SHORT) == expected  # one commit in a process
    caplog.clear()
    assert fairseq_ext.load(f"{REPO}@{first}").translate(LINES, **SHORT) == expected
    assert caplog.text == ""
    (named,) = systems.parse_systems([f"mine={REPO}@{first}"], None)
    assert bundle.read(named.data).files == bundle.read(bundled).files
    find_model._fetch.cache_clear()
    with pytest.raises(CheckpointError, match=r"bundle\.json has the format None"):
        fairseq_ext.load(REPO)


def test_a_commit_that_was_downloaded_needs_no_network(bundled: Path, server: Hub):
    commit = server.commit(REPO, contents(bundled), "v1")
    name = f"{REPO}@{commit}"
    folder = find_model.resolved(Path(name))
    assert find_model.resolved(Path(f"{REPO}@v1")) == folder
    assert folder.name == commit
    find_model._fetch.cache_clear()
    server.asked.clear()
    assert find_model.resolved(Path(name)) == folder
    assert server.asked == []


@pytest.mark.parametrize("name", ["bundle.json", "model.safetensors"])
def test_a_download_that_is_cut_short(bundled: Path, server: Hub, monkeypatch, name: str):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before the library's next attempt
    path = Path(f"{REPO}@{server.commit(REPO, contents(bundled))}")
    server.cut = name
    with pytest.raises((CheckpointError, EnvironmentProblem)):
        find_model.resolved(path)
    server.cut = ""
    folder = find_model.resolved(path)
    bundle.read(folder).check()
    assert contents(folder).items() <= contents(bundled).items()  # the card is not downloaded


def test_what_is_damaged_or_not_there(bundled: Path, server: Hub, monkeypatch: pytest.MonkeyPatch):
    server.commit("some-org/x", {**contents(bundled), "dict.de.txt": b"w1 1\n"})
    with pytest.raises(CheckpointError, match=r"dict\.de\.txt is damaged.*delete the folder "):
        fairseq_ext.load("some-org/x")
    server.commit(REPO, {"README.md": b""})
    server.commit(REPO, {"bundle.json": (bundled / "bundle.json").read_bytes()}, "partial")
    for name in ("no-org/x", REPO, f"{REPO}@v9", f"{REPO}@partial"):
        with pytest.raises(CheckpointError, match=f"{name} is not here, and no complete bundle on"):
            fairseq_ext.load(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="cannot be reached; check the name, or the net"):
        fairseq_ext.load("other-org/name")


@pytest.mark.parametrize("endpoint", ["https://hub.invalid", "http://127.0.0.1:1"])
def test_without_a_connection_nothing_is_tried_again(tmp_path: Path, monkeypatch, endpoint: str):
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    use(endpoint, tmp_path, monkeypatch)
    monkeypatch.setattr("time.sleep", None)  # the library sleeps before it tries again
    status, _, errors = ended("translate", "--model", REPO, "Hallo.")
    (line,) = errors.splitlines()
    assert f"{REPO} is not here, and {endpoint} cannot be reached; check the name" in line
    assert status == 1


def test_what_is_never_asked_for(server: Hub, tmp_path: Path):
    """Paths: of other forms, with the ending of a file, or into a folder that is here."""
    (tmp_path / "runs").mkdir()
    paths = ("runs/mine", "a/b/c", "nothing", "data/model.pt", "x/y.zip", "../x/y", "/x/y", "a/b@")
    assert [path for path in paths if find_model.hub_name(path)] == []
    assert find_model.hub_name("a/b@refs/pr/1") == ("a/b", "refs/pr/1")
    assert server.asked == []


def test_a_push_deletes_files_of_the_bundle_before_it(bundled: Path, server: Hub):
    """And only those: what somebody has put beside it stays, and so does what is gone already."""
    manifest = json.loads((bundled / "bundle.json").read_bytes())
    manifest["files"] |= dict.fromkeys(("former.model", "deleted.model"), "0" * 64)
    beside = {"LICENSE": b"free\n", "former.model": b"x"}
    former = {**contents(bundled), **beside, "bundle.json": json.dumps(manifest).encode()}
    old = server.commit(REPO, former)
    new = find_model.push(bundled, REPO)
    assert server.commits[REPO] == {old: former, new: {**contents(bundled), "LICENSE": b"free\n"}}
    unknown = server.commit(REPO, {"bundle.json": b"{}", "former.model": b"x"})
    assert "former.model" in server.commits[REPO][find_model.push(bundled, REPO)]
    assert unknown in server.commits[REPO]


def test_a_push_that_is_refused(bundled: Path, server: Hub, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "wrong")
    for path in (bundled, Path("tatoeba-es-en")):
        with pytest.raises((EnvironmentProblem, CheckpointError), match="`hf auth login`"):
            find_model.push(path, REPO)
    assert server.commits == {}
    with pytest.raises(ConfigError, match="the name on the Hub must be of the form org/name"):
        find_model.push(bundled, "name")
    with pytest.raises(ConfigError, match="is not a bundle; only bundles are pushed"):
        find_model.push(tmp_path, REPO)
    copy = Path(shutil.copytree(bundled, tmp_path / "copy"))
    (copy / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="checksum is wrong"):
        find_model.push(copy, REPO)


@pytest.mark.system
def test_commands(bundled: Path, server: Hub, tmp_path: Path):
    """``push``, then ``translate --model``, as processes that know HF_ENDPOINT alone."""
    home = str(tmp_path / "home")
    variables = {"HF_ENDPOINT": server.address, "HF_HOME": home, "HF_TOKEN": TOKEN}
    output = command("fairseq-ext", "push", bundled, REPO, **variables).stdout
    (commit,) = server.commits[REPO]
    assert output == f"{REPO}@{commit}\n"
    text = "".join(f"{line}\n" for line in LINES)
    words = ("fairseq-ext", "translate", "--model", REPO)
    done = command(*words, stdin=text, cwd=tmp_path, **variables)
    expected = fairseq_ext.load(bundled).translate(LINES)
    assert done.stdout.splitlines() == [translation.text for translation in expected]
    assert f"`{REPO}@{commit}` always loads it" in done.stderr
