"""
Does my network use every column of a table?
============================================

**Question.** My network takes a table with six columns. Does it use all of them, and on what scale?

**Answer.** A scan names columns that no output depends on, and columns that hold most of the sensitivity. It needs no
data.
"""

# %%
# A network with two mistakes
# ---------------------------
#
# Networks on tables often choose and scale their columns themselves. This one has two mistakes, as they happen when
# columns are added: a column is left out, and a spread has the wrong unit.

import dataclasses

import matplotlib.pyplot as plt
import torch
from torch import nn

import biascope
from biascope.results.axes import Axis

COLUMNS = ("age", "income", "height", "weight", "visits", "distance")


class Network(nn.Module):
    def __init__(self, used=(0, 2, 3, 4, 5), spreads=(1.0, 1.0, 1.0, 1.0, 0.05)):
        super().__init__()
        self.used = list(used)
        self.register_buffer("spreads", torch.tensor(spreads))
        layers = (nn.Linear(len(used), 32), nn.ReLU(), nn.Linear(32, 2))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x[:, self.used] / self.spreads)


# %%
# The scan
# --------
#
# Inputs are standardised columns: mean 0, variance 1. The names of the columns belong to the family.


def scanned(build, name):
    """The mean gradient of a network on the table."""
    family = biascope.Family.initialised(build, name=name)
    family = dataclasses.replace(family, axes=(Axis("feature", COLUMNS),))
    run = biascope.Run(device="cpu", progress=False)
    found = biascope.scan(family, input=(len(COLUMNS),), draws=200, run=run, report=False)
    return found.results[0]


def show(picture):
    """Display a figure with pyplot."""
    picture.set(facecolor="white", dpi=180)
    plt.figure(picture)


found = scanned(Network, "network")
print(found.sentence())
show(found.plots()["sensitivity_by_feature"])

# %%
# Nearly all of the sensitivity is on one column, whose spread is 20 times too small. Correct it, and scan again:


def rescaled():
    return Network(spreads=(1.0,) * 5)


print(scanned(rescaled, "network with one spread").sentence())

# %%
# Now the second mistake is told: the income is not used. With all columns, the scan has nothing to say.


def corrected():
    return Network(used=range(6), spreads=(1.0,) * 6)


print(scanned(corrected, "corrected network").sentence())

# %%
# Does it matter?
# ---------------
#
# A made-up label: whether income and age together are above average. Each network is trained three times on the same
# 400 rows.

rows = torch.randn(1400, len(COLUMNS), generator=torch.Generator().manual_seed(0))
labels = (rows[:, 0] + rows[:, 1] > 0).long()


def accuracy(build, seed, steps=150):
    """Test accuracy in percent after a short training."""
    torch.manual_seed(seed)
    network = build()
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        chosen = torch.randint(0, 400, (64,))
        loss = nn.functional.cross_entropy(network(rows[chosen]), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return 100 * (network(rows[400:]).argmax(1) == labels[400:]).float().mean().item()


with torch.random.fork_rng():
    for build in (Network, rescaled, corrected):
        ends = ", ".join(f"{accuracy(build, seed):.0f}" for seed in range(3))
        print(f"{build.__name__:10} {ends} % of 1,000 test rows right")

# %%
# The column that is left out costs 27 points. The wrong spread costs none here: a few steps of Adam make up for it.
#
# **What to conclude**
#
# - A column that changes no output is a mistake, or should be left out of the data.
# - A column with most of the sensitivity has another scale than the others, inside or outside of the network.
#
# **What not to conclude**
#
# - Shares of columns before training are no feature importance. They do not know the data or the labels.
# - An even spread does not say that the network is good. It says that no column has a head start.
# - Gaussian inputs are no rows of your table. Categories and missing values behave in other ways.
#
# Read more: :doc:`/inputs` and :doc:`/answers`. On the command line:
#
# .. code-block:: bash
#
#    biascope scan my_table.py:Network --input 6
