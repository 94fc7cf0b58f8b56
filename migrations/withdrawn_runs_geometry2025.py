"""Withdraw the 2025 paper's committed runs that were not trained by the authors' recipe.

Until version 0.2.0 some runs had another activation, no clipping, a constant rate, sinusoidal labels without the margin ε, or another
protocol of pruning than the authors' code. A run is removed if one of the settings below is recorded and differs from the published
one, with the picture of a figure that has no other run. Figures of untrained networks, and those whose settings are not published,
are left alone. A second run changes nothing. Run once for version 0.2.0, from the root of the checkout, or with the folders of other
results and pictures:

    python migrations/withdrawn_runs_geometry2025.py [RESULTS GALLERY]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from biascope import papers
from biascope.papers.reproduce import RESULTS
from biascope.results.store import plain
from biascope.runs.files import write_atomically

PAPER = "geometry2025"
UNTRAINED = ("7", "9", "A.4", "A.12")
RECIPE = (
    "activation",
    "clip",
    "hidden",
    "labels",
    "length",
    "momentum",
    "optimiser",
    "outputs",
    "removed",
    "schedule",
    "sinusoidal labels",
    "weight decay",
)


def follows(settings: Mapping[str, Any], published: Mapping[str, Any]) -> bool:
    """Whether the recipe of a run, as far as it is recorded, is the published one."""
    wanted = {name: value for name, value in plain(dict(published)).items() if name.partition(":")[0] in RECIPE}
    # A run with some of the published kinds of labels is a part, not another recipe.
    parts = {name for name, value in wanted.items() if name.startswith("labels:") and isinstance(value, list)}
    return all(
        set(settings[name]) <= set(value) if name in parts else settings[name] == value
        for name, value in wanted.items()
        if name in settings
    )


def main(results: Path, gallery: Path) -> int:
    """Rewrite or remove the files of a folder of committed results, and return how many changed."""
    known = {figure.number.replace(" ", "-"): figure for figure in papers.find(PAPER).figures}
    changed = 0
    for path in sorted((results / PAPER).glob("*.json")):
        document = json.loads(path.read_bytes())
        if path.stem in UNTRAINED:
            continue
        published = known[path.stem].published
        efforts = {name: run for name, run in document["efforts"].items() if follows(run["settings"], published)}
        if efforts == document["efforts"]:
            continue
        changed += 1
        if efforts:
            left = {**document, "efforts": efforts}
            write_atomically(path, (json.dumps(left, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
        else:
            path.unlink()
            (gallery / f"{PAPER}-{path.stem}.png").unlink(missing_ok=True)
    return changed


if __name__ == "__main__":
    folders = [Path(each) for each in sys.argv[1:3]] or [RESULTS, Path("docs/gallery")]
    print(f"{main(*folders)} files changed")
