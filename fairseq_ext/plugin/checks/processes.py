"""If one process of a job dies, the others end with one line that says so.

A killed process cannot print anything. The others notice that a connection was closed, or that no
message came within the time limit of torch's process group (30 minutes by default).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fairseq_ext.plugin.table import Layer, Patch, around
from fairseq_ext.utils.errors import EnvironmentProblem

CURE = "The same command continues from the last checkpoint."
LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|"
    r"[Tt]imed out|Remote process exited|remote process exited|heartbeat"
)
"""Messages of torch's process groups about a process that does not answer."""


@around
def _distributed_main(original: Callable, *arguments: Any, **options: Any) -> Any:
    import torch.distributed

    try:
        return original(*arguments, **options)
    except RuntimeError as error:
        if isinstance(error, EnvironmentProblem) or not LOST.search(str(error)):
            raise
        if not torch.distributed.is_initialized():
            raise
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        raise EnvironmentProblem(
            f"process {rank} of {size} ended, because another one does not answer any more: "
            f"it was killed, or failed with a message of its own. {CURE}"
        ) from error


@around
def _call_main(original: Callable, *arguments: Any, **options: Any) -> Any:
    """Report the death of a process that fairseq-train itself has started."""
    from torch.multiprocessing import ProcessExitedException

    try:
        return original(*arguments, **options)
    except ProcessExitedException as error:
        how = f"by {error.signal_name}" if error.signal_name else f"(status {error.exit_code})"
        memory = ", perhaps for want of memory" if error.signal_name == "SIGKILL" else ""
        raise EnvironmentProblem(
            f"process {error.error_index} of this job was ended {how}{memory}; the others "
            f"were stopped. {CURE}"
        ) from error


PATCHES = (
    Patch(
        name="processes that are gone",
        kind="check",
        reason="when one process of a job is killed, the others end with tracebacks of torch",
        layers=(
            Layer("fairseq.distributed.utils:distributed_main", _distributed_main),
            Layer("fairseq.distributed.utils:call_main", _call_main),
        ),
    ),
)
