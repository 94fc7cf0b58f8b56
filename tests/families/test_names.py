"""Names that differ by a prefix, a spelling, a tie or a head: what is proven is matched and told, all else is refused."""

import json

import pytest
import torch
from checkpoint_files import saved
from networks_under_test import normal

from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.families.names import fitted, held, matched, told

BODY = ("embeddings.weight", "layer.0.weight", "layer.0.bias", "layer.1.weight", "layer.1.bias")


def body(seed: int = 0, width: int = 4) -> weights.Params:
    """What all models share: a table and two layers."""
    shapes = {"embeddings.weight": (9, width), "weight": (width, width), "bias": (width,)}
    return {
        name: normal(*(shapes.get(name) or shapes[name.rpartition(".")[2]]), seed=seed + at).float()
        for at, name in enumerate(BODY)
    }


def head(classes: int, name: str = "classifier") -> weights.Params:
    """A last layer."""
    return {f"{name}.weight": normal(classes, 4, seed=40).float(), f"{name}.bias": normal(classes, seed=41).float()}


def under(prefix: str, params: weights.Params) -> weights.Params:
    """The same under names with a prefix."""
    return {prefix + name: tensor for name, tensor in params.items()}


def fit(model: weights.Params, base: weights.Params):
    """A model, called a, under the names of a base."""
    return fitted([held("a", model)], held("base", base))[0]


def words(model: weights.Params, base: weights.Params) -> str:
    """What is told of both."""
    return " ".join(told([fit(model, base)]))


def same(found: Checkpoint, wanted: weights.Params) -> bool:
    """Whether a checkpoint holds these tensors, and no others."""
    return found.tensors.keys() == wanted.keys() and all(torch.equal(found.read(name), wanted[name]) for name in wanted)


@pytest.mark.parametrize("prefix", ["bert.", "module.", "model.bert.", "module._orig_mod.bert."])
def test_a_prefix_is_taken_off_and_put_on(prefix):
    model = under(prefix, body(seed=7))
    assert same(fit(model, body()).shared, body(seed=7))
    assert "without their prefix" in words(model, body())
    assert same(fit(body(seed=7), under(prefix, body())).shared, under(prefix, body(seed=7)))
    assert "with the prefix" in words(body(), under(prefix, body()))


def test_names_that_are_the_same_are_left_as_they_are():
    model = held("a", body())
    assert fitted([model], held("base", body()))[0].shared is model
    assert told(fitted([model], held("base", body()))) == []


@pytest.mark.parametrize(
    ("base", "model", "heads", "absent"),
    [
        (body(), under("bert.", body()) | head(3), {"classifier.weight", "classifier.bias"}, set()),
        (body() | head(7, "fc"), body() | head(3, "fc"), {"fc.weight", "fc.bias"}, {"fc.weight", "fc.bias"}),
        (
            body() | head(7, "cls"),
            body() | head(3),
            {"classifier.weight", "classifier.bias"},
            {"cls.weight", "cls.bias"},
        ),
        (body() | head(4, "pooler.dense"), body(), set(), {"pooler.dense.weight", "pooler.dense.bias"}),
        (
            under("bert.", body()) | head(7, "cls"),
            under("model.bert.", body()) | under("model.", head(3)) | {"loss.weight": torch.ones(3)},
            {"classifier.weight", "classifier.bias", "loss.weight"},
            {"cls.weight", "cls.bias"},
        ),
        (
            under("bert.", body()) | head(7, "cls"),
            under("bert.", body() | head(4, "pooler.dense")) | head(3),
            {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight", "bert.pooler.dense.bias"},
            {"cls.weight", "cls.bias"},
        ),
    ],
    ids=[
        "of a base without",
        "of another size",
        "of another kind",
        "that the model lacks",
        "in a wrapper",
        "in a body",
    ],
)
def test_heads_are_kept_apart(base, model, heads, absent):
    found = fit(model, base)
    assert set(found.heads) == heads
    assert set(found.absent) == absent
    assert found.shared.tensors.keys() == base.keys() - absent
    sentence = " ".join(told([found]))
    assert ("Kept apart as a head" in sentence) == bool(heads)
    assert ("since missing in a" in sentence) == bool(absent - heads)


def test_a_layer_that_is_a_head_in_one_model_is_one_in_all():
    base = held("base", body() | head(3))
    a, b = fitted([held("a", body() | head(3)), held("b", body() | head(5))], base)
    assert a.heads.keys() == b.heads.keys() == {"classifier.weight", "classifier.bias"}
    assert told([a, b]) == ["Kept apart as a head and not merged: classifier of a and b."]


def test_older_spellings_and_constants():
    base = {"bert.LayerNorm.weight": torch.ones(3), "bert.position.weight": torch.ones(2, 3)}
    old = {
        "bert.LayerNorm.gamma": torch.ones(3),
        "bert.position.weight": torch.ones(2, 3),
        "bert.position_ids": torch.arange(2),
    }
    found = fit(old, base)
    assert found.shared.tensors.keys() == base.keys()
    assert "Left out, since no weights: bert of a." in told([found])


TABLE = under("model.", body())
COPIED = {**TABLE, "lm_head.weight": TABLE["model.embeddings.weight"].clone()}


class TestTies:
    def test_a_model_without_the_copy_moves_both(self):
        moved = under("model.", body(seed=9))
        found = fit(moved, COPIED)
        assert torch.equal(found.shared.read("lm_head.weight"), moved["model.embeddings.weight"])
        assert "lm_head.weight is tied to model.embeddings.weight" in " ".join(told([found]))

    def test_a_model_with_the_copy_has_no_head(self):
        found = fit(COPIED, body())
        assert not found.heads
        assert list(found.ties) == ["lm_head.weight"]

    def test_other_numbers_are_a_head(self):
        other = {**TABLE, "lm_head.weight": normal(9, 4, seed=5).float()}
        assert set(fit(other, body()).heads) == {"lm_head.weight"}
        assert set(fit(TABLE, other).absent) == {"lm_head.weight"}

    def test_equal_numbers_are_no_tie_where_the_configuration_says_so(self, tmp_path):
        for tied in (True, False):
            folder = tmp_path / str(tied)
            folder.mkdir()
            saved(folder, "model", COPIED)
            (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
            found = fitted([Checkpoint.open(folder)], held("base", body()))[0]
            assert bool(found.ties) == tied
            assert bool(found.heads) != tied

    def test_constant_tables_prove_nothing(self):
        flat = {name: torch.zeros_like(tensor) for name, tensor in COPIED.items()}
        assert set(fit(flat, body()).heads) == {"lm_head.weight"}


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (under("bert.", {name: each for name, each in body().items() if "layer.1" not in name}), "2 missing"),
        (under("bert.", body(width=5)) | head(3), "5 of another shape"),
        (under("bert.", body()) | under("bert.layer.2.", head(4)), "2 extra (layer.2"),
        (head(3), "5 missing"),
        ({"conv.weight": torch.ones(3)}, "5 missing"),
        (
            under("bert.", {**body(), "embeddings.weight": normal(11, 4).float()}),
            "1 of another shape (embeddings.weight",
        ),
    ],
    ids=["missing layer", "another width", "one layer more", "a head alone", "another architecture", "more words"],
)
def test_what_does_not_fit_is_told_under_the_names_that_come_nearest(model, problem):
    assert problem in weights.misfits(fit(model, body()).shared.tensors, body())


def test_two_prefixes_that_fit_are_refused():
    with pytest.raises(ValueError, match=r"in one way, but fit with the prefixes a\. and b\.\. Save the part"):
        fit(under("a.", body()) | under("b.", body()), body())


def test_weights_for_a_network():
    wanted = body()
    assert matched(under("module.", body()), wanted, "file").keys() == wanted.keys()
    with pytest.raises(ValueError, match=r"2 extra \(classifier.bias, classifier.weight\)"):
        matched(under("bert.", body()) | head(3), wanted, "file")
    assert matched(under("bert.", body()) | head(3), wanted, "file", headless=True).keys() == wanted.keys()
    with pytest.raises(ValueError, match="2 of another shape"):
        matched(body() | head(3), body() | head(5), "file", headless=True)
    with pytest.raises(ValueError, match=r"holds an adapter .* Name it as peft:FOLDER"):
        matched({"q.lora_A.weight": torch.ones(1, 2)}, wanted, "file")
