"""Linearised networks against their definition: Taylor error, dense Jacobians, closed forms of gradient descent."""

import copy
import dataclasses
import threading

import pytest
import torch
import torch.nn.functional as F
from networks_under_test import (
    CPU,
    CPU64,
    SHAPES,
    AttentionNetwork,
    TwoInputs,
    batchnorm_convnet,
    every_network,
    global_states,
    network_of,
    normal,
    relu_convnet,
    smooth_mlp,
)
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from biascope.derivatives.gradients import input_gradient, plain_attention, weight_jacobian, weight_jvp, weight_vjp
from biascope.derivatives.linearize import linearize, load_linearized, save_linearized
from biascope.families import weights
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.networks import builder
from biascope.runs.digest import fingerprint
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")


def direction_of(network: Network, seed: int = 5) -> dict[str, Tensor]:
    """A random direction in weight space."""
    return {name: normal(*tensor.shape, seed=seed + i) for i, (name, tensor) in enumerate(network.params.items())}


def moved(network: Network, size: float = 0.3, seed: int = 5) -> dict[str, Tensor]:
    """The weights, moved along that direction."""
    direction = direction_of(network, seed)
    return {name: tensor + size * direction[name] for name, tensor in network.params.items()}


def taylor(network: Network, x, params, at=None) -> Tensor:
    """f(θ*) + (θ − θ*)ᵀ∇f(θ*), by one derivative of the network at θ*."""
    point = network.params if at is None else at
    with plain_attention():
        outputs, slope = weight_jvp(network.with_params(point), x, {name: params[name] - point[name] for name in point})
    return outputs + slope


def trained_statistics(network: Network) -> Network:
    """The same with BatchNorm statistics that are not the initial ones."""
    buffers = {
        name: normal(*tensor.shape, seed=3).abs() + 0.5 if tensor.is_floating_point() else tensor
        for name, tensor in network.buffers.items()
    }
    return network.with_params(network.params, buffers)


# ---- what it is ----------------------------------------------------------------------------------------------------


def residual_slope(network: Network, x, pick=lambda outputs: outputs, largest: float = -1.5) -> float:
    """The fitted power p in ‖f(θ₀ + εδ) − f_lin(θ₀ + εδ)‖ ∝ ε^p, for ε up to 10^largest."""
    line, sizes = linearize(network), torch.logspace(largest - 1.5, largest, 6, dtype=torch.float64)
    errors = []
    for size in sizes:
        params = moved(network, float(size))
        errors.append(float((pick(network(x, params)) - pick(line(x, params))).norm()))
    logarithms = torch.tensor(errors, dtype=torch.float64).log()
    columns = torch.stack([sizes.log(), torch.ones_like(sizes)], 1)
    return float(torch.linalg.lstsq(columns, logarithms[:, None]).solution[0])


@pytest.mark.parametrize("build", [smooth_mlp, AttentionNetwork], ids=lambda build: build.__name__)
def test_the_error_is_of_second_order(build):
    assert abs(residual_slope(network_of(build, readout=None), normal(3, *SHAPES[build])) - 2) < 0.05


@every_network
def test_outputs_follow_the_definition(build):
    network, x = trained_statistics(network_of(build, readout=None)), normal(3, *SHAPES[build])
    params, line = moved(network), linearize(network)
    assert torch.allclose(line(x, params), taylor(network, x, params), rtol=1e-12, atol=1e-12)
    assert torch.allclose(line(x), network(x), rtol=1e-12, atol=1e-12)
    assert float((line(x, params) - network(x, params)).abs().max()) > 1e-2


@every_network
def test_the_gradient_is_that_at_the_expansion_point_everywhere(build):
    network, x = network_of(build), normal(3, *SHAPES[build])
    wanted, line = weight_jacobian(network, x), linearize(network)
    for size in (0.0, 0.7):
        found = weight_jacobian(line.with_params(moved(network, size)), x)
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_linear_model_is_its_own_linearisation():
    network = Network.of(nn.Linear(3, 2)).with_params(
        {"weight": torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, 1.0]]), "bias": torch.tensor([1.0, -4.0])}
    )
    params = {"weight": torch.tensor([[7.0, 0.0, 1.0], [2.0, 2.0, -9.0]]), "bias": torch.tensor([3.0, 3.0])}
    x = torch.tensor([[1.0, 2.0, -3.0], [4.0, 0.0, 1.0]])
    assert torch.equal(linearize(network)(x, params), network(x, params))


@every_network
def test_the_unbiased_one_is_zero_at_the_start_and_has_the_same_slope(build):
    network, x = network_of(build, readout=None), normal(3, *SHAPES[build])
    line, params = linearize(network, biased=False), moved(network)
    assert float(line(x).abs().max()) == 0.0
    assert torch.allclose(line(x, params), linearize(network)(x, params) - network(x), atol=1e-12)


def test_both_anchors_can_be_apart():
    network, x = network_of(smooth_mlp, readout=None), normal(4, 6)
    at, params = moved(network, 0.5, seed=20), moved(network)
    biased, unbiased = linearize(network, at), linearize(network, at, biased=False)
    assert torch.allclose(biased(x, params), taylor(network, x, params, at), atol=1e-12)
    assert torch.allclose(biased(x, at), network(x, at), atol=1e-12)
    away = {name: params[name] - network.params[name] for name in params}
    assert torch.allclose(unbiased(x, params), weight_jvp(network.with_params(at), x, away)[1], atol=1e-12)
    assert float(unbiased(x).abs().max()) == 0.0
    for line in (biased, unbiased):
        assert all(torch.equal(line.params[name], tensor) for name, tensor in network.params.items())


def test_the_anchors_are_copies():
    network, x = network_of(smooth_mlp, readout=None), normal(4, 6)
    at = moved(network)
    line, before = linearize(network, at), None
    before = line(x)
    for tensor in at.values():
        tensor.zero_()
    assert torch.equal(line(x), before)


class EveryRule(nn.Module):
    """Layers with a rule of their own, some in unusual settings or used in unusual ways."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence = nn.Sequential(
            nn.Conv1d(2, 4, 3, padding="same", groups=2), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
        )
        self.image = nn.Sequential(
            nn.BatchNorm2d(1), nn.Conv2d(1, 4, 3, stride=2, padding=1, padding_mode="circular", bias=False), nn.GELU(),
            nn.Conv2d(4, 4, 3, groups=4, dilation=2, padding=2), nn.BatchNorm2d(4, affine=False), nn.MaxPool2d(2),
        )  # fmt: skip
        self.volume = nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Tanh())
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4))
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.sequence(x.flatten(1).unflatten(1, (2, 32))).mean(-1)
        second = self.image(x).flatten(1)
        third = self.volume(x.unflatten(1, (1, 1))[:, :, :, :4, :4].expand(-1, -1, 2, -1, -1)).flatten(1)[:, :4]
        shared = self.linear(self.linear(first)) @ self.linear.weight * self.scale  # twice, and by its weight alone
        single = torch.stack([self.linear(row) for row in third])  # without a batch
        return self.head(torch.cat([first, second[:, :4], shared, single], 1))


def test_rules_agree_with_the_dense_jacobian():
    network, x = trained_statistics(network_of(EveryRule, readout=None)), normal(3, 1, 8, 8)

    def forward(params):
        return network(x, params)

    jacobian = torch.func.jacrev(forward)(network.params)
    params = moved(network)
    wanted = network(x)
    for name, part in jacobian.items():
        wanted = wanted + torch.tensordot(part, params[name] - network.params[name], params[name].dim())
    line = linearize(network)
    assert float((line(x, params) - wanted).abs().max() / wanted.abs().max()) < 1e-13
    found = torch.func.jacrev(lambda given: line(x, given))(params)
    for name, part in jacobian.items():
        assert float((found[name] - part).abs().max() / part.abs().max()) < 1e-12, name


# ---- the papers' networks and other people's -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lenet", "vit"])
def test_networks_of_the_papers(name):
    settings = {"depth": 1, "width": 24} if name == "vit" else {}
    network, x = network_of(lambda: builder(name)(**settings)), normal(2, 1, 32, 32)
    params = moved(network, 0.01)
    assert torch.allclose(linearize(network)(x, params), taylor(network, x, params), rtol=1e-10)


class FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_all, self.head = nn.Linear(4, 12), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in self.to_all(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


class MultiheadAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def transformer() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1, enable_nested_tensor=False)


def switches() -> list[bool]:
    kernels = torch.backends.cuda
    return [
        kernels.math_sdp_enabled(), kernels.flash_sdp_enabled(), kernels.mem_efficient_sdp_enabled(),
        kernels.cudnn_sdp_enabled(), torch.backends.mha.get_fastpath_enabled(),
    ]  # fmt: skip


@pytest.mark.parametrize("build", [FusedAttention, MultiheadAttention, transformer], ids=lambda build: build.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_attention_is_computed_plainly_and_switched_back(build, dtype):
    network = network_of(build, readout=None).to(torch.device("cpu"), dtype)
    x, before = normal(3, 5, 4, dtype=dtype), switches()
    params = {name: tensor.to(dtype) for name, tensor in moved(network, 1e-3).items()}
    module = linearize(network).with_params(params).as_module()
    outputs = module(x)
    outputs.sum().backward()
    assert switches() == before == [True] * 5
    with torch.no_grad():
        assert torch.allclose(module(x), network(x, params), atol=1e-4)
        assert torch.equal(module(x), outputs)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in module.parameters())
    if dtype == torch.float64:
        assert abs(residual_slope(network, x) - 2) < 0.05


def test_attention_is_switched_back_after_an_error():
    line, before = linearize(network_of(FusedAttention, readout=None)), switches()
    with pytest.raises(RuntimeError):
        line(normal(3, 5, 7))
    assert switches() == before


def test_attention_is_plain_where_the_user_asked_for_a_fused_kernel():
    network, x = network_of(FusedAttention, readout=None), normal(3, 5, 4)
    wanted, line = network(x), linearize(network)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert torch.allclose(line(x), wanted, atol=1e-12)
        assert switches() == [False, True, False, False, True]


def test_threads_do_not_disturb_one_another():
    network, x, before = network_of(FusedAttention, readout=None), normal(3, 5, 4), switches()
    modules, wanted = [linearize(network).as_module() for _ in range(4)], network(x)
    failures: list[Exception] = []

    def work(module: nn.Module) -> None:
        try:
            for _ in range(50):
                outputs = module(x)
                outputs.sum().backward()
                assert torch.allclose(outputs, wanted, atol=1e-12)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert switches() == before
    with forward_ad.dual_level():  # no level was left open
        pass


class TiedAutoencoder(nn.Module):
    """Two names for one weight, and a weight used by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward, self.again = nn.Linear(4, 4), nn.Linear(4, 4), nn.Embedding(4, 4)
        self.outward.weight = self.inward.weight
        self.again.weight = self.inward.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inward(x)) + self.again(torch.tensor([1, 2, 3]))
        return F.linear(torch.tanh(self.outward(hidden)), self.inward.weight.T)


def test_tied_weights_are_one_parameter_under_all_names():
    network, x = network_of(TiedAutoencoder, readout=None), normal(3, 4)
    params = moved(network)
    assert list(params) == ["inward.weight", "inward.bias", "outward.bias"]
    module = linearize(network).with_params(params).as_module()
    assert torch.allclose(module(x), taylor(network, x, params), atol=1e-12)
    assert module.outward.weight is module.inward.weight
    original = network.as_module()
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in original.named_parameters()]
    assert original.state_dict().keys() <= module.state_dict().keys()
    assert abs(residual_slope(network, x) - 2) < 0.05


def test_parametrised_and_recurrent_layers():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(3, 4, batch_first=True)
            self.head = nn.Linear(4, 2)
            parametrize.register_parametrization(self.head, "weight", nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cells(x)[0][:, -1])

    network, x = network_of(Recurrent, readout=None), normal(2, 5, 3)
    params = moved(network)
    assert "head.parametrizations.weight.original" in params
    line = linearize(network)
    assert torch.allclose(line(x, params), taylor(network, x, params), atol=1e-12)
    copy.deepcopy(line.module)  # no tensor of the call is left in it


def test_a_module_of_timm():
    timm = pytest.importorskip("timm")
    x = normal(2, 3, 32, 32)
    for name, settings in (("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 1}), ("resnet10t", {})):
        network = network_of(
            lambda name=name, settings=settings: timm.create_model(name, num_classes=3, **settings), readout=None
        )
        params = moved(network, 1e-3)
        line = linearize(network)
        assert torch.allclose(line(x, params), taylor(network, x, params), rtol=1e-9, atol=1e-12)
        names = [name for name, _ in line.as_module().named_parameters()]
        assert names == [name for name, _ in network.as_module().named_parameters()]


def test_a_module_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    network = network_of(lambda: transformers.BertModel(transformers.BertConfig(**sizes)), readout=None)
    x = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    assert abs(residual_slope(network, x, lambda outputs: outputs.pooler_output, largest=-3) - 2) < 0.05
    module = linearize(network).as_module()
    outputs = module(**x)
    assert type(outputs) is type(network(x))
    outputs.last_hidden_state.square().sum().backward()
    assert module.embeddings.word_embeddings.weight.grad is not None


# ---- inputs and outputs of other kinds -----------------------------------------------------------------------------


@dataclasses.dataclass
class Answer:
    logits: Tensor
    length: int


torch.export.register_dataclass(Answer)


class Structured(nn.Module):
    def __init__(self, kind: str = "dict") -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(6, 2), kind

    def forward(self, x: Tensor):
        outputs = torch.tanh(self.linear(x))
        return {
            "dict": {
                "logits": outputs,
                "more": [outputs.square(), None, "words"],
                "places": outputs.argmax(1),
                "input": x,
            },
            "tuple": (outputs, x.sum()),
            "dataclass": Answer(outputs, len(x)),
            "opaque": threading.Lock(),
        }[self.kind]


@pytest.mark.parametrize("biased", [True, False])
def test_structures_of_outputs(biased):
    network, x = network_of(Structured, readout=None), normal(3, 6)
    plain = Network.of(nn.Sequential(nn.Linear(6, 2), nn.Tanh()).double())
    plain = plain.with_params({name.replace("linear", "0"): tensor for name, tensor in network.params.items()})
    params = moved(network)
    renamed = {name.replace("linear", "0"): tensor for name, tensor in params.items()}
    found = linearize(network, biased=biased).with_params(params).as_module()(x)
    assert torch.allclose(found["logits"], linearize(plain, biased=biased)(x, renamed), atol=1e-14)
    slope = 2 * network(x) * linearize(plain, biased=False)(x, renamed)
    constant = network(x).square() if biased else 0.0
    assert torch.allclose(found["more"][0], constant + slope, atol=1e-14)
    assert found["more"][1:] == [None, "words"]
    assert torch.equal(found["places"], network(x).argmax(1))
    assert torch.equal(found["input"], x)


def test_tuples_and_registered_dataclasses():
    x = normal(3, 6)
    outputs, total = linearize(network_of(lambda: Structured("tuple"), readout=None))(x)
    assert outputs.shape == (3, 2)
    assert torch.equal(total, x.sum())
    answer = linearize(network_of(lambda: Structured("dataclass"), readout=None)).as_module()(x)
    assert isinstance(answer, Answer)
    assert torch.equal(answer.logits, outputs)
    assert answer.length == 3


def test_structures_within_transformations():
    network, x = network_of(Structured, readout=None), normal(3, 6)
    line = linearize(network)
    stack = {name: torch.stack([tensor, tensor + 1]) for name, tensor in network.params.items()}

    def some(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = torch.func.functional_call(line.module, (params, line.buffers), (x,))
        assert outputs["more"][1:] == [None, "words"]
        return outputs["logits"], outputs["input"]

    found, inputs = torch.func.vmap(some)(stack)
    assert torch.equal(inputs, x.expand(2, *x.shape))
    assert torch.allclose(found[1], line(x, {name: tensor[1] for name, tensor in stack.items()}), atol=1e-14)


@pytest.mark.parametrize("by_name", [True, False])
def test_inputs_by_name_and_by_position(by_name):
    network, values, tokens = network_of(TwoInputs), normal(4, 5), torch.tensor([0, 3, 3, 6])
    x = {"values": values, "tokens": tokens} if by_name else (values, tokens)
    params = moved(network)
    assert torch.allclose(linearize(network)(x, params), taylor(network, x, params), atol=1e-13)


def test_the_readout_is_kept():
    network, x = network_of(smooth_mlp, readout="margin"), normal(4, 6)
    line = linearize(network)
    assert line.readout == "margin"
    assert torch.allclose(line(x), network(x), atol=1e-14)
    assert torch.allclose(line.read("sum")(x), network.read("sum")(x), atol=1e-14)


def test_coupled_inputs_are_passed_one_at_a_time():
    with forked_rng(0):
        network = Network.of(batchnorm_convnet().double(), batchnorm="train")
    line, x, params = linearize(network), normal(3, 1, 6, 6), None
    params = moved(network)
    assert line.couples_inputs
    each = torch.cat([taylor(network, one[None], params) for one in x])
    assert torch.allclose(line(x, params), each, atol=1e-12)


# ---- an ordinary module ----------------------------------------------------------------------------------------------


def test_names_are_those_of_the_original():
    network = network_of(batchnorm_convnet, readout=None)
    at = moved(network)
    original = network.as_module()
    for line, anchors in ((linearize(network), 1), (linearize(network, at, biased=False), 2)):
        module = line.as_module()
        assert list(line.params) == list(network.params)
        assert [name for name, _ in module.named_parameters()] == [name for name, _ in original.named_parameters()]
        new = set(module.state_dict()) - set(original.state_dict())
        assert new == set(dict(module.named_buffers())) - set(dict(original.named_buffers()))
        assert len(new) == anchors * len(network.params)
        assert all(name.startswith(("linearized_at.", "linearized_from.")) for name in new)
        assert all(parameter.requires_grad for parameter in module.parameters())
    assert module.load_state_dict(original.state_dict(), strict=False).unexpected_keys == []


def test_a_loop_of_ones_own():
    network, x, y = network_of(smooth_mlp, readout=None), normal(8, 6), normal(8, 3, seed=1)
    module = linearize(network).as_module()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = (module(x) - y).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    params = {name: parameter.detach() for name, parameter in module.named_parameters()}
    assert torch.allclose(module(x).detach(), taylor(network, x, params), atol=1e-10)
    assert torch.equal(linearize(network)(x), linearize(network)(x, network.params))


def test_copies_and_state_dicts():
    network, x = network_of(batchnorm_convnet, readout=None), normal(2, 1, 6, 6)
    module = linearize(network).with_params(moved(network)).as_module()
    module(x).sum().backward()
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.allclose(twin(x), module(x))
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin(x), module(x))
    fresh = linearize(network_of(batchnorm_convnet, seed=9, readout=None)).as_module()
    fresh.load_state_dict(module.state_dict())  # the anchors are part of it
    assert torch.equal(fresh(x), module(x))
    assert module.to(torch.float32)(x.float()).dtype == torch.float32


def test_batchnorm_stays_frozen_and_dropout_off():
    network, x = trained_statistics(network_of(batchnorm_convnet, readout=None)), normal(5, 1, 6, 6)
    module = linearize(network).as_module()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    in_training, in_evaluation = module.train()(x), module.eval()(x)
    assert torch.equal(in_training, in_evaluation)
    assert torch.allclose(in_training, network(x), atol=1e-12)
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


def test_layers_changed_by_others_and_modules_in_training():
    module = batchnorm_convnet().double().train()
    module[0].forward = lambda x: 2 * type(module[0]).forward(module[0], x)
    module[4].forward = lambda x: 3 * x.flatten(1)
    held = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    buffers = {name: tensor.clone() for name, tensor in module.named_buffers()}
    line, x = linearize(Network(module, held, buffers)), normal(2, 1, 6, 6)
    assert torch.allclose(line(x), module.eval()(x), atol=1e-12)


def test_nothing_else_is_touched():
    network, x = network_of(relu_convnet, readout=None), normal(2, 1, 8, 8)
    before, states = fingerprint({**network.params, **network.buffers}), global_states()
    module = linearize(network).as_module()
    module(x).sum().backward()
    assert fingerprint({**network.params, **network.buffers}) == before
    assert global_states() == states
    assert "forward" not in vars(network.module[0])


# ---- stacks and transformations --------------------------------------------------------------------------------------


@every_network
def test_a_stack_equals_its_members(build):
    family = Family.initialised(build)
    stack, x = family.draw(3, seed=0, run=CPU64).read("first"), normal(4, *SHAPES[build])
    params = {
        name: tensor + 0.1 * normal(*tensor.shape, seed=i) for i, (name, tensor) in enumerate(stack.params.items())
    }
    line = linearize(stack).with_params(params)
    outputs = line(x)
    for index in range(3):
        one = linearize(stack.member(index)).with_params({name: tensor[index] for name, tensor in params.items()})
        assert torch.allclose(outputs[index], one(x), atol=1e-12)
        assert torch.allclose(line.member(index)(x), one(x), atol=1e-12)
        assert torch.allclose(line.slice(index, index + 1)(x)[0], one(x), atol=1e-12)
        assert torch.allclose(line.member(index).as_module()(x).flatten(1)[:, 0], one(x), atol=1e-12)
    assert line.to(torch.device("cpu"), torch.float32)(x.float()).dtype == torch.float32


def test_derivatives_of_the_linearisation():
    network, x = network_of(smooth_mlp), normal(3, 6)
    line = linearize(network).with_params(moved(network))
    direction = direction_of(network, seed=40)
    assert torch.allclose(weight_jvp(line, x, direction)[1], weight_jvp(network, x, direction)[1], atol=1e-12)
    cotangent = normal(3, seed=2)
    found, wanted = weight_vjp(line, x, cotangent), weight_vjp(network, x, cotangent)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-12) for name in wanted)
    step = 1e-6
    rows = []
    for unit in torch.eye(6, dtype=torch.float64):
        rows.append((line(x + step * unit) - line(x - step * unit)) / (2 * step))
    assert torch.allclose(input_gradient(line, x), torch.stack(rows, 1), atol=1e-8)


def test_a_family_of_linearised_modules():
    def build() -> nn.Module:
        return linearize(Network.of(relu_convnet())).as_module()

    x, run = normal(4, 1, 8, 8), CPU64
    family = Family.initialised(build, name="linearised")
    stack = family.draw(3, seed=0, run=run)
    for name in family.template.params:
        assert torch.equal(stack.params[name], stack.buffers[f"linearized_at.{name}"])
    outputs = stack(x)
    assert not torch.allclose(outputs[0], outputs[1])
    point = Family.point(stack.member(1).as_module()).draw(1, seed=0, run=run)
    assert torch.allclose(point(x)[0], outputs[1], atol=1e-12)


# ---- training ----------------------------------------------------------------------------------------------------------


def regression(build=smooth_mlp, samples: int = 12) -> tuple[Network, Arrays, Tensor, Tensor]:
    """One output, a full batch, and the kernel at the start."""

    def single() -> nn.Module:
        return nn.Sequential(build(), nn.Linear(3, 1))

    network, x, y = network_of(single, readout=None), normal(samples, 6), normal(samples, seed=7)
    jacobian = weight_jacobian(network.read("first"), x)
    return network, Arrays({"train": (x, y)}, torch.float64), jacobian @ jacobian.T, network(x).flatten()


@pytest.mark.parametrize("biased", [True, False])
def test_gradient_descent_has_its_closed_form(biased):
    network, task, kernel, start = regression()
    x, y = task.splits["train"]
    start = start if biased else torch.zeros_like(start)
    rate, steps = 0.5, 40
    recipe = Recipe("gd", rate=rate, schedule="constant", steps=steps, loss="squared")
    trained = fit(linearize(network, biased=biased), task, recipe, seed=0, run=CPU64).networks
    shrink = torch.eye(len(y), dtype=torch.float64) - 2 * rate / len(y) * kernel  # the loss is a mean of squares
    assert float(torch.linalg.eigvalsh(shrink).abs().max()) < 1.5
    wanted = y - torch.linalg.matrix_power(shrink, steps) @ (y - start)
    assert torch.allclose(trained(x).flatten(), wanted, rtol=1e-10, atol=1e-10)
    assert float((wanted - start).norm()) > 0.1


def test_small_steps_follow_the_gradient_flow():
    network, task, kernel, start = regression()
    x, y = task.splits["train"]
    time, errors = 10.0, []
    wanted = y - torch.linalg.matrix_exp(-2 * time / len(y) * kernel) @ (y - start)
    for steps in (400, 800):
        recipe = Recipe("gd", rate=time / steps, schedule="constant", steps=steps, loss="squared")
        found = fit(linearize(network), task, recipe, seed=0, run=CPU64).networks(x).flatten()
        errors.append(float((found - wanted).norm() / (wanted - start).norm()))
    assert errors[0] < 0.01
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.1)  # Euler's method is of first order


def images(build, samples: int = 24) -> Arrays:
    labels = torch.arange(samples) % 2
    return Arrays({"train": (normal(samples, *SHAPES[build]), labels)}, torch.float64)


@pytest.mark.parametrize("build", [relu_convnet, batchnorm_convnet, AttentionNetwork], ids=lambda build: build.__name__)
@pytest.mark.parametrize("way", ["stack", "shifts"])
def test_a_stack_trains_like_a_loop(build, way):
    stack = linearize(Family.initialised(build).draw(2, seed=0, run=CPU64))
    recipe = Recipe(rate=0.1, momentum=0.9, steps=20, batch=8, batchnorm="train")
    loop, other = (fit(stack, images(build), recipe, seed=1, run=CPU64, way=each) for each in ("loop", way))
    for name, tensor in loop.networks.params.items():
        assert torch.allclose(other.networks.params[name], tensor, rtol=0, atol=1e-9)
    for name, buffer in stack.buffers.items():
        assert torch.equal(loop.networks.buffers[name], buffer)
        assert torch.equal(other.networks.buffers[name], buffer)
    assert float(loop.distance.min()) > 0.05
    assert torch.allclose(loop.losses, other.losses, atol=1e-9)


def test_members_train_on_several_cores():
    stack = linearize(Family.initialised(relu_convnet).draw(4, seed=0, run=CPU64))
    recipe = Recipe(rate=0.1, steps=20, batch=8)
    one_core = fit(stack, images(relu_convnet), recipe, seed=1, run=CPU64).networks
    torch.set_num_threads(2)
    try:
        two_cores = fit(stack, images(relu_convnet), recipe, seed=1, run=CPU64).networks
    finally:
        torch.set_num_threads(1)
    for name, tensor in one_core.params.items():
        assert torch.allclose(two_cores.params[name], tensor, rtol=0, atol=1e-12)


def test_first_steps_are_those_of_the_network():
    network, task = network_of(relu_convnet, readout=None), images(relu_convnet)
    recipe = Recipe(rate=1e-4, steps=5, batch=8, schedule="constant")
    plain, line = (fit(each, task, recipe, seed=0, run=CPU64) for each in (network, linearize(network)))
    assert torch.allclose(line.losses, plain.losses, atol=1e-5)
    for name, start in network.params.items():
        away, also = (each.networks.params[name] - start for each in (plain, line))
        assert float((away - also).norm()) < 0.01 * float(away.norm())


def test_evaluation_of_a_stack():
    stack, task = linearize(Family.initialised(relu_convnet).draw(2, seed=0, run=CPU64)), images(relu_convnet)
    x, y = task.splits["train"]
    found = evaluation(stack, task, "train", run=CPU64)
    outputs = stack(x)
    assert torch.equal(found.accuracy, (outputs.argmax(-1) == y).double().mean(1))
    wanted = torch.stack([F.cross_entropy(each, y) for each in outputs])
    assert torch.allclose(found.loss, wanted, atol=1e-12)


def test_half_precision_products():
    network = network_of(relu_convnet, readout=None).to(torch.device("cpu"), torch.float32)
    recipe = Recipe(rate=0.1, steps=5, batch=8)
    data = {"train": (normal(24, 1, 8, 8, dtype=torch.float32), torch.arange(24) % 2)}
    exact, coarse = (
        fit(linearize(network), Arrays(data), recipe, seed=0, run=Run(device="cpu", precision=precision)).losses
        for precision in ("float32", "bfloat16")
    )
    assert torch.allclose(coarse, exact, atol=0.02)
    assert not torch.equal(coarse, exact)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [None, 2])
def test_weights_come_back_from_a_file(tmp_path, members):
    family, path = Family.initialised(batchnorm_convnet), tmp_path / "line.safetensors"
    network = family.draw(2, seed=0, run=CPU)
    network = network if members else network.member(0)
    params = {name: tensor + 1 for name, tensor in network.params.items()}
    save_linearized(linearize(network).with_params(params), path)
    loaded = load_linearized(path, linearize(network))
    assert all(torch.equal(loaded.params[name], tensor) for name, tensor in params.items())
    assert all(torch.equal(loaded.buffers[name], tensor) for name, tensor in linearize(network).buffers.items())
    with weights.safetensors.safe_open(str(path), "pt") as file:
        metadata = file.metadata()
    assert metadata["kind"] == "linearized"
    assert metadata["biased"] == "True"
    assert metadata["expansion_point"] == metadata["origin"] == fingerprint(network.params)


def test_files_of_other_anchors_are_refused(tmp_path):
    path, network = tmp_path / "line.safetensors", network_of(batchnorm_convnet, readout=None)
    at = moved(network)
    save_linearized(linearize(network, at, biased=False), path)
    load_linearized(path, linearize(network, at, biased=False))
    other = network_of(batchnorm_convnet, seed=1, readout=None)
    for wrong, what in (
        (linearize(other, at, biased=False), "origin"),
        (linearize(network, biased=False), "expansion_point"),
        (linearize(network, at), "biased False instead of True"),
        (linearize(trained_statistics(network), at, biased=False), "statistics"),
    ):
        with pytest.raises(ValueError, match=f"must be relative to the anchors of this network.*{what}.*Linearise"):
            load_linearized(path, wrong)


# ---- errors --------------------------------------------------------------------------------------------------------------


def test_errors_of_linearize():
    network = network_of(smooth_mlp, readout=None)
    with pytest.raises(ValueError, match=r"network must be a Network, got Linear\. Pass Network"):
        linearize(nn.Linear(2, 1))
    with pytest.raises(ValueError, match="is linearised already"):
        linearize(linearize(network))
    with pytest.raises(ValueError, match="has no weights"):
        linearize(Network.of(nn.ReLU()))
    with pytest.raises(ValueError, match="The weights in at must fit the network: 5 missing"):
        linearize(network, {"1.weight": network.params["1.weight"]})


def test_errors_of_calls():
    with pytest.raises(ValueError, match=r"must be a tensor, or tensors in .*type lock.*register_dataclass"):
        linearize(network_of(lambda: Structured("opaque"), readout=None))(normal(3, 6))
    bag = linearize(Network.of(nn.EmbeddingBag(5, 3)))
    with pytest.raises(ValueError, match=r"must have a forward-mode derivative.*_embedding_bag.*Replace"):
        bag(torch.tensor([[0, 1]]))

    class Unfinished(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("later")

    with pytest.raises(NotImplementedError, match="later"):
        linearize(Network.of(Unfinished()))(torch.ones(1))


def test_errors_of_files(tmp_path):
    network = Network.of(nn.Linear(2, 1))
    with pytest.raises(ValueError, match="network must be linearised, but it is not"):
        save_linearized(network, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"path must end in \.safetensors, got .*x\.pt"):
        save_linearized(linearize(network), tmp_path / "x.pt")
    weights.save(network.params, tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="must hold a linearised network's weights"):
        load_linearized(tmp_path / "plain.safetensors", linearize(network))
    with pytest.raises(ValueError, match="must exist"):
        load_linearized(tmp_path / "none.safetensors", linearize(network))
