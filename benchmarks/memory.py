"""The memory and the time that `--dry-run` foretells, against what commands take.

    python benchmarks/memory.py                # all cases; words of a case choose some: python benchmarks/memory.py lenet vit

Each command is run as a user runs it, once with `--dry-run` and once without, in an empty folder. Printed: expected and measured peak
memory of the process and their ratio, and the same for seconds. On a machine that others use, only the memory and the CPU time
mean much.
"""

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

from biascope.networks import builder

NETWORKS = """
import torch
from torch import nn


def small():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, 10),
    )


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.same = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.down, self.last = nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.Conv2d(48, 48, 3, padding=1)
        self.first_norm, self.second_norm, self.head = nn.BatchNorm2d(24), nn.BatchNorm2d(48), nn.Linear(48, 10)

    def forward(self, x):
        x = torch.relu(self.first_norm(self.stem(x)))
        x = x + torch.relu(self.same(x))
        x = torch.relu(self.second_norm(self.down(x)))
        x = x + torch.relu(self.last(x))
        return self.head(x.mean((2, 3)))


def residual():
    return Residual()
"""

CASES = [
    "scan lenet",
    "scan mlp",
    "scan colour.py:small --input 3x32x32",
    "scan colour.py:residual --input 3x32x32",
    "scan resnet18 --input 3x32x32 --draws 16",
    "kernel lenet --data images.npz --samples 256,64",
    "measure average_geometry vit",
    "patterns array.npy",
    "inr advise array.npy",
    "merge check base.safetensors a.safetensors b.safetensors --model lenet --set outputs=10 --data images.npz --samples 64",
]


def write_files(folder):
    (folder / "colour.py").write_text(NETWORKS)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 255, (400, 1, 32, 32), dtype=np.uint8), np.arange(400) % 10
    np.savez(folder / "images.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    np.save(folder / "array.npy", random.uniform(size=(48, 48)))
    start = builder("lenet")(outputs=10).state_dict()
    for number, name in enumerate(("base", "a", "b")):
        save_file({key: (1 + 0.01 * number) * part for key, part in start.items()}, folder / f"{name}.safetensors")


def measured(words, folder):
    """What a command prints, its seconds, its CPU seconds, and the most memory that its process took."""
    program = [sys.executable, "-c", "from biascope.cli import main; main()", *words]
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(program, cwd=folder, stdout=out, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
        seconds = time.perf_counter() - begin
        for file in (out, errors):
            file.seek(0)
        assert status == 0, errors.read()
        unit = 1 if sys.platform == "darwin" else 1024
        return out.read(), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * unit


def main():
    chosen = [case for case in CASES if not sys.argv[1:] or any(word in case for word in sys.argv[1:])]
    print(f"{'':58}{'memory, MB':>20}{'':>8}{'seconds':>16}{'':>8}{'CPU s':>8}")
    print(f"{'command':58}{'expected':>10}{'taken':>10}{'ratio':>8}{'expected':>9}{'taken':>7}{'ratio':>8}")
    within = 0
    with tempfile.TemporaryDirectory() as place:
        write_files(Path(place))
        for case in chosen:
            words = [*shlex.split(case), "--device", "cpu", "--quiet", "--json"]
            for _ in range(3):  # on a busy machine, a scan may not be foreseen in time
                told = json.loads(measured([*words, "--dry-run"], place)[0])
                if told["bytes"]:
                    break
            seconds = told.get("seconds") or sum(cost["seconds"] or 0.0 for cost in told.get("costs", []))
            _, wall, cpu, peak = measured(words, place)
            ratio = told["bytes"] / peak
            within += 1 / 1.5 <= ratio <= 1.5
            memory = f"{told['bytes'] / 1e6:10.0f}{peak / 1e6:10.0f}{ratio:8.2f}"
            print(f"{case[:57]:58}{memory}{seconds:9.0f}{wall:7.0f}{seconds / wall:8.2f}{cpu:8.0f}", flush=True)
    print(f"memory within a factor of 1.5: {within} of {len(chosen)}")


if __name__ == "__main__":
    main()
