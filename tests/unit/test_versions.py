"""`fairseq_ext/version.py` says which versions are supported; nothing says anything else."""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from fairseq_ext.version import (
    FAIRSEQ_WHEELS,
    OLDEST_TORCH,
    PYTHONS,
    PYTHONS_WITHOUT_TRAINING,
    TESTED_FAIRSEQ,
    __version__,
)
from tests.support.harness import REPO, run

NAME, FAIRSEQ = TESTED_FAIRSEQ
CONSTRAINTS = (REPO / "constraints.txt").read_text("utf-8")
TEXTS = {
    str(path.relative_to(REPO)): path.read_text("utf-8")
    for pattern in ("*.*", "fairseq_ext/**/*.py", "recipes/**/*.*", "docs/**/*.md", ".ci/run")
    for path in REPO.glob(pattern)
    if path.is_file() and path.suffix in ("", ".py", ".sh", ".md", ".txt", ".toml")
}


def pinned(name: str) -> str:
    """The version that `constraints.txt` takes on the first Python."""
    return re.search(rf"^{name}==([^;\s]+)", CONSTRAINTS, re.MULTILINE)[1]


def test_no_copy_contradicts():
    for name, text in TEXTS.items():
        assert set(re.findall(rf"{NAME}`?(?:==| )(\d[\d.]*\d)", text)) <= {FAIRSEQ}, name
        assert set(re.findall(r"\btorch>=(\d[\d.]*\d)", text)) <= {OLDEST_TORCH}, name
        assert set(re.findall(r"\btorch==(\d[\d.]*\d)", text)) <= {pinned("torch")}, name
        for listed in re.findall(r"(?:3\.\d+, )+3\.\d+ (?:or|and) 3\.\d+", text):
            assert set(re.findall(r"3\.\d+", listed)) == set(PYTHONS), name


def test_code_has_no_copy():
    code = {name: text for name, text in TEXTS.items() if name.endswith((".py", ".sh", "run"))}
    assert FAIRSEQ in code.pop("fairseq_ext/version.py")
    assert [name for name, text in code.items() if FAIRSEQ in text] == []
    assert [name for name, text in code.items() if f"torch>={OLDEST_TORCH}" in text] == []


def test_the_tested_set_has_the_same_versions():
    assert pinned(NAME) == FAIRSEQ
    assert f"Python {PYTHONS[0]}, torch {pinned('torch')}." in CONSTRAINTS.splitlines()[0]
    oldest = min(PYTHONS, key=lambda version: int(version.partition(".")[2]))
    assert f'target-version = "py{oldest.replace(".", "")}"' in TEXTS["pyproject.toml"]


def test_the_readme_has_the_same_versions():
    readme = TEXTS["README.md"]
    assert f"{NAME}=={FAIRSEQ}" in readme
    assert re.findall(r"torch (\d[\d.]*\d)", readme)[0] == pinned("torch")
    assert all(version in readme for version in PYTHONS)


def test_the_package_asks_for_the_same_versions():
    minors = sorted(int(version.removeprefix("3.")) for version in PYTHONS)
    last = minors[-1] + len(PYTHONS_WITHOUT_TRAINING)
    assert f'requires-python = ">=3.{minors[0]},<3.{last + 1}"' in TEXTS["pyproject.toml"]
    assert f'"torch>={OLDEST_TORCH}"' in TEXTS["pyproject.toml"]
    output = run(sys.executable, "setup.py", "--version", "--classifiers", cwd=REPO).stdout
    assert output.startswith(f"{__version__}\n")
    versions = {*PYTHONS, *PYTHONS_WITHOUT_TRAINING}
    assert set(re.findall(r"Python :: (\S+)", output)) == versions


@pytest.fixture
def path(tmp_path):
    """A PATH with nothing but the tools that `find_python` uses."""
    for tool in ("sed", "tr", "basename"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    return tmp_path


def test_the_recipes_take_the_first_python_that_is_supported(path):
    script = f"source recipes/lib.sh; PATH={path}; find_python"
    unsupported = [version for version in PYTHONS if version not in FAIRSEQ_WHEELS]
    for version in reversed([*FAIRSEQ_WHEELS, *unsupported]):
        (path / f"python{version}").write_text("#!/bin/sh\n")
        (path / f"python{version}").chmod(0o755)
        result = run("bash", "-c", script, cwd=REPO).stdout
        assert result == f"{path}/python{version}\n"


def test_the_recipes_name_the_pythons_that_they_look_for(path):
    output = run(
        "bash", "-c", f"source recipes/lib.sh; PATH={path}; find_python", cwd=REPO, ok=False
    )
    assert f"no Python {' '.join(PYTHONS)} found" in output.stderr
