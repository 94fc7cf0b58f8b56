"""What an Observer costs: the time of a training loop with it, divided by that of the same loop without it.

A CNN of 42,000 weights on 28×28 images, batches of 64, SGD, on one CPU core or on a GPU. On a CPU it is processor time, which other
work on the machine does not change. Loops with and without alternate; the median over pairs is printed. Then the time of a call alone,
and of one look by a hook.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import biascope

EVERY = 100


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1152, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def now(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(steps: int, device: str, observed: Callable[[nn.Module], Callable[[torch.Tensor], None]] | None) -> float:
    torch.manual_seed(0)
    module = small_cnn().to(device)
    x, y = torch.randn(64, 1, 28, 28, device=device), torch.randint(10, (64,), device=device)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    note = None if observed is None else observed(module)
    begin = now(device)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimiser.step()
        if note is not None:
            note(loss)
    return now(device) - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    probe = biascope.Probe.gaussian((1, 28, 28), num=16, fresh=True)
    rank = biascope.hook(
        "average_geometry",
        probe,
        number="effective_rank",
        draws=32,
        run=biascope.Run(device=given.device, progress=False),
    )
    after_start = range(EVERY, 10**9, EVERY)
    kinds: dict[str, Callable[[nn.Module], Callable[[torch.Tensor], None]]] = {
        "default": biascope.Observer,
        f"weights kept every {EVERY} steps": lambda module: biascope.Observer(module, at=after_start),
        f"average geometry every {EVERY} steps": lambda module: biascope.Observer(
            module, at=after_start, hooks={"rank": rank}, keep=False
        ),
    }
    seconds(20, given.device, lambda module: biascope.Observer(module, at=(1,), hooks={"rank": rank}))  # warm up
    for name, observed in kinds.items():
        pairs = [
            (seconds(given.steps, given.device, None), seconds(given.steps, given.device, observed))
            for _ in range(given.pairs)
        ]
        ratio = statistics.median(with_it / without for without, with_it in pairs)
        step = statistics.median(without for without, _ in pairs) / given.steps
        print(f"{name}: loop with observer / loop without = {ratio:.3f} (a step takes {1e3 * step:.2f} ms)")
    module, loss = small_cnn().to(given.device), torch.zeros((), device=given.device)
    observer = biascope.Observer(module)
    begin = now(given.device)
    for _ in range(10_000):
        observer(loss)
    print(f"one call: {(now(given.device) - begin) / 10_000 * 1e6:.1f} µs")
    times = []
    for step in range(5):
        begin = now(given.device)
        rank(step, biascope.Network.of(module))
        times.append(now(given.device) - begin)
    print(f"one look, average geometry of 32 draws of 16 inputs: {statistics.median(times):.2f} s")


if __name__ == "__main__":
    main()
