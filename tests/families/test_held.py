"""Networks of several inputs, all but one of which are held."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope import Family, Run, scan
from biascope.families.held import Holding

CPU = Run(device="cpu")
RING = (torch.eye(5) + torch.eye(5).roll(1, 0)) / 2
EDGES = torch.tensor([[1, 2], [0, 0]])


class Graph(nn.Module):
    """Takes batches of nodes × features and one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return torch.tanh(adjacency @ self.layer(x))


class Edges(nn.Module):
    """Takes one graph, without an axis for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = torch.tanh(self.layer(x))
        return torch.zeros_like(rows).index_add(0, edge_index[1], rows[edge_index[0]])


class Masked(nn.Module):
    """Takes a dictionary with a mask for each sample and something optional."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, batch: dict) -> dict:
        rows = self.layer(batch["x"]) if batch["shift"] is None else self.layer(batch["x"]) + batch["shift"]
        mask = batch["mask"].to(rows).unsqueeze(-1)
        return {"logits": (rows * mask).sum(1) / mask.sum(1)}


class Ranked(nn.Module):
    """Adds a number for each place of the batch: one of the batch and a copy for each sample differ."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        return self.layer(x) * offset.sum()


def one_input(build, held: dict, shape: tuple[int, ...], measured: str = "") -> nn.Module:
    holding = Holding.of(held, measured)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    return holding.wrapper(build, x, "mine")(build())


def test_a_graph_goes_with_a_batch_or_with_each_sample():
    x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    graph = one_input(Graph, {"adjacency": RING}, (5, 3))
    assert torch.allclose(graph(x), graph.module(x, RING))
    edges = one_input(Edges, {"edge_index": EDGES}, (5, 3))
    assert edges.way == "sample by sample"
    assert torch.allclose(edges(x), torch.stack([edges.module(each, EDGES) for each in x]))


def test_dictionaries_masks_and_none():
    mask = np.array([True, True, False, False, False])
    module = one_input(Masked, {"mask": mask, "shift": "none"}, (5, 3), "x")
    x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    moved = x.clone()
    moved[:, 2:] += 1
    assert torch.equal(module(x)["logits"], module(moved)["logits"])
    found = scan(
        Masked, input="x=5x3", hold={"mask": mask, "shift": None}, axes="token,channel", draws=64, run=CPU, report=False
    )
    assert "Over 99 % of the sensitivity is on the first 2 of 5 tokens." in found.results[0].sentence()


def test_nodes_that_a_graph_leaves_out():
    found = scan(Edges, input=(5, 3), hold={"edge_index": EDGES}, draws=64, run=CPU, report=False).results[0]
    assert "is on nodes 2 and 3 of 5." in found.sentence()


def test_what_is_held_is_part_of_the_identity():
    first, second = (
        Family.point(Holding.of({"adjacency": graph}).wrapper(Graph, torch.randn(3, 5, 3), "mine")(Graph())).identity
        for graph in (RING, torch.eye(5))
    )
    assert first != second


def test_a_sum_over_what_is_held_belongs_to_the_batch():
    module = one_input(Ranked, {"offset": torch.ones(4)}, (3,))
    assert module.way == "one for the batch"
    assert torch.allclose(module(torch.ones(2, 3)), 4 * module.module.layer(torch.ones(2, 3)))


class Counting(Ranked):
    """Behaves in another way where it is given a batch of offsets."""

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        return self.layer(x) * offset.dim()


def test_two_ways_with_different_outputs_are_refused():
    with pytest.raises(ValueError, match="once for each sample or once for a batch"):
        one_input(Counting, {"offset": torch.ones(4)}, (3,))


@pytest.mark.parametrize(
    ("held", "measured", "message"),
    [
        ({"adj": RING}, "", "must have an input 'adj' to hold, and has x, adjacency"),
        ({"adjacency": torch.eye(4)}, "", "but that failed with"),
        ({"adjacency": "graph"}, "", "a number, true, false, none, or a file"),
        ({"adjacency": "missing.npy"}, "", "must be a file, but missing.npy does not exist"),
        ({"adjacency": RING / 0}, "", "no missing values, got 15 NaN of 25"),
        ({"adjacency": np.array(["a", "b"])}, "", "must be numbers or truth values"),
        ({"adjacency": RING}, "nodes", "must have an input 'nodes'"),
        ({"adjacency": object()}, "", "a tensor, an array, a number or None"),
    ],
)
def test_what_cannot_be_held_is_refused(held, measured, message):
    with pytest.raises(ValueError, match=message):
        one_input(Graph, held, (5, 3), measured)
    with pytest.raises(ValueError, match="name the measured entry"):
        one_input(Masked, {"mask": RING[0], "shift": None}, (5, 3))


class Nameless(nn.Module):
    """Takes inputs by place alone."""

    def forward(self, x: Tensor, /, *others: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


def test_inputs_without_names_cannot_be_held():
    with pytest.raises(ValueError, match="must have inputs with names, to hold mask, but has none"):
        one_input(Nameless, {"mask": RING}, (3,))


def test_a_mask_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="with mask, shift held, but that failed with: outputs that are not finite"):
        scan(Masked, input="x=5x3", hold={"mask": np.zeros(5), "shift": None}, axes="token,channel", run=CPU)


def test_what_to_type_next_names_axes_and_what_is_held():
    found = scan(Graph, input=(5, 3), hold={"adjacency": RING}, draws=16, run=CPU, report=False).results[0]
    commands = [step.command for step in found.story().next_steps if "compare" in step.command]
    assert commands == ["biascope compare MODEL OTHER_MODEL --input 5x3 --axes node,feature --hold adjacency=FILE"]


def test_a_family_holds_nothing():
    with pytest.raises(ValueError, match="Pass its builder or module with hold="):
        scan(Family.initialised(lambda: nn.Linear(3, 1)), input=(3,), hold={"mask": None}, run=CPU)


def test_the_shape_is_needed():
    with pytest.raises(ValueError, match="shape of the measured input"):
        scan(Graph, hold={"adjacency": RING}, run=CPU)
