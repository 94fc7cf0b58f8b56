"""The picture of docs/merging_methods.md: what TIES keeps of each parameter, by its paper and by mergekit.

python docs/make_merging_methods.py FOLDER        # with the models that docs/make_merge_example.py writes into it
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from biascope.editing.merge import merge
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.results import draw

FORMS = {
    "ties": "the paper: one threshold for the whole vector",
    "ties:mergekit": "mergekit: a threshold for each tensor",
}


def kept(folder: Path, method: str) -> dict[str, float]:
    """The share of the numbers of each parameter that TIES changes, of the model that was fine-tuned to inverted digits."""
    base, model = (Checkpoint.open(folder / f"{name}.safetensors") for name in ("base", "inverted"))
    out = folder / "ties.safetensors"
    merge(base, [(model, None)], out, method=method, settings={"density": 0.2}, overwrite=True)
    start, end = weights.load(folder / "base.safetensors"), weights.load(out)
    return {name: float((start[name] != end[name]).double().mean()) for name in start}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    figure = draw.blank(3.4, "A dot is a parameter of LeNet, in the order of the layers.")
    axes = draw.panel(figure, False)
    for (method, label), colour in zip(FORMS.items(), draw.line_colours(len(FORMS), False), strict=True):
        shares = kept(folder, method)
        axes.plot(np.arange(len(shares)), list(shares.values()), "o", color=colour, label=label)
    axes.set_xticks(
        np.arange(len(shares)), [draw.plain(name, 24) for name in shares], rotation=30, ha="right", fontsize=8
    )
    axes.set(ylabel="share of the numbers kept", ylim=(0, None))
    draw.legend_below(figure, axes, False)
    figure.savefig(Path(__file__).parent / "images" / "merging_methods.png", dpi=110, facecolor="white")
    print({name: round(share, 3) for name, share in kept(folder, "ties").items()})
