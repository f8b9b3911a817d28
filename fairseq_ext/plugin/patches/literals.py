"""Strings that fairseq would evaluate: read as literals, so that none of them can run code.

fairseq calls ``eval()`` on strings of options and of saved configurations in some 40 places of its
models, criterions, optimizers and data sets. A checkpoint whose option ``decoder_attention`` is
``__import__("os").system("…")`` would run that command when the model is built, and torch's safe
loading cannot see it, because a string is plain data.

Every one of these calls looks the name ``eval`` up in its own module first and in ``builtins``
last. :func:`install` therefore puts :func:`literal` under the name ``eval`` into every module of
fairseq and of its commands: at once into those that are imported, and by a finder on
``sys.meta_path`` into those that are imported later, before their first line runs. Python's own
``eval`` stays as it is for everybody else. Modules of other user directories are their owners'
code and keep it, too.

:func:`literal` accepts all that fairseq's options are written with: numbers, strings, booleans,
None, lists, tuples and dictionaries, a sign, and ``+`` and ``*`` of these, as wav2vec 2.0's layers
need: ``[(512, 10, 5)] + [(512, 3, 2)] * 4``. It is a pure function without imports of fairseq.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fairseq_ext.errors import ConfigError
from fairseq_ext.plugin.patches.table import Patch

MOST_CHARACTERS = 100_000
MOST_ELEMENTS = 100_000  # of the result: numbers, characters, containers
MOST_OPERATORS = 100  # but for the sign of a list's element
MOST_BRACKETS = 50  # one within the other
MOST_BITS = 1024  # of an integer; Python would refuse to print one of 4,300 digits
PACKAGES = ("fairseq", "fairseq_cli")

_CONSTANTS = {"True": True, "False": False, "None": None}
_BEFORE_A_SIGN = {"", "(", "[", "{", ",", ":"}
_NUMBERS = (int, float)  # True and False are integers, in Python and here
_SEQUENCES = (str, list, tuple)


class LiteralError(ConfigError):
    """A text that :func:`literal` refuses.

    Attributes:
        text: the whole of it.
        reason: as the end of a sentence.
    """

    text: str = ""
    reason: str = ""


def literal(text: str) -> Any:
    """What a Python expression of literals stands for; nothing in it can run.

    Args:
        text: as ``[(512, 3)] * 4``, ``{"left": True}`` or ``-1.5e-3``.

    Returns:
        What ``eval`` returns for it.

    Raises:
        LiteralError: anything else (a name, a call, an index …), or a text or result that is too
            large or too deep.
        TypeError: it is no string, as from ``eval``.
    """
    if not isinstance(text, str):
        raise TypeError(f"a literal must be written in a string, but is a {type(text).__name__}")
    try:
        _check_tokens(text)
        tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body)[0]
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError,
            tokenize.TokenError) as error:  # fmt: skip
        reason = str(error) if isinstance(error, _Refusal) else "is not one"
        refused = LiteralError(
            f"`{shown(text)}` must be a literal (numbers, strings, True, False, None, lists, "
            f"tuples, dictionaries, `+` and `*` of them), but {reason}; write the value itself, as "
            "`[(512, 3)] * 4`."
        )
        refused.text, refused.reason = text, reason
        raise refused from None


def shown(text: str, most: int = 60) -> str:
    """A text as it is shown in a message: its start, in printable characters."""
    printable = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return printable if len(printable) <= most else f"{printable[:most]}…"


class _Refusal(ValueError):
    """Why a text is no literal, as the end of a sentence."""


def _check_tokens(text: str) -> None:
    """Refuse all but literals, brackets and operators, before Python's parser sees the text.

    That parser recurses in C, and a text of ten thousand signs or brackets can crash it.
    """
    if len(text) > MOST_CHARACTERS:
        raise _Refusal(f"has {len(text):,} characters")
    brackets = operators = 0
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
        kind, said = token.type, token.string
        if kind == tokenize.NAME and said not in _CONSTANTS:
            raise _Refusal(f"has `{shown(said)}` in it")
        if kind == tokenize.STRING and {"f", "b"} & set(said.lower().partition(said[-1])[0]):
            raise _Refusal("has a string with a prefix in it")
        if kind == tokenize.OP:
            brackets += (said in "([{") - (said in ")]}")
            operators += said in "+-*" and before not in _BEFORE_A_SIGN
            if said not in "()[]{},:+-*":
                raise _Refusal(f"has `{said}` in it")
        elif kind not in (tokenize.NAME, tokenize.STRING, tokenize.NUMBER, *_LAYOUT):
            raise _Refusal(f"has `{shown(said)}` in it")
        if brackets > MOST_BRACKETS or operators > MOST_OPERATORS:
            raise _Refusal("is nested too deeply")
        before = said.strip()


_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.COMMENT)


def _value(node: ast.expr) -> tuple[Any, int]:
    """The value of a node, and its size: 1, and the size of each of its elements."""
    match node:
        case ast.Constant(value=str() as value):
            return value, 1 + len(value)
        case ast.Constant(value=None | bool() | int() | float() as value):
            return _number(value), 1
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            values, size = _values(elements)
            return (values if isinstance(node, ast.List) else tuple(values)), size
        case ast.Dict(keys=keys, values=elements) if all(keys):
            names, size = _values(keys)
            values, more = _values(elements)
            return dict(zip(names, values, strict=True)), size + more
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value, size = _value(operand)
            if isinstance(value, _NUMBERS):
                return (-value if isinstance(sign, ast.USub) else +value), size
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum(*_value(left), *_value(right))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(*_value(left), *_value(right))
    raise _Refusal("is not one")


def _values(nodes: Sequence[ast.expr]) -> tuple[list[Any], int]:
    found = [_value(node) for node in nodes]
    return [value for value, _ in found], 1 + sum(size for _, size in found)


def _sum(left: Any, left_size: int, right: Any, right_size: int) -> tuple[Any, int]:
    numbers = isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)
    if not numbers and not (isinstance(left, _SEQUENCES) and type(left) is type(right)):
        raise _Refusal("adds what cannot be added")
    size = 1 if numbers else left_size + right_size - 1  # one sequence is left of two
    return _number(left + right), _bounded(size)


def _product(left: Any, left_size: int, right: Any, right_size: int) -> tuple[Any, int]:
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return _number(left * right), 1
    if isinstance(left, int):
        left, left_size, right = right, right_size, left
    if not (isinstance(left, _SEQUENCES) and isinstance(right, int)):
        raise _Refusal("multiplies what cannot be multiplied")
    size = _bounded(1 + (left_size - 1) * max(right, 0))  # before any memory is taken
    return left * right, size


def _number(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise _Refusal("has too large a number in it")
    return value


def _bounded(size: int) -> int:
    if size > MOST_ELEMENTS:
        raise _Refusal(f"stands for more than {MOST_ELEMENTS:,} elements")
    return size


def covers(name: str) -> bool:
    """Whether a module of this name gets :func:`literal` as its ``eval``."""
    return name.partition(".")[0] in PACKAGES


class LiteralLoader(Loader):
    """A module's own loader; the module has :func:`literal` as its ``eval`` from the start."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the loader itself."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Place :func:`literal`, then run the module's code."""
        module.eval = literal  # type: ignore[attr-defined]
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:  # get_source, get_code, get_data …
        if name == "_loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)


class LiteralFinder(MetaPathFinder):
    """Finds modules of fairseq as all other finders do, and gives them :class:`LiteralLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of fairseq, or None for those of others."""
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
    """Give :func:`literal` to every module of fairseq, imported or yet to be; once per process."""
    if not any(isinstance(finder, LiteralFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, LiteralFinder())
    for module in imported():
        module.eval = literal  # type: ignore[attr-defined]


def imported() -> Iterator[ModuleType]:
    """The modules of fairseq in this process, also that of ``python -m fairseq_cli.train``."""
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
