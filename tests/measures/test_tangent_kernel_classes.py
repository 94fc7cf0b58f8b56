"""Which classes a tangent kernel learns first: closed forms, the order's intervals, and what is said of them."""

import math

import numpy as np
import pytest
import torch
from pictures_under_test import assert_whole
from torch import nn

from biascope.families.family import Family
from biascope.measures.scan import require_samples
from biascope.measures.tangent_kernel import TangentSpectrum, tangent_kernel
from biascope.measures.tangent_kernel.classes import ClassShare, class_shares, order_in_words
from biascope.measures.tangent_kernel.pictures import classes_figure
from biascope.results.document import result_as_json
from biascope.results.estimate import Estimate
from biascope.results.report import write_report
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

EXACT = Run(device="cpu", precision="float64")
LABELS = torch.arange(4).repeat_interleave(5)
NAMES = ("ant", "bee", "cow", "dog")


def classes_of(labels: torch.Tensor, names: tuple[str, ...] = ()) -> torch.Tensor:
    """Centred one-against-rest labels as rows of unit length."""
    each = torch.eye(int(labels.max()) + 1, dtype=torch.float64)[labels].T
    each = each - each.mean(1, keepdim=True)
    return each / each.norm(dim=1, keepdim=True)


def along_classes() -> torch.Tensor:
    """Inputs whose principal components are classes: ant along the first, bee against cow and dog among the others, the rest last."""
    first = classes_of(LABELS)[0]
    last = classes_of(LABELS)[3] - first * (first @ classes_of(LABELS)[3])
    basis = torch.linalg.qr(torch.stack([first, last / last.norm()], 1)).Q
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 3)))
    noise = noise - basis @ (basis.T @ noise) - noise.mean(0)
    noise = torch.linalg.qr(noise - basis @ (basis.T @ noise)).Q
    return torch.cat([9 * basis[:, :1], 5 * noise, 0.1 * basis[:, 1:]], 1)


def linear(names: tuple[str, ...] = NAMES, leading: int = 4) -> TangentSpectrum:
    data = Arrays({"train": (along_classes(), LABELS)}, torch.float64, "toy data", names)
    return tangent_kernel(
        Family.point(nn.Linear(5, 1, bias=False).double(), name="linear"), data, leading=leading, run=EXACT
    )


def test_a_linear_network_learns_the_class_along_its_first_function_first() -> None:
    result = linear()
    found = {one.name: one for one in result.classes}
    assert result.classes[0].name == "ant"
    assert found["ant"].share.value == pytest.approx(1.0, abs=1e-12)
    # dog is 1 part in (T − 1)² along ant, and the rest of it along the last function, which is left out
    y = classes_of(LABELS)
    assert float(y[0] @ y[3]) ** 2 == pytest.approx(1 / 9)
    assert result.classes[-1].name == "dog"
    assert found["dog"].share.value == pytest.approx(1 / 9, abs=1e-10)
    whole = linear(leading=5)
    assert {one.name: one.share.value for one in whole.classes}["dog"] == pytest.approx(1.0, abs=1e-10)


def test_of_one_network_the_ends_are_named_without_an_interval() -> None:
    result = linear()
    assert "The class learned first is ant (100 %). The class learned last is dog (11.1 %)." in result.sentence()
    assert "one network at given weights, so there is no interval over draws" in result.sentence()
    assert all(one.share.confidence == 1.0 for one in result.classes)


def test_table_numbers_story_and_document_have_every_class() -> None:
    result = linear()
    rows = result.tables()["classes"]
    assert [row["class"] for row in rows] == [one.name for one in result.classes]
    assert [row["samples"] for row in rows] == [5] * 4
    assert {row["chance"] for row in rows} == {4 / 20}
    assert result.headline()["class_share:0"].value == pytest.approx(1.0)
    entry = result_as_json(result)
    assert entry["tables"]["classes"][0]["class"] == "ant"
    assert {"key": "class_share", "case": "3"}.items() <= entry["numbers"][-1].items()
    story = result.story()
    assert "classes" in story.shown_tables
    assert "samples" in story.meaning
    assert [one.shown_by for one in story.sentences][:2] == ["label_energy", "class_shares"]


def test_the_report_shows_names_of_classes_as_text(tmp_path) -> None:
    result = linear(("<b>ant", "bee", "cow", "$dog_1$"))
    page = write_report([result], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<b>ant" not in page
    assert "Share of each class's labels" in page.replace("&#39;", "'")


def test_two_classes_have_no_order() -> None:
    data = Arrays({"train": (along_classes(), (LABELS > 1).long())}, torch.float64)
    result = tangent_kernel(Family.point(nn.Linear(5, 1, bias=False).double()), data, leading=4, run=EXACT)
    assert result.classes == ()
    assert result.tables() == {}
    assert "learned" not in result.sentence()
    assert "class_shares" not in result.plots()
    assert not [key for key in result.headline() if key.startswith("class_share")]


def test_shares_of_an_orthonormal_kernel_are_chance() -> None:
    """K = I: any functions span a random subspace, on which centred labels lie by (k − 1)/(n − 1) to k/(n − 1)."""
    random = torch.linalg.qr(torch.from_numpy(np.random.default_rng(1).standard_normal((400, 40)))).Q
    energy = (classes_of(torch.arange(400) % 4) @ random).square().sum(1).numpy()
    found = class_shares(energy[None], range(4), "abcd", [100] * 4, exact=True)
    assert all(abs(one.share.value - 0.1) < 4 * math.sqrt(2 * 40) / 400 for one in found)


def drawn(centres: np.ndarray, draws: int, seed: int) -> tuple[ClassShare, ...]:
    """Shares around centres, with what all classes share in a draw and what each has of its own."""
    noise = np.random.default_rng(seed)
    energy = centres + 0.05 * noise.standard_normal((draws, 1)) + 0.01 * noise.standard_normal((draws, len(centres)))
    names = [f"c{at}" for at in range(len(centres))]
    return class_shares(energy.clip(0, 1), range(len(centres)), names, [5] * len(centres), exact=False)


def test_equal_classes_are_told_apart_in_a_twentieth_of_all_measurements() -> None:
    wrong = sum(any(one.learned for one in drawn(np.full(10, 0.4), 8, seed)) for seed in range(400))
    assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_differences_are_taken_within_draws() -> None:
    """What all classes share in a draw hides no difference, though each share's own interval is wide."""
    found = drawn(np.array([0.425, 0.4, 0.4, 0.4, 0.375]), 8, 0)
    assert [one.learned for one in found] == ["first", "", "", "", "last"]
    assert found[0].share.low < found[-1].share.high
    assert found[0].above_average.value == pytest.approx(0.025, abs=0.01)
    words = order_in_words(found, 8, exact=False)
    assert words.startswith("The class learned first is c0 (")
    assert "The class learned last is c4 (" in words
    assert "c1" not in words
    assert "over 8 networks" in words


def test_shares_have_intervals_of_student() -> None:
    energy = np.array([[0.2, 0.5, 0.6], [0.3, 0.5, 0.7], [0.25, 0.4, 0.9]])
    found = class_shares(energy, range(3), "abc", [5] * 3, exact=False)
    assert [one.name for one in found] == ["c", "b", "a"]
    values = energy[:, 0]
    expected = Estimate.from_error(float(values.mean()), float(values.std(ddof=1) / math.sqrt(3)), 3)
    assert found[-1].share.low == pytest.approx(expected.low)
    assert found[-1].above_average.confidence == pytest.approx(1 - 0.05 / 3)


def test_words_depend_on_what_the_draws_tell() -> None:
    equal = drawn(np.full(4, 0.4), 8, 1)
    assert "do not tell which of the 4 classes" in order_in_words(equal, 8, exact=False)
    one = drawn(np.array([0.5, 0.4, 0.3]), 1, 0)
    assert math.isnan(one[0].share.low)
    assert not one[0].learned
    assert "One network was drawn, which does not tell whether others agree" in order_in_words(one, 1, exact=False)
    same = class_shares(np.full((1, 3), 0.4), range(3), "abc", [5] * 3, exact=True)
    assert (
        order_in_words(same, 1, exact=True) == "All 3 classes have the same share of their labels on these functions."
    )
    tied = class_shares(np.array([[0.4, 0.4, 0.1]]), range(3), "abc", [5] * 3, exact=True)
    assert "The classes learned first are a (40 %) and b (40 %)." in order_in_words(tied, 1, exact=True)


def test_of_many_classes_five_at_either_end_are_named() -> None:
    centres = np.concatenate([np.full(7, 0.8), np.full(16, 0.5), np.full(7, 0.2)])
    words = order_in_words(drawn(centres, 8, 0), 8, exact=False)
    assert words.count("(") == 11, words
    assert words.count("and 2 others") == 2
    exact = class_shares(
        np.linspace(0.9, 0.1, 30)[None], range(30), [f"c{at}" for at in range(30)], [5] * 30, exact=True
    )
    words = order_in_words(exact, 1, exact=True)
    assert "first are c0 (90 %), " in words
    assert "last are c25 (" in words
    assert words.count("(") == 10


def test_rare_classes_are_told() -> None:
    found = class_shares(np.array([[0.5, 0.4, 0.3]]), range(3), "abc", [50, 40, 10], exact=True)
    assert "The classes have 10 to 50 samples here. A rare class has a smaller share for that reason alone." in (
        order_in_words(found, 1, exact=True)
    )


def test_a_rare_class_of_the_same_law_has_a_smaller_share() -> None:
    """Both are on one side of the first coordinate; the rarer one is the smaller part of the same function."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((120, 3)))
    labels = torch.where(x[:, 0] < 0, 0, torch.where(torch.arange(120) % 6 == 0, 2, 1))
    family = Family.point(nn.Linear(3, 1, bias=False).double())
    result = tangent_kernel(family, Arrays({"train": (x, labels)}, torch.float64), leading=3, run=EXACT)
    share = {one.label: one.share.value for one in result.classes}
    assert share[2] < share[1] / 2


@pytest.mark.parametrize("count", [4, 12, 40])
@pytest.mark.parametrize("draws", [1, 8])
def test_pictures_of_few_and_many_classes(count: int, draws: int) -> None:
    found = drawn(np.linspace(0.7, 0.1, count), draws, 0)
    assert_whole(lambda dark: classes_figure(found, 0.05, 50, dark=dark), 1)


@pytest.mark.parametrize("labels", [torch.linspace(0, 1, 20), torch.zeros(20, dtype=torch.int64)])
def test_a_scan_refuses_labels_that_are_no_classes_before_any_work(labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="Labels must be class numbers of at least two classes"):
        require_samples(Arrays({"train": (along_classes(), labels)}))
