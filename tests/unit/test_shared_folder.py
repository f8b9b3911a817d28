"""The folder of a job: another job's files are refused, and the message says how they differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.shared_folder import SharedFolder
from tests.support.harness import write_lines

JOB = {"lowercase": True, "limit": 9, "rules": None}


@pytest.fixture
def folder(tmp_path: Path) -> SharedFolder:
    called = {"lowercase": "--lowercase", "limit": "--limit", "rules": "--rule"}
    shared = SharedFolder(tmp_path, {"format": "a", "version": 1}, "a command", called=called)
    shared.begin(JOB)
    write_lines(tmp_path / "part", ["made"])
    return shared


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lowercase": False}, "`--lowercase` was given there, but is not given now."),
        ({"rules": "letters"}, "`--rule` was not given there, but is `letters` now."),
        ({"limit": 8}, "`--limit` was `9` there, but is `8` now. Choose another folder for"),
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
