"""HOW: grey faces, the networks that learn them, and how well they do in few iterations."""

# m faces · R networks

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.data import data_root
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.networks import builder
from biascope.results.estimate import Estimate
from biascope.results.finding import Tell
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.signals import Signal, SignalTask, psnr_of
from biascope.training.fit import Trajectory, fit
from biascope.training.recipe import Recipe

FEW = 3  # iterations of fine-tuning after which figure C.2 quotes the PSNR

# Fine-tuning as in appendix C.4.2: Adam from random weights, gradient descent from meta-learned ones.
FROM_RANDOM = Recipe("adam", rate=1e-4, schedule="constant", steps=10, batch=2**20, loss="squared")
FROM_META = Recipe("gd", rate=1e-2, schedule="constant", steps=10, loss="squared")

CELEBA, ELLIPSES = "CelebA, grey, centre crop", "ellipses"
#: Appendix C.5.1, and the released code for the inner loop. The main text has 1,000 faces to learn from.
SETUP: dict[str, Any] = {"data": CELEBA, "side": 64, "width": 256, "train": 5000, "validation": 100}
SETUP |= {"iterations": 5000, "rate": 1e-5, "batch of faces": 3, "inner steps": 2, "inner rate": 0.01}
# "networks" are meta-learned. Others, "pretrained_networks", learn one face each and are looked at after "marks" iterations.
SMOKE = SETUP | {"data": ELLIPSES, "side": 8, "width": 8, "train": 6, "validation": 3, "iterations": 3, "rate": 1e-3}
SMOKE |= {"networks": 2, "marks": (0, 2, 4), "pretrained_width": 8, "pretrained_networks": 2, "seed": 0}
LAPTOP = SETUP | {"side": 32, "width": 64, "train": 1000, "validation": 20, "iterations": 500, "rate": 1e-4}
LAPTOP |= {"networks": 3, "marks": (0, 10, 100, 1000), "pretrained_width": 256, "pretrained_networks": 6, "seed": 0}
PAPER = SETUP | {"networks": 3, "marks": (0, 10, 50, 100, 500, 1000)}
PAPER |= {"pretrained_width": 256, "pretrained_networks": 10, "seed": 0}
NEW_SEED = {"seed": 20261120}  # networks from seed 0 had been seen when bounds got their values


def images(plan: Mapping[str, Any], run: Run) -> tuple[Tensor, Tensor]:
    """Faces to learn from and to reconstruct, ``(m, side, side)`` from 0 to 1; or ellipses with eyes instead.

    Raises:
        ValueError: If there are none in the data folder.
    """
    train, validation, side = plan["train"], plan["validation"], plan["side"]
    if plan["data"] == ELLIPSES:
        drawn = _ellipses(train + validation, side)
        return drawn[:train], drawn[train:]
    path = data_root(run.data_root) / "celeba_gray64.npz"
    if not path.exists():
        raise ValueError(
            f"{path} must hold grey faces of CelebA, x of shape (m, 64, 64), and is not there. Put it there."
        )
    with np.load(path) as stored:
        x = stored["x"]
    block = x.shape[-1] // side
    chosen = torch.from_numpy(np.concatenate([x[:train], x[-validation:]])).float() / 255
    small = chosen.reshape(-1, side, block, side, block).mean((2, 4))
    return small[:train], small[train:]


def _ellipses(count: int, side: int) -> Tensor:
    """Bright ellipses with two dark spots, of random size and brightness."""
    axis = (torch.arange(side) + 0.5) / side - 0.5
    numbers = torch.rand(3, count, 1, 1, generator=generator_for(torch.device("cpu"), 0, "faces"))
    wide, high, bright = 0.25 + 0.1 * numbers[0], 0.35 + 0.1 * numbers[1], 0.4 + 0.4 * numbers[2]
    head = torch.sigmoid(20 * (1 - (axis[:, None] / high) ** 2 - (axis / wide) ** 2))
    eyes = torch.exp(-((axis[:, None] + 0.1) ** 2 + (axis.abs() - 0.12) ** 2) / 0.004)
    return 0.1 + bright * head * (1 - 0.8 * eyes)


def published_siren(path: Path | str) -> Network:
    """The SIREN whose meta-learned weights the authors published: 4 × 256, ω₀ = 30, output shifted by 0.5, on [0, 1)², rows first.

    Args:
        path: An ``.npz`` file of the layers' matrices, one column for each unit, and biases.

    Raises:
        ValueError: If the file does not hold them.
    """
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    places = {"linear": "linear1", **{f"{k}_linear": f"linear{k + 1}" for k in (1, 2, 3)}, "4_linear": "head"}
    named = {}
    for theirs, ours in places.items():
        for short, part in (("w", "weight"), ("b", "bias")):
            key = f"siren_siren_layer_{theirs}.{short}"
            if key not in arrays:
                raise ValueError(f"{path} must hold {key}, and does not. Pass the published weights.")
            named[f"{ours}.{part}"] = arrays[key].t().contiguous()
    module: nn.Module = builder("siren")(shift=0.5)
    module.load_state_dict(named)
    return Network.of(module)


def published_weights(run: Run) -> Network | None:
    """That SIREN, if its weights are in the data folder."""
    path = data_root(run.data_root) / "published" / "siren_maml_celeba.npz"
    return published_siren(path) if path.exists() else None


def siren(width: int) -> Callable[[], nn.Module]:
    """Builds the SIREN of the figures."""
    return functools.partial(builder("siren"), width=width, shift=0.5)


def task(faces: Tensor, run: Run, *, held_out: float = 0.0) -> SignalTask:
    """The task to reconstruct faces, with a share of their pixels held out."""
    return SignalTask.of([Signal(face[..., None], "faces") for face in faces], held_out=held_out, seed=0, run=run)


def members(stack: Network) -> list[Network]:
    """The networks of a stack one by one."""
    return [stack.member(index) for index in range(stack.members or 1)]


def removed(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The share of a squared error that is gone, in percent, from its PSNR before and after.

    Example:
        >>> removed(np.array(10.0), np.array(20.0)).item()
        90.0
    """
    return np.asarray(100 * (1 - 10 ** ((before - after) / 10)))


def fitted_levels(walk: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """The PSNR of each network on its own training image, dB, before and after training."""
    before, after = (10 * np.log10(1 / np.maximum(walk.losses[each].double().numpy(), 1e-12)) for each in (0, -1))
    return before, after


def finetuned(
    networks: Sequence[Network], validation: Tensor, recipe: Recipe, run: Run
) -> tuple[np.ndarray, np.ndarray]:
    """Learn each face from half of its pixels.

    Returns:
        PSNR on the pixels held out, dB, after few iterations and after all, ``(R, 2, m)``; and the share of the training error that
        is gone after few, percent, ``(R, m)``.
    """
    half, psnr, gone = task(validation, run, held_out=0.5), [], []
    for network in networks:
        copies = Family.point(network.as_module()).draw(len(validation), seed=0, run=run)
        done = fit(copies, half, recipe, seed=0, run=run, keep_at=(0, FEW))
        start, few, end = done.at(0), done.at(FEW), done.networks
        psnr.append([psnr_of(each, half, "test", run=run).cpu().numpy() for each in (few, end)])
        gone.append(removed(*(psnr_of(each, half, "train", run=run).cpu().numpy() for each in (start, few))))
    return np.array(psnr), np.array(gone)


def tell_error_removed(tell: Tell, name: str, share: Estimate, iterations: int = FEW) -> None:
    """The evidence that a network learned faces in few iterations."""
    key = f"{snake(name)}_error_removed_after_{iterations}_iterations"
    tell.about(name)(f"share of the training error removed after {iterations} iterations", share, "%", key=key)
