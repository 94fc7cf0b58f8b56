"""Small networks on inputs that are no images: tables, sequences, tokens, graphs, dictionaries."""

import torch
from torch import nn


def table():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


class Lstm(nn.Module):
    """Reads the last state."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def bare_lstm():
    """Returns a tuple."""
    return nn.LSTM(3, 8, batch_first=True)


def conv():
    return nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))


class Ids(nn.Module):
    """Reads the first of several token ids."""

    def __init__(self):
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(self.table(ids)))[:, 0])


class IdsAndMask(nn.Module):
    """Averages the tokens that a mask leaves."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids, mask):
        kept = mask.float().unsqueeze(-1)
        return (torch.tanh(self.head(self.table(ids))) * kept).sum(1) / kept.sum(1)


class Embedded(nn.Module):
    """The same of embeddings."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x, mask=None):
        kept = torch.ones(x.shape[:2]) if mask is None else mask.float()
        return (torch.tanh(self.head(x)) * kept.unsqueeze(-1)).sum(1) / kept.sum(1).unsqueeze(-1)


class Graph(nn.Module):
    """Takes batches and one graph."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x, adjacency):
        return self.last(adjacency @ torch.relu(self.first(adjacency @ x)))[:, 0]


class Edges(nn.Module):
    """Takes one graph, without a batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, edge_index):
        rows = torch.tanh(self.layer(x))
        return torch.zeros_like(rows).index_add(0, edge_index[1], rows[edge_index[0]])[0]


class Parts(nn.Module):
    """Takes a dictionary."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, batch):
        return (torch.tanh(self.layer(batch["x"])) * batch["weight"].unsqueeze(-1)).sum(1)
