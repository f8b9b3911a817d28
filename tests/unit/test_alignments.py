"""Word alignments: each line aligns words that are in the same lines of the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_ext.data_folder import alignments
from fairseq_ext.utils.errors import DataError
from tests.support.harness import write_lines


@pytest.fixture
def text(tmp_path: Path) -> tuple[Path, Path]:
    return (
        write_lines(tmp_path / "a.src", ["1 2", "3", "4 5 6"]),
        write_lines(tmp_path / "a.tgt", ["1 2 3", "3", "4"]),
    )


def test_words_of_both_sides(tmp_path: Path, text: tuple[Path, Path]):
    alignments.check(write_lines(tmp_path / "a.align", ["0-0 1-2 1-1", "", "2-0"]), *text, 3)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0-0", "0-0"], r"a\.align has 2 lines but .*a\.src has 3"),
        (["0-0", "0-0", "2-0", "0-0"], r"a\.align has 4 lines but .*a\.src has 3"),
        (["0-0 2-0", "", ""], r"a\.align, line 1: `2-0` .* I below 2 and J below 3 in this line"),
        (["", "", "0-0 0-1"], r"a\.align, line 3: `0-1` .* I below 3 and J below 1 in this line"),
        (["", "0", ""], "line 2: `0` does not align a source word with a target word"),
        (["", "0-0-0", ""], "line 2: `0-0-0` does not"),
        (["", "0-x", ""], "line 2: `0-x` does not"),
        (["", "0--1", ""], "line 2: `0--1` does not"),
    ],
)
def test_anything_else(tmp_path: Path, text: tuple[Path, Path], lines: list[str], message: str):
    with pytest.raises(DataError, match=message):
        alignments.check(write_lines(tmp_path / "a.align", lines), *text, 3)


def test_a_file_that_is_not_there(tmp_path: Path, text: tuple[Path, Path]):
    with pytest.raises(DataError, match=r"a\.align does not exist"):
        alignments.check(tmp_path / "a.align", *text, 3)
