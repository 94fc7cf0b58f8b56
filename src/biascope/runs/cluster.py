"""Where groups of trials run: one after another in this process, or as tasks of a Ray cluster.

A group is what one stack trains together, and the unit that is scheduled, retried and kept. On a cluster every group
is one task with a GPU of its own (a CPU core where there are none). A task whose worker or node dies is sent again;
outcomes come back to this process, which alone writes files.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import importlib
import itertools
import operator
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from biascope.runs.run import Run

Outcome = dict[str, torch.Tensor]
# (keys of one stack, how this worker runs, the method that the plan chose) -> an outcome for every key
Work = Callable[[Sequence[str], Run, Mapping[str, Any]], Mapping[str, Outcome]]

RETRIES = 20  # of a group whose worker dies: nodes do go away, but a group that kills its worker every time must end
# Ray tells of every lost worker on standard output, which belongs to results, and of errors that are raised anyway.
_QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".*", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
_connection: str | None = None  # the address that this module connected to; a connection of the caller's is not ours


@dataclass(frozen=True)
class Group:
    """Trials that run together, and how.

    Attributes:
        keys: The trials, in the order of the stack.
        method: What the work needs to know to run them the same way again, JSON-able, e.g. ``{"way": "stack"}``.
    """

    keys: tuple[str, ...]
    method: dict[str, Any] = field(default_factory=dict)


def run_groups(
    work: Work, groups: Iterable[Group], run: Run, on_done: Callable[[Group, dict[str, Outcome]], None]
) -> None:
    """Carry out groups where ``run.on`` says, and hand over each one's outcomes as soon as it is finished.

    The work is given a run without folder, cluster and progress bar: it computes, and what it returns is kept by the
    caller. On a cluster the work travels whole, with the functions of the user's own files in it, and a killed worker or node
    only makes its groups run again; an exception of the work itself is raised here, after groups that had finished
    by then were handed over.

    Args:
        work: Computes the outcomes of one group.
        groups: Taken from the iterator when there is room for them, so that it may skip what was finished meanwhile.
        run: Where and how.
        on_done: Called in this process, once for every group, in the order in which they finish.

    Raises:
        ValueError: If the work leaves out a trial, or there is no such cluster.

    Example:
        >>> done = {}
        >>> work = lambda keys, run, method: {key: {"length": torch.tensor(len(key))} for key in keys}
        >>> run_groups(work, [Group(("a", "bb"))], Run(), lambda group, outcomes: done.update(outcomes))
        >>> {key: int(outcome["length"]) for key, outcome in done.items()}
        {'a': 1, 'bb': 2}
    """
    worker_run = dataclasses.replace(run, folder=None, on=None, progress=False)
    if run.on is not None:
        _run_on_ray(work, groups, worker_run, on_done, run.on)
        return
    for group in groups:
        on_done(group, _group_outcomes(work, group, worker_run))


def device_type(run: Run) -> str:
    """The kind of device that trials run on, here or on the cluster: it belongs to the identity of a work.

    Example:
        >>> device_type(Run(device="cpu"))
        'cpu'
    """
    if run.on is None:
        return run.torch_device.type
    return torch.device(_slot(_connected(run.on), run).device).type


def _group_outcomes(work: Work, group: Group, run: Run) -> dict[str, Outcome]:
    """Every trial's outcome, on the CPU and without memory shared with others."""
    outcomes = work(group.keys, run, group.method)
    missing = [key for key in group.keys if key not in outcomes]
    if missing:
        raise ValueError(
            f"The work must give an outcome for each of its {len(group.keys)} trials, but {missing[0]!r} has none. "
            "Return one for every key."
        )
    # A row of a stack would otherwise drag the whole stack along, to disk and through the network.
    return {
        key: {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in outcomes[key].items()
        }
        for key in group.keys
    }


def _run_on_ray(
    work: Work,
    groups: Iterable[Group],
    run: Run,
    on_done: Callable[[Group, dict[str, Outcome]], None],
    address: str,
) -> None:
    ray = _connected(address)
    slot = _slot(ray, run)
    with _pickled_whole(ray.cloudpickle):
        shared = ray.put((work, dataclasses.replace(run, device=slot.device)))  # once, whatever it holds
    place = {"num_cpus": slot.cpus, "num_gpus": slot.gpus, "scheduling_strategy": "SPREAD"}
    task = ray.remote(max_retries=RETRIES, **place)(_in_worker)
    waiting = iter(groups)
    running: dict[Any, Group] = {}
    try:
        while True:
            # Enough to keep every slot busy, also those that join later, and no more: outcomes take memory.
            room = 2 * slot.count(ray) - len(running)
            for group in itertools.islice(waiting, max(0, room)):
                running[task.remote(shared, group, max(1, slot.cpus))] = group
            if not running:
                return
            ray.wait(list(running), num_returns=1, timeout=1.0)
            finished, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
            failure: BaseException | None = None
            for reference in finished:
                group = running.pop(reference)
                try:
                    outcomes = ray.get(reference)
                except ray.exceptions.RayError as error:
                    failure = failure or _as_raised_by_the_work(ray, error, group)
                else:
                    on_done(group, outcomes)
            if failure is not None:
                raise failure
    except KeyboardInterrupt:
        if _disconnected(ray):
            running.clear()
        raise
    finally:
        _stop(ray, list(running))


def _disconnected(ray: Any) -> bool:
    """End a connection of ours, and with it all that runs for it; a local cluster that was started for it ends too.

    Who stops the work waits for nothing: cancelling a task at the moment of its end can abort this process with a dump of Ray's.
    """
    global _connection
    if _connection is None:
        return False
    _connection = None
    ray.shutdown()
    return True


def _stop(ray: Any, references: list[Any]) -> None:
    """Leave nothing running on the cluster after an exception."""
    # Ray lets a task slip through that reaches its worker at the moment of its cancellation, so it is asked again.
    attempts = 20
    while references and (attempts := attempts - 1):
        for reference in references:
            ray.cancel(reference, force=True)
        _, references = ray.wait(references, num_returns=len(references), timeout=0.5)


def _as_raised_by_the_work(ray: Any, error: Any, group: Group) -> BaseException:
    """The exception of the work itself, or the sentence for one that ended its process; Ray's report stays its cause."""
    raised: BaseException | None = getattr(error, "cause", None)
    lost = ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError
    if raised is None and not isinstance(error, lost):
        return error  # type: ignore[no-any-return]
    if raised is None:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raised = ValueError(
            f"The process that computes trial {group.keys[0]!r} must not end early, but did so more than {RETRIES} times "
            f"({reason}). Run the command without --on to see why. Finished trials are saved."
        )
    raised.__cause__ = error
    return raised


def _in_worker(shared: tuple[Work, Run], group: Group, threads: int) -> dict[str, Outcome]:
    torch.set_num_threads(threads)
    work, run = shared
    try:
        return _group_outcomes(work, group, run)
    except SystemExit as error:  # would end the worker, and look like a machine that failed
        raise RuntimeError(f"the work asked to exit with {error.code!r}") from error


@dataclass(frozen=True)
class _Slot:
    """What one group occupies on a cluster."""

    device: str
    cpus: int
    gpus: int

    def count(self, ray: Any) -> int:
        """How many groups run at a time on the nodes that are there now, at least one."""
        kinds = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = [min(int(node.get(kind, 0) // need) for kind, need in kinds.items() if need) for node in _nodes(ray)]
        return max(1, sum(nodes))


def _slot(ray: Any, run: Run) -> _Slot:
    """A GPU with its share of the cores where the cluster has GPUs and they are wanted, otherwise one core."""
    gpu_nodes = [node for node in _nodes(ray) if node.get("GPU", 0) >= 1]
    wanted = run.device if run.device == "auto" else torch.device(run.device).type
    if wanted == "cuda" and not gpu_nodes:
        raise ValueError("device 'cuda' needs a GPU on the Ray cluster, which has none. Pass device='cpu'.")
    if wanted == "cuda" or (wanted == "auto" and gpu_nodes):
        return _Slot("cuda", cpus=min(int(node.get("CPU", 0) // node["GPU"]) for node in gpu_nodes), gpus=1)
    return _Slot("cpu", cpus=1, gpus=0)


def _nodes(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _imported() -> Any:
    """The module ``ray``, told to be quiet before it is imported."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ValueError(
            '--on ray needs Ray, which is not installed here. Install it with pip install "biascope[ray]".'
        ) from error


def _connected(on: str) -> Any:
    """The module ``ray``, connected to a cluster; the connection lasts until this process ends or asks for another."""
    global _connection
    ray = _imported()
    if ray.is_initialized():
        if on in ("ray", _connection):
            return ray
        if _connection is None:
            raise ValueError(
                f"on must be 'ray' if this process is already connected to Ray, got {on!r}. Pass on='ray'."
            )
        ray.shutdown()
    try:
        address = _address(on)
        with warnings.catch_warnings(), _own_answer_to_sigterm():
            warnings.simplefilter("ignore")  # Ray warns of its own future and of files that it leaves to the collector
            settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": "critical"}
            try:
                ray.init(address, **settings)
            except ConnectionAbortedError:  # a client server that did not start; the next one mostly does
                ray.init(address, **settings)
    except (ConnectionError, RuntimeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"--on {on} needs a Ray cluster that answers, but connecting failed ({reason}). "
            "Check the address, RAY_ADDRESS and that the cluster runs the same versions of Python and Ray."
        ) from error
    _connection = on
    return ray


@contextlib.contextmanager
def _own_answer_to_sigterm() -> Iterator[None]:
    """Keep what this process answers to SIGTERM, if it does: Ray's answer is a dump of its C++ stack."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _address(on: str) -> str | None:
    """What to hand to Ray, which itself waits many minutes for a cluster that is gone.

    Raises:
        ConnectionError: If nothing listens at the address.
    """
    named = os.environ.get("RAY_ADDRESS") if on == "ray" else on
    if named:
        if not _answers(named):
            raise ConnectionError(f"nothing listens at {named}")
        return named
    last = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # Ray's note of the last one here
    return "local" if last.is_file() and not _answers(last.read_text().strip()) else None


def _answers(address: str) -> bool:
    found = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
    if found is None:
        return True  # a word like "auto" or "local": Ray's to understand
    try:
        socket.create_connection((found[1], int(found[2])), timeout=10).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _pickled_whole(cloudpickle: Any) -> Iterator[None]:
    """For the duration, pickle whole what a cluster cannot import: functions and classes of the user's own files."""
    registered = cloudpickle.list_registry_pickle_by_value()
    own = [name for name in _own_modules() if name not in registered]
    for name in own:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    # A recorded initialisation holds operators of torch, which do not pickle by themselves.
    copyreg.pickle(torch._ops.OpOverload, lambda overload: (_torch_operator, (str(overload),)))
    try:
        yield
    finally:
        copyreg.dispatch_table.pop(torch._ops.OpOverload)
        for name in own:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


def _torch_operator(name: str) -> Any:
    return operator.attrgetter(name)(torch.ops)  # such as aten.normal_.default


def _own_modules() -> list[str]:
    """Model files loaded by path, and modules found in their folders or in the working directory."""
    files = {
        name: Path(file).resolve()
        for name, module in list(sys.modules.items())
        if isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str)
        and name == module.__dict__.get("__name__")
        and name.partition(".")[0] not in ("biascope", "__main__")
    }
    loaded_by_path = [name for name in files if name.startswith("biascope_user_")]
    folders = {Path.cwd(), *(files[name].parent for name in loaded_by_path)}

    def found_in(folder: Path, name: str) -> bool:
        stem = folder.joinpath(*name.split("."))
        return files[name] in (stem.with_suffix(".py"), stem / "__init__.py")

    return loaded_by_path + [
        name for name in files if name not in loaded_by_path and any(found_in(folder, name) for folder in folders)
    ]
