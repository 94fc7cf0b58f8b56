"""Merging methods against closed forms, dense references and the invariances that their definitions have."""

import itertools
import math

import numpy as np
import pytest
import torch
from checkpoint_files import saved
from networks_under_test import normal

from biascope.editing import methods
from biascope.editing.merge import merge
from biascope.editing.methods._method import Factors, MovedTensor
from biascope.editing.methods._ranks import ranked
from biascope.editing.methods._settings import Assigned, Values
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint

SLICE = 37  # of the tests: no tensor ends where a slice does


def changes(name, start, ends, settings=(), *, seed=0, names=None, factors=None):
    """The change of every tensor, by name."""
    models = names or [f"m{k}" for k in range(len(ends))]
    assigned = [each if isinstance(each, Assigned) else Assigned.read(each) for each in settings]
    form = methods.method(name)
    chosen = form(Values(name, form.settings, assigned, models, list(start)), seed=seed)
    parts = {}
    for key, base in start.items():
        parts[key] = MovedTensor.held(key, base, [end[key] - base for end in ends], SLICE)
        if factors:
            parts[key] = MovedTensor(key, tuple(base.shape), base.dtype, parts[key].read, lambda key=key: factors[key])
    for _ in range(chosen.surveys(max((each.dtype for each in start.values()), key=lambda dtype: dtype.itemsize))):
        chosen.survey(list(parts.values()))
    found = {}
    for key, part in parts.items():
        rule = chosen.rule(part)
        found[key] = torch.cat([rule(each) for each in part.read()]).view(part.shape)
    return found, chosen.doubts()


def change(name, moved, settings=(), *, start=None, **how):
    """The change of one tensor that models moved."""
    start = torch.zeros_like(moved[0]) if start is None else start
    return changes(name, {"w": start}, [{"w": start + each} for each in moved], settings, **how)[0]["w"]


def vectors(*columns):
    return [torch.tensor(each, dtype=torch.float64) for each in columns]


def random_matrices(count, rows=9, columns=11):
    return [normal(rows, columns, seed=seed).double() for seed in range(count)]


WITHOUT_FACTORS = [name for name in methods.names() if not name.endswith(":peft")]
USUAL = {"task_arithmetic": ["weight=0.4"], "dare:mergekit": ["density=0.5"], "della:mergekit": ["density=0.5"]}


@pytest.mark.parametrize("name", WITHOUT_FACTORS)
def test_the_order_of_the_models_does_not_matter(name):
    """Random masks too belong to a model, not to its place; SLERP is turned around with its ends."""
    start = {"a.0.w": normal(6, 8, seed=7).double(), "a.1.b": normal(5, seed=8).double()}
    ends = [
        {key: tensor + 0.1 * normal(*tensor.shape, seed=20 + k).double() for key, tensor in start.items()}
        for k in range(2)
    ]
    one, _ = changes(name, start, ends, USUAL.get(name, ()), names=["x", "y"])
    other, _ = changes(name, start, ends[::-1], USUAL.get(name, ()), names=["y", "x"])
    for key in start:
        assert torch.allclose(one[key], other[key], atol=1e-12)


@pytest.mark.parametrize("name", WITHOUT_FACTORS)
def test_models_that_are_the_base_leave_it(name):
    start = {"a.0.w": normal(6, 8, seed=7).double(), "a.1.b": normal(5, seed=8).double()}
    found, _ = changes(name, start, [start, start], USUAL.get(name, ()))
    assert all(float(each.abs().max()) < 1e-12 for each in found.values())


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "slerp",
        "slerp:mergekit",
        "nuslerp",
        "nuslerp:mergekit",
        "model_stock",
        "sce:mergekit",
        "ties:mergekit",
    ],
)
def test_a_mean_of_equal_models_is_the_model(name):
    start = {"w": normal(6, 8, seed=7).double()}
    end = {"w": start["w"] + 0.1 * normal(6, 8, seed=1).double()}
    found, _ = changes(name, start, [end, end])
    assert torch.allclose(start["w"] + found["w"], end["w"], atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_are_those_of_a_sort(dtype):
    values = torch.cat(
        [normal(500, seed=3).to(dtype), torch.zeros(50, dtype=dtype), torch.full((40,), 0.5, dtype=dtype)]
    )
    ordered = values.abs().sort(descending=True).values
    for rank in (1, 2, 77, 300, 590):
        found = ranked(lambda: ([part] for part in values.split(200)), [[rank]], dtype)
        assert found.threshold(0, 0) == float(ordered[rank - 1])
        cut = found.cut(0, 0, exact=True)
        kept = torch.cat([cut.kept(part) for part in values.split(200)])
        assert int(kept.sum()) == rank
        assert float(values[kept].abs().min()) == float(ordered[rank - 1])


def test_task_arithmetic_adds_and_linear_averages():
    a, b = vectors([2.0, 0.0], [0.0, 4.0])
    assert change("task_arithmetic", [a, b], ["weight:m0=0.5", "weight:m1=-1"]).tolist() == [1.0, -4.0]
    assert change("linear", [a, b], ["weight:m1=3"]).tolist() == [0.5, 3.0]
    start = torch.tensor([10.0, 10.0], dtype=torch.float64)
    assert change("linear", [a, b], ["normalize=false", "weight=2"], start=start).tolist() == [34.0, 38.0]


def test_slerp_stays_on_the_sphere_and_keeps_its_speed():
    a, b = (normal(30, seed=seed).double() for seed in (1, 2))
    a, b = 3 * a / a.norm(), 3 * b / b.norm()
    places = [a, *(change("slerp", [a, b], [f"t={t}"]) for t in (0.25, 0.5, 0.75)), b]
    assert all(float(each.norm()) == pytest.approx(3) for each in places)
    cosines = [float(one @ two) / 9 for one, two in itertools.pairwise(places)]
    assert np.ptp(cosines) < 1e-12
    alone = change("slerp", [b - a], ["t=0.25"], start=a)  # from the base to the only model
    assert torch.allclose(a + alone, places[1])


def test_slerp_between_close_models_has_an_exact_angle_and_says_that_it_is_the_mean():
    start = {"w": normal(2000, seed=1).double()}
    ends = [{"w": start["w"] + 1e-7 * normal(2000, seed=seed).double()} for seed in (2, 3)]
    found, doubts = changes("slerp", start, ends)
    assert torch.allclose(found["w"], (ends[0]["w"] + ends[1]["w"]) / 2 - start["w"], rtol=0, atol=2e-14)
    assert "is the linear mean here" in doubts[0]
    assert (
        changes("slerp", {"w": torch.zeros(2)}, [{"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 1.0])}])[1]
        == []
    )


def test_nuslerp_of_a_layer_that_one_model_changed():
    """There is no angle to nothing: half of the change, where mergekit's counts it as orthogonal."""
    a, nothing = vectors([3.0, 4.0], [0.0, 0.0])
    assert change("nuslerp", [a, nothing]).tolist() == [1.5, 2.0]
    assert change("nuslerp:mergekit", [a, nothing]).norm().item() == pytest.approx(5 * math.sqrt(0.5))


def test_nuslerp_of_opposite_changes_is_told():
    moved, other = random_matrices(2)
    start = {"w": torch.zeros_like(moved)}
    for back, told in ((1e-3 * other - moved, True), (other, False)):
        _, doubts = changes("nuslerp", start, [{"w": moved}, {"w": back}])
        assert any("nearly opposite directions" in each for each in doubts) == told


def test_ties_worked_by_hand():
    """Six numbers, density one half: each model keeps its three largest; 4 + 3 elect plus, −5 + 2 minus, 1 and 6 stand alone."""
    a = [4.0, -5.0, 0.1, 1.0, 0.2, 0.0]
    b = [3.0, 2.0, 0.1, 0.0, -6.0, 0.3]
    assert change("ties", vectors(a, b), ["density=0.5"]).tolist() == [3.5, -5.0, 0.0, 1.0, -6.0, 0.0]
    assert change("ties", vectors([2.0, 1.0], [-2.0, 1.0]), ["density=1"]).tolist() == [
        0.0,
        1.0,
    ]  # a tie elects no sign
    assert change("ties:mergekit", vectors([2.0, 1.0], [-2.0, 1.0])).tolist() == [2.0, 1.0]  # or plus


def test_ties_trims_the_whole_vector_and_mergekit_each_tensor():
    start = {"large": torch.zeros(10), "small": torch.zeros(10)}
    end = {"large": torch.arange(1.0, 11.0), "small": 0.01 * torch.arange(1.0, 11.0)}
    whole, _ = changes("ties", start, [end], ["density=0.5"])
    assert torch.equal(whole["large"], end["large"])
    assert not whole["small"].any()
    tensors, _ = changes("ties:mergekit", start, [end], ["density=0.5"])
    assert [int(each.count_nonzero()) for each in tensors.values()] == [5, 5]


def test_ties_of_mergekit_elects_by_weighted_changes():
    """1 against −0.9: the weights 1 and 2 turn the sign; the divisor is the weight of who agrees."""
    a, b = vectors([1.0], [-0.9])
    assert change("ties:mergekit", [a, b], ["weight:m1=2"]).tolist() == [-0.9]
    assert change("ties:mergekit", [a, b], ["weight:m1=2", "normalize=false"]).tolist() == [-1.8]
    # A negative weight is divided out again: the model is not negated.
    assert change("ties:mergekit", [a], ["weight=-0.5"]).tolist() == [1.0]


@pytest.mark.parametrize(("name", "mean"), [("dare", 1.0), ("dare:mergekit", None)])
def test_dare_keeps_a_share_and_the_mean(name, mean):
    moved = torch.ones(20_000, dtype=torch.float64)
    found = change(name, [moved], ["density=0.25"])
    kept = float((found != 0).double().mean())
    assert kept == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 20_000))
    # The paper divides by the density, mergekit by the share that this mask happened to keep.
    assert float(found.max()) == pytest.approx(1 / 0.25 if mean else 1 / kept)
    assert torch.equal(found, change(name, [moved], ["density=0.25"]))
    assert not torch.equal(found, change(name, [moved], ["density=0.25"], seed=1))
    assert not torch.equal(found, change(name, [moved], ["density=0.25"], names=["other"]))


def test_dare_is_unbiased():
    moved = normal(40, seed=4).double()
    draws = torch.stack([change("dare", [moved], ["density=0.3"], seed=seed) for seed in range(200)])
    error = draws.std(0) / math.sqrt(len(draws))
    assert bool(((draws.mean(0) - moved).abs() < 5 * error).all())


def test_della_keeps_large_changes_more_often_by_rows():
    """Rows of ten: entry of rank r is kept with probability 0.4 + 0.02 r, and rescaled by it."""
    moved = torch.arange(1.0, 11.0, dtype=torch.float64).repeat(1500, 1)
    found = change("della", [moved], ["density=0.5", "epsilon=0.2"])
    shares = 0.4 + 0.02 * np.arange(1, 11)
    kept = (found != 0).double().mean(0).numpy()
    assert np.all(np.abs(kept - shares) < 5 * np.sqrt(shares * (1 - shares) / 1500))
    assert np.allclose(found.max(0).values.numpy() * shares, np.arange(1, 11))
    theirs = change("della:mergekit", [moved], ["density=0.5", "epsilon=0.1"])
    kept, shares = (theirs != 0).double().mean(0).numpy(), np.linspace(0.4, 0.6, 10)
    assert np.all(np.abs(kept - shares) < 5 * np.sqrt(shares * (1 - shares) / 1500))
    assert float(theirs.abs().sum()) == pytest.approx(float(moved.sum()))


def test_della_divides_by_the_probability_to_the_last_digit():
    (moved,) = random_matrices(1)
    found = change("della", [moved], ["density=0.2", "epsilon=0"])
    assert torch.allclose(found[found != 0], 5 * moved[found != 0], rtol=1e-14)


def test_breadcrumbs_cut_both_ends():
    moved = torch.tensor([1.0, -10.0, 2.0, 9.0, -3.0, 4.0, 8.0, -5.0, 6.0, 7.0], dtype=torch.float64)
    kept = torch.where((moved.abs() > 3) & (moved.abs() < 9), moved, 0.0)
    assert torch.equal(change("breadcrumbs", [moved], ["beta=0.3", "gamma=0.8", "weight=1"]), kept)
    assert torch.equal(change("breadcrumbs:mergekit", [moved], ["density=0.5", "gamma=0.2"]), kept)
    assert torch.equal(change("breadcrumbs:mergekit", [moved], ["density=1", "gamma=0.2"]), moved)
    _, doubts = changes("breadcrumbs", {"w": torch.zeros(4)}, [{"w": torch.ones(4)}], ["beta=0.9", "gamma=0.9"])
    assert doubts == ["Nothing of m0 is kept in 1 of 1 tensors: the shares that are cut leave less than one number."]


def test_model_stock_goes_as_far_as_the_angle_says():
    """Two vectors of 60°: t = 2 · ½ / (1 + ½) = 2/3 of their mean. It is the point of the plane nearest to the base's shadow."""
    a, b = vectors([2.0, 0.0], [1.0, math.sqrt(3)])
    assert torch.allclose(change("model_stock", [a, b]), (a + b) / 2 * 2 / 3)
    # Three orthogonal vectors do not agree at all; three equal ones do.
    assert change("model_stock", list(torch.eye(3).double())).abs().max() == 0
    small = [1e-4 * each for each in (a, b)]
    assert torch.allclose(change("model_stock", small), (small[0] + small[1]) / 2 * 2 / 3)
    assert float(change("model_stock:mergekit", small).norm()) < 0.1 * float(change("model_stock", small).norm())


def test_model_stock_away_from_all_models_is_told():
    start = {"w": torch.zeros(2)}
    found, doubts = changes("model_stock", start, [{"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([-0.5, 1.0])}])
    assert float(found["w"][0]) < 0
    assert "lies behind the base" in doubts[0]


def test_sce_worked_by_hand():
    """All four numbers vary but the second: half of three is one, the first. It counts alone for the weights, 9 : 1."""
    a, b = vectors([3.0, 1.0, 0.5, 0.2], [-1.0, 1.0, 0.4, 0.0])
    assert change("sce", [a, b], ["select_topk=0.5"]).tolist() == [3.0, 0.0, 0.0, 0.0]
    found = change("sce", [a, b], ["select_topk=1"])
    first, second = float(a @ a), float(b @ b)
    assert found[2].item() == pytest.approx((0.5 * first + 0.4 * second) / (first + second))


def test_sce_of_mergekit_is_uniform_for_small_changes_and_says_so():
    a, b = vectors([5e-4, 1e-4], [1e-4, 1e-4])
    start = {"w": torch.zeros(2, dtype=torch.float64)}
    found, doubts = changes("sce:mergekit", start, [{"w": a}, {"w": b}])
    assert torch.allclose(found["w"], (a + b) / 2)
    assert "the same weight" in doubts[0]
    paper, none = changes("sce", start, [{"w": a}, {"w": b}], ["select_topk=1"])
    assert float(paper["w"][0]) > 4.5e-4
    assert not none


def test_tsv_m_merges_tasks_of_their_own_directions_whole_and_makes_others_orthogonal():
    a, b = torch.zeros(4, 6).double(), torch.zeros(4, 6).double()
    a[0, 0], a[1, 1], b[2, 3], b[3, 5] = 5.0, 2.0, 3.0, -1.0
    assert torch.allclose(change("tsv_m", [a, b]), a + b)  # nothing overlaps: nothing is changed
    deltas = random_matrices(3)
    kept = sorted((float(s) for delta in deltas for s in torch.linalg.svdvals(delta)[: 9 // 3]), reverse=True)
    # U⊥ and V⊥ are orthogonal, so that the singular values of the merge are those that were kept.
    assert np.allclose(torch.linalg.svdvals(change("tsv_m", deltas)), kept)
    assert torch.allclose(change("tsv_m", vectors([1.0], [3.0])), vectors([2.0])[0])


def test_tsv_m_of_more_tasks_than_rank_is_told():
    found, doubts = changes("tsv_m", {"w": torch.zeros(2, 5)}, [{"w": torch.ones(2, 5)}] * 3)
    assert not found["w"].any()
    assert "0 singular vectors" in doubts[0]


def test_tsv_m_of_a_layer_that_a_model_left_or_that_two_share_has_no_arbitrary_direction():
    one, other = random_matrices(2)
    (u, s, v), zero = torch.linalg.svd(one, full_matrices=False), torch.zeros_like(one)
    assert torch.allclose(change("tsv_m", [one, zero]), (u[:, :4] * s[:4]) @ v[:4])
    assert torch.allclose(change("tsv_m", [one, zero, other, zero]), change("tsv_m", [zero, other, zero, one]))
    assert torch.allclose(change("tsv_m", [one, one.clone()]), (u[:, :4] * s[:4]) @ v[:4])


def test_iso_c_makes_singular_values_equal():
    deltas = random_matrices(3)
    found, total = change("iso_c", deltas), sum(deltas)
    sizes = torch.linalg.svdvals(total)
    assert np.allclose(torch.linalg.svdvals(found), float(sizes.mean()))
    left, _, right = torch.linalg.svd(total, full_matrices=False)
    assert torch.allclose(left.T @ found @ right.T, sizes.mean() * torch.eye(9).double(), atol=1e-9)
    low = torch.outer(torch.ones(4), torch.arange(3.0)).double()  # of rank one: what no task moved stays
    assert np.allclose(torch.linalg.svdvals(change("iso_c", [low]))[1:], 0, atol=1e-12)


def test_knots_is_ties_in_the_shared_basis():
    """Adapters whose outputs are the same orthogonal directions: the aligned matrices are known, and TIES of them is dense algebra."""
    basis = torch.linalg.qr(normal(8, 8, seed=5).double())[0][:, :3]
    sides = [normal(3, 6, seed=seed).double() for seed in (1, 2)]
    deltas = [basis @ side for side in sides]
    stacked = torch.cat(deltas, 1)
    left, sizes, right = torch.linalg.svd(stacked, full_matrices=False)
    aligned = [(sizes[:3, None] * part[:3]) for part in right.split(6, 1)]
    wanted = left[:, :3] @ change("ties", aligned, ["density=0.5"])
    assert torch.allclose(change("knots", deltas, ["density=0.5"]), wanted, atol=1e-9)
    assert torch.allclose(change("knots", deltas[:1], ["density=1"]), deltas[0], atol=1e-9)


def dense_ties(moved, weights_given, density):
    """PEFT's rule by a sort."""
    kept = []
    for each in moved:
        count = int(density * each.numel())
        threshold = each.abs().flatten().sort(descending=True).values[count - 1]
        kept.append(torch.where(each.abs() >= threshold, each, 0.0))
    sign = torch.where(sum(kept) >= 0, 1.0, -1.0)
    agree = [(each.sign() == sign).double() for each in kept]
    total = sum(each * weight * mask for each, weight, mask in zip(kept, weights_given, agree, strict=True))
    return total / sum(agree).clamp(min=1)


@pytest.fixture
def two_adapters():
    return [
        Factors(normal(2, 6, seed=1).double(), normal(5, 2, seed=2).double(), 2.0),
        Factors(normal(2, 6, seed=3).double(), normal(5, 2, seed=4).double(), 0.5),
    ]


def merged_factors(name, adapters, settings):
    start = {"w": torch.zeros(5, 6).double()}
    ends = [{"w": each.scale * each.up @ each.down} if each else start for each in adapters]
    return changes(name, start, ends, settings, factors={"w": adapters})[0]["w"]


def test_factors_are_merged_separately_as_peft_does(two_adapters):
    given = [0.7 * 2.0, -0.4 * 0.5]  # weight · scale; the sign goes to A
    roots = [math.sqrt(abs(each)) for each in given]
    signed = [math.copysign(root, each) for root, each in zip(roots, given, strict=True)]
    down = dense_ties([each.down for each in two_adapters], signed, 0.5)
    up = dense_ties([each.up for each in two_adapters], roots, 0.5)
    settings = ["weight:m0=0.7", "weight:m1=-0.4"]
    assert torch.allclose(merged_factors("ties:peft", two_adapters, [*settings, "density=0.5"]), up @ down)
    summed = [
        sum(root * getattr(each, side) for root, each in zip(r, two_adapters, strict=True))
        for side, r in (("up", roots), ("down", signed))
    ]
    assert torch.allclose(merged_factors("linear:peft", two_adapters, settings), summed[0] @ summed[1])
    assert torch.allclose(
        merged_factors("linear:peft", [two_adapters[0], None], []), 2.0 * two_adapters[0].up @ two_adapters[0].down
    )


def test_products_are_merged_and_cut_to_a_rank(two_adapters):
    products = [each.scale * each.up @ each.down for each in two_adapters]
    whole = dense_ties(products, [1.0, 1.0], 0.5)
    left, sizes, right = torch.linalg.svd(whole)
    wanted = left[:, :2] @ torch.diag(sizes[:2]) @ right[:2]
    assert torch.allclose(merged_factors("ties_svd:peft", two_adapters, ["density=0.5"]), wanted)
    assert torch.allclose(merged_factors("ties_svd:peft", two_adapters, ["density=0.5", "rank=5"]), whole)


def test_methods_of_factors_refuse_whole_weights():
    with pytest.raises(ValueError, match=r"must be LoRA adapters .* Pass adapters"):
        change("ties:peft", vectors([1.0], [2.0]))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("ties", ["density=2"], "density must lie between 0 and 1, got 2"),
        ("ties", ["dens=0.2"], "dens is no setting of ties, which has density, lambda"),
        ("ties", ["density@w=0.2"], "applies to the whole task vector"),
        ("ties", ["lambda:m0=1"], "left out, because all models share it"),
        ("linear", ["weight:zz=1"], "must be one of m0, m1"),
        ("linear", ["weight@zz=1"], "matches none of 1, such as w"),
        ("linear", ["normalize=2"], "normalize must be true or false"),
        ("linear", ["weight=nan"], "must be a finite number"),
        ("linear", ["weight"], "must be spelled NAME=VALUE"),
        ("linear", ["weight:m0=1", "weight:m1=-1"], "must not add up to zero"),
        ("task_arithmetic", [], "needs weight of m0"),
        ("tis", [], "Did you mean 'ties'"),
        ("della:mergekit", ["density=0.1"], "Pass a smaller epsilon"),
    ],
)
def test_what_a_user_can_get_wrong_is_told(name, settings, said):
    with pytest.raises(ValueError, match=said):
        change(name, vectors([1.0], [2.0]), settings)


def test_a_setting_has_one_value():
    for pair in (["weight=0.2", "weight=0.3"], ["weight:m0=0.2", "weight:m0=0.3"], ["weight@w=1", "weight@w=0"]):
        with pytest.raises(ValueError, match=r"weight must have one value, but .* are given\. Leave one of them out\."):
            change("linear", vectors([1.0]), pair)
    change("linear", vectors([1.0]), ["weight=0.2", "weight:m0=0.3", "weight@w=1"])


def test_a_value_for_all_models_that_no_model_takes_is_told(tmp_path):
    """``A=0.7 B=0.3`` are values of models, which go before one of all models, even in some tensors."""
    base, *models = (saved(tmp_path, name, {"w": normal(4, seed=0)}) for name in ("base", "a", "b"))
    given = [(models[0], 0.7), (models[1], 0.3)]
    found = merge(base, given, tmp_path / "out.safetensors", settings=[Assigned.read("weight@w=0")])
    assert any(
        "weight@w=0 has no effect, because each model has a weight of its own. Pass weight:a@w=0" in each
        for each in found.remarks
    )
    found = merge(
        base, [(models[0], 0.7), (models[1], None)], tmp_path / "two.safetensors", settings=[Assigned.read("weight=0")]
    )
    assert not any("has no effect" in each for each in found.remarks)


def test_settings_are_told_as_they_are_spelled():
    form = methods.method("ties:mergekit")
    given = [Assigned.read(each) for each in ("weight:a=0.7", "weight:b=0.3", "density:a@w*=0.5", "normalize=no")]
    told = Values("ties:mergekit", form.settings, given, ["a", "b"], ["w"]).told()
    assert told == "density:a@w*=0.5, weight:a=0.7, weight:b=0.3, normalize=false, density=1, lambda=1"


def test_too_many_and_too_few_models_are_told():
    with pytest.raises(ValueError, match="slerp merges 1 to 2 models, got 3"):
        change("slerp", vectors([1.0], [2.0], [3.0]))
    with pytest.raises(ValueError, match="model_stock merges at least 2 models, got 1"):
        change("model_stock", vectors([1.0]))


def files(folder):
    """A base and two models on disk, larger than a slice."""
    shapes = {"layers.0.w": (600, 500), "layers.1.w": (30, 20), "head.bias": (9,)}
    start = {name: normal(*shape, dtype=torch.float32) for name, shape in shapes.items()}

    def near(seed):
        return {key: each + 0.01 * normal(*each.shape, seed=seed, dtype=torch.float32) for key, each in start.items()}

    return [
        saved(folder, name, params) for name, params in zip(("base", "a", "b"), (start, near(5), near(6)), strict=True)
    ]


@pytest.mark.parametrize("name", ["ties", "slerp", "dare", "della", "sce"])
def test_files_are_merged_as_tensors_in_memory_are(tmp_path, name):
    base, a, b = files(tmp_path)
    start, *ends = (model.params() for model in (base, a, b))
    found = merge(base, [(a, None), (b, None)], tmp_path / "out.safetensors", method=name, seed=3)
    wanted, _ = changes_of_whole(name, start, ends)
    merged = weights.load(tmp_path / "out.safetensors")
    for key in start:
        assert torch.allclose(merged[key], start[key] + wanted[key], atol=1e-6)
    assert found.method == name
    assert name in found.sentence()
    about = Checkpoint.open(tmp_path / "out.safetensors").metadata
    assert about["method"] == name
    assert about["seed"] == "3"


def changes_of_whole(name, start, ends):
    form = methods.method(name)
    chosen = form(Values(name, form.settings, (), ["a", "b"], list(start)), seed=3)
    parts = {key: MovedTensor.held(key, base, [end[key] - base for end in ends]) for key, base in start.items()}
    for _ in range(chosen.surveys(torch.float32)):
        chosen.survey(list(parts.values()))
    rules = ((part, chosen.rule(part)) for part in parts.values())
    return {part.name: torch.cat([rule(each) for each in part.read()]).view(part.shape) for part, rule in rules}, None


def test_equal_models_are_told(tmp_path):
    base, a, _ = files(tmp_path)
    twin = saved(tmp_path, "twin", a.params())
    found = merge(base, [(a, 0.5), (twin, 0.5)], tmp_path / "out.safetensors")
    assert "a and twin have the same weights, so there is nothing to merge." in found.remarks


def test_models_of_one_name_have_masks_of_their_own_in_any_order(tmp_path):
    base, a, b = files(tmp_path)
    for name, model in (("x", a), ("y", b)):
        (tmp_path / name).mkdir()
        saved(tmp_path / name, "m", model.params())
    one, other = (Checkpoint.open(tmp_path / name / "m.safetensors") for name in ("x", "y"))
    for out, models in (("first", [one, other]), ("second", [other, one])):
        merge(base, [(model, None) for model in models], tmp_path / f"{out}.safetensors", method="dare")
    first, second = (weights.load(tmp_path / f"{out}.safetensors") for out in ("first", "second"))
    assert all(torch.allclose(first[key], second[key], atol=1e-6) for key in first)


def test_methods_without_weights_refuse_them(tmp_path):
    base, a, b = files(tmp_path)
    with pytest.raises(ValueError, match=r"ties has no weights of models, got weight:a=0\.5"):
        merge(base, [(a, 0.5), (b, None)], tmp_path / "out.safetensors", method="ties")
