import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, network_of, normal
from torch import Tensor, nn

from biascope.derivatives.linearize import linearize
from biascope.editing.heads import Head
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.measures.disentanglement import Disentanglement, disentanglement
from biascope.tasks.task import Arrays

NAMES = ("first", "second")


def samples_of(shift: float, seed: int, count: int = 40) -> Arrays:
    return Arrays({"test": (normal(count, 4, seed=seed) + shift, torch.zeros(count))}, torch.float64)


TASKS = {"first": samples_of(1.0, 1), "second": samples_of(-1.0, 2)}
HEADS = {name: Head(normal(3, 5, seed=seed), torch.zeros(3)) for seed, name in enumerate(NAMES)}
CONTROL = samples_of(0.0, 3, 30)


def vectors_of(encoder: Network, scale: float = 0.3) -> dict[str, dict[str, TaskVector]]:
    def end(seed: int) -> dict[str, Tensor]:
        return {
            name: tensor + scale * normal(*tensor.shape, seed=100 * seed + place)
            for place, (name, tensor) in enumerate(encoder.params.items())
        }

    return {
        tuning: {name: TaskVector.between(encoder.params, end(1 + place + 2 * way)) for place, name in enumerate(NAMES)}
        for way, tuning in enumerate(("non-linear", "linearised"))
    }


ENCODER = network_of(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)), readout=None)
VECTORS = vectors_of(ENCODER)
ask = functools.partial(disentanglement, ENCODER, HEADS, VECTORS, TASKS, grid=5, resamples=200, run=CPU64)


def outputs(method: str, coefficients: tuple[float, float], task: str, samples: Arrays) -> Tensor:
    """Logits by the definition: one network at one set of weights."""
    tuning = "linearised" if method == "linearised" else "non-linear"
    total = sum(
        (alpha * VECTORS[tuning][name] for alpha, name in zip(coefficients, NAMES, strict=True)),
        start=0.0 * VECTORS[tuning]["first"],
    )
    network = ENCODER if method == "non-linear" else linearize(ENCODER)
    return HEADS[task](network(samples.splits["test"][0], total.applied(ENCODER.params)))


@pytest.mark.parametrize("distance", ["disagreement", "total variation"])
def test_it_is_the_definition_at_every_place(distance: str) -> None:
    result = ask(control=CONTROL, distance=distance)
    assert result.methods == ("non-linear", "post-hoc", "linearised")

    def apart(one: Tensor, other: Tensor) -> float:
        if distance == "disagreement":
            return float((one.argmax(1) != other.argmax(1)).double().mean())
        return float((one.softmax(1) - other.softmax(1)).abs().sum(1).mean() / 2)

    for row, method in enumerate(result.methods):
        for i, j in ((0, 0), (1, 4), (4, 1), (3, 3)):
            a, b = float(result.alphas[i]), float(result.alphas[j])
            terms = [
                apart(outputs(method, alone, task, TASKS[task]), outputs(method, (a, b), task, TASKS[task]))
                for task, alone in (("first", (a, 0.0)), ("second", (0.0, b)))
            ]
            np.testing.assert_allclose(result.terms[row, :, i, j], terms, atol=1e-9)
            np.testing.assert_allclose(result.xi[row, i, j], sum(terms), atol=1e-9)
            moved = [
                apart(outputs(method, (0.0, 0.0), task, CONTROL), outputs(method, (a, b), task, CONTROL))
                for task in NAMES
            ]
            np.testing.assert_allclose(result.control[row, i, j], np.mean(moved), atol=1e-9)
    assert result.xi.max() > 0.3  # and the test can tell


def test_without_an_edit_there_is_no_error() -> None:
    result = ask(grid=3, control=CONTROL)
    assert result.alphas[1] == 0
    assert (result.xi[:, 1, 1] == 0).all()
    assert (result.control[:, 1, 1] == 0).all()
    assert (result.terms[:, 0, :, 1] == 0).all()  # without the second vector, the first task is as it was
    assert (result.terms[:, 1, 1, :] == 0).all()
    assert (result.terms[:, 0, 1, 0] > 0).any()


class TwoHalves(nn.Module):
    """Two networks with weights of their own, each of one half of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Linear(2, 6, bias=False), nn.Tanh(), nn.Linear(6, 5, bias=False)) for _ in "ab"
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x[:, :2]) + self.right(x[:, 2:])


def test_tasks_on_separate_inputs_and_weights_are_disentangled() -> None:
    encoder = network_of(TwoHalves, readout=None)
    ends = vectors_of(encoder, scale=1.0)
    vectors = {
        tuning: {
            name: dataclasses.replace(
                vector,
                deltas={key: delta * key.startswith(side) for key, delta in vector.deltas.items()},
            )
            for (name, vector), side in zip(ends[tuning].items(), ("left", "right"), strict=True)
        }
        for tuning in ends
    }
    x = normal(50, 4, seed=5)
    halves = (torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 1]))
    tasks = {
        name: Arrays({"test": (x * half, torch.zeros(50))}, torch.float64)
        for name, half in zip(NAMES, halves, strict=True)
    }
    nothing = Arrays({"test": (torch.zeros(3, 4), torch.zeros(3))}, torch.float64)
    result = disentanglement(encoder, HEADS, vectors, tasks, control=nothing, grid=6, run=CPU64)
    assert (result.xi == 0).all()
    assert (result.control == 0).all()
    assert all(area.value == area.low == area.high == 1 for area in result.areas.values())
    assert "The methods do not differ significantly." in result.sentence()
    mixed = disentanglement(encoder, HEADS, ends, tasks, grid=6, run=CPU64)
    assert mixed.xi.max() > 0.2  # and the test can tell


def test_methods_are_ranked_in_the_search_box_and_not_by_corners_where_networks_collapse() -> None:
    encoder = network_of(functools.partial(nn.Linear, 4, 5), readout=None)
    found = disentanglement(encoder, HEADS, vectors_of(encoder), TASKS, grid=5, run=CPU64)
    alike = np.broadcast_to(found.box_error[:1], found.box_error.shape).copy()
    corner = found.area.copy()
    corner[0] += 0.3  # one method is below the threshold on more of the grid
    collapsed = dataclasses.replace(found, area=corner, box_error=alike)
    assert "The methods do not differ significantly." in collapsed.sentence()
    terms, better = found.terms.copy(), alike.copy()
    terms[1][:, found.inside] -= 0.05  # each of two
    better[1] -= 0.1
    ranked = dataclasses.replace(found, terms=terms, box_error=better).sentence()
    assert f"from 0 to 1, {found.methods[1]} editing interferes less than" in ranked


def test_a_network_linear_in_its_weights_is_edited_alike_by_both_ways() -> None:
    encoder = network_of(functools.partial(nn.Linear, 4, 5), readout=None)
    result = disentanglement(encoder, HEADS, vectors_of(encoder), TASKS, grid=5, run=CPU64)
    np.testing.assert_array_equal(result.xi[0], result.xi[1])
    assert result.xi.max() > 0


def test_areas_and_their_intervals() -> None:
    narrow, wide = ask(threshold=0.1), ask(threshold=0.6)
    for name in narrow.methods:
        assert narrow.areas[name].value < wide.areas[name].value
        assert wide.areas[name].low <= wide.areas[name].value <= wide.areas[name].high
        assert abs(wide.area[wide.methods.index(name)].mean() - wide.areas[name].value) < 0.08
    place = narrow.methods.index("post-hoc")
    assert wide.areas["post-hoc"].value == (wide.xi[place] < 0.6).mean()
    # The mean over the box is a mean of independent samples of each task: its bootstrap error has a closed form.
    one = ask(box=(1.5, 1.5), resamples=4000)
    spread = np.sqrt((one.terms_error[0, :, 3, 3] ** 2).sum())
    assert one.box_errors["non-linear"].value == pytest.approx(one.xi[0, 3, 3])
    assert one.box_errors["non-linear"].standard_error == pytest.approx(spread, rel=0.05)


def test_more_samples_give_a_smaller_error_and_fewer_are_drawn_by_the_seed() -> None:
    few, other, whole = ask(points=10), ask(points=10, seed=1), ask()
    assert few.points == (10, 10)
    assert whole.points == (40, 40)
    assert not np.array_equal(few.xi, other.xi)
    ratio = few.terms_error.mean() / whole.terms_error.mean()
    assert 1.4 < ratio < 2.6


def test_some_methods_and_one_tuning_alone() -> None:
    whole, one = ask(), ask(methods=("linearised",))
    np.testing.assert_array_equal(one.xi[0], whole.xi[2])
    free = disentanglement(ENCODER, HEADS, {"non-linear": VECTORS["non-linear"]}, TASKS, grid=5, run=CPU64)
    assert free.methods == ("non-linear", "post-hoc")
    np.testing.assert_array_equal(free.xi, whole.xi[:2])


def test_a_pair_of_several_tasks() -> None:
    tasks, heads = {**TASKS, "third": CONTROL}, {**HEADS, "third": HEADS["first"]}
    swapped = disentanglement(ENCODER, heads, VECTORS, tasks, pair=("second", "first"), grid=5, run=CPU64)
    np.testing.assert_array_equal(swapped.xi, ask().xi.transpose(0, 2, 1))


def test_it_resumes_from_what_is_kept(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU64, folder=tmp_path)
    one = ask(run=run, control=CONTROL)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("outputs.safetensors")}
    assert len(files) == 3 * (2 + 2)
    two = ask(run=run, control=CONTROL)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("outputs.safetensors")} == files
    np.testing.assert_array_equal(one.xi, two.xi)


def test_the_sentence_and_the_subject() -> None:
    result = ask(name="Lite0", methods=("post-hoc",))
    assert result.subject == "Lite0"
    assert result.sentence().startswith("Task vectors of first and second on Lite0 do not interfere (ξ < 0.1)")
    assert isinstance(result, Disentanglement)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pair": ("first", "first")}, "pair must name two of the tasks first, second, got first, first"),
        ({"pair": ("first", "x")}, "pair must name two"),
        ({"distance": "x"}, "distance must be one of"),
        ({"grid": 1}, "grid and resamples must be at least 2"),
        ({"methods": ("x",)}, "methods must be among"),
        ({"split": "train"}, "split must be one of 'test', got 'train'"),
        ({"points": 0}, "points must be at least 1"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        ask(**change)


def test_missing_heads_and_vectors_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="'second' has none"):
        disentanglement(ENCODER, {"first": HEADS["first"]}, VECTORS, TASKS, run=CPU64)
    lacking = {"non-linear": {"first": VECTORS["non-linear"]["first"]}}
    with pytest.raises(ValueError, match="task vector for non-linear, but 'second' has none"):
        disentanglement(ENCODER, HEADS, lacking, TASKS, run=CPU64)
