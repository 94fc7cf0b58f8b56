"""What the figures of chapter 6 run: encoders that can be had, their tasks and fine-tuning, beside what the authors ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from biascope.editing.tasks import TEXT_TASKS
from biascope.editing.tuning import tuning_recipe
from biascope.results.claim import EFFORTS
from biascope.results.plan import Plan

CNN, VIT, TEXT = "EfficientNet-Lite0", "small ViT", "MiniLM-L6"
SIZES = (CNN, "EfficientNet-Lite2")  # one architecture in two sizes
TEXTS = ("MiniLM-L3", TEXT)  # encoders of texts, from small to large
WAYS = ("non-linear", "post-hoc", "linearised")
CONTROL = "cifar10"  # of negation: the task furthest from digits, signs, letters and textures
SHOTS = 4  # samples of each class that a head is fitted on
NEAR_START = 4  # coefficients near 0 that every search tries besides
PAIR, TEXT_PAIR = ("mnist", "gtsrb"), ("sst2", "trec")
_TASKS = (*PAIR, "fashion-mnist", "dtd10", "kmnist", "cars20", "usps", CONTROL)

#: Settings by name at some efforts, and those of the authors under "published".
ByEffort = Mapping[str, Mapping[str, Any]]

_USUAL = {
    "encoders": (CNN,),
    "stand-ins": False,
    "pixels": 64,
    "tasks": _TASKS,
    "text tasks": (),
    "learning rate": 1e-4,
    "seeds": 3,  # each with its own order of samples
}
FINE_TUNING: ByEffort = {
    "smoke": {
        **_USUAL,
        "stand-ins": True,  # perceptrons that take no time in place of encoders, clouds of points in place of images
        "pixels": 8,
        "tasks": (*PAIR, CONTROL),
        "samples": (40, 20, 20),  # training, validation and test samples of a task at most
        "steps": 2,
        "batch": 16,
        "learning rate": 1e-2,
        "seeds": 2,
        "coefficients": 3 + NEAR_START,
    },
    "laptop": {
        **_USUAL,
        "samples": (1600, 150, 300),
        "steps": 50,
        "batch": 32,
        "coefficients": 11 + NEAR_START,
    },
    "paper": {
        **_USUAL,
        "encoders": (CNN, VIT),
        "samples": (2000, 400, 1000),
        "steps": 200,  # rate times steps is 0.02, as published
        "batch": 128,
        "coefficients": 21 + NEAR_START,
    },
    # The thesis, appendix D.1, and the released code where the text is silent.
    "published": {
        "encoders": ("CLIP ViT-B/32", "CLIP ViT-B/16", "CLIP ViT-L/14"),
        "pixels": 224,
        "tasks": ("Cars", "DTD", "EuroSAT", "GTSRB", "MNIST", "RESISC45", "SUN397", "SVHN"),
        "samples": "whole data sets",
        "steps": 2000,
        "batch": 128,
        "optimiser": "adamw",
        "learning rate": 1e-5,
        "schedule": "cosine",
        "warm-up steps": 200,
        "weight decay": 0.1,
        "weight decay pulls to": "zero",
        "gradient norm clipped at": 1.0,
        "heads": "zero-shot heads of the text encoder",
        "features normalised": True,
        "coefficients": 21,
    },
}
WITH_TEXTS: ByEffort = {"paper": {"encoders": (CNN, VIT, TEXT), "text tasks": TEXT_TASKS}}
#: Comparisons that need not all tasks.
FEW: ByEffort = {"smoke": {"tasks": _TASKS[:2]}, "laptop": {"tasks": _TASKS[:3]}, "paper": {"tasks": _TASKS[:4]}}
#: From random weights.
FEWEST: ByEffort = {"smoke": {"tasks": _TASKS[:2]}, "laptop": {"tasks": _TASKS[:2]}, "paper": {"tasks": _TASKS[:3]}}
#: Samples of a task for maps of ξ, and coefficients along a side of them.
MAPS: ByEffort = {
    "smoke": {"points": 12, "grid": 5},
    "laptop": {"points": 150, "grid": 13},  # steps of a half: with steps of 1 only the origin is below ξ = 0.1
    "paper": {"points": 256, "grid": 20},
    "published": {"points": 2048, "grid": 20},
}

NOTES = (
    "No CLIP weights are to be had here. In place of CLIP: encoders pre-trained on ImageNet (EfficientNet), on characters, faces and "
    "photographs (small ViT; see vit_pretraining beside this figure) and on sentences (MiniLM). In place of zero-shot heads: linear "
    "probes on four samples of each class, which start near the accuracy of CLIP's heads.",
    "One learning rate serves all encoders, tasks and methods; section 6.4 tries others. At paper effort, rate times steps is 0.02, as "
    "published. An encoder whose weights were not there is left out; the settings name those that ran and the hash of their weights.",
    "Heads are one draw of four samples of each class. All seeds share the heads, the training samples and the test samples; a seed "
    "changes the order of training alone. Intervals do not contain what other heads or training samples would change.",
)
ONE_DRAW = "Fine-tuning from random weights starts at one draw of them (seed 0). Intervals do not include other draws."


def at_each_effort(settings: Mapping[str, Any]) -> ByEffort:
    """Settings that are the same at every effort."""
    return dict.fromkeys(EFFORTS, settings)


def planned(*tables: ByEffort, by: str = "encoders") -> Plan:
    """The plan of a figure on fine-tuned encoders.

    Args:
        tables: What differs from :data:`FINE_TUNING`; later ones count.
        by: Empty where a figure compares its encoders with one another.
    """
    rows: dict[str, dict[str, Any]] = {name: {} for name in FINE_TUNING}
    for name, row in rows.items():
        for table in (FINE_TUNING, *tables):
            row |= table.get(name, {})
    for effort in EFFORTS:
        rows[effort] |= _recipe(rows[effort])
    return Plan(rows["smoke"], rows["laptop"], rows["paper"], rows["published"], by=by)


def _recipe(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is the same for every fine-tuning, whatever the encoder and the method."""
    recipe = tuning_recipe(steps=row["steps"], rate=row["learning rate"], batch=row["batch"])
    return {
        "optimiser": recipe.optimiser,
        "schedule": recipe.schedule,
        "warm-up steps": recipe.warmup,
        "weight decay": recipe.weight_decay,
        "weight decay pulls to": "pre-trained weights" if recipe.decay_to == "start" else "zero",
        "gradient norm clipped at": recipe.clip,
        "heads": f"linear probes on {SHOTS} samples of each class",
        "features normalised": True,
    }
