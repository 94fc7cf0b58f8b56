"""Task arithmetic: what editing models on disk, maps of ξ and linearised networks cost, each against the plain way.

    python benchmarks/merge.py                           # models of 50 million numbers, both ways; maps; linearised networks
    python benchmarks/merge.py apply --numbers 1e9       # a billion; the other way stays at --loaded 5e7
    python benchmarks/merge.py map linearised --device cuda --precision tf32
    python benchmarks/merge.py --quick                   # sizes that take seconds

apply    `biascope merge apply` on a base and two models, each in shards: θ₀ + 0.4 (A − θ₀) − 0.3 (B − θ₀), with its report. Asked:
         at most 500 MiB of anonymous memory for a billion parameters, also for `merge doctor` on all four. Against the usual way:
         torch.load of all three, the sum, and torch.save. Both run in a fresh process that samples RssAnon of /proc/self/status every
         5 ms; what its imports take is told.

         First both ways must give the same weights, bit for bit, on a small model.
map      ξ of two tasks on a 20 × 20 grid with 2,048 points each, for EfficientNet-Lite0 at 96 pixels; asked: at most 5 minutes on the
         H200. Non-linear: against a loop that writes the weights into a module for each place and classifies in batches of 128.
         Linearised: two forward-mode passes against one forward-mode pass for each place. The plain ways are timed on
         a few places of the grid, which first must give the same classes.
linearised   a step of fine-tuning (batch of 128) and an inference, linearised against non-linear. About 2 and 2 to 3 are published.

Weights and inputs of the last two are random: what they cost does not depend on them.
"""

import argparse
import dataclasses
import functools
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from biascope.derivatives.linearize import linearize
from biascope.editing.encoder_source import encoder_of
from biascope.editing.heads import Head, headed
from biascope.editing.outputs import edited_outputs, sampled
from biascope.editing.tuning import tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families.checkpoint import SLICE, Checkpoint
from biascope.families.checkpoint_writer import CheckpointWriter, Planned
from biascope.measures.disentanglement import disentanglement
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.fit import fit

WEIGHTS = {"a": 0.4, "b": -0.3}
MIB = 2**20


def anonymous():
    """Bytes of memory of this process that no file backs."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def measured(work):
    """Peak of the anonymous memory before and while something runs, and the seconds it takes."""
    before, peak, over = anonymous(), [0], threading.Event()

    def sample():
        while not over.is_set():
            peak[0] = max(peak[0], anonymous())
            over.wait(0.005)

    watcher = threading.Thread(target=sample)
    watcher.start()
    begin = time.perf_counter()
    try:
        work()
    finally:
        seconds = time.perf_counter() - begin
        over.set()
        watcher.join()
    return {"imports": before, "peak": max(peak[0], before), "seconds": seconds}


def layers_of(numbers, dtype):
    """Shapes like those of a language model: wide blocks, an embedding ten times as large, norms."""
    width = 4096 if numbers > 2e8 else 1024
    plan = {"embedding.weight": Planned((max(1, int(numbers // 10 // width)), width), dtype)}
    left, block = numbers - math.prod(plan["embedding.weight"].shape), 0
    while left >= width * width:
        plan[f"blocks.{block}.linear.weight"] = Planned((width, width), dtype)
        plan[f"blocks.{block}.norm.weight"] = Planned((width,), dtype)
        left -= width * width + width
        block += 1
    return plan


def write_model(folder, numbers, dtype, seed, shard_bytes):
    """Random weights, near those of seed 0, in shards."""
    plan = layers_of(numbers, dtype)
    shared, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    with CheckpointWriter(folder, plan, shard_bytes=shard_bytes) as writer:
        for name in plan:
            total = math.prod(plan[name].shape)
            for begin in range(0, total, 16 * SLICE):
                count = min(16 * SLICE, total - begin)
                values = 0.02 * torch.randn(count, generator=shared)
                writer.write(name, values + (1e-3 * torch.randn(count, generator=own) if seed else 0))


def prepare(folder, numbers, dtype, shard_bytes=10**9):
    """A base and two models; nothing if the disk is too small, since the writer says so first."""
    for seed, name in enumerate(("base", *WEIGHTS)):
        write_model(folder / name, numbers, dtype, seed, shard_bytes)


def streamed(folder):
    """Our way, as a user would call it."""
    from biascope.cli.merge import apply

    models = [f"{folder / name}={weight}" for name, weight in WEIGHTS.items()]
    apply(folder / "base", models, out=folder / "streamed", report_out=folder / "report", as_json=True)


def loaded(folder):
    """All models in memory, as torch files."""
    base, *models = (torch.load(folder / f"{name}.pt", weights_only=True) for name in ("base", *WEIGHTS))
    for name, start in base.items():
        wide = start.float()
        edit = torch.zeros_like(wide)
        for model, weight in zip(models, WEIGHTS.values(), strict=True):
            edit.add_(model[name].float() - wide, alpha=weight)
        base[name] = (wide + edit).to(start.dtype)
    torch.save(base, folder / "loaded.pt")


def examined(folder):
    """The doctor on the base, the two models and their merge."""
    from biascope.editing.doctor import diagnosis_of

    models = {folder / name: weight for name, weight in WEIGHTS.items()}
    found = diagnosis_of(list(models), base=folder / "base", merged=folder / "streamed", coefficients=models)
    assert found.status("no_change") == "clean", found.findings


WAYS = {"streamed": streamed, "loaded": loaded}
CHILDREN = {**WAYS, "doctor": examined}


def in_fresh_process(way, folder):
    done = subprocess.run([sys.executable, __file__, "--child", way, str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def row(way, numbers, dtype, cost):
    size = 4 * numbers * dtype.itemsize  # three models read, one written
    name = str(dtype).removeprefix("torch.")
    print(
        f"{way:9} {numbers / 1e6:8,.0f} M {name:9} {cost['imports'] / MIB:9.0f} {cost['peak'] / MIB:9.0f} MiB {cost['seconds']:8.1f} s "
        f"{size / cost['seconds'] / 1e9:6.2f} GB/s", flush=True
    )  # fmt: skip


def both(root, numbers, dtype):
    """Models of a size in both formats."""
    folder = Path(root)
    prepare(folder, numbers, dtype)
    for name in ("base", *WEIGHTS):
        torch.save(Checkpoint.open(folder / name).params(), folder / f"{name}.pt")
    return folder


def measure_apply(options):
    dtype, root = getattr(torch, options.dtype), options.folder
    with tempfile.TemporaryDirectory(dir=root) as root_folder:
        folder = both(root_folder, 3e6, dtype)
        for way in WAYS:
            in_fresh_process(way, folder)
        ours, theirs = Checkpoint.open(folder / "streamed"), Checkpoint.open(folder / "loaded.pt")
        assert ours.fingerprint() == theirs.fingerprint(), "both ways must give the same weights"
    print(f"{'way':9} {'numbers':>10} {'type':9} {'imports':>9} {'peak':>13} {'time':>10} {'read + written':>11}")
    with tempfile.TemporaryDirectory(dir=root) as root_folder:
        folder = both(root_folder, options.loaded, dtype)
        for way in WAYS:
            row(way, options.loaded, dtype, in_fresh_process(way, folder))
    if options.numbers > options.loaded:
        with tempfile.TemporaryDirectory(dir=root) as root_folder:
            prepare(Path(root_folder), options.numbers, dtype)
            cost = in_fresh_process("streamed", Path(root_folder))
            row("streamed", options.numbers, dtype, cost)
            row("doctor", options.numbers, dtype, examining := in_fresh_process("doctor", Path(root_folder)))
        assert cost["peak"] < 500 * MIB, "merge apply must stay below 500 MiB of anonymous memory"
        assert examining["peak"] < 500 * MIB, "merge doctor must stay below 500 MiB of anonymous memory"


def timed(work, run):
    """Seconds, all that was queued on a GPU included, and what the work gives."""
    if run.torch_device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    found = work()
    if run.torch_device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, found


def made_up(points, pixels=96, classes=10):
    """An encoder at random weights, and two tasks with heads and vectors; its features stay of one size along the vectors."""
    encoder = encoder_of("efficientnet_lite0", random=True).network
    stream = torch.Generator().manual_seed(0)

    def vector():
        moved = {
            k: w + 0.1 * w.std().nan_to_num() * torch.randn(w.shape, generator=stream)
            for k, w in encoder.params.items()
        }
        return TaskVector.between(encoder.params, moved)

    tasks = {
        name: Arrays(
            {"test": (torch.randn(points, 3, pixels, pixels, generator=stream), torch.randint(classes, (points,)))},
            name=name,
        )
        for name in ("one", "other")
    }
    with torch.inference_mode():
        features = encoder(tasks["one"].splits["test"][0][:64])
    heads = {
        name: Head(torch.randn(classes, features.shape[1], generator=stream) / features.std(), torch.zeros(classes))
        for name in tasks
    }
    return (
        encoder,
        heads,
        {tuning: {name: vector() for name in tasks} for tuning in ("non-linear", "linearised")},
        tasks,
    )


def plain_places(encoder, head, vectors, rows, x, linearised, run, batch=128):
    """Classes at each place by the plain loop."""
    placed = encoder.to(run.torch_device, torch.float32)
    found = []
    with torch.no_grad(), run.products():
        for row in rows.tolist():
            moved = {
                k: w + sum(a * v.deltas[k].to(w) for a, v in zip(row, vectors, strict=True) if k in v.deltas)
                for k, w in placed.params.items()
            }
            network = linearize(placed).with_params(moved) if linearised else placed.with_params(moved)
            outputs = [head(network(part.to(run.torch_device))) for part in x.split(batch)]
            found.append(torch.cat(outputs).argmax(1).cpu())
    return torch.stack(found)


def measure_map(options):
    run = Run(device=options.device, precision=options.precision)
    points, grid, places = (16, 3, 2) if options.quick else (options.points, 20, 5)
    encoder, heads, vectors, tasks = made_up(points)
    samples = sampled(tasks["one"], "test", None, seed=0)
    x = samples.splits["test"][0]
    print(f"\nξ on a {grid} × {grid} grid, {points} points of each task, {run.describe()}")
    print(f"{'way':12} {'plain loop':>12} {'ours':>10} {'ratio':>7}   same classes")
    alphas = torch.linspace(-1, 1, places, dtype=torch.float64)
    rows = torch.stack([alphas, alphas.flip(0)], 1)
    for way, linearised in (("non-linear", False), ("linearised", True)):
        pair = list(vectors[way].values())
        plain = functools.partial(plain_places, encoder, heads["one"], pair, linearised=linearised, run=run)
        plain(rows[:1], x[:128])  # what is prepared once is not counted
        for_places, there = timed(functools.partial(plain, rows, x), run)
        ours = edited_outputs(encoder, heads["one"], pair, rows, samples, linearised=linearised, run=run)
        same = float((ours == there).double().mean())
        assert same > 0.97, f"both ways must give the same classes, got {same}"
        whole = functools.partial(
            disentanglement, encoder, heads, {way: vectors[way]}, tasks, methods=(way,), grid=grid, points=points,
            resamples=200, run=run,
        )  # fmt: skip
        seconds, _ = timed(whole, run)
        usual = for_places / places * 2 * (grid * grid + grid)  # each task: the grid, and its own vector alone
        print(f"{way:12} {usual:10.1f} s {seconds:8.1f} s {usual / seconds:7.1f}   {same:.2%}", flush=True)


def measure_linearised(options):
    run = Run(device=options.device, precision=options.precision)
    count, batch, points = (2, 4, 8) if options.quick else (options.steps, 128, 1024)
    encoder, heads, vectors, tasks = made_up(points)
    data = dataclasses.replace(tasks["one"], splits={"train": tasks["one"].splits["test"]}).to(run)
    samples = sampled(tasks["one"], "test", None, seed=0)
    own, once = [vectors["non-linear"]["one"]], torch.tensor([[0.5]], dtype=torch.float64)
    placed = encoder.to(run.torch_device, torch.float32)
    print(f"\nEfficientNet-Lite0 at 96 pixels, batches of {batch}, {run.describe()}")
    print(f"{'':12} {'a step of training':>20} {'1,000 inferences':>18}")
    costs = []
    for way, linearised in (("non-linear", False), ("linearised", True)):
        start = headed(linearize(placed) if linearised else placed, heads["one"])

        def trained(steps, start=start):
            return fit(start, data, tuning_recipe(steps=steps, rate=1e-4, batch=batch), seed=0, run=run)

        trained(count)  # what is prepared once is not counted
        few, many = (timed(functools.partial(trained, steps), run)[0] for steps in (count, 3 * count))
        inferred = functools.partial(
            edited_outputs, encoder, heads["one"], own, once, samples, linearised=linearised, run=run
        )
        inferred()
        inference = min(timed(inferred, run)[0] for _ in range(3)) / points * 1000
        costs.append(((many - few) / (2 * count), inference))
        print(f"{way:12} {1000 * costs[-1][0]:17.1f} ms {1000 * costs[-1][1]:15.1f} ms", flush=True)
    ratios = [other / one for one, other in zip(*costs, strict=True)]
    print(f"{'ratio':12} {ratios[0]:20.2f} {ratios[1]:18.2f}")


PARTS = {"apply": measure_apply, "map": measure_map, "linearised": measure_linearised}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all by default")
    parser.add_argument("--numbers", type=float, default=0, help="of the large model")
    parser.add_argument("--loaded", type=float, default=5e7, help="of the model that is also loaded whole")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32", "float64"])
    parser.add_argument(
        "--folder", default=None, help="on a disk with room for four models; a temporary one by default"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--points", type=int, default=2048, help="of each task, for maps")
    parser.add_argument("--steps", type=int, default=40, help="of fine-tuning, for the cost of a step")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, folder = options.child
        print(json.dumps(measured(lambda: CHILDREN[way](Path(folder)))))
        return
    if options.quick:
        options.loaded = 5e6
    for part in options.parts or PARTS:
        PARTS[part](options)


if __name__ == "__main__":
    main()
