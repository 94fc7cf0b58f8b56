"""State clipping and pixels by network in the 2020 paper's runs on CIFAR-10, and withdraw those at laptop effort.

Until version 0.2.0 images had pixels from 0 to 1 and gradients were not clipped. The released code of figure 7 standardises and clips.
Networks were run again one by one, so that runs of one figure may differ in this. Figures 7, 8 and 3.13 therefore record both by
network, and the note on a rate of LeNet that is no longer used goes. Their runs at laptop effort had that rate and are removed: every
number of theirs was measured again at paper effort. A second run changes nothing. Run once for version 0.2.0, from the root of the
checkout, or with the folder of other results:

    python migrations/recipes_by_network_nads2020.py [RESULTS]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.runs.files import write_atomically

FIGURES = ("7", "8", "3.13")
TRAINED = "epochs: "  # the setting that names each network of a run
OUTDATED = "LeNet is trained at a rate of 0.02"


def by_network(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run, with clipping and pixels of each of its networks."""
    if "pixels" not in settings:
        return settings
    titles = [key.removeprefix(TRAINED) for key in settings if key.startswith(TRAINED)]
    rest = {key: value for key, value in settings.items() if key not in ("clip", "pixels")}
    each = {"clip": settings.get("clip"), "pixels": settings["pixels"]}
    return {**rest, **{f"{key}: {title}": value for title in titles for key, value in each.items()}}


def main(results: Path) -> int:
    """Rewrite the files of a folder of committed results, and return how many changed."""
    changed = 0
    for number in FIGURES:
        path = results / "nads2020" / f"{number}.json"
        document = json.loads(path.read_bytes())
        run = document["efforts"]["paper"]
        notes = [note for note in run["notes"] if not note.startswith(OUTDATED)]
        left = {**document, "efforts": {"paper": {**run, "settings": by_network(run["settings"]), "notes": notes}}}
        if left != document:
            changed += 1
            write_atomically(path, (json.dumps(left, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return changed


if __name__ == "__main__":
    print(f"{main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)} files changed")
