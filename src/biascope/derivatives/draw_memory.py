"""How much main memory the gradient covariance of a number of draws takes, counted and not measured."""

from __future__ import annotations

import math

from biascope.derivatives.moments import DENSE_LIMIT, SKETCH_SIZE, representation
from biascope.derivatives.one_pass import OnePass
from biascope.derivatives.operators import THIN
from biascope.families.tape import block_size
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

GROUPS = 32  # blocks of the jackknife, and units of resuming
SPAN = 2**25  # bytes of gradients held at once before they are folded into the sums, and of their inputs, on a CPU …
_SPAN_ON_DEVICE = 2**27  # … and on a GPU
_BACKWARD = 2.5  # times what a backward pass keeps: its gradients, and convolutions written as products
_OF_SPAN = 3  # inputs, gradients, and gradients while they are put together
_CHECKED = 10  # inputs in one pass of a check in float64, in passes of one input in float32
_DECOMPOSED = 5  # arrays in float64, each as large as all rows or as the matrix: factors, eigenvectors, images


def draws_at_once(numbers: int, run: Run) -> int:
    """Most draws of so many gradient entries that are held at once."""
    room = run.room(SPAN) if run.torch_device.type == "cpu" else _SPAN_ON_DEVICE
    return max(1, room // max(1, run.dtype.itemsize * numbers))


def expected_memory(
    one: OnePass | None, weights: int, members: int | None, probe: Probe, size: int, draws: int, rows: int, run: Run
) -> int:
    """Bytes of main memory that a covariance takes at its peak, beside libraries and the network.

    The peak is that of the draws or that of the decomposition after them, whichever is more. On a GPU the draws are in its memory.

    Args:
        one: What a pass of one input takes; ``None`` where that is not known.
        weights: Of one network.
        members: As :attr:`biascope.families.family.Family.size`.
        probe: The inputs of each draw.
        size: Of one input.
        draws: Number of draws.
        rows: Rows that each draw adds to the sums.
        run: Device, precision and memory.
    """
    form = representation(size, draws, rows, min(GROUPS, draws))
    count = draws * rows
    sums = 4 * size * {"rows": count, "dense": 2 * size * GROUPS, "sketch": SKETCH_SIZE * GROUPS}[form]
    columns = min(count, SKETCH_SIZE) if form == "sketch" else count
    thin = size > DENSE_LIMIT or columns <= THIN * size
    # The whole spectrum and those of both halves are found one after another.
    decomposed = 8 * _DECOMPOSED * size * (columns if thin else size)
    return sums + max(decomposed, _while_drawing(one, weights, members, probe, size, draws, run))


def _while_drawing(
    one: OnePass | None, weights: int, members: int | None, probe: Probe, size: int, draws: int, run: Run
) -> int:
    """Weights, inputs, gradients and what backward passes keep."""
    device, each = run.torch_device, run.dtype.itemsize
    if device.type != "cpu":
        return 0
    block = block_size(weights, device)
    drawn = weights * (4 * 8 + (0 if members == 1 else block * 4 + (block * each if each != 4 else 0)))
    held = 4 * size * probe.num * (probe.members_at_once if probe.fresh else 1)
    span = min(draws, block, draws_at_once(probe.num * size, run))
    gradients = _OF_SPAN * each * span * probe.num * size
    if one is None:
        return drawn + held + gradients
    together = min(span * probe.num, one.inputs_at_once(run))
    return drawn + held + gradients + math.ceil(one.kept * max(_CHECKED, _BACKWARD * together))
