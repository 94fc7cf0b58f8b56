"""SHOW: how results came about, and what to type to repeat them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

from biascope.results.numbers import said
from biascope.results.registry import find, names
from biascope.results.result import Result

Facts = list[tuple[str, str]]  # names and values


def common_and_own(results: Sequence[Result]) -> tuple[Facts, list[Facts]]:
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
    "family.axes": "axes of an input",
    "family.held": "inputs that are held",
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
    "data.preparation": "preparation of the samples",
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
            shown = [axis["name"] or "not named" for axis in item] if path == "family.axes" else item
            flat[_WORDS.get(path, words)] = said(shown)
    return flat


def repeats(results: Sequence[Result]) -> Facts:
    """What to type to repeat the results: the commands that made them, else the calls in Python."""
    commands = list(dict.fromkeys(str(result.provenance.get("command", "")) for result in results))
    if all(commands):
        return [("Command line", "\n".join(commands))]
    calls = list(dict.fromkeys(filter(None, map(_call, results))))
    return [("In Python", "\n".join(calls))] if calls else []


def _call(result: Result) -> str:
    """The Python call that repeats a result, given its network and inputs."""
    if result.measurement not in names():
        return ""
    measurement = find(result.measurement)
    settings = result.provenance.get("settings", {})
    shown = {
        key: json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
        for key, value in settings.items()
    }
    # What comes by position is a network or data; what is recorded of it is a name or a hash.
    parameters = inspect.signature(measurement.function).parameters
    given = [key for key, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]
    given += [f"{key}={value}" for key, value in shown.items() if key in measurement.settings]
    return f"biascope.measure({', '.join([json.dumps(result.measurement), *given])})"
