"""Weights that start at zero are told of where they switch off others, and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from biascope.derivatives.initial_zeros import doubts_of_zeros
from biascope.families.family import Family
from biascope.families.source import family_of, usual_shape
from biascope.measures.average_geometry import average_geometry
from biascope.measures.mean_gradient import mean_gradient
from biascope.measures.tangent_kernel import tangent_kernel
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays

CPU = Run(device="cpu", progress=False)
WIDTH = 8


class Residual(nn.Module):
    """Two residual branches, each with a scale of its own behind it."""

    def __init__(self, branch: Callable[[], nn.Module], scale: torch.Tensor) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 3)
        self.branches = nn.ModuleList(branch() for _ in range(2))
        self.gammas = nn.ParameterList(nn.Parameter(scale.clone()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1))
        for gamma, branch in zip(self.gammas, self.branches, strict=True):
            x = x + gamma * branch(x)
        return self.head(x)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 3)
        self.A, self.B = nn.Parameter(torch.randn(2, 16) / 4), nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.head(torch.tanh(self.base(x) + x @ self.A.T @ self.B.T))


class Gated(Residual):
    """A gate ``tanh(α)`` with α = 0, as before layers of cross-attention."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1))
        for gamma, branch in zip(self.gammas, self.branches, strict=True):
            x = x + torch.tanh(gamma) * branch(x)
        return self.head(x)


def branch(last: float | None = None, norm: float | None = None) -> nn.Module:
    layers = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH))
    if last is not None:
        nn.init.normal_(layers[-1].weight, std=last)
        nn.init.zeros_(layers[-1].bias)
    if norm is not None:
        layers.append(nn.BatchNorm1d(WIDTH))
        nn.init.constant_(layers[-1].weight, norm)
    return layers


def zero_biases(depth: int, head: float = 0.3) -> nn.Module:
    layers = [nn.Linear(16, 16) for _ in range(depth)]
    network = nn.Sequential(nn.Flatten(), *[each for layer in layers for each in (layer, nn.ReLU())], nn.Linear(16, 3))
    for layer in (*layers, network[-1]):
        nn.init.zeros_(layer.bias)
    nn.init.normal_(network[-1].weight, std=head)
    return network


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 4)), layer, nn.Flatten(), nn.Linear(16, 3))


def batchnorm(gamma: float = 1.0) -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    nn.init.constant_(layers[1].weight, gamma)
    return nn.Sequential(*layers)


def residual(kind: type[Residual] = Residual, scale: float | torch.Tensor = 1.0, **of_branch: float) -> nn.Module:
    return kind(functools.partial(branch, **of_branch), torch.as_tensor(scale, dtype=torch.float32))


SWITCHED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "last BatchNorm": (lambda: residual(norm=0.0), "branches.0.4.weight, branches.1.4.weight", "4 of its 6"),
    "ReZero": (lambda: residual(scale=0.0), "gammas.0, gammas.1", "4 of its 6"),
    "LayerScale": (lambda: residual(scale=torch.full((WIDTH,), 1e-6)), "gammas.0, gammas.1", "4 of its 6"),
    "LayerScale of channels": (
        lambda: residual(scale=torch.full((1, WIDTH), 1e-5)),
        "gammas.0, gammas.1",
        "4 of its 6",
    ),
    "a gate": (lambda: residual(Gated, scale=0.0), "gammas.0, gammas.1", "4 of its 6"),
    "last layer": (lambda: residual(last=0.0), "branches.0.3.weight, branches.1.3.weight", "2 of its 6"),
    "last layer near zero": (lambda: residual(last=1e-4), "branches.0.3.weight, branches.1.3.weight", "2 of its 6"),
    "two in a row": (
        lambda: residual(scale=0.0, norm=0.0),
        "branches.0.4.weight, branches.1.4.weight and 2 more",
        "4 of its 6",
    ),
    "low rank": (Adapted, "B", "1 of its 4"),
}
ORDINARY: dict[str, Callable[[], nn.Module]] = {
    "scales of one": residual,
    "a small scale": lambda: residual(scale=0.1),
    "zero biases": lambda: zero_biases(2),
    "many zero biases": lambda: zero_biases(12),
    "a small last layer": lambda: zero_biases(2, head=1e-5),
    "BatchNorm": batchnorm,
    "BatchNorm of a small scale throughout": lambda: batchnorm(1e-3),
    "LSTM": lambda: nn.Sequential(nn.Flatten(), Last(nn.LSTM(4, 3, batch_first=True))),
    "transformer": transformer,
}


class Last(nn.Module):
    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer
        nn.init.zeros_(layer.bias_ih_l0)
        nn.init.zeros_(layer.bias_hh_l0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.unflatten(1, (4, 4)))[0][:, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SWITCHED)
def test_what_is_switched_off_is_told(name: str, dtype: torch.dtype) -> None:
    build, switch, share = SWITCHED[name]
    (told,) = doubts_of_zeros(Family.initialised(build, name="net"), inputs(dtype))
    assert told.startswith(f"Weights of net that start at or near 0 ({switch}) switch off {share} layers (")
    assert told.endswith("measure weights after a few training steps (--weights FILE).")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_zeros_are_not_told(name: str, dtype: torch.dtype) -> None:
    assert not doubts_of_zeros(Family.initialised(ORDINARY[name], name="net"), inputs(dtype))


def inputs(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(2, 1, 4, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("law", ["pytorch", "flax"])
@pytest.mark.parametrize("name", ["lenet", "mlp", "vit", "logistic_regression", "siren"])
def test_networks_of_the_papers_have_no_part_that_is_switched_off(name: str, law: str) -> None:
    settings = {"law": law} if law == "flax" and name in ("lenet", "mlp", "logistic_regression") else {}
    family = family_of(name, settings=settings)
    x = torch.randn(2, *usual_shape(name, settings), generator=torch.Generator().manual_seed(0))
    assert not doubts_of_zeros(family, x)


def test_the_setting_of_the_builder_is_named() -> None:
    def build(outputs: int = 3, zero_init_last: bool = True) -> nn.Module:
        return residual(norm=0.0 if zero_init_last else 1.0)

    (told,) = doubts_of_zeros(Family.initialised(build), inputs(torch.float32))
    assert "Try another value of zero_init_last (--set zero_init_last=…), or measure weights after" in told
    assert not doubts_of_zeros(
        Family.initialised(functools.partial(build, zero_init_last=False)), inputs(torch.float32)
    )


def test_trained_weights_are_what_they_are() -> None:
    assert not doubts_of_zeros(Family.point(residual(scale=0.0)), inputs(torch.float32))


def test_results_say_so_beside_their_numbers() -> None:
    family = Family.initialised(lambda: residual(scale=0.0), name="net")
    probe = Probe.gaussian((1, 4, 4), num=2, fresh=True)
    x = torch.randn(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for result in (
        mean_gradient(family, probe, draws=16, run=CPU),
        average_geometry(family, probe, draws=16, estimator="difference", run=CPU),
        tangent_kernel(family, Arrays({"train": (x, torch.arange(12) % 2)}), leading=2, run=CPU),
    ):
        assert any("switch off" in warning for warning in result.warnings), type(result)


def test_an_output_that_starts_at_zero_is_refused_with_the_weights_that_cause_it() -> None:
    def build() -> nn.Module:
        layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))
        nn.init.zeros_(layers[-1].weight)
        return layers

    with pytest.raises(
        ValueError,
        match=r"its output is constant there\. Its weights 3\.weight are all 0\. Read the features before its head",
    ):
        mean_gradient(Family.initialised(build), Probe.gaussian((1, 4, 4), num=2, fresh=True), draws=8, run=CPU)
