"""Workers that are killed at a chosen moment, or found in order to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import wait_for

# The command, killed at the nth call of a function of the file system.
KILLED = """
import os, signal, sys
from fairseq_ext import cli
name, calls = sys.argv[1], int(sys.argv[2])
function = getattr(os, name)

def killing(*arguments, **options):
    global calls
    calls -= 1
    if calls == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **options)

setattr(os, name, killing)
cli.main(sys.argv[3:])
"""


@contextlib.contextmanager
def ray_cluster_of_two() -> Iterator[Any]:
    """A Ray cluster on this machine with one processor on each of two nodes."""
    pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


def kill_workers(cluster: Any, title: bytes, process: subprocess.Popen[bytes]) -> None:
    """Kill our process on each node once all are there; Ray starts them again.

    Args:
        cluster: of Ray.
        title: of our processes.
        process: that works on the cluster.
    """
    nodes, workers = cluster.list_all_nodes(), []

    def all_there() -> bool:
        workers[:] = [worker for node in nodes for worker in _workers_of(node, title)]
        return len(workers) == len(nodes)

    wait_for(all_there, process)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


def _workers_of(node: Any, title: bytes) -> list[int]:
    """Our processes on a node of the cluster, by their numbers."""
    (raylet,) = node.all_processes["raylet"]
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(path.name) for path in processes if _is_ours(path, raylet.process.pid, title)]


def _is_ours(path: Path, parent: int, title: bytes) -> bool:
    with contextlib.suppress(OSError):
        stat = (path / "stat").read_text().rpartition(")")[2].split()
        return int(stat[1]) == parent and title in (path / "cmdline").read_bytes()
    return False
