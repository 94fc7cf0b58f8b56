"""The page of the atlas from its rows: tables to browse, what differs between families of architectures, and a picture.

    python docs/make_atlas.py        # seconds

Writes docs/atlas.md and docs/images/atlas.png from src/biascope/results/atlas.csv.
"""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from biascope.results import atlas, draw
from biascope.results.atlas import QUANTITIES, Peer
from biascope.results.estimate import Estimate, bootstrapped
from biascope.results.wording import listed, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parent
KINDS = {
    "image": "Images, 3×32×32",
    "sequence": "Sequences, 24 steps of 3 features",
    "token": "Token models, 16 positions",
    "table": "Tables, 14 features",
}
FAMILIES = {
    "convolutional": "convolution nets",
    "transformer": "transformers",
    "mixer": "mixers",
    "MLP": "MLPs",
    "recurrent": "recurrent nets",
    "other": "others",
}
#: Quantities by which families are compared, and what more of each is.
COMPARED = {
    "rank_share": ("spread over more directions", "directions"),
    "low_frequencies": ("prefer smooth patterns more", "energy at low frequencies"),
    "complexity": ("are more complex", "cycles"),
    "mean_dimension_of_16": ("have a larger mean dimension", "places"),
    "shift_error": ("react to shifts more", "standard deviations per pixel"),
    "favourite_share": ("favour one class more", "of inputs"),
}
_LEAST = 6  # networks of a family that is compared
_LEVEL = 0.05  # of all comparisons together
_NAMED = (
    "lenet",
    "vit",
    "mlp",
    "vgg11",
    "logistic_regression",
    "timm:resnet10t",
    "timm:mobilenetv2_035",
    "timm:mobilevit_xxs",
)


def page() -> str:
    """The whole page."""
    rows = atlas.rows()
    counts = listed([f"{sum(row.kind == kind for row in rows)} {words}" for kind, words in _COUNTED.items()])
    tables = "\n".join(_table(kind, [row for row in rows if row.kind == kind]) for kind in KINDS)
    return f"""# Atlas of untrained networks

*How does my network compare with others?*

Made by `python docs/make_atlas.py`; do not edit it by hand.

{_wrapped(f"The atlas has the cards of {len(rows)} networks at their initial weights: {counts}.")} A scan places
a network among those that take the same kind of input, in a sentence such as

```text
lenet is more complex than 65 to 75 % of 60 untrained image networks of the atlas.
```

![Image networks of the atlas by two rows of their cards](images/atlas.png)

{_wrapped(f"*{_READING}*")}

## Do transformers, mixers and convolution nets differ?

{_differ(rows)}

{_means(rows)}
Intervals are over networks, from a bootstrap. A difference is told where a permutation test finds it at the level of 5 % for all
comparisons together (Holm). The networks were chosen by hand, and many are relatives. So this is about networks like these, and not
about every network with attention.

## What a placement says

- **The share** counts networks of the atlas with a smaller number. Its two ends are the shares at the ends of the 95 % interval of
  your network's number. The numbers of the atlas have errors too, which are not part of it.
- **Same kind of input.** A network is placed among networks for images, sequences, tokens or tables. There must be at least
  {atlas.LEAST} of them, and the network itself is not one. An interval that covers most of the population is not told.
- **Same measurement.** Both are at initial weights and in evaluation mode, at inputs whose numbers have variance 1. The first output
  is read.
- **Other shapes.** Shares, complexity and the mean dimension over equally many places are compared where one input has at most eight
  times as many numbers as the other. The sentence then names the shape of the atlas. Shift errors are compared at the same size
  alone, and so are lags. The share of a favourite class is compared where chance gives the same share.

## What it does not say

It does not say that a network is good, or how it does on a data set. A population of small networks at 32×32 pixels is not that of all
networks. Its numbers are about initial weights.

{tables}
## How it was made

```bash
python benchmarks/atlas.py --folder FOLDER           # resumes; a minute for each network on one core
python benchmarks/atlas.py --folder FOLDER --write   # the rows of the package
python docs/make_atlas.py                            # this page
```

Numbers are estimated as a [scan](report.md) does, with fewer draws: 16 to 400 networks for the mean gradient, 8 to 24 for each other
quantity. The file `atlas.csv` of the package has for each number its interval and draws, and for each network versions and date:
{_made(rows)}.

A number is left out where it would take too long or cannot be measured. It is also left out where the ends of its interval differ by
a factor of more than 4, or by more than 30 points for a share. So large networks have fewer numbers. The energy on 5 % of all
frequencies is that of those which half of the draws chose, measured on the other half. It grows with the number of draws, so no
network is placed by it.
"""


_COUNTED = {"image": "for images", "sequence": "for sequences", "token": "for tokens", "table": "for tables"}
_READING = (
    "Each dot is an untrained image network, with its 95 % intervals. Up: its output bends more often between two inputs. Left panel: "
    "how much of its mean gradient lies below a quarter of the highest spatial frequency. Right panel: how much a shift changes its "
    "output, in standard deviations. Dashed lines are a random linear function."
)


def _wrapped(words: str) -> str:
    return textwrap.fill(words, 136, break_long_words=False, break_on_hyphens=False)


def _differ(rows: Sequence[Peer]) -> str:
    if told := differences(rows):
        return "\n".join(f"- {words}" for words in told)
    if not (found := comparisons(rows)):
        return "The atlas has too few image networks of two families."
    chance, together, words = found[0]
    return _wrapped(
        f"Not so that {len(found)} comparisons of {listed([FAMILIES[family] for family in _families(rows)])} would show it. Nearest to "
        f"it, with p = {chance:.2g} alone and p = {together:.2g} over all comparisons, is: {words}"
    )


def _families(rows: Sequence[Peer]) -> list[str]:
    return [family for family in FAMILIES if len(_values(rows, "complexity", family)) >= _LEAST]


def _made(rows: Sequence[Peer]) -> str:
    versions = sorted({part for row in rows for part in row.versions.split(", ")})
    dates = sorted({row.date for row in rows})
    return f"{listed(versions)}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"


def _table(kind: str, rows: Sequence[Peer]) -> str:
    """The networks of a kind of input."""
    shown = [key for key in QUANTITIES if any(key in row.numbers for row in rows) and key != "favourite_by_chance"]
    head = [
        "network",
        "family",
        "parameters",
        *(f"{QUANTITIES[key].title}{' in %' * QUANTITIES[key].share}" for key in shown),
    ]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        cells = [_cell(row.numbers.get(key), share=QUANTITIES[key].share) for key in shown]
        lines.append([f"`{row.name}`", row.group, short(row.parameters), *cells])
    return f"## {KINDS[kind]}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(number: Estimate | None, *, share: bool) -> str:
    if number is None:
        return "—"
    ends = [100 * each if share else each for each in (number.value, number.low, number.high)]
    value, low, high = (f"{each:.3g}" for each in ends)
    return f"{value} ({low} to {high})"


def comparisons(rows: Sequence[Peer]) -> list[tuple[float, float, str]]:
    """Each two families of image networks by each quantity: chance, the same over all comparisons (Holm), and a sentence."""
    found = []
    for key, (one, other) in itertools.product(COMPARED, itertools.combinations(FAMILIES, 2)):
        values = [_values(rows, key, family) for family in (one, other)]
        if min(map(len, values)) < _LEAST:
            continue
        (less, lower), (more, higher) = sorted(zip((one, other), values, strict=True), key=lambda pair: pair[1].mean())
        told = [_told(bootstrapped(np.mean, each), share=QUANTITIES[key].share) for each in (higher, lower)]
        words, unit = COMPARED[key]
        start = f"{FAMILIES[more][:1].upper()}{FAMILIES[more][1:]} {words} than {FAMILIES[less]}"
        found.append((_chance(*values), f"**{start}**: {told[0]} against {told[1]} {unit} on average."))
    found.sort()
    together = itertools.accumulate((chance * (len(found) - place) for place, (chance, _) in enumerate(found)), max)
    return [
        (chance, min(1.0, all_of_them), words) for (chance, words), all_of_them in zip(found, together, strict=True)
    ]


def differences(rows: Sequence[Peer]) -> list[str]:
    """Where two families of image networks differ, in sentences."""
    return [words for _, together, words in comparisons(rows) if together <= _LEVEL]


def _values(rows: Sequence[Peer], key: str, family: str) -> np.ndarray:
    return np.array(
        [row.numbers[key].value for row in rows if row.kind == "image" and row.group == family and key in row.numbers]
    )


def _chance(one: np.ndarray, other: np.ndarray, orders: int = 20_000) -> float:
    """How often families that do not differ have means as far apart."""
    generator, together = np.random.default_rng(0), np.concatenate([one, other])
    mixed = generator.permuted(np.tile(together, (orders, 1)), axis=1)
    apart = np.abs(mixed[:, : len(one)].mean(1) - mixed[:, len(one) :].mean(1))
    return (1 + int((apart >= abs(one.mean() - other.mean()) - 1e-12).sum())) / (1 + orders)


def _told(number: Estimate, *, share: bool) -> str:
    factor, unit = (100, " %") if share else (1, "")
    value, low, high = (f"{factor * each:.3g}" for each in (number.value, number.low, number.high))
    return f"{value}{unit} (95 % CI {low} to {high})"


def _means(rows: Sequence[Peer]) -> str:
    """Means of families with their intervals, in a table."""
    known = _families(rows)
    head = [
        "mean over networks",
        *(f"{FAMILIES[family]} ({len(_values(rows, 'complexity', family))})" for family in known),
    ]
    lines = [head, ["---"] * len(head)]
    for key in COMPARED:
        cells = []
        for family in known:
            values = _values(rows, key, family)
            cells.append(
                _cell(bootstrapped(np.mean, values), share=QUANTITIES[key].share) if len(values) >= _LEAST else "—"
            )
        lines.append([f"{QUANTITIES[key].title}{' in %' * QUANTITIES[key].share}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def picture(rows: Sequence[Peer], dark: bool = False) -> Figure:
    """Image networks by complexity, beside the share of energy at low frequencies and the shift error."""
    images = [row for row in rows if row.kind == "image" and "complexity" in row.numbers]
    figure, palette = draw.blank(4.6, _READING), draw.PALETTE[dark]
    figure.set_size_inches(9.2, 4.6)
    grid = figure.add_gridspec(1, 2)
    families = [family for family in FAMILIES if any(row.group == family for row in images)]
    colours = dict(zip(families, draw.line_colours(len(families), dark), strict=True))
    left = None
    for column, (key, words, factor, even) in enumerate(_ACROSS):
        axes = draw.panel(figure, dark, grid[0, column], sharey=left)
        left = left or axes
        shown = [row for row in images if key in row.numbers]
        for family, colour in colours.items():
            own = [row for row in shown if row.group == family]
            x, y = ([row.numbers[name] for row in own] for name in (key, "complexity"))
            at = [factor * each.value for each in x], [each.value for each in y]
            reach = _reach(x, factor), _reach(y, 1)
            axes.errorbar(*at, *reach[::-1], fmt="none", ecolor=colour, alpha=0.25, linewidth=0.8)
            count = sum(row.group == family for row in images)
            axes.plot(*at, "o", markersize=5, color=colour, label=f"{FAMILIES[family]} ({count})")
        for row in shown:
            if row.name in _NAMED:
                at = factor * row.numbers[key].value, row.numbers["complexity"].value
                style = {"textcoords": "offset points", "fontsize": 8, "color": palette.ink}
                axes.annotate(_title(row.name), at, (4, 4), **style)
        axes.axhline(_LINEAR, linestyle="--", linewidth=1, color=palette.muted, zorder=0)
        axes.axvline(even, linestyle="--", linewidth=1, color=palette.muted, zorder=0)
        axes.set(xscale="log", xlabel=words, ylabel="" if column else "complexity, cycles")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter("")
    style = {"frameon": False, "fontsize": 9, "labelcolor": palette.ink, "ncols": len(families)}
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", **style)
    return figure


def _reach(numbers: Sequence[Estimate], factor: float) -> np.ndarray:
    ends = [(each.value - each.low, each.high - each.value) for each in numbers]
    return factor * np.array(ends).reshape(-1, 2).T


_LINEAR = 0.5182923831522024  # complexity of a linear function
_EVEN = 45 / 1024  # of the frequencies of 32 × 32 pixels lie below a quarter of the highest


_INPUTS = 0.853  # change of smooth inputs of 32 × 32 pixels under a shift by one, which a random linear function has
_ACROSS = (
    ("low_frequencies", "energy at low frequencies, %", 100, 100 * _EVEN),
    ("shift_error", "change under a shift by one pixel", 1, _INPUTS),
)


def _title(name: str) -> str:
    return name.rpartition(":")[2].partition(" ")[0].replace("_", " ")


def stale(docs: Path = DOCS) -> bool:
    """Whether the page is not what the rows of today give."""
    path = docs / "atlas.md"
    return not path.exists() or path.read_text(encoding="utf-8") != page()


def main() -> None:
    """Write the page and draw the picture."""
    (DOCS / "atlas.md").write_text(page(), encoding="utf-8")
    picture(atlas.rows()).savefig(DOCS / "images" / "atlas.png", dpi=130, facecolor="#fefdfb")


if __name__ == "__main__":
    sys.exit(main())
