"""What is built from a clone: complete archives and honest extras."""

import functools
import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fairseq_ext.utils import extras
from tests.support.harness import REPO, run

tomllib = pytest.importorskip("tomllib")  # of Python 3.11
SETTINGS = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))
PROJECT = SETTINGS["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {"fairseq": "fairseq-fixed", "fairseq_cli": "fairseq-fixed", "hydra": "hydra-core"}
NOT_BUILT = (
    *(".venv", "runs", "build", "dist", "site", ".git", ".hypothesis", "__pycache__"),
    *("*.so", "*.egg-info", "*.pyc", "*_cache"),
)
AS_FAIRSEQ_DOES = """
import sys
from argparse import Namespace
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir=sys.argv[1]))
print(*ARCH_MODEL_REGISTRY)
"""


def distribution(module: str) -> str:
    """The distribution that a module comes from."""
    return DISTRIBUTIONS.get(module, module.replace("_", "-"))


def names(requirements: list[str]) -> set[str]:
    """Distributions, with those of the extras that are named among them."""
    distributions = set()
    for requirement in requirements:
        if extra_names := re.fullmatch(r"fairseq-ext\[(.*)\]", requirement):
            for extra in extra_names[1].split(","):
                distributions |= names(EXTRAS[extra])
        else:
            distributions.add(re.match(r"[\w-]+", requirement)[0].lower())
    return distributions


def test_every_library_names_the_extra_that_installs_it() -> None:
    for module, extra in extras.EXTRAS.items():
        assert distribution(module) in names(EXTRAS[extra]), module
        assert module not in names(PROJECT["dependencies"])


def test_mypy_finds_the_same_whichever_extras_are_installed() -> None:
    installed = names([*PROJECT["dependencies"], "fairseq-ext[train,dev]"])
    libraries = [name for name in extras.EXTRAS if distribution(name) not in installed]
    overrides = SETTINGS["tool"]["mypy"]["overrides"]
    skipped = next(entry for entry in overrides if entry.get("follow_imports") == "skip")
    assert skipped["module"] == sorted(f"{library}.*" for library in libraries)


def test_the_page_on_installing_names_every_extra() -> None:
    page = (REPO / "docs/howto/install.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(EXTRAS)


def test_an_installation_by_hand_satisfies_the_recipes() -> None:
    """The README installs the extra `recipes`, and what the tests use is in `dev`."""
    assert "-e '.[recipes]'" in (REPO / "README.md").read_text("utf-8")
    installed = names([*PROJECT["dependencies"], "fairseq-ext[recipes]"])
    needed = {
        module
        for script in (REPO / "recipes").rglob("*.sh")
        for words in re.findall(r"^ +use_environment (.*)$", script.read_text("utf-8"), re.M)
        for module in words.split()
        if module.isidentifier()
    }
    assert {"sacremoses", "scipy", "subword_nmt"} <= needed
    assert set(map(distribution, needed)) <= installed
    assert installed <= names([*PROJECT["dependencies"], "fairseq-ext[dev]"])


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (("plot", "curves", "--log", "a=b", "-o", "c.png"), "matplotlib"),
        (("scaling-fit", "table.json"), "scipy"),
    ],
)
def test_a_library_that_is_missing_is_one_line_with_its_extra(tmp_path, command, module) -> None:
    hide = f"import sys; sys.modules[{module!r}] = None; from fairseq_ext import cli; cli.main()"
    done = run(sys.executable, "-c", hide, *command, cwd=tmp_path, ok=False)
    cure = f"`pip install 'fairseq-ext[{extras.EXTRAS[module]}]'`"
    assert done.stderr == f"fairseq-ext: error: `{module}` is not installed: {cure}.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_build_without_the_kernels_says_so(tmp_path: Path) -> None:
    build = (sys.executable, "setup.py", "-q", "build_ext")
    where = ("--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp")
    done = run(*build, *where, cwd=REPO, CC="false")
    assert "WARNING: fairseq-ext is built WITHOUT its engine" in done.stderr
    run(*build, *where, cwd=REPO, CC="false", FAIRSEQ_EXT_REQUIRE_KERNELS="1", ok=False)


def clone(folder: Path) -> set[str]:
    """Copy the files of the repository, without what a build or a run has left there."""
    shutil.copytree(REPO, folder, ignore=shutil.ignore_patterns(*NOT_BUILT))
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[set[str], Path, Path]:
    """The files of a clone, the sdist made of them, and the wheel made of the sdist."""
    folder = tmp_path_factory.mktemp("built")
    files = clone(folder / "clone")
    code = "from setuptools import build_meta; build_meta.build_sdist('../dist')"
    run(sys.executable, "-c", code, cwd=folder / "clone")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    compiler = folder / "cc"  # without optimization, in a fraction of the time
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*pip, "--no-index", "-w", folder / "wheels", sdist, cwd=folder, CC=str(compiler))
    (wheel,) = (folder / "wheels").glob("*.whl")
    return files, sdist, wheel


def test_the_source_distribution_is_the_whole_clone(built) -> None:
    files, sdist, _ = built
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    ignored = {".gitignore", ".git"}
    assert files - members - ignored == set()


def test_the_wheel_has_every_file_of_the_package(built) -> None:
    files, _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
        (metadata,) = (name for name in members if name.endswith(".dist-info/METADATA"))
        described = archive.read(metadata).decode()
    package = {name for name in files if name.startswith("fairseq_ext/")}
    sources = ("avx2.c", "engine.h", "arithmetic.inc")
    native = {f"fairseq_ext/engine/native/{name}" for name in sources}
    assert {"fairseq_ext/py.typed", *native} <= package
    assert "fairseq_ext/plugin/fairseq_ext_plugin/__init__.py" in package
    assert package - members == set()
    assert {name.partition("/")[0].partition("-")[0] for name in members} == {"fairseq_ext"}
    if shutil.which("cc"):
        assert "fairseq_ext/engine/_machine.so" in members
    assert "-py3-none-" in wheel.name  # for every Python
    assert "License-Expression: MIT" in described


@pytest.mark.long
def test_the_wheel_works_in_an_empty_environment(built, tmp_path: Path) -> None:
    """From any folder: the commands first alone, then with this environment's libraries."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    pip = (sys.executable, "-m", "pip", f"--python={python}", "install", "-q", "--no-deps")
    run(*pip, "--no-index", built[2])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    call = functools.partial(run, cwd=elsewhere, PYTHONPATH="")
    command = venv / "bin" / "fairseq-ext"
    assert call(command, "--version").stdout.startswith("fairseq-ext ")
    call(command, "--help")
    empty = call(command, "doctor", ok=False)
    assert empty.returncode == 1
    assert "ERROR    numpy" in empty.stdout
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    assert call(command, "doctor").stdout.endswith("\nready\n")
    folder = call(command, "user-dir").stdout.strip()
    assert Path(folder).is_relative_to(site)
    architectures = call(python, "-c", AS_FAIRSEQ_DOES, folder).stdout.split()
    assert {"gru_attention", "muse", "linformer", "bmt"} <= set(architectures)
    assert list(elsewhere.iterdir()) == []
