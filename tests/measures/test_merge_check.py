"""The preflight before a merge: its numbers against their definitions, and verdicts where the answer is known."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, network_of, normal
from torch import Tensor, nn

from biascope.editing.heads import Head, identity_head
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.measures.merge_check import likely_labels, merge_check
from biascope.measures.merge_check.forecast import SIGNS_RIGHT, TESTED, WITH_ACCURACIES, WITHOUT, forecast
from biascope.measures.merge_check.methods import compared_methods, recommendation_of, recommended
from biascope.measures.merge_check.result import MergeCheck
from biascope.measures.merge_check.verdict import GRADES, graded, verdict_of
from biascope.results.estimate import Estimate, proportion
from biascope.tasks.task import Arrays

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODELS = ("first", "second")
ENCODER = network_of(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)), readout=None)
HEADS = {name: Head(normal(3, 5, seed=seed), torch.zeros(3)) for seed, name in enumerate(MODELS)}


def samples_of(shift: float, seed: int, count: int = 60) -> Arrays:
    return Arrays(
        {"test": (normal(count, 4, seed=seed) + shift, torch.zeros(count))}, torch.float64, name=f"set {seed}"
    )


TASKS = {"first": samples_of(1.0, 1), "second": samples_of(-1.0, 2)}
CONTROL = samples_of(0.0, 3, 30)


def vectors_of(encoder: Network, models: tuple[str, ...] = MODELS, scale: float = 0.3) -> dict[str, TaskVector]:
    ends = {
        model: {
            name: tensor + scale * normal(*tensor.shape, seed=100 * seed + place)
            for place, (name, tensor) in enumerate(encoder.params.items())
        }
        for seed, model in enumerate(models, 1)
    }
    return {model: TaskVector.between(encoder.params, end, source=model) for model, end in ends.items()}


VECTORS = vectors_of(ENCODER)
ask = functools.partial(merge_check, ENCODER, HEADS, VECTORS, TASKS, grid=4, resamples=100, name="start", run=CPU64)


def outputs(coefficients: tuple[float, ...], head: Head, samples: Arrays) -> Tensor:
    """By the definition: one network at one set of weights."""
    total = sum(
        (alpha * vector for alpha, vector in zip(coefficients, VECTORS.values(), strict=True)),
        start=0.0 * VECTORS["first"],
    )
    return head(ENCODER(samples.splits["test"][0], total.applied(ENCODER.params)))


def differ(one: Tensor, other: Tensor) -> float:
    return float((one.argmax(1) != other.argmax(1)).double().mean())


@pytest.fixture(scope="module")
def found() -> MergeCheck:
    return ask(control=CONTROL)


def test_distances_are_the_definition(found: MergeCheck) -> None:
    assert found.alphas.tolist() == pytest.approx([step / 20 for step in range(21)])
    for task, model in enumerate(MODELS):
        alone = outputs((1.0, 0.0) if task == 0 else (0.0, 1.0), HEADS[model], TASKS[model])
        for place in (0, 7, 20):
            alpha = float(found.alphas[place])
            merged = outputs((alpha, alpha), HEADS[model], TASKS[model])
            assert found.apart[task, place] == pytest.approx(differ(alone, merged), abs=1e-12)
    best = int(found.apart.mean(0).argmin())
    assert found.apart.mean(0)[np.flatnonzero(found.alphas == found.alpha.value)[0]] == found.apart.mean(0)[best]
    assert [loss.value for loss in found.losses] == pytest.approx(
        found.apart[:, list(found.alphas).index(found.alpha.value)]
    )
    low, high = found.as_good
    assert low <= found.alpha.value <= high
    assert found.alpha.low <= found.alpha.value <= found.alpha.high


def test_no_labels_can_make_the_accuracy_fall_by_more(found: MergeCheck) -> None:
    alpha = found.alpha.value
    for task, model in enumerate(MODELS):
        single, merged = (
            outputs(row, HEADS[model], TASKS[model]).argmax(1) for row in ((1.0 - task, float(task)), (alpha, alpha))
        )
        for labels in (single, merged, torch.arange(60) % 3):
            loss = float((single == labels).double().mean() - (merged == labels).double().mean())
            assert loss <= found.losses[task].value + 1e-12
        assert float((single != merged).double().mean()) == pytest.approx(found.losses[task].value)  # attained


@pytest.mark.parametrize("accuracy", [None, 0.6])
def test_the_loss_to_expect_is_that_of_labels_drawn_as_the_model_says(
    found: MergeCheck, accuracy: float | None
) -> None:
    checked = found if accuracy is None else ask(accuracies={"first": accuracy})
    alone = outputs((1.0, 0.0), HEADS["first"], TASKS["first"])
    if accuracy is not None:
        temperatures = torch.logspace(-2, 2, 4001, dtype=alone.dtype)
        sure = torch.stack([(alone / each).softmax(1).amax(1).mean() for each in temperatures])
        alone = alone / temperatures[(sure - accuracy).abs().argmin()]
    merged = outputs((0.35, 0.35), HEADS["first"], TASKS["first"])
    stream = torch.Generator().manual_seed(0)
    labels = torch.multinomial(alone.softmax(1), 20_000, replacement=True, generator=stream)
    rights = [float((each.argmax(1, keepdim=True) == labels).double().mean()) for each in (alone, merged)]
    assert checked.expected is not None
    assert checked.expected[0, 7] == pytest.approx(rights[0] - rights[1], abs=0.003)
    assert accuracy is None or rights[0] == pytest.approx(accuracy, abs=0.003)
    assert np.all((checked.expected >= 0) & (checked.expected <= checked.apart + 1e-12))  # never more than the bound
    told = "Pass its accuracy for a better forecast." in verdict_of(checked)
    assert told == (MODELS[int(np.argmax([loss.value for loss in checked.losses]))] not in checked.tempered)
    losses = checked.expected_losses
    assert all(loss.low <= loss.value <= loss.high for loss in losses)
    for row, loss in zip(checked.tables()["models"], losses, strict=True):
        expected = loss.named(f"{row['model']}, expected drop in accuracy", "share")
        assert row["expected_loss"] == checked.headline()[f"expected_loss:{row['model']}"] == expected


def test_the_merge_is_compared_with_the_base_and_with_the_best_single_model(found: MergeCheck) -> None:
    """By the definition: expected accuracy of each network with every task's head, labels drawn as the task's own model says."""
    alpha = found.alpha.value
    rows = {"start": (0.0, 0.0), "first": (1.0, 0.0), "second": (0.0, 1.0), "merged": (alpha, alpha)}
    own = {model: outputs(rows[model], HEADS[model], TASKS[model]).softmax(1) for model in MODELS}
    classes = {
        name: [outputs(row, HEADS[model], TASKS[model]).argmax(1, keepdim=True) for model in MODELS]
        for name, row in rows.items()
    }
    right = {
        name: np.mean([float(own[model].gather(1, each).mean()) for model, each in zip(MODELS, of, strict=True)])
        for name, of in classes.items()
    }
    best = max(MODELS, key=lambda model: right[model])
    assert found.best_single == found.facts()["best_single"] == best
    for role, rival in (("base", "start"), ("single", best)):
        gain = found.gains[role]
        assert gain.value == pytest.approx(right["merged"] - right[rival], abs=1e-12)
        differ = np.mean(
            [float((a != b).double().mean()) for a, b in zip(classes["merged"], classes[rival], strict=True)]
        )
        assert gain.standard_error >= WITHOUT.spread * differ
        assert gain.low <= gain.value <= gain.high
        assert gain.high <= proportion(float(differ), 120).high + 1e-12  # no labels can make more of it
        assert found.headline()[f"gain_over_{role}"].value == gain.value
    words = found.sentence()
    assert f"{best}, the best single model for all tasks (" in words
    assert "These forecasts rest on the models' own probabilities, not on labels. In a test on 28 merges" in words
    known = ask(accuracies=dict.fromkeys(MODELS, 0.6))
    assert (
        "These forecasts rest on the models' own probabilities and their accuracies, not on labels." in known.sentence()
    )
    half = ask(accuracies={"first": 0.6})
    assert "own probabilities, not on labels" in half.sentence()


def test_the_error_of_forecasts_is_that_of_the_committed_merges() -> None:
    """By the definition, from the merges that were checked and scored: a jackknife over tasks, which merges share."""
    rows = [
        (set(row["pair"]), row)
        for encoder in json.loads((BENCHMARKS / "merge_expected.json").read_text()).values()
        for row in encoder["rows"]
    ]
    tasks = sorted(set.union(*(pair for pair, _ in rows)))
    for error, key in ((WITH_ACCURACIES, "expected"), (WITHOUT, "expected without accuracies")):
        squares = np.array([((row["realised"] - row[key]) / row["bound"]) ** 2 for _, row in rows])
        left_out = [np.sqrt(squares[[task not in pair for pair, _ in rows]].mean()) for task in tasks]
        spread = float(np.sqrt(squares.mean()))
        variance = (len(tasks) - 1) * np.var(left_out)
        assert error.spread == pytest.approx(spread, abs=6e-4)
        assert error.freedom == pytest.approx(spread**2 / (2 * variance), abs=0.06)


def test_the_signs_that_were_right_are_those_of_the_committed_test() -> None:
    rows = json.loads((BENCHMARKS / "merge_forecast.json").read_text())["rows"]
    assert len(rows) == TESTED
    for known, words in ((True, "with accuracies"), (False, "without")):
        for role in ("base", "single"):
            right = 0
            for row in rows:
                mean = {name: float(np.mean(each)) for name, each in row["accuracy"].items()}
                rival = mean["base"] if role == "base" else max(mean[name] for name in row["pair"])
                right += (row["forecasts"][words]["gains"][role]["value"] > 0) == (mean["merged"] > rival)
            assert SIGNS_RIGHT[known][role] == right


@pytest.mark.parametrize(("differ", "sampling"), [(0.1, 0.0), (0.1, 0.03)])
def test_an_interval_of_a_forecast_holds_what_comes_as_often_as_it_says(differ: float, sampling: float) -> None:
    """Errors of the forecast in proportion to what differs, their spread itself estimated, beside those of sampling."""
    stream = np.random.default_rng(0)
    bound, hits, spread, freedom = (
        Estimate(differ, 0.0, differ, 1.0),
        [],
        WITH_ACCURACIES.spread,
        WITH_ACCURACIES.freedom,
    )
    draws = sampling * stream.standard_normal(4000)
    for _ in range(2000):
        true = spread / np.sqrt(stream.chisquare(freedom) / freedom)  # of a spread estimated with so many degrees
        came = 0.02 + true * differ * stream.standard_normal() + sampling * stream.standard_normal()
        hits.append(forecast(0.02, draws, bound, known=True, models=2).contains(came))
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)


def test_maps_are_those_of_the_disentanglement_error(found: MergeCheck) -> None:
    assert found.map_alphas.tolist() == pytest.approx([-1.0, 0.0, 1.0, 2.0])
    assert found.xi is not None
    for i, j in ((0, 3), (2, 2), (3, 1)):
        a, b = float(found.map_alphas[i]), float(found.map_alphas[j])
        terms = [
            differ(outputs(alone, HEADS[model], TASKS[model]), outputs((a, b), HEADS[model], TASKS[model]))
            for model, alone in (("first", (a, 0.0)), ("second", (0.0, b)))
        ]
        assert found.xi[0, i, j] == pytest.approx(sum(terms), abs=1e-12)
    inside = found.xi[0, 1:3, 1:3]
    assert found.low_shares["first and second"].value == (inside < 0.1).mean()


def test_weights_changes_of_outputs_and_control_are_the_definition(found: MergeCheck) -> None:
    first, second = VECTORS.values()
    assert dict(zip(found.layers, found.weights.cosines[:, 0], strict=True)) == pytest.approx(first.cosines(second))
    assert found.weights.totals()["first and second"][0] == pytest.approx(first.cosine(second))
    norms = np.array([list(vector.norms().values()) for vector in (first, second)]).T
    np.testing.assert_allclose(found.task_norms, norms)
    ones = {name: delta.sign() * second.deltas[name].sign() for name, delta in first.deltas.items()}
    assert found.conflicts.sum() == sum(int((product < 0).sum()) for product in ones.values())
    start, own, other = (outputs(row, HEADS["first"], TASKS["first"]) for row in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)))
    own, other = ((each - start) - (each - start).mean(1, keepdim=True) for each in (own, other))
    assert found.effects[0].tolist() == pytest.approx([1.0, float(other.norm() / own.norm())])
    assert found.effect_cosines[0, 1] == pytest.approx(float((own * other).sum() / own.norm() / other.norm()))
    alpha = found.alpha.value
    moved = [
        [differ(outputs((0.0, 0.0), head, CONTROL), outputs(row, head, CONTROL)) for head in HEADS.values()]
        for row in ((alpha, alpha), (1.0, 0.0), (0.0, 1.0))
    ]
    assert found.control is not None
    assert found.control.tolist() == pytest.approx(np.mean(moved, 1).tolist())
    assert found.headline()["control_change"].label == "change on set 3 by the merge"
    assert found.headline()["control_change_alone:second"].value == pytest.approx(found.control[2])


def halves(conflict: bool) -> MergeCheck:
    """A linear network: tasks on inputs of their own, or on the same ones with opposite labels."""
    encoder = Network.of(nn.Linear(40, 2, bias=False)).with_params({"weight": torch.zeros(2, 40)})
    sides = torch.tensor([[1.0], [-1.0]]).expand(2, 20)
    ends = {"a": torch.cat([sides, 0 * sides], 1), "b": torch.cat([0 * sides, sides], 1)}
    x = normal(200, 20, dtype=torch.float32)
    inputs = {"a": torch.cat([x, 0 * x], 1), "b": torch.cat([0 * x, x], 1)}
    if conflict:
        ends["b"], inputs["b"] = -ends["a"], inputs["a"]
    vectors = {name: TaskVector.between(encoder.params, {"weight": end}) for name, end in ends.items()}
    tasks = {name: Arrays({"test": (each, torch.zeros(200))}) for name, each in inputs.items()}
    return merge_check(encoder, dict.fromkeys(tasks, identity_head(2)), vectors, tasks, resamples=50, run=CPU64)


def test_disentangled_models_are_merged_and_opposite_ones_are_not() -> None:
    apart = halves(conflict=False)
    assert apart.grade == "merge"
    assert apart.apart[:, 1:].max() == 0  # any coefficient above 0
    assert apart.alpha.value == 0.5  # the middle of these
    assert apart.as_good == (0.05, 1.0)
    assert apart.losses[0].high > 0  # none of 200 is not none of all
    assert apart.low_shares["a and b"].value > 0.5
    assert apart.effects[0, 1] == 0
    assert apart.chances["merge"] == 1.0
    assert apart.sentence().startswith(
        "Merge: at α = 0.5 (0.05 to 1 is as good), the merged model keeps 100 % of the predictions of a and b on their own samples."
    )
    against = halves(conflict=True)
    assert against.grade == "do not merge"
    assert against.effect_cosines[0, 1] == pytest.approx(-1.0)
    words = against.sentence()
    assert words.startswith(
        "Do not merge these models if each can be used on its own task: even at the best coefficient"
    )
    assert "The task vectors point against each other most in weight (cosine −1.00)." in words


@pytest.mark.parametrize(
    ("apart", "grade"),
    [
        ([[0.6, 0.05], [0.6, 0.05]], "merge"),
        ([[0.6, 0.051], [0.6, 0.0]], "merge with a loss"),
        ([[0.06, 0.04], [0.06, 0.04]], "merge with a loss"),  # not half of the way
        ([[0.6, 0.20], [0.6, 0.0]], "merge with a loss"),
        ([[0.6, 0.21], [0.6, 0.0]], "do not merge"),
        ([[0.1, 0.08], [0.1, 0.09]], "do not merge"),  # not a quarter of the way
        ([[0.1, 0.4], [0.1, 0.4]], "do not merge"),  # the base is best
        ([[0.009, 0.3], [0.0, 0.3]], "undecided"),
    ],
)
def test_the_thresholds_are_those_of_the_documentation(apart: list[list[float]], grade: str) -> None:
    assert graded(np.array(apart)) == grade


def test_models_that_do_what_the_base_does_leave_it_undecided() -> None:
    vectors = {name: 1e-9 * vector for name, vector in VECTORS.items()}
    found = merge_check(ENCODER, HEADS, vectors, TASKS, grid=None, resamples=20, run=CPU64)
    assert found.grade == "undecided"
    assert found.terms is None
    assert "interference" not in found.plots()
    assert "Pass samples of the tasks that the models were fine-tuned on." in found.sentence()


def test_few_samples_are_told(found: MergeCheck) -> None:
    grades = np.array([graded(found.resampled[..., draw]) for draw in range(100)])
    assert found.chances == {grade: float((grades == grade).mean()) for grade in GRADES}
    unsure = found.chances[found.grade] < 0.95
    assert ("The samples are too few for a certain verdict" in found.sentence()) == unsure


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**73])
def test_distances_of_features_do_not_depend_on_their_scale(scale: float) -> None:
    class Scaled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    found = []
    for factor in (1.0, scale):

        def build(factor: float = factor) -> nn.Module:
            module = Scaled(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
            module.scale = factor
            return module

        encoder = network_of(build, readout=None)
        heads = dict.fromkeys(MODELS, identity_head(5))
        found.append(
            merge_check(
                encoder, heads, vectors_of(encoder), TASKS, compared="features", grid=3, resamples=30, run=CPU64
            )
        )
    one, two = found
    assert one.losses[0].value > 0
    np.testing.assert_allclose(two.apart, one.apart, rtol=1e-9)
    np.testing.assert_allclose(two.effects, one.effects, rtol=1e-9)
    assert two.grade == one.grade


def test_three_models_and_features() -> None:
    models = (*MODELS, "third")
    vectors, tasks = vectors_of(ENCODER, models), {**TASKS, "third": CONTROL}
    heads = dict.fromkeys(models, identity_head(5))
    found = merge_check(
        ENCODER,
        heads,
        vectors,
        tasks,
        compared="features",
        grid=3,
        resamples=30,
        control=CONTROL,
        alphas=(0.5, 1.0),
        run=CPU64,
    )
    assert found.alphas.tolist() == [0.0, 0.5, 1.0]
    assert len(found.low_shares) == len(found.pairs) == 3
    total = 0.5 * (vectors["first"] + vectors["second"] + vectors["third"])
    x = TASKS["first"].splits["test"][0]
    one = ENCODER(x, vectors["first"].applied(ENCODER.params))
    two = ENCODER(x, total.applied(ENCODER.params))
    centre = one.mean(0)
    cosine = torch.nn.functional.cosine_similarity(one - centre, two - centre)
    assert found.apart[0, 1] == pytest.approx(float(1 - cosine.mean()))
    assert "cosine of" in found.sentence()
    assert found.expected is None
    assert found.expected_losses == []
    assert found.gains == {}
    assert "cannot be seen from features. Compare them with labels." in found.sentence()
    assert {"cosines", "opposite_moves"} < found.plots().keys()


def test_the_same_after_saving_and_from_a_folder(found: MergeCheck, tmp_path) -> None:
    loaded = MergeCheck.load(found.save(tmp_path / "result"))
    assert loaded.sentence() == found.sentence()
    assert loaded.facts() == found.facts()
    assert found.facts()["grade"] == found.grade
    assert found.facts()["as_good"] == list(found.as_good)
    second = [row["distance"] for row in found.tables()["coefficients"] if row["model"] == "second"]
    assert second == found.apart[1].tolist()
    assert [row["change"] for row in found.tables()["outputs"]] == found.effects.ravel().tolist()
    assert [row["layer"] for row in found.tables()["layers"]] == list(found.layers)
    assert loaded.headline() == found.headline()
    assert loaded.tables() == found.tables()
    run = dataclasses.replace(CPU64, folder=tmp_path)
    first = ask(control=CONTROL, run=run)
    files = sorted(path for path in (tmp_path / "trials").rglob("*.safetensors"))
    times = [path.stat().st_mtime_ns for path in files]
    again = ask(control=CONTROL, run=run)
    assert [path.stat().st_mtime_ns for path in files] == times  # nothing was computed again
    np.testing.assert_array_equal(first.apart, again.apart)
    np.testing.assert_array_equal(first.apart, found.apart)


def test_bad_input_is_one_sentence() -> None:
    for accuracies, said in (
        ({"third": 0.5}, "name models out of first, second"),
        ({"first": 93.0}, "between 0 and 1, got 93"),
    ):
        with pytest.raises(ValueError, match=said):
            ask(accuracies=accuracies)
    with pytest.raises(ValueError, match=r"^A merge needs at least two models, got 1\. Pass another model\.$"):
        merge_check(ENCODER, HEADS, {"first": VECTORS["first"]}, TASKS)
    with pytest.raises(ValueError, match=r"Every model must have samples, but 'second' has none"):
        merge_check(ENCODER, HEADS, VECTORS, {"first": TASKS["first"]})
    with pytest.raises(ValueError, match=r"Every task must have a head, but 'second' has none"):
        merge_check(ENCODER, {"first": HEADS["first"]}, VECTORS, TASKS)
    with pytest.raises(ValueError, match=r"compared must be 'classes' or 'features', got 'logits'"):
        ask(compared="logits")
    with pytest.raises(ValueError, match=r"grid and resamples must be at least 3 and 2, got 2 and 100"):
        ask(grid=2)
    with pytest.raises(ValueError, match=r"alphas must be finite and not negative, got \[-0.5\]"):
        ask(alphas=(-0.5,))  # the first of them, the base, is 0
    with pytest.raises(ValueError, match=r"Maps must have a coefficient from 0 to 1, but 4 from 2 to 3 have none"):
        ask(reach=(2.0, 3.0))
    for wrong in ({"threshold": 0.0}, {"reach": (1.0, 1.0)}):
        with pytest.raises(ValueError, match=r"threshold must be positive, and reach must be an interval"):
            ask(**wrong)
    for wrong in ({"threshold": float("nan")}, {"reach": (0.0, float("inf"))}, {"alphas": (float("nan"),)}):
        with pytest.raises(ValueError, match=rf"^{next(iter(wrong))} of merge_check must be a finite number, got"):
            ask(**wrong)
    one = {model: Head(head.weight[:1], head.bias[:1]) for model, head in HEADS.items()}
    with pytest.raises(ValueError, match=r"The head of first must have at least two outputs to predict classes"):
        merge_check(ENCODER, one, VECTORS, TASKS, run=CPU64)
    single = {model: samples_of(0.0, 1, 1) for model in MODELS}
    with pytest.raises(ValueError, match=r"Comparing features needs at least two samples per model, but first has one"):
        merge_check(ENCODER, HEADS, VECTORS, single, compared="features", run=CPU64)
    x, y = TASKS["first"].splits["test"]
    broken = {**TASKS, "first": dataclasses.replace(TASKS["first"], splits={"test": (x * torch.nan, y)})}
    with pytest.raises(ValueError, match="base must give finite outputs on set 1, but does not"):
        merge_check(ENCODER, HEADS, VECTORS, broken, run=CPU64)
    other = vectors_of(ENCODER.with_params({name: 2 * each for name, each in ENCODER.params.items()}))
    with pytest.raises(ValueError, match=r"Task vectors must start from the weights of the encoder"):
        merge_check(ENCODER, HEADS, other, TASKS, run=CPU64)


def test_a_merge_that_destroys_the_network_changes_every_prediction() -> None:
    class Root(nn.Module):
        """Fine up to a weight of 1, not a number beyond it."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([(1 - self.weight.sum()).sqrt() + 0 * x[:, 0], 0.1 * x[:, 0]], 1)

    encoder = network_of(Root, readout=None).with_params({"weight": torch.zeros(2, dtype=torch.float64)})
    ends = {model: torch.eye(2, dtype=torch.float64)[place] for place, model in enumerate(MODELS)}
    vectors = {model: TaskVector.between(encoder.params, {"weight": 0.8 * end}) for model, end in ends.items()}
    heads = dict.fromkeys(MODELS, identity_head(2))
    tasks = {model: samples_of(0.0, seed) for seed, model in enumerate(MODELS, 1)}
    found = merge_check(encoder, heads, vectors, tasks, grid=None, resamples=20, run=CPU64)
    assert np.all(found.apart[:, found.alphas > 0.63] == 1)  # 1.6 α > 1
    assert np.all(found.apart[:, found.alphas < 0.6] < 0.2)


def test_outputs_of_any_scale_are_tempered() -> None:
    outputs = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for scale in (1e-6, 1.0, 1e7):
        assert float(likely_labels(scale * outputs, 0.7).amax(-1).mean()) == pytest.approx(0.7, abs=1e-3)


def test_no_changed_prediction_of_few_is_no_certainty() -> None:
    gentle = vectors_of(ENCODER, scale=1e-3)
    found = merge_check(ENCODER, HEADS, gentle, TASKS, grid=None, resamples=20, run=CPU64)
    assert found.losses[0].value == 0
    assert found.expected_losses[0].high == found.losses[0].high > 0


class Unsteady(nn.Module):
    """A network whose outputs are not a function of one sample, in one of several ways."""

    def __init__(self, how: str, size: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.how, self.size, self.calls = how, size, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        outputs = self.inner(x)
        other = {
            "random": lambda: torch.randn_like(outputs),
            "dropout": lambda: nn.functional.dropout(outputs) - outputs,
            "numpy": lambda: outputs * float(np.random.default_rng().normal()),
            "counting": lambda: torch.full_like(outputs, float(self.calls)),
            "mean": lambda: outputs.mean(0, keepdim=True).expand_as(outputs),
            "sorted": lambda: outputs.sort(0).values - outputs,
            "size": lambda: torch.full_like(outputs, float(len(x))),
            "nan": lambda: torch.full_like(outputs, torch.nan),
        }[self.how]()
        return outputs + self.size * other


@pytest.mark.parametrize("size", [1.0, 1e-4])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("random", "must give the same outputs for the same samples, but two passes differ by"),
        ("dropout", r"two passes differ by .* F.dropout needs training=self.training"),
        ("numpy", "two passes differ by"),
        ("counting", "two passes differ by"),
        ("mean", "must give a sample the same outputs in every batch, but they change by"),
        ("sorted", "the same outputs in every batch"),
        ("size", "the same outputs in every batch"),
        ("nan", "base must give finite outputs on set 1"),
    ],
)
def test_outputs_that_are_no_function_of_a_sample_are_refused(how: str, size: float, message: str) -> None:
    encoder = network_of(lambda: Unsteady(how, size), readout=None)
    with pytest.raises(ValueError, match=message):
        merge_check(encoder, HEADS, vectors_of(encoder), TASKS, grid=None, resamples=10, run=CPU64)


def test_a_steady_network_in_single_precision_is_not_refused() -> None:
    encoder = network_of(
        lambda: nn.Sequential(nn.Linear(4, 300), nn.Dropout(0.5), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 5)),
        readout=None,
    )
    run = dataclasses.replace(CPU64, precision="float32")
    merge_check(encoder, HEADS, vectors_of(encoder), TASKS, grid=None, resamples=10, run=run)


def test_a_model_that_does_not_predict_the_labels_of_its_samples_is_told() -> None:
    """Images on another scale, or samples in another order, end in a verdict about inputs that the models never saw."""
    alone = {"first": (1.0, 0.0), "second": (0.0, 1.0)}
    own = {model: outputs(alone[model], HEADS[model], TASKS[model]).argmax(1) for model in MODELS}

    def warned(labels: dict[str, Tensor], **known: float) -> list[str]:
        tasks = {
            model: dataclasses.replace(TASKS[model], splits={"test": (TASKS[model].splits["test"][0], labels[model])})
            for model in MODELS
        }
        return merge_check(
            ENCODER, HEADS, VECTORS, tasks, grid=None, resamples=10, accuracies=known or None, run=CPU64
        ).warnings

    wrong = {**own, "second": (own["second"] + 1) % 3}
    assert all(len(labels.unique()) > 1 for labels in own.values())
    assert warned(own) == []
    assert warned(own, first=1.0, second=0.95) == []
    (told,) = warned(wrong)
    assert told.startswith(
        "second predicts 0 % of the labels of set 2 correctly, not more than the most frequent class."
    )
    assert "--pixels" in told
    (told,) = warned(wrong, first=1.0, second=0.9)
    assert "correctly, but its accuracy was given as 90 %. Check that second was trained on this scale" in told
    assert warned({model: torch.full((60,), -1) for model in MODELS}, first=0.5, second=0.5) == []  # no labels


def test_cosines_with_the_base_are_the_definition(found: MergeCheck) -> None:
    base = torch.cat([tensor.flatten() for tensor in ENCODER.params.values()])
    for model, vector in VECTORS.items():
        move = torch.cat([vector.deltas[name].flatten() for name in ENCODER.params])
        cosine = float(base @ move / (base.norm() * move.norm()))
        assert found.base_cosines[model] == pytest.approx(cosine, abs=1e-12)
        assert found.headline()[f"base_cosine:{model}"].value == pytest.approx(cosine, abs=1e-12)
    assert "warnings" not in found.provenance
    assert dataclasses.replace(found, base_dots=None).base_cosines == {}  # a result of an older version


def test_weight_decay_in_task_vectors_is_told() -> None:
    decayed = {
        model: TaskVector.between(
            ENCODER.params, {name: 0.9 * vector.applied(ENCODER.params)[name] for name in ENCODER.params}
        )
        for model, vector in vectors_of(ENCODER, scale=0.02).items()
    }
    found = merge_check(ENCODER, HEADS, decayed, TASKS, grid=None, resamples=40, name="start", run=CPU64)
    (warning,) = found.provenance["warnings"]
    assert warning.startswith("Weight decay is part of the task vector of first (cosine −0.")
    assert "it shrank start by 1" in warning
    assert all(cosine < -0.5 for cosine in found.base_cosines.values())
    assert found.weights.totals()["first and second"][0] > 0.5  # which is why the two vectors overlap


@pytest.fixture(scope="module")
def side_by_side() -> MergeCheck:
    return ask(
        methods=("task_arithmetic weight=1 lambda=0.35", "task_arithmetic weight=1", "linear", "linear weight=3")
    )


def test_methods_are_compared_by_the_same_distances(side_by_side: MergeCheck) -> None:
    """Task arithmetic as a method has the distances of its coefficient; the best of the scales is taken where none is given."""
    found, apart = side_by_side, side_by_side.methods_apart
    assert apart is not None
    assert np.array_equal(apart[:, 0], found.apart[:, 7])
    means = {scale: found.apart[:, round(20 * scale)].mean() for scale in (0.2, 0.4, 0.6, 0.8, 1.0)}
    assert apart[:, 1].mean() <= min(means.values())
    assert found.scales[0] == ""
    assert float(found.scales[1].removeprefix("lambda=")) in (
        0.2,
        0.4,
        0.6,
        0.8,
        1.0,
        1.2,
        1.4,
        1.6,
        1.8,
        2.0,
        2.5,
        3.0,
    )
    merged = outputs((0.5, 0.5), HEADS["first"], TASKS["first"])
    assert apart[0, 2] == differ(outputs((1.0, 0.0), HEADS["first"], TASKS["first"]), merged)
    rows = found.tables()["methods"]
    assert rows[0]["method"] == f"task_arithmetic weight={found.alpha.value:g}"
    assert rows[3]["way"].value == pytest.approx(1 - apart[:, 2].mean() / found.apart[:, 0].mean())


def test_equal_methods_do_not_differ_significantly(side_by_side: MergeCheck) -> None:
    """The mean with weights 1 and 3 each is one merge: nothing separates the two."""
    same = dataclasses.replace(
        side_by_side,
        methods=("linear", "linear weight=3"),
        scales=("", ""),
        apart=np.ones_like(side_by_side.apart),
        resampled=np.ones_like(side_by_side.resampled),
        methods_apart=side_by_side.methods_apart[:, 2:],
        methods_resampled=side_by_side.methods_resampled[:, 2:],
    )
    name, gap = recommended(same)
    assert (name, gap.value, gap.low, gap.high) == ("linear", 0.0, 0.0, 0.0)
    assert "linear and linear weight=3 do not differ significantly" in recommendation_of(same)


def test_a_better_method_is_named_with_a_paired_interval(side_by_side: MergeCheck) -> None:
    """Both methods vary by far more than they differ; on the same samples, the difference is certain."""
    noise = np.random.default_rng(0).normal(0.5, 0.1, (2, 1, 100))
    better = dataclasses.replace(
        side_by_side,
        methods=("ties", "sce"),
        scales=("lambda=1", ""),
        apart=np.ones_like(side_by_side.apart),
        resampled=np.ones_like(side_by_side.resampled),
        methods_apart=np.array([[0.5, 0.45]] * 2),
        methods_resampled=np.concatenate([noise, noise - 0.05], 1),
    )
    name, gap = recommended(better)
    assert name == "sce"
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.05, 0.05, 0.05))
    assert "sce changes least: 45 % of predictions on average, 5 points less than ties lambda=1" in recommendation_of(
        better
    )


def test_a_method_that_changes_no_sample_is_not_known_to_change_none(side_by_side: MergeCheck) -> None:
    """Resamples of samples that all agree have no spread, and show nothing of others."""
    found = dataclasses.replace(
        side_by_side,
        methods=("ties",),
        scales=("",),
        methods_apart=np.zeros((2, 1)),
        methods_resampled=np.zeros((2, 1, side_by_side.methods_resampled.shape[-1])),
    )
    shown = found.headline()["method_change:ties"]
    assert shown.low == 0 < shown.high < 0.1
    rows = compared_methods(found)
    assert all(rows[1][name].low < rows[1][name].high for name in ("mean_change", "worst_change", "way"))


def test_methods_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="merges the factors of adapters"):
        ask(methods=("ties:peft",))
    with pytest.raises(ValueError, match="Did you mean 'ties'"):
        ask(methods=("tie",))
