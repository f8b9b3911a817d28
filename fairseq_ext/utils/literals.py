"""Read Python literals in options without ``eval``.

:func:`literal` accepts everything that fairseq's options use: numbers with a sign or without,
strings, booleans, None, lists, tuples, dictionaries, and the operators ``+`` and ``*``, as in
wav2vec 2.0's layers: ``[(512, 10, 5)] + [(512, 3, 2)] * 4``. Nothing here imports fairseq.
"""

import ast
import warnings
from collections.abc import Iterable
from typing import Any

from fairseq_ext.utils.errors import ConfigError

MOST_CHARACTERS = 100_000
MOST_ELEMENTS = 100_000  # most numbers, characters and containers in the result
MOST_OPERATORS = 1_000  # each may copy MOST_ELEMENTS
MOST_BITS = 1024  # most bits of an integer; Python would refuse to print 4,300 digits

_SEQUENCES = (str, list, tuple)
_FAULTS = (SyntaxError, ValueError, TypeError, ArithmeticError, RuntimeError, MemoryError)


class LiteralError(ConfigError):
    """The error for a text that :func:`literal` refuses."""


def literal(text: str) -> Any:
    """Evaluate an expression of literals, such as ``[(512, 3)] * 4``, as ``eval`` does.

    Raises:
        LiteralError: the text has a name, a call, an index or the like, or the text or its value
            is too large or too deeply nested.
        TypeError: ``text`` is not a string (``eval`` raises the same).
    """
    if not isinstance(text, str):
        raise TypeError(f"a literal must be written in a string, but is a {type(text).__name__}")
    try:
        if len(text) > MOST_CHARACTERS or text.count("+") + text.count("*") > MOST_OPERATORS:
            raise ValueError
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a text can cause a SyntaxWarning
            tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body)[0]
    except _FAULTS:
        raise LiteralError(
            f"`{text:.60}` must be a short literal (numbers, strings, True, False, None, lists, "
            "tuples, dictionaries, `+` and `*` of them), such as `[(512, 3)] * 4`."
        ) from None


def literal_or(text: str, default: Any) -> Any:
    """Evaluate ``text`` like :func:`literal`; return ``default`` if it is refused."""
    try:
        return literal(text)
    except LiteralError:
        return default


def _value(node: ast.expr) -> tuple[Any, int]:
    """Evaluate a syntax node; return the value and its size, 1 plus the sizes of its elements."""
    match node:
        case ast.Constant(value=str() as value):
            return value, 1 + len(value)
        case ast.Constant(value=None | bool() | int() | float() as value):
            if isinstance(value, int) and value.bit_length() > MOST_BITS:
                raise ValueError
            return value, 1
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            values, size = _values(elements)
            return (values if isinstance(node, ast.List) else tuple(values)), size
        case ast.Dict(keys=keys, values=elements) if all(keys):
            names, size = _values(filter(None, keys))
            values, element_size = _values(elements)
            return dict(zip(names, values, strict=True)), size + element_size
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value, size = _value(operand)
            return (-value if isinstance(sign, ast.USub) else +value), size
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, first_size = _value(left)
            second, second_size = _value(right)
            size = first_size + second_size - 1  # two sequences become one
            return first + second, _bounded(size if isinstance(first, _SEQUENCES) else 1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            (first, size), (times, times_size) = _value(left), _value(right)
            if isinstance(times, _SEQUENCES):
                first, size, times = times, times_size, first
            if isinstance(first, _SEQUENCES) and isinstance(times, int):
                size = _bounded(1 + (size - 1) * max(times, 0))  # before any memory is taken
            return first * times, size
    raise ValueError


def _values(nodes: Iterable[ast.expr]) -> tuple[list[Any], int]:
    pairs = [_value(node) for node in nodes]
    return [value for value, _ in pairs], 1 + sum(size for _, size in pairs)


def _bounded(size: int) -> int:
    if size > MOST_ELEMENTS:
        raise ValueError
    return size
