"""
Which words does my text classifier read?
=========================================

**Question.** My classifier takes token ids. On which tokens does its output depend before training, and does that
matter?

**Answer.** A scan in the space of the embeddings says which tokens. Labels that depend on them are learned first.
"""

# %%
# The network
# -----------
#
# A transformer layer on 12 token ids. It reads the first token, as BERT reads its class token. A second one averages
# over all tokens.

import matplotlib.pyplot as plt
import torch
from torch import nn

import biascope

TOKENS, WORDS, WIDTH = 12, 20, 16


class Classifier(nn.Module):
    def __init__(self, pooled=False):
        super().__init__()
        self.pooled = pooled
        self.table = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids):
        rows = self.table(ids) + self.places(torch.arange(TOKENS, device=ids.device))
        rows = self.layer(rows)
        return self.head(rows.mean(1) if self.pooled else rows[:, 0])


def reads_first():
    return Classifier()


def reads_mean():
    return Classifier(pooled=True)


# %%
# The scan
# --------
#
# A token id has no gradient. So the input is put in place of the table of embeddings: 12 tokens × 16 channels. The
# scan finds the table by itself.

run = biascope.Run(device="cpu", progress=False)
found = {}
for build in (reads_first, reads_mean):
    scanned = biascope.scan(
        build, input=(TOKENS, WIDTH), axes="token,channel", draws=200, run=run, report=False
    )
    found[build] = scanned.results[0]
    print(found[build].sentence(), "\n")


def show(picture):
    """Display a figure with pyplot."""
    picture.set(facecolor="white", dpi=180)
    plt.figure(picture)


show(found[reads_first].plots()["sensitivity_by_token"])

# %%
# Nearly everything lies on the first token. The averaging network has no such place, and the scan names none.
#
# A prediction
# ------------
#
# Two made-up tasks. In the first, the label is whether the *first* id is below 10. In the second, it is the *last* id.
# The tasks are equally hard for a person. If the scan is right, the first network learns the first task long before the
# second, and the averaging network has no such order.

texts = torch.randint(0, WORDS, (1200, TOKENS), generator=torch.Generator().manual_seed(0))
tasks = {"label on the first token": 0, "label on the last token": TOKENS - 1}
STEPS, EVERY = 120, 10


def accuracies(build, place, seed):
    """Test accuracy in percent, every few steps of a training."""
    torch.manual_seed(seed)
    network = build()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    labels = (texts[:, place] < WORDS // 2).long()
    history = []
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                right = network(texts[800:]).argmax(1) == labels[800:]
            history.append(100 * right.float().mean().item())
        chosen = torch.randint(0, 800, (64,))
        loss = nn.functional.cross_entropy(network(texts[chosen]), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return history


# %%
# Each network learns each task three times.

figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
with torch.random.fork_rng():
    for panel, (build, title) in zip(
        panels,
        ((reads_first, "reads the first token"), (reads_mean, "averages")),
        strict=True,
    ):
        for task, place in tasks.items():
            curves = torch.tensor([accuracies(build, place, seed) for seed in range(3)])
            panel.plot(
                range(0, STEPS + 1, EVERY), curves.mean(0), "o-", markersize=3, label=task
            )
            ends = ", ".join(f"{value:.0f}" for value in curves[:, -1])
            print(f"{title}, {task}: {ends} % after {STEPS} steps")
        panel.set(title=title, xlabel="training step")
panels[0].set_ylabel("test accuracy in %")
panels[0].legend()
show(figure)

# %%
# **What to conclude**
#
# - The scan finds the tokens that an untrained network reads, without data and without training.
# - Labels that depend on these tokens are learned first.
#
# **What not to conclude**
#
# - The other tokens are not lost. Attention can carry them to the first token, and longer training learns them.
# - The share is about random embeddings and initial weights. Measure a trained network with its weights.
# - A task of single tokens is the clearest case. Real labels depend on many tokens.
#
# Read more: :doc:`/inputs` and :doc:`/models`. On the command line:
#
# .. code-block:: bash
#
#    biascope scan my_text.py:build --input 12x16 --axes token,channel
#    biascope scan hf-config:bert
