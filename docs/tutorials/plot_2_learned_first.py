"""
Which functions does my network learn first?
============================================

**Question.** My network can fit any labels. Which labels does it fit quickly?

**Answer.** Labels that lie on the first eigenfunctions of its *tangent kernel*. Biascope measures their share before
training.
"""

# %%
# The data
# --------
#
# 300 images of 16 × 16 pixels show a disc or a ring, somewhere near the centre, with noise. All images have the same
# energy before noise.

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import biascope
from biascope.measures.tangent_kernel import tangent_kernel

count, stream = 300, np.random.default_rng(0)
rows, columns = np.mgrid[:16, :16]
classes = np.arange(count) % 2
down, across, radius = (
    stream.uniform(low, high, (count, 1, 1)) for low, high in ((5, 10), (5, 10), (3, 5))
)
distance = np.hypot(rows - down, columns - across)
inner = np.where(classes == 1, radius[:, 0, 0] - 1.5, -1)[
    :, None, None
]  # class 1 has a hole
shapes = ((distance < radius) & (distance > inner)).astype(float)
shapes /= np.sqrt(np.mean(shapes**2, axis=(1, 2), keepdims=True))
images = torch.tensor(
    (shapes + stream.normal(0, 0.5, shapes.shape))[:, None], dtype=torch.float32
)
labels = torch.tensor(classes)

figure, axes = plt.subplots(2, 6, figsize=(8, 2.9), layout="constrained")
for place, axis in enumerate(axes.T.flat):
    axis.imshow(images[place, 0], cmap="gray")
    axis.set(xticks=[], yticks=[])
for axis, word in zip(axes[:, 0], ("disc: class 0", "ring: class 1"), strict=True):
    axis.set_ylabel(word)

# %%
# The tangent kernel
# ------------------
#
# A training step on one sample also changes the output on others. The tangent kernel says by how much. Gradient
# descent learns its *eigenfunctions*, the first ones first. We compute the exact kernel of three initialisations, and
# ask how much of the labels lies on the first 50 of 300 eigenfunctions. Random labels on the same images are the
# control.


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 1),
    )


family = biascope.Family.initialised(build, name="small CNN")
shuffled = labels[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
targets = {"disc or ring": labels, "random labels": shuffled}
found = {
    name: tangent_kernel(
        family, biascope.Arrays({"train": (images, y)}, name=name), leading=50, draws=3
    )
    for name, y in targets.items()
}
for name, result in found.items():
    share = result.headline()["labels_energy"]
    print(f"{name:14} share on the first 50 eigenfunctions: {share}")

# %%
# The share of the true labels rises much faster than chance. That of random labels stays near the chance line.

figure, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
places = np.arange(1, 51)
for name, result in found.items():
    energy = 100 * result.labels_energy
    axis.plot(places, energy.mean(0), label=name)
    axis.fill_between(places, energy.min(0), energy.max(0), alpha=0.2)
axis.plot(places, 100 * places / count, ":", color="0.5", label="chance")
axis.set(xlabel="number of eigenfunctions", ylabel="share of the labels, %", ylim=(0, 100))
_ = axis.legend(title="mean and range of 3 initialisations")

# %%
# What the first eigenfunctions separate
# --------------------------------------
#
# For each of the first eigenfunctions, the picture shows the images on which it is lowest and highest. The first one
# is nearly constant, so it holds nothing of balanced labels.


def show(picture):
    """Display a figure with pyplot."""
    picture.set(facecolor="white", dpi=180)
    plt.figure(picture)


show(found["disc or ring"].plots()["eigenfunction_samples"])

# %%
# Does training agree?
# --------------------
#
# We train the network by gradient descent on five targets: the sign of eigenfunctions 2, 10 and 50, the true labels
# and the random labels. Each target has values ±1, so every curve would start at about 1 for an output near 0. We use
# another initialisation than the ones measured above.


def losses(target, seed, steps=100, rate=0.005):
    """Mean squared error during full-batch gradient descent."""
    torch.manual_seed(seed)
    network, found = build(), []
    optimiser = torch.optim.SGD(network.parameters(), rate)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (network(images)[:, 0] - target).square().mean()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


functions = found["disc or ring"].eigenfunctions
learned = {f"eigenfunction {k}": torch.tensor(functions[k - 1]).sign() for k in (2, 10, 50)}
learned |= {name: 2.0 * y - 1 for name, y in targets.items()}
figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
for index, (name, target) in enumerate(learned.items()):
    runs = np.array([losses(target, seed) for seed in (10, 11, 12)])
    axis.plot(runs.mean(0), color=f"C{index}", label=name)
    axis.fill_between(
        range(runs.shape[1]), runs.min(0), runs.max(0), color=f"C{index}", alpha=0.2
    )
    print(f"{name:17} final loss: {', '.join(f'{each:.2f}' for each in runs[:, -1])}")
axis.set(xlabel="iterations of gradient descent", ylabel="training loss", ylim=(0, 1.3))
_ = axis.legend(title="mean and range of 3 seeds")

# %%
# **What to conclude**
#
# - Early eigenfunctions are learned first, late ones and random labels hardly at all in the same time.
# - A large share of the labels on few eigenfunctions means that this network finds these labels easy on these
#   samples.
#
# **What not to conclude**
#
# - Labels with a small share are not impossible. Training changes the kernel, and networks learn functions that their
#   first kernel hardly contains.
# - A large share is about fitting these samples. It does not prove good accuracy on new images.
# - Shares depend on the number of samples. Compare them only at equal numbers.
#
# Read more: :doc:`/tangent_kernel` and :doc:`/kernel_rotation`. On the command line:
#
# .. code-block:: bash
#
#    biascope kernel my_net.py:build --data my_images.npz --draws 4
