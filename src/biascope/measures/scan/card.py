"""The rows of the bias card beside the mean gradient: which of them suit a network's inputs, and how much of each a scan draws."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biascope.derivatives.one_pass import OnePass
from biascope.derivatives.sampling import Sampling
from biascope.families.family import Family
from biascope.results.axes import InputAxes
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

_MOST = 40  # draws: intervals of a row are then about a tenth of it
_FEWEST = 8  # below which a row is left out
_BUDGET = {"cpu": 1e11, "cuda": 1e14}  # operations of a row


@dataclass(frozen=True)
class _Amount:
    """How much of a row to take of each draw.

    Attributes:
        inputs: Inputs of each draw.
        passes: Forward passes of one input that a draw takes, a derivative counted as two.
        settings: Of the measurement.
    """

    inputs: int
    passes: int
    settings: Mapping[str, Any]


#: Rows in the order of a card; of each, what a draw takes, from much to little.
_ROWS: dict[str, Sequence[_Amount]] = {
    "memory": (_Amount(8, 8 * 3, {}), _Amount(4, 4 * 3, {})),
    "complexity": (
        _Amount(4, 2 * 64 * 2 + 16, {"scales": (1.0, 4.0)}),
        _Amount(2, 64 + 8, {"scales": (1.0,)}),
        _Amount(2, 32 + 8, {"scales": (1.0,), "points": 32}),
    ),
    "sensitivity": (
        _Amount(64, 64 + 256, {}),
        _Amount(16, 16 + 64, {"replaced": 4, "places": 16}),
        _Amount(8, 8 + 32, {"replaced": 2, "places": 16}),
    ),
    "equivariance": (_Amount(8, 8 * 4 * 2, {}), _Amount(4, 4 * 4 * 2, {})),
    "guessing": (_Amount(50, 50, {}), _Amount(20, 20, {})),
}


@dataclass(frozen=True)
class CardRow:
    """A row of a network's card.

    Attributes:
        name: Of the measurement.
        probe: Where it is taken.
        draws: How many; 0 where it would take too long.
        settings: Of the measurement.
        passes: Forward passes of one input that a draw takes.
    """

    name: str
    probe: Probe
    draws: int
    settings: Mapping[str, Any]
    passes: int


def rows_of(
    family: Family, shape: tuple[int, ...], one: OnePass | None, sampling: Sampling, run: Run
) -> Iterator[CardRow]:
    """The rows that suit a network, in order.

    Nothing is timed, so a repeated command measures the same.

    Args:
        family: The networks.
        shape: Shape of one input.
        one: What a pass of one input takes; ``None`` where that is not known.
        sampling: How many draws the user asked for, if they did; else as many as fit into a number of operations.
        run: Device.
    """
    few = Probe.gaussian(shape).few()
    axes, device = InputAxes.of(family.axes_at(few), shape), run.torch_device.type
    work = max(1.0, 0.0 if one is None else one.work)
    dearest, most = max(work, sampling.least_work), _MOST if sampling.draws is None else min(sampling.draws, _MOST)
    budget = _BUDGET["cpu" if device == "cpu" else "cuda"]
    for name, amounts in _ROWS.items():
        row = importlib.import_module(f"biascope.measures.{name}")
        if not row.suits(axes) or (
            name == "guessing"
            and (
                row.classes_of(tuple(family.first_outputs(few).shape[1:]), axes) is None
                or row.gives_features(family, few)
            )
        ):
            continue
        fitting = (amount for amount in amounts if int(budget / (amount.passes * dearest)) >= min(most, 2 * _FEWEST))
        amount = next(fitting, amounts[-1])
        count = min(int(budget / (amount.passes * work)), most)
        yield CardRow(
            name,
            _probe(axes, name, amount.inputs, sampling.seed),
            count if count >= min(most, _FEWEST) else 0,
            amount.settings,
            amount.passes,
        )


def _probe(axes: InputAxes, name: str, inputs: int, seed: int) -> Probe:
    if name == "equivariance":
        return Probe.smooth(axes.shape, along=axes.shifted, num=inputs, seed=seed)
    return Probe.gaussian(axes.shape, num=inputs, fresh=True, seed=seed)


def told(left_out: Sequence[str]) -> str:
    """Which rows are missing, in a sentence."""
    each = " and ".join([", ".join(left_out[:-1]), left_out[-1]] if len(left_out) > 1 else left_out)
    them = "They take" if len(left_out) > 1 else "It takes"
    return f"This scan leaves out {each}. {them} too many operations of this network for a scan: biascope measure NAME has it."
