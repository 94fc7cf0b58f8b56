"""`biascope merge apply` and `merge diff`: what a user types, what is printed and written, and what is refused."""

import csv
import functools
import json
import shutil
from collections import namedtuple
from pathlib import Path

import asking
import pytest
import torch
from checkpoint_files import Trap
from networks_under_test import normal
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from biascope.cli.merge import app
from biascope.editing import merge as merging
from biascope.editing.merge_result import Merge
from biascope.editing.vectors import TaskVector
from biascope.families import checkpoint_writer
from biascope.families.checkpoint import Checkpoint

said, refused = functools.partial(asking.said, app), functools.partial(asking.refused, app)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A base and two models near it, in the working folder."""
    monkeypatch.chdir(tmp_path)
    base = {"first.weight": normal(6, 4, dtype=torch.float32), "last.weight": normal(3, 6, seed=1, dtype=torch.float32)}
    for seed, name in enumerate(("base", "a", "b")):
        near = {key: tensor + 0.1 * seed * normal(*tensor.shape, seed=9 + seed) for key, tensor in base.items()}
        save_file({key: tensor.float() for key, tensor in near.items()}, tmp_path / f"{name}.safetensors")
    return tmp_path


def test_models_are_added_with_weights_of_their_own_or_one_for_all(folder):
    output = said(
        "apply",
        "base.safetensors",
        "a.safetensors=0.25",
        "b.safetensors",
        "--weight",
        "-0.5",
        "--out",
        "out.safetensors",
    )
    base, a, b, out = (load_file(f"{name}.safetensors") for name in ("base", "a", "b", "out"))
    for name in base:
        assert torch.allclose(
            out[name], base[name] + 0.25 * (a[name] - base[name]) - 0.5 * (b[name] - base[name]), atol=1e-6
        )
    assert "base + 0.25·(a − base) − 0.5·(b − base) is written to out.safetensors" in output
    assert "In float32, 0 % of the changed numbers were rounded away" in output
    page = (folder / "biascope-runs" / "merge-out" / "report.html").read_text(encoding="utf-8")
    assert "How far each layer moved" in page
    with (folder / "biascope-runs" / "merge-out" / "layers.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == ["first", "last"]
    assert Merge.load(folder / "biascope-runs" / "merge-out" / "result").models == ("a", "b")


@pytest.mark.usefixtures("unrendered_pictures")
def test_numbers_as_json_and_shards(folder):
    words = (
        "apply",
        "base.safetensors",
        "a.safetensors=1",
        "--out",
        "merged",
        "--shard-size",
        "80",
        "--report-out",
        "page",
        "--json",
    )
    (found,) = json.loads(said(*words))["results"]
    assert next(number for number in found["numbers"] if number["key"] == "rounding_loss")["value"] < 1e-6
    assert found["provenance"]["settings"]["base"] == Checkpoint.open("base.safetensors").fingerprint()
    assert Checkpoint.open("merged").fingerprint() == Checkpoint.open("a.safetensors").fingerprint()
    assert len(list((folder / "merged").glob("*.safetensors"))) == 2
    assert (folder / "page" / "report.html").exists()


@pytest.mark.usefixtures("unrendered_pictures")
def test_existing_output_is_replaced_only_on_demand(folder):
    words = ("apply", "base.safetensors", "a.safetensors=1", "--out", "b.safetensors")
    refused(
        folder,
        r"^The output must not exist yet, but b\.safetensors does\. Pass another name, or --overwrite\.$",
        *words,
    )
    said(*words, "--overwrite")
    assert Checkpoint.open("b.safetensors").fingerprint() == Checkpoint.open("a.safetensors").fingerprint()


@pytest.mark.usefixtures("unrendered_pictures")
def test_paths_with_an_equals_sign(folder):
    shutil.copy("a.safetensors", "lr=0.1.safetensors")
    said("apply", "base.safetensors", "lr=0.1.safetensors=1", "--out", "one.safetensors")
    said("apply", "base.safetensors", "lr=0.1.safetensors", "--weight", "1", "--out", "two.safetensors")
    prints = {Checkpoint.open(name).fingerprint() for name in ("one.safetensors", "two.safetensors", "a.safetensors")}
    assert len(prints) == 1


def test_bad_input_is_one_sentence_and_nothing_is_written(folder, monkeypatch):
    base, a = load_file("base.safetensors"), load_file("a.safetensors")

    def bad(message: str, *models: str, first: str = "base.safetensors") -> None:
        refused(folder, message, "apply", first, *models, "--weight", "0.4", "--out", "out.safetensors")

    refused(folder, r"^Every model needs a weight, but a\.safetensors has none\. Pass", "apply", "base.safetensors", "a.safetensors",
            "--out", "out.safetensors")  # fmt: skip
    refused(
        folder,
        r"size such as 5GB",
        "apply",
        "base.safetensors",
        "a.safetensors=1",
        "--out",
        "out",
        "--shard-size",
        "much",
    )
    bad("must be a number, got 'a.safetensors=lots'", "a.safetensors=lots")
    bad("finite weights", "a.safetensors=nan")
    bad("The checkpoint must exist, but none.safetensors does not", "none.safetensors")
    save_file({"first.weight": a["first.weight"], "other": torch.ones(2)}, "architecture.safetensors")
    bad(r"must fit base\.safetensors: 1 missing \(last\.weight\); 1 extra \(other\)", "architecture.safetensors")
    TaskVector.between(a, base).save("vector.safetensors")
    bad("was made from other weights", "vector.safetensors")
    save_file({**a, "last.weight": a["last.weight"] * float("nan")}, "nan.safetensors")
    bad(r"The weights of nan\.safetensors must be finite, but last\.weight is not", "a.safetensors", "nan.safetensors")
    whole = (folder / "a.safetensors").read_bytes()
    (folder / "short.safetensors").write_bytes(whole[:-1])
    bad(
        r"short\.safetensors must be a whole safetensors file, but is damaged: the file is truncated",
        "short.safetensors",
    )
    bad(r"short\.safetensors must be a whole", "a.safetensors", first="short.safetensors")
    torch.save({**a, "trap": Trap(str(folder / "sprung"))}, "trap.pt")
    bad(r"it asks to run \w+\.mkdir, and code is never run", "trap.pt")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoint_writer.shutil, "disk_usage", lambda path: usage(1000, 990, 10))
    bad("The disk must have room", "a.safetensors")
    assert not (folder / "sprung").exists()


def test_an_interruption_leaves_nothing(folder, monkeypatch):
    before = sorted(folder.rglob("*"))

    def interrupt(*_: object) -> None:
        assert len(list(folder.rglob("*"))) > len(before)
        raise KeyboardInterrupt

    monkeypatch.setattr(merging, "_check_related", interrupt)
    done = CliRunner().invoke(app, ["apply", "base.safetensors", "a.safetensors=1", "--out", "out.safetensors"])
    assert done.exit_code == 1
    assert "Stopped. Nothing was written." in done.output
    assert sorted(folder.rglob("*")) == before


def test_differences_are_told_and_drawn(folder):
    output = said("diff", "base.safetensors", "a.safetensors", "b.safetensors")
    assert "a differs from base in 100 % of 42 numbers" in output
    assert "The task vectors of a and b have a cosine of" in output
    page = (folder / "biascope-runs" / "diff-base" / "report.html").read_text(encoding="utf-8")
    assert all(
        words in page for words in ("Cosine of task vectors", "Opposite moves", "How far each layer is from the base")
    )
    (found,) = json.loads(said("diff", "a.safetensors", "b.safetensors", "--json", "--out", "two"))["results"]
    assert [(number["key"], number["case"]) for number in found["numbers"]] == [("task_vector_size", "b")]
    assert [row["layer"] for row in found["tables"]["layers"]] == ["first", "last"]
    save_file({"strange": torch.ones(2)}, "c.safetensors")
    refused(folder, "must share weights with a.safetensors", "diff", "a.safetensors", "c.safetensors")


def test_adapters_with_other_factors_of_the_same_updates(folder):
    """Of a user's two adapters: no difference, the same cosine as the whole models have, and the sum of updates in the file."""
    down, up, turn = (
        normal(2, 4).float(),
        normal(6, 2, seed=1).float(),
        torch.linalg.qr(normal(2, 2, seed=2))[0].float(),
    )
    for name, (first, second) in {"one": (down, up), "two": (turn @ down, up @ turn.T)}.items():
        Path(name).mkdir()
        save_file(
            {
                "base_model.model.first.lora_A.weight": first,
                "base_model.model.first.lora_B.weight": second.contiguous(),
            },
            f"{name}/adapter_model.safetensors",
        )
        Path(name, "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    (found,) = json.loads(said("diff", "one", "two", "--json"))["results"]
    assert found["numbers"][0]["value"] < 1e-6
    assert "one and two are LoRA adapters. Their updates s·B·A count, not the factors A and B." in found["sentence"]
    output = said("diff", "base.safetensors", "one", "two", "--out", "both")
    assert "The task vectors of one and two have a cosine of 1.00" in output
    said("apply", "base.safetensors", "one=1", "two=-0.5", "--out", "out.safetensors")
    torch.testing.assert_close(
        load_file("out.safetensors")["first.weight"],
        load_file("base.safetensors")["first.weight"] + 0.5 * 2 * up @ down,
    )
    refused(folder, "one must hold the weights of a model, but holds an adapter", "apply", "one", "two=1", "--out", "x")


def test_checkpoints_that_do_not_differ_are_compared_and_merged_all_the_same(folder):
    shutil.copy("base.safetensors", "same.safetensors")
    assert "0" in said("diff", "base.safetensors", "same.safetensors")
    said("apply", "base.safetensors", "same.safetensors=0.5", "--out", "out.safetensors")
    base, out = load_file("base.safetensors"), load_file("out.safetensors")
    assert all(torch.equal(base[name], out[name]) for name in base)
    assert (folder / "biascope-runs" / "merge-out" / "report.html").exists()


def test_a_merge_is_written_or_ends_with_an_error_and_never_both(folder, monkeypatch):
    empty = {"first.weight": torch.zeros(0, 4), "steps": torch.tensor(3)}
    for name in ("void", "void2"):
        save_file(empty, f"{name}.safetensors")
    refused(folder, r"No number of void\.safetensors is left to merge, because it has no floating-point weights\.", "apply",
            "void.safetensors", "void2.safetensors=1", "--out", "out.safetensors")  # fmt: skip
    refused(folder, "share none: it has none", "diff", "void.safetensors", "void2.safetensors")
    save_file({"first.weight": torch.full((3,), 1e200, dtype=torch.float64)}, "huge.safetensors")
    refused(folder, "small enough for float64 to hold their squares", "apply", "huge.safetensors", "huge.safetensors=1", "--out",
            "out.safetensors")  # fmt: skip

    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("result could not be drawn: no room.")

    monkeypatch.setattr("biascope.results.report.write_report", fail)
    done = CliRunner().invoke(app, ["apply", "base.safetensors", "a.safetensors=1", "--out", "out.safetensors"])
    assert done.exit_code == 0, done.output
    assert (
        "out.safetensors is written, but its report in biascope-runs/merge-out is not: result could not" in done.output
    )
    assert Checkpoint.open("out.safetensors").fingerprint() == Checkpoint.open("a.safetensors").fingerprint()


def test_a_method_and_its_settings_are_named(folder):
    output = said(
        "apply", "base.safetensors", "a.safetensors", "b.safetensors", "--method", "ties:mergekit", "--set", "density=0.5",
        "--set", "weight:b@*last*=0", "--out", "out.safetensors", "--write-recipe", "merge.yaml",
    )  # fmt: skip
    base, a, out = (load_file(f"{name}.safetensors") for name in ("base", "a", "out"))
    kept = (a["last.weight"] - base["last.weight"]).abs().flatten().topk(9).indices
    moved = torch.zeros(18).scatter(0, kept, (a["last.weight"] - base["last.weight"]).flatten()[kept]).view(3, 6)
    assert torch.allclose(out["last.weight"], base["last.weight"] + moved, atol=1e-6)
    assert "base with a and b by ties:mergekit (weight:b@*last*=0, density=0.5" in output
    assert "filter: last" in (folder / "merge.yaml").read_text(encoding="utf-8")
    said("apply", "--recipe", "merge.yaml", "--out", "again.safetensors")
    again = load_file("again.safetensors")
    assert all(torch.equal(out[name], again[name]) for name in out)


def test_methods_are_listed(folder):
    output = said("apply", "--method", "list")
    assert "ties:peft: TIES of B times TIES of A" in output
    assert "weight (must be given): weight of a model" in output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["base.safetensors", "a.safetensors", "--method", "tie"], "Did you mean 'ties'"),
        (["base.safetensors", "a.safetensors", "--method", "ties", "--set", "k=1"], "k is no setting of ties"),
        (["base.safetensors", "a.safetensors=0.4", "--method", "ties"], "ties has no weights of models"),
        (["base.safetensors", "--method", "ties"], "A merge needs a base and models"),
        (["base.safetensors", "a.safetensors", "--recipe", "none.yaml"], "--recipe says what is merged and how"),
        (["--recipe", "none.yaml"], "none.yaml must be a recipe in YAML"),
    ],
)
def test_what_a_user_can_get_wrong_with_methods_is_told(folder, words, sentence):
    refused(folder, sentence, "apply", *words, "--out", "out.safetensors")


def test_a_merge_without_a_place_is_refused(folder):
    refused(folder, r"Pass --out merged\.safetensors", "apply", "base.safetensors", "a.safetensors=1")
