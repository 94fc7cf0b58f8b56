"""WHAT was found. Result: named arrays and estimates with their provenance; checked, saved, loaded, shown."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import html
import importlib
import io
import json
import math
import platform
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from biascope.results import atlas, store
from biascope.results.atlas import Placement
from biascope.results.axes import Axis, InputAxes
from biascope.results.estimate import Estimate, Number
from biascope.results.story import Story
from biascope.runs.command_line import command_line

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.figure import Figure

    from biascope.runs.run import Run

THUMBNAIL_PIXELS = 420  # across
THUMBNAIL_BYTES = 100_000  # a notebook keeps every output that it shows

KEY = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*(:.+)?")
#: Inputs at which the networks of the atlas were measured, but for their shape and number.
_AS_IN_ATLAS = re.compile(r"\d+ fresh (N\(0, 1²\)|smooth random) inputs of shape [\d×]+ per network")


def software() -> dict[str, str]:
    """The versions of what numbers depend on."""
    import torch

    from biascope import __version__

    own = {"biascope": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return own | {"python": platform.python_version()}


def now() -> str:
    """The time, in an order that sorts."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def recorded(
    measurement: str, paper: str, *, settings: Mapping[str, Any], seconds: float, run: Run | None = None, **facts: Any
) -> dict[str, Any]:
    """The provenance of a result: what was measured, how, on what, with which versions, when and for how long.

    Args:
        measurement: By which it is read back.
        paper: Where it comes from.
        settings: As given, or as they were determined; kept as a file holds them.
        seconds: How long it took.
        run: Device and precision, where they matter.
        facts: Whatever else identifies it: data, hashes.
    """
    return {
        "measurement": measurement,
        "paper": paper,
        **facts,
        "settings": store.plain(settings),
        **({} if run is None else {"run": run.describe()}),
        "versions": software(),
        "seconds": round(seconds, 3),
        "date": now(),
        **({"command": words} if (words := command_line()) else {}),
    }


@dataclass(frozen=True, eq=False)
class Plane:
    """A number for every frequency of an image of h × w pixels, on the fft-shifted plane: (0, 0) at (h//2, w//2).

    Attributes:
        values: ``(h, w)``; nan where nothing was measured.
        unit: Of the values, such as ``"%"`` or ``"iterations"``.
        low: Where the colours begin; by default at the smallest value.
        high: Where they end; by default at the largest value.
        spread: Standard error of each value, ``(h, w)``; None if unknown.

    Example:
        >>> plane = Plane(np.array([[52.0, np.nan], [97.0, 52.0]]), "%", low=50.0)
        >>> plane.limits
        (50.0, 97.0)
    """

    values: np.ndarray
    unit: str
    low: float | None = None
    high: float | None = None
    spread: np.ndarray | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """The first and the last value of the colours; where they run through zero, it lies in the middle."""
        known = self.values[np.isfinite(self.values)]
        low = float(known.min() if known.size else 0.0) if self.low is None else self.low
        high = float(known.max() if known.size else 0.0) if self.high is None else self.high
        if low < 0 < high:
            return -max(-low, high), max(-low, high)
        # A floor keeps rounding errors of equal values from filling the scale.
        high = max(high, low + 0.01 * abs(low))
        return low, high if high > low else low + 1.0


@dataclass(frozen=True)
class Result(ABC):
    """The result of a measurement: frozen, self-describing, independent of the code that computed it.

    A concrete result declares its arrays with named axes in :attr:`axes`; axes of one name have one length.

    Attributes:
        provenance: The settings, versions and circumstances needed to repeat it, as plain JSON.
    """

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    #: Measurements that give the headline where a report has both, and why this one says something else.
    details_beside: ClassVar[Mapping[str, str]] = {}
    #: Whether a command that prints several results prints the first sentence of this one alone.
    row_of_card: ClassVar[bool] = False

    provenance: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def __init_subclass__(cls) -> None:
        """Numbers and pictures do not depend on the settings of whoever reads them."""
        from biascope.runs.ambient import under_torch_defaults  # which imports torch, as every measurement does

        under_torch_defaults(cls)

    @abstractmethod
    def headline(self) -> dict[str, Number]:
        """The few numbers to quote, each under a key in snake_case that no setting changes.

        A number that exists once for each of several things (models, sizes) has one key for each: ``"test_accuracy:network"``, the
        name of the thing after the colon.
        """

    @abstractmethod
    def sentence(self) -> str:
        """The finding, in plain words."""

    @abstractmethod
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        """Every picture under a key in snake_case that no wording changes; figures carry their captions (``draw.captioned``)."""

    def story(self) -> Story:
        """What a report tells of it besides its numbers, pictures and tables."""
        return Story()

    def class_name(self, label: int) -> str:
        """The name of a class of the data, where it is known; else its number."""
        names = self.provenance.get("data", {}).get("classes", ())
        return str(names[label]) if 0 <= label < len(names) else f"class {label}"

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Tables by name, for programs: rows of the same snake_case columns, with plain values or numbers in them; most have none."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Findings that are not numbers, for programs, under snake_case keys: a verdict, a ranking; most results have none."""
        return {}

    def planes(self) -> dict[str, Plane]:
        """Planes of frequencies by name, all of one shape, shown interactively in a report; most results have none."""
        return {}

    def placements(self) -> Sequence[Placement]:
        """Its numbers that place a network among those of the atlas; most results have none."""
        return ()

    def standing(self) -> list[str]:
        """Where its network stands among those of the atlas, a sentence for each number; none where that says nothing.

        Those of the atlas were measured at initial weights, at inputs whose numbers have variance 1.
        """
        family, settings = (self.provenance.get(name, {}) for name in ("family", "settings"))
        alike = (
            family.get("law") == "initialised"
            and family.get("batchnorm", "eval") == "eval"
            and settings.get("readout", "first") == "first"
            and _AS_IN_ATLAS.fullmatch(str(self.provenance.get("probe", "")))
        )
        return list(atlas.sentences(self.placements(), self.subject)) if alike else []

    @property
    def input_axes(self) -> InputAxes:
        """What the axes of an input are."""
        told = self.provenance.get("family", {}).get("axes", [])
        return InputAxes.of([Axis.from_dict(each) for each in told], tuple(self.provenance.get("input_shape", ())))

    @property
    def subject(self) -> str:
        """Who was measured."""
        return str(self.provenance.get("family", {}).get("name", "a network"))

    @property
    def at_given_weights(self) -> bool:
        """Whether one network was measured at given weights, such as trained ones."""
        return bool(self.provenance.get("family", {}).get("law") == "point")

    @property
    def measurement(self) -> str:
        """The name of the measurement."""
        return str(self.provenance.get("measurement", type(self).__name__))

    @property
    def paper(self) -> str:
        """The id of the paper that it comes from."""
        return str(self.provenance.get("paper", ""))

    @property
    def warnings(self) -> list[str]:
        """Caveats of the numbers: what could not be verified for this network."""
        return list(self.provenance.get("warnings", ()))

    def warned(self, warning: str) -> Self:
        """The same result with one more caveat."""
        return dataclasses.replace(self, provenance=self.provenance | {"warnings": [*self.warnings, warning]})

    def why_detail(self, others: Iterable[Result]) -> str:
        """Why it is only a detail among other results, if another result of the same subject gives the headline; else empty."""
        there = {other.measurement for other in others if other.subject == self.subject}
        return next((why for name, why in self.details_beside.items() if name in there), "")

    def plot(self, dark: bool = False) -> Figure:
        """The first picture."""
        return next(iter(self.plots(dark).values()))

    def check(self) -> Self:
        """Raise if shapes contradict the named axes or a number that must be finite is not; return self."""
        lengths: dict[str, int] = {}
        for name, names in self.axes.items():
            array = getattr(self, name)
            if array is None:
                continue
            if array.ndim != len(names):
                raise ValueError(
                    f"{name} must have the axes {names}, got shape {array.shape}. Report this as a defect."
                )
            for axis, length in zip(names, array.shape, strict=True):
                if lengths.setdefault(axis, length) != length:
                    raise ValueError(
                        f"{name} must have {lengths[axis]} along {axis}, got {length}. Report this as a defect."
                    )
        shapes: set[tuple[int, ...]] = set()
        for name, plane in self.planes().items():
            shapes |= {part.shape for part in (plane.values, plane.spread) if part is not None}
            if len(shapes) > 1 or plane.values.ndim != 2:
                raise ValueError(
                    f"The plane {name!r} must have two axes and the shape of the others, got {sorted(shapes)}. "
                    "Report this as a defect."
                )
        for key, number in self.headline().items():
            if not KEY.fullmatch(key) or not number.label:
                raise ValueError(
                    f"A number must have a key in snake_case and a label, got {key!r} with {number.label!r}. Report this as a defect."
                )
            if not math.isfinite(number.value):
                raise ValueError(
                    f"{self.measurement} gave no number for the {number.label}: the gradients may all be zero. "
                    "Check the network's output, or pass more draws."
                )
        return self

    def save(self, folder: Path | str) -> Path:
        """Write the result to a folder, whole or not at all; return the folder."""
        content = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        arrays = {name: value for name, value in content.items() if isinstance(value, np.ndarray)}
        values = {name: value for name, value in content.items() if name not in arrays}
        place = f"{type(self).__module__}:{type(self).__qualname__}"
        return store.write(Path(folder), {"measurement": self.measurement, "class": place, "values": values}, arrays)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read what :meth:`save` wrote."""
        document = store.read(Path(folder))
        kinds = {entry.name: getattr(entry.type, "__name__", str(entry.type)) for entry in dataclasses.fields(cls)}
        values = {
            name: _typed(value, kinds.get(name, "")) for name, value in store.restored(document["values"]).items()
        }
        return cls(**cls.from_earlier(values | store.read_arrays(Path(folder), document)))

    @classmethod
    def from_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The fields of this class from those that a file holds, which an earlier version may have named otherwise."""
        return values

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} of {self.subject}"]
        lines += [f"  {number.label}: {number!r}" for number in self.headline().values()]
        lines += [f"  Warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def to_dataframe(self, table: str | None = None) -> pandas.DataFrame:
        """The numbers of :meth:`headline` as a pandas table with a row each, or one of :meth:`tables`.

        Args:
            table: Name of a table; ``None`` for the headline.

        Raises:
            ValueError: If there is no such table.
            ImportError: If pandas is not installed.
        """
        pandas = _optional("pandas", "to_dataframe")
        if table is None:
            columns = ("label", "value", "standard_error", "low", "high", "confidence", "unit")
            rows = [
                [self.measurement, self.subject, *(getattr(number, name) for name in columns)]
                for number in self.headline().values()
            ]
            index = pandas.Index(list(self.headline()), name="key")
            return pandas.DataFrame(rows, index, ["measurement", "subject", *columns])
        if table not in (known := self.tables()):
            has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
            remedy = f"Pass table={next(iter(known))!r}." if known else "Call to_dataframe() for the headline."
            raise ValueError(f"table must be a table of this {self.measurement}, got {table!r}: {has}. {remedy}")
        return pandas.DataFrame([{name: _cell(value) for name, value in row.items()} for row in known[table]])

    def to_xarray(self) -> xarray.Dataset:
        """The arrays as an xarray data set with named axes; its attributes say what was measured.

        Raises:
            ImportError: If xarray is not installed.
        """
        found = _optional("xarray", "to_xarray")
        arrays = {name: (_distinct(axes), getattr(self, name)) for name, axes in self.axes.items()}
        about = {"measurement": self.measurement, "subject": self.subject, "sentence": self.sentence()}
        record = json.dumps(self.provenance, default=str, ensure_ascii=False)
        return found.Dataset(
            {name: entry for name, entry in arrays.items() if entry[1] is not None},
            attrs=about | {"provenance": record},
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(number.label)}</td><td>{html.escape(repr(number))}</td></tr>"
            for number in self.headline().values()
        )
        title = html.escape(f"{type(self).__name__} of {self.subject}")
        warnings = "".join(f"<p><strong>Warning:</strong> {html.escape(warning)}</p>" for warning in self.warnings)
        return f"<strong>{title}</strong>{warnings}<p>{html.escape(self.sentence())}</p><table>{rows}</table>{self._thumbnail()}"

    def _thumbnail(self) -> str:
        """The first picture, small, as an image tag; empty where it cannot be drawn."""
        try:
            caption, figure = next(iter(self.plots().items()))
            picture = io.BytesIO()
            dpi = THUMBNAIL_PIXELS / figure.get_figwidth()
            figure.savefig(picture, format="png", dpi=dpi, facecolor="white", bbox_inches="tight")
        except Exception:  # a notebook shows the numbers whatever happens to the picture, also without matplotlib
            return ""
        if len(content := picture.getvalue()) > THUMBNAIL_BYTES:
            return ""
        source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        return f'<img src="{source}" alt="{html.escape(caption)}" title="{html.escape(caption)}">'


def _optional(package: str, method: str) -> Any:
    """A package that Biascope does not ask for."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{method} needs {package}, which is not installed. Run pip install {package}.") from error


def _distinct(axes: Sequence[str]) -> list[str]:
    """Names of axes, numbered where one comes twice: ``("model", "model 2")`` for a square of models."""
    return [
        axis if (before := axes[:place].count(axis)) == 0 else f"{axis} {before + 1}" for place, axis in enumerate(axes)
    ]


def _cell(value: Any) -> Any:
    """What a table holds as what a column of numbers holds."""
    return float(value) if isinstance(value, Estimate) else value


def _typed(value: Any, kind: str) -> Any:
    """A value of JSON as its field declares it: JSON has no tuples, no nan and no infinite numbers."""
    if kind.startswith("tuple") and isinstance(value, list):
        return tuple(value)
    if kind.split(" ")[0] == "float" and isinstance(value, str):
        return float(value)
    return math.nan if kind == "float" and value is None else value
