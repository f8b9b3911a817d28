"""The parts of ``fairseq-ext serve`` with a translator that waits until a test lets it go on."""

import asyncio
import contextlib
import functools
import gc
import json
import re
import socket
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from starlette.requests import Request
from starlette.responses import Response

from fairseq_ext.commands import serve
from fairseq_ext.decoding.search import Candidate, Counts
from fairseq_ext.decoding.stream import TextCodec
from fairseq_ext.serving import server
from fairseq_ext.serving.app import Service
from fairseq_ext.serving.batching import Batcher, Sentence
from fairseq_ext.serving.metrics import FOLDER, Metrics
from fairseq_ext.serving.origins import OriginFilter
from fairseq_ext.serving.pairs import Pairs, Served
from fairseq_ext.serving.requests import (
    GONE,
    Refusal,
    check_key,
    parse_fields,
    parse_query,
    read_body,
)
from fairseq_ext.serving.settings import Limits, Settings
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.languages import matching_code
from fairseq_ext.text.placeholders import Keeper
from fairseq_ext.text.sentences import SentenceSplitter, sentence_splitter
from fairseq_ext.utils import option_fields
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.parsing import Parser

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class Model:
    """Writes a sentence in capitals with its rank; while it is ``held``, a batch waits for `go`."""

    limit, limit_name = 5, "the model takes"

    def __init__(self, src: str = "de", tgt: str = "en") -> None:
        self.src, self.tgt, self.counts = src, tgt, Counts()
        self.batches: list[list[str]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.held = False

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        return [len(sentence.split()) + 1 for sentence in sentences]

    def translate(self, sentences: Sequence[str]) -> list[list[Candidate]]:
        self.batches.append([*sentences])
        self.begun.release()
        if self.held:
            self.go.acquire()
        if "poison" in sentences:
            raise ValueError("a fault")
        return [
            [Candidate(f"{sentence.upper()} {rank}", 0.0) for rank in (0, 1)]
            for sentence in sentences
        ]

    async def is_at_work(self) -> None:
        """Wait until another batch has begun."""
        await asyncio.to_thread(self.begun.acquire)

    def let_go(self) -> None:
        """Go on with the batch that is held, and hold no other."""
        self.held = False
        self.go.release()


def asynchronous(test: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A function that awaits, which has a minute."""

    @functools.wraps(test)
    def run(*words: object, **fixtures: object) -> Any:
        return asyncio.run(asyncio.wait_for(test(*words, **fixtures), 60))

    return run


def batcher(**settings: int) -> Batcher:
    return Batcher(Metrics(), **{"room": 100, "batch_size": 4, "max_tokens": 100, **settings})


def sentences(*texts: str) -> list[Sentence]:
    return [Sentence(text, len(text.split()) + 1) for text in texts]


def best(nbest_lists: Sequence[Sequence[Candidate]]) -> list[str]:
    return [nbest[0].tokens for nbest in nbest_lists]


async def waits(queue: Batcher, count: int) -> None:
    while queue.waiting != count:
        await asyncio.sleep(0)


@contextlib.contextmanager
def refused(status: int, words: str = "") -> Iterator[pytest.ExceptionInfo[Refusal]]:
    """A block that ends in a refusal of this status, in one line that has these words."""
    with pytest.raises(Refusal) as refusal:
        yield refusal
    assert refusal.value.status == status
    assert words in refusal.value.text
    assert "\n" not in refusal.value.text


@contextlib.asynccontextmanager
async def waiting(
    queue: Batcher, model: Model, *requests: tuple[Model, Sequence[str]]
) -> AsyncIterator[list[asyncio.Task]]:
    """Requests that wait while the batch of a first one, of the sentence "a", is held."""
    model.held = True
    async with queue.running():
        tasks = [asyncio.create_task(queue.translate(model, sentences("a")))]
        await model.is_at_work()
        for other, texts in requests:
            tasks.append(asyncio.create_task(queue.translate(other, sentences(*texts))))
        await waits(queue, sum(len(texts) for _, texts in requests))
        yield tasks


@asynchronous
async def test_requests_that_wait_are_translated_together_and_keep_their_order():
    model, queue = Model(), batcher()
    async with waiting(queue, model, (model, "bcdef"), (model, "xy")) as (first, long, short):
        model.let_go()
        assert best(await first) == ["A 0"]
        assert best(await short) == ["X 0", "Y 0"]
        assert best(await long) == ["B 0", "C 0", "D 0", "E 0", "F 0"]
    assert model.batches == [["a"], ["b", "x", "c", "y"], ["d", "e", "f"]]
    assert queue.waiting == 0


@asynchronous
async def test_a_batch_has_at_most_so_many_tokens_and_is_of_one_model():
    model, other, queue = Model(), Model("en", "de"), batcher(max_tokens=6)
    long = " ".join("e" * 9)
    requests = (model, ["b b"]), (other, ["c"]), (model, ["d d"]), (model, [long])
    async with waiting(queue, model, *requests) as tasks:
        model.let_go()
        results = await asyncio.gather(*tasks)
    assert [best(result)[0][0] for result in results] == [*"ABCDE"]
    assert model.batches == [["a"], ["b b", "d d"], [long]]
    assert other.batches == [["c"]]


@asynchronous
async def test_what_nobody_waits_for_is_not_translated():
    model, queue = Model(), batcher()
    async with waiting(queue, model, (model, "bc"), (model, "d")) as (first, left, pending):
        left.cancel()
        await waits(queue, 1)
        first.cancel()  # under way: its result is nobody's
        model.let_go()
        assert best(await pending) == ["D 0"]
    assert model.batches == [["a"], ["d"]]


@asynchronous
async def test_a_full_queue_takes_no_more_until_there_is_room():
    model, queue = Model(), batcher(room=2)
    async with waiting(queue, model, (model, "bc")) as tasks:
        with refused(429):
            await queue.translate(model, sentences("d"))
        model.let_go()
        await asyncio.gather(*tasks)
        assert best(await queue.translate(model, sentences("e"))) == ["E 0"]
        assert await queue.translate(model, []) == []


@asynchronous
async def test_a_fault_of_one_sentence_is_no_other_requests():
    model, queue = Model(), batcher()
    requests = (model, ["b", "poison"]), (model, "c")
    async with waiting(queue, model, *requests) as (first, bad, good):
        model.let_go()
        await first
        assert best(await good) == ["C 0"]
        with refused(500):
            await bad
    assert queue.waiting == 0


@asynchronous
async def test_a_changed_model_ends_requests_by_its_name(caplog: pytest.LogCaptureFixture):
    fault = "m/model.safetensors has changed; start the command again."
    model, queue = Mock(**{"translate.side_effect": DataError(fault)}), batcher()
    async with queue.running():
        for _ in range(2):
            with refused(503):
                await queue.translate(model, sentences("a", "b"))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [fault]


@asynchronous
async def test_any_other_fault_ends_its_batch_alone():
    """Here answers that are too few; the requests of the next batch are translated."""
    forgetful, queue = Mock(**{"translate.return_value": []}), batcher()
    async with queue.running():
        with refused(500):
            await queue.translate(forgetful, sentences("a", "b"))
        assert best(await queue.translate(Model(), sentences("c"))) == ["C 0"]


def request(
    *parts: bytes, kind: str = JSON, complete: bool = True, stays: bool = True, **headers: str
) -> Request:
    """One whose body comes in parts; afterwards the client stays, or closes the connection."""
    events: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": place + 1 < len(parts) or not complete}
        for place, part in enumerate(parts)
    ]

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop(0)
        if stays:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    named = {"content-type": kind, **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "method": "POST", "path": "/translate", "headers": raw, "app": None}
    return Request(scope, receive)


def asking(**fields: object) -> Request:
    return request(json.dumps({"source": "de", "target": "en", **fields}).encode())


@contextlib.asynccontextmanager
async def service_of(*models: Served, limits: Limits | None = None) -> AsyncIterator[Service]:
    """A service of these models, whose queue has the room that the limits say."""
    limits = limits or Limits()
    queue = batcher(room=limits.max_queue)
    pairs = Pairs({str(number): model for number, model in enumerate(models)})
    async with queue.running():
        yield Service(pairs, Settings(models=[], limits=limits), queue)


async def reply(service: Service, query: Request) -> dict[str, Any]:
    """The content of the answer to a request."""
    return json.loads((await service.translate(query)).body)


def served(model: Model, *, held: bool = False) -> Served:
    """A model to serve, with two translations of each sentence."""
    model.held = held
    return Served(model, TextCodec(plain, str.strip), 2)


@asynchronous
async def answers(*requests: Request, limits: Limits | None = None) -> list[dict[str, Any]]:
    """What a service of three models replies to requests, one after another."""
    models = (Model(), Model("fr", "en"), Model("en", "de"))
    async with service_of(*map(served, models), limits=limits) as service:
        return [await reply(service, incoming) for incoming in requests]


def test_lines_are_translated_alone_and_empty_ones_kept():
    texts = ("a b\n\n c\r\n\u200b\nd", ["a", "", "b\nc"])
    single, several = answers(*(asking(q=text, alternatives=1) for text in texts))
    assert single["translatedText"] == "A B 0\n\nC 0\n\nD 0"
    assert single["alternatives"] == ["A B 1\n\nC 1\n\nD 1"]
    assert several["translatedText"] == ["A 0", "", "B 0\nC 0"]
    assert several["alternatives"] == [["A 1"], [], ["B 1\nC 1"]]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"q": "a b c d e"}, 413, "line 1: 6 source tokens, but the model takes at most 5. Split"),
        ({"q": ["a", "b\na b c d e"]}, 413, "text 2, line 2: 6 source tokens"),
        ({"q": "a " * 100}, 413, "200 characters, but at most 50"),
        ({"q": "\n" * 10}, 413, "11 lines, but at most 10"),
        ({"q": [""] * 11}, 413, "11 texts, but at most 10"),
        ({"q": "a", "alternatives": 2}, 400, "`alternatives` must be at most 1, but is 2"),
        ({"q": "a", "alternatives": -1}, 400, "`alternatives`"),
        ({"q": "a", "target": "xx"}, 400, "de to xx is not supported"),
        ({"q": "a", "source": "auto"}, 400, "`source` must be one of de, fr"),
        ({"q": "a", "source": "auto", "target": "xx"}, 400, "auto to xx is not supported"),
        ({"q": "<p>a</p>a b c d e", "format": "html"}, 413, "paragraph 3: 6 source tokens"),
        ({"q": "a", "format": "pdf"}, 400, "`format` must be `text` or `html`"),
        ({"q": 7}, 400, "`q`"),
        ({"q": {"a": 1}}, 400, "`q`"),
        ({"q": ["a", 1]}, 400, "`q`"),
        ({"q": "a", "source": 7}, 400, "`source`"),
        ({}, 400, "missing q parameter"),
    ],
)
def test_what_is_refused(fields: dict, status: int, words: str):
    with refused(status, words):
        answers(asking(**fields), limits=Limits(max_chars=50, max_sentences=10))


HTML_TEXTS = {
    "<p id='x'>a <b>b</b></p>\n<p>c &amp; d</p>": "<p id='x'>A <b>B</b></p>\n<p>C &amp; D</p>",
    "<ul><li>a<li>b<br/>c</ul>": "<ul><li>A<li>B<br/>C</ul>",
    "<style>p { a: b }</style><!-- a -->a": "<style>p { a: b }</style><!-- a -->A",
    "a\nb <i></i> &lt;c&gt;": "A B <i></i> &lt;C&gt;",
    "<pre>a\nb</pre> <p> </p>": "<pre>a\nb</pre> <p> </p>",
    "<P>a</P >b<script>c": "<P>A</P >B<script>c",
    "<p id=it's>a</p><p id=it's>b": "<p id=it's>A</p><p id=it's>B",
    "<p id = 'c>d' e>a</p><p id=\"c>d\">b": "<p id = 'c>d' e>A</p><p id=\"c>d\">B",
    "a<![if !vml]>b<![endif]><?= c ?>d<!-->e": "A<![if !vml]>B<![endif]><?= c ?>D<!-->E",
    "a < b &c <d": "A &lt; B &amp;C &lt;D",
}


@pytest.mark.parametrize("drops_numbers", [False, True])
@asynchronous
async def test_html_keeps_its_markup_and_only_its_text_is_translated(drops_numbers: bool):
    def decode(tokens: str) -> str:
        text = re.sub(r" [01]$", "", tokens)  # without the rank
        return re.sub(r" *20[12][0-9]", "", text) if drops_numbers else text

    model = Model()
    model.limit = 50
    async with service_of(Served(model, TextCodec(plain, decode), 2)) as service:
        answer = await reply(service, asking(q=[*HTML_TEXTS, "a\n\nb"], format="html"))
    assert answer["translatedText"] == [*HTML_TEXTS.values(), "A B"]


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        (" <b>One.</b> <i>Two.</i> ", [" <b>One.</b>", "<i>Two.</i> "]),
        ("<b>One. Two.</b>", ["<b>One.", "Two.</b>"]),
        ('One <img alt="A.  B"> two. Three', ['One <img alt="A.  B"> two.', "Three"]),
        ("Use ⸂ and ⸃. Two.", ["Use ⸂ and ⸃. Two."]),
        (" ", [" "]),
    ],
)
def test_sentences_of_html_keep_their_tags(paragraph: str, sentences: list[str]):
    pytest.importorskip("sentence_splitter")
    splitter = sentence_splitter("en", "de")
    keeper = Keeper((), markup=True)
    assert keeper.split_by(splitter.split)(paragraph) == sentences
    assert keeper.split_by(lambda line: [line])(paragraph) == [paragraph]


def test_the_only_model_of_a_target_needs_no_source():
    auto = {"source": "auto", "target": "de"}
    single, several = answers(asking(q="a", **auto), asking(q=["a", "b"], **auto))
    detected = {"confidence": 0.0, "language": "en"}
    assert single == {"translatedText": "A 0", "detectedLanguage": detected}
    assert several == {"translatedText": ["A 0", "B 0"], "detectedLanguage": [detected] * 2}


BODY = b'{"q": "a", "source": "de", "target": "en"}'


@asynchronous
async def test_a_client_that_leaves_is_told_nothing():
    async with service_of(served(Model())) as service:
        for body, complete in ((BODY[:9], False), (BODY, True)):
            with refused(GONE):
                await reply(service, request(body, complete=complete, stays=False))
        assert await reply(service, request(BODY)) == {"translatedText": "A 0"}


@asynchronous
async def test_what_takes_too_long_is_refused():
    model = Model()
    async with service_of(served(model, held=True), limits=Limits(timeout=0.01)) as service:
        for incoming, status in ((request(BODY), 503), (request(BODY[:9], complete=False), 408)):
            with refused(status):
                await reply(service, incoming)
        model.let_go()


@asynchronous
async def test_a_server_that_ends_says_so():
    model = Model()
    async with service_of(served(model, held=True)) as service:
        task = asyncio.create_task(reply(service, request(BODY)))
        await model.is_at_work()
        task.cancel()  # as uvicorn does when the grace has passed
        with refused(503):
            await task
        model.let_go()


@asynchronous
async def test_a_full_queue_refuses_before_a_body_is_read():
    model, limits = Model(), Limits(max_queue=1, max_sentences=1)
    async with service_of(served(model, held=True), limits=limits) as service:
        tasks = [asyncio.create_task(reply(service, request(BODY)))]
        await model.is_at_work()
        tasks.append(asyncio.create_task(reply(service, request(BODY))))
        await waits(service._batcher, 1)
        unread = request(BODY)
        with refused(429) as refusal:
            await reply(service, unread)
        assert refusal.value.headers["Retry-After"] == "1"
        assert await unread.body() == BODY
        model.let_go()
        assert await asyncio.gather(*tasks) == [{"translatedText": "A 0"}] * 2


def read(incoming: Request) -> bytes:
    return asyncio.run(read_body(incoming, Limits(max_body=100, timeout=60)))


def test_a_body_has_at_most_so_many_bytes():
    assert read(request(b"ab", b"", b"c")) == b"abc"
    assert read(request(b"x" * 100)) == b"x" * 100
    endless = request(*[b"x" * (1 << 20)] * 40, complete=False)
    never = request(complete=False, content_length="101", expect="100-continue")  # not sent yet
    declared = request(b"x", content_length="101")
    for incoming in (request(b"x" * 60, b"x" * 41), declared, endless, never):
        with refused(413) as refusal:
            read(incoming)
        assert refusal.value.headers == {"Connection": "close"}


def fields(body: bytes, kind: str = JSON) -> dict[str, Any]:
    return asyncio.run(parse_fields(request(body, kind=kind), body))


def test_json_and_both_forms_say_the_same():
    part = '--B\r\nContent-Disposition: form-data; name="q"\r\n\r\n{}\r\n'
    multipart = (part.format("ä b") + part.format("c") + "--B--\r\n").encode()
    expected = {"q": ["ä b", "c"]}
    assert fields('{"q": ["ä b", "c"]}'.encode(), f"{JSON}; charset=utf-8") == expected
    assert fields(b"q=%C3%A4+b&q=c", FORM) == expected
    assert fields(multipart, "multipart/form-data; boundary=B") == expected
    assert fields("q=ä b&q=c".encode(), FORM) == expected  # as curl sends it
    assert fields(b"q=a", FORM) == {"q": "a"}


FILE_IN_A_FORM = b'--B\r\nContent-Disposition: form-data; name="q"; filename="f"\r\n\r\na\r\n--B--'


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"q": ', JSON, 400),
        (b"[]", JSON, 400),
        (b"\xff", JSON, 400),
        (b"", JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b'{"q": "\\ud800"}', JSON, 400),
        (b'{"q": NaN}', JSON, 400),
        (b'{"q": ' + b"9" * 10_000 + b"}", JSON, 400),
        (b"a=1&" * 2_000, FORM, 400),
        (b"q=\xff", FORM, 400),
        (b"q=%ff", FORM, 400),
        (b"not a form", "multipart/form-data; boundary=B", 400),
        (b"q=a", "multipart/form-data", 400),
        (FILE_IN_A_FORM, "multipart/form-data; boundary=B", 400),
        (b"--B--", "multipart/form-data; boundary=B; charset=punycode", 415),
        (b"--B--", "multipart/form-data; boundary=B; charset=a\0b", 415),
        (b"q", "text/plain", 415),
        (b"q", "", 415),
    ],
)
def test_bodies_that_are_damaged(body: bytes, kind: str, status: int):
    with refused(status):
        fields(body, kind)


def test_keys():
    check_key({}, ())
    check_key({"api_key": "b"}, ("a", "b"))
    for sent_fields, status in (({}, 401), ({"api_key": ""}, 401), ({"api_key": "c"}, 403)):
        with refused(status):
            check_key(sent_fields, ("a", "b"))
    for odd in (7, ["a"], "\ud800"):
        with refused(403):
            check_key({"api_key": odd}, ("a",))


def serve_settings(*words: str) -> Settings:
    parser = Parser()
    serve.add(parser.add_subparsers())
    return option_fields.from_args(Settings, parser.parse_args(["serve", *words]))


def test_keys_of_options_file_and_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(serve.KEY, raising=False)
    (tmp_path / "keys").write_text("one\n\ntwo\n")
    assert serve._keys(serve_settings("m", "--api-key-file", f"{tmp_path}/keys")) == ["one", "two"]
    monkeypatch.setenv(serve.KEY, "kä")
    assert serve._keys(serve_settings("m", "--api-key", "b")) == ["b", "kä"]


@pytest.mark.parametrize(
    ("words", "warns"),
    [((), False), (("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False)],
)
def test_a_server_for_everybody_without_a_key_warns(words, warns, monkeypatch, capsys):
    monkeypatch.delenv(serve.KEY, raising=False)
    monkeypatch.setattr(server, "application", lambda settings: None)
    monkeypatch.setattr(server, "serve", lambda loaded, settings, listener: listener.close())
    serve.serve(serve_settings("m", "--port", "0", "--no-split-sentences", *words))
    out, err = capsys.readouterr()
    port = out.strip().rpartition(":")[2]
    assert err.count("\n") == warns
    assert (f"anybody who reaches port {port} of this machine can translate" in err) == warns


@pytest.mark.parametrize("library", [None, object()])
def test_lines_are_split_by_default_if_the_library_is_there(library, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: library)
    assert serve._splits(serve_settings("m")) == (library is not None)
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == (library is None)
    assert all("pip install 'fairseq-ext[sentences]'" in note for note in notes)
    assert serve._splits(serve_settings("m", "--split-sentences"))
    assert not serve._splits(serve_settings("m", "--no-split-sentences"))
    assert not capsys.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_only_watches_keeps_no_models(workers: int, monkeypatch: pytest.MonkeyPatch):
    references = []

    def build(settings: Settings) -> Mock:
        application = Mock()
        references.append(weakref.ref(application))
        return application

    def alive(factory: Any, settings: Any, listener: socket.socket) -> bool:
        listener.close()
        gc.collect()
        return references[0]() is not None

    monkeypatch.setattr(server, "application", build)
    monkeypatch.setattr(server, "serve", alive)
    request = serve_settings("m", "--port", "0", "--workers", str(workers))
    assert serve.serve(request) == (workers == 1)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        *((written, "es") for written in ("es", "ES", "es-MX", "es_419", "spa", "spa_Latn")),
        *(("pt_br", "pt-BR"), ("PT-PT", "pt-PT"), ("pt", None), ("pt-AO", None)),
        *(("zh", "zh_Hans"), ("zh-CN", "zh_Hans"), ("zh-Hant-TW", None), ("zh-hans-CN", "zh_Hans")),
        *(("zh-TW", None), ("zh_HK", None), ("zt", None), ("ZH-SG", "zh_Hans"), ("zho", "zh_Hans")),
        *(("e", None), ("est", None), ("", None), ("-", None)),
    ],
)
def test_languages_as_people_write_them(language: str, code: str | None):
    codes = ("es", "pt-BR", "pt-PT", "zh_Hans")
    assert matching_code(language, codes) == code
    pairs = Pairs({other: served(Model(other, "en")) for other in codes})
    if code:
        assert pairs.find(language, "EN-us") == (code, pairs.models[code, "en"])
    else:
        with refused(400, "to en is not supported, but es to en, pt-BR to en"):
            pairs.find(language, "EN-us")


@pytest.mark.parametrize("language", ["zh-TW", "zt", "zh_HK", "zh-Hant", "ZHO_hant"])
def test_a_region_of_chinese_says_the_script(language: str):
    assert matching_code(language, ("zh-Hans", "zh-Hant")) == "zh-Hant"
    assert matching_code(language, ("zh-TW", "zh-CN")) == "zh-TW"
    assert matching_code(language, ("zh",)) == "zh"


def test_languages_have_names_and_targets():
    pytest.importorskip("babel")
    pairs = Pairs({"a": served(Model("de", "zz"))})
    german, other = pairs.languages
    assert german == {"code": "de", "name": "German", "targets": ["zz"]}
    assert other == {"code": "zz", "name": "zz", "targets": []}


def test_figures():
    metrics = Metrics()
    metrics.answered("/translate", 200, 0.1)
    metrics.answered("/an/address/of/a/client", 404, 0.1)
    metrics.translated([3, 2], [[Candidate("a b", 0.0)], None])
    assert {
        'fairseq_ext_requests_total{path="/translate",status="200"} 1.0',
        'fairseq_ext_requests_total{path="other",status="404"} 1.0',
        'fairseq_ext_tokens_total{side="source"} 5.0',
        'fairseq_ext_tokens_total{side="target"} 3.0',
        "fairseq_ext_failed_sentences_total 1.0",
        "fairseq_ext_batch_sentences_sum 2.0",
    } <= {*metrics.page().decode().splitlines()}


def test_a_missing_detector_of_languages_is_named(monkeypatch: pytest.MonkeyPatch):
    def reason() -> str:
        with refused(501, "Languages cannot be detected") as refusal:
            Pairs({"a": served(Model("zz", "en"))}).detect("text")
        return refusal.value.text

    monkeypatch.setitem(sys.modules, "py3langid", None)
    assert "pip install" in reason()
    library = Mock(__spec__=ModuleSpec("py3langid", None))
    library.langid.LanguageIdentifier.from_model_file.return_value.labels = ["de"]
    monkeypatch.setitem(sys.modules, "py3langid", library)
    monkeypatch.setitem(sys.modules, "py3langid.langid", library.langid)
    assert "py3langid does not know zz" in reason()


def test_figures_while_a_worker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    works = MmapedDict(str(tmp_path / "counter_1.db"))
    works.write_value(mmap_key("requests", "requests_total", [], [], ""), 40.0, 0.0)
    (tmp_path / "counter_2.db").touch()  # it has a file, which has no size yet
    assert b"requests_total 40.0" in Metrics().page().splitlines()


def test_null_and_blank_fields_are_what_the_server_takes():
    blank = {"q": "Hola.", "source": "es", "target": "en", "api_key": None, "format": ""}
    query = parse_query({**blank, "alternatives": None})
    assert (query.format, query.alternatives) == ("text", 0)
    assert parse_query({**blank, "q": ""}).texts == [""]
    assert parse_query({**blank, "alternatives": "2"}).alternatives == 2  # of a form
    for name in ("q", "source", "target"):
        with refused(400, f"missing {name} parameter"):
            parse_query({**blank, name: None})


def test_pages_from_elsewhere_are_refused():
    def status(host: str | None, origin: str | None, names: tuple = (), origins: tuple = ()) -> int:
        """The status of the answer to a page of the origin; of the application it is 200."""
        messages = []

        async def send(message: dict) -> None:
            messages.append(message)

        headers = ((b"host", host), (b"origin", origin))
        encoded = [(name, value.encode()) for name, value in headers if value is not None]
        scope = {"type": "http", "method": "POST", "path": "/translate", "headers": encoded}
        asyncio.run(OriginFilter(Response(), names, origins)(scope, None, send))
        return messages[0]["status"]

    for host in ("127.0.0.1:5000", "[::1]:5000", "localhost", "LocalHost:1", "10.0.0.7:5000"):
        assert status(host, None) == 200
        assert status(host, f"http://{host}") == 200
        assert status(host, "http://example.org") == 403
        assert status(host, "null") == 403
    for host in ("example.org", "example.org:1", "127.0.0.1.example.org", "", "[", "::1"):
        assert status(host, None) == 403
    assert status("example.org", None, names=("example.org",)) == 200
    assert status("example.org", None, names=("*",)) == 200
    assert status(None, None) == 403
    assert status(None, None, names=("*",)) == 200
    assert status(None, "http://example.org", names=("*",)) == 403
    assert status("localhost", "http://example.org", origins=("http://example.org",)) == 200
    assert status("localhost", "http://example.net", origins=("http://example.org",)) == 403
    assert status("localhost", "http://example.net", origins=("*",)) == 200


@asynchronous
async def test_lines_that_wait_to_become_tokens_count_as_waiting():
    release = threading.Event()

    def slow(line: str) -> str:
        release.wait(20)
        return line

    model = Served(Model(), TextCodec(slow, str), 1)
    async with service_of(model, limits=Limits(max_queue=3, max_sentences=3)) as service:
        first = asyncio.create_task(reply(service, asking(q="a\nb\nc")))
        while service._reserved != 3:
            await asyncio.sleep(0.01)
        with refused(429):
            await reply(service, asking(q="d"))
        release.set()
        assert len((await first)["translatedText"].split("\n")) == 3
        assert not service._reserved


@asynchronous
async def test_sentences_of_a_line_are_translated_alone_and_joined():
    splitter = SentenceSplitter(lambda line: line.split("|"), " / ")
    model = replace(served(Model()), splitter=splitter)
    async with service_of(model, limits=Limits(max_sentences=3)) as service:
        answer = await reply(service, asking(q="a|b\n\nc", alternatives=1))
        alone = await reply(service, asking(q=["a", "b", "c"], alternatives=1))
        with refused(413, "has 4 sentences, but at most 3 are translated"):
            await reply(service, asking(q="a|b|c|d"))
    first, second, third = alone["translatedText"]
    assert answer["translatedText"] == f"{first} / {second}\n\n{third}"
    (first,), (second,), (third,) = alone["alternatives"]
    assert answer["alternatives"] == [f"{first} / {second}\n\n{third}"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key": ""}, "`--api-key` must not be empty; leave it out if"),
        ({"allow_host": ["example.org", "https://example.org"]}, "`--allow-host` must be a host"),
        ({"allow_host": ["example.org:80"]}, "must be a host name in ASCII without port"),
        ({"cors": ["*", "example.org"]}, "`--cors` must be an origin"),
        ({"cors": ["https://example.org/"]}, "must be an origin in small letters without path"),
        ({"cors": ["https://Example.org"]}, "but is `https://Example.org` instead"),
        ({"limits": Limits(max_chars=0)}, "`--max-chars` must be above 0"),
        ({"limits": Limits(timeout=float("nan"))}, "`--timeout` must be above 0"),
        ({"limits": Limits(max_queue=5)}, "`--max-queue` must be at least `--max-sentences`"),
    ],
)
def test_settings_that_no_server_can_have_are_refused(options: dict, message: str):
    hosts = ["https://a-b.example.org:80", "http://[::1]:8000", "http://localhost"]
    origins = ["*", "null", "file://", *hosts]
    Settings(models=[], api_key="key", allow_host=["*", "Example.org"], cors=origins).check()
    with pytest.raises(ConfigError, match=re.escape(message)):
        Settings(models=[], **options).check()
