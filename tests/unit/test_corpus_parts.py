"""Parts of preparing a corpus: reading, rules, processes, steps, and the folder of a job."""

import gzip
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import regex

from fairseq_ext.corpora import rules, streams
from fairseq_ext.corpora.preparation import Steps
from fairseq_ext.corpora.streams import ordered_map, raw_pairs
from fairseq_ext.text import cleaning
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.shared_folder import SharedFolder
from tests.support.harness import write_lines


def test_forms_of_text(tmp_path: Path) -> None:
    (tmp_path / "t.de").write_text(
        "<url>http://x</url>\n<keywords>a, b</keywords>\n<talkid>1</talkid>\n<title>Titel</title>\n"
        "<description>Über\u2028dies</description>\n Ein Satz. \n\n<url>y</url>\nZwei\r\n"
    )
    (tmp_path / "t.en").write_text("<title>A\n<talkid>\nB\nC\nD\nE\n<keywords>\n")
    texts = list(raw_pairs(tmp_path / "t.de", tmp_path / "t.en", "tagged"))
    expected = [
        ("Titel", "A"),
        ("Über\u2028dies", "B"),
        (" Ein Satz. ", "C"),
        ("", "D"),
        ("Zwei", "E"),
    ]
    assert texts == expected
    (tmp_path / "s.de").write_text(
        '<?xml version="1.0"?>\n<doc docid="1">\n<title>nicht</title>\n<p>\n'
        '<seg id="1"> Ja &amp; nein </seg>\n</p><p><seg id="12">Zwei</seg></p>\n</doc>\n'
    )
    (tmp_path / "s.en").write_text('<hl>\n<seg id="1">A\n</hl>\n<seg id="2">B’s</seg>\n')
    texts = list(raw_pairs(tmp_path / "s.de", tmp_path / "s.en", "segments"))
    assert texts == [("Ja &amp; nein", "A"), ("Zwei", "B’s")]


def test_gzipped_text_a_byte_order_mark_and_wrong_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntw\xffo\n"))
    write_lines(tmp_path / "b", ["eins", "zwei"])
    assert list(raw_pairs(tmp_path / "a.gz", tmp_path / "b", "lines")) == [
        ("one", "eins"),
        (None, "zwei"),
    ]
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n" * 9)[:-4])
    with pytest.raises(ValueError, match="is damaged"):
        list(raw_pairs(tmp_path / "a.gz", tmp_path / "b", "lines"))


def test_sides_of_unequal_length_are_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", ["1", "2", "3"])
    write_lines(tmp_path / "b", ["1"])
    with pytest.raises(ValueError, match=r"a` has 3 sentences, `.*b` 1;"):
        list(raw_pairs(tmp_path / "a", tmp_path / "b", "lines"))
    with pytest.raises(ValueError, match=r"c` does not exist: the archive"):
        list(raw_pairs(tmp_path / "a", tmp_path / "c", "lines"))


def test_cleaning_is_that_of_the_moses_script() -> None:
    """Compare with the script's conditions for all small lengths and near the limits."""
    checks = rules.checks(("length=1:6", "ratio=1.5", "token=1000"), ("en", "de"))
    for first in range(9):
        for second in range(9):
            pair = " ".join("x" * first), " ".join("y" * second)
            keep = all(1 <= n <= 6 for n in (first, second)) and not (
                first / second > 1.5 or second / first > 1.5
            )
            assert (rules.why_left_out(*pair, checks) is None) == keep
    assert rules.why_left_out("x" * 1000, "y", checks) is None
    reason = rules.why_left_out("x y", "a " + "y" * 1001, checks)
    assert reason == "token of more than 1000 characters"
    no_rules = rules.checks((), ("en", "de"))
    assert rules.why_left_out("x " * 9 + "x", "y", no_rules) is None


def test_unprintable_characters_become_spaces() -> None:
    text = "a\u200bb\u00adc\ufeff d\x07\ue000e\u0378"
    assert cleaning.printable(text) == regex.sub(r"\p{C}", " ", text)
    assert cleaning.printable("Grüße, 你好 – “x”") == "Grüße, 你好 – “x”"


def test_a_set_that_is_not_cleaned_must_be_whole() -> None:
    pipeline = Pipeline("en", "de", straight=True, tokenize=True, escape=True)
    work = streams.Encode(pipeline, words=True, must_keep="tst2010")
    sources, _, _ = work([("It’s", "x " * 400)])
    assert sources == ["It &apos;s"]
    for pair, reason in ((("a", " "), "empty side"), ((None, "b"), "not UTF-8")):
        with pytest.raises(ValueError, match=f"tst2010, sentence 8: {reason}"):
            work([("a", "b"), pair], 7)


def double(number: int) -> int:
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


@pytest.mark.parametrize("workers", [1, 2])
def test_work_stays_in_order_and_does_not_run_ahead(workers: int) -> None:
    drawn = []

    def numbers() -> Iterator[int]:
        for number in range(14, 64):
            drawn.append(number)
            yield number

    for place, result in enumerate(ordered_map(double, numbers(), workers)):
        assert result == 2 * (14 + place)
        assert len(drawn) - place <= 3 * workers


def test_a_killed_worker_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(ValueError, match="a worker process was killed"):
        list(ordered_map(double, range(40), 2))


def test_steps_are_done_once_unless_settings_or_files_change(tmp_path: Path) -> None:
    done = []

    def step(settings: dict, fail: bool = False) -> dict:
        def work() -> dict:
            done.append(settings)
            write_lines(tmp_path / "out", ["text"])
            if fail:
                raise ValueError("stop")
            return {"count": len(done)}

        return Steps(tmp_path).run("a", settings, [tmp_path / "out"], work)

    with pytest.raises(ValueError, match="stop"):
        step({"x": 1}, fail=True)
    assert [step({"x": 1})["count"] for _ in range(2)] == [2, 2]
    assert step({"x": 2})["count"] == 3
    write_lines(tmp_path / "out", ["text", "more"])
    assert step({"x": 2})["count"] == 4
    (tmp_path / "out").unlink()
    assert step({"x": 2})["count"] == 5


JOB = {"lowercase": True, "limit": 9, "rules": None}


@pytest.fixture
def folder(tmp_path: Path) -> SharedFolder:
    shared = SharedFolder(tmp_path, {"format": "a", "version": 1}, "a command")
    shared.begin(JOB)
    write_lines(tmp_path / "part", ["made"])
    return shared


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lowercase": False}, "of another job, in which `lowercase` was `True` and not `False`."),
        ({"rules": "letters"}, "`rules` was `None` and not `letters`."),
        ({"limit": 8}, "`limit` was `9` and not `8`. Choose another folder for"),
    ],
)
def test_another_job(folder: SharedFolder, changed: dict, message: str):
    assert folder.is_of(JOB)
    with pytest.raises(DataError) as caught:
        folder.is_of({**JOB, **changed})
    assert message in str(caught.value)


def test_another_kind_of_job(folder: SharedFolder):
    other = SharedFolder(folder.path, {"format": "b", "version": 1}, "another command")
    with pytest.raises(DataError, match=r"of `another command`; choose another folder\."):
        other.is_of(JOB)
