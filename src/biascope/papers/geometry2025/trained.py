"""Conjecture 2 and appendix A.3: the geometry of trained networks, how it goes on changing, and the curvature of their loss."""

# g networks · D input size

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from biascope.derivatives.gradients import input_gradient
from biascope.derivatives.matrices import DrawnMatrix, correlation, data_covariance, seen_through
from biascope.families.family import Network
from biascope.families.weights import Params
from biascope.papers.geometry2025.shared import TITLES, family_of, geometry_of, probe_scale
from biascope.papers.geometry2025.theory import (
    NAMES,
    as_possible,
    corr,
    curves_figure,
    difference,
    dots_figure,
    possible_corr,
    small_images,
    unbiased,
)
from biascope.papers.selection import old_figure
from biascope.results.estimate import Estimate, Number, jackknife, over
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe, loss_of
from biascope.training.velocity import gradient_velocity, weight_velocity

# Side of the images, samples of each class, networks, epochs; draws of G, of Δ at the start; inputs for Δ, for the curvature.
_TRAINED: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "smoke": (8, 32, 3, 1, 16, 12, 1, 1),
    "laptop": (16, 1000, 24, 30, 2000, 1920, 8, 8),
    "paper": (32, 5000, 24, 30, 10_000, 9600, 8, 16),
}
_RATES = {"squared": 0.02, "logistic": 0.05}
LEADING, WITHIN = 10, 50
_WHEN = {"initialised": "squared", "trained, squared": "squared", "trained, logistic": "logistic"}


def trained_networks(name: str, loss: str, effort: str, run: Run) -> tuple[Arrays, Network, Network, Estimate]:
    """CIFAR-2, networks of one output before and after training on it, and their training accuracy; kept in the run folder."""
    side, each, runs, epochs = _TRAINED[effort][:4]
    data, recipe = small_images(side, each, run), Recipe(rate=_RATES[loss], momentum=0.9, epochs=epochs, loss=loss)
    family, given = family_of(name, data.shape, outputs=1, images=True), data.to(run)
    start = family.draw(runs, seed=0, run=run)

    def work(key: str) -> Outcome:
        networks = fit(start, given, recipe, seed=0, run=run).networks
        return {**networks.params, "accuracy": evaluation(networks, given, "train", loss=loss, run=run).accuracy}

    trials = Trials(
        "networks of conjecture 2", run.shared, code=work, at=data, family=family, runs=runs, data=data, recipe=recipe
    )
    kept = dict(next(trials.outcomes(["networks"], work)))
    accuracy = over(100 * kept.pop("accuracy").numpy(), within=(0.0, 100.0))
    return data, start, start.with_params({key: each.to(run.torch_device) for key, each in kept.items()}), accuracy


def _evolution_of(networks: Network, x: Tensor, y: Tensor, probe: Probe, loss: str, run: Run) -> DrawnMatrix:
    """Δ of given networks, each at inputs of its own."""
    rows, count = [], networks.members or 0
    with run.products():
        for start in range(0, count, 16):
            stop = min(start + 16, count)
            some, inputs = networks.slice(start, stop), probe.inputs(start, stop, run)
            velocity = weight_velocity(some, x, y, loss=loss)
            rows.append(gradient_velocity(some.read("mean"), inputs, velocity, paired=True))
    slopes, moved = (torch.cat(part) for part in zip(*rows, strict=True))
    return DrawnMatrix(2 * moved, slopes)


def _leading(matrix: Tensor, count: int) -> Tensor:
    """The leading eigenvectors as rows, by the size of the eigenvalue."""
    values, vectors = torch.linalg.eigh(matrix)
    leading: Tensor = vectors[:, values.abs().argsort(descending=True)[:count]].T
    return leading


def _energy_within(drawn: DrawnMatrix, basis: Tensor, groups: int) -> Estimate:
    """Share of ``‖Δ‖²`` that is left of ΠΔΠ, Π projecting on orthonormal rows; from pairs of distinct groups of networks."""
    inside = DrawnMatrix(drawn.left.double() @ basis.T, drawn.right.double() @ basis.T)
    shape = (groups, drawn.draws // groups)
    top, whole = (each.pairs().reshape(*shape, *shape).mean((1, 3)) for each in (inside, drawn))
    return unbiased(top, whole, whole).within(0.0, 1.0)


# Key and words of each number of conjecture 2; it exists for every network at every time, and by chance.
_ENERGY = (f"share_of_norm_deltat_norm_2_within_{WITHIN}_directions", f"share of ‖Δᵗ‖² within {WITHIN} directions")
_DIRECTIONS = (
    f"share_of_the_{LEADING}_leading_directions_within_{WITHIN}",
    f"share of the {LEADING} leading directions within {WITHIN}",
)


_LEAD = (f"{_ENERGY[0]}_of_gsg_minus_s", f"{_ENERGY[1]} of GSG minus those of S")


@old_figure(
    "conjecture 2",
    title="How much of Δᵗ lies within the leading directions of GSG, before and after training on CIFAR-2",
    show=lambda finding, dark: curves_figure(
        finding, dark, f"leading directions of GSG that hold {LEADING} of Δᵗ", "share"
    ),
)
def conjecture_2(effort: str, run: Run) -> Finding:
    """G is that of initialisation throughout, Δᵗ that of the loss trained on; at the start with targets 0."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    draws, starts, probes = _TRAINED[effort][4:7]
    for name in NAMES[effort]:
        title, scale, data = TITLES[name], probe_scale(name), small_images(*_TRAINED[effort][:2], run)
        family, (x, y) = family_of(name, data.shape, outputs=1, images=True), data.to(run).whole("train")
        covariance, size = data_covariance(x), x[0].numel()
        geometry = geometry_of(family, data.shape, draws, run, scale=scale)
        order, plain_order = _leading(seen_through(geometry, covariance), size), _leading(covariance, WITHIN)
        places = np.unique(np.geomspace(1, size, 40).round().astype(int))
        for when, loss in _WHEN.items():
            subject, key = f"{title}, {when}", f"{snake(title)}_{snake(when)}"
            if when == "initialised":  # many networks on few samples, without labels, which only add noise
                networks, few, at = family.draw(starts, seed=1, run=run), x[: 4 * WITHIN], 1
                targets = few.new_zeros(len(few))
            else:
                _, _, networks, accuracy = trained_networks(name, loss, effort, run)
                few, targets, at = x, y, probes
                statistics[f"{key}_training_accuracy_percent"] = accuracy.named(f"{subject}: training accuracy", "%")
            probe = Probe.gaussian(data.shape, num=at, std=scale, fresh=True, seed=2)
            drawn, groups = _evolution_of(networks, few, targets, probe, loss, run), _TRAINED[effort][2]
            within, beside = (_energy_within(drawn, basis, groups) for basis in (order[:WITHIN], plain_order))
            top = _leading(drawn.dense(), LEADING)
            shares = (order @ top.T).square().sum(1).cumsum(0).cpu().numpy() / LEADING
            held = Estimate(float(shares[WITHIN - 1]))
            statistics |= {
                f"{key}_{_ENERGY[0]}": within.named(f"{subject}: {_ENERGY[1]}"),
                f"{key}_{_ENERGY[0]}_of_s": beside.named(f"{subject}: {_ENERGY[1]} of S"),
                f"{key}_{_LEAD[0]}": difference(within, beside, groups).named(f"{subject}: {_LEAD[1]}"),
                f"{key}_{_DIRECTIONS[0]}": held.named(f"{subject}: {_DIRECTIONS[1]}"),
            }
            arrays[subject] = np.stack([places, shares[places - 1]])
        arrays["by chance"] = np.stack([places, places / size])
        statistics |= {
            f"by_chance_{_DIRECTIONS[0]}": Estimate.exact(WITHIN / size).named(f"by chance: {_DIRECTIONS[1]}"),
            f"by_chance_{_ENERGY[0]}": Estimate.exact((WITHIN / size) ** 2).named(f"by chance: {_ENERGY[1]}"),
        }
    settings = {"samples": data.name, "plan": list(_TRAINED[effort]), "rates": _RATES, "seed": 0}
    notes = (
        "Shares of ‖Δᵗ‖² are from products of different networks. Leading directions are those of the mean over so few networks, "
        "which blurs them: their share can only be too low.",
    )
    return Finding(statistics, arrays, settings, notes)


def curvature(network: Network, x: Tensor, y: Tensor, loss: str) -> Tensor:
    """The Hessian of the loss with respect to the input, averaged over samples: ``(D, D)``.

    Example:
        >>> one = Network.of(torch.nn.Linear(2, 1, bias=False)).with_params({"weight": torch.tensor([[1.0, 2.0]])})
        >>> curvature(one, torch.zeros(3, 2), torch.zeros(3), "squared").tolist()  # of (wᵀx)²: 2wwᵀ
        [[2.0, 4.0], [4.0, 8.0]]
    """

    def column(direction: Tensor) -> Tensor:
        slope = grad(lambda inputs: len(inputs) * loss_of(loss, network(inputs), y))
        moved: Tensor = jvp(slope, (x,), (direction.expand_as(x),))[1]
        return moved.flatten(1).mean(0)

    impulses = torch.eye(x[0].numel(), dtype=x.dtype, device=x.device).reshape(-1, *x.shape[1:])
    return torch.cat([vmap(column)(part) for part in torch.split(impulses, max(1, 4096 // len(x)))])


@old_figure(
    "A.3",
    title="Curvature of the loss in input space against the average geometry Gᵗ: LeNet on CIFAR-2",
    show=dots_figure,
)
def figure_a3(effort: str, run: Run) -> Finding:
    """Averaged over trained networks and training inputs, for squared and logistic loss."""
    statistics: dict[str, Number] = {}
    drawn: list[str] = []
    runs, count = _TRAINED[effort][2], _TRAINED[effort][7]
    for loss in _RATES:
        name = NAMES[effort][-1]  # LeNet, except at smoke
        data, start, end, accuracy = trained_networks(name, loss, effort, run)
        (x, y), scale = data.to(run).whole("train"), probe_scale(name)
        probes = Probe.gaussian(data.shape, num=4 * count, std=scale, fresh=True, seed=3).inputs(0, runs, run)
        for when, networks in (("initialised", start), ("trained", end)):
            bent: list[Tensor] = []
            same: list[Tensor] = []
            random: list[Tensor] = []
            for member in range(runs):
                few = torch.randperm(len(x), generator=generator_for(torch.device("cpu"), member, "few"))[:count]
                network, at = networks.member(member), x[few.to(x.device)]
                bent.append(curvature(network, at, y[few.to(x.device)], loss).double())
                for found, points in ((same, at), (random, probes[member])):
                    slopes = input_gradient(network.read("mean"), points).double()
                    found.append(slopes.T @ slopes / len(slopes))
            curved, here, there = (torch.stack(each) for each in (bent, same, random))
            neutral, alike = corr(curved, torch.eye(curved.shape[1])), corr(curved, here)
            numbers = {
                f"{loss}_{when}_corr_curvature_gt_at_the_same_inputs": as_possible(alike).named(
                    f"{loss}, {when}: Corr(curvature, Gᵗ at the same inputs)"
                ),
                f"{loss}_{when}_corr_curvature_gt_at_random_inputs": possible_corr(curved, there).named(
                    f"{loss}, {when}: Corr(curvature, Gᵗ at random inputs)"
                ),
                f"{loss}_{when}_corr_curvature_i": as_possible(neutral).named(f"{loss}, {when}: Corr(curvature, I)"),
            }
            statistics |= numbers
            drawn += numbers
        first = statistics[f"{loss}_initialised_corr_curvature_gt_at_the_same_inputs"]
        statistics |= {
            f"{loss}_trained_corr_with_gt_at_the_same_inputs_minus_with_i": difference(alike, neutral, runs).named(
                f"{loss}, trained: Corr with Gᵗ at the same inputs minus with I"
            ),
            f"{loss}_rise_of_corr_curvature_gt_at_the_same_inputs": difference(alike, first, runs).named(
                f"{loss}: rise of Corr(curvature, Gᵗ at the same inputs)"
            ),
            f"{loss}_training_accuracy_percent": accuracy.named(f"{loss}: training accuracy", "%"),
        }
    settings = {"samples": data.name, "plan": list(_TRAINED[effort]), "rates": _RATES, "seed": 0, "drawn": drawn}
    notes = (
        "Correlations are of expectations, from products of different networks; errors are over networks.",
        "For squared loss ℓ'' is constant and ℓ' goes to 0, so that ℓ''∇f∇fᵀ remains. For logistic loss both go to 0 together, and "
        "nothing makes the model's own curvature ℓ'∇²f vanish beside it.",
    )
    return Finding(statistics, {}, settings, notes)


# Change of the curvature: network, side of the images, samples of each class, networks, epochs, inputs of a network.
_CHANGING: dict[str, tuple[str, int, int, int, int, int]] = {
    "smoke": ("mlp", 4, 32, 4, 1, 2),
    "laptop": ("lenet", 16, 500, 12, 60, 4),
    "paper": ("lenet", 16, 2000, 24, 60, 8),
}


def plain_corr(one: Tensor, two: Tensor) -> Estimate:
    """``Corr`` of the means of two matrices of the same networks, ``(g, D, D)`` each; error over networks by the jackknife.

    Example:
        >>> plain_corr(torch.eye(2).repeat(3, 1, 1), torch.diag(torch.tensor([1.0, 0.0])).repeat(3, 1, 1)).value
        0.7071067811865475
    """
    every = torch.arange(len(one), device=one.device)
    left_out = [correlation(one[every != member].mean(0), two[every != member].mean(0)) for member in every.tolist()]
    value = correlation(one.mean(0), two.mean(0))
    return Estimate.from_error(value, jackknife(value, left_out).standard_error, len(one)).within(-1.0, 1.0)


_STEP = 1e-4  # length of a step of the weights, relative to their norm


def change_of_curvature(network: Network, velocity: Params, x: Tensor, y: Tensor, loss: str) -> Tensor:
    """``d/dt`` of :func:`curvature` along a velocity of the weights, by a central difference.

    Example:
        >>> one = Network.of(torch.nn.Linear(2, 1, bias=False).double())
        >>> one = one.with_params({"weight": torch.tensor([[1.0, 0.0]], dtype=torch.float64)})
        >>> moved, x = {"weight": torch.tensor([[0.0, 1.0]], dtype=torch.float64)}, torch.zeros(1, 2, dtype=torch.float64)
        >>> change_of_curvature(one, moved, x, x[:, 0], "squared").round(decimals=6).tolist()  # of 2wwᵀ
        [[0.0, 2.0], [2.0, 0.0]]
    """
    lengths = [torch.stack(torch._foreach_norm(list(each.values()))).norm() for each in (network.params, velocity)]
    step = _STEP * float(lengths[0] / lengths[1])
    ends = [
        network.with_params({key: each + sign * step * velocity[key] for key, each in network.params.items()})
        for sign in (1, -1)
    ]
    above, below = (curvature(each, x, y, loss) for each in ends)
    return (above - below) / (2 * step)


@old_figure(
    "A.3, change",
    title="Change of the loss curvature in input space against Δᵗ: LeNet on CIFAR-2",
    show=dots_figure,
)
def figure_a3_change(effort: str, run: Run) -> Finding:
    """Squared loss, whose third derivative is zero; at training inputs, averaged over networks."""
    name, side, each, runs, epochs, count = _CHANGING[effort]
    exact = dataclasses.replace(run.shared, precision="float64")  # differences of second derivatives
    data = small_images(side, each, run)
    family = family_of(name, data.shape, outputs=1, images=True, **({"activation": "gelu"} if name == "mlp" else {}))
    recipe = Recipe(rate=_RATES["squared"], momentum=0.9, epochs=epochs, loss="squared")
    given, start = data.to(exact), family.draw(runs, seed=0, run=exact)
    end = fit(start, given, recipe, seed=0, run=exact).networks
    reached = over(
        100 * evaluation(end, given, "train", loss="squared", run=exact).accuracy.cpu().numpy(), within=(0.0, 100.0)
    )
    x, y = given.whole("train")
    statistics: dict[str, Number] = {}
    bent: list[Tensor] = []
    moved: list[Tensor] = []
    for member in range(runs):
        few = torch.randperm(len(x), generator=generator_for(torch.device("cpu"), member, "few"))[:count].to(x.device)
        network = end.member(member)
        velocity = weight_velocity(network, x, y, loss="squared")
        bent.append(change_of_curvature(network, velocity, x[few], y[few], "squared"))
        slope, rate = gradient_velocity(network.read("mean"), x[few], velocity)
        moved.append(DrawnMatrix(2 * rate[None], slope[None]).dense())
    statistics["trained_corr_change_of_curvature_delta"] = plain_corr(torch.stack(bent), torch.stack(moved)).named(
        "squared loss, trained: Corr(change of curvature, Δᵗ)"
    )
    drawn = list(statistics)
    statistics["training_accuracy_percent"] = reached.named("squared loss: training accuracy", "%")
    settings = {"samples": data.name, "plan": list(_CHANGING[effort]), "rate": _RATES["squared"], "seed": 0}
    notes = (
        "For squared loss the change is 2(ġgᵀ + gġᵀ) plus the model's own curvature, weighted by residuals and their change.",
        "The correlation is of means over the same networks and inputs, as published, with the jackknife's error. From products of "
        "different networks, so few do not tell Δᵗ from noise: a first run gave no number.",
    )
    return Finding(statistics, {}, settings | {"drawn": drawn}, notes)
