"""The Gram engine against dense Jacobians, closed forms, and itself after a kill."""

import dataclasses
import logging
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev

from biascope.derivatives.gradients import weight_vjp
from biascope.families.network import Network
from biascope.kernels import panel as gram_panel
from biascope.kernels.gram import Engine, tangent_gram
from biascope.kernels.panel import Panel
from biascope.kernels.plan import Sizes, kernel_parts, share
from biascope.kernels.proof import Proof
from biascope.kernels.rules import possible_rules
from biascope.kernels.uses import layer_uses
from biascope.networks import builder
from biascope.runs.run import Run

EXACT = Run(device="cpu", precision="float64")


def dense_kernel(network: Network, x, other=None) -> torch.Tensor:
    """(p, n, m): K = J Jᵀ of each output, one sample at a time by reverse mode on the module itself."""
    module, params = network.module, {name: tensor.double() for name, tensor in network.params.items()}
    buffers = {n: t.double() if t.is_floating_point() else t for n, t in network.buffers.items()}

    def jacobian(inputs):
        def outputs(params, one):
            given = one if isinstance(one, tuple) else (one,)
            found = functional_call(module, (params, buffers), given)
            return found.reshape(-1)[:1] if network.readout == "first" else found.reshape(-1)

        rows = []
        for index in range(len(inputs)):
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                parts = jacrev(outputs)(params, inputs[index : index + 1].clone())
            rows.append(torch.cat([part.reshape(len(part), -1) for part in parts.values()], 1))
        return torch.stack(rows, 1)  # (p, n, parameters)

    first = jacobian(x)
    second = first if other is None else jacobian(other)
    return first @ second.mT


class Twice(nn.Module):
    """One layer called twice, with something else between."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(9, 9), nn.Linear(18, 1)

    def forward(self, x):
        x = torch.tanh(self.conv(torch.tanh(self.conv(x))))
        return self.head(self.linear(F.gelu(self.linear(x.flatten(2)))).flatten(1))


class Raw(nn.Module):
    """Parameters that enter by themselves, one of them into a layer's weight, and a scalar one."""

    def __init__(self):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.randn(4)), nn.Parameter(torch.tensor(1.5))
        self.low, self.high = nn.Parameter(torch.randn(5, 2)), nn.Parameter(torch.randn(2, 4))
        self.head = nn.Linear(5, 1)

    def forward(self, x):
        return self.head(torch.tanh(F.linear(x * self.scale + self.shift, self.low @ self.high)))


class Tied(nn.Module):
    """Words in, words out, by one matrix; padding has no gradient."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(7, 6, padding_idx=2), nn.LayerNorm(6)
        self.body = nn.Linear(6, 6)

    def forward(self, ids):
        hidden = self.norm(torch.tanh(self.body(self.words(ids))))
        return F.linear(hidden.mean(1), self.words.weight)[:, :1]


class TimeFirst(nn.Module):
    """A linear layer whose batch is the second axis, and a convolution whose batch also holds positions."""

    def __init__(self):
        super().__init__()
        self.linear, self.conv, self.head = nn.Linear(4, 4), nn.Conv2d(1, 2, 2), nn.Linear(2, 1)

    def forward(self, x):  # (n, 5, 4)
        mixed = torch.tanh(self.linear(x.transpose(0, 1))).transpose(0, 1)
        pieces = self.conv(mixed.reshape(-1, 1, 2, 2))  # (n·5, 2, 1, 1)
        return self.head(torch.tanh(pieces).reshape(len(x), 5, 2).mean(1))


class Overwriting(nn.Module):
    """Works in place on what layers gave, and on its input."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        x.mul_(2)
        hidden = self.first(x)
        hidden += 1
        side = self.second(hidden.tanh_())
        return self.third(side.relu_())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x):
        query, key, value = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


def sequential(*layers, flat=True):
    return nn.Sequential(*layers, *([nn.Flatten(), nn.LazyLinear(1)] if flat else []))


def images(*shape):
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


NETWORKS = {
    "linear": (lambda: nn.Linear(5, 1), images(5)),
    "mlp": (lambda: nn.Sequential(nn.Linear(50, 60), nn.GELU(), nn.Linear(60, 1)), images(50)),
    "tokens": (lambda: sequential(nn.Linear(5, 3), nn.Tanh(), nn.LayerNorm(3)), images(6, 5)),
    "conv1d": (lambda: sequential(nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2), nn.Tanh()), images(2, 9)),
    "conv2d": (lambda: sequential(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 2)), images(2, 6, 6)),
    "conv2d, few positions": (
        lambda: sequential(nn.Conv2d(64, 60, 3, padding=1), nn.Tanh(), nn.Conv2d(60, 60, 3, padding=1, bias=False)),
        images(64, 2, 1),
    ),
    "strided": (lambda: sequential(nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 2)), nn.Tanh()), images(2, 7, 8)),
    "dilated": (
        lambda: sequential(nn.Conv2d(64, 64, (1, 2), dilation=(1, 2), padding=(0, 1)), nn.Tanh()),
        images(64, 1, 2),
    ),
    "same": (
        lambda: sequential(nn.Conv2d(2, 4, (4, 3), padding="same", dilation=(1, 2)), nn.Tanh()),
        images(2, 5, 6),
    ),
    "same, few positions": (lambda: sequential(nn.Conv2d(3, 3, 3, padding="same"), nn.Tanh()), images(3, 1, 2)),
    "circular": (
        lambda: sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh()),
        images(2, 5, 5),
    ),
    "grouped": (lambda: sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh()), images(4, 5, 5)),
    "depthwise": (lambda: sequential(nn.Conv2d(3, 6, 3, groups=3, padding=1), nn.Tanh()), images(3, 4, 4)),
    "grouped 1d": (lambda: sequential(nn.Conv1d(4, 4, 3, groups=4, padding="same"), nn.Tanh()), images(4, 5)),
    "batchnorm": (lambda: sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Tanh()), images(2, 4, 4)),
    "batchnorm 1d": (lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)), images(5)),
    "groupnorm": (lambda: sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Tanh()), images(2, 4, 4)),
    "layernorm of images": (lambda: sequential(nn.LayerNorm((2, 3, 3)), nn.Tanh()), images(2, 3, 3)),
    "instance norm": (lambda: sequential(nn.InstanceNorm2d(2, affine=True), nn.Tanh()), images(2, 3, 3)),
    "transposed": (lambda: sequential(nn.ConvTranspose2d(2, 3, 2), nn.Tanh()), images(2, 3, 3)),
    "conv3d": (lambda: sequential(nn.Conv3d(1, 2, 2), nn.Tanh()), images(1, 3, 3, 3)),
    "bilinear prelu": (lambda: nn.Sequential(nn.Linear(5, 4), nn.PReLU(4), nn.Linear(4, 1)), images(5)),
    "called twice": (Twice, images(2, 3, 3)),
    "raw": (Raw, images(4)),
    "tied": (Tied, torch.tensor([[0, 1, 1, 2], [3, 4, 2, 2], [6, 5, 1, 0], [1, 1, 1, 6]])),
    "embedding": (lambda: sequential(nn.Embedding(2000, 3), nn.Tanh()), torch.tensor([[3, 4], [4, 4], [7, 3], [9, 8]])),
    "time first": (TimeFirst, images(5, 4)),
    "in place": (Overwriting, images(4)),
    "attention": (Attention, images(3, 8)),
    "fused attention": (Fused, images(3, 8)),
    "encoder": (
        lambda: sequential(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu")),
        images(3, 8),
    ),
    "recurrent": (Recurrent, images(4, 4)),
    "weight norm": (
        lambda: nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 1)),
        images(5),
    ),
}


def built(name: str) -> tuple[Network, torch.Tensor]:
    build, x = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = build().double().eval()
        module(x)  # lazy layers take their size
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.3)  # statistics other than 0 and 1
    return Network.of(module), x


# Torch warns of its own speed.
slow_torch = pytest.mark.filterwarnings("ignore:(Using padding='same' with even kernel|There is a performance drop)")


@slow_torch
@pytest.mark.parametrize(
    "name", ["conv1d", "conv2d", "conv2d, few positions", "dilated", "same", "tokens", "embedding"]
)
def test_all_rules_that_a_layer_allows_agree(name):
    network, x = built(name)
    uses, tried = layer_uses(network, x), set()
    for parameter, tensor in network.params.items():
        shares = {
            rule.name: share(rule, rule.held(uses.of(parameter), len(x)))
            for rule in possible_rules(uses, parameter, len(x), tensor.shape)
        }
        tried |= set(shares)
        for found in shares.values():
            assert torch.allclose(found, shares["per sample"], atol=1e-13 * float(found.abs().max()))
    expected = {"tokens": {"by position"}, "embedding": {"by id"}, "conv1d": {"by position"}}
    assert tried >= expected.get(name, {"by position", "by shift"}) | {"per sample"}


@slow_torch
@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_equals_the_dense_jacobian(name):
    network, x = built(name)
    kernel = tangent_gram(network, x, run=EXACT)
    expected = dense_kernel(network, x)[0]
    assert torch.allclose(kernel.matrix, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))
    assert kernel.error <= 1e-12
    assert [part.name for part in kernel.parts] == list(network.params)


def rules_of(name: str, **settings) -> dict[str, str]:
    network, x = built(name)
    return {part.name: part.rule.name for part in tangent_gram(network, x, run=EXACT, **settings).parts}


def test_rules_are_those_that_the_layers_allow():
    assert rules_of("mlp")["0.weight"] == "Hadamard"
    assert rules_of("called twice")["conv.weight"] == rules_of("called twice")["linear.weight"] == "per sample"
    assert rules_of("embedding")["0.weight"] == "by id"
    raw = rules_of("raw")
    assert {raw[name] for name in ("shift", "scale", "low", "high")} == {"by differentiation"}
    assert rules_of("time first")["linear.weight"] == "by differentiation"  # its rule does not pass the proof
    assert rules_of("time first")["conv.weight"] != "by differentiation"
    assert rules_of("attention")["attention.in_proj_weight"] == "by differentiation"


class NearlyConstant(nn.Module):
    """Time first, with slopes that hardly differ from row to row, and waves in float32: rules may then be off by a percent."""

    def __init__(self):
        super().__init__()
        self.linear, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):  # (n, 8, 4)
        waves = torch.arange(8, dtype=torch.float32).sin()[:, None, None]
        rows = 0.01 * (x.transpose(0, 1) + waves)
        return self.head(torch.tanh(self.linear(rows)).mean(0))


def test_rows_of_positions_are_never_taken_for_samples():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network.of(NearlyConstant().double())
    x = images(8, 4)[:4]  # as many positions as samples, twice
    kernel, expected = tangent_gram(network, x, run=EXACT), dense_kernel(network, x)[0]
    assert torch.allclose(kernel.matrix, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))
    rules = {part.name: part.rule.name for part in kernel.parts}
    assert rules["linear.bias"] == "by differentiation" != rules["head.bias"]


def test_a_compiled_network_is_recorded_as_it_was_written(caplog):
    network, x = built("mlp")
    compiled = Network.of(torch.compile(network.as_module(), backend="eager"))
    kernel, expected = tangent_gram(compiled, x, run=EXACT), tangent_gram(network, x, run=EXACT)
    assert torch.equal(kernel.matrix, expected.matrix)
    assert [part.rule.name for part in kernel.parts] == [part.rule.name for part in expected.parts]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]  # as the compiler of itself


def test_rules_are_chosen_by_size_and_device():
    network, x = Network.of(builder("resnet18")()).read("first"), images(1, 32, 32)
    names = ["stage1.0.residual.conv1.weight", "stage4.1.residual.conv2.weight", "head.weight"]
    proof = Proof.of(network, x, parameters=names)

    def rules(samples, device):
        pairs = samples * (samples + 1) / 2
        parts, _ = kernel_parts(proof, x, pairs=pairs, samples=samples, device=device)
        return [part.rule.name for part in parts]

    assert rules(32, "cpu") == ["per sample", "by shift", "per sample"]
    assert rules(60_000, "cuda") == ["per sample", "by position", "per sample"]


@pytest.mark.parametrize(
    "name", ["conv2d", "called twice", "tied", "raw", "strided", "conv2d, few positions", "embedding"]
)
def test_small_pieces_give_the_same(name):
    network, x = built(name)
    whole = tangent_gram(network, x, run=EXACT).matrix
    tiny = Sizes(chunk=3, kept=40, block=60)  # several passes, blocks and tiles
    for panels in (1, 3):
        pieces = tangent_gram(network, x, panels=panels, sizes=tiny, run=EXACT).matrix
        assert torch.allclose(pieces, whole, rtol=0, atol=1e-13 * float(whole.abs().max()))
        assert torch.equal(pieces, pieces.T)


@pytest.mark.parametrize("name", ["conv2d", "called twice", "tied", "raw", "batchnorm", "fused attention"])
def test_a_rectangular_kernel_is_a_part_of_the_whole(name):
    network, x = built(name)
    expected = dense_kernel(network, x[:3], x[1:])[0]
    for panels, sizes in ((1, None), (2, Sizes(2, 40, 60))):
        found = tangent_gram(network, x[:3], x[1:], panels=panels, sizes=sizes, run=EXACT).matrix
        assert torch.allclose(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


def test_several_outputs_each_or_their_trace():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network.of(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double())
    x = images(5)
    expected = dense_kernel(network, x)
    assert torch.allclose(tangent_gram(network, x, kernel="each", run=EXACT).matrix, expected, atol=1e-12)
    assert torch.allclose(
        tangent_gram(network, x, kernel="trace", panels=2, run=EXACT).matrix, expected.sum(0), atol=1e-12
    )
    assert torch.allclose(tangent_gram(network.read("first"), x, run=EXACT).matrix, expected[0], atol=1e-12)
    rectangular = tangent_gram(network, x[:3], x, kernel="each", run=EXACT).matrix
    assert torch.allclose(rectangular, expected[:, :3], atol=1e-12)
    with pytest.raises(ValueError, match=r"^The network must have one output per input, but has 3\. Choose a readout"):
        tangent_gram(network, x, run=EXACT)


def test_parameters_by_name_and_pattern_add_up():
    network, x = built("batchnorm")
    parts = [
        tangent_gram(network, x, parameters=names, run=EXACT).matrix
        for names in (["0.*"], ["1.weight", "1.bias"], ["4.*"])
    ]
    assert torch.allclose(sum(parts), tangent_gram(network, x, run=EXACT).matrix, atol=1e-12)
    with pytest.raises(
        ValueError, match=r"^parameters must name parameters of the network, but 'conv' matches none of its"
    ):
        tangent_gram(network, x, parameters=["conv"], run=EXACT)


def test_a_linear_model_gives_the_products_of_its_inputs():
    x = images(5)
    found = tangent_gram(Network.of(nn.Linear(5, 1, bias=False).double()), x, run=EXACT).matrix
    assert torch.allclose(found, x @ x.T, rtol=1e-14)


def arc_cosine_kernel(x: torch.Tensor) -> torch.Tensor:
    """Infinite width: f = √(2/m) Σ a_k relu(w_k·x), a, w ~ N(0, 1): K = 2(κ₁ + x·x' κ₀/…), by Cho and Saul (2009)."""
    lengths = x.norm(dim=1)
    cosine = (x @ x.T / (lengths[:, None] * lengths)).clamp(-1, 1)
    angle = torch.acos(cosine)
    first = lengths[:, None] * lengths * (torch.sin(angle) + (math.pi - angle) * cosine) / math.pi
    return first + x @ x.T * (math.pi - angle) / math.pi


class Wide(nn.Module):
    def __init__(self, width, generator):
        super().__init__()
        self.inner = nn.Parameter(torch.randn(width, 6, generator=generator, dtype=torch.float64))
        self.outer = nn.Parameter(torch.randn(1, width, generator=generator, dtype=torch.float64))

    def forward(self, x):
        return math.sqrt(2 / self.inner.shape[0]) * F.linear(F.linear(x, self.inner).relu(), self.outer)


def test_a_wide_network_approaches_the_arc_cosine_kernel_like_the_root_of_its_width():
    x = images(6)
    expected = arc_cosine_kernel(x)
    widths, errors = [64, 256, 1024, 4096], []
    for width in widths:
        draws = [
            tangent_gram(Network.of(Wide(width, torch.Generator().manual_seed(seed))), x, run=EXACT).matrix
            for seed in range(24)
        ]
        errors.append(math.sqrt(float((torch.stack(draws) - expected).square().mean())))
    slope = torch.tensor(errors).log2().diff().mean() / 2
    assert -0.6 < float(slope) < -0.4
    assert errors[-1] < 0.05 * float(expected.max())


@pytest.mark.parametrize(("precision", "limit"), [("float32", 1e-5), ("tf32", 1e-5), ("bfloat16", 2e-2)])
def test_the_error_of_a_precision_is_measured(precision, limit):
    network, x = built("conv2d")
    kernel = tangent_gram(network, x, run=Run(device="cpu", precision=precision))
    exact = tangent_gram(network, x, run=EXACT).matrix
    lengths = exact.diagonal().sqrt()
    actual = (kernel.matrix.double() - exact).abs() / (lengths[:, None] * lengths)
    proven = Proof.of(network, x).sets[0].places
    assert kernel.matrix.dtype == torch.float32
    assert 1e-9 < kernel.error < limit
    assert kernel.error == pytest.approx(float(actual[proven][:, proven].max()), rel=1e-6)


def test_samples_are_differentiated_in_full_precision_whatever_they_are_multiplied_in(monkeypatch):
    seen = []

    def watch(name):
        function = getattr(gram_panel, name)

        def watched(*args):
            seen.append(torch.backends.cuda.matmul.allow_tf32)
            return function(*args)

        monkeypatch.setattr(gram_panel, name, watched)

    watch("layer_uses")
    watch("_add_product")
    network, x = built("conv2d")
    tangent_gram(network, x, run=Run(device="cpu", precision="tf32"))
    assert seen[:2] == [False, True]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_plan_names_rules_operations_and_memory():
    network, x = built("raw")
    text = tangent_gram(network, x, run=EXACT).plan
    assert text.startswith("4 × 4 kernel; 1 pass over the samples")
    assert "by differentiation (is used outside of the known layers)" in text
    assert "head.weight" in text
    assert text.splitlines()[-1].startswith("all")


def test_the_global_state_and_the_inputs_are_left_alone():
    network, x = built("in place")
    before, state = x.clone(), torch.get_rng_state()
    tangent_gram(network, x, run=EXACT)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


class Mixing(nn.Module):
    """Samples of a batch see one another."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        return self.linear(x) * x.mean()


def test_of_a_network_that_mixes_samples_each_is_taken_alone():
    network, x = Network.of(Mixing().double()), images(4)
    with pytest.warns(UserWarning, match=r"^The network's outputs depend on the other samples of a batch"):
        found = tangent_gram(network, x, run=EXACT)
    assert torch.allclose(found.matrix, dense_kernel(network, x)[0], atol=1e-12)
    assert "samples of a batch influence one another" in found.plan


def test_batchnorm_in_train_mode_normalises_each_sample_alone():
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 1)).double()
    network, x = Network.of(module, batchnorm="train"), images(1, 4, 4)
    one = torch.ones(1, 1, dtype=torch.float64)
    gradients = [weight_vjp(network, x[i : i + 1], one) for i in range(len(x))]
    jacobian = torch.stack([torch.cat([part.flatten() for part in each.values()]) for each in gradients])
    assert torch.allclose(tangent_gram(network, x, run=EXACT).matrix, jacobian @ jacobian.T, atol=1e-12)


class Broken(nn.Module):
    """Overwrites what the gradient needs."""

    def forward(self, x):
        result = x.exp()
        squared = result * result
        result.add_(1)
        return squared


class Hiding(nn.Module):
    """Reads its weight where nobody who exchanges weights by name finds it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.hidden = [self.linear.weight]

    def forward(self, x):
        return F.linear(x, self.hidden[0], self.linear.bias)


def test_what_cannot_be_right_is_refused_in_a_sentence():
    network, x = built("mlp")
    with pytest.raises(ValueError, match=r"^Hiding must reach its layers through self, but .* reads linear.weight"):
        tangent_gram(Network.of(Hiding().double()), images(4), run=EXACT)
    with pytest.raises(
        ValueError, match=r"^The network's output must have a gradient with respect to its weights, but torch found"
    ):
        tangent_gram(Network.of(nn.Sequential(nn.Linear(4, 1), Broken()).double()), images(4), run=EXACT)
    with pytest.raises(ValueError, match=r"^A tangent kernel needs one network, got a stack of 2"):
        tangent_gram(dataclasses.replace(network, members=2), x, run=EXACT)
    with pytest.raises(ValueError, match=r"^kernel must be 'scalar', 'trace' or 'each', got 'sum'"):
        tangent_gram(network, x, kernel="sum", run=EXACT)
    with pytest.raises(ValueError, match=r"^A tangent kernel in float16 overflows"):
        tangent_gram(network, x, run=Run(device="cpu", precision="float16"))
    with pytest.raises(ValueError, match=r"^The network's output must be a finite number, but is not"):
        tangent_gram(network, x * math.nan, run=EXACT)
    with pytest.raises(ValueError, match=r"^panels must be between 1 and the 4 samples, got 9"):
        tangent_gram(network, x, panels=9, run=EXACT)
    with pytest.raises(ValueError, match=r"^Inputs must share one leading axis"):
        tangent_gram(network, x[:0], run=EXACT)


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from biascope import network, Run, Network
from biascope.kernels import gram as engine
torch.manual_seed(0)
lenet = Network.of(network("lenet")()).read("first")
x = torch.randn(40, 1, 32, 32, generator=torch.Generator().manual_seed(1))
whole, panels = engine.Engine.panel, []
def panel(self, x, other, first, last, run):
    panels.append((first, last))
    if len(sys.argv) > 2 and len(panels) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, x, other, first, last, run)
engine.Engine.panel = panel
found = engine.tangent_gram(lenet, x, panels=4, run=Run(Path(sys.argv[1]), device="cpu"))
torch.save(found.matrix, Path(sys.argv[1]) / "kernel.pt")
print(len(panels))
"""


@pytest.mark.slow  # the command is killed in tests/everyday/test_killed_commands.py
def test_a_killed_kernel_resumes_bit_for_bit_without_recomputing(tmp_path):
    def command(folder: Path, *words: str) -> subprocess.CompletedProcess:
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(folder), *words], capture_output=True, text=True, env=environment
        )

    killed = command(tmp_path / "killed", "kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = command(tmp_path / "killed")
    straight = command(tmp_path / "straight")
    assert (int(resumed.stdout), int(straight.stdout)) == (2, 4)  # two panels were kept
    first, second = (torch.load(tmp_path / name / "kernel.pt", weights_only=True) for name in ("killed", "straight"))
    assert torch.equal(first, second)


def test_out_of_memory_means_smaller_pieces(monkeypatch):
    network, x = built("conv2d")
    expected, sizes = tangent_gram(network, x, run=EXACT).matrix, []
    rows = Panel.rows

    def short_of_memory(self):
        sizes.append(self.sizes)
        if self.sizes.chunk > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows(self)

    monkeypatch.setattr(Panel, "rows", short_of_memory)
    found = tangent_gram(network, x, sizes=Sizes(8, 4000, 4000), run=EXACT).matrix
    assert [size.chunk for size in sizes[:3]] == [8, 4, 2]
    assert torch.allclose(found, expected, atol=1e-12)


def test_panels_are_of_about_equal_work():
    network, x = built("mlp")
    kernel = tangent_gram(network, x, run=EXACT)
    engine = Engine(network, list(kernel.parts), (None,), "scalar", Sizes(1, 1, 1), 10_000, None)
    bounds = engine._bounds(8, Run(device="cpu"))
    work = [last**2 - first**2 for first, last in bounds]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 10_000
    assert max(work) < 1.01 * min(work)
