"""Sweeps: planned once, kept group by group, and the same bit for bit however often they were killed."""

import contextlib
import json
import os
import resource
import signal
import threading
from pathlib import Path

import pytest
import torch
from killing import Script

from biascope.runs.files import partial_name
from biascope.runs.run import Run
from biascope.runs.trials import Group, Outcome, Sweep, Work, _claimed

# A command that trains stacks of linear models in float32. Each step adds up a stack's gradients from the first member to
# the last, so an outcome depends on who is in the stack, in which order and by which method.
COMMAND = """
import os, signal, sys, time
from pathlib import Path
import safetensors.torch, torch
from biascope.runs import files
from biascope.runs.run import Run
from biascope.runs.trials import Group, Sweep

folder, log, result, kill_at, pause = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5])
torch.set_num_threads(1)
KEYS = [f"trial {index:02d}" for index in range(14)]

def train(keys, run, method):
    with log.open("a") as file:
        file.write(keys[0] + "\\n")
    time.sleep(pause)
    if kill_at == f"work of {keys[0]}":
        os.kill(os.getpid(), signal.SIGKILL)
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(64, 10, generator=generator), torch.randn(64, generator=generator)
    weights = torch.stack([torch.full((10,), 0.1 * int(key[-2:])) for key in keys])
    for step in range(30):
        gradients = ((weights @ inputs.T - labels) @ inputs) / 64
        drift = torch.zeros(10)
        for row in gradients.split(method["rows"]):
            drift = drift + row.sum(0) / 3
        weights = weights - 0.1 * gradients - 1e-3 * drift
    return {key: {"weights": weights[index], "steps": torch.tensor(30)} for index, key in enumerate(keys)}

replace = os.replace
def replaced(source, target):
    if kill_at == f"rename {len(list(folder.glob('trials/*/group-*')))}" and "group-" in str(target):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
files.os.replace = replaced

plan = lambda keys: [Group(tuple(keys[i : i + 3]), {"rows": 2}) for i in range(0, len(keys), 3)]
found = Sweep("linear models", Run(folder, device="cpu"), code=()).outcomes(KEYS, train, plan=plan)
safetensors.torch.save_file({key: outcome["weights"] for key, outcome in found.items()}, result)
"""


def start(folder: Path, name: str, kill_at: str = "", pause: float = 0.0) -> Script:
    result, log = folder.parent / f"{name}.safetensors", folder.parent / f"{folder.name}.log"
    return Script(COMMAND, str(folder), str(log), str(result), kill_at, str(pause))


def result_of(folder: Path, name: str) -> bytes:
    return (folder.parent / f"{name}.safetensors").read_bytes()


def runs_of(folder: Path) -> list[str]:
    return (folder.parent / f"{folder.name}.log").read_text().splitlines()


def test_a_sweep_killed_twice_ends_like_an_uninterrupted_one_bit_for_bit(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted = start(whole, "whole")
    assert (
        start(killed, "killed", kill_at="work of trial 06").status() == -signal.SIGKILL
    )  # in the third of five groups
    assert runs_of(killed) == ["trial 00", "trial 03", "trial 06"]
    plan = next(killed.glob("trials/*/plan.json")).read_bytes()
    assert start(killed, "killed", kill_at="rename 3").status() == -signal.SIGKILL  # its file written, not yet renamed
    assert runs_of(killed)[3:] == ["trial 06", "trial 09"]  # nothing finished is computed again
    assert len(list(killed.glob("trials/*/.*.partial"))) == 1
    assert start(killed, "killed").status() == 0
    assert runs_of(killed)[5:] == ["trial 09", "trial 12"]
    assert uninterrupted.status() == 0
    assert runs_of(whole) == ["trial 00", "trial 03", "trial 06", "trial 09", "trial 12"]
    assert result_of(killed, "killed") == result_of(whole, "whole")
    assert next(killed.glob("trials/*/plan.json")).read_bytes() == plan
    files = {path.name: path.read_bytes() for path in whole.glob("trials/*/group-*")}
    assert len(files) == 5
    assert {path.name: path.read_bytes() for path in killed.glob("trials/*/group-*")} == files


def test_two_processes_on_one_folder_leave_every_trial_once(tmp_path):
    folder = tmp_path / "shared"
    processes = [start(folder, name, pause=0.05) for name in ("first", "second")]
    assert [process.status() for process in processes] == [0, 0]
    assert result_of(folder, "first") == result_of(folder, "second")
    planned = json.loads(next(folder.glob("trials/*/plan.json")).read_text())["groups"]
    assert [key for row in planned for key in row["keys"]] == [f"trial {index:02d}" for index in range(14)]
    assert sorted(runs_of(folder)) == [row["keys"][0] for row in planned], "each group was computed by one of them"
    kept = [path.name for path in folder.glob("trials/*/*")]
    assert len(kept) == len(planned) + 3  # with identity, plan and lock: no other file is left


class Squares:
    """Work that counts its groups and can be told to stop at one, as Ctrl-C would."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.groups: list[tuple[str, ...]] = []
        self.methods: list[dict] = []
        self.runs: list[Run] = []
        self.stop_at = stop_at

    def __call__(self, keys, run, method):
        if self.stop_at in keys:
            raise KeyboardInterrupt
        self.groups.append(tuple(keys))
        self.methods.append(method)
        self.runs.append(run)
        stack = torch.tensor([float(len(key)) for key in keys])
        return {key: {"square": (stack**2)[index], "mates": stack} for index, key in enumerate(keys)}


class Pairs:
    """A plan of groups of equal size that keeps what it was asked for."""

    def __init__(self, size: int = 2, **method) -> None:
        self.size, self.method, self.asked = size, method, []

    def __call__(self, keys):
        self.asked.append(list(keys))
        return [Group(tuple(keys[i : i + self.size]), self.method) for i in range(0, len(keys), self.size)]


KEYS = ["dddd", "a", "ccc", "bb"]


def squares(outcomes) -> dict[str, float]:
    return {key: float(outcome["square"]) for key, outcome in outcomes.items()}


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "memory"])
def test_outcomes_come_in_the_order_asked_for_and_are_computed_once(tmp_path, folder):
    sweep, work, plan = Sweep("work", Run(tmp_path if folder else None), code=(), seed=0), Squares(), Pairs(way="stack")
    for _ in range(2):
        found = sweep.outcomes(KEYS, work, plan=plan)
        assert list(found) == KEYS
        assert squares(found) == {"dddd": 16.0, "a": 1.0, "ccc": 9.0, "bb": 4.0}
    assert plan.asked == [["a", "bb", "ccc", "dddd"]]  # sorted, and once
    assert work.groups == [("a", "bb"), ("ccc", "dddd")]
    assert work.methods == [{"way": "stack"}] * 2
    assert sweep.outcomes([], work, plan=plan) == {}
    assert list(sweep.outcomes(["a", "a"], work, plan=plan)) == ["a"]
    assert len(work.groups) == len(plan.asked) + 1 == 2
    assert (sweep.folder is None) == (not folder)


def test_the_work_only_computes(tmp_path):
    work = Squares()
    Sweep("work", Run(tmp_path, device="cpu", precision="float64", data_root="d"), code=()).outcomes(
        ["a"], work, plan=Pairs()
    )
    assert work.runs == [Run(device="cpu", precision="float64", data_root="d", progress=False)]


def test_a_written_plan_is_taken_as_it_is(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, Squares("dddd"), plan=Pairs(2, way="stack", sizes=(1, 2)))
    resumed, other = Squares(), Pairs(3, way="loop")
    found = Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, resumed, plan=other)
    assert other.asked == []
    assert resumed.groups == [("ccc", "dddd")]  # what was finished before Ctrl-C stays
    assert resumed.methods == [{"way": "stack", "sizes": [1, 2]}]
    assert found["a"]["mates"].tolist() == [1.0, 2.0]


def test_the_work_gets_the_same_method_in_a_first_and_in_a_resumed_run():
    work = Squares()
    Sweep("work", Run(), code=()).outcomes(["a"], work, plan=Pairs(1, sizes=(1, 2)))
    assert work.methods == [{"sizes": [1, 2]}]  # as it reads from disk


def test_more_keys_extend_the_plan_and_reuse_what_is_finished(tmp_path):
    first, second, third = Squares(), Squares(), Squares()
    Sweep("work", Run(tmp_path), code=()).outcomes(["bb", "dddd"], first, plan=Pairs())
    plan = Pairs(3)
    found = Sweep("work", Run(tmp_path), code=()).outcomes(["a", "bb", "ccc", "dddd", "eeeee"], second, plan=plan)
    assert plan.asked == [["a", "ccc", "eeeee"]]
    assert second.groups == [("a", "ccc", "eeeee")]
    assert found["bb"]["mates"].tolist() == [2.0, 4.0]
    assert found["a"]["mates"].tolist() == [1.0, 3.0, 5.0]
    assert list(Sweep("work", Run(tmp_path), code=()).outcomes(["ccc", "bb"], third, plan=Pairs())) == ["ccc", "bb"]
    assert third.groups == []


def test_an_unfinished_group_of_a_wider_sweep_is_no_narrower_ones_business(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, Squares("a"), plan=Pairs())
    narrow, plan = Squares(stop_at="bb"), Pairs()  # whose work may not even know the other trials
    assert list(Sweep("work", Run(tmp_path), code=()).outcomes(["a"], narrow, plan=plan)) == ["a"]
    assert (plan.asked, narrow.groups) == ([["a"]], [("a",)])
    wide = Squares()
    found = Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, wide, plan=pytest.fail)
    assert wide.groups == [("a", "bb"), ("ccc", "dddd")]
    assert found["a"]["mates"].tolist() == [1.0, 2.0]  # as if nothing had been asked for in between


def test_a_group_that_another_process_finished_meanwhile_is_not_repeated(tmp_path):
    class Overtaken(Squares):
        def __call__(self, keys, run, method):
            if "a" in keys:  # while the first group runs here, the other finishes elsewhere
                Sweep("work", Run(tmp_path), code=()).outcomes(["ccc", "dddd"], Squares(), plan=Pairs())
            return super().__call__(keys, run, method)

    work = Overtaken()
    assert len(Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, work, plan=Pairs())) == 4
    assert work.groups == [("a", "bb")]


STRANGE = ["", " ", "a/b", "a%2Fb", "../up", "σ=3 · v₁₂", "a\nb", "x" * 500, "__metadata__", "\ud800", "a", "A"]


def test_keys_and_names_may_hold_any_characters(tmp_path):
    def work(keys, run, method):
        return {
            key: {"": torch.tensor(len(key)), "a/b %": torch.arange(len(key)), key: torch.zeros(())} for key in keys
        }

    for _ in range(2):
        found = Sweep("work", Run(tmp_path), code=()).outcomes(STRANGE, work, plan=Pairs(5))
        assert list(found) == STRANGE
        for key, outcome in found.items():
            assert set(outcome) == {"", "a/b %", key}
            assert int(outcome["a/b %"].numel()) == len(key)


def test_rows_of_a_stack_empty_outcomes_and_every_type_are_kept(tmp_path):
    stack = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]

    def work(keys, run, method):
        return {
            "rows": {"first": stack[0], "again": stack[0], "column": stack[:, 1], "all": stack.T},
            "kinds": {str(kind): torch.ones(2).to(kind) for kind in kinds},
            "nothing": {},
        }

    for folder in (None, tmp_path):
        found = Sweep("work", Run(folder), code=()).outcomes(["rows", "kinds", "nothing"], work, plan=Pairs(3))
        assert found["nothing"] == {}
        assert all(found["kinds"][str(kind)].dtype is kind for kind in kinds)
        assert torch.equal(found["rows"]["again"], torch.tensor([0.0, 1.0, 2.0]))
        assert torch.equal(found["rows"]["column"], torch.tensor([1.0, 4.0]))
        assert torch.equal(found["rows"]["all"], stack.detach().T)
        assert found["rows"]["first"].untyped_storage().nbytes() == 12  # its own three numbers, not the stack
        assert not found["rows"]["first"].requires_grad


@pytest.mark.parametrize("damage", ["empty", "no file of tensors", "cut", "flipped", "of another group"])
def test_a_damaged_group_file_is_named_and_only_that_group_is_done_again(tmp_path, damage):
    sweep = Sweep("work", Run(tmp_path), code=())
    whole = squares(sweep.outcomes(KEYS, Squares(), plan=Pairs()))
    path, other = sorted(sweep.folder.glob("group-*"))
    data = path.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 64])
    path.write_bytes(
        {"empty": b"", "no file of tensors": b"half a fi", "cut": data[:-3], "flipped": flipped}.get(
            damage, other.read_bytes()
        )
    )
    work = Squares()
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged\. Its content is computed again\."):
        found = Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, work, plan=Pairs())
    assert squares(found) == whole
    assert len(work.runs) == 1


@pytest.mark.parametrize("damage", ["cut", "other keys", "no digest"])
def test_a_damaged_plan_is_named_and_planned_again(tmp_path, damage):
    sweep = Sweep("work", Run(tmp_path), code=())
    whole = squares(sweep.outcomes(KEYS, Squares(), plan=Pairs()))
    path = sweep.folder / "plan.json"
    text = path.read_text()
    path.write_text({"cut": text[:-9], "other keys": text.replace("ccc", "cab")}.get(damage, '{"groups": []}'))
    work = Squares()
    with pytest.warns(UserWarning, match=r"plan\.json is damaged\. Its content is planned again\."):
        found = Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, work, plan=Pairs())
    assert squares(found) == whole
    assert not work.runs  # groups are found by what is in them


def test_leftovers_go_and_what_may_still_be_written_stays(tmp_path):
    folder = Sweep("work", Run(tmp_path), code=()).folder
    mine = partial_name(folder / "plan.json")
    dead = mine.with_name(mine.name.replace(f"-{os.getpid()}-", "-999999999-"))
    dead.write_bytes(b"half")
    mine.write_bytes(b"half")
    sweep = Sweep("work", Run(tmp_path), code=())
    assert not dead.exists()
    assert mine.exists()  # its process still runs
    assert len(sweep.outcomes(KEYS, Squares(), plan=Pairs())) == 4


@pytest.mark.parametrize(
    "groups",
    [
        [Group(("a",))],
        [Group(("a", "bb")), Group(("bb",))],
        [Group(("a", "bb", "other"))],
    ],
    ids=["left out", "twice", "unknown"],
)
def test_a_plan_must_hold_every_new_trial_once(tmp_path, groups):
    sweep = Sweep("work", Run(tmp_path), code=())
    with pytest.raises(
        ValueError, match=r"^A plan must put each of its 2 trials into one group, but '(bb|other)' is in"
    ):
        sweep.outcomes(["a", "bb"], Squares(), plan=lambda keys: groups)
    assert not (sweep.folder / "plan.json").exists()


def test_work_must_answer_for_every_trial(tmp_path):
    def forgets(keys, run, method):
        return {"a": {}}

    with pytest.raises(ValueError, match=r"^The work must give an outcome for each of its 2 trials, but 'bb' has none"):
        Sweep("work", Run(tmp_path), code=()).outcomes(["a", "bb"], forgets, plan=Pairs())
    assert not list(tmp_path.glob("trials/*/group-*"))


def test_progress_counts_trials_that_were_asked_for(tmp_path, monkeypatch):
    import contextlib

    shown: list[object] = []

    @contextlib.contextmanager
    def tracked(self, label, total, done=0):
        shown.append((label, total, done))
        yield shown.append

    monkeypatch.setattr(Run, "tracked", tracked)
    with pytest.raises(KeyboardInterrupt):
        Sweep("work", Run(tmp_path), code=()).outcomes(KEYS, Squares("ccc"), plan=Pairs(), label="directions")
    Sweep("work", Run(tmp_path), code=()).outcomes(["a", "bb", "ccc"], Squares(), plan=Pairs(), label="directions")
    assert shown == [("directions", 4, 0), 2, ("directions", 3, 2), 1]


def test_two_that_work_on_one_folder_share_the_groups(tmp_path: Path) -> None:
    """Each takes what the other is not at, and waits for the rest."""
    done: dict[str, list[str]] = {"first": [], "second": []}
    begun, other_is_through = threading.Event(), threading.Event()

    def work_of(name: str) -> Work:
        def work(keys, run, method):
            done[name] += keys
            if name == "first" and keys[0] == "a":
                begun.set()
                assert other_is_through.wait(20), "the second does not wait for the first group before it takes another"
            if keys[0] == "c":
                other_is_through.set()
            return {key: {"value": torch.tensor(float(ord(key)))} for key in keys}

        return work

    def run(name: str) -> None:
        sweep = Sweep("letters", Run(tmp_path, device="cpu"), code=())
        plan = lambda keys: [Group((key,)) for key in keys]  # noqa: E731
        found[name] = sweep.outcomes(["a", "b", "c"], work_of(name), plan=plan)

    found: dict[str, dict[str, Outcome]] = {}
    first = threading.Thread(target=run, args=("first",))
    first.start()
    assert begun.wait(20)
    run("second")
    first.join(20)
    assert done == {"first": ["a"], "second": ["b", "c"]}
    for name in ("first", "second"):
        assert [float(each["value"]) for each in found[name].values()] == [97.0, 98.0, 99.0]
    assert not list(tmp_path.rglob("at-*.lock")), "locks of finished groups are removed"


def test_groups_that_others_are_at_keep_no_file_open(tmp_path: Path) -> None:
    """Thousands of them would use up the files of a process, and all of their work would be repeated."""
    fcntl = pytest.importorskip("fcntl")
    lock = tmp_path / "at-group.lock"
    with lock.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with contextlib.ExitStack() as every:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            for _ in range(min(limit, 4096) + 10):
                assert not every.enter_context(_claimed(lock, wait=False))
    with _claimed(lock, wait=True) as held:
        assert held, "a lock file that is left behind keeps nobody out"
