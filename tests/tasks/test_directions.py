"""Tasks along chosen directions: what is drawn, how it is labelled, and what members share."""

import math

import pytest
import torch

from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.directions import (
    LABELLINGS,
    Embedded,
    circles,
    isotropic,
    label_rule,
    labelled_along,
    random_labels,
    two_components,
)
from biascope.tasks.task import Arrays

CPU = Run(device="cpu", precision="float64")
SHAPE = (1, 4, 4)
BASIS = bases.random(SHAPE, seed=0).vectors  # (16, 16)


def everything(task, split="train"):
    return task.batch(split, torch.arange(task.sizes[split]))


def complement(frame):
    return torch.eye(frame.shape[-1], dtype=frame.dtype) - frame.T @ frame


def made_of_three_channels(count=3000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 5.0, 0.2])[:, None, None]
    x = {split: scale * (torch.randn(count, 3, 2, 2, generator=generator) + 2) for split in ("train", "test")}
    return Arrays({split: (each, torch.zeros(count, dtype=torch.long)) for split, each in x.items()}, torch.float64)


def test_circles_lie_in_their_plane_and_the_rest_is_noise_that_all_members_share() -> None:
    planes = torch.stack([BASIS[:2], BASIS[[0, 9]]])
    task = circles(planes, SHAPE, noise=0.7, train=20_000, test=10, seed=3, run=CPU)
    x, y = everything(task)
    assert x.shape == (2, 20_000, *SHAPE)
    assert abs(float(y.double().mean()) - 0.5) < 0.02
    flat = x.flatten(2)
    points = [flat[member] @ planes[member].T for member in range(2)]
    assert torch.allclose(points[0], points[1])  # the same circle, in another plane
    assert torch.allclose(points[0].norm(dim=1), torch.tensor([1.5, 0.25], dtype=torch.float64)[y])
    assert float(points[0].mean(0).abs().max()) < 0.05
    outside = complement(BASIS[[0, 1, 9]])
    assert torch.allclose(flat[0] @ outside, flat[1] @ outside, atol=1e-12)
    rest = flat[0] @ complement(planes[0])
    covariance = rest.T @ rest / len(rest)
    assert float((covariance - 0.49 * complement(planes[0])).abs().max()) < 5 * 0.49 * math.sqrt(2 / 20_000)


def test_outside_the_plane_the_classes_are_alike_in_mean_and_in_covariance() -> None:
    task = circles(BASIS[None, :2], SHAPE, train=40_000, test=10, seed=0, run=CPU)
    x, y = everything(task)
    rest = x[0].flatten(1) @ BASIS[2:].T
    one, two = (rest[y == label] for label in (0, 1))
    error = math.sqrt(2 / len(one))
    assert float((one.mean(0) - two.mean(0)).abs().max()) < 5 * error
    assert float((one.T @ one / len(one) - two.T @ two / len(two)).abs().max()) < 5 * math.sqrt(2) * error
    plane = x[0].flatten(1) @ BASIS[:2].T
    assert (
        float((plane[y == 0].mean(0) - plane[y == 1].mean(0)).abs().max()) < 0.05
    )  # and no line separates the circles


def test_each_of_two_components_tells_the_class_alone_and_can_be_taken_away() -> None:
    frames = torch.stack([BASIS[[5, 0, 1]], BASIS[[9, 0, 1]]])
    task = two_components(frames, SHAPE, epsilon=0.5, radii=(3.0, 0.25), train=50, test=400, seed=1, run=CPU)
    assert set(task.sizes) == {"train", "test", "test, linear only", "test, circles only"}
    y = everything(task, "test")[1]
    radius = torch.tensor([3.0, 0.25], dtype=torch.float64)[y]
    found = {split: everything(task, split)[0].flatten(2) for split in task.sizes if split != "train"}
    for member in range(2):
        at = {split: x[member] @ frames[member].T for split, x in found.items()}
        assert torch.allclose(at["test"][:, 0], y.double() - 0.5)
        assert torch.allclose(at["test"][:, 1:].norm(dim=1), radius)
        assert torch.allclose(at["test, linear only"][:, 0], y.double() - 0.5)
        assert float(at["test, linear only"][:, 1:].abs().max()) < 1e-12
        assert float(at["test, circles only"][:, 0].abs().max()) < 1e-12
        assert torch.allclose(at["test, circles only"][:, 1:], at["test"][:, 1:])
    outside = complement(BASIS[[5, 9, 0, 1]])
    for x in found.values():
        assert torch.allclose(x[0] @ outside, found["test"][1] @ outside, atol=1e-12)


@pytest.mark.parametrize("labelling", LABELLINGS)
def test_isotropic_data_are_balanced_and_labelled_by_one_direction(labelling) -> None:
    task = isotropic(BASIS[:3], SHAPE, labelling=labelling, epsilon=2.1, train=8000, test=8000, seed=2, run=CPU)
    x, y = everything(task)
    assert int(y.sum()) == 4000
    assert abs(float(everything(task, "test")[1].double().mean()) - 0.5) < 0.03  # the threshold is that of training
    along = torch.einsum("mnd,md->mn", x.flatten(2), BASIS[:3])
    assert torch.allclose(along[0], along[2], atol=1e-12)
    assert abs(float(along[0].std()) - 2.1) < 5 * 2.1 / math.sqrt(16_000)
    assert torch.equal(label_rule(labelling, along[1])(along[1]), y)
    rest = x[0].flatten(1) @ complement(BASIS[:1])
    assert float((rest.T @ rest / 8000 - complement(BASIS[:1])).abs().max()) < 5 * math.sqrt(2 / 8000)


def test_labels_follow_their_formulas() -> None:
    z = torch.linspace(-6, 7, 1000, dtype=torch.float64)
    assert torch.equal(label_rule("linear", z)(z), (z > 0.5).long())
    flat = torch.tensor([-3.0, -0.5, 0.5, 3.0])
    assert label_rule("quadratic", flat)(torch.tensor([-9.0, 0.0, 9.0])).tolist() == [1, 0, 1]
    whole = 2 * math.pi * torch.arange(1000, dtype=torch.float64) / 1000 + 1e-3
    spread = float(whole.std(correction=0))  # a wave is as wide as twice the spread
    places = math.pi + spread * torch.tensor([-1.5, -0.5, 0.5, 1.5])
    assert label_rule("sinusoidal", whole)(places).tolist() == [1, 0, 1, 0]
    # As many waves whatever the scale: labels do not change when z is shifted and stretched.
    assert torch.equal(label_rule("sinusoidal", z)(z), label_rule("sinusoidal", 10 * z - 3)(10 * z - 3))
    rows = torch.stack([z, z.square()])
    assert label_rule("linear", rows)(rows).sum(1).tolist() == [500, 500]  # a threshold for every member


def test_given_inputs_are_labelled_along_each_direction_and_served_as_they_are() -> None:
    inputs, vectors = made_of_three_channels(), torch.eye(12, dtype=torch.float64)[[0, 4, 8]]
    task = labelled_along(inputs, vectors, label_noise=0.0, seed=0)
    assert isinstance(task.members, int)
    assert torch.equal(everything(task)[0], everything(inputs)[0])
    for member, channel in enumerate((0, 1, 2)):
        pixel = inputs.splits["train"][0][:, channel, 0, 0].double()
        assert torch.equal(task.labels["train"][member], (pixel > pixel.sort().values[1499:1501].mean()).long())
    assert task.labels["train"].sum(1).tolist() == [1500, 1500, 1500]
    assert float((task.labels["test"].double().mean(1) - 0.5).abs().max()) < 0.05


def test_label_noise_has_a_share_of_each_channels_variance() -> None:
    inputs, vectors = made_of_three_channels(20_000), torch.eye(12, dtype=torch.float64)[[0, 4, 8]]
    clean = labelled_along(inputs, vectors, label_noise=0.0, seed=0).labels["train"]
    noisy = labelled_along(inputs, vectors, label_noise=0.2, seed=0).labels["train"]
    # The signs of two Gaussians of correlation ρ = 1/√1.2 differ with probability arccos(ρ)/π.
    expected = math.acos(1 / math.sqrt(1.2)) / math.pi
    assert float(((clean != noisy).double().mean(1) - expected).abs().max()) < 5 * math.sqrt(expected / 20_000)
    assert torch.equal(noisy, labelled_along(inputs, vectors, label_noise=0.2, seed=0).labels["train"])
    assert not torch.equal(noisy, labelled_along(inputs, vectors, label_noise=0.2, seed=1).labels["train"])
    alone = labelled_along(inputs, vectors[1:2], label_noise=0.2, seed=0).labels["train"]
    assert torch.equal(alone[0], noisy[1])  # the same noise, whoever else is there


def test_gaussian_data_have_their_covariance_at_spectral_norm_one() -> None:
    covariance = BASIS.T @ torch.diag(torch.linspace(0, 6, 16, dtype=torch.float64)) @ BASIS
    task = random_labels(covariance, SHAPE, train=40_000, test=20, seed=0, run=CPU)
    x, y = task.whole("train")
    flat = x.flatten(1)
    assert float((flat.T @ flat / len(flat) - covariance / 6).abs().max()) < 5 * math.sqrt(2 / 40_000)
    apart = flat[y == 0].mean(0) - flat[y == 1].mean(0)
    assert float(apart.abs().max()) < 5 * math.sqrt(4 / 40_000)
    assert float((flat @ BASIS[0]).abs().max()) < 1e-6  # nothing where the eigenvalue is 0
    same = random_labels(10 * covariance, SHAPE, train=40_000, test=20, seed=0, run=CPU)
    assert torch.allclose(same.whole("train")[0], x, atol=1e-9)
    noise = random_labels(torch.eye(16, dtype=torch.float64), SHAPE, train=40_000, test=20, seed=0, run=CPU)
    assert torch.equal(noise.whole("train")[1], y)
    assert y.bincount().tolist() == [20_000, 20_000]
    seen = noise.whole("train")[0].flatten(1) @ (BASIS.T * torch.linspace(0, 1, 16, dtype=torch.float64).sqrt()) @ BASIS
    assert torch.allclose(seen, flat, atol=1e-9)  # one draw of noise, seen through two matrices


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: circles(BASIS[None, :2], SHAPE, train=20, test=5, seed=seed, run=CPU),
        lambda seed: two_components(BASIS[None, :3], SHAPE, train=20, test=5, seed=seed, run=CPU),
        lambda seed: isotropic(BASIS[:1], SHAPE, train=20, test=5, seed=seed, run=CPU),
        lambda seed: random_labels(torch.eye(16), SHAPE, train=20, test=5, seed=seed, run=CPU),
    ],
)
def test_a_seed_tells_what_is_drawn_and_the_global_state_is_left_alone(make) -> None:
    before = torch.get_rng_state()
    one, same, other = make(0), make(0), make(1)
    assert torch.equal(everything(one)[0], everything(same)[0])
    assert torch.equal(everything(one)[1], everything(same)[1])
    assert not torch.equal(everything(one)[0], everything(other)[0])
    assert not torch.equal(everything(one)[0][..., :5, :, :, :], everything(one, "test")[0])
    assert torch.equal(before, torch.get_rng_state())


def test_members_are_selected_and_one_is_served_to_one_network() -> None:
    task = circles(BASIS[:6].reshape(3, 2, 16), SHAPE, train=12, test=4, seed=0, run=CPU)
    x, _ = everything(task)
    picked = task.select([2, 0])
    assert isinstance(picked, Embedded)
    assert torch.allclose(everything(picked)[0], x[[2, 0]])
    alone = task.of_member(1)
    assert alone.members is None
    assert torch.allclose(everything(alone)[0], x[1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: circles(BASIS[:2], SHAPE, seed=0, run=CPU), "directions must be 2 for every member"),
        (lambda: circles(torch.ones(1, 2, 16) / 4, SHAPE, seed=0, run=CPU), "orthonormal"),
        (lambda: circles(BASIS[None, :2], (1, 5, 5), seed=0, run=CPU), "one row of 25 numbers"),
        (lambda: circles(BASIS[None, :2], SHAPE, radii=(1.0, 1.0), seed=0, run=CPU), "two different numbers"),
        (lambda: circles(BASIS[None, :2], SHAPE, noise=-1.0, seed=0, run=CPU), "noise must be finite and at least 0"),
        (lambda: two_components(BASIS[None, :2], SHAPE, seed=0, run=CPU), "directions must be 3 for every member"),
        (lambda: isotropic(BASIS[:1], SHAPE, labelling="cubic", seed=0, run=CPU), "labelling must be one of 'linear'"),
        (lambda: labelled_along(made_of_three_channels(4), BASIS[:, :11], seed=0), "vectors of 12 numbers each"),
        (lambda: labelled_along(made_of_three_channels(4), torch.eye(12), label_noise=-1, seed=0), "label_noise"),
        (lambda: random_labels(torch.eye(15), SHAPE, seed=0, run=CPU), "matrix of 16 × 16 numbers"),
        (lambda: random_labels(-torch.eye(16), SHAPE, seed=0, run=CPU), "eigenvalues of 0 or more"),
        (lambda: circles(BASIS[None, :2], SHAPE, seed=0, run=CPU).batch("dev", torch.tensor([0])), "split must be one"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
