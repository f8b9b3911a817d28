"""The native kernels; all other metadata is in pyproject.toml.

Install torch and fairseq first, as README.md says.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Set to 1 (for wheels that are given to others), a build without the kernels fails.
REQUIRED = os.environ.get("FAIRSEQ_EXT_REQUIRE_KERNELS") == "1"
BANNER = "!" * 79

# Called by ctypes: needs neither Python's nor torch's headers, and chooses its instruction set at
# run time. Without a compiler the installation goes on, and the products are done in torch.
kernels = "fairseq_ext/binary/kernels"
native = Extension(
    "fairseq_ext.binary.kernels._native",
    sources=[f"{kernels}/{name}.c" for name in ("kernels", "portable", "avx2", "avx512")],
    depends=[f"{kernels}/kernels.h"],
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden"]
    if os.name == "posix"
    else [],
    optional=not REQUIRED,
)


class BuildKernels(build_ext):
    """Compile the kernels, or say loudly that they will be missing."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one extension; a failure is printed, then raised for setuptools to judge."""
        try:
            super().build_extension(ext)
        except Exception as error:
            print(
                f"{BANNER}\n"
                f"WARNING: fairseq-ext is built WITHOUT its native 1-bit kernels: {error}\n"
                "Packed binary models will run in torch, many times slower. Install a C compiler,\n"
                f"then install fairseq-ext again.\n{BANNER}",
                file=sys.stderr,
            )
            raise


setup(ext_modules=[native], cmdclass={"build_ext": BuildKernels})
