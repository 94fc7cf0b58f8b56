"""The Bessel expansion of three-layer sine networks, against the networks."""

import math

import pytest
import torch
from scipy.special import jv
from torch import Tensor

from biascope.networks.siren import siren
from biascope.papers.dictionaries2022.sine_expansion import bessel_expansion, bessel_order, sine_network_spectrum
from biascope.runs.randomness import forked_rng, generator_for


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(
        *shape, generator=generator_for(torch.device("cpu"), seed, "weights", shape), dtype=torch.float64
    )


def network(r: Tensor, omega: Tensor, inner: Tensor, outer: Tensor, phase: Tensor, bias: Tensor) -> Tensor:
    return torch.sin(torch.sin(r @ omega.T + phase) @ inner.T + bias) @ outer.T


@pytest.mark.parametrize("argument", [0.01, 1.0, -3.0, 12.0, 40.0])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-9])
def test_the_tail_that_is_cut_is_below_its_bound(argument: float, tolerance: float) -> None:
    order, bound = bessel_order(argument, tolerance)
    tail = sum(2 * abs(jv(s, argument)) for s in range(order + 1, order + 200))
    assert tail <= bound <= tolerance


@pytest.mark.parametrize("mapping", [1, 2, 3, 4])
@pytest.mark.parametrize("axes", [1, 2])
def test_the_expansion_is_the_network(mapping: int, axes: int) -> None:
    omega, inner, outer = 20 * draw(0, mapping, axes), draw(1, 5, mapping), draw(2, 2, 5)
    phase, bias = draw(3, mapping), draw(4, 5)
    r = 2 * torch.rand(20, axes, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    found = bessel_expansion(omega, inner, outer, phase=phase, bias=bias, tolerance=1e-6)
    error = float((found(r) - network(r, omega, inner, outer, phase, bias)).abs().max())
    assert error <= found.error <= 1e-6
    plain = bessel_expansion(omega, inner, outer, tolerance=1e-6)
    nothing = network(r, omega, inner, outer, torch.zeros(mapping), torch.zeros(5))
    assert float((plain(r) - nothing).abs().max()) <= 1e-6
    assert not plain.coefficients.imag.any()


def test_coefficients_are_the_printed_ones() -> None:
    omega, inner, outer = draw(0, 2, 1), draw(1, 3, 2), draw(2, 1, 3)
    found = bessel_expansion(omega, inner, outer)
    place = int((found.orders == torch.tensor([2, -1])).all(1).nonzero())
    expected = sum(float(outer[0, m]) * jv(2, float(inner[m, 0])) * jv(-1, float(inner[m, 1])) for m in range(3))
    assert float(found.coefficients[place, 0].real) == pytest.approx(expected, rel=1e-12)
    assert float(found.frequencies[place, 0]) == pytest.approx(float(2 * omega[0, 0] - omega[1, 0]))


def test_a_siren_of_three_layers_is_its_expansion() -> None:
    with forked_rng(0):
        module = siren(coordinates=2, mapping=4, width=32, depth=2, bias="uniform", shift=0.0).double()
    first, hidden, head = module.linear1, module.linear2, module.head
    found = bessel_expansion(
        30 * first.weight.detach(),
        30 * hidden.weight.detach(),
        head.weight.detach(),
        phase=30 * first.bias.detach(),
        bias=30 * hidden.bias.detach(),
        tolerance=1e-6,
    )
    r = torch.rand(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        assert float((found(r) + head.bias - module(r)).abs().max()) < 1e-6


@pytest.mark.parametrize(("mapping", "sizes", "reach"), [(3, (32,), 20), (64, (16, 12), 8), (256, (16, 16), 4)])
def test_convolution_on_the_grid_is_the_transform_of_the_network(mapping, sizes, reach) -> None:
    generator = torch.Generator().manual_seed(0)
    bins = torch.randint(-reach, reach + 1, (mapping, len(sizes)), generator=generator)
    inner, outer, phase, bias = draw(1, 6, mapping) / math.sqrt(mapping), draw(2, 2, 6), draw(3, mapping), draw(4, 6)
    grid = torch.stack(torch.meshgrid(*[torch.arange(n).double() / n for n in sizes], indexing="ij"), -1)
    values = network(grid, 2 * math.pi * bins.double(), inner, outer, phase, bias)  # (*sizes, c)
    expected = torch.fft.fftn(values.movedim(-1, 0), dim=tuple(range(1, len(sizes) + 1))) / math.prod(sizes)
    found = sine_network_spectrum(bins, inner, outer, sizes, phase=phase, bias=bias)
    assert float((found - expected).abs().max()) < 1e-9


def test_blocks_of_units_change_nothing(monkeypatch) -> None:
    bins, inner, outer = torch.tensor([[1], [3]]), draw(0, 7, 2), draw(1, 1, 7)
    whole = sine_network_spectrum(bins, inner, outer, (24,))
    points = torch.linspace(0, 1, 30)[:, None]
    sums = bessel_expansion(bins.double(), inner, outer)(points)
    monkeypatch.setattr("biascope.papers.dictionaries2022.sine_expansion._TERMS", 50)
    torch.testing.assert_close(sine_network_spectrum(bins, inner, outer, (24,)), whole)
    monkeypatch.setattr("biascope.papers.dictionaries2022.sine_expansion._TERMS", 500)
    torch.testing.assert_close(bessel_expansion(bins.double(), inner, outer)(points), sums)


def test_misfits_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="The expansion must have at most"):
        bessel_expansion(draw(0, 12, 1), draw(1, 4, 12), draw(2, 1, 4))
    with pytest.raises(ValueError, match="bins must be whole cycles"):
        sine_network_spectrum(torch.tensor([[0.5]]), draw(1, 4, 1), draw(2, 1, 4), (8,))
    with pytest.raises(ValueError, match=r"Weights must be \(T, d\), \(F, T\) and \(c, F\)"):
        bessel_expansion(draw(0, 2, 1), draw(1, 4, 3), draw(2, 1, 4))
