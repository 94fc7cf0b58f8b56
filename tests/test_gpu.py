"""What must hold on a GPU; run by hand with `pytest -m gpu`."""

import functools
from pathlib import Path

import pytest
import torch

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.derivatives.gradients import input_difference, input_gradient
from biascope.derivatives.linearize import linearize
from biascope.editing.heads import Head, fitted_head, headed
from biascope.editing.outputs import edited_outputs, sampled
from biascope.editing.tuning import tuned_vectors, tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.source import usual_shape
from biascope.kernels.gram import tangent_gram
from biascope.kernels.plan import share
from biascope.kernels.rules import possible_rules
from biascope.kernels.uses import layer_uses
from biascope.measures.merge_check import merge_check
from biascope.networks import builder, names
from biascope.results.registry import find
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays, along_directions
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

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
    x = Probe.gaussian(usual_shape(name), seed=0).inputs(0, 1, Run(device="cpu"))
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


def trained_on_gpu(way: str, precision: str, steps: int = 30, name: str = "lenet", members: int = 3):
    run = Run(device="cuda", precision=precision)
    whole = Run(device="cuda", precision="float64" if precision == "float64" else "float32")
    networks = Family.initialised(functools.partial(builder(name), outputs=2)).draw(members, seed=0, run=whole)
    vectors = bases.fourier((1, 32, 32)).vectors[1 : members + 1]
    task = along_directions(vectors, (1, 32, 32), train=320, test=100, seed=0, run=run)
    return fit(networks, task, Recipe(rate=0.1, clip=0.5, steps=steps, batch=64), seed=1, run=run, way=way)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of itself
@pytest.mark.parametrize("way", ["stack", "shifts", "captured", "compiled"])
def test_every_way_of_training_equals_the_plain_loop(way: str) -> None:
    plain, other = trained_on_gpu("loop", "float64"), trained_on_gpu(way, "float64")
    for name, weight in plain.networks.params.items():
        assert float((weight - other.networks.params[name]).abs().max()) < 1e-6


@pytest.mark.parametrize("way", ["stack", "shifts", "captured"])
def test_training_repeats_bit_for_bit(way: str) -> None:
    first, again = (trained_on_gpu(way, "tf32") for _ in range(2))
    assert torch.equal(first.losses, again.losses)
    assert all(torch.equal(weight, again.networks.params[name]) for name, weight in first.networks.params.items())


def test_captured_batchnorm_follows_its_statistics() -> None:
    plain, captured = (
        trained_on_gpu(way, "float64", steps=6, name="resnet18", members=1) for way in ("loop", "captured")
    )
    for name, buffer in plain.networks.buffers.items():
        assert torch.allclose(buffer.double(), captured.networks.buffers[name].double(), atol=1e-6), name


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_resnet_learns_the_mean_of_an_image(precision: str) -> None:
    """One output for a signal that global averaging keeps: learned in few epochs, as published."""
    run = Run(device="cuda", precision=precision)
    drawn = Run(device="cuda", precision="float32")
    networks = Family.initialised(functools.partial(builder("resnet18"), outputs=2)).draw(1, seed=0, run=drawn)
    task = along_directions(bases.fourier((1, 32, 32)).vectors[:1], (1, 32, 32), seed=0, run=run)
    trained = fit(networks, task, Recipe(rate=0.5, clip=0.5, epochs=6), seed=0, run=run, way="captured")
    assert float(evaluation(trained.networks, task, "test", run=run).accuracy) > 0.95


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (3, 32, 32)), ("lenet", (3, 32, 32)), ("resnet18", (3, 32, 32)), ("vit", (3, 32, 32))]
)
def test_a_tangent_kernel_is_the_same_there(name: str, shape: tuple[int, ...]) -> None:
    network = Network.of(builder(name)(channels=3)).read("first")
    x = torch.randn(12, *shape, generator=torch.Generator().manual_seed(0))
    exact = tangent_gram(network, x, run=Run(device="cpu", precision="float64")).matrix
    lengths = exact.diagonal().sqrt()
    for precision, limit in (("float64", 1e-12), ("float32", 1e-4), ("tf32", 1e-2), ("bfloat16", 5e-2)):
        there = tangent_gram(network, x, run=Run(device="cuda", precision=precision))
        error = float(((there.matrix.cpu().double() - exact).abs() / (lengths[:, None] * lengths)).max())
        assert error < limit, precision
        assert there.error < limit


def test_every_rule_holds_there() -> None:
    network = Network.of(builder("resnet18")()).to(torch.device("cuda"), torch.float64)
    x = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0)).double().cuda()
    uses = layer_uses(network, x)
    for parameter, tensor in network.params.items():
        for rule in (found := possible_rules(uses, parameter, 4, tensor.shape)):
            first, each = (share(one, one.held(uses.of(parameter), 4)) for one in (found[0], rule))
            torch.testing.assert_close(each, first, rtol=1e-9, atol=1e-12 * float(first.abs().max()))


def test_a_graph_is_recorded_while_those_of_earlier_trainings_wait_to_be_let_go() -> None:
    for _ in range(12):
        trained_on_gpu("captured", "tf32", steps=3, members=1)  # each leaves a graph in a reference cycle
    assert trained_on_gpu("stack", "tf32", steps=3).losses.isfinite().all()


@functools.cache
def edited(depth: int = 1) -> tuple[Network, Arrays, Head]:
    """A small encoder, a task of three clouds of images, and its head."""
    stream = torch.Generator().manual_seed(depth)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        build = builder("vit")
        encoder = Network.of(build(channels=1, image_size=8, patch=4, depth=2, heads=2, width=16, mlp=32, outputs=12))
    centres, y = torch.randn(3, 1, 8, 8, generator=stream), torch.arange(90) % 3
    x = centres[y] + torch.randn(90, 1, 8, 8, generator=stream)
    task = Arrays({split: (x[part::3], y[part::3]) for part, split in enumerate(("train", "validation", "test"))})
    return encoder, task, fitted_head(encoder, task, run=Run(device="cpu"))


@pytest.mark.parametrize("linearised", [False, True])
def test_fine_tuning_as_a_graph_equals_the_plain_loop(linearised: bool) -> None:
    encoder, task, head = edited()
    run = Run(device="cuda", precision="float64")
    placed = encoder.to(run.torch_device, torch.float64)
    start = headed(linearize(placed) if linearised else placed, head)
    recipe = tuning_recipe(steps=6, rate=1e-2, batch=10)
    one, two = (
        fit(start, task.to(run), recipe, seed=0, run=run, way=way).networks.params for way in ("captured", "loop")
    )
    moved = max(float((one[name] - tensor).abs().max()) for name, tensor in start.params.items())
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-9 * moved


def tuned(encoder: Network, head: Head, tasks: dict[str, Arrays], *, steps: int, rate: float) -> dict[str, TaskVector]:
    """Task vectors tuned on the CPU."""
    recipe = tuning_recipe(steps=steps, rate=rate, batch=10)
    found = tuned_vectors(
        encoder, dict.fromkeys(tasks, head), tasks, recipe, tunings=["non-linear"], seed=0, run=Run(device="cpu")
    )
    return found["non-linear"]


@pytest.mark.parametrize("linearised", [False, True])
def test_edited_encoders_give_the_same_outputs_there(linearised: bool) -> None:
    encoder, task, head = edited()
    vectors = [tuned(encoder, head, {"one": task}, steps=5, rate=rate)["one"] for rate in (1e-2, 3e-2)]
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, -1.0]])
    samples = sampled(task, "test", None, seed=0)
    here, there = (
        edited_outputs(
            encoder, head, vectors, rows, samples, linearised=linearised, reading="logits", run=Run(device=device)
        )
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4 * float(here.abs().max()))


def test_a_merge_check_comes_to_the_same_there() -> None:
    encoder, task, head = edited()
    other = Arrays({split: (x.flip(-1), y) for split, (x, y) in task.splits.items()})
    tasks, heads = {"one": task, "other": other}, {"one": head, "other": head}
    vectors = tuned(encoder, head, tasks, steps=10, rate=1e-2)
    here, there = (
        merge_check(encoder, heads, vectors, tasks, grid=4, run=Run(device=device)) for device in ("cpu", "cuda")
    )
    assert there.grade == here.grade
    assert abs(there.alpha.value - here.alpha.value) < 0.06
    assert abs(there.mean_loss.value - here.mean_loss.value) < 0.04  # one sample of thirty on a border
