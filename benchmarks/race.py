"""Does a race of a few steps find the best architecture? Loss curves of candidates, beside what else may foretell their accuracy.

    python benchmarks/race.py --curves kmnist --until 1 --json FILE --folder FOLDER     # trains all candidates; resumes
    python benchmarks/race.py --join FILE FILE --json FILE                              # rows of several runs in one file
    python benchmarks/race.py --evaluate FILE --json FILE                               # statistics of the rows, in tables
    python benchmarks/race.py --draw benchmarks/race.json docs/images/race.png
    python benchmarks/race.py --curves mnist --candidates quick --until 0.2 --quick     # seconds on a CPU, to show that it works

All candidates of a data set see the same batches in the same order, by the recipe of `match_validation.py` (Adam at 0.001, cosine
over 20 epochs of 8,000 images, batches of 128). `--until` stops at that share of the recipe; the learning rate stays that of the whole.
An eighth of the training images is held out, as in a race. A row holds, for one candidate, data set and seed: mean training loss,
held-out loss and held-out accuracy at every look, seconds, FLOPs, parameters, NASWOT (below) and, where training is whole, the test
accuracy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from match_validation import CANDIDATES, QUICK, RECIPE, SIZES, family_of, images
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from biascope.derivatives.gradients import forward_flops
from biascope.families.family import Family, Network
from biascope.measures.race import HELD_OUT, LEAST_STEPS, loss_of_guessing, with_held_out
from biascope.measures.race.rule import best_with
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

# Architectures of nearly equal FLOPs on images of 1 × 32 × 32: within 15 % of 6.2 and of 1.8 million.
GROUPS = {
    "all": CANDIDATES,
    "flops-a": (
        "cnn",
        "cnn depth=2 width=36",
        "cnn depth=5 width=30",
        "cnn kernel=5 width=18",
        "cnn kernel=7 width=13",
        "cnn pooling=stride width=66",
        "vit patch=8 depth=3 heads=4 width=84 mlp=168",
        "mlp hidden=1000,1000,1000",
    ),
    "flops-b": (
        "cnn width=16",
        "cnn depth=5 width=15",
        "cnn kernel=5 width=9",
        "cnn pooling=stride",
        "lenet padding=same",
        "lenet pooling=average padding=same",
        "vit patch=8 depth=3 heads=4 width=44 mlp=88",
        "mlp hidden=500,500,500",
    ),
    "quick": QUICK,
}
JUDGED_AT = (
    0.01,
    0.02,
    0.03,
    0.05,
    0.07,
    0.1,
    0.14,
    0.2,
)  # shares of the training at which the rows of a race are taken
SHARE = 0.1  # of the training, that a race may spend: the usual value of --share
RIVAL_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
RESAMPLES = 1000
HELD_OUT_SAMPLES = round(HELD_OUT * SIZES[0])
CODED = 128  # images whose activation codes NASWOT compares
_ACTIVATIONS = frozenset(
    (nn.functional.relu, torch.relu, torch.relu_, Tensor.relu, nn.functional.gelu, torch.tanh, Tensor.tanh)
)


class _Codes(TorchFunctionMode):
    """Notes of every activation function which of its inputs are positive, a row for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ACTIVATIONS:
            self.parts.append((args[0] > 0).flatten(1))
        return func(*args, **(kwargs or {}))


def naswot(module: nn.Module, x: Tensor) -> float:
    """``log |det K|``, ``K_ij`` being in how many activations images i and j agree; −inf where there are none.

    An activation is a bit: whether its input is positive, also for smooth functions.

    Reference:
        Mellor, Turner, Storkey, Crowley (2021). Neural architecture search without training. ICML.
    """
    with torch.no_grad(), _Codes() as codes:
        module(x)
    if not codes.parts:
        return -math.inf
    bits = torch.cat(codes.parts, 1).double()
    agreeing = bits @ bits.T + (1 - bits) @ (1 - bits).T
    return float(torch.linalg.slogdet(agreeing).logabsdet)


def row_of(family: Family, data: Arrays, recipe: Recipe, until: float, repeat: int, run: Run) -> dict[str, Any]:
    """One candidate trained as far as asked, in numbers."""
    seed = seed_of(0, "repeat", f"repeat-{repeat}")  # that of match_validation
    device, dtype = run.torch_device, master_dtype(run)
    parts = with_held_out(data, seed)
    total = recipe.total_steps(parts.sizes["train"])
    steps = max(1, round(until * total))
    looks = sorted({max(1, round(share * total)) for share in JUDGED_AT if share <= until})
    trials = Trials(
        "race curve",
        run,
        code=(fit, naswot),
        at=data,
        family=family,
        data=data,
        recipe=recipe,
        steps=steps,
        looks=looks,
    )

    def trained(key: str) -> dict[str, Tensor]:
        start = family.draw(1, seed=seed, run=run).member(0).to(device, dtype)
        score = naswot(start.as_module().train(), parts.batch("train", torch.arange(CODED, device=device))[0])
        seen: list[tuple[float, float]] = []

        def look(step: int, network: Network) -> None:
            found = evaluation(network, parts, "held_out", run=run)
            seen.append((float(found.loss[0]), float(found.accuracy[0])))

        begin = time.perf_counter()
        walk = fit(start, parts, recipe, seed=seed, run=run, until=steps, observe=look, observe_at=looks)
        found = {"losses": walk.losses[:, 0], "naswot": torch.tensor(score)}
        found["seconds"] = torch.tensor(time.perf_counter() - begin)
        found["seen"] = torch.tensor(seen, dtype=torch.float64)
        if steps == total:
            found["accuracy"] = evaluation(walk.networks, data, "test", run=run).accuracy[0]
        return found

    found = next(iter(trials.outcomes([f"repeat-{repeat}"], trained)))
    losses = found["losses"].double()
    score = float(found["naswot"])
    return {
        "architecture": family.name,
        "repeat": repeat,
        "steps": total,
        "loss of guessing": loss_of_guessing(parts.splits["held_out"][1].cpu()),
        "looks": looks,
        "training loss, all": [finite(losses[:step].mean()) for step in looks],
        "training loss, later half": [finite(losses[step // 2 : step].mean()) for step in looks],
        "held-out loss": [finite(value) for value in found["seen"][:, 0]],
        "held-out accuracy": [finite(value) for value in found["seen"][:, 1]],
        "parameters": family.num_parameters,
        "FLOPs": flops_of(family, data, run),
        "NASWOT": finite(score),
        "accuracy": finite(found["accuracy"]) if "accuracy" in found else None,
        "seconds": round(float(found["seconds"]), 3),
    }


def finite(value: Tensor | float) -> float | None:
    """A number as JSON has it."""
    return float(value) if math.isfinite(float(value)) else None


def flops_of(family: Family, data: Arrays, run: Run) -> int:
    """Of one forward pass of one image."""
    device, dtype = run.torch_device, master_dtype(run)
    return forward_flops(family.template.to(device, dtype), torch.zeros(1, *data.shape, device=device, dtype=dtype))


def curves(options: argparse.Namespace) -> None:
    """Train and write rows, after every candidate."""
    device = Run(device=options.device).torch_device
    precision = options.precision or ("tf32" if device.type == "cuda" else "float32")
    run = Run(folder=options.folder, device=str(device), precision=precision, progress=False)
    sizes, recipe = ((256, 256), dataclasses.replace(RECIPE, epochs=2)) if options.quick else (SIZES, RECIPE)
    document = {"recipe": recipe.settings, "sizes": sizes, "device": run.describe()["device"], "rows": []}
    begin = time.perf_counter()
    for name in options.curves.split(","):
        data = images(name, sizes, options.data_root).to(run)
        for group in options.candidates.split(","):
            families = [family_of(words, data) for words in GROUPS[group] if words not in options.without]
            for family in sorted(families, key=lambda each: flops_of(each, data, run)):  # the quickest first
                for repeat in range(options.repeats):
                    row = row_of(family, data, recipe, options.until, repeat, run)
                    document["rows"].append({"data": name, "group": group, **row})
                    write(document, options.json)
                right = "" if row["accuracy"] is None else f", test accuracy {100 * row['accuracy']:.1f} %"
                spent = f"{row['seconds']:.1f} s, {time.perf_counter() - begin:.0f} s in all"
                print(
                    f"{name}, {group}, {family.name}: last held-out loss {row['held-out loss'][-1]}{right} ({spent})",
                    flush=True,
                )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one way to choose gives on one set of candidates.

    Attributes:
        order: The candidates, the best first by this way.
        spent: Share of all trainings that it takes.
        decided: Whether it was sure of its first.
    """

    order: list[int]
    spent: float = 0.0
    decided: bool = True


def raced(rows: Sequence[dict[str, Any]], sure: float = 0.95) -> Outcome:
    """What `biascope match --race` does with its usual share, from the rows: who drops out when, and who is first."""
    looks, total = rows[0]["looks"], rows[0]["steps"]
    places = [place for place, step in enumerate(looks) if LEAST_STEPS <= step <= round(SHARE * total)]
    racing, lasted, last = list(range(len(rows))), [0] * len(rows), np.full(len(rows), np.inf)
    chance = np.zeros(len(rows))
    for place in places:
        for index in racing:
            value = rows[index]["held-out loss"][place]
            last[index], lasted[index] = math.inf if value is None else value, looks[place]
        finite_ones = [index for index in racing if math.isfinite(last[index])]
        chance[:] = 0.0
        chance[finite_ones] = best_with(
            last[finite_ones], rows[0]["loss of guessing"], looks[place] / total, HELD_OUT_SAMPLES
        )
        racing = [index for index in finite_ones if chance[index] >= (1 - sure) / len(rows)]
        if chance.max() >= sure:
            break
    staying = set(racing)
    order = sorted(range(len(rows)), key=lambda index: (index not in staying, -lasted[index], last[index]))
    return Outcome(order, sum(lasted) / (total * len(rows)), bool(chance.max() >= sure))


def by(rows: Sequence[dict[str, Any]], column: str, place: int | None = None, sign: int = 1) -> Outcome:
    """Candidates in the order of a number; of a loss at a look, that share of training is spent on all."""
    values = [row[column] if place is None else row[column][place] for row in rows]
    keys = [-math.inf if value is None else sign * value for value in values]
    spent = 0.0 if place is None else rows[0]["looks"][place] / rows[0]["steps"]
    return Outcome(sorted(range(len(rows)), key=lambda index: -keys[index]), spent)


def choices(rows: Sequence[dict[str, Any]]) -> dict[str, Outcome]:
    """Every way to choose, of the rule and of its rivals."""
    found = {"race": raced(rows)}
    for share in RIVAL_SHARES:
        place = JUDGED_AT.index(share)
        if place < len(rows[0]["looks"]):
            found[f"summed training loss at {share:.0%}"] = by(rows, "training loss, all", place, -1)
            found[f"held-out loss at {share:.0%}"] = by(rows, "held-out loss", place, -1)
    return {**found, **{name: by(rows, name) for name in ("FLOPs", "parameters", "NASWOT")}}


def numbers(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Regret in points and Spearman's correlation with test accuracy of every way to choose, and the share it spends."""
    right = np.array([row["accuracy"] for row in rows])
    ranks = rankdata(right)
    found = {
        "random": {"regret": 100 * float(right.max() - right.mean()), "spearman": 0.0, "spent": 0.0, "decided": 0.0}
    }
    for name, outcome in choices(rows).items():
        place = np.empty(len(rows))
        place[outcome.order] = -np.arange(len(rows))
        correlation = float(np.corrcoef(place, ranks)[0, 1]) if len(set(ranks)) > 1 and len(rows) > 1 else math.nan
        regret = 100 * float(right.max() - right[outcome.order[0]])
        found[name] = {
            "regret": regret,
            "spearman": correlation,
            "spent": outcome.spent,
            "decided": float(outcome.decided),
        }
    return found


def statistics(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """The numbers of one set of candidates with 95 % intervals, by a bootstrap over candidates that all ways share."""
    values = numbers(rows)
    random = np.random.default_rng(0)
    drawn: dict[tuple[str, str], list[float]] = {}
    for _ in range(RESAMPLES):
        chosen = np.unique(random.integers(0, len(rows), len(rows)))  # a candidate that is drawn twice races once
        for name, each in numbers([rows[index] for index in chosen]).items():
            for part, value in each.items():
                drawn.setdefault((name, part), []).append(value)
    return {
        name: {
            part: dict(zip(("value", "low", "high"), map(finite, (value, *_ends(drawn[name, part]))), strict=True))
            for part, value in each.items()
        }
        for name, each in values.items()
    }


def _ends(values: list[float]) -> tuple[float, float]:
    known = [value for value in values if math.isfinite(value)]
    low, high = np.quantile(known, [0.025, 0.975]) if known else (math.nan, math.nan)
    return float(low), float(high)


def evaluated(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the statistics of every data set and group of candidates, printed as tables."""
    sets: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        sets.setdefault(f"{row['data']}, {row['group']}", []).append(row)
    document["statistics"] = {}
    for name, rows in sets.items():
        found = document["statistics"][name] = statistics(rows)
        best = max(rows, key=lambda row: row["accuracy"])
        race = raced(rows)
        print(f"## {name}: {len(rows)} candidates, best {best['architecture']} at {100 * best['accuracy']:.1f} %\n")
        print(f"race: {rows[race.order[0]]['architecture']}, {'decided' if race.decided else 'not decided'}\n")
        print("| way | regret, points | Spearman | share spent |\n|---|---|---|---|")
        for way, parts in found.items():
            cells = [
                f"{shown(parts['regret'], 1)} | {shown(parts['spearman'], 2)} | {100 * (parts['spent']['value'] or 0):.1f} %"
            ]
            print(f"| {way} | {' | '.join(cells)} |")
        print()
    return document


def shown(numbers_of: dict[str, float | None], digits: int) -> str:
    """A value with its interval."""
    value, low, high = (
        "–" if numbers_of[part] is None else f"{numbers_of[part]:.{digits}f}" for part in ("value", "low", "high")
    )
    return f"{value} ({low} to {high})"


def draw(document: dict[str, Any], path: Path) -> None:
    """Regret against the share of training that is spent, a panel for each set of candidates."""
    from biascope.results.draw import PALETTE, blank, panel, png

    sets, colours = document["statistics"], PALETTE[False]
    figure = blank(2.5 * math.ceil(len(sets) / 2))
    for place, (name, ways) in enumerate(sets.items()):
        axes = panel(figure, False, 100 * math.ceil(len(sets) / 2) + 21 + place)
        for line, kind in enumerate(("summed training loss", "held-out loss")):
            at = [way for way in ways if way.startswith(kind)]
            spent = [100 * ways[way]["spent"]["value"] for way in at]
            axes.plot(
                spent,
                [ways[way]["regret"]["value"] for way in at],
                "o-",
                markersize=3,
                color=colours.lines[line],
                label=kind,
            )
        race = ways["race"]
        axes.plot(
            100 * race["spent"]["value"],
            race["regret"]["value"],
            "*",
            markersize=13,
            color=colours.lines[2],
            label="race",
        )
        for way, style in (("FLOPs", "--"), ("parameters", ":"), ("NASWOT", "-."), ("random", (0, (1, 5)))):
            axes.axhline(ways[way]["regret"]["value"], linestyle=style, linewidth=1, color=colours.muted, label=way)
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
        axes.set_title(name, fontsize=9, color=colours.ink)
        if place % 2 == 0:
            axes.set_ylabel("regret, points", fontsize=9)
        if place >= len(sets) - 2:
            axes.set_xlabel("share spent, %", fontsize=9)
        if place == 0:
            axes.legend(fontsize=6, frameon=False)
    figure.set_facecolor("white")
    path.write_bytes(png(figure, 1200))


def joined(files: Sequence[Path]) -> dict[str, Any]:
    """One document of the rows of several, which must be of one recipe."""
    documents = [json.loads(file.read_text()) for file in files]
    if any(each["recipe"] != documents[0]["recipe"] or each["sizes"] != documents[0]["sizes"] for each in documents):
        raise ValueError("Files must be of one recipe and size to be joined, and are not. Join them by kind.")
    return {**documents[0], "rows": [row for each in documents for row in each["rows"]]}


def write(document: dict[str, Any], file: Path | None) -> None:
    """Where asked; under the same name in the folder OUT, where the environment has one."""
    if file is not None:
        file = Path(os.environ["OUT"], file.name) if "OUT" in os.environ else file
        file.write_text(json.dumps(document, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", help="data sets to train on, comma-separated")
    parser.add_argument("--candidates", default="all", help="comma-separated, some of: " + ", ".join(GROUPS))
    parser.add_argument("--without", nargs="*", default=[], help="candidates to leave out")
    parser.add_argument("--until", type=float, default=1.0, help="share of the recipe's iterations")
    parser.add_argument("--repeats", type=int, default=1, help="trainings of each candidate")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="", help="tf32 on a GPU, float32 on a CPU")
    parser.add_argument("--folder", type=Path, help="where trainings are kept, to go on from there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--join", nargs="+", type=Path, help="files whose rows to join")
    parser.add_argument("--evaluate", type=Path, help="file of rows to which the statistics are added")
    parser.add_argument("--quick", action="store_true", help="few images and steps")
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("JSON", "PNG"), help="draw the statistics of a file")
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.draw[0].read_text()), options.draw[1])
    if options.join:
        write(joined(options.join), options.json)
    if options.curves:
        curves(options)
    if options.evaluate:
        write(evaluated(json.loads(options.evaluate.read_text())), options.json)


if __name__ == "__main__":
    main()
