"""WHAT: how the energy of a gradient is shared among the named parts of an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from biascope.derivatives.operators import EstimatedOperator
from biascope.results.axes import Axis, InputAxes
from biascope.results.estimate import Estimate, jackknife
from biascope.results.wording import listed, snake
from biascope.tasks.divisions import divisions_of

_MOST = 0.9  # of the energy: a set of places that holds it is worth a sentence, if it is at most half of all
_FEWEST_GROUPS = 8  # of draws: one half of them chooses places, the other measures their share
_NAMED = 4  # places that a sentence lists


@dataclass(frozen=True, eq=False)
class Shares:
    """The energy in each part of a division, by groups of draws.

    Attributes:
        axis: Whose places the parts are; for frequencies, that of time.
        name: Of the division: an axis, or ``"frequency"``.
        labels: Of the parts.
        energies: ``(group, part)``.
        isotropic: The share of each part if no direction is preferred.
    """

    axis: Axis
    name: str
    labels: tuple[str, ...]
    energies: np.ndarray
    isotropic: np.ndarray

    @property
    def key(self) -> str:
        """The key of its picture."""
        return f"sensitivity_by_{snake(self.name)}"

    @property
    def caption(self) -> str:
        """The caption of its picture."""
        return "Sensitivity by frequency" if self.of_frequencies else f"Sensitivity by {self.axis.noun(1)}"

    @property
    def along(self) -> str:
        """What its parts are."""
        return "cycles in the whole input" if self.of_frequencies else self.axis.noun(2)

    @property
    def of_frequencies(self) -> bool:
        """Whether its parts are frequencies along time, not places."""
        return self.name == "frequency"

    def share(self, chosen: Sequence[int], groups: slice = slice(None)) -> Estimate:
        """The share of some parts, from some groups of draws, with a jackknife interval over them."""
        energies = self.energies[groups]
        part, whole = energies[:, list(chosen)].sum(1), energies.sum(1)
        total, all_of_it = float(part.sum()), float(whole.sum())
        if not all_of_it > 0:
            return Estimate(float("nan"))
        left_out = (total - part) / (all_of_it - whole) if len(energies) > 2 else np.zeros(0)
        return jackknife(total / all_of_it, left_out.tolist()).within(0.0, 1.0)

    def each(self) -> list[Estimate]:
        """The share of every part."""
        return [self.share([part]) for part in range(len(self.labels))]

    def concentrated(self) -> tuple[list[int], Estimate] | None:
        """The fewest parts that hold most of the energy, and their share; ``None`` where it takes more than half of all.

        Along time and the like, these are neighbours; frequencies are not, since strides fold high ones onto low ones. One half of the
        draws chooses them, the other tells their share.
        """
        count = len(self.labels)
        if len(self.energies) < _FEWEST_GROUPS or count < 2:
            return None
        first = self.energies[0::2].sum(0)
        if not first.sum() > 0:
            return None
        first = np.maximum(first, 0.0) / np.maximum(first, 0.0).sum()
        together = self.axis.ordered and not self.of_frequencies
        chosen = _window(first) if together else np.argsort(-first)[: _fewest(np.sort(first)[::-1])].tolist()
        if not chosen or len(chosen) > count / 2:
            return None
        share = self.share(chosen, slice(1, None, 2))
        even = float(self.isotropic[chosen].sum())
        return (sorted(chosen), share) if share.low > max(0.5, 1.25 * even) else None

    def unused(self) -> list[int]:
        """Parts along which every gradient is exactly zero, where there are others."""
        found = np.flatnonzero((self.energies == 0).all(0)).tolist()
        return found if len(found) < len(self.labels) else []

    def sentence(self) -> str:
        """Where most of the sensitivity lies, else where none of it lies; empty where it lies on no few places, and on all."""
        if (found := self.concentrated()) is None:
            unused = [] if self.of_frequencies else self.unused()
            return f"No drawn output changes with {self._where(unused)}." if unused else ""
        chosen, share = found
        if share.low > 0.99:
            how_much = "Over 99 %"
        else:
            digits = int(share.high - share.low < 0.01)  # an interval from 95 to 95 % tells nothing
            how_much = f"{100 * share.value:.{digits}f} % (95 % CI {100 * share.low:.{digits}f} to {100 * share.high:.{digits}f} %)"
        return f"{how_much} of the sensitivity is on {self._where(chosen)}{self._because(chosen)}."

    def _because(self, chosen: list[int]) -> str:
        if self.axis.read is None:
            return ""
        place = self.axis.read % len(self.labels)
        nth = _nth(place, len(self.labels))
        return f", because the readout looks at the {nth} {self.axis.noun(1)} alone" if place in chosen else ""

    def _where(self, chosen: list[int]) -> str:
        count, many = len(self.labels), len(chosen)
        if self.of_frequencies:
            return _in_cycles(chosen, count)
        noun = self.axis.noun(many)
        if self.axis.labels:
            names = [self.labels[place] for place in chosen[:_NAMED]] + (
                [f"{many - _NAMED} others"] if many > _NAMED else []
            )
            return f"{noun} {listed(names)} ({many} of {count})"
        together = chosen[-1] - chosen[0] < many
        if not self.axis.ordered or not together:
            if many > _NAMED and together:
                return f"{noun} {chosen[0] + 1} to {chosen[-1] + 1} of {count}"
            if many > _NAMED:
                return f"{many} of {count} {self.axis.noun(count)}"
            return f"{noun} {listed([self.labels[place] for place in chosen])} of {count}"
        if many == 1:
            return f"the {_nth(chosen[0], count)} of {count} {self.axis.noun(count)}"
        if chosen[0] == 0 or chosen[-1] == count - 1:
            return f"the {'first' if chosen[0] == 0 else 'last'} {many} of {count} {self.axis.noun(count)}"
        return f"{noun} {chosen[0] + 1} to {chosen[-1] + 1} of {count}"


def _in_cycles(chosen: list[int], count: int) -> str:
    """Some of the frequencies from 0 cycles on."""
    many = len(chosen)
    so_many = f" {many}" if many > 1 else ""
    if chosen == list(range(many)):
        return f"the lowest{so_many} of {count} frequencies along time"
    if chosen == list(range(count - many, count)):
        return f"the highest{so_many} of {count} frequencies along time"
    if many > _NAMED:
        return f"{many} of {count} frequencies along time"
    return f"{listed([str(each) for each in chosen])} cycles along time ({many} of {count} frequencies)"


def _nth(place: int, count: int) -> str:
    if place == 0:
        return "first"
    if place == count - 1:
        return "last"
    number = place + 1
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _fewest(shares: np.ndarray) -> int:
    """How many of these shares, taken in order, hold most."""
    return int(np.searchsorted(np.cumsum(shares), _MOST)) + 1


def _window(shares: np.ndarray) -> list[int]:
    """The shortest run of neighbours that holds most; at an end, where that takes no more."""
    total = np.concatenate([[0.0], np.cumsum(shares)])
    best: tuple[int, int, list[int]] | None = None
    for start in range(len(shares)):
        stop = int(np.searchsorted(total, total[start] + _MOST))
        if stop >= len(total):
            break
        inside = int(start > 0 and stop < len(shares))
        found = (stop - start, inside, list(range(start, stop)))
        best = found if best is None or found[:2] < best[:2] else best
    last = len(shares) - _fewest(shares[::-1])
    ending = (len(shares) - last, 0, list(range(last, len(shares))))
    return min(filter(None, (best, ending)), key=lambda each: each[:2])[2]


def share_fields(covariance: EstimatedOperator, axes: InputAxes) -> dict[str, Any]:
    """The fields of a result that hold the energies of parts; empty where the estimate does not determine them."""
    divisions = divisions_of(axes)
    energies = covariance.energies(divisions) if divisions else None
    if energies is None:
        return {}
    return {
        "energies": energies.cpu().numpy(),
        "isotropic": np.concatenate([division.isotropic.numpy() for division in divisions]),
        "parts": tuple(f"{division.name}: {label}" for division in divisions for label in division.labels),
    }


def shares_of(parts: Sequence[str], energies: np.ndarray, isotropic: np.ndarray, axes: InputAxes) -> list[Shares]:
    """The divisions that a result holds."""
    names = [part.partition(": ")[0] for part in parts]
    by_name = {axis.name or f"axis {place + 1}": axis for place, axis in enumerate(axes.axes)}
    by_name["frequency"] = Axis("time")
    found = []
    for name in dict.fromkeys(names):
        at = [place for place, each in enumerate(names) if each == name]
        labels = tuple(parts[place].partition(": ")[2] for place in at)
        found.append(Shares(by_name.get(name, Axis(name)), name, labels, energies[:, at], isotropic[at]))
    return found
