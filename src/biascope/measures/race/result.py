"""WHAT: a race of architectures: probability of being best, drop-outs, and the cost of each candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from biascope.results.draw import captioned
from biascope.results.estimate import Estimate, Number
from biascope.results.result import Badge, Result, Sentence, Step
from biascope.results.wording import listed, percent, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAY_BE_BEST = 0.05  # probability from which an undecided race names a candidate
LIMIT = "The race predicts the most accurate network after full training from the held-out losses so far."


@dataclass(frozen=True, repr=False)
class Race(Result):
    """A race of candidates on one data set.

    Attributes:
        names: The candidates, as given.
        looks: Iterations after which the race was judged.
        merits: ``(candidate, look)`` minus the logarithm of the held-out loss; NaN after a candidate dropped out.
        chances: ``(candidate, look)`` probability of being best; 0 after a candidate dropped out.
        curves: ``(candidate, window)`` mean training loss of consecutive windows; NaN after a candidate dropped out.
        steps: The iteration that ends each window.
        out_at: Iterations after which a candidate dropped out, −1 for one that did not.
        diverged: Whether its loss was not finite.
        parameters: Trainable numbers.
        flops: Floating-point operations of one forward pass.
        layers: Layers with weights.
        total: Iterations of the whole training.
        sure: Probability at which the race is decided.
        data: The data set, in words.
    """

    names: tuple[str, ...]
    looks: np.ndarray
    merits: np.ndarray
    chances: np.ndarray
    curves: np.ndarray
    steps: np.ndarray
    out_at: np.ndarray
    diverged: np.ndarray
    parameters: np.ndarray
    flops: np.ndarray
    layers: np.ndarray
    total: int
    sure: float
    data: str

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("merits", "chances"), ("candidate", "look")),
        **dict.fromkeys(("out_at", "diverged", "parameters", "flops", "layers"), ("candidate",)),
        "curves": ("candidate", "window"),
        "looks": ("look",),
        "steps": ("window",),
    }

    shown_tables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "candidates": {
            "candidate": "Candidate",
            "probability_of_being_best": "Probability of being best, %",
            "held_out_loss": "Held-out loss",
            "out_after_iterations": "Dropped out after iterations",
            "parameters": "Parameters",
            "flops": "FLOPs of a forward pass",
            "layers": "Layers with weights",
        }
    }

    @property
    def subject(self) -> str:  # noqa: D102
        return f"{len(self.names)} candidates on {self.data}"

    @property
    def share(self) -> float:
        """Of the training, that was spent on those that stayed."""
        return float(self.looks[-1]) / self.total

    @property
    def probability(self) -> np.ndarray:
        """Of each candidate to be best, when the race ended."""
        found: np.ndarray = self.chances[:, -1]
        return found

    @property
    def decided(self) -> bool:
        """Whether one candidate is best with the probability asked for."""
        return bool(self.probability.max() >= self.sure)

    @property
    def order(self) -> list[int]:
        """The candidates, the most probable first; of those that dropped out, the later one and then the better one first."""
        lasted = np.where(self.out_at < 0, self.total + 1, self.out_at)
        return sorted(range(len(self.names)), key=lambda i: (self.diverged[i], -lasted[i], -self._last_merit(i)))

    def _last_merit(self, index: int) -> float:
        known = self.merits[index][np.isfinite(self.merits[index])]
        return float(known[-1]) if len(known) else -np.inf

    @property
    def work(self) -> float:
        """Iterations spent on all candidates together, as a share of training each of them to the end."""
        spent = np.where(self.out_at < 0, self.looks[-1], self.out_at)
        return float(spent.sum()) / (self.total * len(self.names))

    def headline(self) -> dict[str, Number]:  # noqa: D102
        found = {
            f"probability_of_being_best:{name}": Estimate(float(chance)).named(
                f"{name}: probability of being best", "share"
            )
            for name, chance in zip(self.names, self.probability, strict=True)
        }
        return {
            **found,
            "share_spent": Estimate.exact(self.work).named(
                "share of the full training of all candidates that was spent", "share"
            ),
        }

    def sentence(self) -> str:  # noqa: D102
        spent = f"{percent(self.share)} of the training ({self.looks[-1]:,} of {self.total:,} iterations)"
        first = self.order[0]
        gone = [self.names[i] for i in range(len(self.names)) if self.diverged[i]]
        diverged = f" {listed(gone)} diverged and dropped out." if gone else ""
        if self.decided:
            return (
                f"{self.names[first]} is the best of {len(self.names)} candidates on {self.data} with probability "
                f"{_shown(self.probability[first])}. The race used {spent}.{diverged} {LIMIT}"
            )
        maybe = [i for i in self.order if self.probability[i] >= MAY_BE_BEST]
        names = listed([f"{self.names[i]} ({_shown(self.probability[i])})" for i in maybe])
        advice = "" if self.looks[-1] >= self.total else " Pass a larger --share to resume from here."
        return (
            f"The race is not decided. After {spent}, {len(maybe)} of {len(self.names)} candidates may be best on {self.data}: {names}."
            f"{advice}{diverged} {LIMIT}"
        )

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Candidates, the most probable first: probability, loss, when each dropped out; and their size."""
        rows = [
            {
                "candidate": self.names[i],
                "probability_of_being_best": float(self.probability[i]),
                "held_out_loss": float(np.exp(-self._last_merit(i))) if np.isfinite(self._last_merit(i)) else None,
                "out_after_iterations": int(self.out_at[i]) if self.out_at[i] >= 0 else None,
                "diverged": bool(self.diverged[i]),
                "parameters": int(self.parameters[i]),
                "flops": int(self.flops[i]),
                "layers": int(self.layers[i]),
            }
            for i in self.order
        ]
        return {"candidates": rows}

    def facts(self) -> dict[str, Any]:
        """Whether the race is decided, who won it, and who may be best."""
        maybe = [self.names[i] for i in self.order if self.probability[i] >= MAY_BE_BEST]
        winner = self.names[self.order[0]] if self.decided else None
        return {"decided": self.decided, "winner": winner, "may_be_best": maybe}

    def table(self) -> str:
        """The candidates as text, the most probable first, and their size apart."""
        width = max(map(len, (*self.names, "candidate")))
        lines = [
            f"{'candidate':{width}}{'P(best)':>11}{'held-out loss':>15}{'out after':>16}  |"
            f"{'parameters':>12}{'FLOPs':>9}{'layers':>8}"
        ]
        for row in self.tables()["candidates"]:
            out = "" if row["out_after_iterations"] is None else f"{row['out_after_iterations']:,} iterations"
            loss = "diverged" if row["held_out_loss"] is None or row["diverged"] else f"{row['held_out_loss']:.3g}"
            size = f"{short(row['parameters']):>12}{short(row['flops']):>9}{row['layers']:>8}"
            best = _shown(row["probability_of_being_best"])
            lines.append(f"{row['candidate']:{width}}{best:>11}{loss:>15}{out:>16}  |{size}")
        return "\n".join(lines)

    def page_title(self) -> str:  # noqa: D102
        return f"Which of {len(self.names)} networks learns {self.data.partition(',')[0]} best?"

    def badge(self) -> Badge:  # noqa: D102
        return Badge("decided", "good") if self.decided else Badge("not decided", "fair")

    def sentences(self) -> list[Sentence]:  # noqa: D102
        found = [Sentence(self.sentence().replace(f" {LIMIT}", ""), "probability_of_being_best")]
        losses = [row for row in self.tables()["candidates"] if row["held_out_loss"] is not None]
        if losses:
            best = min(losses, key=lambda row: float(row["held_out_loss"]))
            words = f"{best['candidate']} had the lowest held-out loss when it was last evaluated: {best['held_out_loss']:.3g}."
            found.append(Sentence(words, "losses"))
        spent = f"All candidates together used {percent(self.work)} of the iterations that training each of them to the end would take"
        return [*found, Sentence(f"{spent}.", "candidates")]

    def meaning(self) -> str:  # noqa: D102
        return (
            f"The probability says how likely a candidate is to have the lowest held-out loss, given its curve so far. {LIMIT} Size is "
            "shown beside it because a larger network may win only because it is larger."
        )

    def next_steps(self) -> list[Step]:  # noqa: D102
        from biascope import networks

        known = [name for name in self.names if name in networks.names()] or ["MODELS"]
        command = f"biascope match {' '.join(known)} --data {self.data.partition(',')[0]} --race --share {min(1.0, 2 * self.share):.2g}"
        if self.decided:
            return [Step("Train the winner to the end with your own recipe. The race stops early on purpose.")]
        return [Step("Let the race run longer. It resumes where it stopped.", command)]

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        return {
            "losses": captioned("Losses of the candidates", self._curves_figure(dark)),
            "probability_of_being_best": captioned("Probability of being best", self._chances_figure(dark)),
        }

    def _curves_figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        reading = "Lines are training losses, dots are held-out losses. The thick line leads at the end. A cross marks a drop-out."
        figure = draw.blank(3.4, reading)
        axes, colours = draw.panel(figure, dark), draw.PALETTE[dark]
        leader = self.order[0]
        for index in reversed(self.order):
            known = np.isfinite(self.curves[index])
            first = index == leader
            style: dict[str, Any] = {
                "color": colours.lines[0] if first else colours.muted,
                "linewidth": 2.4 if first else 0.9,
            }
            label = draw.plain(self.names[index], 32) if first else None
            axes.plot(self.steps[known], self.curves[index][known], label=label, **style)
            there = np.isfinite(self.merits[index])
            held_out = np.exp(-self.merits[index][there])
            axes.plot(self.looks[there], held_out, "o", color=style["color"], markersize=4.5 if first else 2.5)
            if self.out_at[index] >= 0 and known.any():
                axes.plot(
                    self.steps[known][-1], self.curves[index][known][-1], "x", color=colours.lines[1], markersize=6
                )
        known = np.concatenate([self.curves[np.isfinite(self.curves)], np.exp(-self.merits[np.isfinite(self.merits)])])
        wide = bool(known.size and known.max() > 3 * known.min() > 0)
        axes.set(xlabel=f"iteration of {self.total:,}", ylabel="loss", yscale="log" if wide else "linear")
        draw.legend_below(figure, axes, dark)
        return figure

    def _chances_figure(self, dark: bool) -> Figure:
        from biascope.results import draw

        shown = self.order[:20]
        reading = (
            f"Probability of being best at the end of the race. At {percent(self.sure)} (dashed) the race is decided."
        )
        figure = draw.blank(1.4 + 0.3 * len(shown), reading)
        axes, colours = draw.panel(figure, dark), draw.PALETTE[dark]
        axes.barh(range(len(shown)), [100 * self.probability[i] for i in shown], color=colours.lines[0], height=0.6)
        axes.axvline(100 * self.sure, color=colours.muted, linestyle="--", linewidth=1.2)
        axes.set_yticks(range(len(shown)), [draw.plain(self.names[i], 32) for i in shown])
        axes.invert_yaxis()
        axes.set(xlabel="probability of being best, %", xlim=(0, 100))
        return figure


def _shown(probability: float) -> str:
    """In whole percent, without saying 0 or 100 of what is not certain."""
    if probability < 0.005:
        return "< 1 %"
    return "> 99 %" if probability > 0.995 else f"{100 * probability:.0f} %"
