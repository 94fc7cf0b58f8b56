"""Tangent kernel: the functions that a network learns easily near its weights, and the share of the labels on them."""

# n samples · k leading eigenfunctions · T targets

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.moments import DENSE_LIMIT
from biascope.derivatives.operators import Matrix
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family
from biascope.kernels.gram import Gram, matrix_bytes, tangent_gram
from biascope.kernels.selftest import derivative_checks
from biascope.measures.tangent_kernel import pictures as pictures
from biascope.measures.tangent_kernel.classes import FEW, ClassShare, as_rows, class_shares, order_in_words
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, over
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Sentence, Step, Story, model_word
from biascope.results.wording import percent, significant
from biascope.runs.randomness import generator_for
from biascope.runs.rehearsal import counted
from biascope.runs.run import Run
from biascope.tasks.task import Arrays, require_classes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DENSE = 1000  # samples up to which the whole spectrum is the quickest, as it is for more than a tenth of it
_TOLERANCE = 1e-6  # residual of an eigenpair that is iterated for, relative to its own eigenvalue


@dataclass(frozen=True, repr=False)
class TangentSpectrum(Result):
    """Leading eigenfunctions of a tangent kernel on samples, scaled to ``E φ² = 1``, and what lies on them.

    Attributes:
        targets: What each target is.
        positive: The classes that are +1 in the target; none where each class is a target.
        means: Mean of each target, before it was removed where each class is one.
        eigenvalues: λ, those of the Gram matrix over n, largest first.
        residuals: ``‖Kφ/n − λφ‖/(λ‖φ‖)``; nan where the eigenvalue is below the kernel's own error.
        energy: Share of each target on the first eigenfunctions, cumulative; those below the kernel's error add nothing.
        labels_energy: The same of all targets together, ``Σ(E φy)²/ΣE y²``.
        alignment: ``α = yᵀKy/n²`` of each target.
        labels_alignment: ``α/‖y‖²`` of all targets together: at most the first eigenvalue, and ``Σλ/n`` for a random target.
        rkhs_bound: ``‖y‖⁴/α``: the squared norm of the target in the kernel's space is at least that.
        trace: ``Σλ = tr K/n``, the mean squared gradient.
        frobenius: ``√Σλ² = ‖K‖_F/n``.
        effective_rank: ``(Σλ)²/Σλ²``.
        kernel_error: Largest error of the kernel's entries against float64, relative to ``√(K_ii K_jj)``, on a few samples.
        eigenfunctions: Eigenfunctions of the first network with eigenvalues above the kernel's error.
        binarised: Cosine between each of these and its sign, ``E|φ|``; √(2/π) = 0.80 where values are Gaussian.
        places: Index of each sample in its split.
        labels: Its class.
        local_energy: ``Σφ²(x)`` at each sample; its mean is the number of eigenfunctions.
        control_energy: The same at the control samples; empty if there are none.
        splits: Where the samples and the control samples are from.
        thumbnails: Samples at the two ends of the first eigenfunctions, as bytes; none where inputs are not images.
        exact: Whether one network was given: nothing is then left to chance but the samples.
    """

    targets: tuple[str, ...]
    positive: tuple[int, ...]
    means: np.ndarray
    eigenvalues: np.ndarray
    residuals: np.ndarray
    energy: np.ndarray
    labels_energy: np.ndarray
    alignment: np.ndarray
    labels_alignment: np.ndarray
    rkhs_bound: np.ndarray
    trace: np.ndarray
    frobenius: np.ndarray
    effective_rank: np.ndarray
    kernel_error: np.ndarray
    eigenfunctions: np.ndarray
    binarised: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    local_energy: np.ndarray
    control_energy: np.ndarray
    splits: tuple[str, ...]
    thumbnails: np.ndarray
    exact: bool

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("labels_alignment", "trace", "frobenius", "effective_rank", "kernel_error"), ("draw",)),
        **dict.fromkeys(("eigenvalues", "residuals", "labels_energy"), ("draw", "index")),
        **dict.fromkeys(("alignment", "rkhs_bound"), ("draw", "target")),
        **dict.fromkeys(("places", "labels", "local_energy"), ("sample",)),
        **{"means": ("target",), "energy": ("draw", "target", "index"), "control_energy": ("control sample",)},
        **{"eigenfunctions": ("function", "sample"), "binarised": ("function",)},
        "thumbnails": ("shown function", "end", "channel", "row", "column"),
    }

    @override
    def headline(self) -> dict[str, Number]:
        samples, leading = len(self.labels), self.eigenvalues.shape[1]

        def over_draws(values: np.ndarray, most: float = math.inf) -> Estimate:
            return Estimate.exact(float(values[0])) if self.exact else _mean(values, most)

        on_leading = f"share of the labels on {leading} functions (chance: {percent(leading / samples)})"
        found = {
            "effective_rank": over_draws(self.effective_rank, float(samples)).named(f"effective rank of {samples}"),
            "labels_energy": over_draws(self.labels_energy[:, -1], 1.0).named(on_leading, SHARE),
            "labels_alignment": over_draws(self.labels_alignment).named("alignment of the labels α/‖y‖²"),
            "alignment_over_random": over_draws(self.labels_alignment * samples / self.trace).named(
                "alignment relative to a random target"
            ),
        }
        classes = self.classes
        for one in classes if len(classes) <= FEW else ():
            found[f"class_share:{one.label}"] = one.share.named(f"share of the labels {one.name}", SHARE)
        if self.control_energy.size:
            found["local_energy_ratio"] = _mean(self.control_energy / self.local_energy.mean()).named(
                f"mean local energy on {self.splits[1]} relative to {self.splits[0]}"
            )
        return found

    @property
    def classes(self) -> tuple[ClassShare, ...]:
        """Classes from the one learned first to the one learned last, where each is a target; empty for a target of two sides."""
        if self.positive:
            return ()
        labels, samples = np.unique(self.labels, return_counts=True)
        names = [self._target_name(at) for at in range(len(labels))]
        return class_shares(self.energy[:, :, -1], labels.tolist(), names, samples.tolist(), exact=self.exact)

    @override
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        classes = self.classes
        return {"classes": as_rows(classes, self.eigenvalues.shape[1] / len(self.labels))} if classes else {}

    @override
    def sentence(self) -> str:
        classes = self.classes
        order = f" {self._order_of(classes)}" if classes else ""
        return self._share_in_words() + order

    def _order_of(self, classes: tuple[ClassShare, ...]) -> str:
        return order_in_words(classes, len(self.energy), exact=self.exact)

    def _share_in_words(self) -> str:
        data = self.provenance.get("data", {}).get("name", "the data")
        samples, leading, known = len(self.labels), self.eigenvalues.shape[1], len(self.eigenfunctions)
        what = self._named_target if self.positive else f"{len(self.targets)} classes, each against the rest"
        share, constant = self.labels_energy[:, -1].mean(), float(self.means[0]) ** 2
        words = (
            f"{100 * share:.0f} % of the labels of {data} ({what}) lie on the first {leading} of {samples:,} eigenfunctions "
            f"of the tangent kernel of {self.subject} (chance: {percent(leading / samples)})."
        )
        if self.positive and constant > 0.2:
            words += f" The classes are unbalanced: the mean holds {100 * constant:.0f} % of the labels."
        if known < leading:
            words += f" Only {known} eigenvalues exceed the numerical error of the kernel."
        if self.control_energy.size:
            ratio = self.control_energy.mean() / self.local_energy.mean()
            words += (
                f" Their local energy on {self.splits[1]} is {significant(ratio, 2)} times that on {self.splits[0]}."
            )
        return words

    @override
    def story(self) -> Story:
        return Story(
            page_title=f"Tangent kernel of {self.subject} on {self._data}: how much of the labels is learned first",
            sentences=self._sentences(),
            meaning=self._meaning(),
            next_steps=self._next_steps(),
            shown_tables={
                "classes": {
                    "class": "class",
                    "samples": "samples",
                    "share": f"share of its labels on the first {self.eigenvalues.shape[1]} functions",
                    "chance": "chance, %",
                    "above_average": "minus the average class (simultaneous intervals)",
                    "learned": "learned",
                }
            }
            if self.classes
            else {},
        )

    @property
    def _data(self) -> str:
        return str(self.provenance.get("data", {}).get("name", "the data")).partition(",")[0]

    def _sentences(self) -> list[Sentence]:
        samples, leading = len(self.labels), self.eigenvalues.shape[1]
        found = [Sentence(self._share_in_words(), "label_energy")]
        if classes := self.classes:
            found.append(Sentence(self._order_of(classes), "class_shares"))
        first = float((self.eigenvalues[:, 0] / self.trace).mean())
        found.append(
            Sentence(
                f"The first eigenfunction alone holds {100 * first:.0f} % of the kernel and "
                f"{percent(float(self.labels_energy[:, 0].mean()))} of the labels.",
                "eigenfunction_samples" if self.thumbnails.size else "spectrum",
            )
        )
        share, over = float(self.labels_energy[:, -1].mean()), self._alignment_over_random
        if over < 1 and share > leading / samples:
            words = (
                f"Gradient descent starts slowly: the alignment is {significant(over, 2)} times that of a random target, although the "
                "labels lie on the "
                "leading functions more than chance. The labels avoid the first function, which dominates the alignment."
            )
        else:
            words = (
                f"The alignment of the labels with the kernel is {significant(over, 2)} times that of a random target."
            )
        return [*found, Sentence(words, "spectrum")]

    @property
    def _alignment_over_random(self) -> float:
        return float((self.labels_alignment * len(self.labels) / self.trace).mean())

    @property
    def _named_target(self) -> str:
        """What the one target is, its classes by their names where these are known."""
        if not self.provenance.get("data", {}).get("classes"):
            return self.targets[0]
        rest = self.targets[0].rpartition(" against ")[2]
        others = self.class_name(int(rest)) if rest.isdecimal() else rest
        return f"{', '.join(map(self.class_name, self.positive))} against {others}"

    def _target_name(self, place: int) -> str:
        """The class that a target is of, by its name where that is known."""
        number = self.targets[place].split()[0]
        return self.class_name(int(number)) if number.isdecimal() else self.targets[place]

    def _meaning(self) -> str:
        words = (
            "Labels on the leading eigenfunctions are learned first, and from few samples, as long as training stays near the initial "
            "weights. A share well above chance means that the architecture suits the labels before any training. "
        )
        if not self.positive:
            words += (
                "Expect the classes at the end of the order to need more training or more samples, as long as training stays near "
                "these weights. Intervals are over draws of the weights, and do not cover which samples were taken. "
            )
        if self._alignment_over_random < 1:
            words += (
                "An alignment below 1 beside a share above chance is no contradiction. The share counts the leading functions "
                "equally. The "
                "alignment weighs them by their eigenvalues, so the first one, often nearly constant, decides it. "
            )
        return words + (
            "Finite networks change their kernel during training, often towards the labels, so this is not a bound on what the network "
            "can learn."
        )

    def _next_steps(self) -> list[Step]:
        model, data = model_word(self.subject), self._data
        found = []
        if not self.exact and len(self.trace) == 1:
            words = "Draw several networks, to have intervals over initial weights."
            found.append(Step(words, f"biascope kernel {model} --data {data} --draws 8"))
        found.append(
            Step(
                "See how the kernel changes when the network is trained.",
                f"biascope measure kernel_rotation {model} --data {data}",
            )
        )
        return found

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        kernel, labels = self.eigenvalues / self.trace[:, None], np.diff(self.labels_energy, prepend=0.0)
        samples, whole = len(self.labels), {self._named_target if self.positive else "all classes": self.labels_energy}
        own = [self._target_name(at).removeprefix("class ") for at in range(len(self.targets))]
        parts = {} if self.positive else {name: self.energy[:, at] for at, name in enumerate(own)}
        figure = pictures.energy_figure(whole, samples, parts=parts, dark=dark)
        found = {"label_energy": captioned("Share of the labels on the leading functions", figure)}
        if classes := self.classes:
            chance, length = self.eigenvalues.shape[1] / samples, self.eigenvalues.shape[1]
            figure = pictures.classes_figure(classes, chance, length, dark=dark)
            found["class_shares"] = captioned("Share of each class's labels on the leading functions", figure)
        if self.thumbnails.size:
            known = self.provenance.get("data", {}).get("classes")
            names = {int(kind): self.class_name(int(kind)) for kind in np.unique(self.labels)} if known else None
            classes = self.labels[pictures.ends(self.eigenfunctions[: len(self.thumbnails)])]
            figure = pictures.ends_figure(
                self.thumbnails, kernel[0], labels[0], classes, self.positive, names=names, dark=dark
            )
            found["eigenfunction_samples"] = captioned("Samples at the two ends of the first eigenfunctions", figure)
        errors = float(np.nanmax(self.residuals, initial=0.0)), float(self.kernel_error.max())
        figure = pictures.spectrum_figure(kernel, labels, samples, errors=errors, dark=dark)
        found["spectrum"] = captioned("Spectrum of the kernel, and the labels on it", figure)
        if self.control_energy.size:
            local = dict(zip(self.splits, (self.local_energy, self.control_energy), strict=True))
            found["local_energy"] = captioned(
                "Local energy of the leading eigenfunctions", pictures.local_energy_figure(local, dark=dark)
            )
        return found


def _mean(values: np.ndarray, most: float = math.inf) -> Estimate:
    return over(values, within=(0.0, most))


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), name="small MLP")
    x = torch.randn(24, 6, generator=generator_for(torch.device("cpu"), 0, "example"))
    return (family, Arrays({"train": (x, (x[:, 0] > 0).long())})), {"leading": 4, "draws": 3}


@measurement(
    title="Tangent kernel",
    paper="linearized2021",
    result=TangentSpectrum,
    example=_example,
    checks=derivative_checks(lambda settings: ("weight",)),
)
def tangent_kernel(
    family: Family,
    data: Arrays,
    *,
    split: str = "train",
    samples: int | None = None,
    leading: int | None = None,
    positive: tuple[int, ...] | None = None,
    kernel: str = "scalar",
    readout: str = "first",
    parameters: tuple[str, ...] | None = None,
    control: str | None = None,
    draws: int = 1,
    seed: int = 0,
    run: Run | None = None,
) -> TangentSpectrum:
    """The functions that a network learns first near its weights, and the share of the labels on them.

    Definition:
        ``K_ij = ∇_θ f(x_i)ᵀ∇_θ f(x_j)`` on n samples. The eigenvalues λ and eigenfunctions φ of ``K/n`` have ``E φ² = 1``. The energy
        of labels y on the first k is ``Σ_ρ (E φ_ρ y)²/E y²``. Their alignment is ``α = yᵀKy/n²``, and ``α(φ_ρ) = λ_ρ``. The
        local energy is ``Σ_ρ φ_ρ²(x)``. At other inputs, ``φ_ρ(x) = Σ_j k(x, x_j) φ_ρ(x_j)/(λ_ρ n)``.

    Args:
        family: Networks to measure.
        data: Samples, with class numbers as labels.
        split: Split to take samples from.
        samples: Number of samples, chosen at random; all by default.
        leading: Number k of eigenfunctions; by default 50, or a quarter of the samples if smaller.
        positive: Classes that are +1, the others −1. The default for two classes is the larger one. With more classes, each class is
            one target against the rest. Its mean is removed, because most of such a target is a constant.
        kernel: ``"scalar"`` for the kernel of one readout, or ``"trace"`` for the sum over all outputs.
        readout: Which scalar of several outputs: ``"first"``, ``"sum"``, ``"mean"``, ``"margin"`` or ``"random"``.
        parameters: Names or patterns of the weights to differentiate with respect to; all by default.
        control: A second split, for the local energy.
        draws: Networks to draw; with several there are standard errors.
        seed: Random seed for weights and for the choice of samples.
        run: Folder (resumable), device, precision, cluster.

    Returns:
        Spectrum, energies, alignments; eigenfunctions and local energy of the first network.

    Raises:
        ValueError: If the labels are not classes, the samples are all equal, or a setting is out of range.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> data = Arrays({"train": (x, torch.tensor([1, 0, 1, 0]))})
        >>> linear = Family.point(nn.Linear(2, 1, bias=False))  # K = X Xᵀ
        >>> result = tangent_kernel(linear, data, leading=2, run=Run(device="cpu"))
        >>> result.eigenvalues.round(6).tolist(), result.energy.round(6).tolist()
        ([[2.0, 0.5]], [[[0.5, 1.0]]])

    Reference:
        Ortiz-Jiménez (2023), The inductive bias of deep learning, sections 4.2–4.4, 6.6 and B.2.
    """
    run, size, splits = run or Run(), data.sizes.get(split, math.inf), (split,) if control is None else (split, control)
    if kernel not in ("scalar", "trace"):
        raise ValueError(f"kernel must be 'scalar' or 'trace', got {kernel!r}. Pass kernel='trace' for all outputs.")
    if not 1 <= draws <= (family.size or draws):
        raise ValueError(f"draws must be from 1 to the number of networks, got {draws}. Pass draws=1.")
    if not 1 < (size if samples is None else samples) <= size:
        raise ValueError(f"samples must be from 2 to {size}, the size of {split}, got {samples}. Pass samples={size}.")
    (x, y, places), *others = (_samples(data, each, samples, seed) for each in splits)
    if bool((x == x[:1]).all()):
        raise ValueError(
            f"The {split} samples of {data.name} must differ from one another, but all {len(x):,} are equal. Pass other samples."
        )
    leading = min(50, max(1, len(y) // 4)) if leading is None else leading  # all of them hold any labels
    if not 1 <= leading <= len(y):
        raise ValueError(
            f"leading must be from 1 to {len(y)}, the number of samples, got {leading}. Pass leading={len(y)}."
        )
    names, classes, targets, means = _targets(y, positive)
    # Weights keep their precision where gradients are rounded, and are drawn here where a cluster multiplies gradients.
    precision = "float64" if run.precision == "float64" else "float32"
    here = Run(precision=precision, device="cpu" if run.on else run.device)
    stream, device = family.draws(seed=seed, run=here), here.torch_device
    run.expects(
        f"The spectrum of a tangent kernel of {len(y):,} samples",
        _memory_of_spectrum(len(y), leading, run),
        "Pass fewer samples (--samples)",
    )
    found, local = [], np.zeros(0)
    with counted("tangent kernels", draws + len(others)) as advance:
        for draw in range(draws):
            network = stream[draw : draw + 1].member(0)
            network = network.read(readout) if kernel == "scalar" else network
            gram = tangent_gram(network, x, kernel=kernel, parameters=parameters, run=run)
            numbers, functions = _spectrum(gram, targets.to(device), leading)
            found.append(numbers)
            advance(1)
            if draw == 0:
                first = functions.float().cpu().numpy()
                for elsewhere, *_ in others:
                    cross = tangent_gram(network, elsewhere, x, kernel=kernel, parameters=parameters, run=run).matrix
                    scale = len(y) * numbers["eigenvalues"][: len(first)]
                    local = ((Matrix(cross.to(device)).matmul(functions.T).cpu().numpy() / scale) ** 2).sum(1)
                    advance(1)
    arrays: dict[str, Any] = {name: np.stack([numbers[name] for numbers in found]) for name in found[0]}
    arrays |= {"means": means.numpy(), "places": places.numpy(), "labels": y.numpy(), "control_energy": local}
    arrays |= {"eigenfunctions": first, "binarised": np.abs(first).mean(1), "local_energy": (first**2).sum(0)}
    arrays["thumbnails"] = pictures.thumbnails(x.cpu().numpy(), first)
    arrays |= {"targets": names, "positive": classes, "splits": splits, "provenance": {"samples": len(y)}}
    return TangentSpectrum(**arrays, exact=family.size == 1)


def _samples(data: Arrays, split: str, samples: int | None, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Some samples of a split, in its order: inputs, labels and places."""
    generator, size = generator_for(torch.device("cpu"), seed, "samples", split), data.sizes.get(split, 0)
    chosen = torch.randperm(size, generator=generator)[:samples].sort().values
    x, y = data.batch(split, chosen)
    return x, y.cpu(), chosen


def _targets(y: Tensor, positive: tuple[int, ...] | None) -> tuple[tuple[str, ...], tuple[int, ...], Tensor, Tensor]:
    """Names of the targets, the classes that are +1, the targets ``(T, n)``, and their means before they are removed."""
    require_classes(y)
    kinds = sorted(set(y.tolist()))
    if positive is None and len(kinds) > 2:
        each = 2.0 * (y == torch.tensor(kinds)[:, None]).double() - 1
        return tuple(f"{kind} against the rest" for kind in kinds), (), each - each.mean(1)[:, None], each.mean(1)
    chosen = (kinds[1],) if positive is None else tuple(positive)
    rest = sorted(set(kinds) - set(chosen))
    if not chosen or not rest or not set(chosen) <= set(kinds):
        known = ", ".join(map(str, kinds))
        raise ValueError(f"positive must be some of the classes {known}, got {chosen}. Pass positive=({kinds[-1]},).")
    one = 2.0 * torch.isin(y, torch.tensor(chosen)).double()[None] - 1
    name = f"{', '.join(map(str, chosen))} against {rest[0] if len(rest) == 1 else 'the rest'}"
    return (name,), chosen, one, one.mean(1)


def _iterated(samples: int, leading: int) -> bool:
    """Whether few pairs of a large matrix are iterated for."""
    return samples > max(_DENSE, 10 * leading)


def _memory_of_spectrum(samples: int, leading: int, run: Run) -> int:
    """Bytes of main memory for the matrix and its spectrum: decomposed in float64, or a basis and its images."""
    whole = samples**2
    if not _iterated(samples, leading):
        return matrix_bytes(samples, None, run) + 8 * (6 * whole if samples <= DENSE_LIMIT else whole)
    basis = 12 * (leading + max(8, leading // 8)) * samples
    return matrix_bytes(samples, None, run) + 8 * (min(whole, 2**27) + 3 * min(basis, 2**27))


def _spectrum(gram: Gram, y: Tensor, leading: int) -> tuple[dict[str, np.ndarray], Tensor]:
    """The numbers of one kernel, and those of its leading eigenfunctions that its precision resolves."""
    matrix, n, norms = gram.matrix.to(y.device), y.shape[1], y.square().mean(1)
    operator, trace = Matrix(matrix), matrix.diagonal().double().sum() / n
    frobenius = sum(part.double().square().sum() for part in torch.split(matrix, 1024)) ** 0.5 / n
    if not 0 < float(frobenius) < math.inf:
        raise ValueError(
            "A tangent kernel must be finite and not all 0, but this one is not. Check the network's weights, or pass "
            "precision='float64' if its outputs are very large or very small."
        )
    pairs = eigenpairs(operator, leading, tolerance=_TOLERANCE, each=True, iterate=_iterated(n, leading))
    values, functions = pairs.values.clamp_min(0) / n, math.sqrt(n) * pairs.vectors
    known = torch.arange(len(values), device=values.device) < max(1, gram.positive(pairs))
    energy = (functions @ y.T / n).square() * known[:, None]  # (k, T)
    alignment = (y * operator.matmul(y.T).T).sum(1) / n**2
    numbers = {"eigenvalues": values, "alignment": alignment, "trace": trace, "frobenius": frobenius}
    numbers["residuals"] = torch.where(known, pairs.residuals * values[0] / values, math.nan)
    numbers["energy"], numbers["labels_energy"] = (energy / norms).cumsum(0).T, energy.sum(1).cumsum(0) / norms.sum()
    numbers["labels_alignment"], numbers["rkhs_bound"] = alignment.sum() / norms.sum(), norms.square() / alignment
    numbers["effective_rank"], numbers["kernel_error"] = (trace / frobenius) ** 2, torch.tensor(gram.error).double()
    return {name: part.cpu().numpy() for name, part in numbers.items()}, functions[known]
