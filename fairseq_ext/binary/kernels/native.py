"""Find the C kernels, choose their instruction set, and call them.

They are compiled when the package is installed, never later. They run in torch's threads (its
OpenMP team), in ``torch.get_num_threads()`` of them.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import os

import torch
from torch import Tensor

from fairseq_ext.binary.kernels.packing import PackedWeight
from fairseq_ext.utils.errors import ConfigError

logger = logging.getLogger(__name__)

# Each path needs the instructions of those before it. In C they are numbered from -1. `torch` is
# not a C kernel, and `avx512` (without VPOPCNTDQ) counts bits as `avx2` does.
PATHS = ("torch", "c", "avx2", "avx512", "avx512vpopcntdq")
VARIABLE = "FAIRSEQ_EXT_KERNELS"
INTERFACE = 1  # as in kernels.c, so that a library of another version is not called

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_COMMON = [_POINTER] * 5 + [_SIZE] * 4  # words, bound, bias, x, y; rows, inputs, channels, words
_LAST = [_INT, _INT, _POINTER]  # path, threads, team


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None if they were not built, or are of another version."""
    spec = importlib.util.find_spec("fairseq_ext.binary.kernels._native")
    if spec is None or spec.origin is None:
        return None
    try:
        found = ctypes.CDLL(spec.origin)
        current = found.interface() == INTERFACE
    except (OSError, AttributeError):
        return None
    found.linear_1bit.argtypes = [*_COMMON, *_LAST]
    found.linear_1bit_1bit.argtypes = [*_COMMON, _FLOAT, _POINTER, *_LAST]
    return found if current else None


@functools.cache
def _team() -> int | None:
    """Address of the function in torch's OpenMP library that runs a team of threads, or None."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, _POINTER).value
    except (AttributeError, OSError, TypeError):
        return None


@functools.cache
def available_paths() -> tuple[str, ...]:
    """The paths out of :data:`PATHS` that this processor and this installation can run."""
    kernels = library()
    return PATHS[:1] if kernels is None else PATHS[: kernels.best_path() + 2]


@functools.cache
def active_path() -> str:
    """The one of :data:`PATHS` that is used: the last available one.

    The environment variable ``FAIRSEQ_EXT_KERNELS``, read once, chooses an earlier one.

    Raises:
        ConfigError: the variable names a path that is not available.
    """
    if library() is None and not os.environ.get(VARIABLE):
        logger.warning(
            "fairseq-ext was built without its native 1-bit kernels, so packed models run in "
            "torch, many times slower; `fairseq-ext doctor` names the cure."
        )
    return require_path(os.environ.get(VARIABLE) or available_paths()[-1], VARIABLE)


def require_path(path: str, option: str = "path") -> str:
    """``path`` if it is available here, else :class:`ConfigError`."""
    if path not in available_paths():
        raise ConfigError(
            f"`{option}` must be one of {', '.join(available_paths())}, but is `{path}` instead."
        )
    return path


def linear_1bit(x: Tensor, packed: PackedWeight, bias: Tensor | None, path: str) -> Tensor:
    """``[..., K]`` contiguous fp32 to ``[..., channels]``; ``bias`` ``[channels]``."""
    y = x.new_empty((*x.shape[:-1], packed.channels))
    _check(library().linear_1bit(*_arguments(x, packed, bias, y), *_how(path)))
    return y


def linear_1bit_1bit(
    x: Tensor,
    packed: PackedWeight,
    bias: Tensor | None,
    scale: float,
    input_bounds: Tensor | None,
    path: str,
) -> Tensor:
    """As :func:`linear_1bit`; ``input_bounds`` contiguous ``[...]``, one for each row."""
    y = x.new_empty((*x.shape[:-1], packed.channels))
    bounds = None if input_bounds is None else input_bounds.data_ptr()
    arguments = (*_arguments(x, packed, bias, y), scale, bounds, *_how(path))
    _check(library().linear_1bit_1bit(*arguments))
    return y


def _arguments(
    x: Tensor, packed: PackedWeight, bias: Tensor | None, y: Tensor
) -> tuple[int | None, ...]:
    return (
        packed.words.data_ptr(),
        packed.bound.data_ptr(),
        None if bias is None else bias.data_ptr(),
        x.data_ptr(),
        y.data_ptr(),
        x.numel() // packed.in_features,
        packed.in_features,
        packed.channels,
        packed.words.shape[1],
    )


def _how(path: str) -> tuple[int, int, int | None]:
    return PATHS.index(path) - 1, torch.get_num_threads(), _team()


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("No memory for the signs of the inputs.")
