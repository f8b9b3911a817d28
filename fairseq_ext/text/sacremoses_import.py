"""Import two modules of sacremoses without its package, which loads libraries that we never use.

``sacremoses/__init__.py`` takes 0.4 seconds: it imports joblib and tqdm, for work in several
processes, and compiles some forty expressions of ten thousand characters each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType

NAME = "sacremoses"


@contextmanager
def _without_package() -> Iterator[None]:
    """Replace the package with an empty module while modules in its folder are imported."""
    spec = None if NAME in sys.modules else find_spec(NAME)
    if spec is None:  # already imported, or not installed: then the import will fail
        yield
        return
    stand_in = ModuleType(NAME)
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[NAME] = stand_in
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


with _without_package():
    from sacremoses.corpus import NonbreakingPrefixes
    from sacremoses.normalize import MosesPunctNormalizer

__all__ = ["MosesPunctNormalizer", "NonbreakingPrefixes"]
