"""Trials: what is finished is kept whole, and only what is missing is done again."""

import json
from pathlib import Path

import pytest
import torch

from biascope import trials
from biascope.run import Run
from biascope.trials import Trials, identity_of, make_writable, write_atomically


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
    work, kept = Work(), Trials({"seed": 0}, Run())
    assert kept.folder is None
    assert not kept.done("a")
    assert values(kept.outcomes(KEYS, work)) == [1.0, 2.0, 3.0, 4.0]
    assert values(kept.outcomes(KEYS, work)) == [1.0, 2.0, 3.0, 4.0]
    assert work.calls == KEYS
    assert values(Trials({"seed": 0}, Run()).outcomes(["a"], work)) == [1.0]
    assert work.calls == [*KEYS, "a"]  # another object has its own memory


def test_a_resumed_run_does_only_what_is_missing(tmp_path):
    killed = Work(stop_at="ccc")
    with pytest.raises(KeyboardInterrupt):
        list(Trials({"seed": 0}, Run(tmp_path)).outcomes(KEYS, killed))
    assert killed.calls == ["a", "bb"]
    resumed = Work()
    assert values(Trials({"seed": 0}, Run(tmp_path)).outcomes(KEYS, resumed)) == [1.0, 2.0, 3.0, 4.0]
    assert resumed.calls == ["ccc", "dddd"]
    third = Work()
    outcomes = list(Trials({"seed": 0}, Run(tmp_path)).outcomes(reversed(KEYS), third))
    assert values(outcomes) == [4.0, 3.0, 2.0, 1.0]  # in the order asked for
    assert third.calls == []
    assert outcomes[0]["count"].dtype == torch.int64


def test_each_trial_is_kept_as_it_finishes(tmp_path):
    kept = Trials({"seed": 0}, Run(tmp_path))
    stream = kept.outcomes(KEYS, Work())
    next(stream)
    assert [kept.done(key) for key in KEYS] == [True, False, False, False]


def test_different_settings_never_share_a_folder(tmp_path):
    first, second = Trials({"seed": 0}, Run(tmp_path)), Trials({"seed": 1}, Run(tmp_path))
    list(first.outcomes(["a"], Work()))
    assert first.folder != second.folder
    assert first.done("a")
    assert not second.done("a")
    assert json.loads((second.folder / "identity.json").read_text()) == {"seed": 1}


def test_an_identity_is_the_settings_whatever_their_order():
    assert identity_of({"a": 1, "b": {"c": 2, "d": [3]}}) == identity_of({"b": {"d": [3], "c": 2}, "a": 1})
    settings = [{"a": 1}, {"a": 2}, {"b": 1}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": {"a": 1}}, {}]
    assert len({identity_of(each) for each in settings}) == len(settings)


def test_views_and_strided_tensors_are_kept_as_they_read(tmp_path):
    kept = Trials({}, Run(tmp_path))
    base = torch.arange(6.0).reshape(2, 3)
    kept.write("x", {"transposed": base.T, "expanded": base[:, :1].expand(2, 4)})
    back = kept.read("x")
    assert torch.equal(back["transposed"], base.T)
    assert torch.equal(back["expanded"], base[:, :1].expand(2, 4))


@pytest.mark.parametrize("damage", [b"", b"half a fi"])
def test_a_damaged_file_is_a_sentence(tmp_path, damage):
    kept = Trials({}, Run(tmp_path))
    kept.write("x", {"value": torch.zeros(3)})
    path = kept.folder / "x.safetensors"
    path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"must be a whole trial file and is damaged\. Delete it and run") as caught:
        kept.read("x")
    assert str(caught.value).startswith(str(path))


def test_a_file_is_absent_or_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    written: list[Path] = []

    def die(source: Path, target: Path) -> None:
        written.append(Path(source))
        raise KeyboardInterrupt

    monkeypatch.setattr(trials.os, "replace", die)
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

    kept = Trials({}, Run(tmp_path))
    monkeypatch.setattr(trials.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        kept.write("x", {"value": torch.zeros(3)})
    monkeypatch.undo()
    work = Work()
    list(Trials({}, Run(tmp_path)).outcomes(["x"], work))
    assert work.calls == ["x"]


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "folder"
    with pytest.raises(ValueError, match=r"^The output folder must be writable, and .* is not \(.+\)\. Pass another"):
        make_writable(below)
    with pytest.raises(ValueError, match="must be writable"):
        Trials({}, Run(below))


def test_making_a_folder_writable_leaves_nothing_in_it(tmp_path):
    make_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
