"""
Which steps of a time series does my network see?
=================================================

**Question.** An LSTM and a convolution take the same series. Do they look at the same steps?

**Answer.** No. The scan shows the share of each step and of each frequency before training.
"""

# %%
# The networks
# ------------
#
# A series has 24 steps of 2 features. The LSTM reads its last state. The convolution averages over time at the end.
# It wants features before steps, so it turns its input.

import matplotlib.pyplot as plt
import torch
from torch import nn

import biascope

STEPS, FEATURES = 24, 2


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(FEATURES, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Conv1d(FEATURES, 16, 5, padding=2)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.relu(self.filters(x.mT)).mean(2))


# %%
# The scan
# --------
#
# Nobody has to name the axes. The first layer of each network tells which one is time.

run = biascope.Run(device="cpu", progress=False)
found = {}
for build in (Recurrent, Convolution):
    scanned = biascope.scan(
        build, input=(STEPS, FEATURES), draws=200, run=run, report=False
    )
    found[build] = scanned.results[0]
    print(found[build].sentence(), "\n")


def show(picture):
    """Display a figure with pyplot."""
    picture.set(facecolor="white", dpi=180)
    plt.figure(picture)


show(found[Recurrent].plots()["sensitivity_by_time"])

# %%
# An untrained LSTM forgets. A step loses about half of its influence with each step that follows. The convolution sees
# all steps alike, but the two ends a little less. Its sum over time lets slow changes pass, and removes fast ones:

show(found[Convolution].plots()["sensitivity_by_frequency"])

# %%
# A prediction
# ------------
#
# Two made-up tasks: the label is the sign of the mean of the first feature over the *first* four steps, or over the
# *last* four. The LSTM should learn the second one early. For the convolution, both should be alike.

series = torch.randn(1600, STEPS, FEATURES, generator=torch.Generator().manual_seed(0))
tasks = {
    "label on the first 4 steps": slice(0, 4),
    "label on the last 4 steps": slice(-4, None),
}
LONG, EVERY = 150, 15


def accuracies(build, steps, seed):
    """Test accuracy in percent, every few steps of a training."""
    torch.manual_seed(seed)
    network = build()
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    labels = (series[:, steps, 0].mean(1) > 0).long()
    history = []
    for step in range(LONG + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                right = network(series[1000:]).argmax(1) == labels[1000:]
            history.append(100 * right.float().mean().item())
        chosen = torch.randint(0, 1000, (64,))
        loss = nn.functional.cross_entropy(network(series[chosen]), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return history


figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
with torch.random.fork_rng():
    for panel, build in zip(panels, (Recurrent, Convolution), strict=True):
        for task, steps in tasks.items():
            curves = torch.tensor([accuracies(build, steps, seed) for seed in range(3)])
            panel.plot(
                range(0, LONG + 1, EVERY), curves.mean(0), "o-", markersize=3, label=task
            )
            ends = ", ".join(f"{value:.0f}" for value in curves[:, -1])
            print(f"{build.__name__}, {task}: {ends} % after {LONG} iterations")
        panel.set(title=build.__name__, xlabel="iteration")
panels[0].set_ylabel("test accuracy in %")
panels[0].legend()
show(figure)

# %%
# **What to conclude**
#
# - An untrained LSTM that reads its last state depends on the last steps. What happened early is learned late.
# - If your labels depend on early steps, start with another readout or another network, and scan again.
#
# **What not to conclude**
#
# - An LSTM *can* learn long memories. The scan says what is easy at the start, not what is possible.
# - Equal shares of all steps are no merit. The convolution cannot tell when something happened, and learns neither
#   task well.
# - The shares are those of white noise inputs. A series whose neighbours are alike may behave in another way.
#
# Read more: :doc:`/inputs` and :doc:`/mean_gradient`. On the command line:
#
# .. code-block:: bash
#
#    biascope compare my_nets.py:Recurrent my_nets.py:Convolution --input 24x2
