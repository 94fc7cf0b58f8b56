"""Withdraw chapter 6's committed runs whose encoders were fine-tuned by another recipe.

Until version 0.2.0 every encoder and method had its own learning rate, up to 100 times the published one, chosen by the accuracy of
single tasks. Weight decay pulled to zero and put the same share of −θ₀ into every task vector. Features were not normalised. Runs since
then record the point that weight decay pulls to. Runs that do not are removed, with the picture of a figure that has no other run.
Figure 6.9 is kept: it is about kernels at weights that were not fine-tuned. A second run changes nothing. Run once for version 0.2.0,
from the root of the checkout, or with the folders of other results and pictures:

    python migrations/withdrawn_runs_task_arithmetic2023.py [RESULTS GALLERY]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.runs.files import write_atomically

PAPER = "task_arithmetic2023"
#: Figures without fine-tuning: kernels at the start, propositions and costs.
WITHOUT_TUNING = ("6.9", "propositions-6.1-and-6.2", "section-6.5")


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """The runs of a committed file that record the point that weight decay pulls to."""
    efforts = {name: run for name, run in document["efforts"].items() if "weight decay pulls to" in run["settings"]}
    return {**document, "efforts": efforts}


def main(results: Path, gallery: Path) -> int:
    """Rewrite or remove the files of a folder of committed results, and return how many changed."""
    changed = 0
    for path in sorted((results / PAPER).glob("*.json")):
        document = json.loads(path.read_bytes())
        left = document if path.stem in WITHOUT_TUNING else kept(document)
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
