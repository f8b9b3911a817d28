"""Find the wings of this package. A wing is the folder of a paper, such as ``gru/``.

Each wing has a ``model.py``, whose import registers the paper's architectures with fairseq. The
folder ``commands`` has the wing's subcommands of ``fairseq-ext`` (see :mod:`fairseq_ext.commands`).
The wing's ``__init__.py`` may set:

- ``REGISTERS``: names of other modules that register something with fairseq, such as a criterion, a
  learning rate schedule or a second model.
- ``BITS``: the name of a module whose function ``binary_weights`` returns the weights that
  ``fairseq-ext bundle --numbers bits`` stores as bits.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
USER_DIR = PACKAGE / "plugin" / "fairseq_ext_plugin"  # the folder to give to fairseq's `--user-dir`


def names(with_module: str = "model") -> tuple[str, ...]:
    """Return the names of the wings that have a file ``{with_module}.py``, sorted."""
    wings = sorted(path.parent.name for path in PACKAGE.glob("*/model.py"))
    return tuple(wing for wing in wings if (PACKAGE / wing / f"{with_module}.py").is_file())


def declared(attribute: str) -> Iterator[tuple[str, Any]]:
    """Yield the full package name and the value of ``attribute`` of each wing that defines it."""
    for wing in names():
        package = importlib.import_module(f"fairseq_ext.{wing}")
        if hasattr(package, attribute):
            yield package.__name__, getattr(package, attribute)


def load() -> None:
    """Import the modules of all four papers that register models, criterions and schedules."""
    for wing in names():
        importlib.import_module(f"fairseq_ext.{wing}.model")
    for package, modules in declared("REGISTERS"):
        for module in modules:
            importlib.import_module(f"{package}.{module}")
