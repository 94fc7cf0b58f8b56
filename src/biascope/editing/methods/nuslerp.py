"""NuSLERP: along the great circle between two task vectors."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from biascope.editing.layer_sums import dot
from biascope.editing.methods._method import Method, MovedTensor, Rule, constant, weighted_sum
from biascope.editing.methods._settings import MethodSetting
from biascope.editing.methods.slerp import angle_between, circle

_MOST = 10.0  # times the coefficients of a straight line, from which a great circle is hardly determined


class NuSlerp(Method):
    """``sin((1−t)Ω)/sin Ω τ_A + sin(tΩ)/sin Ω τ_B`` with ``t = w_B / (w_A + w_B)``, Ω the angle between the task vectors of a tensor.

    Where one of them is zero there is no angle, and the mean is linear.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = (MethodSetting("weight", 1.0, "weight of a model", each=True),)
    fewest, most = 2, 2
    says = "sin((1−t)Ω)/sin Ω · τ_A + sin(tΩ)/sin Ω · τ_B, Ω the angle between the task vectors, t = w_B/(w_A + w_B)"
    reference = "mergekit, method nuslerp"
    without_angle: ClassVar[float | None] = None  # the angle that a zero vector counts as

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._opposed: list[tuple[float, str]] = []  # the largest coefficient of a tensor, and its name

    def rule(self, part: MovedTensor) -> Rule:
        """The combination with the coefficients of the sphere."""
        first, second = self.values.each("weight", part.name)
        t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
        one = other = apart = 0.0
        for each in part.read():
            a, b = each.deltas
            one, other, apart = one + dot(a, a), other + dot(b, b), apart + dot(b - a, b - a)
        angle = angle_between(math.sqrt(one), math.sqrt(other), math.sqrt(apart))
        angle = self.without_angle if angle is None else angle
        weights = (1 - t, t) if angle is None else circle(t, angle)
        largest = max(map(abs, weights))
        if largest > _MOST * max(abs(1 - t), abs(t)):
            self._opposed.append((largest, part.name))
        return lambda each: weighted_sum(each.deltas, weights)

    def doubts(self) -> list[str]:
        """Where the task vectors are nearly opposite, so that no great circle is determined."""
        if not self._opposed:
            return []
        largest, name = max(self._opposed)
        return [
            f"In {len(self._opposed)} tensors, such as {name}, the task vectors point in nearly opposite directions. There the great "
            f"circle is determined by their rounding, and the coefficients are up to {largest:.2g}. Pass --method linear."
        ]


class NuSlerpOfMergekit(NuSlerp):
    """mergekit's: a zero task vector counts as orthogonal, so what one model alone changed gets 0.707 of it, not half."""

    settings: ClassVar[tuple[MethodSetting, ...]] = (
        *NuSlerp.settings,
        MethodSetting("nuslerp_flatten", 1.0, "one angle for a tensor, instead of one for each row", flag=True),
        MethodSetting("nuslerp_row_wise", 0.0, "one angle for each column of the stored matrix", flag=True),
    )
    says = "as nuslerp, but a zero task vector counts as orthogonal to the other"
    reference = "mergekit 0.1.5"
    without_angle = math.pi / 2

    def rule(self, part: MovedTensor) -> Rule:
        """The same by row or by column."""
        if self.values.one("nuslerp_flatten", part.name) or len(part.shape) < 1:
            return super().rule(part)
        axis = 0 if self.values.one("nuslerp_row_wise", part.name) else -1
        first, second = self.values.each("weight", part.name)
        t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
        a, b = part.deltas()
        units = [each / each.norm(dim=axis, keepdim=True).clamp(min=1e-7) for each in (a, b)]
        cosine = (units[0] * units[1]).sum(axis, keepdim=True).clamp(-1, 1)
        straight = 1 - cosine.square() <= 1e-16
        angle = torch.acos(torch.where(straight, 0.0, cosine))
        bent: Tensor = (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / torch.sin(angle)
        return constant(torch.where(straight, (1 - t) * a + t * b, bent))


FORMS = {"": NuSlerp, ":mergekit": NuSlerpOfMergekit}
