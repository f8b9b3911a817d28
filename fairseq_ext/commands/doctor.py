"""``fairseq-ext doctor`` checks this installation; ``user-dir`` prints the plugin's folder.

Each check prints a line that begins with ``ok``, ``note`` (worth knowing), ``warning`` (something
will be missing or slow) or ``ERROR`` (training or translating cannot work). The cure follows on a
line of its own. Versions are read from package metadata, so that most checks work even if a package
cannot be imported. Training and checkpoints need torch and fairseq; an installation may lack both.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_ext import __version__
from fairseq_ext.base.wings import USER_DIR
from fairseq_ext.commands import options
from fairseq_ext.plugin import installation
from fairseq_ext.utils import extras
from fairseq_ext.version import OLDEST_TORCH, PYTHONS, PYTHONS_WITHOUT_TRAINING, TESTED_FAIRSEQ

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "ERROR"
LIBRARIES = (  # that the package requires, besides numpy
    *("regex", "sacrebleu", "sacremoses", "subword-nmt", "safetensors", "tqdm", "filelock"),
    *("pydantic", "starlette", "uvicorn", "prometheus-client", "python-multipart"),
)
RECIPES = ("matplotlib", "scipy", "tokenizers", "sentencepiece")  # of the extra `recipes`
LOW_DISK, NO_DISK = 5e9, 0.5e9  # bytes for a run's checkpoints, and for a single checkpoint


@dataclass(frozen=True)
class Check:
    """The result of a check of the installation."""

    status: str  # OK, NOTE, WARNING or ERROR
    topic: str  # what was checked, such as "torch"
    finding: str  # what was found, such as a version
    cure: str = ""  # how to solve the problem, if there is one


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the installation and name the cure of each problem",
        description="Print the result of each check, with the cure of each problem; exit with "
        "status 1 if something essential is wrong.",
        example="fairseq-ext doctor --patches",
    )
    parser.add_argument(
        "--patches",
        action="store_true",
        help="list the functions of fairseq that this plugin changes, and why, instead of checking",
    )
    options.add_json(parser, "the checks or the patches")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    if args.patches:
        from fairseq_ext.plugin import patches

        options.write_json(args.json, patches.as_json())
        print(patches.as_text())
        return 0
    checks = examine()
    ready = all(check.status != ERROR for check in checks)
    options.write_json(args.json, {"ok": ready, "checks": [asdict(check) for check in checks]})
    print(as_table(checks))
    return 0 if ready else 1


def examine() -> list[Check]:
    """Run every check; if a check raises an exception, its result has the status ``ERROR``."""
    checks: list[Check] = []
    training = (_torch, _fairseq_distribution, _plugin)
    groups = training if _is_for_training() else (_without_training,)
    for group in (_python, *groups, _libraries, _engine, _machine):
        try:
            checks += group()
        except Exception as error:  # a broken package may raise anything
            topic = group.__name__.strip("_").replace("_", " ")
            checks.append(Check(ERROR, topic, f"{type(error).__name__}: {error}", "reinstall it"))
    return checks


def as_table(checks: Sequence[Check]) -> str:
    """Format the checks as aligned lines, each with its cure."""
    topic = max(len(check.topic) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<7}  {check.topic:<{topic}}  {check.finding}")
        if check.cure:
            lines.append(f"{'':<{topic + 11}}cure: {check.cure}")
    wrong = sum(check.status == ERROR for check in checks)
    lines.append(f"\n{wrong} essential problem(s)" if wrong else "\nready")
    return "\n".join(lines)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Parse ``"2.13.0+cpu"`` into ``(2, 13)``."""
    match = re.match(r"\d+(?:\.\d+)?", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _is_for_training() -> bool:
    """Return whether torch, or any version or fork of fairseq, is installed."""
    is_importable = any(importlib.util.find_spec(name) for name in ("torch", "fairseq"))
    return is_importable or bool(_version("torch") or installation.fairseq_distributions())


def _python() -> Iterator[Check]:
    version = f"{sys.version.split()[0]} ({sys.executable})"
    supported = PYTHONS if _is_for_training() else (*PYTHONS, *PYTHONS_WITHOUT_TRAINING)
    if ".".join(map(str, sys.version_info[:2])) in supported:
        yield Check(OK, "Python", version)
    else:
        yield Check(ERROR, "Python", version, f"use Python {' or '.join(supported)}")


def _without_training() -> Iterator[Check]:
    yield Check(OK, "fairseq-ext", __version__)
    yield Check(
        NOTE,
        "training",
        "torch and fairseq are not installed; translating, serving, scoring and comparing work",
        f"for training: pip install 'fairseq-ext[{extras.EXTRAS['fairseq']}]'",
    )


def _torch() -> Iterator[Check]:
    version, cure = _version("torch"), f"pip install 'torch>={OLDEST_TORCH}'"
    if version is None:
        yield Check(ERROR, "torch", "not installed", cure)
        return
    if _release(version) < _release(OLDEST_TORCH):
        yield Check(ERROR, "torch", f"{version} is too old to load checkpoints safely", cure)
        return
    torch = importlib.import_module("torch")
    yield Check(OK, "torch", f"{version}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        bf16 = "yes" if torch.cuda.is_bf16_supported() else "no"
        name = f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}"
        yield Check(OK, "CUDA", f"{name}, bf16 {bf16}")
    elif Path("/dev/nvidia0").exists():
        finding = "this machine has an NVIDIA device that torch cannot use"
        yield Check(WARNING, "CUDA", finding, "install torch's CUDA build and a driver")
    else:
        bf16 = "in hardware" if torch.cpu._is_avx512_bf16_supported() else "emulated"
        yield Check(NOTE, "CUDA", f"none; training runs on the CPU, bf16 {bf16}")


def _fairseq_distribution() -> Iterator[Check]:
    names, tested = installation.fairseq_distributions(), " ".join(TESTED_FAIRSEQ)
    versions = ", ".join(f"{name} {_version(name)}" for name in names)
    if len(names) > 1:
        finding = f"{versions}: both write into the same folder"
        yield Check(ERROR, "fairseq", finding, installation.reinstall(names))
    elif versions == tested:
        yield Check(OK, "fairseq", f"{versions} (the tested one)")
    elif not names and importlib.util.find_spec("fairseq") is None:
        yield Check(ERROR, "fairseq", "not installed", installation.INSTALL_FAIRSEQ)
    else:
        finding = versions or "a source folder on Python's path, of unknown version"
        yield Check(NOTE, "fairseq", finding, f"the tested version is {tested}")


def _quietly(action: Callable[[], Any]) -> str | None:
    """Run ``action``, but print nothing; return its exception in one line, or None."""
    text = io.StringIO()
    with warnings.catch_warnings(), redirect_stderr(text), redirect_stdout(text):
        warnings.simplefilter("ignore")
        try:
            action()
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _plugin() -> Iterator[Check]:
    """Import fairseq and register the plugin; list architectures and changes to fairseq."""
    if failure := _quietly(lambda: importlib.import_module("fairseq.models")):
        yield Check(ERROR, "import fairseq", failure, installation.INSTALL_FAIRSEQ)
        return
    yield Check(OK, "import fairseq", "works")
    from fairseq_ext.plugin import patches, register

    if failure := _quietly(register):
        cure = "see the message; uninstall the other plugin, or reinstall fairseq-ext"
        yield Check(ERROR, "fairseq-ext", failure, cure)
        return
    from fairseq.models import ARCH_MODEL_REGISTRY

    models = ARCH_MODEL_REGISTRY.items()
    names = sorted(name for name, model in models if model.__module__.startswith("fairseq_ext."))
    yield Check(OK, "fairseq-ext", f"{__version__}, architectures: {', '.join(names) or 'none'}")
    kinds = Counter(patch.kind for patch in patches.PATCHES)
    counts = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(kinds.items()))
    finding = f"{len(patches.PATCHES)}: {counts}; `fairseq-ext doctor --patches` lists them"
    yield Check(OK, "changes to fairseq", finding)


def _libraries() -> Iterator[Check]:
    for names, status, topic in (
        (("numpy",), ERROR, "numpy"),
        (LIBRARIES, WARNING, "libraries"),
        (RECIPES, NOTE, "recipes' libraries"),
    ):
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        listing = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())
        cure = f"pip install {' '.join(missing)}" if missing else ""
        yield Check(status if missing else OK, topic, listing, cure)


def _engine() -> Iterator[Check]:
    from fairseq_ext.engine import library

    cure = "install a C compiler, then: pip install "
    if library.available_paths():
        yield Check(OK, "engine", library.active_path())
    elif _is_for_training():
        finding = "not compiled; fairseq's generator is used"
        yield Check(WARNING, "engine", finding, f"{cure}--no-build-isolation -e .")
    else:
        finding = "not compiled; nothing translates without fairseq"
        yield Check(ERROR, "engine", finding, f"{cure}--force-reinstall --no-deps fairseq-ext")


def _machine() -> Iterator[Check]:
    free = shutil.disk_usage(Path.cwd()).free
    status = OK if free >= LOW_DISK else WARNING if free >= NO_DISK else ERROR
    cure = "" if status == OK else "free some space, or work on another disk"
    yield Check(status, "free disk", f"{free / 1e9:.1f} GB in {Path.cwd()}", cure)
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    cores = len(os.sched_getaffinity(0))
    yield Check(OK, "CPU", f"{cores} usable cores, OMP_NUM_THREADS {threads}")


def add_user_dir(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "user-dir",
        help="print the folder to give to fairseq's --user-dir",
        description="Print the folder of the plugin, which fairseq's commands take as --user-dir: "
        'fairseq-train … --user-dir "$(fairseq-ext user-dir)"',
        example='fairseq-train data-bin --user-dir "$(fairseq-ext user-dir)" --arch gru_attention',
    )
    parser.set_defaults(run=lambda _: print(USER_DIR))
