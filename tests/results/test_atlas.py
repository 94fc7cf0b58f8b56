"""The atlas: its rows, and where a network stands among them."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from biascope.families.family import Family
from biascope.measures.complexity import complexity
from biascope.results import atlas
from biascope.results.atlas import LEAST, QUANTITIES, Peer, Placement, identity, sentence, standing
from biascope.results.axes import InputAxes, named_axes
from biascope.results.estimate import Estimate
from biascope.results.section import sections_of
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

ROOT = Path(__file__).parents[2]
IMAGE = InputAxes.of([], (3, 32, 32))


def peers(
    count: int = 20,
    key: str = "complexity",
    kind: str = "image",
    shape: tuple[int, ...] = (3, 32, 32),
    **more: Estimate,
) -> list[Peer]:
    """Networks whose number is their place: 0, 1, …"""
    return [
        Peer(
            f"net{place}",
            "ours",
            kind,
            "MLP",
            shape,
            10,
            {key: Estimate(float(place)), **more},
            {key: 8},
            "torch 2",
            "today",
        )
        for place in range(count)
    ]


def number(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, (high - low) / 3.92, low, high)


def among(value: float, low: float, high: float, axes: InputAxes = IMAGE, key: str = "complexity") -> Placement:
    return Placement(key, number(value, low, high), axes)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((15.5, 14.5, 16.5), "mine is more complex than 75 to 85 % of 20"),
        ((15.5, 15.2, 15.8), "mine is more complex than 80 % of 20"),
        ((4.5, 3.5, 5.5), "mine is less complex than 70 to 80 % of 20"),
        ((99.0, 50.0, 120.0), "mine is more complex than all 20"),
        ((-9.0, -9.5, -8.0), "mine is less complex than all 20"),
        ((19.5, 16.5, 20.5), "mine is more complex than 85 to 100 % of 20"),
        ((10.0, 10.0, 10.0), "mine is more complex than 50 to 55 % of 20"),  # itself a tie: half of it counts
    ],
)
def test_a_number_is_placed_by_counting_with_the_ends_of_its_interval(
    ends: tuple[float, float, float], words: str
) -> None:
    told = sentence(among(*ends), "mine", peers())
    assert told == f"{words} untrained image networks of the atlas."


def test_equal_numbers_count_half_and_belong_to_both_sides_of_an_interval() -> None:
    same = [dataclasses.replace(peer, numbers={"complexity": Estimate(1.0)}) for peer in peers(12)]
    found = standing(among(1.0, 1.0, 1.0), "mine", [*same, *peers(20)[2:14]])
    assert found is not None
    assert (found.networks, found.below.value, found.below.low, found.below.high) == (24, 0.25, 0.0, 0.5)


def test_a_network_is_not_compared_with_itself() -> None:
    found = standing(among(15.5, 15.2, 15.8), "timm:net15 num_classes=10", peers())
    assert found is not None
    assert found.networks == 19
    assert found.below.value == pytest.approx(15 / 19)
    assert identity("net15 activation=tanh") != identity("net15")
    assert identity("bert (2 layers of width 128, pooled by the model)") == identity("hf-config:bert")


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        (InputAxes.of([], (14,)), "a table"),
        (InputAxes.of(named_axes("time,feature"), (32, 3)), "a sequence"),
        (InputAxes.of(named_axes("node,feature"), (32, 3)), "a graph"),
        (InputAxes.of([], (3, 224, 224)), "an image that is much larger"),
        (InputAxes.of([], (3, 8, 8)), "an image that is much smaller"),
    ],
)
def test_other_inputs_are_not_placed(axes: InputAxes, why: str) -> None:
    assert sentence(among(15.5, 15.2, 15.8, axes), "mine", peers()) == "", why


def test_few_networks_and_wide_intervals_place_nothing() -> None:
    assert sentence(among(5.5, 5.2, 5.8), "mine", peers(LEAST)) != ""
    assert sentence(among(5.5, 5.2, 5.8), "mine", peers(LEAST - 1)) == ""
    assert sentence(among(5.5, 5.2, 5.8), "net3", peers(LEAST)) == ""  # one of them is the network itself
    assert sentence(among(10.0, 1.5, 18.5), "mine", peers()) == ""
    assert sentence(among(10.0, math.nan, math.nan), "mine", peers()) == ""
    assert sentence(among(0.5, 0.4, 0.6, key="few_frequencies"), "mine", peers(key="few_frequencies")) == ""
    assert sentence(among(0.5, 0.4, 0.6, key="mean_dimension_of_9"), "mine", peers(key="mean_dimension_of_9")) == ""


def test_another_shape_of_the_same_kind_is_named_and_no_shift_error_is_compared_with_it() -> None:
    grey = InputAxes.of([], (1, 28, 28))
    assert sentence(among(15.5, 15.2, 15.8, grey), "mine", peers()).endswith(" (theirs measured on 3×32×32 inputs).")
    shifted = peers(key="shift_error")
    assert sentence(among(15.5, 15.2, 15.8, grey, "shift_error"), "mine", shifted) == ""
    same_size = InputAxes.of([], (1, 32, 32))
    assert "80 % of 20" in sentence(among(15.5, 15.2, 15.8, same_size, "shift_error"), "mine", shifted)


def test_favourites_are_compared_where_chance_gives_the_same() -> None:
    known = peers(key="favourite_share", favourite_by_chance=Estimate(0.17))
    ten = Placement("favourite_share", number(15.5, 15.2, 15.8), IMAGE, 0.172)
    assert "80 % of 20" in sentence(ten, "mine", known)
    assert sentence(dataclasses.replace(ten, by_chance=0.55), "mine", known) == ""  # two classes
    assert sentence(dataclasses.replace(ten, by_chance=math.nan), "mine", known) == ""


def _network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4), nn.ReLU(), nn.Linear(4, 1))


def test_a_result_is_placed_only_where_it_was_measured_as_those_of_the_atlas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atlas, "rows", lambda: tuple(peers(shape=(3, 8, 8))))
    family, run = Family.initialised(_network, name="mine"), Run(device="cpu", progress=False)
    probe = Probe.gaussian((3, 8, 8), num=2, fresh=True)
    result = complexity(family, probe, draws=24, scales=(1.0,), run=run)
    (words,) = result.standing()
    assert re.fullmatch(r"mine is less complex than 95 % of 20 untrained image networks of the atlas\.", words)
    section = sections_of([result], [result.story()], None)[0]
    assert section.sentences[0].text.endswith(words)

    def other(**changed: object) -> list[str]:
        return dataclasses.replace(result, provenance=result.provenance | changed).standing()

    told = result.provenance
    assert other() == [words]
    assert other(family=told["family"] | {"law": "point"}) == []
    assert other(family=told["family"] | {"batchnorm": "train"}) == []
    assert other(settings=told["settings"] | {"readout": "sum"}) == []
    assert other(probe=Probe.gaussian((3, 8, 8), num=2, std=3.0, fresh=True).description) == []
    assert other(input_shape=[3, 64, 64]) == []


# ---- the rows that are committed ---------------------------------------------------------------------------------------------


def test_the_rows_are_complete_and_their_numbers_lie_in_their_intervals() -> None:
    with atlas.FILE.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == atlas.columns()
        assert all(None not in row.values() for row in reader)
    rows = atlas.rows()
    names = [(row.kind, row.name) for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert row.numbers, row.name
        assert row.parameters > 0
        assert {"biascope", "torch"} <= {each.split()[0] for each in row.versions.split(", ")}, row.name
        assert row.library in ("atlas", "biascope") or row.library in row.versions
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row.date)
        for key, each in row.numbers.items():
            assert each.low <= each.value <= each.high, (row.name, key)
            assert row.draws[key] >= 8
            if QUANTITIES[key].share:
                assert each.low >= 0
                assert each.high <= 1
            elif key.startswith("mean_dimension_of_"):
                assert each.low >= 1
                assert each.high <= float(key.rpartition("_")[2])


def test_every_kind_of_input_has_a_population() -> None:
    rows = atlas.rows()
    assert len(rows) >= 100
    for kind, key, least in (
        ("image", "complexity", 40),
        ("image", "low_frequencies", 25),
        ("sequence", "mean_lag", 12),
        ("token", "complexity", 10),
        ("table", "complexity", LEAST),
    ):
        assert sum(row.kind == kind and key in row.numbers for row in rows) >= least, (kind, key)
    assert {row.group for row in rows if row.kind == "image"} >= {"convolutional", "transformer", "mixer", "MLP"}


def test_known_networks_have_known_numbers() -> None:
    by_name = {(row.kind, row.name): row.numbers for row in atlas.rows()}
    linear = by_name["table", "linear"]
    assert linear["mean_dimension_of_14"].contains(1.0)
    assert linear["rank_share"].contains(1.0)
    assert linear["complexity"].value == pytest.approx(0.518, abs=0.002)
    patches = by_name["image", "vit"]  # a linear map of patches comes first
    assert patches["complexity"].value > 0.5


@pytest.fixture(scope="module")
def make_atlas() -> ModuleType:
    specification = importlib.util.spec_from_file_location("make_atlas", ROOT / "docs" / "make_atlas.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_shows_the_rows_of_today(make_atlas: ModuleType, tmp_path: Path) -> None:
    assert not make_atlas.stale(), "run: python docs/make_atlas.py"
    (tmp_path / "atlas.md").write_text("old")
    assert make_atlas.stale(tmp_path)


def test_families_that_differ_are_told_and_others_are_not(make_atlas: ModuleType) -> None:
    def of(group: str, values: list[float]) -> list[Peer]:
        return [
            dataclasses.replace(peers(1)[0], group=group, numbers={"complexity": Estimate(value)}) for value in values
        ]

    apart = [
        *of("convolutional", [1.0 + 0.01 * k for k in range(12)]),
        *of("transformer", [2.0 + 0.01 * k for k in range(12)]),
    ]
    (told,) = make_atlas.differences(apart)
    assert told.startswith("**Transformers are more complex than convolution nets**: 2.06 (95 % CI 2.0")
    alike = [
        *of("convolutional", [float(k % 4) for k in range(12)]),
        *of("transformer", [float(k % 3) for k in range(12)]),
    ]
    assert make_atlas.differences(alike) == []
    assert make_atlas.differences(apart[:14]) == []  # two transformers
