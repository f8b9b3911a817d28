"""The README against the code and the results: its commands run, its numbers and links are true."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import BIN, REPO, write_lines

README = (REPO / "README.md").read_text(encoding="utf-8")
TROUBLES = (REPO / "docs/howto/troubleshooting.md").read_text(encoding="utf-8")
PAGES = [
    *REPO.glob("*.md"),
    *(REPO / "docs").rglob("*.md"),
    *REPO.glob("*/README.md"),
]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 140


def block_with(command: str) -> str:
    """The code block of the README that has the command."""
    (block,) = (block for block in re.findall(r"```\n(.*?)```", README, re.S) if command in block)
    return block


@pytest.mark.system
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
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block_with("fairseq-preprocess --user-dir")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
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
        "both provide the package `fairseq`",
        "is already taken by",
        "carriage return inside the line",
        "not UTF-8, byte",
        "lines but",
        "is truncated or damaged",
        "the checksum of its part",
        "is not plain data and could run code",
    ):
        assert message in TROUBLES, message
        assert message in code, message


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"
