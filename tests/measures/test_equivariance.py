"""Equivariance: closed forms of linear networks, differences of inputs that are moved exactly, and what is refused."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from biascope.cli import app
from biascope.cli.measure import probe_of
from biascope.derivatives.waves import slope_along
from biascope.families.family import Family
from biascope.measures.equivariance import Disc, Equivariance, equivariance, suits
from biascope.results.axes import InputAxes, named_axes
from biascope.results.registry import load
from biascope.runs.run import Run
from biascope.tasks.probe import Probe, _amplitudes

CPU, CPU64 = Run(device="cpu"), Run(device="cpu", precision="float64")
SHIFTS = ("shift down", "shift across")
SIDE = 12


def circular(*, relu: bool, kernel: int = 3) -> nn.Sequential:
    """Convolutions that know no border, and the mean over pixels."""
    between = nn.ReLU() if relu else nn.Identity()
    how = {"padding": kernel // 2, "padding_mode": "circular"}
    return nn.Sequential(
        nn.Conv2d(1, 4, kernel, **how),
        between,
        nn.Conv2d(4, 3, kernel, **how),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def point(module: nn.Module) -> Family:
    return Family.point(module.double(), name="one")


def linear(weight: Tensor, bias: float = 0.0) -> nn.Sequential:
    found = nn.Sequential(nn.Flatten(), nn.Linear(weight.numel(), 1))
    with torch.no_grad():
        found[1].weight.copy_(weight.reshape(1, -1))
        found[1].bias.fill_(bias)
    return found


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def at_points(field: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Fields ``(n, c, h, w)`` between their pixels, by their Fourier series."""
    height, width = field.shape[-2:]
    modes = torch.fft.fft2(field) / (height * width)
    down, across = (torch.fft.fftfreq(size, 1 / size, dtype=torch.float64) for size in (height, width))
    waves = [
        torch.exp(2j * math.pi * at[..., None] * frequencies / size)
        for at, frequencies, size in ((rows, down, height), (columns, across, width))
    ]
    return torch.einsum("nckl,hwk,hwl->nchw", modes, *waves).real


def scene(field: Tensor, angle: float = 0.0, size: float = 1.0) -> Tensor:
    """A windowed field, rotated by an angle and magnified; the window is written down anew."""
    height, width = field.shape[-2:]
    middle = [(length - 1) / 2 for length in (height, width)]
    places = (torch.arange(length).double() - at for length, at in zip((height, width), middle, strict=True))
    rows, columns = torch.meshgrid(*places, indexing="ij")
    ratio = 2 * torch.hypot(rows, columns) / min(height, width)
    window = torch.where(ratio < 0.5, 1.0, torch.where(ratio > 1, 0.0, torch.cos(math.pi * (2 * ratio - 1)) / 2 + 0.5))
    rows, columns = rows / size, columns / size
    turned = math.cos(angle) * rows - math.sin(angle) * columns, math.sin(angle) * rows + math.cos(angle) * columns
    return at_points(window * field, turned[0] + middle[0], turned[1] + middle[1])


def shifted(field: Tensor, by: float, axis: int) -> Tensor:
    """By a fraction of a pixel, through its Fourier series."""
    height, width = field.shape[-2:]
    at = [torch.arange(size).double() for size in (height, width)]
    at[axis] = at[axis] + by
    return at_points(field, *torch.meshgrid(*at, indexing="ij"))


def test_a_linear_circular_network_with_a_mean_over_pixels_is_invariant_but_not_behind_a_relu() -> None:
    probe = Probe.smooth((1, SIDE, SIDE), num=4)
    exact = equivariance(
        Family.initialised(lambda: circular(relu=False), name="linear"), probe, draws=6, run=CPU64
    )  # inputs are rounded to float32, and so is what lies at their Nyquist frequency
    assert exact.headline()["shift_error"].value < 1e-6
    assert "does not change the output" in exact.sentence()
    bent = equivariance(Family.initialised(lambda: circular(relu=True), name="bent"), probe, draws=12, run=CPU64)
    assert bent.headline()["shift_error"].low > 0.01


def test_a_linear_function_has_its_closed_form() -> None:
    weight = noise(1, SIDE, SIDE)
    power = _amplitudes((1, SIDE, SIDE), (1, 2)).square() * torch.fft.fft2(weight).abs().square()
    wave = 2 * math.pi * torch.fft.fftfreq(SIDE, dtype=torch.float64)
    squares = torch.stack([wave.square()[:, None].expand(SIDE, SIDE), wave.square()[None].expand(SIDE, SIDE)])
    truth = ((squares * power).sum((1, 2)) / power.sum()).sqrt()
    result = equivariance(point(linear(weight, 7.0)), Probe.smooth((1, SIDE, SIDE), num=16, seed=3), draws=100, run=CPU)
    for name, each in zip(SHIFTS, truth, strict=True):
        found = result.error((name,))
        assert found.contains(float(each)), (found, float(each))
        assert found.standard_error < 0.05 * found.value
    both = float(truth.square().mean().sqrt())
    assert result.headline()["shift_error"].contains(both)
    assert result.headline()["shift_error"].value == pytest.approx(both, rel=0.1)


def test_random_linear_functions_change_as_much_as_their_inputs() -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 1)), name="linear")
    result = equivariance(family, Probe.smooth((1, SIDE, SIDE), num=6), draws=100, run=CPU)
    power = _amplitudes((1, SIDE, SIDE), (1, 2))[0].square()
    wave = 2 * math.pi * torch.fft.fftfreq(SIDE, dtype=torch.float64).square()[:, None] * 2 * math.pi
    truth = math.sqrt(float((wave * power).sum() / power.sum()))
    assert result.input_change.contains(truth)
    assert result.input_change.value == pytest.approx(truth, rel=0.03)
    assert result.headline()["shift_error"].contains(truth)
    assert "about as alike" in result.sentence()


def test_the_interval_of_one_network_covers_the_closed_form() -> None:
    weight = noise(1, 9, 9)
    power = _amplitudes((1, 9, 9), (1, 2)).square() * torch.fft.fft2(weight).abs().square()
    wave = (2 * math.pi * torch.fft.fftfreq(9, dtype=torch.float64)).square()
    truth = math.sqrt(float(((wave[:, None] + wave[None]) / 2 * power).sum() / power.sum()))
    whole = equivariance(point(linear(weight)), Probe.smooth((1, 9, 9), num=6), draws=480, run=CPU)
    hits = 0
    for start in range(0, 480, 20):
        part = {name: getattr(whole, name)[start : start + 20] for name in Equivariance.axes}
        hits += dataclasses.replace(whole, **part).headline()["shift_error"].contains(truth)
    assert hits >= 20  # of 24 at 95 %: fewer come with a chance of 0.6 %


def test_the_changes_of_a_relu_network_are_differences_of_moved_inputs() -> None:
    module = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 110, 2)).double()
    probe, step = Probe.smooth((1, 11, 10), num=3, seed=5), 1e-5
    result = equivariance(point(module), probe, draws=2, run=CPU64)
    radius = Disc.of(11, 10).radius
    assert result.radius == pytest.approx(radius)
    with torch.no_grad():
        for draw, x in enumerate(probe.inputs(0, 2, CPU64)):
            for index, move in enumerate(
                (
                    lambda x, t: shifted(x, t, 0),
                    lambda x, t: shifted(x, t, 1),
                    lambda x, t: scene(x, angle=t / radius),
                    lambda x, t: scene(x, size=1 + t / radius),
                )
            ):
                slope = (module(move(x, step)) - module(move(x, -step))) / (2 * step)
                assert result.changes[draw, index] == pytest.approx(float(slope.square().sum(1).mean()), rel=1e-4)
                still = move(x, 0.0)
                assert result.variances[draw, index] == pytest.approx(float(module(still).var(0).sum()), rel=1e-6)
                assert result.input_variances[draw, index] == pytest.approx(float(still.var(0).mean()), rel=1e-6)


class Polar(nn.Module):
    """A function of the distances of pixels from the centre: the same however an image is rotated."""

    def __init__(self) -> None:
        super().__init__()
        at = torch.arange(16).double() - 7.5
        squares = at.square()[:, None] + at.square()[None]
        self.register_buffer("rings", torch.stack([torch.exp(-squares / (2 * scale**2)) for scale in (1.5, 2.5)]))
        self.read = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(torch.einsum("nchw,rhw->nr", x, self.get_buffer("rings")).tanh())


def test_a_function_of_distances_is_invariant_to_rotation_alone() -> None:
    result = equivariance(point(Polar()), Probe.smooth((1, 16, 16), num=8), draws=8, run=CPU64)
    errors = {key: number.value for key, number in result.headline().items()}
    assert errors["rotation_error"] < 2e-3
    assert min(errors["shift_error"], errors["scaling_error"]) > 0.05


def test_images_for_images_are_measured_for_equivariance() -> None:
    family = Family.initialised(
        lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular", bias=True), name="filters"
    )
    result = equivariance(family, Probe.smooth((1, SIDE, SIDE), num=4), draws=5, run=CPU64)
    assert not result.invariance
    assert result.headline()["shift_error"].value < 1e-6
    assert "equivariance error" in result.headline()["shift_error"].label
    assert "follows the input" in result.sentence()
    padded = Family.initialised(lambda: nn.Conv2d(1, 2, 3, padding=1), name="zeros at the border")
    assert equivariance(padded, Probe.smooth((1, SIDE, SIDE), num=4), draws=5, run=CPU64).kinds[0].key == "shift"
    border = equivariance(padded, Probe.smooth((1, SIDE, SIDE), num=4), draws=20, run=CPU64)
    assert border.headline()["shift_error"].low > 0.05


def test_a_filter_of_one_pixel_is_equivariant_to_rotation_and_scaling() -> None:
    family = Family.initialised(lambda: nn.Conv2d(1, 2, 1), name="one pixel")
    numbers = equivariance(family, Probe.smooth((1, 24, 24), num=4), draws=5, run=CPU64).headline()
    assert numbers["shift_error"].value < 1e-6
    assert max(numbers[key].value for key in ("rotation_error", "scaling_error")) < 1e-6


def test_offset_and_scale_of_outputs_do_not_matter() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float, offset: float) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.factor, self.offset = circular(relu=True), factor, offset

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * self.inner(x) + self.offset

    probe = Probe.smooth((1, 8, 8), num=4)

    def found(factor: float, offset: float, run: Run) -> list[float]:
        result = equivariance.function(Family.point(Scaled(factor, offset), name="one"), probe, draws=4, run=run)
        return [number.value for number in result.headline().values()]

    usual = found(1.0, 0.0, CPU)
    assert found(1e-30, 0.0, CPU) == pytest.approx(usual, rel=1e-5)
    assert found(1e22, 0.0, CPU) == pytest.approx(usual, rel=1e-5)
    assert found(1.0, 1e5, CPU64) == pytest.approx(found(1.0, 0.0, CPU64), rel=1e-8)


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


def test_sequences_are_shifted_in_time() -> None:
    family = Family.initialised(LastState, name="LSTM")
    result = equivariance(family, Probe.smooth((20, 3), num=4), draws=12, run=CPU)
    assert list(result.headline()) == ["shift_error", "input_change"]
    assert "one step" in result.sentence()
    assert result.moves == ("shift in time",)
    features_first = Family.initialised(
        lambda: nn.Sequential(
            nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        ),
        name="convolution",
    )
    still = equivariance(features_first, Probe.smooth((3, 20), along=(1,), num=4), draws=4, run=CPU64)
    assert still.headline()["shift_error"].value < 1e-6


def test_one_step_forward_in_time_is_the_slope_of_what_is_read() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.full((1,), 3.0))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, 5, :1] + self.bias

    family = dataclasses.replace(point(Reads()), axes=named_axes("time,feature"))
    result = equivariance(family, Probe.smooth((16, 2), num=8), draws=200, run=CPU)
    power = _amplitudes((16, 2), (0,))[:, 0].square()
    wave = (2 * math.pi * torch.fft.fftfreq(16, dtype=torch.float64)).square()
    assert result.headline()["shift_error"].contains(math.sqrt(float((wave * power).sum() / power.sum())))


def test_rough_inputs_and_inputs_with_edges_are_told() -> None:
    family = Family.initialised(lambda: circular(relu=True), name="small")
    white = equivariance(family, Probe.gaussian((1, 8, 8), num=4, fresh=True), draws=8, run=CPU)
    assert any("white noise" in warning for warning in white.warnings)
    assert "white noise" in white.sentence()
    ramps = noise(6, 1, 8, 8).float() * 0.1 + torch.linspace(-1, 1, 8) * noise(6, 1, 1, 1, seed=1).float()
    edged = equivariance(family, Probe.fixed(ramps), draws=8, run=CPU)
    assert any(warning.startswith("Opposite edges") for warning in edged.warnings)
    smooth = equivariance(family, Probe.smooth((1, 8, 8), num=4), draws=8, run=CPU)
    assert not smooth.warnings
    assert "smooth inputs" in smooth.sentence()


class Dead(nn.Module):
    """Of which some draws have a constant output."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x.flatten(1)) * (self.read.bias > 0)


def test_draws_with_a_constant_output_are_told_and_an_output_that_never_varies_is_refused() -> None:
    probe = Probe.smooth((1, 8, 8), num=4)
    result = equivariance(Family.initialised(Dead, name="half dead"), probe, draws=20, run=CPU)
    assert any("The output is constant for" in warning for warning in result.warnings)
    assert math.isfinite(result.headline()["shift_error"].high)
    constant = linear(torch.zeros(64), 2.0)
    with pytest.raises(ValueError, match="vary over inputs"):
        equivariance.function(point(constant), probe, draws=4, run=CPU)


def test_inputs_without_content_to_shift_are_refused() -> None:
    table = Family.initialised(lambda: nn.Linear(14, 1), name="table")
    with pytest.raises(ValueError, match=r"needs images of at least 8×8 pixels .* got inputs of shape 14\."):
        equivariance(table, Probe.gaussian((14,), num=4, fresh=True), draws=4, run=CPU)
    small = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(28, 1)), name="small")
    with pytest.raises(ValueError, match="larger --input"):
        equivariance(small, Probe.smooth((1, 4, 7), num=4), draws=4, run=CPU)
    unnamed = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 1)), name="unnamed")
    with pytest.raises(ValueError, match="Name the axes"):
        equivariance(unnamed, Probe.smooth((20, 3), num=4), draws=4, run=CPU)
    with pytest.raises(ValueError, match="at least 2 inputs"):
        equivariance(
            Family.initialised(lambda: circular(relu=True), "one input"),
            Probe.smooth((1, 8, 8), num=1),
            draws=4,
            run=CPU,
        )


@pytest.mark.parametrize(
    ("names", "shape", "suitable"),
    [
        ("", (1, 8, 8), True),
        ("height,width", (9, 8), True),
        ("", (3, 8, 7), False),
        ("", (14,), False),
        ("", (20, 3), False),
        ("token,channel", (20, 3), False),
        ("time,feature", (20, 3), True),
        ("feature,time", (3, 8), True),
        ("time,feature", (7, 3), False),
        ("time,channel,height,width", (9, 3, 9, 9), False),
    ],
)
def test_which_inputs_suit(names: str, shape: tuple[int, ...], suitable: bool) -> None:
    assert suits(InputAxes.of(named_axes(names), shape)) is suitable


def test_the_slope_of_waves_is_exact_and_the_nyquist_mode_has_none() -> None:
    at = torch.arange(10).double()
    waves = torch.stack([torch.cos(2 * math.pi * 3 * at / 10), (-1.0) ** at])
    slopes = slope_along(waves, 1)
    expected = -2 * math.pi * 3 / 10 * torch.sin(2 * math.pi * 3 * at / 10)
    torch.testing.assert_close(slopes[0], expected, rtol=0, atol=1e-12)
    assert float(slopes[1].abs().max()) < 1e-12
    torch.testing.assert_close(slope_along(waves.T, 0), slopes.T)


def test_words_depend_on_the_result() -> None:
    def result(change: float, spread: float = 0.0, invariance: bool = True) -> Equivariance:
        levels = np.array([1 - spread, 1.0, 1 + spread, 1.0])[:, None] * np.ones((4, 4))
        moves = (*SHIFTS, "rotation", "scaling")
        inputs = np.array([1.0, 1.1, 0.9, 1.0])[:, None] * np.full((4, 4), 0.25)
        return Equivariance(moves, change**2 * levels, np.ones((4, 4)), inputs, np.ones((4, 4)), invariance, 1.7, 8.0)

    assert "more alike" in result(0.1, 0.1).sentence()
    assert "less alike" in result(3.0, 0.1).sentence()
    assert "about as alike" in result(0.5, 0.3).sentence()
    assert "does not change the output" in result(0.0).sentence()
    tiny = result(0.01, 0.01).sentence()
    assert "e-" not in tiny
    assert "0.010 (95 % CI" in tiny


def test_it_is_measured_from_the_command_line(tmp_path: Path) -> None:
    words = [
        "measure",
        "equivariance",
        "mlp",
        "--input",
        "1x8x8",
        "--draws",
        "4",
        "--set",
        "hidden=8,8",
        "--out",
        str(tmp_path),
    ]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    result = load(tmp_path / "equivariance")
    assert result.provenance["probe"] == "8 fresh smooth random inputs of shape 1×8×8 per network"
    assert "A shift by one pixel" in done.stdout


def test_axes_of_time_are_found_on_the_command_line() -> None:
    family = Family.initialised(LastState, name="LSTM")
    assert "smooth" in probe_of(family, (20, 3), 0, smooth=True, num=4).description
    assert "N(0, 1²)" in probe_of(Family.initialised(lambda: nn.Linear(5, 1), "t"), (5,), 0, smooth=True).description
    with pytest.raises(ValueError, match="no-fresh"):
        probe_of(family, (20, 3), 0, smooth=True, fresh=False)
