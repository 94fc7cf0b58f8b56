"""Meta-learned dictionaries: contour alignment in closed form, the figures at their least effort, the published weights on faces."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.networks import builder
from biascope.papers.dictionaries2022 import faces
from biascope.papers.dictionaries2022.atoms import contour_alignment, turned_dimensions
from biascope.papers.dictionaries2022.faces import FROM_META, published_siren
from biascope.papers.dictionaries2022.meta import figure_55_meta, figure_56_meta, figure_c3
from biascope.papers.dictionaries2022.pretraining import figure_58
from biascope.results.finding import FigureOfPaper
from biascope.runs.run import Run
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid, psnr_of
from biascope.training.fit import fit

CPU = Run(device="cpu")
EXACT = Run(device="cpu", precision="float64")


def test_contours_of_noise_are_aligned_by_half_and_those_of_a_function_of_the_face_wholly() -> None:
    generator = torch.Generator().manual_seed(0)
    face = faces.images(faces.SMOKE, CPU)[0].double().mean(0)
    noise = torch.randn(2000, *face.shape, generator=generator, dtype=torch.float64)
    aligned = contour_alignment(noise, face)
    assert float(aligned.mean()) == pytest.approx(0.5, abs=5 * float(aligned.std()) / 2000**0.5)
    assert torch.allclose(contour_alignment(-3 * face[None] + 1, face), torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("figure", [figure_58, figure_c3, figure_55_meta], ids=lambda figure: figure.number)
def test_figures_run_at_their_least_effort(figure: FigureOfPaper, one_thread: None) -> None:
    found = figure("smoke", CPU)
    measured = [claim for claim in figure.claims if claim.statistic in found.statistics]
    assert {claim.verdict(found.statistics[claim.statistic], "smoke") for claim in measured} == {"inconclusive"}
    lacking = {claim.statistic for claim in figure.claims} - found.statistics.keys()
    at_other_marks = {f"concentration_after_{mark}_iterations_minus_none" for mark in faces.PAPER["marks"]}
    assert all(name.startswith("published_weights") for name in lacking - at_other_marks)
    assert all(np.isfinite(number.value) for number in found.statistics.values())
    for curve in found.arrays.values():
        assert (np.diff(curve[1]) >= -1e-12).all()  # E grows as the threshold falls
        assert curve[1, -1] <= 1 + 1e-9


def test_the_row_of_atoms_has_every_number_and_draws(one_thread: None) -> None:
    found = figure_56_meta("smoke", CPU)
    assert {claim.statistic for claim in figure_56_meta.claims} <= found.statistics.keys()
    assert all(np.isfinite(number.value) for number in found.statistics.values())
    assert set(found.arrays_of("atoms")) == {"random", "MAML", "one face"}
    assert figure_56_meta.show(found, False).axes


def test_turned_dimensions_are_those_of_a_rotation_and_of_random_atoms() -> None:
    angle = 0.3
    turn = np.eye(6)
    turn[1:3, 1:3] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    np.testing.assert_allclose(turned_dimensions(np.eye(6), turn), [0, np.sin(angle) ** 2, 0, 0, 0, 0], atol=1e-12)
    generator = np.random.default_rng(0)
    found = [turned_dimensions(np.eye(60), np.linalg.qr(generator.standard_normal((60, 60)))[0]) for _ in range(50)]
    k = np.arange(1, 61)
    np.testing.assert_allclose(np.mean(found, 0), k * (1 - k / 60), atol=0.5)


def test_without_faces_the_message_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"celeba_gray64\.npz must hold grey faces"):
        faces.images(faces.LAPTOP, Run(device="cpu", data_root=tmp_path))


def test_faces_are_split_and_made_small(tmp_path: Path) -> None:
    plan = faces.LAPTOP
    images = np.zeros((plan["train"] + plan["validation"], 64, 64), np.uint8)
    images[-1, :2, :2] = 255
    np.savez(tmp_path / "celeba_gray64.npz", x=images)
    train, validation = faces.images(faces.LAPTOP, Run(device="cpu", data_root=tmp_path))
    assert train.shape == (plan["train"], 32, 32)
    assert validation.shape == (plan["validation"], 32, 32)
    assert float(validation[-1, 0, 0]) == 1.0
    assert float(train.max()) == 0.0


def test_weights_under_other_names_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", first=np.zeros(3))
    with pytest.raises(ValueError, match=r"must hold siren_siren_layer_linear\.w, and does not"):
        published_siren(tmp_path / "weights.npz")


@pytest.fixture
def published(data_root: Path) -> Network:
    path = data_root / "published" / "siren_maml_celeba.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there: no published weights to load")
    return published_siren(path)


@pytest.fixture
def grey_faces(data_root: Path) -> torch.Tensor:
    path = data_root / "celeba_gray64.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there: no faces to look at")
    with np.load(path) as stored:
        return torch.from_numpy(np.concatenate([stored["x"][:500], stored["x"][-4:]])).float() / 255


def test_the_published_weights_learn_faces_in_three_steps(
    published: Network, grey_faces: torch.Tensor, one_thread: None
) -> None:
    task = SignalTask.of([Signal(face[..., None]) for face in grey_faces[-4:]], seed=0, run=CPU)
    copies = Family.point(published.as_module()).draw(4, seed=0, run=CPU)
    done = fit(copies, task, dataclasses.replace(FROM_META, steps=3), seed=0, run=CPU, keep_at=(0, 1, 3))
    levels = [float(psnr_of(done.at(step), task, "test", run=CPU).mean()) for step in (0, 1, 3)]
    # 12.0, 19.9 and 23.6 dB on 20 faces; four faces are within 2 dB of that.
    assert levels == pytest.approx([12.0, 19.9, 23.6], abs=2.0)


def test_the_atoms_of_the_published_weights_trace_faces(
    published: Network, grey_faces: torch.Tensor, one_thread: None
) -> None:
    middle = slice(16, 48)  # of the 64 × 64 pixels: eyes, nose and mouth
    grid = coordinate_grid((64, 64)).reshape(64, 64, 2)[middle, middle].reshape(-1, 2)
    face = grey_faces.double().mean(0)[middle, middle]

    def aligned(network: Network) -> float:
        kernel = tangent_gram(network, grid, run=EXACT).matrix
        atoms = torch.linalg.eigh(kernel).eigenvectors[:, -10:].T.reshape(-1, 32, 32)
        return float(contour_alignment(atoms, face).mean())

    family = Family.initialised(lambda: builder("siren")(shift=0.5), name="SIREN")
    random = [aligned(family.draw(2, seed=0, run=EXACT).member(i)) for i in range(2)]
    assert aligned(published.to(torch.device("cpu"), torch.float64)) >= 0.62
    assert max(random) <= 0.55  # ½ by chance
