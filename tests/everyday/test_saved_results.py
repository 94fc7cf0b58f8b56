"""Saved results that are damaged or not ours: `report` opens them, or says in one sentence which file is wrong."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import Asking

from biascope.results import store
from biascope.results.registry import find
from biascope.results.result import Result
from biascope.runs import files

WRONG: list[Any] = [None, True, -1, 1e400, "text", [], {}, [[[]]], {"estimate": {"value": "x"}}, {"number": []}]


@pytest.fixture(scope="module")
def result() -> Result:
    measurement = find("average_geometry")
    args, settings = measurement.example()
    return measurement(*args, **settings)


def damaged_documents(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The document with one thing wrong, and its digest right: the digest is not what saves the reader."""
    for key in document:
        yield f"without {key}", {name: value for name, value in document.items() if name != key}
        for wrong in WRONG:
            yield f"{key} = {wrong!r}", {**document, key: wrong}
    for key in document["values"]:
        for wrong in [*WRONG[::3], "gone"]:
            changed = copy.deepcopy(document)
            if wrong == "gone":
                del changed["values"][key]
            else:
                changed["values"][key] = wrong
            yield f"values.{key} = {wrong!r}", changed
    yield "another class", {**document, "class": "biascope.measures.merge_check.result:MergeCheck"}
    yield "a class that is none", {**document, "class": "os:system"}
    yield "a class of nowhere", {**document, "class": "biascope.nosuch:X"}
    yield "another measurement", {**document, "measurement": "nosuch"}
    yield "arrays elsewhere", {**document, "arrays": "../../../etc/passwd"}


def sealed(document: Any) -> bytes:
    if isinstance(document, dict):
        content = {key: value for key, value in document.items() if key not in ("format", "digest")}
        document = {**document, "digest": store._digest(json.dumps(content, sort_keys=True).encode())}
    return json.dumps(document).encode()


def told_or_opened(ask: Asking, what: str) -> None:
    """Exit status 0 with a report, or one sentence; never a traceback."""
    answer = ask("report", "run")
    assert answer.status in (0, 2), f"{what}: {answer}"
    lines = [line for line in answer.err.splitlines() if line.strip()]
    assert (answer.status == 0) == ("Report:" in answer.out), f"{what}: {answer}"
    if answer.status == 2:
        assert len(lines) == 1, f"{what}: {answer.err}"
        assert lines[0].startswith("biascope: "), f"{what}: {answer.err}"


def test_a_document_with_anything_wrong_is_told(ask: Asking, result: Result) -> None:
    folder = result.save(ask.folder / "run" / "average_geometry")
    path = folder / "result.json"
    document = json.loads(path.read_bytes())
    count = 0
    for what, changed in damaged_documents(document):
        path.write_bytes(sealed(changed))
        told_or_opened(ask, what)
        count += 1
    assert count > 100


def test_a_document_with_any_byte_wrong_is_told(ask: Asking, result: Result) -> None:
    folder = result.save(ask.folder / "run" / "average_geometry")
    places = random.Random(0)
    for path in (folder / "result.json", next(folder.glob("arrays*"))):
        whole = path.read_bytes()
        for _ in range(20):
            place = places.randrange(len(whole))
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << places.randrange(8)]) + whole[place + 1 :])
            told_or_opened(ask, f"byte {place} of {path.name}")
        for cut in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            told_or_opened(ask, f"{path.name} cut at {cut}")
        path.write_bytes(whole)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"null", b"3", b'"x"', b"\xff\xfe", b"{", b"NaN"])
def test_a_document_that_is_none_is_told(ask: Asking, content: bytes) -> None:
    (ask.folder / "run").mkdir()
    (ask.folder / "run" / "result.json").write_bytes(content)
    ask.refused("report", "run", naming="result.json")


def test_missing_arrays_are_told(ask: Asking, result: Result) -> None:
    folder = result.save(ask.folder / "run" / "average_geometry")
    next(folder.glob("arrays*")).unlink()
    ask.refused("report", "run", naming="missing or damaged")


def test_a_full_disk_names_the_file(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    answer = ask("scan", "odd.py:flat", "--input", "1x4x4", "--draws", "4", "--device", "cpu", "--out", "run")
    assert answer.status == 2
    assert "No space left on device" in answer.err
    assert "run/" in answer.err


def test_what_a_killed_process_left_is_cleared_away(ask: Asking) -> None:
    (ask.folder / "run").mkdir()
    dead = ask.folder / "run" / f".report.html.biascope-999999999-{files._machine}-0badcafe.partial"
    dead.write_text("half")
    ask.answered("scan", "odd.py:flat", "--input", "1x4x4", "--draws", "4", "--device", "cpu", "--out", "run")
    assert not dead.exists()
