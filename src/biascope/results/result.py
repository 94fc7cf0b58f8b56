"""WHAT came out. Result: named arrays and estimates with their provenance; checked, saved, loaded, shown."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import html
import io
import json
import math
import platform
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from biascope.results.estimate import Estimate
from biascope.runs.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from biascope.runs.run import Run

FORMAT = 2  # of the files; raised when an old reader could misread a new file


def recorded(
    measurement: str, paper: str, *, settings: Mapping[str, Any], seconds: float, run: Run | None = None, **facts: Any
) -> dict[str, Any]:
    """The provenance of a result: what was measured, how, on what, with which versions, when and for how long.

    Args:
        measurement: By which it is read back.
        paper: Where it comes from.
        settings: As asked for, or as they were settled.
        seconds: How long it took.
        run: Device and precision, where they matter.
        facts: Whatever else identifies it: data, hashes.
    """
    import torch

    from biascope import __version__

    versions = {"biascope": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "measurement": measurement,
        "paper": paper,
        **facts,
        "settings": dict(settings),
        **({} if run is None else {"run": run.describe()}),
        "versions": versions | {"python": platform.python_version()},
        "seconds": round(seconds, 3),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
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
class Beside:
    """How a result stands beside others of its measurement.

    Attributes:
        kind: How it was taken, in words: results of other kinds are not compared with it.
        size: Of what is compared: results of other sizes are not laid over it.
        number: The number to put side by side.
    """

    kind: str
    size: int
    number: Estimate


@dataclass(frozen=True)
class Result(ABC):
    """What a measurement found: frozen, self-describing, independent of the code that made it.

    A concrete result declares its arrays with named axes in :attr:`axes`; axes of one name have one length.

    Attributes:
        provenance: The settings, versions and circumstances needed to repeat it, as plain JSON.
    """

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    #: Name of an array with axes (direction, input) that the report steps through, or "".
    gallery: ClassVar[str] = ""

    provenance: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def headline(self) -> dict[str, Estimate]:
        """The few numbers to quote."""

    @abstractmethod
    def sentence(self) -> str:
        """What was found, in plain words."""

    @abstractmethod
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        """Every picture under its caption."""

    def planes(self) -> dict[str, Plane]:
        """Planes of frequencies by name, all of one shape, which a report makes live; most results have none."""
        return {}

    def beside(self) -> Beside | None:
        """How it is put beside other results; nothing for most, which are not."""
        return None

    def overlaid(self, group: Sequence[Any], labels: Sequence[str], trained: bool, dark: bool) -> dict[str, Figure]:
        """Pictures of several results of one measurement, kind and size.

        Args:
            group: The results, this one among them.
            labels: A name for each that tells them apart.
            trained: Whether they are checkpoints of a training, in its order.
            dark: For a dark page.
        """
        return {}

    @property
    def subject(self) -> str:
        """Who was measured."""
        return str(self.provenance.get("family", {}).get("name", "a network"))

    @property
    def measurement(self) -> str:
        """The name of the measurement."""
        return str(self.provenance.get("measurement", type(self).__name__))

    @property
    def warnings(self) -> list[str]:
        """Sentences to read the numbers with: what could not be proven of this network."""
        return list(self.provenance.get("warnings", ()))

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
        for name, estimate in self.headline().items():
            if not math.isfinite(estimate.value):
                raise ValueError(
                    f"{self.measurement} gave a {name} that is not a number: the gradients may all be zero. "
                    "Check the network's output, or pass more draws."
                )
        return self

    def save(self, folder: Path | str) -> Path:
        """Write the result to a folder, whole or not at all; return the folder.

        Arrays lie in ``arrays-DIGEST.npz``, everything else in ``result.json``, which names that file. So the last write decides:
        a process that is killed in between leaves the result that was there before.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        values: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                arrays[entry.name] = value
            elif isinstance(value, Estimate):
                values[entry.name] = {"estimate": _finite(value.as_dict())}
            else:
                values[entry.name] = _finite(value)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        data, before = buffer.getvalue(), _arrays_file(folder)
        stored = f"arrays-{_digest(data)}.npz"
        write_atomically(folder / stored, data)
        place = f"{type(self).__module__}:{type(self).__qualname__}"
        document = {"measurement": self.measurement, "class": place, "values": values, "arrays": stored}
        sealed = {"format": FORMAT, **document, "digest": _digest(json.dumps(document, sort_keys=True).encode())}
        write_atomically(folder / "result.json", json.dumps(sealed, indent=1, allow_nan=False).encode())
        if before is not None and before.name != stored:
            before.unlink(missing_ok=True)
        return folder

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read what :meth:`save` wrote."""
        folder = Path(folder)
        document = read_document(folder)
        values = document["values"]
        known = {entry.name: str(entry.type) for entry in dataclasses.fields(cls)}
        content: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, dict) and set(value) == {"estimate"}:
                numbers = {key: math.nan if number is None else number for key, number in value["estimate"].items()}
                content[name] = Estimate(**numbers)
            else:
                content[name] = tuple(value) if known.get(name, "").startswith("tuple") else value
        return cls(**content | _read_arrays(folder / str(document.get("arrays", _ARRAYS_BEFORE))))

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} of {self.subject}"]
        lines += [f"  {name}: {estimate!r}" for name, estimate in self.headline().items()]
        lines += [f"  Warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(repr(estimate))}</td></tr>"
            for name, estimate in self.headline().items()
        )
        title = html.escape(f"{type(self).__name__} of {self.subject}")
        warnings = "".join(f"<p><strong>Warning:</strong> {html.escape(warning)}</p>" for warning in self.warnings)
        return f"<strong>{title}</strong>{warnings}<p>{html.escape(self.sentence())}</p><table>{rows}</table>"


def read_document(folder: Path) -> dict[str, Any]:
    """The JSON part of a saved result.

    Raises:
        ValueError: If there is none, it is damaged, or it was written by a newer version.
    """
    path = folder / "result.json"
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} must hold a saved result, and has no result.json. Pass a run folder of biascope."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{path} must be a saved result, and could not be read. Run the measurement again.") from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int) or document["format"] > FORMAT:
        raise ValueError(f"{path} must be of format {FORMAT} or older. Install a newer biascope.")
    if document["format"] > 1:
        digest, content = document.pop("digest", None), {key: document[key] for key in document if key != "format"}
        if digest != _digest(json.dumps(content, sort_keys=True).encode()):
            raise ValueError(
                f"{path} must have the content that its digest says, and does not. Run the measurement again."
            )
    return document


_ARRAYS_BEFORE = "arrays.npz"  # in format 1, which had no digests


def _arrays_file(folder: Path) -> Path | None:
    """The arrays of the result that lies in a folder."""
    try:
        return folder / str(read_document(folder).get("arrays", _ARRAYS_BEFORE))
    except ValueError:
        return None


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a result.

    Raises:
        ValueError: If the file is missing or damaged.
    """
    try:
        data = path.read_bytes()
        if path.name not in (_ARRAYS_BEFORE, f"arrays-{_digest(data)}.npz"):
            raise ValueError("another content")
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        message = f"{path} must be a whole result file and is missing or damaged. Run the measurement again."
        raise ValueError(message) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _finite(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        return _finite(value.item())
    return value
