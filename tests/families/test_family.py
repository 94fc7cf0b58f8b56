"""Networks as functions of weights and input, and families as streams of them that do not depend on how they are cut."""

import copy
import functools
import math

import pytest
import torch
from networks_under_test import (
    CPU,
    CPU64,
    AttentionNetwork,
    TwoInputs,
    batchnorm_convnet,
    global_states,
    network_of,
    normal,
    relu_convnet,
    smooth_mlp,
)
from torch import nn

from biascope.derivatives.gradients import input_gradient
from biascope.families import draws as draws_module
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.readout import READOUTS, read_out
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def equal(first: Network, second: Network) -> bool:
    """Whether two stacks hold the same numbers, bit for bit."""
    return first.members == second.members and all(
        torch.equal(tensor, theirs[name])
        for mine, theirs in ((first.params, second.params), (first.buffers, second.buffers))
        for name, tensor in mine.items()
    )


# ---- readouts ------------------------------------------------------------------------------------------------------

LOGITS = torch.tensor([[3.0, -1.0, 7.0, 1.0], [0.0, 0.0, -2.0, -8.0]])


@pytest.mark.parametrize(
    ("readout", "scalars"),
    [("first", [3.0, 0.0]), ("sum", [10.0, -10.0]), ("mean", [2.5, -2.5]), ("margin", [4.0, 0.0])],
)
def test_readouts_by_hand(readout, scalars):
    assert read_out(LOGITS, readout).tolist() == scalars
    assert read_out(LOGITS.reshape(2, 2, 2), readout).tolist() == scalars  # output axes are flattened


def test_one_output_without_an_axis_is_itself():
    for readout in ("first", "sum", "mean"):
        assert read_out(torch.tensor([5.0, 6.0]), readout).tolist() == [5.0, 6.0]


def test_the_random_readout_is_one_fixed_gaussian_combination():
    combination = read_out(torch.eye(2000, dtype=torch.float64), "random")
    assert torch.equal(combination, read_out(torch.eye(2000, dtype=torch.float64), "random"))
    assert abs(float(combination.mean())) < 5 / math.sqrt(2000)
    assert float(combination.std()) == pytest.approx(1.0, abs=5 / math.sqrt(4000))
    outputs = normal(3, 2000)
    assert torch.allclose(read_out(outputs, "random"), outputs @ combination)


def test_the_margin_of_one_output_cannot_be():
    with pytest.raises(RuntimeError, match="out of range"):
        read_out(torch.zeros(2, 1), "margin")


def test_an_unknown_readout_is_a_sentence():
    expected = r"^readout must be one of 'first', 'sum', 'mean', 'margin', 'random', 'features', got 'last'\. Pass readout='first'\.$"
    with pytest.raises(ValueError, match=expected):
        network_of(smooth_mlp, readout="last")


@pytest.mark.parametrize("readout", [name for name in READOUTS if name != "features"])
def test_a_network_reads_out_what_its_outputs_are(readout):
    plain, x = network_of(smooth_mlp, readout=None), normal(4, 6)
    assert torch.equal(plain.read(readout)(x), read_out(plain(x), readout))


def test_the_random_readout_reads_a_stack():
    stack, x = Family.initialised(smooth_mlp).draw(3, seed=0, run=CPU64), normal(4, 6)
    wanted = torch.stack([read_out(outputs, "random") for outputs in stack(x)])
    assert torch.allclose(stack.read("random")(x), wanted)


def test_features_are_what_enters_the_head_whatever_its_weights():
    body, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3)
    nn.init.zeros_(head.weight)
    network, x = Network.of(nn.Sequential(body, head)).read("features"), normal(4, 6).float()
    assert torch.allclose(network(x), read_out(body(x), "random"))
    stack = Family.initialised(smooth_mlp).draw(3, seed=0, run=CPU64).read("features")
    assert torch.allclose(stack(x.double())[1], stack.member(1)(x.double()))
    found = input_gradient(network, x)
    assert bool(found.any())
    assert not head._forward_pre_hooks


def test_features_need_a_linear_layer():
    with pytest.raises(
        ValueError, match=r"^readout 'features' needs a network that ends in a linear layer, and Conv1d"
    ):
        Network.of(nn.Conv1d(1, 1, 2)).read("features")(torch.zeros(2, 1, 4))


# ---- networks ------------------------------------------------------------------------------------------------------


def trained_batchnorm() -> nn.Module:
    """A network whose running statistics are neither zero nor one, in train mode as after training."""
    module = batchnorm_convnet().double()
    module[1].running_mean.copy_(torch.tensor([0.3, -0.2, 0.1]))
    module[1].running_var.copy_(torch.tensor([2.0, 0.5, 1.5]))
    return module.train()


def test_eval_mode_is_that_of_the_module_and_dropout_is_off():
    with forked_rng(0):
        module = trained_batchnorm()
    network, x = Network.of(module), normal(5, 1, 6, 6)
    outputs = network(x)
    assert torch.equal(outputs, network(x))
    assert torch.allclose(outputs, module.eval()(x), atol=1e-12)
    assert not network.couples_inputs


def test_train_mode_normalises_each_input_by_itself_alone():
    with forked_rng(0):
        module = trained_batchnorm()
    network, x = Network.of(module, batchnorm="train"), normal(5, 1, 6, 6)
    without_statistics = copy.deepcopy(module)
    without_statistics[1] = nn.BatchNorm2d(3, track_running_stats=False).double()
    without_statistics[1].load_state_dict({name: module[1].state_dict()[name] for name in ("weight", "bias")})
    without_statistics[3] = nn.Identity()  # the dropout
    alone = torch.cat([without_statistics(one[None]) for one in x])
    assert network.couples_inputs
    assert torch.allclose(network(x), alone, atol=1e-12)
    assert not torch.allclose(network(x), without_statistics(x), atol=1e-3)  # a batch would have mixed them
    assert not torch.allclose(network(x), Network.of(module)(x), atol=1e-3)


def test_an_unknown_mode_is_a_sentence():
    with pytest.raises(ValueError, match=r"^batchnorm must be 'eval' or 'train', got 'frozen'\. Pass batchnorm='eval'"):
        Network.of(batchnorm_convnet(), batchnorm="frozen")


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_the_module_is_never_changed(batchnorm):
    module = trained_batchnorm()
    state, modes = copy.deepcopy(module.state_dict()), [layer.training for layer in module.modules()]
    network = Network.of(module, batchnorm)
    network(normal(3, 1, 6, 6))
    network.read("first").with_params({name: 2 * part for name, part in network.params.items()})(normal(3, 1, 6, 6))
    assert [layer.training for layer in module.modules()] == modes
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert module.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert module[1].track_running_stats


def test_weights_are_copied_from_the_module():
    module = nn.Linear(2, 1)
    network = Network.of(module)
    before = network(torch.ones(1, 2))
    module.weight.data.add_(1.0)
    assert torch.equal(network(torch.ones(1, 2)), before)


def test_other_weights_give_other_outputs_and_leave_the_network_alone():
    network, x = network_of(smooth_mlp), normal(3, 6)
    before = network(x)
    doubled = {name: 2 * part for name, part in network.params.items()}
    assert torch.equal(network(x, doubled), network.with_params(doubled)(x))
    assert not torch.allclose(network(x, doubled), before)
    assert torch.equal(network(x), before)


def test_arguments_may_come_by_position_or_by_name():
    network = network_of(TwoInputs, readout=None)
    values, tokens = normal(3, 5), torch.tensor([1, 6, 0])
    by_position, by_name = network((values, tokens)), network({"tokens": tokens, "values": values})
    assert by_position.shape == (3, 2)
    assert torch.equal(by_position, by_name)
    assert torch.equal(by_position, network.as_module()(values, tokens))
    stack = Family.initialised(TwoInputs).draw(3, seed=0, run=CPU64)
    assert torch.allclose(stack({"values": values, "tokens": tokens})[1], stack.member(1)((values, tokens)), atol=1e-12)


def test_a_stack_is_its_members_side_by_side():
    stack, x = Family.initialised(relu_convnet).draw(4, seed=0, run=CPU64), normal(3, 1, 8, 8)
    outputs = stack(x)
    assert outputs.shape == (4, 3, 3)
    for index in range(4):
        assert stack.member(index).members is None
        assert torch.allclose(stack.member(index)(x), outputs[index], atol=1e-12)
    part = stack.slice(1, 3)
    assert part.members == 2
    assert torch.allclose(part(x), outputs[1:3], atol=1e-12)


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_a_stack_of_batchnorm_networks_is_its_members(batchnorm):
    with forked_rng(0):
        modules = [trained_batchnorm() for _ in range(3)]
        for index, module in enumerate(modules):
            module[1].running_mean.add_(index)
    stack = Family.empirical(modules, batchnorm=batchnorm).draw(3, seed=0, run=CPU64)
    x = normal(2, 1, 6, 6)
    if batchnorm == "eval":
        assert stack.buffers["1.running_mean"].shape == (3, 3)
        assert stack.buffers["1.num_batches_tracked"].shape == (3,)
    alone = torch.stack([Network.of(module, batchnorm)(x) for module in modules])
    assert torch.allclose(stack(x), alone, atol=1e-12)
    assert not torch.allclose(alone[0], alone[1], atol=1e-3)


def test_as_module_is_an_ordinary_module_with_these_weights():
    stack, x = Family.initialised(batchnorm_convnet).draw(3, seed=0, run=CPU64), normal(2, 1, 6, 6)
    member = stack.member(2)
    module = member.as_module()
    assert torch.allclose(module.double()(x), member(x), atol=1e-12)
    with pytest.raises(ValueError, match=r"^as_module needs one network, got a stack\. Pass network\.member\(0\)"):
        stack.as_module()


def test_moving_changes_floating_point_numbers_only():
    network = Network.of(batchnorm_convnet()).to(torch.device("cpu"), torch.float64)
    assert network.params["0.weight"].dtype is torch.float64
    assert network.buffers["1.running_mean"].dtype is torch.float64
    assert network.buffers["1.num_batches_tracked"].dtype is torch.int64


# ---- families ------------------------------------------------------------------------------------------------------


def permuted_builder() -> nn.Module:
    """Cannot be replayed, so it is built one by one."""
    layer = nn.Linear(4, 3)
    layer.weight.data = layer.weight.data[:, torch.randperm(4)]
    return layer


@pytest.fixture
def blocks_of_eight(monkeypatch):
    monkeypatch.setattr(draws_module, "block_size", lambda numbers, device: 8)


@pytest.mark.usefixtures("blocks_of_eight")
@pytest.mark.parametrize("build", [batchnorm_convnet, AttentionNetwork, permuted_builder])
def test_a_draw_does_not_depend_on_how_the_stream_is_cut(build):
    family = Family.initialised(build)
    assert ("one by one" in family.drawing) == (build is permuted_builder)
    whole = family.draws(seed=3, run=CPU)[0:30]
    for start, stop in ((0, 1), (7, 8), (7, 9), (8, 16), (5, 27), (29, 30), (0, 30)):
        assert equal(family.draws(seed=3, run=CPU)[start:stop], whole.slice(start, stop))
    walked = family.draws(seed=3, run=CPU)
    assert all(equal(walked[k : k + 5], whole.slice(k, k + 5)) for k in (10, 0, 25, 5))  # any order
    assert equal(family.draw(11, seed=3, run=CPU), whole.slice(0, 11))


@pytest.mark.usefixtures("blocks_of_eight")
def test_members_and_seeds_and_blocks_differ():
    family = Family.initialised(lambda: nn.Linear(50, 20, bias=False))
    weights = family.draw(20, seed=0, run=CPU).params["weight"].flatten(1)
    correlation = torch.corrcoef(weights) - torch.eye(20)
    assert float(correlation.abs().max()) < 6 / math.sqrt(1000)
    other = family.draw(20, seed=1, run=CPU).params["weight"].flatten(1)
    assert float(torch.corrcoef(torch.cat([weights, other]))[:20, 20:].abs().max()) < 6 / math.sqrt(1000)


@pytest.mark.usefixtures("whole_blocks")
def test_the_size_of_a_block_depends_on_the_numbers_of_a_member_alone():
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300)))
    numbers = 300 * 300 + 300 + 2 * 300 + 2 * 300 + 1  # weights and buffers
    for run in (CPU, CPU64):
        assert family.draws(seed=0, run=run).block_size == 2**25 // numbers == 366


def test_a_draw_is_the_same_in_every_precision_up_to_rounding():
    family = Family.initialised(relu_convnet)
    single = family.draw(3, seed=0, run=CPU).params["0.weight"]
    assert torch.equal(family.draw(3, seed=0, run=CPU64).params["0.weight"], single.double())
    half = family.draw(3, seed=0, run=Run(device="cpu", precision="bfloat16")).params["0.weight"]
    assert torch.equal(half, single.bfloat16())


def test_drawing_and_running_leave_the_global_generators_alone():
    with forked_rng(0):
        module = batchnorm_convnet()
    before = global_states()
    for family in (Family.initialised(batchnorm_convnet), Family.point(module), Family.empirical([module, module])):
        family.draw(3, seed=0, run=CPU).read("mean")(normal(1, 1, 6, 6, dtype=torch.float32))
    Family.initialised(permuted_builder).draw(3, seed=0, run=CPU)
    assert global_states() == before


def test_a_point_family_is_one_network_repeated():
    module = trained_batchnorm()
    family, x = Family.point(module), normal(2, 1, 6, 6)
    stack = family.draw(3, seed=0, run=CPU64)
    assert (family.law, family.size, family.name) == ("point", 1, "Sequential")
    assert stack.members == 3
    assert torch.allclose(stack(x), module.eval()(x).expand(3, -1, -1), atol=1e-12)
    assert equal(family.draws(seed=5, run=CPU64)[7:10], stack)


def test_an_empirical_family_gives_its_members_in_order_and_round_again():
    with forked_rng(0):
        modules = [smooth_mlp().double() for _ in range(3)]
    family, x = Family.empirical(modules, name="runs"), normal(2, 6)
    assert (family.law, family.size, family.name) == ("empirical", 3, "runs")
    stack = family.draws(seed=0, run=CPU64)[2:6]
    wanted = torch.stack([modules[k](x) for k in (2, 0, 1, 2)])
    assert torch.allclose(stack(x), wanted, atol=1e-12)


def test_what_a_family_says_of_itself():
    family = Family.initialised(relu_convnet)
    assert family.name == "relu_convnet"
    assert (family.law, family.size) == ("initialised", None)
    assert family.num_parameters == sum(part.numel() for part in relu_convnet().parameters())


def test_an_identity_sees_architecture_settings_weights_and_mode():
    with forked_rng(0):
        first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    families = [
        Family.initialised(functools.partial(nn.Linear, 3, 2), name="x"),
        Family.initialised(functools.partial(nn.Linear, 4, 2), name="x"),
        Family.initialised(functools.partial(nn.Linear, 3, out_features=2), name="x"),
        Family.initialised(functools.partial(nn.Linear, 3, 2), name="y"),
        Family.initialised(batchnorm_convnet, name="x"),
        Family.initialised(batchnorm_convnet, name="x", batchnorm="train"),
        Family.point(first, name="x"),
        Family.point(second, name="x"),
        Family.empirical([first, second], name="x"),
        Family.empirical([second, first], name="x"),
    ]
    assert len({str(family.identity) for family in families}) == len(families)
    again = Family.initialised(functools.partial(nn.Linear, 3, 2), name="x")
    assert again.identity == families[0].identity
    assert Family.point(copy.deepcopy(first), name="x").identity == families[6].identity


def test_an_identity_sees_what_a_closure_holds():
    def initialised(std: float) -> Family:
        return Family.initialised(lambda: normally(nn.Linear(3, 2), std), name="x")

    def normally(layer: nn.Linear, std: float) -> nn.Linear:
        nn.init.normal_(layer.weight, std=std)
        return layer

    assert initialised(0.1).identity != initialised(10.0).identity


def test_no_more_modules_are_built_than_are_drawn():
    calls = []

    def build() -> nn.Module:
        calls.append(1)
        return permuted_builder()

    family = Family.initialised(build)
    calls.clear()
    family.draw(3, seed=0, run=CPU)
    assert len(calls) < 100


def test_as_module_can_be_trained():
    assert all(parameter.requires_grad for parameter in Network.of(nn.Linear(2, 1)).as_module().parameters())


def test_as_module_keeps_the_type_of_the_weights():
    network = Network.of(nn.Linear(2, 1)).to(torch.device("cpu"), torch.float64)
    assert network.as_module().weight.dtype is torch.float64


def test_wrong_builders_are_sentences():
    with pytest.raises(ValueError, match=r"^net must return a torch\.nn\.Module, got int\. Return the network\.$"):
        Family.initialised(lambda: 3, name="net")
    with pytest.raises(ValueError, match=r"^net must have parameters to draw, but has none\. Pass a network with"):
        Family.initialised(nn.Flatten, name="net")
    with pytest.raises(ValueError, match=r"^ReLU must have parameters, but has none\. Pass a network with weights\.$"):
        Family.point(nn.ReLU())
    with pytest.raises(ValueError, match=r"^members must hold at least one network, got none\. Pass a list"):
        Family.empirical([])
