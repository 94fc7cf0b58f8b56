"""Files are whole or absent, and nothing is left beside them."""

import os
import time
from pathlib import Path

import pytest

from biascope.runs import files
from biascope.runs.files import (
    folder_name,
    make_writable,
    partial_name,
    path_words,
    put_in_place,
    write_atomically,
    write_first,
    written,
)


def test_a_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, b"before")
    with written(path) as temporary:
        temporary.write_bytes(b"after")
        assert path.read_bytes() == b"before"
        assert temporary.parent == path.parent  # a rename works only within one disk
    assert path.read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")

    def fail() -> None:
        with written(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_disk_that_refuses_leaves_nothing(tmp_path, monkeypatch):
    def refuse(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", refuse)
    for write in (write_atomically, write_first):
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "a.txt", b"data")
    assert os.listdir(tmp_path) == []


def test_the_first_of_several_writers_stays(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_first(path, b"first")
    write_first(path, b"second")
    assert path.read_bytes() == b"first"

    def without_links(*names: object) -> None:
        raise PermissionError

    monkeypatch.setattr(files.os, "link", without_links)
    write_first(path, b"third")
    assert path.read_bytes() == b"third"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_is_not_whole_has_a_hidden_name_of_its_own(tmp_path):
    one, other = partial_name(tmp_path / "a.txt"), partial_name(tmp_path / "a.txt")
    assert one != other
    assert one.name.startswith(".a.txt.")
    one.write_bytes(b"whole")
    put_in_place(one, tmp_path / "a.txt")
    make_writable(tmp_path)
    assert os.listdir(tmp_path) == ["a.txt"]


DEAD = "999999999"


def test_what_a_dead_process_left_goes_at_the_first_write_beside_it(tmp_path):
    file, folder = (
        tmp_path / f".{name}.biascope-{DEAD}-{files._machine}-0badcafe.partial" for name in ("a.txt", "model")
    )
    file.write_bytes(b"half")
    folder.mkdir()
    (folder / "shard").write_bytes(b"half")
    write_atomically(tmp_path / "b.txt", b"whole")
    assert os.listdir(tmp_path) == ["b.txt"]


def test_only_what_is_ours_and_abandoned_goes(tmp_path):
    here = partial_name(tmp_path / "a.txt").name
    elsewhere = here.replace(
        f".biascope-{os.getpid()}-{files._machine}-", f".biascope-{DEAD}-{'0' * 8}-"
    )  # of a machine that shares the disk
    others = [here, elsewhere, ".download.partial", f".a.{DEAD}.partial", f".b.{DEAD}-0badcafe.partial"]
    for name in others:
        (tmp_path / name).write_bytes(b"half")
    make_writable(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    long_ago = time.time() - 2 * files._ABANDONED
    for name in others:
        os.utime(tmp_path / name, (long_ago, long_ago))
    make_writable(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(others[2:])


def test_folder_names_are_readable_and_safe() -> None:
    assert folder_name("lenet", {"pooling": "average"}, None) == "lenet-pooling=average"
    assert folder_name("model.py:build", {}, None) == "model"
    assert folder_name("a/b/model.py:build", {}, Path("x/epoch-3.pt")) == "a__b__model@x__epoch-3.pt"
    assert folder_name("a/model.py:wide", {}, None) == "a__model-wide"
    assert folder_name("package.module:build", {}, None) == "package.module"
    assert "/" not in folder_name("../../x:y", {}, None)


def test_different_subjects_have_different_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subjects = [
        ("lenet", {}, None),
        ("lenet.py:build", {}, None),
        ("net.py:build", {}, None),
        ("a/net.py:build", {}, None),
        ("b/net.py:build", {}, None),
        ("a__net.py:build", {}, None),
        ("../net.py:build", {}, None),
        ("/elsewhere/net.py:build", {}, None),
        ("/other/elsewhere/net.py:build", {}, None),
        ("net.py:wide", {}, None),
        ("net-wide.py:build", {}, None),
        ("net wide.py:build", {}, None),
        ("package.net:build", {}, None),
        ("package.net.py:build", {}, None),
        ("lenet", {"x": 1, "y": 2}, None),
        ("lenet", {"x": "1-y=2"}, None),
        ("mlp", {"hidden": (100, 100)}, None),
        ("mlp", {"hidden": "-100--100-"}, None),
        ("lenet", {}, Path("a/last.pt")),
        ("lenet", {}, Path("b/last.pt")),
        ("lenet", {}, Path("b/last.safetensors")),
        ("lenet", {}, Path("last.pt")),
        ("lenet", {}, Path("/b/last.pt")),
    ]
    names = [folder_name(*subject) for subject in subjects]
    assert len(set(names)) == len(names)
    assert not any(letter in name for name in names for letter in "/ ")
    assert folder_name("./a/../a/net.py:build", {}, None) == folder_name("a/net.py:build", {}, None)
    assert folder_name(f"{tmp_path}/a/net.py:build", {}, None) == "a__net"
    files = ["photo.png", "photo.jpg", "a/photo.png", "/a/photo.png", "/b/a/photo.png", "a__photo.png"]
    assert len({path_words(file, ".png") for file in files}) == len(files)
