"""Training along directions: the authors' settings, plans of figures that share them, and the training itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from biascope.measures.directional_bias import directional_bias
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.papers.nads2020.networks import TITLES, family_of, training_run
from biascope.results.plan import Plan
from biascope.runs.run import Run
from biascope.tasks.bases import Basis

#: The authors' training along a direction, which is ours too; clipping and momentum are those of the released code.
PUBLISHED: dict[str, Any] = {
    "samples": [10_000],
    "test": 10_000,
    "epochs": 20,
    "batch": 128,
    "optimiser": "sgd",
    "rate": 0.5,
    "schedule": "linear",
    "momentum": 0.0,
    "weight decay": 0.0,
    "clip": 0.5,
    "epsilon": 1.0,
    "initial weights": "PyTorch",
}
SMALL = {"samples": [256], "test": 256, "epochs": 1}  # only shows that the code runs


def planned(
    *,
    smoke: Mapping[str, Any],
    laptop: Mapping[str, Any],
    paper: Mapping[str, Any],
    published: Mapping[str, Any],
    ours: Mapping[str, Any] = {},
    by: str = "",
    always: tuple[str, ...] = (),
) -> Plan:
    """The plan of a figure whose networks are trained along directions.

    Args:
        smoke: How many directions of which network, and what else differs between efforts.
        laptop: Likewise.
        paper: Likewise.
        published: All settings of the authors; what a row leaves out is as published, but for the precision, which a run tells.
        ours: What the paper does not say, the same at each effort.
        by: The setting whose networks can be run one by one.
        always: Networks with which the others are compared.
    """
    shared = {setting: value for setting, value in published.items() if setting != "precision"}
    shared |= {"seed": 0, **ours}
    small = {setting: value for setting, value in SMALL.items() if setting in published}
    return Plan(
        smoke={**shared, **small, **smoke},
        laptop={**shared, **laptop},
        paper={**shared, **paper},
        published=published,
        titles=TITLES,
        by=by,
        always=always,
    )


def learned(
    name: str,
    basis: Basis,
    plan: Mapping[str, Any],
    run: Run,
    *,
    network: Mapping[str, Any] = {},
    precision: str = "",
    **others: Any,
) -> DirectionalBias:
    """One network on D(v) for every direction of a basis, by its settings in a plan, or others instead.

    Large networks are trained in the precision of :func:`training_run`, unless another is named.
    """
    family = family_of(name, outputs=2, **network)
    how = dataclasses.replace(run.shared, precision=precision) if precision else training_run(family, run)
    settings: dict[str, Any] = {}
    for setting, value in plan.items():
        key = setting.replace(" ", "_")
        if key in directional_bias.settings and not (isinstance(value, Mapping) and name not in value):
            settings[key] = value[name] if isinstance(value, Mapping) else value
    return directional_bias(family, basis, run=how, **directional_bias.grouped({**settings, **others}))
