"""The plan of the house: what may import what, and what importing costs.

A room is a folder, or a module such as `cli.py`, at the root of the package. The subcommands of a
single architecture, in its folder `commands`, are a room of their own: a command may use every
room, but the architecture's mathematics may not.
"""

import ast
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_ext import commands
from fairseq_ext.base import wings
from fairseq_ext.plugin import patches
from tests.support import quick
from tests.support.harness import REPO, run

PACKAGE = REPO / "fairseq_ext"
WINGS = wings.names()
MODULES = sorted(PACKAGE.rglob("*.py"))
C_FILES = sorted(
    path for path in PACKAGE.rglob("*") if path.suffix in (".c", ".h", ".inc", ".cu", ".cpp")
)
MODULE_NAME = re.compile(r"fairseq_ext(?:\.\w+)+")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
REEXPORTS = {"__version__": "version", "load": "decoding", "register": "plugin"}


def room_of(path: Path) -> str:
    """Name the room of a file of the package; "" for the package's own ``__init__.py``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) > 2 and parts[1] == "commands":
        return f"{parts[0]}.commands"
    return "" if parts == ("__init__",) else parts[0]


ROOMS = {room_of(path) for path in MODULES}


def room_of_name(dotted: str) -> str | None:
    """Name the room of `fairseq_ext.a.b`, or of a re-exported name; None for other packages."""
    package, *parts = dotted.split(".")
    if package != PACKAGE.name:
        return None
    if not parts:
        return ""
    if ".".join(parts[:2]) in ROOMS:
        return ".".join(parts[:2])
    return parts[0] if parts[0] in ROOMS else REEXPORTS.get(parts[0], "")


def names_in(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every dotted name that a module mentions in code, with its line.

    These are imports, at the top and inside functions; attributes of imported names
    (`fairseq_ext.a.b`); and strings that name a module, such as arguments of `importlib`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name != PACKAGE.name:  # `import fairseq_ext` takes nothing from a room
                    yield alias.name, node.lineno
                root = alias.name.partition(".")[0]
                bound[alias.asname or root] = alias.name if alias.asname else root
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, _, attributes = ast.unparse(node).partition(".")
            if name in bound and re.fullmatch(r"[\w.]+", attributes):
                yield f"{bound[name]}.{attributes}", node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            file = PACKAGE.parent.joinpath(*name.split("."))
            if MODULE_NAME.fullmatch(name) and (file.is_dir() or file.with_suffix(".py").is_file()):
                yield name, node.lineno


def rooms_used() -> dict[str, dict[str, set[str]]]:
    """Map each room to the other rooms that it uses, in Python or C, and the places."""
    used: dict[str, dict[str, set[str]]] = {room: defaultdict(set) for room in ROOMS}
    for path in MODULES:
        for name, line in names_in(path):
            place = f"{path.relative_to(REPO)}:{line}"
            used[room_of(path)][room_of_name(name)].add(place)
    for path in C_FILES:
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            header = (path.parent / match[1]).resolve()
            assert header.is_file(), f"{path}: there is no {match[1]}"
            place = f"{path.relative_to(REPO)}:{text.count(chr(10), 0, match.start()) + 1}"
            used[room_of(path)][room_of(header)].add(place)
    for room, targets in used.items():
        targets.pop(None, None)
        targets.pop(room, None)
    return used


USES = rooms_used()

# Rooms from the lowest up: each uses only rooms that stand before it. Data goes the same way, from
# text to translations. `evaluation` stands below `decoding`, where minimum Bayes risk decoding
# ranks by metrics. "" is the package itself, with its public names.
ORDER = (
    *("utils", "base", "version", "text", "corpora", "data_folder", "engine", "checkpoints"),
    *("training", "generation", "plugin", "evaluation", "model", "decoding", ""),
    *WINGS,
    *("serving", "demo", "commands"),
    *(f"{wing}.commands" for wing in WINGS),
    *("cli", "__main__"),
)


def test_the_reading_of_the_house_is_not_empty():
    assert {"binary", "gru", "linformer", "muse"} <= set(WINGS)
    assert {"engine", "checkpoints", "plugin"} <= set(USES["decoding"])
    assert {"decoding", "plugin"} <= set(USES[""])  # its lazy imports too
    assert len(C_FILES) > 10
    assert any("#include" in path.read_text("utf-8") for path in C_FILES)
    lowest = {"version", "utils"}
    assert all(USES[room] for room in ORDER if room in USES and room not in lowest)


def test_every_room_has_its_place_in_the_order():
    assert len(ORDER) == len(set(ORDER))
    commands_of_wings = {f"{wing}.commands" for wing in WINGS}  # not every wing has some
    assert ROOMS | commands_of_wings == set(ORDER)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_uses_only_rooms_below_it(room: str):
    """So rooms use each other in no circle."""
    above = {
        used: places for used, places in USES[room].items() if ORDER.index(used) > ORDER.index(room)
    }
    assert not above


@pytest.mark.parametrize("wing", WINGS)
def test_only_its_own_subcommands_know_a_wing(wing: str):
    users = {room: set(used[wing]) for room, used in USES.items() if wing in used}
    users.pop(f"{wing}.commands", None)
    assert set(users) == set()


@pytest.mark.parametrize("wing", WINGS)
def test_each_wing_has_a_reference_that_needs_torch_alone(wing: str):
    """The paper's equations, which the wing's docstring names and its tests compare with."""
    tree = ast.parse((PACKAGE / wing / "reference.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert "torch" in modules
    assert modules <= {"__future__", "collections.abc", "math", "torch", "torch.nn"}
    assert "reference.py" in ast.get_docstring(
        ast.parse((PACKAGE / wing / "__init__.py").read_text(encoding="utf-8"))
    )
    uses = f"from fairseq_ext.{wing} import "
    tests = "".join(path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*layers.py"))
    assert any("reference" in line for line in tests.splitlines() if line.startswith(uses)), (
        f"tests/models/test_{wing}_layers.py must compare layers with reference.py"
    )


def test_quick_tests_use_every_room():
    assert [name for name in quick.FILES if not (REPO / name).is_file()] == []
    names = [name for path in quick.FILES for name, _ in names_in(REPO / path)]
    used = {room_of_name(name) for name in names}
    apart = {"version", "__main__", *(f"{wing}.commands" for wing in WINGS)}  # by tests of `cli`
    assert ROOMS - used - apart == {""}


REGISTERED = """
import contextlib, os, sys
from fairseq.models import ARCH_MODEL_REGISTRY  # once for all clones
assert "fairseq_ext" not in sys.modules
for clone in sys.argv[1:]:
    if not os.fork():
        os.chdir(clone)  # the first folder to import from
        sys.argv = ["fairseq-ext"]
        with open("printed", "w") as file, contextlib.redirect_stdout(file):
            import fairseq_ext
            fairseq_ext.register()
            print(*sorted({m.__module__.split(".")[1] for m in ARCH_MODEL_REGISTRY.values()
                           if m.__module__.startswith("fairseq_ext.")}))
            from fairseq_ext.cli import main
            main()
        os._exit(0)
    assert os.wait()[1] == 0, clone
"""


def clone_without(wing: str, folder: Path) -> Path:
    """Copy the source of this repository without a wing and without compiled libraries."""
    built = ("__pycache__", "*.so", ".*", "build", "runs", "results", "*.pt")
    left_out = shutil.ignore_patterns(*built)
    for name in ("fairseq_ext", "tests", "benchmarks", "preprocess", "recipes", "user_dir"):
        shutil.copytree(REPO / name, folder / name, ignore=left_out, symlinks=True)
    for path in REPO.glob("*.*"):
        if path.is_file():
            shutil.copy(path, folder)
    (folder / "models").symlink_to(REPO / "models")
    shutil.rmtree(folder / "fairseq_ext" / wing)
    return folder


@pytest.mark.system
def test_each_wing_can_be_deleted_alone(tmp_path: Path):
    run(sys.executable, "-c", REGISTERED, *(clone_without(w, tmp_path / w) for w in WINGS))
    for wing in WINGS:
        registered, _, shown = (tmp_path / wing / "printed").read_text().partition("\n")
        assert registered.split() == [name for name in WINGS if name != wing], wing
        for command in commands.all_commands():
            is_shown = f"\n  {command.name} " in shown
            assert is_shown != (f".{wing}." in command.module), (wing, command.name)


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize("wing", WINGS)
def test_the_rest_is_built_from_source_and_passes_its_quick_tests(wing: str, tmp_path: Path):
    clone = clone_without(wing, tmp_path)
    variables = {"PYTHONPATH": str(clone), "FAIRSEQ_EXT_REQUIRE_KERNELS": "1"}
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=clone, **variables)
    assert list((clone / "fairseq_ext" / "engine").glob("_machine*.so"))
    mention = re.compile(rf"fairseq_ext[.]{wing}\b|fairseq_ext import {wing}\b")
    files = [
        name
        for name in quick.FILES
        if name != "tests/unit/test_house.py"
        and not mention.search((REPO / name).read_text("utf-8"))
    ]
    assert "tests/models/test_laws.py" in files
    options = ("--quick", "-q", "-p", "no:cacheprovider")
    done = run(
        sys.executable, "-m", "pytest", *options, *files, cwd=clone, timeout=3000, **variables
    )
    assert " passed" in done.stdout


def test_importing_the_package_is_quick_and_changes_nothing():
    code = "import contextlib, sys, typing; before = set(sys.modules); import fairseq_ext; "
    code += "print(len(set(sys.modules) - before))"
    assert int(run(sys.executable, "-c", code).stdout) < 20


def test_the_overview_of_checkpoints_names_every_module():
    folder = PACKAGE / "checkpoints"
    overview = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    modules = [path.stem for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert modules
    named = re.findall(r":mod:`~fairseq_ext\.checkpoints\.(\w+)`", overview)
    assert sorted(named) == sorted(modules)


def test_the_table_of_patches_has_those_of_every_module():
    modules = [
        f"{path.parent.name}.{path.stem}"
        for path in (PACKAGE / "plugin").glob("*/*.py")
        if re.search('\\bpatch="|^@acting', path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert modules
    assert sorted(patches.MODULES) == sorted(modules)


def test_lines_of_shell_scripts_fit_a_page():
    scripts = [
        path for name in ("recipes", "preprocess", "tests") for path in REPO.glob(f"{name}/**/*.sh")
    ]
    assert scripts
    for path in scripts:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if len(line) > 120] == [], path


def test_docstrings_begin_with_a_verb_or_a_noun():
    """Then they are understood without the name of the function."""
    fragment = re.compile(r'^ *"""(?:What|Whatever|Who|Of|Those)\b.*', re.MULTILINE)
    for folder in ("fairseq_ext", "preprocess", "recipes", "benchmarks"):
        for path in (REPO / folder).rglob("*.py"):
            assert fragment.findall(path.read_text(encoding="utf-8")) == [], path


WORDS = (
    "one ones found given own made whole said of by to at it that which what who whose there here "
    "asked told begun gone taken kept chosen wanted known seen left_over others another again way "
    "thing things something anything does did has had be been both each every much more most many "
    "few less some such same"
)
VAGUE = frozenset(WORDS.split())


def bindings(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each variable, parameter and function that a module names, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler):
            yield node.name or "", node.lineno


GOAL = 0.5  # percent of the names of a folder that may be grammar
FOLDERS = ["benchmarks", "preprocess", "recipes"] + [
    f"{parent}/{path.name}"
    for parent in ("fairseq_ext", "tests")
    for path in sorted((REPO / parent).iterdir())
    if any(path.rglob("*.py"))
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_things_of_the_field(folder: str):
    places, total = [], 0
    for path in sorted((REPO / folder).rglob("*.py")):
        for name, line in bindings(path):
            total += 1
            if name.strip("_") in VAGUE:
                places.append(f"{path}:{line}: {name}")
    share = 100 * len(places) / max(total, 1)
    assert share <= GOAL, f"{share:.2f} % of the names are in VAGUE:\n" + "\n".join(places)
