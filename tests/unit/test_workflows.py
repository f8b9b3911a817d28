"""The workflows of the repository's host: they parse, and what they run exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairseq_ext.version import PYTHONS, PYTHONS_WITHOUT_TRAINING, TESTED_FAIRSEQ
from tests.support.harness import REPO

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
    pythons = {
        name: set(checks[name]["strategy"]["matrix"]["python"]) for name in ("tests", "wheels")
    }
    assert pythons["tests"] == set(PYTHONS)
    assert pythons["wheels"] == {*PYTHONS, *PYTHONS_WITHOUT_TRAINING}
    assert {"lint", "tests", "docs", "build", "wheels"} <= checks.keys()


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
