"""How fast input gradients over random initialisations are, against plain PyTorch, in one process.

    python benchmarks/anisotropy.py [--device cuda] [--draws 10000] [--json FILE]

Two baselines. *Built*: a loop that builds one network at a time, moves it to the device and takes its gradient, as the
published code does. *In place*: the best honest loop, one module on the device whose weights are drawn anew in place.
Both run in the same precision as ours. Differences are central with h = 100 in all 1024 pixels, 2048 inputs a pass.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.families.family import Family
from biascope.networks import builder
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

STEP = 100.0


def synchronised() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def plain_gradient(module: nn.Module, x: Tensor, estimator: str) -> Tensor:
    """What a careful user writes."""
    if estimator == "exact":
        point = x.clone().requires_grad_()
        return torch.autograd.grad(module(point).sum(), point)[0].flatten()
    impulses = STEP * torch.eye(x.numel(), device=x.device, dtype=x.dtype).reshape(-1, *x.shape[1:])
    with torch.no_grad():
        plus, minus = module(torch.cat([x + impulses, x - impulses])).flatten().chunk(2)
    return (plus - minus) / (2 * STEP)


def built(build: Callable[[], nn.Module], x: Tensor, estimator: str) -> Callable[[], Tensor]:
    return lambda: plain_gradient(build().to(x.device, x.dtype).eval(), x, estimator)


def in_place(build: Callable[[], nn.Module], x: Tensor, estimator: str) -> Callable[[], Tensor]:
    module = build().to(x.device, x.dtype).eval()
    layers = [layer for layer in module.modules() if hasattr(layer, "reset_parameters")]

    def draw() -> Tensor:
        for layer in layers:
            layer.reset_parameters()
        return plain_gradient(module, x, estimator)

    return draw


def rate_of(once: Callable[[], Tensor], seconds: float) -> float:
    """Calls per second over about so many seconds, after two to warm up."""
    once(), once()
    begin, count = synchronised(), 0
    while count < 3 or synchronised() - begin < seconds:
        once()
        count += 1
    return count / (synchronised() - begin)


def ours(name: str, estimator: str, draws: int, run: Run) -> dict[str, object]:
    """A first run with all that it costs (recording, timing the ways), then a second with the way settled."""
    family = Family.initialised(builder(name), name=name)
    probe = Probe.gaussian((1, 32, 32), seed=0)
    begin = synchronised()
    sampler = GradientSampler(family, probe, estimator=estimator, step=STEP, readout="first", seed=0, run=run)
    gradient_covariance(sampler, draws=draws, seed=0)
    first = synchronised() - begin
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    begin = synchronised()
    gradient_covariance(sampler, draws=draws, seed=1)
    second = synchronised() - begin
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
    return {"first_s": first, "s": second, "rate": draws / second, "method": sampler.method, "peak_gib": peak}


def disagreement(name: str, estimator: str, run: Run) -> float:
    """Largest difference between our gradients and the plain ones at the same weights, relative to the largest entry."""
    family = Family.initialised(builder(name), name=name)
    probe = Probe.gaussian((1, 32, 32), seed=0)
    sampler = GradientSampler(family, probe, estimator=estimator, step=STEP, readout="first", seed=0, run=run)
    gradients = sampler.gradients(0, 8)
    x = probe.inputs(0, 1, run)
    stack = family.draw(8, seed=0, run=run)
    with run.products():
        plain = torch.stack([plain_gradient(stack.member(i).as_module().to(x), x, estimator) for i in range(8)])
    return float((gradients[:, 0] - plain).abs().max() / plain.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cases", default="", help="comma-separated network/estimator/precision/draws; all by default")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each baseline")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    device = Run(device=options.device).torch_device
    if options.cases:
        cases = [case.split("/") for case in options.cases.split(",")]
    elif device.type == "cpu":
        cases = [
            ["lenet", "difference", "float32", "200"],
            ["lenet", "exact", "float32", "2000"],
            ["resnet18", "exact", "float32", "128"],
        ]
    else:
        cases = [
            ["lenet", "exact", "float32", "10000"],
            ["lenet", "difference", "float32", "10000"],
            ["resnet18", "exact", "float32", "10000"],
            ["resnet18", "difference", "tf32", "1000"],
            ["resnet18", "difference", "float16", "10000"],
        ]
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {where}\n")
    print(
        "network    estimator   precision draws   built/s in-place/s    ours/s  ÷built ÷in-place    time  (first) error"
    )
    rows = []
    for name, estimator, precision, count in cases:
        run, draws = Run(device=str(device), precision=precision), int(count)
        error = disagreement(name, estimator, run)
        row: dict[str, object] = {
            "network": name,
            "estimator": estimator,
            "precision": precision,
            "draws": draws,
            "error": error,
        }
        row |= ours(name, estimator, draws, run)
        x = Probe.gaussian((1, 32, 32), seed=0).inputs(0, 1, run)
        with run.products():
            row["built"] = rate_of(built(builder(name), x, estimator), options.seconds)
            row["in_place"] = rate_of(in_place(builder(name), x, estimator), options.seconds)
        rate, plain, best = float(row["rate"]), float(row["built"]), float(row["in_place"])  # type: ignore[arg-type]
        print(
            f"{name:10} {estimator:11} {precision:9} {draws:5d} {plain:9.1f} {best:10.1f} {rate:9.1f} {rate / plain:7.1f}"
            f" {rate / best:9.1f} {row['s']:6.2f}s {row['first_s']:7.2f}s {error:.1e}  [{row['method']}; {row['peak_gib']:.1f} GiB]",
            flush=True,
        )
        rows.append(row)
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"torch": torch.__version__, "device": where, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
