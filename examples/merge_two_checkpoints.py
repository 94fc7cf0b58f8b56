"""May two fine-tuned checkpoints be merged? They are made here; load your own files instead. No labels are needed."""

import torch
from torch import nn

from biascope import Arrays, Network
from biascope.editing.heads import identity_head
from biascope.editing.vectors import TaskVector
from biascope.measures.merge_check import merge_check


def build():
    """The network of all checkpoints."""
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def tuned(start, x, y, steps=150):
    """Weights after training on one task."""
    (network := build()).load_state_dict(start)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
    return network.state_dict()


torch.manual_seed(0)
x, rule = torch.randn(1000, 16), torch.randn(16, 4)
tasks = {"shifted": x + 0.3, "noisy": x + 0.3 * torch.randn(1000, 16)}
base = tuned(build().state_dict(), x, (x @ rule).argmax(1))
models = {name: tuned(base, inputs, (x @ rule).argmax(1), steps=50) for name, inputs in tasks.items()}

result = merge_check(
    Network.of(build()).with_params(base),
    {name: identity_head(4) for name in models},
    {name: TaskVector.between(base, weights) for name, weights in models.items()},
    {name: Arrays({"test": (inputs, torch.zeros(1000, dtype=torch.long))}) for name, inputs in tasks.items()},
)
print(result.sentence())
