"""A training that is interrupted goes on to the weights it would have had."""

from pathlib import Path

import pytest
import torch
from torch import nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.runs.identity import Identity
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training import pause as training_pause
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

CPU = Run(device="cpu", precision="float64")
RECIPE = Recipe("adam", 0.01, epochs=6, batch=7, loss="cross_entropy", batchnorm="train")


def network_and_task() -> tuple[Network, Arrays]:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=stream, dtype=torch.float64)
    task = Arrays({"train": (x, torch.arange(40) % 3)}, torch.float64)
    family = Family.initialised(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), name="small"
    )
    return family.draw(1, seed=0, run=CPU).member(0), task


class Stopping(Arrays):
    """A task that is interrupted after so many batches."""

    left = 20

    def batch(self, split, indices):
        if len(indices) == 7 or len(indices) == 5:  # those of the training; another size is a look at its content
            Stopping.left -= 1
            if Stopping.left < 0:
                raise KeyboardInterrupt
        return super().batch(split, indices)


def test_it_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_pause, "SECONDS", 0.0)
    network, task = network_and_task()
    whole = fit(network, task, RECIPE, seed=3, run=CPU)
    file = tmp_path / "unfinished.safetensors"
    stopping = Stopping(task.splits, torch.float64)
    with pytest.raises(KeyboardInterrupt):
        fit(network, stopping, RECIPE, seed=3, run=CPU, unfinished=file)
    assert file.exists()
    counted = len(whole.losses)
    Stopping.left = counted - 20 + 1  # what is left, and no more
    found = fit(network, stopping, RECIPE, seed=3, run=CPU, unfinished=file)
    assert torch.equal(found.losses, whole.losses)
    Stopping.left = 0  # killed before its weights were saved, a finished training is read and not repeated
    again = fit(network, stopping, RECIPE, seed=3, run=CPU, unfinished=file)
    assert torch.equal(again.losses, whole.losses)
    for name, tensor in whole.networks.params.items():
        assert torch.equal(tensor, again.networks.params[name]), name
    for name, tensor in whole.networks.params.items():
        assert torch.equal(tensor, found.networks.params[name]), name
    assert torch.equal(whole.networks.buffers["1.running_mean"], found.networks.buffers["1.running_mean"])


def test_another_training_or_a_damaged_file_begins_anew(tmp_path: Path) -> None:
    network, task = network_and_task()
    file = tmp_path / "unfinished.safetensors"
    training_pause.Pause(file, Identity("another", {})).write(5, [torch.zeros(3)], torch.zeros(5, 1))
    whole = fit(network, task, RECIPE, seed=3, run=CPU)
    assert torch.equal(fit(network, task, RECIPE, seed=3, run=CPU, unfinished=file).losses, whole.losses)
    file.write_bytes(b"broken")
    with pytest.warns(UserWarning, match=r"unfinished\.safetensors is damaged\. Its content is trained again\."):
        found = fit(network, task, RECIPE, seed=3, run=CPU, unfinished=file)
    assert torch.equal(found.losses, whole.losses)


def test_a_training_that_diverged_leaves_no_file(tmp_path: Path) -> None:
    network, task = network_and_task()
    file = tmp_path / "unfinished.safetensors"
    wild = Recipe("gd", 1e200, schedule="constant", steps=9, loss="cross_entropy")
    assert fit(network, task, wild, seed=3, run=CPU, unfinished=file).diverged_at.item() >= 0
    assert not file.exists()


def test_a_stack_is_refused(tmp_path: Path) -> None:
    family = Family.initialised(lambda: nn.Linear(5, 3), name="line")
    with pytest.raises(ValueError, match=r"^unfinished needs one network without observe and keep_at"):
        fit(family.draw(2, seed=0, run=CPU), network_and_task()[1], RECIPE, seed=0, run=CPU, unfinished=tmp_path / "x")


def test_dropout_goes_on_with_its_own_random_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network.of(nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double())
    task = network_and_task()[1]
    whole = fit(network, task, RECIPE, seed=3, run=CPU)
    monkeypatch.setattr(training_pause, "SECONDS", 0.0)
    Stopping.left = 20
    stopping = Stopping(task.splits, task.dtype)
    file = tmp_path / "unfinished.safetensors"
    with pytest.raises(KeyboardInterrupt):
        fit(network, stopping, RECIPE, seed=3, run=CPU, unfinished=file)
    Stopping.left = 10**9
    found = fit(network, stopping, RECIPE, seed=3, run=CPU, unfinished=file)
    assert torch.equal(found.losses, whole.losses)
    for name, tensor in whole.networks.params.items():
        assert torch.equal(tensor, found.networks.params[name]), name


def test_a_training_in_parts_is_the_whole_one_bit_for_bit(tmp_path: Path) -> None:
    network, task = network_and_task()
    whole = fit(network, task, RECIPE, seed=3, run=CPU)
    file = tmp_path / "unfinished.safetensors"
    for until in (5, 17, 30):
        part = fit(network, task, RECIPE, seed=3, run=CPU, until=until, unfinished=file)
        assert torch.equal(part.losses, whole.losses[:until])  # the schedule is that of the whole
        assert file.exists()
    assert (
        len(fit(network, task, RECIPE, seed=3, run=CPU, until=12, unfinished=file).losses) == 12
    )  # behind what is kept
    end = fit(network, task, RECIPE, seed=3, run=CPU, until=len(whole.losses), unfinished=file)
    assert file.exists()  # the finished training, until its weights are saved
    for name, tensor in whole.networks.params.items():
        assert torch.equal(tensor, end.networks.params[name]), name


def test_a_stack_stops_at_the_same_iteration() -> None:
    task = network_and_task()[1]
    family = Family.initialised(lambda: nn.Linear(5, 3), name="small")
    stack = family.draw(3, seed=0, run=CPU)
    whole = fit(stack, task, RECIPE, seed=3, run=CPU)
    assert torch.equal(fit(stack, task, RECIPE, seed=3, run=CPU, until=9).losses, whole.losses[:9])


@pytest.mark.parametrize("until", [0, 37])
def test_a_training_cannot_stop_outside_itself(until: int) -> None:
    network, task = network_and_task()
    with pytest.raises(ValueError, match=rf"^until must be an iteration from 1 to 36, the last, got {until}"):
        fit(network, task, RECIPE, seed=3, run=CPU, until=until)
