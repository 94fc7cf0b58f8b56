"""Checks on the settings of the network builders: subject, requirement, what came, what to do."""

from __future__ import annotations

from collections.abc import Iterable


def require_choice(setting: str, value: object, choices: Iterable[str], remedy: str) -> None:
    """Check that a setting has one of its named values.

    Args:
        setting: The setting's name, as the user wrote it.
        value: What the user passed.
        choices: What the user may pass.
        remedy: The sentence that says what to do.

    Raises:
        ValueError: If `value` is not among `choices`.

    >>> require_choice("pooling", "min", ("max", "none"), "Pass pooling='max' for the published LeNet.")
    Traceback (most recent call last):
        ...
    ValueError: pooling must be one of 'max', 'none', got 'min'. Pass pooling='max' for the published LeNet.
    """
    allowed = tuple(choices)
    if value not in allowed:
        raise ValueError(f"{setting} must be one of {', '.join(map(repr, allowed))}, got {value!r}. {remedy}")


def require_at_least(setting: str, value: object, minimum: int, remedy: str, *, where: str = "") -> None:
    """Check that a setting is a whole number no smaller than `minimum`.

    Args:
        setting: The setting's name, as the user wrote it.
        value: What the user passed.
        minimum: The smallest number that works.
        remedy: The sentence that says what to do.
        where: When the minimum holds, e.g. "for LeNet with pooling='max'"; empty if always.

    Raises:
        ValueError: If `value` is not a whole number, or below `minimum`.

    >>> require_at_least("depth", 0, 1, "Pass depth=9 for the published ViT.")
    Traceback (most recent call last):
        ...
    ValueError: depth must be a whole number of at least 1, got 0. Pass depth=9 for the published ViT.
    """
    if not isinstance(value, int) or value < minimum:
        bound = f"{minimum} {where}" if where else f"{minimum}"
        raise ValueError(f"{setting} must be a whole number of at least {bound}, got {value!r}. {remedy}")


def require_widths(setting: str, widths: object, remedy: str) -> None:
    """Check that a setting lists the widths of one or more layers.

    Args:
        setting: The setting's name, as the user wrote it.
        widths: What the user passed.
        remedy: The sentence that says what to do.

    Raises:
        ValueError: If `widths` is not a tuple or list, is empty, or holds anything but whole numbers of at least 1.

    >>> require_widths("hidden", (), "Pass hidden=(100, 100).")
    Traceback (most recent call last):
        ...
    ValueError: hidden must list one or more widths of at least 1, got (). Pass hidden=(100, 100).
    """
    if not isinstance(widths, tuple | list) or not widths or not all(isinstance(w, int) and w >= 1 for w in widths):
        raise ValueError(f"{setting} must list one or more widths of at least 1, got {widths!r}. {remedy}")


def require_image_and_outputs(
    channels: object, outputs: object, image_size: object, *, smallest: int = 1, where: str = ""
) -> None:
    """Check the settings that every network has: the shape of its square input image and its number of outputs.

    Args:
        channels: Channels of the image.
        outputs: Outputs of the network.
        image_size: Side of the image in pixels.
        smallest: The smallest side that leaves at least one pixel for every layer.
        where: When `smallest` holds, e.g. "for LeNet with pooling='max'".

    Raises:
        ValueError: If one of the three is not a whole number or is too small.
    """
    require_at_least("channels", channels, 1, "Pass channels=1 for grey images or channels=3 for colour.")
    require_at_least("outputs", outputs, 1, "Pass outputs=1 for a single logit, or one output per class.")
    require_at_least("image_size", image_size, smallest, "Pass image_size=32, as in the papers.", where=where)


def require_coordinates_and_outputs(coordinates: object, outputs: object) -> None:
    """Check the settings of every network from coordinates to the values of a signal.

    Args:
        coordinates: Dimension of the input.
        outputs: Channels of the signal.

    Raises:
        ValueError: If there are not 1 to 6 coordinates, or no output.

    >>> require_coordinates_and_outputs(7, 1)
    Traceback (most recent call last):
        ...
    ValueError: coordinates must be a whole number from 1 to 6, got 7. Pass coordinates=2 for images.
    """
    if not isinstance(coordinates, int) or not 1 <= coordinates <= 6:
        raise ValueError(
            f"coordinates must be a whole number from 1 to 6, got {coordinates!r}. Pass coordinates=2 for images."
        )
    require_at_least("outputs", outputs, 1, "Pass outputs=1 for grey images or outputs=3 for colour.")


def numbers_of_input(inputs: int | None, channels: int, outputs: int, image_size: int) -> int:
    """How many numbers a fully connected network takes: as many as asked for, else those of a square image.

    >>> numbers_of_input(14, 1, 1, 32), numbers_of_input(None, 3, 1, 8)
    (14, 192)
    """
    require_image_and_outputs(channels, outputs, image_size)
    if inputs is None:
        return channels * image_size**2
    require_at_least("inputs", inputs, 1, "Pass inputs=14 for a table with 14 columns.")
    return inputs
