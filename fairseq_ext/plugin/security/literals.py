"""Read the strings that fairseq would pass to ``eval()`` as literals, so that none can run code.

fairseq calls ``eval()`` on options and saved configurations in some 40 places. A checkpoint whose
option ``decoder_attention`` is ``__import__("os").system("…")`` would run that command when the
model is built; torch's safe loading does not see it, because a string is plain data.

A call looks up the name ``eval`` first in its own module. So every module of fairseq and of its
commands gets :func:`fairseq_ext.utils.literals.literal` under this name: at once if it is imported,
or else before its first line runs. Other packages and user directories keep Python's ``eval``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fairseq_ext.plugin.table import COMMANDS, Patch, around
from fairseq_ext.utils.literals import literal

PACKAGES = ("fairseq", "fairseq_cli")


@around("importlib.machinery:SourceFileLoader.exec_module")
def _without_eval(original: Callable, self: Any, module: ModuleType) -> None:
    """Give a module :func:`literal` as ``eval``, run its code, then patch a command's functions."""
    if module.__name__.partition(".")[0] not in PACKAGES:
        return original(self, module)
    module.eval = literal  # type: ignore[attr-defined]
    original(self, module)
    if module.__name__.startswith(COMMANDS):
        from fairseq_ext.plugin import patches  # which imports this module

        patches.complete(module.__name__)


def install() -> None:
    """Give :func:`literal` to fairseq's modules in this process, that of ``python -m`` included."""
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            name = getattr(getattr(module, "__spec__", None), "name", None) or ""
        if module is not None and name.partition(".")[0] in PACKAGES:
            module.eval = literal  # type: ignore[attr-defined]


PATCHES = (
    Patch(
        name="no string is evaluated",
        reason="fairseq calls eval() on strings of saved configurations, so that a checkpoint of "
        "plain data can run any command",
        act=install,
        layers=(_without_eval,),
    ),
)
