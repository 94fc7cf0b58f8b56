"""Aliasing: amplitudes of tones and of their copies in what networks say between samples."""

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.measures.aliasing import aliasing, amplitudes, tone_signal
from biascope.networks.siren import siren


class Tones(nn.Module):
    """Sines of fixed frequencies, with amplitudes that nothing needs to change."""

    def __init__(self, heights: dict[float, float]) -> None:
        super().__init__()
        self.register_buffer("bands", torch.tensor(list(heights)))
        self.heights = nn.Parameter(torch.tensor(list(heights.values())))

    def forward(self, t: Tensor) -> Tensor:
        return (torch.sin(2 * math.pi * t * self.get_buffer("bands")) @ self.heights)[:, None]


def heard(heights: dict[float, float], **settings: object):
    family = Family.initialised(functools.partial(Tones, heights), name="tones")
    return aliasing(family, **{"steps": 1, "rate": 1e-30, "repeats": 1, "run": CPU, **settings})


def test_copies_are_found_with_their_amplitudes() -> None:
    found = heard({23.0: 0.8, 105.0: -0.2})  # of which the samples are those of sin(2π·23t)
    np.testing.assert_allclose(found.tone_amplitudes, [[0.8]], atol=1e-5)
    np.testing.assert_allclose(found.copy_amplitudes, [[0.2]], atol=1e-5)
    assert found.copies.tolist() == [105.0]
    assert found.ratio[0] == pytest.approx(0.25, abs=1e-5)
    assert found.prominence[0] > 1e3
    assert found.error[0, 0] < 1e-5
    assert found.error[0, 1] == pytest.approx(math.sqrt(0.2**2 + 0.2**2), abs=1e-5)
    assert "copies at 105 Hz have 25 %" in found.sentence()


def test_an_honest_reconstruction_has_no_copies() -> None:
    found = heard({23.0: 1.0})
    assert found.ratio[0] < 1e-6
    assert found.error.max() < 1e-5


def test_spectra_at_both_rates() -> None:
    found = heard({23.0: 0.8, 105.0: -0.2})
    assert len(found.frequencies) == 129
    assert len(found.sampled_frequencies) == 65
    assert found.spectrum[0, [23, 105]] == pytest.approx([0.8, 0.2], abs=1e-5)
    assert found.sampled_spectrum[0, 23] == pytest.approx(1.0, abs=1e-5)
    assert found.sampled_spectrum[0].argmax() == 23


def test_several_tones_any_rate_factor_and_duration() -> None:
    found = heard({3.0: 1.0, 7.5: 1.0, 12.5: 0.3}, tones=(3.0, 7.5), sampling=20.0, factor=4, duration=2.0)
    assert found.copies.tolist() == [12.5, 17.0, 23.0, 27.5, 32.5, 37.0]
    np.testing.assert_allclose(found.copy_amplitudes[0], [0.3, 0, 0, 0, 0, 0], atol=1e-4)
    assert found.ratio[0] == pytest.approx(0.3 / math.sqrt(2), abs=1e-4)


def test_frequencies_need_not_be_whole_cycles() -> None:
    at = np.arange(50) / 100
    values = 2 * np.sin(2 * np.pi * 7.3 * at + 0.4) - 0.5 * np.cos(2 * np.pi * 31.1 * at) + 3
    np.testing.assert_allclose(amplitudes(values, at, [7.3, 31.1]), [2.0, 0.5], rtol=1e-9)
    np.testing.assert_allclose(tone_signal([1.0, 2.0], np.array([0.25])), [1.0], atol=1e-12)


def test_a_small_siren_fits_its_samples_and_repeats_are_kept(tmp_path: Path) -> None:
    family = Family.initialised(
        functools.partial(siren, coordinates=1, width=32, depth=2, omega=40.0, shift=0.0), name="SIREN"
    )
    settings = {"tones": (3.0,), "sampling": 16.0, "steps": 400, "rate": 1e-3}
    run = dataclasses.replace(CPU, folder=tmp_path)
    found = aliasing(family, repeats=2, run=run, **settings)
    assert found.error[:, 0].max() < 0.2
    assert found.ratio[0] != found.ratio[1]
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("repeat*.safetensors")}
    again = aliasing(family, repeats=2, run=run, **settings)
    np.testing.assert_array_equal(again.spectrum, found.spectrum)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("repeat*.safetensors")} == stamps
    assert len(found.plots(dark=True)["spectrum"].axes[0].lines) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tones": ()}, "tones must be positive"),
        ({"tones": (-1.0,)}, "tones must be positive"),
        ({"factor": 1}, "factor must be at least 2, got 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"duration": 0.013}, "sampling times duration must be a whole number of at least 2"),
        ({"tones": (64.0,), "factor": 2}, "must have copies"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        heard({23.0: 1.0}, **change)


def test_networks_that_do_not_fit_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="must take one coordinate, time"):
        aliasing(Family.initialised(lambda: nn.Linear(2, 1)), run=CPU)
    with pytest.raises(ValueError, match=r"must return one number for each time, got \(3,\)"):
        aliasing(Family.initialised(lambda: nn.Linear(1, 3)), run=CPU)
