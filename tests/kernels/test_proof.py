"""Tangent kernels of networks that a proof on two samples lets pass: each is right, or refused in a sentence."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from biascope.families.network import Network
from biascope.kernels.gram import gram_plan, tangent_gram
from biascope.kernels.panel import Panel
from biascope.kernels.plan import Sizes
from biascope.kernels.proof import Proof
from biascope.networks import builder
from biascope.runs.run import Run

EXACT, SINGLE = Run(device="cpu", precision="float64"), Run(device="cpu", precision="float32")
COUPLED = r"^The network's outputs depend on the other samples of a batch"


def gradients_alone(module: nn.Module, x: Any, output: int = 0) -> torch.Tensor:
    """(n, parameters): the module itself, one sample at a time, by plain autograd."""
    rows = []
    for index in range(len(x if isinstance(x, torch.Tensor) else next(iter(x.values())))):
        if isinstance(x, dict):
            value = module(**{name: part[index : index + 1] for name, part in x.items()})
        else:
            value = module(x[index : index + 1])
        found = torch.autograd.grad(
            value.reshape(-1)[output], list(module.parameters()), allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([part.flatten() for part in found]))
    return torch.stack(rows)


def deviation(found: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> float:
    scale = left.norm(dim=1)[:, None] * right.norm(dim=1)
    return float(((found - left @ right.T).abs() / scale.clamp_min(1e-6 * float(scale.max()))).max())


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 1)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class SortedAndBack(Body):
    """Outputs are those of each sample; the layers see them in another order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = x[:, 0].argsort()
        return self.body(x[order])[order.argsort()]


class Sorted(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x[x[:, 0].argsort()])


class Centred(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x - 0.5 * x.mean(0))


class WeaklyCoupled(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x + 1e-4 * x.mean(0))


class Numbered(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * len(x)


class OnlyInLargeBatches(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x - x.mean(0) if len(x) > 16 else x)


class TimeFirst(nn.Module):
    """A linear layer whose batch is the second axis: its rule mixes samples. Dead on samples of large negative numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        with torch.no_grad():
            self.linear.weight.abs_()
            self.linear.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (n, 8, 4)
        hidden = F.relu(self.linear(x.transpose(0, 1))).transpose(0, 1)
        return self.head(hidden.mean(1))


class Experts(nn.Module):
    """Each sample goes to one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[:, 0] > -1
        hidden = x.new_zeros(len(x), 4)
        hidden[chosen] = self.first(x[chosen])
        hidden[~chosen] = self.second(x[~chosen])
        return self.head(torch.tanh(hidden))


class Rounded(torch.autograd.Function):
    """A layer with a backward pass of its own, that torch's transformations do not take."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight).round(decimals=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x


class OwnBackward(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(Rounded.apply(x, self.first.weight) + self.first.bias)


def built(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return build().double()


def samples(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def first_two_in_order() -> torch.Tensor:
    x = samples(60, 4)
    x[0, 0], x[1, 0] = -5.0, -4.0  # a proof on these sees a sorted batch
    return x


def dead(count: int, alive: tuple[int, ...]) -> torch.Tensor:
    """Samples on which TimeFirst's first layer has no gradient, but for a few."""
    x = -1 - samples(count, 8, 4).abs()
    x[list(alive)] *= -1
    return x


def not_of_the_proof(count: int) -> tuple[int, ...]:
    few = Proof.of(Network.of(built(Body)), samples(count, 4)).sets[0]
    return tuple(sorted(set(range(count)) - {0, 1, *few.places.tolist()}))


CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, bool]] = {
    "sorted and back": (SortedAndBack, first_two_in_order(), False),
    "sorted": (Sorted, first_two_in_order(), True),
    "centred": (Centred, samples(60, 4), True),
    "weakly coupled": (WeaklyCoupled, samples(60, 4), True),
    "times the number of samples": (Numbered, samples(60, 4), True),
    "coupled in large batches": (OnlyInLargeBatches, samples(60, 4), True),
    "first two saturated": (TimeFirst, dead(60, tuple(range(2, 60))), False),
    "samples of the proof saturated": (TimeFirst, dead(60, not_of_the_proof(60)), False),
    "experts": (Experts, samples(60, 4), False),
    "a backward pass of its own": (OwnBackward, samples(12, 4), False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_that_of_each_sample_alone(name: str) -> None:
    build, x, coupled = CASES[name]
    module = built(build)
    truth = gradients_alone(module, x)
    for run, limit in ((EXACT, 1e-12), (SINGLE, 1e-5)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gram = tangent_gram(Network.of(module), x, run=run)
        assert deviation(gram.matrix, truth, truth) < limit
        assert [str(each.message)[:58] for each in caught] == [COUPLED[1:59]] * coupled


def test_a_layer_called_on_none_of_few_samples_is_differentiated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biascope.kernels.proof._SAMPLES", 3)
    module, x = built(Experts), samples(60, 4)
    truth = gradients_alone(module, x)
    assert deviation(tangent_gram(Network.of(module), x, run=EXACT).matrix, truth, truth) < 1e-12


@pytest.mark.parametrize("name", ["sorted and back", "centred", "first two saturated", "experts"])
def test_a_rectangular_kernel_is_proven_on_both_sets(name: str) -> None:
    build, other, _ = CASES[name]
    module, x = built(build), samples(5, *other.shape[1:], seed=3)
    truth = gradients_alone(module, x), gradients_alone(module, other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows, columns, left, right in ((x, other, *truth), (other, x, *truth[::-1])):
            assert deviation(tangent_gram(Network.of(module), rows, columns, run=EXACT).matrix, left, right) < 1e-12


class Several(SortedAndBack):
    """Three outputs, the first constant."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(5, 3)
        with torch.no_grad():
            self.second.weight[0] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_several_outputs_are_all_proven() -> None:
    module, x = built(Several), first_two_in_order()
    each = tangent_gram(Network.of(module), x, kernel="each", run=EXACT).matrix
    trace = tangent_gram(Network.of(module), x, kernel="trace", run=EXACT).matrix
    truths = [gradients_alone(module, x, output) for output in range(3)]
    for found, truth in zip(each, truths, strict=True):
        assert deviation(found, truth, truth) < 1e-12
    assert torch.allclose(trace, sum(truth @ truth.T for truth in truths), atol=1e-12)


def test_inputs_by_name_are_proven_too() -> None:
    class Named(SortedAndBack):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(left + right)

    module = built(Named)
    x = {"left": first_two_in_order(), "right": 0.1 * samples(60, 4, seed=5)}
    truth = gradients_alone(module, x)
    assert deviation(tangent_gram(Network.of(module), x, run=EXACT).matrix, truth, truth) < 1e-12


class Noisy(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + 1e-4 * torch.randn(len(x), 1, dtype=x.dtype)


def test_small_randomness_is_refused_and_moves_no_state() -> None:
    state = torch.get_rng_state()
    for run in (EXACT, SINGLE):
        with pytest.raises(ValueError, match=r"^A tangent kernel needs the same output for the same input.* is random"):
            tangent_gram(Network.of(built(Noisy)), samples(20, 4), run=run)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("precision", "factor", "refused"),
    [
        ("float64", 1 + 1e-5, True),
        ("float64", 1 + 1e-8, False),
        ("float32", 1.1, True),
        ("float32", 1 + 1e-4, False),
        ("tf32", 1.1, True),
        ("bfloat16", 1.2, True),
    ],
)
def test_the_measured_error_is_acted_upon(
    monkeypatch: pytest.MonkeyPatch, precision: str, factor: float, refused: bool
) -> None:
    rows = Panel.rows
    monkeypatch.setattr(Panel, "rows", lambda self: factor * rows(self))
    network, run = Network.of(built(Body)), Run(device="cpu", precision=precision)
    if refused:
        with pytest.raises(ValueError, match=rf"^A tangent kernel in {precision} must agree with gradients of single"):
            tangent_gram(network, samples(20, 4), run=run)
    else:
        assert tangent_gram(network, samples(20, 4), run=run).error == pytest.approx(factor - 1, rel=0.01)


def test_a_parameter_without_a_gradient_anywhere_is_named() -> None:
    network = Network.of(built(TimeFirst))
    text = gram_plan(network, dead(30, ()), run=EXACT)
    assert "no gradient on the 30 samples checked, so its rule is not proven" in text
    found = tangent_gram(network, dead(30, ()), run=EXACT)
    assert torch.allclose(found.matrix, torch.ones_like(found.matrix))  # by the last bias alone


def test_samples_of_a_proof_are_spread_and_out_of_order() -> None:
    network = Network.of(built(Body))
    for count in (1, 2, 3, 9, 1000):
        places = Proof.of(network, samples(count, 4)).sets[0].places.tolist()
        assert len(places) == min(count, 8)
        assert {0, count - 1} <= set(places)
        assert count == 1 or places != sorted(places)
    rows, columns = Proof.of(network, samples(50, 4), samples(70, 4)).sets
    assert {0, 49} <= set(rows.places.tolist())
    assert {0, 69} <= set(columns.places.tolist())


class OnlyLater(Body):
    """Uses its second layer twice in batches that no proof and no first batch has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + (self.second(torch.tanh(self.first(x))) * 0 if len(x) == 6 else 0)


class OnlyInVeryLargeBatches(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x - x.mean(0) if len(x) > 100 else x)


def test_what_only_the_panels_show_is_refused() -> None:
    network = Network.of(built(OnlyInVeryLargeBatches))
    with pytest.raises(ValueError, match=r"^A tangent kernel in float32 must agree with gradients of single samples"):
        tangent_gram(network, samples(120, 4), run=SINGLE)


def test_a_batch_that_enters_otherwise_is_refused() -> None:
    module, x = built(OnlyLater), samples(20, 4)
    with pytest.raises(ValueError, match=r"^The rule of 'first.weight' needs the same layer calls in every batch"):
        tangent_gram(Network.of(module), x, sizes=Sizes(7, 2**20, 2**20), run=EXACT)  # 7, 7 and 6
    truth = gradients_alone(module, x)
    assert deviation(tangent_gram(Network.of(module), x, run=EXACT).matrix, truth, truth) < 1e-12


@pytest.mark.parametrize("name", ["lenet", "resnet18", "vit", "mlp"])
def test_lawful_networks_are_neither_refused_nor_slowed(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network.of(builder(name)()).read("first")
    x = samples(10, 1, 32, 32).float()
    found = tangent_gram(network, x, run=SINGLE)
    assert found.error < 1e-4
    assert all("influence" not in part.remark and "larger" not in part.remark for part in found.parts)
