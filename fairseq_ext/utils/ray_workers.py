"""Run worker processes on a Ray cluster, for example to translate the parts of a large text.

Ray places the workers and restarts killed ones. The workers share the parts among themselves by
files in a folder (:mod:`fairseq_ext.utils.shared_folder`).
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import EnvironmentProblem, FairseqExtError


def run(address: str, work: Callable[[Any, bool], object], request: Any, *, cpu: bool) -> None:
    """Start as many workers as the cluster at ``address`` has room for, and wait for all of them.

    The address ``local`` starts a cluster. If ``cpu`` is True, no worker gets a GPU. Each worker
    calls ``work(request, without_gpu)``; ``without_gpu`` is True for workers without a GPU. Raise
    EnvironmentProblem if Ray is not installed, or the cluster cannot be reached.
    """
    extras.need("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # keep Ray from reporting to its makers
    import ray

    try:
        ray.init(address=address, log_to_driver=True, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise EnvironmentProblem(f"`--ray {address}`: {reason}") from error
    try:
        threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
        tasks = []
        for gpus, processors in workers(ray.cluster_resources(), threads, cpu=cpu):
            remote = ray.remote(work).options(
                num_cpus=processors, num_gpus=gpus, max_retries=-1, retry_exceptions=False
            )
            tasks.append(remote.remote(request, gpus == 0))
        ray.get(tasks)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FairseqExtError):
            raise error.cause from None
        raise
    finally:
        ray.shutdown()


def workers(resources: Mapping[str, float], threads: int, *, cpu: bool) -> list[tuple[int, int]]:
    """Return ``(GPUs, processors)`` for each worker that fits into a cluster; at least one worker.

    ``resources`` has the cluster's GPUs and processors, as Ray reports them. Each GPU gets a worker
    with one processor, unless ``cpu`` is True. The other processors are divided among workers
    without a GPU, ``threads`` processors each.
    """
    gpus = 0 if cpu else int(resources.get("GPU", 0))
    rest = max(int(resources.get("CPU", 0)) - gpus, 0) // threads
    return [(1, 1)] * gpus + [(0, threads)] * (rest if gpus else max(rest, 1))
