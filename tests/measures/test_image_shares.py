"""What is told of a network on images where no direction is resolved: bands, orientations, rings, colours, each with an interval."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope.derivatives.sampling import Sampling
from biascope.families.family import Family
from biascope.measures.mean_gradient import MeanGradient, mean_gradient
from biascope.measures.scan import scan
from biascope.measures.scan.pilot import Piloted
from biascope.results.axes import InputAxes
from biascope.runs.run import Run
from biascope.tasks.divisions import divisions_of
from biascope.tasks.probe import Probe

CPU = Run(device="cpu")
SHAPE = (3, 16, 16)


class Planted(nn.Module):
    """A linear layer behind something that decides what it sees."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.head = kind, nn.Linear(3 * 16 * 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "blurred":
            x = nn.functional.avg_pool2d(nn.functional.pad(x, (3, 4, 3, 4), "circular"), 8, 1)
        if self.kind == "grey":
            x = x.mean(1, keepdim=True).expand(-1, 3, -1, -1)
        if self.kind == "rows":  # what is the same along a row: it changes downwards
            x = x.mean(3, keepdim=True).expand(-1, -1, -1, 16)
        if self.kind == "middle":
            x = nn.functional.pad(x[..., 4:12, 4:12], (4, 4, 4, 4))
        if self.kind == "stride":
            x = torch.stack([x[..., ::4, ::4]] * 16, -1).reshape(-1, 3, 16, 16)
        if self.kind == "red":
            x = x * torch.tensor([1.0, 0.0, 0.0])[:, None, None]
        return self.head(x.flatten(1))


def measured(kind: str, draws: int = 64) -> MeanGradient:
    family = Family.initialised(lambda: Planted(kind), name=kind)
    return mean_gradient(family, Probe.gaussian(SHAPE, num=2, fresh=True), draws=draws, run=CPU)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("blurred", "of the sensitivity is at frequencies below 2 cycles across the image"),
        ("grey", "Over 99 % of the sensitivity is on brightness, where an even spread has 33 %."),
        ("rows", "of the sensitivity is on horizontal stripes, where"),
        ("middle", "Over 99 % of the sensitivity is in the middle of the image (25 % of the pixels)"),
        ("red", "Over 99 % of the sensitivity is on channel 1 of 3."),
    ],
)
def test_a_planted_preference_is_told(kind: str, words: str) -> None:
    assert words in measured(kind).sentence()


def test_strides_make_no_frequency_stand_out_alone_but_fold_them() -> None:
    """Sampling every fourth pixel mixes sixteen frequencies evenly: no band and no single frequency is preferred."""
    assert "of the sensitivity is at frequencies" not in measured("stride", 256).sentence()


def test_an_isotropic_network_is_told_nothing() -> None:
    for draws in (32, 128):
        assert "of the sensitivity" not in measured("plain", draws).sentence()


def test_intervals_of_an_even_spread_hold_it() -> None:
    """Of the shares of an isotropic network, about one in twenty lies outside of its interval."""
    found = measured("plain", 128)
    parts = [
        share.contains(even)
        for shares in found.shares()
        if shares.bars
        for share, even in zip(shares.each(), shares.isotropic.tolist(), strict=True)
    ]
    assert len(parts) == 5 + 4 + 4 + 2 + 3
    assert np.mean(parts) >= 0.8


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16), (3, 9, 14), (1, 28, 28), (2, 12, 12), (3, 224, 224)])
def test_divisions_are_orthonormal_and_whole(shape: tuple[int, ...]) -> None:
    axes = InputAxes.of((), shape)
    rows = torch.randn(2, axes_size(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = [division.name for division in divisions_of(axes)]
    assert names[:3] == ["spatial frequency", "orientation", "position"]
    for division in divisions_of(axes):
        turned = rows if division.coefficients is None else division.coefficients(rows)
        energies = division.summed(turned.abs().square().sum(0))
        assert float(energies.sum()) == pytest.approx(float(rows.square().sum()))
        assert float(division.isotropic.sum()) == pytest.approx(1.0)
        assert len(energies) == len(division.labels)
        assert division.name == "position" or (division.isotropic > 0).all() or min(shape[1:]) < 16


def axes_size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def test_draws_that_resolve_are_foretold_within_a_factor_of_two() -> None:
    """A power law without a gap: from 64 draws, and from the number foretold."""

    class Law(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(256, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * torch.arange(1, 257).to(x) ** -0.25)

    family = Family.initialised(Law, name="law")

    def resolved(draws: int, seed: int) -> MeanGradient:
        return mean_gradient(family, Probe.gaussian((256,), num=2, fresh=True), draws=draws, seed=seed, run=CPU)

    few = resolved(96, 1)
    needed = few.draws_to_resolve(10)
    assert few.resolved < 10
    assert needed is not None
    assert 100 < needed < 1500
    assert resolved(2 * needed, 2).resolved >= 10
    assert resolved(needed // 2, 3).resolved < 20
    assert resolved(2 * needed, 2).draws_to_resolve(10) == 2 * needed


def test_a_scan_in_minutes_draws_others_than_its_pilot(tmp_path) -> None:
    run = Run(device="cpu", folder=tmp_path / "scan")
    model = Family.initialised(lambda: Planted("blurred"), name="blurred")
    with pytest.warns(
        UserWarning, match=r"This scan draws .* a pilot of 400 others says that about so many resolve 10"
    ):
        first = scan(model, input=SHAPE, minutes=0.5, run=run, report=False).results[0]
    assert first.resolved >= 10
    with pytest.warns(UserWarning, match="This scan draws"):
        again = scan(model, input=SHAPE, minutes=0.5, run=run, report=False).results[0]
    assert again.draws == first.draws
    assert np.array_equal(again.eigenvalues, first.eigenvalues)
    assert any("This scan draws" in warning for warning in first.warnings)


def test_time_that_runs_out_is_told() -> None:
    assert (
        Piloted(50, 2000, 50, 1.0)
        .told()
        .endswith("as many as 1 minutes allow; about 2,000 would resolve 10 directions.")
    )
    assert "does not tell" in Piloted(50, 0, 50, 1.0).told()


def test_minutes_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(ValueError, match="Only one of draws and minutes"):
        Sampling(draws=10, minutes=1.0)
    with pytest.raises(ValueError, match="positive number"):
        Sampling(minutes=0.0)
    with pytest.raises(ValueError, match="minutes must be left out for one network"):
        scan(Planted("plain"), input=SHAPE, minutes=1.0, run=CPU)


def test_a_page_says_what_is_learned_first_where_that_was_tested() -> None:
    assert measured("blurred").lead() == "blurred tends to learn smooth patterns first."
    assert measured("middle").lead() == "middle prefers the middle of the image."
    assert measured("plain").lead() == "plain prefers no kind of input: all directions are alike to it."
