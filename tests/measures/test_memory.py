"""Memory and frequency response: against linear networks whose gradient is known at every step."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.measures.memory import Memory, memory, suits
from biascope.results.axes import Axis, InputAxes
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

CPU = Run(device="cpu", precision="float64")
STEPS = 16
TIME = (Axis("time"), Axis("feature"))


class Linear(nn.Module):
    """A weight drawn for each draw, times a fixed response to each step, of all features alike."""

    def __init__(self, response: Tensor) -> None:
        super().__init__()
        self.register_buffer("response", response)
        self.weight = nn.Parameter(torch.empty(3))
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        response = self.get_buffer("response").to(x)
        return (x @ self.weight).mul(response).sum(1, keepdim=True)


def measured(response: Tensor, *, axes: tuple[Axis, ...] = TIME, **settings: object) -> Memory:
    family = dataclasses.replace(Family.initialised(lambda: Linear(response), name="linear"), axes=axes)
    probe = Probe.gaussian((len(response), 3), num=2, fresh=True)
    return memory(family, probe, **{"draws": 12, "run": CPU, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("lag", [0, 5, STEPS - 1])
def test_a_delay_line_has_all_its_memory_at_its_delay(lag: int) -> None:
    response = torch.zeros(STEPS)
    response[STEPS - 1 - lag] = 2.0
    result = measured(response)
    for number in (result.mean_lag, result.lag_of_half, result.lag_of_most):
        assert (number.value, number.low, number.high) == pytest.approx((lag, lag, lag))
    assert result.even_lag.value == (STEPS - 1) / 2
    np.testing.assert_allclose(result.response, 1.0, rtol=1e-10)  # an impulse responds alike to all frequencies
    assert result.mean_frequency.value == pytest.approx(0.5)
    assert "mean frequency" not in result.sentence()
    assert f"so the {'last' if lag < 7.5 else 'first'} steps count most" in result.sentence()


@pytest.mark.parametrize("a", [0.7, -0.5])
def test_a_linear_recurrence_forgets_geometrically_and_filters(a: float) -> None:
    """``h_t = a h_{t−1} + x_t`` read at the end: shares a^(2t), response |1/(1 − a e^{−iw})|² up to a constant of truncation."""
    lags = torch.arange(STEPS - 1, -1, -1)
    result = measured(a ** lags.double())
    expected = a ** (2 * lags.numpy().astype(float))
    expected /= expected.sum()
    np.testing.assert_allclose([each.value for each in result.by_step.each()], expected, atol=1e-12)
    assert result.mean_lag.value == pytest.approx(float(expected @ lags.numpy()))
    within = np.cumsum(expected[::-1])
    assert result.lag_of_half.value == np.searchsorted(within, 0.5)
    assert result.lag_of_most.value == np.searchsorted(within, 0.9)
    w = np.pi * result.cycles
    gain = np.abs(1 / (1 - a * np.exp(-1j * w))) ** 2
    weight = result.by_frequency.isotropic  # type: ignore[union-attr]
    np.testing.assert_allclose(result.response, gain / (gain @ weight), rtol=1e-9)
    assert (result.mean_frequency.value < 0.5) == (a > 0)
    assert ("slow changes" if a > 0 else "fast changes") in result.sentence()


def test_a_sinusoid_is_heard_at_its_frequency() -> None:
    result = measured(torch.sin(2 * torch.pi * 3 * torch.arange(STEPS) / STEPS + 0.4))
    assert result.response[3] == pytest.approx(STEPS / 2)
    np.testing.assert_allclose(np.delete(result.response, 3), 0.0, atol=1e-12)
    assert result.mean_frequency.value == pytest.approx(3 / 8)


class Squared(nn.Module):
    """A slope that changes sign with the input: its mean is zero, its square is not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x[:, 4, :1] ** 2 + 0.5 * x[:, 9, :1] ** 2)


def test_slopes_that_cancel_count() -> None:
    family = dataclasses.replace(Family.initialised(Squared, name="squared"), axes=TIME)
    result = memory(family, Probe.gaussian((10, 3), num=200, fresh=True), draws=60, run=CPU)
    assert result.by_step.share([4]).contains(0.8)  # squares of slopes are 4 and 1
    assert result.mean_lag.contains(0.8 * 5)
    assert result.mean_lag.standard_error < 0.1


class Reads(nn.Module):
    """A row of outputs for each step; each looks one step back."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.roll(1, 1))


def test_of_a_row_for_each_step_the_last_one_is_read() -> None:
    family = dataclasses.replace(Family.initialised(Reads, name="rows"), axes=TIME)
    for readout in ("first", "mean", "random"):
        result = memory(family, Probe.gaussian((9, 3), num=2, fresh=True), draws=4, readout=readout, run=CPU)
        assert (result.position, result.mean_lag.value) == (9, 1.0)


def test_lags_are_counted_from_the_token_that_is_read() -> None:
    response = torch.zeros(STEPS)
    response[2] = 1.0
    first = measured(response, axes=(Axis("token", read=0), Axis("channel")))
    assert first.mean_lag.value == 2
    assert first.by_frequency is None
    assert "mean_frequency" not in first.headline()
    assert "tokens" in first.sentence()
    assert "after the first of 16" in first.sentence()
    assert measured(response, axes=(Axis("token", read=-1), Axis("channel"))).mean_lag.value == STEPS - 3


def given(shares: np.ndarray, draws: int, generator: np.random.Generator) -> Memory:
    energies = shares * generator.chisquare(4, (draws, len(shares)))
    parts = tuple(f"time: {place + 1}" for place in range(len(shares)))
    axes = [axis.as_dict() for axis in TIME]
    told = {"family": {"name": "given", "axes": axes}}
    return Memory(parts, energies, np.full(len(shares), 1 / len(shares)), (len(shares), 1), provenance=told)


def test_lags_are_recovered_with_the_stated_coverage() -> None:
    shares = np.array([0.05, 0.1, 0.3, 0.25, 0.3])
    lags, generator, found = np.arange(4, -1, -1), np.random.default_rng(0), []
    for _ in range(300):
        result = given(shares, 30, generator)
        found.append(
            [
                result.mean_lag.contains(shares @ lags),
                result.lag_of_half.contains(1.0),
                result.lag_of_most.contains(3.0),
            ]
        )
    covered = np.mean(found, axis=0)
    assert 0.92 < covered[0] < 0.98
    assert (covered[1:] > 0.93).all()


@pytest.mark.parametrize("scale", [1e-30, 1e22])
def test_the_scale_of_outputs_does_not_matter(scale: float) -> None:
    response = torch.rand(STEPS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = measured(response), measured(scale * response)
    for key, number in one.headline().items():
        assert other.headline()[key].value == pytest.approx(number.value, rel=1e-9)


def test_inputs_without_steps_are_refused() -> None:
    family = Family.initialised(lambda: nn.Linear(6, 1), name="table")
    with pytest.raises(ValueError, match="several steps or tokens, got 6"):
        memory(family, Probe.gaussian((6,), num=2, fresh=True), run=CPU)
    with pytest.raises(ValueError, match="all gradients are zero"):
        measured(torch.zeros(STEPS))
    ids = Family.initialised(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 1)), name="ids")
    with pytest.raises(ValueError, match="one tensor of real numbers"):
        memory(ids, Probe.fixed(torch.randint(0, 9, (4, 5))), run=CPU)


def test_which_inputs_it_suits() -> None:
    assert suits(InputAxes.of(TIME, (5, 3)))
    assert suits(InputAxes.of([Axis("token"), Axis("channel")], (5, 3)))
    assert not suits(InputAxes.of(TIME, (1, 3)))
    assert not suits(InputAxes.of([], (3, 8, 8)))
    assert not suits(InputAxes.of([], (9,)))
