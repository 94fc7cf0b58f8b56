"""Trials: independent units of work with stable keys, kept on disk as they finish, so that no finished work is lost.

A trial is ``key -> dict of tensors``. With a folder, what is finished is a safetensors file written under a temporary
name and renamed, so a file that exists is whole; running the same work again does only what is missing. ``Trials``
keeps one file per trial; a ``Sweep`` groups trials into stacks by a plan that is written down, and keeps one file per stack.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import safetensors
import safetensors.torch

from biascope.cluster import Group as Group
from biascope.cluster import Outcome as Outcome
from biascope.cluster import Work as Work
from biascope.cluster import run_groups
from biascope.run import Run

LEFTOVER_SECONDS = 3600.0  # no write takes an hour: a temporary file that old belongs to a process that was killed


def identity_of(settings: dict[str, object]) -> str:
    """A short stable name for a set of settings; work under different settings never shares a folder.

    Example:
        >>> identity_of({"draws": 400, "seed": 0}) == identity_of({"seed": 0, "draws": 400})
        True
    """
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Trials:
    """The done-map of one piece of work.

    Args:
        identity: What is computed, as JSON-able settings: it names the folder and is written there to be read.
        run: Where the folder is; without one, outcomes stay in memory.
    """

    def __init__(self, identity: dict[str, object], run: Run) -> None:
        self.identity = identity
        self._memory: dict[str, Outcome] = {}
        self.folder = _folder_of(identity, run)

    def done(self, key: str) -> bool:
        """Whether a trial has finished, here or in an earlier run."""
        return key in self._memory if self.folder is None else self._path(key).exists()

    def read(self, key: str) -> Outcome:
        """The outcome of a finished trial."""
        return self._memory[key] if self.folder is None else _read_tensors(self._path(key))

    def write(self, key: str, outcome: Outcome) -> None:
        """Keep a finished trial."""
        if self.folder is None:
            self._memory[key] = outcome
        else:
            _write_tensors(self._path(key), outcome)

    def outcomes(self, keys: Sequence[str], work: Callable[[str], Outcome]) -> Iterator[Outcome]:
        """Each trial's outcome in order, computed where it is missing."""
        for key in keys:
            if not self.done(key):
                self.write(key, work(key))
            yield self.read(key)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.safetensors"


class Sweep:
    """Many trials of one kind, grouped into stacks, resumable, in this process or on a Ray cluster.

    Members of a stack are computed together, and rounding depends on who is in it. So the grouping is planned once,
    written to ``plan.json`` before any work, and taken as it is by every later run: a sweep that was killed and
    started again gives the outcomes of an uninterrupted one bit for bit on the same device. One file holds all outcomes
    of a group, so a group is finished or it is not: killed in the middle, it runs again whole, with the same members.

    The identity does not contain the keys: asked for more of them, the sweep appends groups to its plan and reuses what
    it has. Two processes on one folder share the plan and each other's finished groups; at worst they repeat work.

    Args:
        identity: What is computed, as JSON-able settings: it names the folder and is written there to be read.
        run: Where the folder is (without one, outcomes stay in memory), and where and how the work runs.

    Example:
        >>> import torch
        >>> def squares(keys, run, method):
        ...     return {key: {"square": torch.tensor(float(key)) ** 2} for key in keys}
        >>> sweep = Sweep({"work": "squares"}, Run())
        >>> found = sweep.outcomes(["1", "2", "3"], squares, plan=lambda keys: [Group(tuple(keys), {"way": "stack"})])
        >>> [float(found[key]["square"]) for key in ("1", "2", "3")]
        [1.0, 4.0, 9.0]
    """

    def __init__(self, identity: dict[str, object], run: Run) -> None:
        self.identity = identity
        self.run = run
        self.folder = _folder_of(identity, run)
        self._planned: list[Group] = []
        self._memory: dict[str, dict[str, Outcome]] = {}

    def outcomes(
        self,
        keys: Sequence[str],
        work: Work,
        *,
        plan: Callable[[Sequence[str]], Sequence[Group]],
        label: str = "trials",
    ) -> dict[str, Outcome]:
        """The outcome of every trial, computed where it is missing.

        Args:
            keys: The trials, of any characters.
            work: Computes one group; see :data:`biascope.cluster.Work`.
            plan: Groups the trials, given sorted, that are in no group of an earlier plan that is done or asked for as a
                whole (of a group that a wider sweep left unfinished, this work may not know every trial); not called where
                there are none.
            label: Of the progress bar.

        Returns:
            Outcomes by key, in the order of ``keys``.

        Raises:
            ValueError: If a file is damaged, a plan or a work leaves trials out, or there is no such cluster.
        """
        wanted = dict.fromkeys(keys)
        home = self._plan(wanted, plan)
        groups = list({_name(group): group for group in home.values()}.values())
        sizes = Counter(_name(group) for group in home.values())
        missing = [group for group in groups if not self._done(group)]
        done = len(wanted) - sum(sizes[_name(group)] for group in missing)
        with self.run.tracked(label, len(wanted), done) as advance:

            def still_missing() -> Iterator[Group]:
                for group in missing:
                    if self._done(group):  # another process was here
                        advance(sizes[_name(group)])
                    else:
                        yield group

            def keep(group: Group, outcomes: dict[str, Outcome]) -> None:
                if not self._done(group):
                    self._write(group, outcomes)
                advance(sizes[_name(group)])

            run_groups(work, still_missing(), self.run, keep)
        found = {_name(group): self._read(group) for group in groups}
        return {key: found[_name(home[key])][key] for key in wanted}

    def _plan(self, wanted: dict[str, None], plan: Callable[[Sequence[str]], Sequence[Group]]) -> dict[str, Group]:
        """The group of each trial: the first that is done or asked for as a whole, or one that is planned now."""
        with _alone(None if self.folder is None else self.folder / "plan.lock"):
            groups = self._read_plan()
            usable = [group for group in groups if wanted.keys() >= set(group.keys) or self._done(group)]
            new = sorted(wanted.keys() - {key for group in usable for key in group.keys})
            if new:
                added = _checked(plan(new), new)
                groups += added
                usable += added
                if self.folder is None:
                    self._planned = groups
                else:
                    rows = [{"keys": group.keys, "method": group.method} for group in groups]
                    write_atomically(self.folder / "plan.json", json.dumps({"groups": rows}, indent=1).encode())
        found: dict[str, Group] = {}
        for group in usable:
            for key in group.keys:
                if key in wanted:
                    found.setdefault(key, group)
        return found  # in the order of the plan

    def _read_plan(self) -> list[Group]:
        if self.folder is None:
            return list(self._planned)
        path = self.folder / "plan.json"
        try:
            rows = json.loads(path.read_bytes())["groups"]
            return [Group(tuple(row["keys"]), row["method"]) for row in rows]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must be a plan of groups and is damaged. Delete its folder and run the command again."
            ) from error

    def _done(self, group: Group) -> bool:
        return _name(group) in self._memory if self.folder is None else self._path(group).exists()

    def _read(self, group: Group) -> dict[str, Outcome]:
        if self.folder is None:
            return self._memory[_name(group)]
        outcomes: dict[str, Outcome] = {key: {} for key in group.keys}
        for name, tensor in _read_tensors(self._path(group)).items():
            key, part = (_unescaped(each) for each in name.split("/"))
            outcomes[key][part] = tensor
        return outcomes

    def _write(self, group: Group, outcomes: dict[str, Outcome]) -> None:
        if self.folder is None:
            self._memory[_name(group)] = outcomes
            return
        tensors = {
            f"{_escaped(key)}/{_escaped(part)}": tensor
            for key, outcome in outcomes.items()
            for part, tensor in outcome.items()
        }
        _write_tensors(self._path(group), tensors)

    def _path(self, group: Group) -> Path:
        assert self.folder is not None
        return self.folder / f"{_name(group)}.safetensors"


def _name(group: Group) -> str:
    """Of a group's file, by its content: a file can never be taken for that of another group."""
    return f"group-{identity_of({'keys': group.keys, 'method': group.method})}"


def _checked(groups: Sequence[Group], keys: list[str]) -> list[Group]:
    """A new plan, as it will read from disk.

    Raises:
        ValueError: If it does not hold every key once.
    """
    held = sorted(key for group in groups for key in group.keys)
    if held != keys:
        odd = sorted(set(held) ^ set(keys)) or [key for key, after in itertools.pairwise(held) if key == after]
        raise ValueError(
            f"A plan must put each of its {len(keys)} trials into one group, and {odd[0]!r} is in none or in several. "
            "Mend the plan."
        )
    return [Group(tuple(group.keys), json.loads(json.dumps(group.method))) for group in groups]


def _escaped(text: str) -> str:
    return urllib.parse.quote(text, safe="", errors="surrogatepass")


def _unescaped(text: str) -> str:
    return urllib.parse.unquote(text, errors="surrogatepass")


def _folder_of(identity: dict[str, object], run: Run) -> Path | None:
    """The folder of a work, made ready; none where the run has none."""
    if run.folder is None:
        return None
    folder = run.folder / "trials" / identity_of(identity)
    make_writable(folder)
    for leftover in folder.glob(".*.partial"):
        with contextlib.suppress(OSError):  # its owner may finish or remove it at this moment
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                leftover.unlink()
    write_atomically(folder / "identity.json", json.dumps(identity, indent=1, default=str).encode())
    return folder


def _read_tensors(path: Path) -> Outcome:
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        message = f"{path} must be a whole trial file and is damaged. Delete it and run the command again."
        raise ValueError(message) from error


def _write_tensors(path: Path, tensors: Outcome) -> None:
    write_atomically(path, safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}))


@contextlib.contextmanager
def _alone(lock: Path | None) -> Iterator[None]:
    """Hold a lock that the system releases when its holder ends, however it ends."""
    with contextlib.ExitStack() as stack:
        # Where there are no such locks (Windows, some network disks), two first runs at once may plan twice: the later
        # plan stays, and files of groups that are not in it are never read.
        with contextlib.suppress(ImportError, OSError):
            if lock is not None:
                import fcntl

                file = stack.enter_context(lock.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_writable(folder: Path) -> None:
    """Create a folder and make sure that files can be written there.

    Raises:
        ValueError: If it cannot be created or written, in one sentence.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{secrets.token_hex(4)}.partial"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"The output folder must be writable, and {folder} is not ({reason}). Pass another folder."
        raise ValueError(message) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent or whole, also when the machine goes down."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
