"""Words of the command line that cannot be meant: one sentence each, and nothing left behind."""

import pytest
from asking import Asking

NET = ["odd.py:flat", "--input", "1x4x4", "--device", "cpu", "--out", "run"]
SCAN = ["scan", *NET, "--draws", "4"]
KERNEL = ["kernel", "odd.py:flat", "--data", "images.npz", "--device", "cpu", "--out", "run"]
FIT = ["inr", "fit", "signal.npy", "--set", "width=8", "--steps", "2", "--device", "cpu", "--out", "run"]
ADVISE = ["inr", "advise", "signal.npy", "--points", "32", "--draws", "2", "--device", "cpu", "--out", "run"]
PATTERNS = ["patterns", "lenet", "--patches", "images.npz", "--device", "cpu", "--out", "run"]

# A command that works but for one option, and what that option cannot be.
VALUES: list[tuple[list[str], str, list[str]]] = [
    (SCAN, "--device", ["mps", "meta", "xpu", "cuda:99", "gpu", "hip", "vulkan", "CPU", ""]),
    (SCAN, "--precision", ["float8", "double", "FLOAT32", ""]),
    (SCAN, "--input", ["100000x100000", "99999999999999999999x3", "0x4", "-1x4", "4", "1x4x", "axb", "nan", "1.5x4"]),
    (SCAN, "--draws", ["0", "1", "-3", "nan", "1e3", "abc", ""]),
    (SCAN, "--step", ["0", "nan", "inf", "-inf", "1e400", "abc"]),
    (SCAN, "--seed", ["nan", "1.5", "abc", ""]),
    (SCAN, "--readout", ["firstt", "", "MARGIN"]),
    (SCAN, "--batchnorm", ["x", ""]),
    (SCAN, "--estimator", ["x", "", "Exact"]),
    (SCAN, "--set", ["a", "=1", "nosuch=3"]),
    (SCAN, "--weights", ["nosuch", "odd.py", "images.npz", "."]),
    (SCAN, "--checkpoints", ["nosuch", "odd.py", "."]),
    (SCAN, "--out", ["odd.py", "odd.py/x", "/proc/x", "/dev/null"]),
    (SCAN, "--data", ["nosuch", "odd.py", "nosuch.npz"]),
    (KERNEL, "--samples", ["0", "-1", "abc", "24,", "nan", "1e2", ""]),
    (KERNEL, "--leading", ["0", "-1", "999", "nan"]),
    (KERNEL, "--positive", ["9", "-1", "a", "0,1,2"]),
    (KERNEL, "--parameters", ["nosuch*", "["]),
    (KERNEL, "--kernel", ["scalarr", ""]),
    (KERNEL, "--matrix", ["x.txt", "nosuch/k.npy"]),
    (KERNEL, "--draws", ["0", "-1", "nan"]),
    (FIT, "--finer", ["0", "-1", "100000", "nan"]),
    (FIT, "--start", ["inf", "nan", "-1"]),
    (FIT, "--steps", ["0", "-1", "nan"]),
    (FIT, "--rate", ["nan", "inf", "-1", "0"]),
    (FIT, "--batch", ["0", "-1"]),
    (FIT, "--held-out", ["1", "nan", "-0.1", "inf"]),
    (FIT, "--longest", ["0", "-4"]),
    (FIT, "--seconds", ["0", "nan", "-1", "inf"]),
    (FIT, "--model", ["lenet", "odd.py:flat", "nosuch", ""]),
    (FIT, "--set", ["omega=nan", "omega=inf", "width=0", "nosuch=1"]),
    (ADVISE, "--candidates", ["", "x", "siren=nan", "siren=inf", "siren=-1", "siren=0", "siren,"]),
    (ADVISE, "--points", ["0", "-1", "99999"]),
    (ADVISE, "--draws", ["0", "-1"]),
    (ADVISE, "--width", ["0", "-1"]),
    (ADVISE, "--steps", ["0", "-1"]),
    (ADVISE, "--rate", ["nan", "inf", "0", "-1"]),
    (PATTERNS, "--clusters", ["0", "-1", "99999999"]),
    (PATTERNS, "--within", ["nan", "inf", "-1"]),
    (PATTERNS, "--control", ["x", ""]),
    (PATTERNS, "--draws", ["0", "-1"]),
    (PATTERNS, "--patches", ["nosuch", "signal.npy", "odd.py"]),
]
CASES = [(command, option, value) for command, option, values in VALUES for value in values]


@pytest.mark.parametrize(
    ("command", "option", "value"), CASES, ids=[f"{' '.join(c[:2])} {o} {v or 'nothing'}" for c, o, v in CASES]
)
def test_a_value_that_cannot_be_is_told(ask: Asking, command: list[str], option: str, value: str) -> None:
    ask.refused(*command, option, value)


@pytest.mark.parametrize(
    "words",
    [
        "merge", "data", "inr", "nosuch", "--nosuch", "scan --nosuch", "scan lenet extra", "scan --draws",
        "compare", "compare lenet", "compare lenet lenet", "compare lenet nosuch", "report", "report nosuch",
        "report odd.py", "report .", "selftest nosuch", "measure", "measure nosuch", "measure match", "measure advise",
        "measure merge_check", "measure task_addition", "measure pooling_theory lenet", "measure pooling_theory --side 0",
        "measure pooling_theory --side -1", "measure pooling_theory --side nan", "measure pooling_theory --side 1000000",
        "measure average_geometry odd.py:flat --input 1x4x4 --inputs 0",
        "measure average_geometry odd.py:flat --input 1x4x4 --scale nan",
        "measure average_geometry odd.py:flat --input 1x4x4 --nosuch 3",
        "measure average_geometry odd.py:flat --input 1x4x4 --draws",
        "measure directional_bias odd.py:flat --input 1x4x4 --every 0",
        "measure directional_bias odd.py:flat --input 1x4x4 --basis nosuch",
        "measure directional_bias odd.py:flat --input 1x4x4 --basis fourier --noise nan",
        "scan lenett", "scan odd.py", "scan odd.py:", "scan nofile.py:f", "scan :f", "scan odd.py:flat:x",
        "scan torch:nosuch", "scan json:dumps", "scan nosuchpackage:f", "scan . ", "scan /", "scan 'a b c'",
        "reproduce nads", "reproduce nads2020 99", "reproduce nads2020 1 --effort x", "reproduce --merge nosuch",
        "reproduce --merge odd.py", "reproduce --status --results nosuch", "reproduce --results nosuch",
        "reproduce nads2020 1 --effort smoke --out odd.py",
        "merge check nosuch a b --data images.npz", "merge check images.npz images.npz images.npz --data images.npz",
        "merge apply nosuch a=1 --out m.safetensors", "merge apply images.npz images.npz=1 --out m.safetensors",
        "merge apply images.npz images.npz --out m.safetensors", "merge diff nosuch a", "merge diff signal.npy signal.npy",
        "data get nosuch", "data check nosuch", "data check odd.py", "data list --data-root odd.py",
        "edit", "edit nosuch", "edit vit --tasks nosuch", "inr nosuch", "inr fit nosuch.png", "inr fit odd.py", "inr fit .",
        "inr advise nosuch.wav",
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_is_told(ask: Asking, words: str) -> None:
    import shlex

    ask.refused(*shlex.split(words))


@pytest.mark.parametrize(
    "words", [[*SCAN[:-4], "--out", "r\udcffn"], ["merge", "diff", "caf\udce9.pt", "b.pt"], ["list\udcff"]]
)
def test_a_name_that_is_not_utf8_is_told_before_the_work(ask: Asking, words: list[str]) -> None:
    ask.refused(*words, naming="Names must be UTF-8, but")
