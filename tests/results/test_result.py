import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import biascope.measures
from biascope.measures.anisotropy_directions import Anisotropy
from biascope.measures.covariance.compare import common_directions
from biascope.results.estimate import Estimate, Number
from biascope.results.registry import find, load, names, settings_from
from biascope.results.result import Plane, Result
from biascope.runs import files


@pytest.fixture(scope="module")
def result() -> Anisotropy:
    measurement = find("anisotropy_directions")
    args, settings = measurement.example()
    return measurement(*args, **settings)


def test_arrays_that_contradict_their_axes_are_refused(result: Anisotropy) -> None:
    with pytest.raises(ValueError, match="along direction"):
        dataclasses.replace(result, held_out=result.held_out[:-1]).check()
    with pytest.raises(ValueError, match="must have the axes"):
        dataclasses.replace(result, eigenvalues=result.eigenvalues[None]).check()


def test_a_number_that_is_none_is_refused(result: Anisotropy) -> None:
    broken = dataclasses.replace(result, trace=dataclasses.replace(result.trace, value=math.nan))
    with pytest.raises(ValueError, match="gave no number for the mean squared gradient"):
        broken.check()


@dataclasses.dataclass(frozen=True, repr=False)
class Planes(Result):
    """A result that is nothing but planes."""

    content: dict[str, Plane] = dataclasses.field(default_factory=dict)

    def headline(self) -> dict[str, Estimate]:
        return {}

    def sentence(self) -> str:
        return "It is so."

    def plots(self, dark: bool = False) -> dict[str, Figure]:
        return {}

    def planes(self) -> dict[str, Plane]:
        return self.content


def test_planes_of_one_result_have_one_shape(result: Anisotropy) -> None:
    assert result.planes() == {}
    plane = Plane(np.ones((4, 6)), "%", spread=np.ones((4, 6)))
    assert Planes(content={"a": plane, "b": plane}).check().planes()["b"] is plane
    for wrong in (
        Plane(np.ones((6, 4)), "%"),
        Plane(np.ones((4, 6)), "%", spread=np.ones((4, 5))),
    ):
        with pytest.raises(ValueError, match="plane 'b' must have two axes and the shape of the others"):
            Planes(content={"a": plane, "b": wrong}).check()
    with pytest.raises(ValueError, match="two axes"):
        Planes(content={"a": Plane(np.ones(4), "%")}).check()


@pytest.mark.parametrize(
    ("values", "given", "limits"),
    [
        ([3.0, np.nan, 8.0], {}, (3, 8)),
        ([3.0, 8.0], {"low": 0.0, "high": 10.0}, (0, 10)),
        ([-1.0, 4.0], {}, (-4, 4)),
        ([-3.0, -1.0], {}, (-3, -1)),
        ([100.0, 100.0], {}, (100, 101)),
        ([0.0, 0.0], {}, (0, 1)),
        ([np.nan], {}, (0, 1)),
        ([0.0, 1e-6], {}, (0, 1e-6)),
    ],
)
def test_colours_run_from_the_smallest_value_to_the_largest_or_as_told(
    values: list[float], given: dict[str, float], limits: tuple[float, float]
) -> None:
    assert Plane(np.array([values]), "%", **given).limits == pytest.approx(limits)


def test_damaged_missing_and_newer_files_are_told(result: Anisotropy, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no result\.json"):
        load(tmp_path)
    folder = result.save(tmp_path / "run")
    next(folder.glob("arrays-*.npz")).write_bytes(b"PK broken")
    with pytest.raises(ValueError, match="missing or damaged"):
        load(folder)
    document = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**document, "format": 99}))
    with pytest.raises(ValueError, match="newer biascope"):
        load(folder)
    (folder / "result.json").write_text("{")
    with pytest.raises(ValueError, match="could not be read"):
        load(folder)


def test_the_file_is_strict_json_even_where_a_spread_is_unknown(result: Anisotropy, tmp_path: Path) -> None:
    unknown = dataclasses.replace(result, trace=dataclasses.replace(result.trace, standard_error=math.nan))
    folder = unknown.save(tmp_path)
    json.loads((folder / "result.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert math.isnan(load(folder).trace.standard_error)  # type: ignore[attr-defined]


def test_directions_of_two_results_are_compared(result: Anisotropy) -> None:
    assert common_directions(result, result, 5) == pytest.approx(1.0)
    other = dataclasses.replace(result, input_shape=(1, 5, 5))
    with pytest.raises(ValueError, match="same input size"):
        common_directions(result, other, 5)


def test_the_register_is_read_from_file_names_and_offers_the_nearest() -> None:
    folder = Path(biascope.measures.__file__).parent
    leaves = {path.stem for path in folder.glob("[!_]*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    assert leaves - set(names()) == {"covariance", "scan"}  # what two share, and what runs several
    assert set(names()) < leaves
    assert {"anisotropy_directions", "average_geometry"} < set(names())
    assert find("anisotropy-directions").name == "anisotropy_directions"
    with pytest.raises(ValueError, match="Did you mean average_geometry"):
        find("average_geometri")


def test_settings_come_from_words() -> None:
    found = find("anisotropy_directions")
    words = ["--draws", "10", "--centred=false", "--stable", "0.5", "--keep", "none", "--readout", "sum"]
    assert settings_from(found, words) == {
        "draws": 10,
        "centred": False,
        "stable": 0.5,
        "keep": None,
        "readout": "sum",
    }
    for wrong, sentence in (
        (["--colour", "red"], "has no setting"),
        (["--draws"], "needs a value"),
        (["--draws", "many"], "must be of type"),
        (["--centred", "maybe"], "must be of type"),
    ):
        with pytest.raises(ValueError, match=sentence):
            settings_from(found, wrong)


def test_a_result_is_the_old_one_or_the_new_one_whenever_its_writer_is_killed(
    result: Anisotropy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = result.save(tmp_path)
    other = dataclasses.replace(result, eigenvalues=2 * result.eigenvalues)
    write, written = files.write_atomically, []

    def dying(path: Path, data: bytes) -> None:
        if path.name == "result.json":
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, data)

    monkeypatch.setattr("biascope.results.store.write_atomically", dying)
    with pytest.raises(KeyboardInterrupt):
        other.save(folder)
    monkeypatch.undo()
    assert written  # the new arrays lie there, and nobody takes them for the old ones
    assert np.array_equal(load(folder).eigenvalues, result.eigenvalues)  # type: ignore[attr-defined]
    other.save(folder)
    assert np.array_equal(load(folder).eigenvalues, other.eigenvalues)  # type: ignore[attr-defined]
    assert len(list(folder.glob("arrays*"))) == 1


@pytest.mark.parametrize("file", ["result.json", "arrays"])
def test_a_flipped_byte_is_told(result: Anisotropy, tmp_path: Path, file: str) -> None:
    folder = result.save(tmp_path)
    path = next(folder.glob(f"{file}*"))
    data = bytearray(path.read_bytes())
    place = data.index(b'"value": ') + 9 if file == "result.json" else len(data) // 2
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"must (match its digest|be a complete result file)"):
        load(folder)


def test_results_written_before_digests_still_load(result: Anisotropy, tmp_path: Path) -> None:
    folder = result.save(tmp_path)
    document = json.loads((folder / "result.json").read_text())
    (folder / document["arrays"]).rename(folder / "arrays.npz")
    old = {"format": 1, "measurement": document["measurement"], "values": document["values"]}
    (folder / "result.json").write_text(json.dumps(old))
    assert np.array_equal(load(folder).eigenvalues, result.eigenvalues)  # type: ignore[attr-defined]
    load(folder).save(folder)
    assert not (folder / "arrays.npz").exists()
    (folder / "result.json").write_text(json.dumps({**old, "measurement": "match"}))
    with pytest.raises(ValueError, match="no measurement 'match'"):
        load(folder)


def test_numbers_that_json_does_not_know_come_back(tmp_path: Path) -> None:
    found = Lacking(math.inf, math.nan, ("a", "b"), Estimate(1.0), provenance={"limit": math.inf})
    again = Lacking.load(found.save(tmp_path))
    assert again.high == math.inf
    assert math.isnan(again.low)
    assert again.words == ("a", "b")
    assert math.isnan(again.mean.standard_error)
    assert again.provenance == {"limit": "inf"}


@dataclasses.dataclass(frozen=True, repr=False)
class Lacking(Result):
    """A result with a field of every kind that JSON lacks."""

    high: float
    low: float
    words: tuple[str, ...]
    mean: Estimate

    def headline(self) -> dict[str, Number]:
        return {"high": self.mean.named("high")}

    def sentence(self) -> str:
        return "It is so."

    def plots(self, dark: bool = False) -> dict[str, Figure]:
        return {}


@pytest.mark.parametrize("key", ["effective rank", "Rank", "rank:", "_rank", ""])
def test_a_number_must_have_a_key_that_programs_can_use(key: str) -> None:
    class Sentence(Lacking):
        def headline(self) -> dict[str, Number]:
            return {key: self.mean.named("high")}

    with pytest.raises(ValueError, match="key in snake_case"):
        Sentence(1.0, 2.0, (), Estimate(1.0)).check()
