"""Networks on token ids, measured in the space of their embeddings."""

import pytest
import torch
from torch import Tensor, nn

from biascope import Family, Run, scan
from biascope.families.embedded import on_embeddings

CPU = Run(device="cpu")


class Texts(nn.Module):
    """Reads the first token; the output layer has the weights of the table."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.table, self.places, self.masked = nn.Embedding(20, 6), nn.Embedding(8, 6), masked
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        if self.masked:
            rows = rows * (ids != 0).unsqueeze(-1)
        return self.head(torch.tanh(self.mix(rows[:, 0])))


class WithMask(Texts):
    """Takes a mask beside the ids."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        rows = (self.table(ids) + self.places(torch.arange(ids.shape[1]))) * mask.unsqueeze(-1)
        return self.head(self.mix(rows.sum(1)))


def test_outputs_are_those_of_the_ids_with_these_embeddings():
    torch.manual_seed(0)
    module, ids = Texts(), torch.tensor([[3, 4, 5], [7, 0, 1]])
    expected, rows = module(ids), module.table(ids).detach()
    embedded = on_embeddings(Texts, (3, 6), "mine")(module)
    assert torch.allclose(embedded(rows / embedded.scale), expected, atol=1e-6)
    assert "module.head.weight" in dict(embedded.named_parameters())


def test_the_token_that_is_read_is_found():
    found = scan(Texts, input=(5, 6), axes="token,channel", draws=64, run=CPU, report=False).results[0]
    assert "Over 99 % of the sensitivity is on the first of 5 tokens." in found.sentence()
    torch.manual_seed(0)
    given = Texts()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    one = scan(given, input=(5, 6), axes="token,channel", draws=16, run=CPU, report=False).results[0]
    assert one.at_given_weights
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())


def test_a_mask_is_held_beside_the_ids():
    mask = torch.tensor([0.0, 1.0, 1.0, 0.0])
    found = scan(WithMask, input=(4, 6), hold={"mask": mask}, axes="token,channel", draws=64, run=CPU, report=False)
    assert "Over 99 % of the sensitivity is on tokens 2 to 3 of 4." in found.results[0].sentence()


def test_what_is_no_network_on_ids_stays():
    assert on_embeddings(lambda: nn.Linear(6, 2), (3, 6), "mine") is None


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (Texts, (3, 5), "has embeddings of 6 channels, got 3×5. Pass --input 3x6"),
        (Texts, (9, 6), "must accept texts of 9 tokens"),
        (lambda: Texts(masked=True), (3, 6), "in its table alone"),
    ],
)
def test_what_cannot_be_measured_is_refused(build, shape, message):
    with pytest.raises(ValueError, match=message):
        on_embeddings(build, shape, "mine")


def test_ids_as_inputs_are_told_what_to_type():
    with pytest.raises(ValueError, match="--input 16x64 --axes token,channel"):
        Family.initialised(Texts).first_outputs(torch.zeros(2, 5))
