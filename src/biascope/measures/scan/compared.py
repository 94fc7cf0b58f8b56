"""Subjects of a comparison: run folders, whose results are read, and networks, which are scanned."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from biascope.derivatives.draw_times import pass_of
from biascope.derivatives.sampling import Sampling
from biascope.families.family import Family
from biascope.families.held import Holding
from biascope.families.source import family_of, usual_shape
from biascope.measures.scan import saved_scan
from biascope.results.axes import Axis
from biascope.results.registry import saved_results
from biascope.results.result import Result
from biascope.runs.files import distinct_names, folder_name, make_writable
from biascope.runs.run import Run


def results_of(
    subjects: Sequence[str],
    folder: Path,
    *,
    input: tuple[int, ...] | None,
    axes: tuple[Axis, ...] = (),
    holding: Holding | None = None,
    sampling: Sampling,
    batchnorm: str,
    run: Run,
) -> list[Result]:
    """Results of run folders and networks, in any combination, under distinct names.

    Args:
        subjects: Run folders, whose results are read; networks, which are scanned at the same inputs, each with a seed of its own.
        folder: Where scans are kept, each in a folder of its own.
        input: Shape of one input.
        axes: What its axes are, where the user says so.
        holding: Which of several inputs are held.
        sampling: What a scan draws.
        batchnorm: The mode of BatchNorm.
        run: Device and precision.
    """
    found: dict[str, list[Result] | Family] = {
        subject: saved_results(Path(subject))
        if Path(subject).is_dir()
        else family_of(subject, shape=input, batchnorm=batchnorm, asked_axes=axes, holding=holding)
        for subject in subjects
    }
    # One subject may have results of several checkpoints: a name belongs to a subject.
    named = [
        (subject, name)
        for subject, each in found.items()
        for name in ([each.name] if isinstance(each, Family) else dict.fromkeys(result.subject for result in each))
    ]
    names = dict(zip(named, distinct_names([name for _, name in named], [source for source, _ in named]), strict=True))
    results: list[Result] = []
    read = [result for each in found.values() if not isinstance(each, Family) for result in each]
    drawn = [result for result in read if result.story().compared is not None]
    taken = {result.provenance.get("settings", {}).get("seed") for result in drawn}
    seeds = (seed for seed in itertools.count(sampling.seed) if seed not in taken)
    shapes = {subject: input or usual_shape(subject) for subject, each in found.items() if isinstance(each, Family)}
    passes = [pass_of(each, shapes[subject], run) for subject, each in found.items() if isinstance(each, Family)]
    most = max((one.work for one in passes if one is not None), default=0.0)
    for subject, each in found.items():
        if isinstance(each, Family):
            family = dataclasses.replace(each, name=names[subject, each.name])
            own = dataclasses.replace(run, folder=folder / folder_name(subject, {}, None))
            make_writable(folder)
            # Draws of one seed would have noise in common, which looks like common directions.
            apart = dataclasses.replace(sampling, seed=next(seeds), fixed_seed=sampling.seed, least_work=most)
            results += saved_scan(family, shapes[subject], apart, None, own, own.folder)
        else:
            results += [_renamed(result, names[subject, result.subject]) for result in each]
    return results


def _renamed(result: Result, name: str) -> Result:
    if name == result.subject:
        return result
    family = {**result.provenance.get("family", {}), "name": name}
    return dataclasses.replace(result, provenance={**result.provenance, "family": family})
