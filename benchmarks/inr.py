"""Implicit representations: the tangent kernel of a SIREN on a grid, and many images trained at once, against plain recipes.

    python benchmarks/inr.py                       # the kernel on 64 × 64 (recipe: 24 × 24) and a small stack, on a CPU
    python benchmarks/inr.py --device cuda         # all on 64 × 64, 100 images
    python benchmarks/inr.py --quick               # sizes that take seconds

kernel    `tangent_gram` in float64 with the whole eigen-decomposition, against the usual recipe: a per-sample Jacobian by
          `torch.func` (vmap of jacrev) and its product with itself, decomposed by the same routine. Asked: at most 15 s on two cores
          and 2 s on an H200 for a SIREN 4 × 256 on 64 × 64 points.
training  `fit` on a stack of networks, one image each, against one image at a time: a plain PyTorch loop (autograd, Adam with
          foreach), and `fit` on one network (a CUDA graph on a GPU). Half of the pixels, full batch. Asked: 10 times one at a time on
          an H200.

First both kernels must agree to 1e-10 and stack and plain loop to 1e-6 in float64 on small sizes.
"""

import argparse
import functools
import json
import os
import time
from pathlib import Path

import torch
from torch.func import functional_call, jacrev, vmap

from biascope import Family, Recipe, Run, fit, network, tangent_gram
from biascope.measures.dictionary.kernels import all_eigenpairs
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid
from biascope.training.fit import joined

RATE = 1e-4


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(work, device, rounds):
    """The best of some rounds, after one that is not counted where it is cheap."""
    best = float("inf")
    for _ in range(rounds):
        wait(device)
        begin = time.perf_counter()
        work()
        wait(device)
        best = min(best, time.perf_counter() - begin)
    return best


def siren(run, width=256):
    family = Family.initialised(functools.partial(network("siren"), width=width, shift=0.5), name="SIREN")
    return family.draw(1, seed=0, run=run).member(0)


def recipe_gram(one, r, chunk):
    """Per-sample Jacobians of all weights, multiplied."""

    def said(params, point):
        return functional_call(one.module, (params, one.buffers), (point[None],))[0, 0]

    rows = vmap(jacrev(said), in_dims=(None, 0), chunk_size=chunk)(one.params, r)
    jacobian = torch.cat([part.flatten(1) for part in rows.values()], 1)  # (n, p)
    return jacobian @ jacobian.T


def check(device):
    """Relative differences of the kernels, and of the weights that a stack and a plain loop end with, in float64."""
    run = Run(device=str(device), precision="float64", progress=False)
    one, r = siren(run, 32), coordinate_grid((6, 6)).to(device)
    ours, theirs = tangent_gram(one, r, run=run).matrix, recipe_gram(one, r, None)
    kernel = float((ours.to(theirs) - theirs).abs().max() / theirs.abs().max())
    task, steps = task_of(2, 8, run), 5
    start = joined([one, one], one)
    recipe = Recipe("adam", RATE, "constant", steps=steps, batch=10**6, loss="squared")
    trained = fit(start, task, recipe, seed=0, run=run, way="stack").networks.params
    moved = 0.0
    for member in range(2):
        alone = plain_trained(one, task.of_member(member), steps)
        moved = max([moved, *(float((trained[k][member] - v).abs().max() / v.abs().max()) for k, v in alone.items())])
    assert kernel < 1e-10, f"kernels differ by {kernel:.1e}"
    assert moved < 1e-6, f"trainings differ by {moved:.1e}"
    return {"kernels": kernel, "weights after 5 steps": moved}


def task_of(images, side, run):
    values = torch.rand(images, side, side, 1, generator=torch.Generator().manual_seed(0))
    return SignalTask.of([Signal(each) for each in values], seed=0, run=run)


def plain_trained(one, task, steps):
    """One image by an ordinary loop; its weights."""
    module = one.as_module()
    optimiser = torch.optim.Adam(module.parameters(), lr=RATE, foreach=True)
    x, y = task.batch("train", torch.arange(task.sizes["train"], device=task.grid.device))
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        (module(x)[:, 0] - y).square().mean().backward()
        optimiser.step()
    return {name: tensor.detach() for name, tensor in module.named_parameters()}


def kernels(side, recipe_side, device, rounds):
    run = Run(device=str(device), precision="float64", progress=False)
    one = siren(run)

    def of(size):
        r = coordinate_grid((size, size)).to(device)
        gram = tangent_gram(one, r, run=run).matrix
        took = seconds(lambda: tangent_gram(one, r, run=run), device, rounds)
        return r, gram, took

    _, gram, ours = of(side)
    decomposed = seconds(lambda: all_eigenpairs(gram), device, rounds)
    small, gram, ours_small = of(recipe_side)
    chunk = None if device.type == "cuda" else 256
    found = recipe_gram(one, small, chunk)
    error = float((found - gram.to(found)).abs().max() / found.abs().max())
    theirs = seconds(lambda: recipe_gram(one, small, chunk), device, rounds)
    return {
        "points": side**2,
        "ours, Gram s": ours,
        "eigen-decomposition s": decomposed,
        "ours, both s": ours + decomposed,
        "recipe's points": recipe_side**2,
        "ours there s": ours_small,
        "recipe there s": theirs,
        "ratio there": theirs / ours_small,
        "difference": error,
    }


def trainings(images, side, steps, run, rounds):
    """Seconds for one image and one iteration, each way."""
    device = run.torch_device
    one, task = siren(run), task_of(images, side, run)
    start, alone = joined([one] * images, one), task.of_member(0)
    usual = Recipe("adam", RATE, "constant", steps=steps, batch=10**6, loss="squared")
    few = Recipe("adam", RATE, "constant", steps=max(1, steps // 4), batch=10**6, loss="squared")

    def difference(work):  # set-up and capture cancel
        work(few)
        return max(1e-9, seconds(lambda: work(usual), device, rounds) - seconds(lambda: work(few), device, rounds))

    with run.products():
        counted = usual.steps - few.steps
        stack = difference(lambda how: fit(start, task, how, seed=0, run=run, way="stack")) / counted / images
        single = difference(lambda how: fit(one, alone, how, seed=0, run=run)) / counted
        plain = difference(lambda how: plain_trained(one, alone, how.steps)) / counted
    return {
        "images": images,
        "points of an image": task.sizes["train"],
        "precision": run.precision,
        "stack ms": 1000 * stack,
        "plain loop ms": 1000 * plain,
        "fit, one ms": 1000 * single,
        "plain ÷ stack": plain / stack,
        "fit, one ÷ stack": single / stack,
    }


def shown(title, numbers):
    print(f"\n{title}", flush=True)
    for name, value in numbers.items():
        print(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed, its best being kept")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = Run(device=options.device).torch_device
    on_gpu = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if on_gpu else f"{torch.get_num_threads()} CPU threads"
    load = "" if on_gpu else f", load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"
    print(f"device: {where}{load}, torch {torch.__version__}")
    results = {"device": where, "torch": torch.__version__, "check": check(device)}
    shown("relative differences in float64", results["check"])
    side, recipe_side = (16, 16) if options.quick else (64, 64) if on_gpu else (64, 24)
    results["kernel"] = kernels(side, recipe_side, device, options.rounds)
    shown(
        "tangent kernel of a SIREN 4 × 256 in float64; asked: both in 15 s on 2 cores, 2 s on an H200",
        results["kernel"],
    )
    images, size, steps = (100, 64, 200) if on_gpu and not options.quick else (4, 16, 20)
    results["training"] = []
    for precision in ("float32", "tf32") if on_gpu else ("float32",):
        run = Run(device=str(device), precision=precision, progress=False)
        results["training"].append(trainings(images, size, steps, run, options.rounds))
        shown("training, one image and iteration; asked: 10 times one at a time on an H200", results["training"][-1])
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "inr.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
