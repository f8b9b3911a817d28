"""Open files: workers that load data pass every batch on through some of them."""

from __future__ import annotations

from fairseq_ext.errors import EnvironmentProblem
from fairseq_ext.plugin.patches.table import Patch

ENOUGH = 4096
LEAST = 64
"""A tiny run of one process and one worker takes some 40."""


def allow_open_files() -> None:
    """Raise this process's own limit, within what the system allows it.

    Raises:
        EnvironmentProblem: the system allows too few.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if limit != unlimited and limit < ENOUGH:
        limit = ENOUGH if most == unlimited else min(ENOUGH, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    if limit != unlimited and limit < LEAST:
        raise EnvironmentProblem(
            f"this process may have only {limit} files open at a time, but needs at least {LEAST}. "
            "Allow more: ulimit -n 4096"
        )


PATCHES = (
    Patch(
        name="open files",
        reason="where a worker that loads data runs out of them, fairseq waits for it forever",
        act=allow_open_files,
    ),
)
