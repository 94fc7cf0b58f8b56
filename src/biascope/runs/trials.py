"""Trials: independent units of work with stable keys, saved to disk as they finish, so that no finished work is lost.

A trial is ``key -> dict of tensors``. With a folder, what is finished is a safetensors file written under a temporary
name and renamed, so a file that exists is whole; running the same work again does only what is missing. ``Trials``
keeps one file per trial; a ``Sweep`` groups trials into stacks by a plan that is written down, and keeps one file per stack.

Every file names its work and its key and carries a digest of its content. A file that is damaged, or was copied from elsewhere, is
reported by name, removed and computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import urllib.parse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from biascope.runs.cluster import Group as Group
from biascope.runs.cluster import Outcome as Outcome
from biascope.runs.cluster import Work as Work
from biascope.runs.cluster import run_groups
from biascope.runs.digest import fingerprint
from biascope.runs.files import make_writable, write_atomically, write_first
from biascope.runs.identity import Identity, identity_of
from biascope.runs.rehearsal import at_hand, counted
from biascope.runs.run import Run

Code = Callable[..., Any] | Sequence[Callable[..., Any]]


class Trials:
    """The finished trials of one piece of work.

    Args:
        work: What is computed, in words.
        run: Where the folder is; without one, outcomes stay in memory.
        code: Functions or classes that compute it.
        at: Inputs, or the shape of one, on which the outputs of networks among the parts are compared.
        parts: All that the outcomes depend on besides; see :func:`biascope.runs.identity.identity_of`.
    """

    def __init__(self, work: str, run: Run, *, code: Code, at: Any = None, **parts: Any) -> None:
        self._work = work
        self._memory: dict[str, Outcome] = {}
        self._store = _Store.of(work, run, code, at, parts)

    @property
    def folder(self) -> Path | None:
        """Where finished trials lie."""
        return None if self._store is None else self._store.folder

    def done(self, key: str) -> bool:
        """Whether a trial has finished, here or in an earlier run, and its file is sound."""
        return key in self._memory if self._store is None else self._store.holds(key)

    def read(self, key: str) -> Outcome:
        """The outcome of a finished trial."""
        return self._memory[key] if self._store is None else self._store.read(key)

    def write(self, key: str, outcome: Outcome) -> None:
        """Keep a finished trial."""
        if self._store is None:
            self._memory[key] = outcome
        else:
            self._store.write(key, outcome)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from this work meanwhile: they wait, and then find what is finished."""
        with _alone(None if self._store is None else self._store.folder / "work.lock"):
            yield

    def outcomes(self, keys: Sequence[str], work: Callable[[str], Outcome]) -> Iterator[Outcome]:
        """Each trial's outcome in order, computed where it is missing."""
        every = list(keys)
        with counted(self._work, len(every)) as advance:
            for key in every:
                if not self.done(key):
                    self.write(key, work(key))
                advance(1)
                yield self.read(key)


class Sweep:
    """Many trials of one kind, grouped into stacks, resumable, in this process or on a Ray cluster.

    Members of a stack are computed together, and rounding depends on who is in it. So the grouping is planned once,
    written to ``plan.json`` before any work, and taken as it is by every later run: a sweep that was killed and
    started again gives the outcomes of an uninterrupted one bit for bit on the same device. One file holds all outcomes
    of a group, so a group is finished or it is not: killed in the middle, it runs again whole, with the same members.

    The identity does not contain the keys: asked for more of them, the sweep appends groups to its plan and reuses what
    it has. Several processes on one folder share the plan and the work: each takes groups that no other is at, and in the end waits
    for the rest. A process that dies lets its group go; one that hangs keeps it until it is ended. Lock files that are left behind keep
    nobody out. Where the system has no file locks, work is repeated at worst.

    Args:
        work: What is computed, in words.
        run: Where the folder is (without one, outcomes stay in memory), and where and how the work runs.
        code: Functions or classes that compute it.
        at: Inputs, or the shape of one, on which the outputs of networks among the parts are compared.
        parts: All that the outcomes depend on besides their keys; see :func:`biascope.runs.identity.identity_of`.

    Example:
        >>> import torch
        >>> def squares(keys, run, method):
        ...     return {key: {"square": torch.tensor(float(key)) ** 2} for key in keys}
        >>> sweep = Sweep("squares", Run(), code=squares)
        >>> found = sweep.outcomes(["1", "2", "3"], squares, plan=lambda keys: [Group(tuple(keys), {"way": "stack"})])
        >>> [float(found[key]["square"]) for key in ("1", "2", "3")]
        [1.0, 4.0, 9.0]
    """

    def __init__(self, work: str, run: Run, *, code: Code, at: Any = None, **parts: Any) -> None:
        self.run = run
        self._store = _Store.of(work, run, code, at, parts)
        self._planned: list[Group] = []
        self._memory: dict[str, dict[str, Outcome]] = {}

    @property
    def folder(self) -> Path | None:
        """Where finished groups lie."""
        return None if self._store is None else self._store.folder

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
            work: Computes one group; see :data:`biascope.runs.cluster.Work`.
            plan: Groups the trials, given sorted, that are in no group of an earlier plan that is done or asked for as a
                whole (of a group that a wider sweep left unfinished, this work may not know every trial); not called where
                there are none.
            label: Of the progress bar.

        Returns:
            Outcomes by key, in the order of ``keys``.

        Raises:
            ValueError: If a plan or a work leaves trials out, or there is no such cluster.
        """
        wanted = dict.fromkeys(keys)
        home = self._plan(wanted, plan)
        groups = list({_name(group): group for group in home.values()}.values())
        sizes = Counter(_name(group) for group in home.values())
        missing = [group for group in groups if not self._done(group)]
        done = len(wanted) - sum(sizes[_name(group)] for group in missing)
        with self.run.tracked(label, len(wanted), done) as advance, contextlib.ExitStack() as every:
            claims: dict[str, contextlib.ExitStack] = {}

            def mine(group: Group, wait: bool) -> bool:
                claim = every.enter_context(contextlib.ExitStack())
                claims[_name(group)] = claim
                return self._store is None or claim.enter_context(_claimed(self._store.lock(_name(group)), wait))

            elsewhere: list[Group] = []

            def still_missing(groups: Sequence[Group], wait: bool) -> Iterator[Group]:
                for group in groups:
                    if not mine(group, wait):
                        elsewhere.append(group)
                    elif self._done(group):  # another process was here
                        finished(group)
                    else:
                        at_hand(sizes[_name(group)])
                        yield group

            def finished(group: Group) -> None:
                if self._store is not None:  # whoever still waits for it will find it done
                    with contextlib.suppress(OSError):  # of someone else in a folder that lets nobody else remove it
                        self._store.lock(_name(group)).unlink(missing_ok=True)
                claims[_name(group)].close()
                advance(sizes[_name(group)])

            def keep(group: Group, outcomes: dict[str, Outcome]) -> None:
                if not self._done(group):
                    self._write(group, outcomes)
                finished(group)

            run_groups(work, still_missing(missing, wait=False), self.run, keep)
            # One at a time: a process that waits while it has groups under way could be waited for by the other.
            for group in list(elsewhere):  # missing still if whoever was at it has died
                run_groups(work, still_missing([group], wait=True), self.run, keep)
        found = {_name(group): self._read(group) for group in groups}
        return {key: found[_name(home[key])][key] for key in wanted}

    def _plan(self, wanted: dict[str, None], plan: Callable[[Sequence[str]], Sequence[Group]]) -> dict[str, Group]:
        """The group of each trial: the first that is done or asked for as a whole, or one that is planned now."""
        with _alone(None if self._store is None else self._store.folder / "plan.lock"):
            groups = self._read_plan()
            usable = [group for group in groups if wanted.keys() >= set(group.keys) or self._done(group)]
            new = sorted(wanted.keys() - {key for group in usable for key in group.keys})
            if new:
                added = _checked(plan(new), new)
                groups += added
                usable += added
                if self._store is None:
                    self._planned = groups
                else:
                    rows = [{"keys": group.keys, "method": group.method} for group in groups]
                    document = {"groups": rows, "digest": _digest_of_rows(rows)}
                    write_atomically(self._store.folder / "plan.json", json.dumps(document, indent=1).encode())
        found: dict[str, Group] = {}
        for group in usable:
            for key in group.keys:
                if key in wanted:
                    found.setdefault(key, group)
        return found  # in the order of the plan

    def _read_plan(self) -> list[Group]:
        if self._store is None:
            return list(self._planned)
        path = self._store.folder / "plan.json"
        try:
            document = json.loads(path.read_bytes())
            if document["digest"] != _digest_of_rows(document["groups"]):
                raise ValueError("another content")
            return [Group(tuple(row["keys"]), row["method"]) for row in document["groups"]]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError, RecursionError):
            # Files bear the names of their groups: those that are planned alike again are found again.
            tell_damage(path, "planned")
            return []

    def _done(self, group: Group) -> bool:
        return _name(group) in self._memory if self._store is None else self._store.holds(_name(group))

    def _read(self, group: Group) -> dict[str, Outcome]:
        if self._store is None:
            return self._memory[_name(group)]
        outcomes: dict[str, Outcome] = {key: {} for key in group.keys}
        for name, tensor in self._store.read(_name(group)).items():
            key, part = (_unescaped(each) for each in name.split("/"))
            outcomes[key][part] = tensor
        return outcomes

    def _write(self, group: Group, outcomes: dict[str, Outcome]) -> None:
        if self._store is None:
            self._memory[_name(group)] = outcomes
            return
        tensors = {
            f"{_escaped(key)}/{_escaped(part)}": tensor
            for key, outcome in outcomes.items()
            for part, tensor in outcome.items()
        }
        self._store.write(_name(group), tensors)


def _digest_of_rows(rows: object) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def _name(group: Group) -> str:
    """Of a group's file, by its content: a file can never be taken for that of another group."""
    return f"group-{_digest_of_rows({'keys': group.keys, 'method': group.method})}"


def _checked(groups: Sequence[Group], keys: list[str]) -> list[Group]:
    """A new plan, as it will read from disk.

    Raises:
        ValueError: If it does not hold every key once.
    """
    held = sorted(key for group in groups for key in group.keys)
    if held != keys:
        odd = sorted(set(held) ^ set(keys)) or [key for key, after in itertools.pairwise(held) if key == after]
        raise ValueError(
            f"A plan must put each of its {len(keys)} trials into one group, but {odd[0]!r} is in none or in several. "
            "Fix the plan."
        )
    return [Group(tuple(group.keys), json.loads(json.dumps(group.method))) for group in groups]


def _escaped(text: str) -> str:
    return urllib.parse.quote(text, safe="", errors="surrogatepass")


def _unescaped(text: str) -> str:
    return urllib.parse.unquote(text, errors="surrogatepass")


class _Store:
    """The files of one work: every one says of which work and key it is, and carries a digest of its tensors."""

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.folder, outputs = _folder_of(identity, folder)
        # Where identity.json is lost, files are trusted again only if the networks give these very outputs.
        self._work = f"{identity.name} {_digest_of_rows(outputs)}"
        self._sound: set[str] = set()  # looked at once in a process: reading gigabytes twice is not free

    @staticmethod
    def of(work: str, run: Run, code: Code, at: Any, parts: Mapping[str, Any]) -> _Store | None:
        """None where the run has no folder."""
        if run.folder is None:
            return None
        return _Store(identity_of(work, run, code=code, at=at, **parts), run.folder / "trials")

    def holds(self, key: str) -> bool:
        """Whether there is a sound file; a damaged one is named and removed."""
        path = self._path(key)
        if key in self._sound and path.exists():
            return True
        try:
            _, seal = read_sealed(path)
        except FileNotFoundError:
            return False
        except ValueError:
            seal = {}
        if seal != self._seal(key):
            tell_damage(path, "computed")
            path.unlink(missing_ok=True)
            return False
        self._sound.add(key)
        return True

    def read(self, key: str) -> Outcome:
        """The tensors of a file that was found sound."""
        return safetensors.torch.load_file(self._path(key))

    def write(self, key: str, tensors: Outcome) -> None:
        write_sealed(self._path(key), tensors, self._seal(key))
        self._sound.add(key)

    def _seal(self, key: str) -> dict[str, str]:
        return {"work": self._work, "trial": key}

    def lock(self, key: str) -> Path:
        """The file that whoever is at work on a key has locked."""
        return self.folder / f"at-{key}.lock"

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def _folder_of(identity: Identity, trials: Path) -> tuple[Path, list[list[float]]]:
    """The folder of a work, the first of its name in which networks gave the outputs that they give now; and these outputs."""
    for number in itertools.count(1):
        folder = trials / (identity.name if number == 1 else f"{identity.name}-{number}")
        make_writable(folder)
        outputs = _begun(folder, identity)
        if identity.agrees(outputs):
            break
        warnings.warn(
            f"The outputs of the network differ from those in {folder}, although its code is the same. A file, an environment "
            f"variable or a patched function may have changed. {identity.work.capitalize()} is computed again.",
            stacklevel=2,
        )
    return folder, outputs


def _begun(folder: Path, identity: Identity) -> list[list[float]]:
    """The outputs that a folder's networks gave when it was begun, by whoever came first."""
    path = folder / "identity.json"
    while True:
        try:
            return [[float(number) for number in group] for group in json.loads(path.read_bytes())["outputs"]]
        except FileNotFoundError:
            write_first(path, json.dumps(identity.document(), indent=1).encode())
        except (ValueError, KeyError, TypeError, RecursionError):
            tell_damage(path, "written")
            path.unlink(missing_ok=True)


def tell_damage(path: Path, what: str) -> None:
    """Warn of a damaged file by its name: nothing that it held is used, and what it held is done again."""
    warnings.warn(f"{path} is damaged. Its content is {what} again.", stacklevel=2)


def read_sealed(path: Path) -> tuple[Outcome, dict[str, str]]:
    """Tensors and seal from a file that :func:`write_sealed` wrote.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        with safetensors.safe_open(str(path), "pt") as file:
            found = dict(json.loads((file.metadata() or {})["seal"]))
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must be a complete cache file, but is damaged. Run the command again.") from error
    if found.pop("digest", None) != fingerprint(tensors):
        raise ValueError(f"{path} must match its digest, but does not. Run the command again.")
    return tensors, found


def write_sealed(path: Path, tensors: Outcome, seal: Mapping[str, str]) -> None:
    """Write tensors to a file that says what they are and carries a digest of them, whole or not at all."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    words = {**seal, "digest": fingerprint(held)}  # as one word: several have no order in such a file
    write_atomically(path, safetensors.torch.save(held, metadata={"seal": json.dumps(words)}))


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


@contextlib.contextmanager
def _claimed(lock: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock, and yield whether it is held; without waiting, it is not where another process holds it.

    Where there are no such locks, it counts as held.
    """
    with contextlib.ExitStack() as stack:
        held = True
        try:
            import fcntl

            file = stack.enter_context(lock.open("a"))
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = False
            stack.close()  # of thousands of groups, no file may stay open
        except (ImportError, OSError):
            pass
        yield held
