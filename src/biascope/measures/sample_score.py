"""Sample score: how much a network can change along each sample of a data set, and which samples remain after pruning."""

# n samples · D input size · g groups of draws

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from biascope.derivatives.covariance import gaussian_sampler, gradient_covariance
from biascope.derivatives.moments import Rows
from biascope.derivatives.operators import GradientCovariance
from biascope.families.family import Family
from biascope.kernels.selftest import derivative_checks
from biascope.results.draw import blank, captioned, panel
from biascope.results.estimate import SHARE, Estimate, Number, jackknife, spearman
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Sentence, Step, Story, model_word
from biascope.results.wording import significant
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays, master_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AT_ONCE = 2**24  # numbers of input that are scored in one go
SHOWN = 6  # samples drawn from either end


@dataclass(frozen=True, repr=False)
class SampleScores(Result):
    """The score of every sample, split after split, each in the data set's own order.

    Attributes:
        splits: Their names.
        sizes: Samples of each.
        scores: ``x̂ᵀGx̂·D/tr G`` of each sample: 1 for every sample if the network is isotropic.
        errors: Standard error of each, from the draws of G.
        labels: Label of each sample.
        shown: Places in the first split of the samples with the highest scores, then of those with the lowest.
        images: These samples.
        mean: Mean score of the first split, as all numbers from here on.
        spread: Standard deviation of its scores over their mean.
        class_share: Share of their variance that lies between the classes.
        agreement: Rank correlation of the scores from the two halves of the draws.
        input_shape: Shape of one sample.
    """

    splits: tuple[str, ...]
    sizes: tuple[int, ...]
    scores: np.ndarray
    errors: np.ndarray
    labels: np.ndarray
    shown: np.ndarray
    images: np.ndarray
    mean: Estimate
    spread: Estimate
    class_share: Estimate
    agreement: Estimate
    input_shape: tuple[int, ...]

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("scores", "errors", "labels"), ("sample",)),
        "shown": ("shown",),
        "images": ("shown", "input"),
    }

    def of(self, split: str | None = None) -> slice:
        """Where the samples of a split, by default the first, lie in the arrays."""
        if split is not None and split not in self.splits:
            listed = ", ".join(self.splits)
            raise ValueError(f"split must be one of {listed}, got {split!r}. Pass split={self.splits[0]!r}.")
        place = 0 if split is None else self.splits.index(split)
        return slice(sum(self.sizes[:place]), sum(self.sizes[: place + 1]))

    def kept(self, keep: float, *, split: str | None = None, per_class: bool = False) -> np.ndarray:
        """The samples of a split that stay when the lowest scores are pruned; as :func:`kept_samples`."""
        labels = self.labels[self.of(split)] if per_class else None
        return kept_samples(self.scores[self.of(split)], keep, labels=labels)

    def by_class(self) -> dict[int, np.ndarray]:
        """The scores of each class of the first split, the class with the highest mean first."""
        scores, labels = self.scores[self.of()], self.labels[self.of()]
        parts = {int(each): scores[labels == each] for each in np.unique(labels)}
        return dict(sorted(parts.items(), key=lambda item: -float(item[1].mean())))

    @override
    def headline(self) -> dict[str, Number]:
        numbers = {
            "mean_score": self.mean.named("mean score"),
            "spread": self.spread.named("spread of the scores relative to their mean"),
            "class_share": self.class_share.named("share of the variance between classes", SHARE),
            "agreement": self.agreement.named("rank correlation of two halves of the draws"),
        }  # samples that are all alike, or of one class, have no ranks and no shares
        return {key: number for key, number in numbers.items() if math.isfinite(number.value)}

    @override
    def sentence(self) -> str:
        low, high = np.quantile(self.scores[self.of()], [0.05, 0.95])
        words = f"Along these samples, the output of {self.subject} changes {significant(self.mean.value)} times as much as along "
        words += f"random inputs (mean score). The middle 90 % of the samples score from {significant(low)} to {significant(high)}"
        means = [(label, scores.mean()) for label, scores in self.by_class().items()]
        if len(means) > 1:
            (top, most), (bottom, least) = means[0], means[-1]
            words += f". {_capital(self.class_name(top))} has the highest mean score ({significant(most)}), "
            words += f"{self.class_name(bottom)} the lowest ({significant(least)})"
        ranks = f" The rankings from two halves of the draws have a rank correlation of {self.agreement.value:.2f}."
        return f"{words}.{ranks if math.isfinite(self.agreement.value) else ''}"

    @override
    def story(self) -> Story:
        return Story(
            page_title=f"Sample scores: along which samples of {self._data} {self.subject} can change its output",
            sentences=self._sentences(),
            meaning=(
                "Samples with a high score lie along directions to which the untrained network reacts strongly; they tend to be "
                "smooth and bright. Samples with a low score look nearly alike to it. The score does not say which samples are "
                "useful for training: pruning by it was worse than pruning at random in our tests."
            ),
            next_steps=self._next_steps(),
        )

    @property
    def _data(self) -> str:
        whole = str(self.provenance.get("data", {}).get("name", "the data")).partition(",")[0]
        return re.sub(r"-[0-9a-f]{16}$", "", whole)  # without the digest that tells sets of one name apart

    def _sentences(self) -> list[Sentence]:
        low, high = np.quantile(self.scores[self.of()], [0.05, 0.95])
        found = [
            Sentence(
                f"Along the samples of {self._data}, the output of {self.subject} changes {significant(self.mean.value)} times as much "
                "as along random inputs. "
                f"The middle 90 % of the samples score from {significant(low)} to {significant(high)}.",
                "scores",
            )
        ]
        means = [(self.class_name(label), float(scores.mean())) for label, scores in self.by_class().items()]
        if len(means) > 1:
            between = self.class_share.value
            share = f" Classes explain {100 * between:.0f} % of the variance." if math.isfinite(between) else ""
            found.append(
                Sentence(
                    f"{_capital(means[0][0])} has the highest mean score ({significant(means[0][1])}), {means[-1][0]} the lowest "
                    f"({significant(means[-1][1])}).{share}",
                    "scores_by_class",
                )
            )
        if math.isfinite(self.agreement.value):
            settled = (
                "The order of the samples is settled"
                if self.agreement.value >= 0.9
                else "The order still depends on the draws"
            )
            words = f"{settled}: the rankings from two halves of the draws have a rank correlation of {self.agreement.value:.2f}."
            found.append(Sentence(words, "extreme_samples"))
        return found

    def _next_steps(self) -> list[Step]:
        found = []
        if math.isfinite(self.agreement.value) and self.agreement.value < 0.9:
            draws = int(self.provenance.get("settings", {}).get("draws", 1000))
            words = "Draw more networks, until the order of the samples is settled."
            found.append(
                Step(
                    words,
                    f"biascope measure sample_score {model_word(self.subject)} --data {self._data} --draws {4 * draws}",
                )
            )
        words = "See what of these data and their labels the network learns first."
        return [*found, Step(words, f"biascope kernel {model_word(self.subject)} --data {self._data}")]

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        pictures, classes = {}, self.by_class()
        if len(self.input_shape) > 1 and min(self.input_shape[-2:]) > 1:
            pictures["extreme_samples"] = captioned(
                f"Samples of {self.splits[0]} with the highest and the lowest scores", self._gallery(dark)
            )
        if 1 < len(classes) <= 20:
            at, means = np.arange(len(classes)), np.array([scores.mean() for scores in classes.values()])
            low, high = np.array([np.quantile(scores, [0.1, 0.9]) for scores in classes.values()]).T
            reading = "Mean scores of the classes, highest first. The band holds the middle 80 % of their samples."
            style: Any = {"bands": {"score": (low, high)}, "reading": reading, "dark": dark}
            shown = lines_figure({"score": (at, means)}, x="class", y="score", **style)
            names = [self.class_name(label).removeprefix("class ") for label in classes]
            long = max(map(len, names)) * len(names) > 44
            shown.axes[0].set_xticks(at, names, rotation=40 if long else 0, ha="right" if long else "center")
            pictures["scores_by_class"] = captioned(f"Scores of {self.splits[0]} by class", shown)
        order = np.argsort(self.scores[self.of()])[np.linspace(0, self.sizes[0] - 1, 200).astype(int)]
        curves, bands = {"score": (np.linspace(0, 100, 200), self.scores[order])}, {"score": self.errors[order]}
        reading = "Pruning removes samples from the left. An isotropic network gives 1 to every sample. Bands are 95 % intervals."
        along = lines_figure(
            curves, x="samples with a lower score, %", y="score", bands=bands, reading=reading, dark=dark
        )
        return {**pictures, "scores": captioned("Scores in increasing order", along)}

    def _gallery(self, dark: bool) -> Figure:
        reading = (
            "Top row: samples with the highest scores. Bottom row: the lowest scores. The score is below each sample."
        )
        columns, pixels = len(self.shown) // 2, self.images.reshape(len(self.shown), -1, *self.input_shape[-2:])
        pixels = pixels if pixels.shape[1] == 3 else pixels.mean(1, keepdims=True)
        low, high = (end((0, 2, 3), keepdims=True) for end in (pixels.min, pixels.max))
        bright = np.moveaxis((pixels - low) / np.maximum(high - low, 1e-12), 1, -1)
        grid = (figure := blank(1.9, reading)).add_gridspec(2, columns)
        for place, (image, sample) in enumerate(zip(bright, self.shown, strict=True)):
            axes = panel(figure, dark, grid[divmod(place, columns)])
            axes.imshow(image, cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[], ylabel="" if place % columns else ("highest", "lowest")[place // columns])
            axes.set_xlabel(significant(self.scores[sample]), fontsize=9)
        return figure


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def kept_samples(
    scores: np.ndarray, keep: float, *, by: str = "score", labels: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Which samples stay when a data set is pruned to a share of its size: sorted indices in the order of the scores.

    Args:
        scores: ``(n,)``, one per sample in the data set's own order.
        keep: Share of the samples that stays, above 0 and at most 1.
        by: ``"score"``: those with the lowest scores go; ``"random"``: as many at random.
        labels: Labels of the samples, to keep the same share of each class; by default classes are ignored.
        seed: Random seed for the choice.

    Raises:
        ValueError: If a setting is out of its range.

    Example:
        >>> kept_samples(np.array([0.5, 3.0, 0.1, 2.0]), 0.5).tolist()
        [1, 3]
        >>> kept_samples(np.array([0.5, 3.0, 0.1, 2.0]), 0.5, labels=np.array([0, 1, 0, 1])).tolist()
        [0, 1]
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be a share above 0 and at most 1, got {keep}. Pass keep=0.5 for half.")
    if by not in ("score", "random"):
        raise ValueError(f"by must be 'score' or 'random', got {by!r}. Pass by='score'.")
    worth = np.asarray(scores) if by == "score" else np.random.default_rng(seed_of(seed, "kept")).random(len(scores))
    alike = np.zeros(len(worth)) if labels is None else np.asarray(labels)
    groups = [np.flatnonzero(alike == each) for each in np.unique(alike)]
    # Equal scores stay in their own order, so that the same samples are kept every time.
    best = [group[np.argsort(-worth[group], kind="stable")[: max(1, round(keep * len(group)))]] for group in groups]
    return np.asarray(np.sort(np.concatenate(best)))


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 2)), name="small")
    x, y = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    return (family, Arrays({"train": (x[:30], y[:30]), "test": (x[30:], y[30:])})), {"draws": 64}


@measurement(
    title="Sample scores",
    paper="geometry2025",
    result=SampleScores,
    example=_example,
    checks=derivative_checks(lambda settings: ("input",), half=True),
)
def sample_score(
    family: Family,
    data: Arrays,
    *,
    draws: int = 1000,
    inputs: int = 1,
    scale: float = 1e-3,
    readout: str = "mean",
    seed: int = 0,
    run: Run | None = None,
) -> SampleScores:
    """How much an untrained network can change along each sample of a data set, relative to a random input.

    Definition:
        ``score(x) = x̂ᵀ G x̂ / (tr G/D)`` with ``x̂ = x/‖x‖`` and the average geometry ``G = E ∇f ∇fᵀ`` over weights and inputs
        N(0, σ²I). The division by ``tr G/D`` removes the unit. An isotropic network gives 1 to every sample. A network whose
        gradients all lie along one direction gives at most D. A sample of zeros has the score 0.

    Standard errors are those of the ratio, over groups of draws.

    Args:
        family: Networks and the distribution of their weights.
        data: The samples, every split of them; scores come in their order.
        draws: Networks over which G is averaged.
        inputs: Inputs per network; with a small σ one is enough, since gradients hardly differ.
        scale: σ of the inputs at which gradients are taken.
        readout: Which scalar of several outputs; the published G takes the ``mean``.
        seed: Random seed for weights and inputs.
        run: Folder (draws are saved), device, precision.

    Returns:
        Scores with errors, and a summary of the first split.

    Raises:
        ValueError: If the settings cannot give an estimate.

    Example:
        >>> family = Family.initialised(lambda: nn.Sequential(nn.AvgPool1d(2), nn.Linear(1, 1, bias=False)), name="mean")
        >>> x = torch.tensor([[2.0, 2.0], [1.0, 0.0], [1.0, -1.0]])  # f(x) = w(x₁ + x₂)/2, G ∝ 11ᵀ
        >>> result = sample_score(family, Arrays({"train": (x, torch.tensor([0, 0, 1]))}), draws=8)
        >>> result.scores.round(6).tolist(), result.kept(0.7).tolist()
        ([2.0, 1.0, 0.0], [0, 1])

    Reference:
        Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR, section 5.
    """
    run = run or Run()
    name = next(iter(data.splits))
    sampler = gaussian_sampler(family, data.shape, probes=inputs, scale=scale, readout=readout, seed=seed, run=run)
    covariance = gradient_covariance(sampler, draws=draws, seed=seed, label=f"{family.name}: geometry")
    forms = np.concatenate([_forms(covariance, data, split, run) for split in data.splits], 1)  # (g, n)
    weight = np.array([group.draws for group in covariance.groups], np.float64)
    traces = np.array([group.trace for group in covariance.groups]) / weight / covariance.size  # (g,)

    def scored(groups: np.ndarray) -> np.ndarray:
        return np.asarray(weight[groups] @ forms[groups] / (weight[groups] @ traces[groups]))

    every = np.arange(len(weight))
    scores, first = scored(every), data.sizes[name]
    labels = np.concatenate([y.cpu().numpy() for _, y in data.splits.values()]).astype(np.int64)
    # The error of a ratio: groups with long gradients have large forms and large traces, and that much cancels.
    residuals = (forms - scores * traces[:, None]) / (weight @ traces / weight.sum())
    errors = residuals.std(0, ddof=1) / math.sqrt(len(every)) if len(every) > 2 else np.full_like(scores, math.nan)

    def over_draws(statistic: Callable[[np.ndarray], float]) -> Estimate:
        return jackknife(statistic(scores[:first]), [statistic(scored(np.delete(every, j))[:first]) for j in every])

    def agreement(groups: np.ndarray) -> float:
        return spearman(scored(groups[0::2])[:first], scored(groups[1::2])[:first])

    pairs = len(every) // 2 if len(every) > 5 else 0
    left_out = [agreement(np.delete(every, [2 * j, 2 * j + 1])) for j in range(pairs)]
    doubt = jackknife(agreement(every), left_out).standard_error  # its bias correction would go beyond 1
    shown = np.argsort(-scores[:first], kind="stable")[np.r_[: min(SHOWN, first), max(-SHOWN, -first) : 0]]
    return SampleScores(
        splits=tuple(data.splits),
        sizes=tuple(data.sizes.values()),
        scores=scores,
        errors=errors,
        labels=labels,
        shown=shown,
        images=data.batch(name, torch.from_numpy(shown))[0].flatten(1).float().cpu().numpy(),
        mean=over_draws(lambda each: float(each.mean())),
        spread=over_draws(lambda each: float(each.std() / each.mean())).within(0.0, math.inf),
        class_share=over_draws(lambda each: _between(each, labels[:first])).within(0.0, 1.0),
        agreement=Estimate.from_error(agreement(every), doubt, pairs).within(-1.0, 1.0),
        input_shape=tuple(data.shape),
    )


def _forms(covariance: GradientCovariance, data: Arrays, split: str, run: Run) -> np.ndarray:
    """``x̂ᵀ G_j x̂`` of every sample of a split for each group j of draws: ``(g, n)``."""
    groups, device, size = covariance.groups, covariance.device, data.sizes[split]
    # Groups of many draws are kept as their sums, which are matrices in float64.
    dtype = master_dtype(run) if all(isinstance(group.second, Rows) for group in groups) else torch.float64
    parts = []
    with run.products(), run.tracked(f"scores of {split}", size) as advance:
        for chosen in torch.split(torch.arange(size), max(1, AT_ONCE // covariance.size)):
            x = data.batch(split, chosen)[0].to(device, dtype).flatten(1)
            columns = (x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1e-30)).T
            each = torch.stack([group.second.quadratic(columns) / group.draws for group in groups])
            parts.append(each.double().cpu().numpy())
            advance(len(chosen))
    return np.concatenate(parts, 1)


def _between(scores: np.ndarray, labels: np.ndarray) -> float:
    """Share of the variance that lies between classes; nan where there is one class, or no variance."""
    classes, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2 or np.ptp(scores) == 0:
        return math.nan
    means = np.bincount(place, scores) / counts
    return float(counts @ (means - scores.mean()) ** 2 / (len(scores) * scores.var()))
