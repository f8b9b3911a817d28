"""Compile the engine's C code and name the wheel; all other metadata is in pyproject.toml.

Two environment variables change the build of a wheel:

- FAIRSEQ_EXT_REQUIRE_KERNELS=1: the build fails if the engine cannot be compiled. Otherwise it
  prints a warning and goes on without the engine. Set it for wheels that you distribute.
- FAIRSEQ_EXT_WITHOUT_MODELS=1: the wheel does not contain the trained models.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

REQUIRED = os.environ.get("FAIRSEQ_EXT_REQUIRE_KERNELS") == "1"
WITHOUT_MODELS = os.environ.get("FAIRSEQ_EXT_WITHOUT_MODELS") == "1"
BANNER = "!" * 79

# The kernels are called by ctypes: they need neither Python's nor torch's headers, and choose their
# instruction set at run time, so one file serves every version of Python. Without a compiler the
# installation goes on, and torch does their work. Symbols for debuggers would be three quarters of
# the file.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-g0"]


def library(name: str, files: list[str], headers: list[str]) -> Extension:
    """Describe a library in C to setuptools, with the paths of its sources and headers.

    Paths are relative to fairseq_ext. Those in ``files`` are without ``.c``.
    """
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
CORE = ("machine", "search", "sampling", "shortlist", "constraints")
PARTS = ("interface", *CORE, "signs", *PATHS, *SIGNS)
HEADERS = ("engine", *CORE, "sign_kernels")
libraries = [
    library(
        "engine._machine",
        [f"engine/native/{file}" for file in PARTS],
        [*(f"engine/native/{file}.h" for file in HEADERS), "engine/native/arithmetic.inc"],
    ),
]


class BuildKernels(build_ext):
    """Compile the engine's C code; if this fails, print a warning that the engine is missing."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one library. If this fails, print a warning and raise the error again.

        setuptools then goes on without the library, unless FAIRSEQ_EXT_REQUIRE_KERNELS=1.
        """
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

    def get_ext_filename(self, fullname: str) -> str:
        """Return the library's file name without Python's version; every version can load it."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def copy_extensions_to_source(self) -> None:
        """Copy the libraries into the source folder, and remove older ones from it.

        Older libraries have Python's version in their names, and would be loaded instead of the
        new ones.
        """
        super().copy_extensions_to_source()
        for ext in self.extensions:
            built = Path(self.get_finalized_command("build_py").get_package_dir("fairseq_ext"))
            built = built.parent / self.get_ext_filename(ext.name)
            for former in built.parent.glob(f"{built.stem}.*.so"):
                former.unlink()


class BuildPackage(build_py):
    """Copy the package; with FAIRSEQ_EXT_WITHOUT_MODELS=1, leave out its trained models."""

    def run(self) -> None:
        """Copy the package. If models are to be left out, first remove those of earlier builds."""
        if WITHOUT_MODELS:
            shutil.rmtree(Path(self.build_lib, "fairseq_ext", "shipped"), ignore_errors=True)
        super().run()

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        """List a package's files that are not code, without trained models if not wanted."""
        files = super().find_data_files(package, src_dir)
        if WITHOUT_MODELS:
            files = [file for file in files if "shipped" not in Path(file).parts]
        return files


class NameWheel(bdist_wheel):
    """Name the wheel so that pip installs it for any supported Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tags: Python 3, no binary interface of Python, and the platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=libraries,
    cmdclass={"build_ext": BuildKernels, "build_py": BuildPackage, "bdist_wheel": NameWheel},
)
