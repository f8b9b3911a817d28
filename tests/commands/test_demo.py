"""``fairseq-ext demo``: its parts in this process, and the whole in a headless browser."""

import dataclasses
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fairseq_ext.commands.demo import Request, load
from fairseq_ext.demo import systems
from fairseq_ext.demo.systems import Answer, answer, heat_map
from fairseq_ext.model.find_model import SHIPPED
from fairseq_ext.text.sentences import SentenceSplitter
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support import browser, serving
from tests.support.harness import (
    binarize,
    command,
    digits_corpus,
    error_line,
    fairseq,
    forked,
    names,
)
from tests.support.serving import JSON, ask
from tests.support.trainings import with_data

MOST = 8  # words of a sentence
Translate = Callable[[str, Sequence[str]], Sequence]
needs_chromium = pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture
def expect() -> Callable:
    """What waits for a page to look so."""
    return pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that copy digits: ``gru.pt`` with attention, ``linformer.pt`` without; ``bin``."""
    folder = tmp_path_factory.mktemp("demo")
    binarize(digits_corpus(folder / "text", train=200), folder / "bin")
    optimizer = ("--optimizer", "adam", "--lr", "0.01", "--max-tokens", "600", "--max-update", "20")
    for name, options in (("gru", ()), ("linformer", ("--max-source-positions", "12"))):
        fairseq(
            *("train", folder / "bin", "--arch", f"{name}_tiny", *options, *optimizer),
            *("--disable-validation", "--no-epoch-checkpoints", "--save-dir", folder / name),
        )
        (folder / name / "checkpoint_last.pt").rename(folder / f"{name}.pt")
    return folder


def translated(trained: Path, name: str, sentence: str) -> str:
    """What ``fairseq-ext translate`` makes of a sentence."""
    model = (trained / "bin", "--path", trained / f"{name}.pt")
    return command("translate", *model, stdin=sentence.encode()).removesuffix("\n")


def demo(trained: Path, folder: Path, *models: str) -> AbstractContextManager[serving.Server]:
    """Run the command as a process, which works and keeps temporary files in ``folder``."""
    words = (f"gru={trained}/gru.pt", *models, "--data", trained / "bin", "--max-words", MOST)
    how = {"command": "demo", "program": forked("fairseq-ext")}
    return serving.serving(folder, *words, "--cpu", **how)


@pytest.fixture(scope="module")
def address(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that the command prints; ended by SIGTERM, it leaves nothing behind."""
    folder = tmp_path_factory.mktemp("served")
    models = [f"linformer={trained}/linformer.pt", f"other={trained}/gru.pt,data={trained}/bin"]
    with demo(trained, folder, *models) as server:
        yield server.address
        assert "Traceback" not in server.end()
    assert names(folder) == ["serve.log"]


def test_ctrl_c_leaves_nothing_behind(trained: Path, tmp_path: Path) -> None:
    with demo(trained, tmp_path) as server:
        assert server.address.startswith("http://127.0.0.1:")
        translations = asks(server.address, "POST", JOIN, joined(systems=["gru"]))
        assert (translations.status, translations.body[0]["picture"] > "") == (200, True)
        assert "Traceback" not in server.end(signal.SIGINT)
    assert names(tmp_path) == ["serve.log"]


@needs_chromium
def test_two_systems_translate_a_sentence_in_a_browser(trained, address, expect):
    requests: list[str] = []
    with browser.opened(address, requests) as page:
        shown = [page.locator(f"#system-{place} textarea") for place in range(3)]
        pictures = [page.locator(f"#system-{place} img") for place in range(3)]

        browser.translate(page, "3 1 4 1 5")
        for place, name in enumerate(("gru", "linformer", "gru")):
            expected = translated(trained, name, "3 1 4 1 5")
            expect(shown[place]).to_have_value(expected)
        expect(pictures[0]).to_be_visible()
        assert pictures[0].evaluate("image => image.decode().then(() => image.naturalWidth)") > 200
        expect(pictures[1]).to_have_count(0)
        expect(page.locator("#system-0")).to_contain_text(re.compile(r"gru \(src → tgt, \d"))
        expect(page.locator("#system-0")).to_contain_text(re.compile(r"\d tokens per second"))

        page.locator("#systems").get_by_label("linformer").uncheck()
        browser.translate(page, "2 7")
        expect(shown[2]).to_have_value(translated(trained, "gru", "2 7"))
        expect(shown[1]).to_be_hidden()

        browser.translate(page, "9 " * (MOST + 1))
        message = f"The sentence has {MOST + 1} words, but at most {MOST} are translated."
        expect(page.locator("#message")).to_have_text(message)
        expect(shown[0]).to_be_hidden()

        example = page.locator("#examples button").first
        sentence = example.text_content()
        example.click()
        expect(shown[0]).to_have_value(translated(trained, "gru", sentence))
        expect(page.locator("#message")).to_be_hidden()
    assert {urlsplit(url).hostname for url in requests if url.startswith("http")} == {"127.0.0.1"}
    assert {urlsplit(url).scheme for url in requests} <= {"http", "data", "blob"}


@contextmanager
def page_of(translate: Translate) -> Iterator[str]:
    """A page in this process with two systems, whose names are markup."""
    import uvicorn

    from fairseq_ext.demo import page

    about = {"<b>one</b>": "<i>es</i> → en, 1 M", "two": "es → en, 2 M"}
    examples = ["a <b>sentence</b>", "another one"]
    app = page.application(about, translate, MOST, examples, "127.0.0.1")
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=running.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        running.should_exit = running.force_exit = True
        thread.join()


MARKUP = "<img src=x onerror=alert(1)> <script>alert(2)</script> **bold** <b>b</b>"


@needs_chromium
def test_markup_stays_text(tmp_path: Path, expect: Callable) -> None:
    """In the sentence, in a translation, in a message, and in the name of a system."""

    def translate(sentence: str, names: Sequence[str]) -> list[Answer]:
        if sentence == "refuse":
            raise DataError(f"No. {MARKUP}")
        return [Answer(name, f"{sentence} {MARKUP}", "score 1") for name in names]

    requests, dialogs = [], []
    with page_of(translate) as address, browser.opened(address, requests) as page:
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        browser.translate(page, MARKUP)
        for place in range(2):
            shown = page.locator(f"#system-{place} textarea")
            expect(shown).to_have_value(f"{MARKUP} {MARKUP}")
        assert page.locator("#examples b, #systems :is(b, i)").count() == 0
        for part in ("#system-0", "#system-1"):
            assert page.locator(f"{part} :is(img[src=x], script, b, strong)").count() == 0
        expect(page.locator("#systems")).to_contain_text("<b>one</b>")
        page.screenshot(path=os.environ.get("DEMO_PICTURE", tmp_path / "page.png"), full_page=True)
        browser.translate(page, "refuse")
        expect(page.locator("#message")).to_contain_text("No.")
        expect(page.locator("#message")).to_contain_text(MARKUP)
        assert page.locator("#message :is(img, script, b)").count() == 0
    assert dialogs == []
    assert not any(url.endswith("/x") for url in requests)


@needs_chromium
def test_the_page_by_keyboard_alone_and_what_it_says_meanwhile(expect: Callable) -> None:
    go_on, calls = threading.Event(), []

    def translate(sentence: str, names: Sequence[str]) -> list[Answer]:
        go_on.wait(60)
        calls.append((sentence, list(names)))
        return [Answer(name, sentence.upper(), "score 1") for name in names]

    with page_of(translate) as address, browser.opened(address, []) as page:
        page.set_viewport_size({"width": 400, "height": 800})
        status, results = page.locator("#status"), page.locator("#results")
        field, shown = page.locator("#sentence textarea"), page.locator("#system-0 textarea")
        expect(field).to_be_focused()
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        expect(field).to_have_value("one\ntwo")
        page.keyboard.press("Enter")
        expect(status).to_have_text("Translating …")
        go_on.set()
        expect(shown).to_have_value("ONE\nTWO")
        expect(status).to_have_text("")
        expect(results).to_have_css("opacity", "1")

        page.keyboard.type("!")  # the results are of another sentence now
        expect(status).to_contain_text("of another sentence")
        expect(results).to_have_css("opacity", "0.4")
        page.keyboard.press("Backspace")
        expect(status).to_have_text("")
        expect(results).to_have_css("opacity", "1")

        for key in ("Tab", "Tab", "Tab", "Space"):  # past both examples, to the first system
            page.keyboard.press(key)
        expect(status).to_contain_text("or choice")
        for key in ("Tab", "Tab", "Enter"):
            page.keyboard.press(key)
        expect(page.locator("#system-0")).to_be_hidden()
        expect(page.locator("#system-1 textarea")).to_have_value("ONE\nTWO")

        go_on.clear()
        page.locator("#examples button").last.focus()
        page.keyboard.press("Enter")
        expect(status).to_have_text("Translating …")
        page.keyboard.type(" more")  # while it works
        go_on.set()
        expect(status).to_contain_text("of another sentence")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    systems_asked = ["<b>one</b>", "two"]
    assert calls == [
        ("one\ntwo", systems_asked),
        ("one\ntwo", systems_asked[1:]),
        ("another one", systems_asked[1:]),
    ]


@needs_chromium
@pytest.mark.parametrize("grows", [True, False])
def test_translations_are_shown_whole(grows: bool, expect: Callable) -> None:
    """Also in browsers whose text areas do not grow with their text."""
    words = " ".join(map(str, range(MOST * 20)))
    with (
        page_of(lambda _, names: [Answer(name, words, "score 1") for name in names]) as address,
        browser.opened(address, []) as page,
    ):
        if not grows:
            page.add_init_script("CSS.supports = () => false")
            page.reload()
            page.add_style_tag(content="textarea { field-sizing: fixed !important }")
        browser.translate(page, "1")
        for place in range(2):
            text = page.locator(f"#system-{place} textarea")
            expect(text).to_have_value(words)
            shown, needed = text.evaluate("text => [text.clientHeight, text.scrollHeight]")
            assert shown >= needed > 100


def asks(address: str, method: str, path: str, body: bytes = b"", **headers: str) -> serving.Answer:
    return ask(urlsplit(address).port, path, body, method=method, **{**JSON, **headers})


def joined(**changes: object) -> bytes:
    """What the page sends for a sentence."""
    right = {"sentence": "1 2", "systems": ["two"]}
    return json.dumps({**right, **changes}).encode()


UPLOAD = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n1\r\n--x--\r\n'
JOIN = "/translate"
WRONG_SENTENCES = (None, 1, float("nan"), {"path": "/etc/passwd"}, "\ud800")
FORBIDDEN = [
    *(("POST", JOIN, joined(sentence=sentence), 400) for sentence in WRONG_SENTENCES),
    *(("POST", JOIN, joined(systems=systems), 400) for systems in (None, "two")),
    *(("POST", JOIN, body, 400) for body in (b"null", b"{}", b'{"sentence"', b"[" * 60_000, b"")),
    ("POST", JOIN, joined().replace(b"1 2", b"\xff"), 400),
    ("POST", JOIN, UPLOAD, 400),
    *(("GET", path, b"", 404) for path in ("/openapi.json", "/docs", "/page.js")),
    ("GET", "/static/../../../etc/passwd", b"", 404),
    ("DELETE", "/", b"", 405),
    ("GET", JOIN, b"", 405),
    ("POST", JOIN, b"1" * 70_000, 413),
]


@pytest.fixture(scope="module")
def quiet_page() -> Iterator[str]:
    with page_of(lambda *_: []) as address:
        yield address


@pytest.mark.parametrize(("method", "path", "body", "status"), FORBIDDEN)
def test_other_requests_get_one_line(quiet_page, method, path, body, status) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=x"} if body == UPLOAD else {}
    refusal = asks(quiet_page, method, path, body, **kind)
    assert refusal.status == status
    assert list(refusal.body) == ["error"]
    assert refusal.body["error"]
    assert "\n" not in refusal.body["error"]
    assert "default-src 'none'" in refusal.headers["Content-Security-Policy"]


def test_a_failure_is_told() -> None:
    def translate(*_: object) -> list[Answer]:
        raise MemoryError("of a picture")

    with page_of(translate) as address:
        refusal = asks(address, "POST", JOIN, joined())
    assert refusal.status == 500
    assert refusal.body == {"error": "The server failed; its terminal says why."}


def test_nothing_is_translated_for_readers_who_have_left() -> None:
    sentences: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    def translate(sentence: str, names: Sequence[str]) -> list[Answer]:
        sentences.append(sentence)
        began.set()
        assert go_on.wait(60)
        return []

    with page_of(translate) as address, ThreadPoolExecutor(2) as pool:
        first = pool.submit(asks, address, "POST", JOIN, joined(sentence="first"))
        assert began.wait(60)
        body = joined(sentence="left")
        head = f"POST {JOIN} HTTP/1.1\r\nHost: {urlsplit(address).netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", urlsplit(address).port)) as reader:
            reader.sendall(head.encode() + body)
        for _ in range(2):  # the server has noticed what came before its answers
            assert asks(address, "GET", "/").status == 200
        last = pool.submit(asks, address, "POST", JOIN, joined(sentence="last"))
        go_on.set()
        assert [answer.result().status for answer in (first, last)] == [200, 200]
    assert sentences == ["first", "last"]


def test_only_its_own_name_is_answered(quiet_page: str) -> None:
    """DNS rebinding sends another name here, and a page elsewhere another origin."""
    port = urlsplit(quiet_page).port
    for sent, remedy in (
        ({"Host": f"evil.example:{port}"}, "--host NAME"),
        ({"Origin": "http://evil.example"}, "--cors ORIGIN"),
    ):
        for method, path in (("GET", "/"), ("POST", JOIN)):
            refused = asks(quiet_page, method, path, joined(), **sent)
            assert refused.status == 403, sent
            assert remedy in refused.body["error"]
    assert asks(quiet_page, "GET", "/", Host=f"localhost:{port}").status == 200
    translated_here = asks(quiet_page, "POST", JOIN, joined(), Origin=quiet_page)
    assert (translated_here.status, translated_here.body) == (200, [None, None])


def loaded(trained: Path, *names: str):
    words = [f"{name}={trained}/{name}.pt" for name in names]
    named = systems.parse_systems(words, trained / "bin")
    return [load(system, Request(words)) for system in named]


def test_dictionaries_are_those_of_the_training(trained: Path, tmp_path: Path) -> None:
    (system,) = systems.parse_systems([f"a={trained}/gru.pt"], None)
    assert system.data == trained / "bin"
    path = with_data(trained / "gru.pt", tmp_path / "gone", tmp_path / "checkpoint_best.pt")
    with pytest.raises(ConfigError, match=r"`--data` must be the folder .* is not here"):
        systems.parse_systems([f"a={tmp_path}"], None)
    (system,) = systems.parse_systems([f"a={tmp_path}"], trained / "bin")
    assert system.checkpoint == path


def test_answers_have_the_text_of_translate_and_attention_between_words(trained: Path) -> None:
    gru, linformer = answer("1 2  nine\n", loaded(trained, "gru", "linformer"), MOST)
    assert gru.text == translated(trained, "gru", "1 2 nine")
    assert linformer.text == translated(trained, "linformer", "1 2 nine")
    assert "1 of 4 source tokens unknown" in gru.remark
    assert linformer.attention is None
    assert gru.attention.source == ("1", "2", "nine", "</s>")
    assert gru.attention.target == (*gru.text.split(), "</s>")
    sums = [sum(row) for row in gru.attention.weights]
    assert sums == pytest.approx([1] * len(gru.attention.target), abs=1e-4)
    assert heat_map(gru.attention).startswith(b"\x89PNG")


def test_each_sentence_of_a_text_is_translated_alone(trained: Path) -> None:
    (gru,) = loaded(trained, "gru")
    parts = [answer(sentence, [gru], MOST)[0].text for sentence in ("1 2", "3 4 5")]
    split = dataclasses.replace(gru, splitter=SentenceSplitter(lambda text: text.split(" 0 "), " "))
    (several,) = answer("1 2 0 3 4 5", [split], MOST)
    assert (several.text, several.attention) == (" ".join(parts), None)
    assert several.remark.startswith("2 sentences, mean score -")
    (single,) = answer("1 2", [split], MOST)
    assert single.text == parts[0]
    assert single.attention is not None


def test_addresses_stay_as_they_are(trained: Path) -> None:
    (gru,) = loaded(trained, "gru")
    (with_url,) = answer("1 https://x.org/2 3 😀", [gru], MOST)
    assert with_url.text.count("https://x.org/2") == with_url.text.count(" 😀") == 1
    assert with_url.attention is None
    assert answer("😀", [gru], MOST)[0].text == "😀"
    (changed,) = answer("1 https://x.org/2", [dataclasses.replace(gru, keeper=None)], MOST)
    assert "https" not in changed.text


def test_a_sentence_that_is_too_long_is_refused_or_remarked(trained: Path) -> None:
    linformers = loaded(trained, "linformer")
    (long,) = answer("1 " * 12, linformers, 20)
    assert (long.text, long.attention) == ("", None)
    assert long.remark == "Too long: 13 source tokens, but the model takes at most 12."
    for sentence, message in (
        (" \n", "Type a sentence first."),
        ("1 " * 9, "The sentence has 9 words, but at most 8 are translated."),
        ("1" * 101, "A word has 101 characters, but at most 100 are translated."),
    ):
        with pytest.raises(DataError, match=message):
            answer(sentence, linformers, MOST)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("=b", "A system must be [NAME=]MODEL[,data=DIR][,bpe-codes=FILE], but is `=b`"),
        ("no/such/model", "no/such/model"),  # two parts would be a name on the Hub
        ("a=b,data=", "but is `a=b,data=` instead"),
        ("a=b,data=c,data=d", "but is `a=b,data=c,data=d` instead"),
        ("a=b,data=c a=d,data=c", "a name of its own, but `a` is there twice."),
        ("a=b,data=c b=no/such.pt", "no/such.pt does not exist; the plugin's own models"),
        ("a=no/such.pt --data .", "no/such.pt does not exist"),  # below the progress bar
        ("a=b,data=c --max-words 0", "`--max-words` must be at least 1, but is 0 instead."),
        ("a=b,data=c --host 192.0.2.1", "an address of this machine and a free port, but"),
        (
            "tatoeba-es-en --data none",
            "`--data` or `,data=` of `tatoeba-es-en` must be a folder of fairseq-preprocess, but "
            "is `none` instead.",
        ),
    ],
)
def test_errors_are_one_line(arguments: str, message: str) -> None:
    assert message in error_line("demo", "--port", 0, *arguments.split())


def test_the_model_in_the_working_folder_has_the_folders_name(monkeypatch) -> None:
    monkeypatch.chdir(SHIPPED / "tatoeba-es-en")
    (system,) = systems.parse_systems(["."], None)
    assert system.name == "tatoeba-es-en"


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        line = error_line("demo", "a=b,data=c", "--port", port)
    assert f"but are 127.0.0.1 and {port} instead" in line


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = error_line("demo", "--port", 0, "a=b", "--data", "c")
    assert "pip install 'fairseq-ext[plots]'" in line
