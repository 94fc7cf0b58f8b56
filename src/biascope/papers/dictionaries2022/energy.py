"""Figures 5.5–5.7 and C.2: energy of faces on the atoms of the tangent kernel, and how well networks reconstruct them."""

# m images · K iterations looked at · S splits, test and train

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from biascope import data
from biascope.data import data_root
from biascope.families.family import Family
from biascope.measures.dictionary import dictionary
from biascope.measures.dictionary.result import Dictionary, over_signals, rank_agreement
from biascope.networks import builder
from biascope.papers.dictionaries2022.meta import components, published_siren, removed
from biascope.papers.selection import old_figure
from biascope.results.draw import PALETTE, blank, panel
from biascope.results.estimate import Estimate, Number, agree, bootstrapped, of_rows, over, spearman
from biascope.results.finding import Finding
from biascope.results.signal_pictures import atoms_figure, energy_figure, psnr_figure
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.signals import Signal, SignalTask, psnr_of
from biascope.training.fit import fit, joined
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OMEGAS = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0)
PUBLISHED = {"FFN-0.1": 12.24, "FFN-0.5": 11.53, "FFN-1": 11.76, "FFN-5": 10.31, "FFN-10": 10.23, "ReLU-MLP": 9.13}
RELU, META = "ReLU-MLP", "SIREN-30-Meta"
SIRENS = tuple(f"SIREN-{omega:g}" for omega in OMEGAS)
VALIDATION = 5000  # the first images are for meta-learning, those after them are looked at here
ADAM = Recipe("adam", 1e-4, "constant", batch=2**20, loss="squared")  # full batch
DESCENT = Recipe("gd", 1e-2, "constant", loss="squared")
TOGETHER = 25  # images of a trial: a stack of as many networks


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is done at an effort.

    Attributes:
        side: Pixels along a side of an image.
        images: Images of the first iterations and of the energy.
        few: Images of long trainings.
        longest: Iterations of these.
        draws: Initial weights of each network whose kernels are taken.
        starts: Initial weights that are trained for the first iterations, which depend on them; the same and more.
        few_starts: Of them, those that are trained long.
        width: Of every layer.
    """

    side: int
    images: int
    few: int
    longest: int
    draws: int
    starts: int
    few_starts: int
    width: int = 256


PLANS = {
    "smoke": Plan(10, 4, 2, 30, 2, 2, 1, 12),
    "laptop": Plan(64, 16, 3, 300, 3, 3, 1),
    "paper": Plan(64, 100, 100, 1000, 3, 16, 3),
}
FIRST = tuple(range(11))  # iterations that figure 5.7 shows
LATER = (10, 30, 100, 300, 1000)


def faces(effort: str, run: Run) -> list[Signal]:
    """Grey images from 0 to 1 that no network was meta-learned on; at smoke, noise with the spectrum of images."""
    plan = PLANS[effort]
    if effort == "smoke":
        white = torch.randn(plan.images, plan.side, plan.side, generator=generator_for(torch.device("cpu"), 0, "noise"))
        radius = torch.fft.fftfreq(plan.side, 1 / plan.side).square()
        pink = torch.fft.ifft2(torch.fft.fft2(white) / (1 + radius[:, None] + radius)).real
        return [Signal((0.5 + 0.2 * each / each.std())[..., None], "noise images") for each in pink]
    images = data.load("celeba_gray64", root=run.data_root).splits["train"][0][VALIDATION:, 0]
    return [Signal(torch.from_numpy(each / 255.0)[..., None], "faces of CelebA") for each in images[: plan.images]]


def family_of(name: str, effort: str, run: Run) -> Family | None:
    """A network as the figures name it; none where published weights are missing or do not fit the effort."""
    width = PLANS[effort].width
    if name == META:
        path = data_root(run.data_root) / "published" / "siren_maml_celeba.npz"
        if width != 256 or not path.exists():
            return None
        return Family.point(published_siren(path).as_module(), name=META)
    if name == RELU:
        build = functools.partial(builder("coordinate_mlp"), depth=4, width=width)
    elif name.startswith("FFN-"):
        sigma = float(name.removeprefix("FFN-"))
        build = functools.partial(
            builder("coordinate_mlp"), encoding="gaussian", sigma=sigma, features=width, width=width
        )
    else:
        build = functools.partial(builder("siren"), omega=float(name.removeprefix("SIREN-")), shift=0.5, width=width)
    return Family.initialised(build, name=name)


def dictionary_of(family: Family, effort: str, run: Run) -> Dictionary:
    """Measured on all images, from the weights that are trained too."""
    return dictionary(family, faces(effort, run), draws=PLANS[effort].draws, seed=0, run=run.shared)


def reconstructions(family: Family, effort: str, run: Run, *, long: bool) -> tuple[tuple[int, ...], np.ndarray]:
    """Train from every draw on half of the pixels of every image.

    Returns:
        Iterations looked at, and PSNR in decibels (draw, iteration, split, image), splits being test and train.
    """
    plan, signals = PLANS[effort], faces(effort, run)
    at = tuple(step for step in LATER if step <= plan.longest) if long else FIRST
    signals = signals[: plan.few] if long else signals
    draws = 1 if family.law == "point" else plan.few_starts if long else plan.starts
    return at, psnr_along(family, signals, at, draws, run, seed=0)


def psnr_along(
    family: Family, signals: Sequence[Signal], at: tuple[int, ...], draws: int, run: Run, *, seed: int
) -> np.ndarray:
    """PSNR in decibels after some iterations on half of the pixels (draw, iteration, split, image), splits being test and train."""
    recipe = dataclasses.replace(DESCENT if family.name == META else ADAM, steps=at[-1])
    exact = dataclasses.replace(run, precision="float64", folder=None)
    whole = SignalTask.of(list(signals), held_out=0.5, seed=0, run=run)
    networks = functools.cache(lambda: family.draw(draws, seed=seed, run=exact))

    def trained(key: str) -> Outcome:
        draw, first = (int(word) for word in key.split() if word.isdigit())
        members = list(range(first, min(first + TOGETHER, len(signals))))
        one = networks().member(draw).to(run.torch_device, torch.float32)
        task = whole.select(members)
        walk = fit(joined([one] * len(members), one), task, recipe, seed=0, run=run, keep_at=at)
        looked: list[list[Tensor]] = [
            [psnr_of(walk.at(step), task, split, run=run) for split in ("test", "train")] for step in at
        ]
        return {"psnr": torch.stack([torch.stack(each) for each in looked])}  # (K, S, m)

    starts = range(0, len(signals), TOGETHER)
    trials = Trials(
        "reconstructions",
        run.shared,
        code=trained,
        at=whole.grid,
        family=family,
        signals=whole,
        recipe=recipe,
        steps=at,
        draws=draws,
        seed=seed,
    )
    rows = [
        torch.cat([one["psnr"] for one in trials.outcomes([f"draw {d} from {s}" for s in starts], trained)], -1)
        for d in range(draws)
    ]
    return torch.stack(rows).numpy()


@dataclasses.dataclass(frozen=True)
class Study:
    """Dictionaries and trainings of several networks.

    Attributes:
        dictionaries: By name.
        psnr: By name, then by iteration, (draw, split, image).
    """

    dictionaries: dict[str, Dictionary]
    psnr: dict[str, dict[int, np.ndarray]]

    @property
    def iterations(self) -> list[int]:
        """All that were looked at."""
        return sorted(next(iter(self.psnr.values())))

    def test(self, name: str, step: int) -> np.ndarray:
        """PSNR on the pixels held out (draw, image)."""
        return self.psnr[name][step][:, 0]

    def table(self, names: Sequence[str], step: int, split: int = 0) -> np.ndarray:
        """Means over draws (image, network)."""
        return np.stack([self.psnr[name][step][:, split].mean(0) for name in names], 1)

    def scores(self, names: Sequence[str], by: str, step: int) -> np.ndarray:
        """What the kernels say, of the draws and images that were trained for so many iterations (image, network)."""
        columns = []
        for name in names:
            draws, _, images = self.psnr[name][step].shape
            columns.append(self.dictionaries[name].score(by)[:draws, :images].mean(0))
        return np.stack(columns, 1)

    def agreement(self, names: Sequence[str], by: str, step: int, split: int = 0) -> Estimate:
        """Rank correlation over networks of a score and the PSNR, both averaged over draws and images."""
        psnr = [self.psnr[name][step][:, split] for name in names]
        shapes = [each.shape for each in psnr]
        kernels = [
            self.dictionaries[name].score(by)[:draws, :images]
            for name, (draws, images) in zip(names, shapes, strict=True)
        ]
        return resampled_draws_and_images(spearman, kernels, psnr)

    def removed(self, name: str, step: int, split: int = 1) -> Estimate:
        """Share of the squared error of the untrained network that training removes, in percent, on the pixels of a split."""
        psnr = self.psnr[name][step][:, split]
        start = self.psnr[name][0][: len(psnr), split, : psnr.shape[1]]
        return over_signals(removed(start, psnr))


def resampled_draws_and_images(
    statistic: Callable[..., float], *tables: Sequence[np.ndarray], resamples: int = 500
) -> Estimate:
    """A statistic of the means of networks, with its percentile interval over resampled initial weights and images.

    Args:
        statistic: Of one array (network,) for each table.
        tables: For each quantity, an array (draw, image) for each network. All share their images; draws are independent.
        resamples: How often.

    Returns:
        The statistic; its spread is unknown where a network has one draw alone, or all resamples agree.

    Example:
        >>> steady = [np.full((2, 3), value) for value in (1.0, 2.0, 4.0)]
        >>> resampled_draws_and_images(spearman, steady, steady)
        1 (spread unknown)
    """
    value = statistic(*(np.array([each.mean() for each in table]) for table in tables))
    if any(len(each) < 2 for table in tables for each in table):
        return Estimate(value)
    generator = np.random.default_rng(0)
    means: list[list[list[float]]] = []  # (resample, table, network)
    for _ in range(resamples):
        images = generator.integers(0, min(each.shape[1] for table in tables for each in table), tables[0][0].shape[1])
        means.append(
            [
                [each[generator.integers(0, len(each), len(each))][:, images].mean() for each in table]
                for table in tables
            ]
        )
    found = of_rows(statistic, [np.array(rows) for rows in zip(*means, strict=True)])
    return Estimate(value) if agree(found) else Estimate.from_draws(value, found)


def study(names: Sequence[str], effort: str, run: Run, *, long: bool) -> Study:
    """Measure and train; networks whose weights are missing are left out."""
    dictionaries: dict[str, Dictionary] = {}
    psnr: dict[str, dict[int, np.ndarray]] = {}
    for name in names:
        if (family := family_of(name, effort, run)) is None:
            continue
        dictionaries[name] = dictionary_of(family, effort, run)
        at, found = reconstructions(family, effort, run, long=False)
        psnr[name] = {step: found[:, place] for place, step in enumerate(at)}
        if long:
            at, found = reconstructions(family, effort, run, long=True)
            psnr[name] |= {step: found[:, place] for place, step in enumerate(at) if step not in FIRST}
    return Study(dictionaries, psnr)


# What the kernels say: the name of the score, its part of a key, and its words.
_SCORES = (("concentration", "concentration", "concentration"), ("predicted", "predicted_psnr", "predicted PSNR"))


def _numbers(found: Study, steps: Sequence[int]) -> dict[str, Number]:
    """What is quoted of every network, and how well the kernel ranks those that start at random."""
    statistics: dict[str, Number] = {}
    random = [name for name in found.psnr if name != META]
    for name, each in found.dictionaries.items():
        statistics[f"{snake(name)}_concentration_of_the_energy"] = over_signals(each.concentration).named(
            f"{name}: concentration of the energy"
        )
        statistics[f"{snake(name)}_predicted_psnr_db"] = over_signals(each.predicted_psnr).named(
            f"{name}: predicted PSNR", "dB"
        )
        for step in steps:
            if step in found.psnr[name]:
                statistics[f"{snake(name)}_test_psnr_after_{step}_iterations_db"] = over_signals(
                    found.test(name, step)
                ).named(f"{name}: test PSNR after {step} iterations", "dB")
    for name in found.psnr:
        for step in (step for step in steps if step in found.psnr[name]):
            statistics[f"{snake(name)}_error_removed_after_{step}_iterations"] = found.removed(name, step).named(
                f"{name}: share of the training error removed after {step} iterations", "%"
            )
    for step in (step for step in steps if step in found.iterations):
        for by, stem, words in _SCORES:
            statistics[f"rank_correlation_of_{stem}_and_test_psnr_after_{step}_iterations"] = found.agreement(
                random, by, step
            ).named(f"rank correlation of {words} and test PSNR after {step} iterations")
        statistics[f"mean_rank_correlation_of_single_images_predicted_psnr_after_{step}_iterations"] = rank_agreement(
            found.scores(random, "predicted", step).T, found.table(random, step).T
        ).named(f"mean rank correlation of single images, predicted PSNR, after {step} iterations")
    return statistics


def _lead(first: np.ndarray, *others: np.ndarray) -> Estimate:
    """How far a network (draw, image) is ahead of the best of others on average."""
    best = max(others, key=lambda each: float(each.mean()))
    return over_signals(first - best)


def _settings(effort: str) -> dict[str, object]:
    return {
        **dataclasses.asdict(PLANS[effort]),
        "seed": 0,
        "data": "noise" if effort == "smoke" else _DATA,
        "optimiser": _OPTIMISERS,
        "held-out share": 0.5,
        "ridge": "the best",
    }


_DATA, _OPTIMISERS = "CelebA, grey, centre crop", "Adam 1e-4; meta-learned: GD 1e-2"
#: Appendix C.4.
_PUBLISHED = {"data": _DATA, "side": 64, "images": 100, "width": 256, "optimiser": _OPTIMISERS, "held-out share": 0.5}


_LENGTH = (
    "The text does not say how long the networks of figure 5.5 were trained. Figure 5.7 shows 10 iterations and figure C.2 is after 3; "
    "rank correlations are quoted for 3, 10, 30, 100 and more iterations, those beyond 10 for fewer initial weights. "
    "Their intervals are over initial weights and images."
)
_PREVIEW = "Tolerances were set after networks had been trained on four images of 16 × 16 and 32 × 32 pixels, not at this size."
_OVERLAP = "Whether the published weights were meta-learned on some of these faces is not known."


def _energy_arrays(found: Study, step: int) -> dict[str, np.ndarray]:
    arrays = {"thresholds": next(iter(found.dictionaries.values())).thresholds}
    for name, each in found.dictionaries.items():
        arrays[f"energy: {name}, {found.test(name, step).mean():.1f} dB"] = each.energy
    return arrays


def _drawn_energy(finding: Finding, dark: bool) -> Figure:
    energies = finding.arrays_of("energy")
    apart = [name for name in energies if name.startswith((RELU, META))]
    return energy_figure(finding.arrays["thresholds"], energies, apart=apart, dark=dark)


@old_figure(
    "5.5",
    title="Energy of faces above a threshold of the eigenvalues, with the test PSNR after 10 iterations",
    show=_drawn_energy,
    published=_PUBLISHED,
)
def figure_55(effort: str, run: Run) -> Finding:
    """Energies, and trainings from half of the pixels."""
    found = study((RELU, *SIRENS, META), effort, run, long=True)
    statistics = _numbers(found, (3, *LATER))
    areas = {name: found.dictionaries[name].concentration for name in found.psnr}
    for stem, words, table in (
        ("best_test_psnr", "best test PSNR", [found.test(name, 10) for name in SIRENS]),
        ("largest_concentration", "largest concentration", [areas[name] for name in SIRENS]),
    ):
        statistics[f"omega0_of_the_{stem}"] = resampled_draws_and_images(
            lambda x: OMEGAS[int(x.argmax())], table
        ).named(f"ω₀ of the {words}")
    for other in ("SIREN-5", "SIREN-100"):
        lead = _lead(found.test("SIREN-40", 10), found.test(other, 10))
        statistics[f"siren_40_minus_{snake(other)}_db"] = lead.named(f"SIREN-40 minus {other}", "dB")
        statistics[f"concentration_siren_40_minus_{snake(other)}"] = _lead(areas["SIREN-40"], areas[other]).named(
            f"concentration, SIREN-40 minus {other}"
        )
    worst = min((found.test(name, 10) for name in SIRENS), key=lambda each: float(each.mean()))
    statistics["next_minus_relu_mlp_db"] = _lead(worst, found.test(RELU, 10)).named("next minus ReLU-MLP", "dB")
    if META in found.psnr:
        others = [name for name in found.psnr if name != META]
        tests = [found.test(name, 10) for name in others]
        statistics |= {
            "siren_30_meta_minus_the_best_other_db": _lead(found.test(META, 10), *tests).named(
                "SIREN-30-Meta minus the best other", "dB"
            ),
            "concentration_siren_30_meta_minus_the_best_other": _lead(
                areas[META], *(areas[name] for name in others)
            ).named("concentration, SIREN-30-Meta minus the best other"),
        }
    return Finding(statistics, _energy_arrays(found, 10), _settings(effort), (_LENGTH, _PREVIEW, _OVERLAP))


def _curve_arrays(found: Study, steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Iterations, means and standard errors by split and name."""
    arrays = {}
    for name in found.psnr:
        for place, split in enumerate(("test", "train")):
            numbers = [over_signals(found.psnr[name][step][:, place]) for step in steps]
            rows = [steps, [each.value for each in numbers], [each.standard_error for each in numbers]]
            arrays[f"{split}: {name}"] = np.array(rows, float)
    return arrays


def _drawn_curves(finding: Finding, dark: bool) -> Figure:
    errors = {name: each[2] for name, each in finding.arrays_of("test").items()}
    return psnr_figure(finding.curves_of("test"), errors=errors, apart=(RELU, META), dark=dark)


@old_figure(
    "5.7",
    title="Test PSNR over the first ten iterations",
    show=_drawn_curves,
    published=_PUBLISHED,
)
def figure_57(effort: str, run: Run) -> Finding:
    """The same trainings, iteration by iteration."""
    found = study((RELU, *SIRENS, META), effort, run, long=False)
    statistics = _numbers(found, (3, 10))
    random = (RELU, *SIRENS)
    for by, stem, words in _SCORES:
        statistics[f"rank_correlation_of_{stem}_and_training_psnr_after_10_iterations"] = found.agreement(
            random, by, 10, split=1
        ).named(f"rank correlation of {words} and training PSNR after 10 iterations")
    worst = min((found.psnr[name][10][:, 1] for name in SIRENS), key=lambda each: float(each.mean()))
    statistics["next_minus_relu_mlp_training_db"] = _lead(worst, found.psnr[RELU][10][:, 1]).named(
        "next minus ReLU-MLP, training", "dB"
    )
    if META in found.psnr:
        lead = _lead(found.psnr[META][3][:, 1], *(found.psnr[name][3][:, 1] for name in random))
        statistics["siren_30_meta_minus_the_best_other_training_after_3_iterations_db"] = lead.named(
            "SIREN-30-Meta minus the best other, training, after 3 iterations", "dB"
        )
    for name in found.psnr:
        for step in (3, 10):
            statistics[f"{snake(name)}_training_psnr_after_{step}_iterations_db"] = over_signals(
                found.psnr[name][step][:, 1]
            ).named(f"{name}: training PSNR after {step} iterations", "dB")
    return Finding(statistics, _curve_arrays(found, FIRST), _settings(effort), (_PREVIEW, _OVERLAP))


_SHOWN = (RELU, "SIREN-5", "SIREN-30", "SIREN-100", "FFN-1", "FFN-10")


def _drawn_atoms(finding: Finding, dark: bool) -> Figure:
    return atoms_figure(finding.arrays_of("atoms"), dark=dark)


def face_components(effort: str, run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of other faces than those looked at, upright and upside down, rows of unit length."""
    if effort == "smoke":
        return components(np.stack([each.values[..., 0].numpy() for each in faces(effort, run)]))
    return components(data.load("celeba_gray64", root=run.data_root).splits["train"][0][:VALIDATION, 0] / 255.0)


def _ratio_of_means(first: np.ndarray, second: np.ndarray) -> float:
    return float(first.mean() / second.mean())


@old_figure(
    "5.6",
    title="First atoms of networks at initialisation",
    show=_drawn_atoms,
    published={name: _PUBLISHED[name] for name in ("data", "side", "width")},
)
def figure_56(effort: str, run: Run) -> Finding:
    """Eigenfunctions of the kernel, their frequencies, and how much of faces the first ten hold."""
    names = tuple(dict.fromkeys((*_SHOWN, *SIRENS, META)))
    families = {name: family_of(name, effort, run) for name in names}
    found = {name: dictionary_of(each, effort, run) for name, each in families.items() if each is not None}
    frequency = {name: each.frequency.mean(1) for name, each in found.items()}  # (draw,)
    statistics = {
        f"{snake(name)}_mean_frequency_of_the_first_atoms_cycles": over(each).named(
            f"{name}: mean frequency of the first atoms, cycles"
        )
        for name, each in frequency.items()
    }
    table = np.stack([frequency[name] for name in SIRENS], 1)  # (draw, ω₀)
    each_draw = [spearman(row, np.array(OMEGAS)) for row in table]
    statistics["rank_correlation_of_omega0_and_frequency"] = over(each_draw, within=(-1.0, 1.0)).named(
        "rank correlation of ω₀ and frequency"
    )
    statistics["frequency_omega0_100_over_omega0_5"] = over(table[:, -1] / table[:, 0], within=(0.0, np.inf)).named(
        "frequency, ω₀ = 100 over ω₀ = 5"
    )
    upright, upside_down = face_components(effort, run)
    flat = np.stack([each.flat[:, 0].double().numpy() for each in faces(effort, run)])
    centred = flat - flat.mean(1, keepdims=True)
    held = {}
    for name in (META, "SIREN-30"):
        if name in found:
            atoms = found[name].atoms
            held[name] = ((centred @ atoms[:10].T) ** 2).sum(1) / (centred**2).sum(1)
            statistics[f"{snake(name)}_energy_of_faces_on_the_first_10_atoms"] = over(
                held[name], within=(0.0, 1.0)
            ).named(f"{name}: energy of faces on the first 10 atoms")
            shares = [((atoms @ each.T) ** 2).sum(1) for each in (upright, upside_down)]
            statistics[f"{snake(name)}_likeness_to_faces"] = bootstrapped(
                _ratio_of_means, *shares, resamples=500
            ).named(f"{name}: likeness to faces")
    if len(held) > 1:
        statistics["energy_of_faces_on_the_first_10_atoms_meta_minus_random"] = over(
            held[META] - held["SIREN-30"]
        ).named("energy of faces on the first 10 atoms, meta-learned minus random")
    arrays = {f"atoms: {name}": found[name].atoms.reshape(-1, *found[name].atom_shape) for name in _SHOWN}
    notes = (
        "The meta-learned row is a figure of its own, 5.6 meta-learned.",
        "Likeness to faces was first measured as energy of faces on the first ten atoms, where the published weights have 0.01 times "
        "that of a random SIREN: their first hundred eigenvalues are nearly equal, and faces lie on the first five hundred atoms. The "
        "control by faces upside down was chosen when this had been seen.",
        "Atoms are mirrored at their edges before their frequencies are taken. This, too, was chosen later: jumps between the edges of "
        "smooth atoms had counted as high frequencies, and the rank correlation was 0.85.",
    )
    return Finding(statistics, arrays, _settings(effort), notes)


@old_figure(
    "C.2",
    title="Energy of faces above a threshold for Fourier feature networks, with the test PSNR after 3 iterations",
    show=_drawn_energy,
    published=_PUBLISHED,
)
def figure_c2(effort: str, run: Run) -> Finding:
    """Energies and three iterations of networks behind random Fourier features."""
    found = study(tuple(PUBLISHED), effort, run, long=False)
    statistics = _numbers(found, (3, 10))
    published = np.array(list(PUBLISHED.values()))
    statistics["rank_correlation_of_measured_and_published_psnr"] = resampled_draws_and_images(
        lambda x: spearman(x, published), [found.test(name, 3) for name in PUBLISHED]
    ).named("rank correlation of measured and published PSNR")
    notes = (
        "The meta-learned FFN of the figure (17.31 dB) has no published weights.",
        "PSNR after 3 iterations starts from what the random network says: other draws of weights differ by about a decibel. "
        "Figure C.2 draws compares the published numbers with single draws.",
        _PREVIEW,
    )
    return Finding(statistics, _energy_arrays(found, 3), _settings(effort), notes)


#: Pixels along a side, images, draws that are trained, and draws of these whose kernels are taken.
_SINGLE = {"smoke": (10, 2, 2, 2), "laptop": (32, 8, 32, 32), "paper": (64, 100, 32, 32)}
_SINGLE_SEED = 1  # means over draws from seed 0 had been seen when the claims were written


def small_faces(effort: str, run: Run) -> list[Signal]:
    """Faces of the figure of single draws: blocks of pixels are averaged where its side is smaller."""
    side, count, _, _ = _SINGLE[effort]
    if effort == "smoke":
        return faces(effort, run)[:count]
    images = data.load("celeba_gray64", root=run.data_root).splits["train"][0][VALIDATION : VALIDATION + count, 0]
    block = images.shape[-1] // side
    small = (images / 255.0).reshape(count, side, block, side, block).mean((2, 4))
    return [Signal(torch.from_numpy(each)[..., None], "faces of CelebA") for each in small]


def _distance_in_deviations(values: np.ndarray, published: float) -> float:
    spread = values.std(ddof=1) if np.ptp(values) > 1e-9 else np.nan  # one draw, resampled
    return float(abs(published - values.mean()) / spread)


def _drawn_draws(finding: Finding, dark: bool) -> Figure:
    reading = "A dot is one draw of the initial weights, a mean over images. A diamond is the published number."
    picture, colours = blank(3.3, reading), PALETTE[dark]
    axes = panel(picture, dark, ylabel="test PSNR after 3 iterations, dB")
    for place, name in enumerate(PUBLISHED):
        values = finding.arrays[f"psnr: {name}"]
        spread = place + 0.16 * np.linspace(-1, 1, len(values))
        axes.scatter(spread, values, s=12, color=colours.lines[0], alpha=0.6, linewidths=0)
        axes.plot(place + np.array([-0.25, 0.25]), [values.mean()] * 2, color=colours.lines[0], linewidth=2)
        axes.plot(place, PUBLISHED[name], "D", color=colours.ink, markersize=6)
    axes.set_xticks(range(len(PUBLISHED)), list(PUBLISHED))
    return picture


@old_figure(
    "C.2 draws",
    title="Test PSNR after 3 iterations of Fourier feature networks, one draw of the initial weights at a time",
    show=_drawn_draws,
    published=_PUBLISHED,
)
def figure_c2_draws(effort: str, run: Run) -> Finding:
    """Three iterations from many draws, each compared with the published numbers by itself."""
    side, count, draws, kernels = _SINGLE[effort]
    signals, run = small_faces(effort, run), run.shared
    statistics: dict[str, Number] = {}
    levels, areas = {}, {}
    for name, published in PUBLISHED.items():
        family = family_of(name, effort, run)
        assert family is not None  # none of these has published weights
        psnr = psnr_along(family, signals, (0, 3), draws, run, seed=_SINGLE_SEED)  # (draw, iteration, split, image)
        levels[name] = psnr[:, 1, 0].mean(-1)
        areas[name] = dictionary(family, signals, draws=kernels, seed=_SINGLE_SEED, run=run).concentration.mean(-1)
        statistics |= {
            f"{snake(name)}_test_psnr_after_3_iterations_db": over(levels[name]).named(
                f"{name}: test PSNR after 3 iterations", "dB"
            ),
            f"{snake(name)}_deviation_of_a_draw_db": Estimate(float(levels[name].std(ddof=1))).named(
                f"{name}: standard deviation of single draws", "dB"
            ),
            f"{snake(name)}_published_psnr_in_deviations_of_a_draw": bootstrapped(
                functools.partial(_distance_in_deviations, published=published), levels[name]
            ).named(f"{name}: distance of the published PSNR from our mean, in deviations of a draw"),
            f"{snake(name)}_error_removed_after_3_iterations": over_signals(
                removed(psnr[:, 0, 1], psnr[:, 1, 1])
            ).named(f"{name}: share of the training error removed after 3 iterations", "%"),
        }
    each = [
        spearman(
            np.array([areas[name][draw] for name in PUBLISHED]), np.array([levels[name][draw] for name in PUBLISHED])
        )
        for draw in range(kernels)
    ]
    statistics["rank_correlation_of_a_draw_after_3_iterations"] = over(each, within=(-1.0, 1.0)).named(
        "rank correlation of concentration and test PSNR after 3 iterations in a draw"
    )
    settings = {**_settings(effort), "side": side, "images": count, "draws": kernels, "starts": draws}
    settings |= {"few": 0, "longest": 3, "few_starts": 0, "seed": _SINGLE_SEED}
    notes = (
        "The thesis does not say how many draws its numbers are from. Draws differ by a decibel or more, so that means over draws say "
        "little about one of them.",
        "Draw i of all six networks makes one experiment like the published one. At laptop effort images have 32 × 32 pixels.",
        "The kernels of the first eight draws left the rank correlation open (0.38, −0.06 to 0.82), so all draws have one since then.",
    )
    arrays = {f"psnr: {name}": values for name, values in levels.items()}
    arrays |= {f"concentration: {name}": values for name, values in areas.items()}
    return Finding(statistics, arrays, settings, notes)
