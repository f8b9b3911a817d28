"""Find the wings of this package, which are the folders of papers, such as ``gru/``.

A wing is a subpackage with a ``model.py``, whose import registers its architectures. Its
``__init__.py`` may set ``REGISTERS``, a list of other modules that register something (a criterion,
a schedule, a second model), and ``BITS``, the name of a module whose ``binary_weights`` returns the
weights that a bundle stores as bits. The folder ``commands`` has the wing's subcommands of
``fairseq-ext`` (see :mod:`fairseq_ext.commands`).
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
USER_DIR = PACKAGE / "plugin" / "fairseq_ext_plugin"  # the folder to give to fairseq's `--user-dir`


def names(with_module: str = "model") -> tuple[str, ...]:
    """Return the names of the wings that have a module ``with_module``, in alphabetical order."""
    wings = sorted(path.parent.name for path in PACKAGE.glob("*/model.py"))
    return tuple(wing for wing in wings if (PACKAGE / wing / f"{with_module}.py").is_file())


def declared(attribute: str) -> Iterator[tuple[str, Any]]:
    """Yield ``(package, value)`` for each wing whose ``__init__.py`` defines ``attribute``.

    ``package`` is the wing's full name, such as ``fairseq_ext.gru``.
    """
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
