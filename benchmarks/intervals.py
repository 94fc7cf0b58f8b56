"""How often 95 % intervals hold the truth: ten laws of gradients, 16 to 256 draws, three estimators, one table.

Gradients are simulated from laws whose covariance is known in closed form, and pass through the sums and estimators of the
measurements: `Moments` and `GradientCovariance`, in as many groups of draws as `gradient_covariance` makes. Three estimators:

- `mean gradient`: the headline of a scan, from two noisy halves of each draw's inputs;
- `geometry`: average geometry, from one exact gradient of each draw;
- `directions`: anisotropy directions, with a common gradient of ten times the spread that is removed.

    python benchmarks/intervals.py                        # four minutes on one CPU core
    python benchmarks/intervals.py --draws 64 --repeats 4000

Columns of the table: how many of 100 intervals hold the effective rank and the mean square, the bias of both in percent, how many of
100 runs warn of the tail, and how many of 100 miss either without a warning. The exit status is 1 if at 64 draws more than 6.5 of 100
intervals miss without a warning, by two standard errors of the repetitions.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from biascope.derivatives.covariance import GROUPS
from biascope.derivatives.moments import Moments, representation, unit_of
from biascope.derivatives.operators import GradientCovariance
from biascope.measures.covariance import doubts_of_tail

SIZE = 24
EVEN = torch.linspace(0.3, 2.0, SIZE, dtype=torch.float64)
FALLING = 1 / torch.arange(1.0, SIZE + 1, dtype=torch.float64)
ONE = torch.tensor([1.0] + [0.05] * (SIZE - 1), dtype=torch.float64)
NOISE = 0.5  # of each half of a draw's inputs, relative to the root mean square of a gradient
ALLOWED = 6.5  # misses of 100

Law = Callable[[int, torch.Generator], Tensor]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(draws: int, generator: torch.Generator) -> Tensor:
    """Linear weights, uniform on ±√3."""
    return math.sqrt(3) * (2 * torch.rand(draws, SIZE, generator=generator, dtype=torch.float64) - 1)


def relu(draws: int, generator: torch.Generator) -> Tensor:
    """One hidden layer of eight ReLU units at one input, of which each is on with probability ½."""
    on = torch.rand(draws, 8, generator=generator) < 0.5
    return torch.einsum("th,thd->td", normal(generator, draws, 8) * on, normal(generator, draws, 8, SIZE)) / 2


def two_layers(draws: int, generator: torch.Generator) -> Tensor:
    """A product of two layers of width three."""
    return torch.einsum("th,thd->td", normal(generator, draws, 3), normal(generator, draws, 3, SIZE)) / math.sqrt(3)


def three_layers(draws: int, generator: torch.Generator) -> Tensor:
    """A product of three layers of width three."""
    first, second = normal(generator, draws, 3), normal(generator, draws, 3, 3)
    return torch.einsum("th,thk,tkd->td", first, second, normal(generator, draws, 3, SIZE)) / 3


def scaled(spread: float) -> Law:
    """Normal gradients times a log-normal scale of mean square 1."""
    return lambda draws, generator: (
        torch.exp(spread * normal(generator, draws, 1) - spread**2) * normal(generator, draws, SIZE)
    )


def student(draws: int, generator: torch.Generator) -> Tensor:
    """Student's t with five degrees of freedom, all numbers of a gradient by one denominator, of mean square 1."""
    return normal(generator, draws, SIZE) * (3 / normal(generator, draws, 5).square().sum(1, keepdim=True)).sqrt()


def outliers(draws: int, generator: torch.Generator) -> Tensor:
    """One draw of ten is four times as long."""
    long = torch.rand(draws, 1, generator=generator, dtype=torch.float64) < 0.1
    return normal(generator, draws, SIZE) * torch.where(long, 4.0, 1.0) / math.sqrt(2.5)


#: Laws of uncorrelated numbers of variance 1, and the scales that the numbers of a gradient are multiplied by.
LAWS: dict[str, tuple[Law, Tensor]] = {
    "normal, many directions": (lambda draws, generator: normal(generator, draws, SIZE), EVEN),
    "normal, few directions": (lambda draws, generator: normal(generator, draws, SIZE), FALLING),
    "normal, one direction": (lambda draws, generator: normal(generator, draws, SIZE), ONE),
    "uniform weights": (uniform, EVEN),
    "ReLU layer": (relu, FALLING),
    "two-layer product": (two_layers, FALLING),
    "three-layer product": (three_layers, FALLING),
    "Student's t, 5 degrees": (student, FALLING),
    "one in ten 4 times as long": (outliers, FALLING),
    "log-normal scale, σ = 1": (scaled(1.0), FALLING),
}


def covariance_of(gradients: Tensor, *, of_means: bool, centred: bool) -> GradientCovariance:
    """What ``gradient_covariance`` makes of these gradients ``(T, n, D)``."""
    draws, inputs, size = gradients.shape
    count = min(GROUPS, draws)
    form = representation(size, draws, inputs, count)
    centre = gradients[: min(draws, 32)].mean((0, 1)) if centred else None
    unit = float(unit_of(gradients))
    groups = []
    for index in range(count):
        moments = Moments.empty(size, form, gradients.device, centre, unit)
        part = gradients[draws * index // count : draws * (index + 1) // count]
        (moments.add_crossed if of_means else moments.add)(part)
        groups.append(moments)
    return GradientCovariance(groups, centred, inputs)


def drawn(law: Law, scales: Tensor, estimator: str, draws: int, generator: torch.Generator) -> GradientCovariance:
    gradients = (law(draws, generator) * scales)[:, None]
    size = float(scales.norm())
    if estimator == "mean gradient":
        noise = NOISE * size / math.sqrt(SIZE) * normal(generator, draws, 2, SIZE)
        return covariance_of(gradients + noise, of_means=True, centred=False)
    common = 10 * size / math.sqrt(SIZE) if estimator == "directions" else 0.0
    return covariance_of(gradients + common, of_means=False, centred=estimator == "directions")


def row(name: str, estimator: str, draws: int, repeats: int) -> list[float]:
    """Percent: rank covered, mean square covered, bias of both, warned, rank missed silently, mean square missed silently."""
    law, scales = LAWS[name]
    trace = float(scales.square().sum())
    rank = trace**2 / float(scales.pow(4).sum())
    generator = torch.Generator().manual_seed(draws)
    found = []
    for _ in range(repeats):
        covariance = drawn(law, scales, estimator, draws, generator)
        one, two = covariance.effective_rank(), covariance.trace()
        warned = bool(doubts_of_tail(covariance))
        hits = one.contains(rank), two.contains(trace)
        silent = [not hit and not warned for hit in hits]
        found.append([*hits, one.value / rank - 1, two.value / trace - 1, warned, *silent])
    return (100 * torch.tensor(found, dtype=torch.float64).nanmean(0)).tolist()  # a rank of nan is refused: a miss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, nargs="*", default=[16, 32, 64, 128, 256], help="Numbers of draws.")
    parser.add_argument("--repeats", type=int, default=300, help="Repetitions of each row.")
    parser.add_argument("--estimators", nargs="*", default=["mean gradient", "geometry", "directions"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    begin, failed = time.perf_counter(), []
    print(
        "| law | estimator | draws | rank covered | mean square covered | bias of rank | of mean square | warned | silent misses |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in LAWS:
        for estimator in given.estimators:
            for draws in given.draws:
                rank, square, *bias, warned, rank_silent, silent = row(name, estimator, draws, given.repeats)
                print(
                    f"| {name} | {estimator} | {draws} | {rank:.1f} % | {square:.1f} % | {bias[0]:+.1f} % | {bias[1]:+.1f} % | "
                    f"{warned:.0f} % | {rank_silent:.1f} %, {silent:.1f} % |",
                    flush=True,
                )
                error = math.sqrt(ALLOWED * (100 - ALLOWED) / given.repeats)
                if draws == 64 and max(rank_silent, silent) > ALLOWED + 2 * error:
                    failed.append(f"{name}, {estimator}")
    print(f"{time.perf_counter() - begin:.0f} s, {given.repeats} repetitions")
    if failed:
        raise SystemExit(f"More than {ALLOWED} % of intervals miss without a warning at 64 draws: {'; '.join(failed)}.")


if __name__ == "__main__":
    main()
