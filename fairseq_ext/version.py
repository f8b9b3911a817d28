"""The versions of this package and of what it stands on: the one place that says them.

`setup.py`, `fairseq-ext doctor` and the recipes read this file, which imports nothing.
`constraints.txt` adds the exact set that is tested.
"""

__version__ = "0.1.0"

PYTHONS = ("3.11", "3.12", "3.10")
"""Supported, in the order in which the recipes look for them; the whole suite runs on the first."""

OLDEST_TORCH = "2.6"
"""The first whose ``torch.load`` is safe by default."""

TESTED_FAIRSEQ = ("fairseq-fixed", "0.12.3.1")
"""Distribution and version; `docs/compatibility.md` has the others that were tried."""
