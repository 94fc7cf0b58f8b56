"""The pictures of the documentation, from run folders of the papers' networks.

For each of the seven networks, with N = 2000 draws (10000 for lenet, 600 for densenet121), on one NVIDIA H200:

    biascope measure anisotropy_directions NAME --estimator difference --draws N --device cuda --precision tf32 --out RUNS/NAME
    biascope measure average_geometry NAME --inputs 16 --fresh --draws N --device cuda --precision tf32 --out RUNS/NAME

    biascope measure mean_gradient NAME --draws N --out RUNS/NAME          # N = 2000; 1000 for densenet121

    biascope measure sensitivity NAME --draws N --out RUNS/NAME            # N = 400 for lenet and mlp, 16 for vit
    biascope measure guessing NAME --out RUNS/guessing/NAME                # logistic_regression, mlp, lenet, resnet18, vit

    biascope scan lenet --out RUNS/scan_lenet
    biascope measure pooling_theory --out RUNS/pooling_theory
    biascope measure equivariance lenet --out RUNS/equivariance
    biascope explain lenet --out RUNS/explain

    biascope measure complexity lenet --out RUNS/complexity_lenet
    biascope measure complexity mlp --set activation=NAME --out RUNS/complexity_mlp_NAME    # relu, gelu and tanh

and on CIFAR-10

    biascope kernel lenet --samples 4000 --positive 0,1,8,9 --draws 4 --out RUNS/kernel_vehicles
    biascope kernel lenet --samples 4000 --positive 5,6,7,8,9 --draws 4 --out RUNS/kernel_halves
    biascope kernel lenet --samples 1000 --draws 8 --out RUNS/kernel_classes
    biascope measure sample_score lenet --data cifar10 --set pooling=average --set activation=gelu --samples 50000,1 \
        --out RUNS/sample_score
    biascope measure feature_elimination lenet --set pooling=average --set activation=gelu --data cifar10 --samples 4000,2000 \
        --positive 2,3,4,5,6,7 --epochs 20 --repeats 3 --out RUNS/feature_elimination
    biascope measure geometry_motion lenet --set activation=gelu --set pooling=average --samples 1000,1000 --positive 2,3,4,5,6,7 \
        --runs 8 --epochs 60 --out RUNS/geometry_motion
    biascope measure kernel_rotation lenet --samples 4000,1000 --target 50 --epochs 20 --out RUNS/kernel_rotation
    biascope measure linearized_training lenet --samples 4000,1000 --targets 2,5,10,20,50,100 --at start,trained --epochs 20
        --out RUNS/linearized_training

then

    python docs/make_pictures.py RUNS
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from biascope import load
from biascope.families.family import Family
from biascope.measures.complexity import LINEAR, Complexity
from biascope.measures.covariance import CovarianceResult
from biascope.measures.guessing import Guessing
from biascope.measures.memory import memory
from biascope.measures.sensitivity import Sensitivity
from biascope.measures.tangent_kernel import pictures as kernel_pictures
from biascope.papers.nads2020.networks import TITLES
from biascope.results import draw
from biascope.results.axes import Axis
from biascope.results.figures import lines_figure
from biascope.results.registry import saved_results
from biascope.tasks.probe import Probe

NETWORKS = {**TITLES, "logistic_regression": "logistic\nregression", "vit": "ViT"}
HERE = Path(__file__).parent / "images"


def architectures(results: dict[str, CovarianceResult]) -> Figure:
    """One column per network: its two leading directions, and where on the frequency plane its mean gradient's energy lies."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    axes = figure.subplots(3, len(results))
    for column, (name, result) in enumerate(results.items()):
        for row in (0, 1):
            if result.resolved <= row:
                axes[row, column].set_facecolor("0.93")
                axes[row, column].text(
                    0.5,
                    0.5,
                    "no preferred\ndirection",
                    fontsize=8,
                    ha="center",
                    va="center",
                    transform=axes[row, column].transAxes,
                )
                continue
            image = result.directions[row].reshape(result.input_shape)[0]
            reach = abs(image).max()
            axes[row, column].imshow(image, cmap="RdBu_r", vmin=-reach, vmax=reach)
        energy = np.fft.fftshift(result.frequency_energy())
        axes[2, column].imshow(np.log10(energy * energy.size), cmap="viridis", vmin=-1.5, vmax=1.5)
        rank = result.effective_rank
        shown = f"{rank.value:.0f}" if rank.value > 100 else f"{rank.value:.1f}"
        axes[0, column].set_title(f"{NETWORKS[name]}\n{shown} ± {rank.standard_error:.2g}", fontsize=10)
    for row, words in enumerate(("first\ndirection", "second\ndirection", "energy by\nfrequency")):
        axes[row, 0].set_ylabel(words, fontsize=10)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.suptitle(
        "Over how many of 1024 directions the mean gradient of an untrained network spreads, and which come first",
        fontsize=12,
    )
    return figure


def complexity_profiles(results: dict[str, Complexity]) -> Figure:
    """Complexity by the scale of the weights, of several networks."""
    curves = {name: (result.scales, np.array(result.profile, np.float64)) for name, result in results.items()}
    bands = {
        name: (np.array([each.low for each in result.profile]), np.array([each.high for each in result.profile]))
        for name, result in results.items()
    }
    reading = "Bands are 95 % intervals. The dashed line is a linear function."
    words = {"x": "weights times", "y": "complexity, cycles per line", "reading": reading}
    figure = lines_figure(curves, log_x=True, bands=bands, **words)
    (axes,) = figure.axes
    axes.axhline(LINEAR, color=draw.PALETTE[False].muted, linestyle="--", linewidth=1, zorder=0)
    scales = next(iter(results.values())).scales
    axes.set_xticks(scales, [f"{scale:g}" for scale in scales])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)


def sensitivities(results: dict[str, Sensitivity]) -> Figure:
    """One map per network: the total index of each patch, and its mean dimension."""
    figure = Figure(figsize=(2.9 * len(results) + 0.4, 3.1), layout="constrained")
    panels = figure.subplots(1, len(results))
    maps = {
        name: 100 * np.reshape([each.value for each in result.indices()], result.places.grid)
        for name, result in results.items()
    }
    top = max(float(each.max()) for each in maps.values())
    for axes, (name, values) in zip(panels, maps.items(), strict=True):
        shown = draw.heat(axes, values, False, (0.0, top), extent=(0.5, 8.5, 8.5, 0.5))
        found = results[name].mean_dimension
        words = f"{NETWORKS[name]}: {found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
        axes.set_title(words, fontsize=10)
    draw.colour_bar(shown, list(panels), False)
    figure.suptitle("Total index of each patch in %, and mean dimension", fontsize=11)


def guesses(results: dict[str, Guessing]) -> Figure:
    """One panel per network: how large a share its favourite class gets in each draw, beside what chance gives."""
    figure = Figure(figsize=(11, 2.3), layout="constrained")
    panels = figure.subplots(1, len(results), sharex=True, sharey=True)
    edges = np.linspace(9, 101, 24)
    for axes, (name, result) in zip(panels, results.items(), strict=True):
        draws, inputs = result.guesses.shape
        each = np.full(draws, 1 / draws)
        axes.hist(100 * result.favourites, edges, weights=each, color="#1b66b0", label="measured")
        by_chance = np.histogram(100 * np.arange(inputs + 1) / inputs, edges, weights=result.unbiased)[0]
        axes.stairs(by_chance, edges, color="#d2570b", linewidth=1.4, label="by chance")
        axes.set_title(
            f"{NETWORKS[name].replace(chr(10), ' ')}\nmean {100 * result.favourite_share.value:.0f} %", fontsize=10
        )
        axes.set_xlabel("favourite's share in %", fontsize=9)
    panels[0].set_ylabel("share of draws", fontsize=9)
    panels[-1].legend(frameon=False, fontsize=8)
    return figure


class LSTM(nn.Module):
    """Reads the last state of a sequence of three features."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the last state."""
        found: Tensor = self.head(self.cells(x)[0][:, -1])
        return found


class ConvNet(nn.Module):
    """Two convolutions along time and the mean over steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the mean."""
        found: Tensor = self.head(self.layers(x.mT).mean(-1))
        return found


def memories() -> Figure:
    """How the sensitivity of two networks is shared among 20 steps, and among frequencies."""
    figure, results = Figure(figsize=(9, 2.8), layout="constrained"), {}
    for name, build in {"LSTM, last state": LSTM, "convolutions, mean over steps": ConvNet}.items():
        family = replace(Family.initialised(build, name=name), axes=(Axis("time"), Axis("feature")))
        results[name] = memory(family, Probe.gaussian((20, 3), num=8, fresh=True), draws=200)
    panels = figure.subplots(1, 2)
    for colour, (name, result) in zip(("#1b66b0", "#d2570b"), results.items(), strict=True):
        for axes, shares in zip(panels, (result.by_step, result.by_frequency), strict=True):
            values = 100 * np.array([[each.value, each.low, each.high] for each in shares.each()])
            at = np.arange(len(values))
            axes.fill_between(at, values[:, 1], values[:, 2], color=colour, alpha=0.25, linewidth=0)
            axes.plot(at, values[:, 0], ".-", color=colour, label=name)
            axes.plot(at, 100 * shares.isotropic, ":", color="0.5")
            axes.set_xlabel(shares.along)
    panels[0].set_ylabel("share of the sensitivity in %")
    panels[0].set_xticks(range(0, 20, 3), range(1, 21, 3))
    panels[1].legend(frameon=False, fontsize=9)
    return figure


def main(runs: Path) -> None:
    """Draw them all."""
    HERE.mkdir(exist_ok=True)
    found = {name: {result.measurement: result for result in saved_results(runs / name)} for name in NETWORKS}
    directions = {name: results["anisotropy_directions"] for name, results in found.items()}
    architectures({name: results["mean_gradient"] for name, results in found.items()}).savefig(
        HERE / "architectures.png", dpi=110, facecolor="white"
    )
    measured = {name: found[name]["sensitivity"] for name in ("lenet", "mlp", "vit")}
    sensitivities(measured).savefig(HERE / "sensitivity.png", dpi=110, facecolor="white")
    curves = {
        NETWORKS[name].replace("\n", " "): (
            result.eigenvalues,
            result.eigenvalue_errors,
            np.full_like(result.held_out, np.nan),
        )
        for name, result in directions.items()
        if name != "logistic_regression"
    }
    draw.spectrum(curves, draws=2000, size=1024).savefig(HERE / "spectra.png", dpi=130, facecolor="white")
    for name in ("lenet", "resnet18"):
        geometry = found[name]["average_geometry"]
        geometry.plot().savefig(HERE / f"geometry_{name}.png", dpi=110, facecolor="white")
        pictures = list(directions[name].plots().values())
        pictures[0].savefig(HERE / f"spectrum_{name}.png", dpi=130, facecolor="white")
        pictures[1].savefig(HERE / f"directions_{name}.png", dpi=130, facecolor="white")
    scanned = load(runs / "scan_lenet" / "mean_gradient").plots()["leading_directions"]
    scanned.savefig(HERE / "mean_gradient_lenet.png", dpi=130, facecolor="white")
    labels = {"vehicles against animals": "kernel_vehicles", "classes 5 to 9 against the rest": "kernel_halves"}
    energies = {words: load(runs / folder / "tangent_kernel").labels_energy for words, folder in labels.items()}
    kernel_pictures.energy_figure(energies, 4000).savefig(HERE / "tangent_kernel.png", dpi=130, facecolor="white")
    classes = load(runs / "kernel_classes" / "tangent_kernel").plots()["class_shares"]
    classes.savefig(HERE / "tangent_kernel_classes.png", dpi=130, facecolor="white")
    scores = load(runs / "sample_score" / "sample_score").plots()[
        "scores_by_class"
    ]  # the first shows images of the set
    scores.savefig(HERE / "sample_score.png", dpi=130, facecolor="white")
    profiled = {"LeNet": "lenet", "MLP, ReLU": "mlp_relu", "MLP, GELU": "mlp_gelu", "MLP, tanh": "mlp_tanh"}
    profiles = {words: load(runs / f"complexity_{name}" / "complexity") for words, name in profiled.items()}
    complexity_profiles(profiles).savefig(HERE / "complexity.png", dpi=130, facecolor="white")
    guessed = ("logistic_regression", "vit", "mlp", "lenet", "resnet18")
    guesses({name: load(runs / "guessing" / name / "guessing") for name in guessed}).savefig(
        HERE / "guessing.png", dpi=110, facecolor="white"
    )
    memories().savefig(HERE / "memory.png", dpi=110, facecolor="white")
    own = (
        "equivariance",
        "explain",
        "feature_elimination",
        "geometry_motion",
        "kernel_rotation",
        "linearized_training",
        "pooling_theory",
    )
    for name in own:
        load(runs / name / name).plot().savefig(HERE / f"{name}.png", dpi=130, facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
