"""Figures 1 and 5: circles in the plane of two eigenvectors of the average geometry, alone and beside a linear component."""

# m networks · g points of a grid · p places in the order of eigenvectors · D input size

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.families.network import Network
from biascope.papers.geometry2025.learning import (
    ONE_EACH,
    RECIPE,
    Along,
    accuracies,
    basis_of,
    difference,
    drawn_along,
    places_of,
)
from biascope.papers.geometry2025.pictures import Boundary, boundaries_figure
from biascope.papers.geometry2025.shared import (
    PROBES,
    PUBLISHED_LOOP,
    TITLES,
    by_setting,
    error_of_test_samples,
    grey,
    inputs_of,
    least,
    loop_of,
    planned,
    precisions,
    released,
    released_family,
    run_of,
    titles,
)
from biascope.results.estimate import Estimate, over, proportion
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.directions import circles, two_components
from biascope.tasks.task import Task
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPREAD = 1e-4  # σ_P of the authors' script for circles
_NARROW, _WIDE = (1.5, 0.25), (3.0, 0.25)
GENERALISES = 90.0  # percent of test samples

_SMALL = {"training samples": 128, "test samples": 64, "side of the images": 16}
_PUBLISHED_SIZES = {"training samples": 10_000, "test samples": 2000}
_FULL = {**_PUBLISHED_SIZES, "side of the images": 32}


def _published(*names: str) -> dict[str, Any]:
    """What the authors' code says of circles."""
    return {
        **_PUBLISHED_SIZES,
        **PUBLISHED_LOOP,
        "noise": 1.0,
        "epochs": {name: 50 if name == "lenet" else 20 for name in names},
        "radii": {name: _WIDE if name == "resnet18" else _NARROW for name in names},
        "eigenvectors of the circles": {name: (5, 6) if name == "resnet18" else (15, 16) for name in names},
    }


_CIRCLES = ("MLP", "LeNet", "MLP wide", "LeNet wide", "LeNet in random planes", "LeNet in late planes")
_OF_RESNET = ("ResNet-18 wide", "ResNet-18 in random planes", "ResNet-18 in late planes", "ResNet-18 with GELU")
CASES = {snake(title): title for title in (*_CIRCLES, *_OF_RESNET)}  # of figure 1, which can be run one by one


def _network(case: str) -> str:
    return "resnet18" if case.startswith("resnet_18") else case.partition("_")[0]


def _row(cases: Mapping[str, Sequence[Any]], sizes: Mapping[str, int], grid: int) -> dict[str, Any]:
    """A row of figure 1.

    Args:
        cases: Draws of G, epochs, runs, radii, and the places of u₁ and of a late u₂. With a list of late places, each run has another
            one. Without places, each run has a plane of its own, chosen at random.
        sizes: Of the data.
        grid: Points along each direction of a plane.
    """
    settings = by_setting(("draws of G", "epochs", "runs", "radii", "places"), cases)
    places = {case: pair for case, pair in settings.pop("places").items() if pair}
    return {
        **loop_of(RECIPE),
        **sizes,
        **settings,
        "eigenvectors of the circles": {
            case: (first, "a late one" if isinstance(late, list) else first + 1)
            for case, (first, late) in places.items()
        },
        "late u₂": {case: late for case, (_, late) in places.items()},
        "activation": {case: "GELU in all layers" for case in cases if case == "resnet_18_with_gelu"},
        "inputs per draw of G": PROBES,
        "grid": grid,
        "noise": 1.0,
        "seed": 0,
    }


# Late eigenvectors by a rule: every twentieth of the spectrum from 55 to 90 %. The last ones are nearly single pixels at the border.
LATE = [1024 * percent // 100 for percent in range(55, 95, 5)]
CIRCLES = Plan(
    smoke=_row(
        {
            "lenet": (8, 1, 2, _NARROW, (15, 255)),
            "lenet_in_random_planes": (8, 1, 2, _NARROW, ()),
            "lenet_in_late_planes": (8, 1, 2, _NARROW, (15, [153, 230])),
        },
        _SMALL,
        grid=11,
    ),
    laptop=_row(
        {"mlp": (2000, 20, 3, _NARROW, (15, 1023)), "mlp_wide": (2000, 20, 3, _WIDE, (15, 1023))}, _FULL, grid=61
    ),
    paper=_row(
        {
            "mlp": (10_000, 20, 5, _NARROW, (15, 1023)),
            "lenet": (10_000, 50, 5, _NARROW, (15, 1023)),
            "mlp_wide": (10_000, 20, 5, _WIDE, (15, 1023)),
            "lenet_wide": (10_000, 50, 5, _WIDE, (15, 1023)),
            "resnet_18_wide": (4000, 20, 3, _WIDE, (5, 1023)),
            # With eight planes, one on which it generalises does not leave the question open.
            "resnet_18_in_random_planes": (4000, 20, 8, _WIDE, ()),
            # One training for each u₂: which eigenvector it is may matter more than the weights.
            "resnet_18_in_late_planes": (4000, 20, len(LATE), _WIDE, (5, LATE)),
            # The scripts ask for GELU, but their blocks have ReLU. With GELU in all layers, G is far more periodic: see figure 9.
            "resnet_18_with_gelu": (4000, 20, 3, _WIDE, (5, 1023)),
        },
        _FULL,
        grid=61,
    ),
    published={"networks": (), **_published("mlp", "resnet18"), **released(("mlp", "resnet18"), "GELU", SPREAD)},
    # ResNet-18's circles in a plane of eigenvectors are the wide ones, as in the authors' code.
    titles={**TITLES, **CASES, "resnet_18_wide": "ResNet-18"},
    by="epochs",
)


def _planes(case: str, plan: Row, basis: Tensor) -> Tensor:
    """Two orthonormal rows for each network."""
    runs, late = plan["runs"][case], plan["late u₂"].get(case)
    if late is None:
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(runs, basis.shape[1], 2, generator=generator, dtype=torch.float64)
        random: Tensor = torch.linalg.qr(drawn).Q.mT
        return random.float().contiguous()
    first, second = plan["eigenvectors of the circles"][case]
    places = late if isinstance(late, list) else [second] * runs + [late] * runs
    return torch.stack([basis[[first, place]] for place in places])


def _on_circles(case: str, plan: Row, run: Run, tell: Tell) -> Outcome:
    """Networks trained on circles in planes, and their outputs in these planes."""
    name, shape, radii, runs = _network(case), grey(plan), plan["radii"][case], plan["runs"][case]
    network: dict[str, Any] = {"blocks": "gelu"} if case in plan["activation"] else {}
    basis = basis_of(name, plan["draws of G"][case], run, shape=shape, scale=SPREAD, **network)
    family = released_family(name, shape, "gelu", **network)
    recipe = dataclasses.replace(RECIPE, epochs=plan["epochs"][case])
    chosen, sizes = run_of(family, run, "bfloat16"), {"train": plan["training samples"], "test": plan["test samples"]}
    if chosen.precision != run.precision:
        tell.settings[f"precision: {CASES[case]}"] = chosen.precision
    grid = torch.linspace(-1.3 * max(radii), 1.3 * max(radii), plan["grid"])
    planes = _planes(case, plan, basis)
    # The same initial weights for all planes of eigenvectors, so that repeats are pairs.
    members = [*range(runs)] * (len(planes) // runs)

    def work(key: str) -> Outcome:
        task = circles(planes, shape, radii=radii, seed=0, run=chosen, **sizes)
        start = family.draws(seed=0, run=dataclasses.replace(chosen, precision="float32")).pick(members)
        networks = fit(start, task, recipe, seed=0, run=chosen).networks
        accuracy = {split: evaluation(networks, task, split, run=chosen).accuracy for split in ("test", "train")}
        samples = {"samples": task.coordinates["test"], "labels": task.base.splits["test"][1]}
        values = torch.stack([_on_grid(networks.member(i), planes[i], grid, shape) for i in range(len(members))])
        return {**accuracy, **{key: each[:400].cpu() for key, each in samples.items()}, "values": values, "grid": grid}

    kept = dataclasses.replace(run.shared, precision=chosen.precision)
    parts = {"family": family, "planes": planes, "grid": grid, "radii": radii, "recipe": recipe, **sizes}
    trials = Trials("circles", kept, code=(work, _on_grid), at=shape, **parts)
    return {**next(trials.outcomes(["all planes"], work)), "planes": planes}


def _on_grid(network: Network, plane: Tensor, grid: Tensor, shape: Sequence[int]) -> Tensor:
    """``f(a·u₁ + b·u₂)``, class 1 minus class 0, ``(g, g)`` with b along the rows."""
    b, a = torch.meshgrid(grid, grid, indexing="ij")
    some = next(iter(network.params.values()))
    x = (a.reshape(-1, 1) * plane[0] + b.reshape(-1, 1) * plane[1]).reshape(-1, *shape).to(some)
    with torch.no_grad():
        outputs = torch.cat([network(x[start : start + 512]) for start in range(0, len(x), 512)])
    return (outputs[:, 1] - outputs[:, 0]).reshape(a.shape).cpu()


def _drawn_circles(finding: Finding, dark: bool) -> Figure:
    """Decision boundaries; where only planes without any were run, their accuracies."""
    arrays, shown = finding.arrays, {}
    if not finding.arrays_of("values"):
        curves = finding.curves_of("plane")
        for name, (places, values) in list(curves.items()):
            if f"late u₂: {name}" in finding.settings:  # the bound of the claims
                bound = _without_the_second_axis(finding.settings[f"radii: {name}"])
                curves["best that ignores u₂"] = (places, np.full_like(values, bound))
        return lines_figure(curves, x="u₂, or number of the plane", y="test accuracy, %", dark=dark)
    for name, values in finding.arrays_of("values").items():
        network = name.partition(",")[0]
        grid, samples, labels = (arrays[f"{part}: {network}"] for part in ("grid", "samples", "labels"))
        note = f"test accuracy {arrays[f'accuracy: {name}'].mean():.0f} %"
        shown[name] = Boundary(values, grid, samples, labels, note)
    return boundaries_figure(shown, dark=dark)


def _without_the_second_axis(radii: tuple[float, float]) -> float:
    """The best accuracy, in percent, of a classifier that does not see u₂.

    It can only compare ``|xᵀu₁|`` with the small radius r. Points of the large circle R beyond it are separated, and so are all
    of the small circle: ``1 − arcsin(r/R)/π`` of both classes together.

    Example:
        >>> round(_without_the_second_axis((3.0, 0.25)), 1)
        97.3
    """
    small, large = sorted(radii)
    return 100 * (1 - math.asin(small / large) / math.pi)


def _tell_accuracies(of: Tell, test: np.ndarray, train: np.ndarray) -> None:
    of("accuracy", over(test, within=(0.0, 100.0)), "%")
    of("train accuracy", over(train, within=(0.0, 100.0)), "%")


def _tell_late(of: Tell, case: str, plan: Row, planes: Tensor, test: np.ndarray) -> None:
    """Accuracies with one late u₂ each, and over how many inputs each is spread."""
    sees = proportion(float((test > _without_the_second_axis(plan["radii"][case])).mean()), len(test))
    of("late eigenvectors that it sees", sees.map_linear(100.0), "%", key=f"{case}_share_that_sees_u2")
    for place, accuracy, plane in zip(plan["late u₂"][case], test, planes, strict=True):
        of(f"accuracy, u₂ = {place}", Estimate(float(accuracy)), "%")
        of(f"inputs that u₂ = {place} is spread over", inputs_of(plane[1]))


def _tell_two_planes(of: Tell, case: str, plan: Row, found: Outcome, test: np.ndarray, train: np.ndarray) -> None:
    """Accuracies and boundaries in the plane of two early eigenvectors, and in that of an early and a late one."""
    runs, title, both = plan["runs"][case], CASES[case], []
    places = {"early": plan["eigenvectors of the circles"][case][1], "late": plan["late u₂"][case]}
    for index, (word, place) in enumerate(places.items()):
        part = slice(index * runs, (index + 1) * runs)
        # All repeats have the same test samples.
        shared = error_of_test_samples(float(test[part].mean()), plan["test samples"])
        both.append(over(test[part], shared=shared, within=(0.0, 100.0)))
        of(f"accuracy, u₂ {word}", both[-1], "%")
        of(f"train accuracy, u₂ {word}", over(train[part], within=(0.0, 100.0)), "%")
        of(f"inputs that u₂ {word} is spread over", inputs_of(found["planes"][part.start, 1]))
        of.array(f"{title}, u₂ = {place}", found["values"][part].float().numpy(), kind="values")
        of.array(f"{title}, u₂ = {place}", test[part], kind="accuracy")
    for kind in ("grid", "samples", "labels"):
        of.array(title, found[kind].numpy(), kind=kind)
    of("lower accuracy of the two planes", least(both), "%")
    # Repeats of both planes start from the same weights.
    of("accuracy, u₂ early minus late", difference(test[:runs], test[runs:], plan["test samples"]), "points")


@figure(
    "1",
    title="Two concentric circles in a plane that is aligned with the average geometry, and in one that is not",
    plan=CIRCLES,
    show=_drawn_circles,
)
def figure_1(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy and decision boundaries for u₂ among the first and among the last eigenvectors of G."""
    if plan.networks == CIRCLES.networks(plan.effort):  # a run of some planes is added to one that lists all networks
        tell.settings["networks"] = titles(map(_network, plan.networks))
    for case in plan.networks:
        title, name, found = CASES[case], _network(case), _on_circles(case, plan, run, tell)
        tell.settings[f"activation: {TITLES[name]}"] = "ReLU" if name == "resnet18" else "GELU"
        tell.settings[f"draws of G: {TITLES[name]}"] = plan["draws of G"][case]
        tell.settings[f"spread of the inputs for G: {TITLES[name]}"] = SPREAD
        of = tell.about(title)
        test, train = (100 * found[split].double().numpy() for split in ("test", "train"))
        if case not in plan["late u₂"]:
            share = proportion(float((test >= GENERALISES).mean()), len(test)).map_linear(100.0)
            of("planes on which it generalises", share, "%", key=f"{case}_share_that_generalises")
            _tell_accuracies(of, test, train)
            tell.array(title, np.stack([np.arange(1.0, len(test) + 1), test]), kind="plane")
        elif isinstance(plan["late u₂"][case], list):
            _tell_accuracies(of, test, train)
            _tell_late(of, case, plan, found["planes"], test)
            tell.array(title, np.array([plan["late u₂"][case], test]), kind="plane")
        else:
            _tell_two_planes(of, case, plan, found, test, train)
    tell.note(
        "The paper prints no radii for this figure; the authors' code has, in figure 5, circles of radii 1.5 and 0.25, and for "
        "ResNet-18 of 3 and 0.25 ('wide'), in the planes used here.",
        "MLP and LeNet on wide circles were added after the MLP had been seen to memorise the others without generalising.",
        "u₁ alone, which is always early, tells all but the part of the outer circle above and below the inner one: a network that "
        "ignores u₂ can still be right on 97 % of wide circles and on 95 % of narrow ones.",
        "The paper does not say which u₂ is not aligned; here it is the last eigenvector. That of ResNet-18 is nearly one pixel, a "
        "corner, with 0.3 % of the geometry of the first eigenvector (1,600 draws on a CPU). In late planes, u₂ is one of the "
        "eigenvectors at 55, 60, …, 90 % of the spectrum, chosen before they were run.",
        "GELU, ResNet-18 with ReLU, as in the authors' code; the text has ReLU for the MLP. LeNet is ours. Repeats differ by "
        "initial weights.",
    )


@dataclass(frozen=True)
class _Simplicity(Along):
    """A linear component along a member's direction beside circles in a plane that all share."""

    plane: tuple[int, int] = (15, 16)
    radii: tuple[float, float] = (1.5, 0.25)

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """One member per direction of the linear component."""
        frames = torch.stack([self.vectors[[member, *self.plane]] for member in members])
        return two_components(
            frames, self.shape, epsilon=0.5, radii=self.radii, train=self.train, test=self.test, seed=seed, run=run
        )

    @property
    def splits(self) -> tuple[str, ...]:
        """Both components, and each alone."""
        return ("test", "train", "test, linear only", "test, circles only")


_FOUR = ("mlp", "lenet", "resnet18", "vit")
COMPONENTS = planned(
    ("places of u₁", "epochs", "eigenvectors of the circles", "radii", "runs", "draws of G"),
    "GELU",
    SPREAD,
    smoke={"lenet": ([0, 255], 1, (15, 16), _NARROW, 1, 8)},
    laptop={
        "mlp": ([0, 100, 1023], 20, (15, 16), _NARROW, 3, 2000),
        "lenet": ([0, 1023], 30, (15, 16), _NARROW, 3, 4000),
    },
    paper={
        "mlp": (places_of(8), 20, (15, 16), _NARROW, 3, 10_000),
        # Along the last direction some trainings do not fit their samples, so three do not show what the others rely on.
        "lenet": ([place for place in places_of(12) if place not in (15, 16)], 50, (15, 16), _NARROW, 10, 10_000),
        # Its last eigenvector is nearly one pixel: the late one is at 75 % of the spectrum, the middle of those of figure 1.
        "resnet18": ([0, 768], 20, (5, 6), _WIDE, 3, 4000),
        "vit": ([0, 1023], 20, (15, 16), _NARROW, 3, 4000),
    },
    published={
        **_published(*_FOUR),
        "runs": dict.fromkeys(_FOUR, 5),
        "places of u₁": dict.fromkeys(_FOUR, "every 10th"),
    },
    both={"noise": 1.0, "distance of the classes along u₁": 1.0},
    ours={**loop_of(RECIPE), **_FULL},
    small=_SMALL,
    first=("epochs", "radii", "eigenvectors of the circles"),
)


def _over(accuracy: np.ndarray, tests: int) -> Estimate:
    """Over repeats, each with so many test samples of its own."""
    return over(accuracy, samples=error_of_test_samples(float(accuracy.mean()), tests), within=(0.0, 100.0))


@figure(
    "5",
    title="Accuracy on the linear and on the circular component alone, against the index of the linear direction u₁",
    plan=COMPONENTS,
    show=drawn_along,
)
def figure_5(plan: Row, run: Run, tell: Tell) -> None:
    """Networks trained on both components, tested with either taken away."""
    shape = grey(plan)
    tell.settings["networks"] = titles(plan.networks)
    for name in plan.networks:
        of, places, family = tell.about(TITLES[name]), plan["places of u₁"][name], released_family(name, shape, "gelu")
        course = _Simplicity(
            basis_of(name, plan["draws of G"][name], run, shape=shape, scale=SPREAD),
            train=plan["training samples"],
            test=plan["test samples"],
            epochs=plan["epochs"][name],
            shape=shape,
            plane=plan["eigenvectors of the circles"][name],
            radii=plan["radii"][name],
        )
        tell.settings.update(precisions([family], run, "bfloat16"))
        repeats = plan["runs"][name]
        found = accuracies(family, course, places, run, labellings=("both",), repeats=repeats)
        both, fitted, linear, on_circles = (found["both", RECIPE.rate, split] for split in course.splits)
        for part, accuracy in (("linear", linear), ("circles", on_circles)):
            tell.array(f"{TITLES[name]}, {part} alone", np.stack([np.array(places, float), accuracy.mean(0)]))
            for word, place in (("first", 0), ("last", -1)):
                of(f"{part} alone, {word} u₁", _over(accuracy[:, place], course.test), "%")
        for word, place in (("first", 0), ("last", -1)):
            of(f"training accuracy, {word} u₁", over(fitted[:, place], within=(0.0, 100.0)), "%")
        last = difference(on_circles[:, -1], linear[:, -1], own=course.test)
        of("circles minus linear, last u₁", last, "points")
        for words, accuracy in (("the linear component alone", linear), ("both", both)):
            lowest = _over(accuracy[:, accuracy.mean(0).argmin()], course.test)
            of(f"lowest accuracy on {words}", lowest.open_below(), "%")  # over the places that were run
    tell.note(
        ONE_EACH,
        "The text prints neither ε nor radii; those of the authors' code, where ±ε/2 with ε = 1 is used.",
    )
