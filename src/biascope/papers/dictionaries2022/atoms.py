"""HOW: whether the atoms of networks look like faces, and by how far training turns them."""

# R networks · m faces · k atoms · n pixels · T thresholds

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.dictionary import dictionary
from biascope.measures.dictionary.result import Dictionary
from biascope.runs.run import Run

ATOMS = 10  # first ones, which are compared with faces


def contour_alignment(atoms: Tensor, face: Tensor) -> Tensor:
    """Whether the contours of atoms run along those of a face: ``Σ(∇φ·∇f)²/Σ|∇φ|²|∇f|²`` over the cells of the grid.

    1 where all gradients are parallel, ½ by chance. It does not depend on signs, nor on which frequencies an atom has.

    Args:
        atoms: ``(k, side, side)``.
        face: ``(side, side)``, the mean face.

    Returns:
        ``(k,)``.

    Example:
        >>> ramp = torch.arange(4.0)[:, None].expand(4, 4)
        >>> contour_alignment(torch.stack([torch.sin(ramp), ramp.T, ramp + ramp.T]), ramp).tolist()
        [1.0, 0.0, 0.5]
    """
    slopes, along = _slopes(atoms), _slopes(face)
    shared = (slopes * along).sum(-3).square().sum((-2, -1))
    return shared / (slopes.square().sum(-3) * along.square().sum(-3)).sum((-2, -1))


def _slopes(images: Tensor) -> Tensor:
    """Gradients at the centres of cells, ``(…, 2, side − 1, side − 1)``."""
    down, right = images.diff(dim=-2), images.diff(dim=-1)
    return torch.stack([down[..., :-1] + down[..., 1:], right[..., :-1, :] + right[..., 1:, :]], -3) / 2


def components(images: np.ndarray, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of images ``(m, side, side)``, and the same upside down, rows of unit length."""
    flat = (images - images.mean(0)).reshape(len(images), -1)
    # Through the smaller of the two Gram matrices.
    values, vectors = np.linalg.eigh(flat.T @ flat if flat.shape[1] <= len(flat) else flat @ flat.T)
    rows = vectors.T if flat.shape[1] <= len(flat) else vectors.T @ flat
    rows = rows[np.argsort(-values)[:count]]
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    flipped = rows.reshape(-1, *images.shape[1:])[:, ::-1].reshape(rows.shape)
    return rows, flipped


def turned_dimensions(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """By how many dimensions the span of the first k atoms has turned, ``k − ‖U_kᵀV_k‖²`` for k = 1, 2, … n.

    It is 0 where the two spans are the same, and k where they are orthogonal; for random atoms it is k(1 − k/n) on average.

    Args:
        before: U, the atoms as orthonormal rows, ``(n, n)``.
        after: V, likewise.

    Example:
        >>> turned_dimensions(np.eye(4), np.eye(4)[[1, 0, 2, 3]]).tolist()  # the first two change places
        [1.0, 0.0, 0.0, 0.0]
    """
    squares = (before @ after.T) ** 2
    shared = squares.cumsum(0).cumsum(1)
    return np.asarray(np.arange(1, len(before) + 1) - np.diagonal(shared))


@dataclass(frozen=True)
class Seen:
    """Faces seen through the dictionaries of networks."""

    dictionaries: Sequence[Dictionary]

    @property
    def concentration(self) -> np.ndarray:
        """Of each face ``(R, m)``."""
        return np.array([one.concentration[0] for one in self.dictionaries])

    @property
    def curve(self) -> np.ndarray:
        """λ as shares of the largest eigenvalue, down to 10⁻⁵, and E(λ), mean over faces and networks, ``(2, T)``."""
        thresholds = self.dictionaries[0].thresholds
        energy = np.mean([one.energy[0].mean(0) for one in self.dictionaries], 0)
        return np.stack([thresholds, energy])[:, thresholds >= 0.99e-5]

    @property
    def energy_on_small_eigenvalues(self) -> np.ndarray:
        """Energy of faces on eigenvalues below λ₁/1,000 ``(R,)``."""
        return np.array([1 - one.energy_above(1e-3)[0].mean() for one in self.dictionaries])

    @property
    def large(self) -> np.ndarray:
        """How many atoms have an eigenvalue of at least λ₁/1,000 ``(R,)``."""
        return np.array([(one.relative[0] >= 1e-3).sum() for one in self.dictionaries])

    @property
    def atoms(self) -> np.ndarray:
        """All that were kept, as rows ``(R, k, n)``."""
        return np.stack([one.atoms.reshape(len(one.atoms), -1) for one in self.dictionaries])

    @property
    def first_atoms(self) -> np.ndarray:
        """The first of them as pictures, ``(R, k, side, side)``."""
        return np.stack([one.atoms[:ATOMS].reshape(-1, *one.atom_shape) for one in self.dictionaries])

    def contours(self, face: Tensor) -> np.ndarray:
        """Contour alignment of the first atoms ``(R, k)``."""
        return contour_alignment(torch.from_numpy(self.first_atoms).double(), face).numpy()

    def held(self, images: Tensor) -> np.ndarray:
        """Share of the energy of faces, less their means, on the first atoms, mean over faces ``(R,)``."""
        flat = images.double().flatten(1).numpy()
        flat = flat - flat.mean(1, keepdims=True)
        shares = (np.einsum("rkn,mn->rmk", self.atoms[:, :ATOMS], flat) ** 2).sum(-1) / (flat**2).sum(1)
        return np.asarray(shares.mean(1))

    def likeness(self, upright: np.ndarray, upside_down: np.ndarray) -> np.ndarray:
        """Energy of the first atoms on components of faces, over that on the same upside down ``(R,)``."""
        on, against = (((self.atoms[:, :ATOMS] @ each.T) ** 2).sum((1, 2)) for each in (upright, upside_down))
        return np.asarray(on / against)

    def turned(self, end: Seen) -> np.ndarray:
        """By how many dimensions atoms have turned in the end: the most over all k with large eigenvalues ``(R,)``."""
        pairs = zip(self.atoms, end.atoms, self.large, strict=True)
        return np.array([turned_dimensions(before, after)[:large].max() for before, after, large in pairs])


def seen(networks: Sequence[Network], images: Tensor, run: Run, *, whole: bool = False) -> Seen:
    """Images through the dictionaries of networks, which keep their first atoms, or the whole of them."""
    count = images[0].numel() if whole else min(ATOMS, images[0].numel())
    # One by one: a dictionary keeps the atoms of its first network alone.
    families = [Family.point(network.as_module(), name="network") for network in networks]
    return Seen([dictionary(family, images, atoms=count, run=run) for family in families])
