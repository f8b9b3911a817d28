"""The line of ``fairseq-ext doctor`` about the kernels."""

from __future__ import annotations

from fairseq_ext.base.health_check import OK, WARNING, Check
from fairseq_ext.binary.kernels import active_path


def check() -> Check:
    """Whether they are compiled."""
    path = active_path()
    if path != "torch":
        return Check(OK, "1-bit kernels", path)
    cure = "install a C compiler, then: pip install --no-build-isolation -e ."
    return Check(WARNING, "1-bit kernels", "not compiled; packed models use torch, slowly", cure)
