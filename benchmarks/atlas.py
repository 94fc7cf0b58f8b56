"""The atlas: the cards of about a hundred untrained networks, the population in which a scan places a network.

    python benchmarks/atlas.py --folder FOLDER [--part 0/2] [--only timm:resnet18]    # a file for each network; resumes
    python benchmarks/atlas.py --folder FOLDER --write                                # src/biascope/results/atlas.csv

Networks are those of ``atlas_networks.py``, at the initial weights of their library, on one shape for each kind of input: images
3×32×32, sequences of 24 steps of 3 features, tables of 14 features, and 16 embeddings of tokens. Those with a head have ten outputs.
Quantities are those of a scan's card, with its settings and fewer draws: about a third of its operations. A dear network has fewer
draws still. A quantity that cannot be measured, or that takes too long, is empty.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.metadata
import json
import math
import re
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from atlas_networks import AXES, CLASSES, SHAPES, Entry, networks

import biascope
from biascope.derivatives.draw_times import pass_of
from biascope.derivatives.one_pass import OnePass
from biascope.families.family import Family
from biascope.families.source import family_of, usual_shape
from biascope.measures.complexity import complexity
from biascope.measures.covariance.shares import ImageShares, WaveShares
from biascope.measures.equivariance import equivariance
from biascope.measures.equivariance import suits as shifts
from biascope.measures.guessing import classes_of, guessing
from biascope.measures.mean_gradient import MeanGradient, mean_gradient
from biascope.measures.memory import memory
from biascope.measures.memory import suits as remembers
from biascope.measures.scan import families_of
from biascope.measures.sensitivity import sensitivity
from biascope.results import atlas
from biascope.results.axes import InputAxes, named_axes
from biascope.results.estimate import Estimate
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

_SECONDS = 75  # of a core, after which a network is left as it is
_OPERATIONS = (6e10, 2.4e11)  # of the mean gradient: the second where the first leaves it open
_OF_A_ROW, _DRAWS = 3e10, 24  # of each other quantity, and its most draws
_WEIGHT = 300.0  # operations in whose time a weight is drawn
_DRAWN = (
    (400, 64),
    (200, 64),
    (100, 64),
    (64, 64),
    (64, 32),
    (64, 16),
    (64, 8),
    (32, 16),
    (32, 8),
    (32, 4),
    (16, 4),
    (16, 2),
)
_WIDE_SHARE, _WIDE_RATIO = 0.3, 4.0  # of the ends of an interval: a number that is less clear is left out
_OF_GRADIENTS = ("rank_share", "low_frequencies", "few_frequencies")
_FREQUENCIES = 0.05  # of all single frequencies: those on which most energy lies


class TookTooLongError(Exception):
    """A network has taken its time."""


def card(entry: Entry, run: Run) -> dict[str, Any]:
    """A network's row: what is known of it, and each quantity as value, ends and draws."""
    family, shape = _family(entry)
    one = pass_of(family, shape, run)
    row: dict[str, Any] = {
        "name": entry.title,
        "library": entry.library,
        "kind": entry.kind,
        "group": entry.group,
        "input": "×".join(map(str, shape)),
        "parameters": family.num_parameters,
        "quantities": {},
        "failed": {},
    }
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        for name, measure in _measures(family, shape, one, run):
            begin = time.process_time()
            try:
                row["quantities"] |= {key: _numbers(*found) for key, found in measure().items()}
            except ValueError as error:
                row["failed"][name] = str(error)
            row.setdefault("seconds", {})[name] = round(time.process_time() - begin, 1)
    except TookTooLongError:
        row["failed"]["time"] = f"more than {_SECONDS} s"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return row


def _stop(*_: object) -> None:
    raise TookTooLongError


def _family(entry: Entry) -> tuple[Family, tuple[int, ...]]:
    shape = SHAPES[entry.kind]
    if entry.build is not None:
        assert shape is not None
        name = entry.name.partition(":")[2]
        family = families_of(
            Family.initialised(entry.build, name), shape, None, None, None, "eval", named_axes(AXES[entry.kind])
        )[0]
        return family, shape
    settings = dict(entry.settings)
    shape = shape or usual_shape(entry.name, settings)
    return family_of(entry.name, shape=shape, settings=settings), shape


def _numbers(estimate: Estimate, draws: int) -> dict[str, Any]:
    ends = {key: getattr(estimate, key) for key in ("value", "low", "high")}
    return {key: float(f"{value:.4g}") if math.isfinite(value) else None for key, value in ends.items()} | {
        "draws": draws
    }


def _measures(family: Family, shape: tuple[int, ...], one: OnePass | None, run: Run) -> Iterator[tuple[str, Any]]:
    axes = InputAxes.of(family.axes_at(Probe.gaussian(shape).few()), shape)
    work = 0.0 if one is None else one.work
    common: dict[str, Any] = {"seed": 0, "run": run}

    def fresh(num: int) -> Probe:
        return Probe.gaussian(shape, num=num, fresh=True, seed=0)

    def draws_of(passes: int) -> int:
        each = passes * work + _WEIGHT * family.num_parameters
        count = min(_DRAWS, int(_OF_A_ROW / each))
        if count < 8 and 8 * each > 10 * _OF_A_ROW:
            raise ValueError("8 draws take too long")
        return max(8, count)

    def gradient() -> dict[str, tuple[Estimate, int]]:
        return _gradient(family, shape, one, run)

    def wave() -> dict[str, tuple[Estimate, int]]:
        draws = draws_of(64 + 8)
        return {"complexity": (complexity(family, fresh(2), draws=draws, scales=(1.0,), **common).complexity, draws)}

    def dimension(places: int, inputs: int, replaced: int) -> dict[str, tuple[Estimate, int]]:
        draws = draws_of(inputs + replaced * min(places, 64))
        found = sensitivity(family, fresh(inputs), draws=draws, places=places, replaced=replaced, **common)
        return {f"mean_dimension_of_{found.free}": (found.mean_dimension, draws)}

    def shifted() -> dict[str, tuple[Estimate, int]]:
        draws = draws_of(8 * 4)
        found = equivariance(family, Probe.smooth(shape, along=axes.shifted, num=4, seed=0), draws=draws, **common)
        key = "shift_error" if found.invariance else "equivariance_error"
        return {key: (found.error(found.kinds[0].names), draws)}

    def guessed() -> dict[str, tuple[Estimate, int]]:
        draws = draws_of(50)
        found = guessing(family, fresh(50), draws=draws, **common)
        return {
            "favourite_share": (found.favourite_share, draws),
            "favourite_by_chance": (found.share_without_bias, draws),
        }

    def remembered() -> dict[str, tuple[Estimate, int]]:
        draws = draws_of(8 * 3)
        found = memory(family, fresh(8), draws=draws, **common)
        numbers = {"mean_lag": (found.mean_lag, draws)}
        if found.by_frequency is not None:
            numbers["mean_frequency"] = (found.mean_frequency, draws)
        return numbers

    yield "mean_gradient", gradient
    yield "complexity", wave
    if axes.image:
        yield "sensitivity_coarse", lambda: dimension(16, 16, 4)
        yield "sensitivity", lambda: dimension(64, 64, 4)
    else:
        yield "sensitivity", lambda: dimension(64, 64, 8)
    if shifts(axes):
        yield "equivariance", shifted
    outputs = tuple(family.first_outputs(Probe.gaussian(shape).few()).shape[1:])
    if (classes := classes_of(outputs, axes)) is not None and classes.count == CLASSES:
        yield "guessing", guessed
    if remembers(axes) and axes.time is not None:  # tokens are read at other places than the last
        yield "memory", remembered


def _gradient(family: Family, shape: tuple[int, ...], one: OnePass | None, run: Run) -> dict[str, tuple[Estimate, int]]:
    """Quantities of the mean gradient, with their draws; more draws where few leave them open."""

    def operations(draws: int, inputs: int) -> float:
        return draws * (2 * inputs * (0.0 if one is None else one.work) + _WEIGHT * family.num_parameters)

    found: dict[str, tuple[Estimate, int]] = {}
    for budget in _OPERATIONS:
        fitting = [each for each in _DRAWN if operations(*each) <= budget]
        if not fitting:
            continue
        draws, inputs = fitting[0]
        probe = Probe.gaussian(shape, num=inputs, fresh=True, seed=0)
        result = mean_gradient(family, probe, draws=draws, seed=0, run=run)
        found = {key: (number, draws) for key, number in _of_gradient(result).items()}
        if _clear("rank_share", _numbers(*found["rank_share"])):
            break
    if not found:
        raise ValueError("16 draws take too long")
    return found


def _of_gradient(found: MeanGradient) -> dict[str, Estimate]:
    numbers = {"rank_share": found.effective_rank.map_linear(1 / found.size)}
    for shares in found.shares():
        if isinstance(shares, WaveShares) and (first := shares.of_first_half()) is not None:
            chosen = np.argsort(-first)[: round(_FREQUENCIES * len(first))].tolist()
            numbers["few_frequencies"] = shares.share(chosen, slice(1, None, 2))
        elif isinstance(shares, ImageShares) and shares.name == "spatial frequency":
            numbers["low_frequencies"] = shares.share([0, 1])  # octaves below a quarter of the highest frequency
    return numbers


def write(found: list[dict[str, Any]]) -> None:
    """Write the rows of the package: networks of which something is known, by kind, group and name."""
    order = list(SHAPES)
    known = {row["name"]: (row, numbers) for row in found if (numbers := _known(row.get("quantities", {})))}
    with atlas.FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, atlas.columns(), restval="", lineterminator="\n")
        writer.writeheader()
        for row, numbers in sorted(
            known.values(), key=lambda pair: (order.index(pair[0]["kind"]), pair[0]["group"], pair[0]["name"])
        ):
            cells = {name: row[name] for name in atlas.COLUMNS} | {"name": row["name"].removeprefix("atlas:")}
            for key, number in numbers.items():
                cells |= {f"{key}_{part}".removesuffix("_value"): value for part, value in number.items()}
            cells["versions"] = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
            writer.writerow({**cells, "date": row["date"]})
    for row in found:
        if row["name"] not in known:
            print(f"left out: {row['name']}: {str(row['failed'])[:200]}")


def _known(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The quantities that are clear; what a favourite class gets by chance stands beside what it gets."""
    found = {key: number for key, number in numbers.items() if key in atlas.QUANTITIES and _clear(key, number)}
    if "rank_share" not in found:  # then shares of the same gradients are noise as well
        found = {key: number for key, number in found.items() if key not in _OF_GRADIENTS}
    return found if set(found) - {"favourite_by_chance"} else {}


def _clear(key: str, number: Mapping[str, Any] | None) -> bool:
    """Whether a number is known well enough to be one of a population."""
    if number is None or None in number.values():
        return False
    if atlas.QUANTITIES[key].share and key != "rank_share":
        return bool(number["high"] - number["low"] <= _WIDE_SHARE)
    return bool(number["high"] <= _WIDE_RATIO * number["low"])


def again(entry: Entry, path: Path) -> None:
    """Measure the mean gradient of a network anew where it was left open."""
    row = json.loads(path.read_text(encoding="utf-8"))
    if not row.get("quantities") or _clear("rank_share", row["quantities"].get("rank_share")):
        return
    family, shape = _family(entry)
    run = Run(device="cpu", progress=False)
    try:
        found = _gradient(family, shape, pass_of(family, shape, run), run)
    except ValueError as error:
        row["failed"]["mean_gradient"] = str(error)
    else:
        row["quantities"] |= {key: _numbers(*each) for key, each in found.items()}
    path.write_text(json.dumps(row, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{entry.title}: again, {row['quantities'].get('rank_share')}", flush=True)


def _file(folder: Path, entry: Entry) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9=.]+', '_', f'{entry.kind} {entry.title}')}.json"


def main() -> None:
    """Measure, or write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="Folder with a file for each network.")
    parser.add_argument("--part", default="0/1", help="Which part of the networks to measure, as in 0/2.")
    parser.add_argument("--only", help="Measure networks with this in their name.")
    parser.add_argument(
        "--again", action="store_true", help="Measure only mean gradients that were left open, with more draws."
    )
    parser.add_argument("--write", action="store_true", help="Write the rows of the package from the folder.")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.write:
        write([json.loads(path.read_text(encoding="utf-8")) for path in sorted(options.folder.glob("*.json"))])
        return
    place, parts = map(int, options.part.split("/"))
    for entry in [each for each in networks() if options.only is None or options.only in each.title][place::parts]:
        path = _file(options.folder, entry)
        begin = time.perf_counter()
        if path.exists() or options.again:
            if options.again and path.exists():
                again(entry, path)
            continue
        try:
            row = card(entry, Run(device="cpu", progress=False))
        except Exception as error:
            row = {"name": entry.title, "kind": entry.kind, "failed": {"building": f"{type(error).__name__}: {error}"}}
        row |= {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "versions": _versions(entry)}
        path.write_text(json.dumps(row, indent=1, ensure_ascii=False))
        print(f"{entry.title}: {time.perf_counter() - begin:.0f} s, {row.get('seconds')}, {row['failed']}", flush=True)


def _versions(entry: Entry) -> dict[str, str]:
    found = {"biascope": biascope.__version__}
    for name in {"torch", entry.library} - {"biascope", "atlas"}:
        found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    main()
