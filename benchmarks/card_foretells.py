"""Does the card of an untrained network foretell what the network learns? 80 small networks, each measured and then trained.

    python benchmarks/card_foretells.py --rows FILE.jsonl [--part 0/2]          # measure and train; appends a row per network, resumes
    python benchmarks/card_foretells.py --rows FILE.jsonl [...] --keep          # rows of all parts to benchmarks/card_foretells.json
    python benchmarks/card_foretells.py --table                                 # the verdicts, from benchmarks/card_foretells.json
    python benchmarks/card_foretells.py --power                                 # the correlation that the test can find
    python benchmarks/card_foretells.py --develop                               # other networks and seeds, to try the script

All below was written and committed before a network of the table was measured or trained.

**Networks.** `NETWORKS`: 80 architectures for 1×16×16 inputs, of at most 30,000 weights, with PyTorch's laws of initial weights (a
gain multiplies some). None is one of those on which the headline was chosen. They are not a sample of all networks: most share
components with others.

**Rows of the card**, at initialisation with ten outputs, seed `CARD`: the effective rank of the mean gradient as a share of 256 (128
draws of 32 inputs); the share of the mean gradient's energy below 2 cycles per image, a quarter of the highest frequency along an
axis; complexity (48 draws); mean dimension over 64 patches (40 draws); shift error on smooth inputs (32 draws); share of the favourite
class (64 draws). A second seed tells how well each row is known.

**Baselines**: number of weights; FLOPs of a forward pass; NASWOT (log-determinant of the Hamming kernel of the signs of the inputs of
all activation layers, at 64 training images, mean over three networks and the three data sets; smooth activations by the same signs).

**Outcomes**

- *Low frequencies first*: one training with Adam on D(v) (σ = 0.7, 800 samples, 150 iterations of 32, rate 0.002) along each of eight
  cosines, from 1 to 9.9 cycles. The mean test accuracy along the four lowest, minus that along the four highest.
- *Early accuracy* and *final accuracy*: one training with Adam on each of USPS, KMNIST and CIFAR-10 in grey, at 16×16 with 1,500
  samples (iterations of 64, rate 0.005); test accuracy after 32 and after 160 iterations. The outcome is the mean over data sets of a
  network's rank.

A network is left out of the second and third outcome if its final training accuracy on a set is below 20 %, twice chance, and of the
first if no direction reaches a training accuracy of 65 %. A training that diverges counts as below.

**Test.** For each of six rows and three outcomes, Spearman's correlation over networks; its P-value is two-sided, by Student's t. 18
tests, and one within networks (below), are adjusted by Holm's method. A row *foretells* an outcome if its adjusted P-value is below
0.05, its sign is the one that was predicted (`PREDICTED`; any sign where theory gives none), and its size exceeds that of the best
baseline for this outcome. Else it is description. Intervals are by a bootstrap over networks. Three further columns decide nothing: the
partial correlation given the number of weights, the correlation after the means of each kind of network are removed from ranks (it
shows whether a row tells more than the kind), and the correlations with each data set alone.

**Within networks.** For each network, Spearman's correlation over the eight directions of the mean gradient's energy with the test
accuracy. It foretells if the mean over networks exceeds 0 (t-test, in Holm's family) and the mean of the same with minus the frequency,
which is the same rule for all networks: "low frequencies first". Networks that are left out of the first outcome, and those
without different accuracies, do not count.

**Power**, by simulation (`--power`): with 80 networks, a test at Holm's first threshold (0.05/19) finds a correlation of 0.44 (of a
normal law) with 80 % probability. Weaker ones are likely to be missed. Noise in rows and outcomes lowers correlations: the table states
how well two seeds agree. That a row must also exceed the best baseline makes the test harder, by an amount that is not known before.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
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
from biascope.measures.complexity import complexity
from biascope.measures.directional_bias import Problem, directional_bias
from biascope.measures.equivariance import equivariance
from biascope.measures.guessing import guessing
from biascope.measures.mean_gradient import mean_gradient
from biascope.measures.sensitivity import sensitivity
from biascope.results.estimate import Estimate, bootstrapped, spearman
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

SHAPE = (1, 16, 16)
CARD, AGAIN, TRAINING = 401, 402, 403  # seeds of the test
SETS = ("usps", "kmnist", "cifar10")
SAMPLES, EARLY, FINAL = 1500, 32, 160
LEARNED = Recipe("adam", rate=5e-3, schedule="constant", steps=FINAL, batch=64)
ALONG = Recipe("adam", rate=2e-3, schedule="constant", steps=150, batch=32, threshold=0.2)
FREQUENCIES = ((1, 0), (1, 1), (0, 2), (3, 1), (4, 2), (1, 6), (5, 5), (7, 7))  # cycles down, across
HERE = Path(__file__).parent / "card_foretells.json"

ROWS = {
    "rank": "effective rank share",
    "low": "low-frequency share",
    "complexity": "complexity",
    "dimension": "mean dimension",
    "shift": "shift error",
    "favourite": "favourite-class share",
}
BASELINES = {"weights": "number of weights", "flops": "FLOPs", "naswot": "NASWOT"}
OUTCOMES = {"low first": "low frequencies first", "early": "early accuracy", "final": "final accuracy"}

#: Signs that theory gives, written before: smooth and shift-tolerant networks learn low frequencies and images first; simple functions
#: are learned early; a favourite class delays learning. No theory known to us says what complexity along lines, a mean dimension over
#: patches or a favourite class do to frequencies of the input, or what a favourite class does to the end of a training.
PREDICTED = {
    "low first": {"rank": -1, "low": 1, "shift": -1},
    "early": {"rank": -1, "low": 1, "complexity": -1, "dimension": -1, "shift": -1, "favourite": -1},
    "final": {"rank": -1, "low": 1, "complexity": -1, "dimension": -1, "shift": -1},
}


@dataclass(frozen=True)
class Net:
    """An architecture.

    Attributes:
        kind: ``"mlp"``, ``"cnn"``, ``"vit"``, ``"mixer"``.
        width: Of hidden layers; channels of the first stage of a CNN, which doubles where the image shrinks.
        depth: Hidden layers or blocks.
        act: ``"relu"``, ``"gelu"``, ``"tanh"``.
        norm: ``""``, ``"batch"``, ``"group"``; a ViT and a mixer normalise each token.
        residual: Whether blocks are added to their input.
        gain: What the weights of the first layer are multiplied by.
        kernel: Of convolutions.
        shrink: How the image shrinks after a block: ``"max"``, ``"average"``, ``"stride"``, ``"none"``.
        padding: ``"zeros"`` or ``"circular"``.
        depthwise: Whether spatial convolutions have one channel each and are followed by one of a single pixel.
        head: Of a CNN, ``"flat"``, ``"mean"`` or ``"max"``; of a ViT, ``"mean"`` or ``"class"``.
        patch: Side of a patch.
        positions: Whether a ViT knows them.
    """

    kind: str
    width: int
    depth: int
    act: str = "relu"
    norm: str = ""
    residual: bool = False
    gain: float = 1.0
    kernel: int = 3
    shrink: str = "max"
    padding: str = "zeros"
    depthwise: bool = False
    head: str = "mean"
    patch: int = 4
    positions: bool = True

    @property
    def name(self) -> str:
        """Its settings that are not the usual ones."""
        usual = asdict(Net(self.kind, 0, 0))
        parts = [f"{key}={value}" for key, value in asdict(self).items() if key != "kind" and value != usual[key]]
        return f"{self.kind} {' '.join(parts)}"

    def build(self, outputs: int = 10) -> nn.Module:
        """The module."""
        built = {"mlp": _mlp, "cnn": _cnn, "vit": _vit, "mixer": _mixer}[self.kind](self, outputs)
        if self.gain != 1:
            first = next(each for each in built.modules() if isinstance(each, nn.Linear | nn.Conv2d))
            with torch.no_grad():
                first.weight.mul_(self.gain)
        return built

    def family(self, outputs: int = 10) -> Family:
        """Its initial weights."""
        return Family.initialised(functools.partial(self.build, outputs), name=self.name)


class Added(nn.Module):
    """A block that is added to its input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Swapped(nn.Module):
    """A layer along the other of two axes."""

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
    """Patches as tokens, blocks, and a readout of their mean or of a class token."""

    def __init__(self, net: Net, blocks: Iterable[nn.Module], outputs: int) -> None:
        super().__init__()
        count = (SHAPE[1] // net.patch) ** 2
        self.cut = nn.Conv2d(1, net.width, net.patch, net.patch)
        self.token = nn.Parameter(torch.empty(1, 1, net.width)) if net.head == "class" else None
        known = net.kind == "vit" and net.positions
        self.places = nn.Parameter(torch.empty(1, count, net.width)) if known else None
        for each in (self.token, self.places):
            if each is not None:
                nn.init.normal_(each, std=0.02)
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(net.width)
        self.out = nn.Linear(net.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.cut(x).flatten(2).mT
        tokens = tokens if self.places is None else tokens + self.places
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        tokens = self.norm(self.blocks(tokens))
        return self.out(tokens.mean(1) if self.token is None else tokens[:, 0])


def _act(net: Net) -> nn.Module:
    return {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}[net.act]()


def _normed(net: Net, width: int, image: bool) -> list[nn.Module]:
    if net.norm == "batch":
        return [nn.BatchNorm2d(width) if image else nn.BatchNorm1d(width)]
    return [nn.GroupNorm(4, width) if image else nn.LayerNorm(width)] if net.norm == "group" else []


def _mlp(net: Net, outputs: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Flatten(),
        nn.Linear(math.prod(SHAPE), net.width),
        *_normed(net, net.width, False),
        _act(net),
    ]
    for _ in range(net.depth - 1):
        block = [nn.Linear(net.width, net.width), *_normed(net, net.width, False), _act(net)]
        layers += [Added(*block)] if net.residual else block
    return nn.Sequential(*layers, nn.Linear(net.width, outputs))


def _cnn(net: Net, outputs: int) -> nn.Module:
    def convolution(inward: int, outward: int, stride: int = 1) -> list[nn.Module]:
        how = {"padding": net.kernel // 2, "padding_mode": net.padding, "stride": stride}
        if not net.depthwise or inward == 1:
            return [nn.Conv2d(inward, outward, net.kernel, **how)]
        return [nn.Conv2d(inward, inward, net.kernel, groups=inward, **how), nn.Conv2d(inward, outward, 1)]

    layers: list[nn.Module] = []
    inward, width, side = 1, net.width, SHAPE[1]
    for block in range(net.depth):
        shrinks = net.shrink != "none" and block < 2
        stride = 2 if shrinks and net.shrink == "stride" else 1
        layers += [*convolution(inward, width, stride), *_normed(net, width, True), _act(net)]
        if net.residual:
            layers.append(Added(*convolution(width, width), *_normed(net, width, True), _act(net)))
        if shrinks:
            side //= 2
            layers += {"max": [nn.MaxPool2d(2)], "average": [nn.AvgPool2d(2)], "stride": []}[net.shrink]
        inward, width = width, 2 * width if shrinks and block == 0 else width
    if net.head != "flat":
        layers.append(nn.AdaptiveAvgPool2d(1) if net.head == "mean" else nn.AdaptiveMaxPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inward * (side**2 if net.head == "flat" else 1), outputs))


def _forward_block(net: Net) -> nn.Module:
    width = net.width
    return Added(nn.LayerNorm(width), nn.Linear(width, 2 * width), _act(net), nn.Linear(2 * width, width))


def _vit(net: Net, outputs: int) -> nn.Module:
    blocks: list[nn.Module] = []
    for _ in range(net.depth):
        blocks += [Added(nn.LayerNorm(net.width), Attention(net.width, 4)), _forward_block(net)]
    return Tokens(net, blocks, outputs)


def _mixer(net: Net, outputs: int) -> nn.Module:
    count = (SHAPE[1] // net.patch) ** 2
    blocks: list[nn.Module] = []
    for _ in range(net.depth):
        mixing = Swapped(nn.Linear(count, count), _act(net), nn.Linear(count, count))
        blocks += [Added(nn.LayerNorm(net.width), mixing), _forward_block(net)]
    return Tokens(net, blocks, outputs)


NETWORKS = (
    # MLPs
    Net("mlp", 100, 1),
    Net("mlp", 32, 1, "tanh"),
    Net("mlp", 64, 1, "gelu"),
    Net("mlp", 16, 1),
    Net("mlp", 64, 2),
    Net("mlp", 64, 2, "tanh"),
    Net("mlp", 48, 2, "gelu", "batch"),
    Net("mlp", 64, 2, norm="group"),
    Net("mlp", 48, 4),
    Net("mlp", 48, 4, "tanh"),
    Net("mlp", 48, 4, "gelu", residual=True),
    Net("mlp", 40, 5, "gelu", "group", residual=True),
    Net("mlp", 48, 4, norm="batch"),
    Net("mlp", 32, 6, residual=True),
    Net("mlp", 48, 2, "tanh", gain=4.0),
    Net("mlp", 48, 3, gain=3.0),
    # CNNs: what shrinks the image, the head, the padding
    Net("cnn", 8, 2),
    Net("cnn", 8, 2, shrink="average"),
    Net("cnn", 8, 2, shrink="stride"),
    Net("cnn", 8, 2, shrink="none"),
    Net("cnn", 12, 2, head="flat"),
    Net("cnn", 12, 2, shrink="average", head="flat"),
    Net("cnn", 12, 2, shrink="stride", head="flat"),
    Net("cnn", 6, 2, shrink="none", head="flat"),
    Net("cnn", 12, 2, head="max"),
    Net("cnn", 12, 2, shrink="average", head="max"),
    Net("cnn", 12, 2, shrink="stride", head="max"),
    Net("cnn", 8, 3, padding="circular"),
    Net("cnn", 8, 3, shrink="average", padding="circular"),
    Net("cnn", 8, 3, shrink="stride", padding="circular", head="flat"),
    Net("cnn", 8, 2, shrink="none", padding="circular"),
    # CNNs: normalisation, activation
    Net("cnn", 8, 3, norm="batch"),
    Net("cnn", 8, 3, norm="batch", shrink="average"),
    Net("cnn", 8, 3, norm="batch", shrink="stride"),
    Net("cnn", 8, 3, norm="group"),
    Net("cnn", 8, 3, norm="group", shrink="average"),
    Net("cnn", 8, 3, norm="group", shrink="stride", head="flat"),
    Net("cnn", 10, 3, "gelu"),
    Net("cnn", 10, 3, "gelu", shrink="average"),
    Net("cnn", 10, 3, "gelu", shrink="stride", head="flat"),
    Net("cnn", 10, 3, "tanh"),
    Net("cnn", 10, 3, "tanh", shrink="average", head="flat"),
    Net("cnn", 10, 3, "tanh", shrink="stride"),
    Net("cnn", 10, 2, "gelu", "batch", head="flat"),
    Net("cnn", 10, 2, "tanh", "batch", shrink="average"),
    # CNNs: kernels, depth, residual blocks, depthwise convolutions, gains
    Net("cnn", 10, 2, kernel=5),
    Net("cnn", 10, 2, kernel=5, shrink="average", head="flat"),
    Net("cnn", 10, 2, kernel=5, shrink="stride"),
    Net("cnn", 8, 2, kernel=7, shrink="stride"),
    Net("cnn", 16, 2, kernel=1, head="flat"),
    Net("cnn", 8, 1, kernel=5, head="flat"),
    Net("cnn", 12, 1, shrink="average", head="flat"),
    Net("cnn", 10, 5, head="flat"),
    Net("cnn", 10, 5, shrink="average"),
    Net("cnn", 8, 3, residual=True),
    Net("cnn", 8, 3, residual=True, shrink="average", head="flat"),
    Net("cnn", 8, 3, residual=True, norm="batch", shrink="stride"),
    Net("cnn", 8, 3, "gelu", "group", residual=True),
    Net("cnn", 24, 3, depthwise=True),
    Net("cnn", 24, 3, depthwise=True, norm="batch", shrink="average"),
    Net("cnn", 24, 3, "gelu", depthwise=True, kernel=5, shrink="stride"),
    Net("cnn", 16, 4, "gelu", "batch", residual=True, depthwise=True, kernel=5, shrink="stride"),
    Net("cnn", 8, 3, "tanh", gain=4.0),
    Net("cnn", 8, 3, gain=3.0, shrink="average"),
    # Transformers
    Net("vit", 32, 1, "gelu"),
    Net("vit", 32, 2, "gelu"),
    Net("vit", 32, 2, "gelu", head="class"),
    Net("vit", 32, 2, "gelu", positions=False),
    Net("vit", 32, 2, "relu", head="class"),
    Net("vit", 24, 3, "gelu"),
    Net("vit", 24, 1, "gelu", patch=2),
    Net("vit", 24, 2, "gelu", patch=2, head="class"),
    Net("vit", 24, 2, "gelu", patch=2, positions=False),
    Net("vit", 24, 2, "gelu", gain=4.0),
    # Mixers
    Net("mixer", 32, 1, "gelu"),
    Net("mixer", 32, 2, "gelu"),
    Net("mixer", 32, 2, "relu"),
    Net("mixer", 24, 4, "gelu"),
    Net("mixer", 24, 1, "gelu", patch=2),
    Net("mixer", 24, 2, "tanh", patch=4, gain=3.0),
)
#: For trying the script; not in the table.
OTHERS = (
    Net("mlp", 40, 2),
    Net("cnn", 12, 2, norm="group", shrink="average"),
    Net("cnn", 14, 2, "tanh", head="flat"),
    Net("cnn", 9, 3, residual=True, shrink="stride"),
    Net("vit", 28, 1, "gelu"),
    Net("mixer", 20, 1, "relu"),
)


def directions() -> Basis:
    """The eight cosines, from low to high frequencies."""
    half = bases.fourier_half(SHAPE)
    known = [tuple(abs((int(str(part)) + 8) % 16 - 8) for part in label[-2:]) for label in half.labels]
    return half.part([known.index(each) for each in FREQUENCIES])


def card(family: Family, seed: int, run: Run) -> tuple[dict[str, Estimate], list[float]]:
    """The rows of a network, and the energy of its mean gradient along each of the frequencies."""

    def normal(num: int) -> Probe:
        return Probe.gaussian(SHAPE, num=num, fresh=True, seed=seed)

    slopes = mean_gradient(family, normal(32), draws=128, seed=seed, run=run)
    shares = {each.name: each for each in slopes.shares()}
    waves = shares["single frequency"]
    energy = waves.energies.mean(0) / waves.isotropic
    at = [waves.labels.index(f"{down} {across}") for down, across in FREQUENCIES]
    smooth = Probe.smooth(SHAPE, num=8, seed=seed)
    rows: dict[str, Any] = {
        "rank": slopes.effective_rank.map_linear(1 / math.prod(SHAPE)),
        "low": shares["spatial frequency"].share([0, 1]),
        "complexity": complexity(family, normal(4), draws=48, scales=(1.0,), seed=seed, run=run).complexity,
        "dimension": sensitivity(family, normal(64), draws=40, seed=seed, run=run).mean_dimension,
        "shift": equivariance(family, smooth, draws=32, seed=seed, run=run).headline()["shift_error"],
        "favourite": guessing(family, normal(50), draws=64, seed=seed, run=run).favourite_share,
    }
    return rows, [float(f"{energy[place]:.5g}") for place in at]


def naswot(net: Net, images: Tensor, seed: int) -> float:
    """The log-determinant of the Hamming kernel of signs at a batch of images; Mellor et al. (2021)."""
    found = []
    for repeat in range(3):
        torch.manual_seed(1000 * seed + repeat)
        module, kernel = net.build().eval(), torch.zeros(len(images), len(images), dtype=torch.float64)
        for layer in module.modules():
            if isinstance(layer, nn.ReLU | nn.GELU | nn.Tanh):

                def counted(_: nn.Module, inputs: tuple[Tensor], kernel: Tensor = kernel) -> None:
                    code = (inputs[0].flatten(1) > 0).double()
                    kernel += code @ code.T + (1 - code) @ (1 - code).T

                layer.register_forward_pre_hook(counted)
        with torch.no_grad():
            module(images)
        sign, size = torch.linalg.slogdet(kernel)
        found.append(float(size) if sign > 0 and math.isfinite(float(size)) else -1e6)
    return float(np.mean(found))


@functools.cache
def images_of(name: str, root: Path | None) -> Arrays:
    """A data set at 16×16 in grey, each image of mean 0 and variance 1 over the training images' numbers."""
    source = data.load(name, root=root)
    parts = {}
    for split, count in (("train", SAMPLES), ("test", 1000)):
        x, y = source.splits[split]
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(TRAINING))[:count]
        grey = torch.as_tensor(x)[chosen].float().mean(1, keepdim=True)
        small = F.interpolate(grey, SHAPE[1:], mode="area") if grey.shape[-1] % 16 == 0 else _resized(grey)
        parts[split] = small, torch.as_tensor(y)[chosen].long()
    centre, spread = parts["train"][0].mean(), parts["train"][0].std()
    return Arrays({split: ((x - centre) / spread, y) for split, (x, y) in parts.items()}, name=name)


def _resized(x: Tensor) -> Tensor:
    return F.interpolate(x, SHAPE[1:], mode="bilinear", antialias=True, align_corners=False)


def learned(net: Net, name: str, seed: int, root: Path | None, run: Run) -> dict[str, float | None]:
    """Accuracies on one data set."""
    task, found = images_of(name, root), {}

    def looked(step: int, networks: Network) -> None:
        splits = ("test",) if step < FINAL else ("test", "train")
        found.update({(step, split): float(evaluation(networks, task, split, run=run).accuracy[0]) for split in splits})

    start = net.family().draw(1, seed=seed, run=run).member(0)
    end = fit(start, task, LEARNED, seed=seed, run=run, observe=looked, observe_at=(EARLY, FINAL))
    if int(end.diverged_at[0]) >= 0:
        return {"early": None, "final": None, "train": None}
    return {"early": found[EARLY, "test"], "final": found[FINAL, "test"], "train": found[FINAL, "train"]}


def outcomes(net: Net, seed: int, root: Path | None, run: Run) -> dict[str, Any]:
    """All that a network learned."""
    how = Problem(noise=(1.0,), samples=(800,), test=500)
    along = directional_bias(net.family(2), directions(), problem=how, recipe=ALONG, seed=seed, run=run)
    accuracy, train = (each[0, 0, 0] for each in (along.accuracy, along.train_accuracy))
    return {
        "along": [None if math.isnan(each) else round(float(each), 4) for each in accuracy],
        "along train": [None if math.isnan(each) else round(float(each), 4) for each in train],
        "sets": {name: learned(net, name, seed, root, run) for name in SETS},
    }


def row_of(net: Net, seeds: tuple[int, int, int], again: bool, root: Path | None) -> dict[str, Any]:
    """All about one network."""
    run, begin, spent = Run(device="cpu"), time.perf_counter(), time.process_time()
    family = net.family()
    flops = forward_flops(family.draw(1, seed=0, run=run).member(0), torch.zeros(1, *SHAPE))
    scores = [naswot(net, images_of(name, root).splits["train"][0][:64], seeds[0]) for name in SETS]
    (rows, energy), (second, _) = card(family, seeds[0], run), card(family, seeds[1], run)
    found = {
        "name": net.name,
        "kind": net.kind,
        "weights": family.num_parameters,
        "flops": flops,
        "naswot": float(np.mean(scores)),
        "card": {
            key: [float(f"{number:.5g}") for number in (each.value, each.low, each.high)] for key, each in rows.items()
        },
        "card again": {key: float(f"{each.value:.5g}") for key, each in second.items()},
        "energy": energy,
        **outcomes(net, seeds[2], root, run),
    }
    if again:
        found["second training"] = outcomes(net, seeds[2] + 1, root, run)
    return found | {"seconds": round(time.perf_counter() - begin, 1), "cpu": round(time.process_time() - spent, 1)}


def measured(options: argparse.Namespace) -> None:
    """Append the rows that are missing."""
    nets = OTHERS if options.develop else NETWORKS
    seeds = (11, 12, 13) if options.develop else (CARD, AGAIN, TRAINING)
    if missing := [net.name for net in nets if net.family().num_parameters > 30_000]:
        raise SystemExit(f"More than 30,000 weights: {missing}")
    part, parts = map(int, options.part.split("/"))
    path: Path = options.rows[0]
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    for number, net in enumerate(nets):
        if number % parts != part or net.name in done:
            continue
        row = row_of(net, seeds, number % 8 == 3, options.data_root)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{number + 1} of {len(nets)}: {net.name}: {row['seconds']} s, {row['cpu']} s of processor time", flush=True
        )


Numbers = dict[str, np.ndarray]


def columns(
    rows: list[dict[str, Any]], trained: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row
) -> Numbers:
    """Rows of the card, baselines and outcomes of all networks, NaN where a network is left out."""
    told = [trained(row) for row in rows]
    found: dict[str, list[float]] = {key: [row["card"][key][0] for row in rows] for key in ROWS}
    found |= {key: [row[key] for row in rows] for key in BASELINES}
    found["low first"] = [_low_first(each) for each in told]
    for when in ("early", "final"):
        whole = []
        for name in SETS:
            values = [each["sets"][name][when] if _trained(each) else None for each in told]
            found[f"{when}: {name}"] = [math.nan if value is None else value for value in values]
            whole.append(stats.rankdata(found[f"{when}: {name}"], nan_policy="omit"))
        found[when] = list(np.mean(whole, 0))
    return {key: np.array(values, float) for key, values in found.items()}


def _trained(told: dict[str, Any]) -> bool:
    return all((each["train"] or 0) >= 0.2 for each in told["sets"].values())


def _along(told: dict[str, Any]) -> np.ndarray | None:
    """Accuracies along the directions; nothing if the network is left out."""
    if None in told["along"] or max(told["along train"]) < 0.65:
        return None
    return np.array(told["along"])


def _low_first(told: dict[str, Any]) -> float:
    accuracy = _along(told)
    return math.nan if accuracy is None else float(accuracy[:4].mean() - accuracy[4:].mean())


def partial(first: np.ndarray, second: np.ndarray, given: np.ndarray) -> float:
    """Spearman's correlation given a third."""
    xy, xz, yz = spearman(first, second), spearman(first, given), spearman(second, given)
    left = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / math.sqrt(left) if left > 0 else math.nan


def within_kinds(first: np.ndarray, second: np.ndarray, kinds: np.ndarray) -> float:
    """Correlation of ranks without their means over each kind of network."""
    ranks = []
    for each in (first, second):
        rank = stats.rankdata(each)
        ranks.append(rank - np.array([rank[kinds == kind].mean() for kind in kinds]))
    return float(np.corrcoef(*ranks)[0, 1])


def holm(values: dict[Any, float]) -> dict[Any, float]:
    """P-values adjusted by Holm's method."""
    found, largest = {}, 0.0
    for place, key in enumerate(sorted(values, key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - place) * values[key]))
        found[key] = largest
    return found


def within_networks(rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Of each network: correlations of energy, and of minus the frequency, with accuracy over the directions."""
    falling = -np.array([math.hypot(*each) for each in FREQUENCIES])
    pairs = []
    for row in rows:
        accuracy = _along(row)
        if accuracy is not None and np.ptp(accuracy) > 0:
            pairs.append((spearman(np.array(row["energy"]), accuracy), spearman(falling, accuracy)))
    first, second = np.array(pairs).T
    return first, second


def verdicts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The test, as the docstring says it."""
    table, kinds = columns(rows), np.array([row["kind"] for row in rows])
    found: dict[str, Any] = {"correlations": {}, "baselines": {}, "left out": {}}
    chances: dict[Any, float] = {}
    for outcome in OUTCOMES:
        known = np.isfinite(table[outcome])
        found["left out"][outcome] = [row["name"] for row, keep in zip(rows, known, strict=True) if not keep]
        y = table[outcome][known]
        for key in (*ROWS, *BASELINES):
            x, size = table[key][known], table["weights"][known]
            told = {
                "spearman": _rounded(bootstrapped(spearman, x, y)),
                "within kinds": round(within_kinds(x, y, kinds[known]), 3),
            }
            if key != "weights":
                told["given weights"] = _rounded(bootstrapped(partial, x, y, size))
            if outcome != "low first":
                told["sets"] = {name: round(spearman(x, table[f"{outcome}: {name}"][known]), 3) for name in SETS}
            found["correlations" if key in ROWS else "baselines"].setdefault(outcome, {})[key] = told
            if key in ROWS:
                chances[outcome, key] = float(stats.spearmanr(x, y).pvalue)
    own, same = within_networks(rows)
    chances["within"] = float(stats.ttest_1samp(own, 0).pvalue)
    adjusted = holm(chances)
    for outcome in OUTCOMES:
        best = max(abs(each["spearman"][0]) for each in found["baselines"][outcome].values())
        for key, told in found["correlations"][outcome].items():
            value, sign = told["spearman"][0], PREDICTED[outcome].get(key)
            told |= {"adjusted P": adjusted[outcome, key], "predicted": sign, "best baseline": best}
            told["foretells"] = bool(
                adjusted[outcome, key] < 0.05 and (sign is None or sign * value > 0) and abs(value) > best
            )
    found["within networks"] = {
        "networks": len(own),
        "energy": _rounded(bootstrapped(np.mean, own)),
        "low first": _rounded(bootstrapped(np.mean, same)),
        "difference": _rounded(bootstrapped(np.mean, own - same)),
        "adjusted P": adjusted["within"],
        "foretells": bool(adjusted["within"] < 0.05 and own.mean() > max(0.0, same.mean())),
    }
    return found | {"reliability": reliability(rows), "training": training(rows)}


def _rounded(estimate: Estimate) -> list[float]:
    return [round(each, 3) for each in (estimate.value, estimate.low, estimate.high)]


def reliability(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How well rows and outcomes are known: agreement of two seeds, and intervals against the spread over networks."""
    found: dict[str, Any] = {}
    for key, words in ROWS.items():
        first = np.array([row["card"][key] for row in rows])
        second = np.array([row["card again"][key] for row in rows])
        width = np.nanmedian(first[:, 2] - first[:, 1]) / (2 * 1.96)
        found[words] = {
            "two seeds": round(spearman(first[:, 0], second), 3),
            "error over spread": round(float(width / first[:, 0].std(ddof=1)), 3),
        }
    twice = [row for row in rows if "second training" in row]
    one, other = columns(twice), columns(twice, lambda row: row["second training"])
    for outcome, words in OUTCOMES.items():
        both = np.isfinite(one[outcome]) & np.isfinite(other[outcome])
        agreement = spearman(one[outcome][both], other[outcome][both]) if both.sum() > 2 else math.nan
        found[words] = {"two seeds": round(agreement, 3), "networks": int(both.sum())}
    return found


def training(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Quartiles over networks of accuracies in training and test, in percent."""
    found = {}
    for name in SETS:
        for which in ("train", "early", "final"):
            values = [100 * (row["sets"][name][which] or 0) for row in rows]
            found[f"{name}: {which}"] = np.percentile(values, [0, 25, 50, 75, 100]).round(1).tolist()
    for key in ("along", "along train"):
        values = [100 * max(each or 0 for each in row[key]) for row in rows]
        found[f"D(v), best direction: {'train' if 'train' in key else 'test'}"] = (
            np.percentile(values, [0, 25, 50, 75, 100]).round(1).tolist()
        )
    return found


def power(networks: int, tests: int, repeats: int = 2000) -> float:
    """The correlation of a normal law for which Spearman's is found with 80 % probability at Holm's first threshold."""
    draws = np.random.default_rng(0)
    for percent in range(20, 80):
        own = percent / 100
        x, noise = draws.standard_normal((2, repeats, networks))
        y = own * x + math.sqrt(1 - own**2) * noise
        chance = [stats.spearmanr(a, b).pvalue for a, b in zip(x, y, strict=True)]
        if np.mean(np.array(chance) < 0.05 / tests) >= 0.8:
            return own
    return math.nan


def printed(found: dict[str, Any]) -> None:
    """The tables of `benchmarks/RESULTS.md`."""

    def words(each: list[float]) -> str:
        return "{:.2f} ({:.2f} to {:.2f})".format(*each).replace("-", "−")

    for outcome, title in OUTCOMES.items():
        alone = "" if outcome == "low first" else f" {' | '.join(SETS)} |"
        print(
            f"\n{title}\n\n| row | predicted | Spearman | given weights | within kinds | adjusted P | verdict |{alone}"
        )
        print("|" + "---|" * (7 + 3 * bool(alone)))
        for key, told in {**found["correlations"][outcome], **found["baselines"][outcome]}.items():
            own = key in ROWS
            sign = {1: "+", -1: "−", None: "none"}[told["predicted"]] if own else ""
            verdict = ("foretells" if told["foretells"] else "description") if own else "baseline"
            cells = [{**ROWS, **BASELINES}[key], sign, words(told["spearman"])]
            cells += [words(told["given weights"]) if "given weights" in told else "", f"{told['within kinds']:.2f}"]
            cells += [f"{told['adjusted P']:.3g}" if own else "", verdict]
            cells += [f"{each:.2f}" for each in told.get("sets", {}).values()]
            print(f"| {' | '.join(cells)} |".replace("| -", "| −"))
    for key in ("within networks", "left out", "reliability", "training"):
        print(f"\n{key}")
        for name, each in found[key].items():
            print(f"  {name}: {each}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="+", help="where rows are appended; with --keep, all such files")
    parser.add_argument("--part", default="0/1", help="networks of one of several processes, such as 0/2")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--develop", action="store_true", help="other networks and seeds")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/card_foretells.json from the rows")
    parser.add_argument("--table", action="store_true", help="print the tables of the committed rows")
    parser.add_argument("--power", action="store_true", help="print the correlation that the test finds")
    options = parser.parse_args()
    if options.power:
        print(f"{power(len(NETWORKS), len(ROWS) * len(OUTCOMES) + 1):.2f}")
    elif options.table:
        printed(verdicts(json.loads(HERE.read_text())["rows"]))
    elif options.keep:
        lines = [line for path in options.rows for line in path.read_text().splitlines()]
        order = {net.name: number for number, net in enumerate(OTHERS if options.develop else NETWORKS)}
        rows = sorted((json.loads(line) for line in lines), key=lambda row: order[row["name"]])
        if len(rows) < len(order):
            raise SystemExit(f"{len(order) - len(rows)} networks are missing. Run the same command without --keep.")
        found = verdicts(rows)
        printed(found)
        if not options.develop:
            text = ",\n".join(json.dumps(row) for row in rows)
            HERE.write_text(f'{{"results": {json.dumps(found)},\n"rows": [\n{text}\n]}}\n')
    else:
        measured(options)


if __name__ == "__main__":
    main()
