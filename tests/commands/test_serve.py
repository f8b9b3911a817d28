"""``fairseq-ext serve`` as a process: every answer, bad clients, signals, workers."""

import errno
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import struct
import sys
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fairseq_ext
from fairseq_ext.serving import pairs
from fairseq_ext.serving.settings import Settings
from tests.support.harness import error_line, forked, run, spawned, wait_for
from tests.support.serving import ENGLISH, Server, serving

for library in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(library)
LENGTH = 12  # tokens of a translation
BODY = json.dumps({"q": "1 2 3", **ENGLISH}).encode()


@pytest.fixture(scope="module")
def server(copy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that do not end it; at the end it must have logged no fault."""
    folder = tmp_path_factory.mktemp("serving")
    with serving(folder, copy_bundle, "--max-len-b", LENGTH, "--timeout", 600) as running:
        yield running
        output = running.end()
    assert "Traceback" not in output
    assert [path.name for path in folder.iterdir()] == ["serve.log"]


Translate = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def alone(copy_bundle: Path) -> Translate:
    """The model, without a server."""
    loaded = fairseq_ext.load(copy_bundle)
    return lambda lines: [x.text for x in loaded.translate(lines, max_len_b=LENGTH)]


def test_a_translation(server: Server, alone: Translate):
    lines = ["1 2 3", "", "9 9"]
    reply = server.translate("\n".join(lines), alternatives=2)
    assert reply.status == 200
    assert reply.body["translatedText"].split("\n") == alone(lines)
    assert [len(text.split("\n")) for text in reply.body["alternatives"]] == [3, 3]
    several = server.translate(lines, source="auto").body
    assert several["translatedText"] == alone(lines)
    assert several["detectedLanguage"] == [{"confidence": 0.0, "language": "src"}] * 3


def test_the_client_of_libretranslate(tmp_path: Path):
    """The Python library that LibreTranslate's users have, as it is."""
    library = pytest.importorskip("libretranslatepy")
    lines = ["Hola.", "", "¿Dónde está la biblioteca? & más"]
    texts = [translation.text for translation in fairseq_ext.load("tatoeba-es-en").translate(lines)]
    with serving(tmp_path, "tatoeba-es-en", "tatoeba-en-es", "--api-key", "key") as server:
        client = library.LibreTranslateAPI(server.address, "key")
        assert sorted(language["code"] for language in client.languages()) == ["en", "es"]
        assert client.translate("\n".join(lines), "es", "en").split("\n") == texts
        assert client.translate(lines[0], "auto", "en") == texts[0]
        if importlib.util.find_spec("sentence_splitter") is not None:
            several = client.translate(f"{lines[0]} {lines[2]}\n\n- {lines[0]} 😀", "es", "en")
            assert several == f"{texts[0]} {texts[2]}\n\n- {texts[0]} 😀"
        if importlib.util.find_spec("py3langid") is not None:
            assert client.detect(lines[2])[0]["language"] == "es"
        with pytest.raises(urllib.error.HTTPError, match="401") as failure:
            library.LibreTranslateAPI(client.url).translate("1", "es", "en")
        failure.value.close()  # it is a response, too, with an open connection


def test_the_other_addresses(server: Server):
    assert server.ask("/health").body == {"status": "ok"}
    assert server.ask("/health", method="HEAD").body == b""
    (language, other) = server.ask("/languages").body
    assert (language["code"], language["targets"]) == ("src", ["tgt"])
    assert (other["code"], other["targets"]) == ("tgt", [])
    assert "/translate" in server.ask("/openapi.json").body["paths"]
    for path, body, status in (("/redoc", None, 404), ("/static", None, 404), ("/health", {}, 405)):
        reply = server.ask(path, body)
        assert reply.status == status
        assert list(reply.body) == ["error"]
    assert "there are /, /docs" in server.ask("/redoc").body["error"]
    assert server.ask("/translate").body["error"] == "Method Not Allowed; use POST"
    for path, text in (("/", "<textarea"), ("/docs", f":{server.port}/translate")):
        page = server.ask(path)
        assert page.status == 200
        assert text in page.body.decode()
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    if importlib.util.find_spec("py3langid") is None:
        assert server.ask("/detect", {"q": "1"}).status == 501
    assert server.ask("/detect", {"q": " "}).status == 400
    assert server.ask("/health", Host="example.org").status == 403
    assert server.ask("/translate", {"q": "1"}, Origin="http://example.org").status == 403
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/x"):
        assert server.ask(path).status == 404


def test_odd_texts(server: Server):
    for text in ("\0", "\x85", "\u2028", "\ufeff", "\U0001f600", "a\rb", "@@ </s> <s>", "\u202e"):
        assert server.translate(text).status == 200


def test_every_reply_belongs_to_its_request(server: Server, alone: Translate):
    draw = random.Random(1)

    def sentence() -> str:
        return " ".join(str(draw.randrange(10)) for _ in range(draw.randint(1, 9)))

    requests = [[sentence() for _ in range(draw.randint(1, 12))] for _ in range(60)]
    with ThreadPoolExecutor(12) as clients:
        replies = list(clients.map(server.translate, requests))
    assert [reply.status for reply in replies] == [200] * len(requests)
    for lines, reply in zip(requests, replies, strict=True):
        assert reply.body["translatedText"] == alone(lines)


def test_clients_that_leave(server: Server):
    abandoned = 'fairseq_ext_requests_total{path="/translate",status="499"}'
    before = server.figure(abandoned)
    for reset in (False, True):
        with server.half_a_request(BODY) as client:
            if reset:
                off = struct.pack("ii", 1, 0)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, off)
    wait_for(lambda: server.figure(abandoned) == before + 2, server.process, 60)
    assert server.translate("1").status == 200
    assert server.figure("fairseq_ext_queue_sentences") == 0


def test_what_is_not_http(server: Server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_full_queue_and_a_slow_client(copy_bundle: Path, tmp_path: Path):
    limits = ("--max-queue", 1, "--max-sentences", 1, "--timeout", 2)
    with serving(tmp_path, copy_bundle, "--max-len-b", LENGTH, *limits) as server:
        with server.half_a_request(BODY) as client:
            reply = server.translate("1")
            assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
            assert list(reply.body) == ["error"]
            message = client.recv(1000)  # nothing more comes from here, so it is refused
            assert message.startswith(b"HTTP/1.1 408 ")
        assert server.translate("1").status == 200
        server.end()


def test_a_request_that_runs_is_answered_before_the_end(copy_bundle: Path, tmp_path: Path):
    with serving(tmp_path, copy_bundle, "--max-len-b", LENGTH) as server:
        with server.half_a_request(BODY) as client:
            server.process.send_signal(signal.SIGTERM)
            _wait_until_closed(server)
            client.sendall(BODY[len(BODY) // 2 :])
            assert client.makefile("rb").readline().startswith(b"HTTP/1.1 200 ")
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log.read_text()


def test_what_takes_longer_than_the_grace_is_refused(copy_bundle: Path, tmp_path: Path):
    with serving(tmp_path, copy_bundle, "--grace", 1) as server:
        with server.half_a_request(BODY) as client:
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
            assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_the_address_ends_with_0(how, copy_bundle, tmp_path):
    with serving(tmp_path, copy_bundle, "--no-split-sentences") as server:
        assert not server.end(how)


SIGNALLED = """
import os, signal, sys
from asyncio import unix_events
from fairseq_ext import cli
init = unix_events._UnixSelectorEventLoop.__init__
def signalled(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    init(*arguments)
unix_events._UnixSelectorEventLoop.__init__ = signalled
cli.main(["serve", sys.argv[1], "--port", "0"])
"""
"""A server that gets a signal while asyncio makes its loop."""


def test_a_signal_while_the_loop_is_made_leaves_no_message(copy_bundle: Path):
    done = run(sys.executable, "-c", SIGNALLED, copy_bundle, timeout=120)
    assert done.stderr == ""


def test_pages_of_another_origin(copy_bundle: Path, tmp_path: Path):
    page = "http://example.org"
    with serving(tmp_path, copy_bundle, "--cors", page, "--allow-host", "Example.net") as server:
        reply = server.ask("/translate", {"q": "1", **ENGLISH}, Origin=page)
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, page)
        asked_first = {"Origin": page, "Access-Control-Request-Method": "POST"}
        assert server.ask("/translate", method="OPTIONS", **asked_first).status == 200
        assert server.ask("/health", Host="example.net").status == 200
        assert server.ask("/translate", {"q": "1"}, Origin="http://example.com").status == 403


@pytest.mark.parametrize(("workers", "status"), [(1, 128 + signal.SIGTERM), (2, 1)])
def test_a_second_signal_ends_at_once(workers: int, status: int, copy_bundle: Path, tmp_path: Path):
    with (
        serving(tmp_path, copy_bundle, "--workers", workers) as server,
        server.half_a_request(BODY),
    ):
        server.process.send_signal(signal.SIGTERM)
        _wait_until_closed(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == status


def _wait_until_closed(server: Server) -> None:
    def refused() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", server.port)) == errno.ECONNREFUSED

    wait_for(refused, server.process, 60)


def test_workers(copy_bundle: Path, tmp_path: Path, alone: Translate):
    translated = 'fairseq_ext_requests_total{path="/translate",status="200"}'
    command = (copy_bundle, "--max-len-b", LENGTH, "--workers", 2)
    with serving(tmp_path, *command) as server:
        with ThreadPoolExecutor(8) as clients:
            replies = list(clients.map(server.translate, ["1 2"] * 40))
        assert {reply.body["translatedText"] for reply in replies} == {*alone(["1 2"])}
        # A worker counts a request once its reply has been sent.
        wait_for(lambda: server.figure(translated) == 40, server.process, 60)
        assert {server.figure(translated) for _ in range(10)} == {40}  # whichever is asked

        before = spawned(server.process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        wait_for(lambda: len({*spawned(server.process.pid)} - {*before}) == 1, server.process, 120)
        assert server.translate("1 2").status == 200
        wait_for(lambda: server.figure(translated) == 41, server.process, 60)
        output = server.end()
    assert "Traceback" not in output
    assert [path.name for path in tmp_path.iterdir()] == ["serve.log"]


def test_a_checkpoint(copy_model: Path, copy_data: Path, tmp_path: Path, alone: Translate):
    options = ("--data", copy_data, "--max-len-b", LENGTH)
    with serving(tmp_path, copy_model, *options, program=forked("fairseq-ext")) as server:
        lines = ["1 2 3", "9 9", "4"]
        with ThreadPoolExecutor(4) as clients:
            replies = list(clients.map(server.translate, lines * 4))
        assert [reply.body["translatedText"] for reply in replies] == alone(lines) * 4
        assert "Traceback" not in server.end()


def test_a_folder_of_dictionaries_is_for_the_checkpoints_alone(copy_data, copy_model):
    bundle = Path(fairseq_ext.__file__).parent / "shipped" / "tatoeba-es-en"
    served = pairs.load(Settings(models=[copy_model, bundle], data=copy_data))
    assert [*served.models] == [("src", "tgt"), ("es", "en")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", 0), "`--workers` must be at least 1, but is 0"),
        (("--api-key-file", "none"), "`none` does not exist or is not a file"),
        (("--beam", 0), "`--beam` must be at least 1"),
        (("--host", "192.0.2.1"), "`--host` and `--port` must be"),
        (("--data", "none"), "the folder none has no effect on bundles, which have dictionaries"),
        (("twin",), "but twin translates from src to tgt as an earlier one does."),
        (("other",), "other"),
    ],
)
def test_what_cannot_be_served(copy_bundle, tmp_path, words, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text("")
    shutil.copytree(copy_bundle, tmp_path / "twin")
    assert message in error_line("serve", copy_bundle, *words, "--port", 0)
