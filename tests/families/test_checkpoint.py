"""Checkpoints: opened without reading, streamed, written whole or not at all, and every damage reported in one sentence."""

import json
import math
import shutil
from collections import namedtuple

import pytest
import safetensors
import torch
from checkpoint_files import Trap
from networks_under_test import batchnorm_convnet, normal
from safetensors.torch import load_file, save_file

from biascope.families import weights
from biascope.families.checkpoint import SLICE, Checkpoint
from biascope.families.checkpoint_writer import CheckpointWriter
from biascope.runs.digest import fingerprint

MIXED = {
    "a.weight": normal(7, 5, dtype=torch.float32),
    "b.half": normal(3, 3, seed=1).to(torch.bfloat16),
    "b.double": normal(4, seed=2),
    "b.float16": normal(5, seed=3).half(),
    "steps": torch.tensor(12),
    "mask": torch.tensor([True, False, True]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "none": torch.zeros(0, 3),
}


def same(first: weights.Params, second: weights.Params) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first
    )


def sharded(folder, params: weights.Params, parts: int = 2) -> None:
    """As Hugging Face writes it."""
    names = sorted(params)
    files = [f"model-{part + 1:05}-of-{parts:05}.safetensors" for part in range(parts)]
    folder.mkdir(exist_ok=True)
    for part, file in enumerate(files):
        save_file({name: params[name] for name in names[part::parts]}, folder / file, {"format": "pt"})
    places = {name: files[index % parts] for index, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def copies(folder) -> dict[str, object]:
    """The same tensors in every layout that is read."""
    save_file(MIXED, folder / "plain.safetensors", {"made": "by hand"})
    torch.save(MIXED, folder / "plain.pt")
    torch.save({"epoch": 3, "state_dict": MIXED}, folder / "training.ckpt")
    torch.save(MIXED, folder / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("face", "torch_face", "single"):
        (folder / name).mkdir()
    save_file(MIXED, folder / "face" / "model.safetensors")
    (folder / "face" / "config.json").write_text("{}")
    torch.save(MIXED, folder / "torch_face" / "pytorch_model.bin")
    save_file(MIXED, folder / "single" / "any name.safetensors")
    sharded(folder / "shards", MIXED, 3)
    (folder / "torch_shards").mkdir()
    halves = [dict(list(MIXED.items())[:4]), dict(list(MIXED.items())[4:])]
    for k, half in enumerate(halves):
        torch.save(half, folder / "torch_shards" / f"pytorch_model-{k}.bin")
    places = {name: f"pytorch_model-{k}.bin" for k, half in enumerate(halves) for name in half}
    (folder / "torch_shards" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    files = ("plain.safetensors", "plain.pt", "training.ckpt", "old.pth")
    return {name: folder / name for name in (*files, "face", "torch_face", "single", "shards", "torch_shards")}


def test_every_layout_holds_the_same_tensors_and_hash(tmp_path):
    wanted = fingerprint(MIXED)
    for name, path in copies(tmp_path).items():
        opened = Checkpoint.open(path)
        assert same(opened.params(), MIXED), name
        assert opened.fingerprint() == wanted, name
        assert opened.name == name
        assert opened.numbers == weights.count(MIXED)
    assert Checkpoint.open(tmp_path / "plain.safetensors").metadata == {"made": "by hand"}
    subset = ["b.half", "a.weight"]
    assert opened.fingerprint(subset) == fingerprint({name: MIXED[name] for name in subset})


def test_slices_join_to_the_tensor(tmp_path):
    long = {"w": normal(3, SLICE, dtype=torch.float32), "v": normal(10, dtype=torch.float32).reshape(5, 2).T}
    weights.save(long, tmp_path / "w.safetensors")
    torch.save(long, tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        opened = Checkpoint.open(tmp_path / name)
        assert [len(part) for part in opened.slices("w")] == [SLICE] * 3
        for most in (1, 3, 10, 99):
            assert torch.equal(torch.cat(list(opened.slices("v", most))), long["v"].flatten())


def header_of(about: object, values: bytes = b"") -> bytes:
    text = about if isinstance(about, bytes) else json.dumps(about).encode()
    return len(text).to_bytes(8, "little") + text + values


def entry(begin: float, end: float, shape: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


DAMAGED = {
    "empty": (b"", "header claims 0 bytes, and the file has 0"),
    "a word": (b"not weights at all", "header claims"),
    "no JSON": (header_of(b"{nonsense"), "header cannot be read"),
    "no dictionary": (header_of([1, 2]), "header cannot be read"),
    "deep": (header_of(b"[" * 100_000), "header cannot be read"),
    "metadata": (header_of({"__metadata__": [3]}), "header cannot be read"),
    "no offsets": (header_of({"w": {"dtype": "F32", "shape": [1]}}), "header cannot be read"),
    "type": (header_of({"w": entry(0, 4, [1], "F5")}, bytes(4)), "unknown type 'F5'"),
    "shape": (header_of({"w": entry(0, 4, [2])}, bytes(4)), r"4 bytes for the shape \[2\]"),
    "negative": (header_of({"w": entry(0, 4, [-1, -1])}, bytes(4)), "-1 is no length"),
    "infinite shape": (header_of({"w": entry(0, 4, [math.inf])}, bytes(4)), "inf is no length"),
    "infinite offset": (header_of({"w": entry(0, math.inf, [1])}, bytes(4)), "inf is no length"),
    "too large for a number": (header_of(b'{"w":{"dtype":"F32","shape":[1e400],"data_offsets":[0,4]}}', bytes(4)), "inf is no length"),
    "half a length": (header_of({"w": entry(0, 4, [1.5])}, bytes(4)), "1.5 is no length"),
    "a truth value": (header_of({"w": entry(0, 4, [True])}, bytes(4)), "True is no length"),
    "a number in quotes": (header_of({"w": entry(0, 4, "1")}, bytes(4)), "'1' is no length"),
    "twice": (header_of(b'{"w":' + json.dumps(entry(0, 4, [1])).encode() + b',"w":{}}', bytes(4)), "has 'w' twice"),
    "overlap": (header_of({"v": entry(0, 8, [2]), "w": entry(4, 12, [2])}, bytes(12)), "w overlaps another tensor"),
    "gap": (header_of({"v": entry(0, 4, [1]), "w": entry(8, 12, [1])}, bytes(12)), "w follows a gap"),
    "truncated": (header_of({"w": entry(0, 400, [100])}, bytes(399)), "the file is truncated: .* bytes were written"),
    "too long": (header_of({"w": entry(0, 4, [1])}, bytes(9)), "continues after its last tensor"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_one_sentence(tmp_path, kind):
    content, message = DAMAGED[kind]
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        Checkpoint.open(tmp_path / "w.safetensors")
    assert str(caught.value).startswith(
        f"{tmp_path / 'w.safetensors'} must be a whole safetensors file, but is damaged: "
    )
    assert str(caught.value).endswith("Download or save it again.")


def test_folders_that_are_not_whole_are_one_sentence(tmp_path):
    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Checkpoint.open(tmp_path / "m")

    with pytest.raises(ValueError, match="must exist"):
        Checkpoint.open(tmp_path / "none")
    (tmp_path / "m").mkdir()
    refused("must hold one file of weights or shards with an index .* but holds none")
    params = {name: MIXED[name] for name in ("a.weight", "b.half", "b.double")}
    sharded(tmp_path / "m", params)
    index = tmp_path / "m" / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    shard = tmp_path / "m" / "model-00002-of-00002.safetensors"
    shard.rename(tmp_path / "away")
    refused(r"must hold all 2 shards of its index, but model-00002-of-00002\.safetensors is missing")
    save_file({**load_file(tmp_path / "away"), "a.weight": MIXED["a.weight"]}, shard)
    refused(r"must hold a tensor once, but a\.weight is in two shards")
    shutil.copy(tmp_path / "away", shard)
    index.write_text(json.dumps({"weight_map": {**good["weight_map"], "c": shard.name}}))
    refused(r"wrong about 1 \(c\)")
    index.write_text(json.dumps({"weight_map": {**good["weight_map"], "a.weight": shard.name}}))
    refused(r"wrong about 1 \(a\.weight\)")
    index.write_text(json.dumps({"weight_map": {**good["weight_map"], "a.weight": "../away"}}))
    refused("must list files in its own folder")
    index.write_text('{"weight_map": {"a": "x", "a": "y"}}')
    refused("must list a tensor once, but lists 'a' twice")
    index.write_text("{")
    refused("must be an index of shards")
    index.unlink()
    refused("but holds 2")


def test_a_file_without_tensors_is_refused(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(header_of({}))
    with pytest.raises(ValueError, match="must hold tensors by name, but holds none"):
        Checkpoint.open(tmp_path / "w.safetensors")


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_named_and_never_run(tmp_path, zipped):
    content = {"w": torch.zeros(1), "trap": Trap(str(tmp_path / "sprung"))}
    torch.save(content, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(
        ValueError, match=r"could not be read as one \(it asks to run (posix|nt)\.mkdir, and code is never run\)"
    ):
        Checkpoint.open(tmp_path / "w.pt")
    assert not (tmp_path / "sprung").exists()


def write(path, params: weights.Params, step: int = 4, **how) -> None:
    with CheckpointWriter(path, params, **how) as writer:
        for name, tensor in params.items():
            for part in tensor.flatten().split(step) if tensor.numel() else []:
                writer.write(name, part)


def test_what_is_written_is_read_by_every_reader(tmp_path):
    write(tmp_path / "w.safetensors", MIXED, metadata={"made": "here", "mark": "é"})
    assert same(load_file(tmp_path / "w.safetensors"), MIXED)
    assert same(Checkpoint.open(tmp_path / "w.safetensors").params(), MIXED)
    with safetensors.safe_open(str(tmp_path / "w.safetensors"), "pt") as file:
        assert file.metadata() == {"format": "pt", "made": "here", "mark": "é"}
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
    state = batchnorm_convnet().state_dict()
    write(tmp_path / "new" / "model.safetensors", state)
    assert same(load_file(tmp_path / "new" / "model.safetensors"), dict(state))


def test_shards_have_an_index_and_replace_older_ones(tmp_path):
    folder = tmp_path / "out"
    (tmp_path / "out").mkdir()
    params = {f"layer{k}": normal(10, seed=k, dtype=torch.float32) for k in range(7)}
    write(folder, params, shard_bytes=100)
    files = [f"model-{k:05}-of-00004.safetensors" for k in range(1, 5)]
    assert sorted(path.name for path in folder.iterdir()) == [*files, "model.safetensors.index.json"]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 7 * 40
    assert same({name: load_file(folder / file)[name] for name, file in index["weight_map"].items()}, params)
    assert same(Checkpoint.open(folder).params(), params)
    with pytest.raises(ValueError, match=r"must not exist yet, but .*out does\. Pass another name, or --overwrite\."):
        write(folder, params)
    (folder / "config.json").write_text("{}")
    write(folder, params, shard_bytes=160, overwrite=True)
    assert same(Checkpoint.open(folder).params(), params)
    assert len(list(folder.iterdir())) == 2 + 1 + 1
    write(folder, params, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert same(Checkpoint.open(folder).params(), params)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", ["w.safetensors", "shards"])
def test_nothing_is_left_after_an_interruption(tmp_path, error, name):
    def interrupted() -> None:
        with CheckpointWriter(tmp_path / name, MIXED, shard_bytes=50) as writer:
            writer.write("a.weight", MIXED["a.weight"])
            writer.write("b.half", MIXED["b.half"])
            assert len(list(tmp_path.iterdir())) == 1
            raise error

    with pytest.raises(error):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_what_was_there_stays_after_an_error(tmp_path):
    write(tmp_path / "w.safetensors", MIXED)
    before = (tmp_path / "w.safetensors").read_bytes()
    with (
        pytest.raises(ValueError, match=r"must be written completely, but b\.half was not"),
        CheckpointWriter(tmp_path / "w.safetensors", MIXED, overwrite=True) as writer,
    ):
        writer.write("a.weight", MIXED["a.weight"])
    assert (tmp_path / "w.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_refusals_come_before_anything_is_written(tmp_path, monkeypatch):
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"must be a file, but .* is a folder"):
        CheckpointWriter(tmp_path / "folder.safetensors", MIXED, overwrite=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"must be a folder, but .* is a file"):
        CheckpointWriter(tmp_path / "file", MIXED, overwrite=True)
    with pytest.raises(ValueError, match="size of a shard must be positive"):
        CheckpointWriter(tmp_path / "shards", MIXED, shard_bytes=0)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 900, 100))
    with pytest.raises(ValueError, match=r"^The disk must have room for .* GB, but .* has 0\.00 GB left\. Free some"):
        CheckpointWriter(tmp_path / "new" / "w.safetensors", MIXED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.safetensors"]


def test_metadata_may_be_filled_in_later_but_not_grow(tmp_path):
    with CheckpointWriter(tmp_path / "w.safetensors", {"w": torch.ones(2)}, metadata={"hash": "0" * 16}) as writer:
        writer.write("w", torch.ones(2))
        writer.metadata["hash"] = "f" * 16
    opened = Checkpoint.open(tmp_path / "w.safetensors")
    assert opened.metadata["hash"] == "f" * 16
    assert opened.params()["w"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="must not grow"), CheckpointWriter(tmp_path / "v.safetensors", {}) as writer:
        writer.metadata["more"] = "x" * 100
