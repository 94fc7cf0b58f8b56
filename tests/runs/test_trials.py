"""Trials: what is finished is kept whole, and only what is missing is done again."""

import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from biascope.families.network import Network
from biascope.runs import files
from biascope.runs.files import make_writable, write_atomically
from biascope.runs.run import Run
from biascope.runs.trials import Trials


class Work:
    """Counts its calls, and can be told to stop at a key as a killed run would."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.calls: list[str] = []
        self.stop_at = stop_at

    def __call__(self, key: str) -> dict[str, torch.Tensor]:
        if key == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append(key)
        return {"value": torch.tensor([float(len(key)), 0.5]), "count": torch.tensor(len(key))}


KEYS = ["a", "bb", "ccc", "dddd"]


def values(outcomes) -> list[float]:
    return [float(outcome["value"][0]) for outcome in outcomes]


def test_without_a_folder_outcomes_stay_in_memory():
    work, kept = Work(), Trials("work", Run(), code=(), seed=0)
    assert kept.folder is None
    assert not kept.done("a")
    assert values(kept.outcomes(KEYS, work)) == [1.0, 2.0, 3.0, 4.0]
    assert values(kept.outcomes(KEYS, work)) == [1.0, 2.0, 3.0, 4.0]
    assert work.calls == KEYS
    assert values(Trials("work", Run(), code=(), seed=0).outcomes(["a"], work)) == [1.0]
    assert work.calls == [*KEYS, "a"]  # another object has its own memory


def test_a_resumed_run_does_only_what_is_missing(tmp_path):
    killed = Work(stop_at="ccc")
    with pytest.raises(KeyboardInterrupt):
        list(Trials("work", Run(tmp_path), code=(), seed=0).outcomes(KEYS, killed))
    assert killed.calls == ["a", "bb"]
    resumed = Work()
    assert values(Trials("work", Run(tmp_path), code=(), seed=0).outcomes(KEYS, resumed)) == [1.0, 2.0, 3.0, 4.0]
    assert resumed.calls == ["ccc", "dddd"]
    third = Work()
    outcomes = list(Trials("work", Run(tmp_path), code=(), seed=0).outcomes(reversed(KEYS), third))
    assert values(outcomes) == [4.0, 3.0, 2.0, 1.0]  # in the order asked for
    assert third.calls == []
    assert outcomes[0]["count"].dtype == torch.int64


def test_each_trial_is_kept_as_it_finishes(tmp_path):
    kept = Trials("work", Run(tmp_path), code=(), seed=0)
    stream = kept.outcomes(KEYS, Work())
    next(stream)
    assert [kept.done(key) for key in KEYS] == [True, False, False, False]


def test_different_settings_never_share_a_folder(tmp_path):
    first, second = Trials("work", Run(tmp_path), code=(), seed=0), Trials("work", Run(tmp_path), code=(), seed=1)
    list(first.outcomes(["a"], Work()))
    assert first.folder != second.folder
    assert first.done("a")
    assert not second.done("a")
    assert json.loads((second.folder / "identity.json").read_text())["parts"] == {"seed": 1}


def test_views_and_strided_tensors_are_kept_as_they_read(tmp_path):
    kept = Trials("work", Run(tmp_path), code=())
    base = torch.arange(6.0).reshape(2, 3)
    kept.write("x", {"transposed": base.T, "expanded": base[:, :1].expand(2, 4)})
    back = kept.read("x")
    assert torch.equal(back["transposed"], base.T)
    assert torch.equal(back["expanded"], base[:, :1].expand(2, 4))


def flipped(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["empty", "half", "flipped at the end", "flipped in the header", "of another trial"])
def test_a_damaged_file_is_named_and_only_that_trial_is_done_again(tmp_path, damage):
    list(Trials("work", Run(tmp_path), code=()).outcomes(KEYS, Work()))
    folder = Trials("work", Run(tmp_path), code=()).folder
    path = folder / "bb.safetensors"
    if damage in ("empty", "half"):
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else 60])
    elif damage == "of another trial":
        path.write_bytes((folder / "dddd.safetensors").read_bytes())
    else:
        flipped(path, -1 if damage.endswith("end") else path.read_bytes().index(b"value"))
    again = Work()
    with pytest.warns(UserWarning, match=r"bb\.safetensors is damaged\. Its content is computed again\."):
        outcomes = list(Trials("work", Run(tmp_path), code=()).outcomes(KEYS, again))
    assert values(outcomes) == [1.0, 2.0, 3.0, 4.0]
    assert again.calls == ["bb"]
    third = Work()
    list(Trials("work", Run(tmp_path), code=()).outcomes(KEYS, third))
    assert third.calls == []


def scaled(factor: float) -> Network:
    linear = nn.Linear(2, 1, bias=False)
    nn.init.constant_(linear.weight, factor)
    return Network.of(linear)


class Elsewhere(nn.Linear):
    """Its outputs depend on what no code tells."""

    def forward(self, x):
        return super().forward(x) * float(os.environ.get("SLOPE", "1"))


@pytest.mark.parametrize("slope", ["1", "3"])
def test_without_its_identity_a_folder_is_trusted_only_if_networks_give_the_same_outputs(tmp_path, monkeypatch, slope):
    network = Network.of(Elsewhere(2, 1))

    def kept() -> Trials:
        return Trials("work", Run(tmp_path), code=(), at=(2,), network=network)

    first = kept()
    list(first.outcomes(["a", "bb"], Work()))
    (first.folder / "identity.json").write_bytes(b"{")
    monkeypatch.setenv("SLOPE", slope)
    again = Work()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        list(kept().outcomes(["a", "bb"], again))
    assert "identity.json is damaged" in str(told[0].message)
    assert again.calls == ([] if slope == "1" else ["a", "bb"])


def test_other_outputs_of_the_same_code_and_weights_are_told_and_computed_anew(tmp_path, monkeypatch):
    network = Network.of(Elsewhere(2, 1))

    def kept() -> Trials:
        return Trials("a sum", Run(tmp_path), code=(), at=(2,), network=network)

    list(kept().outcomes(["a"], Work()))
    monkeypatch.setenv("SLOPE", "3")
    with pytest.warns(
        UserWarning, match=r"The outputs of the network differ from those in .* A sum is computed again\."
    ):
        second = kept()
    assert not second.done("a")
    list(second.outcomes(["a"], Work()))
    monkeypatch.setenv("SLOPE", "1.00000000001")  # rounding
    assert kept().done("a")
    monkeypatch.setenv("SLOPE", "3")
    with pytest.warns(UserWarning, match="outputs of the network differ"):
        assert kept().done("a")  # both are known now


def test_a_network_needs_inputs_to_be_compared_on(tmp_path):
    with pytest.raises(TypeError, match=r"needs inputs to compare its outputs on\. Pass at="):
        Trials("work", Run(tmp_path), code=(), network=scaled(1.0))


def test_a_file_is_absent_or_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    written: list[Path] = []

    def die(source: Path, target: Path) -> None:
        written.append(Path(source))
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert written[0].parent == path.parent  # a rename is atomic within one file system only
    assert written[0].name != path.name
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_trial_that_was_not_renamed_is_done_again(tmp_path, monkeypatch):
    def die(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    kept = Trials("work", Run(tmp_path), code=())
    monkeypatch.setattr(files.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        kept.write("x", {"value": torch.zeros(3)})
    monkeypatch.undo()
    work = Work()
    list(Trials("work", Run(tmp_path), code=()).outcomes(["x"], work))
    assert work.calls == ["x"]


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "folder"
    with pytest.raises(ValueError, match=r"^The output folder must be writable, but .* is not \(.+\)\. Pass another"):
        make_writable(below)
    with pytest.raises(ValueError, match="must be writable"):
        Trials("work", Run(below), code=())


def test_making_a_folder_writable_leaves_nothing_in_it(tmp_path):
    make_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
