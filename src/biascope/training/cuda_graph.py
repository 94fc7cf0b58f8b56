"""A training step on the GPU, recorded once as a CUDA graph and replayed without launch costs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Said = TypeVar("Said")


def recorded(
    work: Callable[[], Said], state: Sequence[Tensor], device: torch.device, *, warmups: int = 1
) -> tuple[Callable[[], None], Said]:
    """A CUDA graph of some work, and what the work returned while it was recorded, which every replay fills anew.

    Warming up and recording must not count as work done: all state, and the random stream of the device, is put back.

    Args:
        work: Runs on the device alone, on tensors that stay where they are.
        state: All that it changes in place.
        device: A CUDA device.
        warmups: How often the work is done before it is recorded, so that libraries have chosen and allocated.

    Returns:
        The replay, and the tensors it writes to.
    """
    before = [tensor.detach().clone() for tensor in state]
    random = torch.cuda.get_rng_state(device)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(warmups):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    # A graph that is let go while another is recorded spoils that one, and graphs of earlier work may wait in reference cycles.
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            said = work()
    finally:
        if collecting:
            gc.enable()
    with torch.no_grad():
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
    torch.cuda.set_rng_state(random, device)
    return graph.replay, said
