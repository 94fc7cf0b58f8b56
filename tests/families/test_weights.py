"""Named weights: counted, moved, hashed, and read from disk without running foreign code."""

import pytest
import torch
from checkpoint_files import Trap
from networks_under_test import batchnorm_convnet, normal
from torch import nn

from biascope.families import weights
from biascope.families.names import matched
from biascope.runs.digest import fingerprint


def test_counting_and_stacking():
    members = [{"weight": torch.full((2, 3), float(k)), "steps": torch.tensor(k)} for k in range(4)]
    stack = weights.stacked(members)
    assert stack["weight"].shape == (4, 2, 3)
    assert stack["steps"].tolist() == [0, 1, 2, 3]
    assert weights.count(stack) == 4 * (6 + 1)
    assert weights.count({}) == 0


def test_moving_keeps_counters_whole():
    moved = weights.moved({"w": torch.ones(2), "steps": torch.tensor(7)}, torch.device("cpu"), torch.float16)
    assert moved["w"].dtype is torch.float16
    assert moved["steps"].dtype is torch.int64
    assert int(moved["steps"]) == 7


def test_a_fingerprint_sees_names_shapes_types_and_values_but_not_the_order():
    params = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}
    same = {"b": torch.tensor(3), "a": torch.arange(6.0).reshape(3, 2).reshape(2, 3)}
    others = [
        {"c": params["a"], "b": params["b"]},
        {"a": params["a"].reshape(3, 2), "b": params["b"]},
        {"a": params["a"].double(), "b": params["b"]},
        {"a": params["a"].view(torch.int32), "b": params["b"]},  # the same bytes
        {"a": params["a"], "b": torch.tensor(4)},
        {"a": params["a"] + torch.eye(2, 3) * 1e-6, "b": params["b"]},
        {"a": params["a"]},
    ]
    assert fingerprint(params) == fingerprint(same)
    prints = [fingerprint(each) for each in (params, *others)]
    assert len(set(prints)) == len(prints)


def test_a_fingerprint_takes_what_modules_hold():
    # BatchNorm counts its steps in a tensor without axes; some networks keep empty or half-precision tensors.
    assert fingerprint(batchnorm_convnet().state_dict())
    strange = {"none": torch.zeros(0, 3), "half": torch.ones(2, dtype=torch.bfloat16), "flag": torch.tensor(True)}
    assert fingerprint(strange) != fingerprint({**strange, "flag": torch.tensor(False)})


def test_a_fingerprint_reads_strided_tensors_as_they_are():
    square = normal(3, 3)
    assert fingerprint({"w": square.T}) == fingerprint({"w": square.T.contiguous()})
    assert fingerprint({"w": square.T}) != fingerprint({"w": square})


def same(first: weights.Params, second: weights.Params) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("wrap", [lambda state: state, *(lambda state, key=key: {"epoch": 3, key: state} for key in
                                                         ("state_dict", "model_state_dict", "model"))])  # fmt: skip
def test_torch_files_and_training_checkpoints_are_read(tmp_path, wrap):
    state = batchnorm_convnet().state_dict()
    torch.save(wrap(state), tmp_path / "weights.pt")
    assert same(weights.load(tmp_path / "weights.pt"), dict(state))


def test_what_is_saved_is_read_back(tmp_path):
    params = {"w": normal(3, 4).T, "row": normal(2).requires_grad_(), "steps": torch.tensor(4)}
    weights.save(params, tmp_path / "w.safetensors", {"made by": "a test"})
    assert same(weights.load(str(tmp_path / "w.safetensors")), params)


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"^The weights file must exist, but .*none\.pt does not\. Check the path\.$"):
        weights.load(tmp_path / "none.pt")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_damaged_file_is_a_sentence(tmp_path, name):
    (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(ValueError, match=r"must be a safetensors file or a torch file of plain tensors.*Save the"):
        weights.load(tmp_path / name)


def test_code_in_a_weights_file_is_never_run(tmp_path):
    torch.save({"w": torch.zeros(1), "trap": Trap(str(tmp_path / "sprung"))}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="could not be read as one"):
        weights.load(tmp_path / "w.pt")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [[torch.zeros(1)], {"w": torch.zeros(1), "lr": 0.1}])
def test_something_else_than_named_tensors_is_a_sentence(tmp_path, content):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"w\.pt must hold tensors by name, .* Save model\.state_dict\(\)\.$"):
        weights.load(tmp_path / "w.pt")


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod."])
def test_weights_are_matched_through_the_prefix_of_a_wrapper(prefix):
    wanted = nn.Linear(2, 3).state_dict()
    loaded = {prefix + name: tensor for name, tensor in reversed(wanted.items())}
    found = matched(loaded, wanted, "file")
    assert same(found, dict(wanted))
    assert list(found) == list(wanted)


def test_a_prefix_is_kept_where_the_network_has_it():
    wanted = {"module.weight": torch.zeros(1)}
    assert same(matched(dict(wanted), wanted, "file"), wanted)


def test_what_does_not_fit_is_listed():
    wanted = {f"layer{k}.weight": torch.zeros(2) for k in range(6)} | {"head": torch.zeros(3)}
    loaded = {"head": torch.zeros(4), "tail": torch.zeros(1)}
    with pytest.raises(ValueError) as caught:
        matched(loaded, wanted, "some/file.pt")
    message = str(caught.value)
    assert message.startswith("The weights in some/file.pt must fit the network: ")
    assert "6 missing (layer0.weight, layer1.weight, layer2.weight, layer3.weight …)" in message
    assert "1 extra (tail)" in message
    assert "1 of another shape (head (4,) instead of (3,))" in message
    assert message.endswith("Pass the matching model.")


def test_one_prefix_is_removed_and_not_the_next_one_too() -> None:
    wanted = {"model.fc.weight": torch.zeros(2)}
    found = matched({"module.model.fc.weight": torch.ones(2)}, wanted, "a file")
    assert found["model.fc.weight"].tolist() == [1, 1]
