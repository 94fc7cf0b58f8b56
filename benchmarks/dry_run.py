"""What `--dry-run` foretells against what commands take: scans of ten networks, then eight other commands.

    python benchmarks/dry_run.py            # CPU; --device cuda for a GPU

Each network is asked for its expected time and then scanned with its report into an empty folder, in one process. The other commands
are run as a user runs them, each once with `--dry-run` and once without, on smooth random images. Printed: expected and
measured seconds and their ratio.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import nn

from biascope.derivatives.sampling import Sampling
from biascope.families.family import Family
from biascope.families.source import family_of, usual_shape
from biascope.measures.scan import scan
from biascope.measures.scan.cost import expected_times
from biascope.networks import builder
from biascope.runs.run import Run


def small_cnn(channels):
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 56, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(56, 10),
    )  # fmt: skip


def wide_mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))


# Name, family or name of a network, shape, draws.
CASES = [
    ("logistic_regression", "logistic_regression", None, 400),
    ("mlp", "mlp", None, 400),
    ("lenet", "lenet", None, 400),
    ("lenet, 2,000 draws", "lenet", None, 2000),
    ("pattern_cnn", "pattern_cnn", None, 400),
    ("vit, 40 draws", "vit", None, 40),
    ("siren", "siren", None, 400),
    ("CNN at 3×32×32", Family.initialised(lambda: small_cnn(3), name="cnn"), (3, 32, 32), 400),
    ("CNN at 1×28×28", Family.initialised(lambda: small_cnn(1), name="cnn"), (1, 28, 28), 400),
    ("MLP at 784", Family.initialised(wide_mlp, name="wide"), (1, 28, 28), 400),
]


COMMANDS = [
    "kernel lenet --data s.npz --samples 4000,100",
    "kernel vgg11 --data s.npz --samples 500,100",
    "measure directional_bias lenet --every 16",
    "inr fit a.npy --steps 600",
    "inr advise a.npy",
    "merge check base.safetensors a.safetensors b.safetensors --model vgg11 --set outputs=10 --data s.npz --samples 50 --grid 4",
]


def write_data(folder):
    noise = np.random.default_rng(0)
    for name in ("s", "t"):
        coarse = np.kron(noise.uniform(0, 200, (12_000, 1, 4, 4)), np.ones((8, 8)))  # natural images are smooth, too
        x, y = (coarse + noise.uniform(0, 55, (12_000, 1, 32, 32))).astype(np.uint8), np.arange(12_000) % 10
        np.savez(folder / f"{name}.npz", x_train=x[:11_000], y_train=y[:11_000], x_test=x[11_000:], y_test=y[11_000:])
    np.save(folder / "a.npy", noise.uniform(size=(96, 96)))
    start = builder("vgg11")(outputs=10).state_dict()
    for name in ("base", "a", "b"):
        scale = 1 + 0.01 * noise.standard_normal() * (name != "base")
        moved = {key: scale * part if part.is_floating_point() else part for key, part in start.items()}
        save_file(moved, folder / f"{name}.safetensors")


def seconds_of(words, folder):
    program = [sys.executable, "-c", "from biascope.cli import main; main()"]
    begin = time.perf_counter()
    done = subprocess.run([*program, *words], cwd=folder, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - begin, done.stdout


def commands(device):
    print(f"\n{'command':100}{'dry run, s':>12}{'expected, s':>12}{'measured, s':>12}{'ratio':>8}")
    within = 0
    with tempfile.TemporaryDirectory() as place:
        write_data(Path(place))
        for command in COMMANDS:
            words = [*shlex.split(command), "--device", device, "--quiet", "--json"]
            took, printed = seconds_of([*words, "--dry-run"], place)
            expected = json.loads(printed)["seconds"]
            measured, _ = seconds_of(words, place)
            within += 0.5 <= expected / measured <= 2
            print(f"{command:100}{took:12.1f}{expected:12.1f}{measured:12.1f}{expected / measured:8.2f}", flush=True)
    print(f"within a factor of 2: {within} of {len(COMMANDS)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commands", action="store_true", help="leave the scans out")
    given = parser.parse_args()
    device = given.device
    print(Run(device=device).in_words)
    if given.commands:
        commands(device)
        return
    print(f"{'network':22}{'expected, s':>12}{'measured, s':>12}{'ratio':>8}")
    within = 0
    for title, source, shape, draws in CASES:
        shape = shape or usual_shape(source)
        family = family_of(source, shape=shape) if isinstance(source, str) else source
        costs = expected_times(family, shape, Sampling(draws=draws), Run(device=device))
        expected = sum(cost.seconds for cost in costs)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            scan(source, input=shape, draws=draws, run=Run(folder=Path(folder), device=device, progress=False))
            measured = time.perf_counter() - begin
        within += 0.5 <= expected / measured <= 2
        print(f"{title:22}{expected:12.1f}{measured:12.1f}{expected / measured:8.2f}", flush=True)
    print(f"within a factor of 2: {within} of {len(CASES)}")
    commands(device)


if __name__ == "__main__":
    main()
