"""Settings of torch that a caller has made around a call: numbers do not depend on them, and they stay as they were."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.backends import cudnn, mkldnn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

import biascope
from biascope import Family, Network, Probe, Recipe, Run, Task
from biascope.derivatives.gradients import plain_attention
from biascope.kernels.gram import tangent_gram
from biascope.runs.ambient import settings_kept, under_torch_defaults
from biascope.training.fit import repeatable

CPU = Run(device="cpu", progress=False)
pytestmark = pytest.mark.usefixtures("one_thread")


@contextlib.contextmanager
def setting(read: Callable[[], object], write: Callable[[object], None], value: object) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


STATES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "a device": lambda: torch.device("meta"),
    "a default device": lambda: setting(torch.get_default_device, torch.set_default_device, torch.device("meta")),
    "float64": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "coarse products": lambda: setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "coarse products on a CPU": lambda: setting(
        lambda: mkldnn.matmul.fp32_precision, lambda word: setattr(mkldnn.matmul, "fp32_precision", word), "bf16"
    ),
    "no plain attention": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "cached parametrisations": parametrize.cached,
    "NumPy raises": lambda: np.errstate(all="raise"),
}


@contextlib.contextmanager
def all_states() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, state in STATES.items():
            if name not in ("a default device", "coarse products on a CPU"):  # the same as others
                stack.enter_context(state())
        yield


def settings() -> tuple[object, ...]:
    """All that a call may leave changed."""
    older: tuple[object, ...] = ()
    with contextlib.suppress(RuntimeError):  # cannot be read where both interfaces were used
        older = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32
    precisions = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        older,
        tuple(owner.fp32_precision for owner in precisions),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        parametrize._cache_enabled,
        np.geterr()["divide"],
        torch.get_num_threads(),
    )


class Attending(nn.Module):
    """Convolution, attention, BatchNorm, a parametrised layer and a tensor made in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.attend = nn.Linear(8, 24)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.tanh(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        query, key, value = self.attend(tokens).unsqueeze(1).chunk(3, dim=-1)
        seen = nn.functional.scaled_dot_product_attention(query, key, value).flatten(1, 2)
        return self.head(seen.mean(1) * torch.linspace(0.5, 1.0, 8, dtype=x.dtype))


MODULE = (lambda: (torch.manual_seed(0), Attending())[1])()
DRAW = torch.Generator().manual_seed(0)
X, LABELS = torch.randn(6, 1, 4, 4, generator=DRAW), torch.tensor([0, 1, 0, 1, 1, 0])
EYE = torch.eye(6, dtype=torch.float64)
PROBE = Probe.fixed(X[:2])


@functools.cache
def built() -> Family:
    return Family.initialised(Attending, name="attending")


@functools.cache
def one() -> Network:
    return built().draw(2, seed=0, run=CPU).member(0).read("first")


def weights_of(network: Network) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in (*network.params.values(), *network.buffers.values())])


def numbers(result: object) -> Tensor:
    """What a call gives, as numbers."""
    if isinstance(result, dict):  # a headline
        result = [number.value for number in result.values()]
    return torch.as_tensor(result).detach().double()


def covariance() -> biascope.GradientCovariance:
    sampler = biascope.GradientSampler(built(), PROBE, estimator="exact", step=1.0, readout="first", seed=0, run=CPU)
    return biascope.gradient_covariance(sampler, draws=8, seed=0)


def trained() -> Tensor:
    task = biascope.Arrays({"train": (X, LABELS)}, name="made up")
    assert isinstance(task, Task)
    recipe = Recipe(epochs=2, batch=3, rate=0.1)
    return biascope.fit(built().draw(1, seed=0, run=CPU), task, recipe, seed=0, run=CPU).losses


CALLS: dict[str, Callable[[], object]] = {
    "a family": lambda: weights_of(Family.initialised(Attending).draw(2, seed=0, run=CPU)),
    "a point": lambda: Family.point(MODULE).first_outputs(X).flatten(),
    "a built module": lambda: Family.point(built().draw(1, seed=0, run=CPU).member(0).as_module()).first_outputs(X),
    "input_gradient": lambda: biascope.input_gradient(one(), X),
    "input_difference": lambda: biascope.input_difference(one(), X[:1], step=0.1),
    "gradient_covariance": lambda: covariance().trace().value,
    "eigenpairs": lambda: biascope.eigenpairs(covariance(), num=3).values,
    "tangent_gram": lambda: biascope.tangent_gram(one(), X, run=CPU).matrix,
    "TangentKernel": lambda: biascope.TangentKernel(one(), X, run=CPU).matmul(EYE),
    "average_geometry": lambda: biascope.average_geometry(
        built(), Probe.gaussian((1, 4, 4)), draws=8, run=CPU
    ).headline(),
    "mean_gradient": lambda: biascope.mean_gradient(
        built(), Probe.gaussian((1, 4, 4), num=2, fresh=True), draws=8, run=CPU
    ).headline(),
    "tangent_kernel": lambda: biascope.tangent_kernel(
        built(), biascope.Arrays({"train": (X, LABELS)}, name="made up"), samples=6, run=CPU
    ).headline(),
    "fit": trained,
    "selftest": lambda: [check.error for check in biascope.selftest(built(), (1, 4, 4)) if check.error is not None],
}


@functools.cache
def alone(call: str) -> Tensor:
    return numbers(CALLS[call]())


@pytest.mark.parametrize("call", CALLS)
def test_no_setting_of_the_caller_changes_a_number(call):
    wanted = alone(call)
    for state in STATES.values():
        with state():
            before = settings()
            result = CALLS[call]()
            after = settings()
        assert after == before
        found = numbers(result)
        assert found.device.type == "cpu"
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-9)


def test_all_of_them_at_once_and_an_error_leave_the_settings_alone():
    with all_states():
        before = settings()
        result = CALLS["tangent_gram"]()
        with pytest.raises(ValueError, match="draws"):
            biascope.average_geometry(built(), PROBE, draws=1, run=CPU)
        after = settings()
    assert after == before
    assert torch.allclose(numbers(result), alone("tangent_gram"), rtol=1e-5)


def test_what_was_made_in_inference_mode_can_be_differentiated():
    with torch.inference_mode():
        module = nn.Linear(4, 1)
        x, labels = torch.eye(2, 4), torch.tensor([0, 1])
        family = Family.point(module)
        gradient = biascope.input_gradient(Network.of(module).read("first"), x)
        geometry = biascope.average_geometry(family, Probe.fixed(x), draws=2, run=CPU)
        kernel = biascope.tangent_kernel(family, biascope.Arrays({"train": (x, labels)}), samples=2, run=CPU)
        trained = biascope.fit(Network.of(module), biascope.Arrays({"train": (x, labels)}), Recipe(epochs=1), seed=0)
    assert torch.equal(gradient, module.weight.expand(2, 4))
    assert geometry.headline()["effective_rank"].value == pytest.approx(1.0)
    assert kernel.headline()["effective_rank"].value == pytest.approx(1.6)  # eigenvalues 3 and 1
    assert bool(trained.losses.isfinite().all())
    assert not gradient.is_inference()


# ---- threads -------------------------------------------------------------------------------------------------------


def test_calls_from_several_threads_give_their_own_numbers_and_leave_the_settings_alone():
    members = [built().draw(4, seed=0, run=CPU).member(index).read("first") for index in range(4)]
    wanted = [biascope.input_gradient(member, X) for member in members]
    kernels = [biascope.tangent_gram(member, X, run=CPU).matrix for member in members]
    geometries = [average(seed) for seed in range(4)]
    before = settings()

    def work(index: int) -> bool:
        state = list(STATES.values())[index]
        with state():
            same = torch.allclose(biascope.tangent_gram(members[index], X, run=CPU).matrix, kernels[index], rtol=1e-4)
            same &= average(index) == pytest.approx(geometries[index], rel=1e-5)
            for _ in range(20):
                same &= torch.allclose(biascope.input_gradient(members[index], X), wanted[index], atol=1e-6)
        return same

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert settings() == before


def average(seed: int) -> float:
    result = biascope.average_geometry(built(), Probe.gaussian((1, 4, 4)), draws=8, seed=seed, run=CPU)
    return result.headline()["effective_rank"].value


def test_a_network_that_two_threads_call_keeps_its_weights_apart():
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    networks = [
        Network.of(module).with_params({name: tensor + shift for name, tensor in module.named_parameters()})
        for shift in (0.0, 1.0)
    ]
    x = torch.ones(3, 8)
    wanted = [network(x) for network in networks]
    with ThreadPoolExecutor(2) as pool:
        same = pool.map(lambda i: [torch.equal(networks[i](x), wanted[i]) for _ in range(300)], range(2))
    assert all(map(all, same))


@pytest.mark.parametrize(
    "setting_of_the_process", [plain_attention, CPU.products, Run(device="cpu", precision="tf32").products, repeatable]
)
def test_threads_that_leave_in_any_order_put_back_what_was_there(setting_of_the_process):
    before = settings()
    entered, leave = threading.Barrier(3), [threading.Event(), threading.Event()]

    def hold(index: int) -> None:
        with setting_of_the_process():
            entered.wait(10)
            leave[index].wait(10)

    threads = [threading.Thread(target=hold, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    entered.wait(10)
    inside = settings()
    leave[0].set()  # the first to come is the first to leave
    threads[0].join()
    assert settings() == inside
    leave[1].set()
    threads[1].join()
    assert settings() == before


def test_what_foreign_code_is_kept_from_is_not_what_another_thread_wants():
    before = settings()
    with ThreadPoolExecutor(1) as other:
        holding = plain_attention()
        with settings_kept():
            other.submit(holding.__enter__).result(10)
            inside = settings()
        assert settings() == inside
        with settings_kept():
            torch.backends.mha.set_fastpath_enabled(True)
        assert settings() == inside
        other.submit(holding.__exit__, None, None, None).result(10)
    assert settings() == before


# ---- code of the user's that changes settings ----------------------------------------------------------------------


def disturbing() -> nn.Module:
    module = Attending()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_float32_matmul_precision("medium")
    torch.set_default_device("meta")
    return module


def test_a_builder_that_changes_settings_changes_nothing():
    before = settings()
    family = Family.initialised(disturbing)
    result = biascope.average_geometry(family, Probe.gaussian((1, 4, 4)), draws=8, run=CPU)
    assert settings() == before
    assert numbers(result.headline()) == pytest.approx(alone("average_geometry"))


def test_a_model_file_that_changes_settings_changes_nothing(tmp_path: Path):
    file = tmp_path / "mine.py"
    change = "torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False); torch.set_default_device('meta')"
    file.write_text(f"import torch\n{change}\ndef build():\n    return torch.nn.Linear(4, 1)\n")
    before = settings()
    family = biascope.family_of(f"{file}:build")
    assert settings() == before
    assert next(iter(family.template.params.values())).dtype == torch.float32


# ---- which calls ---------------------------------------------------------------------------------------------------


@under_torch_defaults
def covered() -> None:
    """Any function with the decorator."""


def test_every_public_function_and_class_is_covered():
    # These compute nothing themselves: they find, draw pictures of results, hold settings, or call what is covered.
    plain = {
        "network",
        "measure",
        "load",
        "hook",
        "write_report",
        "Run",
        "Recipe",
        "Estimate",
        "Task",
        "Scan",
        "Result",
    }
    for name in set(biascope.__all__) - plain:
        found = getattr(biascope, name)
        members = (
            [getattr(each, "__func__", each) for each in vars(found).values()] if inspect.isclass(found) else [found]
        )
        functions = [member for member in members if inspect.isfunction(member)]
        assert not functions or any(function.__code__ is covered.__code__ for function in functions), name


class CachesItself(nn.Module):
    """Its forward pass computes a parametrised weight once for two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with parametrize.cached():
            return self.layer(torch.tanh(self.layer(x))).sum(1)


def test_what_a_forward_pass_caches_is_gone_at_the_next_call():
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    network = Network.of(CachesItself())
    other = network.with_params({name: 2 * weight for name, weight in network.params.items()})
    first = tangent_gram(network, x, run=CPU).matrix
    assert not parametrize._cache
    assert torch.equal(tangent_gram(network, x, run=CPU).matrix, first)
    assert torch.allclose(
        tangent_gram(other, x, run=CPU).matrix, tangent_gram(Network.of(other.as_module()), x, run=CPU).matrix
    )
