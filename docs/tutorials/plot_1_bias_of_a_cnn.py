"""
See your own CNN's bias
=======================

**Question.** Which input patterns does my CNN prefer before it has seen any data?

**Answer.** Measure its *mean gradient*: the number of directions over which it spreads, and the first directions as
images, say what the network prefers.
"""

# %%
# The network
# -----------
#
# Any function without arguments that returns a new module will do. This CNN takes images of 16 × 16 pixels and ends
# in global average pooling, as many CNNs do.

import matplotlib.pyplot as plt
import numpy as np
from torch import nn

import biascope
from biascope.results import atlas


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


# %%
# The measurement
# ---------------
#
# A *family* is the set of all networks that ``cnn()`` can return, with their random weights. A *probe* says at which
# inputs to measure. Here each network gets 64 new Gaussian inputs. We draw 400 networks and train none of them.

family = biascope.Family.initialised(cnn, name="CNN with global pooling")
probe = biascope.Probe.gaussian((1, 16, 16), num=64, fresh=True)
result = biascope.measure("mean_gradient", family, probe, draws=400)
print(result.sentence())

# %%
# The directions
# --------------
#
# A *direction* is an image of 16 × 16 pixels. The first direction is the pattern along which the mean gradient varies
# most from one initialisation to the next. The upper row shows pixels, the lower row spatial frequencies with
# frequency 0 in the centre.


def show(picture):
    """Display a figure with pyplot."""
    picture.set(facecolor="white", dpi=180)
    plt.figure(picture)


show(result.plots()["leading_directions"])

# %%
# The number
# ----------
#
# The *effective rank* counts directions, weighted by their share. It comes with a 95 % confidence interval over
# initialisations. An image of 16 × 16 pixels has 256 directions, so a number far below 256 is a strong preference.

rank = result.effective_rank
print(
    f"directions: {rank.value:.2f} of {result.size}, 95 % CI {rank.low:.2f} to {rank.high:.2f}"
)

# %%
# What is resolved
# ----------------
#
# With few draws, late directions are noise. Biascope splits the draws into two halves. A direction is *resolved*
# while both halves agree on the leading directions. Do not interpret the others.

print(f"resolved: {result.resolved} of {result.size} directions, from {result.draws} draws")
show(result.plot())

# %%
# Compare: flatten instead of pooling, and an MLP
# -----------------------------------------------
#
# Now we replace the global pooling by a flatten layer. An MLP without any convolution is the control.


def flattened_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def mlp():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


results = {"CNN with global pooling": result}
for name, build in {"CNN with flatten": flattened_cnn, "MLP": mlp}.items():
    results[name] = biascope.measure(
        "mean_gradient", biascope.Family.initialised(build, name=name), probe, draws=400
    )
for name, each in results.items():
    rank = each.effective_rank
    print(
        f"{name:24} {rank.value:6.1f} of {each.size} directions (95 % CI {rank.low:.1f} to {rank.high:.1f})"
    )

# %%
# The first direction of each network, and the share of the gradient's energy at each frequency (logarithmic colours).
# The MLP has no resolved direction: it treats all patterns alike.

figure, axes = plt.subplots(2, 3, figsize=(8, 5.4), layout="constrained")
for (name, each), (top, bottom) in zip(results.items(), axes.T, strict=True):
    top.set_title(f"{name}\n{each.effective_rank.value:.1f} of {each.size}")
    if each.resolved:
        image = each.directions[0].reshape(16, 16)
        top.imshow(image, cmap="RdBu_r", vmin=-abs(image).max(), vmax=abs(image).max())
    else:
        top.text(
            0.5,
            0.5,
            "no preferred\ndirection",
            ha="center",
            va="center",
            transform=top.transAxes,
        )
    energy = np.fft.fftshift(each.frequency_energy())
    bottom.imshow(np.log10(energy * energy.size), cmap="viridis", vmin=-1.5, vmax=1.5)
axes[0, 0].set_ylabel("first direction")
axes[1, 0].set_ylabel("energy by frequency")
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])

# %%
# Where it stands among other networks
# ------------------------------------
#
# Biascope ships the same number for the networks of its :doc:`atlas </atlas>`, measured on colour images of 32 × 32 pixels.
# Input sizes differ, so we compare shares of all directions. Bars are 95 % confidence intervals; your networks are orange.

rows = [
    (each.name, each.numbers["rank_share"], 1, "tab:blue")
    for each in atlas.rows()
    if each.library == "biascope" and "rank_share" in each.numbers
]
rows += [
    (name, each.effective_rank, each.size, "tab:orange") for name, each in results.items()
]
rows.sort(key=lambda row: row[1].value / row[2])
figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
for place, (_, rank, size, colour) in enumerate(rows):
    value, low, high = (100 * number / size for number in (rank.value, rank.low, rank.high))
    axis.errorbar(value, place, xerr=[[value - low], [high - value]], fmt="o", color=colour)
axis.set(xscale="log", xlabel="number of directions, % of all directions")
_ = axis.set_yticks(range(len(rows)), [row[0] for row in rows])

# %%
# **What to conclude**
#
# - The last layers matter. Both CNNs have the same two convolutions, and the one with global pooling has far fewer
#   directions.
# - Patterns along the first directions tend to be learned first and best. This was tested for LeNet, VGG11 and
#   ResNet-18.
# - An MLP has no preference among input directions.
#
# **What not to conclude**
#
# - Fewer directions do not mean a better or a worse network. It depends on where the classes of your data differ.
# - The number does not describe trained weights. Use the average geometry (``biascope scan --weights``) for those.
# - For a ViT, the relation with what is learned is weak and may be nothing.
#
# Read more: :doc:`/mean_gradient`. On the command line:
#
# .. code-block:: bash
#
#    biascope scan my_net.py:cnn --input 1x16x16
#    biascope compare my_net.py:cnn my_net.py:mlp --input 1x16x16
