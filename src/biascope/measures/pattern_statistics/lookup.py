"""HOW: the pattern network trained as a table of responses: exact for orthonormal patterns, and without a convolution.

With orthonormal patterns an input meets a channel only through its dot products with the patterns, and a step of SGD moves
the channel along one pattern: the training of the network of equation (1) *is* that of the table of these products. A
response is then a look-up, and an update one addition per channel and sample.

Ties: of equal largest responses the pattern that comes first in the input is moved; a response of 0 moves nothing, nor does a
sample whose margin is exactly 1. Autograd does the same on ``networks.pattern_cnn``.

Reference: On the inductive bias of a CNN for distributions with orthogonal patterns (2021), sections 3 and E.3.
"""

# r runs · m samples · n patterns of an input · P patterns · C = 2k channels · B samples of a batch · S batches of an epoch

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.runs.threads import on_each_core
from biascope.tasks.patterns import PatternSamples
from biascope.tasks.task import master_dtype
from biascope.training.cuda_graph import recorded

WAYS = ("alone", "stack")
_BLOCK = 256  # iterations between looks at who is done, or one epoch if that is longer: a look waits for the device
_SLICE = 3.0  # seconds, or an epoch, that a run on one core has before the next: an interrupt waits no longer
_VALUES = 1 << 24  # responses held at a time where outputs are computed


@dataclass(frozen=True)
class TrainedTables:
    """Tables after training, with how it went for each run.

    Attributes:
        tables: ``(r, P, 2k)``, on the device of the run.
        epochs: ``(r,)`` passes over the samples.
        losses: ``(r,)`` loss of the last one: the mean over its batches, each before its update.
        converged: ``(r,)`` whether that was below the tolerance.
        batches: Iterations of an epoch.
    """

    tables: Tensor
    epochs: Tensor
    losses: Tensor
    converged: Tensor
    batches: int

    @property
    def iterations(self) -> Tensor:
        """``(r,)`` updates of each run."""
        return self.epochs * self.batches


def initial_tables(
    runs: int | Sequence[int], patterns: int, k: int, *, scale: float = 1e-6, seed: int, run: Run | None = None
) -> Tensor:
    """Tables ``(runs, patterns, 2k)`` of Gaussian channels, each run, of which some may be named, with its own stream.

    Example:
        >>> here = Run(device="cpu")
        >>> three, one = (initial_tables(runs, 4, 500, seed=0, run=here) for runs in (3, 1))
        >>> bool(torch.equal(three[:1], one)), round(float(three.std()), 7)
        (True, 1e-06)
    """
    run, numbers = run or Run(), range(runs) if isinstance(runs, int) else runs
    tables = torch.empty(len(numbers), patterns, 2 * k, device=run.torch_device, dtype=master_dtype(run))
    for number, table in zip(numbers, tables, strict=True):
        table.normal_(0, scale, generator=generator_for(tables.device, seed, "channels", number))
    return tables


def lookup_outputs(tables: Tensor, places: Tensor) -> Tensor:
    """The network's outputs on inputs that are given as lists of patterns.

    Args:
        tables: ``(r, P, 2k)`` responses of channels to patterns; the first k channels are added, the others subtracted.
        places: ``(r, B, n)`` patterns of each run's inputs, or ``(B, n)`` for the same in all.

    Returns:
        ``(r, B)``.

    Raises:
        ValueError: If the shapes do not fit.

    Example:
        >>> table = torch.tensor([[[3.0, 1.0], [-2.0, 4.0], [5.0, -1.0]]])  # w = (3, −2, 5), u = (1, 4, −1)
        >>> lookup_outputs(table, torch.tensor([[0, 1], [0, 2], [1, 1]]))
        tensor([[-1.,  4., -4.]])
    """
    runs, _, channels = _checked(tables)
    places = places.expand(runs, *places.shape) if places.dim() == 2 else places
    if places.dim() != 3 or len(places) != runs:
        shape = tuple(places.shape)
        raise ValueError(f"places must be ({runs}, inputs, patterns), got {shape}. Pass them for every run.")
    outputs = tables.new_empty(places.shape[:2])
    size = min(places.shape[1], max(1, _VALUES // channels))
    best, other = (tables.new_empty(size, channels) for _ in range(2))
    for table, own, output in zip(tables.detach(), places.to(tables.device), outputs, strict=True):
        for start in range(0, len(own), size):
            part = own[start : start + size]
            strongest = _strongest(table, part, best[: len(part)], other[: len(part)])
            output[start : start + size] = _difference(strongest.clamp_(min=0))
    return outputs


def trained_tables(
    tables: Tensor,
    samples: PatternSamples,
    *,
    rate: float,
    batch: int,
    epochs: int = 50_000,
    tolerance: float = 1e-5,
    seed: int,
    numbers: Sequence[int] | None = None,
    run: Run | None = None,
    way: str | None = None,
) -> TrainedTables:
    """SGD on the hinge loss, for several independent networks.

    Definition:
        An epoch passes over a new permutation of the samples (none where one batch holds all) in batches, the last of which
        may be smaller; a step is ``T ← T − rate·∇ mean_b max(1 − y_b N(x_b), 0)``. A run is done after the first epoch
        whose loss, the mean over batches before their updates, is below the tolerance; its table stays as it then is.

    A run depends on the seed, its own table, samples and number, never on the other runs: on a CPU it is the same, bit for
    bit, in a stack of any size. On a GPU additions of one step come in any order, so that the
    last bits differ from time to time; the batches are the same on both.

    Args:
        tables: ``(r, P, 2k)`` where training starts; left unchanged.
        samples: ``(r, m, n)`` for every run its own, or ``(m, n)`` for all the same.
        rate: The learning rate.
        batch: Samples of a batch.
        epochs: Passes at most.
        tolerance: Loss of an epoch that ends a run.
        seed: Random seed for the permutations.
        numbers: Numbers of the runs, for their permutations; by default 0, 1, 2, …
        run: Device, precision (float64, or float32 for all others), progress.
        way: ``"alone"``: one run after another, on a CPU one on each core; ``"stack"``: all in lock-step, on a GPU as a
            replayed graph. By default the first on a CPU and the second on a GPU.

    Returns:
        The tables and how training went.

    Raises:
        ValueError: If shapes do not fit or a setting is out of its range.

    Example:
        >>> samples = PatternSamples(torch.tensor([[0, 2], [1, 2]]), torch.tensor([1, -1]), 3)
        >>> start = torch.tensor([[[0.5, 0.0], [0.0, 0.5], [0.0, 0.0]]])  # w detects pattern 0, u pattern 1
        >>> done = trained_tables(start, samples, rate=0.5, batch=2, seed=0, run=Run(device="cpu"))
        >>> done.tables[0, :, 0], int(done.epochs), done.losses  # two steps of 0.25, and a third pass that finds loss 0
        (tensor([1., 0., 0.]), 3, tensor([0.]))
    """
    run, (runs, patterns, _) = run or Run(), _checked(tables)
    places = samples.places if samples.places.dim() == 3 else samples.places.expand(runs, *samples.places.shape)
    if len(places) != runs or samples.patterns != patterns:
        found = f"{samples.patterns} patterns and shape {tuple(samples.places.shape)}"
        raise ValueError(
            f"samples must be of {patterns} patterns, for all {runs} runs or for each, got {found}. Draw them with runs={runs}."
        )
    if not (rate > 0 and batch >= 1 and epochs >= 1 and tolerance >= 0):
        raise ValueError(
            f"rate must be above 0, batch and epochs at least 1 and tolerance not negative, got {rate}, {batch}, {epochs} "
            f"and {tolerance}. Pass rate=0.001/k, batch=100, epochs=50000, tolerance=1e-5."
        )
    way, device = way or ("alone" if run.torch_device.type == "cpu" else "stack"), run.torch_device
    if way not in WAYS:
        raise ValueError(f"way must be 'alone' or 'stack', got {way!r}. Leave it out for the usual one.")
    start = tables.detach().to(device, master_dtype(run), copy=True)
    places, labels = places.to(device), samples.labels.expand(places.shape[:2]).to(start)
    orders = [Orders(places.shape[1], batch, seed, number) for number in numbers or range(runs)]
    with torch.no_grad(), run.tracked("training", runs * epochs) as advance:
        if way == "stack":
            return _Stack(start, places, labels, orders, rate).trained(epochs, tolerance, advance)
        each = [_Alone(*parts, rate) for parts in zip(start, places, labels, orders, strict=True)]
        while not all(one.ended for one in each):
            on_each_core(lambda index: each[index].train(epochs, tolerance, advance), runs, run)
    losses = start.new_tensor([one.loss for one in each], device="cpu")
    return TrainedTables(
        start, torch.tensor([one.epochs for one in each]), losses, losses < tolerance, orders[0].batches
    )


class Orders:
    """The order of samples of one run, given by its number, epoch after epoch; the same on every device."""

    def __init__(self, samples: int, batch: int, seed: int, number: int) -> None:
        self.samples, self.batch = samples, min(batch, samples)
        self.batches = math.ceil(samples / self.batch)
        self._generator = generator_for(torch.device("cpu"), seed, "order of samples", number)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            whole = self.batches == 1  # one batch holds all: their order does not matter
            yield torch.arange(self.samples) if whole else torch.randperm(self.samples, generator=self._generator)


class _Alone:
    """One run by itself: the way of a CPU, where what one run touches fits into the caches.

    The table ``(P, C)`` is changed in place; places are ``(m, n)`` and labels ``(m,)``.
    """

    def __init__(self, table: Tensor, places: Tensor, labels: Tensor, orders: Orders, rate: float) -> None:
        self._table, self._places, self._labels, self._rate = table, places, labels, rate
        self._stream, self._size, self._signs = iter(orders), orders.batch, _signs(table)
        self._columns = torch.arange(table.shape[1], device=table.device)
        # Fresh memory for each result would take longer than the work on it.
        kinds = (table.dtype, table.dtype, table.dtype, torch.long, torch.long)
        self._buffers = [table.new_empty(self._size, table.shape[1], dtype=kind) for kind in kinds]
        self.epochs, self.loss, self.ended = 0, math.nan, False

    def train(self, epochs: int, tolerance: float, advance: Callable[[int], None]) -> None:
        """Go on for some seconds, or to the end."""
        until = time.monotonic() + _SLICE
        while not self.ended and time.monotonic() < until:
            parts = torch.split(next(self._stream).to(self._places.device), self._size)
            self.loss = float(torch.stack([self._step(part) for part in parts]).mean())
            self.epochs += 1
            advance(1)
            self.ended = self.loss < tolerance or self.epochs == epochs
            if self.ended:
                advance(epochs - self.epochs)

    def _step(self, indices: Tensor) -> Tensor:
        places, labels = self._places[indices], self._labels[indices]
        best, other = (buffer[: len(indices)] for buffer in self._buffers[:2])
        responses = _strongest(self._table, places, best, other)
        hinge = (1 - labels * _difference(torch.clamp(responses, min=0, out=other))).clamp_(min=0)
        active = hinge.nonzero().flatten()
        if 0 < len(active) < len(indices):
            places, labels, responses = places[active], labels[active], responses[active]
        if len(active):
            self._move(places, labels * (self._rate / len(indices)), responses)
        return hinge.mean()

    def _move(self, places: Tensor, amounts: Tensor, responses: Tensor) -> None:
        """Move each channel's entry for the pattern that won, for samples whose loss is above 0.

        The first of n places that has the strongest response gets the number n, the next n − 1, and so on; the largest
        number wins. (Selecting by a mask, the plain way, takes eight times as long on a CPU.)
        """
        count = places.shape[1]
        _, other, winner, number, where = (buffer[: len(places)] for buffer in self._buffers)
        winner.zero_()
        for place, column in enumerate(places.T.contiguous()):
            torch.index_select(self._table, 0, column, out=other)
            torch.maximum(winner, other.eq_(responses).mul_(count - place), out=winner)
        rows = (places * self._table.shape[1]).flip(1)
        torch.gather(rows, 1, number.copy_(winner).sub_(1), out=where).add_(self._columns)
        torch.mul(amounts[:, None], self._signs, out=other)  # and 0 where the response is not above 0:
        moves = torch.ops.aten.threshold_backward.grad_input(other, responses, 0, grad_input=winner)
        self._table.view(-1).scatter_add_(0, where.view(-1), moves.view(-1))


class _Stack:
    """All runs in lock-step, with operations of fixed shape alone: the way of a GPU, which replays them as a graph.

    Batches are numbered by a counter on the device, a smaller last batch is filled up with samples of weight 0, and a run that
    is done goes on with a rate of 0: nothing waits for the host but a look at who is done, once in many iterations. A pattern
    that meets every channel with 0 comes first in every input: the largest response is then never below 0, and what
    would move a channel that does not respond moves this pattern's row, which is set back.

    The tables ``(r, P, C)`` are changed when all is done; places are ``(r, m, n)`` and labels ``(r, m)``.
    """

    def __init__(self, tables: Tensor, places: Tensor, labels: Tensor, orders: list[Orders], rate: float) -> None:
        self._given, self._orders, self._device = tables, orders, tables.device
        runs, samples, count = places.shape
        size, batches, half = orders[0].batch, orders[0].batches, tables.shape[2] // 2
        # All runs as one table and one list of samples, so that a look-up is one operation.
        self._tables = torch.cat([torch.zeros_like(tables[:, :1]), tables], 1)  # (r, 1 + P, C)
        self._silent, self._rows = self._tables[:, 0], self._tables.flatten(0, 1)
        self._halves = self._rows[:, :half], self._rows[:, half:]
        first = (1 + tables.shape[1]) * torch.arange(runs, device=self._device)[:, None, None]
        zeros = torch.zeros_like(places[..., :1])
        self._places = (torch.cat([zeros, 1 + places], 2) + first).flatten(0, 1)  # (r·m, 1 + n)
        self._labels = labels.flatten()
        self._starts = torch.arange(runs * size, device=self._device) * (1 + count)
        weights = tables.new_zeros(batches * size)
        weights[: (batches - 1) * size] = 1 / size
        weights[(batches - 1) * size : samples] = 1 / (samples - (batches - 1) * size)
        self._weights = weights.view(batches, 1, size).repeat(1, runs, 1)  # (S, r, B)
        self._hinge = torch.empty_like(self._weights)
        self._held = max(1, _BLOCK // batches)  # epochs
        self._order = torch.zeros(self._held * batches, runs, size, dtype=torch.long, device=self._device)
        self._batch, self._iteration = self._order.new_zeros(1), self._order.new_zeros(1)
        self._rates = tables.new_full((runs, 1), rate)
        self._losses = tables.new_full((runs,), math.nan)
        self._epochs = self._order.new_zeros(runs)
        self._tolerance = 0.0

    def trained(self, epochs: int, tolerance: float, advance: Callable[[int], None]) -> TrainedTables:
        """Train all runs to their end."""
        self._tolerance, batches = tolerance, len(self._weights)
        step, end = self._captured(self._step), self._captured(self._end_of_epoch)
        streams, past = [iter(order) for order in self._orders], 0
        order = self._drawn(streams)
        while past < epochs and bool(self._rates.any()):
            self._order.copy_(order)
            self._iteration.zero_()
            held = min(self._held, epochs - past)
            for _ in range(held):
                for _ in range(batches):
                    step()
                end()
            past += held
            advance(held * len(streams))
            order = self._drawn(streams)  # while the device works
        advance((epochs - past) * len(streams))
        self._given.copy_(self._tables[:, 1:])
        done = (self._rates[:, 0] == 0).cpu()
        return TrainedTables(self._given, self._epochs.cpu(), self._losses.cpu(), done, batches)

    def _drawn(self, streams: list[Iterator[Tensor]]) -> Tensor:
        """Batches of all runs for the epochs that are held at a time."""
        samples, (batches, runs, size) = self._orders[0].samples, self._weights.shape
        order = torch.stack([torch.stack([next(stream) for _ in range(self._held)]) for stream in streams])
        order += samples * torch.arange(runs)[:, None, None]
        # The places that are filled up repeat a sample of the run; their weight is 0.
        order = torch.cat([order, order[..., :1].expand(-1, -1, batches * size - samples)], -1)
        return order.view(runs, -1, size).transpose(0, 1)

    def _step(self) -> None:
        chosen = self._order.index_select(0, self._iteration).view(-1)  # (r·B,)
        places, labels = self._places.index_select(0, chosen).view(-1), self._labels.index_select(0, chosen)
        # The fifth argument asks for the largest; also returned is the row of the first that has it.
        responses, _, _, winners = torch.ops.aten._embedding_bag(self._rows, places, self._starts, False, 2)
        hinge = (1 - labels * _difference(responses)).clamp_(min=0).view(self._rates.shape[0], -1)
        self._hinge.index_copy_(0, self._batch, hinge[None])
        weights = self._weights.index_select(0, self._batch)[0] * self._rates  # (r, B)
        moves = ((hinge > 0) * weights).view(-1, 1) * labels[:, None]
        for rows, sign, where in zip(self._halves, (moves, -moves), winners.chunk(2, 1), strict=True):
            rows.scatter_add_(0, where, sign.expand(where.shape))
        self._silent.zero_()
        self._batch += 1
        self._iteration += 1

    def _end_of_epoch(self) -> None:
        """Note the loss of the runs that were under way, and stop those that are done."""
        under_way = self._rates[:, 0] > 0
        loss = (self._hinge * self._weights).sum((0, 2)) / len(self._weights)
        self._losses.copy_(torch.where(under_way, loss, self._losses))
        self._epochs += under_way
        self._rates *= ~(self._losses < self._tolerance)[:, None]
        self._batch.zero_()

    def _captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as a replayed graph on a GPU; elsewhere as it is. Warming up trains, so all is put back after it."""
        if self._device.type != "cuda":
            return work
        state = [self._rows, self._hinge, self._batch, self._iteration, self._rates, self._losses, self._epochs]
        return recorded(work, state, self._device)[0]


def _strongest(table: Tensor, places: Tensor, best: Tensor, other: Tensor) -> Tensor:
    """``(B, C)``: the largest of each channel's responses to an input's patterns, from a table ``(P, C)``, in ``best``."""
    first, *rest = places.T.contiguous()
    torch.index_select(table, 0, first, out=best)
    for column in rest:
        torch.maximum(best, torch.index_select(table, 0, column, out=other), out=best)
    return best


def _difference(responses: Tensor) -> Tensor:
    """Outputs ``(B,)`` of responses ``(B, 2k)`` of 0 or more."""
    half = responses.shape[1] // 2
    return responses[:, :half].sum(1) - responses[:, half:].sum(1)


def _signs(tables: Tensor) -> Tensor:
    """The fixed output weights ``(2k,)``."""
    half = tables.new_ones(tables.shape[-1] // 2)
    return torch.cat([half, -half])


def _checked(tables: Tensor) -> tuple[int, int, int]:
    if tables.dim() != 3 or tables.shape[2] % 2 or not tables.numel():
        raise ValueError(f"tables must be (runs, patterns, 2k channels), got {tuple(tables.shape)}. Pass one per run.")
    return tables.shape[0], tables.shape[1], tables.shape[2]
