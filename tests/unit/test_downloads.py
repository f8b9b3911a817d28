"""Downloads that suffer, and archives that lie."""

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_ext.corpora.downloads import RECORD, fetch, unpack
from tests.support.harness import names, write_lines
from tests.support.troubled_server import Server, downloads, member, serving, sha256, tgz

DATA = random.Random(1).randbytes(300_000)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.files["a.bin"] = DATA
        yield running


def check_whole(path: Path, folder: Path) -> None:
    """The file and its record, and no trace of the way there."""
    assert path == folder / "a.bin"
    assert path.read_bytes() == DATA
    assert json.loads((folder / RECORD).read_text()) == {"a.bin": sha256(DATA)}
    assert names(folder) == ["a.bin", RECORD]


def test_a_broken_download_goes_on_where_it_was(tmp_path: Path, server: Server) -> None:
    server.troubles = ["truncate", "503", "truncate", "truncate"]
    check_whole(fetch(f"{server.address}/a.bin", tmp_path), tmp_path)
    third = len(DATA) // 3
    starts = [None, third, third, third + 2 * third // 3]
    ranges = [byte_range for _, byte_range in server.requests]
    assert ranges[:4] == [start and f"bytes={start}-" for start in starts]
    assert len(ranges) == 5


def test_another_process_goes_on_too(tmp_path: Path, server: Server) -> None:
    server.troubles = ["truncate", *["503"] * downloads.ATTEMPTS]
    with pytest.raises(ValueError, match="first 100,000 bytes are kept; the same command"):
        fetch(f"{server.address}/a.bin", tmp_path)
    assert names(tmp_path) == ["a.bin.part", "a.bin.part.json"]
    check_whole(fetch(f"{server.address}/a.bin", tmp_path), tmp_path)
    assert server.requests[-1] == ("/a.bin", "bytes=100000-")


@pytest.mark.parametrize("how", ["no ranges", "no version", "other version", "no record"])
def test_what_cannot_be_continued_starts_anew(tmp_path: Path, server: Server, how: str) -> None:
    server.troubles = ["truncate"]
    server.ranges = how != "no ranges"
    if how == "no version":
        server.version = ""
    if how in ("other version", "no record"):
        part = tmp_path / "a.bin.part"
        part.write_bytes(b"x" * 5000)
    if how == "other version":
        part.with_name("a.bin.part.json").write_text('"\\"0\\""')
    check_whole(fetch(f"{server.address}/a.bin", tmp_path), tmp_path)
    assert how != "no record" or server.requests[0] == ("/a.bin", None)


def test_an_answer_with_other_bytes_than_asked_for_is_refused(tmp_path, server):
    server.troubles = ["truncate", "wrong range"]
    check_whole(fetch(f"{server.address}/a.bin", tmp_path), tmp_path)
    assert [byte_range for _, byte_range in server.requests] == [None, "bytes=100000-", None]


def test_a_stalling_server_is_left(tmp_path, server, monkeypatch):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.3)
    server.troubles = ["stall"]
    check_whole(fetch(f"{server.address}/a.bin", tmp_path), tmp_path)


@pytest.mark.parametrize(("trouble", "requests"), [("404", 1), ("403", 1), ("503", 4)])
def test_hopeless_downloads_end(tmp_path, server, trouble, requests):
    server.troubles = [trouble] * 9
    with pytest.raises(ValueError, match=f"a.bin` cannot be downloaded .*{trouble}") as caught:
        fetch(f"{server.address}/a.bin", tmp_path)
    assert f"put it into `{tmp_path}`" in str(caught.value)
    assert len(server.requests) == requests
    assert names(tmp_path) == []


def test_a_file_that_has_changed_is_refused_with_both_checksums(tmp_path, server):
    fetch(f"{server.address}/a.bin", tmp_path)
    (tmp_path / "a.bin").write_bytes(b"other")
    with pytest.raises(ValueError, match=f"{sha256(b'other')}, but had {sha256(DATA)}"):
        fetch(f"{server.address}/a.bin", tmp_path)
    (tmp_path / "a.bin").unlink()
    server.files["a.bin"] = b"other"
    with pytest.raises(ValueError, match=sha256(b"other")):
        fetch(f"{server.address}/a.bin", tmp_path)


def test_mirrors(tmp_path: Path, server: Server) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "a.bin").write_bytes(DATA)
    official = "http://127.0.0.1:9/far/away/a.bin"
    assert fetch(official, tmp_path / "one", str(mirror)) == mirror / "a.bin"
    assert names(tmp_path / "one") == [RECORD]
    (mirror / "a.bin").write_bytes(b"other")
    with pytest.raises(ValueError, match="when it was first"):
        fetch(official, tmp_path / "one", str(mirror))
    with pytest.raises(ValueError, match=r"has no file `b.bin` \(from http://x/b.bin\)"):
        fetch("http://x/b.bin", tmp_path / "one", str(mirror))
    (mirror / "tok").mkdir()  # as in a clone of github.com/multi30k/dataset
    (mirror / "tok" / "b.bin").write_bytes(DATA)
    nested = fetch("http://x/task1/tok/b.bin", tmp_path / "three", str(mirror))
    assert nested == mirror / "tok" / "b.bin"
    check_whole(fetch(official, tmp_path / "two", f"{server.address}/"), tmp_path / "two")


def test_two_processes_download_once(tmp_path: Path, server: Server) -> None:
    threads = [
        threading.Thread(target=fetch, args=(f"{server.address}/a.bin", tmp_path)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_whole(tmp_path / "a.bin", tmp_path)
    assert len(server.requests) == 1


GOOD = tgz((member("a/b.txt"), DATA))


@pytest.mark.parametrize(
    "data",
    [
        GOOD[:-1000],
        GOOD[:200_000] + bytes(10) + GOOD[200_010:],
        GOOD[:-8] + bytes(8),
        b"<html>Not found</html>",
        b"",
        DATA,
        tgz((member("good.txt"), b"text"), (member("../evil"), b"evil")),
    ],
    ids=["truncated", "damaged", "checksum", "web page", "empty", "noise", "hostile"],
)
def test_a_damaged_archive_is_set_aside_and_downloaded_again(tmp_path, server, data):
    server.files["x.tgz"] = data
    path = fetch(f"{server.address}/x.tgz", tmp_path / "d")
    with pytest.raises(ValueError, match=r"now `x\.tgz\.refused`; run the same command again"):
        unpack(path, tmp_path / "raw")
    assert names(tmp_path) == ["d"]
    assert names(tmp_path / "d") == [RECORD, "x.tgz.refused"]
    server.files["x.tgz"] = GOOD
    unpack(fetch(f"{server.address}/x.tgz", tmp_path / "d"), tmp_path / "raw")
    assert (tmp_path / "raw" / "a" / "b.txt").read_bytes() == DATA


def test_what_a_killed_unpacking_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(GOOD)
    write_lines(tmp_path / "raw" / "a" / "b.txt", ["half"])
    unpack(tmp_path / "x.tgz", tmp_path / "raw")
    assert (tmp_path / "raw" / "a" / "b.txt").read_bytes() == DATA
