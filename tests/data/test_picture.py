"""Picture files of every kind: their brightness is right, or they are refused, as a signal and in an image folder alike."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from biascope import data
from biascope.tasks.signal_files import signal_of

RAMP = np.linspace(0, 1, 48).reshape(6, 8)  # the truth: black to white, row by row
BYTES = np.rint(255 * RAMP).astype(np.uint8)
SIXTEEN = np.rint(65_535 * RAMP).astype(np.uint16)


def in_class(folder: Path) -> Path:
    (folder / "class").mkdir(exist_ok=True)
    return folder / "class"


def write_png_of_16_bits(path: Path, channels: int, colour_type: int) -> None:
    """Pillow writes no 16-bit colours: the file by hand, all white."""
    rows = b"".join(b"\0" + b"\xff" * (2 * channels * 8) for _ in range(6))
    header = struct.pack(">IIBBBBB", 8, 6, 16, colour_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    written = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(written))


def write_pgm_of_16_bits(path: Path) -> None:
    path.write_bytes(b"P5 8 6 65535\n" + SIXTEEN.astype(">u2").tobytes())


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", lambda path: Image.fromarray(SIXTEEN).save(path)),
        ("a.tif", lambda path: Image.fromarray(SIXTEEN).save(path)),
        ("big_endian.tif", lambda path: Image.fromarray(SIXTEEN.astype(">u2")).save(path)),
        ("a.pgm", write_pgm_of_16_bits),
        ("float.tif", lambda path: Image.fromarray(RAMP.astype(np.float32)).save(path)),
    ],
)
def test_a_deep_grey_ramp_is_a_ramp(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    for grey in (False, True):
        found = signal_of(tmp_path / name, grey=grey)
        assert (found.shape, found.channels) == ((6, 8), 1)
        np.testing.assert_allclose(found.values[..., 0].numpy(), RAMP, atol=1e-5)
    small = signal_of(tmp_path / name, longest=4).values[..., 0].numpy()
    assert small.shape == (3, 4)
    assert 0 <= small.min() < small.max() <= 1
    assert small.mean() == pytest.approx(0.5, abs=0.01)
    write(in_class(tmp_path) / name)  # an image folder has 8 bits per channel, and says so
    with pytest.raises(ValueError, match="must have 8 bits per channel"):
        data.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "image", "truth"),
    [
        ("bits.png", Image.fromarray(BYTES > 127), (BYTES > 127).astype(float)),
        ("palette.png", Image.fromarray(np.stack([BYTES] * 3, -1)).quantize(64), RAMP),
        ("opaque.png", Image.fromarray(np.stack([BYTES, np.full_like(BYTES, 255)], -1)), RAMP),
        (
            "opaque_colours.png",
            Image.fromarray(np.stack([BYTES, BYTES, BYTES, np.full_like(BYTES, 255)], -1)),
            RAMP,
        ),
        ("one_frame.gif", Image.fromarray(BYTES), RAMP),
        ("lossless.webp", Image.fromarray(np.stack([BYTES] * 3, -1)), RAMP),
    ],
)
def test_pictures_of_8_bits_and_less(tmp_path: Path, name: str, image: Image.Image, truth: np.ndarray) -> None:
    image.save(tmp_path / name, lossless=True)
    np.testing.assert_allclose(signal_of(tmp_path / name).values.mean(-1).numpy(), truth, atol=2e-3)
    image.save(in_class(tmp_path) / name, lossless=True)
    pixels = data.load(tmp_path).splits["train"][0][0].mean(0) / 255
    np.testing.assert_allclose(pixels, truth, atol=2e-3)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_a_picture_on_its_side_is_turned(tmp_path: Path, name: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the first row is the right side
    half = np.zeros((16, 32), np.uint8)
    half[:8] = 255
    for path in (tmp_path / name, in_class(tmp_path) / name):
        Image.fromarray(half).save(path, exif=exif)
    found = signal_of(tmp_path / name).values[..., 0].numpy()
    folder = data.load(tmp_path).splits["train"][0][0, 0] / 255
    for seen in (found, folder):
        assert seen.shape == (32, 16)
        np.testing.assert_allclose(seen[:, :8], 0, atol=0.02)
        np.testing.assert_allclose(seen[:, 8:], 1, atol=0.02)


def save_frames(path: Path) -> None:
    Image.fromarray(BYTES).save(path, save_all=True, append_images=[Image.fromarray(255 - BYTES)])


def save_transparent(path: Path) -> None:
    Image.fromarray(np.stack([BYTES, BYTES, BYTES, BYTES], -1)).save(path)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("a.gif", save_frames, "must hold one picture, but holds 2"),
        ("a.png", save_frames, "must hold one picture, but holds 2"),
        ("a.tif", save_frames, "must hold one picture, but holds 2"),
        ("a.webp", save_frames, "must hold one picture, but holds 2"),
        ("a.tif", lambda path: Image.fromarray(BYTES).save(path, tiffinfo={0x0112: 6}), "must be stored upright"),
        ("a.png", save_transparent, "must be opaque"),
        ("p.png", lambda path: Image.fromarray(BYTES).convert("P").save(path, transparency=0), "must be opaque"),
        ("a.jpg", lambda path: Image.new("CMYK", (8, 6), (9, 8, 7, 6)).save(path), "must be grey or RGB"),
        ("a.tif", lambda path: Image.new("LAB", (8, 6)).save(path), "must be grey or RGB"),
        ("rgb.png", lambda path: write_png_of_16_bits(path, 3, 2), "must have 8 bits per colour channel, but has 16"),
        ("rgba.png", lambda path: write_png_of_16_bits(path, 4, 6), "must have 8 bits per colour channel, but has 16"),
        (
            "a.ppm",
            lambda path: path.write_bytes(b"P6 8 6 65535\n" + b"\xff" * (8 * 6 * 6)),
            "must have 8 bits per colour channel, but has 16",
        ),
        (
            "a.tif",
            lambda path: Image.fromarray(SIXTEEN.astype(np.int32)).save(path),
            "integers of another size, whose white value is unknown",
        ),
    ],
)
def test_pictures_without_one_meaning_are_refused(
    tmp_path: Path, name: str, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        signal_of(tmp_path / name)
    write(in_class(tmp_path) / name)
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path)


@pytest.mark.parametrize(("factor", "message"), [(255, r"range from 0 to 255\."), (np.nan, "must hold finite numbers")])
def test_floats_of_another_range_are_refused_with_their_range(tmp_path: Path, factor: float, message: str) -> None:
    Image.fromarray((factor * RAMP).astype(np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=message):
        signal_of(tmp_path / "a.tif")
