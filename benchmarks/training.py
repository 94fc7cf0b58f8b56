"""Training along many directions: the sweep against a plain PyTorch loop, one network at a time, in one process.

    python benchmarks/training.py                       # small on a CPU, the whole LeNet panel on a GPU
    python benchmarks/training.py --directions 514 --epochs 20 --folder FOLDER

First the stack is checked against plain loops in float64; then one network is trained by the plain loop, on the same
device and in the same precision, and all directions by the sweep. The ratio counts all that a user waits for, planning,
compilation and evaluation included; the ratio of training alone is printed beside it.
"""

import argparse
import dataclasses
import functools
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from biascope import Family, Recipe, Run, fit, network
from biascope.measures.directional_bias import RECIPE, Problem, directional_bias
from biascope.tasks import bases
from biascope.tasks.task import along_directions
from biascope.training.fit import batches
from biascope.training.plan import MOST, seconds_per_step

SHAPE = (1, 32, 32)


def plain_loop(module, task, recipe, seed, device, steps):
    """What one would write: SGD on an ordinary module, data on the device, rate set every iteration."""
    optimiser = torch.optim.SGD(module.parameters(), lr=recipe.rate, momentum=recipe.momentum)
    total = recipe.total_steps(task.sizes["train"])
    module.train()
    for step, indices in enumerate(batches(task.sizes["train"], recipe, steps, seed, device)):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate_at(step, total)
        x, y = task.batch("train", indices)
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), recipe.clip)
        optimiser.step()
    return module


@torch.no_grad()
def accuracies(module, task, device):
    """On the training and the test set, as the sweep measures them too."""
    module.eval()
    for split in ("train", "test"):
        right = 0
        for indices in torch.arange(task.sizes[split], device=device).split(1000):
            x, y = task.batch(split, indices)
            right += int((module(x).argmax(1) == y).sum())


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def check(family, basis, device):
    """The largest difference in weights after 50 steps between a stack and plain loops, in float64."""
    run = Run(device=str(device), precision="float64")
    recipe = Recipe(rate=0.5, clip=0.5, steps=50, batch=32)
    stack = family.draw(3, seed=0, run=run)
    task = along_directions(basis.vectors[:3], SHAPE, train=320, test=10, seed=0, run=run)
    worst = 0.0
    for way in ("stack", "shifts", "loop"):
        trained = fit(stack, task, recipe, seed=1, run=run, way=way).networks
        for member in range(3):
            module = plain_loop(stack.member(member).as_module(), task.of_member(member), recipe, 1, device, 50)
            for name, weight in module.named_parameters():
                worst = max(worst, float((weight - trained.params[name][member]).detach().abs().max()))
    return worst


def print_ways(family, basis, recipe, samples, run):
    """Milliseconds of one iteration of a stack, and images per second; infinite where a way cannot run."""
    ways = (
        ("stack", "shifts", "compiled", "captured") if run.torch_device.type == "cuda" else ("loop", "stack", "shifts")
    )
    for way in ways:
        members = 1 if way in ("captured", "loop") else min(len(basis), MOST)
        task = along_directions(basis.vectors[:members], SHAPE, train=samples, test=10, seed=0, run=run)
        seconds = seconds_per_step(family.draw(members, seed=0, run=run), task, recipe, run, way)
        print(f"{way}, {members} members: {1000 * seconds:.2f} ms, {128 * members / seconds:,.0f} images/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--directions", type=int, default=514 if on_gpu else 8)
    parser.add_argument("--epochs", type=int, default=20 if on_gpu else 4)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--precision", default="tf32" if on_gpu else "float32")
    parser.add_argument("--ways", action="store_true", help="also time one iteration of a stack in every way")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    run = Run(folder=options.folder, precision=options.precision, progress=False)
    device = run.torch_device
    family = Family.initialised(functools.partial(network(options.network), outputs=2), name="LeNet")
    if options.network != "lenet":
        family = dataclasses.replace(family, name=options.network)
    basis = bases.fourier_half(SHAPE).part(range(options.directions))
    print(f"device: {run.describe()['device']}, {options.precision}, torch {torch.__version__}")
    if family.num_parameters < 1_000_000:
        print(f"stack against plain loops, float64, 50 steps: largest difference {check(family, basis, device):.1e}")

    recipe = Recipe(rate=0.5, clip=0.5, epochs=options.epochs)
    task = along_directions(basis.vectors[:1], SHAPE, train=options.samples, test=10_000, seed=0, run=run)
    total = recipe.total_steps(options.samples)
    timed = min(total, 400)
    module = family.draw(1, seed=0, run=run).member(0).as_module()
    with run.products():
        plain_loop(module, task.of_member(0), recipe, 0, device, 20)
        wait(device)
        begin = time.perf_counter()
        plain_loop(module, task.of_member(0), recipe, 0, device, timed)
        wait(device)
        alone = (time.perf_counter() - begin) / timed * total
    print(
        f"plain loop: {alone:.2f} s a network ({timed} of {total} iterations timed), {alone * len(basis):,.0f} s for all"
    )

    results = {"device": run.describe()["device"], "alone": alone, "directions": len(basis), "epochs": options.epochs}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = 0
    for count in (len(basis) // 4, len(basis)):
        begin = time.perf_counter()
        found = directional_bias(
            family,
            basis.part(range(count)),
            problem=Problem(samples=(options.samples,)),
            recipe=dataclasses.replace(RECIPE, epochs=options.epochs),
            run=run,
            seed=0,
        )
        seconds = time.perf_counter() - begin
        new = count - before  # with a folder the first directions are kept, not trained again
        before = count if options.folder is not None else 0
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
        print(
            f"sweep: {new} directions in {seconds:.1f} s, {seconds / new:.3f} s each; {alone * new / seconds:.1f} × the "
            f"plain loop; peak memory {memory:.1f} GiB; mean accuracy {100 * found.accuracy.mean():.1f} %",
            flush=True,
        )
        results[f"sweep of {new}"] = {"seconds": seconds, "ratio": alone * new / seconds, "memory": memory}
    if options.ways:
        print_ways(family, basis, recipe, options.samples, run)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "training.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
