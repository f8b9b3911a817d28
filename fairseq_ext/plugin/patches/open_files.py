"""Open files: workers that load data pass every batch on through some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import EnvironmentProblem
from fairseq_ext.plugin.patches import probes
from fairseq_ext.plugin.patches.table import Layer, Patch

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


def close_if_open(original: Callable) -> Callable:
    """The destructor of a data set, for one whose file could not be opened, too."""

    def __del__(self: Any) -> None:
        if getattr(self, "_bin_buffer_mmap", None) is not None:
            original(self)

    return __del__


PATCHES = (
    Patch(
        name="open files",
        reason="where a worker that loads data runs out of them, fairseq waits for it forever",
        act=allow_open_files,
    ),
    Patch(
        name="data sets that were never opened",
        reason="where a data set cannot be opened, two tracebacks of destructors follow the error",
        until="fairseq's destructors look whether there is a file to close",
        needed=probes.closes_what_is_not_open,
        layers=(
            Layer("fairseq.data.indexed_dataset:MMapIndexedDataset.__del__", close_if_open),
            Layer("fairseq.data.indexed_dataset:MMapIndexedDataset.Index.__del__", close_if_open),
        ),
    ),
)
