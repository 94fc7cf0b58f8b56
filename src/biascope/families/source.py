"""Models as a user names them: a network of the papers, ``file.py:build``, ``package.module:build``, or one of a library."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import nn

from biascope import networks
from biascope.families import libraries, weights
from biascope.families.acceptance import module_built
from biascope.families.checkpoint import Checkpoint, has_weights
from biascope.families.embedded import on_embeddings
from biascope.families.family import Family
from biascope.families.held import Holding
from biascope.families.libraries.packages import define_operators_of_torchvision
from biascope.families.named_model import Asked, NamedModel, Pixels, label_of
from biascope.families.names import Fitted, fitted, held, matched, require_whole
from biascope.families.tape import Builder
from biascope.results.axes import Axis
from biascope.results.wording import natural_order
from biascope.runs.ambient import settings_kept, under_torch_defaults
from biascope.runs.failures import FOREIGN, reason_of
from biascope.runs.files import as_text
from biascope.runs.randomness import forked_rng


def parse_shape(text: str) -> tuple[int, ...]:
    """An input shape written as ``1x32x32``.

    Example:
        >>> parse_shape("3x224x224")
        (3, 224, 224)
    """
    if not re.fullmatch(r"\d+([x×,]\d+)*", text) or any(int(part) < 1 for part in re.split("[x×,]", text)):
        raise ValueError(
            f"The input shape must be positive lengths joined by x, got {text!r}. Pass for example 1x32x32."
        )
    lengths = tuple(int(part) for part in re.split("[x×,]", text))
    if math.prod(lengths) > _MOST_NUMBERS:
        raise ValueError(
            f"An input must have at most {_MOST_NUMBERS:,} numbers, got {math.prod(lengths):,} ({text}). Pass a smaller shape."
        )
    return lengths


def parse_input(text: str) -> tuple[str, tuple[int, ...]]:
    """The name and the shape of the measured input, written as ``x=16x4``; the name may be left out.

    Example:
        >>> parse_input("x=16x4"), parse_input("14")
        (('x', (16, 4)), ('', (14,)))
    """
    name, equals, shape = text.rpartition("=")
    if equals and not name.isidentifier():
        raise ValueError(
            f"The measured input must be named as in --input x=16x4, got {text!r}. Leave = out, or name it."
        )
    return name, parse_shape(shape)


_MOST_NUMBERS = 10**8  # of one input: 400 MB in float32


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Builder settings written as ``key=value``; numbers, truth values and lists are understood.

    Example:
        >>> parse_settings(["pooling=average", "hidden=100,100", "batchnorm=false"])
        {'pooling': 'average', 'hidden': (100, 100), 'batchnorm': False}
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(
                f"A setting must be written key=value, got {pair!r}. Pass for example --set pooling=average."
            )
        settings[key] = tuple(_value(part) for part in value.split(",") if part) if "," in value else _value(value)
    return settings


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@under_torch_defaults
def builder_of(
    source: str, shape: tuple[int, ...] | None = None, settings: Mapping[str, Any] | None = None
) -> tuple[str, Builder]:
    """The name and the zero-argument builder of a network.

    Args:
        source: A known name, ``file.py:function``, ``package.module:function``, or a model of a library (``timm:resnet18``).
        shape: Input shape; sets ``channels`` and ``image_size`` of the papers' networks, or their ``coordinates``.
        settings: Passed on to the builder.

    Raises:
        ValueError: If there is no such network, file or function, or a setting does not exist.
    """
    if (model := _library_model(source, shape, settings)) is not None:
        return model.name, model.build
    chosen = dict(settings or {})
    if source.endswith(".py"):
        raise ValueError(
            f"A model file needs the name of its builder behind a colon, got {source}. Pass {source}:build."
        )
    if ":" in source:
        name, function = _function_of(source)
    else:
        try:
            function = networks.builder(source)
        except ValueError as error:
            if not Path(source).is_file():
                raise
            raise ValueError(
                f"A network must be named, or built by a function in a Python file, but {source} is another file. Pass file.py:build, "
                "and weights as --weights."
            ) from error
        name = function.__name__
        if shape is not None:
            chosen = _shape_settings(name, function, shape) | chosen
    try:
        signature = inspect.signature(function)
    except ValueError:
        pass  # a builtin without a signature: calling it will tell
    else:
        _require_settings(name, signature, chosen)
    label = label_of(name, settings or {})
    return label, functools.partial(function, **chosen)


_YES_OR_NO = ("yes", "no", "on", "off", "y", "n", "t", "f", "none")


def _require_settings(name: str, signature: inspect.Signature, settings: Mapping[str, Any]) -> None:
    """Check that a builder takes the settings. Where it asks for a truth value, any other text would count as true.

    A builder that does not say so may take a name there (``norm=False`` or ``norm=batch``): only words for yes and no are refused.
    """
    try:
        signature.bind(**settings)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"{name} must be callable with the settings {settings or 'none'}: {error}. It takes: {known}."
        ) from error
    for key, value in settings.items():
        parameter = signature.parameters.get(key)
        if parameter is None or not isinstance(parameter.default, bool) or value in (True, False):
            continue
        if parameter.annotation in (bool, "bool") or str(value).lower() in _YES_OR_NO:
            raise ValueError(f"{key} of {name} must be true or false, got {value!r}. Pass {key}=true or {key}=false.")


def _shape_settings(name: str, function: Callable[..., nn.Module], shape: tuple[int, ...]) -> dict[str, Any]:
    """The settings that make a network of the papers take inputs of a shape."""
    given = "×".join(map(str, shape))
    parameters = inspect.signature(function).parameters
    if "coordinates" in parameters:
        if len(shape) != 1:
            raise ValueError(f"{name} takes the coordinates of points, 1 to 6 numbers, got {given}. Pass 2 for images.")
        return {"coordinates": shape[0]}
    if "inputs" in parameters and (len(shape) != 3 or shape[1] != shape[2]):
        return {"inputs": math.prod(shape)}
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(f"{name} takes square images, channels × side × side, got {given}. Pass 1x32x32.")
    return {"channels": shape[0], "image_size": shape[1]}


def usual_shape(source: str, settings: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """The default input shape of a network: what its library says, grey images of 32 × 32, or as many coordinates as it takes.

    Example:
        >>> usual_shape("lenet"), usual_shape("siren"), usual_shape("siren", {"coordinates": 3})
        ((1, 32, 32), (2,), (3,))
    """
    if (model := _library_model(source, None, settings)) is not None:
        return model.shape
    if ":" in source or source.endswith(".py"):
        return 1, 32, 32
    parameters = inspect.signature(networks.builder(source)).parameters
    if "coordinates" not in parameters:
        return 1, 32, 32
    return (int((settings or {}).get("coordinates", parameters["coordinates"].default)),)


def _usual_axes(source: str) -> tuple[Axis, ...]:
    """What an input of the papers' networks is, where it is no image."""
    if ":" in source or "coordinates" not in inspect.signature(networks.builder(source)).parameters:
        return ()
    return (Axis("coordinate"),)


def _library_model(source: str, shape: tuple[int, ...] | None, settings: Mapping[str, Any] | None) -> NamedModel | None:
    """The model of a library, ``None`` for any other."""
    return libraries.named(source, Asked.of(shape, settings)) if libraries.kind_of(source) else None


def pixels_of(source: str, settings: Mapping[str, Any] | None = None) -> Pixels | None:
    """How the library of a model scales pixels for it, for :func:`biascope.samples_of`; ``None`` where none says so.

    Args:
        source: A model as :func:`family_of` takes it.
        settings: Its settings.
    """
    return libraries.pixels_of(source, Asked.of(None, settings)) if libraries.kind_of(source) else None


def _function_of(source: str) -> tuple[str, Callable[..., nn.Module]]:
    location, _, attribute = source.rpartition(":")
    module = _module_of(location)
    found = getattr(module, attribute, None)
    if not callable(found):
        public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
        own = [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]
        near = difflib.get_close_matches(attribute, public, n=8, cutoff=0.6)
        listed = ", ".join(own[:8] or near or list(public)[:8])
        remedy = "Name one of them after the colon." if listed else "Define it there."
        raise ValueError(
            f"{location} must define a function {attribute!r}, but has {listed or 'no function at all'}. {remedy}"
        )
    file = Path(location).stem if location.endswith(".py") else location.rpartition(".")[2]
    return file if attribute == "build" else attribute, found


class _Anew(importlib.machinery.SourceFileLoader):
    """Compiles a file whenever it is loaded: to Python's cache, two edits of one length within a second are one."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _module_of(location: str) -> ModuleType:
    if not location.endswith(".py"):
        with _first_on_path(Path.cwd()), settings_kept():
            try:
                return importlib.import_module(location)
            except FOREIGN as error:
                raise ValueError(
                    f"{location or 'The part before the colon'} must be an importable module, but importing it raised "
                    f"{_told(error)}. Check the name and the module."
                ) from error
    path = Path(location).expanduser()
    if not path.is_file():
        raise ValueError(f"The model file must exist, but {path} does not. Check the path.")
    _refuse_namesakes(path.resolve())
    if _imported(path) & _ON_TORCHVISION:
        define_operators_of_torchvision()
    # Files of one name in two folders are two modules: sources are looked up by the module's name.
    name = f"biascope_user_{path.stem}_{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Anew(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that the source of its functions can be found again
    with _first_on_path(path.resolve().parent), settings_kept():  # it may import its neighbours
        try:
            spec.loader.exec_module(module)
        except FOREIGN as error:
            raise ValueError(f"{path} must run without errors, but it raised {_told(error)}. Fix the file.") from error
    return module


#: Packages whose import may ask for operators of torchvision.
_ON_TORCHVISION = {"torchvision", "timm", "transformers", "peft", "open_clip"}


def _told(error: BaseException) -> str:
    return reason_of(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"


def _refuse_namesakes(path: Path) -> None:
    """Refuse a file that imports a neighbour where another folder's module of that name is loaded: Python would give it that one.

    Raises:
        ValueError: If there is such a module.
    """
    waiting, seen = [path], set()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        for name in _imported(source):
            own = [path.parent / f"{name}.py", path.parent / name / "__init__.py"]
            if not (neighbour := next((each for each in own if each.is_file()), None)):
                continue
            loaded = getattr(sys.modules.get(name), "__file__", None)
            if (
                loaded is not None
                and Path(loaded).resolve() != neighbour.resolve()
                and name not in sys.stdlib_module_names
            ):
                raise ValueError(
                    f"{path} must import its own {neighbour.name}, but {loaded} is already loaded under that name. "
                    "Rename one of them, or scan each network alone and compare the run folders."
                )
            waiting.append(neighbour)


def _imported(source: Path) -> set[str]:
    """First names of the modules that a file imports; none where it cannot be parsed, which running it will tell."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return {name.partition(".")[0] for name in found}


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Find modules of a folder first, for as long as it takes."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


@under_torch_defaults
def family_of(
    source: str,
    *,
    shape: tuple[int, ...] | None = None,
    settings: Mapping[str, Any] | None = None,
    weights_file: Path | str | None = None,
    batchnorm: str = "eval",
    asked_axes: tuple[Axis, ...] = (),
    holding: Holding | None = None,
) -> Family:
    """The family of a model that a user names: initial weights of a builder, or one set of trained weights.

    Args:
        source: A known name, ``path/to/file.py:build`` or ``package.module:build``; see :func:`builder_of`.
        shape: Shape of one input.
        settings: Settings of the builder.
        weights_file: File of trained weights. The family is then this one network. Names may differ from the network's by a prefix
            or a head (:mod:`biascope.families.names`), which the name of the family tells.
        batchnorm: The mode of BatchNorm.
        asked_axes: What the axes of an input are, where the user says so.
        holding: Which of several inputs are held.
    """
    other = weights_file is not None and libraries.kind_of(source) == "hf"
    if weights_file is not None and other:
        model: NamedModel | None = _folder_with(source, shape, settings, Path(weights_file))
    else:
        model = _library_model(source, shape, settings)
    if holding is not None and shape is None:
        raise ValueError(
            "The shape of the measured input must be given beside what is held. Pass --input, such as --input 16x4."
        )
    if model is not None and (weights_file is None or model.trained):
        if weights_file is not None and not other:
            raise ValueError(
                f"{source} comes with its own weights, got {weights_file} beside them. Leave --weights out."
            )
        if holding is not None:
            finish, came = holding.wrapper(model.build, torch.randn(3, *model.shape), model.name), model.build
            model = dataclasses.replace(model, build=lambda: finish(came()))
        names_held = () if holding is None else tuple(holding.held)
        return dataclasses.replace(model.family(batchnorm), axes=asked_axes or model.axes, held=names_held)
    name, build = (model.name, model.build) if model is not None else builder_of(source, shape, settings)
    axes = _usual_axes(source) if model is None else model.axes
    made = _reporting(name, build)
    finished = None if shape is None else of_one_input(made, shape, name, axes=asked_axes, holding=holding)
    axes = asked_axes or (holding.axes if holding is not None else ()) or axes
    names_held = () if holding is None else tuple(holding.held)
    if weights_file is None:
        build = made if finished is None else _reporting(name, lambda: finished(made()))
        return dataclasses.replace(
            Family.initialised(build, name=name, batchnorm=batchnorm), axes=axes, held=names_held
        )
    found, where = weights.load(weights_file), str(weights_file)

    def trained() -> nn.Module:
        module = made()
        module.load_state_dict(matched(found, module.state_dict(), where, headless=True))
        return module if finished is None else finished(module)

    with forked_rng(0):
        module, wanted = trained(), made().state_dict()
    fit = fitted([held(where, found)], held(name, wanted))[0]
    point = Family.point(module, _with_weights(name, weights_file, fit), batchnorm, build=trained)
    return dataclasses.replace(point, axes=axes, held=names_held)


def of_one_input(
    build: Builder, shape: tuple[int, ...], name: str, *, axes: tuple[Axis, ...], holding: Holding | None
) -> Callable[[nn.Module], nn.Module] | None:
    """What makes a function of one real input of each module that a builder returns; ``None`` if nothing needs to be done.

    Others are held, and token ids are replaced by their embeddings, if the axes are said to be tokens × channels.
    """
    texts = len(shape) == 2 and tuple(axis.name for axis in axes) == ("token", "channel")
    if holding is None:
        return on_embeddings(build, (shape[0], shape[1]), name) if texts else None
    try:
        return holding.wrapper(build, torch.randn(3, *shape), name)
    except ValueError as refused:
        if not texts:
            raise
        try:
            on_ids = holding.wrapper(build, torch.ones(3, shape[0], dtype=torch.long), name)
        except ValueError as also:  # no network on ids either, unless it asked for them
            raise (also if "indices" in str(refused) else refused) from None
        embedded = on_embeddings(lambda: on_ids(build()), (shape[0], shape[1]), name)
        if embedded is None:
            raise
        return lambda module: embedded(on_ids(module))


def _with_weights(name: str, file: Path | str, fit: Fitted) -> str:
    """What to call a network at weights from a file, with what differs in names."""
    return f"{name} at {as_text(Path(file).stem)}{f' ({fit.brief})' * bool(fit.brief)}"


def _folder_with(
    source: str, shape: tuple[int, ...] | None, settings: Mapping[str, Any] | None, file: Path
) -> NamedModel:
    """The model of a folder that transformers saved, with weights of another file; a head that this lacks is the folder's own.

    Raises:
        ValueError: If the weights do not fit.
    """
    folder, asked = Path(source.partition(":")[2]).expanduser(), Asked.of(shape, settings)
    given = Checkpoint.open(file)
    require_whole(given)
    if not has_weights(folder):
        model = libraries.named(source, dataclasses.replace(asked, state=given.params()))
        return dataclasses.replace(model, name=f"{model.name} at {as_text(file.stem)}")
    own = Checkpoint.open(folder)
    fit = fitted([given], own)[0]
    wanted = {name: tensor for name, tensor in own.tensors.items() if name not in fit.absent}
    if problems := weights.misfits(fit.shared.tensors, wanted, types=False):
        raise ValueError(f"The weights in {file} must fit {folder}: {problems}. Pass weights of the same model.")
    state = {name: own.read(name) for name in fit.absent} | fit.shared.params()
    model = libraries.named(source, dataclasses.replace(asked, state=state))
    return dataclasses.replace(model, name=_with_weights(model.name, file, fit))


def _reporting(name: str, build: Builder) -> Builder:
    """The builder; its failures become one sentence."""

    @functools.wraps(getattr(build, "func", build))
    def reported() -> nn.Module:
        return module_built(name, build)

    reported.func, reported.keywords = getattr(build, "func", build), getattr(build, "keywords", {})  # type: ignore[attr-defined]
    return reported


def checkpoint_files(folder: Path) -> list[Path]:
    """Weight files of a folder in the order of the numbers in their names.

    Raises:
        ValueError: If there are none.
    """
    if folder.is_file():
        raise ValueError(f"The checkpoints must be a folder, but {folder} is a file. Pass one file as weights.")
    if not folder.is_dir():
        raise ValueError(f"The checkpoints folder must exist, but {folder} does not. Check the path.")
    kinds = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"}
    files = [path for path in folder.iterdir() if path.suffix in kinds]
    if not files:
        raise ValueError(f"{folder} must hold weight files ({', '.join(sorted(kinds))}), but has none. Check the path.")
    return sorted(files, key=lambda path: natural_order(path.stem))
