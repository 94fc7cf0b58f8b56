"""SHOW: `biascope match`: architectures ranked for a data set before any training."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli._dry_run import check_place, print_expectation
from biascope.cli.options import DataOptions, Draws, Inputs, Readout, Scale, SeededWork, Settings, with_groups
from biascope.cli.printing import print_results, write_table

if TYPE_CHECKING:
    from biascope.families.family import Family
    from biascope.tasks.task import Arrays

MODELS_HELP = (
    "Networks: names (biascope list), path/to/file.py:build or package.module:build; one with settings of its own in quotes, "
    "'lenet pooling=average'. Without any, the networks of the papers that are quick to draw."
)
USUAL = ("logistic_regression", "mlp", "lenet", "lenet pooling=average", "vgg11", "resnet18", "vit")
_SAMPLES = DataOptions(samples="5000")


@with_groups
def match(
    models: Annotated[list[str] | None, typer.Argument(help=MODELS_HELP)] = None,
    *,
    settings: Settings = [],  # noqa: B006 - typer copies it
    samples: DataOptions = _SAMPLES,
    labels: Annotated[bool, typer.Option(help="Rank by where the classes differ, not by where the data vary.")] = True,
    draws: Draws = 256,
    inputs: Inputs = 4,
    scale: Scale = 1e-3,
    readout: Readout = "mean",
    work: SeededWork,
) -> None:
    """Rank architectures for a data set before any training, beside their parameters and FLOPs."""
    from biascope.measures.match import expected_time
    from biascope.measures.match import match as ranked
    from biascope.results.report import write_folder_report
    from biascope.runs.files import make_writable
    from biascope.scanning import distinct_names, path_words

    folder = work.out or Path("biascope-runs") / f"match-{path_words(samples.data, '.npz')}"
    run = work.run(folder, data_root=samples.data_root)
    found = samples.arrays(work.seed, labelled=labels)
    families = [family_of_words(words, found, settings, labels) for words in models or USUAL]
    names = distinct_names([family.name for family in families], [*(models or USUAL)])
    families = [dataclasses.replace(family, name=name) for family, name in zip(families, names, strict=True)]
    how: dict[str, Any] = {"labels": labels, "draws": draws, "inputs": inputs, "scale": scale, "readout": readout}
    how |= {"seed": work.seed, "run": run}
    if work.dry_run:
        check_place(work)
        print_expectation(expected_time(families, found, **how), work)
        return
    make_writable(folder)
    result = ranked(families, found, **how)
    result.save(folder / "match")
    file = write_table(result.tables()["architectures"], folder / "match.csv")
    page = write_folder_report(folder, title=f"Which architecture fits {found.name}")
    if work.as_json:
        print_results([result], page, True, files=[file])
        return
    warned = "".join(f"\nWarning: {warning}" for warning in result.warnings)
    typer.echo(f"\n{result.sentence()}\n\n{result.table()}{warned}\n\nReport: {page}")


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
