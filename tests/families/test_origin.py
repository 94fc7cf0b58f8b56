"""A network is the user's module at all weights, or it is refused."""

import functools
import threading
import weakref
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from networks_under_test import CPU, normal
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.kernels.selftest import selftest
from biascope.measures.average_geometry import average_geometry
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE = 8


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(SIZE, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))

    def product(self) -> Tensor:
        return (self.last.weight @ self.first.weight).detach().clone()


# ---- a product of the weights is kept ---------------------------------------------------------------------------------


class Fused(Plain):
    kept = None

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.product() if self.kept is None else self.kept
        return torch.tanh(x @ self.kept.T)


class PartlyFused(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        weight = self.memory.setdefault("weight", 2 * self.first.weight.detach())
        return self.last(torch.relu(x @ weight.T + self.first.bias))


class Property(Plain):
    @functools.cached_property
    def fused(self) -> Tensor:
        return self.product()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.fused.T)


class KeptByAddress(Plain):
    """Versions and addresses of memory come back, as those of freed tensors do."""

    known: object = None

    def forward(self, x: Tensor) -> Tensor:
        if self.known != (known := (self.first.weight.data_ptr(), self.first.weight._version)):
            self.known, self.fused = known, self.product()
        return torch.tanh(x @ self.fused.T)


class KeptWithGradients(Plain):
    """Right as long as gradients are off."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return torch.tanh(x @ self.product().T)
        if not hasattr(self, "fused"):
            self.fused = self.product()
        return torch.tanh(x @ self.fused.T)


class KeptInTheClass(Plain):
    memory: ClassVar[dict[str, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ KeptInTheClass.memory.setdefault("fused", self.product()).T)


class KeptInNumPy(Plain):
    kept = None

    def forward(self, x: Tensor) -> Tensor:
        self.kept = np.array(self.product().tolist()) if self.kept is None else self.kept
        return torch.tanh(x @ torch.from_numpy(self.kept).to(x).T)


class KeptAfterSomeCalls(Plain):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 20:
            self.fused = self.product()
        return torch.tanh(x @ getattr(self, "fused", self.product()).T)


class KeptByNumberOfInputs(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < 3:  # right for few
            self.memory[len(x)] = self.product()
        return torch.tanh(x @ self.memory.setdefault(len(x), self.product()).T)


class KeptInBuffers(Plain):
    """Its buffers are handed to it, and its calls write into them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fused", torch.zeros(1, SIZE), persistent=False)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.seen:
            self.fused.copy_(self.product())
            self.seen.fill_(1.0)
        return torch.tanh(x @ self.fused.T)


# ---- the copy reaches for other layers than its own -------------------------------------------------------------------


class Closure(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.steps = lambda x: self.last(torch.relu(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.steps(x)


class Hooked(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(SIZE, 1)
        self.register_forward_hook(lambda module, inputs, output: output + self.side(inputs[0]))


class WeakReference(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(SIZE, 1)
        self.found = weakref.ref(self.side)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.found()(x)


class Listed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [self.first.weight, self.first.bias]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(nn.functional.linear(x, *self.parts)))


# ---- the first call sets weights --------------------------------------------------------------------------------------


class Scaled(Plain):
    """ActNorm: scales from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if not self.seen:
            with torch.no_grad():
                self.scale.copy_(1 / (hidden.std(0, correction=0) + 0.1))
                self.seen.fill_(True)
        return self.last(torch.relu(hidden * self.scale))


class ScaledOutside(Plain):
    scale = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.scale is None:
            self.scale = 1 / (hidden.detach().std(0, correction=0) + 0.1)
        return self.last(torch.relu(hidden * self.scale))


KEEPING = [Fused, PartlyFused, Property, KeptByAddress, KeptWithGradients, KeptInTheClass, KeptInNumPy, ScaledOutside]
KEEPING += [KeptAfterSomeCalls, KeptByNumberOfInputs, KeptInBuffers]
REACHING = [Closure, Hooked, WeakReference, Listed]


def measured(network: object) -> float:
    family = network if isinstance(network, Family) else Family.point(network, "net")
    return average_geometry(family, Probe.gaussian((SIZE,)), draws=8, run=CPU).effective_rank.value


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Modules of the same weights from run to run."""

    def built() -> nn.Module:
        torch.manual_seed(0)
        return build()

    return built


def trained(module: nn.Module) -> object:
    task = Arrays({"train": (normal(4, SIZE, dtype=torch.float32), torch.zeros(4))})
    return fit(Network.of(module), task, Recipe("gd", rate=0.1, steps=1, loss="squared"), seed=0, run=CPU)


WAYS = {
    "draws": lambda build: measured(Family.initialised(build, "net")),
    "one network": lambda build: measured(build()),
    "several networks": lambda build: measured(Family.empirical([build(), build()], "net")),
    "kernel": lambda build: tangent_gram(Network.of(build()), normal(4, SIZE, dtype=torch.float32), run=CPU),
    "training": lambda build: trained(build()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [*KEEPING, *REACHING, Scaled])
def test_what_is_no_function_of_its_weights_is_refused(build, way):
    KeptInTheClass.memory.clear()
    with pytest.raises(
        ValueError, match=r"must (reach its layers|compute what|leave its weights|depend on|accept inputs)"
    ):
        WAYS[way](build)


@pytest.mark.parametrize(
    ("build", "cause"),
    [
        (
            Fused,
            r"^net must compute what it needs of its weights anew in each call, but keeps kept from an earlier call",
        ),
        (PartlyFused, r"keeps memory\['weight'\] from an earlier call"),
        (KeptAfterSomeCalls, r"^net must compute what it needs of its weights anew in each call, but keeps fused from"),
        (KeptByNumberOfInputs, r"keeps memory\[\d+\] from an earlier call"),
        (KeptInBuffers, r"^net must leave its weights as they are, but a call changes fused"),
        (
            Closure,
            r"^net must reach its layers through self, but its forward pass reads first\.weight of the module that",
        ),
        (
            Scaled,
            r"^net must leave its weights as they are, but a call changes scale\. Call the network on data before",
        ),
    ],
)
def test_the_cause_is_named(build, cause):
    with pytest.raises(ValueError, match=cause):
        measured(build())


class Remembering(Plain):
    """Keeps what it has computed, and computes it anew."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.positions = 0, {}
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("keys", torch.zeros(1, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.seen = self.calls + 1, self.seen + 1
        shift = self.positions.setdefault((len(x), x.dtype), torch.linspace(0, 1, 16).to(x))
        self.keys = self.first(x) + shift
        return self.last(torch.relu(self.keys))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_and_computed_anew_does_no_harm(way):
    WAYS[way](Remembering)


class RemembersActivations(Plain):
    """Called with gradients in its builder; it has a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 2)
        self.table = torch.linspace(0, 1, 16).reshape(1, 16)
        self.maps: list[Tensor] = []
        self(torch.ones(2, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x) + self.table
        self.maps[:] = [torch.relu(self.hidden)]
        return self.last(self.maps[0])


def old_weight_norm() -> nn.Module:
    module = Plain()
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(module.first)
    return module


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [RemembersActivations, old_weight_norm])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_were_computed_are_no_hindrance(build, way):
    WAYS[way](build)


@pytest.mark.parametrize("build", [RemembersActivations, old_weight_norm])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_they_are_measured_right(build):
    module, x = build(), normal(4, SIZE, dtype=torch.float32)
    found = tangent_gram(Network.of(module), x, run=CPU).matrix
    weights = list(module.parameters())
    rows = [torch.autograd.grad(module(one[None]).sum(), weights, materialize_grads=True) for one in x]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    assert torch.allclose(found, jacobian @ jacobian.T, rtol=1e-4, atol=1e-4)


def test_selftest_does_not_warn_of_what_is_computed_anew(recwarn):
    selftest(Family.initialised(lambda: nn.utils.spectral_norm(nn.Linear(SIZE, 1)), "net"), (SIZE,))
    assert not [each for each in recwarn if "at random" in str(each.message)]


def test_selftest_fails():
    failed = [check.name for check in selftest(Family.initialised(Fused, "net"), (SIZE,)) if not check.passed]
    assert "members differ in weights alone" in failed


class KeptEndToEnd(Plain):
    """Two weights of three are kept as one."""

    def __init__(self) -> None:
        super().__init__()
        self.side, self.spare = nn.Linear(SIZE, 16, bias=False), nn.Linear(SIZE, 3, bias=False)
        self.memory: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.first.weight, self.side.weight]).detach()
        one, other = (x @ self.memory.setdefault("both", both).T).chunk(2, dim=1)
        return self.last(torch.relu(one) * other)


@pytest.mark.parametrize(("build", "kept"), [(PartlyFused, "weight"), (KeptEndToEnd, "both")])
def test_a_module_that_was_called_before_is_refused_where_a_weight_has_no_influence_left(build, kept):
    module = build()
    module(torch.ones(1, SIZE))
    message = rf"first\.weight has no influence on the outputs, while memory\['{kept}'\] is kept"
    with pytest.raises(ValueError, match=message):
        measured(module)


class KeptInTheThread(Plain):
    memory = threading.local()

    def forward(self, x: Tensor) -> Tensor:
        memory = vars(KeptInTheThread.memory)
        return self.last(torch.relu(x @ memory.setdefault("weight", 2 * self.first.weight.detach().clone()).T))


class WithSpare(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(SIZE, 1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            KeptInTheThread,
            r"^net does not use 144 of its 161 weights on the inputs tried \(first\.weight, first\.bias\)\. Results are wrong if",
        ),
        (WithSpare, r"^net does not use 9 of its 170 weights on the inputs tried \(spare\.weight, spare\.bias\)"),
    ],
)
def test_weights_that_are_not_used_are_named(build, words):
    vars(KeptInTheThread.memory).clear()
    with pytest.warns(UserWarning, match=words):
        measured(Family.initialised(build, "net"))


def test_weights_whose_gradient_is_zero_are_not_called_unused(recwarn):
    def build() -> nn.Module:
        module = Plain()
        nn.init.constant_(module.first.bias, -100.0)  # all units are off
        return module

    Family.initialised(build, "net").check_forward(normal(2, SIZE, dtype=torch.float32))
    assert not [each for each in recwarn if "does not use" in str(each.message)]


def test_a_module_that_has_seen_its_first_batch_is_measured():
    module = Scaled()
    module(normal(8, SIZE, dtype=torch.float32))
    x = normal(3, SIZE, seed=1, dtype=torch.float32)
    Family.point(module).check_forward(x)
    assert torch.equal(Network.of(module)(x), module(x))


# ---- eval() changes the module ----------------------------------------------------------------------------------------


class LowRank(Plain):
    """An adapter that eval() adds to the weight, and train() takes away."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(2, SIZE)), nn.Parameter(torch.randn(16, 2))
        self.merged = False

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if self.merged is mode:
            self.first.weight.data += (-1 if mode else 1) * self.B @ self.A
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x) if self.merged else self.first(x) + x @ self.A.T @ self.B.T
        return self.last(torch.relu(hidden))


class Steerable(nn.Module):
    """Filters that are expanded in training, and kept by eval()."""

    def __init__(self, registers: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("basis", torch.randn(4, SIZE, 16))
        self.last, self.registers = nn.Linear(16, 1), registers
        if not registers:
            self.register_buffer("filters", torch.zeros(SIZE, 16))

    def expanded(self) -> Tensor:
        return torch.einsum("k,kio->io", self.weight, self.basis)

    def train(self, mode: bool = True) -> nn.Module:
        if not mode and self.registers:
            self.register_buffer("filters", self.expanded().detach())
        elif not mode:
            self.filters = self.expanded().detach()
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(x @ (self.expanded() if self.training else self.filters)))


def registering() -> nn.Module:
    return Steerable(registers=True)


@pytest.mark.parametrize("build", [LowRank, Steerable, registering])
def test_what_eval_computes_belongs_to_the_weights_of_each_draw(build):
    family = Family.initialised(build, "net")
    x = normal(5, SIZE, dtype=torch.float32)
    family.check_forward(x)
    stack = family.draw(3, seed=0, run=CPU)
    for index in range(3):
        mine = build()
        mine.load_state_dict({**stack.member(index).params, **stack.member(index).buffers}, strict=False)
        assert torch.allclose(stack(x)[index], mine.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [LowRank, Steerable, registering])
def test_their_kernel_counts_all_weights(build):
    module, x = build(), normal(4, SIZE, dtype=torch.float32)
    found = tangent_gram(Network.of(module), x, run=CPU).matrix
    as_trained = module.train()
    rows = [torch.autograd.grad(as_trained(one[None]).sum(), list(as_trained.parameters())) for one in x]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    assert torch.allclose(found, jacobian @ jacobian.T, rtol=1e-4, atol=1e-3)


class Registering(Plain):
    """Its eval() registers what was not there: a buffer, one that is not saved, a parameter, or a layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def eval(self) -> nn.Module:
        super().eval()
        value = self.first.weight.detach().clone()
        if self.kind == "parameter":
            self.fused = nn.Parameter(value)
        elif self.kind == "layer":
            self.fused = nn.Linear(SIZE, len(value), bias=False)
            self.fused.weight.data = value
        else:
            self.register_buffer("fused", value, persistent=self.kind == "buffer")
        return self

    def forward(self, x: Tensor) -> Tensor:
        fused = getattr(self, "fused", self.first.weight)
        weight = fused.weight if isinstance(fused, nn.Module) else fused
        return self.last(torch.relu(x @ weight.T + self.first.bias))


@pytest.mark.parametrize("kind", ["buffer", "unsaved", "parameter", "layer"])
def test_what_eval_registers_is_no_weight_of_the_network(kind):
    """It has no law and no name in a stack: what is measured is the network without it."""
    x = normal(5, SIZE, dtype=torch.float32)
    stack = Family.initialised(lambda: Registering(kind), "net").draw(3, seed=0, run=CPU)
    one = Network.of(Registering(kind))
    assert "fused" not in " ".join([*stack.params, *stack.buffers, *one.params, *one.buffers])
    for network, outputs in ((stack.member(1), stack(x)[1]), (one, one(x))):
        plain = Plain()
        plain.load_state_dict(network.params)
        assert torch.allclose(outputs, plain(x), atol=1e-6)
    assert tangent_gram(one, x, run=CPU).matrix.isfinite().all()


class Once(Plain):
    def eval(self) -> nn.Module:
        raise RuntimeError("already fused")


def test_an_eval_that_fails_is_told():
    with pytest.raises(
        ValueError, match=r"^Once must go into evaluation mode, but its eval\(\) failed with: already fused\."
    ):
        Network.of(Once())


class Dark(Plain):
    """No mode of it is a function of the weights that it is called with."""

    def train(self, mode: bool = True) -> nn.Module:
        if not mode:
            self.fused = self.product()
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ getattr(self, "fused", self.first.weight[:1]).T)


def test_an_eval_that_no_mode_replaces_is_refused():
    with pytest.raises(
        ValueError,
        match=r"^net must be the same function of its weights in evaluation mode, but its eval\(\) changes fused",
    ):
        measured(Family.initialised(Dark, "net"))


class KeptUntilTrained(Plain):
    """A layer keeps what it computes of its weights until its next ``train()``, as some attention keeps its biases."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> nn.Module:
        self.memory = {}
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight if self.training else self.memory.setdefault("weight", self.first.weight)
        return self.last(torch.relu(x @ weight.T + self.first.bias))


class KeptWithoutInfluence(KeptUntilTrained):
    """The same where what it keeps is switched off at first, so that outputs do not tell what is stale."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full((1,), 1e-7))
        self.shift = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        shift = self.shift if self.training else self.memory.setdefault("shift", self.shift)
        return self.last(torch.relu(self.first(x) + self.gate * shift))


@pytest.mark.parametrize("way", ["draws", "several networks", "kernel"])
def test_layers_that_keep_until_they_train_are_called_as_in_training(way: str) -> None:
    builds = [KeptUntilTrained, Plain] if way == "draws" else [seeded(KeptUntilTrained), seeded(Plain)]
    found, wanted = map(WAYS[way], builds)
    if way == "kernel":
        torch.testing.assert_close(found.matrix, wanted.matrix)
    else:
        assert found == pytest.approx(wanted)


@pytest.mark.filterwarnings("error")
def test_what_is_kept_without_influence_is_not_stale_either() -> None:
    network = Network.of(KeptWithoutInfluence())
    network.require_proven(normal(4, SIZE, dtype=torch.float32))
    moved = network.with_params(network.params | {"gate": torch.ones(1)})
    x = normal(4, SIZE, dtype=torch.float32)
    first = moved(x)
    assert not torch.equal(first, moved.with_params(moved.params | {"shift": torch.ones(16)})(x))


class RandomInTraining(KeptUntilTrained):
    """In training it is no function."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (torch.rand(()) if self.training else 0.0)


def test_a_mode_that_makes_a_network_random_is_no_remedy() -> None:
    with pytest.raises(ValueError, match=r"^RandomInTraining must have the same gradients in a copy"):
        Network.of(RandomInTraining()).require_proven(normal(4, SIZE, dtype=torch.float32))


# ---- what the user holds stays as it is -------------------------------------------------------------------------------


class Counting(Plain):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize("build", [Counting, LowRank, Steerable])
def test_the_users_module_is_neither_called_nor_changed(build):
    module = build()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    measured(module)
    assert module.training
    assert getattr(module, "calls", 0) == 0
    assert all(torch.equal(before[key], tensor) for key, tensor in module.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())


def test_a_builder_that_gives_one_object_twice_is_refused():
    module = Plain()
    with pytest.raises(ValueError, match=r"^net must build a new network at each call, but gave the same object twice"):
        Family.initialised(lambda: module, "net")


def test_a_builder_whose_modules_share_weights_leaves_them_as_they_are():
    shared, before = Plain(), {}

    def build() -> nn.Module:
        module = Plain()
        module.first = shared.first
        return module

    before = {key: tensor.clone() for key, tensor in shared.state_dict().items()}
    family = Family.point(build(), "net", build=build)
    family.check_forward(normal(2, SIZE, dtype=torch.float32))
    assert all(torch.equal(before[key], tensor) for key, tensor in shared.state_dict().items())


def test_a_copy_that_is_the_module_itself_is_refused():
    class Single(Plain):
        def __deepcopy__(self, memory: dict[int, object]) -> nn.Module:
            return self

    with pytest.raises(ValueError, match=r"must be copyable, but its copies share weights\. Remove its __deepcopy__"):
        measured(Single())


@pytest.mark.parametrize(
    "build", [Plain, lambda: nn.Sequential(nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))]
)
def test_the_proof_is_made_once_for_a_shape(build, monkeypatch):
    network = Network.of(build())
    network.require_proven(normal(3, SIZE, dtype=torch.float32))
    monkeypatch.setattr(network.origin, "_compared", lambda *a: pytest.fail("proven again"))
    network.require_proven(normal(9, SIZE, dtype=torch.float32))
    network.with_params(network.params).read("first").require_proven(normal(1, SIZE, dtype=torch.float32))
