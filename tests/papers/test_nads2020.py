"""The 2020 paper: statements and claims, samples of frequencies, errors of seeds and samples, printed formulas."""

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from biascope import papers
from biascope.derivatives.spectrum import subspace_similarity
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.directional_bias import PROBLEM, directional_bias
from biascope.papers import verdicts
from biascope.papers.nads2020 import (
    accuracies,
    along_directions,
    directions,
    energy,
    estimators,
    frequencies,
    image_courses,
    images,
    networks,
    theory,
    training,
)
from biascope.papers.verdicts import RESULTS
from biascope.results.claim import EFFORTS
from biascope.results.estimate import Estimate, bootstrapped
from biascope.results.finding import Finding
from biascope.results.plan import Plan
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

PAPER = papers.find("nads2020")
CLAIMS = [(figure, claim) for figure in PAPER.figures for claim in figure.claims]
#: Figures about networks at initialisation, or about formulas.
UNTRAINED = {"4", "5", "S17-S19", "D.1", "D.3", "Equations", "E", "E channels"}


def test_claims_about_trained_networks_ask_whether_they_trained() -> None:
    for figure, claim in CLAIMS:
        if figure.number in UNTRAINED:
            assert not claim.trained
        elif "train_accuracy" not in claim.statistic and "training_accuracy" not in claim.statistic:
            assert claim.trained or claim.statistic == "gaps", f"{figure.number}: {claim.statement}"


def test_every_figure_but_the_formulas_lists_the_authors_settings() -> None:
    for figure in PAPER.figures:
        assert bool(figure.published) is (figure.number != "Equations")


@pytest.mark.parametrize("sample", [(72, 2), (24, 2), (24, 1)])
def test_a_sample_of_frequencies_has_every_kind_in_proportion(sample: tuple[int, int]) -> None:
    count, stride = sample
    basis = bases.fourier_sample(networks.SHAPE, count=count, stride=stride, seed=0)
    whole = bases.fourier_half(networks.SHAPE, "Re", stride)

    def kinds(labels: Any) -> Counter[tuple[int, ...]]:
        return Counter(tuple(bases.two_adic_class(int(part)) for part in label[-2:]) for label in labels)

    assert len(basis) == len(set(basis.places)) == count
    every, found = kinds(whole.labels), kinds(basis.labels)
    assert found.keys() == every.keys(), "no kind is left out"
    for kind, size in every.items():
        assert found[kind] == pytest.approx(size * count / len(whole), abs=1)


def test_samples_of_one_seed_are_nested_and_those_of_two_differ() -> None:
    small, large = (set(frequencies.frequencies(count).places) for count in (24, 72))
    assert small < large
    other = bases.fourier_sample(networks.SHAPE, count=24, stride=2, seed=1)
    assert set(other.places) != small
    with pytest.raises(ValueError, match="count must be from 1 to 130"):
        bases.fourier_sample(networks.SHAPE, count=131, stride=2, seed=0)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("plan", [frequencies.MAPS, frequencies.SPEED, frequencies.UNPOOLED, frequencies.NOISY])
def test_no_network_is_trained_at_every_nth_frequency_beyond_the_even_ones(plan: Plan, effort: str) -> None:
    for name, count in plan.row(effort)["frequencies"].items():
        basis = frequencies.frequencies(count)
        multiples = {sum(int(part) % 4 == 0 for part in label[-2:]) for label in basis.labels}
        assert len(basis) == count
        assert multiples == {0, 1, 2}, name


def test_there_are_as_many_indices_as_planned() -> None:
    for effort in EFFORTS:
        for count in along_directions.OWN.row(effort)["directions"].values():
            places = along_directions.spread_places(count)
            assert len(places) == count
            assert (places[0], places[-1]) == (0, 1023)
            assert places == sorted(set(places))


def test_errors_of_seeds_and_of_the_test_sample_are_joined() -> None:
    seeds = np.array([0.9, 0.92, 0.94])
    found = accuracies.in_percent(seeds, 1000)
    of_seeds, of_sample = 2.0 / math.sqrt(3), 100 * math.sqrt(0.92 * 0.08 / 1000)
    assert found.value == pytest.approx(92.0)
    assert found.standard_error == pytest.approx(math.hypot(of_seeds, of_sample))
    assert math.isnan(accuracies.in_percent(seeds[:1], 1000).low), "one seed has no known spread"
    between = accuracies.points_between(seeds, seeds - 0.1, 1000)
    assert between.value == pytest.approx(10.0)
    assert between.low < 10.0 < between.high


def test_the_lowest_accuracy_has_the_errors_of_directions_and_of_the_test_sample() -> None:
    shares = np.array([0.5, 0.8, 0.9, 1.0])
    found = accuracies.lowest_of(shares, 100)
    assert found.value == 50.0
    assert found.low < 50.0 - 1.9 * 5.0
    assert found.high > 60.0
    assert math.isnan(accuracies.lowest_of(shares[:2], 100).low)


def test_deviation_beyond_the_test_sample_is_negative_for_equal_networks() -> None:
    generator = np.random.default_rng(0)
    equal = np.array([accuracies.deviation_beyond(generator.binomial(1000, 0.7, 50) / 1000, 1000) for _ in range(200)])
    assert abs(np.mean(np.sign(equal) * equal**2)) < 0.1, "the excess variance of equal networks is 0 on average"
    assert accuracies.deviation_beyond(np.linspace(0.5, 1.0, 50), 1000) > 10


@pytest.fixture(scope="module")
def formulas(tmp_path_factory: pytest.TempPathFactory) -> Finding:
    run = Run(device="cpu", folder=tmp_path_factory.mktemp("formulas") / "figure", progress=False)
    return theory.equations("smoke", run)


@pytest.mark.parametrize(
    ("formula", "ratio"),
    [
        ("equation_4", 1 / 4),
        ("equation_5", (0.49 + 1.69) / (4 * 0.49 + 1.69)),
        ("lemma_1", 1 / 4),
        ("example_4", 1 / (1.69 * (1 - 2 / math.pi))),
    ],
)
def test_printed_traces_are_wrong_by_known_factors(formulas: Finding, formula: str, ratio: float) -> None:
    number = formulas.statistics[f"{formula}_simulated_over_printed_trace"]
    assert abs(number.value - ratio) < 4 * number.standard_error


def test_points_are_separable_where_a_hyperplane_exists() -> None:
    generator = np.random.default_rng(0)
    points = generator.standard_normal((60, 3))
    side = points @ np.array([1.0, -2.0, 0.5]) > 0.3
    assert images.separable(points, side)
    inside = np.zeros(60, bool)
    inside[0] = True
    points[0] = points[1:].mean(0)
    assert not images.separable(points, inside)


def test_no_committed_number_of_a_single_run_is_exact() -> None:
    exact_by_nature = {"gaps"}
    for path in (RESULTS / "nads2020").glob("*.json"):
        for record in json.loads(path.read_text(encoding="utf-8"))["efforts"].values():
            exact = {key for key, number in record["statistics"].items() if number["confidence"] == 1.0}
            assert exact <= exact_by_nature, path.name


def test_one_training_decides_nothing_in_favour_of_a_claim() -> None:
    claim = next(
        claim for figure, claim in CLAIMS if figure.number == "8" and claim.statistic == "lenet_loss_by_flipping"
    )
    assert claim.verdict(Estimate(12.0), "paper") == "inconclusive"
    assert claim.verdict(Estimate(-3.0), "paper") == "not reproduced"


def test_figures_with_images_name_their_networks_in_every_number() -> None:
    for number in ("7", "8", "3.13"):
        starts = tuple(f"{networks.keyed(name)}_" for name in networks.TITLES)
        assert all(claim.statistic.startswith(starts) for claim in papers.figure("nads2020", number).claims)
    for plan in (images.CARRIERS, images.REVERSED, images.MIXTURE):
        assert plan.row("paper")["seeds"]["resnet18"] >= 3


@pytest.fixture(scope="module")
def pictures() -> Arrays:
    """Images of ten classes with the mean and the spread of CIFAR-10 in each channel."""
    generator = torch.Generator().manual_seed(0)
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (image_courses.MEAN, image_courses.DEVIATION))
    splits = {
        split: (mean + deviation * torch.randn(400, 3, 32, 32, generator=generator), torch.arange(400) % 10)
        for split in ("train", "test")
    }
    return Arrays(splits)


def courses(pictures: Arrays) -> dict[str, image_courses.Images]:
    return {
        "original": image_courses.Images(pictures, Recipe()),
        "poisoned": image_courses.Poisoned(pictures, Recipe(), torch.eye(1024)),
        "flipped": image_courses.Flipped(pictures, Recipe(), torch.eye(1024)),
        "underspecified": image_courses.Underspecified(pictures, Recipe(), torch.eye(1024)),
    }


CPU = Run(device="cpu", progress=False)


@pytest.mark.parametrize("kind", ["original", "poisoned", "flipped", "underspecified"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_networks_see_standardised_images(pictures: Arrays, kind: str, split: str) -> None:
    task = courses(pictures)[kind].task(f"{kind}, repeat 0", [7], 0, CPU).of_member(0)
    x, _ = task.batch(split, torch.arange(400))
    seen = x[:, :3].flatten(2)
    assert seen.mean((0, 2)).tolist() == pytest.approx([0.0] * 3, abs=0.02)
    assert seen.std((0, 2)).tolist() == pytest.approx([1.0] * 3, abs=0.02)


def test_carriers_and_flips_are_made_in_pixel_space(pictures: Arrays) -> None:
    x, y = pictures.whole("train")
    made = courses(pictures)
    carried, _ = made["poisoned"].task("poisoned, repeat 0", [7], 0, CPU).of_member(0).batch("train", torch.arange(400))
    place = 7 + int(y[1]) // 6  # class 1 has its carrier on pixel 7 of channel 1, with a positive sign
    assert float(carried[1].flatten(1)[1, place]) == pytest.approx(
        (0.05 - image_courses.MEAN[1]) / image_courses.DEVIATION[1]
    )
    turned, _ = made["flipped"].task("flipped, repeat 0", [0], 0, CPU).batch("train", torch.arange(400))
    mean, deviation = (torch.tensor(each)[:, None] for each in (image_courses.MEAN, image_courses.DEVIATION))
    torch.testing.assert_close(turned.flatten(2), (x.flatten(2).flip(2) - mean) / deviation)


def test_a_source_that_is_removed_is_the_mean_image_or_no_channel(pictures: Arrays) -> None:
    task = courses(pictures)["underspecified"].task("both, repeat 0", [7], 0, CPU).of_member(0)
    every = torch.arange(400)
    both, first, second = (task.batch(f"test{only}", every)[0] for only in ("", ", first only", ", second only"))
    assert torch.equal(first[:, :3], both[:, :3])
    assert not first[:, 3].any()
    assert torch.equal(second[:, 3], both[:, 3])
    assert not second[:, :3].any(), "0 is the mean after standardisation"
    labels = task.batch("test", every)[1]
    torch.testing.assert_close(both[:, 3].flatten(1)[:, 7], 2.0 * labels - 1)  # the linear channel stays as it is


@pytest.mark.parametrize("number", ["7", "8", "3.13"])
def test_images_are_learned_by_the_released_recipe(number: str) -> None:
    figure = papers.figure("nads2020", number)
    row = figure.plan.row("paper")
    released = Recipe("sgd", rate=0.21, schedule="linear", momentum=0.9, weight_decay=5e-4, batch=128, clip=0.5)
    for name in row.networks:
        assert images.recipe_of(name, row) == dataclasses.replace(released, epochs=row["epochs"][name])
        assert f"pixels: {networks.TITLES[name]}" in row.settings
    same = {key: value for key, value in figure.published.items() if not key.startswith(("epochs", "precision"))}
    assert {key: row.settings[key] for key in same} == same


def test_a_plan_decides_how_networks_are_trained_along_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    bias = Mock(settings=directional_bias.settings, grouped=directional_bias.grouped)
    monkeypatch.setattr(training, "directional_bias", bias)
    row, basis = frequencies.MAPS.row("paper"), frequencies.frequencies(8)
    training.learned("lenet", basis, row, CPU)
    assert bias.call_args.kwargs["recipe"] == Recipe("sgd", rate=0.5, epochs=20, batch=128, clip=0.5, threshold=0.01)
    assert bias.call_args.kwargs["problem"] == dataclasses.replace(PROBLEM, noise=3.0, samples=[10_000])
    assert (bias.call_args.kwargs["repeats"], bias.call_args.kwargs["seed"]) == (2, 0)
    training.learned("logistic_regression", basis, row, CPU, noise=0.5)
    assert "repeats" not in bias.call_args.kwargs, "only LeNet has two seeds"
    assert bias.call_args.kwargs["problem"].noise == 0.5


def test_settings_at_paper_effort_are_compared_with_the_published_ones() -> None:
    settings = along_directions.OWN.row("paper").settings
    assert {key: settings[key] for key in training.PUBLISHED} == training.PUBLISHED
    assert settings["draws: LeNet"] == papers.figure("nads2020", "6").published["draws: LeNet"]


def test_directions_for_three_channels_have_draws_of_their_own_at_every_input(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def recorded(family: Any, probe: Any, **settings: Any) -> Any:
        seeds.append(settings["seed"])
        rows = np.eye(256 * settings["keep"] // 10)[: settings["keep"]]  # of as many channels as tens are kept
        return SimpleNamespace(directions=rows)

    monkeypatch.setattr(directions, "anisotropy_directions", recorded)
    found = directions.figure_e_channels("smoke", Run(device="cpu"))
    assert len(seeds) == len(set(seeds)) == 6
    # Ten axes of one channel against the thirty first axes of three: those of the first channel are ten of them.
    assert found.statistics["lenet_similarity_with_one_channel"].value == pytest.approx(1 / 3)
    assert found.statistics["lenet_similarity_of_two_sets"].value == pytest.approx(1.0)


def test_few_frequencies_limit_a_ratio_of_extremes_from_below_alone() -> None:
    generator = np.random.default_rng(0)

    def ratio(iterations: np.ndarray) -> float:
        return float(np.quantile(iterations, 0.95) / np.quantile(iterations, 0.05))

    truth = ratio(generator.uniform(10, 110, 100_000))
    plain = [bootstrapped(ratio, generator.uniform(10, 110, 8), resamples=200) for _ in range(100)]
    limited = [each.open_above() for each in plain]
    assert np.mean([each.contains(truth) for each in plain]) < 0.5
    assert np.mean([each.contains(truth) for each in limited]) > 0.95
    assert [each.value for each in limited] == [each.value for each in plain]
    assert math.isnan(Estimate(3.0).open_above().low)


def test_error_of_a_ratio_of_deviations_fits_its_interval() -> None:
    with_pooling = np.array([50.4, 50.9, 93.0, 95.0, 96.0, 97.0, 99.9, 99.9])
    without = np.array([98.6, 98.8, 98.9, 99.6, 99.7, 99.8, 99.9, 100.0])
    found = accuracies.ratio_of_deviations(without, with_pooling)
    assert found.low < found.value < found.high < 1
    assert found.standard_error < found.high - found.low


def test_a_mixed_derivative_has_the_directions_that_its_measure_finds() -> None:
    shape, run = (1, 16, 16), Run(device="cpu", precision="float64")
    for average in ("operator", "gram"):
        ours = estimators.first_ten("lenet", average, 3, 1, 5, run, shape)
        found = anisotropy_directions(
            networks.family_of("lenet", image_size=16),
            Probe.gaussian(shape, seed=1),
            estimator="mixed_difference",
            average=average,
            step=100.0,
            draws=3,
            seed=5,
            run=run,
        )
        theirs = torch.as_tensor(found.directions).reshape(-1, 256)[:10].double()
        assert subspace_similarity(ours, theirs) == pytest.approx(1.0)


def test_the_largest_size_may_have_fewer_directions(tmp_path: Path) -> None:
    smoke = {**along_directions.SIZES.smoke, "sizes": {"lenet": [32, 64]}}
    smoke["directions at the largest size"] = {"lenet": [1023]}
    figure = dataclasses.replace(
        along_directions.figure_s22, plan=dataclasses.replace(along_directions.SIZES, smoke=smoke)
    )
    found = figure("smoke", Run(device="cpu", folder=tmp_path / "S22"))
    assert [len(found.arrays[f"accuracy: LeNet {place}"][0]) for place in (0, 1023)] == [1, 2]
    lowest = found.statistics["lenet_lowest_accuracy_at_the_largest_size"]
    assert lowest.value == pytest.approx(100 * found.arrays["accuracy: LeNet 1023"][1, 1])
    assert found.settings["directions at the largest size: LeNet"] == [1023]
    assert "From 64 samples LeNet learned the directions [1023] alone" in found.notes[1]
    assert found.notes[-1] == "The authors' sequence ends at index 1022."
    assert 0 <= found.statistics["lenet_training_accuracy_at_the_largest_size"].value <= 100


NAMES = ("lenet", "mlp", "logistic_regression")


def test_networks_of_figure_5_are_compared_only_if_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directions, "COMPARED", NAMES)
    monkeypatch.setattr(directions, "published_accuracies", lambda *_: None)
    monkeypatch.setattr(
        directions, "_tell_extremes", lambda *found: found[-1]("over", Estimate.exact(float(len(found[1]))))
    )
    smoke = {"draws": dict.fromkeys(NAMES, 16), "draws of one set": dict.fromkeys(NAMES, 4), "seeds": 3}
    figure = dataclasses.replace(directions.figure_5, plan=dataclasses.replace(directions.FIRST, smoke=smoke))
    run = Run(device="cpu", folder=tmp_path / "5")
    assert "over" not in figure("smoke", run, ["lenet", "mlp"]).statistics
    assert figure("smoke", run).statistics["over"].value == 3


def test_networks_of_figure_6_are_compared_only_if_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(along_directions, "CNNS", NAMES)
    monkeypatch.setattr(along_directions, "COMPARED", NAMES)
    smoke = {**along_directions.OWN.smoke, "draws": dict.fromkeys(NAMES, 8), "directions": dict.fromkeys(NAMES, 6)}
    smoke["noise"] = dict.fromkeys(NAMES, 3.0)
    figure = dataclasses.replace(along_directions.figure_6, plan=dataclasses.replace(along_directions.OWN, smoke=smoke))
    run, together = Run(device="cpu", folder=tmp_path / "6"), "rank_correlation_of_effective_rank_and_drop"
    found = figure("smoke", run, ["lenet", "mlp"])
    assert "mlp_index_of_the_drop" in found.statistics
    assert together not in found.statistics
    assert "directions: logistic regression" not in found.settings
    assert together in figure("smoke", run).statistics


def test_combs_and_single_waves_differ_by_how_many_frequencies_hold_their_energy() -> None:
    across = np.arange(32)

    def wave(k: int, l: int) -> np.ndarray:  # noqa: E741 - the frequency's name
        return np.cos(2 * np.pi * (k * across[:, None] + l * across) / 32)

    comb = sum((wave(1 + 4 * i, 2 + 4 * j) for i in range(4) for j in range(4)), np.zeros((32, 32)))
    assert energy.comb_share(wave(1, 2)) == pytest.approx(1.0)
    assert energy.comb_share(comb) == pytest.approx(1.0)
    assert energy.frequencies_with_energy(wave(1, 2)) == pytest.approx(1.0)
    assert energy.frequencies_with_energy(np.ones((32, 32))) == pytest.approx(1.0)
    assert energy.frequencies_with_energy(comb) == pytest.approx(16.0)
    white = np.random.default_rng(0).standard_normal((20, 1024))
    assert np.mean([energy.frequencies_with_energy(each) for each in white]) == pytest.approx(257, rel=0.1)


def test_figure_5_counts_frequencies_of_every_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directions, "published_accuracies", lambda *_: None)
    smoke = {"draws": {"lenet": 32}, "draws of one set": {"lenet": 8}, "seeds": 3}
    figure = dataclasses.replace(directions.figure_5, plan=dataclasses.replace(directions.FIRST, smoke=smoke))
    found = figure("smoke", Run(device="cpu", folder=tmp_path / "5"), ["lenet"])
    number = found.statistics["lenet_number_of_frequencies_that_hold_the_energy"]
    assert number.label == "LeNet: number of frequencies that hold the energy"
    assert 1 <= number.value <= 514


def test_training_accuracy_is_evidence_in_s10() -> None:
    for claim in papers.figure("nads2020", "S10").claims:
        assert {each.statistic for each in claim.trained} <= {"lenet_mean_train_accuracy"}


def test_two_statements_are_not_decided_by_our_experiments() -> None:
    conclusions = {
        each.statement.key: each for each in verdicts.conclusions(verdicts.standings()) if each.paper == "nads2020"
    }
    for key in ("mixed_is_noisier", "mlp_everywhere"):
        assert conclusions[key].verdict == "inconclusive"
        assert conclusions[key].remark == conclusions[key].statement.undecided != ""
