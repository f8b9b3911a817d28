"""Find out which room of the package uses which other room, for the rules in `test_house.py`.

A room is a folder, or a module such as `cli.py`, at the root of the package. The subcommands of a
single architecture, in its folder `commands`, are a room of their own: a command may use every
room, but the architecture's mathematics may not.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Uses = dict[str, dict[str, set[str]]]  # room → rooms that it uses → places, as FILE:LINE

MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
C_FILES = {".c", ".h", ".inc", ".cu", ".cpp"}


class House:
    """The source of a package, read without importing it."""

    def __init__(self, package: Path) -> None:
        self.package = package.resolve()
        self.name = self.package.name
        self.modules = sorted(self.package.rglob("*.py"))
        self.c_files = sorted(path for path in self.package.rglob("*") if path.suffix in C_FILES)
        self.rooms = {self.room_of(path) for path in self.modules}
        self.reexports = self._reexports()

    def room_of(self, path: Path) -> str:
        """Name the room of a file of the package; "" for the package's own ``__init__.py``."""
        parts = path.relative_to(self.package).with_suffix("").parts
        if len(parts) > 2 and parts[1] == "commands":
            return f"{parts[0]}.commands"
        return "" if parts == ("__init__",) else parts[0]

    def room_of_name(self, dotted: str) -> str | None:
        """Name the room of `PACKAGE.a.b`, or of a re-exported name; None for other packages."""
        package, *parts = dotted.split(".")
        if package != self.name:
            return None
        if not parts:
            return ""
        if ".".join(parts[:2]) in self.rooms:
            return ".".join(parts[:2])
        return parts[0] if parts[0] in self.rooms else self.reexports.get(parts[0], "")

    def _reexports(self) -> dict[str, str]:
        """Find the rooms of the names that the package's own `__init__.py` imports."""
        self.reexports: dict[str, str] = {}
        path = self.package / "__init__.py"
        names: dict[str, str] = {}
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if path.exists() else ():
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    room = self.room_of_name(f"{self._source(node, path)}.{alias.name}")
                    if room:
                        names[alias.asname or alias.name] = room
        return names

    def _source(self, node: ast.ImportFrom, path: Path) -> str:
        """Return the absolute name of the module in a `from … import`."""
        if not node.level:
            return node.module or ""
        parts = [self.name, *path.relative_to(self.package).parent.parts]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *filter(None, [node.module])])

    def names_in(self, path: Path) -> Iterator[tuple[str, int]]:
        """Yield every dotted name of the package that a module mentions in code, with its line.

        These are imports, at the top and inside functions; attributes of imported names
        (`PACKAGE.a.b`); and strings that name a module, such as arguments of `importlib`.
        """
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bound: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                source = self._source(node, path)
                for alias in node.names:
                    yield f"{source}.{alias.name}", node.lineno
                    bound[alias.asname or alias.name] = f"{source}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name != self.name:  # `import PACKAGE` alone takes nothing from a room
                        yield alias.name, node.lineno
                    root = alias.name.partition(".")[0]
                    bound[alias.asname or root] = alias.name if alias.asname else root
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                attributes = [node.attr]
                value = node.value
                while isinstance(value, ast.Attribute):
                    attributes.append(value.attr)
                    value = value.value
                if isinstance(value, ast.Name) and value.id in bound:
                    yield ".".join([bound[value.id], *reversed(attributes)]), node.lineno
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value.partition(":")[0]
                if MODULE.fullmatch(name) and self._is_module(name):
                    yield name, node.lineno

    def _is_module(self, dotted: str) -> bool:
        package, *parts = dotted.split(".")
        path = self.package.joinpath(*parts)
        return package == self.name and (path.is_dir() or path.with_suffix(".py").is_file())

    def uses(self) -> Uses:
        """Map each room to the other rooms that it uses, in Python or C, and the places."""
        used: Uses = {room: defaultdict(set) for room in self.rooms}
        for path in self.modules:
            for name, line in self.names_in(path):
                self._add(used, path, line, self.room_of_name(name))
        for path in self.c_files:
            text = path.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                header = (path.parent / match[1]).resolve()
                assert header.is_file(), f"{path}: there is no {match[1]}"
                line = text.count("\n", 0, match.start()) + 1
                self._add(used, path, line, self.room_of(header))
        return used

    def _add(self, used: Uses, path: Path, line: int, room: str | None) -> None:
        user = self.room_of(path)
        if room is not None and room != user:
            place = f"{path.relative_to(self.package.parent)}:{line}"
            used.setdefault(user, defaultdict(set))[room].add(place)


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
