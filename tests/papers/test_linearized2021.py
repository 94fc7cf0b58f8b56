"""Chapter 4: statements and claims, the recipe of the released code, and spreads over seeds."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from biascope import papers
from biascope.derivatives.linearize import linearize
from biascope.families.network import Network
from biascope.measures.kernel_rotation import KernelRotation
from biascope.papers.linearized2021 import eigenfunctions, kernel_alignment, linear_models, shared, training_sizes
from biascope.results.claim import EFFORTS, Trained
from biascope.results.estimate import Number, over_ratios
from biascope.results.finding import Tell
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

PAPER = papers.find("linearized2021")
CLAIMS = [(figure, claim) for figure in PAPER.figures for claim in figure.claims]


def test_claims_about_trained_networks_ask_whether_they_trained() -> None:
    about_starts = {"B.2 text", "4.5", "theorem 4.1", "theorem 4.2", "equation 4.14"}
    for figure, claim in CLAIMS:
        at_the_start = figure.number in about_starts or claim.statistic.endswith("at_the_start")
        assert bool(claim.trained) is not at_the_start, f"{figure.number}: {claim.statement}"


def test_every_figure_of_the_chapter_lists_the_authors_settings() -> None:
    for figure in PAPER.figures:
        theory = figure.number.startswith(("theorem", "equation"))
        assert bool(figure.published) is not theory
        if not theory:
            assert figure.published["initial weights"] == "flax"


@pytest.mark.parametrize("name", shared.NETWORKS)
def test_networks_are_those_of_the_released_code(name: str) -> None:
    network = shared.builder_of(name, (3, 32, 32))()
    weights = network.get_parameter("head.weight")
    assert not network.get_parameter("head.bias").any()
    assert weights.shape[0] == 1
    assert weights.var().item() * weights.shape[1] == pytest.approx(1, abs=6 / math.sqrt(weights.numel()))
    kinds = {type(layer).__name__ for layer in network.modules()}
    assert "ReLU" in kinds
    assert "MaxPool2d" not in kinds
    along = shared.builder_of(name, (1, 32, 32), activation=shared.ALONG_DIRECTIONS[name])()
    assert "GELU" in {type(layer).__name__ for layer in along.modules()}


def test_the_recipe_is_that_of_the_released_code() -> None:
    expected = Recipe(
        "sgd", 0.05, momentum=0.9, epochs=100, batch=128, schedule="linear", loss="logistic", threshold=0.01
    )
    assert expected == shared.RECIPE
    assert eigenfunctions.figure_42.plan.row("paper").settings.items() >= shared.PUBLISHED.items()


@pytest.mark.parametrize("number", ["4.2", "4.9", "B.2", "B.3", "B.4", "table 4.1"])
def test_paper_effort_has_the_published_sizes_for_small_networks(number: str) -> None:
    figure = papers.figure("linearized2021", number)
    small = {what: value for what, value in figure.published.items() if not what.endswith("ResNet-18")}
    assert figure.plan.row("paper").settings.items() >= small.items()


@pytest.mark.parametrize("effort", EFFORTS)
def test_columns_of_plans_that_follow_from_others_do(effort: str) -> None:
    for number in ("4.6", "4.4.1 text"):
        row = papers.figure("linearized2021", number).plan.row(effort)
        assert row["largest size"] == {name: max(sizes) for name, sizes in row["sizes"].items()}
    for number in ("4.2", "B.1", "B.2", "B.2 settings", "B.3", "B.4"):
        row = papers.figure("linearized2021", number).plan.row(effort)
        assert row["eigenfunctions"] == {name: max(indices) for name, indices in row["learned"].items()}


def rotated(target: int, after: list[list[float]]) -> KernelRotation:
    """Eigenfunctions of alignment 3, 2 and 1, which training changes to others, seed by seed."""
    seeds = len(after)
    alignment = np.stack([[[3.0, 2.0, 1.0], each] for each in after])
    rest = np.ones((seeds, 2))
    return KernelRotation(
        target, 1, np.array([0, 9]), alignment, alignment[:, :, target - 1], rest, rest, rest, rest, rest, rest
    )


def test_each_seed_counts_once_by_its_mean_over_targets() -> None:
    turned = [
        rotated(1, [[24.0, 4.0, 2.0], [48.0, 4.0, 2.0]]),  # the target grew by 8 and 16, the others by 2
        rotated(3, [[6.0, 4.0, 4.0], [3.0, 4.0, 4.0]]),  # by 4, the others by 2; in the second seed one not at all
    ]
    tell = Tell()
    kernel_alignment.tell_rotations(tell.about("LeNet"), (1, 3), turned)
    numbers = tell.numbers
    largest = numbers["lenet_growth_of_the_target_over_the_largest_other"]
    seeds = [math.sqrt(4 * 2), math.sqrt(8 * 2)]
    expected = over_ratios(seeds)
    assert (largest.low, largest.high) == pytest.approx((expected.low, expected.high))
    assert numbers["lenet_smallest_growth_of_the_others"].value == pytest.approx(math.sqrt(2 * 1))
    assert numbers["lenet_share_of_the_others_that_grew"].value == pytest.approx((1 + 0.75) / 2)
    last = numbers["lenet_growth_of_the_last_over_the_first_target"]
    assert last.value == pytest.approx(math.sqrt(4 / 8 * 4 / 16))
    assert math.isnan(numbers["lenet_training_accuracy"].standard_error)


def blobs(seed: int = 0) -> Arrays:
    """Images whose class is their brightness: learned within few iterations."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(96, 1, 4, 4, generator=generator), torch.arange(96) % 2
    x = x + 2 * (2 * y[:, None, None, None] - 1)
    return Arrays({"train": (x[:64], y[:64]), "test": (x[64:], y[64:])}, name="blobs")


def test_a_linear_model_with_the_first_kernel_starts_at_zero_and_learns(tmp_path: Path) -> None:
    samples, run = blobs(), Run(device="cpu", folder=tmp_path / "figure", progress=False)
    recipe = dataclasses.replace(shared.RECIPE, epochs=4, batch=16)
    family = shared.start_of("mlp", (1, 4, 4))
    network, kept = linear_models._followed(family, samples, recipe, (0, 4), run)
    start = family.draw(1, seed=0, run=run.shared).member(0)
    assert all(torch.equal(kept[0][name], tensor) for name, tensor in start.params.items())
    assert not all(torch.equal(kept[4][name], tensor) for name, tensor in start.params.items())
    assert network.accuracy[0] > 0.9
    labels = {split: y[None] for split, (_, y) in samples.splits.items()}
    for params in kept.values():
        found = shared.learned_by_kernel(family, samples, labels, recipe, run, at=params, biased=False)
        assert found.accuracy[0] > 0.9
        assert found.train_accuracy[0] > 0.9
        assert found.curves[0, 0] == pytest.approx(math.log(2), abs=0.05), "it starts at zero"


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_a_linear_model_trains_by_its_kernel_as_by_its_weights(tmp_path: Path, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 1, 16, 16, generator=generator, dtype=torch.float64)
    samples = Arrays(
        {"train": (x[:64], torch.zeros(64).long()), "test": (x[64:], torch.zeros(32).long())}, name="noise"
    )
    run = Run(device="cpu", precision="float64", folder=tmp_path / "figure", progress=False)
    rows = torch.randint(2, (3, 96), generator=generator)
    labels = {"train": rows[:, :64], "test": rows[:, 64:]}
    recipe = dataclasses.replace(shared.RECIPE, epochs=3, batch=24)  # the last batch of an epoch is smaller
    family = shared.start_of(name, samples.shape)
    by_weights = shared.learned(shared.linearised(family), samples, labels, recipe, run)
    by_kernel = shared.learned_by_kernel(family, samples, labels, recipe, run)
    for number in ("accuracy", "train_accuracy", "iterations", "steps"):
        assert np.array_equal(getattr(by_weights, number), getattr(by_kernel, number)), number
    for number in ("curves", "distance"):
        assert getattr(by_kernel, number) == pytest.approx(getattr(by_weights, number), rel=1e-6), number


def test_a_kernel_has_the_batchnorm_of_initialisation_whatever_its_weights(tmp_path: Path) -> None:
    whole, family = blobs(), shared.start_of("resnet18", (1, 4, 4))
    samples = dataclasses.replace(whole, splits={split: (x[:8], y[:8]) for split, (x, y) in whole.splits.items()})
    run = Run(device="cpu", folder=tmp_path / "figure", progress=False)
    start = family.draw(1, seed=0, run=run).member(0)
    moved = {name: tensor + 0.01 for name, tensor in start.params.items()}
    recipe = dataclasses.replace(shared.RECIPE, epochs=1, batch=8)
    labels = {split: y[None] for split, (_, y) in samples.splits.items()}
    found = shared.learned_by_kernel(family, samples, labels, recipe, run, at=moved, biased=False)

    def with_kernel(network: Network) -> Network:
        point = {name: moved[name].expand_as(each) for name, each in network.params.items()}
        return linearize(network, at=point, biased=False)

    line = family.mapped(with_kernel, "line")
    assert found.distance == pytest.approx(shared.learned(line, samples, labels, recipe, run).distance, rel=1e-3)


def test_only_plain_descent_can_be_carried_out_by_a_kernel() -> None:
    recipe = dataclasses.replace(shared.RECIPE, optimiser="adam")
    with pytest.raises(ValueError, match="recipe must be SGD on the logistic loss"):
        shared.learned_by_kernel(shared.start_of("mlp", (1, 4, 4)), blobs(), {}, recipe, Run(device="cpu"))


def told(places: np.ndarray, accuracy: np.ndarray, fitted: np.ndarray, title: str = "LeNet") -> dict[str, Number]:
    """What a figure tells of how targets were learned."""
    tell = Tell()
    shared.tell_accuracies(tell, title, places, accuracy, fitted)
    return tell.numbers


def test_the_best_training_accuracy_is_recorded_and_divergence_is_no_accuracy() -> None:
    nan, places = math.nan, np.array([1.0, 2.0, 3.0])
    numbers = told(places, np.array([0.9, 0.8, nan]), np.array([0.7, 0.95, nan]))
    assert numbers["lenet_best_training_accuracy"].value == pytest.approx(95)
    assert math.isnan(numbers["lenet_mean_accuracy"].value)


def test_figure_412_asks_whether_the_linear_models_of_its_claims_trained() -> None:
    wanted = {"first_kernel_taken_training_accuracy", "second_kernel_taken_training_accuracy"}
    for claim in linear_models.figure_412.claims:
        assert wanted <= {gate.statistic for gate in claim.trained}


def test_blocks_of_test_samples_make_up_the_test_samples() -> None:
    samples = blobs()
    course = training_sizes.TrainingSizes(samples, {}, shared.RECIPE)
    task = course.task("size 16", [0], 0, Run(device="cpu"))
    assert task.sizes["train"] == 16
    assert sum(task.sizes[block] for block in course.blocks) == task.sizes["test"] == 32
    assert set(course.splits) == set(task.sizes)


@pytest.mark.parametrize("length", [{"steps": 12}, {"epochs": 3}])
def test_figure_46_trains_linearisations_by_kernel_as_by_weights(tmp_path: Path, length: dict[str, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(112, 1, 4, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (112,), generator=generator)
    samples = Arrays({"train": (x[:64], y[:64]), "test": (x[64:], y[64:])}, name="noise")
    run = Run(device="cpu", precision="float64", folder=tmp_path / "figure", progress=False)
    course = training_sizes.TrainingSizes(samples, {}, dataclasses.replace(shared.RECIPE, **length, batch=8))
    family = shared.any_start("mlp", samples.shape)
    by_weights = training_sizes._by_weights(shared.linearised(family), course, (16, 64), 2, run)
    by_kernel = training_sizes._by_kernel("mlp", family, course, (16, 64), 2, run)
    assert by_weights.blocks.shape == (2, 2, 48), "size, repeat, block"
    for field in dataclasses.fields(by_weights):
        expected = getattr(by_weights, field.name)
        assert getattr(by_kernel, field.name) == pytest.approx(expected, rel=1e-6, abs=1e-12), field.name
    assert by_weights.distance[0, 0] != by_weights.distance[0, 1], "repeats have their own weights"


def test_figures_with_resnet18_can_be_run_for_it_alone() -> None:
    for number in ("4.2", "4.4", "4.5", "4.6", "table 4.1"):
        assert "resnet18" in papers.figure("linearized2021", number).plan.networks("paper"), number


def test_table_41_is_read_as_norms_and_only_networks_that_had_not_run_count() -> None:
    claims = {claim.statistic: claim for figure, claim in CLAIMS if figure.number == "table 4.1"}
    for name in ("mlp", "lenet", "resnet_18"):
        for when in ("start", "end"):
            norm, energy = (claims[f"{name}_{what}_at_the_{when}"] for what in ("norm", "energy"))
            assert (norm.kind, energy.kind) == ("paper", "ours")
            assert norm.post_hoc is (name != "resnet_18")
            assert not energy.post_hoc
            assert norm.published == energy.published
    (statement,) = [each for each in PAPER.statements if each.key == "energy_at_start_and_end"]
    assert not statement.ruled_out


@pytest.mark.parametrize("effort", EFFORTS)
def test_figure_46_has_the_iterations_and_epochs_of_its_plan(effort: str) -> None:
    row = training_sizes.figure_46.plan.row(effort)
    for name in row.networks:
        recipe, sizes, iterations = training_sizes.recipe_for(row, name), row["sizes"][name], row["iterations"][name]
        lengths = [recipe.total_steps(size) for size in sizes]
        assert lengths == ([iterations] * len(sizes) if isinstance(iterations, int) else list(iterations))
        assert row["epochs"][name] == round(lengths[-1] / recipe.steps_per_epoch(sizes[-1]))


def test_resnet18_has_equal_epochs_in_figure_46_and_the_others_equal_iterations() -> None:
    row = training_sizes.figure_46.plan.row("paper")
    assert row["iterations"] == {"mlp": 8000, "lenet": 8000, "resnet18": (400, 6300)}
    assert row["epochs"] == {"mlp": 20, "lenet": 20, "resnet18": 100}
    tell = Tell()
    training_sizes._tell_lengths(row, tell)
    equal_iterations, equal_epochs = tell.notes
    assert "MLP, LeNet" in equal_iterations
    assert "ResNet-18" in equal_epochs
    assert training_sizes.figure_46.published["epochs: ResNet-18"] == 200


def test_the_authors_trained_resnet18_on_eigenfunctions_with_another_activation_than_ours() -> None:
    for number in ("4.2", "4.3", "4.11", "4.12"):
        figure = papers.figure("linearized2021", number)
        assert figure.published["activation: ResNet-18"] == "gelu (kernel: relu)", number
        assert figure.plan.row("paper").settings["activation: ResNet-18"] == "relu", number
    assert papers.figure("linearized2021", "4.6").published["activation: ResNet-18"] == "relu"
    assert papers.figure("linearized2021", "4.2").published["activation: LeNet"] == "relu"


@pytest.mark.parametrize("words", ["GELU", "as in figure B.2"])
def test_a_variant_changes_the_network_and_the_kernel_together(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    x, y = torch.zeros(4, 1, 28, 28), torch.zeros(4).long()
    samples = Arrays({"train": (x, y), "test": (x, y)}, name="zeros")
    families: list[Any] = []

    def kernel(family: Any, *_: Any) -> shared.Eigenfunctions:
        families.append(family)
        return shared.Eigenfunctions(torch.ones(16, 8), 4)

    def train(family: Any, *_: Any) -> None:
        families.append(family)

    monkeypatch.setattr(eigenfunctions, "eigenfunctions", kernel)
    monkeypatch.setattr(eigenfunctions, "learned", train)
    monkeypatch.setattr(eigenfunctions, "learned_by_kernel", train)
    built: list[Any] = []
    build = shared.builder("lenet")
    monkeypatch.setattr(shared, "builder", lambda _: lambda **to: built.append(to) or build(**to))
    plan = eigenfunctions.figure_b2_settings.plan.row("smoke")
    eigenfunctions.tried(eigenfunctions.VARIANTS[words], samples, plan, Run(device="cpu"))
    assert len({id(family) for family in families}) == 1, "kernel, network and linearisation are those of one family"
    assert len(families) == 3
    assert {each["activation"] for each in built} == {"gelu" if words == "GELU" else "relu"}


def test_every_variant_records_both_leads_and_the_least_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    places = np.array(eigenfunctions._TRIED, float)
    empty = np.zeros(len(places))

    def tried(changes: dict[str, Any], *_: Any) -> tuple[shared.Learned, shared.Learned]:
        lead = np.where(places <= 500, -0.06, 0.1) if "activation" in changes else np.full(len(places), 0.2)
        models = (np.full(len(places), 0.7), 0.7 + lead + np.linspace(0, 0.001, len(places)))
        fitted = np.linspace(0.8, 1.0, len(places))
        network, line = (shared.Learned(each, fitted, empty, empty, empty, empty, empty) for each in models)
        return network, line

    monkeypatch.setattr(eigenfunctions, "tried", tried)
    monkeypatch.setattr(eigenfunctions, "planned_images", lambda *_: blobs())
    figure = papers.figure("linearized2021", "B.2 settings")
    (claim,) = figure.claims
    numbers = figure("paper", Run(device="cpu")).statistics
    assert numbers["lead_of_the_linearisation_before_500_gelu"].value == pytest.approx(-6, abs=0.1)
    assert numbers["lead_of_the_linearisation_after_500_gelu"].value == pytest.approx(10, abs=0.1)
    assert numbers[claim.statistic].value == numbers["lead_of_the_linearisation_before_500_gelu"].value
    assert claim.judge(numbers, "paper").verdict == "not reproduced"
    for title in ("lenet", "linearised_lenet"):
        assert numbers[f"{title}_median_training_accuracy_gelu"].value == pytest.approx(90)
        assert numbers[f"{title}_best_training_accuracy_gelu"].value == pytest.approx(100)


def test_few_points_have_students_interval() -> None:
    values = np.array([100.0, 60.0, 50.0, 49.0, 50.0])
    few, many = shared.mean_of(values), shared.mean_of(np.tile(values, 3))
    reach = 2.776 * values.std(ddof=1) / math.sqrt(5)
    assert (few.low, few.high) == pytest.approx((values.mean() - reach, values.mean() + reach), rel=1e-3)
    assert many.high - many.low < few.high - few.low
    mean = told(np.arange(5.0), values / 100, values / 100)["lenet_mean_accuracy"]
    assert (mean.low, mean.high) == pytest.approx((few.low, min(few.high, 100)))


def test_claims_on_resnet18_ask_for_the_median_training_accuracy() -> None:
    for figure, claim in CLAIMS:
        if figure.number in ("4.2", "4.3", "4.4"):
            wanted = "median" if "resnet_18" in claim.statistic else "best"
            assert all(f"_{wanted}_training_accuracy" in gate.statistic for gate in claim.trained), claim.statement
    fitted = np.array([1.0, 0.55, 0.5])  # the first target alone was learned
    numbers = told(np.arange(3.0), fitted, fitted, "ResNet-18")
    passed = {
        which: Trained(f"resnet_18_{which}_training_accuracy", chance=50.0, best=100.0).passes(
            numbers[f"resnet_18_{which}_training_accuracy"]
        )
        for which in ("best", "median")
    }
    assert passed == {"best": True, "median": False}


def test_an_ambiguous_statement_is_not_called_wrong() -> None:
    (statement,) = [each for each in PAPER.statements if each.key == "random_inner_product"]
    assert not statement.ruled_out
    assert "signed" in statement.undecided


def test_a_single_batch_does_not_decide_when_a_loss_is_reached(tmp_path: Path) -> None:
    run = Run(device="cpu", folder=tmp_path / "figure", progress=False)
    recipe = dataclasses.replace(shared.RECIPE, epochs=60, batch=16, threshold=0.05)
    samples, family = blobs(), shared.start_of("mlp", (1, 4, 4))
    labels = {split: y[None] for split, (_, y) in samples.splits.items()}
    network = shared.learned(family, samples, labels, recipe, run)
    line = shared.learned_by_kernel(family, samples, labels, recipe, run)
    for found in (network, line):
        place = int(np.flatnonzero(found.steps == found.iterations[0])[0])
        assert 0 < place < len(found.steps) - 1
        assert found.curves[0, place] < 0.05
        assert (found.curves[0, :place] >= 0.05).all()
    spike = np.array([[0.5, math.nan, 0.5]])  # diverged
    assert shared.iterations_to(0.01, spike, np.array([2.0, 4.0, 6.0])).tolist() == [6.0]
