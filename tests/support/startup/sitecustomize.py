"""Defer the imports of scikit-learn and `scipy.stats`, which take a third of fairseq's start.

fairseq imports them only for the scores of its classifiers. A process with this folder in
``PYTHONPATH`` imports them only if it calls one of their functions, or reads another name.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FUNCTIONS = {
    "sklearn": (),
    "sklearn.metrics": ("f1_score", "matthews_corrcoef"),
    "scipy.stats": ("pearsonr", "spearmanr"),
}
"""Modules, and which of their functions fairseq imports by name."""


class Deferred(MetaPathFinder, Loader):
    """Find the modules of :data:`FUNCTIONS`, and leave them empty until they are used."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in FUNCTIONS else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__dict__.update({function: later(name, function) for function in FUNCTIONS[name]})
        module.__dict__["__getattr__"] = lambda attribute: read(name, attribute)


def later(name: str, function: str) -> Callable[..., Any]:
    """Return a function that imports the real one when it is called."""
    return lambda *args, **options: read(name, function)(*args, **options)


def read(name: str, attribute: str) -> Any:
    """Replace the empty module with the real one; return an attribute of it."""
    if attribute.startswith("__"):  # for code that inspects all modules
        raise AttributeError(attribute)
    if f"{name}.{attribute}" in FUNCTIONS:  # another deferred module
        return importlib.import_module(f"{name}.{attribute}")
    if DEFERRED in sys.meta_path:
        sys.meta_path.remove(DEFERRED)
        for empty in FUNCTIONS:
            sys.modules.pop(empty, None)
    return getattr(importlib.import_module(name), attribute)


DEFERRED = Deferred()
sys.meta_path.insert(0, DEFERRED)
