"""Failure modes of implicit representations: every figure at smoke, without data, and the photograph it needs beyond."""

import dataclasses
import functools
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from figures_at_smoke import checked

from biascope.papers.dictionaries2022 import failures as failures
from biascope.results.finding import FigureOfPaper, Finding
from biascope.runs.run import Run

matplotlib.use("Agg")
CPU = Run(device="cpu", progress=False)
FIGURES = [each for each in vars(failures).values() if isinstance(each, FigureOfPaper)]


@functools.cache
def at_smoke(figure: FigureOfPaper) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        return checked(figure, dataclasses.replace(CPU, folder=Path(folder), data_root=Path("nowhere")))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.number)
def test_every_figure_runs_and_draws_without_data(figure: FigureOfPaper) -> None:
    assert figure.paper == "dictionaries2022"
    assert at_smoke(figure).statistics


def test_structural_claims_hold_at_any_effort() -> None:
    numbers = at_smoke(failures.figure_53).statistics | at_smoke(failures.figure_c1).statistics
    assert numbers["f0_1_share_of_energy_on_odd_frequencies"].high < 1e-6
    assert numbers["f0_0_5_share_of_energy_on_odd_frequencies"].value > 0.05
    assert numbers["w_i_omega0_2pi_share_of_energy_on_odd_frequencies"].high < 1e-6
    assert numbers["w_i_omega0_1_share_of_energy_on_odd_frequencies"].value > 0.05  # as printed: one radian per unit
    assert at_smoke(failures.theorem_51).statistics["coefficients_for_t_10_k_2_l_3"].value == 8361


def test_filter_networks_hold_the_sums_of_their_filters_and_no_set_smaller() -> None:
    bins, values = failures._filter_network(2, seed=0)
    reached = failures.filter_sums(bins)
    alone = {sign * int(each) for each in bins[-1] for sign in (-1, 1)}
    assert alone < reached  # biases forget the filters before them
    assert {-each for each in reached} == reached
    energy = np.abs(np.fft.fft(values[:, 0].numpy())) ** 2
    held = {place for place in range(1, len(energy)) if energy[place] > 1e-20 * energy.sum()}
    assert held == {each % len(energy) for each in reached} - {0}


def test_the_photograph_is_the_middle_of_the_first_found(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU, data_root=tmp_path)
    with pytest.raises(ValueError, match=r"must hold a photograph of the Kodak set, kodim03.png say, and has none"):
        failures.photograph(failures.RECOVERED.laptop, run)
    from PIL import Image

    (tmp_path / "kodak").mkdir()
    pixels = np.zeros((256, 384, 3), np.uint8)
    pixels[:, 64:320, 0] = np.arange(256)[:, None]
    Image.fromarray(pixels).save(tmp_path / "kodak" / "kodim01.png")
    found = failures.photograph({**failures.RECOVERED.laptop, "side": 128}, run)
    assert found.name == "kodim01, 128 × 128 pixels"
    np.testing.assert_allclose(found.values[:, 5, 0], (np.arange(128) * 2 + 0.5).round() / 255, atol=1.01 / 255)
    assert not found.values[..., 1:].any()
