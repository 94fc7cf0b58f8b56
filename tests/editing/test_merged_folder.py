"""Merges of models whose names or heads differ: what is merged, what stays each model's own, and what is written where."""

import json

import pytest
import torch
from checkpoint_files import same_bits, saved
from networks_under_test import normal

from biascope.editing import merge as merging
from biascope.editing.merge import differences, merge
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint


def state(seed: int, **heads: int) -> weights.Params:
    """A body near one of seed 0, under names with a prefix if it has heads, and these."""
    shapes = {"embeddings.weight": (20, 4), "layer.weight": (4, 4), "layer.bias": (4,)}
    prefix = "bert." if heads else ""
    first = {name: normal(*shape, seed=at).float() for at, (name, shape) in enumerate(shapes.items())}
    near = {
        f"{prefix}{name}": each + 0.1 * seed * normal(*each.shape, seed=9 + seed).float()
        for name, each in first.items()
    }
    own = {f"{name}.weight": normal(classes, 4, seed=seed + 30).float() for name, classes in heads.items()}
    return near | own | {f"{name}.bias": torch.zeros(classes) for name, classes in heads.items()}


@pytest.fixture
def models(tmp_path):
    """A base without a head, and two models with a head and a prefix, in folders with configurations."""
    states = {"base": state(0), "a": state(1, classifier=2), "b": state(2, classifier=3)}
    for name, each in states.items():
        (tmp_path / name).mkdir()
        saved(tmp_path / name, "model", each)
        (tmp_path / name / "config.json").write_text(json.dumps({"labels": name}))
        (tmp_path / name / "trainer_state.json").write_text("{}")
    return {name: Checkpoint.open(tmp_path / name) for name in states}


def merged(models, out, *, shard_bytes=10**9, **how):
    """Half of both models on their base."""
    return merge(models["base"], [(models["a"], 0.5), (models["b"], 0.5)], out, shard_bytes=shard_bytes, **how)


@pytest.mark.parametrize("kind", ["file", "folder", "shards"])
def test_the_sum_is_written_under_the_names_of_the_base_and_whole_models_beside_it(models, tmp_path, kind):
    out = tmp_path / ("out.safetensors" if kind == "file" else "out")
    found = merged(models, out, shard_bytes=100 if kind == "shards" else 10**9)
    base, a, b = (models[name].params() for name in ("base", "a", "b"))
    sums = Checkpoint.open(out).params()
    assert sums.keys() == base.keys()
    for name, start in base.items():
        assert torch.allclose(sums[name], start + 0.5 * (a[f"bert.{name}"] - start) + 0.5 * (b[f"bert.{name}"] - start))
    for name, own in (("a", a), ("b", b)):
        whole = Checkpoint.open(tmp_path / "out-heads" / (f"{name}.safetensors" if kind == "file" else name)).params()
        assert whole.keys() == own.keys()
        for key, tensor in whole.items():
            assert same_bits(tensor, own[key] if "classifier" in key else sums[key.removeprefix("bert.")])
    assert "The names of a and b are read without their prefix bert." in found.remarks
    assert "Kept apart as a head and not merged: classifier of a and b." in found.remarks
    assert "The merged weights with the own head of a and b are in" in found.sentence()


def test_configurations_are_copied_and_what_is_of_the_training_is_not(models, tmp_path):
    found = merged(models, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"labels": "base"}
    assert json.loads((tmp_path / "out-heads" / "b" / "config.json").read_text()) == {"labels": "b"}
    assert not list(tmp_path.glob("out*/**/trainer_state.json"))
    assert "config.json is copied from base." in found.remarks


def test_one_model_of_weight_one_is_restored_with_its_head(models, tmp_path):
    merge(models["base"], [(models["a"], 1.0)], tmp_path / "out.safetensors")
    whole, own = Checkpoint.open(tmp_path / "out-heads" / "a.safetensors").params(), models["a"].params()
    assert whole.keys() == own.keys()
    assert all(same_bits(whole[name], own[name]) for name in own)


def test_an_error_leaves_no_model_behind(models, tmp_path, monkeypatch):
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(merging, "_check_related", lambda *_: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        merged(models, tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_whole_models_that_exist_are_replaced_only_on_demand(models, tmp_path):
    out = tmp_path / "out.safetensors"
    merged(models, out)
    out.unlink()
    (tmp_path / "out-heads" / "c.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.safetensors does\. Pass another name, or --overwrite"):
        merged(models, out)
    assert not out.exists()
    assert any("c.safetensors in" in remark for remark in merged(models, out, overwrite=True).remarks)


def test_files_of_torch_are_written_as_safetensors(models, tmp_path):
    torch.save(models["a"].params(), tmp_path / "cars.pt")
    merge(models["base"], [(Checkpoint.open(tmp_path / "cars.pt"), 0.5)], tmp_path / "out.safetensors")
    assert [path.name for path in (tmp_path / "out-heads").iterdir()] == ["cars.safetensors"]


def test_patterns_to_keep_need_no_prefix_to_fit(models, tmp_path):
    merged(models, tmp_path / "out.safetensors", keep=["embeddings.*", "bert.embeddings.*"])
    sums, base = Checkpoint.open(tmp_path / "out.safetensors").params(), models["base"].params()
    assert same_bits(sums["embeddings.weight"], base["embeddings.weight"])
    assert not torch.equal(sums["layer.weight"], base["layer.weight"])


def test_a_tied_copy_stays_one(tmp_path):
    start, end = ({f"model.{name}": each for name, each in state(seed).items()} for seed in (0, 1))
    base = saved(tmp_path, "base", start | {"lm_head.weight": start["model.embeddings.weight"].clone()})
    found = merge(base, [(saved(tmp_path, "a", end), 0.5)], tmp_path / "out.safetensors")
    sums = Checkpoint.open(tmp_path / "out.safetensors").params()
    assert same_bits(sums["lm_head.weight"], sums["model.embeddings.weight"])
    assert not torch.equal(sums["lm_head.weight"], start["model.embeddings.weight"])
    assert any("lm_head.weight is tied to model.embeddings.weight" in remark for remark in found.remarks)
    assert not (tmp_path / "out-heads").exists()


def test_differences_are_those_of_what_is_shared(models, tmp_path):
    found = differences(models["base"], [models["a"], models["b"]])
    bare = [
        saved(
            tmp_path,
            name,
            {key.removeprefix("bert."): each for key, each in models[name].params().items() if "bert" in key},
        )
        for name in ("a", "b")
    ]
    plain = differences(models["base"], bare)
    assert found.layers == plain.layers
    assert (found.task_norms == plain.task_norms).all()
    assert found.misfits[0] == "The names of a and b are read without their prefix bert."
    assert plain.misfits == ()


def test_a_missing_layer_is_no_head(models, tmp_path):
    lacking = {name: each for name, each in models["a"].params().items() if name != "bert.layer.bias"}
    with pytest.raises(ValueError, match=r"must fit base: 1 missing \(layer\.bias\)\. Pass states of one model"):
        merge(models["base"], [(saved(tmp_path, "lacking", lacking), 0.5)], tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
