"""Pattern networks: training by look-up against the same network as a module with autograd.

    python benchmarks/patterns.py                    # two sizes of the paper's grid, both sides in this process
    python benchmarks/patterns.py --quick            # a size that takes seconds
    python benchmarks/patterns.py --grid             # also one whole training of ten networks (on a GPU, k = 10,000)

dense   `pattern_cnn` as a convolution on one-hot images, hinge loss, autograd and a plain SGD step, one network.
look-up `pattern_lookup.trained_tables`: on a CPU one network on each core, on a GPU ten in lock-step as a replayed graph.

First both are trained for some steps in float64 on the same batches and must agree to 1e-12. Asked of the whole: figures 1a, 1b, 1c
and 3 in at most 15 minutes on one H200; the paper took about 150 hours on a Titan Xp.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import torch

from biascope import Run, network
from biascope.measures.pattern_statistics import pattern_statistics, published_batch, published_rate
from biascope.measures.pattern_statistics.lookup import Orders, initial_tables, trained_tables
from biascope.tasks.patterns import PatternDistribution

SIZES = {  # k, n, patterns, samples
    "k = 1,000, n = 10, d = 20": (1000, 10, 20, 1000),
    "k = 10,000, n = 40, d = 80": (10_000, 40, 80, 1000),
}
QUICK = {"k = 100, n = 5, d = 10": (100, 5, 10, 200)}


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def dense_steps(table, samples, orders, steps, rate):
    """The module trained by autograd from the same weights on the same batches; weights (2k, P) and seconds a step."""
    patterns, channels = table.shape
    n = samples.places.shape[-1]
    net = network("pattern_cnn")(image_size=(n, patterns), patch=(1, patterns), k=channels // 2)
    net = net.to(table.device, table.dtype)
    with torch.no_grad():
        net.conv.weight.copy_(table.T.reshape(net.conv.weight.shape))
    images = samples.images(torch.eye(patterns, dtype=table.dtype)).to(table.device)
    labels = samples.labels.to(table)
    batches = itertools.chain.from_iterable(torch.split(order, orders.batch) for order in orders)
    begin = None
    for step, rows in enumerate(itertools.islice(batches, steps)):
        if step == min(3, steps - 1):  # what is chosen and allocated in the first steps is not counted
            wait(table.device)
            begin, counted = time.perf_counter(), steps - step
        rows = rows.to(table.device)
        net.zero_grad()
        (1 - labels[rows] * net(images[rows])[:, 0]).clamp(min=0).mean().backward()
        with torch.no_grad():
            net.conv.weight -= rate * net.conv.weight.grad
    wait(table.device)
    return net.conv.weight.detach().flatten(1), (time.perf_counter() - begin) / counted


def check(device):
    """The largest difference of weights after 40 steps in float64, as a share of the largest weight."""
    run = Run(device=str(device), precision="float64", progress=False)
    samples = PatternDistribution("uniform", 5, 10).draw(60, seed=0, runs=1)
    start = initial_tables(1, 10, 30, scale=0.1, seed=1, run=run)
    done = trained_tables(start, samples, rate=0.02, batch=20, epochs=13, tolerance=0, seed=2, run=run)
    one = type(samples)(samples.places[0], samples.labels[0], samples.patterns)
    weights, _ = dense_steps(start[0], one, Orders(60, 20, 2, 0), 39, 0.02)
    return float((weights.T - done.tables[0]).abs().max() / weights.abs().max())


def timed(k, n, patterns, samples, device, steps):
    run = Run(device=str(device), progress=False)
    batch, rate = published_batch(k), published_rate(k)
    members = 10 if device.type == "cuda" else max(1, torch.get_num_threads())
    given = PatternDistribution("uniform", n, patterns).draw(samples, seed=0, runs=members)
    start = initial_tables(members, patterns, k, seed=1, run=run)
    one = type(given)(given.places[0], given.labels[0], patterns)
    _, dense = dense_steps(start[0], one, Orders(samples, batch, 2, 0), steps, rate)
    each = samples // batch

    def seconds(epochs):
        wait(device)
        begin = time.perf_counter()
        trained_tables(start, given, rate=rate, batch=batch, epochs=epochs, tolerance=0, seed=2, run=run)
        wait(device)
        return time.perf_counter() - begin

    few, many = max(1, steps // each), 4 * max(1, steps // each)
    seconds(few)
    lookup = (seconds(many) - seconds(few)) / ((many - few) * each)  # of all members; capture and set-up cancel
    return {
        "dense": dense,
        "look-up, all": lookup,
        "members": members,
        "look-up, each": lookup / members,
        "batch": batch,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--grid", action="store_true", help="also train ten networks to the end")
    options = parser.parse_args()
    device = Run().torch_device
    words = Run().describe()["device"]
    print(f"device: {words}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    error = check(device)
    print(f"look-up against autograd after 39 steps, float64: {error:.1e} of the largest weight")
    assert error < 1e-12, "both sides must agree before they are timed"
    results = {"device": words, "torch": torch.__version__, "error": error}
    steps = 400 if device.type == "cuda" else 20
    print(f"{'':30}{'batch':>7}{'dense':>12}{'look-up':>12}{'ratio':>8}   (a step of one network)")
    for title, size in (QUICK if options.quick else SIZES).items():
        found = results[title] = timed(*size, device, steps)
        ratio = found["dense"] / found["look-up, each"]
        print(
            f"{title:30}{found['batch']:7}{1e3 * found['dense']:9.3f} ms{1e3 * found['look-up, each']:9.3f} ms{ratio:8.1f}"
            f"   ({found['members']} at once: {1e3 * found['look-up, all']:.3f} ms)",
            flush=True,
        )
    if options.grid:
        k, samples = (10_000, 2000) if device.type == "cuda" else (1000, 500)
        begin = time.perf_counter()
        found = pattern_statistics(
            per_input=40 if k > 1000 else 10, patterns=60 if k > 1000 else 20, k=k, samples=samples
        )
        results["grid"] = {"seconds": time.perf_counter() - begin, "k": k, "samples": samples}
        print(
            f"{found.subject}: {results['grid']['seconds']:.1f} s for {len(found.epochs)} runs, {found.epochs.tolist()} epochs"
        )
        print(found.sentence())
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "patterns.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
