"""What a network holds outside of parameters and buffers is never frozen over draws in silence."""

import dataclasses
import types
import warnings

import numpy as np
import pytest
import torch
from networks_under_test import CPU, normal, relu_convnet, smooth_mlp
from torch import Tensor, nn
from torch.nn.utils import prune

from biascope.derivatives.covariance import GradientSampler
from biascope.derivatives.mixed import MixedDerivative
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.source import family_of
from biascope.families.unregistered import differences, random_content, settings_of
from biascope.kernels.selftest import selftest
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.networks import builder
from biascope.tasks.probe import Probe

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclasses.dataclass
class Mapping:
    matrix: Tensor


class Fourier(nn.Module):
    """Fourier features of vectors of 4, whose random matrix is held in one of several ways."""

    def __init__(self, hold: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        drawn = torch.randn(4, 4)
        self.hold = hold
        if hold == "buffer":
            self.register_buffer("B", drawn)
        elif hold == "attribute":
            self.B = drawn
        elif hold == "list":
            self.B = [drawn]
        elif hold == "dictionary":
            self.B = {"matrix": drawn}
        elif hold == "dataclass":
            self.B = Mapping(drawn)
        elif hold == "namespace":
            self.B = types.SimpleNamespace(matrix=drawn)
        elif hold == "numpy":
            self.B = drawn.numpy()
        elif hold == "float":
            self.B = float(drawn[0, 0])
        elif hold == "closure":
            self.B = lambda x: x @ drawn
        elif hold == "module in a list":
            self.B = [nn.Linear(4, 4)]

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.hold in ("buffer", "attribute"):
            x = x @ self.B
        elif self.hold == "list":
            x = x @ self.B[0]
        elif self.hold == "dictionary":
            x = x @ self.B["matrix"]
        elif self.hold in ("dataclass", "namespace"):
            x = x @ self.B.matrix
        elif self.hold == "numpy":
            x = x @ torch.from_numpy(self.B)
        elif self.hold == "float":
            x = x * self.B
        elif self.hold == "closure":
            x = self.B(x)
        else:
            x = self.B[0](x)
        return self.linear(torch.sin(x))


HELD = {
    "attribute": "B",
    "list": r"B\[0\]",
    "dictionary": r"B\['matrix'\]",
    "dataclass": r"B\.matrix",
    "namespace": r"B\.matrix",
    "numpy": "B",
    "float": "B",
    "closure": "B of drawn",
    "module in a list": r"B\[0\]\.weight",
}


def fourier(hold: str) -> Family:
    return Family.initialised(lambda: Fourier(hold), name="fourier")


@pytest.mark.parametrize("hold", HELD)
def test_random_content_that_is_not_registered_is_refused_by_name(hold):
    family = fourier(hold)
    expected = (
        rf"^fourier must register what it draws, but {HELD[hold]}.* would stay the same in all draws\. Write self"
    )
    with pytest.raises(ValueError, match=expected):
        family.check_forward(normal(2, 4, dtype=torch.float32))


def test_the_remedy_gives_the_law_of_the_builder():
    """Each direction of the input is like any other, so the covariance is a multiple of the identity: rank 4 of 4."""
    family = fourier("buffer")
    result = anisotropy_directions(family, Probe.gaussian((4,)), draws=2000, estimator="exact", run=CPU)
    assert result.effective_rank.value == pytest.approx(4.0, abs=0.15)
    with pytest.raises(ValueError, match="fourier must register what it draws, but B would stay"):
        anisotropy_directions(fourier("attribute"), Probe.gaussian((4,)), draws=2000, estimator="exact", run=CPU)


def test_zeros_as_inputs_do_not_hide_it():
    with pytest.raises(ValueError, match="B would stay the same"):
        fourier("attribute").check_forward(torch.zeros(1, 4))


def test_what_only_outputs_show_is_refused():
    class Outside(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 1)
            # In a class: no walk through the attributes of a module sees it.
            self.mine = type("Mine", (), {"scale": float(torch.rand(()))})

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.mine.scale

    with pytest.raises(
        ValueError, match=r"^outside must keep all that it draws in parameters and buffers, but two builds"
    ):
        Family.initialised(Outside, name="outside").check_forward(torch.ones(1, 4))


def entry_points():
    probe = Probe.gaussian((4,))
    how = {"estimator": "exact", "step": 1.0, "readout": "first", "seed": 0, "run": CPU}
    return {
        "sampler": lambda family: GradientSampler(family, probe, **how),
        "mixed derivative": lambda family: MixedDerivative(family, probe, run=CPU),
    }


@pytest.mark.parametrize("entry", entry_points())
def test_every_way_in_checks(entry):
    with pytest.raises(ValueError, match="B would stay the same"):
        entry_points()[entry](fourier("attribute"))


def test_selftest_fails():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed = [check for check in selftest(fourier("attribute"), (4,)) if not check.passed]
    assert "members differ in weights alone" in [check.name for check in failed]
    assert all(check.passed for check in selftest(fourier("buffer"), (4,)))


def test_a_draw_without_inputs_warns_once():
    family = fourier("attribute")
    stream = family.draws(seed=0, run=CPU)
    with pytest.warns(UserWarning, match=r"^fourier draws B at random and keeps it outside of parameters"):
        stream[0:2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream[2:4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fourier("buffer").draw(2, seed=0, run=CPU)


def test_a_mapped_family_is_checked_too():
    mapped = fourier("attribute").mapped(lambda one: one.read("sum"), "sum")
    with pytest.raises(ValueError, match="B would stay the same"):
        mapped.check_forward(torch.ones(1, 4))
    fine = fourier("buffer").mapped(lambda one: one.read("sum"), "sum")
    fine.check_forward(torch.ones(1, 4))


class Harmless(nn.Module):
    """Holds much, and nothing of it differs between builds, or nothing that differs is used."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.spectral_norm(nn.Linear(4, 1))
        self.steps, self.scale, self.sizes = 3, 0.5, (4, 1)
        self.grid, self.tables = torch.linspace(0, 1, 4), {"window": np.hanning(4)}
        self.held = [self.linear.weight_orig]
        Harmless.made += 1
        self.number = Harmless.made
        self.act = lambda x: torch.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = self.act(x + self.scale * self.grid)
        return self.linear(x)


@pytest.mark.parametrize("build", [Harmless, smooth_mlp, relu_convnet])
def test_equal_settings_are_not_flagged(build):
    family = Family.initialised(build)
    shape = (1, 8, 8) if build is relu_convnet else (4,) if build is Harmless else (6,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        family.check_forward(normal(2, *shape, dtype=torch.float32))
        family.draw(2, seed=0, run=CPU)


def test_settings_are_found_wherever_they_lie():
    first, second = nn.Sequential(nn.Linear(2, 1)), nn.Sequential(nn.Linear(2, 1))
    assert settings_of(first) == settings_of(second)
    first[0].rate, second[0].rate = 0.1, 0.2
    first.act, second.act = (lambda x: x + 1), (lambda x: x + 2)
    assert differences(first, second)[0] == "0.rate"
    assert any(name.startswith("act") for name in differences(first, second))


# ---- members that were given ------------------------------------------------------------------------------------------


class Activated(nn.Linear):
    def __init__(self, activation: object, scale: float = 1.0) -> None:
        super().__init__(4, 1)
        self.activation, self.scale = activation, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.activation(super().forward(x))


def test_members_with_other_layers_are_refused():
    members = [nn.Sequential(nn.Linear(4, 1), nn.ReLU()), nn.Sequential(nn.Linear(4, 1), nn.Tanh())]
    expected = r"^All members must have the same layers, but member 1 has others than member 0\. Make one family"
    with pytest.raises(ValueError, match=expected):
        Family.empirical(members)


@pytest.mark.parametrize(
    ("second", "name"), [(Activated(torch.tanh), "activation"), (Activated(torch.sin, scale=2.0), "scale")]
)
def test_members_with_other_forward_passes_are_refused(second, name):
    family = Family.empirical([Activated(torch.sin), second], name="two")
    expected = rf"^All members of two must have the same forward pass, but members 0 and 1 .*\({name}"
    with pytest.raises(ValueError, match=expected):
        family.check_forward(normal(2, 4, dtype=torch.float32))
    with pytest.warns(UserWarning, match=name):
        family.draw(2, seed=0, run=CPU)


def test_trained_runs_of_one_architecture_are_measured_each_with_its_weights():
    members = [Activated(torch.sin) for _ in range(3)]
    for number, member in enumerate(members):
        member.run = f"run {number}"  # differs, and forward does not use it
    family = Family.empirical(members)
    x = normal(2, 4, dtype=torch.float32)
    family.check_forward(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = family.draw(3, seed=0, run=CPU)(x)
    assert torch.allclose(outputs, torch.stack([member(x) for member in members]))


def test_members_of_other_number_types_are_refused():
    quantised = nn.Linear(4, 1)
    quantised.weight = nn.Parameter(torch.ones(1, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match=r"member 1 must be floating-point numbers .*weight is int8"):
        Family.empirical([nn.Linear(4, 1), quantised])


# ---- weights from a file ---------------------------------------------------------------------------------------------

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        {draw}
    def forward(self, x):
        return self.linear(torch.sin(x @ self.B))
def build():
    return Net()
"""


def stored(tmp_path, draw: str, **kept: Tensor):
    (tmp_path / "net.py").write_text(NET.format(draw=draw))
    torch.save({"linear.weight": torch.ones(1, 4), "linear.bias": torch.zeros(1), **kept}, tmp_path / "net.pt")
    return family_of(f"{tmp_path}/net.py:build", weights_file=tmp_path / "net.pt")


def test_weights_that_do_not_hold_what_the_builder_draws_are_refused(tmp_path):
    family = stored(tmp_path, "self.B = torch.randn(4, 4)")
    with pytest.raises(
        ValueError, match=r"^The weights of net at net must hold all that its builder draws, but B is not"
    ):
        family.check_forward(torch.ones(1, 4))
    with pytest.raises(ValueError, match="the buffer B is not among them"):
        stored(tmp_path, "self.register_buffer('B', torch.randn(4, 4), persistent=False)")
    fine = stored(tmp_path, "self.register_buffer('B', torch.randn(4, 4))", B=2 * torch.eye(4))
    fine.check_forward(torch.ones(1, 4))
    assert float(fine.template(torch.ones(1, 4))) == pytest.approx(4 * np.sin(2.0), rel=1e-6)


@pytest.mark.parametrize("kind", [torch.int8, torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_other_number_types_are_refused(tmp_path, kind):
    (tmp_path / "net.py").write_text(NET.format(draw="self.B = torch.eye(4)"))
    torch.save({"linear.weight": torch.ones(1, 4).to(kind), "linear.bias": torch.zeros(1)}, tmp_path / "net.pt")
    word = str(kind).removeprefix("torch.")
    expected = rf"must be floating-point numbers of 16 bits or more, but linear\.weight is {word}\. Convert them"
    with pytest.raises(ValueError, match=expected):
        family_of(f"{tmp_path}/net.py:build", weights_file=tmp_path / "net.pt")


def test_one_module_as_it_is_needs_no_registration():
    module = Fourier("attribute")
    x = normal(2, 4, dtype=torch.float32)
    family = Family.point(module)
    family.check_forward(x)
    assert torch.equal(Network.of(module)(x), module(x))


def test_published_networks_hold_nothing_unregistered():
    for name in ("lenet", "siren", "coordinate_mlp", "vit"):
        assert Family.initialised(builder(name)).unregistered == ()


@pytest.mark.parametrize("kind", [np.longdouble, np.uint16, np.complex64, object, "U4"])
def test_arrays_of_every_type_are_compared_by_content(kind):
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    first.B, second.B = (np.array([1, 2]).astype(kind) for _ in range(2))
    assert differences(first, second) == []
    second.B = np.array([1, 3]).astype(kind)
    assert differences(first, second) == ["B"]


def test_conjugated_and_negated_tensors_are_compared_by_their_numbers():
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    for held, equal in (
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0])),
    ):
        first.B, second.B = held, equal
        assert differences(first, second) == []
    second.B = torch.tensor([2.0])
    assert differences(first, second) == ["B"]


def test_settings_are_found_in_each_of_many_functions():
    """Lists that are made while looking must not be taken for those that were looked at before."""

    def with_constants(last: int) -> nn.Module:
        module = nn.Linear(2, 1)
        module.steps = [eval(f"lambda x: x + {index}") for index in (*range(20), last)]
        return module

    assert any(name.startswith("steps[20]") for name in differences(with_constants(20), with_constants(21)))


def test_hooks_have_no_numbers_of_their_own():
    """torch numbers all hooks of a process."""

    def build() -> nn.Module:
        module = nn.Linear(2, 1)
        module.register_forward_hook(lambda module, inputs, output: 0.5 * output)
        module.register_forward_pre_hook(lambda module, inputs: None)
        return module

    assert not random_content(build(), build())


@pytest.mark.parametrize(
    "norm", [nn.utils.spectral_norm, lambda layer: prune.random_unstructured(layer, "weight", 0.5)]
)
def test_weights_that_torch_computes_before_each_call_are_not_kept(norm):
    def build() -> nn.Module:
        return norm(nn.Linear(4, 3))

    assert not random_content(build(), build())
