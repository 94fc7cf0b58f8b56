"""Names of axes by the first layer that takes the input."""

import pytest
import torch
from torch import Tensor, nn

from biascope import Family
from biascope.results.axes import Axis


class Turned(nn.Module):
    """A sequence given as time × feature, which a convolution takes as feature × time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(1, 2)).mean((1, 2), keepdim=False)[:, None]


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first, self.layer = batch_first, nn.GRU(4, 3, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.layer(x if self.batch_first else x.transpose(0, 1))[0]
        return outputs[:, -1] if self.batch_first else outputs[-1]


def names(module: nn.Module, *shape: int) -> list[str]:
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    return [axis.name for axis in Family.point(module).axes_at(x)]


def test_layers_name_the_axes_of_what_they_take():
    assert names(nn.Sequential(nn.Conv1d(4, 2, 3), nn.Flatten()), 4, 9) == ["channel", "time"]
    assert names(Turned(), 9, 4) == ["channel", "time"][::-1]
    assert names(Recurrent(True), 9, 4) == ["time", "feature"]
    assert names(Recurrent(False), 9, 4) == ["time", "feature"]
    assert names(nn.Sequential(nn.Linear(4, 2), nn.Flatten()), 9, 4) == ["position", "feature"]
    assert names(nn.Linear(4, 2), 4) == ["feature"]


def test_where_no_layer_takes_the_input_itself_nothing_is_said():
    assert names(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), 9, 4) == []
    assert names(nn.Sequential(nn.Tanh(), nn.Conv1d(4, 2, 3), nn.Flatten()), 4, 9) == []
    assert names(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), 3, 4, 4) == []


def test_what_is_said_goes_before_layers_and_must_fit():
    family = Family.point(nn.Linear(4, 2))
    object.__setattr__(family, "axes", (Axis("node"), Axis("feature")))
    assert [axis.name for axis in family.axes_at(torch.zeros(2, 5, 4))] == ["node", "feature"]
    with pytest.raises(ValueError, match=r"as many as those of its inputs .* Name each of them in --axes"):
        family.axes_at(torch.zeros(2, 4))
