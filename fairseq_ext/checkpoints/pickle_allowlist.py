"""The calls that the pickle of a checkpoint may make.

torch's safe loading calls the functions of a list with arguments of the file. Some of them take any
amount of memory for a few bytes: ``torch.Tensor(10**9)``, ``bytearray(10**9)``, ``set`` and
``OrderedDict`` of an expanded tensor, ``_codecs.encode`` to hexadecimal digits, again and again.
What torch.save writes for a checkpoint of fairseq needs a few of these functions, with few kinds of
arguments. Nothing is called here.
"""

from __future__ import annotations

import pickletools
from typing import Any

from fairseq_ext.checkpoints.numpy_pickles import STAND_INS

_REBUILD = {
    f"torch._utils._rebuild_{what}"
    for what in ("tensor_v2", "tensor_v3", "parameter", "parameter_with_state")
}
_HARMLESS = {*_REBUILD, "torch.device", *(name for _, name in STAND_INS)}
_LIST, _OTHER = object(), object()
_PUSHED = {
    **{"EMPTY_LIST": _LIST, "EMPTY_TUPLE": ()},
    **dict.fromkeys(("NONE", "NEWFALSE", "NEWTRUE", "EMPTY_DICT", "EMPTY_SET"), _OTHER),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1"), _OTHER),
}
_POPPED = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}  # below is what they change
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(str):
    """A function or class that the pickle names, with its module."""


def unusual(content: bytes) -> str | None:
    """The first call in a pickle that no checkpoint of fairseq has, by name, or None.

    Args:
        content: the pickle. Where it is damaged the search ends, because torch, which reads on from
            the same start, does not get further.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    try:
        for code, argument, _ in pickletools.genops(content):
            name = code.name
            if name in ("REDUCE", "NEWOBJ"):
                arguments, called = stack.pop(), stack.pop()
                if not _is_usual(called, arguments):
                    return called if isinstance(called, _Name) else "an object of its own"
                stack.append(_OTHER)
            elif name == "GLOBAL":
                stack.append(_Name(argument.replace(" ", ".", 1)))
            elif name in ("BINUNICODE", "SHORT_BINSTRING"):
                stack.append(argument)
            elif name in _PUSHED:
                stack.append(_PUSHED[name])
            elif name in _TUPLES:
                stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
            elif name in _POPPED:
                del stack[-_POPPED[name] :]
            elif name == "MARK":
                marks.append(len(stack))
            elif name in ("APPENDS", "SETITEMS"):
                del stack[marks.pop() :]
            elif name == "TUPLE":
                begin = marks.pop()
                stack[begin:] = [tuple(stack[begin:])]
            elif name == "BINPERSID":
                stack[-1] = _OTHER
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name not in ("PROTO", "STOP"):
                return name  # of an instruction, which torch.save does not use
    except (ValueError, LookupError):
        pass
    return None


def _is_usual(called: Any, arguments: Any) -> bool:
    if not isinstance(called, _Name) or not isinstance(arguments, tuple):
        return False
    if called in ("collections.OrderedDict", "argparse.Namespace"):
        return not arguments
    if called in ("builtins.set", "__builtin__.set"):
        return arguments == (_LIST,)
    if called == "torch.Size":
        return len(arguments) == 1 and isinstance(arguments[0], tuple)
    if called == "_codecs.encode":  # the bytes of numpy's arrays
        return len(arguments) == 2 and arguments[1] == "latin1"
    if called == "torch._tensor._rebuild_from_type_v2":  # of a tensor with attributes
        return isinstance(arguments[0], _Name) and arguments[0] in _REBUILD
    return called in _HARMLESS
