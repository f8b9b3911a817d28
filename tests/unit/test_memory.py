"""A training keeps the memory that it frees."""

import ctypes
import platform
import sys

import pytest

from fairseq_ext.utils import memory
from tests.support.harness import run

FAULTS = """
import resource, torch
from fairseq_ext.utils import memory
assert memory.keep()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(2**24).fill_(1)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(20):  # a small block may take the place of a large one, a few times
    faults()
print(sum(faults() for _ in range(5)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_blocks_are_cleared_by_the_system_once() -> None:
    assert int(run(sys.executable, "-c", FAULTS).stdout) < 100


def test_a_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not memory.keep()


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not memory.keep()
