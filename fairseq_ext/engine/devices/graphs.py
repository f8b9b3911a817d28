"""Steps as CUDA graphs. Written without a GPU at hand: what is tested is all but this file."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)

Step = Callable[[], None]


def captured(step: Step, device: torch.device) -> Step:
    """The same step, launched at once on CUDA; as it is elsewhere, or where the capture fails.

    Args:
        step: works in place on tensors that stay where they are, and asks the device nothing. It
            runs a few times before it is captured.
        device: where they are.
    """
    if device.type != "cuda":
        return step
    try:
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(2):  # libraries make their workspaces when they are first called
                step()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        logger.warning("the engine runs without CUDA graphs: %s", error)
        return step
    return graph.replay
