"""Causes of preferences: closed forms, planted causes, and what has no effect."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.replaced import replaced, structure_at
from biascope.measures.covariance.shares import LOW_BANDS
from biascope.measures.explain import Laboratory, explain
from biascope.measures.explain.result import Explanation
from biascope.measures.explain.rows import Reader
from biascope.measures.explain.variants import parts_of, variants_of
from biascope.networks import builder
from biascope.results.axes import InputAxes
from biascope.results.registry import load
from biascope.runs.run import Run
from biascope.tasks.divisions import divisions_of
from biascope.tasks.probe import Probe

RUN = Run(device="cpu", progress=False)


def explained(
    build: Callable[[], nn.Module], *shape: int, draws: int = 32, seed: int = 0, **settings: int
) -> Explanation:
    """The plain function: the register's checks take longer than these networks."""
    family = Family.initialised(build, name="net")
    probe = Probe.gaussian(shape, num=4, fresh=True, seed=seed)
    return explain.function(family, probe, draws=draws, seed=seed, run=RUN, **settings)


def place(result: Explanation, way: str, part: str = "", alternative: str = "") -> int:
    """The first variant of a way, part and alternative."""
    return next(
        index
        for index, each in enumerate(zip(result.ways, result.parts, result.alternatives, strict=True))
        if each[0] == way and each[1].startswith(part) and each[2].startswith(alternative)
    )


def value(result: Explanation, index: int, key: str) -> float:
    return float(result.values[index, result.keys.index(key)])


def low_share(filter_size: int, side: int) -> tuple[float, float]:
    """The share of low frequencies in Σ|m̂|², of a box filter and without one: equation (4) of the 2020 paper."""
    (division,) = [each for each in divisions_of(InputAxes.of((), (1, side, side))) if each.name == "spatial frequency"]
    box = torch.zeros(side, side, dtype=torch.float64)
    box[:filter_size, :filter_size] = 1
    energies = division.summed(torch.fft.fft2(box).abs().square().flatten())
    return tuple(float(each[list(LOW_BANDS)].sum() / each.sum()) for each in (energies, division.isotropic))  # type: ignore[return-value]


@pytest.mark.parametrize("size", [2, 4])
def test_a_prefilter_shapes_the_energy_and_a_stride_only_scales_it(size: int) -> None:
    side = 16
    result = explained(
        lambda: nn.Sequential(nn.AvgPool2d(size), nn.Flatten(), nn.Linear((side // size) ** 2, 1)),
        1,
        side,
        side,
        draws=64,
    )
    filtered, even = low_share(size, side)
    bare = place(result, "removed", "average pooling", "subsampling")
    assert value(result, 0, "low_frequencies") == pytest.approx(filtered, rel=0.15)
    assert value(result, bare, "low_frequencies") == pytest.approx(even, rel=0.15)
    row = result.keys.index("low_frequencies")
    assert result.low[bare, row] <= even - filtered <= result.high[bare, row]
    assert [each.part for each in result.said] == ["average pooling (0)"]
    assert result.said[0].quantity == "the share of low frequencies"


@pytest.mark.parametrize("patch", [4, 8])
def test_a_neutral_vit_has_as_many_directions_as_a_patch_has_pixels(patch: int) -> None:
    def build() -> nn.Module:
        return builder("vit")(image_size=16, patch=patch, depth=1, heads=1, width=patch**2, mlp=8)

    family, probe = Family.initialised(build, name="vit"), Probe.gaussian((1, 16, 16), num=4, fresh=True)
    reader = Reader.of(InputAxes.of((), (1, 16, 16)), (1,), white=False)
    variants = variants_of(found := structure_at(family.template, probe.few()), parts_of(found, 1))
    readings = Laboratory(family, probe, reader, variants, 48, "first", 0, RUN).readings(0, [1])[1]
    (rank,) = [row for row in reader.rows() if row.key == "effective_rank"]
    assert 256 * rank.of(readings, np.ones(48, bool)) == pytest.approx(patch**2, rel=0.25)


def test_the_grid_of_resnet_strides_is_their_doing() -> None:
    def energy_on_even_pixels(stride: bool) -> float:
        """Of the shortcut of a block: a 1×1 convolution of stride 2 reads one pixel of four."""
        torch.manual_seed(0)
        network = Network.of(nn.Sequential(nn.Conv2d(1, 4, 1, stride=2), nn.Flatten(), nn.Linear(64, 1))).read("first")
        x = torch.randn(2, 1, 8, 8, requires_grad=True)
        (strided,) = [each for each in structure_at(network, x.detach()).components if each.kind == "stride"]
        with replaced(network, {} if stride else {strided: strided.alternatives[0]}, {}):
            (gradient,) = torch.autograd.grad(network(x).sum(), x)
        energy = gradient.square()
        return float(energy[..., ::2, ::2].sum() / energy.sum())

    assert energy_on_even_pixels(stride=True) == 1.0
    assert energy_on_even_pixels(stride=False) == pytest.approx(0.25)


def test_nothing_is_named_of_logistic_regression() -> None:
    result = explained(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), 1, 8, 8)
    assert result.said == ()
    assert result.sentence().startswith("No component of ")


class Planted(nn.Module):
    """Two causes of two preferences: pooling passes low frequencies, and a sine makes the output go up and down."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.inner, self.outer = nn.AvgPool2d(2), nn.Linear(16, 48), nn.Linear(48, 1)
        nn.init.normal_(self.inner.weight, std=2.0)
        self.bend = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.bend(self.inner(self.pool(x).flatten(1))))


def test_two_planted_causes_are_both_named() -> None:
    result = explained(Planted, 1, 8, 8, draws=48)
    named = {each.part: each.quantity for each in result.said}
    assert set(named) == {"average pooling (pool)", "tanh (bend)"}
    complexity = result.keys.index("complexity")
    tanh, pool = (place(result, "removed", part) for part in ("tanh", "average pooling"))
    assert result.changes[tanh, complexity] < -0.1
    assert result.clear[tanh, complexity]
    linear = 7 * 1.2020569 / (15 * math.pi**4 / 90)  # of a linear function along a line
    straight = place(result, "removed", "tanh", "linear")
    assert value(result, straight, "complexity") == pytest.approx(linear, abs=0.003)
    assert pool != tanh


def test_a_redundant_pair_is_found_by_the_second_way_alone() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 4, bias=False), nn.ReLU(), nn.ReLU(), nn.Linear(4, 1, bias=False))

    result = explained(build, 8, draws=96)
    row = result.keys.index("complexity")
    for part in ("ReLU (1)", "ReLU (2)"):
        assert abs(result.changes[place(result, "removed", part, "linear"), row]) < 1e-5
        assert result.changes[place(result, "added", part), row] > 0.01
        assert result.clear[place(result, "added", part), row]
    assert {each.way for each in result.said} == {"added"}
    assert {each.part for each in result.said} <= {"ReLU (1)", "ReLU (2)"}
    assert "may stand in for it" in result.sentence()


def without_effect() -> nn.Module:
    """Taps of one law may change their places, and the last layer is normal already."""
    last = nn.Linear(36, 1)
    nn.init.normal_(last.weight)
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=1), nn.AdaptiveAvgPool2d(6), nn.Conv2d(2, 1, 1), nn.Flatten(), last)


def falsely_named(runs: range) -> int:
    return sum(bool(explained(without_effect, 1, 8, 8, draws=24, seed=seed).said) for seed in runs)


def test_what_has_no_effect_is_not_named() -> None:
    assert falsely_named(range(3)) == 0


@pytest.mark.slow
def test_few_of_200_runs_name_what_has_no_effect() -> None:
    assert falsely_named(range(200)) <= 16  # of a level of 5 %: more would happen with a chance of 2 %


def test_networks_share_their_draws() -> None:
    """A replacement that does nothing changes nothing, to the last digit."""
    result = explained(lambda: nn.Sequential(nn.AvgPool2d(1), nn.Flatten(), nn.Linear(64, 1)), 1, 8, 8)
    same = place(result, "removed", "average pooling", "subsampling")
    assert np.nanmax(np.abs(result.changes[same])) < 1e-9


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_constant_network_is_refused(outputs: int) -> None:
    def build() -> nn.Module:
        last = nn.Linear(4, outputs)
        nn.init.zeros_(last.weight)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), last)

    with pytest.raises(ValueError, match="must depend on its input, but its output is constant"):
        explained(build, 1, 4, 4, draws=8)


def test_trained_weights_are_refused() -> None:
    family = Family.point(nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), name="trained")
    with pytest.raises(ValueError, match="needs networks at initialisation"):
        explain(family, Probe.gaussian((1, 8, 8), num=4, fresh=True))


@pytest.mark.parametrize(
    ("probe", "settings", "match"),
    [
        (Probe.gaussian((1, 8, 8), num=4), {}, "fresh inputs"),
        (Probe.gaussian((1, 8, 8), num=3, fresh=True), {}, "even number"),
        (Probe.gaussian((1, 8, 8), num=4, fresh=True), {"draws": 7}, "draws must be at least 8"),
        (Probe.gaussian((1, 8, 8), num=4, fresh=True), {"parts": 0}, "parts must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(probe: Probe, settings: dict[str, int], match: str) -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), name="net")
    with pytest.raises(ValueError, match=match):
        explain(family, probe, **settings)


def test_finished_networks_are_not_measured_again(tmp_path: Path) -> None:
    probe = Probe.gaussian((1, 4, 4), num=4, fresh=True)
    run = Run(device="cpu", progress=False, folder=tmp_path)
    family = Family.initialised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 1)), name="net"
    )
    first = explain.function(family, probe, draws=8, run=run)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert before
    again = explain.function(family, probe, draws=8, run=run)
    np.testing.assert_array_equal(again.values, first.values)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


def test_a_saved_result_says_the_same(tmp_path: Path) -> None:
    args, settings = explain.example()
    result = explain(*args, run=RUN, **settings)
    again = load(result.save(tmp_path / "saved"))
    assert again.sentence() == result.sentence()
    assert again.tables() == result.tables()
