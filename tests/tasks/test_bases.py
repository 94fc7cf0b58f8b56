"""Bases of input space: orthonormal, complete, and what their names say."""

import math

import pytest
import torch
from networks_under_test import global_states, normal

from biascope.tasks import bases

pytestmark = pytest.mark.usefixtures("one_thread")


def orthonormality_error(vectors: torch.Tensor) -> float:
    return float((vectors @ vectors.T - torch.eye(len(vectors), dtype=vectors.dtype)).abs().max())


@pytest.mark.parametrize(
    "shape", [(32, 32), (8, 8), (7, 7), (6, 9), (1, 4), (5, 1), (2, 2), (1, 1), (3, 6, 5), (2, 3, 3, 3)]
)
def test_the_fourier_basis_is_orthonormal_and_complete(shape):
    basis = bases.fourier(shape)
    assert basis.vectors.shape == (math.prod(shape), math.prod(shape))
    assert basis.shape == shape
    assert len(set(basis.labels)) == math.prod(shape)
    assert orthonormality_error(basis.vectors) < 1e-12


def test_cosines_and_sines_are_as_many_as_published():
    kinds = [label[0] for label in bases.fourier((32, 32)).labels]
    assert (kinds.count("Re"), kinds.count("Im")) == (514, 510)
    kinds = [label[0] for label in bases.fourier((7, 7)).labels]
    assert (kinds.count("Re"), kinds.count("Im")) == (25, 24)  # only frequency zero is its own conjugate


@pytest.mark.parametrize("shape", [(8, 8), (5, 6)])
def test_the_energy_in_a_pair_is_that_of_the_discrete_fourier_transform(shape):
    image, basis = normal(*shape), bases.fourier(shape)
    spectrum = torch.fft.fft2(image, norm="ortho").abs().square()
    energy: dict[tuple[int, int], float] = {}
    for vector, (_, row, column) in zip(basis.vectors, basis.labels, strict=True):
        energy[row, column] = energy.get((row, column), 0.0) + float(vector @ image.flatten()) ** 2
    for (row, column), found in energy.items():
        conjugate = (-row % shape[0], -column % shape[1])
        both = spectrum[row, column] + (spectrum[conjugate] if conjugate != (row, column) else 0.0)
        assert found == pytest.approx(float(both), abs=1e-12)


def test_a_label_says_which_wave_it_is():
    basis = bases.fourier((8, 6))
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(6.0), indexing="ij")
    for kind, wave in (("Re", torch.cos), ("Im", torch.sin)):
        vector = basis.vectors[basis.labels.index((kind, 2, 1))].reshape(8, 6)
        expected = math.sqrt(2 / 48) * wave(2 * math.pi * (2 * rows / 8 + columns / 6).double())
        assert torch.allclose(vector, expected, atol=1e-6)
    constant = basis.vectors[basis.labels.index(("Re", 0, 0))]
    assert torch.allclose(constant, torch.full((48,), 48**-0.5, dtype=torch.float64))


def test_channels_are_kept_apart():
    plane, lifted = bases.fourier((4, 5)), bases.fourier((3, 4, 5))
    for label, vector in zip(lifted.labels, lifted.vectors.reshape(60, 3, 20), strict=True):
        channel, *rest = label
        assert torch.equal(vector[channel], plane.vectors[plane.labels.index(tuple(rest))])
        assert float(vector.abs().sum()) == pytest.approx(float(vector[channel].abs().sum()))


def test_the_canonical_basis_is_one_entry_each():
    basis = bases.canonical((2, 3))
    assert torch.equal(basis.vectors, torch.eye(6, dtype=torch.float64))
    assert basis.labels == ((0,), (1,), (2,), (3,), (4,), (5,))
    assert basis.shape == (2, 3)


def test_a_random_basis_is_orthonormal_and_a_function_of_its_seed():
    before = global_states()
    basis = bases.random((4, 5), seed=0)
    assert orthonormality_error(basis.vectors) < 1e-12
    assert torch.equal(basis.vectors, bases.random((20,), seed=0).vectors)
    assert not torch.allclose(basis.vectors, bases.random((4, 5), seed=1).vectors)
    assert global_states() == before


def test_random_bases_are_uniform():
    # Of a uniform rotation of R³ every entry has mean 0 and mean square 1/3, and the trace has mean 0. QR without its
    # sign correction would give the diagonal one sign, a mean of 0.5 in size.
    vectors = torch.stack([bases.random((3,), seed=seed).vectors for seed in range(1500)])
    standard_error = 1 / math.sqrt(3 * 1500)
    assert float(vectors.mean(0).abs().max()) < 5 * standard_error
    assert float((vectors.square().mean(0) - 1 / 3).abs().max()) < 5 * 0.3 / math.sqrt(1500)


def test_spatial_frequencies_are_cycles_per_pixel():
    frequency = bases.spatial_frequency((3, 8, 4))
    assert frequency.shape == (8, 4)
    assert float(frequency[0, 0]) == 0.0
    assert float(frequency[0, 2]) == 0.5
    assert float(frequency[4, 2]) == pytest.approx(math.sqrt(0.5))
    assert float(frequency[7, 1]) == pytest.approx(math.hypot(1 / 8, 1 / 4))
    assert torch.equal(frequency, frequency.roll((-1, -1), (0, 1)).flip((0, 1)))  # the same for ±(k, l)
