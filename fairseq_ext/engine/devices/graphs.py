"""Steps as CUDA graphs.

The tests cover everything but this file, which was written without a GPU.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)

Step = Callable[[], None]


def captured(step: Step, device: torch.device) -> Step:
    """Capture a step as a CUDA graph; return it unchanged elsewhere, or if that fails.

    Args:
        step: works in place on tensors that stay where they are, and asks the device nothing. It
            runs a few times before it is captured.
        device: where they are.
    """
    if device.type != "cuda":
        return step
    try:
        with torch.cuda.device(device):
            return _capture(step)
    except RuntimeError as error:
        logger.warning("the engine runs without CUDA graphs: %s", error)
        return step


def _capture(step: Step) -> Step:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # libraries make their workspaces when they are first called
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_anchor(torch.cuda.current_device()).pool()):
        step()
    return graph.replay


@functools.cache
def _anchor(device: int) -> torch.cuda.CUDAGraph:
    """Capture a graph whose memory pool all graphs of the device share.

    One graph runs at a time, and none reads what another wrote there. torch gives a pool up with
    the last graph that uses it and then refuses its handle, so this graph stays.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device=device)
    return graph
