"""Multiply fp32 matrices with oneDNN: faster where torch's own choice is slow, or in bf16.

torch multiplies fp32 matrices with MKL, which uses AVX-512 on Intel's processors only. oneDNN, also
part of torch, uses AVX-512 on all processors that have it. On AMD's processors of family 26
(Zen 5), a matrix product of training takes half the time with oneDNN. On those of family 25
(Zen 4), whose vector units have 256 bits, AVX-512 gains nothing. The two libraries add in different
orders, so results differ by rounding.

On request, both factors and the result of a large product are rounded to bf16 (8 bits of mantissa).
oneDNN sums in fp32, and the result is returned in fp32. A processor with instructions for bf16
(AVX512-BF16, AMX) computes such a product in about half the time, or less. Small products stay in
fp32, and so do products of batches of matrices, such as those within attention.

Shapes: ``A [M, K]``, ``B [K, N]``.
"""

import contextlib
import functools
import inspect
import os
import re
import timeit
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

TIMED = (256, 128, 512)
"""M, K and N of the product that is timed: tokens, and a feed-forward layer of 128 channels."""

LEAST = 8_000_000
"""Fewest multiplications in a product that oneDNN computes. Compiling code for a new number of rows
takes it some 0.4 ms, which half a dozen products of this size make up for."""

FULL_WIDTH = 26
"""The first family of AMD's processors whose vector units have all 512 bits of AVX-512."""

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A function that computes ``A B + bias`` of fp32 matrices."""

CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
"""How many compiled products oneDNN and torch's layer above it keep; both read this from the
environment at their first product. Each number of rows is compiled separately, to some 0.3 MiB, and
an update needs thirty. With the default of 1,024 for each, a training would fill gigabytes."""


@functools.cache
def is_slow(processors: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether MKL is slow on this processor and :func:`is_replaceable` is true.

    MKL is slow on AMD's processors from family 26 on.

    ``processors`` is the file in which Linux describes the processors.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available():
        return False
    try:
        text = processors.read_text()
    except (OSError, UnicodeDecodeError):
        return False
    family = re.search(r"^cpu family\s*: (\d+)$", text, re.MULTILINE)
    wide = family is not None and int(family[1]) >= FULL_WIDTH and "AuthenticAMD" in text
    return wide and hasattr(torch.ops.mkldnn, "_linear_pointwise") and is_replaceable()


def is_replaceable() -> bool:
    """Return whether :func:`by_onednn` works: torch must have oneDNN and replaceable kernels."""
    parameters = inspect.signature(torch.library.Library.impl).parameters
    return torch.backends.mkldnn.is_available() and "allow_override" in parameters


@contextlib.contextmanager
def by_onednn(bf16: bool = False) -> Iterator[None]:
    """Compute large products of fp32 matrices on the CPU by oneDNN, inside a ``with`` block.

    This includes products in backward passes. If ``bf16``, factors and results are rounded to bf16.
    """
    product = _bf16_product if bf16 else _product
    for name, capacity in CACHES.items():
        os.environ.setdefault(name, capacity)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that a kernel is replaced
        for function in (mm, addmm, addmm_):
            kernel = partial(function, product)
            library.impl(function.__name__, kernel, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def mm(product: Product, a: Tensor, b: Tensor) -> Tensor:
    """Compute ``A B``: by ``product`` if the matrices are large and fp32, otherwise by torch."""
    if _is_large(a, b):
        return product(a, b, None)
    return torch.mm(a, b, out=a.new_empty(a.size(0), b.size(1)))  # torch's own kernel


def addmm(
    product: Product, added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Compute ``β added + α A B``: by ``product`` if it can, otherwise by torch.

    ``product`` can if the matrices are large and fp32, ``added`` is a bias ``[N]``, and β and α
    are 1.
    """
    is_bias = added.dim() == 1 and added.size(0) == b.size(1) and added.is_contiguous()
    if is_bias and beta == alpha == 1 and added.dtype == a.dtype and _is_large(a, b):
        return product(a, b, added)
    out = a.new_empty(a.size(0), b.size(1))
    return torch.addmm(added, a, b, beta=beta, alpha=alpha, out=out)


def addmm_(
    product: Product, sums: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Compute ``β sums + α A B`` in ``sums``: by ``product`` if it can, otherwise by torch.

    ``product`` can if the matrices are large and fp32, and β and α are 1.
    """
    if beta == alpha == 1 and sums.dtype == a.dtype and _is_large(a, b):
        return sums.add_(product(a, b, None))
    return torch.addmm(sums, a, b, beta=beta, alpha=alpha, out=sums)


def _is_large(a: Tensor, b: Tensor) -> bool:
    fits = a.dtype == b.dtype == torch.float32 and a.dim() == b.dim() == 2
    return fits and a.size(1) == b.size(0) and a.size(0) * a.size(1) * b.size(1) >= LEAST


def _product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    weight = b.t()
    if not (weight.is_contiguous() or b.is_contiguous()):
        weight = weight.contiguous()  # other strides use oneDNN's slow reference
    return torch.ops.mkldnn._linear_pointwise(a, weight, bias, "none", [], "")


def _bf16_product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    product = torch.mm(a.bfloat16(), b.bfloat16()).float()
    return product if bias is None else product.add_(bias)


def times_as_long(converted: bool) -> float:
    """Measure a matrix product on the CPU; return its time in bf16, divided by its time in fp32.

    If ``converted``, the time in bf16 includes the conversion of the factors from fp32.
    """
    fp32 = torch.ones(*TIMED[:2]), torch.ones(*TIMED[1:])
    with torch.no_grad():
        with by_onednn() if is_slow() else contextlib.nullcontext():
            of_fp32 = _seconds(*fp32)
        if not converted:
            return _seconds(*(factor.bfloat16() for factor in fp32)) / of_fp32
        with by_onednn(bf16=True):
            return _seconds(*fp32) / of_fp32


def _seconds(a: Tensor, b: Tensor) -> float:
    # The least of four times: the first product takes longer, because oneDNN compiles it.
    return min(timeit.repeat(partial(torch.mm, a, b), number=1, repeat=4))
