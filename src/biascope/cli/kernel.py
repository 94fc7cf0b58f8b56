"""SHOW: `biascope kernel`: the tangent kernel of a network on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import (
    DataOptions,
    Draws,
    Model,
    NetworkOptions,
    On,
    Positive,
    Readout,
    SeededWork,
    positive_classes,
    with_groups,
)
from biascope.cli.printing import print_json, print_results

if TYPE_CHECKING:
    from torch import Tensor

    from biascope.families.network import Network


@with_groups
@rehearsed()
def kernel(
    model: Model = "lenet",
    *,
    network: NetworkOptions,
    samples: DataOptions,
    positive: Positive = "",
    leading: Annotated[
        int | None,
        typer.Option(help="Number of eigenfunctions; by default 50, or a quarter of the samples if that is smaller."),
    ] = None,
    control: Annotated[bool, typer.Option(help="Compare the local energy with the one on the test samples.")] = False,
    parameters: Annotated[
        list[str],
        typer.Option(help="Differentiate only with respect to these parameters: names or patterns such as 'conv1.*'."),
    ] = [],  # noqa: B006 - typer copies it
    kind: Annotated[
        str, typer.Option("--kernel", help="Kernel of one readout (scalar) or summed over outputs (trace).")
    ] = "scalar",
    readout: Readout = "first",
    draws: Draws = 1,
    matrix: Annotated[Path | None, typer.Option(help="Also write the kernel matrix to this .npy file.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the rule, operations and memory of each parameter, and stop.")
    ] = False,
    on: On = None,
    work: SeededWork,
) -> None:
    """Measure the tangent kernel of a network on data: spectrum, eigenfunctions, and the share of the labels on them."""
    from biascope.families.libraries import TEXTS, kind_of
    from biascope.results.registry import check_samples, find
    from biascope.results.report import write_folder_report
    from biascope.runs.files import folder_name

    if matrix is not None and matrix.suffix != ".npy":
        raise ValueError(f"--matrix must name an .npy file, got {matrix}. Pass --matrix kernel.npy.")
    if matrix is not None and not matrix.parent.is_dir():
        raise ValueError(
            f"--matrix must lie in an existing folder, but {matrix.parent} does not exist. Create it first."
        )
    arrays = samples.arrays(work.seed, model, network.chosen)
    usual = {"ids": True} if arrays.holds_ids and kind_of(model) in TEXTS else None
    family = network.family(model, network.shape_on(arrays), usual)
    folder = work.out or Path("biascope-runs") / folder_name(model, network.chosen, network.weights)
    if matrix is not None and matrix.exists():
        _require_matrix(matrix, folder)
    run = work.run(folder, on=on, data_root=samples.data_root)

    def matrix_asked() -> tuple[Network, Tensor, dict[str, Any]]:
        """The network, the samples and how the kernel between them is taken."""
        drawn = family.draw(1, seed=work.seed, run=run).member(0)
        read = drawn.read(readout) if kind == "scalar" else drawn
        return read, arrays.whole("train")[0], {"kernel": kind, "parameters": parameters or None, "run": run}

    if plan:
        from biascope.kernels.gram import gram_plan

        check_samples(family, arrays)
        read, x, how = matrix_asked()
        words = gram_plan(read, x, **how)
        if work.as_json:
            print_json(subject=family.name, plan=words.splitlines())
        else:
            typer.echo(words)
        return
    result = find("tangent_kernel")(
        family,
        arrays,
        leading=leading,
        positive=positive_classes(positive),
        control="test" if control else None,
        parameters=tuple(parameters) or None,
        kernel=kind,
        readout=readout,
        draws=draws,
        seed=work.seed,
        run=run,
    )
    place = result.save(folder / "tangent_kernel")
    keep_settings(folder)
    if matrix is not None:
        import numpy as np

        from biascope.kernels.gram import tangent_gram
        from biascope.runs.files import written
        from biascope.runs.rehearsal import placed

        read, x, how = matrix_asked()
        kept = tangent_gram(read, x, **how)  # found in the run folder
        with written(placed(matrix)) as temporary, temporary.open("wb") as file:
            np.save(file, kept.matrix.cpu().numpy())
    files = [] if matrix is None else [matrix]
    print_results([result], write_folder_report(folder, at_hand={place: result}), work.as_json, files=files)


def _require_matrix(path: Path, folder: Path) -> None:
    """Refuse to replace an array that the run in a folder did not write, by the settings that it left there."""
    import tomllib

    try:
        written = tomllib.loads((folder / "run-kernel.toml").read_text(encoding="utf-8")).get("matrix")
    except (OSError, ValueError):
        written = None
    if not isinstance(written, str) or Path(written).absolute() != path.absolute():
        raise ValueError(
            f"--matrix would replace {path}, which holds no kernel matrix of the run in {folder}. Pass another name."
        )
