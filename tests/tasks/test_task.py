"""Tasks: the data that every member of a stack sees."""

import math

import pytest
import torch

from biascope.runs.identity import content_of
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.images import SideBySide, flipped, poisoned
from biascope.tasks.task import Arrays, along_directions

CPU = Run(device="cpu", precision="float64")


def everything(task, split):
    return task.batch(split, torch.arange(task.sizes[split]))


def images(count=40, classes=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)
    y = torch.arange(count) % classes
    return Arrays({"train": (x, y), "test": (x[:20], y[:20])}, torch.float64)


def test_each_direction_separates_its_classes_and_carries_no_noise() -> None:
    basis = bases.fourier((1, 6, 6))
    task = along_directions(basis.vectors, (1, 6, 6), noise=3.0, epsilon=0.7, train=50, test=30, seed=1, run=CPU)
    for split in ("train", "test"):
        x, y = everything(task, split)
        assert x.shape == (36, task.sizes[split], 1, 6, 6)
        along = torch.einsum("mnd,md->mn", x.flatten(2), basis.vectors)
        assert torch.allclose(along, (0.7 * (2 * y.double() - 1)).expand_as(along), atol=1e-12)


def test_noise_has_its_covariance_and_is_shared_between_directions() -> None:
    basis = bases.random((8,), seed=0)
    task = along_directions(basis.vectors, (8,), noise=2.0, train=20_000, test=1, seed=0, run=CPU)
    x, y = everything(task, "train")
    one, two = x[0], x[1]
    apart = torch.eye(8, dtype=torch.float64) - sum(torch.outer(basis.vectors[i], basis.vectors[i]) for i in (0, 1))
    assert torch.allclose(one @ apart, two @ apart, atol=1e-12)  # the same noise wherever neither direction reaches
    noise = one - torch.outer(2 * y.double() - 1, basis.vectors[0])
    expected = 4 * (torch.eye(8, dtype=torch.float64) - torch.outer(basis.vectors[0], basis.vectors[0]))
    assert float((noise.T @ noise / len(noise) - expected).abs().max()) < 5 * 4 * math.sqrt(2 / 20_000)
    assert abs(float(y.double().mean()) - 0.5) < 0.02


def test_the_released_convention_halves_the_margin() -> None:
    vectors = torch.eye(3, dtype=torch.float64)[:1]
    text, released = (
        everything(along_directions(vectors, (3,), margin=margin, train=9, test=1, seed=0, run=CPU), "train")[0][
            0, :, 0
        ]
        for margin in ("text", "released")
    )
    assert torch.equal(text.abs(), torch.ones(9, dtype=torch.float64))
    assert torch.equal(released, text / 2)


def test_train_and_test_noise_are_independent_and_seeds_differ() -> None:
    vectors = torch.eye(3, dtype=torch.float64)[:1]
    tasks = [along_directions(vectors, (3,), train=500, test=500, seed=seed, run=CPU) for seed in (0, 0, 1)]
    train, again, other = (everything(task, "train")[0] for task in tasks)
    assert torch.equal(train, again)
    assert not torch.equal(train, other)
    test = everything(tasks[0], "test")[0]
    correlation = torch.corrcoef(torch.stack([train[0, :, 1], test[0, :, 1]]))[0, 1]
    assert abs(float(correlation)) < 0.2


def test_members_are_selected_in_the_order_given() -> None:
    task = along_directions(bases.canonical((5,)).vectors, (5,), train=7, test=2, seed=0, run=CPU)
    whole = everything(task, "train")[0]
    assert torch.equal(everything(task.select([3, 1]), "train")[0], whole[[3, 1]])
    alone = task.of_member(4)
    assert alone.members is None
    assert torch.equal(everything(alone, "train")[0], whole[4])


def test_poisoning_writes_the_class_along_its_carrier_and_leaves_the_test_clean() -> None:
    basis, data = bases.fourier((4, 4)).vectors, images()
    task = poisoned(data, basis, [0, 5], epsilon=0.05)
    x, y = everything(task, "train")
    for member, index in enumerate((0, 5)):
        for sample in range(len(y)):
            t = int(y[sample])
            content = x[member, sample].flatten(1) @ basis[index + t // 6]
            assert float(content[t % 3]) == pytest.approx(0.05 * (2 * (t % 2) - 1), abs=1e-12)
    clean = everything(data, "test")[0]
    assert torch.equal(everything(task, "test")[0][1], clean)
    original = everything(data, "train")[0]
    assert float((x[0] - original).flatten(1).norm(dim=1).max()) < float(original.flatten(1).norm(dim=1).max())


def test_the_texts_assignment_gives_two_classes_to_each_carrier() -> None:
    task = poisoned(images(), bases.fourier((4, 4)).vectors, [0], assignment="text")
    carriers = task.carriers[0]
    assert torch.equal(carriers[0], carriers[1])
    assert not torch.equal(carriers[1], carriers[2])
    assert float(task.amplitudes[0]) == -float(task.amplitudes[1])


def test_flipping_reverses_coordinates_and_loses_nothing() -> None:
    basis, data = bases.random((4, 4), seed=2).vectors, images()
    turned = flipped(data, basis)
    before = (everything(data, "train")[0]).flatten(2) @ basis.T
    after = everything(turned, "train")[0].flatten(2) @ basis.T
    assert torch.allclose(after, before.flip(-1), atol=1e-12)
    twice = flipped(turned, basis)
    assert torch.allclose(everything(twice, "train")[0], everything(data, "train")[0], atol=1e-12)


def test_two_sources_side_by_side_can_be_taken_away_one_at_a_time() -> None:
    data = images(classes=2)
    labels = {split: y for split, (_, y) in data.splits.items()}
    line = along_directions(bases.canonical((1, 4, 4)).vectors[:3], (1, 4, 4), labels=labels, seed=0, run=CPU)
    task = SideBySide(data, line)
    assert (task.members, task.shape) == (3, (4, 4, 4))
    x, y = everything(task, "train")
    assert x.shape == (3, 40, 4, 4, 4)
    assert torch.equal(y, labels["train"])
    assert torch.equal(x[2, :, :3], everything(data, "train")[0])
    first, second = (everything(task, f"test, {part} only")[0] for part in ("first", "second"))
    assert float(first[:, :, 3:].abs().max()) == 0 < float(first[:, :, :3].abs().max())
    assert float(second[:, :, :3].abs().max()) == 0 < float(second[:, :, 3:].abs().max())
    assert task.select([1]).members == 1


def test_content_tells_data_sets_apart() -> None:
    assert content_of(images()) == content_of(images())
    assert content_of(images()) != content_of(images(seed=1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: along_directions(torch.eye(3), (4,), seed=0, run=CPU), "one row of 4 numbers"),
        (lambda: along_directions(torch.eye(3), (3,), margin="half", seed=0, run=CPU), "margin must be"),
        (
            lambda: along_directions(torch.eye(3), (3,), noise=-1, seed=0, run=CPU),
            "noise must be finite and at least 0",
        ),
        (lambda: along_directions(torch.eye(3), (3,), train=0, seed=0, run=CPU), "at least 1"),
        (lambda: poisoned(images(), torch.eye(16), [15]), "between 0 and 14"),
        (lambda: poisoned(images(), torch.eye(16), [0], assignment="mine"), "assignment must be"),
        (lambda: flipped(images(), torch.eye(16)[:3]), "whole basis of 16"),
        (lambda: Arrays({"train": (torch.eye(3), torch.zeros(2))}), "as many inputs as labels"),
        (lambda: images().batch("dev", torch.tensor([0])), "split must be one of 'train', 'test'"),
        (lambda: SideBySide(images(), images(count=30)), "same samples"),
        (lambda: bases.fourier_half((4, 4), "Im", 0), "stride must be at least 1"),
        (lambda: bases.canonical((2,)).part([2]), "from 0 to 1"),
        (lambda: bases.ordered(torch.ones(2, 4), (4,)), "orthonormal"),
        (lambda: bases.ordered(torch.eye(4), (5,)), "5 numbers each"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_a_lifted_basis_is_orthonormal_and_keeps_channels_apart() -> None:
    lifted = bases.fourier((4, 4)).part([0, 3, 7]).lifted(3)
    assert lifted.shape == (3, 4, 4)
    assert torch.allclose(lifted.vectors @ lifted.vectors.T, torch.eye(9, dtype=torch.float64), atol=1e-12)
    assert lifted.labels[3][0] == 1
