"""Adapters from differences: the best of their rank, with the energy that they keep, and nothing hidden of what they leave out."""

import json

import numpy as np
import pytest
import torch
from checkpoint_files import saved
from networks_under_test import normal

from biascope.editing.adapters import on_base
from biascope.editing.extraction import extracted
from biascope.editing.extraction_result import Extraction
from biascope.families.checkpoint import Checkpoint

SHAPES = {
    "a.q.weight": (9, 6),
    "a.v.weight": (5, 12),
    "embed_tokens.weight": (7, 4),
    "a.q.bias": (9,),
    "still.weight": (4, 4),
}


def family(folder, names=tuple(SHAPES)) -> tuple[Checkpoint, Checkpoint, dict[str, torch.Tensor]]:
    """A base, a model near it, and what they differ by; one layer does not move."""
    start = {name: 3 * normal(*SHAPES[name], seed=k).float() for k, name in enumerate(names)}
    end = {
        name: each + 0.1 * normal(*each.shape, seed=50).float() * ("still" not in name) for name, each in start.items()
    }
    return saved(folder, "base", start), saved(folder, "a", end), {name: end[name] - start[name] for name in names}


@pytest.mark.parametrize("rank", [1, 3, 100])
def test_each_layer_is_the_best_of_its_rank(tmp_path, rank):
    base, model, deltas = family(tmp_path)
    found = extracted(base, model, tmp_path / "lora", rank=rank)
    assert found.layers == ("a.q", "a.v")
    vector = on_base(Checkpoint.open(tmp_path / "lora"), base)
    for index, name in enumerate(("a.q.weight", "a.v.weight")):
        u, s, v = torch.linalg.svd(deltas[name].double(), full_matrices=False)
        wanted = (u[:, :rank] * s[:rank]) @ v[:rank]
        torch.testing.assert_close(vector.read(name).double(), wanted, atol=1e-6, rtol=1e-4)
        shares = (s.square().cumsum(0) / s.square().sum()).numpy()
        assert found.ranks[index] == min(rank, len(s))
        assert found.kept[index] == pytest.approx(shares[min(rank, len(s)) - 1], abs=1e-6)
        assert found.energies[index] == pytest.approx([shares[min(k, len(s)) - 1] for k in found.at_rank], abs=1e-9)
    assert vector.read("embed_tokens.weight").count_nonzero() == 0
    assert found.left_out == ("a.q.bias", "embed_tokens.weight")
    squares = {name: float(each.square().sum()) for name, each in deltas.items()}
    inside = squares["a.q.weight"] + squares["a.v.weight"]
    assert found.covered == pytest.approx(inside / sum(squares.values()), rel=1e-5)
    assert f"Not covered: {100 * (1 - found.covered):.3g} % of ‖τ‖² is in 2 other tensors" in found.sentence()
    again = Extraction.load(found.save(tmp_path / "result"))
    assert again.sentence() == found.sentence()
    assert set(found.plots()) == {"kept_by_rank"}


def test_a_share_to_keep_gives_each_layer_the_smallest_rank(tmp_path):
    base, model, deltas = family(tmp_path)
    found = extracted(base, model, tmp_path / "lora", energy=0.8)
    for index, name in enumerate(("a.q.weight", "a.v.weight")):
        squares = torch.linalg.svdvals(deltas[name].double()).square()
        shares = (squares.cumsum(0) / squares.sum()).numpy()
        assert found.ranks[index] == np.flatnonzero(shares >= 0.8)[0] + 1
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    ranks = {**dict.fromkeys(found.layers, config["r"]), **config["rank_pattern"]}
    assert [ranks[layer] for layer in found.layers] == found.ranks.tolist()
    assert config["alpha_pattern"] == config["rank_pattern"]
    both = extracted(base, model, tmp_path / "both", energy=0.8, rank=1)
    assert both.ranks.tolist() == [1, 1]


def test_layers_that_are_stored_turned_and_a_head(tmp_path):
    """The head is written whole, under the names of the model; a square layer is stored as others of its name."""
    start = {"mlp.c_proj.weight": (8, 4), "attn.c_proj.weight": (4, 4), "mlp.c_proj.bias": (4,)}
    params = {name: 3 * normal(*shape, seed=k).float() for k, (name, shape) in enumerate(start.items())}
    base = saved(tmp_path, "base", params)
    moved = {f"body.{name}": each + 0.1 * normal(*each.shape, seed=9).float() for name, each in params.items()}
    model = saved(tmp_path, "model", {**moved, "classifier.weight": torch.ones(2, 4)})
    found = extracted(base, model, tmp_path / "lora", rank=4)
    assert found.layers == ("body.attn.c_proj", "body.mlp.c_proj")
    assert "Written whole into the adapter: classifier." in found.sentence()
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert (config["fan_in_fan_out"], config["modules_to_save"]) == (True, ["classifier"])
    vector = on_base(Checkpoint.open(tmp_path / "lora"), base)
    for name in ("mlp.c_proj.weight", "attn.c_proj.weight"):
        torch.testing.assert_close(vector.read(name), moved[f"body.{name}"] - params[name], atol=1e-5, rtol=1e-4)


def test_what_is_refused(tmp_path):
    base, model, _ = family(tmp_path)
    out = tmp_path / "lora"
    for how, words in (
        ({}, "needs a rank or a share"),
        ({"rank": 0}, "--rank must be at least 1, got 0"),
        ({"energy": 1.5}, "--energy must lie between 0 and 1, got 1.5"),
    ):
        with pytest.raises(ValueError, match=words):
            extracted(base, model, out, **how)
    with pytest.raises(ValueError, match=r"must differ from base\.safetensors in the matrix .* differs in nothing"):
        extracted(base, base, out, rank=1)
    far = saved(tmp_path, "far", {name: normal(*each.shape, seed=99).float() for name, each in base.tensors.items()})
    with pytest.raises(ValueError, match="must be fine-tuned from base"):
        extracted(base, far, out, rank=1)
    assert not out.exists()
    extracted(base, model, out, rank=1)
    with pytest.raises(ValueError, match="must not exist yet"):
        extracted(base, model, out, rank=1)
    with pytest.raises(ValueError, match="must hold the weights of a model, but holds an adapter"):
        extracted(Checkpoint.open(out), model, tmp_path / "other", rank=1)
    extracted(base, model, out, rank=2, overwrite=True)
    longer = {**model.params(), "embed_tokens.weight": torch.ones(9, 4)}
    with pytest.raises(ValueError, match=r"embed_tokens\.weight has 9 rows instead of 7.*Resize the vocabulary"):
        extracted(base, saved(tmp_path, "longer", longer), tmp_path / "other", rank=1)
    broken = base.params()
    broken["a.q.weight"][0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"The weights must be finite, but a\.q\.weight is not"):
        extracted(base, saved(tmp_path, "broken", broken), tmp_path / "other", rank=1)
    assert not (tmp_path / "other").exists()
