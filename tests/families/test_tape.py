"""The tape: it draws whole stacks of what a builder builds, proves that it does, and gives way where it cannot.

Laws are compared with modules built one by one. With z the difference of two sample means (or standard deviations) in
its own standard errors, |z| < 6 is asked for: a right law fails once in 10⁸ comparisons, a wrong one by hundreds.
"""

import ctypes
import dataclasses
import functools
import io
import itertools
import math
import random
import secrets
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from networks_under_test import CPU, AttentionNetwork, batchnorm_convnet, global_states
from scipy.stats import ks_2samp
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from biascope import networks
from biascope.families import draws as draws_module
from biascope.families.family import Family
from biascope.families.tape import Tape, TapeError, _storages, block_size, built
from biascope.families.weights import stacked
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run

ON_CPU = torch.device("cpu")
Z = 6.0
pytestmark = pytest.mark.usefixtures("one_thread")


class Holding(nn.Module):
    """A module that holds given parameters and buffers."""

    def __init__(self, buffers: dict[str, Tensor] | None = None, **parameters: Tensor) -> None:
        super().__init__()
        for name, tensor in parameters.items():
            self.register_parameter(name, nn.Parameter(tensor))
        for name, tensor in (buffers or {}).items():
            self.register_buffer(name, tensor)


def with_weight(initialise) -> nn.Module:
    layer = nn.Linear(12, 9)
    initialise(layer.weight)
    return layer


def copied() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        second.bias.copy_(2 * first.bias + 1)
    return nn.Sequential(first, second)


def tied() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, second)


def scaled_by_its_own_spread() -> nn.Module:
    weight = torch.randn(20)
    return Holding(weight=3 * weight / weight.std())


def constants() -> nn.Module:
    rates = [rate.item() for rate in torch.linspace(0, 1, 5)]  # a look at what was not drawn is harmless
    buffers = {
        "given": torch.tensor([1.0, 2.0, 4.0]),
        "numpy": torch.from_numpy(np.arange(6.0).reshape(2, 3)),
        "mask": torch.full((4, 4), -math.inf).triu(1),
        "positions": torch.arange(5),
        "rates": torch.tensor(rates),
        "flag": torch.tensor(True),
    }
    return Holding(buffers, weight=torch.rand(7), scale=torch.tensor(0.5) * torch.ones(3))


def constants_changed_in_place() -> nn.Module:
    table = torch.from_numpy(np.arange(6.0))
    table.mul_(2).add_(1)
    return Holding({"table": table, "part": table[2:4]}, weight=torch.rand(6) * table)


def in_double() -> nn.Module:
    return nn.Linear(5, 4).double()


def partly_overwritten() -> nn.Module:
    layer = nn.Conv2d(2, 4, 3)
    with torch.no_grad():
        layer.weight[0] = 0.0
        layer.weight[1:2, :, 1, 1] += 5.0
        layer.bias[2:].uniform_(10, 11)
    return layer


def of_published_rules() -> nn.Module:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    nn.init.kaiming_normal_(layers[0].weight)
    nn.init.xavier_uniform_(layers[1].weight, gain=2.0)
    nn.init.zeros_(layers[2].bias)
    nn.init.constant_(layers[3].bias, 0.25)
    return layers


REPLAYED = {
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "gru cell": lambda: nn.GRUCell(4, 5),
    "multi-head attention": lambda: nn.MultiheadAttention(8, 2),
    "transformer layer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "embedding": lambda: nn.Embedding(10, 8, padding_idx=3),
    "group norm": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)),
    "batch norm": batchnorm_convnet,
    "own attention": AttentionNetwork,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)),
    "trunc_normal_": lambda: with_weight(lambda weight: nn.init.trunc_normal_(weight, std=1.0, a=-0.8, b=1.5)),
    "trunc_normal_ far out": lambda: with_weight(lambda weight: nn.init.trunc_normal_(weight, std=1.0, a=1.0, b=1.2)),
    "orthogonal_": lambda: with_weight(lambda weight: nn.init.orthogonal_(weight, gain=2.0)),
    "dirac_": lambda: (lambda layer: (nn.init.dirac_(layer.weight), layer)[1])(nn.Conv2d(3, 3, 3)),
    "randn parameter": lambda: Holding(weight=0.02 * torch.randn(9, 8) + 1.0),
    "rand_like parameter": lambda: Holding(weight=torch.rand_like(torch.zeros(30)) - 0.5),
    "product": lambda: Holding(weight=torch.randn(8, 3) @ torch.randn(3, 8)),
    "scaled by its own spread": scaled_by_its_own_spread,
    "copied": copied,
    "tied": tied,
    "constants": constants,
    "constants changed in place": constants_changed_in_place,
    "double": in_double,
    "partly overwritten": partly_overwritten,
    "published rules": of_published_rules,
}


def z_score(first: Tensor, second: Tensor) -> float:
    """Largest difference of two sample means, of each column and of all, in its standard errors; rows are independent."""
    first, second = (torch.cat([sample, sample.mean(1, keepdim=True)], dim=1) for sample in (first, second))
    error = ((first.var(0) + second.var(0)) / len(first)).sqrt() + 1e-9  # sums that never vary
    return float(((first.mean(0) - second.mean(0)).abs() / error).max())


def assert_same_law(stack: Tensor, reference: Tensor, alike: bool = False) -> None:
    """Two samples ``(m, …)`` of one tensor: numbers that never vary are equal, the others have the same law.

    Where the numbers of a tensor are alike (independent, with one law), few members are enough.
    """
    assert stack.shape == reference.shape
    assert stack.dtype == reference.dtype
    stack, reference = (sample.reshape(len(sample), -1)[:, :4000].double() for sample in (stack, reference))
    fixed = (reference == reference[0]).all(0)
    assert torch.equal(stack[:, fixed], reference[:, fixed])
    if fixed.all():
        return
    first, second = stack[:, ~fixed], reference[:, ~fixed]
    assert not torch.equal(first[0], first[1])
    members = first[0::2] * (first[1::2] - first[1::2].roll(1, dims=0)) if len(first) > 2 else first[:1] * first[1:]
    if alike:
        first, second, members = first.reshape(-1, 1), second.reshape(-1, 1), members.reshape(-1, 1)
    if len(first) < 100:
        return  # a bias of a few numbers: the weights beside it tell
    assert z_score(first, second) < Z
    assert z_score(first.square(), second.square()) < Z
    step = 1 + first.numel() // 20_000
    assert ks_2samp(first.flatten()[::step], second.flatten()[::step], method="asymp").pvalue > 1e-8
    together = members.mean(1)  # of mean zero if members know nothing of one another
    assert float(together.mean().abs() / together.std() * math.sqrt(len(together))) < Z


@pytest.mark.parametrize("name", REPLAYED)
def test_a_stack_has_the_law_of_the_builder(name):
    before = global_states()
    tape = Tape.record(REPLAYED[name])
    stack = tape.draw(300, generator_for(ON_CPU, 0, "a test"))
    reference = stacked(built(REPLAYED[name], 1, 0, 300))
    assert global_states() == before
    assert stack.keys() == reference.keys()
    for tensor in reference:
        assert_same_law(stack[tensor], reference[tensor])


@pytest.mark.parametrize("name", networks.names())
def test_every_published_network_is_replayed_with_its_law(name):
    before = global_states()
    family = Family.initialised(networks.builder(name))
    assert family.drawing == "replayed in stacks from recorded initialisers"
    members = 2 if family.num_parameters > 1_000_000 else 20
    stack = family.tape.draw(members, generator_for(ON_CPU, 0, "a test"))
    reference = stacked(built(networks.builder(name), 1, 0, members))
    assert global_states() == before
    assert stack.keys() == reference.keys()
    for tensor in reference:
        assert_same_law(stack[tensor], reference[tensor], alike=True)


def test_the_comparison_of_laws_can_fail():
    def sample(std: float = 1.0, mean: float = 0.0, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return mean + std * torch.randn(300, 40, generator=generator)

    assert_same_law(sample(), sample(seed=1))
    uniform = (torch.rand(300, 40, generator=torch.Generator().manual_seed(2)) - 0.5) * math.sqrt(12)
    shifted = sample()
    shifted[:, 7] += 1.0
    copies = sample()
    copies[1::2] = copies[0::2]
    for wrong in (sample(std=1.15), sample(mean=0.15), uniform, shifted, copies, torch.zeros(300, 40)):
        with pytest.raises(AssertionError):
            assert_same_law(wrong, sample(seed=1))


def test_copies_and_ties_hold_within_each_member():
    stack = Tape.record(copied).draw(50, generator_for(ON_CPU, 0))
    assert torch.equal(stack["0.weight"], stack["1.weight"])
    assert torch.equal(stack["1.bias"], 2 * stack["0.bias"] + 1)
    family = Family.initialised(tied)
    assert set(family.template.params) == {"0.weight", "0.bias", "1.bias"}
    member = family.draw(3, seed=0, run=CPU).member(2)
    x = torch.ones(1, 6)
    by_hand = (x @ member.params["0.weight"].T + member.params["0.bias"]) @ member.params["0.weight"].T
    assert torch.allclose(member(x), by_hand + member.params["1.bias"], atol=1e-6)


def test_initialisers_keep_their_promises_for_every_member():
    generator = generator_for(ON_CPU, 0)
    weight = Tape.record(REPLAYED["orthogonal_"]).draw(20, generator)["weight"]

    assert torch.allclose(weight @ weight.mT, 4 * torch.eye(9).expand(20, 9, 9), atol=1e-4)
    weight = Tape.record(REPLAYED["trunc_normal_"]).draw(500, generator)["weight"]
    assert -0.8 <= float(weight.min()) < -0.79
    assert 1.49 < float(weight.max()) <= 1.5
    weight = Tape.record(REPLAYED["embedding"]).draw(20, generator)["weight"]
    assert not weight[:, 3].any()
    assert weight[:, :3].all()
    weight = Tape.record(scaled_by_its_own_spread).draw(20, generator)["weight"]
    assert torch.allclose(weight.std(1), torch.full((20,), 3.0), rtol=1e-5)


def test_a_network_of_every_member_is_what_the_builder_would_make():
    # A replayed member runs as a module does: the names belong to the right tensors.
    family = Family.initialised(REPLAYED["transformer layer"])
    stack = family.draw(4, seed=0, run=CPU)
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    module = family.draw(4, seed=0, run=CPU).member(3).as_module().eval()
    assert torch.allclose(stack.member(3)(x), module(x), atol=1e-6)


# ---- where the tape gives way --------------------------------------------------------------------------------------


def numpy_builder() -> nn.Module:
    return Holding(weight=torch.from_numpy(np.random.standard_normal(40)).float())


def numpy_generator_builder() -> nn.Module:
    return Holding(weight=torch.from_numpy(np.random.default_rng().standard_normal(40)).float())


def python_builder() -> nn.Module:
    return Holding(weight=torch.tensor([random.gauss(0.0, 1.0) for _ in range(40)]))


def python_branch() -> nn.Module:
    return Holding(weight=torch.randn(40) + (6.0 if random.random() < 0.1 else 0.0))


def branch_on_a_draw() -> nn.Module:
    return Holding(weight=torch.randn(40) + (6.0 if torch.rand(()) < 0.1 else 0.0))


def rejection_loop() -> nn.Module:
    weight = torch.randn(40)
    while weight.abs().max() > 2.5:
        weight = torch.randn(40)
    return Holding(weight=weight)


def scaled_by_a_number() -> nn.Module:
    weight = torch.randn(40)
    return Holding(weight=weight / weight.std().item())


def permuted() -> nn.Module:
    return Holding(weight=torch.arange(40.0)[torch.randperm(40)])


def random_mask() -> nn.Module:
    return Holding(weight=torch.randn(40) * torch.bernoulli(torch.full((40,), 0.5)))


def coin_by_probabilities() -> nn.Module:
    return Holding(weight=torch.empty(40).bernoulli_(torch.full((40,), 0.3)))


def those_above_zero() -> nn.Module:
    weight = torch.randn(40)
    weight[weight < 0] = weight[weight < 0] ** 2
    return Holding(weight=weight)


def unit_matrix() -> nn.Module:
    return with_weight(nn.init.eye_)


def where_a_mask_is() -> nn.Module:
    return Holding(weight=torch.rand(40) + torch.eye(4).nonzero().sum())


def spectral_norm() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))


def orthogonal_parametrization() -> nn.Module:
    return nn.utils.parametrizations.orthogonal(nn.Linear(5, 5))


def as_integers() -> nn.Module:
    weight = torch.randn(40)
    weight.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return Holding(weight=weight)


def seeded_by_itself() -> nn.Module:
    torch.manual_seed(3)
    return Holding(weight=torch.randn(40))


ONE_BY_ONE = {
    numpy_builder: "NumPy or Python's random",
    python_builder: "NumPy or Python's random",
    python_branch: "NumPy or Python's random",
    branch_on_a_draw: "reads a number that it drew",
    rejection_loop: "reads a number that it drew",
    scaled_by_a_number: "reads a number that it drew",
    permuted: "draws with aten.randperm",
    random_mask: "draws with aten.bernoulli",
    coin_by_probabilities: "draws with aten.bernoulli_",
    those_above_zero: "its initialisers cannot be replayed",
    unit_matrix: "its initialisers cannot be replayed",
    where_a_mask_is: "its initialisers cannot be replayed",
    spectral_norm: "its initialisers cannot be replayed",
    orthogonal_parametrization: "reads a number that it drew",
    as_integers: "two number types",
    seeded_by_itself: "does not equal the builder at weight",
}


@pytest.mark.parametrize("build", ONE_BY_ONE, ids=lambda build: build.__name__)
def test_what_cannot_be_replayed_is_built_one_by_one_and_says_why(build, monkeypatch):
    monkeypatch.setattr(draws_module, "block_size", lambda numbers, device: 200)
    before = global_states()
    family = Family.initialised(build)
    drawn = family.draw(200, seed=0, run=CPU)
    assert global_states() == before
    assert family.drawing.startswith("built one by one, since ")
    assert ONE_BY_ONE[build] in family.drawing
    reference = stacked(built(build, 1, 0, 200))
    for name, tensor in {**drawn.params, **drawn.buffers}.items():
        assert tensor.shape == reference[name].shape
        if build is seeded_by_itself:
            assert torch.equal(tensor, reference[name])  # the builder's law is a point
        else:
            assert_same_law(tensor, reference[name])


def seeded_by_the_time() -> nn.Module:
    torch.manual_seed(time.time_ns())
    return nn.Linear(4, 1)


def drawn_by_the_system() -> nn.Module:
    return Holding(weight=torch.tensor([secrets.randbelow(10**9) / 1e9 for _ in range(4)]))


BUILDS = itertools.count(1)


def scaled_by_a_counter() -> nn.Module:
    return Holding(weight=torch.randn(4) * next(BUILDS))


def wider_each_time() -> nn.Module:
    return nn.Linear(4, next(BUILDS))


@pytest.mark.parametrize("period", [2, 3, 4, 5])
def test_a_builder_that_hands_out_a_few_networks_in_turn_is_refused(period):
    networks = itertools.cycle([nn.Linear(4, 1) for _ in range(period)])
    with pytest.raises(
        ValueError, match=r"must build the same weights under the same seed, but two builds differ at weight"
    ):
        Family.initialised(lambda: next(networks), "net")


@pytest.mark.parametrize(
    "build", [seeded_by_the_time, drawn_by_the_system, numpy_generator_builder, scaled_by_a_counter, wider_each_time]
)
def test_a_builder_that_is_no_function_of_the_random_state_is_refused(build):
    expected = (
        rf"^{build.__name__} must build the same weights under the same seed, but two builds differ at weight\. Draw with "
        r"torch, NumPy or Python's random, and take no seed from the time, the system or a counter\.$"
    )
    with pytest.raises(ValueError, match=expected):
        Family.initialised(build)


def test_rare_branches_are_drawn_as_often_as_they_happen(monkeypatch):
    monkeypatch.setattr(draws_module, "block_size", lambda numbers, device: 400)
    for build in (python_branch, branch_on_a_draw):
        centres = Family.initialised(build).draw(400, seed=0, run=CPU).params["weight"].mean(1)
        assert abs(float((centres > 3).float().mean()) - 0.1) < Z * math.sqrt(0.1 * 0.9 / 400)


# ---- builders that look at what they drew --------------------------------------------------------------------------

MOST = 2.5  # no weight is larger: a fifth of all members would break this rule if it were not followed


def saved(tensor: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def seen_by_a_function(weight: Tensor) -> float:
    seen: list[float] = []
    weight.clone().apply_(lambda value: seen.append(abs(value)) or value)
    return max(seen)


def cholesky_works(weight: Tensor) -> bool:
    try:
        torch.linalg.cholesky(torch.eye(1) * (MOST - weight.abs().max()))
    except torch.linalg.LinAlgError:
        return False
    return True


LOOKS = {
    "numpy": lambda weight: np.abs(weight.numpy()).max() <= MOST,
    "numpy of a copy": lambda weight: np.abs(weight.clone().double().mul(2).numpy()).max() <= 2 * MOST,
    "numpy of a parameter": lambda weight: np.abs(nn.Parameter(weight).detach().numpy()).max() <= MOST,
    "a function of NumPy": lambda weight: np.max(np.abs(np.asarray(weight))) <= MOST,
    "dlpack": lambda weight: np.abs(np.from_dlpack(weight)).max() <= MOST,
    "tolist": lambda weight: max(map(abs, weight.tolist())) <= MOST,
    "a loop over item": lambda weight: all(abs(value.item()) <= MOST for value in weight),
    "max": lambda weight: max(weight.abs()) <= MOST,
    "a state dictionary": lambda weight: max(map(abs, Holding(weight=weight).state_dict()["weight"].tolist())) <= MOST,
    "words": lambda weight: "True" not in repr(weight.abs().max() > MOST),
    "format": lambda weight: float(f"{weight.abs().max():.6f}") <= MOST,
    "a constant made of it": lambda weight: bool(torch.tensor([weight.abs().max()]) <= MOST),
    "an index made of it": lambda weight: bool(torch.tensor([[1], [0]])[[(weight.abs().max() > MOST).long()], [0]]),
    "bytes": lambda weight: np.abs(np.frombuffer(bytes(weight.untyped_storage()), np.float32)).max() <= MOST,
    "an address": lambda weight: max(map(abs, (ctypes.c_float * 20).from_address(weight.data_ptr()))) <= MOST,
    "a file": lambda weight: np.abs(saved(weight).numpy()).max() <= MOST,
    "a function of Python": lambda weight: seen_by_a_function(weight) <= MOST,
    "a shape": lambda weight: len(torch.bincount((weight.abs() > MOST).long())) == 1,
    "an error": cholesky_works,
    "a test": lambda weight: torch.equal(weight.clamp(-MOST, MOST), weight),
}


def redrawn_until(fine: Callable[[Tensor], bool]) -> nn.Module:
    weight = torch.randn(20)
    while not fine(weight):
        weight = torch.randn(20)
    return Holding(weight=weight)


def looked_at_from_outside() -> nn.Module:
    numbers = np.empty(20, np.float32)
    weight = torch.from_numpy(numbers).normal_()
    while np.abs(numbers).max() > MOST:
        weight.normal_()
    return Holding(weight=weight)


def looked_at_before_it_is_drawn() -> nn.Module:
    weight = torch.zeros(20)
    numbers = weight.numpy()
    nn.init.trunc_normal_(weight, a=-3, b=3)
    while np.abs(numbers).max() > MOST:
        nn.init.trunc_normal_(weight, a=-3, b=3)
    return Holding(weight=weight)


def caught() -> nn.Module:
    def fine(weight: Tensor) -> bool:
        try:
            return float(np.abs(weight.numpy()).max()) <= MOST
        except Exception:
            return True

    return redrawn_until(fine)


LOOKERS = {name: functools.partial(redrawn_until, fine) for name, fine in LOOKS.items()} | {
    "memory of NumPy": looked_at_from_outside,
    "memory given to NumPy": looked_at_before_it_is_drawn,
    "errors are caught": caught,
}


@pytest.mark.parametrize("name", LOOKERS)
def test_a_builder_that_looks_at_its_weights_keeps_its_rule(name):
    before = global_states()
    family = Family.initialised(LOOKERS[name], name="redrawn")
    largest = family.draw(200, seed=0, run=CPU).params["weight"].abs().amax(1)
    assert global_states() == before
    assert int((largest > MOST).sum()) == 0
    assert family.drawing.startswith("built one by one, since it ")


def shown_by(method: Callable[[Tensor], object], tensor: Tensor) -> object:
    """What a method of a tensor without arguments gives Python, comparable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = method(tensor)
    if isinstance(answer, torch.UntypedStorage):
        return bytes(answer)
    return np.asarray(answer).tolist() if isinstance(answer, np.ndarray | torch.TypedStorage) else answer


def tells_numbers(name: str, kind: torch.dtype) -> bool:
    try:
        zero, again, one = (shown_by(getattr(Tensor, name), torch.tensor(value, dtype=kind)) for value in (0, 0, 1))
        return not any(map(torch.is_tensor, tree_leaves(zero))) and bool(zero == again) and bool(zero != one)
    except Exception:  # it needs arguments, or another device
        return False


@pytest.mark.parametrize("kind", [torch.float32, torch.int64], ids=str)
def test_whatever_tells_python_the_numbers_of_a_tensor_is_seen(kind):
    telling = [name for name in dir(Tensor) if callable(getattr(Tensor, name)) and tells_numbers(name, kind)]
    assert {"tolist", "numpy", "item", "untyped_storage", "__float__", "__bool__", "__repr__", "__array__"} <= {
        *telling
    }
    for name in telling:

        def look(name=name) -> nn.Module:
            weight = (2 * torch.rand(())).to(kind)
            shown_by(getattr(Tensor, name), weight)
            return Holding({"drawn": weight})

        with pytest.raises(TapeError, match="reads a number"):
            Tape.record(look)


def test_a_builder_that_only_prints_is_as_it_was():
    def printing() -> nn.Module:
        layer = nn.Linear(3, 2)
        str(layer.weight), layer.bias.tolist()
        return layer

    drawn = Family.initialised(printing).draw(5, seed=3, run=CPU)
    silent = stacked(built(lambda: nn.Linear(3, 2), 3, 0, 5))
    assert all(torch.equal(drawn.params[name], silent[name]) for name in silent)


def test_a_look_at_what_was_not_drawn_is_harmless():
    def build() -> nn.Module:
        rates = torch.linspace(0, 1, 5)
        positions = torch.from_numpy(np.sin(np.asarray(torch.arange(5.0))))
        return Holding({"rates": torch.tensor(rates.tolist()), "positions": positions}, weight=torch.rand(4))

    assert Family.initialised(build).drawing == "replayed in stacks from recorded initialisers"


def test_memory_that_was_given_away_is_not_replayed():
    def build() -> nn.Module:
        weight = torch.empty(4)
        weight.numpy()[:] = 2.0  # no operator writes this: replayed memory would hold what lay there before
        return Holding({"given": weight}, weight=torch.rand(4))

    family = Family.initialised(build)
    assert "NumPy or Python may have changed" in family.drawing
    assert bool((family.draw(3, seed=0, run=CPU).buffers["given"] == 2).all())


@pytest.mark.parametrize("rest", range(3))
def test_a_course_that_only_some_seeds_show_is_found(rest):
    def build() -> nn.Module:
        weight = torch.rand(4)
        return Holding(weight=-weight if torch.initial_seed() % 3 == rest else weight)

    assert "under another seed" in Family.initialised(build).drawing


@pytest.mark.parametrize(
    ("build", "listed"),
    [
        (lambda: nn.Linear(4, 2, bias=bool(torch.rand(()) < 0.5)), r"1 (missing|extra) \(bias\)"),
        (
            lambda: nn.Linear(4, 2 + int(torch.initial_seed() % 3)),
            r"2 of another shape \(bias \(.,\) instead of \(.,\), ",
        ),
    ],
    ids=["names", "shapes"],
)
def test_a_builder_that_draws_its_layers_is_refused(build, listed):
    family = Family.initialised(build, name="mine")
    with pytest.raises(
        ValueError, match=rf"^mine must build the same layers in every draw, but two draws differ: {listed}"
    ):
        family.draw(20, seed=0, run=CPU)


def test_a_builder_that_fails_under_the_recorder_alone_is_built_one_by_one():
    def build() -> nn.Module:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise ValueError("no modes here")
        return nn.Linear(3, 2)

    family = Family.initialised(build)
    assert family.drawing == "built one by one, since it cannot be recorded (ValueError: no modes here)"
    assert family.draw(2, seed=0, run=CPU).params["weight"].shape == (2, 2, 3)


# ---- the proof, blocks and streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tamper",
    [
        lambda tape: dataclasses.replace(tape, entries=tape.entries[:-1]),
        lambda tape: dataclasses.replace(tape, entries=tape.entries[::-1]),
        lambda tape: dataclasses.replace(
            tape, tensors={"weight": tape.tensors["weight"], "bias": tape.tensors["weight"]}
        ),
    ],
    ids=["an operator is missing", "the order is wrong", "a name is wrong"],
)
def test_a_wrong_tape_does_not_pass_its_proof(tamper):
    def build() -> nn.Module:
        layer = nn.Linear(4, 4)
        layer.bias.data.mul_(2).add_(1)
        return layer

    tape = Tape.record(build)
    tape._prove(build, 5)
    with pytest.raises((TapeError, RuntimeError, KeyError)):
        tamper(tape)._prove(build, 5)


def test_a_tape_for_one_builder_does_not_pass_for_another():
    tape = Tape.record(lambda: nn.Linear(4, 3))

    def other() -> nn.Module:
        return (lambda layer: (nn.init.normal_(layer.weight), layer)[1])(nn.Linear(4, 3))

    with pytest.raises(TapeError, match="does not equal the builder at weight"):
        tape._prove(other, 5)


@pytest.mark.parametrize("build", [lambda: nn.Linear(3, 2), permuted], ids=["replayed", "one by one"])
def test_a_member_is_a_function_of_seed_and_index(build):
    family, run = Family.initialised(build), Run(device="cpu")
    first, again = (family.draws(seed=0, run=run)[20:30].params["weight"] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, family.draws(seed=0, run=run)[30:40].params["weight"])
    assert not torch.equal(first, family.draws(seed=1, run=run)[20:30].params["weight"])


def test_built_members_do_not_depend_on_the_cut():
    whole = stacked(built(permuted, 0, 0, 6))["weight"]
    assert torch.equal(whole[2:5], stacked(built(permuted, 0, 2, 5))["weight"])
    assert len({tuple(row.tolist()) for row in whole}) == 6


def test_a_block_fits_the_budget_and_holds_a_member_at_least():
    gpu = torch.device("cuda")
    assert block_size(1, ON_CPU) == 1024
    assert block_size(0, ON_CPU) == 1024
    assert block_size(2**20, ON_CPU) == 32
    assert block_size(2**40, ON_CPU) == 1
    assert block_size(1, gpu) == 4096
    assert block_size(2**21, gpu) == 1024


def test_what_the_module_does_not_keep_is_not_drawn_for_every_member():
    def build():
        model = nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 2))
        shared = torch.randn(2)
        model[1].bias.data = shared + 1  # which is kept, by what was made of it
        model[0] = nn.Identity()
        return model

    tape = Tape.record(build)
    assert not any(
        length == 4000 for _, length in (tape.memory[key] for entry in tape.entries for key in _storages(entry))
    )
    drawn = tape.draw(500, torch.Generator().manual_seed(0))
    assert {name: tuple(tensor.shape) for name, tensor in drawn.items()} == {
        "1.weight": (500, 2, 4),
        "1.bias": (500, 2),
    }
    assert abs(float(drawn["1.bias"].mean()) - 1) < 5 / math.sqrt(1000)
