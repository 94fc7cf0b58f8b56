"""The tangent kernel's measurement against closed forms and independent routes."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from biascope.derivatives.spectrum import subspace_similarity
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.products import alignment
from biascope.measures import tangent_kernel as module
from biascope.measures.tangent_kernel import TangentSpectrum, tangent_kernel
from biascope.results.registry import load
from biascope.results.report import write_report
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

EXACT = Run(device="cpu", precision="float64")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


X = normal(40, 5) * torch.tensor([3, 2, 1.5, 1, 0.5])
Y = (normal(40, seed=1) > 0).long()
LINEAR = Family.point(nn.Linear(5, 1, bias=False).double(), name="linear")


def of(x: torch.Tensor, y: torch.Tensor, **others: tuple[torch.Tensor, torch.Tensor]) -> Arrays:
    return Arrays({"train": (x, y), **others}, torch.float64, "toy data")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))


def fixed_mlp(seed: int = 0) -> nn.Sequential:
    with forked_rng(seed):
        return mlp().double()


def test_a_linear_model_has_principal_components_for_eigenfunctions() -> None:
    result = tangent_kernel(LINEAR, of(X, Y), leading=5, run=EXACT)
    left, sizes, _ = torch.linalg.svd(X, full_matrices=False)
    np.testing.assert_allclose(result.eigenvalues[0], sizes**2 / 40, rtol=1e-12)
    for function, vector in zip(result.eigenfunctions, left.T, strict=True):
        assert abs(function @ vector.numpy()) == pytest.approx(math.sqrt(40), rel=1e-6)
    np.testing.assert_allclose((result.eigenfunctions**2).mean(1), 1, rtol=1e-6)
    kernel = X @ X.T
    assert result.trace[0] == pytest.approx(float(kernel.trace()) / 40, rel=1e-12)
    assert result.frobenius[0] == pytest.approx(float(torch.linalg.matrix_norm(kernel)) / 40, rel=1e-12)
    rank = float(kernel.trace() ** 2 / kernel.square().sum())
    assert repr(result.headline()["effective_rank"]) == f"{rank:.4g}", "one given network: exact"
    assert result.residuals.max() < 1e-9
    assert result.kernel_error.max() < 1e-14


def test_labels_inside_the_span_are_held_whole_and_in_growing_shares() -> None:
    inside = torch.cat([X[:, :4], 2.0 * Y[:, None] - 1], 1)
    result = tangent_kernel(LINEAR, of(inside, Y), leading=5, run=EXACT)
    assert (np.diff(result.energy[0, 0]) >= 0).all()
    assert result.energy[0, 0, -1] == pytest.approx(1, abs=1e-12)
    outside = tangent_kernel(LINEAR, of(X, Y), leading=5, run=EXACT)
    y = 2.0 * Y.double() - 1
    projection = X @ torch.linalg.lstsq(X, y[:, None]).solution
    assert outside.energy[0, 0, -1] == pytest.approx(float(projection.square().sum()) / 40, rel=1e-10)


def test_labels_that_are_an_eigenfunction_have_its_eigenvalue_for_alignment_and_its_inverse_for_bound() -> None:
    y = 2.0 * Y.double() - 1
    others = X[:, :4] - torch.outer(y, y @ X[:, :4]) / 40  # orthogonal to the labels
    result = tangent_kernel(LINEAR, of(torch.cat([5 * y[:, None], others], 1), Y), leading=5, run=EXACT)
    assert result.eigenvalues[0, 0] == pytest.approx(25)
    assert result.alignment[0, 0] == pytest.approx(25)
    assert result.rkhs_bound[0, 0] == pytest.approx(1 / 25)
    np.testing.assert_allclose(result.energy[0, 0], 1)
    assert result.binarised[0] == pytest.approx(1)


def test_alignment_agrees_with_the_route_without_a_gram_matrix_and_with_the_whole_spectrum() -> None:
    network = fixed_mlp()
    result = tangent_kernel(Family.point(network), of(X, Y), leading=40, run=EXACT)
    y = 2.0 * Y.double() - 1
    other = alignment(Network.of(network), X, y, run=EXACT)
    assert result.alignment[0, 0] == pytest.approx(float(other.values[0]), rel=1e-10)
    assert result.rkhs_bound[0, 0] == pytest.approx(
        float(other.squared_norms[0] ** (1 if other.normalised else 2) / other.values[0]), rel=1e-10
    )
    shares = np.diff(result.energy[0, 0], prepend=0.0)
    assert (result.eigenvalues[0] * shares).sum() == pytest.approx(result.alignment[0, 0], rel=1e-9)
    numbers = result.headline()
    assert numbers["alignment_over_random"].value == pytest.approx(
        numbers["labels_alignment"].value / result.eigenvalues[0].mean(), rel=1e-9
    )


def test_eigenfunctions_reach_beyond_the_samples_and_are_themselves_on_them() -> None:
    network = Family.point(fixed_mlp())
    again = tangent_kernel(network, of(X, Y, again=(X, Y)), leading=7, control="again", run=EXACT)
    np.testing.assert_allclose(again.control_energy, again.local_energy, rtol=1e-5)
    assert again.local_energy.mean() == pytest.approx(7)
    fresh = normal(9, 5, seed=2)
    result = tangent_kernel(LINEAR, of(X, Y, fresh=(fresh, Y[:9])), leading=3, control="fresh", run=EXACT)
    _, sizes, right = torch.linalg.svd(X, full_matrices=False)
    extended = fresh @ right.T[:, :3] * math.sqrt(40) / sizes[:3]  # φ(x) = √n xᵀv/s
    np.testing.assert_allclose(result.control_energy, extended.square().sum(1), rtol=1e-9)
    ratio = result.headline()["local_energy_ratio"]
    assert ratio.label == "mean local energy on fresh relative to train"
    assert ratio.value == pytest.approx(float(result.control_energy.mean()) / 3, rel=1e-6)
    assert ratio.standard_error > 0
    assert "local energy on fresh" in result.sentence()


def test_more_classes_are_told_apart_one_by_one_without_their_means() -> None:
    labels = torch.arange(40) % 4
    result = tangent_kernel(LINEAR, of(X, labels), leading=5, run=EXACT)
    assert result.targets == tuple(f"{kind} against the rest" for kind in range(4))
    np.testing.assert_allclose(result.means, -0.5)
    left = torch.linalg.svd(X, full_matrices=False).U
    centred = torch.eye(4, dtype=torch.float64)[labels] - 0.25  # the scale does not matter
    shares = (left.T @ centred).square()
    np.testing.assert_allclose(result.energy[0, :, -1], shares.sum(0) / centred.square().sum(0), rtol=1e-10)
    assert result.labels_energy[0, -1] == pytest.approx(float(shares.sum() / centred.square().sum()), rel=1e-10)
    assert "(4 classes, each against the rest)" in result.sentence()
    some = tangent_kernel(LINEAR, of(X, labels), leading=5, positive=(1, 3), run=EXACT)
    assert some.targets == ("1, 3 against the rest",)
    odd = tangent_kernel(LINEAR, of(X, labels % 2), leading=5, run=EXACT)
    assert odd.targets == ("1 against 0",)
    np.testing.assert_array_equal(some.energy, odd.energy)


def test_random_labels_lie_on_the_leading_eigenfunctions_as_often_as_chance_says() -> None:
    x, labels = normal(400, 5), (10 * normal(400, seed=3)).long() % 10
    result = tangent_kernel(Family.point(fixed_mlp()), of(x, labels), leading=40, run=EXACT)
    assert result.labels_energy[0, -1] == pytest.approx(0.1, abs=4 * math.sqrt(2 * 0.1 / 400 / 9))
    assert "(chance: 10 %)" in result.sentence()


def test_a_kernel_of_low_rank_has_no_more_eigenfunctions_than_that() -> None:
    result = tangent_kernel(LINEAR, of(X, Y), leading=8, run=Run(device="cpu"))  # float32, where zeros are not zero
    assert result.eigenfunctions.shape == (5, 40)
    assert np.isnan(result.residuals[0, 5:]).all()
    assert (result.energy[0, 0, 5:] == result.energy[0, 0, 4]).all()
    assert "Only 5 eigenvalues" in result.sentence()
    assert len(result.plots()) == 2


def test_iterated_eigenpairs_are_those_of_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(120, 5)
    data, family = of(x, (x[:, 0] > 0).long()), Family.point(fixed_mlp())
    whole = tangent_kernel(family, data, leading=6, run=EXACT)
    monkeypatch.setattr(module, "_DENSE", 10)
    iterated = tangent_kernel(family, data, leading=6, run=EXACT)
    np.testing.assert_allclose(iterated.eigenvalues, whole.eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(iterated.energy, whole.energy, atol=1e-6)
    one, two = (torch.from_numpy(each.eigenfunctions) / math.sqrt(120) for each in (whole, iterated))
    assert subspace_similarity(one, two) == pytest.approx(1, abs=1e-6)
    assert iterated.residuals.max() <= 1e-6


def test_the_kernel_of_all_outputs_and_that_of_some_weights() -> None:
    two = Family.point(nn.Linear(5, 2, bias=False).double())
    result = tangent_kernel(two, of(X, Y), leading=5, kernel="trace", run=EXACT)
    one = tangent_kernel(LINEAR, of(X, Y), leading=5, run=EXACT)
    np.testing.assert_allclose(result.eigenvalues, 2 * one.eigenvalues, rtol=1e-12)
    network = fixed_mlp()
    last = tangent_kernel(Family.point(network), of(X, Y), leading=6, parameters=("2.weight",), run=EXACT)
    hidden = network[:2](X).detach()
    np.testing.assert_allclose(
        last.eigenvalues[0], torch.linalg.eigvalsh(hidden.T @ hidden / 40).flip(0), rtol=1e-9, atol=1e-12
    )


def test_errors_are_those_over_networks() -> None:
    members = [fixed_mlp(seed) for seed in range(3)]
    data = of(X, Y)
    each = [tangent_kernel(Family.point(member), data, leading=4, run=EXACT) for member in members]
    several = tangent_kernel(Family.empirical(members), data, leading=4, draws=3, run=EXACT)
    for name, estimate in several.headline().items():
        values = np.array([one.headline()[name].value for one in each])
        assert estimate.value == pytest.approx(values.mean(), rel=1e-9)
        assert estimate.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(3), rel=1e-6)
    np.testing.assert_array_equal(several.eigenfunctions, each[0].eigenfunctions)
    single = tangent_kernel(Family.initialised(mlp), data, leading=4, run=EXACT)
    assert all("spread unknown" in repr(estimate) for estimate in single.headline().values())


def test_the_error_falls_like_the_root_of_the_number_of_draws() -> None:
    family, data = Family.initialised(mlp), of(X[:12], torch.arange(12) % 2)
    errors = [
        next(iter(tangent_kernel(family, data, leading=2, draws=draws, run=EXACT).headline().values())).standard_error
        for draws in (30, 270)
    ]
    assert errors[1] == pytest.approx(errors[0] / 3, rel=0.3)


def test_samples_are_chosen_by_the_seed_and_keep_their_labels() -> None:
    data = of(X, torch.arange(40) % 2)
    result = tangent_kernel(LINEAR, data, samples=10, leading=3, seed=1, run=EXACT)
    assert (np.diff(result.places) > 0).all()
    np.testing.assert_array_equal(result.labels, result.places % 2)
    more = tangent_kernel(LINEAR, data, samples=20, leading=3, seed=1, run=EXACT)
    other = tangent_kernel(LINEAR, data, samples=10, leading=3, seed=2, run=EXACT)
    assert set(result.places) <= set(more.places)
    assert set(result.places) != set(other.places)
    assert result.provenance["settings"]["samples"] == 10
    assert tangent_kernel(LINEAR, data, leading=3, run=EXACT).provenance["settings"]["samples"] == 40


def images() -> Arrays:
    """Each image is grey of its own brightness, per channel."""
    level = normal(30).argsort().double()
    x = level[:, None, None, None] * torch.tensor([1.0, -2.0, 0.5])[:, None, None] + torch.zeros(30, 3, 4, 4)
    return Arrays({"train": (x, (level > 14).long()), "test": (x[:7] + 0.3, (level[:7] > 14).long())}, torch.float64)


def image_result() -> TangentSpectrum:
    family = Family.point(nn.Sequential(nn.Flatten(), nn.Linear(48, 1)).double(), name="linear")
    return tangent_kernel(family, images(), leading=2, control="test", run=EXACT)


def test_thumbnails_are_the_samples_at_the_two_ends() -> None:
    result = image_result()
    assert result.thumbnails.shape == (2, 8, 3, 4, 4)
    shown = result.thumbnails[0, :, 0, 0, 0] / 255 * 29  # the first eigenfunction is the brightness, up to its sign
    assert sorted(shown.round().tolist()) == [0, 1, 2, 3, 26, 27, 28, 29]
    assert (np.diff(shown[:4]) * np.diff(shown[4:]) > 0).all(), "in the order of the function"
    np.testing.assert_array_equal(result.thumbnails[:, :, 1], 255 - result.thumbnails[:, :, 0])
    assert [len(figure.axes) for figure in result.plots().values()] == [1, 2, 1, 1]


def test_saved_and_loaded_it_is_the_same_with_images_and_control(tmp_path: Path) -> None:
    result = image_result()
    again = load(result.save(tmp_path))
    assert isinstance(again, TangentSpectrum)
    for field in dataclasses.fields(result):
        before, after = getattr(result, field.name), getattr(again, field.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after)
        elif field.name != "provenance":
            assert before == after
    assert again.sentence() == result.sentence()
    assert again.headline() == result.headline()
    page = write_report([again], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Samples at the two ends of the first eigenfunctions" in page
    assert result.sentence().split(" (")[0] in page


def test_a_run_folder_keeps_the_kernel(tmp_path: Path) -> None:
    run = dataclasses.replace(EXACT, folder=tmp_path)
    first = tangent_kernel(LINEAR, of(X, Y), leading=5, run=run)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    again = tangent_kernel(LINEAR, of(X, Y), leading=5, run=run)
    assert kept == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} != {}
    np.testing.assert_array_equal(first.energy, again.energy)


def test_unbalanced_classes_are_told() -> None:
    result = tangent_kernel(LINEAR, of(X, (torch.arange(40) < 4).long()), leading=3, run=EXACT)
    assert "the mean holds 64 % of the labels" in result.sentence()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": "valid"}, r"split must be one of 'train', got 'valid'"),
        ({"control": "control"}, r"split must be one of 'train', got 'control'"),
        ({"leading": 41}, r"leading must be from 1 to 40, the number of samples, got 41\. Pass leading=40\."),
        ({"leading": 0}, "leading must be from 1"),
        ({"samples": 41}, "samples must be from 2 to 40, the size of train, got 41"),
        ({"samples": 1}, "samples must be from 2"),
        ({"positive": (7,)}, r"positive must be some of the classes 0, 1, got \(7,\)\. Pass positive=\(1,\)\."),
        ({"positive": (0, 1)}, "positive must be some"),
        ({"positive": ()}, "positive must be some"),
        ({"kernel": "each"}, "kernel must be 'scalar' or 'trace', got 'each'"),
        ({"draws": 2}, "draws must be from 1 to the number of networks, got 2"),
        ({"draws": 0}, "draws must be from 1"),
        ({"readout": "last"}, "readout must be one of"),
    ],
)
def test_errors_say_what_to_do(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tangent_kernel(LINEAR, of(X, Y), **{"leading": 3, "run": EXACT, **change})


def test_samples_must_differ() -> None:
    with pytest.raises(
        ValueError, match=r"^The train samples of .* must differ from one another, but all 40 are equal\. Pass"
    ):
        tangent_kernel(LINEAR, of(X[:1].expand_as(X), Y), leading=3, run=EXACT)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.zeros(40, dtype=torch.int64), "two classes, got only 0"),
        (torch.linspace(0, 1, 40), r"got torch.float32 of shape \(40,\)"),
        (torch.arange(80).reshape(40, 2), r"got torch.int64 of shape \(40, 2\)"),
    ],
)
def test_labels_must_be_classes(labels: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tangent_kernel(LINEAR, of(X, labels), leading=3, run=EXACT)


def test_a_kernel_that_is_no_number_or_nothing_is_told() -> None:
    broken, network = X.clone(), fixed_mlp()
    broken[20] = math.nan
    nn.init.zeros_(network[2].weight)
    for family, x, parameters in ((LINEAR, broken, None), (Family.point(network), X, ("0.weight",))):
        with pytest.raises(ValueError, match="finite and not all 0"):
            tangent_kernel(family, of(x, Y), leading=3, parameters=parameters, run=EXACT)


def test_few_samples_are_not_explained_by_all_eigenfunctions() -> None:
    result = tangent_kernel(LINEAR, of(X, Y), run=EXACT)
    assert result.eigenvalues.shape[1] == min(50, len(Y) // 4)
