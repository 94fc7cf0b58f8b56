"""The doctor of merges on files alone: sums against closed forms, and folders that are damaged, hostile or large."""

import json
from pathlib import Path

import pytest
import torch
from checkpoint_files import Trap
from networks_under_test import normal

from biascope.editing.doctor import diagnosis_of
from biascope.editing.doctor.changes import Broken, changes_of
from biascope.editing.doctor.diagnosis import CASES, CLEAN, FAULT, UNSEEN, WARNING, Diagnosis, Sign
from biascope.editing.merge import merge
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint, Held, Region
from biascope.runs.run import Run

LAYERS = {"model.0.q": (16, 12), "model.1.v": (10, 12)}
QUIET = Run(progress=False)


def adapter(folder: Path, seed: int = 0, size: float = 0.1, **settings) -> Path:
    """An adapter as PEFT saves it, with the scale 4."""
    tensors = {}
    for place, (name, (outward, inward)) in enumerate(LAYERS.items()):
        tensors[f"base_model.model.{name}.lora_A.weight"] = normal(2, inward, seed=seed + 10 * place).float()
        tensors[f"base_model.model.{name}.lora_B.weight"] = (
            size * normal(outward, 2, seed=seed + 10 * place + 1).float()
        )
    return written(folder, tensors, {"r": 2, "lora_alpha": 8, "target_modules": ["q", "v"]} | settings)


def written(folder: Path, tensors: weights.Params, settings: dict) -> Path:
    folder.mkdir()
    weights.save(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | settings))
    return folder


def model(folder: Path, tensors: weights.Params, **config) -> Path:
    folder.mkdir()
    weights.save(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def start() -> weights.Params:
    return {f"{name}.weight": normal(*shape, seed=3).float() for name, shape in LAYERS.items()}


def product(folder: Path, name: str) -> torch.Tensor:
    tensors = weights.load(folder / "adapter_model.safetensors")
    return 4 * tensors[f"base_model.model.{name}.lora_B.weight"] @ tensors[f"base_model.model.{name}.lora_A.weight"]


def findings(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(sign.case, sign.level) for sign in diagnosis.findings}


def test_sums_against_tensors_in_memory():
    """Inner products, counts and rounding of changes, also where a slice ends within a tensor."""
    base = {"a.w": normal(530, 500, seed=1).bfloat16(), "b.w": normal(5, 4, seed=2).bfloat16()}
    out, one = (
        {name: (each + 0.01 * normal(*each.shape, seed=seed)).float() for name, each in base.items()} for seed in (3, 4)
    )
    held = [
        Checkpoint(name, {k: Held(v) for k, v in params.items()})
        for name, params in (("base", base), ("out", out), ("one", one))
    ]
    sums = changes_of(held[0], held[1], [held[2]], [0.5], Broken(), run=QUIET)
    assert sums is not None
    assert sums.layers == ("a", "b")
    assert sums.precision == "float32"
    for place, name in enumerate(base):
        wide = base[name].float()
        moves = [(each[name] - wide).double().flatten() for each in (out, one)]
        wanted = torch.stack([torch.stack([x @ y for x in moves]) for y in moves])
        torch.testing.assert_close(torch.tensor(sums.products[place]), wanted, rtol=1e-6, atol=0)
        assert sums.base_dots[place, 1] == pytest.approx(float(wide.double().flatten() @ moves[1]))
        assert sums.sums[place] == pytest.approx(0.25 * float(moves[1] @ moves[1]), rel=1e-6)
    lost = changes_of(held[0], None, [held[2]], [1.0], Broken(), run=QUIET)
    assert lost is not None
    assert lost.precision == "bfloat16"
    ends = [one[name] - base[name].float() for name in base]
    errors = [
        (base[n].float() + e).bfloat16().double() - base[n].double() - e.double()
        for n, e in zip(base, ends, strict=True)
    ]
    assert lost.lost == pytest.approx([float(error.square().sum()) for error in errors], rel=1e-6)


@pytest.mark.parametrize("times", [1.0, 4.0])
def test_scale_of_an_adapter_that_was_cut_to_a_rank(tmp_path, times):
    """The cut change is a projection: the part that is cut off does not hide the scale."""
    pair = adapter(tmp_path / "a"), adapter(tmp_path / "b", 50)
    tensors = {}
    for name in LAYERS:
        left, values, right = torch.linalg.svd(
            0.5 * product(pair[0], name) + 0.5 * product(pair[1], name), full_matrices=False
        )
        tensors[f"base_model.model.{name}.lora_A.weight"] = right[:2].contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = times * left[:, :2] * values[:2]
    out = written(tmp_path / "out", tensors, {"r": 2, "lora_alpha": 2})
    weighted = dict.fromkeys(pair, 0.5)
    assert findings(diagnosis_of(pair, merged=out, coefficients=weighted)) == (
        {("scaled_twice", FAULT)} if times > 1 else set()
    )
    assert not findings(diagnosis_of(pair, merged=out))  # weights of 2 would explain it


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_a_whole_model_is_compared_with_the_weighted_update(tmp_path, weight):
    base, a = model(tmp_path / "base", start()), adapter(tmp_path / "a")
    for name, times in (("out", 1), ("sixteen", 16)):
        moved = {key: each + times * weight * product(a, key.removesuffix(".weight")) for key, each in start().items()}
        model(tmp_path / name, moved)
    known = {a: weight}
    assert not findings(diagnosis_of([a], base=base, merged=tmp_path / "out", coefficients=known))
    wrong = diagnosis_of([a], base=base, merged=tmp_path / "sixteen", coefficients=known)
    assert findings(wrong) == {("alpha_lost", FAULT)}
    assert "is 16 times the weighted sum" in wrong.findings[0].says
    assert diagnosis_of([a], base=base, merged=tmp_path / "sixteen").status("alpha_lost") == UNSEEN
    other = adapter(tmp_path / "other", 70)
    assert findings(diagnosis_of([other], base=base, merged=tmp_path / "out")) == {("no_change", FAULT)}


@pytest.mark.parametrize("times", [1, 16])
def test_one_wrong_layer_among_many_is_found(tmp_path, times):
    """In bfloat16, where rounding moves the scale of every layer a little."""
    names = [f"model.{place}.q" for place in range(20)]
    base = {f"{name}.weight": normal(16, 12, seed=place).bfloat16() for place, name in enumerate(names)}
    factors, moved = {}, {}
    for place, name in enumerate(names):
        down, up = normal(2, 12, seed=50 + place).float(), 0.02 * normal(16, 2, seed=90 + place).float()
        factors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        wide = base[f"{name}.weight"].float() + (times if place == 7 else 1) * up @ down
        moved[f"{name}.weight"] = wide.bfloat16()
    a = written(tmp_path / "a", factors, {"r": 2, "lora_alpha": 2, "target_modules": ["q"]})
    out = model(tmp_path / "out", moved)
    found = diagnosis_of([a], base=model(tmp_path / "base", base), merged=out)
    if times == 1:
        assert found.status("alpha_lost") == CLEAN
    else:
        (sign,) = (sign for sign in found.findings if sign.case == "alpha_lost")
        assert sign.key == "model.7.q"
        assert sign.says.startswith("In 1 of 20 layers")


@pytest.mark.parametrize("recorded", [True, False])
def test_an_output_that_is_no_sum_has_no_faults_of_a_sum(tmp_path, recorded):
    """TIES leaves a layer as in the base where it trims all of it: no layer is lost, and no scale is wrong."""
    base = start()
    # The second layer moves so little that trimming over the whole model drops it.
    size = dict(zip(base, (0.1, 1e-4), strict=True))
    for name, seed in (("a", 5), ("b", 6)):
        moved = {key: part + size[key] * normal(*part.shape, seed=seed).float() for key, part in base.items()}
        model(tmp_path / name, moved)
    model(tmp_path / "base", base)
    start_, *models = (Checkpoint.open(tmp_path / name) for name in ("base", "a", "b"))
    found = merge(start_, [(each, None) for each in models], tmp_path / "out", method="ties", run=QUIET)
    assert found.changed.min() == 0 < found.changed.max()
    if not recorded:  # as another program writes it
        model(tmp_path / "other", Checkpoint.open(tmp_path / "out").params())
    merged = tmp_path / ("out" if recorded else "other")
    known = {tmp_path / "a": 0.5, tmp_path / "b": 0.5}
    diagnosis = diagnosis_of(list(known), base=tmp_path / "base", merged=merged, coefficients=known, run=QUIET)
    assert not any(level == FAULT for _, level in findings(diagnosis))
    assert {diagnosis.status(case) for case in ("scaled_twice", "variant_lost", "alpha_lost")} == {UNSEEN}


def test_the_base_may_be_one_of_the_folders_and_names_may_be_alike(tmp_path):
    base = model(tmp_path / "base", start(), tie_word_embeddings=False)
    (tmp_path / "run").mkdir()
    pair = adapter(tmp_path / "a", base_model_name_or_path="org/base"), adapter(tmp_path / "run" / "a", 50)
    found = diagnosis_of([base, *pair])
    assert found.folders == (("base", str(base)), ("adapter", str(pair[0])), ("adapter", str(pair[1])))
    assert found.status("no_module") == CLEAN
    assert len({fact.split(" changes ")[0] for fact in found.facts if " changes " in fact}) == 2


def _damaged(folder: Path, kind: str) -> Path:
    if kind == "empty":
        folder.mkdir()
        return folder
    if kind == "pickle":
        folder.mkdir()
        torch.save({"w": Trap(str(folder / "sprung"))}, folder / "pytorch_model.bin")
        return folder
    if kind == "text":
        folder.write_text("no weights")
        return folder
    adapter(folder)
    file, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if kind == "truncated":
        file.write_bytes(file.read_bytes()[:-9])
    elif kind == "no settings":
        settings.unlink()
    elif kind == "odd":
        settings.write_text(
            json.dumps({"peft_type": "LORA", "r": "2", "lora_alpha": 8, "alpha_pattern": [1], "target_modules": 3})
        )
    else:
        settings.write_text({"half": '{"r": 4,', "list": "[1]"}[kind])
    return folder


@pytest.mark.parametrize(
    ("kind", "level", "words"),
    [
        ("empty", FAULT, "but holds none"),
        ("pickle", FAULT, "code is never run"),
        ("text", FAULT, "could not be read as one"),
        ("truncated", FAULT, "the file is truncated"),
        ("no settings", WARNING, "has no adapter_config.json"),
        ("odd", FAULT, "must have a number as r, got '2'"),
        ("half", FAULT, "cannot be read as one"),
        ("list", FAULT, "must hold settings by name, got list"),
    ],
)
def test_damaged_folders_are_findings(tmp_path, kind, level, words):
    folder, base = _damaged(tmp_path / "x", kind), model(tmp_path / "base", start())
    for found in (
        diagnosis_of([folder], base=base),
        diagnosis_of([base], merged=folder),
        diagnosis_of([base], base=folder),
    ):
        assert found.status("unreadable") == level
        assert words in " ".join(sign.says for sign in found.findings)
    assert not (folder / "sprung").exists()


def test_numbers_that_are_not_finite(tmp_path):
    tensors = start()
    tensors["model.0.q.weight"][0, :3] = float("nan")
    broken = model(tmp_path / "broken", tensors)
    for found in (diagnosis_of([broken]), diagnosis_of([broken], base=model(tmp_path / "base", start()))):
        (sign,) = (sign for sign in found.findings if sign.case == "not_finite")
        assert sign.key == "model.0.q.weight"
        assert ": 3, first in" in sign.says


@pytest.mark.parametrize("whose", ["base", "out"])
def test_numbers_that_cannot_be_compared_are_read_too(tmp_path, whose):
    """A table of another size in one of the models is compared with nothing, but may be broken."""
    rows = {"base": 5, "out": 4}
    for name, count in rows.items():
        table = torch.ones(count, 12)
        table[0, 0] = float("inf") if name == whose else 1.0
        moved = {key: each + 0.1 * (name == "out") for key, each in start().items()}
        model(tmp_path / name, {**moved, "model.embed_tokens.weight": table})
    found = diagnosis_of([adapter(tmp_path / "a")], base=tmp_path / "base", merged=tmp_path / "out")
    (sign,) = (sign for sign in found.findings if sign.case == "not_finite")
    assert sign.key == "model.embed_tokens.weight"
    assert sign.says.startswith(whose)


def test_headers_suffice_for_settings(tmp_path, monkeypatch):
    """Thousands of tensors are opened, and none is read."""
    big = model(tmp_path / "big", {f"model.layers.{k}.q.weight": torch.zeros(2, 2) for k in range(3000)})
    one = adapter(tmp_path / "a", target_modules=["q", "v", "o"])
    monkeypatch.setattr(Region, "slices", lambda *_: pytest.fail("read"))
    found = diagnosis_of([one], base=big, numbers=False)
    assert findings(found) == {("alpha_lost", FAULT), ("no_module", FAULT)}
    assert found.status("no_change") == UNSEEN


def test_other_models_are_no_base(tmp_path):
    for name, tensors in (("base", start()), ("other", {"x.weight": torch.ones(2, 2)})):
        weights.save(tensors, tmp_path / f"{name}.safetensors")
    found = diagnosis_of([tmp_path / "other.safetensors"], base=tmp_path / "base.safetensors")
    assert ("wrong_base", FAULT) in findings(found)
    with pytest.raises(ValueError, match=r"^The folder must exist, but .*none does not\. Check the path\.$"):
        diagnosis_of([tmp_path / "none"])
    with pytest.raises(ValueError, match="at least one folder"):
        diagnosis_of([])


def test_a_row_is_as_bad_as_its_worst_sign():
    signs = [Sign("rounding", level, f"It is {level}.") for level in (CLEAN, UNSEEN, WARNING, FAULT)]
    levels = [Diagnosis((), tuple(signs[: place + 1])).status("rounding") for place in range(4)]
    assert levels == [CLEAN, UNSEEN, WARNING, FAULT]
    found = Diagnosis((), tuple(signs[:3]))
    assert [found.failed(name) for name in ("fault", "warning", "never")] == [False, True, False]
    assert {row["status"] for row in found.rows()} == {WARNING, UNSEEN}
    assert len(found.rows()) == len(CASES)
