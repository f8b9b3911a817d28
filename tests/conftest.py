"""Fixtures shared by all tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import binarise, digits_corpus


@pytest.fixture(scope="session")
def copy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binarised digit-copy corpus (500 / 50 / 50 lines) that tests only read."""
    folder = tmp_path_factory.mktemp("copy")
    return binarise(digits_corpus(folder / "text"), folder / "bin")
