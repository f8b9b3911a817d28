"""Allow enough open files: workers that load data need some for each batch."""

from __future__ import annotations

from fairseq_ext.plugin.table import Patch
from fairseq_ext.utils.errors import EnvironmentProblem

ENOUGH = 4096
LEAST = 64
"""A tiny run with one process and one worker needs about 40."""


def allow_open_files() -> None:
    """Raise the limit of this process as far as needed and allowed.

    Raises:
        EnvironmentProblem: the system allows too few open files.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if limit != unlimited and limit < ENOUGH:
        limit = ENOUGH if hard_limit == unlimited else min(ENOUGH, hard_limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    if limit != unlimited and limit < LEAST:
        raise EnvironmentProblem(
            f"this process may have only {limit} files open at a time, but needs at least {LEAST}. "
            "Allow more: ulimit -n 4096"
        )


PATCHES = (
    Patch(
        name="open files",
        kind="check",
        reason="where a worker that loads data runs out of them, fairseq waits for it forever",
        act=allow_open_files,
    ),
)
