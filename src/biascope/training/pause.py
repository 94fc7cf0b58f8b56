"""The whole state of the training of one network, saved at intervals so that it can resume."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from biascope.runs.identity import Identity
from biascope.runs.trials import read_sealed, tell_damage, write_sealed

SECONDS = 20.0  # between two writings


class Pause:
    """A file that holds an unfinished training.

    Args:
        path: Ends in ``.safetensors``.
        identity: Identity of the training; a file of another training is not read.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "unfinished.safetensors"
        >>> this, another = Identity("this", {}), Identity("another", {})
        >>> Pause(file, this).write(7, [torch.ones(2)], torch.zeros(7, 1))
        >>> state = [torch.zeros(2)]
        >>> Pause(file, this).restored(state)[0], state, Pause(file, another).restored(state)[0]
        (7, [tensor([1., 1.])], 0)
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path, self._identity, self._last = path, identity, time.monotonic()

    def restored(self, state: Sequence[Tensor], most: int | None = None) -> tuple[int, Tensor]:
        """Put the state back in place: iterations done, and their losses ``(T, 1)``; none where there is no such file.

        A state after more than ``most`` iterations is left where it is: nothing leads back from it.
        """
        nothing = 0, torch.zeros(0, 1)
        try:
            held, seal = read_sealed(self._path)
        except FileNotFoundError:
            return nothing
        except ValueError:
            tell_damage(self._path, "trained")
            return nothing
        if seal.get("work") != self._identity.name or not self._identity.agrees(json.loads(seal["outputs"])):
            return nothing  # of another training
        if most is not None and len(held["losses"]) > most:
            return nothing
        _set_random_state(held)
        with torch.no_grad():
            for place, tensor in enumerate(state):
                tensor.copy_(held[str(place)])
        return len(held["losses"]), held["losses"]

    def note(self, step: int, state: Sequence[Tensor], losses: Tensor) -> None:
        """Write the state if the interval has passed."""
        if time.monotonic() - self._last >= SECONDS:
            self.write(step, state, losses)

    def write(self, step: int, state: Sequence[Tensor], losses: Tensor) -> None:
        """Write the state after so many iterations."""
        held = {str(place): tensor.detach().cpu().contiguous().clone() for place, tensor in enumerate(state)}
        held["losses"] = losses[:step]
        held |= _random_state()
        write_sealed(self._path, held, {"work": self._identity.name, "outputs": json.dumps(self._identity.outputs)})
        self._last = time.monotonic()

    def finished(self) -> None:
        """Delete the file: nothing is left to resume."""
        self._path.unlink(missing_ok=True)


def _random_state() -> dict[str, Tensor]:
    """States of the generators that dropout draws from."""
    found = {"random cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["random cuda"] = torch.cuda.get_rng_state()
    return found


def _set_random_state(held: dict[str, Tensor]) -> None:
    torch.set_rng_state(held["random cpu"])
    if "random cuda" in held and torch.cuda.is_available():
        torch.cuda.set_rng_state(held["random cuda"])
