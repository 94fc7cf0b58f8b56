"""Signals in files: an image, a sound or an array, read and written."""

from __future__ import annotations

import io
import math
import wave
from pathlib import Path

import numpy as np
import torch

from biascope.data.picture import SUFFIXES, in_8_bits, in_floats, is_deep, is_grey, opened
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.files import write_atomically
from biascope.tasks.signals import MOST_DIMENSIONS, Signal

COLOURS = (1, 3, 4)  # lengths of a last axis that is taken for channels


@under_torch_defaults
def signal_of(
    path: Path | str,
    *,
    longest: int | None = None,
    seconds: float | None = None,
    start: float = 0.0,
    grey: bool = False,
) -> Signal:
    """The signal of a file.

    Images become values from 0 (black) to 1 (white) of shape (height, width, channels), 8 bits by 255 and 16 bits by 65,535; an
    image whose numbers have no certain brightness (floats beyond 0 and 1, 32-bit integers, 16-bit colours, transparency, several
    frames, CMYK) is refused. Sounds (``.wav``) become values from −1 to 1 of shape (samples, 1) with all channels mixed into one.
    Arrays (``.npy``) are taken as they are: an array of three axes or more whose last has length 1, 3 or 4 has channels there,
    any other has one channel.

    Args:
        path: The file.
        longest: Pixels of the longer side that an image is reduced to; by default it keeps its size.
        seconds: Seconds of a sound to read; by default all.
        start: Second of a sound to start from.
        grey: Whether to make an image grey.

    Returns:
        The signal, in float64, with the sampling rate of a sound.

    Raises:
        ValueError: If there is no such file, it holds no signal, or a setting is out of its range.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ramp.npy"
        >>> np.save(path, np.arange(6.0).reshape(2, 3))
        >>> signal_of(path).shape, signal_of(path).channels
        ((2, 3), 1)
    """
    path = Path(path)
    _check_part(longest, seconds, start)
    if not path.is_file():
        raise ValueError(f"The signal {path} must be an existing file, but there is none. Check the path.")
    kind = path.suffix.lower()
    if kind in SUFFIXES:
        return _image(path, longest, grey)
    if kind == ".wav":
        return _sound(path, seconds, start)
    if kind == ".npy":
        return _array(path)
    raise ValueError(
        f"A signal must be an image, a .wav sound or an .npy array, got {path.name}. Convert it to one of these."
    )


def _check_part(longest: int | None, seconds: float | None, start: float) -> None:
    if longest is not None and longest < 1:
        raise ValueError(f"longest must be at least 1 pixel, got {longest}. Pass longest=256.")
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be a positive number, got {seconds}. Pass seconds=2.0.")
    if not 0 <= start < math.inf:
        raise ValueError(f"start must be a number of seconds from 0, got {start}. Pass start=0.0.")


def save_signal(signal: Signal, path: Path | str) -> Path:
    """Write a signal: ``.png`` for an image (values from 0 to 1), ``.wav`` for a sound (−1 to 1, 16 bits), ``.npy`` for any.

    Raises:
        ValueError: If the signal does not fit the file.
    """
    path = Path(path)
    values = signal.values.detach().cpu().double().numpy()
    buffer = io.BytesIO()
    if path.suffix == ".npy":
        np.save(buffer, values[..., 0] if signal.channels == 1 else values)
    elif path.suffix == ".png" and len(signal.shape) == 2 and signal.channels in COLOURS:
        from PIL import Image

        pixels = np.rint(255 * values.clip(0, 1)).astype(np.uint8)
        Image.fromarray(pixels[..., 0] if signal.channels == 1 else pixels).save(buffer, format="PNG")
    elif path.suffix == ".wav" and len(signal.shape) == 1 and signal.rate:
        with wave.open(buffer, "wb") as file:
            file.setparams((signal.channels, 2, round(signal.rate), 0, "NONE", ""))
            file.writeframes(np.rint(32767 * values.clip(-1, 1)).astype("<i2").tobytes())
    else:
        raise ValueError(
            f"A signal of {len(signal.shape)} axes and {signal.channels} channels cannot be written as {path.suffix or path.name}. "
            "Pass a name that ends in .npy."
        )
    write_atomically(path, buffer.getvalue())
    return path


def _image(path: Path, longest: int | None, grey: bool) -> Signal:
    from PIL import Image

    with opened(path) as picture:
        if is_deep(picture):
            image, white = in_floats(picture, path)
        else:
            image, white = in_8_bits(picture, "L" if grey or is_grey(picture) else "RGB", path), 255.0
    if longest is not None and longest < max(image.size):
        share = longest / max(image.size)
        width, height = (max(1, round(side * share)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    pixels = (np.asarray(image, np.float64) / white).clip(0, 1)  # floats overshoot where they are made smaller
    return Signal(torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)), path.stem)


def _sound(path: Path, seconds: float | None, start: float) -> Signal:
    try:
        with wave.open(str(path), "rb") as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            file.setpos(min(file.getnframes(), round(start * rate)))
            wanted = file.getnframes() - file.tell()
            wanted = wanted if seconds is None else min(wanted, max(0, round(seconds * rate)))
            frames = file.readframes(wanted)
    except (wave.Error, EOFError) as error:
        raise ValueError(
            f"{path} must be a .wav file of plain PCM samples, but is not ({error or 'it ends early'}). Convert it to 16-bit PCM."
        ) from error
    if not rate:
        raise ValueError(f"{path} must state its sampling rate, but states 0 Hz. Save the sound again.")
    if len(frames) < wanted * width * channels:
        there = len(frames) // (width * channels)
        raise ValueError(
            f"{path} must have {wanted:,} samples there, as its header says, but has {there:,}. Copy it again."
        )
    raw = np.frombuffer(frames, np.uint8).reshape(-1, width)
    if not len(raw):
        raise ValueError(f"{path} must have samples after {start:g} s, but has none. Pass a smaller --start.")
    if width == 1:  # the only width whose samples have no sign
        values = (raw[:, 0].astype(np.float64) - 128) / 128
    else:
        padded = np.zeros((len(raw), 4), np.uint8)
        padded[:, 4 - width :] = (
            raw  # the highest bytes of a whole number of four: its size is the same share of the largest
        )
        values = padded.view("<i4")[:, 0] / 2.0**31
    return Signal(torch.from_numpy(values.reshape(-1, channels).mean(1, keepdims=True)), path.stem, float(rate))


def _array(path: Path) -> Signal:
    try:
        values = np.load(path, allow_pickle=False)
    except MemoryError as error:
        raise ValueError(
            f"{path} must hold an array that fits into memory, but its header declares a larger one. Save it again."
        ) from error
    except Exception as error:  # a damaged header makes NumPy raise almost anything
        raise ValueError(
            f"{path} must be an .npy array of numbers, but cannot be read as one. Save it with numpy.save."
        ) from error
    if values.dtype.kind not in "biuf" or not 1 <= values.ndim <= MOST_DIMENSIONS + 1 or not values.size:
        raise ValueError(
            f"{path} must hold real numbers along 1 to {MOST_DIMENSIONS} axes, got {values.dtype} of shape {values.shape}. "
            "Save one signal as an array."
        )
    values = values.astype(np.float64)
    coloured = values.ndim > MOST_DIMENSIONS or (values.ndim > 2 and values.shape[-1] in COLOURS)
    return Signal(torch.from_numpy(values if coloured else values[..., None]), path.stem)
