"""Multiplying a network's outputs by a power of two multiplies squares by its square, and changes nothing else."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from biascope.derivatives.moments import Moments, unit_of
from biascope.derivatives.operators import GradientCovariance
from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.average_geometry import Geometry, average_geometry
from biascope.measures.covariance import CovarianceResult
from biascope.measures.geometry_evolution import geometry_evolution
from biascope.measures.mean_gradient import mean_gradient
from biascope.measures.tangent_kernel import tangent_kernel
from biascope.results.estimate import Estimate
from biascope.results.registry import load
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays

SCALES = {"1e-30": 2.0**-100, "1e22": 2.0**73}
FIXED, FRESH = Probe.gaussian((6,), seed=0), Probe.gaussian((6,), num=4, fresh=True, seed=0)
DATA = Arrays({"train": (torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2)})


class Scaled(nn.Module):
    """A small network whose output is multiplied."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x) * self.scale


def family(scale: float) -> Family:
    return Family.initialised(lambda: Scaled(scale), name="scaled")


MEASURES: dict[str, Callable[[float, Run], CovarianceResult]] = {
    "mean gradient": lambda scale, run: mean_gradient(family(scale), FRESH, draws=40, run=run),
    "average geometry": lambda scale, run: average_geometry(family(scale), FRESH, draws=40, run=run),
    **{
        f"{estimator} {average}": lambda scale, run, how={"estimator": estimator, "average": average}: (  # type: ignore[misc]
            anisotropy_directions(family(scale), FIXED, draws=12, run=run, **how)
        )
        for estimator, average in (
            ("exact", "gram"),
            ("difference", "gram"),
            ("mixed", "gram"),
            ("mixed", "operator"),
            ("mixed_difference", "gram"),
            ("mixed_difference", "operator"),
        )
    },
    "tangent": lambda scale, run: anisotropy_directions(family(scale), FRESH, draws=12, estimator="tangent", run=run),
}


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("name", MEASURES)
def test_a_scale_of_the_outputs_changes_squares_by_its_square_and_nothing_else(
    name: str, scale: float, tmp_path: Any
) -> None:
    run = Run(device="cpu")
    plain, scaled = MEASURES[name](1.0, run), MEASURES[name](scale, run)
    scaled = load(scaled.save(tmp_path / "saved"))  # type: ignore[assignment]
    for key in ("effective_rank", "anisotropy"):
        one, two = getattr(plain, key), getattr(scaled, key)
        assert (two.value, two.low, two.high) == pytest.approx((one.value, one.low, one.high), rel=1e-4, abs=1e-6)
    one, two = plain.trace, scaled.trace.map_linear(scale**-2)
    for entry in ("value", "standard_error", "low", "high"):
        assert getattr(two, entry) == pytest.approx(getattr(one, entry), rel=1e-4, nan_ok=True)
    np.testing.assert_allclose(scaled.eigenvalues * scale**-2, plain.eigenvalues, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(scaled.held_out * scale**-2, plain.held_out, rtol=1e-2, atol=1e-5)
    if isinstance(plain, Geometry) and isinstance(scaled, Geometry):
        np.testing.assert_allclose(scaled.matrix.astype(np.float64) * scale**-2, plain.matrix, rtol=1e-5, atol=1e-9)
    assert not repr(scaled.headline()["trace"]).startswith("0.00")
    assert len(repr(scaled.headline()["trace"])) < 80


@pytest.mark.parametrize("exponent", [-400, 400])
def test_in_float64_also_scales_beyond_those_of_float32_are_right(exponent: int) -> None:
    run, scale = Run(device="cpu", precision="float64"), 2.0**exponent
    for name in ("mean gradient", "average geometry", "exact gram"):
        plain, scaled = MEASURES[name](1.0, run), MEASURES[name](scale, run)
        assert scaled.effective_rank.low == pytest.approx(plain.effective_rank.low, rel=1e-6)
        assert scaled.trace.high * scale**-2 == pytest.approx(plain.trace.high, rel=1e-6)


@pytest.mark.parametrize(
    ("scale", "precision", "words"),
    [(2.0**-125, "float32", "float32 can hold"), (2.0**-510, "float64", "float64 can hold")],
)
def test_what_a_precision_cannot_hold_is_said(scale: float, precision: str, words: str) -> None:
    for name in ("mean gradient", "average geometry", "exact gram", "difference gram"):
        with pytest.raises(ValueError, match=words):
            MEASURES[name](scale, Run(device="cpu", precision=precision))


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_tangent_kernel_is_right_or_names_the_precision_that_it_needs(scale: float) -> None:
    double = Run(device="cpu", precision="float64")
    plain, scaled = (tangent_kernel(family(each), DATA, leading=3, run=double) for each in (1.0, scale))
    np.testing.assert_allclose(scaled.eigenvalues * scale**-2, plain.eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(scaled.trace * scale**-2, plain.trace, rtol=1e-9)
    np.testing.assert_allclose(scaled.energy, plain.energy, rtol=1e-6)
    with pytest.raises(ValueError, match="precision='float64'"):
        tangent_kernel(family(scale), DATA, leading=3, run=Run(device="cpu"))


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_an_evolution_that_float32_cannot_hold_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"Pass precision='float64'|or pass precision='float64'"):
        geometry_evolution(family(scale), DATA, draws=4, geometry_draws=8, run=Run(device="cpu"))


def test_sums_in_different_units_are_those_in_one() -> None:
    gradients = torch.randn(24, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for form in ("dense", "rows"):
        found = []
        for units in ((1.0, 1.0), (2.0**-30, 2.0**12)):
            groups = []
            for index, part in enumerate(gradients.split(6)):
                groups.append(Moments.empty(5, form, torch.device("cpu"), part[0, 0], units[index % 2]))
                groups[-1].add(part)
            covariance = GradientCovariance(groups, True, 1)
            found.append((covariance.dense(), covariance.trace(), covariance.effective_rank()))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)
        for one, two in zip(found[0][1:], found[1][1:], strict=True):
            assert (one.value, one.low) == pytest.approx((two.value, two.low), rel=1e-5)


def test_a_unit_is_a_power_of_two_and_dividing_by_it_is_exact() -> None:
    for exponent in (-148, -126, -3, 0, 100, 127):
        numbers = torch.tensor([1.5, -1.25]) * 2.0**exponent
        unit = unit_of(numbers)
        assert 0 < float(unit) < float("inf")
        assert torch.equal((numbers / unit) * unit, numbers)


def test_a_sketch_of_tiny_gradients_is_that_of_large_ones() -> None:
    gradients = torch.randn(20, 1, 200, generator=torch.Generator().manual_seed(0))
    found = []
    for scale in SCALES.values():
        sums = Moments.empty(200, "sketch", torch.device("cpu"), unit=float(unit_of(gradients * scale)))
        sums.add(gradients * scale)
        found.append(sums.in_unit(scale).second.quadratic(torch.eye(200, dtype=torch.float64)))
        assert float(found[-1].sum()) == pytest.approx(float(gradients.square().sum()), rel=1e-3)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("value", [3e-62, 3e-9, 3.0, 3e8, 3e42])
def test_a_number_of_any_size_is_printed_with_its_digits(value: float) -> None:
    text = repr(Estimate(value, value / 10, 0.8 * value, 1.2 * value))
    assert len(text) < 70
    numbers = [
        float(word) for word in text.replace("(95 % CI", "").replace("±", "").replace("to", "").strip(")").split()
    ]
    assert numbers == pytest.approx([value, value / 10, 0.8 * value, 1.2 * value], rel=0.05)
    assert dataclasses.astuple(Estimate.exact(value))[0] == value


def test_two_draws_are_enough_for_any_rank() -> None:
    for size in (1, 2, 6):
        for seed in range(6):
            family = Family.initialised(
                lambda size=size: nn.Sequential(nn.Linear(size, 3), nn.Tanh(), nn.Linear(3, 1)), name="small"
            )
            result = mean_gradient(
                family, Probe.gaussian((size,), num=2, fresh=True, std=8.0), draws=2, seed=seed, run=Run(device="cpu")
            )
            assert 1 <= result.effective_rank.value <= size
            assert result.unclear() or size == 1


@pytest.mark.parametrize("estimator", ["exact", "difference", "mixed", "mixed_difference"])
def test_an_input_of_one_number_has_one_direction(estimator: str) -> None:
    single = Family.initialised(lambda: nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)), name="curve")
    run = Run(device="cpu")
    results = [
        anisotropy_directions(single, Probe.gaussian((1,)), draws=9, estimator=estimator, run=run),
        mean_gradient(single, Probe.gaussian((1,), num=2, fresh=True), draws=9, run=run),
        average_geometry(single, Probe.gaussian((1,), num=2, fresh=True), draws=9, run=run),
    ]
    for result in results:
        assert (result.effective_rank, result.anisotropy) == (Estimate.exact(1.0), Estimate.exact(0.0))
        assert "curve has the one direction of an input of one number." in result.sentence()


@pytest.mark.parametrize("measure", [mean_gradient, average_geometry])
def test_a_small_rank_keeps_its_digit_in_the_sentence(measure: Callable[..., CovarianceResult]) -> None:
    result = measure(family(1.0), FRESH, draws=40, run=Run(device="cpu"))
    rank = dataclasses.replace(result, effective_rank=Estimate(1.84, 0.03, 1.77, 1.92))
    assert "about 1.8 of 6 directions" in rank.sentence()
