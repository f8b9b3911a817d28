"""The documentation builds as a site, without a warning, and loads nothing from other machines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.harness import REPO, run

pytest.importorskip("material")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    run(sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder, cwd=REPO)
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in (REPO / "docs").rglob("*.md"):
        name = page.relative_to(REPO / "docs").with_suffix(".html")
        if name.name == "README.html":
            name = name.with_name("index.html")
        assert (site / name).exists(), name
    for name in ("index", "recipes", "corpora", "contributing", "changelog"):
        assert (site / f"{name}.html").exists(), name
    assert not list(site.rglob("*.py"))


def test_pages_load_nothing_from_other_machines(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]*src=\"?https?:", text) == [], page
        assert re.findall(r"<link[^>]*rel=\"?stylesheet[^>]*https?:", text) == [], page


def test_results_from_the_readme_are_on_the_front_page(site: Path) -> None:
    assert "Results against the papers" in (site / "index.html").read_text("utf-8")
