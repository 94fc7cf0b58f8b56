"""mergekit's recipes: what is shared is read and written, what is not is refused in a sentence."""

import pytest
from checkpoint_files import saved
from networks_under_test import normal

from biascope.editing.methods._settings import Assigned
from biascope.editing.recipe import MergeRecipe

yaml = pytest.importorskip("yaml")

TIES = """
models:
  - model: base
  - model: a
    parameters:
      density: [0.2, 0.5, 0.8]
      weight:
        - filter: mlp
          value: 0.5
        - value: 0.3
  - model: b
    parameters: {weight: 0.7}
merge_method: ties
base_model: base
parameters: {normalize: true, int8_mask: true}
dtype: float32
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base", "a", "b"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name, "model", {"w": normal(3)})
    return tmp_path


def recipe(folder, text):
    path = folder / "merge.yaml"
    path.write_text(text)
    return MergeRecipe.read(path)


def test_a_recipe_is_read(folder):
    found = recipe(folder, TIES)
    assert (str(found.base), [str(model) for model in found.models], found.method) == (
        "base",
        ["a", "b"],
        "ties:mergekit",
    )
    assert found.settings(["a", "b"]) == [
        Assigned("density", (0.2, 0.5, 0.8), "a"),
        Assigned("weight", (0.5,), "a", "*mlp*"),
        Assigned("weight", (0.3,), "a"),
        Assigned("weight", (0.7,), "b"),
        Assigned("normalize", (1.0,)),
    ]


def test_what_is_written_is_read_again(folder):
    found = recipe(folder, TIES)
    again = recipe(folder, found.text())
    assert again == found
    linear = recipe(
        folder,
        "models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 3}}]\nmerge_method: linear",
    )
    assert str(linear.base) == "a"
    assert linear.settings(["a", "b"]) == [Assigned("weight", (1.0,), "a"), Assigned("weight", (3.0,), "b")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slices: []\nmerge_method: linear", "has slices, which builds a model from layers"),
        ("models: [{model: a}]\nmerge_method: passthrough\nbase_model: base", "got passthrough. Use mergekit"),
        ("models: [{model: a}]\nmerge_method: ties", "must name a base_model for ties"),
        ("models: [{model: base}]\nmerge_method: ties\nbase_model: base", "must list a model besides base"),
        ("models: [{model: zz}]\nmerge_method: ties\nbase_model: base", "but zz is not"),
        ("models: [{model: base+lora}]\nmerge_method: ties\nbase_model: base", "An adapter is a model of its own here"),
        (
            "models: [{model: a}]\nmerge_method: ties\nbase_model: base\nchat_template: x",
            "has chat_template, which Biascope does not read",
        ),
        (
            "models: [{model: a}]\nmerge_method: ties\nbase_model: base\ntokenizer_source: union",
            "tokenizer_source .* must be base",
        ),
        (
            "models: [{model: a, parameters: {weight: x}}]\nmerge_method: ties\nbase_model: base",
            "must be numbers, got 'x'",
        ),
        ("models: a", "must be one that both programs have"),
        ("- a", "got list"),
        ("a: [", "cannot be read as one"),
    ],
)
def test_what_is_not_shared_is_refused(folder, text, said):
    with pytest.raises(ValueError, match=said):
        recipe(folder, text)


def test_what_mergekit_cannot_do_is_not_written(folder):
    with pytest.raises(ValueError, match=r"has no tsv_m\. Leave --write-recipe out"):
        MergeRecipe(folder, (folder,), "tsv_m", (), ((),)).text()
    with pytest.raises(ValueError, match="Pass --method ties:mergekit"):
        MergeRecipe(folder, (folder,), "ties", (), ((),)).text()
    with pytest.raises(ValueError, match="must have the form"):
        MergeRecipe(folder, (folder,), "linear", (Assigned("weight", (1.0,), None, "a*b"),), ((),)).text()
