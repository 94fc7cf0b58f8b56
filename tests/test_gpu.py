"""What must hold on a GPU; run by hand with `pytest -m gpu`."""

from pathlib import Path

import pytest
import torch

from biascope.family import Family
from biascope.measurement import find
from biascope.networks import builder, names
from biascope.probe import Probe
from biascope.run import Run
from biascope.sampling import GradientSampler, gradient_covariance
from biascope.tangent import input_difference, input_gradient

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROBE = Probe.gaussian((1, 32, 32), seed=0)


def covariance_on(device: str, name: str = "lenet", estimator: str = "difference", draws: int = 400, **run: object):
    family = Family.initialised(builder(name), name=name)
    settings = Run(device=device, **run)  # type: ignore[arg-type]
    sampler = GradientSampler(family, PROBE, estimator=estimator, step=100.0, readout="first", seed=0, run=settings)
    return gradient_covariance(sampler, draws=draws, centred=True, seed=0)


@pytest.mark.parametrize("name", names())
def test_the_same_weights_moved_over_give_the_same_gradients(name: str) -> None:
    here = Family.initialised(builder(name)).draw(2, seed=0, run=Run(device="cpu")).read("first")
    there = here.to(torch.device("cuda"), torch.float32)
    x = PROBE.inputs(0, 1, Run(device="cpu"))
    with Run(device="cuda").products():
        for function in (
            (input_gradient, input_difference) if name in ("lenet", "mlp", "logistic_regression") else (input_gradient,)
        ):
            one, two = function(here, x), function(there, x.cuda()).cpu()
            assert float((one - two).abs().max() / one.abs().max()) < 1e-4


def test_its_own_draws_give_the_same_spectrum_within_the_interval() -> None:
    here, there = covariance_on("cpu"), covariance_on("cuda")
    one, two = here.effective_rank(), there.effective_rank()
    assert abs(one.value - two.value) < 3 * (one.standard_error**2 + two.standard_error**2) ** 0.5
    one, two = here.trace(), there.trace()
    assert abs(one.value - two.value) < 3 * (one.standard_error**2 + two.standard_error**2) ** 0.5


def test_a_killed_run_goes_on_there_too(tmp_path: Path) -> None:
    whole = covariance_on("cuda", draws=64, folder=tmp_path)
    for file in sorted(tmp_path.rglob("draws-*.safetensors"))[::2]:
        file.unlink()
    again = covariance_on("cuda", draws=64, folder=tmp_path)
    torch.testing.assert_close(again.dense(), whole.dense(), rtol=1e-4, atol=1e-9)


def test_running_out_of_memory_makes_stacks_smaller_not_results_wrong() -> None:
    wanted = covariance_on("cuda", "resnet18", "exact", draws=64).trace().value
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 11 * 2**30 / total))  # a block of weights takes eight
    try:
        assert covariance_on("cuda", "resnet18", "exact", draws=64).trace().value == pytest.approx(wanted, rel=1e-3)
        torch.cuda.set_per_process_memory_fraction(min(1.0, 4 * 2**30 / total))  # not even the block fits
        found = covariance_on("cuda", "resnet18", "exact", draws=32)
        assert abs(found.trace().value - wanted) < 0.5 * wanted
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
def test_lower_precision_moves_the_spectrum_less_than_its_interval(precision: str) -> None:
    exact, rough = covariance_on("cuda", draws=400), covariance_on("cuda", draws=400, precision=precision)
    rank = exact.effective_rank()
    assert abs(rough.effective_rank().value - rank.value) < 2 * rank.standard_error


def test_measurements_run_there() -> None:
    for name in ("anisotropy_directions", "average_geometry"):
        args, settings = find(name).example()
        result = find(name)(*args, **settings, run=Run(device="cuda"))
        assert "cuda" in result.provenance["run"]["device"]
