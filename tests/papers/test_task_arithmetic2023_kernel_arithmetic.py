"""Propositions 6.1 and 6.2 of the thesis, and where the printed "if and only if" of the second fails."""

import numpy as np
import pytest

from biascope.papers.task_arithmetic2023.kernel_tasks import (
    KernelTasks,
    bump_on_ring,
    cancelling_tasks,
    fourier_functions,
    ring,
)


def two_arcs(points: int) -> np.ndarray:
    angles = ring(points)
    return np.stack([angles < 2, (angles > 3) & (angles < 5)])


def random_tasks(functions: np.ndarray, domains: np.ndarray, seed: int, localised: bool = False) -> KernelTasks:
    coefficients = np.random.default_rng(seed).normal(size=(len(domains), len(functions)))
    if localised:
        outside = (functions[None] * ~domains[:, None]).any(2)
        coefficients[outside] = 0
    return KernelTasks(functions, coefficients, domains)


def test_localised_eigenfunctions_give_task_arithmetic() -> None:
    domains = two_arcs(60)
    generator = np.random.default_rng(0)
    functions = np.concatenate([generator.normal(size=(4, 60)) * domain for domain in domains])
    for seed in range(5):
        tasks = random_tasks(functions, domains, seed, localised=True)
        assert tasks.localised
        assert tasks.worst_interference() == 0
        assert not np.allclose(tasks.tasks, 0)


def test_finitely_many_fourier_waves_do_not() -> None:
    functions, domains = fourier_functions(3, 512), two_arcs(512)
    for seed in range(5):
        tasks = random_tasks(functions, domains, seed)
        assert tasks.locally_independent()
        assert not tasks.localised
        assert tasks.interference() > 0.05


def test_no_two_tasks_of_few_waves_can_be_kept_apart() -> None:
    # What the second task adds on the first domain is bounded below by the smallest singular value of the waves there.
    functions, domains = fourier_functions(3, 512), two_arcs(512)
    least = np.linalg.svd(functions[:, domains[0]] / np.sqrt(domains[0].sum()), compute_uv=False)[-1]
    assert least > 1e-4
    for seed in range(20):
        coefficients = np.random.default_rng(seed).normal(size=(2, 7))
        tasks = KernelTasks(functions, coefficients, domains)
        felt = np.sqrt(np.mean((coefficients[1] @ functions)[domains[0]] ** 2))
        assert felt >= least * np.linalg.norm(coefficients[1]) * (1 - 1e-9)
        assert tasks.interference() > 0


def test_infinitely_many_waves_do_for_a_bump_on_a_ring() -> None:
    counts = np.array([8, 16, 32, 64, 128, 256])
    found = np.array([bump_on_ring(count).interference() for count in counts])
    assert (np.diff(found) < 0).all()
    assert found[-1] < 1e-7
    slopes = np.diff(np.log(found)) / np.diff(np.log(counts))
    assert slopes[-2:].mean() < -4  # faster than a power: the decay grows steeper
    assert slopes[-2:].mean() < slopes[:2].mean()
    assert bump_on_ring(3).locally_independent()
    assert not bump_on_ring(3).localised


def test_the_series_of_the_bump_is_the_bump() -> None:
    tasks = bump_on_ring(256)
    for task, domain in zip(tasks.tasks, tasks.domains, strict=True):
        assert task[domain].max() == pytest.approx(np.exp(-1), rel=1e-6)
        assert np.abs(task[~domain]).max() < 1e-6


def test_three_tasks_may_cancel_with_equal_coefficients_alone() -> None:
    tasks = cancelling_tasks()
    assert tasks.locally_independent()
    assert not tasks.localised
    assert tasks.interference() == 0  # the condition in the proofs: one sum of all tasks
    assert tasks.interference(np.array([0.4, 0.4, 0.4])) == 0
    assert tasks.interference(np.array([1.0, 1.0, 0.5])) > 0  # property 6.1 with separate coefficients fails
    assert tasks.worst_interference() > 1


def test_interference_by_hand() -> None:
    # On point 0 the second task adds 2, on point 1 the first adds 1; the larger task is (2, 2, 0) of mean square 8/3.
    functions = np.eye(3)
    tasks = KernelTasks(functions, np.array([[0.0, 1.0, 0.0], [2.0, 2.0, 0.0]]), np.eye(3, dtype=bool)[:2])
    assert tasks.interference() == pytest.approx(2 / np.sqrt(8 / 3))
    assert tasks.interference(np.array([1.0, 0.0])) == pytest.approx(1 / np.sqrt(8 / 3))


def test_eigenfunctions_that_depend_on_one_another_on_a_domain_are_told() -> None:
    functions = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]])
    domains = np.array([[True, False, False], [False, True, False]])
    assert not KernelTasks(functions, np.eye(2), domains).locally_independent()
    assert KernelTasks(functions[:1], np.ones((2, 1)), domains).locally_independent()


def test_wrong_arrays_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="must agree"):
        KernelTasks(np.eye(2), np.eye(3), np.eye(2, dtype=bool))
    with pytest.raises(ValueError, match="must not intersect"):
        KernelTasks(np.eye(2), np.eye(2), np.ones((2, 2), dtype=bool))
