"""LoRA adapters: what is compared and added are the updates that the model sees, whatever the factors are."""

import json
from pathlib import Path

import pytest
import torch
from checkpoint_files import saved
from networks_under_test import normal
from torch import Tensor

from biascope.editing.adapters import is_adapter, on_base, updates
from biascope.editing.merge import differences, merge
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint

LAYERS = {"model.0.q": (16, 12), "model.1.v": (10, 12)}
RANK, ALPHA = 4, 8


def factors(seed: int, layers: dict[str, tuple[int, int]] = LAYERS) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each layer."""
    return {
        name: (normal(RANK, inward, seed=seed), normal(outward, RANK, seed=seed + 1))
        for name, (outward, inward) in layers.items()
    }


def product(pairs: dict[str, tuple[Tensor, Tensor]], name: str, scale: float = ALPHA / RANK) -> Tensor:
    down, up = pairs[name]
    return scale * up @ down


def peft(folder: Path, name: str, pairs: dict[str, tuple[Tensor, Tensor]], more=None, **settings) -> Checkpoint:
    """An adapter as PEFT saves it."""
    (folder / name).mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "init_lora_weights": True} | settings
    (folder / name / "adapter_config.json").write_text(json.dumps(config))
    tensors = {f"base_model.model.{layer}.lora_A.weight": down.float() for layer, (down, _) in pairs.items()}
    tensors |= {f"base_model.model.{layer}.lora_B.weight": up.float() for layer, (_, up) in pairs.items()}
    weights.save(tensors | (more or {}), folder / name / "adapter_model.safetensors")
    return Checkpoint.open(folder / name)


def base_params() -> weights.Params:
    params = {f"{name}.weight": 9 * normal(*shape, seed=3).float() for name, shape in LAYERS.items()}
    return params | {"model.norm.weight": torch.ones(12), "head.weight": normal(3, 12, seed=4).float()}


def rotated(pairs: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
    """Other factors of the same products."""
    turn = torch.linalg.qr(normal(RANK, RANK, seed=9))[0]
    return {name: (3 * turn @ down, up @ turn.T / 3) for name, (down, up) in pairs.items()}


def test_other_factors_of_the_same_updates_do_not_differ(tmp_path):
    a, b = peft(tmp_path, "a", factors(0)), peft(tmp_path, "b", rotated(factors(0)))
    found = differences(a, [b])
    assert found.distances[0] < 1e-6
    assert "Their updates s·B·A count, not the factors" in found.sentence()
    far = differences(a, [peft(tmp_path, "c", factors(20))])
    one, two = (torch.cat([product(factors(seed), name).flatten() for name in LAYERS]) for seed in (0, 20))
    assert far.distances[0] == pytest.approx(float((two - one).norm() / one.norm()), rel=1e-5)
    assert "of the update of c minus that of a" in str(far.headline()["task_vector_size:c"].label)
    assert "the norm of their difference is" in far.sentence()


def test_scales_count_and_a_layer_that_one_lacks_is_zero_there(tmp_path):
    pairs = factors(0)
    few = {"model.0.q": pairs["model.0.q"]}
    a = peft(tmp_path, "a", pairs)
    stable, patterned = (
        peft(tmp_path, "b", few, use_rslora=True, lora_alpha=6),
        peft(tmp_path, "c", few, alpha_pattern={"q": 2}),
    )
    found = differences(a, [stable, patterned])
    one, two = product(pairs, "model.0.q"), product(pairs, "model.1.v")
    for place, scale in enumerate((3.0, 0.5)):
        moved = torch.cat([(product(pairs, "model.0.q", scale) - one).flatten(), two.flatten()]).norm()
        assert found.distances[place] == pytest.approx(float(moved / torch.cat([one.flatten(), two.flatten()]).norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_are_added_to_the_model_that_they_were_trained_on(tmp_path, dtype):
    start = {name: each.to(dtype) for name, each in base_params().items()}
    base = saved(tmp_path, "base", start)
    a, b = peft(tmp_path, "a", factors(0)), peft(tmp_path, "b", factors(20))
    found = merge(base, [(a, 0.5), (b, -0.25)], tmp_path / "out.safetensors")
    out = weights.load(tmp_path / "out.safetensors")
    for name in LAYERS:
        exact = [product({key: (x.float().to(dtype), y.float().to(dtype)) for key, (x, y) in factors(seed).items()}, name)
                 for seed in (0, 20)]  # fmt: skip
        wanted = start[f"{name}.weight"] + 0.5 * exact[0] - 0.25 * exact[1]
        torch.testing.assert_close(out[f"{name}.weight"], wanted.to(dtype))
    assert torch.equal(out["head.weight"], start["head.weight"])
    assert "a and b are LoRA adapters" in found.sentence()
    between = differences(base, [a, b])
    one, two = (torch.cat([product(factors(seed), name).flatten() for name in LAYERS]) for seed in (0, 20))
    assert between.totals()["a and b"][0] == pytest.approx(float(one @ two / one.norm() / two.norm()), abs=1e-5)
    assert between.numbers.sum() == sum(each.numel() for each in start.values())


def test_names_of_the_base_and_weights_that_are_saved_whole(tmp_path):
    """A base may lack the first part of an adapter's names; a head that was trained whole counts by its difference."""
    start = base_params()
    bare = saved(tmp_path, "bare", {name.removeprefix("model."): each for name, each in start.items()})
    a = peft(tmp_path, "a", factors(0), {"base_model.model.head.weight": 2 * start["head.weight"]})
    vector = on_base(a, bare)
    torch.testing.assert_close(vector.read("0.q.weight"), product(factors(0), "model.0.q").float())
    torch.testing.assert_close(vector.read("head.weight"), start["head.weight"])
    assert vector.read("norm.weight").count_nonzero() == 0
    new = peft(
        tmp_path, "new", factors(0), {"base_model.model.score.modules_to_save.default.weight": torch.ones(2, 12)}
    )
    base = saved(tmp_path, "base", start)
    assert "Kept apart as a head and not merged: score of new." in differences(base, [new]).sentence()
    assert "new holds score.weight whole" in differences(a, [new]).sentence()
    merge(base, [(new, 1.0)], tmp_path / "out.safetensors")
    whole, sums = (weights.load(tmp_path / name) for name in ("out-heads/new.safetensors", "out.safetensors"))
    assert torch.equal(whole.pop("score.weight"), torch.ones(2, 12))
    assert whole.keys() == sums.keys()
    assert all(torch.equal(whole[name], sums[name]) for name in sums)
    merge(base, [(new, 1.0)], tmp_path / "kept.safetensors", keep=["score.*"])
    assert not (tmp_path / "kept-heads").exists()
    with pytest.raises(
        ValueError, match=r"other\.safetensors must have every weight that a adapts, but lacks model\.0\.q"
    ):
        merge(saved(tmp_path, "other", {"x.weight": torch.ones(2, 2)}), [(a, 1.0)], tmp_path / "o.safetensors")


def test_embeddings_convolutions_and_turned_weights(tmp_path):
    table = {
        "base_model.model.emb.lora_embedding_A": normal(2, 7).float(),
        "base_model.model.emb.lora_embedding_B": normal(5, 2, seed=1).float(),
        "base_model.model.conv.lora_A.weight": normal(2, 3, 3, 3, seed=2).float(),
        "base_model.model.conv.lora_B.weight": normal(6, 2, 1, 1, seed=3).float(),
        "base_model.model.turned.lora_A.weight": normal(2, 4, seed=4).float(),
        "base_model.model.turned.lora_B.weight": normal(4, 2, seed=5).float(),
    }
    a = peft(tmp_path, "a", {}, table, fan_in_fan_out=True, lora_alpha=2)
    (update,), _ = updates([a])
    torch.testing.assert_close(update.read("emb.weight"), (normal(5, 2, seed=1) @ normal(2, 7)).T.float())
    kernel = torch.einsum("or,rikl->oikl", normal(6, 2, 1, 1, seed=3)[..., 0, 0], normal(2, 3, 3, 3, seed=2))
    torch.testing.assert_close(update.read("conv.weight"), kernel.float())
    torch.testing.assert_close(update.read("turned.weight"), (normal(4, 2, seed=5) @ normal(2, 4, seed=4)).T.float())
    parts = torch.cat(list(update.slices("conv.weight", 7)))
    torch.testing.assert_close(parts, kernel.flatten().float())


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ({"use_dora": True}, {}, "a magnitude vector for each of its layers, as use_dora .* holds none for .*0.q"),
        ({"use_bdlora": {"nblocks": 2}}, {}, "has use_bdlora"),
        ({"alora_invocation_tokens": [5]}, {}, "has alora_invocation_tokens"),
        ({"target_parameters": ["experts.up"]}, {}, "has target_parameters"),
        ({"peft_type": "LOHA"}, {}, "peft_type LOHA"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights pissa"),
        ({"lora_alpha": None}, {}, "The scale of a must be known"),
        ({}, {"base_model.model.model.0.q.lora_magnitude_vector.weight": torch.ones(16)}, "a magnitude vector for no layer"),
        ({}, {"base_model.model.model.0.q.lora_B.bias": torch.ones(16)}, "a bias of lora_B for no layer"),
        ({}, {"base_model.model.x.lora_A.weight": torch.ones(4, 2)}, "both factors of base_model.model.x, got one"),
        ({}, {"base_model.model.model.0.q.base_layer.weight": torch.ones(16, 12)}, "has factors beside it"),
        ({}, {"x.lora_A.one.weight": torch.ones(4, 2), "x.lora_A.two.weight": torch.ones(4, 2)}, "one adapter, got None, one"),
    ],
)  # fmt: skip
def test_what_is_no_product_of_two_factors_is_refused(tmp_path, settings, more, message):
    a, b = peft(tmp_path, "a", factors(0), more, **settings), peft(tmp_path, "b", factors(1))
    base = saved(tmp_path, "base", base_params())
    for call in (
        lambda: differences(b, [a]),
        lambda: differences(base, [a]),
        lambda: merge(base, [(a, 0.5)], tmp_path / "out.safetensors"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("kind", ["linear", "turned", "convolution"])
def test_dora_gives_each_output_a_norm_of_its_own(tmp_path, kind):
    """``m_i V_i / ‖V_i‖`` with ``V = W + s B A``, whatever the slices are, and the difference of nothing is exactly nothing."""
    shape = {"linear": (6, 5), "turned": (5, 6), "convolution": (6, 5, 2, 2)}[kind]
    start = {"q.weight": normal(*shape, seed=1).float()}
    base = saved(tmp_path, "base", start)
    down = normal(2, *shape[1:], seed=2) if kind == "convolution" else normal(2, 5, seed=2)
    up = normal(6, 2, *([1, 1] if kind == "convolution" else []), seed=3)
    change = 4 * (up.flatten(1) @ down.flatten(1)) if kind != "turned" else 4 * (up @ down).T
    moved = start["q.weight"].double() + change.view(shape)
    rows = moved.T if kind == "turned" else moved.flatten(1)
    norms = normal(6, seed=4).abs()
    wanted = norms[:, None] * rows / rows.norm(dim=1, keepdim=True)
    wanted = wanted.T if kind == "turned" else wanted.view(shape)
    tensors = {
        "base_model.model.q.lora_A.weight": down.float(),
        "base_model.model.q.lora_B.weight": up.float(),
        "base_model.model.q.lora_magnitude_vector": norms.float().view(1, 6, 1, 1) if kind == "convolution" else norms.float(),
    }  # fmt: skip
    how = {"use_dora": True, "lora_alpha": 8, "fan_in_fan_out": kind == "turned"}
    vector = on_base(peft(tmp_path, "a", {}, tensors, **how), base)
    for most in (1, 7, 1000):
        parts = torch.cat(list(vector.slices("q.weight", most))).view(shape)
        torch.testing.assert_close(parts + start["q.weight"], wanted.float())
    with pytest.raises(ValueError, match=r"but has use_dora.*Pass the base first"):
        updates([peft(tmp_path, "a", {}, tensors, **how)])
    short = peft(tmp_path, "a", {}, {**tensors, "base_model.model.q.lora_magnitude_vector": torch.ones(5)}, **how)
    with pytest.raises(ValueError, match=r"must have a number for each of 6 outputs, got \(5,\)"):
        on_base(short, base)


def test_a_bias_is_added_with_the_scale_of_its_layer(tmp_path):
    pairs = {"q": (normal(4, 5).float(), normal(6, 4, seed=1).float())}
    base = saved(tmp_path, "base", {"q.weight": normal(6, 5, seed=2).float(), "q.bias": torch.zeros(6)})
    more = {"base_model.model.q.lora_B.bias": torch.arange(6.0)}
    a = peft(tmp_path, "a", pairs, more, lora_bias=True)
    assert on_base(a, base).read("q.bias").tolist() == [0, 2, 4, 6, 8, 10]
    assert updates([a])[0][0].read("q.bias").tolist() == [0, 2, 4, 6, 8, 10]
    bare = saved(tmp_path, "bare", {"q.weight": normal(6, 5, seed=2).float()})
    with pytest.raises(ValueError, match=r"its layer q has none\. Its weights cannot hold this change"):
        on_base(a, bare)


def test_square_layers_are_stored_as_others_of_their_name(tmp_path):
    """One setting is for all layers of an adapter, and PEFT leaves that of the layer it saw last."""
    shapes = {"attn.c_proj": (4, 4), "mlp.c_proj": (8, 4)}
    start = {f"{name}.weight": normal(*shape).float() for name, shape in shapes.items()} | {
        "mlp.c_proj.bias": torch.zeros(4)
    }
    pairs = {"attn.c_proj": (normal(2, 4, seed=1), normal(4, 2, seed=2))}
    a = peft(tmp_path, "a", pairs, fan_in_fan_out=False)
    wanted = product(pairs, "attn.c_proj", ALPHA / 2).T.float()
    torch.testing.assert_close(on_base(a, saved(tmp_path, "base", start)).read("attn.c_proj.weight"), wanted)
    start = {"attn.c_proj.weight": start["attn.c_proj.weight"]}
    torch.testing.assert_close(on_base(a, saved(tmp_path, "b", start)).read("attn.c_proj.weight"), wanted.T)


def test_factors_are_never_added_one_by_one(tmp_path):
    a, b = peft(tmp_path, "a", factors(0)), peft(tmp_path, "b", factors(1))
    with pytest.raises(
        ValueError, match=r"is not the sum of two updates\. Pass the model that it was trained on as BASE"
    ):
        merge(a, [(b, 0.5)], tmp_path / "out.safetensors")
    plain = saved(tmp_path, "base", base_params())
    with pytest.raises(ValueError, match="Pass the model that it was trained on first"):
        differences(a, [plain])
    both = saved(
        tmp_path, "both", {"q.weight": torch.ones(4, 3), "q.lora_A": torch.ones(2, 3), "q.lora_B": torch.ones(4, 2)}
    )
    with pytest.raises(
        ValueError, match=r"^both\S* must hold whole weights, but holds factors beside them \(q\.lora_A\)"
    ):
        merge(both, [(plain, 0.5)], tmp_path / "out.safetensors")
    bare = saved(tmp_path, "bare", {"q.lora_A": torch.ones(2, 3), "q.lora_B": torch.ones(4, 2)})
    assert is_adapter(bare)
    with pytest.raises(ValueError, match=r"Write .*adapter_config\.json: .*\"lora_alpha\": 2} for a scale of 1"):
        differences(bare, [bare])


def test_an_adapter_that_was_not_trained_changes_nothing(tmp_path):
    pairs = {name: (down, torch.zeros_like(up)) for name, (down, up) in factors(0).items()}
    a, b = peft(tmp_path, "a", pairs), peft(tmp_path, "b", rotated(pairs))
    assert "b has the same update as a" in differences(a, [b]).sentence()
    base = saved(tmp_path, "base", base_params())
    assert "a has the same" in differences(base, [a]).sentence()
