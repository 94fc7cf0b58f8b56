"""Does the gain that `biascope match` measures before training predict accuracy? Networks are scored, then trained, on four data sets.

    python benchmarks/match_validation.py --folder FOLDER --json FILE      # about ten minutes on one H200; resumes
    python benchmarks/match_validation.py --quick                          # a minute on a CPU, to show that it works
    python benchmarks/match_validation.py --draw benchmarks/match_validation.json docs/images/match_validation.png

Data: 8,000 training and 2,000 test images, 32 × 32, channels standardised, of CIFAR-10; of CIFAR-10 flipped in the real Fourier
basis, which is ordered by frequency, so that what was at the lowest frequency is at the highest (`image_tasks.flipped`, channel by
channel); of MNIST, padded to 32 × 32; and of GTSRB (traffic signs, 43 classes), read as `gtsrb.npz` in the data folder with
x_train, y_train, x_test and y_test.

CANDIDATES, RECIPE, SCORE and the statistics were written down before any of them was trained. For each data set, Spearman's and
Kendall's correlation with test accuracy over architectures of the score, of the other overlaps, of parameters and of FLOPs; the
differences between score and size; and Spearman's correlation of score and accuracy at equal parameters (partial). Intervals are
95 %, by a bootstrap over architectures in which all numbers share their resamples (paired).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from biascope.cli.match import family_of_words
from biascope.families.family import Family
from biascope.families.source import parse_settings
from biascope.measures.match import match
from biascope.results.estimate import Estimate
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks import bases
from biascope.tasks.images import flipped
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

# A network of Biascope with its settings, or "cnn": the plain network below.
CANDIDATES = (
    "logistic_regression",
    "mlp hidden=100,100",
    "mlp hidden=500,500,500",
    "mlp hidden=100,100 activation=tanh",
    "lenet",
    "lenet pooling=average",
    "lenet pooling=none",
    "lenet activation=gelu",
    "lenet pooling=average activation=tanh",
    "lenet pooling=average padding=same",
    "vgg11",
    "resnet18",
    "vit patch=4 depth=3 heads=4 width=96 mlp=192",
    "vit patch=8 depth=3 heads=4 width=96 mlp=192",
    "cnn",
    "cnn depth=2",
    "cnn depth=5",
    "cnn width=8",
    "cnn width=96",
    "cnn kernel=5",
    "cnn kernel=7",
    "cnn pooling=average",
    "cnn pooling=stride",
    "cnn pooling=none",
    "cnn activation=gelu",
    "cnn activation=tanh",
    "cnn head=global",
    "cnn pooling=average head=global",
)
QUICK = (
    "logistic_regression",
    "lenet",
    "lenet pooling=average",
    "cnn",
    "cnn width=8",
    "cnn pooling=average head=global",
)
RECIPE = Recipe("adam", rate=1e-3, schedule="cosine", epochs=20, batch=128)  # no augmentation, no weight decay
SIZES = (8000, 2000)
DATA = ("cifar10", "cifar10 flipped", "mnist", "gtsrb")
# What `biascope match` warns by where there are labels, taken as a score; the other gains are reported beside it.
KINDS = ("class means", "data", "Fisher")
SCORE = KINDS[0]
RIVALS = ("parameters", "FLOPs")
RESAMPLES = 2000
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def cnn(
    channels: int,
    outputs: int,
    *,
    depth: int = 3,
    width: int = 32,
    kernel: int = 3,
    pooling: str = "max",
    activation: str = "relu",
    head: str = "flatten",
    side: int = 32,
) -> nn.Module:
    """Convolutions of one width that keep the side, the first three each halved; then all pixels, or their mean, to a linear layer."""
    layers: list[nn.Module] = []
    for layer in range(depth):
        halved = layer < 3 and pooling != "none"
        stride = 2 if halved and pooling == "stride" else 1
        layers += [nn.Conv2d(channels if layer == 0 else width, width, kernel, stride, kernel // 2)]
        layers += [ACTIVATIONS[activation]()]
        if halved:
            side //= 2
            layers += [{"max": nn.MaxPool2d, "average": nn.AvgPool2d}[pooling](2)] if pooling != "stride" else []
    layers += [nn.AdaptiveAvgPool2d(1)] if head == "global" else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (1 if head == "global" else side**2), outputs))


def family_of(words: str, data: Arrays) -> Family:
    """The candidate of a name, made for a data set."""
    name, *settings = words.split(" ")
    if name != "cnn":
        return family_of_words(words, data, [], True)
    outputs = int(data.splits["train"][1].max()) + 1
    build = functools.partial(cnn, data.shape[0], outputs, side=data.shape[1], **parse_settings(settings))
    return Family.initialised(build, name=words)


def images(name: str, sizes: tuple[int, int], root: Path | None) -> Arrays:
    """One of the data sets."""
    source, _, turned = name.partition(" ")
    extract = None if root is None else root / f"{source}.npz"  # an extract is taken before the set that it is of
    place = extract if extract is not None and extract.is_file() else source
    found = samples_of(place, sizes=sizes, side=32, root=root, seed=0)
    if not turned:
        return found
    waves = bases.fourier((32, 32))
    pace = bases.spatial_frequency((32, 32))
    order = sorted(range(len(waves)), key=lambda place: float(pace[waves.labels[place][1:]]))
    return dataclasses.replace(flipped(found, waves.vectors[order]), name=f"flipped {found.name}")


def test_accuracies(family: Family, data: Arrays, recipe: Recipe, repeats: int, run: Run) -> list[float]:
    """Of trained networks, each from its own weights and order of samples; kept as they come."""
    trials = Trials("match validation", run, code=fit, at=data, family=family, data=data, recipe=recipe)

    def trained(key: str) -> dict[str, torch.Tensor]:
        seed = seed_of(0, "repeat", key)
        start = family.draw(1, seed=seed, run=run).member(0).to(run.torch_device, master_dtype(run))
        walk = fit(start, data, recipe, seed=seed, run=run)
        return {"accuracy": evaluation(walk.networks, data, "test", run=run).accuracy[0]}

    keys = [f"repeat-{repeat}" for repeat in range(repeats)]
    return [float(found["accuracy"]) for found in trials.outcomes(keys, trained)]


def correlations(rows: list[dict[str, Any]], chosen: np.ndarray) -> dict[str, np.ndarray]:
    """Every correlation and difference over each choice ``(r, a)`` of architectures, by name; nan where a number is constant."""
    columns = {name: np.array([row[name] for row in rows])[chosen] for name in (*KINDS, *RIVALS, "accuracy")}
    signs = {name: np.sign(column[:, :, None] - column[:, None]) for name, column in columns.items()}  # (r, a, a)
    ranks = {name: sign.sum(2) for name, sign in signs.items()}  # twice the ranks, centred

    def cosine(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        one, two = one.reshape(len(one), -1), two.reshape(len(two), -1)
        with np.errstate(invalid="ignore"):
            return (one * two).sum(1) / np.sqrt((one**2).sum(1) * (two**2).sum(1))

    found: dict[str, np.ndarray] = {}
    for title, parts in (("Spearman", ranks), ("Kendall", signs)):  # both are cosines, of ranks and of pairs
        each = {name: cosine(parts[name], parts["accuracy"]) for name in (*KINDS, *RIVALS)}
        found |= {f"{title}, {name}": values for name, values in each.items()}
        found |= {f"{title}, {SCORE} − {rival}": each[SCORE] - each[rival] for rival in RIVALS}
    both, given = found[f"Spearman, {SCORE}"], found["Spearman, parameters"]
    shared = cosine(ranks[SCORE], ranks["parameters"])
    with np.errstate(invalid="ignore", divide="ignore"):
        partial = (both - shared * given) / np.sqrt((1 - shared**2) * (1 - given**2))
    return {**found, f"Spearman, {SCORE} at equal parameters": partial}


def statistics(rows: list[dict[str, Any]]) -> dict[str, Estimate]:
    """Every correlation and difference of one data set with its interval; all share their resamples."""
    count = len(rows)
    values = correlations(rows, np.arange(count)[None])
    resampled = correlations(rows, np.random.default_rng(0).integers(0, count, (RESAMPLES, count)))
    found = {}
    for name, value in values.items():
        finite = resampled[name][np.isfinite(resampled[name])]
        low, high = np.quantile(finite, [0.025, 0.975])
        found[name] = Estimate(float(value[0]), float(finite.std()), float(low), float(high))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(DATA), help="comma-separated, some of: " + ", ".join(DATA))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--draws", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=1, help="trainings of each architecture")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="", help="tf32 on a GPU, float32 on a CPU")
    parser.add_argument("--folder", type=Path, help="where scores and trainings are kept, to go on from there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="few architectures, images and steps")
    parser.add_argument(
        "--draw", nargs=2, type=Path, metavar=("JSON", "PNG"), help="draw numbers of a past run, and stop"
    )
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.draw[0].read_text()), options.draw[1])
        return
    device = Run(device=options.device).torch_device
    precision = options.precision or ("tf32" if device.type == "cuda" else "float32")
    run = Run(folder=options.folder, device=str(device), precision=precision, progress=False)
    candidates, sizes, recipe, draws = CANDIDATES, SIZES, RECIPE, options.draws
    if options.quick:
        candidates, sizes, draws = QUICK, (256, 256), 16
        recipe = dataclasses.replace(RECIPE, epochs=2)
    print(f"{run.describe()['device']}, {precision}, torch {torch.__version__}", flush=True)
    print(
        f"{len(candidates)} architectures, {sizes[0]:,} + {sizes[1]:,} images, {options.repeats} training(s) each, {recipe}\n"
    )
    begin, document = time.perf_counter(), {"recipe": recipe.settings, "sizes": sizes, "draws": draws, "data": {}}
    for name in options.data.split(","):
        data = images(name, sizes, options.data_root)
        families = [family_of(words, data) for words in candidates]
        scored = match(families, data, draws=draws, run=run)
        data = data.to(run)
        seconds = time.perf_counter() - begin
        rows = []
        for family, place in zip(families, map(scored.names.index, (each.name for each in families)), strict=True):
            right = test_accuracies(family, data, recipe, options.repeats, run)
            overlaps = dict(zip(scored.kinds, scored.overlap[:, place].tolist(), strict=True))
            size = {"parameters": int(scored.parameters[place]), "FLOPs": int(scored.flops[place])}
            mean = float(np.mean(right))
            rows.append({"architecture": family.name, **overlaps, **size, "accuracy": mean, "accuracies": right})
        found = statistics(rows)
        document["data"][name] = {
            "architectures": rows,
            "statistics": {
                key: {part: None if v != v else v for part, v in e.as_dict().items()} for key, e in found.items()
            },
        }
        print_one(name, rows, found)
        print(f"scored after {seconds:.0f} s, trained after {time.perf_counter() - begin:.0f} s\n", flush=True)
        if options.json:  # after every data set: what is known is not lost
            options.json.write_text(json.dumps(document, indent=1))
    print_summary(document)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "match_validation.json").write_text(json.dumps(document, indent=1))


def print_one(name: str, rows: list[dict[str, Any]], found: dict[str, Estimate]) -> None:
    """The architectures of one data set, the best first, and their correlations."""
    columns = ("architecture", *KINDS, *RIVALS, "test accuracy")
    print(f"## {name}\n\n| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    for row in sorted(rows, key=lambda row: -row["accuracy"]):
        gains = " | ".join(f"{2 ** row[kind]:.2f}" for kind in KINDS)
        sizes = " | ".join(f"{row[rival]:,}" for rival in RIVALS)
        print(f"| {row['architecture']} | {gains} | {sizes} | {100 * row['accuracy']:.1f} % |")
    print("\n| correlation with accuracy | value | 95 % |\n|---|---|---|")
    for key, estimate in found.items():
        print(f"| {key} | {estimate.value:.2f} | {estimate.low:.2f} to {estimate.high:.2f} |")
    print()


def print_summary(document: dict[str, Any]) -> None:
    """Spearman's correlations, a data set a row."""
    kinds = (*KINDS, *RIVALS, *(f"{SCORE} − {rival}" for rival in RIVALS))
    print(
        "\n".join(
            [
                "## Spearman's correlation with test accuracy\n",
                f"| data | {' | '.join(kinds)} |",
                "|---" * (len(kinds) + 1) + "|",
            ]
        )
    )
    for name, part in document["data"].items():
        cells = [part["statistics"][f"Spearman, {kind}"] for kind in kinds]
        print(f"| {name} | " + " | ".join(map(shown, cells)) + " |")


def draw(document: dict[str, Any], path: Path) -> None:
    """Test accuracy against the overlap with the class means, a panel for each data set with its rank correlation."""
    from biascope.results.draw import PALETTE, blank, panel, png

    figure, colours = blank(4.8), PALETTE[False]
    for place, (name, part) in enumerate(document["data"].items()):
        axes = panel(figure, False, 221 + place)
        rows = part["architectures"]
        pooled = np.array([any(word in row["architecture"] for word in ("average", "global")) for row in rows])
        overlap, right = (np.array([row[key] for row in rows]) for key in (SCORE, "accuracy"))
        for chosen, label, line in ((~pooled, "others", 0), (pooled, "average or global pooling", 1)):
            axes.scatter(overlap[chosen], 100 * right[chosen], s=16, color=colours.lines[line], label=label)
        found = part["statistics"]
        axes.set_title(f"{name}: {found[f'Spearman, {SCORE}']['value']:.2f}", fontsize=9, color=colours.ink)
        axes.axvline(0, color=colours.muted, linestyle=":", linewidth=1)
        if place > 1:
            axes.set_xlabel("log₂ overlap with class means", fontsize=9)
        if place % 2 == 0:
            axes.set_ylabel("test accuracy, %", fontsize=9)
        if place == 1:
            axes.legend(fontsize=7, frameon=False, loc="lower left")
    figure.set_facecolor("white")
    path.write_bytes(png(figure, 1200))


def shown(numbers: dict[str, float | None]) -> str:
    """A correlation with its interval."""
    value, low, high = ("–" if numbers[part] is None else f"{numbers[part]:.2f}" for part in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


if __name__ == "__main__":
    main()
