"""Random views of characters and photographs: what the small ViT is pre-trained to tell apart."""

# n views · G characters · F fonts · M photographs · s side of a view

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from biascope.runs.randomness import generator_for

_CHUNK = 8192  # views at a time


@dataclass(frozen=True)
class Sources:
    """What views are taken of.

    Attributes:
        glyphs: Bytes ``(G, F, …, …)``: every character is a class, in every font.
        photographs: Bytes ``(M, 3, …, …)``.
        labels: ``(M,)`` class of each photograph, counting from 0.
        name: In words: what they are.
    """

    glyphs: Tensor
    photographs: Tensor
    labels: Tensor
    name: str

    @property
    def num_classes(self) -> int:
        """Characters and classes of photographs."""
        return len(self.glyphs) + int(self.labels.max()) + 1


def random_views(sources: Sources, num: int, *, size: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Views with the class of what they show: half of them of characters, half of photographs.

    A character is turned by up to 25°, scaled by 0.6 to 1.15, slanted and moved, drawn in a random colour on a random
    one, on white or black, or on a photograph, thinner or bolder, perhaps blurred. A photograph is turned by up to 25°, cropped to
    45 to 100 % of its side, perhaps mirrored, and its colours are scaled and shifted one by one, made grey, or inverted. All get
    a little noise.

    Args:
        sources: What is shown.
        num: How many views.
        size: Their side in pixels.
        seed: Random seed for everything random; views depend on the device type too.
        device: Where they are made and kept.

    Returns:
        Views from 0 to 1 in float16, ``(n, 3, s, s)``, in random order, and classes ``(n,)``.
    """
    glyphs, photographs = sources.glyphs.to(device), sources.photographs.to(device)
    labels = sources.labels.to(device)
    views = torch.empty(num, 3, size, size, dtype=torch.float16, device=device)
    classes = torch.empty(num, dtype=torch.int64, device=device)
    for part, start in enumerate(range(0, num, _CHUNK)):
        chance = _Chance(generator_for(device, seed, "views", part), min(_CHUNK, num - start))
        which = chance.below(len(glyphs)), chance.below(photographs.shape[0])
        scene = _photographed(photographs[which[1]], chance, size)
        drawn = _drawn(glyphs[which[0], chance.below(glyphs.shape[1])][:, None], scene, chance, size)
        is_glyph = chance.happens(0.5)
        noisy = torch.where(is_glyph[:, None, None, None], drawn, scene)
        noisy = noisy + 0.1 * chance.uniform(0, 1)[:, None, None, None] * chance.normal(3, size, size)
        stop = start + chance.num
        views[start:stop] = noisy.clamp(0, 1).half()
        classes[start:stop] = torch.where(is_glyph, which[0], len(glyphs) + labels[which[1]])
    return views, classes


class _Chance:
    """Random numbers, one or more for each view of a chunk."""

    def __init__(self, generator: torch.Generator, num: int) -> None:
        self._generator, self.num = generator, num

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        share = torch.rand(self.num, *shape, generator=self._generator, device=self._generator.device)
        return low + (high - low) * share

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.num, *shape, generator=self._generator, device=self._generator.device)

    def below(self, bound: int) -> Tensor:
        return torch.randint(bound, (self.num,), generator=self._generator, device=self._generator.device)

    def happens(self, probability: float) -> Tensor:
        return self.uniform(0, 1) < probability


def _warped(images: Tensor, chance: _Chance, size: int, scale: Tensor, slant: float, mirrored: bool) -> Tensor:
    """Images turned, scaled, slanted and moved, at a size."""
    angle = chance.uniform(-0.44, 0.44)
    flip = torch.where(chance.happens(0.5), -1.0, 1.0) if mirrored else torch.ones_like(angle)
    cos, sin, lean = angle.cos() * scale, angle.sin() * scale, chance.uniform(-slant, slant) * scale
    # How far the middle may move: a crop in its photograph, a character in its view.
    room = 0.05 + 0.7 * (1 - scale).abs()
    move = chance.uniform(-1, 1, 2) * room[:, None]
    rows = torch.stack((flip * cos, -sin + lean, move[:, 0], flip * sin, cos, move[:, 1]), 1)
    grid = F.affine_grid(rows.reshape(-1, 2, 3), [len(images), images.shape[1], size, size], align_corners=False)
    border = "reflection" if mirrored else "zeros"
    return F.grid_sample(images.float() / 255, grid, padding_mode=border, align_corners=False)


def _photographed(images: Tensor, chance: _Chance, size: int) -> Tensor:
    """Views of photographs."""
    x = _warped(images, chance, size, chance.uniform(0.45, 1.0), slant=0.15, mirrored=True)
    grey = x.mean(1, keepdim=True)
    x = torch.where(chance.happens(0.2)[:, None, None, None], grey, x)
    middle = x.mean((2, 3), keepdim=True)
    x = middle + (x - middle) * chance.uniform(0.5, 1.5, 3, 1, 1)  # contrast of each colour
    x = x + chance.uniform(-0.25, 0.25, 3, 1, 1)
    return torch.where(chance.happens(0.1)[:, None, None, None], 1 - x, x).clamp(0, 1)


def _drawn(glyphs: Tensor, scene: Tensor, chance: _Chance, size: int) -> Tensor:
    """Views of characters, some of them in front of a scene."""
    mask = _warped(glyphs, chance, size, 1 / chance.uniform(0.6, 1.15), slant=0.35, mirrored=False)
    bold, soft = F.max_pool2d(mask, 3, 1, 1), F.avg_pool2d(mask, 3, 1, 1)
    mask = torch.where(chance.happens(0.3)[:, None, None, None], bold, mask)
    mask = torch.where(chance.happens(0.3)[:, None, None, None], (1.6 * soft).clamp_max(1), mask)
    ink, paper = chance.uniform(0, 1, 3, 1, 1), chance.uniform(0, 1, 3, 1, 1)
    # Ink and paper apart in brightness: the one dark, the other light, either way round.
    dark = chance.happens(0.5)[:, None, None, None]
    ink, paper = torch.where(dark, 0.4 * ink, 0.6 + 0.4 * ink), torch.where(dark, 0.6 + 0.4 * paper, 0.4 * paper)
    plain = chance.happens(0.4)[:, None, None, None]  # white on black, or black on white
    ink, paper = torch.where(plain, (~dark).float(), ink), torch.where(plain, dark.float(), paper)
    in_front = chance.happens(0.35)[:, None, None, None] & ~plain
    paper = torch.where(in_front, 0.5 * paper + 0.5 * scene, paper.expand_as(scene))
    return ink * mask + paper * (1 - mask)
