"""SHOW: `biascope explain`: which component of a network causes which preference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli._settings_file import keep_settings
from biascope.cli.measure import measured_family
from biascope.cli.options import Draws, Inputs, Model, NetworkOptions, Readout, SeededWork, with_groups
from biascope.cli.printing import print_results


@with_groups
@rehearsed()
def explain(
    model: Model = "lenet",
    *,
    network: NetworkOptions,
    draws: Draws = 64,
    inputs: Inputs = 16,
    parts: Annotated[
        int, typer.Option(help="Replace components of one kind in at most so many groups of neighbours.")
    ] = 4,
    readout: Readout = "first",
    work: SeededWork,
) -> None:
    """Find which component of an untrained network causes which preference, and which edit to try.

    Each component, such as a pooling or a skip connection, is replaced by another one of the same shape. The rows of the bias card are
    measured before and after, with the same draws of the weights.
    """
    from biascope.families.source import usual_shape
    from biascope.results.registry import find
    from biascope.results.report import write_folder_report
    from biascope.runs.files import folder_name
    from biascope.tasks.probe import Probe

    if inputs < 4 or inputs % 2:
        raise ValueError(f"--inputs must be an even number of at least 4, got {inputs}. Pass --inputs 16.")
    if network.weights is not None:
        raise ValueError(
            f"explain measures networks at initialisation, got --weights {network.weights}. Weights that were trained with a component "
            "do not tell what it causes. Leave --weights out."
        )
    measurement = find("explain")
    family = measured_family(measurement, model, network, network.shape)
    shape = network.shape or usual_shape(model, network.chosen)
    folder = work.out or Path("biascope-runs") / folder_name(model, network.chosen, None)
    probe = Probe.gaussian(shape, num=inputs, fresh=True, seed=work.seed)
    result = measurement(family, probe, draws=draws, parts=parts, readout=readout, seed=work.seed, run=work.run(folder))
    kept = result.save(folder / measurement.name)
    keep_settings(folder)
    print_results([result], write_folder_report(folder, at_hand={kept: result}), work.as_json)
