"""How far the forecasts of `biascope merge check` are from what comes, and how often its verdicts and comparisons are right.

    python benchmarks/merge_forecast.py fit                                # seconds: from merge_expected.json, merge_validation.json
    python benchmarks/merge_forecast.py test --folder FOLDER --json FILE   # new models; two minutes of one core; resumes
    python benchmarks/merge_forecast.py judge benchmarks/merge_forecast.json --draw docs/images/merge_forecast.png

`fit` gives the two constants of `biascope.measures.merge_check.forecast`. With d the share of predictions that the merge changes, e the
forecast and r the realised loss of accuracy, each a mean over the two models of a merge, the error is u = (r − e)/d. Its root mean
square s has a standard error by a jackknife that leaves out one task, with all merges that contain it and for all encoders, at a time:
merges share tasks, so a bootstrap over merges is too narrow. Degrees of freedom are ½ (s/SE)². Coverage is that of intervals for the
merges with one task by the constants of the merges without it. Other scales stand beside d.

`test` makes new models: a LeNet on KMNIST, fine-tuned for 200 steps on each of eight kinds of changed characters. It checks all 28
pairs with and without accuracies, merges them and scores them with labels. Constants, the factor √2 for one model, comparisons with
the base and with the best single model, and this file were committed before its first run.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import torch
from scipy.special import stdtrit

from biascope import data
from biascope.editing.heads import identity_head
from biascope.editing.outputs import edited_outputs, sampled
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.measures.merge_check import merge_check
from biascope.measures.merge_check.verdict import FIXED, GRADES
from biascope.networks import builder
from biascope.results.estimate import proportion
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.fit import fit as trained
from biascope.training.recipe import Recipe

HERE = Path(__file__).parent
FORECASTS = {"with accuracies": "expected", "without": "expected without accuracies"}
SCALES = {
    "share that differs": lambda d, e: d,
    "its root": lambda d, e: np.sqrt(d),
    "forecast": lambda d, e: e,
    "root of both": lambda d, e: np.sqrt(d * e),
    "constant": lambda d, e: np.ones_like(d),
}
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, FIXED, 0.6, 0.7, 0.8, 0.9, 1.0)
POINTS = 1000  # unlabelled samples of each model
KINDS = ("salt", "noisy", "bars", "inverted", "turned", "mirrored", "shifted", "coarse")


def root_mean_square(u):
    return float(np.sqrt(np.square(u).mean()))


def spread_and_freedom(u, pairs):
    """``s`` of errors u of merges of pairs of tasks, and its degrees of freedom by a jackknife over tasks."""
    tasks = sorted({task for pair in pairs for task in pair})
    left_out = np.array([root_mean_square(u[[task not in pair for pair in pairs]]) for task in tasks])
    whole, count = root_mean_square(u), len(tasks)
    error = np.sqrt((count - 1) / count * np.square(left_out - left_out.mean()).sum())
    return whole, 0.5 * (whole / error) ** 2


def fitted(document=None, scale="share that differs"):
    """Of each forecast ``(s, degrees of freedom, (covered, of), (encoder left out, covered, of)…)``."""
    document = document or json.loads((HERE / "merge_expected.json").read_text())
    rows = [(encoder, row) for encoder, found in document.items() for row in found["rows"]]
    pairs, encoders = [row["pair"] for _, row in rows], np.array([encoder for encoder, _ in rows])
    differ, realised = (np.array([row[key] for _, row in rows]) for key in ("bound", "realised"))
    found = {}
    for words, key in FORECASTS.items():
        expected = np.array([row[key] for _, row in rows])
        size = SCALES[scale](differ, expected)
        u = (realised - expected) / size
        parts = {task: np.array([task in pair for pair in pairs]) for pair in pairs for task in pair}
        covered = {}
        for name, part in [*parts.items(), *((encoder, encoders == encoder) for encoder in document)]:
            spread, freedom = spread_and_freedom(
                u[~part], [pair for pair, out in zip(pairs, part, strict=True) if not out]
            )
            covered[name] = np.abs(u[part]) <= stdtrit(freedom, 0.975) * spread
        by_task = np.concatenate([covered[task] for task in parts])
        found[words] = {
            "spread": (whole := spread_and_freedom(u, pairs))[0],
            "freedom": whole[1],
            "bias": {encoder: float(u[encoders == encoder].mean()) for encoder in document},
            "task left out": (int(by_task.sum()), len(by_task)),
            "encoder left out": {name: (int(covered[name].sum()), len(covered[name])) for name in document},
            "width": float(2 * stdtrit(whole[1], 0.975) * whole[0] * size.mean()),
        }
    return found


def told_of_fit():
    for scale in SCALES:
        print(f"\nerror in proportion to: {scale}")
        for words, found in fitted(scale=scale).items():
            print(f"  {words:16} s {found['spread']:.3f}, {found['freedom']:.1f} degrees of freedom", end="")
            print(
                f"; mean width {100 * found['width']:.1f} points; covered, one task left out: {found['task left out']}"
            )
            for encoder, mean in found["bias"].items():
                print(
                    f"    {encoder}: mean u {mean:.2f}; covered from the other encoder {found['encoder left out'][encoder]}"
                )
    document = json.loads((HERE / "merge_validation.json").read_text())["encoders"]
    print(f"\nsuggested coefficient and always α = {FIXED}: mean distance from the best with labels")
    for encoder, found in document.items():
        best, own = (np.array([row[key] for row in found["rows"]]) for key in ("best alpha", "alpha"))
        print(f"  {encoder}: {abs(own - best).mean():.2f} and {abs(FIXED - best).mean():.2f}, {len(best)} merges")
    print("\nmerges that are more accurate than the base, mean over tasks, by verdict")
    for encoder, found in document.items():
        for grade in GRADES:
            gains = [row["merged"] - row["base"] for row in found["rows"] if row["grade"] == grade]
            if gains:
                print(
                    f"  {encoder}, {grade}: {sum(gain > 0 for gain in gains)} of {len(gains)}, {100 * np.mean(gains):.1f} points"
                )


def changed(images, kind, seed):
    """Bytes of characters with white dots, noise, two white bars, inverted, turned by 90°, mirrored, shifted or in coarse dots."""
    stream, found = np.random.default_rng(seed), images.astype(float)
    if kind == "salt":
        found[stream.random(found.shape) < 0.1] = 255
    elif kind == "noisy":
        found += stream.normal(0, 60, found.shape)
    elif kind == "bars":
        for image, (row, column) in zip(found, stream.integers(0, 25, (len(found), 2)), strict=True):
            image[row : row + 3], image[:, column : column + 3] = 255, 255
    elif kind == "inverted":
        found = 255 - found
    elif kind == "turned":
        found = np.rot90(found, axes=(1, 2))
    elif kind == "mirrored":
        found = found[:, :, ::-1]
    elif kind == "shifted":
        found = np.roll(found, 6, axis=2)
    elif kind == "coarse":
        found = found.reshape(-1, 7, 4, 7, 4).mean((2, 4)).repeat(4, 1).repeat(4, 2)
    return found.clip(0, 255).astype(np.uint8)


def of_characters(run):
    """Base, heads, task vectors and samples of each kind of changed characters."""
    parts = {
        split: [np.asarray(each) for each in data.load("kmnist", root=run.data_root).splits[split]]
        for split in ("train", "test")
    }

    def task(kind, split, start, stop, seed):
        images, labels = (part[start:stop] for part in parts[split])
        images = images.reshape(len(images), 28, 28)
        x = torch.from_numpy(np.ascontiguousarray(changed(images, kind, seed))).float()[:, None] / 255
        return (x - 0.2) / 0.33, torch.from_numpy(labels).long()

    with forked_rng(0):
        start = Network.of(builder("lenet")(channels=1, image_size=28, outputs=10))
    recipe = Recipe("adam", 1e-3, steps=600, batch=64, loss="cross_entropy")
    base = trained(start, Arrays({"train": task("plain", "train", 0, 4000, 0)}), recipe, seed=0, run=run).networks
    tuning = Recipe("adam", 3e-4, steps=200, batch=64, loss="cross_entropy")
    vectors, tasks = {}, {}
    for kind in KINDS:
        tasks[kind] = Arrays(
            {
                "train": task(kind, "train", 0, 4000, 1),
                "validation": task(kind, "test", 0, POINTS, 2),
                "test": task(kind, "test", POINTS, 3 * POINTS, 3),
            },
            name=kind,
        )
        own = trained(base, tasks[kind], tuning, seed=1, run=run).networks
        vectors[kind] = TaskVector.between(base.params, own.params)
    return base, dict.fromkeys(KINDS, identity_head(10)), vectors, tasks


def share_right(encoder, heads, vectors, tasks, pair, rows, run):
    """Accuracy ``(task, row)`` on labelled test samples."""
    own = [vectors[name] for name in pair]
    rights = []
    for name in pair:
        classes = edited_outputs(encoder, heads[name], own, rows, sampled(tasks[name], "test", None, seed=0), run=run)
        rights.append((classes == tasks[name].splits["test"][1].cpu()).double().mean(1).numpy())
    return np.array(rights)


def scored(encoder, heads, vectors, tasks, pair, run):
    """One pair, checked with and without accuracies, then merged."""
    known = {}
    for name in pair:
        held = sampled(tasks[name], "validation", None, seed=0)
        classes = edited_outputs(encoder, heads[name], [vectors[name]], torch.ones(1, 1).double(), held, run=run)
        known[name] = float((classes[0] == held.splits["validation"][1].cpu()).double().mean())
    checks = {
        words: merge_check(
            encoder, {name: heads[name] for name in pair}, {name: vectors[name] for name in pair}, {name: tasks[name] for name in pair},
            split="validation", points=POINTS, alphas=ALPHAS, accuracies=given, grid=None, run=run,
        )
        for words, given in (("with accuracies", known), ("without", None))
    }  # fmt: skip
    check = checks["without"]
    alpha = check.alpha.value
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [alpha, alpha], [FIXED, FIXED]], dtype=torch.float64)
    right = share_right(encoder, heads, vectors, tasks, pair, rows, run)
    return {
        "pair": list(pair),
        "grade": check.grade,
        "alpha": alpha,
        "accuracy": {name: right[:, k].tolist() for k, name in enumerate(("base", *pair, "merged", "fixed"))},
        "bounds": [loss.as_dict() for loss in check.losses],
        "forecasts": {
            words: {
                "losses": [loss.as_dict() for loss in each.expected_losses],
                "gains": {role: gain.as_dict() for role, gain in each.gains.items()},
                "best single": each.best_single,
            }
            for words, each in checks.items()
        },
    }


def share(hits):
    hits = list(hits)
    return f"{sum(hits)} of {len(hits)} ({proportion(float(np.mean(hits)), len(hits))!r})" if hits else "none"


def within(entry, value):
    return entry["low"] <= value <= entry["high"]


def judged(rows):
    """What was forecast against what came."""
    for words in FORECASTS:
        losses, held, calls, sure = [], {}, {}, {}
        for row in rows:
            accuracy = {name: np.array(each) for name, each in row["accuracy"].items()}
            told, merged = row["forecasts"][words], accuracy["merged"]
            for place, name in enumerate(row["pair"]):
                losses.append(
                    (told["losses"][place], accuracy[name][place] - merged[place], row["bounds"][place]["value"])
                )
            best = max(accuracy[name].mean() for name in row["pair"])
            for role, rival in (("base", accuracy["base"]), ("single", accuracy[told["best single"]])):
                came, gain = merged.mean() - rival.mean(), told["gains"][role]
                truly = merged.mean() > (best if role == "single" else rival.mean())
                held.setdefault(role, []).append(within(gain, came))
                calls.setdefault(role, []).append((gain["value"] > 0) == truly)
                if not within(gain, 0.0):
                    sure.setdefault(role, []).append((gain["value"] > 0) == (came > 0))
        error = np.array([(came - told["value"]) / bound for told, came, bound in losses if bound > 0])
        largest = [1.96 * np.sqrt(bound / POINTS) for _, _, bound in losses]
        sampling = [abs(came - told["value"]) <= end for (told, came, _), end in zip(losses, largest, strict=True)]
        print(f"  {words}")
        print(
            f"    single models: interval holds the realised loss for {share(within(told, came) for told, came, _ in losses)}"
        )
        print(f"      an interval of sampling alone, at its widest: {share(sampling)}")
        print(f"      root mean square of u: {root_mean_square(error):.3f}, mean {error.mean():.3f}")
        for role, hits in held.items():
            print(f"    against the {role}: interval holds {share(hits)}; sign right {share(calls[role])}")
            print(f"      sign right where the interval excludes 0: {share(sure.get(role, []))}")
    for grade in GRADES:
        chosen = [row for row in rows if row["grade"] == grade]
        if not chosen:
            continue
        means = [{name: float(np.mean(each)) for name, each in row["accuracy"].items()} for row in chosen]
        base = [mean["merged"] - mean["base"] for mean in means]
        single = [
            mean["merged"] - max(mean[name] for name in row["pair"]) for mean, row in zip(means, chosen, strict=True)
        ]
        print(f"  {grade}: {len(chosen)} merges")
        for of, gains in (("the base", base), ("the best single model on all tasks", single)):
            print(f"    better than {of}: {share(gain > 0 for gain in gains)}, {100 * np.mean(gains):.1f} points")
    fixed = [np.mean(row["accuracy"]["merged"]) - np.mean(row["accuracy"]["fixed"]) for row in rows]
    print(f"  suggested coefficient over always α = {FIXED}: {100 * np.mean(fixed):.2f} points, ", end="")
    print(f"from {100 * min(fixed):.1f} to {100 * max(fixed):.1f}")


def drawn(rows, path):
    """The realised loss of each model against its forecast, with and without accuracies."""
    from biascope.results.draw import PALETTE, WIDTH, blank, panel

    figure, colours = blank(3.2), PALETTE[False]
    grid, ends = figure.add_gridspec(1, 2), []
    for place, words in enumerate(FORECASTS):
        axes = panel(figure, False, grid[0, place])
        told = [loss for row in rows for loss in row["forecasts"][words]["losses"]]
        came = [
            row["accuracy"][name][k] - row["accuracy"]["merged"][k]
            for row in rows
            for k, name in enumerate(row["pair"])
        ]
        forecast, low, high = (100 * np.array([loss[key] for loss in told]) for key in ("value", "low", "high"))
        axes.vlines(forecast, low, high, color=colours.lines[0], alpha=0.25, linewidth=1.5)
        axes.plot(forecast, 100 * np.array(came), "o", markersize=4, color=colours.lines[1], alpha=0.8)
        axes.axline((0, 0), slope=1, color=colours.muted, linestyle=":", linewidth=1.2)
        axes.set_title(f"{words} accuracies" if place else words, fontsize=9)
        axes.set(xlabel="forecast, points", ylabel="" if place else "realised loss of accuracy, points")
        ends.append(axes.get_ylim())
    for axes in figure.axes:
        axes.set(ylim=(min(low for low, _ in ends), max(high for _, high in ends)))
    figure.savefig(path, dpi=1000 / WIDTH, facecolor="white")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("fit")
    test = steps.add_parser("test")
    test.add_argument("--folder", type=Path, required=True)
    test.add_argument("--json", type=Path, required=True)
    test.add_argument("--data-root", type=Path)
    judge = steps.add_parser("judge")
    judge.add_argument("file", type=Path)
    judge.add_argument("--draw", type=Path, metavar="PNG", help="also draw the losses of single models")
    options = parser.parse_args()
    if options.step == "fit":
        told_of_fit()
    elif options.step == "judge":
        rows = json.loads(options.file.read_text())["rows"]
        judged(rows)
        if options.draw:
            drawn(rows, options.draw)
    else:
        run = Run(options.folder, "cpu", "float32", data_root=options.data_root)
        known = of_characters(run)
        pairs = list(itertools.combinations(known[3], 2))
        rows = []
        for pair in pairs:
            rows.append(scored(*known, pair, run))
            print(f"  {len(rows)} of {len(pairs)}: {' and '.join(pair)}, {rows[-1]['grade']}", flush=True)
        options.json.write_text(json.dumps({"points": POINTS, "rows": rows}, indent=1))
        judged(rows)


if __name__ == "__main__":
    main()
