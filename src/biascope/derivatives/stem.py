"""The first linear layer split off, so that the response to an impulse is read from its weights.

The difference estimator evaluates a network at ``x ± h e_i`` for every input entry. If the first layer is a Linear or a
Conv2d ``L``, then ``L(x ± h e_i) = L(x) ± h·L_i`` where ``L_i`` is a column of the weight matrix or a shifted copy of the
kernel: the layer that works at full resolution becomes almost free.
"""

# m members · D input size · o output channels

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.derivatives.gradients import forward_only
from biascope.families.network import Network
from biascope.families.weights import Params


@dataclass(frozen=True)
class Stem:
    """A network cut behind its first linear layer.

    Attributes:
        layer: The layer, for its settings.
        name: Its name in the network, under which its weights are found.
        rest: The network that takes the layer's outputs as its input.
    """

    layer: nn.Conv2d | nn.Linear
    name: str
    rest: Network

    @staticmethod
    def split(network: Network, x: Tensor) -> Stem | None:
        """Split one network at inputs ``(n, …)``, or ``None`` if it has no such layer in front.

        The layer must see the input itself and nothing else may, whatever the weights: the layer's input must lie in the
        memory of the network's, no gradient may reach the input around the layer, and with the layer's output held, the
        network's must stay the same when the input moves. Then the outputs of the two parts are compared with its own.
        """
        x = x.detach().contiguous()
        try:
            first = _first_layer(network, x)
            if first is None or _seen_elsewhere(network, first[1], x):
                return None
            stem = Stem(first[1], first[0], _rest(network, first[0]))
            for inputs in (x, *_elsewhere(x)):
                if not _agree(stem.rest(stem.apply(network.params, inputs)), network(inputs)):
                    return None
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            return None  # the rest does not take the layer's outputs, or reads the layer that is gone
        return stem

    def copied(self) -> Stem:
        """The same split with its own copy of the forward pass, for use in another thread."""
        return dataclasses.replace(self, rest=dataclasses.replace(self.rest, module=copy.deepcopy(self.rest.module)))

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The layer's outputs for inputs ``(n, …)``."""
        weight, bias = self.own_weights(params)
        if isinstance(self.layer, nn.Linear):
            return F.linear(x.flatten(1), weight, bias)
        layer = self.layer
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation)

    def own_weights(self, params: Params) -> tuple[Tensor, Tensor | None]:
        """The layer's weight and bias among a network's parameters."""
        prefix = f"{self.name}." if self.name else ""
        return params[f"{prefix}weight"], params.get(f"{prefix}bias")

    def without(self, network: Network) -> Network:
        """The rest of another member of the same family."""
        params = {key: network.params[key] for key in self.rest.params}
        return dataclasses.replace(self.rest, params=params, buffers=network.buffers)


def _first_layer(network: Network, x: Tensor) -> tuple[str, nn.Conv2d | nn.Linear] | None:
    """The first Linear or Conv2d that a forward pass reaches, if it sees the input and the split knows its kind."""
    if network.couples_inputs:
        return None
    reached: list[tuple[str, nn.Module, tuple[Any, ...]]] = []
    handles = []
    for name, layer in network.module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):

            def note(layer: nn.Module, given: tuple[Any, ...], name: str = name) -> None:
                reached.append((name, layer, given))

            handles.append(layer.register_forward_pre_hook(note))
    version = x._version
    try:
        with torch.no_grad():
            network(x)
    finally:
        for handle in handles:
            handle.remove()
    if not reached or x._version != version:
        return None
    name, layer, given = reached[0]
    if sum(other is layer for _, other, _ in reached) > 1 or _shares_weights(network.module, layer):
        return None
    # A contiguous view from the input's own beginning holds the input's very numbers, whatever they are.
    if len(given) != 1 or given[0].data_ptr() != x.data_ptr() or not given[0].is_contiguous():
        return None
    if type(layer) is nn.Linear and given[0].shape == x.flatten(1).shape:
        return name, layer
    if type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same":
        return (name, layer) if given[0].shape == x.shape else None
    return None


def _shares_weights(module: nn.Module, layer: nn.Module) -> bool:
    own = {id(parameter) for parameter in layer.parameters()}
    uses = [parameter for _, parameter in module.named_parameters(remove_duplicate=False) if id(parameter) in own]
    return len(uses) > len(own)


def _seen_elsewhere(network: Network, layer: nn.Module, x: Tensor) -> bool:
    """Whether the input reaches the output around the layer as well."""
    network = network.with_params({name: part.detach() for name, part in network.params.items()})
    handle = layer.register_forward_pre_hook(lambda _, given: tuple(part.detach() for part in given))
    try:
        with torch.enable_grad():
            if network(x.clone().requires_grad_()).requires_grad:
                return True
    finally:
        handle.remove()
    places = (x, *_elsewhere(x))
    return not all(_independent_behind(network, layer, place, places) for place in places)


def _independent_behind(network: Network, layer: nn.Module, place: Tensor, others: tuple[Tensor, ...]) -> bool:
    """Whether the network's output is the same at other inputs too, with the layer's output held at its value here."""
    held: list[Tensor] = []

    def hold(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        held.extend([] if held else [output.clone()])
        return held[0].clone()  # what follows may work in place

    handle = layer.register_forward_hook(hold)
    try:
        with torch.no_grad():
            wanted = network(place)
            return all(_agree(network(other), wanted) for other in others)
    finally:
        handle.remove()


def _elsewhere(x: Tensor) -> tuple[Tensor, ...]:
    """Other inputs of the same shape: disturbed a little, and far away with other signs."""
    return 0.1 + 0.7 * x.flip(-1), -50.0 - 3.0 * x.flip(-1)


def _agree(outputs: Tensor, wanted: Tensor) -> bool:
    """Whether outputs are the same up to rounding, on the scale of the largest."""
    if outputs.shape != wanted.shape:
        return False
    tolerance = 1e-3 if wanted.dtype.itemsize > 2 else 3e-2
    return bool((outputs - wanted).abs().max() <= tolerance * wanted.abs().max())


def _rest(network: Network, name: str) -> Network:
    """The network with an identity in the place of a layer."""
    module: nn.Module = nn.Identity()
    if name:
        module = copy.deepcopy(network.module)
        setattr(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], nn.Identity())
    prefix = f"{name}." if name else ""
    own = {key for key in network.params if key.startswith(prefix) and "." not in key[len(prefix) :]}
    params = {key: value for key, value in network.params.items() if key not in own}
    return dataclasses.replace(network, module=module, params=params)


class ImpulseDifference:
    """Central differences of one network after another, through the stem.

    The places where an impulse reaches the layer's outputs are the same for every member; only the kernel values
    written there change.

    Args:
        stem: The split of any member.
        x: One input ``(1, …)``.
        step: The half width ``h``.
        batch: Inputs in one forward pass of the rest.
    """

    def __init__(self, stem: Stem, x: Tensor, step: float, batch: int) -> None:
        self.stem, self.x, self.step, self.batch = stem, x, step, max(2, batch)
        self._slices: list[tuple[int, tuple[Tensor, ...], Tensor]] = []
        self._written: tuple[Tensor, ...] | None = None
        if isinstance(stem.layer, nn.Conv2d):
            self._place(stem.layer)

    def _place(self, layer: nn.Conv2d) -> None:
        """For each slice of impulses: its length, where taps land in its responses, and which tap lands there."""
        channels, height, width = self.x.shape[1:]
        out_height, out_width = self.stem.apply(self.stem_params(), self.x).shape[2:]
        (kh, kw), (sh, sw), (dh, dw) = layer.kernel_size, layer.stride, layer.dilation
        ph, pw = (0, 0) if isinstance(layer.padding, str) else layer.padding
        grid = torch.meshgrid(
            torch.arange(channels),
            torch.arange(height),
            torch.arange(width),
            torch.arange(kh),
            torch.arange(kw),
            indexing="ij",
        )
        c, i, j, a, b = (axis.flatten() for axis in grid)
        row, column = i + ph - a * dh, j + pw - b * dw
        hits = (row % sh == 0) & (column % sw == 0)
        row, column = row // sh, column // sw
        hits &= (row >= 0) & (column >= 0) & (row < out_height) & (column < out_width)
        c, i, j, a, b, row, column = (index[hits].to(self.x.device) for index in (c, i, j, a, b, row, column))
        pixel = (c * height + i) * width + j
        tap = (c * kh + a) * kw + b
        for first in range(0, channels * height * width, self.batch // 2):
            inside = (pixel >= first) & (pixel < first + self.batch // 2)
            count = min(self.batch // 2, channels * height * width - first)
            places = (pixel[inside] - first, row[inside], column[inside])
            self._slices.append((count, places, tap[inside]))
        # One for all slices: together they hold D × outputs numbers, gigabytes for a large image.
        self._buffer = self.x.new_zeros(self._slices[0][0], layer.out_channels, out_height, out_width)

    def stem_params(self) -> Params:
        """Weights of the stem's own shape (those of the split network's layer)."""
        prefix = f"{self.stem.name}." if self.stem.name else ""
        return {f"{prefix}{key}": value.to(self.x) for key, value in self.stem.layer.named_parameters()}

    def __call__(self, network: Network) -> Tensor:
        """The difference for one network: ``(1, D)``."""
        with forward_only(self.x.device):
            rest = self.stem.without(network)
            weight, _ = self.stem.own_weights(network.params)
            base = self.stem.apply(network.params, self.x)
            return torch.cat([self._slope(rest, base, slope) for slope in self._responses(weight)])[None]

    def _responses(self, weight: Tensor) -> Iterator[Tensor]:
        """``h·L_i`` for one slice of impulses after another."""
        if isinstance(self.stem.layer, nn.Linear):
            yield from torch.split(weight.T * self.step, self.batch // 2)
            return
        taps = (weight.flatten(1) * self.step).T.contiguous()  # (taps, o)
        for count, (pixel, row, column), tap in self._slices:
            if self._written is not None:  # by the slice before, or by one that failed half way
                self._buffer[self._written[0], :, self._written[1], self._written[2]] = 0.0
            self._written = (pixel, row, column)
            self._buffer[pixel, :, row, column] = taps[tap]
            yield self._buffer[:count]

    def _slope(self, rest: Network, base: Tensor, shift: Tensor) -> Tensor:
        values = rest(torch.cat([base + shift, base - shift]))
        plus, minus = values.float().chunk(2) if values.dtype.itemsize == 2 else values.chunk(2)
        return (plus - minus) / (2 * self.step)
