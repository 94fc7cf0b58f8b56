"""Figure 5 (with S13–S16) and sections D.3 and E: the anisotropy directions of the paper's networks, and their spectra."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.spectrum import subspace_similarity
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.papers.nads2020.energy import accuracy_where_energy_is, comb_share, frequencies_with_energy
from biascope.papers.nads2020.networks import CNNS, SHAPE, TITLES, family_of, keyed
from biascope.papers.nads2020.released import published_accuracies
from biascope.results import draw
from biascope.results.estimate import Estimate, bootstrapped, over
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Show, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.probe import Probe
from biascope.training.evaluation import STACK_LIMIT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Draws of each network's weights; DenseNet-121 with the exact gradient, since its differences take hours.
DRAWS: dict[str, dict[str, int]] = {
    "smoke": {"lenet": 8},
    "laptop": {"lenet": 2000},
    "paper": {"mlp": 2000, "lenet": 10_000, "vgg11": 2000, "resnet18": 2000, "densenet121": 1100},
    "published": dict.fromkeys(TITLES, 10_000),
}
# Figures 5 and 6 have numbers over all networks only if they run for these together.
COMPARED = ("lenet", "vgg11", "resnet18")
EXACT = "The directions of DenseNet-121 are those of the exact gradient, not of differences of half width 100."
INPUTS = 3  # sets of draws, each at an input of its own, where directions are compared


def found_by(effort: str, *names: str) -> dict[str, Any]:
    """The settings of networks' directions at an effort, or of the authors."""
    return {"step": 100.0, "centred": True, "draws": {name: DRAWS[effort][name] for name in names}}


def directions(
    name: str, draws: int, run: Run, *, estimator: str = "", shape: tuple[int, int, int] = SHAPE, seed: int = 0
) -> Basis:
    """The anisotropy directions of a network as published: one N(0, 1) input, differences of half width 100, centred.

    Large networks are drawn in tf32 on a GPU, where draws would otherwise take minutes. Half precision cannot hold their gradients.
    """
    estimator = estimator or ("exact" if name == "densenet121" else "difference")
    family = family_of(name, image_size=shape[1])
    large = family.num_parameters > STACK_LIMIT and run.torch_device.type == "cuda" and estimator == "difference"
    measured = anisotropy_directions(
        family,
        Probe.gaussian(shape, seed=seed),
        estimator=estimator,
        draws=draws,
        centred=True,
        keep=math.prod(shape),
        seed=seed,
        run=dataclasses.replace(run.shared, precision="tf32") if large else run.shared,
    )
    return bases.ordered(
        torch.as_tensor(measured.directions),
        shape,
        torch.as_tensor(measured.eigenvalues),
        name=f"anisotropy ({TITLES[name]})",
    )


def gallery(finding: Finding, dark: bool) -> Figure:
    """The first four directions of each network, in a row."""
    images, labels = [], []
    for name, vectors in finding.arrays_of("first").items():
        for index, vector in enumerate(vectors[:4]):
            images.append(vector.reshape(1, math.isqrt(vector.size), -1))
            labels.append(f"{name} {index + 1}")
    return draw.directions(np.stack(images), labels, columns=4, dark=dark)


def numbered(kind: str, *, x: str, y: str, scale: float = 1.0) -> Show:
    """Every array of a kind as a curve over its values, counted from 1."""

    def show(finding: Finding, dark: bool) -> Figure:
        found = finding.arrays_of(kind).items()
        return lines_figure(
            {name: (np.arange(1, len(values) + 1), scale * values) for name, values in found}, x=x, y=y, dark=dark
        )

    return show


def compared_by(effort: str, *names: str) -> dict[str, Any]:
    """The settings of networks whose directions are compared, by sets of a quarter of the draws."""
    sets = {name: max(4, DRAWS[effort][name] // 4) for name in names}
    return {**found_by(effort, *names), "draws of one set": sets, "seeds": INPUTS}


FIRST = Plan(
    smoke=compared_by("smoke", "lenet"),
    laptop=compared_by("laptop", "lenet"),
    paper=compared_by("paper", *CNNS),
    published=found_by("published", *CNNS),
    titles=TITLES,
    by="draws",
)


@figure("5", title="First anisotropy directions (figures S13–S16 show more of them)", plan=FIRST, show=gallery)
def figure_5(plan: Row, run: Run, tell: Tell) -> None:
    """The first directions of each network, and how alike those of two networks and of two sets of draws are."""
    combs: dict[str, Estimate] = {}
    of_draws: dict[str, Estimate] = {}
    sets: dict[str, list[torch.Tensor]] = {}
    for name in plan.networks:
        title, of = TITLES[name], tell.about(TITLES[name])
        first = directions(name, plan["draws"][name], run).vectors[:20].numpy()
        tell.array(title, first, kind="first")
        combs[name] = bootstrapped(np.mean, np.array([comb_share(vector) for vector in first[:10]]))
        of("energy on a comb", combs[name])
        spikes = bootstrapped(np.mean, np.array([frequencies_with_energy(vector) for vector in first[:10]]))
        of("number of frequencies that hold the energy", spikes)
        published = published_accuracies(name, run)
        if published is not None:
            inside = bootstrapped(np.mean, accuracy_where_energy_is(first[:10], published))
            label = "the authors' accuracy weighted by the energy of the first ten directions, minus the mean"
            of(label, inside, "points", key=f"{keyed(name)}_accuracy_where_the_energy_is_minus_the_mean")
        draws, seeds = plan["draws of one set"][name], range(1, 1 + plan["seeds"])
        sets[name] = [directions(name, draws, run, seed=seed).vectors[:10] for seed in seeds]
        of_draws[name] = _similarity(itertools.combinations(sets[name], 2))
        tell(f"similarity of two sets of draws of {title}", of_draws[name])
    of_networks = []
    for one, two in itertools.combinations(plan.networks, 2):
        of_networks.append(_similarity(zip(sets[one], sets[two], strict=True)))
        tell(f"similarity of {TITLES[one]} and {TITLES[two]}", of_networks[-1])
    if set(COMPARED) <= sets.keys():
        _tell_extremes(of_networks, list(of_draws.values()), combs, tell)
    tell.note(
        "Means over the first ten directions. Similarity is the mean squared cosine of principal angles, over three sets of draws, "
        "each at its own input.",
        EXACT,
    )


def _similarity(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Estimate:
    return over([subspace_similarity(one, two) for one, two in pairs], within=(0.0, 1.0))


def _tell_extremes(
    of_networks: list[Estimate], of_draws: list[Estimate], combs: Mapping[str, Estimate], tell: Tell
) -> None:
    """How alike the two most similar networks are, and how much more like combs ResNet-18's directions are than the next network's."""
    greatest, least = max(of_networks, key=float), min(of_draws, key=float)
    next_comb = max((comb for name, comb in combs.items() if name != "resnet18"), key=float)
    tell("greatest similarity of two networks", greatest)
    label, gap = "greatest similarity of two networks minus the smallest of two sets of draws", greatest.minus(least)
    tell(label, gap, key="similarity_of_networks_minus_that_of_draws")
    gap = combs["resnet18"].minus(next_comb)
    tell("energy on a comb, ResNet-18 minus the next network", gap, key="resnet_18_energy_on_a_comb_minus_others")


def _against_white_noise(finding: Finding, dark: bool) -> Figure:
    index, values = np.arange(1, 1025), finding.arrays["eigenvalues"]
    spectra = {
        "MLP, measured": (index, values / values.mean()),
        "Marchenko–Pastur": (index, finding.arrays["expected"]),
    }
    return lines_figure(spectra, x="index", y="eigenvalue over their mean", log_y=True, dark=dark)


_OF_MLP = {"estimator": "exact", "seed": 0}
FLAT = Plan(
    smoke={**_OF_MLP, "draws": 64, "draws of LeNet": DRAWS["smoke"]["lenet"]},
    laptop={**_OF_MLP, "draws": 2000, "draws of LeNet": DRAWS["laptop"]["lenet"]},
    paper={**_OF_MLP, "draws": 10_000, "draws of LeNet": DRAWS["paper"]["lenet"]},
    published={"draws": 10_000, "estimator": "difference"},
)


@figure("D.3", title="The MLP's spectrum is flat in the limit", plan=FLAT, show=_against_white_noise)
def figure_d3(plan: Row, run: Run, tell: Tell) -> None:
    """The spectrum of the MLP's gradient covariance against that of white noise with as many draws."""
    draws, probe = plan["draws"], Probe.gaussian(SHAPE, seed=0)
    how = {"keep": 1024, "seed": plan["seed"], "run": run.shared}
    of_mlp = anisotropy_directions(family_of("mlp"), probe, estimator=plan["estimator"], draws=draws, **how)
    of_lenet = anisotropy_directions(family_of("lenet"), probe, draws=plan["draws of LeNet"], centred=True, **how)
    # The spectrum of white noise with as many draws, from the quantiles of one large sample of it.
    white = np.random.default_rng(0).standard_normal((draws, 1024))
    tell.array("expected", np.sort(np.linalg.eigvalsh(white.T @ white / draws))[::-1])
    eigenvalues = np.asarray(of_mlp.eigenvalues, np.float64)
    tell.array("eigenvalues", eigenvalues)
    ratio = 1024 / draws
    edge = (1 + math.sqrt(ratio)) ** 2
    top = float(eigenvalues[0] * 1024 / eigenvalues.sum() / edge)
    # The largest eigenvalue of white noise fluctuates by about n^(−2/3) around its edge (Tracy and Widom).
    spread = draws ** (-2 / 3) * (1 + math.sqrt(1 / ratio)) * (1 + math.sqrt(ratio)) ** (1 / 3) / edge
    tell("effective rank over 1024", of_mlp.effective_rank.map_linear(1 / 1024))
    largest = Estimate(top, spread, top - 2 * spread, top + 2 * spread)
    tell("largest eigenvalue over the Marchenko–Pastur edge", largest)
    gap = of_mlp.effective_rank.minus(of_lenet.effective_rank)
    tell("effective rank, MLP minus LeNet", gap, key="effective_rank_minus_that_of_lenet")


COLOURS = 3
CHANNEL_SETS = ((1, 0), (COLOURS, 1), (COLOURS, 2))  # channels and number of each set of draws at an input
_OF_CHANNELS = {"step": 100.0, "centred": True, "inputs": INPUTS, "image size": 32}
CHANNELS = Plan(
    smoke={**_OF_CHANNELS, "draws": {"lenet": 4}, "inputs": 2, "image size": 16},
    laptop={**_OF_CHANNELS, "draws": {"lenet": 200}},
    paper={**_OF_CHANNELS, "draws": {"lenet": 4000}},
    published=found_by("published", "lenet"),
    titles=TITLES,
)


@figure(
    "E channels",
    title="Directions of LeNet for images with three channels",
    plan=CHANNELS,
    show=numbered("share", x="direction for three channels", y="share in the one-channel span"),
)
def figure_e_channels(plan: Row, run: Run, tell: Tell) -> None:
    """The span of u_i ⊗ e_k for the first ten i and all k, against the first thirty directions for three channels."""
    side, draws, of = plan["image size"], plan["draws"]["lenet"], tell.about("LeNet")
    predicted, again, shares = [], [], []
    for place in range(plan["inputs"]):
        single, one, two = (first_directions(colours, side, draws, place, half, run) for colours, half in CHANNEL_SETS)
        spanned = torch.cat([torch.kron(axis, single) for axis in torch.eye(COLOURS, dtype=single.dtype)])
        predicted.append(float(np.mean([subspace_similarity(spanned, each) for each in (one, two)])))
        again.append(subspace_similarity(one, two))
        shares.append((one @ spanned.T).square().sum(1).numpy())
    similarity, of_sets = (over(values, within=(0.0, 1.0)) for values in (predicted, again))
    label, key = "similarity with the directions for one channel", "lenet_similarity_with_one_channel"
    of(label, similarity, key=key)
    of("similarity of two sets of draws for three channels", of_sets, key="lenet_similarity_of_two_sets")
    gap = over(np.array(predicted) - np.array(again))
    of(f"{label} minus that of two sets of draws", gap, key=f"{key}_minus_that_of_two_sets")
    tell.array("LeNet", np.mean(shares, 0), kind="share")
    chance = 30 / (COLOURS * side**2)
    tell.note(
        f"A random pair of thirty-dimensional subspaces has similarity {chance:.4f}. Inputs differ, and so do the draws."
    )


def first_directions(channels: int, side: int, draws: int, place: int, half: int, run: Run) -> torch.Tensor:
    """LeNet's first directions for images with some channels, ten for each, by a set of draws of its own at one of several inputs."""
    shape = (channels, side, side)
    measured = anisotropy_directions(
        family_of("lenet", image_size=side, channels=channels),
        Probe.gaussian(shape, seed=place),
        draws=draws,
        centred=True,
        keep=10 * channels,
        # With differences so wide, inputs alone would hardly change the directions.
        seed=len(CHANNEL_SETS) * place + half,
        run=run.shared,
    )
    return torch.as_tensor(measured.directions).reshape(-1, math.prod(shape)).double()
