"""Does the change that `biascope explain` foretells happen? Networks and their edits, measured untrained and then trained.

    python benchmarks/explain_foretells.py --rows FILE.jsonl [--part 0/2]      # appends a row per network, resumes
    python benchmarks/explain_foretells.py --rows FILE.jsonl [...] --keep      # rows of all parts to benchmarks/explain_foretells.json
    python benchmarks/explain_foretells.py --table [--picture FILE.png]        # the verdicts, from benchmarks/explain_foretells.json
    python benchmarks/explain_foretells.py --power                             # the correlation that the test can find
    python benchmarks/explain_foretells.py --develop --rows FILE.jsonl         # another network and other seeds, to try the script

All below was written and committed before a network of the table was measured or trained.

**Networks.** `NETWORKS`: 16 architectures for 1×16×16 inputs, built here, with PyTorch's initial weights. None is among those of
`card_foretells.py` or of the tests of `explain`. They are not a sample of all networks.

**Edits.** An edit is one line of the table of `explain` (`parts=2`, *removed* from the network). Two kinds are left out. The law of
the last layer: its replacement cannot be trained. Shuffled taps: with independent initial weights they are the same law, so nothing
is foretold. Of the others, five of each network are drawn: their order is random (seed `CHOICE`), and each kind has its first
before any has its second. A network with fewer has fewer edits.

The run has half an hour on a shared machine. It takes the networks in the order of the list, in two processes. Networks that it
does not reach are not in the table, whatever the others gave; at least 40 edits are needed.

**Foretold change**: the change of a row of the card, as `explain` measures it (96 draws, 8 inputs, seed `CARD`), of these edits
alone.

**Realised change**: the edited network is trained like the unchanged one, from the same initial weights, with the same samples in
the same order; the difference of what both learned, mean over two seeds. The constant that keeps the second moment is that of the
untrained network. A training that diverges has the accuracy of chance.

- *Low frequencies first*: Adam on D(v) (σ = 0.7, 800 samples, 120 iterations of 32, rate 0.003) along each of six cosines. The mean
  test accuracy along the three of 1 to 2.2 cycles, minus that along the three of 6.7 to 7.8.
- *Early accuracy*: Adam on MNIST, and on the ten most frequent classes of GTSRB in grey, both at 16×16 with 1,500 samples
  (iterations of 64, rate 0.003). Test accuracy after 32 iterations, mean over both sets.
- *Final accuracy*: the same after 128 iterations. It is described only.

A network is left out of the first outcome if, unedited and with either seed, no direction reaches a training accuracy of 65 %; of
the others, if its final training accuracy on a set is below 20 %.

**Hypotheses** (`HYPOTHESES`), each with its sign. The first three are theory that `card_foretells.py` found over networks. The sign
of the fourth is the one found there, against theory.

1. More energy at low frequencies: low frequencies are learned first, by more (+).
2. More complexity: a lower early accuracy (−).
3. A larger share of the favourite class: a lower early accuracy (−).
4. A larger effective rank: a higher early accuracy (+).

**Test.** Spearman's correlation over all edits between foretold and realised change. Edits of a network are not independent. So the
P-value is that of 9,999 permutations of the edits *within* each network, one-sided for the sign; four P-values are adjusted by
Holm's method. The interval is by a bootstrap over networks (percentiles of 4,000). A row *foretells* if its adjusted P-value is
below 0.05, its interval has the predicted sign only, and the size of its correlation exceeds that of the best baseline. Else
`explain` speaks of the card's sensitivity alone.

**Baselines**: the change of the number of weights that the output depends on; the change of the FLOPs of a forward pass, in
proportion; and *no change*, which foretells 0 for all. No change has no correlation. It is compared in two other ways, which decide
nothing: how often the sign is right where `explain` calls a change clear, beside the share of the commoner sign; and the share of
the squared realised change that a line through the origin explains, whose slope is that of all other networks (below 0: no change
is better).

**Permuted edits**: the adjusted P-values for 500 data sets whose edits are permuted within networks. Any is below 0.05 in at most 5 %
of them, if the test is right.

**Further columns** decide nothing: the correlation without the means of each network, and without those of each replacement
(whether a row tells more than the name of the edit); each data set alone; every row with every outcome.

**Power**, by simulation (`--power`): with 16 networks of five edits, the test at Holm's first threshold (0.05/4) finds a
correlation of 0.40 (of a normal law, within and between networks alike) with 80 % probability. Noise of the outcomes lowers
correlations: the table states how well both seeds agree. With few networks, a bootstrap over them gives intervals that are somewhat
too narrow.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from biascope import data
from biascope.derivatives.gradients import forward_flops
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.replaced import Constants, Replacements, constants_of, replaced, structure_at
from biascope.measures.explain import Laboratory
from biascope.measures.explain.rows import Reader
from biascope.measures.explain.variants import REMOVED, parts_of, variants_of
from biascope.results.axes import InputAxes
from biascope.results.estimate import jackknife, spearman
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays, Task, along_directions
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

SHAPE = (1, 16, 16)
CARD, CHOICE, TRAINING = 511, 512, (513, 514)  # seeds of the test
PARTS, EDITS, DRAWS, INPUTS = 2, 5, 96, 8
LEFT_OUT = ("last layer", "kernel")  # kinds of components
SETS = ("mnist", "gtsrb")
SAMPLES, EARLY, FINAL = 1500, 32, 128
LEARNED = Recipe("adam", rate=3e-3, schedule="constant", steps=FINAL, batch=64)
ALONG = Recipe("adam", rate=3e-3, schedule="constant", steps=120, batch=32)
FREQUENCIES = ((0, 1), (2, 0), (1, 2), (6, 3), (0, 7), (5, 6))  # cycles down, across; three low ones, three high ones
HERE = Path(__file__).parent / "explain_foretells.json"

ROWS = {
    "low_frequencies": "low frequencies",
    "stripes_along_axes": "stripes along axes",
    "effective_rank": "effective rank",
    "shift_error": "shift error",
    "complexity": "complexity",
    "favourite_class": "favourite class",
}
BASELINES = {"weights": "number of weights", "flops": "FLOPs"}
OUTCOMES = {"low first": "low frequencies first", "early": "early accuracy", "final": "final accuracy"}
#: Row, outcome, and the sign of their correlation.
HYPOTHESES = (
    ("low_frequencies", "low first", 1),
    ("complexity", "early", -1),
    ("favourite_class", "early", -1),
    ("effective_rank", "early", 1),
)


class Added(nn.Module):
    """A block that is added to its input, or to a shortcut of it."""

    def __init__(self, *layers: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.layers(x)


class Beside(nn.Module):
    """Branches whose channels are laid beside one another."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Swapped(nn.Module):
    """Layers along the tokens instead of their numbers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.mT).mT


class Attention(nn.Module):
    """Attention of each token to all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.read, self.write = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.read(x).reshape(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self.write(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width))


class Tokens(nn.Module):
    """Places of a stem's output as tokens; blocks; a readout of their mean or of a class token."""

    def __init__(
        self, stem: nn.Module, blocks: list[nn.Module], width: int, places: int = 0, class_token: bool = False
    ) -> None:
        super().__init__()
        self.stem, self.blocks, self.norm = stem, nn.Sequential(*blocks), nn.LayerNorm(width)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, width)) if class_token else None
        self.places = nn.Parameter(0.1 * torch.randn(1, places, width)) if places else None
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).mT
        tokens = tokens if self.places is None else tokens + self.places
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        tokens = self.norm(self.blocks(tokens))
        return self.out(tokens.mean(1) if self.token is None else tokens[:, 0])


def _conv(inward: int, outward: int, kernel: int = 3, stride: int = 1, **settings: Any) -> nn.Module:
    return nn.Conv2d(inward, outward, kernel, stride, kernel // 2, **settings)


def _readout(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]


def _transformer(width: int, heads: int, act: Callable[[], nn.Module]) -> list[nn.Module]:
    forward = nn.LayerNorm(width), nn.Linear(width, 2 * width), act(), nn.Linear(2 * width, width)
    return [Added(nn.LayerNorm(width), Attention(width, heads)), Added(*forward)]


def _mixer(width: int, tokens: int, act: Callable[[], nn.Module]) -> list[nn.Module]:
    across = Swapped(nn.Linear(tokens, 2 * tokens), act(), nn.Linear(2 * tokens, tokens))
    forward = nn.LayerNorm(width), nn.Linear(width, 3 * width), act(), nn.Linear(3 * width, width)
    return [Added(nn.LayerNorm(width), across), Added(*forward)]


def _lenet() -> nn.Module:
    first = [_conv(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))


def _lenet_of_1998() -> nn.Module:
    first = [_conv(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))


def _vgg() -> nn.Module:
    first = [_conv(1, 8), nn.ReLU(), _conv(8, 8), nn.ReLU(), nn.MaxPool2d(2)]
    second = [_conv(8, 16), nn.ReLU(), _conv(16, 16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(256, 10))


def _averages() -> nn.Module:
    layers: list[nn.Module] = []
    for inward, outward in ((1, 8), (8, 16), (16, 24)):
        layers += [_conv(inward, outward), nn.GroupNorm(2, outward), nn.GELU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 10))


def _basic(inward: int, outward: int, stride: int) -> list[nn.Module]:
    body = [_conv(inward, outward, 3, stride), nn.GroupNorm(2, outward), nn.ReLU(), _conv(outward, outward)]
    changed = stride > 1 or inward != outward
    shortcut = nn.Conv2d(inward, outward, 1, stride) if changed else None
    return [Added(*body, nn.GroupNorm(2, outward), shortcut=shortcut), nn.ReLU()]


def _resnet() -> nn.Module:
    return nn.Sequential(
        _conv(1, 8), nn.GroupNorm(2, 8), nn.ReLU(), *_basic(8, 12, 2), *_basic(12, 16, 2), *_readout(16)
    )


def _resnet_with_pool() -> nn.Module:
    stem = [_conv(1, 10, 5), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *_basic(10, 10, 1), *_basic(10, 16, 2), nn.Flatten(), nn.Linear(256, 10))


def _preactivated() -> nn.Module:
    def block(width: int) -> nn.Module:
        return Added(nn.GroupNorm(2, width), nn.ReLU(), _conv(width, width), nn.GELU(), _conv(width, width, 1))

    layers = [_conv(1, 10), block(10), nn.AvgPool2d(2), block(10), nn.AvgPool2d(2), block(10)]
    return nn.Sequential(*layers, nn.GroupNorm(2, 10), nn.ReLU(), nn.Flatten(), nn.Linear(160, 10))


def _convnext() -> nn.Module:
    def block(width: int) -> nn.Module:
        inner = nn.Conv2d(width, 3 * width, 1), nn.GELU(), nn.Conv2d(3 * width, width, 1)
        return Added(_conv(width, width, 7, groups=width), nn.GroupNorm(1, width), *inner)

    stem = [nn.Conv2d(1, 12, 2, 2), nn.GroupNorm(1, 12), block(12)]
    return nn.Sequential(*stem, nn.GroupNorm(1, 12), nn.Conv2d(12, 18, 2, 2), block(18), *_readout(18))


def _strided() -> nn.Module:
    layers: list[nn.Module] = []
    for inward, outward in ((1, 10), (10, 16), (16, 20)):
        layers += [_conv(inward, outward, 3, 2), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(80, 10))


def _wide_kernels() -> nn.Module:
    first = [_conv(1, 10, 7), nn.SiLU(), nn.MaxPool2d(4), _conv(10, 20), nn.SiLU()]
    return nn.Sequential(*first, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(20, 10))


def _overlapping() -> nn.Module:
    first = [_conv(1, 10), nn.ELU(), nn.AvgPool2d(3, 2, 1), _conv(10, 16), nn.ELU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*first, nn.GroupNorm(1, 16), nn.Flatten(), nn.Linear(256, 10))


def _branches() -> nn.Module:
    stem = Beside(_conv(1, 8, 3, 2), nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 4, 1)))
    second = Beside(_conv(12, 8, 3, 2), nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(12, 8, 1)))
    return nn.Sequential(stem, nn.GELU(), second, nn.GELU(), nn.Flatten(), nn.Linear(256, 10))


def _vit() -> nn.Module:
    return Tokens(nn.Conv2d(1, 20, 4, 4), _transformer(20, 4, nn.ReLU) + _transformer(20, 4, nn.ReLU), 20, 16, True)


def _vit_with_stem() -> nn.Module:
    stem = nn.Sequential(_conv(1, 10, 3, 2), nn.ReLU(), _conv(10, 20, 3, 2))
    return Tokens(stem, _transformer(20, 2, nn.GELU), 20, 16)


def _pooled_attention() -> nn.Module:
    stem = nn.Sequential(_conv(1, 12, 5), nn.ReLU(), nn.MaxPool2d(2), _conv(12, 20), nn.ReLU(), nn.MaxPool2d(2))
    return Tokens(stem, _transformer(20, 4, nn.SiLU), 20, class_token=True)


def _mixed() -> nn.Module:
    return Tokens(nn.Conv2d(1, 20, 4, 4), _mixer(20, 16, nn.SiLU) + _mixer(20, 16, nn.SiLU), 20)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet": _lenet,
    "ViT": _vit,
    "ResNet": _resnet,
    "GroupNorm, GELU, average pooling": _averages,
    "mixer": _mixed,
    "VGG": _vgg,
    "overlapping pooling": _overlapping,
    "branches": _branches,
    "LeNet with tanh and average pooling": _lenet_of_1998,
    "ViT with a convolutional stem": _vit_with_stem,
    "pre-activated ResNet": _preactivated,
    "wide kernels": _wide_kernels,
    "strides only": _strided,
    "attention after max pooling": _pooled_attention,
    "ResNet with max pooling": _resnet_with_pool,
    "ConvNeXt": _convnext,
}


def _tried() -> nn.Module:
    first = [_conv(1, 6), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2), Added(_conv(6, 6), nn.GELU())]
    return nn.Sequential(*first, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(96, 10))


#: For trying the script; not in the table.
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "tried": _tried,
    "tried tokens": lambda: Tokens(nn.Conv2d(1, 16, 4, 4), _transformer(16, 2, nn.GELU), 16, 16),
}


class Edited(nn.Module):
    """A network with some components replaced, as a module that can be trained."""

    def __init__(self, inner: nn.Module, replacements: Replacements, constants: dict[Any, Constants]) -> None:
        super().__init__()
        self.inner, self._replacements, self._constants = inner, replacements, constants

    def forward(self, x: Tensor) -> Tensor:
        network = Network(self.inner, {}, {})  # of which `replaced` needs the module alone
        with replaced(network, self._replacements, self._constants):
            return self.inner(x)


def built(build: Callable[[], nn.Module], seed: int, edit: tuple[Replacements, dict[Any, Constants]]) -> Edited:
    """A network with its initial weights, the same for all edits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Edited(build(), *edit)


@functools.cache
def images_of(name: str, root: Path | None) -> Arrays:
    """A data set at 16×16 in grey, each image of mean 0 and variance 1 over the training images' numbers."""
    source = data.load(name, root=root)
    labels = torch.as_tensor(source.splits["train"][1]).long()
    kept = labels.bincount().argsort(descending=True, stable=True)[:10]
    parts = {}
    for split, count in (("train", SAMPLES), ("test", 1000)):
        x, y = (torch.as_tensor(each) for each in source.splits[split])
        known = torch.isin(y.long(), kept).nonzero().flatten()
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(CHOICE))
        chosen = known[order[:count]]
        grey = x[chosen].float().mean(1, keepdim=True)
        small = F.interpolate(grey, SHAPE[1:], mode="bilinear", antialias=True, align_corners=False)
        parts[split] = small, (y[chosen].long()[:, None] == kept).int().argmax(1).long()
    centre, spread = parts["train"][0].mean(), parts["train"][0].std()
    return Arrays({split: ((x - centre) / spread, y) for split, (x, y) in parts.items()}, name=name)


@functools.cache
def directions(seed: int) -> list[Task]:
    """D(v) along the six cosines."""
    half = bases.fourier_half(SHAPE)
    known = [tuple(abs((int(str(part)) + 8) % 16 - 8) for part in label[-2:]) for label in half.labels]
    vectors = half.part([known.index(each) for each in FREQUENCIES]).vectors
    tasks = along_directions(vectors, SHAPE, noise=0.7, train=800, test=500, seed=seed, run=Run(device="cpu"))
    return [tasks.of_member(place) for place in range(len(FREQUENCIES))]


def learned(start: Edited, task: Task, recipe: Recipe, times: tuple[int, ...], seed: int, chance: float) -> list[float]:
    """Test accuracies at some iterations, the last one that of the end; then the training accuracy at the end."""
    run, found = Run(device="cpu"), {}

    def looked(step: int, networks: Network) -> None:
        splits = ("test", "train") if step == times[-1] else ("test",)
        found.update({(step, split): float(evaluation(networks, task, split, run=run).accuracy[0]) for split in splits})

    end = fit(Network.of(start), task, recipe, seed=seed, run=run, observe=looked, observe_at=times)
    numbers = [found.get((step, "test"), math.nan) for step in times] + [found.get((times[-1], "train"), math.nan)]
    failed = int(end.diverged_at[0]) >= 0
    return [chance if failed or math.isnan(each) else round(each, 4) for each in numbers]


def outcomes(start: Callable[[int], Edited], seeds: tuple[int, ...], root: Path | None) -> list[dict[str, Any]]:
    """All that a network learned, for each seed."""
    found = []
    for seed in seeds:
        along = [learned(start(seed), task, ALONG, (ALONG.total_steps(800),), seed, 0.5) for task in directions(seed)]
        sets = {name: learned(start(seed), images_of(name, root), LEARNED, (EARLY, FINAL), seed, 0.1) for name in SETS}
        found.append({"along": [each[0] for each in along], "along train": [each[1] for each in along], "sets": sets})
    return found


def used_weights(network: Edited) -> int:
    """The weights that the output depends on."""
    output = network(torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))).sum()
    weights = list(network.parameters())
    slopes = torch.autograd.grad(output, weights, allow_unused=True)
    return sum(weight.numel() for weight, slope in zip(weights, slopes, strict=True) if slope is not None)


def edits_of(family: Family, probe: Probe, run: Run) -> Iterator[tuple[int, str, str, str, Replacements]]:
    """The edits of a network: place among the variants of `explain`, kind, component, alternative, replacements."""
    variants = variants_of(structure := structure_at(family.template, probe.few(run)), parts_of(structure, PARTS))
    kinds = [next(iter(each.replacements)).kind if each.replacements else "" for each in variants]
    wanted = [place for place, each in enumerate(variants) if each.way == REMOVED and kinds[place] not in LEFT_OUT]
    order = np.random.default_rng(CHOICE).permutation(wanted)
    rank = {place: sum(kinds[other] == kinds[place] for other in order[:at]) for at, place in enumerate(order)}
    for place in sorted(sorted(order, key=lambda each: rank[each])[:EDITS]):
        each = variants[place]
        yield int(place), kinds[place], each.part, each.alternative, each.replacements


def foretold(family: Family, probe: Probe, places: list[int], seed: int, run: Run) -> dict[int, dict[str, list[float]]]:
    """Changes of the card with their simultaneous intervals, as `explain` measures them, of some of its variants alone."""
    few = probe.few(run)
    structure = structure_at(family.template, few)
    reader = Reader.of(InputAxes.of(family.axes_at(few, run), SHAPE), (10,), probe.independent)
    variants = variants_of(structure, parts_of(structure, PARTS))
    readings = Laboratory(family, probe, reader, variants, DRAWS, "first", seed, run).readings(0, [0, *places])
    groups, whole = np.arange(DRAWS) % 32, np.ones(DRAWS, bool)
    left = [groups != group for group in range(32)]
    found: dict[int, dict[str, list[float]]] = {place: {} for place in places}
    for row in reader.rows():
        before = [row.of(readings[0], taken) for taken in (whole, *left)]
        for place in places:
            full, *others = (
                row.of(readings[place], taken) - own for taken, own in zip((whole, *left), before, strict=True)
            )
            change = jackknife(full, others, 1 - 0.05 / (len(places) * len(reader.rows())))
            found[place][row.key] = [float(f"{each:.4g}") for each in (change.value, change.low, change.high)]
    return found


def row_of(name: str, build: Callable[[], nn.Module], seeds: tuple[int, ...], root: Path | None) -> dict[str, Any]:
    """All about one network and its edits."""
    run, spent = Run(device="cpu"), time.process_time()
    family, probe = Family.initialised(build, name=name), Probe.gaussian(SHAPE, num=INPUTS, fresh=True)
    edits = list(edits_of(family, probe, run))
    told = foretold(family, probe, [place for place, *_ in edits], seeds[0], run)
    measured = time.process_time() - spent
    pilots = family.draw(4, seed=seeds[0], run=run)
    x = torch.randn(4, 32, *SHAPE, generator=torch.Generator().manual_seed(seeds[0]))

    def numbers(edit: tuple[Replacements, dict[Any, Constants]]) -> dict[str, Any]:
        one = built(build, 0, edit)
        return {
            "weights": used_weights(one),
            "flops": forward_flops(Network.of(one), torch.zeros(1, *SHAPE)),
            "learned": outcomes(lambda seed: built(build, seed, edit), seeds[1:], root),
        }

    own, found = numbers(({}, {})), []
    for place, kind, part, alternative, replacements in edits:
        passes = [functools.partial(pilots.member(draw), x[draw]) for draw in range(4)]
        constants = constants_of(family.template, replacements, passes)
        found.append(
            {
                "edit": f"{part} → {alternative}",
                "kind": f"{kind} → {alternative}",
                "foretold": told[place],
                **numbers((replacements, constants)),
            }
        )
    cpu = round(time.process_time() - spent, 1)
    return {"name": name, **own, "edits": found, "cpu": cpu, "cpu of explain": round(measured, 1)}


def measured(options: argparse.Namespace) -> None:
    """Append the rows that are missing."""
    networks, seeds = (OTHERS, (21, 22, 23)) if options.develop else (NETWORKS, (CARD, *TRAINING))
    part, parts = map(int, options.part.split("/"))
    path: Path = options.rows[0]
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    for number, (name, build) in enumerate(networks.items()):
        if number % parts == part and name not in done:
            row = row_of(name, build, seeds, options.data_root)
            with path.open("a") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(
                f"{number + 1} of {len(networks)}: {name}: {len(row['edits'])} edits, {row['cpu']} s of processor time",
                flush=True,
            )


Table = dict[str, np.ndarray]


def columns(rows: list[dict[str, Any]], seeds: tuple[int, ...] = (0, 1)) -> Table:
    """Foretold and realised changes of all edits, NaN where a network is left out."""
    found: dict[str, list[Any]] = {}

    def put(key: str, value: Any) -> None:
        found.setdefault(key, []).append(value)

    for row in rows:
        before = _outcome(row["learned"], seeds)
        usable = _usable(row["learned"])
        for each in row["edits"]:
            put("network", row["name"])
            put("kind", each["kind"])
            for key in ROWS:
                change, low, high = each["foretold"][key]
                put(key, change)
                put(f"{key} is clear", low > 0 or high < 0)
            put("weights", each["weights"] - row["weights"])
            put("flops", math.log(each["flops"] / row["flops"]))
            for key, value in _outcome(each["learned"], seeds).items():
                put(key, value - before[key] if usable[key.split(":")[0]] else math.nan)
    return {key: np.array(values) for key, values in found.items()}


def _usable(told: list[dict[str, Any]]) -> dict[str, bool]:
    along = all(max(each["along train"]) >= 0.65 for each in told)
    sets = all(numbers[2] >= 0.2 for each in told for numbers in each["sets"].values())
    return {"low first": along, "early": sets, "final": sets}


def _outcome(told: list[dict[str, Any]], seeds: tuple[int, ...]) -> dict[str, float]:
    chosen = [told[seed] for seed in seeds]
    along = np.mean([each["along"] for each in chosen], 0)
    found = {"low first": float(along[:3].mean() - along[3:].mean())}
    for place, when in enumerate(("early", "final")):
        values = {name: float(np.mean([each["sets"][name][place] for each in chosen])) for name in SETS}
        found |= {when: float(np.mean(list(values.values())))}
        found |= {f"{when}: {name}": value for name, value in values.items()}
    return found


def permuted(networks: np.ndarray, draws: np.random.Generator, count: int) -> np.ndarray:
    """Orders of the edits, each permuted within its network, ``(count, edits)``."""
    found = np.tile(np.arange(len(networks)), (count, 1))
    for name in dict.fromkeys(networks):
        places = np.flatnonzero(networks == name)
        found[:, places] = places[draws.random((count, len(places))).argsort(1)]
    return found


def _standard(values: np.ndarray) -> np.ndarray:
    ranks = stats.rankdata(values)
    ranks = ranks - ranks.mean()
    size = np.linalg.norm(ranks)
    return np.asarray(ranks / size if size > 0 else ranks)


def chances(x: np.ndarray, y: np.ndarray, sign: int, orders: np.ndarray) -> float:
    """The one-sided P-value of a correlation of ranks, among those of permuted edits."""
    first, second = _standard(x), _standard(y)
    null = sign * (first[orders] @ second)
    return float((1 + (null >= sign * (first @ second) - 1e-12).sum()) / (1 + len(orders)))


def over_networks(
    statistic: Callable[..., float], networks: np.ndarray, *arrays: np.ndarray, resamples: int = 4000
) -> list[float]:
    """A statistic with its percentile interval over resampled networks."""
    if len(set(networks)) < 2:
        return [math.nan] * 3
    draws, places = np.random.default_rng(0), [np.flatnonzero(networks == name) for name in dict.fromkeys(networks)]
    found = []
    for _ in range(resamples):
        taken = np.concatenate([places[each] for each in draws.integers(len(places), size=len(places))])
        found.append(statistic(*(each[taken] for each in arrays)))
    low, high = np.nanpercentile(found, (2.5, 97.5))
    return [round(float(each), 3) for each in (statistic(*arrays), low, high)]


def without_means(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> float:
    """Correlation of ranks without their means over each group; those that are alone say nothing."""
    parts = []
    for each in (x, y):
        ranks = stats.rankdata(each)
        parts.append(ranks - np.array([ranks[groups == group].mean() for group in groups]))
    return round(float(np.corrcoef(*parts)[0, 1]), 3)


def skill(x: np.ndarray, y: np.ndarray, networks: np.ndarray) -> float:
    """The share of the squared realised change that lines through the origin explain, each by all other networks."""
    if len(set(networks)) < 2:
        return math.nan
    rest = 0.0
    for name in dict.fromkeys(networks):
        own = networks == name
        slope = float(x[~own] @ y[~own]) / float(x[~own] @ x[~own])
        rest += float(np.square(y[own] - slope * x[own]).sum())
    return round(1 - rest / float(np.square(y).sum()), 3)


def holm(values: list[float]) -> list[float]:
    """P-values adjusted by Holm's method."""
    found, largest = [0.0] * len(values), 0.0
    for place, key in enumerate(np.argsort(values)):
        largest = max(largest, min(1.0, (len(values) - place) * values[key]))
        found[key] = largest
    return found


def verdicts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The test, as the docstring says it."""
    table, draws = columns(rows), np.random.default_rng(CHOICE)
    seeds = [columns(rows, (seed,)) for seed in (0, 1)]
    found: dict[str, Any] = {"edits": len(table["network"]), "hypotheses": [], "all": {}, "outcomes": {}}
    raw = []
    for row, outcome, sign in HYPOTHESES:
        known = np.isfinite(table[outcome]) & np.isfinite(table[row])
        x, y, networks = table[row][known], table[outcome][known], table["network"][known]
        raw.append(chances(x, y, sign, permuted(networks, draws, 9999)))
        clear = table[f"{row} is clear"][known].astype(bool) & (y != 0)
        right = (sign * x * y > 0)[clear]
        found["hypotheses"].append(
            {
                "row": row,
                "outcome": outcome,
                "predicted": sign,
                "edits": int(known.sum()),
                "networks": len(set(networks)),
                "spearman": over_networks(spearman, networks, x, y),
                "P": raw[-1],
                "baselines": {each: over_networks(spearman, networks, table[each][known], y) for each in BASELINES},
                "clear": int(clear.sum()),
                "sign right": over_networks(np.mean, networks[clear], right.astype(float)),
                "commoner sign": round(float(max((y[clear] > 0).mean(), (y[clear] < 0).mean())), 3)
                if clear.any()
                else math.nan,
                "against no change": skill(x, y, networks),
                "within networks": without_means(x, y, networks),
                "within replacements": without_means(x, y, table["kind"][known]),
                "sets": {name: round(spearman(x, table[f"{outcome}: {name}"][known]), 3) for name in SETS}
                if outcome != "low first"
                else {},
            }
        )
    for each, adjusted in zip(found["hypotheses"], holm(raw), strict=True):
        value, low, high = each["spearman"]
        best = max((abs(own[0]) for own in each["baselines"].values() if math.isfinite(own[0])), default=0.0)
        one_sign = low > 0 if each["predicted"] > 0 else high < 0
        each |= {"adjusted P": adjusted, "best baseline": round(best, 3)}
        each["foretells"] = bool(adjusted < 0.05 and one_sign and abs(value) > best)
    for outcome in OUTCOMES:
        known = np.isfinite(table[outcome])
        y = table[outcome][known]
        found["all"][outcome] = {row: round(spearman(table[row][known], y), 3) for row in (*ROWS, *BASELINES)}
        found["outcomes"][outcome] = {
            "edits": int(known.sum()),
            "left out": sorted(set(table["network"][~known])),
            "quartiles of the change, points": np.percentile(100 * y, [0, 25, 50, 75, 100]).round(1).tolist(),
            "two seeds": round(spearman(seeds[0][outcome][known], seeds[1][outcome][known]), 3),
        }
    return found | {"permuted edits": false_positives(table, draws)}


def false_positives(table: Table, draws: np.random.Generator, repeats: int = 500) -> float:
    """How often the P-values of the rule find any row where edits are permuted."""
    known = np.all([np.isfinite(table[key]) for key in (*(row for row, _, _ in HYPOTHESES), "low first", "early")], 0)
    networks = table["network"][known]
    data_sets, null = permuted(networks, draws, repeats), permuted(networks, draws, 1999)
    found = 0
    for order in data_sets:
        values = [
            chances(table[row][known][order], table[outcome][known], sign, null) for row, outcome, sign in HYPOTHESES
        ]
        found += min(holm(values)) < 0.05
    return found / repeats


def power(networks: int, edits: int, tests: int, repeats: int = 400) -> float:
    """The correlation of a normal law that the test finds with 80 % probability at Holm's first threshold."""
    draws, names = np.random.default_rng(0), np.repeat(np.arange(networks), edits)
    for percent in range(20, 70, 2):
        own, found = percent / 100, 0
        for _ in range(repeats):
            x, noise = draws.standard_normal((2, len(names)))
            y = own * x + math.sqrt(1 - own**2) * noise
            found += chances(x, y, 1, permuted(names, draws, 999)) < 0.05 / tests
        if found >= 0.8 * repeats:
            return own
    return math.nan


def printed(found: dict[str, Any]) -> None:
    """The tables of `benchmarks/RESULTS.md`."""

    def words(each: list[float]) -> str:
        if math.isnan(each[0]):
            return "no edit changes it"
        return "{:.2f} ({:.2f} to {:.2f})".format(*each).replace("-", "−")

    print(
        "| row | outcome | predicted | Spearman | adjusted P | weights | FLOPs | within networks | within replacements | verdict |"
    )
    print("|" + "---|" * 10)
    for each in found["hypotheses"]:
        cells = [ROWS[each["row"]], OUTCOMES[each["outcome"]], "+" if each["predicted"] > 0 else "−"]
        cells += [words(each["spearman"]), f"{each['adjusted P']:.3g}"]
        cells += [words(each["baselines"][name]) for name in BASELINES]
        cells += [f"{each[key]:.2f}".replace("-", "−") for key in ("within networks", "within replacements")]
        print(f"| {' | '.join(cells)} | {'foretells' if each['foretells'] else 'description'} |")
    print("\n| row | outcome | clear changes | sign right | commoner sign | squared change explained | mnist | gtsrb |")
    print("|" + "---|" * 8)
    for each in found["hypotheses"]:
        cells = [ROWS[each["row"]], OUTCOMES[each["outcome"]], f"{each['clear']} of {each['edits']}"]
        cells += [words(each["sign right"]), f"{each['commoner sign']:.2f}", f"{each['against no change']:.2f}"]
        cells += [f"{each['sets'][name]:.2f}" if each["sets"] else "" for name in SETS]
        print(f"| {' | '.join(cells)} |".replace("| -", "| −"))
    print("\n| row | " + " | ".join(OUTCOMES.values()) + " |\n|" + "---|" * 4)
    for row, label in {**ROWS, **BASELINES}.items():
        cells = [f"{found['all'][outcome][row]:.2f}" for outcome in OUTCOMES]
        print(f"| {label} | {' | '.join(cells)} |".replace("| -", "| −"))
    print(f"\n{found['edits']} edits; outcomes: {json.dumps(found['outcomes'], indent=1)}")
    print(f"permuted edits: the rule finds a row in {found['permuted edits']:.1%}")


def drawn(rows: list[dict[str, Any]], found: dict[str, Any], path: Path) -> None:
    """Foretold against realised change, one panel for each hypothesis."""
    from biascope.results import draw

    table = columns(rows)
    named = np.array([kind.split(" → ")[0] for kind in table["kind"]])
    figure = draw.blank(7.0, "One point for each edit. Lines: no change.")
    for place, each in enumerate(found["hypotheses"]):
        axes = figure.add_subplot(2, 2, place + 1)
        for number, kind in enumerate(dict.fromkeys(named)):
            own = named == kind
            axes.scatter(
                table[each["row"]][own], 100 * table[each["outcome"]][own], s=14, color=f"C{number}", label=kind
            )
        axes.axhline(0, lw=0.5, color="grey")
        axes.axvline(0, lw=0.5, color="grey")
        axes.set_xlabel(f"foretold change: {ROWS[each['row']]}", size=8)
        axes.set_ylabel(f"{OUTCOMES[each['outcome']]}, points", size=8)
        axes.set_title("{:.2f} ({:.2f} to {:.2f})".format(*each["spearman"]).replace("-", "−"), size=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    warnings.filterwarnings("ignore", "All-NaN slice")  # a baseline that no edit changes
    warnings.filterwarnings("ignore", "Edited does not use")  # no positions: those weights stay unused
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="+", help="where rows are appended; with --keep, all such files")
    parser.add_argument("--part", default="0/1", help="networks of one of several processes, such as 0/2")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--develop", action="store_true", help="other networks and seeds")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/explain_foretells.json from the rows")
    parser.add_argument("--table", action="store_true", help="print the tables of the committed rows")
    parser.add_argument("--picture", type=Path, help="with --table: foretold against realised changes")
    parser.add_argument("--power", action="store_true", help="print the correlation that the test finds")
    options = parser.parse_args()
    if options.power:
        print(f"{power(len(NETWORKS), EDITS, len(HYPOTHESES)):.2f}")
    elif options.table:
        rows = json.loads(HERE.read_text())["rows"]
        printed(found := verdicts(rows))
        if options.picture:
            drawn(rows, found, options.picture)
    elif options.rows is None:
        parser.error("--rows FILE is needed to measure. Or pass --table for the committed rows.")
    elif options.keep:
        lines = [line for path in options.rows for line in path.read_text().splitlines()]
        order = {name: number for number, name in enumerate(OTHERS if options.develop else NETWORKS)}
        rows = sorted(map(json.loads, lines), key=lambda row: order[row["name"]])
        if sum(len(row["edits"]) for row in rows) < 40 and not options.develop:
            raise SystemExit("Fewer than 40 edits are measured. Run the same command without --keep.")
        printed(found := verdicts(rows))
        if not options.develop:
            text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
            plain = json.loads(json.dumps(found), parse_constant=lambda _: None)
            HERE.write_text(f'{{"results": {json.dumps(plain)},\n"rows": [\n{text}\n]}}\n')
    else:
        measured(options)


if __name__ == "__main__":
    main()
