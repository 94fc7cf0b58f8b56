"""The tangent kernel without its Gram matrix: products, scalars and alignments against dense Jacobians and closed forms."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks_under_test import (
    CPU,
    CPU64,
    TwoInputs,
    batchnorm_convnet,
    global_states,
    network_of,
    normal,
    relu_convnet,
    smooth_mlp,
)
from networks_under_test import SHAPES as UNDER_TEST
from torch import Tensor, nn
from torch.func import jacrev
from typer.testing import CliRunner

from biascope.cli import app
from biascope.derivatives.gradients import plain_attention
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels import products as tangent_operator
from biascope.kernels.products import Alignment, TangentKernel, alignment
from biascope.measures.anisotropy_directions import Anisotropy, anisotropy_directions
from biascope.networks import builder
from biascope.runs.randomness import forked_rng
from biascope.tasks.probe import Probe

pytestmark = pytest.mark.usefixtures("one_thread")
N = 7


class FusedAttention(nn.Module):
    """PyTorch's own attention layer, whose fast kernels know no forward mode, and a raw parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.attention(x, x, x, need_weights=False)[0].mean((1, 2))


SHAPES = {**UNDER_TEST, FusedAttention: (5, 4)}
every_network = pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)


def dense_jacobian(network: Network, x: Any) -> Tensor:
    """``∂f(x_i)/∂θ`` by reverse mode of all outputs together, ``(n, p)``."""
    with plain_attention():
        parts = jacrev(lambda params: network.apply(params, network.buffers, x).flatten())(network.params)
    return torch.cat([part.reshape(part.shape[0], -1) for part in parts.values()], dim=1)


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    assert found.dtype is torch.float64
    assert float((found - wanted).abs().max()) <= tolerance * float(wanted.abs().max())


@pytest.fixture(params=["products", "rows"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two ways in turn, whatever they cost."""
    monkeypatch.setattr(tangent_operator, "_ROW_PASSES", 0)
    monkeypatch.setattr(tangent_operator, "_ROW_WRITING", {"products": 1e15, "rows": -1e15}[request.param])
    return str(request.param)


@pytest.fixture
def never_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels, treated as large ones are."""
    monkeypatch.setattr(tangent_operator, "_FORMED", 0)


@every_network
@pytest.mark.parametrize("batch", [1, 3, N, 100])
def test_products_are_those_of_the_dense_jacobian(build: Callable[[], nn.Module], batch: int, way: str) -> None:
    network, x, vectors = network_of(build), normal(N, *SHAPES[build]), normal(N, 3, seed=1)
    jacobian = dense_jacobian(network, x)
    kernel = TangentKernel(network, x, batch=batch, run=CPU64)
    close(kernel.pullback(vectors), (jacobian.T @ vectors).T)
    close(kernel.pushforward(normal(2, kernel.parameters)), jacobian @ normal(2, kernel.parameters).T)
    close(kernel.matmul(vectors), jacobian @ (jacobian.T @ vectors))
    close(kernel.diagonal(), jacobian.square().sum(1))
    assert kernel._multiplies  # no network here had to be given way to
    assert kernel._batches
    assert kernel.trace().value == pytest.approx(float(jacobian.square().sum()), rel=1e-12)


@pytest.mark.parametrize("numbers", [1, 400, 10**9])
def test_memory_changes_nothing(numbers: int, way: str) -> None:
    network, x, vectors = network_of(smooth_mlp), normal(N, 6), normal(N, 5, seed=1)
    kernel = TangentKernel(network, x, run=CPU64)
    kernel._budget = numbers
    jacobian = dense_jacobian(network, x)
    close(kernel.matmul(vectors), jacobian @ (jacobian.T @ vectors))
    assert kernel.fitting == max(1, numbers // kernel.parameters)


def test_what_does_not_fit_is_halved_and_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x, vectors = network_of(smooth_mlp), normal(N, 6), normal(N, 2, seed=1)
    wanted = TangentKernel(network, x, run=CPU64).matmul(vectors)
    whole = TangentKernel._inputs

    def scarce(self: TangentKernel, span: slice) -> Any:
        if span.stop - span.start > 2:
            raise torch.OutOfMemoryError
        return whole(self, span)

    kernel = TangentKernel(network, x, run=CPU64)
    monkeypatch.setattr(TangentKernel, "_inputs", scarce)
    close(kernel.matmul(vectors), wanted)
    assert kernel.batch <= 2
    monkeypatch.setattr(TangentKernel, "_inputs", lambda self, span: scarce(self, slice(0, 9)))
    with pytest.raises(torch.OutOfMemoryError):
        kernel.matmul(vectors)


def test_the_cheaper_way_is_that_of_the_network() -> None:
    """Rows pay from few vectors on where weights are shared, and hardly ever where each is used once."""

    def most(name: str) -> int:
        kernel = TangentKernel(Network.of(builder(name)()), normal(2, 1, 32, 32), run=CPU)
        return next(count for count in range(1, 1000) if not kernel._few(count))

    assert most("resnet18") < most("lenet") < 10
    assert 40 < most("mlp") < 100


class Branching(nn.Module):
    """A question that depends on the data cannot be asked of inputs under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 4, batch_first=True)
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, x: Tensor) -> Tensor:
        last = self.cell(x)[0][:, -1]
        return torch.cat([self.heads[int(one.sum() > 0)](part) for one, part in zip(x, last[:, None], strict=True)])


class Cube(torch.autograd.Function):
    """A function of a user's own, without forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class Cubed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(15, 2)

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.inner(x.flatten(1))).sum(1, keepdim=True)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("build", [Branching, Cubed])
def test_where_a_network_cannot_be_mapped_or_pushed_forward_another_way_is_found(
    build: Callable[[], nn.Module], way: str
) -> None:
    network, x, vectors = network_of(build), normal(N, 5, 3), normal(N, 2, seed=1)
    rows = []
    for one in x:
        module = network.as_module()
        module(one[None]).sum().backward()
        gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in module.parameters()]
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    jacobian = torch.stack(rows)
    kernel = TangentKernel(network, x, batch=3, run=CPU64)
    close(kernel.matmul(vectors), jacobian @ (jacobian.T @ vectors))
    close(kernel.diagonal(), jacobian.square().sum(1))
    assert kernel._batches is (build is Cubed)
    assert kernel._multiplies is (way == "rows" or build is Branching)


class Broken(nn.Module):
    """Its backward pass fails, and that is not ours to hide."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        if out.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(out):
            raise RuntimeError("no derivative of this layer")
        return out


def test_an_error_of_the_networks_own_is_raised() -> None:
    kernel = TangentKernel(network_of(Broken), normal(N, 6), run=CPU64)
    with pytest.raises(RuntimeError, match="no derivative of this layer"):
        kernel.matmul(normal(N, 1))


@pytest.mark.parametrize("by_name", [False, True])
def test_inputs_may_be_several_tensors_and_arrays(by_name: bool, way: str) -> None:
    network = network_of(TwoInputs)
    values, tokens = normal(N, 5), torch.arange(N)
    x = {"tokens": tokens.numpy(), "values": values.numpy()} if by_name else (values, tokens)
    jacobian = dense_jacobian(network, (values, tokens))
    close(TangentKernel(network, x, batch=4, run=CPU64).matmul(normal(N, 2)), jacobian @ (jacobian.T @ normal(N, 2)))


def test_batchnorm_of_each_input_alone() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network.of(batchnorm_convnet().double(), batchnorm="train").read("first")
    x = normal(N, 1, 6, 6)
    jacobian = torch.cat([dense_jacobian(network, one[None]) for one in x])
    close(TangentKernel(network, x, batch=3, run=CPU64).matmul(normal(N, 2)), jacobian @ (jacobian.T @ normal(N, 2)))


def test_the_rectangular_kernel_between_two_sets(way: str) -> None:
    network, x, other = network_of(relu_convnet), normal(N, 1, 8, 8), normal(4, 1, 8, 8, seed=1)
    first, second = dense_jacobian(network, x), dense_jacobian(network, other)
    kernel = TangentKernel(network, x, run=CPU64)
    found = kernel.cross(TangentKernel(network, other, run=CPU64), normal(4, 2))
    close(found, first @ second.T @ normal(4, 2))


def test_single_precision_is_right_to_its_rounding(way: str) -> None:
    network, x, vectors = network_of(relu_convnet), normal(N, 1, 8, 8), normal(N, 3, seed=1)
    jacobian = dense_jacobian(network, x)
    found = TangentKernel(network, x, run=CPU).matmul(vectors)
    close(found, jacobian @ (jacobian.T @ vectors), tolerance=1e-5)


# ---- spectrum and scalars ------------------------------------------------------------------------------------------


def test_eigenpairs_by_products_are_those_of_the_matrix(never_formed: None) -> None:
    network, x = network_of(relu_convnet), normal(60, 1, 8, 8)
    jacobian = dense_jacobian(network, x)
    values = torch.linalg.eigvalsh(jacobian @ jacobian.T).flip(0)
    kernel = TangentKernel(network, x, batch=16, run=CPU64)
    assert kernel.dense() is None
    assert kernel.factor() is None
    found = eigenpairs(kernel, 5)
    assert found.method == "block Lanczos"
    close(found.values, values[:5])
    assert float(found.residuals.max()) < 1e-9
    residuals = jacobian @ (jacobian.T @ found.vectors.T) - found.vectors.T * found.values
    assert float(residuals.norm(dim=0).max() / values[0]) < 1e-9


def test_small_kernels_are_formed_and_thin_ones_factored(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = network_of(smooth_mlp), normal(40, 6)  # 119 parameters
    jacobian = dense_jacobian(network, x)
    kernel = TangentKernel(network, x, run=CPU64)
    close(kernel.dense(), jacobian @ jacobian.T)
    assert eigenpairs(kernel, 3).method == "dense eigen-decomposition"
    assert float(eigenpairs(kernel, 3).residuals.max()) < 1e-12
    close(kernel.matmul(normal(40, 2)), jacobian @ (jacobian.T @ normal(40, 2)))
    monkeypatch.setattr(tangent_operator, "_FORMED", 150)
    many = normal(200, 6)
    thin = TangentKernel(network, many, run=CPU64)
    assert thin.dense() is None
    found = eigenpairs(thin)
    assert found.method.endswith("thin factor")
    wanted = torch.linalg.eigvalsh(dense_jacobian(network, many).T @ dense_jacobian(network, many)).flip(0)
    close(found.values, wanted[: len(found.values)])
    large = TangentKernel(network, x, run=CPU64)
    large._budget = 40 * large.parameters - 1
    assert large.dense() is None


def test_scalars_are_exact_where_the_matrix_is_formed() -> None:
    network, x = network_of(smooth_mlp), normal(12, 6)
    matrix = dense_jacobian(network, x) @ dense_jacobian(network, x).T
    kernel = TangentKernel(network, x, run=CPU64)
    norm, trace = float(matrix.norm()), float(matrix.trace())
    assert kernel.frobenius().value == pytest.approx(norm, rel=1e-12)
    assert kernel.effective_rank().value == pytest.approx((trace / norm) ** 2, rel=1e-12)
    assert kernel.effective_rank().standard_error == kernel.trace().standard_error == 0.0


def test_sampled_scalars_hold_the_dense_values_in_their_intervals(never_formed: None) -> None:
    network, x = network_of(relu_convnet), normal(80, 1, 8, 8)
    jacobian = dense_jacobian(network, x)
    matrix = jacobian @ jacobian.T
    norm, trace = float(matrix.norm()), float(matrix.trace())
    wanted = {"trace": trace, "frobenius": norm, "effective_rank": (trace / norm) ** 2}
    kernel = TangentKernel(network, x, run=CPU64)
    kernel._held = jacobian  # products of the same matrix, many times over
    inside: dict[str, list[bool]] = {name: [] for name in wanted}
    errors: dict[str, list[float]] = {name: [] for name in wanted}
    for seed in range(200):
        for name, value in wanted.items():
            estimate = getattr(kernel, name)(24, seed=seed)
            inside[name].append(estimate.contains(value))
            errors[name].append(estimate.value - value)
            assert abs(estimate.value - value) < 0.2 * value
    for name in wanted:
        assert np.mean(inside[name]) > 0.88  # of intervals at 95 %, from 8 probes each
        assert abs(np.mean(errors[name])) < 4 * np.std(errors[name]) / math.sqrt(200)  # nothing is left of a bias


def test_the_error_of_sampled_scalars_falls_like_the_root_of_the_probes(never_formed: None) -> None:
    """On a flat spectrum, where a leading subspace is of no help."""
    network = network_of(lambda: nn.Linear(200, 1, bias=False))
    x = torch.linalg.qr(normal(200, 200)).Q * (1 + 0.5 * torch.linspace(-1, 1, 200, dtype=torch.float64)[:, None])
    kernel = TangentKernel(network, x, run=CPU64)
    kernel._held = x
    spreads = []
    for probes in (15, 60):
        estimates = [kernel.trace(probes, seed=seed) for seed in range(100)]
        spreads.append(float(np.std([estimate.value for estimate in estimates])))
        told = np.sqrt(np.mean([estimate.standard_error**2 for estimate in estimates]))
        assert told == pytest.approx(spreads[-1], rel=0.25)
    assert spreads[1] / spreads[0] == pytest.approx(0.5, rel=0.25)


def test_a_kernel_of_rank_one_is_seen_exactly(never_formed: None) -> None:
    x = normal(30, 1)
    kernel = TangentKernel(network_of(lambda: nn.Linear(1, 1, bias=False)), x, run=CPU64)
    rank = kernel.effective_rank()
    assert rank.value == pytest.approx(1.0, rel=1e-12)
    assert rank.standard_error < 1e-12


def test_random_columns_leave_the_global_state_alone_and_are_kept(never_formed: None) -> None:
    before = global_states()
    network, x = network_of(smooth_mlp), normal(20, 6)
    first, second = (TangentKernel(network, x, run=CPU64) for _ in range(2))
    assert first.frobenius(seed=1) == second.frobenius(seed=1) != first.frobenius(seed=2)
    assert global_states() == before


# ---- alignment -----------------------------------------------------------------------------------------------------


def pairs_of(matrix: Tensor, y: Tensor) -> Tensor:
    """``Σ_{i≠j} y_i K_ij y_j / n(n−1)``, term by term."""
    n = len(y)
    return (torch.outer(y, y) * matrix * (1 - torch.eye(n, dtype=torch.float64))).sum() / (n * (n - 1))


@every_network
@pytest.mark.parametrize("batch", [3, 100])
def test_alignment_is_the_quadratic_form_of_the_gram_matrix(build: Callable[[], nn.Module], batch: int) -> None:
    network, x, targets = network_of(build), normal(N, *SHAPES[build]), normal(4, N, seed=1)
    jacobian = dense_jacobian(network, x)
    matrix = jacobian @ jacobian.T
    found = alignment(network, x, targets, batch=batch, run=CPU64)
    close(found.values, (targets @ matrix * targets).sum(1) / N**2)
    close(found.unbiased, torch.stack([pairs_of(matrix, y) for y in targets]))
    close(found.squared_norms, targets.square().mean(1))
    left_out = []
    for i in range(N):
        kept = [j for j in range(N) if j != i]
        left_out.append(torch.stack([pairs_of(matrix[kept][:, kept], y[kept]) for y in targets]))
    close(found.standard_errors, (torch.stack(left_out).var(0, correction=0) * (N - 1)).sqrt())
    assert found.population(2).value == float(found.unbiased[2])
    assert found.inputs == N


def test_normalised_alignment_is_the_rayleigh_quotient() -> None:
    network, x, targets = network_of(smooth_mlp), normal(N, 6), normal(2, N, seed=1)
    jacobian = dense_jacobian(network, x)
    matrix = jacobian @ jacobian.T
    found = alignment(network, x, targets, normalised=True, run=CPU64)
    close(found.values, (targets @ matrix * targets).sum(1) / targets.square().sum(1) / N)
    plain = alignment(network, x, targets, run=CPU64)
    close(found.unbiased, plain.unbiased / plain.squared_norms)
    scaled = alignment(network, x, 10 * targets, normalised=True, run=CPU64)
    close(scaled.values, found.values)
    close(scaled.standard_errors, found.standard_errors)


@pytest.mark.parametrize("numbers", [1, 300, 10**9])
@pytest.mark.parametrize("errors", [False, True])
def test_several_targets_at_once_are_one_at_a_time(numbers: int, errors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x, targets = network_of(smooth_mlp), normal(N, 6), normal(5, N, seed=1)
    alone = [alignment(network, x, target, batch=2, run=CPU64) for target in targets]
    monkeypatch.setattr(tangent_operator, "_ON_CPU", 8 * numbers)
    together = alignment(network, x, targets, errors=errors, run=CPU64)
    for name in ("values", "unbiased", "standard_errors") if errors else ("values",):
        close(getattr(together, name), torch.cat([getattr(one, name) for one in alone]))
    assert bool(together.standard_errors.isnan().all()) is not errors


def test_an_eigenfunction_of_mean_square_one_has_its_eigenvalue_over_n_as_alignment() -> None:
    network, x = network_of(relu_convnet), normal(20, 1, 8, 8)
    spectrum = eigenpairs(TangentKernel(network, x, run=CPU64))
    eigenfunctions = math.sqrt(20) * spectrum.vectors
    found = alignment(network, x, eigenfunctions, run=CPU64)
    close(found.squared_norms, torch.ones(20, dtype=torch.float64))
    close(found.values, spectrum.values / 20)


def test_the_bound_is_below_the_norm_in_the_kernels_space() -> None:
    network, x, targets = network_of(relu_convnet), normal(12, 1, 8, 8), normal(6, 12, seed=1)
    jacobian = dense_jacobian(network, x)
    norms = (targets * torch.linalg.solve(jacobian @ jacobian.T, targets.T).T).sum(1)
    found = alignment(network, x, targets, errors=False, run=CPU64)
    bounds = found.squared_norms**2 / found.values
    assert bool((bounds <= norms).all())
    assert bool((bounds > 0).all())


def gaussian_alignment(inputs: int, seed: int) -> Alignment:
    """Of ``x ↦ x₀ + 1`` with ``f = wᵀx + b``: ``E[y∇f] = (1, 0, 0, 1)``, so that the alignment is 2."""
    network = Network.of(nn.Linear(3, 1)).read("first")
    x = normal(inputs, 3, seed=seed)
    return alignment(network, x, x[:, 0] + 1, run=CPU64)


def test_alignment_in_the_population_is_unbiased_and_its_error_falls_like_the_root_of_the_inputs() -> None:
    spreads = []
    for inputs in (25, 400):
        found = [gaussian_alignment(inputs, seed) for seed in range(120)]
        unbiased = np.array([float(one.unbiased) for one in found])
        spreads.append(unbiased.std())
        assert abs(unbiased.mean() - 2) < 4 * spreads[-1] / math.sqrt(120)
        # E[y²‖∇f‖²] = E[(x₀+1)²(1 + x₀² + x₁² + x₂²)] = 10: what the plug-in value is too large by, over n, less α/n.
        excess = np.array([float(one.values) for one in found]) - unbiased
        assert excess.mean() == pytest.approx((10 - 2) / inputs, rel=0.2)
        told = np.sqrt(np.mean([float(one.standard_errors) ** 2 for one in found]))
        assert told == pytest.approx(spreads[-1], rel=0.25)
        inside = np.mean([one.population().contains(2.0) for one in found])
    assert inside > 0.9  # of intervals at 95 %, from the larger samples
    assert spreads[1] / spreads[0] == pytest.approx(1 / 4, rel=0.25)


# ---- anisotropy directions of one network --------------------------------------------------------------------------


class Quadratic(nn.Module):
    """``f = Σ_h a_h (w_hᵀx + b_h)²``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.inner(x) ** 2)
        return out

    def mean_derivative_gram(self) -> np.ndarray:
        """``M̄ᵀM̄ = Σ_h 4(a_h² + b_h²) w_h w_hᵀ + 4a_h²b_h² I``.

        The input gradients of ``∂f/∂a_h``, ``∂f/∂w_h`` and ``∂f/∂b_h`` are ``2(w_hᵀx + b_h)w_h``,
        ``2a_h((w_hᵀx + b_h)I + x w_hᵀ)`` and ``2a_h w_h``: affine in x, so that their means are their values at 0.
        """
        w, b = (part.detach().double().numpy() for part in (self.inner.weight, self.inner.bias))
        a = self.outer.weight.detach().double().numpy()[0]
        rows = w * np.sqrt(4 * (a**2 + b**2))[:, None]
        return np.asarray(rows.T @ rows + 4 * (a**2 * b**2).sum() * np.eye(6))


def quadratic() -> Quadratic:
    with forked_rng(0):
        return Quadratic()


def matrix_of(result: Anisotropy) -> np.ndarray:
    return np.asarray((result.directions.T * result.eigenvalues) @ result.directions)


GAUSSIAN = Probe.gaussian((6,), fresh=True)


def test_a_linear_model_aligns_with_all_linear_targets_alike() -> None:
    family = Family.point(nn.Linear(6, 1), name="linear")
    result = anisotropy_directions(family, GAUSSIAN, estimator="tangent", draws=8, run=CPU64)
    np.testing.assert_allclose(result.eigenvalues, 1.0, rtol=1e-12)  # f = wᵀx + b: M̄ = I
    assert result.sentence().endswith("spreads evenly over all 6 directions: no direction is preferred.")
    assert result.headline()["first_alignment"].value == pytest.approx(1.0)
    assert result.headline()["trace"].value == pytest.approx(6.0)


def test_a_quadratic_network_has_its_closed_form_at_zero_and_up_to_sampling_on_average() -> None:
    module = quadratic()
    wanted = module.mean_derivative_gram()
    family = Family.point(module, name="quadratic")
    at_zero = anisotropy_directions(family, Probe.fixed(torch.zeros(1, 6)), estimator="tangent", run=CPU64)
    np.testing.assert_allclose(matrix_of(at_zero), wanted, atol=1e-6)  # directions are kept in single precision
    np.testing.assert_allclose(at_zero.eigenvalues, np.linalg.eigvalsh(wanted)[::-1], rtol=1e-10)
    assert at_zero.effective_rank.value == pytest.approx(np.trace(wanted) ** 2 / (wanted**2).sum())
    assert at_zero.effective_rank.standard_error == at_zero.trace.standard_error == 0.0
    assert not at_zero.eigenvalue_errors.any()
    errors = []
    for draws in (40, 640):
        sampled = [
            anisotropy_directions(
                family, Probe.gaussian((6,), fresh=True, seed=seed), estimator="tangent", draws=draws, run=CPU64
            )
            for seed in range(8)
        ]
        norms = [np.linalg.norm(matrix_of(result) - wanted) / np.linalg.norm(wanted) for result in sampled]
        errors.append(math.sqrt(np.mean(np.square(norms))))
    assert errors[1] / errors[0] == pytest.approx(1 / 4, rel=0.4)
    for result in sampled:
        assert abs(result.trace.value - np.trace(wanted)) < 4.5 * result.trace.standard_error


def test_eigenvalues_are_alignments_of_linear_targets() -> None:
    """Stein's lemma: the mean of the derivative against the mean of target times gradient, on other inputs."""
    network = network_of(smooth_mlp)
    result = anisotropy_directions(
        Family.point(network.as_module(), name="smooth"), GAUSSIAN, estimator="tangent", draws=2000, run=CPU64
    )
    x = normal(20_000, 6, seed=3)
    found = alignment(network, x, torch.from_numpy(result.directions).double() @ x.T, batch=1000, run=CPU64)
    for index, value in enumerate(result.eigenvalues):
        error = math.hypot(float(found.standard_errors[index]), float(result.eigenvalue_errors[index]))
        assert abs(float(found.unbiased[index]) - value) < 4 * error
    assert float(found.standard_errors[0] / found.unbiased[0]) < 0.05


def test_what_a_kink_adds_to_an_alignment_is_not_in_the_derivative() -> None:
    """``f = max(wᵀx + b, 0)`` along ``u = w/|w|``, with ``c = b/|w|``: the alignment is ``(Φ(c) − cφ(c))² + φ(c)²``.

    ``E[z² 1(z > −c)]`` and ``E[z 1(z > −c)]`` are what the weight and the bias give. The derivatives of their gradients are
    ``1(z > −c)`` and 0 almost everywhere, and give ``Φ(c)²``.
    """
    layer = nn.Linear(2, 1)
    layer.weight.data, layer.bias.data = torch.tensor([[0.0, 2.0]]), torch.tensor([1.0])
    module = nn.Sequential(layer, nn.ReLU())
    below, density = 0.5 * (1 + math.erf(0.5 / math.sqrt(2))), math.exp(-0.125) / math.sqrt(2 * math.pi)
    true = (below - 0.5 * density) ** 2 + density**2
    x = normal(20_000, 2)
    found = alignment(Network.of(module), x, x[:, 1], batch=1000, run=CPU64).population()
    assert abs(found.value - true) < 4 * found.standard_error < 0.15 * true
    probe = Probe.gaussian((2,), fresh=True)
    result = anisotropy_directions(Family.point(module), probe, estimator="tangent", draws=2000, run=CPU64)
    assert result.eigenvalues[0] == pytest.approx(below**2, rel=0.05)
    assert below**2 > 1.2 * true
    assert result.kinks == ("ReLU",)


def test_a_law_gives_its_first_draw_and_says_so() -> None:
    family = Family.initialised(smooth_mlp, name="law")
    drawn = family.draw(1, seed=5, run=CPU64).member(0).as_module()
    results = [
        anisotropy_directions(who, GAUSSIAN, estimator="tangent", draws=16, seed=5, run=CPU64)
        for who in (family, Family.point(drawn), Family.empirical([drawn]))
    ]
    np.testing.assert_allclose(results[0].eigenvalues, results[1].eigenvalues, rtol=1e-12)
    np.testing.assert_array_equal(results[1].eigenvalues, results[2].eigenvalues)
    with pytest.raises(ValueError, match="belongs to one network, but Sequential holds 2"):
        anisotropy_directions(Family.empirical([drawn, drawn]), GAUSSIAN, estimator="tangent", draws=16, run=CPU64)
    other = anisotropy_directions(family, GAUSSIAN, estimator="tangent", draws=16, seed=6, run=CPU64)
    assert abs(other.eigenvalues[0] / results[0].eigenvalues[0] - 1) > 1e-3
    assert results[0].estimator == "mixed derivative of one network"
    assert results[0].mixed
    assert results[0].alignments
    assert results[0].provenance["settings"]["average"] == "operator"
    assert results[0].kinks == ()
    with pytest.raises(ValueError, match=r"belongs to one network, but \w+ holds 2\. Pass Family\.point"):
        anisotropy_directions(Family.empirical([smooth_mlp(), smooth_mlp()]), GAUSSIAN, estimator="tangent", run=CPU)
    with pytest.raises(ValueError, match=r"is one network\. Use average_geometry, or pass estimator='tangent'"):
        anisotropy_directions(Family.point(drawn), GAUSSIAN, draws=16, run=CPU)
    with pytest.raises(ValueError, match=r"centred must be left out .*\. Pass centred=None"):
        anisotropy_directions(family, GAUSSIAN, estimator="tangent", centred=True, run=CPU)


class Even(nn.Module):
    """``f = Σ_h (w_hᵀx)²``: its mixed derivative is odd in x, and its mean zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().sum(1, keepdim=True)


def test_a_mean_that_is_noise_is_told_and_kinks_are_named() -> None:
    def words(module: nn.Module, draws: int) -> str:
        family = Family.point(module, name="it")
        return anisotropy_directions(family, GAUSSIAN, estimator="tangent", draws=draws, run=CPU).sentence()

    with forked_rng(0):
        even, kinked = Even(), nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
    noise = "Noise hides the mean mixed derivative of it at 64 inputs (the averages of two halves have cosine"
    assert words(even, 64).startswith(noise)
    assert words(kinked, 400).endswith("The alignments leave out the effect of the kinks of ReLU.")


@pytest.mark.usefixtures("unrendered_pictures")
def test_directions_of_one_network_from_the_command_line(tmp_path: Path) -> None:
    words = ["measure", "anisotropy_directions", "lenet", "--estimator", "tangent", "--input", "1x16x16", "--json"]
    words += ["--set", "activation=gelu", "--set", "pooling=average", "--set", "padding=same", "--set", "hidden=20,10"]
    for fresh in ([], ["--fresh", "--draws", "6"]):
        done = CliRunner().invoke(app, [*words, *fresh, "--device", "cpu", "--out", str(tmp_path / str(len(fresh)))])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)["results"][0]
        numbers = {number["key"]: number for number in found["numbers"]}
        assert ("first_alignment" in numbers) is bool(fresh)
        assert numbers["effective_rank"]["label"] == "effective rank of 256 (mixed derivative of one network)"
        assert numbers["effective_rank"]["value"] > 1


# ---- what is told --------------------------------------------------------------------------------------------------


def test_a_network_with_one_output_is_read_as_it_is() -> None:
    one = network_of(lambda: nn.Linear(6, 1), readout=None)
    close(TangentKernel(one, normal(3, 6), run=CPU64).diagonal(), normal(3, 6).square().sum(1) + 1)


def test_wrong_arguments_are_a_sentence() -> None:
    x = normal(N, 6)
    several = network_of(smooth_mlp, readout=None)
    with pytest.raises(ValueError, match=r"needs one output per input, but the network has 3\. Pass network\.read"):
        TangentKernel(several, x, run=CPU64)
    stack = Family.initialised(smooth_mlp).draw(2, seed=0, run=CPU64).read("first")
    with pytest.raises(ValueError, match=r"needs one network, got a stack of 2\. Pass network\.member"):
        TangentKernel(stack, x, run=CPU64)
    network = network_of(smooth_mlp)
    with pytest.raises(ValueError, match=r"batch must be at least 1 input, got 0\. Pass batch"):
        TangentKernel(network, x, batch=0, run=CPU64)
    with pytest.raises(ValueError, match="Inputs must share one leading axis"):
        TangentKernel(network, normal(0, 6), run=CPU64)
    with pytest.raises(ValueError, match=r"probes must be at least 9 columns .* got 8\. Pass probes"):
        TangentKernel(network, x, run=CPU64).trace(8)
    for targets in (normal(N + 1), normal(2, 3, N), torch.zeros(N)):
        with pytest.raises(ValueError, match=r"targets must hold 7 values each.*\. Pass targets"):
            alignment(network, x, targets, run=CPU64)
    broken = network.with_params({**network.params, "5.weight": network.params["5.weight"] * math.inf})
    with pytest.raises(ValueError, match=r"must give finite weight gradients.*\. Pass precision"):
        TangentKernel(broken, x, run=CPU64).diagonal()


@pytest.mark.parametrize(
    ("flaw", "sentence"), [("noise", "its forward pass is random"), ("mean", "independently, but its outputs")]
)
def test_outputs_that_depend_on_more_than_their_input_are_refused(flaw: str, sentence: str) -> None:
    class Flawed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(x)
            return outputs + 1e-4 * (torch.randn_like(outputs) if flaw == "noise" else outputs.mean())

    with pytest.raises(ValueError, match=sentence):
        TangentKernel(Network.of(Flawed(3, 1)), normal(9, 3), run=CPU64)
