"""Merging on disk: equal to task arithmetic in memory, honest about rounding, and refusing what it cannot do right."""

import json

import numpy as np
import pytest
import torch
from checkpoint_files import same_bits, saved
from networks_under_test import batchnorm_convnet, normal

from biascope.editing.merge import differences, merge, told_of_precision
from biascope.editing.merge_result import Difference, Merge
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.checkpoint import SLICE, Checkpoint
from biascope.runs.digest import fingerprint
from biascope.runs.randomness import forked_rng


def model(seed: int, dtype: torch.dtype = torch.float32) -> weights.Params:
    """A base at seed 0, and models near it."""
    shapes = {
        "layers.2.weight": (40, 30),
        "layers.10.weight": (20, 40),
        "layers.10.bias": (20,),
        "head.weight": (3, 20),
    }
    far = {name: normal(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}
    near = {name: 0.05 * normal(*shape, seed=100 * seed + k) for k, (name, shape) in enumerate(shapes.items())}
    return {name: (far[name] + (near[name] if seed else 0)).to(dtype) for name in shapes} | {
        "steps": torch.tensor(seed)
    }


def family(folder, dtype: torch.dtype = torch.float32) -> list[Checkpoint]:
    return [saved(folder, name, model(seed, dtype)) for seed, name in enumerate(("base", "a", "b"))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_file_holds_the_sum(tmp_path, dtype):
    base, a, b = family(tmp_path, dtype)
    found = merge(base, [(a, 0.4), (b, -0.7)], tmp_path / "out.safetensors")
    merged, start, one, two = (weights.load(tmp_path / f"{name}.safetensors") for name in ("out", "base", "a", "b"))
    wide = weights.working_type(dtype)
    for name in start:
        if name == "steps":
            assert int(merged[name]) == 0
            continue
        s, e, f = (each[name].to(wide) for each in (start, one, two))
        wanted = (s + (0.4 * (e - s) - 0.7 * (f - s))).to(dtype)
        assert torch.allclose(merged[name], wanted, rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
        assert merged[name].dtype == dtype
    assert found.precision == str(dtype).removeprefix("torch.")
    assert found.layers == ("head", "layers.2", "layers.10")
    squares = sum(
        float((merged[name].double() - start[name].double()).square().sum()) for name in start if name != "steps"
    )
    assert found.size == pytest.approx(np.sqrt(squares) / np.sqrt(np.square(found.base_norms).sum()), rel=2e-2)
    assert found.error < (0.2 if dtype == torch.bfloat16 else 0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", ["weights", "vector"])
def test_one_model_with_weight_one_is_restored_bit_for_bit(tmp_path, dtype, kind):
    start = {"w": normal(SLICE + 7).to(dtype), "z": torch.tensor([0.0, 1.0, -1.0]).to(dtype)}
    end = {
        "w": (start["w"] * (1 + 0.3 * normal(SLICE + 7, seed=1))).to(dtype),
        "z": torch.tensor([-0.0, 1e-6, -1.0]).to(dtype),
    }
    end["w"][::1000] = 1e-5
    base, tuned = saved(tmp_path, "base", start), saved(tmp_path, "a", end)
    if kind == "vector":
        TaskVector.between(start, end).save(tmp_path / "a.safetensors")
        tuned = Checkpoint.open(tmp_path / "a.safetensors")
    found = merge(base, [(tuned, 1.0)], tmp_path / "out.safetensors")
    merged = weights.load(tmp_path / "out.safetensors")
    assert all(same_bits(merged[name], end[name]) for name in end)
    assert found.error < 1e-3


def test_vectors_and_weights_merge_alike(tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        base, a, b = family(tmp_path, dtype)
        vector = TaskVector.between(base.params(), a.params(), source="a")
        vector.save(tmp_path / "va.safetensors")
        merge(base, [(a, 0.4), (b, 0.3)], tmp_path / "one.safetensors", overwrite=True)
        merge(
            base,
            [(Checkpoint.open(tmp_path / "va.safetensors"), 0.4), (b, 0.3)],
            tmp_path / "two.safetensors",
            overwrite=True,
        )
        one, two = (weights.load(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_was_done_is_written_into_the_file(tmp_path):
    base, a, b = family(tmp_path)
    merge(base, [(a, 0.4), (b, -0.5)], tmp_path / "out.safetensors")
    about = Checkpoint.open(tmp_path / "out.safetensors").metadata
    assert about["base"] == fingerprint(base.params())
    assert json.loads(about["sources"]) == [
        {"name": "a.safetensors", "hash": fingerprint(a.params()), "weight": 0.4},
        {"name": "b.safetensors", "hash": fingerprint(b.params()), "weight": -0.5},
    ]
    assert (about["kind"], about["format"]) == ("merged", "pt")


def test_shards_hold_what_one_file_holds(tmp_path):
    base, a, _ = family(tmp_path)
    merge(base, [(a, 0.4)], tmp_path / "out.safetensors")
    merge(base, [(a, 0.4)], tmp_path / "shards", shard_bytes=3000)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    one, many = Checkpoint.open(tmp_path / "out.safetensors"), Checkpoint.open(tmp_path / "shards")
    assert one.fingerprint() == many.fingerprint()
    assert one.metadata == many.metadata
    # and in place
    merge(
        many,
        [(saved(tmp_path, "tuned", {**one.params(), "steps": torch.tensor(3)}), 1.0)],
        tmp_path / "shards",
        overwrite=True,
    )
    assert Checkpoint.open(tmp_path / "shards").fingerprint() == one.fingerprint()


def test_integers_and_running_statistics_stay_those_of_the_base(tmp_path):
    with forked_rng(0):
        start = {name: tensor.clone() for name, tensor in batchnorm_convnet().state_dict().items()}
    end = {name: tensor + 0.1 if tensor.is_floating_point() else tensor + 5 for name, tensor in start.items()}
    found = merge(saved(tmp_path, "base", start), [(saved(tmp_path, "a", end), 0.5)], tmp_path / "out.safetensors")
    merged = weights.load(tmp_path / "out.safetensors")
    kept = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert {name for name in start if torch.equal(merged[name], start[name])} == kept
    assert "3 tensors are taken from base (" in found.sentence()
    assert "3 of them differ in the models." in found.sentence()


def test_heads_can_be_kept_from_the_base(tmp_path):
    base, a, _ = family(tmp_path)
    other = {**a.params(), "classifier.weight": normal(9, 4), "head.weight": normal(7, 20)}
    tuned = saved(tmp_path, "a", other)
    found = merge(base, [(tuned, 1.0)], tmp_path / "out.safetensors", keep=["classifier.*", "head.*"])
    merged = weights.load(tmp_path / "out.safetensors")
    assert torch.equal(merged["head.weight"], base.params()["head.weight"])
    assert torch.equal(merged["layers.2.weight"], other["layers.2.weight"])
    assert "classifier.weight" not in merged
    assert found.layers == ("layers.2", "layers.10")
    about = Checkpoint.open(tmp_path / "out.safetensors").metadata
    assert json.loads(about["sources"])[0]["hash"] == fingerprint(other)


def test_half_precision_says_what_it_rounds_away(tmp_path):
    start = {"w": torch.ones(1000, dtype=torch.bfloat16)}
    end = {"w": torch.ones(1000, dtype=torch.bfloat16)}
    end["w"][:400] = 1.0078125  # one step of the type: 0.4 of it is rounded away
    end["w"][400:500] = 1.5
    found = merge(saved(tmp_path, "base", start), [(saved(tmp_path, "a", end), 0.4)], tmp_path / "out.safetensors")
    assert (int(found.changed.sum()), int(found.lost.sum())) == (500, 400)
    lost = 0.4 * 0.0078125
    landed = abs(float(torch.tensor(1.2).bfloat16()) - 1.2)
    wanted = np.sqrt(400 * lost**2 + 100 * landed**2) / np.sqrt(400 * lost**2 + 100 * 0.2**2)
    assert found.error == pytest.approx(wanted, rel=1e-4)
    assert "In bfloat16, 80 % of the changed numbers were rounded away" in found.sentence()


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16, torch.float32])
def test_models_of_other_types_are_converted_and_the_loss_is_told(tmp_path, dtype):
    """What rounding adds to ‖τ‖² is what it is expected to; what the written type loses is what the file misses."""
    start, end = ({"w": normal(64, 100, seed=seed).float()} for seed in (0, 1))
    end["w"] = start["w"] + 0.01 * end["w"]
    base, wide = saved(tmp_path, "base", start), saved(tmp_path, "wide", end)
    narrow = saved(tmp_path, "narrow", {"w": end["w"].bfloat16()})
    found = merge(base, [(narrow, 0.5), (wide, 0.25)], tmp_path / "out.safetensors", dtype=dtype)
    merged = weights.load(tmp_path / "out.safetensors")["w"]
    exact = start["w"] + 0.5 * (end["w"].bfloat16().float() - start["w"]) + 0.25 * (end["w"] - start["w"])
    assert merged.dtype == (dtype or torch.float32)
    torch.testing.assert_close(merged, exact.to(merged.dtype))
    assert found.error == pytest.approx(
        float((merged - exact).norm() / (exact - start["w"]).norm()), rel=0.01, abs=1e-5
    )
    assert found.precision == weights.type_name(merged.dtype)
    words = found.sentence()
    assert "narrow holds bfloat16 where base holds float32. Both are read in float32." in words
    told = float(words.partition("If narrow was rounded to bfloat16 after training, this makes ")[2].split()[0])
    noise = (end["w"].bfloat16().float() - end["w"]).square().sum()
    assert told / 100 == pytest.approx(float(noise / (narrow.read("w").float() - start["w"]).square().sum()), rel=0.05)
    assert "holds" not in merge(base, [(wide, 0.5)], tmp_path / "plain.safetensors").sentence()
    assert all(sentence in words for sentence in told_of_precision(base, [narrow, wide]))
    assert len(told_of_precision(base, [narrow, wide])) == 2
    back = differences(narrow, [wide]).sentence()
    assert "If wide was trained from wider weights than the bfloat16 of narrow" in back
    merge(narrow, [(wide, 1.0)], tmp_path / "one.safetensors")
    assert same_bits(weights.load(tmp_path / "one.safetensors")["w"], end["w"].bfloat16())


def refused(folder, message: str, work) -> None:
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(ValueError, match=message) as caught:
        work()
    assert str(caught.value).count("\n") == 0
    assert sorted(path.name for path in folder.iterdir()) == before


def test_bad_models_are_refused_and_nothing_is_written(tmp_path):
    base, a, b = family(tmp_path)
    out = tmp_path / "out.safetensors"

    def changed(name: str, tensor: torch.Tensor | None, drop: str = "") -> Checkpoint:
        params = {key: value for key, value in a.params().items() if key != drop}
        return saved(tmp_path, "bad", params if tensor is None else {**params, name: tensor})

    smaller = changed("head.weight", normal(3, 5, dtype=torch.float32), drop="steps")
    refused(tmp_path, r"bad\.safetensors must fit base\.safetensors: 1 missing \(steps\); 1 of another shape \(head\.weight \(3, 5\) "
            r"instead of \(3, 20\)\)\. Pass", lambda: merge(base, [(smaller, 1.0)], out))  # fmt: skip
    extra = changed("more", torch.ones(1))
    refused(tmp_path, r"1 extra \(more\)", lambda: merge(base, [(extra, 1.0)], out))
    whole = changed("head.weight", torch.ones(3, 20, dtype=torch.int8))
    refused(
        tmp_path,
        r"1 of another type \(head\.weight int8 instead of float32",
        lambda: merge(base, [(whole, 1.0)], out),
    )
    for value in (float("nan"), float("inf")):
        tensor = a.params()["layers.10.weight"].clone()
        tensor[5, 5] = value
        broken = changed("layers.10.weight", tensor)
        message = r"^The weights of bad\.safetensors must be finite, but layers\.10\.weight is not\. Check where"
        refused(tmp_path, message, lambda broken=broken: merge(base, [(b, 0.1), (broken, 0.4)], out))
        refused(tmp_path, message, lambda broken=broken: merge(broken, [(b, 0.1)], out))
    elsewhere = saved(tmp_path, "bad", {name: normal(*tensor.shape, seed=77, dtype=torch.float32) if tensor.ndim else tensor
                                        for name, tensor in a.params().items()})  # fmt: skip
    refused(tmp_path, r"^bad\.safetensors must be fine-tuned from base\.safetensors, but its weights have a cosine of -?0\.0\d with",
            lambda: merge(base, [(elsewhere, 0.4)], out))  # fmt: skip
    assert merge(base, [(elsewhere, 0.4)], out, unrelated=True).size > 0.4


def test_vectors_of_another_base_are_refused(tmp_path):
    base, a, b = family(tmp_path)
    TaskVector.between(b.params(), a.params()).save(tmp_path / "v.safetensors")
    vector, out = Checkpoint.open(tmp_path / "v.safetensors"), tmp_path / "out.safetensors"
    message = r"^v\.safetensors must be a task vector of base\.safetensors, but was made from other weights \(hash"
    refused(tmp_path, message, lambda: merge(base, [(vector, 1.0)], out))
    refused(tmp_path, message, lambda: differences(base, [vector]))
    refused(tmp_path, "holds a task vector. Pass its base first", lambda: merge(vector, [(a, 1.0)], out))
    # Any weights that stand for a vector but do not say so are far from the base.
    plain = saved(tmp_path, "plain", {name: tensor - base.params()[name] for name, tensor in a.params().items()})
    refused(tmp_path, "must be fine-tuned from", lambda: merge(base, [(plain, 1.0)], out))


def test_odd_types_and_weights_are_refused(tmp_path):
    base, a, _ = family(tmp_path)
    out = tmp_path / "out.safetensors"
    for weight in (float("nan"), float("inf")):
        refused(tmp_path, "needs models with finite weights", lambda weight=weight: merge(base, [(a, weight)], out))
    refused(tmp_path, "needs models with finite weights, got none", lambda: merge(base, [], out))
    packed = [saved(tmp_path, name, {"w": torch.full((4, 4), k, dtype=torch.int8), "scale": torch.ones(4)})
              for k, name in enumerate(("p", "q"))]  # fmt: skip
    refused(
        tmp_path,
        "w is a matrix of integers that differs .* seem to be quantised",
        lambda: merge(packed[0], [(packed[1], 1.0)], out),
    )
    eight = saved(tmp_path, "e", {"w": torch.ones(4).to(torch.float8_e4m3fn)})
    refused(tmp_path, "to be edited, but w is float8_e4m3fn", lambda: merge(eight, [(eight, 1.0)], out))
    large = [saved(tmp_path, name, {"w": torch.tensor([value]).half()}) for name, value in (("l", 6e4), ("m", 3e4))]
    refused(tmp_path, "The weights of the merged model must be finite, but w is not. Pass smaller weights",
            lambda: merge(large[0], [(large[1], -2.0)], out))  # fmt: skip


def test_a_difference_is_what_the_vectors_say(tmp_path):
    base, a, b = family(tmp_path)
    found = differences(base, [a, b])
    one, two = (TaskVector.between(base.params(), each.params()) for each in (a, b))
    cosines = one.cosines(two)
    for k, layer in enumerate(found.layers):
        assert found.task_norms[k].tolist() == pytest.approx([one.norms()[layer], two.norms()[layer]])
        assert found.cosines[k, 0] == pytest.approx(cosines[layer])
    assert found.totals()["a and b"][0] == pytest.approx(one.cosine(two))
    names = ("layers.10.weight", "layers.10.bias")
    signs = [torch.cat([task.deltas[name].sign().flatten() for name in names]) for task in (one, two)]
    product = signs[0] * signs[1]
    assert found.shared[2, 0] == int(product.count_nonzero())
    assert found.opposed[2, 0] == pytest.approx(float((product < 0).sum() / product.count_nonzero()))
    two.save(tmp_path / "two.safetensors")
    again = differences(base, [a, Checkpoint.open(tmp_path / "two.safetensors")])
    assert np.array_equal(again.dots, found.dots)
    assert np.array_equal(again.conflicts, found.conflicts)


def test_a_difference_lists_what_cannot_be_compared(tmp_path):
    base, a, _ = family(tmp_path)
    params = {
        **a.params(),
        "new": torch.ones(2),
        "layers.10.bias": torch.ones(4),
        "layers.2.weight": a.params()["layers.2.weight"].half(),
    }
    params["head.weight"] = params["head.weight"].clone()
    params["head.weight"][0, :2] = torch.tensor([float("nan"), float("inf")])
    found = differences(base, [saved(tmp_path, "c", params)])
    assert found.layers == ("head", "layers.2", "layers.10")
    assert np.isfinite(found.task_norms).all()
    words = found.sentence()
    assert "c.safetensors does not fit base.safetensors: 1 extra (new); 1 of another shape (layers.10.bias" in words
    assert "c holds float16 where base holds float32. Both are read in float32" in words
    assert "c.safetensors has 2 numbers that are not finite" in words
    strange = saved(tmp_path, "d", {"other": torch.ones(3)})
    with pytest.raises(
        ValueError, match=r"must share weights with base.safetensors by name and shape, but share none: .* 5 missing"
    ):
        differences(base, [strange])
    with pytest.raises(ValueError, match="at least two checkpoints"):
        differences(base, [])


def test_equal_checkpoints_have_no_difference(tmp_path):
    base, *_ = family(tmp_path)
    found = differences(base, [base, base])
    assert found.changed.sum() == 0
    assert "base has the same" in found.sentence()
    assert found.pair_names == ["base and base (2)"]
    assert set(found.headline()) == {f"task_vector_size:{name}" for name in found.models}
    assert found.plots()


def test_results_are_kept_and_drawn(tmp_path):
    base, a, b = family(tmp_path)
    done = merge(base, [(a, 0.4), (b, -0.5)], tmp_path / "out.safetensors")
    assert Merge.load(done.save(tmp_path / "merge")).sentence() == done.sentence()
    assert "+ 0.4·(a − base) − 0.5·(b − base)" in done.subject
    found = differences(base, [a, b])
    assert Difference.load(found.save(tmp_path / "diff")).sentence() == found.sentence()
    assert list(found.plots()) == ["layer_distance", "cosines", "opposite_moves"]
    many = differences(base, [a, b, a, b, a])
    assert len(many.pairs) == 10
    for result in (done, found, many):
        assert all(figure.axes for dark in (False, True) for figure in result.plots(dark).values())
    assert [row["layer"] for row in found.tables()["layers"]] == list(found.layers)
    assert list(done.headline()) == [
        "edit_size",
        "rounding_loss",
        "rounded_away",
        "task_vector_size:a",
        "task_vector_size:b",
    ]
    layer = done.tables()["layers"][0]
    assert layer["edit"] == done.edit_norms[0]
    assert done.tables()["layers_by_model"][0] == {
        "layer": done.layers[0],
        "model": "a",
        "task_vector": done.task_norms[0, 0],
    }
    assert set(found.headline()) == {
        "task_vector_size:a",
        "task_vector_size:b",
        "cosine:a and b",
        "opposite_moves:a and b",
    }
    pair = found.tables()["layers_by_pair"][0]
    assert (pair["first"], pair["second"], pair["cosine"]) == ("a", "b", found.cosines[0, 0])


def test_a_sharded_model_of_hugging_face_is_merged_and_loads_again(tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 50,
    }
    with forked_rng(0):
        module = transformers.BertModel(transformers.BertConfig(**shape))
    module.save_pretrained(tmp_path / "base", max_shard_size="8KB")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    module.save_pretrained(tmp_path / "tuned")
    base, tuned = (Checkpoint.open(tmp_path / name) for name in ("base", "tuned"))
    assert len(list((tmp_path / "base").glob("*.safetensors"))) > 1
    merge(base, [(tuned, 1.0)], tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text((tmp_path / "base" / "config.json").read_text())
    loaded = transformers.BertModel.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in module.state_dict().items())


def test_what_would_silently_do_nothing_or_end_in_a_traceback_is_refused(tmp_path) -> None:
    base, a, _ = family(tmp_path)
    out = tmp_path / "out.safetensors"
    with pytest.raises(
        ValueError, match=r"keep must match names of the models, but 'haed\.\*' matches none of 5, such as"
    ):
        merge(base, [(a, 0.5)], out, keep=["haed.*"])
    with pytest.raises(ValueError, match=r"No number of base\.safetensors is left to merge, because keep matches all"):
        merge(base, [(a, 0.5)], out, keep=["*"])
    start, end = model(0), model(1)
    TaskVector.between(start, end).save(tmp_path / "vector.safetensors")
    del start["head.weight"]
    bare, vector = saved(tmp_path, "bare", start), Checkpoint.open(tmp_path / "vector.safetensors")
    with pytest.raises(ValueError, match=r"must be a task vector of bare\.safetensors, which has no head\.weight"):
        merge(bare, [(vector, 0.5), (a, 0.5)], out, keep=["head.*"])
    assert not out.exists()
    narrow = saved(tmp_path, "narrow", {**model(1), "head.weight": model(1)["head.weight"].to(torch.float8_e4m3fn)})
    found = differences(base, [narrow])
    assert "head" not in found.layers
    assert "of another type" in found.misfits[0]
    torch.save({**model(0), "waves": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "waves.pt")
    torch.save({**model(1), "waves": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "more.pt")
    waves, more = (Checkpoint.open(tmp_path / f"{name}.pt") for name in ("waves", "more"))
    with pytest.raises(ValueError, match=r"A safetensors file cannot hold waves, which is complex128"):
        merge(waves, [(more, 0.5)], out, keep=["waves"])


def test_the_base_among_the_models_is_read_once_and_counts(tmp_path):
    """A linear merge may weigh the base too; its hash is its own."""
    base, a, _ = family(tmp_path)
    merge(base, [(base, 1.0), (a, 3.0)], tmp_path / "out.safetensors", method="linear")
    start, end, merged = (weights.load(tmp_path / f"{name}.safetensors") for name in ("base", "a", "out"))
    assert torch.allclose(merged["head.weight"], (start["head.weight"] + 3 * end["head.weight"]) / 4, atol=1e-6)
    about = Checkpoint.open(tmp_path / "out.safetensors").metadata
    assert [each["hash"] for each in json.loads(about["sources"])] == [
        fingerprint(base.params()),
        fingerprint(a.params()),
    ]
