"""EfficientNet-Lite of its library, up to the pooled last layer, and the law of its random weights."""

from __future__ import annotations

from math import sqrt
from typing import Any

from torch import nn

from biascope.families.libraries.packages import imported
from biascope.runs.randomness import forked_rng

HEAD = "_fc"
# Of the second moment that a residual branch adds, at random weights: nine of them in sequence then stay below ReLU6's bound.
_RESIDUAL_GAIN = 0.5


def efficientnet_lite(version: int) -> nn.Module:
    """EfficientNet-Lite without its last linear layer: images ``(n, 3, h, w)`` to features ``(n, 1280)``.

    Padding is "same" as TensorFlow has it, for any size of images. Random weights follow He's law, var = 2/fan-in before ReLU6 and
    1/fan-in (a half of it in residual branches) otherwise: with BatchNorm at its initial statistics, PyTorch's default law would let
    the signal vanish. The numbers depend on the state of torch's generator alone.

    Args:
        version: 0 or 2.

    Raises:
        ValueError: If the library is not installed.

    Reference:
        Tan & Le, EfficientNet: rethinking model scaling for convolutional neural networks, ICML 2019; Lite of its released code.
    """
    name = f"efficientnet-lite{version}"
    library = imported("efficientnet_lite_pytorch", name)
    with forked_rng(0):
        module: nn.Module = library.EfficientNet.from_name(name, image_size=None)
    setattr(module, HEAD, nn.Identity())
    for where, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()  # as where a layer is made: published figures have what is drawn after that
            nn.init.normal_(layer.weight, std=sqrt(_gain(module, where) / layer.weight[0].numel()))
    return module


def _gain(module: nn.Module, where: str) -> float:
    """The second moment of a convolution's outputs, in that of its inputs."""
    parent, _, name = where.rpartition(".")
    if name != "_project_conv":
        return 2
    block: Any = module.get_submodule(parent)
    shape = block._block_args
    return _RESIDUAL_GAIN if shape.stride == 1 and shape.input_filters == shape.output_filters else 1
