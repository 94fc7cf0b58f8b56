"""The mixed derivative: its products against dense second derivatives, its averages against closed forms."""

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import closed_forms_pooling as pooling_forms
import numpy as np
import pytest
import torch
from measures.test_measures import PREFILTER, PoolingModel, X, gaussian_weights
from networks_under_test import (
    AttentionNetwork,
    TwoInputs,
    batchnorm_convnet,
    network_of,
    normal,
    relu_convnet,
    smooth_mlp,
)
from torch import Tensor, nn
from torch.func import grad, jacrev

from biascope.derivatives import mixed as mixed_derivative
from biascope.derivatives import mixed_gram
from biascope.derivatives.gradients import mixed_jvp, mixed_vjp
from biascope.derivatives.mixed import MixedDerivative
from biascope.derivatives.mixed_gram import MixedDerivativeGram, SketchedSums
from biascope.derivatives.mixed_gram import mixed_gram as estimated_gram
from biascope.derivatives.operators import EstimatedOperator, GradientCovariance, GramOfMean
from biascope.derivatives.spectrum import eigenpairs, subspace_similarity
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.covariance.compare import common_directions
from biascope.networks import builder
from biascope.results.draw import caption_of
from biascope.results.registry import find, settings_from
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

CPU, CPU64 = Run(device="cpu"), Run(device="cpu", precision="float64")
FIXED, FRESH = Probe.fixed(X), Probe.gaussian((8,), num=2, fresh=True, seed=1)

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "smooth": (smooth_mlp, (6,)),
    "convolutions, ReLU, max-pooling": (relu_convnet, (1, 8, 8)),
    "BatchNorm": (batchnorm_convnet, (1, 6, 6)),
    "attention": (AttentionNetwork, (5, 4)),
}


def tanh_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))


def relu_mlp() -> nn.Module:
    return gaussian_weights(
        nn.Sequential(nn.Linear(8, 5, bias=False), nn.ReLU(), nn.Linear(5, 1, bias=False)),
        {"0.weight": 0.9, "2.weight": 0.7},
    )


FORMS: dict[str, tuple[Callable[[], nn.Module], np.ndarray]] = {
    "linear pooling": (
        lambda: PoolingModel(PREFILTER, 2, rectified=False),
        pooling_forms.linear_pooling_mixed_gram(PREFILTER, 2, theta_std=0.7, phi_std=1.3),
    ),
    "one hidden ReLU layer": (relu_mlp, pooling_forms.relu_layer_mixed_gram(8, 5, theta_std=0.7, phi_std=0.9)),
    "non-linear pooling": (
        lambda: PoolingModel(PREFILTER, 2, rectified=True),
        pooling_forms.nonlinear_pooling_mixed_gram(X[0].double().numpy(), PREFILTER, 2, theta_std=0.7, phi_std=1.3),
    ),
}


def dense_derivative(network: Network, x: Tensor) -> Tensor:
    """∇²_{x,θ} f as a (p, D) matrix, by differentiating the weight gradient with respect to every input entry."""

    def weight_gradient(inputs: Tensor) -> Tensor:
        parts = grad(lambda params: network.apply(params, network.buffers, inputs).sum())(network.params)
        return torch.cat([part.flatten() for part in parts.values()])

    return jacrev(weight_gradient)(x).flatten(1)


@functools.cache
def family_of(build: Callable[[], nn.Module]) -> Family:
    return Family.initialised(build)


def derivative_of(
    build: Callable[[], nn.Module], probe: Probe = FIXED, run: Run = CPU, **settings: object
) -> MixedDerivative:
    return MixedDerivative(family_of(build), probe, run=run, **settings)  # type: ignore[arg-type]


def matrix_of(operator: EstimatedOperator) -> Tensor:
    matrix = operator.dense()
    assert matrix is not None
    return matrix


def relative(one: Tensor | np.ndarray, two: Tensor | np.ndarray) -> float:
    one, two = torch.as_tensor(one), torch.as_tensor(two)
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_those_of_the_dense_second_derivative_and_of_its_transpose(name: str) -> None:
    build, shape = NETWORKS[name]
    network, x = network_of(build), normal(1, *shape, seed=1)
    dense = dense_derivative(network, x)
    assert float(dense.norm()) > 0.1
    directions, cotangents = normal(3, dense.shape[1], seed=2), normal(3, dense.shape[0], seed=3)
    along, against = mixed_jvp(network, x, directions), mixed_vjp(network, x, cotangents)
    torch.testing.assert_close(along, directions @ dense.T, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(against, cotangents @ dense, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(cotangents @ along.T, against @ directions.T, rtol=1e-10, atol=1e-10)


def test_a_stack_gives_what_each_member_gives_with_its_own_or_a_shared_input() -> None:
    stack = Family.initialised(relu_convnet).draw(3, seed=0, run=CPU64).read("first")
    rows, own = normal(2, 64, seed=1), normal(3, 1, 1, 8, 8, seed=2)
    for paired in (False, True):
        x = own if paired else own[0]
        along = mixed_jvp(stack, x, rows, paired=paired)
        against = mixed_vjp(stack, x, along, paired=paired)
        differences = mixed_jvp(stack, x, rows, step=0.1, paired=paired)
        for index in range(3):
            member, at = stack.member(index), own[index] if paired else own[0]
            torch.testing.assert_close(along[index], mixed_jvp(member, at, rows), rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(against[index], mixed_vjp(member, at, along[index]), rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(differences[index], mixed_jvp(member, at, rows, step=0.1), rtol=1e-9, atol=1e-12)


def test_inputs_may_be_several_tensors_of_which_the_real_ones_count() -> None:
    network = network_of(TwoInputs)
    values, tokens = normal(1, 5, seed=1), torch.tensor([3])
    dense = dense_derivative(network_with(network, tokens), values)
    inputs = {"values": values, "tokens": tokens}
    axes = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(mixed_jvp(network, inputs, axes), dense.T)
    torch.testing.assert_close(mixed_vjp(network, inputs, dense.T.contiguous()), dense.T @ dense)
    probe = Probe.fixed({"values": torch.cat([values, values]), "tokens": torch.cat([tokens, tokens])})
    derivative = MixedDerivative(Family.point(network.as_module()), probe, run=CPU64)
    assert derivative.size == 5
    torch.testing.assert_close(next(derivative.grams(0, 1))[0], dense.T @ dense)


def network_with(network: Network, tokens: Tensor) -> Network:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network.module

        def forward(self, values: Tensor) -> Tensor:
            return self.inner(values, tokens)

    return Network(Fixed(), {f"inner.{name}": part for name, part in network.params.items()}, {}, readout="first")


def test_differences_approach_the_derivative_with_the_square_of_their_width_on_a_smooth_network() -> None:
    network, x, rows = network_of(smooth_mlp), normal(1, 6, seed=1), normal(4, 6, seed=2)
    exact = mixed_jvp(network, x, rows)
    widths = [0.1, 0.05, 0.025]
    errors = [relative(mixed_jvp(network, x, rows, step=width), exact) for width in widths]
    slopes = [math.log(a / b) / math.log(2) for a, b in itertools.pairwise(errors)]
    assert slopes == pytest.approx([2.0, 2.0], abs=0.03)


@pytest.mark.parametrize("estimator", ["exact", "difference"])
@pytest.mark.parametrize("probe", [FIXED, FRESH], ids=["fixed", "fresh"])
@pytest.mark.parametrize("numbers", [1, 20_000, 2**25])
def test_gram_matrices_do_not_depend_on_how_members_and_columns_are_cut(
    estimator: str, probe: Probe, numbers: int
) -> None:
    derivative = derivative_of(relu_mlp, probe, CPU64, estimator=estimator, step=2.0)
    derivative.numbers = numbers
    stack = derivative.family.draw(5, seed=0, run=CPU64).read("first")
    axes, step = torch.eye(8, dtype=torch.float64), 2.0 if estimator == "difference" else None
    wanted = []
    for index in range(5):
        x = probe.inputs(index, index + 1, CPU64)[0] if probe.fresh else probe.inputs(0, 1, CPU64)
        each = [mixed_jvp(stack.member(index), one[None], axes, step=step) for one in x]
        wanted.append(torch.stack([columns @ columns.T for columns in each]).mean(0))
    torch.testing.assert_close(torch.cat(list(derivative.grams(0, 5))), torch.stack(wanted))
    vectors = normal(8, 3, seed=4)
    torch.testing.assert_close(torch.cat(list(derivative.grams(0, 5, vectors))), torch.stack(wanted) @ vectors)


@pytest.mark.parametrize("estimator", ["exact", "difference"])
def test_summed_operators_are_adjoint(estimator: str) -> None:
    derivative = derivative_of(tanh_mlp, FRESH, CPU64, estimator=estimator, step=0.5)
    vectors, rows = normal(8, 3, seed=1), normal(4, derivative.parameters, seed=2)
    spans = [(0, 3), (5, 7)]
    along, against = derivative.sum_along(spans, vectors), derivative.sum_against(spans, rows)
    torch.testing.assert_close(rows @ along.T, against.T @ vectors)


@pytest.mark.parametrize("name", FORMS)
def test_the_average_gram_matrix_is_the_closed_form_up_to_its_error(name: str) -> None:
    build, wanted = FORMS[name]
    errors = []
    for draws in (100, 1600):
        samples = [estimated_gram(derivative_of(build, seed=seed), draws=draws) for seed in range(8)]
        errors.append(np.sqrt(np.mean([relative(matrix_of(gram), wanted) ** 2 for gram in samples])))
    assert errors[1] / errors[0] == pytest.approx(1 / 4, rel=0.35)  # it falls like the root of the number of draws
    assert errors[1] < 0.05
    rank = np.trace(wanted) ** 2 / (wanted**2).sum()
    for gram in samples:
        assert abs(gram.trace().value - np.trace(wanted)) < 4.5 * gram.trace().standard_error
        assert abs(gram.effective_rank().value - rank) < 4.5 * gram.effective_rank().standard_error


def test_a_linear_model_has_the_identity_for_every_draw() -> None:
    result = anisotropy_directions(
        Family.initialised(lambda: nn.Linear(8, 1), name="linear"), FIXED, estimator="mixed", draws=8, run=CPU
    )
    np.testing.assert_allclose(result.eigenvalues, 1.0, rtol=1e-6)
    assert result.effective_rank.value == pytest.approx(8.0)
    assert result.sentence().endswith("spreads evenly over all 8 directions: no direction is preferred.")


def test_the_averaged_operator_does_not_converge_for_weights_of_mean_zero_while_the_gram_matrix_does() -> None:
    build, wanted = FORMS["linear pooling"]
    derivative = derivative_of(build)
    errors: dict[str, list[float]] = {"gram": [], "operator": []}
    for draws, average in itertools.product((10, 100, 2000), errors):
        estimate = estimated_gram(derivative, draws=draws, average=average)
        errors[average].append(relative(matrix_of(estimate), wanted))
    assert errors["operator"] == pytest.approx([1.0] * 3, abs=0.2)
    assert errors["operator"][-1] == pytest.approx(1.0, abs=0.01)  # of the closed form nothing is left
    assert errors["gram"][0] > 0.2
    assert errors["gram"][-1] < 0.05
    means = [estimated_gram(derivative_of(build, seed=seed), draws=64, average="operator") for seed in range(32)]
    cosines = [mean.coherence() for mean in means if isinstance(mean, GramOfMean)]
    assert len(cosines) == 32
    assert abs(np.mean(cosines)) < 3.5 * np.std(cosines) / math.sqrt(32)  # two halves have nothing in common


def test_what_the_average_leaves_of_a_relu_layer_is_the_direction_of_the_input() -> None:
    """E[φ 1(φᵀx > 0)] = σ x/(√(2π)‖x‖) for each of H units; the rows of the other weights have mean zero."""
    mean = estimated_gram(derivative_of(relu_mlp), draws=20_000, average="operator")
    unit = X[0].double() / X.double().norm()
    limit = 5 * 0.9**2 / (2 * math.pi) * torch.outer(unit, unit)
    assert relative(matrix_of(mean), limit) < 0.05
    assert isinstance(mean, GramOfMean)
    assert mean.coherence() > 0.95


def test_averaged_over_inputs_the_operator_of_one_network_does_converge() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        family = Family.point(tanh_mlp())
    probe = Probe.gaussian((8,), fresh=True, seed=0)
    derivative = MixedDerivative(family, probe, run=CPU64)
    summed = estimated_gram(derivative, draws=2000, average="operator")
    assert isinstance(summed, GramOfMean)
    assert summed.coherence() > 0.98
    network = family.template.to(CPU64.torch_device, CPU64.dtype).read("first")
    x = probe.inputs(0, 2000, CPU64)[:, 0]
    mean = torch.stack([dense_derivative(network, one[None]) for one in x[:50]]).mean(0)
    few = estimated_gram(derivative, draws=50, average="operator")
    torch.testing.assert_close(matrix_of(few), mean.T @ mean)
    one, two = (eigenpairs(part, 1).vectors for part in summed.halves())
    assert subspace_similarity(one, two) > 0.99


def test_the_gram_matrix_of_a_mean_has_jackknife_errors() -> None:
    sums = [(2, normal(3, 7, seed=index) + 2.0) for index in range(12)]
    gram = GramOfMean(sums, inputs=1)
    mean = sum(part for _, part in sums) / 24
    torch.testing.assert_close(gram.dense(), mean @ mean.T)
    vectors = torch.eye(3, dtype=torch.float64)
    values, errors = gram.along(vectors)
    torch.testing.assert_close(values, gram.dense().diagonal())
    left = [GramOfMean(sums[:index] + sums[index + 1 :], 1) for index in range(12)]
    diagonals = torch.stack([part.dense().diagonal() for part in left])
    torch.testing.assert_close(errors, (diagonals.var(0, correction=0) * 11).sqrt())
    ranks = np.array([float(part.dense().trace() ** 2 / part.dense().square().sum()) for part in left])
    assert gram.effective_rank().standard_error == pytest.approx(math.sqrt(11 * ranks.var()))
    assert gram.trace().value == pytest.approx(float(mean.square().sum()))
    traces = np.array([float(part.dense().trace()) for part in left])
    assert gram.trace().standard_error == pytest.approx(math.sqrt(11 * traces.var()))


@pytest.mark.parametrize("average", ["gram", "operator"])
@pytest.mark.parametrize("estimator", ["exact", "difference"])
def test_products_alone_give_the_same_directions_as_the_whole_matrix(average: str, estimator: str) -> None:
    derivative = derivative_of(tanh_mlp, FIXED, CPU64, estimator=estimator, step=0.5)
    whole = estimated_gram(derivative, draws=12, average=average)
    products = MixedDerivativeGram(
        derivative, [(index, index + 1) for index in range(12)], average=average, formed=False
    )
    assert products.dense() is None
    formed = MixedDerivativeGram(derivative, products.groups, average=average)
    torch.testing.assert_close(formed.dense(), whole.dense())
    one, two = eigenpairs(whole, 3), eigenpairs(products, 3)
    torch.testing.assert_close(one.values, two.values)
    assert subspace_similarity(one.vectors, two.vectors) == pytest.approx(1.0, abs=1e-8)
    assert float(two.residuals.max()) < 1e-8
    for first, second in zip(whole.halves(), products.halves(), strict=True):
        torch.testing.assert_close(first.matmul(two.vectors.T), second.matmul(two.vectors.T))
    values, errors = products.along(one.vectors.T)
    torch.testing.assert_close(values, one.values)
    if average == "gram":
        torch.testing.assert_close(errors, whole.along(one.vectors.T)[1])
        assert products.effective_rank().contains(whole.effective_rank().value)
        assert products.trace().contains(whole.trace().value)
    else:
        assert isinstance(whole, GramOfMean)
        assert products.effective_rank().value == pytest.approx(whole.effective_rank().value, rel=0.5)
        assert math.isnan(products.effective_rank().standard_error)
        assert formed.trace().value == pytest.approx(whole.trace().value)
        assert products.coherence() == pytest.approx(whole.coherence(), abs=0.3)


def test_sketches_give_unbiased_powers_of_the_trace_and_intervals_that_cover() -> None:
    """Against matrices drawn at random, whose mean is known."""
    generator = torch.Generator().manual_seed(0)
    size, draws, width = 12, 24, 8
    root = torch.diag(torch.linspace(0.3, 2.0, size, dtype=torch.float64))
    truth = root @ root
    rank = float(truth.trace() ** 2 / truth.square().sum())
    powers, covered = [], []
    for _ in range(300):
        factors = torch.randn(draws, size, 4, generator=generator, dtype=torch.float64)
        grams = root @ factors @ factors.mT @ root / 4  # their mean is the truth
        columns = torch.randn(size, 8 * width, generator=generator, dtype=torch.float64)
        groups = []
        for gram in grams:
            image = (gram @ columns).reshape(size, 8, width)
            trace = (columns.reshape(size, 8, width) * image).sum(0).mean(1)
            groups.append(SketchedSums(1, image, trace, trace**2, image.square().sum((0, 2)) / width))
        total = groups[0]
        for group in groups[1:]:
            total = total.plus(group)
        powers.append(total.powers().mean(1))
        covered.append(SketchedSums.participation(groups).contains(rank))
    mean, error = torch.stack(powers).mean(0), torch.stack(powers).std(0) / math.sqrt(300)
    wanted = torch.stack([truth.trace() ** 2, truth.square().sum()])
    assert bool((abs(mean - wanted) < 4 * error).all())
    assert np.mean(covered) >= 0.92


def test_the_form_follows_from_the_sizes_and_the_directions_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    derivative = derivative_of(tanh_mlp)
    assert isinstance(estimated_gram(derivative, draws=4), GradientCovariance)
    assert isinstance(estimated_gram(derivative, draws=4, average="operator"), GramOfMean)
    monkeypatch.setattr(mixed_gram, "_SUM_NUMBERS", 1)
    large = estimated_gram(derivative, draws=4, average="operator")
    assert isinstance(large, MixedDerivativeGram)
    assert large.formed
    monkeypatch.setattr(mixed_gram, "_COLUMNS_PER_DIRECTION", 2)
    few = estimated_gram(derivative, draws=4, keep=3)
    assert isinstance(few, MixedDerivativeGram)
    assert few.dense() is None
    monkeypatch.setattr(mixed_gram, "_GROUP_NUMBERS", 8 * 64)
    assert len(estimated_gram(derivative, draws=40).groups) == 8


def test_memory_that_runs_out_is_met_by_taking_less_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = torch.cat(list(derivative_of(relu_mlp, run=CPU64).grams(0, 6)))
    taken = []

    def scarce(network: Network, x: Tensor, rows: Tensor, **settings: object) -> Tensor:
        taken.append((network.members or 1) * len(rows))
        if taken[-1] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return mixed_jvp(network, x, rows, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(mixed_derivative, "mixed_jvp", scarce)
    derivative = derivative_of(relu_mlp, run=CPU64)
    derivative.numbers = 2**16
    torch.testing.assert_close(torch.cat(list(derivative.grams(0, 6))), wanted)
    assert max(taken) > 5 >= taken[-1] > 1
    monkeypatch.setattr(
        mixed_derivative, "mixed_jvp", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("none left"))
    )
    with pytest.raises(ValueError, match="must fit into the device's memory"):
        next(derivative.grams(0, 1))


class Branching(nn.Module):
    """Its course depends on its weights, so that members cannot be computed together."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        slope = 2.0 if self.weight.sum().item() > 0 else 1.0
        return slope * torch.tanh(x @ self.weight)[:, None]


class Rounded(torch.autograd.Function):
    """A function with a first derivative alone."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class OnceDifferentiable(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(Rounded.apply(x))


def test_members_that_cannot_be_stacked_are_taken_one_by_one() -> None:
    derivative = derivative_of(Branching, run=CPU64)
    grams = torch.cat(list(derivative.grams(0, 3)))
    stack = derivative.family.draw(3, seed=0, run=CPU64).read("first")
    for index in range(3):
        dense = dense_derivative(stack.member(index), X.double())
        torch.testing.assert_close(grams[index], dense.T @ dense)


def test_a_network_without_second_derivatives_is_told() -> None:
    with pytest.raises(ValueError, match="must be twice differentiable"):
        next(derivative_of(lambda: OnceDifferentiable(8, 1)).grams(0, 1))


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the calls of the work on members; kills after as many as its second entry allows."""
    state = [0, 10**9]
    plain = MixedDerivative._averaged

    def counted(self: MixedDerivative, *arguments: object) -> Tensor:
        if state[0] == state[1]:
            raise KeyboardInterrupt
        state[0] += 1
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MixedDerivative, "_averaged", counted)
    return state


@pytest.mark.parametrize("settings", [{}, {"average": "operator"}, {"keep": 2}], ids=["gram", "operator", "products"])
def test_a_run_that_was_killed_goes_on_where_it_stopped(
    settings: dict[str, object], dying: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_gram, "_COLUMNS_PER_DIRECTION", 2)
    family = Family.initialised(tanh_mlp, name="mlp")

    def measured(run: Run) -> np.ndarray:
        result = anisotropy_directions(family, FIXED, estimator="mixed", draws=12, run=run, **settings)  # type: ignore[arg-type]
        return result.eigenvalues

    wanted, whole = measured(CPU), dying[0]
    dying[:] = [0, whole // 2]
    with pytest.raises(KeyboardInterrupt):
        measured(Run(device="cpu", folder=tmp_path))
    assert list(tmp_path.rglob("*.safetensors"))
    dying[:] = [0, 10**9]
    np.testing.assert_allclose(measured(Run(device="cpu", folder=tmp_path)), wanted, rtol=1e-5)
    assert 0 < dying[0] <= whole - whole // 2 + 12  # what was in flight is done again
    dying[:] = [0, 10**9]
    measured(Run(device="cpu", folder=tmp_path))
    assert dying[0] == 0


def test_sampling_stops_once_the_leading_subspaces_agree() -> None:
    family = Family.initialised(
        lambda: PoolingModel(np.array([3.0, 3.0, 1.0, 1.0, 0.3, 0.3, 0.1, 0.1]), 2, rectified=False)
    )
    settings = {"estimator": "mixed", "draws": 320, "leading": 2, "run": CPU}
    stopped = anisotropy_directions(family, FIXED, stable=0.9, **settings)  # type: ignore[arg-type]
    assert stopped.draws == 80
    assert anisotropy_directions(family, FIXED, **settings).draws == 320  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_step_that_changes_only_rounding_is_refused(precision: str) -> None:
    family, run = Family.initialised(tanh_mlp), Run(device="cpu", precision=precision)
    exact = anisotropy_directions(family, FIXED, estimator="mixed", draws=16, run=run).trace.value
    refused = []
    for step in 10.0 ** np.arange(-20, -2):
        try:
            found = anisotropy_directions(family, FIXED, estimator="mixed_difference", step=step, draws=16, run=run)
        except ValueError as error:
            refused.append(step)
            enough = float(str(error).partition("more than rounding in")[2].partition("Pass step=")[2].split()[0])
            anisotropy_directions(family, FIXED, estimator="mixed_difference", step=enough * 1.5, draws=2, run=run)
        else:
            assert found.trace.value == pytest.approx(exact, rel=0.01)
    assert refused


BAD: list[tuple[dict[str, object], str]] = [
    ({"estimator": "guess"}, "estimator must be one of"),
    ({"average": "mean"}, "average must be 'gram', or 'operator'"),
    ({"estimator": "exact", "average": "operator"}, "average must be 'gram', or 'operator'"),
    ({"estimator": "mixed_difference", "step": 0.0}, "must be a number other than 0"),
    ({"draws": 1}, "draws must be at least 2"),
    ({"centred": True}, "centred must be left out"),
    ({"stable": 1.5}, "stable must be a similarity"),
    ({"stable": 0.9, "average": "operator"}, "stable needs the whole Gram matrix"),
    ({"keep": 0}, "keep must be at least 1"),
    ({"readout": "last"}, "readout must be one of"),
]


@pytest.mark.parametrize(("settings", "words"), BAD, ids=[words[:24] for _, words in BAD])
def test_wrong_settings_are_told_in_one_sentence(settings: dict[str, object], words: str) -> None:
    given = {"estimator": "mixed", "draws": 8, "run": CPU, **settings}
    with pytest.raises(ValueError, match=words) as caught:
        anisotropy_directions(Family.initialised(tanh_mlp), FIXED, **given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert "Pass " in str(caught.value)


def test_direct_users_are_told_as_well() -> None:
    with pytest.raises(ValueError, match="estimator must be"):
        derivative_of(tanh_mlp, estimator="mixed")
    with pytest.raises(ValueError, match="average must be"):
        MixedDerivativeGram(derivative_of(tanh_mlp), [(0, 2)], average="mean")
    with pytest.raises(ValueError, match="average must be"):
        estimated_gram(derivative_of(tanh_mlp), draws=4, average="mean")


class Additive(nn.Module):
    """Its weights do not act on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True) + self.bias


@pytest.mark.parametrize("average", ["gram", "operator"])
def test_a_derivative_that_is_zero_is_told(average: str) -> None:
    with pytest.raises(ValueError, match="must have weights that act on its input"):
        anisotropy_directions(family_of(Additive), FIXED, estimator="mixed", average=average, draws=4, run=CPU)


def test_infinite_derivatives_are_told() -> None:
    def exploding() -> nn.Module:
        layers = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4), nn.Linear(4, 1))
        return gaussian_weights(layers, dict.fromkeys(dict(layers.named_parameters()), 1e30))

    with pytest.raises(ValueError, match="must have finite second derivatives"):
        next(derivative_of(exploding).grams(0, 1))


def test_results_say_what_they_are_and_compare() -> None:
    family = Family.initialised(relu_mlp, name="mlp")
    gradient, mixed, difference, operator = (
        anisotropy_directions(family, FIXED, draws=64, run=CPU, **settings)  # type: ignore[arg-type]
        for settings in (
            {"estimator": "exact"},
            {"estimator": "mixed"},
            {"estimator": "mixed_difference", "step": 5.0},
            {"estimator": "mixed", "average": "operator"},
        )
    )
    assert mixed.estimator == "mixed derivative, gram average"
    assert difference.estimator == "mixed derivative by differences, h = 5, gram average"
    assert operator.estimator == "mixed derivative, operator average"
    assert gradient.headline()["trace"].label == "mean squared gradient"
    assert mixed.headline()["trace"].label == "mean squared mixed derivative"
    assert mixed.provenance["settings"]["centred"] is None
    assert gradient.provenance["settings"]["centred"] is True
    assert "The mixed derivative of" in mixed.sentence()
    assert operator.coherence is not None
    assert abs(operator.coherence) < 0.5
    assert "average out over 64 draws" in operator.sentence()
    assert 0 <= common_directions(gradient, mixed, 3) <= 1
    assert np.isfinite(mixed.similarity).all()
    assert np.isfinite(mixed.held_out).all()
    assert mixed.effective_draws() >= 64
    assert mixed.residual < 1e-10


def test_the_command_line_takes_its_settings() -> None:
    words = ["--estimator", "mixed", "--average", "operator", "--draws", "8", "--centred", "none"]
    settings = settings_from(find("anisotropy_directions"), words)
    assert settings == {"estimator": "mixed", "average": "operator", "draws": 8, "centred": None}


@pytest.mark.slow
@pytest.mark.slow  # 12 s; the smoke run of figure S17 goes the same way every time
def test_lenets_first_directions_by_differences_are_those_of_its_gradient_covariance(one_thread: None) -> None:
    """Two networks are enough to meet them: measured 0.23 for ten directions, where chance is 0.01."""
    family, probe = Family.initialised(builder("lenet"), name="lenet"), Probe.gaussian((1, 32, 32), seed=0)
    gradient = anisotropy_directions(family, probe, estimator="difference", draws=64, run=CPU)
    differences = anisotropy_directions(family, probe, estimator="mixed_difference", draws=2, run=CPU)
    assert common_directions(gradient, differences, 10) > 0.18
    assert common_directions(gradient, differences, 50) > 0.2
    exact = anisotropy_directions(family, probe, estimator="mixed", draws=2, run=CPU)
    assert exact.effective_rank.value > 1.5 * differences.effective_rank.value  # it sees one linear piece


@pytest.mark.parametrize("keep", [None, 2])
def test_results_draw_themselves(keep: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.setattr(mixed_gram, "_COLUMNS_PER_DIRECTION", 2)
    result = anisotropy_directions(family_of(tanh_mlp), FIXED, estimator="mixed", draws=12, keep=keep, run=CPU)
    assert len(result.directions) == (keep or 8)
    assert result.provenance["settings"]["method"].startswith("leading" if keep else "all")
    assert caption_of(result.plots()["spectrum"]).startswith("Squared mixed derivative")


@pytest.mark.parametrize("numbers", [2**25, 600])  # one block of columns, and many
@pytest.mark.parametrize("probe", [Probe.gaussian((1, 8, 8)), Probe.gaussian((1, 8, 8), num=2, fresh=True)])
def test_the_gram_matrix_of_summed_columns_is_that_of_the_products(probe: Probe, numbers: int) -> None:
    run = Run(device="cpu", precision="float64")
    derivative = MixedDerivative(family_of(relu_convnet), probe, estimator="difference", step=3.0, run=run)
    derivative.numbers = numbers
    spans, axes = [(0, 2), (2, 5)], torch.eye(64, dtype=torch.float64)
    columns = derivative.sum_along(spans, axes)
    torch.testing.assert_close(derivative.gram_of_sum(spans), columns @ columns.T)
    assert not MixedDerivative(family_of(relu_convnet), probe, run=run).holds(5), "exact products are cheap"


def test_a_failure_of_the_device_is_not_blamed_on_the_network() -> None:
    derivative = MixedDerivative(
        Family.initialised(lambda: nn.Linear(3, 1)), Probe.gaussian((3,)), run=Run(device="cpu")
    )

    def failing(*_: object) -> Tensor:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        list(derivative._mapped(failing, torch.eye(3), 0, 1))
