"""How long draws take is predicted by timing what is quick, and by the operations of what is not."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from biascope.derivatives import draw_times
from biascope.derivatives.draw_times import DrawTimes, outlined, pass_of
from biascope.families.family import Family
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

CPU = Run(device="cpu", progress=False)
HOW = {"estimator": "exact", "step": 1.0, "readout": "first", "seed": 0}
PROBE = Probe.gaussian((6,), num=4, fresh=True)


def build(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1))


def test_an_outline_counts_what_the_network_has_and_does() -> None:
    family = Family.initialised(build, name="small")
    outline = outlined(build, (6,), "small", None)
    assert outline is not None
    assert outline.num_parameters == family.num_parameters
    assert outline.one == pass_of(family, (6,), CPU) == pass_of(outline, (6,), CPU)
    assert not outline.large


def test_a_network_beyond_memory_has_an_outline() -> None:
    outline = outlined(lambda: nn.Linear(6, 10**12, bias=False), (6,), "wide", None)
    assert outline is not None
    assert outline.num_parameters == 6 * 10**12
    assert outline.large
    seconds, told = DrawTimes(outline, (6,), CPU).expected(PROBE, 100, **HOW)
    assert seconds > 1e5
    assert told == "roughly, from its operations"


def reads_its_weights() -> nn.Module:
    layer = nn.Linear(6, 1)
    layer.weight.data /= float(layer.weight.data.norm())  # which has no value without a device
    return layer


@pytest.mark.parametrize(("builder", "shape"), [(reads_its_weights, (6,)), (build, (7,))])
def test_what_cannot_be_built_or_called_without_weights_has_none(builder: object, shape: tuple[int, ...]) -> None:
    assert outlined(builder, shape, "odd", None) is None  # type: ignore[arg-type]


def test_an_outline_moves_no_random_state() -> None:
    before = torch.get_rng_state()
    outlined(build, (6,), "small", None)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_larger_the_draws_are_the_less_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = functools.partial(DrawTimes, Family.initialised(build, name="small"), (6,), CPU)
    _, told = times().expected(PROBE, 8, **HOW)
    assert "one" in told  # one at a time, or one for each core
    monkeypatch.setattr(draw_times, "_QUICK", 0.0)
    seconds, told = times().expected(PROBE, 8, **HOW)
    assert told.startswith("from the gradient at ")
    assert 0 < seconds < 10
    differences, _ = times().expected(PROBE, 8, **HOW | {"estimator": "difference"})
    assert differences > seconds  # twelve forward passes in place of two and a half
    monkeypatch.setattr(draw_times, "_SHORT", 0.0)
    _, told = times().expected(PROBE, 8, **HOW)
    assert told == "roughly, from its operations"
