"""Readouts of texts, what is left out of their embeddings, masks and ids, with the library."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from biascope.families.held import Holding
from biascope.families.libraries.packages import imported
from biascope.families.source import family_of
from biascope.runs.run import Run

CPU = Run(device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small language model with weights."""
    transformers = imported("transformers", "a test")
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=30, n_positions=12)
    torch.manual_seed(0)
    place: Path = tmp_path_factory.mktemp("models") / "gpt2"
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    return place


def network(folder: Path, shape: tuple[int, ...] = (6, 16), holding: Holding | None = None, **settings):
    return family_of(f"hf:{folder}", shape=shape, settings=settings, holding=holding)


def slope(family, x: Tensor) -> Tensor:
    """The gradient of the first output, by token."""
    x = x.clone().requires_grad_()
    family.template(x)[:, 0].sum().backward()
    assert x.grad is not None
    return x.grad


def test_positions_and_words(folder):
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    whole = network(folder).template(x)
    words = network(folder, words=(5, 17))
    assert whole.shape == (2, 30)
    assert torch.allclose(words.template(x), whole[:, [5, 17]])
    assert "logits of tokens 5 and 17" in words.name
    third = network(folder, position=3)
    assert slope(third, x)[:, 3:].abs().max() == 0  # a causal model sees no later token
    assert third.axes[0].read == 2
    assert torch.allclose(network(folder, position="last").template(x), whole)
    assert not torch.allclose(network(folder, position="mean").template(x), whole)


def test_directions_of_tokens_are_left_out(folder):
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    family = network(folder, without=("mean", 7))
    table = family.template.params["model.transformer.wte.weight"]
    gradient = slope(family, x)
    assert (gradient @ table.mean(0)).abs().max() < 1e-5 * gradient.abs().max()
    assert (gradient @ table[7]).abs().max() < 1e-5 * gradient.abs().max()
    assert (gradient @ table[8]).abs().max() > 1e-3 * gradient.abs().max()


def test_ids_are_taken_as_they_are(folder):
    family = network(folder, (6,), ids=True)
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    table = family.template.params["model.transformer.wte.weight"]
    embedded = network(folder)
    scale = embedded.template.module.scale
    assert torch.allclose(family.template(ids), embedded.template(table[ids] / scale), atol=1e-5)


def test_a_mask_beside_the_embeddings(folder):
    mask = torch.tensor([1, 1, 1, 1, 0, 0])
    family = network(folder, holding=Holding.of({"attention_mask": mask}))
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    assert slope(family, x)[:, 4:].abs().max() == 0
    assert slope(family, x)[:, :4].abs().max() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position": "middle"}, "must be first, last, mean or a number from 1"),
        ({"words": "yes"}, "must be ids of tokens"),
        ({"words": 99}, "has 30 tokens, counted from 0, got token 99"),
    ],
)
def test_wrong_readouts_are_refused(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        network(folder, **settings)


def test_readouts_of_texts_are_for_texts():
    with pytest.raises(ValueError, match="is no model of texts"):
        family_of("hf-config:vit", settings={"position": "first"})
    with pytest.raises(ValueError, match="initial weights"):
        family_of("hf-config:gpt2", settings={"without": "mean"})
