"""Harmonics on a grid against their enumeration, and against what networks really hold."""

import math

import pytest
import torch
from torch import Tensor

from biascope.runs.randomness import generator_for
from biascope.tasks import harmonics as hm

CPU = torch.device("cpu")


def whole(mapping: int, axes: int, reach: int, seed: int) -> Tensor:
    generator = generator_for(CPU, seed, "frequencies")
    return torch.randint(-reach, reach + 1, (mapping, axes), generator=generator).double()


def harmonic_combinations(mapping: int, order: int) -> Tensor:
    """All ``s ∈ Z^T`` with ``Σ|s_t| ≤ N``, ``(count, T)``; times Ω they are H(Ω) one by one.

    Example:
        >>> harmonic_combinations(2, 1).tolist()
        [[-1, 0], [0, -1], [0, 0], [0, 1], [1, 0]]
    """
    rows, steps = torch.zeros(1, 0, dtype=torch.long), torch.arange(-order, order + 1)
    for _ in range(mapping):
        rows = torch.cat([rows.repeat_interleave(len(steps), 0), steps.repeat(len(rows))[:, None]], 1)
        rows = rows[rows.abs().sum(1) <= order]
    return rows


def enumerated(frequencies: Tensor, sizes: tuple[int, ...], order: int) -> tuple[Tensor, Tensor]:
    """The same two sets from the definition."""
    sums = (harmonic_combinations(len(frequencies), order).double() @ frequencies).round().long()
    reached, direct = torch.zeros(sizes, dtype=torch.bool), torch.zeros(sizes, dtype=torch.bool)
    length = torch.tensor(sizes)
    reached[tuple((sums % length).T)] = True
    direct[tuple((sums[(2 * sums.abs() <= length).all(1)] % length).T)] = True
    return reached, direct


@pytest.mark.parametrize(
    ("mapping", "sizes", "reach", "order"),
    [
        (1, (16,), 5, 3),
        (2, (31,), 40, 4),  # every frequency beyond Nyquist
        (3, (64,), 20, 7),
        (2, (12, 20), 9, 5),
        (4, (16, 16), 3, 4),
        (4, (24, 9), 30, 3),
        (3, (8, 6, 5), 3, 2),
    ],
)
def test_sets_on_the_grid_are_those_of_the_definition(mapping, sizes, reach, order) -> None:
    for seed in range(3):
        frequencies = whole(mapping, len(sizes), reach, seed)
        found = hm.harmonics(frequencies, sizes, order=order)
        reached, direct = enumerated(frequencies, sizes, order)
        assert torch.equal(found.reached, reached)
        assert torch.equal(found.direct, direct)
        assert torch.equal(found.aliased, reached & ~direct)
        assert (found.refine, found.rounding, found.complete) == (1, 0.0, True)


def test_partial_sums_may_leave_the_grid() -> None:
    frequencies = torch.tensor([[9.0], [7.0]])  # 1 = 4·7 − 3·9: whatever the order of summing, beyond ±4 on the way
    assert hm.harmonics(frequencies, (8,), order=7).direct[1]
    assert not hm.harmonics(frequencies, (8,), order=6).direct[1]


def test_any_order_is_the_lattice_that_the_mapping_generates() -> None:
    found = hm.harmonics(torch.tensor([[6.0], [10.0]]), (40,))
    assert found.direct.nonzero()[:, 0].tolist() == list(range(0, 40, 2))
    assert hm.harmonics(torch.tensor([[6.0], [9.0]]), (40,)).reached.all()  # 3 does not divide 40: it wraps around
    plane = hm.harmonics(2 * torch.eye(2), (16, 16))
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    assert torch.equal(plane.reached, (rows % 2 == 0) & (columns % 2 == 0))
    assert torch.equal(plane.reached, plane.direct)


def test_the_number_of_combinations_is_the_formula() -> None:
    for mapping, order in ((1, 5), (2, 3), (3, 4), (4, 2), (5, 1)):
        assert len(harmonic_combinations(mapping, order)) == hm.harmonic_count(mapping, order)
    incommensurate = torch.tensor([[math.sqrt(2)], [math.sqrt(3)], [math.sqrt(5)]], dtype=torch.float64)
    sums = harmonic_combinations(3, 4).double() @ incommensurate
    assert len((sums * 1e9).round().unique()) == hm.harmonic_count(3, 4)


def test_fractions_are_exact_and_count_for_the_bins_beside_them() -> None:
    frequencies = torch.tensor([[0.5]])
    assert hm.harmonics(frequencies, (16,), order=4, tolerance=0.1).reached.nonzero()[:, 0].tolist() == [
        0,
        1,
        2,
        14,
        15,
    ]
    found = hm.harmonics(torch.tensor([[2.5]]), (16,), order=1)
    assert found.refine == 2
    assert found.rounding == 0
    assert found.reached.nonzero()[:, 0].tolist() == [0, 2, 3, 13, 14]


def test_other_frequencies_are_rounded_and_the_error_is_told() -> None:
    frequencies = torch.tensor([[math.sqrt(3)], [math.pi]], dtype=torch.float64)
    found = hm.harmonics(frequencies, (64,), order=2)
    sums = (harmonic_combinations(2, 2).double() @ frequencies).flatten()
    assert found.rounding == 2 / (2 * found.refine) <= 0.125
    nearest = {int(each) % 64 for each in sums.round()}
    assert nearest <= set(found.reached.nonzero()[:, 0].tolist())
    for place in found.reached.nonzero()[:, 0]:
        away = (sums - place) % 64
        assert float(torch.minimum(away, 64 - away).min()) <= 0.5 + found.rounding


@pytest.mark.parametrize("side", [64, 512])
def test_wide_mappings_on_large_grids_are_covered(side: int) -> None:
    generator = generator_for(CPU, 0, "gaussian")
    frequencies = 10 * torch.randn(256, 2, generator=generator)
    few, many = (hm.harmonics(frequencies, (side, side), order=order) for order in (1, 4))
    assert 256 < int(few.direct.sum()) < 9 * 513
    assert int(many.direct.sum()) > 0.7 * min(side, 200) ** 2
    assert many.complete


def test_far_frequencies_leave_a_lower_bound() -> None:
    frequencies = torch.tensor([[9001.0, 0.0], [9000.0, 0.0], [0.0, 1.0]]).double()
    found = hm.harmonics(frequencies, (16, 16), order=2)
    assert not found.complete
    assert found.direct[0, 1]
    assert bool(enumerated(frequencies, (16, 16), 2)[1][found.direct].all())


def test_polynomial_networks_have_no_energy_elsewhere() -> None:
    generator = generator_for(CPU, 1, "polynomial")
    frequencies, sizes = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]]).double(), (40, 40)
    grid = torch.stack(torch.meshgrid(*[torch.arange(n).double() / n for n in sizes], indexing="ij"), -1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for degree, layers in ((2, 2), (2, 3), (3, 2)):
        z = torch.sin(2 * math.pi * grid @ frequencies.T + draw(3))
        for _ in range(layers - 1):
            z = sum(draw(5) * (z @ draw(z.shape[-1], 5) + draw(5)) ** k for k in range(degree + 1))
        energy = hm.energy_spectrum(z @ draw(5, 1))
        order = hm.harmonic_order(degree, layers)
        reached = hm.harmonics(frequencies, sizes, order=order).reached
        assert 1 - hm.coverage(energy, reached) < 1e-20
        assert 1 - hm.coverage(energy, hm.harmonics(frequencies, sizes, order=order - 1).reached) > 1e-9
        assert not reached.all()


def test_growth_is_exponential_in_depth_until_the_grid_is_full() -> None:
    assert hm.harmonic_growth(torch.tensor([[1.0]]), (32,), degree=3, layers=5) == [3, 7, 19, 32, 32]


def test_energy_counts_channels_and_leaves_the_mean_out() -> None:
    r = torch.arange(12) / 12
    values = torch.stack([3 + torch.sin(2 * torch.pi * r), 2 * torch.cos(2 * torch.pi * 2 * r)], -1)
    energy = hm.energy_spectrum(values)
    torch.testing.assert_close(energy[:3], torch.tensor([0.0, 0.1, 0.4], dtype=torch.float64), atol=1e-7, rtol=0)
    with_mean = hm.energy_spectrum(values, mean=True)
    assert float(with_mean[0]) == pytest.approx(9 / (9 + 0.5 + 2), abs=1e-6)
    assert not hm.energy_spectrum(torch.full((4, 4, 1), 0.3)).any()


def test_uncovered_frequencies_come_with_their_share() -> None:
    energy = torch.zeros(8, 8, dtype=torch.float64)
    energy[1, 7], energy[7, 1], energy[2, 0], energy[6, 0], energy[3, 3] = 0.3, 0.3, 0.2, 0.1999, 1e-5
    reached = hm.harmonics(2 * torch.eye(2), (8, 8)).reached
    places, shares = hm.uncovered(energy, reached)
    assert places.tolist() == [[1, -1], [-1, 1]]
    assert float(shares.sum()) == pytest.approx(1 - hm.coverage(energy, reached), abs=2e-5)
    assert not len(hm.uncovered(energy, torch.ones(8, 8, dtype=torch.bool))[0])


def test_bandwidth_is_the_radius_of_the_ball() -> None:
    energy = torch.zeros(16, 16)
    energy[3, 4] = energy[13, 12] = 1.0
    assert hm.bandwidth(energy) == 5.0
    energy[0, 0] = 998.0
    assert hm.bandwidth(energy) == 0.0


@pytest.mark.parametrize("rate", [100.0, 128.0])
@pytest.mark.parametrize("frequency", [0.0, 11.0, 50.0, 77.5, 130.0])
def test_copies_have_the_same_samples(rate: float, frequency: float) -> None:
    at = torch.arange(int(rate), dtype=torch.float64) / rate
    for copy in hm.alias_frequencies([frequency], rate, factor=5)[0]:
        angles = [2 * torch.pi * each * at for each in (frequency, copy)]
        torch.testing.assert_close(angles[0].cos(), angles[1].cos(), atol=1e-9, rtol=0)
        assert rate / 2 < copy <= 2.5 * rate


def test_misfits_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"must have a row of 2 numbers for each of the mapping, got \(3, 1\)"):
        hm.harmonics(torch.ones(3, 1), (8, 8))
    with pytest.raises(ValueError, match="order must be 0 or more, got -1"):
        hm.harmonics(torch.ones(3, 1), (8,), order=-1)
    assert hm.harmonics(torch.ones(3, 1), (8,), order=0).reached.nonzero().tolist() == [[0]]
