"""Statistics of draws: each is a function of its draw alone, is kept, and belongs to what was asked for."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from biascope.derivatives.draw_statistics import Drawn, draw_statistics
from biascope.families.family import Family
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

FAMILY = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), name="small")
PROBE = Probe.gaussian((6,), num=5, fresh=True)
HOW = {"readout": None, "seed": 3, "label": "means of outputs"}


def means(drawn: Drawn, x: Tensor) -> Tensor:
    return drawn(x).mean(0)


def noise(drawn: Drawn, x: Tensor) -> Tensor:
    return torch.rand(2, generator=drawn.generator)


def slope(drawn: Drawn, x: Tensor) -> Tensor:
    return drawn.slopes(x, torch.ones_like(x))[1].mean(0)


def test_they_are_those_of_a_loop_over_networks() -> None:
    run = Run(device="cpu", precision="float64")
    found = draw_statistics(FAMILY, PROBE, means, draws=70, run=run, **HOW)
    stack, inputs = FAMILY.draw(70, seed=3, run=run), PROBE.inputs(0, 70, run)
    expected = torch.stack([stack.member(i)(inputs[i]).mean(0) for i in range(70)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_slopes_are_differences() -> None:
    run = Run(device="cpu", precision="float64")
    found = draw_statistics(FAMILY, PROBE, slope, draws=4, run=run, **HOW)
    stack, inputs = FAMILY.draw(4, seed=3, run=run), PROBE.inputs(0, 4, run)
    ahead, behind = (torch.stack([stack.member(i)(inputs[i] + h).mean(0) for i in range(4)]) for h in (1e-5, -1e-5))
    torch.testing.assert_close(found, (ahead - behind) / 2e-5, rtol=1e-7, atol=1e-9)


def test_random_numbers_of_a_draw_depend_on_its_number_and_the_seed() -> None:
    run = Run(device="cpu")
    few, many = (draw_statistics(FAMILY, PROBE, noise, draws=count, run=run, **HOW) for count in (3, 9))
    assert torch.equal(few, many[:3])
    assert len(many.unique()) == 18
    other = draw_statistics(FAMILY, PROBE, noise, draws=3, run=run, **(HOW | {"seed": 4}))
    assert not torch.equal(few, other)


def test_one_network_is_measured_at_sets_of_inputs() -> None:
    family = Family.point(nn.Linear(6, 1), name="one")
    found = draw_statistics(family, PROBE, means, draws=4, run=Run(device="cpu"), **HOW)
    assert len(found.unique()) == 4
    with pytest.raises(ValueError, match="fresh inputs"):
        draw_statistics(family, Probe.gaussian((6,)), means, draws=4, run=Run(device="cpu"), **HOW)


def test_finished_groups_are_read_again(tmp_path: Path) -> None:
    run = Run(device="cpu", folder=tmp_path)
    first = draw_statistics(FAMILY, PROBE, means, draws=64, run=run, **HOW)
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == 32
    files[5].unlink()
    assert torch.equal(draw_statistics(FAMILY, PROBE, means, draws=64, run=run, **HOW), first)


class Huge(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.inf


def test_outputs_that_are_no_numbers_are_refused() -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 1), Huge()), "huge")
    with pytest.raises(ValueError, match="finite outputs"):
        draw_statistics(family, PROBE, means, draws=2, run=Run(device="cpu"), **HOW)


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0][:, -1]


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return 2 * cotangent


class OneWay(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Fused.apply(super().forward(x))


def test_recurrences_have_slopes_though_their_fused_layers_have_no_forward_mode() -> None:
    run, probe = Run(device="cpu"), Probe.gaussian((5, 3), num=4, fresh=True)
    family, enabled = Family.initialised(LastState, name="LSTM"), torch.backends.mkldnn.enabled
    found = draw_statistics(family, probe, slope, draws=3, run=run, **HOW)
    stack, inputs = family.draw(3, seed=3, run=run), probe.inputs(0, 3, run)
    ahead, behind = (torch.stack([stack.member(i)(inputs[i] + h).mean(0) for i in range(3)]) for h in (1e-2, -1e-2))
    torch.testing.assert_close(found, ((ahead - behind) / 2e-2).double(), rtol=1e-3, atol=1e-4)
    assert torch.backends.mkldnn.enabled == enabled


def test_a_network_without_a_forward_derivative_is_refused() -> None:
    family = Family.initialised(lambda: OneWay(6, 1), "one way")
    with pytest.raises(ValueError, match=r"^one way must be differentiable by torch\.func"):
        draw_statistics(family, PROBE, slope, draws=2, run=Run(device="cpu"), **HOW)
