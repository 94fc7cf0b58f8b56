"""Every command that keeps its work, killed in the middle of a write: started again it ends as if nothing had happened."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import command_tree
import numpy as np
import pytest
import torch
from killing import started
from safetensors.numpy import load_file
from safetensors.torch import save_file

from biascope.editing.encoder_source import VIT, headless_vit, vit_input
from biascope.editing.encoders.encoder import Encoder
from biascope.families.network import Network
from biascope.papers.task_arithmetic2023.vit_pretraining import save_vit
from biascope.results import registry
from biascope.runs.randomness import forked_rng

MODEL = """
from torch import nn

def build(outputs=3):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, outputs))

def two():
    return build(2)

def one():
    return build(1)

def flat():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
"""
TINY = VIT | {"depth": 1, "width": 16, "heads": 2, "mlp": 16, "image_size": 16, "patch": 8}
DATA = "--data images.npz --samples 24,12"
CLASSES = f"{DATA} --positive 0"
SMALL_SIREN = "siren --set width=8"
# What each command is asked; a measurement follows its name. The run folder is "run" everywhere.
COMMANDS = {
    "scan": f"net.py:build {DATA} --draws 32 --estimator exact",
    "compare": "net.py:build net.py:flat --input 1x6x6 --draws 32 --estimator exact",
    "explain": "net.py:build --input 1x6x6 --draws 32 --inputs 4",
    "kernel": f"net.py:build {DATA} --leading 5 --draws 3 --matrix matrix.npy",
    "patterns": "net.py:build --patches images.npz --clusters 4 --draws 3 --positive 0",
    "inr fit": "signal.npy --set width=8 --steps 12",
    "inr advise": "signal.npy --candidates siren=5,relu --points 64 --draws 2 --width 8 --steps 3 --check",
    "edit": "vit --weights tiny.safetensors --tasks images.npz,others.npz --steps 3 --samples 24,6,12 "
    "--what addition,disentanglement --points 8 --grid 3 --save-vectors",
    "merge check": "base.safetensors a.safetensors b.safetensors --model net.py:flat --data images.npz --grid 3",
    "reproduce": "patterns2021 3 --effort smoke",
    "measure directional_bias": "net.py:two --input 1x6x6 --noise 0,1 --samples 64 --test 32 --epochs 2",
    "measure linearized_training": f"net.py:one {CLASSES} --epochs 2 --repeats 2",
    "measure kernel_rotation": f"net.py:one {CLASSES} --leading 4 --energy 3 --kernel_samples 16 --checkpoints 3 --epochs 2",
    "measure geometry_evolution": f"net.py:one {CLASSES} --draws 4 --geometry_draws 64",
    "measure geometry_motion": f"net.py:one {CLASSES} --runs 2 --epochs 2 --checkpoints 2 --geometry_draws 64",
    "measure feature_elimination": f"net.py:two {CLASSES} --shares 0,0.5 --epochs 2 --repeats 2",
    "measure aliasing": f"{SMALL_SIREN} --steps 3 --repeats 3",
    "measure recovery": f"{SMALL_SIREN} --data signal.npy --steps 3 --repeats 3",
    "measure dictionary": f"{SMALL_SIREN} --data signal.npy --points 32 --atoms 2 --draws 3",
    "measure pattern_statistics": "--samples 20 --k 8 --runs 2 --epochs 5 --test 20",
    "measure pooling_theory": "--size 16 --samples 50 --train 20 --iterations 5 --repeats 2 --curves 2",
}

# Commands with a folder for results that keep no work: they take seconds, or as long as reading their files.
KEEP_NOTHING = {"merge apply", "merge diff", "merge extract", "report"}
MEASURED_ABOVE = {
    "anisotropy_directions",
    "average_geometry",
    "channel_patterns",
    "complexity",
    "equivariance",
    "guessing",
    "mean_gradient",
    "memory",
    "sample_score",
    "sensitivity",
    "tangent_kernel",
}


def test_every_command_that_keeps_work_is_killed_here() -> None:
    with_a_folder = {
        name
        for name, command in command_tree.COMMANDS.items()
        if any("--out" in parameter.opts for parameter in command.params)
    }
    measured = {f"measure {name}" for name in registry.names() if not registry.find(name).command}
    alone = {name for name in COMMANDS if not name.startswith("measure ")}
    assert with_a_folder - {"measure"} == alone | KEEP_NOTHING
    assert measured == (COMMANDS.keys() - alone) | {f"measure {name}" for name in MEASURED_ABOVE}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read: a file of networks, images, a signal, a small ViT and models that were tuned from a base."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "net.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    for name in ("images", "others"):
        x, y = generator.integers(0, 255, (42, 6, 6)).astype(np.uint8), np.arange(42) % 3
        np.savez(folder / f"{name}.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    np.save(folder / "signal.npy", generator.uniform(size=(8, 8)))
    with forked_rng(0):
        network = Network.of(headless_vit(**TINY))
        base = {"1.weight": 0.3 * torch.randn(3, 36), "1.bias": torch.zeros(3)}
        for name in ("base", "a", "b"):
            move = torch.zeros(3, 36) if name == "base" else 0.1 * torch.randn(3, 36)
            save_file({**base, "1.weight": base["1.weight"] + move}, folder / f"{name}.safetensors")
    save_vit(Encoder(network, vit_input(16), "tiny", "image"), folder / "tiny.safetensors", settings=TINY)
    return folder


def pieces(writes: list[str]) -> list[int]:
    """Which writes, counted from 1, were of finished pieces of work."""
    return [
        number for number, path in enumerate(writes, 1) if re.search(r"/(trials/.*|unfinished)\.safetensors$", path)
    ]


def stamps(folder: Path) -> dict[Path, int]:
    """When each finished piece of work was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("trials/*/*.safetensors")}


# What tells when and how a run went, and not what it found; a digest is taken over it.
CIRCUMSTANCES = ("seconds", "date", "digest", "arrays")


def found_in(path: Path) -> Any:
    """What a file holds."""
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    return path.read_bytes()


def assert_alike(one: Any, other: Any, place: str) -> None:
    """Equal but for circumstances and for rounding: gradients are summed in strides, and these begin anew where a run goes on."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one.keys() - set(CIRCUMSTANCES):
            assert_alike(one[key], other[key], f"{place} {key}")
    elif isinstance(one, list):
        assert len(one) == len(other), place
        for index, (here, there) in enumerate(zip(one, other, strict=True)):
            assert_alike(here, there, f"{place} {index}")
    elif isinstance(one, float) or (isinstance(one, np.ndarray) and one.dtype.kind == "f"):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-10, err_msg=place)
    else:
        assert np.array_equal(one, other), place


def files(folder: Path) -> dict[str, Path]:
    """What a run left, by name; arrays are named by their digest, and a report and compiled Python tell the time."""
    left_out = ("seconds.json", "report.html", "told.txt", "writes.jsonl")
    every = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in left_out and path.parent.name != "__pycache__"
    ]
    return {re.sub(r"arrays-\w+", "arrays", str(path.relative_to(folder))): path for path in every}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_twice_it_ends_as_if_it_had_not_been(name: str, prepared: Path, tmp_path: Path) -> None:
    words = f"{name} {COMMANDS[name]} --device cpu --precision float64 --out run".split()
    straight, killed = (Path(shutil.copytree(prepared, tmp_path / each)) for each in ("straight", "killed"))
    whole = started(words, straight)
    assert whole.status == 0, whole.told
    parts = pieces(whole.writes)
    assert parts, whole.writes

    middle = started(words, killed, kill_at=parts[len(parts) // 2])
    assert middle.status == -signal.SIGKILL, middle.told
    assert list(killed.rglob(".*.partial"))
    kept = stamps(killed)

    at_the_end = started(words, killed, kill_at=Path(whole.writes[-1]).name)
    assert at_the_end.status == -signal.SIGKILL, at_the_end.told
    assert kept.items() <= stamps(killed).items()
    kept = stamps(killed)

    resumed = started(words, killed)
    assert resumed.status == 0, resumed.told
    assert stamps(killed) == kept
    done = [len(pieces(each.writes)) for each in (middle, at_the_end, resumed)]
    assert done == [len(parts) // 2, len(parts) - len(parts) // 2, 0]
    left, expected = files(killed), files(straight)
    assert left.keys() == expected.keys()
    for place, path in expected.items():
        assert_alike(found_in(path), found_in(left[place]), place)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_can_be_answered_leaves_nothing_half_written(
    by: signal.Signals, prepared: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "stopped"))
    words = f"scan {COMMANDS['scan']} --device cpu --out run".split()
    stopped = started(words, folder, kill_at=9, by=by)
    assert stopped.status == 128 + by
    assert stopped.told == "\nStopped. Finished work is saved. The same command resumes from there.\n"
    assert len(stopped.writes) == 8
    assert list(folder.rglob(".*.partial")) == []


def test_a_merge_that_was_killed_begins_again(prepared: Path, tmp_path: Path) -> None:
    """It keeps nothing, and leaves nothing half-written: neither a file nor a folder of shards."""
    for out in ("merged.safetensors", "merged"):
        command = f"merge apply base.safetensors a.safetensors b.safetensors --weight 0.5 --out {out} --shard-size 440"
        words = f"{command} --report-out run".split()
        straight, killed = (Path(shutil.copytree(prepared, tmp_path / out / each)) for each in ("straight", "killed"))
        assert started(words, straight).status == 0
        stopped = started(words, killed, kill_at=out)
        assert stopped.status == -signal.SIGKILL, stopped.told
        assert not (killed / out).exists()
        assert list(killed.glob(".*.partial"))
        again = started(words, killed)
        assert again.status == 0, again.told
        left, expected = files(killed), files(straight)
        assert left.keys() == expected.keys()
        for place, path in expected.items():
            assert_alike(found_in(path), found_in(left[place]), place)
