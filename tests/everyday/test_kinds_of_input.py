"""Tables, sequences, tokens, graphs and dictionaries as people pass them: measured in their own words, or refused."""

import shutil
from pathlib import Path

import kinds_of_input
import numpy as np
import pytest
import torch
from asking import Asking

from biascope import Run, scan

DRAWS = ["--draws", "32", "--device", "cpu", "--out", "run"]
TABLE = ["kinds.py:table", "--input", "6"]
LSTM = ["kinds.py:Lstm", "--input", "9x3"]
CONV = ["kinds.py:conv", "--input", "3x9"]
IDS = ["kinds.py:Ids", "--input", "5x4", "--axes", "token,channel"]
MASKED_IDS = ["kinds.py:IdsAndMask", "--input", "5x4", "--axes", "token,channel", "--hold", "mask=mask.npy"]
EMBEDDED = ["kinds.py:Embedded", "--input", "5x4", "--axes", "token,channel", "--hold", "mask=mask.npy"]
UNMASKED = ["kinds.py:Embedded", "--input", "5x4", "--axes", "token,channel", "--hold", "mask=none"]
GRAPH = ["kinds.py:Graph", "--input", "6x3", "--hold", "adjacency=ring.npy"]
EDGES = ["kinds.py:Edges", "--input", "6x3", "--hold", "edge_index=edges.npy"]
PARTS = ["kinds.py:Parts", "--input", "x=6x3", "--hold", "weight=weights.csv"]
KINDS = {
    "table": TABLE,
    "lstm": LSTM,
    "conv": CONV,
    "ids": IDS,
    "ids and mask": MASKED_IDS,
    "embeddings and mask": EMBEDDED,
    "no mask": UNMASKED,
    "graph": GRAPH,
    "edges": EDGES,
    "dictionary": PARTS,
    "mlp": ["mlp", "--input", "6"],
    "named": ["kinds.py:Lstm", "--input", "x=9x3"],
}
OF_IMAGES = ("pixel", "VGG", "spatial", "image", "LeNet")


@pytest.fixture
def asked(ask: Asking) -> Asking:
    """Beside the networks, what is held."""
    shutil.copy(Path(kinds_of_input.__file__), ask.folder / "kinds.py")
    ring = (np.eye(6) + np.roll(np.eye(6), 1, 0)) / 2
    mask = np.array([True, True, False, False, False])
    np.save("ring.npy", ring)
    np.save("small.npy", ring[:4, :4])
    np.save("gap.npy", np.where(ring > 0, ring, np.nan))
    np.save("words.npy", np.array(["a", "b"]))
    np.savez("two.npz", ring=ring, mask=mask)
    np.save("edges.npy", np.array([[1, 2], [0, 0]]))
    np.save("mask.npy", mask)
    np.save("nothing.npy", 0 * mask)
    np.savetxt("weights.csv", np.arange(6.0)[None], delimiter=",")
    (ask.folder / "text.csv").write_text("age,income\n1,2\n")
    return ask


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_speaks_of_no_image(asked: Asking, kind: str) -> None:
    answer = asked.answered("scan", *KINDS[kind], *DRAWS)
    assert not [word for word in OF_IMAGES if word in answer.out + answer.err]


@pytest.mark.parametrize("kind", ["lstm", "ids and mask", "edges", "dictionary"])
def test_other_measurements_take_it(asked: Asking, kind: str) -> None:
    asked.answered("measure", "average_geometry", *KINDS[kind], *DRAWS, "--inputs", "2")
    asked.answered("scan", *KINDS[kind], *DRAWS, "--dry-run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_selftest_has_no_failure(asked: Asking, kind: str) -> None:
    assert "FAILED" not in asked.answered("selftest", *KINDS[kind]).out


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("lstm", "of the sensitivity is on the last"),
        ("ids", "is on the first of 5 tokens"),
        ("ids and mask", "Over 99 % of the sensitivity is on the first 2 of 5 tokens"),
        ("embeddings and mask", "Over 99 % of the sensitivity is on the first 2 of 5 tokens"),
        ("edges", "Over 99 % of the sensitivity is on nodes 2 and 3 of 6"),
        ("dictionary", "the last 3 of 6"),
    ],
)
def test_where_it_is_sensitive_is_told(asked: Asking, kind: str, sentence: str) -> None:
    named = ["--axes", "time,feature"] if kind == "dictionary" else []
    asked.answered("scan", *KINDS[kind], *named, *DRAWS, warning=sentence)


def test_the_first_place_of_several_is_warned_of(asked: Asking) -> None:
    words = ["kinds.py:bare_lstm", "--input", "9x3", *DRAWS]
    asked.answered("scan", *words, warning="Each input has 9×8 outputs, and the first of them is measured")
    assert "Each input has" not in asked.answered("scan", *words, "--readout", "mean").out


@pytest.mark.parametrize(
    ("words", "naming"),
    [
        ([*LSTM[:1], "--input", "9"], "Expected 3, got 9"),
        ([*LSTM[:1], "--input", "9x4"], "Expected 3, got 4"),
        ([*LSTM[:1], "--input", "9x3x1"], "must accept inputs of shape 9×3×1"),
        ([*LSTM[:1], "--input", "9x"], "positive lengths joined by x"),
        ([*LSTM[:1], "--input", "=9x3"], "named as in --input x=16x4"),
        ([*LSTM[:1], "--input", "y=9x3"], "must have an input 'y', and has x"),
        ([*LSTM, "--axes", "time"], "as many as those of its inputs (9×3), got time"),
        ([*LSTM, "--axes", "time,letters"], "got 'letters'"),
        ([*LSTM, "--axes", "time,time"], "must have different names"),
        ([*LSTM, "--hold", "mask=none"], "takes x alone, got mask to hold"),
        ([*TABLE[:1], "--input", "7"], "cannot be multiplied"),
        ([*TABLE[:1], "--input", "6x1x1"], "must accept inputs of shape 6×1×1"),
        (["lenet", "--input", "6"], "lenet takes square images"),
        (["lenet", "--axes", "time,feature"], "as many as those of its inputs (1×32×32)"),
        ([*IDS[:1], "--input", "5"], "--axes token,channel"),
        ([*IDS[:1], "--input", "5x4"], "--axes token,channel"),
        ([*IDS[:1], "--input", "5x3", "--axes", "token,channel"], "Pass --input 5x4"),
        ([*GRAPH[:3]], "--hold NAME=FILE"),
        ([*GRAPH[:1], "--hold", "adjacency=ring.npy"], "Pass --input"),
        ([*GRAPH[:1], "--input", "5x3", *GRAPH[3:]], "with adjacency held, but that failed with"),
        ([*GRAPH[:3], "--hold", "adjacency"], "NAME=VALUE"),
        ([*GRAPH[:3], "--hold", "adjacency=none"], "with adjacency held, but that failed with"),
        ([*GRAPH[:3], "--hold", "adjacency=missing.npy"], "missing.npy does not exist"),
        ([*GRAPH[:3], "--hold", "adjacency=gap.npy"], "no missing values, got 24 NaN of 36"),
        ([*GRAPH[:3], "--hold", "adjacency=words.npy"], "must be numbers or truth values"),
        ([*GRAPH[:3], "--hold", "adjacency=two.npz"], "must hold one array"),
        ([*GRAPH[:3], "--hold", "adjacency=text.csv"], "must be readable as adjacency"),
        ([*GRAPH[:3], "--hold", "adjacency=small.npy"], "with adjacency held, but that failed with"),
        ([*GRAPH, "--hold", "adjacency=ring.npy"], "must be named once"),
        ([*GRAPH, "--hold", "x=ring.npy"], "must keep one input to measure"),
        ([*EMBEDDED[:5], "--hold", "mask=nothing.npy"], "outputs that are not finite numbers"),
        ([*MASKED_IDS[:5], "--hold", "mask=nothing.npy"], "outputs that are not finite numbers"),
        ([*PARTS[:1], "--input", "6x3", *PARTS[3:]], "--input NAME=16x4"),
        ([*PARTS[:1], "--input", "y=6x3", *PARTS[3:]], "KeyError: 'x'"),
        ([*PARTS[:3]], "must have an input 'x', and has batch"),
    ],
)
@pytest.mark.parametrize("command", ["scan", "selftest"])
def test_what_does_not_fit_is_refused(asked: Asking, command: str, words: list[str], naming: str) -> None:
    asked.refused(command, *words, *(DRAWS if command == "scan" else []), naming=naming)


def test_modules_are_measured_with_their_weights() -> None:
    torch.manual_seed(0)
    run = Run(device="cpu", progress=False)
    for module, how in (
        (kinds_of_input.Lstm(), {"input": (9, 3)}),
        (kinds_of_input.Ids(), {"input": (5, 4), "axes": "token,channel"}),
        (kinds_of_input.Graph(), {"input": (6, 3), "hold": {"adjacency": np.eye(6)}}),
        (kinds_of_input.Parts(), {"input": "x=6x3", "hold": {"weight": [1, 1, 0, 0, 0, 0]}}),
    ):
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        found = scan(module, draws=16, run=run, report=False, **how).results
        assert len(found) > 1
        assert all(result.at_given_weights for result in found)
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_comparison_speaks_of_steps(asked: Asking) -> None:
    words = ["compare", "kinds.py:Lstm", "kinds.py:bare_lstm", "--input", "9x3", *DRAWS]
    answer = asked.answered(*words, warning="Lstm: ")
    assert "of the sensitivity is on the first of 9 steps" in answer.out
    assert not [word for word in OF_IMAGES if word in answer.out]


def test_a_comparison_takes_axes_and_what_is_held(asked: Asking) -> None:
    words = ["kinds.py:IdsAndMask", "kinds.py:Embedded", *MASKED_IDS[1:], *DRAWS]
    answer = asked.answered("compare", *words)
    for name in ("IdsAndMask", "Embedded"):
        assert f"{name}: Over 99 % of the sensitivity is on the first 2 of 5 tokens." in answer.out
    asked.answered("compare", *words, "--dry-run")
    asked.refused(
        "compare", "kinds.py:Graph", "kinds.py:Edges", *GRAPH[1:], *DRAWS[:-1], "other", naming="'adjacency' to hold"
    )


def test_results_on_turned_inputs_are_not_compared(asked: Asking) -> None:
    for name, words in (("one", LSTM), ("two", CONV)):
        asked.answered("scan", *words, *DRAWS[:-1], name)
    asked.refused("compare", "one", "two", naming="9×3 (time, feature) (Lstm) and 3×9 (channel, time) (conv)")


@pytest.mark.parametrize("command", [["kernel"], ["scan"], ["measure", "sample_score"]])
def test_samples_of_another_shape_are_refused(asked: Asking, command: list[str]) -> None:
    words = ["lenet", "--input", "1x8x8", "--data", "images.npz", "--samples", "24,12", *DRAWS[2:]]
    asked.refused(*command, *words, naming="must be the shape of the samples, 1x4x4, got 1x8x8")
