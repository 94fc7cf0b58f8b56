"""SHOW: results -> one self-contained HTML file. It sees results, never networks; the page is ``templates/report.html``.

A page has a summary with links to what shows each statement; sections with the viewer, pictures, tables and what they mean; all numbers
to download; a glossary; how to repeat and cite it; and the settings, folded. Results say themselves what they mean.
"""

from __future__ import annotations

import base64
import functools
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

from biascope.results import document, draw
from biascope.results.estimate import Estimate, Number, interval_in_words
from biascope.results.figures import MARK
from biascope.results.page import citation, download, rendered
from biascope.results.planes import distinct, joint_views, live_view
from biascope.results.registry import find, names, saved
from biascope.results.result import Badge, Beside, Result
from biascope.results.wording import listed
from biascope.runs.files import require_ours, write_atomically
from biascope.runs.rehearsal import counted

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

LIMIT = 4_900_000  # bytes of the file
_PICTURES = 3_000_000  # of these, at most, for the pictures of single results
_HEAVY = 400_000  # bytes beyond which a picture is embedded as pixels
_LARGEST_DOWNLOAD = 400_000  # letters of a file that a page holds
_FEW = 12  # results up to which each table is a file of its own
_ROWS = 40  # of a table that are shown
LEAST_STATEMENTS, MOST_STATEMENTS = 3, 5  # of a summary
NO_SPREAD = "The spread of this number was not measured: it comes from one set of draws, or from one run. Another seed shows it."
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
    subjects = list(dict.fromkeys(result.subject for result in results))
    trained = _checkpoints(results)
    comparison = _comparison(results, trained) if len(subjects) > 1 else None
    sections = _sections(results, _ends(results) if trained else None, several=len(subjects) > 1)
    galleries = [section["gallery"] for section in sections if section["gallery"]]
    groups = _by_subject(sections, trained)
    common, own = _provenance(results)
    kind, usual = _kind_and_title(results, trained)
    version = results[0].provenance.get("versions", {}).get("biascope", "")
    numbered = [section for section in sections if section["shown"] and not section["why_detail"]]
    summary = _summary(results, sections, comparison)
    said = {each["text"] for each in summary}
    meant: set[str] = set()
    for section, result in zip(sections, results, strict=True):
        section["told"] = not any(text in said for text, _ in result.sentences()) and not (trained and comparison)
        if section["meaning"] in meant:  # of several networks, the same words once
            section |= {"meaning": "", "steps": []}
        meant.add(section["meaning"])
        section["warned"] = len(numbered) > 1 or section not in numbered  # else the summary has them all
    badges = [section["badge"] for section in numbered if section["badge"]]
    content = {
        "title": title or usual,
        "kind": kind,
        "badge": badges[0] if len(badges) == 1 and len(numbered) == 1 else None,
        "summary": summary,
        "cautions": list(dict.fromkeys(words for section in numbered for words in section["warnings"])),
        "contents": _contents(comparison, groups),
        "subjects": groups,
        "comparison": comparison,
        "numbered": numbered,
        "intervals": any(row["known"] for section in numbered for row in section["numbers"]),
        "downloads": _downloads(results),
        "live_planes": any(section["plane"] for section in sections),
        "common": common,
        "own": [
            (f"{section['title']} of {section['subject']}", facts) for section, facts in zip(sections, own, strict=True)
        ],
        "repeats": _repeats(results),
        "citation": citation([_paper(result) for result in results], version),
        "version": version,
    }
    bare = len(rendered("report.html", content))
    _fill(galleries, LIMIT - bare)
    page = rendered("report.html", content)
    if len(page) > LIMIT:
        raise ValueError(f"A report must stay below 5 MB, got {len(page):,} bytes. Pass fewer results.")
    path = Path(path)
    require_ours(path)
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


def page_seconds(size: int) -> float:
    """Seconds to check, save, draw and show one result, on two idle CPU cores (benchmarks/dry_run.py).

    Args:
        size: Numbers of one input, as many as the directions that are shown.
    """
    return 2.2 + 1.2e-3 * min(size, 4096)


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


def _checkpoints(results: Sequence[Result]) -> bool:
    """Whether all results are of checkpoints of one training, and may be compared."""
    points = all(result.provenance.get("family", {}).get("law") == "point" for result in results)
    networks = {result.subject.rpartition(" at ")[0] for result in results}
    return points and len(networks) == 1 and "" not in networks and len({result.subject for result in results}) > 1


def _ends(results: Sequence[Result]) -> dict[int, str]:
    """Results that a page on checkpoints shows by themselves: those of the first and of the last, by their places."""
    subjects = [result.subject for result in results]
    words = {subjects[0]: "First checkpoint", subjects[-1]: "Last checkpoint"}
    return {place: words[subject] for place, subject in enumerate(subjects) if subject in words}


def _kind_and_title(results: Sequence[Result], trained: bool) -> tuple[str, str]:
    """What kind of report it is, and its title."""
    subjects = list(dict.fromkeys(result.subject for result in results))
    if trained:
        return "checkpoints", f"{subjects[0].rpartition(' at ')[0]} along training: {len(subjects)} checkpoints"
    first = [result for result in results if not result.why_detail(results)]
    kinds = list(dict.fromkeys(result.page_kind or _title(result).lower() for result in first))
    if len(subjects) > 1:
        return "comparison" if len(kinds) == 1 else _listed(kinds), f"Comparison of {_listed(subjects)}"
    titles = {result.page_title() for result in first}
    usual = f"{_title(first[0])} of {subjects[0]}" if len(first) == 1 else f"Inductive bias of {subjects[0]}"
    return _listed(kinds), (titles.pop() if len(titles) == 1 else "") or usual


def _contents(comparison: Mapping[str, Any] | None, groups: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Where the navigation leads, and its words."""
    found = [(comparison["id"], comparison["heading"])] if comparison else []
    shown = [(group["id"], group["name"]) for group in groups]
    found += shown if len(shown) <= 6 else [*shown[:5], (shown[5][0], f"{len(shown) - 5} others")]
    return [*found, ("numbers", "Numbers"), ("repeat", "Repeat and cite"), ("settings", "Settings")]


def _by_subject(sections: Sequence[dict[str, Any]], trained: bool) -> list[dict[str, Any]]:
    """Sections under their subjects; of checkpoints, only the first and the last."""
    shown = [section for section in sections if section["shown"]]
    subjects = list(dict.fromkeys(section["subject"] for section in shown))
    if trained:
        subjects.reverse()  # the last one is the one in use
    return [
        {
            "id": f"subject-{index}",
            "name": next(part["place"] or subject for part in shown if part["subject"] == subject),
            "sections": [part for part in shown if part["subject"] == subject],
        }
        for index, subject in enumerate(subjects, 1)
    ]


def _summary(
    results: Sequence[Result], sections: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None
) -> list[dict[str, str]]:
    """Three to five statements with links to what shows them."""
    found = list(comparison["statements"]) if comparison else []
    shown = [
        (section, result)
        for section, result in zip(sections, results, strict=True)
        if section["shown"] and not section["why_detail"]
    ]
    several = len({section["subject"] for section, _ in shown}) > 1
    each = [] if comparison and len(found) >= 3 else [_linked(section, result, several) for section, result in shown]
    # The first of each result, then the second of each, so that none is drowned by another.
    for turn in range(max(map(len, each), default=0)):
        found += [those[turn] for those in each if turn < len(those)]
    if len(found) < LEAST_STATEMENTS:
        for section, result in shown:
            found += _numbers_in_words(section, result, several)
    return found[:MOST_STATEMENTS]


def _linked(section: Mapping[str, Any], result: Result, several: bool) -> list[dict[str, str]]:
    """What a result says in the summary, linked to its picture, table or numbers."""
    places = {item["key"]: (f"{section['id']}-{item['key']}", item["caption"]) for item in section["pictures"]}
    if section["plane"]:
        places["frequency_plane"] = (section["plane"]["id"], "Frequency plane")
    if section["gallery"]:
        places["directions"] = (section["gallery"]["id"], "Directions")
    places |= {item["key"]: (item["id"], item["title"]) for item in section["tables"]}
    usual = (f"numbers-{section['id']}", "Numbers")
    found = []
    for text, shown_by in result.sentences():
        place, words = places.get(shown_by, usual)
        about = f"{section['subject']}, {section['title'].lower()}" if several else ""
        found.append({"text": text, "place": place, "words": f"→\u00a0{words}", "about": about})
    return found


def _numbers_in_words(section: Mapping[str, Any], result: Result, several: bool) -> list[dict[str, str]]:
    """The first numbers of a result as sentences, for one that says little itself."""
    found = []
    for row in section["numbers"][:LEAST_STATEMENTS]:
        text = f"{row['label'][:1].upper()}{row['label'][1:]}: {row['value']}"
        text += f" (95 % CI {row['interval']})." if row["known"] else "."
        about = section["subject"] if several else ""
        found.append({"text": text, "place": f"numbers-{section['id']}", "words": "→\u00a0Numbers", "about": about})
    return found


def _sections(results: Sequence[Result], ends: Mapping[int, str] | None, *, several: bool) -> list[dict[str, Any]]:
    """What the page says of each result; of checkpoints, only the ends have pictures."""
    spent = 0
    sections: list[dict[str, Any]] = []
    with counted("results of the report", len(results)) as advance:
        for index, result in enumerate(results):
            section, fits = _section(f"result-{index}", result, results), spent < _PICTURES
            section |= {"shown": ends is None or index in ends, "place": "" if ends is None else ends.get(index, "")}
            drawn = fits and section["shown"] and section["place"] != "First checkpoint"
            pictures = _pictures(result.plots, f"result-{index}") if drawn else []
            view = live_view(f"plane-{index}", result) if section["shown"] else None
            if view:
                still = [picture for picture in pictures if picture["planes"]]
                pictures = [picture for picture in pictures if not picture["planes"]]
                view["pictures"] = still or (_pictures(view["plots"], view["id"]) if fits else [])
            embedded = pictures + (view["pictures"] if view else [])
            spent += sum(len(picture["light"]) + len(picture["dark"]) for picture in embedded)
            place = sum(section["gallery"] is not None for section in sections)
            section |= {
                "pictures": pictures,
                "plane": view,
                "left_out": not fits and section["shown"],
                "gallery": _gallery(result, place) if section["shown"] else None,
            }
            if ends is not None and section["place"] != "Last checkpoint":
                section |= {"meaning": "", "steps": []}  # they would be the same words again
            sections.append(section)
            advance(1)
    return sections


def _section(identity: str, result: Result, results: Sequence[Result]) -> dict[str, Any]:
    """What the page says of a result in words and numbers."""
    numbers = [{"label": number.label} | _row(number) for number in result.headline().values()]
    return {
        "id": identity,
        "subject": result.subject,
        "title": _title(result),
        "badge": result.badge(),
        "sentence": result.sentence(),
        "why_detail": result.why_detail(results),
        "warnings": result.warnings,
        "numbers": numbers,
        "intervals": any(row["known"] for row in numbers),
        "tables": _tables(identity, result),
        "meaning": result.meaning(),
        "steps": result.next_steps(),
    }


def _row(number: Estimate) -> dict[str, Any]:
    value, interval = _in_words(number)
    known = interval not in ("exact", "unknown")
    return {"value": value, "interval": interval, "known": known, "why": NO_SPREAD if interval == "unknown" else ""}


def _tables(identity: str, result: Result) -> list[dict[str, Any]]:
    """The tables that a result wants shown, their cells in words."""
    every, found = result.tables() if result.shown_tables else {}, []
    for key, columns in result.shown_tables.items():
        rows = every.get(key, [])
        # A column in which nothing is known says nothing.
        there = {name: words for name, words in columns.items() if any(row.get(name) is not None for row in rows)}
        cells = [
            [_table_cell(row.get(name), percent=words.endswith(", %")) for name, words in there.items()]
            for row in rows[:_ROWS]
        ]
        title = key.replace("_", " ").capitalize()
        found.append(
            {
                "id": f"{identity}-{key}",
                "key": key,
                "title": title,
                "headings": list(there.values()),
                "rows": cells,
                "left_out": max(0, len(rows) - _ROWS),
            }
        )
    return [item for item in found if item["rows"]]


def _table_cell(value: Any, percent: bool) -> dict[str, str]:
    """A cell in words; a share under a heading in percent is shown in percent."""
    if isinstance(value, Badge):
        return {"text": value.text, "badge": value.tone, "why": ""}
    if isinstance(value, Estimate):
        row = _row(value)
        text = f"{row['value']} ({row['interval']})" if row["known"] else row["value"]
        return {"text": text, "badge": "", "why": row["why"]}
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return {"text": "–", "badge": "", "why": "Not measured."}
    if isinstance(value, float):
        value = 100 * value if percent else value
        text = f"{value:.3g}".replace("-", "−") if abs(value) < 1000 else f"{value:,.0f}".replace(",", "\u202f")
        return {"text": text, "badge": "", "why": ""}
    return {"text": _said(value), "badge": "", "why": ""}


def _downloads(results: Sequence[Result]) -> list[dict[str, str]]:
    """The numbers as CSV and JSON, and each table as CSV."""
    rows = [
        {
            "subject": result.subject,
            "measurement": result.measurement,
            "key": key,
            "label": number.label,
            "unit": number.unit,
            "value": number.value,
            "standard_error": number.standard_error,
            "low": number.low,
            "high": number.high,
        }
        for result in results
        for key, number in result.headline().items()
    ]
    entries = [document.result_as_json(result) for result in results]
    whole, words = document.as_document(results=entries), "All results as JSON"
    if len(whole) > _LARGEST_DOWNLOAD:
        whole = document.as_document(results=[{**entry, "tables": {}} for entry in entries])
        words = "All results without tables as JSON"
    files = [download("numbers.csv", "Numbers as CSV", document.csv_text(rows), "text/csv")]
    files.append(download("results.json", words, whole, "application/json"))
    for index, result in enumerate(results):
        for name, table in result.tables().items() if len(results) <= _FEW else ():
            text = document.csv_text(table)
            if table and len(text) <= _LARGEST_DOWNLOAD:
                file = f"{name}.csv" if len(results) == 1 else f"{index + 1}-{name}.csv"
                files.append(download(file, f"{name.replace('_', ' ').capitalize()} as CSV", text, "text/csv"))
    return files


def _repeats(results: Sequence[Result]) -> list[tuple[str, str]]:
    """What to type to repeat the results: the commands that made them, else the calls in Python."""
    commands = list(dict.fromkeys(str(result.provenance.get("command", "")) for result in results))
    if all(commands):
        return [("Command line", "\n".join(commands))]
    calls = list(dict.fromkeys(filter(None, map(_call, results))))
    return [("In Python", "\n".join(calls))] if calls else []


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
    features = (
        len(getattr(result, "input_shape", (0, 0))) == 1
    )  # numbers in no order: a frequency of theirs means nothing
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
        "features": features,
    }
    return {
        "id": f"gallery-{index}",
        "title": "Step through the directions",
        "directions": directions,
        "total": len(directions),
        "resolved": resolved,
        "size": directions.shape[1],
        "signal": min(height, width) == 1,
        "features": features,
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


def _comparison(results: Sequence[Result], trained: bool) -> dict[str, Any] | None:
    """Several subjects side by side: a table of one number for each, pictures of what may be overlaid, and what follows."""
    known = [(result, beside) for result in results if (beside := result.beside()) is not None]
    known.sort(key=lambda pair: bool(pair[0].why_detail(results)))  # what gives the headline comes first
    titles = {(result.measurement, beside.kind): f"{_title(result)} ({beside.kind})" for result, beside in known}
    rows = []
    for subject in dict.fromkeys(result.subject for result, _ in known):
        cells: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in titles}
        for result, beside in known:
            if result.subject == subject:
                cells[result.measurement, beside.kind].append(_cell(beside))
        rows.append((subject.rpartition(" at ")[2] if trained else subject, list(cells.values())))
    alike: dict[tuple[str, str, int], list[Result]] = {}
    for result, beside in known:
        alike.setdefault((result.measurement, beside.kind, beside.size), []).append(result)
    groups, statements, headlines = [], list[dict[str, str]](), []
    for index, (key, group) in enumerate(alike.items()):
        if len({result.subject for result in group}) < 2:
            continue
        pictures = _pictures(functools.partial(_overlaid, group), f"all-{index}")
        groups.append({"id": f"all-{index}", "title": titles[key[:2]], "pictures": pictures})
        if group[0].why_detail(results):
            continue
        headlines.append(group)
        captions = {picture["key"]: picture["caption"] for picture in pictures}
        for text, shown_by in group[0].conclusions(group, _labels(group), trained):
            place = f"all-{index}-{shown_by}" if shown_by in captions else "comparison-table"
            statements.append(
                {"text": text, "place": place, "words": f"→\u00a0{captions.get(shown_by, 'Table')}", "about": ""}
            )
    planes = joint_views((f"plane-{index}", _title(result), result) for index, result in enumerate(results))
    for view in planes:
        view["pictures"] = _pictures(view["plots"], view["id"])
    if not rows and not planes:
        return None
    return {
        "id": "comparison",
        "heading": "Change along training" if trained else "Comparison",
        "of": "Checkpoint" if trained else "Network",
        "reading": "Effective rank: the number of input directions over which the gradient spreads. Compare within a column: each "
        "column uses one estimator.",
        "columns": list(titles.values()),
        "rows": rows,
        "planes": planes,
        "groups": groups,
        "statements": statements,
        "meaning": _COMPARED[trained] if headlines else "",
        "steps": [],
    }


_COMPARED = {
    False: "Differences between networks are those of their architectures at initial weights, on random inputs. A smaller effective "
    "rank means a stronger preference, which helps where the data lie along the preferred directions and hurts where they do not. It "
    "does not rank networks by accuracy.",
    True: "Along training, the geometry changes from what the architecture prefers to what the data and labels need. A falling "
    "effective rank means that the output comes to depend on fewer input directions. It does not say whether the network "
    "generalises: compare with its test accuracy.",
}


def _cell(beside: Beside) -> dict[str, Any]:
    value, interval = _in_words(beside.number)
    share = min(max(beside.number.value / beside.size, 0.0), 1.0)
    known = "" if interval in ("exact", "unknown") else interval
    return {"value": value, "interval": known, "size": beside.size, "share": f"{100 * share:.1f}"}


def _labels(group: Sequence[Result]) -> list[str]:
    """Names that tell results apart; of checkpoints, which are called "network at step", the step."""
    trained = all(result.provenance.get("family", {}).get("law") == "point" for result in group)
    return distinct(result.subject.rpartition(" at ")[2] if trained else result.subject for result in group)


def _overlaid(group: Sequence[Result], dark: bool) -> dict[str, Figure]:
    """Pictures of results of one measurement, one kind and one size, under names that tell them apart."""
    trained = all(result.provenance.get("family", {}).get("law") == "point" for result in group)
    return group[0].overlaid(group, _labels(group), trained, dark)


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
        >>> _in_words(Estimate(1.0, 0.6, 0.0, math.inf))
        ('1.00 ± 0.60', '0.00 or more')
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
        alone, ends = f"{value:.4g}".replace("-", "−"), (estimate.low, estimate.high)
        if estimate.confidence == 1.0:
            return alone, "exact"
        words = (f"{end:.4g}".replace("-", "−") for end in ends)
        return alone, "unknown" if any(map(math.isnan, ends)) else interval_in_words(*words)  # of repeats that agree
    power = math.floor(math.log10(max(abs(value), error)))
    power = 0 if -4 < power < 6 else power
    digits = min(max(0, 1 - math.floor(math.log10(error / 10**power))), 12)
    shown = [f"{number / 10**power:.{digits}f}" for number in (value, error, estimate.low, estimate.high)]
    shown = [number.replace("-", "−") for number in shown]
    pair, interval = f"{shown[0]} ± {shown[1]}", interval_in_words(*shown[2:])
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
