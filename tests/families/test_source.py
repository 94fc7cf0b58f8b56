"""A network as a user names it: by name, file or module, with weights; and a sentence for whatever is wrong with it."""

import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from networks_under_test import CPU, global_states
from torch import nn

from biascope.families.network import Network
from biascope.families.source import (
    builder_of,
    checkpoint_files,
    family_of,
    parse_settings,
    parse_shape,
)
from biascope.results.wording import natural_order

MODEL = """
import torch
from torch import nn

WIDTH = 4

def build(width=WIDTH, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(9, width, bias=bias), nn.ReLU(), nn.Linear(width, 2))

def tiny():
    return nn.Linear(9, 1)

class Net(nn.Module):
    def __init__(self, size=9):
        super().__init__()
        self.linear = nn.Linear(size, 1)

    def forward(self, x):
        return self.linear(x)

def permuted():
    layer = nn.Linear(9, 1)
    layer.weight.data = layer.weight.data[:, torch.randperm(9)]
    return layer

def raising():
    raise KeyError("no such thing")

def refusing():
    raise ValueError("width must be even, got 3. Pass width=4.")

def nothing():
    return None

def weightless():
    return nn.ReLU()

constant = 3
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "my_model.py"
    path.write_text(MODEL)
    return path


def sentence_of(call, *args, **kwargs) -> str:
    with pytest.raises(ValueError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# ---- what is written on a command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape"), [("1x32x32", (1, 32, 32)), ("3×224×224", (3, 224, 224)), ("2,5", (2, 5)), ("10", (10,))]
)
def test_shapes(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["", "0x3", "1x", "x3", "1x-3", "3 x 4", "axb", "1.5x2", "1xx2"])
def test_wrong_shapes_are_a_sentence(text):
    message = sentence_of(parse_shape, text)
    assert message == f"The input shape must be positive lengths joined by x, got {text!r}. Pass for example 1x32x32."


def test_settings():
    settings = parse_settings(["a=1", "b=0.5", "c=word", "d=TRUE", "e=1,2.5,x", "f=7,", "g=", "h=a=b", "i=1e-3"])
    assert settings == {
        "a": 1, "b": 0.5, "c": "word", "d": True, "e": (1, 2.5, "x"), "f": (7,), "g": "", "h": "a=b", "i": 0.001,
    }  # fmt: skip
    assert isinstance(settings["a"], int)
    assert parse_settings([]) == {}


@pytest.mark.parametrize("pair", ["width", "=3", "1a=3", "a b=3"])
def test_wrong_settings_are_a_sentence(pair):
    message = sentence_of(parse_settings, [pair])
    assert message == f"A setting must be written key=value, got {pair!r}. Pass for example --set pooling=average."


# ---- builders ------------------------------------------------------------------------------------------------------


def test_a_published_network_by_any_spelling():
    name, build = builder_of("LeNet")
    assert name == "lenet"
    assert sum(part.numel() for part in build().parameters()) == 60_941


def test_shape_and_settings_reach_a_published_network():
    name, build = builder_of("lenet", (3, 16, 16), {"pooling": "average", "outputs": 5})
    assert name == "lenet pooling=average outputs=5"
    assert Network.of(build())(torch.zeros(2, 3, 16, 16)).shape == (2, 5)
    _, build = builder_of("lenet", (3, 16, 16), {"channels": 1})  # a setting beats the shape
    assert Network.of(build())(torch.zeros(2, 1, 16, 16)).shape == (2, 1)


def test_an_unknown_name_is_a_sentence_with_the_nearest():
    message = sentence_of(builder_of, "ResNet19")
    assert message.startswith("network must be one of 'coordinate_mlp', 'densenet121', ")
    assert "got 'ResNet19'. Did you mean 'resnet18' or " in message
    assert sentence_of(builder_of, "qqq").endswith("got 'qqq'. Pass one of these names.")


@pytest.mark.parametrize("shape", [(32, 32), (1, 32, 16), (1,)])
def test_published_networks_take_square_images(shape):
    listed = "×".join(map(str, shape))
    assert sentence_of(builder_of, "lenet", shape) == (
        f"lenet takes square images, channels × side × side, got {listed}. Pass 1x32x32."
    )


def test_a_setting_that_does_not_exist_is_a_sentence(model):
    message = sentence_of(builder_of, "lenet", None, {"poling": "max"})
    assert message.startswith("lenet must be callable with the settings {'poling': 'max'}: ")
    assert "It takes: channels, outputs, image_size, activation, pooling, padding, hidden, law." in message
    assert "It takes: width, bias." in sentence_of(builder_of, f"{model}:build", None, {"depth": 3})
    assert "It takes: none." in sentence_of(builder_of, f"{model}:tiny", None, {"depth": 3})


def test_a_word_that_is_no_truth_value_is_refused_where_it_would_count_as_true(model):
    message = sentence_of(builder_of, "resnet18", None, parse_settings(["batchnorm=no"]))
    assert message == "batchnorm of resnet18 must be true or false, got 'no'. Pass batchnorm=true or batchnorm=false."
    assert "bias of my_model must be true or false" in sentence_of(builder_of, f"{model}:build", None, {"bias": "off"})
    assert (
        builder_of(f"{model}:build", None, {"bias": "learned"})[0] == "my_model bias=learned"
    )  # it may take a name there
    for setting in ("batchnorm=False", "batchnorm=0"):
        norms = [
            type(layer).__name__ for layer in builder_of("resnet18", None, parse_settings([setting]))[1]().modules()
        ]
        assert "BatchNorm2d" not in norms, setting


def test_a_function_of_a_file(model):
    before = list(sys.path)
    name, build = builder_of(f"{model}:build", None, {"width": 3})
    assert name == "my_model width=3"  # a function called build is known by its file
    assert build()[1].weight.shape == (3, 9)
    assert builder_of(f"{model}:tiny")[0] == "tiny"
    assert builder_of(f"{model}:Net", None, {"size": 4})[1]().linear.in_features == 4  # a class builds itself
    assert sys.path == before


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_the_model.py").write_text("WIDTH = 7")
    file = tmp_path / "net.py"
    file.write_text(
        "import neighbour_of_the_model as n\nfrom torch import nn\ndef build(): return nn.Linear(n.WIDTH, 1)"
    )
    assert builder_of(f"{file}:build")[1]().in_features == 7


def test_an_edited_file_is_read_again_and_is_another_family(tmp_path):
    file = tmp_path / "edited.py"
    text = "from torch.nn import Linear, init\ndef build():\n    a = Linear(3, 1)\n    init.normal_(a.weight, std={})\n    return a"
    identities = []
    for std in (1.0, 10.0, 1.0):  # of another length, since Python trusts the date of a file to the second
        file.write_text(text.format(std))
        family = family_of(f"{file}:build")
        identities.append(family.identity)
        spread = float(family.draw(400, seed=0, run=CPU).params["weight"].std())
        assert spread == pytest.approx(std, rel=0.1)
    assert identities[0] == identities[2] != identities[1]


def test_a_function_of_a_package(tmp_path, monkeypatch):
    package = tmp_path / "package_of_models" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text(MODEL)
    (package / "shut.py").write_text("x = (")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    name, build = builder_of("package_of_models.inner.deep:build")
    assert name == "deep"
    assert isinstance(build(), nn.Sequential)
    message = sentence_of(builder_of, "package_of_models.inner.shut:build")
    assert message.startswith(
        "package_of_models.inner.shut must be an importable module, but importing it raised Syntax"
    )
    assert message.endswith("Check the name and the module.")
    assert sys.path == before


@pytest.mark.parametrize("source", ["no_such_module_at_all:build", ":build", ".relative:build", "a/path:build"])
def test_a_module_that_cannot_be_imported_is_a_sentence(source):
    message = sentence_of(builder_of, source)
    assert " must be an importable module, but importing it raised " in message
    assert message.endswith(". Check the name and the module.")


def test_a_missing_file_is_a_sentence(tmp_path):
    path = tmp_path / "none.py"
    assert (
        sentence_of(builder_of, f"{path}:build") == f"The model file must exist, but {path} does not. Check the path."
    )


def test_a_file_without_a_function_is_a_sentence(model):
    assert sentence_of(builder_of, str(model)) == (
        f"A model file needs the name of its builder behind a colon, got {model}. Pass {model}:build."
    )


@pytest.mark.parametrize("attribute", ["missing", "constant"])
def test_a_missing_function_is_a_sentence_that_lists_what_there_is(model, attribute):
    message = sentence_of(builder_of, f"{model}:{attribute}")
    assert message.startswith(
        f"{model} must define a function {attribute!r}, but has build, tiny, Net, permuted, raising"
    )
    assert message.endswith("Name one of them after the colon.")
    model.write_text("x = 3")
    assert "but has no function at all." in sentence_of(builder_of, f"{model}:build")


@pytest.mark.parametrize("text", ["raise OSError('no disk')", "x = (", "import no_such_module_at_all"])
def test_a_file_that_does_not_run_is_a_sentence(model, text):
    model.write_text(text)
    before = list(sys.path)
    message = sentence_of(builder_of, f"{model}:build")
    assert message.startswith(f"{model} must run without errors, but it raised ")
    assert message.endswith("Fix the file.")
    assert sys.path == before


# ---- families ------------------------------------------------------------------------------------------------------


def test_a_family_of_initial_weights(model):
    before = global_states()
    family = family_of(f"{model}:build", settings={"width": 5})
    assert (family.law, family.name) == ("initialised", "my_model width=5")
    assert family.drawing.startswith("replayed")
    assert family.draw(3, seed=0, run=CPU)(torch.zeros(2, 1, 3, 3)).shape == (3, 2, 2)
    assert global_states() == before


def test_a_builder_that_cannot_be_replayed_is_still_measured(model):
    family = family_of(f"{model}:permuted")
    assert family.drawing.startswith("built one by one, since it draws with aten.randperm")


def test_settings_are_part_of_the_identity(model):
    identities = [family_of(f"{model}:build", settings={"bias": bias}).identity for bias in (True, False, True)]
    assert identities[0] == identities[2]
    assert identities[0] != identities[1]


@pytest.mark.parametrize("with_weights", [False, True])
def test_builders_that_fail_are_sentences(model, tmp_path, with_weights):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "w.pt")
    weights = {"weights_file": tmp_path / "w.pt"} if with_weights else {}
    assert sentence_of(family_of, f"{model}:raising", **weights) == (
        "raising must build without errors, but it raised KeyError: 'no such thing'. Fix the error above."
    )
    assert sentence_of(family_of, f"{model}:refusing", **weights) == "width must be even, got 3. Pass width=4."
    assert sentence_of(family_of, f"{model}:nothing", **weights) == (
        "nothing must return a torch.nn.Module, got NoneType. Return the network."
    )


def test_a_network_without_parameters_is_a_sentence(model):
    assert sentence_of(family_of, f"{model}:weightless") == (
        "weightless must have parameters to draw, but has none. Pass a network with weights."
    )


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_family_at_trained_weights(model, tmp_path, kind, as_text):
    state = {name: torch.full_like(part, 0.5) for name, part in builder_of(f"{model}:build")[1]().state_dict().items()}
    file = tmp_path / ("epoch-3.safetensors" if kind == "safetensors" else "epoch-3.pt")
    safetensors.torch.save_file(state, file) if kind == "safetensors" else torch.save({"model": state}, file)
    before = global_states()
    family = family_of(f"{model}:build", weights_file=str(file) if as_text else file)
    assert global_states() == before
    assert (family.law, family.name) == ("point", "my_model at epoch-3")
    assert all(bool((part == 0.5).all()) for part in family.template.params.values())


def test_weights_of_another_network_are_a_sentence(model, tmp_path):
    state = builder_of(f"{model}:build", None, {"width": 6})[1]().state_dict()
    del state["3.bias"]
    torch.save(state, tmp_path / "w.pt")
    message = sentence_of(family_of, f"{model}:build", weights_file=tmp_path / "w.pt")
    assert message.startswith(f"The weights in {tmp_path / 'w.pt'} must fit the network: 1 missing (3.bias); ")
    assert "1.weight (6, 9) instead of (4, 9)" in message
    assert message.endswith("Pass the matching model.")


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoints_come_in_the_order_of_their_numbers(tmp_path):
    names = ["epoch-10.pt", "epoch-9.safetensors", "epoch-9b.pt", "epoch-100.ckpt", "best.pth", "notes.txt", "last.bin"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    found = [path.name for path in checkpoint_files(tmp_path)]
    assert found == ["best.pth", "epoch-9.safetensors", "epoch-9b.pt", "epoch-10.pt", "epoch-100.ckpt", "last.bin"]


def test_natural_order_takes_any_name():
    names = ["x²", "²", "x10", "x9", "", "10", "9", "x", "step_2_of_10", "step_2_of_9"]
    ordered = sorted(names, key=natural_order)
    assert ordered.index("9") < ordered.index("10")
    assert ordered.index("x9") < ordered.index("x10")
    assert ordered.index("step_2_of_9") < ordered.index("step_2_of_10")


def test_folders_without_checkpoints_are_sentences(tmp_path):
    missing = tmp_path / "none"
    assert sentence_of(checkpoint_files, missing) == (
        f"The checkpoints folder must exist, but {missing} does not. Check the path."
    )
    (tmp_path / "notes.txt").write_text("")
    assert sentence_of(checkpoint_files, tmp_path) == (
        f"{tmp_path} must hold weight files (.bin, .ckpt, .pt, .pth, .safetensors), but has none. Check the path."
    )
