"""Whether a network's outputs are functions of their own inputs: noise and coupling far below the size of the outputs."""

import copy
import warnings

import pytest
import torch
from networks_under_test import CPU
from torch import nn

from biascope.derivatives.covariance import GradientSampler
from biascope.derivatives.separateness import Separateness, check_separateness, exact_type, separateness
from biascope.families.family import Family
from biascope.families.gradient_hooks import gradient_hooks
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.networks import builder
from biascope.runs.run import Run
from biascope.tasks.probe import Probe


class Flawed(nn.Module):
    """A linear network with a flaw that is small against its outputs."""

    def __init__(self, flaw: str, size: float = 0.0, offset: float = 0.0) -> None:
        super().__init__()
        self.linear, self.flaw, self.size, self.offset = nn.Linear(4, 2), flaw, size, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.linear(x) + self.offset
        if self.flaw == "noise":
            return outputs + self.size * torch.randn_like(outputs)
        if self.flaw == "mean":
            return outputs - self.size * outputs.mean(0)
        if self.flaw == "number":
            return outputs + self.size * len(x)
        if self.flaw == "order":
            return outputs + self.size * torch.arange(len(x))[:, None]
        return outputs


def found_of(*settings: object, x: torch.Tensor | None = None) -> Separateness:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network.of(Flawed(*settings))  # type: ignore[arg-type]
        return separateness(network, torch.randn(3, 4) if x is None else x)


@pytest.mark.parametrize("size", [1e-4, 1e-7])
@pytest.mark.parametrize("flaw", ["noise", "mean", "number", "order"])
def test_small_flaws_are_found(flaw: str, size: float) -> None:
    found = found_of(flaw, size)
    assert (found.random, found.coupled) == (flaw == "noise", flaw != "noise")
    relative = found.relative_noise if flaw == "noise" else found.relative_coupling
    assert 0.01 * size < relative < 10 * size


@pytest.mark.parametrize("flaw", ["noise", "mean"])
def test_an_offset_hides_nothing(flaw: str) -> None:
    found = found_of(flaw, 1e-4, 1e4)
    assert found.random or found.coupled
    clean = found_of("none", 0.0, 1e8)
    assert not clean.random
    assert not clean.coupled


def test_one_input_gets_company() -> None:
    for x in (torch.zeros(1, 4), torch.ones(1, 4)):
        assert found_of("mean", 1e-4, x=x).coupled
        assert not found_of("none", x=x).coupled


def test_what_is_not_finite_is_neither_random_nor_coupled() -> None:
    for offset in (float("nan"), float("inf")):
        found = found_of("none", 0.0, offset)
        assert (found.noise, found.coupling) == (0.0, 0.0)


class Converting(nn.Linear):
    """Computes in a type of its own, whatever it is given."""

    inside = torch.float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.to(self.inside), self.bias.to(self.inside)
        return nn.functional.linear(x.to(self.inside), weight, bias).to(x.dtype)


def test_the_tolerance_follows_the_coarsest_type_within() -> None:
    network, x = Network.of(Converting(300, 5)), torch.randn(6, 300, generator=torch.Generator().manual_seed(0))
    assert exact_type(network, x) == (torch.float64, torch.finfo(torch.float32).eps)
    assert exact_type(Network.of(nn.Linear(300, 5)), x) == (torch.float64, torch.finfo(torch.float64).eps)
    assert not separateness(network, x).coupled
    network.module.inside = torch.bfloat16
    assert exact_type(network, x)[1] == torch.finfo(torch.bfloat16).eps
    assert not separateness(network, x).coupled


@pytest.mark.parametrize("name", ["lenet", "resnet18", "vit"])
def test_lawful_networks_pass_in_every_precision(name: str) -> None:
    network = Network.of(builder(name)())
    x = torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = separateness(network.to(torch.device("cpu"), dtype), x.to(dtype))
        assert not found.random
        assert not found.coupled
        assert found.coupling < 0.1


def test_inputs_of_several_parts_and_ids() -> None:
    class Named(nn.Module):
        def __init__(self, coupled: bool) -> None:
            super().__init__()
            self.words, self.linear, self.coupled = nn.Embedding(9, 4), nn.Linear(4, 1), coupled

        def forward(self, ids: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
            hidden = self.words(ids).mean(1) + shift
            return self.linear(hidden - 1e-4 * hidden.mean(0) if self.coupled else hidden)

    x = {"ids": torch.tensor([[1, 2], [8, 3], [0, 0]]), "shift": torch.zeros(3, 4)}
    assert separateness(Network.of(Named(True)), x).coupled
    check_separateness(Network.of(Named(False)), x, "yours")


@pytest.mark.parametrize(
    ("flaw", "sentence"),
    [("noise", "its forward pass is random"), ("mean", "must treat the inputs of a batch independently")],
)
def test_sampling_refuses_flaws_of_a_ten_thousandth(flaw: str, sentence: str) -> None:
    state = torch.get_rng_state()
    family = Family.initialised(lambda: Flawed(flaw, 1e-4), name="yours")
    with pytest.raises(ValueError, match=sentence):
        GradientSampler(
            family, Probe.gaussian((4,), num=2), estimator="exact", step=1.0, readout="first", seed=0, run=CPU
        )
    assert torch.equal(state, torch.get_rng_state())


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return 2 * gradient


def test_gradient_hooks_are_named_and_left_out() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        x = torch.randn(5, 4, dtype=torch.float64)
    plain = tangent_gram(Network.of(copy.deepcopy(module)), x, run=Run(device="cpu", precision="float64")).matrix
    module[0].weight.register_hook(doubled)
    module[2].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    module[2].register_full_backward_hook(lambda layer, inward, outward: tuple(5 * part for part in inward))
    assert gradient_hooks(module) == ["0.weight", "2.bias", "2"]
    sentence = r"^Sequential has a gradient hook on '0.weight' and 2 more, and Biascope differentiates without hooks\."
    with pytest.warns(UserWarning, match=sentence):
        network = Network.of(module)
    assert torch.allclose(tangent_gram(network, x, run=Run(device="cpu", precision="float64")).matrix, plain)
    assert module[2]._backward_hooks, "the user's own module keeps its hooks"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Network.of(copy.deepcopy(module[0]))
