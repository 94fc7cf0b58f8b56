"""WHAT: networks ranked for one signal before any training, with warnings, and the check by training."""

# s sizes · a candidates · D draws · t times · k frequencies · K iterations

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from biascope.results import signal_pictures as pictures
from biascope.results.draw import captioned
from biascope.results.estimate import Estimate, Number, over, spearman
from biascope.results.result import Result
from biascope.results.story import Sentence, Step, Story
from biascope.results.wording import listed, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MUCH_SLOW, MUCH_MISSED, MUCH_BEYOND = 0.2, 0.01, 0.01  # shares of energy from which on there is a warning
LISTED = 3  # candidates that a warning names
STABLE = 0.8  # rank correlation of the two sizes below which the order is not called stable
_AXES = {"siren": "ω₀ of the SIREN", "ffn": "σ of the FFN"}
CAVEAT = "This ranking comes from the tangent kernel at the initial weights, before training. Pass --check to train the candidates."


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """Candidate networks for one signal, the best first.

    Attributes:
        signal: Its name.
        sizes: Points along each of its axes.
        channels: Numbers at each point.
        names: The candidates.
        kinds: Kind of each candidate: ``siren``, ``ffn``, ``relu``, …; candidates of a kind differ in one number.
        values: That number; nan where there is none.
        models: How ``biascope inr fit`` is told to train each.
        points: Sizes of the kernels, the larger one last: the ranking is by that.
        iterations: Numbers of training iterations; the ranking is for the last.
        times: Times of gradient flow.
        course: PSNR on points held out that the kernel predicts, the best up to these times, in decibels.
        pace: The time that an iteration stands for.
        learned: Share of the signal's energy on atoms that are learned at these times.
        covered: Share of the signal's energy on frequencies that the harmonics of a fixed mapping reach; 1 where it is
            learned, or random.
        missed: The strongest frequency that is not reached, in cycles over each axis, in words; empty where there is none.
        frequencies: In cycles over the longest side.
        between: Share of the energy of the kernel's prediction on a grid twice as fine, on each frequency.
        beyond: Share of it beyond the Nyquist frequency of the signal.
        nyquist: That frequency.
        trained: PSNR on points held out of trained networks, in decibels, nan for one that diverged; ``None`` without a check.
        preview: The signal as a small picture, bytes; empty where it is no image, and in results of earlier versions.
    """

    signal: str
    sizes: tuple[int, ...]
    channels: int
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: np.ndarray
    models: tuple[str, ...]
    points: tuple[int, ...]
    iterations: tuple[int, ...]
    times: np.ndarray
    course: np.ndarray
    pace: np.ndarray
    learned: np.ndarray
    covered: np.ndarray
    missed: tuple[str, ...]
    frequencies: np.ndarray
    between: np.ndarray
    beyond: np.ndarray
    nyquist: float
    trained: np.ndarray | None
    preview: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0), np.uint8))

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "values": ("candidate",),
        "times": ("time",),
        "course": ("size", "candidate", "draw", "time"),
        "pace": ("candidate", "draw"),
        "learned": ("candidate", "draw", "time"),
        "covered": ("candidate",),
        "frequencies": ("frequency",),
        "between": ("candidate", "frequency"),
        "beyond": ("candidate",),
        "trained": ("iteration", "candidate"),
        "preview": ("row", "column", "colour"),
    }

    @property
    @override
    def subject(self) -> str:
        return f"{len(self.names)} networks for {self.signal}"

    def at_iteration(self, table: np.ndarray, step: float) -> np.ndarray:
        """A table (…, candidate, draw, time) after so many iterations, between times on a logarithmic scale."""
        flat, at = table.reshape(-1, *table.shape[-3:]), np.log(step * self.pace)
        found = [
            [[np.interp(t, np.log(self.times), y) for t, y in zip(*c, strict=True)] for c in zip(at, one, strict=True)]
            for one in flat
        ]
        return np.array(found).reshape(table.shape[:-1])

    @property
    def predicted(self) -> np.ndarray:
        """Predicted PSNR after the last iteration (size, candidate, draw)."""
        return self.at_iteration(self.course, self.iterations[-1])

    @property
    def slow(self) -> np.ndarray:
        """Share of the signal's energy that is not learned after the last iteration (candidate)."""
        return np.asarray(1 - self.at_iteration(self.learned, self.iterations[-1]).mean(1))

    def ranked(self) -> Advice:
        """The same, the best candidate first."""
        order = np.argsort(-self.predicted[-1].mean(1), kind="stable")
        changed: dict[str, Any] = {
            name: tuple(getattr(self, name)[i] for i in order) for name in ("names", "kinds", "models", "missed")
        }
        for name, axes in self.axes.items():
            if "candidate" in axes and getattr(self, name) is not None:
                changed[name] = getattr(self, name).take(order, axes.index("candidate"))
        return dataclasses.replace(self, **changed)

    @property
    def level(self) -> list[bool]:
        """Which candidates other initial weights may put in front: the interval of their distance to the first holds 0."""
        predicted = self.predicted[-1]
        behind = [over(each) for each in predicted[0] - predicted]
        return [place == 0 or (math.isfinite(gap.low) and gap.low <= 0) for place, gap in enumerate(behind)]

    @property
    def places(self) -> list[str]:
        """Ranks as they are shown everywhere: ``"1"``, and with a ``"="`` for those that may rank first as well."""
        return [f"{index + 1}{'=' if level and index else ''}" for index, level in enumerate(self.level)]

    @property
    def stability(self) -> float:
        """Rank correlation of the orders at the two sizes."""
        small, large = self.predicted.mean(2)
        return spearman(small, large)

    def score(self, index: int, size: int = -1) -> Estimate:
        """Predicted PSNR of a candidate, with its interval over initial weights and windows."""
        return over(self.predicted[size, index])

    def agreement(self) -> dict[int, float]:
        """Rank correlation of predicted and trained order, by iteration, each predicted for itself; who diverged is last."""
        if self.trained is None:
            return {}
        found = np.where(np.isfinite(self.trained), self.trained, -np.inf)
        return {
            step: spearman(self.at_iteration(self.course[-1], step).mean(1), row)
            for step, row in zip(self.iterations, found, strict=True)
        }

    @override
    def headline(self) -> dict[str, Number]:
        found = {
            f"predicted_psnr:{self._word(index)}": self.score(index).named(
                f"rank {place}: {name}, predicted PSNR", "dB"
            )
            for index, (place, name) in enumerate(zip(self.places, self.names, strict=True))
        }
        if len(self.names) > 1 and math.isfinite(self.stability):
            words = f"rank correlation of the rankings on {self.points[0]:,} and {self.points[-1]:,} points"
            found["stability"] = Estimate(self.stability).named(words)
        for step, value in self.agreement().items():
            if math.isfinite(value):
                words = f"rank correlation of predicted and trained ranking after {step} iterations, {len(self.names)} networks"
                found[f"agreement:{step}"] = Estimate(value).named(words)
        return found

    def _word(self, index: int) -> str:
        """A candidate as ``--candidates`` has it: ``siren=30``, ``relu``."""
        kind, value = self.kinds[index], float(self.values[index])
        return f"{kind}={value:g}" if math.isfinite(value) else kind

    @override
    def sentence(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """The advice in plain words, without the warnings."""
        best, others = self.score(0), [name for name, level in zip(self.names, self.level, strict=True) if level][1:]
        told = f"For {self.signal} and {self.iterations[-1]:,} iterations, use {self.names[0]}. "
        told += (
            f"Its predicted PSNR on held-out points is {best.value:.1f} dB (from the tangent kernel, without training)"
        )
        if others:
            more = [f"{len(others) - LISTED} others"] if len(others) > LISTED + 1 else others[LISTED:]
            told += f". With other initial weights, {listed([*others[:LISTED], *more])} may rank first"
        if len(self.names) > 1:
            told += f". {self.names[-1]} ranks last with {self.score(len(self.names) - 1).value:.1f} dB"
            told += f". {self._on_stability()}"
        else:
            told += "."
        return f"{told} {self._on_training()}"

    def _on_stability(self) -> str:
        sizes = f"{self.points[0]:,} and {self.points[-1]:,} points"
        if not math.isfinite(self.stability):
            return f"Kernels on {sizes} do not distinguish the candidates."
        words = f"The rankings on {sizes} have a rank correlation of {self.stability:.2f}."
        return words if self.stability >= STABLE else f"{words} This is low: do not rely on small differences in rank."

    def _on_training(self) -> str:
        if self.trained is None:
            return CAVEAT
        last, value = self.iterations[-1], self.agreement()[self.iterations[-1]]
        best = int(np.nanargmax(self.trained[-1])) if np.isfinite(self.trained[-1]).any() else 0
        agrees = f"is {value:.2f}" if math.isfinite(value) else "is undefined"
        return (
            f"The {len(self.names)} candidates were trained for {last} iterations. The rank correlation of the trained and the "
            f"predicted ranking {agrees}. The best trained network is {self.names[best]} with a trained PSNR of "
            f"{self.trained[-1, best]:.1f} dB."
        )

    @property
    def warnings(self) -> list[str]:
        """Warnings in plain words, the first candidate first."""
        found = [*super().warnings, self._at_the_edge()]
        for index, name in enumerate(self.names):
            if self.covered[index] < 1 - MUCH_MISSED:
                found.append(
                    f"{name}: {percent(1 - self.covered[index])} of the energy lies on frequencies that no harmonic of its mapping "
                    f"reaches. The strongest is {self.missed[index]}. Training cannot recover them."
                )
        if slow := self._above(self.slow, MUCH_SLOW):
            found.append(
                f"Uncovered: part of the energy is not learned after {self.iterations[-1]:,} iterations: {slow}. Train these networks "
                "for longer, or their reconstructions may stay blurred."
            )
        if beyond := self._above(self.beyond, MUCH_BEYOND):
            found.append(
                f"Aliasing: part of the energy predicted between the samples lies beyond the Nyquist frequency of "
                f"{self.nyquist:g} cycles: {beyond}. Do not evaluate these networks on a finer grid."
            )
        return [words for words in found if words]

    def _above(self, shares: np.ndarray, least: float) -> str:
        """Candidates with more than a share, in words: the first few of the ranking, and how many others."""
        found = [f"{name} ({percent(share)})" for name, share in zip(self.names, shares, strict=True) if share > least]
        others = f"{len(found) - LISTED} others (see the table)"
        return listed(found if len(found) <= LISTED + 1 else [*found[:LISTED], others]) if found else ""

    def _at_the_edge(self) -> str:
        """A sentence if the best value of a kind lies at the end of the tried range."""
        alike = [value for kind, value in zip(self.kinds, self.values, strict=True) if kind == self.kinds[0]]
        first = self.values[0]
        if len(alike) < 3 or min(alike) < first < max(alike):
            return ""
        end, more = ("largest", 2 * first) if first == max(alike) else ("smallest", first / 2)
        return (
            f"{self.names[0]} ranks first and is the {end} of its kind that was tried. Extend the range with --candidates "
            f"{self.kinds[0]},{self.kinds[0]}={more:g}."
        )

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Candidates in their order and, with a check, what their trainings gave after so many iterations."""
        slow, level, fewer = self.slow, self.level, f"predicted PSNR from {self.points[0]:,} points"
        trained = [math.nan] * len(self.names) if self.trained is None else self.trained[-1].tolist()
        networks = [
            {
                "place": index + 1,
                "rank": self.places[index],
                "network": name,
                "candidate": self._word(index),
                "model": self.models[index],
                "predicted_psnr": self.score(index).named("predicted PSNR", "dB"),
                "predicted_psnr_on_fewer_points": self.score(index, 0).named(fewer, "dB"),
                "trained_psnr": Estimate(trained[index]).named("trained PSNR", "dB")
                if math.isfinite(trained[index])
                else None,
                "level_with_first": level[index],
                "energy_not_learned": float(slow[index]),
                "energy_covered": float(self.covered[index]),
                "energy_beyond_nyquist": float(self.beyond[index]),
            }
            for index, name in enumerate(self.names)
        ]
        if self.trained is None:
            return {"networks": networks}
        trainings = [
            {
                "network": name,
                "candidate": self._word(index),
                "iterations": step,
                "trained_psnr": Estimate(float(row[index])).named("trained PSNR", "dB"),
            }
            for index, name in enumerate(self.names)
            for step, row in zip(self.iterations, self.trained, strict=True)
        ]
        return {"networks": networks, "trainings": trainings}

    def facts(self) -> dict[str, Any]:
        """The advice in words, and the rank correlations of its orders: of two sizes, and with training by iteration."""
        return {"summary": self.summary(), "stability": self.stability, "agreement": self.agreement()}

    def table(self) -> str:
        """The ranking as text."""
        width = max(map(len, (*self.names, "network")))
        trained = np.zeros((0, len(self.names))) if self.trained is None else self.trained
        sizes = [f"{count:,} points" for count in reversed(self.points)]
        above = f"rank   {'':{width}}{'predicted PSNR, dB, from':>32}{'energy':>20}"
        head = f"       {'network':{width}}{sizes[0]:>16}{sizes[1]:>16}{'unlearned':>11}{'aliased':>9}"
        steps = [step for step, _ in zip(self.iterations, trained, strict=False)]
        above += f"{'trained PSNR, dB, after iterations':>{max(36, 14 * len(steps))}}" if steps else ""
        lines = [above, head + "".join(f"{step:>14,}" for step in steps)]
        slow, places = self.slow, self.places
        for index, name in enumerate(self.names):
            score, small = self.score(index), self.score(index, 0)
            spread = f" ± {score.standard_error:.1f}" if math.isfinite(score.standard_error) else ""
            shares = f"{percent(round(slow[index], 3)):>11}{percent(round(self.beyond[index], 3)):>9}"
            after = "".join(
                f"{each:>14.1f}" if math.isfinite(each) else f"{'diverged':>14}" for each in trained[:, index]
            )
            first = f"{places[index]:<7}{name:{width}}{f'{score.value:.1f}{spread}':>16}{small.value:>16.1f}"
            lines.append(f"{first}{shares}{after}")
        return "\n".join(lines)

    @override
    def story(self) -> Story:
        return Story(
            shown_tables={
                "networks": {
                    "rank": "Rank (=: may be first)",
                    "network": "Network",
                    "predicted_psnr": "Predicted PSNR (kernel, all points)",
                    "predicted_psnr_on_fewer_points": "Predicted PSNR (kernel, a quarter of the points)",
                    "trained_psnr": "Trained PSNR (check)",
                    "energy_not_learned": "Energy not learned, %",
                    "energy_beyond_nyquist": "Energy beyond Nyquist, %",
                }
            },
            page_title=f"Which network for {self.signal}?",
            sentences=self._sentences(),
            meaning=(
                "Three kinds of PSNR are shown, all on held-out points. Two are predictions of the tangent kernel of the "
                f"untrained network: from {self.points[-1]:,} points, which makes the ranking, and from {self.points[0]:,} "
                "points, which only checks that the ranking is stable. The trained PSNR, if you asked for --check, comes from a "
                "network that was really trained. Use the predictions to order networks. Do not expect the trained network to "
                "reach the predicted number, least of all after many more iterations than the ranking is for."
            ),
            next_steps=self._next_steps(),
        )

    def _sentences(self) -> list[Sentence]:
        best, others = self.score(0), [name for name, level in zip(self.names, self.level, strict=True) if level][1:]
        found = [
            Sentence(
                f"For {self.signal} and {self.iterations[-1]:,} iterations, use {self.names[0]}. Its predicted PSNR is "
                f"{best.value:.1f} dB.",
                "ranking",
            )
        ]
        if others:
            more = [f"{len(others) - LISTED} others"] if len(others) > LISTED + 1 else others[LISTED:]
            words = f"With other initial weights, {listed([*others[:LISTED], *more])} may rank first (marked =)."
            found.append(Sentence(words, "networks"))
        if len(self.names) > 1:
            found.append(Sentence(self._on_stability(), "ranking"))
        if self.trained is None:
            return [*found, Sentence(CAVEAT, "psnr_along_training")]
        return [*found, Sentence(self._on_training(), "predicted_and_trained")]

    def _next_steps(self) -> list[Step]:
        found = [
            Step("Train the first network.", f"biascope inr fit SIGNAL {self.models[0]} --steps {self.iterations[-1]}")
        ]
        if self.trained is None:
            words = "Check the ranking: train every candidate briefly and compare."
            return [Step(words, "biascope inr advise SIGNAL --check"), *found]
        return found

    def _signal_figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        height, width = self.preview.shape[:2]
        words = f"The image that the networks are ranked for, {self.sizes[0]} × {self.sizes[1]} pixels."
        figure = draw.blank(min(4.6, 0.2 + 4.4 * height / width), words)
        axes = draw.panel(figure, dark)
        shown = self.preview if self.preview.shape[2] == 3 else self.preview[..., 0]
        axes.imshow(shown, cmap="gray", vmin=0, vmax=255)
        axes.set_axis_off()
        return figure

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        last, predicted = self.iterations[-1], self.predicted
        rows = {
            f"predicted, kernel on {self.points[-1]:,} points": predicted[-1],
            f"predicted, kernel on {self.points[0]:,} points": predicted[0],
        }
        trained = {} if self.trained is None else {f"trained for {last} iterations": self.trained[-1]}
        found = (
            {"signal": captioned(f"The signal: {self.signal}", self._signal_figure(dark))} if self.preview.size else {}
        )
        found |= {
            "ranking": captioned(
                "Predicted ranking", pictures.order_figure(self.names, rows, trained, places=self.places, dark=dark)
            )
        }
        if self._curves():
            found["psnr_by_setting"] = captioned(
                "Predicted PSNR against ω₀ and σ", pictures.setting_figure(self._curves(), dark=dark)
            )
        if self.trained is not None:
            means = np.stack([self.at_iteration(self.course[-1], step).mean(1) for step in self.iterations])
            found["predicted_and_trained"] = captioned(
                "Predicted and trained PSNR", pictures.agreement_figure(means, self.trained, self.iterations, dark=dark)
            )
        # The best of each kind, and the last: readers cannot distinguish more curves than there are colours.
        shown = sorted({self.kinds.index(kind) for kind in self.kinds} | {len(self.names) - 1})
        steps = np.geomspace(1, 30 * last, 40)
        after = np.stack([self.at_iteration(self.course[-1], step).mean(1) for step in steps], 1)
        courses = {self.names[i]: (steps, after[i]) for i in shown}
        words = (
            "Predictions of the kernels for more or fewer iterations: the best network of each kind, and the last one."
        )
        found["psnr_along_training"] = captioned(
            "Predicted PSNR during training",
            pictures.psnr_figure(courses, y="predicted PSNR, dB", log_x=True, reading=words, dark=dark),
        )
        shown = sorted({0, int(self.beyond.argmax()), int(self.beyond.argmin()), len(self.names) - 1})
        between = {self.names[i]: (self.frequencies, self.between[i]) for i in shown}
        found["energy_between_samples"] = captioned(
            "Predicted energy between the samples", pictures.between_figure(between, self.nyquist, dark=dark)
        )
        return found

    def _curves(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Values and predictions (candidate, draw) of the kinds that have three or more values."""
        found, predicted = {}, self.predicted[-1]
        for kind in dict.fromkeys(self.kinds):
            places = [i for i, each in enumerate(self.kinds) if each == kind and math.isfinite(self.values[i])]
            places.sort(key=lambda i: float(self.values[i]))
            if len(places) > 2:
                found[_AXES.get(kind, kind)] = (self.values[places], predicted[places])
        return found
