"""The picture of docs/training.md: a measurement along a training, by an Observer with a hook.

BIASCOPE_DATA=FOLDER python docs/make_observer_picture.py     # about a minute on one CPU core
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.nn import functional

import biascope
from biascope.results import draw

STEPS = 1000
AT = (0, 10, 20, 50, 100, 200, 500, 1000)


def observed() -> biascope.Observer:
    """LeNet on MNIST, batches of 64, Adam."""
    samples = biascope.samples_of("mnist", sizes=(20_000,))
    torch.manual_seed(0)
    module = biascope.network("lenet")(image_size=28, outputs=10)
    probe = biascope.Probe.gaussian((1, 28, 28), num=16, fresh=True)
    rank = biascope.hook("average_geometry", probe, number="effective_rank", draws=100)
    observer = biascope.Observer(module, at=AT, hooks={"rank": rank}, keep=False)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.001)
    for _ in range(STEPS):
        x, y = samples.batch("train", torch.randint(samples.sizes["train"], (64,)))
        optimiser.zero_grad()
        loss = functional.cross_entropy(module(x), y)
        loss.backward()
        optimiser.step()
        observer(loss)
    return observer


def picture(observer: biascope.Observer) -> Figure:
    """The effective rank with its interval, and below it the loss."""
    seen, losses = observer.seen["rank"], observer.trajectory().losses[:, 0]
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    colour = draw.PALETTE[False].lines[0]
    above.fill_between(
        list(seen),
        [each.low for each in seen.values()],
        [each.high for each in seen.values()],
        color=colour,
        alpha=0.25,
    )
    above.plot(list(seen), [each.value for each in seen.values()], color=colour, marker="o")
    above.set(ylabel="effective rank of 784", ylim=(0, None))
    below.plot(range(1, len(losses) + 1), losses, color=draw.PALETTE[False].lines[1], linewidth=0.8)
    below.set(xlabel="iteration", ylabel="training loss", ylim=(0, None))
    below.set_xscale("symlog", linthresh=10)
    below.set_xlim(0, STEPS)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    found = observed()
    for step, number in found.seen["rank"].items():
        print(step, number)
    picture(found).savefig(Path(__file__).parent / "images" / "observer.png", dpi=130)
