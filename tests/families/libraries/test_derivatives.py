"""Derivatives of transformers: forward mode, stacks of samples and the tangent kernel are those of a plain loop over samples."""

import importlib
from typing import Any

import pytest
import torch
from networks_under_test import BackwardOverTheBatch
from torch import Tensor, nn
from torch.func import grad, vmap

import biascope
from biascope import Probe, Run, family_of
from biascope.derivatives.gradients import plain_attention, weight_jvp
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.batch_gate import padding_difference
from biascope.kernels.gram import tangent_gram
from biascope.kernels.selftest import selftest

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, LENGTH = 16, 6
CPU64 = Run(device="cpu", precision="float64", progress=False)
X = torch.randn(3, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MASK = (torch.arange(LENGTH) < torch.tensor([6, 4, 3])[:, None]).long()
INPUTS: dict[str, Any] = {"without a mask": {"x": X}, "with a mask": {"x": X, "attention_mask": MASK}}


@pytest.fixture(autouse=True)
def _with_transformers() -> None:
    pytest.importorskip("transformers")


def model_of(kind: str, attention: str) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40, "attn_implementation": attention}
    wide = {"hidden_size": WIDTH, "intermediate_size": 32, **sizes}
    if kind == "bert":
        return transformers.BertModel(transformers.BertConfig(**wide), add_pooling_layer=False)
    if kind == "llama":
        return transformers.LlamaModel(transformers.LlamaConfig(**wide, num_key_value_heads=1))
    own = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "vocab_size": 40, "bos_token_id": None, "eos_token_id": None}
    return transformers.GPT2Model(transformers.GPT2Config(**own, attn_implementation=attention))


class Reader(nn.Module):
    """A user's module around a model of transformers: the mean of the positions that a mask leaves."""

    def __init__(self, kind: str, attention: str) -> None:
        super().__init__()
        self.model = model_of(kind, attention)
        self.model.set_input_embeddings(nn.Identity())
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        hidden = self.model(inputs_embeds=x, attention_mask=attention_mask).last_hidden_state
        if attention_mask is None:
            return self.head(hidden.mean(1))
        weight = attention_mask.to(hidden).unsqueeze(-1)
        return self.head((weight * hidden).sum(1) / weight.sum(1))


def by_a_loop(network: Network, inputs: dict[str, Tensor]) -> Tensor:
    """Gradients of each sample by all weights, one backward pass after the other, each text without its padding."""
    rows = []
    for index in range(len(X)):
        kept = inputs.get("attention_mask", torch.ones_like(MASK))[index].bool()
        one = {name: leaf[index : index + 1, kept] for name, leaf in inputs.items()}
        params = {name: tensor.detach().requires_grad_() for name, tensor in network.params.items()}
        output = network.apply(params, network.buffers, one).sum()
        found = torch.autograd.grad(output, list(params.values()), allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([part.flatten() for part in found]))
    return torch.stack(rows)


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS.keys())
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_every_way_to_a_derivative_agrees_with_a_loop(kind: str, attention: str, inputs: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    family = Family.point(Reader(kind, attention), kind)
    assert family.attention == attention
    network = family.template.to(torch.device("cpu"), torch.float64).read("first")
    expected = by_a_loop(network, inputs)
    generator = torch.Generator().manual_seed(1)
    direction = {
        name: torch.randn(part.shape, generator=generator, dtype=torch.float64) for name, part in network.params.items()
    }
    flat = torch.cat([part.flatten() for part in direction.values()])

    def output(params: dict[str, Tensor], one: dict[str, Tensor]) -> Tensor:
        return network.apply(params, network.buffers, {name: leaf[None] for name, leaf in one.items()}).squeeze(0)

    with plain_attention():
        forwards = weight_jvp(network, inputs, direction)[1]
        stacked = vmap(grad(output), in_dims=(None, 0))(network.params, inputs)
        gram = tangent_gram(network, inputs, run=CPU64).matrix
    assert torch.allclose(forwards, expected @ flat, atol=1e-10, rtol=1e-8)
    assert torch.allclose(torch.cat([part.flatten(1) for part in stacked.values()], 1), expected, atol=1e-10)
    assert torch.allclose(gram.double(), expected @ expected.T, rtol=1e-8)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_the_adapter_takes_a_mask(kind: str) -> None:
    family = family_of(f"hf-config:{kind}")
    network = family.template.to(torch.device("cpu"), torch.float64).read("first")
    texts = torch.randn(2, 5, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert padding_difference(network, {"x": texts, "attention_mask": mask}) < 1e-9
    assert torch.allclose(network(texts), network({"x": texts, "attention_mask": torch.ones_like(mask)}), atol=1e-10)
    names = [check.name for check in selftest(family, (5, 128)) if check.passed]
    assert len(names) == 12
    assert "padding changes nothing" in names


def test_texts_of_several_lengths_are_measured() -> None:
    family = family_of("hf-config:bert", settings={"hidden_size": 16, "num_attention_heads": 2})
    texts = {"x": X.float(), "attention_mask": MASK}
    result = biascope.average_geometry(
        family, Probe.fixed(texts), draws=4, estimator="exact", run=Run(device="cpu", progress=False)
    )
    assert result.provenance["family"]["attention"] == "eager"
    assert not any("Padding" in warning for warning in result.warnings)


def test_attention_without_derivatives_is_computed_step_by_step() -> None:
    """Flex attention has no backward pass on a CPU; the user's own model keeps it."""
    module = Reader("bert", "flex_attention")
    family = Family.point(module, "mine")
    with pytest.warns(
        UserWarning, match=r"Attention of mine is computed step by step \(eager\), not by flex_attention, "
    ):
        checks = selftest(family, (LENGTH, WIDTH))
    assert not any(check.failed for check in checks)
    assert family.attention == "eager"
    assert module.model.config._attn_implementation == "flex_attention"


def test_attention_whose_gradients_depend_on_the_batch_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Reader("bert", "sdpa")
    with torch.no_grad():  # what attention adds is small at initialisation
        for weight in module.parameters():
            weight.mul_(5)
    interface = importlib.import_module("transformers.modeling_utils").AttentionInterface
    plain = interface._global_mapping["sdpa"]

    def wrong(layer: Any, query: Tensor, key: Tensor, value: Tensor, *given: Any, **settings: Any) -> Any:
        value = BackwardOverTheBatch.apply(value)  # type: ignore[no-untyped-call]
        return plain(layer, query, key, value, *given, **settings)

    monkeypatch.setitem(interface._global_mapping, "sdpa", wrong)
    family = Family.point(module, "mine")
    probe, run = Probe.gaussian((LENGTH, WIDTH), num=4, fresh=True), Run(device="cpu", progress=False)
    result = biascope.average_geometry(family, probe, draws=8, estimator="exact", run=run)
    assert result.warnings[0].startswith(
        "Attention of mine is computed step by step (eager). With sdpa, its gradients differ by "
    )
    assert result.provenance["family"]["attention"] == "eager"
    assert module.model.config._attn_implementation == "sdpa"
