"""Withdraw chapter 4's committed runs whose networks were not the authors'.

Until version 0.2.0 the networks of chapter 4 had PyTorch's initial weights. The authors' have those of Flax, whose tangent kernels
are 9 to 32 times larger. With the smaller kernels many linearised networks did not train, and no run recorded whether they did.
Runs since then record their initial weights. Runs that do not are removed, with the picture of a figure that has no other run. A
second run changes nothing. Run once for version 0.2.0, from the root of the checkout, or with the folders of other results and
pictures:

    python migrations/withdrawn_runs_linearized2021.py [RESULTS GALLERY]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.runs.files import write_atomically

PAPER = "linearized2021"
THEORY = ("theorem", "equation")  # figures about networks of our own


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """The runs of a committed file that record their initial weights."""
    efforts = {name: run for name, run in document["efforts"].items() if "initial weights" in run["settings"]}
    return {**document, "efforts": efforts}


def main(results: Path, gallery: Path) -> int:
    """Rewrite or remove the files of a folder of committed results, and return how many changed."""
    changed = 0
    for path in sorted((results / PAPER).glob("*.json")):
        document = json.loads(path.read_bytes())
        left = document if path.stem.startswith(THEORY) else kept(document)
        if left == document:
            continue
        changed += 1
        if left["efforts"]:
            write_atomically(path, (json.dumps(left, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
        else:
            path.unlink()
            (gallery / f"{PAPER}-{path.stem}.png").unlink(missing_ok=True)
    return changed


if __name__ == "__main__":
    folders = [Path(each) for each in sys.argv[1:3]] or [RESULTS, Path("docs/gallery")]
    print(f"{main(*folders)} files changed")
