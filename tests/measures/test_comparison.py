"""Which effective ranks differ is decided by the intervals that are printed."""

import dataclasses

import numpy as np
import pytest
from torch import nn

from biascope.families.family import Family
from biascope.measures.average_geometry import Geometry, average_geometry
from biascope.measures.covariance.compare import side_by_side
from biascope.results.estimate import Estimate
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

FAMILY = Family.initialised(lambda: nn.Linear(6, 1), name="linear")


@pytest.fixture(scope="module")
def plain() -> Geometry:
    return average_geometry(FAMILY, Probe.gaussian((6,), num=2, fresh=True), draws=8, run=Run(device="cpu"))


def differ(plain: Geometry, *ranks: Estimate) -> np.ndarray:
    return side_by_side([dataclasses.replace(plain, effective_rank=rank) for rank in ranks]).differences()


def test_ranks_differ_where_intervals_lie_apart_and_not_where_one_holds_the_other(plain: Geometry) -> None:
    generator, seen = np.random.default_rng(0), [0, 0]
    for _ in range(300):
        one, two = (
            Estimate.of_positive(generator.uniform(1, 60), generator.uniform(0, 12), generator.uniform(1, 31)).within(
                1.0, 64.0
            )
            for _ in range(2)
        )
        verdict = bool(differ(plain, one, two)[0, 1])
        if one.low > two.high or two.low > one.high:
            assert verdict
            seen[0] += 1
        if one.contains(two.value) or two.contains(one.value):
            assert not verdict
            seen[1] += 1
    assert min(seen) > 30


def test_few_draws_of_a_long_tail_show_no_difference_beyond_their_interval(plain: Geometry) -> None:
    few, many = Estimate.of_positive(10.0, 2.0, 3.0), Estimate.of_positive(20.0, 1.0, 31.0)
    assert few.high > 20  # a normal difference is 4.5 of its errors
    assert not differ(plain, few, many)[0, 1]


def test_all_pairs_together_have_the_level_of_one(plain: Geometry) -> None:
    one, two, third = (Estimate.of_positive(value, 1.0, 5.0) for value in (20.0, 24.6, 200.0))
    assert differ(plain, one, two)[0, 1]
    verdict = differ(plain, one, two, third)
    assert not verdict[0, 1]
    assert verdict[0, 2]
    assert verdict[1, 2]
    exact = Estimate.exact(3.0)
    assert differ(plain, exact, Estimate.exact(3.1), third)[0, 1]
    assert not differ(plain, exact, Estimate(50.0))[0, 1]  # of unknown spread


def test_halves_that_are_too_few_to_compare_are_no_number(plain: Geometry) -> None:
    few = dataclasses.replace(plain, similarity=np.full_like(plain.similarity, np.nan))
    assert "nan" not in repr(side_by_side([few, few]))
    assert "–" in repr(side_by_side([few, few])).splitlines()[1]
