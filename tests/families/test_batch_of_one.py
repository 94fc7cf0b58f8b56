"""Gradients of one input alone: torch lays some of them out so that its own batch normalisation misreads them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from biascope.families.network import Network

NORMALISATIONS = {
    "batch": lambda: nn.BatchNorm2d(8),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True),
}


class Tokens(nn.Module):
    """Patches of a convolution become tokens, whose gradient lies channels last."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 2, stride=2), norm, nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        weights = torch.linspace(0, 1, tokens.shape[1], dtype=x.dtype).unsqueeze(1)
        return torch.tanh(self.head(weights * tokens)).mean(1)


def network(norm: Callable[[], nn.Module]) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Tokens(norm()).double()
        nn.init.uniform_(module.norm.weight, 0.5, 2)
    return Network.of(module).read("first")


@pytest.mark.parametrize("norm", NORMALISATIONS)
def test_the_gradient_of_one_input_is_that_of_differences(norm: str) -> None:
    found = network(NORMALISATIONS[norm])
    x = torch.randn(3, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    direction = torch.randn(x[:1].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    together = x.clone().requires_grad_()
    (all_at_once,) = torch.autograd.grad(found(together).sum(), together)
    for index in range(len(x)):
        one = x[index : index + 1].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(found(one).sum(), one)
        torch.testing.assert_close(gradient[0], all_at_once[index])
        with torch.no_grad():
            slope = (found(one + 1e-5 * direction) - found(one - 1e-5 * direction)).sum() / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-7, atol=1e-10)
