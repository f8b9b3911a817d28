"""The documentation as a site: no warning, nothing of other machines, answers that are found."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.harness import REPO, run

pytest.importorskip("material")
QUESTIONS = {
    "resume": "howto/own_text.html#stop-and-resume",
    "fine-tune": "howto/finetune.html",
    "citation": "cite.html",
    "bibtex": "cite.html",
    "japanese": "howto/own_text.html#japanese-chinese-thai-and-other-languages-without-spaces",
    "excel": "howto/own_text.html#out-of-excel-a-spreadsheet-or-csv",
    "several GPUs": "recipes.html#several-gpus-several-nodes",
    "licence of the models": "models.html#licence-of-the-models",
}
"""What people type into the search, and the section that answers."""
STOP_WORDS = {"of", "the"}


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


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_finds_the_section_that_answers(question: str, site: Path) -> None:
    """By its title, in which a word weighs as much as 1,000 in a text."""
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    separator = re.compile(index["config"]["separator"])
    words = set(separator.split(question.lower())) - STOP_WORDS
    matches = [
        section["location"]
        for section in index["docs"]
        if words <= set(separator.split(section["title"].lower()))
    ]
    assert QUESTIONS[question] in matches
    assert len(matches) < 5
