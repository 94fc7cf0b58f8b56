"""``hf:FOLDER``: a model that transformers saved, with its weights; without weights, as it is initialised.

Nothing is fetched unless the user says ``--download``; then ``hf:NAME`` is a model of the hub.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from biascope.families.checkpoint import has_weights
from biascope.families.libraries.one_tensor import (
    OneTensor,
    is_causal,
    one_tensor,
    position_read,
    readout_in_words,
    table_scale,
    taken_by,
    width_of_table,
    without_cache,
)
from biascope.families.libraries.packages import imported, silent
from biascope.families.named_model import PLAIN, TEXT_SETTINGS, Asked, NamedModel, TextReadout, image_shape, text_shape
from biascope.families.names import HEADS
from biascope.families.weights import Params
from biascope.results.axes import Axis
from biascope.runs.failures import FOREIGN, reason_of
from biascope.runs.randomness import forked_rng

EXAMPLE = "hf:path/to/folder"
POSITIONS = 16  # of a text, where none are asked for
#: The entries of a configuration that say the shape of an input, by the name under which a model takes it.
_SERIES = {"input_values": ("max_length", "num_mel_bins"), "past_values": ("context_length", "num_input_channels")}
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def named(rest: str, asked: Asked) -> NamedModel:
    """The model of a folder, or of the hub if that was allowed."""
    source = f"hf:{rest}"
    transformers = library(source)
    folder = Path(rest).expanduser()
    if not folder.is_dir():
        if not asked.download:
            raise ValueError(
                f"{source} must name a folder, and there is none. Check the path, or pass --download to fetch {rest} from the hub."
            )
        return model_of(source, Path(rest).name, functools.partial(trained, transformers, rest, None, True), asked)
    if not asked.settings and (files := sorted(folder.glob("*.gguf"))) and not any(folder.glob("*.safetensors")):
        if len(files) > 1:
            raise ValueError(
                f"{folder} must hold one .gguf file, got {len(files)}. Keep one of them in a folder of its own."
            )
        imported("gguf", source)
        return model_of(
            source, files[0].stem, functools.partial(trained, transformers, str(folder), files[0].name, False), asked
        )
    config = configuration_in(folder, transformers)
    if asked.state is not None or any(next(folder.glob(kind), None) for kind in _WEIGHTS):
        if asked.settings:
            raise ValueError(
                f"{folder} has weights, so its sizes are fixed, got {dict(asked.settings)}. Leave --set out."
            )
        return model_of(
            source,
            folder.resolve().name,
            functools.partial(trained, transformers, str(folder), None, False, asked.state),
            asked,
        )
    changed = with_settings(config, asked.settings, source, _given(config))
    kind = class_of(config, transformers)
    return model_of(source, folder.resolve().name, functools.partial(initial, kind, changed), asked, trained=False)


def stated_pixels(rest: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread of each channel, as the file of a folder says them that prepares its images; empty where there is none.

    Raises:
        ValueError: If the file is damaged.
    """
    file = Path(rest).expanduser() / "preprocessor_config.json"
    if not file.is_file():
        return (), ()
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        if not said.get("do_normalize", True):
            return (), ()
        return tuple(map(float, said.get("image_mean", ()))), tuple(map(float, said.get("image_std", ())))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} must be JSON with numbers as image_mean and image_std, but is not. Save it again."
        ) from error


def library(source: str) -> Any:
    """The library, of a version that is understood."""
    first = "transformers" not in sys.modules
    transformers = imported("transformers", source, least="5.0")
    if first:  # its remarks are about speed and files; whoever has imported it before has chosen
        transformers.utils.logging.set_verbosity_error()
    return transformers


def configuration_in(folder: Path, transformers: Any) -> Any:
    """The configuration in a folder.

    Raises:
        ValueError: If there is none, or the model brings code of its own.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder} must hold config.json, and does not. Pass a folder that save_pretrained wrote.")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, but is not: {error}. Save the model again.") from error
    if "auto_map" in document:
        raise ValueError(f"{folder} brings Python code of its own, which is not run. Build the model in file.py:build.")
    try:
        with silent(transformers):
            return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except FOREIGN as error:
        raise ValueError(
            f"{file} must be a configuration of transformers, but reading it failed with: {reason_of(error)}. Check the file, and "
            "that transformers is new enough for this model."
        ) from error


def tokenizer_in(folder: Path, transformers: Any) -> Any:
    """The tokenizer in a folder.

    Raises:
        ValueError: If there is none, or it cannot be read.
    """
    try:
        with silent(transformers):
            found = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except FOREIGN as error:
        raise ValueError(
            f"{folder} must hold a tokenizer that transformers can read, but that failed with: {reason_of(error)}. Save it there with "
            "tokenizer.save_pretrained."
        ) from error
    files = sorted({"tokenizer.json", *getattr(type(found), "vocab_files_names", {}).values()})
    if not any((folder / file).is_file() for file in files):  # the library then makes one of special tokens alone
        raise ValueError(
            f"{folder} must hold a tokenizer, one of {', '.join(files)}, and does not. Save it there with tokenizer.save_pretrained."
        )
    return found


def image_processor_in(folder: Path, transformers: Any) -> Any:
    """What prepares the images of the model in a folder.

    Raises:
        ValueError: If there is none, or it cannot be read.
    """
    try:
        with silent(transformers):
            return transformers.AutoImageProcessor.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, backend="pil"
            )
    except FOREIGN as error:
        raise ValueError(
            f"{folder} must hold preprocessor_config.json, which says how its images are prepared, but reading it failed with: "
            f"{reason_of(error)}. Save it there with image_processor.save_pretrained."
        ) from error


def with_settings(config: Any, settings: Mapping[str, Any], source: str, given: Mapping[str, Any] = {}) -> Any:
    """A configuration with some entries of its kind replaced.

    Args:
        config: Any configuration of that kind.
        settings: Entries to replace.
        source: The model, as the user named it.
        given: Entries that stay, where they are not the kind's usual ones.

    Raises:
        ValueError: If it has no such entry, or refuses a value.
    """
    known = {*config.to_dict(), *config.attribute_map}
    if unknown := sorted(settings.keys() - known):
        sizes = [name for name in sorted(known) if any(word in name for word in ("size", "layers", "heads", "dim"))]
        raise ValueError(
            f"{source} must have the setting {unknown[0]!r}, and has {', '.join(sizes)} … Choose one of them."
        )
    try:
        return type(config)(**{**given, **settings})
    except FOREIGN as error:
        raise ValueError(
            f"{source} must take these settings, but refused: {reason_of(error)}. Change --set."
        ) from error


def _given(config: Any) -> dict[str, Any]:
    """What makes a configuration, without what a library adds when it is read."""
    document: dict[str, Any] = config.to_diff_dict()
    return {
        key: value
        for key, value in document.items()
        if key not in ("transformers_version", "model_type", "_name_or_path")
    }


def model_of(source: str, name: str, make: Any, asked: Asked, *, trained: bool = True, usual: str = "") -> NamedModel:
    """What a model takes and gives, found on one that is made.

    Args:
        source: As the user named it.
        name: What to call it.
        make: Makes the model: of initial weights, or with those that it came with.
        asked: What the user asked for.
        trained: Whether it comes with weights.
        usual: What the name should tell beside the readout.
    """
    with forked_rng(0):
        model = make()
    without_cache(model)
    config = model.config
    if taken_by(model) == "inputs_embeds" and not _has_embeddings(model):
        raise ValueError(f"{source} takes more than one kind of input. Build the part to measure in file.py:build.")
    if getattr(config, "is_encoder_decoder", False) and taken_by(model) != "pixel_values":
        make = functools.partial(_encoder, make)
        model, usual = _encoder(lambda: model), ", ".join(filter(None, ("encoder", usual)))
    scale, causal = table_scale(model), is_causal(config, model)
    readout = asked.text
    if readout != PLAIN and taken_by(model) != "inputs_embeds":
        raise ValueError(f"{source} is no model of texts, so it has no {', '.join(TEXT_SETTINGS)}. Leave them out.")
    if readout.without and not trained:
        raise ValueError(
            f"{source} has initial weights, whose tokens have no common direction. Leave --set without out."
        )
    _require_tokens(source, model, readout)
    shape = _shape(source, model, readout, asked.shape)
    whole, outputs = False, None
    while outputs is None:
        tensor = one_tensor(model, scale=scale, causal=causal, readout=readout, whole=whole).eval()
        x = torch.zeros(1, *shape, dtype=torch.long if readout.ids else torch.float32)
        try:
            with torch.no_grad(), forked_rng(0):
                found = model(**{tensor.takes: x})
                if not whole and tensor.takes == "inputs_embeds" and shape[0] > 2:
                    model(**{tensor.takes: x[:, :-2]})  # some fill texts up to a length, with tokens of their own
                outputs = found
        except FOREIGN as error:
            if whole or taken_by(model) != "inputs_embeds":
                raise ValueError(
                    f"{source} must take inputs of {'×'.join(map(str, shape))}, and its forward pass failed with: {reason_of(error)}. "
                    "Set its sizes with --set, or build the part to measure in file.py:build."
                ) from error
            whole = True  # something asks the table of tokens in its own way
            with forked_rng(0):
                model = make()
    read = "" if readout.position else readout_in_words(outputs, causal)
    told = ", ".join(filter(None, (usual, read, readout.told())))
    labels = getattr(config, "num_labels", None) if not read else None
    return NamedModel(
        f"{name} ({told})" if told else name,
        functools.partial(_one_tensor, make, scale, causal, readout, whole),
        shape,
        trained,
        classes=labels,
        axes=_axes(model, tensor, shape),
    )


def _require_tokens(source: str, model: Any, readout: TextReadout) -> None:
    """Refuse ids of tokens that the model does not have.

    Raises:
        ValueError: With the first of them.
    """
    count = model.get_input_embeddings().weight.shape[0] if readout.words or readout.without else 0
    for token in (*readout.words, *readout.without):
        if isinstance(token, int) and not 0 <= token < count:
            raise ValueError(f"{source} has {count:,} tokens, counted from 0, got token {token}. Pass one of them.")


def _axes(model: Any, tensor: OneTensor, shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """What the axes of an input are, by the name under which the model takes it."""
    if tensor.takes == "input_ids":
        return (Axis("token"),)
    if tensor.takes == "inputs_embeds":
        read = position_read(model, tensor.scale * torch.ones(1, *shape), tensor.causal, tensor.readout)
        return Axis("token", read=read), Axis("channel")
    known = {
        "pixel_values": ("channel", "height", "width"),
        "input_features": ("band", "time"),
        "input_values": ("time",),
        "past_values": ("time", "feature"),
    }
    names = known.get(tensor.takes, ())
    if len(shape) == len(names) + 1:
        names = {"pixel_values": ("frame", *names), "input_values": ("time", "band")}.get(tensor.takes, ())
    return tuple(map(Axis, names)) if len(names) == len(shape) else ()


def _shape(source: str, model: Any, readout: TextReadout, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of one input, as the configuration has it."""
    config, takes = model.config, "input_ids" if readout.ids else taken_by(model)
    if takes == "input_ids":
        return asked or (POSITIONS,)
    if takes == "inputs_embeds":
        return text_shape(source, asked, width_of_table(model), POSITIONS)
    if takes == "pixel_values":
        side = getattr(config, "image_size", None)
        if asked is None and side is None:
            raise ValueError(
                f"The configuration of {source} does not say how large its images are. Pass --input 3x224x224."
            )
        sides = tuple(side) if isinstance(side, list | tuple) else (side or 224, side or 224)
        image = (int(getattr(config, "num_channels", 3)), *sides)
        frames = getattr(config, "num_frames", None)
        if frames is not None:
            return _video_shape(source, asked, (int(frames), *image))
        return image_shape(source, asked, image)
    if takes == "input_features" and hasattr(config, "num_mel_bins"):
        usual = (int(config.num_mel_bins), 2 * int(getattr(config, "max_source_positions", 1500)))
        if asked not in (None, usual):
            raise ValueError(f"{source} takes spectra of {usual[0]}×{usual[1]}, got {asked}. Leave --input out.")
        return usual
    lengths = [getattr(config, name, None) for name in _SERIES.get(takes, ())]
    said = tuple(length for length in lengths if isinstance(length, int))
    if asked is None and said and len(said) == len(lengths):
        return said
    if asked is None:
        raise ValueError(
            f"The configuration of {source} does not say how long its inputs ({takes}) are. Pass --input, such as --input 4000 for a "
            "sound or 512x1 for a time series, or build it in file.py:build."
        )
    return asked


def _video_shape(source: str, asked: tuple[int, ...] | None, usual: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a video that a model is asked to take, else the usual one.

    Raises:
        ValueError: If it is no shape of a video.
    """
    if asked is not None and len(asked) != 4:
        raise ValueError(
            f"{source} takes videos, frames × channels × height × width, got {'×'.join(map(str, asked))}. Pass --input "
            f"{'x'.join(map(str, usual))}."
        )
    return asked or usual


def _has_embeddings(model: Any) -> bool:
    try:
        return model.get_input_embeddings() is not None
    except (NotImplementedError, AttributeError):
        return False


def _encoder(make: Any) -> Any:
    return make().get_encoder()


def _one_tensor(make: Any, scale: float, causal: bool, readout: TextReadout, whole: bool) -> nn.Module:
    return one_tensor(make(), scale=scale, causal=causal, readout=readout, whole=whole)


def class_of(config: Any, transformers: Any) -> Any:
    """The class that a configuration names, else the model without a head."""
    names = config.architectures or ()
    return next((getattr(transformers, name) for name in names if hasattr(transformers, name)), transformers.AutoModel)


def initial(kind: Any, config: Any) -> nn.Module:
    """A model at initial weights."""
    make = kind.from_config if hasattr(kind, "from_config") else kind._from_config
    model: nn.Module = make(config, attn_implementation="eager")
    return model


def trained(transformers: Any, place: str, gguf: str | None, download: bool, state: Params | None = None) -> nn.Module:
    """A model with its weights, or with others that are given, in float32.

    Raises:
        ValueError: If the files do not hold all of them.
    """
    where: dict[str, Any] = {"local_files_only": not download, **({"gguf_file": gguf} if gguf else {})}
    model, loaded = _loaded(transformers, place, transformers.AutoModelForCausalLM if gguf else None, where, state)
    require_whole(place, loaded)
    unused = sorted(map(str, loaded.get("unexpected_keys", ())))
    if (
        state is not None and unused and not has_weights(Path(place))
    ):  # beside weights of its own, names were compared before
        raise ValueError(
            f"The model of {place} must have all layers that the weights are for, but lacks {unused[0]}. Pass the folder of the model "
            "that was trained, with its weights."
        )
    return model  # type: ignore[no-any-return]


def part(
    transformers: Any,
    folder: Path,
    kind: Any,
    state: Params | None = None,
    *,
    left_out: tuple[str, ...] = (),
    config: Any = None,
) -> tuple[Any, list[str]]:
    """The part of a folder's model that a class of the library has, with the folder's weights or others, in float32.

    Args:
        transformers: The library.
        folder: With the configuration.
        kind: The class.
        state: Other weights.
        left_out: Beginnings of names, without the prefix of the library, that the part may lack or not be given.
        config: Another configuration, for other weights.

    Returns:
        The part, and those of its weights that were not given.

    Raises:
        ValueError: If weights of the part are missing, or there are others than those of a head.
    """
    model, loaded = _loaded(transformers, str(folder), kind, {"local_files_only": True}, state, config)
    absent = [name for name in map(str, loaded.get("missing_keys", ())) if left_out and name.startswith(left_out)]
    missing = [name for name in loaded.get("missing_keys", ()) if name not in absent]
    require_whole(str(folder), {**loaded, "missing_keys": missing})
    known = (*HEADS, *left_out, *_OTHER_PARTS)
    odd = [
        name
        for name in map(str, loaded.get("unexpected_keys", ()))
        if not name.removeprefix(f"{model.base_model_prefix}.").startswith(known) and not name.endswith("position_ids")
    ]
    if odd:
        raise ValueError(
            f"The model of {folder} must have all layers that the weights are for, but lacks {min(odd)}. Pass the folder of the model "
            "that was trained."
        )
    return model, absent


_OTHER_PARTS = ("decoder.",)  # of a model whose encoder is read


def _loaded(
    transformers: Any, place: str, kind: Any, where: dict[str, Any], state: Params | None, config: Any = None
) -> tuple[Any, Mapping[str, Any]]:
    """A model in float32, and what the library says of the names of its weights.

    Raises:
        ValueError: If the library cannot read it.
    """
    with silent(transformers):
        try:
            config = config or transformers.AutoConfig.from_pretrained(place, **where)
            if state is not None:
                where = {"config": config, "state_dict": state}
            model, loaded = (kind or class_of(config, transformers)).from_pretrained(
                None if state is not None else place,
                attn_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused by name
                **where,
            )
        except FOREIGN as error:
            raise ValueError(
                f"{place} must hold a model that transformers can read, but that failed with: {reason_of(error)}. Check the folder."
            ) from error
    return model, loaded


def require_whole(place: str, loaded: Mapping[str, Any]) -> None:
    """Refuse a model of which some weights were not in its files, or in other shapes, and so are random.

    Raises:
        ValueError: With the first of them.
    """
    if others := sorted(loaded.get("mismatched_keys", ())):
        name, found, wanted = others[0]
        raise ValueError(
            f"{place} must hold weights of the shapes that its config.json says, but {name} is {_times(found)} instead of "
            f"{_times(wanted)}. Correct the sizes in config.json, or save the model again."
        )
    missing = sorted(map(str, loaded.get("missing_keys", ())))
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ValueError(
            f"{place} must hold all weights of its model, but {missing[0]}{more} would stay random. Save the model again, or correct "
            "'architectures' in config.json."
        )


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "one number"
