"""What `biascope scan --dry-run` foretells against what the scan takes, on ten networks.

    python benchmarks/dry_run.py            # CPU; --device cuda for a GPU

Each network is asked for its expected time and then scanned with its report into an empty folder, in one process. Printed: expected and
measured seconds and their ratio.
"""

import argparse
import tempfile
import time
from pathlib import Path

from torch import nn

from biascope.families.family import Family
from biascope.families.source import family_of, usual_shape
from biascope.runs.run import Run
from biascope.scanning import Sampling, describe_device, expected_cost, scan


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    print(describe_device(Run(device=device)))
    print(f"{'network':22}{'expected, s':>12}{'measured, s':>12}{'ratio':>8}")
    within = 0
    for title, source, shape, draws in CASES:
        shape = shape or usual_shape(source)
        family = family_of(source, shape=shape) if isinstance(source, str) else source
        costs = expected_cost(family, shape, Sampling(draws=draws), Run(device=device))
        expected = sum(cost.seconds for cost in costs)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            scan(source, input=shape, draws=draws, run=Run(folder=Path(folder), device=device, progress=False))
            measured = time.perf_counter() - begin
        within += 0.5 <= expected / measured <= 2
        print(f"{title:22}{expected:12.1f}{measured:12.1f}{expected / measured:8.2f}", flush=True)
    print(f"within a factor of 2: {within} of {len(CASES)}")


if __name__ == "__main__":
    main()
