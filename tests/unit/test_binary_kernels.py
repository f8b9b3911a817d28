"""1-bit products against the fake-quantized product, for every instruction set of this machine."""

import copy
import ctypes
import json
import os
import pickle
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.binary.kernels import (
    PATHS,
    PackedWeight,
    active_path,
    available_paths,
    functional,
    linear_1bit,
    linear_1bit_1bit,
    native,
    pack_signs,
    unpack_signs,
)
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support.harness import REPO, run

EDGES = [(1, 1), (31, 63), (32, 64), (33, 65), (63, 1), (64, 128), (65, 129), (127, 2), (130, 130)]
LARGE = [(1000, 1000), (1024, 4096), (4096, 1024), (1000, 64)]
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 33]
every_path = pytest.mark.parametrize("path", available_paths())


def binarize(x: Tensor, bound: float | None = None) -> Tensor:
    """``±B/2`` for each row, zeros ``+``; in fp64 halves and quarters of a bound are exact."""
    bounds = x.abs().amax(-1, keepdim=True).double() if bound is None else bound
    return torch.where(x >= 0, 0.5, -0.5).double() * bounds


def sizes(count: int) -> list[tuple[int, int, int]]:
    """``M, K, N``: all edges, then a sample of 1 … 130, with some of the numbers of rows."""
    chosen = random.Random(1)
    pairs = EDGES + [(chosen.randint(1, 130), chosen.randint(1, 130)) for _ in range(count)]
    return [(chosen.choice(ROWS), *pair) for pair in pairs]


def random_case(m: int, k: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, weights and a bias; a tenth of each is zero."""
    seed = torch.Generator().manual_seed(k * 10_000 + n)
    x, weight, bias = (torch.randn(*s, generator=seed) for s in ((m, k), (n, k), (n,)))
    for values in (x, weight):
        values[torch.rand(values.shape, generator=seed) < 0.1] = 0
    return x, weight, bias


def assert_float_product(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """``y`` is the product with the binarized weight, within 1e-6 of the sum of magnitudes.

    For values around zero that is 1e-5 of a typical output, or less.
    """
    levels = binarize(weight)
    wanted = F.linear(x.double(), levels, None if bias is None else bias.double())
    size = F.linear(x.double().abs(), levels.abs(), None if bias is None else bias.abs().double())
    assert y.shape == wanted.shape
    assert ((y - wanted).abs() <= 1e-6 * size + 1e-38).all()


@every_path
def test_float_inputs(path: str) -> None:
    for m, k, n in sizes(30):
        x, weight, bias = random_case(m, k, n)
        packed = PackedWeight.of(weight)
        assert_float_product(linear_1bit(x, packed, path=path), x, weight, None)
        assert_float_product(linear_1bit(x, packed, bias, path=path), x, weight, bias)


@every_path
def test_float_inputs_of_large_layers_to_five_digits(path: str) -> None:
    for (k, n), m in zip(LARGE, (1, 6, 9, 600), strict=True):
        x, weight, _ = random_case(m, k, n)
        wanted = F.linear(x.double(), binarize(weight))
        y = linear_1bit(x, PackedWeight.of(weight), path=path)
        error = (y - wanted).norm(dim=1) / wanted.norm(dim=1)
        assert error.max() <= 1e-6
        assert ((y - wanted).abs() <= 1e-5 * wanted.abs() + 1e-5 * wanted.std()).all()


@every_path
def test_sums_of_two_binarized_factors_are_exact_integers(path: str) -> None:
    large = [(m, k, n) for (k, n), m in zip(LARGE, (1, 6, 9, 600), strict=True)]
    for m, k, n in sizes(30) + large:
        x, weight, _ = random_case(m, k, n)
        packed = PackedWeight.of(weight, torch.full((n,), 2.0))
        y = linear_1bit_1bit(x, packed, input_bounds=2.0, path=path)
        signs_x, signs_w = (torch.where(v >= 0, 1.0, -1.0) for v in (x, weight))
        assert torch.equal(y, F.linear(signs_x, signs_w))  # exact, as sums are below 2^24


@every_path
def test_two_binarized_factors(path: str) -> None:
    for m, k, n in [*sizes(15), (3, 1000, 130)]:
        x, weight, bias = random_case(m, k, n)
        product = F.linear(binarize(x), binarize(weight))
        packed = PackedWeight.of(weight)
        plain = linear_1bit_1bit(x, packed, path=path)
        torch.testing.assert_close(plain.double(), product, rtol=1e-6, atol=0)
        y = linear_1bit_1bit(x, packed, bias, 0.3, path=path)
        torch.testing.assert_close(y.double(), product / 0.3 + bias, rtol=1e-5, atol=1e-5)
        fixed = linear_1bit_1bit(x, packed, input_bounds=3.0, path=path)
        wanted = F.linear(binarize(x, bound=3.0), binarize(weight))
        torch.testing.assert_close(fixed.double(), wanted, rtol=1e-6, atol=0)


def adversarial_rows(k: int) -> Tensor:
    rows = torch.zeros(8, k)
    rows[1] = -0.0
    rows[2] = 1e-40  # below the least normal number
    rows[3] = torch.where(torch.arange(k) % 2 == 0, 1e30, -1e30)
    rows[4] = 1.0  # equal maxima
    rows[5] = -1.0
    rows[6, -1] = -5.0  # all but the last are zero
    rows[7] = torch.where(torch.arange(k) % 3 == 0, -0.0, 1e-45)
    return rows


@every_path
@pytest.mark.parametrize("k", [7, 64, 97, 1024])
def test_adversarial_values(path: str, k: int) -> None:
    rows = adversarial_rows(k)
    packed = PackedWeight.of(rows)
    assert torch.equal(unpack_signs(pack_signs(rows), k), rows >= 0)
    normal = [4, 5, 6]  # channels; the others' products leave the range of floats
    assert_float_product(linear_1bit(rows, packed, path=path)[:, normal], rows, rows[normal], None)
    y = linear_1bit_1bit(rows, packed, path=path)[:, normal]
    wanted = F.linear(binarize(rows), binarize(rows[normal]))
    torch.testing.assert_close(y.double(), wanted, rtol=1e-6, atol=1e-41)
    assert (y[:2] == 0).all()


@every_path
def test_nan_stays_in_its_row(path: str) -> None:
    x, weight, _ = random_case(6, 100, 70)
    x[2, 50], x[4, 99] = float("nan"), float("inf")
    packed = PackedWeight.of(weight)
    for product in (linear_1bit, linear_1bit_1bit):
        y = product(x, packed, path=path)
        assert y[2].isnan().all()
        assert not y[4].isfinite().any()
        assert y[[0, 1, 3, 5]].isfinite().all()
    bounded = linear_1bit_1bit(x, packed, input_bounds=3.0, path=path)
    assert bounded[2].isnan().all()
    assert bounded[[0, 1, 3, 4, 5]].isfinite().all()


@every_path
@pytest.mark.parametrize("scale", [1.0, 27.3])
def test_same_bits_as_the_layer_that_is_trained(path: str, scale: float) -> None:
    for m, k, n in [*sizes(10), (11, 777, 200), (5, 1024, 640)]:
        x, weight, bias = random_case(m, k, n)
        layer = BinaryLinear(k, n, inputs=True, scale=scale).requires_grad_(False)
        layer.weight.copy_(weight), layer.bias.copy_(bias)
        packed = PackedWeight.of(weight)
        assert torch.equal(linear_1bit_1bit(x, packed, bias, scale, path=path), layer(x))
        rows = torch.rand(m)
        given = linear_1bit_1bit(x, packed, bias, scale, input_bounds=rows, path=path)
        for row, bound in enumerate(rows.tolist()):
            one = linear_1bit_1bit(x[row], packed, bias, scale, input_bounds=bound, path=path)
            assert torch.equal(one, given[row])


@every_path
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1024, 4096), (7, 4096, 1024), (40, 1000, 700)])
def test_threads_change_nothing(path: str, m: int, k: int, n: int) -> None:
    x, weight, bias = random_case(m, k, n)
    packed = PackedWeight.of(weight)
    floats, signs = [], []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            floats.append(linear_1bit(x, packed, bias, path=path))
            signs.append(linear_1bit_1bit(x, packed, bias, path=path))
    finally:
        torch.set_num_threads(before)
    by_blas = path == "torch" or (path == "c" and m >= functional.MANY_ROWS)
    for found in floats[1:]:
        if by_blas:  # which promises no order of its sums
            torch.testing.assert_close(found, floats[0], rtol=1e-4, atol=1e-4)
        else:
            assert torch.equal(found, floats[0])
    assert all(torch.equal(found, signs[0]) for found in signs[1:])


def test_threads_are_torch_s_own() -> None:
    """The function that starts them is found where torch is built with libgomp."""
    if "GNU" in torch.__config__.parallel_info() or hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        assert native._team()


@every_path
def test_shapes_types_and_strides(path: str) -> None:
    x, weight, bias = random_case(12, 40, 70)
    packed = PackedWeight.of(weight)
    for product in (linear_1bit, linear_1bit_1bit):
        flat = product(x, packed, bias, path=path)
        assert torch.equal(product(x.view(3, 4, 40), packed, bias, path=path).flatten(0, 1), flat)
        turned = x.t().contiguous().t()
        assert not turned.is_contiguous()
        assert torch.equal(product(turned, packed, bias, path=path), flat)
        assert torch.equal(product(x[::3], packed, bias, path=path), flat[::3])
        torch.testing.assert_close(product(x[0], packed, bias, path=path), flat[0])
        assert product(x[:0], packed, bias, path=path).shape == (0, 70)
        assert flat.is_contiguous()
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            y = product(x.to(dtype), packed, bias.to(dtype), path=path)
            assert y.dtype == dtype
            wanted = product(x.to(dtype).float(), packed, bias.to(dtype).float(), path=path)
            assert torch.equal(y, wanted.to(dtype))


def test_bits_are_documented() -> None:
    weight = torch.tensor([[1.0, -1, -0.0, -1, -1, -1, -1, -1, -1, 5], [-1.0] * 9 + [0]])
    bits = pack_signs(weight)
    assert bits.tolist() == [[0b00000101, 0b10, 0, 0, 0, 0, 0, 0], [0, 0b10, 0, 0, 0, 0, 0, 0]]
    assert pack_signs(torch.ones(1, 65)).tolist() == [[255] * 8 + [1] + [0] * 7]


def test_packed_weight_keeps_everything() -> None:
    for _, k, n in sizes(20):
        _, weight, _ = random_case(1, k, n)
        packed = PackedWeight.of(weight)
        assert torch.equal(packed.unpack().double(), binarize(weight))
        assert torch.equal(packed.bits(), pack_signs(weight))
        again = PackedWeight(packed.bits(), packed.bound[:n], k)
        for other in (again, copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
            assert torch.equal(other.unpack(), packed.unpack())
    assert PackedWeight.of(torch.ones(4096, 1024)).nbytes == 4096 * (1024 // 8 + 4)
    assert PackedWeight.of(torch.ones(64, 64)).to("meta").words.is_meta


def test_damaged_bits_are_refused() -> None:
    bits, bound = pack_signs(torch.ones(3, 9)), torch.ones(3)
    with pytest.raises(DataError, match="uint8 of shape"):
        PackedWeight(bits[:, :4], bound, 9)
    with pytest.raises(DataError, match="uint8 of shape"):
        PackedWeight(bits.int(), bound, 9)
    with pytest.raises(DataError, match="must be floats of shape"):
        PackedWeight(bits, bound[:2], 9)
    for byte, bit in ((1, 1), (7, 7)):
        damaged = bits.clone()
        damaged[2, byte] |= 1 << bit
        with pytest.raises(DataError, match="beyond the last of 9"):
            PackedWeight(damaged, bound, 9)


def test_wrong_use_is_refused() -> None:
    packed = PackedWeight.of(torch.ones(4, 6))
    with pytest.raises(DataError, match=r"\[..., 6\]"):
        linear_1bit(torch.ones(2, 5), packed)
    with pytest.raises(ConfigError, match="`path` must be one of"):
        linear_1bit(torch.ones(2, 6), packed, path="sse9")
    latent = torch.ones(2, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match="no gradient"):
        linear_1bit_1bit(latent, packed)
    with torch.no_grad():
        assert linear_1bit_1bit(latent, packed).tolist() == [[1.5] * 4] * 2


def test_the_environment_chooses_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = active_path.__wrapped__  # as a new process would
    monkeypatch.delenv("FAIRSEQ_EXT_KERNELS", raising=False)
    assert chosen() == available_paths()[-1]
    monkeypatch.setenv("FAIRSEQ_EXT_KERNELS", "torch")
    assert chosen() == "torch"
    monkeypatch.setenv("FAIRSEQ_EXT_KERNELS", "mmx")
    with pytest.raises(ConfigError, match=r"`FAIRSEQ_EXT_KERNELS` must be .* `mmx` instead"):
        chosen()


def test_without_compiled_kernels_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    assert native.available_paths.__wrapped__() == ("torch",)


def test_many_rows_are_unpacked_where_c_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are multiplied by BLAS: the same bits as by `torch`."""
    if "c" not in available_paths():
        pytest.skip("the kernels are not compiled here")
    x, weight, _ = random_case(functional.MANY_ROWS, 300, 70)
    packed = PackedWeight.of(weight)
    assert torch.equal(linear_1bit(x, packed, path="c"), linear_1bit(x, packed, path="torch"))
    monkeypatch.setattr(functional, "MANY_ROWS", len(x) + 1)
    assert_float_product(linear_1bit(x, packed, path="c"), x, weight, None)


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_kernels_are_installed_where_there_is_a_compiler() -> None:
    assert native.library() is not None, "install again: pip install --no-build-isolation -e ."
    assert available_paths() == PATHS[: len(available_paths())]


def build(folder: Path, **environment: str) -> list[str]:
    """Names of the files that setup.py's extensions give in ``folder``."""
    where = ("--build-lib", f"{folder}/lib", "--build-temp", f"{folder}/temp")
    run(sys.executable, "setup.py", "-q", "build_ext", *where, cwd=REPO, **environment)
    return [name for _, _, names in os.walk(f"{folder}/lib") for name in names]


@needs_compiler
def test_kernels_compile_without_a_warning(tmp_path: Path) -> None:
    names = build(tmp_path, CFLAGS="-Wall -Wextra -Werror -Wno-unused-parameter")
    assert len(names) == 2  # the engine, too


def test_a_broken_compiler_does_not_stop_the_installation(tmp_path: Path) -> None:
    assert build(tmp_path, CC="false") == []


def test_benchmark_runs_to_its_end(tmp_path: Path) -> None:
    small = ("--sizes", "64x128", "--rows", 1, 8, "--layers", 2, "--repeats", 3, "--warmup", 0)
    where = tmp_path / "layers.json"
    command = (sys.executable, REPO / "benchmarks" / "binary_layers.py", *small)
    said = run(*command, "--threads", 1, "--json", where).stdout
    assert "1-bit weights against int8 at rows = 1" in said
    figures = json.loads(where.read_text())["figures"]
    assert len(figures) == 2 * 5
    assert all(figure["ms"] > 0 and figure["limit_ms"] > 0 for figure in figures)
    assert where.with_suffix(".png").stat().st_size > 10_000
