"""Explain: which component of a network causes which preference of its bias card, and which edit to try."""

# T draws · v variants · r rows

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from biascope.derivatives.draw_statistics import Drawn, DrawStream
from biascope.families.family import Family
from biascope.families.replaced import Constants, Replacements, constants_of, replaced, structure_at
from biascope.families.replacements import kinds
from biascope.kernels.selftest import derivative_checks
from biascope.measures.explain.result import Explanation, Said
from biascope.measures.explain.rows import CardNumber, Reader, outputs
from biascope.measures.explain.variants import ADDED, REMOVED, EditedNetwork, parts_of, variants_of
from biascope.results.axes import InputAxes
from biascope.results.estimate import Estimate, jackknife
from biascope.results.registry import measurement
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.probe import Probe

_LEVEL = 0.05  # of all comparisons together
_GROUPS = 32  # of draws, which the jackknife leaves out in turn
_PILOTS = 4  # draws that determine the constants of a replacement
_TOLD = 3  # components that sentences name
_LEAST = 0.02  # of the larger number: a smaller change is not worth an edit


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 2)),
        name="small CNN",
    )
    return (family, Probe.gaussian((1, 8, 8), num=4, fresh=True)), {"draws": 16}


@measurement(
    title="Causes of preferences",
    paper="nads2020",
    result=Explanation,
    example=_example,
    network={"outputs": 10},
    checks=derivative_checks(lambda settings: ("input",)),
    command="biascope explain",
)
def explain(
    family: Family,
    probe: Probe,
    *,
    draws: int = 64,
    parts: int = 4,
    readout: str = "first",
    seed: int = 0,
    run: Run | None = None,
) -> Explanation:
    """Which component of an untrained network causes which preference of its bias card.

    Definition: a component is replaced by another one of the same shape, such as max pooling by average pooling. The output of the
    replacement is multiplied by one number that keeps its second moment. The change of a row of the card is the row of the changed
    network minus that of the unchanged one. A component is *removed* from the network, where the rest stays; and it is *added* to the
    neutral network, in which every component has its neutral replacement.

    Estimated with the same draws of weights and the same inputs for every network. Intervals are those of a jackknife over 32 groups of
    draws. All changes together have a level of 5 % (Bonferroni). The strongest changes, of three components at most, are measured again
    on fresh draws before a sentence names them.

    Args:
        family: Networks and the distribution of their initial weights.
        probe: Fresh inputs for each network, an even number of at least 4.
        draws: Number of networks, at least 8.
        parts: Components of one kind form at most so many parts, which are replaced together.
        readout: Which scalar of several outputs: ``first``, ``sum``, ``mean``, ``margin``, ``random``.
        seed: Random seed for the weights.
        run: Folder, device, precision.

    Returns:
        The changes with their intervals, and what is said of them.

    Raises:
        ValueError: If the networks are not at initialisation, the inputs are no fresh tensors, or a setting is wrong.

    Example:
        >>> family = Family.initialised(lambda: nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 1)), name="pooled")
        >>> result = explain(family, Probe.gaussian((1, 16, 16), num=4, fresh=True), draws=64)
        >>> result.sentence().partition(".")[0]
        'The average pooling (0) raises the share of low frequencies'

    Reference:
        Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS, which asks for the source of a
        directional bias. The replacements, both ways and the intervals are ours.
    """
    run = run or Run()
    _require(family, probe, draws, parts)
    few = probe.few(run)
    structure = structure_at(family.template.to(run.torch_device, run.dtype), few)
    if not structure.components:
        why = f" ({'; '.join(structure.kept)})" if structure.kept else ""
        raise ValueError(
            f"{family.name} must have a component that can be replaced, but none was found"
            f"{why}. Pass a network with layers such as nn.ReLU or nn.MaxPool2d."
        )
    axes = InputAxes.of(family.axes_at(few, run), tuple(few.shape[1:]))
    shape = tuple(family.first_outputs(few, run).shape[1:])
    reader = Reader.of(axes, shape, probe.independent)
    variants = variants_of(structure, parts_of(structure, parts))
    needed = 4 * 8 * draws * (2 * few[0].numel() + reader.numbers + draws)
    run.expects("The gradients of all draws", needed, "Pass fewer draws (--draws)")
    laboratory = Laboratory(family, probe, reader, variants, draws, readout, seed, run)
    warnings: list[str] = []
    first = laboratory.readings(0)
    table = _Table(reader.rows(), variants, first)
    moving = [row.key != "favourite_class" for row in reader.rows()]  # a constant network too has one
    if not np.isfinite(table.values[0][moving]).any():
        raise ValueError(
            f"{family.name} must depend on its input, but its output is constant. Check its last layer, which may start at "
            "zero, or pass --readout features."
        )
    if table.unmeasured:
        warnings.append(
            f"The output of {len(table.unmeasured)} of {len(variants)} networks does not depend on the input once components are "
            f"replaced. They are left out: {'; '.join(table.unmeasured[:3])}."
        )
    chosen = table.strongest()
    again = _Table(
        reader.rows(), variants, laboratory.readings(1, table.needed(chosen)), comparisons=max(1, len(chosen))
    )
    said = [each for place, row in chosen if (each := again.said(place, row, table)) is not None]
    rows = reader.rows()
    return Explanation(
        tuple(row.key for row in rows),
        tuple(row.label for row in rows),
        tuple(row.unit for row in rows),
        tuple(each.way for each in variants),
        tuple(each.part for each in variants),
        tuple(each.alternative for each in variants),
        table.values,
        table.own[0],
        table.own[1],
        table.own[2],
        table.changes[0],
        table.changes[1],
        table.changes[2],
        tuple(said),
        structure.kept,
        draws,
        table.comparisons,
        provenance={"warnings": warnings},
    )


def _require(family: Family, probe: Probe, draws: int, parts: int) -> None:
    """Refuse what has no initial weights or no inputs to differentiate at."""
    if family.law != "initialised":
        raise ValueError(
            f"explain needs networks at initialisation, but {family.name} has given weights ({family.law}). Weights that were trained "
            "with a component do not tell what it causes: without it, the network is broken. Leave --weights out, or pass a builder."
        )
    if family.template.couples_inputs:
        raise ValueError(
            f"explain needs BatchNorm with running statistics, but that of {family.name} takes those of each input. Leave "
            "--batchnorm train out."
        )
    if not probe.fresh or probe.num < 4 or probe.num % 2:
        raise ValueError(
            f"explain needs fresh inputs for each network, an even number of at least 4, got {probe.description}. Pass "
            "Probe.gaussian(shape, num=16, fresh=True), or --inputs 16."
        )
    if not isinstance(probe.few(), Tensor):
        raise ValueError("explain needs one tensor as input. Hold the other inputs with --hold, or wrap the network.")
    if draws < 8:
        raise ValueError(f"draws must be at least 8 for an interval over draws, got {draws}. Pass draws=64.")
    if parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}. Pass parts=4.")


class Laboratory:
    """Measures variants on the same draws."""

    def __init__(
        self,
        family: Family,
        probe: Probe,
        reader: Reader,
        variants: Sequence[EditedNetwork],
        draws: int,
        readout: str,
        seed: int,
        run: Run,
    ) -> None:
        self._reader, self._variants, self._draws, self._run = reader, variants, draws, run
        self._family = family
        self._stream = DrawStream.of(family, probe, readout=readout, seed=seed, run=run)
        code = (DrawStream, Drawn, Reader, structure_at, constants_of, replaced, Laboratory)
        alternatives = [each for kind in kinds().values() for each in (kind.find, *kind.alternatives.values())]
        self._trials = Trials(
            f"{family.name}: causes",
            run,
            code=(*code, *alternatives),
            at=self._stream.few,
            family=family,
            probe=probe,
            readout=readout,
            draws=draws,
            seed=seed,
        )

    def readings(self, turn: int, places: Sequence[int] | None = None) -> dict[int, Mapping[str, np.ndarray]]:
        """What was read of some variants, by their places, on the first draws or (``turn`` 1) on the next as many."""
        wanted = range(len(self._variants)) if places is None else places
        keys = {place: f"{turn}-{self._variants[place].key}" for place in wanted}
        missing = [place for place in wanted if not self._trials.done(keys[place])]
        count = self._draws
        label = f"{self._family.name}: {'fresh draws' if turn else 'draws'} of {len(keys)} networks"
        with (
            self._trials.alone(),
            self._run.tracked(label, len(keys) * count, (len(keys) - len(missing)) * count) as advance,
        ):
            for place in missing:
                if not self._trials.done(keys[place]):
                    own = self._variants[place].replacements
                    found = self._measured(own, turn * count, (turn + 1) * count, advance)
                    self._trials.write(keys[place], self._reader.readings(found))
        kept = {place: self._trials.read(key) for place, key in keys.items()}
        return {place: {name: part.numpy() for name, part in each.items()} for place, each in kept.items()}

    def _measured(self, replacements: Replacements, start: int, stop: int, advance: Any) -> Tensor:
        template = self._family.template
        with replaced(template, replacements, self._constants(replacements)):
            return self._stream.map(self._reader.read, start, stop, advance)

    def _constants(self, replacements: Replacements) -> dict[Any, Constants]:
        """The constants of replacements, by the first draws."""
        if not replacements:
            return {}

        def passes() -> Any:
            yield lambda: self._stream.map(
                lambda drawn, x: outputs(drawn, x).sum()[None], 0, _PILOTS, lambda count: None
            )

        return constants_of(self._family.template, replacements, passes())


class _Table:
    """The changes of all rows by all variants, with simultaneous intervals.

    Attributes:
        values: Of every variant and row, ``(v, r)``; nan where it could not be measured.
        own: Estimate, lower and upper end of the rows of the unchanged network, 95 % each, ``(3, r)``.
        changes: The same of the change of each variant, at a level for all together, ``(3, v, r)``.
        comparisons: How many share the level.
        unmeasured: Variants without an output that depends on the input, in words.
    """

    def __init__(
        self,
        rows: Sequence[CardNumber],
        variants: Sequence[EditedNetwork],
        readings: Mapping[int, Mapping[str, np.ndarray]],
        comparisons: int = 0,
    ) -> None:
        self._rows, self._variants = rows, variants
        known = {place: [_left_out(row, each) for row in rows] for place, each in readings.items()}
        shape = len(variants), len(rows)
        self.values = np.full(shape, math.nan)
        for place, each in known.items():
            self.values[place] = [full for full, _ in each]
        self.unmeasured = [variants[place].words for place in known if not np.isfinite(self.values[place]).any()]
        compared = [(place, row) for place in known if variants[place].way for row in range(len(rows))]
        self.comparisons = comparisons or max(1, len(compared))
        self.changes = np.full((3, *shape), math.nan)
        for place, row in compared:
            self.changes[:, place, row] = self._change(known[place][row], known[self.compared_with(place)][row])
        self.own = np.full((3, len(rows)), math.nan)
        if 0 in known:
            found = [jackknife(full, left.tolist()) for full, left in known[0]]
            self.own = np.array([[each.value, each.low, each.high] for each in found]).T

    def compared_with(self, place: int) -> int:
        """The variant from which one differs by its part alone."""
        return 1 if self._variants[place].way == ADDED else 0

    def _change(self, after: tuple[float, np.ndarray], before: tuple[float, np.ndarray]) -> tuple[float, float, float]:
        full, left = after[0] - before[0], after[1] - before[1]
        if not (math.isfinite(full) and np.isfinite(left).all()):
            return math.nan, math.nan, math.nan
        found: Estimate = jackknife(full, left.tolist(), 1 - _LEVEL / self.comparisons)
        return found.value, found.low, found.high

    def strength(self) -> np.ndarray:
        """The least change that each interval allows, in units of the larger number, ``(v, r)``; 0 where it allows none."""
        value, low, high = self.changes
        least = np.where(low > 0, low, np.where(high < 0, -high, 0.0))
        before = self.values[[self.compared_with(place) for place in range(len(self.values))]]
        largest = np.fmax(np.abs(before), np.abs(self.values))
        found = np.divide(least, largest, out=np.zeros_like(least), where=largest > 0)
        return np.asarray(np.where(np.isfinite(value), found, 0.0))

    def strongest(self) -> list[tuple[int, int]]:
        """The strongest change of each of a few parts: removed from the network first, then those that only an addition shows."""
        strength = self.strength()
        chosen: dict[str, tuple[int, int]] = {}
        for way in (REMOVED, ADDED):
            places = [(place, row) for place, row in np.ndindex(*strength.shape) if self._variants[place].way == way]
            for place, row in sorted(places, key=lambda each: -strength[each]):
                part = self._variants[place].part
                if way == ADDED and self._removal_is_clear(part, row):
                    continue
                if strength[place, row] > _LEAST and len(chosen) < _TOLD:
                    chosen.setdefault(part, (place, row))
        return list(chosen.values())

    def _removal_is_clear(self, part: str, row: int) -> bool:
        own = [place for place, each in enumerate(self._variants) if each.way == REMOVED and each.part == part]
        return bool(((self.changes[1, own, row] > 0) | (self.changes[2, own, row] < 0)).any())

    def needed(self, chosen: Sequence[tuple[int, int]]) -> list[int]:
        """The variants that must be measured to tell these changes."""
        return sorted({place for own, _ in chosen for place in (own, self.compared_with(own))})

    def said(self, place: int, row: int, first: _Table) -> Said | None:
        """A change as it is told, if these draws confirm it."""
        value, low, high = self.changes[:, place, row]
        if not (low > 0 or high < 0) or np.sign(value) != np.sign(first.changes[0, place, row]):
            return None
        variant = self._variants[place]
        own = self._rows[row]
        before = self.values[self.compared_with(place), row]
        return Said(
            variant.way, variant.part, variant.alternative, own.label, own.unit, before, before + value, low, high
        )


def _left_out(row: CardNumber, readings: Mapping[str, np.ndarray]) -> tuple[float, np.ndarray]:
    """A row of all draws, and without each group of them."""
    draws = len(readings["traces"])
    groups = np.arange(draws) * min(_GROUPS, draws) // draws
    full = row.of(readings, np.ones(draws, bool))
    left = np.array([row.of(readings, groups != group) for group in range(groups[-1] + 1)])
    return full, left
