"""The example of docs/merge_check.md: a LeNet that knows digits, tuned to four kinds of damaged digits, two pairs of them checked.

    python docs/make_merge_example.py FOLDER        # needs MNIST and Fashion-MNIST in BIASCOPE_DATA; some minutes on two cores

Writes models and sets into FOLDER, prints what the two commands of the page print, and draws docs/images/merge_check.png.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from biascope import data
from biascope.families import weights
from biascope.families.network import Network
from biascope.measures.merge_check.result import MergeCheck
from biascope.networks import builder
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

MEAN, SPREAD = 0.2, 0.33
KINDS = ("salt", "noisy", "bars", "inverted")


def damaged(images: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """Bytes of digits with white dots, noise, two white bars, or inverted."""
    stream = np.random.default_rng(seed)
    found = images.astype(float)
    if kind == "salt":
        found[stream.random(found.shape) < 0.1] = 255
    elif kind == "noisy":
        found += stream.normal(0, 60, found.shape)
    elif kind == "bars":
        for image, (row, column) in zip(found, stream.integers(0, 25, (len(found), 2)), strict=True):
            image[row : row + 3], image[:, column : column + 3] = 255, 255
    elif kind == "inverted":
        found = 255 - found
    return found.clip(0, 255).astype(np.uint8)


def task_of(images: np.ndarray, labels: np.ndarray) -> Arrays:
    """On the scale that the networks see."""
    x = (torch.from_numpy(images).float()[:, None] / 255 - MEAN) / SPREAD
    return Arrays({"train": (x, torch.from_numpy(labels).long())})


def written(folder: Path) -> None:
    """Models and sets."""
    digits, clothes = data.load("mnist"), data.load("fashion-mnist")
    parts = {split: [np.asarray(each) for each in digits.splits[split]] for split in ("train", "test")}
    images, labels = (part[:4000] for part in parts["train"])
    seen, answers = (part[:2000] for part in parts["test"])
    images, seen = (each.reshape(len(each), 28, 28) for each in (images, seen))
    run = Run(device="cpu")
    with forked_rng(0):
        start = Network.of(builder("lenet")(channels=1, image_size=28, outputs=10))
    recipe = Recipe("adam", 1e-3, steps=600, batch=64, loss="cross_entropy")
    base = fit(start, task_of(images, labels), recipe, seed=0, run=run).networks
    weights.save(base.params, folder / "base.safetensors", {"format": "pt"})
    tuning = Recipe("adam", 3e-4, steps=200, batch=64, loss="cross_entropy")
    for kind in KINDS:
        own = fit(base, task_of(damaged(images, kind, 1), labels), tuning, seed=1, run=run).networks
        weights.save(own.params, folder / f"{kind}.safetensors", {"format": "pt"})
        np.savez(folder / f"{kind}.npz", x_test=damaged(seen, kind, 2), y_test=answers)
    others = np.asarray(clothes.splits["test"][0])[:1000].reshape(1000, 28, 28)
    np.savez(folder / "clothes.npz", x_test=others, y_test=np.zeros(1000, np.int64))


def accuracy_of(folder: Path, kind: str) -> float:
    """Of a model on its own kind of digits."""
    network = Network.of(builder("lenet")(channels=1, image_size=28, outputs=10)).with_params(
        weights.load(folder / f"{kind}.safetensors")
    )
    held = np.load(folder / f"{kind}.npz")
    x, y = task_of(held["x_test"], held["y_test"]).splits["train"]
    with torch.no_grad():
        return round(float((network(x).argmax(1) == y).double().mean()), 3)


def checked(folder: Path, pair: tuple[str, str], *more: str) -> MergeCheck:
    """Run the command as a user would."""
    models, sets = [f"{kind}.safetensors" for kind in pair], [f"--data={kind}.npz" for kind in pair]
    out = f"check-{pair[0]}"
    known = [f"--accuracy={accuracy_of(folder, kind)}" for kind in pair]
    scale = f"{MEAN}:{SPREAD}"
    command = ["merge", "check", "base.safetensors", *models, *sets, *known, "--model", "lenet", "--pixels", scale]
    print("\n$ biascope " + " ".join([*command, *more]) + "\n", flush=True)
    subprocess.run([Path(sys.executable).with_name("biascope"), *command, *more, "--out", out], cwd=folder, check=True)
    return MergeCheck.load(folder / out / "result")


def drawn(checks: list[MergeCheck], path: Path) -> None:
    """Agreement and map of each, side by side."""
    rows = []
    for check in checks:
        pictures = list(check.plots().values())[:2]
        images = []
        for figure in pictures:
            buffer = io.BytesIO()
            figure.savefig(buffer, dpi=110, facecolor="white")
            images.append(Image.open(buffer).convert("RGB"))
        rows.append(images)
    width, height = (max(image.size[side] for row in rows for image in row) for side in (0, 1))
    sheet = Image.new("RGB", (2 * width, len(rows) * height), "white")
    for down, row in enumerate(rows):
        for across, image in enumerate(row):
            sheet.paste(image, (across * width, down * height + (height - image.size[1]) // 2))
    sheet.save(path)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "clothes.npz").is_file():
        written(folder)
    found = [checked(folder, ("salt", "noisy"), "--control", "clothes.npz"), checked(folder, ("bars", "inverted"))]
    drawn(found, Path(__file__).parent / "images" / "merge_check.png")
