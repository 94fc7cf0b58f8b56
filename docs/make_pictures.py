"""The pictures of the documentation, from run folders of the papers' networks.

For each of the seven networks, with N = 2000 draws (10000 for lenet, 600 for densenet121), on one NVIDIA H200:

    biascope measure anisotropy_directions NAME --estimator difference --draws N --device cuda --precision tf32 --out RUNS/NAME
    biascope measure average_geometry NAME --inputs 16 --fresh --draws N --device cuda --precision tf32 --out RUNS/NAME

    biascope measure mean_gradient NAME --draws N --out RUNS/NAME          # N = 2000; 1000 for densenet121

    biascope measure sensitivity NAME --draws N --out RUNS/NAME            # N = 400 for lenet and mlp, 16 for vit

    biascope scan lenet --out RUNS/scan_lenet
    biascope measure pooling_theory --out RUNS/pooling_theory
    biascope measure equivariance lenet --out RUNS/equivariance

    biascope measure complexity lenet --out RUNS/complexity_lenet
    biascope measure complexity mlp --set activation=NAME --out RUNS/complexity_mlp_NAME    # relu, gelu and tanh

and on CIFAR-10

    biascope kernel lenet --samples 4000 --positive 0,1,8,9 --draws 4 --out RUNS/kernel_vehicles
    biascope kernel lenet --samples 4000 --positive 5,6,7,8,9 --draws 4 --out RUNS/kernel_halves
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
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from biascope import load
from biascope.measures.complexity import LINEAR, Complexity
from biascope.measures.covariance import CovarianceResult
from biascope.measures.sensitivity import Sensitivity
from biascope.measures.tangent_kernel import pictures as kernel_pictures
from biascope.papers.nads2020.networks import TITLES
from biascope.results import draw
from biascope.results.figures import lines_figure
from biascope.results.registry import saved_results

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
    scores = load(runs / "sample_score" / "sample_score").plots()[
        "scores_by_class"
    ]  # the first shows images of the set
    scores.savefig(HERE / "sample_score.png", dpi=130, facecolor="white")
    profiled = {"LeNet": "lenet", "MLP, ReLU": "mlp_relu", "MLP, GELU": "mlp_gelu", "MLP, tanh": "mlp_tanh"}
    profiles = {words: load(runs / f"complexity_{name}" / "complexity") for words, name in profiled.items()}
    complexity_profiles(profiles).savefig(HERE / "complexity.png", dpi=130, facecolor="white")
    own = (
        "equivariance",
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
