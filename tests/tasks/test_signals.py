"""Grids of coordinates, signals on them, and the task of learning many signals at once."""

import functools
import itertools
import math

import pytest
import torch
from networks_under_test import CPU64, global_states, normal
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.networks.coordinate_mlp import coordinate_mlp
from biascope.networks.siren import siren
from biascope.runs.run import Run
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid, outputs_at, psnr, psnr_of
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")

ADAM = Recipe("adam", rate=1e-3, schedule="constant", steps=4, batch=10**9, loss="squared")


def signals(count: int, *shape: int) -> list[Signal]:
    return [Signal(normal(*shape, seed=seed), f"signal {seed}") for seed in range(count)]


def sirens(members: int, **settings: object) -> Network:
    build = functools.partial(siren, **{"width": 8, "depth": 2, **settings})
    return Family.initialised(build).draw(members, seed=0, run=CPU64)


# ---- grids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5,), (4, 4), (3, 5), (2, 3, 4), (2, 1, 3, 2), (2, 2, 2, 3, 1), (2, 1, 2, 1, 2, 3)])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 7.5)])
def test_a_grid_has_square_cells_in_every_dimension(sizes: tuple[int, ...], low: float, high: float) -> None:
    grid = coordinate_grid(sizes, low=low, high=high)
    step = (high - low) / max(sizes)
    assert grid.dtype is torch.float64
    wanted = [[low + step * k for k in point] for point in itertools.product(*map(range, sizes))]
    torch.testing.assert_close(grid, torch.tensor(wanted, dtype=torch.float64).reshape(-1, len(sizes)))
    assert float(grid.max()) == pytest.approx(high - step)


def test_a_stretched_grid_spans_every_axis() -> None:
    grid = coordinate_grid((3, 5), low=-1.0, high=1.0, endpoint=True, isotropic=False)
    assert grid[0].tolist() == [-1.0, -1.0]
    assert grid[-1].tolist() == [1.0, 1.0]
    assert coordinate_grid((3, 5), endpoint=True)[-1].tolist() == [0.5, 1.0]
    assert coordinate_grid((1, 1), endpoint=True).tolist() == [[0.0, 0.0]]


def test_without_its_endpoint_a_grid_is_one_period_of_a_fourier_transform() -> None:
    grid = coordinate_grid((8, 8), low=-1.0, high=1.0)
    wave = torch.cos(2 * math.pi * (grid @ torch.tensor([1.0, 0.5]).double())).reshape(8, 8)
    energy = torch.fft.fft2(wave).abs() / 64
    assert energy[2, 1] == pytest.approx(0.5)
    assert float(energy.square().sum()) == pytest.approx(0.5)  # in this coefficient and its mirror image alone


@pytest.mark.parametrize("sizes", [(), (0, 3), (2,) * 7])
def test_impossible_sizes_are_a_sentence(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes must list 1 to 6 axes of at least 1 point, got"):
        coordinate_grid(sizes)
    with pytest.raises(ValueError, match=r"low must be below high, got 1.0 and 1.0. Pass low=0.0, high=1.0."):
        coordinate_grid((2,), low=1.0)


# ---- signals -------------------------------------------------------------------------------------------------------


def test_a_signal_knows_its_grid() -> None:
    image = Signal(normal(3, 5, 2), "image", rate=5.0)
    assert (image.shape, image.channels, image.flat.shape) == ((3, 5), 2, (15, 2))
    assert torch.equal(image.coordinates(high=5.0), coordinate_grid((3, 5), high=5.0))
    assert torch.equal(image.flat[7], image.values[1, 2])
    assert image.coordinates(high=5.0)[7].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(5), "A signal must have 1 to 6 axes and one of channels behind them"),
        (torch.zeros((1,) * 8), "A signal must have 1 to 6 axes"),
        (torch.zeros(3, 0), "A signal must have 1 to 6 axes"),
        (torch.zeros(4, 4, 1, dtype=torch.uint8), "must be finite real numbers, got torch.uint8. Pass values.float"),
        (torch.full((4, 1), math.nan), "must be finite real numbers, got torch.float32 with NaN or infinite values"),
    ],
)
def test_what_is_no_signal_is_a_sentence(values: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Signal(values)


# ---- tasks ---------------------------------------------------------------------------------------------------------


def test_members_share_coordinates_and_have_values_of_their_own() -> None:
    given = signals(3, 4, 6, 2)
    task = SignalTask.of(given, held_out=0.25, low=-1.0, seed=0, run=CPU64)
    assert (task.members, task.shape, task.sizes) == (3, (2,), {"train": 18, "test": 6, "all": 24})
    x, y = task.batch("all", torch.arange(24))
    assert torch.equal(x, coordinate_grid((4, 6), low=-1.0))
    assert torch.equal(y, torch.stack([signal.flat for signal in given]))
    assert task.member_axes(x, y) == (None, 0)
    assert torch.equal(
        task.select([2, 0, 0]).batch("train", torch.tensor([1]))[1],
        task.batch("train", torch.tensor([1]))[1][[2, 0, 0]],
    )
    alone = task.of_member(1)
    assert alone.members is None
    assert alone.of_member(0) is alone.select([4]) is alone
    assert torch.equal(alone.batch("all", torch.arange(24))[1], given[1].flat)
    assert alone.member_axes(x, given[1].flat) == (None, None)


def test_held_out_points_are_a_random_part_that_a_seed_fixes() -> None:
    before = global_states()
    first, again, other = (SignalTask.of(signals(1, 20, 20, 1), seed=seed, run=CPU64) for seed in (0, 0, 1))
    assert global_states() == before
    assert first.sizes == {"train": 200, "test": 200, "all": 400}
    together = torch.cat([first.points["train"], first.points["test"]])
    assert torch.equal(together.sort().values, torch.arange(400))
    assert torch.equal(first.points["test"], again.points["test"])
    assert not torch.equal(first.points["test"], other.points["test"])
    rows = (first.points["test"] // 20).double().mean()
    assert abs(float(rows) - 9.5) < 5 * 5.8 / math.sqrt(200)
    assert SignalTask.of(signals(1, 5, 1), held_out=0.0, seed=0, run=CPU64).sizes == {"train": 5, "all": 5}


@pytest.mark.parametrize("held_out", [-0.1, 1.0, 0.95, math.nan])
def test_too_many_held_out_is_a_sentence(held_out: float) -> None:
    with pytest.raises(ValueError, match="held_out must be a share from 0 to below 1 that leaves a point to train on"):
        SignalTask.of(signals(1, 4, 1), held_out=held_out, seed=0, run=CPU64)


def test_signals_of_two_shapes_are_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"signals must be at least one and of one shape, got \(3, 1\), \(4, 1\). Pass"
    ):
        SignalTask.of([*signals(1, 4, 1), *signals(1, 3, 1)], seed=0, run=CPU64)
    with pytest.raises(ValueError, match="got none"):
        SignalTask.of([], seed=0, run=CPU64)
    with pytest.raises(ValueError, match="split must be one of 'train', 'all', got 'test'"):
        SignalTask.of(signals(1, 4, 1), held_out=0, seed=0, run=CPU64).batch("test", torch.arange(1))


# ---- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("recipe", [ADAM, Recipe("gd", rate=1e-2, schedule="constant", steps=4, loss="squared")])
def test_a_stack_learns_what_each_member_would_alone(channels: int, recipe: Recipe) -> None:
    task = SignalTask.of(signals(3, 5, 4, channels), seed=0, run=CPU64)
    networks = sirens(3, outputs=channels)
    together = fit(networks, task, recipe, seed=0, run=CPU64, way="stack")
    assert together.losses.shape == (4, 3)
    for index in range(3):
        alone = fit(networks.member(index), task.of_member(index), recipe, seed=0, run=CPU64)
        torch.testing.assert_close(together.losses[:, index], alone.losses[:, 0], rtol=1e-10, atol=0)
        for name, part in alone.networks.params.items():
            torch.testing.assert_close(together.networks.params[name][index], part, rtol=1e-8, atol=1e-12)
    assert bool((together.losses[-1] < together.losses[0]).all())
    # The loss of a full batch is the mean squared error over points and channels.
    error = 10 ** (-psnr_of(networks, task, "train", run=CPU64) / 10)
    torch.testing.assert_close(together.losses[0], error)


@pytest.mark.parametrize("way", ["loop", "stack"])
def test_a_hundred_signals_at_once(way: str) -> None:
    task = SignalTask.of(signals(100, 6, 6, 1), seed=0, run=CPU64)
    networks = sirens(100)
    seen: list[float] = []
    done = fit(
        networks, task, ADAM, seed=0, run=CPU64, way=way,
        observe=lambda _, now: seen.append(float(psnr_of(now, task, "test", run=CPU64).mean())), observe_at=(0, 4),
    )  # fmt: skip
    assert bool((done.losses[-1] < done.losses[0]).all())
    assert seen == [
        pytest.approx(float(psnr_of(state, task, "test", run=CPU64).mean())) for state in (networks, done.networks)
    ]


def test_held_out_values_do_not_enter_training() -> None:
    (image,) = signals(1, 6, 6, 1)
    task = SignalTask.of(image, seed=0, run=CPU64)
    flat = image.flat.clone()
    flat[task.points["test"]] = 100.0
    other = SignalTask.of(Signal(flat.reshape(image.values.shape)), seed=0, run=CPU64)
    first, second = (fit(sirens(1).member(0), each, ADAM, seed=0, run=CPU64).networks for each in (task, other))
    assert all(torch.equal(part, second.params[name]) for name, part in first.params.items())
    assert float(psnr_of(second, other, "test", run=CPU64)) < -30 < float(psnr_of(first, task, "test", run=CPU64))


@pytest.mark.parametrize("channels", [1, 3])
def test_one_signal_is_learned_by_every_network_of_a_stack(channels: int) -> None:
    (image,) = signals(1, 4, 4, channels)
    networks = sirens(3, outputs=channels)
    task = SignalTask.of(image, seed=0, run=CPU64)
    shared = fit(networks, task, ADAM, seed=0, run=CPU64, way="stack").networks
    copies = SignalTask.of([image], seed=0, run=CPU64).select([0] * 3)
    each = fit(networks, copies, ADAM, seed=0, run=CPU64, way="stack").networks
    for name, part in shared.params.items():
        torch.testing.assert_close(part, each.params[name])
    torch.testing.assert_close(psnr_of(shared, task, "test", run=CPU64), psnr_of(each, copies, "test", run=CPU64))


def test_a_network_learns_a_wave_of_its_own_frequency_and_the_points_between() -> None:
    grid = coordinate_grid((64,))
    wave = Signal(0.5 + 0.5 * torch.sin(2 * math.pi * 3 * grid), "wave", rate=64.0)
    build = functools.partial(coordinate_mlp, coordinates=1, encoding="single", frequency=3.0, width=32)
    network = Family.initialised(build).draw(1, seed=0, run=CPU64).member(0)
    task = SignalTask.of(wave, seed=0, run=CPU64)
    recipe = Recipe("adam", rate=1e-2, schedule="linear", steps=200, batch=10**9, loss="squared")
    trained = fit(network, task, recipe, seed=0, run=CPU64).networks
    assert float(psnr_of(network, task, "test", run=CPU64)) < 12
    assert float(psnr_of(trained, task, "test", run=CPU64)) > 25


# ---- how well ------------------------------------------------------------------------------------------------------


def test_psnr_in_closed_form() -> None:
    values = torch.zeros(3, 8, 2, dtype=torch.float64)
    outputs = values + torch.tensor([1.0, 0.1, 0.0]).double()[:, None, None]
    torch.testing.assert_close(psnr(outputs, values, dim=(1, 2)), torch.tensor([0.0, 20.0, math.inf]).double())
    assert float(psnr(outputs, values, peak=10.0)) == pytest.approx(20 - 10 * math.log10(1.01 / 3))
    with pytest.raises(ValueError, match=r"outputs and values must have one shape, got \(3, 8, 2\) and \(3, 8\)"):
        psnr(outputs, values[..., 0])
    with pytest.raises(ValueError, match=r"peak must be a positive number, got 0. Pass peak=1.0"):
        psnr(outputs, values, peak=0)


def test_psnr_of_a_stack_is_that_of_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SignalTask.of(signals(2, 5, 7, 3), seed=0, run=CPU64)
    networks = sirens(2, outputs=3)
    whole = psnr_of(networks, task, "test", run=CPU64)
    x, y = task.batch("test", torch.arange(task.sizes["test"]))
    torch.testing.assert_close(whole, psnr(networks(x), y, dim=(1, 2)))
    monkeypatch.setattr("biascope.tasks.signals.AT_ONCE", 10)  # five points at a time
    torch.testing.assert_close(psnr_of(networks, task, "test", run=CPU64), whole)
    assert outputs_at(networks, task.grid, run=CPU64).shape == (2, 35, 3)
    torch.testing.assert_close(outputs_at(networks.member(1), task.grid, run=CPU64), networks(task.grid)[1])


def test_outputs_are_in_the_precision_of_the_run() -> None:
    network, grid = sirens(1).member(0), coordinate_grid((3, 3))
    assert outputs_at(network, grid, run=Run(device="cpu")).dtype is torch.float32
    assert outputs_at(network, grid, run=Run(device="cpu", precision="bfloat16")).dtype is torch.float32


def test_networks_that_do_not_fit_are_a_sentence() -> None:
    task = SignalTask.of(signals(2, 4, 4, 3), seed=0, run=CPU64)
    with pytest.raises(ValueError, match="The task must be for as many members as there are networks, got 2 and 3"):
        psnr_of(sirens(3), task, "test", run=CPU64)
    with pytest.raises(ValueError, match=r"as many values as the signal has channels, got 1 and 3. Build them with"):
        psnr_of(sirens(2), task, "test", run=CPU64)
    with pytest.raises(ValueError, match="split must be one of 'train', 'test', 'all', got 'validation'"):
        psnr_of(sirens(2, outputs=3), task, "validation", run=CPU64)


def test_any_network_from_coordinates_will_do() -> None:
    plane = Signal((coordinate_grid((4, 4)) @ torch.tensor([1.0, 2.0]).double()).reshape(4, 4, 1))
    network = Network.of(nn.Linear(2, 1, bias=False)).with_params({"weight": torch.tensor([[1.0, 2.0]]).double()})
    task = SignalTask.of(plane, seed=0, run=CPU64)
    assert float(psnr_of(network, task, "test", run=CPU64)) > 300  # no more error than rounding
