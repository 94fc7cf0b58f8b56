"""What a library says of one of its models, and what a user asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from biascope.families.family import Family
from biascope.results.axes import Axis


@dataclass(frozen=True)
class Asked:
    """What a user asked for beside the name.

    Attributes:
        shape: Shape of one input.
        settings: Of the model.
        download: Whether weights and configurations may be fetched from a hub.
        full: Whether a model of ``hf-config`` has its library's own size.
    """

    shape: tuple[int, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    download: bool = False
    full: bool = False

    @property
    def named(self) -> dict[str, Any]:
        """The settings, and what was said beside them: what a name should tell."""
        return {**self.settings, **{name: True for name in ("download", "full") if getattr(self, name)}}

    @staticmethod
    def of(shape: tuple[int, ...] | None, settings: Mapping[str, Any] | None) -> Asked:
        """The same from settings, among them ``download`` and ``full``."""
        own = dict(settings or {})
        download, full = (bool(own.pop(name, False)) for name in ("download", "full"))
        return Asked(shape, own, download, full)


@dataclass(frozen=True)
class NamedModel:
    """A model of a library.

    Attributes:
        name: What to call it; sizes and readouts that the user did not choose are told here.
        build: Makes it: with initial weights, or with those that it came with.
        shape: Of one input.
        trained: Whether it came with weights.
        mean: Of each channel in the data that it was made for, in units of a pixel from 0 to 1; empty if that is not said.
        spread: Standard deviation of each channel, likewise.
        classes: Number of outputs, if they are classes.
        axes: What the axes of an input are.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    trained: bool = False
    mean: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    classes: int | None = None
    axes: tuple[Axis, ...] = ()

    def family(self, batchnorm: str = "eval") -> Family:
        """One network if it came with weights, else its law of initial weights."""
        if self.trained:
            found = Family.point(self.build(), self.name, batchnorm, build=self.build)
        else:
            found = Family.initialised(self.build, name=self.name, batchnorm=batchnorm)
        return dataclasses.replace(found, axes=self.axes)


def label_of(name: str, settings: Mapping[str, Any]) -> str:
    """A network's name with its settings: ``"lenet pooling=average"``."""
    return name + "".join(f" {key}={value}" for key, value in settings.items())


def image_shape(source: str, given: tuple[int, ...] | None, usual: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of an image that a model is asked to take, else the usual one.

    Raises:
        ValueError: If it is no shape of an image.
    """
    shape = given or usual
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"{source} takes images, channels × height × width, got {'×'.join(map(str, shape))}. Pass --input "
            f"{'x'.join(map(str, usual))}."
        )
    return shape[0], shape[1], shape[2]


def in_words(count: int) -> str:
    """A number of weights in words.

    Example:
        >>> in_words(4_385_920), in_words(6_738_415_616)
        ('4.4 million weights', '6.7 billion weights')
    """
    power = 9 if count >= 1e9 else 6
    return f"{count / 10**power:.{1 if count < 10 ** (power + 2) else 0}f} {'billion' if power == 9 else 'million'} weights"


def text_shape(source: str, given: tuple[int, ...] | None, width: int, tokens: int) -> tuple[int, int]:
    """Positions × width of the embedding of a text.

    Raises:
        ValueError: If another width is asked for.
    """
    if given is None:
        return tokens, width
    if len(given) != 2 or given[1] != width:
        raise ValueError(
            f"{source} takes embeddings of tokens, positions × {width}, got {'×'.join(map(str, given))}. Pass --input "
            f"{tokens}x{width}."
        )
    return given[0], math.prod(given[1:])
