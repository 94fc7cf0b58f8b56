"""The measurements against closed forms, through the whole library: builder, replay, stack, covariance."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import closed_forms_geometry as geometry_forms
import closed_forms_pooling as pooling_forms
import numpy as np
import pytest
import torch
from networks_under_test import CPU
from torch import nn

from biascope.families.family import Family
from biascope.measures.anisotropy_directions import Anisotropy, anisotropy_directions
from biascope.measures.average_geometry import average_geometry
from biascope.measures.pooling_theory.models import aliasing_matrix
from biascope.results import store
from biascope.results.estimate import Estimate
from biascope.results.registry import load
from biascope.runs.run import Run
from biascope.tasks.probe import Probe


def gaussian_weights(module: nn.Module, stds: dict[str, float]) -> nn.Module:
    for name, parameter in module.named_parameters():
        nn.init.normal_(parameter, std=stds[name])
    return module


class PoolingModel(nn.Module):
    """θᵀA(m ⊙ φ ⊙ x), or with a ReLU on φ ⊙ x."""

    def __init__(self, prefilter: np.ndarray, stride: int, rectified: bool) -> None:
        super().__init__()
        folding = aliasing_matrix(len(prefilter), stride)
        self.register_buffer("folding", torch.tensor(folding, dtype=torch.float32))
        self.register_buffer("prefilter", torch.tensor(prefilter, dtype=torch.float32))
        self.theta = nn.Parameter(torch.randn(len(folding)) * 0.7)
        self.phi = nn.Parameter(torch.randn(len(prefilter)) * 1.3)
        self.rectified = rectified

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.phi * x
        hidden = hidden.relu() if self.rectified else hidden
        return ((self.prefilter * hidden) @ self.folding.T @ self.theta)[:, None]


class PooledConvolution(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.kernel = nn.Conv1d(1, channels, kernel, bias=False)
        self.readout = nn.Linear(channels, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.readout(self.kernel(x[:, None]).mean(2))


def convolution(padding: str, channels: int, kernel: int, size: int) -> nn.Module:
    settings = {"valid": {}, "circular": {"padding": kernel // 2, "padding_mode": "circular"}}[padding]
    layer = nn.Conv1d(1, channels, kernel, bias=False, **settings)
    positions = size if padding == "circular" else size - kernel + 1
    return nn.Sequential(
        nn.Unflatten(1, (1, size)), layer, nn.ReLU(), nn.Flatten(), nn.Linear(channels * positions, 1, bias=False)
    )


PREFILTER = np.array([1.0, 0.8, 0.5, 0.3, 0.2, 0.3, 0.5, 0.8])
X = torch.tensor([[0.5, -1.0, 2.0, 0.3, -0.7, 1.1, -0.2, 0.9]])

CASES: dict[str, tuple[Callable[[], nn.Module], np.ndarray]] = {
    "linear": (
        lambda: gaussian_weights(nn.Linear(8, 1, bias=False), {"weight": 0.6}),
        pooling_forms.linear_gradient_covariance(8, weight_std=0.6),
    ),
    "one hidden ReLU layer": (
        lambda: gaussian_weights(
            nn.Sequential(nn.Linear(8, 5, bias=False), nn.ReLU(), nn.Linear(5, 1, bias=False)),
            {"0.weight": 0.9, "2.weight": 0.7},
        ),
        pooling_forms.relu_layer_gradient_covariance(8, 5, theta_std=0.7, phi_std=0.9),
    ),
    "linear pooling": (
        lambda: PoolingModel(PREFILTER, 2, rectified=False),
        pooling_forms.linear_pooling_gradient_covariance(PREFILTER, 2, theta_std=0.7, phi_std=1.3),
    ),
    "non-linear pooling": (
        lambda: PoolingModel(PREFILTER, 2, rectified=True),
        pooling_forms.nonlinear_pooling_gradient_covariance(
            X[0].double().numpy(), PREFILTER, 2, theta_std=0.7, phi_std=1.3
        ),
    ),
    "valid convolution": (
        lambda: gaussian_weights(convolution("valid", 3, 3, 8), {"1.weight": 0.8, "4.weight": 0.5}),
        geometry_forms.convolution_geometry(
            [geometry_forms.patch_incidence((8,), 3)], [3], weight_stds=[0.8], readout_std=0.5
        ),
    ),
    "circular convolution": (
        lambda: gaussian_weights(convolution("circular", 3, 3, 8), {"1.weight": 0.8, "4.weight": 0.5}),
        geometry_forms.convolution_geometry(
            [geometry_forms.patch_incidence((8,), 3, padding="circular")], [3], weight_stds=[0.8], readout_std=0.5
        ),
    ),
    "pooled valid convolution": (
        lambda: gaussian_weights(PooledConvolution(4, 3), {"kernel.weight": 0.8, "readout.weight": 0.5}),
        geometry_forms.pooled_convolution_geometry(
            geometry_forms.mean_tap_matrix((8,), 3), 4, weight_std=0.8, readout_std=0.5
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_average_geometry_is_the_closed_form_up_to_its_error(name: str) -> None:
    build, wanted = CASES[name]
    family = Family.initialised(build, name=name)
    assert "replayed" in family.drawing
    errors = []
    for draws in (1_000, 16_000):
        result = average_geometry(family, Probe.fixed(X), draws=draws, run=CPU)
        errors.append(np.linalg.norm(result.matrix - wanted) / np.linalg.norm(wanted))
        assert abs(result.trace.value - np.trace(wanted)) < 4.5 * result.trace.standard_error
    assert errors[1] < 0.08
    assert errors[1] < 0.6 * errors[0]  # it falls like the root of the number of draws, here fourfold
    rank = np.trace(wanted) ** 2 / (wanted**2).sum()
    assert abs(result.effective_rank.value - rank) < 4.5 * result.effective_rank.standard_error


def test_centred_and_uncentred_agree_where_the_mean_is_zero_and_differ_where_it_is_not() -> None:
    def shifted() -> nn.Module:
        layer = nn.Linear(8, 1, bias=False)
        nn.init.normal_(layer.weight, mean=1.0, std=0.5)
        return layer

    family, probe = Family.initialised(shifted), Probe.fixed(X)
    centred = anisotropy_directions(family, probe, estimator="exact", draws=4000, run=CPU)
    uncentred = anisotropy_directions(family, probe, estimator="exact", draws=4000, centred=False, run=CPU)
    assert centred.effective_rank.contains(8)
    wanted = 0.25 * np.eye(8) + np.ones((8, 8))
    assert uncentred.effective_rank.contains(np.trace(wanted) ** 2 / (wanted**2).sum())
    assert abs(uncentred.directions[0] @ np.ones(8)) / np.sqrt(8) > 0.99


@pytest.mark.parametrize("seed", range(6))
def test_an_isotropic_network_has_one_interval_for_each_number_within_where_it_can_lie(
    seed: int, tmp_path: Path
) -> None:
    family = Family.initialised(lambda: nn.Linear(8, 1), name="isotropic")
    found = anisotropy_directions(family, Probe.fixed(X), estimator="exact", draws=40, seed=seed, run=CPU)
    assert "spreads evenly over all 8" in found.sentence()
    for name, low, high in (("effective_rank", 1, 8), ("anisotropy", 0, 1), ("trace", 0, np.inf)):
        number, shown = getattr(found, name), found.headline()[name]
        assert low <= number.low <= number.value <= number.high <= high
        assert (number.value, number.low, number.high) == (shown.value, shown.low, shown.high)
    outside = Estimate(-0.0046, 0.01, -0.0246, 0.0154)  # as earlier versions kept them
    earlier = dataclasses.replace(
        found, anisotropy=outside, effective_rank=outside.map_linear(-8.0, 8.0), trace=outside.map_linear(1.0, -1.0)
    )
    again = load(earlier.save(tmp_path / "earlier"))
    assert isinstance(again, Anisotropy)
    assert (again.anisotropy.value, again.anisotropy.low, again.anisotropy.high) == (0.0, 0.0, 0.0154)
    assert (again.effective_rank.value, again.effective_rank.high) == (8.0, 8.0)
    assert again.trace.value == again.trace.high == 0.0


class Common(nn.Module):
    """A linear network whose members share a gradient of a given length; their own weights have the spread of ``SPREAD``."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.register_buffer("common", torch.full((8,), length / 8**0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ (SPREAD.to(x) * self.weight + self.common))[:, None]


SPREAD = torch.tensor([1.0, 0.8, 0.5, 0.3, 0.2, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("estimator", ["exact", "difference"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_common_gradient_does_not_change_centred_directions_or_is_refused(precision: str, estimator: str) -> None:
    run = Run(device="cpu", precision=precision)

    def measured(length: float) -> Anisotropy:
        family = Family.initialised(lambda: Common(length), name="common")
        return anisotropy_directions(family, Probe.fixed(X), estimator=estimator, draws=64, run=run)

    wanted = measured(0.0)
    assert wanted.effective_rank.contains(float((SPREAD**2).sum() ** 2 / (SPREAD**4).sum()))
    for length in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8):
        if precision == "float32" and length >= 1e6:
            with pytest.raises(ValueError, match=r"more than rounding, but in float32.* Pass precision='float64'"):
                measured(length)
            continue
        found = measured(length)
        for name in ("effective_rank", "anisotropy", "trace"):
            one, two = getattr(found, name), getattr(wanted, name)
            assert (one.value, one.low, one.high) == pytest.approx((two.value, two.low, two.high), rel=0.01)
            assert one.contains(one.value)
        assert 1 <= found.effective_rank.value <= 8


@pytest.mark.parametrize("length", [1e2, 1e4, 1e5])
def test_differences_of_members_that_share_an_output_are_right_or_refused(length: float) -> None:
    """Rounding of a large common output, over a small step, is no spread of the members."""
    family, run = Family.initialised(lambda: Common(length), name="common"), Run(device="cpu", progress=False)
    settings = {"draws": 64, "run": run}
    wanted = anisotropy_directions(family, Probe.fixed(X), estimator="exact", **settings)  # type: ignore[arg-type]
    refused = 0
    for step in (1e-5, 1e-4, 1e-3, 1e-2, 1.0, 100.0):
        try:
            found = anisotropy_directions(family, Probe.fixed(X), estimator="difference", step=step, **settings)  # type: ignore[arg-type]
        except ValueError as error:
            refused += "Pass a larger step, or precision='float64'" in str(error)
        else:
            assert found.trace.value == pytest.approx(wanted.trace.value, rel=0.02)
            assert found.effective_rank.value == pytest.approx(wanted.effective_rank.value, rel=0.02)
    assert refused

    assert found.resolved == wanted.resolved


def test_members_of_one_gradient_have_no_covariance_about_their_mean() -> None:
    class Shift(nn.Module):  # random, but not along the input
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.square().sum(1, keepdim=True) + self.shift

    run = Run(device="cpu", precision="float64")
    with pytest.raises(ValueError, match=r"^Gradients of shift must differ between draws .* Pass centred=False"):
        anisotropy_directions(
            Family.initialised(Shift, name="shift"), Probe.fixed(X), estimator="exact", draws=16, run=run
        )


def test_differences_of_a_piecewise_linear_network_see_further_than_its_gradient() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    family, probe = Family.initialised(build), Probe.fixed(X)
    coarse, fine, exact = (
        anisotropy_directions(
            family, probe, estimator=estimator, step=step, draws=200, run=Run(device="cpu", precision="float64")
        )
        for estimator, step in (("difference", 100.0), ("difference", 1e-7), ("exact", 100.0))
    )
    assert fine.trace.value == pytest.approx(exact.trace.value, rel=1e-4)
    assert abs(coarse.trace.value - exact.trace.value) > 0.05 * exact.trace.value


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"estimator": "difference", "step": 10.0}, "central differences, h = 10"),
        ({"estimator": "mixed", "average": "operator"}, "mixed derivative, operator average"),
        ({"estimator": "tangent"}, "mixed derivative of one network"),
    ],
)
def test_a_result_of_an_earlier_version_is_read_with_what_it_kept_among_its_settings(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)), name="mlp")
    probe = Probe.gaussian((8,), fresh=settings["estimator"] == "tangent", seed=0)
    result = anisotropy_directions(family, probe, draws=16, seed=3, run=CPU, **settings)
    assert result.estimator == words
    added = ("derivative", "step", "average", "seed", "coherence", "kinks")
    among = {"coherence": result.coherence} if result.coherence is not None else {}
    among |= {"kinks": list(result.kinks)} if result.tangent else {}
    record = {**result.provenance, "settings": {**result.provenance["settings"], **among}}
    arrays = {name: getattr(result, name) for name in result.axes}
    values = {
        entry.name: getattr(result, entry.name)
        for entry in dataclasses.fields(result)
        if entry.name not in (*added, *arrays)
    }
    document = {"measurement": result.measurement, "values": {**values, "provenance": record}}
    again = load(store.write(tmp_path, document, arrays))
    assert isinstance(again, Anisotropy)
    assert again.estimator == words
    assert again.seed == 3
    assert again.coherence == result.coherence
    assert again.kinks == result.kinks
    assert again.sentence() == result.sentence()
    assert again.headline() == result.headline()
