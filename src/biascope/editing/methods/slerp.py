"""SLERP: along the great circle between two sets of weights, tensor by tensor."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from biascope.editing.layer_sums import dot
from biascope.editing.methods._method import Method, MovedTensor, Rule, Slice
from biascope.editing.methods._settings import MethodSetting

_FLAT = 1e-3  # share by which coefficients must differ from those of the straight line to be worth the name


class Slerp(Method):
    """``sin((1−t)Ω)/sin Ω θ_A + sin(tΩ)/sin Ω θ_B``, Ω the angle between the weights; with one model, from the base to it.

    The angle comes from ``‖θ_A − θ_B‖``, not from the cosine, which has no digits left for the small angles between fine-tuned
    models. Where a tensor is zero, or both point the same way, the line is straight.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        MethodSetting("t", 0.5, "place between the first model (0) and the second (1)"),
    )
    most = 2
    says = "sin((1−t)Ω)/sin Ω · θ_A + sin(tΩ)/sin Ω · θ_B in each tensor, Ω the angle between the weights"
    reference = "Shoemake (1985). Animating rotation with quaternion curves. SIGGRAPH."
    linear_from = 1.0  # cosine from which the line is straight

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._bends: list[tuple[float, float]] = []  # of each tensor: the angle, and how much the coefficients bend

    def rule(self, part: MovedTensor) -> Rule:
        """The combination with the coefficients of the sphere."""
        t, alone = self.values.one("t", part.name), len(self.values.models) == 1
        one = other = apart = 0.0
        for each in part.read():
            first, second = _ends(each, alone)
            gap = second - first
            one += dot(first, first)
            other += dot(second, second)
            apart += dot(gap, gap)
        angle = angle_between(math.sqrt(one), math.sqrt(other), math.sqrt(apart))
        straight = angle is None or math.cos(angle) >= self.linear_from
        left, right = (1 - t, t) if angle is None or straight else circle(t, angle)
        if angle is not None:
            self._bends.append((angle, abs(left + right - 1)))

        def changed(each: Slice) -> Tensor:
            deltas = each.deltas if not alone else [each.start * 0, *each.deltas]
            change = each.start * (left + right - 1)
            return change.add_(deltas[0], alpha=left).add_(deltas[1], alpha=right)

        return changed

    def doubts(self) -> list[str]:
        """Whether it is the mean."""
        if self._bends and (bend := max(bend for _, bend in self._bends)) < _FLAT:
            angle = math.degrees(max(angle for angle, _ in self._bends))
            return [
                f"{self.values.method} is the linear mean here: the angle between the weights is at most {angle:.2g} degrees, and the "
                f"coefficients differ by at most {bend:.1e} from those of a straight line."
            ]
        return []


class SlerpOfMergekit(Slerp):
    """mergekit's: a straight line from a cosine of 0.9995 on."""

    linear_from = 0.9995
    says = "as slerp, but a straight line where |cos Ω| > 0.9995"
    reference = "mergekit 0.1.5"


def _ends(each: Slice, alone: bool) -> tuple[Tensor, Tensor]:
    if alone:
        return each.start, each.start + each.deltas[0]
    return each.start + each.deltas[0], each.start + each.deltas[1]


def angle_between(one: float, other: float, apart: float) -> float | None:
    """The angle of a triangle between sides of two lengths, from the length of the third; ``None`` if a side is zero.

    Example:
        >>> round(angle_between(3.0, 4.0, 5.0) / math.pi, 9), angle_between(0.0, 1.0, 1.0)
        (0.5, None)
    """
    if not one or not other:
        return None
    sine = math.sqrt(max(apart**2 - (one - other) ** 2, 0.0) / (4 * one * other))  # of half the angle
    return 2 * math.asin(min(sine, 1.0))


def circle(t: float, angle: float) -> tuple[float, float]:
    """The coefficients of both ends at a place on a great circle; a straight line where there is no single circle.

    Example:
        >>> [round(each, 6) for each in circle(0.5, math.pi / 2)], circle(0.25, 0.0)
        ([0.707107, 0.707107], (0.75, 0.25))
    """
    if math.sin(angle) < 1e-8:
        return 1 - t, t
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


FORMS = {"": Slerp, ":mergekit": SlerpOfMergekit}
