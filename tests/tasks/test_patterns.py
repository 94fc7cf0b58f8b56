"""Inputs made of patterns: what each law draws, how inputs become images, and the coloured digits."""

import itertools
import math

import pytest
import torch

from biascope.tasks.patterns import BLUE, GREEN, RED, PatternDistribution, PatternSamples, coloured_digits
from biascope.tasks.task import Arrays

LAWS = {
    "uniform": PatternDistribution("uniform", per_input=4, patterns=9),
    "paired": PatternDistribution("paired", per_input=4, patterns=8),
    "biased": PatternDistribution("biased", per_input=4, patterns=9, bias=0.2),
}
MANY = 40_000


def frequencies(samples: PatternSamples, label: int) -> torch.Tensor:
    """How often each pattern is in an input of this label."""
    return samples.contains[samples.labels == label].double().mean(0)


@pytest.mark.parametrize("kind", LAWS)
def test_every_input_has_its_labels_pattern_and_different_spurious_ones(kind: str) -> None:
    law = LAWS[kind]
    samples = law.draw(MANY, seed=3)
    assert samples.places.shape == (MANY, law.per_input)
    assert samples.places.dtype == samples.labels.dtype == torch.int64
    assert set(samples.labels.tolist()) == {-1, 1}
    assert torch.equal(samples.places[:, 0], (1 - samples.labels) // 2)
    assert samples.contains.sum(-1).eq(law.per_input).all()  # no pattern comes twice
    assert abs(float(samples.labels.double().mean())) < 4 / math.sqrt(MANY)


@pytest.mark.parametrize(
    ("kind", "given_positive"),
    [
        ("uniform", [1, 0, *[3 / 7] * 7]),
        ("paired", [1, 0, *[1 / 2] * 6]),
        ("biased", [1, 0, 0.2, 0.8, *[2 / 5] * 5]),
    ],
)
def test_patterns_come_as_often_as_the_law_says(kind: str, given_positive: list[float]) -> None:
    samples = LAWS[kind].draw(MANY, seed=0)
    positive = torch.tensor(given_positive, dtype=torch.float64)
    negative = positive.clone()
    negative[:2] = positive[:2].flip(0)
    if kind == "biased":
        negative[2:4] = positive[2:4].flip(0)
    error = 4 * math.sqrt(0.25 / (MANY / 2))
    assert float((frequencies(samples, 1) - positive).abs().max()) < error
    assert float((frequencies(samples, -1) - negative).abs().max()) < error


@pytest.mark.parametrize("kind", LAWS)
def test_pairs_of_spurious_patterns_are_as_likely_as_without_replacement(kind: str) -> None:
    """First and second moments of what is in an input, against an enumeration of the support."""
    law = LAWS[kind]
    own = {"uniform": range(2, 9), "biased": range(4, 9)}
    if kind == "paired":
        spurious = [set(choice) for choice in itertools.product((2, 3), (4, 5), (6, 7))]
    else:
        spurious = [set(choice) for choice in itertools.combinations(own[kind], 3 if kind == "uniform" else 2)]
    inputs = torch.zeros(len(spurious), law.patterns, dtype=torch.float64)
    for row, members in zip(inputs, spurious, strict=True):
        row[list(members)] = 1
    free = sorted(set().union(*spurious))
    expected = (inputs.T @ inputs / len(inputs))[free][:, free]
    drawn = law.draw(MANY, seed=1).contains.double()
    found = (drawn.T @ drawn / MANY)[free][:, free]
    assert float((found - expected).abs().max()) < 5 * math.sqrt(0.25 / MANY)


@pytest.mark.parametrize(
    "law",
    [
        *LAWS.values(),
        PatternDistribution("uniform", 1, 5),
        PatternDistribution("biased", 2, 5),
        *(PatternDistribution("biased", 3, 7, bias=p) for p in (0.0, 0.5, 1.0)),
    ],
)
def test_the_support_is_what_can_be_drawn(law: PatternDistribution) -> None:
    drawn = law.draw(20_000, seed=5)
    assert len(set(map(tuple, drawn.places.sort(-1).values.tolist()))) == law.support
    assert law.unbiased == (law.kind != "biased" or law.bias == 0.5)


def test_support_of_the_published_sizes_is_exact() -> None:
    assert PatternDistribution("uniform", 40, 60).support == 2 * math.comb(58, 39)
    assert PatternDistribution("paired", 40, 80).support == 2**40
    assert PatternDistribution("biased", 40, 60, bias=0.3).support == 4 * math.comb(56, 38)


@pytest.mark.parametrize("bias", [0.0, 0.12, 0.5, 0.94, 1.0])
def test_statistics_of_samples_are_those_expected(bias: float) -> None:
    for law in (PatternDistribution("biased", 5, 12, bias=bias), LAWS["uniform"], LAWS["paired"]):
        samples = law.draw(MANY, seed=8)
        statistics = (samples.labels[:, None] * samples.contains).double().mean(0)
        assert float((statistics - law.expected_statistics).abs().max()) < 4 / math.sqrt(MANY)
    assert PatternDistribution("biased", 5, 12, bias=bias).expected_statistics[2:4].tolist() == [bias - 0.5, 0.5 - bias]


def test_a_runs_samples_do_not_depend_on_how_many_runs_are_drawn() -> None:
    law = LAWS["uniform"]
    one, three, alone = law.draw(50, seed=4, runs=1), law.draw(50, seed=4, runs=3), law.draw(50, seed=4)
    assert three.places.shape == (3, 50, 4)
    assert torch.equal(one.places[0], three.places[0])
    assert torch.equal(alone.places, three.places[0])
    assert torch.equal(alone.labels, three.labels[0])
    assert not torch.equal(three.places[1], three.places[2])
    assert not torch.equal(law.draw(50, seed=5).places, alone.places)


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    LAWS["biased"].draw(10, seed=0).shuffled(seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_the_order_of_patterns_is_shuffled_evenly_and_nothing_else() -> None:
    samples = LAWS["uniform"].draw(MANY, seed=2)
    shuffled = samples.shuffled(seed=0)
    assert torch.equal(samples.contains, shuffled.contains)
    marked = (shuffled.places < 2).double().mean(0)  # where the label's pattern is
    assert float((marked - 1 / 4).abs().max()) < 4 * math.sqrt(0.25 / MANY)


def test_vectors_are_laid_below_one_another_and_patches_in_a_grid() -> None:
    samples = PatternSamples(torch.tensor([[[0, 2, 3, 4, 5, 6]], [[1, 6, 5, 4, 3, 2]]]), torch.tensor([[1], [-1]]), 7)
    vectors = torch.linalg.qr(torch.randn(9, 9, generator=torch.Generator().manual_seed(0)))[0][:7]
    images = samples.images(vectors)
    assert images.shape == (2, 1, 1, 6, 9)
    assert torch.equal(images[1, 0, 0, 1], vectors[6])
    patches = vectors[:, None].reshape(7, 1, 3, 3).repeat(1, 2, 1, 1)
    laid = samples.images(patches)
    assert laid.shape == (2, 1, 2, 6, 9)  # two rows of three patches
    assert torch.equal(laid[0, 0, :, 3:, 6:], patches[6])
    assert torch.equal(laid[1, 0, :, :3, 3:6], patches[6])
    assert torch.equal(samples.images(patches, grid=(6, 1))[0, 0, :, 3:6], patches[2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PatternDistribution("even", 3, 6), "kind must be one of"),
        (lambda: PatternDistribution("paired", 3, 7), "twice as many"),
        (lambda: PatternDistribution("uniform", 9, 9), "leave out the other label's"),
        (lambda: PatternDistribution("biased", 1, 9), "at least 2 of 9"),
        (lambda: PatternDistribution("biased", 3, 9, bias=1.2), "bias must be a probability"),
        (lambda: LAWS["uniform"].draw(0, seed=0), "at least 1"),
        (lambda: PatternSamples(torch.zeros(3, 2), torch.zeros(2), 4), "Pass a label for every input"),
        (lambda: PatternSamples(torch.tensor([[0, 4]]), torch.ones(1), 4), "places must be from 0 to 3"),
        (lambda: LAWS["uniform"].draw(2, seed=0).images(torch.eye(8)), "vectors must be"),
        (
            lambda: LAWS["uniform"].draw(2, seed=0).images(torch.zeros(9, 1, 2, 2), grid=(3, 3)),
            "grid must have 4 places",
        ),
    ],
)
def test_what_does_not_fit_is_said(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def digits_of(count: int) -> Arrays:
    """Digits of 2 × 2 pixels whose values tell which they are."""
    x = torch.arange(1, 1 + 4 * count, dtype=torch.uint8).reshape(count, 1, 2, 2)
    return Arrays({split: (x, torch.zeros(count, dtype=torch.long)) for split in ("train", "test")})


def test_one_digit_of_nine_tells_the_label_by_its_colour() -> None:
    task = coloured_digits(digits_of(5), {"train": 3000, "test": 7}, seed=0)
    images, labels = task.splits["train"]
    assert images.shape == (3000, 3, 6, 6)
    assert task.sizes == {"train": 3000, "test": 7}
    tiles = images.reshape(3000, 3, 3, 2, 3, 2).movedim(4, 3).reshape(3000, 3, 9, 4)
    coloured = tiles.any(-1)  # (m, colours, places)
    assert coloured.sum(1).eq(1).all()  # every tile has one colour
    assert coloured[:, GREEN].sum(-1).eq(8).all()
    assert torch.equal(coloured[:, BLUE].any(-1), labels == 1)
    assert torch.equal(coloured[:, RED].any(-1), labels == 0)
    places = coloured[:, [RED, BLUE]].any(1).double().mean(0)
    assert float((places - 1 / 9).abs().max()) < 4 * math.sqrt(1 / 9 / 3000)
    seen = tiles.sum(1)  # (m, places, 4): whole digits, each as likely as the others
    assert torch.equal(seen[..., 1:] - seen[..., :1], torch.tensor([1, 2, 3]).expand(3000, 9, 3))
    which = torch.bincount(((seen[..., 0] - 1) // 4).flatten(), minlength=5) / (9 * 3000)
    assert float((which - 1 / 5).abs().max()) < 4 * math.sqrt(0.16 / (9 * 3000))
    assert abs(float(labels.double().mean()) - 0.5) < 4 * math.sqrt(0.25 / 3000)


def test_coloured_digits_depend_on_the_seed_and_not_on_other_splits() -> None:
    one = coloured_digits(digits_of(5), {"train": 4}, seed=0).splits["train"][0]
    both = coloured_digits(digits_of(5), {"test": 9, "train": 4}, seed=0)
    assert torch.equal(one, both.splits["train"][0])
    assert not torch.equal(one, coloured_digits(digits_of(5), {"train": 4}, seed=1).splits["train"][0])
    with pytest.raises(ValueError, match="digits must be grey images"):
        coloured_digits(digits_of(5), {"validation": 4}, seed=0)
