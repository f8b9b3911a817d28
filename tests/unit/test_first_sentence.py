"""The first sentence of a bundle: what it imports, and how its arrays are made without torch."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding

from fairseq_ext.engine import recipes
from tests.support.harness import run

HEAVY = {"torch", "fairseq", "scipy", "matplotlib", "pandas", "sacrebleu", "hydra", "omegaconf"}
HEAVY |= {"joblib", "tqdm", "requests", "huggingface_hub", "filelock", "numpy.ma"}
HEAVY |= {"http.client", "ssl", "decimal"}
SENTENCE = "¿Dónde está la biblioteca?"
COMMAND = ("-m", "fairseq_ext", "translate", "--model", "tatoeba-es-en", SENTENCE)
LOAD = f"import fairseq_ext; print(fairseq_ext.load('tatoeba-es-en').translate('{SENTENCE}').text)"


@pytest.mark.system
@pytest.mark.parametrize("words", [COMMAND, ("-c", LOAD)], ids=["command", "load"])
def test_it_imports_no_large_library(words: tuple[str, ...], tmp_path: Path):
    done = run(sys.executable, "-X", "importtime", *words, cwd=tmp_path)
    assert done.stdout == "Where is the library?\n"
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"fairseq_ext.text.moses", "numpy", "safetensors"} <= modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize("width", [2 * 16, 33])
def test_positions_are_fairseqs(width: int):
    layer = SinusoidalPositionalEmbedding(width, padding_idx=1)
    half = width // 2
    step = np.log(10000) / (half - 1)
    frequencies = torch.exp(torch.arange(half, dtype=torch.float) * -step).numpy()
    expected = layer.get_embedding(1000, width, 1).numpy()
    positions = recipes.sinusoids(frequencies, 1000, width, 1)
    np.testing.assert_allclose(positions, expected, atol=1e-6)
