"""The contents that a checkpoint may have: plain data of bounded size that names no code to run.

torch's safe loading keeps code out. What it lets through can still do harm when it is traversed
later: parts that contain themselves or each other (a few hundred bytes that stand for 2^40
entries), a tensor of one number that claims to be 10^12, an interpolation that OmegaConf would
answer from the environment, and ``_target_``, which hydra would import and call. Nothing in
fairseq 0.12 does the last; nothing shall. No import of fairseq; torch alone.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fairseq_ext.utils.errors import CheckpointError

MOST_ENTRIES = 2_000_000  # of all containers, each counted as often as it is referred to
DEEPEST = 50
MOST_POSITIONS = 1_000_000
MOST_TABLE_BYTES = 512 << 20  # of sines and cosines, a row for each position
SPARE_BYTES = 64 << 20  # what tensors may claim beyond four times the file
SPARE_PARAMETERS = 10_000_000  # what a model may have beyond eight times the file's numbers
HYDRA = ("_target_", "_recursive_", "_partial_", "_convert_")

_LEAVES = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.Size, np.generic),
)
_INERT = re.compile(r"[^$]*\$\{(\w+(?:\.\w+)*)\}[^$]*")  # refers to one other option, by its path


def require_plain(value: Any, file_bytes: int) -> None:
    """Check that a loaded value is plain data, finite, and no larger than its file.

    Args:
        value: nested dictionaries, lists, tuples, sets and ``Namespace`` of numbers, strings,
            arrays and tensors.
        file_bytes: size of the file that it came from.

    Raises:
        CheckpointError: another object, a string or key for hydra or OmegaConf to resolve, or a
            size out of proportion. The message is the end of a sentence about the file.
    """
    entries, claimed = 0, 0
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        parts = _parts(one)
        entries += len(parts)
        if entries > MOST_ENTRIES or depth > DEEPEST:
            raise CheckpointError("has parts that contain each other, or far too many of them")
        todo.extend((part, depth + 1) for part in parts)
        claimed += _bytes(one)
        if claimed > 4 * file_bytes + SPARE_BYTES:
            raise CheckpointError("has tensors that claim to be larger than the file")


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):  # by its class: an attribute of a file may stand for a method
        return [*dict.keys(value), *dict.values(value), *getattr(value, "__dict__", {}).values()]
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, Tensor):
        return [*vars(value).values()]
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []


def _bytes(value: Any) -> int:
    """Bytes of a tensor's or array's numbers, 0 for other plain data."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise CheckpointError("has a tensor of a kind that no model of fairseq saves")
        return Tensor.numel(value) * Tensor.element_size(value)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise CheckpointError("has an array of Python objects")
        return value.size * value.itemsize
    if isinstance(value, dict) and not getattr(value, "__dict__", {}).keys() <= {"_metadata"}:
        raise CheckpointError("has a dictionary with attributes")
    if not isinstance(value, (*_LEAVES, Mapping, Namespace, list, tuple, set, frozenset)):
        raise CheckpointError(f"has an object of type `{type(value).__name__}`")
    return 0


def require_inert(settings: Any) -> None:
    """Check that a saved configuration has nothing for hydra or OmegaConf to run or to look up.

    A text may refer to one other option, but not to a whole section or list: a dozen sections that
    refer twice to the next one each would be thousands.

    Args:
        settings: after :func:`require_plain`; what it refers to is in it.

    Raises:
        CheckpointError: as there.
    """
    sections: dict[int, dict[str, Any]] = {}
    todo = [settings]
    while todo:
        one = todo.pop()
        todo.extend(_parts(one))
        if isinstance(one, str) and one in HYDRA:
            raise CheckpointError(f"has the key `{one}`, which is an instruction to import code")
        if isinstance(one, str) and "${" in one and not _refers_to_one(one, settings, sections):
            raise CheckpointError(f"has the text `{one:.60}`, which would be resolved")


def _refers_to_one(text: str, settings: Any, sections: dict[int, dict[str, Any]]) -> bool:
    """``sections`` remembers the names of each section, which many texts may refer to."""
    found = _INERT.fullmatch(text)
    if found is None or isinstance(settings, Namespace):  # the old form has no references
        return False
    for name in found[1].split("."):
        if isinstance(settings, list | tuple):
            return False
        if not isinstance(settings, Mapping):
            return True  # it refers to nothing
        if id(settings) not in sections:
            sections[id(settings)] = {str(key): value for key, value in settings.items()}
        settings = sections[id(settings)].get(name)
    return not _parts(settings)


def option_of(settings: Any, text: str) -> str:
    """The name of the option whose value is ``text``, for a message; `an option` if there is none.

    Args:
        settings: nested dictionaries and ``Namespace``, plain and finite.
    """
    found = (name for name, one in _options(settings) if isinstance(one, str) and one == text)
    return next(found, "an option")


@contextmanager
def no_larger_than(state: Mapping[str, Any]) -> Iterator[None]:
    """While the block builds models, refuse what the state's numbers could not fill.

    A configuration of a few bytes may ask for a billion layers. Parameters are counted as modules
    get them, before they are initialized, which is when their memory would be taken.

    Raises:
        CheckpointError: in the block. The message is the end of a sentence about the file.
    """
    sizes = [value.numel() for value in state.values() if isinstance(value, Tensor)]
    most, numbers = 8 * len(sizes) + 1000, 8 * sum(sizes) + SPARE_PARAMETERS

    def count(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal most, numbers
        most -= 1
        numbers -= 0 if parameter is None else parameter.numel()
        if most < 0 or numbers < 0:
            raise CheckpointError("describes a far larger model than the one it holds")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _options(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of all sections."""
    todo: list[Any] = [settings]
    while todo:
        one = todo.pop()
        fields = vars(one) if isinstance(one, Namespace) else one
        if isinstance(fields, Mapping):
            yield from ((str(name), value) for name, value in fields.items())
        todo.extend(_parts(one))


def require_sizes(settings: Mapping[str, Any]) -> None:
    """Check numbers of positions, because fairseq fills tables of that size.

    Args:
        settings: a model's options, and those that they refer to; sections may be nested.

    Raises:
        CheckpointError: there are above a million, too many for the width of the model, or what
            fairseq would make a number of. The message is the end of a sentence.
    """

    def largest(end: str) -> tuple[int, str]:
        found = [(0, "")]
        for name, value in _options(settings):
            refers = isinstance(value, str) and "${" in value  # to another option, seen by itself
            named = name.endswith(end) and not name.endswith("ffn_embed_dim")
            if not named or value is None or refers:
                continue
            if not isinstance(value, int):
                raise CheckpointError(f"has `{name}` {value!r:.40}, which is not a whole number")
            found.append((value, name))
        return max(found)

    (positions, name), (channels, width) = largest("positions"), largest("embed_dim")
    if positions > MOST_POSITIONS:
        raise CheckpointError(f"has `{name}` {positions:,}; at most {MOST_POSITIONS:,} are allowed")
    if 4 * positions * channels > MOST_TABLE_BYTES:
        raise CheckpointError(
            f"has `{name}` {positions:,} and `{width}` {channels:,}, whose table of positions "
            f"would take more than {MOST_TABLE_BYTES >> 20} MiB"
        )
