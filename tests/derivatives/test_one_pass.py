"""What one pass takes is counted, and bounds how many inputs are passed together and looked at by checks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from biascope.derivatives import covariance, one_pass
from biascope.derivatives.covariance import GradientSampler
from biascope.derivatives.gradients import input_gradient
from biascope.derivatives.one_pass import OnePass, in_passes
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

CPU = Run(device="cpu", progress=False)


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 1))


def sampler(num: int, family: Family | None = None) -> GradientSampler:
    family = family or Family.initialised(build)
    probe = Probe.gaussian((6,), num=num, fresh=True)
    return GradientSampler(family, probe, estimator="exact", step=1.0, readout="first", seed=0, run=CPU)


def test_a_pass_counts_its_activations_and_not_the_weights() -> None:
    network = Network.of(build())
    assert one_pass.one_pass(network, torch.zeros(3, 6)) == OnePass(2 * (6 * 50 + 50), 4 * 50)
    half = one_pass.one_pass(network.to(torch.device("cpu"), torch.float64), torch.zeros(3, 6, dtype=torch.float64))
    assert half.kept == 8 * 50


def test_gradients_in_several_passes_are_those_of_one() -> None:
    network, x = Network.of(build()).read("first"), torch.randn(7, 6)
    sizes = []

    def gradient(one: Network, inputs: torch.Tensor) -> torch.Tensor:
        sizes.append(len(inputs))
        return input_gradient(one, inputs)

    torch.testing.assert_close(in_passes(gradient, 3)(network, x), input_gradient(network, x))
    assert sizes == [3, 3, 1]


def test_no_more_inputs_are_passed_together_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sampler(8).gradients(0, 5)
    cores = max(2, torch.get_num_threads())
    monkeypatch.setattr(one_pass, "_ROOM", -(-3 * 4 * 50 // cores))
    few = sampler(8)
    torch.testing.assert_close(few.gradients(0, 5), whole)
    assert few.method == "one at a time, 3 inputs a pass"
    monkeypatch.setattr(one_pass, "_ROOM", -(-2 * 8 * 4 * 50 // cores))  # two networks of eight inputs
    pair = sampler(8)
    torch.testing.assert_close(pair.gradients(0, 5), whole)
    assert all(way.members <= max(2, 2 * torch.get_num_threads()) for way in pair._ways())


class Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.01 * torch.randn(len(x), 1)


class Coupled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize(("kind", "told"), [(Noisy, "forward pass is random"), (Coupled, "depend on the other inputs")])
def test_few_inputs_prove_that_a_dear_network_is_a_function_of_one(
    kind: type[nn.Linear], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_pass, "_CHECKED", 1.0)
    with pytest.raises(ValueError, match=told):
        sampler(64, Family.initialised(lambda: kind(6, 1), name="odd"))
    assert len(sampler(64).few_inputs()) == 2


def test_gradients_at_the_same_probe_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    family, probe, taken = Family.initialised(build), Probe.gaussian((6,), num=4, fresh=True), []
    found = GradientSampler._found

    def noted(self: GradientSampler, start: int, stop: int, advance: object) -> torch.Tensor:
        taken.append((start, stop))
        return found(self, start, stop, advance)  # type: ignore[arg-type]

    monkeypatch.setattr(GradientSampler, "_found", noted)

    def gradients(family: Family, seed: int = 0) -> torch.Tensor:
        how = {"estimator": "exact", "step": 1.0, "readout": "first"}
        return GradientSampler(family, probe, **how, seed=seed, run=CPU).gradients(0, 3)  # type: ignore[arg-type]

    first = gradients(family)
    assert torch.equal(gradients(family), first)
    assert taken == [(0, 3)]
    assert not torch.equal(gradients(family, seed=1), first)  # of other networks
    gradients(Family.initialised(build))  # of the same law, but another object
    assert len(taken) == 3
    monkeypatch.setattr(covariance, "_KEPT_BYTES", 0)
    again = Family.initialised(build)
    assert torch.equal(gradients(again), gradients(again))
    assert len(taken) == 5
