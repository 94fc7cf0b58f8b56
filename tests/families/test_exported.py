"""Graphs of torch.export: they are measured as the modules that they were exported from, and none of them ends the process."""

import io

import pytest
import torch
from networks_under_test import CPU
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.tape import Tape, TapeError
from biascope.kernels.gram import tangent_gram

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Accessing the data pointer")


class Convolutional(nn.Module):
    """With BatchNorm, dropout and a constant that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout()
        self.head, self.shift = nn.Linear(16, 1), torch.arange(4.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.convolution(x)).relu() + self.shift[:, None, None]
        return self.head(self.drop(hidden).flatten(1))


def exported(module: nn.Module | None = None, *, dynamic: bool = True) -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    return torch.export.export((module or Convolutional()).eval(), (torch.zeros(2, 1, 4, 4),), dynamic_shapes=shapes)


def saved_and_loaded(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = saved_and_loaded(exported()).module()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def built_within() -> nn.Module:
    return exported().module()


INPUTS = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("build", [built_within, Wrapped])
def test_a_builder_that_exports_is_built_one_by_one(build) -> None:
    """The recorder saw tensors without memory and asked for it: the process ended with status 134."""
    with pytest.raises(TapeError, match=r"it works on tensors that hold no numbers, as torch\.export does"):
        Tape.record(build)
    family = Family.initialised(build, "net")
    family.check_forward(INPUTS)
    stack = family.draw(2, seed=0, run=CPU)
    for index in range(2):
        member, plain = stack.member(index), Convolutional().eval()
        state = {**member.params, **member.buffers}
        plain.load_state_dict({key.removeprefix("inner."): state[key] for key in state}, strict=False)
        torch.testing.assert_close(stack(INPUTS)[index], plain(INPUTS), atol=1e-6, rtol=1e-5)


def test_an_exported_network_has_the_kernel_of_its_module() -> None:
    module = Convolutional().eval()
    found = tangent_gram(Network.of(saved_and_loaded(exported(module)).module()), INPUTS, run=CPU)
    wanted = tangent_gram(Network.of(module), INPUTS, run=CPU)
    torch.testing.assert_close(found.matrix, wanted.matrix, atol=1e-4, rtol=1e-4)


def test_what_is_needed_of_an_exported_network_is_told() -> None:
    fixed = Network.of(exported(dynamic=False).module(), name="net")
    with pytest.raises(
        ValueError, match=r"exported for one size of a batch: export it with dynamic_shapes=\(\{0: torch"
    ):
        tangent_gram(fixed, INPUTS, run=CPU)
    with pytest.raises(
        ValueError, match=r"^net must return a torch\.nn\.Module, got ExportedProgram\. Return its module\(\)\.$"
    ):
        Family.initialised(exported, "net")
