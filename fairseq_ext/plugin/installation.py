"""Find the distributions that provide the package ``fairseq``; say how to install the right one."""

import importlib.metadata
from collections.abc import Sequence

from fairseq_ext.utils.errors import EnvironmentProblem
from fairseq_ext.version import TESTED_FAIRSEQ

INSTALL_FAIRSEQ = (
    "pip install torch numpy cython setuptools wheel && "
    f"pip install --no-build-isolation {TESTED_FAIRSEQ[0]}=={TESTED_FAIRSEQ[1]}"
)
DISTRIBUTIONS = ("fairseq", TESTED_FAIRSEQ[0])


def fairseq_distributions() -> list[str]:
    """Return the names of the installed distributions that provide ``fairseq``."""
    return [name for name in DISTRIBUTIONS if any(importlib.metadata.distributions(name=name))]


def check_single_fairseq() -> None:
    """Raise :class:`EnvironmentProblem` if two installed distributions provide ``fairseq``."""
    names = fairseq_distributions()
    if len(names) > 1:
        raise EnvironmentProblem(
            f"{' and '.join(f'`{name}`' for name in names)} both provide the package `fairseq`, "
            f"so its files are a mixture. Run: {reinstall(names)}"
        )


def reinstall(names: Sequence[str]) -> str:
    """Return the shell command that replaces the distributions ``names`` by the tested fairseq."""
    return f"pip uninstall -y {' '.join(names)} && {INSTALL_FAIRSEQ}"
