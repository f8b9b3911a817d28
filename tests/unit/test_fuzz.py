"""Damaged and half-right inputs for every reader: documented errors only, in bounded memory.

Each reads 400 of them, and 10,000 with ``--hypothesis-profile long``.
"""

import re
import tracemalloc
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_ext.binary import scaling_law
from fairseq_ext.evaluation import outputs, training_log
from fairseq_ext.text.checks import check_merges
from fairseq_ext.utils.errors import DataError, printable
from fairseq_ext.utils.json_files import parse_json, read_json
from tests.support import fuzz_binary, fuzz_readers, fuzzing
from tests.support.harness import write_lines

READERS = {reader.name: reader for reader in fuzz_readers.readers() + fuzz_binary.readers()}


@pytest.mark.parametrize("name", READERS)
def test_documented_errors_only(name: str, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    count = 4 * settings().max_examples

    @settings(max_examples=count, deadline=10_000, suppress_health_check=list(HealthCheck))
    @given(st.integers(min_value=0))
    def read(seed: int) -> None:
        files = READERS[name].inputs(Random(seed))
        outcomes[fuzzing.outcome(READERS[name], files, tmp_path / "folder")] += 1

    read()
    assert outcomes["accepted"] >= 2
    assert outcomes["refused"] >= 40
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":\n1e999}', "x, line 2: the number 1e999 is out of range."),
        ('{"a": NaN}', "x, line 1: the number NaN is out of range."),
        ("[-Infinity]", "the number -Infinity is out of range."),
        ("9" * 400, "the number 99999999999999999999 is out of range."),
        ("9" * 5000, "is out of range."),
        ("[" * 100_000, "x is JSON that is nested too deeply."),
        ('{"a": [1,\n2', "x, line 2: not JSON"),
        ('["\\ud800"]', "x has half of a surrogate pair"),
        ('[{"a": 1}, {"a": 1, "b": 2, "a": 1}]', "x has the key 'a' twice in one object."),
    ],
)
def test_json(text: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        parse_json(text, "x")


def test_json_files(tmp_path: Path) -> None:
    assert parse_json("\ufeff[1]", "x") == [1]
    assert parse_json('["\\ud83d\\ude00", -12, 1.5e3, null]', "x") == ["😀", -12, 1500.0, None]
    (tmp_path / "a").write_bytes(b"[1,\n2\xff]")
    with pytest.raises(DataError, match="a`, line 2: not UTF-8"):
        read_json(tmp_path / "a")
    with pytest.raises(DataError, match="does not exist"):
        read_json(tmp_path / "b")
    (tmp_path / "a").write_bytes(b" " * (1 << 24) + b"1")
    with pytest.raises(DataError, match="a` has more than 16,777,216 bytes; give the original"):
        read_json(tmp_path / "a")


def test_a_damaged_sentence_number_costs_no_memory(tmp_path: Path) -> None:
    lines = ["S-0\ta", "H-0\t-1\tb", "S-1\ta", "H-30000000\t-1\tb"]
    path = write_lines(tmp_path / "out", lines)
    tracemalloc.start()
    fault = "lacks 29999999 of 30000001 sentences: number 1, 2, 3, 4, 5, …"
    with pytest.raises(DataError, match=fault):
        outputs.read_generated(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    path = write_lines(tmp_path / "out", ["H-" + "9" * 400 + "\t-1\tb"])
    with pytest.raises(DataError, match="holds no hypotheses"):
        outputs.read_generated(path)


def test_a_log_with_damaged_numbers(tmp_path: Path) -> None:
    lines = [
        '{"epoch": 1, "update": 1, "loss": "4", "num_updates": "100"}',
        '{"epoch": 1, "update": 1, "loss": "3", "num_updates": 1e999}',
        '{"epoch": 1, "update": 1, "loss": ' + "9" * 400 + ', "num_updates": "200"}',
        '{"epoch": 1, "update": 1, "loss": "nan", "num_updates": "300"}',
        '{"epoch": 1, "a": ' + "[" * 100_000 + "}",
        '{"epoch": 1, "update": 1, "loss": "2", "num_upd',
    ]
    log = training_log.read_log(write_lines(tmp_path / "log", lines))
    assert log.train == {"loss": {100: 4.0}}
    lines = ["num. shared model params: ,", "epoch 001 | loss 1.2.3 | wpb e"]
    with pytest.raises(DataError, match="no finished epoch"):
        training_log.read_training(write_lines(tmp_path / "log", lines))


@pytest.mark.parametrize("size", [1, 1e18])
@pytest.mark.parametrize("loss", [1e-9, 1e18])
def test_a_fit_to_extreme_numbers_is_a_fit_or_refused(size: float, loss: float) -> None:
    sizes = [(size, 1), (2, 1), (4, 1), (1, size), (1, 2), (1, 4)]
    models = [
        scaling_law.Model(f"m{i}", int(e), int(d), loss * (1 + i / 10))
        for i, (e, d) in enumerate(sizes)
    ]
    base = scaling_law.baseline(models)
    with suppress(DataError):
        (fit,) = scaling_law.fit_laws(models, base, resamples=3)
        assert len(fit.models) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#version: 0.3\na b\n", "line 1: `#version: 0.3` is not a version that subword-nmt"),
        ("#version: 0.2\n", "codes has no merges"),
        ("#version: 0.2\na b\nc\n", "line 3: `c` is not a merge of two pieces"),
        ("", "codes has no merges"),
    ],
)
def test_merges(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "codes").write_text(content)
    with pytest.raises(DataError, match=message):
        check_merges(tmp_path / "codes")
    for good in ("a b\n", "#version: 0.2\na b\n", "#version: 0.1\r\na b\r\n"):
        (tmp_path / "codes").write_text(good, newline="")
        check_merges(tmp_path / "codes")


def test_an_error_is_one_line() -> None:
    assert str(DataError("a\nb\x1b[31m\u202e\udcff")) == "a\\nb\\x1b[31m\\u202e\\udcff"
    assert printable("größer “ 😀") == "größer “ 😀"
