"""Guesses before training: against networks whose guesses have a known law, and against counting."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor, nn

from biascope.derivatives.sampling import Sampling
from biascope.families.family import Family
from biascope.measures.guessing import Guessing, classes_of, gives_features, guessing, largest_count, suits
from biascope.measures.scan.card import rows_of
from biascope.results.axes import Axis, InputAxes
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

CPU = Run(device="cpu")


class Then(nn.Module):
    """Something done to the outputs of another network."""

    def __init__(self, network: nn.Module, scale: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.network, self.scale, self.offset = network, scale, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.network(x) + self.offset


def given(guesses: np.ndarray, classes: int) -> Guessing:
    draws = len(guesses)
    return Guessing(guesses, np.zeros(draws), np.ones(draws), np.full(draws, 2.0), classes)


def measured(build: object, size: int, *, inputs: int = 40, **settings: object) -> Guessing:
    family = Family.initialised(build, name="network")  # type: ignore[arg-type]
    return guessing(family, Probe.gaussian((size,), num=inputs, fresh=True), run=CPU, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("inputs", "classes"), [(2, 2), (5, 3), (6, 2), (3, 7), (4, 4)])
def test_the_largest_count_of_chance_is_that_of_all_ways(inputs: int, classes: int) -> None:
    ways = itertools.product(range(classes), repeat=inputs)
    largest = [max(map(way.count, way)) for way in ways]
    expected = np.bincount(largest, minlength=inputs + 1) / classes**inputs
    np.testing.assert_allclose(largest_count(inputs, classes), expected, atol=1e-11)


def test_the_largest_count_of_many_is_that_of_closed_forms() -> None:
    of_two = np.zeros(1001)
    np.add.at(of_two, np.maximum(np.arange(1001), 1000 - np.arange(1001)), binom.pmf(np.arange(1001), 1000, 0.5))
    np.testing.assert_allclose(largest_count(1000, 2), of_two, atol=1e-10)
    found = largest_count(100, 50_257)
    assert found[1] == pytest.approx(math.prod(1 - i / 50_257 for i in range(100)), rel=1e-7)
    drawn = np.random.default_rng(0).multinomial(100, np.full(10, 0.1), 20_000).max(1)
    assert np.arange(101) @ largest_count(100, 10) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / 20_000**0.5)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Linear(12, 2, bias=False),
        lambda: nn.Linear(12, 1, bias=False),
        lambda: nn.Sequential(nn.Linear(12, 30, bias=False), nn.Tanh(), nn.Linear(30, 2, bias=False)),
        lambda: nn.Sequential(nn.Linear(12, 30, bias=False), nn.Tanh(), nn.Linear(30, 1, bias=False)),
    ],
)
def test_an_odd_network_with_two_classes_guesses_by_chance(build: object) -> None:
    """Each sign has probability one half at symmetric inputs, whatever the weights: the null law itself, not only its mean."""
    result = measured(build, 12, draws=400)
    assert result.favourite_share.contains(result.share_without_bias.value)
    assert not result.biased
    assert result.effective_classes.contains(2.0)
    assert result.draws_beyond_chance.value < 0.06
    error = (result.unbiased * (1 - result.unbiased) / 400) ** 0.5
    drawn = np.bincount(result.counts[:, 0], minlength=41) / 400
    assert (abs(drawn - result.unbiased) <= 4 * error + 1e-9).all()
    assert "no class by more than chance" in result.sentence()


@pytest.mark.parametrize("depth", [1, 4])
def test_deeper_relu_networks_favour_a_class_more_and_by_the_known_law(depth: int) -> None:
    """Outputs at orthogonal inputs have the correlation c of the arc-cosine kernel; given the weights, signs are independent."""
    width, inputs = 300, 40

    def build() -> nn.Module:
        layers = [nn.Linear(width, width, bias=False) for _ in range(depth)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=(2 / width) ** 0.5)
        return nn.Sequential(
            *(part for layer in layers for part in (layer, nn.ReLU())), nn.Linear(width, 1, bias=False)
        )

    c = 0.0
    for _ in range(depth):
        c = ((1 - c**2) ** 0.5 + (math.pi - math.acos(c)) * c) / math.pi
    z, weight = np.polynomial.hermite_e.hermegauss(80)
    share = norm.cdf(z * (c / (1 - c)) ** 0.5)
    counts = np.maximum(np.arange(inputs + 1), inputs - np.arange(inputs + 1))
    expected = (
        float(weight @ [binom.pmf(np.arange(inputs + 1), inputs, p) @ counts for p in share]) / inputs / weight.sum()
    )
    result = measured(build, width, inputs=inputs, draws=300)
    assert result.favourite_share.value == pytest.approx(expected, abs=3.5 * result.favourite_share.standard_error)
    assert result.favourite_share.standard_error < 0.012
    assert result.varying_energy.value == pytest.approx(1 - c, abs=3.5 * result.varying_energy.standard_error)
    assert result.biased
    assert "first errors fall unequally" in result.sentence()


def test_a_constant_with_a_little_noise_is_one_class() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(6, 5)
        nn.init.normal_(layer.weight, std=1e-6)
        nn.init.normal_(layer.bias)
        return layer

    result = measured(build, 6, draws=30)
    assert (result.favourites == 1).all()
    assert result.effective_classes.value == 1
    assert result.favourite_share.high == 1 > result.favourite_share.low  # thirty draws do not show that all would
    assert 0 < result.varying_energy.value < 1e-8
    assert "less than 0.1 %" in result.story().sentences[2].text


def test_chance_is_recovered_with_the_stated_coverage() -> None:
    generator, hits, even = np.random.default_rng(1), 0, []
    for _ in range(400):
        result = given(generator.integers(0, 10, (40, 30)), 10)
        hits += result.favourite_share.contains(result.share_without_bias.value)
        even.append(result.draws_beyond_chance.value)
    assert 0.92 < hits / 400 < 0.98
    assert np.mean(even) < 0.025


def test_the_effective_number_of_classes_is_recovered_with_the_stated_coverage() -> None:
    generator, p = np.random.default_rng(2), np.array([0.7, 0.2, 0.1])
    hits = [given(generator.choice(3, (40, 12), p=p), 3).effective_classes.contains(1 / (p @ p)) for _ in range(400)]
    assert 0.92 < np.mean(hits) < 0.98


def test_counts_are_those_of_the_guesses() -> None:
    result = given(np.array([[4, 4, 4, 7], [2, 9, 2, 9], [1, 2, 3, 4]]), 1000)
    assert result.counts.tolist() == [[3, 1, 0, 0], [2, 2, 0, 0], [1, 1, 1, 1]]
    assert result.favourites.tolist() == [0.75, 0.5, 0.25]
    assert result.classes_of_half.value == pytest.approx((1 + 1 + 2) / 3)
    assert result.effective_classes.value == pytest.approx(1 / ((6 / 12 + 4 / 12 + 0) / 3))
    assert "classes_of_half" in result.headline()


def test_what_chance_allows_is_within_its_range() -> None:
    low, high = given(np.zeros((1, 40), int), 2).range_without_bias
    at_most = round(40 * high)
    law = largest_count(40, 2)
    assert low == 0.5
    assert law[at_most + 1 :].sum() <= 0.025 < law[at_most:].sum()
    draws = [np.arange(40) >= count for count in (at_most, at_most + 1)]
    assert given(np.array(draws, int), 2).draws_beyond_chance.value == 0.5


def build_small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4))


@pytest.mark.parametrize("scale", [1e-30, 1e22])
def test_the_scale_of_outputs_does_not_matter(scale: float) -> None:
    one, other = (measured(lambda s=s: Then(build_small(), scale=s), 6, draws=20) for s in (1.0, scale))
    for key, number in one.headline().items():
        assert other.headline()[key].value == pytest.approx(number.value, rel=1e-5)
        assert other.headline()[key].high == pytest.approx(number.high, rel=1e-5)


def test_an_offset_of_all_outputs_moves_no_guess_but_joins_their_energy() -> None:
    one, other = (measured(lambda b=b: Then(build_small(), offset=b), 6, draws=20) for b in (0.0, 3.0))
    assert np.array_equal(one.guesses, other.guesses)
    assert other.varying_energy.value < 0.1 * one.varying_energy.value
    assert np.allclose(one.variances, other.variances, rtol=1e-4)


def test_variance_and_square_are_those_of_the_outputs() -> None:
    network = build_small()
    probe = Probe.gaussian((6,), num=30, fresh=True)
    result = guessing(Family.point(network, "one"), probe, draws=3, run=Run(device="cpu", precision="float64"))
    x = probe.inputs(0, 3, Run(device="cpu", precision="float64"))
    f = network.double()(x).detach()
    np.testing.assert_allclose(result.variances, f.var(1).sum(-1), rtol=1e-10)
    np.testing.assert_allclose(result.squares, f.square().sum(-1).mean(1), rtol=1e-10)
    assert np.array_equal(result.guesses, f.argmax(-1))


def test_one_network_is_told_by_sets_of_inputs_and_by_its_favourites() -> None:
    layer = nn.Linear(6, 3)
    nn.init.zeros_(layer.weight)
    with torch.no_grad():
        layer.weight[0, 0], layer.weight[1, 0] = 1.0, -1.0
        layer.bias.copy_(torch.tensor([0.5, 0.0, -9.0]))  # class 0 where x > −1/4
    result = guessing(Family.point(layer, "one"), Probe.gaussian((6,), num=200, fresh=True), draws=50, run=CPU)
    expected = norm.cdf(0.25)
    assert result.favourite_share.value == pytest.approx(expected, abs=0.012)
    (first, second) = result.tables()["favourites"]
    assert (first["class"], second["class"]) == (0, 1)
    assert first["share"] == pytest.approx(expected, abs=0.015)
    assert "Before training" not in result.sentence()
    assert "set of inputs" in "".join(str(figure.get_label()) for figure in result.plots().values())


class Steps(nn.Module):
    """A row of logits for each step."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        self.cells, self.head, self.last = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 4), last

    def forward(self, x: Tensor) -> Tensor:
        rows = self.head(self.cells(x)[0])
        return rows[:, -1] if self.last else rows


def test_of_a_row_for_each_step_the_last_one_counts() -> None:
    probe = Probe.gaussian((9, 3), num=20, fresh=True)
    one, all_rows = (
        guessing(Family.initialised(lambda last=last: Steps(last), name="steps"), probe, draws=8, run=CPU)
        for last in (True, False)
    )
    assert np.array_equal(one.guesses, all_rows.guesses)
    assert one.varying_energy == all_rows.varying_energy
    assert (one.position, all_rows.position) == (0, 9)
    assert "Of 9 positions, the last one is read." in all_rows.story().meaning


def test_which_outputs_are_classes() -> None:
    steps = InputAxes.of([Axis("time"), Axis("feature")], (20, 3))
    tokens = InputAxes.of([Axis("token"), Axis("channel")], (7, 16))
    image = InputAxes.of([], (3, 8, 8))
    assert classes_of((5, 1, 1), image).count == 5
    assert classes_of((20, 1), steps) == classes_of((20, 1), steps)
    assert classes_of((20, 1), steps).positions == 20
    assert classes_of((7, 100), tokens).count == 100
    assert classes_of((1,), image).outputs == 1
    for shape, axes in (((10, 8, 8), image), ((100, 7), tokens), ((20, 20), steps), ((4, 5), image)):
        assert classes_of(shape, axes) is None
    assert suits(steps)
    assert suits(image)


def test_what_is_no_vector_of_logits_is_refused() -> None:
    family = Family.initialised(lambda: nn.Conv2d(1, 3, 3), name="conv")
    with pytest.raises(ValueError, match="must give a vector of logits for each input"):
        guessing(family, Probe.gaussian((1, 8, 8), num=4, fresh=True), run=CPU)
    with pytest.raises(ValueError, match="at least 2 inputs"):
        measured(build_small, 6, inputs=1)


def test_a_last_layer_of_zeros_favours_nothing() -> None:
    def build() -> nn.Module:
        network = build_small()
        nn.init.zeros_(network[2].weight)
        nn.init.zeros_(network[2].bias)
        return network

    with pytest.raises(ValueError, match="must favour a class somewhere"):
        measured(build, 6, draws=4)


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def test_ties_are_drawn_and_told() -> None:
    result = measured(lambda: nn.Sequential(nn.Linear(1, 3, bias=False), Rounded()), 1, draws=60)
    assert 0 < result.tied.mean() < 1
    assert any("several classes have the largest output" in warning for warning in result.warnings)
    alike = (result.tied == 0.0) | (result.tied == 1.0)
    both = result.guesses[~alike]
    assert len(np.unique(both)) == 3


def test_a_probability_is_told() -> None:
    result = measured(lambda: nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), 6, draws=8)
    assert any("Leave the last sigmoid out" in warning for warning in result.warnings)
    assert not measured(lambda: nn.Linear(6, 1), 6, draws=8).warnings


@pytest.mark.parametrize(
    ("last", "features"),
    [
        (nn.Identity(), False),
        (nn.Tanh(), True),
        (nn.LayerNorm(4), True),
        (nn.Softmax(1), False),
        (nn.Sequential(nn.ReLU(), nn.Identity()), True),
    ],
)
def test_features_are_no_classes(last: nn.Module, features: bool) -> None:
    """A scan leaves the row out, and the measurement by name warns."""
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 4), last), name="net")
    assert gives_features(family, torch.zeros(2, 6)) == features
    result = guessing(family, Probe.gaussian((6,), num=10, fresh=True), draws=8, run=Run(device="cpu"))
    assert any("ends in no linear layer" in warning for warning in result.warnings) == features
    rows = [row.name for row in rows_of(family, (6,), None, Sampling(draws=8), Run(device="cpu"))]
    assert ("guessing" in rows) != features
