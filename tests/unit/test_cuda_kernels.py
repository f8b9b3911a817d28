"""Triton's 1-bit product where it is installed: on a GPU, or in its interpreter on the CPU."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton is not installed")

from fairseq_ext.binary.kernels import (  # noqa: E402
    PackedWeight,
    linear_1bit,
    linear_1bit_1bit,
    on_cuda,
)

SHAPES = [(1, 1, 1), (3, 33, 65), (17, 130, 64), (5, 64, 200), (40, 100, 128)]


def truth(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ torch.where(weight >= 0, 1.0, -1.0).double().t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_sums_of_signed_inputs(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    weight, x = torch.randn(n, k), torch.randn(m, k).to(dtype)
    sums = on_cuda.signed_sums(x.to(DEVICE), PackedWeight.of(weight).to(DEVICE)).cpu()
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums[:, :n].double(), truth(x, weight), rtol=1e-5, atol=1e-5 * k)


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_sums_of_signs_are_exact(m: int, k: int, n: int) -> None:
    weight, x = torch.randn(n, k), torch.randn(m, k).sign()
    sums = on_cuda.signed_sums(x.to(DEVICE), PackedWeight.of(weight).to(DEVICE)).cpu()
    assert torch.equal(sums[:, :n].double(), truth(x, weight))


def test_leading_dimensions_and_no_rows() -> None:
    packed = PackedWeight.of(torch.randn(70, 40)).to(DEVICE)
    x = torch.randn(2, 3, 40, device=DEVICE)
    one_by_one = torch.stack([on_cuda.signed_sums(row, packed) for row in x.unbind()])
    assert torch.equal(on_cuda.signed_sums(x, packed), one_by_one)
    assert on_cuda.signed_sums(x[:0], packed).shape == (0, 3, 128)


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA is not available")
@pytest.mark.parametrize("product", [linear_1bit, linear_1bit_1bit])
def test_products_on_a_gpu_are_those_of_the_cpu(product) -> None:
    packed, x, bias = PackedWeight.of(torch.randn(300, 513)), torch.randn(7, 513), torch.randn(300)
    there = product(x.cuda(), packed.to("cuda"), bias.cuda()).cpu()
    torch.testing.assert_close(there, product(x, packed, bias), rtol=1e-5, atol=1e-4)
