"""Bytes of images as the input of an image encoder: one size, three channels, standardised."""

# n images · C channels · h, w pixels · s side

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

IMAGENET_MEAN, IMAGENET_SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CHUNK = 1024  # images at a time, so that what is in between takes little memory

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class ImageInput:
    """Turns bytes of images into the input of an encoder.

    The shorter side is brought to ``size`` (interpolated; averaged where the image shrinks, so that nothing aliases), the middle
    square taken, a grey channel repeated three times, and each channel standardised: ``(x/255 − mean)/spread``.

    Attributes:
        size: Side of the square in pixels.
        mean: Mean of each colour, on the scale from 0 to 1.
        spread: What to divide by.
        mode: ``"bilinear"`` or ``"bicubic"``.

    Example:
        >>> prepare = ImageInput(4, mean=(0.5, 0.5, 0.5), spread=(0.5, 0.5, 0.5))
        >>> prepare(np.full((2, 1, 8, 12), 255, np.uint8)).shape, float(prepare(np.zeros((1, 3, 2, 2), np.uint8)).min())
        (torch.Size([2, 3, 4, 4]), -1.0)
    """

    size: int
    mean: Triple = IMAGENET_MEAN
    spread: Triple = IMAGENET_SPREAD
    mode: str = "bilinear"

    def __call__(self, images: Any) -> Tensor:
        """Inputs ``(n, 3, s, s)`` of byte images ``(n, 1 or 3, h, w)``, on the device these are on.

        Raises:
            ValueError: If they are not such.
        """
        given = torch.from_numpy(np.ascontiguousarray(images)) if isinstance(images, np.ndarray) else images
        if (
            not isinstance(given, Tensor)
            or given.dtype != torch.uint8
            or given.dim() != 4
            or given.shape[1] not in (1, 3)
        ):
            came = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(
                f"Images must be uint8 (n, 1 or 3, h, w), got {came}. Pass the images of biascope.data.load."
            )
        # With the channels last, convolutions of encoders are 1.5 to 2.5 times faster on a CPU, and a GPU wants them so too.
        return torch.cat(
            [self._prepared(part).contiguous(memory_format=torch.channels_last) for part in torch.split(given, _CHUNK)]
        )

    def _prepared(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        x = images.float() / 255
        if min(height, width) != self.size:
            share = self.size / min(height, width)
            sides = [self.size if side == min(height, width) else round(side * share) for side in (height, width)]
            x = F.interpolate(x, sides, mode=self.mode, align_corners=False, antialias=True).clamp(0, 1)
        top, left = ((side - self.size) // 2 for side in x.shape[2:])
        x = x[..., top : top + self.size, left : left + self.size].expand(-1, 3, -1, -1)
        mean, spread = (x.new_tensor(each)[:, None, None] for each in (self.mean, self.spread))
        return (x - mean) / spread
