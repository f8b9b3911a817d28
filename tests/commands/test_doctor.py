"""``fairseq-ext doctor`` in environments that are really broken: fake installations on a path."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_ext.commands import doctor
from fairseq_ext.plugin import installation
from fairseq_ext.utils.errors import EnvironmentProblem
from fairseq_ext.version import TESTED_FAIRSEQ
from tests.support.harness import REPO, run

TESTED = TESTED_FAIRSEQ[1]
DOCTOR = """
import sys
sys.path[1:1] = sys.argv[1:]
sys.argv = ["fairseq-ext", "doctor", "--json", "report.json"]
from fairseq_ext.cli import main
main()
"""


def install(site: Path, name: str, version: str, **packages: str) -> None:
    """Lay down what pip would: metadata, and each package with its ``__init__`` code."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "top_level.txt").write_text("\n".join(packages))
    for package, code in packages.items():
        folder = site / package.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(code)


def examine(tmp_path: Path, *sites: Path) -> tuple[int, dict[str, dict[str, str]], str]:
    """Exit status, checks by topic and table of a doctor who sees nothing but ``sites``."""
    command = [sys.executable, "-S", "-c", DOCTOR, str(REPO), *map(str, sites)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"] == (done.returncode == 0)
    return done.returncode, {check["topic"]: check for check in report["checks"]}, done.stdout


def test_empty_environment(tmp_path):
    status, checks, table = examine(tmp_path)
    assert status == 1
    assert checks["numpy"]["status"] == "ERROR"
    assert "pip install" in checks["numpy"]["cure"]
    assert checks["training"]["status"] == "note"
    assert checks["training"]["cure"].endswith("pip install 'fairseq-ext[train]'")
    assert checks["libraries"]["status"] == "warning"
    project = (REPO / "pyproject.toml").read_text("utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.M | re.S)[1]
    numpy, *libraries = re.findall(r'^ *"([\w-]+)', listed, re.M)
    assert numpy == "numpy"
    assert checks["libraries"]["cure"] == f"pip install {' '.join(libraries)}"
    assert checks["recipes' libraries"]["status"] == "note"
    assert "pip install matplotlib scipy tokenizers" in checks["recipes' libraries"]["cure"]
    assert {"torch", "fairseq"}.isdisjoint(checks)
    assert "ERROR    numpy" in table
    assert table.rstrip().endswith("essential problem(s)")


def test_torch_without_fairseq_is_half_an_installation(tmp_path):
    install(tmp_path / "site", "torch", "2.13.0", torch="get_num_threads = int")
    status, checks, _ = examine(tmp_path, tmp_path / "site")
    assert status == 1
    for topic in ("fairseq", "import fairseq"):
        assert checks[topic]["status"] == "ERROR"
        assert "pip install" in checks[topic]["cure"]
    assert f"--no-build-isolation fairseq-fixed=={TESTED}" in checks["fairseq"]["cure"]


def test_two_distributions_of_fairseq(tmp_path):
    site = tmp_path / "site"
    install(site, "fairseq", "0.12.2", fairseq="")
    install(site, "fairseq-fixed", TESTED, fairseq="", fairseq_cli="")
    status, checks, table = examine(tmp_path, site)
    assert status == 1
    assert checks["fairseq"]["status"] == "ERROR"
    assert f"fairseq 0.12.2, fairseq-fixed {TESTED}" in checks["fairseq"]["finding"]
    assert "pip uninstall -y fairseq fairseq-fixed && " in checks["fairseq"]["cure"]
    assert checks["fairseq"]["cure"] in table  # unbroken, to be copied


def test_check_single_fairseq(tmp_path, monkeypatch):
    installation.check_single_fairseq()  # the environment of these tests has one
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "fairseq", "0.12.2", fairseq="")
    with pytest.raises(EnvironmentProblem, match=r"`fairseq` and `fairseq-fixed` both .*uninstall"):
        installation.check_single_fairseq()


def test_one_distribution_found_twice_is_one(tmp_path):
    sites = [tmp_path / "one", tmp_path / "two"]
    for site in sites:
        install(site, "fairseq_fixed", TESTED, fairseq="", **{"fairseq.models": ""})
    assert examine(tmp_path, *sites)[1]["fairseq"]["status"] == "ok"


def test_fairseq_that_does_not_import(tmp_path):
    site = tmp_path / "site"
    code = "raise ValueError('mutable default <class CommonConfig> is not allowed')"
    install(site, "fairseq", "0.12.2", fairseq=code)
    status, checks, _ = examine(tmp_path, site)
    assert status == 1
    assert checks["fairseq"]["status"] == "note"
    assert "fairseq-fixed" in checks["import fairseq"]["cure"]
    assert checks["import fairseq"]["finding"].startswith("ValueError: mutable default")


@pytest.mark.parametrize(
    ("name", "version", "package", "status", "cure"),
    [
        ("fairseq-fixed", f"{TESTED}.1", "fairseq", "note", TESTED),
        ("torch", "2.5.1+cu121", "torch", "ERROR", "pip install 'torch>=2.6'"),
    ],
)
def test_other_versions(tmp_path, name, version, package, status, cure):
    install(tmp_path / "site", name, version, **{package: ""})
    check = examine(tmp_path, tmp_path / "site")[1][package]
    assert check["status"] == status
    assert cure in check["cure"]


def test_fairseq_from_a_source_folder(tmp_path):
    (tmp_path / "site/fairseq").mkdir(parents=True)
    (tmp_path / "site/fairseq/__init__.py").touch()
    check = examine(tmp_path, tmp_path / "site")[1]["fairseq"]
    assert (check["status"], "source folder" in check["finding"]) == ("note", True)


@pytest.mark.parametrize(("free", "status"), [(100e9, "ok"), (2e9, "warning"), (1e8, "ERROR")])
def test_free_disk(monkeypatch, free, status):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check = next(doctor._machine())
    assert check.status == status
    assert bool(check.cure) == (status != "ok")


@pytest.mark.parametrize(
    ("version", "status"), [((3, 9), "ERROR"), ((3, 10), "ok"), ((3, 12), "ok"), ((3, 13), "ERROR")]
)
def test_python_version(monkeypatch, version, status):
    monkeypatch.setattr(sys, "version_info", version)
    assert next(doctor._python()).status == status
    monkeypatch.setattr(doctor, "_is_for_training", lambda: False)
    assert next(doctor._python()).status == ("ok" if version == (3, 13) else status)


@pytest.mark.system
def test_this_environment_passes(tmp_path):
    done = run("fairseq-ext", "doctor", "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    checks = {check["topic"]: check for check in report["checks"]}
    assert checks["import fairseq"]["status"] == "ok"
    assert "gru_attention" in checks["fairseq-ext"]["finding"]
    assert "of kind repair" in checks["changes to fairseq"]["finding"]
    assert "Traceback" not in done.stderr
    assert done.stdout.rstrip().endswith("ready")
