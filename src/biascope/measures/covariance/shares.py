"""WHAT: how the energy of a gradient is shared among the named parts of an input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from biascope.derivatives.operators import EstimatedOperator
from biascope.results.axes import Axis, InputAxes
from biascope.results.estimate import Estimate, jackknife
from biascope.results.wording import listed, snake
from biascope.tasks.divisions import divisions_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 0.9  # of the energy: a set of places that holds it is worth a sentence, if it is at most half of all
_FEWEST_GROUPS = 8  # of draws: one half of them chooses places, the other measures their share
_NAMED = 4  # places that a sentence lists
_MORE, _CLEAR = 1.25, 0.05  # what stands out has so many times the even share, and so much more
#: Of the bands of an image, those below a quarter of the highest frequency along an axis.
LOW_BANDS = (0, 1)
_FEW, _SEVERAL = 0.25, 2.0  # of all frequencies, which hold so many times the even share


@dataclass(frozen=True, eq=False)
class Shares(ABC):
    """The energy in each part of a division, by groups of draws.

    Attributes:
        name: Of the division.
        labels: Of the parts.
        energies: ``(group, part)``.
        isotropic: The share of each part if no direction is preferred.
    """

    name: str
    labels: tuple[str, ...]
    energies: np.ndarray
    isotropic: np.ndarray

    bars: ClassVar[bool] = True  # whether they are drawn so, alone and beside those of other networks

    @property
    def key(self) -> str:
        """The key of the picture that shows it."""
        return f"sensitivity_by_{snake(self.name)}"

    @property
    @abstractmethod
    def caption(self) -> str:
        """The caption of its picture."""

    @property
    @abstractmethod
    def along(self) -> str:
        """What its parts are."""

    @property
    @abstractmethod
    def ordered(self) -> bool:
        """Whether its parts have an order, so that neighbours are alike."""

    @abstractmethod
    def sentence(self) -> str:
        """Where most of the sensitivity lies; empty where nothing stands out."""

    @abstractmethod
    def prefers(self) -> str:
        """What stands out, as one would say what the network looks at; empty if nothing does."""

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

    def figure(self, dark: bool) -> Figure:
        """Their picture."""
        from biascope.results import draw

        return draw.shares(self.each(), self.isotropic, self.labels, along=self.along, ordered=self.ordered, dark=dark)

    def even(self, chosen: Sequence[int]) -> float:
        """The share of some parts if no direction is preferred."""
        return float(self.isotropic[list(chosen)].sum())

    def of_first_half(self) -> np.ndarray | None:
        """The shares in one half of the groups, which chooses parts whose share the other half tells; ``None`` of too few groups."""
        first = np.maximum(self.energies[0::2].sum(0), 0.0)
        known = len(self.energies) >= _FEWEST_GROUPS and len(self.labels) > 1 and bool(first.sum() > 0)
        return first / first.sum() if known else None


def _of_the_sensitivity(share: Estimate) -> str:
    if share.low > 0.99:
        return "Over 99 % of the sensitivity"
    digits = int(share.high - share.low < 0.01)  # an interval from 95 to 95 % tells nothing
    value, low, high = (f"{100 * each:.{digits}f}" for each in (share.value, share.low, share.high))
    return f"{value} % (95 % CI {low} to {high} %) of the sensitivity"


@dataclass(frozen=True, eq=False)
class WaveShares(Shares):
    """Shares of the single spatial frequencies of an image.

    Attributes:
        image: Rows and columns of the image.
    """

    image: tuple[int, ...]

    bars: ClassVar[bool] = False

    @property
    @override
    def caption(self) -> str:
        return "Sensitivity to each spatial frequency"

    @property
    @override
    def along(self) -> str:
        return "spatial frequencies"

    @property
    @override
    def ordered(self) -> bool:
        return False

    @override
    def figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        ratio = np.zeros(self.image)
        whole = float(self.energies.sum())
        for label, energy, even in zip(self.labels, self.energies.sum(0), self.isotropic, strict=True):
            down, across = map(int, label.split())
            ratio[[down, -down], [across, -across]] = energy / whole / even if whole > 0 else 0.0
        return draw.frequency_map(ratio, dark=dark)

    def of_few(self) -> tuple[int, Estimate] | None:
        """How few frequencies hold half of the energy, and their share; ``None`` where it takes many.

        One half of the draws chooses them, the other tells their share. Networks with strides or patches have such frequencies.
        """
        if (first := self.of_first_half()) is None:
            return None
        order = np.argsort(-first)
        chosen = order[: int(np.searchsorted(np.cumsum(first[order]), 0.5)) + 1].tolist()
        share = self.share(chosen, slice(1, None, 2))
        few = len(chosen) <= _FEW * len(first) and share.low > _SEVERAL * self.even(chosen)
        return (len(chosen), share) if few else None

    @override
    def sentence(self) -> str:
        if (found := self.of_few()) is None:
            return ""
        return f"{_of_the_sensitivity(found[1])} is on {found[0]} of {len(self.labels)} spatial frequencies."

    @override
    def prefers(self) -> str:
        return (
            ""
            if (found := self.of_few()) is None
            else f"patterns of {found[0]} of {len(self.labels)} spatial frequencies"
        )


@dataclass(frozen=True, eq=False)
class PlaceShares(Shares):
    """Shares of the places of an axis, or of the frequencies along time.

    Attributes:
        axis: Whose places the parts are; for frequencies, that of time.
    """

    axis: Axis

    @property
    @override
    def caption(self) -> str:
        return "Sensitivity by frequency" if self.of_frequencies else f"Sensitivity by {self.axis.noun(1)}"

    @property
    @override
    def along(self) -> str:
        return "cycles in the whole input" if self.of_frequencies else self.axis.noun(2)

    @property
    @override
    def ordered(self) -> bool:
        return self.axis.ordered

    @property
    def of_frequencies(self) -> bool:
        """Whether its parts are frequencies along time, not places."""
        return self.name == "frequency"

    def concentrated(self) -> tuple[list[int], Estimate] | None:
        """The fewest parts that hold most of the energy, and their share; ``None`` where it takes more than half of all.

        Along time and the like, these are neighbours; frequencies are not, since strides fold high ones onto low ones. One half of the
        draws chooses them, the other tells their share.
        """
        if (first := self.of_first_half()) is None:
            return None
        together = self.ordered and not self.of_frequencies
        chosen = _window(first) if together else np.argsort(-first)[: _fewest(np.sort(first)[::-1])].tolist()
        if not chosen or len(chosen) > len(self.labels) / 2:
            return None
        share = self.share(chosen, slice(1, None, 2))
        return (sorted(chosen), share) if share.low > max(0.5, _MORE * self.even(chosen)) else None

    def unused(self) -> list[int]:
        """Parts along which every gradient is exactly zero, where there are others."""
        found = np.flatnonzero((self.energies == 0).all(0)).tolist()
        return found if len(found) < len(self.labels) else []

    @override
    def sentence(self) -> str:
        """Where most of the sensitivity lies, else where none of it lies; empty where it lies on no few places, and on all."""
        if (found := self.concentrated()) is None:
            unused = [] if self.of_frequencies else self.unused()
            return f"No drawn output changes with {self._where(unused)}." if unused else ""
        chosen, share = found
        return f"{_of_the_sensitivity(share)} is on {self._where(chosen)}{self._because(chosen)}."

    @override
    def prefers(self) -> str:
        return "" if (found := self.concentrated()) is None else self._where(found[0])

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


@dataclass(frozen=True, eq=False)
class ImageShares(Shares):
    """Shares of kinds of patterns in an image: bands of frequency, orientations, rings, brightness and colour."""

    @property
    @override
    def caption(self) -> str:
        return f"Sensitivity by {self.name}"

    @property
    @override
    def along(self) -> str:
        return {"spatial frequency": "cycles across the image", "position": "from the border to the centre"}.get(
            self.name, ""
        )

    @property
    @override
    def ordered(self) -> bool:
        return self.name in ("spatial frequency", "position")

    def standing_out(self) -> tuple[list[int], Estimate] | None:
        """The parts with more than an even share, and their share, where that is clearly more; ``None`` where it is not.

        Of parts in an order, these are the neighbours with the largest excess together. One half of the draws chooses them, the other
        tells their share.
        """
        if (first := self.of_first_half()) is None:
            return None
        excess = first - self.isotropic
        if self.ordered:
            runs = [(i, j) for i in range(len(excess)) for j in range(i + 1, len(excess) + 1) if j - i < len(excess)]
            start, stop = max(runs, key=lambda run: float(excess[run[0] : run[1]].sum()))
            chosen = list(range(start, stop))
        else:
            chosen = [part for part in np.flatnonzero(excess > 0).tolist() if self.labels[part] != "no stripes"]
        share, even = self.share(chosen, slice(1, None, 2)), self.even(chosen)
        return (chosen, share) if chosen and share.low > max(_MORE * even, even + _CLEAR) else None

    @override
    def sentence(self) -> str:
        if (found := self.standing_out()) is None:
            return ""
        chosen, share = found
        return f"{_of_the_sensitivity(share)} is {self._where(chosen)}, where an even spread has {100 * self.even(chosen):.0f} %."

    @override
    def prefers(self) -> str:
        """What stands out, as one would say what the network looks at; empty if nothing does.

        Example:
            >>> energies = np.tile([9.0, 1.0], (8, 1))
            >>> ImageShares("colour", ("brightness", "colour"), energies, np.array([1 / 3, 2 / 3])).prefers()
            'brightness'
        """
        if (found := self.standing_out()) is None:
            return ""
        chosen, _ = found
        if self.name == "spatial frequency":
            return (
                "smooth patterns"
                if chosen[0] == 0
                else "fine patterns"
                if chosen[-1] >= len(self.labels) - 2
                else "medium-sized patterns"
            )
        if self.name == "position":
            return "the middle of the image" if chosen[-1] == len(self.labels) - 1 else "the border of the image"
        return self._kinds(chosen)

    def _where(self, chosen: list[int]) -> str:
        ends = [self.labels[part].removeprefix("over ").split("–") for part in (chosen[0], chosen[-1])]
        if self.name == "spatial frequency":
            if chosen[-1] == len(self.labels) - 1:
                return f"at frequencies above {ends[0][0]} cycles across the image"
            if chosen[0] == 0:
                return f"at frequencies below {ends[1][1]} cycles across the image"
            return f"at frequencies from {ends[0][0]} to {ends[1][1]} cycles across the image"
        if self.name == "position":
            place = f"{100 * self.even(chosen):.0f} % of the pixels"
            if chosen[-1] == len(self.labels) - 1:
                return f"in the middle of the image ({place})"
            return f"on the border of the image ({place})" if chosen[0] == 0 else f"between border and centre ({place})"
        return f"on {self._kinds(chosen)}"

    def _kinds(self, chosen: list[int]) -> str:
        kinds = [self.labels[part] for part in chosen]
        return "stripes along the axes" if kinds == ["vertical stripes", "horizontal stripes"] else listed(kinds)


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
    by_name = {axis.name or f"axis {place + 1}": axis for place, axis in enumerate(axes.axes)} | {
        "frequency": Axis("time")
    }
    found: list[Shares] = []
    for name in dict.fromkeys(names):
        at = [place for place, each in enumerate(names) if each == name]
        labels = tuple(parts[place].partition(": ")[2] for place in at)
        held = name, labels, energies[:, at], isotropic[at]
        if name in by_name:
            found.append(PlaceShares(*held, by_name[name]))
        else:
            found.append(WaveShares(*held, axes.shape[-2:]) if name == "single frequency" else ImageShares(*held))
    return found
