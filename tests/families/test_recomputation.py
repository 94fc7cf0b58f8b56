"""Gradient checkpointing changes memory, never a number: every derivative equals that of the same network without it."""

import functools
import threading

import pytest
import torch
from networks_under_test import CPU, CPU64, network_of, normal
from torch import Tensor, nn
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from biascope.derivatives.gradients import input_gradient, mixed_jvp, mixed_vjp, weight_jacobian, weight_jvp, weight_vjp
from biascope.derivatives.linearize import linearize
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.recomputation import WithoutRecomputation
from biascope.kernels.gram import tangent_gram
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.meta import Adapted
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS = {
    "none": lambda part, x: part(x),
    "imported": lambda part, x: checkpoint(part, x, use_reentrant=False),
    "reentrant": lambda part, x: checkpoint(part, x, use_reentrant=True),
    "bound": functools.partial(checkpoint, use_reentrant=False),  # as Hugging Face's gradient_checkpointing does
    "of the module": lambda part, x: checkpointing.checkpoint(part, x, use_reentrant=False),
    "sequential": lambda part, x: checkpoint_sequential(part, 2, x, use_reentrant=False),
    "nested": lambda part, x: checkpoint(lambda y: checkpoint(part, y, use_reentrant=False), x, use_reentrant=False),
}
CHECKPOINTED = [way for way in WAYS if way != "none"]


class Checkpointed(nn.Module):
    """A network on vectors of 6 whose body is run in one of the ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(WAYS[self.way](self.body, x))


def networks(way: str) -> tuple[Network, Network]:
    """The network with and without checkpointing, at weights that are not those of its module."""
    stranger = network_of(lambda: Checkpointed("none"), seed=7)
    builders = [functools.partial(Checkpointed, each) for each in (way, "none")]
    return tuple(network_of(build).with_params(stranger.params) for build in builders)


def stacks(way: str) -> tuple[Network, Network]:
    """Three networks with and without checkpointing."""
    families = [Family.initialised(functools.partial(Checkpointed, each), name="net") for each in (way, "none")]
    return tuple(family.draw(3, seed=0, run=CPU64).read("first") for family in families)


def close(one: object, two: object) -> bool:
    pairs = zip(*(torch.utils._pytree.tree_leaves(each) for each in (one, two)), strict=True)
    return all(torch.allclose(first, second, rtol=1e-12, atol=1e-14) for first, second in pairs)


PARAMETERS = (6 + 1) * 8 + (8 + 1) * 8 + (8 + 1) * 2
DERIVATIVES = {
    "input gradient": lambda network: input_gradient(network, normal(4, 6)),
    "mixed_jvp": lambda network: mixed_jvp(network, normal(1, 6), normal(2, 6, seed=1)),
    "mixed_vjp": lambda network: mixed_vjp(network, normal(1, 6), normal(2, PARAMETERS)),
}
OF_ONE = {
    "weight_jvp": lambda network: weight_jvp(network, normal(4, 6), network.params),
    "weight_vjp": lambda network: weight_vjp(network, normal(4, 6), normal(4)),
    "weight_jacobian": lambda network: weight_jacobian(network, normal(4, 6)),
    "plain autograd by weights": lambda network: _by_plain_autograd(network),
    "tangent kernel": lambda network: tangent_gram(network, normal(5, 6), run=CPU64).matrix,
    "linearised": lambda network: input_gradient(
        linearize(network).with_params({name: 1.5 * part for name, part in network.params.items()}), normal(4, 6)
    ),
}


def _by_plain_autograd(network: Network) -> list[Tensor]:
    params = {name: part.clone().requires_grad_() for name, part in network.params.items()}
    return list(torch.autograd.grad(network(normal(4, 6), params).sum(), list(params.values())))


@pytest.mark.parametrize("way", CHECKPOINTED)
@pytest.mark.parametrize("derivative", [*DERIVATIVES, *OF_ONE])
def test_derivatives_of_one_network(way, derivative):
    checkpointed, plain = networks(way)
    take = {**DERIVATIVES, **OF_ONE}[derivative]
    assert close(take(checkpointed), take(plain))


@pytest.mark.parametrize("way", CHECKPOINTED)
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives_of_a_stack(way, derivative):
    checkpointed, plain = stacks(way)
    assert close(DERIVATIVES[derivative](checkpointed), DERIVATIVES[derivative](plain))


@pytest.mark.parametrize("way", [way for way in CHECKPOINTED if way != "reentrant"])  # torch refuses that one itself
@pytest.mark.parametrize("members", [None, 3])
def test_training(way, members):
    x = normal(16, 6, dtype=torch.float32)
    task = Arrays({"train": (x, (x[:, 0] > 0).long())})
    recipe = Recipe(epochs=2, batch=8)

    def trained(each: str) -> dict[str, Tensor]:
        drawn = Family.initialised(lambda: Checkpointed(each), name="net").draw(members or 1, seed=0, run=CPU)
        return fit(drawn if members else drawn.member(0), task, recipe, seed=0, run=CPU).networks.params

    with_it, without = trained(way), trained("none")
    assert all(torch.allclose(with_it[name], without[name], atol=1e-6) for name in without)


@pytest.mark.parametrize("way", CHECKPOINTED)
def test_a_linearised_module_in_a_training_loop_of_the_users_own(way):
    def gradients(network: Network) -> list[Tensor]:
        module = linearize(network).as_module()
        return list(torch.autograd.grad(module(normal(4, 6)).square().sum(), list(module.parameters())))

    assert close(*(gradients(network) for network in networks(way)))


@pytest.mark.parametrize("way", CHECKPOINTED)
def test_an_inner_loop(way):
    torch.manual_seed(0)
    plain, checkpointed = Checkpointed("none").double(), Checkpointed(way).double()
    checkpointed.load_state_dict(plain.state_dict())
    grid, signals = normal(5, 6), normal(2, 10, seed=1)

    def gradients(module: nn.Module) -> list[Tensor]:
        loop = Adapted(module, grid, steps=2, rate=0.1)
        return list(torch.autograd.grad(loop(signals).square().sum(), list(module.parameters())))

    assert close(gradients(checkpointed), gradients(plain))


def test_a_scan_of_a_checkpointed_network_gives_the_rank_of_the_network():
    ranks = {}
    for way in ("none", "imported"):
        family = Family.initialised(lambda way=way: Checkpointed(way), name="net")
        result = anisotropy_directions(family, Probe.gaussian((6,)), draws=64, estimator="exact", run=CPU64)
        ranks[way] = result.effective_rank.value
    assert ranks["imported"] == pytest.approx(ranks["none"], rel=1e-9)


def test_outside_of_our_calls_checkpointing_is_as_ever():
    calls = []

    def square(x: Tensor) -> Tensor:
        calls.append(threading.get_ident())
        return x * x

    def gradient(reentrant: bool) -> None:
        x = torch.ones(1, requires_grad=True)
        checkpoint(square, x, use_reentrant=reentrant).backward()
        assert float(x.grad) == 2.0

    with WithoutRecomputation(), WithoutRecomputation():
        other = threading.Thread(target=lambda: [gradient(False), gradient(True)])
        other.start()
        other.join()
        assert len(calls) == 4  # twice forward, twice recomputed
        gradient(False), gradient(True)
        assert len(calls) == 6
    gradient(False), gradient(True)
    assert len(calls) == 10
