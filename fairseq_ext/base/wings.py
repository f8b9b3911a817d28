"""Find the wings of this package: one folder for each paper, without a list of them.

A wing is a subpackage with a ``model.py``, whose import registers its architectures. Other modules
that register something (a criterion, a schedule, a second model) are named in ``REGISTERS`` of the
wing's ``__init__.py``. Its own rows of the table of patches are in its ``patches.py``, and its
subcommands of ``fairseq-ext`` in its folder ``commands`` (see :mod:`fairseq_ext.commands`).
``PORTRAIT`` names the module whose ``portrait(checkpoint)`` gives the demo pictures of a model,
``BITS`` the module whose ``binary_weights`` gives the weights that a bundle keeps as bits.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
USER_DIR = PACKAGE / "plugin" / "fairseq_ext_plugin"
"""The folder to give to fairseq's ``--user-dir``."""


def names(with_module: str = "model") -> tuple[str, ...]:
    """Return the wings that have the module ``with_module``, in alphabetical order."""
    wings = sorted(path.parent.name for path in PACKAGE.glob("*/model.py"))
    return tuple(wing for wing in wings if (PACKAGE / wing / f"{with_module}.py").is_file())


def declared(attribute: str) -> Iterator[tuple[str, Any]]:
    """Yield what wings declare as ``attribute`` in ``__init__.py``, with each package's name."""
    for wing in names():
        package = importlib.import_module(f"fairseq_ext.{wing}")
        if hasattr(package, attribute):
            yield package.__name__, getattr(package, attribute)


def load() -> None:
    """Import the modules that register architectures, criterions and schedules with fairseq."""
    for wing in names():
        importlib.import_module(f"fairseq_ext.{wing}.model")
    for package, modules in declared("REGISTERS"):
        for module in modules:
            importlib.import_module(f"{package}.{module}")
