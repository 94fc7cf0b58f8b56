"""Task arithmetic: what editing models on disk costs in memory and time, against loading them.

    python benchmarks/merge.py                           # models of 50 million numbers, both ways
    python benchmarks/merge.py --numbers 1e9             # a billion; the other way stays at --loaded 5e7
    python benchmarks/merge.py --quick                   # sizes that take seconds

apply    `biascope merge apply` on a base and two models, each in shards: θ₀ + 0.4 (A − θ₀) − 0.3 (B − θ₀), with its report. Asked:
         at most 500 MiB of anonymous memory for a billion parameters. Against the usual way: torch.load of all three, the sum, and
         torch.save. Both run in a fresh process that samples RssAnon of /proc/self/status every 5 ms; what its imports take is told.

First both ways must give the same weights, bit for bit, on a small model.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from biascope.checkpoint import SLICE, Checkpoint
from biascope.checkpoint_writer import CheckpointWriter, Planned

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
    from biascope.merge_commands import apply

    models = [f"{folder / name}={weight}" for name, weight in WEIGHTS.items()]
    apply(folder / "base", models, folder / "streamed", report=folder / "report", as_json=True)


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


WAYS = {"streamed": streamed, "loaded": loaded}


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
        assert cost["peak"] < 500 * MIB, "merge apply must stay below 500 MiB of anonymous memory"


PARTS = {"apply": measure_apply}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all by default")
    parser.add_argument("--numbers", type=float, default=0, help="of the large model")
    parser.add_argument("--loaded", type=float, default=5e7, help="of the model that is also loaded whole")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32", "float64"])
    parser.add_argument(
        "--folder", default=None, help="on a disk with room for four models; a temporary one by default"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, folder = options.child
        print(json.dumps(measured(lambda: WAYS[way](Path(folder)))))
        return
    if options.quick:
        options.loaded = 5e6
    for part in options.parts or PARTS:
        PARTS[part](options)


if __name__ == "__main__":
    main()
