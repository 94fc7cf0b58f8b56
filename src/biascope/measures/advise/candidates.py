"""WHO: candidate networks for a signal, and the usual ones for a grid of a given size."""

# N samples of the longest side · d coordinates

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from biascope.families.family import Family
from biascope.families.source import family_of

SIRENS, FEATURES = 8, 6  # usual candidates of each kind
QUARTER = 0.25  # of the Nyquist frequency: where the usual candidates end
SPAN = 256.0  # between the largest and the smallest usual candidate, at most


@dataclass(frozen=True)
class _Kind:
    """A kind of network: what its number is, and how it is built."""

    words: str
    symbol: str
    model: str
    setting: str
    others: Mapping[str, Any]


KINDS = {
    "siren": _Kind("SIREN", "ω₀", "siren", "omega", {}),
    "ffn": _Kind("FFN", "σ", "coordinate_mlp", "sigma", {"encoding": "gaussian"}),
    "relu": _Kind("ReLU MLP", "", "coordinate_mlp", "", {"depth": 4}),
    "positional": _Kind("positional", "f₀", "coordinate_mlp", "frequency", {"encoding": "positional"}),
    "single": _Kind("single frequency", "f₀", "coordinate_mlp", "frequency", {"encoding": "single"}),
}


@dataclass(frozen=True)
class Candidate:
    """A network that may represent a signal.

    Attributes:
        kind: ``"siren"``, ``"ffn"`` (Gaussian Fourier features), ``"relu"``, ``"positional"`` or ``"single"``.
        value: Its ω₀, σ or f₀; nan for the ReLU MLP, which has no such number.

    Example:
        >>> Candidate("siren", 30.0).name, Candidate("relu").name
        ('SIREN ω₀=30', 'ReLU MLP')
    """

    kind: str
    value: float = math.nan

    @property
    def name(self) -> str:
        """The network and its setting in words."""
        kind = KINDS[self.kind]
        return f"{kind.words} {kind.symbol}={self.value:g}" if kind.symbol else kind.words

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of its builder."""
        kind = KINDS[self.kind]
        return {**kind.others, **({kind.setting: self.value} if kind.setting else {})}

    @property
    def model(self) -> str:
        """Options of ``biascope inr fit`` that train it."""
        return f"--model {KINDS[self.kind].model}" + "".join(
            f" --set {key}={value}" for key, value in self.settings.items()
        )

    def family(self, coordinates: int, *, outputs: int = 1, width: int = 256) -> Family:
        """Its networks at initialisation."""
        sizes = {"outputs": outputs, "width": width} | ({"features": width} if self.kind == "ffn" else {})
        family = family_of(KINDS[self.kind].model, shape=(coordinates,), settings={**self.settings, **sizes})
        return replace(family, name=self.name)


def usual_candidates(sizes: Sequence[int]) -> list[Candidate]:
    """SIRENs, Fourier feature networks and the ReLU MLP for a grid of so many points along each axis.

    With N samples along the longest side of length 1 the Nyquist frequency is N/2 cycles. The first layer of a SIREN holds
    frequencies up to ω₀/2πd along each axis, that of an FFN a spread of σ: both end at a quarter of Nyquist, ``ω₀ = dπN/4`` and
    ``σ = N/8``, and go down in equal ratios to ``ω₀ = 2.5d`` and ``σ = 1/4`` or a 256th of the largest.

    Example:
        >>> [candidate.value for candidate in usual_candidates((64, 64))][:8]
        [5.0, 7.7, 12.0, 18.0, 28.0, 43.0, 65.0, 100.0]
    """
    longest, axes = max(sizes), len(sizes)
    omegas = _ladder(2.5 * axes, QUARTER * axes * math.pi * longest, SIRENS)
    sigmas = _ladder(0.25, QUARTER * longest / 2, FEATURES)
    return [
        *(Candidate("siren", omega) for omega in omegas),
        *(Candidate("ffn", sigma) for sigma in sigmas),
        Candidate("relu"),
    ]


def _ladder(low: float, high: float, count: int) -> list[float]:
    """Numbers in equal ratios, of two digits."""
    low = max(min(low, high / 16), high / SPAN)
    return [float(f"{value:.2g}") for value in np.geomspace(low, high, count)]


def parse_candidates(text: str, sizes: Sequence[int]) -> list[Candidate]:
    """Candidates written ``siren,ffn=5,relu``: a kind alone stands for its usual numbers.

    Raises:
        ValueError: If there is no such kind, or a number is missing or out of its range.

    Example:
        >>> parse_candidates("siren=30,siren=60,relu", (64, 64))
        [Candidate(kind='siren', value=30.0), Candidate(kind='siren', value=60.0), Candidate(kind='relu', value=nan)]
    """
    found: list[Candidate] = []
    usual = usual_candidates(sizes)
    for word in filter(None, (part.strip() for part in text.split(","))):
        kind, equals, number = word.partition("=")
        if kind not in KINDS:
            known = ", ".join(KINDS)
            raise ValueError(f"A candidate must be one of {known}, got {kind!r}. Pass for example siren=30,ffn=5,relu.")
        if not equals:
            alike = [each for each in usual if each.kind == kind]
            if not alike:
                raise ValueError(f"Candidate {kind} needs a number, got none. Pass {kind}=1.")
            found += alike
            continue
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if kind == "relu" or not 0 < value < math.inf:
            remedy = "relu" if kind == "relu" else f"{kind}=30"
            raise ValueError(f"The candidate {word} must have a positive number, and relu none. Pass {remedy}.")
        found.append(Candidate(kind, value))
    if not found:
        raise ValueError(f"candidates must name at least one network, got {text!r}. Pass for example siren,ffn,relu.")
    return list(dict.fromkeys(found))
