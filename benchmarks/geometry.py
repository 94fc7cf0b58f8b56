"""Average geometry in motion: what Δ costs, and what following G^t along training costs.

    python benchmarks/geometry.py                       # Δ on a CPU; on a GPU also 25 networks in training
    python benchmarks/geometry.py --quick               # everything at a size that takes a minute on a CPU
    python benchmarks/geometry.py --parts delta

delta   Δ of one LeNet (θ̇ by one backward pass over 10,000 samples of D = 1024, ġ by one forward derivative at 8 inputs)
        against plain forward and backward passes of an ordinary module over the same data, both in this process. First
        both sides are checked: θ̇ against autograd, ġ against a difference in float64. Asked: at most 3 passes.
motion  25 LeNets trained for 100 epochs of full batches with G^t along the way. Asked: at most 60 s on one H200.
"""

import argparse
import dataclasses
import functools
import json
import os
import statistics
import time
from pathlib import Path

import torch

from biascope import Family, Run, network
from biascope.measures.geometry_motion import RECIPE, geometry_motion
from biascope.tasks.task import Arrays
from biascope.training.velocity import gradient_velocity, weight_velocity

PROBES, BATCH = 8, 512


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(work, device, repeats=5):
    """Median over repeats, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        wait(device)
        begin = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def images(samples, shape, classes, device, dtype=torch.float32):
    """Smooth noise with random labels: what a benchmark of speed needs of images."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, *shape, generator=generator)
    x = x + 2 * torch.nn.functional.avg_pool2d(x, 5, stride=1, padding=2)
    y = torch.randint(0, classes, (samples,), generator=generator)
    return x.to(device, dtype), y.to(device)


def lenet(shape, outputs):
    settings = {"channels": shape[0], "outputs": outputs, "pooling": "average", "activation": "gelu"}
    return Family.initialised(functools.partial(network("lenet"), **settings), name="LeNet")


def plain_passes(module, x, y):
    """One forward and one backward pass over all samples, as one would write it."""
    module.zero_grad()
    for inputs, targets in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
        (0.5 * (module(inputs)[:, 0] - targets).square().sum()).backward()


def delta(networks, x, y, probes, paired):
    """Both factors of Δ: input gradients, and how they move."""
    velocity = weight_velocity(networks, x, y, batch=BATCH)
    return gradient_velocity(networks.read("mean"), probes, velocity, paired=paired)


def check_delta(family, shape, device):
    """Largest relative errors of θ̇ against autograd and of ġ against a central difference, in float64."""
    run = Run(device=str(device), precision="float64")
    one = family.draw(1, seed=0, run=run).member(0)
    x, y = images(64, shape, 2, device, torch.float64)
    targets = (2 * y - 1).double()
    module = one.as_module()
    plain_passes(module, x, targets)
    velocity = weight_velocity(one, x, targets)
    of_weights = max(
        float((velocity[name] + weight.grad).norm() / weight.grad.norm()) for name, weight in module.named_parameters()
    )
    slopes = []
    for step in (1e-5, -1e-5):
        moved = one.with_params({name: weight + step * velocity[name] for name, weight in one.params.items()})
        slopes.append(gradient_velocity(moved.read("mean"), x[:2], velocity)[0])
    difference = (slopes[0] - slopes[1]) / 2e-5
    moved = gradient_velocity(one.read("mean"), x[:2], velocity)[1]
    return of_weights, float((moved - difference).norm() / difference.norm())


def benchmark_delta(options, device):
    shape, samples = (1, 32, 32), 2000 if options.quick else 10_000
    family = lenet(shape, 1)
    errors = check_delta(family, shape, device)
    print(f"Δ, float64: θ̇ against autograd {errors[0]:.1e}, ġ against a difference {errors[1]:.1e} (relative)")
    assert max(errors[0] / 1e-10, errors[1] / 1e-5) < 1, "the two sides must agree before they are timed"
    run = Run(device=str(device), progress=False)
    x, y = images(samples, shape, 2, device)
    targets = (2 * y - 1).float()
    stack = family.draw(32, seed=0, run=run)
    module = stack.member(0).as_module()
    probes = 1e-3 * torch.randn(32, PROBES, *shape, generator=torch.Generator().manual_seed(1)).to(device)
    with run.products():
        plain = seconds_of(lambda: plain_passes(module, x, targets), device)
        alone = seconds_of(lambda: delta(stack.member(0), x, targets, probes[0], False), device)
        found = {"samples": samples, "errors": errors, "plain": plain, "one model": alone, "passes": alone / plain}
        if device.type == "cuda":  # on a CPU a stack of convolutions is slower than a loop
            stacked = seconds_of(lambda: delta(stack, x, targets, probes, True), device, 3) / 32
            found |= {"a model of a stack of 32": stacked, "passes in a stack": stacked / plain}
    print(f"{'':40}{'seconds':>10}{'passes':>10}")
    print(f"{f'plain forward and backward, {samples:,} samples':40}{plain:10.3f}{1.0:10.2f}")
    print(f"{'Δ, one model':40}{alone:10.3f}{alone / plain:10.2f}")
    if "passes in a stack" in found:
        print(f"{'Δ, a model of a stack of 32':40}{stacked:10.3f}{stacked / plain:10.2f}")
    cheapest = min(found["passes"], found.get("passes in a stack", float("inf")))
    print(f"Δ costs {cheapest:.2f} passes per model; asked: at most 3", flush=True)
    return found


def benchmark_motion(options, device):
    if device.type != "cuda" and not options.quick:
        print("motion: 25 networks for 100 epochs of full batches need a GPU; skipped (--quick runs a small one)")
        return None
    samples, runs, epochs = (256, 3, 4) if options.quick else (10_000, 25, 100)
    shape, run = (3, 32, 32), Run(device=str(device), precision="tf32" if device.type == "cuda" else "float32")
    x, y = images(samples, shape, 2, "cpu")
    data, family, found = Arrays({"train": (x, y)}), lenet(shape, 2), {}
    draws = 64 if options.quick else 1000
    recipe = dataclasses.replace(RECIPE, epochs=epochs)
    for looks in (8, 8 if options.quick else 400):  # in geometric order: 400 is nearly every epoch of 100
        begin = time.perf_counter()
        result = geometry_motion(
            family, data, recipe=recipe, runs=runs, checkpoints=looks, geometry_draws=draws, run=run
        )
        taken, seen = time.perf_counter() - begin, len(result.epochs)
        print(
            f"motion: {runs} LeNets, {epochs} epochs of {samples:,} samples, G^t at {seen} epochs: {taken:.1f} s",
            flush=True,
        )
        found[f"{seen} looks"] = taken
    if device.type == "cuda":
        print("motion: asked at most 60 s on one H200")
    return found


PARTS = {"delta": benchmark_delta, "motion": benchmark_motion}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="small sizes, for a CPU")
    options = parser.parse_args()
    device = Run().torch_device
    words = Run().describe()["device"]
    print(f"device: {words}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    results = {"device": words, "threads": torch.get_num_threads(), "torch": torch.__version__, "quick": options.quick}
    for part in options.parts:
        results[part] = PARTS[part](options, device)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "geometry.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
