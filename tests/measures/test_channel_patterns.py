"""What the channels of a first convolution detect: against the published definitions, automatic differentiation and closed forms."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks_under_test import CPU, CPU64, network_of, normal
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.channel_patterns import channel_patterns
from biascope.measures.channel_patterns.responses import FirstConvolution, combination_of
from biascope.networks.pattern_cnn import pattern_cnn
from biascope.results.registry import load
from biascope.runs.run import Run
from biascope.tasks.patches import Patches, clustered_patches, cut_patches, patch_presence, presence_statistics
from biascope.tasks.pattern_ratios import detection, detection_ratios, label_statistics
from biascope.tasks.patterns import PatternDistribution
from biascope.tasks.task import Arrays

pytestmark = pytest.mark.usefixtures("one_thread")


def small_cnn(channels: int = 5, outputs: int = 1, colours: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(colours, channels, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(9 * channels, outputs)
    )


def noise_data(classes: int = 2, num: int = 40, colours: int = 1) -> Arrays:
    return Arrays({"train": (normal(num, colours, 8, 8, dtype=torch.float32), torch.arange(num) % classes)})


# ── the published network ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def published() -> tuple[nn.Module, Tensor, Arrays, Tensor]:
    """Equation (1) with k = 6 on orthonormal patterns that are no unit vectors: network, patterns, data, responses."""
    vectors = torch.linalg.qr(normal(7, 7, seed=5))[0]  # (P, d)
    samples = PatternDistribution("uniform", per_input=3, patterns=7).draw(60, seed=1)
    data = Arrays({"train": (samples.images(vectors), (samples.labels > 0).long())}, torch.float64)
    module = pattern_cnn(patch=(1, 7), image_size=(3, 7), k=6, scale=1.0).double()
    weight = normal(12, 7, seed=2)
    weight[:2] += 2 * vectors[0]  # some channels of either sign detect the pattern that marks their label
    weight[6:8] += 2 * vectors[1]
    module.get_parameter("conv.weight").data = weight.reshape(12, 1, 1, 7)
    return module, vectors, data, weight @ vectors.T


def measured_published(published, **settings):
    module, vectors, data, _ = published
    return channel_patterns(Family.point(module), data, Patches(vectors[:, None, None]), draws=2, run=CPU64, **settings)


def test_of_the_published_network_weights_are_its_output_weights(published):
    result = measured_published(published)
    np.testing.assert_array_equal(result.weights, [[1.0] * 6 + [-1.0] * 6])
    np.testing.assert_array_equal(result.consistency, np.ones((1, 12)))
    np.testing.assert_allclose(result.responses[0], published[3].numpy(), atol=1e-12)


def test_of_the_published_network_masses_are_the_published_ones(published):
    responses = published[3].numpy()
    result = measured_published(published)
    for side, channels in zip(result.masses, (range(6), range(6, 12)), strict=True):
        expected = np.zeros(7)
        for channel in channels:
            best = responses[channel].argmax()
            expected[best] += max(responses[channel, best], 0.0)
        np.testing.assert_allclose(side[0], expected, atol=1e-12)
    votes = np.maximum(responses[:6], 0).sum(0) - np.maximum(responses[6:], 0).sum(0)
    np.testing.assert_allclose(result.votes[0], votes, atol=1e-12)


def test_of_the_published_network_ratios_and_statistics_are_the_published_ones(published):
    result = measured_published(published, balanced=False)
    samples = PatternDistribution("uniform", per_input=3, patterns=7).draw(60, seed=1)
    np.testing.assert_allclose(result.statistics, label_statistics(samples).numpy(), atol=1e-12)
    assert result.markers == ("1", "2")
    expected = detection_ratios(detection(published[3]))
    for side, published_side in zip(result.ratios, expected, strict=True):
        np.testing.assert_allclose(side[0], published_side.numpy(), atol=1e-12)
    assert np.isfinite(result.ratios[0][0]).sum() == 6


def test_a_vote_is_the_output_at_an_input_of_that_pattern_alone(published):
    module, vectors, _, _ = published
    outputs = module(vectors[:, None, None].expand(-1, -1, 3, -1))[:, 0]
    np.testing.assert_allclose(measured_published(published).votes[0], outputs.detach().numpy(), atol=1e-12)


def test_a_channel_that_never_fires_has_no_weight(published):
    module, vectors, data, _ = published
    dead = pattern_cnn(patch=(1, 7), image_size=(3, 7), k=6, scale=1.0).double()
    weight = module.get_parameter("conv.weight").detach().clone()
    weight[3] = -vectors.sum(0)
    dead.get_parameter("conv.weight").data = weight
    result = channel_patterns(Family.point(dead), data, Patches(vectors[:, None, None]), draws=1, run=CPU64)
    assert result.weights[0].tolist() == [1.0] * 3 + [0.0] + [1.0] * 2 + [-1.0] * 6
    assert result.consistency[0, 3] == 0.0
    assert result.detected[0, 3] == -1


# ── responses and weights ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{}, {"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2}],
    ids=["plain", "padded", "strided", "dilated", "grouped"],
)
def test_responses_are_values_of_the_map_where_the_image_holds_the_patch(settings, with_norm):
    def build() -> nn.Module:
        norm = nn.BatchNorm2d(4)
        norm.running_mean, norm.running_var = torch.rand(4), torch.rand(4) + 0.5
        norm.weight.data, norm.bias.data = torch.randn(4), torch.randn(4)
        layers = [nn.Conv2d(2, 4, 3, **settings), *([norm] if with_norm else []), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(1))

    module = nn.Sequential(*list(build())[:-1]).double().eval()
    x = normal(1, 2, 9, 9)
    first = FirstConvolution.of(Network.of(module), x, "made up")
    assert (first.name, first.norm) == ("0", "1" if with_norm else None)
    channels, height, width = first.patch_shape
    pixels = cut_patches(x, (height, width))[0].reshape(-1, channels, height, width)
    found = first.responses(Network.of(module), pixels)  # (K, P)
    maps = module[: 2 if with_norm else 1](x)[0].flatten(1)
    # Without padding and stride the map is these very responses; otherwise it holds some of them.
    near = (maps[:, :, None] - found[:, None, :]).abs().amin(2)
    inside = near < 1e-12
    assert inside.sum() >= 4 * 9
    if "padding" not in settings:
        torch.testing.assert_close(found, maps)


@pytest.mark.parametrize("with_norm", [False, True])
def test_weights_are_mean_derivatives_by_the_bias(with_norm):
    def build() -> nn.Module:
        norm = [nn.BatchNorm2d(5)] if with_norm else []
        return nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), *norm, nn.Tanh(), nn.Flatten(), nn.Linear(320, 4))

    network, x = network_of(build, readout=None), normal(70, 1, 8, 8)
    first = FirstConvolution.of(network, x, "made up")
    combination = combination_of(4, (0, 3))
    weights, consistency = first.weights(network, x, combination)
    name = "1.bias" if with_norm else "0.bias"  # to raise the bias is to raise the whole map
    bias = network.params[name].clone().requires_grad_()
    outputs = network.apply({**network.params, name: bias}, network.buffers, x)
    (slope,) = torch.autograd.grad((outputs @ combination).sum(), bias)
    torch.testing.assert_close(weights, slope / slope.abs().mean(), rtol=1e-10, atol=1e-12)
    assert bool(((consistency > 0) & (consistency < 1)).all())


def test_the_network_is_as_before_after_its_weights_were_measured():
    network, x = network_of(small_cnn, readout=None), normal(3, 1, 8, 8)
    before = network(x)
    first = FirstConvolution.of(network, x, "small")
    first.weights(network, x, torch.ones(1))
    assert not network.module[0]._forward_hooks
    assert torch.equal(network(x), before)


def test_shuffled_filters_keep_their_entries_and_lose_their_order():
    network, x = network_of(small_cnn), normal(3, 1, 8, 8)
    first = FirstConvolution.of(network, x, "small")
    mixed = first.shuffled(network, 3).params["0.weight"]
    own = network.params["0.weight"]
    assert not torch.equal(mixed, own)
    torch.testing.assert_close(mixed.flatten(1).sort(1).values, own.flatten(1).sort(1).values)
    assert torch.equal(first.shuffled(network, 3).params["0.weight"], mixed)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.conv(x).flip(3)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x / 2)


@pytest.mark.parametrize(
    ("module", "batchnorm", "message"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 1)),
            "eval",
            r"made up must have a convolution of images \(Conv2d\)",
        ),
        (Twice(), "eval", "The first convolution of made up must see the input itself, once"),
        (Scaled(), "eval", "The first convolution of made up must see the input itself, once"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "train", "BatchNorm of made up must use stored"),
    ],
)
def test_networks_without_such_a_layer_are_told(module, batchnorm, message):
    with pytest.raises(ValueError, match=message):
        FirstConvolution.of(
            Network.of(module, batchnorm), torch.randn(2, 1, 8, 8, generator=torch.Generator()), "made up"
        )


def test_batchnorm_behind_an_activation_is_not_taken_for_the_layers_own():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(2))
    assert FirstConvolution.of(Network.of(module), normal(2, 1, 8, 8, dtype=torch.float32), "it").norm is None


@pytest.mark.parametrize(
    ("outputs", "positive", "classes"), [(4, None, 4), (3, (0,), 5), (4, (0, 5), None), (3, (0, 1, 2), 3)]
)
def test_outputs_that_do_not_stand_for_classes_are_told(outputs, positive, classes):
    with pytest.raises(ValueError, match="A network must have one output, two outputs, or one for each class"):
        combination_of(outputs, positive, classes)


# ── patches ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tiled(kinds: Tensor, patterns: Tensor) -> Tensor:
    """Images of 2 × 2 tiles, by the numbers ``(n, 4)`` of their patterns ``(P, 1, 3, 3)``."""
    tiles = patterns[kinds].reshape(-1, 2, 2, 1, 3, 3).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(-1, 1, 6, 6)


def test_clusters_find_the_patterns_that_images_are_made_of():
    patterns = normal(5, 1, 3, 3, seed=4) * 3
    kinds = torch.randint(5, (80, 4), generator=torch.Generator().manual_seed(0))
    images = tiled(kinds, patterns) + 0.01 * normal(80, 1, 6, 6, seed=6)
    found = clustered_patches(images, (3, 3), 5, stride=(3, 3), seed=0)
    distance = torch.cdist(found.pixels.flatten(1), patterns.flatten(1))
    assert sorted(distance.argmin(1).tolist()) == [0, 1, 2, 3, 4]
    assert float(distance.amin(1).max()) < 0.02
    counts = torch.bincount(kinds.flatten(), minlength=5)[distance.argmin(1)]
    assert counts.tolist() == sorted(counts.tolist(), reverse=True)
    assert torch.equal(clustered_patches(images, (3, 3), 5, stride=(3, 3), seed=0).pixels, found.pixels)
    given = Patches(patterns)
    expected = F.one_hot(kinds, 5).bool().any(1)
    assert torch.equal(patch_presence(images, given, stride=(3, 3)), expected)


def test_a_patch_far_from_every_given_pattern_is_none_of_them():
    patterns = torch.eye(4).reshape(4, 1, 2, 2)
    image = torch.tensor([[0.2, 0.1], [0.0, 0.0]]).reshape(1, 1, 2, 2)
    assert not patch_presence(image, Patches(patterns)).any()
    nearest = patch_presence(image, Patches(patterns, within=None))
    assert nearest.tolist() == [[True, False, False, False]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Patches(torch.zeros(3, 3)), r"Patches must be an array \(patterns, channels, height, width\)"),
        (lambda: Patches(torch.zeros(1, 1, 3, 3)), "of at least two patterns, got shape"),
        (lambda: Patches(torch.full((2, 1, 1, 1), math.nan)), "Patches must be finite numbers"),
        (lambda: Patches(torch.zeros(2, 1, 1, 1), within=0.0), "within must be a positive number"),
        (lambda: Patches(torch.zeros(2, 1, 1, 1), ("a",)), "Names and statistics must be one for each of 2 patches"),
        (lambda: Patches(torch.zeros(2, 1, 1, 1), statistics=torch.ones(3)), r"statistics of shape \(3,\)"),
        (lambda: cut_patches(torch.zeros(1, 1, 2, 2), (3, 3)), "at least 3×3, as large as a patch"),
        (
            lambda: clustered_patches(torch.zeros(5, 1, 2, 2), (1, 1), 3, seed=0),
            "clusters must be from 2 to the 1 different",
        ),
        (lambda: patch_presence(torch.zeros(1, 2, 2, 2), Patches(torch.zeros(2, 1, 1, 1))), "must have the 1 channels"),
        (lambda: presence_statistics(torch.ones(2, 1), torch.ones(2)), "Images must be of both classes"),
    ],
)
def test_patches_that_cannot_be_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ── the measurement ────────────────────────────────────────────────────────────────────────────────────────────────────────


def planted() -> tuple[Family, Arrays, Patches]:
    """Images of eight patterns, the more of a class the higher its number; a network that adds what each pattern says."""
    patterns = torch.linalg.qr(normal(9, 9, seed=1))[0][:8].reshape(8, 1, 3, 3)
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(400) % 2
    lean = torch.linspace(-1, 1, 8)
    chances = torch.where(labels[:, None] == 1, 1 + 0.9 * lean, 1 - 0.9 * lean)
    data = Arrays({"train": (tiled(torch.multinomial(chances, 4, generator=generator), patterns), labels)})
    conv, head = nn.Conv2d(1, 8, 3, stride=3, bias=False), nn.Linear(8, 1, bias=False)
    conv.weight.data, head.weight.data = patterns.float(), lean[None]
    module = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), head)
    return Family.point(module, name="planted"), data, Patches(patterns)


def test_a_network_that_follows_the_labels_is_told_from_its_shuffled_filters():
    family, data, patches = planted()
    result = channel_patterns(family, data, patches, draws=60, run=CPU)
    assert result.correlations["votes"][0] > 0.95
    assert result.correlations["detection mass"][0] > 0.95
    assert result.chance("votes") <= 0.05
    assert result.detected.tolist() == [list(range(8))]
    assert result.selectivity.min() > 0.99
    assert result.control == "networks with shuffled filters"
    assert result.sentence().startswith("All 8 channels of planted detect 8 of 8 patterns")
    assert result.sentence().endswith(
        "networks with shuffled filters correlate as much: the correlation exceeds chance."
    )


def test_clusters_of_the_data_give_the_same_answer_as_the_patterns_themselves():
    family, data, patches = planted()
    found = channel_patterns(family, data, clusters=8, draws=1, run=CPU)
    given = channel_patterns(family, data, patches, draws=1, run=CPU)
    assert found.pixels.shape == (8, 1, 3, 3)
    assert sorted(found.detected[0].tolist()) == list(range(8))
    own = {channel: found.statistics[place] for channel, place in enumerate(found.detected[0])}
    np.testing.assert_allclose([own[channel] for channel in range(8)], given.statistics, atol=1e-6)


def test_initialised_networks_show_no_correlation_and_need_no_control():
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 1)
        )

    _, data, patches = planted()
    result = channel_patterns(Family.initialised(build, name="fresh"), data, patches, draws=60, inputs=64, run=CPU)
    assert result.control == ""
    assert result.control_responses.shape == (0, 16, 8)
    assert result.responses.shape == (60, 16, 8)
    for name in ("votes", "detection mass"):
        estimate = result.correlation(name)
        assert estimate.contains(0.0)
        assert estimate.standard_error == pytest.approx(result.correlations[name].std(ddof=1) / math.sqrt(60))
    assert result.sentence().endswith("which is not significant.")


def test_trained_weights_are_compared_with_the_control_that_is_given():
    family, data, patches = planted()
    control = Family.initialised(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, stride=3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(3, 1)
        ),
        name="narrow",
    )
    result = channel_patterns(family, data, patches, control, draws=5, run=CPU)
    assert result.control == "networks at initialisation"
    assert result.control_responses.shape == (5, 3, 8)
    assert (
        result.chance("votes")
        == (1 + (np.abs(result.control_correlations["votes"]) >= result.correlations["votes"][0]).sum()) / 6
    )


def test_several_trained_networks_are_taken_in_their_order():
    one, two = planted()[0].template.as_module(), planted()[0].template.as_module()
    two[0].weight.data *= 2
    _, data, patches = planted()
    result = channel_patterns(Family.empirical([one, two]), data, patches, draws=9, run=CPU)
    np.testing.assert_allclose(result.responses[1], 2 * result.responses[0], rtol=1e-6)
    assert len(result.weights) == 2


def test_labels_may_be_one_class_against_the_rest():
    data = noise_data(classes=4)
    family = Family.initialised(lambda: small_cnn(outputs=4), name="four")
    result = channel_patterns(family, data, positive=(1, 2), clusters=5, draws=2, run=CPU)
    x, y = data.splits["train"]
    patches = Patches(torch.from_numpy(result.pixels).double(), within=None)
    presence = patch_presence(x, patches)
    often = [presence[torch.isin(y, torch.tensor(classes))].double().mean(0) for classes in ((1, 2), (0, 3))]
    np.testing.assert_allclose(result.statistics, (often[0] - often[1]) / 2, atol=1e-12)
    assert result.labelled


def test_without_labels_to_tell_apart_the_detectors_alone_are_shown():
    result = channel_patterns(
        Family.initialised(lambda: small_cnn(outputs=4), name="four"), noise_data(4), clusters=5, draws=2, run=CPU
    )
    assert not result.labelled
    assert not result.weighted
    assert result.markers == ()
    tables = result.tables()
    assert set(tables["patterns"][0]) == {"pattern", "channels", "strength", "presence"}
    assert set(tables["channels"][0]) == {"draw", "channel", "pattern", "response", "selectivity"}
    assert len(tables["channels"]) == result.weights.size
    assert list(result.plots()) == ["detected_patterns", "responses"]
    assert next(iter(result.headline())) == "mean_selectivity"


def test_known_statistics_and_noise_do_without_data():
    statistics = torch.tensor([0.4, -0.4, 0.1])
    patches = Patches(normal(3, 1, 3, 3), ("sky", "fur", "edge"), statistics, name="mine")
    family = Family.initialised(small_cnn, name="small")
    result = channel_patterns(family, None, patches, shape=(1, 8, 8), draws=3, run=CPU)
    np.testing.assert_allclose(result.statistics, statistics.double(), atol=1e-7)
    assert np.isnan(result.presence).all()
    assert result.markers == ("sky", "fur")
    assert result.provenance["settings"]["patches"] == "mine"
    assert "presence" not in result.tables()["patterns"][0]
    again = channel_patterns(family, None, patches, shape=(1, 8, 8), draws=3, run=CPU, markers=("edge", "fur"))
    assert again.markers == ("edge", "fur")


def test_a_network_that_detects_nothing_says_so(tmp_path: Path):
    module = small_cnn()
    module[0].bias.data -= 1e3
    result = channel_patterns(Family.point(module), noise_data(), clusters=4, draws=2, run=CPU)
    assert (result.detected == -1).all()
    assert result.sentence() == "No channel of Sequential detects any of 4 patterns."
    assert load(result.save(tmp_path)).sentence() == result.sentence()
    assert all(math.isfinite(each.value) for each in result.headline().values())
    assert "none" in result.table()


def test_finished_networks_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    family, data, patches = planted()
    run = Run(folder=tmp_path, device="cpu")
    before = channel_patterns(family, data, patches, draws=3, run=run)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(FirstConvolution, "weights", refuse)
    after = channel_patterns(family, data, patches, draws=3, run=run)
    np.testing.assert_array_equal(after.control_weights, before.control_weights)
    with pytest.raises(AssertionError):
        channel_patterns(family, data, patches, draws=3, seed=1, run=run)


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (
            (noise_data(), Patches(torch.zeros(2, 1, 5, 5))),
            {},
            "Patches must have the shape 1×3×3 that a channel .* got 1×5×5",
        ),
        ((noise_data(), Patches(torch.zeros(2, 3, 3, 3))), {}, "got 3×3×3. Cut patches of that size"),
        ((noise_data(),), {"draws": 0}, "draws and inputs must be at least 1, got 0 and 256"),
        ((None, Patches(torch.zeros(2, 1, 3, 3))), {}, "Without data, patches and the shape of an input are needed"),
        ((None, None), {"shape": (1, 8, 8)}, "Without data, patches"),
        (
            (noise_data(),),
            {"clusters": 4, "markers": ("1", "9")},
            "markers must be two of the patterns 1, 2, 3, 4, …, got 1, 9",
        ),
        ((noise_data(),), {"clusters": 10**6}, "clusters must be from 2 to the 400 different patches"),
        ((noise_data(3),), {"positive": (7,)}, "Labels must be of two classes, got 1"),
        ((Arrays({"test": noise_data().splits["train"]}),), {}, "split must be one of 'test', got 'train'"),
    ],
)
def test_what_cannot_be_measured_is_told(given, settings, message):
    with pytest.raises(ValueError, match=message):
        channel_patterns(Family.initialised(small_cnn, name="small"), *given, run=CPU, **settings)


def test_patterns_of_a_control_must_fit_too():
    wide = Family.initialised(lambda: nn.Sequential(nn.Conv2d(1, 2, 5), nn.Flatten(), nn.Linear(32, 1)), name="wide")
    with pytest.raises(ValueError, match=r"first convolution of wide sees .* got 1×3×3"):
        channel_patterns(Family.initialised(small_cnn, name="small"), noise_data(), None, wide, clusters=4, run=CPU)
