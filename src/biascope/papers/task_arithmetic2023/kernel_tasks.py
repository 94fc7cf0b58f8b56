"""When a kernel allows task arithmetic, in theory: propositions 6.1 and 6.2 as checks on given eigenfunctions.

Tasks are sums of eigenfunctions, ``f_t = Σ_ρ c_tρ φ_ρ``, each with a domain ``D_t``. Task arithmetic holds where
``Σ_s α_s f_s = α_t f_t`` on every ``D_t``: no task is felt in the domain of another. The propositions tie this to
*localised* eigenfunctions. The first (localised is enough) is right. The second, that nothing else will do where eigenfunctions
are independent on every domain, is printed as "if and only if" and holds for finite sums and separate coefficients α_t only;
two examples show where it fails: :func:`bump_on_ring` and :func:`cancelling_tasks`.
"""

# r eigenfunctions · n points · T tasks

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class KernelTasks:
    """Eigenfunctions on points, tasks written in them, and the domains of the tasks.

    Attributes:
        functions: ``(r, n)`` values of the eigenfunctions.
        coefficients: ``(T, r)`` of the tasks.
        domains: ``(T, n)`` which points belong to which task; no point to two of them.

    Example:
        >>> tasks = KernelTasks(np.eye(2), np.array([[3.0, 0.0], [0.0, 5.0]]), np.eye(2, dtype=bool))
        >>> tasks.localised, tasks.interference()
        (True, 0.0)
    """

    functions: np.ndarray
    coefficients: np.ndarray
    domains: np.ndarray

    def __post_init__(self) -> None:
        (count, points), tasks = self.functions.shape, len(self.coefficients)
        if self.coefficients.shape != (tasks, count) or self.domains.shape != (tasks, points):
            raise ValueError(
                f"functions (r, n), coefficients (T, r) and domains (T, n) must agree, got {self.functions.shape}, "
                f"{self.coefficients.shape} and {self.domains.shape}. Pass arrays of these shapes."
            )
        if (self.domains.sum(0) > 1).any():
            raise ValueError("domains must not intersect, and two of them share points. Pass disjoint ones.")

    @property
    def tasks(self) -> np.ndarray:
        """``f_t`` at the points, ``(T, n)``."""
        return np.asarray(self.coefficients @ self.functions)

    def interference(self, alphas: np.ndarray | None = None) -> float:
        """How much tasks are felt in the domains of others, relative to themselves; 0 means task arithmetic.

        Definition:
            ``max_t ‖Σ_{s≠t} α_s f_s‖_{D_t} / max_t ‖f_t‖``, with root mean squares over the points. The proofs have
            ``α = (1, …, 1)``, the default; property 6.1 asks for it at every α of a set.

        Args:
            alphas: ``(T,)`` coefficients of the tasks.
        """
        size = len(self.coefficients)
        scaled = (np.ones(size) if alphas is None else np.asarray(alphas, np.float64))[:, None] * self.tasks
        others = scaled.sum(0) - scaled  # (T, n)
        felt = [_root_mean_square(others[task][self.domains[task]]) for task in range(size)]
        return max(felt) / max(_root_mean_square(task) for task in self.tasks)

    def worst_interference(self) -> float:
        """The largest :meth:`interference` over all choices of tasks to add: α in {0, 1}^T."""
        size = len(self.coefficients)
        choices = (np.array([number >> task & 1 for task in range(size)]) for number in range(2**size))
        return max(self.interference(choice) for choice in choices)

    @property
    def localised(self) -> bool:
        """The condition of both propositions: every eigenfunction that a task uses is zero outside the task's domain."""
        outside = (self.functions[None] * ~self.domains[:, None]).any(2)  # (T, r)
        return not bool((outside & (self.coefficients != 0)).any())

    def locally_independent(self, tolerance: float = 1e-9) -> bool:
        """The premise of proposition 6.2: on each domain, eigenfunctions that are not zero there are linearly independent.

        Args:
            tolerance: Singular values below this share of the largest count as zero.
        """
        for domain in self.domains:
            local = self.functions[:, domain]
            local = local[local.any(1)]
            if len(local) and np.linalg.matrix_rank(local, tol=tolerance * np.linalg.norm(local, 2)) < len(local):
                return False
        return True


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def ring(points: int) -> np.ndarray:
    """Angles of equidistant points on a ring, from 0 up to 2π."""
    return 2 * np.pi * np.arange(points) / points


def fourier_functions(frequencies: int, points: int) -> np.ndarray:
    """The eigenfunctions of a kernel that is invariant on a ring: 1, and √2 cos kx, √2 sin kx for k = 1, 2, …; ``(r, n)``.

    Example:
        >>> functions = fourier_functions(3, 64)
        >>> bool(np.allclose(functions @ functions.T / 64, np.eye(7)))
        True
    """
    angles, orders = ring(points), np.arange(1, frequencies + 1)[:, None]
    waves = [np.sqrt(2) * wave(orders * angles) for wave in (np.cos, np.sin)]
    return np.concatenate([np.ones((1, points)), *waves])


def bump_on_ring(frequencies: int, points: int = 4096) -> KernelTasks:
    """Two tasks on a ring that Fourier waves can keep apart only by their infinite number.

    Each task is a smooth bump, exp(−1/(1 − u²)), inside its own quarter of the ring and zero elsewhere, cut to its first
    frequencies. No Fourier wave is localised, and they are independent on every interval; so proposition 6.2 as printed would
    forbid task arithmetic. It does for every finite number of waves, but the interference falls faster than any power of that
    number, and the whole series, which the proposition admits (ρ runs over all natural numbers), has none: its sum is the
    bump itself.

    Args:
        frequencies: Number of frequencies kept.
        points: On the ring.

    Returns:
        Tasks with Fourier waves as eigenfunctions.
    """
    angles = ring(points)
    functions = fourier_functions(frequencies, points)
    centres, width = np.array([np.pi / 2, 3 * np.pi / 2]), np.pi / 4
    away = np.abs(angles - centres[:, None]) / width  # (2, n)
    domains = away < 1
    inside = np.where(domains, 1 - away**2, 1.0)
    bumps = np.where(domains, np.exp(-1 / inside), 0.0)
    return KernelTasks(functions, bumps @ functions.T / points, domains)


def cancelling_tasks() -> KernelTasks:
    """Three tasks that cancel one another outside their domains, with an eigenfunction that is not localised.

    One eigenfunction, 1 on the domains of the first two tasks and 0 on that of the third, with coefficients 1, 1 and −1: what
    two tasks add on the domain of the other cancels or is zero. The sum of all three satisfies the proofs' condition, though
    every task uses an eigenfunction beyond its domain. It hangs on equal α: leave one task out, and the others interfere.

    Example:
        >>> tasks = cancelling_tasks()
        >>> tasks.locally_independent(), tasks.localised, tasks.interference()
        (True, False, 0.0)
    """
    functions = np.array([[1.0, 1.0, 0.0]])
    return KernelTasks(functions, np.array([[1.0], [1.0], [-1.0]]), np.eye(3, dtype=bool))
