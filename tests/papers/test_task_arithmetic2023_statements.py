"""Chapter 6: statements of the thesis against our claims, and the evidence of fine-tuning."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from biascope import papers
from biascope.measures.task_addition import TaskAddition
from biascope.papers.task_arithmetic2023 import (
    costs,
    disentanglement,
    editing,
    plans,
    propositions,
    rates,
    sizes,
    tasks,
)
from biascope.papers.verdicts import RESULTS
from biascope.results.claim import EFFORTS, Trained
from biascope.results.estimate import Number, proportion
from biascope.results.finding import Tell
from biascope.results.plan import Row
from biascope.runs.run import Run

PAPER = papers.find("task_arithmetic2023")
SMOKE = plans.planned(plans.MAPS).row("smoke")
WITHOUT_TUNING = ("6.9", "propositions 6.1 and 6.2", "section 6.5")


def test_text_encoders_and_bounds_of_ours_do_not_count() -> None:
    for figure in PAPER.figures:
        if figure.number in WITHOUT_TUNING[1:]:
            continue  # zero up to rounding, and costs that the thesis prints
        assert figure.published
        for claim in figure.claims:
            if plans.TEXT in claim.statement:
                assert claim.kind == "ours", claim.statement
            if claim.kind == "paper" and claim.of != "control_accuracy_is_similar":
                bound_of_a_comparison = (0.0, 50.0, 0.1, -0.1, 1 / 400)
                assert claim.tolerance in bound_of_a_comparison, claim.statement


def test_each_encoder_of_a_map_has_pairs_of_tasks() -> None:
    rows = [figure.plan.row(effort) for figure in PAPER.figures for effort in EFFORTS]
    maps = [row for row in rows if "pairs" in row]
    assert maps
    for row in maps:
        assert row["pairs"].keys() == set(row["encoders"]) == set(row.networks)  # --network offers these


def test_a_bound_that_random_weights_meet_does_not_count() -> None:
    path = RESULTS / PAPER.name / "6.10.json"
    random = json.loads(path.read_text())["efforts"]["paper"]["statistics"]
    for each in PAPER.figures:
        for claim in each.claims:
            if each.number == "6.4" and claim.of == "low_error_near_pre_trained" and claim.statistic in random:
                met = claim.verdict(Number.from_dict(random[claim.statistic]), "paper") == "reproduced"
                assert not (met and claim.kind == "paper"), claim.statement


def test_claims_about_fine_tuned_encoders_ask_whether_they_were() -> None:
    for figure in PAPER.figures:
        for claim in figure.claims:
            about_the_start = figure.number in WITHOUT_TUNING or claim.of == "random_weights_learn_single_tasks"
            assert bool(claim.trained) != about_the_start, claim.statement


@pytest.fixture(scope="module")
def found() -> tasks.Study:
    return tasks.study(plans.CNN, SMOKE, Run(device="cpu", progress=False))


def evidence() -> dict[str, Trained]:
    """What the claims on the CNN's task addition ask of its fine-tuning, by the key of the number."""
    asked = (each for claim in editing.table_61.claims for each in claim.trained)
    return {each.statistic: each for each in asked if each.statistic.startswith("efficientnet_lite0")}


def test_no_fine_tuning_is_no_progress(found: tasks.Study) -> None:
    idle = tuple(
        {tuning: {task: 0.0 * vector for task, vector in of.items()} for tuning, of in seed.items()}
        for seed in found.vectors
    )
    tell = Tell()
    tasks.tell_progress(dataclasses.replace(found, vectors=idle), Run(device="cpu", progress=False), tell)
    assert tell.numbers.keys() == evidence().keys()
    for key, needed in evidence().items():
        assert tell.numbers[key].value == 0
        assert not needed.passes(tell.numbers[key])


def test_progress_is_the_share_of_training_errors_that_are_gone(found: tasks.Study) -> None:
    tell, shares = Tell(), []
    tasks.tell_progress(found, Run(device="cpu", progress=False), tell)
    for seed in found.vectors:
        accuracies = []
        for task, vector in seed["non-linear"].items():
            x, y = found.tasks[task].splits["train"]
            head, start = found.heads[task], found.encoder.params
            ends = (start, {name: start[name] + vector.deltas[name] for name in start})
            accuracies.append([(head(found.encoder(x, end)).argmax(-1) == y).double().mean() for end in ends])
        before, after = torch.tensor(accuracies).mean(0).tolist()
        shares.append(100 * (after - before) / (1 - before))
    assert tell.numbers["efficientnet_lite0_non_linear_progress"].value == pytest.approx(np.mean(shares), abs=1e-4)


def test_a_gain_is_compared_only_where_something_was_merged(found: tasks.Study) -> None:
    result = editing.added(found, SMOKE, Run(device="cpu", progress=False))
    nothing = dataclasses.replace(result, chosen=np.zeros_like(result.chosen))
    assert np.isnan(editing._gained(nothing, 0).value)
    something = dataclasses.replace(result, chosen=np.ones_like(result.chosen))
    assert editing._gained(something, 0) == editing.gain(result, 0)


def test_all_methods_and_encoders_have_one_learning_rate() -> None:
    for figure in PAPER.figures:
        if figure.number not in WITHOUT_TUNING:
            for effort in ("laptop", "paper"):
                row = figure.plan.row(effort)
                assert row["learning rate"] == 1e-4
                assert row["weight decay pulls to"] == "pre-trained weights"


def test_the_gap_that_is_closed_needs_a_gap(found: tasks.Study) -> None:
    result = editing.added(found, SMOKE, Run(device="cpu", progress=False))
    single, draws = result.single.copy(), result.draws.copy()
    single[:, :, :] = np.array([0.9, 0.5, 0.8])[None, :, None]
    draws[:, :, editing.SINGLE] = np.array([0.9, 0.5, 0.8])[None, :, None]
    assert editing._closed(dataclasses.replace(result, single=single, draws=draws)).value == pytest.approx(0.75)
    single[:, 1] = 0.9
    assert np.isnan(editing._closed(dataclasses.replace(result, single=single, draws=draws)).value)


def test_short_linearised_vectors_are_not_compared(found: tasks.Study) -> None:
    run = Run(device="cpu", progress=False)
    pair = ("mnist", "gtsrb")
    assert disentanglement.relative_lengths(found, pair) == pytest.approx(
        [
            np.mean([each["linearised"][task].norm / each["non-linear"][task].norm for task in pair])
            for each in found.vectors
        ]
    )
    maps = disentanglement.mapped(found, pair, SMOKE, run)
    for lengths, compared in (((0.9, 1.1), True), ((0.9, 0.05), False)):
        tell = Tell(subject="pair")
        disentanglement.tell_maps(tell, maps, np.array(lengths))
        assert np.isfinite(tell.numbers["pair_low_xi_share_linearised_minus_non_linear"].value) == compared


def test_logits_that_are_alike_have_no_variance_between_them() -> None:
    points = np.random.default_rng(0).random(50)
    assert disentanglement._between_logits(np.stack([points] * 3)).value == pytest.approx(0)
    assert disentanglement._between_logits(np.random.default_rng(1).random((40, 50))).value > 0.9


def test_the_peak_of_memory_is_that_of_tensors_alive_at_once() -> None:
    with costs.PeakMemory() as memory:
        kept = [torch.zeros(100) for _ in range(3)]
        kept.clear()
        torch.ones(250).sum()
    assert memory.peak == 3 * 400  # three at once; later one of 1,000 bytes and its sum


def test_a_task_learned_by_a_localised_kernel_is_felt_nowhere_else() -> None:
    for seed in range(3):
        assert propositions.localised_case(seed).worst_interference() == 0
        assert propositions.mixed_case(seed).worst_interference() < 1e-12
        assert not propositions.mixed_case(seed).locally_independent()
        assert propositions.finite_case(seed).locally_independent()
        assert propositions.invariant_case(seed, torus=True).worst_interference() > 0.01
    kernel, functions, _ = propositions.invariant_kernel(False)
    spectrum = np.abs(np.fft.fft(functions, axis=1)) ** 2
    strongest = np.sort(spectrum, axis=1)[:, -2:].sum(1) / spectrum.sum(1)
    values = np.linalg.eigvalsh(kernel)
    assert (strongest[values > 1e-6 * values.max()] > 0.99).all()  # each eigenfunction is one wave


def test_a_region_of_low_error_counts_only_if_it_is_connected_with_the_start() -> None:
    alphas = np.linspace(-3, 3, 6)
    xi = np.ones((2, 6, 6))
    xi[:, :2, :2] = 0.0  # a corner where the network answers with one class
    xi[1, 2:4, 2:5] = 0.0
    assert disentanglement.around(xi, alphas).tolist() == [0.0, 6 / 36]
    xi[1, 1, 2] = 0.0  # now they touch
    assert disentanglement.around(xi, alphas).tolist() == [0.0, 11 / 36]


def test_what_is_kept_is_found_again(found: tasks.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(folder=tmp_path / "figure", device="cpu", progress=False)
    first = editing.added(found, SMOKE, run)
    monkeypatch.setattr("biascope.measures.task_addition.EditedEncoder.on", None)  # computing anything again fails
    again = editing.added(found, SMOKE, run)
    for name in ("alphas", "chosen", "curves", "pretrained", "single", "merged", "draws"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert (first.tasks, first.methods, first.samples) == (again.tasks, again.methods, again.samples)
    assert repr(first.table()) == repr(again.table())


def test_shares_are_compared_only_where_both_ways_edit() -> None:
    values, draws = np.array([[0.5, 0.6, 0.7]] * 2), np.ones((2, 3, 4))
    edited = np.array([[True, False, True]] * 2)
    one, both = Tell(), Tell()
    editing.tell_differences(one, "share", values, draws, edited)
    editing.tell_differences(both, "share", values, draws, edited, both=True)
    assert np.isfinite(one.numbers["share_post_hoc_minus_non_linear"].value)
    assert np.isnan(both.numbers["share_post_hoc_minus_non_linear"].value)
    assert both.numbers["share_linearised_minus_non_linear"].value == pytest.approx(20)


def told(plan: Row, run: Run) -> dict[str, object]:
    """What a figure records about its encoders."""
    tell = Tell()
    tasks.encoders(plan, run, tell)
    return tell.settings


def test_encoders_without_weights_are_left_out_and_those_that_ran_are_recorded(tmp_path: Path) -> None:
    run, plan = Run(device="cpu", data_root=tmp_path), editing.table_61.plan.row("paper")
    (tmp_path / "encoders").mkdir()
    (tmp_path / "encoders" / "efficientnet_lite0.safetensors").touch()
    assert plans.VIT not in tasks.with_weights(plan.networks, plan, run)
    (tmp_path / "encoders" / "vit.safetensors").touch()
    assert {plans.CNN, plans.VIT} <= {*tasks.with_weights(plan.networks, plan, run)}
    recorded = told(SMOKE, run)
    assert recorded["encoders"] == [plans.CNN]
    assert list(recorded["hash of the weights"]) == [plans.CNN]  # type: ignore[call-overload]


def test_seeds_that_agree_do_not_make_an_interval_of_no_width() -> None:
    merged = np.array([[[1.0, 1.0, 0.0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]] * 3)  # (seed, way, task)
    shares = editing._ahead(merged, np.ones((3, 3)), "non-linear", "post-hoc")
    assert shares == proportion(2 / 3, 3).in_percent()  # of three tasks, whatever the number of seeds
    agreeing = 0.025 ** (1 / 3)  # of all seeds at least
    accuracy = editing._accuracy(np.full(3, 0.5), 10_000)
    assert (accuracy.low, accuracy.high) == pytest.approx((50 * agreeing, 100 - 50 * agreeing), abs=0.1)
    chosen = editing.searched(np.full(3, 0.1), np.array([0.0, 0.05, 0.1, 0.2, 0.3]))
    assert chosen.high == pytest.approx(
        0.1 + math.hypot((1 - agreeing) * 0.2, 0.1), rel=1e-4
    )  # the wider of the steps beside it
    start = editing.searched(np.zeros(3), np.array([0.0, 0.01, 0.02, 1.0]))
    assert (start.value, start.low) == (0.0, 0.0)  # no coefficient below the search
    assert start.high == pytest.approx(1 - agreeing, abs=1e-3)
    close = disentanglement.grid_share(
        np.array([1, 1, 1.0001]) / 169, 1 / 169 + np.array([[0, 1e-4]] * 3), 169, least=-1.0
    )
    assert (close.low, close.high) == (
        pytest.approx(0.0, abs=1e-6),
        pytest.approx(2 / 169, abs=1e-6),
    )  # a place to each side
    none = disentanglement.grid_share(np.zeros(3), np.zeros((3, 5)), 400)
    assert (none.value, none.low, none.high) == (0.0, 0.0, pytest.approx(1 - agreeing))
    assert disentanglement.grid_share(np.zeros(3), np.zeros((3, 5)), 400, least=-1.0).low == pytest.approx(agreeing - 1)


def test_a_figure_runs_for_the_encoders_that_are_asked_for() -> None:
    run = Run(device="cpu", progress=False)
    both = plans.planned({"smoke": {"encoders": (plans.CNN, plans.VIT)}})
    assert told(both.row("smoke", [plans.VIT]), run)["encoders"] == [plans.VIT]
    assert told(both.row("smoke"), run)["encoders"] == [plans.CNN, plans.VIT]


def test_heads_at_chance_know_nothing_of_the_encoder() -> None:
    found = tasks.study(plans.CNN, SMOKE, Run(device="cpu", progress=False), random=True, tunings=(), chance=True)
    for task, head in found.heads.items():
        assert torch.allclose(head.weight.norm(dim=1), torch.tensor(tasks.LOGIT_SCALE)), task
        assert not head.bias.any()
        assert head.normalised
    again = tasks.heads_at_chance(found.encoder, found.tasks)
    assert all(torch.equal(again[task].weight, head.weight) for task, head in found.heads.items())
    one, other, _ = found.heads.values()
    assert not torch.equal(one.weight, other.weight)


def test_sizes_of_texts_need_both_encoders(tmp_path: Path) -> None:
    run = Run(device="cpu", data_root=tmp_path, progress=False)
    with pytest.raises(ValueError, match="MiniLM-L3 and MiniLM-L6 must have their"):
        sizes.figure_65("paper", run, [plans.TEXTS[0]])


def test_rates_of_equal_product_have_their_own_number_of_iterations() -> None:
    finding = rates.section_64_settings("smoke", Run(device="cpu", progress=False))
    product = finding.settings["learning rate"] * finding.settings["steps"]
    for rate, steps in finding.settings["iterations by rate"].items():
        assert float(rate) * steps == pytest.approx(product)


def added_to(chosen: float) -> TaskAddition:
    """What addition of two tasks gives, where every seed chooses this coefficient."""
    pretrained = np.full((3, 2), 0.6)
    gained = pretrained[:, None] + 0.1 * chosen
    draws = np.stack([np.full((3, 1, 5), 0.6), np.full((3, 1, 5), 0.9), np.full((3, 1, 5), gained[0, 0, 0])] * 2, 2)[
        :, :, :4
    ]
    return TaskAddition(
        ("a", "b"), ("non-linear",), (100, 100), np.linspace(0, 1, 5), np.full((3, 1), chosen), np.full((3, 1, 5, 2), 0.6),
        pretrained, np.full((3, 1, 2), 0.9), gained, draws,
    )  # fmt: skip


def test_a_gain_without_an_edit_has_no_interval() -> None:
    unedited, edited = Tell(subject="encoder"), Tell(subject="encoder")
    rates.tell_gain_and_coefficient(unedited, "with heads", added_to(0.0))
    rates.tell_gain_and_coefficient(edited, "with heads", added_to(0.5))
    numbers = unedited.numbers
    gain, coefficient = numbers["encoder_gain_with_heads"], numbers["encoder_coefficient_with_heads"]
    assert gain.value == 0
    assert np.isnan([gain.standard_error, gain.low, gain.high]).all()
    assert gain.label.endswith("no edit was chosen")
    assert (coefficient.low, coefficient.high) == (0.0, pytest.approx(math.hypot(1 - 0.025 ** (1 / 3), 0.25), rel=1e-4))
    gain = edited.numbers["encoder_gain_with_heads"]
    assert gain.value == pytest.approx(5.0)
    assert gain.label == "encoder: gain with heads, points"


def test_texts_on_a_laptop_have_the_recipe_of_images() -> None:
    maps = disentanglement.figure_d2.plan
    texts, images = (maps.row("laptop", [name]) for name in (plans.TEXT, plans.CNN))
    assert {name for name in texts if texts[name] != images[name]} == {"pairs", "ways", "points"}
    assert texts["ways"] == {plans.TEXT: ("non-linear",)}
