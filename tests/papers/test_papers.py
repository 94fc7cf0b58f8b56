"""The papers' figures: each runs from start to picture at the smallest effort, and says what it claims."""

import dataclasses
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from figures_at_smoke import RUN_ELSEWHERE, checked

from biascope import papers
from biascope.papers.nads2020.energy import comb_share
from biascope.papers.nads2020.released import against_published, published_accuracies
from biascope.results import estimate
from biascope.runs.run import Run

matplotlib.use("Agg")
EVERY = {paper: [figure.number for figure in papers.find(paper).figures] for paper in papers.names()}
FIGURES = [
    (paper, number)
    for paper, numbers in EVERY.items()
    for number in numbers
    if number not in RUN_ELSEWHERE.get(paper, ())
]
NEED_NO_IMAGES = {
    ("linearized2021", number) for number in ("4.4", "4.5", "theorem 4.1", "theorem 4.2", "equation 4.14")
} | {
    ("nads2020", each.number)
    for each in papers.find("nads2020").figures
    if each.number not in ("7", "8", "3.13", "E", "D.1", "6 released")
}
NEED_NO_IMAGES |= {("geometry2025", number) for number in ("1", "3", "5", "10", "12", "13", "14", "9", "A.12")}
NEED_NO_IMAGES |= {("geometry2025", number) for number in ("3.1", "proposition A.1", "A.5", "15", "A.11", "A.12.1")}
NEED_NO_IMAGES |= {
    ("patterns2021", each.number) for each in papers.find("patterns2021").figures if each.number not in ("2", "5-7")
}
NEED_NO_IMAGES |= {
    ("dictionaries2022", number)
    for number in (
        *("Section 5.2", "Theorem 5.1", "Equation 5.7", "5.6 meta-learned", "C.1", "C.2", "C.2 draws"),
        *(f"5.{n}" for n in range(2, 8)),
    )
}
NEED_NO_IMAGES |= {("task_arithmetic2023", each.number) for each in papers.find("task_arithmetic2023").figures}
ONLY_AT_PAPER_EFFORT = {("linearized2021", "4.3")}  # one network that takes a GPU


@pytest.mark.parametrize(("paper", "number"), FIGURES)
def test_every_figure_runs_and_draws(paper: str, number: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = papers.figure(paper, number)
    run = Run(device="cpu", folder=tmp_path / number, progress=False)
    if (paper, number) not in NEED_NO_IMAGES:
        root = request.getfixturevalue("data_root")
        needed = {"patterns2021": "MNIST", "dictionaries2022": "celeba_gray64.npz"}.get(paper, "cifar-10-batches-bin")
        needed = "published" if number in ("D.1", "6 released") else needed
        if not (root / needed).exists():
            pytest.skip(f"BIASCOPE_DATA has no {needed}")
        run = dataclasses.replace(run, data_root=root)
    if (paper, number) in ONLY_AT_PAPER_EFFORT:
        assert "paper effort" in found("smoke", run).notes[0]
    else:
        checked(found, run)


def test_what_is_run_elsewhere_is_there() -> None:
    assert all(numbers <= set(EVERY[paper]) for paper, numbers in RUN_ELSEWHERE.items())


def test_every_claim_is_a_sentence_of_its_own_about_a_network_or_a_theory() -> None:
    for paper in papers.names():
        for figure in papers.find(paper).figures:
            statements = [claim.statement for claim in figure.claims]
            assert len(set(statements)) == len(statements)
            assert all(statement.endswith(".") for statement in statements)


def test_published_accuracies_are_matched_by_frequency(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    rows = ["x,y,acc_lr,acc_ln,acc_rn,acc_dn,acc_vgg"]
    rows += [f"{x},{y},0,{x + 100 * y},0,0,0" for x in range(16) for y in range(16)]
    (folder / "dft_accuracies.csv").write_text("\n".join(rows))
    published = published_accuracies("lenet", Run(device="cpu", data_root=tmp_path))
    assert published is not None
    assert published[0, 0] == 8 + 100 * 8  # entry (8, 8) is frequency zero
    labels = [("Re", 0, 0), ("Re", 2, 0), ("Re", 3, 0), ("Re", 31 - 1, 0)]
    ours, theirs = against_published(labels, np.array([0.5, 0.6, 0.7, 0.8]), published)
    assert ours.tolist() == pytest.approx([50, 60, 80])  # (3, 0) is not on their lattice
    assert theirs.tolist() == [808, published[2, 0], published[-2, 0]]
    assert published_accuracies("lenet", Run(device="cpu", data_root=folder)) is None


def test_bootstrap_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        sample = generator.standard_normal(40)
        hits += estimate.bootstrapped(np.mean, sample, resamples=200).contains(0.0)
    assert 86 <= hits <= 100


def test_proportions_stay_between_zero_and_one() -> None:
    for accuracy in (0.0, 0.5, 1.0):
        found = estimate.proportion(accuracy, 100)
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.high - found.low > 0.01


def test_a_comb_of_spikes_is_told_from_noise() -> None:
    comb = np.zeros((32, 32))
    comb[::8, ::8] = 1.0  # in the Fourier domain, spikes at multiples of 4
    assert comb_share(comb.ravel()) == pytest.approx(1.0)
    assert comb_share(np.random.default_rng(0).standard_normal(1024)) < 0.25
