"""Coloured digits and their filters, against networks small enough to check, and against the published numbers."""

import dataclasses
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from figures_at_smoke import checked

from biascope.families.family import Family
from biascope.networks import builder
from biascope.papers.patterns2021 import digits as digits2021
from biascope.papers.patterns2021 import filters as filters2021
from biascope.papers.patterns2021.digits import DigitRuns, OwnSamples, learned
from biascope.results.estimate import Number
from biascope.results.finding import Finding, Tell
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks.patterns import BLUE, GREEN, RED, coloured_digits
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

matplotlib.use("Agg")
CPU = Run(device="cpu", progress=False)


@pytest.fixture(scope="module")
def strokes() -> Arrays:
    """Digits of 4 × 4 pixels: bright strokes on black, like and unlike one another as those of MNIST are."""
    generator = torch.Generator().manual_seed(0)
    splits = {}
    for split, count in (("train", 60), ("test", 40)):
        shapes = torch.rand(count, 1, 4, 4, generator=generator) < 0.4
        shapes[:, :, 1] = True
        splits[split] = (255 * shapes).to(torch.uint8), torch.zeros(count, dtype=torch.long)
    return Arrays(splits, name="strokes")


@pytest.fixture(scope="module")
def trained(strokes: Arrays) -> dict[int, DigitRuns]:
    return {size: learned(strokes, size, 4, test=80, rate=3e-3, run=CPU) for size in (6, 20)}


def made(energies: list[list[float]], seen: list[int], responses: list[float]) -> DigitRuns:
    """One run whose filters are known."""
    one = np.zeros(1)
    arrays = np.array([energies]), np.array([responses]), np.array([seen])
    return DigitRuns(one, one, np.zeros((1, 2)), one, *arrays, one)


def numbers_of(networks: dict[int, DigitRuns]) -> dict[str, Number]:
    """What is told of their filters."""
    tell = Tell()
    filters2021.tell_filters(networks, tell)
    return tell.numbers


def test_members_train_on_samples_of_their_own() -> None:
    images = torch.arange(2 * 3 * 3 * 4, dtype=torch.uint8).reshape(2, 3, 3, 2, 2)
    task = OwnSamples(images, torch.tensor([[0, 1, 0], [1, 1, 0]]))
    x, y = task.batch("train", torch.tensor([2, 0]))
    assert x.shape == (2, 2, 3, 2, 2)
    assert torch.equal(x[1, 0], images[1, 2].float() / 255)
    assert y.tolist() == [[0, 0], [0, 1]]
    alone = task.select([1]).of_member(0).batch("train", torch.tensor([2]))
    assert torch.equal(alone[0], x[1, :1])
    assert (task.members, task.sizes, task.shape) == (2, {"train": 3}, (3, 2, 2))


def test_networks_fit_their_images_and_generalise_the_better_the_more_they_have(trained: dict[int, DigitRuns]) -> None:
    for found in trained.values():
        assert found.train.tolist() == [100.0] * 4
        assert (found.epochs < digits2021.EPOCHS).all()
        assert found.test == pytest.approx(100 * (1 - found.wrong.sum(1) / 80))
    assert trained[20].test.mean() > max(90, trained[6].test.mean())


def test_what_is_added_learns_blue_and_what_is_subtracted_red(trained: dict[int, DigitRuns]) -> None:
    found = trained[20]
    added, subtracted = np.split(found.colours, 2, axis=1)
    assert not (added == RED).any()
    assert not (subtracted == BLUE).any()
    assert (added == BLUE).any()
    assert (subtracted == RED).any()


def test_a_run_is_the_same_whatever_their_number_and_is_not_trained_twice(strokes: Arrays, tmp_path: Path) -> None:
    run = dataclasses.replace(CPU, folder=tmp_path)
    two = learned(strokes, 6, 2, test=10, rate=3e-3, run=run)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("group-*")}
    three = learned(strokes, 6, 3, test=10, rate=3e-3, run=run)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    fresh = learned(strokes, 6, 3, test=10, rate=3e-3, run=CPU)
    for name in ("test", "lean", "energies", "seen"):
        assert getattr(three, name) == pytest.approx(getattr(fresh, name))
        assert getattr(three, name)[:2] == pytest.approx(getattr(two, name))
    assert not np.allclose(three.energies[0], three.energies[1])


def test_another_seed_has_other_samples_and_weights(strokes: Arrays) -> None:
    first, other = (learned(strokes, 6, 1, test=10, rate=3e-3, seed=seed, run=CPU) for seed in (0, 1))
    assert not np.allclose(first.energies, other.energies)


def test_networks_are_counted_whose_every_filter_has_one_colour() -> None:
    energies = np.array([[[9.0, 1.0, 0.0], [0.0, 1.0, 9.0]], [[4.0, 3.0, 3.0], [0.0, 0.0, 9.0]]])
    seen = np.array([[0, 2], [0, 1]])
    rest = {name: np.zeros(2) for name in ("test", "train", "lean", "epochs")}
    found = DigitRuns(**rest, wrong=np.zeros((2, 2)), energies=energies, responses=np.ones((2, 2)), seen=seen)
    numbers = numbers_of({6: found})
    assert numbers["m_6_share_of_networks_whose_filters_all_have_a_colour"].value == 0.5
    assert numbers["m_6_share_of_networks_whose_filters_all_detect_their_colour"].value == 0.5


def test_where_no_loss_is_left_more_epochs_change_nothing(strokes: Arrays) -> None:
    short = learned(strokes, 6, 1, test=10, rate=3e-3, run=CPU)
    long = learned(strokes, 6, 1, test=10, rate=3e-3, epochs=digits2021.EPOCHS + 100, run=CPU)
    assert short.epochs[0] < digits2021.EPOCHS
    assert np.array_equal(short.energies, long.energies)


def test_training_in_parts_is_plain_sgd(strokes: Arrays) -> None:
    """Full batches leave nothing to the order of samples: parts of ten epochs are one training."""
    whole = learned(strokes, 6, 1, test=10, rate=1e-3, epochs=20, run=CPU)
    task = coloured_digits(strokes, {"train": 6}, seed=seed_of(0, "training set", 0))
    family = Family.initialised(lambda: builder("pattern_cnn")(channels=3, image_size=12, patch=4, k=20))
    start = family.draw(1, seed=seed_of(0, "weights"), run=CPU).member(0)
    recipe = Recipe(rate=1e-3, schedule="constant", epochs=20, batch=10, loss="hinge")
    weight = fit(start, task, recipe, seed=5, run=CPU).networks.params["conv.weight"]
    assert whole.energies[0] == pytest.approx(weight.clamp_min(0).square().sum((2, 3)).numpy(), rel=1e-4, abs=1e-12)


def test_one_blue_and_one_red_filter_classify_all(strokes: Arrays) -> None:
    assert digits2021.constructed(strokes, 50, CPU) == 100.0


def test_the_chance_of_a_published_mean_is_that_of_ten_coins() -> None:
    coins = np.array([0.0, 100.0])
    # All ten alike: 2 of 1024 ways. At least 20 off 50: at most three, or at least seven.
    assert digits2021.chance_of_mean(coins, 100.0) == pytest.approx(2 / 1024, abs=1e-3)
    assert digits2021.chance_of_mean(coins, 70.0) == pytest.approx(2 * (120 + 45 + 10 + 1) / 1024, abs=0.015)
    assert digits2021.chance_of_mean(np.full(5, 100.0), 100.0) == 1.0


def test_a_ratio_has_the_errors_of_both_means() -> None:
    generator = np.random.default_rng(0)
    above, below = generator.normal(2, 0.4, 400), np.append(generator.normal(4, 0.4, 100), np.nan)
    found = filters2021.ratio(above, below)
    assert found.contains(0.5)
    assert found.standard_error == pytest.approx(0.5 * np.hypot(0.2 / 20, 0.1 / 10), rel=0.15)
    assert np.isnan(filters2021.ratio(above, np.array([np.nan])).value)
    assert np.isnan(filters2021.ratio(above, np.ones(1)).standard_error)


def test_brightness_and_dot_products_are_averaged_by_colour_without_black_filters() -> None:
    found = made(
        [[0, 0, 4], [0, 1, 0], [0, 0.25, 0], [1e-12, 0, 0], [4, 0, 0], [0, 1, 0.01]],
        [BLUE, GREEN, GREEN, RED, RED, BLUE],
        [3.0, 1.0, 0.5, 9.0, 5.0, 4.0],
    )
    assert found.colours[0].tolist() == [BLUE, GREEN, GREEN, RED, RED, GREEN]
    assert filters2021.brightness_of(found, True) == pytest.approx([1.0])
    assert filters2021.brightness_of(found, False) == pytest.approx([(0.5 + 0.25 + np.sqrt(1.01) / 2) / 3])
    assert filters2021.response_of(found, True) == pytest.approx([4.0])
    assert filters2021.response_of(found, False) == pytest.approx([0.75])
    statistics = numbers_of({6: found})
    assert statistics["m_6_share_of_filters_that_are_black"].value == pytest.approx(1 / 6)
    assert statistics["m_6_share_of_filters_of_one_colour"].value == 1.0
    assert statistics["m_6_share_of_filters_of_the_colour_that_they_answer_most_to"].value == pytest.approx(4 / 5)
    assert statistics["m_6_dot_product_of_green_over_red_and_blue_detectors"].value == pytest.approx(0.75 / 4)


def test_a_run_without_green_filters_has_no_brightness_of_them() -> None:
    found = made([[0, 0, 1], [1, 0, 0]], [BLUE, RED], [1.0, 1.0])
    assert np.isnan(filters2021.brightness_of(found, False)).all()
    assert np.isnan(numbers_of({6: found})["m_6_brightness_of_green_filters"].value)


def test_swatches_are_sorted_by_colour_and_brightness_on_one_scale() -> None:
    energies = np.array([[0, 1.0, 0], [0, 0, 1.0], [0, 0, 4.0], [0, 0.25, 0], [0, 2.25, 0], [1.0, 0, 0]])
    added, subtracted = filters2021.swatches(energies)
    assert added.tolist() == [[0, 0, 1.0], [0, 0, 0.5], [0, 0.5, 0]]
    assert subtracted.tolist() == [[0.5, 0, 0], [0, 0.75, 0], [0, 0.25, 0]]


@pytest.mark.parametrize("dark", [False, True])
def test_filters_are_drawn_as_plain_squares(trained: dict[int, DigitRuns], dark: bool) -> None:
    tell = Tell()
    filters2021.tell_filters(trained, tell)
    finding = Finding(tell.numbers, tell.arrays, {})
    picture = filters2021.figure_5_to_7.show(finding, dark)
    assert [axes.get_title(loc="left") for axes in picture.axes[:2]] == ["m = 6", "m = 20"]
    for axes in picture.axes:
        assert not axes.images  # no pixels of a data set
    assert len(picture.axes[0].patches) == 2 * digits2021.K
    assert all(not array.ndim > 3 for array in finding.arrays.values())


def test_figure_4_finds_every_pattern_in_the_pixels() -> None:
    finding = filters2021.figure_4("smoke", CPU)
    for claim in filters2021.figure_4.claims:
        assert claim.verdict(finding.statistics[claim.statistic], "laptop") == "reproduced"
    images, patches = finding.arrays["images"], finding.arrays["patches"]
    for image, label, mark in zip(images, finding.arrays["labels"], finding.arrays["marks"], strict=True):
        down, right = divmod(int(mark), 4)
        tile = image[10 * down : 10 * down + 10, 10 * right : 10 * right + 10]
        assert np.array_equal(tile, patches[0 if label == 1 else 1])
    assert len(filters2021.figure_4.show(finding, False).axes) == 8


def test_smoke_of_figure_2_has_its_numbers_and_no_digit_in_them(data_root: Path, tmp_path: Path) -> None:
    if not (data_root / "MNIST").exists():
        pytest.skip("BIASCOPE_DATA has no MNIST")
    run = dataclasses.replace(CPU, folder=tmp_path / "2", data_root=data_root)
    finding = checked(digits2021.figure_2, run)
    assert finding.statistics["k_1_made_by_hand_test_accuracy"].value == 100.0
    assert all(array.ndim == 1 for array in finding.arrays.values())
