"""The wings of this package, one folder for each paper, found by themselves.

A wing is a subpackage with a ``model.py``, whose import registers its architectures. Other modules
that register something (a criterion, a schedule, a second model) are named in ``REGISTERS`` of the
wing's ``__init__.py``, and its subcommands of ``fairseq-ext`` in ``COMMANDS`` there. Rows of its
own for the table of patches are in its ``patches.py``.
"""

from __future__ import annotations

import importlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def names(with_module: str = "model") -> tuple[str, ...]:
    """The wings that have the module ``with_module``, in alphabetical order."""
    wings = sorted(path.parent.name for path in PACKAGE.glob("*/model.py"))
    return tuple(wing for wing in wings if (PACKAGE / wing / f"{with_module}.py").is_file())


def load() -> None:
    """Import what registers architectures, criterions and schedules with fairseq.

    Raises:
        EnvironmentProblem: the name of an architecture is taken.
    """
    for wing in names():
        package = importlib.import_module(f"fairseq_ext.{wing}")
        for module in ("model", *getattr(package, "REGISTERS", ())):
            importlib.import_module(f"fairseq_ext.{wing}.{module}")
