"""HOW the small ViT is pre-trained: on views of rendered characters and of photographs that are in none of the tasks."""

# n views · c classes

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from biascope import data, networks
from biascope.editing.encoder_source import VIT, VIT_FILE, VIT_MEAN, VIT_SPREAD, headless_vit, vit_input
from biascope.editing.encoders.encoder import Encoder
from biascope.families import weights
from biascope.families.network import Network
from biascope.papers.task_arithmetic2023.glyphs import glyph_characters, rendered_glyphs
from biascope.papers.task_arithmetic2023.views import Sources, random_views
from biascope.runs.identity import content_of
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.fit import Trajectory, fit
from biascope.training.recipe import Recipe

GLYPHS_FILE = "encoders/glyphs.npz"
SIDE = 64  # of the photographs that views are taken of


@dataclass(frozen=True)
class Pretraining:
    """How much of everything.

    Attributes:
        characters: Classes of characters.
        faces: Faces of CelebA, each a class.
        views: Views that are made, once; they are passed over again and again.
        steps: Iterations.
        batch: Views of an iteration.
        rate: The highest learning rate of AdamW.
    """

    characters: int = 1000
    faces: int = 1500
    views: int = 300_000
    steps: int = 2000
    batch: int = 1024
    rate: float = 1e-3


def pretraining_sources(plan: Pretraining, *, root: Path | str | None = None) -> Sources:
    """What the small ViT is pre-trained on, none of which is in the eight image tasks.

    | source | classes |
    |---|---|
    | letters and symbols of many scripts in five DejaVu fonts; no digits, no kana | one for each character |
    | faces of CelebA, grey, 64×64 | one for each face |
    | Olivetti faces, 64×64 | one for each of the 40 persons, in 10 photographs |
    | four Kodak photographs, colour, cut into squares of 64×64 and, shrunk to a half, of 128×128 | one for each square: 480 |

    Args:
        plan: How many characters and faces.
        root: Folder of data sets, with ``celeba_gray64.npz``, ``olivetti.npz`` and ``kodak.npz`` (or ``kodak/*.png``).
            Characters are read from ``encoders/glyphs.npz`` where :func:`save_glyphs` has put them, else rendered.

    Raises:
        ValueError: If a set is missing.
    """
    folder = data.data_root(root)
    celeba = data.load("celeba_gray64", root=folder).splits["train"][0][: plan.faces]
    olivetti, persons = data.load("olivetti", root=folder).splits["train"]
    if persons is None:
        raise ValueError("The Olivetti faces must have the person of each as its label, and have none. Add them as y.")
    squares = _squares(_kodak(folder))
    grey = np.concatenate((celeba, olivetti))
    photographs = np.concatenate((np.repeat(grey, 3, axis=1), squares))
    labels = (np.arange(len(celeba)), len(celeba) + persons, len(celeba) + persons.max() + 1 + np.arange(len(squares)))
    return Sources(
        torch.from_numpy(_glyphs(plan.characters, folder)),
        torch.from_numpy(photographs),
        torch.from_numpy(np.concatenate(labels)),
        f"{plan.characters:,} characters, {len(celeba):,} faces of CelebA, {persons.max() + 1} Olivetti persons, "
        f"{len(squares)} squares of Kodak photographs",
    )


def pretrained_vit(
    sources: Sources,
    plan: Pretraining,
    *,
    settings: dict[str, int] | None = None,
    seed: int = 0,
    run: Run | None = None,
) -> tuple[Encoder, Trajectory]:
    """A small ViT, trained to tell which character or photograph a random view shows.

    One cross-entropy over all classes, by the one training loop: AdamW with weight decay 0.05, a cosine schedule after a
    tenth of the iterations of warm-up, gradients clipped at norm 1. The last linear layer is thrown away; the class token is
    what is kept.

    Args:
        sources: What it sees; see :func:`pretraining_sources`.
        plan: How long.
        settings: Sizes of the ViT; :data:`biascope.editing.encoder_source.VIT` by default.
        seed: Random seed for the first weights, the views and their order.
        run: Device and precision.

    Returns:
        The encoder, and how its training went.

    Raises:
        DivergedError: If training left the finite numbers.
    """
    run, sizes = run or Run(), VIT | (settings or {})
    views, classes = random_views(sources, plan.views, size=sizes["image_size"], seed=seed, device=run.torch_device)
    mean, spread = (views.new_tensor(each)[:, None, None] for each in (VIT_MEAN, VIT_SPREAD))
    task = Arrays({"train": (views.sub_(mean).div_(spread), classes)}, name=f"views of {sources.name}")
    with forked_rng(seed_of(seed, "pre-training")):
        whole = networks.builder("vit")(outputs=sources.num_classes, **sizes)
    recipe = Recipe(
        "adamw",
        rate=plan.rate,
        schedule="cosine",
        warmup=plan.steps // 10,
        weight_decay=0.05,
        steps=plan.steps,
        batch=plan.batch,
        clip=1.0,
    )
    start = Network.of(whole).to(run.torch_device, torch.float32)
    trained = fit(start, task.to(run), recipe, seed=seed, run=run).require_finite()
    kept = Network.of(headless_vit(**sizes))
    params = {name: trained.networks.params[name].cpu() for name in kept.params}
    return Encoder(kept.with_params(params), vit_input(sizes["image_size"]), "small ViT", "image"), trained


def save_vit(
    encoder: Encoder,
    path: Path | str,
    *,
    settings: dict[str, int] | None = None,
    source: str = "",
    half: bool = False,
) -> None:
    """Write a ViT's weights for :func:`biascope.editing.encoder_source.encoder_of`, with its sizes and what it was trained on.

    Args:
        encoder: The ViT.
        path: A file name that ends in ``.safetensors``.
        settings: Its sizes, as :func:`pretrained_vit` was given them.
        source: What it was trained on, in words.
        half: Whether to write float16, half as large.
    """
    sizes = json.dumps(VIT | (settings or {}))
    params = {name: tensor.half() if half else tensor for name, tensor in encoder.network.params.items()}
    weights.save(params, path, {"settings": sizes, "trained_on": source})


def write_vit(
    root: Path | str,
    *,
    plan: Pretraining | None = None,
    settings: dict[str, int] | None = None,
    seed: int = 0,
    half: bool = False,
    run: Run,
) -> Path:
    """Pre-train the small ViT and put it where :func:`biascope.editing.encoder_source.encoder_of` finds it.

    The file says what it was trained on: sources with their digest, plan, seed, device, precision and versions.

    Args:
        root: Folder of data sets, with the sources; the weights go into its folder ``encoders``.
        plan: How long.
        settings: Sizes of the ViT.
        seed: Random seed.
        half: Whether to write float16, half as large. Everybody who reads the file then has the same rounded weights.
        run: Device and precision.
    """
    plan = plan or Pretraining()
    sources = pretraining_sources(plan, root=root)
    encoder, trained = pretrained_vit(sources, plan, settings=settings, seed=seed, run=run)
    facts = {
        "sources": sources.name,
        "digest of the sources": content_of((sources.glyphs, sources.photographs, sources.labels)),
        "plan": dataclasses.asdict(plan),
        "seed": seed,
        "last loss": round(float(trained.losses[-100:].mean()), 4),
        **run.describe(),
        "torch": str(torch.__version__),
    }
    path = Path(root) / VIT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    save_vit(encoder, path, settings=settings, source=json.dumps(facts), half=half)
    return path


def save_glyphs(num: int, root: Path | str) -> Path:
    """Render characters into a data folder, for machines without the packages that this takes."""
    path = Path(root) / GLYPHS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    characters = glyph_characters(num, seed=0)
    np.savez_compressed(path, glyphs=rendered_glyphs(characters), characters=np.array(list(characters)))
    return path


def _glyphs(num: int, folder: Path) -> np.ndarray:
    path = folder / GLYPHS_FILE
    if not path.is_file():
        return rendered_glyphs(glyph_characters(num, seed=0))
    with np.load(path, allow_pickle=False) as stored:
        glyphs: np.ndarray = stored["glyphs"]
    if len(glyphs) < num:
        raise ValueError(f"{path} must hold {num} characters, got {len(glyphs)}. Write it again with save_glyphs.")
    return glyphs[:num]


def _kodak(folder: Path) -> np.ndarray:
    """The photographs as bytes ``(n, 3, 512, 768)``."""
    if (folder / "kodak.npz").is_file():
        return data.load("kodak", root=folder).splits["train"][0]
    files = sorted((folder / "kodak").glob("*.png"))
    if not files:
        raise ValueError(
            f"{folder} must hold photographs of the Kodak set as kodak/*.png, and has none. Put them there."
        )
    from PIL import Image

    images = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    upright = [image if image.shape[1] >= image.shape[0] else image.transpose(1, 0, 2) for image in images]
    return np.stack(upright).transpose(0, 3, 1, 2)


def _squares(photographs: np.ndarray) -> np.ndarray:
    """Squares of the photographs at full and at half size, ``(n, 3, 64, 64)``."""
    whole = torch.from_numpy(np.ascontiguousarray(photographs)).float()
    halved = nn.functional.avg_pool2d(whole, 2)
    squares = [
        image.unfold(2, SIDE, SIDE).unfold(3, SIDE, SIDE).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, SIDE, SIDE)
        for image in (whole, halved)
    ]
    return torch.cat(squares).round().byte().numpy()
