"""Layers rewritten for speed; results change by rounding only.

Under ``vmap`` over weights a convolution becomes one with as many groups as members, which cuDNN runs group after group.
Written as patches times kernel it is one batched matrix product: several times faster where each member sees few inputs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_Pair = tuple[int, int]


class _RewrittenConvolution(TorchFunctionMode, ABC):
    """Within this context two-dimensional convolutions are computed otherwise, except those in groups or padded by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace ``conv2d`` where its arguments allow it."""
        if func is F.conv2d or func is torch.conv2d:
            return self._conv2d(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _conv2d(
        self,
        func: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if groups != 1 or isinstance(padding, str) or input.dim() != 4:
            result: Tensor = func(input, weight, bias, stride, padding, dilation, groups)
            return result
        return self._rewritten(input, weight, bias, _pair(stride), _pair(padding), _pair(dilation))

    @abstractmethod
    def _rewritten(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, stride: _Pair, padding: _Pair, dilation: _Pair
    ) -> Tensor: ...


class ConvolutionAsProduct(_RewrittenConvolution):
    """Within this context plain two-dimensional convolutions are computed as patches times kernel.

    Grouped ones and those padded by name are left as they are.

    Example:
        >>> x, kernel = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
        >>> with ConvolutionAsProduct():
        ...     product = F.conv2d(x, kernel, None, 2, 1)
        >>> bool(torch.allclose(product, F.conv2d(x, kernel, None, 2, 1), atol=1e-5))
        True
    """

    def _rewritten(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, stride: _Pair, padding: _Pair, dilation: _Pair
    ) -> Tensor:
        kernel = weight.shape[2:]
        height, width = (
            (input.shape[axis + 2] + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
            for axis in (0, 1)
        )
        if tuple(kernel) == (1, 1) and padding == (0, 0):
            patches = input[:, :, :: stride[0], :: stride[1]].flatten(2)
        else:
            patches = F.unfold(input, tuple(kernel), dilation, padding, stride)  # (n, in·kh·kw, positions)
        outputs = weight.flatten(1) @ patches
        if bias is not None:
            outputs = outputs + bias[:, None]
        return outputs.reshape(*outputs.shape[:2], height, width)


class ConvolutionByShifts(_RewrittenConvolution):
    """Within this context plain two-dimensional convolutions are one product per network of kernel and shifted inputs.

    The shifted copies are laid out (channels · kernel, images · positions), so that under ``vmap`` each member has one large
    product rather than one small one per image, forward and backward: on a GPU several times faster than as many groups of
    few channels. Grouped convolutions and those padded by name are left as they are.

    Args:
        compiled: Whether a compiler will see it: it writes plain slices in one pass, and does not know our own backward.

    Example:
        >>> x, kernel = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
        >>> with ConvolutionByShifts():
        ...     product = F.conv2d(x, kernel, None, 2, 1)
        >>> bool(torch.allclose(product, F.conv2d(x, kernel, None, 2, 1), atol=1e-5))
        True
    """

    def __init__(self, compiled: bool = False) -> None:
        super().__init__()
        self._copies = _shifts if compiled else _forth

    def _rewritten(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, stride: _Pair, padding: _Pair, dilation: _Pair
    ) -> Tensor:
        above, left = padding
        padded = F.pad(input, (left, left, above, above)) if above or left else input
        geometry = (*weight.shape[2:], *stride, *dilation)
        shifted = self._copies(padded.transpose(0, 1)[None], geometry)[0]  # (channels, taps, n, height, width)
        height, width = shifted.shape[3:]
        outputs: Tensor = weight.flatten(1) @ shifted.reshape(weight[0].numel(), -1)
        if bias is not None:
            outputs = outputs + bias[:, None]
        return outputs.reshape(weight.shape[0], input.shape[0], height, width).transpose(0, 1)


def _windows(shape: torch.Size, geometry: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """Where each tap of a kernel looks, in the last two axes."""
    tall, wide, down, right, dilate_down, dilate_right = geometry
    height = (shape[-2] - dilate_down * (tall - 1) - 1) // down + 1
    width = (shape[-1] - dilate_right * (wide - 1) - 1) // right + 1
    return [
        (
            slice(i * dilate_down, i * dilate_down + (height - 1) * down + 1, down),
            slice(j * dilate_right, j * dilate_right + (width - 1) * right + 1, right),
        )
        for i in range(tall)
        for j in range(wide)
    ]


def _shifts(planes: Tensor, geometry: tuple[int, ...]) -> Tensor:
    """``(b, channels, n, h, w)`` to ``(b, channels, taps, n, height, width)``."""
    return torch.stack([planes[..., rows, columns] for rows, columns in _windows(planes.shape, geometry)], 2)


class _Shifts(torch.autograd.Function):
    """The same with a backward pass that adds in place: autograd's own fills one array of zeros per tap."""

    @staticmethod
    def forward(planes: Tensor, geometry: tuple[int, ...]) -> Tensor:
        return _shifts(planes, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        planes, ctx.geometry = inputs
        ctx.shape = planes.shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _back(gradient, ctx.shape, ctx.geometry), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, planes: Tensor, geometry: tuple[int, ...]) -> Any:
        merged = planes.movedim(in_dims[0], 0)
        copies = _forth(merged.flatten(0, 1), geometry)
        return copies.unflatten(0, merged.shape[:2]), 0


class _ShiftsBack(torch.autograd.Function):
    """The sum of all shifted copies, each put back to where it came from."""

    @staticmethod
    def forward(gradient: Tensor, shape: torch.Size, geometry: tuple[int, ...]) -> Tensor:
        total = gradient.new_zeros(shape)
        for tap, (rows, columns) in enumerate(_windows(shape, geometry)):
            total[..., rows, columns] += gradient[:, :, tap]
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, _, ctx.geometry = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _forth(gradient, ctx.geometry), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, gradient: Tensor, shape: torch.Size, geometry: tuple[int, ...]) -> Any:
        merged = gradient.movedim(in_dims[0], 0)
        flat = torch.Size((merged.shape[0] * shape[0], *shape[1:]))
        total = _back(merged.flatten(0, 1), flat, geometry)
        return total.unflatten(0, merged.shape[:2]), 0


_forth: Any = _Shifts.apply
_back: Any = _ShiftsBack.apply


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


class PoolingBySlices(TorchFunctionMode):
    """Within this context max-pooling of disjoint windows is the maximum of shifted slices: forward passes on a CPU only.

    PyTorch's own kernel walks window by window and keeps the places of the maxima; without a backward pass nobody asks
    for them, and whole slices are compared many times faster. Values are the same bit for bit.

    Example:
        >>> x = torch.randn(2, 3, 9, 8)
        >>> with PoolingBySlices():
        ...     pooled = F.max_pool2d(x, 2)
        >>> bool(torch.equal(pooled, F.max_pool2d(x, 2)))
        True
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace ``max_pool2d`` where its windows are disjoint and whole."""
        if func is F.max_pool2d or func is torch.max_pool2d:
            return _max_pool2d(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _max_pool2d(
    func: Any,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    kernel = _pair(kernel_size)
    disjoint = stride in (None, []) or _pair(stride) == kernel
    plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode and not return_indices
    fits = all(size <= length for size, length in zip(kernel, input.shape[-2:], strict=True))
    if not disjoint or not plain or not fits or max(kernel) > 4:
        extra = {"return_indices": True} if return_indices else {}
        return func(input, kernel_size, stride or kernel_size, padding, dilation, ceil_mode, **extra)
    height, width = (length // size * size for length, size in zip(input.shape[-2:], kernel, strict=True))
    whole = input[..., :height, :width]
    rows = functools.reduce(torch.maximum, [whole[..., first :: kernel[0], :] for first in range(kernel[0])])
    return functools.reduce(torch.maximum, [rows[..., first :: kernel[1]] for first in range(kernel[1])])
