"""The register of measurements: their settings by name, also those that are fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from biascope.results.estimate import Estimate, Number
from biascope.results.registry import Measurement, Setting, find, names, settings_from
from biascope.results.result import Result
from biascope.runs.run import Run


@dataclass(frozen=True)
class Shape:
    """What is measured."""

    sides: tuple[int, ...] = (3,)
    width: float = 1.0


USUAL = Shape(width=2.0)


@dataclass(frozen=True, repr=False)
class Area(Result):
    """A number."""

    area: float

    def headline(self) -> dict[str, Number]:
        return {"area": Estimate.exact(self.area).named("area")}

    def sentence(self) -> str:
        return f"The area is {self.area}."

    def plots(self, dark: bool = False) -> dict[str, Any]:
        return {}


def area(*, shape: Shape = USUAL, height: float = 1.0, run: Run | None = None) -> Area:
    """The area."""
    return Area(height * shape.width * sum(shape.sides))


MEASURED = Measurement(area, Area, "Area", "nads2020", lambda: ((), {}))


def test_fields_of_a_dataclass_are_settings() -> None:
    assert MEASURED.settings == {
        "sides": Setting("tuple[int, ...]", (3,), "shape"),
        "width": Setting("float", 2.0, "shape"),
        "height": Setting("float", 1.0),
    }


def test_words_of_fields_become_the_dataclass_and_the_rest_of_it_keeps_its_defaults() -> None:
    assert settings_from(MEASURED, ["--sides", "1,2", "--height", "3"]) == {"shape": Shape((1, 2), 2.0), "height": 3.0}
    assert settings_from(MEASURED, ["--height=3"]) == {"height": 3.0}
    with pytest.raises(ValueError, match=r"has no setting '--shape'\. It takes: --sides, --width, --height\."):
        settings_from(MEASURED, ["--shape", "round"])
    with pytest.raises(ValueError, match="--width must be of type float, got 'wide'"):
        settings_from(MEASURED, ["--width", "wide"])


def test_named_fields_change_a_given_dataclass_and_other_arguments_pass() -> None:
    run = Run(device="cpu")
    given = MEASURED.grouped({"shape": Shape((7,), 5.0), "width": 4.0, "run": run})
    assert given == {"shape": Shape((7,), 4.0), "run": run}


def test_provenance_records_them_by_name() -> None:
    found = MEASURED(shape=replace(USUAL, sides=(1, 2)))
    assert found.area == 6.0
    assert found.provenance["settings"] == {"sides": [1, 2], "width": 2.0, "height": 1.0}


def test_a_field_must_be_finite_as_any_setting() -> None:
    with pytest.raises(ValueError, match=r"width of area must be a finite number, got nan\. Pass width=2\.0\."):
        MEASURED(shape=Shape(width=float("nan")))


@pytest.mark.parametrize("name", names())
def test_no_two_settings_of_a_measurement_have_one_name(name: str) -> None:
    found = find(name)
    groups = {setting.group for setting in found.settings.values()} - {""}
    alone = [key for key, setting in found.settings.items() if not setting.group]
    fields = [key for group in groups for key in found.function.__kwdefaults__[group].__dataclass_fields__]
    assert len(alone) + len(fields) == len({*alone, *fields})


def test_directional_bias_has_its_settings_by_name_as_before() -> None:
    published = {key: setting.default for key, setting in find("directional_bias").settings.items()}
    assert (
        published.items()
        >= {
            "noise": (3.0,),
            "samples": (10_000,),
            "test": 10_000,
            "epsilon": 1.0,
            "margin": "text",
            "epochs": 20,
            "batch": 128,
            "rate": 0.5,
            "schedule": "linear",
            "optimiser": "sgd",
            "momentum": 0.0,
            "weight_decay": 0.0,
            "clip": 0.5,
            "loss": None,
            "threshold": 0.01,
            "stop": False,
            "repeats": 1,
            "seed": 0,
        }.items()
    )
