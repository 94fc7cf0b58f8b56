"""Conjecture 2 and appendix A.3: the geometry of trained networks, how it goes on changing, and the curvature of their loss."""

# g networks · D input size

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from biascope.derivatives.gradients import input_gradient
from biascope.derivatives.matrices import DrawnMatrix, correlation, data_covariance, seen_through
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.papers.geometry2025.shared import TITLES, family_of, geometry_of, probe_scale
from biascope.papers.geometry2025.theory import (
    as_possible,
    corr,
    curves_figure,
    difference,
    dots_figure,
    possible_corr,
    small_images,
    unbiased,
)
from biascope.results.estimate import Estimate, jackknife, over
from biascope.results.finding import Tell, figure
from biascope.results.plan import Plan, Row
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

_RATES = {"squared": 0.02, "logistic": 0.05}
_TRAININGS = ("side of the images", "images of each class", "runs", "epochs")
_OF_DELTA = ("draws of G", "draws of Δ at the start", "inputs for Δ")
_OF_CURVATURE = "inputs for the curvature"


def _row(columns: Sequence[str], *sizes: Any) -> dict[str, Any]:
    """Sizes by column. Committed runs have them as one list."""
    return {**dict(zip(columns, sizes, strict=True)), "plan": sizes, "seed": 0}


def _planned(*names: str, without: Sequence[str]) -> Plan:
    """The plan of conjecture 2 or of figure A.3, which share their trainings: each without sizes of the other."""

    def row(networks: Sequence[str], *sizes: int) -> dict[str, Any]:
        settings = _row((*_TRAININGS, *_OF_DELTA, _OF_CURVATURE), *sizes) | {"rates": _RATES}
        scales = {name: probe_scale(name) for name in networks}
        return {key: settings[key] for key in settings if key not in without} | {"spread of the inputs": scales}

    return Plan(
        smoke=row(["mlp"], 8, 32, 3, 1, 16, 12, 1, 1),
        laptop=row(names, 16, 1000, 24, 30, 2000, 1920, 8, 8),
        paper=row(names, 32, 5000, 24, 30, 10_000, 9600, 8, 16),
        titles=TITLES,
    )


LEADING, WITHIN = 10, 50
_WHEN = {"initialised": "squared", "trained, squared": "squared", "trained, logistic": "logistic"}


def _images(plan: Row, run: Run) -> Arrays:
    return small_images(plan["side of the images"], plan["images of each class"], run)


def _recipe(plan: Row, loss: str) -> Recipe:
    return Recipe(rate=_RATES[loss], momentum=0.9, epochs=plan["epochs"], loss=loss)


def trained_networks(name: str, loss: str, plan: Row, run: Run) -> tuple[Network, Network, Estimate]:
    """Networks of one output before and after training on CIFAR-2, and their training accuracy; kept in the run folder."""
    data, runs, recipe = _images(plan, run), plan["runs"], _recipe(plan, loss)
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
    return start, start.with_params({key: each.to(run.torch_device) for key, each in kept.items()}), accuracy


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


@figure(
    "conjecture 2",
    title="How much of Δᵗ lies within the leading directions of GSG, before and after training on CIFAR-2",
    plan=_planned("mlp", "lenet", without=[_OF_CURVATURE]),
    show=lambda finding, dark: curves_figure(
        finding, dark, f"leading directions of GSG that hold {LEADING} of Δᵗ", "share"
    ),
)
def conjecture_2(plan: Row, run: Run, tell: Tell) -> None:
    """G is that of initialisation throughout, Δᵗ that of the loss trained on; at the start with targets 0."""
    data, runs = _images(plan, run), plan["runs"]
    energy = f"share of ‖Δᵗ‖² within {WITHIN} directions"
    directions = f"share of the {LEADING} leading directions within {WITHIN}"
    (x, y), size = data.to(run).whole("train"), math.prod(data.shape)
    places = np.unique(np.geomspace(1, size, 40).round().astype(int))
    covariance = data_covariance(x)
    of_data = _leading(covariance, WITHIN)
    for name, scale in plan["spread of the inputs"].items():
        family = family_of(name, data.shape, outputs=1, images=True)
        geometry = geometry_of(family, data.shape, plan["draws of G"], run, scale=scale)
        order = _leading(seen_through(geometry, covariance), size)
        for when, loss in _WHEN.items():
            of = tell.about(f"{TITLES[name]}, {when}")
            if when == "initialised":  # many networks on few samples, without labels, which only add noise
                networks, few, at = family.draw(plan["draws of Δ at the start"], seed=1, run=run), x[: 4 * WITHIN], 1
                targets = few.new_zeros(len(few))
            else:
                _, networks, accuracy = trained_networks(name, loss, plan, run)
                few, targets, at = x, y, plan["inputs for Δ"]
                of("training accuracy", accuracy, "%", key=f"{snake(of.subject)}_training_accuracy_percent")
            probe = Probe.gaussian(data.shape, num=at, std=scale, fresh=True, seed=2)
            drawn = _evolution_of(networks, few, targets, probe, loss, run)
            within, beside = (_energy_within(drawn, basis, runs) for basis in (order[:WITHIN], of_data))
            of(energy, within)
            of(f"{energy} of S", beside)
            of(
                f"{energy} of GSG minus those of S",
                difference(within, beside, runs),
                key=f"{snake(f'{of.subject} {energy}')}_of_gsg_minus_s",
            )
            top = _leading(drawn.dense(), LEADING)
            shares = (order @ top.T).square().sum(1).cumsum(0).cpu().numpy() / LEADING
            of(directions, Estimate(float(shares[WITHIN - 1])))
            tell.array(of.subject, np.stack([places, shares[places - 1]]))
    chance = tell.about("by chance")
    chance(directions, Estimate.exact(WITHIN / size))
    chance(energy, Estimate.exact((WITHIN / size) ** 2))
    tell.array("by chance", np.stack([places, places / size]))
    tell.settings["samples"] = data.name
    tell.note(
        "Shares of ‖Δᵗ‖² are from products of different networks. Leading directions are those of the mean over so few networks, "
        "which blurs them: their share can only be too low.",
    )


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


def _few(x: Tensor, member: int, count: int) -> Tensor:
    """Places of a network's own samples."""
    places = torch.randperm(len(x), generator=generator_for(torch.device("cpu"), member, "few"))
    return places[:count].to(x.device)


def _geometry_at(network: Network, x: Tensor) -> Tensor:
    slopes = input_gradient(network.read("mean"), x).double()
    return slopes.T @ slopes / len(slopes)


@figure(
    "A.3",
    title="Curvature of the loss in input space against the average geometry Gᵗ: LeNet on CIFAR-2",
    plan=_planned("lenet", without=_OF_DELTA),
    show=dots_figure,
)
def figure_a3(plan: Row, run: Run, tell: Tell) -> None:
    """Averaged over trained networks and training inputs, for squared and logistic loss."""
    data, runs, count = _images(plan, run), plan["runs"], plan[_OF_CURVATURE]
    (x, y), drawn = data.to(run).whole("train"), []
    ((name, scale),) = plan["spread of the inputs"].items()
    probes = Probe.gaussian(data.shape, num=4 * count, std=scale, fresh=True, seed=3).inputs(0, runs, run)
    for loss in plan["rates"]:
        start, end, accuracy = trained_networks(name, loss, plan, run)
        for when, networks in (("initialised", start), ("trained", end)):
            rows = []
            for member in range(runs):
                few, network = _few(x, member, count), networks.member(member)
                bent = curvature(network, x[few], y[few], loss).double()
                rows.append((bent, _geometry_at(network, x[few]), _geometry_at(network, probes[member])))
            curved, here, there = map(torch.stack, zip(*rows, strict=True))
            neutral, alike = corr(curved, torch.eye(curved.shape[1])), corr(curved, here)
            of = tell.about(f"{loss}, {when}")
            of("Corr(curvature, Gᵗ at the same inputs)", as_possible(alike))
            of("Corr(curvature, Gᵗ at random inputs)", possible_corr(curved, there))
            of("Corr(curvature, I)", as_possible(neutral))
            drawn += list(tell.numbers)[-3:]
        first = tell.numbers[f"{loss}_initialised_corr_curvature_gt_at_the_same_inputs"]
        lead = difference(alike, neutral, runs)
        tell.about(f"{loss}, trained")("Corr with Gᵗ at the same inputs minus with I", lead)
        of = tell.about(loss)
        of("rise of Corr(curvature, Gᵗ at the same inputs)", difference(alike, first, runs))
        of("training accuracy", accuracy, "%", key=f"{loss}_training_accuracy_percent")
    tell.settings.update({"samples": data.name, "drawn": drawn})
    tell.note(
        "Correlations are of expectations, from products of different networks; errors are over networks.",
        "For squared loss ℓ'' is constant and ℓ' goes to 0, so that ℓ''∇f∇fᵀ remains. For logistic loss both go to 0 together, and "
        "nothing makes the model's own curvature ℓ'∇²f vanish beside it.",
    )


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


def _changing(*sizes: Any) -> dict[str, Any]:
    return _row(("network", *_TRAININGS, _OF_CURVATURE), *sizes) | {"rate": _RATES["squared"]}


@figure(
    "A.3, change",
    title="Change of the loss curvature in input space against Δᵗ: LeNet on CIFAR-2",
    plan=Plan(
        smoke=_changing("mlp", 4, 32, 4, 1, 2),
        laptop=_changing("lenet", 16, 500, 12, 60, 4),
        paper=_changing("lenet", 16, 2000, 24, 60, 8),
    ),
    show=dots_figure,
)
def figure_a3_change(plan: Row, run: Run, tell: Tell) -> None:
    """Squared loss, whose third derivative is zero; at training inputs, averaged over networks."""
    exact = dataclasses.replace(run.shared, precision="float64")  # differences of second derivatives
    data, name, runs = _images(plan, run), plan["network"], plan["runs"]
    family = family_of(name, data.shape, outputs=1, images=True, **({"activation": "gelu"} if name == "mlp" else {}))
    given, start = data.to(exact), family.draw(runs, seed=0, run=exact)
    end = fit(start, given, _recipe(plan, "squared"), seed=0, run=exact).networks
    reached = 100 * evaluation(end, given, "train", loss="squared", run=exact).accuracy.cpu().numpy()
    x, y = given.whole("train")
    rows = []
    for member in range(runs):
        few, network = _few(x, member, plan[_OF_CURVATURE]), end.member(member)
        velocity = weight_velocity(network, x, y, loss="squared")
        slope, rate = gradient_velocity(network.read("mean"), x[few], velocity)
        bent = change_of_curvature(network, velocity, x[few], y[few], "squared")
        rows.append((bent, DrawnMatrix(2 * rate[None], slope[None]).dense()))
    key, alike = "trained_corr_change_of_curvature_delta", plain_corr(*map(torch.stack, zip(*rows, strict=True)))
    tell("squared loss, trained: Corr(change of curvature, Δᵗ)", alike, key=key)
    accuracy = over(reached, within=(0.0, 100.0))
    tell("squared loss: training accuracy", accuracy, "%", key="training_accuracy_percent")
    tell.settings.update({"samples": data.name, "drawn": [key]})
    tell.note(
        "For squared loss the change is 2(ġgᵀ + gġᵀ) plus the model's own curvature, weighted by residuals and their change.",
        "The correlation is of means over the same networks and inputs, as published, with the jackknife's error. From products of "
        "different networks, so few do not tell Δᵗ from noise: a first run gave no number.",
    )
