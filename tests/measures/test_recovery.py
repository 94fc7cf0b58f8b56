"""Recovery: spectra of reconstructions, against their definition and what theory forbids."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU
from torch import nn

from biascope.families.family import Family
from biascope.measures.recovery import odd_frequencies, recovery
from biascope.networks.coordinate_mlp import coordinate_mlp
from biascope.networks.siren import siren
from biascope.tasks.signals import Signal, coordinate_grid

SMALL = {"steps": 30, "rate": 1e-3, "run": CPU}


def mapped(frequency: float, **settings: object) -> Family:
    build = functools.partial(coordinate_mlp, encoding="single", frequency=frequency, width=32, depth=2, **settings)
    return Family.initialised(build, name=f"one frequency {frequency}")


def noise(*sizes: int, channels: int = 1) -> Signal:
    values = torch.rand(*sizes, channels, generator=torch.Generator().manual_seed(0))
    return Signal(values, "noise")


def test_one_cycle_per_unit_leaves_odd_frequencies_empty_and_half_a_cycle_does_not() -> None:
    whole, half = (recovery(mapped(frequency), noise(16, 16), **SMALL) for frequency in (1.0, 0.5))
    assert whole.odd[0] < 1e-20
    assert whole.outside[0] < 1e-20
    assert half.odd[0] > 0.1
    assert half.outside[0] == 0
    assert np.array_equal(whole.reached[0], ~odd_frequencies((16, 16)))
    assert half.reached.all()
    assert whole.unreachable[0] == pytest.approx(0.75, abs=0.1)  # of white noise
    assert "no harmonic of its mapping reaches" in whole.sentence()
    assert "reach every frequency" in half.sentence()


def test_a_mapping_that_is_learned_reaches_everything_and_a_frozen_one_is_told() -> None:
    family = Family.initialised(functools.partial(siren, width=16, depth=2, bias="uniform"), name="SIREN")
    free = recovery(family, noise(8, 8), **SMALL)
    assert not free.mapped
    assert free.reached.all()
    assert "no harmonic" not in free.sentence()
    told = recovery(family, noise(8, 8), frequency=1.0, **SMALL)  # a wrong word: what is said there is seen
    assert told.mapped
    assert told.outside[0] > 0.01
    np.testing.assert_array_equal(told.power, free.power)


def test_random_features_reach_every_frequency() -> None:
    build = functools.partial(coordinate_mlp, encoding="gaussian", features=64, sigma=3.0, width=16)
    found = recovery(Family.initialised(build, name="FFN"), noise(16, 16), **SMALL)
    assert found.mapped
    assert found.reached.all()


def test_spectra_are_those_of_the_definition() -> None:
    signal = noise(6, 10, channels=2)
    found = recovery(mapped(0.5, outputs=2), signal, **SMALL)
    values = signal.values.double().numpy()
    assert found.target.sum() == pytest.approx(values.var((0, 1)).sum(), rel=1e-9)  # Parseval, the mean left out
    assert found.target[0, 0] == pytest.approx(0, abs=1e-20)
    direct = sum(np.abs(np.fft.fft2(values[..., c]) / 60) ** 2 for c in range(2))
    np.testing.assert_allclose(found.target.ravel()[1:], direct.ravel()[1:], rtol=1e-9)
    assert found.recovered[0] == pytest.approx(1 - found.missed.sum() / found.target.sum())
    # The mean counts in the PSNR, and is nearly learned.
    assert 10 ** (-found.psnr[0] / 10) >= found.missed.sum() / 2


def test_training_recovers_what_is_reached() -> None:
    grid = coordinate_grid((16, 16), low=-1.0)
    values = torch.cos(2 * torch.pi * grid[:, 0]) * torch.sin(2 * torch.pi * grid[:, 1])
    signal = Signal(values.reshape(16, 16, 1).float(), "a wave")
    found = recovery(mapped(1.0), signal, steps=600, rate=3e-3, run=CPU)
    assert found.recovered[0] > 0.95
    assert found.unreachable[0] < 1e-9
    lost = recovery(mapped(2.0), signal, steps=50, run=CPU)
    assert lost.unreachable[0] == pytest.approx(1)
    assert lost.recovered[0] < 0.01


def test_signals_in_time_and_pictures() -> None:
    build = functools.partial(coordinate_mlp, coordinates=1, encoding="single", frequency=1.0, width=16)
    sound = recovery(Family.initialised(build, name="one"), noise(32), **SMALL)
    assert sound.target.shape == (1, 32)
    assert sound.odd[0] < 1e-20
    assert list(sound.plots()) == ["energy_by_cycles"]
    image = recovery(mapped(1.0), noise(80, 72), **{**SMALL, "steps": 2})
    assert list(image.plots(dark=True)) == ["energy_by_frequency", "energy_by_cycles"]


def test_sides_of_unequal_length_have_square_pixels() -> None:
    found = recovery(mapped(1.0), noise(8, 16), **SMALL)  # one unit down, two across
    columns = np.indices((8, 16))[1]
    assert np.array_equal(found.reached[0], columns % 2 == 0)
    assert found.outside[0] < 1e-20


def test_repeats_have_weights_of_their_own_and_are_kept(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU, folder=tmp_path)
    two = recovery(mapped(0.5), noise(8, 8), repeats=2, **{**SMALL, "run": run})
    assert two.psnr[0] != two.psnr[1]
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("repeat*.safetensors")}
    assert len(stamps) == 2
    three = recovery(mapped(0.5), noise(8, 8), repeats=3, **{**SMALL, "run": run})
    np.testing.assert_array_equal(three.power[:2], two.power)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


@pytest.mark.parametrize(
    ("family", "signal", "change", "words"),
    [
        (mapped(1.0), noise(4, 4, 4), {}, "signal must be an image or a time series, got 3 axes"),
        (mapped(1.0), Signal(torch.ones(4, 4, 1)), {}, "signal must vary"),
        (mapped(1.0), noise(8), {}, "must take 1 coordinates"),
        (mapped(1.0), noise(8, 8, channels=3), {}, "must return 3 numbers for each point"),
        (mapped(1.0), noise(8, 8), {"repeats": 0}, "repeats must be at least 1"),
        (mapped(1.0), noise(8, 8), {"rate": 1e38}, "Training diverged at iteration"),
        (Family.initialised(lambda: nn.Linear(2, 1)), noise(8, 8), {"low": 2.0}, "low must be below high"),
    ],
)
def test_misfits_are_told_in_one_sentence(family, signal, change, words) -> None:
    with pytest.raises(ValueError, match=words):
        recovery(family, signal, **{**SMALL, **change})


def test_a_grid_with_its_endpoint_leaks_onto_odd_frequencies() -> None:
    size = 32
    with_endpoint = {"low": -1.0, "high": 1.0 + 2 / (size - 1)}  # so many points on [−1, 1], the last one at 1
    leaked = recovery(mapped(1.0), noise(size, size), **SMALL, **with_endpoint)
    assert 1e-5 < leaked.odd[0] < 0.2
