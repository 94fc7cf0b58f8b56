"""The 2025 paper: its statements and claims, evidence of training, spreads of single trainings, and the migration of its numbers."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from biascope import papers
from biascope.papers import reproduce as reproduction
from biascope.papers.geometry2025 import circles, learning, motion, samples
from biascope.papers.geometry2025.shared import least, over_trainings
from biascope.papers.geometry2025.statements import WITHOUT_CLAIM
from biascope.papers.reproduce import RESULTS, Standing
from biascope.results.estimate import Estimate, Number

PAPER = papers.find("geometry2025")
CLAIMS = [(figure, claim) for figure in PAPER.figures for claim in figure.claims]
MIGRATION = Path(__file__).resolve().parents[2] / "migrations" / "single_runs_geometry2025.py"
OF_UNTRAINED_NETWORKS = {"7", "9", "A.4", "A.12"}  # figures of networks at initialisation


def standing(figure: str, statistic: str) -> Standing:
    found = papers.figure("geometry2025", figure)
    known = reproduction.judged(found, reproduction.committed(found).values())
    return next(each for each in known if each.claim.statistic == statistic)


def test_every_statement_has_a_claim_of_the_paper_or_a_reason() -> None:
    tested = {claim.of for _, claim in CLAIMS if claim.kind == "paper" and not claim.post_hoc}
    assert tested | WITHOUT_CLAIM.keys() == {each.key for each in PAPER.statements}
    assert not tested & WITHOUT_CLAIM.keys()


def test_every_claim_on_trained_networks_names_the_evidence_that_they_trained() -> None:
    for figure, claim in CLAIMS:
        untrained = figure.number in OF_UNTRAINED_NETWORKS or "initialised" in claim.statistic
        assert bool(claim.trained) != untrained, f"{figure.number}: {claim.statement}"


def test_claims_of_the_paper_have_its_bounds() -> None:
    """A bound other than 0 or 1 belongs to an equality, a limit or a number that the paper prints."""
    bounds = {claim.tolerance for _, claim in CLAIMS if claim.kind == "paper"} - {0.0, 1.0}
    printed = {
        0.02,
        -0.02,
        0.099,
        -0.9,
        97.3,
    }  # random vectors, a constant matrix, a printed slope of −1, blindness to u₂
    near = {
        0.05,
        0.1,
        0.95,
        0.99,
        3.0,
        10.0,
        60.0,
        90.0,
        95.0,
        99.0,
    }  # "identical", "perfect", "100 %", "a random guess"
    assert bounds <= printed | near


def test_no_verdict_of_figure_3_rests_on_networks_that_did_not_train() -> None:
    for key in ("lenet", "resnet_18", "vit"):
        for statistic in ("velocity_on_g_over_flip_g", "training_accuracy_on_g_minus_flip_g"):
            judged = standing("3", f"{key}_{statistic}").judgement
            assert (judged.verdict, judged.counts) == ("inconclusive", False)
            assert judged.reason.startswith("did not train")


@pytest.mark.parametrize(
    ("figure", "statistic"),
    [("8", "resnet_18_cross_entropy_lead_of_gsg_over_s"), ("14", "sinusoidal_least_lead_of_the_early_direction")],
)
def test_other_networks_at_chance_decide_nothing(figure: str, statistic: str) -> None:
    assert standing(figure, statistic).judgement.reason.startswith("did not train")


def test_one_training_has_no_known_spread_and_several_share_the_error_of_their_test_samples() -> None:
    one = learning.difference(np.array([90.0]), np.array([50.0]))
    assert one.value == 40
    assert math.isnan(one.standard_error)
    apart = learning.difference(np.array([90.0, 91.0, 92.0]), np.array([50.0, 50.0, 50.0]))
    assert apart.standard_error == pytest.approx(1 / math.sqrt(3))
    same = learning.difference(np.array([90.0, 91.0, 92.0]), np.array([50.0, 50.0, 50.0]), shared=2000)
    test_error = math.hypot(100 * math.sqrt(0.91 * 0.09 / 2000), 100 * math.sqrt(0.25 / 2000))
    assert same.standard_error == pytest.approx(math.hypot(apart.standard_error, test_error))
    assert same.high - same.value == pytest.approx(math.hypot(apart.high - apart.value, 1.96 * test_error))


def test_joined_intervals_stay_where_the_number_can_lie() -> None:
    found = over_trainings([99.9, 100.0, 100.0], common=0.5, within=(0.0, 100.0))
    assert found.high == 100
    assert found.low < 99.9


def test_the_least_of_numbers_is_unknown_if_one_of_them_is() -> None:
    assert math.isnan(least([Estimate(5.0, 1.0, 3.0, 7.0), Estimate(6.0)]).low)


@pytest.mark.parametrize("radii", [(3.0, 0.25), (1.5, 0.25)])
def test_no_threshold_on_the_first_axis_beats_the_bound_for_blindness_to_the_second(radii: tuple[float, float]) -> None:
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, (2, 200_000))
    outer, inner = np.abs(np.asarray(radii)[:, None] * np.cos(angle))
    best = max(((outer > at).mean() + (inner <= at).mean()) / 2 for at in np.linspace(0.01, 0.5, 200))
    assert 100 * best == pytest.approx(circles._without_the_second_axis(radii), abs=0.15)


def moved(accuracy: list[float]) -> Any:
    runs = len(accuracy)
    velocity = np.array([0.1, 0.3])
    left_out = velocity[:, None] + 0.01 * np.arange(runs)
    return SimpleNamespace(
        velocity=velocity, velocity_left_out=left_out, train_accuracy=np.array([accuracy]), runs=runs
    )


@pytest.mark.parametrize(
    ("on_flipped", "expected"), [([0.498, 0.498, 0.502], 0.0), ([0.498, 0.53, 0.498], 100 / 3), ([0.5, 0.6, 0.9], 100)]
)
def test_a_network_with_one_answer_for_all_samples_is_found_by_its_accuracy(
    on_flipped: list[float], expected: float
) -> None:
    both = {"G": moved([0.9, 0.8, 0.7]), "flip(G)": moved(on_flipped)}
    found = motion._compared("LeNet", both, share=0.502)
    assert found["lenet_runs_on_flip_g_with_more_than_one_answer_percent"].value == pytest.approx(expected)
    assert found["lenet_velocity_on_g_over_flip_g"].value == pytest.approx(1.0)
    assert math.isfinite(found["lenet_velocity_on_g_over_flip_g"].standard_error)


def cells() -> dict[str, Number]:
    found = {}
    for removed, shift in ((30, 1.0), (50, -4.0)):
        at_random, by_score = samples.PUBLISHED["lenet"][removed]
        start = f"lenet_clipped_{removed}_percent_removed"
        numbers = {"at_random": at_random, "by_score": by_score + shift, "lead_of_the_score": shift}
        found |= {f"{start}_{key}": Estimate(each, 0.1, each, each).named(key) for key, each in numbers.items()}
    return found


def test_claims_on_tables_take_the_worst_cell() -> None:
    sizes = {"runs": 5, "test": 10_000}
    found = samples.over_cells("lenet", "lenet_clipped", "LeNet, clipped", cells(), epochs=50, **sizes)
    assert found["lenet_clipped_least_lead_of_the_score"].value == -4
    assert found["lenet_clipped_least_lead_of_the_score"].standard_error > 0.5, "test images have an error too"
    assert found["lenet_clipped_largest_distance_from_the_published_accuracies"].value == pytest.approx(4.0)
    assert found["lenet_clipped_lowest_accuracy"].value == pytest.approx(58.5 - 4)
    short = samples.over_cells("lenet", "lenet_clipped", "LeNet, clipped", cells(), epochs=20, **sizes)
    assert not any("published" in key for key in short), "shorter trainings are not compared with the paper's"
    assert samples.over_cells("vit", "vit_clipped", "ViT, clipped", cells(), epochs=50, **sizes) == {}


def migrate(folder: Path) -> str:
    done = subprocess.run([sys.executable, MIGRATION, folder], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def numbers_of(path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if change is not None:
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")
    return document["efforts"]["paper"]["statistics"]


def test_the_migration_takes_back_spreads_that_were_never_measured_and_is_done(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(RESULTS / "geometry2025", tmp_path / "geometry2025"))
    count = len(list(copy.glob("*.json")))
    assert migrate(tmp_path) == f"0 of {count} files rewritten"
    key = "resnet_18_velocity_on_g_over_flip_g"
    added = "lenet_runs_on_flip_g_with_more_than_one_answer_percent"

    def as_before(document: dict[str, Any]) -> None:
        statistics = document["efforts"]["paper"]["statistics"]
        statistics[key] |= {"standard_error": 0.0, "low": 6703.0, "high": 6703.0, "confidence": 1.0}
        del statistics[added]

    before = numbers_of(copy / "3.json")
    numbers_of(copy / "3.json", as_before)
    assert migrate(tmp_path) == f"1 of {count} files rewritten"
    assert numbers_of(copy / "3.json") == before
    assert before[key]["standard_error"] is None
    assert before[added]["value"] == 0
