"""SHOW: `biascope match`: architectures ranked for a data set before any training."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli.measure import DATA_HELP, SIZES_HELP, whole_numbers

if TYPE_CHECKING:
    from biascope.families.family import Family
    from biascope.measures.match.result import Match
    from biascope.tasks.task import Arrays

MODELS_HELP = (
    "Networks: names (biascope list), path/to/file.py:build or package.module:build; one with settings of its own in quotes, "
    "'lenet pooling=average'. Without any, the networks of the papers that are quick to draw."
)
USUAL = ("logistic_regression", "mlp", "lenet", "lenet pooling=average", "vgg11", "resnet18", "vit")


def match(
    models: Annotated[list[str] | None, typer.Argument(help=MODELS_HELP)] = None,
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "cifar10",
    data_sizes: Annotated[str, typer.Option(help=SIZES_HELP)] = "5000",
    data_root: Annotated[Path | None, typer.Option(help="Folder of data sets; BIASCOPE_DATA by default.")] = None,
    labels: Annotated[bool, typer.Option(help="Rank by where the classes differ, not by where the data vary.")] = True,
    draws: Annotated[int, typer.Option(help="Networks to draw of each architecture.")] = 256,
    inputs: Annotated[int, typer.Option(help="Fresh inputs for each.")] = 4,
    scale: Annotated[float, typer.Option("--probe-scale", help="Standard deviation of these Gaussian inputs.")] = 1e-3,
    readout: Annotated[
        str, typer.Option(help="Scalar of several outputs: first, sum, mean, margin or random.")
    ] = "mean",
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of every network, key=value; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option(help="Of weights, inputs and the choice of samples.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32, float16 or bfloat16.")] = "float32",
    out: Annotated[
        Path | None, typer.Option(help="Folder for table and report; biascope-runs/match-DATA by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Rank architectures for a data set before any training, beside their parameters and FLOPs."""
    from biascope.measures.match import match as ranked
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable
    from biascope.runs.run import Run
    from biascope.scanning import distinct_names, path_words
    from biascope.tasks.samples import samples_of

    folder = out or Path("biascope-runs") / f"match-{path_words(data, '.npz')}"
    run = Run(folder=folder, device=device, precision=precision, data_root=data_root)
    _ = run.torch_device  # a device that is not there is told before any work
    sizes = whole_numbers(data_sizes, "--data-sizes")
    samples = samples_of(data, sizes=sizes, root=data_root, labelled=labels, seed=seed)
    families = [family_of_words(words, samples, settings, labels) for words in models or USUAL]
    names = distinct_names([family.name for family in families], list(models or USUAL))
    families = [dataclasses.replace(family, name=name) for family, name in zip(families, names, strict=True)]
    make_writable(folder)
    how: dict[str, Any] = {"draws": draws, "inputs": inputs, "scale": scale, "readout": readout, "seed": seed}
    found = ranked(families, samples, labels=labels, run=run, **how)
    found.save(folder / "match")
    _write_table(found, folder / "match.csv")
    report = write_report([found], folder / "report.html", title=f"Which architecture fits {samples.name}")
    if as_json:
        typer.echo(json.dumps(as_document(found, report), indent=1))
        return
    warned = "".join(f"\nWarning: {warning}" for warning in found.warnings)
    typer.echo(f"\n{found.sentence()}\n\n{found.table()}{warned}\n\nReport: {report}")


def family_of_words(words: str, samples: Arrays, shared: list[str], labels: bool) -> Family:
    """The family of a network and its settings, ``"lenet pooling=average"``, made for the samples.

    Our networks get as many outputs as there are classes, unless a setting says otherwise.
    """
    from biascope.families import source as model_source

    source, *own = re.split(r"\s+(?=\w+=)", words.strip())
    settings, chosen = model_source.parse_settings([*shared, *own]), model_source.parse_settings(own)
    usual = {}
    if ":" not in source and labels:
        usual = {"outputs": int(samples.splits["train"][1].max()) + 1}
    family = model_source.family_of(source, shape=samples.shape, settings={**usual, **settings})
    return dataclasses.replace(family, name=model_source.label_of(family.name.split(" ")[0], chosen))


def as_document(found: Match, report: Path) -> dict[str, Any]:
    """The ranking as plain JSON."""
    return {
        "sentence": found.sentence(),
        "ranked by": found.ranked_by,
        "architectures": found.rows(),
        "ahead": found.ahead.tolist(),
        "warnings": found.warnings,
        "provenance": found.provenance,
        "report": str(report),
    }


def _write_table(found: Match, path: Path) -> None:
    """An architecture a row, an overlap with its interval in three columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        plain = ["place", "architecture", "parameters", "flops", "effective rank", "chance that the next is better"]
        parts = {"value": "", "low": ", low", "high": ", high"}
        writer.writerow([*plain, *(kind + suffix for kind in found.kinds for suffix in parts.values())])
        for row in found.rows():
            writer.writerow(
                [*(row[key] for key in plain), *(row[kind][part] for kind in found.kinds for part in parts)]
            )
