"""Every quirk of fairseq on today's Python, torch and numpy, each fixed with its reason.

fairseq is not maintained any more, and torch and numpy have moved on. Each :class:`Fix` names what
goes wrong without it and when it can be deleted; ``fairseq-ext doctor`` lists them. They are kept
by subject:

- :mod:`~fairseq_ext.compat.loading`: what a checkpoint may hold;
- :mod:`~fairseq_ext.compat.batches`: no sentence is lost;
- :mod:`~fairseq_ext.compat.machine`: training on CPUs, with several processes, in bf16;
- :mod:`~fairseq_ext.compat.resume` and :mod:`~fairseq_ext.compat.precision`: a killed run
  continues exactly;
- :mod:`~fairseq_ext.compat.averages`: moving averages of any model;
- :mod:`~fairseq_ext.compat.ending`: a run that is done ends well;
- :mod:`~fairseq_ext.compat.noise`: warnings, repeated log lines.
"""

from __future__ import annotations

from fairseq_ext.compat import averages, batches, ending, loading, machine, noise, precision, resume
from fairseq_ext.compat.patching import Fix, wrap
from fairseq_ext.errors import EnvironmentProblem

__all__ = ["FIXES", "Fix", "active", "apply", "status", "wrap"]

FIXES: tuple[Fix, ...] = (
    *noise.FIXES,
    *loading.FIXES,
    *batches.FIXES,
    *machine.FIXES,
    *resume.FIXES,
    *precision.FIXES,
    *averages.FIXES,
    *ending.FIXES,
)

_active: set[str] = set()  # fixes apply to the process, so this is the process's state


def apply() -> None:
    """Apply every fix that is needed here, each once per process.

    Raises:
        EnvironmentProblem: a fix does not fit the installed fairseq.
        ImportError: fairseq is missing.
    """
    for fix in FIXES:
        if fix.name in _active:
            continue
        try:
            if fix.needed():
                fix.apply()
                _active.add(fix.name)
        except AttributeError as error:
            raise EnvironmentProblem(
                f"The fix “{fix.name}” does not fit the installed fairseq ({error}). "
                "Install the tested one: pip install --no-build-isolation fairseq-fixed==0.12.3.1"
            ) from error


def active() -> tuple[str, ...]:
    """Names of the fixes applied in this process."""
    return tuple(fix.name for fix in FIXES if fix.name in _active)


def status() -> list[tuple[Fix, bool]]:
    """Every fix, and whether it is applied in this process; works where fairseq is missing."""
    return [(fix, fix.name in _active) for fix in FIXES]
