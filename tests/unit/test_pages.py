"""The prose of docs/ against the tree: equations stand where the tables say, files exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fairseq_ext.base import wings
from fairseq_ext.evaluation.outputs import read_text
from tests.support.harness import REPO

PAGES = [
    REPO / "README.md",
    REPO / "CONTRIBUTING.md",
    *sorted((REPO / "docs").rglob("*.md")),
    *sorted(REPO.glob("*/README.md")),
]
HEADING = "## Equations and where they stand"
PACKAGE = REPO / "fairseq_ext"
FOLDERS = "fairseq_ext|tests|recipes|benchmarks|preprocess|docs"


def names(path: Path) -> set[str]:
    """Functions, classes, methods and attributes that a module defines."""
    names_of_code = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names_of_code.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names_of_code.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names_of_code.add(node.attr)
    return names_of_code


def page_of(wing: str) -> str:
    """The text of the page that says where the equations of a wing stand."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / wing / "__init__.py").read_text("utf-8")))
    missing = [
        name
        for name in re.findall(r"``(\w+\.py)``", docstring)
        if not (PACKAGE / wing / name).exists()
    ]
    assert not missing
    named = re.search(r"``docs/(\w+\.md)``", docstring)
    assert named, f"the docstring of fairseq_ext.{wing} must name its page in docs/"
    return (REPO / "docs" / named[1]).read_text("utf-8")


@pytest.mark.parametrize("wing", wings.names())
def test_each_equation_stands_where_the_table_says(wing: str) -> None:
    """`file.py`, `name` in the last column: the file of the wing, or of another room, has it."""
    section = page_of(wing).partition(HEADING)[2].partition("\n## ")[0]
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", section, re.M)[1:]
    checked = 0
    for where in rows:
        equations: set[str] = set()
        for word in re.findall(r"`([^`]+)`", where):
            if word.endswith(".py"):
                folders = PACKAGE / wing, PACKAGE
                path = next(folder / word for folder in folders if (folder / word).exists())
                equations = names(path)
            elif re.fullmatch(r"[A-Za-z_][\w.]*", word):
                assert set(word.split(".")) <= equations, (where, word)
                checked += 1
    assert checked >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPO)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for path in re.findall(
        rf"`(?:bash |python )?((?:{FOLDERS})/[\w./-]+\.(?:py|sh|md|json))", text
    ):
        if not re.search(r"NAME|PART|WING", path):  # to be filled in by the reader
            assert (REPO / path).exists(), f"{page.name}: {path}"
    for module in re.findall(r"\bfrom (fairseq_ext[\w.]*) import|`(fairseq_ext\.[\w.]+)`", text):
        path_of_module = REPO / "/".join("".join(module).split("."))
        parents = [path_of_module, path_of_module.parent]
        assert any(parent.is_dir() or parent.with_suffix(".py").exists() for parent in parents), (
            module
        )


def test_results_name_no_folder_of_the_machine_they_were_made_on() -> None:
    """Logs and settings would otherwise have the paths of a home or working folder."""
    machine_path = re.compile(r"(?<![\w./…-])/(home|root|work|mnt|scratch|Users|var)/[^'\",\s]*")
    paths = [
        path
        for ending in ("log.gz", "tsv.gz", "json", "txt")
        for path in (REPO / "docs" / "results").rglob(f"*.{ending}")
    ]
    mentions = {
        f"{path.relative_to(REPO)}: {match[0]}"
        for path in paths
        for match in machine_path.finditer(read_text(path))
    }
    assert len(paths) > 100
    assert not mentions


def test_results_stay_light_and_hold_nothing_that_no_page_mentions() -> None:
    """A page, or a JSON or picture of the same name that a page shows, leads to each file."""
    results = REPO / "docs" / "results"
    files = [path for path in results.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    assert not [path for path in files if path.suffix in {".svg", ".log"}]
    pages = "\n".join(path.read_text("utf-8") for path in PAGES)
    tests = "\n".join(path.read_text("utf-8") for path in (REPO / "tests").rglob("*.py"))
    shown = {
        path
        for path in files
        if str(path.relative_to(results)) in pages or path.name in tests or path.suffix == ".md"
    }
    for path in set(files) - shown:
        beside = {path.with_suffix(ending) for ending in (".png", ".json")}
        assert beside & shown, f"{path.relative_to(REPO)} is mentioned nowhere"
