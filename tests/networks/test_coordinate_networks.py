"""Networks from coordinates to values: their formulas, their initial laws through depth, their kernels and derivatives."""

import functools
import math

import pytest
import torch
from networks_under_test import CPU64, network_of, normal
from torch import Tensor, nn
from torch.func import jacrev

from biascope.derivatives.linearize import linearize
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.source import builder_of
from biascope.kernels.gram import tangent_gram
from biascope.networks import builder
from biascope.networks.coordinate_mlp import coordinate_mlp
from biascope.networks.multiplicative_filters import multiplicative_filters
from biascope.networks.siren import siren
from biascope.runs.randomness import forked_rng
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")

FIXED_POINT = 0.7968121300  # the root of v = 1 − exp(−2v)
KINDS = {
    "siren": functools.partial(siren, width=16, depth=3, shift=0.5),
    "siren, fixed first layer": functools.partial(siren, width=16, depth=2, mapping=5, trainable_first=False),
    "siren, uniform biases": functools.partial(siren, width=16, depth=2, bias="uniform"),
    "ReLU MLP": functools.partial(coordinate_mlp, width=16),
    "FFN": functools.partial(coordinate_mlp, encoding="gaussian", features=8, width=16, sigma=1.0),
    "single frequency": functools.partial(coordinate_mlp, encoding="single", width=16, activation="tanh"),
    "positional": functools.partial(coordinate_mlp, encoding="positional", octaves=3, width=16),
    "multiplicative filters": functools.partial(multiplicative_filters, width=16, depth=2, scale=8.0),
}


def built(build, seed: int = 0, **settings: object) -> nn.Module:
    with forked_rng(seed):
        return build(**settings).double()


def drawn(build, members: int, **settings: object) -> Network:
    return Family.initialised(functools.partial(build, **settings)).draw(members, seed=0, run=CPU64)


# ---- sizes and formulas --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", range(1, 7))
def test_parameter_counts_for_every_dimension(d: int) -> None:
    def count(build, **settings: object) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in build(coordinates=d, **settings).parameters())

    hidden, head = 256 * 256 + 256, 257
    assert count(siren) == (d + 1) * 256 + 3 * hidden + head
    assert count(siren, outputs=3, mapping=4) == (d + 1) * 4 + 5 * 256 + 2 * hidden + 3 * head
    assert count(siren, trainable_first=False) == 3 * hidden + head
    assert count(coordinate_mlp) == (d + 1) * 256 + 2 * hidden + head
    assert count(coordinate_mlp, encoding="gaussian") == 513 * 256 + 2 * hidden + head
    assert count(coordinate_mlp, encoding="single") == (2 * d + 1) * 256 + 2 * hidden + head
    assert count(coordinate_mlp, encoding="positional", octaves=5) == (10 * d + 1) * 256 + 2 * hidden + head
    assert count(multiplicative_filters) == 4 * (d + 1) * 256 + 3 * hidden + head


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "outputs"), [(1, 1), (3, 2), (6, 3)])
def test_one_row_per_point_and_one_column_per_channel(kind: str, d: int, outputs: int) -> None:
    found = built(KINDS[kind], coordinates=d, outputs=outputs)(normal(5, d))
    assert found.shape == (5, outputs)
    assert bool(found.isfinite().all())


def test_omega_multiplies_weights_and_bias_of_the_first_layer_alone() -> None:
    network = built(
        siren, coordinates=3, outputs=2, width=4, depth=3, omega=7.0, hidden_omega=5.0, bias="uniform", shift=0.5
    )
    r, p = normal(6, 3), dict(network.named_parameters())
    z = torch.sin(7.0 * (r @ p["linear1.weight"].T + p["linear1.bias"]))
    for number in (2, 3):
        z = torch.sin(5.0 * (z @ p[f"linear{number}.weight"].T + p[f"linear{number}.bias"]))
    torch.testing.assert_close(network(r), z @ p["head.weight"].T + p["head.bias"] + 0.5)


def test_fourier_features_are_sines_then_cosines_of_whole_turns() -> None:
    r = normal(6, 2)
    single = built(coordinate_mlp, encoding="single", frequency=0.5)[0](r)
    torch.testing.assert_close(single, torch.cat([torch.sin(math.pi * r), torch.cos(math.pi * r)], 1))
    positional = built(coordinate_mlp, encoding="positional", frequency=0.5, octaves=3)[0](r)
    turns = [2**power * math.pi * r for power in range(3)]
    torch.testing.assert_close(positional, torch.cat([*map(torch.sin, turns), *map(torch.cos, turns)], 1))
    network = built(coordinate_mlp, encoding="gaussian", features=5)
    phases = 2 * math.pi * r @ network.get_buffer("encoding.frequencies").T
    torch.testing.assert_close(network[0](r), torch.cat([phases.sin(), phases.cos()], 1))


def test_multiplicative_filters_multiply_sinusoids() -> None:
    network, r = built(multiplicative_filters, width=3, depth=2, outputs=2), normal(6, 2)
    p = dict(network.named_parameters())

    def filtered(index: int) -> Tensor:
        return torch.sin(r @ p[f"filters.{index}.weight"].T + p[f"filters.{index}.bias"])

    z = filtered(0)
    for index in (1, 2):
        z = (z @ p[f"linears.{index - 1}.weight"].T + p[f"linears.{index - 1}.bias"]) * filtered(index)
    torch.testing.assert_close(network(r), z @ p["head.weight"].T + p["head.bias"])


def test_with_zero_biases_a_siren_is_odd_and_so_is_its_gradient_by_the_weights() -> None:
    network, r = network_of(functools.partial(siren, width=16, shift=0.5), readout=None), normal(5, 2)
    torch.testing.assert_close(network(-r) - 0.5, -(network(r) - 0.5))
    weights = ["*.weight"]
    there, mirrored = (tangent_gram(network, r, at, parameters=weights, run=CPU64).matrix for at in (r, -r))
    torch.testing.assert_close(mirrored, -there)
    biases = ["*.bias"]
    there, mirrored = (tangent_gram(network, r, at, parameters=biases, run=CPU64).matrix for at in (r, -r))
    torch.testing.assert_close(mirrored, there)


# ---- initial laws --------------------------------------------------------------------------------------------------


def assert_uniform(sample: Tensor, bound: float) -> None:
    """U(±bound): the variance bound²/3, whose estimate has the relative standard error √(4/5n), and no number beyond."""
    sample = sample.flatten()
    assert float(sample.abs().max()) <= bound
    assert float(sample.abs().max()) > bound * (1 - 20 / len(sample))
    assert float(sample.square().mean()) == pytest.approx(bound**2 / 3, rel=5 * math.sqrt(0.8 / len(sample)))
    assert abs(float(sample.mean())) < 5 * bound / math.sqrt(3 * len(sample))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("omega", [5.0, 300.0])
def test_siren_laws(d: int, omega: float) -> None:
    stack = drawn(siren, 20, coordinates=d, width=64, depth=3, omega=omega).params
    assert_uniform(stack["linear1.weight"], 1 / d)  # whatever ω₀
    for name in ("linear2.weight", "linear3.weight", "head.weight"):
        assert_uniform(stack[name], math.sqrt(6 / 64) / 30)
    assert not any(part.any() for name, part in stack.items() if name.endswith("bias"))
    stack = drawn(siren, 20, coordinates=d, width=64, depth=2, bias="uniform", hidden_omega=10.0).params
    assert_uniform(stack["linear1.bias"], 1 / math.sqrt(d))
    assert_uniform(stack["linear2.bias"], 1 / math.sqrt(64))
    assert_uniform(stack["linear2.weight"], math.sqrt(6 / 64) / 10)


def sine_inputs(stack: Network, r: Tensor, depth: int, omega: float, hidden_omega: float = 30.0) -> list[Tensor]:
    """What each sine of every member is taken of, ``(m, n, units)``."""
    z, found = r.expand(stack.members, *r.shape), []
    for number in range(1, depth + 1):
        weight, bias = stack.params[f"linear{number}.weight"], stack.params[f"linear{number}.bias"]
        found.append((omega if number == 1 else hidden_omega) * (z @ weight.mT + bias[:, None]))
        z = found[-1].sin()
    return found


def predicted_variance(r: Tensor, omega: float, depth: int, added: float = 0.0, phase: float = 1.0) -> list[Tensor]:
    """v_2, v_3, … of the docstring; a uniform first bias multiplies the characteristic function by its own, ``phase``."""
    v = [1 - phase * torch.sinc(2 * omega * r / (r.shape[1] * math.pi)).prod(1) + added]
    for _ in range(depth - 1):
        v.append(1 - torch.exp(-2 * v[-1]) + added)
    return v


@pytest.mark.parametrize("omega", [1.0, 5.0, 30.0, 300.0])
@pytest.mark.parametrize("r", [[0.9, -0.4], [0.3, 0.7], [0.02, 0.01]])
def test_variance_through_depth_follows_its_recursion(omega: float, r: list[float]) -> None:
    depth, members, width = 6, 200, 64
    stack, at = drawn(siren, members, width=width, depth=depth, omega=omega), torch.tensor([r], dtype=torch.float64)
    found, wanted = sine_inputs(stack, at, depth, omega), predicted_variance(at, omega, depth)
    for layer, variance in zip(found[1:], wanted, strict=False):
        each = layer.square().mean((1, 2))  # one number of each member
        # A finite width moves the mean by a few 1/width, which is within a hundredth here.
        assert abs(float(each.mean() - variance)) < 5 * float(each.std()) / math.sqrt(members) + 0.02 * float(variance)
    assert float(found[0].square().mean()) == pytest.approx(omega**2 * float(at.square().sum()) / 12, rel=0.05)


def test_uniform_biases_add_to_the_variance() -> None:
    depth, width, omega = 5, 64, 30.0
    stack = drawn(siren, 200, width=width, depth=depth, omega=omega, bias="uniform")
    at = torch.tensor([[0.03, 0.0]], dtype=torch.float64)
    phase = math.sin(2 * omega / math.sqrt(2)) / (2 * omega / math.sqrt(2))
    wanted = predicted_variance(at, omega, depth, added=30.0**2 / (3 * width), phase=phase)
    for layer, variance in zip(sine_inputs(stack, at, depth, omega)[1:], wanted, strict=False):
        assert float(layer.square().mean()) == pytest.approx(float(variance), rel=0.02)


@pytest.mark.parametrize("omega", [5.0, 30.0, 100.0])
def test_depth_neither_quenches_nor_saturates_a_siren(omega: float) -> None:
    grid = coordinate_grid((16, 16), low=-1.0, high=1.0)
    found = sine_inputs(drawn(siren, 4, depth=10, omega=omega), grid, 10, omega)
    for layer in found[1:]:
        assert 0.8 < float(layer.std()) < 1.05
        assert 0.58 < float(layer.sin().std()) < 0.72
    assert float(found[-1].square().mean()) == pytest.approx(FIXED_POINT, rel=0.05)
    assert 1 - math.exp(-2 * FIXED_POINT) == pytest.approx(FIXED_POINT, abs=1e-9)


def test_on_the_unit_square_a_siren_of_low_frequency_starts_flat_in_the_corner() -> None:
    grid = coordinate_grid((16, 16))
    stack = drawn(siren, 8, depth=3, omega=5.0)
    second = sine_inputs(stack, grid, 2, 5.0)[1].square().mean((0, 2))
    assert float(second[0]) == 0.0
    assert float(second[1]) < 0.05  # at a distance of 1/16
    torch.testing.assert_close(second, predicted_variance(grid, 5.0, 1)[0], rtol=0.15, atol=0.02)


def test_the_heads_scale_is_one_over_omega() -> None:
    grid = coordinate_grid((12, 12), low=-1.0, high=1.0)
    for hidden in (10.0, 30.0):
        spread = float(drawn(siren, 40, width=64, hidden_omega=hidden)(grid).std())
        assert spread == pytest.approx(math.sqrt(FIXED_POINT) / hidden, rel=0.1)


def test_perceptrons_have_truncated_normal_weights_and_no_bias() -> None:
    stack = drawn(coordinate_mlp, 20, width=64).params
    for name, fan_in in (("linear1.weight", 2), ("linear2.weight", 64), ("head.weight", 64)):
        sample = stack[name].flatten() * math.sqrt(fan_in)
        assert 1.9 < float(sample.abs().max()) <= 2.0 + 1e-6
        assert float(sample.square().mean()) == pytest.approx(0.7737413, rel=5 / math.sqrt(len(sample)))
    assert not any(part.any() for name, part in stack.items() if name.endswith("bias"))


def test_frequencies_of_multiplicative_filters_add_up_to_the_scale_whatever_the_depth() -> None:
    for depth in (1, 4):
        stack = drawn(multiplicative_filters, 30, coordinates=3, width=64, depth=depth, scale=20.0).params
        filters = torch.stack([stack[f"filters.{index}.weight"] for index in range(depth + 1)])
        assert_uniform(filters, 20.0 / math.sqrt(3 * (depth + 1)))
        assert float(filters.sum(0).square().mean()) == pytest.approx(20.0**2 / (3 * 3), rel=0.05)
        assert_uniform(stack["filters.0.bias"], math.pi)
        assert_uniform(stack["linears.0.weight"], 1 / 8)


def test_each_multiplication_divides_the_mean_square_by_six() -> None:
    stack, r = drawn(multiplicative_filters, 20, depth=2), normal(4, 2)
    modules = [stack.member(index).as_module() for index in range(20)]
    for index in (0, 1):
        ratios = []
        for module in modules:
            z = torch.sin(module.filters[0](r))
            squares = [z.square().mean()]
            for linear, sinusoid in zip(module.linears, list(module.filters)[1:], strict=True):
                z = linear(z) * torch.sin(sinusoid(r))
                squares.append(z.square().mean())
            ratios.append(float((squares[index + 1] / squares[index]).detach()))
        assert sum(ratios) / 20 == pytest.approx(1 / 6, rel=0.05)


# ---- what is drawn and what is trained -----------------------------------------------------------------------------


def test_random_frequencies_are_drawn_anew_for_each_member_and_fixed_by_the_seed() -> None:
    family = Family.initialised(functools.partial(coordinate_mlp, encoding="gaussian", sigma=3.0, width=16))
    assert family.drawing == "replayed in stacks from recorded initialisers"
    first, again, other = (family.draw(4, seed=seed, run=CPU64) for seed in (0, 0, 1))
    rows = first.buffers["encoding.frequencies"]
    assert rows.shape == (4, 256, 2)
    assert float(rows.std()) == pytest.approx(3.0, rel=0.05)
    assert "encoding.frequencies" not in first.params
    assert torch.equal(rows, again.buffers["encoding.frequencies"])
    assert not torch.equal(rows, other.buffers["encoding.frequencies"])
    assert not torch.equal(rows[0], rows[1])
    r = normal(5, 2)
    for index in range(4):
        torch.testing.assert_close(first(r)[index], first.member(index).as_module()(r))


@pytest.mark.parametrize("way", ["loop", "stack"])
@pytest.mark.parametrize(
    ("build", "fixed"),
    [
        (functools.partial(coordinate_mlp, encoding="gaussian", features=8, width=8), "encoding.frequencies"),
        (functools.partial(siren, width=8, depth=2, bias="uniform", trainable_first=False), "linear1.bias"),
    ],
)
def test_fixed_mappings_are_not_trained_and_stay_with_their_member(build, fixed: str, way: str) -> None:
    networks = Family.initialised(build).draw(3, seed=0, run=CPU64)
    signals = [Signal(normal(6, 6, 1, seed=seed)) for seed in range(3)]
    task = SignalTask.of(signals, held_out=0.0, seed=0, run=CPU64)
    trained = fit(
        networks, task, Recipe("adam", rate=0.01, steps=5, loss="squared"), seed=0, run=CPU64, way=way
    ).networks
    assert fixed in networks.buffers
    for name, part in networks.buffers.items():
        assert torch.equal(trained.buffers[name], part)
    assert all(not torch.equal(trained.params[name], part) for name, part in networks.params.items())


def test_a_fixed_first_layer_can_be_given() -> None:
    network = network_of(functools.partial(siren, mapping=2, depth=2, omega=1.0, trainable_first=False), readout=None)
    waves = {"linear1.weight": 2 * math.pi * torch.eye(2).double(), "linear1.bias": torch.zeros(2).double()}
    network, r = network.with_params(network.params, waves), normal(7, 2)
    torch.testing.assert_close(network(r + 1), network(r))  # only whole frequencies


def test_networks_that_differ_in_a_frequency_are_told_apart() -> None:
    built_from = ({}, {"omega": 40.0}, {"hidden_omega": 40.0}, {"shift": 0.5}, {"shift": 0.25})
    assert len({repr(siren(**settings)) for settings in built_from}) == 5  # the identity of a kernel rests on it
    assert len({str(Family.initialised(lambda: siren(**settings)).identity) for settings in built_from}) == 5  # noqa: B023


# ---- kernels and derivatives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_tangent_kernel_is_that_of_the_jacobian_by_the_layer_rules(kind: str) -> None:
    network, r = network_of(KINDS[kind], readout=None), coordinate_grid((4, 3), low=-0.3)
    gram = tangent_gram(network, r, run=CPU64)
    jacobian = jacrev(lambda params: network.apply(params, network.buffers, r)[:, 0])(network.params)
    rows = torch.cat([part.flatten(1) for part in jacobian.values()], 1)
    wanted = rows @ rows.T
    assert float((gram.matrix - wanted).abs().max() / wanted.abs().max()) < 1e-12
    assert {part.rule.name for part in gram.parts} <= {"Hadamard", "per sample"}
    assert not any(part.remark for part in gram.parts)


@pytest.mark.parametrize("kind", KINDS)
def test_linearisation_has_an_error_of_second_order(kind: str) -> None:
    network, r = network_of(KINDS[kind], readout=None), coordinate_grid((3, 3), low=0.1)
    way = {name: 1e-3 * normal(*part.shape, seed=index) for index, (name, part) in enumerate(network.params.items())}
    linear = linearize(network)
    errors = []
    for step in (1e-2, 5e-3):
        moved = {name: part + step * way[name] for name, part in network.params.items()}
        errors.append(float((network(r, moved) - linear(r, moved)).norm()))
    assert errors[0] > 1e-13
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_equals_its_members(kind: str) -> None:
    stack, r = Family.initialised(KINDS[kind]).draw(3, seed=0, run=CPU64), normal(4, 2)
    torch.testing.assert_close(stack(r), torch.stack([stack.member(index).as_module()(r) for index in range(3)]))


# ---- names and settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["siren", "coordinate_mlp", "multiplicative_filters"])
def test_an_input_shape_of_one_number_is_the_dimension(name: str) -> None:
    assert builder(name.upper()).__name__ == name
    label, build = builder_of(name, (3,), {"outputs": 2})
    assert label == f"{name} outputs=2"
    assert build()(torch.zeros(4, 3)).shape == (4, 2)
    with pytest.raises(ValueError) as caught:
        builder_of(name, (1, 32, 32))
    assert (
        str(caught.value) == f"{name} takes the coordinates of points, 1 to 6 numbers, got 1×32×32. Pass 2 for images."
    )


@pytest.mark.parametrize(
    ("build", "settings", "message"),
    [
        (siren, {"coordinates": 7}, "coordinates must be a whole number from 1 to 6, got 7. Pass coordinates=2 for images."),
        (siren, {"outputs": 0}, "outputs must be a whole number of at least 1, got 0."),
        (siren, {"depth": 0}, "depth must be a whole number of at least 1, got 0. Pass depth=4 for the published SIREN."),
        (siren, {"mapping": 0}, "mapping must be a whole number of at least 1"),
        (siren, {"bias": "none"}, "bias must be one of 'zero', 'uniform', got 'none'. Pass bias='zero', as published."),
        (siren, {"omega": 0.0}, "omega must be a positive number, got 0.0. Pass omega=30.0, as published."),
        (siren, {"hidden_omega": math.nan}, "hidden_omega must be a positive number, got nan."),
        (coordinate_mlp, {"encoding": "fourier"}, "encoding must be one of 'none', 'gaussian', 'single', 'positional'"),
        (coordinate_mlp, {"sigma": -1.0}, "sigma must be a positive number, got -1.0. Pass sigma=1.0."),
        (coordinate_mlp, {"frequency": math.inf}, "frequency must be a positive number, got inf."),
        (coordinate_mlp, {"octaves": 0}, "octaves must be a whole number of at least 1, got 0. Pass octaves=8."),
        (coordinate_mlp, {"activation": "sine"}, "activation must be one of"),
        (multiplicative_filters, {"scale": 0}, "scale must be a positive number, got 0. Pass scale=256.0, as published."),
        (multiplicative_filters, {"width": 1.5}, "width must be a whole number of at least 1, got 1.5."),
    ],
)  # fmt: skip
def test_a_bad_setting_is_answered_with_what_to_do(build, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(**settings)
    assert str(caught.value).startswith(message)
