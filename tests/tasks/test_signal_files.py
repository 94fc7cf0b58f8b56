"""Signals from files and back."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from biascope.tasks.signal_files import save_signal, signal_of
from biascope.tasks.signals import Signal


def test_an_image_is_read_with_rows_first_and_values_from_0_to_1(tmp_path: Path) -> None:
    pixels = np.zeros((3, 5, 3), np.uint8)
    pixels[1, 4] = (255, 51, 0)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = signal_of(tmp_path / "a.png")
    assert found.shape == (3, 5)
    assert found.values[1, 4].tolist() == pytest.approx([1.0, 0.2, 0.0])
    assert float(found.values.sum()) == pytest.approx(1.2)
    assert found.name == "a"
    assert found.rate is None
    assert signal_of(tmp_path / "a.png", grey=True).channels == 1


def test_a_large_image_is_made_smaller_and_keeps_its_shape(tmp_path: Path) -> None:
    Image.fromarray(np.full((40, 80), 128, np.uint8)).save(tmp_path / "wide.png")
    small = signal_of(tmp_path / "wide.png", longest=20)
    assert small.shape == (10, 20)
    assert small.values.unique().tolist() == pytest.approx([128 / 255])
    assert signal_of(tmp_path / "wide.png", longest=100).shape == (40, 80)


@pytest.mark.parametrize(
    ("width", "code", "largest"), [(1, None, 127 / 128), (2, "<i2", 32767 / 32768), (4, "<i4", 1 - 2**-31)]
)
def test_sounds_of_every_width(tmp_path: Path, width: int, code: str | None, largest: float) -> None:
    if code is None:
        data = np.array([0, 128, 255], np.uint8)
    else:
        ends = np.iinfo(code)
        data = np.array([ends.min, 0, ends.max], code)
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setparams((1, width, 8000, 0, "NONE", ""))
        file.writeframes(data.tobytes())
    found = signal_of(tmp_path / "s.wav")
    assert found.values.flatten().tolist() == pytest.approx([-1.0, 0.0, largest], abs=1e-9)
    assert found.rate == 8000


def test_24_bits_and_two_channels(tmp_path: Path) -> None:
    frames = b"".join(value.to_bytes(3, "little", signed=True) for value in (-(2**23), 0, 2**22, 2**22))
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setparams((2, 3, 4, 0, "NONE", ""))
        file.writeframes(frames)
    assert signal_of(tmp_path / "s.wav").values.tolist() == [[-0.5], [0.5]]
    assert signal_of(tmp_path / "s.wav", start=0.25).values.tolist() == [[0.5]]
    assert signal_of(tmp_path / "s.wav", seconds=0.25).values.tolist() == [[-0.5]]


@pytest.mark.parametrize(
    ("shape", "sizes", "channels"),
    [((7,), (7,), 1), ((4, 3), (4, 3), 1), ((4, 5, 3), (4, 5), 3), ((4, 5, 6), (4, 5, 6), 1)],
)
def test_arrays(tmp_path: Path, shape: tuple[int, ...], sizes: tuple[int, ...], channels: int) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.int16))
    found = signal_of(tmp_path / "a.npy")
    assert (found.shape, found.channels) == (sizes, channels)


@pytest.mark.parametrize(
    ("name", "shape", "rate"), [("a.png", (4, 6, 3), None), ("a.png", (4, 6, 1), None), ("a.wav", (50, 1), 100.0)]
)
def test_what_is_written_is_read_again(tmp_path: Path, name: str, shape: tuple[int, ...], rate: float | None) -> None:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    again = signal_of(save_signal(Signal(values, rate=rate), tmp_path / name))
    assert (again.values - values).abs().max() < (1 / 255 if rate is None else 1e-4)
    assert again.rate == rate
    again = signal_of(save_signal(Signal(values, rate=rate), tmp_path / "b.npy"))
    assert torch.equal(again.values.reshape(shape), values)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.png", None, "must be an existing file"),
        ("a.png", b"no image", "must be a picture"),
        ("a.wav", b"no sound", "must be a .wav file of plain PCM samples"),
        ("a.npy", b"no array", "must be an .npy array of numbers"),
        ("a.txt", b"words", "must be an image, a .wav sound or an .npy array"),
    ],
)
def test_what_is_no_signal_is_a_sentence(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        signal_of(tmp_path / name)


def test_arrays_of_something_else(tmp_path: Path) -> None:
    for value in (np.array(["a"]), np.array(1.0), np.zeros((0, 3)), np.zeros(3, complex)):
        np.save(tmp_path / "a.npy", value)
        with pytest.raises(ValueError, match="must hold real numbers"):
            signal_of(tmp_path / "a.npy")


def test_a_signal_that_does_not_fit_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be written as \.png"):
        save_signal(Signal(torch.zeros(5, 1)), tmp_path / "a.png")
