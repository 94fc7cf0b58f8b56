"""SHOW: results -> one self-contained HTML file. It sees results, never networks; the page is ``templates/report.html``."""

from __future__ import annotations

import base64
import functools
import hashlib
import inspect
import io
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results import draw
from biascope.results.estimate import Estimate, Number
from biascope.results.figures import MARK
from biascope.results.planes import distinct, joint_views, live_view
from biascope.results.registry import PAPERS, find, names, saved
from biascope.results.result import Beside, Result
from biascope.results.wording import listed
from biascope.runs.files import write_atomically
from biascope.runs.rehearsal import counted

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

LIMIT = 4_900_000  # bytes of the file
_PICTURES = 3_000_000  # of these, at most, for the pictures of single results
_HEAVY = 400_000  # bytes beyond which a picture is embedded as pixels
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_report(results: Sequence[Result], path: Path | str, *, title: str | None = None) -> Path:
    """Write results to one self-contained HTML file: findings, numbers, pictures, a gallery, and how to reproduce them.

    Results of several subjects are also compared, measurement by measurement and never across estimators.

    Args:
        results: What to show, in this order.
        path: The file to write, whole or not at all.
        title: Title of the page; by default it names the subjects.

    Returns:
        The path.

    Raises:
        ValueError: If there are no results.

    Example:
        >>> import tempfile
        >>> anisotropy = find("anisotropy_directions")
        >>> inputs, settings = anisotropy.example()
        >>> folder = tempfile.TemporaryDirectory()
        >>> page = write_report([anisotropy(*inputs, **settings)], Path(folder.name) / "report.html")
        >>> "small MLP" in page.read_text(encoding="utf-8")
        True
        >>> folder.cleanup()
    """
    if not results:
        raise ValueError("results must hold at least one result to report, got none. Run a measurement first.")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, **style)
    environment.filters["hash"] = _hash
    template = environment.get_template("report.html")

    subjects = list(dict.fromkeys(result.subject for result in results))
    sections = _sections(results)
    galleries = [section["gallery"] for section in sections if section["gallery"]]
    common, own = _provenance(results)
    content = {
        "title": title or f"Inductive bias of {_listed(subjects)}",
        "subjects": [(subject, [part for part in sections if part["subject"] == subject]) for subject in subjects],
        "comparison": _comparison(results) if len(subjects) > 1 else None,
        "live_planes": any(section["plane"] for section in sections),
        "common": common,
        "own": [(section, facts) for section, facts in zip(sections, own, strict=True)],
        "papers": list(dict.fromkeys(PAPERS[key] for key in map(_paper, results) if key in PAPERS)),
        "version": results[0].provenance.get("versions", {}).get("biascope", ""),
        "palette": {"light": draw.PALETTE[False]._asdict(), "dark": draw.PALETTE[True]._asdict()},
    }
    bare = len(template.render(content).encode())
    _fill(galleries, LIMIT - bare)
    page = template.render(content).encode()
    if len(page) > LIMIT:
        raise ValueError(f"A report must stay below 5 MB, got {len(page):,} bytes. Pass fewer results.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return path


def write_folder_report(folder: Path, *, title: str | None = None) -> Path:
    """Write ``report.html`` of everything saved in a folder, so that no command removes the sections of another.

    A saved result that cannot be read is left out with a warning.

    Args:
        folder: With saved results, at any depth.
        title: Title of the page if all results there are of one subject.

    Raises:
        ValueError: If the folder holds no result that can be read.
    """
    results, problems = saved(folder)
    for subject in _changed_subjects(results.values()):
        warnings.warn(
            f"The report in {folder} mixes results of {subject} from before and after a change of its code, settings or weights. "
            "Run the older commands again, or pass another --out.",
            stacklevel=2,
        )
    return write_report_of_saved(results, problems, folder / "report.html", title=title)


def _changed_subjects(results: Iterable[Result]) -> list[str]:
    """Subjects whose results are of different networks, although name, weight distribution and number of parameters agree."""
    contents: dict[tuple[str, Any, Any], set[str]] = {}
    for result in results:
        family = result.provenance.get("family", {})
        if "content" in family:
            key = (result.subject, family.get("law"), family.get("parameters"))
            contents.setdefault(key, set()).add(str(family["content"]))
    return list(dict.fromkeys(key[0] for key, found in contents.items() if len(found) > 1))


def write_report_of_saved(
    results: Mapping[str, Result], problems: Sequence[str], path: Path, *, title: str | None = None
) -> Path:
    """Write the report of saved results by their places; those that cannot be read or drawn are left out with a warning.

    Raises:
        ValueError: If nothing is left.
    """
    shown, told = dict(results), list(problems)
    alone = len({result.subject for result in shown.values()}) == 1
    try:
        page = write_report(list(shown.values()), path, title=title if alone else None) if shown or not told else None
    except ValueError:
        raise
    except Exception:  # one of them may have values that do not fit together
        reasons = {place: reason for place, result in shown.items() if (reason := _undrawable(result))}
        if not reasons:
            raise
        told += [
            f"{place} could not be drawn: {reason}. Run the measurement again." for place, reason in reasons.items()
        ]
        left = [result for place, result in shown.items() if place not in reasons]
        page = write_report(left, path) if left else None
    if page is None:
        raise ValueError(told[0])
    for problem in told:
        warnings.warn(f"The report omits a result: {problem}", stacklevel=3)
    return page


def _undrawable(result: Result) -> str:
    """Why a saved result cannot be shown, if it cannot: its values may be of the right type and still not fit together."""
    try:
        live_view("plane", result)
        _gallery(result, 0)
        result.plots(False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _sections(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What the page says of each result."""
    spent = 0
    sections: list[dict[str, Any]] = []
    with counted("results of the report", len(results)) as advance:
        for index, result in enumerate(results):
            fits = spent < _PICTURES
            pictures = _pictures(result.plots, f"result-{index}") if fits else []
            if view := live_view(f"plane-{index}", result):
                still = [picture for picture in pictures if picture["planes"]]
                pictures = [picture for picture in pictures if not picture["planes"]]
                view["pictures"] = still or (_pictures(view["plots"], view["id"]) if fits else [])
            drawn = pictures + (view["pictures"] if view else [])
            spent += sum(len(picture["light"]) + len(picture["dark"]) for picture in drawn)
            sections.append(
                {
                    "id": f"result-{index}",
                    "subject": result.subject,
                    "title": _title(result),
                    "sentence": result.sentence(),
                    "why_detail": result.why_detail(results),
                    "warnings": result.warnings,
                    "numbers": [(number.label, *_in_words(number)) for number in result.headline().values()],
                    "pictures": pictures,
                    "plane": view,
                    "left_out": not fits,
                    "gallery": _gallery(result, sum(section["gallery"] is not None for section in sections)),
                    "call": _call(result),
                }
            )
            advance(1)
    return sections


def _pictures(plots: Callable[[bool], dict[str, Figure]], salt: str) -> list[dict[str, Any]]:
    """Each picture for both themes, under its caption and with the sentence that the figure carries."""
    light, dark = plots(False), plots(True)
    return [
        {
            "key": key,
            "caption": draw.caption_of(figure, key),
            "reading": draw.reading_of(figure),
            "planes": figure.get_gid() == MARK,
            "light": _embedded(figure, f"{salt}-{index}-light"),
            "dark": _embedded(dark[key], f"{salt}-{index}-dark"),
        }
        for index, (key, figure) in enumerate(light.items())
    ]


def _embedded(figure: Figure, salt: str) -> Markup:
    """A figure as markup that is safe by construction: matplotlib escapes the text that it writes."""
    from markupsafe import Markup

    drawn = re.sub(r'(?<=data:image/png;base64,)[^"]+', _with_colour_table, draw.svg(figure, salt))
    if len(drawn) > _HEAVY:
        drawn = f'<img alt="" src="data:image/png;base64,{base64.b64encode(draw.png(figure, 1000)).decode()}">'
    return Markup(drawn)


def _with_colour_table(match: re.Match[str]) -> str:
    """The same embedded picture at a third of the size, where it has few colours."""
    from PIL import Image

    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(match[0]))).convert("RGBA")).view(np.uint32)[..., 0]
    colours, places = np.unique(pixels, return_inverse=True)
    if len(colours) > 256:
        return match[0]
    picture = Image.fromarray(places.reshape(pixels.shape).astype(np.uint8))  # grey, until it has a palette
    picture.putpalette(colours.tobytes(), "RGBA")
    buffer = io.BytesIO()
    picture.save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _gallery(result: Result, index: int) -> dict[str, Any] | None:
    """What the page needs to step through a result's directions; the directions themselves come with :func:`_fill`."""
    if not result.gallery:
        return None
    directions = np.asarray(getattr(result, result.gallery))
    shape = tuple(getattr(result, "input_shape", directions.shape[1:]))
    height, width = shape[-2:] if len(shape) > 1 else (1, shape[0])
    values, errors = getattr(result, "eigenvalues", None), getattr(result, "eigenvalue_errors", None)
    if values is not None:
        values = np.where(values > 1e-9 * values.max(initial=0.0), values, 0.0)  # rounding errors of zero
    trace = getattr(result, "trace", None)
    mean = trace.value / directions.shape[1] if isinstance(trace, Estimate) else math.nan
    numbers = {
        "values": None if values is None else [_rounded(value) for value in values],
        "errors": None if errors is None else [_rounded(error) for error in errors],
        "mean": _rounded(mean),
    }
    resolved = getattr(result, "resolved", None)
    data = {
        "channels": directions.shape[1] // (height * width),
        "height": height,
        "width": width,
        "resolved": len(directions) if resolved is None else resolved,
    }
    return {
        "id": f"gallery-{index}",
        "directions": directions,
        "total": len(directions),
        "resolved": resolved,
        "size": directions.shape[1],
        "signal": min(height, width) == 1,
        "coloured": data["channels"] == 3,
        "count": 0,
        "data": data | numbers | {"scales": [], "pixels": ""},
    }


def _fill(galleries: list[dict[str, Any]], room: int) -> None:
    """Put into each gallery as many directions as its share of the room holds, as 8-bit numbers with a scale each."""
    for position, gallery in sorted(enumerate(galleries), key=lambda item: item[1]["directions"].nbytes):
        left = sum(other["count"] == 0 for other in galleries)
        share = room // left
        directions = gallery["directions"]
        each = math.ceil(directions.shape[1] * 4 / 3) + 12
        count = max(1, min(len(directions), share // each))
        shown = directions[:count]
        # The sign is arbitrary: the largest entry is made positive, as in the pictures.
        largest = np.take_along_axis(shown, np.abs(shown).argmax(1)[:, None], 1)
        whole = np.rint(127 * shown / np.where(largest == 0, 1, largest)).astype(np.int8)
        galleries[position]["count"] = count
        gallery["data"]["pixels"] = base64.b64encode(whole.tobytes()).decode()
        gallery["data"]["scales"] = [_rounded(abs(value)) for value in largest[:, 0]]
        room -= count * each


def _comparison(results: Sequence[Result]) -> dict[str, Any] | None:
    """Several subjects side by side: a table of one number for each, and pictures of what may be overlaid."""
    known = [(result, beside) for result in results if (beside := result.beside()) is not None]
    titles = {(result.measurement, beside.kind): f"{_title(result)} ({beside.kind})" for result, beside in known}
    rows = []
    for subject in dict.fromkeys(result.subject for result, _ in known):
        cells: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in titles}
        for result, beside in known:
            if result.subject == subject:
                cells[result.measurement, beside.kind].append(_cell(beside))
        rows.append((subject, list(cells.values())))
    alike: dict[tuple[str, str, int], list[Result]] = {}
    for result, beside in known:
        alike.setdefault((result.measurement, beside.kind, beside.size), []).append(result)
    groups = [
        {"title": titles[key[:2]], "pictures": _pictures(functools.partial(_overlaid, group), f"all-{index}")}
        for index, (key, group) in enumerate(alike.items())
        if len({result.subject for result in group}) > 1
    ]
    columns = list(titles.values())
    planes = joint_views((f"plane-{index}", _title(result), result) for index, result in enumerate(results))
    for view in planes:
        view["pictures"] = _pictures(view["plots"], view["id"])
    return {"columns": columns, "rows": rows, "planes": planes, "groups": groups} if rows or planes else None


def _cell(beside: Beside) -> dict[str, Any]:
    value, interval = _in_words(beside.number)
    share = min(max(beside.number.value / beside.size, 0.0), 1.0)
    return {"value": value, "interval": interval, "size": beside.size, "share": f"{100 * share:.1f}"}


def _overlaid(group: Sequence[Result], dark: bool) -> dict[str, Figure]:
    """Pictures of results of one measurement, one kind and one size, under names that tell them apart."""
    trained = all(result.provenance.get("family", {}).get("law") == "point" for result in group)
    # Checkpoints are called "network at step": where all are, the step tells them apart.
    labels = distinct(result.subject.rpartition(" at ")[2] if trained else result.subject for result in group)
    return group[0].overlaid(group, labels, trained, dark)


def _provenance(results: Sequence[Result]) -> tuple[list[tuple[str, str]], list[list[tuple[str, str]]]]:
    """What all results have in common, and what each has of its own, as pairs of words."""
    facts = [_facts(result) for result in results]
    common = {key: value for key, value in facts[0].items() if all(other.get(key) == value for other in facts)}
    own = [[(key, value) for key, value in fact.items() if key not in common] for fact in facts]
    return list(common.items()), own


_WORDS = {
    "family.name": "network",
    "family.law": "distribution of the weights",
    "family.batchnorm": "BatchNorm mode",
    "family.content": "fingerprint of the network",
    "family.drawing": "how networks were drawn",
    "settings.readout": "readout",
    "settings.centred": "mean gradient removed",
    "settings.method": "method of computation",
    "settings.stable": "stop when the two halves agree to",
    "settings.keep": "directions to keep",
    "settings.average": "what is averaged over draws",
    "settings.coherence": "cosine between the averages of two halves",
    "data.name": "samples",
    "data.samples": "samples by split",
    "data.shape": "shape of a sample",
    "settings.seed": "seed",
    "seconds": "seconds",
}


def _facts(result: Result) -> dict[str, str]:
    """Provenance as flat pairs, in the order in which one would repeat it."""
    record = dict(result.provenance)
    record.pop("warnings", None)  # they stand above the numbers
    flat: dict[str, str] = {}
    for part in ("measurement", "family", "probe", "data", "settings", "run", "versions", "seconds", "date", *record):
        value = record.pop(part, None)
        for key, item in value.items() if isinstance(value, dict) else [("", value)] if value is not None else []:
            path = f"{part}.{key}" if key else part
            words = f"version of {key}" if part == "versions" else (key or part).replace("_", " ")
            flat[_WORDS.get(path, words)] = _said(item)
    return flat


def _said(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}".replace(",", "\u202f")  # a narrow space: commas and points are read differently
    if isinstance(value, dict):
        return ", ".join(f"{_said(item)} {key}" for key, item in value.items())
    return ", ".join(map(_said, value)) if isinstance(value, list | tuple) else str(value)


def _call(result: Result) -> str:
    """The Python call that repeats a result, given its network and inputs."""
    if result.measurement not in names():
        return ""
    found = find(result.measurement)
    settings = result.provenance.get("settings", {})
    shown = {
        key: json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
        for key, value in settings.items()
    }
    # What comes by position is a network or data; what is recorded of it is a name or a hash.
    parameters = inspect.signature(found.function).parameters
    given = [key for key, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]
    given += [f"{key}={value}" for key, value in shown.items() if key in found.settings]
    return f"biascope.measure({', '.join([json.dumps(result.measurement), *given])})"


def _title(result: Result) -> str:
    name = result.measurement
    return find(name).title if name in names() else name.replace("_", " ").capitalize()


def _paper(result: Result) -> str:
    return str(result.provenance.get("paper", ""))


def _in_words(estimate: Estimate) -> tuple[str, str]:
    """An estimate as value with standard error and unit, and its interval.

    Example:
        >>> _in_words(Estimate(209.58, 5.7, 197.96, 221.21))
        ('209.6 ± 5.7', '198.0 to 221.2')
        >>> _in_words(Estimate(-0.0001167, 0.0000015, -0.0001197, -0.0001137))
        ('(−1.167 ± 0.015) × 10⁻⁴', '(−1.197 to −1.137) × 10⁻⁴')
        >>> _in_words(Estimate(12.0)), _in_words(Estimate.exact(12.0))
        (('12', 'unknown'), ('12', 'exact'))
        >>> _in_words(Estimate(0.5, 0.01, 0.48, 0.52).named("share of them", "share"))
        ('50.0 ± 1.0 %', '48.0 to 52.0')
    """
    shown_as, unit = estimate.printed if isinstance(estimate, Number) else (estimate, "")
    pair, interval = _pair(shown_as)
    return f"{pair} {unit}".rstrip(), interval


def _pair(estimate: Estimate) -> tuple[str, str]:
    value, error = estimate.value, estimate.standard_error
    if estimate.confidence == 1.0 or not (math.isfinite(error) and error > 0):
        return f"{value:.4g}".replace("-", "−"), "exact" if estimate.confidence == 1.0 else "unknown"
    power = math.floor(math.log10(max(abs(value), error)))
    power = 0 if -4 < power < 6 else power
    digits = min(max(0, 1 - math.floor(math.log10(error / 10**power))), 12)
    shown = [f"{number / 10**power:.{digits}f}" for number in (value, error, estimate.low, estimate.high)]
    shown = [number.replace("-", "−") for number in shown]
    pair, interval = f"{shown[0]} ± {shown[1]}", f"{shown[2]} to {shown[3]}"
    if not power:
        return pair, interval
    times = f" × 10{str(power).translate(_SUPERSCRIPT)}"
    return f"({pair}){times}", f"({interval}){times}"


def _rounded(value: float) -> float | None:
    """Four digits for the page's script; JSON has no nan."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _listed(words: Sequence[str]) -> str:
    if len(words) > 4:
        return f"{words[0]} and {len(words) - 1} others"
    return listed(words)


def _hash(script: str) -> str:
    """What the page's security policy names its one script by; the policy runs no other."""
    return base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
