"""Planted bias: networks whose preference is known, and whether an estimator finds it.

    python benchmarks/planted.py                                     # the bias card of biascope scan
    python benchmarks/planted.py --estimator mine.py:shares          # any other

Each network has something in front of a random linear layer, or in place of it, whose effect follows from its definition. An estimator
is a function ``(build, shape, axes, quantity) -> (value, low, high)``; it may return None for what it cannot tell. A case is found if
the truth lies in the interval and the value is off by at most 0.05, or by 5 % of a truth above 1.

It takes about a minute on one CPU core.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import biascope
from biascope.results.axes import named_axes

SIDE, STEPS = 16, 24
Told = tuple[float, float, float] | None


class Behind(nn.Module):
    """A random linear layer behind a fixed map."""

    def __init__(self, before: Callable[[Tensor], Tensor], size: int, outputs: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.before, self.head = before, nn.Linear(size, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.before(x).flatten(1))


class Formula(nn.Module):
    """A function with one random weight, which scales it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.function(x)[:, None])


class OffsetFirst(nn.Module):
    """Ten classes, of which the first has a large offset."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(14, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + 100.0 * torch.eye(10)[0]


class CircularMean(nn.Module):
    """A circular convolution and the mean over all pixels: a shift changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


def filtered(kernel: Tensor) -> Callable[[Tensor], Tensor]:
    """A circular filter of each channel."""
    response = torch.fft.rfft2(kernel, s=(SIDE, SIDE))
    return lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * response.to(x.device), s=(SIDE, SIDE))


BLUR, LAPLACE = torch.ones(4, 4) / 16, torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def share_below(kernel: Tensor, cycles: float) -> float:
    """The share of a filter's squared response below a frequency in cycles across the image."""
    power = torch.fft.fft2(kernel, s=(SIDE, SIDE)).abs() ** 2
    frequency = torch.fft.fftfreq(SIDE) * SIDE
    return float(power[torch.hypot(frequency[:, None], frequency[None, :]) < cycles].sum() / power.sum())


@dataclass(frozen=True)
class Case:
    """A network of known bias.

    Attributes:
        name: What was planted.
        build: Makes the network.
        shape: Of one input.
        axes: Their names; empty for an image.
        quantity: What is asked.
        truth: The answer.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    axes: str
    quantity: str
    truth: float


IMAGE, COLOUR, PIXELS = (1, SIDE, SIDE), (3, SIDE, SIDE), SIDE * SIDE
LOW, MIDDLE = "spatial frequency < 2", "spatial frequency < 4"
CASES = (
    Case("a blur in front", lambda: Behind(filtered(BLUR), PIXELS), IMAGE, "", LOW, share_below(BLUR, 2)),
    Case("a Laplacian in front", lambda: Behind(filtered(LAPLACE), PIXELS), IMAGE, "", MIDDLE, share_below(LAPLACE, 4)),
    Case("the third channel is ignored", lambda: Behind(lambda x: x[:, :2], 2 * PIXELS), COLOUR, "", "channel 1", 0.5),
    Case("brightness alone is read", lambda: Behind(lambda x: x.mean(1), PIXELS), COLOUR, "", "colour brightness", 1.0),
    Case("the middle alone is read", lambda: Behind(lambda x: x[..., 4:12, 4:12], 64), IMAGE, "", "position ring 3 centre", 1.0),
    Case("every second pixel is read", lambda: Behind(lambda x: x[..., ::2, ::2], PIXELS // 4), IMAGE, "", MIDDLE, 0.0),
    Case("the first of eight tokens is read", lambda: Behind(lambda x: x[:, 0], 6), (8, 6), "token,channel", "token 1", 1.0),
    Case("two of fourteen features are read", lambda: Behind(lambda x: x[:, [3, 8]], 2), (14,), "feature", "feature 4", 0.5),
    Case("the step five before the last is read", lambda: Behind(lambda x: x[:, -6], 3), (STEPS, 3), "time,feature", "mean lag", 5.0),
    Case("the product of two features", lambda: Formula(lambda x: x[:, 0] * x[:, 5]), (8,), "feature", "mean dimension", 2.0),
    Case("a sum over features", lambda: Behind(torch.sin, 8), (8,), "feature", "mean dimension", 1.0),
    Case("a circular convolution and a mean", CircularMean, IMAGE, "", "shift error", 0.0),
    Case("one class has an offset", OffsetFirst, (14,), "feature", "favourite share", 1.0),
)  # fmt: skip
# Sampling every second pixel is linear: its energy is even over all frequencies, of which a disc of 4 cycles has a share.
_DISC = float((torch.hypot((f := torch.fft.fftfreq(SIDE) * SIDE)[:, None], f[None, :]) < 4).double().mean())
CASES = tuple(
    dataclasses.replace(case, truth=_DISC) if case.name == "every second pixel is read" else case for case in CASES
)
_ROWS = {
    "mean lag": "memory",
    "mean dimension": "sensitivity",
    "shift error": "equivariance",
    "favourite share": "guessing",
}


def card(build: Callable[[], nn.Module], shape: tuple[int, ...], axes: str, quantity: str) -> Told:
    """What the measurements of a scan say."""
    family = biascope.Family.initialised(build, name="planted")
    family = dataclasses.replace(family, axes=named_axes(axes))
    run = biascope.Run(device="cpu", progress=False)
    if row := _ROWS.get(quantity):
        probe = (
            biascope.Probe.smooth(shape, num=8)
            if row == "equivariance"
            else biascope.Probe.gaussian(shape, num=64, fresh=True)
        )
        number = next(iter(biascope.measure(row, family, probe, draws=100, run=run).headline().values()))
        return number.value, number.low, number.high
    result = biascope.mean_gradient(family, biascope.Probe.gaussian(shape, num=2, fresh=True), draws=200, run=run)
    divided = next(shares for shares in result.shares() if quantity.startswith(shares.name))
    rest = quantity.removeprefix(divided.name).strip()
    if rest.startswith("<"):
        ends = [
            float(label.split("–")[-1].removeprefix("over ")) if "–" in label else math.inf for label in divided.labels
        ]
        chosen = [place for place, end in enumerate(ends) if end <= float(rest[1:])]
    else:
        chosen = [
            place for place, label in enumerate(divided.labels) if label == rest or (len(label) > 3 and label in rest)
        ]
    share = divided.share(chosen)
    return share.value, share.low, share.high


def found(case: Case, told: Told) -> bool:
    """Whether an answer is right."""
    if told is None:
        return False
    value, low, high = told
    near = abs(value - case.truth) <= 0.05 * max(1.0, case.truth)
    return near and (low - 1e-6 <= case.truth <= high + 1e-6 or np.isnan(low))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--estimator", default="", help="FILE.py:function, by default the bias card")
    path, _, name = parser.parse_args().estimator.partition(":")
    estimator = card
    if path:
        spec = importlib.util.spec_from_file_location("estimator", Path(path))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        estimator = getattr(module, name)
    warnings.simplefilter("ignore")
    begin, right = time.perf_counter(), 0
    print("| planted | asked | truth | told (95 % CI) | found |\n|---|---|---|---|---|")
    for case in CASES:
        told = estimator(case.build, case.shape, case.axes, case.quantity)
        right += (ok := found(case, told))
        words = "–" if told is None else f"{told[0]:.3f} ({told[1]:.3f} to {told[2]:.3f})"
        print(f"| {case.name} | {case.quantity} | {case.truth:.3f} | {words} | {'yes' if ok else 'no'} |", flush=True)
    print(f"\n{right} of {len(CASES)} found in {time.perf_counter() - begin:.0f} s.")
    sys.exit(0 if right == len(CASES) else 1)


if __name__ == "__main__":
    main()
