"""The fastest way: found on the first members, every result used once and in order, whatever is given or runs out."""

import pytest
import torch
from clocks import Clock
from networks_under_test import CPU64, normal, smooth_mlp
from torch import Tensor

from biascope.derivatives.fastest import Fastest, Way
from biascope.derivatives.gradients import input_gradient
from biascope.families.family import Family
from biascope.families.network import Network

CPU_DEVICE = torch.device("cpu")


class Counted:
    """A way that takes ``fixed + each · members`` seconds, notes whom it was given, and can run out of memory."""

    def __init__(self, clock: Clock, fixed: float, each: float, fits: int = 10**9, first: float = 0.0) -> None:
        self.clock, self.fixed, self.each, self.fits, self.first = clock, fixed, each, fits, first
        self.calls: list[list[float]] = []

    def __call__(self, stack: Network, inputs: Tensor) -> Tensor:
        if (stack.members or 0) > self.fits:
            raise torch.OutOfMemoryError("no memory")
        self.clock.now += self.fixed + self.each * (stack.members or 0) + (self.first if not self.calls else 0.0)
        self.calls.append(stack.params["weight"][:, 0].tolist())
        return stack.params["weight"][:, None] * inputs  # (m, n, D)


def numbered(members: int, start: int = 0) -> Network:
    """A stack whose member ``i`` has the weight ``i``."""
    weight = torch.arange(start, start + members, dtype=torch.float64)[:, None]
    return Network(torch.nn.Identity(), {"weight": weight}, {}, members=members)


X = torch.ones(1, 1, dtype=torch.float64)


def mapped(fastest: Fastest, members: int, start: int = 0) -> list[float]:
    return fastest.map(numbered(members, start), X, paired=False).flatten().tolist()


@pytest.mark.parametrize(
    ("loop_each", "stack_each", "winner"),
    [(1.0, 0.1, "stack of 512"), (0.1, 1.0, "one at a time")],
)
def test_the_faster_way_is_chosen(clock, loop_each, stack_each, winner):
    loop, stack = Counted(clock, 0.0, loop_each), Counted(clock, 0.01, stack_each)
    fastest = Fastest([Way("one at a time", 1, loop), Way("stack", 64, stack, most=512)], CPU_DEVICE)
    assert (fastest.chosen, fastest.rate, fastest.settled) == ("not timed yet", 0.0, False)
    assert mapped(fastest, 2000) == list(range(2000))
    assert fastest.settled
    assert fastest.chosen == winner
    assert fastest.rate == pytest.approx(1 / min(loop_each, stack_each + 0.01 / 512))


def test_the_first_call_of_a_way_does_not_count(clock):
    slow_to_start = Counted(clock, 0.0, 1.0, first=1000.0)
    steady = Counted(clock, 0.0, 2.0)
    fastest = Fastest([Way("slow to start", 1, slow_to_start), Way("steady", 1, steady)], CPU_DEVICE)
    mapped(fastest, 10)
    assert fastest.chosen == "slow to start"
    assert len(steady.calls) == 2  # once to warm up, once timed


def test_a_quick_call_is_timed_several_times_and_the_best_counts(clock):
    class Disturbed(Counted):
        def __call__(self, stack: Network, inputs: Tensor) -> Tensor:
            self.each = 0.2 if len(self.calls) == 1 else 0.001
            return super().__call__(stack, inputs)

    disturbed, steady = Disturbed(clock, 0.0, 0.001), Counted(clock, 0.0, 0.01)
    fastest = Fastest([Way("disturbed", 1, disturbed), Way("steady", 1, steady)], CPU_DEVICE)
    mapped(fastest, 30)
    assert fastest.chosen == "disturbed"
    assert fastest.rate == pytest.approx(1000.0)


def test_a_winning_stack_grows_for_as_long_as_that_pays(clock):
    loop, stack = Counted(clock, 0.0, 1.0), Counted(clock, 2.0, 0.01)
    fastest = Fastest([Way("one at a time", 1, loop), Way("stack", 4, stack, most=1000)], CPU_DEVICE)
    mapped(fastest, 5000)
    assert fastest.chosen == "stack of 1000"
    assert [len(call) for call in stack.calls[:8]] == [4, 4, 32, 32, 256, 256, 1000, 1000]


def test_a_stack_that_gets_slower_by_growing_is_kept_at_its_best_size(clock):
    class Thrashing(Counted):
        def __call__(self, stack: Network, inputs: Tensor) -> Tensor:
            self.each = 0.1 if (stack.members or 0) <= 64 else 50.0
            return super().__call__(stack, inputs)

    loop, stack = Counted(clock, 0.0, 1.0), Thrashing(clock, 0.0, 0.1)
    fastest = Fastest([Way("one at a time", 1, loop), Way("stack", 64, stack, most=1024)], CPU_DEVICE)
    mapped(fastest, 3000)
    assert fastest.chosen == "stack of 64"
    assert fastest.settled


@pytest.mark.parametrize("pattern", [[1] * 40, [3, 5, 2], [64], [65, 1, 130], [500], [10, 200, 7, 800]])
def test_every_member_is_used_once_and_in_order(clock, pattern):
    ways = [Counted(clock, 0.0, 1.0), Counted(clock, 1.0, 0.1), Counted(clock, 0.5, 0.2)]
    fastest = Fastest(
        [Way("loop", 1, ways[0]), Way("stack", 16, ways[1], most=128), Way("other", 8, ways[2], most=128)], CPU_DEVICE
    )
    advanced: list[int] = []
    start = 0
    for members in pattern:
        found = fastest.map(numbered(members, start), X, paired=False, advance=advanced.append)
        assert found.flatten().tolist() == list(range(start, start + members))
        start += members
    assert sum(advanced) == start
    given = sorted(member for way in ways for call in way.calls for member in call)
    assert given == list(range(start))  # none twice


def test_paired_inputs_go_with_their_members(clock):
    way = Counted(clock, 0.0, 1.0)

    def paired(stack: Network, inputs: Tensor) -> Tensor:
        assert inputs.shape[0] == stack.members
        return way(stack, inputs[:, :, :1])

    fastest = Fastest([Way("loop", 1, paired), Way("stack", 4, paired, most=8)], CPU_DEVICE)
    inputs = 10.0 * torch.arange(30, dtype=torch.float64)[:, None, None]
    found = fastest.map(numbered(30), inputs, paired=True)
    assert found.flatten().tolist() == [10.0 * k * k for k in range(30)]


@pytest.mark.parametrize(("first", "fits", "chosen"), [(64, 10, "one at a time"), (8, 100, "stack of 64")])
def test_a_way_that_does_not_fit_is_dropped_and_growth_stops_where_memory_ends(clock, first, fits, chosen):
    loop, stack = Counted(clock, 0.0, 1.0), Counted(clock, 0.0, 0.01, fits=fits)
    fastest = Fastest([Way("one at a time", 1, loop), Way("stack", first, stack, most=512)], CPU_DEVICE)
    assert mapped(fastest, 1000) == list(range(1000))
    assert fastest.chosen == chosen
    assert fastest.settled


def test_the_way_in_use_is_halved_when_memory_runs_out_later(clock):
    loop, stack = Counted(clock, 0.0, 1.0), Counted(clock, 0.0, 0.01)
    fastest = Fastest([Way("one at a time", 1, loop), Way("stack", 64, stack, most=64)], CPU_DEVICE)
    mapped(fastest, 300)
    assert fastest.chosen == "stack of 64"
    stack.fits = 20
    assert mapped(fastest, 300, 300) == list(range(300, 600))
    assert fastest.chosen == "stack of 16"
    assert fastest.rate > 0
    stack.fits = 1
    assert mapped(fastest, 50, 600) == list(range(600, 650))
    assert fastest.chosen == "stack of 1"


def test_the_first_way_is_halved_until_it_fits_and_then_timed(clock):
    stack = Counted(clock, 1.0, 0.01, fits=20)
    fastest = Fastest([Way("stack", 64, stack, most=64)], CPU_DEVICE)
    assert mapped(fastest, 200) == list(range(200))
    assert fastest.chosen == "stack of 16"
    assert fastest.rate == pytest.approx(16 / 1.16)


def test_a_network_too_large_for_the_device_is_a_sentence(clock):
    never = Counted(clock, 0.0, 1.0, fits=0)
    fastest = Fastest([Way("one at a time", 1, never), Way("stack", 4, never, most=8)], CPU_DEVICE)
    expected = (
        r"^One network must fit into the device's memory, but it does not\. Pass a smaller input or device='cpu'\.$"
    )
    with pytest.raises(ValueError, match=expected):
        mapped(fastest, 10)
    with pytest.raises(ValueError, match=expected):
        mapped(Fastest([Way("stack", 4, never, most=8)], CPU_DEVICE), 10)


def test_a_way_of_one_member_that_no_longer_fits_gives_way_to_one_that_did(clock):
    small, large = Counted(clock, 0.0, 2.0), Counted(clock, 0.0, 1.0)
    fastest = Fastest([Way("128 inputs a pass", 1, small), Way("2048 inputs a pass", 1, large)], CPU_DEVICE)
    mapped(fastest, 10)
    assert fastest.chosen == "2048 inputs a pass"
    large.fits = 0
    assert mapped(fastest, 10, 10) == list(range(10, 20))
    assert fastest.chosen == "128 inputs a pass"


def test_a_size_that_failed_is_not_tried_again(clock):
    stack = Counted(clock, 1.0, 0.01, fits=1)
    tried = []

    def noting(networks: Network, inputs: Tensor) -> Tensor:
        tried.append(networks.members)
        return stack(networks, inputs)

    fastest = Fastest([Way("stack", 2, noting, most=2)], CPU_DEVICE)
    assert mapped(fastest, 20) == list(range(20))
    assert fastest.settled
    assert tried.count(2) == 1


def unbatchable(stack: Network, inputs: Tensor) -> Tensor:
    raise RuntimeError("vmap: It looks like you're calling .item() on a Tensor")


def test_a_way_that_cannot_run_this_network_is_dropped(clock):
    fastest = Fastest(
        [Way("one at a time", 1, Counted(clock, 0.0, 1.0)), Way("stack", 4, unbatchable, most=8)], CPU_DEVICE
    )
    assert mapped(fastest, 30) == list(range(30))
    assert fastest.chosen == "one at a time"
    assert fastest.settled


def test_an_error_of_the_only_way_is_not_hidden(clock):
    with pytest.raises(RuntimeError, match="calling"):
        mapped(Fastest([Way("stack", 4, unbatchable, most=8)], CPU_DEVICE), 30)
    loop = Counted(clock, 0.0, 1.0)
    fastest = Fastest([Way("one at a time", 1, loop)], CPU_DEVICE)
    mapped(fastest, 5)
    fastest._best = Way("one at a time", 1, unbatchable)
    with pytest.raises(RuntimeError, match="calling"):
        mapped(fastest, 5)


def test_real_gradients_are_the_same_by_every_way():
    stack = Family.initialised(smooth_mlp).draw(50, seed=0, run=CPU64).read("first")
    x = normal(2, 6)

    def loop(stack: Network, x: Tensor) -> Tensor:
        return input_gradient(stack.member(0), x)[None]

    fastest = Fastest([Way("one at a time", 1, loop), Way("stack", 8, input_gradient, most=32)], CPU_DEVICE)
    wanted = torch.stack([input_gradient(stack.member(k), x) for k in range(50)])
    for _ in range(3):
        assert torch.allclose(fastest.map(stack, x, paired=False), wanted, rtol=0, atol=1e-12)
    assert fastest.rate > 0
