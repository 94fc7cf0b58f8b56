"""Numbers whose keys end in their unit."""

from __future__ import annotations

from biascope.results.estimate import Estimate
from biascope.results.finding import Tell
from biascope.results.wording import snake


def with_unit(tell: Tell, label: str, number: Estimate, unit: str) -> None:
    """Tell a number under a key that ends in its unit.

    Example:
        >>> tell = Tell(subject="FFN")
        >>> with_unit(tell, "PSNR", Estimate.exact(20.0), "dB")
        >>> tell.numbers
        {'ffn_psnr_db': 20 dB}
    """
    tell(label, number, unit, key=snake(f"{tell.subject} {label} {unit}"))
