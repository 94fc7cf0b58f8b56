"""Does `biascope merge check` predict what a merge costs? All pairs of tasks, checked without labels, then merged and scored.

    python benchmarks/merge_validation.py --effort paper --folder FOLDER --json FILE --device cuda    # resumes
    python benchmarks/merge_validation.py --effort smoke                                             # seconds, shows that it works
    python benchmarks/merge_validation.py --draw benchmarks/merge_validation.json docs/images/merge_validation.png
    python benchmarks/merge_validation.py --draw benchmarks/merge_expected.json docs/images/merge_expected.png

Encoders, tasks, heads and task vectors are those of the paper's figures (`biascope.papers.task_arithmetic2023.plans`); FOLDER/shared
keeps fine-tunings, so that RUNS/task_arithmetic2023 of `biascope reproduce --out RUNS` serves as FOLDER where they are done. For each
pair

predicted   mean share of predictions that the merge changes at the suggested coefficient, on validation samples without labels
expected    mean expected loss of accuracy there, from the models' validation accuracy: one number of each, all that is taken of labels
realised    mean over both tasks of accuracy(single) − accuracy(merged at the suggested coefficient), on test samples

and the correlation of each with the last over pairs, Pearson's and Spearman's, with bootstrap intervals over pairs; beside it, that
of two simpler predictors: the cosine of the two task vectors, and the sum of their norms. Then the correlation of the share of the
way that the check tells with the share of the gain by fine-tuning that the merge keeps; how far the suggested coefficient is from the
best on labelled validation samples, and how much test accuracy that costs. All but `expected` and the share of the gain was written
down before the first run beyond smoke; these two came after it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from biascope.editing.outputs import edited_outputs, sampled
from biascope.measures.merge_check import ALPHAS, merge_check
from biascope.measures.merge_check.verdict import GRADES
from biascope.papers.task_arithmetic2023.plans import CNN, TEXT, VIT, WITH_TEXTS, planned
from biascope.papers.task_arithmetic2023.tasks import study
from biascope.results.claim import EFFORTS
from biascope.results.estimate import Estimate, bootstrapped, over, pearson, spearman
from biascope.runs.run import Run

NAMES = {"efficientnet_lite0": CNN, "vit": VIT, "minilm": TEXT}
PREDICTORS = {
    "predicted": "merge check",
    "expected": "merge check, to expect",
    "cosine": "cosine of task vectors",
    "norms": "sum of their norms",
}


def accuracies(found, vectors, pair, place, rows, split, run):
    """Accuracy of one task of a pair at each set of coefficients."""
    task = found.tasks[pair[place]]
    samples = sampled(task, split, None, seed=0)
    own = [vectors[name] for name in pair]
    classes = edited_outputs(found.encoder, found.heads[pair[place]], own, rows, samples, run=run)
    return (classes == samples.splits[split][1].cpu()).double().mean(1).numpy()


def measured(found, vectors, pair, points, run):
    """One pair, checked and merged."""
    own = {name: vectors[name] for name in pair}
    alone = torch.eye(2, dtype=torch.float64)
    known = {
        name: float(accuracies(found, vectors, pair, place, alone[place : place + 1], "validation", run)[0])
        for place, name in enumerate(pair)
    }
    begin = time.perf_counter()
    check = merge_check(
        found.encoder, {name: found.heads[name] for name in pair}, own, {name: found.tasks[name] for name in pair},
        split="validation", points=points, accuracies=known, grid=None, name=found.name, run=run,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    alphas = torch.tensor(ALPHAS, dtype=torch.float64)[:, None].expand(-1, 2)
    curves = [
        accuracies(found, vectors, pair, place, torch.cat([alone[place : place + 1], alphas]), "validation", run)[1:]
        for place in range(2)
    ]
    best = float(ALPHAS[int(np.mean(curves, 0).argmax())])
    wanted = torch.tensor([[0.0, 0.0], [check.alpha.value] * 2, [best] * 2], dtype=torch.float64)
    scores = np.array(
        [
            accuracies(found, vectors, pair, place, torch.cat([alone[place : place + 1], wanted]), "test", run)
            for place in range(2)
        ]
    )  # (task, single · base · suggested · best)
    single, start, merged, labelled = scores.mean(0)
    first, second = own.values()
    return {
        "predicted": check.mean_loss.value,
        "expected": float(np.mean([each.value for each in check.expected_losses])),
        "way": check.way.value,
        "realised": single - merged,
        "cosine": first.cosine(second),
        "norms": first.norm + second.norm,
        "alpha": check.alpha.value,
        "alpha width": check.alpha.high - check.alpha.low,
        "best alpha": best,
        "cost": labelled - merged,
        "single": single,
        "base": start,
        "merged": merged,
        "grade": check.grade,
        "seconds": seconds,
    }


def averaged(rows):
    """One pair over seeds; of verdicts, the most frequent."""
    numbers = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key != "grade"}
    grades = [row["grade"] for row in rows]
    return {**numbers, "grade": max(GRADES, key=grades.count)}


def statistics(rows):
    """Over the pairs of one encoder."""
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0] if key not in ("grade", "pair")}
    found = {
        f"{kind}, {words}": bootstrapped(statistic, columns[key], columns["realised"])
        for key, words in PREDICTORS.items()
        for kind, statistic in (("Pearson", pearson), ("Spearman", spearman))
    }
    gains = columns["single"] - columns["base"]
    kept = (columns["merged"] - columns["base"]) / np.where(abs(gains) < 1e-9, np.nan, gains)
    found |= {
        f"{kind}, share of the way and share of the gain that is kept": bootstrapped(statistic, columns["way"], kept)
        for kind, statistic in (("Pearson", pearson), ("Spearman", spearman))
    }
    gap = abs(columns["alpha"] - columns["best alpha"])
    found |= {
        "mean predicted loss": over(columns["predicted"]),
        "mean realised loss": over(columns["realised"]),
        "share of pairs that lost at most what was predicted": Estimate(
            float((columns["realised"] <= columns["predicted"]).mean())
        ),
        "distance of the suggested coefficient from the best": over(gap),
        "accuracy that this costs": over(columns["cost"]),
    }
    return found


def validated(name, plan, points, seeds, run):
    """All pairs of an encoder's tasks."""
    begin = time.perf_counter()
    found = study(name, plan, run)
    print(f"\n{name}: {len(found.tasks)} tasks, vectors after {time.perf_counter() - begin:.0f} s", flush=True)
    begin, rows = time.perf_counter(), []
    for pair in itertools.combinations(found.tasks, 2):
        each = [measured(found, both["non-linear"], pair, points, run) for both in found.vectors[:seeds]]
        rows.append({"pair": list(pair), **averaged(each)})
        row = rows[-1]
        print(
            f"  {pair[0]:14} {pair[1]:14} α {row['alpha']:.2f} (best {row['best alpha']:.2f})  predicted "
            f"{100 * row['predicted']:5.1f} %  realised {100 * row['realised']:5.1f} %  {row['grade']}", flush=True
        )  # fmt: skip
    seconds = time.perf_counter() - begin
    numbers = statistics(rows)
    for words, estimate in numbers.items():
        print(f"  {words}: {estimate!r}")
    by_grade = {grade: [row["realised"] for row in rows if row["grade"] == grade] for grade in GRADES}
    for grade, losses in by_grade.items():
        if losses:
            print(f"  verdict {grade!r}: {len(losses)} pairs, realised loss {100 * np.mean(losses):.1f} % on average")
    print(f"  {seconds:.0f} s for {len(rows)} pairs")
    shown = {
        words: {key: None if value != value else value for key, value in each.as_dict().items()}
        for words, each in numbers.items()
    }
    return {"rows": rows, "statistics": shown, "seconds": seconds, "device": run.describe()["device"]}


def drawn(document, path):
    """Predicted against realised, all encoders."""
    from biascope.results.draw import PALETTE, WIDTH, blank, legend_below, panel

    figure = blank(3.6)
    axes, colours = panel(figure, False), PALETTE[False]
    top = 0.0
    for (name, found), colour in zip(document["encoders"].items(), colours.lines, strict=False):
        x, y = (100 * np.array([row[key] for row in found["rows"]]) for key in ("predicted", "realised"))
        each = found["statistics"]["Pearson, merge check"]["value"]
        words = name if each is None else f"{name} (Pearson {each:.2f})"
        axes.plot(x, y, "o", markersize=4, color=colour, alpha=0.8, label=words)
        top = max(top, x.max(), y.max())
    axes.plot([0, top], [0, top], color=colours.muted, linestyle=":", linewidth=1.2)
    axes.set(xlabel="predicted: predictions that the merge changes, %", ylabel="realised loss of accuracy, points")
    legend_below(figure, axes, False)
    figure.savefig(path, dpi=1000 / WIDTH, facecolor="white")


def drawn_forecasts(document, path):
    """The realised loss against the bound and against the expected loss, side by side."""
    from biascope.results.draw import PALETTE, WIDTH, blank, legend_below, panel

    figure, colours = blank(3.2), PALETTE[False]
    grid = figure.add_gridspec(1, 2)
    for place, (key, words) in enumerate((("bound", "bound"), ("expected", "expected loss"))):
        axes = panel(figure, False, grid[0, place])
        for (name, found), colour in zip(document.items(), colours.lines, strict=False):
            x, y = (100 * np.array([row[which] for row in found["rows"]]) for which in (key, "realised"))
            axes.plot(x, y, "o", markersize=4, color=colour, alpha=0.8, label=name)
        top = 100 * max(
            row[which] for found in document.values() for row in found["rows"] for which in ("bound", "realised")
        )
        axes.plot([0, top], [0, top], color=colours.muted, linestyle=":", linewidth=1.2)
        axes.set(xlabel=f"{words}, points", xlim=(-1, 1.03 * top), ylim=(-2, 1.03 * top))
        if not place:
            axes.set(ylabel="realised loss, points")
    legend_below(figure, figure.axes[0], False)
    figure.savefig(path, dpi=1000 / WIDTH, facecolor="white")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", action="append", choices=list(NAMES), help="which; all by default")
    parser.add_argument("--effort", default="smoke", choices=EFFORTS)
    parser.add_argument("--folder", type=Path, help="where fine-tunings (shared) and outcomes are kept")
    parser.add_argument("--json", type=Path, help="where numbers are written")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--points", type=int, default=1000, help="validation samples of each task")
    parser.add_argument("--seeds", type=int, default=1, help="task vectors of how many seeds")
    parser.add_argument("--draw", nargs=2, metavar=("JSON", "PNG"), help="only draw what was measured")
    options = parser.parse_args()
    if options.draw:
        document = json.loads(Path(options.draw[0]).read_text())
        (drawn if "encoders" in document else drawn_forecasts)(document, options.draw[1])
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        run = Run(folder / "merge_validation", options.device, options.precision, data_root=options.data_root)
        plan = planned(WITH_TEXTS).row(options.effort)
        chosen = [NAMES[name] for name in options.encoder or NAMES if NAMES[name] in plan["encoders"]]
        encoders = {name: validated(name, plan, options.points, options.seeds, run) for name in chosen}
    document = {"effort": options.effort, "points": options.points, "seeds": options.seeds, "encoders": encoders}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
