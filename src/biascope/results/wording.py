"""SHOW: lists, shares, durations, large numbers, keys and the order of names as people and programs read them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal


def listed(words: Sequence[str]) -> str:
    """Words with commas and an "and".

    Example:
        >>> listed(["one"]), listed(["one", "two", "three"])
        ('one', 'one, two and three')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def percent(share: float) -> str:
    """A share in percent, to three digits.

    Example:
        >>> percent(0.1234), percent(1.4), percent(0.00123), percent(3e-9), percent(0.0)
        ('12.3 %', '140 %', '0.123 %', 'less than 0.001 %', '0 %')
    """
    if 0 < abs(share) < 1e-5:
        return "less than 0.001 %"
    return f"{100 * share:.3g} %" if abs(share) < 9.995 else f"{100 * share:,.0f} %"


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LARGE, _SMALL = 1e15, 1e-9  # from and up to which a number is written with a power of ten


def significant(value: float, digits: int = 3) -> str:
    """A number to so many digits as prose has it: with commas, and never with an exponent as programs write it.

    Example:
        >>> significant(2434.6), significant(0.000123, 2), significant(12.345), significant(2.0), significant(999.9)
        ('2,430', '0.00012', '12.3', '2', '1,000')
        >>> significant(-1.2e-30, 2), significant(6.02e23), significant(-0.00005), significant(math.inf)
        ('-1.2 × 10⁻³⁰', '6.02 × 10²³', '-0.00005', 'inf')
    """
    text = f"{value:.{digits}g}"
    rounded = float(text)
    if not math.isfinite(rounded) or ("e" not in text and abs(rounded) < 1000):
        return text
    if _SMALL < abs(rounded) < 1:
        return f"{Decimal(text):f}"
    if 1 <= abs(rounded) < _LARGE:
        return f"{rounded:,.0f}" if rounded.is_integer() else f"{rounded:,}"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{float(mantissa):g} × 10{str(int(power)).translate(SUPERSCRIPT)}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    Example:
        >>> duration(3.21), duration(42), duration(600), duration(7200)
        ('3.2 s', '42 s', '10 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def short(number: float) -> str:
    """A large number in few letters.

    Example:
        >>> short(60941), short(11_200_000), short(5)
        ('60.9 k', '11.2 M', '5')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.{max(0, 2 - int(math.log10(max(number / size, 1))))}f} {unit}"
    return f"{number:g}"


_SIGNS = {
    "%": " percent ",
    "*": " star ",
    "<": " below ",
    ">": " above ",
    "‖": " norm ",
    "ℓ": "l",
    "√": " root ",
    "×": " by ",
}


def snake(words: str) -> str:
    """Words as a key: lower case, joined by underscores, Greek letters and signs by their names.

    Example:
        >>> snake("ResNet-18: mean ξ at σ = 0.5, %"), snake("ω₀ = −30")
        ('resnet_18_mean_xi_at_sigma_0_5_percent', 'omega0_minus_30')
    """
    spelled = []
    for sign in unicodedata.normalize("NFKC", words).replace("−", " minus "):
        name = unicodedata.name(sign, "")
        greek = re.match(r"GREEK (?:SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)", name)
        spelled.append(greek[1].lower() if greek else _SIGNS.get(sign, sign))
    plain = unicodedata.normalize("NFKD", "".join(spelled)).encode("ascii", "ignore").decode()
    return "_".join(re.findall(r"[a-z0-9]+", plain.lower()))


def natural_order(name: str) -> list[tuple[int, str]]:
    """A sort key under which epoch-9 comes before epoch-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
