"""Sensitivity: total indices and mean dimensions of functions whose closed forms are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope import Family, Probe, Run, load
from biascope.measures.sensitivity import Places, Sensitivity, sensitivity, suits
from biascope.results.axes import Axis, InputAxes

CPU = Run(device="cpu", precision="float64", progress=False)


class Function(nn.Module):
    """A function of the input as a network with a weight: its factor."""

    def __init__(self, function, factor: float = 1.0) -> None:
        super().__init__()
        self.function, self.factor = function, nn.Parameter(torch.tensor(float(factor)))

    def forward(self, x: Tensor) -> Tensor:
        found = self.factor * self.function(x)
        return found if found.dim() > 1 else found[:, None]


def measured(function, shape=(6,), num=64, law=None, run=CPU, axes="", **how) -> Sensitivity:
    family = Family.point(function if isinstance(function, nn.Module) else Function(function), name="f")
    if axes:
        object.__setattr__(family, "axes", tuple(map(Axis, axes.split(","))))
    probe = Probe.gaussian(shape, num=num, fresh=True) if law is None else law
    return sensitivity(family, probe, **({"draws": 100, "run": run} | how))


def signs(shape: tuple[int, ...], num: int) -> Probe:
    def sampler(generator: torch.Generator, count: int) -> Tensor:
        return torch.randint(0, 2, (count, *shape), generator=generator).double() * 2 - 1

    return Probe.sampled(sampler, num, description="random signs", independent=True)


def values(result: Sensitivity) -> np.ndarray:
    return np.array([each.value for each in result.indices()])


def test_a_linear_function_has_its_squared_weights():
    weights = torch.tensor([3.0, -2.0, 0.6, 0.5, 0.0, 0.0], dtype=torch.float64)
    found = measured(lambda x: x @ weights.to(x) + 5)
    expected = (weights.square() / weights.square().sum()).numpy()
    np.testing.assert_allclose(values(found), expected, atol=0.04)
    assert (values(found)[4:] == 0).all()
    assert found.mean_dimension.contains(1.0)
    assert found.mean_dimension.high < 1.1
    assert "of the sensitivity is on features 1 and 2 of 6." in found.sentence()
    assert "of its variance lies in combinations of features" in found.sentence()
    assert not found.warnings


@pytest.mark.parametrize("together", [2, 3, 6])
def test_a_parity_has_as_many_as_it_multiplies(together: int):
    found = measured(lambda x: x[:, :together].prod(1), law=signs((6,), 64))
    assert found.mean_dimension.value == pytest.approx(together, rel=0.05)
    assert found.mean_dimension.contains(together)
    np.testing.assert_allclose(values(found)[:together], 1.0, atol=0.1)
    assert (values(found)[together:] == 0).all()


def test_an_additive_function_has_one():
    found = measured(lambda x: x.abs()[:, 0] + x[:, 1].sin() + x[:, 2].square())
    assert found.mean_dimension.contains(1.0)
    assert found.mean_dimension.high < 1.15


def test_a_quadratic_form_has_its_known_indices():
    # Var = 2 Σ a_ii² + 4 Σ_{i<j} a_ij², of which all terms with i belong to i.
    matrix = torch.tensor([[1.0, 0.5, 0.0], [0.5, 0.0, 1.0], [0.0, 1.0, 0.5]], dtype=torch.float64)
    found = measured(lambda x: ((x @ matrix.to(x)) * x).sum(1), (3,), draws=400, replaced=16)
    squares = matrix.square()
    variance = 2 * squares.sum()
    expected = [float((2 * squares[i, i] + 4 * (squares[i].sum() - squares[i, i])) / variance) for i in range(3)]
    np.testing.assert_allclose(values(found), expected, atol=0.05)
    assert found.mean_dimension.value == pytest.approx(sum(expected), rel=0.04)
    assert found.mean_dimension.contains(sum(expected))


def test_a_network_that_reads_one_token():
    found = measured(lambda x: x[:, 2].square().sum(1), (5, 3), axes="token,channel")
    assert values(found)[[0, 1, 3, 4]].tolist() == [0, 0, 0, 0]
    assert values(found)[2] == pytest.approx(1.0, abs=0.1)  # three numbers together, so nothing is a combination
    assert "Over 99 % of the sensitivity is on the 3rd of 5 tokens." in found.sentence()


def test_steps_are_told_whichever_axis_is_time():
    for axes, shape, last in (
        ("time,feature", (8, 2), lambda x: x[:, -2:]),
        ("feature,time", (2, 8), lambda x: x[..., -2:]),
    ):
        found = measured(lambda x, last=last: last(x).flatten(1).prod(1), shape, axes=axes)
        assert "Over 99 % of the sensitivity is on the last 2 of 8 steps." in found.sentence()


def test_an_image_is_divided_into_patches():
    found = measured(lambda x: x[:, :, 8:12, 4:8].sum((1, 2, 3)), (3, 32, 32))
    indices = values(found).reshape(8, 8)
    assert indices[2, 1] == pytest.approx(1.0, abs=0.1)
    assert (np.delete(indices.ravel(), 17) == 0).all()
    assert "patch (3, 2) of 64" in found.sentence()
    assert "64 patches of 4×4 pixels" in found.sentence()
    assert not suits(InputAxes.of([], (1,)))


@pytest.mark.parametrize(
    ("shape", "names", "words", "sizes"),
    [
        ((1, 28, 28), "", "49 patches of 4×4 pixels", {16}),
        ((3, 30, 30), "", "64 patches of 4×4 pixels", {48, 24, 12}),
        ((1, 8, 8), "", "64 patches of one pixel", {1}),
        ((1, 224, 224), "", "64 patches of 28×28 pixels", {784}),
        ((3, 1, 1), "", "3 channels", {1}),
        ((14,), "", "14 features", {1}),
        ((130,), "", "44 groups of 3 features", {3, 1}),
        ((200, 3), "time,feature", "50 blocks of 4 steps", {12}),
        ((3, 200), "channel,time", "50 blocks of 4 steps", {12}),
        ((7, 4), "node,feature", "7 nodes", {4}),
        ((5, 4), "", "5 places", {4}),
    ],
)
def test_places_of_each_kind_of_input(shape, names, words, sizes):
    axes = InputAxes.of(tuple(map(Axis, filter(None, names.split(",")))), shape)
    found = Places.of(axes, 64)
    assert found.in_words == words
    assert found.count == len(found.labels) <= 64
    assert set(np.bincount(found.part_of.flatten().numpy()).tolist()) == sizes
    assert found.sizes.sum() == pytest.approx(1)


def test_wide_random_networks_have_that_of_their_kernel():
    # The mean kernel of one hidden layer without bias, at correlation ρ: Σ S = d (k(1) − k(1 − 1/d)) / (k(1) − k(0)).
    def kernel(rho: float) -> float:
        return math.sqrt(1 - rho**2) + (math.pi - math.acos(rho)) * rho

    count, width = 8, 512
    family = Family.initialised(
        lambda: nn.Sequential(nn.Linear(width, 64, bias=False), nn.ReLU(), nn.Linear(64, 8, bias=False)), name="wide"
    )
    probe = Probe.gaussian((width,), num=64, fresh=True)
    found = sensitivity(family, probe, draws=150, readout="all", places=count, run=CPU)
    expected = count * (kernel(1) - kernel(1 - 1 / count)) / (kernel(1) - kernel(0))
    assert expected == pytest.approx(1.31, abs=0.01)
    assert found.mean_dimension.value == pytest.approx(expected, rel=0.03)
    assert "8 groups of 64 features" in found.sentence()


def test_intervals_cover_the_known_value():
    family = Family.point(Function(lambda x: x[:, 0] * x[:, 1] + x[:, 2]), name="f")
    whole = sensitivity(family, Probe.gaussian((3,), num=32, fresh=True), draws=1000, run=CPU)
    parts = [
        replace(whole, changes=whole.changes[start : start + 20], variances=whole.variances[start : start + 20])
        for start in range(0, 1000, 20)
    ]
    covered = np.mean([part.mean_dimension.contains(1.5) for part in parts])
    assert 0.88 <= covered <= 0.995
    spread = np.std([part.mean_dimension.value for part in parts])
    assert np.mean([part.mean_dimension.standard_error for part in parts]) == pytest.approx(spread, rel=0.2)


def test_scale_and_an_added_constant_do_not_matter():
    first = measured(lambda x: x[:, 0] * x[:, 1] + x[:, 2])
    for factor in (1e-30, 1e22):
        again = measured(Function(lambda x: x[:, 0] * x[:, 1] + x[:, 2], factor))
        np.testing.assert_allclose(values(again), values(first), rtol=1e-9)
        assert again.sentence() == first.sentence()
    shifted = measured(lambda x: x[:, 0] * x[:, 1] + x[:, 2] + 1e4)
    np.testing.assert_allclose(values(shifted), values(first), rtol=1e-9)


def test_rounding_is_refused_and_double_precision_helps():
    far = Function(lambda x: x[:, 0] * x[:, 1] + 1e6)
    single = Run(device="cpu", progress=False)
    with pytest.raises(ValueError, match=r"by more than its rounding in float32.*--precision float64"):
        measured(far, run=single, draws=8)
    assert measured(far, draws=50).mean_dimension.value == pytest.approx(2.0, rel=0.15)


class SometimesDead(nn.Linear):
    """Constant for half of the draws."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.bias > 0)


def test_dead_draws_do_not_count_and_constant_networks_are_refused():
    found = sensitivity(
        Family.initialised(lambda: SometimesDead(3, 1)), Probe.gaussian((3,), num=32, fresh=True), draws=60, run=CPU
    )
    dead = int((found.variances == 0).sum())
    assert 15 < dead < 45
    assert any(f"constant for {dead} of 60 drawn networks" in each for each in found.warnings)
    assert found.mean_dimension.contains(1.0)
    with pytest.raises(ValueError, match="must depend on its input, but its output is constant"):
        measured(lambda x: 0 * x[:, 0] + 3.0)


def test_one_draw_that_dominates_leaves_the_number_open():
    found = measured(lambda x: x[:, 0], draws=2)
    assert found.unclear()
    assert "needs more draws" in found.sentence()


def test_all_outputs_count_by_their_variance():
    # One output of variance 1 and dimension 1, one of variance 3 and dimension 2.
    found = measured(lambda x: torch.stack([x[:, 2], math.sqrt(3) * x[:, 0] * x[:, 1]], 1), readout="all", draws=300)
    assert found.mean_dimension.value == pytest.approx((1 + 3 * 2) / 4, rel=0.04)


class Weighted(nn.Module):
    """A sum and a product of its inputs, each with a weight."""

    def __init__(self, single: float, product: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([single, product]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weights[0] * x[:, 2] + self.weights[1] * x[:, 0] * x[:, 1])[:, None]


def test_networks_count_by_the_variance_of_their_output():
    members = [Weighted(1.0, 0.0) if index % 2 else Weighted(0.0, math.sqrt(3)) for index in range(100)]
    probe = Probe.gaussian((3,), num=64, fresh=True)
    found = sensitivity(Family.empirical(members), probe, draws=100, run=CPU)
    assert found.mean_dimension.value == pytest.approx((1 + 3 * 2) / 4, rel=0.06)  # a mean of ratios would give 1.5


@pytest.mark.parametrize("num", [2, 3])
def test_few_inputs_leave_it_unbiased(num: int):
    found = measured(lambda x: x[:, 0] * x[:, 1] + x[:, 2], num=num, draws=1000)
    assert found.mean_dimension.value == pytest.approx(1.5, rel=0.12)
    assert found.mean_dimension.contains(1.5)


def test_padding_that_a_mask_excludes_has_no_index():
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    found = measured(lambda x: (x.tanh().sum(2) * mask.to(x)).sum(1), (5, 3), axes="token,channel")
    assert values(found)[3:].tolist() == [0, 0]
    assert "No drawn output changes with the last 2 of 5 tokens." in found.sentence()


def test_fixed_places_keep_their_value():
    found = measured(lambda x: x[:, 0, 0] * x[:, 1, 0], (4, 2), axes="token,channel", fixed=(1,), draws=200)
    assert values(found)[0] == 0
    assert values(found)[1] == pytest.approx(1.0, abs=0.15)
    assert found.mean_dimension.contains(1.0)  # linear where the first token is fixed
    assert found.headline()["places"].value == 3
    assert "over 3 of 4 tokens" in found.sentence()
    assert (
        "No drawn output" not in measured(lambda x: x.sum((1, 2)), (4, 2), axes="token,channel", fixed=(1,)).sentence()
    )


def test_samples_take_the_place_from_another_sample():
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    family = Family.empirical([Function(lambda x: x[:, 0] + 2 * x[:, 1], factor) for factor in (1.0, 2.0, 3.0, 4.0)])
    found = sensitivity(family, Probe.fixed(x), run=CPU, draws=4, replaced=4)
    # Samples on a line: Var(3t) = 9 Var t, and replacing gives Var t and 4 Var t.
    assert found.mean_dimension.value < 0.9
    assert "mean dimension" not in found.sentence()
    assert any("no mean dimension" in each for each in found.warnings)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"replaced": 0}, "replaced must be at least 1 input"),
        ({"places": 1}, "places must be at least 2"),
        ({"fixed": (7,)}, "fixed must name places from 1 to 6"),
        ({"fixed": (1, 1)}, "different places"),
        ({"fixed": (1, 2, 3, 4, 5, 6)}, "leave one of 6 free"),
        ({"num": 1}, "at least 2 inputs"),
        ({"shape": (1,)}, "more than one place"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(how, words):
    with pytest.raises(ValueError, match=words):
        measured(lambda x: x.sum(1), **({"draws": 4} | how))


def test_it_is_saved_with_its_places(tmp_path):
    found = measured(lambda x: x[..., -4:].sum((1, 2)), (2, 130), axes="channel,time", draws=20)
    again = load(found.save(tmp_path / "saved"))
    assert again.sentence() == found.sentence()
    assert again.tables()["profile"][0]["place"] == "1 to 3"
    assert "the last 2 of 44 blocks" in found.sentence()
