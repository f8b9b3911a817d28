"""The native libraries; all other metadata is in pyproject.toml.

Install torch and fairseq first, as README.md says.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Set to 1 (for wheels that are given to others), a build without them fails.
REQUIRED = os.environ.get("FAIRSEQ_EXT_REQUIRE_KERNELS") == "1"
BANNER = "!" * 79

# Called by ctypes: they need neither Python's nor torch's headers, and choose their instruction set
# at run time. Without a compiler the installation goes on, and torch does their work.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden"]


def library(name: str, files: list[str], headers: list[str]) -> Extension:
    """A library of C files of the package."""
    return Extension(
        f"fairseq_ext.{name}",
        sources=[f"fairseq_ext/{file}.c" for file in files],
        depends=[f"fairseq_ext/{header}" for header in headers],
        extra_compile_args=FLAGS if os.name == "posix" else [],
        optional=not REQUIRED,
    )


PATHS = ("portable", "avx2", "avx512")
MISSING = {
    "fairseq_ext.engine._machine": "its engine: bundles and `--engine native` will need fairseq's "
    "generator, many times slower",
}
SIGNS = [f"sign_{file}" for file in ("tasks", *PATHS)]
PARTS = ("interface", "search", "sampling", "shortlist", "machine", "signs", *PATHS, *SIGNS)
HEADERS = ("engine", "machine", "search", "sampling", "shortlist", "sign_kernels")
libraries = [
    library(
        "engine._machine",
        [f"engine/native/{file}" for file in PARTS],
        [*(f"engine/native/{file}.h" for file in HEADERS), "engine/native/arithmetic.inc"],
    ),
]


class BuildKernels(build_ext):
    """Compile the kernels, or say loudly that they will be missing."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one extension; a failure is printed, then raised for setuptools to judge."""
        try:
            super().build_extension(ext)
        except Exception as error:
            print(
                f"{BANNER}\n"
                f"WARNING: fairseq-ext is built WITHOUT {MISSING[ext.name]} ({error}).\n"
                f"Install a C compiler, then install fairseq-ext again.\n{BANNER}",
                file=sys.stderr,
            )
            raise


setup(ext_modules=libraries, cmdclass={"build_ext": BuildKernels})
