"""Text sets on disk, and tasks of images and texts in three splits."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from biascope.data import data_root
from biascope.data.text import plain_texts, text_set
from biascope.editing.encoder_source import encoder_of
from biascope.editing.encoders.encoder import Encoder
from biascope.editing.tasks import TEXT_TASKS, task_of, tasks_of

IMAGE_TASKS = ("cifar10", "mnist", "fashion-mnist", "kmnist", "usps", "gtsrb", "cars20", "dtd10")
PLACES = {"cifar10": "cifar-10-batches-bin", "mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}


def write(path: Path, *rows: str, header: str = "label\ttext") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "\n".join([header, *rows]) + "\n"
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())


def labelled_bytes() -> Encoder:
    """An encoder whose prepared inputs are the raw ones, so that samples can be told apart."""
    vit = encoder_of("vit", random=True)
    return Encoder(vit.network, lambda images: torch.from_numpy(images), "raw", "image")


def letters() -> Encoder:
    vit = encoder_of("vit", random=True)
    return Encoder(vit.network, lambda texts: torch.tensor([[ord(text[0])] for text in texts]), "raw", "text")


def test_a_set_is_found_by_name_compressed_or_not(tmp_path: Path) -> None:
    write(tmp_path / "text" / "moods_train.tsv.gz", "sad\ta dull film", "glad\tfine, with\ta tab")
    write(tmp_path / "text" / "moods_test.tsv", "glad\tcrème \u2028 brûlée")
    moods = text_set("moods", root=tmp_path)
    assert repr(moods) == "moods: 2 train, 1 test texts, 2 classes"
    assert moods.classes == ("glad", "sad")
    assert moods.splits["train"][0] == ("a dull film", "fine, with\ta tab")
    assert moods.splits["train"][1].tolist() == [1, 0]
    assert moods.splits["test"] == (("crème \u2028 brûlée",), np.array([0]))


def test_numbers_as_labels_keep_their_order(tmp_path: Path) -> None:
    write(tmp_path / "ten" / "train.tsv", *[f"{label}\ttext" for label in (10, 2, 1)])
    assert text_set(tmp_path / "ten").classes == ("1", "2", "10")
    assert text_set(tmp_path / "ten").splits["train"][1].tolist() == [2, 1, 0]


def test_damaged_and_missing_files_are_told(tmp_path: Path) -> None:
    write(tmp_path / "text" / "moods_train.tsv", "sad\tfilm")
    with pytest.raises(ValueError, match=r"mood_train.tsv.gz must hold texts, but is not there. There are: moods."):
        text_set("mood", root=tmp_path)
    write(tmp_path / "text" / "a_train.tsv", "1\tx", header="text,label")
    with pytest.raises(ValueError, match=r"must have the header label, tab, text .* begins with 'text,label'"):
        text_set("a", root=tmp_path)
    write(tmp_path / "text" / "b_train.tsv", "1\tx", "no tab")
    with pytest.raises(ValueError, match="has 'no tab' in line 3"):
        text_set("b", root=tmp_path)
    (tmp_path / "text" / "c_train.tsv").write_bytes(b"label\ttext\n1\t\xff\n")
    with pytest.raises(ValueError, match="must be text in UTF-8"):
        text_set("c", root=tmp_path)
    whole = gzip.compress(b"label\ttext\n1\tx\n" * 50)
    (tmp_path / "text" / "d_train.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="must be a whole gzip file"):
        text_set("d", root=tmp_path)


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Images that hold their own number, as an npz set."""
    images = np.arange(120, dtype=np.uint8).reshape(120, 1, 1).repeat(4, 1).repeat(4, 2)
    np.savez(
        tmp_path / "numbered.npz",
        x_train=images[:100],
        y_train=np.arange(100),
        x_test=images[100:],
        y_test=np.arange(20),
    )
    return tmp_path


def taken(task: object, split: str) -> list[int]:
    return task.splits[split][0][:, 0, 0, 0].tolist()  # type: ignore[attr-defined]


def test_splits_share_no_sample_and_keep_images_with_their_labels(numbered: Path) -> None:
    task = task_of("numbered", labelled_bytes(), sizes=(50, 10, 15), root=numbered)
    assert task.sizes == {"train": 50, "validation": 10, "test": 15}
    assert not set(taken(task, "train")) & set(taken(task, "validation"))
    for split in ("train", "validation"):
        assert taken(task, split) == task.splits[split][1].tolist()
    assert [number - 100 for number in taken(task, "test")] == task.splits["test"][1].tolist()


def test_fewer_samples_are_the_beginning_of_more_and_small_sets_keep_most_for_training(numbered: Path) -> None:
    few = task_of("numbered", labelled_bytes(), sizes=(10, 5, 5), root=numbered)
    more = task_of("numbered", labelled_bytes(), sizes=(5000, 1000, 2000), root=numbered)
    assert more.sizes == {"train": 80, "validation": 20, "test": 20}
    for split in ("train", "validation", "test"):
        assert taken(few, split) == taken(more, split)[: len(taken(few, split))]
    other = task_of("numbered", labelled_bytes(), sizes=(10, 5, 5), root=numbered, seed=1)
    assert taken(other, "train") != taken(few, "train")


def test_a_validation_split_of_the_set_is_used(tmp_path: Path) -> None:
    for split, letter in (("train", "a"), ("validation", "v"), ("test", "z")):
        write(tmp_path / "text" / f"own_{split}.tsv", *[f"{k % 2}\t{letter}" for k in range(8)])
    task = tasks_of(["own"], letters(), root=tmp_path)["own"]
    assert {split: {chr(int(x)) for x in inputs} for split, (inputs, _) in task.splits.items()} == {
        "train": {"a"},
        "validation": {"v"},
        "test": {"z"},
    }
    assert task.sizes["train"] == 8


def test_sets_that_cannot_be_a_task_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", x_train=np.zeros((4, 5, 5), np.uint8))
    with pytest.raises(ValueError, match="must have labels, but have none"):
        task_of("bare", labelled_bytes(), root=tmp_path)
    np.savez(tmp_path / "one.npz", x_train=np.zeros((4, 5, 5), np.uint8), y_train=np.arange(4))
    with pytest.raises(ValueError, match="one must have the splits train and test, got train"):
        task_of("one", labelled_bytes(), root=tmp_path)
    with pytest.raises(ValueError, match="sizes must be three positive numbers"):
        task_of("one", labelled_bytes(), sizes=(1, 0, 1), root=tmp_path)


@pytest.mark.parametrize("name", [*IMAGE_TASKS, *TEXT_TASKS])
def test_the_named_tasks_are_read_as_they_come(name: str) -> None:
    if not (
        data_root() / PLACES.get(name, f"text/{name}_train.tsv.gz" if name in TEXT_TASKS else f"{name}.npz")
    ).exists():
        pytest.skip(f"BIASCOPE_DATA has no {name}")
    encoder = encoder_of("vit", random=True) if name in IMAGE_TASKS else letters()
    task = task_of(name, encoder, sizes=(40, 8, 20))
    assert task.sizes == {"train": 40, "validation": 8, "test": 20}
    assert task.splits["train"][1].unique().numel() > 1
    if name in IMAGE_TASKS:
        assert task.shape == (3, 32, 32)
        assert float(task.splits["train"][0].std()) > 0.3


def test_texts_without_labels(tmp_path: Path) -> None:
    (tmp_path / "songs.jsonl").write_text('{"text": "la la", "year": 3}\n\n"tra la"\n')
    assert plain_texts(tmp_path / "songs.jsonl") == ("songs", {"train": ("la la", "tra la")})
    (tmp_path / "moods.txt").write_text("sad\ta dull film\nglad\ta fine film\n")
    assert plain_texts(tmp_path / "moods.txt")[1]["train"] == ("a dull film", "a fine film")
    (tmp_path / "table.csv").write_text("text,year\nla la,3\ntra la,4\n")
    assert plain_texts(tmp_path / "table.csv")[1]["train"] == ("la la", "tra la")
    for line, message in (("{", "line 2 is not"), ('{"body": "x"}', "line 2 is"), ("3", "line 2 is")):
        (tmp_path / "odd.jsonl").write_text(f'"fine"\n{line}\n')
        with pytest.raises(ValueError, match=message):
            plain_texts(tmp_path / "odd.jsonl")
