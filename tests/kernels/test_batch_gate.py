"""The batch gate: sound networks pass as they are, and each fault is repaired, told or refused."""

from typing import Any

import pytest
import torch
from networks_under_test import BackwardOverTheBatch, relu_convnet, smooth_mlp
from torch import Tensor, nn

import biascope
from biascope import Probe, Run
from biascope.families.family import Family
from biascope.kernels import batch_gate
from biascope.kernels.batch_gate import Passage, padding_difference, passage
from biascope.kernels.selftest import selftest

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _the_same_weights() -> object:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def passed(module: nn.Module, x: Any, precision: str = "float32", **how: Any) -> Passage:
    run = Run(device="cpu", precision=precision)
    given = {"derivatives": ("input",), **how}
    return passage(Family.point(module, "mine"), lambda at: batch_gate.placed(x, None, at.dtype), run=run, **given)


def inputs(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class DividesByTheBatch(nn.Linear):
    """Outputs of a sample depend on it alone; gradients do not."""

    def __init__(self) -> None:
        super().__init__(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(BackwardOverTheBatch.apply(x.tanh()))  # type: ignore[no-untyped-call]


class SubtractsTheMean(nn.Linear):
    """Outputs of a sample depend on all samples of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x - x.mean(0, keepdim=True)).tanh())


class Steep(nn.Linear):
    """A product of large numbers that 16 bits do not resolve."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(3000 * super().forward(x))


class RoundsByItself(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh().bfloat16().to(x.dtype)


class MaskedMean(nn.Module):
    """The mean over the positions that a mask leaves, or over all of them."""

    def __init__(self, heeds: bool = True) -> None:
        super().__init__()
        self.layer, self.heeds = nn.Linear(4, 3), heeds

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        hidden = self.layer(x).tanh()
        if attention_mask is None or not self.heeds:
            return hidden.mean(1)
        weight = attention_mask.to(x).unsqueeze(-1)
        return (weight * hidden).sum(1) / weight.sum(1)


class OneLength(MaskedMean):
    """Takes 5 positions and no others."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(x.reshape(-1, 5, 4), attention_mask)


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32"])
@pytest.mark.parametrize("derivatives", [("input",), ("weight",), ("input", "weight")])
def test_sound_networks_are_measured_as_asked(precision: str, derivatives: tuple[str, ...]) -> None:
    for module, shape in ((smooth_mlp(), (2, 2, 3)), (relu_convnet(), (2, 1, 8, 8))):
        found = passed(module, inputs(*shape), precision, derivatives=derivatives)
        assert (found.precision, found.told, found.refused) == (precision, (), "")
        assert found.difference < (1e-12 if precision == "float64" else 1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_left_where_it_rounds_too_much(precision: str) -> None:
    steep = passed(Steep(6, 1), inputs(2, 6), precision)
    assert steep.precision == "float32"
    assert steep.told[0].startswith(f"mine is measured in float32. In {precision}, its gradients differ by ")
    linear = passed(nn.Linear(6, 1), inputs(2, 6), precision)
    assert (linear.precision, linear.told) == (precision, ())
    kept = passed(Steep(6, 1), inputs(2, 6), precision, half=False)  # derivatives are taken in float32 anyway
    assert (kept.precision, kept.told) == (precision, ())


def test_the_result_of_a_measurement_says_which_precision_was_used() -> None:
    probe, run = Probe.gaussian((6,), num=4, fresh=True), Run(device="cpu", precision="bfloat16", progress=False)
    family = Family.initialised(lambda: Steep(6, 1), name="steep")
    result = biascope.average_geometry(family, probe, draws=8, run=run)
    assert result.provenance["run"]["precision"] == "float32"
    assert result.warnings[0].startswith("steep is measured in float32. In bfloat16, ")
    asked = biascope.average_geometry(
        family, probe, draws=8, run=Run(device="cpu", precision="float32", progress=False)
    )
    assert (result.eigenvalues == asked.eigenvalues).all()


def test_gradients_that_depend_on_the_batch_are_refused() -> None:
    found = passed(DividesByTheBatch(), inputs(2, 6))
    assert found.refused.startswith(
        "mine must give a sample the same gradient alone and in a batch, but in a batch it "
    )
    probe, run = Probe.gaussian((6,), num=4, fresh=True), Run(device="cpu", progress=False)
    with pytest.raises(ValueError, match="the same gradient alone and in a batch"):
        biascope.average_geometry(Family.initialised(DividesByTheBatch), probe, draws=8, run=run)
    failed = {check.name for check in selftest(Family.initialised(DividesByTheBatch), (6,)) if check.failed}
    assert "a sample has the same gradients in a batch" in failed


def test_outputs_that_depend_on_the_batch_are_for_the_measurement_to_judge() -> None:
    found = passed(SubtractsTheMean(6, 1), inputs(2, 6))
    assert (found.told, found.refused) == ((), "")
    assert found.difference > found.allowed


def test_a_network_that_rounds_by_itself_is_told() -> None:
    found = passed(RoundsByItself(6, 1), inputs(2, 6))
    assert found.told == (
        "mine computes in numbers of 16 bits, whatever precision is asked for: each rounds by up to 0.39 %. Remove the cast or the "
        "autocast from forward.",
    )


def test_weights_that_came_in_half_precision_are_recorded() -> None:
    family = Family.point(nn.Linear(6, 1).bfloat16(), "mine")
    probe = Probe.gaussian((6,), num=4, fresh=True)
    result = biascope.average_geometry(family, probe, draws=8, run=Run(device="cpu", progress=False))
    assert result.provenance["family"]["weights_came_in"] == "bfloat16"
    assert result.provenance["run"]["precision"] == "float32"
    assert not any("bfloat16" in warning for warning in result.warnings)


LENGTHS = torch.tensor([3, 5])
TEXTS = {"x": inputs(2, 5, 4), "attention_mask": (torch.arange(5) < LENGTHS[:, None]).long()}


def test_padding_that_a_network_ignores_changes_nothing() -> None:
    assert passed(MaskedMean(), TEXTS).told == ()
    left = {name: leaf.flip(1) for name, leaf in TEXTS.items()}
    assert passed(MaskedMean(), left).told == ()
    assert passed(OneLength(), TEXTS).told == ()  # cannot be cut, but masked positions have no influence


@pytest.mark.parametrize("kind", [MaskedMean, OneLength])
def test_padding_that_a_network_reads_is_told(kind: type[MaskedMean]) -> None:
    (told,) = passed(kind(heeds=False), TEXTS).told
    assert told.startswith("Padding changes the gradients of mine by ")
    network = Family.point(kind(heeds=False)).template.read("first").to(torch.device("cpu"), torch.float64)
    assert padding_difference(network, TEXTS) > 0.1


def test_padding_is_looked_at_for_each_mask() -> None:
    family, full = (
        Family.point(MaskedMean(heeds=False)),
        {**TEXTS, "attention_mask": torch.ones(2, 5, dtype=torch.long)},
    )
    told = [passage(family, lambda _: x, derivatives=("input",)).told for x in (full, TEXTS, full)]  # noqa: B023
    assert [len(each) for each in told] == [0, 1, 0]


@pytest.mark.parametrize("heeds", [True, False])
def test_the_selftest_pads_what_takes_a_mask(heeds: bool) -> None:
    checks = {check.name: check for check in selftest(Family.initialised(lambda: MaskedMean(heeds)), (5, 4))}
    assert len(checks) == 12
    assert checks["padding changes nothing"].passed == heeds


def test_what_was_found_is_kept_for_the_next_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family.point(smooth_mlp())
    first = passage(family, lambda run: inputs(2, 2, 3), derivatives=("input",))
    monkeypatch.setattr(batch_gate, "_Comparison", None)
    assert passage(family, lambda run: inputs(2, 2, 3), derivatives=("input",)) is first
    moved = family.template.with_params({name: 2 * weight for name, weight in family.template.params.items()})
    with pytest.raises(TypeError):  # other weights of the same forward pass are compared anew
        passage(Family.point(moved), lambda run: inputs(2, 2, 3), derivatives=("input",))


def test_a_network_that_does_not_fit_into_memory_twice_is_measured_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> object:
        raise torch.OutOfMemoryError("no room in float64")

    monkeypatch.setattr(batch_gate, "_Comparison", full)
    found = passed(smooth_mlp(), inputs(2, 2, 3))
    assert (found.precision, found.refused) == ("float32", "")
    assert found.told == (
        "Gradients of mine in a batch were not compared with those of single samples: memory ran out.",
    )
