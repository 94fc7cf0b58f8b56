"""The gradient covariance of a family by sampling, in resumable groups of draws."""

# T draws · n inputs per draw · D input size

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope.derivatives.draw_memory import GROUPS, draws_at_once, expected_memory
from biascope.derivatives.fastest import Fastest, Way
from biascope.derivatives.gradients import input_difference, input_gradient, plain_attention
from biascope.derivatives.initial_zeros import zero_layers
from biascope.derivatives.measurable import check_variation, checked_outputs
from biascope.derivatives.moments import DENSE_LIMIT, ROWS_LIMIT, Moments, representation, unit_of
from biascope.derivatives.one_pass import in_passes, pass_tried
from biascope.derivatives.operators import EstimatedOperator, GradientCovariance
from biascope.derivatives.sampling import GEOMETRY_INPUTS
from biascope.derivatives.spectrum import eigenpairs, subspace_similarity
from biascope.derivatives.ways import difference_ways, exact_ways
from biascope.families.acceptance import differentiated
from biascope.families.family import Family
from biascope.families.inputs import taken
from biascope.families.network import Network
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.identity import content_of
from biascope.runs.latest import Latest
from biascope.runs.memory import trim
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.probe import Probe

ESTIMATORS = ("exact", "difference")
ROUNDED = 0.05  # of the spread: the most that rounding may be, 0.25 % of the variance
_KEPT_BYTES = 2**27  # of gradients kept for another measurement of the same networks at the same probe
_BATCH = 256  # most inputs of one network in a pass


_CHECKED = Latest[tuple[tuple[int, ...], float]]()  # of a network
_GRADIENTS = Latest[tuple[Network, dict[int, Tensor]]]()  # of draws, at a probe


@under_torch_defaults
class GradientSampler:
    """Input gradients of the members of a family, by the fastest method on this device.

    Args:
        family: The networks.
        probe: The inputs.
        estimator: ``"exact"`` or ``"difference"``.
        step: Half width of the difference.
        readout: How several outputs become one.
        seed: Random seed for the weights.
        run: Device, precision, folder.

    Raises:
        ValueError: If the network does not accept the inputs, its output is constant or not finite, or a setting is wrong.
    """

    def __init__(
        self, family: Family, probe: Probe, *, estimator: str, step: float, readout: str, seed: int, run: Run
    ) -> None:
        if estimator not in ESTIMATORS:
            raise ValueError(
                f"estimator must be 'exact' or 'difference', got {estimator!r}. Pass estimator='difference'."
            )
        if step == 0 or not math.isfinite(step):
            raise ValueError(f"The step h of the difference must be a number other than 0, got {step}. Pass step=100.")
        self.family, self.probe, self.run = family, probe, run
        self.estimator, self.step, self.readout = estimator, step, readout
        self.rounded = 0.0  # length of what rounding of the outputs adds to a difference
        self._draws = family.draws(seed=seed, run=run)
        self._kept = run.room(_KEPT_BYTES)
        half = step if estimator == "difference" else None  # an exact gradient has no step
        self._how = estimator, half, readout, seed, run.torch_device, run.precision
        with plain_attention(), self._random_state(0):
            self._pass = pass_tried(family.template.to(run.torch_device, run.dtype), self.first_inputs())
            self._fitting = self._pass.inputs_at_once(run)
            few = self.few_inputs()
            self.output_shape, self.rounded = _CHECKED.get(
                family.template, (content_of(few), *self._how), lambda: self._checked_outputs(few)
            )
            self.outputs = math.prod(self.output_shape)
            leaves = tree_leaves(self.first_inputs())
            self.size: int = sum(math.prod(leaf.shape[1:]) for leaf in leaves if leaf.is_floating_point())
            self._fastest = Fastest(self._ways(), run.torch_device)

    def __repr__(self) -> str:
        return f"GradientSampler({self.family!r}, {self.probe!r}, {self.estimator!r}, readout {self.readout!r})"

    def _random_state(self, start: int) -> AbstractContextManager[None]:
        """A random state of its own: a network that draws in its forward pass must not move the user's."""
        return forked_rng(seed_of(self._draws.seed, "forward", start))

    @property
    def method(self) -> str:
        """The method in use, in words."""
        return "inputs in batches" if self.family.size == 1 else self._fastest.chosen

    @property
    def rate(self) -> float:
        """Draws per second of the method in use."""
        return self._fastest.rate

    @property
    def settled(self) -> bool:
        """Whether the method has been chosen."""
        return self._fastest.settled

    @property
    def stride(self) -> int:
        """Most draws to compute at once: limited by memory, and to two seconds of work that an interruption may cost."""
        fitting = self._most
        if self.settled:
            fitting = min(fitting, int(2.0 * self.rate))
        elif self.run.torch_device.type == "cpu":
            fitting = min(fitting, max(32, self._fastest.wanted))
        return max(1, fitting)

    def stop(self, start: int) -> int:
        """Where to stop after a draw: a stride later, and within a block of draws, so that no two are held."""
        block = self._draws.block_size
        return min(start + self.stride, (start // block + 1) * block)

    @functools.cached_property
    def _most(self) -> int:
        """Most draws whose gradients are held at once."""
        return min(self._draws.block_size, draws_at_once(self.probe.num * self.size, self.run))

    def expected_seconds(self, draws: int) -> float:
        """Time for a number of draws, from timing a few: at most about two seconds of them."""
        done, begin = 0, time.perf_counter()
        while done < draws and (done < 2 or (not self.settled and time.perf_counter() - begin < 2.0)):
            stop = min(draws, done + min(self.stride, max(2, self._fastest.wanted)))
            self.gradients(done, stop)
            done = stop
        if self.family.size == 1 or not self.rate:  # or the gradients are known from another measurement
            return (time.perf_counter() - begin) * draws / done
        return draws / self.rate

    def expected_memory(self, draws: int, rows: int) -> int:
        """Bytes of main memory that the covariance of so many draws takes, each of which adds so many rows."""
        family = self.family
        return expected_memory(
            self._pass, family.num_parameters, family.size, self.probe, self.size, draws, rows, self.run
        )

    def gradients(self, start: int, stop: int, advance: Callable[[int], None] | None = None) -> Tensor:
        """Gradients ``(stop − start, n, D)`` of draws ``start … stop−1``.

        Raises:
            ValueError: If a gradient is not finite.
        """
        if self.probe.num > GEOMETRY_INPUTS:
            return self._found(start, stop, advance)
        template = self.family.template
        # A scan takes two measurements of a dear network at the same few inputs.
        _, kept = _GRADIENTS.get(self.probe, (id(template), *self._how), lambda: (template, {}))
        if all(draw in kept for draw in range(start, stop)):
            if advance is not None:
                advance(stop - start)
            return torch.stack([kept[draw] for draw in range(start, stop)])
        found = self._found(start, stop, advance)
        for draw, gradient in zip(range(start, stop), found, strict=True):
            if (len(kept) + 1) * gradient.nbytes <= self._kept:
                kept[draw] = gradient.clone()
        return found

    def release(self) -> None:
        """Give back the memory of weights and inputs that were drawn last; they are drawn again if they are asked for."""
        self._draws.release()
        self.probe.release()
        trim()

    def _found(self, start: int, stop: int, advance: Callable[[int], None] | None) -> Tensor:
        inputs = self.probe.inputs(start, stop, self.run)
        with self.run.products(), plain_attention(), self._random_state(start):
            if self.family.size == 1:
                gradients = self._of_point(inputs, stop - start)
                if advance is not None:
                    advance(stop - start)
            else:
                stack = self._draws[start:stop].read(self.readout)
                gradients = self._fastest.map(stack, inputs, self.probe.fresh, advance)
        if not bool(torch.isfinite(gradients).all()):
            raise ValueError(
                f"{self.family.name} must give finite gradients, but some are infinite or NaN. "
                "Check its initialisation, or try a smaller input or precision='float64'."
            )
        return gradients

    def _of_point(self, inputs: Any, draws: int) -> Tensor:
        """One network: all draws' inputs are one batch, cut so that activations fit."""
        network = self.family.template.to(self.run.torch_device, self.run.dtype).read(self.readout)
        if not self.probe.fresh:
            return in_passes(self._one, self._fitting)(network, inputs).expand(draws, -1, -1)
        flat = tree_map(lambda leaf: leaf.flatten(0, 1), inputs)
        count = draws * self.probe.num
        parts, some = [], min(_BATCH, self._fitting)
        for first in range(0, count, some):
            parts.append(self._one(network, tree_map(lambda leaf: leaf[first : first + some], flat)))  # noqa: B023
        return torch.cat(parts).reshape(draws, self.probe.num, -1)

    def _one(self, network: Network, inputs: Any) -> Tensor:
        if self.estimator == "exact":
            return input_gradient(network, inputs)
        return input_difference(network, inputs, step=self.step)

    def _ways(self) -> list[Way]:
        device, most, paired = self.run.torch_device, self._most, self.probe.fresh
        network = self.family.template.to(device, self.run.dtype).read(self.readout)
        if self.estimator == "exact":
            return exact_ways(network, device, paired=paired, most=most, inputs=self.probe.num, fitting=self._fitting)
        return difference_ways(network, self.first_inputs(), fresh=paired, step=self.step, most=most)

    def first_inputs(self) -> Any:
        """Inputs of the first draw."""
        inputs = self.probe.inputs(0, 1, self.run)
        return tree_map(lambda leaf: leaf[0], inputs) if self.probe.fresh else inputs

    def few_inputs(self) -> Any:
        """As many of them as checks look at."""
        return taken(self.first_inputs(), slice(self._pass.inputs_checked(self.probe.num)))

    def doubts_of_readout(self) -> list[str]:
        """A warning if the measured output is that of one place among several, such as the first step of a sequence."""
        if self.readout != "first" or len(self.output_shape) < 2 or self.output_shape[0] < 2:
            return []
        lengths = "×".join(map(str, self.output_shape))
        return [
            f"Each input has {lengths} outputs, and the first of them is measured: that of one place. Pass --readout mean or random "
            "for all places, or let the network return the ones that you use."
        ]

    def _checked_outputs(self, x: Any) -> tuple[tuple[int, ...], float]:
        """Shape of the outputs of one input, after checking that the family can be measured at all, and :attr:`rounded`."""
        name = self.family.name
        network = self.family.template.to(self.run.torch_device, self.run.dtype)
        outputs = checked_outputs(self.family, x, self.probe, self.run)
        logits = outputs.reshape(outputs.shape[0], -1)
        if self.readout == "margin" and logits.shape[1] < 2:
            raise ValueError(
                f"readout 'margin' needs at least two outputs, {name} has {logits.shape[1]}. Pass readout='first'."
            )
        self._check_dependence(network.read(self.readout), x)
        check_variation(self.family, self._draws)
        return tuple(outputs.shape[1:]), self.rounded

    def _check_dependence(self, network: Network, x: Any) -> None:
        """A constant network has no directions to prefer; one dead random draw does not make a network constant."""
        with differentiated(self.family.name):
            gradient = self._one(network, x) if self.estimator == "exact" else input_gradient(network, x)
            if bool((gradient != 0).any()):
                self._check_step(network, x, gradient)
                return
            candidates = self._draws[0 : min(4, self._draws.block_size)].read(self.readout)
            several = [self._one(candidates.member(index), x) for index in range(candidates.members or 0)]
        if not any(bool((gradient != 0).any()) for gradient in several):
            raise ValueError(
                f"{self.family.name} must depend on its input, but its output is constant there. {why_constant(network)}"
            )

    def _check_step(self, network: Network, x: Any, gradient: Tensor) -> None:
        """Refuse differences of so small a step that they are rounding of the outputs."""
        if self.estimator == "exact":
            return
        with torch.no_grad():
            output = float(network(x).abs().max())
        length = float(gradient.double().norm(dim=-1).max())
        # Of the outputs, over all numbers of an input, and of the inputs themselves.
        rounded = self.run.rounding * max(output * math.sqrt(gradient.shape[-1] / 2), largest_input(x) * length)
        self.rounded = rounded / abs(self.step)
        if rounded > ROUNDED * abs(self.step) * length:
            enough = rounded / (ROUNDED * length)
            raise ValueError(
                f"The step h of the difference must change the outputs by more than rounding in {self.run.precision}, got "
                f"{self.step:g} for inputs up to {largest_input(x):.2g}, outputs of {output:.2g} and a gradient of {length:.2g}. "
                f"Pass step={rounded_up(enough)} or more, or precision='float64'."
            )


def rounded_up(number: float) -> str:
    """A positive number with one digit that is not below it."""
    unit = 10.0 ** math.floor(math.log10(number))
    return f"{math.ceil(number / unit) * unit:.1g}"


def largest_input(x: Any) -> float:
    """The largest size of a number that moves."""
    leaves = [leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return max((float(leaf.abs().max()) for leaf in leaves), default=0.0)


def why_constant(network: Network) -> str:
    """What to do where the output of a network does not depend on its input, as a sentence."""
    if zeros := zero_layers(network):
        return (
            f"Its weights {zeros[0]} are all 0. Read the features before its head instead (--readout features), or measure weights "
            "after a few training steps (--weights FILE)."
        )
    return "Check that forward uses its argument and that no detach() or dead layer cuts it off."


def gaussian_sampler(
    family: Family, shape: Sequence[int], *, probes: int, scale: float, readout: str, seed: int, run: Run
) -> GradientSampler:
    """Exact gradients at Gaussian inputs of a standard deviation, drawn afresh for each network, for average geometries."""
    probe = Probe.gaussian(shape, num=probes, std=scale, fresh=True, seed=seed)
    return GradientSampler(family, probe, estimator="exact", step=1.0, readout=readout, seed=seed, run=run)


@under_torch_defaults
def gradient_covariance(
    sampler: GradientSampler,
    *,
    draws: int,
    centred: bool = False,
    of_means: bool = False,
    seed: int,
    stable: float | None = None,
    leading: int = 10,
    label: str = "gradients",
) -> GradientCovariance:
    """The covariance of a family's input gradients over a number of draws, in resumable groups.

    Args:
        sampler: Gives the gradients.
        draws: Number of draws; with ``stable``, the largest number.
        centred: Whether to remove the mean gradient; needs one input per draw.
        of_means: Whether to use each draw's mean gradient over its inputs, estimated from two halves of them.
        seed: Random seed that the sampler was given.
        stable: Stop as soon as the leading subspaces of the two halves of the sample have at least this similarity.
        leading: Dimension of that subspace.
        label: Label of the progress bar.

    Returns:
        The covariance with its groups. It has fewer draws than ``draws`` only if it became stable.

    Raises:
        ValueError: If the settings cannot give an estimate.
    """
    run, size, inputs = sampler.run, sampler.size, sampler.probe.num
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to estimate a spread, got {draws}. Pass draws=100 or more.")
    if centred and draws < 4:
        raise ValueError(
            f"draws must be at least 4 where the mean is removed, got {draws}. Pass draws=100 or centred=False."
        )
    if centred and inputs > 1:
        raise ValueError(
            f"centred=True needs one input per draw, got {inputs}. Pass centred=False or a probe of one input."
        )
    if leading < 1:
        raise ValueError(f"leading must be at least 1 direction, got {leading}. Pass leading=10.")
    if stable is not None and not 0 < stable <= 1:
        raise ValueError(f"stable must be a similarity between 0 and 1, got {stable}. Pass stable=0.95.")
    if of_means and (centred or inputs < 2 or inputs % 2):
        raise ValueError(
            f"A mean gradient needs an even number of inputs per draw and centred=False, got {inputs} and {centred}. Pass 16 inputs."
        )
    count = min(GROUPS, draws)
    edges = [draws * index // count for index in range(count + 1)]
    form = representation(size, draws, 2 if of_means else inputs, count)
    if form == "sketch" and of_means:
        most = min(ROWS_LIMIT // size, DENSE_LIMIT) // 2  # two rows of each draw
        raise ValueError(
            f"The mean gradients of {draws} draws of {size} numbers do not fit into memory. Pass draws={most}."
        )
    if form == "sketch" and centred:
        raise ValueError(
            f"centred=True must store every gradient, and {draws} draws of {size} numbers are too many. Pass centred=False."
        )
    run.expects(
        f"A covariance of {draws} draws of {sampler.family.name}",
        sampler.expected_memory(draws, 2 if of_means else inputs),
        "Pass fewer draws (--draws) or a smaller input",
    )
    trials = Trials(
        "gradient covariance",
        run,
        code=(GradientSampler, _groups),
        at=sampler.few_inputs(),
        family=sampler.family,
        probe=sampler.probe,
        estimator=sampler.estimator,
        step=sampler.step if sampler.estimator == "difference" else None,
        readout=sampler.readout,
        draws=draws,
        seed=seed,
        **({"of": "means over halves of the inputs"} if of_means else {}),
        **({"about": "a mean gradient"} if centred else {}),
    )
    keys = [f"draws-{edges[index]}-{edges[index + 1]}" for index in range(count)]
    checks = {count // 8, count // 4, count // 2, 3 * count // 4} - {0, 1} if stable is not None else set()
    finished: list[Moments] = []
    rounding = run.rounding**2  # of gradients, which are squared in float64
    trim()  # of what the checks took
    with trials.alone():
        done = [trials.done(key) for key in keys]
        with run.tracked(label, draws, sum(edges[i + 1] - edges[i] for i in range(count) if done[i])) as advance:
            while (index := len(finished)) < count:
                if done[index]:
                    finished.append(Moments.from_tensors(trials.read(keys[index]), run.torch_device))
                else:
                    # Strides run across the borders of groups, up to the next one that is done or where a stop is checked.
                    last = next((i for i in range(index + 1, count) if done[i] or i in checks), count)
                    for moments in _groups(
                        sampler, edges[index : last + 1], form, centred, of_means, finished[:1], advance
                    ):
                        kept = moments.tensors()
                        if trials.folder is not None:
                            trials.write(keys[len(finished)], kept)
                        # As a later run reads them: sums in another order would end in other digits.
                        finished.append(Moments.from_tensors(kept, run.torch_device))
                if len(finished) in checks and agreement_of_halves(
                    GradientCovariance(finished, centred, inputs, rounding), leading
                ) >= (stable or 1.0):
                    break
    sampler.release()
    covariance = GradientCovariance(finished, centred, inputs, rounding)
    if centred:
        _check_digits(covariance, sampler)
        common, spread = covariance.mean_length(), covariance.trace().value
        if spread > 0:  # what is removed leaves its rounding behind
            left = max(rounding * common**2, sampler.rounded**2)
            covariance.rounding = max(covariance.rounding, left / spread)
    return covariance


def _check_digits(covariance: GradientCovariance, sampler: GradientSampler) -> None:
    """Refuse a spread that is rounding of what the gradients have in common."""
    common, spread = covariance.mean_length(), math.sqrt(max(covariance.trace().value, 0.0))
    name, precision = sampler.family.name, sampler.run.precision
    if sampler.rounded > max(ROUNDED * spread, sampler.run.rounding * common):
        raise ValueError(
            f"The step h of the difference must show how gradients of {name} differ between draws, but with {sampler.step:g} in "
            f"{precision}, rounding moves them by {sampler.rounded:.2g} and draws by {spread:.2g}. Pass a larger step, or "
            "precision='float64'."
        )
    if sampler.run.rounding * common <= ROUNDED * spread:
        return
    if sampler.run.rounding == torch.finfo(torch.float64).eps:
        raise ValueError(
            f"Gradients of {name} must differ between draws to have a covariance, but they are equal up to rounding. "
            "Pass centred=False to keep the mean gradient."
        )
    raise ValueError(
        f"Gradients of {name} must differ between draws by more than rounding, but in {precision} their spread is "
        f"{spread / common:.1g} of their mean. Pass precision='float64' (--precision float64), or centred=False to keep the mean."
    )


def _groups(
    sampler: GradientSampler,
    edges: list[int],
    form: str,
    centred: bool,
    of_means: bool,
    before: Sequence[Moments],
    advance: Callable[[int], None],
) -> Iterator[Moments]:
    """Sums over consecutive groups of draws, each as soon as it is whole; about the gradient and in the unit of the first draw."""
    start, group = edges[0], 0
    moments = (
        Moments.empty(sampler.size, form, sampler.run.torch_device, before[0].centre, before[0].unit)
        if before
        else None
    )
    while start < edges[-1]:
        stop = min(edges[-1], sampler.stop(start))
        gradients = sampler.gradients(start, stop, advance)
        if moments is None:
            # Of one draw, since how many are taken at a time is chosen by timing; a unit that is not dead.
            centre = gradients[0].mean(0, dtype=torch.float64) if centred else None
            alive = next((each for each in gradients if bool(each.any())), gradients[0])
            unit = _usable(float(unit_of(alive.double())), sampler)
            moments = Moments.empty(sampler.size, form, sampler.run.torch_device, centre, unit)
        if of_means:
            pairs = gradients.reshape(len(gradients), 2, -1, gradients.shape[-1])  # two halves of the inputs
            gradients = pairs.mean(2, dtype=torch.float64)
        first = start
        while first < stop:
            last = min(stop, edges[group + 1])
            add = moments.add_crossed if of_means else moments.add
            add(gradients[first - start : last - start])
            if last == edges[group + 1]:
                yield moments
                moments = Moments.empty(sampler.size, form, sampler.run.torch_device, moments.centre, moments.unit)
                group += 1
            first = last
        start = stop


def _usable(unit: float, sampler: GradientSampler) -> float:
    """The unit of sums, if gradients of this size have all digits, and their squares are numbers."""
    name, run = sampler.family.name, sampler.run
    if not 2.0**-500 < unit < 2.0**500:
        raise ValueError(
            f"Gradients of {name} must have squares that float64 can hold, but they are about {unit:.0e}. "
            "Multiply the network's output by a constant."
        )
    if unit < 2**4 * torch.finfo(run.dtype).tiny:
        raise ValueError(
            f"Gradients of {name} must be numbers that {run.precision} can hold, but they are about {unit:.0e}. "
            "Pass precision='float64' (--precision float64), or multiply the network's output by a constant."
        )
    return unit


def agreement_of_halves(covariance: EstimatedOperator, leading: int) -> float:
    """How similar the leading subspaces of the two halves of the draws are.

    Only directions of positive eigenvalue count. Where a network has fewer than asked for, these are the whole; where there are
    fewer draws, the missing directions have nothing in common.

    Args:
        covariance: Over all draws.
        leading: Dimension of the subspaces.
    """
    halves = covariance.halves()
    spectra = [eigenpairs(half, leading, zeros=False) for half in halves]
    counts = [spectrum.positive(covariance.rounding) for spectrum in spectra]
    shared, known = min(counts), max(counts)
    if not shared:
        return 0.0
    first, second = (spectrum.vectors[:shared] for spectrum in spectra)
    whole = known if known < min(half.draws for half in halves) else leading
    return subspace_similarity(first, second) * shared / whole
