"""SHOW: `biascope selftest`: whether the derivatives of a network can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.options import Lasting, Model, NetworkOptions, Readout, Seed, with_groups
from biascope.cli.printing import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from biascope.kernels.selftest import Check


@with_groups
@rehearsed()
def selftest(
    model: Model = "lenet", *, network: NetworkOptions, readout: Readout = "first", seed: Seed = 0, output: Lasting
) -> None:
    """Check that the derivatives of a network are computed correctly."""
    from biascope.families.source import usual_shape
    from biascope.kernels import selftest as identities

    family = network.family(model, network.shape)
    shape = network.shape or usual_shape(model, network.chosen)
    checks = identities.selftest(family, shape, readout=readout, seed=seed)
    used = {"precision": identities.selftest_run(family, shape, seed=seed).precision, "attention": family.attention}
    failed = sum(check.failed for check in checks)
    if output.as_json:
        rows = [
            {
                "name": check.name,
                "passed": check.passed,
                "error": check.error,
                "tolerance": check.tolerance,
                "kink": check.kink,
                "remark": check.remark,
                "needed": check.needed,
            }
            for check in checks
        ]
        print_json(subject=family.name, parameters=family.num_parameters, passed=not failed, checks=rows, **used)
    else:
        typer.echo(f"{family.name}: {family.num_parameters:,} parameters, {family.drawing}")
        typer.echo(", ".join(f"{what} {name}" for what, name in used.items() if name))
        _print_checks(checks)
    if any(check.remark == identities.CONSTANT for check in checks):
        typer.echo(
            f"{family.name} must depend on its input to be checked, but its output is constant. Check that forward uses its argument "
            "and that no dead or zero-initialised layer cuts it off, or pass trained weights with --weights.",
            err=True,
        )
    if failed:
        typer.echo(f"{failed} of {len(checks)} checks failed: do not trust measurements of this network.", err=True)
        raise typer.Exit(1)


def _print_checks(checks: Sequence[Check]) -> None:
    for check in checks:
        mark = "FAILED" if check.failed else "no run" if not check.passed else "kink  " if check.kink else "ok    "
        remark = "" if check.passed else f": {check.remark}"
        typer.echo(f"  {mark} {check.name} (error {check.error:.1e}, allowed {check.tolerance:.0e}){remark}")
    if any(check.failed for check in checks):
        return
    for check in checks:
        if check.kink:
            typer.echo(f"Slopes on the two sides differ by {100 * check.kink:.2g} %: {check.remark}.")
    passed = sum(check.passed for check in checks)
    if passed == len(checks):
        typer.echo(f"All {passed} checks passed.")
        return
    typer.echo(
        f"{passed} of {len(checks)} checks passed. The others could not run, because PyTorch has no forward mode or no vmap for an "
        "operation of this network. Measurements that need forward mode refuse it. Stacks of networks are computed one by one."
    )
