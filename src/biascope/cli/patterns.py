"""SHOW: `biascope patterns`: which patches the first convolution of a network detects, and their labels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import (
    DataOptions,
    Draws,
    Inputs,
    Model,
    NetworkOptions,
    Positive,
    SeededWork,
    positive_classes,
    with_groups,
)
from biascope.cli.printing import print_results, report_line, write_table

PATCHES_HELP = (
    "The patterns: an .npy file of patches (patterns, channels, height, width), an .npz file with patches and optional names and "
    "statistics, or a data set (biascope data list, an .npz file, an image folder), whose patches are then clustered."
)
CONTROL_HELP = (
    "Baseline for trained weights: initialised (initialised networks) or shuffled (their own filters, shuffled)."
)
_NO_DATA = DataOptions(data="", samples="2000")


@with_groups
@rehearsed()
def patterns(
    model: Model = "lenet",
    *,
    network: NetworkOptions,
    patches: Annotated[str, typer.Option(help=PATCHES_HELP)] = "cifar10",
    samples: DataOptions = _NO_DATA,
    positive: Positive = "",
    clusters: Annotated[int, typer.Option(help="Number of patterns to find in a data set.")] = 32,
    within: Annotated[
        float,
        typer.Option(
            help="Largest distance of a patch at which an image contains a given pattern, in norms of the pattern."
        ),
    ] = 0.5,
    balanced: Annotated[
        bool, typer.Option(help="Weight the two classes equally in the statistics, instead of the images.")
    ] = True,
    markers: Annotated[
        str, typer.Option(help="Two patterns that mark the positive and the negative label, for the ratios: A,B.")
    ] = "",
    control: Annotated[str, typer.Option(help=CONTROL_HELP)] = "initialised",
    draws: Draws = 20,
    inputs: Inputs = 256,
    work: SeededWork,
) -> None:
    """Measure which patterns the first convolution detects, and compare this with their label statistics.

    The labelled images of --data give the statistics of given patches and the weights of channels. If --patches is a data set, its
    own images are used.
    """
    from biascope.results.registry import find
    from biascope.results.report import write_folder_report
    from biascope.runs.files import folder_name
    from biascope.tasks.patch_files import patches_of, pixel_scale
    from biascope.tasks.samples import samples_of

    if control not in ("initialised", "shuffled"):
        raise ValueError(f"--control must be initialised or shuffled, got {control!r}. Pass --control initialised.")
    folder = work.out or Path("biascope-runs") / folder_name(model, network.chosen, network.weights)
    run = work.run(folder, data_root=samples.data_root)
    data, sizes = samples.data, samples.sizes
    how: dict[str, Any] = {
        "root": samples.data_root,
        "seed": work.seed,
        "standardise": samples.scale(model, network.chosen),
    }
    images = samples.arrays(work.seed, model, network.chosen) if data else None
    given = patches_of(patches, within=within, scale=pixel_scale(data, size=sizes[0], **how) if data else None)
    if images is None and given is None:
        images = samples_of(patches, sizes=sizes, **how)
    if images is not None:
        shape = network.shape_on(images)
    else:
        assert given is not None
        shape = network.shape or (given.pixels.shape[1], 32, 32)
    family = network.family(model, shape)
    start = None
    if network.weights is not None and control == "initialised":
        start = dataclasses.replace(network, weights=None).family(model, shape)
    result = find("channel_patterns")(
        family,
        images,
        given,
        start,
        clusters=clusters,
        positive=positive_classes(positive),
        balanced=balanced,
        markers=tuple(markers.split(",")) if markers else None,
        draws=draws,
        inputs=inputs,
        shape=shape,
        seed=work.seed,
        run=run,
    )
    place = result.save(folder / "channel_patterns")
    keep_settings(folder)
    files = [write_table(rows, folder / f"{name}.csv") for name, rows in result.tables().items()]
    page = write_folder_report(folder, at_hand={place: result})
    if work.as_json:
        print_results([result], page, True, files=files)
        return
    print_results([result], None, False)
    if images is not None and not result.labelled:
        typer.echo("  Pass the positive classes (--positive 0,1) to compare the patterns with labels.")
    typer.echo(f"\n{result.table()}\n\n{report_line(page)}")
