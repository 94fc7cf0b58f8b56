"""Readouts of texts, what is left out of their embeddings, masks and ids, with the library."""

from pathlib import Path

import numpy as np
import pytest
import torch
from asking import refused, said
from torch import Tensor

pytest.importorskip("transformers")

from biascope import load
from biascope.cli import app
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


def test_the_kernel_of_a_folder_on_token_ids(folder, tmp_path):
    """Weights are differentiated, the table among them; inputs need no gradient."""
    generator = np.random.default_rng(0)
    ids, labels = generator.integers(0, 30, (20, 6)), np.arange(20) % 2
    np.savez(tmp_path / "ids.npz", x_train=ids, y_train=labels)
    words = ["kernel", f"hf:{folder}", "--set", "words=5,6", "--data", str(tmp_path / "ids.npz"), "--samples", "20"]
    assert "logits of tokens 5 and 6" in said(app, *words, "--quiet", "--out", str(tmp_path / "kernel"))
    result = load(tmp_path / "kernel" / "tangent_kernel")
    network_on_ids = network(folder, (6,), words=(5, 6), ids=True).template
    x = torch.as_tensor(ids)
    rows = torch.stack(
        [
            torch.cat(
                [
                    part.flatten()
                    for part in torch.func.grad(first_output(network_on_ids, one))(network_on_ids.params).values()
                ]
            )
            for one in x.split(1)
        ]
    ).double()
    eigenvalues = torch.linalg.eigvalsh(rows @ rows.T).flip(0)
    ratio = torch.as_tensor(result.eigenvalues[0][:5]) / eigenvalues[:5]
    assert torch.allclose(ratio, ratio[0].expand(5), rtol=1e-3)
    refused(app, tmp_path, "token ids do not have", "scan", f"hf:{folder}", "--data", str(tmp_path / "ids.npz"))


def first_output(network, one: Tensor):
    return lambda params: network(one, params)[0, 0]


@pytest.mark.parametrize(
    "kind",
    [
        "led",  # asks its table of tokens for padding
        "rembert",  # embeddings of another width than its layers
        "gptj",  # turns a part of each head
        "jamba",  # cannot keep anything for the next token at this size
        "squeezebert",  # embeddings must be as wide as its layers
    ],
)
def test_architectures_that_need_more_than_two_sizes(kind):
    family = family_of(f"hf-config:{kind}")
    width = 256 if kind == "rembert" else 128
    outputs = family.first_outputs(torch.zeros(2, 16, width))
    assert outputs.shape == (2, 128)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("clip_text_model", "its forward pass failed with: You have to specify input_ids"),
    ],
)
def test_architectures_that_cannot_be_measured_say_why(kind, message):
    with pytest.raises(ValueError, match=message):
        family_of(f"hf-config:{kind}")
