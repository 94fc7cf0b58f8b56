"""The empirical tangent kernel of a network on a data set, exact, by row panels that can be resumed and shared."""

# n samples · r rows of a panel · c columns · q parameters of a block

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from biascope.derivatives.spectrum import Spectrum
from biascope.families.acceptance import accepted_outputs, shape_of
from biascope.families.inputs import placed, sample_count, taken
from biascope.families.network import Network
from biascope.kernels.panel import Panel
from biascope.kernels.plan import (
    Part,
    Sizes,
    chosen_parameters,
    kernel_parts,
    parts_in_larger_batches,
    passes,
    plan_in_words,
    usual_sizes,
)
from biascope.kernels.proof import Proof
from biascope.kernels.uses import scalars
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.cluster import device_type
from biascope.runs.failures import forward_pass
from biascope.runs.memory import fitting
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Group, Outcome, Sweep

KERNELS = ("scalar", "trace", "each")
_PANELS = 8  # by default, where panels are kept on disk or sent to workers
_SMALL = 2048  # rows below which one panel is enough


@dataclass(frozen=True)
class Gram:
    """A tangent kernel on samples.

    Attributes:
        matrix: ``(n, n)``, or ``(n, m)`` between two sets; ``(p, …)`` where there is one for each output.
        error: Largest deviation from products of single-sample gradients by plain autograd in float64, on a few
            samples spread over the data and relative to ``√(K_ii K_jj)``. A kernel whose error its precision does not
            explain is refused.
        parts: The parameters and the rule of each.
        plan: The rule, the operations and the memory of each parameter, as a table.
    """

    matrix: Tensor
    error: float
    parts: tuple[Part, ...]
    plan: str

    def positive(self, spectrum: Spectrum) -> int:
        """How many leading eigenvalues of the square matrix are known to be positive.

        Independent errors of its entries, of size ``ε·tr K/n``, move eigenvalues by up to ``2√n`` times that.
        """
        trace, samples = float(self.matrix.diagonal().double().sum()), len(self.matrix)
        largest = float(spectrum.values.abs().max().clamp_min(1e-300))
        return spectrum.positive(max(1e-12, 2 * self.error * trace / math.sqrt(samples) / largest))

    def known_targets(self, spectrum: Spectrum, targets: Sequence[int]) -> None:
        """Refuse eigenfunctions, counted from 1, that are arbitrary because their eigenvalue is rounding.

        Raises:
            ValueError: If one is.
        """
        count = self.positive(spectrum)
        if targets and max(targets) > count:
            raise ValueError(
                f"An eigenfunction that is to be learned must have a positive eigenvalue, but the kernel of these {len(self.matrix)} "
                f"samples has {count} and number {max(targets)} was asked for. Pass targets up to {count}."
            )


@under_torch_defaults
def tangent_gram(
    network: Network,
    x: Any,
    other: Any = None,
    *,
    kernel: str = "scalar",
    parameters: Sequence[str] | None = None,
    panels: int | None = None,
    sizes: Sizes | None = None,
    run: Run | None = None,
    label: str = "tangent kernel",
) -> Gram:
    """The empirical tangent kernel ``K_ij = ∇_θ f(x_i)ᵀ ∇_θ f(x_j)``, exact up to rounding.

    One forward and one backward pass with respect to activations give the inputs and output gradients of all layers. Each parameter
    then contributes by the cheapest rule that is proven for it (see :mod:`biascope.kernels.rules`). The matrix is computed in panels
    of rows. A panel is the unit that is saved, resumed and sent to workers. Within a panel, parameters have a fixed order, so that
    every worker computes the same panel.

    Args:
        network: One network; with a readout, or one output, for ``kernel="scalar"``.
        x: Samples ``(n, …)``, any pytree.
        other: Other samples, for the rectangular kernel between the two sets.
        kernel: ``"scalar"``; or for several outputs ``"trace"``, the sum of their kernels, or ``"each"``, all of them.
        parameters: Names or patterns of the parameters to differentiate with respect to; all by default.
        panels: Number of row panels; one by default, more with a folder or on a cluster.
        sizes: Batch and block sizes; by default chosen from the device's memory.
        run: Folder, device, precision (``"bfloat16"``: gradients rounded to it before they are multiplied), cluster.
        label: Label of the progress bar.

    Returns:
        The matrix, with its measured error.

    Raises:
        ValueError: If the network or a setting does not allow it.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False))
        >>> tangent_gram(network, torch.tensor([[3.0, 4.0], [1.0, 0.0]]), run=Run(device="cpu")).matrix  # K = X Xᵀ
        tensor([[25.,  3.],
                [ 3.,  1.]])

    Reference:
        Jacot, Gabriel, Hongler (2018). Neural tangent kernel. NeurIPS. Novak et al. (2022), as for the rules.
    """
    run = run or Run()
    engine, proof = _engine(network, x, other, kernel, parameters, sizes, run)
    run.expects(engine.title, engine.expected_memory(run), "Pass fewer samples (--samples)")
    matrix = engine.matrix(x, other, panels, run, label)
    error = proof.error(matrix, engine.outputs, kernel == "trace", run.precision)
    proof.check(error, run.precision)
    return Gram(matrix, error, tuple(engine.parts), engine.plan(run))


def gram_plan(
    network: Network,
    x: Any,
    other: Any = None,
    *,
    kernel: str = "scalar",
    parameters: Sequence[str] | None = None,
    run: Run | None = None,
) -> str:
    """How a tangent kernel would be computed: the rule, operations and memory of every parameter. Nothing is computed yet."""
    run = run or Run()
    return _engine(network, x, other, kernel, parameters, None, run)[0].plan(run)


def _engine(
    network: Network,
    x: Any,
    other: Any,
    kernel: str,
    parameters: Sequence[str] | None,
    sizes: Sizes | None,
    run: Run,
) -> tuple[Engine, Proof]:
    _check(network, kernel, run)
    samples, others = sample_count(x), None if other is None else sample_count(other)
    pairs = samples * (samples + 1) / 2 if others is None else samples * others
    here = run.torch_device if run.on is None else torch.device("cpu")
    dtype = torch.float64 if run.precision == "float64" else torch.float32
    exact = dataclasses.replace(run, precision="float32")
    # cuDNN rounds to TF32 unless told not to, and what is proven then is its rounding. A random forward pass, which is
    # refused, must not move the user's generators.
    with exact.products(), forked_rng(seed_of(0, "kernel proof")):
        network.require_proven(x)
        outputs = _outputs(network, x, kernel)
        own_type = next(iter(network.params.values())).dtype
        names = chosen_parameters(network, parameters)
        proof = Proof.of(network.to(here, own_type), x, other, parameters=names, output=outputs[0])
        count = samples + (others or 0)
        parts, proof = kernel_parts(proof, x, outputs=outputs, pairs=pairs, samples=count, device=device_type(run))
        sizes = sizes or usual_sizes(parts, run)
        parts = parts_in_larger_batches(proof, parts, network.to(here, dtype), x, min(samples, sizes.chunk))
    return Engine(network, parts, tuple(outputs), kernel, sizes, samples, others), proof


def _check(network: Network, kernel: str, run: Run) -> None:
    if network.members is not None:
        raise ValueError(
            f"A tangent kernel needs one network, got a stack of {network.members}. Pass network.member(0)."
        )
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be 'scalar', 'trace' or 'each', got {kernel!r}. Pass kernel='scalar'.")
    if run.precision == "float16":
        raise ValueError("A tangent kernel in float16 overflows. Pass precision='bfloat16', 'tf32' or 'float32'.")


def _outputs(network: Network, x: Any, kernel: str) -> list[int | None]:
    """The outputs to differentiate, one after another."""
    one = taken(x, slice(1))
    like = next(iter(network.params.values()))
    must = f"The network must accept samples of shape {shape_of(x)}"
    with forward_pass(must, "Pass samples of the shape it was made for."), torch.no_grad():
        found = network(placed(one, like.device, like.dtype, copy=True))
    accepted_outputs(found, one, "The network")
    if not bool(torch.isfinite(found).all()):
        raise ValueError("The network's output must be a finite number, but is not. Check its weights and inputs.")
    if kernel == "scalar":
        scalars(found, None)  # says what to do where there are several
        return [None]
    return list(range(found.reshape(1, -1).shape[1]))


def matrix_bytes(samples: int, others: int | None, run: Run) -> int:
    """Bytes of a kernel matrix.

    Example:
        >>> matrix_bytes(5000, None, Run(device="cpu"))
        100000000
    """
    return (8 if run.precision == "float64" else 4) * samples * (others or samples)


@dataclass(frozen=True)
class Engine:
    """Computes panels of one kernel; what a worker is given."""

    network: Network
    parts: list[Part]
    outputs: tuple[int | None, ...]
    kernel: str
    sizes: Sizes
    samples: int
    others: int | None

    def plan(self, run: Run) -> str:
        """See :func:`biascope.kernels.plan.plan_in_words`."""
        return plan_in_words(self.parts, self.samples, self.others, self.sizes, run.dtype.itemsize)

    @property
    def title(self) -> str:
        """What is computed, for errors."""
        size = f"{self.samples:,} samples" if self.others is None else f"{self.samples:,} × {self.others:,} samples"
        return f"A tangent kernel of {size}"

    def expected_memory(self, run: Run) -> int:
        """Bytes of main memory for the matrix, its panels where they are saved, and what rules keep of all samples."""
        number = matrix_bytes(self.samples, self.others, run) * (len(self.outputs) if self.kernel == "each" else 1)
        if run.on is not None or run.torch_device.type != "cpu":
            return number
        saved = 1 if run.folder is None or self.samples < _SMALL else 2
        count = self.samples + (self.others or 0)
        itemsize = 8 if run.precision == "float64" else 4
        kept = [sum(part.rule.cost.kept for part in group) * count for group in passes(self.parts, count, self.sizes)]
        differentiated = 3 * self.sizes.chunk * max(1, sum(part.rule.cost.kept for part in self.parts))
        blocks = 4 * self.sizes.block
        return int(saved * number + itemsize * (max(kept, default=0) + differentiated + blocks))

    def matrix(self, x: Any, other: Any, panels: int | None, run: Run, label: str) -> Tensor:
        """The whole matrix: on the device where nothing is kept or sent away, else on the CPU."""
        bounds = self._bounds(panels, run)
        if run.folder is None and run.on is None:
            found = [self.panel(x, other, first, last, run) for first, last in bounds]
            return self._assembled(dict(zip(bounds, found, strict=True)))
        keys = {f"rows {first:07d}-{last:07d}": (first, last) for first, last in bounds}
        method = dataclasses.asdict(self.sizes)
        sweep = Sweep(
            "tangent kernel",
            run,
            code=Engine,
            at=x,
            network=self.network,
            parameters=[part.name for part in self.parts],
            samples=tree_leaves(x),
            others=tree_leaves(other),
            kernel=self.kernel,
        )
        work = _Panels(self, x, other)
        done = sweep.outcomes(list(keys), work, plan=lambda new: [Group((key,), method) for key in new], label=label)
        return self._assembled({keys[key]: outcome["kernel"] for key, outcome in done.items()})

    def _bounds(self, panels: int | None, run: Run) -> list[tuple[int, int]]:
        """Panels of about equal work: rows of a lower triangle grow longer."""
        alone = run.folder is None and run.on is None
        count = panels or (1 if alone or self.samples < _SMALL else _PANELS)
        if not 1 <= count <= self.samples:
            raise ValueError(f"panels must be between 1 and the {self.samples} samples, got {count}. Pass panels=8.")
        power = 0.5 if self.others is None else 1.0
        edges = sorted({round(self.samples * (index / count) ** power) for index in range(count + 1)})
        return list(itertools.pairwise(edges))

    def _assembled(self, panels: Mapping[tuple[int, int], Tensor]) -> Tensor:
        """Panels below one another; of a symmetric kernel the upper triangle mirrored."""
        ordered = sorted(panels)
        if self.others is not None:
            return torch.cat([panels[bounds] for bounds in ordered], dim=-2)
        if len(ordered) == 1:
            matrix = panels[ordered[0]]
        else:
            first = panels[ordered[0]]
            matrix = first.new_empty(*first.shape[:-2], self.samples, self.samples)
            for start, stop in ordered:
                matrix[..., start:stop, :stop] = panels[start, stop]
        return _mirrored(matrix)

    def panel(self, x: Any, other: Any, first: int, last: int, run: Run) -> Tensor:
        """Rows ``first … last−1`` of the kernel: ``(r, last)`` of the lower triangle, or ``(r, m)``; ``(p, r, …)`` for each."""
        device = run.torch_device
        dtype = torch.float64 if run.precision == "float64" else torch.float32
        network = self.network.to(device, dtype)

        def rows(sizes: Sizes) -> list[Tensor]:
            with run.products(), torch.no_grad():
                return [
                    Panel(network, self.parts, sizes, x, other, first, last, output, run).rows()
                    for output in self.outputs
                ]

        # Others may use the device too; in smaller pieces only the last digits differ.
        found, _ = fitting(rows, self.sizes, lambda sizes: sizes.halved() if sizes.chunk > 1 else None)
        if self.kernel == "each":
            return torch.stack(found)
        total = found[0]
        for part in found[1:]:
            total += part
        return total


@dataclass(frozen=True)
class _Panels:
    """Computes panels by their keys: what a sweep, and a worker elsewhere, calls."""

    engine: Engine
    x: Any
    other: Any

    def __call__(self, keys: Sequence[str], run: Run, method: Mapping[str, Any]) -> dict[str, Outcome]:
        engine = dataclasses.replace(self.engine, sizes=Sizes(**method))
        found: dict[str, Outcome] = {}
        for key in keys:
            first, last = (int(edge) for edge in key.removeprefix("rows ").split("-"))
            found[key] = {"kernel": engine.panel(self.x, self.other, first, last, run)}
        return found


def _mirrored(matrix: Tensor, side: int = 4096) -> Tensor:
    """The upper triangle filled from the lower one, in place and by tiles."""
    size = matrix.shape[-1]
    for start in range(0, size, side):
        stop = min(size, start + side)
        for begin in range(0, start, side):
            matrix[..., begin : begin + side, start:stop] = matrix[..., start:stop, begin : begin + side].mT
        corner = matrix[..., start:stop, start:stop]
        corner.copy_(corner.tril() + corner.tril(-1).mT)
    return matrix
