"""SHOW: `biascope match`: which networks hardly change where the data vary; with `--race`, which of them learn best."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli import _completion
from biascope.cli._dry_run import check_place, print_expectation
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import (
    DataOptions,
    Draws,
    Inputs,
    MaybeBatch,
    MaybeRate,
    Readout,
    Scale,
    SeededWork,
    Settings,
    with_groups,
)
from biascope.cli.printing import print_results, report_line, write_table

if TYPE_CHECKING:
    from biascope.families.family import Family
    from biascope.measures.match.result import Match
    from biascope.measures.race.result import Race
    from biascope.tasks.task import Arrays

MODELS_HELP = (
    "Networks: names (biascope list), path/to/file.py:build or package.module:build. Quote a network with its own settings: "
    "'lenet pooling=average'. Default: the networks of the papers that are fast to initialise."
)
USUAL = ("logistic_regression", "mlp", "lenet", "lenet pooling=average", "vgg11", "resnet18", "vit")
_SAMPLES = DataOptions(samples="5000")


@with_groups
def match(
    models: Annotated[list[str] | None, typer.Argument(help=MODELS_HELP, autocompletion=_completion.networks)] = None,
    *,
    settings: Settings = [],  # noqa: B006 - typer copies it
    samples: DataOptions = _SAMPLES,
    labels: Annotated[
        bool,
        typer.Option(help="Measure along directions between class means, not along those in which the data vary most."),
    ] = True,
    draws: Draws = 256,
    inputs: Inputs = 4,
    scale: Scale = 1e-3,
    readout: Readout = "mean",
    race: Annotated[
        bool, typer.Option("--race", help="Train the networks briefly, in lock-step, and rank them by held-out loss.")
    ] = False,
    share: Annotated[
        float | None,
        typer.Option("--share", help="Largest share of the full training that a race may use; 0.1 by default."),
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Epochs of the full training; 20 by default.")] = None,
    rate: MaybeRate = None,
    batch: MaybeBatch = None,
    work: SeededWork,
) -> None:
    """Warn of networks that hardly change where the data vary, before training; with --race, train them briefly and rank them."""
    from biascope.measures import match as before_training
    from biascope.measures import race as in_training
    from biascope.results.registry import require_own
    from biascope.results.report import write_folder_report
    from biascope.runs.files import make_writable
    from biascope.scanning import distinct_names, path_words

    training: dict[str, Any] = {"share": share, "epochs": epochs, "rate": rate, "batch": batch}
    usual = (draws, inputs, scale, readout, labels) == (256, 4, 1e-3, "mean", True)
    _check_options(race, [name for name, value in training.items() if value is not None], usual)
    kind = "race" if race else "match"
    folder = work.out or Path("biascope-runs") / f"{kind}-{path_words(samples.data, '.npz')}"
    run = work.run(folder, data_root=samples.data_root)
    found = samples.arrays(work.seed, labelled=labels)
    families = [family_of_words(words, found, settings, labels) for words in models or USUAL]
    names = distinct_names([family.name for family in families], [*(models or USUAL)])
    families = [dataclasses.replace(family, name=name) for family, name in zip(families, names, strict=True)]
    how: dict[str, Any] = {"seed": work.seed, "run": run}
    if race:
        changed = {name: training[name] for name in ("epochs", "rate", "batch") if training[name] is not None}
        how |= {"recipe": dataclasses.replace(in_training.RECIPE, **changed)} | (
            {} if share is None else {"share": share}
        )
    else:
        how |= {"labels": labels, "draws": draws, "inputs": inputs, "scale": scale, "readout": readout}
    if work.dry_run:
        check_place(work)
        expected = in_training.expected_time if race else before_training.expected_time
        print_expectation(expected(families, found, **how), work)
        return
    require_own(folder, f"{kind}.csv")
    make_writable(folder)
    result: Race | Match
    if race:
        result, title = in_training.race(families, found, **how), f"A race on {found.name}"
    else:
        result, title = before_training.match(families, found, **how), f"Match of networks and {found.name}"
    result.save(folder / kind)
    keep_settings(folder)
    (rows,) = result.tables().values()
    file = write_table(rows, folder / f"{kind}.csv")
    page = write_folder_report(folder, title=title)
    if work.as_json:
        print_results([result], page, True, files=[file])
        return
    warned = "".join(f"\nWarning: {warning}" for warning in result.warnings)
    typer.echo(f"\n{result.sentence()}\n\n{result.table()}{warned}\n\n{report_line(page)}")


def _check_options(race: bool, training: list[str], usual: bool) -> None:
    """Refuse options of a race without one, and those of a measurement before training with one."""
    if training and not race:
        raise ValueError(
            f"--{training[0]} applies only to a race, got it without --race. Add --race, or leave --{training[0]} out."
        )
    if race and not usual:
        raise ValueError(
            "--draws, --inputs, --scale, --readout and --no-labels apply only before training, got one of them with "
            "--race. Leave it out."
        )


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
