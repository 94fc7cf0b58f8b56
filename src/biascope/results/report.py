"""SHOW: results -> one self-contained HTML file. It sees results, never networks; the page is ``templates/report.html``.

A page has a summary with links to what shows each statement; sections with the viewer, pictures, tables and what they mean; all numbers
to download; a glossary; how to repeat and cite it; and the settings, folded. Results say themselves what they mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from biascope.results import document
from biascope.results.comparison import Comparison, comparison_of
from biascope.results.directions import Gallery, filled
from biascope.results.page import citation, download, rendered
from biascope.results.planes import live_view
from biascope.results.provenance import common_and_own, repeats
from biascope.results.registry import saved, title_of
from biascope.results.result import Result
from biascope.results.section import Section, Subject, Told, by_subject, leading, sections_of, summary_of
from biascope.results.story import Story
from biascope.results.wording import listed
from biascope.runs.files import require_ours, write_atomically

LIMIT = 4_900_000  # bytes of the file
_LARGEST_DOWNLOAD = 400_000  # letters of a file that a page holds
_FEW = 12  # results up to which each table is a file of its own


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
        >>> from biascope.results.registry import find
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
    stories = [result.story() for result in results]
    if len({result.subject for result in results}) == 1:  # what leads comes first
        order = sorted(range(len(results)), key=lambda place: not stories[place].lead)
        results, stories = [results[place] for place in order], [stories[place] for place in order]
    trained = _checkpoints(results)
    comparison = comparison_of(results, stories, trained) if len({result.subject for result in results}) > 1 else None
    taken = comparison.size if comparison else 0
    sections = sections_of(results, stories, _ends(results) if trained else None, taken)
    summary = summary_of(sections, comparison.statements if comparison else (), comparison is not None)
    sections = _without_repetition(sections, summary, told=not (trained and comparison))
    frame = _frame(results, stories, sections, comparison, summary, trained, title)
    bare = rendered("report.html", frame | _shown(sections, trained))
    room, galleries = LIMIT - len(bare), [section.gallery for section in sections if section.gallery]
    whole = b""
    for _ in range(3):  # how many letters numbers take is known when they are written
        steppers = iter(filled(galleries, room))
        filled_in = [replace(section, gallery=next(steppers)) if section.gallery else section for section in sections]
        whole = rendered("report.html", frame | {"leading": leading(filled_in)} | _shown(filled_in, trained))
        if len(whole) <= LIMIT:
            break
        room -= len(whole) - LIMIT
    if len(whole) > LIMIT:
        raise ValueError(f"A report must stay below 5 MB, got {len(whole):,} bytes. Pass fewer results.")
    path = Path(path)
    require_ours(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, whole)
    return path


def _frame(
    results: Sequence[Result],
    stories: Sequence[Story],
    sections: Sequence[Section],
    comparison: Comparison | None,
    summary: Sequence[Told],
    trained: bool,
    title: str | None,
) -> dict[str, Any]:
    """What the template shows around the sections."""
    common, own = common_and_own(results)
    kind, usual = _kind_and_title(results, stories, trained)
    version = results[0].provenance.get("versions", {}).get("biascope", "")
    numbered = [section for section in sections if section.numbered]
    return {
        "title": title or usual,
        "kind": kind,
        "badge": numbered[0].story.badge if len(numbered) == 1 else None,
        "leading": leading(sections),
        "summary": summary,
        "cautions": list(dict.fromkeys(words for section in numbered for words in section.result.warnings)),
        "contents": _contents(comparison, by_subject(sections, trained)),
        "comparison": comparison,
        "intervals": any(section.intervals for section in numbered),
        "downloads": _downloads(results),
        "live_planes": any(section.plane for section in sections),
        "common": common,
        "own": [(f"{section.title} of {section.subject}", facts) for section, facts in zip(sections, own, strict=True)],
        "repeats": repeats(results),
        "citation": citation([result.paper for result in results], version),
        "version": version,
    }


def _shown(sections: Sequence[Section], trained: bool) -> dict[str, Any]:
    """What the template shows of sections."""
    return {
        "subjects": by_subject(sections, trained),
        "numbered": [section for section in sections if section.numbered],
    }


def _without_repetition(sections: Sequence[Section], summary: Sequence[Told], *, told: bool) -> list[Section]:
    """Sections without the finding and the caveats that the summary has, and with a meaning that several share said once.

    Args:
        sections: All of the page.
        summary: What it has said.
        told: Whether a section may begin with its finding.
    """
    said = {each.text for each in summary}
    several = sum(section.numbered for section in sections) > 1
    meant: set[str] = set()
    found = []
    for section in sections:
        unsaid = told and not any(text in said for text, _ in section.sentences)
        again = section.meant and section.story.meaning in meant
        meant |= {section.story.meaning} if section.meant else set()
        warned = several or not section.numbered
        found.append(replace(section, told=unsaid, warned=warned, meant=section.meant and not again))
    return found


def write_folder_report(
    folder: Path, *, title: str | None = None, at_hand: Mapping[Path, Result] | None = None
) -> Path:
    """Write ``report.html`` of everything saved in a folder, so that no command removes the sections of another.

    A saved result that cannot be read is left out with a warning.

    Args:
        folder: With saved results, at any depth.
        title: Title of the page if all results there are of one subject.
        at_hand: By their folders, results that were just saved there and need not be read.

    Raises:
        ValueError: If the folder holds no result that can be read.
    """
    results, problems = saved(folder, at_hand)
    made = {result.measurement: place for place, result in enumerate((at_hand or {}).values())}
    if len({result.subject for result in results.values()}) == 1:  # as the command made them
        results = dict(sorted(results.items(), key=lambda pair: made.get(pair[1].measurement, len(made))))
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
        if (directions := result.story().directions) is not None:
            _ = Gallery("", directions).data
        result.plots(False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _checkpoints(results: Sequence[Result]) -> bool:
    """Whether all results are of checkpoints of one training, and may be compared."""
    points = all(result.at_given_weights for result in results)
    networks = {result.subject.rpartition(" at ")[0] for result in results}
    return points and len(networks) == 1 and "" not in networks and len({result.subject for result in results}) > 1


def _ends(results: Sequence[Result]) -> dict[int, str]:
    """Results that a page on checkpoints shows by themselves: those of the first and of the last, by their places."""
    subjects = [result.subject for result in results]
    words = {subjects[0]: "First checkpoint", subjects[-1]: "Last checkpoint"}
    return {place: words[subject] for place, subject in enumerate(subjects) if subject in words}


def _kind_and_title(results: Sequence[Result], stories: Sequence[Story], trained: bool) -> tuple[str, str]:
    """What kind of report it is, and its title."""
    subjects = list(dict.fromkeys(result.subject for result in results))
    if trained:
        return "checkpoints", f"{subjects[0].rpartition(' at ')[0]} along training: {len(subjects)} checkpoints"
    both = zip(results, stories, strict=True)
    first = [(result, story) for result, story in both if not result.why_detail(results)]
    if len(subjects) == 1 and (led := [pair for pair in first if pair[1].lead]):
        first = led[:1]
    kinds = list(dict.fromkeys(story.page_kind or title_of(result).lower() for result, story in first))
    if len(subjects) > 1:
        return "comparison" if len(kinds) == 1 else _listed(kinds), f"Comparison of {_listed(subjects)}"
    titles = {story.page_title for _, story in first}
    usual = f"{title_of(first[0][0])} of {subjects[0]}" if len(first) == 1 else f"Inductive bias of {subjects[0]}"
    return _listed(kinds), (titles.pop() if len(titles) == 1 else "") or usual


def _contents(comparison: Comparison | None, groups: Sequence[Subject]) -> list[tuple[str, str]]:
    """Where the navigation leads, and its words."""
    entries = [(comparison.id, comparison.heading)] if comparison else []
    shown = [(group.id, group.name) for group in groups]
    entries += shown if len(shown) <= 6 else [*shown[:5], (shown[5][0], f"{len(shown) - 5} others")]
    return [*entries, ("numbers", "Numbers"), ("repeat", "Repeat and cite"), ("settings", "Settings")]


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


def _listed(words: Sequence[str]) -> str:
    if len(words) > 4:
        return f"{words[0]} and {len(words) - 1} others"
    return listed(words)
