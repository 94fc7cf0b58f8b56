"""Kept work is reused where nothing changed, and never where something did: in any file, closure, cell, package or data."""

import dataclasses
import functools
import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from biascope.derivatives.linearize import linearize
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.source import family_of
from biascope.kernels.gram import tangent_gram
from biascope.networks.lenet import lenet
from biascope.results.registry import find
from biascope.runs import code, files, identity
from biascope.runs.code import code_of
from biascope.runs.digest import digest
from biascope.runs.identity import DERIVED, content_of, described, identity_of
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.signals import Signal, SignalTask
from biascope.tasks.task import Arrays
from biascope.training.meta import pretrained
from biascope.training.recipe import Recipe

CPU = Run(device="cpu")


def compiled(text: str, **given: object) -> dict[str, object]:
    """What a notebook cell or a script on standard input defines: functions that have no file."""
    scope: dict[str, object] = {"__name__": "__main__", "torch": torch, "nn": nn, **given}
    exec(compile(textwrap.dedent(text), "<stdin>", "exec"), scope)
    return scope


FORWARD = """
    SCALE = {scale}

    def squashed(x):
        return {inner}(x)

    def outer(x, power={power}):
        {comment}
        return SCALE * squashed(x) ** power
"""
SAME = {"scale": 2.0, "inner": "torch.tanh", "power": 1, "comment": "# why"}


@pytest.mark.parametrize(
    "change",
    [{"scale": 3.0}, {"inner": "torch.sin"}, {"power": 2}],
    ids=["a global", "a function that is called", "a default"],
)
def test_code_counts_wherever_a_function_reaches_it(change):
    assert code_of(compiled(FORWARD.format(**SAME))["outer"]) == code_of(compiled(FORWARD.format(**SAME))["outer"])
    changed = compiled(FORWARD.format(**{**SAME, **change}))["outer"]
    assert code_of(changed) != code_of(compiled(FORWARD.format(**SAME))["outer"])


@pytest.mark.parametrize(
    "words",
    ["# another comment, over\n\n        # lines", '"""A docstring."""'],
    ids=["comment", "docstring"],
)
def test_comments_docstrings_and_lines_do_not_count(words):
    changed = compiled("\n\n\n" + FORWARD.format(**{**SAME, "comment": words}))["outer"]
    assert code_of(changed) == code_of(compiled(FORWARD.format(**SAME))["outer"])


def test_what_a_function_does_not_reach_does_not_count():
    with_others = compiled(FORWARD.format(**SAME) + "\n    OTHER = 7\n    def unrelated(x): return OTHER\n")["outer"]
    assert code_of(with_others) == code_of(compiled(FORWARD.format(**SAME))["outer"])


def test_closures_partials_methods_hooks_and_attributes_count():
    def line(slope: object) -> object:
        return lambda: (nn.Linear(2, 1), slope)

    class Holder:
        def __init__(self, value: object) -> None:
            self._value = value

        def build(self) -> object:
            return self._value

    def hooked(factor: float) -> nn.Module:
        layer = nn.Linear(2, 1)
        layer.register_forward_hook(lambda module, inputs, output: factor * output)
        return layer

    def patched(factor: float) -> nn.Module:
        layer = nn.ReLU()
        layer.forward = lambda x: factor * x  # type: ignore[method-assign]
        return layer

    ways = [line, Holder, hooked, patched, functools.partial(functools.partial, print), lambda v: Holder(v).build]
    ways += [
        lambda v: Holder([{"a": (v,)}]),
        lambda v: nn.Dropout(v / 10),
        lambda v: {v, "b"},
        lambda v: torch.full((2,), v),
    ]
    for way in ways:
        assert code_of(way(2.0)) == code_of(way(2.0)), way
        assert code_of(way(2.0)) != code_of(way(3.0)), way


def test_installed_packages_count_by_their_version(monkeypatch):
    before = code_of(nn.ReLU(), torch.optim.SGD, np.linalg.norm)
    monkeypatch.setattr(code, "_version", lambda package: f"{package} of tomorrow")
    code._origin_of_file.cache_clear()
    try:
        assert code_of(nn.ReLU(), torch.optim.SGD, np.linalg.norm) != before
    finally:
        code._origin_of_file.cache_clear()


def test_cycles_deep_nests_and_things_without_content_end():
    loop: list[object] = []
    loop.append(loop)
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    import threading

    assert code_of(loop) == code_of(loop)
    assert code_of(deep)
    assert code_of(threading.Lock()) == code_of(threading.Lock())


def test_a_family_is_the_same_whatever_this_process_did_before():
    """Caches of the engine are no part of a network that is built of its layers."""
    families = [Family.initialised(functools.partial(lenet, activation="tanh"), name="lenet") for _ in range(2)]
    before = families[0].identity
    torch.manual_seed(0)
    digest(torch.randn(3))
    families[0].draw(4, seed=0, run=CPU)
    linearize(families[0].template)
    assert families[1].identity == families[0].identity == before
    assert Family.initialised(functools.partial(lenet, activation="relu"), name="lenet").identity != before


def test_sets_count_whatever_their_order():
    command = (
        "from biascope.runs.identity import code_of; print(code_of(lambda x: x in {'a', 'b', 'c'}, {'u', 'v', 'w'}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", command],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_parts_count_by_content_and_what_follows_from_others_does_not():
    data = Arrays({"train": (torch.eye(2), torch.tensor([0, 1]))}, name="a name")
    renamed = Arrays({"train": (torch.eye(2), torch.tensor([0, 1]))}, name="another")
    other = Arrays({"train": (torch.eye(2), torch.tensor([1, 1]))}, name="a name")
    assert content_of(data) == content_of(renamed) != content_of(other)
    assert content_of(Recipe(rate=0.1)) != content_of(Recipe(rate=0.2))
    different = [
        1,
        1.5,
        "1",
        None,
        True,
        [1],
        {"a": 1},
        {"a": "1"},
        np.ones(2),
        torch.ones(2),
        torch.ones(2, 1),
        range(3),
    ]
    assert len({json.dumps(described(value)) for value in different}) == len(different)

    @dataclasses.dataclass(frozen=True)
    class Part:
        chosen: int
        follows: int = dataclasses.field(metadata=DERIVED)

    assert content_of(Part(1, 2)) == content_of(Part(1, 3)) != content_of(Part(2, 2))


def test_device_precision_versions_and_engine_code_count(monkeypatch):
    def name(run: Run = CPU, code: object = tangent_gram) -> str:
        return identity_of("work", run, code=code, seed=0).name

    before = name()
    assert before == name()
    assert before != name(Run(device="cpu", precision="float64"))
    assert before != name(code=pretrained)
    monkeypatch.setattr(identity, "_versions", lambda: {"torch": "tomorrow"})
    assert before != name()


EDITED = """
import torch
from torch import nn
from parts import Block

def build():
    return nn.Sequential(nn.Flatten(), Block(16), nn.Linear(16, 1))
"""
PARTS = """
import torch
from torch import nn
from activation import squashed

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, size)
    def forward(self, x):
        return squashed(self.layer(x))
"""
ACTIVATION = "import torch\nimport unrelated\ndef squashed(x):\n    return torch.relu(x)\n"
FILES = {"net.py": EDITED, "parts.py": PARTS, "activation.py": ACTIVATION, "unrelated.py": "NUMBER = 1\n"}


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> float:
    """The trace of the network in a folder, its files read anew as a new process would."""
    monkeypatch.chdir(folder)
    for name in ("parts", "activation", "unrelated"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two writes within one second look alike to the cache
    family = family_of("net.py:build", shape=(1, 4, 4))
    probe = Probe.gaussian((1, 4, 4))
    return float(find("anisotropy_directions")(family, probe, draws=40, estimator="exact", run=run).trace.value)


@pytest.mark.parametrize(
    ("file", "old", "new", "recomputed"),
    [
        ("activation.py", "torch.relu(x)", "torch.sin(9 * x)", True),
        ("parts.py", "self.layer(x)", "self.layer(3 * x)", True),
        ("net.py", "nn.Flatten()", "nn.Flatten(), nn.Hardtanh(-9, 0.1)", True),
        ("activation.py", "def squashed", "# a comment\n\ndef squashed", False),
        ("unrelated.py", "NUMBER = 1", "NUMBER = 2", False),
    ],
    ids=["a helper in a third file", "the class in another file", "the builder", "a comment", "an unrelated file"],
)
def test_work_is_done_anew_if_and_only_if_code_changed_that_it_reaches(
    tmp_path, monkeypatch, file, old, new, recomputed
):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    run = Run(tmp_path / "run", device="cpu")
    first = measured(tmp_path, monkeypatch, run)
    kept = set(tmp_path.rglob("draws-*"))
    assert FILES[file].replace(old, new) != FILES[file]
    (tmp_path / file).write_text(FILES[file].replace(old, new))
    second = measured(tmp_path, monkeypatch, run)
    assert second == measured(tmp_path, monkeypatch, CPU)
    assert (second != first) is recomputed
    assert (set(tmp_path.rglob("draws-*")) != kept) is recomputed


STDIN = """
import sys, torch
from torch import nn
from biascope import Family, Probe, Run, measure
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(9, 9)
        self.out = nn.Linear(9, 1)
    def forward(self, x):
        return self.out(torch.tanh(slope * self.layer(x)))
for slope in map(float, sys.argv[1:]):
    result = measure("anisotropy_directions", Family.initialised(lambda: Net(), name="mine"), Probe.gaussian((9,)),
                     draws=40, estimator="exact", run=Run(folder="run", device="cpu"))
    print(result.effective_rank.value)
"""


def test_what_comes_from_standard_input_resumes_and_is_not_mixed_up(tmp_path):
    def told(*slopes: str) -> tuple[list[str], int]:
        done = subprocess.run(
            [sys.executable, "-", *slopes],
            input=STDIN,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        return done.stdout.split(), len(list(tmp_path.rglob("identity.json")))

    (first,), kept = told("0.1")
    assert kept == 1
    (again, other), kept = told("0.1", "5.0")
    assert kept == 2
    assert again == first
    assert float(other) != float(first)


def test_a_closure_with_another_number_is_another_network(tmp_path):
    class Net(nn.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.layer, self.slope = nn.Linear(8, 8), slope

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.slope * self.layer(x)).tanh().sum(-1, keepdim=True)

    measure, probe = find("anisotropy_directions"), Probe.gaussian((8,))

    def trace(slope: float, folder: Path | None) -> float:
        family = Family.initialised(lambda: Net(slope), name="net")
        return measure(family, probe, draws=32, estimator="exact", run=Run(folder, device="cpu")).trace.value

    kept = [trace(slope, tmp_path) for slope in (0.05, 5.0, 0.05)]
    assert kept == [trace(slope, None) for slope in (0.05, 5.0, 0.05)]
    assert kept[0] != kept[1]


class Squashed(nn.Module):
    """Its forward pass can be exchanged while weights and repr stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 40)
        self.out = nn.Linear(40, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.layer(x)))


def test_a_kernel_of_an_edited_forward_pass_is_computed_anew(tmp_path, monkeypatch):
    network, x, run = Network.of(Squashed()), torch.randn(12, 6), Run(tmp_path, device="cpu")
    first = tangent_gram(network, x, run=run).matrix
    torch.testing.assert_close(tangent_gram(network, x, run=run).matrix, first)
    monkeypatch.setattr(Squashed, "forward", lambda self, x: self.out(torch.sin(9 * self.layer(x))))
    second = tangent_gram(network, x, run=run).matrix
    torch.testing.assert_close(second, tangent_gram(network, x, run=CPU).matrix)
    assert float((second - first).norm() / first.norm()) > 0.5


def test_pre_training_of_an_edited_network_is_done_anew(tmp_path, monkeypatch):
    signal = SignalTask.of(Signal(torch.linspace(0, 1, 6)[:, None]), held_out=0.0, seed=0, run=CPU)

    class Curve(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sin()

    network, recipe = Network.of(Curve(1, 1)), Recipe("gd", rate=0.1, schedule="constant", steps=5, loss="squared")
    run = Run(tmp_path, device="cpu")
    first = pretrained(network, signal, recipe=recipe, seed=0, run=run).losses
    assert torch.equal(pretrained(network, signal, recipe=recipe, seed=0, run=run).losses, first)
    monkeypatch.setattr(Curve, "forward", lambda self, x: (5 * nn.functional.linear(x, self.weight, self.bias)).cos())
    second = pretrained(network, signal, recipe=recipe, seed=0, run=run).losses
    assert torch.equal(second, pretrained(network, signal, recipe=recipe, seed=0, run=CPU).losses)
    assert not torch.allclose(second, first)


def test_no_caller_puts_an_identity_together_by_itself():
    """Every kept work goes through one function: what it depends on is named, not described."""
    source = Path(identity.__file__).parents[1]
    assert len(list(source.rglob("*.py"))) > 200
    for path in source.rglob("*.py"):
        text = path.read_text()
        if path.name in ("identity.py", "trials.py"):
            continue
        assert "Trials({" not in text, path
        assert "Sweep({" not in text, path


def test_an_array_edited_behind_a_tensor_is_seen(tmp_path):
    array = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    network, x, run = Network.of(Squashed()), torch.from_numpy(array), Run(tmp_path, device="cpu")
    before = tangent_gram(network, x, run=run).matrix
    array[17] *= 3
    after = tangent_gram(network, x, run=run).matrix
    torch.testing.assert_close(after, tangent_gram(network, x, run=CPU).matrix)
    assert float(after[17, 17]) != float(before[17, 17])


class Environment(nn.Module):
    """What its surroundings say decides its backward pass, a far output, or one small output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        if "STOP" in os.environ:
            hidden = torch.cat([hidden[:, :1].detach(), hidden[:, 1:]], 1)
        if "WIDE" in os.environ:
            hidden = hidden.clamp(-20, 20)
        scale = 1e-6 if "SMALL" in os.environ else 1e-8
        return hidden * torch.tensor([1e3, scale], dtype=x.dtype)


@pytest.mark.parametrize("name", ["STOP", "WIDE", "SMALL"])
def test_gradients_far_inputs_and_small_outputs_are_compared(tmp_path, monkeypatch, name):
    network = Network.of(Environment())

    def found() -> identity.Identity:
        return identity_of("work", CPU, code=(), at=(4,), network=network)

    before = found()
    assert before.agrees(found().outputs)
    monkeypatch.setenv(name, "1")
    assert found().name == before.name
    assert not before.agrees(found().outputs)


class Words(nn.Module):
    """A table of ten words, whose ids a task serves as floating-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3)
        self.asked: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.asked.append(tokens.long())
        return torch.tanh(self.table(tokens.long())).mean(1)


def test_a_text_encoder_is_compared_on_ids_that_its_table_has(monkeypatch):
    """Negative ids raise on a CPU, where nothing would be compared; on a GPU they end the process."""
    network = Network.of(Words())
    texts = Arrays({"train": (torch.tensor([[2, 9, 4], [3, 0, 0]]), torch.tensor([0, 1]))})
    assert texts.batch("train", torch.tensor([0]))[0].is_floating_point()

    def found() -> identity.Identity:
        return identity_of("work", CPU, code=(), at=texts, network=network)

    before = found()
    assert np.isfinite(np.concatenate(before.outputs)).all()
    assert network.module.asked
    assert all(int(ids.min()) >= 0 and int(ids.max()) < 10 for ids in network.module.asked)
    monkeypatch.setattr(torch, "tanh", torch.sin)
    assert not before.agrees(found().outputs)


def test_bytes_of_images_and_real_numbers_are_no_ids():
    labels = torch.tensor([0, 1])
    kinds = {torch.uint8: False, torch.float32: False, torch.int64: True, torch.int32: True}
    for kind, ids in kinds.items():
        assert Arrays({"train": (torch.zeros(2, 4, dtype=kind), labels)}).holds_ids == ids


def test_a_network_with_a_table_never_meets_made_up_inputs_on_an_accelerator():
    network, real = Network.of(Words()), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    elsewhere = torch.device("meta")  # numbers cannot come back from there
    assert network.witness(torch.ones(2, 3, dtype=torch.long), elsewhere) is not None
    assert network.witness(real - 5, elsewhere) is None
    assert Network.of(nn.Linear(3, 1)).witness(real, elsewhere) is None


def test_a_law_that_the_surroundings_decide_is_another_law(monkeypatch):
    def build() -> nn.Module:
        layer = nn.Linear(2, 1)
        if float(torch.rand(())) < float(os.environ.get("SHARE", "0")):
            nn.init.constant_(layer.weight, 3.0)
        return layer

    before = Family.initialised(build, name="net").identity
    monkeypatch.setenv("SHARE", "0.5")
    assert Family.initialised(build, name="net").identity != before


HIDDEN = {
    "a relative import in the body": "def act(x):\n    from .lay import inner\n    return inner(x)\n",
    "a module imported in the body": "def act(x):\n    from . import lay\n    return lay.inner(x)\n",
    "a borrowed name": "import functools, torch\nfrom .lay import inner\n"
    "@functools.wraps(torch.relu)\ndef act(x):\n    return inner(x)\n",
    "an attribute of a function": "from .lay import inner\ndef act(x):\n    return act.f(x)\nact.f = inner\n",
    "single dispatch": "import functools, torch\nfrom .lay import inner\n@functools.singledispatch\ndef act(x):\n    return x\n"
    "act.register(torch.Tensor, inner)\n",
    "an object around a function": "import functools\nfrom .lay import inner\nclass Deco:\n    def __init__(self, f):\n"
    "        functools.update_wrapper(self, f)\n        self.f = inner\n    def __call__(self, x):\n        return self.f(x)\n"
    "@Deco\ndef act(x):\n    return x\n",
    "a named tuple with a method": "from typing import NamedTuple\nfrom .lay import inner\nclass Pair(NamedTuple):\n    a: int = 1\n"
    "    def go(self, x):\n        return inner(x)\nPAIR = Pair()\ndef act(x):\n    return PAIR.go(x)\n",
    "a deque": "import collections\nfrom .lay import inner\nSTEPS = collections.deque([inner])\ndef act(x):\n    return STEPS[0](x)\n",
    "a method of a dictionary": "from .lay import inner\nget = {'f': inner}.get\ndef act(x):\n    return get('f')(x)\n",
}


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN.keys())
def test_code_is_found_behind_imports_decorators_and_containers(tmp_path, monkeypatch, text):
    def digest(limit: int) -> str:
        name = f"pack{limit}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "lay.py").write_text(f"def inner(x):\n    return x.clamp(-{limit}, {limit})\n")
        (folder / "acts.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        act = importlib.import_module(f"{name}.acts").act
        act(torch.ones(1))  # which may import
        return code_of(act)

    assert digest(10) != digest(50)


def test_weights_of_a_network_in_a_global_count():
    def digest(value: float) -> str:
        inner = nn.Linear(1, 1)
        nn.init.constant_(inner.weight, value)
        nn.init.zeros_(inner.bias)
        return code_of(compiled("def act(x):\n    return INNER(x)\n", INNER=inner)["act"])

    assert digest(1.0) == digest(1.0)
    assert digest(1.0) != digest(2.0)


def test_what_else_a_process_has_imported_does_not_change_the_digest_of_code():
    modules = ["biascope.families.source", "biascope.papers.linearized2021.shared"]

    def digests(*others: str) -> str:
        code = f"import importlib\nfor name in {others!r}: importlib.import_module(name)\n"
        code += "from biascope.runs.code import _modules_code\n"
        code += (
            f"for name in {modules!r}:\n    importlib.import_module(name)\n    print(_modules_code(frozenset([name])))"
        )
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    alone = digests()
    assert len(set(alone.split())) == 2
    assert alone == digests("biascope.networks.vit", "biascope.data.text")


def test_making_a_folder_does_not_change_the_digest_of_code(tmp_path: Path) -> None:
    """The process that makes the run folder must find the same work again as those that come later."""
    digested = code._module_code.__wrapped__
    before = digested(files.__name__)
    files.make_writable(tmp_path / "new" / "folder")
    assert digested(files.__name__) == before


LEAVING = """
    CACHE = {{}}

    def counted(x):
        counted.calls += 1
        return x * {slope}

    counted.calls = 0

    class Leaving(nn.Module):
        of_class = 0

        def __init__(self):
            super().__init__()
            self.net, self.calls, self.scale, self.seen = nn.Linear(6, 1), 0, {scale}, []

        def forward(self, x, kept={{}}):
            self.calls += 1
            self.seen.append(x.shape)
            self.last = x.detach()
            type(self).of_class += 1
            kept[x.shape] = CACHE[x.shape] = x.detach()
            return counted(self.scale * self.net(x)).sin()

    def build():
        CACHE["builds"] = CACHE.get("builds", 0) + 1
        return Leaving()
"""


class Recurrent(nn.Module):
    """A recurrent layer of torch keeps the tensors that stood in for its weights at the last call."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x.unflatten(1, (3, 2)))[0][:, -1])


def leaving(scale: float = 2.0, slope: float = 1.0) -> object:
    return compiled(LEAVING.format(scale=scale, slope=slope))["build"]


LEFT_BEHIND = {kind.__name__: functools.partial(Recurrent, kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)}


@pytest.mark.parametrize("name", [*LEFT_BEHIND, "counters and caches"])
@pytest.mark.parametrize("law", ["initialised", "point"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_calls_leave_behind_is_no_change_of_a_network(name: str, law: str, tmp_path: Path) -> None:
    """Else every scan of an LSTM would mix results of two networks, and nothing kept would be found again."""
    build = LEFT_BEHIND.get(name) or leaving()
    with forked_rng(3):
        family = Family.initialised(build) if law == "initialised" else Family.point(build(), name=name)
    before, run = family.identity, Run(device="cpu", folder=tmp_path, progress=False)
    line = linearize(family.template)
    of_line = line.identity
    for num in (2, 4):
        find("average_geometry")(family, Probe.gaussian((6,), num=num, fresh=True), draws=16, run=run)
        if name != "LSTM":  # which has no derivative in forward mode on a CPU
            line(torch.randn(num, 6))
    assert family.identity == before
    assert line.identity == of_line
    assert len(list((tmp_path / "trials").iterdir())) == 2
    find("average_geometry")(family, Probe.gaussian((6,), num=2, fresh=True), draws=16, run=run)
    assert len(list((tmp_path / "trials").iterdir())) == 2


def test_a_change_is_seen_beside_what_calls_leave_behind() -> None:
    contents = [
        Family.initialised(leaving(*change), name="net").identity["content"] for change in [(), (), (3.0,), (2.0, 3.0)]
    ]
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3


def test_a_module_that_its_owner_changed_is_another_network() -> None:
    first = Family.initialised(leaving(), name="net").draw(1, seed=0, run=CPU).member(0)
    copies = [first.as_module() for _ in range(3)]
    copies[2].scale = 5.0
    contents = [Network.of(copy).identity for copy in copies]
    assert contents[0] == contents[1] != contents[2]
    changed = Network.of(copies[0]).module
    changed.scale = 7.0
    assert Network.of(changed).identity != contents[0]
