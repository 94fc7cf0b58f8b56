"""Sweeps on a real Ray cluster of two nodes on this machine, with workers and nodes lost in the middle."""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from biascope import cli
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.source import family_of
from biascope.kernels.gram import tangent_gram
from biascope.measures.feature_elimination import feature_elimination
from biascope.runs import cluster
from biascope.runs.run import Run
from biascope.runs.trials import Group, Sweep
from biascope.tasks.samples import samples_of
from biascope.training.recipe import Recipe

# Nodes started from this process leave files and processes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
NO_RAY = "Ray is not installed: nothing is tested on a cluster"
STORE = 80 * 2**20
KEYS = [f"trial {index:02d}" for index in range(12)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def on_ray() -> Iterator[Any]:
    """Found through RAY_ADDRESS: a head with one core, and a second node with one core that says it has a GPU."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip(NO_RAY)
    cluster._imported()
    from ray.cluster_utils import Cluster

    port = free_port()
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "ray_client_server_port": port}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # the head forks for every client
        patch.setenv("RAY_worker_niceness", "0")  # other tests on the same cores would come first
        nodes = Cluster(initialize_head=True, head_node_args=head)
        nodes.second = nodes.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)
    nodes.client_address = f"ray://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", nodes.address)
        yield nodes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules["ray"].shutdown()
        nodes.shutdown()


def training(log: Path, nodes: int = 0, kill: str = "", hang_on: str = ""):
    """Work that trains linear models and notes each beginning.

    It goes on when so many nodes have begun some group; dies the first time it has the trial ``kill``, and never ends on
    the node ``hang_on``.
    """

    def work(keys, run, method):
        import ray

        place = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        first = not log.exists() or kill not in log.read_text()
        with log.open("a") as file:
            file.write(f"{','.join(keys)};{os.getpid()};{place}\n")
        if first and kill in keys:
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + (600 if place == hang_on else 200)
        while place == hang_on or len({line.split(";")[2] for line in log.read_text().splitlines()}) < nodes:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(64, 10, generator=generator), torch.randn(64, generator=generator)
        weights = torch.stack([torch.full((10,), 0.1 * int(key[-2:])) for key in keys])
        for _ in range(30):
            gradients = ((weights @ inputs.T - labels) @ inputs) / 64
            weights = weights - method["rate"] * gradients - 1e-3 * gradients.sum(0)
        threads = torch.tensor(torch.get_num_threads())
        return {key: {"weights": weights[index], "threads": threads} for index, key in enumerate(keys)}

    return work


def pairs(keys):
    return [Group(tuple(keys[i : i + 2]), {"rate": 0.1}) for i in range(0, len(keys), 2)]


def beginnings(log: Path) -> list[list[str]]:
    return [line.split(";") for line in log.read_text().splitlines()]


def assert_every_trial_once_and_as_in_this_process(found, folder: Path) -> None:
    alone = Sweep("work", Run(device="cpu"), code=()).outcomes(KEYS, training(folder / "alone"), plan=pairs)
    assert list(found) == KEYS
    assert all(torch.equal(found[key]["weights"], alone[key]["weights"]) for key in KEYS)
    assert len(list(folder.glob("trials/*/group-*.safetensors"))) == 6
    again = Sweep("work", Run(folder, device="cpu"), code=()).outcomes(
        KEYS, pytest.fail, plan=pytest.fail
    )  # all there, in any place
    assert all(torch.equal(found[key]["weights"], again[key]["weights"]) for key in KEYS)


def test_a_killed_worker_loses_no_trial_and_doubles_none(on_ray, tmp_path):
    log, run = tmp_path / "log", Run(tmp_path, device="cpu", on="ray")
    found = Sweep("work", run, code=()).outcomes(KEYS, training(log, nodes=2, kill="trial 05"), plan=pairs)
    assert_every_trial_once_and_as_in_this_process(found, tmp_path)
    rows = beginnings(log)
    assert sorted(keys for keys, _, _ in rows) == sorted(
        [",".join(group.keys) for group in pairs(KEYS)] + ["trial 04,trial 05"]
    )
    assert len({node for _, _, node in rows}) == 2  # both nodes had their share
    assert all(int(outcome["threads"]) == 1 for outcome in found.values())  # as many as the task has cores


def test_a_lost_node_loses_no_trial_and_doubles_none(on_ray, tmp_path):
    log, run = tmp_path / "log", Run(tmp_path, device="cpu", on="ray")
    cluster.device_type(run)  # connected to one of the nodes that stay
    third, lost, ended = on_ray.add_node(num_cpus=1, object_store_memory=STORE), [], threading.Event()

    def lose_the_third_node() -> None:
        while not lost and not ended.is_set():  # however slow the machine: without a loss the work never ends
            if log.exists() and any(node == third.node_id for _, _, node in beginnings(log)):
                on_ray.remove_node(third, allow_graceful=False)
                lost.append(len(list(tmp_path.glob("trials/*/group-*.safetensors"))))
            time.sleep(0.02)

    thread = threading.Thread(target=lose_the_third_node)
    thread.start()
    try:
        found = Sweep("work", run, code=()).outcomes(KEYS, training(log, nodes=3, hang_on=third.node_id), plan=pairs)
    finally:
        ended.set()
        thread.join()
    assert lost
    assert lost[0] < 6  # in the middle
    assert_every_trial_once_and_as_in_this_process(found, tmp_path)
    begun = [keys for keys, _, _ in beginnings(log)]
    assert set(begun) == {",".join(group.keys) for group in pairs(KEYS)}
    assert len(begun) > 6  # what ran on the lost node ran again


def test_an_exception_of_a_trial_is_raised_here_and_what_is_finished_stays(on_ray, tmp_path):
    run, plan = Run(tmp_path, device="cpu", on="ray"), lambda keys: [Group((key,), {"rate": 0.1}) for key in keys]

    def fails(keys, run, method):
        if keys[0] == "trial 03":
            while len(list(tmp_path.glob("trials/*/group-*.safetensors"))) < 3:  # the others finish first
                time.sleep(0.02)
            raise ValueError("epochs must be positive, got 0. Pass epochs=20.")
        return {key: {} for key in keys}

    with pytest.raises(ValueError, match=r"^epochs must be positive, got 0\. Pass epochs=20\.$"):
        Sweep("work", run, code=()).outcomes(KEYS[:4], fails, plan=plan)
    resumed: list[str] = []
    done = Sweep("work", Run(tmp_path), code=()).outcomes(
        KEYS[:4], lambda keys, run, method: {key: resumed.append(key) or {} for key in keys}, plan=pytest.fail
    )
    assert list(done) == KEYS[:4]
    assert resumed == ["trial 03"]


def test_a_group_that_always_ends_its_process_is_given_up_with_a_sentence(on_ray, monkeypatch):
    monkeypatch.setattr(cluster, "RETRIES", 1)

    def dies(keys, run, method):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(
        ValueError, match=r"^The process that computes trial 'a' must not end early, but did so more than 1 times"
    ):
        cluster.run_groups(dies, [Group(("a",))], Run(device="cpu", on="ray"), pytest.fail)


@pytest.mark.slow
def test_control_c_leaves_nothing_running_on_the_cluster(on_ray, tmp_path):
    done: list[str] = []

    def long_but_for_the_first(keys, run, method):
        try:
            (tmp_path / "first").touch(exist_ok=False)
        except FileExistsError:
            time.sleep(600)
        return {key: {} for key in keys}

    def interrupt(group, outcomes):
        done.extend(outcomes)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.run_groups(
            long_but_for_the_first, [Group((key,)) for key in "abcd"], Run(device="cpu", on="ray"), interrupt
        )
    assert len(done) == 1
    groups = [Group((key,)) for key in "efgh"]
    begin = time.monotonic()
    cluster.run_groups(
        lambda keys, run, method: {keys[0]: {}},
        groups,
        Run(device="cpu", on="ray"),
        lambda _, found: done.extend(found),
    )
    assert sorted(done[1:]) == ["e", "f", "g", "h"]
    assert time.monotonic() - begin < 60


@pytest.mark.slow
def test_work_goes_to_the_gpus_where_there_are_some(on_ray):
    on_gpu, found = Run(on="ray", data_root="there"), {}
    assert cluster.device_type(on_gpu) == "cuda"
    assert cluster.device_type(Run(device="cpu", on="ray")) == "cpu"

    def where(keys, run, method):
        import ray

        context = ray.get_runtime_context()
        assert run == Run(device="cuda", progress=False, data_root="there")
        assert context.get_assigned_resources() == {"CPU": 1.0, "GPU": 1.0}
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        return {key: {context.get_node_id(): torch.tensor(0)} for key in keys}

    cluster.run_groups(where, [Group(("a",)), Group(("b",))], on_gpu, lambda group, outcomes: found.update(outcomes))
    assert [list(outcome) for outcome in found.values()] == [[on_ray.second.node_id]] * 2


def test_the_users_own_files_travel_with_the_work(on_ray, tmp_path):
    (tmp_path / "own_blocks.py").write_text(
        "import torch\nclass Block(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x).relu()\n"
    )
    (tmp_path / "own_net.py").write_text(
        "import torch\nfrom own_blocks import Block\nWIDTH = 3\n"
        "class Net(torch.nn.Sequential):\n    pass\n"
        "def build():\n    return Net(Block(4, WIDTH), torch.nn.Linear(WIDTH, 1))\n"
    )
    family = family_of(f"{tmp_path / 'own_net.py'}:build", shape=(4,))

    def draw(keys, run, method):
        return {key: dict(family.draw(2, seed=int(key), run=run).params) for key in keys}

    run, plan = Run(device="cpu", on="ray"), lambda keys: [Group(tuple(keys))]
    there = Sweep("work", run, code=()).outcomes(["1", "2"], draw, plan=plan)
    here = Sweep("work", Run(device="cpu"), code=()).outcomes(["1", "2"], draw, plan=plan)
    for key, params in here.items():
        assert params["0.weight"].shape == (2, 3, 4)
        assert all(torch.equal(there[key][name], value) for name, value in params.items())
    from ray import cloudpickle

    assert not cloudpickle.list_registry_pickle_by_value()  # nothing is left set


def test_samples_travel_with_the_work(on_ray, tmp_path):
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (48, 1, 4, 4), dtype=np.uint8), np.arange(48) % 2
    path = tmp_path / "samples.npz"
    np.savez(path, x_train=images[:32], y_train=labels[:32], x_test=images[32:], y_test=labels[32:])
    data = samples_of(str(path))
    path.unlink()  # no node can read it any more
    family = Family.initialised(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)), name="linear")
    how = {"shares": (0.0, 0.5), "draws": 32, "recipe": Recipe("sgd", 0.1, momentum=0.9, epochs=1), "repeats": 2}
    there = feature_elimination(family, data, **how, run=Run(device="cpu", on="ray", data_root=tmp_path / "none"))
    here = feature_elimination(family, data, **how, run=Run(device="cpu"))
    assert np.array_equal(there.accuracy, here.accuracy)


@pytest.mark.slow
def test_workers_share_one_tangent_kernel(on_ray, tmp_path):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    x = torch.randn(20, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    network = Network.of(module)
    there = tangent_gram(network, x, panels=5, run=Run(tmp_path / "there", device="cpu", on="ray"))
    here = tangent_gram(network, x, panels=5, run=Run(tmp_path / "here", device="cpu"))
    assert torch.equal(there.matrix, here.matrix)
    assert len(list((tmp_path / "there").glob("trials/*/group-*.safetensors"))) == 5


# In a process of its own, as anybody's would be: Ray's C++ threads of an earlier connection, closed in this process
# between tests, have taken it down with them while the next one opened.
ELSEWHERE = """
import sys
from pathlib import Path
from test_ray import KEYS, pairs, training
from biascope.runs import cluster
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.runs.run import Run
from biascope.runs.trials import Sweep
address, folder = sys.argv[1], Path(sys.argv[2])
run = Run(folder, device="cpu", on=address)
Sweep("work", run, code=()).outcomes(KEYS, training(folder / "log"), plan=pairs)
print(cluster.device_type(run))
"""


@pytest.mark.slow
def test_a_cluster_elsewhere_is_reached_by_its_address(on_ray, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, on_ray.client_address, str(tmp_path)],
        cwd=Path(__file__).parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cpu\n"
    found = Sweep("work", Run(tmp_path, device="cpu"), code=()).outcomes(KEYS, pytest.fail, plan=pytest.fail)
    assert_every_trial_once_and_as_in_this_process(found, tmp_path)


FRESH = """
import os, signal, sys, torch
from biascope.runs.run import Run
from biascope.runs.trials import Group, Sweep
marker = sys.argv[1]
def work(keys, run, method):
    if not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {key: {"value": torch.tensor(float(key))} for key in keys}
plan = lambda keys: [Group((key,)) for key in keys]
found = Sweep("work", Run(on="ray", device="cpu"), code=()).outcomes(["1", "2"], work, plan=plan)
print({key: float(outcome["value"]) for key, outcome in found.items()})
"""


def test_without_a_cluster_a_local_one_serves_and_standard_output_stays_ours(tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip(NO_RAY)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "killed once")],
        env={**environment, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'1': 1.0, '2': 2.0}\n"


STOPPED = """
import os, signal, sys
from biascope import cli
from biascope.runs import trials
number, write = int(sys.argv.pop(1)), trials.Sweep._write
def written_and_stopped(self, group, outcomes):
    write(self, group, outcomes)
    os.kill(os.getpid(), number)
trials.Sweep._write = written_and_stopped
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_command_that_is_stopped_says_so_ends_its_cluster_and_goes_on(number, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip(NO_RAY)
    place = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a path that is short enough for Ray's sockets
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    words = "measure directional_bias mlp --input 1x6x6 --noise 0,1,2 --every 3 --samples 64 --test 32 --epochs 1 --device cpu"

    try:
        stopped = subprocess.run(
            [sys.executable, "-c", STOPPED, str(number), *words.split(), "--on", "ray", "--out", str(tmp_path)],
            env={**others, "RAY_ADDRESS": "local", "RAY_TMPDIR": str(place), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        # On a busy machine Ray itself logs that its metrics agent is late, and our own progress has a line every half minute.
        told = [
            line
            for line in stopped.stderr.splitlines()
            if "metrics exporter agent" not in line and " so far" not in line
        ]
        assert [line for line in told if line] == [
            "Stopped. Finished work is saved. The same command resumes from there."
        ], stopped.stderr
        assert (stopped.returncode, stopped.stdout) == (128 + number, "")
        assert [*commands_naming(place)] == []
        (kept,) = tmp_path.glob("trials/*/group-*.safetensors")
        stamp = kept.stat().st_mtime_ns
        resumed = CliRunner().invoke(cli.app, [*words.split(), "--out", str(tmp_path)])  # without a cluster
        assert resumed.exit_code == 0, resumed.output
        assert kept.stat().st_mtime_ns == stamp
        assert len(list(tmp_path.glob("trials/*/group-*.safetensors"))) > 1
    finally:
        shutil.rmtree(place, ignore_errors=True)


def commands_naming(folder: Path) -> Iterator[str]:
    """Processes of this machine whose command line names a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words:
                yield words


def test_without_ray_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = '--on ray needs Ray, which is not installed here. Install it with pip install "biascope[ray]".'
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cluster.run_groups(pytest.fail, [Group(("a",))], Run(on="ray"), pytest.fail)


def test_a_cluster_that_does_not_answer_is_a_sentence_at_once(monkeypatch):
    pytest.importorskip("ray", reason=NO_RAY).shutdown()
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ValueError, match=rf"^--on ray://{address} needs a Ray cluster that answers, .*nothing listens"):
        cluster.device_type(Run(on=f"ray://{address}"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        ValueError, match=rf"^--on ray needs a Ray cluster .*nothing listens at {address}\)\. Check the"
    ):
        cluster.device_type(Run(on="ray"))


def test_a_note_of_a_cluster_that_is_gone_does_not_mislead(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert cluster._address("ray") is None  # Ray's own search
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{free_port()}")
    assert cluster._address("ray") == "local"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{listening.getsockname()[1]}")
        assert cluster._address("ray") is None
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert cluster._address("ray") == "auto"


class Nodes:
    """A cluster of which only the nodes are known."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.resources = resources

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        return [gone, *({"Alive": True, "Resources": each} for each in self.resources)]


@pytest.mark.parametrize(
    ("nodes", "device", "slot", "count"),
    [
        ([{"CPU": 8.0}, {"CPU": 4.0}], "auto", ("cpu", 1, 0), 12),
        ([{"CPU": 8.0}, {"CPU": 64.0, "GPU": 8.0}], "auto", ("cuda", 8, 1), 8),
        ([{"CPU": 8.0, "GPU": 2.0}, {"CPU": 6.0, "GPU": 4.0}], "cuda", ("cuda", 1, 1), 6),
        ([{"GPU": 2.0}], "cuda:1", ("cuda", 0, 1), 2),
        ([{"CPU": 8.0, "GPU": 2.0}], "cpu", ("cpu", 1, 0), 8),
        ([{}], "cpu", ("cpu", 1, 0), 1),
    ],
)
def test_a_group_takes_a_gpu_with_its_share_of_cores_or_one_core(nodes, device, slot, count):
    found = cluster._slot(Nodes(*nodes), Run(device=device, on="ray"))
    assert (found.device, found.cpus, found.gpus) == slot
    assert found.count(Nodes(*nodes)) == count


def test_a_gpu_that_no_node_has_is_a_sentence():
    with pytest.raises(ValueError, match=r"^device 'cuda' needs a GPU on the Ray cluster, which has none\. Pass"):
        cluster._slot(Nodes({"CPU": 8.0}), Run(device="cuda", on="ray"))
