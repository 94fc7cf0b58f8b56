"""The picture of docs/inputs.md: where untrained networks on a time series, a table, a text and a graph are sensitive.

    python docs/make_inputs.py        # half a minute on two cores

Draws docs/images/inputs.png.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from biascope import Run, scan
from biascope.measures.covariance.shares import Shares
from biascope.results import draw

STEPS, WIDTH = 24, 8


class Lstm(nn.Module):
    """Reads the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(3, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs."""
        return self.head(self.inner(x)[0][:, -1])


class Table(nn.Module):
    """An MLP on 8 columns, two of which are left out by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs."""
        return self.inner(x[:, [0, 1, 2, 4, 5, 7]])


class Text(nn.Module):
    """A transformer layer on token ids, read at the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(50, WIDTH), nn.Embedding(12, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Two outputs."""
        rows = self.table(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.layer(rows)[:, 0])


class Graph(nn.Module):
    """Two graph convolutions, read at the first node."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Two outputs."""
        return self.second(adjacency @ torch.relu(self.first(adjacency @ x)))[:, 0]


def ring(nodes: int) -> Tensor:
    """Each node joined with itself and its two neighbours."""
    own = torch.eye(nodes)
    return (own + own.roll(1, 0) + own.roll(-1, 0)) / 3


def main() -> None:
    """Measure and draw."""
    asked = {
        "LSTM, by step": (Lstm, (STEPS, 3), {}, "time"),
        "MLP, by column": (Table, (8,), {}, "feature"),
        "text, by token": (Text, (12, WIDTH), {"axes": "token,channel"}, "token"),
        "graph, by node": (Graph, (8, 4), {"hold": {"adjacency": ring(8)}}, "node"),
    }
    figure = Figure(figsize=(11, 2.9), layout="constrained")
    for axes, (title, (build, shape, how, axis)) in zip(figure.subplots(1, len(asked)), asked.items(), strict=True):
        result = scan(
            build, input=shape, draws=200, run=Run(device="cpu", progress=False), report=False, **how
        ).results[0]
        print(result.sentence())
        (shares,) = (each for each in result.shares() if each.name == axis)
        shown(axes, shares)
        axes.set_title(title, fontsize=11)
    figure.axes[0].set_ylabel("share of the sensitivity in %")
    figure.savefig(Path(__file__).parent / "images" / "inputs.png", dpi=110, facecolor="white")


def shown(axes: object, shares: Shares) -> None:
    """The share of each place with its interval, and an even spread as a dotted line."""
    each, places = shares.each(), range(1, len(shares.labels) + 1)
    apart = [[100 * (one.value - one.low) for one in each], [100 * (one.high - one.value) for one in each]]
    axes.bar(places, [100 * one.value for one in each], yerr=apart, color=draw.PALETTE[False].lines[0], ecolor="0.4")
    axes.plot(places, 100 * shares.isotropic, ":", color="0.4")
    axes.set_xlabel(shares.axis.noun(2))


if __name__ == "__main__":
    main()
