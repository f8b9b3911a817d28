"""What supports which versions: one file says it, and pages, workflows and recipes agree."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_the_tested_set_is_named_where_people_look():
    assert pinned(NAME) == FAIRSEQ
    tested = f"Python {PYTHONS[0]}, torch {pinned('torch')}."
    assert tested in CONSTRAINTS.splitlines()[0], "constraints.txt"
    readme, page = TEXTS["README.md"], TEXTS["docs/compatibility.md"]
    assert f"{NAME}=={FAIRSEQ}" in readme
    assert re.findall(r"torch (\d[\d.]*\d)", readme)[0] == pinned("torch"), "README.md"
    assert all(version in readme for version in PYTHONS)
    assert f"{NAME}` {FAIRSEQ}" in page
    assert f"Python {PYTHONS[0]}" in page


def test_the_package_asks_for_the_same_versions():
    minors = sorted(int(version.removeprefix("3.")) for version in PYTHONS)
    last = minors[-1] + len(PYTHONS_WITHOUT_TRAINING)
    settings = TEXTS["pyproject.toml"]
    assert f'requires-python = ">=3.{minors[0]},<3.{last + 1}"' in settings
    assert f'target-version = "py3{minors[0]}"' in settings
    assert f'"torch>={OLDEST_TORCH}"' in settings
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
    refusal = run("bash", "-c", script, cwd=REPO, ok=False).stderr
    assert f"no Python {' '.join(PYTHONS)} found" in refusal
    unsupported = [version for version in PYTHONS if version not in FAIRSEQ_WHEELS]
    for version in reversed([*FAIRSEQ_WHEELS, *unsupported]):
        (path / f"python{version}").write_text("#!/bin/sh\n")
        (path / f"python{version}").chmod(0o755)
        result = run("bash", "-c", script, cwd=REPO).stdout
        assert result == f"{path}/python{version}\n"


WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yml"))
INSTALLATION = ("pip install -c constraints.txt", "fairseq-ext doctor")


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text("utf-8"))["jobs"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_step_is_a_command_or_a_pinned_action(path: Path) -> None:
    for job in jobs(path).values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "uses" in step:
                assert re.search(r"@v\d+", step["uses"])
                continue
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True)
            for word in re.findall(r"(?:^|\s)((?:\.ci|recipes|tests)/[\w./]+)", step["run"]):
                assert (REPO / word).exists(), word


def test_the_tests_and_wheels_are_made_on_every_supported_python() -> None:
    checks = jobs(REPO / ".github/workflows/ci.yml")
    assert set(checks["tests"]["strategy"]["matrix"]["python"]) == set(PYTHONS)
    pythons = {*PYTHONS, *PYTHONS_WITHOUT_TRAINING}
    assert set(checks["wheels"]["strategy"]["matrix"]["python"]) == pythons
    assert {"lint", "tests", "docs", "build", "wheels"} <= checks.keys()


def test_the_workflow_checks_what_ci_run_checks() -> None:
    checks = re.findall(r"^run python -m (.*) \|\|", TEXTS[".ci/run"], re.MULTILINE)
    steps = [step.get("run") for job in jobs(WORKFLOWS[0]).values() for step in job["steps"]]
    assert {"ruff check .", "mypy"} <= set(checks) <= set(steps)


def test_the_tests_install_as_the_readme_does() -> None:
    """Line by line, but for the version of fairseq, which the constraints have, and the extra."""
    readme = (REPO / "README.md").read_text("utf-8").replace(f"=={TESTED_FAIRSEQ[1]}", "")
    readme = readme.replace("'.[recipes]'", "'.[dev]'")
    for step in jobs(REPO / ".github/workflows/ci.yml")["tests"]["steps"]:
        for line in step.get("run", "").splitlines():
            if line.startswith(INSTALLATION):
                assert line in readme.splitlines(), line


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing() -> None:
    subprocess.run(["actionlint", *WORKFLOWS], cwd=REPO, check=True)
