"""Complexity: frequencies along lines against closed forms, at any grid, scale of the output and scale of the weights."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import zeta
from torch import Tensor, nn

from biascope.derivatives.waves import line_power
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.complexity import LINEAR, Complexity, complexity, scaled_weights, suits
from biascope.results.axes import InputAxes
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

CPU = Run(device="cpu", progress=False)
DOUBLE = Run(device="cpu", precision="float64", progress=False)
PAIRS = Probe.gaussian((6,), num=4, fresh=True)
LINE = Probe.fixed(torch.tensor([[0.0], [1.0]]))  # x = t


class Act(nn.Module):
    """A function of numbers as a layer, with an output that it multiplies and shifts."""

    def __init__(self, function: Callable[[Tensor], Tensor], factor: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.function, self.factor, self.offset = function, factor, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.function(x) + self.offset


def of_t(function: Callable[[Tensor], Tensor], points: int = 64) -> Complexity:
    """Of a function on the line x = t, whatever the weight in front of the output."""
    family = Family.initialised(lambda: nn.Sequential(Act(function), nn.Linear(1, 1)), name="wave")
    return complexity(family, LINE, draws=4, points=points, scales=(1.0,), run=DOUBLE)


def relu_network(hidden: int = 1, width: int = 32, inputs: int = 6, **act: float) -> nn.Module:
    """Gaussian weights without biases."""
    layers: list[nn.Module] = []
    for before in [inputs, *[width] * (hidden - 1)]:
        layers += [nn.Linear(before, width, bias=False), nn.ReLU()]
    layers.append(nn.Linear(width, 1, bias=False))
    for layer in layers[::2]:
        nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.weight.shape[1]))
    return nn.Sequential(*layers, Act(lambda x: x, **act)) if act else nn.Sequential(*layers)


def relu_kernel_complexity(points: int = 256) -> float:
    """Of one hidden layer of ReLU with Gaussian weights, between orthogonal inputs of equal length: by the arc-cosine kernel.

    It is exact at any width: power is an expectation over weights.
    """
    t = (np.arange(points) + 0.5) / points
    x = np.stack([1 - t, t], 1)
    lengths = np.linalg.norm(x, axis=1)
    cosine = np.clip(x @ x.T / np.outer(lengths, lengths), -1, 1)
    angle = np.arccos(cosine)
    kernel = np.outer(lengths, lengths) * (np.sin(angle) + (np.pi - angle) * cosine)
    k = np.arange(1, points)
    waves = np.cos(np.pi * np.outer(k, t))
    power = np.einsum("ki,ij,kj->k", waves, kernel, waves)
    return float((k / 2 * power).sum() / power.sum())


def test_a_linear_function_has_the_ratio_of_zeta_functions() -> None:
    assert pytest.approx(7 * zeta(3) / (15 * zeta(4)), abs=1e-8) == LINEAR
    found = complexity(
        Family.initialised(lambda: nn.Linear(6, 1), name="linear"), PAIRS, draws=6, points=256, run=DOUBLE
    )
    np.testing.assert_allclose([number.value for number in found.profile], LINEAR, rtol=3e-4)
    assert found.relative(5).value == pytest.approx(1.0, abs=1e-9)
    assert "0.518" in found.sentence()
    assert "Weights 8 times as large change this by nothing" in found.sentence()


@pytest.mark.parametrize("half_cycles", [1, 3, 8])
def test_a_cosine_of_whole_half_cycles_is_its_frequency(half_cycles: int) -> None:
    found = of_t(lambda x: torch.cos(half_cycles * torch.pi * x))
    assert found.complexity.value == pytest.approx(half_cycles / 2, rel=1e-9)
    assert found.spectrum[half_cycles - 1] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("omega", [2.0, 11.0, 40.0])
def test_a_sine_has_the_series_of_its_coefficients(omega: float) -> None:
    k = np.arange(1, 20_000)
    halves = [(1 - np.cos(omega + sign * np.pi * k)) / (omega + sign * np.pi * k) for sign in (1, -1)]
    power = np.square(sum(halves))
    expected = (k / 2 * power).sum() / power.sum()
    found = of_t(lambda x: torch.sin(omega * x), points=256)
    assert found.complexity.value == pytest.approx(expected, rel=2e-3)


def test_doubling_the_grid_moves_it_by_less_than_two_percent() -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)), name="tanh")
    coarse, fine = (complexity(family, PAIRS, draws=12, points=points, run=CPU) for points in (64, 128))
    assert coarse.resolved.all()
    for one, two in zip(coarse.profile, fine.profile, strict=True):
        assert one.value == pytest.approx(two.value, rel=0.02)


def test_waves_between_the_points_are_told_as_a_lower_bound() -> None:
    found = of_t(lambda x: torch.cos(100 * torch.pi * x))  # on 64 points it looks like 28 half cycles
    assert not found.resolved.any()
    assert found.complexity.value == pytest.approx(14.0, rel=1e-6)
    assert found.complexity.high == math.inf
    assert "--points 256" in found.warnings[0]
    assert "at least 14.000 cycles" in found.sentence()
    assert of_t(lambda x: torch.cos(100 * torch.pi * x), 256).complexity.value == pytest.approx(50.0, rel=1e-6)


def test_a_step_is_never_resolved() -> None:
    assert not of_t(lambda x: (x > 0.37).to(x), 256).resolved.any()


def test_a_relu_network_has_the_number_of_its_kernel_and_is_flat_in_the_scale() -> None:
    probe = Probe.fixed(torch.eye(6)[:2])
    found = complexity(
        Family.initialised(relu_network, name="ReLU"), probe, draws=600, scales=(0.25, 1.0, 8.0), run=CPU
    )
    expected = relu_kernel_complexity()
    assert expected == pytest.approx(0.5583, abs=1e-4)
    assert found.complexity.contains(expected)
    assert found.complexity.standard_error < 0.01
    values = [number.value for number in found.profile]
    np.testing.assert_allclose(values, values[1], rtol=1e-5)
    assert found.relative(2).value == pytest.approx(1.0, abs=1e-5)


def test_intervals_hold_the_number_of_the_kernel_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    expected, held = relu_kernel_complexity(), 0
    t = (np.arange(64) + 0.5) / 64
    x = np.stack([1 - t, t])
    for _ in range(200):
        inner, outer = generator.standard_normal((40, 16, 2)), generator.standard_normal((40, 1, 16))
        spectra = line_power((outer @ np.maximum(inner @ x, 0))[:, 0])
        cycles = np.arange(1, 64) / 2
        power, moment = spectra.sum(1)[:, None], (spectra @ cycles)[:, None]
        one, empty = np.ones(1), np.zeros((1, 0, 64))
        held += Complexity(one, power, moment, one > 0, cycles, cycles, empty, "").complexity.contains(expected)
    assert held >= 181  # of 200: 95 % but for two standard errors and a half


def test_power_is_pooled_over_draws_and_lines() -> None:
    """A network of outputs a hundred times as large decides, and one that is constant counts nothing."""

    class Mixed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            quiet = (self.weight > 0).to(x)  # half of the networks
            return (0.01 * quiet * torch.cos(9 * torch.pi * x) + (1 - quiet) * torch.cos(torch.pi * x)) * self.weight

    found = complexity(
        Family.initialised(lambda: Mixed(1, 1, bias=False), name="mixed"), LINE, draws=40, scales=(1.0,), run=DOUBLE
    )
    assert found.complexity.value == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize("factor", [1e-30, 1e22])
def test_the_size_of_the_output_does_not_matter(factor: float) -> None:
    plain, other = (
        complexity(
            Family.initialised(functools.partial(relu_network, factor=each), name="net"), PAIRS, draws=8, run=CPU
        )
        for each in (1.0, factor)
    )
    for one, two in zip(plain.profile, other.profile, strict=True):
        assert (two.value, two.low, two.high) == pytest.approx((one.value, one.low, one.high), rel=1e-4)
    np.testing.assert_allclose(other.spectrum, plain.spectrum, rtol=1e-2, atol=1e-9)


def test_a_constant_that_is_added_does_not_matter_and_is_refused_where_rounding_hides_the_rest() -> None:
    def of(offset: float, run: Run) -> Complexity:
        build = functools.partial(relu_network, offset=offset)
        return complexity(Family.initialised(build, name="net"), PAIRS, draws=8, scales=(1.0,), run=run)

    assert of(100.0, CPU).complexity.value == pytest.approx(of(0.0, CPU).complexity.value, rel=1e-3)
    with pytest.raises(ValueError, match="--precision float64"):
        of(1e6, CPU)
    assert of(1e6, DOUBLE).complexity.value == pytest.approx(of(0.0, DOUBLE).complexity.value, rel=1e-6)


def test_constant_networks_are_refused_and_constant_draws_are_told() -> None:
    def dead(x: Tensor) -> Tensor:
        return x * 0 + 3

    with pytest.raises(ValueError, match="constant along all lines"):
        complexity(
            Family.initialised(lambda: nn.Sequential(nn.Linear(6, 1), Act(dead)), name="dead"), PAIRS, draws=4, run=CPU
        )
    narrow = Family.initialised(functools.partial(relu_network, 3, 2), name="narrow")  # often no unit is active
    found = complexity(narrow, PAIRS, draws=60, scales=(1.0,), run=CPU)
    (told,) = [warning for warning in found.warnings if "constant" in warning]
    assert int(told.split(" of 60")[0].split()[-1]) == (found.power[:, 0] == 0).sum() > 0


def test_a_scale_that_leaves_the_precision_is_left_out() -> None:
    deep = functools.partial(relu_network, 50, 8)
    family = Family.initialised(deep, name="deep")
    found = complexity(family, PAIRS, draws=3, scales=(0.01, 1.0, 8.0), run=CPU)
    assert found.scales.tolist() == [1.0]
    assert any("With weights × 0.01 and 8" in warning for warning in found.warnings)
    assert complexity(family, PAIRS, draws=3, scales=(1.0, 8.0), run=DOUBLE).scales.tolist() == [1.0, 8.0]


def test_a_few_draws_that_decide_are_told() -> None:
    family = Family.initialised(lambda: nn.Sequential(relu_network(), Act(lambda x: x**9)), name="wild")
    found = complexity(family, PAIRS, draws=20, scales=(1.0,), run=CPU)
    assert any("count like" in warning for warning in found.warnings)


def test_what_a_scale_multiplies() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.zeros(5, 4))
            self.table = nn.Embedding(7, 4)
            self.norm = nn.LayerNorm([5, 4])
            self.slopes = nn.PReLU(4)
            self.attention = nn.MultiheadAttention(4, 2)
            self.recurrent = nn.GRU(4, 3)
            self.convolution = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 3, 2))

    assert scaled_weights(Network.of(Mine())) == [
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
        "convolution.parametrizations.weight.original0",
        "convolution.parametrizations.weight.original1",
    ]


def test_scales_multiply_weights_and_leave_biases() -> None:
    """The ramp max(0, x − ½) with its weight at 2 is max(0, 2x − ½): the bend moves to a quarter of the line."""

    class Ramp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(1, 1), nn.Linear(1, 1)
            nn.init.constant_(self.layer.weight, 1.0)
            nn.init.constant_(self.layer.bias, -0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.layer(x).relu())

    found = complexity(Family.initialised(Ramp, name="ramp"), LINE, draws=3, scales=(1.0, 2.0), run=DOUBLE)
    for number, bend in zip(found.profile, (0.5, 0.25), strict=True):
        expected = of_t(lambda x, bend=bend: (x - bend).relu())
        assert number.value == pytest.approx(expected.complexity.value, rel=1e-9)
    assert "2 layers (2 of 4 parameters)" in found.scaled


def test_larger_weights_are_told_to_bend_it_only_beyond_the_interval() -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)), name="tanh")
    found = complexity(family, PAIRS, draws=60, scales=(1.0, 8.0), run=CPU)
    assert found.relative(1).low > 1.1
    assert "Weights 8 times as large make it more complex" in found.sentence()
    few = complexity(family, PAIRS, draws=2, scales=(1.0, 1.5), run=CPU)
    assert "do not show whether" in few.sentence()


def test_one_network_is_measured_over_sets_of_inputs() -> None:
    torch.manual_seed(0)
    found = complexity(Family.point(relu_network(), name="one"), PAIRS, draws=30, scales=(1.0,), run=CPU)
    assert 0 < found.complexity.standard_error < 0.2
    assert found.sentence().endswith("at these weights.")


def test_tokens_sequences_and_tables() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(3, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.recurrent(x)[0][:, -1]

    family = Family.initialised(Last, name="LSTM")
    found = complexity(family, Probe.gaussian((5, 3), num=2, fresh=True), draws=4, run=CPU)
    assert 0.5 <= found.complexity.value < 1.0
    assert suits(InputAxes.of([], (14,)))


@pytest.mark.parametrize(
    ("probe", "settings", "words"),
    [
        (Probe.gaussian((6,), num=3, fresh=True), {}, "must be even"),
        (PAIRS, {"points": 8}, "points must be at least 16"),
        (PAIRS, {"scales": (2.0, 4.0)}, "with 1 among them"),
        (PAIRS, {"scales": (1.0, -1.0)}, "positive"),
        (PAIRS, {"draws": 1}, "draws must be at least 2"),
    ],
)
def test_what_makes_no_lines_is_refused(probe: Probe, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        complexity(Family.initialised(relu_network, name="net"), probe, **{"draws": 4, "run": CPU, **settings})


def test_token_ids_have_no_lines() -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 1)), name="ids")
    with pytest.raises(ValueError, match="real numbers in one tensor, got int64"):
        complexity(family, Probe.fixed(torch.ones(2, 6, dtype=torch.long)), draws=4, run=CPU)
