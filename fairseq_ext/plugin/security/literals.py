"""Read the strings that fairseq would pass to ``eval()`` as literals, so that none can run code.

fairseq calls ``eval()`` on strings of options and of saved configurations in some 40 places of its
models, criterions, optimizers and data sets. A checkpoint whose option ``decoder_attention`` is
``__import__("os").system("…")`` would run that command when the model is built, and torch's safe
loading cannot see it, because a string is plain data.

Each of these calls looks up the name ``eval`` first in its own module and last in ``builtins``. So
:func:`install` puts :func:`fairseq_ext.utils.literals.literal` under the name ``eval`` into every
module of fairseq and of its commands: at once into those that are imported, and by a finder on
``sys.meta_path`` into those that are imported later, before their first line runs.
Python's own ``eval`` does not change for other packages, nor for modules of other user directories,
whose code the user trusts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fairseq_ext.plugin.table import COMMANDS, Patch
from fairseq_ext.utils.literals import literal

PACKAGES = ("fairseq", "fairseq_cli")


def covers(name: str) -> bool:
    """Whether the module ``name`` gets :func:`literal` as its ``eval``."""
    return name.partition(".")[0] in PACKAGES


class LiteralLoader(Loader):
    """A module's own loader, which also sets :func:`literal` as its ``eval`` from the start.

    The functions of a command's module are patched after it has been loaded.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its usual loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Set :func:`literal`, run the module's code, then patch a command's functions."""
        module.eval = literal  # type: ignore[attr-defined]
        self._loader.exec_module(module)
        if module.__name__.startswith(COMMANDS):
            from fairseq_ext.plugin import patches  # which imports this module

            patches.complete(module.__name__)

    def __getattr__(self, name: str) -> Any:  # get_source, get_code, get_data …
        if name == "_loader":  # it is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)


class LiteralFinder(MetaPathFinder):
    """A finder that finds fairseq's modules by the others, with a :class:`LiteralLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of fairseq, or None for other modules."""
        if not covers(fullname):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if find is None or isinstance(finder, LiteralFinder):
                continue
            spec = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = LiteralLoader(spec.loader)
                return spec
        return None


def install() -> None:
    """Give :func:`literal` to all modules of fairseq, imported now or later, once per process."""
    if not any(isinstance(finder, LiteralFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, LiteralFinder())
    for module in imported():
        module.eval = literal  # type: ignore[attr-defined]


def imported() -> Iterator[ModuleType]:
    """Yield fairseq's modules in this process, also that of ``python -m fairseq_cli.train``."""
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            name = getattr(getattr(module, "__spec__", None), "name", None) or ""
        if module is not None and covers(name):
            yield module


PATCHES = (
    Patch(
        name="no string is evaluated",
        reason="fairseq calls eval() on strings of saved configurations, so that a checkpoint of "
        "plain data can run any command",
        act=install,
    ),
)
