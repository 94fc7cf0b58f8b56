"""The tangent kernel as a dictionary: atoms, energies and predictions against dense Jacobians and closed forms."""

import dataclasses
import functools
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope.derivatives.gradients import weight_jacobian
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.dictionary import dictionary
from biascope.measures.dictionary.kernels import LOWEST, RIDGES, mean_frequency
from biascope.measures.dictionary.result import Dictionary, over_signals, rank_agreement
from biascope.networks import builder
from biascope.results import signal_pictures as pictures
from biascope.runs.run import Run
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid, psnr_of
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

matplotlib.use("Agg")
CPU = Run(device="cpu", progress=False)
CPU64 = dataclasses.replace(CPU, precision="float64")


def siren(**settings: object) -> Family:
    build = functools.partial(builder("siren"), **{"width": 24, "depth": 2, "omega": 10.0, **settings})
    return Family.initialised(build, name=f"SIREN {settings.get('omega', 10.0):g}")


def smooth(count: int, *sizes: int) -> Tensor:
    """Random sums of slow waves, ``(count, …)``."""
    r = coordinate_grid(sizes)
    draw = functools.partial(torch.rand, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    waves = torch.cos(2 * torch.pi * (r @ (4 * draw(len(sizes), 12) - 2)) + 6 * draw(12))  # (N, 12)
    return 0.5 + 0.1 * (draw(count, 12) @ waves.T).reshape(count, *sizes)


def kernel_of(network: Network, r: Tensor) -> Tensor:
    jacobian = weight_jacobian(network.read("first"), r)
    return jacobian @ jacobian.T


FAMILY, SIGNALS = siren(), smooth(3, 6, 8)


@pytest.fixture(scope="module")
def found() -> Dictionary:
    return dictionary(FAMILY, SIGNALS, draws=2, atoms=5, ridge=1e-3, run=CPU)


def test_spectrum_energy_and_prediction_are_those_of_a_dense_jacobian(found: Dictionary) -> None:
    r, flat = coordinate_grid((6, 8)), SIGNALS.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    task = SignalTask.of([Signal(each[..., None]) for each in SIGNALS], seed=0, run=CPU64)
    train, test = task.points["train"], task.points["test"]
    for draw in range(2):
        network = FAMILY.draw(2, seed=0, run=CPU64).member(draw)
        kernel = kernel_of(network, r)
        values, vectors = (part.flip(-1) for part in torch.linalg.eigh(kernel))
        np.testing.assert_allclose(found.eigenvalues[draw, :9] * 48, values[:9], rtol=1e-9)
        shares = (centred @ vectors).square() / centred.square().sum(1, keepdim=True)
        for place in (0, 20, 70):
            above = values / values[0] >= found.thresholds[place] * (1 - 1e-12)
            np.testing.assert_allclose(found.energy[draw, :, place], shares[:, above].sum(1), atol=1e-9)
        assert found.energy[draw, :, 0] == pytest.approx(shares[:, 0].numpy())
        ridge = 1e-3 * torch.linalg.eigvalsh(kernel[train][:, train])[-1]
        solved = torch.linalg.solve(
            kernel[train][:, train] + ridge * torch.eye(len(train)).double(), (flat - network(r)[:, 0])[:, train].T
        )
        error = flat[:, test] - network(r)[test, 0] - (kernel[test][:, train] @ solved).T
        np.testing.assert_allclose(found.predicted_psnr[draw], -10 * error.square().mean(1).log10().detach(), rtol=1e-9)
        if draw == 0:
            overlap = (torch.as_tensor(found.atoms) @ vectors[:, :5]).abs()
            np.testing.assert_allclose(overlap, torch.eye(5), atol=1e-6)


def test_the_concentration_is_the_area_under_the_energy() -> None:
    found = dictionary(FAMILY, SIGNALS, draws=1, atoms=1, decades=10.0, run=CPU)
    area = found.energy[0].mean(-1)  # thresholds are evenly spread over ten decades
    np.testing.assert_allclose(found.concentration[0], area, atol=0.01)
    assert found.thresholds[[0, -1]] == pytest.approx([1.0, LOWEST])


def test_energy_grows_as_the_threshold_falls_and_a_mean_does_not_count(found: Dictionary) -> None:
    assert (np.diff(found.energy, axis=-1) >= 0).all()
    assert found.energy.max() <= 1 + 1e-9
    moved = dictionary(FAMILY, SIGNALS + 0.3, draws=2, atoms=5, run=CPU)
    np.testing.assert_allclose(moved.energy, found.energy, atol=1e-8)
    assert not np.allclose(moved.predicted, found.predicted)  # a network must learn the mean too


def test_regression_with_a_small_ridge_is_what_a_linear_model_learns() -> None:
    family = Family.initialised(functools.partial(nn.Linear, 1, 1), name="linear")
    ramp = Signal(2 * coordinate_grid((12,)) - 0.5, "a ramp")
    found = dictionary(family, ramp, draws=2, atoms=2, ridge=1e-6, run=CPU)
    assert found.predicted_psnr.min() > 90  # it can say a ramp exactly
    task = SignalTask.of(ramp, seed=0, run=CPU64)
    start = family.draw(2, seed=0, run=CPU64).member(0)
    recipe = Recipe("gd", 0.5, "constant", steps=4000, loss="squared")
    trained = fit(start, task, recipe, seed=0, run=CPU64).networks
    assert float(psnr_of(trained, task, "test", run=CPU64)) > 90


def test_by_default_the_best_ridge_of_each_signal_is_quoted(found: Dictionary) -> None:
    best = dictionary(FAMILY, SIGNALS, draws=2, atoms=5, run=CPU)
    assert best.ridge is None
    np.testing.assert_array_equal(best.predicted, found.predicted)
    np.testing.assert_array_equal(best.predicted_psnr, best.predicted.max(-1))
    np.testing.assert_array_equal(found.predicted_psnr, best.predicted[..., 2])


def test_atoms_of_larger_omega_have_higher_frequencies() -> None:
    slow, fast = (dictionary(siren(omega=o), smooth(1, 16, 16), draws=2, atoms=8, run=CPU) for o in (5.0, 60.0))
    assert fast.frequency.mean() > 1.5 * slow.frequency.mean()
    assert slow.frequency.min() > 0


def test_a_wave_has_its_own_frequency_whatever_the_aspect_ratio() -> None:
    r = coordinate_grid((8, 16)).reshape(8, 16, 2) + 1 / 32  # the first axis ends at one half
    waves = torch.stack([torch.cos(2 * torch.pi * 4 * r[..., 0]), torch.cos(2 * torch.pi * 3 * r[..., 1])])
    np.testing.assert_allclose(mean_frequency(waves, 16), [4.0, 3.0], rtol=1e-9)
    slow = coordinate_grid((64,)).T  # half a wave at most, though its edges do not meet
    assert float(mean_frequency(slow - slow.mean(), 64)) < 0.7


def test_random_points_of_a_large_signal_and_atoms_carried_to_a_grid() -> None:
    part = dictionary(FAMILY, smooth(2, 16, 16), draws=1, atoms=3, points=100, choice="random", run=CPU)
    places = part.places[0]
    assert len(set(places.tolist())) == 100
    assert part.atom_shape == (8, 8)
    network = FAMILY.draw(1, seed=0, run=CPU64).member(0)
    vectors = torch.linalg.eigh(kernel_of(network, coordinate_grid((16, 16))[places])).eigenvectors.flip(1).T
    cells = np.arange(256).reshape(16, 16)[::2, ::2].ravel()
    seen, where = np.isin(cells, places), np.searchsorted(places, cells)
    for atom, vector in zip(part.atoms, vectors.numpy(), strict=False):  # where both are known, they are the same
        ratio = atom[seen] / vector[where[seen]]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    whole = dictionary(FAMILY, smooth(2, 16, 16), draws=1, atoms=3, run=CPU)
    np.testing.assert_allclose(part.concentration, whole.concentration, atol=0.05)
    assert "of 100 eigenvalues" in part.sentence()


def test_windows_of_a_large_signal_are_neighbours_at_their_own_coordinates() -> None:
    image = smooth(1, 12, 24)
    image[:, :, 12:] = 0.5  # an empty half
    part = dictionary(FAMILY, image, draws=3, atoms=2, points=72, run=CPU)
    assert part.atom_shape == (6, 12)
    for places in part.places:
        down, across = np.divmod(places.reshape(6, 12), 24)
        assert (np.diff(down, axis=0) == 1).all()
        assert (np.diff(across, axis=1) == 1).all()
        assert across.min() < 10  # the most varied of four
    assert len({each.tobytes() for each in part.places}) > 1
    network = FAMILY.draw(3, seed=0, run=CPU64).member(2)
    values = torch.linalg.eigvalsh(kernel_of(network, coordinate_grid((12, 24))[part.places[2]])).flip(0)
    np.testing.assert_allclose(part.eigenvalues[2, :5] * 72, values[:5], rtol=1e-9)
    one = Family.point(builder("siren")(width=8, depth=2), name="one")
    assert dictionary(one, image, draws=3, atoms=2, points=72, run=CPU).energy.shape[0] == 3


def test_channels_and_signals_in_time_and_volumes() -> None:
    two = Signal(smooth(2, 10).T.contiguous(), "a chord")
    family = siren(coordinates=1)
    apart = dictionary(family, smooth(2, 10), draws=1, atoms=2, run=CPU)
    together = dictionary(family, two, draws=1, atoms=2, run=CPU)
    np.testing.assert_allclose(together.concentration, apart.concentration)
    assert together.plots()["atoms"].axes
    volume = dictionary(siren(coordinates=3), smooth(1, 4, 4, 6), draws=1, atoms=2, run=CPU)
    assert volume.atom_shape == (4, 4, 6)
    assert volume.plots()["atoms"].axes


def test_one_network_is_drawn_once_and_finished_networks_are_kept(tmp_path: Path) -> None:
    point = Family.point(builder("siren")(width=8, depth=2), name="one")
    assert dictionary(point, SIGNALS, draws=5, atoms=2, run=CPU).eigenvalues.shape[0] == 1
    own = dataclasses.replace(CPU, folder=tmp_path)
    two = dictionary(FAMILY, SIGNALS, draws=2, atoms=2, run=own)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("network*.safetensors")}
    assert len(stamps) == 2
    three = dictionary(FAMILY, SIGNALS, draws=3, atoms=2, ridge=1e-2, run=own)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    np.testing.assert_array_equal(three.energy[:2], two.energy)
    assert sum(path.stat().st_size for path in stamps) < 60_000  # no kernel is kept


def test_networks_are_scored_by_what_they_are_predicted_to_do() -> None:
    target = smooth(4, 16, 16)
    results = [dictionary(siren(omega=o), target, draws=2, atoms=1, run=CPU) for o in (1.0, 10.0, 200.0)]
    best = max(results, key=lambda each: each.score("predicted").mean())
    assert best.subject == "SIREN 10"
    assert best.score("concentration").mean() == pytest.approx(best.concentration.mean())
    with pytest.raises(ValueError, match="by must be 'predicted' or 'concentration', got 'x'"):
        best.score("x")


def test_intervals_hold_the_spread_of_signals_and_of_networks() -> None:
    table = np.array([[1.0, 5.0, 3.0], [2.0, 6.0, 4.0]])
    found = over_signals(table)
    assert found.value == 3.5
    assert found.standard_error == pytest.approx(np.sqrt(0.5 / 2 + 4.0 / 3))
    assert found.low < 3.5 - 1.96 * found.standard_error  # few of either
    assert np.isnan(over_signals(np.array([[1.0]])).low)
    assert over_signals(table, within=(0.0, 4.0)).high == 4.0
    perfect = rank_agreement(table, 10 * table)
    assert (perfect.value, perfect.high) == pytest.approx((1.0, 1.0))
    assert perfect.low < 0, "three signals that agree do not show that others do"


def test_pictures_of_many_networks() -> None:
    names = [f"SIREN {number}" for number in range(8)]
    draw = np.random.default_rng(0)
    energies = {name: np.sort(draw.random((2, 3, 20)), axis=-1) for name in [*names, "ReLU"]}
    thresholds = np.logspace(0, -5, 20)
    figure = pictures.energy_figure(thresholds, energies, apart=("ReLU",))
    axes = figure.axes[0]
    assert axes.get_xlim()[0] > axes.get_xlim()[1]  # large eigenvalues on the left
    styles = {line.get_label(): line.get_linestyle() for line in axes.lines}
    assert styles["ReLU"] == "--"
    assert styles["SIREN 0"] == "-"
    assert len({str(line.get_color()) for line in axes.lines}) == 9
    falling = {name: np.sort(draw.random((1, 50)))[:, ::-1] for name in names}
    assert pictures.spectra_figure(falling).axes[0].get_yscale() == "log"
    curves = {name: (np.arange(3), draw.random(3)) for name in names}
    bands = {name: draw.random(3) for name in names}
    assert len(pictures.psnr_figure(curves, errors=bands, dark=True).axes[0].lines) == 8
    atoms = {name: draw.standard_normal((7, 4, 6)) for name in names}
    assert len(pictures.atoms_figure(atoms).axes) == 8 * 6
    assert len(pictures.atoms_figure({"one": atoms["SIREN 0"]}).axes) == 7
    with pytest.raises(ValueError, match="at least one of each network"):
        pictures.atoms_figure({})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"atoms": 0}, "atoms must be at least 1, got 0"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"decades": 11.0}, "decades must be from 0.1 to 10, got 11"),
        ({"choice": "x"}, "choice must be 'window' or 'random', got 'x'"),
        ({"ridge": 0.3}, "ridge must be one of 0.1, 0.01"),
        ({"points": 3}, "points must be at least 4, got 3"),
        ({"held_out": 1.0}, "held_out must be a share between 0 and 1, got 1"),
        ({"low": 2.0}, "low must be below high"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        dictionary(FAMILY, SIGNALS, run=CPU, **{"draws": 1, "atoms": 2, **change})


def test_wrong_signals_and_networks_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="one or more of the same shape, got none"):
        dictionary(FAMILY, [], run=CPU)
    with pytest.raises(ValueError, match="of the same shape"):
        dictionary(FAMILY, [Signal(torch.rand(4, 4, 1)), Signal(torch.rand(4, 5, 1))], run=CPU)
    with pytest.raises(ValueError, match="signals must vary"):
        dictionary(FAMILY, torch.ones(2, 4, 4), run=CPU)
    with pytest.raises(ValueError, match="must take 1 coordinates"):
        dictionary(FAMILY, smooth(1, 9), run=CPU)
    with pytest.raises(ValueError, match="must return one number for each point, got 3"):
        dictionary(siren(outputs=3), SIGNALS, run=CPU)
    assert RIDGES[2] == 1e-3


def test_from_the_command_line_on_images_of_a_set_and_on_a_sound(tmp_path: Path) -> None:
    import json

    from typer.testing import CliRunner

    from biascope.cli import app

    images = (255 * smooth(6, 10, 10).clip(0, 1)).to(torch.uint8).numpy()
    np.savez(tmp_path / "waves.npz", x=images)
    np.save(tmp_path / "tone.npy", smooth(1, 40)[0].numpy())
    few = ["--set", "width=16", "--draws", "1", "--device", "cpu", "--json", "--out", str(tmp_path / "run")]
    on_set = ["--data", "waves", "--samples", "4", "--data-root", str(tmp_path)]
    for where, words in ((on_set, "4 images of waves"), (["--data", str(tmp_path / "tone.npy")], "tone")):
        done = CliRunner().invoke(app, ["measure", "dictionary", "siren", *where, *few])
        assert done.exit_code == 0, done.output
        result = json.loads(done.stdout)["results"][0]
        assert result["provenance"]["settings"]["signals"] == words
        numbers = {number["key"]: number["value"] for number in result["numbers"]}
        assert 0 < numbers["concentration"] <= 1
    assert "Dictionary" in (tmp_path / "run" / "report.html").read_text()
