"""The selftest: sound networks pass every identity, and each kind of broken one fails where it is broken."""

import math

import pytest
import torch
from networks_under_test import (
    AttentionNetwork,
    batchnorm_convnet,
    global_states,
    input_shape,
    relu_convnet,
    smooth_mlp,
)
from torch import Tensor, nn

import biascope
from biascope import Probe, Run, networks
from biascope.families.family import Family
from biascope.kernels.selftest import Check, selftest

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "coordinate_mlp": {"coordinates": 3, "width": 20, "encoding": "gaussian", "features": 8, "sigma": 1.0},
    "densenet121": {"image_size": 3, "pooling": "none"},
    "lenet": {"image_size": 16},
    "mlp": {"image_size": 4, "hidden": (20, 10)},
    "multiplicative_filters": {"coordinates": 1, "width": 20, "scale": 10.0},
    "resnet18": {"image_size": 4},
    "siren": {"coordinates": 2, "width": 20},
    "vit": {"image_size": 8, "patch": 4, "depth": 2, "width": 24, "heads": 3, "mlp": 48},
    "logistic_regression": {"image_size": 6},
    "pattern_cnn": {"image_size": 8, "patch": 4},
    "vgg11": {"image_size": 2, "pooling": "none"},
}


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.passed}


LARGE = {"densenet121", "resnet18", "vgg11"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in networks.names()]
)
def test_published_networks_pass(name):
    settings = SMALL.get(name, {})
    family = Family.initialised(lambda: networks.builder(name)(**settings), name=name)
    shape = input_shape(name, settings)
    checks = selftest(family, shape)
    assert failed(checks) == set()
    assert len(checks) == 11


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("build", "shape"),
    [(smooth_mlp, (2, 3)), (relu_convnet, (1, 8, 8)), (batchnorm_convnet, (1, 6, 6)), (AttentionNetwork, (5, 4))],
)
def test_sound_networks_pass_under_every_seed(build, shape, seed):
    before = global_states()
    for readout in ("first", "sum"):
        assert failed(selftest(Family.initialised(build), shape, readout=readout, seed=seed)) == set()
    assert global_states() == before


def test_batchnorm_in_train_mode_passes():
    assert failed(selftest(Family.initialised(batchnorm_convnet, batchnorm="train"), (1, 6, 6))) == set()


def test_trained_weights_pass():
    assert failed(selftest(Family.point(relu_convnet()), (1, 8, 8))) == set()


class Broken(nn.Module):
    """Two linear layers with a fault between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.fault(torch.tanh(self.first(x))))

    def fault(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class WrongBackward(torch.autograd.Function):
    """The identity with a derivative of 1.01; forward mode is right."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 1.01 * gradient

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:
        return tangent.clone()


class OffByAFactor(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return WrongBackward.apply(x)


class RandomForward(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x + 0.01 * torch.randn_like(x)


class AlwaysDropsOut(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


class SeesItsBatch(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class KeepsState(Broken):
    def fault(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + 0.01 * self.calls)


class CutsTheGradient(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x.detach()


class CutsHalfTheGradient(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return 0.5 * x + 0.5 * x.detach()


class CutsAWeight(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x * self.second.bias.detach()


class NotANumber(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x * math.nan


class CannotBeBatched(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x if self.first.weight.sum().item() > 0 else 2 * x


class ChangesItsInput(Broken):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(1.1))

    def fault(self, x: Tensor) -> Tensor:
        return x


class Asserts(Broken):
    def fault(self, x: Tensor) -> Tensor:
        assert x.shape[0] > 1, "I want company"
        return x


class Rounds(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x + (x.round() - x).detach()  # the straight-through estimator: a gradient where there is none


class ScaledBackward(torch.autograd.Function):
    """The identity with a derivative that is scaled, both ways."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.scale * gradient, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, _: None) -> Tensor:
        return ctx.scale * tangent


class WrongSign(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return ScaledBackward.apply(x, -1.0)


class CutsWithNoGrad(Broken):
    def fault(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            cut = 0.1 * x
        return x + cut


class SignsStraightThrough(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x + (x.sign() - x).detach()


class ResidualBlock(nn.Module):
    """A residual block whose last scale starts at zero: where the shortcut is 0, the last ReLU sits on its kink."""

    def __init__(self, scale: float = 0.0) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(6, 2)
        nn.init.constant_(self.norm.weight, scale)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return self.head(torch.relu(x + self.fault(self.norm(self.branch(x)))).mean((2, 3)))

    def fault(self, x: Tensor) -> Tensor:
        return x


class ResidualWithWrongBackward(ResidualBlock):
    def fault(self, x: Tensor) -> Tensor:
        return ScaledBackward.apply(x, 1.01)


class ResidualWithWrongSign(ResidualBlock):
    def fault(self, x: Tensor) -> Tensor:
        return ScaledBackward.apply(x, -1.0)


class ResidualWithDetach(ResidualBlock):
    def fault(self, x: Tensor) -> Tensor:
        return 0.5 * x + 0.5 * x.detach()


class ResidualWithRounding(ResidualBlock):
    def fault(self, x: Tensor) -> Tensor:
        return x + ((8 * x).round() / 8 - x).detach()


def depthwise_after_relu() -> nn.Module:
    """Where a window of a channel is off, the depthwise convolution gives exactly 0, the kink of the next ReLU."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 2, groups=8, bias=False, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 1),
    )  # fmt: skip


def hard_swishes() -> nn.Module:
    """Hard swish and hard sigmoid have kinks too, but nothing places their inputs there."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8, bias=False),
        nn.BatchNorm2d(8), nn.Hardswish(), nn.Flatten(), nn.Linear(128, 8), nn.Hardsigmoid(), nn.Linear(8, 1),
    )  # fmt: skip


class CastsToFloat32(nn.Module):
    """A normalisation in float32 whatever comes in, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)).to(torch.float32)
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
        return self.second((hidden * scale).to(x.dtype))


class OnlyFloat32(nn.Module):
    """Its forward pass makes a float32 matrix, so float64 inputs do not multiply with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x) @ torch.eye(5)))


class IgnoresItsInput(nn.Linear):
    """Its output is a function of its weights alone."""

    def __init__(self) -> None:
        super().__init__(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.sum().expand(len(x), 1)


class CutOff(nn.Sequential):
    """Its last layer begins at zero."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
        nn.init.zeros_(self[2].weight)


class Negative(nn.Sequential):
    """Its units are off at every input."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
        nn.init.constant_(self[0].bias, -1e6)


class OffNowAndThen(nn.Linear):
    """Every second draw is a constant."""

    def __init__(self) -> None:
        super().__init__(6, 1)
        self.weight.data.mul_((torch.rand(()) < 0.5).float())


class OverwritesItsInput(nn.Linear):
    """Numbers of its input are doubled where they lie."""

    def __init__(self) -> None:
        super().__init__(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


@pytest.mark.parametrize("build", [IgnoresItsInput, CutOff, Negative])
def test_a_constant_output_proves_nothing(build):
    checks = selftest(Family.initialised(build), (6,))
    assert len(checks) == 11
    assert all(check.failed for check in checks)
    assert {check.remark for check in checks} == {"the output is constant at all inputs tried, which proves nothing"}


def test_a_large_offset_is_no_constant():
    def build() -> nn.Module:
        layer = nn.Linear(6, 1)
        nn.init.constant_(layer.bias, 1e6)
        return layer

    assert failed(selftest(Family.initialised(build), (6,))) == set()


def test_one_constant_draw_of_several_is_passed_over():
    family = Family.initialised(OffNowAndThen)
    constant = [[not bool(weight.any()) for weight in family.draw(3, seed=seed).params["weight"]] for seed in range(12)]
    assert any(first and not all(others) for first, *others in constant)
    for seed, draws in enumerate(constant):
        assert len(failed(selftest(family, (6,), seed=seed))) == (11 if all(draws) else 0)


def test_why_the_same_input_gives_another_output_is_said():
    def why(build) -> str:
        return next(check.remark for check in selftest(Family.initialised(build), (6,)) if check.name == REPEAT)

    assert why(OverwritesItsInput) == (
        "forward changes its input in place. Write x = x * 2 instead of x.mul_(2), and leave out inplace=True in the first layer"
    )
    assert why(NotANumber) == "its outputs are NaN or infinity. Check its layers"
    assert why(RandomForward).startswith("forward is random or keeps state. Remove the noise")


def test_a_buffer_that_forward_writes_is_not_taken_for_the_input_alone():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            return self.layer(x) * self.calls.add_(1)

    remarks = [check.remark for check in selftest(Family.initialised(Counter), (6,)) if "in place" in check.remark]
    assert remarks
    assert all("forward changes its input or a buffer in place" in remark for remark in remarks)


def test_the_warning_of_a_measurement_says_it_too():
    result = biascope.average_geometry(
        Family.initialised(OverwritesItsInput), Probe.gaussian((6,)), draws=4, run=Run(device="cpu")
    )
    assert result.warnings == [
        "The check that the same input gives the same output failed on OverwritesItsInput: forward changes its input in place. "
        "Write x = x * 2 instead of x.mul_(2), and leave out inplace=True in the first layer."
    ]


REPEAT, ALONE = "the same input gives the same output", "inputs of a batch do not see one another"
GRADIENT, JVP = "input gradient equals differences", "weight jvp equals differences"
ROUTES, STACK = "two routes to the kernel agree", "a stack equals its members"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (OffByAFactor, {GRADIENT, ROUTES}),
        (RandomForward, {REPEAT, ALONE}),
        (AlwaysDropsOut, {REPEAT, ALONE}),
        (SeesItsBatch, {ALONE}),
        (KeepsState, {REPEAT}),
        (CutsTheGradient, {GRADIENT, JVP}),
        (CutsHalfTheGradient, {GRADIENT, JVP}),
        (CutsAWeight, {JVP}),
        (NotANumber, {REPEAT, ALONE, GRADIENT, JVP, ROUTES, STACK}),
        (CannotBeBatched, {STACK}),
        (ChangesItsInput, {REPEAT}),
        (Rounds, {GRADIENT, JVP}),
        (WrongSign, {GRADIENT, JVP}),
        (CutsWithNoGrad, {GRADIENT, ROUTES}),  # forward mode sees through no_grad
        (SignsStraightThrough, {GRADIENT, JVP}),
        (Asserts, {ALONE}),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_broken_network_fails_where_it_is_broken(build, expected, seed):
    family = Family.initialised(build)
    before = global_states()
    assert failed(selftest(family, (6,), seed=seed)) >= expected
    assert global_states() == before


def test_a_fault_is_told_from_a_sound_network_by_orders_of_magnitude():
    sound = {check.name: check.error for check in selftest(Family.initialised(smooth_mlp), (2, 3))}
    broken = {check.name: check.error for check in selftest(Family.initialised(OffByAFactor), (6,))}
    assert max(sound.values()) < 1e-6
    assert broken[GRADIENT] == pytest.approx(0.01, rel=0.01)


def test_a_check_that_cannot_be_run_says_why_and_fails_unless_nothing_rests_on_it():
    checks = {check.name: check for check in selftest(Family.initialised(CannotBeBatched), (6,))}
    assert checks[STACK].error == math.inf
    assert not checks[STACK].passed
    assert not any(check.failed for check in checks.values())  # its networks are computed one by one
    assert checks[STACK].remark.startswith("could not be run: vmap")
    assert "\n" not in checks[STACK].remark
    checks = {check.name: check for check in selftest(Family.initialised(CutsTheGradient), (6,))}
    assert checks[GRADIENT].remark.startswith("could not be run: The network's output must depend on its input")
    assert checks[GRADIENT].failed


def test_a_check_passes_up_to_its_tolerance():
    assert Check("x", 1e-5, 1e-5, "").passed
    assert not Check("x", 1.1e-5, 1e-5, "").passed
    assert not Check("x", math.nan, 1e-5, "").passed


def kinked(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if check.kink}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("build", [ResidualBlock, depthwise_after_relu])
def test_units_on_their_kink_do_not_break_a_network(build, seed):
    checks = selftest(Family.initialised(build), (1, 8, 8), seed=seed)
    assert failed(checks) == set()
    assert kinked(checks) == {JVP}
    affected = next(check for check in checks if check.kink)
    assert "tangent kernel and linearised training" in affected.remark
    assert "Input gradients are not affected" in affected.remark


def test_a_kink_is_the_difference_of_the_slopes_on_the_two_sides():
    """``relu(w)`` at ``w = 0``: slopes 0 and 1 along w, and autograd takes 0."""

    class OneUnit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.first) * x + self.second * 0 + x

    checks = {check.name: check for check in selftest(Family.point(OneUnit()), (1,))}
    assert checks[JVP].passed
    assert checks[JVP].kink == pytest.approx(1.0)  # of the larger slope


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "build", [ResidualWithWrongBackward, ResidualWithWrongSign, ResidualWithDetach, ResidualWithRounding]
)
def test_a_kink_excuses_no_wrong_backward(build, seed):
    checks = selftest(Family.initialised(build), (1, 8, 8), seed=seed)
    assert JVP in failed(checks)
    assert kinked(checks) == set()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("build", "shape"), [(lambda: ResidualBlock(0.3), (1, 8, 8)), (hard_swishes, (1, 8, 8))])
def test_kinks_elsewhere_are_not_reported(build, shape, seed):
    checks = selftest(Family.initialised(build), shape, seed=seed)
    assert failed(checks) | kinked(checks) == set()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("build", "expected"),
    [(CastsToFloat32, set()), (OnlyFloat32, set())],
)
def test_networks_of_float32_are_held_to_float32(build, expected, seed):
    checks = selftest(Family.initialised(build), (6,), seed=seed)
    assert failed(checks) == expected
    assert {check.name: check.tolerance for check in checks}[GRADIENT] == 1e-2


def test_float32_inside_excuses_no_wrong_backward():
    class CastsAndCuts(CastsToFloat32):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(0.5 * x + 0.5 * x.detach())

    assert GRADIENT in failed(selftest(Family.initialised(CastsAndCuts), (6,)))


class ManyKinks(nn.Module):
    """Twelve layers of ReLU on waves in float32: kinks lie closer than the steps that float32 usually takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(64, 64) for _ in range(12)), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.arange(64, dtype=torch.float32).sin()
        for layer in self.layers:
            x = nn.functional.layer_norm(layer(x).relu(), (64,))
        return self.head(x)


def test_kinks_that_lie_close_are_no_wrong_derivative() -> None:
    assert all(check.passed for check in selftest(Family.initialised(ManyKinks), (64,)))
