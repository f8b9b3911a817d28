"""The versions of this package and of its dependencies, all stated only here.

The build, `fairseq-ext doctor` and the recipes read this file, which imports nothing. A test
compares `pyproject.toml` with it. `constraints.txt` adds exact versions of all tested packages.
"""

__version__ = "0.1.0"

PYTHONS = ("3.11", "3.12", "3.10")
"""Pythons that can train. All tests run on the first. Recipes look for them in this order."""

PYTHONS_WITHOUT_TRAINING = ("3.13",)
"""Pythons with which everything works that needs neither torch nor fairseq."""

OLDEST_TORCH = "2.6"
"""The first version whose ``torch.load`` is safe by default."""

TESTED_FAIRSEQ = ("fairseq-fixed", "0.12.3.1")
"""fairseq's distribution and version in the tests; `docs/compatibility.md` lists others."""

FAIRSEQ_WHEELS = ("3.12",)
"""Pythons for which the package index has a wheel of this distribution (Linux, x86-64), so that
nothing has to be compiled. The recipes look for these first."""
