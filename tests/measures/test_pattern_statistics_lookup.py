"""Training by look-up: equal to the dense network's, run by run, in both ways, with its ties and its stopping."""

import contextlib

import pytest
import torch
from networks_under_test import CPU64, normal

from biascope.measures.pattern_statistics.lookup import (
    Orders,
    TrainedTables,
    initial_tables,
    lookup_outputs,
    trained_tables,
)
from biascope.networks.pattern_cnn import pattern_cnn
from biascope.runs.run import Run
from biascope.tasks.patterns import PatternDistribution, PatternSamples
from biascope.training.recipe import loss_of

LAW = PatternDistribution("uniform", per_input=5, patterns=9)
WAYS = ("alone", "stack")


def dense(table: torch.Tensor, vectors: torch.Tensor, beside: torch.Tensor, per_input: int) -> torch.nn.Module:
    """The network whose channels have these products with the vectors, and something outside their span."""
    channels, size = table.shape[1], vectors.shape[1]
    network = pattern_cnn(patch=(1, size), image_size=(per_input, size), k=channels // 2).double()
    network.conv.weight.data.copy_((table.T @ vectors + beside).reshape(channels, 1, 1, size))
    return network


def densely_trained(network, samples: PatternSamples, vectors, *, rate, batch, epochs, seed, index):
    """Plain SGD by autograd on the same batches; the loss of each epoch."""
    x, labels = samples.images(vectors), (samples.labels + 1) // 2
    optimiser, losses = torch.optim.SGD(network.parameters(), lr=rate), []
    for _, order in zip(range(epochs), Orders(len(labels), batch, seed, index), strict=False):
        each = []
        for part in order.split(batch):
            optimiser.zero_grad()
            loss = loss_of("hinge", network(x[part]), labels[part])
            loss.backward()
            optimiser.step()
            each.append(float(loss.detach()))
        losses.append(sum(each) / len(each))
    return losses


def orthonormal(size: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal rows, and the projection onto what is orthogonal to them."""
    basis = torch.linalg.qr(normal(size, size, seed=9))[0]
    return basis[:count], basis[count:].T @ basis[count:]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("patterns", ["one-hot", "orthonormal"])
def test_it_is_the_training_of_the_dense_network(patterns: str, way: str) -> None:
    samples, start = LAW.draw(23, seed=1, runs=3), 0.3 * normal(3, 9, 12)
    if patterns == "one-hot":
        vectors, outside = torch.eye(9, dtype=torch.float64), torch.zeros(9, 9, dtype=torch.float64)
    else:
        vectors, outside = orthonormal(14, 9)
    settings = {"rate": 0.05, "batch": 5, "epochs": 12}
    found = trained_tables(start, samples, tolerance=0.0, seed=4, run=CPU64, way=way, **settings)
    for index in range(3):
        own = PatternSamples(samples.places[index], samples.labels[index], 9)
        beside = normal(12, len(outside), seed=index) @ outside
        network = dense(start[index], vectors, beside, 5)
        assert torch.allclose(lookup_outputs(start, own.places)[index], network(own.images(vectors))[:, 0], atol=1e-12)
        losses = densely_trained(network, own, vectors, seed=4, index=index, **settings)
        weights = network.conv.weight.detach().reshape(12, -1)
        assert float((weights @ vectors.T - found.tables[index].T).abs().max()) < 1e-12
        assert float((weights @ outside - beside).abs().max()) < 1e-12  # nothing moves outside the patterns
        assert float(found.losses[index]) == pytest.approx(losses[-1], abs=1e-12)
    assert found.epochs.tolist() == [12, 12, 12]
    assert found.iterations.tolist() == [60, 60, 60]  # five batches, the last of 3 samples
    assert not found.converged.any()
    assert float((found.tables - start).abs().max()) > 0.05


@pytest.mark.parametrize("way", WAYS)
def test_one_step_is_autograds_gradient_at_ties_and_zeros_too(way: str) -> None:
    """Whole numbers from −2 to 2: most responses are shared by patterns, many are 0, and some margins are exactly 1."""
    start = torch.randint(-2, 3, (1, 9, 40), generator=torch.Generator().manual_seed(0)).double()
    samples = LAW.draw(60, seed=2).shuffled(seed=0)
    outputs = lookup_outputs(start, samples.places)[0]
    assert ((samples.labels * outputs) == 1).any()
    network = dense(start[0], torch.eye(9, dtype=torch.float64), torch.zeros(40, 9, dtype=torch.float64), 5)
    loss = loss_of("hinge", network(samples.images(torch.eye(9, dtype=torch.float64))), (samples.labels + 1) // 2)
    (gradient,) = torch.autograd.grad(loss, [network.conv.weight])
    found = trained_tables(start, samples, rate=0.5, batch=60, epochs=1, seed=0, run=CPU64, way=way)
    assert float(found.losses) == pytest.approx(float(loss.detach()), abs=1e-12)
    assert float((found.tables[0] - start[0] + 0.5 * gradient.reshape(40, 9).T).abs().max()) < 1e-13


@pytest.mark.parametrize("way", WAYS)
def test_of_equal_responses_the_first_pattern_moves_and_a_response_of_0_none(way: str) -> None:
    samples = PatternSamples(torch.tensor([[2, 0, 3]]), torch.tensor([1]), 4)
    start = torch.tensor(
        [[[0.25, 0.0], [9.0, 9.0], [0.25, 0.0], [0.0, -1.0]]]
    )  # w ties at 0 and 2, u at a response of 0
    found = trained_tables(start, samples, rate=0.5, batch=1, epochs=1, seed=0, run=CPU64, way=way)
    assert (found.tables - start)[0].tolist() == [[0.0, 0.0], [0.0, 0.0], [0.5, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("way", WAYS)
def test_a_margin_of_exactly_1_moves_nothing(way: str) -> None:
    samples = PatternSamples(torch.tensor([[0]]), torch.tensor([1]), 2)
    start = torch.tensor([[[1.0, -1.0], [0.5, 0.5]]])
    found = trained_tables(start, samples, rate=0.5, batch=1, epochs=5, seed=0, run=CPU64, way=way)
    assert torch.equal(found.tables, start.double())
    assert (int(found.epochs), float(found.losses), bool(found.converged)) == (1, 0.0, True)


def ending_at_their_own_time(runs: int, way: str | None, **settings: object) -> TrainedTables:
    """Runs whose channels start further from or closer to a solution, and so are done one after another."""
    start = 0.02 * normal(5, 9, 12)
    start[:, 0, :6] += torch.tensor([0.0, 0.06, 0.15, 0.03, 0.1])[:, None]
    start[:, 1, 6:] += torch.tensor([0.0, 0.06, 0.15, 0.03, 0.1])[:, None]
    own = {"rate": 0.02, "batch": 7, "epochs": 400, "tolerance": 1e-3, **settings}
    return trained_tables(start[:runs], LAW.draw(20, seed=6, runs=runs), seed=3, way=way, **own)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_done_stays_as_it_is_while_others_go_on(way: str) -> None:
    together = ending_at_their_own_time(5, way, run=CPU64)
    assert together.converged.all()
    assert len(set(together.epochs.tolist())) == 5  # each at its own time
    assert (together.losses < 1e-3).all()
    for runs in (1, 2, 4):
        fewer = ending_at_their_own_time(runs, way, run=CPU64)
        assert torch.equal(fewer.epochs, together.epochs[:runs])
        assert torch.equal(fewer.tables, together.tables[:runs])
        assert torch.equal(fewer.losses, together.losses[:runs])
    # A run that is cut off right there is the same, and one epoch earlier it was not done.
    for run, end in enumerate(together.epochs.tolist()):
        cut = ending_at_their_own_time(5, way, run=CPU64, epochs=end)
        assert torch.equal(cut.tables[run], together.tables[run])
        assert bool(cut.converged[run])
        assert not bool(ending_at_their_own_time(5, way, run=CPU64, epochs=end - 1).converged[run])


def test_both_ways_are_the_same_training() -> None:
    alone, stack = (ending_at_their_own_time(5, way, run=CPU64) for way in WAYS)
    assert torch.equal(alone.epochs, stack.epochs)
    assert torch.equal(alone.converged, stack.converged)
    assert float((alone.tables - stack.tables).abs().max()) < 1e-13
    assert alone.batches == stack.batches == 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("samples", "batch"), [(20, 20), (20, 100), (300, 1), (21, 20)])
def test_more_epochs_than_are_held_at_a_time(way: str, samples: int, batch: int) -> None:
    """Epochs of a single batch, of more batches than a block, and with a last batch of one sample."""
    start, data = 0.05 * normal(2, 9, 6), LAW.draw(samples, seed=0, runs=2)
    found = trained_tables(
        start, data, rate=1e-4, batch=batch, epochs=300 if samples == 20 else 2, seed=0, run=CPU64, way=way
    )
    vectors = torch.eye(9, dtype=torch.float64)
    network = dense(start[1], vectors, torch.zeros(6, 9, dtype=torch.float64), 5)
    own = PatternSamples(data.places[1], data.labels[1], 9)
    losses = densely_trained(
        network, own, vectors, rate=1e-4, batch=batch, epochs=int(found.epochs[1]), seed=0, index=1
    )
    assert float((network.conv.weight.detach().reshape(6, 9).T - found.tables[1]).abs().max()) < 1e-12
    assert float(found.losses[1]) == pytest.approx(losses[-1], abs=1e-12)


def test_samples_may_be_shared_and_threads_do_not_matter() -> None:
    start, samples = 0.1 * normal(3, 9, 8), LAW.draw(30, seed=0)
    copied = PatternSamples(samples.places.repeat(3, 1, 1), samples.labels.repeat(3, 1), 9)
    settings = {"rate": 0.01, "batch": 8, "epochs": 20, "seed": 0, "run": CPU64}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = trained_tables(start, samples, **settings)
        torch.set_num_threads(2)
        two = trained_tables(start, copied, **settings)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.tables, two.tables)
    assert torch.equal(start, 0.1 * normal(3, 9, 8))  # where training started is left as it was


@pytest.mark.parametrize("way", WAYS)
def test_progress_is_told_to_the_end_and_slices_of_time_change_nothing(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, told = ending_at_their_own_time(5, way, run=CPU64), []

    @contextlib.contextmanager
    def tracked(run, label, total):
        assert total == 5 * 400
        yield told.append

    monkeypatch.setattr("biascope.runs.run.Run.tracked", tracked)
    monkeypatch.setattr("biascope.measures.pattern_statistics.lookup._SLICE", 1e-4)
    again = ending_at_their_own_time(5, way, run=CPU64)
    assert torch.equal(whole.tables, again.tables)
    assert torch.equal(whole.epochs, again.epochs)
    assert sum(told) == 5 * 400
    assert len(told) > 1


def test_a_training_that_breaks_off_is_not_called_converged() -> None:
    start = torch.full((1, 9, 2), torch.inf, dtype=torch.float64)  # ∞ − ∞
    for way in WAYS:
        found = trained_tables(start, LAW.draw(4, seed=0), rate=0.1, batch=4, epochs=3, seed=0, run=CPU64, way=way)
        assert (int(found.epochs), bool(found.converged)) == (3, False)
        assert bool(found.losses.isnan())


def test_orders_are_permutations_of_their_own_run_and_epoch() -> None:
    first, again, other = (Orders(10, 3, 5, index) for index in (0, 0, 1))
    assert (first.batches, first.batch, Orders(10, 99, 5, 0).batch) == (4, 3, 10)
    one, two, three = iter(first), iter(again), iter(other)
    epochs = [next(one) for _ in range(4)]
    assert all(torch.equal(epoch.sort().values, torch.arange(10)) for epoch in epochs)
    assert all(torch.equal(epoch, next(two)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in [*epochs, next(three)]}) == 5
    assert torch.equal(next(iter(Orders(10, 10, 5, 0))), torch.arange(10))


def test_outputs_of_many_inputs_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, places = normal(2, 9, 8), LAW.draw(50, seed=0, runs=2).places
    whole = lookup_outputs(tables, places)
    monkeypatch.setattr("biascope.measures.pattern_statistics.lookup._VALUES", 8 * 7)
    assert torch.equal(lookup_outputs(tables, places), whole)
    responses = torch.stack([table[own].amax(1).clamp(min=0) for table, own in zip(tables, places, strict=True)])
    assert torch.allclose(whole, responses[..., :4].sum(-1) - responses[..., 4:].sum(-1))


def test_channels_start_as_gaussians_of_their_own_stream() -> None:
    three = initial_tables(3, 30, 500, scale=1e-3, seed=0, run=CPU64)
    assert three.shape == (3, 30, 1000)
    assert float(three.std()) == pytest.approx(1e-3, rel=0.02)
    assert torch.equal(initial_tables(1, 30, 500, scale=1e-3, seed=0, run=CPU64), three[:1])
    assert not torch.equal(three[0], three[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": torch.zeros(2, 9, 7)}, "tables must be"),
        ({"tables": torch.zeros(3, 9, 8)}, "samples must be of 9 patterns, for all 3 runs"),
        ({"tables": torch.zeros(2, 8, 8)}, "samples must be of 8 patterns"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"way": "both"}, "way must be 'alone' or 'stack'"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, object], message: str) -> None:
    settings = {"tables": torch.zeros(2, 9, 8), "rate": 0.1, "batch": 4, "seed": 0, "run": CPU64, **change}
    with pytest.raises(ValueError, match=message):
        trained_tables(settings.pop("tables"), LAW.draw(4, seed=0, runs=2), **settings)
    with pytest.raises(ValueError, match="places must be"):
        lookup_outputs(torch.zeros(2, 9, 8), torch.zeros(3, 4, 5, dtype=torch.long))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("batch", [7, 20, 1])
def test_on_a_gpu_it_is_the_same_training(batch: int) -> None:
    """In float64, with a smaller last batch, with epochs of a single batch and with many epochs."""
    here = ending_at_their_own_time(5, "alone", run=CPU64, batch=batch)
    there = ending_at_their_own_time(5, None, run=Run(device="cuda", precision="float64"), batch=batch)
    assert torch.equal(here.epochs, there.epochs)
    assert torch.equal(here.converged, there.converged)
    assert float((here.tables - there.tables.cpu()).abs().max()) < 1e-10
    outputs = lookup_outputs(there.tables, LAW.draw(50, seed=0).places)
    assert torch.allclose(outputs.cpu(), lookup_outputs(here.tables, LAW.draw(50, seed=0).places), atol=1e-9)
