"""README and docs against the tree: commands run, numbers, links, files and equations are true."""

import ast
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_ext.base import wings
from fairseq_ext.text.reading import read_text
from tests.support.harness import BIN, REPO, run, write_lines

README = (REPO / "README.md").read_text(encoding="utf-8")
TROUBLES = (REPO / "docs/howto/troubleshooting.md").read_text(encoding="utf-8")
PAGES = [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md"), *REPO.glob("*/README.md")]
PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"]  # of what there is now


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 140


def block_with(command: str) -> str:
    """The code block of the README that has the command."""
    (block,) = (block for block in re.findall(r"```\n(.*?)```", README, re.S) if command in block)
    return block


@pytest.mark.long
def test_the_commands_from_raw_text_to_a_score_run_as_they_stand(tmp_path: Path) -> None:
    """The block verbatim, in a folder that has nothing but two files of text and `user_dir`."""
    words = random.Random(1)
    table = {f"{a}{b}o": f"{b}e{a}" for a in "bdfgklmn" for b in ("a", "ei", "o", "u")}
    source = [" ".join(words.choices(list(table), k=words.randint(2, 6))) for _ in range(2600)]
    target = [" ".join(table[word] for word in reversed(line.split())) for line in source]
    write_lines(tmp_path / "my.es", source)
    write_lines(tmp_path / "my.en", target)
    (tmp_path / "user_dir").symlink_to(REPO / "user_dir")
    block = block_with("fairseq-preprocess --user-dir")
    path = f"{BIN}:{os.environ['PATH']}"
    done = run("bash", "-euo", "pipefail", "-c", block, cwd=tmp_path, timeout=900, PATH=path)
    assert done.stdout.splitlines()[-1].strip()  # the translation of one sentence
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert {"BLEU", "chrF"} <= {score["name"] for score in scores}
    assert (tmp_path / "alignment.png").stat().st_size > 10_000


def test_the_commands_leave_nothing_untracked_in_the_clone(tmp_path: Path) -> None:
    written = re.findall(r"(?: -o| --out| --destdir| --save-dir| --json| >) ([a-z][\w./]*)", README)
    assert {"plain", "bin", "out", "scores.json", "data/my", "runs/my"} <= set(written)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text((REPO / ".gitignore").read_text())
    for name in ("my.es", "my.en", "my.de", *written):
        path = tmp_path / name
        file = path if path.suffix else path / "file" if name != "out" else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if file.suffix == ".png":  # plot writes its numbers beside it
            file.with_suffix(".json").touch()
    status = ["git", "-C", tmp_path, "status", "--porcelain", "-uall"]
    untracked = subprocess.run(status, check=True, capture_output=True, text=True).stdout
    assert untracked.split() == ["??", ".gitignore"]


def numbers(part: object) -> Iterator[float]:
    """Every number of a JSON file."""
    if isinstance(part, dict | list):
        for entry in part.values() if isinstance(part, dict) else part:
            yield from numbers(entry)
    elif isinstance(part, int | float):
        yield part


def test_every_figure_of_the_results_is_in_the_file_beside_it() -> None:
    lines = [line for line in README.splitlines() if line.startswith("|")]
    rows = [line.split("|") for line in lines if "[JSON](docs/results/" in line]
    checked = 0
    for _, _, _, cells, files, _ in rows:
        names = re.findall(r"\((docs/results/[^)]*\.json)\)", files)
        figures = [n for name in names for n in numbers(json.loads((REPO / name).read_text()))]
        for figure in re.findall(r"\d+\.\d+", cells):
            digits = len(figure.partition(".")[2])
            assert figure in {f"{number:.{digits}f}" for number in figures}, (figure, names)
            checked += 1
    assert checked >= 12


def test_the_table_of_trained_systems_is_that_of_its_file() -> None:
    systems = json.loads((REPO / "docs/results/tatoeba_all/compare.json").read_text())["systems"]
    table = README.partition("| | parameters | BLEU | p | chrF |\n|---|---|---|---|---|\n")[2]
    rows = [line.split(" | ")[1:] for line in table.partition("\n\n")[0].splitlines()]
    assert len(rows) == len(systems)
    for (size, bleu, p, chrf), system in zip(rows, systems, strict=True):
        scores = system["scores"]
        assert size == f"{system['parameters']:,}"
        assert bleu.strip("*") == f"{scores['BLEU']['value']:.2f}"
        assert p == ("–" if scores["BLEU"]["p"] is None else f"{scores['BLEU']['p']:.3f}")
        assert chrf.removesuffix(" |") == f"{scores['chrF']['value']:.2f}"


def test_the_quickstarts_line_is_the_recorded_one() -> None:
    line = json.loads((REPO / "docs/results/quickstart.json").read_text())["line"]
    assert f"[{line}](docs/results/quickstart.json)" in README


def test_messages_of_ours_in_the_troubleshooting_table_exist() -> None:
    code = "".join(path.read_text("utf-8") for path in sorted((REPO / "fairseq_ext").rglob("*.py")))
    for message in (
        *("both provide the package `fairseq`", "is already taken by", "not UTF-8, byte"),
        *("carriage return inside the line", "lines but", "is truncated or damaged"),
        *("the checksum of its part", "is not plain data and could run code"),
    ):
        assert message in TROUBLES, message
        assert message in code, message


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


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
                paths = [folder / word for folder in folders if (folder / word).exists()]
                assert paths, f"fairseq_ext/{wing} has no {word}, nor has fairseq_ext"
                equations = names(paths[0])
            elif re.fullmatch(r"[A-Za-z_][\w.]*", word):
                assert set(word.split(".")) <= equations, (where, word)
                checked += 1
    assert checked >= 3, (
        f"the page of {wing} needs a table below `{HEADING}`, whose last column names the code of "
        f"at least three equations, but names {checked}"
    )


@pytest.mark.parametrize("page", PROSE, ids=lambda path: str(path.relative_to(REPO)))
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
        for ending in ("log.gz", "tsv.bz2", "tsv.xz", "json", "txt")
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
    pages = "\n".join(path.read_text("utf-8") for path in PROSE)
    tests = "\n".join(path.read_text("utf-8") for path in (REPO / "tests").rglob("*.py"))
    shown = {
        path
        for path in files
        if str(path.relative_to(results)) in pages or path.name in tests or path.suffix == ".md"
    }
    for path in set(files) - shown:
        beside = {path.with_suffix(ending) for ending in (".png", ".json")}
        assert beside & shown, f"{path.relative_to(REPO)} is mentioned nowhere"


REFERENCE = REPO / "docs" / "reference"


def test_the_pages_are_what_the_code_says() -> None:
    run(sys.executable, "docs/make_reference.py", "--check", cwd=REPO)


def test_every_corpus_has_its_licence() -> None:
    page = (REFERENCE / "corpora.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \w\w → \w\w \| (.*) \|$", page, re.M)
    assert len(rows) >= 7
    assert all(len(licence) > 20 for _, licence in rows)


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
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("docs") / "site"
    run(sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder, cwd=REPO)
    return folder


def test_pages_load_nothing_from_other_machines(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]*src=\"?https?:", text) == [], page
        assert re.findall(r"<link[^>]*rel=\"?stylesheet[^>]*https?:", text) == [], page


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
