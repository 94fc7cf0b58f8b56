"""A small encoder with heads, fine-tuned weights and samples: the example in docstrings of editing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from biascope.editing.heads import Head
from biascope.editing.tuning import TUNINGS
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.families.weights import Params


@dataclass(frozen=True)
class SmallEncoder:
    """An encoder of four numbers, with a head of three classes and samples for each task.

    Attributes:
        encoder: At θ₀.
        ends: Other weights, as if fine-tuned.
        heads: By task.
        samples: By task, around a place of its own.
    """

    encoder: Network
    ends: list[Params]
    heads: dict[str, Head]
    samples: dict[str, Tensor]

    @classmethod
    def drawn(cls, places: Mapping[str, float], *, ends: int, samples: int) -> SmallEncoder:
        """From the current state of the random numbers, with tasks around these places."""
        first, *others = (
            Network.of(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 6))) for _ in range(1 + ends)
        )
        heads = {name: Head(torch.randn(3, 6), torch.zeros(3)) for name in places}
        around = {name: torch.randn(samples, 4) + place for name, place in places.items()}
        return cls(first, [each.params for each in others], heads, around)

    def vectors(self, tasks: Iterable[str]) -> dict[str, dict[str, TaskVector]]:
        """Task vectors by tuning."""
        names = list(tasks)
        return {
            tuning: {
                name: TaskVector.between(self.encoder.params, self.ends[place + shift])
                for shift, name in enumerate(names)
            }
            for place, tuning in enumerate(TUNINGS)
        }
