"""How many networks to draw in a given time: as many as resolve directions, by a pilot whose draws are not part of the result."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from biascope.derivatives.covariance import GradientSampler
from biascope.families.family import Family
from biascope.results import registry
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.probe import Probe

WANTED = 10  # directions to resolve
_TIMED = 1000  # draws whose time is predicted from a few


@dataclass(frozen=True)
class Piloted:
    """How many networks to draw.

    Attributes:
        draws: So many.
        needed: What the pilot says resolves :data:`WANTED` directions; 0 where it does not tell.
        pilot: Draws of the pilot.
        minutes: The time that was given.
    """

    draws: int
    needed: int
    pilot: int
    minutes: float

    def told(self) -> str:
        """Why so many, in a sentence."""
        if not self.needed:
            why = f"as many as {self.minutes:g} minutes allow; a pilot of {self.pilot} others does not tell how many resolve directions"
        elif self.draws >= self.needed:
            why = f"a pilot of {self.pilot} others says that about so many resolve {WANTED} directions"
        else:
            why = f"as many as {self.minutes:g} minutes allow; about {self.needed:,} would resolve {WANTED} directions"
        return f"This scan draws {self.draws:,} networks: {why}."


def piloted(family: Family, probe: Probe, draws: int, *, minutes: float, readout: str, seed: int, run: Run) -> Piloted:
    """How many networks to draw for the mean gradient, kept for the next time.

    The pilot has a seed of its own, so that what it finds decides how many are drawn, and nothing of what they show.

    Args:
        family: The networks.
        probe: The inputs of each.
        draws: Of the pilot, and the fewest that are drawn after it.
        minutes: For the pilot and what is drawn after it.
        readout: How several outputs become one.
        seed: Random seed of the scan.
        run: Device, precision and folder.
    """
    own = seed_of(seed, "pilot")

    def plan(_: str) -> dict[str, torch.Tensor]:
        begin = time.perf_counter()
        sampler = GradientSampler(family, probe, estimator="exact", step=1.0, readout=readout, seed=own, run=run)
        each = sampler.expected_seconds(_TIMED) / _TIMED
        found = registry.find("mean_gradient")(family, probe, draws=draws, readout=readout, seed=own, run=run)
        left = 60 * minutes - (time.perf_counter() - begin)
        needed = found.draws_to_resolve(WANTED) or 0
        most = max(draws, int(left / each))
        return {"draws": torch.tensor([max(draws, min(needed or most, most)), needed])}

    trials = Trials("pilot", run, code=(piloted,), at=probe.few(), family=family, probe=probe, draws=draws, minutes=minutes,
        readout=readout, seed=own)  # fmt: skip
    [(chosen, needed)] = [outcome["draws"].tolist() for outcome in trials.outcomes(["draws"], plan)]
    return Piloted(chosen, needed, draws, minutes)
