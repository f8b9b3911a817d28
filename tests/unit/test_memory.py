"""A training keeps the memory that it frees."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from fairseq_ext.training import memory

FAULTS = """
import resource, torch
from fairseq_ext.training import memory
assert memory.keep() is {kept}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(2**24).fill_(1)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(20):  # a small block may take the place of a large one, a few times
    faults()
print(sum(faults() for _ in range(5)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
@pytest.mark.parametrize("chosen", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}])
def test_blocks_are_cleared_by_the_system_once(
    chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    program = FAULTS.format(kept=not chosen)
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    if not chosen:  # huge pages may hide the faults of the other case
        assert int(said.stdout) < 100


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not memory.keep()
