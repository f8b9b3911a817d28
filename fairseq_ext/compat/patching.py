"""How a fix is described, and how a function of fairseq is wrapped: the base of this package."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fix:
    """One repair of fairseq for today's Python, torch and numpy.

    ``needed`` and ``apply`` import fairseq themselves, so that the list of fixes can be shown
    where fairseq is missing.
    """

    name: str
    """Short name, as ``fairseq-ext doctor`` shows it."""
    reason: str
    """What goes wrong without it."""
    until: str
    """When this fix can be deleted."""
    apply: Callable[[], None]
    needed: Callable[[], bool] = lambda: True


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace ``owner.name`` by ``make(owner.name)``, once per ``make``.

    Args:
        owner: a module or a class. Name the module that *uses* the function where it was taken
            over by ``from … import``.
        name: a function, a method, or a static or class method (which stays one).
        make: takes the original and returns the replacement. A module-level function: its
            qualified name tells whether this replacement is already there.

    Raises:
        AttributeError: ``owner`` has no such attribute.
    """
    declared = inspect.getattr_static(owner, name)
    kind = type(declared) if isinstance(declared, staticmethod | classmethod) else None
    original = declared.__func__ if kind else declared
    maker = f"{make.__module__}.{make.__qualname__}"

    layer = original
    while layer is not None:
        if getattr(layer, "_wrapped_by", None) == maker:
            return
        layer = getattr(layer, "__wrapped__", None)

    # Attributes are not copied: fairseq keeps state on its functions.
    replacement = functools.update_wrapper(make(original), original, updated=())
    replacement._wrapped_by = maker
    setattr(owner, name, kind(replacement) if kind else replacement)
