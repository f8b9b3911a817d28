"""The plan of the house: what may import what, and what importing costs."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from fairseq_ext import commands
from fairseq_ext.base import wings
from tests.support.harness import REPO, run

PACKAGE = REPO / "fairseq_ext"
WINGS = wings.names()


def imported(path: Path) -> set[str]:
    """The rooms of this package (`base`, `gru`, `files` …) that a module imports."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("fairseq_ext.")}
    return rooms


def test_the_papers_wings_are_found():
    assert {"binary", "gru", "linformer", "muse"} <= set(WINGS)


@pytest.mark.parametrize("wing", WINGS)
def test_wings_do_not_know_each_other(wing: str):
    sources = list((PACKAGE / wing).rglob("*.py"))
    assert sources
    known = {path: imported(path) & (set(WINGS) - {wing}) for path in sources}
    assert not {path: rooms for path, rooms in known.items() if rooms}


@pytest.mark.parametrize("wing", WINGS)
def test_each_wing_has_a_reference_that_needs_torch_alone(wing: str):
    """The paper's equations, which the wing's docstring names and its tests compare with."""
    tree = ast.parse((PACKAGE / wing / "reference.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert modules <= {"__future__", "collections.abc", "math", "torch", "torch.nn"}
    assert "reference.py" in ast.get_docstring(
        ast.parse((PACKAGE / wing / "__init__.py").read_text(encoding="utf-8"))
    )
    uses = f"from fairseq_ext.{wing} import "
    tests = "".join(path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*layers.py"))
    assert any("reference" in line for line in tests.splitlines() if line.startswith(uses))


def test_the_base_knows_nothing_above_it():
    for path in (PACKAGE / "base").glob("*.py"):
        assert imported(path) <= {"base", "utils"}, path


ROOMS = ("base", "checkpoints", "data_folder", "decoding", "demo", "evaluation", "serving", "text")


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_that_serve_every_architecture_know_no_wing(room: str):
    for path in (PACKAGE / room).rglob("*.py"):
        assert not imported(path) & {*WINGS, "commands"}, path


def test_rooms_do_not_import_each_other_in_a_circle():
    """Imports inside functions count too; the modules of the package itself are rooms of one."""
    rooms: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        rooms.setdefault(room, set()).update(imported(path) - {room})
    assert {"engine", "checkpoints"} < rooms["decoding"]
    list(TopologicalSorter(rooms).static_order())  # raises CycleError, which names the circle


REGISTERED = """
import fairseq_ext
fairseq_ext.register()
from fairseq.models import ARCH_MODEL_REGISTRY
print(*sorted({m.__module__.split(".")[1] for m in ARCH_MODEL_REGISTRY.values()
               if m.__module__.startswith("fairseq_ext.")}))
"""


@pytest.mark.system
@pytest.mark.parametrize("wing", WINGS)
def test_each_wing_can_be_deleted_alone(wing: str, tmp_path: Path):
    shutil.copytree(PACKAGE, tmp_path / "fairseq_ext", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "fairseq_ext" / wing)
    said = run(sys.executable, "-c", REGISTERED, cwd=tmp_path).stdout
    assert said.split() == [name for name in WINGS if name != wing]
    shown = run(sys.executable, "-c", "from fairseq_ext.cli import main; main()", cwd=tmp_path)
    for command in commands.all_commands():
        assert (f"\n  {command.name} " in shown.stdout) != (f".{wing}." in command.module)


def test_importing_the_package_is_quick_and_changes_nothing():
    code = (
        "import sys; before = set(sys.modules); import fairseq_ext\n"
        "print(len(set(sys.modules) - before), {'torch', 'fairseq', 'numpy'} & set(sys.modules))"
    )
    count, heavy = run(sys.executable, "-c", code).stdout.split(maxsplit=1)
    assert heavy == "set()\n"
    assert int(count) < 20


def test_the_overview_of_checkpoints_names_every_module():
    folder = PACKAGE / "checkpoints"
    overview = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    modules = [path.stem for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert modules
    named = re.findall(r":mod:`~fairseq_ext\.checkpoints\.(\w+)`", overview)
    assert sorted(named) == sorted(modules)


def test_the_overview_of_patches_names_every_module_that_has_some():
    folder = PACKAGE / "plugin"
    overview = ast.get_docstring(ast.parse((folder / "patches.py").read_text(encoding="utf-8")))
    modules = [
        f"{path.parent.name}.{path.stem}"
        for path in folder.glob("*/*.py")
        if "\nPATCHES = " in path.read_text(encoding="utf-8")
    ]
    assert modules
    named = re.findall(r":mod:`~fairseq_ext\.plugin\.(\w+\.\w+)`", overview)
    assert sorted(named) == sorted(modules)


def test_docstrings_begin_with_a_verb_or_a_noun():
    """Then they are understood without the name of the function."""
    fragment = re.compile(r'^ *"""(What|Whatever|Who|Of|Those)\b.*', re.MULTILINE)
    found = {
        f"{path.relative_to(REPO)}: {match[0].strip()}"
        for folder in ("fairseq_ext", "recipes", "benchmarks")
        for path in (REPO / folder).rglob("*.py")
        for match in fragment.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found
