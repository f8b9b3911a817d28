"""``fairseq-ext doctor``: say whether this installation works, and what cures it if not.

Each check is one line: ``ok``, ``note`` (worth knowing), ``warning`` (something will be missing
or slow) or ``ERROR`` (training or translating cannot work), with its cure. Versions are read
from package metadata, so that most checks work even if a package cannot be imported. An
installation with neither torch nor fairseq is complete except for training.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_ext.commands import options
from fairseq_ext.commands.options import Subparsers
from fairseq_ext.plugin import installation
from fairseq_ext.utils import extras
from fairseq_ext.version import (
    OLDEST_TORCH,
    PYTHONS,
    PYTHONS_WITHOUT_TRAINING,
    TESTED_FAIRSEQ,
)

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "ERROR"
LIBRARIES = (
    *("sacrebleu", "sacremoses", "subword-nmt", "safetensors", "filelock"),
    *("fastapi", "uvicorn", "prometheus-client", "python-multipart"),
)
RECIPES = ("matplotlib", "scipy", "tokenizers", "sentencepiece")  # the extra
LOW_DISK, NO_DISK = 5e9, 0.5e9  # bytes; a training run's checkpoints, a single checkpoint


@dataclass(frozen=True)
class Check:
    """The result of a check: its status, what was checked, what was found, and the cure."""

    status: str
    topic: str
    finding: str
    cure: str = ""


def add(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation and name the cure of each problem",
        description="One line per check; the exit status is 1 when something essential is wrong.",
    )
    parser.add_argument(
        "--patches",
        action="store_true",
        help="list the functions of fairseq that this plugin changes, and why, instead of checking",
    )
    options.add_json(parser, "the checks, or the patches")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    if args.patches:
        from fairseq_ext.plugin import patches, table

        options.write_json(args.json, table.as_json(patches.PATCHES))
        print(table.as_text(patches.PATCHES))
        return 0
    checks = examine()
    ready = all(check.status != ERROR for check in checks)
    options.write_json(args.json, {"ok": ready, "checks": [asdict(check) for check in checks]})
    print(as_table(checks))
    return 0 if ready else 1


def examine() -> list[Check]:
    """Run every check; none of them raises."""
    checks: list[Check] = []
    training: tuple[Callable[[], list[Check]], ...]
    training = (_torch, _fairseq_distribution, _plugin)
    if not _is_for_training():
        training = (_without_training,)
    for group in (_python, *training, _numpy, _libraries, _engine, _machine):
        try:
            checks += group()
        except Exception as error:  # a broken package may raise anything
            topic = group.__name__.strip("_").replace("_", " ")
            checks.append(Check(ERROR, topic, f"{type(error).__name__}: {error}", "reinstall it"))
    return checks


def as_table(checks: Sequence[Check]) -> str:
    """Format the checks as aligned lines, each with its cure."""
    topic = max(len(check.topic) for check in checks)
    indent = " " * (7 + 2 + topic + 2)
    lines = []
    for check in checks:
        wrapped = textwrap.wrap(check.finding, 110 - len(indent), break_on_hyphens=False) or [""]
        lines.append(f"{check.status:<7}  {check.topic:<{topic}}  {wrapped[0]}")
        lines += [indent + rest for rest in wrapped[1:]]
        if check.cure:
            lines.append(f"{indent}cure: {check.cure}")  # unbroken, for copying
    wrong = sum(check.status == ERROR for check in checks)
    lines.append(f"\n{wrong} essential problem(s)" if wrong else "\nready")
    return "\n".join(lines)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Parse ``"2.13.0+cpu"`` to ``(2, 13)``."""
    match = re.match(r"\d+(?:\.\d+)?", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _python() -> list[Check]:
    version = f"{sys.version.split()[0]} ({sys.executable})"
    supported = PYTHONS if _is_for_training() else (*PYTHONS, *PYTHONS_WITHOUT_TRAINING)
    if ".".join(map(str, sys.version_info[:2])) not in supported:
        return [Check(ERROR, "Python", version, f"use Python {' or '.join(supported)}")]
    return [Check(OK, "Python", version)]


def _is_for_training() -> bool:
    """Return whether torch or any fairseq is installed; if so, both are checked."""
    return any(importlib.util.find_spec(name) for name in ("torch", "fairseq")) or bool(
        _version("torch") or installation.fairseq_distributions()
    )


def _without_training() -> list[Check]:
    finding = (
        "torch and fairseq are not installed; translating, serving, scoring and comparing work"
    )
    cure = f"for training: pip install 'fairseq-ext[{extras.EXTRAS['fairseq']}]'"
    version = importlib.import_module("fairseq_ext").__version__
    return [Check(OK, "fairseq-ext", version), Check(NOTE, "training", finding, cure)]


def _torch() -> list[Check]:
    version = _version("torch")
    cure = f"pip install 'torch>={OLDEST_TORCH}'"
    if version is None:
        return [Check(ERROR, "torch", "not installed", cure)]
    if _release(version) < _release(OLDEST_TORCH):
        return [Check(ERROR, "torch", f"{version} is too old to load checkpoints safely", cure)]
    torch = importlib.import_module("torch")
    checks = [Check(OK, "torch", f"{version}, {torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        name, bf16 = torch.cuda.get_device_name(0), torch.cuda.is_bf16_supported()
        kind = f"{torch.cuda.device_count()} × {name}, bf16 {'yes' if bf16 else 'no'}"
        checks.append(Check(OK, "CUDA", kind))
    elif Path("/dev/nvidia0").exists():
        finding = "this machine has an NVIDIA device that torch cannot use"
        checks.append(Check(WARNING, "CUDA", finding, "install torch's CUDA build and a driver"))
    else:
        native = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
        finding = f"none; training runs on the CPU, bf16 {'in hardware' if native else 'emulated'}"
        checks.append(Check(NOTE, "CUDA", finding))
    return checks


def _fairseq_distribution() -> list[Check]:
    names = installation.fairseq_distributions()
    versions = ", ".join(f"{name} {_version(name)}" for name in names)
    if len(names) > 1:
        finding = f"{versions}: both write into the same folder"
        return [Check(ERROR, "fairseq", finding, installation.reinstall(names))]
    if not names:
        if importlib.util.find_spec("fairseq") is None:
            return [Check(ERROR, "fairseq", "not installed", installation.INSTALL_FAIRSEQ)]
        finding = "a source folder on Python's path, of unknown version"
        return [Check(NOTE, "fairseq", finding, f"tested is {' '.join(TESTED_FAIRSEQ)}")]
    if versions == " ".join(TESTED_FAIRSEQ):
        return [Check(OK, "fairseq", f"{versions} (the tested one)")]
    broken = names == ["fairseq"] and _release(_version("fairseq") or "") <= (0, 12)
    if broken and sys.version_info >= (3, 11):
        finding = f"{versions} does not import on Python 3.11 and later"
        return [Check(ERROR, "fairseq", finding, installation.reinstall(names))]
    return [Check(NOTE, "fairseq", versions, f"tested is {' '.join(TESTED_FAIRSEQ)}")]


def _quietly(action: Callable[[], Any]) -> str | None:
    """Run ``action`` without its output; return its exception in one line, or None."""
    silent = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(silent):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(silent):
                action()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _plugin() -> list[Check]:
    """Import fairseq, register the plugin, and list its architectures and changes to fairseq."""
    failure = _quietly(lambda: importlib.import_module("fairseq.models"))
    if failure:
        return [Check(ERROR, "import fairseq", failure, installation.INSTALL_FAIRSEQ)]
    checks = [Check(OK, "import fairseq", "works")]
    import fairseq_ext

    failure = _quietly(fairseq_ext.register)
    if failure:
        cure = "see the message; uninstall the other plugin, or reinstall fairseq-ext"
        return [*checks, Check(ERROR, "fairseq-ext", failure, cure)]
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_ext.plugin import patches

    names = sorted(
        name
        for name, model in ARCH_MODEL_REGISTRY.items()
        if model.__module__.startswith("fairseq_ext.")
    )
    finding = f"{fairseq_ext.__version__}, architectures: {', '.join(names) or 'none'}"
    checks.append(Check(OK, "fairseq-ext", finding))
    kinds = Counter(patch.kind for patch in patches.PATCHES)
    counts = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(kinds.items()))
    finding = f"{len(patches.PATCHES)}: {counts}; `fairseq-ext doctor --patches` lists them"
    return [*checks, Check(OK, "changes to fairseq", finding)]


def _numpy() -> list[Check]:
    version = _version("numpy")
    cure = "pip install 'numpy>=1.26'"
    if version is None:
        return [Check(ERROR, "numpy", "not installed", cure)]
    failure = _quietly(lambda: importlib.import_module("numpy"))
    if failure:
        return [Check(ERROR, "numpy", f"{version}: {failure}", cure)]
    if _release(version) < (1, 26):
        return [Check(WARNING, "numpy", f"{version} is older than any tested version", cure)]
    return [Check(OK, "numpy", version)]


def _libraries() -> list[Check]:
    checks = []
    for names, status, topic in (
        (LIBRARIES, WARNING, "libraries"),
        (RECIPES, NOTE, "recipes' libraries"),
    ):
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        listing = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())
        cure = f"pip install {' '.join(missing)}" if missing else ""
        checks.append(Check(status if missing else OK, topic, listing, cure))
    return checks


def _engine() -> list[Check]:
    from fairseq_ext.engine import library

    if library.available_paths():
        return [Check(OK, "engine", library.active_path())]
    if not _is_for_training():
        cure = "install a C compiler, then: pip install --force-reinstall --no-deps fairseq-ext"
        return [Check(ERROR, "engine", "not compiled; nothing translates without fairseq", cure)]
    cure = "install a C compiler, then: pip install --no-build-isolation -e ."
    return [Check(WARNING, "engine", "not compiled; fairseq's generator is used", cure)]


def _machine() -> list[Check]:
    free = shutil.disk_usage(Path.cwd()).free
    status = OK if free >= LOW_DISK else WARNING if free >= NO_DISK else ERROR
    cure = "" if status == OK else "free some space, or work on another disk"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return [
        Check(status, "free disk", f"{free / 1e9:.1f} GB in {Path.cwd()}", cure),
        Check(OK, "CPU", f"{usable} usable cores, OMP_NUM_THREADS {threads}"),
    ]
