"""Products of training by oneDNN: what they compute, where, and when they are used."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fairseq_ext.training import onednn_matmul
from fairseq_ext.training.onednn_matmul import LEAST, by_onednn, is_slow
from tests.support.harness import run

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch without oneDNN"
)
LARGE = (400, 131, 170)  # M, K, N
assert LARGE[0] * LARGE[1] * LARGE[2] > LEAST


LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "plain": torch.randn,
    "transposed": lambda rows, columns: torch.randn(columns, rows).t(),
    "columns": lambda rows, columns: torch.randn(rows, columns + 7)[:, 3:-4],
    "every second": lambda rows, columns: torch.randn(2 * rows, columns)[::2],
}
"""Matrices of random numbers with other strides."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the products that oneDNN computed."""
    result, original = [], onednn_matmul._product

    def counted(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        result.append((*a.shape, b.size(1)))
        return original(a, b, bias)

    monkeypatch.setattr(onednn_matmul, "_product", counted)
    return result


@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_b", LAYOUTS)
def test_any_strides(of_a: str, of_b: str, calls: list) -> None:
    a, b = LAYOUTS[of_a](*LARGE[:2]), LAYOUTS[of_b](*LARGE[1:])
    bias, sums = torch.randn(LARGE[2]), LAYOUTS[of_a](LARGE[0], LARGE[2])
    expected = a.double() @ b.double()
    expected_sums = sums.double() + expected
    with by_onednn():
        result = torch.mm(a, b), torch.addmm(bias, a, b)
        assert sums.addmm_(a, b) is sums
    torch.testing.assert_close(result[0].double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result[1].double(), expected + bias, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums.double(), expected_sums, rtol=1e-4, atol=1e-4)
    assert calls == [LARGE, LARGE, LARGE]


@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_b", LAYOUTS)
def test_products_in_bf16(of_a: str, of_b: str) -> None:
    """Factors and product are rounded to bf16; sums, also with a bias, are in fp32."""
    a, b = LAYOUTS[of_a](*LARGE[:2]), LAYOUTS[of_b](*LARGE[1:])
    bias, sums = torch.randn(LARGE[2]), LAYOUTS[of_a](LARGE[0], LARGE[2])
    exact = a.bfloat16().double() @ b.bfloat16().double()
    before = sums.clone()
    with by_onednn(bf16=True):
        result = torch.mm(a, b)
        with_bias = torch.addmm(bias, a, b)
        assert sums.addmm_(a, b) is sums
    assert result.dtype == with_bias.dtype == torch.float32
    assert torch.equal(result, result.bfloat16().float())
    torch.testing.assert_close(result.double(), exact, rtol=2**-8, atol=1e-5)
    assert torch.equal(with_bias, result + bias)
    assert torch.equal(sums, before + result)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 4, 5), torch.float32), (LARGE, torch.float64), (LARGE, torch.bfloat16)],
)
def test_small_ones_and_other_types_are_torchs_own(shape, dtype, calls):
    a, b = torch.randn(*shape[:2], dtype=dtype), torch.randn(*shape[1:], dtype=dtype)
    bias = torch.randn(shape[2], dtype=dtype)
    sums = torch.randn(shape[0], shape[2], dtype=dtype)
    expected = torch.mm(a, b), torch.addmm(bias, a, b), sums.clone().addmm_(a, b)
    with by_onednn():
        assert torch.equal(torch.mm(a, b), expected[0])
        assert torch.equal(torch.addmm(bias, a, b), expected[1])
        assert torch.equal(sums.addmm_(a, b), expected[2])
    assert calls == []


@pytest.mark.parametrize(
    ("shape", "how"),
    [(LARGE[2:], {"beta": 0.5}), (LARGE[2:], {"alpha": 2.0}), (LARGE[::2], {})],
    ids=["half of the bias", "twice the product", "a matrix"],
)
def test_other_sums_are_torchs_own(shape: tuple, how: dict, calls: list) -> None:
    a, b, added = torch.randn(*LARGE[:2]), torch.randn(*LARGE[1:]), torch.randn(*shape)
    expected = torch.addmm(added, a, b, **how)
    with by_onednn():
        assert torch.equal(torch.addmm(added, a, b, **how), expected)
    assert calls == []


@pytest.mark.parametrize("wrong", [(400, 130, 170), (400,)])
def test_errors_are_torchs(wrong: tuple) -> None:
    with by_onednn(), pytest.raises(RuntimeError, match=r"mat1 and mat2|must be a matrix|2D"):
        torch.mm(torch.randn(*wrong), torch.randn(131, 170))


@pytest.mark.parametrize("bf16", [False, True])
def test_backward_passes_too(bf16: bool, calls: list) -> None:
    layer = torch.nn.Linear(131, 170)
    x = torch.randn(20, 20, 131, requires_grad=True)
    slope = torch.randn(20, 20, 170)
    with by_onednn(bf16=bf16):
        layer(x).backward(slope)
    assert bf16 or len(calls) == 3

    def factor(values: torch.Tensor) -> torch.Tensor:
        return (values.bfloat16() if bf16 else values).detach().double().view(-1, values.size(-1))

    limits = {"rtol": 2**-8, "atol": 1e-5} if bf16 else {"rtol": 1e-4, "atol": 1e-4}
    expected = factor(slope).t() @ factor(x), factor(slope) @ factor(layer.weight)
    torch.testing.assert_close(layer.weight.grad.double(), expected[0], **limits)
    torch.testing.assert_close(x.grad.double().flatten(0, 1), expected[1], **limits)
    assert layer.weight.grad.dtype == x.grad.dtype == torch.float32


def test_torchs_own_come_back(calls: list) -> None:
    a, b = torch.randn(*LARGE[:2]), torch.randn(*LARGE[1:])
    before = torch.mm(a, b)
    with pytest.raises(KeyError), by_onednn():
        raise KeyError
    assert torch.equal(torch.mm(a, b), before)
    assert calls == []


@pytest.mark.parametrize(
    ("vendor", "family", "capability", "slow"),
    [
        ("AuthenticAMD", 26, "AVX512", True),
        ("AuthenticAMD", 25, "AVX512", False),
        ("GenuineIntel", 26, "AVX512", False),
        ("AuthenticAMD", 26, "AVX2", False),
    ],
)
def test_where_they_are_used(vendor, family, capability, slow, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    text = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 2\n"
    (tmp_path / "cpuinfo").write_text(text)
    assert is_slow(tmp_path / "cpuinfo") is slow
    assert not is_slow(tmp_path / "missing")
    is_slow.cache_clear()  # of a capability that was made up


MANY_SHAPES = """
import torch
from fairseq_ext.training.onednn_matmul import by_onednn

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) / 256

weight = torch.randn(128, 1024)
with by_onednn():
    for rows in range(100, 500):
        torch.randn(rows, 128) @ weight
        if rows == 200:
            before = resident()
print(resident() - before)
"""


@pytest.mark.system
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_programs_of_many_shapes_are_not_kept() -> None:
    """By default those of 300 numbers of rows would take 80 MiB."""
    assert float(run(sys.executable, "-c", MANY_SHAPES).stdout) < 40
