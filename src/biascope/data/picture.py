"""One picture file: its pixels are read as they are meant, or refused with an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBX", "YCbCr"})
_SIXTEEN_BITS = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_WHITE = 65_535  # of 16 bits
_ORIENTATION = 0x0112  # EXIF tag; values above 4 exchange height and width
_PHOTOMETRIC = 262  # TIFF tag; 0: white is zero


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A picture whose pixels have one meaning, not decoded yet.

    Raises:
        ValueError: If the file is no whole picture, holds several, or holds numbers that have no certain meaning as brightness.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            _refuse_unclear(picture, path)
            yield picture
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} must be a picture, but cannot be read as one. Save it again as PNG.") from error
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{path} must be a whole picture, but cannot be read ({error}). Save or copy it again."
        ) from error


def is_grey(picture: Image.Image) -> bool:
    """Whether a picture has one channel, transparency aside."""
    return picture.mode in _GREY or is_deep(picture)


def is_deep(picture: Image.Image) -> bool:
    """Whether a picture is grey with more than 8 bits."""
    return picture.mode.startswith(("I", "F"))


def height_and_width(picture: Image.Image) -> tuple[int, int]:
    """Height and width of the upright picture; it is decoded only if it is stored rotated.

    A PNG whose EXIF data lie behind its pixels is taken as upright: finding them means decoding every PNG.
    """
    if picture.format == "PNG" and "exif" not in picture.info:
        return picture.height, picture.width
    if picture.getexif().get(_ORIENTATION, 1) > 4:
        picture = _upright(picture)
    return picture.height, picture.width


def in_8_bits(picture: Image.Image, mode: str, path: Path) -> Image.Image:
    """A picture upright, with 8 bits per channel, as ``"L"`` or ``"RGB"``.

    Raises:
        ValueError: If parts of it are transparent.
    """
    picture = _upright(picture)
    if "transparency" in picture.info or "A" in picture.getbands():
        least = picture.convert("RGBA").getchannel("A").getextrema()[0]
        if least != 255:
            raise ValueError(
                f"{path} must be opaque, but parts of it are transparent, so that their colour depends on a background. "
                "Save it without transparency."
            )
        picture = picture.convert("RGB") if picture.mode not in _GREY else picture
    return picture.convert(mode)


def in_floats(picture: Image.Image, path: Path) -> tuple[Image.Image, float]:
    """A deep grey picture upright, in Pillow's floats (mode ``"F"``), and the number that is white.

    16 bits have their white at 65,535. Floats must be fractions already: nothing in the file says what their white is.

    Raises:
        ValueError: If floats are not within 0 and 1, or parts are transparent.
    """
    from PIL import Image

    if "transparency" in picture.info:
        raise ValueError(f"{path} must be opaque, but one grey of it is transparent. Save it without transparency.")
    values = np.asarray(_upright(picture), np.float32)
    white = 1.0 if picture.mode == "F" else float(_WHITE)
    if not np.isfinite(values).all():
        raise ValueError(f"{path} must hold finite numbers, but some are not. Replace them and save it again.")
    low, high = float(values.min()), float(values.max())
    if not 0 <= low <= high <= white:
        raise ValueError(
            f"{path} must hold floats from 0 (black) to 1 (white), but they range from {low:g} to {high:g}. "
            "Scale them to this range, or save the array with numpy.save."
        )
    return Image.fromarray(values), white


def _upright(picture: Image.Image) -> Image.Image:
    """The picture decoded and turned as its EXIF data say."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def _refuse_unclear(picture: Image.Image, path: Path) -> None:
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != "MPO":  # a camera's JPEG with a preview beside the picture
        raise ValueError(f"{path} must hold one picture, but holds {frames}. Save the one you mean as PNG.")
    if getattr(picture, "tag_v2", {}).get(_ORIENTATION, 1) > 4:  # Pillow scrambles those without compression
        raise ValueError(f"{path} must be stored upright, but is a TIFF stored on its side. Save it again as PNG.")
    if _has_deep_colours(picture):
        raise ValueError(
            f"{path} must have 8 bits per colour channel, but has 16; the lower 8 would be lost. "
            "Save it with 8 bits, or its values with numpy.save."
        )
    sixteen = picture.mode in _SIXTEEN_BITS or (picture.mode == "I" and picture.format in ("PNG", "PPM"))
    if is_deep(picture) and not sixteen and picture.mode != "F":
        raise ValueError(
            f"{path} must have 8 or 16 bits or floats, but has integers of another size, whose white value is unknown. "
            "Save it with 16 bits, or its values with numpy.save."
        )
    if is_deep(picture) and (_raw_mode(picture) == "I;12" or getattr(picture, "tag_v2", {}).get(_PHOTOMETRIC) == 0):
        raise ValueError(
            f"{path} must have 8 or 16 bits with white as the largest number, but has 12 bits or white as 0. "
            "Save it as a 16-bit PNG."
        )
    if not is_deep(picture) and picture.mode not in _GREY | _COLOUR:
        raise ValueError(
            f"{path} must be grey or RGB, but has the colours {picture.mode}, whose look depends on a colour profile. "
            "Convert it to RGB."
        )


def _has_deep_colours(picture: Image.Image) -> bool:
    """Whether the file has 16 bits per channel where Pillow would keep 8."""
    if is_deep(picture):
        return False
    said = _decoder_arguments(picture)
    if picture.format == "PPM" and isinstance(said[-1], int) and said[-1] > 255:  # the largest number in the file
        return True
    return picture.format in ("PNG", "TIFF", "PPM") and ";16" in _raw_mode(picture)


def _raw_mode(picture: Image.Image) -> str:
    """How the numbers lie in the file."""
    return str(_decoder_arguments(picture)[0])


def _decoder_arguments(picture: Image.Image) -> tuple[Any, ...]:
    """What Pillow tells its decoder of the file; nothing of a picture that is decoded already."""
    tiles: Any = getattr(picture, "tile", ())
    said = tiles[0][3] if tiles else ""
    return said if isinstance(said, tuple) and said else (said,)
