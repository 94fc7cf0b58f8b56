"""Networks as people bring them: measured, or refused in one sentence that says what to do."""

import numpy as np
import odd_models
import pytest
import torch
from asking import Asking
from torch import nn

from biascope.families.family import Family
from biascope.kernels.gram import tangent_gram
from biascope.measures.average_geometry import average_geometry
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

SCAN = ["--input", "1x4x4", "--draws", "4", "--device", "cpu", "--out", "run"]
KERNEL = ["--data", "images.npz", "--samples", "24,12", "--leading", "5", "--device", "cpu", "--out", "run"]

# A network, and a part of the sentence that refuses it, whatever is to be measured of it.
REFUSED = {
    "scripted": "compiled by torch.jit",
    "traced": "compiled by torch.jit",
    "holds_a_lock": "lock is not (cannot pickle",
    "holds_an_open_file": "log is not (cannot pickle",
    "holds_a_generator": "numbers is not (cannot pickle",
    "sparse_parameter": "table is torch.sparse_coo",
    "on_meta": "first.weight is on the meta device",
    "without_parameters": "must have parameters",
    "gives_bool": "must return real numbers, got torch.bool",
    "gives_complex": "must return real numbers, got torch.complex64",
    "gives_one_number": "must return a row of outputs",
    "gives_nothing_to_read": "must return a row of outputs",
    "gives_no_rows": "must return a row of outputs",
    "gives_sparse": "must return a dense tensor",
    "gives_transposed": "Put the inputs along the first axis",
    "gives_tuple": "must return one tensor, got tuple",
    "gives_list": "must return one tensor, got list",
    "gives_dict": "must return one tensor, got dict",
    "gives_integers": "must return real numbers, got torch.int64",
    "gives_none": "must return one tensor, got NoneType",
    "gives_text": "must return one tensor, got str",
    "gives_numpy": "must return one tensor, got ndarray",
    "gives_nan": "finite",
    "gives_infinity": "finite",
    "lazy": "Run one forward pass in the builder",
    "exits_when_built": "sys.exit(0)",
    "exits_with_words_when_built": "sys.exit('no weights found')",
    "exits_in_forward": "Leave sys.exit out of forward",
    "raises_key_error": "KeyError: 'embedding'",
    "raises_assertion": "AssertionError",
    "raises_not_implemented": "NotImplementedError",
    "raises_stop_iteration": "StopIteration",
    "raises_many_lines": "first line",
    "raises_when_built": "ZeroDivisionError: division by zero",
    "calls_itself": "maximum recursion depth exceeded",
    "builds_none": "got NoneType",
    "builds_text": "got str",
    "builds_tensor": "got Tensor",
    "builds_class": "got type",
    "builds_dict": "got dict",
    "builds_state": "got OrderedDict",
    "needs_arguments": "missing a required argument: 'width'",
    "wrong_shape": "mat1 and mat2 shapes cannot be multiplied",
    "tokens": "measure it in the space of its embeddings",
    "two_inputs": "wrap it to take one tensor",
    "NOT_A_FUNCTION": "must define a function",
    "no_such": "must define a function",
}
BY_INPUTS = {
    "gives_detached": "depend on its input",
    "gives_constant": "depend on its input",
    "autograd_inside": "depend on its input",
}
ANSWERED = [
    "flat",
    "old_weight_norm",
    "new_weight_norm",
    "weight_norm_over_all",
    "rrelu",
    "rrelu_as_a_function",
    "parameter_without_numbers",
    "all_frozen",
    "half_precision",
    "packed_lstm",
    "counts_in_a_buffer",
    "mixture_of_experts",
    "prints",
]


@pytest.mark.parametrize("name", [*REFUSED, *BY_INPUTS])
def test_a_scan_refuses_it_in_one_sentence(ask: Asking, name: str) -> None:
    ask.refused("scan", f"odd.py:{name}", *SCAN, naming=(REFUSED | BY_INPUTS)[name])


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_refuses_it_in_one_sentence(ask: Asking, name: str) -> None:
    ask.refused("kernel", f"odd.py:{name}", *KERNEL, naming=REFUSED[name])


@pytest.mark.parametrize("name", ["gives_tuple", "gives_one_number", "exits_in_forward", "raises_key_error", "lazy"])
@pytest.mark.parametrize(
    "command",
    [
        ["selftest", "{}", "--input", "1x4x4"],
        ["measure", "sample_score", "{}", "--data", "images.npz", "--draws", "4", "--device", "cpu", "--out", "run"],
        ["measure", "directional_bias", "{}", "--input", "1x4x4", "--device", "cpu", "--out", "run"],
        ["measure", "linearized_training", "{}", "--data", "images.npz", "--device", "cpu", "--out", "run"],
    ],
    ids=["selftest", "sample_score", "directional_bias", "linearized_training"],
)
def test_other_commands_refuse_it_too(ask: Asking, command: list[str], name: str) -> None:
    ask.refused(*(f"odd.py:{name}" if word == "{}" else word for word in command))


@pytest.mark.parametrize("name", ANSWERED)
def test_it_is_measured(ask: Asking, name: str) -> None:
    ask.answered("scan", f"odd.py:{name}", *SCAN)


@pytest.mark.parametrize("name", ANSWERED)
def test_its_kernel_is_measured_without_a_warning(ask: Asking, name: str) -> None:
    assert "Warning" not in ask.answered("kernel", f"odd.py:{name}", *KERNEL).out


# What PyTorch cannot differentiate forwards, or compute as a stack; such a network is no broken one.
NOT_RUN = {
    "old_weight_norm": 4,
    "rrelu_as_a_function": 1,
    "mixture_of_experts": 1,
    "packed_lstm": 5,
    "counts_in_a_buffer": 5,
}


@pytest.mark.parametrize("name", ANSWERED)
def test_the_selftest_gives_no_false_alarm(ask: Asking, name: str) -> None:
    missing = NOT_RUN.get(name, 0)
    told = f"{10 - missing} of 10 checks passed. The others could not run" if missing else "All 10 checks passed."
    answer = ask.answered("selftest", f"odd.py:{name}", "--input", "1x4x4", warning=told)
    assert answer.out.count("  no run ") == missing


@pytest.mark.parametrize("name", ["mixture_of_experts", "parameter_without_numbers"])
def test_a_parameter_that_no_sample_uses_does_not_keep_it_from_being_trained(ask: Asking, name: str) -> None:
    words = ["--data", "images.npz", "--samples", "24,12", "--positive", "0", "--epochs", "2", "--device", "cpu"]
    ask.answered("measure", "linearized_training", f"odd.py:{name}", *words, "--out", "run")


DRAWS, STEP = 6, 0.05
PRECISIONS = {"mixture_of_experts": "float32"}  # it writes its outputs into a tensor of the default type


def plain_members(name: str, run: Run) -> list[nn.Module]:
    """The networks that are drawn, each as a module of its own with plain weights."""
    stack = Family.initialised(getattr(odd_models, name)).draw(DRAWS, seed=0, run=run)
    members = []
    for index in range(DRAWS):
        module = getattr(odd_models, name)().to(run.dtype).eval()
        state = {**stack.params, **stack.buffers}
        module.load_state_dict({key: tensor[index] for key, tensor in state.items()})
        members.append(module)
    return members


def plain_gradient(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of the first output, at one input."""
    point = x[None].clone().requires_grad_()
    return torch.autograd.grad(module(point)[0, 0], point)[0].flatten()


def plain_difference(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The same by central differences, pixel by pixel."""
    found = []
    for pixel in range(x.numel()):
        move = torch.zeros(x.numel(), dtype=x.dtype)
        move[pixel] = STEP
        with torch.no_grad():
            ahead, behind = (module((x + sign * move.reshape(x.shape))[None])[0, 0] for sign in (1, -1))
        found.append((ahead - behind) / (2 * STEP))
    return torch.stack(found)


@pytest.mark.parametrize("estimator", ["exact", "difference"])
@pytest.mark.parametrize("name", ANSWERED)
def test_its_geometry_is_that_of_a_plain_loop(name: str, estimator: str) -> None:
    run = Run(device="cpu", precision=PRECISIONS.get(name, "float64"), progress=False)
    probe = Probe.gaussian((1, 4, 4), num=3, seed=1)
    family = Family.initialised(getattr(odd_models, name))
    found = average_geometry(family, probe, estimator=estimator, step=STEP, draws=DRAWS, run=run)
    plain = plain_gradient if estimator == "exact" else plain_difference
    x = probe.inputs(0, 1, run)
    gradients = torch.stack([plain(module, one) for module in plain_members(name, run) for one in x]).double()
    expected = gradients.T @ gradients / len(gradients)
    # A result keeps its matrix in float32. Differences that are taken in float32 lose more digits.
    tolerance = 2e-6 if run.precision == "float64" else 1e-4
    np.testing.assert_allclose(found.matrix, expected.numpy(), rtol=0, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("name", ANSWERED)
def test_its_kernel_is_that_of_a_plain_loop(name: str) -> None:
    run = Run(device="cpu", precision=PRECISIONS.get(name, "float64"), progress=False)
    x = torch.randn(10, 1, 4, 4, dtype=run.dtype, generator=torch.Generator().manual_seed(3))
    stack = Family.initialised(getattr(odd_models, name)).draw(DRAWS, seed=0, run=run)
    module = plain_members(name, run)[0]
    weights = [each.requires_grad_() for each in module.parameters()]
    rows = [torch.autograd.grad(module(one[None])[0, 0], weights, materialize_grads=True) for one in x]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    expected = jacobian @ jacobian.T
    found = tangent_gram(stack.member(0).read("first"), x, run=run).matrix
    tolerance = 1e-12 if run.precision == "float64" else 1e-5
    assert torch.allclose(found, expected, rtol=0, atol=tolerance * float(expected.max()))


def test_a_hook_that_is_left_out_is_told(ask: Asking) -> None:
    ask.answered("scan", "odd.py:backward_hook", *SCAN, warning="gradient hook on 'first'")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("import sys\nsys.exit(0)\n", "sys.exit(0)"),
        ("raise KeyError('x')\n", "KeyError: 'x'"),
        ("def build(:\n", "SyntaxError"),
        ("import nosuchpackage\n", "No module named 'nosuchpackage'"),
        ("", "must define a function 'build'"),
        ("\x00", "null bytes"),
        ("def build():\n    return build\n", "got function"),
        ("import os\nraise SystemExit('bye')\n", "sys.exit('bye')"),
    ],
)
def test_a_file_that_cannot_be_run_is_told(ask: Asking, content: str, told: str) -> None:
    (ask.folder / "mine.py").write_text(content)
    ask.refused("scan", "mine.py:build", *SCAN, naming=told)
