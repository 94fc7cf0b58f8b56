"""SHOW: the words of reports that a newcomer may not know, marked where they stand and explained once at the end of a page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from biascope.results.wording import snake

if TYPE_CHECKING:
    from markupsafe import Markup

#: Term -> explanation. A term is found in any case, and with an "s" at its end.
TERMS = {
    "95 % CI": "Confidence interval: a range that holds the true value in 95 of 100 repetitions of the whole measurement.",
    "alignment": "How much of a target one training step of the linearised network reaches. It weighs each eigenfunction by its "
    "eigenvalue, so the first few functions decide it.",
    "anisotropy directions": "Input directions in order of how much the input gradient varies along them over random initial weights.",
    "anisotropy": "1 − effective rank / number of directions: 0 if no direction is preferred, near 1 if few are.",
    "atom": "An eigenfunction of the tangent kernel of a coordinate network: one building block of its reconstructions.",
    "average geometry": "The mean outer product of input gradients, over inputs and networks. Its large entries show along which "
    "directions the output changes most.",
    "class means": "Means of the samples of each class. Directions between them tell classes apart.",
    "coefficient": "The factor α by which the sum of all task vectors is added to the base.",
    "cosine": "Similarity of two directions: 1 the same, 0 unrelated, −1 opposite.",
    "detection mass": "Sum of the responses of the channels that detect a pattern, times their weights.",
    "disentanglement error": "ξ: how much the task vectors of two models disturb each other's predictions. 0 is none.",
    "draw": "One network with its own random initial weights.",
    "effective rank": "How many directions share the variance about evenly: 1 if all of it lies on one direction, the number of "
    "directions if it is spread evenly.",
    "effort": "How large a reproduction was: smoke only checks that it runs, laptop takes minutes to hours, paper has the published "
    "sizes.",
    "eigenfunction": "A function on the samples that the tangent kernel learns at its own speed; the first are learned fastest.",
    "eigenvalue": "Of a direction or function: how much of the variance, or of the kernel, lies along it.",
    "energy": "Squared length. The share of the energy on some frequencies, directions or functions says how much of the whole "
    "lies there.",
    "FFN": "Fourier feature network: a coordinate network on random sines and cosines whose frequencies have the spread σ.",
    "Fisher": "Directions that separate the classes best, relative to the spread within classes.",
    "fresh inputs": "Random inputs that are drawn anew for each network.",
    "frequency": "Number of waves across the image. Low frequencies are smooth patterns, high frequencies fine ones.",
    "gain": "How much a network's output changes along some directions, relative to a random direction. 1 means no preference.",
    "gradient": "How the output changes with the input: the direction of steepest change.",
    "GSG": "The data covariance S as the network sees it, G S G with the average geometry G.",
    "held-out": "Not used in training or fitting, only for testing.",
    "interference": "A task vector changes predictions on the samples of another task.",
    "label statistic": "How much more often a pattern occurs with the positive class than with the others; 0 if equally often.",
    "local energy": "How strongly the leading eigenfunctions respond at one sample.",
    "mean gradient": "The input gradient of a network, averaged over inputs: the slope of the linear function that is closest to it.",
    "noise floor": "The overlap that 999 of 1,000 pairs of random subspaces stay below. Only larger overlaps mean anything.",
    "Nyquist frequency": "The highest frequency that the samples can represent. Energy beyond it is invented.",
    "overlap": "How much two sets of leading directions have in common: 1 the same, 0 nothing.",
    "predicted PSNR": "PSNR that the tangent kernel of the untrained network predicts on held-out points. Nothing was trained for it.",
    "PSNR": "Peak signal-to-noise ratio, in decibels: 10 dB more means a tenth of the squared error.",
    "rank correlation": "Agreement of two orders: 1 the same, 0 unrelated, −1 reversed.",
    "readout": "The one number that is taken of several outputs, such as the first output or their mean.",
    "resolved": "A direction is resolved if two halves of the draws agree on it. Others cannot be distinguished from noise.",
    "score": "Of a sample: how much the output changes along it, relative to a random input. 1 means no preference.",
    "selectivity": "How much stronger a channel responds to its best pattern than to the others; from 0 to 1.",
    "SIREN": "A coordinate network with sine activations; ω₀ sets which frequencies it learns quickly.",
    "spectrum": "All eigenvalues, the largest first.",
    "standard error": "The uncertainty (±) of an estimate: its standard deviation over repetitions of the measurement.",
    "tangent kernel": "How a training step on one sample changes the output on another, at the network's present weights.",
    "task vector": "Weights of a fine-tuned model minus those of its base.",
    "tolerance": "How far a measured number may be from the published one and still count as reproduced.",
    "trained PSNR": "PSNR on held-out points of a network that was really trained, as a check of the prediction.",
    "verdict": "What the whole interval of a number says. For a claim: reproduced if the interval lies within the tolerance, "
    "not reproduced if it lies outside, else inconclusive. For a merge: whether to merge the models.",
    "vote": "Effect of a pattern on the output through all channels. Positive votes raise it, so they speak for the positive class.",
}
_OTHER_WORDS = {"95 % interval": "95 % CI"}  # explained under another term
_FOUND = re.compile(
    rf"(?<![\w-])({'|'.join(map(re.escape, sorted([*TERMS, *_OTHER_WORDS], key=len, reverse=True)))})(s?)(?![\w-])",
    re.IGNORECASE,
)
_PROPER = {term.lower(): term for term in TERMS} | _OTHER_WORDS


class Glossary:
    """Marks known terms in text and remembers which were used.

    Example:
        >>> glossary = Glossary()
        >>> print(glossary.mark("Its effective rank <is> 74."))  # doctest: +ELLIPSIS
        Its <a class="term" href="#term-effective-rank" title="How many directions share...">effective rank</a> &lt;is&gt; 74.
        >>> [term for term, _, _ in glossary.used()]
        ['effective rank']
    """

    def __init__(self) -> None:
        self._used: set[str] = set()

    def mark(self, text: str) -> Markup:
        """The text, escaped, each term linked to its explanation where it first occurs."""
        from markupsafe import Markup, escape

        seen: set[str] = set()

        def linked(match: re.Match[str]) -> str:
            term = _PROPER[match[1].lower()]
            if term in seen:
                return match[0]
            seen.add(term)
            self._used.add(term)
            about = escape(TERMS[term])
            return f'<a class="term" href="#{_place(term)}" title="{about}">{match[0]}</a>'

        return Markup(_FOUND.sub(linked, str(escape(text))))

    def used(self) -> list[tuple[str, str, str]]:
        """Terms that were marked, in the order of the alphabet, with where they are explained and the explanation."""
        return [(term, _place(term), TERMS[term]) for term in TERMS if term in self._used]


def _place(term: str) -> str:
    return f"term-{snake(term).replace('_', '-')}"
