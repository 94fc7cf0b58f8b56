"""Findings made elsewhere, merged into the committed results."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biascope import papers
from biascope.papers import selection, verdicts
from biascope.papers.verdicts import committed, committed_file
from biascope.results import store
from biascope.results.claim import effort_rank
from biascope.results.finding import FigureOfPaper
from biascope.results.paper_page import picture
from biascope.results.record import DOCUMENT, FORMAT, Record
from biascope.results.wording import snake
from biascope.runs.files import make_writable, write_atomically


@dataclass(frozen=True)
class Merged:
    """What became of one finding that was to be merged.

    Attributes:
        source: The file.
        outcome: ``"new"``, ``"replaced"``, ``"added"`` (to the numbers of other networks), ``"kept"`` (what is committed is as good
            or newer) or ``"refused"``.
        words: What happened and why.
    """

    source: str
    outcome: str
    words: str


def merge(source: Path | str, *, results: Path | None = None, gallery: Path | None = None) -> list[Merged]:
    """Take findings made elsewhere into the committed results.

    One entry per figure and effort is kept: a newer run replaces an older one of the same effort, and never one of
    another effort. A run for some networks replaces their numbers alone (:func:`united`). The picture is drawn again from
    the arrays where the finding has the greatest effort of its figure. That of some networks goes below the earlier one, unless it has
    all numbers of the earlier run.

    Args:
        source: A reproduce folder, or a ``.tar.gz`` of one; nothing but findings and arrays is read from it.
        results: Where to; by default the committed results of the source checkout that this package runs from.
        gallery: Where pictures go; with the default results ``docs/gallery`` of the checkout, otherwise nowhere.

    Returns:
        What became of each finding; damaged and foreign files are named as refused.

    Raises:
        ValueError: If the source holds no finding, or there is nowhere to merge it.
    """
    results, drawn_into = destination(results)
    gallery = gallery or drawn_into
    outcomes = []
    # Oldest first: of several networks that were run one after the other, none is then older than what is committed.
    for name, finding, beside in sorted(_findings(Path(source)), key=lambda each: _date_of(each[1])):
        try:
            outcomes.append(Merged(name, *_merge_one(name, finding, beside, results, gallery)))
        except Exception as error:  # a damaged file or a picture that fails must not keep the others out
            told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            outcomes.append(Merged(name, "refused", told))
    if not outcomes:
        raise ValueError(
            f"{source} must hold findings, and has no finding.json. Pass a folder that biascope reproduce wrote."
        )
    return outcomes


def destination(results: Path | None = None) -> tuple[Path, Path | None]:
    """Where findings are merged, and where their pictures go.

    Raises:
        ValueError: If no results are named and the package runs from no source checkout.
    """
    if results is not None:
        return results, None
    if (root := checkout()) is None:
        raise ValueError(
            "Findings are merged into a source checkout, and this biascope is installed without one. Pass --results FOLDER."
        )
    return verdicts.RESULTS, root / "docs" / "gallery" if (root / "docs").is_dir() else None


def checkout() -> Path | None:
    """The source checkout that this package runs from, ``None`` if it was installed without one."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "biascope").is_dir() else None


def _findings(source: Path) -> Iterator[tuple[str, bytes, Mapping[str, bytes]]]:
    """Name and content of every finding in a folder or an archive, and the files beside it; nothing is unpacked to disk."""
    if source.is_dir():
        for path in sorted(path for path in source.rglob(DOCUMENT) if path.is_file()):
            yield (
                str(path),
                path.read_bytes(),
                {each.name: each.read_bytes() for each in path.parent.glob("arrays*.npz")},
            )
        return
    if not source.exists():
        raise ValueError(
            f"--merge needs a folder of findings or a .tar.gz of one, and {source} does not exist. Check the path."
        )
    try:
        with tarfile.open(source) as archive:
            members = [member for member in archive if member.isfile() and _wanted(Path(member.name).name)]
            content = {str(Path(member.name)): _member(archive, member) for member in members}
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(
            f"{source} must be a folder of findings or a whole .tar.gz of one, and is neither. Pass what biascope reproduce wrote."
        ) from error
    for name in sorted(content):
        if Path(name).name == DOCUMENT:
            folder = Path(name).parent
            beside = {Path(other).name: data for other, data in content.items() if Path(other).parent == folder}
            yield f"{source}:{name}", content[name], beside


def _date_of(finding: bytes) -> str:
    """When a finding was made; nothing for a damaged one, which is refused later."""
    try:
        return str(json.loads(finding)["record"]["date"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _wanted(name: str) -> bool:
    return name == DOCUMENT or (name.startswith("arrays") and name.endswith(".npz"))


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return b"" if stream is None else stream.read()


def _merge_one(
    name: str, finding: bytes, beside: Mapping[str, bytes], results: Path, gallery: Path | None
) -> tuple[str, str]:
    document, record = Record.parsed(finding, name)
    figure = papers.figure(record.paper, record.figure)
    entries = committed(figure, results=results)
    before = entries.get(record.effort)
    words = f"{figure.paper} {figure.number}, {record.effort}, {record.date} on {record.device}"
    added = record.settings.get(selection.KEY)
    fresh = added and before is not None and record.statistics.keys() - before.statistics.keys()  # of another network
    if before is not None and before.date >= record.date and not fresh:
        same = "the same" if before.as_json() == record.as_json() else f"one of {before.date}, no older,"
        return "kept", f"{words}: {same} is committed"
    drawn = None
    if gallery is not None and all(effort_rank(effort) <= effort_rank(record.effort) for effort in entries):
        drawn = picture(figure, record.finding(_arrays(document, beside, name)))
        if added and before is not None and not record.statistics.keys() >= before.statistics.keys():
            again = bool(record.statistics.keys() & before.statistics.keys())
            drawn = _below(
                gallery / f"{figure.paper}-{figure.file_name}.png", drawn, _caption(added, record.date, again)
            )
    whole = before is not None and record.statistics.keys() >= before.statistics.keys()
    if added:
        record = united(figure, before, record)
    entries[record.effort] = _remembering(figure, list(entries.values()), record)
    ordered = {effort: entries[effort].as_json() for effort in sorted(entries, key=effort_rank)}
    path = committed_file(figure, results)
    make_writable(path.parent)
    document = {"format": FORMAT, "paper": figure.paper, "figure": figure.number, "efforts": ordered}
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    if drawn is not None and gallery is not None:
        make_writable(gallery)
        write_atomically(gallery / f"{figure.paper}-{figure.file_name}.png", drawn)
    if before is None:
        return "new", words
    if added and not whole:
        return "added", f"{words}: {', '.join(map(str, added))}, to one of {before.date}"
    lost = ", ".join(sorted(before.statistics.keys() - record.statistics.keys()))
    remark = f"; no longer measured: {lost}" if lost else ""
    return "replaced", f"{words}, for one of {before.date} on {before.device}{remark}"


def _remembering(figure: FigureOfPaper, entries: Sequence[Record], record: Record) -> Record:
    """The record with what had been seen before it: claims whose number is one of the same seeds, and seeds of earlier runs.

    A run that is repeated would otherwise make claims look as if they had been written before it. A run with new seeds names those of
    all earlier runs: its claims are new again. A run that does not record its seeds counts as one of the same.
    """
    own, entries = verdicts.seeds(record), [each for each in entries if each.date <= record.date]
    again = [each for each in entries if not own or not verdicts.seeds(each) or own & verdicts.seeds(each)]
    earlier = {seed for each in entries for seed in each.settings.get(verdicts.SEEN, ())}
    earlier |= {seed for each in entries if each not in again for seed in verdicts.seeds(each)}
    new = bool(earlier) and not own & earlier and all(verdicts.SEEN in each.settings for each in again)
    seen = {each.claim.statement for one in again for each in verdicts.judged(figure, [one]) if each.fitted}
    if own & earlier and not again:  # the run that would tell which claims were seen then has been replaced
        seen = {claim.statement for claim, _ in record.claims}
    marked = (
        (dataclasses.replace(claim, post_hoc=claim.statement in seen or (claim.post_hoc and not new)), verdict)
        for claim, verdict in record.claims
    )
    settings = record.settings | ({verdicts.SEEN: sorted(earlier)} if new else {})
    return dataclasses.replace(record, settings=settings, claims=tuple(marked))


def united(figure: FigureOfPaper, before: Record | None, record: Record) -> Record:
    """A run for some networks of a figure, together with the numbers that a committed run of the same effort has of others.

    Both must have been run in the same way: with the same device and precision, and with the same value of every setting that both
    record. There are two exceptions. Settings that list networks, or have an entry for each, are joined. A setting of one network
    (``"epochs: LeNet"``) may change if all numbers of this network are measured again. The date is that of the later run, the seconds
    are those of both. A run that has every number of the earlier one replaces it.

    Args:
        figure: The figure.
        before: The committed run; ``None`` if there is none.
        record: The run for some networks.

    Raises:
        ValueError: If the two were not run in the same way.
    """
    settings = {key: value for key, value in record.settings.items() if key != selection.KEY}
    if before is None or record.statistics.keys() >= before.statistics.keys():
        return dataclasses.replace(record, settings=settings)
    pairs = {"device": (before.device, record.device), "precision": (before.precision, record.precision)}
    joined = _joined(before, record)
    settings |= joined
    pairs |= {
        key: (before.settings[key], record.settings[key])
        for key in (settings.keys() & before.settings.keys()) - joined.keys()
        if not _measured_again(key.rpartition(": ")[2] if ": " in key else "", before, record)
    }
    for key, (one, two) in sorted(pairs.items()):
        if one != two:
            raise ValueError(
                f"A run for some networks must have the settings of the committed one, but {key} is {two!r} and not {one!r}. "
                "Run the figure as a whole."
            )
    numbers = {**before.statistics, **record.statistics}
    stored = {pair[0].statement: pair for pair in before.claims}
    claims = []
    for claim, _ in record.claims:
        needed = {claim.statistic, *(each.statistic for each in claim.trained)}
        fresh = claim.judge(numbers, record.effort).verdict
        known = stored.get(claim.statement)
        # A claim on earlier numbers alone stays as it was when they were measured.
        claims.append((claim, fresh) if known is None or needed & record.statistics.keys() else known)
    names = ", ".join(map(str, record.settings[selection.KEY]))
    note = f"The numbers of {names} were added on {record.date}; the others are of {before.date}."
    return dataclasses.replace(
        record,
        statistics=numbers,
        settings={**before.settings, **settings},
        notes=tuple(dict.fromkeys((*before.notes, *record.notes, note))),
        date=max(before.date, record.date),
        seconds=round(before.seconds + record.seconds, 1),
        claims=tuple(claims),
    )


def _joined(before: Record, record: Record) -> dict[str, Any]:
    """Settings that list networks, or have an entry for each, as they are of both runs together. An empty one says nothing."""
    networks = {selection.letters(str(name)) for name in record.settings[selection.KEY]}
    found: dict[str, Any] = {}
    for key in (record.settings.keys() & before.settings.keys()) - {selection.KEY}:
        known, value = before.settings[key], record.settings[key]
        if known in ([], {}) and type(value) is type(known):
            found[key] = value
        elif isinstance(value, list) and isinstance(known, list):
            if networks.issuperset(selection.letters(str(each)) for each in value):
                found[key] = list(dict.fromkeys((*known, *value)))
        elif isinstance(value, dict) and isinstance(known, dict):
            agree = all(known.get(each, entry) == entry for each, entry in value.items())
            if agree and networks.issuperset(selection.letters(str(each)) for each in value):
                found[key] = known | value
    return found


def _measured_again(title: str, before: Record, record: Record) -> bool:
    """Whether a run has every number that an earlier one has of a network."""
    own = [key for key in before.statistics if title and key.startswith(f"{snake(title)}_")]
    return bool(own) and record.statistics.keys() >= set(own)


def _caption(networks: Sequence[object], date: str, again: bool) -> str:
    """What stands between the picture of an earlier run and that of some networks."""
    names = ", ".join(str(name).replace("_", " ") for name in networks)
    return f"Run of {date[:10]} ({names})" + (", which replaces its curves above" if again else "")


def _below(path: Path, drawn: bytes, caption: str) -> bytes:
    """A picture below the one in a file, if there is one, and a line between them: arrays of earlier runs are not kept."""
    if not path.exists():
        return drawn
    from PIL import Image, ImageDraw, ImageFont

    with Image.open(path) as above, Image.open(io.BytesIO(drawn)) as below:
        parts = [above.convert("RGB"), below.convert("RGB")]
    width = max(part.width for part in parts)
    height = width // 20
    line = Image.new("RGB", (width, height), "white")
    ink = ImageDraw.Draw(line)
    ink.line((0, 1, width, 1), fill="grey")
    ink.text((height // 3, height // 2), caption, fill="black", font=ImageFont.load_default(height // 2), anchor="lm")
    parts.insert(1, line)
    whole = Image.new("RGB", (width, sum(part.height for part in parts)), "white")
    for number, part in enumerate(parts):
        whole.paste(part, (0, sum(each.height for each in parts[:number])))
    held = io.BytesIO()
    whole.save(held, "png", optimize=True)
    return held.getvalue()


def _arrays(document: Mapping[str, Any], beside: Mapping[str, bytes], name: str) -> dict[str, np.ndarray]:
    stored = store.arrays_name(document)
    return store.parsed_arrays(beside.get(stored, b""), str(Path(name).with_name(stored)))
