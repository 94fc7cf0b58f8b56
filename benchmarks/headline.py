"""Which quantity of an untrained network foretells what it learns? Every estimator against accuracy and speed along directions.

    python benchmarks/headline.py --folder FOLDER --network lenet --json FILE    # measure and train; minutes on a GPU, resumes
    python benchmarks/headline.py --table benchmarks/headline.json               # the table of all networks
    python benchmarks/headline.py --stability --json FILE [--only vgg11]         # the headline over seeds and numbers of draws
    python benchmarks/headline.py --quick                                        # a minute on a CPU, to show that it works

Directions: the cosines of 130 frequencies (all whose components are even, as in the published accuracies) and 48 random unit
vectors, of images 1 × 32 × 32; large networks are trained along 32 and 12 of them, chosen at random. Accuracy: on D(v), σ = 3, by the
published recipe, trained here; and the authors' own accuracies (`published/dft_accuracies.csv` in the data folder). Speed: minus the
iterations to a loss of 0.01 with σ = 0.5; a network that never gets there counts as the slowest.

Quantities, all along unit vectors v, of networks θ drawn at initialisation:

- differences, h: vᵀCv of C = E[g gᵀ], gᵢ = (f(x + h eᵢ) − f(x − h eᵢ))/2h, as published (h = 100), at one input x or at fresh ones;
- along v, h: E[((f(x + hv) − f(x − hv))/2h)²]: two forward passes for each direction, whatever the input size;
- exact: E[(vᵀ∇f(x))²] at one input; average geometry: the same at fresh inputs;
- mean gradient: E_θ[(vᵀE_x ∇f(x))²], the slope averaged over inputs within each network (products of two halves: no bias);
- mixed: E‖∇_θ vᵀ∇_x f(x)‖², exact or by differences along v.

"std" is the standard deviation of the input. Correlations are Spearman's, with 95 % intervals by a bootstrap over directions.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.data import data_root
from biascope.derivatives.covariance import GradientSampler
from biascope.derivatives.gradients import mixed_jvp, plain_attention
from biascope.families.family import Family
from biascope.measures.directional_bias import RECIPE, Problem, directional_bias
from biascope.networks import builder
from biascope.papers.nads2020.networks import TITLES as PAPER_TITLES
from biascope.results.estimate import Estimate, bootstrapped, spearman
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.probe import Probe
from biascope.training.evaluation import STACK_LIMIT

SHAPE = (1, 32, 32)
RANDOM = 48
LARGE = {"Fourier": 32, "random": 12}  # directions, chosen at random, along which large networks are trained
DRAWS = (100, 400, 2000)
NETWORKS = {
    "lenet": "LeNet",
    "vgg11": "VGG11",
    "resnet18": "ResNet-18",
    "vit": "ViT",
    "mlp": "MLP",
    "cnn": "small CNN",
}
COLUMNS = {"lenet": "acc_ln", "vgg11": "acc_vgg", "resnet18": "acc_rn"}


def small_cnn(channels: int = 1, outputs: int = 10) -> nn.Module:
    """Three convolutions, 24,000 parameters: what a new user might try."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, outputs),
    )


def family_of(name: str) -> Family:
    """One of the networks, with two outputs."""
    build = small_cnn if name == "cnn" else builder(name)
    return Family.initialised(functools.partial(build, outputs=2), name=NETWORKS[name])


def fourier_directions() -> Basis:
    """The cosines of frequencies with even components."""
    return bases.fourier_half(SHAPE, "Re", 2)


def random_directions(count: int = RANDOM) -> Basis:
    """Some vectors of a random basis."""
    return bases.random(SHAPE, seed=0).part(range(count))


@dataclasses.dataclass(frozen=True)
class Quantity:
    """How movement along directions is measured.

    Attributes:
        kind: ``"axes"`` (differences along the axes), ``"along"`` (along each direction), ``"exact"``, ``"mean"``, ``"mixed"``.
        step: Half width of differences.
        std: Of the input.
        inputs: Inputs for each network; fresh ones where there are several.
        draws: Most networks, of those with less than two million weights; a fifth of that for larger ones.
    """

    kind: str
    step: float = 0.0
    std: float = 1.0
    inputs: int = 1
    draws: int = 400

    @property
    def name(self) -> str:
        """In words."""
        step = f", h = {self.step:g}" if self.step else ""
        words = {
            "axes": f"differences{step}",
            "along": f"differences along v{step}",
            "exact": "exact gradient" if self.inputs == 1 else "average geometry",
            "mean": "mean gradient",
            "mixed": f"mixed derivative{' along v' if self.step else ''}{step}",
        }[self.kind]
        inputs = f", {self.inputs} inputs" if self.inputs > 1 else ""
        return f"{words}{inputs}, std {self.std:g}"


QUANTITIES = (
    Quantity("axes", 100, draws=2000),
    Quantity("axes", 10),
    Quantity("axes", 1),
    Quantity("axes", 100, std=100),
    Quantity("axes", 100, std=0.001),
    Quantity("axes", 100, inputs=4, draws=100),
    Quantity("along", 1000),
    Quantity("along", 100, draws=2000),
    Quantity("along", 10),
    Quantity("along", 1),
    Quantity("along", 100, inputs=4),
    Quantity("along", 10, inputs=4),
    Quantity("exact", draws=2000),
    Quantity("exact", std=100),
    Quantity("exact", std=0.001),
    Quantity("exact", inputs=4, draws=2000),
    Quantity("mean", inputs=16, draws=2000),
    Quantity("mean", inputs=64, draws=2000),
    Quantity("mean", std=3, inputs=64),
    Quantity("mean", std=100, inputs=64),
    Quantity("mixed", draws=100),
    Quantity("mixed", 100, draws=100),
)


def moved(family: Family, quantity: Quantity, vectors: Tensor, run: Run, draws: int) -> Iterator[Tensor]:
    """Squared movements ``(networks, directions)``, some networks at a time."""
    probe = Probe.gaussian(SHAPE, num=quantity.inputs, std=quantity.std, fresh=quantity.inputs > 1, seed=0)
    rows = vectors.to(run.torch_device, torch.float32)
    if quantity.kind in ("axes", "exact", "mean"):
        by = "difference" if quantity.kind == "axes" else "exact"
        sampler = GradientSampler(
            family, probe, estimator=by, step=quantity.step or 1.0, readout="first", seed=1, run=run
        )
        start = 0
        while start < draws:
            stop = min(draws, start + sampler.stride)
            slopes = sampler.gradients(start, stop).float() @ rows.T  # (networks, inputs, directions)
            if quantity.kind == "mean":
                half = quantity.inputs // 2
                yield slopes[:, :half].mean(1) * slopes[:, half:].mean(1)
            else:
                yield (slopes**2).mean(1)
            start = stop
        return
    stream = family.draws(seed=1, run=run)
    shifts = (rows * quantity.step).reshape(-1, *SHAPE)
    for index in range(draws):
        network = stream[index : index + 1].member(0).read("first")
        inputs = probe.inputs(index, index + 1, run)
        x = inputs[0] if probe.fresh else inputs
        with plain_attention(), run.products():
            if quantity.kind == "along":
                with torch.no_grad():
                    pairs = [network((x[:, None] + sign * shifts).flatten(0, 1)) for sign in (1, -1)]
                slope = (pairs[0] - pairs[1]).reshape(len(x), -1) / (2 * quantity.step)
                yield (slope**2).mean(0, keepdim=True)
            else:
                parts = [
                    mixed_jvp(network, x, part, step=quantity.step or None).float().square().sum(-1)
                    for part in rows.split(16)
                ]
                yield torch.cat(parts)[None]


def measured(family: Family, quantity: Quantity, vectors: Tensor, run: Run, most: int) -> dict[str, Any]:
    """Mean squared movements along each direction by number of networks, and the time it took."""
    large = family.num_parameters > STACK_LIMIT
    draws = min(most, quantity.draws // 5 if large else quantity.draws)
    begin = time.perf_counter()
    found = torch.cat([part.double().cpu() for part in moved(family, quantity, vectors, run, draws)])
    seconds = time.perf_counter() - begin
    counts = sorted({count for count in DRAWS if count < draws} | {draws})
    return {
        "seconds": round(seconds, 1),
        "draws": {str(count): [float(f"{v:.4g}") for v in found[:count].mean(0)] for count in counts},
    }


def trained(family: Family, basis: Basis, run: Run, quick: bool) -> dict[str, Any]:
    """Accuracy with much noise and iterations with little, along every direction of a basis."""
    large = family.num_parameters > STACK_LIMIT
    run = dataclasses.replace(run, precision="bfloat16" if large and run.torch_device.type == "cuda" else run.precision)
    size = {"samples": (256,), "test": 256} if quick else {}
    recipe = dataclasses.replace(RECIPE, epochs=1) if quick else RECIPE
    found: dict[str, Any] = {}
    begin = time.perf_counter()
    exact = directional_bias(family, basis, problem=Problem(noise=(3.0,), **size), recipe=recipe, seed=0, run=run)
    quickly = dataclasses.replace(recipe, stop=True)
    fast = directional_bias(family, basis, problem=Problem(noise=(0.5,), **size), recipe=quickly, seed=0, run=run)
    found["accuracy"] = [round(100 * float(v), 2) for v in exact.accuracy[0, 0, 0]]
    found["train accuracy"] = [round(100 * float(v), 2) for v in exact.train_accuracy[0, 0, 0]]
    found["iterations"] = [None if v != v else int(v) for v in fast.iterations[0, 0, 0]]
    found["seconds"] = round(time.perf_counter() - begin, 1)
    return found


def published(name: str, basis: Basis, root: Path | None) -> list[float | None]:
    """The authors' accuracies at the frequencies of a basis, where they have them; nothing without the file.

    One half of their plane is the other mirrored along one axis, and the file does not tell which is the copy: a frequency has the
    mean of both readings.
    """
    path = data_root(root) / "published" / "dft_accuracies.csv"
    if name not in COLUMNS or not path.exists():
        return []
    with path.open() as file:
        plane = {(2 * (int(r["y"]) - 8), 2 * (int(r["x"]) - 8)): float(r[COLUMNS[name]]) for r in csv.DictReader(file)}
    values: list[float | None] = []
    for label in basis.labels:
        k, l = ((int(str(part)) + 16) % 32 - 16 for part in label[-2:])  # noqa: E741 - the frequency's name
        found = [plane[place] for place in ((k, l), (-k, -l)) if place in plane]
        values.append(round(float(np.mean(found)), 2) if found else None)
    return values


def rows_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All about one network."""
    device = Run(device=options.device).torch_device
    precision = "tf32" if device.type == "cuda" else "float32"
    run = Run(folder=options.folder, device=str(device), precision=precision, progress=True)
    family = family_of(name)
    large = family.num_parameters > STACK_LIMIT
    sets = {"Fourier": fourier_directions(), "random": random_directions()}
    if options.quick:
        sets = {key: basis.part(range(6)) for key, basis in sets.items()}
    vectors = torch.cat([basis.vectors for basis in sets.values()])
    found: dict[str, Any] = {"device": run.describe()["device"], "parameters": family.num_parameters}
    found["directions"] = {key: len(basis) for key, basis in sets.items()}
    if "measure" in options.parts:
        found["quantities"] = {}
        plain = dataclasses.replace(run, precision="float32")
        for quantity in QUANTITIES:
            if options.kind and quantity.kind != options.kind:
                continue
            row = measured(family, quantity, vectors, plain, 4 if options.quick else 10**9)
            found["quantities"][quantity.name] = row
            print(f"{name}: {quantity.name}: {row['seconds']} s", flush=True)
            kept(name, found, options)
    if "train" in options.parts:
        found["learned"] = {}
        for key, basis in sets.items():
            few = np.random.default_rng(0).permutation(len(basis))[: LARGE[key]] if large else np.arange(len(basis))
            places = sorted(int(place) for place in few)
            found["learned"][key] = {"places": places, **trained(family, basis.part(places), run, options.quick)}
            print(f"{name}: trained along {key}: {found['learned'][key]['seconds']} s", flush=True)
            kept(name, found, options)
    found["published"] = published(name, sets["Fourier"], options.data_root)
    kept(name, found, options)
    return found


def kept(name: str, found: dict[str, Any], options: argparse.Namespace) -> None:
    """Write what is known, so that it is not lost."""
    if options.json:
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps(before | {name: {**before.get(name, {}), **found}}))


def correlations(
    part: dict[str, Any], quantities: Mapping[str, str] | None = None
) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Of one network: by what is learned, by quantity, by number of draws; of chosen quantities at so many draws alone."""
    targets: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # places among all directions, and values
    offset = 0
    for key, count in part["directions"].items():
        learned = part["learned"].get(key)
        if learned is not None:
            places = offset + np.array(learned["places"])
            targets[f"{key}: accuracy"] = places, np.array(learned["accuracy"])
            if iterations := learned.get("iterations"):
                slowest = 1 + max((v for v in iterations if v is not None), default=0)
                targets[f"{key}: speed"] = places, np.array([-(slowest if v is None else v) for v in iterations])
        if key == "Fourier" and part["published"]:
            known = np.flatnonzero([v is not None for v in part["published"]])
            targets["Fourier: published accuracy"] = known, np.array([part["published"][place] for place in known])
        offset += count
    return {
        target: {
            quantity: {
                draws: bootstrapped(spearman, np.array(each)[places], values)
                for draws, each in row["draws"].items()
                if quantities is None or draws == quantities[quantity]
            }
            for quantity, row in part["quantities"].items()
            if quantities is None or quantity in quantities
        }
        for target, (places, values) in targets.items()
        if len(set(values.tolist())) > 1
    }


def print_table(document: dict[str, Any], every: bool) -> None:
    """Correlations of every network: for each quantity with the most draws, or with every number of them."""
    for name, part in document.items():
        print(f"\n## {NETWORKS[name]}: {part['parameters']:,} parameters; {part['device']}\n")
        for key, learned in part["learned"].items():
            train, test = np.array(learned["train accuracy"]), np.array(learned["accuracy"])
            print(
                f"{key}, {len(test)} directions: training accuracy {train.min():.1f} to {train.max():.1f} %, "
                f"test accuracy {test.min():.1f} to {test.max():.1f} %."
            )
        found = correlations(part)
        print("\n| quantity | draws | seconds | " + " | ".join(found) + " |\n" + "|---" * (len(found) + 3) + "|")
        for quantity, row in part["quantities"].items():
            for draws in list(row["draws"])[0 if every else -1 :]:
                cells = [found[target][quantity][draws] for target in found]
                words = " | ".join(f"{e.value:+.2f} ({e.low:+.2f} to {e.high:+.2f})" for e in cells)
                print(f"| {quantity} | {draws} | {row['seconds']} | {words} |")


MEASURED = (
    "logistic_regression",
    "mlp",
    "lenet",
    "lenet pooling=average",
    "cnn",
    "vgg11",
    "resnet18",
    "vit",
    "vit patch=4 depth=3 heads=4 width=96 mlp=192",
    "lenet activation=gelu",
    "densenet121",
)


def stability(options: argparse.Namespace) -> None:
    """The effective rank of the mean gradient of networks, for seeds and numbers of draws; one row at a time."""
    from biascope.families.source import parse_settings
    from biascope.measures.mean_gradient import INPUTS, mean_gradient

    run = Run(device=options.device, progress=False)
    rows = []
    for words in MEASURED:
        if options.only and words not in options.only.split(","):
            continue
        name, *settings = words.split(" ")
        build = small_cnn if name == "cnn" else builder(name)
        repeated = [(channels, draws, seed) for seed in range(3) for channels, draws in ((1, 400), (3, 400), (1, 100))]
        for channels, draws, seed in [*repeated, *((1, 2000, seed) for seed in range(3))]:
            if draws > options.most or seed >= options.seeds:
                continue
            family = Family.initialised(
                functools.partial(build, channels=channels, outputs=10, **parse_settings(settings)), name=words
            )
            begin = time.perf_counter()
            probe = Probe.gaussian((channels, 32, 32), num=INPUTS, fresh=True, seed=seed)
            found = mean_gradient(family, probe, draws=draws, keep=256, seed=seed, run=run)
            rank = found.effective_rank
            row = {"network": words, "shape": probe.input_shape, "draws": draws, "inputs": INPUTS, "seed": seed}
            row |= {"rank": round(rank.value, 2), "low": round(rank.low, 2), "high": round(rank.high, 2)}
            row |= {"resolved": found.resolved, "seconds": round(time.perf_counter() - begin, 1)}
            rows.append(row)
            print(row, flush=True)
            options.json.write_text(json.dumps(rows))


DRAWN = {
    "mean gradient, 64 inputs, std 1": "mean gradient (64 inputs)",
    "differences, h = 100, std 1": "differences, h = 100 (published)",
    "average geometry, 4 inputs, std 1": "average geometry",
    "exact gradient, std 1": "exact gradient at one input",
}


def draw(document: dict[str, Any], path: Path) -> None:
    """Rank correlations of four quantities with test accuracy along frequencies, with intervals, a group for each network."""
    from matplotlib.figure import Figure

    from biascope.results.draw import PALETTE

    figure, colours = Figure(figsize=(8, 3.6), layout="constrained"), PALETTE[False]
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    names = [name for name in document if name != "mlp"]
    for line, (quantity, label) in enumerate(DRAWN.items()):
        found = [
            correlations(document[name], {quantity: "400"})["Fourier: accuracy"][quantity]["400"] for name in names
        ]
        places = np.arange(len(names)) + 0.18 * (line - 1.5)
        values = np.array([each.value for each in found])
        reach = np.abs(np.array([[each.low, each.high] for each in found]).T - values)
        axes.errorbar(
            places, values, reach, fmt="o", markersize=5, linewidth=1.4, color=colours.lines[line], label=label
        )
    axes.axhline(0, color=colours.muted, linestyle=":", linewidth=1)
    axes.set_xticks(np.arange(len(names)), [NETWORKS[name] for name in names])
    axes.set_ylabel("rank correlation with accuracy", fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="lower left", ncols=2)
    axes.set_ylim(-1, 1)
    figure.savefig(path, dpi=130, facecolor="white")


TITLES = {**PAPER_TITLES, "vit": "ViT"}


def print_stability(rows: list[dict[str, Any]]) -> None:
    """A row for each network and input shape: for each number of draws the rank by seed, the last with its interval."""
    print("| network | inputs | 100 draws | 400 draws | 2,000 draws |\n|---|---|---|---|---|")
    groups: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        key = TITLES.get(row["network"], row["network"]), "×".join(map(str, row["shape"]))
        groups.setdefault(key, {}).setdefault(row["draws"], []).append(row)
    for (name, shape), each in groups.items():
        cells = []
        for draws in (100, 400, 2000):
            found = each.get(draws, [])
            words = ", ".join(f"{row['rank']:.3g}" if row["rank"] < 1000 else f"{row['rank']:.0f}" for row in found)
            half = sum(row["high"] - row["low"] for row in found) / 2 / max(len(found), 1)
            cells.append(f"{words} (± {half:.2g})" if found else "not run")
        print(f"| {name} | {shape} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="lenet", choices=tuple(NETWORKS))
    parser.add_argument("--parts", default="measure,train", help="measure, train or both")
    parser.add_argument("--kind", default="", help="quantities of one kind alone: axes, along, exact, mean or mixed")
    parser.add_argument("--folder", type=Path, help="where trainings are kept, to go on from there")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of a past run, and stop")
    parser.add_argument("--every", action="store_true", help="with every number of draws")
    parser.add_argument(
        "--stability", action="store_true", help="the headline of eleven networks, over seeds and draws"
    )
    parser.add_argument("--only", default="", help="of these networks, joined by commas")
    parser.add_argument("--most", type=int, default=2000, help="leave out numbers of draws beyond this")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each number of draws")
    parser.add_argument("--quick", action="store_true", help="few directions, networks and steps")
    parser.add_argument("--stability-table", type=Path, metavar="ROWS", help="print rows of --stability, and stop")
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("JSON", "PNG"), help="draw a past run, and stop")
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.draw[0].read_text()), options.draw[1])
        return
    if options.stability_table:
        print_stability(json.loads(options.stability_table.read_text()))
        return
    if options.table:
        print_table(json.loads(options.table.read_text()), options.every)
        return
    if "OUT" in os.environ and options.json:
        options.json = Path(os.environ["OUT"]) / options.json.name
    if options.stability:
        stability(options)
        return
    found = rows_of(options.network, options)
    if "quantities" in found and "learned" in found:
        print_table({options.network: found}, options.every)


if __name__ == "__main__":
    main()
