"""Energies of faces and their reconstructions: weights, images and iterations are those that the figures say."""

import dataclasses
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from figures_at_smoke import checked

from biascope.measures.dictionary.result import Dictionary
from biascope.papers.dictionaries2022 import energy as energy
from biascope.papers.dictionaries2022.energy import META, RELU, SIRENS, DictionaryStudy
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.signals import SignalTask, coordinate_grid, psnr_of
from biascope.training.fit import fit

matplotlib.use("Agg")
CPU = Run(device="cpu", progress=False)
SMOKE, LAPTOP, PAPER = map(energy.FACES.row, ("smoke", "laptop", "paper"))
FIGURES = (energy.figure_55, energy.figure_56, energy.figure_57, energy.figure_c2, energy.figure_c2_draws)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.number)
def test_every_claim_that_smoke_can_judge_has_its_number(figure, folder: Path) -> None:
    finding = checked(figure, dataclasses.replace(CPU, folder=folder / figure.number))
    missing = {claim.statistic for claim in figure.claims} - set(finding.statistics)
    beyond_smoke = (snake(META), "meta_minus_random", "100_iterations", "1000_iterations")
    assert all(any(words in key for words in beyond_smoke) for key in missing), missing
    assert all(np.isfinite(number.value) for number in finding.statistics.values())


def test_trainings_and_kernels_are_shared_by_the_figures(folder: Path) -> None:
    run = dataclasses.replace(CPU, folder=folder / "5.5")
    energy.figure_55("smoke", run)
    before = set((folder / "shared").rglob("*.safetensors"))
    energy.figure_57("smoke", dataclasses.replace(CPU, folder=folder / "5.7"))
    assert set((folder / "shared").rglob("*.safetensors")) == before


def test_a_reconstruction_is_a_training_on_half_of_the_pixels_from_the_measured_weights() -> None:
    family = energy.family_of("SIREN-20", SMOKE, CPU)
    assert family is not None
    found = energy.reconstructions(family, SMOKE, CPU)
    assert tuple(found) == tuple(range(11))
    assert {each.shape for each in found.values()} == {(2, 2, 4)}  # draws, test and train, images
    signals = energy.signals(SMOKE, CPU)
    task = SignalTask.of(signals[2], held_out=0.5, seed=0, run=CPU)
    exact = dataclasses.replace(CPU, precision="float64")
    start = family.draw(2, seed=SMOKE["seed"], run=exact).member(1).to(torch.device("cpu"), torch.float32)
    recipe = dataclasses.replace(energy.ADAM, steps=3)
    ended = fit(start, task, recipe, seed=0, run=CPU).networks
    for step, network in ((0, start), (3, ended)):
        expected = [float(psnr_of(network, task, split, run=CPU)) for split in ("test", "train")]
        np.testing.assert_allclose(found[step][1, :, 2], expected, rtol=1e-4)
    later = energy.reconstructions(family, SMOKE, CPU, long=True)
    assert tuple(later) == (10, 30)
    np.testing.assert_allclose(later[10][0], found[10][0, :, :2], rtol=1e-4)


def test_single_draws_differ_by_seed_and_begin_like_long_runs() -> None:
    family = energy.family_of("FFN-1", SMOKE, CPU)
    assert family is not None
    signals = energy.signals(SMOKE, CPU)
    first, other = (energy.psnr_along(family, signals, (0, 3), 2, CPU, seed=seed) for seed in (SMOKE["seed"], 1))
    along = energy.reconstructions(family, SMOKE, CPU)
    for step in (0, 3):
        np.testing.assert_allclose(first[step], along[step], rtol=1e-4)
    assert not np.allclose(first[0], other[0])


def test_images_are_those_after_the_ones_for_meta_learning(tmp_path: Path) -> None:
    images = np.zeros((5003, 4, 4), np.uint8)
    images[5000:] = np.array([51, 102, 204])[:, None, None]
    np.savez(tmp_path / "celeba_gray64.npz", x=images)
    run = dataclasses.replace(CPU, data_root=tmp_path)
    found = energy.signals({**LAPTOP, "side": 4}, run)
    assert [round(float(each.values.mean()), 6) for each in found] == [0.2, 0.4, 0.8]
    assert energy.signals({**LAPTOP, "side": 2, "images": 1}, run)[0].values.shape == (2, 2, 1)
    noise = energy.signals(SMOKE, CPU)
    assert torch.equal(noise[0].values, energy.signals(SMOKE, CPU)[0].values)
    assert noise[0].values.std() == pytest.approx(0.2, rel=0.01)


def test_published_weights_are_read_the_right_way_round(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU, data_root=tmp_path)
    assert energy.family_of(META, PAPER, run) is None
    draw = np.random.default_rng(0)
    sizes = [(2, 256), (256, 256), (256, 256), (256, 256), (256, 1)]
    arrays = {}
    for number, size in enumerate(sizes):
        name = f"siren_siren_layer{f'_{number}' * bool(number)}_linear"
        arrays[f"{name}.w"] = (0.01 * draw.standard_normal(size)).astype(np.float32)
        arrays[f"{name}.b"] = (0.01 * draw.standard_normal(size[1])).astype(np.float32)
    (tmp_path / "published").mkdir()
    np.savez(tmp_path / "published" / "siren_maml_celeba.npz", **arrays)
    family = energy.family_of(META, PAPER, run)
    assert family is not None
    r = coordinate_grid((3, 3)).numpy()
    z, weights = r, list(arrays.values())
    for weight, bias in zip(weights[0:8:2], weights[1:8:2], strict=True):
        z = np.sin(30 * (z @ weight + bias))
    np.testing.assert_allclose(
        family.template(torch.as_tensor(r).float()).numpy(), z @ weights[8] + weights[9] + 0.5, atol=1e-5
    )
    assert energy.family_of(META, SMOKE, run) is None  # its networks are narrower
    assert energy.family_of(META, LAPTOP, run) is None  # and its faces have fewer pixels


def made(concentration: list[float], psnr: list[float]) -> DictionaryStudy:
    """Two networks and more whose numbers are known, one image and draw."""
    names = [f"net {place}" for place in range(len(psnr))]
    base = energy.dictionary_of(energy.family_of(RELU, SMOKE, CPU), SMOKE, CPU)  # type: ignore[arg-type]
    dictionaries: dict[str, Dictionary] = {
        name: dataclasses.replace(base, concentration=np.full((1, 3), value))
        for name, value in zip(names, concentration, strict=True)
    }
    return DictionaryStudy(
        dictionaries, {n: {3: np.full((1, 2, 3), value)} for n, value in zip(names, psnr, strict=True)}
    )


def test_agreement_is_a_rank_correlation_over_networks() -> None:
    names = ["net 0", "net 1", "net 2"]
    assert made([0.1, 0.2, 0.3], [10.0, 30.0, 70.0]).agreement(names, "concentration", 3).value == pytest.approx(1)
    assert made([0.3, 0.2, 0.1], [10.0, 30.0, 70.0]).agreement(names, "concentration", 3).value == pytest.approx(-1)
    assert made([0.1, 0.3, 0.2], [10.0, 30.0, 70.0]).agreement(names, "concentration", 3).value == pytest.approx(0.5)


def test_a_statistic_on_which_nearly_all_resamples_agree_has_no_interval() -> None:
    draws = np.array([[0.0], [0.0], [0.0], [0.0], [1.0]])  # four of five are the last in 0.7 % of resamples
    found = energy.resampled_draws_and_images(lambda means: float(means[0] > 0.7), [draws])
    assert found.value == 0.0
    assert np.isnan([found.low, found.high, found.standard_error]).all()


def test_networks_have_the_published_sizes() -> None:
    parameters = {}
    for name in (RELU, SIRENS[0], "FFN-1"):
        family = energy.family_of(name, LAPTOP, CPU)
        assert family is not None
        parameters[name] = family.num_parameters
    assert parameters == {RELU: 198401, SIRENS[0]: 198401, "FFN-1": 263169}


def test_the_published_weights_reconstruct_faces_at_once(data_root: Path) -> None:
    run = dataclasses.replace(CPU, data_root=data_root)
    if not (data_root / "celeba_gray64.npz").exists():
        pytest.skip("BIASCOPE_DATA has no celeba_gray64.npz")
    if (family := energy.family_of(energy.META, PAPER, run)) is None:
        pytest.skip("BIASCOPE_DATA has no published/siren_maml_celeba.npz")
    task = SignalTask.of(energy.signals(PAPER, run)[0], held_out=0.5, seed=0, run=CPU)
    recipe = dataclasses.replace(energy.DESCENT, steps=3)
    ended = fit(family.draw(1, seed=0, run=CPU).member(0), task, recipe, seed=0, run=CPU).networks
    assert float(psnr_of(ended, task, "test", run=CPU)) > 17
