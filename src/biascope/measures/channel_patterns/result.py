"""WHAT: the patterns that channels detect, how strongly, and their label statistics."""

# draws of a network · K channels · P patterns

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from typing_extensions import override

from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, bootstrapped, over, spearman
from biascope.results.result import Result
from biascope.results.story import Sentence, Step, Story, model_word
from biascope.results.wording import significant, snake
from biascope.tasks.pattern_ratios import detection, detection_ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VOTES, MASS = "votes", "detection mass"


@dataclass(frozen=True, repr=False)
class ChannelPatterns(Result):
    """What the channels of a first convolution detect among given patterns.

    Attributes:
        names: Names of the patterns.
        markers: The two that mark the positive and the negative label, for the ratios; none without statistics.
        control: What the control networks are, "" for none.
        pixels: The patterns.
        statistics: Label statistics ``s_i``; nan if unknown.
        presence: Share of images that contain the pattern; nan without images.
        responses: ``w_k·p_i + b_k``, after BatchNorm where it follows, before the activation.
        weights: What the output makes of a channel, in units of the mean magnitude over channels; nan if no output was named.
        consistency: How far that has one sign over inputs and places, 0 to 1.
        control_responses: The same of control networks.
        control_weights: The same of control networks.
    """

    names: tuple[str, ...]
    markers: tuple[str, ...]
    control: str
    pixels: np.ndarray
    statistics: np.ndarray
    presence: np.ndarray
    responses: np.ndarray
    weights: np.ndarray
    consistency: np.ndarray
    control_responses: np.ndarray
    control_weights: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pixels": ("pattern", "colour", "row", "column"),
        **dict.fromkeys(("statistics", "presence"), ("pattern",)),
        "responses": ("draw", "channel", "pattern"),
        **dict.fromkeys(("weights", "consistency"), ("draw", "channel")),
        "control_responses": ("control", "control channel", "pattern"),
        "control_weights": ("control", "control channel"),
    }

    @property
    def weighted(self) -> bool:
        """Whether channels have weights."""
        return bool(np.isfinite(self.weights).all())

    @property
    def labelled(self) -> bool:
        """Whether patterns have label statistics, and channels weights to hold against them."""
        return self.weighted and bool(np.isfinite(self.statistics).all())

    @property
    def detected(self) -> np.ndarray:
        """The pattern of the largest response where that is positive, the first of several; else −1 (draw, channel)."""
        return np.where(self.responses.max(2) > 0, self.responses.argmax(2), -1)

    @property
    def selectivity(self) -> np.ndarray:
        """``(best − second)/norm`` of the responses after a ReLU: 1 where one pattern alone excites (draw, channel)."""
        active = np.sort(np.maximum(self.responses, 0), axis=2)
        norm = np.linalg.norm(active, axis=2)
        return np.asarray((active[:, :, -1] - active[:, :, -2]) / np.where(norm > 0, norm, 1.0))

    @property
    def detectors(self) -> np.ndarray:
        """How many channels detect each pattern (draw, pattern)."""
        return np.asarray(_detections(self.responses).sum(1))

    @property
    def strength(self) -> np.ndarray:
        """Mean response of the channels that detect a pattern, 0 where none does (draw, pattern)."""
        hits = _detections(self.responses)
        return np.asarray((hits * self.responses).sum(1) / np.maximum(hits.sum(1), 1))

    @property
    def masses(self) -> tuple[np.ndarray, np.ndarray]:
        """``Σ |a_k|·response`` of a pattern's detectors of positive, and of negative, weight, each (draw, pattern)."""
        return _masses(self.responses, self.weights)

    @property
    def votes(self) -> np.ndarray:
        """``Σ_k a_k σ(response)`` of all channels: the effect of an input with this pattern alone (draw, pattern)."""
        return _votes(self.responses, self.weights)

    @property
    def ratios(self) -> tuple[np.ndarray, np.ndarray]:
        """Positive and negative detection ratios, each (draw, pattern), the markers in the place of p_1 and p_2.

        As in the paper, nan at the other label's marker and infinite where no channel of the right sign detects the own one.
        """
        marks = [self.names.index(name) for name in self.markers]
        order = [*marks, *(place for place in range(len(self.names)) if place not in marks)]
        found = [
            detection_ratios(detection(torch.tensor(responses[:, order]), output=torch.tensor(weights)))
            for responses, weights in zip(self.responses, self.weights, strict=True)
        ]
        positive, negative = (torch.stack(side).numpy()[:, np.argsort(order)] for side in zip(*found, strict=True))
        return positive, negative

    @functools.cached_property
    def correlations(self) -> dict[str, np.ndarray]:
        """Rank correlation, over patterns, of votes and of net detection mass with the label statistics (draw)."""
        return self._correlations(self.responses, self.weights)

    @functools.cached_property
    def control_correlations(self) -> dict[str, np.ndarray]:
        """The same of the control networks (control)."""
        return self._correlations(self.control_responses, self.control_weights)

    def _correlations(self, responses: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        plus, minus = _masses(responses, weights)
        made = {VOTES: _votes(responses, weights), MASS: plus - minus}
        return {name: np.array([spearman(row, self.statistics) for row in each]) for name, each in made.items()}

    def correlation(self, name: str) -> Estimate:
        """One of :attr:`correlations`: over draws with Student's interval; of one network, over resampled patterns."""
        each = self.correlations[name]
        if len(each) > 1:
            return _known(each)
        plus, minus = self.masses
        return _correlation_of((self.votes if name == VOTES else plus - minus)[0], self.statistics)

    def chance(self, name: str) -> float:
        """Share of networks, control and this one, whose correlation is at least as far from 0; nan without control."""
        own, others = (each[name][np.isfinite(each[name])] for each in (self.correlations, self.control_correlations))
        if not (len(own) and len(others)):
            return math.nan
        return float((1 + (np.abs(others) >= np.abs(own).mean()).sum()) / (1 + len(others)))

    @override
    def headline(self) -> dict[str, Number]:
        numbers: dict[str, Number] = {}
        for name in (VOTES, MASS) if self.labelled else ():
            numbers |= {f"{key}:{snake(name)}": number for key, number in self._correlation_numbers(name).items()}
        selectivity = over(self.selectivity.mean(1), within=(0.0, 1.0))
        numbers |= {
            "mean_selectivity": selectivity.named("mean selectivity"),
            "detecting_channels": over((self.detected >= 0).sum(1), within=(0, self.weights.shape[1])).named(
                "channels that detect a pattern"
            ),
            "detected_patterns": over((self.detectors > 0).sum(1), within=(0, len(self.names))).named(
                "patterns that are detected"
            ),
        }
        return {key: number for key, number in numbers.items() if math.isfinite(number.value)}

    def _correlation_numbers(self, name: str) -> dict[str, Number]:
        """Correlation of votes or detection mass with the label statistics, here and in the control."""
        own = {"correlation": self.correlation(name).named(f"correlation of {name} with label statistics")}
        if not self.control:
            return own
        others, chance = _known(self.control_correlations[name]), Estimate.exact(self.chance(name))
        return own | {
            "control_correlation": others.named(f"correlation of {name}, {self.control}"),
            "chance": chance.named(f"share of networks whose {name} correlate as much", SHARE),
        }

    @override
    def sentence(self) -> str:
        draws, channels = self.weights.shape
        hits, patterns = (self.detected >= 0).sum(1).mean(), (self.detectors > 0).sum(1).mean()
        if not hits:
            return f"No channel of {self.subject} detects any of {len(self.names)} patterns."
        share = f"All {channels}" if hits == channels else f"{significant(hits, 4)} of the {channels}"
        who = f"{share} channels of {self.subject} detect"
        many = f" (mean of {draws} networks)" if draws > 1 else ""
        words = f"{who} {significant(patterns)} of {len(self.names)} patterns{many}. "
        words += f"The strongest is pattern {self.names[int((self.detectors * self.strength).mean(0).argmax())]}."
        if not self.labelled:
            return words
        found = self.correlation(VOTES)
        if not math.isfinite(found.value):
            return f"{words} All votes or all label statistics are equal, so the correlation is undefined."
        words += f" The votes of its channels have a rank correlation of {found.value:.2f} with the label statistics"
        words += f" (95 % CI {found.low:.2f} to {found.high:.2f})" if math.isfinite(found.low) else ""
        chance, others = self.chance(VOTES), int(np.isfinite(self.control_correlations[VOTES]).sum())
        if others:
            as_far = round(chance * (1 + others)) - 1
            verdict = "exceeds chance" if chance <= 0.05 else "does not exceed chance"
            return f"{words}. {as_far} of {others} {self.control} correlate as much: the correlation {verdict}."
        if draws == 1:
            return f"{words}. There is no control to compare it with."
        return words + (", which is not significant." if found.contains(0.0) else ".")

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """What was found of each pattern, means over draws, and of each channel of every draw; only what is known."""
        channels = [{"draw": draw, **row} for draw in range(len(self.weights)) for row in self._channel_rows(draw)]
        return {"patterns": self._pattern_rows(), "channels": channels}

    def _pattern_rows(self) -> list[dict[str, Any]]:
        plus, minus = self.masses
        columns: dict[str, np.ndarray] = {"channels": self.detectors.mean(0), "strength": self.strength.mean(0)}
        if self.weighted:
            columns |= {"mass_for": plus.mean(0), "mass_against": minus.mean(0), "vote": self.votes.mean(0)}
        if np.isfinite(self.presence).all():
            columns["presence"] = self.presence
        if np.isfinite(self.statistics).all():
            columns["statistic"] = self.statistics
        if self.labelled and self.markers and len(self.names) > 2:
            sides = (side.mean(0) for side in self.ratios)
            pairs = zip(("positive_ratio", "negative_ratio"), sides, strict=True)
            columns |= {
                key: each for key, each in pairs if np.isfinite(each).any()
            }  # else no network detects the marker
        return [
            {"pattern": name, **{key: float(each[place]) for key, each in columns.items()}}
            for place, name in enumerate(self.names)
        ]

    def _channel_rows(self, draw: int) -> list[dict[str, Any]]:
        found = self.detected[draw]
        return [
            {
                "channel": channel,
                "pattern": self.names[found[channel]] if found[channel] >= 0 else "none",
                "response": float(self.responses[draw, channel].max()),
                "selectivity": float(self.selectivity[draw, channel]),
                **({"weight": float(self.weights[draw, channel])} if self.weighted else {}),
                **({"consistency": float(self.consistency[draw, channel])} if self.weighted else {}),
            }
            for channel in range(len(found))
        ]

    def table(self, most: int = 40) -> str:
        """Patterns and channels of the first network as text, what is detected most and has the largest weight first."""
        patterns = sorted(self._pattern_rows(), key=lambda row: -row["channels"] * row["strength"])
        channels = sorted(self._channel_rows(0), key=lambda row: -abs(row.get("weight", row["response"])))
        return "\n\n".join(_text(each, most) for each in (patterns, channels))

    @override
    def story(self) -> Story:
        return Story(
            shown_tables={
                "patterns": {
                    "pattern": "Pattern",
                    "channels": "Channels that detect it (mean)",
                    "strength": "Mean response",
                    "mass_for": "Detection mass for",
                    "mass_against": "Detection mass against",
                    "vote": "Vote",
                    "presence": "Share of images with it",
                    "statistic": "Label statistic",
                }
            },
            page_title=f"Which patterns the first layer of {self.subject} detects",
            sentences=self._sentences(),
            meaning=self._meaning(),
            next_steps=self._next_steps(),
        )

    def _sentences(self) -> list[Sentence]:
        words = self.sentence()
        first, rest = words, ""
        if (at := words.find(" The votes of its channels")) >= 0:
            first, rest = words[:at], words[at + 1 :]
        found = [Sentence(first, "detected_patterns")]
        found += [Sentence(rest, "votes_by_statistic")] if rest else []
        selective = float(self.selectivity.mean())
        found.append(
            Sentence(
                f"The channels are {'hardly' if selective < 0.2 else 'moderately' if selective < 0.6 else 'highly'} selective: mean "
                f"selectivity {selective:.2f}, from 0 (all patterns alike) to 1 (one pattern alone).",
                "responses",
            )
        )
        unseen = len(self.names) - float((self.detectors > 0).sum(1).mean())
        found.append(
            Sentence(
                f"{significant(unseen)} of {len(self.names)} patterns are the favourite of no channel.", "patterns"
            )
        )
        return found

    def _meaning(self) -> str:
        words = (
            "A channel detects the pattern to which it responds most. If votes rise with the label statistics, the first layer already "
            "favours patterns that go with the label, as the theory predicts for trained networks. "
        )
        if not self.at_given_weights:
            words += (
                "Here the weights are random, so any correlation is chance: it is the baseline for trained weights. "
            )
        return (
            words
            + "Only the first convolution is measured. Later layers may use patterns that no single channel shows."
        )

    def _next_steps(self) -> list[Step]:
        found = []
        if not self.at_given_weights:
            words = "Measure trained weights and compare them with this baseline."
            found.append(Step(words, f"biascope patterns {model_word(self.subject)} --weights trained.safetensors"))
        if not self.labelled:
            words = "Give a positive class, to compare the channels with label statistics."
            found.append(
                Step(
                    words,
                    f"biascope patterns {model_word(self.subject)} --patches cifar10 --positive 0,1,8,9 --set outputs=1",
                )
            )
        return found

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        from biascope.measures.channel_patterns.pictures import responses_figure

        known = bool(np.isfinite(self.statistics).all())
        order = np.argsort(self.statistics if known else -self.detectors.mean(0), kind="stable").tolist()
        along = "label statistic, from negative to positive" if known else "number of detectors, most first"
        pictures = {
            "detected_patterns": captioned(
                "Which patterns the channels detect", self._patches_plot(order, f"patterns by {along}", dark)
            )
        }
        if self.labelled:
            pictures["votes_by_statistic"] = captioned(
                "Votes of the channels against label statistics", self._statistics_plot(dark)
            )
        pictures["responses"] = captioned(
            "Responses of the channels of the first network to the patterns",
            responses_figure(self.responses[0], order, dark=dark),
        )
        return pictures

    def _patches_plot(self, order: list[int], along: str, dark: bool) -> Figure:
        from biascope.measures.channel_patterns.pictures import patches_figure

        reading = "Bars are the responses of the channels that detect a pattern"
        words: dict[str, Any] = {"order": order, "along": along, "names": self.names, "dark": dark}
        if not self.weighted:
            bars = {"detected": (self.detectors * self.strength).mean(0)}
            return patches_figure(self.pixels, bars, value="detection mass", reading=f"{reading}.", **words)
        plus, minus = (each.mean(0) for each in self.masses)
        bars, dots = {"detection mass for": plus, "and against": -minus}, {"vote of all channels": self.votes.mean(0)}
        reading += (
            ", times their weight. Bars point up where they raise the output. Diamonds are the votes of all channels."
        )
        return patches_figure(self.pixels, bars, dots, value="response × weight", reading=reading, **words)

    def _statistics_plot(self, dark: bool) -> Figure:
        from biascope.measures.channel_patterns.pictures import statistics_figure

        (plus, minus), draws = self.masses, len(self.weights)
        panels = {}
        for name, label, each in ((VOTES, "vote", self.votes), (MASS, "net detection mass", plus - minus)):
            own, errors = self.correlation(name), each.std(0, ddof=1) / math.sqrt(draws) if draws > 1 else None
            note = f"rank correlation {own.value:.2f}"
            note += f" ({own.low:.2f} to {own.high:.2f})" if math.isfinite(own.low) else ""
            note += f"; control {_known(self.control_correlations[name]).value:.2f}" if self.control else ""
            panels[label] = (each.mean(0), errors, note)
        reading = "Each dot is a pattern. If dots rise to the right, channels vote for patterns that occur with the positive class."
        reading += " Bars are 95 % intervals over networks." if draws > 1 else ""
        return statistics_figure(self.statistics, panels, reading=reading, dark=dark)


def _detections(responses: np.ndarray) -> np.ndarray:
    """Which channel detects which pattern (draw, channel, pattern)."""
    best = responses.argmax(2)[:, :, None] == np.arange(responses.shape[2])
    return np.asarray(best & (responses > 0))


def _masses(responses: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    heavy = _detections(responses) * responses
    plus, minus = (np.einsum("dk,dkp->dp", np.maximum(sign * weights, 0), heavy) for sign in (1, -1))
    return plus, minus


def _votes(responses: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("dk,dkp->dp", weights, np.maximum(responses, 0)))


def _known(values: np.ndarray) -> Estimate:
    """The mean of correlations that exist: a network that detects nothing has none."""
    finite = values[np.isfinite(values)]
    return over(finite, within=(-1.0, 1.0)) if len(finite) else Estimate(math.nan)


@functools.lru_cache(maxsize=8)
def _resampled(first: bytes, second: bytes) -> Estimate:
    return bootstrapped(spearman, np.frombuffer(first), np.frombuffer(second), resamples=1000)


def _correlation_of(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Kept, because a report asks for it several times."""
    return _resampled(np.asarray(first, np.float64).tobytes(), np.asarray(second, np.float64).tobytes())


def _text(rows: list[dict[str, Any]], most: int) -> str:
    """Rows as aligned columns."""
    cells = [
        [name.replace("_", " ") for name in rows[0]],
        *([_cell(value) for value in row.values()] for row in rows[:most]),
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(lines + [f"… and {len(rows) - most} more"] * (len(rows) > most))


def _cell(value: Any) -> str:
    if isinstance(value, str | int):
        return str(value)
    return "–" if math.isnan(value) else "∞" if math.isinf(value) else significant(value)
