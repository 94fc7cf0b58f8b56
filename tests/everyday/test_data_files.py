"""Data files that are damaged, hostile or not what they say: one sentence that names the file."""

import io
import os
import shutil
import struct
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from asking import Asking
from PIL import Image

from biascope import data
from biascope.families.checkpoint import Checkpoint

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.uniform(size=(24, 1, 4, 4)).astype(np.float32), np.arange(24) % 3


def npz(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def header(text: str) -> bytes:
    words = text.encode() + b" " * (63 - len(text) % 64) + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(words)) + words


def of_shape(shape: str) -> bytes:
    return header("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % shape)  # noqa: UP031 - braces


def members(**content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def encrypted(data: bytes) -> bytes:
    """The same with the flag that says so."""
    changed = bytearray(data)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := changed.find(mark, at + 1)) >= 0:
            changed[at + place] |= 1
    return bytes(changed)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 0xFF
    return bytes(changed)


GOOD = npz(x_train=X, y_train=Y, x_test=X[:12], y_test=Y[:12])
ARRAYS = {
    "cut": GOOD[: len(GOOD) // 2],
    "empty": b"",
    "text": b"hello" * 50,
    "flipped": flipped(GOOD, 200),
    "encrypted": encrypted(GOOD),
    "huge": members(x_train=of_shape("(1000000, 1000000, 3)"), y_train=of_shape("(1000000,)")),
    "deep": members(x_train=header("(" * 5000 + ")" * 5000)),
    "unclosed header": members(x_train=header("{not a dict")),
    "no arrays": members(x_train=b"hello", y_train=b"you"),
    "bomb": members(x_train=of_shape("(100000000, 4, 4)") + bytes(10_000_000)),
    "nothing": npz(),
    "objects": npz(x_train=np.array([{}, []], dtype=object), y_train=Y[:2]),
    "words": npz(x_train=np.array(["a", "b"]), y_train=Y[:2]),
    "complex": npz(x_train=X + 1j, y_train=Y),
    "one number": npz(x_train=np.float32(3), y_train=np.int64(1)),
    "too few labels": npz(x_train=X, y_train=Y[:5]),
    "no samples": npz(x_train=X[:0], y_train=Y[:0]),
    "nan": npz(x_train=X * np.nan, y_train=Y),
    "infinity": npz(x_train=X + np.inf, y_train=Y),
    "large labels": npz(x_train=X, y_train=Y + 2**40),
    "negative labels": npz(x_train=X, y_train=Y - 5),
    "halves as labels": npz(x_train=X, y_train=Y + 0.5),
    "nan labels": npz(x_train=X, y_train=Y * np.nan),
    "labels in words": npz(x_train=X, y_train=np.array(list("abc") * 8)),
    "labels as vectors": npz(x_train=X, y_train=np.eye(3)[Y]),
    "other names": npz(a=X, b=Y),
    "bytes of two axes": npz(x_train=np.zeros((24, 16), np.uint8), y_train=Y),
    "negative ids": npz(x_train=np.full((24, 16), -1), y_train=Y),
    "a table with a hole": npz(x_train=np.where(np.eye(24, 16), np.nan, 1.0), y_train=Y),
    "six axes": npz(x_train=X[..., None, None] - 1, y_train=Y),
    "too few axes": npz(x_train=X - 1, y_train=Y, axes=np.array(["time", "feature"])),
    "unknown axes": npz(x_train=X - 1, y_train=Y, axes=np.array(["a", "b", "c"])),
    "too few features": npz(x_train=X.reshape(24, 16), y_train=Y, features=np.array(["a", "b"])),
    "features of nothing": npz(x_train=X, y_train=Y, features=np.array(["a", "b"])),
}


TABLE = GENERATOR.normal(size=(36, 16)) * 50
KINDS = {
    "table": ({"x_train": TABLE[:24], "x_test": TABLE[24:]}, "each feature standardised"),
    "whole table": ({"x_train": np.rint(TABLE[:24])}, "each feature standardised"),
    "sequences": ({"x_train": TABLE[:24].reshape(24, 4, 4)}, "each place along the last axis standardised"),
    "named": ({"x_train": X[:, 0], "axes": np.array(["time", "feature"])}, "each feature standardised"),
    "half floats": ({"x_train": (TABLE[:24] / 50).astype(np.float16)}, "each feature standardised"),
    "big endian": ({"x_train": TABLE[:24].astype(">f8")}, "each feature standardised"),
    "images": ({"x_train": X}, "pixels divided by 255, then each channel standardised"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["kernel", "scan", "measure tangent_kernel"])
def test_samples_of_every_kind_are_measured_and_their_scale_is_told(ask: Asking, command: str, kind: str) -> None:
    arrays, scale = KINDS[kind]
    (ask.folder / "mine.npz").write_bytes(
        npz(y_train=Y, **({"y_test": Y[:12]} if "x_test" in arrays else {}), **arrays)
    )
    words = [
        *command.split(),
        "odd.py:flat",
        "--data",
        "mine.npz",
        "--samples",
        "24",
        "--out",
        "run",
        "--device",
        "cpu",
    ]
    answer = ask.answered(*words, *(["--draws", "4"] if command == "scan" else []))
    assert scale in answer.out
    left = ask.answered(*words, "--standardise", "none", *(["--draws", "4"] if command == "scan" else []))
    assert ("pixels divided by 255" if kind == "images" else "numbers as they are") in left.out


def test_a_network_made_for_other_samples_is_told_which_it_got(ask: Asking) -> None:
    (ask.folder / "mine.npz").write_bytes(npz(x=TABLE[:, :5], y=np.arange(36) % 2))
    ask.refused("kernel", "odd.py:flat", "--data", "mine.npz", "--out", "run", naming="accept samples of shape 5")
    told = "--standardise model needs a model whose library states how pixels are scaled, got odd.py:flat"
    ask.refused("kernel", "odd.py:flat", "--data", "images.npz", "--standardise", "model", "--out", "run", naming=told)
    ask.refused("measure", "dictionary", "--data", "mine.npz", "--out", "run", naming="must hold images of 8 bits")
    ask.refused(
        "kernel",
        "odd.py:flat",
        "--data",
        "mine.npz",
        "--standardise",
        "half",
        "--out",
        "run",
        naming="own, model or none",
    )


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("command", ["check", "kernel"])
def test_a_damaged_file_of_arrays_is_named(ask: Asking, command: str, kind: str) -> None:
    (ask.folder / "mine.npz").write_bytes(ARRAYS[kind])
    kernel = ["kernel", "odd.py:flat", "--data", "mine.npz", "--samples", "12", "--leading", "3", "--out", "run"]
    ask.refused(*(["data", "check", "mine.npz"] if command == "check" else kernel), naming="mine.npz")


IDS = GENERATOR.integers(0, 30, (36, 7))
TOKENS = {
    "too large": npz(x_train=np.where(np.arange(36)[:, None] == 35, 30, IDS), y_train=np.arange(36) % 2),
    "too large in the test": npz(x_train=IDS, y_train=np.arange(36) % 2, x_test=IDS + 1, y_test=np.arange(36) % 2),
    "too long": npz(x_train=np.tile(IDS, 2), y_train=np.arange(36) % 2),
    "a mask": npz(x_train=IDS, y_train=np.arange(36) % 2, attention_mask_train=IDS > 0),
    "numbers": npz(x_train=IDS.astype(float), y_train=np.arange(36) % 2),
}
TOLD = {
    "too large": "accept the token ids of the train samples, the largest of which is 30",
    "too large in the test": "accept the token ids of the test samples, the largest of which is 30",
    "too long": "in the shape it was made for",
    "a mask": "attention_mask_train of mine.npz would be left out",
    "numbers": "It seems to take token ids",
}


@pytest.mark.parametrize("kind", TOKENS)
def test_token_ids_that_a_network_does_not_know_are_refused(ask: Asking, kind: str) -> None:
    (ask.folder / "mine.npz").write_bytes(TOKENS[kind])
    words = ["odd.py:seven_ids", "--data", "mine.npz", "--device", "cpu", "--out", "run"]
    ask.refused("kernel", *words, "--samples", "36,36", naming=TOLD[kind])


def test_token_ids_are_taken_as_they_are(ask: Asking) -> None:
    y = np.arange(36) % 2
    (ask.folder / "mine.npz").write_bytes(npz(x_train=IDS, y_train=y, x_test=IDS, y_test=y, attention_mask=IDS >= 0))
    words = ["odd.py:seven_ids", "--data", "mine.npz", "--device", "cpu", "--out", "run"]
    assert "token ids as they are" in ask.answered("kernel", *words, "--control", "--matrix", "k.npy").out
    ask.answered("measure", "linearized_training", *words, "--epochs", "2", "--targets", "1", "--repeats", "1")
    ask.answered(
        "measure", "kernel_rotation", *words, "--epochs", "2", "--leading", "4", "--target", "1", "--energy", "4"
    )
    ask.refused("scan", *words, naming="token ids do not have")
    ask.refused("measure", "feature_elimination", *words, naming="holds token ids, which have none")


def test_texts_without_a_tokenizer_are_refused(ask: Asking) -> None:
    (ask.folder / "mine.txt").write_text("sad\ta dull film\nglad\ta fine film\n")
    words = ["kernel", "odd.py:seven_ids", "--data", "mine.txt", "--out", "run"]
    ask.refused(*words, naming="mine.txt holds texts, which need a tokenizer")
    ask.refused(*words, "--length", "7", naming="length must be left out where there is no tokenizer")
    ask.refused("scan", "odd.py:flat", "--label", "age", "--out", "run", naming="--label says how --data is read")
    ask.refused(*words, "--tokenizer", "nowhere", naming="nowhere must describe the tokens, but is not there")
    (ask.folder / "mine.txt").write_text("a dull film\na fine film\n")
    ask.refused(*words, "--tokenizer", "nowhere", naming="mine.txt must have a label, a tab and a text in each line")


TABLES = {
    "cut": 'age,"city\n1,2',
    "empty": "",
    "zeros": "\0" * 50,
    "no header": "1,2\n3,4\n",
    "an index": ",a,b\n0,1,1\n1,2,0\n",
    "a hole": "a,b\n1,0\n,1\n",
    "not a number": "a,b\n1,0\nunknown,1\n",
    "decimal commas": "a;b\n1,5;0\n2,5;1\n",
    "a date": "a,b\n2026-01-02,0\n2026-01-03,1\n",
    "prices": "a,price\n1,9.99\n2,10.5\n",
    "one row": "a,b\n1,0\n",
    "no change": "a,b\n1,0\n1,1\n1,0\n",
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_is_no_data_set_is_named(ask: Asking, kind: str) -> None:
    (ask.folder / "mine.csv").write_text(TABLES[kind])
    naming = {"one row": "'mine'", "no change": "'mine'"}.get(kind, "mine.csv")
    ask.refused("kernel", "odd.py:flat", "--data", "mine.csv", "--out", "run", naming=naming)
    if naming == "mine.csv":
        ask.refused("data", "check", "mine.csv", naming=naming)


def test_a_table_is_measured_and_its_label_is_told(ask: Asking) -> None:
    names = [f"feature {place}" for place in range(16)]
    rows = [",".join(map(str, [*row, "old" if row[0] > 0 else "young"])) for row in TABLE.tolist()]
    (ask.folder / "mine.csv").write_text("\n".join([",".join([*names, "age"]), *rows]))
    words = ["odd.py:flat", "--data", "mine.csv", "--device", "cpu", "--out", "run"]
    answer = ask.answered("kernel", *words)
    assert "(young against old)" in answer.out
    assert "label 'age', the last column; each feature standardised over the training samples" in answer.out
    ask.answered("scan", *words, "--samples", "20", "--draws", "4")
    assert "label 'age', the last column" in ask.answered("data", "check", "mine.csv").out
    told = "The label 'feature 3' of mine.csv must be a class, a whole number or a word"
    ask.refused("data", "check", "mine.csv", "--label", "feature 3", naming=told)
    ask.refused("data", "check", "mine.csv", "--length", "0", naming="length must be left out")
    ask.refused("kernel", *words, "--label", "height", naming="--label must be a column of mine.csv, got 'height'")
    ask.refused(
        "kernel",
        "odd.py:flat",
        "--data",
        "images.npz",
        "--label",
        "age",
        "--out",
        "run",
        naming="label must be left out",
    )


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


def sound(rate: int = 8000, frames: int = 400) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((GENERATOR.normal(size=frames) * 3000).astype("<i2").tobytes())
    return buffer.getvalue()


def changed(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


PICTURE, SOUND = png(Image.fromarray((255 * X[0, 0]).astype(np.uint8))), sound()
SIGNALS = {
    "cut.png": lambda: PICTURE[: len(PICTURE) // 2],
    "empty.png": lambda: b"",
    "text.png": lambda: b"hello",
    "bomb.png": lambda: png(Image.new("1", (20000, 20000))),
    "one_pixel.png": lambda: png(Image.new("L", (1, 1))),
    "constant.png": lambda: png(Image.new("L", (8, 8), 7)),
    "cut_header.wav": lambda: SOUND[:30],
    "cut_samples.wav": lambda: SOUND[:60],
    "empty.wav": lambda: b"",
    "text.wav": lambda: b"hello",
    "float_samples.wav": lambda: changed(SOUND, 20, b"\x03\x00"),
    "no_rate.wav": lambda: changed(SOUND, 24, bytes(4)),
    "silent.wav": lambda: sound(frames=0),
    "cut.npy": lambda: npy(X[0, 0])[:-20],
    "empty.npy": lambda: b"",
    "huge.npy": lambda: of_shape("(100000000, 100000000)"),
    "unclosed.npy": lambda: header("{not a dict"),
    "objects.npy": lambda: npy(np.array([{}], dtype=object)),
    "nan.npy": lambda: npy(X[0, 0] * np.nan),
    "words.npy": lambda: npy(["a"]),
    "nothing.npy": lambda: npy(np.zeros((0, 3))),
    "one_number.npy": lambda: npy(np.float32(3)),
    "complex.npy": lambda: npy(X[0, 0] + 1j),
    "unknown.xyz": lambda: b"hello",
}


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("command", ["fit", "advise"])
def test_a_damaged_signal_is_named(ask: Asking, command: str, name: str) -> None:
    made: Callable[[], bytes] = SIGNALS[name]
    (ask.folder / name).write_bytes(made())
    ask.refused("inr", command, name, "--steps", "2", "--device", "cpu", "--out", "run", naming=name.partition(".")[0])


def test_a_folder_with_a_damaged_picture_names_it(ask: Asking) -> None:
    for folder, content in (("a", PICTURE), ("b", PICTURE[:40])):
        (ask.folder / "mine" / folder).mkdir(parents=True)
        (ask.folder / "mine" / folder / "x.png").write_bytes(content)
    ask.refused("kernel", "odd.py:flat", "--data", "mine", "--out", "run", naming="mine/b/x.png")
    shutil.rmtree(ask.folder / "mine" / "b")
    (ask.folder / "empty" / "a").mkdir(parents=True)
    ask.refused("kernel", "odd.py:flat", "--data", "empty", "--out", "run", naming="has no such pictures")


def test_a_set_that_is_short_by_whole_records_is_told(ask: Asking) -> None:
    folder = ask.folder / "root" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        records = GENERATOR.integers(0, 256, (12, 3073)).astype(np.uint8)
        records[:, 0] = np.arange(12) % 10
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    root = ["--data-root", "root"]
    words = [
        "kernel",
        "logistic_regression",
        "--data",
        "cifar10",
        "--samples",
        "40,10",
        "--leading",
        "3",
        "--out",
        "run",
    ]
    answer = ask.answered(*words, *root, "--device", "cpu", warning="it is not the whole CIFAR-10")
    assert "12 of 10,000 images" in answer.err


def test_a_file_that_cannot_be_read_is_named(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    (ask.folder / "mine.npz").write_bytes(GOOD)
    monkeypatch.setattr(Path, "open", refuse)
    ask.refused("data", "check", "mine.npz", naming="mine.npz")


@pytest.mark.parametrize(
    "command",
    [
        "kernel odd.py:flat --data same.npz --samples 24",
        "scan odd.py:flat --data same.npz --samples 24 --draws 4",
        "measure linearized_training odd.py:flat --data same.npz --samples 24 --positive 0",
        "patterns odd.py:flat --patches same.npz --positive 0",
    ],
    ids=lambda command: command.split()[0],
)
@pytest.mark.parametrize("value", [0.0, 0.3, X[0]], ids=["black", "grey", "one picture"])
def test_samples_that_are_all_equal_are_refused(ask: Asking, command: str, value: object) -> None:
    (ask.folder / "same.npz").write_bytes(npz(x_train=np.zeros_like(X) + np.float32(value), y_train=Y))
    told = "The training samples of 'same' must differ from one another, but the 24 that were taken are all equal."
    ask.refused(*command.split(), "--device", "cpu", "--out", "run", naming=told)


def test_names_of_files_that_are_not_utf8_are_read_and_shown(ask: Asking) -> None:
    """Those that nobody typed: of classes, of checkpoints, of the folder that a command is run in."""
    for name in ("a", "b\udcff"):
        (ask.folder / "pictures" / name).mkdir(parents=True)
        for number in range(9):
            pixels = np.random.default_rng(number).integers(0, 255, (4, 4), np.uint8)
            Image.fromarray(pixels).save(ask.folder / "pictures" / name / f"{number}.png")
    classes = data.load(ask.folder / "pictures").classes
    assert classes == ("a", r"b\xff")
    here = ask.folder / "caf\udce9"
    here.mkdir()
    shutil.copy(ask.folder / "odd.py", here)
    os.chdir(here)
    scan = ["scan", "odd.py:flat", "--input", "1x4x4", "--draws", "4", "--device", "cpu", "--out", "run"]
    ask.answered(*scan)
    torch.save({"w": torch.ones(2)}, here / "model.pt")
    assert Checkpoint.open(here / "model.pt").name == "model.pt"
    torch.save({"w": torch.ones(2)}, here / "pytorch_model.bin")
    assert Checkpoint.open(here / "pytorch_model.bin").name == r"caf\xe9"
