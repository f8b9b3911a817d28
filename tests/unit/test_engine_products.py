"""The engine's products with every instruction set of this machine, against numpy in float64."""

import atexit
import ctypes
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_ext.binary.binarize import Binarizer
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.checkpoints.bundle import latent_weights
from fairseq_ext.engine import ctypes_structs, library
from fairseq_ext.engine.program import ACTIVATIONS, FLOATS, READINGS, Matrix, Reading, Signs
from fairseq_ext.engine.weights import NUMBERS, PIECE, Packed, Pool, pack, to_bf16
from tests.support.harness import REPO, run

TESTS = REPO / "tests"
KERNELS = sorted((REPO / "fairseq_ext" / "engine" / "native").glob("*.c"))
EMULATED = "avx512-bf16" in library.available_paths() and "amx" not in library.available_paths()
PATHS = (*library.available_paths(), *["amx"] * EMULATED)

SIZES = [(1, 1, 1), (5, 33, 65), (6, 128, 64), (13, 7, 130), (97, 18, 3), (200, 130, 70)]
SIZES += [(41, 128, 200)]  # rows, inputs, outputs


@functools.cache
def emulation() -> Path:
    """Compile the engine with AMX's instructions in plain C, once for all tests."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    file = Path(folder, "engine.so")
    flags = ("-std=gnu11", "-O1", "-ffp-contract=off", "-fPIC", "-shared")
    instructions = ("-include", TESTS / "amx_emulation.h")
    run(os.environ.get("CC", "cc"), *flags, *instructions, "-o", file, *KERNELS, "-lm")
    return file


@functools.cache
def emulated() -> ctypes.CDLL:
    machine = ctypes.CDLL(str(emulation()))
    assert library.PATHS[machine.engine_best_path()] == "amx"
    machine.engine_product.argtypes = library.library().engine_product.argtypes
    return machine


def product(
    path: str, packed: Packed, x: np.ndarray, bias: np.ndarray | None, act: str = "linear"
) -> np.ndarray:
    y = np.full((len(x), packed.outputs), np.nan, np.float32)
    machine = library.library() if path in library.available_paths() else emulated()
    number, weight = library.PATHS.index(path), ctypes_structs.weight_structs([packed])
    machine.engine_product(
        *(number, weight.ctypes.data, x.ctypes.data, len(x)),
        *(None if bias is None else bias.ctypes.data, ACTIVATIONS[act], y.ctypes.data),
    )
    return y


def operands() -> Iterator[tuple[str, np.random.Generator, np.ndarray, np.ndarray]]:
    """For each of :data:`SIZES`, its name, a generator for the weight, the input and the bias."""
    for rows, inputs, outputs in SIZES:
        draw = np.random.default_rng(rows)
        x = draw.standard_normal((rows, inputs)).astype(np.float32)
        bias = draw.standard_normal(outputs).astype(np.float32)
        yield f"{rows} × {inputs} → {outputs}", draw, x, bias


def rounded(weight: np.ndarray, numbers: str) -> np.ndarray:
    """The weights that a product of these numbers uses."""
    if numbers == "fp32":
        return weight
    if numbers == "bf16":
        return (to_bf16(weight).astype(np.uint32) << 16).view(np.float32)
    units = np.abs(weight).max(1, keepdims=True) / np.float32(127)
    return np.rint(weight / units) * units


def test_int8_products_without_python(tmp_path: Path):
    """In the program for emulators of other processors."""
    program = tmp_path / "engine_products"
    headers = ("-std=gnu11", "-O1", "-I", KERNELS[0].parent)
    sources = (TESTS / "engine_products.c", emulation(), "-lm")
    run(os.environ.get("CC", "cc"), *headers, "-o", program, *sources)
    output = run(program).stdout
    assert re.search(r", [1-9]\d\d products, 0 wrong", output)
    assert output.startswith("best path 4") == ("amx" in PATHS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_product(path: str, numbers: str):
    for case, draw, x, bias in operands():
        weight = draw.standard_normal((len(bias), x.shape[1])).astype(np.float32)
        packed = pack(Matrix(weight), numbers)
        used = x.astype(np.float64)
        if numbers == "int8":  # each row in units of its largest number / 127
            unit = np.abs(x).max(1, keepdims=True) / np.float32(127)
            used = np.rint(x * (np.float32(1) / unit)).clip(-127, 127) * unit
        elif numbers == "bf16" and path in ("avx512-bf16", "amx"):
            used = rounded(x, numbers).astype(np.float64)
        expected = used @ rounded(weight, numbers).astype(np.float64).T + bias
        close = {"rtol": 1e-4, "atol": 2e-4 if numbers != "int8" else 0.02, "err_msg": case}
        np.testing.assert_allclose(product(path, packed, x, bias), expected, **close)
        without = product(path, packed, x, None)
        np.testing.assert_allclose(without + bias, expected, **close)


def bits_of(weight: np.ndarray, reading: Reading = FLOATS) -> Signs:
    signs = np.sign(weight).astype(np.int8)
    return Signs.packed(signs, np.abs(weight).max(1), not signs.all(), reading=reading)


SIGNS = {"binary": [-1, 1], "ternary": [-1, 0, 1]}


def signed(
    draw: np.random.Generator, outputs: int, inputs: int, values: str = "binary"
) -> np.ndarray:
    """Signs of :data:`SIGNS`, with a level for each output; an output's first sign is not 0."""
    signs = draw.choice(np.array(SIGNS[values], np.float32), (outputs, inputs))
    signs[:, 0] = 1
    return signs * (0.1 + draw.random((outputs, 1), np.float32))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("values", SIGNS)
def test_product_with_signs(path, numbers, values):
    for case, draw, x, bias in operands():
        weight = signed(draw, len(bias), x.shape[1], values)
        if numbers == "int8":  # what int8 makes of the same numbers, whose units hold them exactly
            expected = product(path, pack(Matrix(weight), numbers), x, bias)
        else:
            expected = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
        for order in (np.ascontiguousarray, np.asfortranarray):
            result = product(path, pack(bits_of(order(weight)), numbers), x, bias)
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-4, err_msg=case)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("values", SIGNS)
@pytest.mark.parametrize("how", READINGS[1:])
def test_product_of_signs(path, numbers, values, how):
    """To the last bit what a binary layer computes, but for a mean, which torch sums otherwise."""
    binarizer = Binarizer(bound=3.0 if how == "bound" else None)
    if how == "mean":
        binarizer = Binarizer("xnor")
    for case, draw, x, bias in operands():
        inputs, outputs = x.shape[1], len(bias)
        x[0, : inputs // 2] = 0
        weight = signed(draw, outputs, inputs, values)
        layer = BinaryLinear(inputs, outputs, inputs=True, scale=7.0, input_binarizer=binarizer)
        latent = 2 * weight  # levels are half of the largest weight
        if bits_of(weight).plus is not None:  # small ones may have no zeros
            layer.weight_binarizer = Binarizer("ternary")
            about = {"binarizer": "ternary", "granularity": "channel"}
            latent = latent_weights(bits_of(weight), about)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(latent))
            layer.bias.copy_(torch.from_numpy(bias))
            expected = layer(torch.from_numpy(x)).numpy()
        packed = pack(bits_of(weight, Reading(how, 3.0, 7.0)), numbers)
        tolerance = 1e-5 if how == "mean" else 0
        close = {"rtol": tolerance, "atol": tolerance, "err_msg": case}
        np.testing.assert_allclose(product(path, packed, x, bias), expected, **close)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_weights_of_a_model_lie_together(numbers: str):
    draw = np.random.default_rng(1)
    shapes = [(70, 33), (1, 1), (64, 8), (PIECE // 256 + 1, 64)]  # the last one fills a piece
    matrices = [Matrix(draw.standard_normal(shape).astype(np.float32)) for shape in shapes]
    pool = Pool()
    packed = [pack(matrix, numbers, pool) for matrix in (*matrices, matrices[0])]
    places = [weight.values.ctypes.data for weight in packed]
    assert all(place % 64 == 0 for place in places)
    assert places[0] < places[1] < places[2] < places[0] + PIECE
    for weight, matrix in zip(packed, [*matrices, matrices[0]], strict=True):
        alone = pack(matrix, numbers)
        assert weight.values.dtype == alone.values.dtype
        np.testing.assert_array_equal(weight.values, alone.values)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("inputs", [50, 64])
def test_rows_do_not_meet(path: str, inputs: int):
    """A row's outputs are the same to the bit in any company."""
    draw = np.random.default_rng(3)
    x = draw.standard_normal((40, inputs)).astype(np.float32)
    weight = draw.standard_normal((70, inputs)).astype(np.float32)
    for numbers in NUMBERS:
        packed = pack(Matrix(weight), numbers)
        together = product(path, packed, x, None)
        for row in (0, 7, 39):
            alone = product(path, packed, np.ascontiguousarray(x[row : row + 1]), None)
            np.testing.assert_array_equal(alone[0], together[row])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activation(path: str, act: str):
    """Against torch's, on inputs from -20 to 20; NaN stays NaN, and in its own outputs."""
    x = np.linspace(-20, 20, 801, dtype=np.float32).reshape(-1, 1)
    doubles = torch.from_numpy(x).double()
    expected = {
        "linear": lambda x: x,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "tanh": torch.tanh,
        "gelu_accurate": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }[act](doubles)
    weight = np.ones((70, 1), np.float32)
    weight[[0, 69]] = np.nan
    result = product(path, pack(Matrix(weight), "fp32"), x, None, act)
    np.testing.assert_allclose(result[:, 1:69], expected.expand(-1, 68), rtol=3e-6, atol=3e-6)
    assert np.isnan(result[:, [0, 69]]).all()
