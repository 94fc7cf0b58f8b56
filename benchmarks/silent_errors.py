"""Cases in which a number would be wrong without a word: what Biascope prints, beside the truth.

Every case was once silently wrong. Each prints the number that a user would see, the true one, and whether there was a warning;
a refusal is printed as such. To compare with another version, put its source on PYTHONPATH:

    python benchmarks/silent_errors.py                             # about a minute on 2 CPU cores
    PYTHONPATH=/another/checkout/src python benchmarks/silent_errors.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.checkpoint import checkpoint

import biascope
from biascope import Estimate, Family, Network, Probe, Run, measure, tangent_gram
from biascope.cli import app

CPU = Run(device="cpu", progress=False)
Case = Callable[[Path], tuple[object, object]]
CASES: dict[str, Case] = {}


def case(words: str) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        CASES[words] = function
        return function

    return register


def rank(matrix: torch.Tensor) -> float:
    return round(float(matrix.trace() ** 2 / matrix.square().sum()), 1)


def directions(build: Callable[[], nn.Module], size: int, folder: Path | None = None, draws: int = 400) -> float:
    """The effective rank that a scan by exact gradients prints."""
    family = Family.initialised(build, name="network")
    run = dataclasses.replace(CPU, folder=folder)
    found = measure("anisotropy_directions", family, Probe.gaussian((size,)), draws=draws, estimator="exact", run=run)
    for sentence in getattr(found, "warnings", ()):
        warnings.warn(sentence, stacklevel=1)
    return round(found.effective_rank.value, 1)


def command(*words: object) -> str:
    """What the command line prints; an error as the exception that it is."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app([str(word) for word in words], standalone_mode=False)
    return out.getvalue()


class Edited(nn.Module):
    """A network whose forward pass is edited between two runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(64, 512), nn.Linear(512, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.squashed(self.layer(x)))

    def squashed(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


@case("kernel after forward was edited, same folder: effective rank of 256")
def edited_kernel(folder: Path) -> tuple[object, object]:
    torch.manual_seed(0)
    network, x = Network.of(Edited()), torch.randn(256, 64)
    run, before = dataclasses.replace(CPU, folder=folder), Edited.squashed
    tangent_gram(network, x, run=run)
    Edited.squashed = lambda self, x: torch.sin(9 * x)  # type: ignore[method-assign]
    try:
        return rank(tangent_gram(network, x, run=run).matrix), rank(tangent_gram(network, x, run=CPU).matrix)
    finally:
        Edited.squashed = before  # type: ignore[method-assign]


@case("scan after a helper in another file was edited: effective rank of 16")
def edited_helper(folder: Path) -> tuple[object, object]:
    build = "from torch import nn\nfrom {0} import squashed\nclass Net(nn.Module):\n    def __init__(self):\n"
    build += "        super().__init__()\n        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 1)\n"
    build += "    def forward(self, x):\n        return self.b(squashed(self.a(x.flatten(1))))\n"
    name = f"helper_{random.randrange(10**9)}"
    helper = folder / f"{name}.py"
    (folder / "net.py").write_text(build.format(name))
    sys.dont_write_bytecode = True

    def scanned(out: str) -> float:
        sys.modules.pop(name, None)
        words = ("--input", "1x4x4", "--estimator", "exact", "--json", "--out", folder / out)
        numbers = json.loads(command("scan", f"{folder}/net.py:Net", *words))["results"][0]["numbers"]
        return round(next(number["value"] for number in numbers if number["key"] == "effective_rank"), 1)

    helper.write_text("def squashed(x):\n    return x.relu()\n")
    scanned("run")
    helper.write_text("def squashed(x):\n    return (4 * x).exp()\n")  # one unit outgrows all others
    return scanned("run"), scanned("fresh")


@case("scan after a number in a closure was changed: trace")
def edited_closure(folder: Path) -> tuple[object, object]:
    class Net(nn.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.layer, self.slope = nn.Linear(8, 8), slope

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.slope * self.layer(x)).tanh().sum(-1, keepdim=True)

    def trace(slope: float, run: Run) -> float:
        family = Family.initialised(lambda: Net(slope), name="net")
        found = measure("anisotropy_directions", family, Probe.gaussian((8,)), draws=64, estimator="exact", run=run)
        return float(f"{found.trace.value:.3g}")

    kept = dataclasses.replace(CPU, folder=folder)
    trace(0.05, kept)
    return trace(5.0, kept), trace(5.0, CPU)


class Checkpointed(nn.Module):
    def __init__(self, checkpointed: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.checkpointed = nn.Linear(64, 64), nn.Linear(64, 1), checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self._inner, x, use_reentrant=False) if self.checkpointed else self._inner(x)
        return self.second(hidden)

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x))


@case("gradient checkpointing: effective rank of 64")
def checkpointing(folder: Path) -> tuple[object, object]:
    return directions(Checkpointed, 64), directions(lambda: Checkpointed(False), 64)


class Fourier(nn.Module):
    def __init__(self, registered: bool = False) -> None:
        super().__init__()
        drawn = torch.randn(64, 16)
        self.register_buffer("B", drawn) if registered else setattr(self, "B", drawn)
        self.out = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = x @ self.B / 8
        return self.out(torch.cat([inner.sin(), inner.cos()], -1))


@case("random tensor that is not registered: effective rank of 64")
def unregistered(folder: Path) -> tuple[object, object]:
    truth = directions(lambda: Fourier(True), 64)
    return directions(Fourier, 64), truth


class Sorted(nn.Module):
    """Sorts its batch by the first number and puts it back, as routing does; or has dead units on its first samples."""

    def __init__(self, dead: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.dead = nn.Linear(6, 24), nn.Linear(24, 1), dead

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = x[:, 0].argsort()
        return self.b(torch.tanh(self.a(x[order])))[order.argsort()]


def kernel_error(network: nn.Module, x: torch.Tensor) -> float:
    """Of a tangent kernel against gradients of single samples, relative, in percent."""
    found, rows = tangent_gram(Network.of(network), x, run=CPU).matrix.double(), []
    for one in x:
        network.zero_grad()
        network(one[None]).sum().backward()
        rows.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters()]).double())
    truth = torch.stack(rows) @ torch.stack(rows).T
    return round(100 * float((found - truth).norm() / truth.norm()), 1)


@case("kernel of a network that sorts its batch: error in percent")
def sorting(folder: Path) -> tuple[object, object]:
    torch.manual_seed(1)
    x = torch.randn(48, 6)
    x[:2, 0] = torch.tensor([-3.0, 3.0])
    return kernel_error(Sorted(), x), 0.0


@case("kernel of a network whose weights have a gradient hook: error in percent")
def hooked(folder: Path) -> tuple[object, object]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    network[0].weight.register_hook(lambda gradient: 2 * gradient)
    return kernel_error(network, torch.randn(32, 6)), 0.0


@case("one flipped byte in kept draws, then the same command: effective rank of 64")
def flipped(folder: Path) -> tuple[object, object]:
    truth = directions(lambda: Checkpointed(False), 64, folder)
    for path in sorted(folder.rglob("draws-*.safetensors"))[:4]:
        data = bytearray(path.read_bytes())
        data[-1] ^= 0x04  # in an exponent
        data[-300] ^= 0x40
        data[len(data) // 2 | 7] ^= 0x04
        path.write_bytes(data)
    return directions(lambda: Checkpointed(False), 64, folder), truth


@case("killed between the two files of a result: arrays of the saved result belong to its numbers")
def mixed(folder: Path) -> tuple[object, object]:
    family, probe = Family.initialised(lambda: Checkpointed(False), name="net"), Probe.gaussian((64,))
    first, second = (
        measure("anisotropy_directions", family, probe, draws=64, estimator="exact", seed=seed, run=CPU)
        for seed in (0, 1)
    )
    first.save(folder / "result")
    document = (folder / "result/result.json").read_bytes()
    second.save(folder / "result")
    (folder / "result/result.json").write_bytes(document)  # as a kill before the second file leaves it
    found = biascope.load(folder / "result")
    return bool(np.array_equal(found.eigenvalues, first.eigenvalues)), True


@case("16-bit ramp as a signal: mean grey")
def deep_image(folder: Path) -> tuple[object, object]:
    from biascope.tasks.signal_files import signal_of

    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(ramp).save(folder / "ramp.png")
    found = signal_of(folder / "ramp.png")
    return round(float((found[0] if isinstance(found, tuple) else found).values.mean()), 3), 0.5


@case("float TIFF ramp as a signal: mean grey")
def float_image(folder: Path) -> tuple[object, object]:
    from biascope.tasks.signal_files import signal_of

    Image.fromarray(np.linspace(0, 1, 64 * 64).reshape(64, 64).astype(np.float32)).save(folder / "ramp.tiff")
    found = signal_of(folder / "ramp.tiff")
    return round(float((found[0] if isinstance(found, tuple) else found).values.mean()), 3), 0.5


@case("Family.empirical of tanh and sin networks: output of the second")
def two_forwards(folder: Path) -> tuple[object, object]:
    one, two = nn.Sequential(nn.Linear(1, 1), nn.Tanh()), nn.Sequential(nn.Linear(1, 1), Sine())
    two.load_state_dict({name: torch.ones_like(part) for name, part in one.state_dict().items()})
    family, x = Family.empirical([one, two], name="both"), torch.ones(1, 1)
    return round(float(family.draw(2, seed=0, run=CPU)(x)[1].detach()), 3), round(float(two(x).detach()), 3)


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


@case("builder seeded by the clock: the same seed gives the same weights twice")
def by_the_clock(folder: Path) -> tuple[object, object]:
    def build() -> nn.Module:
        torch.manual_seed(time.time_ns())
        return nn.Linear(3, 1)

    draws = [Family.initialised(build, name="net").draw(2, seed=0, run=CPU).params["weight"] for _ in range(2)]
    return bool(torch.equal(*draws)), True


class Cut(nn.Module):
    def __init__(self, cut: bool = True) -> None:
        super().__init__()
        self.layer, self.out, self.cut = nn.Linear(64, 64), nn.Linear(64, 1), cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.split(32, -1)
        return self.out(torch.tanh(self.layer(torch.cat([left.detach() if self.cut else left, right], -1))))


@case("half of the input detached: effective rank of 64")
def detached(folder: Path) -> tuple[object, object]:
    truth = directions(lambda: Cut(False), 64)
    return directions(Cut, 64), truth


@case("directional_bias with gradients clipped at -1: accuracy in percent")
def clipped(folder: Path) -> tuple[object, object]:
    from biascope.tasks.bases import fourier_half

    family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), name="linear")
    basis = fourier_half((1, 4, 4)).part(range(2))
    how = {"noise": (0.5,), "samples": (64,), "test": 256, "epochs": 2, "repeats": 1, "batch": 16}
    found = measure("directional_bias", family, basis, clip=-1.0, **how, run=CPU)
    return round(100 * float(np.nanmean(found.accuracy)), 1), "no meaning"


@case("overlap of two isotropic networks in compare; in brackets: not resolved")
def chance(folder: Path) -> tuple[object, object]:
    (folder / "a.py").write_text("from torch import nn\ndef build(): return nn.Linear(64, 1)\n")
    (folder / "b.py").write_text("from torch import nn\ndef build(): return nn.Linear(64, 1, bias=False)\n")
    out = command("compare", f"{folder}/a.py:build", f"{folder}/b.py:build", "--input", "64", "--out", folder / "c")
    return next(line.split()[-1] for line in out.splitlines() if line.strip().startswith("a ")), "chance"


@case("selftest of a block whose last scale starts at zero: failed checks")
def on_kinks(folder: Path) -> tuple[object, object]:
    from biascope.kernels.selftest import selftest

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
            self.branch, self.head = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.Linear(6, 1)
            nn.init.zeros_(self.norm.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(self.stem(x))
            return self.head(torch.relu(hidden + self.norm(self.branch(hidden))).mean((2, 3)))

    return sum(not check.passed for check in selftest(Family.initialised(Block, name="block"), (1, 8, 8))), 0


@case("merge check of a network with a random forward pass")
def random_merge(folder: Path) -> tuple[object, object]:
    text = "import torch\nfrom torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
    text += "    def forward(self, x):\n        return super().forward((x + 1e-3 * torch.randn_like(x)).flatten(1))\n"
    (folder / "net.py").write_text(text)
    import safetensors.torch

    torch.manual_seed(0)
    base = nn.Linear(4, 2).state_dict()
    for name, scale in (("base", 0.0), ("a", 0.05), ("b", 0.05)):
        state = {key: part + scale * torch.randn_like(part) for key, part in base.items()}
        safetensors.torch.save_file(state, folder / f"{name}.safetensors")
        np.savez(folder / f"{name}.npz", x=np.random.default_rng(0).uniform(size=(200, 1, 2, 2)).astype(np.float32))
    files = [folder / f"{name}.safetensors" for name in ("base", "a", "b")]
    data = ("--data", folder / "a.npz", "--data", folder / "b.npz", "--model", f"{folder}/net.py:Net")
    out = command("merge", "check", *files, *data, "--out", folder / "out")
    return " ".join(out.split())[:100], "no verdict possible"


# ---- modules that are not the same function at other weights --------------------------------------------------------


class Hidden(nn.Module):
    """Two layers, and ways to hide what the forward pass reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


class FusedOnce(Hidden):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "fused"):
            self.fused = (self.last.weight @ self.first.weight).detach()
        return torch.tanh(x @ self.fused.T)


class MergedByEval(Hidden):
    """An adapter that eval() adds to the weight, as some adapters do."""

    merged = False

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(2, 16)), nn.Parameter(torch.randn(32, 2))

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if self.merged is mode:
            self.first.weight.data += (-1 if mode else 1) * self.B @ self.A
            self.merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) if self.merged else self.first(x) + x @ self.A.T @ self.B.T
        return self.last(torch.relu(hidden))


class FilledByEval(nn.Module):
    """Filters that are expanded from few weights by eval(), as of steerable networks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(4)), nn.Linear(32, 1)
        self.register_buffer("basis", torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("filters", torch.zeros(16, 32))

    def train(self, mode: bool = True) -> nn.Module:
        if not mode:
            self.filters = torch.einsum("k,kio->io", self.weight, self.basis).detach()
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        expanded = torch.einsum("k,kio->io", self.weight, self.basis)
        return self.last(torch.relu(x @ (expanded if self.training else self.filters)))


class ReachesBack(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.steps = lambda x: self.last(torch.relu(self.first(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(x)


class RefersBack(Hidden):
    """Reads its weights under another name, by a weak reference."""

    def __init__(self) -> None:
        super().__init__()
        self.found = weakref.ref(self.first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.found()
        assert first is not None
        return self.last(torch.relu(first(x)))


class ScaledOnce(Hidden):
    """ActNorm: the first batch sets a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32))
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if not self.seen:
            with torch.no_grad():
                self.scale.copy_(1 / (hidden.std(0, correction=0) + 0.1))
                self.seen.fill_(True)
        return self.last(torch.relu(hidden * self.scale))


def rank_by_autograd(build: Callable[[], nn.Module], draws: int = 400) -> float:
    """The effective rank of mean gradients at one input for each network that the user builds, by plain autograd."""
    x, gradients = torch.randn(draws, 1, 16, generator=torch.Generator().manual_seed(1)), []
    for seed in range(draws):
        torch.manual_seed(seed)
        network, here = build().eval(), x[seed].requires_grad_()
        gradients.append(torch.autograd.grad(network(here).sum(), here)[0][0])
    vectors = torch.stack(gradients).double()
    gram = vectors @ vectors.T
    off = gram.square().sum() - gram.diagonal().square().sum()
    trace = gram.trace() / draws
    return round(float(trace**2 * draws * (draws - 1) / off), 1)


for _words, _build in {
    "weight fused at the first call": FusedOnce,
    "adapter that eval() merges": MergedByEval,
    "filters that eval() fills": FilledByEval,
    "closure over self": ReachesBack,
    "scale that the first batch sets": ScaledOnce,
}.items():

    @case(f"{_words}: effective rank of 16")
    def changed_by_weights(folder: Path, build: Callable[[], nn.Module] = _build) -> tuple[object, object]:
        return directions(build, 16), rank_by_autograd(build)


def kernel_trace(module: nn.Module, x: torch.Tensor) -> float:
    module.eval()
    rows = [torch.autograd.grad(module(one[None]).sum(), list(module.parameters()), allow_unused=True) for one in x]
    return round(sum(float(part.square().sum()) for row in rows for part in row if part is not None) / len(x), 2)


@case("weak reference to a layer: trace of the kernel at other weights")
def at_other_weights(folder: Path) -> tuple[object, object]:
    torch.manual_seed(0)
    user, other, x = RefersBack(), RefersBack(), torch.randn(8, 16)
    user(x)
    found = tangent_gram(Network.of(other).with_params(dict(user.named_parameters())), x, run=CPU)
    return round(float(found.matrix.trace()) / 8, 2), kernel_trace(user, x)


for _words, _build in {
    "weight fused at the first call": "FusedOnce",
    "adapter that eval() merges": "MergedByEval",
}.items():

    @case(f"merge check, {_words}: share of predictions that a model changes, in percent")
    def changed_predictions(folder: Path, build: str = _build) -> tuple[object, object]:
        import safetensors.torch

        text = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom silent_errors import {build}, torch\n"
        text += f"class Net({build}):\n    def forward(self, x):\n        found = super().forward(x.flatten(1))\n"
        text += "        return torch.cat([found, -found], 1)\n"
        (folder / "net.py").write_text(text)
        kind, states, x = (
            globals()[build],
            [],
            torch.randint(256, (400, 16), generator=torch.Generator().manual_seed(0)) / 255,
        )
        torch.manual_seed(0)
        base = kind().state_dict()
        for name in ("base", "a", "b"):
            size = 0.2 * (name != "base")
            states.append(
                {key: part + size * torch.randn_like(part) * part.std(correction=0) for key, part in base.items()}
            )
            safetensors.torch.save_file(states[-1], folder / f"{name}.safetensors")
        np.savez(folder / "x.npz", x=x.reshape(-1, 1, 4, 4).numpy())
        files = [folder / f"{name}.safetensors" for name in ("base", "a", "b")]
        words = ("--data", folder / "x.npz", "--pixels", "0.5:0.25", "--model", f"{folder}/net.py:Net", "--grid", "0")
        printed = json.loads(command("merge", "check", *files, *words, "--json", "--out", folder / "out"))
        numbers = printed["results"][0]["numbers"]
        found = next(number["value"] for number in numbers if number["key"].startswith("distance_from_base"))

        def positive(state: dict[str, torch.Tensor]) -> torch.Tensor:
            user = kind()
            user.load_state_dict(state)
            with torch.no_grad():
                return user.eval()((x - 0.5) / 0.25)[:, 0] > 0

        truth = (positive(states[0]) != positive(states[1])).float().mean()
        return round(100 * found, 1), round(100 * float(truth), 1)


# ---- numbers, builders and settings around a call --------------------------------------------------------------------


class Redrawn(nn.Module):
    """Draws its layer anew until a rule holds, and looks at it through NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        while self.layer.weight.detach().numpy().min() < -0.4:
            self.layer.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@case("builder that redraws by a look through NumPy: members that break its rule, in percent")
def redrawn(folder: Path) -> tuple[object, object]:
    members = Family.initialised(Redrawn, name="network").draw(500, seed=0, run=CPU)
    smallest = members.params["layer.weight"].flatten(1).amin(1)
    return round(100 * float((smallest < -0.4).float().mean()), 1), 0.0


class CommonSlope(nn.Module):
    def __init__(self, common: float) -> None:
        super().__init__()
        self.layer, self.common = nn.Linear(12, 1), common
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(1, 12) * torch.linspace(1, 0.1, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.common * x.sum(-1, keepdim=True)


@case("gradients that share 1,000 times their spread, centred, float64: effective rank of 12")
def common_slope(folder: Path) -> tuple[object, object]:
    def rank_with(common: float) -> float:
        family = Family.initialised(lambda: CommonSlope(common), name="network")
        run = dataclasses.replace(CPU, precision="float64")
        words = {"draws": 400, "estimator": "exact", "centred": True}
        return round(
            measure("anisotropy_directions", family, Probe.gaussian((12,)), run=run, **words).effective_rank.value, 2
        )

    return rank_with(1e3), rank_with(0.0)


class Blind(nn.Module):
    """Sees 96 of 128 inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x[:, :96])


@case("network that sees 96 of 128 inputs: directions resolved")
def blind(folder: Path) -> tuple[object, object]:
    found = measure(
        "mean_gradient",
        Family.initialised(Blind, name="network"),
        Probe.gaussian((128,), num=4, fresh=True),
        draws=2000,
        run=CPU,
    )
    return found.resolved, "at most 96"


@case("torch.autocast around a call: mean squared gradient")
def under_autocast(folder: Path) -> tuple[object, object]:
    def trace() -> float:
        family = Family.initialised(
            lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)), name="network"
        )
        return float(f"{measure('average_geometry', family, Probe.gaussian((16,)), draws=64, run=CPU).trace.value:.6g}")

    with torch.autocast("cpu", dtype=torch.bfloat16):
        printed = trace()
    return printed, trace()


@case("output times 1e-30: mean squared gradient")
def tiny(folder: Path) -> tuple[object, object]:
    class Scaled(nn.Linear):
        scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    def trace(scale: float) -> Estimate:
        family = Family.initialised(lambda: type("Scaled", (Scaled,), {"scale": scale})(8, 1), name="network")
        return measure("average_geometry", family, Probe.gaussian((8,)), draws=32, run=CPU).trace

    return trace(1e-30), trace(1.0).map_linear(1e-60)


@case("a report.html of another program in --out: its content")
def foreign_report(folder: Path) -> tuple[object, object]:
    (folder / "net.py").write_text("from torch import nn\ndef build(): return nn.Linear(16, 1)\n")
    (folder / "out").mkdir()
    (folder / "out" / "report.html").write_text("mine")
    with contextlib.suppress(ValueError):
        command("scan", f"{folder}/net.py:build", "--input", "16", "--draws", "8", "--out", folder / "out")
    return (folder / "out" / "report.html").read_text()[:15].strip(), "mine"


def told(function: Case) -> Iterator[str]:
    """What came out, the truth, and whether there was a warning."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            printed, truth = function(Path(folder))
        except (ValueError, TypeError) as error:
            yield from (f"refused: {' '.join(str(error).split())[:110]}", "")
            return
    sentences = [str(each.message) for each in caught if each.category is UserWarning]
    yield f"{printed}" + (f", with a warning: {sentences[0][:80]} …" if sentences else "")
    yield f"{truth}"


def main() -> None:
    print(f"biascope from {Path(biascope.__file__).parent.parent.parent.name}, torch {torch.__version__}")
    for words, function in CASES.items():
        printed, truth = told(function)
        print(f"{words}\n    printed: {printed}\n    truth:   {truth}", flush=True)


if __name__ == "__main__":
    main()
