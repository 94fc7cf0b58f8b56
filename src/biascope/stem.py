"""HOW: the first linear layer split off, so that the response to an impulse is read from its weights.

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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.family import Network
from biascope.weights import Params


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

        The layer must see the input itself and nothing else may: that is checked by comparing outputs, at the input
        and at a disturbed one.
        """
        first = _first_layer(network, x)
        if first is None:
            return None
        name, layer = first
        module = copy.deepcopy(network.module)
        if name:
            parent = module.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.Identity())
        else:
            module = nn.Identity()
        prefix = f"{name}." if name else ""
        own = {key for key in network.params if key.startswith(prefix) and "." not in key[len(prefix) :]}
        rest = dataclasses.replace(
            network, module=module, params={key: value for key, value in network.params.items() if key not in own}
        )
        stem = Stem(layer, name, rest)
        for inputs in (x, 0.1 + 0.7 * x.flip(-1)):
            try:
                outputs = rest(stem.apply(network.params, inputs))
                wanted = network(inputs)
            except (RuntimeError, ValueError, TypeError, IndexError):
                return None
            if outputs.shape != wanted.shape or not torch.allclose(outputs, wanted, rtol=1e-3, atol=1e-5):
                return None
        return stem

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The layer's outputs for inputs ``(n, …)``."""
        weight, bias = self._weights(params)
        if isinstance(self.layer, nn.Linear):
            return F.linear(x.flatten(1), weight, bias)
        layer = self.layer
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation)

    def _weights(self, params: Params) -> tuple[Tensor, Tensor | None]:
        prefix = f"{self.name}." if self.name else ""
        return params[f"{prefix}weight"], params.get(f"{prefix}bias")

    def without(self, network: Network) -> Network:
        """The rest of another member of the same family."""
        params = {key: network.params[key] for key in self.rest.params}
        return dataclasses.replace(self.rest, params=params, buffers=network.buffers)


def _first_layer(network: Network, x: Tensor) -> tuple[str, nn.Conv2d | nn.Linear] | None:
    """The first Linear or Conv2d that a forward pass reaches, if the split knows it."""
    reached: list[tuple[str, nn.Module]] = []
    handles = []
    for name, layer in network.module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            handles.append(
                layer.register_forward_pre_hook(lambda _, __, name=name, layer=layer: reached.append((name, layer)))
            )
    try:
        with torch.no_grad():
            network(x)
    finally:
        for handle in handles:
            handle.remove()
    if not reached or sum(name == reached[0][0] for name, _ in reached) > 1 or network.couples_inputs:
        return None
    name, layer = reached[0]
    if type(layer) is nn.Linear:
        return name, layer
    if type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same":
        return name, layer
    return None


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
        self._buffers: list[tuple[Tensor, tuple[Tensor, ...], Tensor]] = []
        if isinstance(stem.layer, nn.Conv2d):
            self._place(stem.layer)

    def _place(self, layer: nn.Conv2d) -> None:
        """For each slice of impulses: a buffer of responses, where taps land in it, and which tap lands there."""
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
            response = self.x.new_zeros(count, layer.out_channels, out_height, out_width)
            places = (pixel[inside] - first, row[inside], column[inside])
            self._buffers.append((response, places, tap[inside]))

    def stem_params(self) -> Params:
        """Weights of the stem's own shape (those of the split network's layer)."""
        prefix = f"{self.stem.name}." if self.stem.name else ""
        return {f"{prefix}{key}": value.to(self.x) for key, value in self.stem.layer.named_parameters()}

    def __call__(self, network: Network) -> Tensor:
        """The difference for one network: ``(1, D)``."""
        with torch.no_grad():
            rest = self.stem.without(network)
            weight, _ = self.stem._weights(network.params)
            base = self.stem.apply(network.params, self.x)
            return torch.cat([self._slope(rest, base, slope) for slope in self._responses(weight)])[None]

    def _responses(self, weight: Tensor) -> Iterator[Tensor]:
        """``h·L_i`` for one slice of impulses after another."""
        if isinstance(self.stem.layer, nn.Linear):
            yield from torch.split(weight.T * self.step, self.batch // 2)
            return
        taps = (weight.flatten(1) * self.step).T.contiguous()  # (taps, o)
        for response, (pixel, row, column), tap in self._buffers:
            response[pixel, :, row, column] = taps[tap]
            yield response

    def _slope(self, rest: Network, base: Tensor, shift: Tensor) -> Tensor:
        values = rest(torch.cat([base + shift, base - shift]))
        plus, minus = values.float().chunk(2) if values.dtype.itemsize == 2 else values.chunk(2)
        return (plus - minus) / (2 * self.step)
