"""``fairseq-ext demo``: its parts in this process, and the whole in a headless browser."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import browser
import pytest
from harness import BIN, binarise, digits_corpus, fairseq

import fairseq_ext
from fairseq_ext import cli

MOST = 8  # words of a sentence
needs_gradio = pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that copy digits: ``gru.pt`` with attention, ``linformer.pt`` without; ``bin``."""
    folder = tmp_path_factory.mktemp("demo")
    binarise(digits_corpus(folder / "text", train=200), folder / "bin")
    optimizer = ("--optimizer", "adam", "--lr", "0.01", "--max-tokens", "600", "--max-update", "20")
    for name, more in (("gru", ()), ("linformer", ("--max-source-positions", "12"))):
        fairseq(
            *("train", folder / "bin", "--arch", f"{name}_tiny", *more, *optimizer),
            *("--disable-validation", "--no-epoch-checkpoints", "--save-dir", folder / name),
        )
        (folder / name / "checkpoint_last.pt").rename(folder / f"{name}.pt")
    return folder


def translated(
    trained: Path, name: str, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> str:
    """What ``fairseq-ext translate`` makes of a sentence."""
    source = tmp_path / "sentence"
    source.write_text(sentence + "\n", encoding="utf-8")
    command = ["translate", trained / "bin", "--path", trained / f"{name}.pt", "--input", source]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*map(str, command)])
    assert stopped.value.code == 0
    return capsys.readouterr().out.removesuffix("\n")


# ---- in the browser ------------------------------------------------------------------------------


@pytest.fixture
def address(trained: Path) -> Iterator[str]:
    """The command as a process, with the address that it prints."""
    systems = [f"gru={trained}/gru.pt", f"linformer={trained}/linformer.pt"]
    command = [BIN / "fairseq-ext", "demo", *systems, f"other={trained}/gru.pt,data={trained}/bin"]
    options = ["--data", trained / "bin", "--port", "0", "--max-words", MOST, "--cpu"]
    with subprocess.Popen(
        [*map(str, [*command, *options])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process.stdout.readline().strip()
            process.send_signal(2)  # Ctrl-C
            said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "Traceback" not in said[1]


@pytest.mark.system
@pytest.mark.slow
@needs_gradio
@pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed")
def test_two_systems_translate_a_sentence_in_a_browser(
    trained: Path,
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked: list[str] = []
    expect = playwright.expect
    with browser.opened(address, asked) as page:
        shown = [page.locator(f"#system-{place} textarea") for place in range(3)]
        pictures = [page.locator(f"#system-{place} img") for place in range(3)]

        browser.translate(page, "3 1 4 1 5")
        for place, name in enumerate(("gru", "linformer")):
            wanted = translated(trained, name, "3 1 4 1 5", capsys, tmp_path)
            expect(shown[place]).to_have_value(wanted)
        expect(pictures[0]).to_be_visible()
        assert pictures[0].evaluate("image => image.decode().then(() => image.naturalWidth)") > 200
        expect(pictures[1]).to_have_count(0)
        expect(shown[2]).to_be_hidden()

        page.locator("#systems").get_by_label("linformer").uncheck()
        page.locator("#systems").get_by_label("other").check()
        browser.translate(page, "2 7")
        expect(shown[2]).to_have_value(translated(trained, "gru", "2 7", capsys, tmp_path))
        expect(shown[1]).to_be_hidden()

        browser.translate(page, "9 " * (MOST + 1))
        message = f"The sentence has {MOST + 1} words, but at most {MOST} are translated."
        expect(page.locator("#message")).to_have_text(message)
        expect(shown[0]).to_be_hidden()
    assert {urlsplit(url).hostname for url in asked if url.startswith("http")} == {"127.0.0.1"}
    assert {urlsplit(url).scheme for url in asked} <= {"http", "data", "blob"}


# ---- without one ---------------------------------------------------------------------------------


def loaded(trained: Path, *names: str):
    fairseq_ext.register()
    from fairseq_ext.demo import systems
    from fairseq_ext.translating.translator import Search
    from fairseq_ext.translating.wording import Wording

    named = systems.parse_systems([f"{one}={trained}/{one}.pt" for one in names], trained / "bin")
    search = Search(attention=True)
    return [systems.load(one, search, lambda src, tgt, _: Wording(src, tgt)) for one in named]


def test_answers_have_the_text_of_translate_and_attention_between_words(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fairseq_ext.demo.answers import answer, heat_map

    gru, linformer = answer("1 2  nine\n", loaded(trained, "gru", "linformer"), MOST)
    assert gru.text == translated(trained, "gru", "1 2 nine", capsys, tmp_path)
    assert linformer.text == translated(trained, "linformer", "1 2 nine", capsys, tmp_path)
    assert "1 of 4 source tokens unknown" in gru.remark
    assert linformer.attention is None
    assert gru.attention.source == ("1", "2", "nine", "</s>")
    assert gru.attention.target == (*gru.text.split(), "</s>")
    assert [sum(row) for row in gru.attention.weights] == pytest.approx(
        [1] * len(gru.attention.target), abs=1e-4
    )
    assert heat_map(gru.attention).startswith(b"\x89PNG")


def test_a_sentence_that_is_too_long_is_refused_or_remarked(trained: Path) -> None:
    from fairseq_ext.demo.answers import answer
    from fairseq_ext.errors import DataError

    systems = loaded(trained, "linformer")
    (long,) = answer("1 " * 12, systems, 20)
    assert (long.text, long.attention) == ("", None)
    assert long.remark == "Too long: 13 source tokens, but the model takes at most 12."
    for sentence, message in (
        (" \n", "Type a sentence first."),
        ("1 " * 9, "The sentence has 9 words, but at most 8 are translated."),
        ("1" * 101, "A word has 101 characters, but at most 100 are translated."),
    ):
        with pytest.raises(DataError, match=message):
            answer(sentence, systems, MOST)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["gru"], "A system must be NAME=CHECKPOINT[,data=DIR][,bpe-codes=FILE], but is `gru`"),
        (["a=b,data="], "but is `a=b,data=` instead"),
        (["a=b,data=c,data=d"], "but is `a=b,data=c,data=d` instead"),
        (["a=b,data=c", "a=d,data=c"], "a name of its own, but `a` is there twice."),
        (["a=b,data=c", "b=c"], "`--data` must be the folder of fairseq-preprocess, but is"),
        (["a=b,data=c", "--max-words", "0"], "`--max-words` must be at least 1, but is 0 instead."),
        (["a=b,data=c", "--host", "192.0.2.1"], "an address of this machine and a free port, but"),
    ],
)
def test_errors_are_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["demo", "--port", "0", *given])
    assert stopped.value.code == 1
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(SystemExit) as stopped:
            cli.main(["demo", "a=b,data=c", "--port", str(port)])
    assert stopped.value.code == 1
    assert f"but are 127.0.0.1 and {port} instead" in capsys.readouterr().err


@needs_gradio
def test_a_missing_checkpoint_is_named_below_the_progress_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["demo", "--port", "0", f"a={tmp_path}/none.pt", "--data", str(tmp_path)])
    assert stopped.value.code == 1
    assert "none.pt does not exist" in capsys.readouterr().err.splitlines()[-1]


def test_without_gradio_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["demo", "--port", "0", "a=b", "--data", "c"])
    assert stopped.value.code == 1
    assert "pip install 'fairseq-ext[demo]'" in capsys.readouterr().err
