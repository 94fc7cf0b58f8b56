"""HOW: the first convolution of a network: responses of its channels to patches, and their effect on the output."""

# K channels · P patches · n inputs · o outputs

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.families.network import Network
from biascope.runs.failures import forward_pass
from biascope.runs.randomness import generator_for

_AT_ONCE = 64  # inputs of one backward pass


@dataclass(frozen=True)
class FirstConvolution:
    """The first convolution that an input meets, with the BatchNorm right behind it.

    Attributes:
        name: Name of the convolution in the network.
        layer: The convolution, for its settings.
        norm: Name of the BatchNorm that takes its output, or ``None``.

    Example:
        >>> module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        >>> first = FirstConvolution.of(Network.of(module), torch.ones(1, 1, 8, 8), "small")
        >>> first.name, first.norm, first.patch_shape
        ('0', '1', (1, 3, 3))
    """

    name: str
    layer: nn.Conv2d
    norm: str | None

    @staticmethod
    def of(network: Network, x: Tensor, who: str) -> FirstConvolution:
        """Find it by a forward pass of one network at inputs ``(n, C, H, W)``; ``who`` names the network in errors.

        Raises:
            ValueError: If the network has no convolution, or its first one sees something else than the input.
        """
        if network.couples_inputs:
            raise ValueError(
                f"BatchNorm of {who} must use stored statistics for responses to single patches, but it uses those of each input. "
                "Pass batchnorm='eval'."
            )
        met: list[tuple[str, nn.Module, Tensor, Any]] = []

        def note(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
            return lambda layer, given, output: met.append((name, layer, given[0].detach().clone(), output.clone()))

        layers = {n: m for n, m in network.module.named_modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)}
        with contextlib.ExitStack() as hooks, torch.no_grad():
            for name, layer in layers.items():
                hooks.callback(layer.register_forward_hook(note(name)).remove)
            shape = "×".join(map(str, x.shape[1:]))
            with forward_pass(f"{who} must accept inputs of shape {shape}", "Pass the shape that it was built for."):
                network(x.clone())
        places = [place for place, entry in enumerate(met) if isinstance(entry[1], nn.Conv2d)]
        if not places:
            raise ValueError(
                f"{who} must have a convolution of images (Conv2d) whose channels can detect patches, but has none. "
                "Pass a convolutional network."
            )
        name, found, seen, output = met[places[0]]
        assert isinstance(found, nn.Conv2d)
        uses = sum(entry[1] is found for entry in met)
        if seen.shape != x.shape or not torch.equal(seen, x) or uses > 1 or _weight_name(name) not in network.params:
            raise ValueError(
                f"The first convolution of {who} must see the input itself, once, with its own weights, but {name!r} does not. "
                "Move earlier steps, such as a normalisation, to the data."
            )
        after = met[places[0] + 1 : places[0] + 2]
        taken = bool(after) and isinstance(after[0][1], nn.BatchNorm2d) and torch.equal(after[0][2], output)
        return FirstConvolution(name, found, after[0][0] if taken else None)

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what one channel sees at one place."""
        height, width = (d * (k - 1) + 1 for d, k in zip(self.layer.dilation, self.layer.kernel_size, strict=True))
        return self.layer.in_channels, height, width

    @property
    def stride(self) -> tuple[int, int]:
        """Steps down and across between the places that the layer looks at."""
        return self.layer.stride[0], self.layer.stride[1]

    def check(self, shape: tuple[int, ...], who: str) -> None:
        """Check that patches of a shape fit the layer.

        Raises:
            ValueError: If they do not fit.
        """
        if tuple(shape) != self.patch_shape:
            wanted, came = ("×".join(map(str, each)) for each in (self.patch_shape, shape))
            raise ValueError(
                f"Patches must have the shape {wanted} that a channel of the first convolution of {who} sees (channels × height × "
                f"width), got {came}. Cut patches of that size."
            )

    def responses(self, network: Network, pixels: Tensor) -> Tensor:
        """``w_k·p_i + b_k``, after BatchNorm where it follows and before the activation, of one network: ``(K, P)``.

        Args:
            network: One member.
            pixels: ``(P, C, h, w)``.
        """
        weight = network.params[_weight_name(self.name)]
        bias = network.params.get(_weight_name(self.name).removesuffix("weight") + "bias")
        with torch.no_grad():
            maps = F.conv2d(
                pixels.to(weight), weight, bias, 1, 0, self.layer.dilation, self.layer.groups
            )  # (P, K, 1, 1)
            if self.norm is not None:
                prefix, state = f"{self.norm}.", network.state
                own = {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
                maps = torch.func.functional_call(network.module.get_submodule(self.norm), own, (maps,))
        return maps[:, :, 0, 0].T.double()

    def weights(self, network: Network, x: Tensor, combination: Tensor) -> tuple[Tensor, Tensor]:
        """Effect of each channel on the output: a weight, and how consistent its sign is.

        With ``f = Σ_o c_o·output_o`` and ``z_k`` the map of channel k that :meth:`responses` are values of,
        ``D_k(x) = Σ_places ∂f/∂z_k``; the weight is the mean of ``D_k`` over the inputs at which the channel reaches the output
        (some derivative is not 0), divided by the mean of its magnitude over channels. Of the network
        ``Σ_k a_k max_places σ(w_k·x)`` with ``a = ±1`` it is ``a_k``, for every channel that is ever active; 0 for others.
        The second number is ``|Σ_x D_k| / Σ_x Σ_places |∂f/∂z_k|``.

        Args:
            network: One member.
            x: ``(n, C, H, W)``.
            combination: ``c``, ``(o,)``.

        Returns:
            Two tensors ``(K,)`` in float64.
        """
        sums = torch.zeros(3, self.layer.out_channels, dtype=torch.float64, device=x.device)
        for part in torch.split(x, _AT_ONCE):
            with self._shifted(network.module) as shifts:
                outputs = network(part).flatten(1)  # (n, o)
                (slopes,) = torch.autograd.grad((outputs @ combination.to(outputs)).sum(), shifts)  # (n, K, H, W)
            slopes = slopes.flatten(2).double()
            total = slopes.sum(2)  # (n, K)
            sums += torch.stack([total.sum(0), (slopes != 0).any(2).sum(0), slopes.abs().sum((0, 2))])
        mean = sums[0] / sums[1].clamp(min=1)
        reached = sums[1] > 0
        scale = mean.abs().sum() / reached.sum().clamp(min=1)
        safe = torch.where(sums[2] > 0, sums[2], 1.0)
        return mean / torch.where(scale > 0, scale, 1.0), sums[0].abs() / safe

    def shuffled(self, network: Network, seed: int) -> Network:
        """The same network with the entries of each of its first filters in random order."""
        name = _weight_name(self.name)
        weight = network.params[name]
        flat = weight.flatten(1)
        order = torch.rand(flat.shape, generator=generator_for(torch.device("cpu"), seed, "shuffled filters")).argsort(
            1
        )
        return network.with_params(
            {**network.params, name: flat.gather(1, order.to(flat.device)).reshape(weight.shape)}
        )

    @contextlib.contextmanager
    def _shifted(self, module: nn.Module) -> Iterator[list[Tensor]]:
        """Add to the map, for as long as it takes, a zero that derivatives can be taken by."""
        shifts: list[Tensor] = []

        def shift(layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
            shifts.append(torch.zeros_like(output, requires_grad=True))
            return output + shifts[-1]

        handle = module.get_submodule(self.name if self.norm is None else self.norm).register_forward_hook(shift)
        try:
            with torch.enable_grad():
                yield shifts
        finally:
            handle.remove()


def combination_of(outputs: int, positive: tuple[int, ...] | None, classes: int | None = None) -> Tensor:
    """The scalar that stands for the positive classes: the mean of their outputs minus the mean of the others, ``(o,)``.

    One output is the scalar itself. Of two, the second stands for all positive classes, unless there are but two classes and the
    positive one is named.

    Args:
        outputs: Number of outputs of the network.
        positive: Classes set against the rest.
        classes: Classes of the data, ``None`` without data.

    Raises:
        ValueError: If outputs and classes do not fit.

    Example:
        >>> combination_of(4, (0, 1)).tolist(), combination_of(2, (5, 6, 7), 10).tolist(), combination_of(2, (0,), 2).tolist()
        ([0.5, 0.5, -0.5, -0.5], [-1.0, 1.0], [1.0, -1.0])
    """
    if outputs == 1:
        return torch.ones(1, dtype=torch.float64)
    if outputs == 2 and (positive is None or (classes or 2) > 2):
        return torch.tensor([-1.0, 1.0], dtype=torch.float64)
    chosen = torch.tensor([place in (positive or ()) for place in range(outputs)])
    if (classes or 0) > outputs or int(chosen.sum()) != len(set(positive or ())) or chosen.all() or not chosen.any():
        raise ValueError(
            f"A network must have one output, two outputs, or one for each class with some classes positive, got {outputs} outputs for "
            f"{classes or 'unknown'} classes and positive={positive}. Name the positive classes, or pass a network with one output."
        )
    return chosen.double() / chosen.sum() - (~chosen).double() / (~chosen).sum()


def _weight_name(name: str) -> str:
    return f"{name}.weight" if name else "weight"
