"""Read Python literals in options without ``eval``.

:func:`literal` accepts everything that fairseq's options use: numbers, strings, booleans, None,
lists, tuples and dictionaries, a sign, and ``+`` and ``*`` of these for wav2vec 2.0's layers:
``[(512, 10, 5)] + [(512, 3, 2)] * 4``. It is a pure function without imports of fairseq.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from typing import Any

from fairseq_ext.utils.errors import ConfigError

MOST_CHARACTERS = 100_000
MOST_ELEMENTS = 100_000  # of the result: numbers, characters, containers
MOST_OPERATORS = 100  # not counting the signs of list elements
MOST_BRACKETS = 50  # nested
MOST_BITS = 1024  # of an integer; Python would refuse to print one of 4,300 digits

_CONSTANTS = {"True": True, "False": False, "None": None}
_BEFORE_A_SIGN = {"", "(", "[", "{", ",", ":"}
_NUMBERS = (int, float)  # True and False are integers, in Python and here
_SEQUENCES = (str, list, tuple)


class LiteralError(ConfigError):
    """A text that :func:`literal` refuses.

    Attributes:
        text: the whole text.
        reason: why it is refused, as the end of a sentence.
    """

    text: str = ""
    reason: str = ""


def literal(text: str) -> Any:
    """Evaluate a Python expression of literals, without running code.

    Args:
        text: such as ``[(512, 3)] * 4``, ``{"left": True}`` or ``-1.5e-3``.

    Returns:
        The value that ``eval`` returns for it.

    Raises:
        LiteralError: the text has anything else (a name, a call, an index …), or it or its value
            is too large or too deep.
        TypeError: it is not a string, as from ``eval``.
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


def shown(text: str, limit: int = 60) -> str:
    """Shorten a text for a message: its start, in printable characters."""
    printable = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return printable if len(printable) <= limit else f"{printable[:limit]}…"


class _Refusal(ValueError):
    """The reason why a text is not a literal, as the end of a sentence."""


def _check_tokens(text: str) -> None:
    """Refuse all but literals, brackets and operators before Python's parser sees the text.

    The parser recurses in C, and a text of ten thousand signs or brackets can crash it.
    """
    if len(text) > MOST_CHARACTERS:
        raise _Refusal(f"has {len(text):,} characters")
    brackets = operators = 0
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
        kind, word = token.type, token.string
        if kind == tokenize.NAME and word not in _CONSTANTS:
            raise _Refusal(f"has `{shown(word)}` in it")
        if kind == tokenize.STRING and {"f", "b"} & set(word.lower().partition(word[-1])[0]):
            raise _Refusal("has a string with a prefix in it")
        if kind == tokenize.OP:
            brackets += (word in "([{") - (word in ")]}")
            operators += word in "+-*" and before not in _BEFORE_A_SIGN
            if word not in "()[]{},:+-*":
                raise _Refusal(f"has `{word}` in it")
        elif kind not in (tokenize.NAME, tokenize.STRING, tokenize.NUMBER, *_LAYOUT):
            raise _Refusal(f"has `{shown(word)}` in it")
        if brackets > MOST_BRACKETS or operators > MOST_OPERATORS:
            raise _Refusal("is nested too deeply")
        before = word.strip()


_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.COMMENT)


def _value(node: ast.expr) -> tuple[Any, int]:
    """Evaluate a node; return the value and its size: 1 plus the sizes of its elements."""
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
            values, element_size = _values(elements)
            return dict(zip(names, values, strict=True)), size + element_size
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
    pairs = [_value(node) for node in nodes]
    return [value for value, _ in pairs], 1 + sum(size for _, size in pairs)


def _sum(left: Any, left_size: int, right: Any, right_size: int) -> tuple[Any, int]:
    numbers = isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)
    if not numbers and not (isinstance(left, _SEQUENCES) and type(left) is type(right)):
        raise _Refusal("adds what cannot be added")
    size = 1 if numbers else left_size + right_size - 1  # two sequences become one
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
