"""SHOW: `biascope patterns`: which patches the first convolution of a network detects, and with which labels they come."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli.measure import MODEL_HELP, SIZES_HELP, whole_numbers

if TYPE_CHECKING:
    from biascope.measures.channel_patterns.result import ChannelPatterns

PATCHES_HELP = (
    "The patterns: an .npy file of patches (patterns, channels, height, width), an .npz file with patches and perhaps names and "
    "statistics, or a data set (biascope data list, an .npz file, an image folder), whose patches are then clustered."
)


def patterns(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "lenet",
    patches: Annotated[str, typer.Option(help=PATCHES_HELP)] = "cifar10",
    data: Annotated[
        str, typer.Option(help="Labelled images for the statistics of given patches, and for the weights of channels.")
    ] = "",
    data_sizes: Annotated[str, typer.Option(help=SIZES_HELP)] = "2000",
    data_root: Annotated[Path | None, typer.Option(help="Folder of data sets; BIASCOPE_DATA by default.")] = None,
    positive: Annotated[str, typer.Option(help="Classes against the rest, such as 0,1,8,9.")] = "",
    clusters: Annotated[int, typer.Option(help="Patterns to find in a data set.")] = 32,
    within: Annotated[
        float,
        typer.Option(help="An image contains a given pattern that a patch is as near to, in norms of the pattern."),
    ] = 0.5,
    balanced: Annotated[
        bool, typer.Option(help="Both classes weigh half in the statistics; else every image alike.")
    ] = True,
    markers: Annotated[
        str, typer.Option(help="The two patterns that mark the positive and the negative label, for the ratios: A,B.")
    ] = "",
    weights: Annotated[Path | None, typer.Option(help="Trained weights, safetensors or torch.")] = None,
    control: Annotated[
        str,
        typer.Option(
            help="What trained weights are compared with: initialised networks, or their own filters shuffled."
        ),
    ] = "initialised",
    draws: Annotated[int, typer.Option(help="Networks to draw, of the model or of the control.")] = 20,
    inputs: Annotated[int, typer.Option(help="Images that the weights of channels are measured on.")] = 256,
    input: Annotated[str, typer.Option("--input", help="Shape of one input where there is no data set.")] = "",
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option(help="Of weights, clusters and the choice of samples.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32, float16 or bfloat16.")] = "float32",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report; biascope-runs/MODEL by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Which patterns the channels of a first convolution detect, how strongly, against their label statistics."""
    from biascope import scanning
    from biascope.cli.printing import print_results
    from biascope.families import source as model_source
    from biascope.results.registry import find
    from biascope.results.report import write_report
    from biascope.runs.run import Run
    from biascope.tasks.patch_files import patches_of, pixel_scale
    from biascope.tasks.samples import samples_of

    if control not in ("initialised", "shuffled"):
        raise ValueError(f"--control must be initialised or shuffled, got {control!r}. Pass --control initialised.")
    chosen = model_source.parse_settings(settings)
    folder = out or Path("biascope-runs") / scanning.folder_name(model, chosen, weights)
    run = Run(folder=folder, device=device, precision=precision, data_root=data_root)
    _ = run.torch_device  # a device that is not there is told before any work
    sizes = whole_numbers(data_sizes, "--data-sizes")
    how: dict[str, Any] = {"root": data_root, "seed": seed}
    samples = samples_of(data, sizes=sizes, **how) if data else None
    given = patches_of(patches, within=within, scale=pixel_scale(data, size=sizes[0], **how) if data else None)
    if samples is None and given is None:
        samples = samples_of(patches, sizes=sizes, **how)
    if samples is not None:
        shape = samples.shape
    else:
        assert given is not None
        shape = model_source.parse_shape(input) if input else (given.pixels.shape[1], 32, 32)
    family = model_source.family_of(model, shape=shape, settings=chosen, weights_file=weights)
    start = None
    if weights is not None and control == "initialised":
        start = model_source.family_of(model, shape=shape, settings=chosen)
    result = find("channel_patterns")(
        family,
        samples,
        given,
        start,
        clusters=clusters,
        positive=whole_numbers(positive, "--positive") if positive else None,
        balanced=balanced,
        markers=tuple(markers.split(",")) if markers else None,
        draws=draws,
        inputs=inputs,
        shape=shape,
        seed=seed,
        run=run,
    )
    result.save(folder / "channel_patterns")
    for name, rows in (("patterns", result.rows()), ("channels", result.channel_rows())):
        _write_table(rows, folder / f"{name}.csv")
    report = write_report([result], folder / "report.html")
    if as_json:
        typer.echo(json.dumps(as_document(result, report), indent=1))
        return
    print_results([result], None, False)
    if samples is not None and not result.labelled:
        typer.echo("  Pass the positive classes (--positive 0,1) to hold the patterns against labels.")
    typer.echo(f"\n{result.table()}\n\nReport: {report}")


def as_document(found: ChannelPatterns, report: Path) -> dict[str, Any]:
    """What was found as plain JSON; a number that does not exist, or is infinite, is null."""
    return {
        "sentence": found.sentence(),
        "headline": {name: _finite(each.as_dict()) for name, each in found.headline().items()},
        "patterns": [_finite(row) for row in found.rows()],
        "channels": [[_finite(row) for row in found.channel_rows(draw)] for draw in range(len(found.weights))],
        "provenance": found.provenance,
        "report": str(report),
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(each, float) and not math.isfinite(each) else each for key, each in row.items()}


def _write_table(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
