"""Measure a network while your own loop trains it, and send the numbers to a tool that is installed."""

import importlib.util
import tempfile

import torch
from torch import nn

import biascope
from biascope.training.callbacks import logger

torch.manual_seed(0)
images = torch.randn(512, 1, 8, 8)
classes = (images[:, 0, :, 0].sum(1) > 0).long()  # the sum of the first column alone matters
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def log(name, value, step):
    """Print a number; with a tool that is installed, it is also drawn there."""
    print(f"step {step:3}: {name} {value:.1f}")
    if draw is not None:
        draw(name, value, step)


draw = logger("tensorboard", log_dir=tempfile.mkdtemp()) if importlib.util.find_spec("tensorboard") else None
# Others are called in the same way: logger("wandb", project="mine") or logger("trackio", project="mine").
rank = biascope.hook("average_geometry", biascope.Probe.fixed(images[:128]), number="effective_rank", draws=2)
observer = biascope.Observer(network, at=(0, 20, 50, 200), hooks={"effective rank": rank}, log=log)
optimiser = torch.optim.SGD(network.parameters(), 0.1)
for _ in range(200):
    batch = torch.randint(len(images), (64,))
    optimiser.zero_grad()
    loss = nn.functional.cross_entropy(network(images[batch]), classes[batch])
    loss.backward()
    optimiser.step()
    observer(loss)

losses = observer.trajectory().losses
print(f"The loss fell from {float(losses[0]):.2f} to {float(losses[-1]):.2f}.")
print("TensorBoard shows the numbers too." if draw else "TensorBoard is not installed.")
