"""Networks that ignore part of their input: directions without any variance are neither resolved nor compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from biascope.derivatives import moments
from biascope.derivatives.covariance import GradientSampler, agreement_of_halves, gradient_covariance
from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.average_geometry import average_geometry
from biascope.measures.covariance import CovarianceResult, covariance_fields
from biascope.measures.covariance.compare import side_by_side
from biascope.measures.geometry_evolution import geometry_evolution
from biascope.measures.mean_gradient import mean_gradient
from biascope.results.axes import InputAxes
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays

TURN = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(0))).Q


class Seeing(nn.Module):
    """Two layers on the first few of 32 coordinates, after a fixed rotation or without one."""

    def __init__(self, seen: int, turned: bool) -> None:
        super().__init__()
        self.seen = seen
        self.register_buffer("turn", TURN.clone() if turned else torch.eye(32))
        self.layers = nn.Sequential(nn.Linear(seen, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers((x @ self.turn)[:, : self.seen])


def seeing(seen: int, turned: bool = True) -> Family:
    return Family.initialised(lambda: Seeing(seen, turned), name=f"{seen} of 32")


FRESH = Probe.gaussian((32,), num=4, fresh=True)
MEASURES: dict[str, tuple[Any, Probe, dict[str, Any]]] = {
    "mean gradient": (mean_gradient, FRESH, {}),
    "average geometry": (average_geometry, FRESH, {}),
    "exact": (anisotropy_directions, Probe.gaussian((32,)), {"estimator": "exact"}),
    "mixed": (anisotropy_directions, Probe.gaussian((32,)), {"estimator": "mixed"}),
    "tangent": (anisotropy_directions, Probe.gaussian((32,), num=4), {"estimator": "tangent"}),
}


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("seen", [6, 24])
@pytest.mark.parametrize("name", MEASURES)
def test_no_more_directions_are_resolved_than_are_seen(name: str, seen: int, turned: bool, precision: str) -> None:
    measure, probe, settings = MEASURES[name]
    run = Run(device="cpu", precision=precision, progress=False)
    result: CovarianceResult = measure(seeing(seen, turned), probe, draws=120, run=run, **settings)
    positive = np.count_nonzero(result.eigenvalues)
    assert positive <= seen
    assert result.resolved is not None
    assert 0 < result.resolved <= positive
    if name in ("average geometry", "exact"):  # with so many draws, all that is seen is resolved
        assert (result.resolved, positive) == (seen, seen)
    # What no half has measured is compared with nothing.
    assert np.isnan(result.similarity[result.similarity_sizes > seen]).all()
    assert np.isnan(result.held_out[seen:]).all()


def test_a_sketch_resolves_no_more_than_is_seen_either(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROWS_LIMIT": 0, "DENSE_LIMIT": 0, "SKETCH_SIZE": 16}.items():
        monkeypatch.setattr(moments, name, value)
    monkeypatch.setattr("biascope.derivatives.operators.DENSE_LIMIT", 0)
    run = Run(device="cpu", progress=False)
    sampler = GradientSampler(
        seeing(6), Probe.gaussian((32,)), estimator="exact", step=1.0, readout="first", seed=0, run=run
    )
    covariance = gradient_covariance(sampler, draws=120, seed=0)
    assert isinstance(covariance.total.second, moments.Sketch)
    fields = covariance_fields(covariance, InputAxes.of((), (32,)), 16)
    assert fields["resolved"] == np.count_nonzero(fields["eigenvalues"]) == 6


@pytest.mark.parametrize("measure", [mean_gradient, average_geometry])
def test_sampling_does_not_stop_because_halves_agree_on_what_they_have_not_measured(measure: Any) -> None:
    isotropic = Family.initialised(lambda: nn.Linear(256, 1), name="isotropic")
    probe = Probe.gaussian((256,), num=2, fresh=True)
    result = measure(isotropic, probe, draws=32, stable=0.6, run=Run(device="cpu", progress=False))
    assert result.draws == 32  # the ten leading directions of two halves of few draws have nothing in common


def test_a_network_with_fewer_directions_than_asked_for_can_be_stable() -> None:
    run = Run(device="cpu", progress=False)
    result = average_geometry(seeing(3), FRESH, draws=320, stable=0.9, run=run)
    assert 8 <= result.draws < 320
    sampler = GradientSampler(seeing(3), FRESH, estimator="exact", step=1.0, readout="first", seed=0, run=run)
    assert agreement_of_halves(gradient_covariance(sampler, draws=32, seed=0), 10) == pytest.approx(1.0)
    assert agreement_of_halves(gradient_covariance(sampler, draws=4, seed=0), 10) < 0.5  # two draws in each half


def test_networks_are_compared_on_directions_that_they_have() -> None:
    run = Run(device="cpu", progress=False)
    one, two = (average_geometry(seeing(3), FRESH, draws=200, seed=seed, run=run) for seed in (0, 1))
    table = side_by_side([one, two])
    assert table.leading == 3
    assert table.overlap[0, 1] == pytest.approx(1.0)
    assert table.resolved.all()


def test_evolution_is_compared_with_no_more_directions_than_the_samples_span() -> None:
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(1))
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 1)), name="mlp")
    data = Arrays({"train": (x, torch.arange(6) % 2)})
    result = geometry_evolution(family, data, draws=8, geometry_draws=64, run=Run(device="cpu", progress=False))
    assert result.sizes.max() <= 6
