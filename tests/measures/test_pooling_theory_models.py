"""What of the pooling theory has no printed form to fail: prefilters, the Bayes rule, ζ, dipoles, experiments.

The closed forms that the paper misprints are held against Monte Carlo, beside their printed forms, in
`test_closed_forms.py`. Here, too, a sample mean must lie within five of its standard errors.
"""

from __future__ import annotations

import math

import closed_forms_pooling as forms
import numpy as np
import pytest
import torch
from networks_under_test import normal
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn import functional

from biascope.measures.pooling_theory import PoolingTheory, pooling_theory
from biascope.measures.pooling_theory import models as pooling
from biascope.measures.pooling_theory import simulation as simulation
from biascope.runs.run import Run
from biascope.training.recipe import Recipe

CPU = Run(device="cpu", precision="float64")
PREFILTERS = ("box", "triangle", "gaussian", "ideal", "none")


def standard_errors_away(samples: Tensor, expected: float) -> float:
    return abs(float(samples.mean()) - expected) / (float(samples.std()) / math.sqrt(len(samples)) + 1e-15)


# Prefilters and pooling


@pytest.mark.parametrize("name", PREFILTERS)
@pytest.mark.parametrize(("size", "stride"), [(24, 4), (30, 3), (45, 5)])
def test_a_prefilter_is_a_real_filter_that_passes_constants(name, size, stride):
    response = pooling.prefilter_response(name, size, stride)
    assert response[0] == pytest.approx(1.0)
    np.testing.assert_allclose(response, np.conj(response[-np.arange(size)]), atol=1e-12)
    signal = normal(size, seed=1).numpy()
    filtered = np.fft.ifft(response * np.fft.fft(signal))[::stride]
    np.testing.assert_allclose(pooling.pooling_operator(response, stride) @ signal, filtered, atol=1e-12)


def test_box_triangle_and_none_are_what_they_are_in_pixels():
    signals = normal(3, 24, seed=2)
    operators = {name: pooling.pooling_operator(pooling.prefilter_response(name, 24, 4), 4) for name in PREFILTERS}
    pooled = {name: signals @ torch.as_tensor(operator).T for name, operator in operators.items()}
    torch.testing.assert_close(pooled["box"], functional.avg_pool1d(signals[:, None], 4)[:, 0])
    around = torch.cat([signals, signals[:, :6]], 1)
    twice = functional.avg_pool1d(functional.avg_pool1d(around[:, None], 4, 1), 4, 1)[:, 0, ::4]
    torch.testing.assert_close(pooled["triangle"], twice)
    torch.testing.assert_close(pooled["none"], signals[:, ::4])


def test_gaussian_and_ideal_prefilters_have_their_width():
    taps = np.fft.ifft(pooling.prefilter_response("gaussian", 128, 4)).real
    at = (np.arange(128) + 64) % 128 - 64
    assert taps @ at**2 == pytest.approx(2.0**2, rel=1e-3)  # the variance of the kernel: (S/2)²
    np.testing.assert_array_equal(pooling.prefilter_response("ideal", 16, 4).real, [1, 1, 0.5, *[0] * 11, 0.5, 1])


def test_wrong_names_and_strides_say_what_to_do():
    with pytest.raises(ValueError, match=r"one of 'box', .*, got 'Box'\. Pass prefilter='box'"):
        pooling.prefilter_response("Box", 8, 2)
    with pytest.raises(ValueError, match=r"stride must divide the input size 8, got 3\."):
        pooling.aliasing_matrix(8, 3)


# Bayes accuracy


def pooled_samples(response: np.ndarray, stride: int, frequency: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    """D(v) with ε = 1, σ = 2 drawn as it is defined; filtered in Fourier space and subsampled."""
    size, draws = len(response), 100_000
    angle = 2 * math.pi * frequency * np.arange(size) / size
    direction = np.cos(angle) if part == "re" else np.sin(angle)
    direction /= np.linalg.norm(direction)
    noise = 2.0 * normal(draws, size, seed=3).numpy()
    labels = np.sign(normal(draws, seed=4).numpy())
    signals = noise + np.outer(labels - noise @ direction, direction)
    return np.fft.ifft(response * np.fft.fft(signals), axis=1).real[:, ::stride], labels


@pytest.mark.parametrize("name", PREFILTERS)
@pytest.mark.parametrize(("frequency", "part"), [(3, "re"), (3, "im"), (4, "re"), (4, "im"), (7, "re"), (8, "re")])
def test_the_bayes_rule_reaches_the_bayes_accuracy_and_no_other_rule_exceeds_it(name, frequency, part):
    """M = 8: the frequencies 4 and 8 fold onto their negatives, the others do not."""
    response = pooling.prefilter_response(name, 32, 4)
    pooled, labels = pooled_samples(response, 4, frequency, part)
    rule, distance = pooling.bayes_rule_after_pooling(response, 4, frequency, part)
    wanted = pooling.bayes_accuracy_after_pooling_any_frequency(response, 4, frequency, epsilon=1, sigma=2, part=part)
    assert wanted == pytest.approx(0.5 * math.erfc(-distance / 2 / math.sqrt(2)))
    if distance == 0:
        assert not rule.any()
        assert wanted == 0.5
        # the class means coincide after pooling
        assert np.abs((labels[:, None] * pooled).mean(0)).max() < 5 * pooled.std() / math.sqrt(len(labels))
        return
    hits = torch.tensor(np.sign(pooled @ rule) == labels, dtype=torch.float64)
    assert standard_errors_away(hits, wanted) < 5
    margin = 5 * math.sqrt(0.25 / len(labels))
    for other in normal(20, 8, seed=5).numpy():
        tilted = rule / np.linalg.norm(rule) + 0.3 * other
        assert np.mean(np.sign(pooled @ tilted) == labels) < wanted + margin


@pytest.mark.parametrize("name", PREFILTERS)
def test_the_short_form_is_the_general_one_for_every_prefilter(name):
    response = pooling.prefilter_response(name, 48, 4)
    for frequency in (frequency for frequency in range(1, 24) if 2 * frequency % 12):
        settings = {"epsilon": 1.3, "sigma": 2.1}
        short = forms.bayes_accuracy_after_pooling(response, 4, frequency, **settings)
        general = pooling.bayes_accuracy_after_pooling_any_frequency(response, 4, frequency, **settings)
        assert short == pytest.approx(general, abs=1e-9)


def test_where_nothing_aliases_all_is_known_and_where_nothing_passes_nothing():
    ideal = pooling.prefilter_response("ideal", 48, 4)
    settings = {"epsilon": 0.1, "sigma": 10.0}
    assert pooling.aliasing_ratio(ideal, 4, 3) == math.inf
    assert forms.bayes_accuracy_after_pooling(ideal, 4, 3, **settings) == 1.0
    assert pooling.bayes_accuracy_after_pooling_complex(ideal, 4, 9, **settings) == 0.5
    assert pooling.bayes_accuracy_after_pooling_any_frequency(ideal, 4, 9, **settings) == 0.5
    without_pooling = pooling.prefilter_response("box", 48, 1)
    assert forms.bayes_accuracy_after_pooling(without_pooling, 1, 5, **settings) == 1.0


# Curvature


def test_signal_curvature_ratio_is_that_of_sampled_curvatures():
    """ζ from ∂f/∂φ of the model by autodiff: signal and noise apart, at every ℓ, the same whatever the prefactor."""
    prefilter = torch.tensor([1.0, 0.8, -0.5, 0.3, 0.9, -0.2], dtype=torch.float64)
    folding = torch.eye(2, dtype=torch.float64).repeat(1, 3) / math.sqrt(3)
    theta, noise = 0.7 * normal(40_000, 2, seed=6), 0.6 * normal(40_000, 6, seed=7)

    def model(phi: Tensor, theta: Tensor, x: Tensor) -> Tensor:
        return theta @ folding @ (prefilter * phi * x)

    def curvature(x: Tensor) -> Tensor:  # of (y − f)² along each φ_i, as f is linear in φ
        return 2 * vmap(grad(model), in_dims=(None, 0, 0))(torch.ones(6, dtype=torch.float64), theta, x) ** 2

    loudest = curvature(noise)[:, 0]  # m² is largest at 0
    ratios = pooling.signal_curvature_ratio(prefilter.numpy(), epsilon=1.3, sigma=0.6)
    for frequency in range(6):
        signal = curvature((1.3 * torch.eye(6, dtype=torch.float64)[frequency]).expand(40_000, 6))[:, frequency]
        assert standard_errors_away(signal - ratios[frequency] * loudest, 0.0) < 5


def test_linear_mixed_gram():
    def model(theta: Tensor, x: Tensor) -> Tensor:
        return theta @ x

    mixed = jacrev(grad(model, argnums=1), argnums=0)(normal(5, seed=8), normal(5, seed=9))
    np.testing.assert_array_equal(mixed.T @ mixed, forms.linear_mixed_gram(5))


# Dipoles


def relu_layer_values(theta: Tensor, phi: Tensor):
    """x ↦ the outputs of all drawn networks."""

    def values(x: np.ndarray) -> np.ndarray:
        return (theta * torch.relu(phi @ torch.as_tensor(x))).sum(1).numpy()

    return values


def test_mean_dipole_metric_is_the_quadratic_form_of_the_gradient_covariance():
    direction = np.array([0.4, -1.1, 0.7])
    theta = (0.6 * normal(40_000, 3, seed=10)).numpy()
    metric = forms.dipole_metric(lambda x: theta @ x, np.array([3.0, 1.0, -2.0]), direction)
    wanted = direction @ forms.linear_gradient_covariance(3, weight_std=0.6) @ direction
    assert standard_errors_away(torch.tensor(metric), wanted) < 5
    root = forms.dipole_metric(lambda x: theta @ x, np.zeros(3), direction, growth=np.sqrt)
    np.testing.assert_allclose(root**4, metric)


def test_the_dipole_metric_of_a_network_with_kinks_is_so_for_short_dipoles_only():
    theta, phi = 0.7 * normal(40_000, 6, seed=11), 1.4 * normal(40_000, 6, 3, seed=12)
    point, direction = np.array([0.5, -0.3, 0.2]), np.array([0.6, 0.0, -0.8])
    wanted = direction @ forms.relu_layer_gradient_covariance(3, 6, theta_std=0.7, phi_std=1.4) @ direction
    values = relu_layer_values(theta, phi)
    short = forms.dipole_metric(values, point, 0.01 * direction) / 0.01**2
    assert standard_errors_away(torch.tensor(short), wanted) < 5
    # from x to −x every unit switches: f(−x) − f(x) has twice the second moment of f(x), which is half of (2x)ᵀC(2x)
    opposite = forms.dipole_metric(values, point, -2 * point)
    assert standard_errors_away(torch.tensor(opposite), 2 * point @ point * wanted) < 5
    assert standard_errors_away(torch.tensor(opposite), 4 * point @ point * wanted) > 20


def pooling_speeds(alpha: float, beta: float, direction: Tensor) -> tuple[Tensor, dict[str, float]]:
    """‖∇_{θ,φ} q(v)‖ by autodiff for g(t) = α t²/2 + β t, and the powers from the closed forms."""
    prefilter = torch.tensor([1.0, 0.8, -0.5, 0.3, 0.9, -0.2], dtype=torch.float64)
    folding = torch.eye(2, dtype=torch.float64).repeat(1, 3) / math.sqrt(3)
    weights = 0.7 * normal(20_000, 2, seed=13), 1.4 * normal(20_000, 6, seed=14)

    def metric(params: tuple[Tensor, Tensor]) -> Tensor:
        def model(x: Tensor) -> Tensor:
            return params[0] @ folding @ (prefilter * params[1] * x)

        distance = (direction @ grad(model)(torch.zeros(6, dtype=torch.float64))).abs()
        return alpha / 2 * distance**2 + beta * distance

    speeds = torch.cat(vmap(grad(metric))(weights), dim=1).norm(dim=1)
    v, laws = direction.numpy(), {"theta_std": 0.7, "phi_std": 1.4}
    covariance = forms.linear_pooling_gradient_covariance(prefilter.numpy(), 3, **laws)
    gram = forms.linear_pooling_mixed_gram(prefilter.numpy(), 3, **laws)
    return speeds, {"gradient_power": v @ covariance @ v, "mixed_power": v @ gram @ v}


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (0.1, 0.0), (0.0, 1.0), (0.3, 0.5)])
def test_dipole_speed_bound_from_closed_forms_holds_and_is_not_idle(alpha, beta):
    for direction in (torch.eye(6, dtype=torch.float64)[1], normal(6, seed=15) / 2):
        speeds, powers = pooling_speeds(alpha, beta, direction)
        bound = forms.dipole_speed_bound(**powers, alpha=alpha, beta=beta)
        assert 0.5 * bound < float(speeds.mean()) < bound


def test_dipole_volume_bound():
    theta = (0.6 * normal(100_000, 3, seed=16)).numpy()
    direction = np.array([0.4, -1.1, 0.7])
    covariance = forms.linear_gradient_covariance(3, weight_std=0.6)
    metric = forms.dipole_metric(lambda x: theta @ x, np.zeros(3), direction)
    spread = 0.6 * float(np.linalg.norm(direction))
    for level in (0.1, 0.5, 2.0, 8.0):
        reached = torch.tensor(metric >= level, dtype=torch.float64)
        exact = 2 * pooling.normal_cdf(
            -math.sqrt(level) / spread
        )  # of a Gaussian, which Markov's inequality need not know
        assert standard_errors_away(reached, exact) < 5
        assert exact < forms.dipole_volume_bound(direction, covariance, level=level) <= 1
    with pytest.raises(ValueError, match="level must be above 0"):
        forms.dipole_volume_bound(direction, covariance, level=0.0)


def test_dipole_volume_bound_is_of_first_order():
    """At a dead unit the gradient vanishes and the bound says that no weights reach the level; a long dipole does."""
    metric = forms.dipole_metric(lambda x: np.maximum(x, 0).sum(), np.array([-1.0]), np.array([3.0]))
    assert metric == 4.0
    assert forms.dipole_volume_bound(np.array([3.0]), np.zeros((1, 1)), level=1.0) == 0.0


# Experiments


@pytest.mark.parametrize("name", PREFILTERS)
def test_sampled_accuracies_are_the_closed_forms_and_spread_like_binomials(name):
    response = pooling.prefilter_response(name, 24, 4)
    frequencies, law = range(13), {"epsilon": 1.0, "sigma": 2.0}
    exact = (pooling.bayes_accuracy_after_pooling_any_frequency, pooling.bayes_accuracy_after_pooling_complex)
    for form, sample in zip(exact, (simulation.sampled_accuracy, simulation.sampled_accuracy_complex), strict=True):
        wanted = np.array([form(response, 4, frequency, **law) for frequency in frequencies])
        shares = np.stack([sample(response, 4, frequencies, **law, samples=500, seed=seed) for seed in range(60)])
        spread = np.sqrt(wanted * (1 - wanted) / 500)
        uncertain = (shares != shares[0]).any(0)
        np.testing.assert_allclose(shares[:, ~uncertain].mean(0), wanted[~uncertain], atol=1e-6)
        away = (shares.mean(0) - wanted)[uncertain] / (spread[uncertain] / math.sqrt(60))
        assert (np.abs(away) < 5).all()
        ratio = shares.std(0, ddof=1)[uncertain] / spread[uncertain]
        assert ((ratio > 0.6) & (ratio < 1.5)).all()


def test_pooling_in_fourier_space_is_the_operator():
    signals = normal(5, 30, seed=17).numpy()
    response = pooling.prefilter_response("box", 30, 3)
    direct = signals @ pooling.pooling_operator(response, 3).T
    np.testing.assert_allclose(simulation.pooled(signals, response, 3), direct, atol=1e-12)


def test_the_trained_model_is_the_one_of_the_closed_forms():
    magnitude = np.abs(pooling.prefilter_response("box", 12, 3))
    model = simulation.LinearPooling(magnitude, 3, weight_std=0.5, seed=1).double()
    inputs = normal(4, 12, seed=18)
    folding = torch.as_tensor(pooling.aliasing_matrix(12, 3))
    written = (torch.as_tensor(magnitude).float().double() * model.phi * inputs) @ folding.T @ model.theta
    torch.testing.assert_close(model(inputs), written)


def pooling_trajectory(magnitude: np.ndarray, frequencies: list[int], steps: int, seed: int, train: int = 256):
    recipe = Recipe("gd", 0.1, "constant", steps=steps, loss="squared", threshold=0.1)
    law = {"epsilon": 1.3, "sigma": 0.7, "weight_std": 0.5, "train": train}
    return simulation.pooling_trajectory(magnitude, 3, frequencies, **law, recipe=recipe, seed=seed, run=CPU)


def test_the_first_training_loss_has_the_mean_of_its_closed_form():
    """E(y − f)² = 1 + (σ_w⁴/S)(ε²m²[ℓ] + σ² Σ_{i≠ℓ} m²[i]) over weights and data, for D(e_ℓ)."""
    magnitude = np.abs(pooling.prefilter_response("box", 12, 3))
    losses = torch.cat(
        [pooling_trajectory(magnitude, [0, 5], 1, seed, train=64).losses for seed in range(150)]
    )  # (150, 2)
    for place, frequency in enumerate((0, 5)):
        others = np.delete(magnitude, frequency)
        power = 1.3**2 * magnitude[frequency] ** 2 + 0.7**2 * others @ others
        assert standard_errors_away(losses[:, place], 1 + 0.5**4 / 3 * float(power)) < 5


def test_frequencies_are_learned_in_the_order_of_the_prefilter_and_not_where_it_is_zero():
    magnitude = np.abs(pooling.prefilter_response("box", 12, 3))
    assert magnitude[4] < 1e-12
    needed = torch.stack([pooling_trajectory(magnitude, [0, 2, 3, 4], 250, seed).first_below for seed in range(6)])
    assert (needed[:, :3] > 0).all()
    assert (needed[:, 3] < 0).all()
    mean = needed[:, :3].double().mean(0)
    assert mean[0] < mean[1] < mean[2]


SMALL = {"size": 16, "stride": 4, "samples": 2000, "train": 64, "iterations": 40, "repeats": 3, "curves": 3}


@pytest.fixture(scope="module")
def small() -> PoolingTheory:
    return pooling_theory(**SMALL, run=CPU)


def test_the_measurement_agrees_with_itself_and_would_say_if_it_did_not(small):
    assert np.abs(small.deviations()).max() < 4.5
    assert "The simulation agrees with the closed form" in small.sentence()
    assert small.subject == "average pooling by 4 of 16 samples"
    # at S = 4 the printed form is the complex one, and not that of real signals
    np.testing.assert_allclose(small.accuracy_as_printed, small.accuracy[1], atol=1e-9)
    wrong = np.stack([small.accuracy_as_printed] * 2)
    printed = type(small)(**{**vars(small), "accuracy": wrong, "errors": np.sqrt(wrong * (1 - wrong) / 6000)})
    assert np.abs(printed.deviations()[0]).max() > 10
    assert "The simulation does not agree with the closed form" in printed.sentence()


def test_the_curvatures_are_entries_of_the_average_hessian(small):
    magnitude = np.abs(pooling.prefilter_response("box", 16, 4))
    law = {"epsilon": 1.0, "sigma": 0.5}
    for frequency in small.frequencies:
        of_phi = pooling.loss_hessian_phi(magnitude, 4, frequency, **law, theta_std=0.3)
        of_theta = pooling.loss_hessian_theta(magnitude, 4, frequency, **law, phi_std=0.3)
        wanted = of_phi[frequency, frequency], of_theta[frequency % 4, frequency % 4], magnitude[frequency]
        np.testing.assert_allclose(small.curvature[:, frequency], wanted, atol=1e-12)  # 2ε m/√S = m here
    np.testing.assert_allclose(small.curvature_ratio, 4 * magnitude[:9] ** 2)


def test_finished_repeats_are_kept_and_more_repeats_add_to_them(tmp_path):
    run = Run(folder=tmp_path, device="cpu")
    first = pooling_theory(**{**SMALL, "repeats": 1}, run=run)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("repeat-*.safetensors")}
    more = pooling_theory(**{**SMALL, "repeats": 2}, run=run)
    assert len(files) == 1
    assert all(path.stat().st_mtime_ns == time for path, time in files.items())
    np.testing.assert_array_equal(first.losses[:, :, 0], more.losses[:, :, 0])


def test_a_training_that_diverges_is_recorded_and_drawn():
    result = pooling_theory(**{**SMALL, "rate": 100.0}, run=CPU)
    assert np.isnan(result.losses[-1]).all()
    assert np.isnan(result.iterations_needed).all()
    assert result.slowdown() is None
    assert len(result.plots()) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": 5}, "stride must divide the input size 16, got 5"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"training_noise": 0.0}, "training_noise must be above 0, got 0.0"),
        ({"prefilter": "median"}, "prefilter must be one of"),
    ],
)
def test_settings_out_of_range_say_what_to_do(settings, message):
    with pytest.raises(ValueError, match=message):
        pooling_theory(**{**SMALL, **settings}, run=CPU)
