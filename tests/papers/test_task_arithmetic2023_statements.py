"""Chapter 6: statements of the thesis against our claims, the evidence of fine-tuning, and the migration of its results."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from biascope import papers
from biascope.papers import reproduce as reproduction
from biascope.papers.reproduce import RESULTS
from biascope.papers.task_arithmetic2023 import editing, tasks
from biascope.runs.run import Run

PAPER = papers.find("task_arithmetic2023")
MIGRATION = Path(__file__).resolve().parents[2] / "migrations" / "single_runs_task_arithmetic2023.py"
WITHOUT_CODE = {
    "post_hoc_sum_is_less_accurate_on_each_task",
    "best_coefficient_below_one",
    "small_rates_help_task_arithmetic",
    "low_error_grows_with_size",
    "sum_grows_with_size",
    "control_accuracy_is_similar",
    "linearised_lead_falls_with_size",
    "linearised_inference_takes_two_to_three_times",
    "linearised_gradient_takes_twice",
    "linearised_training_needs_twice_the_memory",
    "localised_eigenfunctions_suffice",
    "localisation_is_necessary_under_independence",
    "cancellation_may_replace_localisation",
    "fourier_kernels_cannot",
    "localisation_is_alike_for_all_classes",
    "large_random_network_is_worse",
    "gaps_fall_with_size",
    "normalised_features_help",
}


def test_every_statement_has_a_claim_or_is_listed_without_one() -> None:
    named = {claim.of for figure in PAPER.figures for claim in figure.claims}
    assert {each.key for each in PAPER.statements} - named == WITHOUT_CODE
    assert "" not in named  # every claim of this chapter tests a statement


def test_text_encoders_and_bounds_of_ours_do_not_count() -> None:
    for figure in PAPER.figures:
        assert figure.published
        for claim in figure.claims:
            if tasks.TEXT in claim.statement and "search box" not in claim.statement:
                assert claim.kind == "ours", claim.statement
            if claim.kind == "paper":
                bound_of_a_comparison = (0.0, 0.5, 0.1, -0.1, 1 / 400)
                assert claim.tolerance in bound_of_a_comparison, claim.statement


def test_claims_about_fine_tuned_encoders_ask_whether_they_were() -> None:
    for figure in PAPER.figures:
        for claim in figure.claims:
            about_the_start = figure.number == "6.9" or claim.of == "random_weights_learn_single_tasks"
            assert bool(claim.trained) != about_the_start, claim.statement


@pytest.fixture(scope="module")
def found() -> tasks.Study:
    return tasks.study(tasks.CNN, "smoke", Run(device="cpu", progress=False))


def test_no_fine_tuning_is_no_progress(found: tasks.Study) -> None:
    idle = tuple(
        {tuning: {task: 0.0 * vector for task, vector in of.items()} for tuning, of in seed.items()}
        for seed in found.vectors
    )
    numbers = tasks.progress(dataclasses.replace(found, vectors=idle), Run(device="cpu", progress=False))
    assert list(numbers) == [each.statistic for each in tasks.fine_tuned(tasks.CNN, *tasks.RATES[tasks.CNN])]
    assert all(number.value == 0 for number in numbers.values())
    evidence = tasks.fine_tuned(tasks.CNN, "non-linear")[0]
    assert not evidence.passes(numbers[evidence.statistic])


def test_progress_is_the_share_of_training_errors_that_are_gone(found: tasks.Study) -> None:
    run = Run(device="cpu", progress=False)
    numbers = tasks.progress(found, run)
    shares = []
    for seed in found.vectors:
        accuracies = []
        for task, vector in seed["non-linear"].items():
            x, y = found.tasks[task].splits["train"]
            head, start = found.heads[task], found.encoder.params
            ends = (start, {name: start[name] + vector.deltas[name] for name in start})
            accuracies.append([(head(found.encoder(x, end)).argmax(-1) == y).double().mean() for end in ends])
        before, after = torch.tensor(accuracies).mean(0).tolist()
        shares.append(100 * (after - before) / (1 - before))
    key = tasks.fine_tuned(tasks.CNN, "non-linear")[0].statistic
    assert numbers[key].value == pytest.approx(np.mean(shares), abs=1e-4)


def test_one_seed_alone_has_no_spread_and_several_join_samples() -> None:
    assert np.isnan(tasks.over_seeds(np.array([3.0])).standard_error)
    both = tasks.over_seeds(np.array([0.0, 2.0]), np.array([[-3.0, 3.0], [-1.0, 5.0]]))
    assert both.standard_error == pytest.approx(np.hypot(1, 3))


def test_a_gain_is_compared_only_where_something_was_merged(found: tasks.Study) -> None:
    result = editing.added(found, Run(device="cpu", progress=False))
    nothing = dataclasses.replace(result, chosen=np.zeros_like(result.chosen))
    assert np.isnan(editing._gained(nothing, "non-linear").value)
    something = dataclasses.replace(result, chosen=np.ones_like(result.chosen))
    assert editing._gained(something, "non-linear") == editing._gain(result, "non-linear")


def test_the_migration_of_results_is_done_and_changes_nothing_more(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(RESULTS / PAPER.name, tmp_path / PAPER.name))
    done = subprocess.run(
        [sys.executable, MIGRATION, tmp_path], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "0 files rewritten"
    assert all(path.read_bytes() == (RESULTS / PAPER.name / path.name).read_bytes() for path in copy.glob("*.json"))


def test_records_name_their_learning_rates_among_the_differences() -> None:
    figure = papers.figure(PAPER.name, "table 6.1")
    differences = {each.setting: each for each in reproduction.committed(figure)["paper"].differences(figure)}
    assert differences["rate: EfficientNet-Lite0, non-linear"].published == "1e-05"
    assert differences["rate: EfficientNet-Lite0, non-linear"].ours == "0.001"
    assert differences["steps"].ours == "500"
