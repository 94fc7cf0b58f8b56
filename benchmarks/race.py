"""Does a race of a few steps find the best architecture? Loss curves of candidates, beside what else may foretell their accuracy.

    python benchmarks/race.py --curves kmnist --until 1 --json FILE --folder FOLDER     # trains all candidates; resumes
    python benchmarks/race.py --join FILE FILE --json FILE                              # rows of several runs in one file
    python benchmarks/race.py --curves mnist --candidates quick --until 0.2 --quick     # seconds on a CPU, to show that it works

All candidates of a data set see the same batches in the same order, by the recipe of `match_validation.py` (Adam at 0.001, cosine
over 20 epochs of 8,000 images, batches of 128). `--until` stops at that share of the recipe; the learning rate stays that of the whole.
A row holds, for one candidate, data set and seed: the mean training loss of every eighth of an epoch, seconds, FLOPs, parameters,
NASWOT (below) and, where training is whole, the test accuracy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from match_validation import CANDIDATES, QUICK, RECIPE, SIZES, family_of, images
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from biascope.derivatives.gradients import forward_flops
from biascope.families.family import Family
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

# Architectures of nearly equal FLOPs on images of 1 × 32 × 32: within 15 % of 6.2 and of 1.8 million.
GROUPS = {
    "all": CANDIDATES,
    "flops-a": (
        "cnn",
        "cnn depth=2 width=36",
        "cnn depth=5 width=30",
        "cnn kernel=5 width=18",
        "cnn kernel=7 width=13",
        "cnn pooling=stride width=66",
        "vit patch=8 depth=3 heads=4 width=84 mlp=168",
        "mlp hidden=1000,1000,1000",
    ),
    "flops-b": (
        "cnn width=16",
        "cnn depth=5 width=15",
        "cnn kernel=5 width=9",
        "cnn pooling=stride",
        "lenet padding=same",
        "lenet pooling=average padding=same",
        "vit patch=8 depth=3 heads=4 width=44 mlp=88",
        "mlp hidden=500,500,500",
    ),
    "quick": QUICK,
}
BINS = 8  # of an epoch, in which losses are averaged
CODED = 128  # images whose activation codes NASWOT compares
_ACTIVATIONS = frozenset(
    (nn.functional.relu, torch.relu, torch.relu_, Tensor.relu, nn.functional.gelu, torch.tanh, Tensor.tanh)
)


class _Codes(TorchFunctionMode):
    """Notes of every activation function which of its inputs are positive, a row for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ACTIVATIONS:
            self.parts.append((args[0] > 0).flatten(1))
        return func(*args, **(kwargs or {}))


def naswot(module: nn.Module, x: Tensor) -> float:
    """``log |det K|``, ``K_ij`` being in how many activations images i and j agree; −inf where there are none.

    An activation is a bit: whether its input is positive, also for smooth functions.

    Reference:
        Mellor, Turner, Storkey, Crowley (2021). Neural architecture search without training. ICML.
    """
    with torch.no_grad(), _Codes() as codes:
        module(x)
    if not codes.parts:
        return -math.inf
    bits = torch.cat(codes.parts, 1).double()
    agreeing = bits @ bits.T + (1 - bits) @ (1 - bits).T
    return float(torch.linalg.slogdet(agreeing).logabsdet)


def row_of(family: Family, data: Arrays, recipe: Recipe, until: float, repeat: int, run: Run) -> dict[str, Any]:
    """One candidate trained as far as asked, in numbers."""
    seed = seed_of(0, "repeat", f"repeat-{repeat}")  # that of match_validation, whose trainings these are
    device, dtype = run.torch_device, master_dtype(run)
    total = recipe.total_steps(data.sizes["train"])
    steps = max(1, round(until * total))
    trials = Trials(
        "race curve", run, code=(fit, naswot), at=data, family=family, data=data, recipe=recipe, steps=steps
    )

    def trained(key: str) -> dict[str, Tensor]:
        begin = time.perf_counter()
        start = family.draw(1, seed=seed, run=run).member(0).to(device, dtype)
        score = naswot(start.as_module().train(), data.batch("train", torch.arange(CODED, device=device))[0])
        before = time.perf_counter()
        walk = fit(start, data, recipe, seed=seed, run=run, until=steps)
        found = {"losses": walk.losses[:, 0], "naswot": torch.tensor(score)}
        found["seconds"] = torch.tensor(time.perf_counter() - before)
        if steps == total:
            found["accuracy"] = evaluation(walk.networks, data, "test", run=run).accuracy[0]
        found["all seconds"] = torch.tensor(time.perf_counter() - begin)
        return found

    found = next(iter(trials.outcomes([f"repeat-{repeat}"], trained)))
    per_bin = recipe.steps_per_epoch(data.sizes["train"]) / BINS
    ends = [round(per_bin * (place + 1)) for place in range(max(1, round(steps / per_bin)))]
    ends = [min(end, steps) for end in ends]
    losses = found["losses"].double()
    binned = [float(losses[a:b].mean()) for a, b in zip([0, *ends[:-1]], ends, strict=True) if b > a]
    flops = forward_flops(family.template.to(device, dtype), torch.zeros(1, *data.shape, device=device, dtype=dtype))
    score = float(found["naswot"])
    return {
        "architecture": family.name,
        "repeat": repeat,
        "losses": [value if math.isfinite(value) else None for value in binned],
        "ends": [end for start, end in zip([0, *ends[:-1]], ends, strict=True) if end > start],
        "steps": total,
        "parameters": family.num_parameters,
        "FLOPs": flops,
        "NASWOT": score if math.isfinite(score) else None,
        "accuracy": float(found["accuracy"]) if "accuracy" in found else None,
        "seconds": round(float(found["seconds"]), 3),
    }


def curves(options: argparse.Namespace) -> None:
    """Train and write rows, after every candidate."""
    device = Run(device=options.device).torch_device
    precision = options.precision or ("tf32" if device.type == "cuda" else "float32")
    run = Run(folder=options.folder, device=str(device), precision=precision, progress=False)
    sizes, recipe = ((256, 256), dataclasses.replace(RECIPE, epochs=2)) if options.quick else (SIZES, RECIPE)
    document = {"recipe": recipe.settings, "sizes": sizes, "device": run.describe()["device"], "rows": []}
    begin = time.perf_counter()
    for name in options.curves.split(","):
        data = images(name, sizes, options.data_root).to(run)
        for group in options.candidates.split(","):
            for words in GROUPS[group]:
                family = family_of(words, data)
                for repeat in range(options.repeats):
                    row = row_of(family, data, recipe, options.until, repeat, run)
                    document["rows"].append({"data": name, "group": group, **row})
                    write(document, options.json)
                right = "" if row["accuracy"] is None else f", test accuracy {100 * row['accuracy']:.1f} %"
                spent = f"{row['seconds']:.1f} s, {time.perf_counter() - begin:.0f} s in all"
                print(f"{name}, {group}, {words}: last loss {row['losses'][-1]}{right} ({spent})", flush=True)


def joined(files: Sequence[Path]) -> dict[str, Any]:
    """One document of the rows of several, which must be of one recipe."""
    documents = [json.loads(file.read_text()) for file in files]
    if any(each["recipe"] != documents[0]["recipe"] or each["sizes"] != documents[0]["sizes"] for each in documents):
        raise ValueError("Files must be of one recipe and size to be joined, and are not. Join them by kind.")
    return {**documents[0], "rows": [row for each in documents for row in each["rows"]]}


def write(document: dict[str, Any], file: Path | None) -> None:
    """Where asked; under the same name in the folder OUT, where the environment has one."""
    if file is not None:
        file = Path(os.environ["OUT"], file.name) if "OUT" in os.environ else file
        file.write_text(json.dumps(document, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", help="data sets to train on, comma-separated")
    parser.add_argument("--candidates", default="all", help="comma-separated, some of: " + ", ".join(GROUPS))
    parser.add_argument("--until", type=float, default=1.0, help="share of the recipe's iterations")
    parser.add_argument("--repeats", type=int, default=1, help="trainings of each candidate")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="", help="tf32 on a GPU, float32 on a CPU")
    parser.add_argument("--folder", type=Path, help="where trainings are kept, to go on from there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--join", nargs="+", type=Path, help="files whose rows to join")
    parser.add_argument("--quick", action="store_true", help="few images and steps")
    options = parser.parse_args()
    if options.join:
        write(joined(options.join), options.json)
    if options.curves:
        curves(options)


if __name__ == "__main__":
    main()
