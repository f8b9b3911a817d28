"""Find names that are grammar instead of a thing of the field, for a law in `test_house.py`.

A reader of `hypothesis`, `checkpoint_path` or `token_counts` knows what it is; of `one`, `found` or
`given` only after the whole function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

WORDS = (
    "one ones found given own made whole said of by to at it that which what who whose there here "
    "asked told begun gone taken kept chosen wanted known seen left_over others another again way "
    "thing things something anything does did has had be been both each every much more most many "
    "few less some such same"
)
VAGUE = frozenset(WORDS.split())


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each variable, parameter and function that a module names, with its line."""
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler):
            name = node.name
        if name is not None:
            yield name, node.lineno


def vague_names(folder: Path) -> tuple[list[str], int]:
    """List the vague names of a folder as FILE:LINE: NAME, and count all of its names."""
    places, total = [], 0
    for path in sorted(folder.rglob("*.py")):
        for name, line in bindings(ast.parse(path.read_text(encoding="utf-8"))):
            total += 1
            if name.strip("_") in VAGUE:
                places.append(f"{path}:{line}: {name}")
    return places, total
