"""Scans of inputs that are no images: planted facts are found and said, in the words of their axes."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope import Family, Probe, Run, load, scan
from biascope.derivatives.moments import Moments
from biascope.derivatives.operators import GradientCovariance
from biascope.measures.covariance import CovarianceResult
from biascope.measures.covariance.compare import concluded, overlaid, side_by_side
from biascope.measures.covariance.shares import PlaceShares
from biascope.measures.mean_gradient import mean_gradient
from biascope.results.axes import Axis, InputAxes
from biascope.results.provenance import common_and_own
from biascope.tasks.divisions import divisions_of

CPU = Run(device="cpu")


class LastSteps(nn.Module):
    """Sees the last five steps alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)[:, -5:]).mean(1))


class TwoFeatures(nn.Module):
    """Sees two of fourteen features."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x[:, [3, 9]])))


class FirstToken(nn.Module):
    """Reads the first token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, 0])


def scanned(build: type[nn.Module], shape: tuple[int, ...], axes: str = "") -> CovarianceResult:
    return scan(build, input=shape, axes=axes, draws=64, run=CPU, report=False).results[0]


def test_only_the_last_steps_matter():
    found = scanned(LastSteps, (20, 3), "time,feature")
    assert "Over 99 % of the sensitivity is on the last 5 of 20 steps." in found.sentence()
    assert "pixel" not in found.sentence()
    assert "VGG" not in found.sentence()
    assert {"sensitivity_by_time", "sensitivity_by_feature", "sensitivity_by_frequency"} <= found.plots().keys()


def shares_of_nodes(energies: np.ndarray) -> PlaceShares:
    count = energies.shape[1]
    labels = tuple(str(place + 1) for place in range(count))
    return PlaceShares("node", labels, energies, np.full(count, 1 / count), Axis("node"))


def test_neighbours_among_places_without_order_are_told_as_a_range():
    energies = np.tile(np.arange(20) > 14, (16, 1)).astype(float)
    assert shares_of_nodes(energies).sentence() == "Over 99 % of the sensitivity is on nodes 16 to 20 of 20."
    assert "is on 5 of 20 nodes." in shares_of_nodes(np.roll(energies, 2, 1)).sentence()


def test_a_narrow_interval_has_two_ends():
    first = 0.95 + 0.004 * np.array([0, 1, 0, -1] * 4)
    told = shares_of_nodes(np.stack([first, 1 - first, 0 * first, 0 * first], 1)).sentence()
    found = re.match(r"95\.0 % \(95 % CI (94\.\d) to (95\.\d) %\) of the sensitivity is on node 1 of 4\.", told)
    assert found, told


def test_two_of_fourteen_features_matter():
    found = scanned(TwoFeatures, (14,))
    assert "Over 99 % of the sensitivity is on features 4 and 10 of 14." in found.sentence()
    assert not any("frequency" in key for key in found.plots())


def test_features_are_named_where_their_names_are_known():
    names = ("age", "income", *(f"column {place}" for place in range(12)))
    family = Family.initialised(lambda: nn.Sequential(Only(), nn.Linear(14, 1)))
    object.__setattr__(family, "axes", (Axis("feature", names),))
    found = mean_gradient(family, Probe.gaussian((14,), num=4, fresh=True), draws=64, run=CPU)
    assert "is on features age and income (2 of 14)." in found.sentence()


class Only(nn.Module):
    """Leaves all but the first two features out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", (torch.arange(14) < 2).float())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.kept


class AllButTwo(nn.Module):
    """Leaves two of six features out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, [0, 2, 3, 5]])


def test_features_that_are_left_out_are_told():
    assert "No drawn output changes with features 2 and 5 of 6." in scanned(AllButTwo, (6,)).sentence()


def test_the_class_token_alone_is_read():
    found = scanned(FirstToken, (7, 6), "token,channel")
    assert "Over 99 % of the sensitivity is on the first of 7 tokens." in found.sentence()


class Averaged(nn.Module):
    """Reads the mean over time, or of every other step."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.head = stride, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, :: self.stride]).mean(1)


def test_frequencies_that_matter_are_told():
    found = scanned(Averaged, (20, 3), "time,feature")
    assert "Over 99 % of the sensitivity is on the lowest of 11 frequencies along time." in found.sentence()
    found = scanned(lambda: Averaged(2), (20, 3), "time,feature")
    assert "is on 0 and 10 cycles along time (2 of 11 frequencies)." in found.sentence()


def test_a_comparison_tells_and_draws_where_each_network_is_sensitive():
    group = [scanned(build, (20, 3), "time,feature") for build in (LastSteps, Averaged)]
    assert {"sensitivity_by_time", "sensitivity_by_frequency"} <= overlaid(group, ["last", "mean"], False, False).keys()
    told = {sentence.shown_by: sentence.text for sentence in concluded(group, ["last", "mean"], False)}
    assert told["sensitivity_by_time"] == "last: Over 99 % of the sensitivity is on the last 5 of 20 steps."
    assert told["sensitivity_by_frequency"].startswith("mean: Over 99 %")


def test_inputs_that_are_laid_out_in_another_way_are_not_compared():
    turned = scanned(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 1)), (3, 20), "feature,time")
    with pytest.raises(ValueError, match=r"20×3 \(time, feature\) \(LastSteps\) and 3×20 \(feature, time\)"):
        side_by_side([scanned(LastSteps, (20, 3), "time,feature"), turned])


def test_a_network_without_preference_is_told_no_place():
    found = scanned(lambda: nn.Sequential(nn.Flatten(), nn.Linear(40, 1)), (10, 4), "time,feature")
    assert "of the sensitivity is on" not in found.sentence()


def test_energies_of_parts_are_those_of_the_matrix(tmp_path):
    """By rows, by the matrix and by definition; saved results keep them."""
    found = scanned(LastSteps, (20, 3), "time,feature")
    axes = found.input_axes
    rows = torch.randn(30, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for form in ("rows", "dense"):
        moments = Moments.empty(60, form, torch.device("cpu"))
        moments.add(rows[:, None])
        energies = GradientCovariance([moments], False, 1).energies(divisions_of(axes))
        assert energies is not None
        by_step = rows.reshape(30, 20, 3).square().sum(2).mean(0)
        waves = torch.fft.fft(rows.reshape(30, 20, 3), dim=1, norm="ortho").abs().square().sum(2).mean(0)
        assert torch.allclose(energies[0, :20], by_step, rtol=1e-5)
        assert torch.allclose(
            energies[0, 23:][[0, 1, 10]], torch.stack([waves[0], waves[1] + waves[19], waves[10]]), rtol=1e-5
        )
    found.save(tmp_path / "kept")
    again = load(tmp_path / "kept")
    assert again.sentence() == found.sentence()
    assert np.array_equal(again.energies, found.energies)


def test_centred_energies_leave_the_mean_out():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 6, generator=generator, dtype=torch.float64) + 5
    axes = InputAxes.of((Axis("time"),), (6,))
    groups = []
    for part in rows.split(10):
        moments = Moments.empty(6, "rows", torch.device("cpu"), rows[0])
        moments.add(part[:, None])
        groups.append(moments)
    energies = GradientCovariance(groups, True, 1).energies(divisions_of(axes))
    assert energies is not None
    assert torch.allclose(energies.mean(0)[:6], rows.var(0), rtol=1e-4)


def test_a_video_is_no_image():
    found = scanned(lambda: nn.Sequential(Frame(), nn.Linear(16, 1)), (2, 5, 4, 4), "channel,time,height,width")
    assert "Over 99 % of the sensitivity is on the last of 5 steps." in found.sentence()
    assert not [word for word in ("image", "LeNet", "VGG") if word in found.sentence()]
    assert {"sensitivity_by_time", "sensitivity_by_height", "leading_directions"} <= found.plots().keys()


class Frame(nn.Module):
    """The last frame of the first channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0, -1].flatten(1)


def test_the_settings_of_a_page_name_the_axes():
    facts, _ = common_and_own([scanned(LastSteps, (20, 3), "time,feature")])
    assert dict(facts)["axes of an input"] == "time, feature"


def test_unknown_axes_are_refused():
    with pytest.raises(ValueError, match=r"known names .* got 'letters'"):
        scan(TwoFeatures, input=(14,), axes="letters", run=CPU)
    with pytest.raises(ValueError, match="as many as those of its inputs"):
        scan(TwoFeatures, input=(14,), axes="time,feature", run=CPU)
