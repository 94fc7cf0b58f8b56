"""The same seed gives the same answer however the work is cut; kills lose little; wrong input is one sentence."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from closed_forms import marchenko_pastur_edges
from networks_under_test import CPU
from torch import nn

from biascope.derivatives import covariance as sampling
from biascope.derivatives import moments
from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.derivatives.fastest import Way
from biascope.derivatives.gradients import input_difference, input_gradient
from biascope.derivatives.operators import GradientCovariance
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family
from biascope.kernels.selftest import selftest
from biascope.measures.average_geometry import average_geometry
from biascope.measures.mean_gradient import mean_gradient
from biascope.networks import builder
from biascope.runs.run import Run
from biascope.tasks.probe import Probe


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 5), nn.ReLU(), nn.Linear(5, 1)
    )


@pytest.fixture(scope="module")
def family() -> Family:
    return Family.initialised(small_cnn, name="small CNN")


FIXED = Probe.gaussian((1, 8, 8), seed=1)
FRESH = Probe.gaussian((1, 8, 8), num=3, fresh=True, seed=1)


def sampler_of(
    family: Family,
    probe: Probe = FIXED,
    estimator: str = "exact",
    run: Run = CPU,
    seed: int = 0,
    step: float = 100.0,
) -> GradientSampler:
    return GradientSampler(family, probe, estimator=estimator, step=step, readout="first", seed=seed, run=run)


@pytest.mark.parametrize("probe", [FIXED, FRESH], ids=["fixed", "fresh"])
@pytest.mark.parametrize("estimator", ["exact", "difference"])
def test_gradients_equal_those_of_each_network_alone_however_they_are_cut(
    family: Family, probe: Probe, estimator: str
) -> None:
    alone = []
    stack = family.draw(20, seed=0, run=CPU).read("first")
    for index in range(20):
        x = probe.inputs(index, index + 1, CPU)[0] if probe.fresh else probe.inputs(0, 1, CPU)
        one = stack.member(index)
        alone.append(input_gradient(one, x) if estimator == "exact" else input_difference(one, x, step=100.0))
    wanted = torch.stack(alone)
    for cuts in ([0, 20], [0, 1, 2, 20], [0, 7, 20], list(range(21))):
        sampler = sampler_of(family, probe, estimator)
        parts = [sampler.gradients(first, last) for first, last in itertools.pairwise(cuts)]
        torch.testing.assert_close(torch.cat(parts), wanted, rtol=1e-4, atol=1e-7)


def test_every_way_gives_the_same_gradients(family: Family) -> None:
    stack = family.draw(6, seed=0, run=Run(device="cpu", precision="float64")).read("first")
    for estimator in ("exact", "difference"):
        sampler = sampler_of(family, FIXED, estimator, Run(device="cpu", precision="float64"))
        x = FIXED.inputs(0, 1, sampler.run)
        results = []
        for way in sampler._ways():
            assert isinstance(way, Way)
            calls = range(0, 6, min(6, way.members))
            results.append(torch.cat([way.gradients(stack.slice(i, min(6, i + way.members)), x) for i in calls]))
        assert len(results) >= 2
        for result in results[1:]:
            torch.testing.assert_close(result, results[0], rtol=1e-9, atol=1e-12)


def matrix_of(covariance: GradientCovariance) -> torch.Tensor:
    matrix = covariance.dense()
    assert matrix is not None
    return matrix


@pytest.mark.parametrize(
    ("probe", "how"),
    [(FIXED, {"centred": True}), (Probe.gaussian((1, 8, 8), num=4, fresh=True, seed=1), {"of_means": True})],
    ids=["gradients", "mean gradients"],
)
def test_a_run_that_was_killed_goes_on_where_it_stopped(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: Probe, how: dict[str, bool]
) -> None:
    whole = gradient_covariance(sampler_of(family, probe), draws=96, seed=0, **how)
    run = Run(device="cpu", folder=tmp_path)
    monkeypatch.setattr(GradientSampler, "stride", 4)
    plain, calls = GradientSampler.gradients, []

    def dying(self: GradientSampler, start: int, stop: int, advance: object = None) -> torch.Tensor:
        if len(calls) == 10:
            raise KeyboardInterrupt
        calls.append((start, stop))
        return plain(self, start, stop)

    monkeypatch.setattr(GradientSampler, "gradients", dying)
    with pytest.raises(KeyboardInterrupt):
        gradient_covariance(sampler_of(family, probe, run=run), draws=96, seed=0, **how)
    kept = len(list(tmp_path.rglob("draws-*.safetensors")))
    assert kept == 13  # forty of ninety-six draws are thirteen whole groups of three
    calls.clear()
    monkeypatch.setattr(
        GradientSampler,
        "gradients",
        lambda self, start, stop, advance=None: calls.append((start, stop)) or plain(self, start, stop),
    )
    resumed = gradient_covariance(sampler_of(family, probe, run=run), draws=96, seed=0, **how)
    assert calls[0][0] == 39
    assert sum(stop - start for start, stop in calls) == 96 - 39
    torch.testing.assert_close(matrix_of(resumed), matrix_of(whole), rtol=1e-5, atol=1e-10)
    assert resumed.effective_rank().value == pytest.approx(whole.effective_rank().value, rel=1e-4)
    calls.clear()
    gradient_covariance(sampler_of(family, probe, run=run), draws=96, seed=0, **how)
    assert not calls


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_a_step_whose_differences_are_rounding_is_refused(offset: float) -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + offset

    family, probe = Family.initialised(Offset, name="offset"), Probe.gaussian((12,))
    double = Run(device="cpu", precision="float64")
    exact = sampler_of(family, probe, run=double).gradients(0, 4)
    fine = 1e-3 * max(1.0, offset)
    for step in (1e-7, fine / 1000):
        with pytest.raises(ValueError, match=r"^The step h .* more than rounding in float32, got .* Pass step="):
            sampler_of(family, probe, "difference", step=step)
    for run, step in ((double, 1e-7), (double, 1e-3), (CPU, fine), (CPU, 100.0)):
        found = sampler_of(family, probe, "difference", run=run, step=step).gradients(0, 4)
        assert float((found.double() - exact).norm() / exact.norm()) < 0.05


def test_other_settings_do_not_continue_the_same_run(family: Family, tmp_path: Path) -> None:
    run = Run(device="cpu", folder=tmp_path)
    gradient_covariance(sampler_of(family, run=run), draws=8, seed=0)
    gradient_covariance(sampler_of(family, run=run, seed=1), draws=8, seed=1)
    gradient_covariance(sampler_of(family, estimator="difference", run=run), draws=8, seed=0)
    assert len(list((tmp_path / "trials").iterdir())) == 3
    even = Probe.gaussian((1, 8, 8), num=4, fresh=True)
    gradient_covariance(sampler_of(family, even, run=run), draws=8, seed=0)
    gradient_covariance(sampler_of(family, even, run=run), draws=8, seed=0, of_means=True)
    assert len(list((tmp_path / "trials").iterdir())) == 5


def test_sampling_stops_once_the_leading_subspace_is_stable() -> None:
    mixing = torch.diag(torch.tensor([5.0, 4.0, *[0.01] * 30]))

    class TwoDirections(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32))
            self.register_buffer("mixing", mixing)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ (self.mixing @ self.weight))[:, None]

    family = Family.initialised(TwoDirections)
    probe = Probe.fixed(torch.zeros(1, 32))
    stopped = gradient_covariance(sampler_of(family, probe), draws=640, seed=0, stable=0.9, leading=2)
    assert stopped.draws < 640
    full = gradient_covariance(sampler_of(family, probe), draws=640, seed=0, stable=1.0, leading=20)
    assert full.draws == 640


def test_large_images_work_factored_and_sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 2, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 1)
        )

    family = Family.initialised(build, name="wide")
    probe = Probe.gaussian((3, 224, 224))
    factored = gradient_covariance(sampler_of(family, probe), draws=12, seed=0)
    leading = eigenpairs(factored, 3)
    assert leading.vectors.shape == (3, 150_528)
    assert float(leading.residuals.max()) < 1e-5
    monkeypatch.setattr(moments, "ROWS_LIMIT", 0)
    monkeypatch.setattr(moments, "SKETCH_SIZE", 24)
    sketched = gradient_covariance(sampler_of(family, probe), draws=12, seed=0)
    torch.testing.assert_close(eigenpairs(sketched, 3).values, leading.values, rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="centred=True must store every gradient"):
        gradient_covariance(sampler_of(family, probe), draws=12, seed=0, centred=True)


def test_logistic_regression_is_isotropic_and_fills_the_marchenko_pastur_band() -> None:
    family = Family.initialised(builder("logistic_regression"))
    covariance = gradient_covariance(sampler_of(family, Probe.gaussian((1, 32, 32))), draws=400, seed=0)
    assert covariance.effective_rank().contains(1024)
    values = eigenpairs(covariance, 400).values
    assert float(values.sum() ** 2 / values.square().sum()) == pytest.approx(287.7, abs=1.0)  # the biased plug-in
    low, high = marchenko_pastur_edges(1024, 400, variance=1 / (3 * 1024))  # nn.Linear: uniform on ±1/√1024
    slack = 1024 ** (-2 / 3)  # the scale on which extreme eigenvalues fluctuate
    assert low * (1 - 6 * slack) < float(values.min())
    assert float(values.max()) < high * (1 + 6 * slack)


def test_a_trained_network_is_averaged_over_inputs() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False))
    family = Family.point(module)
    covariance = gradient_covariance(sampler_of(family, Probe.gaussian((1, 4, 4), num=4, fresh=True)), draws=10, seed=0)
    weight = module[1].weight.detach().double().flatten()
    torch.testing.assert_close(matrix_of(covariance), torch.outer(weight, weight), rtol=1e-5, atol=1e-8)
    assert covariance.effective_rank().value == pytest.approx(1.0)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(x.shape[0], 1)


class NotANumber(Constant):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).sum(1, keepdim=True) * self.weight * math.nan


class Saturated(Constant):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(-1.0 - x.flatten(1).square().sum(1, keepdim=True)) * self.weight


class Several(Constant):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.weight, x


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (Constant, "must depend on its input"),
        (Saturated, "must depend on its input"),
        (NotANumber, "must give finite outputs"),
        (Several, "must return one tensor"),
        (lambda: nn.Linear(3, 1), "must accept inputs of shape 1×8×8"),
    ],
)
def test_networks_that_cannot_be_measured_are_told_so(build: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sampler_of(Family.initialised(build, name="yours"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"draws": 1}, "draws must be at least 2 to estimate a spread, got 1"),
        ({"draws": 8, "stable": 2.0}, "stable must be a similarity between 0 and 1"),
    ],
)
def test_settings_that_cannot_work_are_told_so(family: Family, settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        gradient_covariance(sampler_of(family), seed=0, **settings)


def test_wrong_estimators_steps_and_readouts_are_told_so(family: Family) -> None:
    for change, sentence in (
        ({"estimator": "guess"}, "estimator must be"),
        ({"step": 0.0}, "must be a number other than 0"),
        ({"readout": "margin"}, "needs at least two outputs"),
        ({"readout": "last"}, "readout must be one of"),
    ):
        settings = {"estimator": "difference", "step": 100.0, "readout": "first", **change}
        with pytest.raises(ValueError, match=sentence):
            GradientSampler(family, FIXED, seed=0, run=CPU, **settings)
    with pytest.raises(ValueError, match="centred=True needs one input"):
        gradient_covariance(sampler_of(family, FRESH), draws=8, seed=0, centred=True)


def test_groups_are_thirty_two() -> None:
    assert sampling.GROUPS == 32


def test_the_choice_is_settled_within_a_usual_number_of_draws(family: Family) -> None:
    for estimator in ("exact", "difference"):
        sampler = sampler_of(family, estimator=estimator)
        gradient_covariance(sampler, draws=5000 if estimator == "exact" else 400, seed=0)
        assert sampler.settled, sampler.method
        assert sampler.rate > 0


def test_a_network_that_works_in_place_leaves_the_probe_alone() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 1))

    before = FIXED.inputs(0, 1, CPU)
    for estimator in ("exact", "difference"):
        gradients = sampler_of(Family.initialised(build), estimator=estimator).gradients(0, 3)
        assert float(gradients.abs().max()) > 0
    torch.testing.assert_close(FIXED.inputs(0, 1, CPU), before, rtol=0, atol=0)
    assert float(before.min()) < 0


class Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1)) + torch.randn(())


class Coupled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x.flatten(1))
        return outputs - 0.5 * outputs.mean()


def seeded() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Noisy(64, 1), "its forward pass is random"),
        (lambda: Coupled(64, 1), "must treat the inputs of a batch independently"),
        (seeded, "must draw its weights at random, but two draws are equal"),
    ],
)
def test_networks_without_a_gradient_of_their_own_are_refused_and_move_no_state(build: object, sentence: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=sentence):
        sampler_of(Family.initialised(build, name="yours"))  # type: ignore[arg-type]
    assert torch.equal(state, torch.get_rng_state())


def test_a_forward_pass_may_fail_in_any_way() -> None:
    class Misspelt(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.no_such_layer(x)

    with pytest.raises(ValueError, match="its forward pass failed with"):
        sampler_of(Family.initialised(lambda: Misspelt(64, 1)))


def test_inputs_by_name_are_measured_exactly() -> None:
    class Named(nn.Linear):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().forward(pixels)

    family, probe = Family.initialised(lambda: Named(6, 1)), Probe.fixed({"pixels": torch.zeros(1, 6)})
    assert sampler_of(family, probe).gradients(0, 2).shape == (2, 1, 6)
    with pytest.raises(ValueError, match="inputs that are one tensor"):
        sampler_of(family, probe, "difference")


def test_a_stock_transformer_layer_is_measured_and_its_settings_are_restored() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x).mean(1))

    family, probe = Family.initialised(Reader), Probe.gaussian((5, 8))
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    for estimator in ("exact", "difference"):
        stacked = sampler_of(family, probe, estimator).gradients(0, 70)
        assert float(stacked.abs().max()) > 0
    assert all(check.passed for check in selftest(family, (5, 8)))
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()) == before


def test_two_measurements_take_exact_gradients_at_the_same_few_inputs_once(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[range] = []
    found = GradientSampler._found

    def counted(self: GradientSampler, start: int, stop: int, advance: object) -> torch.Tensor:
        taken.append(range(start, stop))
        return found(self, start, stop, advance)  # type: ignore[arg-type]

    monkeypatch.setattr(GradientSampler, "_found", counted)
    probe = Probe.gaussian((1, 8, 8), num=2, fresh=True, seed=3)
    mean_gradient(family, probe, draws=16, run=CPU)
    average_geometry(
        family, probe, draws=16, run=CPU
    )  # its differences would have a step, which an exact gradient has not
    assert [draw for part in taken for draw in part] == list(range(16))
    average_geometry(family, probe, draws=16, estimator="difference", run=CPU)
    assert len([draw for part in taken for draw in part]) == 32
