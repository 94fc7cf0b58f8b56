"""What the layer of a recorded call read, and the gradients of its weight and bias, sample by sample."""

# n samples · r batch rows per sample · S positions · f inputs of a unit · C outputs

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from biascope.kernels.uses import Call


def by_sample(tensor: Tensor, samples: int) -> Tensor:
    """``(n, S, width)`` of ``(n·r, …, width)``: all axes between are positions."""
    return tensor.reshape(samples, -1, tensor.shape[-1])


def patches(call: Call, samples: int) -> Tensor:
    """What each output position of a linear map or a convolution read: ``(n, S, groups·f)``."""
    if call.kind == "linear":
        return by_sample(call.inputs, samples)
    images = _padded(call).contiguous()
    (n, channels, height, width), strides = images.shape, images.stride()
    (tall, wide), step, gap = (both_ways(call, name) for name in ("kernel", "stride", "dilation"))
    rows = (height - gap[0] * (tall - 1) - 1) // step[0] + 1
    columns = (width - gap[1] * (wide - 1) - 1) // step[1] + 1
    # A view and one copy: several times faster than torch's unfold, which on a GPU goes image by image.
    windows = images.as_strided(
        (n, channels, tall, wide, rows, columns),
        (*strides[:2], gap[0] * strides[2], gap[1] * strides[3], step[0] * strides[2], step[1] * strides[3]),
    )
    read = windows.reshape(n, channels * tall * wide, rows * columns).transpose(1, 2)
    return read.reshape(samples, -1, read.shape[2])


def output_gradients(call: Call, samples: int) -> Tensor:
    """``(n, S, C)``."""
    if call.kind in ("convolution", "normalisation") and call.settings["function"] is not F.layer_norm:
        flat = call.gradient.flatten(2) if call.gradient.dim() > 2 else call.gradient.unsqueeze(2)
        return flat.transpose(1, 2).reshape(samples, -1, flat.shape[1])
    if call.settings["function"] is F.layer_norm:
        return by_sample(call.gradient.flatten(-len(call.settings["normalized_shape"])), samples)
    return by_sample(call.gradient, samples)


def both_ways(call: Call, name: str) -> tuple[int, int]:
    """A setting of a convolution, down and across; one-dimensional ones have height 1 and no padding above."""
    value = call.settings[name]
    if name == "kernel":
        value = value[2:]
    elif value is None:
        value = 1
    numbers = [value] if isinstance(value, int) else [int(number) for number in value]
    if call.settings["function"] is F.conv1d:
        return (0 if name == "padding" else 1), numbers[0]
    return numbers[0], numbers[-1]


def image_padding(call: Call) -> list[int]:
    """Left, right, top, bottom."""
    given = call.settings["padding"]
    if given in (None, "valid"):
        return [0, 0, 0, 0]
    if given == "same":  # what is odd goes to the right and to the bottom
        spans = [d * (k - 1) for k, d in zip(both_ways(call, "kernel"), both_ways(call, "dilation"), strict=True)]
        return [spans[1] // 2, spans[1] - spans[1] // 2, spans[0] // 2, spans[0] - spans[0] // 2]
    down, across = both_ways(call, "padding")
    return [across, across, down, down]


def _padded(call: Call) -> Tensor:
    images = call.inputs.unsqueeze(2) if call.settings["function"] is F.conv1d else call.inputs
    amounts = image_padding(call)
    return F.pad(images, amounts) if any(amounts) else images


def normalised(call: Call) -> Tensor:
    """What a normalisation multiplies by its scale."""
    settings, x = call.settings, call.inputs
    found: Tensor
    if settings["function"] is F.layer_norm:
        found = F.layer_norm(x, settings["normalized_shape"], eps=settings["eps"])
        return found
    if settings["function"] is F.group_norm:
        found = F.group_norm(x, settings["num_groups"], eps=settings["eps"])
        return found
    shape = (1, -1) + (1,) * (x.dim() - 2)
    mean, variance = (settings[name].reshape(shape) for name in ("running_mean", "running_var"))
    found = (x - mean) * torch.rsqrt(variance + settings["eps"])
    return found


def sample_gradients(call: Call, role: str, samples: int, first: int, last: int) -> Tensor:
    """Per-sample gradients by rows ``first … last−1`` of one call's weight or bias, ``(n, last − first, width)``."""
    if call.kind == "differentiation":
        return call.gradient.reshape(samples, call.settings["kernel"][0], -1)[:, first:last]
    back = output_gradients(call, samples)
    if role == "bias":
        return back.sum(1)[:, first:last, None]
    if call.kind == "normalisation":
        scaled = Call(call.kind, None, None, call.inputs, call.settings, normalised(call))
        return (back * output_gradients(scaled, samples)).sum(1)[:, first:last, None]
    if call.kind == "embedding":
        ids = call.inputs.reshape(samples, -1)
        found = (ids >= first) & (ids < last) & kept_ids(call, ids)
        rows = back.new_zeros(samples, last - first, back.shape[2])
        place = (ids - first).clamp(0, last - first - 1)[:, :, None].expand_as(back)
        return rows.scatter_add_(1, place, back * found[:, :, None])
    groups = call.settings.get("groups") or 1
    read = patches(call, samples)
    if groups == 1:
        return torch.bmm(back[:, :, first:last].transpose(1, 2), read)
    width, each = read.shape[2] // groups, back.shape[2] // groups
    read = read.reshape(samples, -1, groups, width)
    parts = [
        torch.bmm(back[:, :, max(first, g * each) : min(last, (g + 1) * each)].transpose(1, 2), read[:, :, g])
        for g in range(first // each, (last - 1) // each + 1)
    ]
    return torch.cat(parts, 1)


def kept_ids(call: Call, ids: Tensor) -> Tensor:
    """Which ids of an embedding have a gradient: all but the one that stands for padding."""
    padding = call.settings.get("padding_idx")
    if padding is None:
        return torch.ones_like(ids, dtype=torch.bool)
    kept: Tensor = ids != (padding if padding >= 0 else padding + int(call.settings["kernel"][0]))
    return kept


def weighs(call: Call, role: str) -> bool:
    """Whether a parameter is multiplied with what a call reads, position by position."""
    return role == "weight" and call.kind in ("linear", "convolution")
